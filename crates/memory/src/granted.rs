//! Pages that another domain of Xen's has granted to this one, mapped by `/dev/xen/gntdev`.
//!
//! Invariants:
//! 1. What was mapped stays mapped, and the other domain's, until the last [`Buffer`] of it is dropped: a domain that dies
//!    meanwhile, or takes its grant back, leaves us the page.
//! 2. Pages that are mapped together are one buffer, and are unmapped together.
//!
//! Source: the kernel's `include/uapi/xen/gntdev.h`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::buffer::{Buffer, PAGE};

/// Where the kernel has it.
const DEVICE: &str = "/dev/xen/gntdev";

/// `_IOC(_IOC_NONE, 'G', number, size)`.
const fn request(number: libc::Ioctl, size: libc::Ioctl) -> libc::Ioctl {
    size << 16 | 0x47 << 8 | number
}

const MAP_GRANT_REF: libc::Ioctl = request(0, 24);
const UNMAP_GRANT_REF: libc::Ioctl = request(1, 16);

/// Words of `struct ioctl_gntdev_map_grant_ref` before its grants: count, padding, and the 64-bit index that the kernel fills
/// in.
const HEAD_WORDS: usize = 4;

/// The kernel's device by which granted pages are mapped.
#[derive(Debug)]
pub struct GrantDevice {
    file: File,
}

impl GrantDevice {
    /// Opens it.
    ///
    /// # Errors
    /// It is not there, or not for us.
    pub fn open() -> io::Result<Arc<GrantDevice>> {
        GrantDevice::open_at(Path::new(DEVICE))
    }

    fn open_at(path: &Path) -> io::Result<Arc<GrantDevice>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(GrantDevice { file }))
    }

    /// Maps the pages of these grants of `domain`'s, one after the other, to read and, if `writable`, to write. Of grants to
    /// read only, nothing may be written: it would end the process.
    ///
    /// # Errors
    /// One of them is not granted so, or there is no room for more.
    ///
    /// # Panics
    /// If there is no grant.
    pub fn map(self: &Arc<GrantDevice>, domain: u32, grefs: &[u32], writable: bool) -> io::Result<Buffer> {
        assert!(!grefs.is_empty(), "pages to map");
        let count = u32::try_from(grefs.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut words = vec![count, 0, 0, 0];
        words.extend(grefs.iter().flat_map(|&gref| [domain, gref]));
        // SAFETY: `words` is the kernel's struct, of as many grants as it says, and outlives the call.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), MAP_GRANT_REF, words.as_mut_ptr()) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let index = u64::from(words[HEAD_WORDS - 2]) | u64::from(words[HEAD_WORDS - 1]) << 32;
        let entered = Entered { device: self.clone(), index, count };
        let len = grefs.len() * PAGE;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping where the kernel finds room touches no memory that anybody has.
        let start =
            unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, self.file.as_fd(), index) }?;
        let start = NonNull::new(start.cast()).expect("mmap gives no null pointer where none was asked for");
        Ok(Buffer::of_granted(GrantedPages { start, len, _entered: entered }))
    }
}

/// Grants that the device knows of, until this is dropped.
struct Entered {
    device: Arc<GrantDevice>,
    index: u64,
    count: u32,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let (low, high) = (self.index & u64::from(u32::MAX), self.index >> 32);
        let halves = [low, high].map(|half| u32::try_from(half).expect("32 bits"));
        let words = [halves[0], halves[1], self.count, 0];
        // SAFETY: `words` is the kernel's struct, which it only reads, and outlives the call.
        unsafe { libc::ioctl(self.device.file.as_raw_fd(), UNMAP_GRANT_REF, words.as_ptr()) };
    }
}

/// Pages that are mapped.
pub(crate) struct GrantedPages {
    start: NonNull<u8>,
    len: usize,
    /// Forgotten by the device after they were unmapped, as it wants it: fields are dropped after `drop`.
    _entered: Entered,
}

impl GrantedPages {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for GrantedPages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` at this length, and unmapped once, here, when nothing points into it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_numbers_of_the_kernels_header() {
        assert_eq!((MAP_GRANT_REF, UNMAP_GRANT_REF), (0x0018_4700, 0x0010_4701));
    }

    #[test]
    fn a_file_that_is_no_such_device_maps_nothing() {
        let device = GrantDevice::open_at(Path::new("/dev/null")).unwrap();
        assert_eq!(device.map(1, &[8], true).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        assert_eq!(
            GrantDevice::open_at(Path::new("/dev/xen/none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
