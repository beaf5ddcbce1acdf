//! What tests make of plans that were drawn, and what they expect of all of them.

use blockwork_engine::Errno;
use blockwork_sim::{Fault, Faults};

use super::{Counts, Plan};

/// The ways in which a request can fail.
pub const FAULTS: [Fault; 6] = [
    Fault::Error(Errno::EIO),
    Fault::Error(Errno::ENOSPC),
    Fault::Latent,
    Fault::ForEver,
    Fault::Short,
    Fault::LostFlush,
];

impl Plan {
    /// A short one, of one life that is cut nowhere yet.
    pub fn shortened(mut self) -> Plan {
        self.bios = 12;
        self.lives.truncate(1);
        self.lives[0].cut = 0;
        self
    }

    /// A short one with all devices, in which nothing is amiss but one fault that is planned.
    pub fn with_nothing_amiss_but(mut self, fault: Fault) -> Plan {
        self.bios = 16;
        self.lives.truncate(1);
        let life = &mut self.lives[0];
        (life.cut, life.faults, life.no_mercy) = (0, Faults::default(), false);
        life.victims.clear();
        (self.array.absent, self.array.recovering) = (Vec::new(), None);
        self.slowness = Faults::default();
        // A file system that is full is no broken disk.
        self.excused = fault == Fault::Error(Errno::ENOSPC);
        self
    }
}

/// Whoever looked after the arrays of so many plans did a bit of everything.
pub fn expect_all_verbs(counts: &Counts, seeds: u64) {
    for what in ["add", "re-added", "filled", "fail", "remove", "replace", "sync", "death"] {
        let n = counts.tally.borrow().counts.get(what).copied().unwrap_or_default();
        // The rarest, a member that is re-added, happens in one run of forty or so, and by chance in fewer.
        let least = if what == "re-added" { seeds / 400 } else { seeds / 100 };
        assert!(n > least, "{what} happened {n} times only");
    }
}
