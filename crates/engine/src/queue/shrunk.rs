//! A device that has become smaller while it is served: a file that somebody has cut off.
//!
//! Reads behind its end fail by themselves. Writes would make a file grow again, and what lies between would then read as zeros, as if all
//! were well. So they are refused as soon as it is known: when a read has come to the end, or at a flush, where the size is looked at if
//! that costs nobody a wait ([`LeafSource::sectors_now`](crate::LeafSource::sectors_now)). Not at each write, for which it would be a
//! system call: those that come first may make it grow.

use super::LeafQueue;
use crate::bio::Op;
use crate::units::{Sector, Sectors};

impl LeafQueue {
    /// A read or write was done, and nothing of it was transferred.
    #[cold]
    pub(super) fn transferred_nothing(&self, id: u32) {
        let (op, _, sector, _) = self.requests[id].what();
        if op == Op::Read {
            // Where nobody can tell its size, it ends here at the latest.
            self.ends_at(self.source.sectors_now().unwrap_or(Sectors(sector.0)));
        }
    }

    /// A flush is about to be made, which takes longer than this.
    pub(super) fn look_at_size(&self) {
        if let Some(sectors) = self.source.sectors_now() {
            self.ends_at(sectors);
        }
    }

    fn ends_at(&self, end: Sectors) {
        let whole = self.source.sectors();
        if end < whole && self.shared.ends_at(Sector(end.0)) {
            log::error!(
                "{}: it ends at byte {} now, and had {} bytes when it was opened. What was behind that is lost; reads there fail, and writes \
                 are refused, since they would make it grow and look whole. If it was resized on purpose, serve it again; \
                 else bring back the data first.",
                self.source.name(),
                end.bytes(),
                whole.bytes()
            );
        }
    }
}
