//! dm-writecache: a superblock, an entry for each block of the fast device, and behind them those blocks.
//!
//! | off | type | field |
//! | --- | --- | --- |
//! | 0 | u32 | magic |
//! | 4 | u32 | version: 1 |
//! | 8 | u32 | block, bytes |
//! | 12 | u32 | zero |
//! | 16 | u64 | number of blocks |
//! | 24 | u64 | sequence: what has a lower one is committed |
//! | 64 + 16·n | u64 | of block n: the origin's sector |
//! | 72 + 16·n | u64 | its sequence; all ones: the block is free |
//!
//! The blocks begin at the first multiple of their size behind the entries. Of several for one place of the origin that of the highest sequence is
//! true.
//!
//! Source, for the facts: the kernel's `drivers/md/dm-writecache.c`.

use super::Kept;
use crate::bytes::{u32_le, u64_le};
use crate::source::Source;
use crate::{ErrorKind, FormatError, SECTOR_BYTES};

const PLACE: &str = "writecache superblock";
const ENTRY: &str = "writecache entry";

const MAGIC: u32 = 0x2348_9321;
const VERSION: u32 = 1;
/// Bytes of the superblock.
const HEADER_BYTES: usize = 64;
const ENTRIES_AT: u64 = 64;
const ENTRY_BYTES: u64 = 16;
const FREE: u64 = u64::MAX;

/// Sizes of a block, bytes.
const BLOCK_BYTES: std::ops::RangeInclusive<u64> = 512..=65_536;

/// Blocks that are read, at most: 256 GiB of 4 KiB. What the kernel keeps of each in memory is more than what is kept here.
pub const BLOCKS_MAX: u64 = 1 << 26;

/// Bytes of entries that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// A committed entry: the origin's sector, its sequence, its block.
struct Entry {
    sector: u64,
    sequence: u64,
    block: u32,
}

/// Reads what a writecache holds; none: it was never used, and the origin has everything.
///
/// # Errors
///
/// What cannot be read, or is not what dm-writecache writes.
pub fn read(source: &dyn Source) -> Result<Option<Kept>, FormatError> {
    let mut header = [0; HEADER_BYTES];
    let unreadable = |error| FormatError::unreadable(PLACE, 0, &error);
    source.read_at(0, &mut header).map_err(unreadable)?;
    let wrong = |at, field, found: String, expected: String| {
        Err(FormatError::invalid(PLACE, at, field, found, expected))
    };
    let (magic, version) = (u32_le(&header, 0), u32_le(&header, 4));
    if magic == 0 && version == 0 {
        return Ok(None);
    }
    if magic != MAGIC {
        return wrong(0, "magic", format!("{magic:#x}"), format!("{MAGIC:#x}"));
    }
    if version != VERSION {
        let mut error = FormatError::invalid(PLACE, 4, "version", version, VERSION);
        error.kind = ErrorKind::Unsupported;
        return Err(error);
    }
    let block_bytes = u64::from(u32_le(&header, 8));
    if !block_bytes.is_power_of_two() || !BLOCK_BYTES.contains(&block_bytes) {
        return wrong(8, "block size", block_bytes.to_string(), "a power of two from 512 to 65536".into());
    }
    let blocks = u64_le(&header, 16);
    if blocks > BLOCKS_MAX {
        return Err(FormatError::limit(PLACE, 16, "blocks", blocks, format!("at most {BLOCKS_MAX}")));
    }
    let data = (ENTRIES_AT + ENTRY_BYTES * blocks).next_multiple_of(block_bytes);
    if data + blocks * block_bytes > source.size() {
        let expected = format!("as many as {} bytes have room for", source.size());
        return wrong(16, "blocks", blocks.to_string(), expected);
    }
    let block_sectors = block_bytes / SECTOR_BYTES;
    let entries = committed(source, blocks, u64_le(&header, 24))?;
    let blocks = newest(entries, block_sectors)?;
    Ok(Some(Kept { block_sectors, start: data / SECTOR_BYTES, blocks }))
}

/// The entries that are committed.
fn committed(source: &dyn Source, blocks: u64, sequence: u64) -> Result<Vec<Entry>, FormatError> {
    let (mut found, mut first) = (Vec::<Entry>::new(), 0);
    let mut bytes = Vec::new();
    while first < blocks {
        let count = (blocks - first).min(READ_BYTES / ENTRY_BYTES);
        let offset = ENTRIES_AT + ENTRY_BYTES * first;
        bytes.resize(usize::try_from(count * ENTRY_BYTES).expect("at most READ_BYTES"), 0);
        let unreadable = |error| FormatError::unreadable(ENTRY, offset, &error);
        source.read_at(offset, &mut bytes).map_err(unreadable)?;
        for (block, entry) in (first..).zip(bytes.chunks_exact(16)) {
            let own = Entry {
                sector: u64_le(entry, 0),
                sequence: u64_le(entry, 8),
                block: u32::try_from(block).expect("at most BLOCKS_MAX"),
            };
            if own.sequence == FREE || own.sequence >= sequence {
                continue;
            }
            // Before they fill memory: a device of zeros has as many of these as it has room for.
            if found.last().is_some_and(|last| (last.sector, last.sequence) == (own.sector, own.sequence)) {
                return Err(twice(&own));
            }
            found.push(own);
        }
        first += count;
    }
    Ok(found)
}

/// Of several entries for one place, the newest.
fn newest(mut entries: Vec<Entry>, block_sectors: u64) -> Result<Vec<(u64, u32)>, FormatError> {
    entries.sort_unstable_by_key(|entry| (entry.sector, std::cmp::Reverse(entry.sequence)));
    if let Some(pair) = entries
        .windows(2)
        .find(|pair| (pair[0].sector, pair[0].sequence) == (pair[1].sector, pair[1].sequence))
    {
        return Err(twice(&pair[1]));
    }
    entries.dedup_by_key(|entry| entry.sector);
    let block = |entry: &Entry| {
        if entry.sector.is_multiple_of(block_sectors) {
            return Ok((entry.sector / block_sectors, entry.block));
        }
        let expected = format!("a multiple of {block_sectors}");
        Err(FormatError::invalid(ENTRY, place(entry), "sector", entry.sector, expected))
    };
    entries.iter().map(block).collect()
}

fn twice(entry: &Entry) -> FormatError {
    let found = format!("{}, as another entry of sequence {} has it", entry.sector, entry.sequence);
    FormatError::invalid(ENTRY, place(entry), "sector", found, "each once in a sequence")
}

fn place(entry: &Entry) -> u64 {
    ENTRIES_AT + ENTRY_BYTES * u64::from(entry.block)
}
