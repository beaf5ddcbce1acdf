//! Which way requests of one class go: the rule, without a clock and without I/O.
//!
//! ```text
//!   Trying:   pair, stretch, pair, stretch ...   stretches go the way that leads; short at first, up to fifteen pairs long
//!      │ sure enough                 ▲
//!      ▼                             │ the newest pairs contradict the decision
//!   Settled:  long stretch, pair, long stretch ...
//! ```
//!
//! A pair is a block of requests each way, back to back, the first one the way that requests went before. A block is measured while no
//! request of the class is under way the other way, so that none pays for the other way's queue: from when the last one of before it is done,
//! or, where it goes on the way of what was measured before, from the end of that. Not from anywhere between: where answers come some at
//! once, a measurement that begins behind the first of them takes in their time and not that in which the next ones are made (on a virtual disk, of blocks
//! of one round's requests the second was a sixth dearer for that, whichever way it went, and the way that led looked better than it was). What is
//! compared is what a byte costs of the time during which the device is busy (see `Busy`): in a closed loop that is
//! throughput, and with one request at a time it is latency. It is what the class has paid in all from the block's beginning to its end, by
//! the bytes that were done in between, and not the sum of what single requests pay: where requests come in bursts, the first ones of a burst wait
//! for little, the last ones have the device to themselves, and the mean of a few tells where in a burst they were. Where others are under
//! way besides it is that sum: what all pay then depends on how many those are, which varies from block to block, and each request of the
//! class pays its part as a whole.
//!
//! Decisions:
//! - the way instead, if it is better by the bound of `evidence`: what it costs besides (a copy, a flush of what others have written) no
//!   latency of these requests shows, so it has to be proved;
//! - the usual way, if by the same bound the other is not better by half a percent; or if two deviations, wide ones, say so after sixteen pairs,
//!   since that much is lost at most by what is easily put right later; or if after 256 pairs not even one deviation speaks for the other;
//! - after [`PAIRS_MAX`] pairs, the way instead if it gained a percent on average, and a deviation;
//! - where classes mix, either way as soon as it looks better by [`EARLY`], not before [`PAIRS_MIN`] pairs. What each tries is the other's noise, so by the bound it takes twice as
//!   many pairs, half of whose requests go a way that is known to be dear by then. Two classes in all rows of `choice/rows.rs` at all times, 3,360
//!   runs: 110 below 0.99 of the better column, 151 where the bound decides; with classes of unlike sizes 319 and 461. (A gain of a tenth
//!   instead of a fifth leaves fewer, but decides more wrongly where half of the requests are cut, at much noise: `--kernel half --noise 0.5`.)
//!
//! When times change (`watch`):
//! - Requests that go the leading way have become dearer than the other way was when it was last tried, by more than chance explains:
//!   that is seen without trying anything, and what they cost now is one half of a pair at once. What was found out counts no more.
//!   But who had decided may be quicker to decide the same again: most alarms come of times that rise and fall for both ways, and a change that
//!   matters shows in the next pairs. So the old decision stands as soon as [`STANDS`] deviations speak for it. (Not where classes mix: what
//!   another class tries at the moment would count.) The next alarm takes twice as much then.
//! - While trying: newer pairs lie off the others, by Page's test. The others count no more.
//! - When settled, a pair is made so rarely that the other way costs a quarter of a percent of the time at most, and that what it costs
//!   besides (a copy, the dearer the larger it is) is less than half a percent of that. (What it costs others in whose way it is counts as well: where
//!   a device does one after the other, a request's wait is the work of all that are under way, and of what it takes more itself its own
//!   class is seen to pay that class's part.) If by Page's test pairs point the other way, the class
//!   is tried anew.
//! - Where two classes of a question are both alarmed that were not decided oppositely, the second joins the first: what its requests pay is the
//!   first one's from then on, and they go as that has it. Each would take for a difference of its own ways what the other tries in the meantime.
//!   When that is decided the second has its own pairs, and is led by what was found: it may be another's gain that both saw.
//!
//! What a change costs is what goes the old way until it is decided. `blockwork reproduce linearize --kernel broken-later --change-at 0.25
//! --noise 0`, the mail server with 8 threads, whose reads and writes are two classes, seeds 1 to 10: the change comes at request 10,080 of 40,000 and
//! is noticed 65 to 140 requests later. What comes of it is 0.995 to 0.997 of the better column. (0.981 to 0.996 where neither joins the other: in
//! three of the ten each misled the other for 1,000 to 1,500 requests.) Whoever knew it at once would get 1.002, and 0.0033 less for each hundred
//! requests that go the old way: 0.99 leaves 370. Where a kernel changes for one of the two only, it costs both more to join: `choice/rows.rs` has figures.
//! Tried, and no better: that one class waits until the other has decided (what waits goes the old way), that who decides first has the
//! other believe the same by less evidence, that classes join while they are tried for the first time (where they differ, they mislead each
//! other for long), and that what was found together is proved by both.
//!
//! What cannot be noticed at once: that the other way has become cheaper. With a gain of g, pairs whose deviation is d, and a pair for
//! each s requests it takes about 6 d s / g requests, and costs 6 d s of what they cost: s is 256 requests of the other way, 32 where that is
//! the usual one, and more where it was much dearer before, or requests are large.

