//! One virtqueue as a port of a worker: requests in, bios out, answers back.
//!
//! A turn answers what has finished, all of it with one call of the driver's (none, if that has said that it will look by
//! itself), then takes what is new, and answers of that what was done at once ([`Context::run`]), in batches. The data of a request is the guest's
//! memory itself, all the way to the kernel. While there is more to take, the driver is not asked to call. When there is nothing, and all is
//! answered, the ring is looked at for a microsecond or two, where that pays (`batch`); when there is nothing still, and one request under way at
//! most, the worker looks at the ring for a moment, if that pays (`Uring::look_at`); likewise when the ring was full, no device has anything to
//! do, and the driver has been called. Then the driver is asked, and the ring looked at once more.
//!
//! Invariants:
//! 1. A request that was taken is answered once, also when it is malformed; it is marked as in flight until then.
//! 2. With a write cache that the driver does not know of (no flush agreed), a write is durable when it is answered.
//!    With one, it outlives this server where the next one goes on with the ring: the driver would not hear that it has to write once more,
//!    and its next flush would succeed.
//! 3. At most as many requests as the ring has descriptors, and [`BYTES_MAX`] bytes (one more request may go beyond, with as many
//!    once more), are under way; the rest stays in the ring. What is in small pieces counts as more than it is ([`PIECE_BYTES`]), as we keep a
//!    record of each.
//! 4. What is written of the guest's memory is marked, where the front end wants that (see `dirty`).
//! 5. Calls of the driver's are unheard only where the ring is looked at afterwards, before the worker sleeps: in the same turn, or in the
//!    one that is asked for where something was taken.
//! 6. Where the guest's memory is pinned, it is lent to io_uring from the beginning of the port to its end, and what is read into it is marked all the same.
//! 7. A ring that is broken is not touched any more but to answer what is in flight; the front end is told by its error
//!    eventfd, and we by the log, as far as `complaints` lets it. Nobody else notices.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use blockwork_engine::{
    Bio, Completion, Context, Done, Errno, Flags, Op, Port, PortState, RingStats, SECTOR, Sector, Sectors,
    VolumeId,
};
use blockwork_format::virtio::blk::{ID_BYTES, Range, request, status};
use blockwork_memory::{GuestLayout, GuestMemory, GuestRange, Segment, Segments, bytes_in};
use blockwork_uring::{Signal, Uring, more};
use rustix::io::{ReadWriteFlags, preadv2};
use slab::Slab;

use super::batch::{self, Batches};
use super::control::{Command, Presence};
use super::dirty::DirtyLog;
use super::parts::{AT_A_TIME, BIO_BYTES_MAX, Part, Parts, REQUEST_BYTES_MAX};
use super::request::{Request, add_segments, segments};
use super::ring::{Chain, Head, Ring, RingError};
use crate::complaints::Complaints;

/// Data of the requests of one queue that are under way, bytes.
pub const BYTES_MAX: usize = 128 << 20;
/// What a piece of a request's data counts as against [`BYTES_MAX`], at least, and a range of a discard or write-zeroes. Several
/// times what is kept of one while it is under way.
const PIECE_BYTES: usize = 512;
const RANGE_BYTES: usize = 4096;
/// Ranges in a discard or write-zeroes.
pub const RANGES_MAX: u32 = 64;

/// The port's own operations: the driver's calls.
const KICK: u32 = 0;
/// One of our calls has completed.
const CALL: u32 = 1;
/// The worker has looked at the ring.
const LOOK: u32 = 2;
/// The front end was told that the ring is broken.
const TOLD: u32 = 3;

/// What a queue is made of.
pub(super) struct QueueParts {
    /// Which queue of its device.
    pub(super) index: u32,
    /// For people: the export.
    pub(super) name: String,
    pub(super) volume: VolumeId,
    pub(super) layout: GuestLayout,
    pub(super) ring: RingParts,
    /// If what is written is to be marked.
    pub(super) log: Option<LogParts>,
    /// If the memory is lent to io_uring: where it is counted how much of it is locked.
    pub(super) locked: Option<Arc<AtomicU64>>,
    pub(super) kick: Arc<OwnedFd>,
    pub(super) call: Option<Arc<OwnedFd>>,
    pub(super) error: Option<Arc<OwnedFd>>,
    /// Whether a flush is agreed upon.
    pub(super) has_flush: bool,
    /// The front end keeps marks of what is in flight: the next server goes on with the ring, and its driver hears of nothing.
    pub(super) is_resumable: bool,
    pub(super) id: [u8; ID_BYTES],
    /// About broken rings.
    pub(super) complaints: Arc<Complaints>,
    pub(super) stats: Arc<RingStats>,
    pub(super) presence: Presence,
}

