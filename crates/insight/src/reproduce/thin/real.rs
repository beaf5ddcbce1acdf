//! The same client and the same stacks on this machine: real workers, a thread and a ring each, over devices that hold nothing.
//!
//! What is left is what the stack costs its processors. There is no device to wait for, so that what limits a rate are look-ups and locks.

use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use blockwork_engine::{
    Bio, Completion, Context, Counter, Done, Flags, Layer, LeafId, LeafLayer, LeafSource, NodeId, NodeInfo,
    NodeKind, Port, PortState, Quiescence, Sector, Stats, Volume, VolumeId, Worker, WorkerConfig,
    WorkerHandle,
};
use blockwork_leaf::NullSource;
use blockwork_memory::{Segment, Segments};
use blockwork_sim::Random;
use blockwork_uring::{Uring, UringConfig};

use super::stack::{METADATA, NODES, Stack, VOLUME};
use super::*;

/// Rounds, of which the medians are shown. In each, all stacks are read by turns.
const ROUNDS: usize = 5;

/// A worker's share of the jobs.
struct Reader {
    random: Random,
    pages: u64,
    depth: u64,
    left: u64,
    memory: Vec<Segments>,
    handle: WorkerHandle<Uring>,
    failed: Arc<Mutex<Option<Errno>>>,
}

impl Port<Uring> for Reader {
    fn open(&mut self, cx: &mut Context<'_, Uring>) {
        let bytes = PAGE.bytes() as usize;
        let page = |_| Segments::from_iter([Segment::new(cx.pool().get(bytes), 0, bytes)]);
        self.memory = (0..self.depth).map(page).collect();
    }

    fn event(&mut self, _: &mut Context<'_, Uring>, _: u32, _: Completion) {}

    fn done(&mut self, _: &mut Context<'_, Uring>, done: Done) {
        if let Err(errno) = done.result {
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(errno);
        }
        self.memory.push(done.data);
    }

    fn turn(&mut self, cx: &mut Context<'_, Uring>) -> PortState {
        while self.left > 0
            && let Some(data) = self.memory.pop()
        {
            self.left -= 1;
            let start = Sector(self.random.below(self.pages) * PAGE.0);
            cx.submit(VolumeId(0), 0, Bio::with_data(Op::Read, Flags::NONE, start, data));
        }
        if self.left > 0 || (self.memory.len() as u64) < self.depth {
            return PortState::Open;
        }
        self.handle.stop();
        PortState::Closed
    }

    fn drain(&mut self, _: &mut Context<'_, Uring>) {}
}

/// A volume with its leaves, for any number of workers.
struct Machine {
    volumes: Arc<[Volume]>,
    leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]>,
    stats: Stats,
    quiescence: Quiescence,
}

impl Machine {
    fn new(stack: Stack, behaviour: Behaviour) -> Result<Machine, ThinError> {
        let mut leaves: Vec<(NodeId, Arc<dyn LeafSource>)> = Vec::new();
        let mut devices: Vec<Arc<dyn Layer>> = Vec::new();
        for (number, size) in [(0, Sectors(2 * VOLUME.0)), (1, METADATA)] {
            let source = NullSource::new(size.bytes(), "null")?;
            let (node, limits) = (NodeId(number), source.limits().clone());
            devices.push(Arc::new(LeafLayer::new(LeafId(number), node, size, limits)));
            leaves.push((node, Arc::new(source)));
        }
        let root = stack.build(&devices, NodeId(2), behaviour, Turn::AsItIs)?;
        let name = |node: u32| format!("node{node}");
        let node = |n| NodeInfo { name: name(n), kind: NodeKind::Other("reproduce"), device: (253, n) };
        Ok(Machine {
            volumes: Arc::new([Volume::new(stack.name(), root, true)]),
            leaves: leaves.into(),
            stats: Stats::new((0..NODES.into()).map(node).collect()),
            quiescence: Quiescence::default(),
        })
    }

