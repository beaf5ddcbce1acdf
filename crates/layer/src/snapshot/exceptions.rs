//! The exceptions of a snapshot in memory: looked up by every bio, without a lock.
//!
//! Two arrays: for each chunk of the store, the old chunk whose content it has; and a hash table of chunks of the store, by old
//! chunk. So an exception costs 8 bytes, and its two slots (the table is at most half full) 4 bytes each: 16 together. Both
//! arrays grow by pages, as they are used. Neighbouring old chunks have neighbouring slots; and where an exception follows
//! another one both in the origin and in the store, as copies of sequential writes do, it is found by looking at the next
//! element of the first array. Where there are no exceptions, no slot is looked at: [`Kept`] has a bit for each 64 old chunks, which
//! is near where slots are not (a slot that nobody has looked at lately takes 100 ns to come).
//!
//! Invariants: (1) there is one writer at a time; readers see an exception whole or not at all, since its old chunk and its bit are stored
//! before its slot; (2) a slot is never taken back, so that a reader who probes finds what is behind it: of an exception that is
//! removed only the old chunk goes, and nothing is entered after that; (3) no search takes more than [`PROBES_MAX`] steps, whatever a hostile
//! store or client has chosen.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use blockwork_format::snapshot::Exception;
use blockwork_memory::bring_near;

/// Elements of a page.
const PAGE: usize = 4096;

/// Slots of old chunks that are neighbours: as many as a line of the processor's cache has.
const GROUP: u64 = 16;

/// Longest search. A table that is half full needs less than 1,000 even where it has 2^30 slots, unless somebody means to.
const PROBES_MAX: u64 = 4096;

/// The table.
#[derive(Debug)]
pub(super) struct Exceptions {
    /// By chunk of the store: the old chunk + 1; 0: none.
    old: Pages<AtomicU64>,
    /// A chunk of the store; 0: free.
    slots: Pages<AtomicU32>,
    groups: u64,
    kept: Kept,
}

/// What a range of chunks has in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where the first of them is in the store, and the others behind it; none: none of them has an exception.
    pub(super) new: Option<u64>,
    /// How many chunks.
    pub(super) chunks: u64,
}

/// There is no slot within reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crowded;

impl Exceptions {
    /// A table for so many exceptions at most, in a store of so many chunks, of an origin of so many.
    pub(super) fn new(capacity: u64, store_chunks: u64, origin_chunks: u64) -> Exceptions {
        let groups = (capacity * 2).div_ceil(GROUP).max(1);
        let (old, slots) = (Pages::new(store_chunks), Pages::new(groups * GROUP));
        Exceptions { old, slots, groups, kept: Kept::new(origin_chunks) }
    }

    /// The slot that an old chunk is looked for first. Neighbours have the slots of one group, in an order that differs from
    /// group to group, so that chunks at regular distances use all of them.
    #[inline]
    fn first_slot(&self, old: u64) -> u64 {
        let stirred = mix(old / GROUP);
        let group = (u128::from(stirred) * u128::from(self.groups)) >> 64;
        group as u64 * GROUP + (old ^ stirred) % GROUP
    }

    /// The slot that is searched after this one: of the next group, which a neighbour is not likely to have taken.
    #[inline]
    fn next_slot(&self, slot: u64) -> u64 {
        let (next, slots) = (slot + GROUP, self.groups * GROUP);
        if next < slots { next } else { (next - slots + 1) % GROUP }
    }

    /// The chunk of the store that has the content of `old`.
    #[inline]
    pub(super) fn find(&self, old: u64) -> Option<u64> {
        if self.kept.has_none(old) { None } else { self.search(old) }
    }

    /// What [`Exceptions::find`] will look at first is fetched meanwhile.
    #[inline]
    pub(super) fn approach(&self, old: u64) {
        if !self.kept.has_none(old)
            && let Some(slot) = self.slots.get(self.first_slot(old))
        {
            bring_near(slot);
        }
    }

