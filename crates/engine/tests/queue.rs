//! What a leaf's queue makes of a batch: merging, splitting, flushing, and what happens when the device fails.

mod rig;

use std::sync::{Arc, Mutex};

use blockwork_engine::*;
use blockwork_memory::Segments;
use proptest::prelude::*;
use rig::{Rig, limits};

#[test]
fn sixty_four_contiguous_8_sector_reads_in_one_batch_are_one_512_sector_request() {
    let mut rig = Rig::new(limits());
    let bios: Vec<_> = (0..64).map(|i| rig.read(1000 * 8 + i * 8, 8)).collect();
    rig.batch(bios);
    let seen = rig.seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!((seen[0].sector, seen[0].nr, seen[0].op), (8000, 512, Op::Read));
    rig.all_succeeded(64);
    assert_eq!(rig.count(Counter::BackMerged), 63);
}

#[test]
fn the_order_of_arrival_does_not_matter_with_nomerges_0() {
    let mut rig = Rig::new(limits());
    let bios: Vec<_> = (0..64).rev().map(|i| rig.read(i * 8, 8)).collect();
    rig.batch(bios);
    assert_eq!(rig.seen().len(), 1);
    rig.all_succeeded(64);
}

#[test]
fn nomerges_1_merges_only_what_arrives_in_order() {
    let mut one = limits();
    one.set("nomerges", "1").unwrap();
    let mut rig = Rig::new(one);
    // 0 1 | 9 | 2 3: the 2 does not adjoin the newest request any more.
    let bios: Vec<_> = [0, 1, 9, 2, 3].map(|i| rig.read(i * 8, 8)).into();
    rig.batch(bios);
    let seen: Vec<_> = rig.seen().iter().map(|seen| (seen.sector, seen.nr)).collect();
    assert_eq!(seen, [(0, 16), (72, 8), (16, 16)]);
}

#[test]
fn nomerges_2_merges_nothing() {
    let mut two = limits();
    two.set("nomerges", "2").unwrap();
    let mut rig = Rig::new(two);
    let bios: Vec<_> = (0..64).map(|i| rig.read(i * 8, 8)).collect();
    rig.batch(bios);
    assert_eq!(rig.seen().len(), 64);
    rig.all_succeeded(64);
}

#[test]
fn what_is_held_back_for_small_ones_can_still_be_merged_and_small_ones_go_past_it() {
    let mut rig = Rig::new(Limits { wbt_lat: WBT_LAT, ..limits() });
    rig.hold();
    // The first small one that comes back beside a large one: from then on it is looked for a while what they take by themselves.
    let (small, large) = (rig.read(0, 8), rig.read(512, 512));
    rig.batch([small, large]);
    let held = rig.next_held();
    assert_eq!(held.nr, 8);
    rig.complete(held, Ok(()));
    let large = rig.read(20_000, 64);
    rig.batch([large]);
    assert_eq!((rig.seen().len(), rig.count(Counter::Held)), (2, 1));
    let adjoining = rig.read(20_064, 64);
    rig.batch([adjoining]);
    assert_eq!((rig.seen().len(), rig.count(Counter::BackMerged)), (2, 1));
    let small = rig.read(8, 8);
    rig.batch([small]);
    assert_eq!(rig.seen().last().map(|seen| (seen.sector, seen.nr)), Some((8, 8)));
    rig.complete_all();
    assert_eq!(rig.seen().last().map(|seen| (seen.sector, seen.nr)), Some((20_000, 128)));
    rig.all_succeeded(5);
}

#[test]
fn a_request_never_exceeds_max_sectors_or_max_segments() {
    let mut few = limits();
    (few.max_sectors, few.max_segments) = (Sectors(64), 5);
    let mut rig = Rig::new(few);
    let bios: Vec<_> = (0..100).map(|i| rig.write(i * 8, 8, i as u8)).collect();
    rig.batch(bios);
    for seen in rig.seen() {
        assert!(seen.nr <= 64 && seen.segments <= 5, "{seen:?}");
    }
    assert_eq!(rig.seen().len(), 20, "five 4 KiB pieces each, of one segment each");
    for i in 0..100 {
        assert!(rig.bytes(i * 8, 8).iter().all(|byte| *byte == i as u8));
    }
}

