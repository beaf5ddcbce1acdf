//! Resync, recovery, check and repair: that all copies hold what was written, whatever clients do meanwhile, and how fast.

use std::cell::Cell;

use blockwork_engine::{Bio, Errno, FileId, Flags, Nanos, Op, Sector};
use blockwork_format::md::v1::{Features, Superblock};
use blockwork_format::md::{IN_SYNC, Role};
use blockwork_layer::md::{Added, MemberState, SyncAction, VerbError};
use blockwork_sim::{Cap, CapOn, CapUnit, Fault, Latencies, Latency, Random};

use crate::filled::Filled;
use crate::rig::{self, DATA_START, Make, Rig, SUPERBLOCK, Served, examine};

/// Every kind of layout, also with members that are no multiple of the copies.
fn layouts() -> Vec<Make> {
    vec![
        Make::raid1(2),
        Make::raid1(3),
        Make::raid10("n2", 4),
        Make::raid10("n2", 3),
        Make::raid10("n3", 5),
        Make::raid10("f2", 3),
        Make::raid10("f2", 4),
        Make::raid10("o2", 4),
        Make::raid10("o2", 3),
    ]
}

/// The next request of a device but `skip` suffers this.
fn next(rig: &Rig, device: u16, skip: u64, fault: Fault) {
    let so_far = rig.world.counters(FileId(device.into())).requests();
    rig.world.fail_nth(FileId(device.into()), so_far + skip, fault);
}

/// Bytes per second that a device reads and writes in all.
fn bandwidth(bytes: u64) -> Cap {
    Cap { on: CapOn::Both, unit: CapUnit::Bytes, per_second: bytes, burst: 1 << 20 }
}

fn written(rig: &Rig, device: u16) -> u64 {
    rig.world.counters(FileId(device.into())).written_bytes / 512
}

#[test]
fn a_new_disk_is_filled_with_the_data_of_the_member_that_failed_in_every_layout() {
    for make in layouts() {
        for make in [make.clone(), make.without_bitmap()] {
            let new = make.members;
            let mut filled = Filled::of(make.with_blank(1));
            filled.rig.fail("1").unwrap();
            filled.write(3, 40);
            assert_eq!(filled.rig.add(new).unwrap(), Added::Recovering { role: 1 });
            filled.rig.wait_sync();
            let rig = &filled.rig;
            assert_eq!(rig.states(), vec![MemberState::InSync; rig.make.members.into()], "{:?}", rig.make);
            assert_eq!(rig.device_of(1), new);
            filled.check_copies();
            let superblock = filled.rig.superblock(new);
            assert!(!superblock.features.has(Features::RECOVERY_OFFSET));
            assert_eq!(superblock.role(), Role::Active(1));
            let of_another = filled.rig.superblock(0);
            assert_eq!(
                (of_another.roles[1], of_another.roles[usize::from(new)]),
                (Role::Faulty, Role::Active(1))
            );
            filled.check_read();
        }
    }
}

#[test]
fn writes_that_come_while_a_member_is_filled_are_on_all_copies() {
    for (seed, make) in (0..).zip(layouts()) {
        // Several windows, of which some wait and some are copied while clients write everywhere.
        let make = Make { chunk: if make.chunk == 0 { 0 } else { 128 }, ..make };
        let new = make.members;
        let rig = Rig::of(make.of_sectors(20_480).with_blank(1), |device| {
            device.latency = Latencies {
                read: Latency::Uniform(Nanos::micros(10), Nanos::micros(900)),
                write: Latency::Uniform(Nanos::micros(10), Nanos::micros(900)),
                flush: Latency::Fixed(Nanos::micros(50)),
                discard: Latency::Fixed(Nanos::micros(50)),
                sequential: None,
            };
            device.cache_bytes = 64 << 20;
        });
        rig.served.array.set_speed(200_000, 200_000);
        let mut filled = Filled::new(rig);
        filled.rig.fail("0").unwrap();
        filled.rig.add(new).unwrap();
        let writes = filled.write_until_synced(&mut Random::part(seed, 1));
        assert!(writes > 20, "{writes} writes only, {:?}", filled.rig.make);
        filled.check_copies();
        filled.check_read();
    }
}

