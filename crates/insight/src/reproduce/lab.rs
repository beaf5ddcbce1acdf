//! Runs a client over a stack in the simulator: what the reports have in common.
//!
//! What a client asks for is a [`Workload`]. The usual one is a list of [`Step`]s, one after the other: a step cuts a range
//! into bios, has some of them under way, and ends when all have come back.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    Bio, Completion, Context, CounterTable, Done, Errno, FileId, Flags, Layer, LeafId, LeafLayer, LeafSource,
    Nanos, NodeId, Op, Port, PortState, Sector, Sectors, Tracer, Volume, VolumeId, Worker, WorkerConfig,
    WorkerHandle,
};
use blockwork_memory::{Pool, Segment, Segments};
use blockwork_sim::{DeviceCounters, DeviceModel, SimEnv, World};

/// A bio that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) op: Op,
    pub(super) start: Sector,
    pub(super) nr: Sectors,
}

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It asks for a bio.
    Ask(Ask),
    /// It is busy with something else for so long, and is then asked again.
    Busy(Nanos),
    /// It waits for one of its bios; where there are none, it has come to its end.
    Wait,
}

/// What a client does.
pub(super) trait Workload {
    /// All that it will ask for, however many bios that is.
    fn total(&self) -> Sectors;
    /// What it does next. Bios that it asks for one after the other are plugged together.
    fn next(&mut self, under_way: usize) -> Next;
    /// A bio has come back.
    fn done(&mut self, ask: Ask);
    /// Memory for a bio that carries data.
    fn memory(&mut self, pool: &Pool, ask: Ask) -> Segments {
        Segments::from_iter([Segment::new(pool.get(ask.nr.byte_len()), 0, ask.nr.byte_len())])
    }
}

/// A part of what a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) start: Sector,
    pub(super) nr: Sectors,
    /// The largest bio.
    pub(super) bio: Sectors,
    /// Bios under way at once.
    pub(super) depth: u32,
}

/// One step after the other.
struct Steps {
    to_come: std::vec::IntoIter<Step>,
    /// What is left of the current one.
    left: Option<Step>,
    total: Sectors,
}

impl Steps {
    fn new(steps: Vec<Step>) -> Steps {
        let total = Sectors(steps.iter().map(|step| step.nr.0).sum());
        Steps { to_come: steps.into_iter(), left: None, total }
    }
}

impl Workload for Steps {
    fn total(&self) -> Sectors {
        self.total
    }

    fn next(&mut self, under_way: usize) -> Next {
        if under_way == 0 && self.left.is_none_or(|step| step.nr == Sectors::ZERO) {
            self.left = self.to_come.find(|step| step.nr > Sectors::ZERO);
        }
        let is_there = |step: &&mut Step| step.nr > Sectors::ZERO && under_way < step.depth as usize;
        let Some(step) = self.left.as_mut().filter(is_there) else { return Next::Wait };
        let ask = Ask { op: step.op, start: step.start, nr: step.nr.min(step.bio) };
        step.start = step.start + ask.nr;
        step.nr = step.nr - ask.nr;
        Next::Ask(ask)
    }

    fn done(&mut self, _: Ask) {}
}

/// What came of it.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// From the first bio to the last answer.
    pub(super) time: Nanos,
    pub(super) devices: Vec<DeviceCounters>,
}

impl Outcome {
    /// [`Outcome::time`].
    pub(super) fn seconds(&self) -> f64 {
        self.time.0 as f64 / 1e9
    }
}

/// Devices, each a leaf under the numbers 0, 1 ...
pub(super) struct Lab {
    world: World,
    leaves: Vec<(NodeId, Arc<dyn LeafSource>)>,
    tracer: Tracer,
}

impl Lab {
    /// Devices of one model.
    pub(super) fn new(seed: u64, model: &DeviceModel, devices: u16) -> Lab {
        Lab::of(seed, vec![model.clone(); devices.into()])
    }

    /// Devices of these models.
    pub(super) fn of(seed: u64, models: Vec<DeviceModel>) -> Lab {
        let world = World::new(seed);
        let leaves = (0..).zip(models).map(|(number, model)| {
            let device = world.add_device(DeviceModel { keeps_content: false, ..model });
            (NodeId(number), world.source(device))
        });
        Lab { leaves: leaves.collect(), world, tracer: Tracer::default() }
    }

    /// Tells this one what happens.
    pub(super) fn traced_by(self, tracer: Tracer) -> Lab {
        Lab { tracer, ..self }
    }

    /// The devices as layers, and the number of the first node that is free.
    pub(super) fn layers(&self) -> (Vec<Arc<dyn Layer>>, NodeId) {
        let layers = self.leaves.iter().map(|(node, source)| {
            let limits = source.limits().clone();
            Arc::new(LeafLayer::new(LeafId(node.0), *node, source.sectors(), limits)) as Arc<dyn Layer>
        });
        let layers: Vec<_> = layers.collect();
        let next = NodeId(u16::try_from(layers.len()).expect("a report has few devices"));
        (layers, next)
    }

