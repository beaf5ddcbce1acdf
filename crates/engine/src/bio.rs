//! A bio: one operation on a contiguous range of a volume, and what became of it.

use std::fmt;

use blockwork_memory::Segments;

use crate::units::{Sector, Sectors};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Op {
    /// Fill the data from the device.
    Read,
    /// Store the data on the device.
    Write,
    /// Make every write that has completed durable. Has no range.
    Flush,
    /// The content of the range is not needed any more; afterwards it is undefined. May do less, or nothing.
    Discard,
    /// The range reads as zeros afterwards.
    WriteZeroes,
}

impl Op {
    /// Whether it alters the device's content.
    #[inline]
    pub fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }
    /// Whether it carries data.
    #[inline]
    pub fn has_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

/// Modifiers of an operation, as a set of bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flags(u8);

impl Flags {
    /// None.
    pub const NONE: Flags = Flags(0);
    /// Force unit access: complete only when this data is on stable storage.
    pub const FUA: Flags = Flags(1);
    /// Write-zeroes must not unmap (NBD's NO_HOLE).
    pub const NO_UNMAP: Flags = Flags(2);
    /// Write-zeroes fails with ENOTSUP rather than fall back to writing zeros (NBD's FAST_ZERO).
    pub const FAST_ONLY: Flags = Flags(4);
    /// Must reach the leaf as a request of its own.
    pub const NO_MERGE: Flags = Flags(8);
    /// The submitter waits for it (blktrace's `S`).
    pub const SYNC: Flags = Flags(16);
    /// Read-ahead: nobody waits for it yet (blktrace's `A`).
    pub const READ_AHEAD: Flags = Flags(32);
    /// What lies behind it is not going to be read: nothing is to be read ahead for it.
    pub const NO_READ_AHEAD: Flags = Flags(64);
    /// Complete only when the data is found also by who serves the volume after this process was killed. It need not be on stable storage: what
    /// the kernel, or a server, was given is not lost by that. A flush with it writes down what layers keep in memory, and flushes no leaf.
    pub const OUTLIVES: Flags = Flags(128);

    /// Whether all bits of `other` are set.
    #[inline]
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
    /// Both sets together.
    #[inline]
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
    /// This set less `other`.
    #[inline]
    pub fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Flags::FUA, "FUA"),
            (Flags::NO_UNMAP, "NO_UNMAP"),
            (Flags::FAST_ONLY, "FAST_ONLY"),
            (Flags::NO_MERGE, "NO_MERGE"),
            (Flags::SYNC, "SYNC"),
            (Flags::READ_AHEAD, "READ_AHEAD"),
            (Flags::NO_READ_AHEAD, "NO_READ_AHEAD"),
            (Flags::OUTLIVES, "OUTLIVES"),
        ];
        let set: Vec<_> = names.iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| *name).collect();
        write!(f, "Flags({})", set.join("|"))
    }
}

/// One operation on a contiguous range of a volume.
#[derive(Clone, Debug)]
pub struct Bio {
    /// What to do.
    pub op: Op,
    /// How.
    pub flags: Flags,
    /// Where it starts.
    pub sector: Sector,
    /// How much; zero for a flush.
    pub nr: Sectors,
    /// Exactly `nr` sectors of memory for reads and writes, none for the others.
    pub data: Segments,
}

impl Bio {
    /// A read into, or a write from, `data`, whose length must be whole sectors.
    pub fn with_data(op: Op, flags: Flags, sector: Sector, data: Segments) -> Bio {
        let bytes = blockwork_memory::bytes_in(&data) as u64;
        debug_assert!(op.has_data());
        debug_assert_eq!(bytes % crate::SECTOR, 0);
        Bio { op, flags, sector, nr: Sectors::from_bytes_floor(bytes), data }
    }
    /// A discard or write-zeroes of a range.
    pub fn without_data(op: Op, flags: Flags, sector: Sector, nr: Sectors) -> Bio {
        debug_assert!(!op.has_data());
        Bio { op, flags, sector, nr, data: Segments::new() }
    }
    /// A flush.
    pub fn flush() -> Bio {
        Bio::without_data(Op::Flush, Flags::NONE, Sector(0), Sectors::ZERO)
    }
}

/// A bio that has completed, on its way back to the port that submitted it.
#[derive(Debug)]
pub struct Done {
    /// The port's own number for it.
    pub cookie: u64,
    /// What was done.
    pub op: Op,
    /// Success, or the first error met.
    pub result: Result<(), Errno>,
    /// The bio's memory; for a read that succeeded, every byte of it was written.
    pub data: Segments,
}

/// An error number of Linux, such as EIO.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Errno = Errno(1);
    /// Interrupted system call.
    pub const EINTR: Errno = Errno(4);
    /// Try again.
    pub const EAGAIN: Errno = Errno(11);
    /// Input/output error.
    pub const EIO: Errno = Errno(5);
    /// Cannot allocate memory.
    pub const ENOMEM: Errno = Errno(12);
    /// Memory that is not there (any more): the client's fault, never the device's.
    pub const EFAULT: Errno = Errno(14);
    /// Invalid argument.
    pub const EINVAL: Errno = Errno(22);
    /// File too large.
    pub const EFBIG: Errno = Errno(27);
    /// No space left on device.
    pub const ENOSPC: Errno = Errno(28);
    /// Read-only file system.
    pub const EROFS: Errno = Errno(30);
    /// Operation not supported.
    pub const EOPNOTSUPP: Errno = Errno(95);
    /// Disk quota exceeded.
    pub const EDQUOT: Errno = Errno(122);
    /// Operation canceled.
    pub const ECANCELED: Errno = Errno(125);

    /// What an `io::Error` stands for; EIO if it has no number.
    pub fn from_io(error: &std::io::Error) -> Errno {
        error.raw_os_error().map_or(Errno::EIO, Errno)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}
impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}
impl std::error::Error for Errno {}
