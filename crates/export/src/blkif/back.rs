//! A queue of the back end: requests out of a ring become bios, their ends become answers.
//!
//! One turn takes what is in the ring, once around at most, and lets the front end know of all answers at once. When the
//! ring is empty the front end is asked to ring the bell at the next request; while there is work it need not.
//!
//! Data is moved straight to and from the front end's pages, or through buffers of the worker's where those pages must not be given
//! to the kernel ([`BackPort::with_own_buffers`]).

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use blockwork_engine::{
    Bio, Completion, Context, Done, Env, Errno, Flags, Op, Port, PortState, RingStats, SECTOR, Sector,
    Sectors, VolumeId,
};
use blockwork_format::blkif::{
    Data, Direct, Found, INDIRECT_PAGES_MAX, Kind, Operation, PAGE_BYTES, Request, Response, SEGMENT_BYTES,
    SEGMENTS_MAX, SEGMENTS_PER_PAGE, Segment as PageSegment, Status, decode_segments,
};
use blockwork_memory::{Segment, Segments, bytes_in, copy_between};
use slab::Slab;

use super::ids::Ids;
use super::ledger::Record;
use super::mapper::{KEPT_MAX, Mapper, Mappings};
use super::pages::words_of;
use super::rings::{Entry, Look, RunAway};
use super::{Access, BackRing, EventChannel, Grants, Ledger};

/// What a queue of the back end needs to know.
#[derive(Clone, Debug)]
pub struct BackConfig {
    /// Whose queue it is, for the log.
    pub name: String,
    /// What it serves.
    pub volume: VolumeId,
    /// Whether the front end uses the same pages again and again, so that they stay mapped.
    pub persistent: bool,
    /// Most segments of an indirect request; 0: there are none.
    pub max_indirect_segments: u32,
    /// Where the ring is counted.
    pub stats: Arc<RingStats>,
}

/// How a queue came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was closed, and everything that was taken is answered.
    Closed,
    /// The front end broke the protocol so that no answer helps: this is how.
    Broken(String),
}

#[derive(Debug, Default)]
struct Shared {
    close: AtomicBool,
    ended: OnceLock<Ended>,
}

/// A handle on a queue, from any thread.
#[derive(Clone, Debug)]
pub struct BackEnd {
    shared: Arc<Shared>,
}

impl BackEnd {
    /// Asks it to take no more requests, and to end when those it has are answered. It hears of it at its next turn: give it
    /// one ([`Worker::poke`](blockwork_engine::Worker::poke)).
    pub fn close(&self) {
        self.shared.close.store(true, Ordering::Release);
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<&Ended> {
        self.shared.ended.get()
    }
}

/// Where the answer to a request goes.
#[derive(Clone, Copy)]
struct Asker {
    id: u64,
    operation: Operation,
    record: Record,
}

/// A request that has become a bio.
struct InFlight {
    from: Asker,
    /// What follows when the flush is done.
    then: Option<Bio>,
    /// Pages of the front end that a read's data is copied to, if it is.
    read_to: Segments,
    /// Of the worker's own buffers.
    own_bytes: usize,
}

/// Data that a queue has in buffers of the worker's at most before it takes another request, bytes: a front end of a ring of 16 pages
/// may ask for 512 MiB at a time.
const OWN_BYTES_MAX: usize = 16 << 20;

/// A request that is not done, and what is told of it.
struct Refusal(Status, String);

impl Refusal {
    fn error(why: impl ToString) -> Refusal {
        Refusal(Status::Error, why.to_string())
    }
}

/// A queue of the back end. See the module's head.
pub struct BackPort<E: Env> {
    config: BackConfig,
    ring: BackRing,
    mapper: Mapper,
    requests: Slab<InFlight>,
    ids: Ids,
    ledger: Option<Ledger>,
    /// Whether data goes through buffers of the worker's, and how many bytes are in some.
    copies: bool,
    own_bytes: usize,
    /// A barrier that waits for what was taken before it.
    held: Option<(Entry, Record)>,
    /// A barrier is under way: its place in `requests`.
    barrier: Option<usize>,
    /// Answers that the front end does not know of.
    answered: u32,
    shared: Arc<Shared>,
    stopping: bool,
    broken: Option<String>,
    /// Segments and pages of the request at hand.
    segments: Vec<PageSegment>,
    pages: Vec<Segment>,
    /// Dropped last: who takes that for the queue's end lets the front end take its grants back, and pages that are still mapped then are lost to
    /// some.
    channel: Box<dyn EventChannel<E>>,
}

impl<E: Env> BackPort<E> {
    /// A queue over a ring that the front end has made.
    pub fn new(
        config: BackConfig,
        ring: BackRing,
        channel: Box<dyn EventChannel<E>>,
        grants: Box<dyn Grants>,
    ) -> (BackPort<E>, BackEnd) {
        let slots = ring.slots() as usize;
        let kept = if config.persistent { (slots * SEGMENTS_MAX).min(KEPT_MAX) } else { 0 };
        let shared = Arc::new(Shared::default());
        let port = BackPort {
            channel,
            mapper: Mapper::new(grants, kept),
            requests: Slab::with_capacity(slots),
            ids: Ids::new(ring.slots()),
            ring,
            ledger: None,
            copies: false,
            own_bytes: 0,
            held: None,
            barrier: None,
            answered: 0,
            shared: shared.clone(),
            stopping: false,
            broken: None,
            segments: Vec::new(),
            pages: Vec::new(),
            config,
        };
        (port, BackEnd { shared })
    }