/// The array after its worker has vanished in the middle of something, and copies that differ in bits that are set.
fn torn(make: Make) -> Rig {
    let mut rig = Rig::new(make);
    let sectors = rig.make.geometry().sectors().0;
    rig.write(0, sectors.min(2048), 1).unwrap();
    rig.flush().unwrap();
    let world = rig.world.power_cut();
    for device in 1..rig.make.members {
        world.preload(FileId(device.into()), DATA_START + 17, &[device as u8; 512]);
    }
    Rig::on(world, rig.make.clone(), &[], true)
}

#[test]
fn where_mirrors_may_differ_the_first_is_copied_to_the_others() {
    for make in layouts() {
        for make in [make.clone(), make.without_bitmap()] {
            let mut rig = torn(make);
            let before = rig.read(0, 128).unwrap();
            rig.open();
            let status = rig.wait_sync();
            assert_eq!(status.action, SyncAction::Idle);
            let status = rig.served.array.status();
            assert_eq!((status.resync_from, status.degraded), (None, 0));
            assert_eq!(rig.read(0, 128).unwrap(), before, "what was read stays the same");
            rig.start_sync(SyncAction::Check).unwrap();
            assert_eq!(rig.wait_sync().mismatches.0, 0, "{:?}", rig.make);
            rig.rest(Nanos::secs(30));
            assert_eq!(rig.superblock(0).resync_offset, IN_SYNC);
            if rig.make.bitmap.is_some() {
                assert_eq!(rig.dirty(0), [0; 0]);
            }
        }
    }
}

#[test]
fn an_array_that_was_not_stopped_and_has_no_bit_set_is_clean_again() {
    let rig = Rig::new(Make::raid1(2));
    for device in 0..2 {
        let superblock = Superblock { resync_offset: 0, ..rig.superblock(device) };
        rig.world.preload(FileId(device.into()), SUPERBLOCK, &superblock.encode());
    }
    let mut rig = Rig::on(rig.world, rig.make, &[], true);
    rig.open();
    rig.wait_sync();
    assert_eq!(rig.served.array.status().resync_from, None);
    assert_eq!(rig.superblock(0).resync_offset, IN_SYNC);
}

#[test]
fn a_spare_with_larger_blocks_than_the_array_does_not_take_a_place() {
    let devices = Cell::new(0);
    let mut filled = Filled::new(Rig::of(Make::raid1(2).with_spares(1), |device| {
        if devices.replace(devices.get() + 1) == 2 {
            (device.limits.logical_block_size, device.limits.physical_block_size) = (4096, 4096);
        }
    }));
    filled.rig.fail("1").unwrap();
    filled.rig.wait_sync();
    assert_eq!(filled.rig.states(), [MemberState::InSync, MemberState::Faulty]);
    filled.write(3, 1);
    filled.check_read();
    let refused = filled.rig.replace("0", Some("d2")).unwrap_err();
    assert!(matches!(refused, VerbError::Blocks { found: 4096, expected: 512, .. }), "{refused}");
}

#[test]
fn where_mirrors_may_differ_the_copy_that_is_read_does_not_depend_on_where_a_read_begins() {
    let mut filled = Filled::of(Make::raid1(2).with_bad_blocks());
    // The first copy of the first block cannot be written; of the rest of the chunk, it is the one that is read.
    next(&filled.rig, 0, 0, Fault::Error(Errno::EIO));
    filled.write(0, 8);
    filled.write(0, 16);
    let mut rig = Rig::on(filled.rig.world.power_cut(), filled.rig.make.clone(), &[], true);
    rig.world.preload(FileId(1), DATA_START + 12, &[9; 512]);
    rig.world.preload(FileId(0), DATA_START + 12, &[7; 512]);
    let bytes = rig.read(0, 64).unwrap();
    assert_eq!((bytes[12 * 512], rig.read(12, 1).unwrap()[0]), (7, 7));
    rig.open();
    rig.wait_sync();
    assert_eq!((rig.on_member(0, 12), rig.on_member(1, 12)), (7, 7));
}

