//! A worker over one simulated device, and ports on it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    Completion, Context, CounterTable, Done, FileId, Layer, LeafId, LeafLayer, LeafSource, NodeId, Port,
    PortId, PortState, RingStats, Sectors, Volume, VolumeId, Wait, Worker, WorkerConfig,
};
use blockwork_export::blkif::in_process::{Bell, Device, GrantTable, connect};
use blockwork_export::blkif::{
    BackConfig, BackEnd, BackPort, BackRing, FrontRing, FrontWants, Ledger, SharedPages,
};
use blockwork_format::Source;
use blockwork_format::blkif::{Abi, PAGE_BYTES};
use blockwork_format::thin::build::{Contents, Device as ThinDevice, Mappings, build};
use blockwork_format::thin::{BLOCK_SECTORS, DeviceDetails, Superblock, read_block};
use blockwork_layer::thin::{CACHE_BYTES, METADATA_KEPT, Pool, PoolConfig, PoolFeatures, Thin, ThinConfig};
use blockwork_memory::{Buffer, Segment};
use blockwork_sim::{DeviceModel, SimEnv, World};

pub const VOLUME: VolumeId = VolumeId(0);
/// Of the device.
pub const SECTORS: u64 = 1 << 14;

pub const WANTS: FrontWants =
    FrontWants { ring_pages: 1, queues: 1, abi: Abi::Bits64, persistent: false, max_indirect_segments: 256 };

pub struct Rig {
    pub world: World,
    pub worker: Worker<SimEnv>,
    pub stats: Vec<Arc<RingStats>>,
    /// The ring that was served last.
    pub port: Option<PortId>,
    source: Arc<dyn LeafSource>,
}

impl Rig {
    pub fn new(seed: u64) -> Rig {
        Rig::with(seed, |_| {})
    }

    pub fn with(seed: u64, change: impl FnOnce(&mut DeviceModel)) -> Rig {
        let world = World::new(seed);
        let mut model = DeviceModel::nvme(Sectors(SECTORS));
        change(&mut model);
        let device = world.add_device(model);
        let source: Arc<dyn LeafSource> = world.source(device);
        Rig::over(world, source)
    }

    /// On a disk that does everything at once.
    pub fn on_memory(seed: u64) -> Rig {
        let spec = format!("memory:{}", SECTORS * 512);
        let disk = blockwork_leaf::open(&spec, &Default::default()).expect("there is room");
        Rig::over(World::new(seed), disk.source)
    }

    fn over(world: World, source: Arc<dyn LeafSource>) -> Rig {
        let worker = worker(&world, &source);
        Rig { world, worker, stats: Vec::new(), port: None, source }
    }

    /// On a volume of 64 blocks of a thin pool that has fewer, for which writes wait for ever.
    pub fn on_pool(blocks: u64) -> Rig {
        let world = World::new(1);
        let devices = [256 * BLOCK_SECTORS, blocks * 128]
            .map(|sectors| world.source(world.add_device(DeviceModel::nvme(Sectors(sectors)))));
        let device = ThinDevice { details: DeviceDetails::default(), mappings: Mappings::Own([].into()) };
        let contents = Contents {
            data_block_sectors: 128,
            data_blocks: blocks,
            metadata_blocks: 256,
            devices: [(0, device)].into(),
            ..Contents::default()
        };
        for piece in build(&contents).expect("an empty pool is small") {
            world.preload(FileId(0), piece.offset / 512, &piece.bytes);
        }
        let leaf = |n: u16| -> Arc<dyn Layer> {
            let source = &devices[usize::from(n)];
            Arc::new(LeafLayer::new(LeafId(n), NodeId(n), source.sectors(), source.limits().clone()))
        };
        let metadata = Metadata(&world);
        let superblock = Superblock::decode(&read_block(&metadata, 0).expect("it is there"));
        let pool = Pool::new(PoolConfig {
            name: "pool".into(),
            data: leaf(1),
            metadata: leaf(0),
            superblock: superblock.expect("it is whole").expect("it is there"),
            cache_bytes: CACHE_BYTES,
            metadata_kept: METADATA_KEPT,
            features: PoolFeatures { no_space_timeout: None, ..PoolFeatures::default() },
        });
        let pool = pool.expect("it fits its devices");
        let device = pool.device_now(&metadata, 0).expect("it is there");
        let config = ThinConfig { pool, device, sectors: Sectors(64 * 128), external_origin: None };
        let thin = Thin::new(NodeId(2), config);
        let leaves = [0u16, 1].map(|n| (NodeId(n), devices[usize::from(n)].clone()));
        let volumes: Arc<[Volume]> = Arc::new([Volume::new("thin", Arc::new(thin), false)]);
        let counters = Arc::new(CounterTable::new(3));
        let worker = Worker::new(world.env(), WorkerConfig::new(volumes, Arc::new(leaves), counters));
        Rig { world, worker, stats: Vec::new(), port: None, source: devices[1].clone() }
    }

    /// Ends the worker with all that it has, and starts another; what the device was asked for, it does before that.
    pub fn kill_worker(&mut self) {
        self.worker = worker(&self.world, &self.source);
        while self.world.step() {}
    }

    /// Both ends of a device on the volume.
    pub fn connect(&mut self, wants: FrontWants) -> Device<SimEnv> {
        let volume = self.worker.volumes()[0].clone();
        let stats = &mut self.stats;
        let device = connect(wants, VOLUME, &volume, |number, slots| {
            let ring = Arc::new(RingStats::new(format!("queue {number}"), slots));
            stats.push(ring.clone());
            ring
        });
        device.expect("what is wanted is offered")
    }

