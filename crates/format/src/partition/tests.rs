//! Tables that no tool would write: truncated, overlapping, looping, oversized, and what only looks like a table.
//!
//! What the tools themselves write is in `tests/partition_tools.rs`.

use super::gpt::{GptPartition, fix_crcs};
use super::mbr::{ExtendedPartition, MbrPartition};
use super::*;
use crate::source::{Piece, Sparse};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const DISK: u64 = 64 * MIB;

fn gpt_partition(start_sector: u64, sectors: u64, name: &str) -> GptPartition {
    let guid = Guid([u8::try_from(start_sector % 251).unwrap(); 16]);
    GptPartition { start_sector, sectors, type_guid: Guid::LINUX, guid, name: name.into(), attributes: 0 }
}

fn gpt_layout(logical_block_size: u32) -> gpt::Layout {
    gpt::Layout {
        disk_bytes: DISK,
        logical_block_size,
        disk_guid: Guid([9; 16]),
        partitions: vec![
            Some(gpt_partition(2048, 2048, "one")),
            Some(gpt_partition(4096, 2048, "two")),
            Some(gpt_partition(8192, 4096, "three")),
        ],
    }
}

/// A GPT disk of 512-byte blocks in memory; fields can be changed in both copies with their CRCs following.
struct Gpt {
    bytes: Vec<u8>,
}

impl Gpt {
    fn new() -> Gpt {
        let mut bytes = vec![0; usize::try_from(DISK).unwrap()];
        for piece in gpt::build(&gpt_layout(512)).unwrap() {
            let at = usize::try_from(piece.offset).unwrap();
            bytes[at..at + piece.bytes.len()].copy_from_slice(&piece.bytes);
        }
        Gpt { bytes }
    }

    fn change_headers(mut self, at: usize, field: &[u8]) -> Gpt {
        for header in [512, self.bytes.len() - 512] {
            self.bytes[header + at..][..field.len()].copy_from_slice(field);
        }
        self.fixed()
    }

    fn change_entry(mut self, number: usize, at: usize, field: &[u8]) -> Gpt {
        for array in [1024, self.bytes.len() - 512 - 16384] {
            self.bytes[array + (number - 1) * 128 + at..][..field.len()].copy_from_slice(field);
        }
        self.fixed()
    }

    fn fixed(mut self) -> Gpt {
        let tail = self.bytes.len() - 512;
        for (header, array) in [(512, 1024), (tail, tail - 16384)] {
            let entries = self.bytes[array..array + 16384].to_vec();
            fix_crcs(&mut self.bytes[header..header + 512], Some(&entries));
        }
        self
    }

    fn read(&self) -> Result<PartitionTable, FormatError> {
        read(&self.bytes, 0).map(|table| table.expect("a table"))
    }

    fn numbers_and_warning(&self) -> (Vec<u32>, String) {
        let table = self.read().unwrap();
        (table.partitions.iter().map(|p| p.number).collect(), table.warnings.join("\n"))
    }
}

#[test]
fn a_gpt_entry_that_overlaps_another_is_left_out_and_named() {
    let (numbers, warning) = Gpt::new().change_entry(2, 32, &2049u64.to_le_bytes()).numbers_and_warning();
    assert_eq!(numbers, [1, 3]);
    assert_eq!(warning, "partition 2 was left out: sectors 2049 to 6143 overlap partition 1 (2048 to 4095)");
}

#[test]
fn a_gpt_entry_outside_the_disk_is_left_out_and_named_with_its_name() {
    let gpt = Gpt::new().change_entry(2, 40, &u64::MAX.to_le_bytes()).change_entry(2, 56, b"\n\0");
    let (numbers, warning) = gpt.numbers_and_warning();
    assert_eq!(numbers, [1, 3]);
    assert_eq!(
        warning,
        "partition 2 (\"\\nwo\") was left out: blocks 4096 to 18446744073709551615 end after the last block of \
         the disk (131071)"
    );
}

#[test]
fn a_gpt_entry_that_ends_before_it_starts_or_covers_the_table_is_left_out() {
    let (numbers, warning) = Gpt::new().change_entry(1, 40, &7u64.to_le_bytes()).numbers_and_warning();
    assert_eq!(numbers, [2, 3]);
    assert!(warning.contains("blocks 2048 to 7 end before they start"), "{warning}");
    let (numbers, warning) = Gpt::new().change_entry(1, 32, &33u64.to_le_bytes()).numbers_and_warning();
    assert_eq!(numbers, [2, 3]);
    assert!(warning.contains("overlap the table itself (blocks 2 to 33)"), "{warning}");
}

