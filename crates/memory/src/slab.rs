//! A stretch of memory that is cut into equal buffers: few and large, so that the kernel can be told of them once (io_uring's
//! registered buffers) instead of finding the pages of each request anew.
//!
//! It stays mapped while anybody holds it: a buffer that was cut from it, or whoever told the kernel. So an address that the kernel
//! knows never becomes that of other memory.

use std::fmt;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, munmap};

use crate::huge::{self, HUGE_PAGE};

/// Bytes of a slab, and its alignment: a huge page of x86-64 and of most others. In huge pages the kernel describes a request of any
/// length by one element.
pub const SLAB_BYTES: usize = HUGE_PAGE;

/// See the module. Not `Send`: a slab belongs to a worker, as its buffers do.
pub struct Slab {
    start: NonNull<u8>,
    number: u32,
}

impl Slab {
    /// Zeroed, private memory; `number` is its own within its pool. `None` where there is none.
    pub(crate) fn new(number: u32) -> Option<Slab> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let start = huge::map_private(SLAB_BYTES, 0, protection, MapFlags::empty()).ok()?;
        // SAFETY: changes no content, of memory that is ours. Where huge pages are refused, it is pages of the usual size.
        let _ = unsafe { madvise(start, SLAB_BYTES, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast()).expect("mmap gives no null pointer where none was asked for");
        Some(Slab { start, number })
    }

    /// Address of its first byte, for the kernel; valid while the slab lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its own within its pool, from 0 on.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Address of the byte at `offset`.
    ///
    /// # Panics
    /// If that lies outside.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < SLAB_BYTES, "byte {offset} of a slab of {SLAB_BYTES}");
        // SAFETY: within the mapping (checked), which is one object.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` at this length, and unmapped once, here, when nothing points into it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), SLAB_BYTES) };
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({})", self.number)
    }
}
