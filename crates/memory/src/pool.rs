//! A worker's stock of buffers, by size class: cut from slabs as far as these go, and else allocated one by one.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use crate::buffer::{Allocation, Buffer, PAGE};
use crate::slab::{SLAB_BYTES, Slab};

/// Size classes in bytes: a request gets the smallest that holds it. Larger ones are allocated exactly and not kept. Half a MiB is what is
/// read ahead at once.
const CLASSES: [usize; 7] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20];
/// Slabs that each class may have, whatever the others took: 128 buffers of 64 KiB. What is left beside these is for whichever class asks first, and
/// keeps it.
const SLABS_OWN: u32 = 4;

/// A worker's stock of page-aligned buffers. Cloning shares the stock.
#[derive(Clone)]
pub struct Pool {
    shelf: Rc<Shelf>,
}

/// The shelves themselves; buffers hold a weak reference to find their way back.
pub(crate) struct Shelf {
    /// Those that were cut from slabs.
    cut: [RefCell<Vec<Rc<Allocation>>>; CLASSES.len()],
    /// Those that were allocated.
    free: [RefCell<Vec<Rc<Allocation>>>; CLASSES.len()],
    newest: [RefCell<Newest>; CLASSES.len()],
    /// Slabs that each class has.
    slabs: [Cell<u32>; CLASSES.len()],
    /// Slabs of all classes, in use or not, at most.
    slabs_max: u32,
    kept_bytes: Cell<usize>,
    kept_bytes_max: usize,
}

/// Where the next buffer of a class is cut.
#[derive(Default)]
struct Newest {
    slab: Option<Rc<Slab>>,
    used: usize,
}

impl Pool {
    /// A pool that keeps at most `kept_bytes_max` bytes of unused buffers; what comes back beyond that is freed.
    pub fn new(kept_bytes_max: usize) -> Pool {
        Pool::with(kept_bytes_max, 0)
    }

    /// As [`Pool::new`]; buffers are cut from slabs first, which are among the `kept_bytes_max` and kept until the pool and all of
    /// their buffers are gone.
    pub fn with_slabs(kept_bytes_max: usize) -> Pool {
        Pool::with(kept_bytes_max, kept_bytes_max)
    }

    fn with(kept_bytes_max: usize, slab_bytes_max: usize) -> Pool {
        let slabs_max = u32::try_from(slab_bytes_max / SLAB_BYTES).unwrap_or(u32::MAX);
        Pool {
            shelf: Rc::new(Shelf {
                cut: Default::default(),
                free: Default::default(),
                newest: Default::default(),
                slabs: Default::default(),
                slabs_max,
                kept_bytes: Cell::new(0),
                kept_bytes_max,
            }),
        }
    }

    /// A buffer of at least `len` bytes. Its content is not defined.
    #[inline]
    pub fn get(&self, len: usize) -> Buffer {
        let Some(class) = class_for(len) else { return Buffer::new(len) };
        if let Some(memory) = self.shelf.cut[class].borrow_mut().pop() {
            return Buffer::from_shelf(memory);
        }
        self.get_another(class)
    }

    fn get_another(&self, class: usize) -> Buffer {
        let home = Rc::downgrade(&self.shelf);
        if let Some(buffer) = self.shelf.cut_another(class, &home) {
            return buffer;
        }
        if let Some(memory) = self.shelf.free[class].borrow_mut().pop() {
            self.shelf.kept_bytes.set(self.shelf.kept_bytes.get() - CLASSES[class]);
            return Buffer::from_shelf(memory);
        }
        Buffer::with_home(CLASSES[class], home)
    }

    /// How long the buffer is that a request for `len` bytes gets.
    #[inline]
    pub fn bytes_for(len: usize) -> usize {
        class_for(len).map_or_else(|| len.next_multiple_of(PAGE), |class| CLASSES[class])
    }

    /// Bytes in unused buffers that were allocated one by one.
    pub fn kept_bytes(&self) -> usize {
        self.shelf.kept_bytes.get()
    }
}

impl Shelf {
    /// The next buffer of a slab of that class, of a new one if there may be one.
    fn cut_another(&self, class: usize, home: &Weak<Shelf>) -> Option<Buffer> {
        let (mut newest, size) = (self.newest[class].borrow_mut(), CLASSES[class]);
        if newest.slab.is_none() || newest.used + size > SLAB_BYTES {
            if size > SLAB_BYTES || !self.may_have_another(class) {
                return None;
            }
            let slab = Slab::new(self.slabs())?;
            self.slabs[class].set(self.slabs[class].get() + 1);
            *newest = Newest { slab: Some(Rc::new(slab)), used: 0 };
        }
        let at = newest.used;
        newest.used += size;
        newest.slab.as_ref().map(|slab| Buffer::of_slab(slab, at, size, home.clone()))
    }

