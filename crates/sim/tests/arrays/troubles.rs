//! How devices of arrays misbehave, and from when on.

use blockwork_engine::{Completion, Context, Done, Errno, FileId, Nanos, Port, PortState};
use blockwork_sim::{Fault, Faults, Random, SimEnv};

/// The ways in which a request can fail.
pub const FAULTS: [Fault; 6] = [
    Fault::Error(Errno::EIO),
    Fault::Error(Errno::ENOSPC),
    Fault::Latent,
    Fault::ForEver,
    Fault::Short,
    Fault::LostFlush,
];

/// How a device misbehaves.
pub fn draw_faults(random: &mut Random) -> Faults {
    let none = Faults::default();
    match random.below(8) {
        0 => none,
        1 => Faults { write_errors: 30_000, ..none },
        2 => Faults { read_errors: 100_000, ..none },
        3 => Faults { latent_errors: 100_000, short: 50_000, ..none },
        4 => Faults { permanent_errors: 10_000, again: 50_000, ..none },
        5 => Faults { flush_errors: 100_000, discard_errors: 50_000, ..none },
        6 => Faults { lost_flushes: 100_000, short: 100_000, ..none },
        _ => Faults { stalls: 5_000, slowdown: 20, latent_errors: 30_000, write_errors: 5_000, ..none },
    }
}

/// Nothing works any more.
pub const DEAD: Faults = Faults {
    read_errors: 1_000_000,
    write_errors: 1_000_000,
    flush_errors: 1_000_000,
    discard_errors: 1_000_000,
    again: 0,
    latent_errors: 0,
    permanent_errors: 0,
    short: 0,
    stalls: 0,
    stall_time: Nanos(0),
    lost_flushes: 0,
    misdirected: 0,
    slowdown: 1,
};

/// Lets a device die, or begin to misbehave, at a given time.
pub struct Misbehaviour {
    victim: FileId,
    faults: Faults,
    after: Nanos,
    done: bool,
}

impl Misbehaviour {
    /// From `after` on, `victim` does that.
    pub fn new(victim: FileId, faults: Faults, after: Nanos) -> Misbehaviour {
        Misbehaviour { victim, faults, after, done: false }
    }
}

impl Port<SimEnv> for Misbehaviour {
    fn open(&mut self, cx: &mut Context<'_, SimEnv>) {
        let token = cx.token(0);
        cx.env.timeout(token, self.after);
    }
    fn event(&mut self, cx: &mut Context<'_, SimEnv>, _: u32, _: Completion) {
        cx.env.world().set_faults(self.victim, self.faults.clone());
        self.done = true;
    }
    fn done(&mut self, _: &mut Context<'_, SimEnv>, _: Done) {}
    fn turn(&mut self, _: &mut Context<'_, SimEnv>) -> PortState {
        if self.done { PortState::Closed } else { PortState::Open }
    }
    fn drain(&mut self, _: &mut Context<'_, SimEnv>) {
        self.done = true;
    }
}
