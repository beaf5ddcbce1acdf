//! The apparatus of the snapshots' lab: from a seed to an origin with snapshots on simulated devices, clients of all of them
//! at once, power cuts, and a verdict.
//!
//! What must hold: (1) every client's oracle: an origin and a snapshot are volumes like any other, and each snapshot begins as a
//! copy of its origin, which was made when the power was last cut before there were snapshots; (2) a store that has
//! room, on devices without faults, is never lost; (3) whatever happens to a store, the clients of the origin do not notice; (4) a
//! snapshot that was lost stays lost; (5) what is found on a store after a cut contradicts the format nowhere; (6) from the moment
//! that a snapshot is merged, the origin's clients see that snapshot, whatever is merged so far, and in the end the origin's device
//! has it without any layer.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    FileId, Layer, LeafId, LeafLayer, LeafSource, NodeId, Quiescence, Sector, Sectors, Volume, VolumeId,
    Worker,
};
use blockwork_format::snapshot::{Exception, Found, Header, Layout, read};
use blockwork_layer::Linear;
use blockwork_layer::snapshot::{
    Family, Features, Merge, Merging, Origin, Persistence, Snapshot, SnapshotStatus, Step, StoreConfig,
};
use blockwork_sim::{
    Chaos, ClientConfig, Closing, DeviceModel, Fault, Faults, Lies, Random, Referee, SimCheck, SimClient,
    World,
};

use crate::running::bytes::Bytes;
use crate::running::devices::{draw_chaos, draw_device};
use crate::running::plans::{self, end_life, new_world};
use crate::running::{Nodes, Stack, caught, run_all, worker};

/// A snapshot of the plan.
#[derive(Clone, Debug)]
pub struct StorePlan {
    pub layout: Layout,
    /// Of the store.
    pub sectors: u64,
    pub overflow: bool,
    /// It has room for a copy of all chunks.
    pub is_roomy: bool,
}

/// Everything that a run does, drawn from its seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// How, as `replay` has to be told.
    pub drawn: &'static str,
    /// The first holds the origin; each of the others a store, unless all lie on the first.
    pub devices: Vec<DeviceModel>,
    pub one_disk: bool,
    pub origin_sectors: u64,
    pub stores: Vec<StorePlan>,
    pub chaos: Chaos,
    pub lies: Lies,
    /// Of the devices with stores only.
    pub faults: Faults,
    /// Faults on one request of one device each, in the first life.
    pub planned: Vec<(FileId, u64, Fault)>,
    pub workers: usize,
    pub clients: usize,
    pub bios: u64,
    pub depth: usize,
    pub region: u64,
    /// After which event the power is cut, life by life; 0: only when all is done.
    pub cuts: Vec<u64>,
    /// From which life on which snapshot is being merged.
    pub merge: Option<(usize, usize)>,
    /// Sectors that a step of it merges at most.
    pub merge_step: u64,
}

/// What a run came to.
pub type Verdict = plans::Verdict<Counts>;

/// What is counted here.
#[derive(Debug, Default)]
pub struct Counts {
    pub batches: u64,
    /// Snapshots that were lost, as their stores say; and those on whose disks that could not be written.
    pub lost: u64,
    pub unrecorded: u64,
    /// Snapshots that overflowed.
    pub overflowed: u64,
    /// Merges that came to their end, and those that failed.
    pub merged: u64,
    pub merge_failed: u64,
}

