//! Members with a parity that die while others list as bad what they make up for.

use std::collections::BTreeSet;

use blockwork_engine::{Bio, Errno, FileId, Flags, Nanos, Op, Sector, Sectors};
use blockwork_format::md::IN_SYNC;
use blockwork_layer::md::{MemberState, SyncAction};
use blockwork_sim::{Fault, Faults, World};

use crate::dying::{
    BESIDE, CHUNK, Case, NR, REFUSES_ALL, REFUSES_WRITES, ROW, SKIP, STALLS, blocks, case, case_of, check,
    data_of, fill, list, listed, listed_but, makes, sectors,
};
use crate::rig::{DATA_START, Make, Rig, SUPERBLOCK, examine};

#[test]
fn what_another_lists_is_saved_before_who_refuses_writes_is_given_up() {
    for make in makes() {
        let mut case = case(make);
        case.faults(case.dying, REFUSES_WRITES);
        let part = case.part_beside();
        assert_eq!(case.rig.write(part, 4, 0xa1), Ok(()));
        assert!(case.dies());
        assert_eq!(list(&case.rig.world, &case.rig.make, case.lister), []);
        case.check(&[], &[(part, 0xa1)]);
        assert_eq!(case.rig.write(case.bad, 4, 0xa2), Ok(()));
        let written = [(part, 0xa1), (case.bad, 0xa2)];
        case.check(&[], &written);
        case.check_anew(&[], &written);
    }
}

const NAMES: [&str; 6] = ["d0", "d1", "d2", "d3", "d4", "d5"];

/// A RAID6 of which two members list the same place of theirs.
fn listed_by_two(make: Make) -> (Case, u16) {
    let [one, other, dying] = [0, 1, 2].map(|nth| make.parity_layout().member(ROW, nth));
    (case_of(make, &[one, other], dying), other)
}

#[test]
fn with_two_parities_what_two_list_is_saved() {
    for bitmap in [None, Some(4096)] {
        let (mut case, other) = listed_by_two(Make { bitmap, ..Make::raid6(6).with_bad_blocks() });
        case.faults(case.dying, REFUSES_WRITES);
        let part = case.part_beside();
        assert_eq!(case.rig.write(part, 4, 0xa1), Ok(()));
        assert!(case.dies());
        let lists = [case.lister, other].map(|device| list(&case.rig.world, &case.rig.make, device));
        assert_eq!(lists, [vec![], vec![]]);
        case.check(&[], &[(part, 0xa1)]);
        // One more can go.
        case.rig.fail(NAMES[usize::from(other)]).unwrap();
        case.check(&[], &[(part, 0xa1)]);
        case.check_anew(&[], &[(part, 0xa1)]);
    }
}

#[test]
fn what_another_has_refused_just_before_is_saved_if_it_takes_that_now() {
    for make in makes() {
        let [lister, dying] = [0, 1].map(|nth| make.parity_layout().member(ROW, nth));
        let bad = data_of(&make, ROW, lister).unwrap() + SKIP;
        let mut case = Case { rig: listed(make, &[]), lister, dying, bad };
        // What is beside it is known after that.
        case.rig.write(bad, NR, 0xa0).unwrap();
        let so_far = case.rig.world.counters(FileId(lister.into())).requests();
        case.rig.world.fail_nth(FileId(lister.into()), so_far, Fault::Error(Errno::EIO));
        case.rig.write(bad, NR, 0xa1).unwrap();
        assert_eq!(list(&case.rig.world, &case.rig.make, lister), [(ROW * CHUNK + SKIP, NR)]);
        case.faults(dying, REFUSES_WRITES);
        let part = case.part_beside();
        case.rig.write(part, 4, 0xa2).unwrap();
        assert!(case.dies());
        assert_eq!(list(&case.rig.world, &case.rig.make, lister), []);
        let mut written: Vec<_> = blocks(bad, NR).into_iter().map(|at| (at, 0xa1)).collect();
        written.push((part, 0xa2));
        case.check(&[], &written);
        // It is written to that member again.
        case.rig.write(bad, 4, 0xa3).unwrap();
        written[0].1 = 0xa3;
        assert_eq!(case.rig.on_member(lister, ROW * CHUNK + SKIP), 0xa3);
        case.check_anew(&[], &written);
    }
}

