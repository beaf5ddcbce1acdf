//! Members that refuse something while they are served.

use blockwork_engine::{Bio, Errno, FileId, Flags, Fua, Nanos, Op, Sector, Sectors};
use blockwork_format::md::{IN_SYNC, Role};
use blockwork_layer::md::MemberState;
use blockwork_sim::{Fault, Faults};

use crate::rig::{Assembled, Make, Rig};

/// The array after a first write, so that what comes next is data.
fn active(make: Make) -> Rig {
    let mut rig = Rig::new(make);
    rig.write(0, 512.min(rig.make.geometry().sectors().0), 1).unwrap();
    rig.flush().unwrap();
    rig
}

/// The next request of a device but `skip` suffers this.
fn next(rig: &Rig, device: u16, skip: u64, fault: Fault) {
    let so_far = rig.world.counters(FileId(device.into())).requests();
    rig.world.fail_nth(FileId(device.into()), so_far + skip, fault);
}

const EIO: Fault = Fault::Error(Errno::EIO);

fn states(rig: &Rig) -> Vec<MemberState> {
    rig.served.array.status().members.iter().map(|member| member.state).collect()
}

#[test]
fn a_member_that_refuses_a_write_is_left_out_and_the_others_say_so_before_it_is_acknowledged() {
    for make in
        [Make::raid1(3), Make::raid10("n2", 4), Make::raid10("f2", 3), Make::raid1(2).without_bitmap()]
    {
        let mut rig = active(make);
        next(&rig, 1, 0, EIO);
        let events = rig.superblock(0).events;
        // At the moment when the write is acknowledged, without any time passing after it.
        let bio = rig.write_bio(0, 8, 2, Flags::NONE);
        rig.submit(bio);
        rig.finish().result.unwrap();
        assert_eq!(states(&rig)[1], MemberState::Faulty);
        for device in (0..rig.make.members).filter(|device| *device != 1) {
            let superblock = rig.superblock(device);
            assert_eq!(
                (superblock.roles[1], superblock.events),
                (Role::Faulty, events + 2),
                "{:?}",
                rig.make
            );
        }
        assert_eq!(rig.superblock(1).events, events, "it is let alone");
        assert!(rig.read(0, 8).unwrap().iter().all(|byte| *byte == 2));
        let writes = rig.world.counters(FileId(1)).requests();
        rig.write(0, 64, 3).unwrap();
        rig.flush().unwrap();
        assert_eq!(rig.world.counters(FileId(1)).requests(), writes);
        assert!(rig.read(0, 64).unwrap().iter().all(|byte| *byte == 3));
    }
}

#[test]
fn nothing_that_leaves_out_a_member_is_acknowledged_before_the_others_say_that_it_failed() {
    for make in [Make::raid1(2), Make::raid1(2).without_bitmap(), Make::raid10("n2", 4)] {
        for later in [Bio::flush(), Bio::without_data(Op::Discard, Flags::NONE, Sector(0), Sectors(8))] {
            let mut rig = active(make.clone());
            // Of the first device, what follows the data takes 31 s: bitmap or superblock.
            next(&rig, 0, 1, Fault::Stall);
            next(&rig, 1, 0, EIO);
            let bio = rig.write_bio(0, 8, 2, Flags::NONE);
            rig.submit(bio);
            rig.rest(Nanos::millis(100));
            assert_eq!(states(&rig)[1], MemberState::Faulty);
            rig.submit(later.clone());
            let bio = rig.write_bio(16, 8, 2, Flags::NONE);
            rig.submit(bio);
            rig.rest(Nanos::secs(20));
            assert_eq!((rig.done(), rig.superblock(0).roles[1]), (0, Role::Active(1)), "{make:?} {later:?}");
            rig.rest(Nanos::secs(20));
            assert_eq!((rig.done(), rig.superblock(0).roles[1]), (3, Role::Faulty), "{make:?} {later:?}");
        }
    }
}

