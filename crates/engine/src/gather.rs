//! How to wait for what comes next: asleep at once, asleep for a moment longer so that one wake-up serves many requests, or looking.
//!
//! A server that is faster than its client or its disk is woken for every single request or completion, and pays a system
//! call and a context switch for each. Sleeping up to [`PAUSE_MAX`] longer lets several gather. For a client with
//! many requests under way that costs nothing; one with a single request waits for nothing. Looking for the next requests
//! spares both sides their wake-ups, which take longer than a batch does; but it takes a processor, which is well spent only where
//! the client is waiting for us. No count of requests tells these apart from outside, so it is measured, each way in turn (`trial`).
//!
//! For a client with one request under way what the device does is looked for as well. That is not faster as a matter of course: where client,
//! server and the interrupts of the disk share a processor as long as each of them sleeps, a server that looks drives the client to
//! another one, and to wake that one takes longer. (Reads of a file at depth 1 over vhost-user, a virtual machine of two processors: on
//! one of them 76 µs asleep, with 0.3 of a processor, where looking takes 92 and a whole one; with a processor each, 188 and 95.)
//!
//! While devices have requests of several clients nothing is gathered: their completions come by themselves, and a pause that ends by its time
//! limit costs the timer that it takes (3 µs of processor per I/O on a disk with 60,000 I/O a second, in a virtual machine).
//!
//! Invariant: a worker with nothing under way sleeps without a time limit.

mod trial;

use crate::env::{Awaited, Wait};
use crate::port::PortId;
use crate::units::Nanos;
use trial::{ALONE, Trials, Way};

/// Longest pause. Small against the time that a client takes for a batch of requests. A client that spends 7 µs on each of 32
/// requests (fio with libnbd) costs 3.9 µs of the server's processor per I/O with 80, 4.2 with 40; 120 and 200 were no better.
const PAUSE_MAX: Nanos = Nanos::micros(80);
/// As many completions as end a pause early.
const ENOUGH: u32 = 16;
/// A turn counts for at most this much time: a client that thinks for a while says nothing about pauses.
const TURN_MAX: Nanos = Nanos::millis(1);

/// Turns in a row that make a lone client.
const LONE: u32 = 16;

/// How a worker waits for what comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// As saves processor time without slowing clients down: pauses where they make larger batches, looks for the next
    /// requests where that makes clients faster.
    #[default]
    Measured,
    /// The same without looks: for machines whose processors others need.
    Asleep,
    /// While something is under way it looks before it sleeps: less latency for more processor time.
    Looking,
}

pub(crate) struct Gatherer {
    waiting: Waiting,
    trials: Trials,
    /// The last turn in which something finished was over.
    last: Nanos,
    /// Bios finished since then.
    finished: u64,
    /// The port that the last bio went to.
    port: Option<PortId>,
    /// Turns in a row in which one or two bios finished, all of that port.
    lone_turns: u32,
}