#[test]
fn a_repair_makes_of_mirrors_that_differ_what_was_read_of_them() {
    let far = 1 << 15;
    let make = Make::raid1(2).with_bad_blocks().without_bitmap().of_sectors(1 << 16);
    let mut rig = Rig::new(make);
    // The first copy of a block cannot be written; of the next one, it is the one that is read.
    rig.write(far, 16, 1).unwrap();
    next(&rig, 0, 0, Fault::Error(Errno::EIO));
    rig.write(far, 8, 2).unwrap();
    let mut rig = Rig::on(rig.world.power_cut(), rig.make.clone(), &[], true);
    rig.world.preload(FileId(0), DATA_START + far + 12, &[7; 512]);
    rig.world.preload(FileId(1), DATA_START + far + 12, &[9; 512]);
    rig.served.array.set_speed(10, 10);
    rig.open();
    rig.rest(Nanos::secs(1));
    rig.start_sync(SyncAction::Idle).unwrap();
    assert_eq!(rig.read(far + 12, 1).unwrap()[0], 7);
    rig.served.array.set_speed(10, 1 << 20);
    rig.start_sync(SyncAction::Repair).unwrap();
    rig.wait_sync();
    assert_eq!(rig.read(far + 12, 1).unwrap()[0], 7);
    assert_eq!([rig.on_member(0, far + 12), rig.on_member(1, far + 12)], [7, 7]);
    assert_eq!(rig.on_member(0, far), rig.on_member(1, far));
}

#[test]
fn what_a_member_has_lost_while_it_was_read_is_not_copied_over_what_others_have() {
    // A device answers some reads with what there was when they began: which ones depends on those before.
    for round in 0..8 {
        let mut filled = Filled::new(Rig::of(Make::raid1(2), |device| {
            let latency = device.latency.clone();
            device.latency = Latencies { read: Latency::Fixed(Nanos::millis(50)), ..latency };
        }));
        (0..round).for_each(|_| filled.check_read());
        filled.rig.rest(Nanos::secs(1));
        (0..512).step_by(64).for_each(|sector| filled.write(sector, 64));
        let before = filled.rig.world.counters(FileId(0)).reads;
        filled.rig.start_sync(SyncAction::Repair).unwrap();
        while filled.rig.world.counters(FileId(0)).reads == before {
            filled.rig.rest(Nanos::millis(1));
        }
        let forgets = blockwork_sim::Faults { lost_flushes: 1_000_000, ..Default::default() };
        filled.rig.world.set_faults(FileId(0), forgets);
        filled.rig.flush().unwrap();
        let action = filled.rig.served.array.status().sync.action;
        assert_eq!((filled.rig.states()[0], action), (MemberState::Faulty, SyncAction::Repair));
        filled.rig.wait_sync();
        filled.check_read();
    }
}

/// A spare fails, and a new disk gets its slot after a restart: both are spares by their superblocks, and of that slot.
#[test]
fn a_spare_whose_slot_another_disk_has_is_let_alone() {
    let mut rig = Rig::new(Make::raid1(2).with_spares(1).with_blank(1));
    rig.fail("d2").unwrap();
    let mut rig = Rig::on(rig.world, rig.make, &[], true);
    assert_eq!(rig.add(3).unwrap(), Added::Spare);
    assert_eq!((rig.superblock(2).dev_number, rig.superblock(3).dev_number), (2, 2));
    let make = Make { spares: 2, blank: 0, ..rig.make };
    let mut rig = Rig::on(rig.world, make, &[], true);
    rig.fail("1").unwrap();
    rig.wait_sync();
    assert_eq!(rig.states(), [MemberState::InSync; 2]);
    assert_eq!((rig.superblock(2).role(), rig.superblock(3).role()), (Role::Spare, Role::Active(1)));
}

#[test]
fn a_resync_goes_where_the_bitmap_says_and_nowhere_else() {
    let mut rig = Rig::new(Make::raid1(2).of_sectors(65_536));
    rig.write(8000, 8, 1).unwrap();
    rig.write(64_000, 8, 1).unwrap();
    rig.flush().unwrap();
    let mut rig = Rig::on(rig.world.power_cut(), rig.make.clone(), &[], true);
    let reads = rig.world.counters(FileId(0)).read_bytes;
    rig.open();
    rig.wait_sync();
    assert_eq!(rig.world.counters(FileId(0)).read_bytes - reads, 2 * 4096);
    assert!(!rig.served.array.status().members.is_empty());
}

