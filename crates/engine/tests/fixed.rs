//! Requests by memory that the kernel knows: which may go so, which do, and that `auto` finds out for each direction and length where
//! that is faster. The device's times are the test's.
mod rig;

use blockwork_engine::*;
use blockwork_memory::Segments;
use rig::Rig;

fn rig(setting: &str) -> Rig {
    let mut limits = Limits { hw_fixed: true, ..rig::limits() };
    limits.set("fixed", setting).unwrap();
    Rig::new(limits)
}

#[test]
fn what_is_one_piece_and_known_goes_so_where_that_is_asked_for() {
    for (setting, fixed, asked) in [("on", 2, 2), ("off", 0, 0)] {
        let mut rig = rig(setting);
        let write = rig.write(40, 8, 7);
        rig.batch([write]);
        let read = rig.read(40, 8);
        rig.batch([read]);
        // In two pieces, and without memory.
        let pieces: Segments = rig.memory(8, 3).into_iter().chain(rig.memory(8, 4)).collect();
        rig.batch([Bio::with_data(Op::Write, Flags::NONE, Sector(80), pieces)]);
        rig.batch([Bio::without_data(Op::Discard, Flags::NONE, Sector(160), Sectors(8))]);
        rig.batch([Bio::without_data(Op::Flush, Flags::NONE, Sector(0), Sectors(0))]);
        rig.all_succeeded(5);
        let seen: Vec<_> = rig.seen().iter().map(|seen| seen.fixed).collect();
        assert_eq!(seen, [fixed > 0, fixed > 0, false, false, false], "{setting}");
        assert_eq!((rig.count(Counter::Fixed), rig.worker.env.asked), (fixed, asked), "{setting}");
        assert_eq!(rig.bytes(40, 8), vec![7; 4096]);
        assert!(rig.stats.choices().is_empty(), "nothing is chosen");
    }
}

#[test]
fn what_the_kernel_was_not_told_of_goes_as_usual_and_is_not_compared() {
    for setting in ["on", "auto"] {
        let mut rig = rig(setting);
        rig.worker.env.knows = false;
        for i in 0..32 {
            let write = rig.write(i * 8, 8, 1);
            rig.batch([write]);
        }
        rig.all_succeeded(32);
        assert!(rig.seen().iter().all(|seen| !seen.fixed), "{setting}");
        assert_eq!((rig.count(Counter::Fixed), rig.worker.env.asked), (0, 32), "{setting}");
        assert!(rig.stats.choices().is_empty(), "{setting}");
    }
}

/// One request at a time, each taking what `cost` says, in microseconds; how many of the last hundred went by known memory.
fn last_hundred(
    rig: &mut Rig,
    op: Op,
    sectors: u64,
    requests: u64,
    cost: impl Fn(bool, u64) -> u64,
) -> usize {
    rig.hold();
    for i in 0..requests {
        let sector = i % 64 * 512;
        let bio = if op == Op::Read { rig.read(sector, sectors) } else { rig.write(sector, sectors, 1) };
        rig.batch([bio]);
        let fixed = rig.device.lock().unwrap().seen.last().unwrap().fixed;
        rig.worker.env.now = rig.worker.env.now + Nanos::micros(cost(fixed, i));
        rig.complete_all();
        rig.client.borrow_mut().done.clear();
    }
    let seen = rig.seen();
    rig.clear_seen();
    seen[seen.len() - 100..].iter().filter(|seen| seen.fixed).count()
}

#[test]
fn each_length_and_direction_goes_the_way_that_is_faster_for_it() {
    let mut rig = rig("auto");
    // As on one machine: reads gain, the more the longer they are; long writes lose.
    assert!(last_hundred(&mut rig, Op::Read, 8, 3000, |fixed, _| if fixed { 95 } else { 100 }) > 90);
    assert!(last_hundred(&mut rig, Op::Read, 128, 1000, |fixed, _| if fixed { 60 } else { 100 }) > 90);
    assert!(last_hundred(&mut rig, Op::Write, 8, 3000, |fixed, _| if fixed { 90 } else { 100 }) > 90);
    assert!(last_hundred(&mut rig, Op::Write, 128, 1000, |fixed, _| if fixed { 110 } else { 100 }) < 10);
    let told: Vec<_> = rig
        .stats
        .choices()
        .iter()
        .map(|it| (it.subject.setting(), it.subject.to_string(), it.workers))
        .collect();
    let expected = [
        ("reads of 4 KiB in one piece", [0, 1, 0]),
        ("reads of 64 KiB in one piece", [0, 1, 0]),
        ("writes of 4 KiB in one piece", [0, 1, 0]),
        ("writes of 64 KiB in one piece", [0, 0, 1]),
    ];
    assert_eq!(told, expected.map(|(class, workers)| ("fixed", class.to_owned(), workers)));
}

