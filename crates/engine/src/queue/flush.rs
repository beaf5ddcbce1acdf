//! Flushes: one at a time on a leaf, over all workers; whoever comes while it runs shares the next.
//!
//! Why sharing is right: a flush must cover what completed before the flush was submitted. The shared one is issued after
//! all who share it have arrived, so it covers what each of them must have covered.
//!
//! Why one at a time: the kernel tells of a lost write once. Of two fsyncs that overlap one may get the error and the
//! other success, though both had to cover that write. In turns, the failure is known before the next one starts. A leaf that
//! flushes by itself takes a turn too.

use super::{LeafQueue, QueueContext, Stage};
use crate::bio::{Errno, Flags, Op};
use crate::choice::Watched;
use crate::core::LeafFailure;
use crate::counters::Counter;
use crate::turn::Turn;
use crate::units::{Sector, Sectors};

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
    /// Whether nobody waits for a flush.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }
}

impl LeafQueue {
    /// Starts a flush if somebody waits for one and none is running. It goes ahead of what is pending: it does not
    /// have to wait for writes that have not completed.
    pub(super) fn flush_if_due(&mut self, cx: &mut QueueContext<'_>) {
        if self.flushes.in_flight || self.flushes.waiting.is_empty() || self.flushes.asked {
            return;
        }
        if self.flushes.turn.is_none() && self.limits.write_cache {
            self.flushes.turn = self.shared().flush_turns.try_take();
            if self.flushes.turn.is_none() {
                self.flushes.asked = true;
                cx.flush_turns.push(self.id);
                return;
            }
        }
        std::mem::swap(&mut self.flushes.waiting, &mut self.flushes.running);
        std::mem::swap(&mut self.flushes.waiting_watched, &mut self.flushes.running_watched);
        let shared = self.flushes.running.len() as u64 - 1;
        cx.counters.add(self.node, Counter::FlushMerged, shared);
        let ticket = cx.tap.map_or(0, |tap| tap.flush_started(self.id));
        if self.shared().has_failed() {
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
        self.end_batch(cx);
    }

    /// A flush has come to its end.
    pub(super) fn end_flush(&mut self, cx: &mut QueueContext<'_>, ticket: u64, result: Result<(), Errno>) {
        self.flushes.in_flight = false;
        // Where a loss was told to somebody else meanwhile, success proves nothing.
        let result = result.and_then(|()| if self.shared().has_failed() { Err(Errno::EIO) } else { Ok(()) });
        match result {
            Ok(()) => {
                if let Some(tap) = cx.tap {
                    tap.flushed(self.id, ticket);
                }
            }
            Err(errno) => {
                cx.counters.add(self.node, Counter::Errors, 1);
                if !std::mem::replace(&mut self.told_of_loss, true) {
                    cx.lost.push(self.id);
                }
                if self.shared().fail() {
                    log::error!(
                        "{}: flush failed: {errno}. What was written since the last flush may be lost, so writes and \
                         flushes are refused from now on; reads go on. Check the disk, then serve it again.",
                        self.source.name()
                    );
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
                    cx.fail(LeafFailure { bio, leaf: self.id, op, sector, nr, errno });
                }
            }
        }
        self.flush_if_due(cx);
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
