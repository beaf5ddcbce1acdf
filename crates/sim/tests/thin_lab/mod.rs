//! The apparatus of the thin pools' lab: from a seed to a pool on simulated devices, clients of several of its volumes at once, somebody
//! who makes and deletes snapshots and extends the pool meanwhile, power cuts, and a verdict.
//!
//! What must hold: (1) every client's oracle: a thin volume is a volume like any other; (2) a snapshot has what its origin had when it
//! was made, and stays so, through cuts, until somebody writes to it; (3) after a cut, the pool's own check finds nothing: no block
//! is owned twice or leaked, no tree damaged; (4) no I/O fails without a fault, unless the pool is too small; (5) where the
//! metadata device fails, what was flushed is there all the same.

pub mod caretaker;
pub mod image;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    FileId, Layer, LeafId, LeafLayer, LeafSource, Nanos, NodeId, Quiescence, Sector, Sectors, Volume,
    VolumeId, Worker,
};
use blockwork_format::Source;
use blockwork_format::thin::build::{Contents, Device, Mappings, build};
use blockwork_format::thin::{DeviceDetails, Superblock};
use blockwork_layer::Linear;
use blockwork_layer::thin::check::check;
use blockwork_layer::thin::{
    Discards, METADATA_KEPT, Mode, Pool, PoolConfig, PoolFeatures, Thin, ThinConfig,
};
use blockwork_sim::{
    Chaos, ClientConfig, Closing, DeviceModel, Fault, Faults, Lies, Random, Referee, SimCheck, SimClient,
    World,
};

use crate::running::bytes::Bytes;
use crate::running::devices::{draw_chaos, draw_device};
use crate::running::plans::{self, end_life, new_world};
use crate::running::{Nodes, Stack, caught, run_all, worker};
use caretaker::{Caretaker, Extent, Known, Served};

const METADATA: FileId = FileId(0);
const DATA: FileId = FileId(1);

/// Sectors of a block of data: the smallest that there are.
const BLOCK: u64 = 128;

/// Blocks at the beginning of the data device that hold something from before.
const OLD_BLOCKS: u64 = 40;

/// Most volumes that clients use at once.
const SERVED_MAX: usize = 4;

/// Everything that a run does, drawn from its seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// How, as `replay` has to be told.
    pub drawn: &'static str,
    pub devices: Vec<DeviceModel>,
    /// What the pool has of them at first, sectors.
    pub metadata: u64,
    pub data: u64,
    /// Sizes of its first volumes, sectors.
    pub volumes: Vec<u64>,
    pub features: PoolFeatures,
    /// There is space for everything.
    pub is_roomy: bool,
    pub cache_bytes: usize,
    pub chaos: Chaos,
    pub lies: Lies,
    /// Of the metadata device, and of the data device.
    pub faults: [Faults; 2],
    pub planned: Vec<(FileId, u64, Fault)>,
    pub workers: usize,
    pub clients: usize,
    pub bios: u64,
    pub depth: usize,
    pub region: u64,
    pub verbs: u64,
    pub pause: Nanos,
    /// What the metadata device held in the end is wanted.
    pub wants_image: bool,
    /// After which event the power is cut, life by life; 0: only when all is done.
    pub cuts: Vec<u64>,
}

/// What a run came to.
pub type Verdict = plans::Verdict<Counts>;

/// What is counted here.
#[derive(Debug, Default)]
pub struct Counts {
    /// Verbs that were carried out.
    pub verbs: BTreeMap<&'static str, u64>,
    /// Lives that ended with the pool read-only, and out of space.
    pub read_only: u64,
    pub out_of_space: u64,
    /// Blocks of data that are in use in the end.
    pub data_used: u64,
    /// The metadata device as it was in the end, if that is wanted.
    pub image: Vec<u8>,
}