/// How to make the log of written pages, likewise.
pub(super) type LogParts = Box<dyn FnOnce(&GuestLayout) -> DirtyLog + Send>;

/// How to make the ring, on the worker: what it is made of is not for other threads. What takes long about it is done by then.
pub(super) type RingParts = Box<dyn FnOnce(&GuestLayout) -> Result<Ring, RingError> + Send>;

/// Where the answer to a request goes.
#[derive(Clone, Copy)]
struct Asker {
    head: Head,
    status: GuestRange,
}

/// What a look at the ring has brought.
enum Taken {
    /// Nothing.
    None,
    /// So many requests. There may be more.
    Some(usize),
    /// So many requests, and for now there are no more.
    Last(usize),
}

/// A request that is under way.
struct InFlight {
    from: Asker,
    /// Bytes that are written when it succeeds, besides the status.
    room: u32,
    /// Bytes that count against [`BYTES_MAX`].
    bytes: usize,
    /// Bios that have not completed.
    bios: u32,
    /// What is to be submitted when one has.
    rest: Option<Box<Parts>>,
    error: Option<Errno>,
}

/// A virtqueue that is served.
pub(super) struct QueuePort {
    index: u32,
    name: String,
    volume: VolumeId,
    layout: GuestLayout,
    memory: GuestMemory,
    ring: Option<Ring>,
    log: Option<DirtyLog>,
    locked: Option<Arc<AtomicU64>>,
    chain: Chain,
    in_flight: Slab<InFlight>,
    bytes: usize,
    kick: Arc<OwnedFd>,
    call: Option<Signal>,
    error: Option<Signal>,
    has_flush: bool,
    is_resumable: bool,
    id: [u8; ID_BYTES],
    complaints: Arc<Complaints>,
    stats: Arc<RingStats>,
    presence: Presence,
    batches: Batches,
    /// Of so many of the requests that are taken next, the processor has been told to fetch what is looked at first.
    near: usize,
    /// The ring was full by what was taken last.
    filled: bool,
    /// The driver was called, and nothing was taken since.
    called: bool,
    /// Answers since the driver could last see them.
    answers: u32,
    /// The driver has been asked to call.
    calls_wanted: bool,
    /// The worker looks at the ring, or has done so since the last request was taken or done.
    looked: bool,
    /// The worker has not said yet what it saw.
    looking: bool,
    /// Requests of before a restart are still to be taken up.
    resuming: bool,
    watching: bool,
    stopping: bool,
    broken: bool,
    /// It is broken, and the front end has not been told.
    untold: bool,
}

impl QueuePort {
    /// The port. A ring that cannot be is broken from the beginning.
    pub(super) fn new(parts: QueueParts) -> QueuePort {
        let QueueParts { layout, ring, log, .. } = parts;
        let made = ring(&layout);
        let log = log.map(|log| log(&layout));
        let mut port = QueuePort {
            index: parts.index,
            name: parts.name,
            volume: parts.volume,
            memory: GuestMemory::new(&layout),
            layout,
            ring: None,
            log,
            locked: parts.locked,
            chain: Chain::default(),
            in_flight: Slab::new(),
            bytes: 0,
            kick: parts.kick,
            call: parts.call.map(Signal::new),
            error: parts.error.map(Signal::new),
            has_flush: parts.has_flush,
            is_resumable: parts.is_resumable,
            id: parts.id,
            complaints: parts.complaints,
            stats: parts.stats,
            presence: parts.presence,
            batches: Batches::default(),
            near: 0,
            filled: false,
            called: false,
            answers: 0,
            // A server of before may have left word that no call is wanted.
            calls_wanted: false,
            looked: true,
            looking: false,
            resuming: true,
            watching: false,
            stopping: false,
            broken: false,
            untold: false,
        };
        match made {
            Ok(ring) => port.ring = Some(ring),
            Err(error) => port.break_off(&error),
        }
        port
    }

