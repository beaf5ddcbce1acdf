//! What a snapshot does to its disks: what need not be read of an origin, how many flushes first writes cost, and what its list
//! holds where something was left behind its end.

mod running;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    Bio, Errno, FileId, Flags, Fua, Layer, LeafId, LeafLayer, LeafSource, Nanos, NodeId, Op, Quiescence,
    Sector, Sectors, TaskContext, Volume,
};
use blockwork_format::Source;
use blockwork_format::snapshot::{Contents, Exception, Found, Header, Layout, read};
use blockwork_layer::snapshot::{Family, Features, Origin, Persistence, Snapshot, StoreConfig};
use blockwork_memory::{Segment, Segments};
use blockwork_sim::{DeviceModel, Latencies, Latency, World};

use running::{Nodes, Stack, run_all, worker};

const CHUNK: u64 = 64;
const ORIGIN: FileId = FileId(0);
const STORE: FileId = FileId(1);

/// An origin and its snapshot, a disk each, and what is done with them.
struct Bed {
    world: World,
    origin: Arc<dyn Layer>,
    snapshot: Arc<dyn Layer>,
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
    fn new(chunks: u64) -> Bed {
        Bed::with_store(chunks, &[])
    }

    /// With these bytes at the beginning of the store.
    fn with_store(chunks: u64, store: &[u8]) -> Bed {
        let world = World::new(1);
        let mut nodes = Nodes::default();
        let mut leaves: Vec<(NodeId, Arc<dyn LeafSource>)> = Vec::new();
        let mut disks: Vec<Arc<dyn Layer>> = Vec::new();
        for (nth, sectors) in [chunks * CHUNK, (chunks + 8) * CHUNK].into_iter().enumerate() {
            let device = world.add_device(disk(Sectors(sectors)));
            let (node, source) = (nodes.next(), world.source(device));
            let limits = source.limits().clone();
            disks.push(Arc::new(LeafLayer::new(LeafId(nth as u16), node, source.sectors(), limits)));
            leaves.push((node, source));
        }
        let content: Vec<u8> =
            (0..chunks * CHUNK).flat_map(|sector| [(sector / CHUNK % 100) as u8 + 1; 512]).collect();
        world.preload(ORIGIN, 0, &content);
        world.preload(STORE, 0, store);
        let config = StoreConfig {
            name: "snap".into(),
            store: disks[1].clone(),
            sectors: disks[0].sectors(),
            layout: Layout::new(CHUNK as u32).unwrap(),
            persistence: Persistence::Persistent { overflow: false },
            features: Features { discard_zeroes_cow: true, ..Features::default() },
            found: read(&Store(&world), chunks * CHUNK).unwrap(),
            unusable: false,
        };
        let family = Family::new(disks[0].clone(), vec![config]).unwrap();
        let origin: Arc<dyn Layer> = Arc::new(Origin::new(nodes.next(), family.clone()));
        let snapshot: Arc<dyn Layer> = Arc::new(Snapshot::new(nodes.next(), family, 0).unwrap());
        let volumes = [("origin", &origin), ("snap", &snapshot)];
        let volumes = volumes.map(|(name, layer)| Volume::new(name, layer.clone(), false)).into();
        let stack = Stack { volumes, leaves: leaves.into(), nodes: nodes.0.into() };
        Bed { world, origin, snapshot, stack }
    }

    /// Runs tasks on a worker until all have ended.
    fn run<T: Future<Output = ()> + 'static>(
        &self,
        tasks: impl IntoIterator<Item = Box<dyn FnOnce(TaskContext) -> T>>,
    ) {
        let mut worker = worker(&self.stack, self.world.env(), 0, false, &Quiescence::default());
        tasks.into_iter().for_each(|task| worker.spawn(task));
        worker.handle().stop();
        assert!(run_all(&self.world, vec![worker]));
    }

    /// Does bios at once, and then the next ones.
    fn do_all(&self, steps: Vec<Vec<(Arc<dyn Layer>, Bio)>>) {
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

    fn write(&self, layer: &Arc<dyn Layer>, sector: u64, nr: u64, fill: u8) -> (Arc<dyn Layer>, Bio) {
        let pool = blockwork_memory::Pool::new(1 << 20);
        let segment = Segment::new(pool.get(nr as usize * 512), 0, nr as usize * 512);
        segment.fill(fill);
        let data = Segments::from_iter([segment]);
        (layer.clone(), Bio::with_data(Op::Write, Flags::NONE, Sector(sector), data))
    }

    /// The first byte of each sector of a chunk of the snapshot.
    fn chunk(&self, chunk: u64) -> Vec<u8> {
        let (layer, bytes) = (self.snapshot.clone(), Rc::new(RefCell::new(Vec::new())));
        let found = bytes.clone();
        self.run([Box::new(move |cx: TaskContext| async move {
            let segment = Segment::new(cx.pool().get(CHUNK as usize * 512), 0, CHUNK as usize * 512);
            let bio = Bio::with_data(
                Op::Read,
                Flags::NONE,
                Sector(chunk * CHUNK),
                Segments::from_iter([segment.clone()]),
            );
            assert_eq!(cx.bio(&layer, bio).await.0, Ok(()));
            for sector in 0..CHUNK as usize {
                let mut first = [0];
                segment.read_at(sector * 512, &mut first);
                found.borrow_mut().push(first[0]);
            }
        }) as Box<dyn FnOnce(TaskContext) -> _>]);
        bytes.take()
    }

    /// What the store's list holds, as whoever opens it next reads it.
    fn list(&self) -> Contents {
        match read(&Store(&self.world), self.origin.sectors().0).unwrap() {
            Found::Valid(contents) => contents,
            other => panic!("{other:?}"),
        }
    }

    fn origin_reads(&self) -> u64 {
        self.world.counters(ORIGIN).reads
    }
}

