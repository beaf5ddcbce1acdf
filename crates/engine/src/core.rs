//! The middle of a worker: takes bios, resolves them, gives the extents to the leaves' queues, and collects what is done.
//!
//! A bio's life:
//!
//! ```text
//!   submit ─▶ Resolving ──────────────▶ Queued ─▶ (FUA of a discard or write-zeroes: flush) ─▶ finished ─▶ its owner
//!               │   ▲
//!             Defer └── resumed by its task
//! ```
//!
//! One that can be done while it is submitted has no such life: see `at_once`.

mod ahead;
mod allocation;
mod at_once;
mod bios;
mod changes;
mod cure;
mod fresh;
mod joint;
mod modify;
mod pauses;

use std::sync::Arc;

use blockwork_memory::{Pool, Segments, bytes_in};

use crate::bio::{Bio, Done, Errno, Flags, Op};
use crate::counters::{Counter, CounterTable};
use crate::env::{Completion, Env, Notify};
use crate::event::{Action, Event, Reason, Tracer};
use crate::layer::{Defer, Extent, Layer, NodeId, Resolver, Shape, Span, Target, any_redundant, layer_under};
use crate::leaf::{Allocation, LeafId, LeafSource, WriteTap};
use crate::limits::Limits;
use crate::notes::Prepared;
use crate::port::PortId;
use crate::queue::{LeafQueue, Plugged, QueueContext, Wish};
use crate::quiesce::{Attendance, Quiescence};
use crate::sum;
use crate::task::{Command, Executor, Reply, TaskContext};
use crate::unaligned::Ragged;
use crate::units::{Nanos, SECTOR, Sector, Sectors};
use crate::volume::{Volume, VolumeId};

use bios::{BioState, Root};
pub(crate) use bios::{Bios, Owner};
pub(crate) use cure::{End, PartFailure, Step, Trail};
use joint::Joint;
use pauses::{Pause, Pauses};

/// A client's flags, with what a volume of those limits demands besides.
#[inline]
fn asked_for(limits: &Limits, op: Op, flags: Flags) -> Flags {
    if op.is_write() && limits.sync { flags.with(Flags::FUA) } else { flags }
}

/// Why a volume will not do that, if so: it is read-only, or the range ends (at `end`, in the unit of `size`; `None` if that
/// overflows) beyond it.
#[inline]
fn refusal(read_only: bool, op: Op, end: Option<u64>, size: u64) -> Option<Errno> {
    if op.is_write() && read_only {
        return Some(Errno::EROFS);
    }
    if end.is_some_and(|end| end <= size) || op == Op::Flush {
        return None;
    }
    Some(if op.is_write() { Errno::ENOSPC } else { Errno::EINVAL })
}

/// How far it is read and written: the ragged end of an uneven layer by a whole block.
fn whole_blocks(layer: &dyn Layer) -> Sectors {
    let block = u64::from(layer.limits().logical_block_size) / SECTOR;
    Sectors(layer.sectors().0.next_multiple_of(block))
}

/// A worker's state, without its environment and ports.
pub(crate) struct Core {
    pub(crate) pool: Pool,
    pub(crate) volumes: Vec<Volume>,
    queues: Vec<LeafQueue>,
    bios: Bios,
    pub(crate) executor: Executor,
    pauses: Pauses,
    joint: Vec<Joint>,
    commands: Vec<Command>,
    counters: Arc<CounterTable>,
    /// By node: which leaf it is. What a leaf does is counted and traced by its queue, also where it is a volume by itself: counted as bios
    /// too, a disk would seem to read everything twice, and merging would not show.
    leaf_of: Box<[Option<LeafId>]>,
    /// Where resolving for the sake of a question is counted.
    questions: Option<CounterTable>,
    pub(crate) tracer: Tracer,
    tap: Option<Arc<dyn WriteTap>>,
    extents: Vec<Extent>,
    completed: Vec<(u32, Result<(), Errno>)>,
    /// What leaves and layers refused, of bios that are not finished.
    failures: Vec<PartFailure>,
    pub(crate) attendance: Attendance,
    /// Ragged writes may have claimed something: bios are to look.
    heeds_claims: bool,
    /// Leaves whose queues wait for their turn to flush.
    flush_turns: Vec<LeafId>,
    /// Leaves of which a flush has failed, and the layers above have not heard.
    lost: Vec<LeafId>,
    /// Readers that have come to what was read ahead for them.
    wishes: Vec<Wish>,
    /// Bios on their way to their ports.
    pub(crate) finished: Vec<(PortId, Done)>,
    /// What ports have submitted and nobody has resolved.
    fresh: Vec<u32>,
    /// By volume: whether its next bio may well be done while it is submitted.
    at_once: Vec<bool>,
    /// Bios that were, since this was set to zero.
    pub(crate) ran: u64,
    pub(crate) dirty_ports: Vec<PortId>,
    pub(crate) now: Nanos,
}

