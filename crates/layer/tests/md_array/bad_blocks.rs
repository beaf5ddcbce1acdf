//! Lists of bad blocks that clients write over.

use blockwork_engine::{Bio, Errno, FileId, Flags, Nanos, Op, Sector, Sectors};
use blockwork_format::md::bad_blocks;
use blockwork_format::md::v1::{Features, Region};
use blockwork_layer::md::SyncAction;
use blockwork_sim::{Fault, World};

use crate::rig::{BAD_BLOCKS, DATA_START, Make, Rig, SUPERBLOCK, examine};

/// What both members have in their lists.
const BAD: u64 = 40;
const NR: u64 = 16;

/// A mirror of ones whose members both list these sectors.
fn listed_by(devices: &[u16]) -> Rig {
    let mut rig = Rig::new(Make::raid1(2).with_bad_blocks());
    rig.write(0, 512, 1).unwrap();
    let (world, make) = rig.close();
    let list = [Region { start: DATA_START + BAD, sectors: NR }];
    for device in devices {
        let mut superblock = examine(&world, *device, make.device_sectors()).superblock;
        superblock.features = superblock.features.with(Features::BAD_BLOCKS, true);
        world.preload(FileId((*device).into()), SUPERBLOCK, &superblock.encode());
        world.preload(FileId((*device).into()), BAD_BLOCKS, &bad_blocks::encode(&list, 0, 8).unwrap());
    }
    Rig::on(world, make, &[], true)
}

fn listed() -> Rig {
    listed_by(&[0, 1])
}

/// The list of a device as it is on disk.
fn list(world: &World, make: &Make, device: u16) -> Vec<(u64, u64)> {
    let found = examine(world, device, make.device_sectors());
    found.bad.iter().map(|(start, nr)| (start.0, nr.0)).collect()
}

fn lists(rig: &Rig) -> [Vec<(u64, u64)>; 2] {
    [0, 1].map(|device| list(&rig.world, &rig.make, device))
}

#[test]
fn what_no_copy_had_can_be_read_when_it_was_written_and_leaves_the_lists_with_a_flush() {
    let mut rig = listed();
    assert_eq!(rig.read(BAD, 8), Err(Errno::EIO));
    rig.write(BAD, 8, 7).unwrap();
    assert_eq!(rig.read(BAD, 8), Ok(vec![7; 8 * 512]));
    assert_eq!(rig.read(BAD + 8, 8), Err(Errno::EIO), "that was not written");
    assert_eq!(lists(&rig), [vec![(BAD, NR)], vec![(BAD, NR)]], "it need not be durable yet");
    rig.flush().unwrap();
    assert_eq!(lists(&rig), [vec![(BAD + 8, 8)], vec![(BAD + 8, 8)]]);
    let mut rig = Rig::on(rig.world.power_cut(), rig.make.clone(), &[], true);
    assert_eq!(rig.read(BAD, 8), Ok(vec![7; 8 * 512]));
    assert_eq!(rig.read(BAD + 8, 8), Err(Errno::EIO));
    // The rest, by the array's end.
    rig.write(BAD + 8, 8, 7).unwrap();
    let (world, make) = rig.close();
    assert_eq!([0, 1].map(|device| list(&world, &make, device)), [vec![], vec![]]);
}

#[test]
fn a_copy_that_only_one_member_lists_is_one_again() {
    let mut rig = listed_by(&[1]);
    rig.write(BAD, NR, 7).unwrap();
    rig.flush().unwrap();
    assert_eq!(list(&rig.world, &rig.make, 1), []);
    rig.fail("0").unwrap();
    assert_eq!(rig.read(BAD, NR), Ok(vec![7; 16 * 512]));
}

#[test]
fn a_write_that_is_durable_when_it_completes_has_left_the_lists() {
    let mut rig = listed();
    let bio = rig.write_bio(BAD, NR, 7, Flags::FUA);
    assert_eq!(rig.run(bio).0, Ok(()));
    assert_eq!(lists(&rig), [vec![], vec![]]);
}

#[test]
fn zeroes_are_a_write_and_a_discard_is_none() {
    let mut rig = listed();
    for (op, reads) in [(Op::Discard, Err(Errno::EIO)), (Op::WriteZeroes, Ok(vec![0; 16 * 512]))] {
        let bio = Bio::without_data(op, Flags::NONE, Sector(BAD), Sectors(NR));
        assert_eq!(rig.run(bio).0, Ok(()));
        rig.flush().unwrap();
        assert_eq!(rig.read(BAD, NR), reads, "{op:?}");
        let expected = if reads.is_ok() { vec![] } else { vec![(BAD, NR)] };
        assert_eq!(lists(&rig), [expected.clone(), expected], "{op:?}");
    }
}

