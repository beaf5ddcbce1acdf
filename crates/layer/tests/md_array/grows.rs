//! LVM's RAID volumes that grow while they are served: their legs are other, larger layers from one moment on. What clients have of that,
//! and what Linux, or we, would make of it after a power cut at any moment.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{Errno, FileId, Flags, Layer, Nanos, NodeId, Sector, Sectors};
use blockwork_format::dm_raid::{IN_SYNC, Superblock};
use blockwork_format::md::bitmap::{BITMAP_SUPERBLOCK_BYTES, BitmapSuperblock, Bits};
use blockwork_layer::Linear;
use blockwork_layer::md::{
    Array, ArrayConfig, ArraySize, ComesBack, DmRaidLeg, DmRaidRecord, GrownLegs, IntentConfig, MemberConfig,
    SyncAction, VerbError,
};
use blockwork_sim::{DeviceModel, Fault, World};

use crate::records::{bitmap, superblock};
use crate::rig::{Make, Rig, Served};

/// Sectors of each leg, before and afterwards, and of a bit.
const OLD: u64 = 256;
const NEW: u64 = 512;
const REGION: u64 = 8;

fn makes() -> [Make; 3] {
    [Make::raid1(2), Make::raid10("n2", 4), Make::raid5(3)]
}

/// The sectors in which resyncs count, with legs of so many.
fn sync_sectors(make: &Make, leg: u64) -> u64 {
    make.clone().of_sectors(leg).geometry().sync_sectors().0
}

fn array_sectors(make: &Make, leg: u64) -> u64 {
    make.clone().of_sectors(leg).geometry().sectors().0
}

/// Legs with room for what they become, then their metadata volumes. They fit each other as far as the array goes, and not behind that.
fn world(make: &Make) -> World {
    let (world, legs) = (World::new(3), make.members);
    for sectors in [NEW, 64].into_iter().flat_map(|sectors| vec![sectors; legs.into()]) {
        let mut model = DeviceModel::null(Sectors(sectors));
        model.cache_bytes = 1 << 20;
        world.add_device(model);
    }
    for leg in 0..legs {
        world.preload(FileId(leg.into()), OLD, &vec![0xa0 + leg as u8; 512 * (NEW - OLD) as usize]);
        let told = Superblock {
            num_devices: legs.into(),
            array_position: leg.into(),
            array_sectors: array_sectors(make, OLD),
            sectors: OLD,
            ..superblock(0)
        };
        world.preload(FileId((legs + leg).into()), 0, &told.encode());
        put_bits(&world, make, leg, |superblock| Bits::clean(superblock.chunks()));
    }
    world
}

fn put_bits(world: &World, make: &Make, leg: u16, bits: impl Fn(&BitmapSuperblock) -> Bits) {
    let small = BitmapSuperblock { sync_size: sync_sectors(make, OLD), ..bitmap() };
    let bytes = [&small.encode()[..], bits(&small).as_bytes(), &[0xff; 512]].concat();
    world.preload(FileId((make.members + leg).into()), 8, &bytes[..512]);
}

fn found(world: &World, make: &Make, leg: u16) -> (Superblock, BitmapSuperblock, Bits) {
    let sector = |sector| world.peek(FileId((make.members + leg).into()), sector);
    let bytes = sector(8);
    let bitmap = BitmapSuperblock::decode(&bytes, 4096).unwrap();
    let bits = Bits::decode(&bitmap, &bytes[BITMAP_SUPERBLOCK_BYTES..], 0).unwrap();
    (Superblock::decode(&sector(0)).unwrap(), bitmap, bits)
}

fn newest(world: &World, make: &Make) -> Superblock {
    let all = (0..make.members).map(|leg| found(world, make, leg).0);
    all.max_by_key(|superblock| superblock.events).unwrap()
}

/// A leg of so many sectors.
fn leg(layers: &[Arc<dyn Layer>], leg: u16, sectors: u64) -> Arc<dyn Layer> {
    let linear = Linear::new(NodeId(50 + leg), layers[usize::from(leg)].clone(), Sector(0), Sectors(sectors));
    Arc::new(linear.unwrap())
}

