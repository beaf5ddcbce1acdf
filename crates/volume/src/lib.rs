//! Volumes: finds out what the disks given hold, and assembles the stacks that lead from a volume to its leaves.
//!
//! ```text
//!   disk ─▶ leaf ─▶ disk/NAME                  every disk is a volume by itself
//!             └──▶ partition ─▶ disk/NAME/N    and so is each of its partitions
//!   table file ─▶ dm/NAME                      targets over disks named by path, or over other tables
//! ```
//!
//! Invariants: (1) a disk is opened once, however many volumes reach it; (2) finding out reads, and never writes;
//! (3) no path that stands inside an image is ever opened: what is opened was named by the operator; (4) what is broken
//! on one disk does not hide what is whole on another: it becomes a warning, unless it was asked for.
#![forbid(unsafe_code)]

mod assembly;
mod error;
mod scan;
mod signature;
mod table;

pub use assembly::{Assembly, Disk, LeafOption, NamedVolume, Plan, parse_setting};
pub use error::VolumeError;
pub use scan::{DiskReport, LimitsReport, PartitionReport, ScanReport, TableReport, scan};
pub use signature::{Signature, signature};
