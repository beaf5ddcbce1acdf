//! Reads and writes that are done while they are asked for, by a device that never waits (null, memory): without a request.
//!
//! A request is what waits: for its turn at the device, for others to be merged with, for the rest of a short transfer. Where nothing waits there is
//! nothing to keep, and most of what a request costs is to keep it.
//!
//! Invariant: what is done so would have been one request, that goes to the device as it is, and is counted like that. Everything else goes
//! the usual way: what the limits would cut, what needs another buffer, what a flush has to follow, what could be merged, what fails.

use blockwork_memory::Segment;

use super::LeafQueue;
use super::merge::fits;
use crate::bio::{Flags, Op};
use crate::choice::{Fixed, Linearize};
use crate::counters::CounterTable;
use crate::layer::Span;
use crate::leaf::Leaf;
use crate::limits::{Limits, Merges};
use crate::units::{Sector, Sectors};

/// What a queue knows of requests that its device does at once.
pub(super) struct Immediate {
    /// Elements of memory in one, at most; none: it does nothing so.
    elements: usize,
    /// Where the one before ended, of all that came: what begins there may be merged with what comes with it.
    end: Sector,
}

impl Immediate {
    pub(super) fn new(leaf: &mut dyn Leaf, limits: &Limits) -> Immediate {
        let as_it_is =
            limits.dma_alignment <= 1 && limits.read_ahead == Sectors::ZERO && limits.fixed == Fixed::Off;
        let elements = match limits.linearize {
            _ if !as_it_is || leaf.at_once().is_none() => 0,
            Linearize::Off => limits.max_segments as usize,
            Linearize::On | Linearize::Auto => 1,
        };
        Immediate { elements, end: Sector(u64::MAX) }
    }

    /// Something came that ends there.
    #[inline]
    pub(super) fn ended(&mut self, end: Sector) {
        self.end = end;
    }
}

impl LeafQueue {
    /// Whether its device does reads and writes at once, that nothing is against.
    pub(crate) fn is_instant(&self) -> bool {
        self.immediate.elements > 0
    }

    /// Does a read or write, whose memory is all of `data`, if that can be done at once; false: nothing was done or counted.
    #[inline(always)] // what a bio is would go there by memory
    pub(crate) fn at_once(&mut self, counters: &CounterTable, span: Span, data: &[Segment]) -> bool {
        let Span { op, sector, nr, .. } = span;
        let may_merge = self.limits.merges != Merges::None && sector == self.immediate.end;
        let is_plain =
            data.len() <= self.immediate.elements && !may_merge && fits(&self.limits, op, sector, nr);
        if !is_plain || op == Op::Write && !self.takes_at_once(&span) {
            return false;
        }
        let Some(device) = self.leaf.at_once() else { return false };
        let done = device.transfer(op, sector, data);
        if op == Op::Write && self.shared.is_watched() {
            self.shared.change();
        }
        if done.is_err() {
            return false;
        }
        self.immediate.end = span.end();
        self.dirty |= op == Op::Write;
        counters.done_at_once(self.node, op, nr.bytes()); // by the worker's time, which stands still within a turn
        true
    }

    /// Whether a write is done when the device has done it.
    fn takes_at_once(&self, span: &Span) -> bool {
        self.writable(span).is_ok() && !(self.limits.write_cache && span.flags.has(Flags::FUA))
    }
}
