//! Superblocks 1.x: every field comes back, every flipped bit is seen, and each thing that cannot be true is named.

use proptest::prelude::*;

use super::*;
use crate::ErrorKind;
use crate::md::{IN_SYNC, find};
use crate::source::{Piece, Sparse};

const DEVICE_SECTORS: u64 = 98_304;

/// A member as mdadm makes them by default: RAID10 n2 on 4 disks, version 1.2.
fn sample() -> Superblock {
    let mut roles = vec![Role::Spare; SLOTS_OF_MDADM];
    for (place, role) in (0..).zip(&mut roles[..4]) {
        *role = Role::Active(place);
    }
    Superblock {
        minor: Minor::V1_2,
        features: Features::default(),
        set_uuid: Uuid(*b"0123456789abcdef"),
        set_name: SetName::new("host:name").unwrap(),
        ctime: Time::new(1_700_000_000, 5),
        level: Level::Raid10,
        layout: 0x102,
        size: 96_256,
        chunk_sectors: 128,
        raid_disks: 4,
        bitmap_offset: 0,
        reshape: Reshape::default(),
        data_offset: 2048,
        data_size: 96_256,
        super_offset: 8,
        recovery_offset: 0,
        dev_number: 2,
        corrected_errors: 0,
        device_uuid: Uuid([9; 16]),
        devflags: 0,
        bblog_shift: 0,
        bblog_sectors: 8,
        bblog_offset: 16,
        utime: Time::new(1_700_000_100, 0),
        events: 17,
        resync_offset: IN_SYNC,
        logical_block_size: 0,
        roles,
        reserved: [0; 32],
    }
}

fn decode(superblock: &Superblock) -> Result<Superblock, FormatError> {
    Superblock::decode(&superblock.encode(), superblock.minor, DEVICE_SECTORS)
}

#[test]
fn a_superblock_is_in_the_place_of_its_version() {
    for (minor, device, sector) in [
        (Minor::V1_0, 98_304, Some(98_288)),
        (Minor::V1_0, 98_311, Some(98_288)),
        (Minor::V1_0, 98_312, Some(98_296)),
        (Minor::V1_1, 98_304, Some(0)),
        (Minor::V1_2, 98_304, Some(8)),
        (Minor::V1_2, 16, Some(8)),
        (Minor::V1_0, 15, None),
    ] {
        assert_eq!(minor.sector(device), sector, "{minor} of {device}");
    }
}

#[test]
fn what_a_superblock_tells_follows_from_its_fields() {
    let superblock = sample();
    assert_eq!(superblock.role(), Role::Active(2));
    assert_eq!(superblock.array_sectors(), Some(2 * 96_256));
    assert_eq!(superblock.data(), Region { start: 2048, sectors: 96_256 });
    assert_eq!(superblock.own(), Region { start: 8, sectors: 1 });
    assert_eq!(superblock.bad_block_log(), Some(Region { start: 24, sectors: 8 }));
    assert_eq!((superblock.bitmap_sector(), superblock.recovered_sectors()), (None, IN_SYNC));
    assert!(superblock.is_clean());
    assert!(!Superblock { resync_offset: 0, ..sample() }.is_clean());
    assert!(Superblock { level: Level::Raid0, resync_offset: 0, ..sample() }.is_clean());
    assert_eq!(Superblock { dev_number: 128, ..sample() }.role(), Role::Spare);
    let recovering = Superblock { features: Features::RECOVERY_OFFSET, recovery_offset: 4096, ..sample() };
    assert_eq!(recovering.recovered_sectors(), 4096);
    let bitmap = Superblock { features: Features::BITMAP, bitmap_offset: 8, ..sample() };
    // Up to the list of bad blocks.
    assert_eq!((bitmap.bitmap_sector(), bitmap.bitmap_room_sectors(DEVICE_SECTORS)), (Some(16), Some(8)));
}

#[test]
fn blocks_of_a_disk_are_filled_with_zeros() {
    let superblock =
        Superblock { roles: vec![Role::Active(0), Role::Active(1), Role::Active(2)], ..sample() };
    let bytes = superblock.encode();
    assert_eq!(bytes.len(), 262);
    for (block, len) in [(512, 512), (4096, 4096)] {
        let blocks = superblock.encode_blocks(block);
        assert_eq!((blocks.len(), &blocks[..262]), (len, &bytes[..]));
        assert!(blocks[262..].iter().all(|byte| *byte == 0));
        assert_eq!(Superblock::decode(&blocks, Minor::V1_2, DEVICE_SECTORS).unwrap(), superblock);
    }
}