use super::evidence::{Estimate, Evidence, Pair};
use super::watch::{Page, WINDOW, Watch};

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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) way: Way,
    /// Whether it was sent that way for the sake of the comparison, against what is decided or leads.
    pub(crate) is_trial: bool,
    /// The measurement that it was started in; 0: none.
    sum: u32,
    /// What it was started in (`Rule::number`).
    number: u32,
    /// What a request had paid by then that was under way always.
    paid: f64,
}

/// No decision on fewer pairs; but on two where one way is more than three times as dear, and by the bound of two (one stall makes no such pairs).
const PAIRS_MIN: u32 = 4;
/// After an alarm, which is evidence as well.
const PAIRS_ALARMED: u32 = 2;
const PLAIN: (u32, f64) = (2, 1.0);
/// A decision after that many, whatever they say.
const PAIRS_MAX: u32 = 2048;
/// No decision for the usual way by two deviations on fewer pairs, nor for want of a single one the other way.
const PAIRS_LAX: (u32, u32) = (16, 256);
/// After an alarm, what was decided stands if so many deviations say so.
const STANDS: f64 = 2.0;
/// While trying, from so many pairs on, Page's test on whether newer ones tell of other times: what one counts for at most, in
/// deviations, the slack, the alarm.
const CHANGED_PAIRS: u32 = 8;
const CHANGED: (f64, f64, f64) = (4.0, 0.5, 6.0);
/// When settled, likewise, on whether the other way is better; the slack is a part of the cost.
const CONTRARY: (f64, f64, f64) = (3.0, WORTH, 6.0);
/// When settled, so many pairs tell how much they vary.
const DEVIATION_PAIRS: u32 = 8;
/// While trying, requests of the leading way are watched from so many pairs on.
const WATCHED_PAIRS: u32 = 16;
/// What the way instead has to gain to be worth its price.
const WORTH: f64 = 0.005;
/// Measured requests in a block, at least; where more are under way, more than those. So many times more for every four pairs, at most
/// eight times: where a decision takes long, fewer requests are in vain that are under way while ways change.
const SAMPLES_MIN: u32 = 2;
const LONGER_MAX: u32 = 16;
/// Where classes mix, a decision by a gain of that part, and so many deviations, wide ones.
const EARLY: (f64, f64) = (0.2, 2.5);
/// What part of those under way a class has is known from so many requests of pairs, and is no less than that.
const PART: (f64, f64) = (64.0, 0.1);
/// Stretches while trying, in pairs: one more for every eight pairs, at most so many. What is undecided after as many differs little, or is
/// decided but for a rare mistake: it needs no hurry, and costs little so.
const STRETCH_MAX: u32 = 15;
/// So many times what the other way costs is seen at once.
const DEAR: f64 = 2.0;
/// The way instead leads before it is decided if its gain is so many deviations, and worth its price.
const LEADS: f64 = 0.5;
/// What trying the other way may cost a settled class.
const SHARE: f64 = 0.0025;
/// Requests between pairs of a settled class, for each request that goes the other way: at least, where that is the way instead
/// (its price besides is not known) and where it is the usual one; and in all at most.
const STRETCH_SETTLED: (f64, f64) = (256.0, 32.0);
const SETTLED_MAX: f64 = 1_000_000.0;
/// Bytes from which on the price of the way instead, a copy, is worth so many more requests between pairs as the request is larger.
const LARGE: f64 = 32_768.0;
/// Requests of the class since others were under way as well, from which on it counts as being alone.
const ALONE: u32 = 64;