/// Serves what lies there, as the volume's assembly has it where the group's text says that legs are so large.
fn serve(world: &World, make: &Make, text: u64, comes_back: Option<(u16, ComesBack)>) -> Rig {
    let make = make.clone().of_sectors(text);
    let (geometry, truth) = (make.geometry(), newest(world, &make));
    let sync = geometry.sync_sectors().0;
    let mut from = Some(truth.array_resync_offset).filter(|from| *from != IN_SYNC);
    let has_grown = truth.array_sectors < geometry.sectors().0;
    if has_grown {
        let old = geometry.sync_sectors_of(Sectors(truth.array_sectors)).0;
        from = Some(from.map_or(old, |from| from.min(old)));
    }
    let mut all = Bits::clean(sync.div_ceil(REGION));
    for own in 0..make.members {
        let (superblock, small, bits) = found(world, &make, own);
        assert!(superblock.events + 1 >= truth.events, "leg {own} is not left behind by a power cut");
        let mut bits = bits.grown(all.chunks());
        for chunk in small.sync_size / REGION..all.chunks() {
            bits.set(chunk);
        }
        all.merge(&bits);
    }
    let served = Served::with(world, |layers| {
        let member = |own: u16| {
            let lacks = found(world, &make, own).0.disk_recovery_offset;
            let is_away = comes_back.is_some_and(|(leg, _)| leg == own);
            MemberConfig {
                name: format!("lv_rimage_{own}"),
                layer: leg(layers, own, text),
                data_start: Sector(0),
                recovered: Some(if is_away { 0 } else { lacks }).filter(|end| *end != IN_SYNC).map(Sector),
                write_mostly: false,
                bad: vec![],
            }
        };
        let site = |own: u16| DmRaidLeg {
            role: own,
            name: format!("lv_rmeta_{own}"),
            layer: layers[usize::from(make.members + own)].clone(),
            superblock: Superblock { array_position: own.into(), ..truth.clone() },
            comes_back: comes_back.filter(|(leg, _)| *leg == own).map(|(_, how)| how),
        };
        let size = ArraySize { array: geometry.sectors(), member: Sectors(text) };
        let superblock = BitmapSuperblock { events: truth.events, sync_size: sync, ..bitmap() };
        let record =
            DmRaidRecord::new((0..make.members).map(site).collect(), true, Some(size).filter(|_| has_grown));
        let config = ArrayConfig {
            name: "vg/lv".into(),
            geometry: geometry.clone(),
            members: (0..make.members).map(|it| Some(member(it))).collect(),
            resync_from: from.map(Sector),
            intent: Some(IntentConfig { superblock, bits: all, may_differ: true }),
            record: Some(Box::new(record)),
        };
        Array::new(NodeId(100), config).unwrap()
    });
    Rig::serving(world.clone(), make, served)
}

type Told = Rc<RefCell<Option<Result<(), VerbError>>>>;

/// Has the array go on with larger legs.
fn begin_to_grow(rig: &mut Rig) -> Told {
    let make = rig.make.clone().of_sectors(NEW);
    let legs = (0..make.members).map(|own| Some(leg(&rig.served.layers, own, NEW))).collect();
    let grown = GrownLegs { geometry: make.geometry(), sectors: make.geometry().sectors(), legs };
    rig.begin(|array, cx| async move { array.grow_legs(&cx, grown).await })
}

fn grow(rig: &mut Rig) -> Result<(), VerbError> {
    let told = begin_to_grow(rig);
    while told.borrow().is_none() {
        rig.step();
    }
    told.take().unwrap()
}

/// In which of the sectors that resyncs count in legs do not fit each other.
fn differing(world: &World, make: &Make) -> Vec<u64> {
    let sector = |leg: u16, at: u64| world.peek(FileId(leg.into()), at);
    let mut all = Vec::new();
    for at in 0..NEW {
        match make.members {
            2 if sector(0, at) != sector(1, at) => all.push(at),
            3 if (0..512).any(|i| sector(0, at)[i] ^ sector(1, at)[i] ^ sector(2, at)[i] != 0) => {
                all.push(at)
            }
            4 => {
                let (chunk, within) = (at / make.chunk, at % make.chunk);
                let of_pair = |pair: u64| (2 * chunk + pair) * make.chunk + within;
                let pairs = [(0, 0, 1), (1, 2, 3)].into_iter();
                let differ = pairs.filter(|(_, one, other)| sector(*one, at) != sector(*other, at));
                all.extend(differ.map(|(pair, ..)| of_pair(pair)));
            }
            _ => {}
        }
    }
    all
}

