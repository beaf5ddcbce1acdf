//! The power is cut at any moment, on arrays of all kinds, with and without members that fail: what was flushed is there,
//! mirrors differ only where the array says so, and what is read stays the same.
//!
//! A seed is a history; a failure names it, and `MD_SEED=n` runs it alone. `MD_RUNS=n` runs more of them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use blockwork_engine::{FileId, Layer, Limits, Nanos, Sector, Sectors, VolumeId, Wait, Worker};
use blockwork_layer::md::Places;
use blockwork_sim::{
    Chaos, ClientConfig, Closing, DeviceModel, Faults, Latencies, Latency, Random, Referee, SimCheck,
    SimClient, SimEnv, World,
};

use crate::operator::Operator;
use crate::rig::{Assembled, DATA_START, Found, Make, Served};

/// What a run does, drawn from its seed.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    make: Make,
    devices: Vec<DeviceModel>,
    /// A device with faults in the first life, and which.
    faulty: Option<(u16, Faults)>,
    workers: usize,
    clients: usize,
    bios: u64,
    depth: usize,
    pause_percent: u32,
    /// After which event of each life the power is cut; 0: the array is closed.
    cuts: Vec<u64>,
    /// Devices come and go.
    operated: bool,
}

fn draw_make(random: &mut Random) -> Make {
    let make = match random.below(8) {
        0 | 1 => Make::raid1(2),
        2 => Make::raid1(3),
        3 => Make::raid10("n2", 4),
        4 => Make::raid10("n2", 3),
        5 => Make::raid10("f2", 3),
        6 => Make::raid10("o2", 4),
        _ => Make::raid10("n3", 4),
    };
    let make = if random.chance(1, 4) { make.without_bitmap() } else { make };
    let make = if random.chance(1, 3) { make.with_bad_blocks() } else { make };
    let spares = u16::from(random.chance(1, 4));
    let chunk = if make.chunk == 0 { 0 } else { 8 };
    Make { sectors: *random.choose(&[96, 256]), chunk, spares, daemon_sleep: 1, ..make }
}

/// With `slow`, a device so slow that an array is idle, and its bits are cleared, while clients are at work.
fn draw_device(random: &mut Random, sectors: Sectors, slow: bool) -> DeviceModel {
    let latency = |random: &mut Random| match random.below(3) {
        _ if slow => Latency::Uniform(Nanos::millis(1), Nanos::millis(400)),
        0 => Latency::Fixed(Nanos::micros(100)),
        1 => Latency::Uniform(Nanos::micros(10), Nanos::millis(3)),
        _ => Latency::ZERO,
    };
    let mut model = DeviceModel::null(sectors);
    model.name = "lab".into();
    model.latency = Latencies {
        read: latency(random),
        write: latency(random),
        flush: latency(random),
        discard: latency(random),
        sequential: None,
    };
    model.parallelism = *random.choose(&[1, 8, 64]);
    model.cache_bytes = *random.choose(&[0, 16 << 10, 16 << 20, 16 << 20]);
    model.limits = Limits {
        fua: random.coin(),
        max_write_zeroes: *random.choose(&[Sectors::ZERO, Sectors(1 << 32)]),
        read_ahead: Sectors(*random.choose(&[0, 0, 64])),
        ..model.limits
    };
    model
}