    /// Reads, by so many workers at once, `reads` pages each; how long the slowest took, in seconds.
    fn read(&self, run: Run, plan: &ThinPlan, workers: u64, reads: u64) -> Result<f64, ThinError> {
        let (line, failed) = (Barrier::new(workers as usize), Arc::new(Mutex::new(None)));
        let one = |number: u64| -> Result<f64, ThinError> {
            let env = Uring::new(&UringConfig::default());
            let mut config =
                WorkerConfig::new(self.volumes.clone(), self.leaves.clone(), self.stats.worker());
            config.quiescence = self.quiescence.clone();
            let worker = env.map(|env| Worker::new(env, config));
            // All come to the line, those too that have failed.
            line.wait();
            let mut worker = worker?;
            let begun = Instant::now();
            let port = worker.add_port(Box::new(Reader {
                random: Random::part(plan.seed, number),
                pages: self.volumes[0].sectors().0 / PAGE.0,
                depth: (run.jobs() * DEPTH).div_ceil(workers),
                left: reads,
                memory: Vec::new(),
                handle: worker.handle(),
                failed: failed.clone(),
            }));
            worker.poke(port);
            worker.run().map_err(|errno| run.io_error(errno))?;
            Ok(begun.elapsed().as_secs_f64())
        };
        let times = thread::scope(|scope| {
            let one = &one;
            let threads: Vec<_> = (0..workers).map(|number| scope.spawn(move || one(number))).collect();
            let times = threads.into_iter().map(|thread| match thread.join() {
                Ok(time) => time,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            times.collect::<Result<Vec<f64>, ThinError>>()
        })?;
        match *failed.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(errno) => Err(run.io_error(errno)),
            None => Ok(times.into_iter().fold(0.0, f64::max)),
        }
    }

    fn device(&self) -> Requests {
        let counted = |counter| self.stats.get(NodeId(0), counter);
        Requests {
            reads: counted(Counter::Reads),
            discards: counted(Counter::Discards),
            writes: counted(Counter::Writes),
        }
    }
}

/// Runs the report's client on this machine; `progress` hears how much of it is done, from 0 to 1.
///
/// # Errors
///
/// io_uring is forbidden here; or what is wrong with us.
pub fn reproduce_for_real(plan: &ThinPlan, progress: &mut dyn FnMut(f64)) -> Result<Reproduction, ThinError> {
    let workers = thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let each = plan.reads.div_ceil(workers);
    let runs = runs();
    let machines: Vec<Machine> =
        runs.iter().map(|run| Machine::new(run.stack, run.behaviour)).collect::<Result<_, _>>()?;
    let mut rates = vec![Vec::new(); runs.len()];
    for round in 0..ROUNDS {
        for (nth, (run, machine)) in runs.iter().zip(&machines).enumerate() {
            rates[nth].push((each * workers) as f64 / machine.read(*run, plan, workers, each)?);
            progress((round * runs.len() + nth + 1) as f64 / (ROUNDS * runs.len()) as f64);
        }
    }
    let reads = runs.iter().zip(machines).zip(rates).map(|((run, machine), mut rates)| {
        rates.sort_by(f64::total_cmp);
        ReadRate {
            client: run.client(),
            stack: run.stack.name().into(),
            behaviour: run.behaviour,
            report_iops: None,
            iops: rates[ROUNDS / 2],
            is_calibration: false,
            device: machine.device(),
        }
    });
    Ok(Reproduction { reads: reads.collect(), notes: notes(workers), ..blank() })
}

fn notes(workers: u64) -> Vec<String> {
    [
        format!(
            "This machine, now: {workers} workers, a thread and a ring each, over null devices, which answer at once. The jobs are \
             dealt out to the workers. Medians of {ROUNDS} rounds, in each of which all stacks are read by turns; requests are of all \
             rounds."
        ),
        "thick: a linear volume of 8 GiB. thin: one of the same size in a pool with blocks of 64 KiB, all of them mapped, to places in no \
         order, or none. The pool's map is in memory before the first read. Two pools are one volume to the client, who has twice as \
         many jobs."
            .into(),
        "old: each look-up takes its turn at the lock of its pool, and what is not mapped another one at the pool's worker, as without \
         --real. Nothing is done within a turn here but the look-up, so what is seen is what it costs to take turns, not what Linux's \
         look-up costs."
            .into(),
        "Reports of other machines are not to be compared with these figures; what compares is one line with another.".into(),
    ]
    .into()
}
