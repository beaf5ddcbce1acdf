//! Which way requests of one class go: the rule, without a clock and without I/O.
//!
//! ```text
//!   Trying:   pair, stretch, pair, stretch ...   stretches go the way that leads; short at first, up to three pairs long
//!      │ sure enough                 ▲
//!      ▼                             │ the newest pairs contradict the decision
//!   Settled:  long stretch, pair, long stretch ...
//! ```
//!
//! A pair is a block of requests each way, back to back, the first one the way that requests went before. Only requests are measured
//! that are started while no request of the class is under way the other way, so that none pays for the other way's queue. What is
//! compared is what a byte costs of the time during which the device is busy (see `Busy`): in a closed loop that is
//! throughput, and with one request at a time it is latency.
//!
//! Decisions:
//! - linear, if it is better by the bound of `evidence`: copying costs a processor what no latency shows, so it has to be proved;
//! - vectored, if by the same bound linear is not better by half a percent; or if two deviations say so after sixteen pairs, since
//!   that much is lost at most by what is easily put right later;
//! - after [`PAIRS_MAX`] pairs, linear if it gained a percent on average.
//!
//! Revisions: a settled class makes a pair so rarely that the other way costs a quarter of a percent of the time at most. If the newest
//! pairs, at most eight, point the other way by two and a half deviations, the class is tried anew. So it is where requests have
//! become dearer than the other way was when it was last tried.

use super::evidence::{Evidence, Pair};

/// How the memory of a request goes to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As it is, element by element.
    Vectored,
    /// Copied to, or from, one piece of memory.
    Linear,
}

impl Way {
    pub(super) fn other(self) -> Way {
        match self {
            Way::Vectored => Way::Linear,
            Way::Linear => Way::Vectored,
        }
    }
}

/// What a request was started as; given back when it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) way: Way,
    /// The block that it counts for.
    block: Option<u32>,
    /// Whether it was sent that way for the sake of the comparison, against what is decided or leads.
    pub(crate) is_trial: bool,
}

/// No decision on fewer pairs; but on two where one way is more than three times as dear.
const PAIRS_MIN: u32 = 4;
const PLAIN: (u32, f64) = (2, 1.0);
/// A decision after that many, whatever they say.
const PAIRS_MAX: u32 = 2048;
/// No decision for vectored by two deviations on fewer pairs.
const PAIRS_LAX: u32 = 16;
/// What linear has to gain to be worth a copy.
const WORTH: f64 = 0.005;
/// Measured requests in a block, at least; where more are under way, half as many as those. So many more for every 16 pairs, at most
/// eight times: where a decision takes long, fewer changes of ways are in vain.
const SAMPLES_MIN: u32 = 2;
const LONGER_MAX: u32 = 8;
/// Stretches while trying, in pairs: one more for every four pairs, at most so many.
const STRETCH_MAX: u32 = 3;
/// What trying the other way may cost a settled class.
const SHARE: f64 = 0.0025;
/// Requests between pairs of a settled class, for each request of a block: at least, and in all at most.
const STRETCH_SETTLED: f64 = 256.0;
const SETTLED_MAX: f64 = 1_000_000.0;
/// Pairs that a settled class remembers.
const RECENT: usize = 8;
/// Requests whose cost is compared with the other way's in a settled class; by how much they must be dearer, and in how many windows
/// in a row. Much dearer counts twice.
const WINDOW: u32 = 16;
const DEARER: f64 = 1.1;
const MUCH_DEARER: f64 = 1.5;
const WINDOWS: u32 = 4;

/// Where in its sequence of blocks the class is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// That many requests go the leading way.
    Stretch(u32),
    First,
    Second,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    cost: f64,
    bytes: f64,
    samples: u32,
}

impl Sum {
    fn add(&mut self, cost: f64, bytes: u64) {
        self.cost += cost;
        self.bytes += bytes as f64;
        self.samples += 1;
    }
    fn each(self) -> f64 {
        self.cost / self.bytes
    }
}

/// How far a class has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not sure yet.
    Trying,
    /// Settled.
    Settled(Way),
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::Trying => "trying both ways",
            Verdict::Settled(Way::Vectored) => "vectored",
            Verdict::Settled(Way::Linear) => "linear",
        })
    }
}

