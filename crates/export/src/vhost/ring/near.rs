//! What is looked at first of requests that are taken soon, so that the processor can fetch it in time.
//!
//! A driver has written table, header and status of a request on its own processor. Where that is far away, to have a line from there takes
//! ours some 100 ns, and that for one after the other: where the next one is stands in the one before. Those of several requests come together in
//! that time. libblkio's driver has 1.3 to 1.4 times as many requests done by that, with 64 and more under way; one whose next request is written when the one
//! before is answered up to a twentieth less with 64 and 128, and up to a seventh more with others. To leave the half alone that was written last
//! makes no difference. Near, it costs more than it spares, so that it is not done there (`vhost/batch.rs` knows where).
//!
//! Invariant: nothing depends on it. What is read here is read again, and checked, when a request is taken; of what is wrong nothing is said.

use blockwork_format::virtio::{DESCRIPTOR_BYTES, Descriptor};
use blockwork_memory::{GuestMemory, GuestRange};

/// Requests whose memory is fetched together, at most.
pub(super) const NEAR: usize = 16;
/// Descriptors that nearly all requests have, where they are in the ring: header, data in a piece, status. Of longer ones no more is looked at.
pub(super) const USUAL: usize = 3;

/// Tables of requests, on their way to this processor.
#[derive(Default)]
pub(super) struct Tables {
    tables: [Option<GuestRange>; NEAR],
    count: usize,
}

impl Tables {
    /// One more, of at most [`NEAR`].
    #[inline(always)]
    pub(super) fn add(&mut self, memory: &GuestMemory, address: u64, len: u32) {
        if let Some(table) = memory.range(address, len)
            && table.len() >= DESCRIPTOR_BYTES
        {
            memory.bring_near(table, false);
            self.tables[self.count] = Some(table);
            self.count += 1;
        }
    }

    /// Where their requests begin and end.
    #[inline(always)]
    pub(super) fn ends(&self, memory: &GuestMemory, mut found: impl FnMut(Ends)) {
        for table in self.tables.iter().take(self.count).flatten() {
            let last = table.len() / DESCRIPTOR_BYTES - 1;
            let address = |i| Descriptor::decode(&memory.read_16(*table, i * DESCRIPTOR_BYTES)).address;
            found([address(0), address(last)]);
        }
    }
}

/// The guest's addresses of a request's first and last piece of memory: its header, and its status if that is one byte.
pub(super) type Ends = [u64; 2];

/// Has the processor fetch them.
#[inline(always)]
pub(super) fn bring_near(memory: &GuestMemory, [header, status]: Ends) {
    if let Some(header) = memory.range(header, 1) {
        memory.bring_near(header, false);
    }
    if let Some(status) = memory.range(status, 1) {
        memory.bring_near(status, true);
    }
}
