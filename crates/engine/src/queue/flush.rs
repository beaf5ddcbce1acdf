//! Flushes: one at a time on a leaf; whoever comes while it runs shares the next.
//!
//! Why sharing is right: a flush must cover what completed before the flush was submitted. The shared one is issued after
//! all who share it have arrived, so it covers what each of them must have covered.

use super::{LeafQueue, QueueContext, Stage};
use crate::bio::{Errno, Flags, Op};
use crate::counters::Counter;
use crate::units::{Sector, Sectors};

#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// Bios for the next flush.
    waiting: Vec<u32>,
    /// Bios that the flush in flight will complete.
    running: Vec<u32>,
    in_flight: bool,
}

impl Flushes {
    pub(super) fn wait(&mut self, bio: u32) {
        self.waiting.push(bio);
    }
}

impl LeafQueue {
    /// Starts a flush if somebody waits for one and none is running. It goes ahead of what is pending: it does not
    /// have to wait for writes that have not completed.
    pub(super) fn flush_if_due(&mut self, cx: &mut QueueContext<'_>) {
        if self.flushes.in_flight || self.flushes.waiting.is_empty() {
            return;
        }
        std::mem::swap(&mut self.flushes.waiting, &mut self.flushes.running);
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
        let id = self.requests.take(Stage::Flush(ticket), Op::Flush, Flags::NONE, Sector(0), Sectors::ZERO);
        self.submit(cx, id);
    }

    /// A flush has come to its end.
    pub(super) fn end_flush(&mut self, cx: &mut QueueContext<'_>, ticket: u64, result: Result<(), Errno>) {
        self.flushes.in_flight = false;
        // Another worker's flush may have failed while this one ran: what that one lost, this one cannot vouch for.
        let result = if self.shared().has_failed() { result.and(Err(Errno::EIO)) } else { result };
        match result {
            Ok(()) => {
                if let Some(tap) = cx.tap {
                    tap.flushed(self.id, ticket);
                }
            }
            Err(errno) => {
                cx.counters.add(self.node, Counter::Errors, 1);
                if self.shared().fail() {
                    log::error!(
                        "{}: flush failed: {errno}. What was written since the last flush may be lost, so writes and \
                         flushes are refused from now on; reads go on. Check the disk, then serve it again.",
                        self.source.name()
                    );
                }
            }
        }
        for bio in self.flushes.running.drain(..) {
            cx.completed.push((bio, result));
        }
        self.flush_if_due(cx);
    }
}