#[test]
fn a_large_write_is_cut_at_max_sectors_and_at_the_chunk_boundary() {
    let mut rig = Rig::new(limits());
    let bio = rig.write(100, 1200, 7);
    rig.batch([bio]);
    let cuts: Vec<_> = rig.seen().iter().map(|seen| (seen.sector, seen.nr)).collect();
    assert_eq!(cuts, [(100, 512), (612, 512), (1124, 176)]);
    assert_eq!(rig.count(Counter::SplitMaxSectors), 2);
    rig.all_succeeded(1);

    let mut chunked = limits();
    chunked.chunk_sectors = Sectors(256);
    let mut rig = Rig::new(chunked);
    let bio = rig.write(100, 600, 7);
    rig.batch([bio]);
    let cuts: Vec<_> = rig.seen().iter().map(|seen| (seen.sector, seen.nr)).collect();
    assert_eq!(cuts, [(100, 156), (256, 256), (512, 188)]);
}

#[test]
fn what_waits_for_nr_requests_is_merged_with_what_arrives_later() {
    let mut one = limits();
    one.set("nr_requests", "1").unwrap();
    let mut rig = Rig::new(one);
    rig.hold();
    let first = [rig.write(0, 8, 1), rig.write(800, 8, 2)];
    rig.batch(first);
    assert_eq!(rig.seen().len(), 1, "one in flight");
    let later = [rig.write(808, 8, 3), rig.write(792, 8, 4)];
    rig.batch(later);
    rig.complete_all();
    let seen: Vec<_> = rig.seen().iter().map(|seen| (seen.sector, seen.nr)).collect();
    assert_eq!(seen, [(0, 8), (792, 24)]);
    assert_eq!(rig.count(Counter::FrontMerged), 1);
    rig.all_succeeded(4);
    assert_eq!(rig.bytes(792, 24), [vec![4; 4096], vec![2; 4096], vec![3; 4096]].concat());
}

#[test]
fn reads_and_writes_and_fua_are_not_merged_with_each_other() {
    let mut rig = Rig::new(limits());
    let mut fua = rig.write(16, 8, 1);
    fua.flags = Flags::FUA;
    let bios = [rig.read(0, 8), rig.write(8, 8, 1), fua];
    rig.batch(bios);
    assert_eq!(rig.seen().len(), 3);
    assert!(rig.seen().iter().any(|seen| seen.flags == Flags::FUA && seen.sector == 16));
}

#[test]
fn a_bad_sector_fails_only_the_bio_that_needs_it() {
    let mut rig = Rig::new(limits());
    rig.device.lock().unwrap().bad = vec![27];
    let bios: Vec<_> = (0..8).map(|i| rig.read(i * 8, 8)).collect();
    rig.batch(bios);
    for (cookie, result) in rig.results() {
        assert_eq!(result, if cookie == 3 { Err(Errno::EIO) } else { Ok(()) }, "bio {cookie}");
    }
    assert_eq!(rig.results().len(), 8);
}

#[test]
fn a_short_transfer_is_continued_where_it_ended() {
    let mut rig = Rig::new(limits());
    rig.hold();
    rig.device.lock().unwrap().bytes[..64 * 512].fill(9);
    let bio = rig.read(0, 64);
    rig.batch([bio]);
    let held = rig.next_held();
    rig.complete_with(held, 10 * 512 + 100); // not even whole sectors
    let held = rig.next_held();
    assert_eq!((held.sector, held.nr), (10, 54));
    rig.complete(held, Ok(()));
    rig.all_succeeded(1);
    assert_eq!(rig.data_of(0), vec![9; 64 * 512]);
}

#[test]
fn a_transfer_of_nothing_is_an_error_and_never_data() {
    let mut rig = Rig::new(limits());
    rig.hold();
    let bio = rig.read(0, 8);
    rig.batch([bio]);
    let held = rig.next_held();
    rig.complete_with(held, 0);
    assert_eq!(rig.results(), [(0, Err(Errno::EIO))]);
}

#[test]
fn a_flush_waits_for_the_device_and_is_shared_by_those_who_come_while_another_runs() {
    let mut rig = Rig::new(limits());
    rig.hold();
    rig.batch([Bio::flush()]);
    rig.batch([Bio::flush(), Bio::flush(), Bio::flush()]);
    assert_eq!(rig.seen().len(), 1, "the second one waits for the first");
    let held = rig.next_held();
    rig.complete(held, Ok(()));
    assert_eq!(rig.results().len(), 1);
    assert_eq!(rig.seen().len(), 2, "one for all three");
    rig.complete_all();
    rig.all_succeeded(4);
    assert_eq!(rig.count(Counter::FlushMerged), 2);
}