/// Where in its sequence of blocks the class is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// That many requests go the leading way.
    Stretch(u32),
    First,
    Second,
}

/// What is being measured: all that the class has paid from one moment to another, and what was done between them. Requests that are done
/// at one moment, as where answers come many at once, are counted together or not at all. Or what requests have paid that were started since.
#[derive(Clone, Copy, Debug)]
struct Sum {
    /// What the class had paid when it began, and when the last request was done that counts.
    from: f64,
    to: f64,
    /// These moments, as what a request has paid by then that was under way always.
    began: f64,
    last: f64,
    /// Nothing of the class was under way when it began: what is done at that very moment was started in it.
    idle: bool,
    bytes: f64,
    samples: u32,
}

impl Sum {
    /// Begun at that moment, when so much had been paid in all.
    fn at(moment: f64, paid: f64, idle: bool) -> Sum {
        Sum { from: paid, to: paid, began: moment, last: moment, idle, bytes: 0.0, samples: 0 }
    }
    /// What a byte cost.
    fn each(&self) -> f64 {
        (self.to - self.from) / self.bytes
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
    /// The number of that step, and the requests of before it that are under way still.
    number: u32,
    before: u32,
    /// Measured requests that the block needs, requests that it has had, and at most has.
    goal: u32,
    had: u32,
    most: u32,
    /// None: not yet, since requests are under way the other way, or such as nobody looked at.
    sum: Option<Sum>,
    /// The number of that measurement, and whether it is a sum of single requests.
    sums: u32,
    is_single: bool,
    /// Requests since others were under way as well.
    alone: u32,
    /// The class's part of what is under way, lately.
    part: f64,
    /// Requests of a class that has joined, which were under way before it did.
    joining: u32,
    first: f64,
    /// Requests of the pair that is under way that went against the leader.
    against: u32,
    flying: [u32; 2],
    /// What requests have paid that are done, less what had been paid when those under way were started.
    paid: f64,
    /// A request has come back. Those that were started at once with the first pay for part of their wait only.
    is_warm: bool,
    /// All pairs since it was last tried, or settled.
    evidence: Evidence,
    known: Pair,
    /// To what part of it that is known.
    known_to: f64,
    /// Requests of the leading way, while nothing is tried.
    watch: Watch,
    is_watching: bool,
    /// It is tried anew since these had become dearer.
    is_alarmed: bool,
    /// While trying: whether newer pairs lie above the others, or below.
    rise: [Page; 2],
    /// When settled: whether pairs point the other way, and what the deviation of one is.
    contrary: Page,
    deviation: f64,
    /// Bytes of a request, in the newest block.
    request: f64,
    settlements: u32,
    /// What was decided last, how often it was the opposite of what was decided before, and how often requests had become dearer.
    last: Option<Way>,
    changes: u32,
    alarms: u32,
}

impl Rule {
    pub(crate) fn new() -> Rule {
        Rule {
            settled: false,
            leader: Way::Usual,
            step: Step::First,
            // The way that may be much dearer is tried once per two pairs so, and not twice.
            way: Way::Instead,
            number: 0,
            before: 0,
            goal: SAMPLES_MIN,
            had: 0,
            most: most(SAMPLES_MIN),
            sum: None,
            sums: 0,
            is_single: false,
            alone: ALONE,
            part: 1.0,
            joining: 0,
            first: 0.0,
            against: 0,
            flying: [0; 2],
            paid: 0.0,
            is_warm: false,
            evidence: Evidence::default(),
            known: Pair::default(),
            known_to: 0.0,
            watch: Watch::default(),
            is_watching: false,
            is_alarmed: false,
            rise: [Page::default(); 2],
            contrary: Page::default(),
            deviation: 0.0,
            request: 0.0,
            settlements: 0,
            last: None,
            changes: 0,
            alarms: 0,
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

    /// What is left of the stretch that goes on, if it is watched; 0 in a pair.
    #[inline]
    pub(super) fn rest(&self) -> u32 {
        match self.step {
            Step::Stretch(left) if self.is_watching => left,
            _ => 0,
        }
    }

    /// Nobody looks at requests from now on, which go on as in the stretch. Returns what is left of that.
    pub(super) fn calms(&mut self) -> u32 {
        self.sum = None;
        self.rest()
    }

    /// So many requests of the stretch went by that nobody looked at.
    pub(super) fn calm_ends(&mut self, requests: u32) {
        if let Step::Stretch(left) = &mut self.step {
            // Something is left for the request that ends the stretch.
            *left = left.saturating_sub(requests).max(1);
        }
    }

    /// What a byte costs where times have changed so much that no whole window is needed to see it.
    pub(super) fn dear(&self) -> f64 {
        DEAR * self.own_and_other(self.known).1
    }

    /// It is tried anew since its requests had become dearer.
    #[inline]
    pub(super) fn is_alarmed(&self) -> bool {
        self.is_alarmed
    }

    /// Likewise, and no request was started since.
    pub(super) fn was_just_alarmed(&self) -> bool {
        self.is_alarmed && self.evidence.pairs() == 0 && self.had == 0
    }

    /// Whether it is tried anew, and what was decided of both before was not the opposite.
    pub(super) fn may_be_joined_by(&self, other: &Rule) -> bool {
        self.is_alarmed && (self.last == other.last || self.last.is_none() || other.last.is_none())
    }

    /// Its requests are another class's from now on. Returns how many of its own are under way.
    pub(super) fn joins(&mut self) -> u32 {
        self.step = Step::Stretch(u32::MAX);
        self.sum = None;
        self.flying[0] + self.flying[1]
    }

    /// The requests of another class are this one's from now on, which it is tried by anew; so many of before are under way. What a byte is
    /// known to cost then is what it costs on average of both, until pairs of its own have told.
    pub(super) fn is_joined(&mut self, under_way: u32) {
        self.forget();
        (self.joining, self.alone) = (under_way, ALONE);
        self.against = 0;
        self.begin(Step::First, self.way);
    }

    /// Its requests are its own again: it is tried by these, and that way leads.
    pub(super) fn parts(&mut self, way: Way) {
        self.leader = way;
        self.against = 0;
        self.begin(Step::First, way);
    }

    /// How often the decision was the opposite of the one before.
    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }
    /// How often it was tried anew since requests had become dearer.
    pub(crate) fn alarms(&self) -> u32 {
        self.alarms
    }

    /// A request of the class is about to be started, where `under_way` share the time. `is_known`: none of those is of a calm. `paid`: see
    /// [`Busy`](super::Busy).
    #[inline]
    pub(crate) fn start(&mut self, is_known: bool, under_way: u32, paid: f64) -> Ticket {
        let own = self.flying[0] + self.flying[1];
        let others = under_way.saturating_sub(own);
        let is_alone = !is_known || others <= self.joining;
        self.alone = if is_alone { self.alone.saturating_add(1) } else { 0 };
        if let Step::Stretch(left) = &mut self.step {
            *left -= 1;
            if *left == 0 {
                self.first_begins();
            }
        } else {
            self.part += (f64::from(own + 1) / f64::from(own + others + 1) - self.part) / PART.0;
            self.had += 1;
            if self.had > self.most {
                self.give_up();
            }
        }
        if !is_known {
            self.sum = None;
            self.number_anew();
        } else if self.sum.is_none() {
            self.measure(paid);
        }
        let is_trial = self.way != self.leader;
        self.against += u32::from(is_trial);
        self.flying[self.way as usize] += 1;
        self.paid -= paid;
        let sum = self.sum.map_or(0, |_| self.sums);
        Ticket { way: self.way, is_trial, sum, number: self.number, paid }
    }

    /// It is done; whether well, and what has been paid by now: what goes wrong says nothing.
    #[inline]
    pub(crate) fn done(&mut self, ticket: Ticket, well: bool, paid: f64, bytes: u64) {
        self.flying[ticket.way as usize] -= 1;
        self.before -= u32::from(ticket.number != self.number);
        self.paid += paid;
        self.is_warm = true;
        if self.is_single {
            return self.single_done(ticket, well, paid, bytes);
        }
        if !well {
            // The time since the last one that counts is left out.
            let in_all = self.paid_in_all(paid);
            if let Some(sum) = &mut self.sum {
                sum.from += in_all - sum.to;
                (sum.to, sum.last) = (in_all, paid);
            }
            return;
        }
        if let Some(sum) = self.sum.filter(|sum| paid > sum.last && self.is_enough(sum)) {
            self.measured(sum);
        }
        let in_all = self.paid_in_all(paid);
        match &mut self.sum {
            None => return self.measure(paid),
            Some(sum) if paid > sum.began || sum.idle => {
                (sum.to, sum.last) = (in_all, paid);
                sum.bytes += bytes as f64;
                sum.samples += 1;
            }
            Some(_) => return,
        }
        // Where nothing else is under way, nothing else is done at the same moment.
        if self.flying == [0, 0]
            && let Some(sum) = self.sum.filter(|sum| self.is_enough(sum))
        {
            self.measured(sum);
        }
    }

    fn single_done(&mut self, ticket: Ticket, well: bool, paid: f64, bytes: u64) {
        let Some(sum) = self.sum.as_mut().filter(|_| well && ticket.sum == self.sums) else { return };
        sum.to += paid - ticket.paid;
        sum.bytes += bytes as f64;
        sum.samples += 1;
        let sum = *sum;
        if self.is_enough(&sum) {
            self.measured(sum);
        }
    }

    fn is_enough(&self, sum: &Sum) -> bool {
        match self.step {
            Step::Stretch(_) => {
                self.is_watching && sum.samples >= WINDOW.max(self.flying[0] + self.flying[1])
            }
            Step::First | Step::Second => sum.samples >= self.goal || self.is_far_off(sum),
        }
    }

    /// A block has become so dear that it is not worth its length: times have changed in it, or just before. Not for a single stall.
    fn is_far_off(&self, sum: &Sum) -> bool {
        let usual = self.known.usual.max(self.known.instead);
        sum.samples >= WINDOW.max(self.round()) && usual > 0.0 && sum.each() > DEAR * usual
    }

    /// As much was measured as a window or a block needs.
    fn measured(&mut self, sum: Sum) {
        match self.step {
            Step::Stretch(_) => {
                self.sum = Some(Sum::at(sum.last, sum.to, self.flying == [0, 0]));
                _ = self.window_done(sum.each());
            }
            Step::First | Step::Second => {
                self.request = sum.bytes / f64::from(sum.samples);
                self.block_done(sum.each());
                if self.step == Step::First && !self.is_single {
                    // The next pair goes on where this one ends.
                    self.sum = Some(Sum::at(sum.last, sum.to, self.flying == [0, 0]));
                }
            }
        }
    }

    /// Begins to measure, unless requests are under way the other way; a block, unless any of before it are.
    fn measure(&mut self, paid: f64) {
        let waits_for = match self.step {
            Step::First | Step::Second if !self.is_single => self.before,
            _ => self.flying[self.way.other() as usize],
        };
        if self.is_warm && waits_for == 0 {
            if !matches!(self.step, Step::Stretch(_)) {
                self.set_goal();
            }
            self.sums = self.sums.wrapping_add(1).max(1);
            self.sum = Some(Sum::at(paid, self.paid_in_all(paid), self.flying == [0, 0]));
        }
    }

    /// What the class has paid, with those under way.
    fn paid_in_all(&self, paid: f64) -> f64 {
        self.paid + f64::from(self.flying[0] + self.flying[1]) * paid
    }

    fn begin(&mut self, step: Step, way: Way) {
        (self.step, self.way) = (step, way);
        self.number_anew();
        (self.had, self.goal) = (0, 0);
        self.set_goal();
        self.sum = None;
        if step != Step::Second {
            // Both halves of a pair are measured the same way.
            self.is_single = self.alone < ALONE;
        }
    }

    /// What is under way was started before.
    fn number_anew(&mut self) {
        (self.number, self.before) = (self.number.wrapping_add(1), self.flying[0] + self.flying[1]);
    }

    /// A pair begins behind a stretch: its first block where the newest window began.
    fn first_begins(&mut self) {
        let sum = self.sum.filter(|_| self.is_watching);
        self.begin(Step::First, self.way);
        self.sum = sum.filter(|_| !self.is_single);
    }

    /// When a block begins, and when its measurement does: then those are under way that are looked at, where just after a calm none are.
    fn set_goal(&mut self) {
        let goal = if self.settled { self.round() } else { self.round() * self.longer() };
        self.goal = self.goal.max(goal);
        self.most = most(self.goal);
    }

    fn longer(&self) -> u32 {
        (1 + self.evidence.pairs() / 4).min(LONGER_MAX)
    }

    /// More than are under way, with the one that is about to be: where answers come many at once, fewer may be those of one moment, and
    /// of a part of the time that a round takes. A pair whose price decides when the next one is made has no more.
    fn round(&self) -> u32 {
        SAMPLES_MIN.max(self.flying[0] + self.flying[1] + 2)
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

    fn block_done(&mut self, each: f64) {
        if self.step == Step::First {
            self.first = each;
            self.begin(Step::Second, self.way.other());
            return;
        }
        self.joining = 0;
        let pair = match self.way {
            Way::Instead => Pair { usual: self.first, instead: each },
            Way::Usual => Pair { usual: each, instead: self.first },
        };
        if self.settled { self.look_again(pair) } else { self.look(pair) }
    }

    /// A pair has been made while trying.
    fn look(&mut self, pair: Pair) {
        if self.tells_of_other_times(pair) {
            self.forget();
        }
        self.evidence.push(pair, self.goal);
        let (against, pairs) = (self.against.max(1), self.evidence.pairs());
        self.known = self.evidence.mean().unwrap_or_default();
        let Some(it) = self.evidence.estimate() else { return self.stretch(0) };
        self.known_to = 2.0 * it.error;
        let is_plain = pairs >= PLAIN.0 && it.gain.abs() > PLAIN.1.max(it.half_width);
        let is_lax = (pairs >= PAIRS_LAX.0 && it.gain + 2.0 * it.wide_error < WORTH)
            || (pairs >= PAIRS_LAX.1 && it.gain < it.error);
        let least = if self.is_alarmed { PAIRS_ALARMED } else { PAIRS_MIN };
        let is_early =
            self.is_single && pairs >= PAIRS_MIN && it.gain.abs() > EARLY.0.max(EARLY.1 * it.wide_error);
        let decision = if is_early {
            Some(if it.gain > 0.0 { Way::Instead } else { Way::Usual })
        } else if pairs < least && !is_plain {
            None
        } else if self.still_stands(it) {
            self.last
        } else if it.gain > it.half_width && it.gain > WORTH {
            Some(Way::Instead)
        } else if it.gain + it.half_width < WORTH || is_lax {
            Some(Way::Usual)
        } else if pairs >= PAIRS_MAX {
            Some(if it.gain > it.error.max(2.0 * WORTH) { Way::Instead } else { Way::Usual })
        } else {
            None
        };
        let before = self.leader;
        self.leader = match decision {
            Some(way) => way,
            // While nobody knows, the usual way, but for the sake of knowing.
            None if it.gain > WORTH.max(LEADS * it.error) => Way::Instead,
            None => Way::Usual,
        };
        if decision.is_some() {
            return self.settle();
        }
        if pairs >= WATCHED_PAIRS && (!self.is_watching || self.leader != before) {
            self.begin_to_watch();
        }
        // With all that went while ways changed.
        let pair = 2 * against;
        self.stretch(pair * (pairs / 8).min(STRETCH_MAX));
    }

    /// Whether what was decided before an alarm is to be believed again.
    fn still_stands(&self, it: Estimate) -> bool {
        let by = STANDS * it.wide_error;
        let stands = match self.last {
            Some(Way::Usual) => it.gain + by < WORTH,
            Some(Way::Instead) => it.gain > by,
            None => false,
        };
        stands && self.is_alarmed && !self.is_single
    }

    /// Whether the pair, with those just before it, lies off the others.
    fn tells_of_other_times(&mut self, pair: Pair) -> bool {
        if self.evidence.pairs() < CHANGED_PAIRS {
            return false;
        }
        let (Some(all), Some(deviation)) = (self.evidence.estimate(), self.evidence.deviation(self.goal))
        else {
            return false;
        };
        let off = (pair.gain() - all.gain) / deviation;
        let (most, slack, alarm) = CHANGED;
        let [above, below] = &mut self.rise;
        let sums = [above.add(off, most, slack), below.add(-off, most, slack)];
        sums.iter().any(|sum| *sum > alarm)
    }

    /// What was found out counts no more.
    fn forget(&mut self) {
        self.evidence.clear();
        self.rise = Default::default();
        self.is_watching = false;
    }

    /// The leader is decided.
    fn settle(&mut self) {
        let against = self.against.max(1);
        self.settled = true;
        self.settlements += 1;
        let repeated = self.last == Some(self.leader);
        self.changes += u32::from(self.last.is_some() && !repeated);
        match std::mem::take(&mut self.is_alarmed) {
            true if repeated => self.watch.was_in_vain(),
            _ if !repeated => self.watch.was_right(),
            _ => {}
        }
        self.last = Some(self.leader);
        self.begin_to_watch();
        self.deviation = self.evidence.deviation(self.round()).unwrap_or_default();
        self.contrary = Page::default();
        self.evidence.clear();
        self.settled_stretch(against, self.known);
    }

    /// A pair has been made in a settled class.
    fn look_again(&mut self, pair: Pair) {
        let against = self.against.max(1);
        self.evidence.push(pair, self.goal);
        if self.evidence.pairs() >= DEVIATION_PAIRS {
            self.deviation = self.evidence.deviation(self.goal).unwrap_or(self.deviation);
        }
        self.known = self.known.toward(pair, 2.0 * self.deviation);
        let gain = if self.leader == Way::Instead { -pair.gain() } else { pair.gain() };
        let (most, slack, alarm) = CONTRARY;
        let sum = self.contrary.add(gain / self.deviation, most, slack / self.deviation);
        if sum > alarm {
            self.settled = false;
            self.forget();
            return self.stretch(0);
        }
        self.settled_stretch(against, pair);
    }

    /// `pair`: what both ways cost, as far as was seen last.
    fn settled_stretch(&mut self, against: u32, pair: Pair) {
        let loss = |pair| match self.own_and_other(pair) {
            (own, other) if own > 0.0 => (other / own - 1.0).max(0.0),
            _ => 0.0,
        };
        // A stall the other way is not to keep that from being tried for long, nor one this way to have it tried too often: what has
        // really changed is known after a few pairs.
        let known = loss(self.known);
        let loss = loss(pair).clamp(known / 4.0, 4.0 * known);
        let least = match self.leader {
            Way::Usual => STRETCH_SETTLED.0 * (self.request / LARGE).max(1.0),
            Way::Instead => STRETCH_SETTLED.1,
        };
        let part = if self.is_single { self.part.max(PART.1) } else { 1.0 };
        let requests = f64::from(against) * (loss / part / SHARE).max(least);
        // In range: the least is 32.
        self.stretch(requests.min(SETTLED_MAX) as u32);
    }

    fn own_and_other(&self, pair: Pair) -> (f64, f64) {
        match self.leader {
            Way::Usual => (pair.usual, pair.instead),
            Way::Instead => (pair.instead, pair.usual),
        }
    }

    /// From now on requests of the leading way are watched.
    fn begin_to_watch(&mut self) {
        let (own, other) = self.own_and_other(self.known);
        self.is_watching = own > 0.0 && other > 0.0;
        if self.is_watching {
            // A pair's difference varies as two blocks do. Neighbours vary less than requests far apart: a half more.
            let window = self.evidence.deviation(2 * WINDOW).unwrap_or_default();
            self.watch.begin(own / other - 1.0, 1.5 * window);
        }
    }

    /// A window of the leading way has been measured: whether it is so much dearer than the other way was that this is tried.
    #[inline]
    pub(super) fn window_done(&mut self, each: f64) -> bool {
        let (_, other) = self.own_and_other(self.known);
        let is_alarm = self.watch.window(each, other, self.known_to);
        if is_alarm {
            self.alarm();
        }
        is_alarm
    }

    /// Requests have become dearer than the other way was: is it still?
    #[cold]
    fn alarm(&mut self) {
        self.alarms += 1;
        if std::mem::replace(&mut self.is_alarmed, true) {
            // Before anything came out.
            self.watch.was_in_vain();
        }
        self.forget();
        self.settled = false;
        self.against = 0;
        self.first = self.watch.cost();
        self.begin(Step::Second, self.leader.other());
    }
}

/// Requests in a block, at most: of those that are under way the other way when it begins one may never come to its end.
fn most(goal: u32) -> u32 {
    64 * goal + 1024
}
