//! A layer of a stack, and how a bio is resolved through it.
//!
//! Layers do not pass requests to each other. [`Layer::resolve`] maps a [`Span`] to what lies below and hands each piece
//! on through the [`Resolver`], synchronously, down to [`Extent`]s of leaves. It takes no lock, does no I/O and allocates
//! nothing. A layer that must do work first (provision, copy, set a bit) returns a [`Defer`]; the engine then runs its
//! [`Layer::prepare`] as an async task, and resolves the whole bio again. Nothing of a bio is submitted before all of
//! it is resolved.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use crate::bio::{Errno, Flags, Op};
use crate::core::{End, Step, Trail};
use crate::counters::{Counter, CounterTable};
use crate::event::{Action, Event, Payload, Reason, Tracer};
use crate::leaf::LeafId;
use crate::limits::Limits;
use crate::lock::LockSnapshot;
use crate::notes::{Notes, Watch};
use crate::sum::Term;
use crate::task::{Deferred, TaskContext};
use crate::units::{Nanos, Sector, Sectors};

/// A node of a stack (a layer, a leaf) in counters and traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

/// A range of a layer that (a piece of) a bio covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What the bio does.
    pub op: Op,
    /// Its flags.
    pub flags: Flags,
    /// Where, on this layer.
    pub sector: Sector,
    /// How much; zero for a flush.
    pub nr: Sectors,
    /// Where this piece begins within the bio: which part of its data it is.
    pub at: Sectors,
}

impl Span {
    /// The same piece of the bio at another place.
    #[inline]
    pub fn moved_to(self, sector: Sector) -> Span {
        Span { sector, ..self }
    }
    /// The piece of `nr` sectors that starts `skip` sectors into this one.
    #[inline]
    pub fn piece(self, skip: Sectors, nr: Sectors) -> Span {
        debug_assert!(skip.0 + nr.0 <= self.nr.0);
        Span { sector: self.sector + skip, nr, at: self.at + skip, ..self }
    }
    /// One past its last sector.
    #[inline]
    pub fn end(self) -> Sector {
        self.sector + self.nr
    }
}

/// Where a piece of a bio ends up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// On a leaf.
    Leaf(LeafId),
    /// Nowhere: reads give zeros, everything else vanishes.
    Zero,
    /// Of a read: what that layer computes, whose sectors are those of the span ([`Layer::terms`]).
    Sum(NodeId),
    /// Of a write or write-zeroes: what that layer does by itself, whose sectors are those of the span ([`Layer::carry_out`]).
    Task(NodeId),
    /// It fails.
    Error(Errno),
}

/// A piece of a bio, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it goes.
    pub target: Target,
    /// What, there.
    pub span: Span,
}

/// A layer's word that it has work to do before it can map a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defer {
    /// The layer.
    pub node: NodeId,
    /// The span, on that layer.
    pub span: Span,
    /// Why, for counters and traces.
    pub reason: Reason,
}

/// A piece of a bio that went wrong somewhere below a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What failed: the bio's operation, or the flush behind its FUA.
    pub op: Op,
    /// The layer directly below that it went through.
    pub below: NodeId,
    /// The piece that failed, on that layer; of operations without data, all that was handed to it.
    pub span: Span,
    /// How it failed.
    pub errno: Errno,
}

/// What a layer can do about a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cure {
    /// Nothing: the next layer above is asked, and at last the client hears of it.
    None,
    /// It resolves otherwise from now on: run the bio again.
    Again,
    /// Likewise, once [`Layer::prepare`] has done this.
    Defer(Defer),
}

/// The future of a layer's slow path.
pub type Preparation = Pin<Box<dyn Future<Output = Result<(), Errno>>>>;

/// The future of a slow path that many bios share.
pub type Preparations = Pin<Box<dyn Future<Output = ()>>>;

/// Waits for what [`Layer::hold_terms`] holds.
pub type Holding = Pin<Box<dyn Future<Output = Box<dyn std::any::Any>>>>;

/// Where a layer's blocks are not those of what lies below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misaligned {
    /// It begins in the middle of a block of the layer below.
    Start {
        /// The layer below.
        below: NodeId,
        /// Where it begins there.
        at: Sector,
    },
    /// What lies before this sector of the layer itself and what lies behind it are in different places, and it is in the middle of a block.
    Boundary {
        /// The sector.
        at: Sector,
    },
}