impl Plan {
    /// A pool with room, and no faults.
    pub fn draw(seed: u64) -> Plan {
        let random = &mut Random::part(seed, 1);
        let small_blocks = random.chance(2, 3);
        let volumes: Vec<u64> =
            (0..random.between(1, 3)).map(|_| random.between(1, 9 * BLOCK / 8) * 8).collect();
        let (metadata, data) = (random.between(256, 300) * 8, random.between(300, 340) * BLOCK);
        let mut devices = vec![
            draw_device(random, metadata + 64 * BLOCK, small_blocks),
            draw_device(random, data + 64 * BLOCK, small_blocks),
        ];
        devices.iter_mut().for_each(|device| {
            device.limits.discard_granularity = device.limits.discard_granularity.min(4096)
        });
        let bios = random.between(30, 150);
        Plan {
            seed,
            drawn: "",
            devices,
            metadata,
            data,
            volumes,
            features: draw_features(random),
            is_roomy: true,
            cache_bytes: *random.choose(&[0, 1 << 20]),
            chaos: draw_chaos(random),
            lies: Lies::default(),
            faults: Default::default(),
            planned: Vec::new(),
            workers: *random.choose(&[1, 1, 2, 3]),
            clients: random.index(4) + 1,
            bios,
            depth: *random.choose(&[1, 2, 4, 16, 64]),
            region: *random.choose(&[48 << 10, 200 << 10, u64::MAX, u64::MAX]),
            verbs: random.below(8),
            pause: Nanos::millis(*random.choose(&[1, 10, 100])),
            wants_image: false,
            cuts: (0..random.between(1, 3))
                .map(|_| if random.chance(1, 5) { 0 } else { random.between(1, bios * 12) })
                .collect(),
        }
    }

    /// A pool that is too small, or whose devices fail.
    pub fn draw_trouble(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        plan.drawn = "TROUBLE=1 ";
        let random = &mut Random::part(seed, 2);
        let none = Faults::default();
        let fault = match random.below(6) {
            0..2 => none.clone(),
            2 => Faults { write_errors: 20_000, ..none.clone() },
            3 => Faults { flush_errors: 30_000, short: 50_000, ..none.clone() },
            4 => Faults { read_errors: 20_000, again: 20_000, ..none.clone() },
            _ => Faults { lost_flushes: 20_000, ..none.clone() },
        };
        let on_data = random.chance(1, 4);
        plan.faults = if on_data { [none, fault] } else { [fault, none] };
        if random.chance(2, 3) {
            plan.data = random.between(2, 12) * BLOCK;
            plan.is_roomy = false;
        }
        if random.chance(1, 4) {
            plan.metadata = random.between(20, 40) * 8;
            plan.is_roomy = false;
        }
        plan
    }

    /// A pool with room whose data device often fails to write: data, copies, and zeros.
    pub fn draw_bad_writes(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        plan.drawn = "BAD_WRITES=1 ";
        plan.faults[1] = Faults { write_errors: 80_000, discard_errors: 80_000, ..Faults::default() };
        plan
    }
}

impl plans::Plan for Plan {
    type Counts = Counts;
    const TEST: &'static str = "thin";

    fn run_with(&self, journal: bool) -> Verdict {
        let mut run = Run::begin(self, new_world(self.seed, journal));
        let outcome = caught(|| run.lives(journal));
        run.verdict.violations.extend(outcome.err());
        run.verdict.journal.append(&mut run.world.journal());
        if self.wants_image {
            let metadata = run.bytes(METADATA);
            let mut image = vec![0; (metadata.sectors * 512) as usize];
            let read = metadata.read_at(0, &mut image);
            run.verdict.violations.extend(read.err().map(|error| error.to_string()));
            run.verdict.image = image;
        }
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
        self.read_only += other.read_only;
        self.out_of_space += other.out_of_space;
        self.data_used += other.data_used;
        for (verb, count) in other.verbs {
            *self.verbs.entry(verb).or_default() += count;
        }
    }
}

fn draw_features(random: &mut Random) -> PoolFeatures {
    PoolFeatures {
        discards: *random.choose(&[
            Discards::Passdown,
            Discards::Passdown,
            Discards::NoPassdown,
            Discards::Ignore,
        ]),
        error_if_no_space: random.coin(),
        low_water: random.below(8),
        ..PoolFeatures::default()
    }
}