#[test]
fn after_a_failed_flush_nothing_is_written_any_more_but_reads_go_on() {
    let mut rig = Rig::new(limits());
    rig.device.lock().unwrap().fail_flush = true;
    rig.batch([Bio::flush()]);
    assert_eq!(rig.results(), [(0, Err(Errno::EIO))]);
    rig.client.borrow_mut().done.clear();
    rig.clear_seen();
    let bios = [rig.write(0, 8, 1), rig.read(0, 8), Bio::flush()];
    rig.batch(bios);
    let mut results = rig.results();
    results.sort_by_key(|(cookie, _)| *cookie);
    assert_eq!(results, [(0, Err(Errno::EIO)), (1, Ok(())), (2, Err(Errno::EIO))]);
    assert!(rig.seen().iter().all(|seen| seen.op == Op::Read), "{:?}", rig.seen());
    assert!(rig.shared.has_failed());
}

#[test]
fn a_flush_beside_which_a_loss_was_told_to_somebody_else_fails() {
    let mut rig = Rig::new(limits());
    rig.hold();
    rig.batch([Bio::flush()]);
    rig.shared.fail();
    let held = rig.next_held();
    rig.complete(held, Ok(()));
    assert_eq!(rig.results(), [(0, Err(Errno::EIO))]);
}

#[test]
fn without_fua_a_fua_write_completes_only_after_a_flush() {
    let mut none = limits();
    none.fua = Fua::Flush;
    let mut rig = Rig::new(none);
    rig.hold();
    let mut fua = rig.write(16, 8, 1);
    fua.flags = Flags::FUA;
    rig.batch([fua]);
    let held = rig.next_held();
    assert_eq!(held.op, Op::Write);
    rig.complete(held, Ok(()));
    assert!(rig.results().is_empty());
    let held = rig.next_held();
    assert_eq!(held.op, Op::Flush);
    rig.complete(held, Ok(()));
    rig.all_succeeded(1);
}

#[test]
fn fua_writes_are_tried_both_ways_and_each_is_durable_when_it_completes() {
    let mut auto = limits();
    auto.fua = Fua::Auto;
    let mut rig = Rig::new(auto);
    let (mut dsync, mut flushed) = (0, 0);
    for i in 0..64 {
        rig.hold();
        let mut write = rig.write(i * 8, 8, 1);
        write.flags = Flags::FUA;
        rig.batch([write]);
        let held = rig.next_held();
        let asked = rig.seen().last().unwrap().flags.has(Flags::FUA);
        rig.complete(held, Ok(()));
        if asked {
            dsync += 1;
        } else {
            assert!(rig.results().is_empty(), "write {i} is not durable yet");
            let held = rig.next_held();
            assert_eq!(held.op, Op::Flush);
            rig.complete(held, Ok(()));
            flushed += 1;
        }
        assert_eq!(rig.results(), [(0, Ok(()))], "write {i}");
        rig.client.borrow_mut().done.clear();
    }
    assert!(dsync >= 8 && flushed >= 8, "{dsync} and {flushed}");
    let told = rig.stats.choices();
    assert_eq!((told.len(), told[0].requests), (1, [dsync, flushed]));
    assert_eq!(
        (told[0].subject.to_string().as_str(), told[0].subject.setting()),
        ("FUA writes of 4 KiB", "fua")
    );
}

#[test]
fn a_fua_write_that_fails_either_way_is_watched_no_longer() {
    let mut auto = limits();
    auto.fua = Fua::Auto;
    let mut rig = Rig::new(auto);
    rig.device.lock().unwrap().bad = vec![80];
    for i in 0..200 {
        let mut write = rig.write(if i % 3 == 0 { 80 } else { i * 16 }, 8, 1);
        write.flags = Flags::FUA;
        rig.batch([write]);
        let done = rig.client.borrow_mut().done.pop().unwrap();
        assert_eq!(done.result.is_err(), i % 3 == 0 || i == 5, "write {i}");
    }
    // Both ways went on being tried: neither waits for what failed.
    let [dsync, flushed] = rig.stats.choices()[0].requests;
    assert!(dsync > 20 && flushed > 20, "{dsync} and {flushed}");
}

#[test]
fn a_fua_discard_is_made_durable_by_a_flush() {
    let mut rig = Rig::new(limits());
    rig.batch([Bio::without_data(Op::Discard, Flags::FUA, Sector(64), Sectors(640))]);
    let ops: Vec<_> = rig.seen().iter().map(|seen| seen.op).collect();
    assert_eq!(ops, [Op::Discard, Op::Flush]);
    rig.all_succeeded(1);
}

#[test]
fn without_a_volatile_cache_a_flush_costs_nothing() {
    let mut through = limits();
    through.write_cache = false;
    let mut rig = Rig::new(through);
    rig.batch([Bio::flush()]);
    rig.all_succeeded(1);
    assert!(rig.seen().is_empty());
}