impl Gatherer {
    pub(crate) fn new(waiting: Waiting) -> Gatherer {
        let trials = Trials::new(waiting == Waiting::Measured);
        Gatherer { waiting, trials, last: Nanos(0), finished: 0, port: None, lone_turns: 0 }
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
    /// go on at `timer`. `processor` tells the processor time that this worker has used; it is asked a few times in a trial.
    pub(crate) fn wait_until(
        &mut self,
        now: Nanos,
        in_flight: u32,
        timer: Option<Nanos>,
        processor: impl FnOnce() -> Nanos,
    ) -> Wait {
        match self.wait(now, in_flight, processor) {
            Wait::Gather { .. } if timer.is_some_and(|at| at < now + PAUSE_MAX) => Wait::Until(timer),
            Wait::Soon { of, .. } => Wait::Soon { of, until: timer },
            Wait::Until(_) => Wait::Until(timer),
            wait => wait,
        }
    }

    fn wait(&mut self, now: Nanos, in_flight: u32, processor: impl FnOnce() -> Nanos) -> Wait {
        let finished = std::mem::take(&mut self.finished);
        if self.waiting == Waiting::Looking {
            return if finished > 0 || in_flight > 0 { soon(in_flight) } else { Wait::Until(None) };
        }
        if finished > 0 {
            self.book(finished, now, processor);
        }
        let answered = finished > 0 && in_flight == 0;
        // A single client that asks for one thing at a time asks for the next when it has been answered, and a fast device
        // answers soon.
        let is_alone = self.lone_turns >= LONE && in_flight <= 1;
        match self.trials.way() {
            Way::Pause if answered => Wait::Gather { completions: ENOUGH, for_at_most: PAUSE_MAX },
            Way::Look if answered || is_alone => Wait::Soon { of: Awaited::Measured, until: None },
            _ => Wait::Until(None),
        }
    }

    fn book(&mut self, bios: u64, now: Nanos, processor: impl FnOnce() -> Nanos) {
        let took = now.since(self.last).0.min(TURN_MAX.0);
        self.last = now;
        self.lone_turns = if bios <= ALONE { self.lone_turns.saturating_add(1) } else { 0 };
        self.trials.book(bios, took, self.lone_turns >= LONE, processor);
    }
}

/// Of whom it comes, with so many requests at the devices: nobody has measured whether looking pays.
fn soon(in_flight: u32) -> Wait {
    Wait::Soon { of: if in_flight == 0 { Awaited::Client } else { Awaited::Device }, until: None }
}

#[cfg(test)]
mod tests {
    use super::trial::{HOLD_MAX, Phase};
    use super::*;

    /// Processor time of a worker that looks all the time of a turn, or sleeps two thirds of it.
    #[derive(Default)]
    struct Processor(u64);

    impl Processor {
        fn turn(&mut self, looks: bool, took: u64) -> impl FnOnce() -> Nanos + use<> {
            self.0 += if looks { took } else { took / 3 };
            let used = Nanos(self.0);
            move || used
        }
    }

    const fn unknown() -> Nanos {
        Nanos(0)
    }

    /// Many turns, each of which takes a time and finishes so many bios by how it was waited for: of the time of the last half, the
    /// share of pauses, and of looks.
    fn shares(turn: impl Fn(Wait) -> (u64, u64)) -> (f64, f64) {
        let used = |wait: Wait, took: u64| if matches!(wait, Wait::Soon { .. }) { took } else { took / 3 };
        shares_of(|wait| {
            let (took, bios) = turn(wait);
            (took, bios, used(wait, took))
        })
    }

    /// The same with the processor time that a turn takes.
    fn shares_of(mut turn: impl FnMut(Wait) -> (u64, u64, u64)) -> (f64, f64) {
        const TURNS: u32 = 40_000;
        let mut gatherer = Gatherer::new(Waiting::Measured);
        let mut now = Nanos(0);
        let (mut pauses, mut looks, mut all, mut used) = (0, 0, 0, 0);
        let mut wait = Wait::Until(None);
        for number in 0..TURNS {
            let (took, bios, processor) = turn(wait);
            used += processor;
            if number >= TURNS / 2 {
                all += took;
                pauses += if matches!(wait, Wait::Gather { .. }) { took } else { 0 };
                looks += if matches!(wait, Wait::Soon { .. }) { took } else { 0 };
            }
            now = now + Nanos(took);
            gatherer.finished(PortId(0), bios);
            wait = gatherer.wait(now, 0, || Nanos(used));
        }
        let share = |time: u64| time as f64 / all as f64;
        (share(pauses), share(looks))
    }

