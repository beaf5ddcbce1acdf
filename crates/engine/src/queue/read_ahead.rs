//! Reading ahead of sequential readers that ask for little at a time.
//!
//! Merging cannot help a reader with one small request in flight, and at depth 32 it makes 128 KiB of 4 KiB reads at
//! best. So a sequential stream of small reads is served from slots of up to `read_ahead` that are read as one request
//! each. The kernel's page cache does the same for buffered readers (`read_ahead_kb`).
//! Who comes to a slot for the first time is asked for what it will want next, which its stack knows (`core/ahead.rs`): so a
//! slot ends where the stream goes on elsewhere, and the next one is on the leaf where that is.
//! A stream may leave out as much as it asks for: so an origin is read through a snapshot that has every other chunk.
//! Slots that a stream has gone by are the first to be used again, so a stream goes round in three of them: their memory stays near
//! the processor, and among the buffers that the kernel knows.
//!
//! Invariants:
//! 1. A slot serves a read only if no write to the leaf, by any worker, has started or completed since the slot's own
//!    read was issued ([`LeafShared::changes`](crate::LeafShared)): a read that follows a completed write sees it.
//! 2. A slot is not used for longer than [`EXPIRES`] after it was filled: a file that somebody else writes to without
//!    locking it is not remembered.
//! 3. A slot whose read failed gives its waiters back, each to be read by itself.

use blockwork_memory::Segment;

use super::{LeafQueue, Plugged, QueueContext, Stage, trace};
use crate::bio::{Flags, Op};
use crate::counters::Counter;
use crate::event::{Action, Payload, Reason};
use crate::layer::{NodeId, Span};
use crate::leaf::LeafId;
use crate::units::{Nanos, Sector, Sectors};

/// Streams that are told apart; more than that at once on one leaf take turns being forgotten.
const STREAMS: usize = 4;
/// Slots: two for each stream, the one being read and the next.
const SLOTS: usize = 2 * STREAMS;
/// Reads, each behind the one before, that make a stream.
const RUN: u32 = 4;
/// Slots that one stream has on a leaf, at most.
const SLOTS_OF_STREAM: u32 = 4;
/// How long a filled slot is believed.
const EXPIRES: Nanos = Nanos::secs(1);

pub(super) struct ReadAhead {
    /// Size of a slot; zero where reading ahead is off.
    window: Sectors,
    streams: [Stream; STREAMS],
    slots: [Option<Slot>; SLOTS],
    /// Counts uses, to find what was used longest ago.
    clock: u64,
}

#[derive(Clone, Copy, Default)]
struct Stream {
    next: Sector,
    run: u32,
    used: u64,
}

struct Slot {
    sector: Sector,
    nr: Sectors,
    memory: Segment,
    /// The leaf's change count when its read was issued.
    changes: u64,
    /// When it was filled; `None` while it is being read.
    filled: Option<Nanos>,
    waiters: Vec<Plugged>,
    used: u64,
    /// Somebody has read of it, and what comes next is seen to.
    reached: bool,
    /// Somebody has read to its end.
    passed: bool,
}

/// A bio has come to a slot: what its reader will want next is to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) bio: u32,
    pub(crate) leaf: LeafId,
    /// Size of a slot on that leaf.
    pub(crate) window: Sectors,
}

/// What a stream will want of a leaf, from a place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) start: Sector,
    /// As far as it is known.
    pub(crate) end: Sector,
    pub(crate) behind: Behind,
}

/// What is done about what lies behind the end of a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// The stream goes on elsewhere.
    Ends,
    /// It may go on, and is soon there: more is read.
    GoesOn,
    /// It may go on: what does not fill a slot is left until more of it is known.
    Later,
}

/// What a stream may still have on a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    slots: u32,
    sectors: Sectors,
}

impl Allowance {
    fn take(&mut self, nr: Sectors) {
        self.slots -= 1;
        self.sectors = Sectors(self.sectors.0.saturating_sub(nr.0));
    }
    pub(crate) fn is_used_up(&self) -> bool {
        self.slots == 0 || self.sectors == Sectors::ZERO
    }
}

