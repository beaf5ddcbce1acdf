//! Whether a request of several elements is copied to one piece of memory first: `linearize=auto|on|off`.
//!
//! Some devices cut a vectored request at the boundaries of its elements: Linux's NFS client makes an RPC of each element that ends
//! within a page, an NVMe drive cuts there too. One copy is then cheaper. Where nothing is cut the copy is a loss, and nobody can
//! know from outside which it is: kernels get mended. So `auto` tries both ways on the client's own requests.
//!
//! | file | what |
//! | --- | --- |
//! | `class.rs` | which requests are compared: by direction, length, length of the elements, where these meet |
//! | `rule.rs` | when which way is tried, when that is enough, and when it is done again |
//! | `evidence.rs` | what the trials have shown, and how sure that is |
//!
//! Invariants:
//! 1. No clock but the worker's, no chance: the same requests at the same times are decided the same.
//! 2. A request of one element is never copied, and costs a comparison.
//! 3. Memory is bounded: [`CLASSES_MAX`] classes of less than a kilobyte each, and [`COPIES_MAX`] bytes of copies under way; what is
//!    beyond goes as it is.
//! 4. Each worker finds out for itself: nothing is shared but what is reported.

mod class;
mod evidence;
mod rule;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Mutex;

use blockwork_memory::Segment;

use crate::bio::Op;
use crate::layer::NodeId;
use crate::units::Nanos;

pub use class::{Boundaries, RequestClass};
use rule::{Rule, Ticket};
pub use rule::{Verdict, Way};

/// Classes of one leaf and worker that are tried; those that come later go as they are.
const CLASSES_MAX: usize = 128;
/// Bytes of copies under way, by one worker on one leaf.
pub(crate) const COPIES_MAX: usize = 64 << 20;
/// What stands for a class that has not been seen.
const UNSEEN: u8 = u8::MAX;

/// What to do with requests of several elements (`linearize`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linearize {
    /// Whatever turns out to be faster.
    Auto,
    /// They are copied to one piece of memory.
    On,
    /// They go as they are.
    #[default]
    Off,
}

impl Linearize {
    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Linearize::Auto => "auto",
            Linearize::On => "on",
            Linearize::Off => "off",
        }
    }
    /// The one of that name.
    pub fn parse(name: &str) -> Option<Linearize> {
        [Linearize::Auto, Linearize::On, Linearize::Off].into_iter().find(|one| one.name() == name)
    }
}

/// The device's time, as requests share it: while n of them are under way, each pays for an n-th of what goes by. So what requests
/// cost adds up to the time during which the device was busy, however many were under way at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    paid: f64,
    last: Nanos,
}

impl Busy {
    /// The time is `now`; until now `in_flight` requests were under way. Returns what a request has paid that was under way always.
    #[inline]
    pub(crate) fn at(&mut self, now: Nanos, in_flight: u32) -> f64 {
        if now > self.last {
            if in_flight > 0 {
                self.paid += (now.0 - self.last.0) as f64 / f64::from(in_flight);
            }
            self.last = now;
        }
        self.paid
    }
}

/// A request that the comparison has an eye on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    class: u8,
    ticket: Ticket,
    /// What had been paid when it was started.
    paid: f64,
}

impl Watched {
    pub(crate) fn way(&self) -> Way {
        self.ticket.way
    }
    pub(crate) fn is_trial(&self) -> bool {
        self.ticket.is_trial
    }
}

struct Class {
    number: usize,
    rule: Rule,
    requests: [u64; 2],
    settlements: u32,
}

/// The comparison, for one leaf and worker.
pub(crate) struct Linearizer {
    /// The index of each class by its number, once one was seen.
    index: Vec<u8>,
    classes: Vec<Class>,
}

impl Linearizer {
    pub(crate) fn new() -> Linearizer {
        Linearizer { index: Vec::new(), classes: Vec::new() }
    }

    /// A read or write of these elements, of which there are several, is about to be started. `None`: it goes as it is.
    #[inline]
    pub(crate) fn start(
        &mut self,
        op: Op,
        fua: bool,
        data: &[Segment],
        bytes: u64,
        paid: f64,
    ) -> Option<Watched> {
        let number = class::number(op, fua, data, bytes);
        let class = self.class(number)?;
        let it = &mut self.classes[usize::from(class)];
        let ticket = it.rule.start();
        it.requests[ticket.way as usize] += 1;
        Some(Watched { class, ticket, paid })
    }

