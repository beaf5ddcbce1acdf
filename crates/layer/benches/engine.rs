//! The engine alone: nanoseconds, allocations and (under callgrind) instructions per 4 KiB I/O, in all and per layer.
//!
//! One worker over leaves that complete at once and touch no data, with a client that keeps 32 reads (or writes) going, on
//! stacks of 0 to 3 layers (linear over striped over linear), on a linear volume over a RAID10 of four leaves, and on a snapshot
//! and its origin; then of several workers on one stack, each with such a client. Run it with
//!
//! ```text
//!   cargo bench -p blockwork-layer --bench engine                 # ns and allocations
//!   bench/instructions                                            # instructions, by callgrind
//! ```
//!
//! `--stack N --ios M [--nomerges K] [--write 1] [--sequential 1]` runs one stack only, for callgrind; 4 is the RAID10, 5 the snapshot, 6
//! the origin, 7 a snapshot of which every other chunk has been copied out, 8 the least that makes the same requests as that.

mod rig;

use std::cell::Cell;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use blockwork_engine::*;
use blockwork_format::md::{FarSets, Raid10Layout};
use blockwork_format::snapshot::{Contents, Exception, Found, Layout as StoreLayout};
use blockwork_layer::md::{Array, ArrayConfig, ArrayState, Geometry, MemberConfig, Record, Site};
use blockwork_layer::snapshot::{Family, Features, Origin, Persistence, Snapshot, StoreConfig};
use blockwork_layer::{Linear, Stripe, Striped};
use blockwork_memory::{Segment, Segments};
use rig::{NoEnv, RigLeaf, allocations, option};

const DEPTH: u64 = 32;
const SECTORS: u64 = 1 << 30;

thread_local! {
    /// I/Os that have come back to this thread's worker.
    static DONE: Cell<u64> = const { Cell::new(0) };
}

/// What a client does.
#[derive(Clone, Copy)]
struct Load {
    op: Op,
    sequential: bool,
    /// Where.
    sectors: u64,
}

impl Load {
    fn random(op: Op) -> Load {
        Load { op, sequential: false, sectors: SECTORS / 4 }
    }
}

/// Submits a batch of I/Os each turn, with memory of its own that it uses again.
struct Client {
    load: Load,
    state: u64,
    memory: Vec<Segments>,
}