/// The rule for one class of requests.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    settled: bool,
    /// The way that is decided, or leads.
    leader: Way,
    step: Step,
    way: Way,
    block: u32,
    /// Measured requests that the block needs, requests that it has had, and at most has.
    goal: u32,
    had: u32,
    most: u32,
    sum: Sum,
    first: f64,
    /// Requests of the pair that is under way that went against the leader.
    against: u32,
    flying: [u32; 2],
    /// A request has come back. Those that were started at once with the first pay for part of their wait only.
    is_warm: bool,
    /// While trying all pairs; when settled the newest.
    evidence: Evidence,
    /// When settled: the deviation of a pair.
    deviation: f64,
    known: Pair,
    /// When settled: requests that are left of the stretch when it may be tried anew, at most.
    not_before: u32,
    dearer: u32,
    settlements: u32,
}

impl Rule {
    pub(crate) fn new() -> Rule {
        Rule {
            settled: false,
            leader: Way::Vectored,
            step: Step::First,
            // The way that may be much dearer is tried once per two pairs so, and not twice.
            way: Way::Linear,
            block: 0,
            goal: SAMPLES_MIN,
            had: 0,
            most: most(SAMPLES_MIN),
            sum: Sum::default(),
            first: 0.0,
            against: 0,
            flying: [0; 2],
            is_warm: false,
            evidence: Evidence::default(),
            deviation: 0.0,
            known: Pair::default(),
            not_before: 0,
            dearer: 0,
            settlements: 0,
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        if self.settled { Verdict::Settled(self.leader) } else { Verdict::Trying }
    }
    /// What a byte costs, nanoseconds, vectored and linear, as far as it is known; 0: not yet.
    pub(crate) fn costs(&self) -> (f64, f64) {
        (self.known.vectored, self.known.linear)
    }
    /// Pairs since the class was last tried anew.
    pub(crate) fn pairs(&self) -> u32 {
        self.evidence.pairs()
    }
    /// How often it has been decided.
    pub(crate) fn settlements(&self) -> u32 {
        self.settlements
    }

    /// A request of the class is about to be started.
    #[inline]
    pub(crate) fn start(&mut self) -> Ticket {
        if let Step::Stretch(left) = &mut self.step {
            *left -= 1;
            if *left == 0 {
                self.begin(Step::First, self.way);
            }
        } else {
            self.had += 1;
            if self.had > self.most {
                self.give_up();
            }
        }
        let is_pure = self.is_warm && self.flying[self.way.other() as usize] == 0;
        let is_trial = self.way != self.leader;
        self.against += u32::from(is_trial);
        self.flying[self.way as usize] += 1;
        Ticket { way: self.way, block: is_pure.then_some(self.block), is_trial }
    }

    /// It is done, and has cost so much of the device's time; `None` where that says nothing, as after a failure.
    #[inline]
    pub(crate) fn done(&mut self, ticket: Ticket, cost: Option<f64>, bytes: u64) {
        self.flying[ticket.way as usize] -= 1;
        self.is_warm = true;
        let Some(cost) = cost else { return };
        if ticket.block != Some(self.block) {
            return;
        }
        self.sum.add(cost, bytes);
        match self.step {
            Step::Stretch(_) if self.settled && self.sum.samples >= WINDOW => self.window(),
            Step::Stretch(_) => {}
            Step::First | Step::Second if self.sum.samples >= self.goal => self.block_done(),
            Step::First | Step::Second => {}
        }
    }

    fn begin(&mut self, step: Step, way: Way) {
        (self.step, self.way) = (step, way);
        self.block = self.block.wrapping_add(1);
        let pairs = if self.settled { 0 } else { self.evidence.pairs() };
        let longer = (1 + pairs / 16).min(LONGER_MAX);
        self.goal = SAMPLES_MIN.max((self.flying[0] + self.flying[1]) / 2) * longer;
        (self.had, self.most) = (0, most(self.goal));
        self.sum = Sum::default();
    }

    fn stretch(&mut self, requests: u32) {
        self.against = 0;
        match requests {
            // The next pair begins as this one ended, so that it costs no change of ways.
            0 => self.begin(Step::First, self.way),
            n => self.begin(Step::Stretch(n), self.leader),
        }
    }

    /// The requests that go the other way do not come to an end: no pair is worth waiting for that.
    fn give_up(&mut self) {
        self.stretch(32 * most(self.goal));
    }

    fn block_done(&mut self) {
        let each = self.sum.each();
        if self.step == Step::First {
            self.first = each;
            self.begin(Step::Second, self.way.other());
            return;
        }
        let pair = match self.way {
            Way::Linear => Pair { vectored: self.first, linear: each },
            Way::Vectored => Pair { vectored: each, linear: self.first },
        };
        self.evidence.push(pair);
        if self.settled { self.look_again(pair) } else { self.look() }
    }

    /// A pair has been made while trying.
    fn look(&mut self) {
        let (against, pairs) = (self.against.max(1), self.evidence.pairs());
        self.known = self.evidence.mean().unwrap_or_default();
        let Some(it) = self.evidence.estimate(None) else { return self.stretch(0) };
        let is_plain = pairs >= PLAIN.0 && it.gain.abs() > PLAIN.1;
        let decision = if pairs < PAIRS_MIN && !is_plain {
            None
        } else if it.gain > it.half_width && it.gain > WORTH {
            Some(Way::Linear)
        } else if it.gain + it.half_width < WORTH || (pairs >= PAIRS_LAX && it.gain + 2.0 * it.error < WORTH)
        {
            Some(Way::Vectored)
        } else if pairs >= PAIRS_MAX {
            Some(if it.gain > 2.0 * WORTH { Way::Linear } else { Way::Vectored })
        } else {
            None
        };
        self.leader = match decision {
            Some(way) => way,
            // While nobody knows, no copies but for the sake of knowing.
            None if it.gain > it.error => Way::Linear,
            None => Way::Vectored,
        };
        if decision.is_none() {
            let pair = 2 * self.goal;
            return self.stretch(pair * (pairs / 4).min(STRETCH_MAX));
        }
        self.settled = true;
        self.settlements += 1;
        self.deviation = self.evidence.deviation().unwrap_or_default();
        self.evidence.clear();
        self.settled_stretch(against, self.known);
    }

    /// A pair has been made in a settled class.
    fn look_again(&mut self, pair: Pair) {
        let against = self.against.max(1);
        self.evidence.keep_newest(RECENT);
        self.known = self.known.toward(pair);
        let against_it = |gain: f64| if self.leader == Way::Linear { -gain } else { gain };
        let contradicts = self
            .evidence
            .estimate(Some(self.deviation))
            .is_some_and(|it| against_it(it.gain) > WORTH && against_it(it.gain) > 2.5 * it.error);
        if !contradicts {
            return self.settled_stretch(against, pair);
        }
        self.try_anew();
    }

    /// What was found out holds no longer.
    fn try_anew(&mut self) {
        self.settled = false;
        self.evidence.clear();
        self.stretch(0);
    }

    /// `pair`: what the other way costs, as far as was seen last.
    fn settled_stretch(&mut self, against: u32, pair: Pair) {
        let (own, other) = self.own_and_other(pair);
        let loss = if own > 0.0 { (other / own - 1.0).max(0.0) } else { 0.0 };
        let requests = f64::from(against) * (loss / SHARE).max(STRETCH_SETTLED);
        // In range: the least is 256.
        let requests = requests.min(SETTLED_MAX) as u32;
        (self.not_before, self.dearer) = (requests - requests / 8, 0);
        self.stretch(requests);
    }

    fn own_and_other(&self, pair: Pair) -> (f64, f64) {
        match self.leader {
            Way::Vectored => (pair.vectored, pair.linear),
            Way::Linear => (pair.linear, pair.vectored),
        }
    }

    /// So many requests of a settled class have been measured: are they dearer than the other way was?
    fn window(&mut self) {
        let each = std::mem::take(&mut self.sum).each();
        let (_, other) = self.own_and_other(self.known);
        self.dearer = match each / other {
            times if times > MUCH_DEARER => self.dearer + 2,
            times if times > DEARER => self.dearer + 1,
            _ => 0,
        };
        if let Step::Stretch(left) = self.step
            && self.dearer >= WINDOWS
            && left < self.not_before
        {
            self.try_anew();
        }
    }
}

/// Requests in a block, at most: of those that are under way the other way when it begins one may never come to its end.
fn most(goal: u32) -> u32 {
    64 * goal + 1024
}
