//! Rates lie where the ring's size and the way put them; what is merged is exact.

use std::time::Duration;

use super::*;
use crate::trace::{Received, TraceHub};

fn rate(access: Access, way: Way, in_flight: u32, ring_pages: u32, merges: Merges) -> RingRate {
    let plan = RingPlan { reads: 10_000, ..RingPlan::default() };
    let run = Run { access, way, in_flight, ring_pages, merges };
    let outcome = run.outcome(&plan, Tracer::default(), Box::new(|_| ())).unwrap();
    run.rate(&plan, &outcome)
}

fn random(in_flight: u32, ring_pages: u32) -> RingRate {
    rate(Access::Random, Way::Free, in_flight, ring_pages, Merges::None)
}

fn sequential(in_flight: u32, ring_pages: u32, merges: Merges) -> RingRate {
    rate(Access::Sequential, Way::OneAtATime, in_flight, ring_pages, merges)
}

#[test]
fn the_first_row_is_the_calibration_and_the_next_two_are_near_the_report() {
    for pages in PAGES {
        let [first, second, third] = [4, 16, 32].map(|in_flight| random(in_flight, pages));
        assert!((first.iops / 19_000.0 - 1.0).abs() < 0.03, "{first:?}");
        assert!((second.iops / 89_000.0 - 1.0).abs() < 0.2, "{second:?}");
        assert!((third.iops / 149_000.0 - 1.0).abs() < 0.05, "{third:?}");
    }
}

#[test]
fn eight_pages_beat_one_by_more_than_in_the_report() {
    let (one, eight) = (random(256, 1), random(256, 8));
    assert!(eight.iops / one.iops >= 209.0 / 132.0, "{one:?} {eight:?}");
    assert_eq!((one.ring_high_water, eight.ring_high_water), (32, 256));
    assert!(one.ring_full > 0.9, "{one:?}");
}

#[test]
fn more_in_flight_is_never_slower() {
    for pages in PAGES {
        let rates = IN_FLIGHT.map(|in_flight| random(in_flight, pages).iops);
        assert!(rates.windows(2).all(|pair| pair[1] > pair[0] * 0.99), "{pages} pages: {rates:?}");
    }
}

#[test]
fn a_ring_that_never_fills_is_never_full() {
    let roomy = random(128, 8);
    assert_eq!((roomy.ring_high_water, roomy.ring_full), (128, 0.0));
}

#[test]
fn one_at_a_time_is_near_the_report_with_eight_pages() {
    for (in_flight, report) in IN_FLIGHT.iter().zip(REPORT[1]) {
        let here = rate(Access::Random, Way::OneAtATime, *in_flight, 8, Merges::None).iops;
        assert!((here / (report * 1000.0) - 1.0).abs() < 0.2, "{in_flight}: {here}, {report}");
    }
}

#[test]
fn sequential_reads_are_merged_where_they_wait() {
    let (one, eight) = (sequential(128, 1, Merges::None), sequential(128, 8, Merges::None));
    assert!(one.reads_per_request > 3.5, "{one:?}");
    assert_eq!(eight.reads_per_request, 1.0, "{eight:?}");
    assert_eq!(eight.device.reads, 10_000);
    assert!(one.iops > eight.iops * 2.0, "the smaller ring is the faster one: {one:?} {eight:?}");
    let below = sequential(32, 1, Merges::None);
    assert_eq!(below.reads_per_request, 1.0, "nothing waits for room: {below:?}");
}

#[test]
fn a_host_that_merges_needs_no_small_ring() {
    let (alone, merged) = (sequential(256, 8, Merges::None), sequential(256, 8, Merges::All));
    let one = sequential(256, 1, Merges::None);
    assert!(merged.iops > alone.iops * 2.0 && merged.iops > one.iops * 0.95, "{one:?} {alone:?} {merged:?}");
}

#[test]
fn a_seed_gives_the_same_figures_again() {
    assert_eq!(random(64, 1), random(64, 1));
}

#[test]
fn traces_show_what_was_merged() {
    let plan = RingPlan::default();
    let [one, eight] = PAGES.map(|pages| trace(&plan, pages).unwrap().lines);
    assert!(one.len() == SHOWN && one.iter().all(|line| line.contains(" + 32 ")), "{one:#?}");
    assert!(eight.len() == SHOWN && eight.iter().all(|line| line.contains(" + 8 ")), "{eight:#?}");
}

#[test]
fn a_trace_of_a_guest_says_when_its_ring_is_full() {
    let node = NodeInfo { name: "rssda".into(), kind: NodeKind::Leaf, device: (252, 0) };
    let hub = TraceHub::new(&[node]);
    let subscription = hub.subscribe(None);
    let plan = RingPlan { reads: 100, ..RingPlan::default() };
    let run =
        Run { access: Access::Random, way: Way::Free, in_flight: 64, ring_pages: 1, merges: Merges::None };
    run.outcome(&plan, hub.tracer(0), Box::new(|_| ())).unwrap();
    let mut said = Vec::new();
    while let Received::Batches(batches) = subscription.receive(Duration::ZERO) {
        said.extend(batches.into_iter().flat_map(|batch| batch.bytes));
    }
    let said = String::from_utf8_lossy(&said);
    let first = "blockwork: rssda: ring full: 32 requests in flight, size 32; full before for 0.000000 s";
    assert!(said.contains(first), "{said}");
}
