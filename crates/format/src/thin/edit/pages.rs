//! The bitmaps of a space map, each as it was committed and as it is now.
//!
//! A block is given out only if it is free now and was free in the last committed state, so that a power cut leads back to a state of
//! which nothing was overwritten. While a commit is being written, both that one and the one before it count. Where others may
//! still be at work on a block when its last reference goes ([`Reuse::AfterCommit`]), one that was given out and freed again in one
//! transaction waits likewise.

use std::ops::Range;
use std::sync::Arc;

use crate::FormatError;
use crate::thin::space_map::{BITMAP_ENTRIES, Bitmap};
use crate::thin::value::IndexEntry;

use super::EditError;
use super::store::Store;
use super::tree::Committed;

/// A bitmap.
#[derive(Debug, Clone)]
pub(super) struct Page {
    /// What the index is to say of it; block 0: it has no place yet.
    pub entry: IndexEntry,
    /// As it is on the device.
    before: Arc<Bitmap>,
    /// As the commit has it that is being written.
    sealed: Option<Arc<Bitmap>>,
    /// What the transaction under way has freed beside that.
    freed: Option<Arc<Bitmap>>,
    now: Arc<Bitmap>,
}

impl Page {
    fn new(entry: IndexEntry, bitmap: Arc<Bitmap>) -> Page {
        Page { entry, before: bitmap.clone(), sealed: None, freed: None, now: bitmap }
    }

    /// What must not be given out, beside what is in use now.
    fn late(&self) -> [&Bitmap; 3] {
        [
            &self.before,
            self.sealed.as_ref().unwrap_or(&self.before),
            self.freed.as_ref().unwrap_or(&self.before),
        ]
    }

    /// Keeps a block from being given out before the commit.
    fn hold_back(&mut self, within: u64) {
        Arc::make_mut(self.freed.get_or_insert_default()).set(within, 1);
    }

    /// Blocks that are free now and must not be given out yet.
    fn freed(&self) -> u64 {
        self.now.freed(&self.late())
    }
}

/// What a space map has in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Blocks that it counts.
    pub blocks: u64,
    /// Those in use.
    pub used: u64,
    /// Those that are free, but only after the next commit.
    pub freed: u64,
    /// Where the search for a free one begins.
    pub next: u64,
}

/// When a block may be given out again that was given out and freed in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reuse {
    /// At once.
    AtOnce,
    /// When the commit is durable.
    AfterCommit,
}

/// The bitmaps of a space map that are in memory.
#[derive(Debug)]
pub(super) struct Pages {
    pages: Store<Page>,
    reuse: Reuse,
    pub tally: Tally,
    kept: Tally,
}

/// Finds what the index says of a bitmap that is not in memory.
pub(super) type EntryOf<'a> = &'a mut dyn FnMut(u64) -> Result<IndexEntry, EditError>;

impl Pages {
    pub fn new(tally: Tally, reuse: Reuse) -> Pages {
        Pages { pages: Store::default(), reuse, tally, kept: tally }
    }

    /// As [`Store::bound`].
    pub fn bound(&mut self, clean_max: usize) {
        self.pages.bound(clean_max);
    }

    pub fn bitmaps(&self) -> u64 {
        self.tally.blocks.div_ceil(BITMAP_ENTRIES)
    }

    fn page(&mut self, from: Committed<'_>, at: u64, entry: EntryOf<'_>) -> Result<&Page, EditError> {
        self.pages.get_or_read(at, || {
            let entry = entry(at)?;
            let bitmap = from.bitmap(entry.block)?;
            Ok(Page::new(entry, Arc::new(bitmap)))
        })
    }

    /// The count of a block as its bitmap has it: 3 or more is 3.
    pub fn count(&mut self, from: Committed<'_>, block: u64, entry: EntryOf<'_>) -> Result<u32, EditError> {
        if block >= self.tally.blocks {
            let expected = format!("below {}", self.tally.blocks);
            return Err(FormatError::invalid("thin metadata", 0, "block", block, expected).into());
        }
        Ok(self.page(from, block / BITMAP_ENTRIES, entry)?.now.get(block % BITMAP_ENTRIES))
    }

    /// Sets the count of a block in a bitmap that is in memory.
    pub fn set(&mut self, block: u64, count: u32) {
        let page = self.pages.change(block / BITMAP_ENTRIES).expect("its count was asked for");
        let within = block % BITMAP_ENTRIES;
        let old = page.now.get(within);
        Arc::make_mut(&mut page.now).set(within, count);
        // Asked only where it counts: blocks come to be in use one by one, and mostly none of them has to wait.
        let is_asked = if count == 0 { old != 0 } else { old == 0 && self.tally.freed > 0 };
        let mut late = is_asked && page.late().iter().any(|map| map.get(within) != 0);
        if old != 0 && count == 0 && !late && self.reuse == Reuse::AfterCommit {
            page.hold_back(within);
            late = true;
        }
        let entry = &mut page.entry;
        let within = u32::try_from(within).expect("an entry of a bitmap");
        match (old == 0, count == 0) {
            (true, false) => {
                entry.free = entry.free.saturating_sub(1);
                if entry.none_free_before == within {
                    entry.none_free_before += 1;
                }
                self.tally.used += 1;
                self.tally.freed = self.tally.freed.saturating_sub(u64::from(late));
            }
            (false, true) => {
                entry.free = entry.free.saturating_add(1);
                entry.none_free_before = entry.none_free_before.min(within);
                self.tally.used = self.tally.used.saturating_sub(1);
                self.tally.freed += u64::from(late);
            }
            _ => {}
        }
    }

