//! What the leaves of the trees hold.

use crate::bytes::{put, u32_le, u64_le};

/// A value of fixed size in the leaves of a tree.
pub trait Value: Copy {
    /// Its bytes on disk.
    const BYTES: usize;
    /// Out of exactly [`Value::BYTES`] bytes.
    fn decode(bytes: &[u8]) -> Self;
    /// Into exactly [`Value::BYTES`] bytes.
    fn encode(&self, out: &mut [u8]);
}

/// A block: in internal nodes a child, in the top level of the mapping tree the root of a device's tree.
impl Value for u64 {
    const BYTES: usize = 8;
    fn decode(bytes: &[u8]) -> u64 {
        u64_le(bytes, 0)
    }
    fn encode(&self, out: &mut [u8]) {
        put(out, 0, &self.to_le_bytes());
    }
}

/// A reference count that a bitmap has no room for.
impl Value for u32 {
    const BYTES: usize = 4;
    fn decode(bytes: &[u8]) -> u32 {
        u32_le(bytes, 0)
    }
    fn encode(&self, out: &mut [u8]) {
        put(out, 0, &self.to_le_bytes());
    }
}

/// A mapping: where a virtual block lies, and since when. On disk the upper 40 bits and the lower 24 of a u64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockTime {
    /// Block of the data device; below [`super::DATA_BLOCKS_MAX`].
    pub block: u64,
    /// The pool's time when the mapping was made; the block may be shared if that is before the device's last snapshot.
    pub time: u32,
}

const TIME_BITS: u32 = 24;

impl Value for BlockTime {
    const BYTES: usize = 8;
    fn decode(bytes: &[u8]) -> BlockTime {
        let word = u64_le(bytes, 0);
        let time = u32::try_from(word & ((1 << TIME_BITS) - 1)).expect("24 bits");
        BlockTime { block: word >> TIME_BITS, time }
    }
    fn encode(&self, out: &mut [u8]) {
        let word = self.block << TIME_BITS | u64::from(self.time) & ((1 << TIME_BITS) - 1);
        put(out, 0, &word.to_le_bytes());
    }
}

/// What the pool knows of a device beside its mappings. Its size is not among it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceDetails {
    /// How many blocks it maps.
    pub mapped_blocks: u64,
    /// The pool's transaction when it was made.
    pub transaction_id: u64,
    /// The pool's time when it was made.
    pub creation_time: u32,
    /// The pool's time when a snapshot of it was made last, or itself as one.
    pub snapshotted_time: u32,
}

impl DeviceDetails {
    /// Whether a mapping of this device may be shared with another one, so that its block must not be overwritten.
    pub fn may_share(&self, mapping: BlockTime) -> bool {
        mapping.time < self.snapshotted_time
    }
}

impl Value for DeviceDetails {
    const BYTES: usize = 24;
    fn decode(bytes: &[u8]) -> DeviceDetails {
        DeviceDetails {
            mapped_blocks: u64_le(bytes, 0),
            transaction_id: u64_le(bytes, 8),
            creation_time: u32_le(bytes, 16),
            snapshotted_time: u32_le(bytes, 20),
        }
    }
    fn encode(&self, out: &mut [u8]) {
        put(out, 0, &self.mapped_blocks.to_le_bytes());
        put(out, 8, &self.transaction_id.to_le_bytes());
        put(out, 16, &self.creation_time.to_le_bytes());
        put(out, 20, &self.snapshotted_time.to_le_bytes());
    }
}

/// What an index of a space map says of a bitmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexEntry {
    /// Where the bitmap is.
    pub block: u64,
    /// How many of its entries are 0. Linux counts those behind the end of the device too, the tools do not.
    pub free: u32,
    /// No entry below this one is 0: where a search begins.
    pub none_free_before: u32,
}

impl Value for IndexEntry {
    const BYTES: usize = 16;
    fn decode(bytes: &[u8]) -> IndexEntry {
        IndexEntry { block: u64_le(bytes, 0), free: u32_le(bytes, 8), none_free_before: u32_le(bytes, 12) }
    }
    fn encode(&self, out: &mut [u8]) {
        put(out, 0, &self.block.to_le_bytes());
        put(out, 8, &self.free.to_le_bytes());
        put(out, 12, &self.none_free_before.to_le_bytes());
    }
}
