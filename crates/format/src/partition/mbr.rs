//! MBR: four primary partitions, and a chain of logical ones in an extended partition.
//!
//! Sector 0 (512 bytes): disk signature u32 LE at 440, four 16-byte entries at 446, bytes 55 AA at 510. An entry: boot
//! flag (0 or 80h) at 0, type at 4, first block u32 LE at 8, blocks u32 LE at 12, in logical blocks. An extended
//! partition (05h, 0Fh, 85h) starts with an EBR of the same shape: its plain entries are logical partitions relative to
//! that EBR, its extended entry leads to the next EBR, relative to the start of the extended partition. An entry of
//! type EEh says that the disk has a GPT.
//!
//! Invariants: (1) a chain of EBRs is followed for at most [`LOGICAL_MAX`] partitions and [`EBRS_MAX`] sectors, and
//! never twice through the same one; (2) logical partitions are counted as the kernel counts, even where one of them
//! is left out, so that `sda6` is partition 6 here too; (3) the extended partition itself is not in the list: nothing
//! can be kept in it.
//!
//! Source: the kernel's `block/partitions/msdos.c` (behaviour); libblkid for boot sectors of file systems.

use std::collections::HashSet;

use super::{Builder, Kind, Partition, PartitionTable, sectors_per_block, valid_hint};
use crate::bytes::{put, u16_le, u32_le};
use crate::source::{Piece, Source};
use crate::{FormatError, SECTOR_BYTES};

/// Logical partitions of one disk: the kernel's own limit on partitions.
pub const LOGICAL_MAX: u32 = 252;

/// EBRs that are read from one disk. The kernel gives up after 100 that hold no partition.
pub const EBRS_MAX: usize = 512;

const PLACE: &str = "MBR";
const SIGNATURE_AT: usize = 440;
const ENTRIES_AT: usize = 446;
const ENTRY_BYTES: usize = 16;
const MAGIC_AT: usize = 510;
const MAGIC: [u8; 2] = [0x55, 0xaa];
const TYPE_EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
const TYPE_PROTECTIVE: u8 = 0xee;
/// Cylinder, head, sector of what lies beyond 8 GiB: "use the block addresses".
const CHS_USE_LBA: [u8; 3] = [0xfe, 0xff, 0xff];

/// The first sector of a disk.
pub(super) type Sector = [u8; 512];

/// What the first sector is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// No table: no signature, or a file system's boot sector.
    NoTable,
    /// A protective or hybrid MBR: look for a GPT.
    Protective,
    /// A table.
    Table,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    boot_flag: u8,
    type_id: u8,
    start: u32,
    blocks: u32,
}

impl Entry {
    fn is_extended(&self) -> bool {
        TYPE_EXTENDED.contains(&self.type_id)
    }

    fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut out = [0; ENTRY_BYTES];
        out[0] = self.boot_flag;
        put(&mut out, 1, &CHS_USE_LBA);
        out[4] = self.type_id;
        put(&mut out, 5, &CHS_USE_LBA);
        put(&mut out, 8, &self.start.to_le_bytes());
        put(&mut out, 12, &self.blocks.to_le_bytes());
        out
    }
}

/// Sector 0; `None` where the disk is smaller than that.
pub(super) fn sector_0(source: &dyn Source) -> Result<Option<Sector>, FormatError> {
    if source.size() < SECTOR_BYTES {
        return Ok(None);
    }
    read_sector(source, PLACE, 0).map(Some)
}

fn read_sector(source: &dyn Source, place: &'static str, offset: u64) -> Result<Sector, FormatError> {
    let mut sector = [0; 512];
    source.read_at(offset, &mut sector).map_err(|error| FormatError::unreadable(place, offset, &error))?;
    Ok(sector)
}

fn has_magic(sector: &Sector) -> bool {
    sector[MAGIC_AT..] == MAGIC
}