impl ReadAhead {
    pub(super) fn new(read_ahead: Sectors, max_sectors: Sectors) -> ReadAhead {
        ReadAhead {
            window: read_ahead.min(max_sectors),
            streams: Default::default(),
            slots: Default::default(),
            clock: 0,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.window > Sectors::ZERO
    }

    /// Whether `span` continues a stream for long enough; remembers it either way.
    fn is_stream(&mut self, span: Span) -> bool {
        self.clock += 1;
        let gap = |stream: &Stream| span.sector.0.wrapping_sub(stream.next.0);
        let continues = |stream: &&Stream| gap(stream) <= span.nr.0 && stream.run > 0;
        // The one that it continues without a gap, if there is one. Mostly there is none that it continues at all.
        let found = if self.streams.iter().any(|stream| continues(&stream)) {
            let near = |(_, stream): &(usize, &Stream)| continues(stream);
            self.streams.iter().enumerate().filter(near).min_by_key(|(_, stream)| gap(stream) > 0)
        } else {
            None
        };
        let (i, run) = match found {
            Some((i, stream)) => (i, stream.run.saturating_add(1)),
            None => (self.oldest_stream(), 1),
        };
        self.streams[i] = Stream { next: span.end(), run, used: self.clock };
        run >= RUN
    }

    #[inline]
    fn oldest_stream(&self) -> usize {
        (1..STREAMS)
            .fold(0, |oldest, i| if self.streams[i].used < self.streams[oldest].used { i } else { oldest })
    }

    fn slot_at(&self, sector: Sector, changes: u64, now: Nanos) -> Option<usize> {
        self.slots.iter().position(|slot| {
            slot.as_ref().is_some_and(|slot| {
                slot.sector <= sector
                    && sector < slot.sector + slot.nr
                    && slot.changes == changes
                    && slot.filled.is_none_or(|at| now.since(at) < EXPIRES)
            })
        })
    }

    /// A place for a new slot: of what was gone by, all but the last, which requests out of order may still come to; else an empty
    /// one; else the filled one that was used longest ago.
    fn place(&self) -> Option<usize> {
        let age = |i: &usize| self.slots[*i].as_ref().map_or(0, |slot| slot.used);
        let are = |what: fn(&Slot) -> bool| {
            (0..SLOTS).filter(move |i| {
                self.slots[*i].as_ref().is_some_and(|slot| slot.filled.is_some() && what(slot))
            })
        };
        let passed = || are(|slot| slot.passed);
        if passed().nth(1).is_some() {
            return passed().min_by_key(age);
        }
        let empty = self.slots.iter().position(Option::is_none);
        empty.or_else(|| are(|_| true).min_by_key(age))
    }
}

impl LeafQueue {
    /// Takes a read, on a leaf that reads ahead.
    pub(super) fn admit_read(&mut self, cx: &mut QueueContext<'_>, plugged: Plugged) {
        let Plugged { bio, mut span } = plugged;
        let small = span.nr.0 <= self.read_ahead.window.0 / 4;
        if !small || span.flags.has(Flags::NO_READ_AHEAD) {
            self.admit_plain(cx, plugged);
            return;
        }
        let is_stream = self.read_ahead.is_stream(span);
        while let Some(i) = self.slot_for(cx, span.sector, is_stream) {
            let slot = self.read_ahead.slots[i].as_ref().expect("slot_for gives one that is there");
            let take = (slot.sector + slot.nr).since(span.sector).min(span.nr);
            let last = take == span.nr;
            if !last {
                cx.bios.one_more_part(bio);
            }
            self.serve(cx, i, Plugged { bio, span: span.piece(Sectors::ZERO, take) });
            if last {
                return;
            }
            span = span.piece(take, span.nr - take);
        }
        self.admit_plain(cx, Plugged { bio, span });
    }

    /// The slot that holds `sector`; one that is started now, if a stream wants it.
    fn slot_for(&mut self, cx: &mut QueueContext<'_>, sector: Sector, start: bool) -> Option<usize> {
        let found = self.read_ahead.slot_at(sector, self.shared.changes(), cx.now);
        if found.is_some() || !start {
            return found;
        }
        self.start_slot(cx, sector, self.read_ahead.window)
    }

    /// What a stream may have here.
    pub(crate) fn allowance(&self) -> Allowance {
        Allowance { slots: SLOTS_OF_STREAM, sectors: self.read_ahead.window + self.read_ahead.window }
    }

    /// Reads what a stream will want, as far as that is not done already and allowed.
    pub(crate) fn read_ahead(
        &mut self,
        cx: &mut QueueContext<'_>,
        stretch: Stretch,
        allowance: &mut Allowance,
    ) {
        let (window, mut at) = (self.read_ahead.window, stretch.start);
        while self.read_ahead.is_on() && !allowance.is_used_up() {
            let known = Sectors(stretch.end.0.saturating_sub(at.0));
            let nr = match stretch.behind {
                Behind::GoesOn => window,
                Behind::Ends => window.min(known),
                Behind::Later if known < window => Sectors::ZERO,
                Behind::Later => window,
            };
            let found = self.read_ahead.slot_at(at, self.shared.changes(), cx.now);
            let start = || (nr > Sectors::ZERO).then(|| self.start_slot(cx, at, nr)).flatten();
            let Some(i) = found.or_else(start) else { break };
            let slot = self.read_ahead.slots[i].as_ref().expect("a slot that was found or started is there");
            allowance.take(slot.nr);
            at = slot.sector + slot.nr;
        }
        self.issue(cx);
    }

