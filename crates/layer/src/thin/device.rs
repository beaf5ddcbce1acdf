//! A device of a pool, as long as somebody uses it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Marks of a device, of blocks that are a multiple of it apart. Many, so that a block which was not changed rarely shares the mark of one
/// that was; 32 KiB.
const MARKS: usize = 4096;

/// What all who use a device share.
#[derive(Debug)]
pub(super) struct Device {
    /// Its number in the pool.
    pub id: u64,
    /// Its number in keys of the map cache.
    pub slot: u64,
    /// The pool's time when a snapshot of it was made last: a page of the map that is older may call blocks unshared that are not.
    snapshotted: AtomicU64,
    /// The transaction in which it was changed last.
    changed: AtomicU64,
    /// The same of its blocks; see [`MARKS`].
    marks: Box<[AtomicU64]>,
}

impl Device {
    pub fn new(id: u64, slot: u64, snapshotted: u64, changed: u64) -> Device {
        let marks = (0..MARKS).map(|_| AtomicU64::new(changed)).collect();
        let [snapshotted, changed] = [snapshotted, changed].map(AtomicU64::new);
        Device { id, slot, snapshotted, changed, marks }
    }

    #[inline]
    pub fn snapshotted(&self) -> u64 {
        self.snapshotted.load(Ordering::Acquire)
    }

    /// From now on no write may rely on an older page.
    pub fn set_snapshotted(&self, time: u64) {
        self.snapshotted.store(time, Ordering::Release);
    }

    #[inline]
    pub fn changed(&self) -> u64 {
        self.changed.load(Ordering::Acquire)
    }

    /// The last transaction that has changed one of these blocks, or a later one.
    pub fn changed_within(&self, blocks: Range<u64>) -> u64 {
        marks_of(blocks).map(|mark| self.marks[mark].load(Ordering::Acquire)).max().unwrap_or(0)
    }

    /// These blocks are changed by this transaction. Before anything of the change can be seen.
    pub fn set_changed(&self, transaction: u64, blocks: Range<u64>) {
        for mark in marks_of(blocks) {
            self.marks[mark].store(transaction, Ordering::Release);
        }
        self.changed.store(transaction, Ordering::Release);
    }
}

fn marks_of(blocks: Range<u64>) -> impl Iterator<Item = usize> {
    let many = MARKS as u64;
    (blocks.start..blocks.end.min(blocks.start.saturating_add(many)))
        .map(move |block| (block % many) as usize)
}
