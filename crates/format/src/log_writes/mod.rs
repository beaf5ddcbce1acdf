//! dm-log-writes: a log of everything that was written to a device, in the order in which it became durable.
//!
//! On disk, little-endian, in units of the logged device's logical block (`sectorsize`, 512 or 4096 bytes; *all* numbers
//! of sectors in an entry count these units, not 512 bytes):
//!
//! | block | |
//! | --- | --- |
//! | 0 | magic u64 0x6a736677736872, version u64 1, number of entries u64, sectorsize u32 |
//! | then, for each entry | sector u64, nr_sectors u64, flags u64, data_len u64, and behind them the text of a mark; one block |
//! | | the data, nr_sectors blocks; none for a discard, a mark, or a flush without data |
//!
//! Flags: 1 flush, 2 FUA, 4 discard, 8 mark, 16 metadata. The number of entries in the superblock is what counts: the
//! kernel updates it at marks and FUA writes only, and what lies behind was not promised to anyone.
//!
//! Invariants: (1) a reader never looks beyond the source, and reads the data of an entry in pieces of at most
//! [`PIECE_BYTES_MAX`]; (2) the number of entries is bounded by the size of the log, as each takes a block; (3) a log
//! made with [`Writer`] reads back entry by entry, and the `replay-log` of xfstests takes it.
//!
//! Sources: the kernel's `drivers/md/dm-log-writes.c` (layout, units), `Documentation/admin-guide/device-mapper/log-writes.rst`.

mod replay;

use std::fmt;
use std::ops::BitOr;

pub use replay::{PIECE_BYTES_MAX, ReplayError, Replayed, Sink, Until, replay};

use crate::bytes::{index, length, put, u32_le, u64_le};
use crate::source::Source;
use crate::{FormatError, SECTOR_BYTES};

const MAGIC: u64 = 0x6a_7366_7773_6872;
const VERSION: u64 = 1;
const ENTRY_BYTES: usize = 32;
const SUPERBLOCK: &str = "dm-log-writes superblock";
const ENTRY: &str = "dm-log-writes entry";

/// Largest sectorsize that is believed, bytes.
pub const SECTORSIZE_MAX: u32 = 65_536;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u64);

impl Flags {
    /// Everything before it was made durable.
    pub const FLUSH: Flags = Flags(1);
    /// It was durable itself when it completed.
    pub const FUA: Flags = Flags(1 << 1);
    /// A discard; no data follows.
    pub const DISCARD: Flags = Flags(1 << 2);
    /// A mark, with its text in the entry's own block.
    pub const MARK: Flags = Flags(1 << 3);
    /// A file system's metadata.
    pub const METADATA: Flags = Flags(1 << 4);

    /// Whether all of `other` is in it.
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl fmt::Display for Flags {
    /// As `FLUSH|FUA`, or `NONE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["FLUSH", "FUA", "DISCARD", "MARK", "METADATA"];
        let mut known: Vec<String> =
            (0..).zip(names).filter(|(bit, _)| self.0 >> bit & 1 != 0).map(|(_, name)| name.into()).collect();
        if self.0 >> names.len() != 0 {
            known.push(format!("{:#x}", self.0 >> names.len() << names.len()));
        }
        f.write_str(if known.is_empty() { "NONE".into() } else { known.join("|") }.as_str())
    }
}

/// The first block of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Entries that count.
    pub nr_entries: u64,
    /// The unit of everything, bytes: the logical block size of the logged device.
    pub sectorsize: u32,
}

impl Superblock {
    /// Its block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; index(self.sectorsize)];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 8, &VERSION.to_le_bytes());
        put(&mut out, 16, &self.nr_entries.to_le_bytes());
        put(&mut out, 24, &self.sectorsize.to_le_bytes());
        out
    }

    /// What its first bytes say.
    ///
    /// # Errors
    ///
    /// They are not those of a log.
    pub fn decode(bytes: &[u8; 28]) -> Result<Self, FormatError> {
        let wrong = |field, found: String, expected: String| {
            Err(FormatError::invalid(SUPERBLOCK, 0, field, found, expected))
        };
        let (magic, version) = (u64_le(bytes, 0), u64_le(bytes, 8));
        if magic != MAGIC {
            return wrong("magic", format!("{magic:#x}"), format!("{MAGIC:#x}"));
        }
        if version != VERSION {
            return wrong("version", version.to_string(), VERSION.to_string());
        }
        let sectorsize = u32_le(bytes, 24);
        if !is_sectorsize(sectorsize) {
            let expected = format!("a power of two from 512 to {SECTORSIZE_MAX}");
            return wrong("sectorsize", sectorsize.to_string(), expected);
        }
        Ok(Self { nr_entries: u64_le(bytes, 16), sectorsize })
    }
}

fn is_sectorsize(bytes: u32) -> bool {
    bytes.is_power_of_two() && (512..=SECTORSIZE_MAX).contains(&bytes)
}

/// One entry of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// First sector on the logged device, in units of the log's sectorsize.
    pub sector: u64,
    /// Length, in units of the log's sectorsize. 0 for marks and flushes without data.
    pub nr_sectors: u64,
    /// What it is.
    pub flags: Flags,
    /// Length of a mark's text, bytes.
    pub data_len: u64,
}

