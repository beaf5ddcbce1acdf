//! "xen/block: add multi-page ring support": a guest's ring of one page holds 32 requests, and a disk that is fast with 256
//! under way gets 32.
//!
//! The rings are ours, both ends of them, with one page and with eight; the disk is simulated. The guest's threads and its
//! queue are in `guest.rs`. The second half is about sequential reads, with which a smaller ring can be the faster one: what
//! waits for room in it is merged in the guest.

mod guest;

use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    CounterTable, Errno, FileId, LeafId, LeafLayer, LeafSource, Limits, Merges, Nanos, NodeId, NodeInfo,
    NodeKind, RingStats, Sectors, Tracer, Volume, VolumeId, Worker, WorkerConfig,
};
use blockwork_export::blkif::in_process::connect;
use blockwork_export::blkif::{ConnectError, FrontWants};
use blockwork_format::FormatError;
use blockwork_format::blkif::Abi;
use blockwork_sim::{Cap, CapOn, CapUnit, DeviceModel, Latency, World};

use super::excerpt::Listener;
use super::lab::Progress;
use super::runs::run_all;
use super::{Excerpt, Reproduction, Requests, RingRate};
use guest::{Guest, Job, PAGE, Told};

/// Of the report's rows.
pub const IN_FLIGHT: [u32; 6] = [4, 16, 32, 64, 128, 256];
/// Reads a second in the report, in thousands: with one page, and with eight.
const REPORT: [[f64; 6]; 2] =
    [[19.0, 89.0, 149.0, 131.0, 127.0, 132.0], [19.0, 89.0, 149.0, 198.0, 208.0, 209.0]];
/// Pages of the rings of the report.
const PAGES: [u32; 2] = [1, 8];
/// The device, 700 GB.
const DEVICE: Sectors = Sectors(700_000_000_000 / 512);
/// What a read takes on its way through guest, hypervisor and dom0, apart from the device: calibrated by the first row.
const WAY: Nanos = Nanos::micros(165);
/// Reads a second of a way that takes them one at a time, 5 us each.
const ONE_AT_A_TIME: u64 = 200_000;
/// Requests of a trace that are shown.
const SHOWN: usize = 6;

/// Why it cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Both ends do not come together: one of them is wrong.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A trace that cannot be read: the tracer is wrong.
    #[error(transparent)]
    Trace(#[from] FormatError),
    /// A read failed, on a device that has no faults: the engine is wrong.
    #[error("reads of a guest: {0}, on a device without faults")]
    Io(Errno),
}

/// What is run.
#[derive(Clone, Debug)]
pub struct RingPlan {
    /// Of the simulator.
    pub seed: u64,
    /// Reads of each run.
    pub reads: u64,
}

impl Default for RingPlan {
    fn default() -> RingPlan {
        RingPlan { seed: 1, reads: 40_000 }
    }
}

/// Where a guest reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Anywhere.
    Random,
    /// Each thread from the start of a region of its own.
    Sequential,
}

/// How requests get from the ring to the device, apart from the time that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As many at once as there are.
    Free,
    /// One at a time.
    OneAtATime,
}

/// One guest on one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    access: Access,
    way: Way,
    in_flight: u32,
    ring_pages: u32,
    /// Whether the host merges what is together in the ring.
    merges: Merges,
}

/// What came of it.
#[derive(Clone, Debug)]
struct Outcome {
    time: Nanos,
    /// Requests that the guest put into the ring.
    requests: u64,
    ring: Arc<RingStats>,
    device: Requests,
}

impl Run {
    fn device(&self) -> DeviceModel {
        let mut model = DeviceModel::p320h(DEVICE);
        model.keeps_content = false;
        model.limits = Limits { merges: self.merges, nr_requests: 512, ..model.limits };
        model.latency.read = match model.latency.read {
            Latency::Tail { usual, rare, per_million } => {
                Latency::Tail { usual: Box::new(later(*usual)), rare: Box::new(later(*rare)), per_million }
            }
            other => later(other),
        };
        if self.way == Way::OneAtATime {
            let unit = CapUnit::Requests { split_bytes: u64::MAX };
            model.caps.push(Cap { on: CapOn::Reads, unit, per_second: ONE_AT_A_TIME, burst: 1 });
        }
        model
    }