/// What a core is made of.
pub(crate) struct CoreParts {
    pub(crate) pool: Pool,
    pub(crate) volumes: Arc<[Volume]>,
    pub(crate) leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]>,
    pub(crate) counters: Arc<CounterTable>,
    pub(crate) tracer: Tracer,
    pub(crate) tap: Option<Arc<dyn WriteTap>>,
    pub(crate) quiescence: Quiescence,
}

impl Core {
    pub(crate) fn new(parts: CoreParts, notify: Arc<dyn Notify>) -> Core {
        let queue = |(i, (node, source)): (usize, &(NodeId, Arc<dyn LeafSource>))| {
            let id = LeafId(u16::try_from(i).expect("there are fewer than 65536 leaves"));
            LeafQueue::new(id, *node, source.clone())
        };
        let queues: Vec<LeafQueue> = parts.leaves.iter().enumerate().map(queue).collect();
        let mut leaf_of = vec![None; usize::from(parts.counters.len())];
        for ((node, _), id) in parts.leaves.iter().zip(0..) {
            leaf_of[usize::from(node.0)] = Some(LeafId(id));
        }
        Core {
            leaf_of: leaf_of.into(),
            queues,
            attendance: parts.quiescence.join(notify.clone()),
            heeds_claims: true,
            executor: Executor::new(notify, parts.pool.clone(), parts.quiescence),
            pool: parts.pool,
            at_once: vec![false; parts.volumes.len()],
            ran: 0,
            volumes: parts.volumes.to_vec(),
            bios: Bios::default(),
            pauses: Pauses::default(),
            joint: Vec::new(),
            commands: Vec::new(),
            counters: parts.counters,
            questions: None,
            tracer: parts.tracer,
            tap: parts.tap,
            extents: Vec::new(),
            completed: Vec::new(),
            failures: Vec::new(),
            flush_turns: Vec::new(),
            lost: Vec::new(),
            wishes: Vec::new(),
            finished: Vec::new(),
            fresh: Vec::new(),
            dirty_ports: Vec::new(),
            now: Nanos(0),
        }
    }

    /// One more leaf, or another source for one. See [`Worker::set_leaf`](crate::Worker::set_leaf).
    pub(crate) fn set_leaf(&mut self, leaf: LeafId, node: NodeId, source: Arc<dyn LeafSource>) -> bool {
        let count = self.queues.len();
        match self.queues.get_mut(usize::from(leaf.0)) {
            Some(queue) if queue.is_idle() => *queue = LeafQueue::new(leaf, node, source),
            Some(_) => return false,
            None => {
                assert_eq!(usize::from(leaf.0), count, "leaves are added in the order of their numbers");
                self.leaf_of[usize::from(node.0)] = Some(leaf);
                self.queues.push(LeafQueue::new(leaf, node, source));
            }
        }
        true
    }

