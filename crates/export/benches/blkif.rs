//! Xen's block interface within one thread: nanoseconds of a 4 KiB read, front end and back end together.
//!
//! The device completes at once and touches no data, so that what is left is the protocol: a request put into the ring, taken,
//! checked, its page looked up, a bio through the engine, an answer put in and taken. Rings of 1, 2, 4 and 8 pages, each
//! kept full, with pages granted for each request and with pages that stay. Run it with
//!
//! ```text
//!   cargo bench -p blockwork-export --bench blkif
//! ```
//!
//! `--pages N --reads M`, and `--kept` for pages that stay, run one of them only, for callgrind: what two lengths of run differ by
//! is the same on every run, whatever else the machine does.

#[path = "../../layer/benches/rig/mod.rs"]
mod rig;

use std::sync::Arc;
use std::time::Instant;

use blockwork_engine::*;
use blockwork_export::blkif::in_process::{Bell, connect};
use blockwork_export::blkif::{EventChannel, FrontQueue, FrontWants};
use blockwork_format::blkif::Abi;
use blockwork_memory::{Segment, Segments};
use rig::{NoEnv, RigLeaf, option};

const SECTORS: u64 = 1 << 30;
/// Reads of a measurement.
const READS: u64 = 2_000_000;
/// Measurements, of which the median counts.
const REPEATS: usize = 5;

/// Keeps its ring full of random reads, with memory that it uses again.
struct Guest {
    queue: FrontQueue,
    bell: Bell,
    memory: Vec<Segments>,
    state: u64,
    left: u64,
    answers: Vec<Done>,
    worker: WorkerHandle<NoEnv>,
}

impl Port<NoEnv> for Guest {
    fn open(&mut self, cx: &mut Context<'_, NoEnv>) {
        self.bell.open(cx);
        let page = |_| Segments::from_iter([Segment::new(cx.pool().get(4096), 0, 4096)]);
        self.memory = (0..self.queue.slots()).map(page).collect();
    }
    fn event(&mut self, _: &mut Context<'_, NoEnv>, _: u32, _: Completion) {}
    fn done(&mut self, _: &mut Context<'_, NoEnv>, _: Done) {}
    fn turn(&mut self, cx: &mut Context<'_, NoEnv>) -> PortState {
        self.queue.answers(&mut self.answers).expect("our back end keeps the protocol");
        self.memory.extend(self.answers.drain(..).map(|done| done.data));
        while self.left > 0
            && self.queue.has_room()
            && let Some(data) = self.memory.pop()
        {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let sector = Sector((self.state >> 33) % (SECTORS / 8) * 8);
            let read = Bio::with_data(Op::Read, Flags::NONE, sector, data);
            self.queue.submit(0, read).expect("there is room");
            self.left -= 1;
        }
        if self.queue.publish() {
            self.bell.notify(cx);
        }
        if self.left > 0 || self.queue.under_way() > 0 {
            return PortState::Open;
        }
        self.worker.stop();
        PortState::Closed
    }
    fn drain(&mut self, _: &mut Context<'_, NoEnv>) {}
}

/// Nanoseconds of a read.
fn measure(ring_pages: u32, persistent: bool, reads: u64) -> f64 {
    let limits = Limits { nr_requests: 1024, merges: Merges::None, ..Limits::default() };
    let source: Arc<dyn LeafSource> = Arc::new(RigLeaf::null(Sectors(SECTORS), limits.clone()));
    let leaf = LeafLayer::new(LeafId(0), NodeId(0), Sectors(SECTORS), limits);
    let volume = Volume::new("null", Arc::new(leaf), false);
    let counters = Arc::new(CounterTable::new(1));
    let config = WorkerConfig::new(Arc::new([volume.clone()]), Arc::new([(NodeId(0), source)]), counters);
    let mut worker = Worker::new(NoEnv, config);
    let wants = FrontWants { ring_pages, queues: 1, abi: Abi::Bits64, persistent, max_indirect_segments: 0 };
    let stats = |number: u32, slots| Arc::new(RingStats::new(number.to_string(), slots));
    let device = connect(wants, VolumeId(0), &volume, stats).expect("what is wanted is offered");
    for ((queue, bell), (port, _)) in device.front.into_iter().zip(device.back) {
        worker.add_port(Box::new(port));
        worker.add_port(Box::new(Guest {
            queue,
            bell,
            memory: Vec::new(),
            state: 1,
            left: reads,
            answers: Vec::new(),
            worker: worker.handle(),
        }));
    }
    let begun = Instant::now();
    worker.run().expect("nothing fails");
    begun.elapsed().as_nanos() as f64 / reads as f64
}

fn main() {
    if let (Some(pages), Some(reads)) = (option("--pages"), option("--reads")) {
        let pages = u32::try_from(pages).expect("a ring has few pages");
        measure(pages, std::env::args().any(|arg| arg == "--kept"), reads);
        return;
    }
    println!("{:>6} {:>10} {:>16} {:>16}", "pages", "in flight", "granted, ns", "kept, ns");
    for pages in [1, 2, 4, 8] {
        let median = |persistent| {
            let mut all: Vec<f64> = (0..REPEATS).map(|_| measure(pages, persistent, READS)).collect();
            all.sort_by(f64::total_cmp);
            all[REPEATS / 2]
        };
        let (granted, kept) = (median(false), median(true));
        println!("{pages:>6} {:>10} {granted:>16.1} {kept:>16.1}", Abi::Bits64.slots(pages));
    }
}
