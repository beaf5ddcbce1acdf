//! Cutting extents to the device's limits.
//!
//! Rules, after the kernel's `blk-merge.c`: reads and writes are cut at max_sectors (at a physical block, where the limit
//! is larger than one), at a chunk_sectors boundary, and where max_segments is reached; discards at max_discard so that
//! the next one starts aligned to the granularity, and their ragged ends, which the device could not discard, are left
//! out; write-zeroes at max_write_zeroes, or become writes of zeros where the device has none.

use blockwork_memory::{Buffer, Segment, Segments, slice_segments};

use super::merge::fits;
use super::{LeafQueue, Part, Plugged, QueueContext, Stage, trace};
use crate::bio::{Errno, Flags, Op};
use crate::core::{End, PartFailure};
use crate::counters::Counter;
use crate::event::{Action, Payload, Reason};
use crate::layer::Span;
use crate::limits::Limits;
use crate::units::{SECTOR, Sectors};

/// Size of the buffer of zeros, in bytes: large enough that a request of 1 MiB has few segments.
const ZEROS: usize = 256 << 10;

impl LeafQueue {
    /// Cuts an extent into requests, until there are enough; what is left over goes to the end of the backlog.
    pub(super) fn cut(&mut self, cx: &mut QueueContext<'_>, plugged: Plugged) {
        if let Some(rest) = self.cut_some(cx, plugged) {
            self.backlog.push_back(rest);
        }
    }

    /// As `cut`, for what came from the front of the backlog.
    pub(super) fn cut_front(&mut self, cx: &mut QueueContext<'_>, plugged: Plugged) {
        if let Some(rest) = self.cut_some(cx, plugged) {
            self.backlog.push_front(rest);
        }
    }

    /// Makes a read or write a request of its own, if it needs no cutting and nothing is there that it could be merged with: the usual case
    /// of random I/O, of one buffer a bio.
    #[inline]
    pub(super) fn take_whole(&mut self, cx: &mut QueueContext<'_>, Plugged { bio, span }: Plugged) -> bool {
        if self.may_merge || !span.op.has_data() || !fits(&self.limits, span.op, span.sector, span.nr) {
            return false;
        }
        let Some(only) = cx.bios.whole(bio, span.nr) else { return false };
        let flags = request_flags(span.op, span.flags, &self.limits);
        let part = Part { bio, op: span.op, at: span.at, nr: span.nr };
        let id = self.make(Span { flags, ..span }, part);
        self.requests[id].data.push(only.clone());
        if self.may_go_now(cx, id) {
            self.submit(cx, id);
        } else {
            self.insert(cx, id);
        }
        true
    }

    /// Whether a request that was just made need not wait in line: nobody does, the device may have more, and nobody looks who expects to see
    /// all of a plug come before any of it goes.
    #[inline]
    fn may_go_now(&self, cx: &QueueContext<'_>, id: u32) -> bool {
        self.waiting() == 0
            && self.in_flight < self.limits.nr_requests
            && !cx.tracer.on()
            && self.throttle.admits(&self.shared.pressure, cx.now, &self.requests[id])
    }

    fn cut_some(&mut self, cx: &mut QueueContext<'_>, plugged: Plugged) -> Option<Plugged> {
        let Plugged { bio, mut span } = plugged;
        match span.op {
            Op::Discard => match self.whole_granules(span) {
                Ok(inner) => span = inner,
                Err(result) => {
                    cx.completed.push((bio, result));
                    return None;
                }
            },
            Op::WriteZeroes if self.writes_zeros(span.flags) => {
                if span.flags.has(Flags::FAST_ONLY) {
                    let (op, sector, nr, errno) = (span.op, span.sector, span.nr, Errno::EOPNOTSUPP);
                    cx.fail(PartFailure { bio, end: End::Leaf(self.id), op, sector, nr, errno });
                    return None;
                }
                cx.counters.add(self.node, Counter::ZeroesWritten, 1);
            }
            _ => {}
        }
        loop {
            let (nr, reason) = self.piece_len(cx, bio, span);
            let piece = span.piece(Sectors::ZERO, nr);
            let last = nr == span.nr;
            if !last {
                cx.bios.one_more_part(bio);
                self.count_split(cx, piece, reason);
            }
            self.add_piece(cx, bio, piece);
            if last {
                return None;
            }
            span = span.piece(nr, span.nr - nr);
            if self.waiting() >= 2 * self.limits.nr_requests as usize {
                return Some(Plugged { bio, span });
            }
        }
    }