    #[inline]
    fn search(&self, old: u64) -> Option<u64> {
        let mut slot = self.first_slot(old);
        for _ in 0..PROBES_MAX {
            let new = u64::from(self.slots.get(slot)?.load(Ordering::Acquire));
            if new == 0 {
                return None;
            }
            if self.old_of(new) == old + 1 {
                return Some(new);
            }
            slot = self.next_slot(slot);
        }
        None
    }

    /// What the chunks from `old` on, at most `most` of them, have in common.
    #[inline]
    pub(super) fn run(&self, old: u64, most: u64) -> Run {
        let new = self.find(old);
        let mut chunks = 1;
        match new {
            Some(new) => {
                while chunks < most && self.old_of(new + chunks) == old + chunks + 1 {
                    chunks += 1;
                }
            }
            None => {
                while chunks < most {
                    if self.kept.has_none(old + chunks) {
                        chunks = (Kept::next(old + chunks) - old).min(most);
                    } else if self.search(old + chunks).is_none() {
                        chunks += 1;
                    } else {
                        break;
                    }
                }
            }
        }
        Run { new, chunks }
    }

    /// The old chunk of a chunk of the store, + 1.
    #[inline]
    fn old_of(&self, new: u64) -> u64 {
        self.old.get(new).map_or(0, |old| old.load(Ordering::Acquire))
    }

    /// Enters an exception, whose old chunk has none.
    pub(super) fn insert(&self, exception: Exception) -> Result<(), Crowded> {
        let Exception { old, new } = exception;
        let number = u32::try_from(new).map_err(|_| Crowded)?;
        let mut slot = self.first_slot(old);
        for _ in 0..PROBES_MAX {
            let place = self.slots.make(slot);
            if place.load(Ordering::Relaxed) == 0 {
                self.old.make(new).store(old + 1, Ordering::Release);
                self.kept.note(old);
                place.store(number, Ordering::Release);
                return Ok(());
            }
            slot = self.next_slot(slot);
        }
        Err(Crowded)
    }

    /// Removes an exception that was entered. No other one may be entered after that.
    pub(super) fn remove(&self, exception: Exception) {
        if let Some(old) = self.old.get(exception.new) {
            old.store(0, Ordering::Release);
        }
    }
}

/// Old chunks that one bit stands for.
const KEPT: u64 = 64;
/// And one word of bits.
const KEPT_WORD: u64 = 64 * KEPT;
/// Old chunks with bits, at most: 128 TiB of 4 KiB each, whose words take 64 MiB. What lies behind is always searched.
const KEPT_MAX: u64 = 1 << 35;

/// Where there are exceptions, or have been.
#[derive(Debug)]
struct Kept {
    words: Pages<AtomicU64>,
    chunks: u64,
}

impl Kept {
    fn new(origin_chunks: u64) -> Kept {
        let chunks = origin_chunks.min(KEPT_MAX);
        Kept { words: Pages::new(chunks.div_ceil(KEPT_WORD)), chunks }
    }

    /// Whether none of the chunks that share a bit with `old` has, or has had, an exception.
    #[inline]
    fn has_none(&self, old: u64) -> bool {
        if old >= self.chunks {
            return false;
        }
        let word = self.words.get(old / KEPT_WORD).map_or(0, |word| word.load(Ordering::Acquire));
        word >> (old / KEPT % 64) & 1 == 0
    }

    /// The first chunk behind those that share a bit with `old`.
    #[inline]
    fn next(old: u64) -> u64 {
        (old / KEPT + 1) * KEPT
    }

    fn note(&self, old: u64) {
        if old < self.chunks {
            self.words.make(old / KEPT_WORD).fetch_or(1 << (old / KEPT % 64), Ordering::Release);
        }
    }
}

