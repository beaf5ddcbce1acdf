//! Which way to wait serves the clients best: each is tried in turn, by how many bios finish in how much time.
//!
//! A pause is kept unless it made that slower by more than [`TOLERANCE`]; looking has to make it faster by [`WORTH`], or, for one request
//! under way, by [`WORTH_ALONE`]; for more of them less is enough where it takes hardly more of the processor ([`WORTH_CHEAP`]), which takes several
//! trials to tell. The verdict holds for a growing time, then it is tried again; sooner where it goes much slower than in its trial, or a turn has
//! come to have so much more or less to do that it is another load.
//!
//! With one request under way it matters most whether client and server share a processor, and that follows from how we wait: who looks
//! drives the other away, which the kernel does in some 40 ms; who sleeps is brought together with it, in some 80. Reads of a file at
//! depth 1 took 57 µs with a look, and 92 after 40 ms; then 155 asleep, and 75 after 80 ms (a virtual machine of two processors). So the
//! sides of such a trial are long ([`SETTLES_ALONE`]), unless they are decided at once, and rare.

use crate::units::Nanos;

/// Turns in which something finished that make up one side of a trial, at least.
const TRIAL: u32 = 16;
/// And the time that they take together, at least.
const TRIAL_TIME: u64 = Nanos::millis(2).0;
/// Turns with a pause that show that there is one request at a time.
const ENOUGH_ALONE: u32 = 8;
/// Time at the beginning of a side that does not count: what has gathered while it was waited the other way is done in it.
const SETTLES: u64 = Nanos::micros(300).0;
/// The same for a client with one request under way: until the kernel has brought it and us together, or apart.
const SETTLES_ALONE: u64 = Nanos::millis(100).0;
/// How long a verdict holds, at first and at most: turns in which something finished count, for what they took.
const HOLD_MIN: u64 = Nanos::millis(25).0;
pub(super) const HOLD_MAX: u64 = Nanos::millis(200).0;
/// The same for a client with one request under way, each of which feels it when the other ways are tried.
const HOLD_MIN_ALONE: u64 = Nanos::millis(800).0;
const HOLD_MAX_ALONE: u64 = Nanos::millis(12_800).0;
/// A verdict is void if a turn has so many times more or less to do than in its trial, throughout [`HOLD_MIN`]. A client with one
/// request under way and one with 16 differ by more; of one client it differs by less.
const ANOTHER_LOAD: u64 = 4;
/// And if it was faster by so many halves. A client and a server that are equally fast find each other awake, until one of
/// them rests; what was best before it need not be best after it.
const SLOWER: u64 = 3;
/// How much slower pauses may be, as a share: 1/16. They save processor time, so a draw goes to them.
const TOLERANCE: u64 = 16;
/// How much faster looking has to be, as a share: 1/3. It takes as much of a processor as there is.
const WORTH: u64 = 3;
/// Of a client with one request under way, whose time is nothing but the wait.
const WORTH_ALONE: u64 = 8;
/// So much faster is enough where a bio takes hardly more of the processor: what comes within moments is found for about what being woken by it
/// costs. Over vhost-user a file is read faster by 17, 12, 4 % with 8, 16, 32 under way, for 10, 9, 1 % more of the processor.
const WORTH_CHEAP: f64 = 1. / 32.;
/// That much more, as a share.
const DEARER: f64 = 1. / 8.;
/// One trial does not tell so little from chance (one side of it and the next differ by 5 % of a disk's rate, and by 10 % of the processor's
/// time); an average over so many does, or over as many as there were of this load.
const TRIALS: u32 = 8;
/// Fewer say nothing.
const TRIALS_MIN: u32 = 2;
/// So much, as a logarithm, is the most that one of them says: a side that somebody held up is no worse than that, and where it is much faster it is
/// looked for without these.
const SAYS_AT_MOST: f64 = 0.5;
/// Loads of which it is remembered: what was found out of one is of use when its client comes again.
const LOADS: usize = 12;
/// Bios of a turn at most, on average, where one request is under way: it may be cut in two.
pub(super) const ALONE: u64 = 2;

/// Ways to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Asleep until something comes.
    Sleep,
    /// Asleep until much has come.
    Pause,
    /// Looking for it.
    Look,
}

/// What is being found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// How fast it goes this way.
    Try(Way),
    /// The verdict holds for so many more nanoseconds.
    Hold(Way, u64),
}