    /// Whether write-zeroes with those flags become writes of zeros.
    fn writes_zeros(&self, flags: Flags) -> bool {
        self.limits.max_write_zeroes == Sectors::ZERO || self.lacking.has(flags)
    }

    /// How much of the front of `span` one request may take, and what limits it.
    fn piece_len(&self, cx: &QueueContext<'_>, bio: u32, span: Span) -> (Sectors, Reason) {
        let limits = &self.limits;
        match span.op {
            Op::Flush => unreachable!("a flush is not cut"),
            Op::Discard => aligned_piece(span, limits.max_discard, granularity(limits), Reason::DiscardMax),
            Op::WriteZeroes if !self.writes_zeros(span.flags) => {
                let unit = Sectors(u64::from(limits.logical_block_size) / SECTOR);
                aligned_piece(span, limits.max_write_zeroes, unit, Reason::WriteZeroesMax)
            }
            Op::Read | Op::Write | Op::WriteZeroes => {
                let block = Sectors(u64::from(limits.physical_block_size) / SECTOR);
                let (mut nr, mut reason) = aligned_piece(span, limits.max_sectors, block, Reason::MaxSectors);
                let boundary = to_boundary(span, limits.chunk_sectors);
                if boundary < nr {
                    (nr, reason) = (boundary, Reason::ChunkSectors);
                }
                if span.op.has_data() {
                    let fit = cx.bios.sectors_in_segments(bio, span.at, nr, limits);
                    if fit < nr {
                        (nr, reason) = (fit, Reason::MaxSegments);
                    }
                }
                (nr, reason)
            }
        }
    }

    /// The part of a discard that the device can do; an answer at once where there is none.
    fn whole_granules(&self, span: Span) -> Result<Span, Result<(), Errno>> {
        if !self.limits.discards() {
            return Err(Err(Errno::EOPNOTSUPP));
        }
        let unit = granularity(&self.limits).0.max(1);
        let start = span.sector.0.next_multiple_of(unit);
        // The device's last granule may be cut short by its end.
        let at_end = span.end().0 == self.source.sectors().0;
        let end = if at_end { span.end().0 } else { span.end().0 / unit * unit };
        if start >= end {
            return Err(Ok(())); // a discard may do nothing
        }
        Ok(span.piece(Sectors(start - span.sector.0), Sectors(end - start)))
    }

    /// Makes a request of a piece that is within the limits, or adds it to one.
    fn add_piece(&mut self, cx: &mut QueueContext<'_>, bio: u32, piece: Span) {
        let part = Part { bio, op: piece.op, at: piece.at, nr: piece.nr };
        let mut data = Segments::new();
        let mut op = piece.op;
        if op.has_data() {
            cx.bios.slice(bio, piece.at, piece.nr, &mut data);
        } else if op == Op::WriteZeroes && self.writes_zeros(piece.flags) {
            op = Op::Write;
            self.zero_data(piece.nr, &mut data);
        }
        let piece = Span { op, flags: request_flags(op, piece.flags, &self.limits), ..piece };
        if self.merge(cx, piece, part, &data) {
            return;
        }
        let id = self.make(piece, part);
        self.requests[id].take_data(data);
        self.insert(cx, id);
    }

