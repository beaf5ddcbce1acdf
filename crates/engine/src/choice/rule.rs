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
//! - the way instead, if it is better by the bound of `evidence`: what it costs besides (a copy, a flush of what others have written) no
//!   latency of these requests shows, so it has to be proved;
//! - the usual way, if by the same bound the other is not better by half a percent; or if two deviations say so after sixteen pairs,
//!   since that much is lost at most by what is easily put right later;
//! - after [`PAIRS_MAX`] pairs, the way instead if it gained a percent on average.
//!
//! Where the two newest pairs lie five deviations off the others, conditions have changed before a decision, and the others count no more.
//!
//! Revisions: a settled class makes a pair so rarely that the other way costs a quarter of a percent of the time at most. If the newest
//! pairs, at most eight, point the other way by two and a half deviations, the class is tried anew. So it is at once where requests have
//! become dearer than the other way was when it was last tried, by more than chance explains; but where that was in vain before, not
//! before an eighth of the stretch has passed, so that times that rise and fall for both ways cost no more than that share.

use super::evidence::{Estimate, Evidence, Pair};

/// How a request goes to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// As it would go if nobody asked.
    Usual,
    /// The other way.
    Instead,
}

impl Way {
    pub(super) fn other(self) -> Way {
        match self {
            Way::Usual => Way::Instead,
            Way::Instead => Way::Usual,
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
/// No decision for the usual way by two deviations on fewer pairs.
const PAIRS_LAX: u32 = 16;
/// While trying: if the two newest pairs lie so many deviations off all of so many pairs or more, these tell of other times.
const CHANGED: f64 = 5.0;
const CHANGED_PAIRS: u32 = 8;
/// What the way instead has to gain to be worth its price.
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
/// Requests whose cost is compared with the other way's in a settled class; by how much they must be dearer, as a part and in deviations of
/// such a window, and in how many windows in a row. Much dearer counts twice.
const WINDOW: u32 = 16;
const DEARER: (f64, f64) = (0.03, 2.5);
const MUCH_DEARER: (f64, f64) = (0.3, 4.0);
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
pub(crate) enum Verdict {
    /// Not sure yet.
    Trying,
    /// Settled.
    Settled(Way),
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
    newest: [Pair; 2],
    /// When settled: the deviation of a pair.
    deviation: f64,
    known: Pair,
    /// When settled: the deviation of a window's cost, as a part of it.
    window_deviation: f64,
    /// When settled: requests that are left of the stretch when it may be tried anew, at most.
    not_before: u32,
    dearer: u32,
    /// It was tried anew since requests had become dearer, and nothing else came out.
    in_vain: bool,
    settlements: u32,
    /// What was decided last.
    last: Option<Way>,
}

impl Rule {
    pub(crate) fn new() -> Rule {
        Rule {
            settled: false,
            leader: Way::Usual,
            step: Step::First,
            // The way that may be much dearer is tried once per two pairs so, and not twice.
            way: Way::Instead,
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
            newest: [Pair::default(); 2],
            deviation: 0.0,
            known: Pair::default(),
            window_deviation: 0.0,
            not_before: 0,
            dearer: 0,
            in_vain: false,
            settlements: 0,
            last: None,
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        if self.settled { Verdict::Settled(self.leader) } else { Verdict::Trying }
    }
    /// The way that is decided, or leads.
    #[inline]
    pub(crate) fn leader(&self) -> Way {
        self.leader
    }
    /// What a byte costs, nanoseconds, the usual way and instead, as far as it is known; 0: not yet.
    pub(crate) fn costs(&self) -> [f64; 2] {
        [self.known.usual, self.known.instead]
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
            Way::Instead => Pair { usual: self.first, instead: each },
            Way::Usual => Pair { usual: each, instead: self.first },
        };
        self.evidence.push(pair);
        self.newest = [self.newest[1], pair];
        if self.settled { self.look_again(pair) } else { self.look() }
    }

    /// A pair has been made while trying.
    fn look(&mut self) {
        self.forget_other_times();
        let (against, pairs) = (self.against.max(1), self.evidence.pairs());
        self.known = self.evidence.mean().unwrap_or_default();
        let Some(it) = self.evidence.estimate(None) else { return self.stretch(0) };
        let is_plain = pairs >= PLAIN.0 && it.gain.abs() > PLAIN.1;
        let decision = if pairs < PAIRS_MIN && !is_plain {
            None
        } else if it.gain > it.half_width && it.gain > WORTH {
            Some(Way::Instead)
        } else if it.gain + it.half_width < WORTH || (pairs >= PAIRS_LAX && it.gain + 2.0 * it.error < WORTH)
        {
            Some(Way::Usual)
        } else if pairs >= PAIRS_MAX {
            Some(if it.gain > 2.0 * WORTH { Way::Instead } else { Way::Usual })
        } else {
            None
        };
        self.leader = match decision {
            Some(way) => way,
            // While nobody knows, the usual way, but for the sake of knowing.
            None if it.gain > it.error => Way::Instead,
            None => Way::Usual,
        };
        if decision.is_none() {
            let pair = 2 * self.goal;
            return self.stretch(pair * (pairs / 4).min(STRETCH_MAX));
        }
        self.settled = true;
        self.settlements += 1;
        // A pair's difference varies as two blocks do, which have half as many samples as it.
        let samples = f64::from(self.goal) / f64::from(WINDOW);
        self.window_deviation = it.error * f64::from(pairs).sqrt() * (samples / 2.0).sqrt();
        self.in_vain = self.last == decision;
        self.last = decision;
        self.deviation = self.evidence.deviation().unwrap_or_default();
        self.evidence.clear();
        self.settled_stretch(against, self.known);
    }

    fn forget_other_times(&mut self) {
        let Some(all) = self.evidence.estimate(None).filter(|_| self.evidence.pairs() >= CHANGED_PAIRS)
        else {
            return;
        };
        let deviation = all.error * f64::from(self.evidence.pairs()).sqrt();
        let mut newest = Evidence::default();
        self.newest.iter().for_each(|pair| newest.push(*pair));
        let has_changed = |new: Estimate| (new.gain - all.gain).abs() > CHANGED * new.error;
        if newest.estimate(Some(deviation)).is_some_and(has_changed) {
            self.evidence = newest;
        }
    }

    /// A pair has been made in a settled class.
    fn look_again(&mut self, pair: Pair) {
        let against = self.against.max(1);
        self.evidence.keep_newest(RECENT);
        self.known = self.known.toward(pair);
        let against_it = |gain: f64| if self.leader == Way::Instead { -gain } else { gain };
        let contradicts = self
            .evidence
            .estimate(Some(self.deviation))
            .is_some_and(|it| against_it(it.gain) > WORTH && against_it(it.gain) > 2.5 * it.error);
        if contradicts {
            return self.try_anew();
        }
        self.in_vain = false;
        self.settled_stretch(against, pair);
    }

    /// What was found out holds no longer.
    fn try_anew(&mut self) {
        self.settled = false;
        self.evidence.clear();
        self.stretch(0);
    }

    /// `pair`: what both ways cost, as far as was seen last.
    fn settled_stretch(&mut self, against: u32, pair: Pair) {
        let loss = |pair| match self.own_and_other(pair) {
            (own, other) if own > 0.0 => (other / own - 1.0).max(0.0),
            _ => 0.0,
        };
        // One stall is not to keep the other way from being tried for long; what has really become dearer is known after a few pairs.
        let loss = loss(pair).min(4.0 * loss(self.known));
        let requests = f64::from(against) * (loss / SHARE).max(STRETCH_SETTLED);
        // In range: the least is 256.
        let requests = requests.min(SETTLED_MAX) as u32;
        self.not_before = if self.in_vain { requests - requests / 8 } else { requests };
        self.dearer = 0;
        self.stretch(requests);
    }

    fn own_and_other(&self, pair: Pair) -> (f64, f64) {
        match self.leader {
            Way::Usual => (pair.usual, pair.instead),
            Way::Instead => (pair.instead, pair.usual),
        }
    }

    /// So many requests of a settled class have been measured: are they dearer than the other way was?
    fn window(&mut self) {
        let each = std::mem::take(&mut self.sum).each();
        let (_, other) = self.own_and_other(self.known);
        let excess = each / other - 1.0;
        let is = |(part, deviations): (f64, f64)| excess > part.max(deviations * self.window_deviation);
        self.dearer = match (is(MUCH_DEARER), is(DEARER)) {
            (true, _) => self.dearer + 2,
            (false, true) => self.dearer + 1,
            (false, false) => 0,
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