impl Plan {
    /// Stores with room, and no faults.
    pub fn draw(seed: u64) -> Plan {
        let random = &mut Random::part(seed, 1);
        let small_blocks = random.chance(2, 3);
        // Disks of small blocks may end anywhere.
        let odd = if small_blocks { Random::part(seed, 5).below(8) } else { 0 };
        let origin_sectors = random.between(2, 40) * 8 + odd;
        let one_disk = random.chance(1, 3);
        let stores: Vec<_> = (0..random.between(1, 3))
            .map(|_| StorePlan::draw(random, origin_sectors, small_blocks))
            .collect();
        let mut sizes = vec![origin_sectors + random.below(2) * 8];
        sizes.extend(stores.iter().map(|store| store.sectors));
        let devices = if one_disk {
            vec![draw_device(random, sizes.iter().sum(), small_blocks)]
        } else {
            sizes.iter().map(|sectors| draw_device(random, *sectors, small_blocks)).collect()
        };
        let bios = random.between(30, 150);
        Plan {
            seed,
            drawn: "",
            devices,
            one_disk,
            origin_sectors,
            stores,
            chaos: draw_chaos(random),
            lies: Lies::default(),
            faults: Faults::default(),
            planned: Vec::new(),
            workers: *random.choose(&[1, 1, 2, 3]),
            clients: random.index(4) + 3,
            bios,
            depth: *random.choose(&[1, 2, 4, 16, 64]),
            region: if random.coin() { 24 << 10 } else { u64::MAX },
            cuts: (0..random.between(1, 3))
                .map(|_| if random.chance(1, 5) { 0 } else { random.between(1, bios * 12) })
                .collect(),
            merge: None,
            merge_step: 0,
        }
    }

    /// As `draw`; after a life or two, a snapshot is merged while clients are at work on the origin and on the other snapshots.
    pub fn draw_merge(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        plan.drawn = "MERGE=1 ";
        plan.begin_merge(&mut Random::part(seed, 4));
        plan
    }

    /// The same where devices fail, that of the origin among them.
    pub fn draw_merge_trouble(seed: u64) -> Plan {
        let mut plan = Plan::draw_trouble(seed);
        plan.drawn = "MERGE=1 TROUBLE=1 ";
        plan.begin_merge(&mut Random::part(seed, 4));
        plan
    }

    /// One life of a few bios, all of them for the first two chunks of an origin and of its only snapshot.
    pub fn narrow(&mut self) {
        self.stores.truncate(1);
        let chunk = self.stores[0].layout.chunk_sectors();
        (self.region, self.bios, self.clients, self.depth) = (2 * chunk * 512, 24, 2, 4);
        self.cuts = vec![0];
    }

    fn begin_merge(&mut self, random: &mut Random) {
        let first = self.cuts.len().min(2);
        self.cuts.truncate(first);
        self.cuts.extend((0..random.between(1, 3)).map(|_| random.between(1, self.bios * 12)));
        self.merge = Some((first, random.index(self.stores.len())));
        self.merge_step = *random.choose(&[1, 8, 24, 40, 1000]);
    }

    /// Stores that are too small, or whose devices fail.
    pub fn draw_trouble(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        plan.drawn = "TROUBLE=1 ";
        let random = &mut Random::part(seed, 2);
        plan.one_disk = false;
        let none = Faults::default();
        plan.faults = match random.below(6) {
            0..3 => none,
            3 => Faults { write_errors: 20_000, ..none },
            4 => Faults { flush_errors: 20_000, short: 50_000, ..none },
            _ => Faults { permanent_errors: 10_000, again: 20_000, ..none },
        };
        let small_blocks = plan.devices[0].limits.logical_block_size == 512;
        for store in &mut plan.stores {
            if random.chance(2, 3) {
                store.make_small(random);
            }
        }
        let sizes =
            [vec![plan.origin_sectors], plan.stores.iter().map(|store| store.sectors).collect()].concat();
        plan.devices = sizes.iter().map(|sectors| draw_device(random, *sectors, small_blocks)).collect();
        if !small_blocks {
            plan.stores.iter_mut().for_each(|store| store.coarsen());
        }
        plan
    }

    /// Where store `nth` is: device and first sector.
    fn place(&self, nth: usize) -> (FileId, u64) {
        if !self.one_disk {
            return (FileId(nth as u32 + 1), 0);
        }
        let before: u64 = self.stores[..nth].iter().map(|store| store.sectors).sum();
        let all: u64 = self.stores.iter().map(|store| store.sectors).sum();
        (FileId(0), self.devices[0].sectors.0 - all + before)
    }
}

impl plans::Plan for Plan {
    type Counts = Counts;
    const TEST: &'static str = "snapshot";