    #[test]
    fn who_is_to_sleep_never_looks_and_pauses_as_ever() {
        let mut gatherer = Gatherer::new(Waiting::Asleep);
        let (mut now, mut wait, mut pauses) = (Nanos(0), Wait::Until(None), 0);
        // A look would halve the time, and a pause doubles what is done in it.
        for bios in [1, 32] {
            for _ in 0..40_000 {
                assert!(!matches!(wait, Wait::Soon { .. }), "{wait:?}");
                let is_pause = matches!(wait, Wait::Gather { .. });
                pauses += u32::from(is_pause && bios > 1);
                now = now + Nanos(60_000);
                gatherer.finished(PortId(0), if is_pause && bios > 1 { 2 * bios } else { bios });
                wait = gatherer.wait(now, 0, unknown);
            }
        }
        assert!(pauses > 35_000, "{pauses}");
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

    /// Of looks, where a turn varies by a tenth either way, and one that was looked for takes so many times the time and the processor.
    fn share_of_looks_by_chance(time: f64, processor: f64) -> f64 {
        let mut turn = 0_u64;
        let chance = |turn: u64| {
            0.9 + 0.2 * (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1 << 24) as f64
        };
        let shares = shares_of(|wait| {
            turn += 1;
            let (took, used) = match wait {
                Wait::Gather { .. } => (500_000., 100_000.),
                Wait::Soon { .. } => (400_000. * time, 100_000. * processor),
                _ => (400_000., 100_000.),
            };
            ((took * chance(turn)) as u64, 32, used as u64)
        });
        shares.1
    }

    #[test]
    fn who_is_found_within_moments_is_looked_for_if_that_is_only_somewhat_faster() {
        for (time, processor, looks) in
            [(0.95, 0.9, true), (0.95, 1.05, true), (0.95, 1.25, false), (0.95, 3., false), (1., 0.9, false)]
        {
            let share = share_of_looks_by_chance(time, processor);
            let expected = if looks { 0.8..=1. } else { 0.0..=0.1 };
            assert!(
                expected.contains(&share),
                "{share} of the time, for {time} of it and {processor} of the processor"
            );
        }
    }

    #[test]
    fn of_each_load_it_is_known_whether_looking_is_somewhat_faster() {
        const STAY: u32 = 4_000;
        let mut gatherer = Gatherer::new(Waiting::Measured);
        let (mut now, mut used, mut wait) = (0, 0, Wait::Until(None));
        let mut looks = [0; 2];
        for turn in 0..20 * STAY {
            let load = turn / STAY % 2;
            let looked = matches!(wait, Wait::Soon { .. });
            now += match (load, looked) {
                (0, true) => 380_000,
                (1, true) => 420_000,
                _ => 400_000,
            };
            used += 100_000;
            gatherer.finished(PortId(0), [32, 4][load as usize]);
            wait = gatherer.wait(Nanos(now), 0, || Nanos(used));
            looks[load as usize] += u32::from(looked && turn >= 4 * STAY);
        }
        let shares = looks.map(|looks| f64::from(looks) / f64::from(8 * STAY));
        assert!(shares[0] > 0.8 && shares[1] < 0.1, "{shares:?}");
    }

    #[test]
    fn who_knows_nothing_of_its_processor_looks_only_for_much() {
        let (_, looks) = shares_of(|wait| match wait {
            Wait::Gather { .. } => (500_000, 32, 0),
            Wait::Soon { .. } => (400_000, 32, 0),
            _ => (420_000, 32, 0),
        });
        assert!(looks < 0.1, "{looks}");
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
            let (mut now, mut wait, mut processor) = (Nanos(0), Wait::Until(None), Processor::default());
            let mut turn = |bios: u64, looking: u64, not_looking: u64| {
                let looks = matches!(wait, Wait::Soon { .. });
                let took = if looks { looking } else { not_looking };
                now = now + Nanos(took);
                gatherer.finished(PortId(0), bios);
                wait = gatherer.wait(now, 0, processor.turn(looks, took));
                (looks, gatherer.trials.phase)
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
            assert_eq!(gatherer.wait(Nanos(turn * 50_000), 4, unknown), Wait::Until(None));
        }
    }

    /// Of the time of a lone client's requests, the share of those that were looked for at every step. Each takes so long if it was, and so long if
    /// not; and so many turns, the last of which finishes it.
    fn share_of_looks(looking: u64, sleeping: u64, turns: u64) -> f64 {
        const REQUESTS: u32 = 2_000_000;
        let mut gatherer = Gatherer::new(Waiting::Measured);
        let (mut now, mut looked_for, mut all) = (Nanos(0), 0, 0);
        let (mut looks, mut processor) = (false, Processor::default());
        for request in 0..REQUESTS {
            let looked = looks;
            let took = if looked { looking } else { sleeping };
            looks = true;
            for turn in 1..=turns {
                now = now + Nanos(took / turns);
                let in_flight = u32::from(turn < turns);
                if in_flight == 0 {
                    gatherer.finished(PortId(0), 1);
                }
                let wait = gatherer.wait(now, in_flight, processor.turn(looked, took / turns));
                looks &= matches!(wait, Wait::Soon { of: Awaited::Measured, .. });
            }
            if request >= REQUESTS / 2 {
                all += took;
                looked_for += if looks { took } else { 0 };
            }
        }
        looked_for as f64 / all as f64
    }

    #[test]
    fn a_lone_clients_next_request_is_looked_for_if_that_is_faster() {
        for turns in [1, 2] {
            // Wake-ups that are spared; and a server that is in its client's way.
            assert!(share_of_looks(18_000, 67_000, turns) > 0.98);
            assert!(share_of_looks(110_000, 188_000, turns) > 0.98);
            assert!(share_of_looks(80_000, 100_000, turns) > 0.95, "several would have to be a third faster");
            assert!(share_of_looks(96_000, 88_000, turns) < 0.02);
            assert!(share_of_looks(100_000, 105_000, turns) < 0.02, "a processor is worth more than that");
        }
    }

    /// Of a lone client's time after some moment, shares, and how often looking began or ended in it.
    #[derive(Debug)]
    struct Lone {
        looks: f64,
        pauses: f64,
        together: f64,
        changes: u32,
    }

    /// A machine whose kernel brings a lone client and its server to one processor while the server sleeps, and to two while it looks.
    /// Ten seconds, those after `from` counted; what a request takes, by whether it is looked for and they are together.
    fn where_the_kernel_moves(mut together: bool, from: Nanos, took: impl Fn(bool, bool) -> u64) -> Lone {
        const MOVES: [u64; 2] = [Nanos::millis(80).0, Nanos::millis(40).0];
        const TIME: u64 = Nanos::millis(10_000).0;
        let mut gatherer = Gatherer::new(Waiting::Measured);
        let (mut now, mut wait) = (0, Wait::Until(None));
        let (mut pushed, mut looked, mut processor) = (0, false, Processor::default());
        let mut lone = Lone { looks: 0.0, pauses: 0.0, together: 0.0, changes: 0 };
        while now < TIME {
            let looks = matches!(wait, Wait::Soon { .. });
            let pauses = matches!(wait, Wait::Gather { .. });
            let time = took(looks, together) + if pauses { PAUSE_MAX.0 } else { 0 };
            pushed = if looks == together { pushed + time } else { 0 };
            if pushed >= MOVES[usize::from(looks)] {
                (together, pushed) = (!looks, 0);
            }
            if now >= from.0 {
                let share = |counts: bool| if counts { time as f64 / (TIME - from.0) as f64 } else { 0.0 };
                lone.looks += share(looks);
                lone.pauses += share(pauses);
                lone.together += share(together);
                lone.changes += u32::from(looks != looked);
            }
            looked = looks;
            now += time;
            gatherer.finished(PortId(0), 1);
            wait = gatherer.wait(Nanos(now), 0, processor.turn(looks, time));
        }
        lone
    }

    #[test]
    fn a_lone_client_is_judged_by_where_the_kernel_puts_it_in_the_end() {
        for together in [false, true] {
            // As measured, for reads of a file: a look is the fastest way, but for a moment.
            let file = |looks, together| match (looks, together) {
                (true, true) => 57_000,
                (false, true) => 75_000,
                (true, false) => 92_000,
                (false, false) => 155_000,
            };
            // And of a null disk: sleeping is far worse until they are together.
            let null = |looks, together| match (looks, together) {
                (true, _) => 18_000,
                (false, true) => 6_000,
                (false, false) => 67_000,
            };
            for lone in [
                where_the_kernel_moves(together, Nanos::millis(5_000), file),
                where_the_kernel_moves(together, Nanos::millis(5_000), null),
            ] {
                assert!(lone.looks < 0.05 && lone.together > 0.9, "{lone:?}");
            }
        }
    }

    #[test]
    fn a_lone_client_is_not_made_to_wait_by_many_trials() {
        // Neither where sleeping is better at once, nor where looking is, with a processor each: a trial after 0, 0.8, and 4 seconds.
        let asleep = where_the_kernel_moves(true, Nanos(0), |looks, _| if looks { 18_000 } else { 6_000 });
        assert!(asleep.looks > 0.0 && asleep.looks < 0.002, "{asleep:?}");
        assert!(asleep.pauses < 0.002 && asleep.changes <= 6, "{asleep:?}");
        let looking = where_the_kernel_moves(true, Nanos(0), |looks, _| if looks { 95_000 } else { 188_000 });
        assert!(looking.looks > 0.95 && looking.pauses < 0.002 && looking.changes <= 6, "{looking:?}");
    }

    #[test]
    fn pauses_are_hardly_tried_on_a_client_with_one_request_under_way() {
        let mut gatherer = Gatherer::new(Waiting::Measured);
        let (mut now, mut wait, mut pauses) = (Nanos(0), Wait::Until(None), 0);
        while !matches!(wait, Wait::Soon { .. }) {
            let is_pause = matches!(wait, Wait::Gather { .. });
            pauses += u32::from(is_pause);
            now = now + Nanos(if is_pause { 147_000 } else { 67_000 });
            gatherer.finished(PortId(0), 1);
            wait = gatherer.wait(now, 0, unknown);
        }
        assert!((1..14).contains(&pauses), "{pauses}");
    }

    #[test]
    fn what_a_device_does_for_several_is_never_looked_for_and_their_next_requests_for_a_trial() {
        for (clients, in_flight, most) in [(1, 2, 0), (2, 0, 300)] {
            let mut gatherer = Gatherer::new(Waiting::Measured);
            let looks = (0..10_000_u32).filter(|turn| {
                gatherer.finished(PortId(turn % clients), 1);
                matches!(
                    gatherer.wait(Nanos(u64::from(*turn) * 20_000), in_flight, unknown),
                    Wait::Soon { .. }
                )
            });
            let looks = looks.count();
            assert!(looks <= most, "{looks}");
        }
    }

    #[test]
    fn a_worker_that_is_to_look_does_so_while_something_is_under_way() {
        let mut gatherer = Gatherer::new(Waiting::Looking);
        assert_eq!(gatherer.wait(Nanos(0), 0, unknown), Wait::Until(None));
        assert_eq!(gatherer.wait(Nanos(0), 3, unknown), soon(3));
        gatherer.finished(PortId(1), 1);
        assert_eq!(gatherer.wait(Nanos(0), 0, unknown), soon(0));
        assert_eq!(gatherer.wait(Nanos(0), 0, unknown), Wait::Until(None));
    }

    #[test]
    fn whichever_way_it_waits_a_task_is_woken_in_time() {
        let mut gatherer = Gatherer::new(Waiting::Looking);
        let timer = Some(Nanos(70_000));
        assert_eq!(gatherer.wait_until(Nanos(0), 0, timer, unknown), Wait::Until(timer));
        let soon = Wait::Soon { of: Awaited::Device, until: timer };
        assert_eq!(gatherer.wait_until(Nanos(0), 3, timer, unknown), soon);
        let mut gatherer = Gatherer::new(Waiting::Measured);
        gatherer.trials.phase = Phase::Hold(Way::Pause, HOLD_MAX);
        for (at, gathers) in [(70_000, false), (90_000, true)] {
            gatherer.finished(PortId(0), 1);
            let wait = gatherer.wait_until(Nanos(0), 0, Some(Nanos(at)), unknown);
            assert_eq!(matches!(wait, Wait::Gather { .. }), gathers, "{wait:?}");
        }
    }

    #[test]
    fn nothing_under_way_sleeps_without_a_limit() {
        let mut gatherer = Gatherer::new(Waiting::Measured);
        (0..100_000).for_each(|i| assert_eq!(gatherer.wait(Nanos(i), 0, unknown), Wait::Until(None)));
    }
}
