//! The crash lab for snapshots: an origin and up to three snapshots with chunks of several sizes, written at once by clients on
//! one or more workers, with power cuts at any instant, stores that are full and disks that fail. What must hold is listed in
//! `snapshot_lab/mod.rs`.
//!
//! A violation prints one line that replays it, as in `crash.rs`.

mod running;
mod snapshot_lab;

use blockwork_engine::{Errno, FileId};
use blockwork_sim::{Fault, Faults, Lies};

use running::plans::{self, are_found, expect_one_history, run_plans, survive_each_cut, survive_each_fault};
use running::{from_environment, seeds};
use snapshot_lab::Plan;

#[test]
fn replay() {
    plans::replay(|seed| {
        match (from_environment("MERGE").is_some(), from_environment("TROUBLE").is_some()) {
            (false, false) => Plan::draw(seed),
            (false, true) => Plan::draw_trouble(seed),
            (true, false) => Plan::draw_merge(seed),
            (true, true) => Plan::draw_merge_trouble(seed),
        }
    });
}

#[test]
fn an_origin_and_its_snapshots_keep_what_was_flushed_and_snapshots_stay_as_the_origin_was() {
    let (all, seeds) = seeds(600);
    let sums = run_plans(all.map(Plan::draw));
    // A lab in which nothing happens would find nothing.
    assert!(sums.answered > 40 * seeds && sums.durable > seeds && sums.batches > 3 * seeds);
}

#[test]
fn stores_that_are_full_or_fail_cost_the_snapshot_and_never_the_origin() {
    let (all, seeds) = seeds(400);
    let sums = run_plans(all.map(Plan::draw_trouble));
    assert!(sums.lost > seeds / 4 && sums.overflowed > 0 && sums.faults > seeds / 10);
    assert!(sums.unrecorded < sums.lost / 4);
}

#[test]
fn every_cut_of_a_short_run_is_survived() {
    let plans = (1_000_000..1_000_006).map(|seed| {
        let mut plan = Plan::draw(seed);
        (plan.bios, plan.cuts) = (14, vec![0]);
        plan
    });
    survive_each_cut(plans, 0, 1..=150, 200);
}

/// Origin and snapshot write the same two chunks at once, which are copied out at most once in a run: so there are many short ones.
#[test]
fn what_a_snapshot_writes_to_a_chunk_that_is_being_copied_out_is_not_lost() {
    let plans = (4_000_000..4_000_150).map(|seed| {
        let mut plan = Plan::draw(seed);
        plan.narrow();
        plan
    });
    survive_each_cut(plans, 0, 4..=40, 3_000);
}

#[test]
fn a_snapshot_is_merged_under_its_clients_and_through_power_cuts() {
    let (all, seeds) = seeds(600);
    let sums = run_plans(all.map(Plan::draw_merge));
    assert!(sums.merged == seeds && sums.merge_failed == 0);
}

#[test]
fn a_merge_that_fails_is_taken_up_later_and_nothing_is_lost() {
    let (all, seeds) = seeds(400);
    let sums = run_plans(all.map(Plan::draw_merge_trouble));
    assert!(sums.merged > seeds / 4 && sums.merge_failed > seeds / 40);
}

#[test]
fn every_cut_of_a_merge_is_survived() {
    let plans = (3_000_000..3_000_006).map(|seed| {
        let mut plan = Plan::draw_merge(seed);
        (plan.bios, plan.cuts, plan.merge) = (20, vec![0, 0], Some((1, 0)));
        plan
    });
    survive_each_cut(plans, 1, 1..=200, 200);
}

#[test]
fn each_request_of_a_store_in_turn_may_fail_in_each_way() {
    let faults =
        [Fault::Error(Errno::EIO), Fault::Error(Errno::ENOSPC), Fault::Latent, Fault::ForEver, Fault::Short];
    let plans = (2_000_000..2_000_004).flat_map(|seed| {
        let mut plan = Plan::draw_trouble(seed);
        (plan.faults, plan.bios, plan.cuts) = (Faults::default(), 24, vec![0]);
        faults.map(|fault| (plan.clone(), fault))
    });
    survive_each_fault(plans, FileId(1), 100);
}

#[test]
fn one_seed_is_one_history() {
    expect_one_history((0..20).map(Plan::draw));
}

#[test]
fn devices_that_acknowledge_flushes_without_doing_them_are_found_out() {
    assert!(are_found(Lies { flush: true, ..Lies::default() }, (0..200).map(Plan::draw)));
}

#[test]
fn devices_that_ignore_fua_are_found_out() {
    assert!(are_found(Lies { fua: true, ..Lies::default() }, (0..200).map(Plan::draw)));
}
