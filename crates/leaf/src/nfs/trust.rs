//! Whether a server does several writes of one call as it should.
//!
//! Linux's nfsd does not (6.1 was measured): of every write but the first of a call it takes the data from the start of the page in which it
//! begins, so that something of the message before it is written, and its end is missing (`svc_fill_write_vector` in net/sunrpc/svc.c, which is
//! gone since 6.16). Linux's client never asks for two writes in a call, so nobody noticed. What it answers is that all is well.
//!
//! So no server is believed: in each life of it (each write verifier) the first calls are of two writes and one at a time, and every write of
//! a call larger than those that it has shown to do well is read back and compared, before anybody is told that it is done. One that is not as
//! it should be is written again by itself, and from then on all go by themselves. Until then reads get what is being written (`ledger`): a
//! sector is as it was or as it will be, never anything else. A connection has one life of the server at its other end, so what it has
//! shown counts on those connections on which it was heard in the same life.
//!
//! How many writes and bytes a server takes in a call it does not say. One that refuses a call of several, or twice closes the connection on
//! which it came, is asked with half as many.
//!
//! Invariant: no write that came in a call with others is answered unless it was read back, or calls of as many writes and calls of as many
//! bytes, of that life of the server, have been.

use blockwork_format::nfs3::{Verifier, WriteReply};
use blockwork_format::nfs4::WRITES_MAX;
use blockwork_memory::{Segment, Segments, slice_segments};

use super::call::Write;

/// So many writes, none of them the first of its call, have to be as they should be.
const PROOFS: u32 = 16;

/// How large a call of writes is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Its writes.
    pub(super) writes: usize,
    /// Bytes of all of them: a power of two that is not less.
    bytes: u64,
}

impl Size {
    pub(super) fn of(writes: &[Write]) -> Size {
        let bytes = writes.iter().map(|write| u64::from(write.left().count)).sum::<u64>();
        Size { writes: writes.len(), bytes: bytes.next_power_of_two() }
    }
}

/// What a server has shown, seen by all workers.
pub(super) struct Trust {
    life: Option<Verifier>,
    /// Most writes of a call.
    writes_max: usize,
    /// Writes that were found as they should be, in that life; none of them the first of its call.
    good: u32,
    /// The most writes and the most bytes that those were in, not necessarily in the same call.
    size: Size,
    is_broken: bool,
}

impl Default for Trust {
    fn default() -> Trust {
        Trust { life: None, writes_max: WRITES_MAX, good: 0, size: Size::default(), is_broken: false }
    }
}

impl Trust {
    /// Most writes of a call, whatever it has shown.
    pub(super) fn writes_max(&self) -> usize {
        if self.is_broken { 1 } else { self.writes_max }
    }

    /// It does not take so many. Where that is for the bytes that they have, half as many have half of those as well.
    pub(super) fn refuses(&mut self, writes: usize) {
        self.writes_max = self.writes_max.min(writes / 2).max(1);
    }

    /// Whether it has shown nothing yet.
    pub(super) fn is_untried(&self) -> bool {
        self.good == 0
    }

    /// It has answered in that life of it.
    pub(super) fn hear(&mut self, verifier: Verifier) {
        if self.life != Some(verifier) {
            *self = Trust { life: Some(verifier), good: 0, size: Size::default(), ..*self };
        }
    }

    /// Whether to believe, without looking, what it says of a call of that size on a connection on which it was last heard in the life `heard`.
    pub(super) fn believes(&self, size: Size, heard: Option<Verifier>) -> bool {
        let proved = !self.is_broken
            && heard.is_some()
            && heard == self.life
            && self.good >= PROOFS
            && size.writes <= self.size.writes
            && size.bytes <= self.size.bytes;
        size.writes == 1 || proved
    }

    /// A write of such a call, not the first, was as it should be, in that life.
    pub(super) fn found_good(&mut self, verifier: Verifier, size: Size) {
        if self.life == Some(verifier) {
            self.good = self.good.saturating_add(1);
            self.size.writes = self.size.writes.max(size.writes);
            self.size.bytes = self.size.bytes.max(size.bytes);
        }
    }