/// Nobody who finds this takes for the same what is not; whether it tells of the new size.
fn check(cut: u64, world: &World, make: &Make) -> bool {
    let truth = newest(world, make);
    let is_large = truth.array_sectors == array_sectors(make, NEW);
    assert!(is_large || truth.array_sectors == array_sectors(make, OLD));
    let known = if is_large { NEW } else { OLD };
    for at in differing(world, make).into_iter().filter(|at| *at < sync_sectors(make, known)) {
        assert!(truth.array_resync_offset <= at, "cut {cut}: {at} differs below {truth:?}");
        for leg in 0..make.members {
            let (_, bitmap, bits) = found(world, make, leg);
            let is_told = at < bitmap.sync_size && bits.is_dirty(at / REGION);
            assert!(is_told, "cut {cut}: sector {at} differs, and nothing on leg {leg} says so: {bitmap:?}");
        }
    }
    is_large
}

/// All legs fit each other, and say so.
fn expect_whole(world: &World, make: &Make) {
    assert_eq!(differing(world, make), [0; 0]);
    for leg in 0..make.members {
        let (superblock, bitmap, bits) = found(world, make, leg);
        assert_eq!((superblock.array_sectors, superblock.sectors), (array_sectors(make, NEW), NEW));
        assert_eq!((superblock.array_resync_offset, superblock.disk_recovery_offset), (IN_SYNC, IN_SYNC));
        assert_eq!((bitmap.sync_size, bits.dirty_chunks()), (sync_sectors(make, NEW), 0));
        assert_eq!(superblock.failed_devices, [0; 4]);
    }
}

#[test]
fn clients_go_on_while_a_volume_grows_and_what_is_new_is_resynced() {
    for make in makes() {
        let world = world(&make);
        let mut rig = serve(&world, &make, OLD, None);
        rig.open();
        rig.write(80, 16, 1).unwrap();
        // On their way when it begins, and when it is grown.
        for at in [96, 128, 160] {
            let bio = rig.write_bio(at, 32, 2, Flags::NONE);
            rig.submit(bio);
        }
        let told = begin_to_grow(&mut rig);
        for at in [192, 224] {
            let bio = rig.write_bio(at, 32, 2, Flags::NONE);
            rig.submit(bio);
        }
        assert_eq!(rig.read(80, 16).unwrap()[..], [1; 16 * 512], "{make:?}");
        for _ in 0..5 {
            rig.finish().result.unwrap();
        }
        while told.borrow().is_none() {
            rig.step();
        }
        told.take().unwrap().unwrap();
        let (old, new) = (array_sectors(&make, OLD), array_sectors(&make, NEW));
        assert_eq!(rig.served.array.sectors(), Sectors(new));
        rig.write(old - 8, 16, 3).unwrap();
        rig.write(new - 8, 8, 4).unwrap();
        rig.wait_sync();
        for (at, nr, fill) in [(80, 16, 1), (96, 152, 2), (old - 8, 16, 3), (new - 8, 8, 4)] {
            assert_eq!(rig.read(at, nr).unwrap(), vec![fill; 512 * nr as usize], "{make:?}: {at}");
        }
        rig.rest(Nanos::secs(12));
        let (world, _) = rig.close();
        expect_whole(&world, &make);
    }
}

