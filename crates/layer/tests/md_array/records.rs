//! LVM's RAID volumes: data and metadata on devices of their own, with superblocks of dm-raid.

use blockwork_engine::{Errno, FileId, Flags, Layer, Nanos, NodeId, Sector, Sectors};
use blockwork_format::dm_raid::{IN_SYNC, Superblock};
use blockwork_format::md::Uuid;
use blockwork_format::md::bitmap::{BITMAP_SUPERBLOCK_BYTES, BitmapSuperblock, Bits};
use blockwork_layer::md::{
    Array, ArrayConfig, ArraySize, DmRaidLeg, DmRaidRecord, Geometry, IntentConfig, MemberConfig,
};
use blockwork_sim::{DeviceModel, Fault, World};

use crate::rig::{Make, Rig, Served};

pub const LEGS: u16 = 2;
pub const SECTORS: u64 = 512;

pub fn superblock(position: u16) -> Superblock {
    let mut bytes = [0; 512];
    bytes[..4].copy_from_slice(b"DmRd");
    for (at, byte) in [(4, 1), (8, 2), (12, position as u8), (16, 9), (48, 1)] {
        bytes[at] = byte;
    }
    bytes[32..48].fill(0xff);
    Superblock::decode(&bytes).unwrap()
}

pub fn bitmap() -> BitmapSuperblock {
    BitmapSuperblock { events: 9, events_cleared: 9, ..BitmapSuperblock::new(Uuid([0; 16]), SECTORS, 4096) }
}

/// Devices 0 and 1 are the images, 2 and 3 the metadata.
fn volume() -> Rig {
    let world = devices();
    let bits = Bits::clean(bitmap().chunks());
    serve(world, bits, None, None)
}

pub fn devices() -> World {
    let world = World::new(2);
    for sectors in [SECTORS, SECTORS, 64, 64] {
        let mut model = DeviceModel::null(Sectors(sectors));
        model.cache_bytes = 1 << 20;
        world.add_device(model);
    }
    for leg in 0..LEGS {
        world.preload(FileId(2 + u32::from(leg)), 0, &superblock(leg).encode());
    }
    world
}

fn serve(world: World, bits: Bits, resync_from: Option<Sector>, grown: Option<ArraySize>) -> Rig {
    let served = Served::with(&world, |layers| {
        let member = |leg: u16| MemberConfig {
            name: format!("lv_rimage_{leg}"),
            layer: layers[usize::from(leg)].clone(),
            data_start: Sector(0),
            recovered: None,
            write_mostly: false,
            bad: vec![],
        };
        let leg = |leg: u16| DmRaidLeg {
            role: leg,
            name: format!("lv_rmeta_{leg}"),
            layer: layers[usize::from(LEGS + leg)].clone(),
            superblock: superblock(leg),
            comes_back: None,
        };
        let config = ArrayConfig {
            name: "vg/lv".into(),
            geometry: Geometry::raid1(LEGS, Sectors(SECTORS)),
            members: (0..LEGS).map(|it| Some(member(it))).collect(),
            resync_from,
            intent: Some(IntentConfig { superblock: bitmap(), bits, may_differ: true }),
            record: Some(Box::new(DmRaidRecord::new((0..LEGS).map(leg).collect(), true, grown))),
        };
        Array::new(NodeId(100), config).unwrap()
    });
    Rig::serving(world, Make::raid1(LEGS), served)
}

/// Where the array ended before it has grown.
const OLD: u64 = 256;

/// An array that has grown: its legs agree up to its old end, and superblocks and bitmaps are those of the smaller one.
fn grown() -> World {
    let world = devices();
    for leg in 0..u32::from(LEGS) {
        let small = BitmapSuperblock { sync_size: OLD, ..bitmap() };
        let bits = Bits::clean(small.chunks());
        world.preload(
            FileId(2 + leg),
            8,
            &[&small.encode()[..], bits.as_bytes(), &[0xff; 252]].concat()[..512],
        );
        world.preload(FileId(leg), OLD, &vec![0xa0 + leg as u8; 512 * (SECTORS - OLD) as usize]);
        let told = Superblock { array_sectors: OLD, sectors: OLD, ..superblock(leg as u16) };
        world.preload(FileId(2 + leg), 0, &told.encode());
    }
    world
}

fn serve_grown(world: World) -> Rig {
    let mut bits = Bits::clean(bitmap().chunks());
    for chunk in OLD / 8..SECTORS / 8 {
        bits.set(chunk);
    }
    let size = ArraySize { array: Sectors(SECTORS), member: Sectors(SECTORS) };
    serve(world, bits, Some(Sector(OLD)), Some(size))
}

#[test]
fn an_array_that_has_grown_is_resynced_where_it_is_new_and_its_superblocks_tell_of_it() {
    let mut rig = serve_grown(grown());
    assert_eq!(rig.read(OLD, 8).unwrap(), [0xa0; 4096], "of one leg, wherever it is read");
    assert_eq!(rig.read(SECTORS - 8, 8).unwrap(), [0xa0; 4096]);
    rig.open();
    rig.write(OLD + 8, 8, 3).unwrap();
    rig.wait_sync();
    rig.rest(Nanos::secs(12));
    for leg in 0..2 {
        let (superblock, bitmap, bits) = found(&rig.world, leg);
        assert_eq!((superblock.array_sectors, superblock.sectors), (SECTORS, SECTORS));
        assert_eq!((superblock.array_resync_offset, bitmap.sync_size), (IN_SYNC, SECTORS));
        assert_eq!(bits.dirty_chunks(), 0);
        for (sector, byte) in [(OLD, 0xa0), (OLD + 8, 3), (SECTORS - 1, 0xa0)] {
            assert_eq!(rig.world.peek(FileId(leg), sector), [byte; 512], "sector {sector} of leg {leg}");
        }
    }
}