fn entries(sector: &Sector) -> [Entry; 4] {
    std::array::from_fn(|i| {
        let entry = &sector[ENTRIES_AT + i * ENTRY_BYTES..][..ENTRY_BYTES];
        let (start, blocks) = (u32_le(entry, 8), u32_le(entry, 12));
        Entry { boot_flag: entry[0], type_id: entry[4], start, blocks }
    })
}

pub(super) fn classify(sector: &Sector) -> Class {
    let entries = entries(sector);
    // As the kernel looks for a GPT: before and regardless of the boot flags.
    if has_magic(sector) && entries.iter().any(|entry| entry.type_id == TYPE_PROTECTIVE && entry.start == 1) {
        return Class::Protective;
    }
    if !has_magic(sector) || entries.iter().any(|entry| !matches!(entry.boot_flag, 0 | 0x80)) {
        return Class::NoTable;
    }
    if entries.iter().any(|entry| entry.type_id == TYPE_PROTECTIVE) {
        return Class::Protective;
    }
    if is_boot_sector_of_a_file_system(sector) {
        return Class::NoTable;
    }
    // 55 AA and nothing else: a boot loader's sector, a wiped table. A table without partitions has a signature.
    if entries.iter().all(|entry| entry.blocks == 0) && u32_le(sector, SIGNATURE_AT) == 0 {
        return Class::NoTable;
    }
    Class::Table
}

/// Whether this is where FAT, NTFS or exFAT start, which end in 55 AA too and often have zeros where the entries are.
/// A boot loader's MBR may keep room for these fields, but then leaves them zero.
fn is_boot_sector_of_a_file_system(sector: &Sector) -> bool {
    let jumps = matches!(sector[..3], [0xeb, _, 0x90] | [0xe9, _, _]);
    if jumps && (&sector[3..11] == b"NTFS    " || &sector[3..11] == b"EXFAT   ") {
        return true;
    }
    let bytes_per_sector = u16_le(sector, 11);
    let (reserved, fats, media) = (u16_le(sector, 14), sector[16], sector[21]);
    bytes_per_sector.is_power_of_two()
        && (512..=4096).contains(&bytes_per_sector)
        && sector[13].is_power_of_two()
        && reserved != 0
        && (1..=2).contains(&fats)
        && (media == 0xf0 || media >= 0xf8)
}

pub(super) fn read(source: &dyn Source, sector: &Sector, hint: u32) -> Result<PartitionTable, FormatError> {
    let logical_block_size = valid_hint(hint).unwrap_or(512);
    let signature = u32_le(sector, SIGNATURE_AT);
    let mut reader = Reader {
        source,
        unit: sectors_per_block(logical_block_size),
        signature,
        next_logical: 5,
        seen: HashSet::new(),
        table: Builder::new(source),
    };
    for (number, entry) in (1..).zip(entries(sector)) {
        if entry.blocks != 0 && !entry.is_extended() {
            let start = u64::from(entry.start) * reader.unit;
            reader.add(number, start, &entry);
        }
    }
    for entry in entries(sector).iter().filter(|entry| entry.blocks != 0 && entry.is_extended()) {
        reader.extended(entry);
    }
    Ok(reader.table.finish(Kind::Mbr, logical_block_size, format!("0x{signature:08x}")))
}

struct Reader<'a> {
    source: &'a dyn Source,
    /// Sectors in a block.
    unit: u64,
    signature: u32,
    next_logical: u32,
    /// EBRs that were read, by sector.
    seen: HashSet<u64>,
    table: Builder,
}

/// An extended partition, sectors.
#[derive(Clone, Copy)]
struct Extended {
    start: u64,
    end: u64,
}

