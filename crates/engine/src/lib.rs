//! The block layer itself: what a bio is, how a stack of layers turns it into extents of leaf devices, how a leaf's
//! queue plugs, sorts, merges and splits those, and the worker that runs it all to completion on one thread.
//!
//! ```text
//!   port (a client) ── bio ──▶ resolve (layers, synchronous) ── extents ──▶ leaf queue ── requests ──▶ leaf ──▶ env
//!                                  └─ Defer ──▶ slow path (async task on the same thread) ──▶ resolve again
//! ```
//!
//! Invariants:
//! 1. A bio that was accepted completes exactly once, with success only if every sector of it was transferred.
//! 2. Resolving and queueing a mapped bio takes no lock, makes no system call and, once warm, allocates nothing.
//! 3. The engine never knows which environment it is in: time, randomness and I/O come from [`Env`] alone.
//! 4. A flush completes only after every write that completed before the flush was submitted is on stable storage,
//!    on every leaf that the flushed volume reaches; a FUA write completes only when it is itself.
//! 5. After a leaf's flush fails, that leaf accepts no write and no flush any more: a later flush that succeeds would
//!    prove nothing about the data that the failed one lost.
//! 6. A write of whole blocks and one of part of them, at the same time, end as if one had come after the other, on whichever workers.
//! 7. The engine knows neither bytes of any disk format nor who its clients are.
#![forbid(unsafe_code)]

mod bio;
mod choice;
mod core;
mod counters;
mod decision;
mod env;
mod event;
mod gather;
mod gf256;
mod layer;
mod leaf;
mod limits;
mod lock;
mod modify;
mod notes;
mod port;
mod ports;
mod queue;
mod quiesce;
mod ring;
mod sum;
mod task;
mod turn;
mod unaligned;
mod units;
mod volume;
mod worker;

pub use bio::{Bio, Done, Errno, Flags, Op};
pub use choice::{Boundaries, ChoiceSnapshot, Fixed, Fua, Linearize, RequestClass, Subject};
pub use counters::{
    ADDED_NODES_MAX, Counter, CounterTable, Histogram, LATENCY_BUCKETS, NodeInfo, NodeKind, Snapshot, Stats,
    StatsFull,
};
pub use decision::Decision;
pub use env::{
    Awaited, Completion, Env, FileId, FileOp, FileOpKind, Network, Notify, StreamId, Token, Wait,
    reserved_ports,
};
pub use event::{Action, Event, EventSink, Payload, Reason, Tracer};
pub use gather::Waiting;
pub use gf256::Gf256;
pub use layer::{
    Cure, Defer, Extent, Failure, Holding, Layer, LeafLayer, Misaligned, NodeId, Preparation, Preparations,
    ReadNow, Resolver, Shape, Span, Target, layer_below, topmost_first,
};
pub use leaf::{
    Allocation, AtOnce, Ended, Leaf, LeafId, LeafIo, LeafShared, LeafSource, Submitted, WriteTap,
};
pub use limits::{Limits, Merges, SettingError, WBT_LAT};
pub use lock::{Lock, LockSnapshot, Times};
pub use notes::Watch;
pub use port::{Context, Port, PortId, PortState};
pub use queue::{Complaint, SMALL_REQUEST};
pub use quiesce::Quiescence;
pub use ring::{RINGS_MAX, RingSnapshot, RingStats};
pub use sum::{Sum, Term, add_times, compute};
pub use task::{Deferred, TaskContext};
pub use turn::{Taking, Turn, Turns};
pub use units::{Nanos, SECTOR, Sector, Sectors};
pub use volume::{Volume, VolumeId};
pub use worker::{Worker, WorkerConfig, WorkerHandle};
