//! How far to copy ahead of sequential writers of an origin.
//!
//! A writer that goes through the origin from front to back, one request after the other, would wait for a batch, and its two
//! flushes, at each chunk. So whoever goes on where it stopped before is given half as much again as it has gone through, up to
//! [`WINDOW`]: its *window*, which is counted in sectors, whatever the size of requests and chunks. In the middle of a window
//! lies a *mark*: the write that comes to it proves the first half, and the next half is copied while the writer is in the second.
//!
//! Requests of one writer that wait together need not be complete or in order: where they cover most of a stretch, what lies
//! between them is taken to come too. How much may lie between them is an eighth, or a quarter, of what the writer has gone through.
//!
//! What is copied in vain, where such a writer stops, takes room in the stores, but is never wrong: the snapshot's content is
//! the same. How much room there may be for it is `give_out.rs`'s business; how much there is in vain is counted here.
//!
//! Invariants: (1) what is copied in vain for a writer is no more than half of what it has gone through, and the rest of a chunk; (2) no more than [`WRITERS`] are told
//! apart; (3) every chunk that was given out ahead is in vain until its writer is known to have come to it.

use std::sync::atomic::{AtomicU64, Ordering};

use blockwork_engine::{Sector, Sectors};

use super::family::{Want, Writer};

/// The most that is copied ahead of a writer: 8 MiB. Half of it is copied at a time, and a batch's flushes are then a small part of
/// what the bytes take (4 MiB: some milliseconds at 1 GB/s; a flush: less than one). More would bring little, keep those who wait for
/// the family's turn for longer, and be lost where the writer stops.
pub(super) const WINDOW: Sectors = Sectors(16_384);

/// Writers that are told apart. Where there are more, those who are not known to be sequential take turns being forgotten.
const WRITERS: usize = 4;

/// A sequential writer that has not been seen for so many batches is gone.
const GONE_AFTER: u64 = 256;

/// What may be wanted next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// By which writer.
    pub(super) slot: usize,
    pub(super) want: Want,
}

/// The sequential writers of an origin.
#[derive(Debug)]
pub(super) struct Ahead {
    writers: [Sequence; WRITERS],
    /// Sizes of the stores' chunks.
    chunks: Box<[Sectors]>,
    /// By store: chunks that were given out for writers who are forgotten, and who did not come to them.
    wasted: Box<[u64]>,
    /// Counts batches, to find who has not been seen for longest.
    batch: u64,
}

/// A writer that may be sequential.
#[derive(Clone, Debug, Default)]
struct Sequence {
    /// Where it was seen first.
    begin: Sector,
    /// One past what it is known to have wanted.
    seen: Sector,
    /// One past what is copied for it, or to be.
    ahead: Sector,
    /// By store: chunks that were given out for it, and that it is not known to have come to.
    given: Box<[u64]>,
    /// A write there shows that half of the window is used.
    mark: Option<Sector>,
    /// The batch that it had its last share in; 0: nobody.
    batch: u64,
}

impl Sequence {
    fn gone_through(&self) -> Sectors {
        self.seen.since(self.begin)
    }

    fn window(&self) -> Sectors {
        self.ahead.since(self.seen)
    }

    /// Whether a write there goes on with it. Of a chunk that was copied because of its first sectors, the next one wanted is `chunk`
    /// away at most; what was to be copied ahead may have been cut off; and of requests under way a later one may come first.
    fn continues(&self, start: Sector, chunk: Sectors) -> bool {
        let slack = Sectors(self.gone_through().0 / 8).max(chunk);
        self.batch > 0 && start < self.ahead + slack && start + slack > self.seen
    }

    /// It has come as far as `seen`: what lies ahead of it from now on.
    fn go_on(&mut self, seen: Sector, chunks: &[Sectors]) {
        self.seen = self.seen.max(seen);
        let window = Sectors(self.gone_through().0 / 2).min(WINDOW);
        self.ahead = self.ahead.max(self.seen + window);
        // Where the mark is to be a write's first sector, it is where a chunk begins.
        let chunk = chunks.iter().max().map_or(1, |chunk| chunk.0);
        let middle = Sector((self.seen.0 + window.0 / 2) / chunk * chunk);
        self.mark = Some(middle).filter(|mark| *mark >= self.seen);
    }

    /// What was given out behind `ahead`, which it has had before it went on, or less, is known to be used.
    fn prove(&mut self, ahead: Sector, chunks: &[Sectors]) {
        let left = Sectors(ahead.0.saturating_sub(self.seen.0));
        for (given, chunk) in self.given.iter_mut().zip(chunks) {
            *given = (*given).min(left.0.div_ceil(chunk.0));
        }
    }
}

