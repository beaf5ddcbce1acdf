//! The pages of a ring, as one range of words.

use std::sync::atomic::Ordering;

use blockwork_format::blkif::{PAGE_BYTES, ring};
use blockwork_memory::Segment;

/// Bytes of a word. Entries of a ring begin at whole words and have whole words, in both layouts, so that none lies in two
/// pages.
const WORD: usize = 4;
/// Bytes of two, which are loaded or stored at once where they begin at a multiple of that: what is read right after it was written in
/// parts waits until all of that is done, and most fields are no longer.
const LONG: usize = 8;

/// Shared pages, one after the other. All access is by whole words, one or two, each loaded or stored once.
#[derive(Clone, Debug)]
pub struct SharedPages {
    pages: Vec<Segment>,
}

/// Pages that make no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a ring has {found} pages of {bytes} bytes, expected 1, 2, 4, 8 or {} of {PAGE_BYTES}",
    ring::PAGES_MAX
)]
pub struct NotARing {
    /// How many there are.
    pub found: usize,
    /// What the first that is wrong has; or any one, where their number is.
    pub bytes: usize,
}

impl SharedPages {
    /// These, in order.
    ///
    /// # Errors
    /// Their number is no power of two up to [`ring::PAGES_MAX`], or one is no whole page.
    pub fn new(pages: Vec<Segment>) -> Result<SharedPages, NotARing> {
        let found = pages.len();
        let odd = pages.iter().find(|page| page.len() != PAGE_BYTES || !page.offset().is_multiple_of(LONG));
        let bytes = odd.or(pages.first()).map_or(0, Segment::len);
        if odd.is_some() || !found.is_power_of_two() || found > ring::PAGES_MAX as usize {
            return Err(NotARing { found, bytes });
        }
        Ok(SharedPages { pages })
    }

    /// How many.
    pub fn count(&self) -> u32 {
        u32::try_from(self.pages.len()).expect("at most PAGES_MAX")
    }

    #[inline]
    fn place(&self, offset: usize) -> (&Segment, usize) {
        let page = &self.pages[offset / PAGE_BYTES];
        (page, page.offset() + offset % PAGE_BYTES)
    }

    /// The word at `offset`, bytes from the start of the first page.
    #[inline]
    pub(super) fn load(&self, offset: usize, order: Ordering) -> u32 {
        let (page, at) = self.place(offset);
        load(page, at, order)
    }

    /// Sets the word at `offset`.
    #[inline]
    pub(super) fn store(&self, offset: usize, value: u32, order: Ordering) {
        let (page, at) = self.place(offset);
        page.buffer().store_u32(at, value, order);
    }

    /// Copies out whole words, each by one load.
    #[inline]
    pub(super) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let (longs, rest) = bytes.split_at_mut(by_longs(offset, bytes.len()));
        for (n, long) in longs.chunks_exact_mut(LONG).enumerate() {
            let (page, at) = self.place(offset + n * LONG);
            long.copy_from_slice(&load_long(page, at).to_le_bytes());
        }
        for (n, word) in rest.chunks_exact_mut(WORD).enumerate() {
            let value = self.load(offset + longs.len() + n * WORD, Ordering::Relaxed);
            word.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Copies in whole words, each by one store.
    #[inline]
    pub(super) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let (longs, rest) = bytes.split_at(by_longs(offset, bytes.len()));
        for (n, long) in longs.chunks_exact(LONG).enumerate() {
            let (page, at) = self.place(offset + n * LONG);
            let value = u64::from_le_bytes(long.try_into().expect("as long as a chunk"));
            page.buffer().store_u64(at, value, Ordering::Relaxed);
        }
        for (n, word) in rest.chunks_exact(WORD).enumerate() {
            let value = u32::from_le_bytes(word.try_into().expect("as long as a chunk"));
            self.store(offset + longs.len() + n * WORD, value, Ordering::Relaxed);
        }
    }
}

/// Of so many bytes at `offset`, how many can be had two words at a time.
#[inline]
fn by_longs(offset: usize, len: usize) -> usize {
    if offset.is_multiple_of(LONG) { len / LONG * LONG } else { 0 }
}

/// Loads a word of the other end's, who may change it at any time; `at` counts from the start of the page's buffer.
#[inline]
fn load(page: &Segment, at: usize, order: Ordering) -> u32 {
    let value = page.buffer().load_u32(at, order);
    #[cfg(test)]
    restless::after_load(page, at);
    value
}

/// Loads two words at once.
#[inline]
fn load_long(page: &Segment, at: usize) -> u64 {
    let value = page.buffer().load_u64(at, Ordering::Relaxed);
    #[cfg(test)]
    [at, at + WORD].iter().for_each(|at| restless::after_load(page, *at));
    value
}

/// Copies whole words out of one page, each by one load.
pub(super) fn words_of(page: &Segment, bytes: &mut [u8]) {
    for (n, word) in bytes.chunks_exact_mut(WORD).enumerate() {
        let value = load(page, page.offset() + n * WORD, Ordering::Relaxed);
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Another end that changes each word as soon as it was loaded, for tests: whoever loads one twice finds two things.
#[cfg(test)]
pub(super) mod restless {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static IS_ON: Cell<bool> = const { Cell::new(false) };
    }

    /// Does something while the other end of all that this thread loads is so.
    pub(in crate::blkif) fn against<T>(act: impl FnOnce() -> T) -> T {
        IS_ON.set(true);
        let done = act();
        IS_ON.set(false);
        done
    }

    pub(super) fn after_load(page: &Segment, at: usize) {
        if IS_ON.get() {
            let value = page.buffer().load_u32(at, Ordering::Relaxed);
            page.buffer().store_u32(at, !value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwork_memory::Buffer;

    fn pages(count: usize) -> Vec<Segment> {
        (0..count).map(|_| Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES)).collect()
    }

    #[test]
    fn an_entry_that_lies_in_two_pages_is_copied_whole() {
        let shared = SharedPages::new(pages(2)).unwrap();
        let bytes: Vec<u8> = (0..112).collect();
        let at = PAGE_BYTES - 48;
        shared.copy_in(at, &bytes);
        let mut back = [0; 112];
        shared.copy_out(at, &mut back);
        assert_eq!(back[..], bytes);
    }

    #[test]
    fn a_ring_has_1_2_4_8_or_16_whole_pages() {
        for (count, is_ring) in [(0, false), (1, true), (3, false), (8, true), (16, true), (32, false)] {
            assert_eq!(SharedPages::new(pages(count)).is_ok(), is_ring, "{count}");
        }
        let half = Segment::new(Buffer::new(PAGE_BYTES), 0, 2048);
        let error = SharedPages::new(vec![half]).unwrap_err();
        assert_eq!(error.to_string(), "a ring has 1 pages of 2048 bytes, expected 1, 2, 4, 8 or 16 of 4096");
    }
}
