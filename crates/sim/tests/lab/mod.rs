//! The crash lab's apparatus: from a seed to a stack over simulated devices, a workload, a power cut, and a verdict.

pub mod geometry;

use std::cell::RefCell;
use std::rc::Rc;

use blockwork_engine::{FileId, Quiescence, VolumeId, Worker};
use blockwork_sim::{
    Chaos, ClientConfig, Closing, Fault, Faults, Lies, Random, Referee, SimCheck, SimClient, World,
};

use crate::running::devices::draw_chaos;
use crate::running::plans::{self, new_world};
use crate::running::{caught, run_all, worker};
use geometry::Geometry;

/// Everything that a run does, drawn from its seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub geometry: Geometry,
    pub faults: Faults,
    pub chaos: Chaos,
    pub lies: Lies,
    /// Faults on one request of one device each, in the first life.
    pub planned: Vec<(FileId, u64, Fault)>,
    /// Whether somebody listens to the engine's events. That must not change what happens.
    pub trace: bool,
    /// Whether the first client is a sequential reader.
    pub reader: bool,
    /// The clients keep to so many bytes at the start of their volumes.
    pub region: u64,
    pub workers: usize,
    pub clients: usize,
    pub bios: u64,
    pub depth: usize,
    /// After which event the power is cut, life by life; 0: only when all is done.
    pub cuts: Vec<u64>,
}

/// What a run came to.
pub type Verdict = plans::Verdict<Counts>;

/// What is counted here.
#[derive(Debug, Default)]
pub struct Counts {
    /// Times that the power was cut.
    pub cuts: u64,
}

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let random = &mut Random::part(seed, 1);
        let geometry = Geometry::draw(random);
        let bios = random.between(20, 120);
        let lives = random.between(1, 2);
        Plan {
            seed,
            geometry,
            faults: draw_faults(random),
            chaos: draw_chaos(random),
            lies: Lies::default(),
            planned: Vec::new(),
            trace: seed.is_multiple_of(4),
            reader: seed % 3 == 1,
            region: if seed % 5 < 2 { 48 << 10 } else { u64::MAX },
            workers: *random.choose(&[1, 1, 1, 2]),
            clients: random.index(3) + 2,
            bios,
            depth: *random.choose(&[1, 2, 4, 16, 64]),
            cuts: (0..lives)
                .map(|_| if random.chance(1, 5) { 0 } else { random.between(1, bios * 6) })
                .collect(),
        }
    }

    fn lives(&self, journal: bool, verdict: &RefCell<Verdict>) {
        let mut world = new_world(self.seed, false);
        for model in &self.geometry.devices {
            world.add_device(model.clone());
        }
        self.planned.iter().for_each(|(device, n, fault)| world.fail_nth(*device, *n, *fault));
        let mut referees: Vec<Rc<RefCell<Referee>>> = Vec::new();
        for (life, cut) in self.cuts.iter().enumerate() {
            if journal {
                world.keep_journal();
            }
            self.work(&world, life as u64, *cut, &mut referees, verdict);
            let after = world.power_cut();
            after.heal();
            if journal {
                verdict.borrow_mut().journal.extend(world.journal());
                after.keep_journal();
            }
            verdict.borrow_mut().cuts += 1;
            let stack = self.geometry.build(&after, Lies::default());
            let worker = worker(&stack, after.env(), 0, false, &Quiescence::default());
            let closing = Closing::new(vec![worker.handle()]);
            let mut workers = vec![worker];
            for (volume, referee) in (0..).zip(&referees) {
                workers[0].add_port(Box::new(SimCheck::new(
                    VolumeId(volume),
                    referee.clone(),
                    closing.clone(),
                )));
            }
            run_all(&after, workers);
            self.book(&after, &referees, verdict);
            if !verdict.borrow().violations.is_empty() {
                if journal {
                    verdict.borrow_mut().journal.extend(after.journal());
                }
                return;
            }
            world = after;
        }
    }

    /// One life: clients at work until they are done, or the power is cut.
    fn work(
        &self,
        world: &World,
        life: u64,
        cut: u64,
        referees: &mut Vec<Rc<RefCell<Referee>>>,
        verdict: &RefCell<Verdict>,
    ) {
        (0..world.devices()).for_each(|n| world.set_faults(FileId(n), self.faults.clone()));
        world.set_chaos(self.chaos);
        if cut > 0 {
            world.cut_at_event(cut);
        }
        let stack = self.geometry.build(world, self.lies);
        if referees.is_empty() {
            referees.extend(stack.volumes.iter().map(|volume| Referee::new(volume.sectors().0)));
        }
        let quiescence = Quiescence::default();
        let mut workers: Vec<_> = (0..self.workers)
            .map(|n| worker(&stack, world.env(), n as u16, self.trace, &quiescence))
            .collect();
        let closing = Closing::new(workers.iter().map(Worker::handle).collect());
        for n in 0..self.clients {
            let volume = n % referees.len();
            let seed = self.seed ^ life.rotate_left(32);
            let number =
                u32::try_from(n).expect("few clients") + 100 * u32::try_from(life).expect("few lives");
            let bios = self.bios / self.clients as u64;
            let mut config = ClientConfig::new(number, VolumeId(volume as u16), bios, self.depth, seed);
            config.region = self.region;
            if self.reader && n == 0 {
                // Reads small pieces one after the other, as read-ahead likes it.
                (config.weights, config.sequential_percent) = ([90, 4, 2, 2, 2], 95);
                (config.len_max, config.unaligned_percent, config.pause_percent) = (4096, 0, 0);
            }
            let client = SimClient::new(config, referees[volume].clone(), closing.clone());
            workers[n % self.workers].add_port(Box::new(client));
        }
        let ended_well = run_all(world, workers);
        if ended_well && !world.is_off() {
            // A worker that was stopped has flushed what it wrote.
            for referee in referees.iter() {
                let oracle = &mut referee.borrow_mut().oracle;
                let flush = oracle.begin_flush();
                oracle.end_flush(flush, true);
            }
        }
        assert!(
            world.is_off() || world.in_flight() == 0,
            "requests are in flight, but every worker has ended"
        );
        self.book(world, referees, verdict);
    }

    fn book(&self, world: &World, referees: &[Rc<RefCell<Referee>>], verdict: &RefCell<Verdict>) {
        let verdict = &mut *verdict.borrow_mut();
        verdict.note(world);
        for referee in referees {
            let referee = &mut *referee.borrow_mut();
            verdict.violations.append(&mut referee.violations);
            verdict.answered += std::mem::take(&mut referee.answered);
            verdict.failed += std::mem::take(&mut referee.failed);
            verdict.durable += std::mem::take(&mut referee.durable);
        }
    }
}