#[test]
fn what_was_saved_is_not_remembered_otherwise() {
    let make = Make::raid5(4).with_bad_blocks();
    let layout = make.parity_layout();
    let [lister, dying] = [0, 1].map(|nth| layout.member(ROW, nth));
    let bad = data_of(&make, ROW, lister).unwrap() + SKIP;
    // Who dies has no list: it refuses nothing else, for which all that is remembered would be forgotten.
    let mut case = Case { rig: listed_but(make, &[], Some(dying)), lister, dying, bad };
    case.rig.write(bad, NR, 0xa0).unwrap();
    let so_far = case.rig.world.counters(FileId(lister.into())).requests();
    case.rig.world.fail_nth(FileId(lister.into()), so_far, Fault::Error(Errno::EIO));
    case.rig.write(bad, NR, 0xa1).unwrap();
    // A parity that does not fit, though nobody knows it.
    let sector = ROW * CHUNK + SKIP;
    let parity = case.rig.on_member(layout.parity(ROW).0, sector);
    case.rig.world.preload(FileId(layout.parity(ROW).0.into()), DATA_START + sector, &[parity ^ 0x55; 512]);
    case.faults(dying, REFUSES_WRITES);
    write_row(&mut case, BESIDE, 0xa2);
    assert_eq!(case.rig.finish().result, Ok(()));
    assert!(case.dies());
    let saved = case.rig.read(bad, 1).map(|it| it[0]);
    assert_eq!(saved, Ok(0xa1 ^ 0x55), "it was to be trusted, as far as anybody knew");
    // Its parity comes from what was saved.
    let part = case.part(ROW) + SKIP;
    case.rig.write(part, NR, 0xa3).unwrap();
    assert_eq!(case.rig.read(part, NR), Ok(vec![0xa3; 8 * 512]));
}

#[test]
fn with_two_parities_who_is_not_needed_for_a_list_goes_at_once() {
    let mut case = case(Make::raid6(6).with_bad_blocks());
    case.faults(case.dying, REFUSES_WRITES);
    let part = case.part_beside();
    assert_eq!(case.rig.write(part, 4, 0xa1), Ok(()));
    assert!(case.dies());
    assert_eq!(list(&case.rig.world, &case.rig.make, case.lister), [(ROW * CHUNK + SKIP, NR)]);
    case.check(&[], &[(part, 0xa1)]);
}

#[test]
fn with_two_parities_and_a_member_missing_what_one_lists_is_saved() {
    let make = Make::raid6(6).with_bad_blocks();
    let missing = make.parity_layout().member(ROW, 2);
    let Case { rig, lister, dying, bad } = case(make);
    let (world, make) = rig.close();
    let mut case = Case { rig: Rig::on(world, make, &[missing], true), lister, dying, bad };
    case.faults(dying, REFUSES_WRITES);
    let part = case.part_beside();
    assert_eq!(case.rig.write(part, 4, 0xa1), Ok(()));
    assert!(case.dies());
    case.check(&[], &[(part, 0xa1)]);
}

#[test]
fn what_cannot_be_read_any_more_is_lost_and_says_so_for_ever() {
    for make in makes() {
        let mut case = case(make);
        case.faults(case.dying, REFUSES_ALL);
        // What the one lists, and what the other had beside it.
        let lost = [blocks(case.bad, NR), blocks(case.part(ROW) + SKIP, NR)].concat();
        let part = case.part_beside();
        assert_eq!(case.rig.write(part, 4, 0xa1), Ok(()));
        assert!(case.dies());
        assert_eq!(list(&case.rig.world, &case.rig.make, case.lister), [(ROW * CHUNK + SKIP, NR)]);
        case.check(&lost, &[(part, 0xa1)]);
        case.check_anew(&lost, &[(part, 0xa1)]);
    }
}

