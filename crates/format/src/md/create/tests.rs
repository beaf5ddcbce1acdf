//! New arrays: as mdadm makes them, refused by their reasons, and read back whatever their shape.

use super::*;
use proptest::prelude::*;

const GIB: u64 = 1 << 21;

fn array(shape: Shape, raid_disks: u16) -> NewArray {
    NewArray {
        minor: Minor::V1_2,
        shape,
        raid_disks,
        bitmap: BitmapChoice::Auto,
        assume_clean: false,
        size: None,
        data_offset: None,
        uuid: Uuid([7; 16]),
        name: SetName::new("data").unwrap(),
        ctime: Time::new(1_800_000_000, 0),
    }
}

fn raid10(name: &str, disks: u16) -> NewArray {
    let layout = Raid10Layout::from_short_name(name, disks.into()).unwrap();
    array(Shape::Raid10 { layout, chunk_sectors: 1024 }, disks)
}

fn parity(level: Level, name: &str, disks: u16) -> NewArray {
    let layout = ParityLayout::from_name(level, name, disks).unwrap();
    array(Shape::Parity { layout, chunk_sectors: 1024 }, disks)
}

fn devices(sectors: &[u64]) -> Vec<Option<NewDevice>> {
    let device = |(nth, sectors): (u8, &u64)| {
        (*sectors > 0).then_some(NewDevice { sectors: *sectors, uuid: Uuid([nth; 16]) })
    };
    (1..).zip(sectors).map(device).collect()
}

/// Start of the data, sectors for data, used of these.
fn offsets(array: &NewArray, sectors: &[u64]) -> Vec<(u64, u64, u64)> {
    let members = array.lay_out(&devices(sectors)).unwrap();
    members.iter().map(|it| &it.superblock).map(|it| (it.data_offset, it.data_size, it.size)).collect()
}

/// mdadm 4.2 made arrays of these shapes, and said so of their first member with `--examine`.
#[test]
fn data_begins_where_mdadm_begins_it() {
    for (mib, chunk, offset) in [
        (48, 1024, 4096),
        (96, 1024, 4096),
        (200, 8, 2048),
        (2 << 10, 1024, 6144),
        (8 << 10, 1024, 18_432),
        (9 << 10, 1024, 18_432),
        (100 << 10, 1024, 133_120),
        (128 << 10, 1024, 264_192),
        (2_000_000, 1024, 264_192),
    ] {
        assert_eq!(usual_data_offset(mib * MIB, chunk), offset, "{mib} MiB, chunk {chunk}");
    }
}

#[test]
fn sizes_are_the_least_that_all_have_in_whole_units() {
    let mirror = array(Shape::Raid1, 2);
    assert_eq!(offsets(&mirror, &[200_000, 300_000])[0].2 % RAID1_UNIT, 0);
    let [(first, room, used), (second, _, same)] = offsets(&mirror, &[200_000, 300_000])[..] else {
        panic!()
    };
    assert_eq!((first, used), (second, same));
    assert!(room - used < RAID1_UNIT);
    let striped = NewArray { size: Some(5000), ..raid10("n2", 2) };
    assert_eq!(offsets(&striped, &[200_000, 200_000])[0].2, 4096);
    let five = parity(Level::Raid5, "ls", 3);
    assert_eq!(offsets(&five, &[300_000, 200_000, 300_000])[1], (4096, 195_904, 195_584));
    let superblock = five.lay_out(&devices(&[300_000; 3])).unwrap().remove(0).superblock;
    assert_eq!(superblock.array_sectors(), Some(2 * superblock.size));
    let raid0 = array(Shape::Raid0 { chunk_sectors: 1024 }, 2);
    assert_eq!(offsets(&raid0, &[200_000, 300_000]), [(4096, 195_904, 0), (4096, 295_904, 0)]);
}

#[test]
fn a_raid0_names_its_layout_only_where_that_matters() {
    let raid0 = array(Shape::Raid0 { chunk_sectors: 1024 }, 2);
    for (sectors, features) in
        [([200_000, 200_700], Features::default()), ([200_000, 201_800], Features::RAID0_LAYOUT)]
    {
        for member in raid0.lay_out(&devices(&sectors)).unwrap() {
            assert_eq!((member.superblock.features, member.superblock.layout), (features, 1));
            assert!(member.superblock.is_clean() && member.bitmap.is_none());
        }
    }
}