impl Entry {
    fn encode(&self, mark: &[u8], sectorsize: u32) -> Vec<u8> {
        let mut out = vec![0; index(sectorsize)];
        put(&mut out, 0, &self.sector.to_le_bytes());
        put(&mut out, 8, &self.nr_sectors.to_le_bytes());
        put(&mut out, 16, &self.flags.0.to_le_bytes());
        put(&mut out, 24, &self.data_len.to_le_bytes());
        put(&mut out, ENTRY_BYTES, mark);
        out
    }

    /// Blocks of data that follow the entry's own.
    fn data_blocks(&self) -> u64 {
        if self.flags.has(Flags::DISCARD) { 0 } else { self.nr_sectors }
    }
}

/// An entry that was read, and where its data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Counts from 0.
    pub index: u64,
    /// The entry.
    pub entry: Entry,
    /// Where the entry's block is in the log, bytes.
    pub offset: u64,
    /// Where its data is in the log, bytes.
    pub data_offset: u64,
    /// How much data there is, bytes.
    pub data_bytes: u64,
    /// Where it belongs on the logged device, bytes.
    pub device_offset: u64,
    /// Length on the logged device, bytes: that of the data, or of the discard.
    pub device_bytes: u64,
    /// The text of a mark, as it is: `escape` it for printing.
    pub mark: Option<String>,
}

/// A log that can be read. Its superblock is good; each entry is checked when its turn comes.
#[derive(Clone, Copy)]
pub struct Log<'a> {
    source: &'a dyn Source,
    superblock: Superblock,
}

impl<'a> Log<'a> {
    /// Reads the superblock.
    ///
    /// # Errors
    ///
    /// No log, an unknown version, a sectorsize that no device has, or more entries than the log has blocks.
    pub fn open(source: &'a dyn Source) -> Result<Self, FormatError> {
        let mut bytes = [0; 28];
        source.read_at(0, &mut bytes).map_err(|error| FormatError::unreadable(SUPERBLOCK, 0, &error))?;
        let superblock = Superblock::decode(&bytes)?;
        let blocks = (source.size() / u64::from(superblock.sectorsize)).saturating_sub(1);
        if superblock.nr_entries > blocks {
            let expected = format!("at most {blocks}, as the log has so many blocks");
            let found = superblock.nr_entries;
            return Err(FormatError::invalid(SUPERBLOCK, 0, "number of entries", found, expected)
                .with_remedy("the log was cut"));
        }
        Ok(Self { source, superblock })
    }

    /// The superblock.
    pub fn superblock(&self) -> Superblock {
        self.superblock
    }

    /// The entries in order. Ends after the first error.
    pub fn entries(&self) -> Entries<'a> {
        Entries { log: *self, index: 0, offset: u64::from(self.superblock.sectorsize), failed: false }
    }

    fn entry(&self, index: u64, offset: u64) -> Result<Located, FormatError> {
        let unreadable = |error| FormatError::unreadable(ENTRY, offset, &error);
        let mut bytes = [0; ENTRY_BYTES];
        self.source.read_at(offset, &mut bytes).map_err(unreadable)?;
        let entry = Entry {
            sector: u64_le(&bytes, 0),
            nr_sectors: u64_le(&bytes, 8),
            flags: Flags(u64_le(&bytes, 16)),
            data_len: u64_le(&bytes, 24),
        };
        let unit = u64::from(self.superblock.sectorsize);
        let data_offset = offset + unit;
        let room = self.source.size().saturating_sub(data_offset) / unit;
        if entry.data_blocks() > room {
            let expected = format!("at most {room}, as the log ends there");
            return Err(FormatError::invalid(ENTRY, offset, "nr_sectors", entry.nr_sectors, expected)
                .with_remedy(format!("the log was cut; the {index} entries before it are good")));
        }
        let end = entry.sector.checked_add(entry.nr_sectors).filter(|end| *end <= u64::MAX / unit);
        if end.is_none() {
            let expected = format!("a range whose end is at most {}", u64::MAX / unit);
            let found = format!("{} with {} sectors", entry.sector, entry.nr_sectors);
            return Err(FormatError::invalid(ENTRY, offset, "sector", found, expected));
        }
        Ok(Located {
            index,
            entry,
            offset,
            data_offset,
            data_bytes: entry.data_blocks() * unit,
            device_offset: entry.sector * unit,
            device_bytes: entry.nr_sectors * unit,
            mark: self.mark(&entry, offset)?,
        })
    }

    fn mark(&self, entry: &Entry, offset: u64) -> Result<Option<String>, FormatError> {
        if !entry.flags.has(Flags::MARK) {
            return Ok(None);
        }
        let most = mark_bytes_max(self.superblock.sectorsize);
        let Some(bytes) = usize::try_from(entry.data_len).ok().filter(|bytes| *bytes <= most) else {
            let expected = format!("at most {most}, what fits the entry's block");
            return Err(FormatError::invalid(ENTRY, offset, "data_len of a mark", entry.data_len, expected));
        };
        let mut text = vec![0; bytes];
        let at = offset + length(ENTRY_BYTES);
        self.source.read_at(at, &mut text).map_err(|error| FormatError::unreadable(ENTRY, at, &error))?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }
}

