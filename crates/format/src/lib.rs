//! Bytes to structs and back, and nothing else.
//!
//! This crate knows what the bytes of a partition table, of an LVM2 physical volume, of a device-mapper table, of a blktrace
//! file or of a dm-log-writes log mean. It does no I/O of its own (what has to be read in several places is read through
//! [`Source`]), starts no thread, and holds no policy. What Linux md keeps on the members of an array is in [`md`].
//!
//! Invariants of every parser here:
//!
//! 1. Input is hostile. Every count and size that comes from outside has a named limit, arithmetic on it is checked,
//!    and nothing it says can make the parser panic, loop for ever or allocate without bound.
//! 2. What a parser returns is checked: a [`partition::Partition`] lies inside its disk and overlaps no other one, the
//!    targets of a [`table::Device`] cover it without gap or overlap.
//! 3. An error names the place, the field, what was found, what was expected, and where there is one, the remedy
//!    ([`FormatError`]).
//! 4. Text that comes out of an image (names, messages) is returned as it is; whoever prints it calls [`escape()`].
//!
//! Units: a *sector* is always 512 bytes, whatever the disk's logical block size. Offsets and sizes are bytes unless
//! their name says otherwise.

#![forbid(unsafe_code)]

mod bytes;
mod error;
mod escape;
mod source;

pub mod blkif;
pub mod blktrace;
pub mod cache;
pub mod dm_raid;
pub mod log_writes;
pub mod lvm2;
pub mod md;
pub mod mirror_log;
pub mod nbd;
pub mod nfs3;
pub mod nfs4;
pub mod partition;
pub mod snapshot;
pub mod spread;
pub mod table;
pub mod thin;
pub mod vhost_user;
pub mod virtio;
pub mod xenstore;

pub use error::{ErrorKind, FormatError, Position};
pub use escape::escape;
pub use source::{Piece, Source, Sparse};

/// Bytes in a sector: the unit of every `*sector*` in this crate and in the kernel.
pub const SECTOR_BYTES: u64 = 512;