#[test]
fn large_members_get_a_bitmap_and_others_where_it_is_wanted() {
    let has =
        |array: &NewArray, gib: u64| array.lay_out(&devices(&[gib * GIB; 4])).unwrap()[0].bitmap.is_some();
    assert_eq!([99, 102].map(|gib| has(&raid10("n2", 4), gib)), [false, true]);
    assert!(has(&NewArray { bitmap: BitmapChoice::Internal, ..raid10("n2", 4) }, 1));
    assert!(!has(&NewArray { bitmap: BitmapChoice::None, ..raid10("n2", 4) }, 102));
    // Where there is no room for more than 1,046,528 bits, each covers more.
    let (bitmap, _) =
        raid10("n2", 4).lay_out(&devices(&[40_000 * GIB; 4])).unwrap().remove(0).bitmap.unwrap();
    assert_eq!((bitmap.chunk_bytes, bitmap.chunks()), (128 << 20, 639_998));
}

#[test]
fn all_bits_are_set_until_a_resync_or_none_where_nobody_minds() {
    let dirty = NewArray { bitmap: BitmapChoice::Internal, ..raid10("f2", 3) };
    let clean = NewArray { assume_clean: true, ..dirty.clone() };
    let five = NewArray { bitmap: BitmapChoice::Internal, ..parity(Level::Raid5, "ls", 3) };
    let clean_five = NewArray { assume_clean: true, ..five.clone() };
    for (array, resync_offset, all) in
        [(dirty, 0, true), (clean, IN_SYNC, false), (five, 0, true), (clean_five, IN_SYNC, false)]
    {
        let member = array.lay_out(&devices(&[GIB; 3])).unwrap().remove(1);
        let (bitmap, bits) = member.bitmap.clone().unwrap();
        assert_eq!(member.superblock.resync_offset, resync_offset);
        assert_eq!(bits.dirty_chunks(), if all { bits.chunks() } else { 0 });
        assert_eq!(Some(bitmap.sync_size), member.superblock.sync_sectors());
        assert!(!array.shape.level().has_parity() || bitmap.sync_size == member.superblock.size);
        let [(at, bytes), (log, entries)] = &member.before_superblock()[..] else { panic!() };
        assert_eq!((*at, bytes.len(), *log), (16, 4096, 24));
        assert!(entries.len() == 4096 && entries.iter().all(|byte| *byte == 0xff));
        assert_eq!(BitmapSuperblock::decode(bytes, 0).unwrap(), bitmap);
    }
}

#[test]
fn spares_wait_and_missing_members_have_a_place() {
    let members = raid10("n2", 4).lay_out(&devices(&[GIB, 0, GIB, GIB, GIB])).unwrap();
    assert_eq!(members.iter().map(|it| it.slot).collect::<Vec<_>>(), [0, 2, 3, 4]);
    let roles: Vec<Role> = members.iter().map(|it| it.superblock.role()).collect();
    assert_eq!(roles, [Role::Active(0), Role::Active(2), Role::Active(3), Role::Spare]);
    assert_eq!(members[0].superblock.roles[..3], [Role::Active(0), Role::Spare, Role::Active(2)]);
    assert_eq!(members[0].superblock.roles.len(), 128);
    let many = array(Shape::Raid1, 200).lay_out(&devices(&[GIB; 200])).unwrap();
    assert_eq!(many[199].superblock.roles.len(), 384);
}

/// Places and spares, and whether nothing is to be resynced.
fn begins(array: &NewArray, sectors: &[u64]) -> (Vec<Role>, bool) {
    let members =
        NewArray { bitmap: BitmapChoice::Internal, ..array.clone() }.lay_out(&devices(sectors)).unwrap();
    let superblocks: Vec<&Superblock> = members.iter().map(|member| &member.superblock).collect();
    let is_in_sync = superblocks[0].resync_offset == IN_SYNC;
    for member in &members {
        assert_eq!(
            (member.superblock.is_clean(), &member.superblock.roles),
            (is_in_sync, &superblocks[0].roles)
        );
        let (_, bits) = member.bitmap.as_ref().unwrap();
        assert_eq!(bits.dirty_chunks(), if is_in_sync { 0 } else { bits.chunks() });
    }
    (superblocks.iter().map(|it| it.role()).collect(), is_in_sync)
}

