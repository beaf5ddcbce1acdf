//! dm-devel, "poor thin performance, relative to thick".
//!
//! Random reads of thin volumes were a third as fast as those of thick ones: every look-up took the pool's locks, and what was never
//! written was read by the pool's one worker. Two pools were nearly twice as fast as one. Here the old behaviour is a layer over ours
//! ([`PoolLock`]), which makes each look-up wait for its turn.
//!
//! What is read from is in `stack.rs`, the old behaviour in `pool_lock.rs`; in `real.rs` there is neither a simulated device nor virtual time.

mod pool_lock;
mod real;
mod stack;

use blockwork_engine::{Errno, Nanos, Op, Sector, Sectors};
use blockwork_layer::TableError;
use blockwork_layer::thin::PoolError;
use blockwork_sim::{DeviceModel, Random};

use super::lab::{Ask, Lab, Next, Outcome, Progress, Workload};
use super::runs::run_all;
use super::{Behaviour, ReadRate, Reproduction, Requests};
pub use pool_lock::{PoolLock, Turn};
pub use real::reproduce_for_real;
use stack::{NODES, Stack, VOLUME, device};

/// Jobs of the report's fio, each on a core of its own.
const JOBS: u64 = 16;
/// Reads that a job has under way.
const DEPTH: u64 = 32;
/// Sectors of a read.
const PAGE: Sectors = Sectors(8);
/// What a core is busy with for each read: a core makes a quarter of a million of them a second.
const CORE: Nanos = Nanos::micros(4);