#[test]
fn what_is_lost_is_lost_to_who_takes_the_place_too() {
    for make in makes() {
        let spare = make.members;
        let mut case = case(make.with_spares(1));
        case.faults(case.dying, REFUSES_ALL);
        let lost = [blocks(case.bad, NR), blocks(case.part(ROW) + SKIP, NR)].concat();
        let part = case.part_beside();
        assert_eq!(case.rig.write(part, 4, 0xa1), Ok(()));
        case.rig.wait_sync();
        let status = case.rig.served.array.status();
        assert_eq!((status.degraded, case.rig.device_of(case.dying)), (0, spare), "{status:?}");
        for device in [case.lister, spare] {
            assert_eq!(list(&case.rig.world, &case.rig.make, device), [(ROW * CHUNK + SKIP, NR)]);
        }
        case.check(&lost, &[(part, 0xa1)]);
        case.check_anew(&lost, &[(part, 0xa1)]);
    }
}

/// A case in which a row whose parity is on who dies was written, and not yet flushed: what that has of it may be lost.
fn written_beside(make: Make) -> (Case, Vec<(u64, u8)>) {
    let layout = make.parity_layout();
    let (lister, dying) = (layout.member(ROW, 0), layout.parity(ROW).0);
    let mut case = case_of(make, &[lister], dying);
    let beside = data_of(&case.rig.make, ROW, layout.member(ROW, 1)).unwrap() + SKIP;
    let written = blocks(beside, NR).into_iter().map(|at| (at, 0xb0 | (at % 16) as u8));
    let written: Vec<_> = written.collect();
    for (at, fill) in &written {
        case.rig.write(*at, 4, *fill).unwrap();
    }
    (case, written)
}

#[test]
fn who_may_have_lost_something_saves_nothing() {
    for make in makes() {
        let (mut case, written) = written_beside(make);
        case.faults(case.dying, Faults { lost_flushes: 1_000_000, ..Faults::NONE });
        assert_eq!(case.rig.flush(), Ok(()));
        assert!(case.dies());
        let lost = blocks(case.bad, NR);
        case.check(&lost, &written);
        case.check_anew(&lost, &written);
    }
}

#[test]
fn what_has_not_lost_anything_when_it_refuses_its_superblock_saves_all() {
    let (mut case, written) = written_beside(Make::raid5(4).with_bad_blocks());
    // Nobody writes: it is the superblock that says that the array is clean which is refused.
    case.faults(case.dying, REFUSES_WRITES);
    case.rig.rest(Nanos::secs(2));
    assert!(case.dies());
    assert_eq!(list(&case.rig.world, &case.rig.make, case.lister), []);
    case.check(&[], &written);
    case.check_anew(&[], &written);
}

#[test]
fn a_flush_that_fails_is_one_of_who_goes() {
    for make in makes() {
        let (mut case, written) = written_beside(make);
        case.faults(case.dying, Faults { flush_errors: 1_000_000, ..Faults::NONE });
        // The absence takes its time to be on record.
        case.faults(case.lister, STALLS);
        let before = case.rig.world.counters(FileId(case.dying.into())).flushes;
        assert_eq!(case.rig.flush(), Ok(()));
        assert!(case.dies());
        let flushes = case.rig.world.counters(FileId(case.dying.into())).flushes;
        assert_eq!(flushes - before, 1, "it waits, and does not try again and again");
        case.faults(case.lister, Faults::NONE);
        case.check(&blocks(case.bad, NR), &written);
    }
}

/// Runs until a device is asked to read.
fn until_read(rig: &mut Rig, device: u16) {
    let reads = |rig: &Rig| rig.world.counters(FileId(device.into())).reads;
    let (before, end) = (reads(rig), rig.world.now() + Nanos::secs(20));
    while reads(rig) == before {
        assert!(rig.world.now() < end, "it is never read");
        rig.rest(Nanos::millis(1));
    }
}

/// The whole row is written, of which who dies has a part: nothing is read for that.
fn write_row(case: &mut Case, row: u64, fill: u8) -> Vec<(u64, u8)> {
    let data = case.rig.make.parity_layout().data_disks();
    let nr = u64::from(data) * CHUNK;
    case.rig.submit(case.rig.write_bio(row * nr, nr, fill, Flags::NONE));
    blocks(row * nr, nr).into_iter().map(|at| (at, fill)).collect()
}

