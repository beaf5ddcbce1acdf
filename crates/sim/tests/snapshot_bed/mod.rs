//! An origin and its snapshot on two simulated disks, and what is done with them.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    Bio, FileId, Flags, Fua, Layer, LeafId, LeafLayer, LeafSource, Nanos, NodeId, Op, Quiescence, Sector,
    Sectors, TaskContext, Volume,
};
use blockwork_format::Source;
use blockwork_format::snapshot::{Contents, Found, Layout, read};
use blockwork_layer::snapshot::{Family, Features, Merge, Origin, Persistence, STEP, Snapshot, StoreConfig};
use blockwork_memory::{Segment, Segments};
use blockwork_sim::{DeviceModel, Latencies, Latency, World};

use crate::running::{Nodes, Stack, run_all, worker};

/// Sectors of a chunk, where a test does not say otherwise.
pub const CHUNK: u64 = 64;
pub const ORIGIN: FileId = FileId(0);
pub const STORE: FileId = FileId(1);

/// What a test wants of a bed.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Sectors of a chunk.
    pub chunk: u64,
    /// Chunks of the origin.
    pub chunks: u64,
    /// Sectors that the last of them lacks.
    pub lacking: u64,
    /// Chunks that the store's disk has.
    pub store_chunks: u64,
    /// How long a flush takes, µs; a read or a write takes 100.
    pub flush_us: u64,
    /// How the disks do FUA.
    pub fua: Fua,
}

impl Shape {
    /// A store that has room for all, and flushes that take as long as ten writes.
    pub fn new(chunk: u64, chunks: u64) -> Shape {
        let store_chunks = chunks + chunks / (chunk * 32) + 8;
        Shape { chunk, chunks, lacking: 0, store_chunks, flush_us: 1000, fua: Fua::Flush }
    }
}

impl Shape {
    /// Of the origin.
    pub fn sectors(&self) -> u64 {
        self.chunks * self.chunk - self.lacking
    }
}

/// An origin and its snapshot, a disk each.
pub struct Bed {
    pub world: World,
    pub origin: Arc<dyn Layer>,
    pub snapshot: Arc<dyn Layer>,
    pub family: Arc<Family>,
    /// The disk of the origin, without any snapshot.
    pub plain: Arc<dyn Layer>,
    store: Arc<dyn Layer>,
    shape: Shape,
    stack: Stack,
}

/// The store, as it would be read now.
struct Store<'a>(&'a World);

impl Source for Store<'_> {
    fn size(&self) -> u64 {
        self.0.source(STORE).sectors().bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset + buf.len() as u64 > self.size() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (sector, piece) in (offset / 512..).zip(buf.chunks_mut(512)) {
            piece.copy_from_slice(&self.0.peek(STORE, sector)[..piece.len()]);
        }
        Ok(())
    }
}

impl Bed {
    pub fn new(chunks: u64) -> Bed {
        Bed::with_store(&Shape::new(CHUNK, chunks), &[])
    }

    /// With these bytes at the beginning of the store.
    pub fn with_store(shape: &Shape, store: &[u8]) -> Bed {
        let world = World::new(1);
        let mut nodes = Nodes::default();
        let mut leaves: Vec<(NodeId, Arc<dyn LeafSource>)> = Vec::new();
        let mut disks: Vec<Arc<dyn Layer>> = Vec::new();
        let (chunk, sectors) = (shape.chunk, shape.sectors());
        for (nth, sectors) in [sectors, shape.store_chunks * chunk].into_iter().enumerate() {
            let device = world.add_device(disk(Sectors(sectors), shape));
            let (node, source) = (nodes.next(), world.source(device));
            let limits = source.limits().clone();
            disks.push(Arc::new(LeafLayer::new(LeafId(nth as u16), node, source.sectors(), limits)));
            leaves.push((node, source));
        }
        let content: Vec<u8> =
            (0..sectors).flat_map(|sector| [(sector / chunk % 100) as u8 + 1; 512]).collect();
        world.preload(ORIGIN, 0, &content);
        world.preload(STORE, 0, store);
        let config = config(&world, disks[0].sectors(), &disks[1], chunk);
        let family = Family::new(disks[0].clone(), vec![config]).unwrap();
        let origin: Arc<dyn Layer> = Arc::new(Origin::new(nodes.next(), family.clone()));
        let snapshot: Arc<dyn Layer> = Arc::new(Snapshot::new(nodes.next(), family.clone(), 0).unwrap());
        let volumes = [("origin", &origin), ("snap", &snapshot), ("plain", &disks[0])];
        let volumes = volumes.map(|(name, layer)| Volume::new(name, layer.clone(), false)).into();
        let stack = Stack { volumes, leaves: leaves.into(), nodes: nodes.0.into() };
        let (plain, store, shape) = (disks[0].clone(), disks[1].clone(), shape.clone());
        Bed { world, origin, snapshot, family, plain, store, shape, stack }
    }