    /// The first block of a range that may be given out.
    pub fn find(
        &mut self,
        from: Committed<'_>,
        range: Range<u64>,
        entry: EntryOf<'_>,
    ) -> Result<Option<u64>, EditError> {
        let mut start = range.start;
        while start < range.end {
            let (at, first) = (start / BITMAP_ENTRIES, start / BITMAP_ENTRIES * BITMAP_ENTRIES);
            let hint = match self.pages.get(at) {
                Some(page) => page.entry,
                None => entry(at)?,
            };
            if hint.free > 0 {
                let begin = (start - first).max(hint.none_free_before.into());
                let end = (range.end - first).min(BITMAP_ENTRIES);
                let page = self.page(from, at, entry)?;
                let [before, sealed, freed] = page.late();
                let used = [before, sealed, freed, &page.now];
                if let Some(free) = Bitmap::first_free(&used, begin, end) {
                    return Ok(Some(first + free));
                }
            }
            start = first + BITMAP_ENTRIES;
        }
        Ok(None)
    }

    /// Where the blocks end that follow a block and may all be given out: not behind `end`, nor behind the bitmap that they are in.
    pub fn end_of_free(
        &mut self,
        from: Committed<'_>,
        block: u64,
        end: u64,
        entry: EntryOf<'_>,
    ) -> Result<u64, EditError> {
        let (at, first) = (block / BITMAP_ENTRIES, block / BITMAP_ENTRIES * BITMAP_ENTRIES);
        let page = self.page(from, at, entry)?;
        let [before, sealed, freed] = page.late();
        let used = [before, sealed, freed, &page.now];
        Ok(first + Bitmap::first_used(&used, block - first, (end - first).min(BITMAP_ENTRIES)))
    }

    /// Counts more blocks. The last bitmap so far must be in memory.
    pub fn grow(&mut self, blocks: u64) {
        let had = self.bitmaps();
        if let Some(last) = had.checked_sub(1)
            && let Some(page) = self.pages.change(last)
        {
            // Who made it may not have counted what was behind the end.
            page.entry.free = free(&page.now, BITMAP_ENTRIES);
        }
        self.tally.blocks = blocks;
        let empty = Arc::new(Bitmap::default());
        for at in had..self.bitmaps() {
            let free = u32::try_from(BITMAP_ENTRIES).expect("16,320");
            let entry = IndexEntry { block: 0, free, none_free_before: 0 };
            self.pages.put(at, Page::new(entry, empty.clone()));
        }
    }

    /// How many blocks of a bitmap that exist are free.
    pub fn free_in(&mut self, from: Committed<'_>, at: u64, entry: EntryOf<'_>) -> Result<u64, EditError> {
        let end = (self.tally.blocks - at * BITMAP_ENTRIES).min(BITMAP_ENTRIES);
        Ok(self.page(from, at, entry)?.now.free(end))
    }

    pub fn changed(&self) -> usize {
        self.pages.changed()
    }

    pub fn changed_numbers(&self) -> Vec<u64> {
        self.pages.changed_numbers()
    }

    /// Gives a changed bitmap another place; the old one, 0 for none, and what the index is to say now.
    pub fn place(&mut self, at: u64, block: u64) -> (u64, IndexEntry) {
        let page = self.pages.change(at).expect("a bitmap that has changed");
        let old = std::mem::replace(&mut page.entry.block, block);
        (old, page.entry)
    }

    pub fn keep(&mut self) {
        self.pages.keep();
        self.kept = self.tally;
    }

    pub fn undo(&mut self) {
        self.pages.undo();
        self.tally = self.kept;
    }

    /// Takes the changed bitmaps into a commit; their numbers, what the index says, and their bytes.
    pub fn seal(&mut self, mut each: impl FnMut(u64, IndexEntry, Bitmap)) {
        self.pages.seal(|at, page| {
            page.sealed = Some(page.now.clone());
            if let Some(freed) = page.freed.take() {
                Arc::make_mut(&mut page.before).unite(&freed);
            }
            each(at, page.entry, (*page.now).clone());
        });
    }

    /// The commit is on the device: what it freed may be given out.
    pub fn settle(&mut self) {
        let mut freed = 0;
        self.pages.settle(|page| {
            if let Some(sealed) = page.sealed.take() {
                page.before = sealed;
            }
            if !Arc::ptr_eq(&page.before, &page.now) {
                freed += page.freed();
            }
        });
        self.tally.freed = freed;
        self.kept = self.tally;
    }
}

fn free(bitmap: &Bitmap, end: u64) -> u32 {
    u32::try_from(bitmap.free(end)).expect("at most 16,320")
}

/// A count that cannot be.
pub(super) fn wrong_count(place: &'static str, block: u64, found: u32, expected: &str) -> EditError {
    let found = format!("{found} (of block {block})");
    FormatError::invalid(place, 0, "reference count", found, expected)
        .with_remedy("the metadata is damaged: `thin_repair` makes what is whole of it anew")
        .into()
}