/// A case in which a write has met who dies, and what the other lists is being saved: a member that is read for that takes its time. Gives what
/// was written.
fn being_saved(make: Make, listers: &[(u16, u64, u64)], dying: u16) -> (Case, Vec<(u64, u8)>) {
    let bad = data_of(&make, ROW, listers[0].0).unwrap() + SKIP;
    let other = make.parity_layout().member(ROW, 2);
    // Who dies has no list: nothing has to be on record before others write, and nothing else is written.
    let rig = listed_but(make, listers, Some(dying));
    let mut case = Case { rig, lister: listers[0].0, dying, bad };
    // The array is active from here on, with the bits that are needed.
    for row in [ROW, BESIDE] {
        let nr = 3 * CHUNK;
        for at in (row * nr..(row + 1) * nr).step_by(4).filter(|at| !(bad..bad + NR).contains(at)) {
            case.rig.write(at, 4, fill(at)).unwrap();
        }
    }
    case.faults(dying, REFUSES_WRITES);
    case.faults(other, STALLS);
    let written = write_row(&mut case, BESIDE, 0xa1);
    until_read(&mut case.rig, other);
    case.faults(other, Faults::NONE);
    (case, written)
}

#[test]
fn nobody_writes_a_row_in_which_something_is_being_saved() {
    for make in makes() {
        let [lister, dying] = [0, 1].map(|nth| make.parity_layout().member(ROW, nth));
        let lists = [(lister, ROW * CHUNK + SKIP, NR)];
        let (mut case, mut written) = being_saved(make, &lists, dying);
        case.rig.submit(case.rig.write_bio(case.bad, NR, 0xa2, Flags::NONE));
        case.rig.rest(Nanos::millis(10));
        assert_eq!(case.rig.done(), 0, "both wait");
        (0..2).for_each(|_| assert_eq!(case.rig.finish().result, Ok(())));
        assert!(case.dies());
        written.extend(blocks(case.bad, NR).into_iter().map(|at| (at, 0xa2)));
        case.check(&[], &written);
        case.check_anew(&[], &written);
    }
}

#[test]
fn what_is_written_meanwhile_is_not_saved_over() {
    for make in makes() {
        let layout = make.parity_layout();
        let [lister, dying] = [0, 1].map(|nth| layout.member(ROW, nth));
        let mut case = case_of(make, &[lister], dying);
        // The array is active from here on, with the bits that are needed.
        case.rig.write(case.part_beside(), 4, fill(case.part_beside())).unwrap();
        case.rig.write(case.part(ROW), 4, fill(case.part(ROW))).unwrap();
        // A client writes what is listed, which takes a while, as does its parity: who dies has no part in that.
        for device in [lister, layout.parity(ROW).0] {
            case.faults(device, STALLS);
        }
        let written = |case: &Case| {
            let of = |device: u16| case.rig.world.counters(FileId(device.into())).writes;
            [lister, layout.parity(ROW).0].map(of)
        };
        let before = written(&case);
        case.rig.submit(case.rig.write_bio(case.bad, NR, 0xa2, Flags::NONE));
        while written(&case) != before.map(|writes| writes + 1) {
            case.rig.rest(Nanos::millis(1));
        }
        for device in [lister, layout.parity(ROW).0] {
            case.faults(device, Faults::NONE);
        }
        case.faults(dying, REFUSES_WRITES);
        let mut all = write_row(&mut case, BESIDE, 0xa1);
        case.rig.rest(Nanos::millis(10));
        assert_eq!(case.rig.done(), 0, "one is under way, and what the other waits for waits for it");
        (0..2).for_each(|_| assert_eq!(case.rig.finish().result, Ok(())));
        assert!(case.dies());
        all.extend(blocks(case.bad, NR).into_iter().map(|at| (at, 0xa2)));
        case.check(&[], &all);
        case.check_anew(&[], &all);
    }
}

