//! The apparatus of the labs for md: from a seed to an array, lives with troubles and cuts, and a verdict.
//!
//! A life is: find the array from the bytes on the devices, serve it to clients, perhaps lose members, perhaps lose power.
//! After each, the bytes are judged ([`judge`]), the array is found and read again, and perhaps Linux has it for a while
//! ([`linux`]): it resyncs, and rebuilds.
//!
//! Members only fail where the array was in sync before: who reads the one copy of what differs, and loses it, reads the
//! other one afterwards. That is so in Linux too, and is no fault.
//!
//! There are two kinds of plans. In one nobody opens the array, so it never copies anything by itself: Linux does that between
//! lives. In the other ([`Plan::draw_kept`]) the array is opened, has spares, and somebody looks after it ([`caretaker`]); what
//! was half done in one life goes on in the next, and in the end the array is let alone until nothing is due ([`settle`]).
//!
//! Both kinds there are also of arrays whose rows have a parity (`arrays/rows.rs`). What may be lost of those, when the power goes while members are
//! missing, is not judged; before the next life, people have the array take its parities as they are ([`linux::force`]).
#![allow(dead_code, reason = "each test file uses its part")]

pub mod caretaker;
pub mod disks;
pub mod drawn;
pub mod judge;
pub mod linux;
mod settle;

use std::cell::RefCell;
use std::rc::Rc;

use blockwork_engine::{FileId, Fua, Nanos, Quiescence, VolumeId, Worker};
use blockwork_sim::{
    Chaos, ClientConfig, Closing, Fault, Faults, Lies, Random, Referee, SimCheck, SimClient, SimEnv, World,
};

use crate::arrays::troubles::{DEAD, Misbehaviour, draw_faults};
use crate::arrays::{Pace, close, has_written};
use crate::running::devices::draw_chaos;
use crate::running::plans::{self, end_life, new_world};
use crate::running::{caught, run_all, worker};
use caretaker::{Caretaker, Tally, Visit};
use disks::{ArrayPlan, Built, Found};
use judge::Judge;

/// What happens in a life.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// After which event the power is cut; 0: only when all is done.
    pub cut: u64,
    /// Devices that misbehave, as far as the array can do without them.
    pub victims: Vec<FileId>,
    /// How they do.
    pub faults: Faults,
    /// When the first of them dies altogether.
    pub death: Option<Nanos>,
    /// When they begin to misbehave.
    pub healthy: Nanos,
    /// All devices are victims, whatever the array can do without.
    pub no_mercy: bool,
    /// Linux has the array afterwards; true: and all devices are put back into it.
    pub linux: Option<bool>,
    /// The array is opened, and looked after.
    pub visit: Option<Visit>,
    /// It is let alone afterwards until nothing is due.
    pub settles: bool,
    /// There are no clients.
    pub alone: bool,
    /// A device misbehaves also where others list as bad what only it makes up for.
    pub despite_lists: bool,
}

/// The first seed of plans in which the bitmap is cleared; the first of those in which somebody looks after the array.
pub const CLEARING: u64 = 3_000_000;
pub const KEPT: u64 = 4_000_000;
/// The first seed of those in which members lose what they were given with flushes that fail.
pub const LOSING: u64 = 500_000_000;
/// The first seed of plans of rows with a parity; of those in which somebody looks after the array.
pub const PARITY: u64 = 1_000_000_000;
pub const PARITY_KEPT: u64 = 2_000_000_000;
/// The first seed of those in which members lose what they were given, likewise.
pub const PARITY_LOSING: u64 = 3_000_000_000;
/// The first seed of those in which members list what they cannot write.
pub const PARITY_LISTING: u64 = 4_000_000_000;

/// The first seed of those in which a member dies beside another one's list.
pub const PARITY_DYING: u64 = 5_000_000_000;

