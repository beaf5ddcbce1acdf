//! The superblock: one sector's worth of fields, so that its write, which is the commit of a transaction, is atomic.
//!
//! | off | type | field | | off | type | field |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 0 | u32 | checksum | | 64 | u8 × 128 | root of the data space map |
//! | 4 | u32 | flags: bit 0 needs check | | 192 | u8 × 128 | root of the metadata space map |
//! | 8 | u64 | block number: 0 | | 320 | u64 | root of the mapping tree |
//! | 16 | u8 × 16 | uuid: zero | | 328 | u64 | root of the device details |
//! | 32 | u64 | magic | | 336 | u32 | data block, sectors |
//! | 40 | u32 | version | | 340 | u32 | metadata block, sectors: 8 |
//! | 44 | u32 | time | | 344 | u64 | metadata blocks |
//! | 48 | u64 | transaction id | | 352 | u32 × 3 | features: compat, compat_ro, incompat |
//! | 56 | u64 | held root, 0 for none | | | | |
//!
//! Linux writes version 2, and neither it nor the tools ask for the version of what they open: what a reader must
//! know is in the features. A pool keeps the version that it has.

use crate::bytes::{array, put, u32_le, u64_le};
use crate::{ErrorKind, FormatError};

use super::space_map::{ROOT_BYTES, SpaceMapRoot};
use super::{
    BLOCK_BYTES, BLOCK_SECTORS, Block, BlockKind, DATA_BLOCK_SECTORS_MAX, DATA_BLOCK_SECTORS_MIN,
    DATA_BLOCKS_MAX, METADATA_BLOCKS_MAX,
};

const MAGIC: u64 = 27_022_010;
const NEEDS_CHECK: u32 = 1;
const KIND: BlockKind = BlockKind::Superblock;

/// What block 0 says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Linux met an error it could not mend: nothing may be changed before `thin_check` was run.
    pub needs_check: bool,
    /// The other flags, none of which is known.
    pub other_flags: u32,
    /// Identifier; Linux leaves it zero.
    pub uuid: [u8; 16],
    /// [`Superblock::VERSION`], or another one that nobody asks for.
    pub version: u32,
    /// Counts snapshots: of the whole pool.
    pub time: u32,
    /// What the owner of the pool (LVM) counts its changes with.
    pub transaction_id: u64,
    /// The block of the metadata snapshot, which is a superblock itself; 0 for none.
    pub held_root: u64,
    /// Space map of data blocks: its bitmap root is a tree.
    pub data_space_map: SpaceMapRoot,
    /// Space map of metadata blocks: its bitmap root is an index block.
    pub metadata_space_map: SpaceMapRoot,
    /// Root of the mapping tree.
    pub mapping_root: u64,
    /// Root of the tree of device details.
    pub details_root: u64,
    /// Sectors of a data block: a multiple of 128.
    pub data_block_sectors: u32,
    /// Blocks of the metadata device.
    pub metadata_blocks: u64,
    /// Features that everybody may ignore.
    pub compat: u32,
    /// Features that a reader may ignore: if any is set here, the pool must not be written.
    pub compat_ro: u32,
}

impl Superblock {
    /// What Linux writes as version of a pool that is new.
    pub const VERSION: u32 = 2;

