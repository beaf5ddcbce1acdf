//! Requests of one client that are under way, and what they cost.

use std::collections::VecDeque;

use blockwork_engine::SMALL_REQUEST;
use blockwork_memory::{Pool, Segment, Segments};
use slab::Slab;

use crate::nbd::session::{Kind, Submit};

/// Largest single buffer for a request's data, bytes: a size that the pool keeps, so that requests of any size take no
/// memory from the system once warm.
const PIECE: usize = 1 << 20;

/// A request that was submitted.
pub(super) struct InFlight {
    pub(super) submit: Submit,
    /// Bytes of memory that it holds.
    pub(super) held: usize,
}

/// See the module.
#[derive(Default)]
pub(super) struct Requests {
    all: Slab<InFlight>,
    held: usize,
    /// Bytes that the large reads among them hold.
    reading: usize,
    /// Reads that were taken from the client and not begun. They have no memory yet, but what they will need is in `held`: who has been
    /// let in can begin whenever it likes, and needs no second look at the limit.
    waiting: VecDeque<Submit>,
    /// The small ones of these, which do not wait for the large ones.
    waiting_small: VecDeque<Submit>,
}

/// Whether a request is for little, such as a page of a database: nobody waits long for what it takes.
#[inline]
fn is_small(submit: &Submit) -> bool {
    submit.len <= SMALL_REQUEST.bytes()
}

#[inline]
fn is_large_read(submit: &Submit) -> bool {
    submit.kind == Kind::Read && !is_small(submit)
}

impl Requests {
    /// Notes a request; the number is its bio's cookie.
    #[inline]
    pub(super) fn insert(&mut self, submit: Submit, held: usize) -> u64 {
        self.held += held;
        if is_large_read(&submit) {
            self.reading += held;
        }
        let place = self.all.insert(InFlight { submit, held });
        u64::try_from(place).expect("a place in memory")
    }

    /// The request of that number, which is over.
    #[inline]
    pub(super) fn remove(&mut self, cookie: u64) -> InFlight {
        let request = self.all.remove(usize::try_from(cookie).expect("a place in memory"));
        self.held -= request.held;
        if is_large_read(&request.submit) {
            self.reading -= request.held;
        }
        request
    }

    /// A read waits to be begun.
    #[inline]
    pub(super) fn wait(&mut self, read: Submit) {
        self.held += cost(data_len(&read));
        let waiting = if is_small(&read) { &mut self.waiting_small } else { &mut self.waiting };
        waiting.push_back(read);
    }

    /// The read that has waited longest, to be begun now: a small one if there is one, or else a large one if those may.
    #[inline]
    pub(super) fn next_waiting(&mut self, large_too: bool) -> Option<Submit> {
        let read = match self.waiting_small.pop_front() {
            None if large_too => self.waiting.pop_front()?,
            small => small?,
        };
        self.held -= cost(data_len(&read));
        Some(read)
    }

    /// Whether any read waits that this one has to wait behind.
    #[inline]
    pub(super) fn is_any_before(&self, read: &Submit) -> bool {
        let waiting = if is_small(read) { &self.waiting_small } else { &self.waiting };
        !waiting.is_empty()
    }

    /// Bytes that large reads under way hold.
    #[inline]
    pub(super) fn reading(&self) -> usize {
        self.reading
    }

    /// Nobody wants to know any more what those that wait would read.
    pub(super) fn forget_waiting(&mut self) {
        while self.next_waiting(true).is_some() {}
    }

    /// Requests under way, and those that wait.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.all.len() + self.waiting.len() + self.waiting_small.len()
    }

    /// Bytes that they hold, or will.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.held
    }
}

/// Bytes of data that a read or write has.
#[inline]
pub(super) fn data_len(submit: &Submit) -> usize {
    usize::try_from(submit.len).expect("a payload fits memory")
}

/// What [`memory`] for `len` bytes costs.
#[inline]
fn cost(len: usize) -> usize {
    let rest = len % PIECE;
    len - rest + if rest > 0 { Pool::bytes_for(rest) } else { 0 }
}

/// Memory for `len` bytes of data, and what it costs.
#[inline]
pub(super) fn memory(pool: &Pool, len: usize) -> (Segments, usize) {
    let mut data = Segments::new();
    let (mut left, mut held) = (len, 0);
    while left > 0 {
        let take = left.min(PIECE);
        let buffer = pool.get(take);
        held += buffer.len();
        data.push(Segment::new(buffer, 0, take));
        left -= take;
    }
    (data, held)
}