#[test]
fn a_gpt_that_is_wrong_in_both_copies_is_an_error_that_names_the_field() {
    let cases: &[(usize, &[u8], &str)] = &[
        (0, b"EFI PORT", "GPT header at 512: signature is \"EFI PORT\", expected \"EFI PART\""),
        (12, &[91, 0, 0, 0], "header size is 91, expected 92 to 512"),
        (12, &[1, 2, 0, 0], "header size is 513, expected 92 to 512"),
        (24, &[7, 0], "own block is 7, expected 1"),
        (40, &[0, 0, 0, 0, 1], "first usable block is 4294967296, expected at most 131038"),
        (
            48,
            &[0, 0, 2, 0],
            "last usable block is 131072, expected at most 131071, the disk's last; the backup",
        ),
        (72, &[1, 0, 0, 0], "first block of the entries is 1, expected 2 or more"),
        (72, &[0xf0, 0xff, 1, 0], "first block of the entries is 131056, expected 2 or more, with 32 blocks"),
        (72, &[0xff; 8], "first block of the entries is 18446744073709551615"),
        (80, &[0, 0, 1, 0], "number of entries is 65536, expected at most 16384, and 4194304 bytes in all"),
        (80, &[0xff; 4], "number of entries is 4294967295"),
        (84, &[0x7f, 0, 0, 0], "entry size is 127, expected 128 times a power of two, at most 4096"),
        (84, &[0, 0, 1, 0], "entry size is 65536"),
        (84, &[0, 0, 0, 0], "entry size is 0"),
    ];
    for (at, field, expected) in cases {
        let error = Gpt::new().change_headers(*at, field).read().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\nexpected {expected}");
        assert!(error.contains("; the backup is no better ("), "{error}");
    }
}

#[test]
fn a_gpt_disk_that_was_cut_is_an_error_that_says_so() {
    let mut gpt = Gpt::new();
    gpt.bytes.truncate(usize::try_from(DISK / 2).unwrap());
    let error = gpt.read().unwrap_err();
    assert_eq!((error.place, error.field), ("GPT header", "last usable block"));
    for size in [512, 513, 1023, 1024, 1535, 1536, 2000] {
        gpt.bytes.truncate(size);
        gpt.bytes.resize(size, 0);
        assert!(gpt.read().is_err(), "{size} bytes");
        gpt = Gpt::new();
    }
}

#[test]
fn a_gpt_with_a_bad_backup_is_used_with_a_warning() {
    let mut gpt = Gpt::new();
    let last = gpt.bytes.len() - 512;
    gpt.bytes[last] = 0;
    let (numbers, warning) = gpt.numbers_and_warning();
    assert_eq!(numbers, [1, 2, 3]);
    assert!(warning.starts_with("backup GPT header at 67108352: signature is"), "{warning}");
    let mut gpt = Gpt::new();
    let array = gpt.bytes.len() - 512 - 16384;
    gpt.bytes[array + 16] ^= 1;
    let entries = gpt.bytes[array..array + 16384].to_vec();
    let last = gpt.bytes.len() - 512;
    fix_crcs(&mut gpt.bytes[last..], Some(&entries));
    assert!(gpt.numbers_and_warning().1.contains("differ though both are valid"));
}

#[test]
fn a_gpt_of_4096_byte_blocks_is_found_with_any_hint() {
    let disk = Sparse::new(DISK, gpt::build(&gpt_layout(4096)).unwrap());
    for hint in [0, 512, 4096, 3] {
        let table = read(&disk, hint).unwrap().unwrap();
        assert_eq!((table.logical_block_size, table.partitions.len(), table.warnings.len()), (4096, 3, 0));
        assert_eq!((table.partitions[1].start_sector, table.partitions[1].sectors), (4096, 2048));
    }
}

#[test]
fn a_gpt_without_a_protective_mbr_is_not_there_as_in_the_kernel() {
    let mut gpt = Gpt::new();
    gpt.bytes[..512].fill(0);
    assert_eq!(read(&gpt.bytes, 0), Ok(None));
}