    fn obey(&mut self, cx: &mut Context<'_, Uring>) {
        for command in self.presence.commands() {
            match command {
                Command::Call(file) => {
                    let before = std::mem::replace(&mut self.call, file.map(Signal::new));
                    before.into_iter().for_each(|call| cx.env.end_signal(call));
                    // What was announced by the old one may not have been heard.
                    self.call_driver(cx, false);
                }
                Command::Error(file) => {
                    let before = std::mem::replace(&mut self.error, file.map(Signal::new));
                    before.into_iter().for_each(|error| cx.env.end_signal_heard(error));
                    // Whoever asks to be told may do so after it broke.
                    self.untold |= self.broken;
                }
                Command::Stop => self.stopping = true,
            }
        }
    }

    /// Calls the driver, by the next system call, or by one that is made for that.
    fn call_driver(&mut self, cx: &mut Context<'_, Uring>, now: bool) {
        let token = cx.token(CALL);
        let Some(call) = &mut self.call else { return };
        let sent = if now { cx.env.signal_now(token, call) } else { cx.env.signal(token, call) };
        if !sent {
            log::debug!("{}: queue {}: its calls do not go through", self.name, self.index);
        }
    }

    #[cold]
    fn break_off(&mut self, error: &RingError) {
        if std::mem::replace(&mut self.broken, true) {
            return;
        }
        self.complaints.warn(blockwork_uring::clock(), || {
            format!(
                "{}: queue {} is broken and not served any more: {error}; reset the device in the guest, and have its driver \
                 mended",
                self.name, self.index
            )
        });
        self.untold = true;
    }

    /// Tells the front end that the ring is broken.
    #[cold]
    fn tell_error(&mut self, cx: &mut Context<'_, Uring>) {
        self.untold = false;
        let token = cx.token(TOLD);
        if let Some(error) = &mut self.error {
            // Nobody may listen; and to whom should a failure be told? It goes through the ring, as what takes no more would have
            // the worker wait.
            let _ = cx.env.signal(token, error);
        }
    }

    /// Lets the driver see what is done; `at_once` says that it was done since it was taken in this turn.
    #[inline]
    fn publish(&mut self, cx: &mut Context<'_, Uring>, at_once: bool) {
        if self.answers == 0 {
            return;
        }
        let Some(ring) = &mut self.ring else { return };
        let wanted = self.batches.publish(|| ring.publish(), blockwork_uring::clock);
        self.log.iter().for_each(DirtyLog::ring);
        let is_full = ring.is_full();
        let answers = std::mem::take(&mut self.answers);
        if wanted {
            let now = at_once || ring.has_more() || cx.more_is_due();
            self.called = true;
            // Before anything else: it may still be awake.
            self.call_driver(cx, now);
            if now {
                // Not when there is nothing else to do, but while we work on what is there; nor when a driver has fallen asleep that was answered
                // before it could. If the driver has called for what is there, the next look finds it in the ring (invariant 5).
                let kick = cx.token(KICK);
                cx.env.unhear(kick);
            }
        }
        self.stats.answered(answers, is_full, cx.now());
    }

    /// Takes requests, and answers what was done of them at once, batch by batch: a turn is for more of them than should wait for each other's
    /// answers. Tells whether that was all there is, and all of it is done.
    fn serve(&mut self, cx: &mut Context<'_, Uring>) -> bool {
        if self.layout.is_torn() {
            self.break_off(&RingError::Torn);
            return false;
        }
        let (mut left, mut taken) = (batch::TURN, Taken::None);
        while left > 0 {
            taken = self.take(cx, left);
            let at_once = self.answers > 0;
            self.publish(cx, true);
            match taken {
                Taken::Some(count) | Taken::Last(count) if at_once && self.goes_on(cx) => left -= count,
                Taken::Some(count) if at_once => {
                    taken = Taken::Last(count);
                    break;
                }
                _ => break,
            }
        }
        match taken {
            Taken::None => false,
            Taken::Last(_) if self.in_flight.is_empty() => true,
            Taken::Some(_) | Taken::Last(_) => {
                // There is more, or may be by then. Nor has anybody asked the driver to call: a fast device has answered by that turn, which
                // comes before the worker sleeps.
                cx.wake_me();
                false
            }
        }
    }

