//! A guess at what a client sends next: writes as long as its last ones, received straight to where they belong.
//!
//! A receive into the inbox brings several requests, whose payloads are copied from there to aligned memory. Who writes large pieces
//! mostly goes on with pieces of the same length. So after a few of these the next receive is made of parts: what is missing of the payload
//! that has begun, room for a header, memory for a payload, room for a header, and so on. Where something else comes, what lies in the wrong
//! place is moved to the inbox, as if it had been received there.
//!
//! Invariants:
//! 1. What a guess holds is no more than a large inbox, which is let go of meanwhile: a client that falls silent costs what it did without.
//! 2. What was received by a guess fits in the inbox as a whole.

use std::collections::VecDeque;

use blockwork_memory::{Buffer, Pool, Segment, Segments, bytes_in};

use super::requests::memory;
use super::{DIRECT_MIN, HEADER_MAX, inbox};

/// Writes in a row, of one length, after which it is guessed that there are more.
const ROW: u32 = 4;
/// Of longer ones no more than that is copied as it is: the rest is received straight to its place.
const LEN_MAX: usize = inbox::LARGE;
/// Requests in one receive.
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

    /// Whether there is one.
    #[inline]
    pub(super) fn is_made(&self) -> bool {
        self.row >= ROW && (DIRECT_MIN..=LEN_MAX).contains(&self.len)
    }

    /// What to receive into, in order, if there is a guess: `rest`, which is missing of the payload before, and what may follow it. Headers
    /// are so long.
    pub(super) fn prepare(&mut self, pool: &Pool, header: usize, rest: Option<Segment>) -> &[Segment] {
        let heads = self.heads.get_or_insert_with(|| Buffer::new(PARTS_MAX * HEADER_MAX)).clone();
        let (mut room, mut may_hold) = (inbox::LARGE, inbox::LARGE);
        self.clear();
        self.into.extend(rest);
        while self.parts.len() < PARTS_MAX && room >= header + DIRECT_MIN {
            let (data, held) = memory(pool, self.len);
            if held > may_hold {
                break;
            }
            may_hold -= held;
            let head = Segment::new(heads.clone(), self.parts.len() * HEADER_MAX, header);
            let first = data[0].slice(0, data[0].len().min(room - header));
            room -= header + first.len();
            self.into.extend([head.clone(), first.clone()]);
            self.parts.push_back(Part { head, data, held, first });
        }
        &self.into
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

    fn after_a_row_of(len: usize) -> Guess {
        let mut guess = Guess::default();
        (0..ROW).for_each(|_| {
            assert!(!guess.is_made());
            guess.saw_write(len);
        });
        guess
    }

    #[test]
    fn what_is_received_by_a_guess_fits_in_the_inbox_and_holds_no_more_than_that() {
        let pool = Pool::new(1 << 20);
        for len in [DIRECT_MIN, 65_536, 65_537, 100_001, LEN_MAX] {
            let mut guess = after_a_row_of(len);
            assert!(guess.is_made());
            let bytes: usize = guess.prepare(&pool, 28, None).iter().map(Segment::len).sum();
            assert!(bytes <= inbox::LARGE && bytes >= (28 + len).min(inbox::LARGE), "{len}: {bytes}");
            let rest = Segment::new(Buffer::new(5000), 0, 5000);
            let into = guess.prepare(&pool, 28, Some(rest.clone()));
            assert!(into[0].len() == 5000 && into[0].buffer().same(rest.buffer()));
            assert_eq!(into.iter().map(Segment::len).sum::<usize>(), 5000 + bytes);
            let mut held = 0;
            while let Some(part) = guess.next() {
                assert!(part.len() == len && part.held >= len && part.head.len() == 28);
                assert_eq!(part.received(5), (5, 0));
                assert_eq!(part.received(28 + len), (28, part.first.len()));
                held += part.held;
            }
            assert!(held <= inbox::LARGE, "{len}: {held}");
            guess.saw_other();
            assert!(!guess.is_made());
        }
    }

    #[test]
    fn there_is_no_guess_for_what_is_small_very_large_or_of_another_length_each_time() {
        for len in [4096, DIRECT_MIN - 1, LEN_MAX + 1, 32 << 20] {
            let mut guess = after_a_row_of(len);
            guess.saw_write(len);
            assert!(!guess.is_made(), "{len}");
        }
        let mut guess = Guess::default();
        for n in 0..4 * ROW {
            guess.saw_write(65_536 + 512 * (n % 2) as usize);
            assert!(!guess.is_made());
        }
    }
}
