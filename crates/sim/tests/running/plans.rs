//! Plans that are run one after the other, and what they come to together; and the lives of one run.

use std::fmt::Debug;

use blockwork_sim::{Lies, World};

use super::quietly;

/// Everything that a run does.
pub trait Plan: Sized {
    type Verdict: Verdict;

    /// The file of tests that it is of.
    const TEST: &'static str;

    /// Runs it. A panic in the engine is a verdict too.
    fn run(&self) -> Self::Verdict;

    fn seed(&self) -> u64;

    /// After which event the power is cut, life by life.
    fn cuts(&self) -> Vec<u64>;

    /// How its devices lie.
    fn lies(&mut self) -> &mut Lies;

    /// How it was drawn, as `replay` has to be told.
    fn drawn(&self) -> &'static str {
        ""
    }

    /// The line that replays a violation.
    fn report(&self, verdict: &Self::Verdict) -> String {
        let violation = verdict.violations().first().map_or("", String::as_str);
        let (seed, cuts, test, drawn) = (self.seed(), self.cuts(), Self::TEST, self.drawn());
        format!(
            "seed {seed}, cuts {cuts:?}: {violation}. Replay: {drawn}SEED={seed} CUT={} cargo test -p blockwork-sim --test {test} replay -- --nocapture",
            cuts[0]
        )
    }

    /// The same on devices that lie.
    fn lying(mut self, lies: Lies) -> Self {
        *self.lies() = lies;
        self
    }
}

/// What a run came to.
pub trait Verdict: Debug + Default {
    fn violations(&self) -> &[String];

    fn log_hash(&self) -> u64;

    /// What every lab counts: events; bios that were answered, of which some failed, and some are durable; faults.
    fn counts(&mut self) -> [&mut u64; 5];

    /// Adds what no other lab counts.
    fn add_own(&mut self, other: Self);

    /// Adds what another one came to.
    fn add(&mut self, mut other: Self) {
        for (own, other) in self.counts().into_iter().zip(other.counts()) {
            *own += *other;
        }
        self.add_own(other);
    }

    /// What is the same whenever a plan is run.
    fn history(&mut self) -> [u64; 3] {
        let [events, answered, ..] = self.counts().map(|count| *count);
        [self.log_hash(), events, answered]
    }
}

/// Runs plans, in which nothing may be violated.
pub fn run_plans<P: Plan>(plans: impl IntoIterator<Item = P>) -> P::Verdict {
    let (mut sums, mut bad, mut runs) = (P::Verdict::default(), Vec::new(), 0);
    quietly(|| {
        for plan in plans {
            let verdict = plan.run();
            bad.extend((!verdict.violations().is_empty()).then(|| plan.report(&verdict)));
            runs += 1;
            sums.add(verdict);
        }
    });
    println!("{runs} runs: {sums:?}");
    assert!(bad.is_empty(), "{} of {runs} runs:\n{}", bad.len(), bad[..bad.len().min(20)].join("\n"));
    sums
}

/// Whether some plan notices `lies`.
pub fn are_found<P: Plan>(lies: Lies, plans: impl IntoIterator<Item = P>) -> bool {
    quietly(|| plans.into_iter().any(|plan| !plan.lying(lies).run().violations().is_empty()))
}

/// Each plan comes to the same when it is run again.
pub fn expect_one_history<P: Plan + Debug>(plans: impl IntoIterator<Item = P>) {
    for plan in plans {
        assert_eq!(plan.run().history(), plan.run().history(), "{plan:?}");
    }
}

/// No life of a lab comes near so many events.
pub const EVENTS_MAX: u64 = 300_000;

/// The devices of a run, which has just begun.
pub fn new_world(seed: u64, keeps_journal: bool) -> World {
    let world = World::new(seed);
    world.ends_within(EVENTS_MAX);
    if keeps_journal {
        world.keep_journal();
    }
    world
}

/// A life is over: the power goes, and comes back over devices without faults.
pub fn end_life(world: &mut World, journal: &mut Vec<String>, keeps_journal: bool) {
    journal.append(&mut world.journal());
    *world = world.power_cut();
    world.heal();
    if keeps_journal {
        world.keep_journal();
    }
}