/// Everything that a run does, drawn from its seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub array: ArrayPlan,
    pub lives: Vec<Life>,
    pub chaos: Chaos,
    pub lies: Lies,
    /// Faults on one request of one device each, in the first life.
    pub planned: Vec<(FileId, u64, Fault)>,
    /// The planned faults may be told to clients.
    pub excused: bool,
    pub region: u64,
    pub workers: usize,
    pub clients: usize,
    pub bios: u64,
    pub depth: usize,
    pub pace: Pace,
    /// Clients write whole rows, too.
    pub rows: bool,
    /// All devices do this, which no client may notice.
    pub slowness: Faults,
}

/// What a run came to.
pub type Verdict = plans::Verdict<Counts>;

/// What is counted here.
#[derive(Debug, Default)]
pub struct Counts {
    /// Lives that ended in order.
    pub rests: u64,
    /// Lives after which copies differed.
    pub differed: u64,
    /// Members that were given up.
    pub given_up: u64,
    /// Lives that ended with parities that may not fit, and without all members.
    pub holes: u64,
    /// Sectors that were mended.
    pub mended: u64,
    /// Lives that began with a device that was filled in part.
    pub resumed: u64,
    /// Lives that ended with an entry in a list of bad blocks.
    pub listed: u64,
    /// Lives in which something that a member lists was lost with another one that could be read, or a client was told of an error beside it.
    pub forgotten: u64,
    /// Times that nothing was due any more.
    pub settled: u64,
    /// What the caretaker did.
    pub tally: Tally,
}

impl Plan {
    /// The plan of a seed, by the range that it is in.
    pub fn of(seed: u64) -> Plan {
        match seed {
            CLEARING..KEPT => Plan::draw_clearing(seed),
            KEPT..LOSING => Plan::draw_kept(seed),
            LOSING..PARITY => Plan::draw_losing(seed),
            PARITY..PARITY_KEPT => Plan::draw_parity(seed),
            PARITY_KEPT..PARITY_LOSING => Plan::draw_parity_kept(seed),
            PARITY_LOSING..PARITY_LISTING => Plan::draw_parity_losing(seed),
            PARITY_LISTING..PARITY_DYING => Plan::draw_parity_listing(seed),
            PARITY_DYING.. => Plan::draw_parity_dying(seed),
            _ => Plan::draw(seed),
        }
    }

    pub fn draw(seed: u64) -> Plan {
        let random = &mut Random::part(seed, 1);
        let array = ArrayPlan::draw(random);
        let bios = random.between(20, 120);
        let pace = Pace::draw(random);
        let events = if let Pace::Trickle = pace { bios * 40 } else { bios * 8 };
        let lives = random.between(1, 3);
        Plan {
            seed,
            lives: (0..lives).map(|_| Life::draw(random, &array, events)).collect(),
            chaos: draw_chaos(random),
            lies: Lies::default(),
            planned: Vec::new(),
            excused: false,
            region: if seed % 5 < 2 { 64 << 10 } else { u64::MAX },
            workers: *random.choose(&[1, 1, 1, 2]),
            clients: random.index(3) + 1,
            bios,
            depth: *random.choose(&[1, 2, 4, 16, 64]),
            pace,
            rows: false,
            slowness: Faults {
                stalls: *random.choose(&[0, 0, 10_000]),
                stall_time: Nanos::secs(10),
                ..Faults::default()
            },
            array,
        }
    }

    /// One in which nothing fails, and the bitmap is cleared in one place while another is written to: on quick disks that keep
    /// much in their caches, and now and then take long for a request.
    pub fn draw_clearing(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        let random = &mut Random::part(seed, 2);
        (plan.array.absent, plan.array.recovering, plan.array.bitmap_chunk) =
            (Vec::new(), None, Some(8 << 10));
        for model in &mut plan.array.devices {
            (model.cache_bytes, model.parallelism, model.limits.fua) = (16 << 20, 64, Fua::Dsync);
        }
        (plan.pace, plan.clients, plan.bios, plan.region) = (Pace::Trickle, 4, 120, u64::MAX);
        plan.slowness.stalls = *random.choose(&[0, 15_000]);
        plan.lives.truncate(1);
        let life = &mut plan.lives[0];
        life.victims.clear();
        (life.no_mercy, life.cut) = (false, random.between(plan.bios * 4, plan.bios * 30));
        plan
    }

