//! Leaf devices: what stands at the bottom of a stack. Files and block devices, files on NFS servers, memory, and nothing at all.
//!
//! A leaf does one request at a time as told, within the limits that it states; queueing, merging and splitting are the
//! engine's business, and how an operation gets to the kernel is the environment's. So a leaf is mostly knowledge: what
//! this file can do (alignment of O_DIRECT, hole punching), how large its requests may be, and who else uses it.
//!
//! Invariants:
//! 1. What a leaf says it can do was tried, or told by the kernel, and trying alters no data.
//! 2. A disk that is opened for writing is locked against every other process that locks (ours and QEMU's), as long as
//!    its source lives; a block device besides against file systems and other claimants.
//! 3. A read fills all of its memory or fails: nobody sees an earlier request's data.
#![forbid(unsafe_code)]

mod aligned;
mod cache;
mod closed;
mod decisions;
mod error;
mod file;
mod memory;
mod nfs;
mod null;
mod open;
mod size;
mod spec;

pub use cache::Cache;
pub use closed::ClosedSource;
pub use error::LeafError;
pub use file::{Direct, FileOptions, FileSource};
pub use memory::MemorySource;
pub use nfs::{NfsAddress, NfsFile, NfsOptions, NfsSource, NfsVersion, UNCOMMITTED_BYTES};
pub use null::NullSource;
pub use open::{OpenOptions, Opened, open};
pub use size::{parse_size, parse_size_in};
pub use spec::{Kind, Spec};
