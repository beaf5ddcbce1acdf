//! What happened to an I/O, told to people and to their tools: live traces, a log of all writes, statistics.
//!
//! The engine emits events and counts; this crate gives both a form that others know already: blktrace records and
//! blkparse's text ([`trace`]), dm-log-writes' format ([`LogWrites`]), a table, JSON and Prometheus' text format
//! ([`report`]). It decides nothing about an I/O. And it runs field reports about Linux again, in the simulator
//! ([`reproduce`]).
//!
//! Invariants:
//! 1. Whoever listens costs a worker time, but never makes it wait: what a listener is too slow for is dropped, counted,
//!    and said.
//! 2. Names (of files, volumes, exports) are whatever somebody wrote on a disk: they are escaped wherever they are
//!    printed or put into a trace.
#![forbid(unsafe_code)]

mod log_writes;
pub mod report;
pub mod reproduce;
pub mod trace;

pub use log_writes::{LogWrites, LogWritesError};
