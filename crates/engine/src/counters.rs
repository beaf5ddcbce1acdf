//! Counters and latency histograms, per node and worker.
//!
//! Each worker has a [`CounterTable`] that only it writes (a plain load and store, no locked instruction); anyone may
//! read it. [`Stats`] adds the workers up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::bio::Op;
use crate::choice::{self, ChoiceSnapshot, Choices};
use crate::decision::{Decision, Decisions};
use crate::layer::NodeId;
use crate::lock::{LockSnapshot, Locks};
use crate::ring::{RingSnapshot, RingStats, Rings};
use crate::units::Nanos;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident => $key:literal,)*) => {
        /// What is counted of every node.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Counter { $($(#[$doc])* $name,)* }
        impl Counter {
            /// All of them.
            pub const ALL: &'static [Counter] = &[$(Counter::$name,)*];
            /// Its name in reports.
            pub fn name(self) -> &'static str { match self { $(Counter::$name => $key,)* } }
        }
    };
}

counters! {
    /// Bios, or pieces of them, that arrived.
    In => "in",
    /// Pieces handed on: to the layers below, or as requests to the device.
    Out => "out",
    /// Pieces that were added to the end of a request.
    BackMerged => "merged_back",
    /// Pieces that were added to the front of a request.
    FrontMerged => "merged_front",
    /// Cuts at a chunk of a striped layer.
    SplitChunk => "split_chunk",
    /// Cuts at the end of a table's target.
    SplitTarget => "split_target",
    /// Cuts because of max_sectors.
    SplitMaxSectors => "split_max_sectors",
    /// Cuts because of max_segments.
    SplitMaxSegments => "split_max_segments",
    /// Cuts because of discard or write-zeroes limits.
    SplitDiscard => "split_discard",
    /// Requests whose data went through another buffer because of its alignment.
    Bounced => "bounced",
    /// Requests whose data was copied to, or from, one piece of memory: `linearize`.
    Linearized => "linearized",
    /// Requests that went by memory which the kernel knows: `fixed`.
    Fixed => "fixed",
    /// Bios that waited for a slow path.
    Deferred => "deferred",
    /// Bios that were run again after a layer had done something about a failure below it.
    Cured => "cured",
    /// Parts of reads that were computed from others and a parity.
    Computed => "computed",
    /// Parts of rows with a parity that were written as a whole.
    RowsWhole => "rows_whole",
    /// Parts of such rows of which some data were written, and all was known that their parities needed.
    RowsKnown => "rows_known",
    /// Likewise, and something had to be read.
    RowsRead => "rows_read",
    /// Byte ranges that were read, modified and written.
    Unaligned => "unaligned",
    /// Requests that were asked for again after a short transfer or a failed merged request.
    Requeued => "requeued",
    /// Requests that a device ended otherwise than it was asked: in part, interrupted, or with an error. What becomes of them, others tell.
    Incomplete => "incomplete",
    /// Requests that waited because nr_requests were in flight.
    Waited => "waited",
    /// Large requests that waited so that small ones need not (`wbt_lat_usec`).
    Held => "held",
    /// Flushes that one other flush covered as well.
    FlushMerged => "flush_merged",
    /// Reads served from what was read ahead.
    ReadAheadHit => "read_ahead_hit",
    /// Requests that read ahead.
    ReadAheadIssued => "read_ahead_issued",
    /// Write-zeroes that became writes of zeros.
    ZeroesWritten => "zeroes_written",
    /// Reads: of a leaf, requests issued to the device; of a layer, bios taken.
    Reads => "reads",
    /// Likewise writes.
    Writes => "writes",
    /// Likewise flushes.
    Flushes => "flushes",
    /// Likewise discards.
    Discards => "discards",
    /// Likewise write-zeroes.
    WriteZeroes => "write_zeroes",
    /// Bytes read.
    ReadBytes => "read_bytes",
    /// Bytes written.
    WriteBytes => "write_bytes",
    /// Bytes discarded or zeroed.
    DiscardBytes => "discard_bytes",
    /// Writes of a leaf that the device was asked to make durable itself (FUA), and no flush behind them.
    FuaWrites => "fua_writes",
    /// I/Os that failed.
    Errors => "errors",
}

/// Most nodes that can be added to a server's [`Stats`] while it runs. One that is not needed any more can become another one
/// ([`Stats::renew`]).
pub const ADDED_NODES_MAX: usize = 1024;