    /// Takes requests until there are none, a batch is full, or enough are under way; `room` at most.
    fn take(&mut self, cx: &mut Context<'_, Uring>, room: usize) -> Taken {
        let most = self.batches.size(|| self.ring.as_ref().map_or(0, Ring::waiting)).min(room);
        let mut taken = 0;
        let mut was_last = false;
        let is_far = self.batches.is_far();
        while taken < most && !self.takes_no_more() {
            if is_far {
                self.bring_near();
            }
            match self.take_one(cx) {
                Ok(true) => taken += 1,
                Ok(false) if taken > 0 => {
                    was_last = true;
                    break;
                }
                Ok(false) => {
                    if self.stopping || self.rest(cx) {
                        break;
                    }
                }
                Err(error) => self.break_off(&error),
            }
        }
        if taken == 0 {
            return Taken::None;
        }
        self.batches.took(self.answers > 0);
        cx.env.expect(taken);
        let count = u32::try_from(taken).expect("at most a batch");
        let is_full = self.ring.as_ref().is_some_and(Ring::is_full);
        (self.filled, self.called) = (is_full, false);
        if self.stats.taken(count, is_full, cx.now()) {
            cx.ring_is_full(self.volume, &self.stats);
        }
        if was_last { Taken::Last(taken) } else { Taken::Some(taken) }
    }

    /// The next request is taken, for which the driver's processor is far away.
    fn bring_near(&mut self) {
        if self.near == 0 {
            self.near = self.ring.as_ref().map_or(0, |ring| ring.bring_near(&self.memory));
        }
        self.near = self.near.saturating_sub(1);
    }

    /// Whether there is more to take, now that all that was taken is answered, or the driver brings more within a moment: it works on
    /// answers while we do what is next, and leaving the turn for the time that it needs takes longer than that.
    #[inline]
    fn goes_on(&mut self, cx: &mut Context<'_, Uring>) -> bool {
        let Some(ring) = &self.ring else { return false };
        // Whoever takes the next one sees to what ends the ring.
        if self.resuming || self.takes_no_more() || ring.has_more() {
            return true;
        }
        if !self.in_flight.is_empty() || self.stopping || !self.batches.lingers.is_due() {
            return false;
        }
        let has_more = (0..batch::LINGER).any(|_| {
            std::hint::spin_loop();
            ring.has_more()
        });
        if !has_more {
            self.batches.lingers.in_vain();
            return false;
        }
        self.batches.lingers.paid();
        if self.batches.rested() {
            self.call_driver(cx, true);
        }
        true
    }

    fn takes_no_more(&self) -> bool {
        self.is_over() || self.broken || self.bytes >= BYTES_MAX
    }

    /// Whether nothing is taken any more: it is to stop, and has taken up what was taken before a restart. Where the ring goes on
    /// counts that as taken, so that nobody after us would look for it.
    fn is_over(&self) -> bool {
        self.stopping && (self.broken || !self.resuming)
    }

    fn take_one(&mut self, cx: &mut Context<'_, Uring>) -> Result<bool, RingError> {
        let Some(ring) = &mut self.ring else { return Ok(false) };
        if self.resuming {
            self.resuming = ring.resume(&self.memory, &mut self.chain)?;
            if self.resuming {
                self.start(cx)?;
                return Ok(true);
            }
        }
        if self.stopping || !ring.next(&self.memory, &mut self.chain)? {
            return Ok(false);
        }
        self.looked = self.looking;
        if self.calls_wanted {
            ring.disable_calls();
            self.log.iter().for_each(DirtyLog::ring);
            self.calls_wanted = false;
        }
        self.start(cx)?;
        Ok(true)
    }