#[test]
fn a_disk_that_is_read_only_refuses_writes_and_has_nothing_to_flush() {
    let mut read_only = limits();
    read_only.read_only = true;
    let mut rig = Rig::new(read_only);
    let bios = [rig.write(0, 8, 1), rig.read(0, 8), Bio::flush()];
    rig.batch(bios);
    let mut results = rig.results();
    results.sort_by_key(|(cookie, _)| *cookie);
    assert_eq!(results, [(0, Err(Errno::EROFS)), (1, Ok(())), (2, Ok(()))]);
    assert!(rig.seen().iter().all(|seen| seen.op == Op::Read), "{:?}", rig.seen());
}

#[test]
fn without_write_zeroes_zeros_are_written_and_fast_only_is_refused() {
    let mut none = limits();
    none.max_write_zeroes = Sectors::ZERO;
    let mut rig = Rig::new(none);
    rig.device.lock().unwrap().bytes.fill(1);
    rig.batch([Bio::without_data(Op::WriteZeroes, Flags::NONE, Sector(8), Sectors(1024))]);
    rig.all_succeeded(1);
    assert!(rig.seen().iter().all(|seen| seen.op == Op::Write && seen.nr <= 512));
    assert!(rig.bytes(8, 1024).iter().all(|byte| *byte == 0));
    assert_eq!(rig.bytes(7, 1), vec![1; 512]);
    rig.client.borrow_mut().done.clear();
    rig.batch([Bio::without_data(Op::WriteZeroes, Flags::FAST_ONLY, Sector(8), Sectors(8))]);
    assert_eq!(rig.results(), [(0, Err(Errno::EOPNOTSUPP))]);
}

#[test]
fn a_device_that_turns_out_not_to_have_write_zeroes_gets_zeros() {
    let mut rig = Rig::new(limits());
    rig.hold();
    rig.device.lock().unwrap().bytes.fill(1);
    rig.batch([Bio::without_data(Op::WriteZeroes, Flags::NONE, Sector(8), Sectors(1024))]);
    let held = rig.next_held();
    rig.complete(held, Err(Errno::EOPNOTSUPP));
    rig.complete_all();
    rig.all_succeeded(1);
    let ops: Vec<_> = rig.seen().iter().map(|seen| (seen.op, seen.nr)).collect();
    assert_eq!(ops, [(Op::WriteZeroes, 1024), (Op::Write, 512), (Op::Write, 512)]);
}

#[test]
fn a_device_that_has_only_one_kind_of_write_zeroes_goes_on_with_that() {
    for lacking in [Flags::NO_UNMAP, Flags::NONE] {
        let has = if lacking == Flags::NONE { Flags::NO_UNMAP } else { Flags::NONE };
        let mut rig = Rig::new(limits());
        rig.hold();
        let zeroes = |flags| Bio::without_data(Op::WriteZeroes, flags, Sector(8), Sectors(64));
        rig.batch([zeroes(lacking)]);
        let held = rig.next_held();
        rig.complete(held, Err(Errno::EOPNOTSUPP));
        rig.complete_all();
        rig.clear_seen();
        rig.batch([zeroes(has)]);
        rig.batch([zeroes(lacking)]);
        rig.complete_all();
        let ops: Vec<_> = rig.seen().iter().map(|seen| seen.op).collect();
        assert_eq!(ops, [Op::WriteZeroes, Op::Write], "without {lacking:?}");
        rig.all_succeeded(3);
    }
}

#[test]
fn a_discard_keeps_to_the_granularity_and_needs_no_more_requests_than_its_limit_says() {
    let mut coarse = limits();
    (coarse.discard_granularity, coarse.max_discard) = (4096, Sectors(1000));
    let mut rig = Rig::new(coarse);
    rig.batch([Bio::without_data(Op::Discard, Flags::NONE, Sector(3), Sectors(4000))]);
    let seen: Vec<_> = rig.seen().iter().map(|seen| (seen.sector, seen.nr)).collect();
    assert_eq!(seen, [(8, 1000), (1008, 1000), (2008, 1000), (3008, 992)]);
    rig.clear_seen();
    rig.batch([Bio::without_data(Op::Discard, Flags::NONE, Sector(3), Sectors(6))]);
    assert!(rig.seen().is_empty(), "less than one granule: nothing to do");
    rig.all_succeeded(2);
}