#[test]
fn where_the_device_shows_no_difference_the_processor_is_spared() {
    let mut rig = rig("auto");
    // The same, but for chance; still before anything is decided.
    let chance = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
    assert!(last_hundred(&mut rig, Op::Read, 128, 400, |_, i| 100 + chance(i)) >= 50);
    assert!(last_hundred(&mut rig, Op::Read, 128, 12_000, |_, i| 100 + chance(i)) > 90);
    assert_eq!(rig.stats.choices()[0].workers, [0, 1, 0], "decided");
}

#[test]
fn a_kernel_that_gets_worse_at_it_is_noticed() {
    let mut rig = rig("auto");
    let cost = |fixed, i| match (fixed, i < 5000) {
        (true, true) => 80,
        (true, false) => 300,
        (false, _) => 100,
    };
    assert!(last_hundred(&mut rig, Op::Read, 16, 2000, cost) > 90);
    assert!(last_hundred(&mut rig, Op::Read, 16, 10_000, cost) < 10);
}

#[test]
fn requests_that_linearize_compares_are_not_compared_twice() {
    let mut limits = Limits { hw_fixed: true, ..rig::limits() };
    limits.set("fixed", "auto").unwrap();
    limits.set("linearize", "auto").unwrap();
    let mut rig = Rig::new(limits);
    for i in 0..64 {
        let pieces: Segments = (0..4).map(|_| rig.memory(8, i)[0].slice(1024, 512)).collect();
        rig.batch([Bio::with_data(Op::Write, Flags::NONE, Sector(u64::from(i) * 16), pieces)]);
        assert_eq!(rig.bytes(u64::from(i) * 16, 4), vec![i; 2048]);
    }
    rig.all_succeeded(64);
    let told = rig.stats.choices();
    assert_eq!((told.len(), told[0].subject.setting()), (1, "linearize"), "{told:?}");
    let is_usual = |seen: &rig::Seen| seen.fixed == (seen.segments == 1);
    assert!(rig.seen().iter().all(is_usual), "nothing was found out about known memory");
    // What is found out on others holds for copies too.
    for i in 0..512 {
        rig.hold();
        let bio = rig.write(i % 64 * 512, 4, 1);
        rig.batch([bio]);
        let fixed = rig.device.lock().unwrap().seen.last().unwrap().fixed;
        rig.worker.env.now = rig.worker.env.now + Nanos::micros(if fixed { 150 } else { 100 });
        rig.complete_all();
    }
    rig.clear_seen();
    for i in 0..64 {
        let pieces: Segments = (0..4).map(|_| rig.memory(8, i)[0].slice(1024, 512)).collect();
        rig.batch([Bio::with_data(Op::Write, Flags::NONE, Sector(u64::from(i) * 16), pieces)]);
        rig.complete_all();
    }
    let copies: Vec<_> = rig.seen().into_iter().filter(|seen| seen.segments == 1).collect();
    assert!(!copies.is_empty() && copies.iter().all(|seen| !seen.fixed), "{copies:?}");
}

#[test]
fn what_is_left_of_a_short_transfer_goes_as_its_class_goes_and_says_nothing() {
    let mut rig = rig("on");
    rig.hold();
    let read = rig.read(0, 8);
    rig.batch([read]);
    let held = rig.next_held();
    rig.complete_with(held, 1024);
    let seen = rig.seen();
    assert_eq!((seen.len(), seen[1].sector, seen[1].nr, seen[1].fixed), (2, 2, 6, true));
    rig.complete_all();
    rig.all_succeeded(1);
}
