//! The metadata of a dm-thin pool: superblock, B-trees, space maps.
//!
//! The metadata device is an array of blocks of 4096 bytes, all numbers little-endian. Each block begins with a checksum (of bytes
//! 4 to 4096, with a salt for its kind) and holds its own number.
//!
//! | block | what |
//! | --- | --- |
//! | 0 | [`Superblock`]: the roots of everything below |
//! | any | B-tree node ([`Node`]): mapping tree, device details, index and overflow of the data space map |
//! | any | bitmap of a space map ([`Bitmap`]), index of the metadata space map ([`MetadataIndex`]) |
//!
//! The mapping tree has two levels: device → root of its own tree; virtual block → data block and time ([`BlockTime`]). A snapshot
//! is one more reference to such a root. Counts of 0 to 2 are in bitmaps, larger ones in a tree beside them.
//!
//! Invariants: (1) nothing of a block is believed before its checksum, number and kind were checked; (2) the keys of a node
//! that was decoded rise strictly; (3) a walk of a tree ([`tree`]) visits each key range once and goes [`DEPTH_MAX`] deep at most, so
//! that trees with loops end in an error; (4) errors name the metadata block, beside its offset in bytes.
//!
//! Sources, for the facts: the kernel's `drivers/md/dm-thin-metadata.c` and `drivers/md/persistent-data/`; thin-provisioning-tools.

pub mod build;
mod dump;
pub mod edit;
mod node;
mod space_map;
mod superblock;
#[cfg(test)]
mod tests;
pub mod tree;
mod value;

pub use dump::{DumpError, dump};
pub use node::{Entries, Node, max_entries};
pub use space_map::{BITMAP_ENTRIES, Bitmap, INDEX_ENTRIES, MetadataIndex, SpaceMapRoot};
pub use superblock::Superblock;
pub use value::{BlockTime, DeviceDetails, IndexEntry, Value};

use crate::bytes::{put, u32_le, u64_le};
use crate::source::Source;
use crate::{FormatError, SECTOR_BYTES};

/// Bytes of a metadata block.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes of a metadata block, as an offset.
const BLOCK_LENGTH: u64 = 4096;

/// Sectors of a metadata block.
pub const BLOCK_SECTORS: u64 = BLOCK_LENGTH / SECTOR_BYTES;

/// A metadata block.
pub type Block = [u8; BLOCK_BYTES];

/// Most metadata blocks that are used: what the index of the metadata space map has room for. The rest of a larger device is idle.
pub const METADATA_BLOCKS_MAX: u64 = 255 * 16_320;

/// How many nodes may lie on the way from a root to a leaf, both counted. A tree of 2^48 mappings in nodes that are a third
/// full has 8.
pub const DEPTH_MAX: usize = 16;

/// One past the highest number of a device.
pub const DEVICES_MAX: u64 = 1 << 24;

/// One past the highest number of a data block that a mapping has room for.
pub const DATA_BLOCKS_MAX: u64 = 1 << 40;

/// Smallest block of data, sectors, of which each size is a multiple.
pub const DATA_BLOCK_SECTORS_MIN: u32 = 128;

/// Largest block of data, sectors.
pub const DATA_BLOCK_SECTORS_MAX: u32 = 1 << 21;

/// What a block is, which its checksum's salt says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// The superblock.
    Superblock,
    /// A node of a B-tree.
    Node,
    /// A bitmap of a space map.
    Bitmap,
    /// The index of the metadata space map.
    Index,
    /// The superblock of dm-cache, whose metadata is of such blocks, too.
    CacheSuperblock,
    /// A part of an array: of dm-cache.
    Array,
}

impl BlockKind {
    fn salt(self) -> u32 {
        match self {
            Self::Superblock => 160_774,
            Self::Node => 121_107,
            Self::Bitmap => 240_779,
            Self::Index => 160_478,
            Self::CacheSuperblock => 9_031_977,
            Self::Array => 595_846_735,
        }
    }

    fn place(self) -> &'static str {
        match self {
            Self::Superblock => "thin superblock",
            Self::Node => "metadata node",
            Self::Bitmap => "thin space-map bitmap",
            Self::Index => "thin space-map index",
            Self::CacheSuperblock => "cache superblock",
            Self::Array => "cache array block",
        }
    }

    /// Where a block of this kind has its own number.
    fn number_at(self) -> usize {
        match self {
            Self::Array => 16,
            _ => 8,
        }
    }

    /// What mends metadata with blocks of this kind.
    fn repair(self) -> &'static str {
        match self {
            Self::Node => "`thin_repair`, or `cache_repair` of a cache,",
            Self::CacheSuperblock | Self::Array => "`cache_repair`",
            _ => "`thin_repair`",
        }
    }

    /// The checksum of a block of this kind.
    pub fn checksum(self, block: &Block) -> u32 {
        !crc32c::crc32c(&block[4..]) ^ self.salt()
    }

    /// Gives a block its number and its checksum.
    pub fn seal(self, nr: u64, block: &mut Block) {
        put(block, self.number_at(), &nr.to_le_bytes());
        let sum = self.checksum(block);
        put(block, 0, &sum.to_le_bytes());
    }

    /// Checks that a block which was read as number `nr` is that one, whole, and of this kind.
    ///
    /// # Errors
    ///
    /// It is not.
    pub fn verify(self, nr: u64, block: &Block) -> Result<(), FormatError> {
        let (found, expected) = (u32_le(block, 0), self.checksum(block));
        if found != expected {
            let error = self.wrong(nr, 0, "checksum", format!("{found:#010x}"), format!("{expected:#010x}"));
            let repair = self.repair();
            return Err(error.with_remedy(format_args!(
                "the metadata is damaged: {repair} makes what is whole of it anew"
            )));
        }
        let own = u64_le(block, self.number_at());
        if own != nr {
            return Err(self.wrong(nr, self.number_at(), "block number", own, nr));
        }
        Ok(())
    }

    /// A field of a block that is wrong.
    pub(crate) fn wrong(
        self,
        nr: u64,
        at: usize,
        field: &'static str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> FormatError {
        let offset = nr.saturating_mul(BLOCK_LENGTH).saturating_add(crate::bytes::length(at));
        FormatError::invalid(self.place(), offset, field, format!("{found} (metadata block {nr})"), expected)
    }
}

/// How many metadata blocks of a device are used.
pub fn metadata_blocks(device_bytes: u64) -> u64 {
    (device_bytes / BLOCK_LENGTH).min(METADATA_BLOCKS_MAX)
}

/// Reads a block without looking what it holds.
///
/// # Errors
///
/// The device does not give it, or ends before it.
pub fn read_block(source: &dyn Source, nr: u64) -> Result<Box<Block>, FormatError> {
    let mut block = Box::new([0; BLOCK_BYTES]);
    let offset = nr.saturating_mul(BLOCK_LENGTH);
    let unreadable = |error| FormatError::unreadable("metadata block", offset, &error);
    source.read_at(offset, &mut block[..]).map_err(unreadable)?;
    Ok(block)
}