#[test]
fn an_error_names_place_offset_field_found_and_expected() {
    let mut bytes = sample().encode();
    bytes[200] ^= 1;
    let error = Superblock::decode(&bytes, Minor::V1_2, DEVICE_SECTORS).unwrap_err();
    let sum = sample().checksum();
    assert_eq!(
        error.to_string(),
        format!("md superblock at 4096: checksum is {sum:#010x}, expected {:#010x}", sum - 1)
    );
}

#[test]
fn what_cannot_be_true_is_an_error_that_names_the_field() {
    type Change = fn(&mut Superblock);
    use ErrorKind::{Invalid, Limit, Unsupported};
    let changes: &[(&str, ErrorKind, Change)] = &[
        ("super_offset", Invalid, |s| s.super_offset = 0),
        ("feature map", Unsupported, |s| s.features = Features(1 << 13)),
        ("feature map", Invalid, |s| s.features = Features::RAID0_LAYOUT),
        ("raid_disks", Invalid, |s| s.raid_disks = 0),
        ("raid_disks", Limit, |s| s.raid_disks = 1921),
        ("chunk", Invalid, |s| s.chunk_sectors = 0),
        ("chunk", Invalid, |s| s.chunk_sectors = 4),
        ("chunk", Invalid, |s| s.chunk_sectors = 96),
        ("chunk", Limit, |s| s.chunk_sectors = 1 << 31),
        ("chunk", Invalid, |s| (s.level, s.chunk_sectors) = (Level::Raid0, 0)),
        ("layout", Invalid, |s| s.layout = 0x105),
        ("data_size", Invalid, |s| s.data_size = 9),
        ("data_size", Invalid, |s| s.data_size += 1),
        ("data_size", Invalid, |s| s.data_offset = u64::MAX),
        ("data_size", Invalid, |s| s.data_size = u64::MAX),
        ("size", Invalid, |s| s.size += 1),
        ("size", Invalid, |s| s.size = 0),
        ("role of this device", Invalid, |s| s.raid_disks = 2),
        ("data_offset", Invalid, |s| s.data_offset = 8),
        ("data_offset", Invalid, |s| s.data_offset = 0),
        ("bblog_shift", Limit, |s| s.bblog_shift = 21),
        ("bblog_size", Limit, |s| s.bblog_sectors = 9),
        ("bblog_offset", Invalid, |s| s.bblog_offset = -9),
        ("bblog_offset", Invalid, |s| (s.bblog_offset, s.features) = (0, Features::BAD_BLOCKS)),
        ("bblog_offset", Invalid, |s| s.bblog_offset = 2033),
        ("bblog_offset", Invalid, |s| s.bblog_offset = i32::MAX),
        ("bblog_offset", Invalid, |s| s.bblog_offset = -1),
        ("bitmap_offset", Invalid, |s| (s.bitmap_offset, s.features) = (0, Features::BITMAP)),
        ("bitmap_offset", Invalid, |s| (s.bitmap_offset, s.features) = (-9, Features::BITMAP)),
        ("bitmap_offset", Invalid, |s| (s.bitmap_offset, s.features) = (23, Features::BITMAP)),
        ("bitmap_offset", Invalid, |s| (s.bitmap_offset, s.features) = (2040, Features::BITMAP)),
        ("bitmap_offset", Invalid, |s| (s.bitmap_offset, s.features) = (i32::MAX, Features::BITMAP)),
    ];
    assert_eq!(decode(&sample()), Ok(sample()));
    for (at, (field, kind, change)) in changes.iter().enumerate() {
        let mut superblock = sample();
        change(&mut superblock);
        let error = decode(&superblock).expect_err(field);
        assert_eq!((error.field, error.kind), (*field, *kind), "change {at}: {error}");
    }
}

#[test]
fn bytes_that_are_no_superblock_are_errors() {
    let good = sample().encode();
    let changed = |at: usize, bytes: &[u8]| {
        let mut all = good.clone();
        put(&mut all, at, bytes);
        fix_checksum(&mut all);
        Superblock::decode(&all, Minor::V1_2, DEVICE_SECTORS).unwrap_err().field
    };
    assert_eq!(changed(0, &[0]), "magic");
    assert_eq!(changed(4, &[2]), "major version");
    assert_eq!(changed(220, &1921u32.to_le_bytes()), "max_dev");
    assert_eq!(changed(220, &129u32.to_le_bytes()), "max_dev");
    assert_eq!(Superblock::decode(&good[..255], Minor::V1_2, DEVICE_SECTORS).unwrap_err().field, "size");
    assert_eq!(Superblock::decode(&good, Minor::V1_2, 15).unwrap_err().field, "device");
}

