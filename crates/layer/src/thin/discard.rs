//! Discards: blocks that a volume gives back.
//!
//! Whole blocks only; the rest of a range is none of the pool's business, as in the kernel. A range is unmapped step by step, so that
//! others get their turn, and each step counts by itself. What becomes free by it is given out again only after the commit, when all bios
//! that were resolved to it have come to their end (`commit.rs`).

use std::ops::Range;
use std::sync::atomic::Ordering;

use blockwork_engine::{Errno, TaskContext};
use blockwork_format::thin::edit::{Blocks, EditError, Editor, Unmapped, VirtualRun};

use super::device::Device;
use super::mode::Mode;
use super::pool::{Pool, Refused};
use super::provision::DIRTY_MAX;

/// Blocks that a step looks at, at most: 64 GiB in blocks of 64 KiB.
const STEP_MAX: u64 = 1 << 20;

impl Pool {
    /// Unmaps a range of a device's blocks.
    pub(super) async fn discard(
        &self,
        cx: &TaskContext,
        device: &Device,
        blocks: Range<u64>,
    ) -> Result<(), Errno> {
        let mut at = blocks.start;
        while at < blocks.end {
            let _turn = self.turns.take().await;
            if !self.mode().allows_changes() {
                return Ok(());
            }
            at = match self.discard_step(cx, device, at..blocks.end).await {
                Ok(next) => next,
                Err(refused) => {
                    self.tell(&refused);
                    return Err(Errno::EIO);
                }
            };
            self.start_upkeep(cx);
        }
        Ok(())
    }

    /// With the turn; where to go on.
    async fn discard_step(
        &self,
        cx: &TaskContext,
        device: &Device,
        blocks: Range<u64>,
    ) -> Result<u64, Refused> {
        let mut has_committed = false;
        loop {
            let step =
                |editor: &mut Editor, from: &dyn Blocks| self.unmap(editor, from, device, blocks.clone());
            match self.edit(cx, step).await {
                Err(Refused::Edit(EditError::NoMetadata)) if !has_committed => {
                    // What the transaction has left behind comes back with its commit.
                    has_committed = true;
                    let _ = self.commit(cx).await;
                }
                Err(refused @ Refused::Edit(EditError::NoMetadata)) => {
                    self.out_of_metadata();
                    return Err(refused);
                }
                other => {
                    let is_short = self.mode() == Mode::OutOfDataSpace && self.books().freed;
                    if is_short || self.editor().dirty_blocks() > DIRTY_MAX {
                        let _ = self.commit(cx).await;
                    }
                    return other;
                }
            }
        }
    }

    /// Unmaps the beginning of a range, as far as a step goes; where to go on.
    pub(super) fn unmap(
        &self,
        editor: &mut Editor,
        from: &dyn Blocks,
        device: &Device,
        blocks: Range<u64>,
    ) -> Result<u64, EditError> {
        if let VirtualRun::Hole { length } =
            editor.look_up(from, device.id, blocks.start, u64::MAX - blocks.start)?
        {
            return Ok(blocks.start + length.max(1));
        }
        let blocks = blocks.start..blocks.end.min(blocks.start.saturating_add(STEP_MAX));
        let Unmapped { freed, next, .. } = editor.unmap(from, device.id, blocks.clone())?;
        let end = next.unwrap_or(blocks.end);
        device.set_changed(self.transaction.load(Ordering::Acquire), blocks.start..end);
        self.withdraw(device, &(blocks.start..end));
        self.fills.forget(device, &(blocks.start..end));
        let mut books = self.books();
        books.freed |= !freed.is_empty();
        for range in freed {
            match books.discarded.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => books.discarded.push(range),
            }
        }
        Ok(end)
    }
}
