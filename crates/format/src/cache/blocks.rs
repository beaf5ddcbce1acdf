//! dm-cache: a superblock, an array that says of each block of the fast device which block of the origin it has, and of version 2 a bitmap of
//! those that were written to since the origin was.
//!
//! The device is one of metadata blocks, as that of a thin pool is ([`crate::thin`]).
//!
//! | off | type | field | | off | type | field |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 0 | u32 | checksum | | 208 | u64 | root of the discards |
//! | 4 | u32 | flags: bit 0 clean shutdown, 1 needs check | | 216 | u64 × 2 | block size and number of those |
//! | 8 | u64 | block number: 0 | | 232 | u32 | block, sectors |
//! | 16 | u8 × 16 | uuid | | 236 | u32 | metadata block, sectors: 8 |
//! | 32 | u64 | magic | | 240 | u32 | blocks of the fast device |
//! | 40 | u32 | version: 1 or 2 | | 244 | u32 × 3 | features: compat, compat_ro, incompat |
//! | 44 | u8 × 16 | policy | | 256 | u32 × 4 | hits and misses |
//! | 60 | u32 | size of its hints | | 272 | u32 × 3 | version of the policy |
//! | 64 | u8 × 128 | root of the space map | | 284 | u64 | root of the bitmap (version 2) |
//! | 192 | u64 | root of the mappings | | | | |
//! | 200 | u64 | root of the hints | | | | |
//!
//! A mapping is the origin's block times 2^16, and flags: bit 0 there is one, bit 1 it was written to (version 1). An array is a B-tree of
//! array blocks, each with a header (u32 checksum, max_entries, nr_entries, value_size, u64 block number) and its values behind it; a
//! bitmap is an array of words of 64 bits.
//!
//! Which blocks were written to is on disk only where the cache was shut down cleanly. Otherwise all of them may have been, and the kernel takes
//! them to be: whatever is mapped, is true.
//!
//! Sources, for the facts: the kernel's `drivers/md/dm-cache-metadata.c`, `drivers/md/persistent-data/dm-{array,bitset}.c`.

use std::collections::HashSet;

use super::Kept;
use crate::bytes::{index, length, u32_le, u64_le};
use crate::source::Source;
use crate::thin::tree::Reader;
use crate::thin::{BLOCK_BYTES, BLOCK_SECTORS, Block, BlockKind, read_block};
use crate::{ErrorKind, FormatError};

const MAGIC: u64 = 0o6_142_003;
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=2;
const CLEAN_SHUTDOWN: u32 = 1;
const NEEDS_CHECK: u32 = 2;

const KIND: BlockKind = BlockKind::CacheSuperblock;

/// Smallest block, sectors, of which each size is a multiple.
pub const BLOCK_SECTORS_MIN: u32 = 64;
/// Largest block, sectors.
pub const BLOCK_SECTORS_MAX: u32 = 1 << 21;

/// Where an array block's values begin.
const VALUES_AT: usize = 24;
/// Values of 8 bytes that an array block has room for.
const VALUES_MAX: usize = (BLOCK_BYTES - VALUES_AT) / 8;

/// Bits of a mapping that are flags.
const FLAG_BITS: u32 = 16;
const VALID: u64 = 1;
const DIRTY: u64 = 2;

/// What block 0 says, as far as a reader needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// 1, or 2: dirty blocks are in a bitmap.
    pub version: u32,
    /// It was shut down cleanly: which blocks were written to is on disk.
    pub is_clean: bool,
    /// Linux met an error it could not mend.
    pub needs_check: bool,
    /// Sectors of a block.
    pub block_sectors: u32,
    /// Blocks of the fast device.
    pub blocks: u32,
    mappings: u64,
    dirty: u64,
}

impl Superblock {
    /// Takes block 0 apart; none: it is all zeros, and the cache was never used.
    ///
    /// # Errors
    ///
    /// It is no superblock of a cache, is damaged, or uses features that nobody knows.
    pub fn decode(block: &Block) -> Result<Option<Superblock>, FormatError> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let magic = u64_le(block, 32);
        if magic != MAGIC {
            let error = KIND.wrong(0, 32, "magic", magic, MAGIC);
            return Err(error.with_remedy("is this the metadata of a cache?"));
        }
        KIND.verify(0, block)?;
        let version = u32_le(block, 40);
        if !VERSIONS.contains(&version) {
            return Err(unsupported(KIND.wrong(0, 40, "version", version, "1 or 2")));
        }
        let incompat = u32_le(block, 252);
        if incompat != 0 {
            let found = format!("{incompat:#x}");
            return Err(unsupported(KIND.wrong(0, 252, "incompatible features", found, "none")));
        }
        let block_sectors = u32_le(block, 232);
        let range = BLOCK_SECTORS_MIN..=BLOCK_SECTORS_MAX;
        if !range.contains(&block_sectors) || !block_sectors.is_multiple_of(BLOCK_SECTORS_MIN) {
            let expected = format!("a multiple of {BLOCK_SECTORS_MIN} sectors up to {BLOCK_SECTORS_MAX}");
            return Err(KIND.wrong(0, 232, "block size", block_sectors, expected));
        }
        let metadata_block = u32_le(block, 236);
        if u64::from(metadata_block) != BLOCK_SECTORS {
            let expected = format!("{BLOCK_SECTORS} sectors");
            return Err(KIND.wrong(0, 236, "metadata block size", metadata_block, expected));
        }
        let flags = u32_le(block, 4);
        Ok(Some(Superblock {
            version,
            is_clean: flags & CLEAN_SHUTDOWN != 0,
            needs_check: flags & NEEDS_CHECK != 0,
            block_sectors,
            blocks: u32_le(block, 240),
            mappings: u64_le(block, 192),
            dirty: u64_le(block, 284),
        }))
    }
}