impl Ahead {
    /// For stores with chunks of these sizes.
    pub(super) fn new(chunks: Box<[Sectors]>) -> Ahead {
        let wasted = vec![0; chunks.len()].into();
        Ahead { writers: Default::default(), chunks, wasted, batch: 0 }
    }

    /// What is likely to be wanted next, after these.
    pub(super) fn after(&mut self, wants: &[Want]) -> Vec<Stretch> {
        self.batch += 1;
        let mut by_origin: Vec<_> = wants.iter().filter(|want| want.by == Writer::Origin).collect();
        by_origin.sort_by_key(|want| want.start);
        let mut stretches = Vec::new();
        let mut at = 0;
        while let Some(first) = by_origin.get(at) {
            // Requests of one writer that wait together.
            let mut end = first.end;
            let follows =
                |next: &Want, end: Sector| next.start <= end + Sectors(end.since(first.start).0 / 4);
            while let Some(next) = by_origin.get(at).filter(|next| next.start <= end || follows(next, end)) {
                end = end.max(next.end);
                at += 1;
            }
            stretches.extend(self.sequence(first.start, end));
        }
        stretches
    }

    /// Notes what a writer wants; gives what comes next, if it is sequential.
    fn sequence(&mut self, start: Sector, end: Sector) -> Option<Stretch> {
        let chunk = self.chunks.iter().copied().max().unwrap_or(Sectors::ZERO);
        let known = self.writers.iter().position(|writer| writer.continues(start, chunk));
        let Some(slot) = known else {
            self.begin(start, end);
            return None;
        };
        let writer = &mut self.writers[slot];
        let before = writer.ahead;
        writer.batch = self.batch;
        writer.go_on(end, &self.chunks);
        writer.prove(before, &self.chunks);
        let want = Want { start: start.min(before), end: writer.ahead, by: Writer::Origin };
        Some(Stretch { slot, want })
    }

    /// A writer that was not seen before takes the place of one that is gone, or not known to be sequential.
    fn begin(&mut self, start: Sector, end: Sector) {
        let now = self.batch;
        let is_at_work =
            |writer: &Sequence| writer.window() > Sectors::ZERO && writer.batch + GONE_AFTER > now;
        let oldest =
            self.writers.iter_mut().filter(|writer| !is_at_work(writer)).min_by_key(|writer| writer.batch);
        let Some(writer) = oldest else { return };
        self.wasted.iter_mut().zip(&writer.given).for_each(|(wasted, given)| *wasted += given);
        let given = vec![0; self.chunks.len()].into();
        *writer = Sequence { begin: start, seen: end, ahead: end, given, mark: None, batch: now };
    }

    /// A writer has come to its mark, with a write that ends at `end`: what is to be copied next; none: it is not there any more.
    pub(super) fn at_mark(&mut self, slot: usize, mark: Sector, end: Sector) -> Option<Stretch> {
        let writer = self.writers.get_mut(slot).filter(|writer| writer.mark == Some(mark))?;
        let before = writer.ahead;
        writer.batch = self.batch;
        writer.go_on(end, &self.chunks);
        writer.prove(before, &self.chunks);
        let want = Want { start: before, end: writer.ahead, by: Writer::Origin };
        (want.start < want.end).then_some(Stretch { slot, want })
    }

    /// So many chunks of a store were given out for what is ahead of a writer.
    pub(super) fn give(&mut self, slot: usize, store: usize, chunks: u64) {
        self.writers[slot].given[store] += chunks;
    }

    /// How many chunks of a store were given out ahead, and are not known to have been come to.
    pub(super) fn in_vain(&self, store: usize) -> u64 {
        let given = self.writers.iter().filter_map(|writer| writer.given.get(store));
        self.wasted[store] + given.sum::<u64>()
    }

    /// Where the writers' marks are.
    pub(super) fn marks(&self) -> [Option<Sector>; WRITERS] {
        std::array::from_fn(|slot| self.writers[slot].mark)
    }
}

/// The writers' marks, as every write of the origin looks at them.
#[derive(Debug)]
pub(super) struct Marks([AtomicU64; WRITERS]);

/// No write begins there.
const NO_MARK: u64 = u64::MAX;

impl Default for Marks {
    fn default() -> Marks {
        Marks(std::array::from_fn(|_| AtomicU64::new(NO_MARK)))
    }
}

