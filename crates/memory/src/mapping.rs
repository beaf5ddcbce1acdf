//! A file mapped into memory, shared with other processes: a guest's memory, rings, marks that outlive us.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FileType, fcntl_get_seals, fstat};
use rustix::mm::munmap;

use crate::budget::{MAPPINGS, mappings_max, max_map_count};
use crate::buffer::PAGE;
use crate::fault::Guard;
use crate::huge;

/// Bytes of all mappings of a process at a time, at most: three quarters of the addresses that it has on x86-64. A file that is nearly all hole may be as
/// large as its owner likes, and a process that has given away all of its addresses ends with its next large allocation.
pub const MAPPED_BYTES_MAX: u64 = 96 << 40;

static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);

/// One of [`mappings_max`], and so many bytes of [`MAPPED_BYTES_MAX`], until it is dropped.
struct Claim(u64);

impl Claim {
    fn new(bytes: u64) -> Result<Claim, MapError> {
        let more = |all: u64| all.checked_add(bytes).filter(|all| *all <= MAPPED_BYTES_MAX);
        if MAPPED_BYTES.try_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return Err(MapError::NoRoom(bytes));
        }
        if !MAPPINGS.take(mappings_max()) {
            MAPPED_BYTES.fetch_sub(bytes, Ordering::Relaxed);
            return Err(MapError::TooMany);
        }
        Ok(Claim(bytes))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        MAPPINGS.give_back(1);
        MAPPED_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// A file, shared, readable and writable. Whoever else has it mapped may change it at any time: it is used through
/// [`Buffer::of_mapping`](crate::Buffer::of_mapping).
pub struct Mapping {
    start: NonNull<u8>,
    /// Bytes that may be used.
    len: usize,
    /// Bytes that are mapped: whole pages, of the file's size of page.
    mapped: usize,
    /// The file has small pages.
    is_small: bool,
    /// Which of them are there is told to us.
    is_told_of_pages: bool,
    /// So many of its first pieces are there (`pieces`).
    brought: AtomicUsize,
    guard: Guard,
    /// Given back when the memory is unmapped and the guard's slot is free again.
    _claim: Claim,
}

/// Something in a mapping.
#[derive(Clone, Debug)]
pub struct Place {
    /// The memory.
    pub mapping: Arc<Mapping>,
    /// Where in it, bytes.
    pub offset: usize,
}

/// Why a file could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// It cannot be mapped at all.
    #[error(
        "the descriptor is not a file that can be mapped, expected a memfd or a file of tmpfs or hugetlbfs"
    )]
    NotAFile,
    /// Its pages come from somewhere.
    #[error(
        "the descriptor's file is not memory, and whoever provides its pages could have us wait for them: expected a memfd, or a \
         file of tmpfs or hugetlbfs (QEMU: -object memory-backend-memfd,share=on)"
    )]
    NotMemory,
    /// It ends too early.
    #[error("the file has {found} bytes, expected at least {expected}")]
    TooShort {
        /// Its size.
        found: u64,
        /// What is needed.
        expected: u64,
    },
    /// More than an address space holds, or nothing at all.
    #[error("{0} bytes cannot be mapped")]
    Length(u64),
    /// Others have what there is.
    #[error(
        "{0} bytes more cannot be mapped: all shared memory of this process may have {MAPPED_BYTES_MAX} bytes"
    )]
    NoRoom(u64),
    /// Likewise.
    #[error(
        "all {} mappings that this process has for shared memory and for pages of guests are taken, of {} that Linux lets it have: serve \
         some of its guests by another process, or let it have more (sysctl vm.max_map_count)",
        mappings_max(),
        max_map_count()
    )]
    TooMany,
    /// The kernel says no.
    #[error("{what}: {source}")]
    Io {
        /// The call.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

// SAFETY: the memory belongs to the process, not to a thread, and is touched only through raw pointers and atomics; what
// others see of a plain copy while it is made is no worse than what another process may do to it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the `len` bytes at `offset` of a file that comes from who may mean harm: of memory only. A page of any other (of a file
    /// system of FUSE's, say, or of another machine's) may not come, and whoever touches it waits for it.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn of_memory(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Place, MapError> {
        // Files of tmpfs and hugetlbfs have seals, and no others; and nobody has to be asked for them.
        fcntl_get_seals(file).map_err(|_| MapError::NotMemory)?;
        Mapping::of_part(file, offset, len)
    }

    /// Maps the first `len` bytes of `file`, which must be that long.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn new(file: BorrowedFd<'_>, len: u64) -> Result<Arc<Mapping>, MapError> {
        Mapping::of_part(file, 0, len).map(|place| place.mapping)
    }

    /// Maps `len` bytes of `file`, which must be there, and no more than the whole pages that they lie in.
    fn of_part(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Place, MapError> {
        let io = |what, source: rustix::io::Errno| MapError::Io { what, source: source.into() };
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or(MapError::Length(len))?;
        let stat = fstat(file).map_err(|errno| io("fstat", errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(MapError::NotAFile);
        }
        let found = u64::try_from(stat.st_size).unwrap_or(0);
        if found < end {
            return Err(MapError::TooShort { found, expected: end });
        }
        // On hugetlbfs this is the size of its pages, and mmap and munmap take whole ones only.
        let unit = u64::try_from(stat.st_blksize).unwrap_or(0).max(PAGE as u64);
        if !unit.is_power_of_two() {
            return Err(MapError::Length(len));
        }
        let at = offset % unit;
        let sizes = (usize::try_from(unit), usize::try_from(at), usize::try_from(end - (offset - at)));
        let (Ok(unit), Ok(offset_there), Ok(usable)) = sizes else { return Err(MapError::Length(len)) };
        if usable > isize::MAX as usize / 2 {
            return Err(MapError::Length(len));
        }
        let mapped = usable.next_multiple_of(unit);
        let claim = Claim::new(mapped as u64)?;
        let start = huge::map(file, offset - at, mapped).map_err(|errno| io("mmap", errno))?;
        match Guard::new(start.addr().get(), mapped) {
            Ok(guard) => {
                // The handler turns it into a pointer again.
                start.as_ptr().expose_provenance();
                let (is_small, is_told_of_pages) = (unit == PAGE, huge::is_told_of_pages(file));
                let mapping = Mapping {
                    start,
                    len: usable,
                    mapped,
                    is_small,
                    is_told_of_pages,
                    brought: AtomicUsize::new(0),
                    guard,
                    _claim: claim,
                };
                Ok(Place { mapping: Arc::new(mapping), offset: offset_there })
            }
            Err(source) => {
                // SAFETY: mapped just now, and known to nobody.
                let _ = unsafe { munmap(start.as_ptr().cast(), mapped) };
                Err(MapError::Io { what: "guarding a mapping", source })
            }
        }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether the file was cut short by who shares it: from then on this is private memory, zeros at first.
    #[inline]
    pub fn is_torn(&self) -> bool {
        self.guard.is_torn()
    }

    /// Where it lies, and how long it is in small pages: 0 where it has others.
    pub(crate) fn small_pages(&self) -> (NonNull<u8>, usize) {
        (self.start, if self.is_small { self.mapped } else { 0 })
    }

    /// Whether we are told which of its pages are there.
    pub(crate) fn is_told_of_pages(&self) -> bool {
        self.is_told_of_pages
    }

    /// How many of its first pieces are there.
    pub(crate) fn brought(&self) -> &AtomicUsize {
        &self.brought
    }

    /// Address of the range.
    ///
    /// # Panics
    /// If it lies outside.
    #[inline]
    pub(crate) fn range(&self, offset: usize, len: usize) -> NonNull<u8> {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{len} bytes at {offset} of a mapping of {}",
            self.len
        );
        // SAFETY: within the mapping (checked), which is one object smaller than isize::MAX.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard.release();
        // SAFETY: mapped by `new` at this length, and unmapped once, here, when nothing points into it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.len)
    }
}
