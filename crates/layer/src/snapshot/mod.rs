//! dm-snapshot: an origin, and volumes that stay as it was.
//!
//! | here | what |
//! | --- | --- |
//! | [`Family`] | an origin's device, all its snapshots, and what copies chunks out; the layers share it |
//! | [`Origin`] | `snapshot-origin`: the origin as its users see it |
//! | [`Snapshot`] | `snapshot`: one of its snapshots |
//! | [`Merging`] | `snapshot-merge`: the origin while a snapshot is merged into it; [`Merge`] does that, step by step |
//!
//! Reads never wait: what a snapshot shares with its origin is read from there, the rest from its store. A write to the origin,
//! or to a snapshot, of a chunk that has to be kept first is deferred until it has been copied out; copies are made in batches
//! (`batch.rs`), whatever the number of bios that wait for them.
//!
//! Durability, in this order, for each chunk that is copied out:
//!
//! 1. its old content is written to the store, and the store is flushed;
//! 2. reads of the snapshot that still go to the origin have come to their end ([`TaskContext::quiesce`]);
//! 3. its exception is entered into the store's list, and that is durable (FUA, or the flush of the next batch);
//! 4. only then is the chunk *settled*: writes to it go, in the origin and in the snapshot.
//!
//! So a power cut at any instant leaves a store whose list is right, and no write that was acknowledged depends on a list that
//! is not durable. Closing a family takes no work.
//!
//! A snapshot whose store is full, or cannot be written, is lost: it answers EIO from then on, that is written into the
//! store's header, durably, and only then do writes to the origin go on without it. As the kernel does it. (Where even the
//! header cannot be written, the log says so: the origin goes on all the same.)
//!
//! What the bytes of a store mean is `blockwork_format::snapshot`'s business.
//!
//! [`TaskContext::quiesce`]: blockwork_engine::TaskContext::quiesce

mod ahead;
mod batch;
mod copy;
mod exceptions;
mod family;
mod give_out;
mod list;
mod merge;
mod merging;
mod origin;
mod overwrite;
mod status;
mod store;
mod target;
mod window;

pub use family::{Family, FamilyError};
pub use merge::{Merge, MergeEnd, MergeError, STEP, Step};
pub use merging::Merging;
pub use origin::Origin;
pub use status::SnapshotStatus;
pub use store::{Features, Persistence, StoreConfig};
pub use target::Snapshot;
