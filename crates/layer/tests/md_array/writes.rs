//! Healthy and degraded arrays: where data goes, what is written before it, and what is left when it is over.

use blockwork_engine::{Bio, FileId, Flags, Layer, Nanos, Op, Sector, Sectors};
use blockwork_format::md::{IN_SYNC, Role};
use blockwork_layer::md::Places;
use blockwork_sim::Fault;

use crate::rig::{Assembled, DATA_START, Make, Rig};

fn levels() -> Vec<Make> {
    let mut all = vec![Make::raid0(3), Make::raid1(2), Make::raid1(3)];
    for (layout, members) in [("n2", 2), ("n2", 4), ("n3", 4), ("n2", 5), ("f2", 3), ("o2", 4), ("o3", 5)] {
        all.push(Make::raid10(layout, members));
    }
    let without: Vec<_> = all.iter().cloned().map(Make::without_bitmap).collect();
    all.extend(without);
    all
}

#[test]
fn what_is_written_lies_on_all_copies_and_is_read_back() {
    for make in levels() {
        let mut rig = Rig::new(make.clone());
        let geometry = make.geometry();
        let size = geometry.sectors().0;
        for (at, nr, fill) in [(0, size, 1), (5, 50, 2), (size - 1, 1, 3)] {
            rig.write(at, nr, fill).unwrap();
        }
        let mut places = Places::new();
        for sector in 0..size {
            let expected = if sector == size - 1 {
                3
            } else if (5..55).contains(&sector) {
                2
            } else {
                1
            };
            geometry.places(Sector(sector), &mut places);
            for place in &places {
                assert_eq!(rig.on_member(place.member, place.sector.0), expected, "{make:?} {sector}");
            }
        }
        let read = rig.read(0, size).unwrap();
        for (sector, bytes) in read.chunks(512).enumerate() {
            let expected = if sector as u64 == size - 1 {
                3
            } else if (5..55).contains(&sector) {
                2
            } else {
                1
            };
            assert_eq!(bytes, [expected; 512], "{make:?} {sector}");
        }
    }
}

#[test]
fn an_array_without_some_members_reads_and_writes_all_of_it() {
    for (make, absent) in [
        (Make::raid1(3), vec![0, 2]),
        (Make::raid10("n2", 4), vec![1, 2]),
        (Make::raid10("f2", 3), vec![1]),
        (Make::raid10("o2", 4), vec![0]),
        (Make::raid10("n3", 4), vec![3]),
    ] {
        let size = make.geometry().sectors().0;
        let mut rig = Rig::new(make.clone());
        rig.write(0, size, 1).unwrap();
        let (world, make) = rig.close();
        let mut rig = Rig::on(world, make.clone(), &absent, true);
        assert_eq!(rig.served.array.status().degraded, absent.len());
        assert!(rig.read(0, size).unwrap().iter().all(|byte| *byte == 1), "{make:?}");
        rig.write(10, 30, 2).unwrap();
        assert!(rig.read(10, 30).unwrap().iter().all(|byte| *byte == 2), "{make:?}");
        let (world, make) = rig.close();
        let found = Assembled::read(&world, &make, &[]);
        let left_out: Vec<_> =
            (0..make.members).filter(|role| found.members[usize::from(*role)].is_none()).collect();
        assert_eq!(left_out, absent, "those that were absent are out of date, and known to be");
        let (_, bits) = found.bits.unwrap();
        assert!(bits.is_dirty(10 / 8) && bits.is_dirty(39 / 8), "what they lack stays in the bitmap");
        assert_eq!(found.freshest.resync_offset, IN_SYNC);
    }
}

#[test]
fn too_few_members_make_no_array() {
    let make = Make::raid10("n2", 4);
    let rig = Rig::new(make.clone());
    let world = rig.world.clone();
    let failed =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Rig::on(world, make, &[0, 1], true)));
    assert!(failed.is_err());
}

/// What the devices were asked to do, in order, without timing: the words of the journal that begin a request.
fn starts(rig: &Rig) -> Vec<String> {
    rig.world.journal().into_iter().filter(|line| line.contains("start")).collect()
}

