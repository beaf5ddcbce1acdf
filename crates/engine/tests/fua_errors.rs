//! A FUA write that fails: whether its data was to blame or a flush, which is final and told to all, and who hears of it.

mod rig;

use blockwork_engine::*;
use rig::{Held, Rig, limits};

fn fua(rig: &Rig, sector: u64) -> Bio {
    Bio { flags: Flags::FUA, ..rig.write(sector, 8, 2) }
}

/// What the device was asked for, and whether as FUA.
fn asked(rig: &Rig) -> Vec<(Op, bool, u64, u64)> {
    rig.seen().iter().map(|seen| (seen.op, seen.flags.has(Flags::FUA), seen.sector, seen.nr)).collect()
}

fn sorted(rig: &Rig) -> Vec<(u64, Result<(), Errno>)> {
    let mut results = rig.results();
    results.sort_by_key(|(cookie, _)| *cookie);
    results
}

/// What comes back of these now.
fn answers(rig: &mut Rig, bios: impl IntoIterator<Item = Bio>) -> Vec<Result<(), Errno>> {
    rig.client.borrow_mut().done.clear();
    rig.batch(bios);
    sorted(rig).into_iter().map(|(_, result)| result).collect()
}

const LOST: Result<(), Errno> = Err(Errno::EIO);

/// A FUA write that the device has not answered yet.
fn under_way() -> (Rig, Held) {
    let mut rig = Rig::new(limits());
    rig.hold();
    let write = fua(&rig, 0);
    rig.batch([write]);
    let held = rig.next_held();
    (rig, held)
}

#[test]
fn where_the_data_is_written_it_was_the_flush_and_that_is_final() {
    for merged in [1, 2] {
        let mut rig = Rig::new(limits());
        let before = rig.write(800, 8, 1);
        rig.batch([before]);
        rig.all_succeeded(1);
        rig.clear_seen();
        rig.device.lock().unwrap().fail_fua = true;
        let bios: Vec<_> = (0..merged).map(|i| fua(&rig, i * 8)).collect();
        assert_eq!(answers(&mut rig, bios), vec![LOST; merged as usize]);
        let nr = merged * 8;
        assert_eq!(asked(&rig), [(Op::Write, true, 0, nr), (Op::Write, false, 0, nr)], "once, and whole");
        assert!(rig.shared.has_failed());
        // Though the device would flush now.
        rig.clear_seen();
        let bios = [rig.read(800, 8), rig.write(16, 8, 1), fua(&rig, 64), Bio::flush()];
        assert_eq!(answers(&mut rig, bios), [Ok(()), LOST, LOST, LOST]);
        assert_eq!(asked(&rig), [(Op::Read, false, 800, 8)]);
    }
}

#[test]
fn where_the_data_is_not_written_that_write_fails_and_the_leaf_goes_on() {
    for merged in [1, 3] {
        let mut rig = Rig::new(limits());
        let bad = merged / 2;
        rig.device.lock().unwrap().bad = vec![bad * 8 + 3];
        let bios: Vec<_> = (0..merged).map(|i| fua(&rig, i * 8)).collect();
        let expected: Vec<_> = (0..merged).map(|i| if i == bad { LOST } else { Ok(()) }).collect();
        assert_eq!(answers(&mut rig, bios), expected);
        assert!(!rig.shared.has_failed());
        for i in (0..merged).filter(|i| *i != bad) {
            assert_eq!(rig.bytes(i * 8, 8), [2; 8 * 512]);
            let durable =
                |seen: &&rig::Seen| seen.flags.has(Flags::FUA) && (seen.sector, seen.nr) == (i * 8, 8);
            assert_eq!(rig.seen().iter().filter(durable).count(), 1, "{:?}", rig.seen());
        }
        let bios = [rig.write(80, 8, 1), fua(&rig, 160), Bio::flush()];
        assert_eq!(answers(&mut rig, bios), [Ok(()); 3]);
    }
}

/// A write that waits in a device's cache, a FUA write that has failed, and a flush that was under way meanwhile and has succeeded.
fn in_doubt() -> Rig {
    let mut rig = Rig::new(limits());
    rig.hold();
    let bios = [fua(&rig, 0), Bio::flush()];
    rig.batch(bios);
    let (first, second) = (rig.next_held(), rig.next_held());
    let (write, flush) = if first.op == Op::Write { (first, second) } else { (second, first) };
    rig.clear_seen();
    rig.complete(write, LOST);
    assert!(rig.seen().is_empty(), "it waits for its turn: {:?}", rig.seen());
    rig.complete(flush, Ok(()));
    assert_eq!(rig.results(), [], "a flush beside it proves nothing");
    assert_eq!(asked(&rig), [(Op::Write, false, 0, 8)]);
    // Nor is one made before it is known.
    rig.client.borrow_mut().to_submit.push((2, Bio::flush()));
    rig.turn_with_event();
    assert_eq!(rig.seen().len(), 1);
    rig
}

