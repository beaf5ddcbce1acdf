//! What a device was before it is added: a member of something else.

use blockwork_engine::{FileId, Sectors};
use blockwork_format::md::v1::{Features, Minor, Superblock};
use blockwork_format::md::{MAGIC, Place, Time, Uuid, places, v0};
use blockwork_layer::md::Added;
use blockwork_sim::World;

use crate::rig::{Make, Rig};

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