#[test]
fn superblocks_and_bits_are_durable_before_the_first_data_and_once_for_many_writes() {
    for make in [Make::raid1(2), Make::raid10("n2", 4)] {
        let mut rig = Rig::new(make.clone());
        let bios: Vec<_> = (0..8).map(|i| rig.write_bio(i * 24, 8, 9, Flags::NONE)).collect();
        bios.into_iter().for_each(|bio| rig.submit(bio));
        (0..8).for_each(|_| rig.finish().result.unwrap());
        for device in 0..make.members {
            let counters = rig.world.counters(FileId(device.into()));
            assert_eq!(counters.fua_writes, 2, "one of the bitmap, one of the superblock");
        }
        let starts = starts(&rig);
        let members = usize::from(make.members);
        // A superblock is 512 bytes at 4096, the bitmap 512 or more at 8192; data is at 32768 and beyond.
        let is_data = |line: &String| line.contains("Write { dsync: false }");
        assert!(starts.len() > 2 * members);
        assert!(!starts[..2 * members].iter().any(is_data), "{starts:#?}");
        assert!(starts[2 * members..].iter().all(is_data), "{starts:#?}");
        for device in 0..make.members {
            let superblock = rig.superblock(device);
            assert_eq!((superblock.resync_offset, superblock.events), (0, 18));
            assert_eq!(rig.dirty(device), [0, 3, 6, 9, 12, 15, 18, 21]);
        }
    }
}

#[test]
fn a_write_where_the_bit_is_set_writes_nothing_but_data() {
    let mut rig = Rig::new(Make::raid1(2));
    rig.write(0, 8, 1).unwrap();
    let before = rig.world.counters(FileId(0));
    rig.write(2, 4, 2).unwrap();
    let after = rig.world.counters(FileId(0));
    assert_eq!((after.writes - before.writes, after.fua_writes - before.fua_writes), (1, 0));
    rig.write(8, 8, 3).unwrap();
    let last = rig.world.counters(FileId(0));
    assert_eq!((last.writes - after.writes, last.fua_writes - after.fua_writes), (2, 1), "one bit, and data");
}

#[test]
fn an_idle_array_is_clean_and_its_bits_go_later() {
    let mut rig = Rig::new(Make::raid1(2));
    rig.write(100, 8, 1).unwrap();
    rig.rest(Nanos::millis(150));
    assert_eq!(rig.superblock(1).resync_offset, 0);
    rig.rest(Nanos::millis(400));
    for device in 0..2 {
        assert_eq!(rig.superblock(device).resync_offset, IN_SYNC);
        assert_eq!(rig.dirty(device), [12, 13]);
    }
    assert!(!rig.served.array.status().active);
    rig.rest(Nanos::secs(11));
    for device in 0..2 {
        assert_eq!(rig.dirty(device), Vec::<u64>::new());
    }
    let idle = rig.world.counters(FileId(0)).requests();
    rig.rest(Nanos::secs(60));
    assert_eq!(rig.world.counters(FileId(0)).requests(), idle, "nothing is done while nothing is to do");
    rig.write(100, 8, 2).unwrap();
    assert_eq!((rig.superblock(0).resync_offset, rig.dirty(0)), (0, vec![12, 13]));
}

#[test]
fn an_array_that_is_written_to_all_the_time_stays_active_and_keeps_the_bits_in_use() {
    let mut rig = Rig::new(Make::raid1(2));
    rig.write(400, 8, 1).unwrap();
    let events = rig.superblock(0).events;
    for round in 0..150 {
        rig.write(8, 8, round).unwrap();
        rig.rest(Nanos::millis(100));
    }
    assert_eq!((rig.superblock(0).events, rig.superblock(0).resync_offset), (events, 0));
    assert_eq!(rig.dirty(0), [1], "what was written once is clear, what is in use is not");
}

#[test]
fn after_closing_there_is_nothing_to_resync() {
    for make in levels() {
        let mut rig = Rig::new(make.clone());
        rig.write(3, 77, 1).unwrap();
        let (world, make) = rig.close();
        let found = Assembled::read(&world, &make, &[]);
        assert_eq!(found.freshest.resync_offset, IN_SYNC, "{make:?}");
        let events: Vec<_> = found.members.iter().flatten().map(|member| member.superblock.events).collect();
        assert_eq!(events.len(), usize::from(make.members));
        assert!(events.iter().all(|event| *event == events[0]), "{make:?} {events:?}");
        if let Some((bitmap, bits)) = found.bits {
            assert_eq!((bits.dirty_chunks(), bitmap.events), (0, events[0]), "{make:?}");
            assert!(bitmap.events_cleared >= 18);
        }
    }
}