#[test]
fn a_write_waits_for_its_window_and_not_for_the_resync() {
    let rig = Rig::of(Make::raid1(2).without_bitmap().of_sectors(1 << 18), |device| {
        device.caps = vec![bandwidth(100_000_000)];
    });
    let mut filled = Filled::new(rig);
    filled.rig.start_sync(SyncAction::Check).unwrap();
    let mut longest = Nanos(0);
    let mut random = Random::part(3, 3);
    // 128 MiB at 100 MB/s would be 1.3 s.
    for _ in 0..50 {
        let began = filled.rig.world.now();
        let sector = random.below(filled.sectors() - 8);
        filled.write(sector, 8);
        longest = longest.max(filled.rig.world.now().since(began));
    }
    assert!(longest < Nanos::millis(400), "{longest:?}");
}

#[test]
fn a_discard_of_everything_gets_between_the_windows() {
    let mut filled = Filled::of(Make::raid10("n2", 4).of_sectors(1 << 15).with_blank(1));
    filled.rig.fail("2").unwrap();
    filled.rig.add(4).unwrap();
    let sectors = filled.sectors();
    filled.zero(0, sectors);
    filled.rig.wait_sync();
    filled.check_copies();
}

#[test]
fn where_it_was_is_on_record_and_it_goes_on_there() {
    let make = Make::raid10("n2", 4).without_bitmap().of_sectors(1 << 16).with_blank(1);
    let mut filled = Filled::of(make);
    // 32 MiB of a member at 1 MiB/s.
    filled.rig.served.array.set_speed(1024, 1024);
    filled.rig.fail("3").unwrap();
    filled.rig.add(4).unwrap();
    filled.rig.rest(Nanos::secs(21));
    let superblock = filled.rig.superblock(4);
    assert!(superblock.features.has(Features::RECOVERY_OFFSET));
    let checkpoint = superblock.recovery_offset;
    assert!((30_000..50_000).contains(&checkpoint), "at {checkpoint} of 65536 after 21 s");
    filled.rig.rest(Nanos::secs(4));
    filled.rig.stop();
    let stopped = filled.rig.superblock(4).recovery_offset;
    assert!(stopped > checkpoint);
    let sectors = filled.sectors();
    let Filled { rig, .. } = filled;
    let world = rig.world.power_cut();
    let make = Make { members: 4, spares: 1, blank: 0, ..rig.make.clone() };
    let mut rig = Rig::on(world, make, &[3], true);
    assert_eq!(rig.states()[3], MemberState::Recovering(blockwork_engine::Sector(stopped)));
    let before = written(&rig, 4);
    rig.open();
    rig.wait_sync();
    let copied = written(&rig, 4) - before;
    assert!((65_536 - stopped..65_536 - stopped + 64).contains(&copied), "{copied} from {stopped}");
    assert_eq!(rig.states(), vec![MemberState::InSync; 4]);
    rig.start_sync(SyncAction::Check).unwrap();
    assert_eq!(rig.wait_sync().mismatches.0, 0, "of {sectors}");
}

#[test]
fn a_resync_without_a_bitmap_goes_on_where_it_was_stopped() {
    let mut rig = torn(Make::raid1(2).without_bitmap().of_sectors(1 << 16));
    rig.served.array.set_speed(1024, 1024);
    rig.open();
    rig.rest(Nanos::secs(12));
    assert_eq!(rig.served.array.status().sync.action, SyncAction::Resync);
    let (world, make) = rig.close();
    let offset = examine(&world, 0, make.device_sectors()).superblock.resync_offset;
    assert!((8192..65_536).contains(&offset), "{offset}");
    let mut rig = Rig::on(world, make, &[], true);
    let before = written(&rig, 1);
    rig.open();
    rig.wait_sync();
    assert!(written(&rig, 1) - before <= 65_536 - offset + 64);
    assert_eq!(rig.superblock(1).resync_offset, IN_SYNC);
    assert_eq!(rig.on_member(1, 17), rig.on_member(0, 17));
}

