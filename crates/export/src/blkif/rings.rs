//! One end's view of a ring: what it has put in and taken out, and what the other end wants to hear of.
//!
//! Indices count all entries since the ring was made, and wrap at 2^32. Requests and responses share the slots: a response
//! goes to the next slot whose request was taken, whichever request it answers.

use std::sync::atomic::{Ordering, fence};

use blockwork_format::blkif::{
    Abi, Found, Malformed, REQUEST_BYTES_MAX, Request, Response, request_len, ring, wants_event,
};

use super::SharedPages;

/// The other end's index says that there is more in the ring than fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{index} is {found}, {ahead} entries ahead of {base}, expected at most {most}")]
pub struct RunAway {
    /// Which index.
    pub index: &'static str,
    /// What it says.
    pub found: u32,
    /// Where it may count from.
    pub base: u32,
    /// How far it is from there.
    pub ahead: u32,
    /// How far it may be.
    pub most: u32,
}

/// An entry of a ring, copied out.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    bytes: Bytes,
    abi: Abi,
}

/// So that its numbers lie as in the ring.
#[derive(Clone, Copy, Debug)]
#[repr(align(8))]
struct Bytes([u8; REQUEST_BYTES_MAX]);

impl Entry {
    /// One that was copied out before.
    pub(super) fn new(abi: Abi, bytes: [u8; REQUEST_BYTES_MAX]) -> Entry {
        Entry { abi, bytes: Bytes(bytes) }
    }

    /// As it was in the ring, and what was here before.
    pub(super) fn bytes(&self) -> &[u8; REQUEST_BYTES_MAX] {
        &self.bytes.0
    }

    /// What it asks for.
    ///
    /// # Errors
    /// It breaks the protocol, and is to be answered so.
    #[inline]
    pub fn decode(&self) -> Result<Request<Found<'_>>, Malformed> {
        let Bytes([a, b, c, d, ..]) = self.bytes;
        Request::find(self.abi, &self.bytes.0[..request_len(self.abi, [a, b, c, d])])
    }
}

/// The back end's view.
#[derive(Debug)]
pub struct BackRing {
    pages: SharedPages,
    abi: Abi,
    slots: u32,
    /// Requests that were taken.
    req_cons: u32,
    /// Responses that were put in, and those of them that the front end knows of.
    rsp_prod: u32,
    rsp_published: u32,
    /// Requests that were in the ring when it was looked at last.
    seen: u32,
}

/// What a look at a ring has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Requests that wait to be taken.
    pub(super) pending: u32,
    /// Requests that no look has found before: at the first one, with those that an earlier back end has taken.
    pub(super) new: u32,
}

impl BackRing {
    /// Of a ring that the front end has made. What it says was answered before is not asked for again.
    pub fn new(pages: SharedPages, abi: Abi) -> BackRing {
        let slots = abi.slots(pages.count());
        let start = pages.load(ring::RSP_PROD, Ordering::Acquire);
        BackRing { pages, abi, slots, req_cons: start, rsp_prod: start, rsp_published: start, seen: start }
    }

    /// Goes on where an earlier back end was: so many requests were taken and are not answered.
    ///
    /// # Errors
    /// The front end says that there are not as many, or more than fit beside them.
    pub fn resume(&mut self, taken: u32) -> Result<(), RunAway> {
        self.req_cons = self.rsp_prod.wrapping_add(taken);
        self.pending().map(drop)
    }

    /// Requests that fit.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Looks how many requests there are.
    ///
    /// # Errors
    /// See [`BackRing::pending`]; or there are fewer than there were, which would be counted as four thousand million more.
    #[inline]
    pub(super) fn look(&mut self) -> Result<Look, RunAway> {
        let pending = self.pending()?;
        let all = self.req_cons.wrapping_add(pending);
        let new = all.wrapping_sub(self.seen);
        if new > self.slots {
            return Err(RunAway {
                index: "req_prod",
                found: all,
                base: self.seen,
                ahead: new,
                most: self.slots,
            });
        }
        self.seen = all;
        Ok(Look { pending, new })
    }

