//! virtio: features, what descriptors and events look like in a ring, and what a block device says and is asked ([`blk`]).
//!
//! Source: "Virtual I/O Device (VIRTIO) Version 1.2", sections 2.7 (split virtqueues), 2.8 (packed virtqueues) and 6 (features).
//! All integers are little-endian: devices from before version 1 are not served.
//!
//! Not here: how a ring is walked, and what may be believed of it: that is the export's business.

pub mod blk;

use crate::bytes::{u16_le, u32_le, u64_le};

/// Features of every device, as bits.
pub mod feature {
    /// Descriptors may be in a table of their own.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Each side says at which index it wants to be told next.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The device is one of version 1 or later.
    pub const VERSION_1: u64 = 1 << 32;
    /// Addresses go through an IOMMU.
    pub const ACCESS_PLATFORM: u64 = 1 << 33;
    /// One ring for both directions.
    pub const RING_PACKED: u64 = 1 << 34;
    /// Buffers are used in the order in which they were made available.
    pub const IN_ORDER: u64 = 1 << 35;
    /// A kick says how far the driver is.
    pub const NOTIFICATION_DATA: u64 = 1 << 38;
}

/// Flags of a descriptor, of either kind of ring.
pub mod descriptor_flag {
    /// The chain goes on.
    pub const NEXT: u16 = 1;
    /// The device writes it; otherwise it reads.
    pub const WRITE: u16 = 2;
    /// It is a table of descriptors.
    pub const INDIRECT: u16 = 4;
    /// Packed: the driver's wrap counter when it made it available.
    pub const AVAIL: u16 = 1 << 7;
    /// Packed: the device's wrap counter when it used it; until then the opposite of the driver's.
    pub const USED: u16 = 1 << 15;
}

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Largest split or packed ring, in descriptors.
pub const RING_SIZE_MAX: u16 = 32768;

/// A piece of memory, as a split ring or an indirect table has it. In an indirect table of a packed ring, `next` has no
/// meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The guest's address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// See [`descriptor_flag`].
    pub flags: u16,
    /// Where the chain goes on.
    pub next: u16,
}

impl Descriptor {
    /// From its bytes.
    #[inline]
    pub fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Descriptor {
        Descriptor {
            address: u64_le(bytes, 0),
            len: u32_le(bytes, 8),
            flags: u16_le(bytes, 12),
            next: u16_le(bytes, 14),
        }
    }

    /// To its bytes.
    #[inline]
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        encode(self.address, self.len, self.flags, self.next)
    }

    /// Whether all of these flags are set.
    #[inline]
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

/// A piece of memory, as a packed ring has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedDescriptor {
    /// The guest's address.
    pub address: u64,
    /// Bytes; when it was used, how many the device has written.
    pub len: u32,
    /// The driver's name for the buffer: that of the chain's last descriptor counts.
    pub id: u16,
    /// See [`descriptor_flag`].
    pub flags: u16,
}

impl PackedDescriptor {
    /// From its bytes.
    #[inline]
    pub fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> PackedDescriptor {
        PackedDescriptor {
            address: u64_le(bytes, 0),
            len: u32_le(bytes, 8),
            id: u16_le(bytes, 12),
            flags: u16_le(bytes, 14),
        }
    }

    /// To its bytes.
    #[inline]
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        encode(self.address, self.len, self.id, self.flags)
    }
}

/// As one number: what is put together in memory, and then moved to where others wait for it, waits there itself until all writes before it are
/// done.
#[inline]
fn encode(address: u64, len: u32, third: u16, last: u16) -> [u8; DESCRIPTOR_BYTES] {
    let rest = u64::from(len) | u64::from(third) << 32 | u64::from(last) << 48;
    (u128::from(address) | u128::from(rest) << 64).to_le_bytes()
}

/// Where things are in the areas of a split ring.
pub mod split {
    /// Flag of the available ring: the driver does not want to be told of used buffers.
    pub const AVAIL_NO_INTERRUPT: u16 = 1;
    /// Flag of the used ring: the device does not want to be told of available buffers.
    pub const USED_NO_NOTIFY: u16 = 1;
    /// Of both rings: the index, in bytes. Before it are the flags.
    pub const INDEX: usize = 2;
    /// Of both rings: the first entry, in bytes.
    pub const ENTRIES: usize = 4;
    /// Bytes of an entry of the available ring.
    pub const AVAIL_ENTRY: usize = 2;
    /// Bytes of an entry of the used ring: id and length, a u32 each.
    pub const USED_ENTRY: usize = 8;

    /// Bytes of the available ring, with the index behind it at which the driver wants to be told.
    pub fn avail_bytes(size: u16) -> usize {
        used_event(size) + 2
    }
    /// Bytes of the used ring, with the index behind it at which the device wants to be told.
    pub fn used_bytes(size: u16) -> usize {
        avail_event(size) + 2
    }
    /// In the available ring: the used index at which the driver wants to be told.
    pub fn used_event(size: u16) -> usize {
        ENTRIES + AVAIL_ENTRY * usize::from(size)
    }
    /// In the used ring: the available index at which the device wants to be told.
    pub fn avail_event(size: u16) -> usize {
        ENTRIES + USED_ENTRY * usize::from(size)
    }
}

/// What the event suppression structures of a packed ring say: an offset with a wrap counter, then flags.
pub mod packed_event {
    /// Bytes of one.
    pub const BYTES: usize = 4;
    /// In one: the flags.
    pub const FLAGS: usize = 2;
    /// Flags: tell me.
    pub const ENABLE: u16 = 0;
    /// Flags: do not tell me.
    pub const DISABLE: u16 = 1;
    /// Flags: tell me at that descriptor.
    pub const AT: u16 = 2;
    /// Of an offset: the wrap counter.
    pub const WRAP: u16 = 1 << 15;
}

/// Whether the other side, which wants to be told at `event`, is to be told now that an index went from `old` to `new`.
#[inline]
pub fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_due_when_the_index_passes_it() {
        for (event, new, old, due) in [
            (5, 6, 5, true),
            (5, 5, 5, false),
            (5, 5, 4, false),
            (4, 6, 3, true),
            (6, 6, 3, false),
            (0xffff, 0, 0xffff, true),
            (0, 1, 0xfff0, true),
            (0x8000, 3, 0xfff0, false),
        ] {
            assert_eq!(need_event(event, new, old), due, "{event} {new} {old}");
        }
    }

    #[test]
    fn descriptors_come_back_as_they_were() {
        let split = Descriptor { address: 0x1122_3344_5566_7788, len: 9, flags: 3, next: 0xabcd };
        assert_eq!(Descriptor::decode(&split.encode()), split);
        assert_eq!(split.encode()[..2], [0x88, 0x77]);
        let packed = PackedDescriptor { address: 7, len: u32::MAX, id: 0x1234, flags: 0x8080 };
        assert_eq!(PackedDescriptor::decode(&packed.encode()), packed);
        assert_eq!(packed.encode()[12..], [0x34, 0x12, 0x80, 0x80]);
    }

    #[test]
    fn the_areas_of_a_split_ring_have_their_sizes() {
        assert_eq!((split::avail_bytes(8), split::used_bytes(8)), (6 + 16, 6 + 64));
    }
}