/// Where it lies, another volume may be by then.
#[test]
fn an_array_whose_volume_is_gone_writes_nothing_any_more() {
    for make in [Make::raid1(2), Make::raid1(2).without_bitmap(), Make::raid10("n2", 4)] {
        let mut rig = torn(make.of_sectors(1 << 16));
        rig.served.array.set_speed(1024, 1024);
        rig.open();
        rig.rest(Nanos::millis(200));
        assert_eq!(rig.served.array.status().sync.action, SyncAction::Resync);
        rig.write(40_000, 8, 7).unwrap();
        let before = rig.retire();
        rig.rest(Nanos::secs(60));
        assert_eq!(rig::written(&rig.world, rig.make.members), before);
        assert_eq!(rig.served.array.status().sync.action, SyncAction::Idle);
    }
}

/// Its bitmap was about to be cleared, and that waited for a read.
#[test]
fn what_an_array_was_about_to_write_when_its_volume_went_is_not_written_later() {
    let mut rig = Rig::new(Make::raid1(2).of_sectors(1 << 16));
    rig.write(0, 8, 7).unwrap();
    rig.rest(Nanos::secs(4));
    (0..2).for_each(|device| next(&rig, device, 0, Fault::Stall));
    rig.submit(Bio::with_data(Op::Read, Flags::NONE, Sector(40_000), Rig::memory(&[0; 4096])));
    rig.rest(Nanos::secs(15));
    assert_eq!((rig.done(), rig.dirty(0)), (0, vec![0]), "the upkeep waits for the read");
    let before = rig.retire();
    rig.rest(Nanos::secs(60));
    assert_eq!((rig.done(), rig::written(&rig.world, 2)), (1, before));
}

#[test]
fn a_spare_takes_the_place_of_a_member_that_fails_and_the_next_one_of_a_spare_that_fails() {
    let mut filled = Filled::of(Make::raid10("o2", 4).of_sectors(4096).with_spares(2));
    next(&filled.rig, 2, 0, Fault::Error(Errno::EIO));
    // Of the first spare, superblock, bitmap and some data are written before it refuses.
    next(&filled.rig, 4, 4, Fault::ForEver);
    filled.write(32, 8);
    filled.rig.wait_sync();
    assert_eq!(filled.rig.states(), vec![MemberState::InSync; 4]);
    assert_eq!(filled.rig.device_of(2), 5);
    let status = filled.rig.served.array.status();
    assert_eq!((status.spares.len(), status.faulty.len()), (0, 2));
    filled.check_copies();
    let superblock = filled.rig.superblock(0);
    assert_eq!(superblock.roles[2..6], [Role::Faulty, Role::Active(3), Role::Faulty, Role::Active(2)]);
}

#[test]
fn a_check_counts_what_differs_and_a_repair_makes_it_the_same() {
    for make in layouts() {
        let mut filled = Filled::of(make);
        let geometry = filled.rig.make.geometry();
        // Two sectors of one unit, and one of another, on the last copy of each.
        for sector in [1, 3, 140] {
            let place = geometry.place(blockwork_engine::Sector(sector), usize::from(geometry.copies()) - 1);
            filled.rig.world.preload(FileId(place.member.into()), DATA_START + place.sector.0, &[9; 512]);
        }
        filled.rig.start_sync(SyncAction::Check).unwrap();
        let unit = if filled.rig.make.chunk == 0 { 128 } else { filled.rig.make.chunk };
        assert_eq!(filled.rig.wait_sync().mismatches.0, 2 * unit, "{:?}", filled.rig.make);
        filled.rig.start_sync(SyncAction::Repair).unwrap();
        assert_eq!(filled.rig.wait_sync().mismatches.0, 2 * unit, "a repair counts what it found");
        filled.check_copies();
        filled.rig.start_sync(SyncAction::Check).unwrap();
        assert_eq!(filled.rig.wait_sync().mismatches.0, 0);
    }
}

