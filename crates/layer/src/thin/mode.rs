//! What a pool can do now, as in the kernel.
//!
//! | mode | writes to blocks of one's own | writes that need blocks | discards | flushes |
//! | --- | --- | --- | --- | --- |
//! | `Write` | go | get them | unmap | commit what was changed |
//! | `OutOfDataSpace` | go | wait for space, or fail with ENOSPC | unmap | commit what was changed |
//! | `OutOfMetadataSpace` | go | fail with EIO | do nothing | have nothing to commit |
//! | `ReadOnly` | go | fail with EIO | do nothing | fail with EIO where something cannot be committed any more |
//!
//! `OutOfDataSpace` ends when space comes back: a discard, a device that is deleted, a data device that grew. Writes wait for that as
//! long as `no_space_timeout` says, and no longer than the worker lasts; when it is over, they and all later ones fail, until space
//! comes back.
//!
//! `OutOfMetadataSpace` begins with everything committed and no metadata block free but those that are held back. It ends when the
//! metadata device has grown. `dmsetup status` calls it `ro`, as it does in the kernel; nothing needs a check.
//!
//! `ReadOnly` is for good: the metadata could not be written, or leads to a block whose content could not be written. The last
//! transaction that was committed stays, and says that the pool has to be checked (`needs_check`), if that can still be written. Until
//! `thin_check` has cleared that, its devices cannot grow either. The
//! kernel drops what was not committed from memory; here it can still be read until the server ends, and no flush ever said that it was
//! safe. Not so where it is the data device that could not be flushed, by a commit or for a volume: what it has lost may be the content of
//! new blocks, so these are dropped here too, and reads that are on their way to them are resolved again. There is no `Fail`: where metadata cannot be
//! read, the reads that need it fail.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The modes, each worse than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mode {
    /// All is well.
    Write,
    /// No data block is free.
    OutOfDataSpace,
    /// No metadata block is free.
    OutOfMetadataSpace,
    /// The metadata cannot be changed.
    ReadOnly,
}

impl Mode {
    /// Whether the metadata may be changed.
    pub fn allows_changes(self) -> bool {
        self < Mode::OutOfMetadataSpace
    }
}

/// A pool's mode. Changed only with its turn.
#[derive(Debug)]
pub(super) struct ModeCell {
    mode: AtomicU8,
    /// It has been out of space for so long that nobody waits any more.
    timed_out: AtomicBool,
    /// How often it has run out of space.
    periods: AtomicU64,
}

impl ModeCell {
    pub fn new(mode: Mode) -> ModeCell {
        ModeCell {
            mode: AtomicU8::new(mode as u8),
            timed_out: AtomicBool::new(false),
            periods: AtomicU64::new(0),
        }
    }

    pub fn get(&self) -> Mode {
        match self.mode.load(Ordering::Acquire) {
            0 => Mode::Write,
            1 => Mode::OutOfDataSpace,
            2 => Mode::OutOfMetadataSpace,
            _ => Mode::ReadOnly,
        }
    }

    pub fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Release);
    }

    /// It runs out of space: the number of this time.
    pub fn run_out(&self) -> u64 {
        self.timed_out.store(false, Ordering::Release);
        self.set(Mode::OutOfDataSpace);
        self.periods.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether it is out of space, and for the time with that number.
    pub fn is_out(&self, period: u64) -> bool {
        self.get() == Mode::OutOfDataSpace && self.periods.load(Ordering::Acquire) == period
    }

    /// Space has not come in time. False: it has, or this is about an earlier time.
    pub fn time_out(&self, period: u64) -> bool {
        let is_now = self.is_out(period);
        self.timed_out.fetch_or(is_now, Ordering::AcqRel);
        is_now
    }

    /// Whether nobody waits for space any more.
    pub fn has_timed_out(&self) -> bool {
        self.get() == Mode::OutOfDataSpace && self.timed_out.load(Ordering::Acquire)
    }
}
