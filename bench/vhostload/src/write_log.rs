//! The front end's side of a migration: the log in which a device marks the pages that it writes.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use blockwork_format::vhost_user::LogArea;
use blockwork_memory::{Buffer, Mapping};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::guest::Guest;

const PAGE: u64 = 4096;

/// Where it lies in its file, whose beginning is none of the device's business.
const OFFSET: u64 = (2 << 40) + 64;

/// A bit for each page of the guest's addresses.
pub(crate) struct WriteLog {
    file: File,
    bits: Buffer,
}

impl WriteLog {
    pub(crate) fn new(guest: &Guest) -> Result<WriteLog> {
        let end = Guest::base() + guest.memory.len() as u64;
        let bytes = end.div_ceil(PAGE).div_ceil(8);
        let file = File::from(memfd_create("write-log", MemfdFlags::CLOEXEC).context("memfd_create")?);
        ftruncate(&file, OFFSET + bytes).context("ftruncate")?;
        let at = Mapping::of_memory(file.as_fd(), OFFSET, bytes).context("mapping the log")?;
        let bits = Buffer::of_mapping(&at.mapping, at.offset, usize::try_from(bytes)?);
        Ok(WriteLog { file, bits })
    }

    pub(crate) fn area(&self) -> LogArea {
        LogArea { size: self.bits.len() as u64, offset: OFFSET }
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Takes the marks out: where the marked pages are in the guest's memory.
    pub(crate) fn take(&self) -> BTreeSet<usize> {
        let first = usize::try_from(Guest::base() / PAGE).expect("a small address");
        let mut pages = BTreeSet::new();
        for at in 0..self.bits.len() {
            let byte = self.bits.take_byte(at);
            let marked = (0..8).filter(|bit| byte & 1 << bit != 0).map(|bit| 8 * at + bit);
            pages.extend(marked.map(|page| (page - first) * PAGE as usize));
        }
        pages
    }
}
