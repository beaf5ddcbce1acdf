//! Memory that does not go to the device as it is: a buffer of ours goes instead, and data is copied.
//!
//! There are three reasons: the device cannot take it (`dma_alignment`), the device cannot take so many elements of a single block
//! (`max_segments`), or its elements cost the device more than a copy costs us (`linearize`, see `crate::choice`).

use super::{LeafQueue, QueueContext, trace};
use crate::bio::{Flags, Op};
use crate::choice::{Linearize, Question, Way, linearize_class};
use crate::counters::Counter;
use crate::event::{Action, Payload, Reason};
use crate::units::Sectors;

/// Bytes of copies under way that the device does not demand, by one worker on one leaf; what is beyond goes as it is.
const COPIES_MAX: usize = 64 << 20;

/// What a queue knows of the ways in which requests of several elements can go.
pub(super) struct Bounces {
    setting: Linearize,
    /// Some requests may be copied that the device could take, or have to be looked at. Not while all go as they are: then that is all that is asked.
    asks: bool,
    /// Bytes of copies under way that are not demanded by the device.
    pub(super) copies: usize,
}

impl Bounces {
    pub(super) fn new(setting: Linearize) -> Bounces {
        Bounces { setting, asks: setting != Linearize::Off, copies: 0 }
    }
}

impl LeafQueue {
    /// A calm may have begun or ended: in one, nobody has to look at requests, which may go as they are.
    #[cold]
    pub(super) fn ask_of_copies(&mut self) {
        self.bounces.asks = match self.bounces.setting {
            Linearize::Off => false,
            Linearize::On => true,
            Linearize::Auto => !self.chooser.is_as_usual(Question::Linearize),
        };
    }

    /// Decides in which form the memory of a request goes to the device. The reason is for its event, where it is not copied: a copy has an
    /// event of its own.
    #[inline]
    pub(super) fn bounce_if_needed(&mut self, cx: &mut QueueContext<'_>, id: u32) -> Reason {
        let mask = u64::from(self.limits.dma_alignment - 1);
        let request = &self.requests[id];
        // A single block in more pieces than the device takes cannot be cut: it is gathered.
        let too_many = request.io_data().len() > self.limits.max_segments as usize;
        if too_many || (mask != 0 && request.is_misaligned(mask)) {
            let reason = if too_many { Reason::MaxSegments } else { Reason::Alignment };
            self.bounce(cx, id, Counter::Bounced, reason);
            return Reason::None;
        }
        if self.bounces.asks { self.linearize(cx, id) } else { Reason::None }
    }

    fn bounce(&mut self, cx: &mut QueueContext<'_>, id: u32, counter: Counter, reason: Reason) {
        self.requests[id].bounce(cx.pool);
        cx.counters.add(self.node, counter, 1);
        if cx.tracer.on() {
            trace(cx, self.node, Action::Bounce, self.requests[id].what(), Payload::None, reason);
        }
    }

    /// A request that the device can take as it is.
    fn linearize(&mut self, cx: &mut QueueContext<'_>, id: u32) -> Reason {
        let request = &self.requests[id];
        if request.io_data().len() < 2 {
            return Reason::None;
        }
        let bytes = request.nr.byte_len();
        if self.bounces.copies + bytes > COPIES_MAX {
            return Reason::None;
        }
        let mut reason = Reason::Linearize;
        if self.bounces.setting == Linearize::Auto {
            // What is left of a short transfer is no whole request, and says nothing about those.
            if request.done > Sectors::ZERO {
                return Reason::None;
            }
            if self.chooser.calm_way(Question::Linearize).is_none() {
                let dsync = request.op == Op::Write && request.device_flags().has(Flags::FUA);
                let class = linearize_class(request.op, dsync, request.io_data(), bytes as u64);
                let paid = self.chooser.paid();
                let Some(watched) = self.chooser.start(class, self.in_flight, paid) else {
                    return Reason::None;
                };
                self.requests[id].watched = Some(watched);
                if watched.is_trial() {
                    reason = Reason::LinearizeTrial;
                }
                if watched.way() == Way::Usual {
                    return if watched.is_trial() { reason } else { Reason::None };
                }
            }
        }
        self.bounces.copies += bytes;
        self.requests[id].copied = bytes;
        self.bounce(cx, id, Counter::Linearized, reason);
        Reason::None
    }
}