    /// Whether a class may have another slab: one of its own, or one that no other class has of its own.
    fn may_have_another(&self, class: usize) -> bool {
        let of_others = |(size, has): (&usize, &Cell<u32>)| match *size <= SLAB_BYTES {
            true => SLABS_OWN.saturating_sub(has.get()),
            false => 0,
        };
        let reserved = match self.slabs[class].get() < SLABS_OWN {
            true => 0,
            false => CLASSES.iter().zip(&self.slabs).map(of_others).sum(),
        };
        self.slabs() + reserved < self.slabs_max
    }

    /// Slabs of all classes.
    fn slabs(&self) -> u32 {
        self.slabs.iter().map(Cell::get).sum()
    }

    fn slab_bytes(&self) -> usize {
        self.slabs() as usize * SLAB_BYTES
    }

    pub(crate) fn put_back(&self, memory: Rc<Allocation>) {
        let size = memory.size();
        let class = class_for(size).expect("only buffers of a class have a home");
        debug_assert_eq!(CLASSES[class], size);
        if memory.is_of_slab() {
            self.cut[class].borrow_mut().push(memory);
            return;
        }
        let kept = self.kept_bytes.get() + size;
        if kept + self.slab_bytes() > self.kept_bytes_max {
            return; // dropped: freed
        }
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
    fn a_buffer_is_as_long_as_was_said() {
        let pool = Pool::with_slabs(32 << 20);
        for class in CLASSES {
            for len in [class - 1, class, class + 1] {
                assert_eq!(pool.get(len).len(), Pool::bytes_for(len), "{len}");
            }
        }
    }

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

    #[test]
    fn buffers_are_cut_from_slabs_without_overlap_and_beyond_their_number_allocated() {
        let pool = Pool::with_slabs(64 << 20);
        let each = SLAB_BYTES / (64 << 10);
        // Of 32 slabs, 5 other classes have 4 each.
        let slabs = 32 - 5 * SLABS_OWN;
        let all: Vec<_> = (0..=slabs as usize * each).map(|_| pool.get(50_000)).collect();
        let numbers: Vec<_> = all.iter().filter_map(Buffer::slab).map(|slab| slab.number()).collect();
        let expected: Vec<_> = (0..slabs).flat_map(|number| std::iter::repeat_n(number, each)).collect();
        assert_eq!(numbers, expected);
        assert!(all.last().unwrap().slab().is_none(), "the last one is no slab's");
        all.iter().zip(0_u32..).for_each(|(buffer, i)| {
            assert!(buffer.as_ptr().addr().is_multiple_of(crate::PAGE));
            buffer.fill(0, buffer.len(), (i % 251) as u8);
        });
        let mut bytes = vec![0; 64 << 10];
        for (buffer, i) in all.iter().zip(0_u32..) {
            buffer.read_at(0, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == (i % 251) as u8), "buffer {i} is nobody else's");
        }
        let others: Vec<_> = [4 << 10, 16 << 10, 256 << 10, 512 << 10, 1 << 20]
            .into_iter()
            .flat_map(|size| (0..SLABS_OWN as usize * SLAB_BYTES / size).map(move |_| size))
            .map(|size| pool.get(size))
            .collect();
        assert!(others.iter().all(|buffer| buffer.slab().is_some()), "others have theirs");
        assert_eq!(others.last().unwrap().slab().map(|slab| slab.number()), Some(31));
        assert!(pool.get(1 << 20).slab().is_none(), "and no more than that");
    }

    #[test]
    fn what_was_cut_is_taken_again_before_what_was_allocated() {
        let pool = Pool::with_slabs(SLAB_BYTES + (1 << 20));
        let (a, b, c) = (pool.get(1 << 20), pool.get(1 << 20), pool.get(1 << 20));
        assert!(a.slab().is_some() && b.slab().is_some() && c.slab().is_none());
        drop((a, b));
        drop(c);
        assert_eq!(pool.kept_bytes(), 1 << 20, "as much as is left beside the slab");
        let (a, b, c) = (pool.get(1 << 20), pool.get(1 << 20), pool.get(1 << 20));
        assert!(a.slab().is_some() && b.slab().is_some() && c.slab().is_none());
        assert!(pool.get(4096).slab().is_none(), "there is no room for a second slab");
        assert!(Pool::with_slabs(1 << 20).get(4096).slab().is_none(), "nor in a small pool for a first");
    }

    #[test]
    fn a_slab_lives_as_long_as_who_holds_it() {
        let pool = Pool::with_slabs(64 << 20);
        let buffer = pool.get(4096);
        let slab = buffer.slab().unwrap().clone();
        assert!(slab.as_ptr().addr().is_multiple_of(SLAB_BYTES));
        drop(pool);
        buffer.write_at(4090, b"still ");
        drop(buffer);
        assert_eq!(Rc::strong_count(&slab), 1);
        drop(slab);
        assert!(Pool::with_slabs(64 << 20).get(5 << 20).slab().is_none(), "larger than the largest class");
    }
}