#[test]
fn what_is_only_read_is_not_written_to() {
    for writable in [false, true] {
        let rig = Rig::new(Make::raid10("n2", 4));
        let (world, make) = rig.close();
        let mut rig = Rig::on(world, make, &[3], writable);
        rig.read(0, 100).unwrap();
        rig.flush().unwrap();
        rig.rest(Nanos::secs(10));
        let (world, make) = rig.close();
        for device in 0..make.members {
            let counters = world.counters(FileId(device.into()));
            assert_eq!((counters.writes, counters.discards, counters.zeroes), (0, 0, 0));
        }
    }
}

#[test]
fn an_array_of_which_nothing_may_be_written_refuses_writes() {
    let (world, make) = Rig::new(Make::raid1(2)).close();
    let mut rig = Rig::on(world, make, &[], false);
    assert!(rig.served.array.limits().read_only);
    assert_eq!(rig.write(0, 8, 1), Err(blockwork_engine::Errno::EROFS));
}

#[test]
fn spares_have_the_events_of_the_members() {
    let mut rig = Rig::new(Make { spares: 1, ..Make::raid1(2) });
    rig.write(0, 8, 1).unwrap();
    assert_eq!(rig.superblock(2).events, 18);
    assert_eq!(rig.superblock(2).roles[..3], [Role::Active(0), Role::Active(1), Role::Spare]);
    let (world, make) = rig.close();
    let found = Assembled::read(&world, &make, &[]);
    assert_eq!(found.spares.len(), 1);
    assert_eq!(found.spares[0].superblock.events, found.freshest.events);
}

#[test]
fn a_discard_of_everything_is_few_requests_and_a_flush_one_per_member() {
    for (make, most) in [
        (Make::raid1(2), 1),
        (Make::raid10("n2", 4), 1),
        (Make::raid10("f2", 4), 2),
        (Make::raid10("o2", 5), 3),
        (Make::raid0(3), 1),
    ] {
        let mut rig = Rig::new(make.clone());
        let size = make.geometry().sectors().0;
        rig.write(0, size, 1).unwrap();
        for op in [Op::Discard, Op::WriteZeroes] {
            rig.run(Bio::without_data(op, Flags::NONE, Sector(0), Sectors(size))).0.unwrap();
        }
        rig.flush().unwrap();
        for device in 0..make.members {
            let counters = rig.world.counters(FileId(device.into()));
            assert!(counters.discards <= most, "{make:?}: {counters:?}");
            assert!(counters.zeroes <= most, "{make:?}: {counters:?}");
            assert!(counters.flushes >= 1, "{make:?}");
        }
        assert!(rig.read(0, size).unwrap().iter().all(|byte| *byte == 0), "{make:?}");
    }
}

#[test]
fn reads_use_all_members() {
    for make in [Make::raid10("n2", 4), Make::raid10("n3", 5), Make::raid10("f2", 4), Make::raid1(2)] {
        let make = Make { sectors: 1 << 16, ..make }.without_bitmap();
        let mut rig = Rig::new(make.clone());
        let size = make.geometry().sectors().0;
        rig.read(0, size).unwrap();
        for device in 0..make.members {
            let bytes = rig.world.counters(FileId(device.into())).read_bytes;
            let share = size * 512 / u64::from(make.members);
            assert!(bytes >= share / 2, "{make:?}: member {device} read {bytes} bytes of {share}");
        }
    }
}

#[test]
fn the_limits_are_those_that_linux_gives() {
    for (make, io_min, io_opt) in [
        (Make::raid0(3), 8192, 3 * 8192),
        (Make::raid10("n2", 4), 8192, 2 * 8192),
        (Make::raid10("f2", 4), 8192, 4 * 8192),
        (Make::raid10("n2", 5), 8192, 5 * 8192),
        (Make::raid1(2), 512, 0),
    ] {
        let rig = Rig::new(make.clone());
        let limits = rig.served.array.limits();
        assert_eq!((limits.io_min, limits.io_opt), (io_min, io_opt), "{make:?}");
    }
}