/// One layer of a stack. Shared by all workers.
pub trait Layer: Send + Sync + Debug {
    /// What all layers have.
    fn shape(&self) -> &Shape;
    /// Maps `span`, which lies within the layer, and hands the pieces on: [`Resolver::pass`] to a layer below, or
    /// [`Resolver::zero`], [`Resolver::error`]. A flush goes to everything below, once.
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer>;
    /// Brings near to the processor what [`Layer::resolve`] will look at soon for that span, without waiting for it. Called for many bios,
    /// then resolve for each: of a large table the entries come at once instead of one after the other.
    fn approach(&self, span: &Span) {
        let _ = span;
    }
    /// How long the bio is to wait, if that is all that `defer` asks for: then [`Layer::prepare`] is not called.
    fn pause(&self, defer: &Defer) -> Option<Nanos> {
        let _ = defer;
        None
    }
    /// Does what `defer` asked for; afterwards the bio is resolved again.
    fn prepare(&self, defer: Defer, cx: TaskContext) -> Preparation {
        let _ = (defer, cx);
        unreachable!("a layer that never defers is never asked to prepare")
    }
    /// As [`Layer::prepare`], while there is no worker yet: what a layer below holds is read by `read`. None: that takes a worker.
    fn prepare_now(&self, defer: &Defer, read: &ReadNow<'_>) -> Option<io::Result<()>> {
        let _ = (defer, read);
        None
    }
    /// Whether all bios that it defers for this reason in one turn of a worker are prepared for together: then [`Layer::prepare_all`] is
    /// called once for them, and not [`Layer::prepare`] for each. A task for each costs more than many slow paths do.
    fn prepares_together(&self, defer: &Defer) -> bool {
        let _ = defer;
        false
    }
    /// Does what these asked for, and lets each go on as soon as its own part is done. It is not noted for what was prepared
    /// ([`Resolver::was_prepared`]); that there was nothing to do is counted ([`Deferred::go_on_idle`]).
    fn prepare_all(&self, deferred: Vec<Deferred>, cx: TaskContext) -> Preparations {
        let _ = (deferred, cx);
        unreachable!("a layer that prepares for each bio by itself is never asked to prepare for many")
    }
    /// What a part of a read is the sum of, which it has handed to [`Resolver::sum`]: ranges of the layers directly below, each as long as
    /// `span`. Those in `without` have just refused some of it. It does no I/O, as [`Layer::resolve`].
    ///
    /// # Errors
    /// Too much is missing: with what the read fails.
    fn terms(&self, span: Span, without: &[NodeId]) -> Result<Vec<Term>, Errno> {
        let _ = (span, without);
        unreachable!("a layer that computes nothing is never asked what of")
    }
    /// Waits until nothing changes what a part of a read is the sum of, and holds that off until what it gives is dropped; none: that is
    /// never in the way.
    fn hold_terms(&self, span: Span) -> Option<Holding> {
        let _ = span;
        None
    }
    /// Does a part of a write or write-zeroes, which it has handed to [`Resolver::task`]: the data are [`TaskContext::written`]. The bio counts as
    /// resolved meanwhile, and is under way for [`TaskContext::quiesce`] and for claims of others. What it meets below it deals with itself.
    fn carry_out(&self, span: Span, cx: TaskContext) -> Preparation {
        let _ = (span, cx);
        unreachable!("a layer that maps all writes carries none out")
    }
    /// Whether it can do without a part of what lies below, so that [`Layer::cure`] is worth asking.
    fn is_redundant(&self) -> bool {
        false
    }
    /// What it does about a failure below; called when all parts of a bio are done and one has failed. It does no I/O, as
    /// [`Layer::resolve`]. EIO of a flush means that the leaf takes no write any more (the crate's invariant 5).
    fn cure(&self, failure: &Failure) -> Cure {
        let _ = failure;
        Cure::None
    }
    /// A flush of a leaf has failed, through whomever, and what was written there since the last one may be lost: told at once, and once by
    /// each worker, before what was on its way to that leaf comes to its end there. `below` is the layer right below this one over which the leaf
    /// is reached. Told also where a layer in between is redundant: it may have to do without another part already, which shows only when the
    /// flush comes to its end. Reads that were resolved before are resolved again. It does no I/O.
    fn suspects(&self, below: NodeId) {
        let _ = below;
    }
    /// What it does once, when its volumes begin to be served: an array takes up a resync or recovery that is due. Run by
    /// [`Worker::open`](crate::Worker::open), the lowest layer first. What lasts goes on in a task of its own.
    fn open(&self, cx: TaskContext) -> Option<Preparation> {
        let _ = cx;
        None
    }
    /// What it does when all clients are gone and all workers have ended, for instance to record that all is well. Run by
    /// [`Worker::close`](crate::Worker::close), the topmost layer first.
    fn close(&self, cx: TaskContext) -> Option<Preparation> {
        let _ = cx;
        None
    }
    /// Nobody uses it any more, and where it lies, something else may be from then on: it ends what it does by itself, and writes nothing
    /// afterwards.
    fn retire(&self, cx: TaskContext) -> Option<Preparation> {
        let _ = cx;
        None
    }
    /// Where whole blocks of it are none of a device, if so: then it is not to be read and written.
    fn misaligned(&self) -> Option<Misaligned> {
        None
    }
    /// How it is now, in the words of `dmsetup status`, where its target has any.
    fn status(&self) -> Option<String> {
        None
    }
    /// What is known of the locks that it has; those of layers below they tell themselves. Two that tell of one lock call it the same.
    fn locks(&self) -> Vec<LockSnapshot> {
        Vec::new()
    }
    /// The layers directly below; none for what ends a stack.
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        Vec::new()
    }
    /// Its number in counters and traces.
    #[inline]
    fn node(&self) -> NodeId {
        self.shape().node
    }
    /// Size.
    #[inline]
    fn sectors(&self) -> Sectors {
        self.shape().sectors
    }
    /// Its limits, stacked over those below.
    #[inline]
    fn limits(&self) -> &Limits {
        &self.shape().limits
    }
}