/// A run under way.
struct Run<'a> {
    plan: &'a Plan,
    world: World,
    served: Vec<Served>,
    extent: Rc<RefCell<Extent>>,
    known: Rc<RefCell<Known>>,
    verdict: Verdict,
}

/// What is built for one life.
struct Life {
    stack: Stack,
    pool: Arc<Pool>,
    disks: [Arc<dyn Layer>; 2],
    nodes: [NodeId; 2],
}

impl<'a> Run<'a> {
    /// A pool with empty volumes, on devices full of something.
    fn begin(plan: &'a Plan, world: World) -> Run<'a> {
        for model in &plan.devices {
            world.add_device(model.clone());
        }
        world.preload(DATA, 0, &vec![0xee; (plan.data.min(OLD_BLOCKS * BLOCK) * 512) as usize]);
        let device =
            |_| Device { details: DeviceDetails::default(), mappings: Mappings::Own(BTreeMap::new()) };
        let contents = Contents {
            data_block_sectors: BLOCK as u32,
            data_blocks: plan.data / BLOCK,
            metadata_blocks: plan.metadata / 8,
            devices: (0..plan.volumes.len() as u64).map(|id| (id, device(id))).collect(),
            ..Contents::default()
        };
        for piece in build(&contents).expect("an empty pool is small") {
            world.preload(METADATA, piece.offset / 512, &piece.bytes);
        }
        let served = (0..).zip(&plan.volumes);
        let served =
            served.map(|(id, sectors)| Served { id, sectors: *sectors, referee: Referee::new(*sectors) });
        let known = Known { next: 100, ..Known::default() };
        Run {
            plan,
            world,
            served: served.collect(),
            extent: Rc::new(RefCell::new(Extent { metadata: plan.metadata, data: plan.data })),
            known: Rc::new(RefCell::new(known)),
            verdict: Verdict::default(),
        }
    }

    fn lives(&mut self, journal: bool) {
        let planned = self.plan.planned.iter();
        planned.for_each(|(device, n, fault)| self.world.fail_nth(*device, *n, *fault));
        for (life, cut) in (0u64..).zip(&self.plan.cuts) {
            self.live(life, *cut);
            end_life(&mut self.world, &mut self.verdict.journal, journal);
            self.examine();
            if self.verdict.violations.is_empty() {
                self.judge();
            }
            if !self.verdict.violations.is_empty() {
                return;
            }
            self.take_up_snapshots();
        }
    }

    fn accuse(&mut self, violation: String) {
        self.verdict.violations.push(violation);
    }

    fn bytes(&self, device: FileId) -> Bytes<'_> {
        let extent = self.extent.borrow();
        let sectors = if device == METADATA { extent.metadata } else { extent.data };
        Bytes { world: &self.world, device, start: 0, sectors }
    }

    /// The layers of this life, over what is on the devices.
    fn build(&mut self, lies: Lies) -> Option<Life> {
        let world = self.world.clone();
        let mut nodes = Nodes::default();
        let mut leaves: Vec<(NodeId, Arc<dyn LeafSource>)> = Vec::new();
        let mut disks: Vec<Arc<dyn Layer>> = Vec::new();
        for device in (0..world.devices()).map(FileId) {
            let (node, source) = (nodes.next(), Arc::new(world.lying_source(device, lies)));
            let (sectors, limits) = (source.sectors(), source.limits().clone());
            disks.push(Arc::new(LeafLayer::new(LeafId(device.0 as u16), node, sectors, limits)));
            leaves.push((node, source));
        }
        let part_nodes = [nodes.next(), nodes.next()];
        let extent = *self.extent.borrow();
        let part = |which: usize, sectors: u64| -> Arc<dyn Layer> {
            let linear = Linear::new(part_nodes[which], disks[which].clone(), Sector(0), Sectors(sectors));
            Arc::new(linear.expect("it fits its disk"))
        };
        let metadata = self.bytes(METADATA);
        let superblock = match image::superblock(&metadata) {
            Ok(superblock) => superblock,
            Err(error) => {
                self.accuse(error);
                return None;
            }
        };
        let pool = Pool::new(PoolConfig {
            name: "pool".into(),
            data: part(1, extent.data),
            metadata: part(0, extent.metadata),
            superblock,
            cache_bytes: self.plan.cache_bytes,
            metadata_kept: METADATA_KEPT,
            features: self.plan.features,
        });
        let pool = pool.expect("a pool that fits its devices");
        let mut volumes = Vec::new();
        for served in &self.served {
            match pool.device_now(&metadata, served.id) {
                Err(error) => {
                    let violation = format!("device {}: {error}", served.id);
                    self.verdict.violations.push(violation);
                    return None;
                }
                Ok(device) => {
                    let config = ThinConfig {
                        pool: pool.clone(),
                        device,
                        sectors: Sectors(served.sectors),
                        external_origin: None,
                    };
                    let thin = Thin::new(nodes.next(), config);
                    volumes.push(Volume::new(format!("thin {}", served.id), Arc::new(thin), false));
                }
            }
        }
        let stack = Stack { volumes: volumes.into(), leaves: leaves.into(), nodes: nodes.0.into() };
        let disks = [disks[0].clone(), disks[1].clone()];
        Some(Life { stack, pool, disks, nodes: part_nodes })
    }