#[test]
fn a_member_that_fails_is_found_out_of_date_and_its_bits_stay() {
    let mut rig = active(Make::raid1(2));
    next(&rig, 0, 0, EIO);
    rig.write(100, 8, 2).unwrap();
    rig.rest(Nanos::secs(20));
    assert!(rig.dirty(1).contains(&12), "never cleared while a member lacks it");
    let (world, make) = rig.close();
    let found = Assembled::read(&world, &make, &[]);
    assert!(found.members[0].is_none() && found.members[1].is_some());
    assert_eq!(found.freshest.resync_offset, IN_SYNC);
    let (bitmap, bits) = found.bits.unwrap();
    assert!(bits.is_dirty(12));
    assert!(bitmap.events_cleared < found.freshest.events);
    let mut rig = Rig::on(world, make, &[], true);
    assert!(rig.read(100, 8).unwrap().iter().all(|byte| *byte == 2));
}

#[test]
fn members_that_refuse_flush_or_zeroes_have_failed_as_well() {
    let zeroes = Bio::without_data(Op::WriteZeroes, Flags::NONE, Sector(0), Sectors(128));
    for bio in [Bio::flush(), zeroes] {
        let mut rig = active(Make::raid10("n2", 4));
        rig.write(0, 8, 5).unwrap();
        rig.rest(Nanos::secs(1));
        rig.write(0, 8, 5).unwrap();
        next(&rig, 0, 0, EIO);
        rig.run(bio.clone()).0.unwrap();
        assert_eq!(states(&rig)[0], MemberState::Faulty, "{bio:?}");
        assert_eq!(rig.superblock(1).roles[0], Role::Faulty, "{bio:?}");
    }
}

#[test]
fn a_member_that_refuses_its_superblock_or_bitmap_has_failed() {
    for skip in [0, 1] {
        let mut rig = Rig::new(Make::raid1(3));
        next(&rig, 2, skip, EIO);
        rig.write(0, 8, 1).unwrap();
        assert_eq!(states(&rig)[2], MemberState::Faulty);
        for device in [0, 1] {
            assert_eq!(rig.superblock(device).roles[2], Role::Faulty);
            assert_eq!(rig.superblock(device).resync_offset, 0);
            assert_eq!(rig.dirty(device), [0]);
        }
    }
}

#[test]
fn the_last_copy_is_never_given_up_and_its_errors_go_to_the_client() {
    let mut rig = active(Make::raid1(2));
    next(&rig, 0, 0, EIO);
    rig.write(0, 8, 2).unwrap();
    next(&rig, 1, 0, EIO);
    assert_eq!(rig.write(0, 8, 3), Err(Errno::EIO));
    assert_eq!(states(&rig), [MemberState::Faulty, MemberState::InSync]);
    rig.write(0, 8, 4).unwrap();
    assert!(rig.read(0, 8).unwrap().iter().all(|byte| *byte == 4));
    next(&rig, 1, 0, EIO);
    assert_eq!(rig.read(0, 8), Err(Errno::EIO));
    assert_eq!(rig.read(0, 8).unwrap()[0], 4, "an error that passes is not remembered of the only copy");
}

#[test]
fn where_a_member_that_has_to_stay_refused_a_write_nothing_old_is_read() {
    let mut rig = active(Make::raid10("n2", 3));
    next(&rig, 2, 0, EIO);
    rig.write(16, 8, 1).unwrap();
    // Of the chunks that were there as well, the others have the only copies. The first chunk is on both of them.
    assert_eq!(states(&rig), [MemberState::InSync, MemberState::InSync, MemberState::Faulty]);
    next(&rig, 1, 0, EIO);
    assert_eq!(rig.write(0, 16, 2), Err(Errno::EIO));
    assert_eq!(states(&rig)[1], MemberState::InSync);
    let old = |rig: &Rig, device| (0..16).filter(|sector| rig.on_member(device, *sector) == 1).count();
    assert_eq!(old(&rig, 0), 0);
    assert!(old(&rig, 1) > 0, "all of the write that failed was done");
    let all_new = |read: Result<Vec<u8>, Errno>| read.unwrap().iter().all(|byte| *byte == 2);
    assert!(all_new(rig.read(0, 16)));
    next(&rig, 0, 0, EIO);
    assert_eq!(rig.read(0, 16).err(), Some(Errno::EIO), "the other copy is what was there before");
    assert!(all_new(rig.read(0, 16)));
    // Once it is in sync it is read again.
    rig.open();
    rig.wait_sync();
    assert_eq!(old(&rig, 1), 0);
    next(&rig, 0, 0, EIO);
    assert!(all_new(rig.read(0, 16)));
}

