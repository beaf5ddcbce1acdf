//! How to wait for what comes next: asleep at once, asleep for a moment longer so that one wake-up serves many requests, or looking.
//!
//! A server that is faster than its client or its disk is woken for every single request or completion, and pays a system
//! call and a context switch for each. Sleeping up to [`PAUSE_MAX`] longer lets several gather. For a client with
//! many requests under way that costs nothing; one with a single request waits for nothing. Looking for the next requests
//! spares both sides their wake-ups, which take longer than a batch does; but it takes a processor, which is well spent only where
//! the client is waiting for us. No count of requests tells these apart from outside, so it is measured: for [`TRIAL`] turns and
//! [`TRIAL_TIME`] each way, how many bios finish in how much time. The pause is kept unless it made that slower by more than
//! [`TOLERANCE`]; looking has to make it faster by [`WORTH`]. The verdict holds for a growing time, then it is tried again; sooner
//! where it goes much slower than in its trial, or a turn has come to have so much more or less to do that it is another load.
//!
//! While devices have requests nothing is gathered: their completions come by themselves, and a pause that ends by its time
//! limit costs the timer that it takes (3 µs of processor per I/O on a disk with 60,000 I/O a second, in a virtual machine).
//!
//! Invariant: a worker with nothing under way sleeps without a time limit.

use crate::env::{Awaited, Wait};
use crate::port::PortId;
use crate::units::Nanos;

/// Longest pause. Small against the time that a client takes for a batch of requests. A client that spends 7 µs on each of 32
/// requests (fio with libnbd) costs 3.9 µs of the server's processor per I/O with 80, 4.2 with 40; 120 and 200 were no better.
const PAUSE_MAX: Nanos = Nanos::micros(80);
/// As many completions as end a pause early.
const ENOUGH: u32 = 16;
/// Turns in which something finished that make up one side of a trial, at least.
const TRIAL: u32 = 16;
/// And the time that they take together, at least.
const TRIAL_TIME: u64 = Nanos::millis(2).0;
/// Time at the beginning of a side that does not count: what has gathered while it was waited the other way is done in it.
const SETTLES: u64 = Nanos::micros(300).0;
/// How long a verdict holds, at first and at most: turns in which something finished count, for what they took.
const HOLD_MIN: u64 = Nanos::millis(25).0;
const HOLD_MAX: u64 = Nanos::millis(200).0;
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
/// A turn counts for at most this much time: a client that thinks for a while says nothing about pauses.
const TURN_MAX: Nanos = Nanos::millis(1);

/// Turns in a row that make a lone client.
const LONE: u32 = 16;

/// Ways to wait for clients, when nothing is under way at devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Asleep until something comes.
    Sleep,
    /// Asleep until much has come.
    Pause,
    /// Looking for it.
    Look,
}

/// What is being found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
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

    fn add(&mut self, bios: u64, time: u64) {
        self.turns += 1;
        self.bios += bios;
        self.time += time;
    }
}

/// How a worker waits for what comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// As saves processor time without slowing clients down: pauses where they make larger batches, looks for the next
    /// request of a lone client.
    #[default]
    Measured,
    /// While something is under way it looks before it sleeps: less latency for more processor time.
    Looking,
}

pub(crate) struct Gatherer {
    waiting: Waiting,
    phase: Phase,
    /// Of this side of the trial, what does not count.
    settling: u64,
    /// Of this side of the trial, or of the verdict in the last [`HOLD_MIN`].
    current: Rate,
    sleeping: Rate,
    pausing: Rate,
    hold: u64,
    last_verdict: Way,
    /// Of that way when it was tried.
    tried: Rate,
    turn_started: Nanos,
    /// Bios finished since then.
    finished: u64,
    /// The port that the last bio went to.
    port: Option<PortId>,
    /// Turns in a row in which one or two bios finished, all of that port.
    lone_turns: u32,
}

impl Gatherer {
    pub(crate) fn new(waiting: Waiting) -> Gatherer {
        Gatherer {
            waiting,
            phase: Phase::Try(Way::Sleep),
            settling: 0,
            current: Rate::default(),
            sleeping: Rate::default(),
            pausing: Rate::default(),
            hold: HOLD_MIN,
            last_verdict: Way::Sleep,
            tried: Rate::default(),
            turn_started: Nanos(0),
            finished: 0,
            port: None,
            lone_turns: 0,
        }
    }