fn unsupported(mut error: FormatError) -> FormatError {
    error.kind = ErrorKind::Unsupported;
    error
}

/// Reads all of a cache's metadata; none: it was never used, and the origin has everything.
///
/// # Errors
///
/// What cannot be read, is damaged, or is no metadata of a cache.
pub fn read(source: &dyn Source) -> Result<Option<(Superblock, Kept)>, FormatError> {
    let Some(superblock) = Superblock::decode(&*read_block(source, 0)?)? else { return Ok(None) };
    let reader = Reader::new(source);
    let mut blocks = Vec::new();
    each(reader, superblock.mappings, superblock.blocks, "mappings", |nth, mapping| {
        let is_dirty = !superblock.is_clean || superblock.version > 1 || mapping & DIRTY != 0;
        if mapping & VALID != 0 && is_dirty {
            blocks.push((mapping >> FLAG_BITS, nth));
        }
    })?;
    if superblock.is_clean && superblock.version > 1 && !blocks.is_empty() {
        // As they were read: in the order of the fast device's blocks.
        let mut dirty = vec![false; blocks.len()];
        let mut at = 0;
        let words = superblock.blocks.div_ceil(u64::BITS);
        each(reader, superblock.dirty, words, "words of the bitmap", |nth, word| {
            while let Some((_, block)) = blocks.get(at).filter(|(_, block)| block / u64::BITS == nth) {
                dirty[at] = word >> (block % u64::BITS) & 1 != 0;
                at += 1;
            }
        })?;
        let mut dirty = dirty.into_iter();
        blocks.retain(|_| dirty.next().unwrap_or(true));
    }
    blocks.sort_unstable();
    if let Some(twice) = blocks.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let found = format!("block {} twice", twice[0].0);
        return Err(KIND
            .wrong(0, 192, "mappings", found, "each block of the origin once")
            .with_remedy(REPAIR));
    }
    Ok(Some((superblock, Kept { block_sectors: superblock.block_sectors.into(), start: 0, blocks })))
}

const REPAIR: &str = "the metadata is damaged: `cache_repair` makes what is whole of it anew";

/// Hands on the first `count` values of an array, in order.
fn each(
    reader: Reader<'_>,
    root: u64,
    count: u32,
    what: &'static str,
    mut value: impl FnMut(u32, u64),
) -> Result<(), FormatError> {
    if count == 0 {
        return Ok(());
    }
    let wrong = |found: String, expected: String| {
        BlockKind::Node.wrong(root, 0, what, found, expected).with_remedy(REPAIR)
    };
    let array_blocks = index(count).div_ceil(VALUES_MAX);
    let places = reader.all::<u64>(root, length(array_blocks), "array blocks")?;
    // As each is read from its own place, what is kept in memory is no more than what is on the disk.
    let mut known = HashSet::with_capacity(places.len());
    let mut nth = 0;
    for (at, (key, nr)) in places.into_iter().enumerate() {
        if key != length(at) {
            return Err(wrong(format!("array block {key}"), format!("array block {at}")));
        }
        if !known.insert(nr) || nr >= reader.blocks() {
            return Err(wrong(format!("metadata block {nr}"), "a block of its own".into()));
        }
        let block = read_block(reader.source(), nr)?;
        let values = values(nr, &block)?;
        // The next one goes on where a full one ends.
        if values.len() < VALUES_MAX * 8 && at + 1 < array_blocks {
            return Err(wrong(format!("{} values in a block", values.len() / 8), VALUES_MAX.to_string()));
        }
        for bytes in values.chunks_exact(8).take(index(count - nth)) {
            value(nth, u64_le(bytes, 0));
            nth += 1;
        }
    }
    if nth < count { Err(wrong(nth.to_string(), count.to_string())) } else { Ok(()) }
}

/// The values of an array block.
fn values(nr: u64, block: &Block) -> Result<&[u8], FormatError> {
    const KIND: BlockKind = BlockKind::Array;
    KIND.verify(nr, block)?;
    let size = u32_le(block, 12);
    if size != 8 {
        return Err(KIND.wrong(nr, 12, "value_size", size, 8));
    }
    let count = index(u32_le(block, 8));
    if count > VALUES_MAX {
        return Err(KIND.wrong(nr, 8, "nr_entries", count, format!("at most {VALUES_MAX}")));
    }
    Ok(&block[VALUES_AT..VALUES_AT + 8 * count])
}
