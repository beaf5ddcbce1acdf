//! An array that was split, and whose devices are added to each other again: those that were used together on one side know each
//! other, and no bitmap of the other side knows what they were.

use blockwork_engine::{Nanos, Sectors};
use blockwork_format::md::Role;
use blockwork_layer::md::{Added, SyncAction, VerbError};
use blockwork_sim::World;

use crate::rig::{Assembled, Make, Rig, examine, try_examine};

/// The device that goes over to the other side, and the one that was used with it.
const GOES: u16 = 0;
const SHARES: u16 = 1;
/// What the first side has written, and the other one.
const THEIRS: u64 = 1000;
const OURS: u64 = 2000;

/// A mirror of two and `others` more, the first of which has a slot behind those that an array is created with: that is the one which it
/// gets again. Then the two were used by themselves, writing so often, and the others.
fn split(others: u16, times: u64, other_times: u64) -> (World, Make) {
    let mut rig = Rig::new(Make::raid1(2 + others).of_sectors(4096));
    rig.write(0, 64, 1).unwrap();
    rig.fail("d0").unwrap();
    rig.remove("failed").unwrap();
    let mut blank = rig.new_member(GOES);
    blank.superblock = None;
    rig.verb(|array, cx| async move { array.add(blank, &cx).await }).unwrap();
    rig.wait_sync();
    let (world, make) = rig.close();
    let (one, other): (Vec<u16>, Vec<u16>) = (0..2 + others).partition(|device| *device < 2);
    use_without(&world, &make, &other, THEIRS, times);
    use_without(&world, &make, &one, OURS, other_times);
    (world, make)
}

fn use_without(world: &World, make: &Make, absent: &[u16], sector: u64, times: u64) {
    let mut half = Rig::on(world.clone(), make.clone(), absent, true);
    for nth in 0..times {
        half.write(sector + nth * 8, 8, 7).unwrap();
        half.rest(Nanos::secs(1));
    }
    half.close();
}

/// Everybody who shares the past of the device that went over is too old for the bitmap, and out of date beside the others.
fn expect_that_the_past_is_left(world: &World, make: &Make, who: &str) {
    let shares = examine(world, SHARES, make.device_sectors()).superblock;
    let found = Assembled::read(world, make, &[]);
    let (bitmap, _) = found.bits.as_ref().unwrap();
    assert!(
        shares.events + 1 < found.freshest.events,
        "{who}: {} of {}",
        shares.events,
        found.freshest.events
    );
    assert!(shares.events < bitmap.events_cleared, "{who}: {} of {bitmap:?}", shares.events);
    // Linux takes back what is cleared in the future.
    assert!(bitmap.events_cleared <= found.freshest.events, "{who}: {bitmap:?}");
    assert!(found.members[usize::from(SHARES)].is_none(), "{who}");
}

/// Adds the device that went over, to the others alone, and waits until it has all data.
fn take_over(world: World, make: Make) -> (World, Make) {
    let mut rig = Rig::on(world, make, &[GOES, SHARES], true);
    assert_eq!(rig.add(GOES).unwrap(), Added::Recovering { role: GOES });
    rig.wait_sync();
    rig.close()
}

/// With the device that went over alone, who was used with it comes back.
fn come_back_to_it(world: World, make: Make, others: &[u16], times: u64) {
    let mut rig = Rig::on(world, make, &[&[SHARES], others].concat(), true);
    let table = rig.superblock(SHARES).roles;
    assert_eq!(table[rig.superblock(GOES).dev_number as usize], Role::Active(GOES), "it knows the other one");
    assert_eq!(rig.add(SHARES).unwrap(), Added::Recovering { role: SHARES });
    rig.wait_sync();
    rig.start_sync(SyncAction::Check).unwrap();
    assert_eq!(rig.wait_sync().mismatches, Sectors(0));
    for nth in 0..times {
        assert_eq!(rig.read(OURS + nth * 8, 8).unwrap(), [7; 8 * 512]);
    }
}

#[test]
fn who_was_used_with_a_device_that_was_copied_whole_since_is_copied_whole() {
    for (others, times, other_times) in [(1, 1, 1), (1, 12, 1), (1, 1, 12), (2, 12, 1), (2, 1, 12)] {
        let who = format!("{others} others, {times} and {other_times} times");
        let (world, make) = split(others, times, other_times);
        let (world, make) = take_over(world, make);
        expect_that_the_past_is_left(&world, &make, &who);
        let others: Vec<u16> = (2..2 + others).collect();
        come_back_to_it(world, make, &others, other_times);
    }
}

#[test]
fn a_power_cut_while_a_past_is_left_behind_leaves_an_array_that_leaves_it_behind() {
    for (others, times) in [(1, 12), (2, 6)] {
        let mut added = [0; 2];
        for cut in 1.. {
            let (world, make) = split(others, times, 1);
            let before = examine(&world, GOES, make.device_sectors()).superblock;
            let mut rig = Rig::on(world, make.clone(), &[GOES, SHARES], true);
            rig.world.cut_at_event(rig.world.events() + cut);
            let is_added = rig.add(GOES).is_ok();
            let is_over = !rig.world.is_off();
            added[usize::from(is_added)] += 1;
            let world = rig.world.power_cut();
            let who = format!("{others} others, cut {cut}");
            // Nobody is left behind.
            let found = Assembled::read(&world, &make, &[GOES, SHARES]);
            assert_eq!(found.members.iter().flatten().count(), usize::from(others), "{who}");
            let now = try_examine(&world, GOES, make.device_sectors()).map(|found| found.superblock);
            if now.as_ref() == Some(&before) {
                assert!(!is_added, "{who}");
                let (world, make) = take_over(world, make);
                expect_that_the_past_is_left(&world, &make, &who);
            } else {
                expect_that_the_past_is_left(&world, &make, &who);
            }
            if is_over {
                break;
            }
        }
        assert!(added.iter().all(|times| *times > 0), "{added:?}");
    }
}

#[test]
fn a_device_that_cannot_be_overtaken_is_refused_as_it_is() {
    let (world, make) = split(2, 1, 1);
    let mut ahead = examine(&world, GOES, make.device_sectors()).superblock;
    ahead.events = u64::MAX - 1;
    world.preload(blockwork_engine::FileId(GOES.into()), ahead.super_offset, &ahead.encode());
    let mut rig = Rig::on(world, make, &[GOES, SHARES], true);
    let before = rig.superblock(2).events;
    let refused = rig.add(GOES).unwrap_err();
    assert!(matches!(&refused, VerbError::Ahead { device, .. } if device == "/dev/d0"), "{refused}");
    assert_eq!(rig.superblock(GOES), ahead);
    assert!(rig.superblock(2).events <= before + 1);
}