#[test]
fn where_the_write_fails_the_block_stays_in_the_list() {
    let mut rig = listed();
    // The first one makes the array active.
    rig.write(256, 8, 1).unwrap();
    let so_far = rig.world.counters(FileId(1)).requests();
    for attempt in 0..2 {
        rig.world.fail_nth(FileId(1), so_far + attempt, Fault::Error(Errno::EIO));
    }
    // Whatever becomes of the member: it never tells of old data.
    if rig.write(BAD, NR, 7).is_ok() && rig.flush().is_ok() {
        assert_eq!(rig.read(BAD, NR), Ok(vec![7; 16 * 512]));
    }
    let world = rig.world.power_cut();
    let is_new = world.peek(FileId(1), DATA_START + BAD)[0] == 7;
    assert!(is_new || list(&world, &rig.make, 1) == [(BAD, NR)]);
}

#[test]
fn a_flush_fails_where_the_last_copy_does_not_take_its_new_list_and_the_next_one_tries_again() {
    let mut rig = listed_by(&[1]);
    rig.write(BAD, NR, 7).unwrap();
    rig.fail("0").unwrap();
    // Its flush, and then the list, also where that is tried without FUA.
    let so_far = rig.world.counters(FileId(1)).requests();
    (1..3).for_each(|nth| rig.world.fail_nth(FileId(1), so_far + nth, Fault::Error(Errno::EIO)));
    assert_eq!(rig.flush(), Err(Errno::EIO));
    assert!(rig.read(BAD, NR) == Ok(vec![7; 16 * 512]));
    rig.flush().unwrap();
    let world = rig.world.power_cut();
    assert_eq!(list(&world, &rig.make, 1), []);
    let mut rig = Rig::on(world, rig.make.clone(), &[0], true);
    assert_eq!(rig.read(BAD, NR), Ok(vec![7; 16 * 512]));
}

#[test]
fn a_flush_that_comes_while_another_one_renews_the_lists_waits_for_them() {
    let mut rig = listed();
    rig.write(BAD, NR, 7).unwrap();
    let so_far = rig.world.counters(FileId(1)).requests();
    // A list takes its time, and is not there yet when the second one comes.
    rig.world.fail_nth(FileId(1), so_far + 1, Fault::Stall);
    rig.submit(Bio::flush());
    let mut steps = 0;
    while rig.world.counters(FileId(1)).requests() < so_far + 2 {
        rig.step();
        steps += 1;
        assert!(steps < 1000, "the list is never written");
    }
    assert_eq!((rig.done(), list(&rig.world, &rig.make, 1)), (0, vec![(BAD, NR)]));
    rig.submit(Bio::flush());
    assert_eq!(rig.finish().result, Ok(()));
    assert_eq!(lists(&rig), [vec![], vec![]], "whichever of them was the first");
    assert_eq!(rig.finish().result, Ok(()));
}

#[test]
fn a_power_cut_never_leaves_old_data_outside_the_lists() {
    let mut kept = [0; 2];
    // What of the caches survives differs from one to the next.
    for chance in 0..8 {
        for cut in 1.. {
            let rig = listed();
            let mut world = rig.world.power_cut();
            (0..chance).for_each(|_| world = world.power_cut());
            let is_over = write_and_cut(&world, &rig.make, cut, &mut kept);
            if is_over {
                break;
            }
        }
    }
    assert!(kept[0] > 20 && kept[1] > 8, "{kept:?}");
}

/// Writes the bad blocks, and cuts the power at that event; whether all was done before. Counts devices that still list them, and that do not.
fn write_and_cut(world: &World, make: &Make, cut: u64, kept: &mut [u32; 2]) -> bool {
    world.cut_at_event(cut);
    let mut rig = Rig::on(world.clone(), make.clone(), &[], true);
    let is_written = rig.write(BAD, NR, 7).is_ok() && rig.flush().is_ok();
    let is_over = !world.is_off();
    let after = world.power_cut();
    for device in [0, 1] {
        let list = list(&after, make, device);
        assert!(!is_written || list.is_empty(), "cut {cut}: a flush was acknowledged");
        kept[usize::from(list.is_empty())] += 1;
        for sector in BAD..BAD + NR {
            let is_new = after.peek(FileId(device.into()), DATA_START + sector)[0] == 7;
            let is_listed = list.iter().any(|(start, nr)| (*start..start + nr).contains(&sector));
            assert!(is_new || is_listed, "cut {cut}: sector {sector} of {device} is old, and in no list");
        }
    }
    assert!(!is_over || is_written);
    is_over
}