#[test]
fn what_parity_makes_up_for_is_right_and_a_second_one_is_resynced_or_begins_as_a_spare() {
    use Role::{Active, Spare};
    let five = parity(Level::Raid5, "ls", 3);
    let all = vec![Active(0), Active(1), Active(2)];
    assert_eq!(begins(&five, &[GIB; 3]), (all.clone(), false));
    assert_eq!(begins(&NewArray { assume_clean: true, ..five.clone() }, &[GIB; 3]), (all, true));
    assert_eq!(begins(&five, &[GIB, 0, GIB, GIB]), (vec![Active(0), Active(2), Spare], true));
    let four = parity(Level::Raid4, "parity-last", 2);
    assert_eq!(begins(&four, &[GIB; 2]), (vec![Active(0), Active(1)], false));
    assert_eq!(begins(&four, &[0, GIB]), (vec![Active(1)], true));
    let six = parity(Level::Raid6, "ls", 4);
    assert_eq!(begins(&six, &[GIB; 4]), (vec![Active(0), Active(1), Active(2), Active(3)], false));
    assert_eq!(begins(&six, &[GIB, 0, GIB, 0]), (vec![Active(0), Active(2)], true));
    assert_eq!(begins(&six, &[0, GIB, GIB, GIB]), (vec![Active(1), Active(2), Spare], true));
    assert_eq!(begins(&six, &[GIB, GIB, GIB, 0, GIB]), (vec![Active(0), Active(1), Spare, Spare], true));
    let clean = NewArray { assume_clean: true, ..six };
    assert_eq!(begins(&clean, &[0, GIB, GIB, GIB]), (vec![Active(1), Active(2), Active(3)], true));
}

#[test]
fn what_cannot_be_is_refused_by_its_reason() {
    use NewArrayError as E;
    let refused = |array: &NewArray, sectors: &[u64]| array.lay_out(&devices(sectors)).unwrap_err();
    let mirror = array(Shape::Raid1, 2);
    assert_eq!(refused(&mirror, &[GIB]), E::Count { given: 1, needed: 2 });
    assert_eq!(refused(&mirror, &[GIB, GIB, 0]), E::MissingSpare);
    assert_eq!(refused(&mirror, &[0, 0, GIB]), E::Missing(vec![0, 1]));
    assert_eq!(refused(&mirror, &[]), E::Devices(0));
    assert_eq!(refused(&mirror, &[GIB, 2000]), E::TooSmall { slot: 1, sectors: 2000, needed: 4224 });
    assert_eq!(refused(&raid10("n2", 4), &[0, 0, GIB, GIB]), E::Missing(vec![0, 1]));
    let raid0 = array(Shape::Raid0 { chunk_sectors: 1024 }, 2);
    assert_eq!(refused(&raid0, &[GIB, 0]), E::NotRedundant);
    assert_eq!(refused(&raid0, &[GIB, GIB, GIB]), E::NotRedundant);
    let with_bitmap = NewArray { bitmap: BitmapChoice::Internal, ..raid0 };
    assert_eq!(refused(&with_bitmap, &[GIB, GIB]), E::NoBitmap);
    let large = NewArray { size: Some(GIB), ..mirror.clone() };
    assert!(matches!(refused(&large, &[2 * GIB, GIB]), E::Size { slot: 1, .. }));
    let small = NewArray { size: Some(10), ..mirror.clone() };
    assert_eq!(refused(&small, &[GIB, GIB]), E::SmallSize(10));
    for (minor, data_offset) in [(Minor::V1_2, 16), (Minor::V1_1, 17), (Minor::V1_0, 8)] {
        let array = NewArray { minor, data_offset: Some(data_offset), ..mirror.clone() };
        assert!(matches!(refused(&array, &[GIB, GIB]), E::DataOffset { .. }), "{minor} {data_offset}");
    }
    for (shape, disks) in [
        (Shape::Raid0 { chunk_sectors: 9 }, 2),
        (Shape::Raid10 { layout: Raid10Layout::from_short_name("n2", 2).unwrap(), chunk_sectors: 24 }, 2),
        (Shape::Parity { layout: ParityLayout::new(Level::Raid5, 2, 2).unwrap(), chunk_sectors: 24 }, 2),
        (Shape::Parity { layout: ParityLayout::new(Level::Raid5, 2, 2).unwrap(), chunk_sectors: 4 }, 2),
    ] {
        assert!(matches!(refused(&array(shape, disks), &[GIB, GIB]), E::Chunk { .. }));
    }
    for four in [raid10("n2", 4), parity(Level::Raid5, "ls", 4)] {
        assert!(matches!(refused(&NewArray { raid_disks: 3, ..four }, &[GIB; 3]), E::Layout(_)));
    }
    let of_parity =
        |level, parities| E::MissingOfParity { missing: (0..=parities).collect(), level, parities };
    assert_eq!(refused(&parity(Level::Raid5, "ls", 3), &[0, 0, GIB]), of_parity(Level::Raid5, 1));
    assert_eq!(refused(&parity(Level::Raid6, "ls", 4), &[0, 0, 0, GIB]), of_parity(Level::Raid6, 2));
    let wrong = |level, found, least, most| E::ParityDevices { level, found, least, most };
    assert_eq!(refused(&parity(Level::Raid6, "ls", 3), &[GIB; 3]), wrong(Level::Raid6, 3, 4, 256));
    assert_eq!(check_parity_devices(Level::Raid6, 256), Ok(()));
    assert_eq!(check_parity_devices(Level::Raid6, 257), Err(wrong(Level::Raid6, 257, 4, 256)));
    assert_eq!(check_parity_devices(Level::Raid4, 1), Err(wrong(Level::Raid4, 1, 2, 1920)));
}