/// What all layers have: a number, a size, limits.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its number in counters and traces.
    pub node: NodeId,
    /// Size.
    pub sectors: Sectors,
    /// Its limits, stacked over those below.
    pub limits: Limits,
}

/// The layer of `node` in the stack under `root`, or `root` itself.
pub(crate) fn layer_under(root: &Arc<dyn Layer>, node: NodeId) -> Option<Arc<dyn Layer>> {
    if root.node() == node { Some(root.clone()) } else { layer_below(&**root, node) }
}

/// Reads a layer at once: which one, from which byte on, into what.
pub type ReadNow<'a> = dyn Fn(&dyn Layer, u64, &mut [u8]) -> io::Result<()> + 'a;

/// The layer of `node` in the stack under `root`.
pub fn layer_below(root: &dyn Layer, node: NodeId) -> Option<Arc<dyn Layer>> {
    find_where(root, &mut Seen::new(), &|layer| layer.node() == node)
}

/// Whether `root`, or a layer under it, other than that of `but`, can do without a part of what lies below it.
pub(crate) fn any_redundant(root: &dyn Layer, but: Option<NodeId>) -> bool {
    let is_one = |layer: &dyn Layer| layer.is_redundant() && Some(layer.node()) != but;
    is_one(root) || find_where(root, &mut Seen::new(), &is_one).is_some()
}

/// Layers that were looked at, by address: where many ways lead to a layer, there may be more of them than anybody can go.
type Seen = BTreeSet<*const ()>;

fn is_new(layer: &Arc<dyn Layer>, seen: &mut Seen) -> bool {
    seen.insert(Arc::as_ptr(layer).cast::<()>())
}

fn find_where(
    root: &dyn Layer,
    seen: &mut Seen,
    is_it: &dyn Fn(&dyn Layer) -> bool,
) -> Option<Arc<dyn Layer>> {
    let mut new =
        root.below().into_iter().filter(|layer| is_new(layer, seen)).collect::<Vec<_>>().into_iter();
    new.find_map(|layer| if is_it(&*layer) { Some(layer) } else { find_where(&*layer, seen, is_it) })
}

