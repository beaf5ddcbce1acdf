//! A leg of an LVM RAID volume that was away, and comes back: what Linux, or we, would make of it after a power cut at any moment.

use blockwork_engine::{FileId, Flags, Nanos, NodeId, Sector, Sectors};
use blockwork_format::dm_raid::{IN_SYNC, Superblock};
use blockwork_format::md::bitmap::{BitmapSuperblock, Bits};
use blockwork_layer::md::{
    Array, ArrayConfig, ComesBack, DmRaidLeg, DmRaidRecord, Geometry, IntentConfig, MemberConfig,
};
use blockwork_sim::World;

use crate::records::{LEGS, SECTORS, bitmap, devices, found, superblock};
use crate::rig::{Make, Rig, Served};

/// Sectors of a bit.
const REGION: u64 = 8;
/// What was written while the second leg was away.
const WRITTEN: std::ops::Range<u64> = 80..96;
/// What legs had before, what was written then, and what is written by a client meanwhile.
const OLD: u8 = 0xa0;
const NEW: u8 = 0xb0;
const LATEST: u8 = 0xc0;

/// The first leg has gone on without the second one, and says so. In its bitmap is what was written, all else was the same; or
/// nothing is known of that.
fn world(how: ComesBack) -> World {
    let world = devices();
    let mut bits = Bits::clean(bitmap().chunks());
    for chunk in WRITTEN.start / REGION..WRITTEN.end / REGION {
        bits.set(chunk);
    }
    let lost = if how == ComesBack::Whole { 0xee } else { OLD };
    for (leg, byte) in [(0, OLD), (1, lost)] {
        world.preload(FileId(leg), 0, &vec![byte; 512 * SECTORS as usize]);
        let superblock = BitmapSuperblock { events: 12, ..bitmap() };
        let bytes = [&superblock.encode()[..], bits.as_bytes(), &[0xff; 512]].concat();
        world.preload(FileId(2 + leg), 8, &bytes[..512]);
    }
    world.preload(FileId(0), WRITTEN.start, &vec![NEW; 512 * (WRITTEN.end - WRITTEN.start) as usize]);
    let mut truth = Superblock { events: 12, ..superblock(0) };
    truth.fail(1);
    world.preload(FileId(2), 0, &truth.encode());
    world
}

/// How the second leg is, by what lies on the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leg {
    Whole,
    /// Its bit is set.
    Failed,
    /// In sync below that.
    UpTo(u64),
}

fn second(world: &World) -> Leg {
    let [(one, ..), (other, ..)] = [0, 1].map(|leg| found(world, leg));
    let truth = if one.events >= other.events { &one } else { &other };
    match other.disk_recovery_offset {
        _ if truth.has_failed(1) || other.events + 1 < truth.events => Leg::Failed,
        IN_SYNC => Leg::Whole,
        end => Leg::UpTo(end),
    }
}

/// Serves what lies there, as the volume's assembly has it.
fn serve(world: &World, how: ComesBack) -> Rig {
    let (own, newest, mut bits) = found(world, 0);
    let (other, _, others) = found(world, 1);
    if second(world) != Leg::Failed {
        bits.merge(&others);
    }
    let truth = if own.events >= other.events { own } else { other };
    let (recovered, comes_back) = match second(world) {
        Leg::Whole => (None, None),
        Leg::Failed => (Some(Sector(0)), Some(how)),
        Leg::UpTo(end) => (Some(Sector(end)), None),
    };
    let served = Served::with(world, |layers| {
        let member = |leg: u16| MemberConfig {
            name: format!("lv_rimage_{leg}"),
            layer: layers[usize::from(leg)].clone(),
            data_start: Sector(0),
            recovered: recovered.filter(|_| leg == 1),
            write_mostly: false,
            bad: vec![],
        };
        let leg = |leg: u16| DmRaidLeg {
            role: leg,
            name: format!("lv_rmeta_{leg}"),
            layer: layers[usize::from(LEGS + leg)].clone(),
            superblock: Superblock { array_position: leg.into(), ..truth.clone() },
            comes_back: comes_back.filter(|_| leg == 1),
        };
        let config = ArrayConfig {
            name: "vg/lv".into(),
            geometry: Geometry::raid1(LEGS, Sectors(SECTORS)),
            members: (0..LEGS).map(|it| Some(member(it))).collect(),
            resync_from: None,
            intent: Some(IntentConfig { superblock: newest, bits, may_differ: true }),
            record: Some(Box::new(DmRaidRecord::new((0..LEGS).map(leg).collect(), true, None))),
        };
        Array::new(NodeId(100), config).unwrap()
    });
    Rig::serving(world.clone(), Make::raid1(LEGS), served)
}

fn differ(world: &World) -> Vec<u64> {
    (0..SECTORS).filter(|at| world.peek(FileId(0), *at) != world.peek(FileId(1), *at)).collect()
}

fn data(world: &World) -> Vec<[u8; 512]> {
    (0..SECTORS).map(|at| world.peek(FileId(1), at)).collect()
}