impl Marks {
    /// Whether a write comes to one.
    #[inline]
    pub(super) fn touches(&self, start: Sector, end: Sector) -> bool {
        self.0.iter().any(|mark| is_within(mark.load(Ordering::Relaxed), start, end))
    }

    /// Takes away the mark that a write has come to: whose, and where it was. One of those who come to it at once gets it.
    pub(super) fn take(&self, start: Sector, end: Sector) -> Option<(usize, Sector)> {
        self.0.iter().enumerate().find_map(|(slot, mark)| {
            let at = mark.load(Ordering::Relaxed);
            let is_ours = is_within(at, start, end)
                && mark.compare_exchange(at, NO_MARK, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            is_ours.then_some((slot, Sector(at)))
        })
    }

    /// Sets them all.
    pub(super) fn set(&self, marks: [Option<Sector>; WRITERS]) {
        for (mark, at) in self.0.iter().zip(marks) {
            mark.store(at.map_or(NO_MARK, |at| at.0), Ordering::Relaxed);
        }
    }
}

#[inline]
fn is_within(mark: u64, start: Sector, end: Sector) -> bool {
    mark.wrapping_sub(start.0) < end.0 - start.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: Sectors = Sectors(8);

    fn sequences(chunks: &[Sectors]) -> Ahead {
        Ahead::new(chunks.into())
    }

    fn want(start: u64, nr: u64) -> Want {
        Want { start: Sector(start), end: Sector(start + nr), by: Writer::Origin }
    }

    fn stretch(slot: usize, start: u64, nr: u64) -> Stretch {
        Stretch { slot, want: want(start, nr) }
    }

    /// What is copied ahead at each wait of a writer that waits where nothing is copied, and never comes to a mark.
    fn windows(ahead: &mut Ahead, from: u64, nr: u64, times: usize) -> Vec<u64> {
        let mut at = from;
        let batch = |_| {
            let next = ahead.after(&[want(at, nr)]);
            let end = next.last().map_or(at + nr, |next| next.want.end.0);
            let window = end - (at + nr);
            at = end;
            window
        };
        (0..times).map(batch).collect()
    }

    #[test]
    fn a_sequential_writer_gets_half_of_what_it_has_gone_through_whatever_it_writes_at_a_time() {
        assert_eq!(windows(&mut sequences(&[CHUNK]), 800, 8, 5), [0, 8, 16, 28, 46]);
        assert_eq!(windows(&mut sequences(&[CHUNK]), 800, 64, 5), [0, 64, 128, 224, 368]);
        for nr in [8, 64, 2048] {
            let windows = windows(&mut sequences(&[CHUNK]), 1 << 20, nr, 30);
            assert_eq!(windows[29], WINDOW.0, "{nr}: {windows:?}");
        }
    }

    #[test]
    fn at_a_mark_the_next_half_is_copied_while_the_writer_goes_on() {
        let mut ahead = sequences(&[CHUNK]);
        windows(&mut ahead, 0, 8, 30);
        let (slot, mark) =
            ahead.marks().iter().enumerate().find_map(|(slot, mark)| Some((slot, (*mark)?))).unwrap();
        let end = ahead.writers[slot].ahead;
        let half = WINDOW.0 / 2..WINDOW.0 / 2 + CHUNK.0;
        assert!(half.contains(&end.since(mark).0));
        let next = ahead.at_mark(slot, mark, mark + CHUNK).unwrap();
        assert_eq!((next.slot, next.want.start), (slot, end));
        assert!(half.contains(&next.want.end.since(end).0), "{next:?}");
        assert_eq!(ahead.at_mark(slot, mark, mark + CHUNK), None, "a mark counts once");
        assert!(ahead.marks()[slot] > Some(mark));
    }

    #[test]
    fn random_writers_writers_at_distances_and_writers_of_snapshots_get_nothing() {
        let mut ahead = sequences(&[CHUNK]);
        for at in [800, 16, 4000, 808_000, 24_000, 17_000] {
            assert_eq!(ahead.after(&[want(at, 8)]), []);
        }
        for nth in 0..40 {
            assert_eq!(ahead.after(&[want(1_000_000 + nth * 24, 8)]), [], "every third chunk");
            assert_eq!(ahead.after(&[want(9_000_000 - nth * 8, 8)]), [], "backwards");
        }
        for at in 0..4 {
            let want = Want { by: Writer::Snapshot(0), ..want(at * 8, 8) };
            assert_eq!(ahead.after(&[want]), []);
        }
    }

    #[test]
    fn four_writers_at_once_and_requests_that_wait_together_are_told_apart() {
        let mut ahead = sequences(&[CHUNK]);
        let all = |nth: u64| -> Vec<_> {
            (0..8).rev().map(|n| want(n % 4 * 100_000 + nth + n / 4 * 8, 8)).collect()
        };
        assert_eq!(ahead.after(&all(0)), []);
        let next = ahead.after(&all(16));
        let slots: Vec<_> = next.iter().map(|next| next.slot).collect();
        assert_eq!(next, [0, 1, 2, 3].map(|n| stretch(slots[n as usize], n * 100_000 + 16, 32)));
        // While they are at work, nobody takes their place.
        for at in 0..100 {
            assert_eq!(ahead.after(&[want(1_000_000 + at * 5000, 8)]), []);
        }
        assert_eq!(ahead.after(&[want(300_048, 8)]).len(), 1);
    }

    #[test]
    fn requests_out_of_order_with_some_missing_are_one_writer_and_what_is_missing_is_copied_too() {
        let mut ahead = sequences(&[CHUNK]);
        let some = |chunks: &[u64]| chunks.iter().map(|chunk| want(chunk * 8, 8)).collect::<Vec<_>>();
        assert_eq!(ahead.after(&some(&[3, 0, 1, 2, 4, 7, 5, 9])), []);
        // 8 comes late, with the next ones, of which 12 has not come.
        let next = ahead.after(&some(&[8, 10, 11, 13]));
        assert_eq!(next.last().map(|next| next.want.end), Some(Sector(14 * 8 * 3 / 2)), "{next:?}");
        let holds = |chunk: u64| {
            next.iter().any(|next| next.want.start.0 <= chunk * 8 && chunk * 8 < next.want.end.0)
        };
        assert!(holds(12) && holds(14) && holds(20));
    }

    #[test]
    fn a_writer_that_writes_little_of_large_chunks_is_sequential_too() {
        let mut ahead = sequences(&[Sectors(128), CHUNK]);
        assert_eq!(ahead.after(&[want(0, 8)]), []);
        let next = ahead.after(&[want(128, 8)]);
        assert_eq!(next.iter().map(|next| next.want.end.0).collect::<Vec<_>>(), [136 + 68]);
        assert!(ahead.marks().iter().flatten().all(|mark| mark.0 % 128 == 0));
    }

    #[test]
    fn what_was_given_out_is_in_vain_until_its_writer_comes_to_it_and_for_ever_where_it_stops() {
        let mut ahead = sequences(&[CHUNK, Sectors(16)]);
        ahead.after(&[want(0, 8)]);
        let next = ahead.after(&[want(8, 8)])[0];
        ahead.give(next.slot, 0, 2);
        ahead.give(next.slot, 1, 1);
        assert_eq!((ahead.in_vain(0), ahead.in_vain(1)), (2, 1));
        // It comes to a part of it.
        assert!(ahead.at_mark(next.slot, Sector(16), Sector(17)).is_some());
        assert_eq!((ahead.in_vain(0), ahead.in_vain(1)), (1, 1));
        ahead.after(&[want(32, 8)]);
        assert_eq!((ahead.in_vain(0), ahead.in_vain(1)), (0, 0));
        ahead.give(next.slot, 0, 5);
        // Others take its place in time.
        for at in 0..2 * GONE_AFTER {
            ahead.after(&[want(1_000_000 + at * 5000, 8)]);
        }
        assert!(ahead.writers.iter().all(|writer| writer.begin > Sector(0)));
        assert_eq!((ahead.in_vain(0), ahead.in_vain(1)), (5, 0));
    }

    #[test]
    fn one_write_takes_a_mark_that_it_comes_to() {
        let marks = Marks::default();
        assert!(!marks.touches(Sector(0), Sector(1 << 50)));
        marks.set([None, Some(Sector(24)), None, Some(Sector(100))]);
        assert!(marks.touches(Sector(24), Sector(25)) && marks.touches(Sector(0), Sector(25)));
        assert!(!marks.touches(Sector(0), Sector(24)) && !marks.touches(Sector(25), Sector(100)));
        assert_eq!(marks.take(Sector(16), Sector(32)), Some((1, Sector(24))));
        assert_eq!(marks.take(Sector(16), Sector(32)), None);
        assert!(!marks.touches(Sector(24), Sector(25)) && marks.touches(Sector(100), Sector(101)));
    }
}