impl Port<NoEnv> for Client {
    fn open(&mut self, cx: &mut Context<'_, NoEnv>) {
        let pool = cx.pool().clone();
        self.memory =
            (0..DEPTH).map(|_| Segments::from_iter([Segment::new(pool.get(4096), 0, 4096)])).collect();
    }
    fn event(&mut self, _cx: &mut Context<'_, NoEnv>, _local: u32, _completion: Completion) {}
    fn done(&mut self, _cx: &mut Context<'_, NoEnv>, done: Done) {
        done.result.expect("the null leaf never fails");
        self.memory.push(done.data);
        DONE.set(DONE.get() + 1);
    }
    fn turn(&mut self, cx: &mut Context<'_, NoEnv>) -> PortState {
        if self.memory.len() < DEPTH as usize {
            return PortState::Open;
        }
        while let Some(data) = self.memory.pop() {
            let place = if self.load.sequential {
                self.state += 1;
                self.state
            } else {
                self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                self.state >> 33
            };
            let sector = Sector(place % (self.load.sectors / 8) * 8);
            cx.submit(VolumeId(0), 0, Bio::with_data(self.load.op, Flags::NONE, sector, data));
        }
        PortState::Open
    }
    fn drain(&mut self, _cx: &mut Context<'_, NoEnv>) {}
}

/// The leaf under `layers` layers: linear, then striped (of one leaf's two halves), then linear.
fn stack(layers: usize, limits: &Limits) -> Arc<dyn Layer> {
    let mut top: Arc<dyn Layer> =
        Arc::new(LeafLayer::new(LeafId(0), NodeId(0), Sectors(SECTORS), limits.clone()));
    if layers >= 1 {
        top = Arc::new(Linear::new(NodeId(1), top, Sector(2048), Sectors(SECTORS - 4096)).unwrap());
    }
    if layers >= 2 {
        let each = (SECTORS - 4096) / 2 / 128 * 128;
        let stripes = (0..2).map(|i| Stripe { below: top.clone(), start: Sector(i * each) }).collect();
        top = Arc::new(Striped::new(NodeId(2), Sectors(128), stripes, Sectors(2 * each)).unwrap());
    }
    if layers >= 3 {
        let sectors = Sectors(top.sectors().0 - 8);
        top = Arc::new(Linear::new(NodeId(3), top, Sector(8), sectors).unwrap());
    }
    top
}

/// Writes nothing down: what that costs happens once in many I/Os.
#[derive(Debug)]
struct Unrecorded;
impl Record for Unrecorded {
    fn sites(&self) -> &[Site] {
        &[]
    }
    fn superblock(&self, _site: usize, _state: &ArrayState) -> Vec<u8> {
        Vec::new()
    }
    fn events(&self, _: usize) -> u64 {
        0
    }
}

/// A linear volume over a RAID10 (two near copies, chunks of 512 KiB) of four leaves.
fn raid10(limits: &Limits) -> Arc<dyn Layer> {
    let layout = Raid10Layout::new(2, 1, false, FarSets::One, 4).unwrap();
    let geometry = Geometry::raid10(layout, Sectors(1024), Sectors(SECTORS - 4096)).unwrap();
    let member = |i: u16| {
        let leaf = LeafLayer::new(LeafId(i), NodeId(i), Sectors(SECTORS), limits.clone());
        let (name, layer) = (format!("leaf{i}"), Arc::new(leaf));
        let data_start = Sector(4096);
        Some(MemberConfig { name, layer, data_start, recovered: None, write_mostly: false, bad: Vec::new() })
    };
    let config = ArrayConfig {
        name: "md/bench".into(),
        geometry,
        members: (0..4).map(member).collect(),
        resync_from: None,
        intent: None,
        record: Some(Box::new(Unrecorded)),
    };
    let array = Array::new(NodeId(4), config).unwrap();
    let sectors = Sectors(array.sectors().0 - 2048);
    Arc::new(Linear::new(NodeId(5), array, Sector(2048), sectors).unwrap())
}

/// Sectors of the origin that has a snapshot.
const ORIGIN_SECTORS: u64 = 1 << 21;

/// A linear volume of one leaf with a snapshot, in chunks of 4 KiB, whose store is a linear volume of another. Of the snapshot every
/// other MiB (or chunk) has been copied out, in order; of the origin, where it is written, all.
fn snapshot(limits: &Limits, which: usize) -> Arc<dyn Layer> {
    let linear = |node: u16, sectors| linear_of(limits, node, sectors);
    let layout = StoreLayout::new(8).unwrap();
    let (is_origin, run) = (which == ORIGIN, if which == SCATTERED { 1 } else { 256 });
    let copied = (0..ORIGIN_SECTORS / 8).filter(|chunk| is_origin || chunk / run % 2 == 1);
    let new = (0..).filter(|new| !layout.is_metadata(*new));
    let exceptions = copied.zip(new).map(|(old, new)| Exception { old, new }).collect();
    let config = StoreConfig {
        name: "bench".into(),
        store: linear(1, 2 * ORIGIN_SECTORS),
        sectors: Sectors(ORIGIN_SECTORS),
        layout,
        persistence: Persistence::Persistent { overflow: false },
        features: Features::default(),
        found: Found::Valid(Contents { layout, exceptions, remains: false }),
        unusable: false,
    };
    let family = Family::new(linear(0, ORIGIN_SECTORS), vec![config]).unwrap();
    if is_origin {
        Arc::new(Origin::new(NodeId(3), family))
    } else {
        Arc::new(Snapshot::new(NodeId(3), family, 0).unwrap())
    }
}

/// A linear volume of a leaf of its own.
fn linear_of(limits: &Limits, node: u16, sectors: u64) -> Arc<dyn Layer> {
    let leaf = Arc::new(LeafLayer::new(LeafId(node), NodeId(node), Sectors(SECTORS), limits.clone()));
    Arc::new(Linear::new(NodeId(4 + node), leaf, Sector(2048), Sectors(sectors)).unwrap())
}

/// Every other 4 KiB are where they are, and the others one behind the other on another leaf: the requests of a snapshot of which every
/// other chunk has been copied out, by arithmetic alone.
#[derive(Debug)]
struct Alternating {
    shape: Shape,
    below: [Arc<dyn Layer>; 2],
}

impl Alternating {
    fn new(limits: &Limits) -> Alternating {
        let below = [linear_of(limits, 0, ORIGIN_SECTORS), linear_of(limits, 1, ORIGIN_SECTORS)];
        let shape =
            Shape { node: NodeId(3), sectors: Sectors(ORIGIN_SECTORS), limits: below[0].limits().clone() };
        Alternating { shape, below }
    }
}

impl Layer for Alternating {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let chunk = span.sector.0 / 8;
        if chunk.is_multiple_of(2) {
            return cx.pass(NodeId(3), span.sector, &*self.below[0], span);
        }
        cx.pass(NodeId(3), span.sector, &*self.below[1], span.moved_to(Sector(chunk / 2 * 8)))
    }
}

/// Which stack: one of `stack`, or one of these.
const RAID10: usize = 4;
const SNAPSHOT: usize = 5;
const ORIGIN: usize = 6;
const SCATTERED: usize = 7;
const ALTERNATING: usize = 8;

/// A stack with its leaves, for any number of workers.
struct Stand {
    volumes: Arc<[Volume]>,
    leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]>,
    stats: Stats,
}