impl Reader<'_> {
    fn add(&mut self, number: u32, start_sector: u64, entry: &Entry) {
        self.table.add(Partition {
            number,
            start_sector,
            sectors: u64::from(entry.blocks) * self.unit,
            type_id: format!("0x{:02x}", entry.type_id),
            type_name: type_name(entry.type_id),
            uuid: (self.signature != 0).then(|| format!("{:08x}-{number:02x}", self.signature)),
            name: None,
            bootable: entry.boot_flag == 0x80,
            attributes: 0,
        });
    }

    /// Follows the chain of EBRs of one extended partition. What is wrong in it ends the chain, with a warning: what
    /// was found before stays usable.
    fn extended(&mut self, entry: &Entry) {
        let start = u64::from(entry.start) * self.unit;
        let extended = Extended { start, end: start + u64::from(entry.blocks) * self.unit };
        let mut next = Some(start);
        while let Some(ebr) = next {
            match self.check_ebr(extended, ebr).and_then(|()| self.read_ebr(ebr)) {
                Ok(sector) => next = self.ebr(extended, ebr, &sector),
                Err(why) => {
                    self.table.warn(format!("the chain of logical partitions ends at sector {ebr}: {why}"));
                    next = None;
                }
            }
        }
    }

    fn check_ebr(&mut self, extended: Extended, ebr: u64) -> Result<(), String> {
        if ebr < extended.start || ebr >= extended.end {
            let (start, end) = (extended.start, extended.end);
            return Err(format!("that lies outside the extended partition (sectors {start} to {})", end - 1));
        }
        if ebr >= self.table.disk_sectors {
            return Err(format!("that lies outside the disk ({} sectors)", self.table.disk_sectors));
        }
        if self.seen.len() >= EBRS_MAX || self.next_logical >= 5 + LOGICAL_MAX {
            return Err(format!("it is longer than {EBRS_MAX} EBRs or {LOGICAL_MAX} partitions"));
        }
        if !self.seen.insert(ebr) {
            return Err("the chain loops: this EBR was read before".to_owned());
        }
        Ok(())
    }

    fn read_ebr(&self, ebr: u64) -> Result<Sector, String> {
        let sector =
            read_sector(self.source, "EBR", ebr * SECTOR_BYTES).map_err(|error| error.to_string())?;
        if !has_magic(&sector) {
            return Err(format!(
                "the EBR's signature is {:02x} {:02x}, expected 55 aa",
                sector[MAGIC_AT],
                sector[MAGIC_AT + 1]
            ));
        }
        Ok(sector)
    }

    /// Takes in an EBR's partitions; returns where the next EBR is.
    fn ebr(&mut self, extended: Extended, ebr: u64, sector: &Sector) -> Option<u64> {
        for (slot, entry) in entries(sector).iter().enumerate() {
            if entry.blocks == 0 || entry.is_extended() || self.next_logical >= 5 + LOGICAL_MAX {
                continue;
            }
            let start = ebr + u64::from(entry.start) * self.unit;
            let end = start + u64::from(entry.blocks) * self.unit;
            let inside = start > ebr && end <= extended.end;
            // The third and fourth entry hold garbage on some disks, and count only where they make sense.
            if slot >= 2 && !inside {
                continue;
            }
            let number = self.next_logical;
            self.next_logical += 1;
            if inside {
                self.add(number, start, entry);
            } else {
                self.table.warn(format!(
                    "partition {number} was left out: sectors {start} to {} do not lie between its EBR (sector {ebr}) \
                     and the end of the extended partition (sector {})",
                    end - 1,
                    extended.end
                ));
            }
        }
        let next = entries(sector).into_iter().find(|entry| entry.blocks != 0 && entry.is_extended())?;
        Some(extended.start + u64::from(next.start) * self.unit)
    }
}

/// A primary or logical partition to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MbrPartition {
    /// First sector (512 bytes); a multiple of the logical block.
    pub start_sector: u64,
    /// Length in sectors (512 bytes); a multiple of the logical block.
    pub sectors: u64,
    /// The type's byte.
    pub type_id: u8,
    /// The active flag.
    pub bootable: bool,
}

/// An extended partition to be written: the fourth entry, and a chain of EBRs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtendedPartition {
    /// First sector (512 bytes).
    pub start_sector: u64,
    /// Length in sectors (512 bytes).
    pub sectors: u64,
    /// In rising order, each with at least one block free before it for its EBR.
    pub logical: Vec<MbrPartition>,
}