    fn outcome(&self, plan: &RingPlan, tracer: Tracer, progress: Progress) -> Result<Outcome, RingError> {
        let world = World::new(plan.seed);
        let device = world.add_device(self.device());
        let source: Arc<dyn LeafSource> = world.source(device);
        let leaf = LeafLayer::new(LeafId(0), NodeId(0), source.sectors(), source.limits().clone());
        let volume = Volume::new("p320h", Arc::new(leaf), false);
        let counters = Arc::new(CounterTable::new(1));
        let config = WorkerConfig {
            tracer,
            ..WorkerConfig::new(Arc::new([volume.clone()]), Arc::new([(NodeId(0), source)]), counters)
        };
        let mut worker = Worker::new(world.env(), config);
        let wants = FrontWants {
            ring_pages: self.ring_pages,
            queues: 1,
            abi: Abi::Bits64,
            persistent: false,
            max_indirect_segments: 0,
        };
        let ring = Arc::new(RingStats::new("guest", Abi::Bits64.slots(self.ring_pages)));
        let both = connect(wants, VolumeId(0), &volume, |_, _| ring.clone())?;
        let told = Rc::new(Told::default());
        let queue = both.front.into_iter().zip(both.back).next();
        let (front, (back, _)) = queue.expect("the guest wants one queue");
        let Run { access, in_flight, .. } = *self;
        let job = Job { access, seed: plan.seed, reads: plan.reads, in_flight };
        worker.add_port(Box::new(back));
        worker.add_port(Box::new(Guest::new(&job, front, worker.handle(), told.clone(), progress)));
        worker.run().map_err(RingError::Io)?;
        if let Some(errno) = told.failed.get() {
            return Err(RingError::Io(errno));
        }
        let device = Requests::from(&world.counters(FileId(0)));
        Ok(Outcome { time: told.ended.get(), requests: told.requests.get(), ring, device })
    }

    /// What the report measured there, reads a second.
    fn report(&self) -> Option<f64> {
        if self.access == Access::Sequential || self.way == Way::OneAtATime {
            return None;
        }
        let row = IN_FLIGHT.iter().position(|in_flight| *in_flight == self.in_flight)?;
        let column = PAGES.iter().position(|pages| *pages == self.ring_pages)?;
        Some(REPORT[column][row] * 1000.0)
    }

    fn rate(&self, plan: &RingPlan, outcome: &Outcome) -> RingRate {
        let ring = outcome.ring.snapshot(outcome.time);
        let client = match self.access {
            Access::Random => "random reads of 4 KiB",
            Access::Sequential => "sequential reads of 4 KiB",
        };
        let path = match self.way {
            Way::Free => "any number at a time",
            Way::OneAtATime => "one at a time, 5 us each",
        };
        RingRate {
            client: client.into(),
            path: path.into(),
            in_flight: self.in_flight,
            ring_pages: self.ring_pages,
            is_merged_at_leaf: self.merges == Merges::All,
            report_iops: self.report(),
            iops: plan.reads as f64 * 1e9 / outcome.time.0 as f64,
            is_calibration: self.report().is_some() && self.in_flight == IN_FLIGHT[0],
            reads_per_request: plan.reads as f64 / outcome.requests as f64,
            ring_size: ring.size,
            ring_high_water: ring.high_water,
            ring_full: ring.full.0 as f64 / outcome.time.0 as f64,
            device: outcome.device,
        }
    }
}

fn later(latency: Latency) -> Latency {
    match latency {
        Latency::LogNormal { median, sigma } => {
            // The way adds to the time and nothing to its spread.
            let whole = median + WAY;
            Latency::LogNormal { median: whole, sigma: sigma * median.0 as f64 / whole.0 as f64 }
        }
        other => other,
    }
}

fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    let random = |way, ring_pages, in_flight| Run {
        access: Access::Random,
        way,
        in_flight,
        ring_pages,
        merges: Merges::None,
    };
    for way in [Way::Free, Way::OneAtATime] {
        for pages in PAGES {
            runs.extend(IN_FLIGHT.map(|in_flight| random(way, pages, in_flight)));
        }
    }
    runs.extend(sequential_runs());
    runs
}

fn sequential_runs() -> Vec<Run> {
    let rings = [(1, Merges::None), (8, Merges::None), (8, Merges::All)];
    let of = |(ring_pages, merges)| {
        IN_FLIGHT.map(|in_flight| Run {
            access: Access::Sequential,
            way: Way::OneAtATime,
            in_flight,
            ring_pages,
            merges,
        })
    };
    rings.into_iter().flat_map(of).collect()
}

/// Runs it. `progress` hears what part is done, from 0 to 1.
///
/// # Errors
///
/// See [`RingError`].
pub fn reproduce(plan: &RingPlan, progress: &mut dyn FnMut(f64)) -> Result<Reproduction, RingError> {
    let title = "A Xen guest's ring of one page holds 32 requests: a fast disk starves";
    let reproduction = of_runs("ring", title, &runs(), plan, progress)?;
    Ok(Reproduction {
        calibration: Some(
            "how long a read is on its way through guest, hypervisor and dom0, apart from the device (165 us), from 4 in flight; \
             every other row is a prediction"
                .into(),
        ),
        notes: [&NOTES_ON_RANDOM[..], &NOTES_ON_SEQUENTIAL[..]].concat().into_iter().map(String::from).collect(),
        ..reproduction
    })
}