/// A write whose payload has not arrived in full.
pub(super) struct Filling {
    pub(super) submit: Submit,
    pub(super) data: Segments,
    pub(super) held: usize,
    filled: usize,
    len: usize,
}

impl Filling {
    pub(super) fn new(pool: &Pool, submit: Submit, len: usize) -> Filling {
        let (data, held) = memory(pool, len);
        Filling { submit, data, held, filled: 0, len }
    }

    /// One whose memory was there before, with the first `filled` bytes.
    pub(super) fn begun(submit: Submit, data: Segments, held: usize, filled: usize, len: usize) -> Filling {
        Filling { submit, data, held, filled, len }
    }

    /// Bytes that are missing.
    #[inline]
    pub(super) fn missing(&self) -> usize {
        self.len - self.filled
    }

    /// The next bytes were put where [`Filling::place`] said.
    #[inline]
    pub(super) fn filled(&mut self, bytes: usize) {
        self.filled += bytes;
        assert!(self.filled <= self.len);
    }

    /// Where the next bytes go: the rest of one piece. Not to be asked for when nothing is missing.
    #[inline]
    pub(super) fn place(&self) -> Segment {
        let piece = &self.data[self.filled / PIECE];
        let at = self.filled % PIECE;
        piece.slice(at, piece.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: u64 = SMALL_REQUEST.bytes();

    #[test]
    fn a_read_costs_the_same_while_it_waits_and_when_it_is_begun() {
        let pool = Pool::new(0);
        let mut requests = Requests::default();
        for len in [1, 512, 4096, 5000, 65_537, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 300_000, 32 << 20] {
            requests.wait(Submit { kind: Kind::Read, cookie: 0, offset: 0, len: len as u64 });
            let expected = requests.held();
            let read = requests.next_waiting(true).unwrap();
            assert_eq!((requests.held(), data_len(&read)), (0, len));
            assert_eq!(memory(&pool, len).1, expected, "{len}");
        }
        assert_eq!((requests.len(), requests.reading()), (0, 0));
    }

    #[test]
    fn small_reads_wait_for_small_ones_only() {
        let read = |cookie, len| Submit { kind: Kind::Read, cookie, offset: 0, len };
        let mut requests = Requests::default();
        let (small, large) = (read(9, SMALL), read(9, SMALL + 1));
        assert!(!requests.is_any_before(&small) && !requests.is_any_before(&large));
        for (cookie, len) in [(1, 1 << 20), (2, 4096), (3, 1 << 20), (4, SMALL)] {
            requests.wait(read(cookie, len));
        }
        assert!(requests.is_any_before(&small) && requests.is_any_before(&large));
        let mut next = |large_too| requests.next_waiting(large_too).map(|read| read.cookie);
        assert_eq!([next(false), next(true), next(false)], [Some(2), Some(4), None]);
        assert!(!requests.is_any_before(&small) && requests.is_any_before(&large));
        let mut next = |large_too| requests.next_waiting(large_too).map(|read| read.cookie);
        assert_eq!([next(true), next(true), next(true)], [Some(1), Some(3), None]);
        assert_eq!(requests.held(), 0);
    }

    #[test]
    fn large_reads_under_way_are_counted_and_nothing_else_is() {
        let submit = |kind, len| Submit { kind, cookie: 0, offset: 0, len };
        let mut requests = Requests::default();
        requests.insert(submit(Kind::Read, SMALL), SMALL as usize);
        let write = requests.insert(submit(Kind::Write { fua: false }, 1 << 20), 1 << 20);
        assert_eq!(requests.reading(), 0);
        let large = requests.insert(submit(Kind::Read, 300_000), 512 << 10);
        assert_eq!(requests.reading(), 512 << 10);
        requests.remove(write);
        requests.remove(large);
        assert_eq!((requests.reading(), requests.held()), (0, SMALL as usize));
    }

    #[test]
    fn a_payload_fills_its_pieces_in_order() {
        let pool = Pool::new(0);
        let submit = Submit { kind: Kind::Write { fua: false }, cookie: 0, offset: 0, len: 0 };
        let len = 2 * PIECE + 5000;
        let mut filling = Filling::new(&pool, submit, len);
        assert_eq!(filling.held, 2 * PIECE + (16 << 10));
        let mut at = 0;
        while filling.missing() > 0 {
            let place = filling.place();
            assert_eq!(place.offset(), at % PIECE);
            let take = place.len().min(300_001);
            filling.filled(take);
            at += take;
        }
        assert_eq!(at, len);
    }
}