    /// Another family of what is on the disks now, whose snapshot is being merged.
    pub fn merging(&self) -> (Arc<Family>, Arc<Merge>) {
        let config = config(&self.world, self.plain.sectors(), &self.store, self.shape.chunk);
        let family = Family::with_merge(self.plain.clone(), vec![config], 0).unwrap();
        let merge = Merge::new(family.clone(), STEP).unwrap();
        (family, merge)
    }

    /// The snapshot as the store has it now, of another origin.
    pub fn over(&self, origin: Arc<dyn Layer>) -> Arc<dyn Layer> {
        let config = config(&self.world, origin.sectors(), &self.store, self.shape.chunk);
        let family = Family::new(origin, vec![config]).unwrap();
        Arc::new(Snapshot::new(self.snapshot.node(), family, 0).unwrap())
    }

    /// Runs tasks on a worker until all have ended.
    pub fn run<T: Future<Output = ()> + 'static>(
        &self,
        tasks: impl IntoIterator<Item = Box<dyn FnOnce(TaskContext) -> T>>,
    ) {
        let mut worker = worker(&self.stack, self.world.env(), 0, false, &Quiescence::default());
        tasks.into_iter().for_each(|task| worker.spawn(task));
        worker.handle().stop();
        assert!(run_all(&self.world, vec![worker]));
    }

    /// Does bios at once, and then the next ones.
    pub fn do_all(&self, steps: Vec<Vec<(Arc<dyn Layer>, Bio)>>) {
        for bios in steps {
            let results = Rc::new(RefCell::new(Vec::new()));
            let tasks = bios.into_iter().map(|(layer, bio)| {
                let results = results.clone();
                Box::new(move |cx: TaskContext| async move {
                    let result = cx.bio(&layer, bio).await.0;
                    results.borrow_mut().push(result);
                }) as Box<dyn FnOnce(TaskContext) -> _>
            });
            self.run(tasks);
            assert!(results.borrow().iter().all(Result::is_ok), "{:?}", results.borrow());
        }
    }

    pub fn write(&self, layer: &Arc<dyn Layer>, sector: u64, nr: u64, fill: u8) -> (Arc<dyn Layer>, Bio) {
        let pool = blockwork_memory::Pool::new(1 << 20);
        let segment = Segment::new(pool.get(nr as usize * 512), 0, nr as usize * 512);
        segment.fill(fill);
        let data = Segments::from_iter([segment]);
        (layer.clone(), Bio::with_data(Op::Write, Flags::NONE, Sector(sector), data))
    }

    /// The first byte of each sector of a chunk of the snapshot.
    pub fn chunk(&self, chunk: u64) -> Vec<u8> {
        let start = chunk * self.shape.chunk;
        self.read(&self.snapshot, start, self.shape.chunk.min(self.shape.sectors() - start))
    }

    /// The first byte of each of some sectors.
    pub fn read(&self, layer: &Arc<dyn Layer>, start: u64, nr: u64) -> Vec<u8> {
        let (layer, bytes) = (layer.clone(), Rc::new(RefCell::new(Vec::new())));
        let found = bytes.clone();
        self.run([Box::new(move |cx: TaskContext| async move {
            let segment = Segment::new(cx.pool().get(nr as usize * 512), 0, nr as usize * 512);
            let data = Segments::from_iter([segment.clone()]);
            let bio = Bio::with_data(Op::Read, Flags::NONE, Sector(start), data);
            assert_eq!(cx.bio(&layer, bio).await.0, Ok(()));
            for sector in 0..nr as usize {
                let mut first = [0];
                segment.read_at(sector * 512, &mut first);
                found.borrow_mut().push(first[0]);
            }
        }) as Box<dyn FnOnce(TaskContext) -> _>]);
        bytes.take()
    }

    /// What the store's list holds, as whoever opens it next reads it.
    pub fn list(&self) -> Contents {
        match read(&Store(&self.world), self.origin.sectors().0).unwrap() {
            Found::Valid(contents) => contents,
            other => panic!("{other:?}"),
        }
    }

    pub fn origin_reads(&self) -> u64 {
        self.world.counters(ORIGIN).reads
    }
}

/// A snapshot of so many sectors, as its store has it now.
fn config(world: &World, sectors: Sectors, store: &Arc<dyn Layer>, chunk: u64) -> StoreConfig {
    StoreConfig {
        name: "snap".into(),
        store: store.clone(),
        sectors,
        layout: Layout::new(chunk as u32).unwrap(),
        persistence: Persistence::Persistent { overflow: false },
        features: Features { discard_zeroes_cow: true, ..Features::default() },
        found: read(&Store(world), sectors.0).unwrap(),
        unusable: false,
    }
}

/// A disk whose reads and writes take 100 µs each, 64 at a time.
fn disk(sectors: Sectors, shape: &Shape) -> DeviceModel {
    let mut disk = DeviceModel::null(sectors);
    let fixed = |micros| Latency::Fixed(Nanos::micros(micros));
    disk.latency =
        Latencies { read: fixed(100), write: fixed(100), flush: fixed(shape.flush_us), ..disk.latency };
    (disk.parallelism, disk.cache_bytes, disk.limits.fua) = (64, 16 << 20, shape.fua);
    disk
}