    fn class(&mut self, number: usize) -> Option<u8> {
        match self.index.get(number) {
            Some(&class) if class != UNSEEN => Some(class),
            _ if self.classes.len() == CLASSES_MAX => None,
            _ => {
                self.index.resize(class::NUMBERS, UNSEEN);
                let class = u8::try_from(self.classes.len()).expect("fewer than 255 classes");
                self.index[number] = class;
                self.classes.push(Class { number, rule: Rule::new(), requests: [0; 2], settlements: 0 });
                Some(class)
            }
        }
    }

    /// It is done; `paid` is `None` where its time says nothing. Returns what is worth a report.
    #[inline]
    pub(crate) fn done(&mut self, watched: Watched, paid: Option<f64>, bytes: u64) -> Option<News> {
        let class = &mut self.classes[usize::from(watched.class)];
        class.rule.done(watched.ticket, paid.map(|paid| paid - watched.paid), bytes);
        let settled = class.rule.settlements() != class.settlements;
        let requests = class.requests[0] + class.requests[1];
        // Often while there are few, and seldom when there are many.
        if !settled && !requests.is_power_of_two() && !requests.is_multiple_of(1024) {
            return None;
        }
        class.settlements = class.rule.settlements();
        Some(News { number: class.number, settled, choice: class.choice() })
    }
}

impl Class {
    #[cold]
    fn choice(&self) -> Choice {
        let (vectored, linear) = self.rule.costs();
        Choice {
            verdict: self.rule.verdict(),
            vectored,
            linear,
            pairs: self.rule.pairs(),
            settlements: self.settlements,
            requests: self.requests,
        }
    }
}

/// Something to report of a class.
pub(crate) struct News {
    number: usize,
    /// A decision was taken just now.
    pub(crate) settled: bool,
    pub(crate) choice: Choice,
}

impl News {
    pub(crate) fn class(&self) -> RequestClass {
        RequestClass::of(self.number)
    }
}

/// What one worker does with the requests of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) verdict: Verdict,
    pub(crate) vectored: f64,
    pub(crate) linear: f64,
    pub(crate) pairs: u32,
    pub(crate) settlements: u32,
    pub(crate) requests: [u64; 2],
}

/// What a worker has chosen, for whoever asks.
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
pub struct LinearizeSnapshot {
    /// The leaf.
    pub node: NodeId,
    /// Which requests.
    pub class: RequestClass,
    /// Workers that have not decided, that send them as they are, and that copy them.
    pub workers: [u32; 3],
    /// What a byte costs vectored, nanoseconds of the device's time; 0: not known yet.
    pub vectored_ns_per_byte: f64,
    /// And what linear.
    pub linear_ns_per_byte: f64,
    /// Pairs of blocks that these figures are from: all while trying, later the newest.
    pub pairs: u64,
    /// How often workers have decided.
    pub settlements: u64,
    /// Requests that went vectored, and linear, until this was last told.
    pub requests: [u64; 2],
}

/// All workers' choices, class by class.
pub(crate) fn snapshot<'a>(workers: impl Iterator<Item = &'a Choices>) -> Vec<LinearizeSnapshot> {
    let mut all: BTreeMap<(NodeId, usize), Vec<Choice>> = BTreeMap::new();
    for worker in workers {
        let choices = worker.0.lock().expect("no holder of this lock panics");
        choices.iter().for_each(|(key, choice)| all.entry(*key).or_default().push(*choice));
    }
    all.into_iter().map(|((node, number), choices)| sum(node, number, &choices)).collect()
}

fn sum(node: NodeId, number: usize, choices: &[Choice]) -> LinearizeSnapshot {
    let with = |verdict: Verdict| choices.iter().filter(|choice| choice.verdict == verdict).count() as u32;
    let measured = || choices.iter().filter(|choice| choice.vectored > 0.0 && choice.linear > 0.0);
    let n = measured().count().max(1) as f64;
    LinearizeSnapshot {
        node,
        class: RequestClass::of(number),
        workers: [
            with(Verdict::Trying),
            with(Verdict::Settled(Way::Vectored)),
            with(Verdict::Settled(Way::Linear)),
        ],
        vectored_ns_per_byte: measured().map(|choice| choice.vectored).sum::<f64>() / n,
        linear_ns_per_byte: measured().map(|choice| choice.linear).sum::<f64>() / n,
        pairs: choices.iter().map(|choice| u64::from(choice.pairs)).sum(),
        settlements: choices.iter().map(|choice| u64::from(choice.settlements)).sum(),
        requests: [0, 1].map(|way| choices.iter().map(|choice| choice.requests[way]).sum()),
    }
}
