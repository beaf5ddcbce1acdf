//! The log of written pages: while a guest moves to another host, its front end copies its memory page by page, and has us mark
//! those that we write, so that it copies them again.
//!
//! Invariants:
//! 1. A page is marked after it was written (the front end clears the mark before it copies), and before the driver, or a front
//!    end that stops the queue, hears of what is in it.
//! 2. Nothing is marked outside of the log, which is large enough for all memory that the guest has ([`bytes_for`]).
//!
//! Source: `docs/interop/vhost-user.rst` of QEMU, "Migration".

use blockwork_format::vhost_user::VringAddr;
use blockwork_format::virtio::{DESCRIPTOR_BYTES, split};
use blockwork_memory::{Buffer, GuestLayout, GuestMemory, GuestRange, Place, Segment};

use super::ring::RingPlace;

/// Bytes that a bit stands for.
const PAGE: u64 = 4096;
/// What a packed ring's device writes beside the descriptors: when it wants to be called.
const DEVICE_EVENT_BYTES: u64 = 4;

/// Bytes of a log for memory that ends at this guest address.
pub(super) fn bytes_for(end: u64) -> u64 {
    end.div_ceil(PAGE).div_ceil(8)
}

/// The log that the front end has shared.
#[derive(Clone, Debug)]
pub(super) struct LogMemory {
    pub(super) at: Place,
    pub(super) len: usize,
}

/// One queue's view of the log.
#[derive(Debug)]
pub(super) struct DirtyLog {
    bits: Buffer,
    /// Guest addresses and lengths of what the device writes of its ring.
    ring: Vec<(u64, u64)>,
}

impl DirtyLog {
    pub(super) fn new(memory: &LogMemory, layout: &GuestLayout, place: &RingPlace) -> DirtyLog {
        let bits = Buffer::of_mapping(&memory.at.mapping, memory.at.offset, memory.len);
        let size = u64::from(place.size);
        let written = if place.is_packed {
            vec![
                (place.address.descriptors, size * DESCRIPTOR_BYTES as u64),
                (place.address.used, DEVICE_EVENT_BYTES),
            ]
        } else {
            let size = u16::try_from(place.size).unwrap_or(u16::MAX);
            vec![(place.address.used, split::used_bytes(size) as u64)]
        };
        // The front end may have the used ring marked elsewhere, also where no memory is.
        let asked = place.address.flags & VringAddr::LOGGED != 0;
        let used = written.last().filter(|_| asked).map(|&(_, len)| (place.address.log, len));
        let in_guest = |(user, len)| layout.guest_address(user).map(|address| (address, len));
        DirtyLog { bits, ring: written.into_iter().filter_map(in_guest).chain(used).collect() }
    }

    /// The ring was written to.
    pub(super) fn ring(&self) {
        self.ring.iter().for_each(|&(address, len)| self.mark(address, len));
    }

    /// So was this range of the guest's memory.
    pub(super) fn range(&self, memory: &GuestMemory, range: GuestRange) {
        self.mark(memory.address(range), range.len() as u64);
    }

    /// So was what lies in these segments.
    pub(super) fn data(&self, memory: &GuestMemory, segments: &[Segment]) {
        for segment in segments {
            if let Some(address) = memory.address_of(segment) {
                self.mark(address, segment.len() as u64);
            }
        }
    }

    fn mark(&self, address: u64, len: u64) {
        let Some(last) = len.checked_sub(1).and_then(|more| address.checked_add(more)) else { return };
        for page in address / PAGE..=last / PAGE {
            if let Some(byte) = usize::try_from(page / 8).ok().filter(|byte| *byte < self.bits.len()) {
                self.bits.set_bits(byte, 1 << (page % 8));
            }
        }
    }
}
