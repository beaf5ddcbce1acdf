//! A guess at what a client sends next: writes as long as its last ones, received straight to where they belong.
//!
//! A receive into the inbox brings several requests, whose payloads are copied from there to aligned memory. Who writes large pieces
//! mostly goes on with pieces of the same length. So after a few of these the next receive is made of parts: room for a header, memory
//! for a payload, room for a header, and so on. Where something else comes, what lies in the wrong place is moved to the inbox, as if it had been
//! received there.

use std::collections::VecDeque;

use blockwork_memory::{Buffer, Pool, Segment, Segments, bytes_in};

use super::requests::memory;
use super::{DIRECT_MIN, HEADER_MAX, inbox};

/// Writes in a row, of one length, after which it is guessed that there are more.
const ROW: u32 = 4;
/// Parts of one receive.
const PARTS_MAX: usize = 8;

/// A write that may come.
pub(super) struct Part {
    pub(super) head: Segment,
    /// Where its payload belongs, and what that costs.
    pub(super) data: Segments,
    pub(super) held: usize,
    /// What of it is received together with the header.
    pub(super) first: Segment,
}

impl Part {
    /// Bytes of its payload.
    pub(super) fn len(&self) -> usize {
        bytes_in(&self.data)
    }

    /// How many of `bytes` that were received are its header's, and how many its payload's.
    pub(super) fn received(&self, bytes: usize) -> (usize, usize) {
        let head = bytes.min(self.head.len());
        (head, (bytes - head).min(self.first.len()))
    }
}

/// Memory of a guess that has come true as far as the header goes: so many bytes of the payload are there.
pub(super) struct Offered {
    pub(super) part: Part,
    pub(super) there: usize,
}

/// See the module.
#[derive(Default)]
pub(super) struct Guess {
    len: usize,
    row: u32,
    heads: Option<Buffer>,
    /// Those that the receive under way may fill, and what it fills.
    parts: VecDeque<Part>,
    into: Vec<Segment>,
}

impl Guess {
    /// The client has asked for a write of `len` bytes.
    #[inline]
    pub(super) fn saw_write(&mut self, len: usize) {
        self.row = if len == self.len { self.row.saturating_add(1) } else { 1 };
        self.len = len;
    }

    /// It has asked for something else.
    #[inline]
    pub(super) fn saw_other(&mut self) {
        self.row = 0;
    }

    /// What to receive into, in order, if there is a guess; headers are so long.
    pub(super) fn prepare(&mut self, pool: &Pool, header: usize) -> Option<&[Segment]> {
        if self.row < ROW || self.len < DIRECT_MIN {
            return None;
        }
        let heads = self.heads.get_or_insert_with(|| Buffer::new(PARTS_MAX * HEADER_MAX)).clone();
        let mut room = inbox::LARGE;
        self.clear();
        while self.parts.len() < PARTS_MAX && room >= header + DIRECT_MIN {
            let head = Segment::new(heads.clone(), self.parts.len() * HEADER_MAX, header);
            let (data, held) = memory(pool, self.len);
            let first = data[0].slice(0, data[0].len().min(room - header));
            room -= header + first.len();
            self.into.extend([head.clone(), first.clone()]);
            self.parts.push_back(Part { head, data, held, first });
        }
        Some(&self.into)
    }

    /// The receive is over: the next part that it may have filled.
    pub(super) fn next(&mut self) -> Option<Part> {
        self.parts.pop_front()
    }

    /// Lets go of memory that was not needed.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.into.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_received_by_a_guess_fits_in_the_inbox() {
        let pool = Pool::new(1 << 20);
        for len in [DIRECT_MIN, 65_536, 100_001, 1 << 20, 5 << 20] {
            let mut guess = Guess::default();
            (0..ROW).for_each(|_| {
                assert!(guess.prepare(&pool, 28).is_none());
                guess.saw_write(len);
            });
            let into = guess.prepare(&pool, 28).unwrap();
            let bytes: usize = into.iter().map(Segment::len).sum();
            assert!(bytes <= inbox::LARGE && bytes >= DIRECT_MIN.min(len), "{len}: {bytes}");
            while let Some(part) = guess.next() {
                assert!(part.len() == len && part.held >= len && part.head.len() == 28);
                assert_eq!(part.received(5), (5, 0));
                assert_eq!(part.received(28 + len), (28, part.first.len()));
            }
            guess.saw_other();
            assert!(guess.prepare(&pool, 28).is_none());
        }
        let mut small = Guess::default();
        (0..2 * ROW).for_each(|_| small.saw_write(4096));
        assert!(small.prepare(&pool, 28).is_none());
    }
}