#[test]
fn of_two_members_that_fail_at_once_one_stays() {
    let mut rig = active(Make::raid1(2));
    for device in [0, 1] {
        next(&rig, device, 0, EIO);
    }
    rig.write(0, 8, 2).unwrap();
    let failed = states(&rig).iter().filter(|state| **state == MemberState::Faulty).count();
    assert_eq!(failed, 1);
    assert!(rig.read(0, 8).unwrap().iter().all(|byte| *byte == 2));
}

#[test]
fn a_write_without_room_fails_no_member_and_the_range_may_differ() {
    for make in [Make::raid1(2), Make::raid10("n2", 4), Make::raid1(2).without_bitmap()] {
        let mut rig = active(make.clone());
        next(&rig, 1, 0, Fault::Error(Errno::ENOSPC));
        assert_eq!(rig.write(0, 8, 2), Err(Errno::ENOSPC));
        assert!(states(&rig).iter().all(|state| *state == MemberState::InSync));
        let first = rig.read(0, 8).unwrap();
        assert_eq!(rig.read(2, 3).unwrap(), first[2 * 512..5 * 512], "always the same copy");
        rig.rest(Nanos::secs(12));
        if make.bitmap.is_some() {
            assert_eq!(rig.dirty(0), [0], "{make:?}");
        }
        let (world, make) = rig.close();
        let found = Assembled::read(&world, &make, &[]);
        assert!(found.may_differ(0), "{make:?}");
        assert_eq!(found.members.iter().flatten().count(), usize::from(make.members));
    }
}

#[test]
fn a_client_whose_memory_is_gone_costs_no_member_and_no_sector() {
    const EFAULT: Fault = Fault::Error(Errno::EFAULT);
    for make in [Make::raid1(2), Make::raid10("n2", 4), Make::raid1(2).with_bad_blocks()] {
        let mut rig = active(make.clone());
        // Of more reads than bad ranges are remembered, each from one copy.
        for nth in 0..600 {
            (0..rig.make.members).for_each(|device| next(&rig, device, 0, EFAULT));
            assert_eq!(rig.read(nth % 64 * 8, 8), Err(Errno::EFAULT), "{make:?}");
        }
        rig.world.heal();
        assert!(rig.served.array.status().members.iter().all(|member| member.bad_ranges == 0), "{make:?}");
        // A write reaches none of the copies, or one.
        for failing in [0..2, 1..2] {
            failing.for_each(|device| next(&rig, device, 0, EFAULT));
            assert_eq!(rig.write(0, 8, 2), Err(Errno::EFAULT), "{make:?}");
        }
        assert!(states(&rig).iter().all(|state| *state == MemberState::InSync), "{make:?}");
        assert!(rig.served.array.status().members.iter().all(|member| member.bad_ranges == 0), "{make:?}");
        let (world, make) = rig.close();
        let found = Assembled::read(&world, &make, &[]);
        assert!(found.may_differ(0), "{make:?}");
        assert_eq!(found.members.iter().flatten().count(), usize::from(make.members), "{make:?}");
    }
}

#[test]
fn a_discard_that_fails_costs_no_member_and_the_range_may_differ() {
    for (errno, differs) in [(Errno::EIO, true), (Errno::EOPNOTSUPP, false)] {
        let mut rig = active(Make::raid1(2));
        next(&rig, 1, 0, Fault::Error(errno));
        let discard = Bio::without_data(Op::Discard, Flags::NONE, Sector(0), Sectors(64));
        assert_eq!(rig.run(discard).0, Err(errno));
        assert!(states(&rig).iter().all(|state| *state == MemberState::InSync));
        if differs {
            // The second copy was discarded in part, if at all.
            assert!(rig.read(0, 64).unwrap().iter().all(|byte| *byte == 0), "always the first copy");
        }
        let (world, make) = rig.close();
        assert_eq!(Assembled::read(&world, &make, &[]).may_differ(0), differs, "{errno}");
    }
}