    /// One with spares, in which the array is opened and somebody looks after it, over several lives.
    pub fn draw_kept(seed: u64) -> Plan {
        let random = &mut Random::part(seed, 3);
        let array = ArrayPlan::draw(random).with_spares(random);
        Plan::draw(seed).kept(array, random)
    }

    /// One whose rows have a parity.
    pub fn draw_parity(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        let random = &mut Random::part(seed, 4);
        plan.array = ArrayPlan::draw_parity(random);
        (plan.workers, plan.rows) = (*random.choose(&[1, 1, 2, 3]), random.coin());
        let events = if let Pace::Trickle = plan.pace { plan.bios * 60 } else { plan.bios * 20 };
        plan.lives = plan.lives.iter().map(|_| Life::draw(random, &plan.array, events)).collect();
        plan
    }

    /// Likewise, with lists of bad blocks, of members that refuse writes, and some reads.
    pub fn draw_parity_listing(seed: u64) -> Plan {
        let mut plan = Plan::draw_parity(seed);
        let random = &mut Random::part(seed, 7);
        plan.array.bad_blocks = true;
        // What one lists, another one may alone make up for, and fail as well.
        plan.array.loses_listed = plan.lives.iter().any(|life| life.no_mercy);
        for life in &mut plan.lives {
            let latent_errors = *random.choose(&[0, 0, 20_000]);
            let write_errors = *random.choose(&[5_000, 20_000, 60_000]);
            life.faults = Faults { write_errors, latent_errors, ..Faults::default() };
            if life.victims.is_empty() {
                let (_, device) =
                    plan.array.numbered().nth(random.index(plan.array.members.into())).expect("a member");
                life.victims.push(device);
            }
        }
        plan
    }

    /// Mirrors, over many lives in which a member forgets what it keeps in its cache.
    pub fn draw_losing(seed: u64) -> Plan {
        let random = &mut Random::part(seed, 8);
        let mut plan = Plan::draw(seed).losing(random);
        plan.array.absent.clear();
        plan
    }

    /// Likewise with a parity, where others read what it has for new ones.
    pub fn draw_parity_losing(seed: u64) -> Plan {
        Plan::draw_parity(seed).losing(&mut Random::part(seed, 6))
    }

    /// In each of many lives, a flush of a member fails among many that do not, or one that is part of a write, and the member has forgotten what it
    /// kept in its cache. What is read between the loss and when something of it is known, nobody can help; so there is one worker, which hears
    /// of it at once.
    fn losing(self, random: &mut Random) -> Plan {
        let mut plan = self;
        let apart = &mut Random::part(plan.seed, 9);
        for model in &mut plan.array.devices {
            (model.cache_bytes, model.limits.fua) =
                (16 << 20, *apart.choose(&[Fua::Flush, Fua::Dsync, Fua::Auto]));
        }
        (plan.array.recovering, plan.slowness, plan.rows) = (None, Faults::default(), false);
        (plan.workers, plan.chaos) = (1, Chaos::default());
        (plan.pace, plan.clients, plan.bios, plan.depth) = (Pace::Flushes, 3, 150, *random.choose(&[4, 16]));
        plan.region = *random.choose(&[16 << 10, 64 << 10]);
        let devices: Vec<FileId> = plan.array.numbered().map(|(_, device)| device).collect();
        let life = |random: &mut Random| Life {
            victims: vec![*random.choose(&devices)],
            faults: Faults { lost_flushes: *random.choose(&[30_000, 100_000]), ..Faults::default() },
            linux: Some(true),
            ..Life::default()
        };
        plan.lives = (0..6).map(|_| life(random)).collect();
        plan
    }

    /// Likewise, as `draw_kept`.
    pub fn draw_parity_kept(seed: u64) -> Plan {
        let random = &mut Random::part(seed, 5);
        let array = ArrayPlan::draw_parity(random).with_spares(random);
        let mut plan = Plan::draw(seed).kept(array, random);
        plan.rows = random.coin();
        plan
    }

