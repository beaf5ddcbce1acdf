//! The worker: one thread's loop over its environment, its ports and its core.
//!
//! One turn: wait for completions; hand them to queues and ports; then, until nothing new comes of it, run slow-path
//! tasks, unplug the queues, and give finished bios to their ports; last, let every port that was touched send what it
//! has gathered. So one wake-up takes many requests, submits them together and answers them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blockwork_memory::{Pool, Segments};

use crate::bio::Errno;
use crate::core::{Core, CoreParts};
use crate::counters::CounterTable;
use crate::env::{Completion, Env, Notify, Owner, Wait};
use crate::event::Tracer;
use crate::gather::{Gatherer, Waiting};
use crate::layer::{Layer, NodeId, topmost_first};
use crate::leaf::{LeafId, LeafSource, WriteTap};
use crate::lock::{Lock, LockSnapshot};
use crate::port::{Context, Port, PortId, PortState};
use crate::ports::Ports;
use crate::quiesce::Quiescence;
use crate::task::{Ready, Reply, TaskContext};
use crate::units::Nanos;
use crate::volume::{Volume, VolumeId};

/// What a worker is made of, besides its environment.
pub struct WorkerConfig {
    /// Which worker this is; for traces.
    pub index: u16,
    /// The volumes that ports may use, by [`VolumeId`](crate::VolumeId).
    pub volumes: Arc<[Volume]>,
    /// The leaves, by [`LeafId`](crate::LeafId), each with its node in counters and traces.
    pub leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]>,
    /// Where this worker counts.
    pub counters: Arc<CounterTable>,
    /// Where its events go.
    pub tracer: Tracer,
    /// Who hears of everything that is written.
    pub tap: Option<Arc<dyn WriteTap>>,
    /// Unused memory that is kept for the next request, bytes.
    pub pool_bytes: usize,
    /// How it waits for what comes next.
    pub waiting: Waiting,
    /// The same for all workers that serve the same volumes: [`TaskContext::quiesce`](crate::TaskContext::quiesce) waits
    /// for all of them.
    pub quiescence: Quiescence,
}

impl WorkerConfig {
    /// A configuration with defaults: no tracing, no tap.
    pub fn new(
        volumes: Arc<[Volume]>,
        leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]>,
        counters: Arc<CounterTable>,
    ) -> WorkerConfig {
        WorkerConfig {
            index: 0,
            volumes,
            leaves,
            counters,
            tracer: Tracer::default(),
            tap: None,
            pool_bytes: 64 << 20,
            waiting: Waiting::default(),
            quiescence: Quiescence::default(),
        }
    }
}

/// Rounds of port turns within one turn of the worker. A client's batch needs one, and one more if its turn submits.
const ROUNDS: usize = 4;

type Message<E> = Box<dyn FnOnce(&mut Worker<E>) + Send>;

struct Inbox<E: Env> {
    /// None: the worker has ended.
    messages: Lock<Option<Vec<Message<E>>>>,
    /// Tasks that others may wake.
    tasks: Arc<Ready>,
    any: AtomicBool,
    stop: AtomicBool,
    notify: Arc<dyn Notify>,
}

/// Speaks to a worker from any thread.
pub struct WorkerHandle<E: Env> {
    inbox: Arc<Inbox<E>>,
}

impl<E: Env> Clone for WorkerHandle<E> {
    fn clone(&self) -> Self {
        WorkerHandle { inbox: self.inbox.clone() }
    }
}

impl<E: Env> WorkerHandle<E> {
    /// Runs `act` on the worker, soon. Dropped unrun if the worker has ended.
    pub fn run(&self, act: impl FnOnce(&mut Worker<E>) + Send + 'static) {
        match &mut *self.inbox.messages.lock() {
            Some(messages) => messages.push(Box::new(act)),
            None => return,
        }
        self.inbox.any.store(true, Ordering::Release); // pairs with the swap in `take_messages`
        self.inbox.notify.notify();
    }

    /// What is known of the locks under which others leave it something; `worker` is what it is called there.
    pub fn locks(&self, worker: &str) -> [LockSnapshot; 2] {
        let (messages, tasks) = (format!("{worker}: messages"), format!("{worker}: tasks"));
        [self.inbox.messages.snapshot(messages), self.inbox.tasks.snapshot(tasks)]
    }