/// Writes before, while and after it grows; whoever serves it next has each that was acknowledged.
fn cut_at_each_event(make: &Make, is_new: bool) -> (u32, u32) {
    let (mut small, mut large, mut done) = (0, 0, false);
    let (old, new) = (array_sectors(make, OLD), array_sectors(make, NEW));
    for cut in 1.. {
        let world = world(make);
        if is_new {
            // Nothing is in sync yet.
            for leg in 0..make.members {
                world.preload(FileId(leg.into()), 0, &vec![0xc0 + leg as u8; 512 * OLD as usize]);
                put_bits(&world, make, leg, |superblock| Bits::dirty(superblock.chunks()));
                let told = Superblock { array_resync_offset: 0, ..found(&world, make, leg).0 };
                world.preload(FileId((make.members + leg).into()), 0, &told.encode());
            }
        }
        world.cut_at_event(cut);
        let mut rig = serve(&world, make, OLD, None);
        rig.served.array.set_speed(0, 64);
        rig.open();
        let writes = [(80, 1), (96, 2), (old - 8, 3), (new - 8, 4)];
        let mut acknowledged = Vec::new();
        let mut told = None;
        for (nth, (at, fill)) in writes.into_iter().enumerate() {
            if nth == 1 {
                told = Some(begin_to_grow(&mut rig));
            }
            let has_grown = told.as_ref().is_some_and(|told: &Told| matches!(*told.borrow(), Some(Ok(()))));
            if nth < 3 || has_grown {
                let bio = rig.write_bio(at, 8, fill, Flags::FUA);
                rig.submit(bio);
                rig.rest(Nanos::millis(if nth == 1 { 300 } else { 20 }));
            }
            if rig.done() > 0 && rig.finish().result.is_ok() {
                acknowledged.push((at, fill));
            }
        }
        rig.served.array.set_speed(1000, 1_000_000);
        rig.rest(Nanos::secs(12));
        done |= !world.is_off();
        assert!(!done || acknowledged.len() == 4, "{acknowledged:?}");
        let after = world.power_cut();
        let is_large = check(cut, &after, make);
        let has_new = acknowledged.iter().any(|(at, _)| *at >= old);
        assert!(is_large || !has_new, "cut {cut}: a write to what nothing tells of is acknowledged");
        *(if is_large { &mut large } else { &mut small }) += 1;
        // The group's text was written before.
        let mut rig = serve(&after, make, NEW, None);
        rig.open();
        for (at, fill) in &acknowledged {
            assert_eq!(rig.read(*at, 8).unwrap(), [*fill; 4096], "cut {cut}: {at}");
        }
        // The first change on record tells of the new size.
        rig.write(112, 8, 5).unwrap();
        rig.wait_sync();
        for (at, fill) in &acknowledged {
            assert_eq!(rig.read(*at, 8).unwrap(), [*fill; 4096], "cut {cut}: {at}, resynced");
        }
        rig.rest(Nanos::secs(12));
        let (after, _) = rig.close();
        expect_whole(&after, make);
        if done {
            break;
        }
    }
    (small, large)
}

#[test]
fn a_power_cut_leaves_what_grows_small_or_with_every_difference_on_record() {
    for make in makes() {
        let (small, large) = cut_at_each_event(&make, false);
        assert!(
            small > 5 && large > 10,
            "{make:?}: {small} before the new size was on record, {large} after it"
        );
    }
}

#[test]
fn what_is_not_resynced_yet_grows_and_is_resynced_to_its_new_end_whenever_the_power_goes() {
    for make in makes() {
        let (small, large) = cut_at_each_event(&make, true);
        assert!(
            small > 5 && large > 10,
            "{make:?}: {small} before the new size was on record, {large} after it"
        );
    }
}