#[test]
fn flushes_beside_a_fua_write_in_doubt_wait_and_fail_with_it() {
    let mut rig = in_doubt();
    let again = rig.next_held();
    rig.complete(again, Ok(()));
    assert_eq!(sorted(&rig), [(0, LOST), (1, LOST), (2, LOST)]);
    assert_eq!(rig.seen().len(), 1, "no flush is made any more");
    assert!(rig.shared.has_failed());
}

#[test]
fn flushes_beside_a_fua_write_in_doubt_are_made_again_where_it_was_its_data() {
    let mut rig = in_doubt();
    let again = rig.next_held();
    // It is tried again without doing anything: still the same is to be known.
    rig.complete(again, Err(Errno::EAGAIN));
    assert_eq!(asked(&rig), [(Op::Write, false, 0, 8); 2]);
    let again = rig.next_held();
    rig.complete(again, LOST);
    assert_eq!(rig.results(), [(0, LOST)]);
    let flush = rig.next_held();
    assert_eq!(flush.op, Op::Flush);
    rig.complete(flush, Ok(()));
    assert_eq!(sorted(&rig), [(0, LOST), (1, Ok(())), (2, Ok(()))]);
    assert_eq!(rig.count(Counter::Flushes), 2, "both share the second one");
    assert!(!rig.shared.has_failed());
}

#[test]
fn another_workers_flush_beside_a_fua_write_in_doubt_waits_too() {
    let (mut rig, write) = under_way();
    // As another worker's queue has it.
    let turn = rig.shared.try_flush_turn().unwrap();
    rig.clear_seen();
    rig.complete(write, LOST);
    for _ in 0..3 {
        rig.turn_with_event();
    }
    assert!(rig.seen().is_empty(), "{:?}", rig.seen());
    drop(turn);
    rig.turn_with_event();
    assert_eq!(asked(&rig), [(Op::Write, false, 0, 8)]);
    assert!(rig.shared.try_flush_turn().is_none(), "nobody may flush before it is known");
    let again = rig.next_held();
    rig.complete(again, Ok(()));
    assert_eq!(rig.results(), [(0, LOST)]);
    assert!(rig.shared.has_failed() && rig.shared.try_flush_turn().is_some());
}

#[test]
fn what_is_read_beside_a_fua_write_in_doubt_is_answered_when_it_is_known() {
    for (again, is_lost) in [(LOST, false), (Ok(()), true)] {
        let mut rig = Rig::new(limits());
        rig.hold();
        let bios = [fua(&rig, 0), rig.read(80, 8), rig.read(160, 8)];
        rig.batch(bios);
        let [write, read, other] = [(); 3].map(|()| rig.next_held());
        assert_eq!((write.op, read.op, other.op), (Op::Write, Op::Read, Op::Read));
        // They come back together, the read first.
        rig.ready.borrow_mut().push(Completion { token: read.token, result: 8 * 512, flags: 0 });
        rig.device.lock().unwrap().under_way -= 1;
        rig.complete(write, LOST);
        assert_eq!(rig.results(), []);
        rig.complete(other, Ok(()));
        let more = rig.read(240, 8);
        rig.client.borrow_mut().to_submit.push((3, more));
        rig.turn_with_event();
        let retried = rig.next_held();
        let more = rig.next_held();
        assert_eq!((retried.op, more.op), (Op::Write, Op::Read));
        rig.complete(more, Ok(()));
        assert_eq!(rig.results(), []);
        rig.complete(retried, again);
        rig.turn_with_event();
        assert_eq!(rig.shared.has_failed(), is_lost);
        // Behind a loss they are made once more, for whoever is above may know of a better place.
        let from: Vec<u64> = std::iter::from_fn(|| {
            let held = rig.device.lock().unwrap().held.pop_front()?;
            let from = held.sector;
            rig.complete(held, Ok(()));
            Some(from)
        })
        .collect();
        assert_eq!(from, if is_lost { vec![80, 160, 240] } else { vec![] });
        assert_eq!(sorted(&rig), [(0, LOST), (1, Ok(())), (2, Ok(())), (3, Ok(()))]);
    }
}