#[test]
fn what_cannot_be_read_while_a_member_is_filled_is_read_elsewhere_and_mended() {
    let mut mended = 0;
    // Each request of the first source in turn: among them are those that read what is copied.
    for skip in 0..12 {
        let mut filled = Filled::of(Make::raid1(3).with_blank(1));
        filled.rig.fail("2").unwrap();
        next(&filled.rig, 0, skip, Fault::Latent);
        filled.rig.add(3).unwrap();
        filled.rig.wait_sync();
        filled.rig.rest(Nanos::secs(1));
        filled.check_read();
        let member = &filled.rig.served.array.status().members[0];
        mended += u32::from(member.corrected > 0);
        if member.state == MemberState::InSync {
            filled.check_copies();
        }
    }
    assert!(mended > 0);
}

#[test]
fn what_no_copy_has_is_bad_on_the_new_disk_and_its_list_says_so() {
    let mut filled = Filled::of(Make::raid1(2).with_bad_blocks().with_blank(1));
    filled.rig.fail("1").unwrap();
    // Sector 40 of the only source is lost for good.
    let faults = blockwork_sim::Faults::default();
    filled.rig.world.set_faults(FileId(0), faults);
    let so_far = filled.rig.world.counters(FileId(0)).requests();
    filled.rig.world.fail_nth(FileId(0), so_far, Fault::Latent);
    let bad = (0..512).step_by(8).find(|sector| filled.rig.read(*sector, 8).is_err()).unwrap();
    assert_eq!(filled.rig.add(2).unwrap(), Added::Recovering { role: 1 });
    filled.rig.wait_sync();
    assert_eq!(filled.rig.states(), [MemberState::InSync; 2]);
    let found = examine(&filled.rig.world, 2, filled.rig.make.device_sectors());
    assert!(found.superblock.features.has(Features::BAD_BLOCKS));
    assert_eq!(found.bad.iter().map(|(start, nr)| (start.0, nr.0)).collect::<Vec<_>>(), [(bad, 8)]);
    // Written anew by a client, it can be read from the first again, and from the second after a repair.
    filled.write(bad, 8);
    filled.rig.start_sync(SyncAction::Repair).unwrap();
    filled.rig.wait_sync();
    filled.rig.rest(Nanos::secs(1));
    let found = examine(&filled.rig.world, 2, filled.rig.make.device_sectors());
    assert_eq!(found.bad, []);
    assert_eq!(filled.rig.served.array.status().members[1].bad_ranges, 0);
    filled.check_read();
}

#[test]
fn a_write_that_fails_goes_into_the_list_of_bad_blocks_before_it_is_acknowledged() {
    let mut filled = Filled::of(Make::raid10("n2", 4).with_bad_blocks());
    next(&filled.rig, 1, 0, Fault::Error(Errno::EIO));
    filled.write(0, 8);
    // At the moment when it is acknowledged.
    let found = examine(&filled.rig.world, 1, filled.rig.make.device_sectors());
    assert!(found.superblock.features.has(Features::BAD_BLOCKS));
    assert_eq!(found.bad.len(), 1);
    assert_eq!(filled.rig.states(), [MemberState::InSync; 4]);
    filled.check_read();
    let before = written(&filled.rig, 1);
    filled.write(0, 8);
    assert_eq!(written(&filled.rig, 1), before, "it is left out from then on");
    filled.rig.start_sync(SyncAction::Repair).unwrap();
    filled.rig.wait_sync();
    filled.check_copies();
    assert_eq!(examine(&filled.rig.world, 1, filled.rig.make.device_sectors()).bad, []);
}

#[test]
fn a_disk_whose_list_cannot_be_written_has_failed() {
    let mut filled = Filled::of(Make::raid1(2).with_bad_blocks());
    next(&filled.rig, 1, 0, Fault::Error(Errno::EIO));
    next(&filled.rig, 1, 1, Fault::Error(Errno::EIO));
    filled.write(0, 8);
    assert_eq!(filled.rig.states(), [MemberState::InSync, MemberState::Faulty]);
    filled.check_read();
}

