//! A worker's stock of buffers, by size class.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::buffer::{Allocation, Buffer};

/// Size classes in bytes: a request gets the smallest that holds it. Larger ones are allocated exactly and not kept.
const CLASSES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// A worker's stock of page-aligned buffers. Cloning shares the stock.
#[derive(Clone)]
pub struct Pool {
    shelf: Rc<Shelf>,
}

/// The shelves themselves; buffers hold a weak reference to find their way back.
pub(crate) struct Shelf {
    free: [RefCell<Vec<Rc<Allocation>>>; CLASSES.len()],
    kept_bytes: Cell<usize>,
    kept_bytes_max: usize,
}

impl Pool {
    /// A pool that keeps at most `kept_bytes_max` bytes of unused buffers; what comes back beyond that is freed.
    pub fn new(kept_bytes_max: usize) -> Pool {
        Pool { shelf: Rc::new(Shelf { free: Default::default(), kept_bytes: Cell::new(0), kept_bytes_max }) }
    }

    /// A buffer of at least `len` bytes. Its content is not defined.
    #[inline]
    pub fn get(&self, len: usize) -> Buffer {
        let Some(class) = class_for(len) else { return Buffer::new(len) };
        if let Some(memory) = self.shelf.free[class].borrow_mut().pop() {
            self.shelf.kept_bytes.set(self.shelf.kept_bytes.get() - CLASSES[class]);
            return Buffer::from_shelf(memory);
        }
        Buffer::with_home(CLASSES[class], Rc::downgrade(&self.shelf))
    }

    /// Bytes in unused buffers.
    pub fn kept_bytes(&self) -> usize {
        self.shelf.kept_bytes.get()
    }
}

impl Shelf {
    pub(crate) fn put_back(&self, memory: Rc<Allocation>) {
        let size = memory.size();
        let kept = self.kept_bytes.get() + size;
        if kept > self.kept_bytes_max {
            return; // dropped: freed
        }
        let class = class_for(size).expect("only buffers of a class have a home");
        debug_assert_eq!(CLASSES[class], size);
        self.kept_bytes.set(kept);
        self.free[class].borrow_mut().push(memory);
    }
}

#[inline]
fn class_for(len: usize) -> Option<usize> {
    CLASSES.iter().position(|&size| len <= size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_its_last_clone_is_dropped() {
        let pool = Pool::new(1 << 20);
        let a = pool.get(5000);
        assert_eq!(a.len(), 16 << 10);
        let b = a.clone();
        drop(a);
        assert_eq!(pool.kept_bytes(), 0);
        drop(b);
        assert_eq!(pool.kept_bytes(), 16 << 10);
        let c = pool.get(16 << 10);
        assert_eq!(pool.kept_bytes(), 0);
        drop(c);
    }

    #[test]
    fn what_comes_back_beyond_the_limit_is_freed() {
        let pool = Pool::new(8 << 10);
        let all: Vec<_> = (0..5).map(|_| pool.get(1)).collect();
        drop(all);
        assert_eq!(pool.kept_bytes(), 8 << 10);
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let pool = Pool::new(1 << 20);
        let a = pool.get(10);
        drop(pool);
        a.write_at(0, b"still here");
        let mut back = [0; 10];
        a.read_at(0, &mut back);
        assert_eq!(&back, b"still here");
    }

    #[test]
    fn larger_than_the_largest_class_is_allocated_exactly() {
        let pool = Pool::new(64 << 20);
        let a = pool.get((4 << 20) + 1);
        assert_eq!(a.len(), (4 << 20) + 4096);
        drop(a);
        assert_eq!(pool.kept_bytes(), 0);
    }
}