    /// So many bios were finished in this turn, for that port.
    #[inline]
    pub(crate) fn finished(&mut self, port: PortId, bios: u64) {
        self.finished += bios;
        if self.port != Some(port) {
            self.port = Some(port);
            self.lone_turns = 0;
        }
    }

    /// A turn is over at `now`: how to wait for the next, with so many requests in flight at the devices, and a task that wants to
    /// go on at `timer`.
    pub(crate) fn wait_until(&mut self, now: Nanos, in_flight: u32, timer: Option<Nanos>) -> Wait {
        match self.wait(now, in_flight) {
            Wait::Gather { .. } if timer.is_some_and(|at| at < now + PAUSE_MAX) => Wait::Until(timer),
            Wait::Soon { of, .. } => Wait::Soon { of, until: timer },
            Wait::Until(_) => Wait::Until(timer),
            wait => wait,
        }
    }

    fn wait(&mut self, now: Nanos, in_flight: u32) -> Wait {
        if self.waiting == Waiting::Looking {
            let busy = std::mem::take(&mut self.finished) > 0 || in_flight > 0;
            return if busy { soon(in_flight) } else { Wait::Until(None) };
        }
        let took = now.since(self.turn_started).0.min(TURN_MAX.0);
        let finished = std::mem::take(&mut self.finished);
        self.turn_started = now;
        if finished > 0 {
            self.book(finished, took);
            self.lone_turns = if finished <= 2 { self.lone_turns.saturating_add(1) } else { 0 };
        }
        let answered = finished > 0 && in_flight == 0;
        // A single client that asks for one thing at a time asks for the next when it has been answered, and a fast device
        // answers soon. With several clients the processor is better left to them.
        let is_lone = self.lone_turns >= LONE && in_flight <= 1;
        match self.phase {
            Phase::Try(Way::Pause) | Phase::Hold(Way::Pause, _) if answered => {
                Wait::Gather { completions: ENOUGH, for_at_most: PAUSE_MAX }
            }
            _ if is_lone => soon(in_flight),
            Phase::Try(Way::Look) | Phase::Hold(Way::Look, _) if answered => {
                Wait::Soon { of: Awaited::Clients, until: None }
            }
            _ => Wait::Until(None),
        }
    }

    fn book(&mut self, bios: u64, time: u64) {
        let way = match self.phase {
            Phase::Hold(way, left) => {
                self.phase = self.hold_on(way, left, bios, time);
                return;
            }
            Phase::Try(_) if self.settling < SETTLES => {
                self.settling += time;
                return;
            }
            Phase::Try(way) => way,
        };
        self.current.add(bios, time);
        if self.current.turns < TRIAL || self.current.time < TRIAL_TIME {
            return;
        }
        let rate = std::mem::take(&mut self.current);
        self.settling = 0;
        self.phase = match way {
            Way::Sleep => {
                self.sleeping = rate;
                Phase::Try(Way::Pause)
            }
            Way::Pause => {
                self.pausing = rate;
                Phase::Try(Way::Look)
            }
            Way::Look => self.judge(rate),
        };
    }

    fn hold_on(&mut self, way: Way, left: u64, bios: u64, time: u64) -> Phase {
        self.current.add(bios, time);
        let (mut is_over, left) = (left <= time, left.saturating_sub(time));
        if self.current.time >= HOLD_MIN {
            let lately = std::mem::take(&mut self.current);
            if lately.is_another_load(self.tried) || self.tried.is_above(SLOWER, 2, lately) {
                // The same verdict doubles it.
                (is_over, self.hold) = (true, HOLD_MIN / 2);
            }
        }
        if !is_over {
            return Phase::Hold(way, left);
        }
        self.current = Rate::default();
        Phase::Try(Way::Sleep)
    }

