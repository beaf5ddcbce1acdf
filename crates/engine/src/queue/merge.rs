//! Merging: a piece joins a request that it adjoins.
//!
//! With `nomerges` 0 a piece is tried against the newest request of its batch (the batch is sorted, so that finds every
//! back merge within it) and against the newest eight that still wait for the device. With 1 only against the newest.
//! Never merged: other operations or flags, across FUA, across a chunk_sectors boundary, beyond max_sectors,
//! max_segments or the discard limits, and what asked not to be.

use blockwork_memory::Segment;

use super::{LeafQueue, Part, QueueContext, Stage, trace};
use crate::bio::{Flags, Op};
use crate::counters::Counter;
use crate::event::{Action, Payload, Reason};
use crate::layer::Span;
use crate::limits::{Limits, Merges};
use crate::units::{Sector, Sectors};

/// How many of the waiting requests are looked at, as in the kernel's `blk_attempt_bio_merge`.
const LOOK_BACK: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Back,
    Front,
}

impl LeafQueue {
    /// Adds a piece to a request, if there is one that it adjoins.
    pub(super) fn merge(
        &mut self,
        cx: &mut QueueContext<'_>,
        piece: Span,
        part: Part,
        data: &[Segment],
    ) -> bool {
        if !self.may_merge || self.limits.merges == Merges::None || piece.flags.has(Flags::NO_MERGE) {
            return false;
        }
        let newest = self.requests.newest;
        if let Some(id) = newest
            && self.try_merge(cx, id, piece, part, data)
        {
            return true;
        }
        if self.limits.merges == Merges::Simple || self.waiting() == 0 {
            return false;
        }
        for back in 0..LOOK_BACK.min(self.waiting()) {
            let id = self.waiting_from_back(back);
            if Some(id) != newest && self.try_merge(cx, id, piece, part, data) {
                return true;
            }
        }
        false
    }

    fn try_merge(
        &mut self,
        cx: &mut QueueContext<'_>,
        id: u32,
        piece: Span,
        part: Part,
        data: &[Segment],
    ) -> bool {
        let request = &mut self.requests[id];
        let end = if request.end() == piece.sector {
            End::Back
        } else if piece.end() == request.sector {
            End::Front
        } else {
            return false;
        };
        // Read-ahead and requeued requests are not touched: they have progress or a slot of their own.
        if request.stage != Stage::Client
            || request.done > Sectors::ZERO
            || request.flags.has(Flags::NO_MERGE)
        {
            return false;
        }
        if request.op != piece.op || request.flags != piece.flags {
            return false;
        }
        let start = if end == End::Back { request.sector } else { piece.sector };
        let nr = request.nr + piece.nr;
        if !fits(&self.limits, piece.op, start, nr) {
            return false;
        }
        let (before, after) = match end {
            End::Back => (request.data.last(), data.first()),
            End::Front => (data.last(), request.data.first()),
        };
        let joined = before.zip(after).is_some_and(|(a, b)| a.clone().extend(b));
        if request.data.len() + data.len() - usize::from(joined) > self.limits.max_segments as usize {
            return false;
        }
        match end {
            End::Back => {
                request.parts.push(part);
                request.push_data(data);
            }
            End::Front => {
                request.parts.insert(0, part);
                let behind = std::mem::take(&mut request.data);
                request.push_data(data);
                request.push_data(&behind);
            }
        }
        (request.sector, request.nr) = (start, nr);
        self.count_merge(cx, end, piece);
        true
    }

    fn count_merge(&self, cx: &mut QueueContext<'_>, end: End, piece: Span) {
        let (counter, action) = match end {
            End::Back => (Counter::BackMerged, Action::BackMerge),
            End::Front => (Counter::FrontMerged, Action::FrontMerge),
        };
        cx.counters.add(self.node, counter, 1);
        if cx.tracer.on() {
            let what = (piece.op, piece.flags, piece.sector, piece.nr);
            trace(cx, self.node, action, what, Payload::None, Reason::None);
        }
    }
}

/// Whether one request may cover that range.
pub(super) fn fits(limits: &Limits, op: Op, start: Sector, nr: Sectors) -> bool {
    match op {
        Op::Flush => false,
        Op::Discard => nr <= limits.max_discard,
        Op::WriteZeroes => nr <= limits.max_write_zeroes,
        Op::Read | Op::Write => {
            let chunk = limits.chunk_sectors.0;
            nr <= limits.max_sectors && (chunk == 0 || start.0 / chunk == (start + nr - Sectors(1)).0 / chunk)
        }
    }
}
