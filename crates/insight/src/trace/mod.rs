//! Live traces: the engine's events as blktrace records (version 7), for whoever subscribes.
//!
//! ```text
//!   worker 0 ── events ──▶ sink ──┬─ filter, encode ──▶ queue of a Subscription ──▶ files | text | HTTP
//!   worker 1 ── events ──▶ sink ──┘  (one batch per turn of a worker)
//! ```
//!
//! A trace of Blockwork looks like one of the kernel: the CPU of a record is the worker's number, the process is ours
//! under the name `blockwork`, a device is a layer or leaf with the number that it has in [`NodeInfo`]. What blktrace has
//! no letter for (a deferred bio; why something was split or bounced, or goes the other way for once) is a message note after the record:
//! `blockwork: NAME: split 0 + 64 (max_sectors_kb)`. A client's ring that becomes full is an `S` without a range on its volume,
//! with the ring's figures in the message.
//!
//! Invariants:
//! 1. A stream begins, for each worker, with a timestamp and the name of the process; then sequence numbers count from 1
//!    without a gap, and times never run backwards.
//! 2. A batch holds whole records of one worker.
//! 3. No worker waits for a subscriber: a queue holds [`QUEUE_BYTES_MAX`] at most; what comes beyond is dropped and
//!    counted, and a message note (`blockwork: 17 events dropped`) stands where they are missing.
//! 4. While nobody subscribes, workers do not even make events ([`TraceHub::wanted`]).
//!
//! How operations appear (as in the kernel's `__blk_add_trace` and `op_is_write`):
//!
//! | operation | categories | blkparse's RWBS |
//! | --- | --- | --- |
//! | read | read | `R` |
//! | write | write | `W` |
//! | flush | write, flush: the kernel's empty bio with REQ_PREFLUSH | `FW` |
//! | discard | write, discard | `D` |
//! | write-zeroes | write: blktrace's version 7 has no category of its own for it, and the kernel traces it as a write too | `W` |
//! | with FUA, SYNC, read-ahead | fua, sync, ahead besides | `F`, `S`, `A` at the end |
//!
//! A record counts bytes in 32 bits. A longer range (the discard of a whole disk) is recorded as 4 GiB less one sector,
//! and a message gives its real length.
//!
//! [`NodeInfo`]: blockwork_engine::NodeInfo
//!

mod encode;
mod files;
mod hub;
mod queue;
mod stream;
mod text;

pub use files::{CPUS_MAX, TraceFiles};
pub use hub::{NodeSet, QUEUE_BYTES_MAX, Received, Subscription, TraceHub};
pub use queue::Batch;
pub use stream::RecordStream;
pub use text::TextMerge;