#[test]
fn what_is_not_supported_is_decoded_and_refused_when_it_is_to_be_used() {
    type Change = fn(&mut Superblock);
    let changes: [(&str, bool, Change); 8] = [
        ("feature map", true, |s| (s.level, s.layout, s.features) = (Level::Raid5, 2, Features::PPL)),
        ("level", false, |s| s.level = Level::Other(-4)),
        ("feature map", false, |s| s.features = Features::RESHAPE_ACTIVE),
        ("feature map", false, |s| s.features = Features::CLUSTERED),
        ("feature map", false, |s| s.features = Features::JOURNAL),
        ("feature map", true, |s| s.features = Features::NEW_OFFSET),
        ("feature map", true, |s| s.features = Features::RESHAPE_BACKWARDS),
        ("unnamed bytes", true, |s| s.reserved[31] = 1),
    ];
    for (field, readable, change) in changes {
        let mut superblock = sample();
        change(&mut superblock);
        let superblock = decode(&superblock).unwrap();
        assert_eq!(superblock.supports(Access::Read).is_ok(), readable, "{field}");
        let error = superblock.supports(Access::Write).unwrap_err();
        assert_eq!((error.field, error.kind), (field, ErrorKind::Unsupported));
        assert!(error.remedy.is_some());
    }
    assert_eq!(sample().supports(Access::Write), Ok(()));
    let linear = decode(&Superblock { level: Level::Linear, ..sample() }).unwrap();
    assert_eq!(linear.supports(Access::Write), Ok(()));
}

#[test]
fn a_journal_is_recognised_by_its_role() {
    let mut superblock = sample();
    superblock.roles[2] = Role::Journal;
    (superblock.features, superblock.recovery_offset) = (Features::RECOVERY_OFFSET, 77);
    let superblock = decode(&superblock).unwrap();
    assert!(superblock.supports(Access::Read).is_err());
    assert_eq!(superblock.recovered_sectors(), IN_SYNC);
}

#[test]
fn all_superblocks_of_a_device_are_found_and_the_array_created_last_counts() {
    let at_the_end = Superblock {
        minor: Minor::V1_0,
        super_offset: DEVICE_SECTORS - 16,
        data_offset: 0,
        size: 65_536,
        data_size: 65_536,
        bblog_offset: -8,
        ctime: Time::new(1_800_000_000, 0),
        ..sample()
    };
    let mut device = Sparse::new(DEVICE_SECTORS * 512, Vec::new());
    assert_eq!(find(&device), crate::md::Found::default());
    device.write(4096, sample().encode());
    device.write((DEVICE_SECTORS - 16) * 512, at_the_end.encode());
    let found = find(&device);
    let versions: Vec<_> = found.superblocks.iter().map(|superblock| superblock.version()).collect();
    assert_eq!((versions, found.refused.len()), (vec!["1.2", "1.0"], 0));
    assert_eq!(found.newest().unwrap().ctime_seconds(), 1_800_000_000);

    // The same end seen through a larger disk: refused, with a remedy, as for the disk that a partition ends.
    let mut disk = Sparse::new((DEVICE_SECTORS + 2048) * 512, Vec::new());
    disk.write((DEVICE_SECTORS + 2048 - 16) * 512, at_the_end.encode());
    let found = find(&disk);
    assert!(found.superblocks.is_empty());
    assert_eq!(found.refused[0].field, "super_offset");
    for size in [0, 1, 15 * 512, 16 * 512, 16 * 512 + 1, 127 * 512, 128 * 512] {
        assert_eq!(find(&Sparse::new(size, Vec::new())), crate::md::Found::default(), "{size}");
    }
}

#[test]
fn a_place_that_cannot_be_read_is_told() {
    struct Broken;
    impl crate::Source for Broken {
        fn size(&self) -> u64 {
            1 << 30
        }
        fn read_at(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
            Err(std::io::Error::other("a bad disk"))
        }
    }
    let found = find(&Broken);
    assert_eq!((found.superblocks.len(), found.refused.len()), (0, 4));
    assert!(found.refused[1].to_string().starts_with("md superblock at 4096: cannot be read: a bad disk"));
    let piece = Piece { offset: 0, bytes: vec![0xff; 65_536] };
    assert_eq!(find(&Sparse::new(1 << 30, vec![piece])), crate::md::Found::default());
}

