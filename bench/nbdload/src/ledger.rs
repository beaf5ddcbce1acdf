//! What one connection knows about the blocks it owns, when it verifies.
//!
//! (1) A block belongs to one connection and has at most one write in flight, so its content is always predictable.
//! (2) `acked` is the generation of the last write that succeeded, `issued` of the last one sent; where they differ
//!     and nothing is in flight, a write failed and either content is right.
//! (3) A block that this run (or the log) says nothing about is never checked.

use std::ops::{Range, RangeInclusive};

use anyhow::{Result, ensure};

/// Most blocks one connection verifies: 9 bytes each are kept.
const BLOCKS_MAX: u64 = 1 << 26;

#[derive(Clone, Copy, Default)]
struct Block {
    acked: u32,
    issued: u32,
}

/// The expectation for every block of a range.
pub struct Ledger {
    first: u64,
    blocks: Vec<Block>,
    busy: Vec<bool>,
}

impl Ledger {
    /// Nothing known yet about blocks `range` (in blocks, not bytes).
    pub fn new(range: Range<u64>) -> Result<Self> {
        let count = range.end - range.start;
        ensure!(
            count <= BLOCKS_MAX,
            "verifying {count} blocks at once; --range must leave at most {BLOCKS_MAX}"
        );
        let count = usize::try_from(count)?;
        Ok(Ledger { first: range.start, blocks: vec![Block::default(); count], busy: vec![false; count] })
    }

    /// Expects this generation or a later one, as after a crash. Blocks of other connections are passed over.
    pub fn expect_at_least(&mut self, block: u64, generation: u32) {
        let index = block.checked_sub(self.first).and_then(|i| usize::try_from(i).ok());
        if let Some(known) = index.and_then(|i| self.blocks.get_mut(i)) {
            *known = Block { acked: generation, issued: u32::MAX };
        }
    }

    /// Claims the block, or the next free one after it (wrapping), and returns it.
    pub fn claim(&mut self, block: u64) -> Option<u64> {
        let count = self.busy.len();
        let from = self.index(block);
        let found = (0..count).map(|step| (from + step) % count).find(|i| !self.busy[*i])?;
        self.busy[found] = true;
        Some(self.first + found as u64)
    }

    /// Frees a claimed block.
    pub fn release(&mut self, block: u64) {
        let index = self.index(block);
        assert!(self.busy[index], "block {block} released but not claimed");
        self.busy[index] = false;
    }

    /// The generation for a new write of a claimed block.
    pub fn issue(&mut self, block: u64) -> u32 {
        let index = self.index(block);
        let known = &mut self.blocks[index];
        known.issued += 1;
        known.issued
    }

    /// Notes that the block's last issued write succeeded, and returns its generation.
    pub fn acknowledge(&mut self, block: u64) -> u32 {
        let index = self.index(block);
        let known = &mut self.blocks[index];
        known.acked = known.issued;
        known.acked
    }

    /// The generations the block may have now, or `None` where nothing is known.
    pub fn expected(&self, block: u64) -> Option<RangeInclusive<u32>> {
        let known = self.blocks[self.index(block)];
        (known.acked > 0).then_some(known.acked..=known.issued)
    }

    /// The first block at or after `block` about which something is known.
    pub fn next_known(&self, block: u64) -> Option<u64> {
        let from = self.index(block.max(self.first));
        let rest = self.blocks.get(from..)?;
        rest.iter().position(|known| known.acked > 0).map(|step| self.first + (from + step) as u64)
    }

    fn index(&self, block: u64) -> usize {
        usize::try_from(block - self.first).expect("a block of this ledger")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_block_is_passed_over_and_a_full_ledger_gives_none() {
        let mut ledger = Ledger::new(10..12).unwrap();
        assert_eq!(ledger.claim(11), Some(11));
        assert_eq!(ledger.claim(11), Some(10));
        assert_eq!(ledger.claim(11), None);
        ledger.release(11);
        assert_eq!(ledger.claim(10), Some(11));
    }

    #[test]
    fn after_a_failed_write_both_generations_are_right_and_after_a_good_one_only_the_new() {
        let mut ledger = Ledger::new(0..4).unwrap();
        assert_eq!(ledger.expected(2), None);
        assert_eq!(ledger.issue(2), 1);
        ledger.acknowledge(2);
        assert_eq!(ledger.expected(2), Some(1..=1));
        assert_eq!(ledger.issue(2), 2);
        assert_eq!(ledger.expected(2), Some(1..=2));
        assert_eq!(ledger.issue(2), 3);
        ledger.acknowledge(2);
        assert_eq!(ledger.expected(2), Some(3..=3));
        assert_eq!(ledger.next_known(0), Some(2));
        assert_eq!(ledger.next_known(3), None);
    }
}
