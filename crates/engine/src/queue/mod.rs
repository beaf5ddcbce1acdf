//! A leaf's queue, one per worker: extents go in, requests within the device's limits come out.
//!
//! ```text
//!   plug ──unplug──▶ sort ─▶ read ahead ─▶ split ─▶ merge ──▶ pending ──▶ in flight ──▶ done ──▶ bios
//!                                            │                  ▲  │ ▲          │
//!                                         backlog ──────────────┘  │ └──requeue──┘  (short transfers, failed merges)
//!                                                               throttle           (large ones, where there are small ones)
//! ```
//!
//! Everything that arrives in a turn of the worker is plugged, then sorted and merged at once, as the kernel's plug does; that is left
//! out where nothing of it adjoins, and no request waits that it could adjoin.
//! At most `nr_requests` requests are in flight, and of large ones no more than small ones beside them bear (`throttle`); those that wait
//! can still be merged with what arrives later.
//! What a device that never waits can do as it is may go past all of this (`at_once`).
//!
//! Invariants:
//! 1. Every part of a bio that was put in is reported once to `completed`.
//! 2. A request never exceeds the limits, and holds only contiguous parts of one operation with equal flags.
//! 3. A merged request that fails is taken apart and each part tried alone, so that one bad sector fails one bio.
//! 4. One flush runs at a time; those that arrive meanwhile share the next one, which starts after they arrived. A FUA write of which a
//!    flush may have failed is tried again in the place of a flush, and until that has ended none is reported to have succeeded, nor is
//!    a read.
//! 5. Requests that are made but not yet issued are bounded: of a range that needs many (a discard of a whole disk under
//!    a small `discard_max_bytes`), only as many exist as can be in flight soon; the rest waits in the backlog, uncut.
//! 6. Once a flush has failed, writes and flushes fail (see the crate's invariant 5).
//! 7. Once a device was found to have become smaller, nothing is written behind its end (`shrunk`).
//! 8. Of a buffer of ours that a read goes through, a client's memory gets what the device transferred to it, and nothing else.

mod adjoining;
mod at_once;
mod bounce;
mod complete;
mod distance;
mod durable;
mod fixed;
mod flush;
mod merge;
mod read_ahead;
mod refused;
mod request;
mod shrunk;
mod split;
mod throttle;

use std::collections::VecDeque;
use std::sync::Arc;

use blockwork_memory::{Buffer, Pool};

use crate::bio::{Errno, Flags, Op};
use crate::choice::{Chooser, Fixed, Linearize, Watched};
use crate::core::{Bios, End, PartFailure};
use crate::counters::{Counter, CounterTable};
use crate::env::{Env, Token};
use crate::event::{Action, Event, Payload, Reason, Tracer};
use crate::layer::{NodeId, Span};
use crate::leaf::{Ended, Leaf, LeafId, LeafIo, LeafShared, LeafSource, Submitted, WriteTap};
use crate::limits::{Limits, Merges};
use crate::turn::Taking;
use crate::units::{Nanos, Sector, Sectors};

use adjoining::Ends;
use at_once::Immediate;
use bounce::Bounces;
use durable::Durable;
use flush::Flushes;
use read_ahead::ReadAhead;
pub(crate) use read_ahead::{Allowance, Behind, Stretch, Wish};
pub use refused::Complaint;
pub(crate) use refused::Complaints;
pub(crate) use split::sectors_in_segments;

pub(crate) use distance::Distance;
use request::{Part, Requests, Stage};
pub(crate) use throttle::Pressure;
pub use throttle::SMALL_REQUEST;
use throttle::{Throttle, is_large, is_small};

