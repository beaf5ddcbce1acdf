//! Writes a GPT: protective MBR, both headers, both copies of the entries.

use super::header::Header;
use super::{ENTRY_BYTES, NAME_UNITS};
use crate::bytes::{index, length, put};
use crate::partition::{Guid, mbr, sectors_per_block, valid_hint};
use crate::source::Piece;
use crate::{FormatError, SECTOR_BYTES};

/// Entries in the tables we write, as all tools do.
const ENTRIES: u32 = 128;

/// A partition to be written. Its number is its place in [`Layout::partitions`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GptPartition {
    /// First sector (512 bytes); a multiple of the logical block.
    pub start_sector: u64,
    /// Length in sectors (512 bytes); a multiple of the logical block.
    pub sectors: u64,
    /// What it is for.
    pub type_guid: Guid,
    /// Its own GUID.
    pub guid: Guid,
    /// At most 36 UTF-16 units.
    pub name: String,
    /// Attribute bits.
    pub attributes: u64,
}

/// A GPT to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Size of the disk, bytes.
    pub disk_bytes: u64,
    /// Unit of the addresses, bytes.
    pub logical_block_size: u32,
    /// The disk's GUID.
    pub disk_guid: Guid,
    /// Numbered from 1; `None` leaves a number unused.
    pub partitions: Vec<Option<GptPartition>>,
}

impl Layout {
    /// Blocks that an entry array takes.
    fn array_blocks(&self) -> u64 {
        (u64::from(ENTRIES) * u64::from(ENTRY_BYTES)).div_ceil(u64::from(self.logical_block_size))
    }

    fn last_block(&self) -> u64 {
        (self.disk_bytes / u64::from(self.logical_block_size)).saturating_sub(1)
    }

    /// First sector (512 bytes) that a partition may have.
    pub fn first_usable_sector(&self) -> u64 {
        (2 + self.array_blocks()) * sectors_per_block(self.logical_block_size)
    }

    /// First sector (512 bytes) that no partition may have any more.
    pub fn end_usable_sector(&self) -> u64 {
        self.last_block().saturating_sub(self.array_blocks()) * sectors_per_block(self.logical_block_size)
    }
}

/// The bytes of a GPT, and where they go: two pieces at the start of the disk and one at its end. What
/// [`crate::partition::read`] makes of them is the layout again, without a warning.
///
/// # Errors
///
/// A layout that does not fit the disk, or itself.
pub fn build(layout: &Layout) -> Result<Vec<Piece>, FormatError> {
    check(layout)?;
    let (size, last) = (u64::from(layout.logical_block_size), layout.last_block());
    let unit = sectors_per_block(layout.logical_block_size);
    let entries = entries(layout)?;
    let primary = Header {
        block: 1,
        alternate: last,
        first_usable: layout.first_usable_sector() / unit,
        last_usable: layout.end_usable_sector() / unit - 1,
        disk_guid: layout.disk_guid,
        entries_block: 2,
        entries: ENTRIES,
        entry_bytes: ENTRY_BYTES,
        entries_crc: crc32fast::hash(&entries),
    };
    let backup =
        Header { block: last, alternate: 1, entries_block: last - layout.array_blocks(), ..primary.clone() };
    let mut head = primary.encode(layout.logical_block_size);
    head.extend(&entries);
    let tail_offset = backup.entries_block * size;
    let mut tail = entries;
    tail.resize(index_of(layout.array_blocks() * size), 0);
    tail.extend(backup.encode(layout.logical_block_size));
    Ok(vec![
        mbr::protective(last + 1),
        Piece { offset: size, bytes: head },
        Piece { offset: tail_offset, bytes: tail },
    ])
}

fn index_of(bytes: u64) -> usize {
    usize::try_from(bytes).expect("an entry array's size")
}

fn check(layout: &Layout) -> Result<(), FormatError> {
    let unit = match valid_hint(layout.logical_block_size) {
        Some(size) => sectors_per_block(size),
        None => {
            let expected = "a power of two from 512 to 65536";
            return Err(wrong("logical block size", layout.logical_block_size, expected));
        }
    };
    let (first, end) = (layout.first_usable_sector(), layout.end_usable_sector());
    if end <= first {
        let least = (2 * layout.array_blocks() + 4) * u64::from(layout.logical_block_size);
        return Err(wrong("size of the disk", layout.disk_bytes, format!("at least {least} bytes")));
    }
    if length(layout.partitions.len()) > u64::from(ENTRIES) {
        return Err(wrong("number of partitions", layout.partitions.len(), format!("at most {ENTRIES}")));
    }
    let mut ranges: Vec<_> =
        layout.partitions.iter().flatten().map(|p| (p.start_sector, p.sectors)).collect();
    ranges.sort_unstable();
    let mut free = first;
    for (start, sectors) in ranges {
        if start < free || !start.is_multiple_of(unit) {
            let expected = format!("sector {free} or later, a multiple of {unit}");
            return Err(wrong("start of a partition", start, expected));
        }
        let stop = start.checked_add(sectors).filter(|stop| *stop <= end);
        free = match stop {
            Some(stop) if sectors > 0 && sectors.is_multiple_of(unit) => stop,
            _ => {
                let expected = format!("1 to {}, a multiple of {unit}", end.saturating_sub(start));
                return Err(wrong("length of a partition", sectors, expected));
            }
        };
    }
    Ok(())
}

fn entries(layout: &Layout) -> Result<Vec<u8>, FormatError> {
    let unit = sectors_per_block(layout.logical_block_size);
    let mut out = vec![0; index(ENTRIES * ENTRY_BYTES)];
    for (slot, partition) in out.chunks_exact_mut(index(ENTRY_BYTES)).zip(&layout.partitions) {
        let Some(partition) = partition else { continue };
        if partition.type_guid == Guid::ZERO {
            return Err(wrong("type of a partition", partition.type_guid, "a type that is not zero"));
        }
        let units: Vec<u16> = partition.name.encode_utf16().collect();
        if units.len() > NAME_UNITS {
            let found = format!("{} UTF-16 units long", units.len());
            return Err(wrong("name of a partition", found, format!("at most {NAME_UNITS}")));
        }
        put(slot, 0, &partition.type_guid.0);
        put(slot, 16, &partition.guid.0);
        put(slot, 32, &(partition.start_sector / unit).to_le_bytes());
        put(slot, 40, &((partition.start_sector + partition.sectors) / unit - 1).to_le_bytes());
        put(slot, 48, &partition.attributes.to_le_bytes());
        for (i, unit) in units.iter().enumerate() {
            put(slot, 56 + 2 * i, &unit.to_le_bytes());
        }
    }
    Ok(out)
}

fn wrong(
    field: &'static str,
    found: impl std::fmt::Display,
    expected: impl std::fmt::Display,
) -> FormatError {
    FormatError::invalid("GPT to be written", SECTOR_BYTES, field, found, expected)
}