#[test]
fn where_it_cannot_be_written_anew_it_stays_in_the_list_and_is_lost() {
    for make in makes() {
        let [lister, dying] = [0, 1].map(|nth| make.parity_layout().member(ROW, nth));
        let lists = [(lister, ROW * CHUNK + SKIP, NR)];
        let (mut case, written) = being_saved(make, &lists, dying);
        // All of it, and each block, also where that is tried without FUA.
        let so_far = case.rig.world.counters(FileId(lister.into())).requests();
        (0..2 * (NR + 1))
            .for_each(|nth| case.rig.world.fail_nth(FileId(lister.into()), so_far + nth, Fault::ForEver));
        assert_eq!(case.rig.finish().result, Ok(()));
        assert!(case.dies());
        assert_eq!(list(&case.rig.world, &case.rig.make, lister), [(ROW * CHUNK + SKIP, NR)]);
        let lost = [blocks(case.bad, NR), blocks(case.part(ROW) + SKIP, NR)].concat();
        case.check(&lost, &written);
        case.check_anew(&lost, &written);
    }
}

#[test]
fn a_stream_of_writes_over_the_row_goes_on() {
    // So many chunks at a time: whole rows, and the first chunk of the row in which something is listed. That has the row, and waits for the rest of
    // it, when those before it are refused.
    const DEPTH: u64 = 16;
    let row = DEPTH / 3;
    for make in makes() {
        let [lister, dying] = [1, 2].map(|nth| make.parity_layout().member(row, nth));
        let bad = data_of(&make, row, lister).unwrap() + SKIP;
        let rig = listed_but(make, &[(lister, row * CHUNK + SKIP, NR)], Some(dying));
        let mut case = Case { rig, lister, dying, bad };
        let all = sectors(&case.rig.make) / CHUNK;
        // The array is active from here on.
        case.rig.write((all - 1) * CHUNK, 4, 1).unwrap();
        case.faults(case.dying, REFUSES_WRITES);
        for at in 0..all {
            case.rig.submit(case.rig.write_bio(at * CHUNK, CHUNK, fill(at) ^ 0x80, Flags::NONE));
            if at >= DEPTH - 1 {
                assert_eq!(case.rig.finish().result, Ok(()));
            }
        }
        (1..DEPTH).for_each(|_| assert_eq!(case.rig.finish().result, Ok(())));
        assert!(case.dies());
        let written: Vec<_> =
            blocks(0, all * CHUNK).into_iter().map(|at| (at, fill(at / CHUNK) ^ 0x80)).collect();
        case.check(&[], &written);
        case.check_anew(&[], &written);
    }
}

#[test]
fn what_a_write_has_renewed_is_so_also_where_who_dies_has_refused_the_parity() {
    for make in makes() {
        let layout = make.parity_layout();
        let (lister, dying) = (layout.member(ROW, 0), layout.parity(ROW).0);
        let mut case = case_of(make, &[lister], dying);
        // The array is active from here on, with the bits that are needed.
        let beside = case.bad - SKIP;
        case.rig.write(beside, 4, fill(beside)).unwrap();
        case.faults(dying, REFUSES_WRITES);
        assert_eq!(case.rig.write(case.bad, NR, 0xa2), Ok(()));
        assert!(case.dies());
        let written: Vec<_> = blocks(case.bad, NR).into_iter().map(|at| (at, 0xa2)).collect();
        case.check(&[], &written);
        case.check_anew(&[], &written);
    }
}

#[test]
fn a_write_whose_data_nobody_has_fails() {
    // What who dies refuses first is beside what the other lists: that cannot be computed any more, and neither can this.
    let mut case = case(Make::raid5(4).with_bad_blocks());
    let first = case.part_beside();
    case.rig.write(first, 4, fill(first)).unwrap();
    case.faults(case.dying, REFUSES_WRITES);
    let part = case.part(ROW) + SKIP;
    assert_eq!(case.rig.write(part, NR, 0xa1), Err(Errno::EIO));
    assert!(case.dies());
    let lost = [blocks(case.bad, NR), blocks(part, NR)].concat();
    case.check(&lost, &[]);
    // Where it had the parity, the data are there.
    let (mut case, mut written) = written_beside(Make::raid5(4).with_bad_blocks());
    case.faults(case.dying, REFUSES_WRITES);
    let (beside, _) = written[0];
    assert_eq!(case.rig.write(beside, 4, 0xa1), Ok(()));
    assert!(case.dies());
    written[0].1 = 0xa1;
    let lost = blocks(case.bad, 4);
    case.check(&lost, &written);
    case.check_anew(&lost, &written);
}