/// All layers of some stacks, each once: the topmost first, and none before one that lies on it. Of layers with one number,
/// such as a device and what sets a limit of it, that is the lowest.
pub fn topmost_first(roots: impl IntoIterator<Item = Arc<dyn Layer>>) -> Vec<Arc<dyn Layer>> {
    fn visit(layer: Arc<dyn Layer>, seen: &mut Seen, order: &mut Vec<Arc<dyn Layer>>) {
        if is_new(&layer, seen) {
            layer.below().into_iter().for_each(|below| visit(below, seen, order));
            order.push(layer);
        }
    }
    let (mut seen, mut order) = (Seen::new(), Vec::new());
    roots.into_iter().for_each(|root| visit(root, &mut seen, &mut order));
    let mut known = BTreeSet::new();
    order.retain(|layer| known.insert(layer.node()));
    order.reverse();
    order
}

/// Collects a bio's extents while it is resolved, counts, and traces.
pub struct Resolver<'a> {
    pub(crate) out: &'a mut Vec<Extent>,
    pub(crate) counters: &'a CounterTable,
    pub(crate) tracer: &'a mut Tracer,
    now: Nanos,
    /// Where the way to each leaf is noted, if somebody asks for it.
    trail: Option<&'a mut Trail>,
    /// There is a trail, or tracing is on: one branch for both.
    watched: bool,
    pub(crate) notes: Notes,
}

impl<'a> Resolver<'a> {
    /// A resolver on its own, for tests and for questions about a mapping.
    #[inline]
    pub fn new(out: &'a mut Vec<Extent>, counters: &'a CounterTable, tracer: &'a mut Tracer) -> Resolver<'a> {
        let watched = tracer.on();
        Resolver { out, counters, tracer, now: Nanos(0), trail: None, watched, notes: Notes::default() }
    }

    /// Events get this time.
    #[inline]
    pub(crate) fn at(self, now: Nanos) -> Resolver<'a> {
        Resolver { now, ..self }
    }

