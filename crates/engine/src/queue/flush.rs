//! Flushes: one at a time on a leaf, over all workers; whoever comes while it runs shares the next.
//!
//! Why sharing is right: a flush must cover what completed before the flush was submitted. The shared one is issued after
//! all who share it have arrived, so it covers what each of them must have covered.
//!
//! Why one at a time: the kernel tells of a lost write once. Of two fsyncs that overlap one may get the error and the
//! other success, though both had to cover that write. In turns, the failure is known before the next one starts. A leaf that
//! flushes by itself takes a turn too.
//!
//! A FUA write that goes as RWF_DSYNC is a write with a flush behind it, by the kernel or in the device, and its error does not tell which of them has
//! failed. A flush that has failed is final, though, and what was written before it may be lost. So the write is tried once more, whole
//! and without RWF_DSYNC: if that fails, its data was to blame, and it alone fails. If that succeeds, it was the flush. This is found out in
//! a turn, as by a flush; a flush that ends while it is not yet known proves nothing, and is made again behind it. Nor is a read answered
//! meanwhile, by any worker: what it has read may be what the device has forgotten what was written over. If it was a flush, whoever is above
//! hears of that first, and reads elsewhere; if not, what was read is good, and nobody has to be told anything. (Telling of the doubt, and
//! taking that back, would begin all reads anew each time: a client whose durable writes fail one after the other could hold them up for
//! ever.) Leaves that
//! know of losses by themselves ([`LeafSource::tells_losses`](crate::LeafSource::tells_losses)) are left alone, and so are devices that have
//! FUA ([`LeafSource::has_fua`](crate::LeafSource::has_fua)), for which such a write is one command.

use std::collections::VecDeque;

use super::{LeafQueue, QueueContext, Stage, trace};
use crate::bio::{Errno, Flags, Op};
use crate::choice::Watched;
use crate::core::{End, PartFailure};
use crate::counters::Counter;
use crate::env::Env;
use crate::event::{Action, Payload, Reason};
use crate::turn::Turn;
use crate::units::{Sector, Sectors};

/// Errors by which a write is refused before anything of it is done, as where a file system has no room: no flush has failed with these.
const REFUSED: [Errno; 7] =
    [Errno::EPERM, Errno::EFAULT, Errno::EINVAL, Errno::EFBIG, Errno::ENOSPC, Errno::EROFS, Errno::EDQUOT];

#[derive(Default)]
pub(super) struct Flushes {
    /// Bios for the next flush.
    waiting: Vec<u32>,
    /// Bios that the flush in flight will complete.
    running: Vec<u32>,
    /// FUA writes among those that wait, and their bytes, of which the comparison of ways wants to know when they are durable.
    waiting_watched: Vec<(Watched, u64)>,
    /// Likewise of those that the flush in flight will complete.
    running_watched: Vec<(Watched, u64)>,
    /// FUA writes to be tried without RWF_DSYNC, each in a turn.
    doubted: VecDeque<u32>,
    /// Parts of reads that have ended well while a flush may have failed, by their bios: answered when that is known.
    withheld: Vec<u32>,
    /// A flush, or one of those.
    in_flight: bool,
    /// Held from before a flush is issued until its result is known to all workers.
    turn: Option<Turn>,
    /// A task waits for the turn.
    asked: bool,
}

impl Flushes {
    pub(super) fn wait(&mut self, bio: u32) {
        self.waiting.push(bio);
    }
    /// One of those that wait is watched.
    pub(super) fn watch(&mut self, watched: Watched, bytes: u64) {
        self.waiting_watched.push((watched, bytes));
    }
    fn swap(&mut self) {
        std::mem::swap(&mut self.waiting, &mut self.running);
        std::mem::swap(&mut self.waiting_watched, &mut self.running_watched);
    }
    /// Those that run wait again, before whoever has come meanwhile.
    fn again(&mut self) {
        self.running.append(&mut self.waiting);
        self.running_watched.append(&mut self.waiting_watched);
        self.swap();
    }
    /// Whether nobody waits for a flush, or to know of one.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.running.is_empty()
            && self.doubted.is_empty()
            && self.withheld.is_empty()
    }

    /// A part of a read has ended well, and is not answered before it is known whether a flush has failed.
    pub(super) fn withhold(&mut self, bio: u32) {
        self.withheld.push(bio);
    }
    /// A part of a read has ended well; it is answered, unless it `is_in_doubt` whether a flush has failed.
    pub(super) fn end_read(&mut self, cx: &mut QueueContext<'_>, bio: u32, is_in_doubt: bool) {
        if is_in_doubt {
            self.withhold(bio);
        } else {
            cx.completed.push((bio, Ok(())));
        }
    }
}