impl Stand {
    /// A worker on it, with a client.
    fn worker(&self, load: Load) -> Worker<NoEnv> {
        let config = WorkerConfig::new(self.volumes.clone(), self.leaves.clone(), self.stats.worker());
        let mut worker = Worker::new(NoEnv, config);
        worker.add_port(Box::new(Client { load, state: 1, memory: Vec::new() }));
        worker
    }
}

fn stand(layers: usize, nomerges: &str) -> Stand {
    let mut limits = Limits { max_sectors: Sectors(512), max_segments: 128, ..Limits::default() };
    limits.set("nomerges", nomerges).unwrap();
    let node = |i| NodeInfo { name: format!("node{i}"), kind: NodeKind::Other("bench"), device: (253, i) };
    let stats = Stats::new((0..6).map(node).collect());
    let top = match layers {
        RAID10 => raid10(&limits),
        SNAPSHOT | ORIGIN | SCATTERED => snapshot(&limits, layers),
        ALTERNATING => Arc::new(Alternating::new(&limits)),
        _ => stack(layers, &limits),
    };
    let volumes: Arc<[Volume]> = Arc::new([Volume::new("bench", top, false)]);
    let source = |i| {
        let source: Arc<dyn LeafSource> = Arc::new(RigLeaf::null(Sectors(SECTORS), limits.clone()));
        (NodeId(i), source)
    };
    let leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]> =
        (0..if layers >= RAID10 { 4 } else { 1 }).map(source).collect();
    Stand { volumes, leaves, stats }
}

/// Runs `ios` I/Os, rounded up to whole batches.
fn run(worker: &mut Worker<NoEnv>, ios: u64) {
    let target = DONE.get() + ios;
    worker.poke(PortId(0));
    while DONE.get() < target {
        worker.turn(Wait::Poll);
    }
}