#[test]
fn a_resync_position_that_was_found_is_given_back() {
    let mut rig = Rig::new(Make::raid1(2));
    rig.write(64, 8, 1).unwrap();
    // The worker dies here: the superblocks say active, and one bit is set.
    let world = rig.world.power_cut();
    let make = rig.make.clone();
    let mut rig = Rig::on(world, make, &[], true);
    rig.write(200, 8, 1).unwrap();
    assert_eq!(rig.dirty(0), [8, 25]);
    rig.rest(Nanos::secs(12));
    assert_eq!(rig.dirty(0), [8], "set when it was found: not for us to clear");
    let (world, make) = rig.close();
    let found = Assembled::read(&world, &make, &[]);
    assert_eq!(found.freshest.resync_offset, 0);
    assert!(found.may_differ(64) && !found.may_differ(200));
}

#[test]
fn members_found_one_event_apart_are_never_two_apart() {
    let mut rig = Rig::new(Make::raid10("n2", 4));
    rig.write(0, 8, 1).unwrap();
    let (world, make) = rig.close();
    let mut behind = crate::rig::examine(&world, 2, make.device_sectors()).superblock;
    behind.events -= 1;
    let mut requests = 0;
    let mut spread = |cut: u64| -> u64 {
        let world = world.power_cut();
        world.preload(FileId(2), crate::rig::SUPERBLOCK, &behind.encode());
        world.cut_at_event(cut);
        let served = crate::rig::Served::assemble(&world, &make, &[], true);
        let mut rig = Rig::serving(world.clone(), make.clone(), served);
        let bio = rig.write_bio(0, 8, 2, Flags::NONE);
        rig.submit(bio);
        let _ = rig.finish();
        requests = world.events();
        let after = world.power_cut();
        let events =
            (0..4).map(|device| crate::rig::examine(&after, device, make.device_sectors()).superblock.events);
        let events: Vec<_> = events.collect();
        events.iter().max().unwrap() - events.iter().min().unwrap()
    };
    assert_eq!(spread(0), 0);
    for cut in 1..100 {
        assert!(spread(cut) <= 1, "cut at {cut}");
    }
    assert!(requests > 8);
}

#[test]
fn while_a_write_is_under_way_its_bit_stays_and_the_array_is_not_clean() {
    let mut rig = Rig::new(Make::raid1(2));
    rig.write(80, 8, 1).unwrap();
    let so_far = rig.world.counters(FileId(1)).requests();
    rig.world.fail_nth(FileId(1), so_far, Fault::Stall);
    let bio = rig.write_bio(80, 8, 2, Flags::NONE);
    rig.submit(bio);
    rig.rest(Nanos::secs(25));
    assert_eq!((rig.done(), rig.superblock(0).resync_offset, rig.dirty(0)), (0, 0, vec![10]));
    rig.rest(Nanos::secs(20));
    assert_eq!((rig.done(), rig.superblock(0).resync_offset, rig.dirty(0)), (1, IN_SYNC, vec![]));
}

#[test]
fn where_mirrors_may_differ_the_same_copy_is_read_everywhere() {
    for make in [Make::raid1(2), Make::raid1(2).without_bitmap()] {
        // Large enough for reads to take turns.
        let make = Make { sectors: 1 << 13, ..make };
        let size = make.sectors;
        let mut rig = Rig::new(make.clone());
        rig.write(0, size, 1).unwrap();
        rig.flush().unwrap();
        let world = rig.world.power_cut();
        world.preload(FileId(1), DATA_START, &vec![2; Sectors(size).byte_len()]);
        for writable in [false, true] {
            let mut rig = Rig::on(world.clone(), make.clone(), &[], writable);
            assert!(rig.read(0, size).unwrap().iter().all(|byte| *byte == 1), "{make:?}");
            assert!(rig.read(size - 5, 5).unwrap().iter().all(|byte| *byte == 1), "{make:?}");
            assert_eq!(world.counters(FileId(1)).reads, 0);
        }
    }
}