/// An MBR to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Size of the disk, bytes.
    pub disk_bytes: u64,
    /// Unit of the addresses, bytes.
    pub logical_block_size: u32,
    /// The disk's signature.
    pub signature: u32,
    /// Up to four, or three beside an extended one, numbered from 1.
    pub primary: Vec<MbrPartition>,
    /// Takes the place after the primary ones.
    pub extended: Option<ExtendedPartition>,
}

/// The bytes of an MBR, and where they go. What [`super::read`] makes of them is the layout again.
///
/// # Errors
///
/// A layout that does not fit the disk, the 32-bit fields, or itself.
pub fn build(layout: &Layout) -> Result<Vec<Piece>, FormatError> {
    if valid_hint(layout.logical_block_size).is_none() {
        let expected = "a power of two from 512 to 65536";
        return Err(wrong("logical block size", layout.logical_block_size, expected));
    }
    let entries_used = layout.primary.len() + usize::from(layout.extended.is_some());
    if entries_used > 4 {
        return Err(wrong("number of primary and extended partitions", entries_used, "at most 4"));
    }
    check_order(layout)?;
    let unit = sectors_per_block(layout.logical_block_size);
    let mut sector = [0; 512];
    put(&mut sector, SIGNATURE_AT, &layout.signature.to_le_bytes());
    for (slot, partition) in layout.primary.iter().enumerate() {
        put_entry(&mut sector, slot, &entry(partition, 0, unit)?);
    }
    let mut pieces = Vec::new();
    if let Some(extended) = &layout.extended {
        let container = MbrPartition {
            start_sector: extended.start_sector,
            sectors: extended.sectors,
            type_id: 0x0f,
            bootable: false,
        };
        put_entry(&mut sector, layout.primary.len(), &entry(&container, 0, unit)?);
        chain(extended, unit, &mut pieces)?;
    }
    pieces.insert(0, finished(0, sector));
    Ok(pieces)
}

/// The protective MBR of a GPT disk of `disk_blocks` logical blocks.
pub(super) fn protective(disk_blocks: u64) -> Piece {
    let blocks = u32::try_from(disk_blocks.saturating_sub(1)).unwrap_or(u32::MAX);
    let mut sector = [0; 512];
    let mut bytes = Entry { boot_flag: 0, type_id: TYPE_PROTECTIVE, start: 1, blocks }.encode();
    // The specification wants the CHS address of LBA 1, and the highest one where the end does not fit.
    put(&mut bytes, 1, &[0x00, 0x02, 0x00]);
    put(&mut bytes, 5, &[0xff, 0xff, 0xff]);
    put(&mut sector, ENTRIES_AT, &bytes);
    finished(0, sector)
}

/// Chain of EBRs: the first at the start of the extended partition, each other one in the block before its partition.
fn chain(extended: &ExtendedPartition, unit: u64, pieces: &mut Vec<Piece>) -> Result<(), FormatError> {
    let ebrs: Vec<u64> = extended
        .logical
        .iter()
        .enumerate()
        .map(|(i, logical)| if i == 0 { extended.start_sector } else { logical.start_sector - unit })
        .collect();
    for (i, logical) in extended.logical.iter().enumerate() {
        let mut sector = [0; 512];
        put_entry(&mut sector, 0, &entry(logical, ebrs[i], unit)?);
        if let (Some(next_ebr), Some(next)) = (ebrs.get(i + 1), extended.logical.get(i + 1)) {
            let link = MbrPartition {
                start_sector: *next_ebr,
                sectors: next.start_sector + next.sectors - next_ebr,
                type_id: 0x05,
                bootable: false,
            };
            put_entry(&mut sector, 1, &entry(&link, extended.start_sector, unit)?);
        }
        pieces.push(finished(ebrs[i] * SECTOR_BYTES, sector));
    }
    if extended.logical.is_empty() {
        pieces.push(finished(extended.start_sector * SECTOR_BYTES, [0; 512]));
    }
    Ok(())
}

