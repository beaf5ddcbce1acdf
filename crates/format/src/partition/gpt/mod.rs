//! GPT: a header at block 1 and its copy in the last block, each with its own copy of the entry array.
//!
//! Invariants: (1) nothing of a header is used before its CRC was checked, and no entry before the array's CRC was;
//! (2) where the primary header or its entries are bad and the backup is good, the backup is used, and a warning says
//! so; (3) a partition that shares a block with the table itself is left out.
//!
//! Layout (little-endian, addresses in logical blocks, the last block of a range *inclusive*):
//!
//! | off | header | | off | entry (128 bytes or more) |
//! | --- | --- | --- | --- | --- |
//! | 0 | "EFI PART" | | 0 | type GUID, zero = unused |
//! | 8 | revision u32 0x00010000 | | 16 | GUID of the partition |
//! | 12 | header size u32, 92 or more | | 32 | first block u64 |
//! | 16 | CRC-32 of the header, itself as 0 | | 40 | last block u64 |
//! | 24 | own block u64 | | 48 | attributes u64 |
//! | 32 | block of the other header u64 | | 56 | name, 36 UTF-16LE units |
//! | 40, 48 | first and last usable block u64 | | | |
//! | 56 | disk GUID | | | |
//! | 72 | first block of the entries u64 | | | |
//! | 80, 84 | number and size of the entries u32 | | | |
//! | 88 | CRC-32 of the entries | | | |
//!
//! Source: UEFI specification 2.10, section 5.3.

mod header;
mod write;

use header::{Copy, Loaded};
pub use write::{GptPartition, Layout, build};

use super::{Builder, Guid, Kind, Partition, PartitionTable, candidates, sectors_per_block};
use crate::bytes::{array, u16_le, u64_le};
use crate::source::Source;
use crate::{FormatError, escape};

/// Entries of one table that are read. Tools write 128.
pub const ENTRIES_MAX: u32 = 16_384;

/// Bytes of one entry array that are read.
pub const ENTRY_ARRAY_BYTES_MAX: u64 = 4 << 20;

/// Size of an entry as tools write it; the format allows 128·2^n.
pub const ENTRY_BYTES: u32 = 128;

/// Largest entry that is read.
pub const ENTRY_BYTES_MAX: u32 = 4096;

/// UTF-16 units in a partition's name.
pub const NAME_UNITS: usize = 36;

const ATTRIBUTE_LEGACY_BOOTABLE: u64 = 1 << 2;

pub(super) fn read(source: &dyn Source, hint: u32) -> Result<PartitionTable, FormatError> {
    let sizes = candidates(hint);
    let mut primary_error: Option<FormatError> = None;
    for size in &sizes {
        match Loaded::read(source, *size, Copy::Primary, 1) {
            Ok(primary) => return Ok(from_primary(source, &primary)),
            Err(error) => keep_the_telling_one(&mut primary_error, error),
        }
    }
    let primary_error = primary_error.expect("at least one block size was tried");
    from_backup(source, &sizes, primary_error)
}

fn from_primary(source: &dyn Source, primary: &Loaded) -> PartitionTable {
    let mut builder = Builder::new(source);
    let alternate = primary.header.alternate;
    match Loaded::read(source, primary.block_size, Copy::Backup, alternate) {
        Err(error) => builder.warn(format!("{error}; the primary is intact and was used: repair the backup with sgdisk -e")),
        Ok(backup) if !backup.agrees_with(primary) => builder.warn(
            "the primary and the backup GPT differ though both are valid; the primary was used".to_owned(),
        ),
        Ok(_) if alternate != primary.last_block => builder.warn(format!(
            "the backup GPT is at block {alternate}, not in the last block of the disk ({}): the disk has grown, \
             sgdisk -e moves it",
            primary.last_block
        )),
        Ok(_) => {}
    }
    table(builder, primary)
}