/// A mirror whose first member is about to be replaced, by a device that has refused a write; the other member has failed since.
fn half_replaced(refuses_again: bool) -> Rig {
    let fault = if refuses_again { Fault::ForEver } else { Fault::Error(Errno::EIO) };
    let mut rig = Rig::new(Make::raid1(2).with_bad_blocks().with_spares(1).of_sectors(16_384));
    rig.served.array.set_speed(1024, 1024);
    rig.replace("d0", Some("d2")).unwrap();
    rig.rest(Nanos::secs(3));
    rig.write(BAD, NR, 6).unwrap();
    let so_far = rig.world.counters(FileId(2)).requests();
    rig.world.fail_nth(FileId(2), so_far, fault);
    rig.write(BAD, NR, 7).unwrap();
    assert_eq!(list(&rig.world, &rig.make, 2), [(BAD, NR)]);
    rig.fail("d1").unwrap();
    rig.served.array.set_speed(1 << 20, 1 << 20);
    rig.wait_sync();
    rig
}

#[test]
fn what_only_the_member_has_that_is_replaced_is_copied_before_it_goes() {
    let mut rig = half_replaced(false);
    assert_eq!(rig.device_of(0), 2);
    assert_eq!(list(&rig.world, &rig.make, 2), []);
    assert_eq!(rig.read(BAD, NR), Ok(vec![7; 16 * 512]));
}

#[test]
fn a_replacement_that_refuses_what_only_the_member_has_does_not_get_its_place() {
    let mut rig = half_replaced(true);
    assert_eq!(rig.device_of(0), 0);
    assert_eq!(rig.read(BAD, NR), Ok(vec![7; 16 * 512]));
}

#[test]
fn a_member_that_has_refused_a_write_is_replaced_by_a_spare_while_it_still_serves() {
    let mut rig = Rig::new(Make::raid1(2).with_bad_blocks().with_spares(1).of_sectors(16_384));
    rig.served.array.set_speed(1024, 1024);
    rig.write(BAD, NR, 6).unwrap();
    rig.world.fail_nth(FileId(1), rig.world.counters(FileId(1)).requests(), Fault::Error(Errno::EIO));
    rig.write(BAD, NR, 7).unwrap();
    assert_eq!(list(&rig.world, &rig.make, 1), [(BAD, NR)]);
    rig.rest(Nanos::secs(1));
    let status = rig.served.array.status();
    assert_eq!((status.degraded, status.replacements.len(), rig.device_of(1)), (0, 1, 1), "{status:?}");
    rig.served.array.set_speed(1 << 20, 1 << 20);
    rig.wait_sync();
    let status = rig.served.array.status();
    assert_eq!((status.degraded, status.faulty.len(), rig.device_of(1)), (0, 1, 2), "{status:?}");
    assert_eq!(list(&rig.world, &rig.make, 2), []);
    rig.fail("d0").unwrap();
    assert_eq!(rig.read(BAD, NR), Ok(vec![7; 16 * 512]));
}

#[test]
fn it_is_so_also_where_people_had_stopped_what_was_due() {
    let mut rig = Rig::new(Make::raid1(2).with_bad_blocks().with_spares(2).of_sectors(16_384));
    rig.served.array.set_speed(1024, 1024);
    rig.replace("d0", Some("d2")).unwrap();
    rig.rest(Nanos::secs(1));
    rig.start_sync(SyncAction::Idle).unwrap();
    rig.served.array.set_speed(1 << 20, 1 << 20);
    rig.write(BAD, NR, 6).unwrap();
    rig.wait_sync();
    assert_eq!((rig.device_of(0), rig.device_of(1)), (0, 1), "it goes on though it was stopped");
    rig.world.fail_nth(FileId(1), rig.world.counters(FileId(1)).requests(), Fault::Error(Errno::EIO));
    rig.write(BAD, NR, 7).unwrap();
    rig.wait_sync();
    assert_eq!((rig.device_of(0), rig.device_of(1)), (2, 3));
}

#[test]
fn the_only_spare_is_for_whose_place_nobody_has() {
    let mut rig = Rig::new(Make::raid1(3).with_bad_blocks().with_blank(1).of_sectors(4096));
    rig.write(BAD, NR, 6).unwrap();
    rig.world.fail_nth(FileId(0), rig.world.counters(FileId(0)).requests(), Fault::Error(Errno::EIO));
    rig.write(BAD, NR, 7).unwrap();
    assert_eq!(list(&rig.world, &rig.make, 0), [(BAD, NR)]);
    rig.fail("d2").unwrap();
    rig.add(3).unwrap();
    rig.wait_sync();
    assert_eq!(
        ([0, 1, 2].map(|role| rig.device_of(role)), rig.served.array.status().degraded),
        ([0, 1, 3], 0)
    );
}
