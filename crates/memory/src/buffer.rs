//! Memory for I/O, reference-counted: a page-aligned allocation of ours, a part of a mapping, or pages that were granted.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::{self, NonNull};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use crate::granted::GrantedPages;
use crate::mapping::Mapping;
use crate::near;
use crate::pool::Shelf;
use crate::slab::{SLAB_BYTES, Slab};

/// Alignment of every buffer, in bytes. Enough for `O_DIRECT` on any Linux block device.
pub const PAGE: usize = 4096;

pub(crate) struct Allocation {
    start: NonNull<u8>,
    size: usize,
    owner: Owner,
    home: Weak<Shelf>,
}

/// Who owns the memory.
enum Owner {
    /// We do: it is freed with the allocation.
    Heap(Layout),
    /// A slab of ours, which lives as long as parts of it.
    Slab(Rc<Slab>),
    /// A mapping, which lives as long as parts of it.
    Mapping(Arc<Mapping>),
    /// Another domain does: it is unmapped with the allocation.
    Granted { _keeps_it: GrantedPages },
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Owner::Heap(layout) = self.owner {
            // SAFETY: `start` came from `alloc_zeroed` with this very layout, and is freed once, here.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

/// Memory of a fixed size; cloning shares it. Dropping the last clone gives it back to its pool. Page-aligned, unless it
/// is part of a mapping.
pub struct Buffer {
    memory: Rc<Allocation>,
}

impl Buffer {
    /// Allocates `len` bytes (rounded up to whole pages; at least one), zeroed, outside of any pool.
    pub fn new(len: usize) -> Buffer {
        Buffer::with_home(len, Weak::new())
    }

    pub(crate) fn with_home(len: usize, home: Weak<Shelf>) -> Buffer {
        let size = len.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(size, PAGE).expect("a buffer is smaller than the address space");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Buffer { memory: Rc::new(Allocation { start, size, owner: Owner::Heap(layout), home }) }
    }

    /// `len` bytes at `offset` of a slab, which they keep alive.
    pub(crate) fn of_slab(slab: &Rc<Slab>, offset: usize, len: usize, home: Weak<Shelf>) -> Buffer {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= SLAB_BYTES),
            "{len} bytes at {offset} of a slab"
        );
        let (start, owner) = (slab.at(offset), Owner::Slab(slab.clone()));
        Buffer { memory: Rc::new(Allocation { start, size: len, owner, home }) }
    }

    /// `len` bytes at `offset` of a mapping, which they keep alive. Their content is shared with whoever has the same file
    /// mapped, and may change at any time.
    ///
    /// # Panics
    /// If the range lies outside of the mapping.
    pub fn of_mapping(mapping: &Arc<Mapping>, offset: usize, len: usize) -> Buffer {
        let start = mapping.range(offset, len);
        let owner = Owner::Mapping(mapping.clone());
        Buffer { memory: Rc::new(Allocation { start, size: len, owner, home: Weak::new() }) }
    }

    pub(crate) fn of_granted(pages: GrantedPages) -> Buffer {
        let (start, size) = (pages.start(), pages.len());
        let owner = Owner::Granted { _keeps_it: pages };
        Buffer { memory: Rc::new(Allocation { start, size, owner, home: Weak::new() }) }
    }

    pub(crate) fn from_shelf(memory: Rc<Allocation>) -> Buffer {
        debug_assert_eq!(Rc::strong_count(&memory), 1);
        Buffer { memory }
    }

    /// Size in bytes; of an allocation of ours a multiple of [`PAGE`].
    #[inline]
    pub fn len(&self) -> usize {
        self.memory.size
    }