proptest! {
    #[test]
    fn whatever_is_laid_out_is_read_back_and_nothing_overlaps(
        version in 0usize..3, level in 0u8..8, chunk in 3u32..13, disks in 2u16..7,
        bitmap: bool, assume_clean: bool, sizes in proptest::collection::vec(1u64..6_000_000, 7), spare: bool,
    ) {
        let chunk_sectors = 1 << chunk;
        let layout = |name| Raid10Layout::from_short_name(name, disks.into()).unwrap();
        let shape = match level {
            0 => Shape::Raid0 { chunk_sectors },
            1 => Shape::Raid1,
            2 => Shape::Raid10 { layout: layout("n2"), chunk_sectors },
            3 => Shape::Raid10 { layout: layout("f2"), chunk_sectors },
            4 => Shape::Raid10 { layout: layout("o2"), chunk_sectors },
            5 => Shape::Parity { layout: ParityLayout::new(Level::Raid4, 0, disks).unwrap(), chunk_sectors },
            6 => Shape::Parity { layout: ParityLayout::new(Level::Raid5, 2, disks).unwrap(), chunk_sectors },
            _ => Shape::Parity { layout: ParityLayout::new(Level::Raid6, 9, disks.max(3)).unwrap(), chunk_sectors },
        };
        let bitmap = if bitmap && level > 0 { BitmapChoice::Internal } else { BitmapChoice::Auto };
        let array = NewArray { minor: Minor::ALL[version], bitmap, assume_clean, ..array(shape, disks) };
        let count = usize::from(disks) + usize::from(spare && level > 0);
        let Ok(members) = array.lay_out(&devices(&sizes[..count])) else { return Ok(()) };
        for member in members {
            let (s, sectors) = (&member.superblock, sizes[member.slot]);
            let bytes = s.encode_blocks(4096);
            prop_assert_eq!(&Superblock::decode(&bytes, s.minor, sectors).unwrap(), s);
            let mut regions = vec![s.data(), Region { start: s.super_offset, sectors: 8 }];
            regions.extend(member.before_superblock().iter().map(|(start, bytes)| {
                Region { start: *start, sectors: length(bytes.len()) / 512 }
            }));
            regions.sort_by_key(|region| region.start);
            for pair in regions.windows(2) {
                prop_assert!(pair[0].end() <= pair[1].start, "{:?}", regions);
            }
            prop_assert!(regions.last().unwrap().end() <= sectors);
            for unused in unused_regions(s, sectors) {
                prop_assert!(unused.end() <= s.data().start || unused.start >= s.data().end());
                prop_assert!(unused.end() <= sectors);
            }
            if let Some((bitmap, _)) = &member.bitmap {
                let room = s.bitmap_room_sectors(sectors).unwrap();
                bitmap.check_for(s.set_uuid, s.sync_sectors().unwrap(), room, 0).unwrap();
            }
        }
    }
}