    /// Turns the worker, and lets the next thing happen.
    pub fn step(&mut self) {
        self.worker.turn(Wait::Poll);
        self.world.step();
    }

    /// Turns the worker until nothing more happens by itself.
    pub fn settle(&mut self) {
        loop {
            self.worker.turn(Wait::Poll);
            if self.worker.is_idle() && self.world.is_at_rest() {
                self.worker.turn(Wait::Poll);
                return;
            }
            self.world.step();
        }
    }
}

/// The device with a pool's metadata.
struct Metadata<'a>(&'a World);

impl Source for Metadata<'_> {
    fn size(&self) -> u64 {
        256 * BLOCK_SECTORS * 512
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        for (sector, piece) in (offset / 512..).zip(buf.chunks_mut(512)) {
            piece.copy_from_slice(&self.0.peek(FileId(0), sector)[..piece.len()]);
        }
        Ok(())
    }
}

/// A ring that nobody serves yet.
pub struct Fresh {
    pub pages: Vec<Segment>,
    pub front: Option<FrontRing>,
}

impl Rig {
    /// A ring of one page, of the wide layout.
    pub fn fresh_ring(&self) -> Fresh {
        let pages = vec![Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES)];
        let shared = SharedPages::new(pages.clone()).expect("one page");
        Fresh { pages, front: Some(FrontRing::new(shared, Abi::Bits64)) }
    }

    /// Serves it to a guest with these grants.
    pub fn serve(&mut self, ring: Fresh, grants: &GrantTable) -> BackEnd {
        let stats = Arc::new(RingStats::new("ring", 32));
        self.stats.push(stats.clone());
        let config = BackConfig {
            name: "guest".to_owned(),
            volume: VOLUME,
            persistent: false,
            max_indirect_segments: 256,
            stats,
        };
        let ring = BackRing::new(SharedPages::new(ring.pages).expect("one page"), Abi::Bits64);
        let (_, bell) = Bell::pair();
        let (port, end) = BackPort::new(config, ring, Box::new(bell), Box::new(grants.clone()));
        self.port = Some(self.worker.add_port(Box::new(port)));
        end
    }

    /// Serves a ring as a server under Xen does: it keeps a ledger, a new one or what another back end has left, and copies data. How
    /// much was left. From when `death` says that it is dead, the back end gets no more turns.
    pub fn resume(&mut self, ring: &Lasting, is_new: bool, death: Rc<Death>) -> (BackEnd, u32) {
        let Lasting { shared, abi, max_indirect_segments, ledger, grants } = ring.clone();
        let mut ring = BackRing::new(shared, abi);
        let stats = Arc::new(RingStats::new("ring", ring.slots()));
        let ledger = if is_new {
            Ledger::new(ledger, ring.slots())
        } else {
            Ledger::resume(ledger, abi, ring.slots(), ring.next_answer()).expect("our own")
        };
        let left = ledger.left();
        ring.resume(left).expect("what was taken was put in");
        let config = BackConfig {
            name: "guest".to_owned(),
            volume: VOLUME,
            persistent: true,
            max_indirect_segments,
            stats,
        };
        let (_, bell) = Bell::pair();
        let (port, end) = BackPort::new(config, ring, Box::new(bell), Box::new(grants));
        let port = Mortal { port: port.with_own_buffers().with_ledger(ledger), death };
        self.port = Some(self.worker.add_port(Box::new(port)));
        (end, left)
    }
}

/// A queue's ring, and what else outlives its back ends.
#[derive(Clone)]
pub struct Lasting {
    pub shared: SharedPages,
    pub abi: Abi,
    pub max_indirect_segments: u32,
    pub ledger: Buffer,
    pub grants: GrantTable,
}

/// Whether back ends are dead, and how many answers they have put into their rings that they did not publish.
#[derive(Default)]
pub struct Death {
    pub is_dead: Cell<bool>,
    pub unpublished: Cell<u32>,
}

/// A back end that may be killed when it has put answers into its ring and has not published them: both happen in one turn of its
/// worker, and what is left out here is the rest of that.
struct Mortal {
    port: BackPort<SimEnv>,
    death: Rc<Death>,
}

impl Port<SimEnv> for Mortal {
    fn open(&mut self, cx: &mut Context<'_, SimEnv>) {
        self.port.open(cx);
    }
    fn event(&mut self, cx: &mut Context<'_, SimEnv>, local: u32, completion: Completion) {
        self.port.event(cx, local, completion);
    }
    fn done(&mut self, cx: &mut Context<'_, SimEnv>, done: Done) {
        if self.death.is_dead.get() {
            self.death.unpublished.set(self.death.unpublished.get() + 1);
        }
        self.port.done(cx, done);
    }
    fn turn(&mut self, cx: &mut Context<'_, SimEnv>) -> PortState {
        if self.death.is_dead.get() { PortState::Open } else { self.port.turn(cx) }
    }
    fn drain(&mut self, cx: &mut Context<'_, SimEnv>) {
        self.port.drain(cx);
    }
}

fn worker(world: &World, source: &Arc<dyn LeafSource>) -> Worker<SimEnv> {
    let layer = LeafLayer::new(LeafId(0), NodeId(0), source.sectors(), source.limits().clone());
    let volumes: Arc<[Volume]> = Arc::new([Volume::new("disk", Arc::new(layer), false)]);
    let counters = Arc::new(CounterTable::new(1));
    let config = WorkerConfig::new(volumes, Arc::new([(NodeId(0), source.clone())]), counters);
    Worker::new(world.env(), config)
}

/// Panics if a queue of the back end has ended.
pub fn still_serves(back: &BackEnd) {
    assert_eq!(back.ended(), None);
}
