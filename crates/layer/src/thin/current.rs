//! Something that may be replaced while others use it: a pool's device, after it has grown.
//!
//! What was there before stays, since who resolves a bio may hold on to it. So it costs a load to get at it, and no lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often it can be replaced.
pub(super) const REPLACED_MAX: usize = 255;

/// What is current, and all that was.
#[derive(Debug)]
pub(super) struct Current<T> {
    all: Box<[OnceLock<T>]>,
    at: AtomicUsize,
}

impl<T> Current<T> {
    pub fn new(first: T) -> Current<T> {
        let all: Box<[OnceLock<T>]> = (0..=REPLACED_MAX).map(|_| OnceLock::new()).collect();
        let current = Current { all, at: AtomicUsize::new(0) };
        let _ = current.all[0].set(first);
        current
    }

    #[inline]
    pub fn get(&self) -> &T {
        let at = self.at.load(Ordering::Acquire);
        self.all[at].get().expect("what is current was set")
    }

    /// Puts something in its place. Not by two at once. False: it was replaced too often.
    pub fn replace(&self, by: T) -> bool {
        let next = self.at.load(Ordering::Acquire) + 1;
        let Some(slot) = self.all.get(next) else { return false };
        let is_set = slot.set(by).is_ok();
        if is_set {
            self.at.store(next, Ordering::Release);
        }
        is_set
    }
}
