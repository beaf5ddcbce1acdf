//! What people do to an array that is served.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use blockwork_engine::{Bio, Errno, FileId, Flags, Layer, Nanos, Op, Sector, Sectors};
use blockwork_format::md::Role;
use blockwork_format::md::v1::Features;
use blockwork_layer::md::{Added, MemberState, SyncAction, VerbError};
use blockwork_sim::Faults;

use crate::filled::Filled;
use crate::rig::{Make, Rig};

fn written(rig: &Rig, device: u16) -> u64 {
    rig.world.counters(FileId(device.into())).written_bytes / 512
}

#[test]
fn a_member_that_comes_back_lacks_only_what_the_bitmap_says() {
    for make in [Make::raid1(2), Make::raid10("n2", 4), Make::raid10("f2", 3), Make::raid10("o2", 4)] {
        let mut filled = Filled::of(make.of_sectors(8192));
        filled.rig.rest(Nanos::secs(20));
        filled.rig.fail("d1").unwrap();
        filled.write(0, 64);
        filled.write(4000, 8);
        filled.rig.remove("d1").unwrap();
        let before = written(&filled.rig, 1);
        assert_eq!(filled.rig.add(1).unwrap(), Added::ReAdded { role: 1 });
        filled.rig.wait_sync();
        let copied = written(&filled.rig, 1) - before;
        assert!(copied < 400, "{copied} sectors of 8192, {:?}", filled.rig.make);
        assert_eq!(filled.rig.served.array.status().degraded, 0);
        filled.check_copies();
        filled.rig.rest(Nanos::secs(30));
        assert_eq!(filled.rig.dirty(0), [0; 0], "nothing is missing anywhere");
    }
}

#[test]
fn while_it_is_filled_by_the_bitmap_its_superblock_says_so_and_another_server_goes_on_with_that() {
    let mut filled = Filled::of(Make::raid1(2).of_sectors(1 << 16));
    filled.rig.rest(Nanos::secs(20));
    filled.rig.fail("d1").unwrap();
    filled.write(0, 30_000);
    filled.rig.remove("d1").unwrap();
    filled.rig.served.array.set_speed(1, 1);
    filled.rig.add(1).unwrap();
    filled.rig.rest(Nanos::millis(500));
    let superblock = filled.rig.superblock(1);
    assert!(superblock.features.has(Features::RECOVERY_OFFSET | Features::RECOVERY_BITMAP));
    assert_eq!(superblock.role(), Role::Active(1));
    let mut rig = Rig::on(filled.rig.world.power_cut(), filled.rig.make.clone(), &[], true);
    let before = written(&rig, 1);
    rig.open();
    rig.wait_sync();
    assert!(written(&rig, 1) - before < 40_000);
    rig.start_sync(SyncAction::Check).unwrap();
    assert_eq!((rig.wait_sync().mismatches, rig.served.array.status().degraded), (Sectors(0), 0));
}

#[test]
fn one_that_was_away_while_bits_were_cleared_is_filled_whole() {
    let mut filled = Filled::of(Make::raid1(2).of_sectors(4096).with_blank(1));
    filled.rig.fail("d1").unwrap();
    filled.rig.remove("failed").unwrap();
    filled.write(100, 8);
    // Another disk takes its place, is in sync, and bits are cleared; then it goes.
    filled.rig.add(2).unwrap();
    filled.rig.wait_sync();
    filled.write(300, 8);
    filled.rig.rest(Nanos::secs(30));
    assert_eq!(filled.rig.dirty(0), [0; 0]);
    filled.rig.fail("d2").unwrap();
    filled.rig.remove("d2").unwrap();
    assert_eq!(filled.rig.add(1).unwrap(), Added::Recovering { role: 1 });
    filled.rig.wait_sync();
    filled.check_copies();
}

