//! The apparatus of the lab for RAID volumes of LVM: from a seed to a group, lives with troubles and cuts, and a verdict.
//!
//! A life is: some of the disks are there, and the volume is assembled from what is on them, by the code that serves it ([`group`]); it is read, and
//! served to clients, while legs that were away are filled; devices fail, and the power goes. After each life the bytes are judged, with all disks
//! there ([`judge`]). In the end the volume is let alone until nothing is due, and then any legs that are enough have to give the same ([`settle`]).
//!
//! Legs come and go between lives: the ones that a life has are enough of those that were in sync at the end of the last one, and any of the others.
//! What is out of date is not there without what is not, but in lives that are about just that ([`apart`]).
//!
//! Where copies may differ, as the power went while they were being written, who is read may change with the legs that are there. So it is left
//! open what clients find then, among what they may find; and no leg of a volume with a parity goes away before its parities fit again. Nor does any
//! device misbehave then but those of legs that are out of date.

mod apart;
pub mod group;
mod judge;
mod keeper;
mod settle;

use std::cell::RefCell;
use std::rc::Rc;

use blockwork_engine::{Errno, FileId, Nanos, Quiescence, VolumeId, Worker};
use blockwork_format::dm_raid::IN_SYNC;
use blockwork_layer::md::MemberState;
use blockwork_sim::{
    Chaos, ClientConfig, Closing, Fault, Faults, Lies, Random, Referee, SimCheck, SimClient, World,
};

use crate::arrays::troubles::{DEAD, Misbehaviour, draw_faults};
use crate::arrays::{Pace, close, has_written};
use crate::running::devices::draw_chaos;
use crate::running::plans::{self, end_life, new_world};
use crate::running::{Stack, caught, run_all, worker};
use group::{GroupPlan, How, Open, Start};
use judge::{Judge, is_whole};
use keeper::{Keeper, SPEEDS};

/// What happens in a life.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// After which event the power is cut; 0: only when all is done.
    pub cut: u64,
    /// Devices that are not there, as far as the volume can do without them.
    pub absent: Vec<FileId>,
    /// Devices that misbehave, as far as it can do without these as well.
    pub victims: Vec<FileId>,
    /// How they do.
    pub faults: Faults,
    /// When they begin to.
    pub healthy: Nanos,
    /// When the first of them dies altogether.
    pub death: Option<Nanos>,
    /// All devices are victims, whatever the volume can do without.
    pub no_mercy: bool,
    /// How fast legs are filled.
    pub speed: (u64, u64),
    /// All that is due is done before the volume is stopped.
    pub stays: bool,
    /// There are no clients.
    pub alone: bool,
}

/// Everything that a run does, drawn from its seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub group: GroupPlan,
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
    /// Legs are used apart.
    pub is_apart: bool,
}

/// The first seed of plans in which legs are used apart.
pub const APART: u64 = 1_000_000_000;

/// What a run came to.
pub type Verdict = plans::Verdict<Counts>;

