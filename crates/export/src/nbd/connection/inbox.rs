//! What was received and not yet looked at.
//!
//! One buffer, filled at `end` and taken from at `start`. It is small while the client sends little (a connection at
//! rest should cost little memory) and large while receives fill it (a batch of writes should need one receive).

use blockwork_memory::{Buffer, Pool, Segment};

/// Size of the buffer of a client that sends little, bytes.
const SMALL: usize = 16 << 10;
/// Size of the buffer of one that sends much, bytes.
pub(super) const LARGE: usize = 256 << 10;
/// Less room than this is not worth a receive while something could be moved away.
const ROOM_MIN: usize = 8 << 10;
/// After so many receives in a row that the small buffer would have held, it is used again.
const SMALL_IN_ROW: u32 = 1024;

/// See the module.
pub(super) struct Inbox {
    whole: Segment,
    start: usize,
    end: usize,
    grow: bool,
    small_in_row: u32,
}

impl Inbox {
    pub(super) fn new() -> Inbox {
        Inbox {
            whole: Segment::new(Buffer::new(SMALL), 0, SMALL),
            start: 0,
            end: 0,
            grow: false,
            small_in_row: 0,
        }
    }

    /// Bytes to be looked at.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Where to receive next; none if it is full. Nothing else may be done with the inbox but taking from it until
    /// [`Inbox::received`].
    pub(super) fn room(&mut self, pool: &Pool) -> Option<Segment> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.grow && self.whole.len() < LARGE {
            self.replace(pool, LARGE);
        } else if self.small_in_row >= SMALL_IN_ROW && self.whole.len() > SMALL && self.len() == 0 {
            self.replace(pool, SMALL);
        }
        self.grow = false;
        if self.whole.len() - self.end < ROOM_MIN && self.start > 0 {
            let len = self.len();
            self.whole.buffer().copy_from(0, self.whole.buffer(), self.start, len);
            (self.start, self.end) = (0, len);
        }
        let room = self.whole.len() - self.end;
        (room > 0).then(|| self.whole.slice(self.end, room))
    }

    fn replace(&mut self, pool: &Pool, size: usize) {
        let next = Segment::new(pool.get(size), 0, size);
        let len = self.len();
        next.buffer().copy_from(0, self.whole.buffer(), self.start, len);
        (self.whole, self.start, self.end, self.small_in_row) = (next, 0, len, 0);
    }

    /// `bytes` were received into the room.
    pub(super) fn received(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.whole.len());
        self.grow = self.end == self.whole.len();
        self.small_in_row = if bytes < SMALL / 2 { self.small_in_row.saturating_add(1) } else { 0 };
    }

    /// Copies the first bytes out without taking them.
    #[inline]
    pub(super) fn peek(&self, into: &mut [u8]) {
        debug_assert!(into.len() <= self.len());
        self.whole.read_at(self.start, into);
    }

    /// Takes the first bytes.
    #[inline]
    pub(super) fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.len());
        self.start += bytes;
    }

    /// Moves the first `bytes` into `to` at `at`.
    #[inline]
    pub(super) fn take_into(&mut self, to: &Segment, at: usize, bytes: usize) {
        assert!(bytes <= self.len());
        assert!(at + bytes <= to.len());
        to.buffer().copy_from(to.offset() + at, self.whole.buffer(), self.start, bytes);
        self.start += bytes;
    }

    /// Appends bytes that came another way (decrypted); there must be [`Inbox::free`] for them.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.whole.write_at(self.end, bytes);
        self.end += bytes.len();
    }

    /// Appends bytes that were received elsewhere; with those to be looked at they must not be more than [`LARGE`].
    pub(super) fn put(&mut self, pool: &Pool, bytes: &Segment) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.whole.len() - self.end < bytes.len() {
            self.replace(pool, LARGE);
        }
        self.whole.buffer().copy_from(self.end, bytes.buffer(), bytes.offset(), bytes.len());
        self.end += bytes.len();
    }

    /// What comes next is received elsewhere: there is nothing to be looked at, and large memory is let go of.
    pub(super) fn rest(&mut self, pool: &Pool) {
        debug_assert_eq!(self.len(), 0);
        if self.whole.len() > SMALL {
            (self.start, self.end) = (0, 0);
            self.replace(pool, SMALL);
        }
    }

    /// Makes the buffer large, and tells how much can be appended.
    pub(super) fn free(&mut self, pool: &Pool) -> usize {
        self.grow = true;
        self.room(pool).map_or(0, |room| room.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(inbox: &mut Inbox, pool: &Pool, bytes: &[u8]) -> usize {
        let room = inbox.room(pool).unwrap();
        let n = bytes.len().min(room.len());
        room.write_at(0, &bytes[..n]);
        inbox.received(n);
        n
    }

    #[test]
    fn bytes_come_out_as_they_went_in_whatever_the_sizes() {
        let pool = Pool::new(1 << 20);
        let mut inbox = Inbox::new();
        let stream: Vec<u8> =
            (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (mut sent, mut seen, mut step) = (0, Vec::new(), 1);
        while seen.len() < stream.len() {
            if sent < stream.len() && inbox.room(&pool).is_some() {
                let n = (step * 7919) % 90_000 + 1;
                sent += put(&mut inbox, &pool, &stream[sent..stream.len().min(sent + n)]);
            }
            let take = inbox.len().min((step * 104_729) % 70_000 + 1);
            let mut bytes = vec![0; take];
            inbox.peek(&mut bytes);
            inbox.consume(take);
            seen.extend(bytes);
            step += 1;
        }
        assert!(seen == stream);
    }

    #[test]
    fn bytes_from_elsewhere_follow_those_that_are_there() {
        let pool = Pool::new(1 << 20);
        let mut inbox = Inbox::new();
        put(&mut inbox, &pool, &[1; SMALL]);
        inbox.consume(SMALL - 2);
        let buffer = Buffer::new(2 * LARGE);
        buffer.fill(0, 2 * LARGE, 2);
        inbox.put(&pool, &Segment::new(buffer.clone(), 1000, LARGE - 5));
        inbox.put(&pool, &Segment::new(buffer, 7, 3));
        assert_eq!(inbox.len(), LARGE);
        let mut bytes = vec![0; LARGE];
        inbox.peek(&mut bytes);
        assert!(bytes[..2] == [1; 2] && bytes[2..].iter().all(|byte| *byte == 2));
        inbox.consume(LARGE);
        inbox.rest(&pool);
        assert_eq!((inbox.len(), inbox.whole.len()), (0, SMALL));
    }

    #[test]
    fn headers_from_elsewhere_that_are_taken_at_once_need_no_large_memory() {
        let pool = Pool::new(1 << 20);
        let mut inbox = Inbox::new();
        let header = Segment::new(Buffer::new(28), 0, 28);
        for _ in 0..2 * SMALL / 28 {
            inbox.put(&pool, &header);
            inbox.consume(28);
        }
        assert_eq!(inbox.whole.len(), SMALL);
    }

    #[test]
    fn it_grows_when_filled_and_shrinks_when_little_comes() {
        let pool = Pool::new(1 << 20);
        let mut inbox = Inbox::new();
        put(&mut inbox, &pool, &[1; SMALL]);
        inbox.consume(100);
        assert_eq!(inbox.room(&pool).unwrap().len(), LARGE - (SMALL - 100));
        inbox.consume(SMALL - 100);
        for _ in 0..=SMALL_IN_ROW {
            put(&mut inbox, &pool, &[2; 28]);
            inbox.consume(28);
        }
        assert_eq!(inbox.room(&pool).unwrap().len(), SMALL);
    }
}