    fn judge(&mut self, looking: Rate) -> Phase {
        let (sleeping, pausing) = (self.sleeping, self.pausing);
        // A pause whose turns have no more to do than those without it gathers nothing, whatever the time says
        // (one turn that the scheduler held up outweighs all others).
        let is_pause_right =
            pausing.has_turns_larger(1, sleeping) && pausing.is_above(TOLERANCE - 1, TOLERANCE, sleeping);
        let (asleep, rate) = if is_pause_right { (Way::Pause, pausing) } else { (Way::Sleep, sleeping) };
        let (way, rate) =
            if looking.is_above(WORTH + 1, WORTH, rate) { (Way::Look, looking) } else { (asleep, rate) };
        self.tried = rate;
        self.hold = if way == self.last_verdict { (self.hold * 2).min(HOLD_MAX) } else { HOLD_MIN };
        self.last_verdict = way;
        Phase::Hold(way, self.hold)
    }
}

/// With so many requests at the devices.
fn soon(in_flight: u32) -> Wait {
    Wait::Soon { of: if in_flight == 0 { Awaited::Client } else { Awaited::Device }, until: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many turns, each of which takes a time and finishes so many bios by how it was waited for: of the time of the last half, the
    /// share of pauses, and of looks.
    fn shares(turn: impl Fn(Wait) -> (u64, u64)) -> (f64, f64) {
        const TURNS: u32 = 40_000;
        let mut gatherer = Gatherer::new(Waiting::Measured);
        let mut now = Nanos(0);
        let (mut pauses, mut looks, mut all) = (0, 0, 0);
        let mut wait = Wait::Until(None);
        for number in 0..TURNS {
            let (took, bios) = turn(wait);
            if number >= TURNS / 2 {
                all += took;
                pauses += if matches!(wait, Wait::Gather { .. }) { took } else { 0 };
                looks += if matches!(wait, Wait::Soon { .. }) { took } else { 0 };
            }
            now = now + Nanos(took);
            gatherer.finished(PortId(0), bios);
            wait = gatherer.wait(now, 0);
        }
        let share = |time: u64| time as f64 / all as f64;
        (share(pauses), share(looks))
    }

    /// Of pauses, in a closed loop: `depth` requests, each `service` ns of the server's time, answered in batches. One comes each
    /// `client` ns.
    fn share_of_pauses(depth: u64, service: u64, client: u64) -> f64 {
        let came = |slept: u64| (slept / client).clamp(1, depth);
        let pause = (PAUSE_MAX.0 + came(PAUSE_MAX.0) * service, came(PAUSE_MAX.0));
        shares(|wait| if matches!(wait, Wait::Gather { .. }) { pause } else { (client + service, 1) }).0
    }

    #[test]
    fn a_lone_request_is_not_kept_waiting() {
        assert!(share_of_pauses(1, 3_000, 15_000) < 0.02);
    }

    #[test]
    fn a_client_with_many_requests_under_way_is_served_in_batches() {
        assert!(share_of_pauses(32, 3_000, 5_000) > 0.95);
    }

    #[test]
    fn a_few_requests_that_a_pause_would_only_delay_are_not_kept_waiting() {
        // Two requests come within 10 us; then the client waits for answers while we would sleep on.
        assert!(share_of_pauses(2, 3_000, 5_000) < 0.05);
    }

    #[test]
    fn who_waits_for_us_is_looked_for_if_that_is_much_faster() {
        // 32 requests come at once, 60 us after the answers if both have been asleep.
        let looked_for = |took: u64| {
            shares(|wait| match wait {
                Wait::Gather { .. } => (120_000, 32),
                Wait::Soon { .. } => (took, 32),
                _ => (100_000, 32),
            })
        };
        assert!(looked_for(60_000).1 > 0.95, "{:?}", looked_for(60_000));
        let little_faster = looked_for(90_000);
        assert!(little_faster.0 < 0.05 && little_faster.1 < 0.05, "{little_faster:?}");
    }

    #[test]
    fn a_client_that_takes_its_time_is_not_looked_for() {
        // One that spends 7 us on each of its requests, however it is waited for.
        let (pauses, looks) = shares(|wait| match wait {
            Wait::Gather { .. } => (84_000, 12),
            _ => (7_000, 1),
        });
        assert!(pauses > 0.95 && looks < 0.05, "{pauses} {looks}");
    }

    #[test]
    fn a_verdict_does_not_outlive_what_it_was_found_by() {
        // Looking pays, and then no more: each turn has less to do in the same time, or it takes longer.
        for (bios, takes) in [(4, 6_000), (32, 90_000)] {
            let mut gatherer = Gatherer::new(Waiting::Measured);
            let (mut now, mut wait) = (Nanos(0), Wait::Until(None));
            let mut turn = |bios: u64, looking: u64, not_looking: u64| {
                let looks = matches!(wait, Wait::Soon { .. });
                let took = if looks { looking } else { not_looking };
                now = now + Nanos(took);
                gatherer.finished(PortId(0), bios);
                wait = gatherer.wait(now, 0);
                (looks, gatherer.phase)
            };
            let holds = |phase| matches!(phase, Phase::Hold(Way::Look, left) if left > HOLD_MAX * 7 / 8);
            while !holds(turn(32, 50_000, 100_000).1) {}
            let turns = u32::try_from(HOLD_MAX / takes).expect("some thousands");
            let looked = (0..turns).filter(|_| turn(bios, takes, takes).0).count();
            assert!((1..turns as usize / 2).contains(&looked), "{looked} of {turns}, with {bios} in {takes}");
        }
    }

    #[test]
    fn nothing_is_gathered_while_a_device_works() {
        let mut gatherer = Gatherer::new(Waiting::Measured);
        for turn in 0..20_000u64 {
            gatherer.finished(PortId(0), 8);
            assert_eq!(gatherer.wait(Nanos(turn * 50_000), 4), Wait::Until(None));
        }
    }

    #[test]
    fn the_next_request_of_a_lone_client_is_looked_for_and_not_that_of_several() {
        for (clients, in_flight, expected) in
            [(1, 0, soon(0)), (1, 1, soon(1)), (1, 2, Wait::Until(None)), (2, 0, Wait::Until(None))]
        {
            let mut gatherer = Gatherer::new(Waiting::Measured);
            let mut last = Wait::Poll;
            for turn in 0..1000 {
                gatherer.finished(PortId(turn % clients), 1);
                last = gatherer.wait(Nanos(u64::from(turn) * 20_000), in_flight);
            }
            assert_eq!(last, expected);
        }
    }

    #[test]
    fn a_worker_that_is_to_look_does_so_while_something_is_under_way() {
        let mut gatherer = Gatherer::new(Waiting::Looking);
        assert_eq!(gatherer.wait(Nanos(0), 0), Wait::Until(None));
        assert_eq!(gatherer.wait(Nanos(0), 3), soon(3));
        gatherer.finished(PortId(1), 1);
        assert_eq!(gatherer.wait(Nanos(0), 0), soon(0));
        assert_eq!(gatherer.wait(Nanos(0), 0), Wait::Until(None));
    }

    #[test]
    fn whichever_way_it_waits_a_task_is_woken_in_time() {
        let mut gatherer = Gatherer::new(Waiting::Looking);
        let timer = Some(Nanos(70_000));
        assert_eq!(gatherer.wait_until(Nanos(0), 0, timer), Wait::Until(timer));
        let soon = Wait::Soon { of: Awaited::Device, until: timer };
        assert_eq!(gatherer.wait_until(Nanos(0), 3, timer), soon);
        let mut gatherer = Gatherer::new(Waiting::Measured);
        gatherer.phase = Phase::Hold(Way::Pause, HOLD_MAX);
        for (at, gathers) in [(70_000, false), (90_000, true)] {
            gatherer.finished(PortId(0), 1);
            let wait = gatherer.wait_until(Nanos(0), 0, Some(Nanos(at)));
            assert_eq!(matches!(wait, Wait::Gather { .. }), gathers, "{wait:?}");
        }
    }

    #[test]
    fn nothing_under_way_sleeps_without_a_limit() {
        let mut gatherer = Gatherer::new(Waiting::Measured);
        (0..100_000).for_each(|i| assert_eq!(gatherer.wait(Nanos(i), 0), Wait::Until(None)));
    }
}