/// Longest text of a mark, bytes, where a block has `sectorsize` bytes.
pub fn mark_bytes_max(sectorsize: u32) -> usize {
    index(sectorsize) - ENTRY_BYTES
}

/// See [`Log::entries`].
#[derive(Clone)]
pub struct Entries<'a> {
    log: Log<'a>,
    index: u64,
    offset: u64,
    failed: bool,
}

impl Iterator for Entries<'_> {
    type Item = Result<Located, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.index >= self.log.superblock.nr_entries {
            return None;
        }
        let entry = self.log.entry(self.index, self.offset);
        match &entry {
            Ok(located) => {
                self.index += 1;
                self.offset = located.data_offset + located.data_bytes;
            }
            Err(_) => self.failed = true,
        }
        Some(entry)
    }
}

/// Where the bytes of a new entry go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Offset of `block` in the log, bytes.
    pub offset: u64,
    /// The entry's block.
    pub block: Vec<u8>,
    /// Offset of the data in the log, bytes.
    pub data_offset: u64,
    /// How much data belongs there, bytes; 0 where none does.
    pub data_bytes: u64,
}

/// Lays out a log as it grows. It writes nothing: the caller puts each [`Placed`] and its data into the file, and the
/// [`Writer::superblock`] at offset 0, *after* the entries that it counts are there.
///
/// A write of zeros that carries no data is logged as a write: its data may be left a hole in a fresh file.
#[derive(Debug, Clone)]
pub struct Writer {
    superblock: Superblock,
    next: u64,
}

impl Writer {
    /// A log of a device with blocks of `sectorsize` bytes.
    ///
    /// # Errors
    ///
    /// A sectorsize that is no power of two from 512 to [`SECTORSIZE_MAX`].
    pub fn new(sectorsize: u32) -> Result<Self, FormatError> {
        if !is_sectorsize(sectorsize) {
            let expected = format!("a power of two from 512 to {SECTORSIZE_MAX}");
            return Err(FormatError::invalid(SUPERBLOCK, 0, "sectorsize", sectorsize, expected));
        }
        Ok(Self { superblock: Superblock { nr_entries: 0, sectorsize }, next: u64::from(sectorsize) })
    }

    /// Places an entry for `sectors` sectors of **512 bytes** from `sector` on; 0 sectors for a flush without data.
    ///
    /// # Errors
    ///
    /// A range that is not in whole blocks of the log, or a log that would exceed 2^64 bytes.
    pub fn entry(&mut self, flags: Flags, sector: u64, sectors: u64) -> Result<Placed, FormatError> {
        let unit = u64::from(self.superblock.sectorsize) / SECTOR_BYTES;
        for (field, value) in [("sector", sector), ("nr_sectors", sectors)] {
            if !value.is_multiple_of(unit) {
                return Err(self.wrong(field, value, format!("a multiple of {unit} (512-byte sectors)")));
            }
        }
        self.place(Entry { sector: sector / unit, nr_sectors: sectors / unit, flags, data_len: 0 }, &[])
    }

    /// Places a mark: a point that a replay can be told to stop at.
    ///
    /// # Errors
    ///
    /// A text longer than [`mark_bytes_max`], or a log that would exceed 2^64 bytes.
    pub fn mark(&mut self, text: &str) -> Result<Placed, FormatError> {
        let most = mark_bytes_max(self.superblock.sectorsize);
        if text.len() > most {
            return Err(self.wrong("data_len of a mark", length(text.len()), format!("at most {most}")));
        }
        let entry = Entry { sector: 0, nr_sectors: 0, flags: Flags::MARK, data_len: length(text.len()) };
        self.place(entry, text.as_bytes())
    }

    /// The superblock for the entries so far.
    pub fn superblock(&self) -> Superblock {
        self.superblock
    }

    /// Length of the log so far, bytes.
    pub fn end(&self) -> u64 {
        self.next
    }

    fn place(&mut self, entry: Entry, mark: &[u8]) -> Result<Placed, FormatError> {
        let unit = u64::from(self.superblock.sectorsize);
        let (offset, data_offset) = (self.next, self.next.checked_add(unit));
        let data_bytes = entry.data_blocks().checked_mul(unit);
        let end = data_offset.zip(data_bytes).and_then(|(at, bytes)| at.checked_add(bytes));
        let (Some(data_offset), Some(data_bytes), Some(end)) = (data_offset, data_bytes, end) else {
            return Err(self.wrong("nr_sectors", entry.nr_sectors, "a log of less than 2^64 bytes".into()));
        };
        self.next = end;
        self.superblock.nr_entries += 1;
        let block = entry.encode(mark, self.superblock.sectorsize);
        Ok(Placed { offset, block, data_offset, data_bytes })
    }

    fn wrong(&self, field: &'static str, found: u64, expected: String) -> FormatError {
        FormatError::invalid(ENTRY, self.next, field, found, expected)
    }
}

#[cfg(test)]
mod tests;