    /// Whether the front end could put in no more when the ring was looked at last, as far as it knows: taken or not, each of its
    /// requests has a slot until it knows of the answer.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.seen.wrapping_sub(self.rsp_published) >= self.slots
    }

    /// The index of the next answer.
    #[inline]
    pub fn next_answer(&self) -> u32 {
        self.rsp_prod
    }

    /// Requests that wait to be taken.
    ///
    /// # Errors
    /// The front end says that there are more than fit beside those of whose answers it does not know.
    #[inline]
    pub fn pending(&self) -> Result<u32, RunAway> {
        // Whoever sees the index sees the requests: it was stored after them.
        let found = self.pages.load(ring::REQ_PROD, Ordering::Acquire);
        // An answer that was not published makes no room: of it the front end cannot know.
        let base = self.rsp_published;
        let ahead = found.wrapping_sub(base);
        let taken = self.req_cons.wrapping_sub(base);
        if ahead > self.slots || ahead < taken {
            return Err(RunAway { index: "req_prod", found, base, ahead, most: self.slots });
        }
        Ok(ahead - taken)
    }

    /// Where the next one is to be taken to: for [`BackRing::take`].
    pub fn room(&self) -> Entry {
        Entry::new(self.abi, [0; REQUEST_BYTES_MAX])
    }

    /// Takes the next one. To be called for as many as are [`pending`](BackRing::pending).
    #[inline]
    pub fn take(&mut self, into: &mut Entry) {
        const FIRST: usize = 8;
        let at = self.abi.slot_at(self.req_cons, self.slots);
        self.req_cons = self.req_cons.wrapping_add(1);
        let bytes = &mut into.bytes.0;
        self.pages.copy_out(at, &mut bytes[..FIRST]);
        // What the first word says decides how much is copied, so it is not loaded again.
        let len = request_len(self.abi, [bytes[0], bytes[1], bytes[2], bytes[3]]);
        self.pages.copy_out(at + FIRST, &mut bytes[FIRST..len]);
    }

    /// Puts in an answer to a request that was taken.
    #[inline]
    pub fn put(&mut self, response: Response) {
        debug_assert_ne!(self.rsp_prod, self.req_cons, "an answer to a request that was taken");
        let at = self.abi.slot_at(self.rsp_prod, self.slots);
        self.pages.copy_in(at, &response.encode()[..self.abi.response_bytes()]);
        self.rsp_prod = self.rsp_prod.wrapping_add(1);
    }

    /// Lets the front end know of all answers that were put in. Whether it wants to be notified.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.rsp_published, self.rsp_prod);
        if old == new {
            return false;
        }
        self.rsp_published = new;
        self.pages.store(ring::RSP_PROD, new, Ordering::Release);
        // The other end sets its event, then looks for responses; we the other way round: one of us sees the other.
        fence(Ordering::SeqCst);
        wants_event(old, new, self.pages.load(ring::RSP_EVENT, Ordering::Relaxed))
    }

    /// Asks to be notified of the next request. Whether there is one already.
    ///
    /// # Errors
    /// See [`BackRing::pending`].
    #[inline]
    pub fn rearm(&mut self) -> Result<bool, RunAway> {
        self.pages.store(ring::REQ_EVENT, self.req_cons.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(self.pending()? > 0)
    }
}

/// The front end's view.
#[derive(Debug)]
pub struct FrontRing {
    pages: SharedPages,
    abi: Abi,
    slots: u32,
    /// Requests that were put in, and those of them that the back end knows of.
    req_prod: u32,
    req_published: u32,
    /// Responses that were taken.
    rsp_cons: u32,
}

impl FrontRing {
    /// Makes an empty ring of pages that nobody else has yet.
    pub fn new(pages: SharedPages, abi: Abi) -> FrontRing {
        let slots = abi.slots(pages.count());
        for (index, value) in
            [(ring::REQ_PROD, 0), (ring::RSP_PROD, 0), (ring::REQ_EVENT, 1), (ring::RSP_EVENT, 1)]
        {
            pages.store(index, value, Ordering::Release);
        }
        FrontRing { pages, abi, slots, req_prod: 0, req_published: 0, rsp_cons: 0 }
    }

