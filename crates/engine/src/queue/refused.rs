//! A request that the device has refused for good.
//!
//! Clients are told by the error, and many of them (file systems in a guest) stop writing for good. Who looks after the server can make
//! room or replace a disk, and is told which one, where, and what to do. As by the kernel, also where somebody above makes good for it: a
//! mirror that is read instead hides from its clients that a disk is dying, and should not from its owner.
//!
//! Invariant: of a device and an operation, and likewise of a device without room, something is said once in [`INTERVAL`], however often
//! clients try; the next time tells how many were not told of.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::LeafQueue;
use crate::bio::{Errno, Op};
use crate::units::Nanos;

/// Between two complaints of a kind about one device: 10 s.
const INTERVAL: Nanos = Nanos(10_000_000_000);

/// Errors that say nothing of the device: it never promised this, the client's memory has gone, or the client has.
const NO_FAULT: [Errno; 3] = [Errno::EOPNOTSUPP, Errno::EFAULT, Errno::ECANCELED];

/// Why a request has failed.
#[derive(Clone, Copy)]
pub(super) enum Refusal {
    Errno(Errno),
    /// The device calls it done, and has transferred nothing.
    Nothing,
}

impl Refusal {
    /// What the client is told.
    pub(super) fn errno(self) -> Errno {
        match self {
            Refusal::Errno(errno) => errno,
            Refusal::Nothing => Errno::EIO,
        }
    }

    fn is_want_of_room(self) -> bool {
        [Errno::ENOSPC, Errno::EDQUOT, Errno::EFBIG].contains(&self.errno())
    }

    fn remedy(self) -> &'static str {
        if self.errno() == Errno::EFBIG {
            "It lies behind the limit of a file's size, of this process (ulimit -f; LimitFSIZE= of its unit in systemd) or of the file system. \
             Raise that, and start the server anew"
        } else if self.is_want_of_room() {
            "Make room on the file system on which it lies, and it goes on"
        } else {
            "See what the kernel's log says of it (dmesg). As a member of an array, replace it; else copy what can be read of it, and serve the copy"
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Errno(errno) => errno.fmt(f),
            Refusal::Nothing => f.write_str("nothing was transferred"),
        }
    }
}

/// What was said of one device, by all workers.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    room: Complaint,
    reads: Complaint,
    writes: Complaint,
    flushes: Complaint,
    discards: Complaint,
    zeroes: Complaint,
}

impl Complaints {
    fn of(&self, op: Op, refusal: Refusal) -> &Complaint {
        match op {
            _ if refusal.is_want_of_room() => &self.room,
            Op::Read => &self.reads,
            Op::Write => &self.writes,
            Op::Flush => &self.flushes,
            Op::Discard => &self.discards,
            Op::WriteZeroes => &self.zeroes,
        }
    }
}

/// Complaints of one kind.
#[derive(Debug, Default)]
pub struct Complaint {
    /// When the next one may be said.
    next: AtomicU64,
    unsaid: AtomicU64,
}

impl Complaint {
    /// Has it said, unless that was done just now; what `say` is given goes to its end, and tells how many were not said.
    pub fn say(&self, now: Nanos, say: impl FnOnce(&str)) {
        match self.due(now) {
            None => {}
            Some(0) => say(""),
            Some(unsaid) => say(&format!(" ({unsaid} like this were not told of)")),
        }
    }

    /// Whether it is time to say one; if so, how many were not said. Workers that come at once say one, and count the others: no order
    /// with anything else matters.
    fn due(&self, now: Nanos) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let then = now.0.saturating_add(INTERVAL.0);
        let is_mine = now.0 >= next
            && self.next.compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !is_mine {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.unsaid.swap(0, Ordering::Relaxed))
    }
}

impl LeafQueue {
    /// Request `id` has failed for good.
    #[cold]
    pub(super) fn complain(&self, id: u32, refusal: Refusal, now: Nanos) {
        if NO_FAULT.contains(&refusal.errno()) {
            return;
        }
        let (op, _, sector, nr) = self.requests[id].what();
        self.shared.complaints.of(op, refusal).say(now, |more| {
            log::error!(
                "{}: {op:?} of {} bytes at byte {}: {refusal}. Whoever asked was told. {}{more}",
                self.source.name(),
                nr.bytes(),
                sector.bytes(),
                refusal.remedy()
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_complaint_of_each_kind_and_a_number() {
        let complaints = Complaints::default();
        let (broken, full) = (Refusal::Errno(Errno::EIO), Refusal::Errno(Errno::ENOSPC));
        let due = |op, refusal, at| complaints.of(op, refusal).due(Nanos(at));
        for (op, refusal) in [(Op::Read, broken), (Op::Write, broken), (Op::Write, full)] {
            assert_eq!(due(op, refusal, 5), Some(0));
            assert!((6..1000).all(|at| due(op, refusal, at).is_none()));
        }
        assert_eq!(due(Op::Read, Refusal::Nothing, 4 + INTERVAL.0), None, "a kind of reads that fail");
        assert_eq!(due(Op::Read, broken, 5 + INTERVAL.0), Some(995));
        assert_eq!(due(Op::Write, broken, 5 + 2 * INTERVAL.0), Some(994));
    }
}