#[test]
fn a_leg_that_is_being_filled_is_filled_to_its_new_end() {
    for how in [ComesBack::ByBitmap, ComesBack::Whole] {
        let make = Make::raid1(2);
        let world = world(&make);
        if how == ComesBack::Whole {
            world.preload(FileId(1), 0, &vec![0xee; 512 * OLD as usize]);
        } else {
            world.preload(FileId(1), 80, &[0xee; 512 * 8]);
            let mut bits = Bits::clean(OLD / REGION);
            bits.set(80 / REGION);
            put_bits(&world, &make, 0, |_| bits.clone());
        }
        let mut rig = serve(&world, &make, OLD, Some((1, how)));
        rig.served.array.set_speed(0, 1);
        rig.open();
        rig.rest(Nanos::millis(50));
        assert_eq!(rig.served.array.status().sync.action, SyncAction::Recover);
        grow(&mut rig).unwrap();
        let superblock = found(&world, &make, 1).0;
        assert_eq!(superblock.array_sectors, NEW);
        assert_ne!(superblock.disk_recovery_offset, IN_SYNC, "{how:?}: it is not whole");
        rig.rest(Nanos::millis(50));
        assert_eq!(rig.served.array.status().sync.action, SyncAction::Recover, "it goes on");
        rig.served.array.set_speed(1000, 1_000_000);
        rig.wait_sync();
        rig.rest(Nanos::secs(12));
        let (world, _) = rig.close();
        expect_whole(&world, &make);
        assert_eq!(world.peek(FileId(1), NEW - 1), [0xa0; 512]);
        assert_eq!(world.peek(FileId(1), 80), [0; 512]);
    }
}

#[test]
fn a_leg_that_refuses_its_new_bitmap_has_failed_and_the_others_tell_of_the_new_size() {
    let make = Make::raid1(2);
    let world = world(&make);
    let mut rig = serve(&world, &make, OLD, None);
    rig.open();
    rig.write(80, 8, 1).unwrap();
    let so_far = world.counters(FileId(3)).requests();
    for nth in so_far..so_far + 10 {
        world.fail_nth(FileId(3), nth, Fault::Error(Errno::EIO));
    }
    grow(&mut rig).unwrap();
    rig.write(NEW - 8, 8, 4).unwrap();
    rig.flush().unwrap();
    let after = rig.world.power_cut();
    let (truth, bitmap, bits) = found(&after, &make, 0);
    assert!(truth.has_failed(1));
    assert_eq!((truth.array_sectors, bitmap.sync_size), (NEW, NEW));
    assert!((OLD / REGION..NEW / REGION).all(|chunk| bits.is_dirty(chunk)), "it lacks all that is new");
}

#[test]
fn rows_with_a_parity_do_not_grow_without_a_leg_and_nothing_changes() {
    let make = Make::raid5(3);
    let world = world(&make);
    let mut rig = serve(&world, &make, OLD, Some((1, ComesBack::Whole)));
    rig.served.array.set_speed(0, 1);
    rig.open();
    rig.write(80, 8, 1).unwrap();
    let refused = VerbError::LacksLeg { array: "vg/lv".into() };
    assert_eq!(rig.served.array.check_growing_legs(), Err(refused.clone()));
    assert_eq!(grow(&mut rig), Err(refused));
    assert_eq!(rig.served.array.sectors(), Sectors(array_sectors(&make, OLD)));
    rig.served.array.set_speed(1000, 1_000_000);
    rig.wait_sync();
    assert_eq!(found(&world, &make, 0).0.array_sectors, array_sectors(&make, OLD));
    assert_eq!(rig.served.array.check_growing_legs(), Ok(()));
    grow(&mut rig).unwrap();
    rig.wait_sync();
    rig.rest(Nanos::secs(12));
    let (world, _) = rig.close();
    expect_whole(&world, &make);
}

#[test]
fn legs_that_are_too_small_or_not_there_are_refused_and_nothing_changes() {
    let make = Make::raid1(2);
    let world = world(&make);
    let mut rig = serve(&world, &make, OLD, None);
    rig.open();
    rig.write(80, 8, 1).unwrap();
    let before = found(&world, &make, 0).0;
    let layers = rig.served.layers.clone();
    for (second, why) in [(None, "is not there"), (Some(leg(&layers, 1, NEW - 1)), "needs 512")] {
        let geometry = make.clone().of_sectors(NEW).geometry();
        let legs = vec![Some(leg(&layers, 0, NEW)), second];
        let grown = GrownLegs { sectors: geometry.sectors(), geometry, legs };
        let refused = rig.verb(|array, cx| async move { array.grow_legs(&cx, grown).await }).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
        assert_eq!(rig.served.array.sectors(), Sectors(OLD));
    }
    rig.write(80, 8, 2).unwrap();
    assert_eq!(found(&world, &make, 0).0.array_sectors, before.array_sectors);
}