const COUNTERS: usize = Counter::ALL.len();
/// Classes of operation that have a histogram of their own: read, write, flush, discard and write-zeroes.
const CLASSES: usize = 4;
/// Buckets of a histogram: four per doubling, from 1 ns up to 2^40 ns (18 minutes).
pub const LATENCY_BUCKETS: usize = 160;

/// What a node is, for people.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// Name: a volume's, a path, a table's.
    pub name: String,
    /// What kind of layer.
    pub kind: NodeKind,
    /// Device number as in traces: major, minor.
    pub device: (u32, u32),
}

/// Kinds of node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A leaf device.
    Leaf,
    /// A partition.
    Partition,
    /// A device-mapper table.
    Table,
    /// dm-linear.
    Linear,
    /// dm-stripe.
    Striped,
    /// dm-zero.
    Zero,
    /// dm-error.
    Error,
    /// dm-delay.
    Delay,
    /// An md array.
    Md,
    /// An LVM volume that is an array: dm-raid.
    Raid,
    /// dm-thin: a volume of a pool.
    Thin,
    /// dm-snapshot's origin.
    SnapshotOrigin,
    /// dm-snapshot.
    Snapshot,
    /// dm-snapshot's origin while a snapshot is merged into it.
    SnapshotMerge,
    /// dm-cache, as far as it is read.
    Cache,
    /// dm-writecache, likewise.
    Writecache,
    /// Something else (tests, layers to come).
    Other(&'static str),
}

impl NodeKind {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            NodeKind::Leaf => "leaf",
            NodeKind::Partition => "part",
            NodeKind::Table => "dm",
            NodeKind::Linear => "linear",
            NodeKind::Striped => "striped",
            NodeKind::Zero => "zero",
            NodeKind::Error => "error",
            NodeKind::Delay => "delay",
            NodeKind::Md => "md",
            NodeKind::Raid => "raid",
            NodeKind::Thin => "thin",
            NodeKind::SnapshotOrigin => "snapshot-origin",
            NodeKind::Snapshot => "snapshot",
            NodeKind::SnapshotMerge => "snapshot-merge",
            NodeKind::Cache => "cache",
            NodeKind::Writecache => "writecache",
            NodeKind::Other(name) => name,
        }
    }
}

/// Histograms of a node, one for each class of operation.
type Latencies = Box<[[AtomicU64; LATENCY_BUCKETS]; CLASSES]>;

struct Cell {
    counts: [AtomicU64; COUNTERS],
    /// 5 KiB, so only for nodes that ever complete something: a disk can hold tens of thousands of volumes.
    latency: OnceLock<Latencies>,
}

impl Default for Cell {
    fn default() -> Cell {
        Cell { counts: std::array::from_fn(|_| AtomicU64::new(0)), latency: OnceLock::new() }
    }
}

/// One worker's counters. Written by that worker only.
pub struct CounterTable {
    cells: Box<[Cell]>,
    pub(crate) choices: Choices,
}

#[inline]
fn bump(cell: &AtomicU64, n: u64) {
    // Only one thread writes, so this loses nothing, and needs no locked instruction.
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

#[inline]
fn bucket(latency: Nanos) -> usize {
    let ns = latency.0.max(1);
    let octave = ns.ilog2() as usize;
    let quarter = if octave >= 2 { (ns >> (octave - 2)) as usize & 3 } else { 0 };
    (octave * 4 + quarter).min(LATENCY_BUCKETS - 1)
}

fn class(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard | Op::WriteZeroes => 3,
    }
}

#[cold]
fn first(latency: &OnceLock<Latencies>) -> &Latencies {
    latency.get_or_init(|| Box::new(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)))))
}