/// A disk whose flushes take as long as ten writes.
fn disk(sectors: Sectors) -> DeviceModel {
    let mut disk = DeviceModel::null(sectors);
    let fixed = |micros| Latency::Fixed(Nanos::micros(micros));
    disk.latency = Latencies { read: fixed(100), write: fixed(100), flush: fixed(1000), ..disk.latency };
    (disk.parallelism, disk.cache_bytes, disk.limits.fua) = (64, 16 << 20, Fua::Flush);
    disk
}

#[test]
fn a_chunk_that_a_snapshot_overwrites_as_a_whole_is_not_read_from_the_origin() {
    let bed = Bed::new(64);
    let snapshot = &bed.snapshot;
    bed.do_all(vec![vec![bed.write(snapshot, 3 * CHUNK, CHUNK, 200)]]);
    assert_eq!(bed.origin_reads(), 0);
    assert_eq!(bed.chunk(3), vec![200; CHUNK as usize]);
    // Of three chunks, the one in the middle is whole.
    bed.do_all(vec![vec![bed.write(snapshot, 6 * CHUNK - 8, CHUNK + 16, 201)]]);
    assert_eq!(bed.origin_reads(), 2);
    assert_eq!(bed.chunk(5), [vec![6; CHUNK as usize - 8], vec![201; 8]].concat());
    assert_eq!(bed.chunk(6), vec![201; CHUNK as usize]);
    assert_eq!(bed.chunk(7), [vec![201; 8], vec![8; CHUNK as usize - 8]].concat());
}

#[test]
fn writes_that_wait_together_and_cover_a_chunk_save_reading_it() {
    let bed = Bed::new(64);
    let snapshot = &bed.snapshot;
    let half = CHUNK / 2;
    // While the first is copied out, the others wait.
    let first = bed.write(snapshot, 9 * CHUNK, 8, 1);
    let halves = [0, half].map(|skip| bed.write(snapshot, 4 * CHUNK + skip, half, 100 + skip as u8));
    let part = bed.write(snapshot, 20 * CHUNK, half, 7);
    bed.do_all(vec![std::iter::once(first).chain(halves).chain([part]).collect()]);
    assert_eq!(bed.origin_reads(), 2, "of chunks 9 and 20");
    assert_eq!(bed.chunk(4), [vec![100; half as usize], vec![100 + half as u8; half as usize]].concat());
    assert_eq!(bed.chunk(20), [vec![7; half as usize], vec![21; half as usize]].concat());
}

#[test]
fn what_is_discarded_of_a_snapshot_is_not_copied_first() {
    let bed = Bed::new(64);
    let discard = Bio::without_data(Op::Discard, Flags::NONE, Sector(8 * CHUNK), Sectors(4 * CHUNK));
    bed.do_all(vec![vec![(bed.snapshot.clone(), discard)]]);
    assert_eq!((bed.origin_reads(), bed.world.counters(STORE).requests()), (0, 0));
}

#[test]
fn random_first_writes_share_flushes_and_each_flush_serves_two_batches() {
    let (writers, each) = (32, 16);
    let bed = Bed::new(writers * each);
    let tasks = (0..writers).map(|writer| {
        let origin = bed.origin.clone();
        Box::new(move |cx: TaskContext| async move {
            for nth in 0..each {
                // An odd number times a number below a power of two: each chunk once, and no two in a row.
                let chunk = (writer * each + nth) * 277 % (writers * each);
                let segment = Segment::new(cx.pool().get(4096), 0, 4096);
                let data = Segments::from_iter([segment]);
                let bio = Bio::with_data(Op::Write, Flags::NONE, Sector(chunk * CHUNK), data);
                let result: Result<(), Errno> = cx.bio(&origin, bio).await.0;
                assert_eq!(result, Ok(()));
            }
        }) as Box<dyn FnOnce(TaskContext) -> _>
    });
    bed.run(tasks);
    let (counters, writes) = (bed.world.counters(STORE), writers * each);
    let flushes = counters.flushes + counters.fua_writes;
    // Batches of half the writers, and a flush for each: 2 / 32. With two for each it would be twice as many.
    assert!(flushes * 100 <= writes * 8, "{flushes} flushes and FUA writes for {writes} first writes");
}

/// A power cut may leave a block of the list without the one before it. Of a list that has grown up to it, it must be no part.
#[test]
fn what_lies_behind_the_end_of_a_list_is_no_part_of_it_when_it_grows() {
    let layout = Layout::new(CHUNK as u32).unwrap();
    let (per_block, entry) = (4096 / 16, Exception { old: 3, new: 5 });
    let mut store = Header { valid: true, layout }.encode().to_vec();
    store.resize(layout.chunk_bytes() as usize + per_block * 16, 0);
    store.extend(entry.encode());
    store.resize(2 * layout.chunk_bytes() as usize, 0);
    let bed = Bed::with_store(300, &store);
    assert!(bed.list().remains && bed.list().exceptions.is_empty());
    // As many as a block of the list has, and one less first: the block is written with zeros behind its end.
    for chunks in [0..per_block as u64 - 1, per_block as u64 - 1..per_block as u64] {
        let writes = chunks.map(|nth| bed.write(&bed.snapshot, (20 + nth) * CHUNK, CHUNK, 1));
        bed.do_all(vec![writes.collect()]);
    }
    let found = bed.list();
    let olds: Vec<_> = found.exceptions.iter().map(|exception| exception.old).collect();
    assert_eq!(olds, (20..20 + per_block as u64).collect::<Vec<_>>());
    assert!(!found.remains);
}
