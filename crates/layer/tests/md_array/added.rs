//! What a device was before it is added: a member of something else, or of a half of this array that was used by itself.

use blockwork_engine::{FileId, Sectors};
use blockwork_format::md::v1::{Features, Minor, Superblock};
use blockwork_format::md::{MAGIC, Place, Role, Time, Uuid, places, v0};
use blockwork_layer::md::{Added, SyncAction, VerbError};
use blockwork_sim::World;

use crate::rig::{DATA_START, Make, Rig, SUPERBLOCK};

const OURS: Uuid = Uuid([3; 16]);
const OLDER: Uuid = Uuid([7; 16]);
const NEWER: Uuid = Uuid([8; 16]);

/// An array of two, one of which has gone, and a device that was in three others.
fn with_a_used_device() -> Rig {
    let mut rig = Rig::new(Make::raid1(2).with_blank(1).of_sectors(8192));
    rig.write(0, 8, 1).unwrap();
    rig.fail("d1").unwrap();
    rig.remove("failed").unwrap();
    let sectors = rig.make.device_sectors().0;
    let superblock =
        Superblock { events: 900, features: Features::default(), bitmap_offset: 0, ..rig.superblock(0) };
    let older = Superblock { set_uuid: OLDER, ctime: Time::new(1_600_000_000, 0), ..superblock.clone() };
    let newer = Superblock {
        set_uuid: NEWER,
        ctime: Time::new(1_800_000_000, 0),
        minor: Minor::V1_0,
        super_offset: Minor::V1_0.sector(sectors).unwrap(),
        data_offset: 0,
        ..superblock
    };
    let damaged = [&MAGIC.to_le_bytes()[..], &[0; 508]].concat();
    rig.world.preload(FileId(2), older.super_offset, &older.encode());
    rig.world.preload(FileId(2), newer.super_offset, &newer.encode());
    rig.world.preload(FileId(2), v0::sector(sectors).unwrap(), &damaged);
    assert_eq!(found(&rig.world, &rig.make), [Some(OLDER), Some(NEWER), None]);
    rig
}

/// The arrays whose superblocks are on that device, that which counts behind the older one; none for what is damaged.
fn found(world: &World, make: &Make) -> Vec<Option<Uuid>> {
    let sectors = make.device_sectors().0;
    let decode = |place: Place| {
        let nr = Sectors::from_bytes_ceil(Place::BYTES as u64).0;
        let at = place.sector..place.sector + nr;
        let bytes: Vec<u8> = at.flat_map(|sector| world.peek(FileId(2), sector)).collect();
        place.decode(&bytes, sectors)
    };
    places(sectors).filter_map(decode).map(|superblock| Some(superblock.ok()?.uuid())).collect()
}

#[test]
fn a_device_that_is_added_has_no_superblock_of_another_array_any_more() {
    let mut rig = with_a_used_device();
    assert_eq!(rig.add(2).unwrap(), Added::Recovering { role: 1 });
    assert_eq!(found(&rig.world, &rig.make), [Some(OURS)]);
    rig.wait_sync();
    assert_eq!(found(&rig.world, &rig.make), [Some(OURS)]);
}

#[test]
fn a_device_that_is_added_is_taken_for_nothing_else() {
    let mut rig = Rig::new(Make::raid1(2).with_blank(1).of_sectors(8192));
    rig.write(0, 8, 1).unwrap();
    rig.fail("d1").unwrap();
    rig.remove("failed").unwrap();
    let end = rig.make.device_sectors().0;
    // The first and the second header of a table, of which the second lies behind the data; a boot sector.
    let held: [(u64, &[u8]); 3] = [(1, b"EFI PART"), (end - 1, b"EFI PART"), (0, &[0x55; 512])];
    held.iter().for_each(|(sector, bytes)| rig.world.preload(FileId(2), *sector, &sector_of(bytes)));
    rig.world.preload(FileId(2), SUPERBLOCK - 1, &sector_of(b"LABELONE"));
    rig.add(2).unwrap();
    for sector in [0, 1, SUPERBLOCK - 1, DATA_START - 1, end - 1] {
        assert_eq!(rig.world.peek(FileId(2), sector), [0; 512], "sector {sector}");
    }
    assert_eq!(found(&rig.world, &rig.make), [Some(OURS)]);
}

fn sector_of(bytes: &[u8]) -> Vec<u8> {
    let mut sector = bytes.to_vec();
    sector.resize(512, 0);
    sector
}

#[test]
fn a_power_cut_never_makes_a_device_that_is_added_a_member_of_an_older_array() {
    let mut seen = [0; 3];
    for cut in 1.. {
        let mut rig = with_a_used_device();
        rig.world.cut_at_event(rig.world.events() + cut);
        let added = rig.add(2);
        let is_over = !rig.world.is_off();
        let found = found(&rig.world.power_cut(), &rig.make);
        let is_there = |uuid| found.contains(&Some(uuid));
        // Of several, that of the array which was created last is believed.
        let believed = [NEWER, OURS, OLDER].into_iter().find(|uuid| is_there(*uuid));
        assert_ne!(believed, Some(OLDER), "cut {cut}: {found:?}");
        assert!(believed == Some(OURS) || added.is_err(), "cut {cut}: {found:?}");
        match believed {
            Some(NEWER) => seen[0] += 1,
            None => seen[1] += 1,
            _ => seen[2] += 1,
        }
        if is_over {
            break;
        }
    }
    assert!(seen.iter().all(|times| *times > 0), "another array's, nobody's, ours: {seen:?}");
}