impl LeafQueue {
    /// Starts a flush if somebody waits for one and none is running. It goes ahead of what is pending: it does not
    /// have to wait for writes that have not completed.
    pub(super) fn flush_if_due(&mut self, cx: &mut QueueContext<'_>) {
        self.answer_withheld(cx);
        let due = !self.flushes.waiting.is_empty()
            || !self.flushes.doubted.is_empty()
            || !self.flushes.withheld.is_empty();
        if self.flushes.in_flight || !due || self.flushes.asked {
            return;
        }
        if self.flushes.turn.is_none() && self.limits.write_cache {
            self.flushes.turn = self.shared.flush_turns.try_take();
            if self.flushes.turn.is_none() {
                self.flushes.asked = true;
                cx.flush_turns.push(self.id);
                return;
            }
        }
        if let Some(id) = self.flushes.doubted.pop_front() {
            self.flushes.in_flight = true;
            self.submit(cx, id);
            return;
        }
        if self.flushes.waiting.is_empty() {
            // Reads wait for another worker's doubt, whose turn it is before ours comes again.
            (self.flushes.turn, self.flushes.asked) = (None, true);
            cx.flush_turns.push(self.id);
            return;
        }
        self.flushes.swap();
        let shared = self.flushes.running.len() as u64 - 1;
        cx.counters.add(self.node, Counter::FlushMerged, shared);
        let ticket = cx.tap.map_or(0, |tap| tap.flush_started(self.id));
        if self.shared.has_failed() {
            self.end_flush(cx, ticket, Err(Errno::EIO));
            return;
        }
        // Writes that complete from here on are not covered by it.
        self.dirty = false;
        if !self.limits.write_cache {
            // Nothing is cached: every write was durable when it completed.
            self.end_flush(cx, ticket, Ok(()));
            return;
        }
        self.flushes.in_flight = true;
        self.look_at_size();
        let id = self.requests.take(Stage::Flush(ticket), Op::Flush, Flags::NONE, Sector(0), Sectors::ZERO);
        self.submit(cx, id);
    }

    /// The turn that this queue asked for has come.
    pub(crate) fn take_flush_turn(&mut self, cx: &mut QueueContext<'_>, turn: Turn) {
        self.flushes.asked = false;
        self.flushes.turn = Some(turn);
        self.flush_if_due(cx);
        if !self.flushes.in_flight {
            // Only reads waited, and they are answered.
            self.flushes.turn = None;
        }
        self.end_batch(cx);
    }

    /// A flush has come to its end.
    pub(super) fn end_flush(&mut self, cx: &mut QueueContext<'_>, ticket: u64, result: Result<(), Errno>) {
        self.flushes.in_flight = false;
        if result.is_ok() && self.shared.is_in_doubt() {
            // It may be that the flush of a FUA write has failed, and this one had nothing left to write.
            (self.flushes.turn, self.dirty) = (None, true);
            self.flushes.again();
            self.flush_if_due(cx);
            return;
        }
        // Where a loss was told to somebody else meanwhile, success proves nothing.
        let result = result.and_then(|()| if self.shared.has_failed() { Err(Errno::EIO) } else { Ok(()) });
        match result {
            Ok(()) => {
                if let Some(tap) = cx.tap {
                    tap.flushed(self.id, ticket);
                }
            }
            Err(errno) => {
                cx.counters.add(self.node, Counter::Errors, 1);
                if self.source.tells_losses() && !self.shared.has_failed() {
                    self.dirty = true;
                } else {
                    self.lose(cx, errno);
                }
            }
        }
        // Not before the failure, if it is one, is known to all.
        self.flushes.turn = None;
        self.flushed(cx, result.is_ok());
        for bio in self.flushes.running.drain(..) {
            match result {
                Ok(()) => cx.completed.push((bio, Ok(()))),
                Err(errno) => {
                    let (op, sector, nr) = (Op::Flush, Sector(0), Sectors::ZERO);
                    cx.fail(PartFailure { bio, end: End::Leaf(self.id), op, sector, nr, errno });
                }
            }
        }
        self.flush_if_due(cx);
    }

