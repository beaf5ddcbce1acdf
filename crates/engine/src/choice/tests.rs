//! The rule against devices of all kinds: what it loses beside whoever knew the better way from the beginning.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::rule::{Rule, Ticket, Verdict, Way};
use super::{Busy, Chooser, Nanos, TELL_EVERY, fua_class};

/// Numbers that look like chance.
pub(super) struct Noise(u64);

impl Noise {
    pub(super) fn new(seed: u64) -> Noise {
        let mut noise = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // What neighbouring seeds have in common is gone after a few.
        (0..16).for_each(|_| _ = noise.next());
        noise
    }
    pub(super) fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Exponential, of mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.next()).ln()
    }
}

/// A device that serves some requests at once, and a client that always has some under way.
#[derive(Clone, Copy)]
struct World {
    servers: usize,
    depth: usize,
    requests: u32,
    /// Microseconds that the n-th request takes, one way or the other.
    cost: fn(Way, u32) -> f64,
    /// The part of a cost that is exponential, and not fixed.
    noise: f64,
    /// How many in a million take fifty times as long.
    stalls: u32,
    seed: u64,
}

impl World {
    fn quiet(cost: fn(Way, u32) -> f64) -> World {
        World { servers: 1, depth: 1, requests: 50_000, cost, noise: 0.0, stalls: 0, seed: 0x9e37_79b9 }
    }

    fn service(&self, noise: &mut Noise, way: Way, n: u32) -> u64 {
        let mut time = (self.cost)(way, n) * (1.0 - self.noise + self.noise * noise.exponential());
        if noise.next() * 1e6 < f64::from(self.stalls) {
            time *= 50.0;
        }
        (time * 1000.0) as u64 + 1
    }

    /// How long all requests take if `rule` chooses, or if all go one way.
    fn run(&self, mut choose: Result<&mut Rule, Way>) -> u64 {
        let mut noise = Noise(self.seed);
        let mut free: BinaryHeap<Reverse<u64>> = (0..self.servers).map(|_| Reverse(0)).collect();
        let mut flying: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
        let mut tickets: Vec<Option<(Ticket, f64)>> = Vec::new();
        let (mut busy, mut now, mut n) = (Busy::default(), 0, 0);
        loop {
            while n < self.requests && flying.len() < self.depth {
                let paid = busy.at(Nanos(now), flying.len() as u32);
                let (way, ticket) = match &mut choose {
                    Ok(rule) => {
                        let ticket = rule.start();
                        (ticket.way, Some((ticket, paid)))
                    }
                    Err(way) => (*way, None),
                };
                let Reverse(at) = free.pop().unwrap();
                let end = at.max(now) + self.service(&mut noise, way, n);
                free.push(Reverse(end));
                flying.push(Reverse((end, n)));
                tickets.push(ticket);
                n += 1;
            }
            let Some(&Reverse((end, which))) = flying.peek() else { return now };
            now = end;
            let paid = busy.at(Nanos(now), flying.len() as u32);
            flying.pop();
            if let (Ok(rule), Some((ticket, at))) = (&mut choose, tickets[which as usize]) {
                rule.done(ticket, Some(paid - at), 4096);
            }
        }
    }

    /// What the rule takes longer than the better of both ways, as a part; and the rule.
    fn regret(&self) -> (f64, Rule) {
        let mut rule = Rule::new();
        let ours = self.run(Ok(&mut rule));
        let best = self.run(Err(Way::Usual)).min(self.run(Err(Way::Instead)));
        (ours as f64 / best as f64 - 1.0, rule)
    }
}