    fn run_with(&self, journal: bool) -> Verdict {
        let mut run = Run::begin(self, new_world(self.seed, journal));
        let outcome = caught(|| run.lives(journal));
        run.verdict.violations.extend(outcome.err());
        run.verdict.journal.append(&mut run.world.journal());
        run.verdict
    }
    fn seed(&self) -> u64 {
        self.seed
    }
    fn drawn(&self) -> &'static str {
        self.drawn
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
        self.batches += other.batches;
        self.lost += other.lost;
        self.unrecorded += other.unrecorded;
        self.overflowed += other.overflowed;
        self.merged += other.merged;
        self.merge_failed += other.merge_failed;
    }
}

impl StorePlan {
    fn draw(random: &mut Random, origin: u64, small_blocks: bool) -> StorePlan {
        let chunk = *random.choose(if small_blocks { &[1, 2, 4, 8, 16][..] } else { &[8, 16, 32] });
        let layout = Layout::new(chunk).expect("a power of two");
        let chunks = origin.div_ceil(chunk.into());
        let areas = chunks / layout.exceptions_per_area() + 2;
        let sectors = (chunks + areas + 2 + random.below(2)) * layout.chunk_sectors();
        StorePlan { layout, sectors: sectors.next_multiple_of(8), overflow: random.coin(), is_roomy: true }
    }

    fn make_small(&mut self, random: &mut Random) {
        let chunks = self.sectors / self.layout.chunk_sectors();
        let some = random.between(3, chunks.max(4) - 1);
        self.sectors = (some * self.layout.chunk_sectors()).next_multiple_of(8);
        self.is_roomy = false;
    }

    /// For devices of 4 KiB blocks.
    fn coarsen(&mut self) {
        let chunk = self.layout.chunk_sectors().max(8);
        self.layout = Layout::new(chunk as u32).expect("a power of two");
        self.is_roomy = false;
        self.sectors = self.sectors.max(3 * chunk);
    }
}

/// An area without exceptions, but for what a write has left behind its end that was cut off.
fn remains(layout: Layout, random: &mut Random) -> Vec<u8> {
    let mut area = vec![0; layout.chunk_bytes() as usize];
    let nth = random.between(1, layout.exceptions_per_area().min(12)) as usize;
    let exception = Exception { old: random.below(4), new: 1 + nth as u64 };
    area.chunks_mut(16).skip(nth).take(1).for_each(|entry| entry.copy_from_slice(&exception.encode()));
    area
}

/// The layers of a life.
struct Built {
    stack: Stack,
    family: Arc<Family>,
    /// What is being merged.
    merge: Option<Arc<Merge>>,
    /// Whose referee each volume has.
    seats: Vec<usize>,
}

/// A run under way.
struct Run<'a> {
    plan: &'a Plan,
    world: World,
    /// Of the origin, then of the snapshots.
    referees: Vec<Rc<RefCell<Referee>>>,
    /// Snapshots that are judged no more: they were lost.
    lost: Vec<bool>,
    /// Those of which the server said so in this life.
    gone: Vec<bool>,
    /// The snapshot that is being merged.
    merging: Option<usize>,
    verdict: Verdict,
}