/// Partitions lie behind one another on the disk, the logical ones in the extended one with room for their EBRs.
fn check_order(layout: &Layout) -> Result<(), FormatError> {
    let disk_sectors = layout.disk_bytes / SECTOR_BYTES;
    let unit = sectors_per_block(layout.logical_block_size);
    let mut ranges: Vec<(u64, u64)> = layout.primary.iter().map(|p| (p.start_sector, p.sectors)).collect();
    ranges.extend(layout.extended.iter().map(|e| (e.start_sector, e.sectors)));
    ranges.sort_unstable();
    in_order(&ranges, unit, disk_sectors, 0)?;
    if let Some(extended) = &layout.extended {
        let logical: Vec<_> = extended.logical.iter().map(|p| (p.start_sector, p.sectors)).collect();
        in_order(&logical, extended.start_sector + unit, extended.start_sector + extended.sectors, unit)?;
    }
    Ok(())
}

fn in_order(ranges: &[(u64, u64)], from: u64, to: u64, gap: u64) -> Result<(), FormatError> {
    let mut free = from;
    for (start, sectors) in ranges {
        if *start < free {
            return Err(wrong("start of a partition", start, format!("sector {free} or later")));
        }
        let end = start.checked_add(*sectors).filter(|end| *end <= to && *sectors > 0);
        let end = end.ok_or_else(|| {
            wrong("length of a partition", sectors, format!("1 to {}", to.saturating_sub(*start)))
        })?;
        free = end + gap;
    }
    Ok(())
}

fn entry(partition: &MbrPartition, base_sector: u64, unit: u64) -> Result<Entry, FormatError> {
    let blocks = |field, sectors: u64| match u32::try_from(sectors / unit) {
        Ok(blocks) if sectors.is_multiple_of(unit) => Ok(blocks),
        _ => Err(wrong(field, sectors, format!("whole blocks of {unit} sectors, fewer than 2^32"))),
    };
    Ok(Entry {
        boot_flag: if partition.bootable { 0x80 } else { 0 },
        type_id: partition.type_id,
        start: blocks("start of a partition", partition.start_sector - base_sector)?,
        blocks: blocks("length of a partition", partition.sectors)?,
    })
}

fn wrong(
    field: &'static str,
    found: impl std::fmt::Display,
    expected: impl std::fmt::Display,
) -> FormatError {
    FormatError::invalid("MBR to be written", 0, field, found, expected)
}

fn put_entry(sector: &mut Sector, slot: usize, entry: &Entry) {
    put(sector, ENTRIES_AT + slot * ENTRY_BYTES, &entry.encode());
}

fn finished(offset: u64, mut sector: Sector) -> Piece {
    put(&mut sector, MAGIC_AT, &MAGIC);
    Piece { offset, bytes: sector.to_vec() }
}

fn type_name(type_id: u8) -> Option<&'static str> {
    const NAMES: &[(u8, &str)] = &[
        (0x01, "FAT12"),
        (0x04, "FAT16 <32M"),
        (0x06, "FAT16"),
        (0x07, "HPFS/NTFS/exFAT"),
        (0x0b, "W95 FAT32"),
        (0x0c, "W95 FAT32 (LBA)"),
        (0x0e, "W95 FAT16 (LBA)"),
        (0x27, "Hidden NTFS WinRE"),
        (0x82, "Linux swap"),
        (0x83, "Linux"),
        (0x8e, "Linux LVM"),
        (0xa5, "FreeBSD"),
        (0xa6, "OpenBSD"),
        (0xa9, "NetBSD"),
        (0xaf, "HFS / HFS+"),
        (0xbf, "Solaris"),
        (0xea, "Linux extended boot"),
        (0xef, "EFI (FAT-12/16/32)"),
        (0xfb, "VMware VMFS"),
        (0xfd, "Linux raid autodetect"),
    ];
    NAMES.iter().find(|(id, _)| *id == type_id).map(|(_, name)| *name)
}

const _: () = assert!(ENTRIES_AT + 4 * ENTRY_BYTES == MAGIC_AT);
const _: () = assert!(EBRS_MAX > 0 && LOGICAL_MAX > 0);
