//! What happens when the device is done with a request.

use blockwork_memory::Segment;

use super::refused::Refusal;
use super::{LeafQueue, Part, Plugged, QueueContext, Stage, is_large, trace};
use crate::bio::{Errno, Flags, Op};
use crate::core::{End, PartFailure};
use crate::counters::Counter;
use crate::env::{Completion, Owner};
use crate::event::{Action, Event, Payload, Reason};
use crate::layer::Span;
use crate::leaf::Ended;
use crate::units::{SECTOR, Sectors};

impl LeafQueue {
    /// An operation that was started in the environment for request `id` has completed.
    pub(crate) fn completed(&mut self, cx: &mut QueueContext<'_>, id: u32, result: i32) {
        self.end(cx, id, u32::try_from(result).map_err(|_| Errno(-result)));
        self.issue(cx);
    }

    /// An operation of the leaf's own has completed, and perhaps requests by it.
    pub(crate) fn leaf_event(&mut self, cx: &mut QueueContext<'_>, local: u32, completion: Completion) {
        let mut ended = std::mem::take(&mut self.ended);
        self.leaf.event(cx.env, local, completion, &mut ended);
        for Ended { token, result } in ended.drain(..) {
            let Owner::Request { request, .. } = token.owner() else { unreachable!("a request's token") };
            self.end(cx, request, result);
        }
        self.ended = ended; // keeps its memory
        self.issue(cx);
    }

    fn end(&mut self, cx: &mut QueueContext<'_>, id: u32, result: Result<u32, Errno>) {
        let request = &self.requests[id];
        let whole = request.nr.bytes();
        let has_data = request.op.has_data();
        self.finish(cx, id, result.map(|bytes| if has_data { bytes.into() } else { whole }));
    }

    /// Request `id` has transferred so many bytes, or failed.
    pub(super) fn finish(&mut self, cx: &mut QueueContext<'_>, id: u32, outcome: Result<u64, Errno>) {
        if self.chooser.looks() {
            self.chooser.ends(cx.now, self.in_flight);
        }
        self.heed(cx, id, outcome);
        self.in_flight -= 1;
        if self.chooses && self.chooser.ended(cx.now, self.in_flight) {
            self.window_done(cx);
        }
        let request = &mut self.requests[id];
        request.state_done();
        self.throttle.ends(&self.shared.pressure, request);
        if request.op.is_write() && self.counts_changes() {
            self.shared.change();
        }
        match outcome {
            // Interrupted before anything happened: the same once more.
            Err(Errno::EINTR | Errno::EAGAIN) => {
                self.requests[id].unbounce(Sectors::ZERO);
                self.requeue(cx, id, Reason::Retry);
            }
            Err(errno) if self.may_be_a_flush(cx.env, id, errno) => self.doubt(cx, id, errno),
            Err(errno) => self.failed(cx, id, Refusal::Errno(errno)),
            Ok(bytes) if bytes < self.requests[id].nr.bytes() => self.short(cx, id, bytes),
            Ok(_) => self.succeeded(cx, id),
        }
    }

    fn requeue(&mut self, cx: &mut QueueContext<'_>, id: u32, reason: Reason) {
        cx.counters.add(self.node, Counter::Incomplete, 1);
        cx.counters.add(self.node, Counter::Requeued, 1);
        if cx.tracer.on() {
            trace(cx, self.node, Action::Requeue, self.requests[id].what(), Payload::None, reason);
        }
        self.pending.push_front(id);
    }

    /// Less than asked: ask for the rest, if there was anything.
    fn short(&mut self, cx: &mut QueueContext<'_>, id: u32, bytes: u64) {
        let block = u64::from(self.limits.logical_block_size);
        let whole = Sectors(bytes / block * block / SECTOR);
        if whole == Sectors::ZERO {
            let request = &self.requests[id];
            if bytes > 0 && request.io_data().iter().any(Segment::is_gone) {
                // The memory ends within the first block, not the device.
                self.failed(cx, id, Refusal::Errno(Errno::EFAULT));
                return;
            }
            self.transferred_nothing(id);
            self.failed(cx, id, Refusal::Nothing);
            return;
        }
        self.requests[id].advance(whole);
        self.requeue(cx, id, Reason::Short);
    }

