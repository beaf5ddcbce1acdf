//! The crash lab for md arrays with parity: RAID4, 5 and 6 over simulated devices, otherwise as that for mirrors (`md.rs`), whose apparatus it
//! shares. What must hold is listed in `md_lab/judge.rs`; besides, the clients' oracle judges every answer.
//!
//! A violation prints one line that replays it, as in `crash.rs`. `SEEDS=n` runs more of them, `FROM=m` begins elsewhere.
//!
//! Where members are missing after a cut, what they had in rows whose parities may not fit is not judged: nobody knows it. Nor is it judged what
//! a member has in its list of bad blocks there: no resync makes parities fit what is not there, so an array with such a one is never clean again
//! until that is written, and people have it take its parities as they are.

mod arrays;
mod md_lab;
mod running;

use blockwork_engine::FileId;
use blockwork_sim::Lies;

use arrays::troubles::FAULTS;
use md_lab::drawn::expect_all_verbs;
use md_lab::{PARITY, PARITY_DYING, PARITY_KEPT, PARITY_LISTING, PARITY_LOSING, Plan};
use running::plans::{
    self, are_found, expect_one_history, run_plans, survive_each_cut, survive_each_fault, survives,
};
use running::seeds;

#[test]
fn replay() {
    plans::replay(Plan::of);
}

#[test]
fn parities_fit_but_where_it_is_known_and_nothing_durable_is_lost_with_a_member() {
    let (all, seeds) = seeds(300);
    let sums = run_plans(all.map(|seed| Plan::of(PARITY + seed)));
    // A lab in which nothing happens would find nothing.
    assert!(sums.answered > 40 * seeds && sums.durable > seeds && sums.faults > seeds);
    assert!(sums.rests > seeds / 4 && sums.differed > seeds / 10);
    assert!(sums.given_up > seeds / 10 && sums.mended > seeds / 10 && sums.holes > seeds / 10);
}

#[test]
fn what_lives_and_is_looked_after_has_parities_that_fit_and_all_that_was_flushed() {
    let (all, seeds) = seeds(200);
    let sums = run_plans(all.map(|seed| Plan::of(PARITY_KEPT + seed)));
    // A lab in which nothing happens would find nothing.
    assert!(sums.answered > 40 * seeds && sums.durable > seeds && sums.faults > seeds);
    assert!(sums.settled >= seeds / 2 && sums.resumed > seeds / 20 && sums.differed > seeds / 10);
    expect_all_verbs(&sums, seeds);
}

#[test]
fn what_a_member_has_lost_goes_into_no_parity() {
    let (all, seeds) = seeds(100);
    let sums = run_plans(all.map(|seed| Plan::of(PARITY_LOSING + seed)));
    assert!(sums.rests > 4 * seeds && sums.given_up > 2 * seeds && sums.faults > 2 * seeds);
}

#[test]
fn what_a_member_cannot_write_the_others_have() {
    let (all, seeds) = seeds(100);
    let sums = run_plans(all.map(|seed| Plan::of(PARITY_LISTING + seed)));
    assert!(sums.listed > seeds / 8 && sums.faults > seeds && sums.answered > 40 * seeds);
}

#[test]
fn who_dies_beside_anothers_list_is_given_up_and_what_can_be_read_of_it_is_saved() {
    let (all, seeds) = seeds(100);
    let sums = run_plans(all.map(|seed| Plan::of(PARITY_DYING + seed)));
    assert!(sums.listed > seeds / 8 && sums.given_up > seeds / 2 && sums.answered > 40 * seeds);
    assert!(sums.forgotten <= seeds / 100, "in {} runs, what could be read was lost", sums.forgotten);
}

#[test]
fn every_cut_of_a_short_run_is_survived() {
    let plans = (1_000_000..1_000_008).map(|seed| Plan::of(PARITY + seed).shortened());
    survive_each_cut(plans, 0, 1..=200, 300);
}

#[test]
fn each_request_of_a_member_in_turn_may_fail_in_each_way() {
    let plan = |seed, fault| (Plan::of(PARITY + seed).with_nothing_amiss_but(fault), fault);
    let plans = (2_000_000..2_000_004).flat_map(|seed| FAULTS.map(|fault| plan(seed, fault)));
    survive_each_fault(plans, FileId(0), 500);
}

#[test]
fn one_seed_is_one_history() {
    expect_one_history((0..20).map(|seed| Plan::of(PARITY + seed)));
}

#[test]
fn members_that_acknowledge_flushes_without_doing_them_are_found_out() {
    let plans = (0..100).map(|seed| Plan::of(PARITY + seed));
    assert!(are_found(Lies { flush: true, ..Lies::default() }, plans));
}

#[test]
fn members_that_ignore_fua_are_found_out() {
    let plans = (0..100).map(|seed| Plan::of(PARITY + seed));
    assert!(are_found(Lies { fua: true, ..Lies::default() }, plans));
}

/// Found by the first runs: two members refused parts of a write. One was given up; the other had to stay then, and the write was answered
/// although that had not taken its part.
#[test]
fn a_write_that_a_member_refused_which_has_to_stay_fails() {
    survives(&Plan::of(PARITY + 22));
}

/// Found likewise: the power went while a replacement had not yet written what its member had. The parities fitted what the members had, so the resync
/// left it as it was, and it took the member's place.
#[test]
fn a_resync_writes_what_replacements_may_lack() {
    survives(&Plan::of(PARITY_KEPT + 186));
}

/// Found by more of them: two members had bad blocks in one piece of what was computed, at different places of it.
#[test]
fn what_is_computed_may_lack_one_member_here_and_another_there() {
    survives(&Plan::of(PARITY_LISTING + 909));
}

/// Found likewise: fast zeroes were on their way to rows when a device got a role there that cannot do them, and refused its part; what a missing
/// member had could be computed no more.
#[test]
fn fast_zeroes_that_a_new_device_cannot_do_are_refused_before_any_is_done() {
    survives(&Plan::of(PARITY_KEPT + 29_260));
}

/// Found likewise: of a write with FUA the flush had failed, which was known only when the write had been tried without; what was read of that member
/// meanwhile went into parities.
#[test]
fn what_is_read_while_a_flush_may_have_failed_goes_into_no_parity() {
    survives(&Plan::of(PARITY_LOSING + 970));
    survives(&Plan::of(PARITY_LOSING + 1842));
}

/// Found likewise: a member refused its part of a row, and what another one lists there was computed by what it had there before.
#[test]
fn what_a_dying_member_did_not_take_saves_nothing_that_others_list() {
    survives(&Plan::of(PARITY_DYING + 798));
}

/// Found likewise: that a member takes no writes any more was met only when the array was put to rest, which failed.
#[test]
fn who_dies_beside_anothers_list_keeps_no_array_from_its_rest() {
    survives(&Plan::of(PARITY_DYING + 10_549));
}

/// Found likewise: no device took anything any more. Of those that refused to flush one had to stay, and so another was trusted again that could have
/// gone: each further flush was news, and began the reads anew that were on their way.
#[test]
fn who_refuses_each_flush_holds_up_no_reads() {
    survives(&Plan::of(PARITY_LISTING + 24920));
}
