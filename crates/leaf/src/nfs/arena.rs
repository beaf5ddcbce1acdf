//! Memory for what a server may still forget: all workers' uncommitted writes on one file, bounded.
//!
//! One mapping, divided by the buddy system: pages of 4 KiB, blocks of 1, 2, 4 ... pages. Pages that were never used take no
//! memory. When there is no block left, the writer does without (see the parent).

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use blockwork_memory::{Buffer, Mapping, PAGE, Segment};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Sizes of blocks, as powers of two of pages: up to the whole of it.
const ORDERS: usize = 20;
/// The largest arena, bytes.
pub(super) const BYTES_MAX: usize = PAGE << (ORDERS - 1);

/// The memory, shared by all workers.
pub(super) struct Arena {
    mapping: Arc<Mapping>,
    free: Mutex<Free>,
}

/// Which blocks are free: first pages, by order.
struct Free {
    by_order: [BTreeSet<u32>; ORDERS],
    used_pages: u32,
}

/// A block that is in use, until this is dropped.
pub(super) struct Block {
    arena: Arc<Arena>,
    page: u32,
    order: usize,
}

impl Arena {
    /// An arena of `bytes` bytes, a power of two.
    pub(super) fn new(bytes: usize) -> io::Result<Arc<Arena>> {
        let order = order_of(bytes);
        assert!(bytes == PAGE << order && order < ORDERS, "{bytes} bytes are no block");
        let file = memfd_create("blockwork-uncommitted", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes as u64)?;
        let mapping =
            Mapping::new(std::os::fd::AsFd::as_fd(&file), bytes as u64).map_err(io::Error::other)?;
        let mut free = Free { by_order: Default::default(), used_pages: 0 };
        free.by_order[order].insert(0);
        Ok(Arc::new(Arena { mapping, free: Mutex::new(free) }))
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().expect("no holder of this lock panics")
    }

    /// A block of at least `bytes` bytes, if there is one. Its content is not defined.
    pub(super) fn take(self: &Arc<Arena>, bytes: usize) -> Option<Arc<Block>> {
        let order = order_of(bytes);
        let page = self.free().take(order)?;
        Some(Arc::new(Block { arena: self.clone(), page, order }))
    }

    /// Whether more than half of it is in use.
    pub(super) fn is_half_full(&self) -> bool {
        self.free().used_pages as usize > self.mapping.len() / PAGE / 2
    }
}

impl Free {
    fn take(&mut self, order: usize) -> Option<u32> {
        let found = (order..ORDERS).find(|order| !self.by_order[*order].is_empty())?;
        let page = self.by_order[found].pop_first().expect("not empty");
        // What is left over of a larger block: its upper halves.
        for order in order..found {
            self.by_order[order].insert(page + (1 << order));
        }
        self.used_pages += 1 << order;
        Some(page)
    }

    fn give_back(&mut self, mut page: u32, mut order: usize) {
        self.used_pages -= 1 << order;
        while order + 1 < ORDERS && self.by_order[order].remove(&(page ^ (1 << order))) {
            page &= !(1 << order);
            order += 1;
        }
        self.by_order[order].insert(page);
    }
}

impl Block {
    /// `len` bytes at `at` of it, as memory for I/O. The block must outlive what is done with that.
    pub(super) fn segment(&self, at: usize, len: usize) -> Segment {
        assert!(at + len <= PAGE << self.order, "{len} bytes at {at} of a block");
        let buffer = Buffer::of_mapping(&self.arena.mapping, self.page as usize * PAGE + at, len);
        Segment::new(buffer, 0, len)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.free().give_back(self.page, self.order);
    }
}

/// The smallest block that holds so many bytes.
fn order_of(bytes: usize) -> usize {
    bytes.div_ceil(PAGE).max(1).next_power_of_two().ilog2() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_what_is_given_back_becomes_whole_again() {
        let arena = Arena::new(64 * PAGE).unwrap();
        let sizes = [1, 4096, 4097, 65536, 512, 20000, 8192];
        let blocks: Vec<_> = sizes.iter().map(|size| arena.take(*size).unwrap()).collect();
        for (number, (block, size)) in (1..).zip(blocks.iter().zip(sizes)) {
            block.segment(0, size).fill(number);
        }
        for (number, (block, size)) in (1..).zip(blocks.iter().zip(sizes)) {
            let mut bytes = vec![0; size];
            block.segment(0, size).read_at(0, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == number), "block {number}");
        }
        assert!(arena.take(64 * PAGE).is_none());
        drop(blocks);
        assert!(arena.take(64 * PAGE).is_some());
    }

    #[test]
    fn it_is_bounded_and_says_when_half_is_gone() {
        let arena = Arena::new(16 * PAGE).unwrap();
        let mut blocks: Vec<_> = (0..8).map(|_| arena.take(PAGE).unwrap()).collect();
        assert!(!arena.is_half_full());
        blocks.extend((0..8).map(|_| arena.take(PAGE).unwrap()));
        assert!(arena.is_half_full());
        assert!(arena.take(1).is_none());
        blocks.swap_remove(5);
        assert!(arena.take(1).is_some());
        assert!(arena.take(PAGE + 1).is_none());
    }
}
