//! Where workers and subscribers meet.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use blockwork_engine::{Event, EventSink, Layer, NodeId, NodeInfo, Tracer};

use blockwork_format::blktrace::record::HEADER_BYTES;

use super::encode::{Lane, Names};
use super::queue::{Batch, Queue};

/// What a subscriber that does not read may make us keep, bytes.
pub const QUEUE_BYTES_MAX: usize = 16 << 20;

/// A batch ends after the event that makes it this long, bytes, so that what is dropped at once is bounded too.
const BATCH_BYTES: usize = 64 << 10;

/// Some nodes of all stacks: what a subscriber wants to hear of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet(Vec<bool>);

impl NodeSet {
    /// The layer `root` and all that lie below it, down to the leaves: a volume's stack.
    pub fn under(root: &dyn Layer) -> NodeSet {
        let mut set = NodeSet::default();
        set.add_under(root);
        set
    }

    /// Adds a node.
    pub fn add(&mut self, node: NodeId) {
        let index = usize::from(node.0);
        if self.0.len() <= index {
            self.0.resize(index + 1, false);
        }
        self.0[index] = true;
    }

    fn remove(&mut self, node: NodeId) {
        self.0.get_mut(usize::from(node.0)).into_iter().for_each(|has| *has = false);
    }

    /// Whether a node is in it.
    pub fn has(&self, node: NodeId) -> bool {
        self.0.get(usize::from(node.0)).copied().unwrap_or(false)
    }

    fn add_under(&mut self, layer: &dyn Layer) {
        // Several ways may lead to a layer; the first one has seen what is below.
        if !self.has(layer.node()) {
            self.add(layer.node());
            layer.below().iter().for_each(|below| self.add_under(&**below));
        }
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> NodeSet {
        let mut set = NodeSet::default();
        nodes.into_iter().for_each(|node| set.add(node));
        set
    }
}

/// Shared by all workers of a server and by those who trace.
pub struct TraceHub {
    names: Names,
    wanted: Arc<AtomicBool>,
    subscribers: Mutex<Subscribers>,
    /// Counts changes of `subscribers`, and of what they want, so that a sink takes the lock only when there is news.
    changes: AtomicU64,
}

#[derive(Default)]
struct Subscribers {
    all: Vec<Arc<Subscriber>>,
    closed: bool,
}

struct Subscriber {
    /// None: everything.
    nodes: Option<Mutex<NodeSet>>,
    queue: Queue,
}

impl Subscriber {
    fn forget(&self, node: NodeId) {
        self.nodes.iter().for_each(|nodes| nodes.lock().unwrap_or_else(PoisonError::into_inner).remove(node));
    }

    fn wanted(&self) -> Option<Arc<NodeSet>> {
        self.nodes.as_ref().map(|nodes| nodes.lock().unwrap_or_else(PoisonError::into_inner).clone().into())
    }
}

impl TraceHub {
    /// A hub for a server with these nodes: a [`NodeId`] is an index into them.
    pub fn new(nodes: &[NodeInfo]) -> Arc<TraceHub> {
        Arc::new(TraceHub {
            names: Names::new(nodes),
            wanted: Arc::default(),
            subscribers: Mutex::default(),
            changes: AtomicU64::new(0),
        })
    }

    /// One more node, as [`Stats::add`](blockwork_engine::Stats::add) has numbered it, or one that has become another one
    /// ([`Stats::renew`](blockwork_engine::Stats::renew)), of which those who listen to the old one hear nothing. Told before anything
    /// happens to it.
    pub fn name(&self, node: NodeId, info: &NodeInfo) {
        self.change(|subscribers| {
            subscribers.all.iter().for_each(|subscriber| subscriber.forget(node));
        });
        self.names.name(node, info);
    }

    /// A node goes by another name: who listens to it goes on to.
    pub fn rename(&self, node: NodeId, info: &NodeInfo) {
        self.names.name(node, info);
    }

    /// Set while somebody listens.
    pub fn wanted(&self) -> Arc<AtomicBool> {
        self.wanted.clone()
    }

    /// Where a worker's events go.
    pub fn sink(self: &Arc<Self>, worker: u16) -> Box<dyn EventSink> {
        Box::new(Sink { hub: self.clone(), worker, seen: 0, listeners: Vec::new() })
    }

    /// A worker's tracer: [`TraceHub::wanted`] and [`TraceHub::sink`].
    pub fn tracer(self: &Arc<Self>, worker: u16) -> Tracer {
        Tracer::new(self.wanted(), self.sink(worker))
    }

    /// Listens to `nodes`, or to everything, from now on until the subscription is dropped.
    pub fn subscribe(self: &Arc<Self>, nodes: Option<NodeSet>) -> Subscription {
        let subscriber = Arc::new(Subscriber { nodes: nodes.map(Mutex::new), queue: Queue::default() });
        self.change(|subscribers| {
            if subscribers.closed {
                subscriber.queue.close();
            } else {
                subscribers.all.push(subscriber.clone());
            }
        });
        Subscription { hub: self.clone(), subscriber }
    }

    /// Ends all subscriptions, and those to come: the server stops. What is queued can still be taken.
    pub fn close(&self) {
        self.change(|subscribers| {
            subscribers.closed = true;
            subscribers.all.drain(..).for_each(|subscriber| subscriber.queue.close());
        });
    }