    /// Requests that fit.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Requests for which there is room.
    #[inline]
    pub fn room(&self) -> u32 {
        self.slots - self.req_prod.wrapping_sub(self.rsp_cons)
    }

    /// Puts in a request.
    ///
    /// # Panics
    /// If there is no room.
    #[inline]
    pub fn put(&mut self, request: &Request) {
        assert!(self.room() > 0, "a request for which there is room");
        let (bytes, len) = request.encode(self.abi);
        self.pages.copy_in(self.abi.slot_at(self.req_prod, self.slots), &bytes[..len]);
        self.req_prod = self.req_prod.wrapping_add(1);
    }

    /// Lets the back end know of all requests that were put in. Whether it wants to be notified.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.req_published, self.req_prod);
        if old == new {
            return false;
        }
        self.req_published = new;
        self.pages.store(ring::REQ_PROD, new, Ordering::Release);
        fence(Ordering::SeqCst);
        wants_event(old, new, self.pages.load(ring::REQ_EVENT, Ordering::Relaxed))
    }

    /// Responses that wait to be taken.
    ///
    /// # Errors
    /// The back end says that there are more than there were requests.
    #[inline]
    pub fn pending(&self) -> Result<u32, RunAway> {
        let found = self.pages.load(ring::RSP_PROD, Ordering::Acquire);
        let ahead = found.wrapping_sub(self.rsp_cons);
        let most = self.req_published.wrapping_sub(self.rsp_cons);
        if ahead > most {
            return Err(RunAway { index: "rsp_prod", found, base: self.rsp_cons, ahead, most });
        }
        Ok(ahead)
    }

    /// Takes the next one. To be called for as many as are [`pending`](FrontRing::pending).
    #[inline]
    pub fn take(&mut self) -> Response {
        let mut bytes = [0; 12];
        self.pages.copy_out(self.abi.slot_at(self.rsp_cons, self.slots), &mut bytes);
        self.rsp_cons = self.rsp_cons.wrapping_add(1);
        Response::decode(&bytes)
    }

    /// Asks to be notified of the next response. Whether there is one already.
    ///
    /// # Errors
    /// See [`FrontRing::pending`].
    #[inline]
    pub fn rearm(&mut self) -> Result<bool, RunAway> {
        self.pages.store(ring::RSP_EVENT, self.rsp_cons.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(self.pending()? > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pages::restless::against;
    use super::*;
    use blockwork_format::blkif::{Data, Direct, Kind, PAGE_BYTES, Segments, Status};
    use blockwork_memory::{Buffer, Segment};

    fn pages(count: usize) -> SharedPages {
        let page = |_| Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES);
        SharedPages::new((0..count).map(page).collect()).unwrap()
    }

    fn flush(id: u64) -> Request {
        Request { id, handle: 0, sector: 0, kind: Kind::Direct(Direct::Flush, Segments::default()) }
    }

    /// With its segments.
    fn take(back: &mut BackRing) -> Result<Request, Malformed> {
        let mut entry = back.room();
        back.take(&mut entry);
        Request::decode(back.abi, entry.bytes())
    }

    fn answer(request: Request) -> Response {
        Response { id: request.id, operation: request.operation(), status: Status::Okay }
    }

    #[test]
    fn entries_go_round_and_indices_wrap() {
        for abi in [Abi::Bits64, Abi::Bits32] {
            let shared = pages(2);
            let mut front = FrontRing::new(shared.clone(), abi);
            // As if four thousand million requests had been before.
            let start = u32::MAX - 40;
            for index in [ring::REQ_PROD, ring::RSP_PROD] {
                shared.store(index, start, Ordering::Relaxed);
            }
            (front.req_prod, front.req_published, front.rsp_cons) = (start, start, start);
            let mut back = BackRing::new(shared, abi);
            assert_eq!((front.slots(), back.slots()), (64, 64));
            for round in 0..5u64 {
                (0..64).for_each(|n| front.put(&flush(round * 64 + n)));
                assert!(front.room() == 0 && front.publish());
                assert_eq!(back.pending(), Ok(64));
                let taken: Vec<_> = (0..64).map(|_| take(&mut back).unwrap()).collect();
                assert_eq!(taken[63], flush(round * 64 + 63));
                assert_eq!(back.rearm(), Ok(false));
                taken.iter().rev().for_each(|request| back.put(answer(*request)));
                back.publish();
                assert_eq!(front.pending(), Ok(64));
                (0..64).rev().for_each(|n| assert_eq!(front.take().id, round * 64 + n));
                assert_eq!(front.rearm(), Ok(false));
            }
        }
    }

    /// Each word is loaded once, so that what was looked at is what is used.
    #[test]
    fn what_is_taken_is_one_state_of_the_slot_whatever_becomes_of_it_meanwhile() {
        let segment = blockwork_format::blkif::Segment { gref: 77, first_sect: 1, last_sect: 6 };
        let segments = Segments::new(&[segment; 11]).unwrap();
        for abi in [Abi::Bits64, Abi::Bits32] {
            for kind in [
                Kind::Direct(Direct::Write, segments),
                Kind::Indirect { data: Data::Read, nr_segments: 200, grefs: [9, 0, 0, 0, 0, 0, 0, 0] },
                Kind::Discard { nr_sectors: 1 << 40, secure: false },
            ] {
                let shared = pages(1);
                let mut front = FrontRing::new(shared.clone(), abi);
                let mut back = BackRing::new(shared, abi);
                let request = Request { id: 5, handle: 2, sector: 1 << 33, kind };
                front.put(&request);
                front.publish();
                let (found, taken) = against(|| (back.look(), take(&mut back)));
                assert_eq!(found, Ok(Look { pending: 1, new: 1 }));
                assert_eq!(taken, Ok(request), "{abi:?}");
            }
        }
    }

    #[test]
    fn who_is_at_work_is_not_notified() {
        let shared = pages(1);
        let mut front = FrontRing::new(shared.clone(), Abi::NATIVE);
        let mut back = BackRing::new(shared, Abi::NATIVE);
        front.put(&flush(1));
        assert!(front.publish(), "the back end sleeps");
        front.put(&flush(2));
        assert!(!front.publish(), "it has been woken, and has not gone to sleep again");
        (0..2).for_each(|n| assert_eq!(take(&mut back), Ok(flush(n + 1))));
        assert_eq!(back.rearm(), Ok(false));
        front.put(&flush(3));
        assert!(front.publish());
        assert_eq!(back.rearm(), Ok(true), "a request that came meanwhile is seen");
    }

    #[test]
    fn an_index_that_runs_away_is_refused() {
        let shared = pages(1);
        let mut back = BackRing::new(shared.clone(), Abi::NATIVE);
        shared.store(ring::REQ_PROD, 33, Ordering::Relaxed);
        let said = back.pending().unwrap_err().to_string();
        assert_eq!(said, "req_prod is 33, 33 entries ahead of 0, expected at most 32");
        shared.store(ring::REQ_PROD, 4, Ordering::Relaxed);
        (0..4).for_each(|_| assert!(take(&mut back).is_err(), "nobody has put these in"));
        shared.store(ring::REQ_PROD, 3, Ordering::Relaxed);
        assert!(back.pending().is_err(), "it goes back below what was taken");
        (0..4).for_each(|id| back.put(answer(flush(id))));
        shared.store(ring::REQ_PROD, 33, Ordering::Relaxed);
        assert!(back.pending().is_err(), "the front end does not know of the answers yet");
        back.publish();
        assert_eq!(back.pending(), Ok(29));
        shared.store(ring::RSP_PROD, 0, Ordering::Relaxed);
        shared.store(ring::REQ_PROD, 4, Ordering::Relaxed);
        let mut next = BackRing::new(shared.clone(), Abi::NATIVE);
        assert!(next.resume(5).is_err(), "fewer were put in than are said to be taken");
        next.resume(3).unwrap();
        assert_eq!(next.pending(), Ok(1));
        let mut front = FrontRing::new(pages(1), Abi::NATIVE);
        front.put(&flush(1));
        front.publish();
        front.pages.store(ring::RSP_PROD, 2, Ordering::Relaxed);
        assert!(front.pending().is_err(), "more answers than requests");
    }
}