impl Plan {
    fn draw(seed: u64) -> Plan {
        let random = &mut Random::part(seed, 7);
        let make = draw_make(random);
        let slow = random.coin();
        let sectors = make.device_sectors();
        let operated = random.coin();
        let make = make.with_blank(u16::from(operated));
        let devices = (0..make.devices() + make.blank).map(|_| draw_device(random, sectors, slow)).collect();
        let none = Faults::default();
        let faults = match random.below(8) {
            0 => Faults { write_errors: 20_000, ..none },
            1 => Faults { latent_errors: 60_000, ..none },
            2 => Faults { permanent_errors: 20_000, ..none },
            3 => Faults { flush_errors: 100_000, discard_errors: 50_000, ..none },
            4 => Faults { read_errors: 100_000, short: 100_000, stalls: 2_000, ..none },
            _ => none,
        };
        let device = u16::try_from(random.index(make.members.into())).unwrap();
        let bios = random.between(20, 150);
        let lives = random.between(1, 3);
        Plan {
            seed,
            devices,
            // One thing at a time: what an operator does to members is failure enough.
            faulty: (faults != Faults::default() && !operated).then_some((device, faults)),
            workers: *random.choose(&[1, 1, 2, 3]),
            clients: random.index(3) + 1,
            bios,
            depth: *random.choose(&[1, 4, 32]),
            // Pauses are of 2 ms at most: with many of them, an array is idle now and then for as long as it takes.
            pause_percent: *random.choose(&[5, 50, 100]),
            cuts: (0..lives)
                .map(|_| if random.chance(1, 5) { 0 } else { random.between(1, bios * 8) })
                .collect(),
            make,
            operated,
        }
    }

    /// What is wrong after a run.
    fn run(&self) -> Vec<String> {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.lives()));
        outcome.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            vec![format!("panic: {}", text.unwrap_or_else(|| "?".into()))]
        })
    }

    fn lives(&self) -> Vec<String> {
        let mut world = Rc::new(World::new(self.seed));
        for model in &self.devices {
            world.add_device(model.clone());
        }
        self.make.put(&world);
        let referee = Referee::new(self.make.geometry().sectors().0);
        for (life, cut) in self.cuts.iter().enumerate() {
            self.work(&world, life as u64, *cut, &referee);
            let after = world.power_cut();
            after.heal();
            let mut wrong = std::mem::take(&mut referee.borrow_mut().violations);
            wrong.extend(differences(&after, &self.make));
            self.check(&after, &referee);
            wrong.append(&mut referee.borrow_mut().violations);
            if !wrong.is_empty() {
                return wrong.into_iter().map(|what| format!("life {life}: {what}")).collect();
            }
            world = Rc::new(after);
        }
        Vec::new()
    }

    fn work(&self, world: &Rc<World>, life: u64, cut: u64, referee: &Rc<RefCell<Referee>>) {
        // Only while mirrors agree: until a resync has been done after a cut, a copy that is lost takes with it what only it
        // had of the writes that were under way, as in Linux.
        if let (0, Some((device, faults))) = (life, &self.faulty) {
            world.set_faults(FileId((*device).into()), faults.clone());
        }
        world.set_chaos(Chaos {
            spurious_wakeups: 20_000,
            partial_batches: 100_000,
            shuffled_batches: 100_000,
        });
        if cut > 0 {
            world.cut_at_event(cut);
        }
        let served = Served::assemble(world, &self.make, &[], true);
        let mut workers: Vec<_> =
            (0..self.workers).map(|n| served.worker(world.env(), u16::try_from(n).unwrap())).collect();
        workers[0].open();
        if self.operated {
            let (world, make, served) = (world.clone(), self.make.clone(), served.clone());
            let operator = Operator { world, make, served, random: Random::part(self.seed, 100 + life) };
            workers[0].spawn(|cx| operator.work(cx));
        }
        let closing = Closing::new(workers.iter().map(Worker::handle).collect());
        for n in 0..self.clients {
            let number = u32::try_from(n).unwrap() + 100 * u32::try_from(life).unwrap();
            let bios = self.bios / self.clients as u64;
            let seed = self.seed ^ life.rotate_left(32);
            let mut config = ClientConfig::new(number, VolumeId(0), bios, self.depth, seed);
            config.pause_percent = self.pause_percent;
            workers[n % self.workers].add_port(Box::new(SimClient::new(
                config,
                referee.clone(),
                closing.clone(),
            )));
        }
        let ended_well = run_all(world, &mut workers, &closing);
        drop(workers);
        if !world.is_off() {
            let closed = served.worker(world.env(), 99).close().is_ok();
            if closed && ended_well {
                let oracle = &mut referee.borrow_mut().oracle;
                let flush = oracle.begin_flush();
                oracle.end_flush(flush, true);
            }
        }
    }

    /// Reads everything on the array as it is assembled after the cut, twice.
    fn check(&self, world: &World, referee: &Rc<RefCell<Referee>>) {
        for _ in 0..2 {
            let served = Served::assemble(world, &self.make, &[], true);
            let worker = served.worker(world.env(), 0);
            let closing = Closing::new(vec![worker.handle()]);
            let mut workers = vec![worker];
            workers[0].add_port(Box::new(SimCheck::new(VolumeId(0), referee.clone(), closing.clone())));
            run_all(world, &mut workers, &closing);
        }
    }
}