/// Bios that finished, and the time that took.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    turns: u32,
    bios: u64,
    time: u64,
    /// Of one side of a trial: the worker's processor time.
    processor: u64,
}

impl Rate {
    /// Whether it is above `num / den` of that rate.
    fn is_above(self, num: u64, den: u64, other: Rate) -> bool {
        // bios/time compared crosswise, so that no division rounds.
        let product = |a: u64, b: u64, c: u64| u128::from(a) * u128::from(b) * u128::from(c);
        product(self.bios, other.time, den) > product(other.bios, self.time, num)
    }

    /// Whether a turn had more to do, by so many times.
    fn has_turns_larger(self, times: u64, other: Rate) -> bool {
        self.bios * u64::from(other.turns) > times * other.bios * u64::from(self.turns)
    }

    fn is_another_load(self, other: Rate) -> bool {
        self.has_turns_larger(ANOTHER_LOAD, other) || other.has_turns_larger(ANOTHER_LOAD, self)
    }

    /// Whether it may be that of a client with one request under way.
    fn is_of_one(self) -> bool {
        self.bios <= ALONE * u64::from(self.turns)
    }

    /// Which of the [`LOADS`] it is, by the power of two of bios that a turn had: one at least, each.
    fn load(self) -> usize {
        let of_a_turn = self.bios / u64::from(self.turns);
        (of_a_turn.ilog2() as usize).min(LOADS - 1)
    }

    fn add(&mut self, bios: u64, time: u64) {
        self.turns += 1;
        self.bios += bios;
        self.time += time;
    }
}

/// What looking came to in several trials of a load, against the best other way: averages of the logarithms of how many times faster it was,
/// and how many times as much of the processor a bio took.
#[derive(Debug, Default)]
struct Looked {
    trials: u32,
    faster: f64,
    dearer: f64,
}

impl Looked {
    fn add(&mut self, looking: Rate, best: Rate) {
        let is_unknown = looking.processor == 0 || best.processor == 0;
        if is_unknown || looking.is_another_load(best) {
            return;
        }
        self.trials = (self.trials + 1).min(TRIALS);
        let weight = f64::from(self.trials);
        let times = |of: fn(Rate) -> u64| of(looking) as f64 / of(best) as f64;
        let bios = times(|rate| rate.bios);
        let into = |average: f64, times: f64| {
            average + (times.ln().clamp(-SAYS_AT_MOST, SAYS_AT_MOST) - average) / weight
        };
        self.faster = into(self.faster, bios / times(|rate| rate.time));
        self.dearer = into(self.dearer, times(|rate| rate.processor) / bios);
    }

    /// Whether it is somewhat faster for hardly more.
    fn pays(&self) -> bool {
        self.trials >= TRIALS_MIN && self.faster > WORTH_CHEAP.ln_1p() && self.dearer < DEARER.ln_1p()
    }
}

/// The trials of a worker.
#[derive(Debug)]
pub(super) struct Trials {
    pub(super) phase: Phase,
    /// Whether looking is one of the ways.
    may_look: bool,
    /// Time since this phase began: what was done before it may still have its effect on how fast it goes.
    settling: u64,
    /// Whether there is one client with one request under way, as far as is known: when a pause was tried, nothing more came.
    is_alone: bool,
    /// Of this side of the trial, or of the verdict in the last [`HOLD_MIN`].
    current: Rate,
    /// What the worker had used of its processor when this side began to count.
    processor_before: u64,
    /// The best of this trial so far; of a verdict, that and its rate when it was tried.
    best: (Way, Rate),
    looked: [Looked; LOADS],
    hold: u64,
    last_verdict: Way,
}

impl Trials {
    pub(super) fn new(may_look: bool) -> Trials {
        Trials {
            phase: Phase::Try(Way::Sleep),
            may_look,
            settling: 0,
            is_alone: false,
            current: Rate::default(),
            processor_before: 0,
            best: (Way::Sleep, Rate::default()),
            looked: Default::default(),
            hold: HOLD_MIN,
            last_verdict: Way::Sleep,
        }
    }

    /// How to wait now.
    pub(super) fn way(&self) -> Way {
        match self.phase {
            Phase::Try(way) | Phase::Hold(way, _) => way,
        }
    }