/// What is counted here.
#[derive(Debug, Default)]
pub struct Counts {
    /// Lives that ended in order.
    pub rests: u64,
    /// Lives after which copies differed, or parities did not fit.
    pub differed: u64,
    /// Lives without some devices.
    pub without: u64,
    /// Legs that went, or failed, in a life.
    pub lost: u64,
    /// Legs that were filled in a life.
    pub filled: u64,
    /// Legs that had begun to be filled before a life, and were not filled by then.
    pub resumed: u64,
    /// Lives that began with a volume of which nobody knows all data.
    pub holes: u64,
    /// Of these, such that had a leg that was filled in part: what parities say there that may not fit is not made good by filling the rest, so that the
    /// run ends there.
    pub halves: u64,
    /// Times that nothing was due any more.
    pub settled: u64,
    /// Sets of legs that were read by themselves then.
    pub sets: u64,
    /// Times that legs were there together which had been used apart.
    pub apart: u64,
    /// What the legs said before each life.
    pub diary: Vec<String>,
}

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let random = &mut Random::part(seed, 11);
        let group = GroupPlan::draw(random);
        let bios = random.between(20, 100);
        let pace = Pace::draw(random);
        let events = if let Pace::Trickle = pace { bios * 40 } else { bios * 12 };
        let lives = random.between(2, 5);
        Plan {
            seed,
            lives: (0..lives).map(|_| Life::draw(random, &group, events)).collect(),
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
            rows: group.parity().is_some() && random.coin(),
            slowness: Faults {
                stalls: *random.choose(&[0, 0, 10_000]),
                stall_time: Nanos::secs(10),
                ..Faults::default()
            },
            is_apart: false,
            group,
        }
    }

    /// The plan of a seed, by the range that it is in.
    pub fn of(seed: u64) -> Plan {
        if seed < APART { Plan::draw(seed) } else { Plan::draw_apart(seed) }
    }

    /// A short one, of two lives that are cut nowhere yet: in the first a leg is away, in the second it comes back.
    pub fn shortened(mut self) -> Plan {
        (self.bios, self.pace, self.slowness) = (12, Pace::Rush, Faults::default());
        (self.group.start, self.group.stale) = (Start::InSync, None);
        let away = self.group.devices_of((self.seed % u64::from(self.group.legs)) as u16)[0];
        let life = Life { speed: (200_000, 200_000), stays: true, ..Life::default() };
        self.lives = vec![Life { absent: vec![away], ..life.clone() }, life];
        self
    }

    /// A short one of one life with all devices, in which nothing is amiss but one fault that is planned.
    pub fn with_nothing_amiss_but(self, fault: Fault) -> Plan {
        let mut plan = self.shortened();
        plan.bios = 16;
        plan.lives.remove(0);
        // A file system that is full is no broken disk.
        plan.excused = fault == Fault::Error(Errno::ENOSPC);
        plan
    }
}

impl plans::Plan for Plan {
    type Counts = Counts;
    const TEST: &'static str = "lvm_raid";

    fn run_with(&self, journal: bool) -> Verdict {
        let world = new_world(self.seed, journal);
        self.group.make(&world);
        let referee = Referee::new(self.group.sectors());
        self.group.tell(&mut referee.borrow_mut().oracle);
        let whole = (0..self.group.legs).filter(|leg| self.group.stale != Some(*leg)).collect();
        let calm = self.group.start != Start::New;
        let verdict = Verdict::default();
        let mut run =
            Run { plan: self, world, referee, whole, differs: !calm, calm, is_over: false, journal, verdict };
        let outcome = caught(|| run.lives());
        run.verdict.violations.extend(outcome.err());
        run.verdict.journal.append(&mut run.world.journal());
        let diary = std::mem::take(&mut run.verdict.diary);
        run.verdict.journal.extend(diary);
        run.verdict
    }
    fn seed(&self) -> u64 {
        self.seed
    }
    fn cuts(&self) -> Vec<u64> {
        if self.is_apart { vec![0] } else { self.lives.iter().map(|life| life.cut).collect() }
    }
    fn cut(&mut self, life: usize, event: u64) {
        if let Some(life) = self.lives.get_mut(life) {
            life.cut = event;
        }
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
        self.without += other.without;
        self.lost += other.lost;
        self.filled += other.filled;
        self.resumed += other.resumed;
        self.holes += other.holes;
        self.halves += other.halves;
        self.settled += other.settled;
        self.sets += other.sets;
        self.apart += other.apart;
    }
}

impl Life {
    /// One that has about so many events.
    fn draw(random: &mut Random, group: &GroupPlan, events: u64) -> Life {
        let devices = group.all();
        let some = |random: &mut Random, most: usize| {
            let mut all = devices.clone();
            (1..all.len()).rev().for_each(|i| all.swap(i, random.index(i + 1)));
            all.truncate(random.index(most + 1));
            all
        };
        let most = if random.chance(1, 8) { devices.len() } else { 2 };
        let absent = some(random, most);
        let victims = if random.coin() { some(random, 2) } else { Vec::new() };
        let no_mercy = random.chance(1, 16);
        let mut faults = draw_faults(random);
        if no_mercy {
            // What the only copy has forgotten, nobody can bring back.
            faults.lost_flushes = 0;
        }
        Life {
            cut: if random.chance(1, 4) { 0 } else { random.between(1, events) },
            absent,
            victims,
            faults,
            healthy: Nanos(random.below(*random.clone().choose(&[1, 20_000_000, 500_000_000]))),
            death: random.chance(1, 4).then(|| Nanos(random.below(200_000_000))),
            no_mercy,
            speed: *random.choose(&SPEEDS),
            stays: random.coin(),
            alone: random.chance(1, 10),
        }
    }
}