    /// Asks the worker to end: its ports are drained, its leaves flushed, then [`Worker::run`] returns.
    pub fn stop(&self) {
        self.inbox.stop.store(true, Ordering::Release);
        self.inbox.notify.notify();
    }
}

struct PortSlot<E: Env> {
    port: Box<dyn Port<E>>,
    /// Whether it is in the list of those that get a turn.
    touched: bool,
}

/// One thread's worth of the engine.
pub struct Worker<E: Env> {
    /// The environment.
    pub env: E,
    core: Core,
    index: u16,
    ports: Ports<PortSlot<E>>,
    touched: Vec<PortId>,
    completions: Vec<Completion>,
    inbox: Arc<Inbox<E>>,
    gatherer: Gatherer,
    draining: bool,
    final_flush: Option<Vec<Reply>>,
}

impl<E: Env> Drop for Worker<E> {
    /// Who waits for what a message carries with it hears that it does not come: it is dropped.
    fn drop(&mut self) {
        let unread = self.inbox.messages.lock().take();
        drop(unread);
    }
}

impl<E: Env> Worker<E> {
    /// A worker over `env`.
    pub fn new(env: E, config: WorkerConfig) -> Worker<E> {
        let notify = env.notifier();
        let parts = CoreParts {
            pool: Pool::with_slabs(config.pool_bytes),
            volumes: config.volumes,
            leaves: config.leaves,
            counters: config.counters,
            tracer: config.tracer,
            tap: config.tap,
            quiescence: config.quiescence,
        };
        let core = Core::new(parts, notify.clone());
        let inbox = Inbox {
            messages: Lock::new(Some(Vec::new())),
            tasks: core.executor.ready().clone(),
            any: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            notify,
        };
        Worker {
            env,
            core,
            index: config.index,
            ports: Ports::new(),
            touched: Vec::new(),
            completions: Vec::new(),
            inbox: Arc::new(inbox),
            gatherer: Gatherer::new(config.waiting),
            draining: false,
            final_flush: None,
        }
    }

    /// A handle on this worker.
    pub fn handle(&self) -> WorkerHandle<E> {
        WorkerHandle { inbox: self.inbox.clone() }
    }

    /// The volumes it serves.
    pub fn volumes(&self) -> &[Volume] {
        &self.core.volumes
    }

    /// Gives a port a turn, as if something had happened to it.
    pub fn poke(&mut self, id: PortId) {
        self.core.mark_dirty(id);
    }

    /// Which worker this is.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// Adds a client. Where the worker is being stopped, it is drained at once.
    pub fn add_port(&mut self, port: Box<dyn Port<E>>) -> PortId {
        let id = self.ports.add(PortSlot { port, touched: false });
        let draining = self.draining;
        self.with_port(id, |port, cx| {
            port.open(cx);
            if draining {
                port.drain(cx);
            }
        });
        id
    }

    /// Runs until [`WorkerHandle::stop`]: then drains the ports, flushes the leaves that were written to, and returns
    /// the flush's result.
    pub fn run(&mut self) -> Result<(), Errno> {
        loop {
            let wait = self.next_wait();
            self.turn(wait);
            if let Some(result) = self.ended() {
                return result;
            }
        }
    }

    /// The worker is to end soon, and serves its clients until then: whatever pauses ends ([`TaskContext::pause`](crate::TaskContext::pause)), so
    /// that no client waits any more for what may never come.
    pub fn end_pauses(&mut self) {
        self.core.executor.stop();
    }

    /// Whether nothing is under way: no bio, no task, no request.
    pub fn is_idle(&self) -> bool {
        self.core.busy() == 0 && self.core.queues_idle() && !self.core.executor.is_ready()
    }

    /// Whether it has nothing to do before something happens outside. For who has it turn; otherwise [`Worker::run`] asks.
    pub fn is_settled(&self) -> bool {
        // Ports that were added since the last turn were touched; and `settle` may have stopped before its end.
        self.touched.is_empty() && self.core.is_settled() && !self.inbox.any.load(Ordering::Acquire)
    }

    /// When the first of its tasks that sleep wants to wake. For who turns several workers on one thread.
    pub fn next_timer(&self) -> Option<Nanos> {
        self.core.next_timer()
    }