#[test]
fn a_member_is_replaced_while_it_still_serves() {
    for make in [Make::raid1(2), Make::raid10("n2", 4), Make::raid10("f2", 3), Make::raid10("o2", 4)] {
        let spare = make.members;
        let mut filled = Filled::of(make.of_sectors(16_384).with_spares(1));
        filled.rig.served.array.set_speed(2048, 2048);
        filled.rig.replace("d1", None).unwrap();
        filled.rig.rest(Nanos::secs(1));
        let status = filled.rig.served.array.status();
        assert_eq!((status.degraded, status.replacements.len()), (0, 1));
        let superblock = filled.rig.superblock(spare);
        assert!(superblock.features.has(Features::REPLACEMENT | Features::RECOVERY_OFFSET));
        assert_eq!(superblock.role(), Role::Active(1));
        filled.write(5, 40);
        filled.rig.served.array.set_speed(2048, 1 << 20);
        filled.rig.wait_sync();
        assert_eq!(filled.rig.device_of(1), spare);
        let superblock = filled.rig.superblock(spare);
        assert!(!superblock.features.has_any(Features::REPLACEMENT | Features::RECOVERY_OFFSET));
        assert_eq!(filled.rig.superblock(0).roles[1], Role::Faulty);
        let status = filled.rig.served.array.status();
        assert_eq!((status.degraded, status.replacements.len(), status.faulty.len()), (0, 0, 1));
        filled.check_copies();
        assert_eq!(filled.rig.remove("failed").unwrap(), ["d1"]);
    }
}

#[test]
fn a_replacement_goes_on_alone_when_the_member_fails() {
    let mut filled = Filled::of(Make::raid10("n2", 4).of_sectors(16_384).with_spares(1));
    filled.rig.served.array.set_speed(2048, 2048);
    filled.rig.replace("2", Some("d4")).unwrap();
    filled.rig.rest(Nanos::secs(2));
    filled.rig.fail("d2").unwrap();
    filled.write(5, 40);
    filled.rig.served.array.set_speed(2048, 1 << 20);
    filled.rig.wait_sync();
    assert_eq!((filled.rig.device_of(2), filled.rig.served.array.status().degraded), (4, 0));
    filled.check_copies();
}

#[test]
fn half_replaced_members_are_found_again() {
    let mut filled = Filled::of(Make::raid10("n2", 4).of_sectors(16_384).with_spares(1));
    filled.rig.served.array.set_speed(1024, 1024);
    filled.rig.replace("2", None).unwrap();
    filled.rig.rest(Nanos::secs(5));
    filled.rig.stop();
    let make = filled.rig.make.clone();
    let mut rig = Rig::on(filled.rig.world.power_cut(), make, &[], true);
    assert_eq!(rig.served.array.status().replacements.len(), 1);
    rig.open();
    rig.wait_sync();
    assert_eq!(rig.device_of(2), 4);
    rig.start_sync(SyncAction::Check).unwrap();
    assert_eq!(rig.wait_sync().mismatches, Sectors(0));
}

#[test]
fn what_cannot_be_done_says_why_and_what_to_do() {
    let mut rig = Rig::new(Make::raid1(2).with_spares(1).with_blank(1));
    rig.write(0, 8, 1).unwrap();
    let say = |result: Result<(), VerbError>| result.unwrap_err().to_string();
    assert!(say(rig.remove("d0").map(drop)).contains("d0 is in use by a as member 0: fail it first"));
    assert!(say(rig.fail("sdx").map(drop)).contains("a has no device sdx; it has d0, d1, d2"));
    assert!(say(rig.add(1).map(drop)).contains("/dev/d1 belongs to a already"));
    assert!(say(rig.replace("d0", Some("d1"))).contains("d1 of a is member 1, expected a spare"));
    assert!(say(rig.start_sync(SyncAction::Resync)).contains("nothing is due"));
    assert_eq!(rig.remove("d2").unwrap(), ["d2"]);
    assert!(say(rig.replace("d0", None)).contains("no spare of 512 sectors"));
    rig.fail("d1").unwrap();
    assert!(matches!(rig.fail("d0"), Err(VerbError::LastCopy { role: 0, .. })));
    assert_eq!(rig.states(), [MemberState::InSync, MemberState::Faulty]);
    let (world, make) = rig.close();
    let mut rig = Rig::on(world, make, &[], false);
    assert!(matches!(rig.add(3), Err(VerbError::ReadOnly { .. })));
    let mut rig = Rig::new(Make::raid0(2));
    assert!(matches!(rig.fail("d0"), Err(VerbError::NotRedundant { .. })));
}

