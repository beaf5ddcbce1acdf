//! For how long it is looked at what a volume holds: for NBD's block status, and FUSE's SEEK_DATA and SEEK_HOLE.
//!
//! One look-up costs what its answer is worth, and is bounded by itself (`engine/src/core/allocation.rs`); but the answer to a client takes as many as
//! there are extents in what it asks about.
//!
//! Invariant: no turn looks for longer than [`LOOK_TIME`], but for the last look-up in it. Other clients of the worker have their turns
//! then.

use blockwork_engine::Nanos;

/// Most look-ups in a turn: each may be a system call, and other clients wait.
pub(crate) const LOOKUPS_MAX: usize = 256;
/// Processor time for look-ups in one turn of a client. The time of the thread, so that they are no fewer where others have the
/// processor.
pub(crate) const LOOK_TIME: Nanos = Nanos::millis(1);