    /// Keeps a ledger, and begins with what is left in it; the ring is to be [resumed](BackRing::resume) behind that.
    #[must_use]
    pub fn with_ledger(mut self, ledger: Ledger) -> BackPort<E> {
        self.ledger = Some(ledger);
        self
    }

    /// Its mappings are of these, which it shares with others.
    #[must_use]
    pub fn within(mut self, all: &'static Mappings) -> BackPort<E> {
        self.mapper = self.mapper.within(all);
        self
    }

    /// Moves data through buffers of the worker's. Pages that another domain has granted are nothing that the kernel may have for I/O:
    /// Linux' gntdev unmaps them when a process is killed, whoever still has them pinned. And a guest that changes its data while it is
    /// written changes nothing any more.
    #[must_use]
    pub fn with_own_buffers(mut self) -> BackPort<E> {
        self.copies = true;
        self
    }

    /// Whether the next request may be taken.
    #[inline]
    fn accepts(&self) -> bool {
        !self.stopping
            && self.broken.is_none()
            && self.held.is_none()
            && self.barrier.is_none()
            && self.own_bytes < OWN_BYTES_MAX
            && self.mapper.has_room()
    }

    fn serve(&mut self, cx: &mut Context<'_, E>) {
        // Answers first: they make room.
        self.publish(cx);
        self.begin_barrier(cx);
        self.take_left(cx);
        let mut budget = self.ring.slots();
        // A look also where nothing is taken, since a ring may fill up meanwhile.
        while !self.stopping && self.broken.is_none() {
            let pending = match self.look(cx) {
                Ok(0) if self.accepts() => match self.ring.rearm() {
                    Ok(false) => break,
                    Ok(true) => continue,
                    Err(run_away) => return self.break_off(&run_away),
                },
                Ok(pending) => pending,
                Err(run_away) => return self.break_off(&run_away),
            };
            if !self.accepts() {
                break;
            }
            if budget == 0 {
                // The others first; the front end may put in faster than we take out.
                cx.wake_me();
                break;
            }
            let count = pending.min(budget);
            budget -= count;
            self.take(cx, count);
        }
        self.publish(cx);
    }

    /// Requests that wait; those that have come are counted.
    fn look(&mut self, cx: &mut Context<'_, E>) -> Result<u32, RunAway> {
        let Look { pending, new } = self.ring.look()?;
        if new > 0 && self.config.stats.taken(new, self.ring.is_full(), cx.now()) {
            cx.ring_is_full(self.config.volume, &self.config.stats);
        }
        Ok(pending)
    }