    /// There is nothing to take: has the worker look for more, or asks the driver to call. Tells whether there is still nothing.
    fn rest(&mut self, cx: &mut Context<'_, Uring>) -> bool {
        let Some(ring) = &mut self.ring else { return true };
        // Where a device still has something to do, that comes first, and the refill may wait.
        let refill = self.filled && self.called && !self.looked && cx.devices_are_idle();
        if self.looking || self.calls_wanted && !refill {
            return true;
        }
        if refill || !self.looked && self.in_flight.len() <= 1 {
            if std::mem::take(&mut self.calls_wanted) {
                ring.disable_calls();
                self.log.iter().for_each(DirtyLog::ring);
            }
            (self.looked, self.looking, self.called) = (true, true, false);
            let token = cx.token(LOOK);
            let (buffer, offset, seen) = ring.tell_tale();
            if refill {
                cx.env.look_at_refill(token, buffer, offset, seen);
            } else {
                cx.env.look_at(token, buffer, offset, seen);
            }
            return !ring.has_more();
        }
        self.calls_wanted = true;
        let has_more = ring.enable_calls();
        self.log.iter().for_each(DirtyLog::ring);
        !has_more
    }

    /// Starts the request in `self.chain`.
    #[inline]
    fn start(&mut self, cx: &mut Context<'_, Uring>) -> Result<(), RingError> {
        let (head, is_scattered) = (self.chain.head, self.chain.is_scattered);
        let Some(request) = Request::take(&mut self.chain, &self.memory) else {
            return Err(Request::too_short(&self.chain));
        };
        let (to, sector) = (Asker { head, status: request.status }, request.header.sector);
        if is_scattered {
            self.answer(to, 0, status::IOERR);
            return Ok(());
        }
        match request.header.kind {
            kind @ (request::IN | request::OUT) => {
                let (op, ranges) =
                    if kind == request::IN { (Op::Read, request.room) } else { (Op::Write, request.sent) };
                // In its place from the beginning: to move a list that was just written waits until all writes before it are done.
                let (sector, nr, data) = (Sector(sector), Sectors::ZERO, Segments::new());
                let mut bio = Bio { op, flags: Flags::NONE, sector, nr, data };
                add_segments(&self.memory, ranges, &mut bio.data);
                self.transfer(cx, to, &mut bio);
            }
            request::FLUSH => {
                let cookie = self.begin(to, 0, 0, 1);
                cx.submit(self.volume, cookie, Bio::flush());
            }
            request::GET_ID => {
                let room = segments(&self.memory, request.room);
                self.tell_id(to, &room);
            }
            kind @ (request::DISCARD | request::WRITE_ZEROES) => {
                let max = usize::try_from(RANGES_MAX).expect("a small number");
                let ranges = request.ranges(&self.memory, max);
                let op = if kind == request::DISCARD { Op::Discard } else { Op::WriteZeroes };
                self.ranges(cx, to, ranges, op);
            }
            _ => self.answer(to, 0, status::UNSUPP),
        }
        Ok(())
    }

    #[inline]
    fn transfer(&mut self, cx: &mut Context<'_, Uring>, to: Asker, bio: &mut Bio) {
        let bytes = bytes_in(&bio.data);
        let is_whole = bytes <= REQUEST_BYTES_MAX && bytes.is_multiple_of(512);
        if !is_whole || bio.sector.0.checked_mul(SECTOR).is_none() {
            return self.answer(to, 0, status::IOERR);
        }
        let room = if bio.op == Op::Read { bytes as u32 } else { 0 };
        if bio.op == Op::Write {
            bio.flags = self.write_flags();
        }
        if bytes > BIO_BYTES_MAX {
            return self.transfer_in_parts(cx, to, room, (bio, bytes));
        }
        bio.nr = Sectors::from_bytes_floor(bytes as u64);
        let counted = bytes.max(bio.data.len() * PIECE_BYTES);
        if cx.run(self.volume, bio, || self.begin(to, room, counted, 1)) {
            if bio.op == Op::Read {
                self.log.iter().for_each(|log| log.data(&self.memory, &bio.data));
            }
            self.answer(to, room, status::OK);
        }
    }