#[test]
fn a_member_that_failed_is_more_than_one_event_behind() {
    let mut rig = Rig::new(Make::raid1(3));
    rig.write(0, 8, 1).unwrap();
    rig.fail("d1").unwrap();
    let events = |device| rig.superblock(device).events;
    assert!(events(1) + 2 <= events(0), "mdadm would take it for current: {} of {}", events(1), events(0));
    assert_eq!(events(0), events(2));
}

#[test]
fn a_spare_that_is_being_removed_takes_no_place() {
    let mut rig = Rig::new(Make::raid1(2).with_spares(1).of_sectors(4096));
    rig.write(0, 8, 1).unwrap();
    let removed = Rc::new(RefCell::new(None));
    let result = removed.clone();
    rig.verb(|array, cx| async move {
        // It asks for its turn while the failure is written down, and so before who would give the spare a place.
        let (same, own) = (array.clone(), cx.clone());
        cx.spawn(async move {
            let removed = same.remove("d2", &own).await;
            *result.borrow_mut() = Some(removed);
        });
        array.fail("d1", &cx).await
    })
    .unwrap();
    rig.rest(Nanos::millis(100));
    assert_eq!(removed.take().unwrap().unwrap(), ["d2"]);
    rig.wait_sync();
    assert_eq!(rig.states(), [MemberState::InSync, MemberState::Faulty]);
    assert_eq!(rig.add(2).unwrap(), Added::Recovering { role: 1 });
    rig.wait_sync();
    assert_eq!(rig.states(), [MemberState::InSync, MemberState::InSync]);
}

#[test]
fn a_device_that_is_added_twice_at_once_gets_one_place() {
    let mut rig = Rig::new(Make::raid1(3).with_blank(1).of_sectors(4096));
    rig.write(0, 8, 1).unwrap();
    rig.fail("d1").unwrap();
    rig.fail("d2").unwrap();
    rig.remove("failed").unwrap();
    let (first, second) = (rig.new_member(3), rig.new_member(3));
    let other = Rc::new(RefCell::new(None));
    let result = other.clone();
    let added = rig.verb(|array, cx| async move {
        // Both look at the array before either has its turn.
        let (same, own) = (array.clone(), cx.clone());
        cx.spawn(async move {
            let added = same.add(second, &own).await;
            *result.borrow_mut() = Some(added);
        });
        array.add(first, &cx).await
    });
    rig.rest(Nanos::millis(100));
    let results = [added, other.take().expect("it has come to its end")];
    let refused = results.iter().filter(|it| matches!(it, Err(VerbError::Known { .. }))).count();
    let admitted = results.iter().filter(|it| matches!(it, Ok(Added::Recovering { .. }))).count();
    assert_eq!((admitted, refused), (1, 1), "{results:?}");
    rig.wait_sync();
    let status = rig.served.array.status();
    assert_eq!((status.degraded, status.spares.len()), (1, 0), "{status:?}");
}

#[test]
fn what_fails_by_itself_is_replaced_also_after_everything_was_stopped() {
    let mut rig = Rig::new(Make::raid1(2).with_spares(1).of_sectors(4096));
    rig.start_sync(SyncAction::Idle).unwrap();
    let broken = Faults { write_errors: 1_000_000, flush_errors: 1_000_000, ..Faults::default() };
    rig.world.set_faults(FileId(1), broken);
    rig.write(0, 8, 1).unwrap();
    rig.wait_sync();
    assert_eq!(rig.served.array.status().degraded, 0);
    assert_eq!(rig.device_of(1), 2);
}

