//! Thin volumes over leaves that complete at once: what the map costs beside a linear volume, and how fast blocks are given out.
//!
//! One worker, with a client that keeps 32 I/Os going. Data goes nowhere; metadata is in memory. Run it with
//!
//! ```text
//!   cargo bench -p blockwork-layer --bench thin
//! ```
//!
//! `--stand N --ios M [--write 1] [--blocks K]` runs one stand only, for callgrind: 0 is linear, 1 thin and mapped, 2 thin and a hole, 3
//! zero. Of the mapped one, K blocks of 64 KiB are used: a map that fits the processor's caches costs less than one that does not.

mod rig;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use blockwork_engine::*;
use blockwork_format::thin::build::{Contents, Device, Mappings, build};
use blockwork_format::thin::{BLOCK_SECTORS, BlockTime, DeviceDetails, Superblock, read_block};
use blockwork_format::{Source as _, Sparse};
use blockwork_layer::thin::{CACHE_BYTES, METADATA_KEPT, Pool, PoolConfig, PoolFeatures, Thin, ThinConfig};
use blockwork_layer::{Linear, Zero};
use blockwork_memory::{Segment, Segments};
use rig::{NoEnv, RigLeaf, allocations, option};

const DEPTH: u64 = 32;

/// Blocks of 64 KiB of data: 32 GiB, 4 MiB of map.
const BLOCKS: u64 = 1 << 19;
const BLOCK: u64 = 128;
const METADATA_BLOCKS: u64 = 32_768;

thread_local! {
    /// I/Os that have come back to this thread's worker.
    static DONE: Cell<u64> = const { Cell::new(0) };
}

/// What a client does.
#[derive(Clone, Copy)]
struct Job {
    op: Op,
    bytes: usize,
    sequential: bool,
    /// After so many I/Os there is a flush; 0: never.
    flush_every: u64,
    sectors: u64,
}

impl Job {
    fn random(op: Op) -> Job {
        Job { op, bytes: 4096, sequential: false, flush_every: 0, sectors: BLOCKS * BLOCK }
    }
}

/// Keeps a batch going, with memory of its own that it uses again.
struct Client {
    job: Job,
    state: u64,
    next: u64,
    issued: u64,
    flushing: bool,
    memory: Vec<Segments>,
}

