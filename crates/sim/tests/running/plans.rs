//! Plans that are run one after the other, and what they come to together; the ways in which every lab runs them; and the lives of one run.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut, RangeInclusive};

use blockwork_engine::FileId;
use blockwork_sim::{Fault, Lies, World};

use super::{from_environment, quietly};

/// Everything that a run does.
pub trait Plan: Clone + Debug {
    type Counts: Counts;

    /// The file of tests that it is of.
    const TEST: &'static str;

    /// Runs it, with a journal or without. A panic in the engine is a verdict too.
    fn run_with(&self, journal: bool) -> Verdict<Self::Counts>;

    fn seed(&self) -> u64;

    /// After which event the power is cut, life by life.
    fn cuts(&self) -> Vec<u64>;

    /// The power is cut after that event of a life; 0: when all is done.
    fn cut(&mut self, life: usize, event: u64);

    /// How its devices lie.
    fn lies(&mut self) -> &mut Lies;

    /// Faults on one request of one device each, in the first life.
    fn planned(&mut self) -> &mut Vec<(FileId, u64, Fault)>;

    /// How it was drawn, as `replay` has to be told.
    fn drawn(&self) -> &'static str {
        ""
    }

    fn run(&self) -> Verdict<Self::Counts> {
        self.run_with(false)
    }

    /// The line that replays a violation.
    fn report(&self, verdict: &Verdict<Self::Counts>) -> String {
        let violation = verdict.violations.first().map_or("", String::as_str);
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

/// What a run came to: what every lab finds, and what this one counts besides.
#[derive(Debug, Default)]
pub struct Verdict<C> {
    pub violations: Vec<String>,
    pub log_hash: u64,
    pub events: u64,
    /// Bios; of these, some failed, and some are durable.
    pub answered: u64,
    pub failed: u64,
    pub durable: u64,
    pub faults: u64,
    pub journal: Vec<String>,
    counts: C,
}

/// What one lab counts.
pub trait Counts: Debug + Default {
    fn add(&mut self, other: Self);
}

impl<C> Deref for Verdict<C> {
    type Target = C;
    fn deref(&self) -> &C {
        &self.counts
    }
}

impl<C> DerefMut for Verdict<C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.counts
    }
}

impl<C: Counts> Verdict<C> {
    /// What has happened to the devices of a life.
    pub fn note(&mut self, world: &World) {
        self.log_hash = self.log_hash.rotate_left(1) ^ world.log_hash();
        self.events += world.events();
        self.faults += world.faults();
    }

    fn add(&mut self, other: Verdict<C>) {
        self.events += other.events;
        self.answered += other.answered;
        self.failed += other.failed;
        self.durable += other.durable;
        self.faults += other.faults;
        self.counts.add(other.counts);
    }
}

/// What plans have come to.
struct Sums<C> {
    all: Verdict<C>,
    bad: Vec<String>,
    runs: usize,
}

impl<C: Counts> Sums<C> {
    fn new() -> Sums<C> {
        Sums { all: Verdict::default(), bad: Vec::new(), runs: 0 }
    }

    /// Runs one more; tells how many faults there were.
    fn run<P: Plan<Counts = C>>(&mut self, plan: &P, what: impl FnOnce() -> String) -> u64 {
        let verdict = plan.run();
        if !verdict.violations.is_empty() {
            self.bad.push(what() + &plan.report(&verdict));
        }
        self.runs += 1;
        let faults = verdict.faults;
        self.all.add(verdict);
        faults
    }

    /// Nothing may have been violated.
    fn judge(self) -> Verdict<C> {
        let Sums { all, bad, runs } = self;
        println!("{runs} runs: {all:?}");
        assert!(bad.is_empty(), "{} of {runs} runs:\n{}", bad.len(), bad[..bad.len().min(20)].join("\n"));
        all
    }
}

/// The run that is named by `SEED`, with what it is told by `CUT` and `JOURNAL`.
pub fn replay<P: Plan>(draw: impl FnOnce(u64) -> P) {
    let Some(seed) = from_environment("SEED") else { return };
    let mut plan = draw(seed);
    if let Some(event) = from_environment("CUT") {
        plan.cut(0, event);
    }
    let verdict = plan.run_with(from_environment("JOURNAL").is_some());
    verdict.journal.iter().for_each(|line| println!("{line}"));
    println!("{plan:#?}\n{} events, {} faults, log {:#x}", verdict.events, verdict.faults, verdict.log_hash);
    verdict.violations.iter().for_each(|violation| println!("{violation}"));
    assert!(verdict.violations.is_empty(), "{}", plan.report(&verdict));
}

/// Runs plans, in which nothing may be violated.
pub fn run_plans<P: Plan>(plans: impl IntoIterator<Item = P>) -> Verdict<P::Counts> {
    let mut sums = Sums::new();
    quietly(|| plans.into_iter().for_each(|plan| _ = sums.run(&plan, String::new)));
    sums.judge()
}

/// Runs a plan in which nothing may be violated.
pub fn survives<P: Plan>(plan: &P) -> Verdict<P::Counts> {
    let verdict = quietly(|| plan.run());
    assert!(verdict.violations.is_empty(), "{}", plan.report(&verdict));
    verdict
}

/// Runs plans with the power cut after each of these events of one life. Of more than `least` runs nothing may be violated.
pub fn survive_each_cut<P: Plan>(
    plans: impl IntoIterator<Item = P>,
    life: usize,
    events: RangeInclusive<u64>,
    least: usize,
) {
    let mut sums = Sums::new();
    quietly(|| {
        for mut plan in plans {
            let all = plan.run().events;
            for event in *events.start()..=all.min(*events.end()) {
                plan.cut(life, event);
                sums.run(&plan, String::new);
            }
        }
    });
    assert!(sums.runs > least, "only {} cuts were tried", sums.runs);
    sums.judge();
}

/// As SQLite's tests do: the n-th request of a device suffers a fault, for n = 0, 1, 2 ... until the run ends before it. More than
/// `least` have to, and nothing may be violated.
pub fn survive_each_fault<P: Plan>(
    plans: impl IntoIterator<Item = (P, Fault)>,
    device: FileId,
    least: usize,
) {
    let (mut sums, mut struck) = (Sums::new(), 0);
    quietly(|| {
        for (mut plan, fault) in plans {
            for n in 0.. {
                *plan.planned() = vec![(device, n, fault)];
                if sums.run(&plan, || format!("request {n} of {device:?} suffers {fault:?}: ")) == 0 {
                    break;
                }
                struck += 1;
            }
        }
    });
    assert!(struck > least, "only {struck} requests failed");
    sums.judge();
}

/// Whether some plan notices `lies`.
pub fn are_found<P: Plan>(lies: Lies, plans: impl IntoIterator<Item = P>) -> bool {
    quietly(|| plans.into_iter().any(|plan| !plan.lying(lies).run().violations.is_empty()))
}

/// Each plan comes to the same when it is run again, and to something else than the others.
pub fn expect_one_history<P: Plan>(plans: impl IntoIterator<Item = P>) {
    let mut before = None;
    for plan in plans {
        let [first, again] = [plan.run(), plan.run()].map(|it| (it.log_hash, it.events, it.answered));
        assert_eq!(first, again, "{plan:?}");
        assert_ne!(before.replace(first), Some(again), "{plan:?}");
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