    fn kept(mut self, array: ArrayPlan, random: &mut Random) -> Plan {
        let plan = &mut self;
        plan.array = array;
        plan.workers = *random.choose(&[1, 1, 2, 3]);
        plan.bios = random.between(20, 100);
        let events = plan.bios * 10 + 200;
        let lives = random.between(1, 4);
        plan.lives = (0..lives).map(|_| Life::draw_kept(random, &plan.array, events)).collect();
        if let Some(last) = plan.lives.last_mut() {
            last.settles = true;
        }
        self
    }
}

impl plans::Plan for Plan {
    type Counts = Counts;
    const TEST: &'static str = "md";

    fn run_with(&self, journal: bool) -> Verdict {
        let world = new_world(self.seed, journal);
        self.array.make(&world);
        let referee = Referee::new(self.array.volume().1);
        let verdict = Verdict::default();
        let (in_sync, unsettled, wrote, told, is_lost) = (true, Vec::new(), false, false, false);
        let mut run = Run { plan: self, world, referee, in_sync, unsettled, wrote, told, is_lost, verdict };
        let outcome = caught(|| run.lives(journal));
        run.verdict.violations.extend(outcome.err());
        run.verdict.journal.append(&mut run.world.journal());
        let diary = std::mem::take(&mut run.verdict.tally.borrow_mut().diary);
        run.verdict.journal.extend(diary);
        run.verdict
    }
    fn seed(&self) -> u64 {
        self.seed
    }
    fn cuts(&self) -> Vec<u64> {
        self.lives.iter().map(|life| life.cut).collect()
    }
    fn cut(&mut self, life: usize, event: u64) {
        self.lives[life].cut = event;
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
        self.rests += other.rests;
        self.differed += other.differed;
        self.given_up += other.given_up;
        self.holes += other.holes;
        self.mended += other.mended;
        self.resumed += other.resumed;
        self.listed += other.listed;
        self.forgotten += other.forgotten;
        self.settled += other.settled;
        for (what, n) in &other.tally.borrow().counts {
            *self.tally.borrow_mut().counts.entry(what).or_default() += n;
        }
    }
}

impl Life {
    /// One that has about so many events.
    fn draw(random: &mut Random, array: &ArrayPlan, events: u64) -> Life {
        let mut victims: Vec<FileId> = array.numbered().map(|(_, device)| device).collect();
        (1..victims.len()).rev().for_each(|i| victims.swap(i, random.index(i + 1)));
        victims.truncate(random.index(2) + 1);
        let troubled = random.chance(1, 2);
        let no_mercy = random.chance(1, 12);
        let mut faults = draw_faults(random);
        if no_mercy {
            // What the only copy has forgotten, nobody can bring back.
            faults.lost_flushes = 0;
        }
        Life {
            cut: if random.chance(1, 3) { 0 } else { random.between(1, events) },
            faults,
            death: (troubled && random.chance(1, 3)).then(|| Nanos(random.below(200_000_000))),
            victims: if troubled { victims } else { Vec::new() },
            no_mercy,
            linux: *random.choose(&[None, Some(false), Some(true), Some(true)]),
            visit: None,
            settles: false,
            ..Life::default()
        }
    }

    /// One in which somebody looks after the array.
    fn draw_kept(random: &mut Random, array: &ArrayPlan, events: u64) -> Life {
        let mut life = Life::draw(random, array, events);
        (life.linux, life.no_mercy) = (None, false);
        if array.bad_blocks && random.chance(1, 3) {
            life.faults = Faults { write_errors: 60_000, ..Faults::default() };
        }
        life.victims.truncate(*random.choose(&[0, 1, 1, 2]));
        life.cut = if random.chance(1, 4) { 0 } else { random.between(1, events) };
        life.settles = random.chance(1, 3);
        life.visit = Some(Visit {
            seed: random.bits(),
            verbs: random.below(12),
            pause: *random.choose(&[Nanos::millis(2), Nanos::millis(60), Nanos::millis(600)]),
            speed: *random.choose(&caretaker::SPEEDS),
            stays: random.coin(),
        });
        life
    }
}