impl CounterTable {
    /// A table for `nodes` nodes, all zero.
    pub fn new(nodes: usize) -> CounterTable {
        CounterTable { cells: (0..nodes).map(|_| Cell::default()).collect(), choices: Choices::default() }
    }
    /// Number of nodes.
    pub(crate) fn len(&self) -> u16 {
        u16::try_from(self.cells.len()).expect("a NodeId is a u16")
    }
    /// Adds `n`.
    #[inline]
    pub fn add(&self, node: NodeId, counter: Counter, n: u64) {
        bump(&self.cells[node.0 as usize].counts[counter as usize], n);
    }
    /// Counts an operation and its bytes.
    #[inline]
    pub fn operation(&self, node: NodeId, op: Op, bytes: u64) {
        let counts = &self.cells[node.0 as usize].counts;
        let (ops, size) = match op {
            Op::Read => (Counter::Reads, Counter::ReadBytes),
            Op::Write => (Counter::Writes, Counter::WriteBytes),
            Op::Flush => (Counter::Flushes, Counter::WriteBytes),
            Op::Discard => (Counter::Discards, Counter::DiscardBytes),
            Op::WriteZeroes => (Counter::WriteZeroes, Counter::DiscardBytes),
        };
        bump(&counts[ops as usize], 1);
        bump(&counts[size as usize], bytes);
    }
    /// A request that the device has done while it was given it: as [`CounterTable::add`] of `Out`, [`CounterTable::operation`] and
    /// [`CounterTable::latency`], by one look.
    #[inline]
    pub(crate) fn done_at_once(&self, node: NodeId, op: Op, bytes: u64) {
        let Cell { counts, latency } = &self.cells[node.0 as usize];
        let is_read = op == Op::Read;
        bump(&counts[Counter::Out as usize], 1);
        bump(&counts[if is_read { Counter::Reads } else { Counter::Writes } as usize], 1);
        bump(&counts[if is_read { Counter::ReadBytes } else { Counter::WriteBytes } as usize], bytes);
        let all = latency.get().unwrap_or_else(|| first(latency));
        bump(&all[class(op)][bucket(Nanos(0))], 1);
    }
    /// Records how long an operation took.
    #[inline]
    pub fn latency(&self, node: NodeId, op: Op, took: Nanos) {
        let latency = &self.cells[node.0 as usize].latency;
        let all = latency.get().unwrap_or_else(|| first(latency));
        bump(&all[class(op)][bucket(took)], 1);
    }
    /// Bytes read, written, and discarded or zeroed, in all.
    #[inline]
    pub(crate) fn bytes(&self, node: NodeId) -> u64 {
        let counts = &self.cells[node.0 as usize].counts;
        let bytes = [Counter::ReadBytes, Counter::WriteBytes, Counter::DiscardBytes];
        bytes.iter().map(|counter| counts[*counter as usize].load(Relaxed)).sum()
    }
    /// All figures of a node begin anew. For the worker whose table it is.
    pub(crate) fn clear(&self, node: NodeId) {
        let Cell { counts, latency } = &self.cells[node.0 as usize];
        counts
            .iter()
            .chain(latency.get().into_iter().flat_map(|all| all.iter().flatten()))
            .for_each(|one| one.store(0, Relaxed));
    }
    /// One counter's value.
    pub fn get(&self, node: NodeId, counter: Counter) -> u64 {
        self.cells[node.0 as usize].counts[counter as usize].load(Relaxed)
    }
}

/// A latency histogram, added up over workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Counts per bucket; see [`Histogram::bound`].
    pub buckets: Vec<u64>,
}

impl Histogram {
    /// Upper bound of a bucket, exclusive, in nanoseconds.
    pub fn bound(bucket: usize) -> u64 {
        let (octave, quarter) = (bucket / 4, (bucket % 4) as u64);
        if octave < 2 { 1 << (octave + 1) } else { (1 << octave) + ((quarter + 1) << (octave - 2)) }
    }
    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
    /// The bound below which the given share (0 to 1) of the samples lies, in nanoseconds; none without samples.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let wanted = ((total as f64 * share).ceil() as u64).clamp(1, total);
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= wanted {
                return Some(Histogram::bound(i));
            }
        }
        None
    }
}

/// One node's counters at one moment, added up over workers.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The node.
    pub info: NodeInfo,
    /// Every counter, in the order of [`Counter::ALL`].
    pub counts: Vec<(Counter, u64)>,
    /// Latency of reads, writes, flushes, and discards with write-zeroes.
    pub latency: Vec<(&'static str, Histogram)>,
}

impl Snapshot {
    /// One counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].1
    }

    /// Requests that the device has been given, and has not ended; none for what is no leaf.
    pub fn in_flight(&self) -> Option<u64> {
        let done: u64 = self.latency.iter().map(|(_, histogram)| histogram.count()).sum();
        // Workers go on while these are read, one after the other.
        let left = self.get(Counter::Out).saturating_sub(done + self.get(Counter::Incomplete));
        (self.info.kind == NodeKind::Leaf).then_some(left)
    }
}