#[test]
fn zeroes_are_written_without_who_dies() {
    let mut case = case(Make::raid5(4).with_bad_blocks());
    case.faults(case.dying, Faults { discard_errors: 1_000_000, ..REFUSES_WRITES });
    let row = 3 * CHUNK;
    let zeroes = Bio::without_data(Op::WriteZeroes, Flags::NONE, Sector(BESIDE * row), Sectors(2 * row));
    assert_eq!(case.rig.run(zeroes).0, Ok(()));
    assert!(case.dies());
    let written: Vec<_> = blocks(BESIDE * row, 2 * row).into_iter().map(|at| (at, 0)).collect();
    case.check(&[], &written);
    case.check_anew(&[], &written);
}

#[test]
fn who_is_met_when_the_array_is_put_to_rest_keeps_it_from_nothing() {
    for make in makes() {
        let mut case = case(make);
        let part = case.part_beside();
        case.rig.write(part, 4, 0xa1).unwrap();
        case.faults(case.dying, REFUSES_WRITES);
        let lister = case.lister;
        let (world, make) = case.rig.close();
        assert_eq!(list(&world, &make, lister), []);
        world.heal();
        let mut rig = Rig::on(world, make, &[], true);
        assert_eq!(rig.served.array.status().degraded, 1);
        check(&mut rig, &[], &[(part, 0xa1)]);
    }
}

#[test]
fn who_is_met_by_a_recovery_goes_and_that_goes_on() {
    // Slow enough to write down how far it is.
    let make = Make::raid6(6).with_bad_blocks().with_spares(1).of_sectors(16 * 1024);
    let missing = make.parity_layout().member(ROW, 2);
    let Case { rig, lister, dying, bad } = case(make);
    let (world, make) = rig.close();
    let mut case = Case { rig: Rig::on(world, make, &[missing], true), lister, dying, bad };
    case.rig.served.array.set_speed(512, 512);
    case.rig.open();
    case.rig.rest(Nanos::secs(1));
    assert!(case.rig.is_syncing());
    case.faults(dying, REFUSES_WRITES);
    case.rig.rest(Nanos::secs(12));
    assert!(case.dies() && case.rig.is_syncing());
    case.rig.served.array.set_speed(1 << 20, 1 << 20);
    case.rig.wait_sync();
    let status = case.rig.served.array.status();
    assert_eq!((status.degraded, case.rig.device_of(missing)), (1, 6), "{status:?}");
    assert_eq!(list(&case.rig.world, &case.rig.make, lister), []);
    case.check(&[], &[]);
}

#[test]
fn who_is_met_by_a_repair_goes() {
    for make in makes() {
        let dying = make.parity_layout().parity(BESIDE).0;
        let lister = make.parity_layout().member(ROW, 0);
        assert_ne!(dying, lister);
        let mut case = case_of(make, &[lister], dying);
        // A parity that does not fit.
        case.rig.world.preload(FileId(dying.into()), DATA_START + BESIDE * CHUNK, &[0x77; 512]);
        case.faults(dying, REFUSES_WRITES);
        case.rig.start_sync(SyncAction::Repair).unwrap();
        case.rig.wait_sync();
        assert!(case.dies());
        assert_eq!(list(&case.rig.world, &case.rig.make, lister), []);
        case.check(&[], &[]);
    }
}

#[test]
fn who_is_met_where_it_is_mended_goes() {
    for make in makes() {
        let mut case = case(make);
        case.faults(case.dying, REFUSES_ALL);
        let lost = [blocks(case.bad, NR), blocks(case.part(ROW) + SKIP, NR)].concat();
        let part = case.part_beside();
        assert_eq!(case.rig.read(part, 4), Ok(vec![fill(part); 4 * 512]));
        case.rig.rest(Nanos::secs(1));
        assert!(case.dies());
        case.check(&lost, &[]);
        case.check_anew(&lost, &[]);
    }
}