    /// Takes up what an earlier back end has left.
    fn take_left(&mut self, cx: &mut Context<'_, E>) {
        while self.accepts()
            && let Some((record, entry)) = self.ledger.as_mut().and_then(Ledger::next_left)
        {
            self.begin(cx, &entry, record);
        }
    }

    /// Takes up to `count` requests.
    fn take(&mut self, cx: &mut Context<'_, E>, count: u32) {
        let (mut taken, mut entry) = (0, self.ring.room());
        while taken < count && self.accepts() {
            taken += 1;
            self.ring.take(&mut entry);
            let record = self.ledger.as_mut().map_or(Record::NONE, |ledger| ledger.take(&entry));
            self.begin(cx, &entry, record);
        }
    }

    fn begin(&mut self, cx: &mut Context<'_, E>, entry: &Entry, record: Record) {
        let request = match entry.decode() {
            Ok(request) => request,
            Err(malformed) => {
                log::debug!("xen: {}: {malformed}", self.config.name);
                return self.answer(malformed.id, malformed.operation, malformed.status(), record);
            }
        };
        if !self.ids.insert(request.id) {
            return self.break_off(&format_args!(
                "id {:#x} is used by two requests at a time, expected one that is not under way",
                request.id
            ));
        }
        if matches!(request.kind, Kind::Direct(Direct::Barrier, _)) {
            self.held = Some((*entry, record));
            return self.begin_barrier(cx);
        }
        let from = Asker { id: request.id, operation: request.operation(), record };
        if let Err(refusal) = self.submit(cx, &request, from) {
            self.refuse(from, refusal);
        }
    }

    /// Begins the barrier that waits, if nothing is under way any more.
    fn begin_barrier(&mut self, cx: &mut Context<'_, E>) {
        if !self.requests.is_empty() {
            return;
        }
        let Some((entry, record)) = self.held.take() else { return };
        let request = entry.decode().expect("it was decoded before");
        let from = Asker { id: request.id, operation: request.operation(), record };
        match self.submit(cx, &request, from) {
            Ok(place) => self.barrier = place,
            Err(refusal) => self.refuse(from, refusal),
        }
    }

    #[cold]
    fn refuse(&mut self, from: Asker, Refusal(status, why): Refusal) {
        log::debug!("xen: {}: request {:#x}: {why}", self.config.name, from.id);
        self.ids.remove(from.id);
        self.answer(from.id, from.operation, status, from.record);
    }

    /// Submits what is asked for; where it stands in `requests`, if that is asked for: of what has a flush or a discard in it.
    #[inline]
    fn submit(
        &mut self,
        cx: &mut Context<'_, E>,
        request: &Request<Found<'_>>,
        from: Asker,
    ) -> Result<Option<usize>, Refusal> {
        let sector = Sector(request.sector);
        match &request.kind {
            Kind::Direct(Direct::Read, found) => {
                self.transfer(cx, from, Op::Read, sector, found.iter()).map(|()| None)
            }
            Kind::Direct(Direct::Write, found) => {
                self.transfer(cx, from, Op::Write, sector, found.iter()).map(|()| None)
            }
            Kind::Indirect { data, nr_segments, grefs } => {
                self.fetch_segments(usize::from(*nr_segments), grefs)?;
                let op = if *data == Data::Read { Op::Read } else { Op::Write };
                let segments = mem::take(&mut self.segments);
                let done = self.transfer(cx, from, op, sector, segments.iter().copied());
                self.segments = segments;
                done.map(|()| None)
            }
            Kind::Direct(Direct::Flush, found) => self.flush_then(cx, from, Flags::OUTLIVES, sector, *found),
            Kind::Direct(Direct::Barrier, found) => self.flush_then(cx, from, Flags::FUA, sector, *found),
            Kind::Discard { secure: true, .. } => {
                let why = "a secure discard, which was not offered";
                Err(Refusal(Status::NotSupported, why.to_owned()))
            }
            Kind::Discard { nr_sectors, .. } => {
                let bio = Bio::without_data(Op::Discard, Flags::NONE, sector, Sectors(*nr_sectors));
                Ok(Some(self.wait_for(cx, from, bio, None)))
            }
        }
    }

