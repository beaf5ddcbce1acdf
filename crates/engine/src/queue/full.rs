//! A device without room: a sparse file on a file system that is full, or whose owner's quota is used up.
//!
//! Clients are told by the error, and many of them (file systems in a guest) stop writing for good. Who looks after the server can make
//! room, and is told what is full: once in [`INTERVAL`], however often clients try.

use super::LeafQueue;
use crate::bio::Errno;
use crate::units::Nanos;

/// Between two complaints about one device: 10 s.
const INTERVAL: Nanos = Nanos(10_000_000_000);

impl LeafQueue {
    /// Request `id` has failed for good. Says so if it was for want of room.
    #[cold]
    pub(super) fn complain_if_full(&self, id: u32, errno: Errno, now: Nanos) {
        if ![Errno::ENOSPC, Errno::EDQUOT].contains(&errno) || !self.shared().may_complain(now, INTERVAL) {
            return;
        }
        let (op, _, sector, nr) = self.requests[id].what();
        log::error!(
            "{}: {op:?} of {} bytes at byte {}: {errno}. Whoever asked was told. Make room on the file system on which it lies, and it goes on",
            self.source.name(),
            nr.bytes(),
            sector.bytes()
        );
    }
}