/// The array is as it was found, but says that its parities may not fit.
fn out_of_sync(make: Make, lists: &[(u16, u64, u64)]) -> Rig {
    let (world, make) = listed(make, lists).close();
    for device in 0..make.members {
        let mut superblock = examine(&world, device, make.device_sectors()).superblock;
        assert_eq!(superblock.resync_offset, IN_SYNC);
        superblock.resync_offset = 0;
        world.preload(FileId(device.into()), SUPERBLOCK, &superblock.encode());
    }
    Rig::on(world, make, &[], true)
}

#[test]
fn while_parities_may_not_fit_nobody_can_go() {
    let make = Make::raid5(4).with_bad_blocks();
    let [lister, dying] = [0, 1].map(|nth| make.parity_layout().member(ROW, nth));
    let bad = data_of(&make, ROW, lister).unwrap() + SKIP;
    let rig = out_of_sync(make, &[(lister, ROW * CHUNK + SKIP, NR)]);
    let mut case = Case { rig, lister, dying, bad };
    case.faults(dying, REFUSES_WRITES);
    let part = case.part_beside();
    assert_eq!(case.rig.write(part, 4, 0xa1), Err(Errno::EIO));
    case.rig.wait_sync();
    assert!(!case.dies());
    assert_eq!(case.rig.read(bad, 4), Err(Errno::EIO), "what is computed may be anything");
}

#[test]
fn of_two_that_die_at_once_neither_goes_with_what_the_other_has_not_taken() {
    let make = Make::raid5(4).with_bad_blocks();
    let layout = make.parity_layout();
    let [lister, one, other] = [0, 1, 2].map(|nth| layout.member(ROW, nth));
    let mut case = case_of(make, &[lister], one);
    let rows = [BESIDE, BESIDE + 4];
    let places =
        [(rows[0], one), (rows[1], other)].map(|(row, it)| data_of(&case.rig.make, row, it).unwrap());
    // The array is active from here on, and what is beside it in these rows is known.
    for place in places {
        case.rig.write(place, NR, 0xa0).unwrap();
    }
    for device in [one, other] {
        case.faults(device, REFUSES_WRITES);
    }
    for place in places {
        case.rig.submit(case.rig.write_bio(place, NR, 0xa1, Flags::NONE));
    }
    let results = [0, 1].map(|_| case.rig.finish().result);
    assert_eq!(results, [Err(Errno::EIO); 2]);
    assert_eq!(case.rig.states(), [MemberState::InSync; 4]);
    // That could be saved; it leaves the list with a flush.
    assert_eq!(case.rig.served.array.status().members[usize::from(lister)].bad_ranges, 1);
    let written = places.map(|place| blocks(place, NR)).concat();
    for at in (0..sectors(&case.rig.make)).step_by(4) {
        let read = case.rig.read(at, 4).map(|it| it[0]);
        let is_written = written.contains(&at);
        let may_be = [Ok(0xa0), Ok(0xa1)];
        assert!(if is_written { may_be.contains(&read) } else { read == Ok(fill(at)) }, "{at}: {read:?}");
    }
    // When they take writes again, all is as it should be.
    [one, other].into_iter().for_each(|device| case.faults(device, Faults::NONE));
    case.rig.resume_sync().unwrap();
    case.rig.wait_sync();
    for place in places {
        case.rig.write(place, NR, 0xa2).unwrap();
    }
    let written: Vec<_> = written.into_iter().map(|at| (at, 0xa2)).collect();
    case.check(&[], &written);
    case.check_anew(&[], &written);
}