#[test]
fn a_read_that_fails_beside_a_fua_write_in_doubt_fails_at_once() {
    let (mut rig, write) = under_way();
    rig.complete(write, LOST);
    let retried = rig.next_held();
    rig.client.borrow_mut().to_submit.push((1, Bio::flush()));
    let read = rig.read(80, 8);
    rig.client.borrow_mut().to_submit.push((2, read));
    rig.turn_with_event();
    let read = rig.next_held();
    rig.complete(read, LOST);
    assert_eq!(rig.results(), [(2, LOST)]);
    rig.complete(retried, LOST);
    rig.complete_all();
    assert_eq!(sorted(&rig), [(0, LOST), (1, Ok(())), (2, LOST)]);
}

#[test]
fn what_another_worker_reads_beside_a_fua_write_in_doubt_waits_too() {
    // Or the write was to blame, and the leaf has lost something all the same, which it knows by itself.
    for (again, knows, is_lost) in [(LOST, false, false), (Ok(()), false, true), (LOST, true, true)] {
        let (mut rig, write) = under_way();
        let mut other = rig.another_worker();
        let turns = |rigs: [&mut Rig; 2]| {
            let [one, other] = rigs;
            for _ in 0..3 {
                other.turn_with_event();
                one.turn_with_event();
            }
        };
        // Somebody flushes, so the write is not tried again yet.
        let turn = rig.shared.try_flush_turn().unwrap();
        rig.complete(write, LOST);
        let read = other.read(80, 8);
        other.batch([read]);
        let read = rig.next_held();
        other.complete(read, Ok(()));
        turns([&mut rig, &mut other]);
        assert_eq!(other.results(), []);
        if knows {
            rig.shared.fail();
        }
        drop(turn);
        turns([&mut rig, &mut other]);
        assert_eq!(other.results(), []);
        let retried = rig.next_held();
        rig.complete(retried, again);
        turns([&mut rig, &mut other]);
        assert_eq!((rig.results(), rig.shared.has_failed()), (vec![(0, LOST)], is_lost));
        if is_lost {
            assert_eq!(other.results(), [], "it is made once more");
            let read = rig.next_held();
            other.complete(read, Ok(()));
        }
        assert_eq!(other.results(), [(0, Ok(()))]);
        assert!(rig.shared.try_flush_turn().is_some(), "nobody has the turn for nothing");
    }
}

#[test]
fn what_is_read_ahead_beside_a_fua_write_in_doubt_waits_too() {
    let mut rig = Rig::new(Limits { read_ahead: Sectors(64), ..limits() });
    let begin: Vec<_> = (0..3).map(|i| rig.read(i * 8, 8)).collect();
    for read in begin {
        rig.batch([read]);
    }
    rig.all_succeeded(3);
    rig.client.borrow_mut().done.clear();
    rig.hold();
    let write = fua(&rig, 4096);
    rig.batch([write]);
    let write = rig.next_held();
    rig.complete(write, LOST);
    let retried = rig.next_held();
    // The first waits for what is read ahead; the second finds it.
    for (cookie, sector) in [(1, 24), (2, 32)] {
        let read = rig.read(sector, 8);
        rig.client.borrow_mut().to_submit.push((cookie, read));
        rig.turn_with_event();
        if cookie == 1 {
            let ahead = rig.next_held();
            assert_eq!((ahead.op, ahead.sector, ahead.nr), (Op::Read, 24, 64));
            rig.complete(ahead, Ok(()));
        }
        assert_eq!(rig.results(), []);
    }
    assert_eq!(rig.count(Counter::ReadAheadHit), 2);
    rig.complete(retried, LOST);
    assert_eq!(sorted(&rig), [(0, LOST), (1, Ok(())), (2, Ok(()))]);
}

#[test]
fn a_fua_write_that_fails_half_way_is_tried_again_from_its_start() {
    let (mut rig, held) = under_way();
    rig.complete_with(held, 3 * 512);
    let rest = rig.next_held();
    rig.device.lock().unwrap().bytes.fill(0);
    rig.complete(rest, LOST);
    assert_eq!(asked(&rig), [(Op::Write, true, 0, 8), (Op::Write, true, 3, 5), (Op::Write, false, 0, 8)]);
    assert_eq!(rig.bytes(0, 8), [2; 8 * 512]);
    let again = rig.next_held();
    rig.complete(again, Ok(()));
    assert_eq!(rig.results(), [(0, LOST)]);
    assert!(rig.shared.has_failed());
}