    fn succeeded(&mut self, cx: &mut QueueContext<'_>, id: u32) {
        let request = &mut self.requests[id];
        request.unbounce(request.nr);
        let (sector, nr) = request.whole();
        let (op, stage) = (request.op, request.stage);
        let took = cx.now.since(request.issued);
        cx.counters.latency(self.node, op, took);
        if op == Op::Read && is_large(request) {
            self.shared.distance.saw(took, request.nr.bytes(), request.alone);
        }
        self.throttle.succeeded(&self.shared.pressure, cx.now, request);
        self.trace_complete(cx, id, 0);
        match stage {
            Stage::Free => unreachable!("a free request is not in flight"),
            Stage::Flush(ticket) => {
                self.requests.give_back(id);
                self.end_flush(cx, ticket, Ok(()));
                return;
            }
            Stage::ReadAhead(slot) => {
                self.requests.give_back(id);
                self.end_read_ahead(cx, slot, true);
                return;
            }
            Stage::Client => {}
        }
        if op.is_write() {
            self.dirty = true;
            if let Some(tap) = cx.tap {
                let durable = self.requests[id].device_flags();
                tap.altered(self.id, op, durable, sector, nr, &self.requests[id].data);
            }
        }
        if let Some(errno) = self.requests[id].doubt.take() {
            // The data can be written, so it was the flush that failed; nor will the one succeed that this write waits for now.
            self.lose(cx, errno);
            self.settled();
        }
        let request = &mut self.requests[id];
        let must_flush = request.flush_follows;
        // Mostly there is nothing to take.
        if request.watched_fua.is_some()
            && let Some(watched) = request.watched_fua.take()
        {
            match must_flush {
                true => self.flushes.watch(watched, nr.bytes()),
                false => self.fua_done(cx, watched, true, nr.bytes()),
            }
        }
        let is_withheld = op == Op::Read && self.shared.is_in_doubt();
        let parts = &self.requests[id].parts[..];
        let bios = parts.iter().map(|part| part.bio);
        if must_flush {
            bios.for_each(|bio| self.flushes.wait(bio));
        } else if is_withheld {
            bios.for_each(|bio| self.flushes.withhold(bio));
        } else if let [only] = parts {
            cx.completed.push((only.bio, Ok(())));
        } else {
            cx.completed.extend(bios.map(|bio| (bio, Ok(()))));
        }
        self.requests.give_back(id);
        if must_flush || is_withheld {
            self.flush_if_due(cx);
        }
    }

    fn failed(&mut self, cx: &mut QueueContext<'_>, id: u32, refusal: Refusal) {
        let errno = refusal.errno();
        cx.counters.add(self.node, Counter::Incomplete, 1);
        let request = &mut self.requests[id];
        request.unbounce(Sectors::ZERO);
        if let Some(watched) = request.watched_fua.take() {
            self.fua_done(cx, watched, false, 0);
        }
        self.trace_complete(cx, id, errno.0);
        let settled = self.requests[id].doubt.take().is_some();
        if settled {
            // The data cannot be written: that explains why it could not be made durable.
            self.settled();
        }
        let request = &self.requests[id];
        match request.stage {
            Stage::Free => unreachable!("a free request is not in flight"),
            Stage::Flush(ticket) => {
                self.requests.give_back(id);
                self.end_flush(cx, ticket, Err(errno));
            }
            Stage::ReadAhead(slot) => {
                self.requests.give_back(id);
                self.end_read_ahead(cx, slot, false);
            }
            Stage::Client if request.op == Op::WriteZeroes && errno == Errno::EOPNOTSUPP => {
                // The device said that it can, and cannot (as file systems do on some files): write zeros from now on, for
                // those of this kind.
                *self.lacking.kind(request.flags) = true;
                self.retry_parts(cx, id);
            }
            Stage::Client if request.parts.len() > 1 => self.retry_parts(cx, id),
            Stage::Client => {
                cx.counters.add(self.node, Counter::Errors, 1);
                self.complain(id, refusal, cx.now);
                let (bio, op, (sector, nr)) = (request.parts[0].bio, request.op, request.whole());
                cx.fail(PartFailure { bio, end: End::Leaf(self.id), op, sector, nr, errno });
                self.requests.give_back(id);
            }
        }
        if settled {
            self.flush_if_due(cx);
        }
    }

    /// Takes a request apart; each part goes alone, cut anew.
    fn retry_parts(&mut self, cx: &mut QueueContext<'_>, id: u32) {
        let (mut sector, _) = self.requests[id].whole();
        let flags = self.requests[id].flags.with(Flags::NO_MERGE);
        let parts: Vec<Part> = self.requests[id].parts.clone();
        if cx.tracer.on() {
            trace(cx, self.node, Action::Requeue, self.requests[id].what(), Payload::None, Reason::Retry);
        }
        self.requests.give_back(id);
        self.requests.start_batch();
        cx.counters.add(self.node, Counter::Requeued, parts.len() as u64);
        for Part { bio, op, at, nr } in parts {
            let span = Span { op, flags, sector, nr, at };
            self.admit_plain(cx, Plugged { bio, span });
            sector = sector + nr;
        }
    }

    pub(super) fn trace_complete(&self, cx: &mut QueueContext<'_>, id: u32, errno: i32) {
        if !cx.tracer.on() {
            return;
        }
        let request = &self.requests[id];
        let (sector, nr) = request.whole();
        cx.tracer.push(Event {
            time: cx.now,
            node: self.node,
            action: Action::Complete,
            op: request.op,
            flags: request.flags,
            sector,
            nr,
            payload: Payload::None,
            reason: Reason::None,
            errno: u16::try_from(errno).unwrap_or(u16::MAX),
        });
    }
}