#[test]
fn what_cannot_be_read_is_read_from_another_copy_and_written_anew() {
    for make in [Make::raid1(2), Make::raid10("n2", 4), Make::raid10("o2", 3)] {
        let mut rig = active(make.clone());
        next(&rig, 0, 0, Fault::Latent);
        assert!(rig.read(0, 16).unwrap().iter().all(|byte| *byte == 1), "{make:?}");
        rig.rest(Nanos::millis(10));
        let status = rig.served.array.status();
        assert_eq!(status.members[0].bad_ranges, 0, "{make:?}");
        assert_eq!((status.members[0].state, status.members[0].corrected), (MemberState::InSync, 16));
        let before = rig.world.counters(FileId(0)).reads;
        assert!(rig.read(0, 16).unwrap().iter().all(|byte| *byte == 1));
        assert_eq!(rig.world.counters(FileId(0)).reads, before + 1, "it is read there again");
        rig.write(0, 8, 1).unwrap();
        let (world, make) = rig.close();
        let found = Assembled::read(&world, &make, &[]);
        assert_eq!(found.members[0].as_ref().unwrap().superblock.corrected_errors, 16);
    }
}

#[test]
fn a_place_that_cannot_be_written_anew_fails_its_member() {
    let mut rig = active(Make::raid1(2));
    next(&rig, 0, 0, Fault::ForEver);
    assert!(rig.read(0, 16).unwrap().iter().all(|byte| *byte == 1));
    rig.rest(Nanos::millis(10));
    assert_eq!(states(&rig), [MemberState::Faulty, MemberState::InSync]);
    assert_eq!(rig.superblock(1).roles[0], Role::Faulty);
    rig.write(0, 16, 2).unwrap();
    assert_eq!(rig.read(0, 16).unwrap()[0], 2);
}

#[test]
fn a_place_is_mended_while_it_is_written_to_and_keeps_what_was_written() {
    let mut rig = active(Make::raid1(2));
    next(&rig, 0, 0, Fault::Latent);
    let memory = rig.write_bio(0, 16, 0, Flags::NONE).data;
    rig.submit(Bio::with_data(Op::Read, Flags::NONE, Sector(0), memory));
    for round in 2..40 {
        let bio = rig.write_bio(u64::from(round) % 16, 1, round, Flags::NONE);
        rig.submit(bio);
        rig.finish().result.unwrap();
    }
    rig.finish().result.unwrap();
    rig.rest(Nanos::secs(1));
    assert_eq!(states(&rig), [MemberState::InSync; 2]);
    assert_eq!(rig.served.array.status().members[0].bad_ranges, 0);
    for sector in 0..16 {
        assert_eq!(rig.on_member(0, sector), rig.on_member(1, sector), "{sector}");
        let last = (2..40u8).rev().find(|round| u64::from(*round) % 16 == sector);
        assert_eq!(Some(rig.on_member(0, sector)), last);
    }
}

#[test]
fn on_an_array_of_which_nothing_may_be_written_bad_places_are_only_avoided() {
    let mut rig = active(Make::raid1(2));
    rig.write(0, 16, 7).unwrap();
    let (world, make) = rig.close();
    let mut rig = Rig::on(world, make, &[], false);
    let writes = |rig: &Rig| [0, 1].map(|device| rig.world.counters(FileId(device)).writes);
    let before = writes(&rig);
    next(&rig, 0, 0, Fault::ForEver);
    for _ in 0..3 {
        assert!(rig.read(0, 16).unwrap().iter().all(|byte| *byte == 7));
    }
    assert_eq!(rig.served.array.status().members[0].bad_ranges, 1);
    assert_eq!(writes(&rig), before);
}