#[test]
fn warnings_are_bounded_whatever_the_table_holds() {
    let mut gpt = Gpt::new();
    for number in 4..=128 {
        gpt = gpt.change_entry(number, 0, &[1; 56]);
    }
    let table = gpt.read().unwrap();
    assert_eq!((table.partitions.len(), table.warnings.len()), (3, WARNINGS_MAX + 1));
    assert_eq!(table.warnings[WARNINGS_MAX], "61 more warnings were left out");
}

fn mbr_partition(start_sector: u64, sectors: u64) -> MbrPartition {
    MbrPartition { start_sector, sectors, type_id: 0x83, bootable: false }
}

fn mbr_layout(primary: &[(u64, u64)], logical: &[(u64, u64)]) -> mbr::Layout {
    let partitions = |ranges: &[(u64, u64)]| ranges.iter().map(|(s, n)| mbr_partition(*s, *n)).collect();
    let logical: Vec<_> = partitions(logical);
    let extended = ExtendedPartition { start_sector: 60_000, sectors: 60_000, logical };
    mbr::Layout {
        disk_bytes: DISK,
        logical_block_size: 512,
        signature: 0x0bad_cafe,
        primary: partitions(primary),
        extended: Some(extended),
    }
}

/// A disk with an MBR whose sector `sector` has `bytes` at `at` instead.
fn mbr_disk(changes: &[(u64, usize, &[u8])]) -> Sparse {
    let layout = mbr_layout(&[(100, 100), (200, 100)], &[(60_001, 99), (60_201, 99), (60_401, 99)]);
    let mut disk = Sparse::new(DISK, mbr::build(&layout).unwrap());
    for (sector, at, bytes) in changes {
        disk.write(sector * 512 + u64::try_from(*at).unwrap(), bytes.to_vec());
    }
    disk
}

fn numbers_and_warning(disk: &Sparse) -> (Vec<u32>, String) {
    let table = read(disk, 0).unwrap().unwrap();
    (table.partitions.iter().map(|p| p.number).collect(), table.warnings.join("\n"))
}

#[test]
fn a_chain_of_logical_partitions_that_loops_ends_with_a_warning() {
    let disk = mbr_disk(&[(60_200, 446 + 16 + 8, &0u32.to_le_bytes())]);
    let (numbers, warning) = numbers_and_warning(&disk);
    assert_eq!(numbers, [1, 2, 5, 6]);
    assert_eq!(
        warning,
        "the chain of logical partitions ends at sector 60000: the chain loops: this EBR was read before"
    );
}

#[test]
fn a_chain_of_logical_partitions_that_leaves_its_extended_partition_ends_with_a_warning() {
    let disk = mbr_disk(&[(60_200, 446 + 16 + 8, &60_000u32.to_le_bytes())]);
    let (numbers, warning) = numbers_and_warning(&disk);
    assert_eq!(numbers, [1, 2, 5, 6]);
    assert!(
        warning
            .contains("at sector 120000: that lies outside the extended partition (sectors 60000 to 119999)")
    );
    let disk = mbr_disk(&[(60_400, 510, &[0, 0])]);
    assert!(numbers_and_warning(&disk).1.contains("the EBR's signature is 00 00, expected 55 aa"));
}

#[test]
fn an_endless_chain_of_logical_partitions_is_bounded() {
    let mut disk = mbr_disk(&[]);
    for step in 0..5000u32 {
        let mut ebr = vec![0; 512];
        ebr[446 + 4] = 0x05;
        ebr[446 + 8..446 + 16].copy_from_slice(&[(step + 1).to_le_bytes(), 1u32.to_le_bytes()].concat());
        ebr[510..].copy_from_slice(&[0x55, 0xaa]);
        disk.write((60_000 + u64::from(step)) * 512, ebr);
    }
    let (numbers, warning) = numbers_and_warning(&disk);
    assert_eq!(numbers, [1, 2]);
    assert_eq!(
        warning,
        "the chain of logical partitions ends at sector 60512: it is longer than 512 EBRs or 252 partitions"
    );
}

