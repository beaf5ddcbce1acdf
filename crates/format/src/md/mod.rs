//! Linux md (software RAID): what lies on a member, bytes to structs and back.
//!
//! | on the member | here |
//! | --- | --- |
//! | superblock 1.0, 1.1, 1.2 | [`v1`]: read, checked, written back byte by byte |
//! | superblock 0.90 | [`v0`]: read, in either byte order; never written |
//! | write-intent bitmap | [`bitmap`]: its superblock and its bits, read and written |
//! | list of bad blocks | [`bad_blocks`]: read and written |
//!
//! What a new array has on its members is laid out by [`create`]. [`find()`] looks for all four kinds of superblock. The words in them that stand for a geometry are taken apart by
//! [`Raid10Layout`] (with the sizes that follow from it) and [`raid0::zones`]; where a sector of an array lives is not
//! known here, but in the layers.
//!
//! Invariants:
//!
//! 1. A superblock that was decoded has a good checksum, lies where it says, and describes regions (data, bitmap, bad
//!    blocks) that lie inside its device and do not overlap the superblock or each other, and a chunk and layout that its
//!    level can have. That holds for any bytes.
//! 2. A superblock that can be decoded may still use what is not supported (a RAID5, a reshape under way):
//!    [`v1::Superblock::supports`] says so, and is asked before any data is touched. Scanning shows such arrays.
//! 3. `encode` of what was decoded gives the same bytes, the ones that no version has named included.
//!
//! Units: sectors of 512 bytes from the start of the member, unless said otherwise. A device is given by its size in
//! whole sectors, since the places of 1.0 and 0.90 follow from it.
//!
//! Sources: the kernel's `include/uapi/linux/raid/md_p.h` (layout), `drivers/md/md.c`, `md-bitmap.c`, `raid0.c`,
//! `raid10.c` (which values it takes), mdadm's `md.4` and `super1.c`. What mdadm and the kernel say was
//! compared in `tests/md_examine.rs`.

pub mod bad_blocks;
pub mod bitmap;
mod checksum;
pub mod create;
mod find;
mod identity;
mod level;
mod parity;
pub mod raid0;
mod raid10;
mod remains;
mod role;
pub mod v0;
pub mod v1;

pub use find::{Found, Place, Superblock, find, places};
pub use identity::{SetName, Time, Uuid, is_called};
pub use level::{CHUNK_SECTORS_MAX, Level, RAID_DISKS_MAX, RAID10_CHUNK_SECTORS_MIN};
pub use parity::ParityLayout;
pub use raid10::{FarSets, NotALayout, Raid10Layout, Raid10Sizes};
pub use remains::{Remains, Suspect, suspects};
pub use role::Role;
pub use v1::{Access, Region};

use std::fmt::Display;

use crate::{ErrorKind, FormatError};

/// The magic number of superblocks of all versions.
pub const MAGIC: u32 = 0xa92b_4efc;

/// Instead of an offset: everything is in sync, or has been recovered.
pub const IN_SYNC: u64 = u64::MAX;

/// Bytes at `offset` that follow the format, and use a part of it that is not supported.
fn unsupported(
    place: &'static str,
    offset: u64,
    field: &'static str,
    found: impl Display,
    expected: impl Display,
) -> FormatError {
    let error = FormatError::invalid(place, offset, field, found, expected);
    FormatError { kind: ErrorKind::Unsupported, ..error }
}