/// A run under way.
struct Run<'a> {
    plan: &'a Plan,
    /// The devices in this life.
    world: World,
    /// Of the one volume.
    referee: Rc<RefCell<Referee>>,
    /// Legs that were in sync when the last life ended.
    whole: Vec<u16>,
    /// Copies of these differ.
    differs: bool,
    /// They do not, and nobody says that they might.
    calm: bool,
    /// Nothing more can be judged.
    is_over: bool,
    /// Somebody is going to read what has happened.
    journal: bool,
    verdict: Verdict,
}

impl Run<'_> {
    fn lives(&mut self) {
        if self.plan.is_apart {
            return self.lives_apart();
        }
        let planned = self.plan.planned.iter();
        planned.for_each(|(device, n, fault)| self.world.fail_nth(*device, *n, *fault));
        for (number, life) in self.plan.lives.iter().enumerate() {
            let present = self.choose_present(life);
            let rests = self.live(number as u64, life, &present);
            if self.is_over {
                return;
            }
            end_life(&mut self.world, &mut self.verdict.journal, self.journal);
            self.verdict.rests += u64::from(rests);
            if self.verdict.violations.is_empty() {
                self.judge();
            }
            if !self.verdict.violations.is_empty() {
                return;
            }
        }
        self.settle();
    }

    fn accuse(&mut self, violation: impl Into<String>) {
        self.verdict.violations.push(violation.into());
    }

    /// The devices that are there in a life: enough of those whose legs are in sync, and any others.
    fn choose_present(&mut self, life: &Life) -> Vec<FileId> {
        let group = &self.plan.group;
        let mut present = group.all();
        for absent in &life.absent {
            let without: Vec<FileId> = present.iter().copied().filter(|device| device != absent).collect();
            let left: Vec<u16> = group.legs_on(&without).filter(|leg| self.whole.contains(leg)).collect();
            let is_needed = group.parity().is_some() && !self.calm;
            let all_stay = self.whole.iter().all(|leg| left.contains(leg));
            if all_stay || (!is_needed && group.geometry().has_all_data(&|leg| left.contains(&leg))) {
                present = without;
            }
        }
        self.verdict.without += u64::from(present.len() < group.devices.len());
        present
    }

    /// The devices that misbehave in a life.
    fn choose_victims(&self, life: &Life, present: &[FileId]) -> Vec<FileId> {
        let group = &self.plan.group;
        if life.no_mercy && self.calm {
            return present.to_vec();
        }
        let mut victims: Vec<FileId> = Vec::new();
        for victim in life.victims.iter().filter(|victim| present.contains(victim)) {
            victims.push(*victim);
            let sound: Vec<FileId> =
                present.iter().copied().filter(|device| !victims.contains(device)).collect();
            let is_whole = |leg: &u16| self.whole.contains(leg);
            let left: Vec<u16> = group.legs_on(&sound).filter(is_whole).collect();
            let all_stay = group.legs_on(present).filter(is_whole).all(|leg| left.contains(&leg));
            if !(all_stay || self.calm && group.geometry().has_all_data(&|leg| left.contains(&leg))) {
                victims.pop();
            }
        }
        victims
    }

    /// One life: the volume is served until its clients are done, or the power is cut. Tells whether it was put to rest.
    fn live(&mut self, number: u64, life: &Life, present: &[FileId]) -> bool {
        self.keep_diary(&format!("life {number} with {present:?}"));
        let Some(open) = self.open(present) else { return false };
        let (plan, world) = (self.plan, &self.world.clone());
        self.look_who_is_there(&open);
        let victims = self.choose_victims(life, present);
        let mercy = !(life.no_mercy && self.calm);
        world.set_chaos(plan.chaos);
        (0..world.devices()).for_each(|n| world.set_faults(FileId(n), plan.slowness.clone()));
        if life.healthy == Nanos(0) {
            victims.iter().for_each(|victim| world.set_faults(*victim, life.faults.clone()));
        }
        if life.cut > 0 {
            world.cut_at_event(world.events() + life.cut);
        }
        let ended_well = self.serve(&open, number, life, &victims);
        let closed = !world.is_off() && close(world, &open.stack);
        let rests = ended_well && closed && !world.is_off();
        let before: Vec<u16> = self.whole.clone();
        let filled =
            (0..plan.group.legs).filter(|leg| is_whole(&open.array.status(), *leg) && !before.contains(leg));
        self.verdict.filled += filled.count() as u64;
        self.book();
        if mercy && !plan.excused {
            if !rests && !world.is_off() {
                self.accuse("the volume could not be put to rest, although it can do without what failed");
            }
            // No leg is given up for a discard: the client is told.
            let referee = self.referee.borrow();
            let failed = referee.failed - referee.excused - referee.failed_discards;
            drop(referee);
            if failed > 0 {
                self.accuse("a client was told of an error, although the volume can do without what failed");
            }
        }
        let referee = &mut *self.referee.borrow_mut();
        self.verdict.failed += std::mem::take(&mut referee.failed);
        (referee.excused, referee.failed_discards) = (0, 0);
        rests
    }

    /// The volume, to be served: it can be, with the devices that are there. What clients find is settled, or left open.
    fn open(&mut self, present: &[FileId]) -> Option<Open> {
        let (plan, world) = (&self.plan.group, &self.world.clone());
        let how = How { lies: self.plan.lies, ..How::default() };
        self.referee.borrow_mut().oracle.cut();
        let open = match plan.open(world, present, how) {
            Ok(open) => open,
            Err(why) => {
                let (whole, legs) = (self.whole.clone(), plan.legs_on(present).collect::<Vec<_>>());
                self.accuse(format!("with legs {legs:?}, of which {whole:?} were in sync: {why}"));
                return None;
            }
        };
        let Some(why) = &open.read_only else {
            self.read(present, false);
            return Some(open);
        };
        let is_degraded = (0..plan.legs).any(|leg| !is_whole(&open.array.status(), leg));
        if plan.parity().is_none() || !is_degraded || self.calm {
            self.accuse(format!("it must not be written: {why}"));
            return None;
        }
        // People take the parities as they are.
        self.verdict.holes += 1;
        let status = open.array.status();
        let is_half_filled = |state: MemberState| matches!(state, MemberState::Recovering(end) if end.0 > 0);
        if status.members.iter().any(|member| is_half_filled(member.state)) {
            self.verdict.halves += 1;
            self.is_over = true;
            return None;
        }
        let judge = Judge { plan, world, status: &status };
        {
            let oracle = &mut self.referee.borrow_mut().oracle;
            for (sector, bytes) in judge.guesses(oracle) {
                if oracle.settle(sector, &bytes).is_err() {
                    let write = oracle.begin_write(sector * 512, &bytes);
                    oracle.end_write(write, true, true);
                }
            }
        }
        let told = plan.open(world, present, How { told: true, ..how });
        self.read(present, true);
        told.map_err(|why| self.accuse(format!("although the parities are to be taken as they are: {why}")))
            .ok()
    }

    /// Reads the whole volume, which writes nothing, so that all know what it holds; but not where copies differ, since another one may be read the
    /// next time.
    fn read(&mut self, present: &[FileId], told: bool) {
        let plan = &self.plan.group;
        let is_open = plan.parity().is_none() && (self.differs || plan.start == Start::NoSync);
        if is_open {
            self.referee.borrow_mut().oracle.leave_open();
            return;
        }
        let how = How { read_only: true, told, ..How::default() };
        match plan.open(&self.world, present, how) {
            Ok(Open { stack, .. }) => self.check(&stack),
            Err(why) => self.accuse(format!("who only reads it is told: {why}")),
        }
    }

    fn check(&mut self, stack: &Stack) {
        let world = &self.world.clone();
        let before = has_written(world);
        let worker = worker(stack, world.env(), 0, false, &Quiescence::default());
        let closing = Closing::new(vec![worker.handle()]);
        let mut workers = vec![worker];
        workers[0].add_port(Box::new(SimCheck::new(VolumeId(0), self.referee.clone(), closing.clone())));
        run_all(world, workers);
        close(world, stack);
        if has_written(world) && !before {
            self.accuse("a volume that was only read was written to");
        }
        self.book();
    }

    fn look_who_is_there(&mut self, open: &Open) {
        for member in open.array.status().members {
            let is_begun = matches!(member.state, MemberState::Recovering(end) if end.0 > 0);
            self.verdict.resumed += u64::from(is_begun);
        }
    }

    /// Serves the volume to clients; tells whether all ended well.
    fn serve(&self, open: &Open, number: u64, life: &Life, victims: &[FileId]) -> bool {
        let (plan, world, quiescence) = (self.plan, &self.world, Quiescence::default());
        let worker = |n| worker(&open.stack, world.env(), n as u16, false, &quiescence);
        let mut workers: Vec<_> = (0..plan.workers).map(worker).collect();
        // Whoever keeps the volume also ends the workers.
        let closing = Closing::new(Vec::new());
        let keeper = Keeper {
            world: world.clone(),
            array: open.array.clone(),
            speed: life.speed,
            stays: life.stays,
            closing: closing.clone(),
            workers: workers.iter().map(Worker::handle).collect(),
        };
        workers[0].open();
        workers[plan.workers - 1].spawn(|cx| keeper.work(cx));
        for n in 0..if life.alone { 0 } else { plan.clients } {
            let name = n as u32 + 100 * number as u32;
            let seed = plan.seed ^ number.rotate_left(32);
            let bios = plan.bios / plan.clients as u64;
            let mut config = ClientConfig::new(name, VolumeId(0), bios, plan.depth, seed);
            config.region = plan.region;
            if let Some(layout) = plan.group.parity().filter(|_| plan.rows) {
                config.len_max = plan.group.stripe * u64::from(layout.data_disks()) * 512 * 3;
            }
            plan.pace.shape(&mut config);
            let client = SimClient::new(config, self.referee.clone(), closing.clone());
            workers[n % plan.workers].add_port(Box::new(client));
        }
        let begins = victims.iter().filter(|_| life.healthy > Nanos(0));
        let begins = begins.map(|victim| (*victim, life.faults.clone(), life.healthy));
        let dies = victims.first().zip(life.death).map(|(victim, after)| (*victim, DEAD, after));
        for (victim, faults, after) in begins.chain(dies) {
            workers[0].add_port(Box::new(Misbehaviour::new(victim, faults, after)));
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

    /// Judges what a life has left behind, when all devices are there again.
    fn judge(&mut self) {
        self.judge_with(&self.plan.group.all());
    }

    /// Likewise, with only some devices.
    fn judge_with(&mut self, present: &[FileId]) {
        let (plan, world) = (&self.plan.group, &self.world.clone());
        let open = match plan.open(world, present, How { read_only: true, ..How::default() }) {
            Ok(open) => open,
            Err(why) => return self.accuse(format!("with {present:?}: {why}")),
        };
        let status = open.array.status();
        let judge = Judge { plan, world, status: &status };
        let differing = judge.differing();
        self.verdict.violations.extend(judge.differences_are_known(&differing));
        {
            let oracle = &mut self.referee.borrow_mut().oracle;
            oracle.cut();
            self.verdict.violations.extend(judge.copies_hold_what_they_may(oracle));
        }
        self.verdict.differed += u64::from(!differing.is_empty());
        self.differs = !differing.is_empty();
        // What differs for ever is nothing that clients count on.
        let is_known = self.differs && plan.start != Start::NoSync;
        let whole: Vec<u16> = (0..plan.legs).filter(|leg| judge.is_whole(*leg)).collect();
        self.calm = !is_known && judge.says_nobody_that_a_resync_is_due(&whole);
        self.verdict.lost += self.whole.iter().filter(|leg| !whole.contains(leg)).count() as u64;
        self.whole = whole;
    }

    /// Notes for whoever reads the journal what the legs say of themselves and each other.
    fn keep_diary(&mut self, what: &str) {
        if !self.journal {
            return;
        }
        let plan = &self.plan.group;
        let legs = (0..plan.legs).map(|leg| {
            let said = plan.superblock(&self.world, leg).map(|it| {
                let failed: Vec<u16> = (0..plan.legs).filter(|other| it.has_failed(*other)).collect();
                let offset =
                    |sector: u64| if sector == IN_SYNC { "-".to_owned() } else { sector.to_string() };
                let (filled, resync) = (offset(it.disk_recovery_offset), offset(it.array_resync_offset));
                format!("events {}, failed {failed:?}, filled to {filled}, resync from {resync}", it.events)
            });
            let bits =
                plan.bitmap(&self.world, leg).map(|(it, bits)| (it.events_cleared, bits.dirty_chunks()));
            format!("  leg {leg}: {said:?}, (events cleared, bits) {bits:?}")
        });
        let whole = format!("{what}; in sync {:?}, calm: {}", self.whole, self.calm);
        self.verdict.diary.extend(std::iter::once(whole).chain(legs));
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
