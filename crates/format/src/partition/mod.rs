//! Partition tables: GPT and MBR, read and written.
//!
//! Invariants:
//!
//! 1. Every partition that [`read`] returns has at least one sector, lies inside the disk, and shares no sector with
//!    another one. An entry that would break this is left out, with a warning that names it; the others keep the
//!    numbers that Linux gives them.
//! 2. A table that is wrong as a whole (a GPT whose two headers are both bad) is an error, never an empty table.
//! 3. A file system that begins with a boot sector (FAT, NTFS, exFAT) is not taken for an MBR.
//!
//! As in the kernel, GPT counts only where a protective (or hybrid) MBR announces it: a stale GPT under a new file
//! system, or under a new MBR, is not there. Not here: nested tables (BSD labels and their like inside a partition).
//!
//! Sources: UEFI specification 2.10, chapter 5; the kernel's `block/partitions/{efi,msdos}.c` for what Linux accepts.

mod guid;

pub mod gpt;
pub mod mbr;

use std::collections::BTreeMap;
use std::fmt;

pub use guid::{Guid, NotAGuid};

use crate::source::Source;
use crate::{FormatError, SECTOR_BYTES};

/// Warnings kept for one table; a hostile one could otherwise cause a line for each of its entries.
pub const WARNINGS_MAX: usize = 64;

/// Logical block sizes that disks have, and that are tried, after the hint.
const BLOCK_SIZES: [u32; 2] = [512, 4096];

/// The largest logical block size that is believed.
pub const LOGICAL_BLOCK_SIZE_MAX: u32 = 65536;

/// Which kind of table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// GUID partition table.
    Gpt,
    /// Master boot record, with logical partitions.
    Mbr,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Gpt => "gpt",
            Kind::Mbr => "mbr",
        })
    }
}

/// A disk's partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionTable {
    /// GPT or MBR.
    pub kind: Kind,
    /// The unit of the table's addresses, bytes: what the disk said it was when the table was written.
    pub logical_block_size: u32,
    /// GPT: the disk's GUID, in capitals. MBR: its signature, as `0x12345678`.
    pub disk_id: String,
    /// In the order of their numbers.
    pub partitions: Vec<Partition>,
    /// What is wrong with the table though it can be used, one sentence each, safe to print.
    pub warnings: Vec<String>,
}

/// One partition: a range of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// As Linux counts: from 1; the logical partitions of an MBR from 5.
    pub number: u32,
    /// First sector (512 bytes) on the disk.
    pub start_sector: u64,
    /// Length in sectors (512 bytes).
    pub sectors: u64,
    /// GPT: the type's GUID, in capitals. MBR: the type's byte, as `0x83`.
    pub type_id: String,
    /// What Linux' tools call that type, where it is a known one.
    pub type_name: Option<&'static str>,
    /// GPT: the partition's GUID, in capitals. MBR: Linux' PARTUUID, as `12345678-01`.
    pub uuid: Option<String>,
    /// GPT: the partition's name as it is on disk: `escape` it before printing.
    pub name: Option<String>,
    /// MBR: the active flag. GPT: the "legacy BIOS bootable" attribute.
    pub bootable: bool,
    /// GPT: the attribute bits. MBR: 0.
    pub attributes: u64,
}

impl Partition {
    /// The first sector after it.
    pub fn end_sector(&self) -> u64 {
        self.start_sector + self.sectors
    }
}

/// Reads the partition table of a disk. `Ok(None)` where there is none.
///
/// `logical_block_size_hint` is what the disk says of itself (bytes), or 0 where nobody knows, as with an image in a
/// file. GPT is looked for with the hint first, then with 512 and 4096. An MBR does not tell its unit: it is the hint,
/// or 512.
///
/// # Errors
///
/// A table that is there but cannot be used as a whole (the error names the field and the remedy), or a disk that
/// cannot be read.
pub fn read(
    source: &dyn Source,
    logical_block_size_hint: u32,
) -> Result<Option<PartitionTable>, FormatError> {
    let Some(sector) = mbr::sector_0(source)? else { return Ok(None) };
    match mbr::classify(&sector) {
        mbr::Class::NoTable => Ok(None),
        mbr::Class::Protective => gpt::read(source, logical_block_size_hint).map(Some),
        mbr::Class::Table => mbr::read(source, &sector, logical_block_size_hint).map(Some),
    }
}

/// The hint, if a disk can have it.
fn valid_hint(hint: u32) -> Option<u32> {
    (hint.is_power_of_two() && (512..=LOGICAL_BLOCK_SIZE_MAX).contains(&hint)).then_some(hint)
}

/// Block sizes to try, the hint first.
fn candidates(hint: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = valid_hint(hint).into_iter().collect();
    sizes.extend(BLOCK_SIZES.iter().filter(|size| Some(**size) != valid_hint(hint)));
    sizes
}

/// Sectors in a logical block.
fn sectors_per_block(logical_block_size: u32) -> u64 {
    u64::from(logical_block_size) / SECTOR_BYTES
}

/// Collects the partitions and warnings of one table, and holds invariant 1.
struct Builder {
    disk_sectors: u64,
    partitions: BTreeMap<u32, Partition>,
    /// First sector → (end sector, number) of all that is taken.
    taken: BTreeMap<u64, (u64, u32)>,
    warnings: Vec<String>,
    suppressed: usize,
}

impl Builder {
    fn new(source: &dyn Source) -> Self {
        let disk_sectors = source.size() / SECTOR_BYTES;
        Self {
            disk_sectors,
            partitions: BTreeMap::new(),
            taken: BTreeMap::new(),
            warnings: Vec::new(),
            suppressed: 0,
        }
    }

    fn warn(&mut self, warning: String) {
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(warning);
        } else {
            self.suppressed += 1;
        }
    }

    /// Takes the partition in, or leaves it out with a warning. The one with the lower number wins where two overlap.
    fn add(&mut self, partition: Partition) {
        let number = partition.number;
        let start = partition.start_sector;
        assert!(partition.sectors > 0, "partition {number}: the caller drops empty entries");
        let end = start.checked_add(partition.sectors).filter(|end| *end <= self.disk_sectors);
        let Some(end) = end else {
            return self.warn(format!(
                "partition {number} was left out: its {} sectors from {start} do not lie inside the disk ({} sectors)",
                partition.sectors, self.disk_sectors
            ));
        };
        if let Some((other_start, other_end, other)) = self.overlapping(start, end) {
            return self.warn(format!(
                "partition {number} was left out: sectors {start} to {} overlap partition {other} ({other_start} to {})",
                end - 1,
                other_end - 1
            ));
        }
        self.taken.insert(start, (end, number));
        let before = self.partitions.insert(number, partition);
        assert!(before.is_none(), "partition {number} is numbered twice");
    }

    fn overlapping(&self, start: u64, end: u64) -> Option<(u64, u64, u32)> {
        let (other_start, (other_end, other)) = self.taken.range(..end).next_back()?;
        (*other_end > start).then_some((*other_start, *other_end, *other))
    }

    fn finish(mut self, kind: Kind, logical_block_size: u32, disk_id: String) -> PartitionTable {
        if self.suppressed > 0 {
            self.warnings.push(format!("{} more warnings were left out", self.suppressed));
        }
        let partitions = self.partitions.into_values().collect();
        PartitionTable { kind, logical_block_size, disk_id, partitions, warnings: self.warnings }
    }
}

#[cfg(test)]
mod tests;