    /// What the bio carries with it.
    #[inline]
    pub(crate) fn with_notes(self, notes: Notes) -> Resolver<'a> {
        Resolver { notes, ..self }
    }

    /// Notes the ways to leaves on `trail`.
    pub(crate) fn on_trail(self, trail: &'a mut Trail) -> Resolver<'a> {
        Resolver { trail: Some(trail), watched: true, ..self }
    }

    /// Whether the [`Layer::prepare`] of `node` has succeeded for just this piece of the bio since it was submitted. What a layer
    /// only has to do once for a bio, such as to make durable what was written before a flush, it so need not do again.
    pub fn was_prepared(&self, node: NodeId, span: Span) -> bool {
        self.notes.was_prepared(node, span)
    }

    /// Whether the [`Layer::prepare`] of `node` has succeeded for any piece of the bio since it was submitted.
    pub fn has_prepared(&self, node: NodeId) -> bool {
        self.notes.has_prepared(node)
    }

    /// `watch` hears when the bio has come to its end, if all of it is resolved now.
    pub fn watch(&mut self, watch: Arc<dyn Watch>) {
        self.notes.watch(watch);
    }

    /// A flush of the whole stack is to follow when the bio has succeeded, before whoever submitted it hears of that: for FUA,
    /// where the layers below are not all that has to be durable. For [`Flags::OUTLIVES`] alone it has that flag.
    pub fn flush_after(&mut self) {
        self.notes.flush_after();
    }

    /// Hands `span` (in the sectors of `below`) on from the layer `node`, where it was at `from`.
    #[inline]
    pub fn pass(&mut self, node: NodeId, from: Sector, below: &dyn Layer, span: Span) -> Result<(), Defer> {
        self.counters.add(node, Counter::Out, 1);
        self.counters.add(below.node(), Counter::In, 1);
        if self.watched {
            return self.pass_watched(node, from, below, span);
        }
        below.resolve(span, self)
    }

    #[cold]
    fn pass_watched(
        &mut self,
        node: NodeId,
        from: Sector,
        below: &dyn Layer,
        span: Span,
    ) -> Result<(), Defer> {
        if self.tracer.on() {
            let payload = Payload::Remap { from: node, sector: from };
            self.trace(below.node(), Action::Remap, span, payload, Reason::None);
        }
        if let Some(trail) = &mut self.trail {
            trail.steps.push(Step { above: node, below: below.node(), span });
        }
        let result = below.resolve(span, self);
        if let Some(trail) = &mut self.trail {
            if let Err(defer) = &result
                && defer.node == below.node()
            {
                trail.reached(End::Layer(defer.node), defer.span);
            }
            trail.steps.pop();
        }
        result
    }

    /// Says that the layer `node` cuts `span` into `pieces`, and why.
    #[inline]
    pub fn split(&mut self, node: NodeId, span: Span, pieces: u64, reason: Reason) {
        if pieces < 2 {
            return;
        }
        let counter = if reason == Reason::TargetEnd { Counter::SplitTarget } else { Counter::SplitChunk };
        self.counters.add(node, counter, pieces - 1);
        if self.tracer.on() {
            self.trace(node, Action::Split, span, Payload::Split { new_sector: span.end() }, reason);
        }
    }

    /// Ends `span` in zeros: reads give them, everything else is dropped.
    #[inline]
    pub fn zero(&mut self, span: Span) {
        self.out.push(Extent { target: Target::Zero, span });
    }

    /// Ends `span`, a part of a read of the layer `node`, in what that computes of [`Layer::terms`].
    #[inline]
    pub fn sum(&mut self, node: NodeId, span: Span) {
        debug_assert_eq!(span.op, Op::Read);
        self.counters.add(node, Counter::Computed, 1);
        self.end_in_layer(node, span, Target::Sum(node));
    }

    /// Ends `span`, a part of a write or write-zeroes of the layer `node`, in what that does itself ([`Layer::carry_out`]).
    #[inline]
    pub fn task(&mut self, node: NodeId, span: Span) {
        debug_assert!(matches!(span.op, Op::Write | Op::WriteZeroes));
        self.end_in_layer(node, span, Target::Task(node));
    }

    fn end_in_layer(&mut self, node: NodeId, span: Span, target: Target) {
        if self.tracer.on() {
            self.trace(node, Action::Bounce, span, Payload::None, Reason::Parity);
        }
        self.ends(End::Layer(node), span);
        self.out.push(Extent { target, span });
    }

    /// A way ends here.
    #[inline]
    fn ends(&mut self, end: End, span: Span) {
        if self.watched
            && let Some(trail) = &mut self.trail
        {
            trail.reached(end, span);
        }
    }

    /// Ends `span` in an error.
    #[inline]
    pub fn error(&mut self, span: Span, errno: Errno) {
        self.ends(End::Error, span);
        self.out.push(Extent { target: Target::Error(errno), span });
    }

    /// Ends `span` on a leaf. A flush reaches each leaf once, however many ways lead there; one by which data only is to outlive this
    /// process reaches none, as that is so of what a leaf has taken.
    #[inline]
    pub fn leaf(&mut self, leaf: LeafId, span: Span) {
        if span.op == Op::Flush && span.flags.has(Flags::OUTLIVES) {
            return;
        }
        self.ends(End::Leaf(leaf), span);
        let target = Target::Leaf(leaf);
        if span.op == Op::Flush && self.out.iter().any(|extent| extent.target == target) {
            return;
        }
        self.out.push(Extent { target, span });
    }

    #[cold]
    fn trace(&mut self, node: NodeId, action: Action, span: Span, payload: Payload, reason: Reason) {
        self.tracer.push(Event { payload, reason, ..Event::on(self.now, node, action, span) });
    }
}

/// The bottom of every stack: a leaf device as a layer.
#[derive(Debug)]
pub struct LeafLayer {
    leaf: LeafId,
    shape: Shape,
}

impl LeafLayer {
    /// A leaf of that size and with those limits.
    pub fn new(leaf: LeafId, node: NodeId, sectors: Sectors, limits: Limits) -> LeafLayer {
        LeafLayer { leaf, shape: Shape { node, sectors, limits } }
    }
    /// Which leaf.
    pub fn leaf(&self) -> LeafId {
        self.leaf
    }
}

impl Layer for LeafLayer {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let size = self.shape.sectors;
        assert!(span.end().0 <= size.0, "{span:?} lies beyond leaf {:?} of {size} sectors", self.leaf);
        cx.leaf(self.leaf, span);
        Ok(())
    }
}