    fn unsubscribe(&self, subscriber: &Arc<Subscriber>) {
        subscriber.queue.close();
        self.change(|subscribers| subscribers.all.retain(|other| !Arc::ptr_eq(other, subscriber)));
    }

    fn change(&self, act: impl FnOnce(&mut Subscribers)) {
        // Whoever panicked with the lock held left a list that is still one.
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut subscribers);
        self.wanted.store(!subscribers.all.is_empty(), Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Release); // pairs with the Acquire in `Sink::look`
    }
}

impl fmt::Debug for TraceHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceHub").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

/// What [`Subscription::receive`] came back with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// All that was queued, in the order of arrival; at least one batch.
    Batches(Vec<Batch>),
    /// Nothing yet.
    Nothing,
    /// The server stops: nothing will come any more.
    Closed,
}

/// Receives what a hub's workers tell. Ends when it is dropped.
pub struct Subscription {
    hub: Arc<TraceHub>,
    subscriber: Arc<Subscriber>,
}

impl Subscription {
    /// Waits at most `timeout` for something to come.
    pub fn receive(&self, timeout: Duration) -> Received {
        let queue = &self.subscriber.queue;
        let deadline = Instant::now().checked_add(timeout);
        let mut state = queue.lock();
        loop {
            if state.has_news() {
                return Received::Batches(queue.take(&mut state));
            }
            if state.closed {
                return Received::Closed;
            }
            let left = deadline.map_or(timeout, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Received::Nothing;
            }
            (state, _) = queue.filled().wait_timeout(state, left).expect("no holder of this lock panics");
        }
    }

    /// As `receive`, for asynchronous code: ready with `None` when nothing will come any more.
    pub fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Option<Vec<Batch>>> {
        let queue = &self.subscriber.queue;
        let mut state = queue.lock();
        if state.has_news() {
            return Poll::Ready(Some(queue.take(&mut state)));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Events that were dropped so far because nobody received in time.
    pub fn dropped(&self) -> u64 {
        self.subscriber.queue.dropped()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.unsubscribe(&self.subscriber);
    }
}

/// One worker's end.
struct Sink {
    hub: Arc<TraceHub>,
    worker: u16,
    seen: u64,
    listeners: Vec<Listener>,
}

/// One subscriber, as one worker sees it.
struct Listener {
    subscriber: Arc<Subscriber>,
    /// What it wants; none: everything.
    wanted: Option<Arc<NodeSet>>,
    lane: Lane,
}

impl Sink {
    /// Looks whether subscribers came or went, or want something else.
    fn look(&mut self) {
        let changes = self.hub.changes.load(Ordering::Acquire); // pairs with the Release in `TraceHub::change`
        if changes == self.seen {
            return;
        }
        self.seen = changes;
        let subscribers = self.hub.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        self.listeners.retain(|listener| {
            subscribers.all.iter().any(|subscriber| Arc::ptr_eq(subscriber, &listener.subscriber))
        });
        self.listeners.iter_mut().for_each(|listener| listener.wanted = listener.subscriber.wanted());
        for subscriber in &subscribers.all {
            if !self.listeners.iter().any(|listener| Arc::ptr_eq(subscriber, &listener.subscriber)) {
                let lane = Lane::new(self.worker);
                let wanted = subscriber.wanted();
                self.listeners.push(Listener { subscriber: subscriber.clone(), wanted, lane });
            }
        }
    }
}

impl EventSink for Sink {
    fn take(&mut self, _worker: u16, events: &mut Vec<Event>) {
        self.look();
        for listener in &mut self.listeners {
            listener.tell(&self.hub.names, events);
        }
        events.clear();
    }
}

impl Listener {
    /// Encodes and queues those of `events` that the subscriber wants to hear of.
    fn tell(&mut self, names: &Names, events: &[Event]) {
        let (subscriber, nodes) = (self.subscriber.clone(), self.wanted.clone());
        let wanted = |event: &&Event| nodes.as_ref().is_none_or(|nodes| nodes.has(event.node));
        let mut left = events.len();
        let mut events = events.iter().filter(wanted).peekable();
        while let Some(&first) = events.peek() {
            if subscriber.queue.is_full(BATCH_BYTES) {
                // Not worth encoding.
                self.lose(names, first, events.count() as u64);
                return;
            }
            let mut lane = self.lane.clone();
            // Most records are a header alone, and some of what is left may not be wanted: a guess.
            let mut bytes = Vec::with_capacity(BATCH_BYTES.min((left + 4) * HEADER_BYTES));
            lane.begin(names, first, &mut bytes);
            let mut count = 0;
            while bytes.len() < BATCH_BYTES
                && let Some(event) = events.next()
            {
                lane.event(names, event, &mut bytes);
                count += 1;
            }
            left = left.saturating_sub(usize::try_from(count).unwrap_or(left));
            if subscriber.queue.push(Batch { cpu: lane.cpu(), bytes }) {
                self.lane = lane;
            } else {
                self.lose(names, first, count);
            }
        }
    }

    /// Counts `events`, of which `first` is the first, as dropped.
    fn lose(&self, names: &Names, first: &Event, events: u64) {
        let mut lane = self.lane.clone();
        self.subscriber.queue.lose(lane.cpu(), events, |all| {
            let mut note = Vec::new();
            lane.begin(names, first, &mut note);
            lane.dropped(names, first, all, &mut note);
            note
        });
    }
}