    /// Has a read or write done; what the device does at once is answered. The bio is in its place from the beginning, since to move what
    /// was just written waits until that is done.
    #[inline]
    fn transfer(
        &mut self,
        cx: &mut Context<'_, E>,
        from: Asker,
        op: Op,
        sector: Sector,
        segments: impl Iterator<Item = PageSegment> + Clone,
    ) -> Result<(), Refusal> {
        // The next back end goes on with the ring, and its front end hears of nothing.
        let flags = if op == Op::Write { Flags::OUTLIVES } else { Flags::NONE };
        let mut bio = Bio { op, flags, sector, nr: Sectors::ZERO, data: Segments::new() };
        self.add_data(&mut bio, segments)?;
        let volume = self.config.volume;
        let (mut read_to, mut own_bytes) = (Segments::new(), 0);
        if self.copies {
            own_bytes = bytes_in(&bio.data);
            use_own_buffer(cx, &mut bio, &mut read_to);
        }
        let wait =
            || self.add(InFlight { from, then: None, read_to: mem::take(&mut read_to), own_bytes }) as u64;
        if cx.run(volume, &mut bio, wait) {
            self.finish(from, Ok(()), &bio.data, &read_to);
        }
        Ok(())
    }

    /// Has a flush done, and then a write of these segments, if there are any.
    fn flush_then(
        &mut self,
        cx: &mut Context<'_, E>,
        from: Asker,
        flags: Flags,
        sector: Sector,
        found: Found<'_>,
    ) -> Result<Option<usize>, Refusal> {
        let mut then = None;
        if !found.is_empty() {
            let mut bio = Bio { op: Op::Write, flags, sector, nr: Sectors::ZERO, data: Segments::new() };
            self.add_data(&mut bio, found.iter())?;
            then = Some(bio);
        }
        Ok(Some(self.wait_for(cx, from, Bio::flush(), then)))
    }

    /// Submits what no device does at once.
    fn wait_for(&mut self, cx: &mut Context<'_, E>, from: Asker, bio: Bio, mut then: Option<Bio>) -> usize {
        let mut own_bytes = 0;
        if let Some(write) = then.as_mut().filter(|_| self.copies) {
            own_bytes = bytes_in(&write.data);
            use_own_buffer(cx, write, &mut Segments::new());
        }
        let place = self.add(InFlight { from, then, read_to: Segments::new(), own_bytes });
        cx.submit(self.config.volume, place as u64, bio);
        place
    }

    #[inline]
    fn add(&mut self, request: InFlight) -> usize {
        self.own_bytes += request.own_bytes;
        self.mapper.began(request.read_to.len());
        self.requests.insert(request)
    }

    /// A request is done: what was read goes where it belongs, and it is answered.
    #[inline]
    fn finish(&mut self, from: Asker, result: Result<(), Errno>, data: &[Segment], read_to: &[Segment]) {
        if result.is_ok() && !read_to.is_empty() {
            copy_between(data, read_to);
        }
        self.ids.remove(from.id);
        self.answer(from.id, from.operation, status(result), from.record);
    }

    /// Copies the segments of an indirect request out of their pages, once, and checks them.
    fn fetch_segments(&mut self, count: usize, grefs: &[u32; INDIRECT_PAGES_MAX]) -> Result<(), Refusal> {
        let most = self.config.max_indirect_segments as usize;
        if count > most {
            let why = format!("nr_segments is {count}, expected at most {most}, as was offered");
            return Err(Refusal::error(why));
        }
        let grefs = &grefs[..count.div_ceil(SEGMENTS_PER_PAGE)];
        let pages = self.mapper.pages(grefs.iter().copied(), Access::Read, &mut self.pages);
        pages.map_err(Refusal::error)?;
        self.segments.clear();
        let mut left = count * SEGMENT_BYTES;
        let mut bytes = [0; PAGE_BYTES];
        for page in self.pages.drain(..) {
            let len = left.min(PAGE_BYTES);
            words_of(&page, &mut bytes[..len]);
            decode_segments(&bytes[..len], &mut self.segments).map_err(Refusal::error)?;
            left -= len;
        }
        Ok(())
    }

