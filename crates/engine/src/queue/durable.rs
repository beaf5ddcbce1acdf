//! How a FUA write is made durable: by the device (RWF_DSYNC), or by a flush behind it, which others may share.
//!
//! Which is faster depends on what nobody tells: whether the disk has FUA, what its flush costs, how many such writes are under way,
//! and how much others have written that a flush takes along. `fua=auto` finds out (see `crate::choice`). What is compared is the
//! time from a write's submission until it is durable, shared by all FUA writes that are open meanwhile.
//!
//! Invariants:
//! 1. A write that went without RWF_DSYNC, or of which a part did, is not reported before a flush that was started after it had
//!    completed.
//! 2. A write is watched from its first submission until it is durable or has failed.
//! 3. What has failed with RWF_DSYNC is not tried again with it before it has been tried without, which tells whether a flush has failed
//!    (`flush`).

use super::{LeafQueue, QueueContext};
use crate::bio::{Flags, Op};
use crate::choice::{Busy, Fua, Watched, Way, fua_class};
use crate::event::Reason;
use crate::units::Sectors;

/// What a queue knows of the ways in which writes are made durable.
pub(super) struct Durable {
    setting: Fua,
    busy: Busy,
    /// FUA writes that were submitted and are not durable yet, while the setting is auto.
    open: u32,
}

impl Durable {
    pub(super) fn new(setting: Fua) -> Durable {
        Durable { setting, busy: Busy::default(), open: 0 }
    }
}

impl LeafQueue {
    /// Decides how a request that is about to be submitted becomes durable; the reason is for its event.
    #[inline]
    pub(super) fn make_durable(&mut self, cx: &QueueContext<'_>, id: u32) -> Reason {
        let request = &self.requests[id];
        if request.op != Op::Write || !request.flags.has(Flags::FUA) {
            return Reason::None;
        }
        if request.flush_follows {
            return Reason::FlushFollows; // as it was settled before
        }
        match self.durable.setting {
            Fua::Dsync => Reason::None,
            Fua::Flush => {
                self.requests[id].flush_follows = true;
                Reason::FlushFollows
            }
            Fua::Auto => self.choose_fua(cx, id),
        }
    }

    fn choose_fua(&mut self, cx: &QueueContext<'_>, id: u32) -> Reason {
        let request = &self.requests[id];
        // What is left of a short transfer goes as the rest of it went.
        if request.done == Sectors::ZERO && request.watched_fua.is_none() {
            let paid = self.durable.busy.at(cx.now, self.durable.open);
            let watched = self.chooser.start(fua_class(request.nr.bytes()), self.durable.open, paid);
            self.durable.open += u32::from(watched.is_some());
            let request = &mut self.requests[id];
            request.flush_follows = watched.is_some_and(|watched| watched.way() == Way::Instead);
            request.watched_fua = watched;
        }
        let request = &self.requests[id];
        match (request.flush_follows, request.watched_fua.is_some_and(|watched| watched.is_trial())) {
            (_, true) => Reason::FuaTrial,
            (true, false) => Reason::FlushFollows,
            (false, false) => Reason::None,
        }
    }

    /// The device turns out not to take RWF_DSYNC, whatever its limits say.
    pub(super) fn lacks_dsync(&mut self) {
        if self.durable.setting != Fua::Flush {
            self.durable.setting = Fua::Flush;
            log::warn!(
                "{}: it refuses RWF_DSYNC; FUA writes have a flush behind them from now on",
                self.source.name()
            );
        }
    }

    /// A FUA write is durable, or has failed.
    pub(super) fn fua_done(&mut self, cx: &mut QueueContext<'_>, watched: Watched, well: bool, bytes: u64) {
        let paid = self.durable.busy.at(cx.now, self.durable.open);
        self.durable.open -= 1;
        self.chosen(cx, watched, (well, paid), bytes);
    }
}