#[allow(clippy::disallowed_methods, reason = "what is measured here is real time")]
fn main() {
    if let Some(layers) = option("--stack") {
        let nomerges = option("--nomerges").unwrap_or(0).to_string();
        let op = if option("--write") == Some(1) { Op::Write } else { Op::Read };
        let load = Load { op, sequential: option("--sequential") == Some(1), sectors: ORIGIN_SECTORS };
        let mut worker = stand(usize::try_from(layers).unwrap(), &nomerges).worker(load);
        run(&mut worker, option("--ios").unwrap_or(100_000));
        return;
    }
    println!("| stack | nomerges | ns per I/O | per layer added | allocations per I/O |");
    println!("| --- | --- | --- | --- | --- |");
    let names = ["leaf", "linear", "striped over linear", "linear over striped over linear"];
    for nomerges in ["0", "2"] {
        let mut before = None;
        for (layers, name) in names.iter().enumerate() {
            let (best, allocated) = measure(&mut stand(layers, nomerges).worker(Load::random(Op::Read)));
            let added = before.map_or(String::new(), |before: f64| format!("{:+.1}", best - before));
            println!("| {name} | {nomerges} | {best:.1} | {added} | {allocated:.6} |");
            before = Some(best);
        }
    }
    println!();
    println!("| linear over RAID10 of four leaves | ns per I/O | one leaf | ratio | allocations per I/O |");
    println!("| --- | --- | --- | --- | --- |");
    for (op, name) in [(Op::Read, "read"), (Op::Write, "write: two leaves")] {
        let (leaf, _) = measure(&mut stand(0, "0").worker(Load::random(op)));
        let (raid, allocated) = measure(&mut stand(RAID10, "0").worker(Load::random(op)));
        println!("| {name} | {raid:.1} | {leaf:.1} | {:.2} | {allocated:.6} |", raid / leaf);
    }
    println!();
    println!(
        "| workers, each a thread | reads of one leaf, million a second | of linear over RAID10 | ratio |"
    );
    println!("| --- | --- | --- | --- |");
    for workers in 1..=std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
        let [leaf, raid] = [0, RAID10].map(|layers| together(&stand(layers, "0"), workers));
        println!("| {workers} | {leaf:.2} | {raid:.2} | {:.2} |", raid / leaf);
    }
}

/// Million reads a second of so many workers on one stack.
#[allow(clippy::disallowed_methods, reason = "what is measured here is real time")]
fn together(stand: &Stand, workers: usize) -> f64 {
    const IOS: u64 = 1_000_000;
    let line = Barrier::new(workers);
    let best = |times: Vec<f64>| times.into_iter().fold(f64::MAX, f64::min);
    let slowest = std::thread::scope(|scope| {
        let run_one = || {
            let mut worker = stand.worker(Load::random(Op::Read));
            run(&mut worker, 200_000);
            // The least disturbed of several runs, all workers at once in each.
            let times = (0..7).map(|_| {
                line.wait();
                let start = Instant::now();
                run(&mut worker, IOS);
                start.elapsed().as_secs_f64()
            });
            best(times.collect())
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(run_one)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no worker panics")).fold(0.0, f64::max)
    });
    (workers as u64 * IOS) as f64 / slowest / 1e6
}

/// Nanoseconds and allocations per I/O.
#[allow(clippy::disallowed_methods, reason = "what is measured here is real time")]
fn measure(worker: &mut Worker<NoEnv>) -> (f64, f64) {
    const IOS: u64 = 2_000_000;
    run(worker, 200_000);
    let allocated = allocations();
    // The least disturbed of several runs: what the code costs, not what the neighbours do.
    let times = (0..7).map(|_| {
        let start = Instant::now();
        run(worker, IOS / 7);
        start.elapsed().as_nanos() as f64 / (IOS / 7) as f64
    });
    let best = times.fold(f64::MAX, f64::min);
    (best, (allocations() - allocated) as f64 / IOS as f64)
}
