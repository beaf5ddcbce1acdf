//! The crash lab for md: RAID1 and RAID10 over simulated devices, with and without a write-intent bitmap, served by the real
//! engine, with members that fail or are absent, and power cuts at any instant. What must hold is listed in
//! `md_lab/judge.rs`; besides, the clients' oracle judges every answer.
//!
//! In half of the lab nobody opens the array, and Linux copies between lives. In the other half it is opened, has spares, and somebody
//! fails, adds, removes and replaces its devices (`md_lab/caretaker.rs`); what was half copied in one life goes on in the next.
//!
//! A violation prints one line that replays it, as in `crash.rs`. `SEEDS=n` runs more of them, `FROM=m` begins elsewhere.
//!
//! It found, while the array was written: bits of the bitmap that one write had set for another and that stayed set for ever;
//! discards that disks of different granularity, or without discards, did in part; a member that fell two events behind by two
//! cuts, or by refusing superblocks while it had the only copy, and so made the array unusable; mending that read less than a
//! block of the disk; a stop that failed because of a member that the array had done without; an array without bits that was never
//! said to be clean again; a spare with larger blocks than the array's that took a place, and one whose slot another disk had got;
//! two reads that took different copies, since one began in a bad block; a bad block that was forgotten before what had been
//! written there was durable; a member that was filled, where mirrors differ, from another copy than clients read; a mirror that failed
//! when its replacement was complete, and was kept as if it were needed; a discard of which one member left out more than others, beside
//! blocks that cannot be written; copying without end to a member that refused it and had to stay; a member that was faulty, as others said,
//! before its replacement said that it was filled.
//! And its own: a read that was on its way to a disk when that forgot what a flush should have kept, which no array can help; a
//! replacement that the caretaker took away as the member that it had just become.

mod arrays;
mod md_lab;
mod running;

use blockwork_engine::FileId;
use blockwork_sim::Lies;

use arrays::troubles::FAULTS;
use md_lab::drawn::expect_all_verbs;
use md_lab::{CLEARING, KEPT, LOSING, Plan};
use running::plans::{
    self, are_found, expect_one_history, run_plans, survive_each_cut, survive_each_fault, survives,
};
use running::seeds;

#[test]
fn replay() {
    plans::replay(Plan::of);
}

#[test]
fn mirrors_differ_only_where_it_is_known_and_nothing_durable_is_lost_with_a_member() {
    let (all, seeds) = seeds(400);
    let sums = run_plans(all.map(Plan::draw));
    // A lab in which nothing happens would find nothing.
    assert!(sums.answered > 40 * seeds && sums.durable > seeds && sums.faults > seeds);
    assert!(sums.rests > seeds / 4 && sums.differed > seeds / 10);
    assert!(sums.given_up > seeds / 10 && sums.mended > seeds / 10);
}

/// Found by runs of more seeds than the tests have.
#[test]
fn a_discard_that_fails_when_a_member_has_been_given_up_keeps_no_array_from_its_rest() {
    survives(&Plan::draw(1108));
}

/// Found likewise: where one mirror had a bad block, a member was filled from another one also behind that, and clients then read
/// from it what they had not read before.
#[test]
fn a_member_is_filled_with_what_clients_have_read_where_mirrors_differ() {
    survives(&Plan::of(KEPT + 5714));
}

/// Found likewise: a write to a device that was to take a member's place failed, and its list of bad blocks said so until the array was opened
/// again, in the middle of filling it.
#[test]
fn a_replacement_keeps_its_list_of_bad_blocks_when_the_array_is_opened_again() {
    survives(&Plan::of(KEPT + 1_300_283));
}

/// Found likewise: the only other mirror failed when a replacement was filled and its superblock said so, and was kept, as if it were
/// needed.
#[test]
fn a_member_may_fail_while_it_is_recorded_that_a_replacement_is_filled() {
    survives(&Plan::of(KEPT + 2611));
}

/// Found likewise: of a discard a member had left out blocks that cannot be written, and with them what was no whole granule beside them.
#[test]
fn a_discard_around_blocks_that_cannot_be_written_leaves_mirrors_the_same() {
    survives(&Plan::of(KEPT + 20770));
}

/// Found likewise: to a device that was added, and cannot do it, fast zeroes were handed on as to those that can, which did them.
#[test]
fn fast_zeroes_are_refused_by_all_members_when_one_is_added_that_cannot_do_them() {
    survives(&Plan::of(KEPT + 20526));
}

/// Found likewise: no member took writes any more, and what was copied to one that has to stay was copied again, and again.
#[test]
fn copying_ends_when_a_member_that_has_to_stay_refuses_what_is_copied() {
    survives(&Plan::of(KEPT + 24794));
}

/// Found likewise: a power cut, after two devices that were being filled had it in their superblocks that a member was replaced, and before
/// its replacement said itself that it was filled.
#[test]
fn nobody_says_that_a_member_is_replaced_before_its_replacement_does() {
    let mut plan = Plan::of(KEPT + 24034);
    for cut in 1060..1100 {
        plan.lives[0].cut = cut;
        survives(&plan);
    }
}