    /// Likewise, of one that is larger than a bio may be.
    #[cold]
    fn transfer_in_parts(
        &mut self,
        cx: &mut Context<'_, Uring>,
        to: Asker,
        room: u32,
        (bio, bytes): (&mut Bio, usize),
    ) {
        let (op, flags, sector, data) = (bio.op, bio.flags, bio.sector, std::mem::take(&mut bio.data));
        let counted = bytes.min(AT_A_TIME * BIO_BYTES_MAX).max(data.len() * PIECE_BYTES);
        let disk = cx.volume(self.volume).sectors();
        let Some(parts) = Parts::new(Bio { op, flags, sector, nr: Sectors::ZERO, data }, bytes, disk) else {
            return self.answer(to, 0, status::IOERR);
        };
        let cookie = self.begin(to, room, counted, 0);
        let key = usize::try_from(cookie).expect("a cookie is a key of the slab");
        self.in_flight[key].rest = Some(Box::new(parts));
        (0..AT_A_TIME).for_each(|_| _ = self.submit_part(cx, key));
    }

    /// Submits the next part of a request that has several; whether there was one.
    fn submit_part(&mut self, cx: &mut Context<'_, Uring>, key: usize) -> bool {
        let request = &mut self.in_flight[key];
        let Some(parts) = &mut request.rest else { return false };
        let Some(Part { offset, len, data }) = parts.next() else { return false };
        request.bios += 1;
        cx.submit_bytes(self.volume, key as u64, parts.op, parts.flags, offset, len, data);
        true
    }

    fn write_flags(&self) -> Flags {
        match (self.has_flush, self.is_resumable) {
            (false, _) => Flags::FUA,
            (true, true) => Flags::OUTLIVES,
            (true, false) => Flags::NONE,
        }
    }

    fn ranges(&mut self, cx: &mut Context<'_, Uring>, to: Asker, ranges: Option<Vec<Range>>, op: Op) {
        let Some(ranges) = ranges else {
            return self.answer(to, 0, status::IOERR);
        };
        let known = if op == Op::WriteZeroes { Range::UNMAP } else { 0 };
        if ranges.iter().any(|range| range.flags & !known != 0) {
            return self.answer(to, 0, status::UNSUPP);
        }
        // All of them, before anything is done of the first.
        let disk = cx.volume(self.volume).sectors().0;
        let ends = |range: &Range| range.sector.checked_add(range.sectors.into());
        if !ranges.iter().all(|range| ends(range).is_some_and(|end| end <= disk)) {
            return self.answer(to, 0, status::IOERR);
        }
        let count = u32::try_from(ranges.len()).expect("at most RANGES_MAX");
        let cookie = self.begin(to, 0, ranges.len() * RANGE_BYTES, count);
        for range in ranges {
            let keep = op == Op::WriteZeroes && range.flags & Range::UNMAP == 0;
            let durable = if op == Op::WriteZeroes { self.write_flags() } else { Flags::NONE };
            let flags = if keep { durable.with(Flags::NO_UNMAP) } else { durable };
            let len = u64::from(range.sectors) * SECTOR;
            // The engine sees to what is not whole blocks.
            cx.submit_bytes(self.volume, cookie, op, flags, range.sector * SECTOR, len, Segments::new());
        }
    }

    fn tell_id(&mut self, to: Asker, room: &[Segment]) {
        let mut at = 0;
        for segment in room {
            let len = segment.len().min(ID_BYTES - at);
            segment.write_at(0, &self.id[at..at + len]);
            // Not all of it: a driver may give as much room as it likes.
            self.log.iter().for_each(|log| log.data(&self.memory, &[segment.slice(0, len)]));
            at += len;
        }
        // A shorter place than an id is no place for one.
        let result = if at == ID_BYTES { status::OK } else { status::IOERR };
        self.answer(to, at as u32, result);
    }

    #[inline]
    fn begin(&mut self, from: Asker, room: u32, bytes: usize, bios: u32) -> u64 {
        self.bytes += bytes;
        self.in_flight.insert(InFlight { from, room, bytes, bios, rest: None, error: None }) as u64
    }

    /// Answers a request; the driver sees it when the turn publishes.
    #[inline]
    fn answer(&mut self, Asker { head, status }: Asker, written: u32, result: u8) {
        self.memory.write(status, &[result]);
        self.log.iter().for_each(|log| log.range(&self.memory, status));
        if let Some(ring) = &mut self.ring {
            ring.complete(head, written.saturating_add(1));
            self.answers += 1;
        }
    }

    fn watch(&mut self, cx: &mut Context<'_, Uring>) {
        if !self.watching {
            let token = cx.token(KICK);
            cx.env.watch(token, self.kick.clone());
            self.watching = true;
        }
    }