#[test]
fn a_discard_under_a_tiny_limit_never_holds_more_requests_than_can_soon_be_in_flight() {
    let mut tiny = limits();
    tiny.set("discard_max_bytes", "4096").unwrap();
    tiny.set("nr_requests", "4").unwrap();
    let mut rig = Rig::new(tiny);
    rig.hold();
    rig.batch([Bio::without_data(Op::Discard, Flags::NONE, Sector(0), Sectors(rig::SECTORS))]);
    rig.batch([Bio::flush()]);
    assert!(rig.device.lock().unwrap().held.len() <= 5);
    rig.complete_all();
    assert_eq!(rig.seen().iter().filter(|seen| seen.op == Op::Discard).count() as u64, rig::SECTORS / 8);
    rig.all_succeeded(2);
}

#[test]
fn memory_that_the_device_cannot_take_goes_through_a_buffer() {
    let mut strict = limits();
    strict.dma_alignment = 512;
    let mut rig = Rig::new(strict);
    let whole = rig.memory(17, 0);
    let crooked: Segments = Segments::from_iter([whole[0].slice(100, 16 * 512)]);
    crooked[0].fill(3);
    rig.batch([Bio::with_data(Op::Write, Flags::NONE, Sector(40), crooked.clone())]);
    assert_eq!(rig.bytes(40, 16), vec![3; 16 * 512]);
    crooked[0].fill(0);
    rig.batch([Bio::with_data(Op::Read, Flags::NONE, Sector(40), crooked)]);
    assert_eq!(rig.client.borrow().done[1].result, Ok(()));
    let mut back = vec![0; 16 * 512];
    rig.client.borrow().done[1].data[0].read_at(0, &mut back);
    assert_eq!(back, vec![3; 16 * 512]);
    assert_eq!(rig.count(Counter::Bounced), 2);
}

#[test]
fn where_everything_is_to_be_durable_writes_get_fua_and_discards_a_flush() {
    for (fua, flushes) in [("dsync", 2), ("flush", 3)] {
        let mut limits = Limits { sync: true, ..limits() };
        limits.set("fua", fua).unwrap();
        let mut rig = Rig::new(limits);
        let write = rig.write(40, 8, 1);
        rig.batch([write]);
        rig.batch([Bio::without_data(Op::Discard, Flags::NONE, Sector(80), Sectors(8))]);
        rig.batch([Bio::without_data(Op::WriteZeroes, Flags::NONE, Sector(160), Sectors(8))]);
        rig.all_succeeded(3);
        let seen = rig.seen();
        let count = |op| seen.iter().filter(|seen| seen.op == op).count();
        assert_eq!((count(Op::Write), count(Op::Discard), count(Op::WriteZeroes)), (1, 1, 1));
        assert_eq!(count(Op::Flush), flushes, "fua={fua}: {seen:?}");
        assert_eq!(seen[0].flags.has(Flags::FUA), fua == "dsync", "{seen:?}");
    }
}

/// Memory in `n` pieces of one sector that do not adjoin.
fn in_pieces(rig: &Rig, n: u64, fill: u8) -> Segments {
    (0..n).map(|_| rig.memory(8, fill)[0].slice(1024, 512)).collect()
}

#[test]
fn elements_are_one_for_the_device_where_that_is_asked_for() {
    for (setting, segments, copied) in [("on", 1, 2), ("off", 8, 0)] {
        let mut limits = limits();
        limits.set("linearize", setting).unwrap();
        let mut rig = Rig::new(limits);
        let data = in_pieces(&rig, 8, 0);
        data.iter().zip(1..).for_each(|(segment, fill)| segment.fill(fill));
        rig.batch([Bio::with_data(Op::Write, Flags::NONE, Sector(40), data)]);
        let data = in_pieces(&rig, 8, 0xee);
        rig.batch([Bio::with_data(Op::Read, Flags::NONE, Sector(40), data)]);
        rig.all_succeeded(2);
        assert!(rig.seen().iter().all(|seen| seen.segments == segments), "{setting}: {:?}", rig.seen());
        let mut sector = [0; 512];
        for (i, fill) in (0..8).zip(1..) {
            rig.client.borrow().done[1].data[i].read_at(0, &mut sector);
            assert_eq!(sector, [fill; 512], "{setting}: sector {i}");
        }
        assert_eq!((rig.count(Counter::Linearized), rig.count(Counter::Bounced)), (copied, 0));
    }
}

