//! What tests make of plans that were drawn, and what they expect of all of them.

use blockwork_engine::{Errno, FileId, Nanos};
use blockwork_sim::{Fault, Faults, Random};

use super::{Counts, Life, Plan};

impl Plan {
    /// Rows with a parity, over two lives: in the first, a member refuses some writes, and lists them; in the second, another one takes no writes
    /// any more, or refuses everything. In the latter case, what was listed is lost, and clients hear of it.
    pub fn draw_parity_dying(seed: u64) -> Plan {
        let mut plan = Plan::draw_parity(seed);
        let random = &mut Random::part(seed, 10);
        let end = Faults { write_errors: 1_000_000, ..Faults::default() };
        let end = match random.below(4) {
            0 => Faults { read_errors: 1_000_000, ..end },
            1 => Faults { lost_flushes: 100_000, ..Faults::default() },
            _ => end,
        };
        // Where it can be read, only what a write meets that it is the first to refuse cannot be saved.
        let is_lost = end.read_errors + end.lost_flushes > 0;
        (plan.array.bad_blocks, plan.array.loses_listed, plan.excused) = (true, true, is_lost);
        (plan.array.recovering, plan.slowness) = (None, Faults::default());
        plan.array.absent.clear();
        let devices: Vec<FileId> = plan.array.numbered().map(|(_, device)| device).collect();
        let lister = random.index(devices.len());
        let dying = (lister + 1 + random.index(devices.len() - 1)) % devices.len();
        let write_errors = *random.choose(&[5_000, 20_000]);
        let longest = *random.choose(&[1, 20_000_000, 500_000_000]);
        let healthy = Nanos(random.below(longest));
        let cut = if random.coin() { 0 } else { random.between(1, plan.bios * 20) };
        plan.lives = Vec::from([
            Life {
                victims: vec![devices[lister]],
                faults: Faults { write_errors, ..Faults::default() },
                ..Life::default()
            },
            Life {
                victims: vec![devices[dying]],
                faults: end,
                healthy,
                cut,
                despite_lists: true,
                ..Life::default()
            },
        ]);
        plan
    }

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