    /// Whether it is an empty part of a mapping.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the first byte, for the kernel. Reading or writing through it needs `unsafe` at the caller's.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.start.as_ptr()
    }

    /// Whether both are the same allocation.
    #[inline]
    pub fn same(&self, other: &Buffer) -> bool {
        Rc::ptr_eq(&self.memory, &other.memory)
    }

    /// The slab that it was cut from, if it was.
    #[inline]
    pub fn slab(&self) -> Option<&Rc<Slab>> {
        match &self.memory.owner {
            Owner::Slab(slab) => Some(slab),
            Owner::Heap(_) | Owner::Mapping(_) | Owner::Granted { .. } => None,
        }
    }

    /// Whether it is part of a mapping: of a file that somebody else may cut short, so that nothing is there any more.
    pub fn is_mapped(&self) -> bool {
        self.mapping().is_some()
    }

    /// That mapping.
    #[inline]
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        match &self.memory.owner {
            Owner::Mapping(mapping) => Some(mapping),
            Owner::Heap(_) | Owner::Slab(_) | Owner::Granted { .. } => None,
        }
    }

    /// The last reference is dropped: the shelf's is the only one then.
    #[cold]
    fn go_home(&self) {
        if let Some(shelf) = self.memory.home.upgrade() {
            shelf.put_back(self.memory.clone());
        }
    }

    /// Whether this is the only reference.
    #[inline]
    pub fn is_unique(&self) -> bool {
        Rc::strong_count(&self.memory) == 1
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > self.len()) {
            outside(offset, len, self.len());
        }
    }

    /// Has the processor fetch what is at `offset`, if that is in the buffer, to be looked at soon, or written. See [`crate::bring_near`].
    #[inline]
    pub fn bring_near(&self, offset: usize, to_write: bool) {
        let at = self.as_ptr().wrapping_add(offset);
        if to_write { near::fetch_to_write(at) } else { near::fetch(at) }
    }

    /// Copies `bytes` into the buffer at `offset`.
    ///
    /// # Panics
    /// If the range lies outside.
    #[inline]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: in bounds (checked), live (we hold the Rc), and `bytes` cannot overlap since no slice into a
        // buffer is ever handed out.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr().add(offset), bytes.len()) }
    }

    /// Copies `bytes.len()` bytes at `offset` out of the buffer.
    ///
    /// # Panics
    /// If the range lies outside.
    #[inline]
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len());
        // SAFETY: as in `write_at`.
        unsafe { ptr::copy_nonoverlapping(self.as_ptr().add(offset), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Sets `len` bytes at `offset` to `value`.
    ///
    /// # Panics
    /// If the range lies outside.
    #[inline]
    pub fn fill(&self, offset: usize, len: usize, value: u8) {
        self.check(offset, len);
        // SAFETY: in bounds (checked) and live.
        unsafe { ptr::write_bytes(self.as_ptr().add(offset), value, len) }
    }

    /// Copies `len` bytes from `from` at `from_offset` to `offset` here. The two may be one buffer and overlap.
    ///
    /// # Panics
    /// If either range lies outside.
    #[inline]
    pub fn copy_from(&self, offset: usize, from: &Buffer, from_offset: usize, len: usize) {
        self.check(offset, len);
        from.check(from_offset, len);
        // SAFETY: both in bounds (checked) and live; `ptr::copy` allows overlap.
        unsafe { ptr::copy(from.as_ptr().add(from_offset), self.as_ptr().add(offset), len) }
    }
}

/// Apart from [`Buffer::check`], which else keeps all that a message would tell in memory, for every copy.
#[cold]
fn outside(offset: usize, len: usize, size: usize) -> ! {
    panic!("{len} bytes at {offset} of a buffer of {size}")
}

impl Clone for Buffer {
    #[inline]
    fn clone(&self) -> Buffer {
        Buffer { memory: self.memory.clone() }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if self.is_unique() {
            self.go_home();
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

impl Allocation {
    pub(crate) fn size(&self) -> usize {
        self.size
    }
    pub(crate) fn is_of_slab(&self) -> bool {
        matches!(self.owner, Owner::Slab(_))
    }
}