/// Runs workers until every client has ended.
fn run_all(world: &World, workers: &mut [Worker<SimEnv>], closing: &Closing) -> bool {
    let mut idle_turns = 0;
    while closing.left() > 0 {
        let before = world.events();
        workers.iter_mut().for_each(|worker| worker.turn(Wait::Poll));
        idle_turns = if world.is_at_rest() && world.events() == before { idle_turns + 1 } else { 0 };
        assert!(idle_turns < 1000, "no worker does anything, and nothing will happen (a bio was lost)");
        if !world.step() && idle_turns > 3 {
            let soon = world.now() + Nanos::millis(1);
            workers.iter_mut().for_each(|worker| worker.turn(Wait::Until(Some(soon))));
        }
    }
    // Each may wait for another one to take part (in the turn to flush, or in quiescence): none runs alone to its end.
    loop {
        workers.iter_mut().for_each(|worker| worker.turn(Wait::Poll));
        if workers.iter().all(Worker::is_idle) && world.is_at_rest() {
            break;
        }
        world.step();
    }
    workers.iter_mut().map(|worker| worker.run().is_ok()).fold(true, |all, one| all & one)
}

/// Sectors of which copies differ, though the array says that they do not.
fn differences(world: &World, make: &Make) -> Vec<String> {
    let found = Assembled::read(world, make, &[]);
    let geometry = make.geometry();
    let mut places = Places::new();
    let mut wrong = Vec::new();
    for sector in (0..geometry.sectors().0).filter(|sector| !found.may_differ(*sector)) {
        geometry.places(Sector(sector), &mut places);
        places.retain(|place| {
            let member = found.members[usize::from(place.member)].as_ref();
            let in_sync = |found: &&Found| place.sector.0 < found.superblock.recovered_sectors();
            member.filter(in_sync).is_some_and(|found| !found.is_bad(place.sector))
        });
        let mut copies = places.iter().map(|place| {
            let device = found.members[usize::from(place.member)].as_ref().unwrap().device;
            world.peek(FileId(device.into()), DATA_START + place.sector.0)
        });
        match copies.next() {
            None => wrong.push(format!("sector {sector} has no copy")),
            Some(first) if copies.any(|copy| copy != first) => {
                wrong.push(format!(
                    "the copies of sector {sector} differ, and the array says that they do not"
                ));
            }
            Some(_) => {}
        }
    }
    wrong.truncate(3);
    wrong
}

/// The seeds to run.
#[allow(clippy::disallowed_methods, reason = "how many runs, and which, comes from outside")]
fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|n| n.parse::<u64>().expect("a number"));
    match number("MD_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("MD_RUNS").unwrap_or(default),
    }
}

#[test]
fn a_power_cut_at_any_moment_loses_nothing_that_was_flushed_and_mirrors_agree_where_they_say_so() {
    for seed in seeds(400) {
        let plan = Plan::draw(seed);
        let wrong = plan.run();
        assert!(wrong.is_empty(), "MD_SEED={seed}: {wrong:#?}\n{plan:?}");
    }
}

#[test]
fn the_check_itself_finds_mirrors_that_differ() {
    let make = Make::raid1(2);
    let world = World::new(1);
    for _ in 0..2 {
        world.add_device(DeviceModel::null(make.device_sectors()));
    }
    make.put(&world);
    assert!(differences(&world, &make).is_empty());
    world.preload(FileId(1), DATA_START + 5, &[1; 512]);
    assert_eq!(differences(&world, &make).len(), 1);
    assert_eq!(Served::assemble(&world, &make, &[], true).array.sectors(), Sectors(512));
}