    /// One life: clients at work until they are done, or the power is cut.
    fn live(&mut self, life: u64, cut: u64) {
        let Some(Life { stack, pool, disks, nodes }) = self.build(self.plan.lies) else { return };
        let (plan, world) = (self.plan, self.world.clone());
        world.set_chaos(plan.chaos);
        world.set_faults(METADATA, plan.faults[0].clone());
        world.set_faults(DATA, plan.faults[1].clone());
        // The pool drops blocks whose content may be lost with a commit's flush; no client's flush has failed then.
        world.failed_flushes_lose_data(DATA);
        if cut > 0 {
            world.cut_at_event(world.events() + cut);
        }
        let quiescence = Quiescence::default();
        let mut workers: Vec<_> =
            (0..plan.workers).map(|n| worker(&stack, world.env(), n as u16, false, &quiescence)).collect();
        let closing = Closing::new(workers.iter().map(Worker::handle).collect());
        for n in 0..plan.clients.max(self.served.len().min(2)) {
            let volume = n % self.served.len();
            let seed = plan.seed ^ life.rotate_left(32);
            let number = n as u32 + 100 * life as u32;
            let bios = plan.bios / plan.clients as u64;
            let mut config = ClientConfig::new(number, VolumeId(volume as u16), bios, plan.depth, seed);
            config.region = plan.region;
            config.len_max = 200 << 10;
            let client = SimClient::new(config, self.served[volume].referee.clone(), closing.clone());
            workers[n % plan.workers].add_port(Box::new(client));
        }
        let caretaker = Caretaker {
            seed: plan.seed ^ life.rotate_left(16),
            verbs: plan.verbs,
            pause: plan.pause,
            world: world.clone(),
            pool: pool.clone(),
            disks,
            extent: self.extent.clone(),
            nodes,
            served: self.served.clone(),
            known: self.known.clone(),
        };
        workers[plan.workers - 1].spawn(|cx| caretaker.work(cx));
        let ended_well = run_all(&world, workers);
        if ended_well && !world.is_off() {
            // As when a server ends: the layers are closed by a worker without ports.
            let mut closer = worker(&stack, world.env(), 0, false, &Quiescence::default());
            if closer.close().is_ok() && !world.is_off() {
                for served in &self.served {
                    let oracle = &mut served.referee.borrow_mut().oracle;
                    let flush = oracle.begin_flush();
                    oracle.end_flush(flush, true);
                }
            }
        }
        // Without power everything fails.
        if !world.is_off() {
            self.verdict.read_only += u64::from(pool.mode() == Mode::ReadOnly);
            self.verdict.out_of_space += u64::from(pool.mode() == Mode::OutOfDataSpace);
        }
        self.book();
    }

