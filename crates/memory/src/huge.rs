//! Huge pages: mappings that lie so that they can have some, and for memory that is shared with other processes, huge ones in place of small ones that
//! are there already.
//!
//! A device gets its data by pages that lie anywhere: of 1 MiB in small ones it is told of 256 pieces, and of one in huge ones. What it costs to be told
//! differs from device to device; on a virtual disk, reads of 1 MiB are more than twice as fast without (`bench/run pages`).
//!
//! Invariants:
//! 1. No memory is added: only where all small pages of a huge one are there, they are gathered in it. What others have given back (a balloon)
//!    stays given back.
//! 2. Contents do not change, whoever uses the memory meanwhile: the kernel sees to that, and leaves pages alone that a device works on.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::buffer::PAGE;
use crate::mapping::Mapping;

/// Bytes of a huge page of x86-64 and of most others.
pub const HUGE_PAGE: usize = 2 << 20;

const SMALL_IN_HUGE: usize = HUGE_PAGE / PAGE;

/// What has become of a stretch of memory as long as a huge page.
#[derive(Debug)]
pub enum Gathered {
    /// It is a huge page, from now on or already.
    Huge,
    /// Not all of it is there, or nobody tells us whether it is.
    NotThere,
    /// Somebody works on it: a device, or the kernel itself. It may go later.
    Busy,
    /// The kernel did not do it: ENOMEM where there is no huge page, EBUSY where the process may have no more memory, EINVAL where it cannot.
    Refused(io::Error),
}

/// Private, zeroed memory of `len` bytes, whole pages, that begins `phase` bytes behind a place between huge pages.
pub(crate) fn map_private(
    len: usize,
    phase: usize,
    protection: ProtFlags,
    flags: MapFlags,
) -> rustix::io::Result<*mut c_void> {
    // SAFETY: a new mapping where the kernel finds room touches no memory that anybody has.
    let room = unsafe {
        mmap_anonymous(ptr::null_mut(), len + HUGE_PAGE, protection, flags.union(MapFlags::PRIVATE))
    }?;
    let before = (phase + HUGE_PAGE - room.addr() % HUGE_PAGE) % HUGE_PAGE;
    let start = room.wrapping_byte_add(before);
    for (at, len) in [(room, before), (start.wrapping_byte_add(len), HUGE_PAGE - before)] {
        if len > 0 {
            // SAFETY: whole pages of what was mapped just now, before and behind what is kept, known to nobody. What cannot be given back is
            // room without memory.
            let _ = unsafe { munmap(at, len) };
        }
    }
    Ok(start)
}

/// Maps `len` bytes of a file from `offset` on, whole pages of it, so that huge pages of the file are huge pages of the mapping.
pub(crate) fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> rustix::io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let start = if len < HUGE_PAGE {
        // SAFETY: a new mapping where the kernel finds room touches no memory that anybody has.
        unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, offset) }?
    } else {
        let phase = (offset % HUGE_PAGE as u64) as usize; // less than a huge page
        let room = map_private(len, phase, ProtFlags::empty(), MapFlags::NORESERVE)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: over the room that was mapped just now, which is known to nobody.
        unsafe { mmap(room, len, protection, flags, file, offset) }.inspect_err(|_| {
            // SAFETY: likewise.
            let _ = unsafe { munmap(room, len) };
        })?
    };
    Ok(NonNull::new(start.cast()).expect("mmap gives no null pointer where none was asked for"))
}