impl Port<NoEnv> for Client {
    fn open(&mut self, cx: &mut Context<'_, NoEnv>) {
        let (pool, bytes) = (cx.pool().clone(), self.job.bytes);
        let memory = || Segments::from_iter([Segment::new(pool.get(bytes), 0, bytes)]);
        self.memory = (0..DEPTH).map(|_| memory()).collect();
    }
    fn event(&mut self, _cx: &mut Context<'_, NoEnv>, _local: u32, _completion: Completion) {}
    fn done(&mut self, _cx: &mut Context<'_, NoEnv>, done: Done) {
        done.result.expect("the leaves never fail");
        if done.op == Op::Flush {
            self.flushing = false;
            return;
        }
        self.memory.push(done.data);
        DONE.set(DONE.get() + 1);
    }
    fn turn(&mut self, cx: &mut Context<'_, NoEnv>) -> PortState {
        if self.memory.len() < DEPTH as usize || self.flushing {
            return PortState::Open;
        }
        if self.job.flush_every > 0 && self.issued >= self.job.flush_every {
            (self.issued, self.flushing) = (0, true);
            cx.submit(VolumeId(0), 0, Bio::flush());
            return PortState::Open;
        }
        let sectors = self.job.bytes as u64 / SECTOR;
        while let Some(data) = self.memory.pop() {
            self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let places = self.job.sectors / sectors;
            let place = if self.job.sequential { self.next } else { self.state >> 33 };
            self.next += 1;
            let sector = Sector(place % places * sectors);
            cx.submit(VolumeId(0), 0, Bio::with_data(self.job.op, Flags::NONE, sector, data));
            self.issued += 1;
        }
        PortState::Open
    }
    fn drain(&mut self, _cx: &mut Context<'_, NoEnv>) {}
}

/// A volume with its leaves, for any number of workers.
struct Stand {
    volumes: Arc<[Volume]>,
    leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]>,
    stats: Stats,
    quiescence: Quiescence,
}

impl Stand {
    fn worker(&self, job: Job, seed: u64) -> Worker<NoEnv> {
        let mut config = WorkerConfig::new(self.volumes.clone(), self.leaves.clone(), self.stats.worker());
        config.quiescence = self.quiescence.clone();
        let mut worker = Worker::new(NoEnv, config);
        let client = Client { job, state: seed, next: 0, issued: 0, flushing: false, memory: Vec::new() };
        worker.add_port(Box::new(client));
        worker
    }
}

fn limits() -> Limits {
    Limits {
        max_sectors: Sectors(2560),
        max_segments: 128,
        max_write_zeroes: Sectors(1 << 20),
        ..Limits::default()
    }
}

fn stand(bytes: Option<Vec<u8>>, top: impl FnOnce([Arc<dyn Layer>; 2]) -> Arc<dyn Layer>) -> Stand {
    let node = |i| NodeInfo { name: format!("node{i}"), kind: NodeKind::Other("bench"), device: (253, i) };
    let stats = Stats::new((0..4).map(node).collect());
    let metadata = Sectors(METADATA_BLOCKS * BLOCK_SECTORS);
    let disk = match bytes {
        Some(bytes) => RigLeaf::memory(bytes, limits()),
        None => RigLeaf::null(metadata, limits()),
    };
    let data = RigLeaf::null(Sectors(BLOCKS * BLOCK), limits());
    let leaves: [(NodeId, Arc<dyn LeafSource>); 2] =
        [(NodeId(0), Arc::new(data)), (NodeId(1), Arc::new(disk))];
    let layers = [0u16, 1].map(|i| -> Arc<dyn Layer> {
        let sectors = leaves[usize::from(i)].1.sectors();
        Arc::new(LeafLayer::new(LeafId(i), NodeId(i), sectors, limits()))
    });
    Stand {
        volumes: Arc::new([Volume::new("bench", top(layers), false)]),
        leaves: Arc::new(leaves),
        stats,
        quiescence: Quiescence::default(),
    }
}

fn linear() -> Stand {
    stand(None, |[data, _]| {
        Arc::new(Linear::new(NodeId(2), data, Sector(0), Sectors(BLOCKS * BLOCK)).expect("it fits"))
    })
}

fn zero() -> Stand {
    stand(None, |[data, _]| Arc::new(Zero::new(NodeId(2), data.sectors())))
}

/// A thin volume on a pool of its own: with every block mapped, to somewhere, or none.
fn thin(is_mapped: bool) -> Stand {
    // An odd number of steps visits all blocks in an order that is none.
    let place = |block: u64| BlockTime { block: (block * 7_919 + 13) % BLOCKS, time: 0 };
    let map =
        if is_mapped { (0..BLOCKS).map(|block| (block, place(block))).collect() } else { BTreeMap::new() };
    let device = Device { details: DeviceDetails::default(), mappings: Mappings::Own(map) };
    let contents = Contents {
        data_block_sectors: BLOCK as u32,
        data_blocks: BLOCKS,
        metadata_blocks: METADATA_BLOCKS,
        devices: BTreeMap::from([(0, device)]),
        ..Contents::default()
    };
    let pieces = build(&contents).expect("there is room");
    let metadata = Sparse::new(METADATA_BLOCKS * 4096, pieces);
    let mut bytes = vec![0; (METADATA_BLOCKS * 4096) as usize];
    metadata.read_at(0, &mut bytes).expect("it is in memory");
    stand(Some(bytes), |[data, disk]| {
        let superblock = read_block(&metadata, 0).and_then(|block| Superblock::decode(&block));
        let config = PoolConfig {
            name: "bench".into(),
            data,
            metadata: disk,
            superblock: superblock.expect("it was just made").expect("it is not blank"),
            cache_bytes: CACHE_BYTES,
            metadata_kept: METADATA_KEPT,
            features: PoolFeatures::default(),
        };
        let pool = Pool::new(config).expect("it fits");
        let device = pool.device_now(&metadata, 0).expect("it is there");
        let sectors = Sectors(BLOCKS * BLOCK);
        Arc::new(Thin::new(NodeId(2), ThinConfig { pool, device, sectors, external_origin: None }))
    })
}

/// Runs `ios` I/Os, rounded up to whole batches.
fn run(worker: &mut Worker<NoEnv>, ios: u64) {
    let target = DONE.get() + ios;
    worker.poke(PortId(0));
    while DONE.get() < target {
        worker.turn(Wait::Poll);
    }
}

/// Nanoseconds and allocations per I/O, of each stand, all in turns so that a neighbour's load hits all alike.
#[allow(clippy::disallowed_methods, reason = "what is measured here is real time")]
fn compare(workers: &mut [Worker<NoEnv>]) -> Vec<(f64, f64)> {
    const IOS: u64 = 100_000;
    workers.iter_mut().for_each(|worker| run(worker, 300_000));
    let mut best = vec![(f64::MAX, 0.0); workers.len()];
    for _ in 0..9 {
        for (worker, best) in workers.iter_mut().zip(&mut best) {
            let (start, allocated) = (Instant::now(), allocations());
            run(worker, IOS);
            best.0 = best.0.min(start.elapsed().as_nanos() as f64 / IOS as f64);
            best.1 = (allocations() - allocated) as f64 / IOS as f64;
        }
    }
    best
}

/// Million reads a second of so many workers on each of some stands.
#[allow(clippy::disallowed_methods, reason = "what is measured here is real time")]
fn together(stands: &[&Stand], workers: usize) -> f64 {
    const IOS: u64 = 200_000;
    let line = Barrier::new(workers * stands.len());
    let slowest = std::thread::scope(|scope| {
        let run_one = |stand: &Stand, seed: u64| {
            let mut worker = stand.worker(Job::random(Op::Read), seed);
            run(&mut worker, 200_000);
            let times = (0..7).map(|_| {
                line.wait();
                let start = Instant::now();
                run(&mut worker, IOS);
                start.elapsed().as_secs_f64()
            });
            times.fold(f64::MAX, f64::min)
        };
        let threads: Vec<_> = stands
            .iter()
            .flat_map(|stand| (0..workers).map(move |n| (*stand, n as u64 + 1)))
            .map(|(stand, seed)| scope.spawn(move || run_one(stand, seed)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no worker panics")).fold(0.0, f64::max)
    });
    (workers as u64 * IOS * stands.len() as u64) as f64 / slowest / 1e6
}

/// Thousand first writes a second of so many workers, on a pool where nothing is mapped.
#[allow(clippy::disallowed_methods, reason = "what is measured here is real time")]
fn first_writes(job: Job, ios: u64, workers: u64) -> f64 {
    let stand = thin(false);
    let line = Barrier::new(workers as usize + 1);
    let took = std::thread::scope(|scope| {
        let (stand, line) = (&stand, &line);
        let run_one = move |seed: u64| {
            let mut worker = stand.worker(job, seed);
            line.wait();
            run(&mut worker, ios / workers);
        };
        let threads: Vec<_> = (1..=workers).map(|seed| scope.spawn(move || run_one(seed))).collect();
        line.wait();
        let start = Instant::now();
        threads.into_iter().for_each(|thread| thread.join().expect("no worker panics"));
        start.elapsed()
    });
    ios as f64 / took.as_secs_f64() / 1e3
}

fn main() {
    if let Some(which) = option("--stand") {
        let stand = [linear, || thin(true), || thin(false), zero][which as usize]();
        let op = if option("--write") == Some(1) { Op::Write } else { Op::Read };
        let sectors = option("--blocks").unwrap_or(BLOCKS) * BLOCK;
        run(&mut stand.worker(Job { sectors, ..Job::random(op) }, 1), option("--ios").unwrap_or(100_000));
        return;
    }
    println!(
        "| 4 KiB random, depth 32 | ns per I/O | of | ns per I/O | times as fast | allocations per I/O |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    let (mapped, line) = (thin(true), linear());
    for op in [Op::Read, Op::Write] {
        let job = Job::random(op);
        let both = compare(&mut [mapped.worker(job, 1), line.worker(job, 1)]);
        let ((ours, allocated), (theirs, _)) = (both[0], both[1]);
        println!(
            "| thin, mapped, {op:?} | {ours:.1} | linear | {theirs:.1} | {:.2} | {allocated:.4} |",
            theirs / ours
        );
    }
    let (hole, zero) = (thin(false), zero());
    let job = Job::random(Op::Read);
    let both = compare(&mut [hole.worker(job, 1), zero.worker(job, 1)]);
    let ((ours, allocated), (theirs, _)) = (both[0], both[1]);
    println!("| thin, hole, Read | {ours:.1} | zero | {theirs:.1} | {:.2} | {allocated:.4} |", theirs / ours);
    println!("\n| workers, each a thread | linear, million reads a second | thin, mapped | ratio |");
    println!("| --- | --- | --- | --- |");
    for workers in 1..=std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
        let (linear, thin) = (together(&[&line], workers), together(&[&mapped], workers));
        println!("| {workers} | {linear:.2} | {thin:.2} | {:.2} |", thin / linear);
    }
    let other = thin(true);
    let (one, two) = (together(&[&mapped], 2), together(&[&mapped, &other], 1));
    println!(
        "\ntwo workers: one pool {one:.2}, two pools {two:.2} million reads a second ({:.2})",
        one / two
    );
    println!("\n| first writes, depth 32 | 1 worker, thousand a second | 2 workers |");
    println!("| --- | --- | --- |");
    let small = Job::random(Op::Write);
    let large = Job { bytes: 1 << 20, sequential: true, ..small };
    for (name, job, ios) in [
        ("random 4 KiB", small, 100_000),
        ("random 4 KiB, a flush every 32", Job { flush_every: 32, ..small }, 20_000),
        ("sequential 4 KiB", Job { sequential: true, ..small }, 400_000),
        ("sequential 1 MiB", large, 30_000),
    ] {
        let [one, two] = [1, 2].map(|workers| first_writes(job, ios, workers));
        println!("| {name} | {one:.1} | {two:.1} |");
    }
}
