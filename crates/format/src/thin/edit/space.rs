//! Which blocks are in use, and how often: of the metadata and of the data.
//!
//! Counts up to 2 are in bitmaps, larger ones in a tree beside them. The nodes of that tree are metadata blocks themselves. They are
//! never shared, so their own counts are in bitmaps: [`Low`] is that part of the metadata's space map, and all that such a
//! tree needs. Where bitmaps lie is settled by the commit, so changing a count moves nothing else.

use std::ops::Range;

use crate::FormatError;
use crate::thin::METADATA_BLOCKS_MAX;
use crate::thin::node::Node;
use crate::thin::space_map::{BITMAP_ENTRIES, SpaceMapRoot};
use crate::thin::value::IndexEntry;

use super::EditError;
use super::pages::{Pages, Reuse, Tally, wrong_count};
use super::store::Store;
use super::tree::{Committed, Edit, Plain, look_up};

const METADATA: &str = "thin metadata space map";
const DATA: &str = "thin data space map";

/// The least count that has no room in a bitmap.
const LARGE: u32 = 3;

/// Metadata blocks, for those who need some.
pub(super) trait Space {
    /// How many references a block has.
    fn count(&mut self, from: Committed<'_>, block: u64) -> Result<u32, EditError>;
    /// A free block, with one reference.
    fn take(&mut self, from: Committed<'_>) -> Result<u64, EditError>;
    /// One reference more.
    fn raise(&mut self, from: Committed<'_>, block: u64) -> Result<(), EditError>;
    /// One reference less; how many are left.
    fn lower(&mut self, from: Committed<'_>, block: u64) -> Result<u32, EditError>;
}

/// The bitmaps of the metadata, and their index.
#[derive(Debug)]
pub(super) struct Low {
    pub pages: Pages,
    /// Not read yet: none.
    pub index: Option<Vec<IndexEntry>>,
    /// Where the index is.
    pub index_block: u64,
}

impl Low {
    fn small(&mut self, from: Committed<'_>, block: u64) -> Result<u32, EditError> {
        let index = self.index.as_deref().unwrap_or_default();
        self.pages.count(from, block, &mut |at| entry_of(index, at))
    }

    /// Reads the index, and counts what is in use.
    pub fn load(&mut self, from: Committed<'_>) -> Result<(), EditError> {
        if self.index.is_some() {
            return Ok(());
        }
        let index = from.index(self.index_block, self.pages.bitmaps())?.entries;
        let mut free: u64 = index.iter().rev().skip(1).map(|entry| u64::from(entry.free)).sum();
        // Of the last one it is not said whether what is behind the end was counted.
        if let Some(last) = self.pages.bitmaps().checked_sub(1) {
            free += self.pages.free_in(from, last, &mut |at| entry_of(&index, at))?;
        }
        self.pages.tally.used = self.pages.tally.blocks.saturating_sub(free);
        self.pages.keep();
        self.index = Some(index);
        Ok(())
    }
}

fn entry_of(index: &[IndexEntry], at: u64) -> Result<IndexEntry, EditError> {
    let found = usize::try_from(at).ok().and_then(|at| index.get(at)).copied();
    found.ok_or_else(|| no_bitmap(METADATA, at))
}

fn no_bitmap(place: &'static str, at: u64) -> EditError {
    let (found, expected) = (format!("none for bitmap {at}"), "one for each bitmap");
    FormatError::invalid(place, 0, "index entry", found, expected).into()
}

impl Space for Low {
    fn count(&mut self, from: Committed<'_>, block: u64) -> Result<u32, EditError> {
        match self.small(from, block)? {
            LARGE.. => {
                let expected = "at most 2, of a node of the tree of counts";
                Err(wrong_count(METADATA, block, LARGE, expected))
            }
            few => Ok(few),
        }
    }

    fn take(&mut self, from: Committed<'_>) -> Result<u64, EditError> {
        let index = self.index.as_deref().unwrap_or_default();
        let Tally { blocks, next, .. } = self.pages.tally;
        // Block 0 is the superblock, whatever its bitmap says.
        let mut found = None;
        for range in [next.max(1)..blocks, 1..next.min(blocks)] {
            if found.is_none() {
                found = self.pages.find(from, range, &mut |at| entry_of(index, at))?;
            }
        }
        let block = found.ok_or(EditError::NoMetadata)?;
        self.pages.set(block, 1);
        self.pages.tally.next = block + 1;
        Ok(block)
    }

    fn raise(&mut self, from: Committed<'_>, block: u64) -> Result<(), EditError> {
        match Space::count(self, from, block)? {
            1 => self.pages.set(block, 2),
            other => return Err(wrong_count(METADATA, block, other, "1, of a node of the tree of counts")),
        }
        Ok(())
    }

    fn lower(&mut self, from: Committed<'_>, block: u64) -> Result<u32, EditError> {
        match Space::count(self, from, block)? {
            0 => Err(wrong_count(METADATA, block, 0, "at least 1, as it is in use")),
            count => {
                self.pages.set(block, count - 1);
                Ok(count - 1)
            }
        }
    }
}

/// The space map of the metadata.
#[derive(Debug)]
pub(super) struct Metadata {
    pub low: Low,
    pub large: Large,
}

/// The counts of 3 and more of a space map.
#[derive(Debug)]
pub(super) struct Large {
    pub nodes: Store<Node<u32>>,
    pub root: u64,
    kept: u64,
}

impl Large {
    fn new(root: u64) -> Large {
        Large { nodes: Store::default(), root, kept: root }
    }

    fn get(&mut self, from: Committed<'_>, block: u64) -> Result<Option<u32>, EditError> {
        look_up(&mut self.nodes, from, self.root, block)
    }

    fn set<S: Space>(
        &mut self,
        space: &mut S,
        from: Committed<'_>,
        block: u64,
        count: u32,
    ) -> Result<(), EditError> {
        let mut tree = Edit { nodes: &mut self.nodes, space, owner: &mut Plain, from };
        self.root = if count >= LARGE {
            tree.insert(self.root, block, count)?.0
        } else {
            tree.remove_leaf(self.root, block..block + 1)?.0
        };
        Ok(())
    }

    pub fn keep(&mut self) {
        self.nodes.keep();
        self.kept = self.root;
    }

    pub fn undo(&mut self) {
        self.nodes.undo();
        self.root = self.kept;
    }
}

impl Metadata {
    pub fn new(root: SpaceMapRoot) -> Metadata {
        let tally = Tally { blocks: root.blocks, used: root.allocated, freed: 0, next: 0 };
        let low = Low { pages: Pages::new(tally, Reuse::AtOnce), index: None, index_block: root.bitmap_root };
        Metadata { low, large: Large::new(root.ref_count_root) }
    }

    /// Blocks that can be given out before the next commit.
    pub fn usable(&self) -> u64 {
        let Tally { blocks, used, freed, .. } = self.low.pages.tally;
        blocks.saturating_sub(used).saturating_sub(freed)
    }

    fn set(&mut self, from: Committed<'_>, block: u64, old: u32, count: u32) -> Result<(), EditError> {
        if old >= LARGE || count >= LARGE {
            self.large.set(&mut self.low, from, block, count)?;
        }
        self.low.pages.set(block, count);
        Ok(())
    }

    /// Counts more blocks.
    pub fn grow(&mut self, from: Committed<'_>, blocks: u64) -> Result<(), EditError> {
        let last = self.low.pages.bitmaps().saturating_sub(1) * BITMAP_ENTRIES;
        self.low.small(from, last)?;
        self.low.pages.grow(blocks.min(METADATA_BLOCKS_MAX));
        Ok(())
    }
}

impl Space for Metadata {
    fn count(&mut self, from: Committed<'_>, block: u64) -> Result<u32, EditError> {
        match self.low.small(from, block)? {
            LARGE.. => large_count(METADATA, block, self.large.get(from, block)?),
            few => Ok(few),
        }
    }

    fn take(&mut self, from: Committed<'_>) -> Result<u64, EditError> {
        self.low.take(from)
    }

    fn raise(&mut self, from: Committed<'_>, block: u64) -> Result<(), EditError> {
        let count = self.count(from, block)?;
        let more = raised(METADATA, block, count)?;
        if count == 0 {
            return Err(wrong_count(METADATA, block, 0, "at least 1, as it is in use"));
        }
        self.set(from, block, count, more)
    }

    fn lower(&mut self, from: Committed<'_>, block: u64) -> Result<u32, EditError> {
        let count = self.count(from, block)?;
        let left = lowered(METADATA, block, count)?;
        self.set(from, block, count, left)?;
        Ok(left)
    }
}

fn large_count(place: &'static str, block: u64, found: Option<u32>) -> Result<u32, EditError> {
    match found {
        Some(count) if count >= LARGE => Ok(count),
        found => {
            let expected = "3 or more, as its bitmap has it";
            Err(wrong_count(place, block, found.unwrap_or(0), expected))
        }
    }
}

fn raised(place: &'static str, block: u64, count: u32) -> Result<u32, EditError> {
    count.checked_add(1).ok_or_else(|| wrong_count(place, block, count, "less, to be raised"))
}

fn lowered(place: &'static str, block: u64, count: u32) -> Result<u32, EditError> {
    count.checked_sub(1).ok_or_else(|| wrong_count(place, block, count, "at least 1, as it is in use"))
}

/// The space map of the data.
#[derive(Debug)]
pub(super) struct Data {
    pub pages: Pages,
    /// Bitmap → where it is.
    pub index: Store<Node<IndexEntry>>,
    pub index_root: u64,
    pub large: Large,
}

impl Data {
    pub fn new(root: SpaceMapRoot) -> Data {
        let tally = Tally { blocks: root.blocks, used: root.allocated, freed: 0, next: 0 };
        Data {
            // Writes may be on their way to a block that is unmapped.
            pages: Pages::new(tally, Reuse::AfterCommit),
            index: Store::default(),
            index_root: root.bitmap_root,
            large: Large::new(root.ref_count_root),
        }
    }

    /// The pages, and how to find what the index says of one.
    fn parts<'a>(
        &'a mut self,
        from: Committed<'a>,
    ) -> (&'a mut Pages, impl FnMut(u64) -> Result<IndexEntry, EditError> + 'a) {
        let Data { pages, index, index_root, .. } = self;
        let root = *index_root;
        (pages, move |at| look_up(index, from, root, at)?.ok_or_else(|| no_bitmap(DATA, at)))
    }

    /// How many references a block has.
    pub fn count(&mut self, from: Committed<'_>, block: u64) -> Result<u32, EditError> {
        let (pages, mut entry) = self.parts(from);
        match pages.count(from, block, &mut entry)? {
            LARGE.. => {
                drop(entry);
                large_count(DATA, block, self.large.get(from, block)?)
            }
            few => Ok(few),
        }
    }

    /// The first block of a range that may be given out.
    pub fn find(&mut self, from: Committed<'_>, range: Range<u64>) -> Result<Option<u64>, EditError> {
        let (pages, mut entry) = self.parts(from);
        pages.find(from, range, &mut entry)
    }

    /// Where the blocks end that follow a block and may all be given out; not behind `end`. There may be more behind that.
    pub fn end_of_free(&mut self, from: Committed<'_>, block: u64, end: u64) -> Result<u64, EditError> {
        let (pages, mut entry) = self.parts(from);
        pages.end_of_free(from, block, end, &mut entry)
    }

    fn set(
        &mut self,
        space: &mut Metadata,
        from: Committed<'_>,
        block: u64,
        old: u32,
        count: u32,
    ) -> Result<(), EditError> {
        if old >= LARGE || count >= LARGE {
            self.large.set(space, from, block, count)?;
        }
        self.pages.set(block, count);
        Ok(())
    }

    /// One reference more.
    pub fn raise(&mut self, space: &mut Metadata, from: Committed<'_>, block: u64) -> Result<(), EditError> {
        let count = self.count(from, block)?;
        self.set(space, from, block, count, raised(DATA, block, count)?)
    }

    /// One reference less; how many are left.
    pub fn lower(&mut self, space: &mut Metadata, from: Committed<'_>, block: u64) -> Result<u32, EditError> {
        let count = self.count(from, block)?;
        let left = lowered(DATA, block, count)?;
        self.set(space, from, block, count, left)?;
        Ok(left)
    }

    /// Counts more blocks.
    pub fn grow(&mut self, from: Committed<'_>, blocks: u64) -> Result<(), EditError> {
        if let Some(last) = self.pages.tally.blocks.checked_sub(1) {
            self.count(from, last)?;
        }
        self.pages.grow(blocks);
        Ok(())
    }
}