    /// One turn of the loop, waiting first as told.
    pub fn turn(&mut self, wait: Wait) {
        let mut completions = std::mem::take(&mut self.completions);
        self.env.wait(wait, &mut completions);
        self.core.now = self.env.now();
        self.core.tracer.look();
        self.core.look();
        self.core.executor.set_time(self.core.now);
        for completion in completions.drain(..) {
            match completion.token.owner() {
                Owner::Request { leaf, request } => {
                    self.core.request_completed(&mut self.env, leaf, request, completion.result);
                }
                Owner::Leaf { leaf, local } => {
                    self.core.leaf_event(&mut self.env, leaf, local, completion);
                }
                Owner::Port { port, local } => {
                    self.with_port(PortId(port), |port, cx| port.event(cx, local, completion));
                }
            }
        }
        self.completions = completions;
        // Before a message may change what they are resolved by.
        self.core.resolve_fresh();
        self.take_messages();
        self.settle();
        self.core.tracer.hand_over(self.index);
    }

    /// Until everything that can happen now has happened, or some port keeps finding more to do: then the world
    /// outside is looked at before it goes on, so that a client on an instant device starves nobody.
    fn settle(&mut self) {
        for _ in 0..ROUNDS {
            self.core.end_pauses();
            while self.core.advance(&mut self.env) | self.deliver() {}
            let mut touched = std::mem::take(&mut self.touched);
            for port in self.core.dirty_ports.drain(..) {
                touch(&mut self.ports, &mut touched, port);
            }
            for &port in &touched {
                self.port_turn(port);
            }
            self.core.resolve_fresh();
            touched.clear();
            touched.append(&mut self.touched);
            self.touched = touched;
            if self.core.is_settled() {
                return;
            }
        }
    }

    /// Gives finished bios to their ports.
    fn deliver(&mut self) -> bool {
        if self.core.finished.is_empty() {
            return false;
        }
        let mut finished = std::mem::take(&mut self.core.finished);
        for (port, done) in finished.drain(..) {
            self.gatherer.finished(port, 1);
            self.with_port(port, |port, cx| port.done(cx, done));
        }
        finished.append(&mut self.core.finished);
        self.core.finished = finished;
        true
    }

    fn port_turn(&mut self, id: PortId) {
        let Some(slot) = self.ports.get(id) else { return };
        slot.touched = false;
        let mut cx = Context { env: &mut self.env, core: &mut self.core, port: id };
        if slot.port.turn(&mut cx) == PortState::Closed {
            self.ports.remove(id);
        }
        match std::mem::take(&mut self.core.ran) {
            0 => {}
            ran => self.gatherer.finished(id, ran),
        }
    }

    /// Calls a port, and notes that it wants a turn. A port that has closed hears nothing more.
    #[inline]
    fn with_port(&mut self, id: PortId, act: impl FnOnce(&mut dyn Port<E>, &mut Context<'_, E>)) {
        let Some(slot) = self.ports.get(id) else { return };
        let mut cx = Context { env: &mut self.env, core: &mut self.core, port: id };
        act(&mut *slot.port, &mut cx);
        touch(&mut self.ports, &mut self.touched, id);
    }

    fn take_messages(&mut self) {
        if self.inbox.any.load(Ordering::Relaxed) && self.inbox.any.swap(false, Ordering::AcqRel) {
            let messages = self.inbox.messages.lock().as_mut().map(std::mem::take);
            for message in messages.into_iter().flatten() {
                message(self);
            }
        }
        if self.inbox.stop.load(Ordering::Acquire) && !self.draining {
            self.draining = true;
            self.end_pauses();
            for id in self.ports.ids() {
                self.with_port(id, |port, cx| port.drain(cx));
            }
        }
    }

    fn next_wait(&mut self) -> Wait {
        if !self.is_settled() {
            return Wait::Poll;
        }
        if self.draining && self.ports.len() == 0 && self.is_idle() {
            return Wait::Poll;
        }
        let timer = self.core.next_timer();
        let env = &self.env;
        self.gatherer.wait_until(self.core.now, self.core.in_flight(), timer, || env.processor_time())
    }

    /// Whether a worker that was asked to stop has done all there was to do, and how its last flush went. For who turns
    /// several workers on one thread; otherwise [`Worker::run`] asks.
    pub fn ended(&mut self) -> Option<Result<(), Errno>> {
        if !self.draining || self.ports.len() > 0 || !self.is_idle() {
            return None;
        }
        if let Some(replies) = &self.final_flush {
            return Some(replies.iter().filter_map(Reply::take).fold(Ok(()), Result::and));
        }
        let replies = self.core.flush_dirty_volumes();
        if replies.is_empty() {
            return Some(Ok(()));
        }
        self.final_flush = Some(replies);
        self.settle();
        None
    }

    /// The layers of all volumes, each once, the topmost first.
    fn layers(&self) -> Vec<Arc<dyn Layer>> {
        topmost_first(self.core.volumes.iter().map(|volume| volume.root.clone()))
    }

    /// Runs a task on this worker, which does not end before it does: one that lasts goes by [`TaskContext::pause`].
    pub fn spawn<T: Future<Output = ()> + 'static>(&mut self, task: impl FnOnce(TaskContext) -> T) {
        let task = task(self.core.executor.context().clone());
        self.core.executor.spawn(task);
    }

