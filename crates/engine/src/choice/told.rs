//! What workers have chosen, for whoever asks.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::class::Subject;
use super::rule::{Rule, Verdict, Way};
use crate::layer::NodeId;

/// What one worker does with the requests of a class.
#[derive(Clone, Copy, Debug)]
struct Choice {
    verdict: Verdict,
    costs: [f64; 2],
    pairs: u32,
    settlements: u32,
    changes: u32,
    alarms: u32,
    requests: [u64; 2],
}

/// Something to report of a class.
pub(crate) struct News {
    number: usize,
    /// A decision was taken just now.
    pub(crate) settled: bool,
    choice: Choice,
}

impl News {
    #[cold]
    pub(super) fn new(number: usize, settled: bool, rule: &Rule, requests: [u64; 2]) -> News {
        let choice = Choice {
            verdict: rule.verdict(),
            costs: rule.costs(),
            pairs: rule.pairs(),
            settlements: rule.settlements(),
            changes: rule.changes(),
            alarms: rule.alarms(),
            requests,
        };
        News { number, settled, choice }
    }
}

impl std::fmt::Display for News {
    /// As in `writes of 32 KiB in 4 KiB off pages: linear, by 17.1 MB/s vectored and 88.3 MB/s linear`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let subject = Subject::of(self.number);
        let [usual, instead] = subject.ways();
        let [as_usual, as_instead] = self.choice.costs.map(|cost| 1e3 / cost);
        let decided = match self.choice.verdict {
            Verdict::Trying => "trying both ways",
            Verdict::Settled(Way::Usual) => usual,
            Verdict::Settled(Way::Instead) => instead,
        };
        write!(f, "{subject}: {decided}, by {as_usual:.1} MB/s {usual} and {as_instead:.1} MB/s {instead}")
    }
}

/// What a worker has chosen.
#[derive(Default)]
pub(crate) struct Choices(Mutex<BTreeMap<(NodeId, usize), Choice>>);

impl Choices {
    pub(crate) fn tell(&self, node: NodeId, news: &News) {
        let mut all = self.0.lock().expect("no holder of this lock panics");
        all.insert((node, news.number), news.choice);
    }
}

/// What the workers do with the requests of one class on one leaf.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceSnapshot {
    /// The leaf.
    pub node: NodeId,
    /// Which question, about which requests.
    pub subject: Subject,
    /// Workers that have not decided, that go the usual way, and that go the other.
    pub workers: [u32; 3],
    /// What a byte costs each way, nanoseconds of the time that such requests share; 0: not known yet.
    pub ns_per_byte: [f64; 2],
    /// Pairs of blocks that these figures are from: all while trying, later the newest.
    pub pairs: u64,
    /// How often workers have decided.
    pub settlements: u64,
    /// How often they have decided the opposite of what they had decided before.
    pub changes: u64,
    /// How often they have tried anew since requests of the decided or leading way had become dearer.
    pub alarms: u64,
    /// Requests that went each way, until this was last told. Such that nobody looked at, since nothing changed, count for the class that
    /// all were of.
    pub requests: [u64; 2],
}

/// All workers' choices, class by class.
pub(crate) fn snapshot<'a>(workers: impl Iterator<Item = &'a Choices>) -> Vec<ChoiceSnapshot> {
    let mut all: BTreeMap<(NodeId, usize), Vec<Choice>> = BTreeMap::new();
    for worker in workers {
        let choices = worker.0.lock().expect("no holder of this lock panics");
        choices.iter().for_each(|(key, choice)| all.entry(*key).or_default().push(*choice));
    }
    all.into_iter().map(|((node, number), choices)| sum(node, number, &choices)).collect()
}

fn sum(node: NodeId, number: usize, choices: &[Choice]) -> ChoiceSnapshot {
    let with = |verdict: Verdict| choices.iter().filter(|choice| choice.verdict == verdict).count() as u32;
    let measured = || choices.iter().filter(|choice| choice.costs.iter().all(|cost| *cost > 0.0));
    let n = measured().count().max(1) as f64;
    let count = |what: fn(&Choice) -> u32| choices.iter().map(|choice| u64::from(what(choice))).sum();
    ChoiceSnapshot {
        node,
        subject: Subject::of(number),
        workers: [
            with(Verdict::Trying),
            with(Verdict::Settled(Way::Usual)),
            with(Verdict::Settled(Way::Instead)),
        ],
        ns_per_byte: [0, 1].map(|way| measured().map(|choice| choice.costs[way]).sum::<f64>() / n),
        pairs: count(|choice| choice.pairs),
        settlements: count(|choice| choice.settlements),
        changes: count(|choice| choice.changes),
        alarms: count(|choice| choice.alarms),
        requests: [0, 1].map(|way| choices.iter().map(|choice| choice.requests[way]).sum()),
    }
}