/// There is no room for another node: [`ADDED_NODES_MAX`] have been added since the server was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ADDED_NODES_MAX} devices have been added since the server was started; start it anew to add more")]
pub struct StatsFull;

/// All workers' counters.
pub struct Stats {
    nodes: Mutex<Vec<NodeInfo>>,
    /// How many of them there were from the beginning.
    at_first: usize,
    workers: Mutex<Vec<Arc<CounterTable>>>,
    rings: Rings,
    locks: Locks,
    decisions: Decisions,
}

impl Stats {
    /// Counters for these nodes: a [`NodeId`] is an index into them.
    pub fn new(nodes: Vec<NodeInfo>) -> Stats {
        Stats {
            at_first: nodes.len(),
            nodes: Mutex::new(nodes),
            workers: Mutex::default(),
            rings: Rings::default(),
            locks: Locks::default(),
            decisions: Decisions::default(),
        }
    }
    fn infos(&self) -> MutexGuard<'_, Vec<NodeInfo>> {
        self.nodes.lock().expect("no holder of this lock panics")
    }
    /// The nodes that there are now.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.infos().clone()
    }
    /// How many nodes there are now.
    pub fn node_count(&self) -> usize {
        self.infos().len()
    }
    /// One more node.
    ///
    /// # Errors
    ///
    /// [`ADDED_NODES_MAX`] were added before.
    pub fn add(&self, node: NodeInfo) -> Result<NodeId, StatsFull> {
        let mut nodes = self.infos();
        let id = u16::try_from(nodes.len()).map_err(|_| StatsFull)?;
        if nodes.len() - self.at_first == ADDED_NODES_MAX {
            return Err(StatsFull);
        }
        nodes.push(node);
        Ok(NodeId(id))
    }
    /// A node goes by another name from now on, or is another one. Then its figures are those of the old one until each worker has had them
    /// begin anew ([`Worker::clear_counters`](crate::Worker::clear_counters)).
    ///
    /// # Panics
    ///
    /// There is no such node.
    pub fn renew(&self, node: NodeId, info: NodeInfo) {
        self.infos()[usize::from(node.0)] = info;
    }
    /// A table for one more worker, with room for nodes to come.
    pub fn worker(&self) -> Arc<CounterTable> {
        let room = (self.at_first + ADDED_NODES_MAX).min(usize::from(u16::MAX));
        let table = Arc::new(CounterTable::new(room));
        self.workers.lock().expect("no holder of this lock panics").push(table.clone());
        table
    }
    /// Where a client's ring of that name, for `size` requests, is counted: anew, or where it was before.
    pub fn ring(&self, name: &str, size: u32) -> Arc<RingStats> {
        self.rings.ring(name, size)
    }
    /// The rings that there are or were, at `now` of the workers' clock.
    pub fn rings(&self, now: Nanos) -> Vec<RingSnapshot> {
        self.rings.snapshot(now)
    }
    /// What the workers have found out on the client's own requests: `linearize=auto`, `fua=auto`, `fixed=auto`.
    pub fn choices(&self) -> Vec<ChoiceSnapshot> {
        let workers = self.workers.lock().expect("no holder of this lock panics");
        choice::snapshot(workers.iter().map(|table| &table.choices))
    }
    /// Whom [`Stats::decisions`] asks.
    pub fn watch_decisions(&self, source: impl Fn() -> Vec<(NodeId, Vec<Decision>)> + Send + Sync + 'static) {
        self.decisions.watch(Box::new(source));
    }
    /// What is in force on each leaf of what can be done in several ways.
    pub fn decisions(&self) -> Vec<(NodeId, Vec<Decision>)> {
        self.decisions.snapshot()
    }
    /// Whom [`Stats::locks`] asks.
    pub fn watch_locks(&self, source: impl Fn() -> Vec<LockSnapshot> + Send + Sync + 'static) {
        self.locks.watch(Box::new(source));
    }
    /// The locks that workers share and that were ever taken; those that were waited for most come first.
    pub fn locks(&self) -> Vec<LockSnapshot> {
        self.locks.snapshot()
    }
    /// The sum over all workers of one counter.
    pub fn get(&self, node: NodeId, counter: Counter) -> u64 {
        self.workers
            .lock()
            .expect("no holder of this lock panics")
            .iter()
            .map(|table| table.get(node, counter))
            .sum()
    }
    /// Everything, node by node.
    pub fn snapshot(&self) -> Vec<Snapshot> {
        let workers = self.workers.lock().expect("no holder of this lock panics");
        let sum = |read: &dyn Fn(&Cell) -> u64, node: usize| {
            workers.iter().map(|table| read(&table.cells[node])).sum()
        };
        let one = |(node, info): (usize, &NodeInfo)| Snapshot {
            info: info.clone(),
            counts: Counter::ALL
                .iter()
                .map(|&counter| (counter, sum(&|cell| cell.counts[counter as usize].load(Relaxed), node)))
                .collect(),
            latency: ["read", "write", "flush", "discard"]
                .into_iter()
                .enumerate()
                .map(|(class, name)| {
                    let buckets = (0..LATENCY_BUCKETS)
                        .map(|b| {
                            sum(&|cell| cell.latency.get().map_or(0, |all| all[class][b].load(Relaxed)), node)
                        })
                        .collect();
                    (name, Histogram { buckets })
                })
                .collect(),
        };
        self.nodes().iter().enumerate().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_lies_below_its_buckets_bound_and_not_below_the_one_before() {
        for shift in 0..40 {
            for ns in [1u64 << shift, (1 << shift) + 1, (1 << shift) + (1 << shift) / 3, (2 << shift) - 1] {
                let b = bucket(Nanos(ns));
                assert!(ns < Histogram::bound(b), "{ns} in bucket {b} below {}", Histogram::bound(b));
                assert!(ns < 8 || ns >= Histogram::bound(b - 1), "{ns} in bucket {b}");
            }
        }
    }

    #[test]
    fn nodes_that_come_later_are_counted_and_are_bounded() {
        let node = |i: u32| NodeInfo { name: format!("n{i}"), kind: NodeKind::Leaf, device: (0, i) };
        let stats = Stats::new(vec![node(0)]);
        let table = stats.worker();
        assert_eq!(stats.add(node(1)), Ok(NodeId(1)));
        table.add(NodeId(1), Counter::In, 2);
        let snapshot = stats.snapshot();
        assert_eq!((snapshot.len(), &*snapshot[1].info.name, snapshot[1].get(Counter::In)), (2, "n1", 2));
        assert!((2..=ADDED_NODES_MAX as u32).all(|i| stats.add(node(i)).is_ok()));
        assert_eq!(stats.add(node(99)), Err(StatsFull));
        table.add(NodeId(ADDED_NODES_MAX as u16), Counter::In, 1);
        let last = NodeId(ADDED_NODES_MAX as u16);
        table.latency(last, Op::Write, Nanos(5));
        stats.renew(last, NodeInfo { name: "another".into(), ..node(7) });
        table.clear(last);
        let figures = &stats.snapshot()[ADDED_NODES_MAX];
        assert_eq!((figures.info.name.as_str(), figures.get(Counter::In)), ("another", 0));
        // What there was from the beginning can have another name, too, and keeps its figures.
        table.add(NodeId(0), Counter::In, 3);
        stats.renew(NodeId(0), NodeInfo { name: "renamed".into(), ..node(0) });
        let figures = &stats.snapshot()[0];
        assert_eq!((figures.info.name.as_str(), figures.get(Counter::In)), ("renamed", 3));
        assert!(figures.latency.iter().all(|(_, histogram)| histogram.count() == 0));
    }

    #[test]
    fn quantiles_come_from_the_right_bucket() {
        let stats = Stats::new(vec![NodeInfo { name: "x".into(), kind: NodeKind::Leaf, device: (0, 0) }]);
        let (a, b) = (stats.worker(), stats.worker());
        (0..99).for_each(|_| a.latency(NodeId(0), Op::Read, Nanos(100)));
        b.latency(NodeId(0), Op::Read, Nanos::micros(50));
        a.add(NodeId(0), Counter::In, 2);
        b.add(NodeId(0), Counter::In, 3);
        let snapshot = &stats.snapshot()[0];
        assert_eq!(snapshot.get(Counter::In), 5);
        let reads = &snapshot.latency[0].1;
        assert_eq!(reads.count(), 100);
        assert_eq!(reads.quantile(0.5), Some(112));
        assert!(reads.quantile(1.0).unwrap() > 50_000);
    }
}