/// What the queue needs of its worker while it works.
pub(crate) struct QueueContext<'a> {
    pub(crate) env: &'a mut dyn Env,
    pub(crate) bios: &'a Bios,
    pub(crate) counters: &'a CounterTable,
    pub(crate) tracer: &'a mut Tracer,
    pub(crate) pool: &'a Pool,
    pub(crate) tap: Option<&'a dyn WriteTap>,
    /// Parts of bios that are done: the bio, and how it went.
    pub(crate) completed: &'a mut Vec<(u32, Result<(), Errno>)>,
    /// What the device refused, besides in `completed`.
    pub(crate) failures: &'a mut Vec<PartFailure>,
    /// Leaves whose queues wait for their turn to flush.
    pub(crate) flush_turns: &'a mut Vec<LeafId>,
    /// Leaves of which a flush has failed, as their queue here has not known before.
    pub(crate) lost: &'a mut Vec<LeafId>,
    /// Readers whose next reads are to be made now.
    pub(crate) wishes: &'a mut Vec<Wish>,
    pub(crate) now: Nanos,
}

impl QueueContext<'_> {
    /// A part of a bio failed on a leaf.
    #[cold]
    fn fail(&mut self, failure: PartFailure) {
        self.failures.push(failure);
        self.completed.push((failure.bio, Err(failure.errno)));
    }
}

/// An extent of a bio on this leaf, not yet (entirely) made into requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plugged {
    pub(crate) bio: u32,
    pub(crate) span: Span,
}

/// The kinds of write-zeroes that a device has turned out not to have, whatever its limits say. They are done in different ways, and a file
/// system may have one and not the other.
#[derive(Default)]
struct Lacking {
    /// Those that may unmap.
    unmapping: bool,
    /// Those that must not (`NO_UNMAP`).
    keeping: bool,
}

impl Lacking {
    fn kind(&mut self, flags: Flags) -> &mut bool {
        if flags.has(Flags::NO_UNMAP) { &mut self.keeping } else { &mut self.unmapping }
    }

    fn has(&self, flags: Flags) -> bool {
        if flags.has(Flags::NO_UNMAP) { self.keeping } else { self.unmapping }
    }
}

/// One worker's queue on one leaf.
pub(crate) struct LeafQueue {
    id: LeafId,
    node: NodeId,
    source: Arc<dyn LeafSource>,
    /// The source's: looked at for every request.
    shared: Arc<LeafShared>,
    leaf: Box<dyn Leaf>,
    limits: Limits,
    plug: Vec<Plugged>,
    ends: Ends,
    /// What is cut now may find something to merge with.
    may_merge: bool,
    immediate: Immediate,
    backlog: VecDeque<Plugged>,
    requests: Requests,
    pending: VecDeque<u32>,
    throttle: Throttle,
    in_flight: u32,
    flushes: Flushes,
    read_ahead: ReadAhead,
    bounces: Bounces,
    durable: Durable,
    /// There is something to choose for all requests of a kind, not only for those that are to be durable.
    chooses: bool,
    chooser: Chooser,
    /// Zeros to write, where the device has no write-zeroes.
    zeros: Option<Buffer>,
    lacking: Lacking,
    /// That a flush has failed was told to the layers above.
    told_of_loss: bool,
    /// Written to since the last flush.
    dirty: bool,
    /// Requests were started that the leaf has not been told the end of.
    batch: bool,
    ended: Vec<Ended>,
}