    /// Reads that were withheld are answered, once it is known whether a flush has failed.
    fn answer_withheld(&mut self, cx: &mut QueueContext<'_>) {
        if self.flushes.withheld.is_empty() || self.shared.is_in_doubt() {
            return;
        }
        if self.shared.has_failed() {
            self.tell_of_loss(cx);
        }
        cx.completed.extend(self.flushes.withheld.drain(..).map(|bio| (bio, Ok(()))));
    }

    /// Whoever is above hears, from this worker, that this leaf may have lost something, before what was read there is answered.
    fn tell_of_loss(&mut self, cx: &mut QueueContext<'_>) {
        if !std::mem::replace(&mut self.told_of_loss, true) {
            cx.lost.push(self.id);
        }
    }

    /// A flush has failed: that is told, and final.
    pub(super) fn lose(&mut self, cx: &mut QueueContext<'_>, errno: Errno) {
        self.tell_of_loss(cx);
        if self.shared.fail() {
            log::error!(
                "{}: flush failed: {errno}. What was written since the last flush may be lost, so writes and \
                 flushes are refused from now on; reads go on. Check the disk, then serve it again.",
                self.source.name()
            );
        }
    }

    /// Whether this error of a request that has come back may be that of a flush.
    pub(super) fn may_be_a_flush(&self, env: &dyn Env, id: u32, errno: Errno) -> bool {
        let request = &self.requests[id];
        // What a device does not take, though its queue says so, has a flush behind it from then on.
        let one_command = self.source.has_fua() && !env.calls_return_late() && errno != Errno::EOPNOTSUPP;
        !REFUSED.contains(&errno)
            && request.op == Op::Write
            && request.device_flags().has(Flags::FUA)
            && !self.source.tells_losses()
            && !one_command
    }

    /// Request `id` has gone as RWF_DSYNC, and has failed: it is tried without.
    pub(super) fn doubt(&mut self, cx: &mut QueueContext<'_>, id: u32, errno: Errno) {
        cx.counters.add(self.node, Counter::Incomplete, 1);
        cx.counters.add(self.node, Counter::Requeued, 1);
        if let Some(watched) = self.requests[id].watched_fua.take() {
            self.fua_done(cx, watched, false, 0);
        }
        self.trace_complete(cx, id, errno.0);
        let request = &mut self.requests[id];
        request.restart();
        request.flush_follows = true;
        if cx.tracer.on() {
            trace(cx, self.node, Action::Requeue, self.requests[id].what(), Payload::None, Reason::Retry);
        }
        if errno == Errno::EOPNOTSUPP {
            // Neither written nor flushed: the flush that follows is asked of the device by itself, and its answer is clear.
            self.lacks_dsync();
            self.pending.push_front(id);
            return;
        }
        self.requests[id].doubt = Some(errno);
        self.shared.doubt();
        // What has come back together with it may have been read behind the loss. (Of other leaves, it waits in vain.)
        let reads = cx.completed.extract_if(.., |(bio, result)| result.is_ok() && cx.bios.is_read(*bio));
        self.flushes.withheld.extend(reads.map(|(bio, _)| bio));
        self.flushes.doubted.push_back(id);
        self.flush_if_due(cx);
    }

    /// It is known what has failed of a FUA write, and told if that was a flush.
    pub(super) fn settled(&mut self) {
        self.shared.no_doubt();
        self.flushes.in_flight = false;
        self.flushes.turn = None;
    }

    /// FUA writes that waited for a flush are durable, or lost.
    fn flushed(&mut self, cx: &mut QueueContext<'_>, well: bool) {
        let mut watched = std::mem::take(&mut self.flushes.running_watched);
        for (one, bytes) in watched.drain(..) {
            self.fua_done(cx, one, well, bytes);
        }
        self.flushes.running_watched = watched; // keeps its memory
    }
}
