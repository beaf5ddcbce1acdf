//! The map as bios see it: looking it up, filling pages of it from the trees, and changing it with them.
//!
//! Pages are filled and changed with the editor held. So what is in the cache is what the trees have, at any moment; and what comes
//! later than a change is resolved by it.

use std::ops::Range;

use blockwork_engine::{Errno, TaskContext};
use blockwork_format::thin::BlockTime;
use blockwork_format::thin::edit::{Blocks, EditError, Editor, VirtualRun};
use blockwork_format::{FormatError, Source};

use super::cache::{Key, PAGE_ENTRIES};
use super::device::Device;
use super::entry::{HOLE, Mapped, STEP, settled};
use super::pool::{LOADS, Pool};

/// How far a hole is followed when a page is filled: as far as a page of the second level goes.
const HOLE_MAX: u64 = PAGE_ENTRIES * PAGE_ENTRIES;

/// A run of blocks of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where it lies, one block after the other; none: it is a hole.
    pub at: Option<Mapped>,
    /// Its length: at least 1.
    pub blocks: u64,
    /// That no block of it is shared was so before the device's last snapshot.
    pub is_outdated: bool,
}

impl Pool {
    /// Where a block lies in which everything is as it should be, and whose page is looked for in one place only: the way of almost all
    /// I/O; none: [`Pool::look_up`] says what is the matter, if anything.
    #[inline(always)]
    pub(super) fn settled(&self, device: &Device, block: u64, is_write: bool) -> Option<u64> {
        let found = self.cache.find_first(Key::new(device.slot, 0, block / PAGE_ENTRIES))?;
        let is_outdated = is_write && found.time() != device.snapshotted();
        settled(found.get(block % PAGE_ENTRIES)?, is_write).filter(|_| !is_outdated)
    }

    /// Brings near what [`Pool::settled`] will look at.
    #[inline]
    pub(super) fn approach(&self, device: &Device, block: u64) {
        self.cache.approach(Key::new(device.slot, 0, block / PAGE_ENTRIES), block % PAGE_ENTRIES);
    }

    /// The run that begins with `block`, of `most` blocks at most; none: the map has to be read first. Only a write asks whether it is
    /// outdated.
    pub(super) fn look_up(&self, device: &Device, block: u64, most: u64, is_write: bool) -> Option<Run> {
        let (page, within) = (block / PAGE_ENTRIES, block % PAGE_ENTRIES);
        let most = most.min(PAGE_ENTRIES - within);
        let key = Key::new(device.slot, 0, page);
        let found = match self.cache.find_first(key) {
            Some(found) => found,
            // Before all ways are searched: a page that maps nothing is mostly in none.
            None if self.is_hole(device, page) => {
                return Some(Run { at: None, blocks: most, is_outdated: false });
            }
            None => self.cache.find(key)?,
        };
        let is_outdated = is_write && found.time() != device.snapshotted();
        let entry = found.get(within)?;
        // The entries of a run rise with its blocks, those of a hole are all the same.
        let step = if entry == 0 { 0 } else { STEP };
        let mut blocks = 1;
        while blocks < most && found.get(within + blocks)? == entry + step * blocks {
            blocks += 1;
        }
        Some(Run { at: Mapped::of_entry(entry), blocks, is_outdated })
    }

    /// Whether a whole page is known to map nothing.
    fn is_hole(&self, device: &Device, page: u64) -> bool {
        let above = self.cache.find(Key::new(device.slot, 1, page / PAGE_ENTRIES));
        above.and_then(|above| above.get(page % PAGE_ENTRIES)) == Some(HOLE)
    }

    fn is_cached(&self, device: &Device, page: u64) -> bool {
        self.cache.find(Key::new(device.slot, 0, page)).is_some() || self.is_hole(device, page)
    }

    /// Reads what is not cached of the map of some blocks.
    pub(super) async fn load(
        &self,
        cx: &TaskContext,
        device: &Device,
        blocks: Range<u64>,
    ) -> Result<(), Errno> {
        for page in blocks.start / PAGE_ENTRIES..blocks.end.div_ceil(PAGE_ENTRIES) {
            while !self.load_page(cx, device, page).await? {
                self.settle_doubts(cx).await;
            }
        }
        Ok(())
    }

    /// Reads a page, if it is not cached. False: its device is in doubt, and it was not read.
    async fn load_page(&self, cx: &TaskContext, device: &Device, page: u64) -> Result<bool, Errno> {
        let _turn = self.loads[Key::new(device.slot, 0, page).stripe(LOADS)].take().await;
        // Whoever had the turn before may have read it.
        if self.is_cached(device, page) {
            return Ok(true);
        }
        let loaded = self.edit(cx, |editor, blocks| self.fill_page(editor, blocks, device, page)).await;
        loaded.map_err(|refused| {
            self.tell(&refused);
            Errno::EIO
        })
    }

    /// Reads the map of a block while volumes are assembled, so that what is looked for there can be read at once.
    ///
    /// # Errors
    ///
    /// What cannot be read, or is damaged.
    pub(super) fn load_now(&self, source: &dyn Source, device: &Device, block: u64) -> Result<(), EditError> {
        let page = block / PAGE_ENTRIES;
        self.edit_now(source, |editor, blocks| self.fill_page(editor, blocks, device, page).map(drop))
    }