    /// One more volume, or another one in the place of one.
    pub(crate) fn set_volume(&mut self, id: VolumeId, volume: Volume) {
        // Something of it may have been claimed before this worker had it.
        self.heeds_claims = true;
        let count = self.volumes.len();
        match self.volumes.get_mut(usize::from(id.0)) {
            Some(slot) => *slot = volume,
            None => {
                assert_eq!(usize::from(id.0), count, "volumes are added in the order of their numbers");
                self.volumes.push(volume);
                self.at_once.push(false);
            }
        }
    }

    /// Bios and tasks under way.
    pub(crate) fn busy(&self) -> usize {
        self.bios.len() + self.executor.len() + self.finished.len()
    }
    /// Requests that devices have, and bios that wait for their time: what comes by itself.
    pub(crate) fn in_flight(&self) -> u32 {
        let paused = u32::try_from(self.pauses.len()).expect("bios in flight are bounded");
        self.queues.iter().map(LeafQueue::in_flight).sum::<u32>() + paused
    }
    /// How far away the farthest device is, of those that have a request and are known.
    pub(crate) fn distance(&self) -> Option<Nanos> {
        let busy = self.queues.iter().filter(|queue| queue.in_flight() > 0);
        busy.filter_map(LeafQueue::distance).max()
    }
    /// Whether no device has a request.
    pub(crate) fn devices_are_idle(&self) -> bool {
        self.queues.iter().all(|queue| queue.in_flight() == 0)
    }
    /// Whether bios whose time has come are to go on in this turn.
    #[inline]
    pub(crate) fn more_is_due(&self) -> bool {
        self.pauses.next().is_some_and(|at| at <= self.now)
    }
    /// When there is something to do that only time brings.
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        [self.executor.next_timer(), self.pauses.next()].into_iter().flatten().min()
    }
    /// Whether every queue is at rest.
    pub(crate) fn queues_idle(&self) -> bool {
        self.queues.iter().all(LeafQueue::is_idle)
    }

    /// Whether nothing waits to be advanced, delivered or given a turn.
    pub(crate) fn is_settled(&self) -> bool {
        self.finished.is_empty()
            && self.fresh.is_empty()
            && self.completed.is_empty()
            && self.dirty_ports.is_empty()
            && self.flush_turns.is_empty()
            && self.joint.is_empty()
            && !self.executor.is_ready()
            && !self.more_is_due()
            && !self.queues.iter().any(LeafQueue::has_plugged)
    }

    pub(crate) fn mark_dirty(&mut self, port: PortId) {
        self.dirty_ports.push(port);
    }

    /// Takes a bio for a volume. See [`Context::submit`](crate::Context::submit).
    #[inline]
    pub(crate) fn submit(&mut self, volume: VolumeId, owner: Owner, mut bio: Bio) {
        match self.admit(volume, &mut bio) {
            Err(errno) => self.give_back(owner, bio.op, Err(errno), bio.data),
            Ok(_) if self.meets_claim(volume, &bio) => self.wait_for_turn(volume, owner, bio),
            Ok(node) => self.submit_admitted(volume, node, owner, &mut bio),
        }
    }

    /// Takes a bio that its volume lets in. What goes to a leaf by itself is resolved already.
    #[inline]
    fn submit_admitted(&mut self, volume: VolumeId, node: NodeId, owner: Owner, bio: &mut Bio) {
        let span = bio.span();
        let Some(number) = self.begin(Root::Volume(volume), node, owner, bio) else { return };
        match self.leaf_of[usize::from(node.0)] {
            Some(leaf) if span.op.has_data() => {
                self.at_once[usize::from(volume.0)] = self.queues[usize::from(leaf.0)].is_instant();
                let state = &mut self.bios.all[number as usize];
                state.epoch = Some(self.attendance.begin());
                state.parts.set(1);
                self.queues[usize::from(leaf.0)].add(Plugged { bio: number, span });
            }
            _ => self.fresh.push(number),
        }
    }

    /// Completes the flags of a bio for a volume, whose node that is; or why the volume will not do it.
    #[inline]
    fn admit(&self, volume: VolumeId, bio: &mut Bio) -> Result<NodeId, Errno> {
        let top = &self.volumes[usize::from(volume.0)];
        let Shape { node, sectors, limits } = top.root.shape();
        bio.flags = asked_for(limits, bio.op, bio.flags);
        if bio.op.has_data() {
            debug_assert_eq!(bytes_in(&bio.data) as u64, bio.nr.bytes());
        }
        let end = bio.sector.0.checked_add(bio.nr.0);
        if let Some(errno) = refusal(top.read_only, bio.op, end, sectors.0) {
            return Err(errno);
        }
        let block = u64::from(limits.logical_block_size) / SECTOR;
        // What is not whole blocks is for `submit_bytes`.
        if (bio.sector.0 | bio.nr.0) & (block - 1) == 0 { Ok(*node) } else { Err(Errno::EINVAL) }
    }

    /// As `submit`, for bytes.
    pub(crate) fn submit_bytes(
        &mut self,
        volume: VolumeId,
        owner: Owner,
        op: Op,
        flags: Flags,
        offset: u64,
        len: u64,
        data: Segments,
    ) {
        let top = &self.volumes[volume.0 as usize];
        let flags = asked_for(top.limits(), op, flags);
        let block = u64::from(top.limits().logical_block_size);
        if (offset | len) & (block - 1) == 0 {
            let (sector, nr) = (Sector(offset / SECTOR), Sectors(len / SECTOR));
            self.submit(volume, owner, Bio { op, flags, sector, nr, data });
            return;
        }
        let refused = refusal(top.read_only, op, offset.checked_add(len), top.sectors().bytes());
        if let Some(errno) = refused {
            self.give_back(owner, op, Err(errno), data);
            return;
        }
        let (node, modify) = (top.node(), top.modify.clone());
        self.counters.add(node, Counter::Unaligned, 1);
        if self.tracer.on() {
            let span = Span {
                op,
                flags,
                sector: Sector(offset / SECTOR),
                nr: Sectors::from_bytes_ceil(len),
                at: Sectors::ZERO,
            };
            self.trace(node, Action::Defer, span, Reason::Unaligned, 0);
        }
        let cx = self.executor.context().clone();
        let ragged = Ragged { cx: cx.clone(), volume, block, offset, end: offset + len, flags };
        self.executor.spawn(async move {
            let (result, data) = ragged.run(modify, op, data).await;
            cx.command(Command::Finish { owner, op, result, data });
        });
    }

    /// A part of something that was let in a while ago: the volume may have become smaller since.
    fn submit_late(&mut self, volume: VolumeId, owner: Owner, bio: Bio) {
        let top = &self.volumes[usize::from(volume.0)];
        let (node, size) = (top.node(), whole_blocks(&*top.root));
        match refusal(top.read_only, bio.op, bio.sector.0.checked_add(bio.nr.0), size.0) {
            Some(errno) => self.give_back(owner, bio.op, Err(errno), bio.data),
            None => self.start(Root::Volume(volume), node, owner, bio),
        }
    }

    fn start(&mut self, root: Root, node: NodeId, owner: Owner, mut bio: Bio) {
        if let Some(bio) = self.begin(root, node, owner, &mut bio) {
            self.resolve(bio);
        }
    }

    /// Takes a bio, which is to be resolved, and its memory; none: there is nothing to do about it.
    #[inline]
    fn begin(&mut self, root: Root, node: NodeId, owner: Owner, bio: &mut Bio) -> Option<u32> {
        let (span, op, nr) = (bio.span(), bio.op, bio.nr);
        self.counters.add(node, Counter::In, 1);
        if self.leaf_of[node.0 as usize].is_none() {
            self.counters.operation(node, op, nr.bytes());
            if self.tracer.on() {
                self.trace(node, Action::Queue, span, Reason::None, 0);
            }
        }
        if nr == Sectors::ZERO && op != Op::Flush {
            self.give_back(owner, op, Ok(()), std::mem::take(&mut bio.data));
            return None;
        }
        Some(self.bios.add(owner, root, node, span, &mut bio.data, self.now))
    }

    /// Maps a bio to extents, and hands those to the queues.
    #[inline]
    fn resolve(&mut self, bio: u32) {
        let state = &mut self.bios.all[bio as usize];
        let (span, notes) = (state.span, std::mem::take(&mut state.notes));
        let root: &dyn Layer = match &state.root {
            Root::Volume(volume) => &*self.volumes[volume.0 as usize].root,
            Root::Layer(layer) => &**layer,
        };
        let mut extents = std::mem::take(&mut self.extents);
        extents.clear();
        let mut cx =
            Resolver::new(&mut extents, &self.counters, &mut self.tracer).at(self.now).with_notes(notes);
        let resolved = root.resolve(span, &mut cx);
        state.notes = cx.notes;
        match resolved {
            Ok(()) => self.queue(bio, &extents),
            Err(defer) => {
                extents.clear(); // of a part of it
                self.defer(bio, defer);
            }
        }
        self.extents = extents;
    }

    /// Maps a bio once more. Meanwhile its volume may have become smaller, and what was behind its end somebody else's.
    fn resolve_again(&mut self, bio: u32) {
        let BioState { span, op, .. } = self.bios.all[bio as usize];
        if span.end().0 > whole_blocks(&*self.root_of(bio)).0 {
            self.fail(bio, if op.is_write() { Errno::ENOSPC } else { Errno::EINVAL });
        } else {
            self.resolve(bio);
        }
    }

    /// Ends a bio that is not queued.
    fn fail(&mut self, bio: u32, errno: Errno) {
        self.bios.all[bio as usize].parts.set(1);
        self.completed.push((bio, Err(errno)));
    }

    #[inline]
    fn queue(&mut self, bio: u32, extents: &[Extent]) {
        let state = &mut self.bios.all[bio as usize];
        state.epoch = Some(self.attendance.begin());
        let count = u32::try_from(extents.len()).expect("a bio has fewer than 2^32 extents");
        // None of them completes in here: what is plugged goes on when all is, and what is completed is booked then.
        state.parts.set(count.max(1));
        for extent in extents {
            match extent.target {
                Target::Leaf(leaf) => {
                    self.queues[leaf.0 as usize].add(Plugged { bio, span: extent.span });
                }
                Target::Zero => {
                    if extent.span.op == Op::Read {
                        let mut out = Segments::new();
                        self.bios.slice(bio, extent.span.at, extent.span.nr, &mut out);
                        out.iter().for_each(|segment| segment.fill(0));
                    }
                    self.completed.push((bio, Ok(())));
                }
                Target::Sum(node) => self.compute(bio, node, extent.span),
                Target::Task(node) => self.carry_out(bio, node, extent.span),
                Target::Error(errno) => {
                    self.note_failure(bio, End::Error, extent.span, errno);
                    self.completed.push((bio, Err(errno)));
                }
            }
        }
        if count == 0 {
            self.completed.push((bio, Ok(())));
        }
    }

    /// Has a part of a read computed.
    #[cold]
    fn compute(&mut self, bio: u32, node: NodeId, span: Span) {
        let root = self.root_of(bio);
        let layer = layer_under(&root, node).expect("a layer that computes belongs to the stack");
        let mut data = Segments::new();
        self.bios.slice(bio, span.at, span.nr, &mut data);
        let cx = self.executor.context().clone();
        self.executor.spawn(async move {
            let goes_on = || any_redundant(&*root, Some(node));
            let refused = sum::compute_read(&*layer, span, &data, &goes_on, &cx).await;
            cx.command(Command::CarriedOut { bio, node, refused });
        });
    }

    /// Has a layer do a part of a write.
    #[cold]
    fn carry_out(&mut self, bio: u32, node: NodeId, span: Span) {
        let layer = layer_under(&self.root_of(bio), node).expect("a layer with a task belongs to the stack");
        let cx = self.context_for(bio, span);
        self.executor.spawn(async move {
            let result = layer.carry_out(span, cx.clone()).await;
            let refused = result.err().map(|errno| (span, errno)).into_iter().collect();
            cx.command(Command::CarriedOut { bio, node, refused });
        });
    }

    /// For a task that does something for a bio: with what that writes in `span`.
    fn context_for(&self, bio: u32, span: Span) -> TaskContext {
        let cx = self.executor.context().clone();
        if span.op != Op::Write {
            return cx;
        }
        let mut data = Segments::new();
        self.bios.slice(bio, span.at, span.nr, &mut data);
        cx.with_written(data)
    }

    /// Runs the slow path that a layer asked for.
    #[cold]
    fn defer(&mut self, bio: u32, defer: Defer) {
        self.counters.add(defer.node, Counter::Deferred, 1);
        self.bios.all[bio as usize].notes.forget_wishes();
        let root = self.root_of(bio);
        if self.tracer.on() {
            self.trace(defer.node, Action::Defer, defer.span, defer.reason, 0);
        }
        let layer = layer_under(&root, defer.node).expect("a layer that defers belongs to the stack");
        if let Some(time) = layer.pause(&defer) {
            let Defer { node, span, .. } = defer;
            self.pauses.begin(self.now + time, Pause { bio, node, span });
            return;
        }
        if layer.prepares_together(&defer) {
            self.join(layer, bio, defer);
            return;
        }
        let cx = self.context_for(bio, defer.span);
        self.executor.spawn(async move {
            let result = layer.prepare(defer, cx.clone()).await;
            let Defer { node, span, .. } = defer;
            cx.command(match result {
                Ok(()) => Command::Resume { bio, prepared: Prepared::from_buf([(node, span)]) },
                Err(errno) => Command::Unprepared { bio, of: Some((node, span)), errno },
            });
        });
    }

    /// Lets bios go on whose time has come.
    #[inline]
    pub(crate) fn end_pauses(&mut self) {
        for _ in 0..pauses::AT_ONCE {
            let Some(Pause { bio, node, span }) = self.pauses.due(self.now) else { break };
            self.bios.all[bio as usize].notes.prepared(node, span);
            self.resolve_again(bio);
        }
    }

    /// The stack that a bio runs on.
    fn root_of(&self, bio: u32) -> Arc<dyn Layer> {
        match &self.bios.all[bio as usize].root {
            Root::Volume(volume) => self.volumes[volume.0 as usize].root.clone(),
            Root::Layer(layer) => layer.clone(),
        }
    }

    /// Runs tasks, unplugs queues, and deals with what completed, once. Tells whether anything happened.
    pub(crate) fn advance(&mut self, env: &mut dyn Env) -> bool {
        if !self.lost.is_empty() {
            self.tell_of_losses();
        }
        self.resolve_fresh();
        self.begin_joint();
        let mut any = self.executor.run();
        let mut commands = std::mem::take(&mut self.commands);
        self.executor.take_commands(&mut commands);
        any |= !commands.is_empty();
        for command in commands.drain(..) {
            self.obey(env, command);
        }
        self.commands = commands;
        for i in 0..self.queues.len() {
            if self.queues[i].has_plugged() {
                any = true;
                self.with_queue(env, i, |queue, cx| queue.unplug(cx));
            }
        }
        self.read_ahead(env);
        any |= self.ask_for_flush_turns();
        if !self.lost.is_empty() {
            // Before what was read of it is answered.
            self.tell_of_losses();
        }
        any | self.settle()
    }

    /// Queues that found another worker flushing their leaf wait for their turn.
    fn ask_for_flush_turns(&mut self) -> bool {
        let any = !self.flush_turns.is_empty();
        for leaf in std::mem::take(&mut self.flush_turns) {
            let taking = self.queues[usize::from(leaf.0)].flush_turn();
            let cx = self.executor.context().clone();
            self.executor.spawn(async move {
                let turn = taking.await;
                cx.command(Command::FlushTurn { leaf, turn });
            });
        }
        any
    }

    /// A leaf's operation has completed.
    #[inline]
    pub(crate) fn request_completed(&mut self, env: &mut dyn Env, leaf: u16, request: u32, result: i32) {
        self.with_queue(env, leaf as usize, |queue, cx| queue.completed(cx, request, result));
    }

    /// An operation of a leaf's own has completed.
    pub(crate) fn leaf_event(&mut self, env: &mut dyn Env, leaf: u16, local: u32, completion: Completion) {
        self.with_queue(env, leaf as usize, |queue, cx| queue.leaf_event(cx, local, completion));
    }

    #[inline]
    fn with_queue(
        &mut self,
        env: &mut dyn Env,
        i: usize,
        act: impl FnOnce(&mut LeafQueue, &mut QueueContext<'_>),
    ) {
        let mut cx = QueueContext {
            env,
            bios: &self.bios,
            counters: &self.counters,
            tracer: &mut self.tracer,
            pool: &self.pool,
            tap: self.tap.as_deref(),
            completed: &mut self.completed,
            failures: &mut self.failures,
            flush_turns: &mut self.flush_turns,
            lost: &mut self.lost,
            wishes: &mut self.wishes,
            now: self.now,
        };
        act(&mut self.queues[i], &mut cx);
    }

    fn obey(&mut self, env: &mut dyn Env, command: Command) {
        match command {
            Command::Submit { root, bio, reply } => {
                let node = root.node();
                self.start(Root::Layer(root), node, Owner::Task(reply), bio);
            }
            Command::SubmitToVolume { volume, bio, reply } => {
                self.submit_late(volume, Owner::Task(reply), bio)
            }
            Command::SubmitInTurn { volume, owner, bio, turn } => {
                self.submit_in_turn(volume, owner, bio, turn);
            }
            Command::Resume { bio, prepared } => {
                let state = &mut self.bios.all[bio as usize];
                state.idle_rounds = 0;
                prepared.into_iter().for_each(|(node, span)| state.notes.prepared(node, span));
                self.resolve_again(bio);
            }
            Command::ResumeIdle { bio, rounds } => {
                self.bios.all[bio as usize].idle_rounds = rounds;
                self.resolve_again(bio);
            }
            Command::Unprepared { bio, of, errno } => {
                if let Some((node, span)) = of {
                    self.note_failure(bio, End::Layer(node), span, errno);
                }
                self.fail(bio, errno);
            }
            Command::CarriedOut { bio, node, refused } => {
                let first = refused.first().map(|(_, errno)| *errno);
                for (span, errno) in refused {
                    self.note_failure(bio, End::Layer(node), span, errno);
                }
                self.completed.push((bio, first.map_or(Ok(()), Err)));
            }
            Command::FlushTurn { leaf, turn } => {
                self.with_queue(env, usize::from(leaf.0), |queue, cx| queue.take_flush_turn(cx, turn));
            }
            Command::Count { node, counter } => self.counters.add(node, counter, 1),
            Command::Spawn(task) => self.executor.spawn(task),
            Command::Allocation { root, sector, nr, answer } => {
                // Copies may differ where nobody has written: what one of them has says nothing of another.
                let one_way = !any_redundant(&*root, None);
                let found = one_way.then(|| self.allocation_of(&*root, sector, nr).ok()).flatten();
                answer.give(found.unwrap_or((Allocation::Data, nr)));
            }
            Command::Finish { owner, op, result, data } => self.give_back(owner, op, result, data),
        }
    }

    /// Books completed parts; finishes the bios that have no more.
    fn settle(&mut self) -> bool {
        if self.completed.is_empty() {
            return false;
        }
        let mut completed = std::mem::take(&mut self.completed);
        for (bio, result) in completed.drain(..) {
            let state = &mut self.bios.all[bio as usize];
            if let Err(errno) = result {
                state.error.get_or_insert(errno);
            }
            let left = state.parts.get().checked_sub(1).expect("a part of a bio completed twice");
            state.parts.set(left);
            if left == 0 {
                self.finish(bio);
            }
        }
        // Finishing may have completed more (an empty flush); those wait for the next round.
        completed.append(&mut self.completed);
        self.completed = completed;
        true
    }

    /// All parts of a bio are done.
    fn finish(&mut self, bio: u32) {
        if self.bios.all[bio as usize].error.is_some() && self.cure(bio) {
            return;
        }
        let state = &mut self.bios.all[bio as usize];
        let discards = matches!(state.span.op, Op::Discard | Op::WriteZeroes);
        state.notes.tell(state.error.map_or(Ok(()), Err));
        if let Some(epoch) = state.epoch.take()
            && self.attendance.end(epoch)
            && state.op == Op::Read
        {
            state.error = None;
            self.resolve_again(bio);
            return;
        }
        // No device has FUA for discards: what they did is made durable by a flush.
        let flushes = discards && state.span.flags.has(Flags::FUA) || state.notes.take_flush();
        if flushes && state.error.is_none() {
            state.notes.clear();
            let asked = state.span.flags;
            let outlives = asked.has(Flags::OUTLIVES) && !asked.has(Flags::FUA);
            state.span = Span {
                op: Op::Flush,
                flags: if outlives { Flags::OUTLIVES } else { Flags::NONE },
                sector: Sector(0),
                nr: Sectors::ZERO,
                at: Sectors::ZERO,
            };
            self.resolve(bio);
            return;
        }
        let BioState { node, op, span, started, error, .. } = self.bios.all[bio as usize];
        let (owner, data) = self.bios.end(bio);
        let result = error.map_or(Ok(()), Err);
        let is_leaf = self.leaf_of[node.0 as usize].is_some();
        if !is_leaf {
            self.counters.latency(node, op, self.now.since(started));
        }
        if let Err(errno) = result {
            if !is_leaf {
                self.counters.add(node, Counter::Errors, 1);
            }
            log::debug!("{op:?} at sector {} failed: {errno}", span.sector);
        }
        if self.tracer.on() && !is_leaf {
            let errno = result.err().map_or(0, |errno| errno.0);
            self.trace(node, Action::Complete, Span { op, ..span }, Reason::None, errno);
        }
        self.give_back(owner, op, result, data);
    }

    #[inline]
    fn give_back(&mut self, owner: Owner, op: Op, result: Result<(), Errno>, data: Segments) {
        match owner {
            Owner::Port { port, cookie } => self.finished.push((port, Done { cookie, op, result, data })),
            Owner::Task(reply) => reply.answer(result, data),
            Owner::Holding(held) => self.give_back(held.0, op, result, data),
        }
    }

    /// Starts a flush of every volume that reaches a leaf with writes that no flush has covered, or that has lost some: that one
    /// refuses, so that whoever stops does not hear that all is well. Through the volume: an array that goes on without a member is not
    /// held to it.
    pub(crate) fn flush_dirty_volumes(&mut self) -> Vec<Reply> {
        let dirty: Vec<NodeId> = self
            .queues
            .iter()
            .filter(|queue| queue.is_dirty() || queue.has_failed())
            .map(LeafQueue::node)
            .collect();
        let mut replies = Vec::new();
        for volume in (0..=u16::MAX).take(self.volumes.len()).map(VolumeId) {
            let root = self.volumes[usize::from(volume.0)].root.clone();
            let reaches = |leaf: &NodeId| layer_under(&root, *leaf).is_some();
            if dirty.iter().any(reaches) {
                let reply = Reply::default();
                self.start(Root::Volume(volume), root.node(), Owner::Task(reply.clone()), Bio::flush());
                replies.push(reply);
            }
        }
        replies
    }

    pub(crate) fn clear_counters(&self, nodes: &[NodeId]) {
        nodes.iter().for_each(|node| self.counters.clear(*node));
    }

    fn node_count(&self) -> u16 {
        self.counters.len()
    }

    #[cold]
    fn trace(&mut self, node: NodeId, action: Action, span: Span, reason: Reason, errno: i32) {
        let errno = u16::try_from(errno).unwrap_or(u16::MAX);
        self.tracer.push(Event { reason, errno, ..Event::on(self.now, node, action, span) });
    }
}
