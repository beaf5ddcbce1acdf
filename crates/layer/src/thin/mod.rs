//! dm-thin: volumes whose blocks lie anywhere in a pool, many of them shared, most of them nowhere.
//!
//! A [`Thin`] hands an I/O on to the pool's data device where a block is mapped, and its own; a read of what is not mapped it answers
//! with zeros at once, or from the external origin. Where blocks lie is in the pool's metadata, which is paged in: a look-up takes it
//! from the pool's map cache, without a lock. Everything else makes the bio wait for a slow path.
//!
//! ```text
//!   resolve ── look up (block → data block) ── read, or write to a block of one's own ──▶ data device, zeros, external origin
//!                 ├─ not cached (ReadMap) ──▶ map.rs: read the tree, fill a page of the cache
//!                 ├─ a write of a hole, or of what may be shared (Provision) ──▶ provision.rs: a batch gets blocks
//!                 ├─ of what others are filling (Fill) ──▶ fill.rs: wait for them
//!                 ├─ a discard (Unmap) ──▶ discard.rs
//!                 └─ a flush, where something is not durable (Commit) ──▶ commit.rs
//! ```
//!
//! | here | what |
//! | --- | --- |
//! | `cache`, `entry`, `map` | the map: pages, their entries, and how they follow the trees |
//! | `pool`, `device`, `config`, `blocks` | what all share, and the metadata as it was committed |
//! | `request`, `provision`, `content`, `fill`, `bell` | blocks for writes |
//! | `commit`, `doubt` | transactions; what is done when the data device may have lost something |
//! | `mode`, `watch` | what a pool can do when it is full, or fails; who hears that it fills up |
//! | `discard`, `verbs`, `status` | blocks that are given back; messages; what is said of a pool |
//! | `check` | judges the metadata of a pool as `thin_check` does |
//!
//! The trees are changed in memory by `blockwork_format::thin::edit`, by one task at a time: the one that has the pool's turn.
//!
//! Invariants:
//! 1. A look-up takes no lock, writes nothing that others read (but for a mark that a page was used), and allocates nothing.
//! 2. A data block that is handed on lies within the data device, and came from a node whose checksum, number, place and keys
//!    were checked. Metadata that is damaged makes the I/O that needs it fail, and no other.
//! 3. A read never changes anything: a hole stays one.
//! 4. Memory is bounded by the size of the cache and of a transaction, whatever the size of pool and volumes.
//! 5. A block that is mapped holds what its device is to have there, before anybody can read it and before that is durable.
//! 6. A block that became free is given out again only when that is durable, and no bio under way goes to it.
//! 7. What a flush was acknowledged for is in the committed tree, and its data on the device.

mod bell;
mod blocks;
mod cache;
pub mod check;
mod commit;
mod config;
mod content;
mod device;
mod discard;
mod doubt;
mod entry;
mod fill;
mod map;
mod mode;
mod pool;
mod provision;
mod request;
mod status;
mod target;
#[cfg(test)]
mod tests;
mod verbs;
mod watch;

pub use blocks::{METADATA_KEPT, MetadataBlocks};
pub use cache::CACHE_BYTES;
pub use config::{Discards, PoolConfig, PoolError, PoolFeatures};
pub use mode::Mode;
pub use pool::{OpenDevice, Pool};
pub use provision::DIRTY_MAX;
pub use status::{PoolStatus, ThinStatus};
pub use target::{Thin, ThinConfig};
pub use verbs::VerbError;
