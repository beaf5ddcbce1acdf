//! A device of a pool, as long as somebody uses it.

use std::sync::atomic::{AtomicU64, Ordering};

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
}

impl Device {
    pub fn new(id: u64, slot: u64, snapshotted: u64, changed: u64) -> Device {
        let [snapshotted, changed] = [snapshotted, changed].map(AtomicU64::new);
        Device { id, slot, snapshotted, changed }
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

    /// It is changed by this transaction. Before anything of the change can be seen.
    pub fn set_changed(&self, transaction: u64) {
        self.changed.store(transaction, Ordering::Release);
    }
}
