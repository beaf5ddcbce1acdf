//! How far to copy ahead of sequential writers of an origin.
//!
//! A writer that goes through the origin from front to back, one small request after the other, would wait for a batch, and its
//! two flushes, at each chunk. So whoever has gone on where it stopped before is given as much again as it has written, up to
//! [`WINDOW`]: copied in one batch with what it wants now.
//!
//! What is copied in vain, where such a writer stops, takes room in the stores, but is never wrong: the snapshot's content is
//! the same. How much room there may be for it is `copy.rs`'s business.
//!
//! Invariants: (1) what is copied in vain for a writer is no more than it has written; (2) no more than [`WRITERS`] are told apart.

use blockwork_engine::{Sector, Sectors};

use super::family::{Want, Writer};

/// The most that is copied ahead of a writer.
const WINDOW: Sectors = Sectors(2048);

/// Writers that are told apart; more than that at once take turns being forgotten.
const WRITERS: usize = 4;

/// The sequential writers of an origin.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    writers: [Sequence; WRITERS],
    /// Counts batches, to find who has not been seen for longest.
    batch: u64,
}

/// A writer that may be sequential.
#[derive(Clone, Copy, Debug, Default)]
struct Sequence {
    /// One past what was copied for it.
    end: Sector,
    /// How much of that was ahead of it.
    window: Sectors,
    /// What it has wanted.
    written: Sectors,
    /// The batch that it had its last share in.
    seen: u64,
}

impl Sequence {
    /// Whether a write there goes on with it. Of a chunk that was copied because of its first sectors, the next one wanted is `chunk`
    /// away at most; and what was to be copied ahead may have been cut off.
    fn continues(&self, start: Sector, chunk: Sectors) -> bool {
        self.seen > 0 && start < self.end + chunk && start + self.window >= self.end
    }
}

impl Ahead {
    /// What is likely to be wanted next, after these; `chunk` is the largest of the stores'.
    pub(super) fn after(&mut self, wants: &[Want], chunk: Sectors) -> Vec<Want> {
        self.batch += 1;
        let mut by_origin: Vec<_> = wants.iter().filter(|want| want.by == Writer::Origin).collect();
        by_origin.sort_by_key(|want| want.start);
        let mut ahead = Vec::new();
        let mut at = 0;
        while let Some(first) = by_origin.get(at) {
            // Requests of one writer that wait together.
            let mut end = first.end;
            while let Some(next) = by_origin.get(at).filter(|next| next.start <= end) {
                end = end.max(next.end);
                at += 1;
            }
            ahead.extend(self.sequence(first.start, end, chunk));
        }
        ahead
    }

    /// Notes what a writer wants; gives what comes next, if it is sequential.
    fn sequence(&mut self, start: Sector, end: Sector, chunk: Sectors) -> Option<Want> {
        let known = self.writers.iter_mut().find(|writer| writer.continues(start, chunk));
        if let Some(writer) = known {
            writer.written += end.since(start);
            writer.window = writer.written.min(WINDOW);
            writer.end = end + writer.window;
            writer.seen = self.batch;
            return Some(Want { start: end, end: writer.end, by: Writer::Origin });
        }
        let oldest = self.writers.iter_mut().min_by_key(|writer| writer.seen);
        let written = end.since(start);
        *oldest.expect("there are some") = Sequence { end, window: Sectors::ZERO, written, seen: self.batch };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: Sectors = Sectors(8);

    fn want(start: u64, nr: u64) -> Want {
        Want { start: Sector(start), end: Sector(start + nr), by: Writer::Origin }
    }

    /// Where a writer waits that writes one chunk after the other, and how much is copied ahead there.
    fn waits(ahead: &mut Ahead, from: u64, times: usize) -> Vec<u64> {
        let mut at = from;
        let batch = |_| {
            let next = ahead.after(&[want(at, 8)], CHUNK);
            at = next.last().map_or(at + 8, |next| next.end.0);
            next.iter().map(|next| next.end.since(next.start).0).sum()
        };
        (0..times).map(batch).collect()
    }

    #[test]
    fn a_sequential_writer_gets_more_and_more() {
        let mut ahead = Ahead::default();
        assert_eq!(waits(&mut ahead, 800, 4), [0, 16, 24, 32]);
        let windows = waits(&mut ahead, 1 << 20, 400);
        assert_eq!(windows[399], WINDOW.0, "{windows:?}");
    }

    #[test]
    fn random_writers_and_writers_of_snapshots_get_nothing() {
        let mut ahead = Ahead::default();
        for at in [800, 16, 4000, 808_000, 24_000, 17_000] {
            assert_eq!(ahead.after(&[want(at, 8)], CHUNK), []);
        }
        for at in 0..4 {
            let want = Want { by: Writer::Snapshot(0), ..want(at * 8, 8) };
            assert_eq!(ahead.after(&[want], CHUNK), []);
        }
    }

    #[test]
    fn four_writers_at_once_and_requests_that_wait_together_are_told_apart() {
        let mut ahead = Ahead::default();
        let all = |nth: u64| -> Vec<_> {
            (0..8).rev().map(|n| want(n % 4 * 100_000 + nth + n / 4 * 8, 8)).collect()
        };
        assert_eq!(ahead.after(&all(0), CHUNK), []);
        let next = ahead.after(&all(16), CHUNK);
        assert_eq!(next, [0, 1, 2, 3].map(|n| want(n * 100_000 + 32, 32)));
    }

    #[test]
    fn a_writer_that_writes_little_of_large_chunks_is_sequential_too() {
        let mut ahead = Ahead::default();
        let chunk = Sectors(128);
        assert_eq!(ahead.after(&[want(0, 8)], chunk), []);
        assert_eq!(ahead.after(&[want(128, 8)], chunk), [want(136, 16)]);
    }
}