#[test]
fn both_ways_are_tried_and_what_came_of_it_is_told() {
    let mut limits = limits();
    limits.set("linearize", "auto").unwrap();
    let mut rig = Rig::new(limits);
    for i in 0..64 {
        let data = in_pieces(&rig, 4, i);
        rig.batch([Bio::with_data(Op::Write, Flags::NONE, Sector(u64::from(i) * 16), data)]);
        assert_eq!(rig.bytes(u64::from(i) * 16, 4), vec![i; 2048]);
    }
    rig.all_succeeded(64);
    let linear = rig.seen().iter().filter(|seen| seen.segments == 1).count();
    assert!((8..56).contains(&linear), "{linear}");
    let told = rig.stats.choices();
    assert_eq!((told.len(), told[0].requests), (1, [64 - linear as u64, linear as u64]));
    assert_eq!(told[0].subject.to_string(), "writes of 2 KiB in 512 B off pages");
}

/// Keeps all that a worker tells.
struct Kept(Arc<Mutex<Vec<Event>>>);

impl EventSink for Kept {
    fn take(&mut self, _: u16, events: &mut Vec<Event>) {
        self.0.lock().unwrap().append(events);
    }
}

#[test]
fn a_trial_says_so_in_the_trace_whichever_way_it_goes() {
    // Microseconds as they are, and as a copy: what is decided, and the letter of a trial of the other way.
    for (vectored, linear, settled, letter) in
        [(300, 100, [0, 0, 1], Action::Issue), (100, 300, [0, 1, 0], Action::Bounce)]
    {
        let mut limits = limits();
        limits.set("linearize", "auto").unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let tracer = Tracer::new(Arc::new(true.into()), Box::new(Kept(events.clone())));
        let mut rig = Rig::with(limits, |leaf| leaf, false, |config| WorkerConfig { tracer, ..config });
        rig.hold();
        let (mut requests, mut trials, mut told) = (0, 0, 0);
        // Trials of what was decided against are rare: of the first of them there is to be heard.
        while trials < 64 {
            let data = in_pieces(&rig, 4, 1);
            rig.batch([Bio::with_data(Op::Write, Flags::NONE, Sector(requests % 64 * 16), data)]);
            let is_linear = rig.device.lock().unwrap().seen.pop().unwrap().segments == 1;
            let takes = if is_linear { linear } else { vectored };
            rig.worker.env.now = rig.worker.env.now + Nanos::micros(takes);
            let is_settled = rig.stats.choices().first().is_some_and(|class| class.workers == settled);
            rig.complete_all();
            rig.client.borrow_mut().done.clear();
            let events = std::mem::take(&mut *events.lock().unwrap());
            if is_settled && is_linear == (letter == Action::Bounce) {
                let is_told =
                    |event: &Event| event.action == letter && event.reason == Reason::LinearizeTrial;
                (trials, told) = (trials + 1, told + events.iter().filter(|event| is_told(event)).count());
            }
            requests += 1;
            assert!(requests < 2_000_000, "{trials} trials of what was decided against");
        }
        assert_eq!(told, trials, "{letter:?}");
    }
}

#[test]
fn a_sequential_reader_at_depth_1_is_served_from_large_reads() {
    let mut ahead = limits();
    ahead.read_ahead = Sectors(512);
    let mut rig = Rig::new(ahead);
    let content: Vec<u8> = (0..rig::SECTORS * 512).map(|i| (i / 512 % 251) as u8).collect();
    rig.device.lock().unwrap().bytes.copy_from_slice(&content);
    for i in 0..rig::SECTORS / 8 {
        let bio = rig.read(i * 8, 8);
        rig.batch([bio]);
        let done = rig.client.borrow_mut().done.pop().unwrap();
        let mut bytes = vec![0; 4096];
        done.data[0].read_at(0, &mut bytes);
        assert_eq!(bytes, content[(i * 4096) as usize..][..4096], "read {i}");
    }
    let reads = rig.seen().len() as u64;
    assert!(reads <= rig::SECTORS / 512 + 4, "{reads} device reads");
}

#[test]
fn a_reader_that_leaves_out_every_other_piece_is_served_from_large_reads_and_one_that_leaves_out_more_is_not()
{
    for (stride, most) in [(16, rig::SECTORS / 512 + 4), (24, rig::SECTORS / 24 + 1)] {
        let mut ahead = limits();
        ahead.read_ahead = Sectors(512);
        let mut rig = Rig::new(ahead);
        let reads = rig::SECTORS / stride;
        for i in 0..reads {
            let bio = rig.read(i * stride, 8);
            rig.batch([bio]);
        }
        rig.all_succeeded(reads as usize);
        let seen = rig.seen();
        assert!(seen.len() as u64 <= most, "{} device reads for {reads}", seen.len());
        let is_ahead = rig.count(Counter::ReadAheadHit) > 0;
        assert_eq!(is_ahead, stride == 16, "every {stride} sectors");
    }
}