impl<'a> Run<'a> {
    /// The origin full of something, and new stores.
    fn begin(plan: &'a Plan, world: World) -> Run<'a> {
        for model in &plan.devices {
            world.add_device(model.clone());
        }
        let random = &mut Random::part(plan.seed, 3);
        let content: Vec<u8> =
            (0..plan.origin_sectors).flat_map(|_| [random.below(255) as u8 + 1; 512]).collect();
        world.preload(FileId(0), 0, &content);
        for nth in 0..plan.stores.len() {
            // Who makes a store makes its first sectors zeros; the rest is whatever was there.
            let (device, start) = plan.place(nth);
            let rest = vec![0xee; (plan.stores[nth].sectors as usize - 8) * 512];
            world.preload(device, start + 8, &rest);
            if random.chance(1, 4) {
                let layout = plan.stores[nth].layout;
                world.preload(device, start, &Header { valid: true, layout }.encode());
                world.preload(device, start + layout.chunk_sectors(), &remains(layout, random));
            }
        }
        let referees = (0..=plan.stores.len()).map(|_| {
            let referee = Referee::new(plan.origin_sectors);
            let oracle = &mut referee.borrow_mut().oracle;
            let write = oracle.begin_write(0, &content);
            oracle.end_write(write, true, true);
            referee.clone()
        });
        let referees = referees.collect();
        let none = vec![false; plan.stores.len()];
        Run {
            plan,
            world,
            referees,
            lost: none.clone(),
            gone: none,
            merging: None,
            verdict: Verdict::default(),
        }
    }

    fn lives(&mut self, journal: bool) {
        let planned = self.plan.planned.iter();
        planned.for_each(|(device, n, fault)| self.world.fail_nth(*device, *n, *fault));
        for (life, cut) in (0u64..).zip(&self.plan.cuts) {
            self.begin_merge(life as usize);
            self.live(life, *cut);
            let was_off = self.world.is_off();
            end_life(&mut self.world, &mut self.verdict.journal, journal);
            self.look_at_headers(was_off);
            if self.verdict.violations.is_empty() {
                self.judge();
            }
            if !self.verdict.violations.is_empty() {
                return;
            }
        }
        self.finish_merge();
    }

    /// From here on the origin is seen as the snapshot that is merged into it. A snapshot that is lost cannot be merged.
    fn begin_merge(&mut self, life: usize) {
        if let Some((first, nth)) = self.plan.merge
            && (first == life && !self.lost[nth])
        {
            self.merging = Some(nth);
            self.referees[0] = self.referees[nth + 1].clone();
        }
    }

    /// Merges what is left; then the origin has it all, without any layer.
    fn finish_merge(&mut self) {
        let Some(nth) = self.merging else { return };
        let Some(Built { stack, family, merge: Some(merge), .. }) = self.build(Lies::default()) else {
            return;
        };
        let mut merger = worker(&stack, self.world.env(), 0, false, &Quiescence::default());
        let steps = Rc::new(RefCell::new(Vec::new()));
        let told = steps.clone();
        merger.spawn(|cx| async move {
            loop {
                let step = merge.step(&cx).await;
                told.borrow_mut().push(step.clone());
                if step != Ok(Step::More) {
                    return;
                }
            }
        });
        merger.handle().stop();
        run_all(&self.world, vec![merger]);
        if steps.borrow().last() != Some(&Ok(Step::Done)) {
            self.accuse(format!("the merge does not come to its end: {:?}", steps.borrow().last()));
            return;
        }
        self.verdict.merged += 1;
        self.look_at_states(&family);
        self.world = self.world.power_cut();
        self.look_at_headers(false);
        let (device, start) = self.plan.place(nth);
        let bytes = Bytes { world: &self.world, device, start, sectors: self.plan.stores[nth].sectors };
        match read(&bytes, self.plan.origin_sectors) {
            Ok(Found::New) => {}
            Ok(Found::Valid(contents)) if contents.exceptions.is_empty() => {}
            other => self.accuse(format!("after the merge, the store holds {other:?}")),
        }
        self.merging = None;
        self.lost[nth] = true;
        self.judge();
    }

    fn accuse(&mut self, violation: String) {
        self.verdict.violations.push(violation);
    }

    /// The layers of this life, over what is on the devices.
    fn build(&mut self, lies: Lies) -> Option<Built> {
        let (plan, world) = (self.plan, self.world.clone());
        let mut nodes = Nodes::default();
        let mut leaves: Vec<(NodeId, Arc<dyn LeafSource>)> = Vec::new();
        let mut disks: Vec<Arc<dyn Layer>> = Vec::new();
        for device in (0..world.devices()).map(FileId) {
            let (node, source) = (nodes.next(), Arc::new(world.lying_source(device, lies)));
            let (sectors, limits) = (source.sectors(), source.limits().clone());
            disks.push(Arc::new(LeafLayer::new(LeafId(device.0 as u16), node, sectors, limits)));
            leaves.push((node, source));
        }
        let mut part = |device: FileId, start: u64, sectors: u64| -> Arc<dyn Layer> {
            let linear =
                Linear::new(nodes.next(), disks[device.0 as usize].clone(), Sector(start), Sectors(sectors));
            Arc::new(linear.expect("devices are as large as what lies on them"))
        };
        let origin = part(FileId(0), 0, plan.origin_sectors);
        let mut snapshots = Vec::new();
        for (nth, store) in plan.stores.iter().enumerate() {
            let (device, start) = plan.place(nth);
            let bytes = Bytes { world: &world, device, start, sectors: store.sectors };
            match read(&bytes, plan.origin_sectors) {
                Err(error) => {
                    self.accuse(format!("store {nth} after a cut: {error}"));
                    return None;
                }
                Ok(found) => snapshots.push(StoreConfig {
                    name: format!("snapshot {nth}"),
                    store: part(device, start, store.sectors),
                    sectors: Sectors(plan.origin_sectors),
                    layout: store.layout,
                    persistence: Persistence::Persistent { overflow: store.overflow },
                    features: Features::default(),
                    found,
                    unusable: false,
                }),
            }
        }
        let family = match self.merging {
            Some(nth) => Family::with_merge(origin, snapshots, nth),
            None => Family::new(origin, snapshots),
        };
        let family = family.expect("a family that fits");
        let merge = Merge::new(family.clone(), Sectors(plan.merge_step));
        let top: Arc<dyn Layer> = match &merge {
            Some(merge) => Arc::new(Merging::new(nodes.next(), merge.clone(), true)),
            None => Arc::new(Origin::new(nodes.next(), family.clone())),
        };
        let (mut volumes, mut seats) = (vec![Volume::new("origin", top, false)], vec![0]);
        for nth in (0..plan.stores.len()).filter(|nth| self.merging != Some(*nth)) {
            let layer = Snapshot::new(nodes.next(), family.clone(), nth).expect("there are so many");
            volumes.push(Volume::new(format!("snapshot {nth}"), Arc::new(layer), false));
            seats.push(nth + 1);
        }
        let nodes = nodes.0.into();
        let stack = Stack { volumes: volumes.into(), leaves: leaves.into(), nodes };
        Some(Built { stack, family, merge, seats })
    }

    /// One life: clients at work until they are done, or the power is cut.
    fn live(&mut self, life: u64, cut: u64) {
        let Some(Built { stack, family, merge, seats }) = self.build(self.plan.lies) else { return };
        let (plan, world) = (self.plan, self.world.clone());
        world.set_chaos(plan.chaos);
        let first = if merge.is_some() { 0 } else { 1 };
        (first..world.devices()).for_each(|n| world.set_faults(FileId(n), plan.faults.clone()));
        if cut > 0 {
            world.cut_at_event(world.events() + cut);
        }
        let quiescence = Quiescence::default();
        let mut workers: Vec<_> =
            (0..plan.workers).map(|n| worker(&stack, world.env(), n as u16, false, &quiescence)).collect();
        let closing = Closing::new(workers.iter().map(Worker::handle).collect());
        for n in 0..plan.clients {
            let volume = n % seats.len();
            let seed = plan.seed ^ life.rotate_left(32);
            let number = n as u32 + 100 * life as u32;
            let bios = plan.bios / plan.clients as u64;
            let mut config = ClientConfig::new(number, VolumeId(volume as u16), bios, plan.depth, seed);
            config.region = plan.region;
            config.len_max = 24 << 10;
            let client = SimClient::new(config, self.referees[seats[volume]].clone(), closing.clone());
            workers[n % plan.workers].add_port(Box::new(client));
        }
        if merge.is_some() {
            workers[0].open();
        }
        let ended_well = run_all(&world, workers);
        if ended_well && !world.is_off() {
            for referee in &self.referees {
                let oracle = &mut referee.borrow_mut().oracle;
                let flush = oracle.begin_flush();
                oracle.end_flush(flush, true);
            }
        }
        self.verdict.batches += family.batches();
        self.book();
        self.look_at_states(&family);
    }

    /// After a life: which snapshots were lost, and whether there was a reason. (That the power is off is one.)
    fn look_at_states(&mut self, family: &Family) {
        for nth in 0..self.plan.stores.len() {
            let status = family.status(nth);
            self.verdict.overflowed += u64::from(status == Some(SnapshotStatus::Overflow));
            self.gone[nth] = status == Some(SnapshotStatus::Invalid);
            if status == Some(SnapshotStatus::MergeFailed) && !self.world.is_off() {
                self.verdict.merge_failed += 1;
                if self.verdict.faults == 0 {
                    self.accuse(format!("the merge of snapshot {nth} failed without a reason"));
                }
            }
            if self.gone[nth] && !self.may_be_lost(nth) && !self.world.is_off() {
                self.accuse(format!("snapshot {nth} was lost without a reason"));
            }
        }
    }

    fn may_be_lost(&self, nth: usize) -> bool {
        !self.plan.stores[nth].is_roomy || self.verdict.faults > 0
    }

    /// What the stores say of losses. Where a disk fails, it may be that this too could not be written.
    fn look_at_headers(&mut self, was_off: bool) {
        for nth in 0..self.plan.stores.len() {
            let (device, start) = self.plan.place(nth);
            let sectors = self.plan.stores[nth].sectors;
            let bytes = Bytes { world: &self.world, device, start, sectors };
            let is_invalid = matches!(read(&bytes, self.plan.origin_sectors), Ok(Found::Invalid(_)));
            if is_invalid && !self.may_be_lost(nth) {
                self.accuse(format!("store {nth} says without a reason that its snapshot is lost"));
            }
            let unrecorded = self.gone[nth] && !is_invalid;
            if unrecorded && self.verdict.faults == 0 && !was_off {
                self.accuse(format!("snapshot {nth} was lost, and its store does not say so"));
            }
            self.verdict.lost += u64::from(is_invalid && !self.lost[nth]);
            self.verdict.unrecorded += u64::from(unrecorded && self.verdict.faults > 0 && !self.lost[nth]);
            self.lost[nth] |= is_invalid || (unrecorded && self.verdict.faults > 0);
        }
    }

    /// After a cut: what is on the devices, read through a new stack.
    fn judge(&mut self) {
        let Some(Built { stack, seats, .. }) = self.build(Lies::default()) else { return };
        let mut checker = worker(&stack, self.world.env(), 0, false, &Quiescence::default());
        let closing = Closing::new(vec![checker.handle()]);
        for (volume, seat) in (0..).zip(seats) {
            let referee = &self.referees[seat];
            if seat == 0 || !self.lost[seat - 1] {
                checker.add_port(Box::new(SimCheck::new(VolumeId(volume), referee.clone(), closing.clone())));
            } else {
                referee.borrow_mut().oracle.cut();
            }
        }
        run_all(&self.world, vec![checker]);
        self.book();
    }

    fn book(&mut self) {
        let is_merging = self.merging.is_some();
        let verdict = &mut self.verdict;
        verdict.note(&self.world);
        for (volume, referee) in self.referees.iter().enumerate() {
            let referee = &mut *referee.borrow_mut();
            // A snapshot that may be lost may refuse anything; but what it answers must be right.
            let roomy = volume == 0 || self.plan.stores[volume - 1].is_roomy;
            let may_fail =
                if volume > 0 { !roomy || verdict.faults > 0 } else { is_merging && verdict.faults > 0 };
            let mut violations = std::mem::take(&mut referee.violations);
            violations
                .retain(|violation| !(may_fail && violation.contains("without a fault that explains it")));
            if volume == 0 || !self.lost[volume - 1] {
                verdict.violations.append(&mut violations);
            }
            let (failed, excused) =
                (std::mem::take(&mut referee.failed), std::mem::take(&mut referee.excused));
            if volume == 0 && failed > excused && !may_fail {
                verdict.violations.push(format!("{} bios of the origin failed", failed - excused));
            }
            verdict.answered += std::mem::take(&mut referee.answered);
            verdict.failed += failed;
            verdict.durable += std::mem::take(&mut referee.durable);
        }
    }
}