#[test]
fn an_mbr_entry_outside_the_disk_or_over_another_is_left_out_and_the_others_keep_their_numbers() {
    let disk = mbr_disk(&[(0, 446 + 12, &101u32.to_le_bytes()), (60_000, 446 + 12, &u32::MAX.to_le_bytes())]);
    let (numbers, warning) = numbers_and_warning(&disk);
    assert_eq!(numbers, [1, 6, 7]);
    assert!(
        warning.contains("partition 2 was left out: sectors 200 to 299 overlap partition 1 (100 to 200)")
    );
    assert!(warning.contains("partition 5 was left out: sectors 60001 to"), "{warning}");
    let disk = mbr_disk(&[(0, 446 + 8, &u32::MAX.to_le_bytes())]);
    let (numbers, warning) = numbers_and_warning(&disk);
    assert_eq!(numbers, [2, 5, 6, 7]);
    assert_eq!(
        warning,
        "partition 1 was left out: its 100 sectors from 4294967295 do not lie inside the disk (131072 sectors)"
    );
}

fn boot_sector(fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut sector = vec![0; 4096];
    sector[510..512].copy_from_slice(&[0x55, 0xaa]);
    for (at, bytes) in fields {
        sector[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    sector
}

#[test]
fn a_boot_sector_of_a_file_system_is_not_taken_for_an_mbr() {
    // The fields of a FAT: 512 bytes a sector, 4 sectors a cluster, 1 reserved, 2 FATs, media F8.
    let fat: &[u8] = &[0x00, 0x02, 4, 1, 0, 2, 0, 2, 0, 0, 0xf8];
    let plausible_entry: &[u8] = &[0, 0, 0, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0];
    let not_a_table: &[&[(usize, &[u8])]] = &[
        &[(0, &[0xeb, 0x3c, 0x90]), (11, fat)],
        &[(0, &[0xeb, 0x3c, 0x90]), (11, fat), (446, plausible_entry)],
        &[(0, b"\xeb\x52\x90NTFS    "), (446, plausible_entry)],
        &[(0, b"\xeb\x76\x90EXFAT   "), (446, plausible_entry)],
        // Boot code where the entries would be.
        &[(446, b"Remove disks or other media. Press any key"), (440, &[1])],
        // Nothing but the two bytes.
        &[],
    ];
    for fields in not_a_table {
        assert_eq!(read(&boot_sector(fields), 0), Ok(None), "{fields:?}");
    }
    // GRUB's boot code jumps too, and keeps room for a FAT's fields, all zero.
    let grub = boot_sector(&[(0, &[0xeb, 0x63, 0x90]), (446, plausible_entry)]);
    assert_eq!(read(&grub, 0).unwrap().unwrap().partitions.len(), 1);
}

#[test]
fn an_empty_or_tiny_disk_has_no_table() {
    for bytes in [0, 1, 511, 512, 4096] {
        assert_eq!(read(&vec![0; bytes], 0), Ok(None));
    }
}

#[test]
fn layouts_that_do_not_fit_are_refused() {
    let gpt = |partitions: Vec<GptPartition>| {
        let partitions = partitions.into_iter().map(Some).collect();
        gpt::build(&gpt::Layout { partitions, ..gpt_layout(512) }).unwrap_err().to_string()
    };
    assert!(
        gpt(vec![gpt_partition(33, 1, "")])
            .contains("start of a partition is 33, expected sector 34 or later")
    );
    assert!(gpt(vec![gpt_partition(34, 131_039 - 34 + 1, "")]).contains("length of a partition is 131006"));
    assert!(
        gpt(vec![gpt_partition(40, 9, ""), gpt_partition(48, 1, "")]).contains("is 48, expected sector 49")
    );
    assert!(gpt(vec![gpt_partition(40, 0, "")]).contains("length of a partition is 0"));
    assert!(gpt(vec![gpt_partition(40, 1, &"x".repeat(37))]).contains("37 UTF-16 units long"));
    let mbr = |layout: mbr::Layout| mbr::build(&layout).unwrap_err().to_string();
    assert!(mbr(mbr_layout(&[(0, 1)], &[])).contains("start of a partition is 0"));
    assert!(mbr(mbr_layout(&[(1, 1), (3, 1), (5, 1), (7, 1)], &[])).contains("is 5, expected at most 4"));
    assert!(mbr(mbr_layout(&[(1, 70_000)], &[])).contains("is 60000, expected sector 70001 or later"));
    assert!(mbr(mbr_layout(&[], &[(60_000, 1)])).contains("is 60000, expected sector 60001"));
    assert!(mbr(mbr_layout(&[], &[(60_001, 1), (60_002, 1)])).contains("is 60002, expected sector 60003"));
}

/// Ranges one behind the other, from gaps and lengths in units.
fn ranges(steps: &[(u64, u64)], from: u64, unit: u64, gap: u64) -> Vec<(u64, u64)> {
    let mut at = from;
    steps
        .iter()
        .map(|(skip, length)| {
            let start = at + skip * unit;
            at = start + (length + gap) * unit;
            (start, length * unit)
        })
        .collect()
}

proptest! {
    #[test]
    fn a_table_that_was_built_reads_back_as_its_layout(
        primary in proptest::collection::vec((1u64..50, 1u64..50), 0..4),
        logical in proptest::collection::vec((1u64..50, 1u64..50), 0..8),
        big: bool,
    ) {
        let (size, unit) = if big { (4096, 8) } else { (512, 1) };
        let primary = ranges(&primary, unit, unit, 0);
        let logical = ranges(&logical, 60_000, unit, 1);
        let layout = mbr::Layout { logical_block_size: size, ..mbr_layout(&primary, &logical) };
        let disk = Sparse::new(DISK, mbr::build(&layout).unwrap());
        let table = read(&disk, size).unwrap().unwrap();
        let found: Vec<_> = table.partitions.iter().map(|p| (p.number, p.start_sector, p.sectors)).collect();
        let expected: Vec<_> = (1..).zip(&primary).chain((5..).zip(&logical)).map(|(n, r)| (n, r.0, r.1)).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(table.warnings, Vec::<String>::new());

        let partitions = ranges(&[(3, 4), (0, 1)], 2048, unit, 0).into_iter().chain(primary.iter().map(|p| (p.0 + 8192, p.1)));
        let partitions: Vec<_> = partitions.map(|(start, n)| Some(gpt_partition(start, n, "n"))).collect();
        let layout = gpt::Layout { partitions, ..gpt_layout(size) };
        let table = read(&Sparse::new(DISK, gpt::build(&layout).unwrap()), 0).unwrap().unwrap();
        let found: Vec<_> = table.partitions.iter().map(|p| (p.start_sector, p.sectors)).collect();
        let expected: Vec<_> = layout.partitions.iter().flatten().map(|p| (p.start_sector, p.sectors)).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(table.warnings, Vec::<String>::new());
    }

    #[test]
    fn partitions_of_any_bytes_lie_in_the_disk_and_apart(
        entries in proptest::collection::vec((any::<u8>(), 0u32..300, 0u32..300), 4),
        ebrs in proptest::collection::vec((0u64..300, any::<u8>(), 0u32..300, 0u32..300, 0u32..300), 0..20),
    ) {
        let entry = |(kind, start, blocks): (u8, u32, u32)| {
            let kind = if kind % 3 == 0 { 5 } else { kind | 1 };
            [vec![0, 0, 0, 0, kind, 0, 0, 0], start.to_le_bytes().to_vec(), blocks.to_le_bytes().to_vec()].concat()
        };
        let mut bytes = vec![0; 250 * 512];
        for (sector, kind, start, blocks, next) in ebrs.into_iter().filter(|ebr| ebr.0 < 250) {
            let at = usize::try_from(sector * 512).unwrap();
            bytes[at + 446..at + 462].copy_from_slice(&entry((kind, start, blocks)));
            bytes[at + 462..at + 478].copy_from_slice(&entry((0, next, 1)));
            bytes[at + 510..at + 512].copy_from_slice(&[0x55, 0xaa]);
        }
        for (slot, spec) in entries.into_iter().enumerate() {
            bytes[446 + slot * 16..462 + slot * 16].copy_from_slice(&entry(spec));
        }
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        if let Ok(Some(table)) = read(&bytes, 0) {
            let mut owner = vec![0; 250];
            for partition in &table.partitions {
                for sector in partition.start_sector..partition.end_sector() {
                    let owner = &mut owner[usize::try_from(sector).unwrap()];
                    prop_assert_eq!(*owner, 0, "sector {} of partition {}", sector, partition.number);
                    *owner = partition.number;
                }
            }
        }
    }
}

#[test]
fn a_piece_knows_its_end() {
    assert_eq!(Piece { offset: u64::MAX, bytes: vec![0; 3] }.end(), u64::MAX);
}