#[test]
fn nothing_is_read_ahead_for_who_asks_for_that() {
    let mut ahead = limits();
    ahead.read_ahead = Sectors(512);
    let mut rig = Rig::new(ahead);
    for i in 0..16 {
        let data = rig.memory(8, 0);
        rig.batch([Bio::with_data(Op::Read, Flags::NO_READ_AHEAD, Sector(i * 8), data)]);
    }
    rig.all_succeeded(16);
    assert_eq!(rig.seen().len(), 16);
}

#[test]
fn what_was_read_ahead_is_forgotten_when_the_leaf_is_written_to() {
    let mut ahead = limits();
    ahead.read_ahead = Sectors(512);
    let mut rig = Rig::new(ahead);
    for i in 0..8 {
        let bio = rig.read(i * 8, 8);
        rig.batch([bio]);
    }
    assert!(rig.count(Counter::ReadAheadHit) > 0);
    let bio = rig.write(64, 8, 5);
    rig.batch([bio]);
    rig.client.borrow_mut().done.clear();
    let bio = rig.read(64, 8);
    rig.batch([bio]);
    assert_eq!(rig.data_of(0), vec![5; 4096]);
    // The same if another worker wrote: all that its queue says is that something changed.
    rig.device.lock().unwrap().bytes[72 * 512..80 * 512].fill(6);
    rig.shared.change();
    rig.client.borrow_mut().done.clear();
    let bio = rig.read(72, 8);
    rig.batch([bio]);
    assert_eq!(rig.data_of(0), vec![6; 4096]);
}

#[test]
fn a_failed_read_ahead_fails_only_those_whose_own_sectors_are_bad() {
    let mut ahead = limits();
    ahead.read_ahead = Sectors(512);
    let mut rig = Rig::new(ahead);
    rig.device.lock().unwrap().bad = vec![100];
    for i in 0..32 {
        let bio = rig.read(i * 8, 8);
        rig.batch([bio]);
        let done = rig.client.borrow_mut().done.pop().unwrap();
        assert_eq!(done.result.is_err(), i == 12, "read {i}");
    }
}

#[test]
fn bytes_that_are_not_whole_blocks_are_patched_into_them() {
    let mut coarse = limits();
    coarse.logical_block_size = 4096;
    let mut rig = Rig::new(coarse);
    rig.device.lock().unwrap().bytes.fill(1);
    let data = |rig: &Rig, len: usize, fill| {
        let segment = rig.memory(64, fill)[0].slice(0, len);
        Segments::from_iter([segment])
    };
    let ops = [
        (0, Op::Write, Flags::FUA, 5000, 300, data(&rig, 300, 2)),
        (1, Op::Write, Flags::NONE, 8000, 9000, data(&rig, 9000, 3)),
        (2, Op::WriteZeroes, Flags::NONE, 20000, 20001, Segments::new()),
        (3, Op::Discard, Flags::NONE, 50000, 100, Segments::new()),
    ];
    let mut expected = vec![1; 65536];
    expected[5000..5300].fill(2);
    expected[8000..17000].fill(3);
    expected[20000..40001].fill(0);
    rig.client.borrow_mut().bytes_to_submit.extend(ops);
    rig.turn_with_event();
    while !rig.worker.is_idle() {
        rig.worker.turn(Wait::Poll);
    }
    rig.all_succeeded(4);
    assert_eq!(rig.bytes(0, 128), expected);
    assert!(rig.seen().iter().all(|seen| seen.sector % 8 == 0 && seen.nr % 8 == 0));
    let read = (9, Op::Read, Flags::NONE, 4999, 12345, data(&rig, 12345, 0xee));
    rig.client.borrow_mut().bytes_to_submit.push(read);
    rig.turn_with_event();
    assert_eq!(rig.data_of(9), expected[4999..4999 + 12345]);
}

#[test]
fn ranges_outside_the_volume_are_refused() {
    let mut rig = Rig::new(limits());
    let end = rig::SECTORS;
    let bios = [rig.read(end - 4, 8), rig.write(end, 8, 0), rig.read(u64::MAX - 2, 8)];
    rig.batch(bios);
    let results: Vec<_> = rig.results().into_iter().map(|(_, result)| result.unwrap_err()).collect();
    assert_eq!(results, [Errno::EINVAL, Errno::ENOSPC, Errno::EINVAL]);
    assert!(rig.seen().is_empty());
}

#[test]
fn a_worker_that_is_stopped_flushes_what_was_written() {
    let mut rig = Rig::new(limits());
    let bio = rig.write(0, 8, 1);
    rig.batch([bio]);
    rig.worker.handle().stop();
    assert_eq!(rig.worker.run(), Ok(()));
    assert_eq!(rig.seen().last().unwrap().op, Op::Flush);
}