fn usual_is(times: f64) -> impl Fn(Way) -> f64 {
    move |way| if way == Way::Usual { times * 100.0 } else { 100.0 }
}
fn ten_times_dearer(way: Way, _: u32) -> f64 {
    usual_is(10.0)(way)
}
fn slightly_dearer(way: Way, _: u32) -> f64 {
    usual_is(1.05)(way)
}
fn alike(way: Way, _: u32) -> f64 {
    usual_is(1.0)(way)
}
fn slightly_cheaper(way: Way, _: u32) -> f64 {
    usual_is(0.95)(way)
}
fn half_as_dear(way: Way, _: u32) -> f64 {
    usual_is(0.5)(way)
}
fn breaks_in_mid_run(way: Way, n: u32) -> f64 {
    usual_is(if n < 25_000 { 0.95 } else { 4.0 })(way)
}
fn mended_in_mid_run(way: Way, n: u32) -> f64 {
    usual_is(if n < 25_000 { 4.0 } else { 0.9 })(way)
}
/// Three times as much work for both ways in every other thousand requests.
fn ebbs_and_flows(way: Way, n: u32) -> f64 {
    usual_is(0.95)(way) * if (n / 1000).is_multiple_of(2) { 1.0 } else { 3.0 }
}
fn drifts(way: Way, n: u32) -> f64 {
    usual_is(2.0)(way) * (1.0 + f64::from(n) / 10_000.0)
}

#[test]
fn what_trying_costs_is_below_a_percent_whichever_way_is_better() {
    let worlds =
        [ten_times_dearer, slightly_dearer, alike, slightly_cheaper, half_as_dear, drifts, ebbs_and_flows];
    for (nth, cost) in worlds.into_iter().enumerate() {
        for (servers, depth) in [(1, 1), (1, 8), (8, 8), (4, 32), (16, 4)] {
            // What is under way when ways change goes with them: more requests, for the same part.
            let requests = 60_000 * (depth as u32).div_ceil(8);
            let world = World { servers, depth, requests, ..World::quiet(cost) };
            let (regret, rule) = world.regret();
            let verdict = rule.verdict();
            assert!(regret < 0.01, "world {nth}, {servers} servers, depth {depth}: {regret}, {verdict:?}");
        }
    }
}

#[test]
fn a_kernel_that_is_mended_or_broken_in_mid_run_is_noticed() {
    for (cost, way) in
        [(breaks_in_mid_run as fn(Way, u32) -> f64, Way::Instead), (mended_in_mid_run, Way::Usual)]
    {
        for (noise, depth) in [(0.0, 1), (0.3, 1), (0.0, 8), (0.5, 8)] {
            let world = World { noise, depth, requests: 100_000, ..World::quiet(cost) };
            let mut rule = Rule::new();
            world.run(Ok(&mut rule));
            assert_eq!(rule.verdict(), Verdict::Settled(way), "noise {noise}, depth {depth}");
        }
    }
}

#[test]
fn noise_and_stalls_mislead_it_rarely() {
    let (mut wrong, mut sum, runs) = (0, 0.0, 12);
    for seed in 1..=runs {
        for (cost, better) in
            [(ten_times_dearer as fn(Way, u32) -> f64, Way::Instead), (half_as_dear, Way::Usual)]
        {
            for depth in [1, 8] {
                let world = World { noise: 1.0, stalls: 300, seed: seed * 7919, depth, ..World::quiet(cost) };
                let (regret, rule) = world.regret();
                wrong += u32::from(rule.verdict() != Verdict::Settled(better));
                sum += regret;
            }
        }
    }
    let mean = sum / (4 * runs) as f64;
    assert!(wrong == 0 && mean < 0.01, "{wrong} of {} decided wrongly, {mean} lost on average", 4 * runs);
}

#[test]
fn small_differences_in_much_noise_cost_less_than_they_are_worth() {
    // Five percent, where a single request says hardly anything: two at most are lost before that is known.
    for (cost, most) in
        [(slightly_dearer as fn(Way, u32) -> f64, 0.02), (slightly_cheaper, 0.015), (alike, 0.001)]
    {
        for (noise, depth) in [(0.3, 1), (1.0, 1), (0.3, 8), (1.0, 8)] {
            let lost = (1..=4).map(|seed| {
                let world =
                    World { noise, depth, requests: 100_000, seed: seed * 104_729, ..World::quiet(cost) };
                world.regret().0
            });
            let mean = lost.sum::<f64>() / 4.0;
            assert!(mean < most, "noise {noise}, depth {depth}: {mean}");
        }
    }
}