    /// Maps what a read or write moves, and sets its length.
    #[inline]
    fn add_data(
        &mut self,
        bio: &mut Bio,
        segments: impl Iterator<Item = PageSegment> + Clone,
    ) -> Result<(), Refusal> {
        // The guest's pages are written to by reads.
        let access = if bio.op == Op::Read { Access::Write } else { Access::Read };
        let refs = segments.clone().map(|segment| segment.gref);
        self.mapper.pages(refs, access, &mut self.pages).map_err(Refusal::error)?;
        for (segment, page) in segments.zip(self.pages.drain(..)) {
            let sectors = Sectors(segment.sectors().map_err(Refusal::error)?);
            let part = page.into_slice(usize::from(segment.first_sect) * SECTOR as usize, sectors.byte_len());
            bio.nr += sectors;
            let extended = bio.data.last_mut().is_some_and(|last: &mut Segment| last.extend(&part));
            if !extended {
                bio.data.push(part);
            }
        }
        Ok(())
    }

    #[inline]
    fn answer(&mut self, id: u64, operation: Operation, status: Status, record: Record) {
        if let Some(ledger) = &mut self.ledger {
            ledger.answer(record, self.ring.next_answer());
        }
        self.ring.put(Response { id, operation, status });
        self.answered += 1;
    }

    /// Lets the front end know of what was answered.
    #[inline]
    fn publish(&mut self, cx: &mut Context<'_, E>) {
        if self.answered == 0 || self.broken.is_some() {
            return;
        }
        let wanted = self.ring.publish();
        self.config.stats.answered(self.answered, self.ring.is_full(), cx.now());
        self.answered = 0;
        if let Some(ledger) = &mut self.ledger {
            ledger.published();
        }
        if wanted {
            self.channel.notify(cx);
        }
    }

    fn break_off(&mut self, reason: &dyn std::fmt::Display) {
        // Whoever runs the device says so, as often as the log has room for: a guest may do it again and again.
        log::debug!("xen: {}: {reason}; its ring is not served any more", self.config.name);
        self.broken = Some(reason.to_string());
    }

    fn end(&mut self, cx: &mut Context<'_, E>) -> PortState {
        self.channel.close(cx);
        self.config.stats.closed(cx.now());
        let ended = self.broken.take().map_or(Ended::Closed, Ended::Broken);
        self.shared.ended.set(ended).expect("a port ends once");
        PortState::Closed
    }
}

/// Puts a buffer of the worker's in the place of the front end's pages, with what is to be written; `read_to` is where a read's data goes
/// then.
fn use_own_buffer<E: Env>(cx: &Context<'_, E>, bio: &mut Bio, read_to: &mut Segments) {
    let len = bytes_in(&bio.data);
    let own = Segments::from_iter([Segment::new(cx.pool().get(len), 0, len)]);
    let pages = mem::replace(&mut bio.data, own);
    if bio.op == Op::Read {
        *read_to = pages;
    } else {
        copy_between(&pages, &bio.data);
    }
}

fn status(result: Result<(), Errno>) -> Status {
    match result {
        Ok(()) => Status::Okay,
        Err(Errno::EOPNOTSUPP) => Status::NotSupported,
        Err(_) => Status::Error,
    }
}

impl<E: Env> Port<E> for BackPort<E> {
    fn open(&mut self, cx: &mut Context<'_, E>) {
        self.channel.open(cx);
    }

    fn event(&mut self, cx: &mut Context<'_, E>, local: u32, completion: Completion) {
        self.channel.event(cx, local, completion);
    }