    /// A request of its own for a piece; it has no memory yet.
    #[inline]
    fn make(&mut self, piece: Span, part: Part) -> u32 {
        let id = self.requests.take(Stage::Client, piece.op, piece.flags, piece.sector, piece.nr);
        self.requests[id].parts.push(part);
        id
    }

    /// Has a new request wait for its turn, and for what is merged with it.
    #[inline]
    fn insert(&mut self, cx: &mut QueueContext<'_>, id: u32) {
        self.requests.newest = Some(id);
        self.pending.push_back(id);
        if cx.tracer.on() {
            let what = self.requests[id].what();
            trace(cx, self.node, Action::GetRequest, what, Payload::None, Reason::None);
            trace(cx, self.node, Action::Insert, what, Payload::None, Reason::None);
        }
    }

    fn zero_data(&mut self, nr: Sectors, data: &mut Segments) {
        let zeros = self.zeros.get_or_insert_with(|| Buffer::new(ZEROS));
        let mut left = nr.byte_len();
        while left > 0 {
            let len = left.min(ZEROS);
            data.push(Segment::new(zeros.clone(), 0, len));
            left -= len;
        }
    }

    fn count_split(&self, cx: &mut QueueContext<'_>, piece: Span, reason: Reason) {
        let counter = match reason {
            Reason::MaxSegments => Counter::SplitMaxSegments,
            Reason::DiscardMax | Reason::WriteZeroesMax => Counter::SplitDiscard,
            Reason::ChunkSectors => Counter::SplitChunk,
            _ => Counter::SplitMaxSectors,
        };
        cx.counters.add(self.node, counter, 1);
        if cx.tracer.on() {
            let what = (piece.op, piece.flags, piece.sector, piece.nr);
            trace(cx, self.node, Action::Split, what, Payload::Split { new_sector: piece.end() }, reason);
        }
    }
}

/// Flags of a request: FUA means nothing where there is no cache (and for discards the core flushes afterwards).
fn request_flags(op: Op, flags: Flags, limits: &Limits) -> Flags {
    if op == Op::Write && limits.write_cache { flags } else { flags.without(Flags::FUA) }
}

fn granularity(limits: &Limits) -> Sectors {
    Sectors(u64::from(limits.discard_granularity) / SECTOR)
}

/// Sectors from the start of `span` to the next multiple of `chunk`; all of it where there is no chunk.
fn to_boundary(span: Span, chunk: Sectors) -> Sectors {
    if chunk == Sectors::ZERO {
        return span.nr;
    }
    Sectors(chunk.0 - span.sector.0 % chunk.0)
}

/// At most `max` sectors of `span`, ending at a multiple of `unit` if that is possible.
fn aligned_piece(span: Span, max: Sectors, unit: Sectors, reason: Reason) -> (Sectors, Reason) {
    if span.nr <= max {
        return (span.nr, Reason::None);
    }
    let end = (span.sector + max).0;
    let aligned = if unit.0 > 1 { end / unit.0 * unit.0 } else { end };
    let end = if aligned > span.sector.0 { aligned } else { end };
    (Sectors(end - span.sector.0), reason)
}

/// Sectors of `nr` at `at` of a bio's `data` that `max` segments hold; at least one logical block.
#[inline]
pub(crate) fn sectors_in_segments(data: &[Segment], at: Sectors, nr: Sectors, limits: &Limits) -> Sectors {
    if data.len() <= limits.max_segments as usize { nr } else { in_fewer_segments(data, at, nr, limits) }
}

fn in_fewer_segments(data: &[Segment], at: Sectors, nr: Sectors, limits: &Limits) -> Sectors {
    let max = limits.max_segments as usize;
    let mut out = Segments::new();
    slice_segments(data, at.byte_len(), nr.byte_len(), &mut out);
    if out.len() <= max {
        return nr;
    }
    let bytes: usize = out[..max].iter().map(Segment::len).sum();
    let block = limits.logical_block_size as usize;
    Sectors::from_bytes_floor((bytes / block * block).max(block) as u64)
}
