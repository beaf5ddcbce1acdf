//! The guest's memory: a memfd, and what lies where in it.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use blockwork_format::vhost_user::Region;
use blockwork_memory::{Buffer, Mapping, PAGE};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Where the guest's memory begins for the guest, so that no address is right by accident.
const GUEST_BASE: u64 = 0x1_0000_0000;
/// Likewise for the front end.
const USER_BASE: u64 = 0x7f00_0000_0000;

/// The memory.
pub struct Guest {
    /// The file, to be shared.
    pub file: File,
    /// All of it.
    pub memory: Buffer,
}

/// A piece of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Where, bytes from its beginning.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl Area {
    /// That many bytes at this address of the front end's.
    ///
    /// # Panics
    /// If it is none.
    pub fn at_user(address: u64, len: usize) -> Area {
        let offset = address.checked_sub(USER_BASE).and_then(|offset| usize::try_from(offset).ok());
        Area { offset: offset.expect("an address of the guest's memory"), len }
    }

    /// The guest's address.
    pub fn guest(self) -> u64 {
        GUEST_BASE + self.offset as u64
    }

    /// The front end's address.
    pub fn user(self) -> u64 {
        USER_BASE + self.offset as u64
    }
}

impl Guest {
    /// So many bytes.
    ///
    /// # Errors
    /// The kernel has none.
    pub fn new(len: usize) -> Result<Guest> {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).context("memfd_create")?);
        ftruncate(&file, len as u64).context("ftruncate")?;
        let mapping = Mapping::new(file.as_fd(), len as u64).context("mapping the guest's memory")?;
        Ok(Guest { file, memory: Buffer::of_mapping(&mapping, 0, len) })
    }

    /// The first guest address.
    pub(crate) fn base() -> u64 {
        GUEST_BASE
    }

    /// Writes to each page, and changes nothing: all are there then, as of a guest that has been up for some time.
    pub fn use_all(&self) {
        for page in (0..self.memory.len()).step_by(PAGE) {
            let word = self.memory.load_u16(page, Ordering::Relaxed);
            self.memory.store_u16(page, word, Ordering::Relaxed);
        }
    }

    /// It as the protocol's region.
    pub fn region(&self) -> Region {
        Region { guest: GUEST_BASE, size: self.memory.len() as u64, user: USER_BASE, offset: 0 }
    }
}

/// Gives out areas, one behind the other.
#[derive(Debug, Default)]
pub struct Layout {
    end: usize,
}

impl Layout {
    /// The next `len` bytes, at a multiple of `alignment`.
    pub fn take(&mut self, len: usize, alignment: usize) -> Area {
        let offset = self.end.next_multiple_of(alignment);
        self.end = offset + len;
        Area { offset, len }
    }

    /// Bytes given out.
    pub fn len(&self) -> usize {
        self.end
    }

    /// Whether nothing was given out.
    pub fn is_empty(&self) -> bool {
        self.end == 0
    }
}