#[test]
fn requests_that_never_come_back_stop_nothing() {
    let mut rule = Rule::new();
    // The first block's requests are never answered, nor is anything that goes the other way.
    for _ in 0..100_000 {
        let ticket = rule.start();
        if ticket.way == Way::Usual {
            rule.done(ticket, Some(1000.0), 4096);
        }
    }
    let mut instead = 0;
    for _ in 0..100_000 {
        let ticket = rule.start();
        instead += u32::from(ticket.way == Way::Instead);
        rule.done(ticket, (ticket.way == Way::Usual).then_some(1000.0), 4096);
    }
    assert!(instead < 2_000, "{instead} requests went where no answer comes from");
}

#[test]
fn a_class_is_told_of_however_its_requests_come() {
    // So many at first, then four for four: their number is never a round one when one of them is done.
    for first in [16, 17] {
        let (mut chooser, number) = (Chooser::default(), fua_class(4096));
        let start = |chooser: &mut Chooser| chooser.start(number, 0.0).unwrap();
        let mut flying: std::collections::VecDeque<_> = (0..first).map(|_| start(&mut chooser)).collect();
        let (mut since, mut most) = (0, 0);
        for _ in 0..5000 {
            for _ in 0..4 {
                let told = chooser.done(flying.pop_front().unwrap(), Some(1000.0), 4096);
                since = if told.is_some() { 0 } else { since + 1 };
                most = most.max(since);
            }
            flying.extend((0..4).map(|_| start(&mut chooser)));
        }
        assert!(most <= TELL_EVERY + 4, "{first}: {most} requests without a word");
    }
}

#[test]
fn times_that_rise_and_fall_for_both_ways_cost_little() {
    for (noise, depth, most) in [(0.3, 1, 0.01), (0.3, 8, 0.01), (1.0, 8, 0.015)] {
        let lost = (1..=4).map(|seed| {
            let seed = seed * 15_485_863;
            World { noise, depth, requests: 100_000, seed, ..World::quiet(ebbs_and_flows) }.regret().0
        });
        let mean = lost.sum::<f64>() / 4.0;
        assert!(mean < most, "noise {noise}, depth {depth}: {mean}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_device_is_understood(
        ratio in 0.1f64..20.0, servers in 1usize..9, depth in 1usize..17, noise in 0.0f64..0.3, seed in 1u64..1_000_000,
    ) {
        let mut rule = Rule::new();
        let world = World { servers, depth, noise, seed, requests: 30_000, ..World::quiet(|_, _| 0.0) };
        let ours = run_with(&world, ratio, Ok(&mut rule));
        let best = run_with(&world, ratio, Err(Way::Usual)).min(run_with(&world, ratio, Err(Way::Instead)));
        let regret = ours as f64 / best as f64 - 1.0;
        // Nobody can know before some requests have gone the wrong way.
        let tried = 5.0 * (depth + 3) as f64 * ratio.max(1.0 / ratio) / f64::from(world.requests);
        prop_assert!(regret < 0.015 + tried, "{regret} {tried} {:?}", rule.verdict());
    }
}

/// As [`World::run`], the usual way costing `times` what the other does.
fn run_with(world: &World, times: f64, choose: Result<&mut Rule, Way>) -> u64 {
    thread_local!(static TIMES: std::cell::Cell<f64> = const { std::cell::Cell::new(1.0) });
    TIMES.set(times);
    World { cost: |way, _| usual_is(TIMES.get())(way), ..*world }.run(choose)
}