/// Nobody who finds this takes the second leg for what it is not. Whether anything was written to it, or said of it.
fn check(cut: u64, world: &World, how: ComesBack) -> bool {
    let was = self::world(how);
    let is_touched = data(world) != data(&was) || found(world, 1).0 != found(&was, 1).0;
    let (own, ..) = found(world, 1);
    let differ = differ(world);
    if is_touched && own.disk_recovery_offset == IN_SYNC {
        assert_eq!(differ, [0; 0], "cut {cut}: by itself it calls itself whole");
    }
    let (_, newest, bits) = found(world, 0);
    match second(world) {
        Leg::Whole => assert_eq!(differ, [0; 0], "cut {cut}: it is taken for whole"),
        Leg::UpTo(end) => assert!(differ.iter().all(|at| *at >= end), "cut {cut}: {differ:?} below {end}"),
        Leg::Failed if is_touched => {
            let is_told = |at: &u64| bits.is_dirty(at / REGION);
            assert!(differ.iter().all(is_told), "cut {cut}: {differ:?}, of which the bitmap tells {bits:?}");
            assert!(newest.events_cleared <= 10, "cut {cut}: Linux fills it by the bitmap");
        }
        Leg::Failed => {}
    }
    is_touched
}

/// It is filled, with or without a client that writes meanwhile, and the power goes at each event in turn: how it is then.
fn comes_back(how: ComesBack) -> Vec<Leg> {
    [true, false].into_iter().flat_map(|has_client| comes_back_with(how, has_client)).collect()
}

fn comes_back_with(how: ComesBack, has_client: bool) -> Vec<Leg> {
    let (mut seen, mut done) = (Vec::new(), false);
    for cut in 1.. {
        let world = self::world(how);
        world.cut_at_event(cut);
        let mut rig = serve(&world, how);
        rig.open();
        if has_client {
            let bio = rig.write_bio(320, 8, LATEST, Flags::NONE);
            rig.submit(bio);
        }
        rig.rest(Nanos::secs(12));
        done |= !world.is_off();
        let after = world.power_cut();
        if check(cut, &after, how) {
            seen.push(second(&after));
        }
        let mut rig = serve(&after, how);
        rig.open();
        rig.wait_sync();
        rig.rest(Nanos::secs(12));
        let (after, _) = rig.close();
        assert_eq!((second(&after), differ(&after)), (Leg::Whole, vec![]), "cut {cut}");
        for leg in 0..2 {
            let (superblock, _, bits) = found(&after, leg);
            assert_eq!((superblock.failed_devices, bits.dirty_chunks()), ([0; 4], 0), "cut {cut}: leg {leg}");
        }
        assert_eq!(after.peek(FileId(1), WRITTEN.start), [NEW; 512], "cut {cut}");
        if done {
            break;
        }
    }
    seen
}

#[test]
fn a_leg_that_lacks_what_the_bitmap_has_is_failed_to_all_until_it_is_filled_whenever_the_power_goes() {
    let seen = comes_back(ComesBack::ByBitmap);
    let count = |leg| seen.iter().filter(|it| **it == leg).count();
    // It is filled to its end before it is whole, so that no leg is whole that another one calls failed.
    let filled = count(Leg::UpTo(SECTORS));
    assert!(count(Leg::Failed) > 10 && filled > 0 && count(Leg::Whole) > 10, "{seen:?}");
    assert_eq!(count(Leg::Failed) + filled + count(Leg::Whole), seen.len(), "{seen:?}");
}

#[test]
fn a_leg_of_which_nothing_is_known_is_in_sync_up_to_where_it_is_filled_whenever_the_power_goes() {
    let seen = comes_back(ComesBack::Whole);
    let count = |leg| seen.iter().filter(|it| **it == leg).count();
    assert!(count(Leg::UpTo(0)) > 10 && count(Leg::Whole) > 10, "{seen:?}");
    assert_eq!(count(Leg::Failed), 0, "{seen:?}");
}

/// While it is filled, it is read where it is filled, and it goes once more: whoever finds it again knows how to fill it.
#[test]
fn a_leg_that_goes_again_while_it_is_filled_lacks_what_the_bitmap_has_to_linux_too() {
    for how in [ComesBack::ByBitmap, ComesBack::Whole] {
        let world = world(how);
        let mut rig = serve(&world, how);
        rig.served.array.set_speed(0, 1);
        rig.open();
        rig.rest(Nanos::millis(50));
        assert_ne!(data(&world), data(&self::world(how)), "something was copied");
        assert_eq!(found(&world, 1).0.disk_recovery_offset, 0, "which it has said before");
        rig.write(320, 8, LATEST).unwrap();
        assert_eq!(rig.read(WRITTEN.start, 8).unwrap(), [NEW; 4096]);
        assert_eq!(world.peek(FileId(1), 320), [LATEST; 512], "it takes writes");
        assert_eq!(rig.served.array.status().degraded, 1);
        let so_far = world.counters(FileId(1)).requests();
        world.fail_nth(FileId(1), so_far, blockwork_sim::Fault::Error(blockwork_engine::Errno::EIO));
        rig.write(328, 8, LATEST).unwrap();
        rig.rest(Nanos::secs(12));
        let (world, _) = rig.close();
        let (truth, bitmap, bits) = found(&world, 0);
        let (own, ..) = found(&world, 1);
        assert!(truth.has_failed(1));
        assert_eq!((own.disk_recovery_offset, own.has_failed(1)), (0, how == ComesBack::ByBitmap));
        assert!(own.events >= bitmap.events_cleared);
        let is_told = |at: &u64| bits.is_dirty(at / REGION);
        assert!(differ(&world).iter().all(is_told), "{how:?}: {bits:?}");
        assert_eq!(bits.dirty_chunks() == bits.chunks(), how == ComesBack::Whole);
        assert!(check(0, &world, how));
    }
}