#[test]
fn a_raid0_has_nothing_to_do_without() {
    let mut rig = Rig::new(Make::raid0(2));
    rig.write(0, 64, 1).unwrap();
    next(&rig, 0, 0, EIO);
    assert_eq!(rig.write(0, 8, 2), Err(Errno::EIO));
    next(&rig, 0, 0, EIO);
    assert_eq!(rig.read(0, 8), Err(Errno::EIO));
    rig.read(0, 8).unwrap();
}

#[test]
fn a_disk_that_fails_everything_is_left_out_while_the_array_is_busy() {
    let mut rig = active(Make::raid10("n2", 4));
    let broken = Faults {
        write_errors: 1_000_000,
        flush_errors: 1_000_000,
        read_errors: 1_000_000,
        ..Faults::default()
    };
    rig.world.set_faults(FileId(2), broken);
    for i in 0..60u64 {
        let bio = if i % 3 == 0 {
            let memory = rig.write_bio(0, 8, 0, Flags::NONE).data;
            Bio::with_data(Op::Read, Flags::NONE, Sector(i * 8), memory)
        } else {
            rig.write_bio(i * 8, 8, 3, if i % 2 == 0 { Flags::FUA } else { Flags::NONE })
        };
        rig.submit(bio);
    }
    (0..60).for_each(|_| rig.finish().result.unwrap());
    rig.flush().unwrap();
    assert_eq!(states(&rig)[2], MemberState::Faulty);
    assert_eq!(rig.served.array.status().degraded, 1);
}

#[test]
fn a_member_that_lost_a_flush_is_not_read_also_while_somebody_else_has_the_turn() {
    let mut rig = active(Make::raid1(2).of_sectors(1024));
    (0..8).for_each(|sector| rig.write(sector, 1, 2).unwrap());
    // The bit of another write takes 31 s on the other one: until then no member can be given up.
    next(&rig, 1, 0, Fault::Stall);
    let bio = rig.write_bio(600, 8, 2, Flags::NONE);
    rig.submit(bio);
    rig.rest(Nanos::millis(10));
    next(&rig, 0, 0, Fault::LostFlush);
    rig.submit(Bio::flush());
    rig.rest(Nanos::millis(10));
    assert_eq!((rig.done(), rig.states()[0]), (0, MemberState::InSync));
    assert!((0..8).any(|sector| rig.on_member(0, sector) != 2), "it has forgotten something");
    assert!(rig.read(0, 8).unwrap().iter().all(|byte| *byte == 2));
    (0..2).for_each(|_| rig.finish().result.unwrap());
    assert_eq!(rig.states()[0], MemberState::Faulty);
    assert!(rig.read(0, 8).unwrap().iter().all(|byte| *byte == 2));
}

#[test]
fn a_flush_behind_fua_that_finds_no_room_costs_the_member_and_not_the_array() {
    for make in [Make::raid1(3), Make::raid10("n2", 4), Make::raid5(4), Make::raid6(5)] {
        let mut rig = Rig::of(make.of_sectors(1024), |device| device.limits.fua = Fua::Flush);
        (0..64).for_each(|at| rig.write(8 * at, 8, 1).unwrap());
        // Data that is written beside whatever else there is of the row.
        let device = rig.device_of(0);
        let at = (0..64).map(|at| 8 * at).find(|at| {
            let before = rig.world.counters(FileId(device.into())).writes;
            rig.write(*at, 8, 2).unwrap();
            rig.world.counters(FileId(device.into())).writes > before
        });
        next(&rig, device, 1, Fault::Error(Errno::ENOSPC));
        let bio = rig.write_bio(at.expect("a member has data"), 8, 3, Flags::FUA);
        assert_eq!(rig.run(bio).0, Ok(()));
        assert_eq!(rig.states()[usize::from(device)], MemberState::Faulty);
        assert_eq!(rig.read(at.unwrap(), 8), Ok(vec![3; 8 * 512]));
        (0..64).for_each(|at| rig.write(8 * at, 8, 4).unwrap());
        rig.flush().unwrap();
    }
}
