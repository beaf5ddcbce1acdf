//! The crash lab for RAID volumes of LVM: RAID1, 10, 4, 5 and 6 over simulated devices, assembled for each life by the code that serves them, with
//! legs that come and go between lives, devices that fail, and power cuts at any instant. What must hold is listed in `lvm_raid_lab/judge.rs`;
//! besides, the clients' oracle judges every answer.
//!
//! A violation prints one line that replays it, as in `crash.rs`. `SEEDS=n` runs more of them, `FROM=m` begins elsewhere.
//!
//! It found, by its first runs: a RAID6 that was served without a leg, and its parities taken as they are after a power cut, whose second parities did
//! not fit for good when the leg was filled; a volume with a parity that must not be written, as a leg that was being filled was the first to say that
//! writes may be under way; and legs that were left out for good, as if they had been used without the others.

mod arrays;
mod lvm_raid_lab;
mod running;

use blockwork_engine::FileId;
use blockwork_sim::Lies;

use arrays::troubles::FAULTS;
use lvm_raid_lab::{APART, Plan};
use running::plans::{
    self, are_found, expect_one_history, run_plans, survive_each_cut, survive_each_fault, survives,
};
use running::seeds;

#[test]
fn replay() {
    plans::replay(Plan::of);
}

#[test]
fn legs_that_come_and_go_are_filled_before_they_are_read_and_nothing_durable_is_lost() {
    let (all, seeds) = seeds(300);
    let sums = run_plans(all.map(Plan::draw));
    // A lab in which nothing happens would find nothing.
    assert!(sums.answered > 40 * seeds && sums.durable > seeds && sums.faults > seeds);
    assert!(
        sums.settled + sums.halves == seeds && sums.sets == 7 * sums.settled && sums.halves <= seeds / 50
    );
    assert!(sums.without > seeds && sums.lost > seeds && sums.filled > seeds && sums.holes > seeds / 8);
    assert!(sums.differed > seeds / 2 && sums.rests > seeds && sums.resumed > seeds / 100);
}

#[test]
fn legs_that_were_used_apart_are_never_read_together_and_neither_side_is_lost() {
    let (all, seeds) = seeds(200);
    let sums = run_plans(all.map(|seed| Plan::of(APART + seed)));
    assert!(sums.apart > seeds / 2, "legs came together in {} runs only", sums.apart);
}

#[test]
fn every_cut_is_survived_while_a_leg_comes_back() {
    let plans = (1_000_000..1_000_003).map(|seed| Plan::draw(seed).shortened());
    survive_each_cut(plans, 1, 1..=200, 300);
}

#[test]
fn each_request_of_a_leg_in_turn_may_fail_in_each_way() {
    let plan = |seed, fault| (Plan::draw(seed).with_nothing_amiss_but(fault), fault);
    let plans = (2_000_000..2_000_004).flat_map(|seed| FAULTS.map(|fault| plan(seed, fault)));
    survive_each_fault(plans, FileId(0), 500);
}

#[test]
fn one_seed_is_one_history() {
    expect_one_history((0..20).map(Plan::draw));
}

#[test]
fn legs_that_acknowledge_flushes_without_doing_them_are_found_out() {
    assert!(are_found(Lies { flush: true, ..Lies::default() }, (0..100).map(Plan::draw)));
}

#[test]
fn legs_that_ignore_fua_are_found_out() {
    assert!(are_found(Lies { fua: true, ..Lies::default() }, (0..100).map(Plan::draw)));
}

/// Found by the first runs: a leg that was filled said that it was whole, and the power went before the one that it was filled from took back that it
/// had failed. That was away next; when it was back, it seemed to have been used without the others, and was left out for good.
#[test]
fn a_leg_that_is_filled_is_called_failed_by_nobody_when_it_calls_itself_whole() {
    survives(&Plan::of(10_076));
}
