//! Something that may be replaced while others use it: a device that has grown, the form of an array.
//!
//! What was there before stays, since who resolves a bio may hold on to it. So it costs a load to get at it, and no lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often it can be replaced.
pub(crate) const REPLACED_MAX: usize = 255;

/// What is current, and all that was.
#[derive(Debug)]
pub(crate) struct Current<T> {
    first: T,
    /// How often it was replaced.
    count: AtomicUsize,
    later: Box<[OnceLock<Box<T>>]>,
}

impl<T> Current<T> {
    pub fn new(first: T) -> Current<T> {
        let later = (0..REPLACED_MAX).map(|_| OnceLock::new()).collect();
        Current { first, count: AtomicUsize::new(0), later }
    }

    #[inline]
    pub fn get(&self) -> &T {
        match self.count.load(Ordering::Acquire) {
            0 => &self.first,
            count => self.later(count),
        }
    }

    fn later(&self, count: usize) -> &T {
        self.later[count - 1].get().expect("what is current was set")
    }

    /// Whether it can be replaced once more.
    pub fn has_room(&self) -> bool {
        self.count.load(Ordering::Acquire) < REPLACED_MAX
    }

    /// Puts something in its place. Not by two at once. False: it was replaced too often.
    pub fn replace(&self, by: T) -> bool {
        let count = self.count.load(Ordering::Acquire);
        let Some(slot) = self.later.get(count) else { return false };
        let is_set = slot.set(Box::new(by)).is_ok();
        if is_set {
            self.count.store(count + 1, Ordering::Release);
        }
        is_set
    }

    /// What is current, and all that was.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        let later = self.later[..self.count.load(Ordering::Acquire)].iter();
        std::iter::once(&self.first).chain(later.filter_map(OnceLock::get).map(|one| &**one))
    }
}