/// Why it cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ThinError {
    /// There is no such pool: what makes it is wrong.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Its metadata is wrong.
    #[error(transparent)]
    Metadata(#[from] blockwork_format::FormatError),
    /// Two volumes do not make one.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A device without content could not be had.
    #[error(transparent)]
    Device(#[from] blockwork_leaf::LeafError),
    /// There is no io_uring for a worker.
    #[error(transparent)]
    Uring(#[from] blockwork_uring::UringError),
    /// A read failed, on a device that has no faults: the engine is wrong.
    #[error("random reads of {stack}: {errno}, on a device without faults")]
    Io {
        /// Of what.
        stack: &'static str,
        /// How it failed.
        errno: Errno,
    },
}

/// What is run.
#[derive(Clone, Debug)]
pub struct ThinPlan {
    /// Of the simulator.
    pub seed: u64,
    /// Reads of each run.
    pub reads: u64,
}

impl Default for ThinPlan {
    /// A third of a second of the report's device.
    fn default() -> ThinPlan {
        ThinPlan { seed: 1, reads: 200_000 }
    }
}

/// fio's `randread` of single pages, by jobs on cores of their own.
///
/// All jobs together are one list of reads under way. What a read costs a core lies between two that are asked for: a job's share
/// of that is as long as there are jobs at work at once.
struct RandomReads {
    random: Random,
    pages: u64,
    left: u64,
    total: u64,
    jobs: u64,
    /// The core's work for the read that was asked for last is still to be done.
    owes: bool,
}

impl RandomReads {
    fn new(seed: u64, volume: Sectors, reads: u64, jobs: u64) -> RandomReads {
        let pages = volume.0 / PAGE.0;
        RandomReads { random: Random::part(seed, 0), pages, left: reads, total: reads, jobs, owes: false }
    }
}

impl Workload for RandomReads {
    fn total(&self) -> Sectors {
        Sectors(self.total * PAGE.0)
    }

    fn next(&mut self, under_way: usize) -> Next {
        if std::mem::take(&mut self.owes) {
            return Next::Busy(Nanos(CORE.0 / self.jobs));
        }
        if under_way as u64 >= self.jobs * DEPTH || self.left == 0 {
            return Next::Wait;
        }
        (self.left, self.owes) = (self.left - 1, true);
        let start = Sector(self.random.below(self.pages) * PAGE.0);
        Next::Ask(Ask { op: Op::Read, start, nr: PAGE })
    }

    fn done(&mut self, _: Ask) {}
}

/// One stack, with one behaviour.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    stack: Stack,
    behaviour: Behaviour,
    reported: Option<f64>,
    is_calibration: bool,
}

fn runs() -> Vec<Run> {
    let run = |stack, behaviour, reported, is_calibration| Run { stack, behaviour, reported, is_calibration };
    vec![
        run(Stack::Thick, Behaviour::New, Some(560_000.0), true),
        run(Stack::Mapped, Behaviour::Old, Some(200_000.0), true),
        run(Stack::TwoPools, Behaviour::Old, None, false),
        run(Stack::Unmapped, Behaviour::Old, Some(29_417.0), true),
        run(Stack::Mapped, Behaviour::New, None, false),
        run(Stack::TwoPools, Behaviour::New, None, false),
        run(Stack::Unmapped, Behaviour::New, None, false),
    ]
}

impl Run {
    fn jobs(self) -> u64 {
        if self.stack == Stack::TwoPools { 2 * JOBS } else { JOBS }
    }

    fn outcome(self, plan: &ThinPlan, progress: Progress) -> Result<Outcome, ThinError> {
        let lab = Lab::of(plan.seed, vec![device(), DeviceModel::null(stack::METADATA)]);
        let (devices, node) = lab.layers();
        let root = self.stack.build(&devices, node, self.behaviour, Turn::Calibrated)?;
        let size = if self.stack == Stack::TwoPools { Sectors(2 * VOLUME.0) } else { VOLUME };
        let workload = RandomReads::new(plan.seed, size, plan.reads, self.jobs());
        let outcome = lab.run_workload(root, NODES, Box::new(workload), progress);
        outcome.map_err(|errno| self.io_error(errno))
    }

    fn io_error(self, errno: Errno) -> ThinError {
        ThinError::Io { stack: self.stack.name(), errno }
    }

    fn client(self) -> String {
        format!("random reads of 4 KiB, {} jobs x {DEPTH}", self.jobs())
    }

    fn rate(self, plan: &ThinPlan, outcome: &Outcome) -> ReadRate {
        ReadRate {
            client: self.client(),
            stack: self.stack.name().into(),
            behaviour: self.behaviour,
            report_iops: self.reported,
            iops: plan.reads as f64 / outcome.seconds(),
            is_calibration: self.is_calibration,
            device: Requests::from(&outcome.devices[0]),
        }
    }
}

/// Runs the report, on all processors; `progress` hears how much of it is done, from 0 to 1.
///
/// # Errors
///
/// What is wrong with us.
pub fn reproduce(plan: &ThinPlan, progress: &mut dyn FnMut(f64)) -> Result<Reproduction, ThinError> {
    let runs = runs();
    let outcomes = run_all(&runs, |run, progress| run.outcome(plan, progress), progress)?;
    Ok(Reproduction {
        assumptions: assumptions(),
        calibration: Some(calibration()),
        reads: runs.iter().zip(&outcomes).map(|(run, outcome)| run.rate(plan, outcome)).collect(),
        notes: notes(),
        ..blank()
    })
}

/// What is the same of the report, wherever it is run again.
fn blank() -> Reproduction {
    Reproduction {
        name: "thin",
        title: "Poor thin performance, relative to thick",
        source: "dm-devel mailing list",
        assumptions: Vec::new(),
        calibration: None,
        rows: Vec::new(),
        rates: Vec::new(),
        rings: Vec::new(),
        reads: Vec::new(),
        linearize: Vec::new(),
        traces: Vec::new(),
        notes: Vec::new(),
    }
}

fn calibration() -> String {
    "The device does 560,000 reads a second, what the report's thick volume did. A look-up of Linux holds the pool's locks for 5 us: \
     200,000 a second, what its thin volume did. The pool's worker takes 29 us for a read of what was never written, beside the \
     look-up: 29,417 a second, what the attached run did."
        .into()
}

fn assumptions() -> Vec<String> {
    [
        "The device: the simulator's model nvme (80 us a read, 64 at once), with the report's 560,000 reads a second in place of \
         490,000.",
        "The client: fio's job in the report, random reads of 4 KiB, 16 jobs with 32 reads each, direct; two pools are read by two of \
         them at once. Each job has a core of its own, which is busy for 4 us with each read, in fio and above us: 4 million reads a \
         second on 16 cores at most.",
        "thick: a linear volume of 8 GiB. thin: one of the same size in a pool with blocks of 64 KiB, all of them mapped, or none. The \
         pool's map is in memory before the first read.",
        "old: each look-up takes its turn at the lock of its pool. A read that finds nothing then takes its turn at the pool's \
         worker, which looks it up again, begins to provision the block, sees that nothing is to be written, and answers with zeros.",
        "new: our thin volume. A look-up takes no lock, and what is not mapped is answered at once.",
    ]
    .map(String::from)
    .into()
}

fn notes() -> Vec<String> {
    [
        "Two pools with the old behaviour are a prediction: the report says that they gave nearly twice what one did, which is what \
         showed that the lock was the limit.",
        "What a look-up costs a processor takes no virtual time here: `cargo bench -p blockwork-layer` measures that.",
        "The attached runs of the report were made on another machine than its other figures: 225,758 reads a second thick, 29,417 \
         thin and never written.",
        "new, never written: the cores of the client are the limit, no request reaches the device.",
    ]
    .map(String::from)
    .into()
}

#[cfg(test)]
mod tests;