    /// Lets a client do `steps` on the stack under `root`, whose nodes are below `nodes`.
    ///
    /// # Errors
    ///
    /// What the first bio that failed said.
    pub(super) fn run(
        self,
        root: Arc<dyn Layer>,
        nodes: u16,
        steps: Vec<Step>,
        progress: Progress,
    ) -> Result<Outcome, Errno> {
        self.run_workload(root, nodes, Box::new(Steps::new(steps)), progress)
    }

    /// As [`Lab::run`], for a client of any kind.
    ///
    /// # Errors
    ///
    /// What the first bio that failed said.
    pub(super) fn run_workload(
        self,
        root: Arc<dyn Layer>,
        nodes: u16,
        workload: Box<dyn Workload>,
        progress: Progress,
    ) -> Result<Outcome, Errno> {
        let Lab { world, leaves, tracer } = self;
        let volumes: Arc<[Volume]> = Arc::new([Volume::new("reproduced", root, false)]);
        let counters = Arc::new(CounterTable::new(nodes.into()));
        let config = WorkerConfig { tracer, ..WorkerConfig::new(volumes, leaves.into(), counters) };
        let mut worker = Worker::new(world.env(), config);
        let told = Rc::new(Told::default());
        let client = Client::new(workload, worker.handle(), told.clone(), progress);
        worker.add_port(Box::new(client));
        worker.run()?;
        if let Some(errno) = told.failed.get() {
            return Err(errno);
        }
        let devices = (0..world.devices()).map(|number| world.counters(FileId(number)));
        Ok(Outcome { time: told.ended.get(), devices: devices.collect() })
    }
}

/// Hears what part of the client's sectors is done, from 0 to 1.
pub(super) type Progress = Box<dyn FnMut(f64)>;

/// What a client tells.
#[derive(Default)]
struct Told {
    ended: Cell<Nanos>,
    failed: Cell<Option<Errno>>,
}

struct Client {
    workload: Box<dyn Workload>,
    /// By number, which counts them all.
    under_way: BTreeMap<u64, Ask>,
    asked: u64,
    is_busy: bool,
    worker: WorkerHandle<SimEnv>,
    told: Rc<Told>,
    /// Sectors that are done, and all there are.
    done: u64,
    total: u64,
    progress: Progress,
}

impl Client {
    fn new(
        workload: Box<dyn Workload>,
        worker: WorkerHandle<SimEnv>,
        told: Rc<Told>,
        progress: Progress,
    ) -> Client {
        let total = workload.total().0.max(1);
        let under_way = BTreeMap::new();
        Client { workload, under_way, asked: 0, is_busy: false, worker, told, done: 0, total, progress }
    }

    fn submit(&mut self, cx: &mut Context<'_, SimEnv>, ask: Ask) {
        let Ask { op, start, nr } = ask;
        let bio = if op.has_data() {
            Bio::with_data(op, Flags::NONE, start, self.workload.memory(cx.pool(), ask))
        } else {
            Bio::without_data(op, Flags::NONE, start, nr)
        };
        self.under_way.insert(self.asked, ask);
        cx.submit(VolumeId(0), self.asked, bio);
        self.asked += 1;
    }
}

impl Port<SimEnv> for Client {
    fn open(&mut self, _: &mut Context<'_, SimEnv>) {}

    fn event(&mut self, _: &mut Context<'_, SimEnv>, _: u32, _: Completion) {
        self.is_busy = false;
    }

    fn done(&mut self, _: &mut Context<'_, SimEnv>, done: Done) {
        let ask = self.under_way.remove(&done.cookie).expect("a bio comes back once");
        self.workload.done(ask);
        self.done += ask.nr.0;
        (self.progress)(self.done as f64 / self.total as f64);
        if let Err(errno) = done.result {
            self.told.failed.set(Some(self.told.failed.get().unwrap_or(errno)));
        }
    }

    fn turn(&mut self, cx: &mut Context<'_, SimEnv>) -> PortState {
        while !self.is_busy && self.told.failed.get().is_none() {
            match self.workload.next(self.under_way.len()) {
                Next::Ask(ask) => self.submit(cx, ask),
                Next::Busy(time) => {
                    self.is_busy = true;
                    let token = cx.token(0);
                    cx.env.timeout(token, time);
                }
                Next::Wait => break,
            }
        }
        if self.is_busy || !self.under_way.is_empty() {
            return PortState::Open;
        }
        self.told.ended.set(cx.now());
        self.worker.stop();
        PortState::Closed
    }

    fn drain(&mut self, _: &mut Context<'_, SimEnv>) {}
}