#[test]
fn a_power_cut_leaves_what_has_grown_small_or_with_every_difference_on_record() {
    let (mut small, mut large, mut done) = (0, 0, false);
    for cut in 1.. {
        let world = grown();
        world.cut_at_event(cut);
        let mut rig = serve_grown(world.clone());
        rig.open();
        let bio = rig.write_bio(OLD + 8, 8, 3, Flags::NONE);
        rig.submit(bio);
        rig.rest(Nanos::secs(12));
        done |= !world.is_off();
        let after = world.power_cut();
        let legs = [0, 1].map(|leg| found(&after, leg));
        let newest = legs.iter().max_by_key(|(superblock, ..)| superblock.events).unwrap();
        if newest.0.array_sectors == OLD {
            small += 1;
            continue;
        }
        large += 1;
        for sector in (OLD..SECTORS).step_by(8) {
            let agree = after.peek(FileId(0), sector) == after.peek(FileId(1), sector);
            let known = newest.0.array_resync_offset <= sector
                && legs
                    .iter()
                    .all(|(_, bitmap, bits)| bitmap.sync_size == SECTORS && bits.is_dirty(sector / 8));
            assert!(agree || known, "cut {cut}: sector {sector} differs, and nothing says so");
        }
        if done {
            break;
        }
    }
    assert!(small > 0 && large > 10, "{small} before the new size was on record, {large} after it");
}

pub fn found(world: &World, leg: u32) -> (Superblock, BitmapSuperblock, Bits) {
    let sector = |sector| world.peek(FileId(2 + leg), sector);
    let bytes = sector(8);
    let bitmap = BitmapSuperblock::decode(&bytes, 4096).unwrap();
    let bits = Bits::decode(&bitmap, &bytes[BITMAP_SUPERBLOCK_BYTES..], 0).unwrap();
    (Superblock::decode(&sector(0)).unwrap(), bitmap, bits)
}

#[test]
fn bits_and_events_are_kept_beside_the_images() {
    let mut rig = volume();
    rig.write(80, 8, 1).unwrap();
    for leg in 0..2 {
        let (superblock, bitmap, bits) = found(&rig.world, leg);
        assert_eq!((superblock.events, bitmap.events), (10, 10));
        assert_eq!(superblock.array_resync_offset, 0, "Linux resyncs what the bitmap has if we die now");
        assert!(bits.is_dirty(10) && bits.dirty_chunks() == 1);
        assert_eq!(rig.world.peek(FileId(leg), 80), [1; 512]);
    }
    rig.rest(Nanos::secs(12));
    let (superblock, _, bits) = found(&rig.world, 1);
    assert_eq!((superblock.events, superblock.array_resync_offset), (11, IN_SYNC), "idle, and so clean");
    assert_eq!(bits.dirty_chunks(), 0);
    rig.write(0, 8, 2).unwrap();
    let below: Vec<_> = rig.served.array.below().iter().map(|layer| layer.node()).collect();
    assert_eq!(below, [0, 1, 2, 3].map(NodeId));
    let (world, _) = rig.close();
    let (superblock, bitmap, bits) = found(&world, 0);
    assert_eq!((superblock.events, superblock.array_resync_offset), (bitmap.events, IN_SYNC));
    assert_eq!(bits.dirty_chunks(), 0);
}

#[test]
fn a_bit_stays_while_a_write_that_relies_on_it_is_under_way() {
    let mut rig = volume();
    rig.write(80, 8, 1).unwrap();
    let so_far = rig.world.counters(FileId(1)).requests();
    rig.world.fail_nth(FileId(1), so_far, Fault::Stall);
    let bio = rig.write_bio(80, 8, 2, Flags::NONE);
    rig.submit(bio);
    rig.rest(Nanos::secs(25));
    assert_eq!((rig.done(), found(&rig.world, 0).2.dirty_chunks()), (0, 1));
    rig.rest(Nanos::secs(20));
    assert_eq!((rig.done(), found(&rig.world, 0).2.dirty_chunks()), (1, 0));
}

#[test]
fn a_leg_that_fails_is_known_to_the_other_by_its_position() {
    let mut rig = volume();
    rig.write(0, 8, 1).unwrap();
    let so_far = rig.world.counters(FileId(0)).requests();
    rig.world.fail_nth(FileId(0), so_far, Fault::Error(Errno::EIO));
    rig.write(0, 8, 2).unwrap();
    let (superblock, _, _) = found(&rig.world, 1);
    assert!(superblock.has_failed(0) && !superblock.has_failed(1));
    let (superblock, _, _) = found(&rig.world, 0);
    assert!(!superblock.has_failed(0), "nothing is written to the metadata of a leg that failed");
    assert_eq!(rig.read(0, 8).unwrap()[0], 2);
}

#[test]
fn a_leg_whose_metadata_cannot_be_written_has_failed() {
    let mut rig = volume();
    rig.world.fail_nth(FileId(3), 0, Fault::Error(Errno::EIO));
    rig.write(0, 8, 1).unwrap();
    let (superblock, _, _) = found(&rig.world, 0);
    assert!(superblock.has_failed(1));
    assert_eq!(rig.served.array.status().degraded, 1);
}