#[test]
fn a_fua_write_of_which_nothing_is_transferred_or_for_which_there_is_no_room_is_no_failed_flush() {
    for answer in [Ok(()), Err(Errno::ENOSPC)] {
        let (mut rig, held) = under_way();
        let expected = if answer.is_ok() {
            rig.complete_with(held, 0);
            LOST
        } else {
            rig.complete(held, answer);
            answer
        };
        assert_eq!((rig.results(), rig.seen().len()), (vec![(0, expected)], 1));
        assert!(!rig.shared.has_failed());
    }
}

#[test]
fn a_device_that_does_not_take_fua_gets_flushes() {
    let mut rig = Rig::new(limits());
    rig.hold();
    for first in [true, false] {
        rig.clear_seen();
        rig.client.borrow_mut().done.clear();
        let write = fua(&rig, 0);
        rig.batch([write]);
        if first {
            let held = rig.next_held();
            rig.complete(held, Err(Errno::EOPNOTSUPP));
            rig.device.lock().unwrap().seen.remove(0);
        }
        let held = rig.next_held();
        rig.complete(held, Ok(()));
        assert!(rig.results().is_empty(), "it is not durable yet");
        let flush = rig.next_held();
        rig.complete(flush, Ok(()));
        assert_eq!(rig.results(), [(0, Ok(()))]);
        assert_eq!(asked(&rig), [(Op::Write, false, 0, 8), (Op::Flush, false, 0, 0)], "first: {first}");
    }
    assert!(!rig.shared.has_failed());
}

#[test]
fn a_leaf_that_knows_of_losses_by_itself_is_asked_nothing_more() {
    let mut rig = Rig::new(limits());
    rig.device.lock().unwrap().tells_losses = true;
    rig.device.lock().unwrap().fail_fua = true;
    let write = fua(&rig, 0);
    assert_eq!(answers(&mut rig, [write]), [LOST]);
    assert_eq!(asked(&rig), [(Op::Write, true, 0, 8)]);
    // Nor is a flush the last one, unless it says so.
    rig.device.lock().unwrap().fail_flush = true;
    assert_eq!(answers(&mut rig, [Bio::flush()]), [LOST]);
    assert!(!rig.shared.has_failed());
    rig.clear_seen();
    assert_eq!(answers(&mut rig, [Bio::flush()]), [Ok(())]);
    assert_eq!(asked(&rig), [(Op::Flush, false, 0, 0)]);
    rig.shared.fail();
    assert_eq!(answers(&mut rig, [Bio::flush()]), [LOST]);
}

#[test]
fn a_fua_write_that_is_one_command_of_the_device_fails_alone() {
    let mut rig = Rig::new(limits());
    rig.device.lock().unwrap().has_fua = true;
    rig.hold();
    let bios = [fua(&rig, 0), fua(&rig, 8)];
    rig.batch(bios);
    let held = rig.next_held();
    rig.complete(held, LOST);
    // They went as one, of which a part may be good.
    for (sector, result) in [(0, LOST), (8, Ok(()))] {
        let held = rig.next_held();
        assert_eq!((held.op, held.sector, held.nr), (Op::Write, sector, 8));
        rig.complete(held, result);
    }
    assert_eq!(sorted(&rig), [(0, LOST), (1, Ok(()))]);
    assert!(rig.seen().iter().all(|seen| seen.flags.has(Flags::FUA)), "{:?}", rig.seen());
    assert!(!rig.shared.has_failed());
    // What is flushed meanwhile is flushed.
    rig.device.lock().unwrap().manual = false;
    let bios = [rig.write(80, 8, 1), fua(&rig, 160), Bio::flush()];
    assert_eq!(answers(&mut rig, bios), [Ok(()); 3]);
}

#[test]
fn a_device_that_has_fua_may_yet_have_flushed_behind_a_call_and_need_not_take_what_it_claims() {
    let mut rig = Rig::new(limits());
    rig.device.lock().unwrap().has_fua = true;
    rig.worker.env.calls = true;
    rig.device.lock().unwrap().fail_fua = true;
    let write = fua(&rig, 0);
    assert_eq!(answers(&mut rig, [write]), [LOST]);
    assert_eq!(asked(&rig), [(Op::Write, true, 0, 8), (Op::Write, false, 0, 8)]);
    assert!(rig.shared.has_failed());

    let (mut rig, held) = under_way();
    rig.device.lock().unwrap().has_fua = true;
    rig.device.lock().unwrap().manual = false;
    rig.complete(held, Err(Errno::EOPNOTSUPP));
    rig.all_succeeded(1);
    assert_eq!(asked(&rig), [(Op::Write, true, 0, 8), (Op::Write, false, 0, 8), (Op::Flush, false, 0, 0)]);
}