impl plans::Plan for Plan {
    type Counts = Counts;
    const TEST: &'static str = "crash";

    fn run_with(&self, journal: bool) -> Verdict {
        let verdict = RefCell::new(Verdict::default());
        let outcome = caught(|| self.lives(journal, &verdict));
        let mut verdict = verdict.into_inner();
        verdict.violations.extend(outcome.err());
        verdict
    }
    fn seed(&self) -> u64 {
        self.seed
    }
    fn cuts(&self) -> Vec<u64> {
        self.cuts.clone()
    }
    fn cut(&mut self, life: usize, event: u64) {
        self.cuts[life] = event;
    }
    fn lies(&mut self) -> &mut Lies {
        &mut self.lies
    }
    fn planned(&mut self) -> &mut Vec<(FileId, u64, Fault)> {
        &mut self.planned
    }
}

impl plans::Counts for Counts {
    fn add(&mut self, other: Counts) {
        self.cuts += other.cuts;
    }
}

fn draw_faults(random: &mut Random) -> Faults {
    let none = Faults::default();
    match random.below(10) {
        0..4 => none,
        4 => Faults { short: 200_000, ..none },
        5 => Faults { read_errors: 30_000, write_errors: 30_000, discard_errors: 100_000, ..none },
        6 => Faults { latent_errors: 20_000, permanent_errors: 5_000, short: 50_000, ..none },
        7 => Faults { lost_flushes: 150_000, ..none },
        8 => Faults {
            flush_errors: 100_000,
            write_errors: 10_000,
            short: 100_000,
            stalls: 2_000,
            again: 50_000,
            ..none
        },
        _ => Faults { stalls: 10_000, slowdown: 20, short: 50_000, read_errors: 10_000, ..none },
    }
}