#[test]
fn a_device_that_takes_no_discards_ends_them_for_all() {
    let nth = Cell::new(0);
    let mut rig = Rig::of(Make::raid1(2).with_blank(1), |model| {
        if nth.replace(nth.get() + 1) == 2 {
            model.limits.max_discard = Sectors::ZERO;
        }
    });
    let discard = || Bio::without_data(Op::Discard, Flags::NONE, Sector(0), Sectors(64));
    rig.run(discard()).0.unwrap();
    rig.fail("d1").unwrap();
    rig.add(2).unwrap();
    rig.wait_sync();
    rig.write(0, 64, 5).unwrap();
    assert_eq!(rig.run(discard()).0, Err(Errno::EOPNOTSUPP));
    rig.start_sync(SyncAction::Check).unwrap();
    assert_eq!(rig.wait_sync().mismatches, Sectors(0), "what one of them had done alone would differ");
}

#[test]
fn a_disk_that_is_too_small_is_no_member() {
    let make = Make::raid1(2).with_spares(1).of_sectors(1024);
    let rig = Rig::of(make, |_| {});
    let small = Make { sectors: 512, ..rig.make.clone() };
    drop(rig);
    // The array uses all of its members, and the disk has half of that.
    let world = blockwork_sim::World::new(2);
    let big = Make { spares: 0, ..small.clone().of_sectors(1024) };
    for sectors in [big.device_sectors(), big.device_sectors(), small.device_sectors()] {
        world.add_device(blockwork_sim::DeviceModel::null(sectors));
    }
    big.put(&world);
    let mut rig = Rig::on(world, big, &[], true);
    let error = rig.add(2).unwrap_err();
    assert!(matches!(&error, VerbError::Small { found: Sectors(576), needed: Sectors(1088), .. }), "{error}");
}

#[test]
fn an_array_grows_with_its_members_and_the_new_part_is_resynced() {
    for (make, bitmap) in [
        (Make::raid1(2), Some(4096)),
        (Make::raid1(2), None),
        (Make::raid10("n2", 4), Some(4096)),
        (Make::raid10("o2", 3), Some(4096)),
    ] {
        let make = Make { bitmap, ..make.of_sectors(1000) };
        let world = blockwork_sim::World::new(3);
        for _ in 0..make.members {
            let mut model = blockwork_sim::DeviceModel::null(make.device_sectors() + Sectors(1000));
            model.cache_bytes = 1 << 20;
            world.add_device(model);
        }
        make.put(&world);
        let mut filled = Filled::new(Rig::on(world, make, &[], true));
        let old = filled.sectors();
        let grown = filled.rig.verb(|array, cx| async move { array.grow(&cx, None, false).await }).unwrap();
        assert!(grown.0 > old * 19 / 10, "{grown} after {old}");
        assert_eq!(filled.rig.served.array.sectors(), grown);
        filled.check_read();
        let last = grown.0 - 8;
        filled.rig.write(last, 8, 7).unwrap();
        filled.rig.wait_sync();
        assert_eq!(filled.rig.read(last, 8).unwrap()[0], 7);
        let more = Make { sectors: 2000, ..filled.rig.make.clone() };
        let (world, _) = filled.rig.close();
        let mut rig = Rig::on(world, more, &[], true);
        assert_eq!(rig.served.array.sectors(), grown);
        assert_eq!(rig.read(last, 8).unwrap()[0], 7);
        rig.start_sync(SyncAction::Check).unwrap();
        assert_eq!(rig.wait_sync().mismatches, Sectors(0));
        let again = rig.verb(|array, cx| async move { array.grow(&cx, None, false).await });
        assert!(matches!(again, Err(VerbError::NoRoom { .. })), "{again:?}");
    }
    let mut rig = Rig::new(Make::raid10("f2", 4));
    let far = rig.verb(|array, cx| async move { array.grow(&cx, None, false).await });
    assert!(matches!(far, Err(VerbError::FarLayout { .. })), "{far:?}");
}

/// Superblocks, lists of bad blocks and bitmaps that lie behind the data, of each device.
fn ends(rig: &Rig) -> Vec<Vec<[u8; 512]>> {
    let make = &rig.make;
    let behind = make.sectors + make.room_at_end.unwrap();
    let of = |device: u16| (behind..make.device_sectors().0).map(move |sector| (device, sector));
    let peek = |(device, sector): (u16, u64)| rig.world.peek(FileId(device.into()), sector);
    (0..make.devices()).map(|device| of(device).map(peek).collect()).collect()
}