    /// Starts to read `nr` sectors, or what there is of them, into a slot; none: all slots are being read.
    fn start_slot(&mut self, cx: &mut QueueContext<'_>, sector: Sector, nr: Sectors) -> Option<usize> {
        let left = self.source.sectors().0.saturating_sub(sector.0);
        if left == 0 {
            return None;
        }
        let i = self.read_ahead.place()?;
        let mut nr = nr.min(Sectors(left));
        if self.limits.chunk_sectors > Sectors::ZERO {
            nr = nr.min(Sectors(self.limits.chunk_sectors.0 - sector.0 % self.limits.chunk_sectors.0));
        }
        let memory = Segment::new(cx.pool.get(nr.byte_len()), 0, nr.byte_len());
        let stage = Stage::ReadAhead(u32::try_from(i).expect("there are few slots"));
        let id = self.requests.take(stage, Op::Read, Flags::READ_AHEAD, sector, nr);
        self.requests[id].push_data(std::slice::from_ref(&memory));
        self.pending.push_back(id);
        let (used, changes) = (self.read_ahead.clock, self.shared.changes());
        let (waiters, filled) = (Vec::new(), None);
        let (reached, passed) = (false, false);
        self.read_ahead.slots[i] =
            Some(Slot { sector, nr, memory, changes, filled, waiters, used, reached, passed });
        cx.counters.add(self.node, Counter::ReadAheadIssued, 1);
        if cx.tracer.on() {
            let what = (Op::Read, Flags::READ_AHEAD, sector, nr);
            trace(cx, self.node, Action::GetRequest, what, Payload::None, Reason::ReadAhead);
            trace(cx, self.node, Action::Insert, what, Payload::None, Reason::ReadAhead);
        }
        Some(i)
    }

    /// Answers a read from a slot, now or when the slot is filled.
    fn serve(&mut self, cx: &mut QueueContext<'_>, i: usize, plugged: Plugged) {
        let (node, clock, is_in_doubt) = (self.node, self.read_ahead.clock, self.shared.is_in_doubt());
        let slot = self.read_ahead.slots[i].as_mut().expect("a slot that serves is there");
        slot.used = clock;
        // The next one may lie behind a gap.
        slot.passed |= plugged.span.end() + plugged.span.nr >= slot.sector + slot.nr;
        if !std::mem::replace(&mut slot.reached, true) {
            cx.wishes.push(Wish { bio: plugged.bio, leaf: self.id, window: self.read_ahead.window });
        }
        cx.counters.add(self.node, Counter::ReadAheadHit, 1);
        if slot.filled.is_some() {
            copy_out(cx, node, slot, plugged);
            self.flushes.end_read(cx, plugged.bio, is_in_doubt);
        } else {
            slot.waiters.push(plugged);
        }
    }

    /// The read of slot `i` has come to its end.
    pub(super) fn end_read_ahead(&mut self, cx: &mut QueueContext<'_>, i: u32, ok: bool) {
        let (i, node, is_in_doubt) = (i as usize, self.node, self.shared.is_in_doubt());
        let slot = self.read_ahead.slots[i].as_mut().expect("a slot stays while it is read");
        let waiters = std::mem::take(&mut slot.waiters);
        if ok {
            slot.filled = Some(cx.now);
            for plugged in waiters {
                copy_out(cx, node, slot, plugged);
                self.flushes.end_read(cx, plugged.bio, is_in_doubt);
            }
            if is_in_doubt {
                self.flush_if_due(cx);
            }
        } else {
            self.read_ahead.slots[i] = None;
            self.requests.start_batch();
            for plugged in waiters {
                self.admit_plain(cx, plugged);
            }
        }
    }
}

fn copy_out(cx: &mut QueueContext<'_>, node: NodeId, slot: &Slot, Plugged { bio, span }: Plugged) {
    if cx.tracer.on() {
        // No request will complete for it.
        let what = (span.op, span.flags, span.sector, span.nr);
        trace(cx, node, Action::Complete, what, Payload::None, Reason::ReadAhead);
    }
    let from = slot.memory.slice(span.sector.since(slot.sector).byte_len(), span.nr.byte_len());
    cx.bios.fill_from(bio, span.at, &from);
}