#[test]
fn idle_stops_it_and_nothing_begins_before_it_is_asked_for() {
    let mut filled = Filled::of(Make::raid1(2).of_sectors(1 << 16).with_blank(1));
    filled.rig.served.array.set_speed(1024, 1024);
    filled.rig.fail("0").unwrap();
    filled.rig.add(2).unwrap();
    filled.rig.rest(Nanos::secs(9));
    filled.rig.start_sync(SyncAction::Idle).unwrap();
    let MemberState::Recovering(at) = filled.rig.states()[0] else { panic!("{:?}", filled.rig.states()) };
    assert_eq!(filled.rig.superblock(2).recovery_offset, at.0, "with a checkpoint");
    filled.rig.rest(Nanos::secs(30));
    assert_eq!(filled.rig.states()[0], MemberState::Recovering(at));
    filled.rig.served.array.set_speed(1024, 1 << 20);
    assert_eq!(filled.rig.resume_sync().unwrap(), SyncAction::Recover);
    filled.rig.wait_sync();
    filled.check_copies();
    assert!(filled.rig.resume_sync().is_err(), "nothing is due");
}

/// KiB per second and member of a recovery of `sectors` of each member.
fn speed(filled: &mut Filled, new: u16) -> f64 {
    let sectors = filled.rig.make.geometry().sectors_on_member(0).0;
    filled.rig.fail("1").unwrap();
    let began = filled.rig.world.now();
    filled.rig.add(new).unwrap();
    filled.rig.wait_sync();
    let took = filled.rig.world.now().since(began);
    sectors as f64 / 2.0 / (took.0 as f64 / 1e9)
}

#[test]
fn an_idle_array_is_rebuilt_at_the_speed_of_its_slowest_member() {
    for make in layouts() {
        let make = Make { chunk: if make.chunk == 0 { 0 } else { 1024 }, bitmap: Some(64 << 20), ..make };
        let new = make.members;
        let rig = Rig::of(make.of_sectors(50 << 11).with_blank(1), |device| {
            let sectors = device.sectors;
            *device = blockwork_sim::DeviceModel::nvme(sectors);
            device.keeps_content = true;
            device.caps = vec![bandwidth(150_000_000)];
        });
        let name = format!("{:?} {}", rig.make.level, rig.make.layout);
        rig.served.array.set_speed(1000, 1 << 30);
        let mut filled = Filled::nothing(rig);
        let speed = speed(&mut filled, new) * 1024.0 / 150e6;
        println!("{name}: {speed:.3} of the disk's speed");
        assert!(speed > 0.9, "{name}: {speed:.3}");
    }
}

#[test]
fn it_keeps_to_its_limits_and_yields_to_clients() {
    let make = Make::raid1(2).of_sectors(1 << 17).with_blank(2);
    let mut filled = Filled::of(make);
    filled.rig.served.array.set_speed(4096, 32_768);
    let alone = speed(&mut filled, 2);
    assert!((28_000.0..36_000.0).contains(&alone), "{alone} KiB/s, at most 32768");
    filled.rig.fail("0").unwrap();
    let began = filled.rig.world.now();
    filled.rig.add(3).unwrap();
    let mut writes = 0;
    while filled.rig.is_syncing() {
        filled.rig.rest(Nanos::millis(20));
        filled.write(writes * 8 % 65_536, 8);
        writes += 1;
    }
    let took = filled.rig.world.now().since(began).0 as f64 / 1e9;
    let beside = 65_536.0 / took;
    assert!((3_000.0..6_000.0).contains(&beside), "{beside} KiB/s, at least 4096 beside clients");
    filled.check_copies();
}

#[test]
fn what_is_asked_while_the_worker_stops_ends_soon() {
    let mut filled = Filled::of(Make::raid1(2).of_sectors(1 << 17));
    filled.rig.served.array.set_speed(10, 10);
    filled.rig.start_sync(SyncAction::Check).unwrap();
    filled.rig.rest(Nanos::secs(2));
    let began = filled.rig.world.now();
    let (world, make) = filled.rig.close();
    assert!(world.now().since(began) < Nanos::secs(1));
    assert_eq!(Served::assemble(&world, &make, &[], true).array.status().degraded, 0);
}