#[test]
fn what_lies_behind_the_data_limits_how_far_an_array_grows() {
    let makes = [Make::raid1(2), Make::raid10("n2", 4), Make::raid10("n2", 4).without_bitmap()];
    for make in makes.map(|make| make.of_sectors(1024).with_bad_blocks().with_room_at_end(992)) {
        let mut filled = Filled::of(make);
        let too_much = |array: std::sync::Arc<blockwork_layer::md::Array>, cx| async move {
            array.grow(&cx, Some(Sectors(2024)), false).await
        };
        let refused = filled.rig.verb(too_much);
        let room = Sectors(2016);
        assert!(matches!(&refused, Err(VerbError::NoRoom { room: it, .. }) if *it == room), "{refused:?}");
        assert_eq!(filled.rig.superblock(0).size, 1024, "nothing has changed");
        let grown = filled.rig.verb(|array, cx| async move { array.grow(&cx, None, false).await }).unwrap();
        let copies = if filled.rig.make.level == blockwork_format::md::Level::Raid1 { 1 } else { 2 };
        assert_eq!(grown, Sectors(copies * 2016), "{:?}", filled.rig.make);
        filled.rig.wait_sync();
        let before = ends(&filled.rig);
        for sector in (0..grown.0).step_by(16) {
            filled.rig.write(sector, 16, 0x77).unwrap();
        }
        filled.rig.wait_sync();
        filled.rig.rest(Nanos::secs(30));
        let log = 24..32;
        for (device, (old, new)) in (0u16..).zip(before.iter().zip(ends(&filled.rig))) {
            assert_eq!(old[log.clone()], new[log.clone()], "the list of bad blocks of {device}");
            let superblock = filled.rig.superblock(device);
            assert_eq!((superblock.size, superblock.data_size), (2016, 2016));
        }
        let more = Make { sectors: 2016, room_at_end: Some(0), ..filled.rig.make.clone() };
        let (world, _) = filled.rig.close();
        let mut rig = Rig::on(world, more, &[], true);
        assert_eq!((rig.served.array.sectors(), rig.read(grown.0 - 1, 1).unwrap()[0]), (grown, 0x77));
        rig.open();
        rig.start_sync(SyncAction::Check).unwrap();
        assert_eq!((rig.wait_sync().mismatches, rig.served.array.status().degraded), (Sectors(0), 0));
    }
}

#[test]
fn a_spare_without_room_keeps_an_array_from_growing_until_it_is_taken_out() {
    let make = Make::raid1(2).with_spares(1).of_sectors(1000);
    let world = blockwork_sim::World::new(3);
    for more in [1000, 1000, 200] {
        let mut model = blockwork_sim::DeviceModel::null(make.device_sectors() + Sectors(more));
        model.cache_bytes = 1 << 20;
        world.add_device(model);
    }
    make.put(&world);
    let mut rig = Rig::on(world, make, &[], true);
    rig.make.sectors = 2000;
    let grow = |rig: &mut Rig, to: Option<u64>| {
        rig.verb(move |array, cx| async move { array.grow(&cx, to.map(Sectors), true).await })
    };
    let said = grow(&mut rig, Some(1800)).unwrap_err().to_string();
    assert!(said.contains("600, as much as the spare d2 has room for; 900 were asked for: take"), "{said}");
    // As much as all have.
    assert_eq!(grow(&mut rig, None).unwrap(), Sectors(1200));
    assert_eq!([0, 1, 2].map(|device| rig.superblock(device).size), [1200; 3]);
    let said = grow(&mut rig, None).unwrap_err().to_string();
    assert!(said.contains("the spare d2") && said.contains("nothing to grow to"), "{said}");
    rig.remove("d2").unwrap();
    assert_eq!(grow(&mut rig, None).unwrap(), Sectors(2000));
    let told = [0, 1, 2].map(|device| rig.superblock(device).size);
    assert_eq!(told, [2000, 2000, 1200], "what was taken out is let alone");
}