    /// One was not. Whether that is news.
    pub(super) fn found_bad(&mut self) -> bool {
        !std::mem::replace(&mut self.is_broken, true)
    }
}

/// A write that the server says it has done, while it is read back.
pub(super) struct Check {
    pub(super) write: Write,
    pub(super) reply: WriteReply,
    pub(super) size: Size,
    /// It is the first of its call.
    pub(super) is_first: bool,
}

impl Check {
    /// Whether `found` is what was to be written.
    pub(super) fn is_right(&self, found: &[Segment]) -> bool {
        let mut wanted = Segments::new();
        slice_segments(&self.write.data, self.write.done as usize, self.reply.count as usize, &mut wanted);
        bytes_of(&wanted) == bytes_of(found)
    }
}

fn bytes_of(segments: &[Segment]) -> Vec<u8> {
    let mut out = Vec::new();
    for segment in segments {
        let start = out.len();
        out.resize(start + segment.len(), 0);
        segment.read_at(0, &mut out[start..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Verifier = [1; 8];
    const TWO: Verifier = [2; 8];

    fn size(writes: usize, bytes: u64) -> Size {
        Size { writes, bytes }
    }

    fn tried(size: Size) -> Trust {
        let mut trust = Trust::default();
        trust.hear(ONE);
        (0..PROOFS).for_each(|_| trust.found_good(ONE, size));
        trust
    }

    #[test]
    fn a_server_is_believed_after_so_many_and_no_larger_calls() {
        let mut trust = Trust::default();
        assert!(
            trust.is_untried()
                && trust.believes(size(1, 1 << 20), None)
                && !trust.believes(size(2, 1024), Some(ONE))
        );
        trust.hear(ONE);
        for _ in 1..PROOFS {
            trust.found_good(ONE, size(2, 8192));
            assert!(!trust.is_untried() && !trust.believes(size(2, 1024), Some(ONE)));
        }
        trust.found_good(ONE, size(2, 8192));
        assert!(trust.believes(size(2, 8192), Some(ONE)) && trust.believes(size(2, 1024), Some(ONE)));
        assert!(!trust.believes(size(3, 8192), Some(ONE)) && !trust.believes(size(2, 16384), Some(ONE)));
        trust.found_good(ONE, size(4, 65536));
        assert!(trust.believes(size(4, 65536), Some(ONE)) && !trust.believes(size(5, 1024), Some(ONE)));
    }

    #[test]
    fn another_life_has_to_show_it_again() {
        let mut trust = tried(size(4, 65536));
        trust.hear(ONE);
        assert!(trust.believes(size(4, 65536), Some(ONE)));
        assert!(!trust.believes(size(4, 65536), None) && !trust.believes(size(4, 65536), Some(TWO)));
        trust.hear(TWO);
        assert!(trust.is_untried() && !trust.believes(size(2, 1024), Some(TWO)));
        // What the life before has done is no proof of this one.
        trust.found_good(ONE, size(4, 65536));
        assert!(trust.is_untried());
    }

    #[test]
    fn what_is_refused_is_asked_in_halves() {
        let mut trust = tried(size(4, 65536));
        assert_eq!(trust.writes_max(), WRITES_MAX);
        let mut after = |refused| {
            trust.refuses(refused);
            trust.writes_max()
        };
        // Two that were under way at once say no more than one.
        assert_eq!([15, 15, 7, 3, 2, 1].map(&mut after), [7, 7, 3, 1, 1, 1]);
        trust.hear(TWO);
        assert_eq!(trust.writes_max(), 1);
    }

    #[test]
    fn one_that_is_wrong_is_not_believed_in_any_life() {
        let mut trust = tried(size(4, 65536));
        assert!(trust.found_bad() && !trust.found_bad());
        trust.hear(TWO);
        (0..PROOFS).for_each(|_| trust.found_good(TWO, size(4, 65536)));
        assert!(
            trust.writes_max() == 1
                && !trust.believes(size(2, 1024), Some(ONE))
                && trust.believes(size(1, 65536), Some(ONE))
        );
    }
}