#[test]
fn the_last_flush_of_a_stopped_worker_reports_its_failure() {
    let mut rig = Rig::new(limits());
    let bio = rig.write(0, 8, 1);
    rig.batch([bio]);
    rig.device.lock().unwrap().fail_flush = true;
    rig.worker.handle().stop();
    assert_eq!(rig.worker.run(), Err(Errno::EIO));
}

proptest! {
    /// Against something stupid: a byte array. Any batches under any limits leave the same bytes, every bio completes
    /// once, and no request breaks a limit.
    #[test]
    fn any_batch_under_any_limits_does_what_its_bios_say(
        max_sectors in 8u64..300,
        max_segments in 1u32..6,
        chunk in prop_oneof![Just(0u64), 8u64..100],
        max_discard in 8u64..500,
        granularity in prop_oneof![Just(512u32), Just(4096)],
        write_zeroes in prop_oneof![Just(0u64), 1u64..700],
        nr_requests in 1u32..9,
        nomerges in 0u8..3,
        read_ahead in prop_oneof![Just(0u64), Just(64u64), Just(1024)],
        hold in any::<bool>(),
        batches in prop::collection::vec(prop::collection::vec((0u8..6, 0u64..64, 1u64..40), 1..40), 1..6),
    ) {
        let mut any = limits();
        any.max_sectors = Sectors(max_sectors);
        any.max_segments = max_segments;
        any.chunk_sectors = Sectors(chunk);
        any.discard_granularity = granularity;
        any.max_discard = Sectors(max_discard / 8 * 8);
        any.max_write_zeroes = Sectors(write_zeroes);
        any.read_ahead = Sectors(read_ahead);
        any.set("nr_requests", &nr_requests.to_string()).unwrap();
        any.set("nomerges", &nomerges.to_string()).unwrap();
        let mut rig = Rig::new(any);
        if hold {
            rig.hold();
        }
        let mut model = vec![0u8; (rig::SECTORS * 512) as usize];
        let mut fill = 0u8;
        for batch in batches {
            let mut bios = Vec::new();
            let mut reads = Vec::new();
            let mut next = 0;
            let mut undefined = Vec::new();
            // Ranges of one batch follow each other without overlap, most of them adjoining.
            for (kind, gap, nr) in batch {
                let sector = next + if gap < 40 { 0 } else { gap };
                next = sector + nr;
                let range = (sector * 512) as usize..((sector + nr) * 512) as usize;
                fill = fill.wrapping_add(1).max(1);
                match kind {
                    0 | 1 => {
                        bios.push(rig.write(sector, nr, fill));
                        model[range].fill(fill);
                    }
                    2 | 3 => {
                        reads.push((bios.len() as u64, range));
                        bios.push(rig.read(sector, nr));
                    }
                    4 => {
                        bios.push(Bio::without_data(Op::WriteZeroes, Flags::NONE, Sector(sector), Sectors(nr)));
                        model[range].fill(0);
                    }
                    _ => {
                        bios.push(Bio::without_data(Op::Discard, Flags::NONE, Sector(sector), Sectors(nr)));
                        undefined.push(range);
                    }
                }
            }
            let count = bios.len();
            rig.client.borrow_mut().done.clear();
            rig.batch(bios);
            rig.complete_all();
            rig.all_succeeded(count);
            for range in undefined {
                // What a discard leaves is the device's business; this one writes zeros, to whole granules.
                let device = rig.device.lock().unwrap();
                model[range.clone()].copy_from_slice(&device.bytes[range]);
            }
            for (cookie, range) in reads {
                prop_assert_eq!(&rig.data_of(cookie)[..], &model[range]);
            }
        }
        prop_assert!(rig.device.lock().unwrap().bytes == model);
        prop_assert!(rig.worker.is_idle());
        for seen in rig.seen() {
            match seen.op {
                Op::Read | Op::Write => {
                    prop_assert!(seen.nr <= max_sectors, "{:?}", seen);
                    prop_assert!(seen.segments <= max_segments as usize, "{:?}", seen);
                    prop_assert!(chunk == 0 || seen.sector / chunk == (seen.sector + seen.nr - 1) / chunk, "{:?}", seen);
                }
                Op::Discard => prop_assert!(seen.nr <= max_discard, "{:?}", seen),
                Op::WriteZeroes => prop_assert!(seen.nr <= write_zeroes, "{:?}", seen),
                Op::Flush => {}
            }
        }
    }
}