impl LeafQueue {
    pub(crate) fn new(id: LeafId, node: NodeId, source: Arc<dyn LeafSource>) -> LeafQueue {
        let limits = source.limits().clone();
        assert!(limits.nr_requests > 0 && limits.max_sectors > Sectors::ZERO && limits.max_segments > 0);
        let read_ahead = ReadAhead::new(limits.read_ahead, limits.max_sectors);
        let mut leaf = source.open();
        let chooses = limits.linearize == Linearize::Auto || limits.fixed == Fixed::Auto;
        LeafQueue {
            id,
            node,
            immediate: Immediate::new(&mut *leaf, &limits),
            leaf,
            throttle: Throttle::new(limits.wbt_lat, &source.shared().pressure),
            shared: source.shared().clone(),
            source,
            bounces: Bounces::new(limits.linearize),
            durable: Durable::new(limits.fua),
            chooses,
            chooser: Chooser::new(chooses),
            limits,
            plug: Vec::new(),
            ends: Ends::default(),
            may_merge: true,
            backlog: VecDeque::new(),
            requests: Requests::default(),
            pending: VecDeque::new(),
            in_flight: 0,
            flushes: Flushes::default(),
            told_of_loss: false,
            read_ahead,
            zeros: None,
            lacking: Lacking::default(),
            dirty: false,
            batch: false,
            ended: Vec::new(),
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }
    pub(crate) fn leaf_mut(&mut self) -> &mut dyn Leaf {
        &mut *self.leaf
    }
    /// Requests that the device has.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }
    /// How far away the device is (see `distance`).
    pub(crate) fn distance(&self) -> Option<Nanos> {
        self.shared.distance.get()
    }
    /// Whether writes have completed that no flush has covered.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty && self.limits.write_cache
    }
    /// Whether a flush of this leaf has failed, through whichever worker.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.has_failed()
    }
    pub(crate) fn is_idle(&self) -> bool {
        self.plug.is_empty()
            && self.backlog.is_empty()
            && self.waiting() == 0
            && self.in_flight == 0
            && self.flushes.is_idle()
    }
    pub(crate) fn has_plugged(&self) -> bool {
        !self.plug.is_empty()
    }
    /// Requests that are made and not issued.
    fn waiting(&self) -> usize {
        self.pending.len() + self.throttle.waiting().len()
    }
    /// One of them, the newest first.
    fn waiting_from_back(&self, back: usize) -> u32 {
        let mut newest = self.pending.iter().rev().chain(self.throttle.waiting().iter().rev());
        *newest.nth(back).expect("so many wait")
    }
    /// The wait for this queue's turn to flush.
    pub(crate) fn flush_turn(&self) -> Taking {
        self.shared.flush_turns.take()
    }

    /// Puts an extent into the plug.
    #[inline]
    pub(crate) fn add(&mut self, plugged: Plugged) {
        let end = plugged.span.end();
        if self.limits.merges == Merges::All {
            self.ends.mark(end);
        }
        self.immediate.ended(end);
        self.plug.push(plugged);
    }

    /// Makes requests of what is plugged, and issues what may be in flight.
    pub(crate) fn unplug(&mut self, cx: &mut QueueContext<'_>) {
        if self.plug.is_empty() {
            return;
        }
        let mut plug = std::mem::take(&mut self.plug);
        if cx.tracer.on() {
            self.trace_plug(cx, plug.len());
        }
        if self.limits.merges == Merges::All {
            self.sort(&mut plug);
        }
        self.requests.start_batch();
        for plugged in plug.drain(..) {
            self.count_arrival(cx, &plugged);
            self.admit(cx, plugged);
        }
        self.plug = plug; // keeps its memory
        self.may_merge = true;
        self.flush_if_due(cx);
        self.issue(cx);
    }

    /// Brings together what adjoins; where nothing does, it is left as it came.
    #[inline]
    fn sort(&mut self, plug: &mut [Plugged]) {
        let adjoin = plug.len() > 1 && self.ends.adjoin(plug);
        self.ends.start_batch();
        if adjoin && !plug.is_sorted_by_key(order) {
            plug.sort_by_key(order); // stable: equal starts keep their order of arrival
        }
        self.may_merge = adjoin || self.waiting() > 0 || !self.backlog.is_empty();
    }

    /// Turns one extent into what becomes of it.
    fn admit(&mut self, cx: &mut QueueContext<'_>, plugged: Plugged) {
        let op = plugged.span.op;
        if op != Op::Read {
            if op == Op::Flush && self.limits.read_only {
                // Whatever a cache holds is not ours. A loop device begins with a flush, on a file of ours that is read-only too.
                cx.completed.push((plugged.bio, Ok(())));
                return;
            }
            if let Err(errno) = self.writable(&plugged.span) {
                let Plugged { bio, span } = plugged;
                cx.fail(PartFailure {
                    bio,
                    end: End::Leaf(self.id),
                    op,
                    sector: span.sector,
                    nr: span.nr,
                    errno,
                });
                return;
            }
            if op == Op::Flush {
                self.flushes.wait(plugged.bio);
                return;
            }
        } else if self.read_ahead.is_on() {
            self.admit_read(cx, plugged);
            return;
        }
        self.admit_plain(cx, plugged);
    }

    fn admit_plain(&mut self, cx: &mut QueueContext<'_>, plugged: Plugged) {
        // Where large ones wait for the sake of small ones, these do not wait for room that those take up.
        let passes = || is_small(plugged.span.nr) && self.throttle.is_on(&self.shared.pressure, cx.now);
        if self.backlog.is_empty() || passes() {
            if !self.take_whole(cx, plugged) {
                self.cut(cx, plugged);
            }
        } else {
            self.backlog.push_back(plugged);
        }
    }

    /// Whether that may be written, or a flush made.
    fn writable(&self, span: &Span) -> Result<(), Errno> {
        if self.limits.read_only {
            Err(Errno::EROFS)
        } else if self.shared.has_failed() || span.end() > self.shared.end() {
            Err(Errno::EIO)
        } else {
            Ok(())
        }
    }

    /// Whether anybody wants to know of writes.
    #[inline]
    fn counts_changes(&self) -> bool {
        self.limits.read_ahead > Sectors::ZERO || self.shared.is_watched()
    }

    /// The number of changes, all of which are counted from now on.
    pub(crate) fn changes(&self) -> u64 {
        self.shared.watch();
        self.shared.changes()
    }

    /// Gives pending requests to the device while it may have more, and refills from the backlog.
    pub(crate) fn issue(&mut self, cx: &mut QueueContext<'_>) {
        loop {
            while self.in_flight < self.limits.nr_requests {
                let Some(request) = self.next(cx) else { break };
                self.submit(cx, request);
            }
            if self.backlog.is_empty() || self.waiting() >= self.limits.nr_requests as usize {
                break;
            }
            self.requests.start_batch();
            while self.waiting() < self.limits.nr_requests as usize {
                let Some(plugged) = self.backlog.pop_front() else { break };
                self.cut_front(cx, plugged);
            }
        }
        if self.in_flight >= self.limits.nr_requests && !self.pending.is_empty() {
            cx.counters.add(self.node, Counter::Waited, 1);
        }
        self.end_batch(cx);
    }

    /// The next request that the device may have.
    fn next(&mut self, cx: &mut QueueContext<'_>) -> Option<u32> {
        let pressure = &self.shared.pressure;
        if let Some(first) = self.throttle.waiting().front()
            && self.throttle.admits(pressure, cx.now, &self.requests[*first])
        {
            return self.throttle.let_go();
        }
        while let Some(id) = self.pending.pop_front() {
            // Those that wait keep their order.
            let request = &self.requests[id];
            let waits = is_large(request) && !self.throttle.waiting().is_empty();
            if !waits && self.throttle.admits(pressure, cx.now, request) {
                return Some(id);
            }
            cx.counters.add(self.node, Counter::Held, 1);
            self.requests[id].held = true;
            self.throttle.hold(pressure, cx.now, id);
        }
        None
    }

    /// Tells the leaf that no more requests come at once.
    fn end_batch(&mut self, cx: &mut QueueContext<'_>) {
        if std::mem::take(&mut self.batch) {
            self.leaf.submitted(cx.env);
        }
    }

    /// Issues one request.
    pub(super) fn submit(&mut self, cx: &mut QueueContext<'_>, id: u32) {
        if self.chooser.attends() {
            self.chooser.starts(cx.now, self.in_flight);
        }
        let durable = self.make_durable(cx, id);
        let by_pieces = self.bounce_if_needed(cx, id);
        let (fixed, by_memory) = self.fix(cx, id);
        let held = if self.requests[id].held { Reason::Held } else { Reason::None };
        let reasons = [by_pieces, durable, by_memory, held];
        let reason = reasons.into_iter().find(|reason| *reason != Reason::None).unwrap_or(Reason::None);
        let changes = self.counts_changes();
        let request = &mut self.requests[id];
        let (op, _, sector, nr) = request.what();
        let flags = request.device_flags();
        request.issued = cx.now;
        request.state_issue();
        self.throttle.starts(&self.shared.pressure, cx.now, request);
        if changes && op.is_write() {
            self.shared.change();
        }
        cx.counters.add(self.node, Counter::Out, 1);
        cx.counters.operation(self.node, op, nr.bytes());
        if flags.has(Flags::FUA) {
            cx.counters.add(self.node, Counter::FuaWrites, 1);
        }
        if cx.tracer.on() {
            trace(cx, self.node, Action::Issue, (op, flags, sector, nr), Payload::None, reason);
        }
        let io = LeafIo {
            token: Token::request(self.id.0, id),
            op,
            flags,
            sector,
            nr,
            data: self.requests[id].io_data(),
            fixed,
            alone: self.in_flight == 0,
        };
        self.in_flight += 1;
        match self.leaf.submit(cx.env, io) {
            Submitted::Started => self.batch = true,
            Submitted::Now(result) => self.finish(cx, id, result.map(|()| nr.bytes())),
        }
    }

    /// A request has come back: what was compared by it.
    #[inline]
    fn heed(&mut self, cx: &mut QueueContext<'_>, id: u32, outcome: Result<u64, Errno>) {
        let request = &mut self.requests[id];
        // A copy that the device did not demand is under way no more.
        self.bounces.copies -= std::mem::take(&mut request.copied);
        // Mostly there is nothing to take.
        if request.watched.is_none() {
            return;
        }
        let Some(watched) = request.watched.take() else { return };
        let bytes = request.nr.bytes();
        let well = outcome.is_ok_and(|done| done >= bytes);
        let paid = self.chooser.paid();
        self.chosen(cx, watched, (well, paid), bytes);
    }

    /// As many requests are done as are looked at together.
    #[inline(never)]
    fn window_done(&mut self, cx: &QueueContext<'_>) {
        let bytes = cx.counters.bytes(self.node);
        if self.chooser.window_done(cx.now, self.in_flight, bytes) {
            self.ask_of_copies();
        }
    }

    /// A request that the comparison of ways had an eye on is done: whether well, and what has been paid by now.
    #[inline]
    fn chosen(&mut self, cx: &mut QueueContext<'_>, watched: Watched, (well, paid): (bool, f64), bytes: u64) {
        let Some(news) = self.chooser.done(watched, well, paid, bytes) else { return };
        cx.counters.choices.tell(self.node, &news);
        if news.settled {
            log::info!("{}: {news}", self.source.name());
        }
    }

    fn count_arrival(&self, cx: &mut QueueContext<'_>, plugged: &Plugged) {
        if cx.tracer.on() {
            let span = plugged.span;
            let what = (span.op, span.flags, span.sector, span.nr);
            trace(cx, self.node, Action::Queue, what, Payload::None, Reason::None);
        }
    }

    fn trace_plug(&self, cx: &mut QueueContext<'_>, entries: usize) {
        let what = (Op::Flush, Flags::NONE, Sector(0), Sectors::ZERO);
        trace(cx, self.node, Action::Plug, what, Payload::None, Reason::None);
        let requests = u32::try_from(entries).unwrap_or(u32::MAX);
        trace(cx, self.node, Action::Unplug, what, Payload::Unplug { requests }, Reason::None);
    }
}

/// What is sorted by: operations apart from each other, each by sector.
#[inline]
fn order(plugged: &Plugged) -> (Op, Flags, Sector) {
    (plugged.span.op, plugged.span.flags, plugged.span.sector)
}

/// Emits an event; call only while tracing is on.
#[cold]
fn trace(
    cx: &mut QueueContext<'_>,
    node: NodeId,
    action: Action,
    (op, flags, sector, nr): (Op, Flags, Sector, Sectors),
    payload: Payload,
    reason: Reason,
) {
    cx.tracer.push(Event { time: cx.now, node, action, op, flags, sector, nr, payload, reason, errno: 0 });
}
