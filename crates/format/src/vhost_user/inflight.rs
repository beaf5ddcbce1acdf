//! The memory in which a back end marks the requests that it has taken and not yet answered, so that the next one, after it has
//! died, neither loses nor repeats any.
//!
//! There is an area per queue, one after the other, each of [`queue_bytes`]: a head, then an entry a descriptor. Both ends
//! are back ends; the front end only keeps the memory.

/// Bytes of an area's head, of a split ring and of a packed one.
const SPLIT_HEAD: usize = 16;
const PACKED_HEAD: usize = 32;
/// Areas begin at multiples of this, so that no two queues share a cache line.
const ALIGNMENT: usize = 64;

/// In every head: the version.
pub const VERSION: usize = 8;
/// In every head: the number of entries.
pub const ENTRIES: usize = 10;
/// The version that there is.
pub const VERSION_1: u16 = 1;

/// Fields of an area of a split ring, in bytes.
pub mod split {
    /// In the head: the last of the batch of descriptors that was used.
    pub const LAST_BATCH_HEAD: usize = 12;
    /// In the head: the used index, when that batch had been dealt with.
    pub const USED_INDEX: usize = 14;
    /// Bytes of an entry.
    pub const ENTRY: usize = 16;
    /// In an entry: whether the request is in flight, a u8.
    pub const INFLIGHT: usize = 0;
    /// In an entry: the one before in its batch, a u16.
    pub const NEXT: usize = 6;
    /// In an entry: the order in which it was taken, a u64.
    pub const COUNTER: usize = 8;
}

/// Fields of an area of a packed ring, in bytes.
pub mod packed {
    /// In the head: the first entry that is free, and that before the batch under way.
    pub const FREE_HEAD: usize = 12;
    /// As above, of the batch before.
    pub const OLD_FREE_HEAD: usize = 14;
    /// In the head: the four fields that follow and two bytes of padding, an aligned u64.
    pub const POSITIONS: usize = 16;
    /// In the head: where the next descriptor is used.
    pub const USED_INDEX: usize = 16;
    /// As above, of the batch before.
    pub const OLD_USED_INDEX: usize = 18;
    /// In the head: the device's wrap counter, a u8.
    pub const USED_WRAP: usize = 20;
    /// As above, of the batch before.
    pub const OLD_USED_WRAP: usize = 21;
    /// Bytes of an entry.
    pub const ENTRY: usize = 32;
    /// In an entry: whether the request is in flight, a u8.
    pub const INFLIGHT: usize = 0;
    /// In an entry: the one that follows, of its chain or of those that are free, a u16.
    pub const NEXT: usize = 2;
    /// In a chain's first entry: its last, a u16.
    pub const LAST: usize = 4;
    /// In a chain's first entry: how many, a u16.
    pub const COUNT: usize = 6;
    /// In a chain's first entry: the order in which it was taken, a u64.
    pub const COUNTER: usize = 8;
    /// In an entry: the descriptor's id, flags, length and address, as the guest gave them: u16, u16, u32, u64.
    pub const DESCRIPTOR: usize = 16;
}

/// Bytes of a queue's area, for a ring of `size` descriptors.
pub fn queue_bytes(size: u16, is_packed: bool) -> usize {
    let (head, entry) = if is_packed { (PACKED_HEAD, packed::ENTRY) } else { (SPLIT_HEAD, split::ENTRY) };
    (head + entry * usize::from(size)).next_multiple_of(ALIGNMENT)
}

/// Where the entry of a descriptor begins in its queue's area, bytes.
pub fn entry(number: u16, is_packed: bool) -> usize {
    let (head, entry) = if is_packed { (PACKED_HEAD, packed::ENTRY) } else { (SPLIT_HEAD, split::ENTRY) };
    head + entry * usize::from(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_hold_their_entries_and_do_not_share_cache_lines() {
        for size in [1, 2, 3, 128, 256, 1024] {
            for is_packed in [false, true] {
                let bytes = queue_bytes(size, is_packed);
                assert!(entry(size, is_packed) <= bytes && bytes < entry(size, is_packed) + ALIGNMENT);
                assert_eq!(bytes % ALIGNMENT, 0);
            }
        }
        assert_eq!(entry(1, false) - entry(0, false), 16);
    }
}
