//! Changes of volume groups: planned on their text, then written.
//!
//! ```text
//!   disks ─▶ GroupEditor ─▶ Draft (the text as a tree; extents; names) ─▶ Commit (writes, in order) ─▶ disks
//! ```
//!
//! A [`Draft`] is pure: it knows neither disks nor clocks, and what it refuses it says with the remedy. [`GroupEditor`] opens the disks
//! of a group, finds its physical volumes as the rest of this crate does, and refuses what must not be changed. A [`Commit`]
//! is what there is to write, step by step; it is run by a task of a worker, through the layers below the physical volumes, so that
//! these may lie on partitions, arrays or other volumes.
//!
//! Invariants: (1) nothing is written before everything is planned and checked; (2) whatever is written before the new text
//! counts lies where the old one has nothing; (3) a power cut leaves the old group or the new one
//! (`blockwork_format::lvm2::commit`).

mod allocate;
mod change;
mod commit;
mod create;
mod data;
mod draft;
mod error;
mod merge;
mod messages;
mod open;
mod raid;
mod remove;
mod resize;
mod resize_raid;
mod section;
mod snapshot;
mod thin;
mod thin_merge;

#[cfg(test)]
mod tests;

pub use allocate::{FreeExtents, Policy};
pub use change::{Change, Made};
pub use commit::{Commit, CommitError};
pub use create::{Created, NewVolume, REGION_DEFAULT, STRIPE_DEFAULT, Shape, Size, stripes_of_parity};
pub use data::WIPE_BYTES;
pub use draft::{Author, Draft, NewPv, TagChange};
pub use error::EditError;
pub use merge::Merger;
pub(crate) use messages::tell_idle_pool;
pub use messages::{Untold, newly_untold};
pub use open::GroupEditor;
pub(crate) use open::{Opened, find, open};
pub use resize::{Resize, Resized};
pub use snapshot::{CHUNK_DEFAULT, NewSnapshot, Snapshotted, StoreSize};
pub use thin::{Discards, NewPool, NewThin, NewThinPool, NewThinSnapshot};
