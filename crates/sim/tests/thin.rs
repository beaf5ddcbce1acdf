//! The crash lab for thin pools: several volumes and snapshots of one pool, written at once by clients on one or more workers, with
//! snapshots made and deleted meanwhile, pools that are full, disks that fail, and power cuts at any instant. What must hold is listed
//! in `thin_lab/mod.rs`.
//!
//! A violation prints one line that replays it, as in `crash.rs`.

mod running;
mod thin_lab;

use blockwork_engine::{Errno, FileId};
use blockwork_sim::{Fault, Lies};

use running::plans::{
    self, are_found, expect_one_history, run_plans, survive_each_cut, survive_each_fault, survives,
};
use running::{from_environment, seeds};
use thin_lab::Plan;

#[test]
fn replay() {
    plans::replay(|seed| match () {
        () if from_environment("TROUBLE").is_some() => Plan::draw_trouble(seed),
        () if from_environment("BAD_WRITES").is_some() => Plan::draw_bad_writes(seed),
        () => Plan::draw(seed),
    });
}

#[test]
fn volumes_keep_what_was_flushed_and_snapshots_stay_as_their_origins_were() {
    let (all, seeds) = seeds(400);
    let sums = run_plans(all.map(Plan::draw));
    // A lab in which nothing happens would find nothing.
    assert!(sums.answered > 40 * seeds && sums.durable > seeds && sums.data_used > 2 * seeds);
    assert!(
        sums.verbs["snapshot"] > seeds / 2 && sums.verbs["delete"] > seeds / 10 && sums.verbs["grow"] > 0
    );
    assert_eq!(sums.read_only, 0);
}

#[test]
fn pools_that_are_full_or_fail_lose_nothing_that_was_flushed() {
    let (all, seeds) = seeds(400);
    let sums = run_plans(all.map(Plan::draw_trouble));
    assert!(sums.read_only > seeds / 20 && sums.out_of_space > seeds / 20 && sums.faults > seeds / 10);
}

/// Found by a run of more seeds than the test above has: a device that could not be deleted left behind that blocks were freed, and a write
/// that lacked space then was tried after a commit of nothing, again and again.
#[test]
fn a_write_that_lacks_space_waits_for_it_when_a_device_could_not_be_deleted() {
    assert!(survives(&Plan::draw_trouble(1167)).out_of_space > 0);
}

/// Found likewise: after a flush of the data device had failed, and before the pool had its turn to drop them, new blocks were read.
#[test]
fn what_the_data_device_may_have_lost_is_not_read_while_the_pool_waits_for_its_turn() {
    let mut plan = Plan::draw_trouble(7688);
    plan.cuts[0] = 266;
    assert!(survives(&plan).faults > 0);
}

#[test]
fn where_data_cannot_be_written_nobody_finds_what_was_there_before() {
    let (all, seeds) = seeds(400);
    let sums = run_plans(all.map(Plan::draw_bad_writes));
    assert!(sums.failed > seeds && sums.durable > seeds && sums.read_only > 0);
}

#[test]
fn every_cut_of_a_short_run_is_survived() {
    let plans = (1_000_000..1_000_006).map(|seed| {
        let mut plan = Plan::draw(seed);
        (plan.bios, plan.cuts, plan.verbs) = (14, vec![0], 3);
        plan
    });
    survive_each_cut(plans, 0, 1..=120, 200);
}

#[test]
fn each_request_of_the_metadata_device_in_turn_may_fail_in_each_way() {
    let faults = [Fault::Error(Errno::EIO), Fault::Latent, Fault::ForEver, Fault::Short, Fault::LostFlush];
    let plans = (2_000_000..2_000_003).flat_map(|seed| {
        let mut plan = Plan::draw(seed);
        (plan.faults, plan.bios, plan.cuts) = (Default::default(), 24, vec![0]);
        faults.map(|fault| (plan.clone(), fault))
    });
    survive_each_fault(plans, FileId(0), 50);
}

/// The tools' own judgement of what some runs leave behind.
#[test]
#[allow(clippy::disallowed_methods, reason = "another program reads what was simulated")]
fn thin_check_finds_nothing_in_a_sample() {
    let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/thin-metadata");
    for seed in (0..120).step_by(10) {
        let plan = Plan {
            wants_image: true,
            ..if seed % 20 == 0 { Plan::draw(seed) } else { Plan::draw_trouble(seed) }
        };
        std::fs::write(file, &survives(&plan).image).unwrap();
        let judged = std::process::Command::new("thin_check").arg(file).output();
        let judged = judged.unwrap_or_else(|error| {
            panic!("thin_check cannot be run ({error}): this test needs the Debian package thin-provisioning-tools")
        });
        assert!(judged.status.success(), "seed {seed}: {}", String::from_utf8_lossy(&judged.stderr));
    }
    std::fs::remove_file(file).unwrap();
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
