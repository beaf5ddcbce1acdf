//! blktrace: the records that the kernel's block tracer, and Blockwork, write for every step of an I/O.
//!
//! A trace is a file per CPU (`NAME.blktrace.CPU`), and each file a run of records, in the order of their time, in the
//! byte order of the machine that wrote it. Version 7 has 48 bytes and a payload, version 8 has 64.
//!
//! | v7 | v8 | field | | v7 | v8 | field |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 0 | 0 | u32 0x65617400 + version | | 32 | 28 | u32 pid |
//! | 4 | 4 | u32 sequence | | 36 | 40 | u32 device: major << 20 + minor |
//! | 8 | 8 | u64 time, ns | | 40 | 44 | u32 CPU |
//! | 16 | 16 | u64 sector | | 44 | 48 | u16 error |
//! | 24 | 24 | u32 bytes | | 46 | 50 | u16 length of the payload |
//! | 28 | 32 | action, u32 (v8: u64) | | | 52 | 12 bytes, zero |
//!
//! [`action`] has the words of an action, [`record`] encodes and decodes, [`text`] prints as blkparse does.
//!
//! Invariants: (1) whatever was encoded decodes to the same record; (2) a decoder takes at least a header's bytes for
//! each record, and never looks beyond the length that the record states; (3) text of a trace is printed as blkparse
//! prints it, but for control characters, which are escaped.
//!
//! Sources: the kernel's `include/uapi/linux/blktrace_api.h` and `kernel/trace/blktrace.c` (format), the output of
//! blkparse 1.2.0 (text).

pub mod action;
pub mod record;
pub mod text;

pub use action::{Act, Action, Category, Note};
pub use record::{ByteOrder, Decoder, Device, Record, Remap, Version, decode};
pub use text::Formatter;
