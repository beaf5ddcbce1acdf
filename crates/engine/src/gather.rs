//! Whether to wait a moment for more to come, so that one wake-up serves many requests.
//!
//! A server that is faster than its client or its disk is woken for every single request or completion, and pays a system
//! call and a context switch for each. Sleeping up to [`PAUSE_MAX`] longer lets several gather. For a client with
//! many requests under way that costs nothing; one with a single request waits for nothing. No count of requests tells the
//! two apart from outside, so it is measured: for [`TRIAL`] turns without pauses and as many with them, how many bios
//! finish in how much time. The pause is kept unless it made that slower by more than [`TOLERANCE`]; the verdict holds for
//! a growing number of turns, then it is tried again.
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
/// Turns in which something finished that make up one side of a trial.
const TRIAL: u32 = 16;
/// Turns that a verdict holds, at first and at most.
const HOLD_MIN: u32 = 256;
const HOLD_MAX: u32 = 8192;
/// How much slower pauses may be, as a share: 1/16. They save processor time, so a draw goes to them.
const TOLERANCE: u64 = 16;
/// A turn counts for at most this much time: a client that thinks for a while says nothing about pauses.
const TURN_MAX: Nanos = Nanos::millis(1);

/// Turns in a row that make a lone client.
const LONE: u32 = 16;

/// What is being found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// How fast it goes without pauses.
    Without,
    /// How fast it goes with them.
    With,
    /// The verdict holds for so many more turns.
    Hold { pause: bool, turns: u32 },
}

/// Bios that finished, and the time that took.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    turns: u32,
    bios: u64,
    time: u64,
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
    without: Rate,
    current: Rate,
    hold: u32,
    last_verdict: bool,
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
            phase: Phase::Without,
            without: Rate::default(),
            current: Rate::default(),
            hold: HOLD_MIN,
            last_verdict: false,
            turn_started: Nanos(0),
            finished: 0,
            port: None,
            lone_turns: 0,
        }
    }

    /// A bio was finished in this turn, for that port.
    #[inline]
    pub(crate) fn finished(&mut self, port: PortId) {
        self.finished += 1;
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
        let company = finished > 0 && in_flight == 0;
        let pause = match self.phase {
            Phase::Without => false,
            Phase::With => true,
            Phase::Hold { pause, .. } => pause,
        };
        if company && pause {
            Wait::Gather { completions: ENOUGH, for_at_most: PAUSE_MAX }
        } else if self.lone_turns >= LONE && in_flight <= 1 {
            // A single client that asks for one thing at a time asks for the next when it has been answered, and a fast device
            // answers soon. With several clients the processor is better left to them.
            soon(in_flight)
        } else {
            Wait::Until(None)
        }
    }

    fn book(&mut self, bios: u64, time: u64) {
        if let Phase::Hold { pause, turns } = self.phase {
            self.phase = match turns.checked_sub(1) {
                Some(turns) => Phase::Hold { pause, turns },
                None => Phase::Without,
            };
            return;
        }
        self.current.turns += 1;
        self.current.bios += bios;
        self.current.time += time;
        if self.current.turns < TRIAL {
            return;
        }
        let rate = std::mem::take(&mut self.current);
        if self.phase == Phase::Without {
            self.without = rate;
            self.phase = Phase::With;
            return;
        }
        // As many turns each: a pause in which no more finished than without it gathers nothing, whatever the time says
        // (one turn that the scheduler held up outweighs all others).
        let pause = rate.bios > self.without.bios && !is_slower(rate, self.without);
        self.hold = if pause == self.last_verdict { (self.hold * 2).min(HOLD_MAX) } else { HOLD_MIN };
        self.last_verdict = pause;
        self.phase = Phase::Hold { pause, turns: self.hold };
    }
}

/// With so many requests at the devices.
fn soon(in_flight: u32) -> Wait {
    Wait::Soon { of: if in_flight == 0 { Awaited::Client } else { Awaited::Device }, until: None }
}

/// Whether `with` is slower than `without` by more than the tolerance.
fn is_slower(with: Rate, without: Rate) -> bool {
    // bios/time compared crosswise, so that no division rounds: with < without * (1 - 1/TOLERANCE).
    let ours = u128::from(with.bios) * u128::from(without.time) * u128::from(TOLERANCE);
    let theirs = u128::from(without.bios) * u128::from(with.time) * u128::from(TOLERANCE - 1);
    ours < theirs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A closed loop: `depth` requests, each `service` ns of the server's time, answered in batches. Gives the share of
    /// the last turns in which the gatherer paused.
    fn share_of_pauses(depth: u64, service: u64, client: u64) -> f64 {
        let mut gatherer = Gatherer::new(Waiting::Measured);
        let mut now = Nanos(0);
        let mut pauses = 0;
        const TURNS: u32 = 20_000;
        for turn in 0..TURNS {
            // Before the wait: how many requests come in the time slept, one each `client` ns, at most `depth`.
            let (slept, came) = match gatherer.wait(now, 0) {
                Wait::Gather { for_at_most, .. } => {
                    pauses += u32::from(turn >= TURNS / 2);
                    (for_at_most.0, (for_at_most.0 / client).clamp(1, depth))
                }
                _ => (client, 1),
            };
            now = now + Nanos(slept + came * service);
            (0..came).for_each(|_| gatherer.finished(PortId(0)));
        }
        f64::from(pauses) / f64::from(TURNS / 2)
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
    fn nothing_is_gathered_while_a_device_works() {
        let mut gatherer = Gatherer::new(Waiting::Measured);
        for turn in 0..20_000u64 {
            (0..8).for_each(|_| gatherer.finished(PortId(0)));
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
                gatherer.finished(PortId(turn % clients));
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
        gatherer.finished(PortId(1));
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
        gatherer.phase = Phase::Hold { pause: true, turns: 9 };
        for (at, gathers) in [(70_000, false), (90_000, true)] {
            gatherer.finished(PortId(0));
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