/// A run under way.
struct Run<'a> {
    plan: &'a Plan,
    /// The devices in this life.
    world: World,
    /// Of the one volume.
    referee: Rc<RefCell<Referee>>,
    /// No copies differ as the life begins.
    in_sync: bool,
    /// By sector that bitmaps count: copies may differ as the life begins.
    unsettled: Vec<bool>,
    /// Something was written in this life: an array that is only read stays as it was found.
    wrote: bool,
    /// A client was told of an error, beside somebody's list.
    told: bool,
    /// Some data can be had no more, from whichever devices.
    is_lost: bool,
    verdict: Verdict,
}

impl Run<'_> {
    fn lives(&mut self, journal: bool) {
        let planned = self.plan.planned.iter();
        planned.for_each(|(device, n, fault)| self.world.fail_nth(*device, *n, *fault));
        for (number, life) in self.plan.lives.iter().enumerate() {
            let rests = self.live(number as u64, life);
            end_life(&mut self.world, &mut self.verdict.journal, journal);
            if self.verdict.violations.is_empty() {
                self.judge(rests, life);
            }
            if self.verdict.violations.is_empty() && life.settles && !self.is_lost {
                self.settle(number as u64);
            }
            if !self.verdict.violations.is_empty() || self.is_lost {
                return;
            }
        }
    }

    fn accuse(&mut self, violation: impl Into<String>) {
        self.verdict.violations.push(violation.into());
    }

    /// Finds the array on the devices.
    fn find(&mut self) -> Option<Found> {
        self.plan.array.find(&self.world).map_err(|violation| self.accuse(violation)).ok()
    }

    /// One life: clients at work until they are done, or the power is cut. Tells whether the array was put to rest.
    fn live(&mut self, number: u64, life: &Life) -> bool {
        let Some(found) = self.find() else { return false };
        let world = &self.world.clone();
        let intent = self.plan.array.intent(&found);
        let sectors = 0..self.plan.array.geometry().sync_sectors().0;
        self.unsettled = sectors.map(|sector| found.may_differ(intent.as_ref(), sector)).collect();
        let in_part = |member: &disks::Member| (1..disks::WHOLE).contains(&member.in_sync_to());
        let replacements = found.replacements.iter().map(|(_, member)| member);
        let resumed = found.members.iter().flatten().chain(replacements).any(in_part);
        self.verdict.resumed += u64::from(resumed);
        let victims = self.choose_victims(&found, life);
        let mercy = !life.no_mercy || !self.in_sync;
        world.set_chaos(self.plan.chaos);
        (0..world.devices()).for_each(|n| world.set_faults(FileId(n), self.plan.slowness.clone()));
        if life.visit.is_none() && life.healthy == Nanos(0) {
            victims.iter().for_each(|victim| world.set_faults(*victim, life.faults.clone()));
        }
        if life.cut > 0 {
            world.cut_at_event(world.events() + life.cut);
        }
        let built = self.plan.array.build(world, &found, self.plan.lies);
        let ended_well = self.serve(&built, number, life, &victims);
        let closed = !world.is_off() && close(world, &built.stack);
        let rests = ended_well && closed && !world.is_off();
        self.wrote = has_written(world);
        let members = built.array.status().members;
        self.verdict.mended += members.iter().map(|member| u64::from(member.corrected)).sum::<u64>();
        self.book();
        if mercy && !self.plan.excused {
            if !rests && !world.is_off() {
                self.accuse("the array could not be put to rest, although it can do without what failed");
            }
            // No member is given up for a discard: the client is told.
            let referee = self.referee.borrow();
            let failed = referee.failed - referee.excused - referee.failed_discards;
            drop(referee);
            if failed > 0 && life.despite_lists {
                self.told = true;
            } else if failed > 0 {
                self.accuse("a client was told of an error, although the array can do without what failed");
            }
        }
        self.verdict.failed += std::mem::take(&mut self.referee.borrow_mut().failed);
        self.referee.borrow_mut().excused = 0;
        rests
    }

    /// The devices that misbehave in a life.
    fn choose_victims(&self, found: &Found, life: &Life) -> Vec<FileId> {
        if !self.in_sync && life.visit.is_none() {
            return Vec::new();
        }
        let array = &self.plan.array;
        if life.no_mercy {
            return array.numbered().map(|(_, device)| device).collect();
        }
        let geometry = array.geometry();
        let mut victims: Vec<FileId> = Vec::new();
        for victim in &life.victims {
            victims.push(*victim);
            // Who is on the way to replace a member is all that there is in its place, once it has its data.
            let will_be_victim = |role| {
                found.replacements.iter().any(|(other, by)| *other == role && victims.contains(&by.device))
            };
            let has = |role| match life.despite_lists {
                true => found.has_but_for_lists(role).map(|member| member.device),
                false => found.has(role),
            };
            let is_well = |role: u16| {
                has(role).is_some_and(|device| !victims.contains(&device)) && !will_be_victim(role)
            };
            if !geometry.has_all_data(&is_well) {
                victims.pop();
            }
        }
        victims
    }

    /// Serves the stack to clients; tells whether all ended well.
    fn serve(&self, built: &Built, number: u64, life: &Life, victims: &[FileId]) -> bool {
        let (plan, world, quiescence) = (self.plan, &self.world, Quiescence::default());
        let worker = |n| worker(&built.stack, world.env(), n as u16, false, &quiescence);
        let mut workers: Vec<_> = (0..plan.workers).map(worker).collect();
        let handles = workers.iter().map(Worker::handle).collect();
        // Whoever looks after the array also ends the workers.
        let closing = Closing::new(if life.visit.is_some() { Vec::new() } else { handles });
        if let Some(visit) = &life.visit {
            let caretaker = self.caretaker(built, visit, life, victims, &closing, &workers);
            workers[0].open();
            workers[plan.workers - 1].spawn(|cx| caretaker.work(cx));
        }
        for n in 0..if life.alone { 0 } else { plan.clients } {
            let name = n as u32 + 100 * number as u32;
            let seed = plan.seed ^ number.rotate_left(32);
            let bios = plan.bios / plan.clients as u64;
            let mut config = ClientConfig::new(name, VolumeId(0), bios, plan.depth, seed);
            config.region = plan.region;
            if let Some(layout) = plan.array.parity().filter(|_| plan.rows) {
                config.len_max = u64::from(plan.array.chunk * u32::from(layout.data_disks())) * 512 * 3;
            }
            plan.pace.shape(&mut config);
            let client = SimClient::new(config, self.referee.clone(), closing.clone());
            workers[n % plan.workers].add_port(Box::new(client));
        }
        if let (Some(victim), Some(after), None) = (victims.first(), life.death, &life.visit) {
            workers[0].add_port(Box::new(Misbehaviour::new(*victim, DEAD, after)));
        }
        for victim in victims.iter().filter(|_| life.healthy > Nanos(0)) {
            let misbehaves = Misbehaviour::new(*victim, life.faults.clone(), life.healthy);
            workers[0].add_port(Box::new(misbehaves));
        }
        let ended_well = run_all(world, workers);
        if ended_well && !world.is_off() {
            // A worker that was stopped has flushed what it wrote.
            let oracle = &mut self.referee.borrow_mut().oracle;
            let flush = oracle.begin_flush();
            oracle.end_flush(flush, true);
        }
        assert!(
            world.is_off() || world.in_flight() == 0,
            "requests are in flight, but every worker has ended"
        );
        ended_well
    }

    fn caretaker(
        &self,
        built: &Built,
        visit: &Visit,
        life: &Life,
        victims: &[FileId],
        closing: &Rc<Closing>,
        workers: &[Worker<SimEnv>],
    ) -> Caretaker {
        Caretaker {
            visit: visit.clone(),
            plan: self.plan.array.clone(),
            world: self.world.clone(),
            array: built.array.clone(),
            disks: built.disks.clone(),
            differs: !self.in_sync,
            victims: victims.to_vec(),
            faults: life.faults.clone(),
            deadly: life.death.is_some(),
            closing: closing.clone(),
            workers: workers.iter().map(Worker::handle).collect(),
            referee: self.referee.clone(),
            tally: self.verdict.tally.clone(),
        }
    }

    /// Judges what a life has left behind, and lets Linux have it.
    fn judge(&mut self, rests: bool, life: &Life) {
        let Some(found) = self.find() else { return };
        let (plan, world) = (self.plan, &self.world.clone());
        let judge = Judge { plan: &plan.array, world, found: &found };
        let differing = judge.differing();
        self.verdict.differed += u64::from(!differing.is_empty());
        let listed = found.members.iter().flatten().any(|member| !member.bad.is_empty());
        self.verdict.listed += u64::from(listed);
        self.verdict.given_up += found.members.iter().filter(|member| member.is_none()).count() as u64;
        self.verdict.violations.extend(judge.differences_are_known(&differing));
        self.verdict.violations.extend(judge.who_is_lost_can_come_back());
        self.verdict.rests += u64::from(rests);
        let mercy = !life.no_mercy && !plan.excused;
        // What was discarded in part differs, which is on record.
        let agree = std::mem::take(&mut self.referee.borrow_mut().failed_discards) == 0;
        if rests && self.wrote && self.in_sync && agree && mercy && life.visit.is_none() {
            self.verdict.violations.extend(judge.is_at_rest());
        }
        if life.visit.is_some() || plan.array.parity().is_some() {
            let referee = &mut *self.referee.borrow_mut();
            referee.oracle.cut();
            let wrong = judge.readable_copies_hold_what_they_may(&referee.oracle, &self.unsettled);
            self.verdict.violations.extend(wrong);
        } else if self.in_sync {
            self.referee.borrow_mut().oracle.cut();
            self.verdict.violations.extend(judge.copies_hold_what_they_may(&self.referee.borrow().oracle));
        }
        if !self.verdict.violations.is_empty() {
            return;
        }
        let is_lost = life.despite_lists && !plan.excused && judge.has_lost_what_was_listed();
        self.verdict.forgotten += u64::from(is_lost | std::mem::take(&mut self.told));
        self.read_all(&found);
        if life.visit.is_some() {
            // What was read once stays the same.
            self.read_all(&found);
        }
        self.in_sync = found.truth.is_clean();
        let is_forced = plan.array.has_holes(&found) || judge.is_stuck();
        let mut found = found;
        if is_forced {
            self.verdict.holes += 1;
            if !linux::force(&plan.array, world, &found, &mut self.referee.borrow_mut().oracle) {
                self.is_lost = true;
                return;
            }
            let Some(forced) = self.find() else { return };
            (found, self.in_sync) = (forced, true);
        }
        if let Some(rebuild) = life.linux {
            linux::take_over(&plan.array, world, &found, rebuild);
            self.in_sync = true;
        }
    }

    /// Reads the whole volume; that writes nothing.
    fn read_all(&mut self, found: &Found) {
        let world = &self.world.clone();
        let Built { stack, .. } = self.plan.array.build(world, found, Lies::default());
        let worker = worker(&stack, world.env(), 0, false, &Quiescence::default());
        let closing = Closing::new(vec![worker.handle()]);
        let mut workers = vec![worker];
        let check = SimCheck::new(VolumeId(0), self.referee.clone(), closing.clone());
        let judge = Judge { plan: &self.plan.array, world, found };
        let (start, sectors) = self.plan.array.volume();
        let lost = (0..sectors).filter(|sector| judge.is_lost(start + sector)).collect();
        workers[0].add_port(Box::new(check.without(lost)));
        run_all(world, workers);
        close(world, &stack);
        if has_written(world) {
            self.accuse("an array that was only read was written to");
        }
        self.book();
    }

    fn book(&mut self) {
        let verdict = &mut self.verdict;
        verdict.note(&self.world);
        let referee = &mut *self.referee.borrow_mut();
        verdict.violations.append(&mut referee.violations);
        verdict.answered += std::mem::take(&mut referee.answered);
        verdict.durable += std::mem::take(&mut referee.durable);
    }
}