#[test]
fn a_power_cut_never_shows_what_a_member_of_another_array_was_before_that() {
    let mut shown = 0;
    for cut in 1.. {
        let mut rig = Rig::new(Make::raid1(2).with_blank(1).of_sectors(8192));
        rig.fail("d1").unwrap();
        rig.remove("failed").unwrap();
        let ours = rig.superblock(0);
        let other = Superblock { set_uuid: NEWER, features: Features::default(), bitmap_offset: 0, ..ours };
        rig.world.preload(FileId(2), other.super_offset, &other.encode());
        // Whoever made the other array left a boot sector and the label of a physical volume.
        for (sector, bytes) in [(0, &[0x55; 512][..]), (1, b"LABELONE")] {
            rig.world.preload(FileId(2), sector, &sector_of(bytes));
        }
        rig.world.cut_at_event(rig.world.events() + cut);
        let _ = rig.add(2);
        let is_over = !rig.world.is_off();
        let world = rig.world.power_cut();
        let is_left = [0, 1].into_iter().any(|sector| world.peek(FileId(2), sector) != [0; 512]);
        if is_left {
            assert_eq!(found(&world, &rig.make), [Some(NEWER)], "cut {cut}");
            shown += 1;
        }
        if is_over {
            assert!(!is_left);
            break;
        }
    }
    assert!(shown > 0, "it is there at first");
}

/// Serves the array without some of its devices, and writes.
fn write_without(world: &World, make: &Make, absent: &[u16], sector: u64, fill: u8) {
    let mut half = Rig::on(world.clone(), make.clone(), absent, true);
    half.write(sector, 8, fill).unwrap();
    half.close();
}

#[test]
fn a_half_that_was_used_by_itself_is_copied_whole() {
    let halves: [(Make, &[u16], &[u16]); 2] =
        [(Make::raid1(2), &[0], &[1]), (Make::raid10("n2", 4), &[0, 2], &[1, 3])];
    for (make, one, other) in halves {
        let mut rig = Rig::new(make.of_sectors(4096));
        rig.write(0, 64, 1).unwrap();
        let (world, make) = rig.close();
        write_without(&world, &make, other, 1000, 2);
        write_without(&world, &make, one, 2000, 3);
        let mut rig = Rig::on(world, make, other, true);
        for device in other {
            assert_eq!(rig.add(*device).unwrap(), Added::Recovering { role: *device });
        }
        rig.wait_sync();
        rig.start_sync(SyncAction::Check).unwrap();
        assert_eq!((rig.wait_sync().mismatches, rig.served.array.status().degraded), (Sectors(0), 0));
        assert_eq!(rig.read(1000, 8).unwrap(), [2; 8 * 512]);
        assert_eq!(rig.read(2000, 8).unwrap(), [0; 8 * 512], "what the other half has written is gone");
    }
}

#[test]
fn whether_a_device_was_used_by_itself_is_what_its_superblock_says() {
    type Change = fn(&mut Superblock, events: u64);
    let changes: [(Change, bool); 6] = [
        (|_, _| {}, false),
        // As we say it of a member that is not there, and as Linux does.
        (|own, _| own.roles[0] = Role::Faulty, true),
        (|own, _| own.roles[0] = Role::Spare, true),
        (|own, _| own.roles[0] = Role::Active(1), true),
        // A power cut in the midst of an update.
        (|own, events| own.events = events + 1, false),
        (|own, events| own.events = events + 2, true),
    ];
    for (nth, (change, was_apart)) in changes.into_iter().enumerate() {
        let mut rig = Rig::new(Make::raid1(2).of_sectors(4096));
        rig.write(0, 8, 1).unwrap();
        rig.fail("d1").unwrap();
        rig.write(100, 8, 2).unwrap();
        rig.remove("failed").unwrap();
        let events = rig.superblock(0).events;
        let mut new = rig.new_member(1);
        change(new.superblock.as_mut().unwrap(), events);
        let added = rig.verb(|array, cx| async move { array.add(new, &cx).await }).unwrap();
        let expected = if was_apart { Added::Recovering { role: 1 } } else { Added::ReAdded { role: 1 } };
        assert_eq!(added, expected, "change {nth}");
        rig.wait_sync();
        assert_eq!(rig.world.peek(FileId(1), DATA_START + 100), [2; 512]);
    }
}

#[test]
fn a_device_that_is_one_too_many_keeps_what_it_has() {
    let mut rig = Rig::new(Make::raid1(2).with_blank(2).of_sectors(4096));
    rig.write(0, 8, 1).unwrap();
    let other =
        Superblock { set_uuid: NEWER, features: Features::default(), bitmap_offset: 0, ..rig.superblock(0) };
    rig.world.preload(FileId(3), other.super_offset, &other.encode());
    let refused = loop {
        match rig.add(2) {
            Ok(added) => assert_eq!(added, Added::Spare),
            Err(error) => break error,
        }
        rig.remove("d2").unwrap();
    };
    assert!(matches!(refused, VerbError::Full { .. }), "{refused}");
    let refused = rig.add(3).unwrap_err();
    assert!(matches!(refused, VerbError::Full { .. }), "{refused}");
    assert_eq!(rig.superblock(3).set_uuid, NEWER);
}
