//! Partition tables, on disks that an input describes by their few places that matter.

use blockwork_format::partition::gpt::fix_crcs;
use blockwork_format::partition::{Kind, PartitionTable, WARNINGS_MAX, read};
use blockwork_format::{FormatError, Piece, SECTOR_BYTES, Source, Sparse};

use crate::input::Input;
use crate::{assert_printable, reached};

/// Bytes of a GPT header that an input gives.
pub(crate) const GPT_HEADER_BYTES: usize = 128;

/// Flags of a `gpt` input.
pub(crate) const BLOCKS_OF_4096: u8 = 1;
pub(crate) const FIX_CRCS: u8 = 2;
pub(crate) const WITH_HINT: u8 = 4;
pub(crate) const PIECE_MISSING: u8 = 8;

/// Longest entry array whose CRC is mended.
const ARRAY_BYTES_MAX: u64 = 1 << 16;

/// A GPT disk. The input: flags u8; blocks of the disk u16; bytes at the end that are no block u8; primary header, backup
/// header (128 bytes each); the rest is one half primary entries, put at block 2, and one half backup entries, put
/// before the last block. The protective MBR is given.
pub fn gpt(data: &[u8]) {
    let mut input = Input(data);
    let flags = input.u8();
    let block_size: u32 = if flags & BLOCKS_OF_4096 != 0 { 4096 } else { 512 };
    let (blocks, odd_bytes) = (u64::from(input.u16()), u64::from(input.u8()));
    let (primary, backup) = (input.array::<GPT_HEADER_BYTES>(), input.array::<GPT_HEADER_BYTES>());
    let (entries, backup_entries) = input.0.split_at(input.0.len() / 2);
    let unit = u64::from(block_size);
    let last = blocks.saturating_sub(1);
    let array_blocks = u64::try_from(backup_entries.len()).expect("a length").div_ceil(unit);
    let mut disk = Sparse::new(blocks * unit + odd_bytes, protective_mbr());
    disk.write(2 * unit, entries.to_vec());
    disk.write(last.saturating_sub(array_blocks) * unit, backup_entries.to_vec());
    for (block, header) in [(1, primary), (last, backup)] {
        let mut bytes = header.to_vec();
        if flags & FIX_CRCS != 0 {
            bytes.resize(usize::try_from(block_size).expect("a block"), 0);
            let entries = entries_of(&disk, &bytes, unit);
            fix_crcs(&mut bytes, entries.as_deref());
        }
        disk.write(block * unit, bytes);
    }
    if flags & PIECE_MISSING != 0 {
        disk.write(unit, vec![0; 8]);
    }
    let hint = if flags & WITH_HINT != 0 { block_size } else { 0 };
    check(&disk, hint, read(&disk, hint));
}

/// The entries that a header points at, where they lie on the disk and are not many.
fn entries_of(disk: &Sparse, header: &[u8], unit: u64) -> Option<Vec<u8>> {
    let mut fields = Input(&header[72..]);
    let block = u64::from_le_bytes(fields.array());
    let (count, size) = (u32::from_le_bytes(fields.array()), u32::from_le_bytes(fields.array()));
    let bytes = u64::from(count).checked_mul(size.into()).filter(|bytes| *bytes <= ARRAY_BYTES_MAX)?;
    let mut entries = vec![0; usize::try_from(bytes).ok()?];
    disk.read_at(block.checked_mul(unit)?, &mut entries).ok()?;
    Some(entries)
}

fn protective_mbr() -> Vec<Piece> {
    let mut sector = vec![0; 512];
    sector[446..462]
        .copy_from_slice(&[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    vec![Piece { offset: 0, bytes: sector }]
}

/// Bytes of a sector of an `mbr` input: its number, and what lies from 446 on.
pub(crate) const MBR_SECTOR_BYTES: usize = 2 + 64;

/// A disk with an MBR. The input: 4096-byte blocks or not u8; sectors of the disk u16; signature, 4 bytes; the MBR's
/// entries, 64 bytes; then EBRs, each its sector u16 and its entries. 55 AA is given everywhere.
pub fn mbr(data: &[u8]) {
    let mut input = Input(data);
    let hint = if input.u8() & BLOCKS_OF_4096 != 0 { 4096 } else { 0 };
    let sectors = u64::from(input.u16());
    let mut disk = Sparse::new(sectors * SECTOR_BYTES, Vec::new());
    disk.write(440, input.array::<4>().to_vec());
    let mut sector = 0;
    loop {
        disk.write(sector * SECTOR_BYTES + 446, [input.array::<64>().as_slice(), &[0x55, 0xaa]].concat());
        if input.0.len() < MBR_SECTOR_BYTES {
            break;
        }
        sector = u64::from(input.u16());
    }
    check(&disk, hint, read(&disk, hint));
}

/// Any disk. The input: a hint u8 (the power of two); zeros to append u16, in KiB; the start of the disk.
pub fn partition(data: &[u8]) {
    let mut input = Input(data);
    let hint = 1u32.checked_shl(u32::from(input.u8())).unwrap_or(0);
    let zeros = u64::from(input.u16()) * 1024;
    let head = Piece { offset: 0, bytes: input.0.to_vec() };
    let disk = Sparse::new(head.end() + zeros, vec![head]);
    check(&disk, hint, read(&disk, hint));
}

/// What must be true of whatever a disk holds.
fn check(disk: &Sparse, hint: u32, found: Result<Option<PartitionTable>, FormatError>) {
    assert_eq!(found, read(disk, hint), "the same disk reads the same twice");
    match found {
        Ok(None) => reached("no table"),
        Err(error) => {
            reached("refused");
            assert_printable(&error.to_string());
        }
        Ok(Some(table)) => check_table(disk, &table),
    }
}

fn check_table(disk: &Sparse, table: &PartitionTable) {
    reached(match table.kind {
        Kind::Gpt => "gpt",
        Kind::Mbr => "mbr",
    });
    assert!(table.warnings.len() <= WARNINGS_MAX + 1, "{} warnings", table.warnings.len());
    table.warnings.iter().for_each(|warning| assert_printable(warning));
    if table.warnings.iter().any(|warning| warning.contains("left out")) {
        reached("entry left out");
    }
    if table.warnings.iter().any(|warning| warning.contains("used instead")) {
        reached("backup used");
    }
    let block_sectors = u64::from(table.logical_block_size) / SECTOR_BYTES;
    let disk_sectors = disk.size() / SECTOR_BYTES;
    for (i, partition) in table.partitions.iter().enumerate() {
        reached("partition");
        let (start, sectors) = (partition.start_sector, partition.sectors);
        assert!(sectors > 0, "{partition:?}");
        let end = start.checked_add(sectors).expect("an end");
        assert!(end <= disk_sectors, "{partition:?} outside {disk_sectors} sectors");
        assert!(start.is_multiple_of(block_sectors), "{partition:?}");
        assert!(sectors.is_multiple_of(block_sectors), "{partition:?}");
        for other in &table.partitions[..i] {
            assert!(other.number < partition.number, "{other:?} {partition:?}");
            let apart = end <= other.start_sector || other.start_sector + other.sectors <= start;
            assert!(apart, "{other:?} {partition:?} overlap");
        }
    }
}
