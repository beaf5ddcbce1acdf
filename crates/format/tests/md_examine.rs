//! md against mdadm: superblocks that Linux made, and superblocks that we write, are to mdadm what they are to us, line by
//! line of `mdadm --examine` and `--examine-bitmap`; and we write back what we read to the byte.

mod md_lines;
mod tool;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use blockwork_format::md::bitmap::{BitmapSuperblock, Bits};
use blockwork_format::md::v1::{Features, Minor, Region, Reshape, SLOTS_OF_MDADM, Superblock};
use blockwork_format::md::{IN_SYNC, Level, Role, SetName, Time, Uuid, bad_blocks, v0};
use md_lines::{Lines, lines, of_v0, of_v1};

/// What mdadm prints of a file, in UTC.
fn mdadm(options: &[&str], file: &Path) -> String {
    let mut command = Command::new("mdadm");
    let output = tool::output(command.args(options).arg(file).env("TZ", "UTC"), "mdadm");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A sparse disk with these pieces, as `options` make mdadm print it.
fn examine(options: &[&str], sectors: u64, pieces: &[(u64, &[u8])]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mut file = File::create(&path).unwrap();
    file.set_len(sectors * 512).unwrap();
    for (sector, bytes) in pieces {
        file.seek(SeekFrom::Start(sector * 512)).unwrap();
        file.write_all(bytes).unwrap();
    }
    mdadm(options, &path)
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|c| c.to_digit(16)).map(|digit| u8::try_from(digit).unwrap()).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

macro_rules! linux {
    ($name:literal, $sectors:literal) => {
        ($name, $sectors, include_str!(concat!("data/md/", $name, ".hex")))
    };
}

/// Sectors 8 of members that Linux made, and the size of the members; see data/md/README.md.
const OF_LINUX: [(&str, u64, &str); 7] = [
    linux!("r0-2-d0", 98_304),
    linux!("r1-2-bitmap-d0", 98_304),
    linux!("r10-f2-4-d0", 98_304),
    linux!("r10-n2-4-degraded-d3", 98_304),
    linux!("r10-n2-4-spare-d4", 81_920),
    linux!("r10-n3-4-d1", 81_920),
    linux!("r10-o2-4-d0", 98_304),
];

fn of_linux(name: &str) -> (Superblock, u64) {
    let (_, sectors, hex) = OF_LINUX.iter().find(|(found, ..)| *found == name).unwrap();
    (Superblock::decode(&unhex(hex), Minor::V1_2, *sectors).unwrap(), *sectors)
}

#[test]
fn superblocks_that_linux_made_are_to_us_what_they_are_to_mdadm_and_are_written_back_to_the_byte() {
    for (name, sectors, hex) in OF_LINUX {
        let bytes = unhex(hex);
        let superblock = Superblock::decode(&bytes, Minor::V1_2, sectors).unwrap();
        assert_eq!(superblock.encode_blocks(512), bytes, "{name}");
        let printed = examine(&["--examine"], sectors, &[(8, &bytes), (16, &bitmap_of(superblock.set_uuid))]);
        assert_eq!(of_v1(&superblock, sectors), lines(&printed), "{name}");
    }
}

#[test]
fn arrays_that_linux_made_have_the_size_that_linux_gave_them() {
    for (name, bytes) in [
        ("r1-2-bitmap-d0", 49_283_072),
        ("r10-f2-4-d0", 96_468_992),
        ("r10-n2-4-degraded-d3", 98_566_144),
        ("r10-n2-4-spare-d4", 81_788_928),
        ("r10-n3-4-d1", 52_953_088),
        ("r10-o2-4-d0", 98_566_144),
    ] {
        assert_eq!(of_linux(name).0.array_sectors(), Some(bytes / 512), "{name}");
    }
    let (degraded, _) = of_linux("r10-n2-4-degraded-d3");
    // It failed and was removed: its slot is free again.
    assert_eq!(degraded.roles[..4], [Role::Active(0), Role::Active(1), Role::Spare, Role::Active(3)]);
    assert_eq!(degraded.role(), Role::Active(3));
    assert_eq!(of_linux("r10-n2-4-spare-d4").0.role(), Role::Spare);
}

#[test]
fn a_bitmap_that_linux_made_belongs_to_its_array_and_is_written_back_to_the_byte() {
    let (superblock, sectors) = of_linux("r1-2-bitmap-d0");
    let bytes = unhex(include_str!("data/md/r1-2-bitmap-d0.bitmap.hex"));
    let offset = superblock.bitmap_sector().unwrap() * 512;
    assert_eq!(offset, 8192);
    let bitmap = BitmapSuperblock::decode(&bytes, offset).unwrap();
    let room = superblock.bitmap_room_sectors(sectors).unwrap();
    assert_eq!(
        bitmap.check_for(superblock.set_uuid, superblock.sync_sectors().unwrap(), room, offset),
        Ok(())
    );
    let bits = Bits::decode(&bitmap, &bytes[256..], offset).unwrap();
    assert_eq!((bits.chunks(), bits.dirty_chunks(), bitmap.is_stale(superblock.events)), (188, 0, false));
    assert_eq!([&bitmap.encode(), bits.as_bytes()].concat(), bytes[..256 + 24]);
}

/// Without a bitmap where the superblock has one, mdadm takes the superblock for one without.
fn bitmap_of(uuid: Uuid) -> [u8; 256] {
    let bytes = unhex(include_str!("data/md/r1-2-bitmap-d0.bitmap.hex"));
    BitmapSuperblock { uuid, ..BitmapSuperblock::decode(&bytes, 0).unwrap() }.encode()
}

/// What mdadm should print of a bitmap.
fn of_bitmap(bitmap: &BitmapSuperblock, bits: &Bits) -> Lines {
    let (chunks, dirty) = (bits.chunks(), bits.dirty_chunks());
    let percent =
        f64::from(u32::try_from(dirty).unwrap()) * 100.0 / f64::from(u32::try_from(chunks).unwrap());
    let pairs = [
        ("Magic", "6d746962".to_owned()),
        ("Version", bitmap.version.to_string()),
        ("UUID", bitmap.uuid.to_string()),
        ("Events", bitmap.events.to_string()),
        ("Events Cleared", bitmap.events_cleared.to_string()),
        ("State", if bitmap.state & BitmapSuperblock::STALE == 0 { "OK" } else { "Out of date" }.into()),
        ("Chunksize", format!("{} KB", bitmap.chunk_bytes / 1024)),
        ("Daemon", format!("{}s flush period", bitmap.daemon_sleep)),
        (
            "Write Mode",
            match bitmap.write_behind {
                0 => "Normal".into(),
                most => format!("Allow write behind, max {most}"),
            },
        ),
        ("Sync Size", (bitmap.sync_size / 2).to_string()),
        ("Bitmap", format!("{chunks} bits (chunks), {dirty} dirty ({percent:.1}%)")),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

#[test]
fn a_bitmap_that_we_write_is_to_mdadm_what_it_is_to_us() {
    let bytes = unhex(include_str!("data/md/r1-2-bitmap-d0.bitmap.hex"));
    let linux = BitmapSuperblock::decode(&bytes, 0).unwrap();
    let changed = BitmapSuperblock {
        uuid: Uuid(*b"another array's!"),
        events: 1 << 40,
        events_cleared: 99,
        sync_size: 1_000_001 * 2,
        state: BitmapSuperblock::STALE,
        chunk_bytes: 64 << 10,
        daemon_sleep: 30,
        write_behind: 256,
        ..linux.clone()
    };
    for (bitmap, dirty) in
        [(&linux, &[][..]), (&linux, &[0, 7, 8, 187]), (&changed, &[0, 1, 2, 15_000, 15_625])]
    {
        let mut bits = Bits::clean(bitmap.chunks());
        for chunk in dirty {
            assert!(bits.set(*chunk));
        }
        let bytes = [&bitmap.encode(), bits.as_bytes()].concat();
        // A bitmap in a file of its own starts with the file.
        let printed =
            examine(&["--examine-bitmap"], bitmap.disk_sectors().next_multiple_of(8), &[(0, &bytes)]);
        let mut found = lines(&printed);
        found.remove("Filename");
        if let Some(size) = found.get_mut("Sync Size") {
            *size = size.split(" (").next().unwrap().into();
        }
        assert_eq!(of_bitmap(bitmap, &bits), found, "{printed}");
        let all = Bits::dirty(bitmap.chunks());
        assert_eq!(all.dirty_chunks(), bitmap.chunks());
    }
}

const SECTORS: u64 = 4 << 20;

/// A member of a RAID1 of two, at the start of its life.
fn member(minor: Minor) -> Superblock {
    let super_offset = minor.sector(SECTORS).unwrap();
    let (data_offset, data_size) = match minor {
        Minor::V1_0 => (0, super_offset - 264),
        Minor::V1_1 | Minor::V1_2 => (4096, SECTORS - 4096),
    };
    let mut roles = vec![Role::Spare; SLOTS_OF_MDADM];
    (roles[0], roles[1]) = (Role::Active(0), Role::Active(1));
    Superblock {
        minor,
        features: Features::default(),
        set_uuid: Uuid(*b"\x01\x23\x45\x67\x89\xab\xcd\xef0123abcd"),
        set_name: SetName::new("elsewhere:data").unwrap(),
        ctime: Time::new(1_709_210_096, 0),
        level: Level::Raid1,
        layout: 0,
        size: data_size,
        chunk_sectors: 0,
        raid_disks: 2,
        bitmap_offset: 0,
        reshape: Reshape::default(),
        data_offset,
        data_size,
        super_offset,
        recovery_offset: 0,
        dev_number: 1,
        corrected_errors: 0,
        device_uuid: Uuid([0xab; 16]),
        devflags: 0,
        bblog_shift: 0,
        bblog_sectors: 8,
        bblog_offset: if minor == Minor::V1_0 { -8 } else { 16 },
        utime: Time::new(1_735_689_599, 999_999),
        events: 5,
        resync_offset: IN_SYNC,
        logical_block_size: 0,
        roles,
        reserved: [0; 32],
    }
}

fn raid10(layout: u32, disks: u16) -> Superblock {
    let mut superblock = member(Minor::V1_2);
    for (role, place) in superblock.roles.iter_mut().zip(0..disks) {
        *role = Role::Active(place);
    }
    Superblock { level: Level::Raid10, layout, chunk_sectors: 1024, raid_disks: disks.into(), ..superblock }
}

#[test]
fn superblocks_that_we_write_are_to_mdadm_what_they_are_to_us() {
    type Change = fn(&mut Superblock);
    let changes: [(&str, Change); 14] = [
        ("as it is", |_| {}),
        ("unclean", |s| (s.resync_offset, s.events) = (0, u64::from(u32::MAX) + 7)),
        ("a bitmap", |s| {
            s.features = Features::BITMAP;
            s.bitmap_offset = if s.minor == Minor::V1_0 { -16 } else { 8 };
        }),
        ("bad blocks", |s| s.features = Features::BAD_BLOCKS),
        ("no room for bad blocks", |s| (s.bblog_offset, s.bblog_sectors) = (0, 0)),
        ("recovering", |s| (s.features, s.recovery_offset) = (Features::RECOVERY_OFFSET, 123_456)),
        ("smaller than its device", |s| s.size -= 8192),
        ("flags", |s| s.devflags = Superblock::WRITE_MOSTLY | Superblock::FAILFAST),
        ("a spare", |s| s.dev_number = 5),
        ("degraded", |s| s.roles[0] = Role::Faulty),
        ("replacing", |s| {
            (s.features, s.dev_number) = (Features::REPLACEMENT | Features::RECOVERY_OFFSET, 2);
            s.roles[2] = Role::Active(1);
        }),
        ("RAID0", |s| (s.level, s.size, s.chunk_sectors) = (Level::Raid0, 0, 256)),
        ("RAID0 with a layout", |s| {
            (s.level, s.size, s.chunk_sectors) = (Level::Raid0, 0, 1024);
            (s.layout, s.features) = (2, Features::RAID0_LAYOUT);
        }),
        ("all slots", |s| s.roles.resize(1920, Role::Faulty)),
    ];
    for minor in Minor::ALL {
        for (what, change) in changes {
            let mut superblock = member(minor);
            change(&mut superblock);
            // 3,840 more bytes reach into what is 16 sectors behind, or, for mdadm, in the way of 1.0.
            if superblock.roles.len() > SLOTS_OF_MDADM && minor == Minor::V1_0 {
                superblock.bblog_offset = -8;
            }
            agree(&superblock, &format!("{minor}, {what}"));
        }
    }
}

#[test]
fn layouts_of_raid10_that_we_write_are_to_mdadm_what_they_are_to_us() {
    for (layout, disks) in
        [(0x102, 2), (0x102, 5), (0x103, 4), (0x201, 4), (0x301, 5), (0x1_0201, 5), (0x1_0301, 7), (0x202, 6)]
    {
        agree(&raid10(layout, disks), &format!("{layout:#x} on {disks}"));
    }
}

fn agree(superblock: &Superblock, what: &str) {
    superblock.check(SECTORS).unwrap_or_else(|error| panic!("{what}: {error}"));
    let bytes = superblock.encode_blocks(512);
    let mut pieces = vec![(superblock.super_offset, &bytes[..])];
    let bitmap = bitmap_of(superblock.set_uuid);
    pieces.extend(superblock.bitmap_sector().map(|sector| (sector, &bitmap[..])));
    let printed = examine(&["--examine"], SECTORS, &pieces);
    assert_eq!(of_v1(superblock, SECTORS), lines(&printed), "{what}\n{printed}");
}

#[test]
fn a_flipped_bit_is_to_mdadm_what_it_is_to_us() {
    let superblock = member(Minor::V1_2);
    let mut bytes = superblock.encode();
    bytes[205] ^= 4;
    let error = Superblock::decode(&bytes, Minor::V1_2, SECTORS).unwrap_err();
    let printed = examine(&["--examine"], SECTORS, &[(8, &bytes)]);
    let (stored, computed) = (superblock.checksum(), error.expected.trim_start_matches("0x"));
    assert_eq!(lines(&printed)["Checksum"], format!("{stored:x} - expected {computed}"));
}

#[test]
fn bad_blocks_that_we_write_are_those_that_mdadm_lists() {
    let superblock = Superblock { features: Features::BAD_BLOCKS, ..member(Minor::V1_2) };
    let list = [Region { start: 4096, sectors: 8 }, Region { start: 100_000, sectors: 1 }];
    let log = superblock.bad_block_log().unwrap();
    let bytes = bad_blocks::encode(&list, superblock.bblog_shift, superblock.bblog_sectors).unwrap();
    assert_eq!(bad_blocks::decode(&bytes, 0, log.start * 512, SECTORS).unwrap(), list);
    let pieces = [(8, &superblock.encode_blocks(512)[..]), (log.start, &bytes[..])];
    let printed = examine(&["--examine-badblocks"], SECTORS, &pieces);
    let listed: Vec<Vec<u64>> = printed
        .lines()
        .filter_map(|line| line.trim().strip_suffix(" sectors"))
        .map(|line| line.split(" for ").map(|number| number.parse().unwrap()).collect())
        .collect();
    assert_eq!(listed, [[4096, 8], [100_000, 1]], "{printed}");
}

/// A 0.90 superblock of a member of an array of two, in the byte order that `put` has.
fn old(level: i32, layout: u32, chunk: u32, state: u32, put: fn(u32) -> [u8; 4]) -> Vec<u8> {
    let big = put(1) == [0, 0, 0, 1];
    let (low, high) = if big { (40, 39) } else { (39, 40) };
    let mut words = [0u32; 1024];
    let values = [
        (0, 0xa92b_4efc),
        (2, 90),
        (5, 0x0123_4567),
        (6, 1_000_000_000),
        (7, level.cast_unsigned()),
        (8, if level == 0 { 0 } else { 1_000_000 }),
        (9, 2),
        (10, 2),
        (11, 3),
        (13, 0x89ab_cdef),
        (14, 0xfeed_f00d),
        (15, 0x0bad_cafe),
        (32, 1_100_000_000),
        (33, state),
        (34, 2),
        (35, 2),
        (low, 77),
        (high, 2),
        (64, layout),
        (65, chunk),
    ];
    for (word, value) in values {
        words[word] = value;
    }
    for (at, number) in [(128, 0), (160, 1), (992, 1)] {
        words[at..at + 5].copy_from_slice(&[number, 8, 16 * (number + 1), number, 6]);
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| put(*word)).collect();
    v0::fix_checksum(&mut bytes);
    bytes
}

#[test]
fn superblocks_0_90_are_to_us_what_they_are_to_mdadm_in_both_byte_orders() {
    let sectors = SECTORS + 77;
    let sector = v0::sector(sectors).unwrap();
    assert_eq!(sector, SECTORS - 128);
    for (level, layout, chunk, state, array_kib) in [
        (1, 0, 0, 1, 1_000_000),
        (1, 0, 0, 0, 1_000_000),
        (1, 0, 0, 1 | 1 << 8, 1_000_000),
        (10, 0x102, 65_536, 1, 1_000_000),
        (10, 0x201, 65_536, 1, 1_000_000),
    ] {
        for (options, put) in [
            (&["--examine"][..], u32::to_le_bytes as fn(u32) -> [u8; 4]),
            (&["--examine", "-e", "0.swap"], u32::to_be_bytes),
        ] {
            if state & 1 << 8 != 0 && options.len() > 1 {
                // mdadm does not swap the bitmap's UUID, and so finds none.
                continue;
            }
            let bytes = old(level, layout, chunk, state, put);
            let superblock = v0::Superblock::decode(&bytes, sectors).unwrap();
            assert_eq!((superblock.events, superblock.role()), (2 << 32 | 77, Role::Active(1)));
            assert_eq!((superblock.member_sectors(), superblock.data().end()), (2_000_000, sector));
            let bitmap = bitmap_of(superblock.bitmap_uuid());
            let printed = examine(options, sectors, &[(sector, &bytes), (sector + 8, &bitmap)]);
            assert_eq!(of_v0(&superblock, array_kib), lines(&printed), "{printed}");
        }
    }
}