    /// So many bios have finished in that time, waited for this way; whether all may be those of one client with one request under way.
    /// `processor`: the processor time that the worker has used, asked for at the ends of a side.
    pub(super) fn book(
        &mut self,
        bios: u64,
        time: u64,
        may_be_alone: bool,
        processor: impl FnOnce() -> Nanos,
    ) {
        self.is_alone &= may_be_alone;
        let is_new = self.settling < SETTLES;
        self.settling = self.settling.saturating_add(time);
        if is_new {
            if self.settling >= SETTLES && matches!(self.phase, Phase::Try(_)) {
                self.processor_before = processor().0;
            }
            return;
        }
        self.current.add(bios, time);
        match self.phase {
            Phase::Hold(way, left) => self.hold_on(way, left, time),
            Phase::Try(way) => self.go_on(way, processor),
        }
    }

    /// With a side of the trial, to the next if it is over.
    fn go_on(&mut self, way: Way, processor: impl FnOnce() -> Nanos) {
        // One request at a time does not become more by waiting, and all that while nothing else is done.
        let is_in_vain = way == Way::Pause && self.current.turns >= ENOUGH_ALONE && self.current.is_of_one();
        if !is_in_vain && (self.current.turns < TRIAL || self.current.time < TRIAL_TIME) {
            return;
        }
        let used = processor().0;
        let mut rate = std::mem::take(&mut self.current);
        rate.processor = used.saturating_sub(std::mem::replace(&mut self.processor_before, used));
        if !self.is_settled(way, rate) {
            return;
        }
        self.compare(way, rate);
        match way {
            Way::Sleep => self.begin(Phase::Try(Way::Pause)),
            Way::Pause => {
                self.is_alone = is_in_vain;
                let next = if self.may_look { Phase::Try(Way::Look) } else { self.judge() };
                self.begin(next);
            }
            Way::Look => {
                let verdict = self.judge();
                self.begin(verdict);
            }
        }
    }

    fn begin(&mut self, phase: Phase) {
        (self.phase, self.settling, self.current) = (phase, 0, Rate::default());
    }

    /// Whether `rate` is what this way comes to in the end, or says enough.
    fn is_settled(&self, way: Way, rate: Rate) -> bool {
        let (_, best) = self.best;
        // Looking is at its best at once: what is slower then need not go on.
        let is_decided = way == Way::Pause || way == Way::Look && best.is_above(1, 1, rate);
        is_decided || self.has_settled()
    }

    /// Whether what was done before this phase has had all its effect.
    fn has_settled(&self) -> bool {
        !self.is_alone || self.settling >= SETTLES_ALONE
    }

    fn hold_on(&mut self, way: Way, left: u64, time: u64) {
        self.phase = Phase::Hold(way, left.saturating_sub(time));
        let mut is_over = left <= time;
        if self.current.time >= HOLD_MIN {
            let lately = std::mem::take(&mut self.current);
            let (_, tried) = self.best;
            if lately.is_another_load(tried) || self.has_settled() && tried.is_above(SLOWER, 2, lately) {
                // The same verdict makes it longer.
                (is_over, self.hold) = (true, HOLD_MIN / 2);
            }
        }
        if is_over {
            self.begin(Phase::Try(Way::Sleep));
        }
    }

    /// A side of the trial is over.
    fn compare(&mut self, way: Way, rate: Rate) {
        let (_, best) = self.best;
        let is_better = match way {
            Way::Sleep => true,
            // A pause whose turns have no more to do than those without it gathers nothing, whatever the time says
            // (one turn that the scheduler held up outweighs all others).
            Way::Pause => rate.has_turns_larger(1, best) && rate.is_above(TOLERANCE - 1, TOLERANCE, best),
            // Rarely tried, so that several trials take minutes.
            Way::Look if best.is_of_one() => rate.is_above(WORTH_ALONE + 1, WORTH_ALONE, best),
            Way::Look => {
                let looked = &mut self.looked[best.load()];
                looked.add(rate, best);
                rate.is_above(WORTH + 1, WORTH, best) || looked.pays()
            }
        };
        if is_better {
            self.best = (way, rate);
        }
    }

    fn judge(&mut self) -> Phase {
        let (way, rate) = self.best;
        let (times, min, max) =
            if rate.is_of_one() { (4, HOLD_MIN_ALONE, HOLD_MAX_ALONE) } else { (2, HOLD_MIN, HOLD_MAX) };
        self.hold = if way == self.last_verdict { (self.hold * times).clamp(min, max) } else { min };
        self.last_verdict = way;
        Phase::Hold(way, self.hold)
    }
}
