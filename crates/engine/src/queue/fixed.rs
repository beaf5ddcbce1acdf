//! Whether a request goes by memory that the kernel knows: io_uring's registered buffers.
//!
//! Else the kernel finds the pages of each request, holds them, and lets go of them at its end. What that costs, beside what such
//! buffers cost in the kernel, depends on the driver, the direction, the length and on how large the pages are, so `fixed=auto`
//! finds out (see `crate::choice`). To go by known memory is the usual way there: it takes less of the processor's time, wherever that was
//! measured, so it is the other one that has to be proved. Only requests whose whole memory is one piece of a slab, or of a guest's
//! memory that was lent to the kernel, may go so; what the kernel cannot be
//! told of (too little may be locked, no ring) goes as usual and is not compared.
//!
//! A request that `linearize` watches is not watched here as well: what is compared there must not change for another reason. It goes as its
//! class goes.

use super::{LeafQueue, QueueContext};
use crate::bio::{Flags, Op};
use crate::choice::{Fixed, Question, Way, fixed_class};
use crate::counters::Counter;
use crate::event::Reason;
use crate::units::Sectors;

impl LeafQueue {
    /// Decides whether a request that is about to be submitted goes by known memory; the reason is for its event.
    #[inline]
    pub(super) fn fix(&mut self, cx: &mut QueueContext<'_>, id: u32) -> (bool, Reason) {
        if self.limits.fixed == Fixed::Off {
            return (false, Reason::None);
        }
        let [memory] = self.requests[id].io_data() else { return (false, Reason::None) };
        if !cx.env.knows(memory) {
            return (false, Reason::None);
        }
        let (way, is_trial) = match self.limits.fixed {
            Fixed::Auto => self.choose_fixed(id),
            Fixed::On | Fixed::Off => (Way::Usual, false),
        };
        let fixed = way == Way::Usual;
        if fixed {
            cx.counters.add(self.node, Counter::Fixed, 1);
        }
        match (fixed, is_trial) {
            (_, true) => (fixed, Reason::FixedTrial),
            (true, false) => (true, Reason::Fixed),
            (false, false) => (false, Reason::None),
        }
    }

    #[inline]
    fn choose_fixed(&mut self, id: u32) -> (Way, bool) {
        match self.chooser.calm_way(Question::Fixed) {
            Some(way) => (way, false),
            None => self.look_at_memory(id),
        }
    }

    fn look_at_memory(&mut self, id: u32) -> (Way, bool) {
        let request = &self.requests[id];
        let dsync = request.op == Op::Write && request.device_flags().has(Flags::FUA);
        let class = fixed_class(request.op, dsync, request.nr.bytes());
        // What is left of a short transfer is no whole request, and says nothing about those.
        if request.watched.is_some() || request.done > Sectors::ZERO {
            return (self.chooser.leader(class), false);
        }
        let watched = self.chooser.start(class, self.in_flight, self.chooser.paid());
        self.requests[id].watched = watched;
        watched.map_or((Way::Usual, false), |watched| (watched.way(), watched.is_trial()))
    }
}