    /// Puts a page into the cache, as the device's tree has it. False: not now, as that may lead to what is lost.
    fn fill_page(
        &self,
        editor: &mut Editor,
        blocks: &dyn Blocks,
        device: &Device,
        page: u64,
    ) -> Result<bool, EditError> {
        if self.is_doubtful(device) {
            return Ok(false);
        }
        let first = page * PAGE_ENTRIES;
        let details = editor.details(blocks, device.id)?;
        let mut entries = Vec::new();
        let mut at = 0;
        while at < PAGE_ENTRIES {
            let most = if at == 0 { HOLE_MAX } else { PAGE_ENTRIES - at };
            match editor.look_up(blocks, device.id, first + at, most)? {
                VirtualRun::Hole { length } if at == 0 && length >= PAGE_ENTRIES => {
                    self.publish_hole(device, page, length / PAGE_ENTRIES);
                    return Ok(true);
                }
                VirtualRun::Hole { length } => at += length.max(1),
                VirtualRun::Mapped { first: mapping, length } => {
                    let length = length.clamp(1, PAGE_ENTRIES - at);
                    self.check(editor, first + at, mapping.block..mapping.block + length)?;
                    let is_shared = details.may_share(mapping);
                    entries.extend((0..length).map(|n| (at + n, mapping.block + n, is_shared)));
                    at += length;
                }
            }
        }
        // Nobody's block becomes full between the look and the page.
        let filling = self.fills.hold();
        self.cache.update(Key::new(device.slot, 0, page), details.snapshotted_time.into(), |put| {
            (0..PAGE_ENTRIES).for_each(|at| put(at, 0));
            for (at, block, is_shared) in entries {
                put(at, Mapped { block, is_shared, is_filling: filling.has(block) }.entry());
            }
        });
        Ok(true)
    }

    /// Fills a page anew that does not know of the device's last snapshot, so that it stops no write any more.
    pub(super) fn refresh(
        &self,
        editor: &mut Editor,
        blocks: &dyn Blocks,
        device: &Device,
        block: u64,
    ) -> Result<(), EditError> {
        let page = block / PAGE_ENTRIES;
        // Where a whole page maps nothing there is none to be outdated.
        let is_current = match self.cache.find(Key::new(device.slot, 0, page)) {
            Some(found) => found.time() == device.snapshotted(),
            None => self.is_hole(device, page),
        };
        if is_current { Ok(()) } else { self.fill_page(editor, blocks, device, page).map(drop) }
    }

    /// The data device may be smaller than it was.
    fn check(&self, editor: &Editor, first: u64, data: Range<u64>) -> Result<(), EditError> {
        let there = editor.data_blocks().min(self.data.get().sectors().0 / self.block.get());
        if data.end <= there {
            return Ok(());
        }
        let found = format!("{} for block {first}", data.start);
        let expected = format!("below {there}, the blocks of the data device");
        let error = FormatError::invalid("thin metadata node", 0, "data block", found, expected);
        Err(error.with_remedy("was the data device cut?").into())
    }

    /// Pages from `page` on map nothing, as far as they are in one page of the second level.
    fn publish_hole(&self, device: &Device, page: u64, pages: u64) {
        let within = page % PAGE_ENTRIES;
        let end = (within + pages).min(PAGE_ENTRIES);
        let above = Key::new(device.slot, 1, page / PAGE_ENTRIES);
        self.cache.update(above, 0, |put| (within..end).for_each(|page| put(page, HOLE)));
    }

    /// Blocks of a device are mapped from now on, to blocks that follow each other and are nobody else's. What is to be filled is
    /// known by now.
    pub(super) fn publish(
        &self,
        editor: &mut Editor,
        device: &Device,
        first: u64,
        data: &Range<u64>,
        is_filling: bool,
    ) {
        let end = first + (data.end - data.start);
        for page in first / PAGE_ENTRIES..end.div_ceil(PAGE_ENTRIES) {
            let above = Key::new(device.slot, 1, page / PAGE_ENTRIES);
            let was_hole = self.is_hole(device, page);
            if was_hole {
                self.cache.change(above, 0, |put| put(page % PAGE_ENTRIES, 0));
            }
            let start = page * PAGE_ENTRIES;
            let put_own = |put: &mut dyn FnMut(u64, u64)| {
                for block in first.max(start)..end.min(start + PAGE_ENTRIES) {
                    let block_of =
                        Mapped { block: data.start + (block - first), is_shared: false, is_filling };
                    put(block - start, block_of.entry());
                }
            };
            let (key, time) = (Key::new(device.slot, 0, page), device.snapshotted());
            if self.cache.change(key, time, put_own) {
                continue;
            }
            if was_hole {
                // That is all there is in it, or the rest of the batch comes right after this.
                self.cache.update(key, time, put_own);
            } else {
                // What cannot be filled now is when somebody looks it up.
                let _ = self.fill_page(editor, &self.blocks, device, page);
            }
        }
    }

    /// A block of a device that was given `data`, which was never filled, has what it had before. Others may have that too.
    pub(super) fn publish_back(&self, device: &Device, block: u64, data: u64, before: BlockTime) {
        let given = Mapped { block: data, is_shared: false, is_filling: true };
        let back = Mapped { block: before.block, is_shared: true, is_filling: false };
        let key = Key::new(device.slot, 0, block / PAGE_ENTRIES);
        self.cache.replace(key, block % PAGE_ENTRIES, given.entry(), back.entry());
    }

    /// Blocks of a device are mapped no more.
    pub(super) fn withdraw(&self, device: &Device, blocks: &Range<u64>) {
        for page in blocks.start / PAGE_ENTRIES..blocks.end.div_ceil(PAGE_ENTRIES) {
            let start = page * PAGE_ENTRIES;
            let within = blocks.start.max(start) - start..blocks.end.min(start + PAGE_ENTRIES) - start;
            self.cache.clear(Key::new(device.slot, 0, page), within);
        }
    }
}