prop_compose! {
    /// Superblocks that can be true on a device of [`DEVICE_SECTORS`], with anything in the fields that are free.
    fn any_superblock()(
        ids: ([u8; 16], [u8; 16], [u8; 32], [u8; 28]),
        times in (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()),
        numbers in proptest::array::uniform6(any::<u32>()),
        signed in proptest::array::uniform3(any::<i32>()),
        flags in (any::<u8>(), 0u8..=20, 0u16..=8, 0u32..1 << 12),
        place in 0usize..3, level in 0usize..5,
        (data, slots) in (10u64..60_000, proptest::collection::vec(any::<u16>(), 0..1920)),
        (size, chunk, disks) in (1u64..10, 3u32..20, 2u32..100),
    ) -> Superblock {
        let minor = Minor::ALL[place];
        let super_offset = minor.sector(DEVICE_SECTORS).unwrap();
        let side = if minor == Minor::V1_0 { -1 } else { 1 };
        let roles: Vec<Role> = slots.into_iter().map(Role::from).collect();
        let mut superblock = Superblock {
            minor,
            features: Features(flags.3),
            set_uuid: Uuid(ids.0),
            set_name: SetName(ids.2),
            ctime: Time(times.0),
            level: [Level::Raid0, Level::Raid1, Level::Raid10, Level::Raid5, Level::Other(-4)][level],
            layout: 0x102,
            size,
            chunk_sectors: 1 << chunk,
            raid_disks: disks,
            bitmap_offset: side * 24,
            reshape: Reshape {
                new_level: signed[0],
                position: times.4,
                delta_disks: signed[1],
                new_layout: numbers[0],
                new_chunk_sectors: numbers[1],
                new_offset: signed[2],
            },
            data_offset: if minor == Minor::V1_0 { 0 } else { 2048 },
            data_size: data,
            super_offset,
            recovery_offset: times.1,
            // Beyond all slots: a spare, whatever the roles.
            dev_number: numbers[2] | 2048,
            corrected_errors: numbers[3],
            device_uuid: Uuid(ids.1),
            devflags: flags.0,
            bblog_shift: flags.1,
            bblog_sectors: flags.2,
            bblog_offset: side * 32,
            utime: Time(times.2),
            events: times.3,
            resync_offset: times.1.rotate_left(7),
            logical_block_size: numbers[4],
            roles,
            reserved: [0; 32],
        };
        superblock.reserved[..28].copy_from_slice(&ids.3);
        if superblock.bblog_sectors == 0 {
            superblock.features = superblock.features.with(Features::BAD_BLOCKS, false);
        }
        superblock
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_superblock_that_is_written_reads_back_to_the_byte(superblock in any_superblock()) {
        let bytes = superblock.encode();
        prop_assert_eq!(bytes.len(), superblock.encoded_bytes());
        let read = decode(&superblock);
        prop_assert_eq!(read.as_ref(), Ok(&superblock));
        prop_assert_eq!(read.unwrap().encode(), bytes);
    }

    #[test]
    fn any_flipped_bit_of_a_superblock_is_an_error(superblock in any_superblock(), seed: usize) {
        let bytes = superblock.encode();
        let bits = bytes.len() * 8;
        for step in 0..200 {
            let bit = seed.wrapping_add(step * 997) % bits;
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let read = Superblock::decode(&flipped, superblock.minor, DEVICE_SECTORS);
            prop_assert!(read.is_err(), "bit {} of byte {}", bit % 8, bit / 8);
        }
    }

    #[test]
    fn any_bytes_are_a_superblock_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..4096), place in 0usize..3) {
        if bytes.len() >= 256 {
            put(&mut bytes, 0, &MAGIC.to_le_bytes());
            put(&mut bytes, 4, &1u32.to_le_bytes());
            put(&mut bytes, 221, &[0, 0, 0]);
            fix_checksum(&mut bytes);
        }
        if let Ok(read) = Superblock::decode(&bytes, Minor::ALL[place], DEVICE_SECTORS) {
            prop_assert!(read.data().end() <= DEVICE_SECTORS);
        }
    }
}

#[test]
fn every_single_bit_of_a_superblock_is_covered() {
    let bytes = sample().encode();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let read = Superblock::decode(&flipped, Minor::V1_2, DEVICE_SECTORS);
        assert!(read.is_err(), "bit {} of byte {}", bit % 8, bit / 8);
    }
}
