//! Runs a client over a stack in the simulator: what the reports have in common.
//!
//! A client is a list of [`Step`]s, one after the other. A step cuts a range into bios, has some of them under way, and ends
//! when all have come back.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    Bio, Completion, Context, CounterTable, Done, Errno, FileId, Flags, Layer, LeafId, LeafLayer, LeafSource,
    Nanos, NodeId, Op, Port, PortState, Sector, Sectors, Volume, VolumeId, Worker, WorkerConfig,
    WorkerHandle,
};
use blockwork_memory::{Segment, Segments};
use blockwork_sim::{DeviceCounters, DeviceModel, SimEnv, World};

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

/// What came of it.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// From the first bio to the last answer.
    pub(super) time: Nanos,
    pub(super) devices: Vec<DeviceCounters>,
}

/// Devices of one model, each a leaf under the numbers 0, 1 ...
pub(super) struct Lab {
    world: World,
    leaves: Vec<(NodeId, Arc<dyn LeafSource>)>,
}

impl Lab {
    pub(super) fn new(seed: u64, model: &DeviceModel, devices: u16) -> Lab {
        let world = World::new(seed);
        let leaves = (0..devices).map(|number| {
            let device = world.add_device(DeviceModel { keeps_content: false, ..model.clone() });
            (NodeId(number), world.source(device))
        });
        Lab { leaves: leaves.collect(), world }
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
        let Lab { world, leaves } = self;
        let volumes: Arc<[Volume]> = Arc::new([Volume::new("reproduced", root, false)]);
        let counters = Arc::new(CounterTable::new(nodes.into()));
        let mut worker = Worker::new(world.env(), WorkerConfig::new(volumes, leaves.into(), counters));
        let told = Rc::new(Told::default());
        let client = Client::new(steps, worker.handle(), told.clone(), progress);
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
    steps: std::vec::IntoIter<Step>,
    /// What is left of the step, and how many of its bios are under way.
    left: Option<Step>,
    under_way: u32,
    worker: WorkerHandle<SimEnv>,
    told: Rc<Told>,
    /// Sectors that are done, and all there are.
    done: u64,
    total: u64,
    progress: Progress,
}

impl Client {
    fn new(steps: Vec<Step>, worker: WorkerHandle<SimEnv>, told: Rc<Told>, progress: Progress) -> Client {
        let total = steps.iter().map(|step| step.nr.0).sum::<u64>().max(1);
        Client { steps: steps.into_iter(), left: None, under_way: 0, worker, told, done: 0, total, progress }
    }

    fn submit(&mut self, cx: &mut Context<'_, SimEnv>, step: &mut Step) {
        let nr = step.nr.min(step.bio);
        let bio = if step.op.has_data() {
            let memory = Segment::new(cx.pool().get(nr.byte_len()), 0, nr.byte_len());
            Bio::with_data(step.op, Flags::NONE, step.start, Segments::from_iter([memory]))
        } else {
            Bio::without_data(step.op, Flags::NONE, step.start, nr)
        };
        cx.submit(VolumeId(0), nr.0, bio);
        self.under_way += 1;
        step.start = step.start + nr;
        step.nr = step.nr - nr;
    }
}

impl Port<SimEnv> for Client {
    fn open(&mut self, _: &mut Context<'_, SimEnv>) {}

    fn event(&mut self, _: &mut Context<'_, SimEnv>, _: u32, _: Completion) {}

    fn done(&mut self, _: &mut Context<'_, SimEnv>, done: Done) {
        self.under_way -= 1;
        self.done += done.cookie;
        (self.progress)(self.done as f64 / self.total as f64);
        if let Err(errno) = done.result {
            self.told.failed.set(Some(self.told.failed.get().unwrap_or(errno)));
        }
    }

    fn turn(&mut self, cx: &mut Context<'_, SimEnv>) -> PortState {
        loop {
            let Some(mut step) = self.left.take() else {
                match self.steps.next() {
                    Some(next) if self.told.failed.get().is_none() => self.left = Some(next),
                    _ => {
                        self.told.ended.set(cx.now());
                        self.worker.stop();
                        return PortState::Closed;
                    }
                }
                continue;
            };
            while step.nr > Sectors::ZERO && self.under_way < step.depth {
                self.submit(cx, &mut step);
            }
            let is_over = step.nr == Sectors::ZERO && self.under_way == 0;
            if !is_over {
                self.left = Some(step);
                return PortState::Open;
            }
        }
    }

    fn drain(&mut self, _: &mut Context<'_, SimEnv>) {}
}