    #[inline]
    fn done(&mut self, cx: &mut Context<'_, E>, done: Done) {
        let place = usize::try_from(done.cookie).expect("a place in memory");
        let request = &mut self.requests[place];
        if let (Ok(()), Some(next)) = (done.result, request.then.take()) {
            cx.submit(self.config.volume, done.cookie, next);
            return;
        }
        let InFlight { from, read_to, own_bytes, .. } = self.requests.remove(place);
        self.own_bytes -= own_bytes;
        self.mapper.ended(read_to.len());
        if self.barrier == Some(place) {
            self.barrier = None;
        }
        self.finish(from, done.result, &done.data, &read_to);
    }

    fn turn(&mut self, cx: &mut Context<'_, E>) -> PortState {
        self.stopping |= self.shared.close.load(Ordering::Acquire);
        self.serve(cx);
        let ends = self.stopping || self.broken.is_some();
        if ends && self.requests.is_empty() && (self.held.is_none() || self.broken.is_some()) {
            return self.end(cx);
        }
        PortState::Open
    }

    fn drain(&mut self, _: &mut Context<'_, E>) {
        self.stopping = true;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use blockwork_format::blkif::{Abi, encode_segments};
    use blockwork_memory::Buffer;
    use blockwork_sim::SimEnv;

    use super::super::in_process::{Bell, GrantTable};
    use super::super::pages::restless::against;
    use super::super::{GrantError, GrantRef, Offers, SharedPages};
    use super::*;

    fn page() -> Segment {
        Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES)
    }

    fn port(channel: Box<dyn EventChannel<SimEnv>>, grants: Box<dyn Grants>) -> BackPort<SimEnv> {
        let config = BackConfig {
            name: "guest".to_owned(),
            volume: VolumeId(0),
            persistent: false,
            max_indirect_segments: 1024,
            stats: Arc::new(RingStats::new("ring", 32)),
        };
        let ring = BackRing::new(SharedPages::new(vec![page()]).unwrap(), Abi::Bits64);
        BackPort::new(config, ring, channel, grants).0
    }

    /// Tells of its end.
    struct Ending(&'static str, Rc<RefCell<Vec<&'static str>>>);

    impl Drop for Ending {
        fn drop(&mut self) {
            self.1.borrow_mut().push(self.0);
        }
    }

    impl Grants for Ending {
        fn map(&mut self, _: &[GrantRef], _: Access, _: &mut Vec<Segment>) -> Result<(), GrantError> {
            Ok(())
        }
    }

    impl EventChannel<SimEnv> for Ending {
        fn open(&mut self, _: &mut Context<'_, SimEnv>) {}
        fn event(&mut self, _: &mut Context<'_, SimEnv>, _: u32, _: Completion) {}
        fn notify(&mut self, _: &mut Context<'_, SimEnv>) {}
        fn close(&mut self, _: &mut Context<'_, SimEnv>) {}
    }

    #[test]
    fn a_queue_has_its_channel_for_longer_than_the_front_ends_pages() {
        let order = Rc::default();
        let ending = |what| Box::new(Ending(what, Rc::clone(&order)));
        drop(port(ending("channel"), ending("pages")));
        assert_eq!(*order.borrow(), ["pages", "channel"]);
    }

    /// The page is looked at once: what was checked is what is used.
    #[test]
    fn segments_are_used_as_they_were_checked_whatever_becomes_of_their_page_meanwhile() {
        let mut grants = GrantTable::default();
        let (bell, _) = Bell::pair();
        let mut port = port(Box::new(bell), Box::new(grants.clone()));
        let segments: Vec<_> =
            (0..700).map(|n| PageSegment { gref: n * 3, first_sect: 2, last_sect: 5 }).collect();
        let mut grefs = [0; INDIRECT_PAGES_MAX];
        for (gref, part) in grefs.iter_mut().zip(segments.chunks(SEGMENTS_PER_PAGE)) {
            let list = page();
            list.write_at(0, &encode_segments(part));
            *gref = grants.grant(list, Access::Read);
        }
        against(|| port.fetch_segments(segments.len(), &grefs))
            .unwrap_or_else(|refusal| panic!("{}", refusal.1));
        assert_eq!(port.segments, segments);
    }
}