fn from_backup(
    source: &dyn Source,
    sizes: &[u32],
    primary_error: FormatError,
) -> Result<PartitionTable, FormatError> {
    let mut backup_error: Option<FormatError> = None;
    for size in sizes {
        let Some(last) = header::last_block(source, *size) else { continue };
        match Loaded::read(source, *size, Copy::Backup, last) {
            Ok(backup) => {
                let mut builder = Builder::new(source);
                let at = last * u64::from(*size);
                builder.warn(format!(
                    "{primary_error}; the backup at {at} was used instead: sgdisk or gdisk can rebuild the primary from it"
                ));
                return Ok(table(builder, &backup));
            }
            Err(error) => keep_the_telling_one(&mut backup_error, error),
        }
    }
    Err(match backup_error {
        Some(backup) => {
            // A disk that was cut has a good primary and no backup: removing that would be the wrong advice.
            let own = primary_error.remedy.clone();
            let remedy = own.as_deref().unwrap_or("restore the table from a copy, or remove it with wipefs");
            primary_error.with_remedy(format!("the backup is no better ({backup}): {remedy}"))
        }
        None => primary_error.with_remedy("the disk is too small to hold a backup"),
    })
}

/// Of the errors at several block sizes, the one worth telling is of the first size at which there is a header at all.
fn keep_the_telling_one(kept: &mut Option<FormatError>, error: FormatError) {
    if kept.as_ref().is_none_or(|kept| header::is_absent(kept) && !header::is_absent(&error)) {
        *kept = Some(error);
    }
}

fn table(mut builder: Builder, loaded: &Loaded) -> PartitionTable {
    let header = &loaded.header;
    let size = usize::try_from(header.entry_bytes).expect("checked against ENTRY_BYTES_MAX");
    for (number, entry) in (1..).zip(loaded.entries.chunks_exact(size)) {
        let guid = Guid(array(entry, 0));
        if guid == Guid::ZERO {
            continue;
        }
        let (first, last) = (u64_le(entry, 32), u64_le(entry, 40));
        if let Err(why) = check_range(loaded, first, last) {
            let name = name(entry).map(|name| format!(" (\"{}\")", escape(&name))).unwrap_or_default();
            builder.warn(format!("partition {number}{name} was left out: blocks {first} to {last} {why}"));
            continue;
        }
        if first < header.first_usable || last > header.last_usable {
            builder.warn(format!(
                "partition {number}: blocks {first} to {last} reach out of the usable blocks {} to {}",
                header.first_usable, header.last_usable
            ));
        }
        builder.add(partition(loaded, number, guid, entry));
    }
    builder.finish(Kind::Gpt, loaded.block_size, header.disk_guid.to_string())
}

/// The blocks lie on the disk, and not on the table.
fn check_range(loaded: &Loaded, first: u64, last: u64) -> Result<(), String> {
    if first > last {
        return Err("end before they start".to_owned());
    }
    if last > loaded.last_block {
        return Err(format!("end after the last block of the disk ({})", loaded.last_block));
    }
    match loaded.own_blocks().into_iter().find(|(from, to)| first <= *to && last >= *from) {
        Some((from, to)) => Err(format!("overlap the table itself (blocks {from} to {to})")),
        None => Ok(()),
    }
}

fn partition(loaded: &Loaded, number: u32, type_guid: Guid, entry: &[u8]) -> Partition {
    let (first, last, attributes) = (u64_le(entry, 32), u64_le(entry, 40), u64_le(entry, 48));
    let unit = sectors_per_block(loaded.block_size);
    Partition {
        number,
        // No overflow: the last block lies on the disk, whose size in bytes is a u64.
        start_sector: first * unit,
        sectors: (last - first + 1) * unit,
        type_id: type_guid.to_string(),
        type_name: type_guid.type_name(),
        uuid: Some(Guid(array(entry, 16)).to_string()),
        name: name(entry),
        bootable: attributes & ATTRIBUTE_LEGACY_BOOTABLE != 0,
        attributes,
    }
}

/// The name up to its NUL; units that are no text become U+FFFD.
fn name(entry: &[u8]) -> Option<String> {
    let units = (0..NAME_UNITS).map(|i| u16_le(entry, 56 + 2 * i)).take_while(|unit| *unit != 0);
    let name: String = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
    (!name.is_empty()).then_some(name)
}

const _: () = assert!(56 + 2 * NAME_UNITS == 128 && ENTRY_BYTES == 128);

/// Recomputes the CRCs of a GPT header and of its entry array in place, `header` being the bytes of its block. So that
/// tests and fuzzers can change a field and still get past the CRC.
///
/// `entries` is the array, where the caller has it: its first `number × size` bytes count, as the header says.
pub fn fix_crcs(header: &mut [u8], entries: Option<&[u8]>) {
    header::fix_crcs(header, entries);
}
