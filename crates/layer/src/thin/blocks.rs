//! Blocks of a pool's metadata as they were last committed: read when an operation lacks them, and kept for a while.
//!
//! Invariant: what is kept under a number is what the last commit left in that block. A read that was under way while a commit wrote
//! the same block is dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, MutexGuard};

use blockwork_engine::{Errno, Layer, Lock, LockSnapshot, Sector, Sectors, TaskContext};
use blockwork_format::thin::edit::Blocks;
use blockwork_format::thin::{BLOCK_BYTES, BLOCK_SECTORS, Block, read_block};
use blockwork_format::{FormatError, Source};

use crate::md::io;

/// Metadata blocks that are kept where nothing speaks for another number: 4 KiB each. An operation that maps a single row needs no more
/// than a thousand at once, for the counts of what a shared leaf leads to; of many rows see `provision.rs`.
pub const METADATA_KEPT: usize = 2048;

/// The blocks.
#[derive(Debug)]
pub struct MetadataBlocks {
    kept: Lock<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    blocks: BTreeMap<u64, Entry>,
    /// Their numbers, the oldest first.
    order: VecDeque<u64>,
    /// Blocks that are being read, with the numbers of those reads that no commit has overtaken.
    reading: BTreeMap<u64, BTreeSet<u64>>,
    next_reading: u64,
    /// How many are kept.
    max: usize,
}

#[derive(Debug)]
struct Entry {
    block: Arc<Block>,
    /// Somebody has asked for it since it came to the end of the line.
    is_used: bool,
}

impl Kept {
    fn put(&mut self, nr: u64, block: Arc<Block>) {
        if let Some(entry) = self.blocks.get_mut(&nr) {
            entry.block = block;
            return;
        }
        self.blocks.insert(nr, Entry { block, is_used: false });
        self.order.push_back(nr);
        while self.blocks.len() > self.max {
            let Some(oldest) = self.order.pop_front() else { return };
            match self.blocks.get_mut(&oldest) {
                Some(entry) if entry.is_used => {
                    entry.is_used = false;
                    self.order.push_back(oldest);
                }
                _ => _ = self.blocks.remove(&oldest),
            }
        }
    }

    fn begin(&mut self, nr: u64) -> u64 {
        self.next_reading += 1;
        self.reading.entry(nr).or_default().insert(self.next_reading);
        self.next_reading
    }

    /// Whether what was read may be kept.
    fn end(&mut self, nr: u64, reading: u64) -> bool {
        let Some(readings) = self.reading.get_mut(&nr) else { return false };
        let is_valid = readings.remove(&reading);
        if readings.is_empty() {
            self.reading.remove(&nr);
        }
        is_valid
    }
}

impl Blocks for MetadataBlocks {
    fn get(&self, nr: u64) -> Option<Arc<Block>> {
        let mut kept = self.kept();
        let entry = kept.blocks.get_mut(&nr)?;
        entry.is_used = true;
        Some(entry.block.clone())
    }
}

impl MetadataBlocks {
    /// Keeps so many.
    pub fn new(max: usize) -> MetadataBlocks {
        MetadataBlocks { kept: Lock::new(Kept { max, ..Kept::default() }) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }

    /// What is known of its lock.
    pub fn locks(&self, name: String) -> LockSnapshot {
        self.kept.snapshot(name)
    }

    /// Reads a block that is not here.
    pub async fn read(&self, cx: &TaskContext, metadata: &Arc<dyn Layer>, nr: u64) -> Result<(), Errno> {
        let reading = self.kept().begin(nr);
        let read = io::read(cx, metadata, Sector(nr * BLOCK_SECTORS), Sectors(BLOCK_SECTORS)).await;
        let is_valid = self.kept().end(nr, reading);
        let data = read?;
        if is_valid {
            let mut block = [0; BLOCK_BYTES];
            data.read_at(0, &mut block);
            self.kept().put(nr, Arc::new(block));
        }
        Ok(())
    }

    /// Reads a block while there is no worker.
    pub fn read_now(&self, source: &dyn Source, nr: u64) -> Result<(), FormatError> {
        let block = read_block(source, nr)?;
        self.kept().put(nr, Arc::new(*block));
        Ok(())
    }

    /// These blocks are about to be written: what is being read of them counts no more.
    pub fn overtake<'a>(&self, numbers: impl Iterator<Item = &'a u64>) {
        let mut kept = self.kept();
        numbers.for_each(|nr| _ = kept.reading.remove(nr));
    }

    /// These blocks were written, and are part of the last commit now.
    pub fn wrote(&self, blocks: impl Iterator<Item = (u64, Arc<Block>)>) {
        let mut kept = self.kept();
        blocks.for_each(|(nr, block)| kept.put(nr, block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(fill: u8) -> Arc<Block> {
        Arc::new([fill; BLOCK_BYTES])
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_is_bounded() {
        const MAX: usize = 20;
        let blocks = MetadataBlocks::new(MAX);
        for nr in 0..3 * MAX as u64 {
            blocks.wrote([(nr, block(1))].into_iter());
            assert!(blocks.get(0).is_some(), "at {nr}");
        }
        assert_eq!(blocks.kept().blocks.len(), MAX);
        assert!(blocks.get(1).is_none());
    }

    #[test]
    fn a_read_that_a_commit_has_overtaken_is_not_kept() {
        let blocks = MetadataBlocks::new(METADATA_KEPT);
        let first = blocks.kept().begin(7);
        let second = blocks.kept().begin(7);
        assert!(blocks.kept().end(7, first));
        blocks.overtake([7].iter());
        let third = blocks.kept().begin(7);
        assert!(!blocks.kept().end(7, second));
        assert!(blocks.kept().end(7, third));
        assert!(blocks.kept().reading.is_empty());
    }
}