/// A number's bits, stirred: multiplied by 2^64 through the golden ratio, and the upper half, which that serves best, over the lower.
#[inline]
fn mix(number: u64) -> u64 {
    let bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (bits ^ (bits >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Most pages that one directory leads to: an array of 2^33 elements that are not used takes 12 KiB.
const DIRECTORY: usize = 4096;

/// An array whose pages are made when they are needed, and stay where they are. So are the directories that lead to them: how large an
/// origin and a store are is what metadata of a few bytes says, where they are made of zeros.
#[derive(Debug)]
struct Pages<T> {
    directories: Box<[OnceLock<Directory<T>>]>,
    /// Pages of a directory.
    length: usize,
}

type Directory<T> = Box<[OnceLock<Box<[T; PAGE]>>]>;

impl<T: Default> Pages<T> {
    fn new(len: u64) -> Pages<T> {
        let pages = len.div_ceil(PAGE as u64);
        let directories = pages.div_ceil(DIRECTORY as u64);
        let length = pages.min(DIRECTORY as u64) as usize;
        Pages { directories: (0..directories).map(|_| OnceLock::new()).collect(), length }
    }

    /// The element; none: nobody has needed its page, or it is beyond the end.
    #[inline]
    fn get(&self, at: u64) -> Option<&T> {
        let page = (at / PAGE as u64) as usize;
        let directory = self.directories.get(page / DIRECTORY)?.get()?;
        Some(&directory.get(page % DIRECTORY)?.get()?[at as usize % PAGE])
    }

    /// The element, which is within the array.
    fn make(&self, at: u64) -> &T {
        let page = (at / PAGE as u64) as usize;
        let new_directory = || (0..self.length).map(|_| OnceLock::new()).collect();
        let directory = self.directories[page / DIRECTORY].get_or_init(new_directory);
        let new_page = || Box::new(std::array::from_fn(|_| T::default()));
        &directory[page % DIRECTORY].get_or_init(new_page)[at as usize % PAGE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    impl Exceptions {
        /// What it takes.
        fn bytes(&self) -> usize {
            self.old.bytes() + self.slots.bytes() + self.kept.words.bytes()
        }
    }

    impl<T> Pages<T> {
        fn bytes(&self) -> usize {
            let directories = || self.directories.iter().filter_map(OnceLock::get);
            let pages = directories().flatten().filter(|page| page.get().is_some()).count();
            let own: usize = directories().map(|directory| size_of_val(&**directory)).sum();
            size_of_val(&*self.directories) + own + pages * size_of::<[T; PAGE]>()
        }
    }

    #[test]
    fn it_is_a_map_whatever_is_entered() {
        for step in [1, 3, 8, 1000, 1 << 20] {
            let table = Exceptions::new(5000, 10_000, 5001 * step);
            let mut model = BTreeMap::new();
            for n in 0..5000u64 {
                let exception = Exception { old: n * step, new: 2 + n };
                table.insert(exception).unwrap();
                model.insert(exception.old, exception.new);
            }
            for old in (0..5001).flat_map(|n| [n * step, n * step + 1]) {
                assert_eq!(table.find(old), model.get(&old).copied(), "chunk {old}");
            }
        }
    }

    #[test]
    fn what_is_removed_is_not_found_and_what_lies_behind_it_is() {
        let table = Exceptions::new(400, 1000, 1200);
        let all: Vec<_> = (0..400).map(|n| Exception { old: n * 3, new: 2 + n }).collect();
        all.iter().for_each(|exception| table.insert(*exception).unwrap());
        let (kept, gone) = all.split_at(150);
        gone.iter().for_each(|exception| table.remove(*exception));
        assert!(kept.iter().all(|exception| table.find(exception.old) == Some(exception.new)));
        assert!(gone.iter().all(|exception| table.find(exception.old).is_none()));
    }

    #[test]
    fn a_full_table_is_searched_in_few_steps_whatever_the_distance_of_its_chunks() {
        for step in [1, 2, 7, 8, 64, 4096] {
            let table = Exceptions::new(1 << 14, 1 << 15, step << 14);
            let olds = || (0..1 << 14).map(|n| n * step);
            olds().zip(2..).for_each(|(old, new)| table.insert(Exception { old, new }).unwrap());
            let steps = |old| {
                let found = table.find(old).unwrap();
                let slots =
                    std::iter::successors(Some(table.first_slot(old)), |slot| Some(table.next_slot(*slot)));
                let holds =
                    |slot: &u64| u64::from(table.slots.get(*slot).unwrap().load(Ordering::Relaxed)) == found;
                slots.take_while(|slot| !holds(slot)).count() + 1
            };
            let total: usize = olds().map(steps).sum();
            assert!(
                total < 2 << 14,
                "{total} steps for {} chunks, each {step} behind the one before",
                1 << 14
            );
        }
    }

    #[test]
    fn runs_end_where_the_origin_or_the_store_goes_on_elsewhere() {
        let table = Exceptions::new(100, 200, 200);
        for (old, new) in [(10, 2), (11, 3), (12, 4), (13, 6), (20, 5), (21, 7)] {
            table.insert(Exception { old, new }).unwrap();
        }
        let run = |old, most| {
            let Run { new, chunks } = table.run(old, most);
            (new, chunks)
        };
        assert_eq!([run(10, 100), run(11, 1), run(13, 100)], [(Some(2), 3), (Some(3), 1), (Some(6), 1)]);
        assert_eq!([run(0, 100), run(14, 100), run(22, 5)], [(None, 10), (None, 6), (None, 5)]);
        assert_eq!(run(20, 2), (Some(5), 1));
    }

    #[test]
    fn runs_without_exceptions_end_at_the_next_one_wherever_bits_and_words_end() {
        for at in [63, 64, 65, 4095, 4096, 4097, 12_288] {
            let table = Exceptions::new(100, 200, 10_000);
            table.insert(Exception { old: at, new: 2 }).unwrap();
            for from in [0, 1, 62, 63, 64, at - 1].into_iter().filter(|from| *from < at) {
                assert_eq!(table.run(from, 20_000), Run { new: None, chunks: at - from }, "{from} to {at}");
            }
            assert_eq!(table.run(at, 20_000), Run { new: Some(2), chunks: 1 }, "{at}");
            assert_eq!(table.run(at + 1, 20_000), Run { new: None, chunks: 20_000 }, "{at}");
        }
    }

    #[test]
    fn a_full_table_takes_16_bytes_an_exception() {
        let capacity = 1 << 16;
        let table = Exceptions::new(capacity, capacity + 2, capacity * 3);
        (0..capacity).for_each(|n| table.insert(Exception { old: n * 3, new: 2 + n }).unwrap());
        let bytes = table.bytes();
        // Besides, the last page of old chunks and the first of bits, and what leads to all of them.
        let begun = 2 * 8 * PAGE as u64 + 1024;
        assert!(bytes as u64 <= 16 * capacity + begun, "{bytes} bytes for {capacity} exceptions");
    }

    #[test]
    fn a_table_that_could_have_all_there_can_be_takes_memory_only_for_what_it_has() {
        let most = u64::from(u32::MAX) - 1;
        let table = Exceptions::new(most, most, u64::MAX);
        assert!(table.bytes() < 24 << 10, "{} bytes for nothing", table.bytes());
        let ends = [(0, 2), (KEPT_MAX - 1, most - 1), (u64::MAX - 1, 3)];
        ends.iter().for_each(|(old, new)| table.insert(Exception { old: *old, new: *new }).unwrap());
        assert!(ends.iter().all(|(old, new)| table.find(*old) == Some(*new)));
        assert_eq!([1, KEPT_MAX, u64::MAX - 2].map(|old| table.find(old)), [None; 3]);
        assert!(table.bytes() < 1 << 20, "{} bytes for three exceptions", table.bytes());
    }

    #[test]
    fn who_chooses_chunks_that_collide_is_refused_and_does_not_hang() {
        let table = Exceptions::new(1 << 14, 1 << 14, u64::MAX);
        let near_the_start = (0u64..).filter(|old| {
            let slot = table.first_slot(*old);
            slot < 16 * GROUP && slot.is_multiple_of(GROUP)
        });
        let mut entered = 0;
        for (old, new) in near_the_start.zip(2..10_000) {
            match table.insert(Exception { old, new }) {
                Ok(()) => entered += 1,
                Err(Crowded) => break,
            }
        }
        assert!((PROBES_MAX - 200..=PROBES_MAX + 200).contains(&entered), "{entered}");
    }
}
