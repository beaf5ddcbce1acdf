//! dm-thin: volumes whose blocks lie anywhere in a pool, many of them shared, most of them nowhere.
//!
//! A [`Thin`] hands a read on to the pool's data device where a block is mapped; where none is, it answers with zeros at once, or
//! reads the external origin. Where blocks lie is in the pool's metadata, which is paged in: a look-up takes it from the
//! pool's map cache (`cache`), without a lock; what is not there makes the bio wait for the slow path, which reads the nodes.
//!
//! ```text
//!   resolve ── look up (block → data block) ── cached ──▶ data device, zeros, or the external origin
//!                     └─ not cached: Defer ──▶ prepare: descend the device's tree, fill a page, resolve again
//! ```
//!
//! Invariants:
//! 1. A look-up takes no lock, writes nothing that others read (but for a mark that a page was used), and allocates nothing.
//! 2. A data block that is handed on lies within the data device, and came from a node whose checksum, number, place and keys
//!    were checked. Metadata that is damaged makes the reads that need it fail, and no others.
//! 3. A read never changes anything: a hole stays one.
//! 4. Memory is bounded by the size of the cache, whatever the size of pool and volumes.
//!
//! Volumes are read-only: nothing here writes yet. [`check`] judges the metadata of a pool as `thin_check` does.

mod cache;
pub mod check;
mod nodes;
mod page;
mod pool;
mod target;
#[cfg(test)]
mod tests;

pub use cache::CACHE_BYTES;
pub use pool::{Pool, PoolConfig, PoolError};
pub use target::{Thin, ThinConfig};
