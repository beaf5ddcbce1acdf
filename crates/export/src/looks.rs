//! How far, and for how long, it is looked at what a volume holds: for NBD's block status, and FUSE's SEEK_DATA and SEEK_HOLE.
//!
//! What a volume holds is put together from every piece of every leaf in a range, so a look-up costs what the range is cut into: nothing
//! for a plain file, a quarter of a million questions for 1 GiB in chunks of 4 KiB. So a look goes a little ahead at first, twice as
//! far each time that it was the same up to there, and takes back what was looked at in vain; and it ends when its time is up.
//!
//! Invariant: no turn looks for longer than [`LOOK_TIME`], but for the last look-up in it: that covers [`SPAN_MAX`] at most, and twice as much as
//! one that the time was enough for. Other clients of the worker have their turns then.

use blockwork_engine::{Nanos, Sectors};

/// Most look-ups in a turn: each may be a system call, and other clients wait.
pub(crate) const LOOKUPS_MAX: usize = 256;
/// Processor time for look-ups in one turn of a client. The time of the thread, so that they are no fewer where others have the
/// processor.
pub(crate) const LOOK_TIME: Nanos = Nanos::millis(1);
/// How far the first look-up goes: 1 MiB.
pub(crate) const SPAN_MIN: Sectors = Sectors(2 << 10);
/// How far any goes: 64 MiB.
pub(crate) const SPAN_MAX: Sectors = Sectors(128 << 10);

/// How far the next look-up goes.
#[derive(Debug)]
pub(crate) struct Reach(Sectors);

impl Default for Reach {
    fn default() -> Reach {
        Reach(SPAN_MIN)
    }
}

impl Reach {
    /// Where so much is left to be looked at.
    pub(crate) fn within(&self, left: Sectors) -> Sectors {
        left.min(self.0)
    }

    /// It was the same for so far.
    pub(crate) fn found(&mut self, nr: Sectors) {
        self.0 = Sectors(nr.0.saturating_mul(2).clamp(SPAN_MIN.0, SPAN_MAX.0));
    }
}