/// Found likewise: what could not be read as a whole was read block by block, and one of these went on where its chunk ended.
#[test]
fn what_is_read_block_by_block_ends_with_its_chunk() {
    survives(&Plan::of(KEPT + 132_608));
}

/// Found likewise: a device that was being filled failed its flush, lost what it had been filled with, and was read.
#[test]
fn what_a_device_is_filled_with_is_read_when_it_is_durable() {
    survives(&Plan::of(KEPT + 163_272));
}

/// Found likewise: a device was filled, which could not be recorded at first; the next flush made it one that is being filled again, when
/// another had been given up for that.
#[test]
fn a_device_that_is_filled_stays_so_although_that_is_not_recorded_at_once() {
    survives(&Plan::draw(166_484));
}

/// Found likewise: of the two copies of a write one was refused, and so were superblocks: the write failed, with one copy done, and nobody knew
/// that they differ.
#[test]
fn copies_of_a_write_that_fails_with_the_superblocks_are_known_to_differ() {
    survives(&Plan::draw(191_563));
}

/// Found likewise: a member had lost what it was given with a flush that failed, and a read that was on its way there gave the rest of a block
/// of which a part was written; so the block was lost on the other member, too.
#[test]
fn what_a_member_has_lost_is_not_written_to_the_others_with_a_part_of_a_block() {
    survives(&Plan::draw(216_500));
    survives(&Plan::draw(191_935));
}

/// Found by more seeds: a member that has to stay, as it alone has some data, had refused writes. When the other copies of those could not be
/// read, or were given up, what it had there before was read, or said to be in sync.
#[test]
fn where_a_member_that_has_to_stay_refused_a_write_it_is_read_no_more() {
    survives(&Plan::draw(230_723));
    survives(&Plan::draw(237_259));
    survives(&Plan::draw(247_744));
}

/// Found likewise: members had refused parts of a write while another one was being given up, which could not be recorded: it failed, and nobody knew
/// that they differ.
#[test]
fn copies_of_a_write_that_fails_while_a_member_is_given_up_are_known_to_differ() {
    survives(&Plan::draw(237_989));
}

#[test]
fn a_bit_is_cleared_only_when_all_members_have_what_was_written() {
    let (all, seeds) = seeds(400);
    let differed = run_plans(all.map(|seed| Plan::draw_clearing(CLEARING + seed))).differed;
    assert!(differed > seeds / 4, "copies differed in {differed} runs only");
}

#[test]
fn what_lives_and_is_looked_after_has_all_copies_of_all_that_was_flushed() {
    let (all, seeds) = seeds(200);
    let sums = run_plans(all.map(|seed| Plan::of(KEPT + seed)));
    // A lab in which nothing happens would find nothing.
    assert!(sums.answered > 40 * seeds && sums.durable > seeds && sums.faults > seeds);
    assert!(sums.settled >= seeds && sums.resumed > seeds / 20 && sums.differed > seeds / 10);
    expect_all_verbs(&sums, seeds);
}

#[test]
fn what_a_member_has_lost_is_served_to_nobody_and_copied_nowhere() {
    let (all, seeds) = seeds(100);
    let sums = run_plans(all.map(|seed| Plan::of(LOSING + seed)));
    assert!(sums.rests > 4 * seeds && sums.given_up > 2 * seeds && sums.faults > 2 * seeds);
}

/// Found by the first runs of those: of a write with FUA the flush had failed, which was known only when the write had been tried without; what was read
/// of that member meanwhile was answered.
#[test]
fn what_is_read_while_a_flush_may_have_failed_waits_until_that_is_known() {
    survives(&Plan::of(LOSING + 705));
}

#[test]
fn every_cut_of_a_short_run_is_survived() {
    let plans = (1_000_000..1_000_006).map(|seed| Plan::draw(seed).shortened());
    survive_each_cut(plans, 0, 1..=200, 300);
}

#[test]
fn each_request_of_a_member_in_turn_may_fail_in_each_way() {
    let plan = |seed, fault| (Plan::draw(seed).with_nothing_amiss_but(fault), fault);
    let plans = (2_000_000..2_000_004).flat_map(|seed| FAULTS.map(|fault| plan(seed, fault)));
    survive_each_fault(plans, FileId(0), 500);
}

#[test]
fn one_seed_is_one_history() {
    expect_one_history((0..20).map(Plan::draw));
}

#[test]
fn members_that_acknowledge_flushes_without_doing_them_are_found_out() {
    assert!(are_found(Lies { flush: true, ..Lies::default() }, (0..100).map(Plan::draw)));
}

#[test]
fn members_that_ignore_fua_are_found_out() {
    assert!(are_found(Lies { fua: true, ..Lies::default() }, (0..100).map(Plan::draw)));
}