/// Runs its sequential reads alone, the half in which a smaller ring can be the faster one.
///
/// # Errors
///
/// See [`RingError`].
pub fn reproduce_sequential(
    plan: &RingPlan,
    progress: &mut dyn FnMut(f64),
) -> Result<Reproduction, RingError> {
    let title = "Sequential reads are faster through a Xen guest's ring of one page than of eight, as long as nobody merges those of eight";
    of_runs("sequential", title, &sequential_runs(), plan, progress)
}

fn of_runs(
    name: &'static str,
    title: &'static str,
    runs: &[Run],
    plan: &RingPlan,
    progress: &mut dyn FnMut(f64),
) -> Result<Reproduction, RingError> {
    let one = |run: &Run, progress: Progress| run.outcome(plan, Tracer::default(), progress);
    let outcomes = run_all(runs, one, progress)?;
    let rings = runs.iter().zip(&outcomes).map(|(run, outcome)| run.rate(plan, outcome)).collect();
    let traces = PAGES.map(|pages| trace(plan, pages));
    Ok(Reproduction {
        name,
        title,
        source: "xen/block: add multi-page ring support (xen-devel and linux-kernel, 2015)",
        assumptions: assumptions(),
        calibration: None,
        rows: Vec::new(),
        rates: Vec::new(),
        reads: Vec::new(),
        rings,
        linearize: Vec::new(),
        traces: traces.into_iter().collect::<Result<_, _>>()?,
        notes: NOTES_ON_SEQUENTIAL.map(String::from).into(),
    })
}

/// What the device gets of sequential reads, 128 in flight, through a ring of so many pages.
fn trace(plan: &RingPlan, ring_pages: u32) -> Result<Excerpt, RingError> {
    let node = NodeInfo { name: "rssda".into(), kind: NodeKind::Leaf, device: (252, 0) };
    let listener = Listener::new(&[node]);
    let run = Run {
        access: Access::Sequential,
        way: Way::OneAtATime,
        in_flight: 128,
        ring_pages,
        merges: Merges::None,
    };
    let plan = RingPlan { reads: plan.reads.min(4_000), ..plan.clone() };
    run.outcome(&plan, listener.hub.tracer(0), Box::new(|_| ()))?;
    // What the first thread reads, when all have begun.
    let lines = listener.lines(64 * PAGE..128 * PAGE)?;
    let issued = lines.into_iter().filter(|line| line.contains(" D "));
    Ok(Excerpt {
        title: format!(
            "The device's trace, sequential, 128 in flight, {ring_pages} pages: requests of one thread"
        ),
        lines: issued.take(SHOWN).collect(),
    })
}

fn assumptions() -> Vec<String> {
    [
        "The device: the simulator's model p320h, Micron's P320h of 700 GB by its data sheet: 785,000 random reads of 4 KiB a \
         second with 256 commands under way, 3.2 GB/s, a read in less than 47 us.",
        "The guest: 16 vCPUs, a thread of fio each (more above 64 in flight), each with 4 reads under way. What finds no room in the \
         ring waits in the guest's queue; there it is merged with what it follows, up to the 11 pages of a request.",
        "The way: 165 us for each read beside the device's own time, however many there are. It is part of the simulated device.",
        "The ring: our front end and our back end, both of them all of the protocol, within one worker: pages granted for each \
         request, event channels that take no time. One page holds 32 requests, eight hold 256.",
        "The host merges nothing (nomerges=2): what comes out of the ring goes to the device as it is. In the last column it is our \
         queue, which merges what is in the ring together, and the way then counts what is left.",
    ]
    .map(String::from)
    .into()
}

const NOTES_ON_RANDOM: [&str; 2] = [
    "Random reads, first half: with one page the guest never has more than 32 requests under way, whatever it would \
     like, and gets 32 reads for each 210 us. `time full` is the part of the time in which the ring had no room: `blockwork serve \
     --stats` and /v1/stats tell the same of real guests.",
    "The report's guest ended at 209,000 with eight pages, and went down to 131,000 with one as soon as more was asked for than \
     fits. The device can do 785,000, and gets there here: what held the report's guest is not in the report. Second half: \
     the same with a way that takes requests one at a time, 5 us each (a round figure, not fitted): this is near the \
     report's eight pages in every row. That one page gets less at 64 than at 32 in flight does not come from the ring's size, \
     which is the same in both: Linux stops its queue when the ring is full and starts it at each batch of answers; ours does not.",
];

const NOTES_ON_SEQUENTIAL: [&str; 2] = [
    "Sequential reads, which the thread found hard to explain (its anomalies A and B): where each request costs the way the same, a \
     guest is faster whose requests are larger. Reads are merged while they wait in the guest's queue, and they wait only when \
     the ring is full. So one page is the faster ring as soon as more than 32 reads are under way: each request then takes along \
     up to four reads, all that a thread has. With eight pages nothing waits up to 256, nothing is merged, and sequential reads are \
     as slow as random ones. The traces show it: requests of 32 sectors, and of 8.",
    "So a small ring merges by accident, and a large one should not have to: our queue at the device merges what is in the ring \
     together, and eight pages are then as good as any.",
];

#[cfg(test)]
mod tests;