    /// Takes block 0 apart; none: it is all zeros, and the pool was never used (Linux makes an empty one of it).
    ///
    /// # Errors
    ///
    /// It is no superblock of a thin pool, is damaged, or uses features that nobody knows.
    pub fn decode(block: &Block) -> Result<Option<Superblock>, FormatError> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        Self::decode_at(0, block).map(Some)
    }

    /// Takes a superblock apart that is in block `nr`: the pool's own in block 0, a metadata snapshot elsewhere.
    ///
    /// # Errors
    ///
    /// As for [`Superblock::decode`].
    pub fn decode_at(nr: u64, block: &Block) -> Result<Superblock, FormatError> {
        let wrong = |at, field, found: String, expected: String| KIND.wrong(nr, at, field, found, expected);
        let magic = u64_le(block, 32);
        if magic != MAGIC {
            return Err(wrong(32, "magic", magic.to_string(), MAGIC.to_string())
                .with_remedy("is this the metadata of a thin pool?"));
        }
        KIND.verify(nr, block)?;
        let incompat = u32_le(block, 360);
        if incompat != 0 {
            let mut error = wrong(360, "incompatible features", format!("{incompat:#x}"), "none".into());
            error.kind = ErrorKind::Unsupported;
            return Err(error);
        }
        let flags = u32_le(block, 4);
        let superblock = Superblock {
            needs_check: flags & NEEDS_CHECK != 0,
            other_flags: flags & !NEEDS_CHECK,
            uuid: array(block, 16),
            version: u32_le(block, 40),
            time: u32_le(block, 44),
            transaction_id: u64_le(block, 48),
            held_root: u64_le(block, 56),
            data_space_map: SpaceMapRoot::decode(&block[64..64 + ROOT_BYTES]),
            metadata_space_map: SpaceMapRoot::decode(&block[192..192 + ROOT_BYTES]),
            mapping_root: u64_le(block, 320),
            details_root: u64_le(block, 328),
            data_block_sectors: u32_le(block, 336),
            metadata_blocks: u64_le(block, 344),
            compat: u32_le(block, 352),
            compat_ro: u32_le(block, 356),
        };
        superblock.check(nr, u32_le(block, 340))?;
        Ok(superblock)
    }

    fn check(&self, nr: u64, metadata_block: u32) -> Result<(), FormatError> {
        let wrong = |at, field, found: u64, expected: String| Err(KIND.wrong(nr, at, field, found, expected));
        let sectors = self.data_block_sectors;
        if !(DATA_BLOCK_SECTORS_MIN..=DATA_BLOCK_SECTORS_MAX).contains(&sectors)
            || !sectors.is_multiple_of(DATA_BLOCK_SECTORS_MIN)
        {
            let expected =
                format!("a multiple of {DATA_BLOCK_SECTORS_MIN} sectors up to {DATA_BLOCK_SECTORS_MAX}");
            return wrong(336, "data block size", sectors.into(), expected);
        }
        if u64::from(metadata_block) != BLOCK_SECTORS {
            return wrong(
                340,
                "metadata block size",
                metadata_block.into(),
                format!("{BLOCK_SECTORS} sectors"),
            );
        }
        // Not of a metadata snapshot: there both are zeros.
        if self.metadata_space_map.blocks > METADATA_BLOCKS_MAX {
            let expected = format!("at most {METADATA_BLOCKS_MAX}");
            return wrong(192, "blocks of the metadata", self.metadata_space_map.blocks, expected);
        }
        if self.data_space_map.blocks > DATA_BLOCKS_MAX {
            let expected = format!("at most {DATA_BLOCKS_MAX}");
            return wrong(64, "blocks of data", self.data_space_map.blocks, expected);
        }
        Ok(())
    }

    /// Its bytes, as block `nr`.
    pub fn encode(&self, nr: u64) -> Box<Block> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        let out = &mut block[..];
        let flags = self.other_flags & !NEEDS_CHECK | u32::from(self.needs_check);
        put(out, 4, &flags.to_le_bytes());
        put(out, 16, &self.uuid);
        put(out, 32, &MAGIC.to_le_bytes());
        put(out, 40, &self.version.to_le_bytes());
        put(out, 44, &self.time.to_le_bytes());
        put(out, 48, &self.transaction_id.to_le_bytes());
        put(out, 56, &self.held_root.to_le_bytes());
        put(out, 64, &self.data_space_map.encode());
        put(out, 192, &self.metadata_space_map.encode());
        put(out, 320, &self.mapping_root.to_le_bytes());
        put(out, 328, &self.details_root.to_le_bytes());
        put(out, 336, &self.data_block_sectors.to_le_bytes());
        put(out, 340, &8u32.to_le_bytes());
        put(out, 344, &self.metadata_blocks.to_le_bytes());
        put(out, 352, &self.compat.to_le_bytes());
        put(out, 356, &self.compat_ro.to_le_bytes());
        KIND.seal(nr, &mut block);
        block
    }
}