    /// One more leaf, which no volume reaches yet; or another source for one that none reaches any more: then it is not before all that is
    /// under way there has ended, such as reading ahead, and false says that this has not happened yet. All workers of a server get
    /// the same leaves in the same order, before anything resolves to them; so does the worker that closes the layers at the end, in its
    /// configuration. The counters must have room for its node: [`Stats::add`](crate::Stats::add).
    ///
    /// # Panics
    ///
    /// `leaf` is neither a leaf's number nor the one that comes next.
    pub fn set_leaf(&mut self, leaf: LeafId, node: NodeId, source: Arc<dyn LeafSource>) -> bool {
        self.core.set_leaf(leaf, node, source)
    }

    /// One more volume, or another one in the place of one: what is resolved from now on goes by that. Bios that were resolved before go
    /// where they were sent to; [`TaskContext::quiesce`](crate::TaskContext::quiesce) waits for them. All workers of a server get
    /// the same volumes; each serves by its own list, so that this costs a bio nothing.
    ///
    /// # Panics
    ///
    /// `id` is neither that of a volume nor the number that comes next.
    pub fn set_volume(&mut self, id: VolumeId, volume: Volume) {
        self.core.set_volume(id, volume);
    }

    /// What was counted of these nodes, by this worker, is forgotten: they are other layers' from now on.
    pub fn clear_counters(&mut self, nodes: &[NodeId]) {
        self.core.clear_counters(nodes);
    }

    /// Opens the layers of all volumes, the lowest first: see [`Layer::open`](crate::Layer::open). For one worker of a
    /// server, once clients may come. Returns at once; what fails is told in the log, and is no reason not to serve.
    pub fn open(&mut self) {
        let layers = self.layers();
        self.spawn(|cx| async move {
            for layer in layers.into_iter().rev() {
                if let Some(opening) = layer.open(cx.clone())
                    && let Err(errno) = opening.await
                {
                    log::error!("the layer of node {} cannot be opened: {errno}", layer.node().0);
                }
            }
        });
    }

    /// Closes the layers of all volumes, the topmost first: see [`Layer::close`](crate::Layer::close). For a worker
    /// without ports, when all others have ended. All are closed, even where one fails; the result is the first failure.
    pub fn close(&mut self) -> Result<(), Errno> {
        let layers = self.layers();
        let reply = Reply::default();
        let (cx, told) = (self.core.executor.context().clone(), reply.clone());
        self.core.executor.spawn(async move {
            let mut result = Ok(());
            for layer in layers {
                if let Some(closing) = layer.close(cx.clone()) {
                    result = result.and(closing.await);
                }
            }
            told.answer(result, Segments::new());
        });
        loop {
            let wait = self.next_wait();
            self.turn(wait);
            if let Some(result) = reply.take() {
                return result;
            }
        }
    }

    /// Time, as of the current turn.
    pub fn now(&self) -> Nanos {
        self.core.now
    }
}

fn touch<E: Env>(ports: &mut Ports<PortSlot<E>>, touched: &mut Vec<PortId>, id: PortId) {
    if let Some(slot) = ports.get(id)
        && !slot.touched
    {
        slot.touched = true;
        touched.push(id);
    }
}