/// A write that meets who dies, and a flush, with the power cut at that event. Whether all was done before, and how many devices it was that have
/// lists then.
fn cut_at(
    make: &Make,
    world: &World,
    case: (u16, u16, u64),
    cut: u64,
    seen: &mut BTreeSet<(bool, bool)>,
) -> bool {
    let (lister, dying, bad) = case;
    world.cut_at_event(cut);
    let mut case = Case { rig: Rig::on(world.clone(), make.clone(), &[], true), lister, dying, bad };
    case.faults(dying, REFUSES_WRITES);
    let part = case.part_beside();
    let is_written = case.rig.write(part, 4, 0xa1).is_ok() && case.rig.flush().is_ok();
    let is_over = !world.is_off();
    let world = case.rig.world.power_cut();
    world.cut_at_event(u64::MAX);
    let mut rig = Rig::on(world, make.clone(), &[], true);
    let is_listed = !list(&rig.world, make, lister).is_empty();
    let status = rig.served.array.status();
    let (has_gone, is_dirty) = (status.degraded > 0, status.resync_from.is_some());
    seen.insert((is_listed, has_gone));
    assert!(!has_gone || !is_listed, "{cut}: it was saved before");
    assert!(!is_written || has_gone, "{cut}");
    for at in (0..sectors(make)).step_by(4) {
        let read = rig.read(at, 4);
        let is = |fill: u8| read == Ok(vec![fill; 4 * 512]);
        let is_bad = is_listed && (bad..bad + NR).contains(&at);
        // Where it was being written, nobody knows whether parities fit.
        let may_be_lost = read == Err(Errno::EIO) && (is_bad || (has_gone && is_dirty));
        let may_be_new = at == part && is(0xa1);
        let is_old = is(fill(at)) && !(at == part && is_written);
        assert!(
            may_be_lost || may_be_new || is_old,
            "{cut}: {at}: {:?} {is_listed} {has_gone} {is_dirty} {:?}",
            read.map(|it| it[0]),
            rig.states()
        );
    }
    is_over
}

#[test]
fn a_power_cut_meanwhile_leaves_nothing_that_is_wrong() {
    let mut seen = BTreeSet::new();
    for make in makes() {
        for cut in 1.. {
            let Case { rig, lister, dying, bad } = case(make.clone());
            if cut_at(&make, &rig.world.power_cut(), (lister, dying, bad), cut, &mut seen) {
                break;
            }
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(false, false), (false, true), (true, false)]);
}

#[test]
fn what_another_may_have_lost_meanwhile_saves_nothing_either() {
    for make in makes() {
        // What a read finds that was under way differs from one to the next.
        for chance in 0..6 {
            for is_read_meanwhile in [false, true] {
                another_loses(make.clone(), chance, is_read_meanwhile);
            }
        }
    }
}

/// While something is being saved, another member loses what was written beside it, in this row and another one: before it is read for that, or while
/// it is.
fn another_loses(make: Make, chance: u64, is_read_meanwhile: bool) {
    let layout = make.parity_layout();
    let [lister, dying, loses] = [0, 1, 2].map(|nth| layout.member(ROW, nth));
    // With the same members' data and parity.
    let row = ROW + 4;
    let lists = [ROW, row].map(|row| (lister, row * CHUNK + SKIP, NR));
    let mut case = Case { rig: listed_but(make, &lists, Some(dying)), lister, dying, bad: 0 };
    let make = case.rig.make.clone();
    let of = |row, member| data_of(&make, row, member).unwrap() + SKIP;
    (0..chance).for_each(|_| drop(case.rig.read(of(ROW, loses), 4)));
    // With the bits that are needed.
    for at in [of(ROW, loses), of(row, loses), (row + 1) * 3 * CHUNK, (row + 1) * 3 * CHUNK + CHUNK] {
        case.rig.write(at, NR, 0xb1).unwrap();
    }
    case.faults(dying, REFUSES_WRITES);
    let stalls = if is_read_meanwhile { loses } else { layout.parity(ROW).0 };
    case.faults(stalls, STALLS);
    write_row(&mut case, row + 1, 0xa1);
    until_read(&mut case.rig, stalls);
    case.faults(stalls, Faults::NONE);
    case.faults(loses, Faults { lost_flushes: 1_000_000, ..Faults::NONE });
    case.rig.submit(Bio::flush());
    (0..2).for_each(|_| drop(case.rig.finish()));
    for at in [of(ROW, lister), of(row, lister)].into_iter().flat_map(|at| blocks(at, NR)) {
        let read = case.rig.read(at, 4);
        let is_right = read == Err(Errno::EIO) || read == Ok(vec![fill(at); 4 * 512]);
        assert!(is_right, "{at}: {:?}", read.map(|it| it[0]));
    }
}