    /// What is on the devices after a cut.
    fn examine(&mut self) {
        let report = check(&self.bytes(METADATA));
        if !report.is_good() {
            self.accuse(format!("after a cut: {:?}", report.problems));
            return;
        }
        self.verdict.data_used = report.data_used;
        let devices = match image::devices(&self.bytes(METADATA)) {
            Ok(devices) => devices,
            Err(error) => return self.accuse(format!("after a cut: {error}")),
        };
        let there: Vec<u64> = devices.iter().map(|(id, _)| *id).collect();
        let known = self.known.clone();
        let mut known = known.borrow_mut();
        known.uncertain.retain(|id| there.contains(id));
        for id in &there {
            let is_expected = known.frozen.contains_key(id)
                || known.uncertain.contains(id)
                || self.served.iter().any(|served| served.id == *id);
            if !is_expected {
                self.accuse(format!(
                    "after a cut there is a device {id}, which nobody made or which was deleted"
                ));
            }
        }
        for (id, bytes) in &known.frozen {
            let sectors = bytes.len() as u64 / 512;
            match image::content(&self.bytes(METADATA), &self.bytes(DATA), *id, sectors) {
                Ok(found) if found == *bytes => {}
                Ok(found) => {
                    let at = found.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(0) / 512;
                    self.accuse(format!("after a cut, sector {at} of snapshot {id} is not what it was"));
                }
                Err(error) => self.accuse(format!("after a cut, snapshot {id}: {error}")),
            }
        }
        let mut violations = std::mem::take(&mut known.violations);
        drop(known);
        self.verdict.violations.append(&mut violations);
        self.mend();
    }

    /// As an operator does whose pool needs a check and has passed it.
    fn mend(&mut self) {
        if let Ok(superblock) = image::superblock(&self.bytes(METADATA))
            && superblock.needs_check
        {
            let mended = Superblock { needs_check: false, ..superblock };
            self.world.preload(METADATA, 0, &mended.encode(0)[..]);
        }
    }

    /// What clients are entitled to, read through a new stack.
    fn judge(&mut self) {
        let Some(life) = self.build(Lies::default()) else { return };
        let mut checker = worker(&life.stack, self.world.env(), 0, false, &Quiescence::default());
        let closing = Closing::new(vec![checker.handle()]);
        for (volume, served) in (0..).zip(&self.served) {
            let check = SimCheck::new(VolumeId(volume), served.referee.clone(), closing.clone());
            checker.add_port(Box::new(check));
        }
        run_all(&self.world, vec![checker]);
        self.book();
    }

    /// Snapshots of this life are volumes of the next one.
    fn take_up_snapshots(&mut self) {
        let mut known = self.known.borrow_mut();
        while self.served.len() < SERVED_MAX
            && let Some((id, bytes)) = known.frozen.pop_last()
        {
            let sectors = bytes.len() as u64 / 512;
            let referee = Referee::new(sectors);
            {
                let oracle = &mut referee.borrow_mut().oracle;
                let write = oracle.begin_write(0, &bytes);
                oracle.end_write(write, true, true);
            }
            self.served.push(Served { id, sectors, referee });
        }
    }

    fn book(&mut self) {
        let verdict = &mut self.verdict;
        verdict.note(&self.world);
        let mut known = self.known.borrow_mut();
        for (verb, count) in std::mem::take(&mut known.verbs) {
            *verdict.verbs.entry(verb).or_default() += count;
        }
        for served in &self.served {
            let referee = &mut *served.referee.borrow_mut();
            let may_fail = !self.plan.is_roomy || verdict.faults > 0;
            let mut violations = std::mem::take(&mut referee.violations);
            violations
                .retain(|violation| !(may_fail && violation.contains("without a fault that explains it")));
            verdict.violations.append(&mut violations);
            let (failed, excused) =
                (std::mem::take(&mut referee.failed), std::mem::take(&mut referee.excused));
            if failed > excused && !may_fail {
                verdict.violations.push(format!("{} bios failed", failed - excused));
            }
            verdict.answered += std::mem::take(&mut referee.answered);
            verdict.failed += failed;
            verdict.durable += std::mem::take(&mut referee.durable);
        }
    }
}