    fn close(&mut self, cx: &mut Context<'_, Uring>) {
        if self.watching {
            let token = cx.token(KICK);
            cx.env.cancel(token);
        }
        self.call
            .take()
            .into_iter()
            .chain(self.error.take())
            .for_each(|signal| cx.env.end_signal_heard(signal));
        self.stats.closed(cx.now());
        if self.locked.take().is_some() {
            self.layout.regions().iter().for_each(|region| cx.env.take_back(&region.mapping));
        }
        if let Some(ring) = &self.ring {
            self.presence.ended(ring.base());
        }
    }
}

/// What an error is to a driver.
fn status_of(errno: Errno) -> u8 {
    if errno == Errno::EOPNOTSUPP { status::UNSUPP } else { status::IOERR }
}

impl Port<Uring> for QueuePort {
    fn open(&mut self, cx: &mut Context<'_, Uring>) {
        if let Some(locked) = &self.locked {
            self.layout.regions().iter().for_each(|region| cx.env.lend(&region.mapping, locked));
        }
        self.watch(cx);
        // Requests may be waiting already, and what was answered before may not have been heard.
        self.call_driver(cx, false);
        cx.wake_me();
    }

    fn event(&mut self, cx: &mut Context<'_, Uring>, local: u32, completion: Completion) {
        if local == CALL {
            if let Some(call) = &mut self.call {
                call.completed();
            }
            return;
        }
        if local == TOLD {
            return;
        }
        // A look that was in vain has found nothing yet: a kick will tell.
        if completion.result > 0 && self.batches.rested() && !self.broken {
            self.call_driver(cx, true);
        }
        if local == LOOK {
            self.looking = false;
            return;
        }
        self.watching = more(completion.flags);
        if !self.watching && completion.result >= 0 {
            // A kernel without lasting polls: the count is read, or the next one would complete at once. Not by a read that
            // would wait if the front end has read it before us; nor is its eventfd ours to make one that never waits.
            let count = &mut [0; 8];
            let _ = preadv2(&*self.kick, &mut [IoSliceMut::new(count)], u64::MAX, ReadWriteFlags::NOWAIT);
        }
        if completion.result < 0 && !self.stopping {
            self.watching = true; // not once more
            self.break_off(&RingError::Kick(Errno(-completion.result).to_string()));
        }
    }

    #[inline]
    fn done(&mut self, cx: &mut Context<'_, Uring>, done: Done) {
        let key = usize::try_from(done.cookie).expect("a cookie is a key of the slab");
        self.looked = self.looking;
        if done.op == Op::Read {
            self.log.iter().for_each(|log| log.data(&self.memory, &done.data));
        }
        let request = &mut self.in_flight[key];
        request.bios -= 1;
        if let Err(errno) = done.result {
            request.error.get_or_insert(errno);
            request.rest = None;
            if errno == Errno::EFAULT {
                // The kernel did not find this memory. Neither do we then, which is what tells that it was cut short.
                done.data.iter().for_each(|segment| _ = segment.is_gone());
            }
        }
        let (has_more, has_rest) = (request.bios > 0, request.rest.is_some());
        if (has_rest && self.submit_part(cx, key)) || has_more {
            return;
        }
        let InFlight { from, room, bytes, error, .. } = self.in_flight.remove(key);
        self.bytes -= bytes;
        match error {
            None => self.answer(from, room, status::OK),
            Some(errno) => self.answer(from, 0, status_of(errno)),
        }
    }

    fn turn(&mut self, cx: &mut Context<'_, Uring>) -> PortState {
        self.obey(cx);
        self.publish(cx, false);
        let was_last = self.serve(cx);
        if was_last && !self.rest(cx) {
            cx.wake_me();
        }
        if self.layout.is_torn() {
            // In this turn, perhaps by the last thing that we looked at: nobody may call us again.
            self.break_off(&RingError::Torn);
        }
        if self.untold {
            self.tell_error(cx);
        }
        if self.is_over() && self.in_flight.is_empty() {
            self.close(cx);
            return PortState::Closed;
        }
        self.watch(cx);
        PortState::Open
    }

    fn drain(&mut self, _cx: &mut Context<'_, Uring>) {
        self.stopping = true;
    }
}