/// Whether the kernel tells us which pages of a file are there: only who may write to it is told. Others are told that all are.
pub(crate) fn is_told_of_pages(file: BorrowedFd<'_>) -> bool {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

impl Mapping {
    /// How many stretches of it could be huge pages.
    pub fn stretches(&self) -> usize {
        let (first, end) = self.stretches_at();
        end.saturating_sub(first) / HUGE_PAGE
    }

    /// The first address of the first one, and behind the last.
    fn stretches_at(&self) -> (usize, usize) {
        let (start, len) = self.small_pages();
        let end = start.addr().get() + len;
        (start.addr().get().next_multiple_of(HUGE_PAGE), end / HUGE_PAGE * HUGE_PAGE)
    }

    /// Has one of [`Mapping::stretches`] be a huge page. It takes some milliseconds, in which who touches it may have to wait.
    ///
    /// # Panics
    /// If there is no such stretch.
    pub fn gather(&self, stretch: usize) -> Gathered {
        assert!(stretch < self.stretches(), "stretch {stretch} of {}", self.stretches());
        if self.is_torn() || !self.is_told_of_pages() {
            return Gathered::NotThere;
        }
        let (start, _) = self.small_pages();
        let at = start.as_ptr().with_addr(self.stretches_at().0 + stretch * HUGE_PAGE);
        let mut there = [0_u8; SMALL_IN_HUGE];
        // SAFETY: whole pages of our own mapping, and a byte for each of them. Nothing is read of the memory itself.
        if unsafe { libc::mincore(at.cast(), HUGE_PAGE, there.as_mut_ptr()) } != 0 {
            return Gathered::Refused(io::Error::last_os_error());
        }
        if there.iter().any(|page| page & 1 == 0) {
            return Gathered::NotThere;
        }
        // SAFETY: a whole stretch of our own mapping, whose contents stay as they are.
        if unsafe { libc::madvise(at.cast(), HUGE_PAGE, libc::MADV_COLLAPSE) } == 0 {
            return Gathered::Huge;
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Gathered::Busy,
            error => Gathered::Refused(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

    use super::*;
    use crate::Buffer;

    fn memory(bytes: u64) -> std::os::fd::OwnedFd {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes).unwrap();
        file
    }

    #[test]
    fn a_stretch_that_is_all_there_becomes_a_huge_page_with_its_contents_and_no_other_does() {
        let file = memory(4 * HUGE_PAGE as u64);
        // From the middle of a page of the file on: the rest of the first huge page is nobody's.
        let place = Mapping::of_memory(file.as_fd(), 0x1200, 4 * HUGE_PAGE as u64 - 0x1200).unwrap();
        let mapping = place.mapping;
        assert_eq!(mapping.stretches(), 3);
        let all = Buffer::of_mapping(&mapping, 0, mapping.len());
        let written: Vec<u8> = (0..mapping.len()).map(|at| (at / 977) as u8).collect();
        all.write_at(0, &written);
        let hole = (2 * HUGE_PAGE + 0x5000) as u64;
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, hole, 0x1000).unwrap();
        // Another thread of the kernel's may have a page in its hands for a moment.
        let gather = |stretch| {
            let tries = (0..1000).map(|_| mapping.gather(stretch));
            let mut done = tries.skip_while(|it| matches!(it, Gathered::Busy));
            done.next().expect("nobody works on it for long")
        };
        let outcomes: Vec<_> = (0..3).map(gather).collect();
        assert!(matches!(outcomes[..], [Gathered::Huge, Gathered::NotThere, Gathered::Huge]), "{outcomes:?}");
        assert!(matches!(gather(0), Gathered::Huge), "it stays one");
        let blocks = rustix::fs::fstat(&file).unwrap().st_blocks as usize * 512;
        assert_eq!(blocks, 4 * HUGE_PAGE - 0x1000 - 0x1000, "no memory was added");
        let mut now = vec![0; written.len()];
        all.read_at(0, &mut now);
        let at = hole as usize - 0x1000; // the mapping begins with the second page of the file
        let mut expected = written;
        expected[at..at + 0x1000].fill(0);
        assert!(now == expected);
    }

    #[test]
    fn what_is_shorter_than_a_huge_page_has_none_wherever_it_lies() {
        let file = memory(3 * HUGE_PAGE as u64);
        let stretches = |offset, len| {
            Mapping::of_memory(file.as_fd(), offset, len).map(|place| place.mapping.stretches()).unwrap()
        };
        let huge = HUGE_PAGE as u64;
        assert_eq!([stretches(0, huge - 0x1000), stretches(0, huge), stretches(0x1000, huge)], [0, 1, 0]);
        assert_eq!([stretches(0x1000, 2 * huge), stretches(huge - 1, 2 * huge + 1)], [1, 2]);
    }
}
