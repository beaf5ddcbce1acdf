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
mod dm_raid;
mod error;
mod firmware;
mod graph;
mod held;
mod leaving;
pub mod lvm;
pub mod md;
mod newcomer;
mod nodes;
mod plan;
mod probe;
mod rounds;
mod scan;
mod settings;
mod signature;
mod source;
mod steps;
mod table;
mod thin;
mod volumes;

pub use assembly::{Assembly, DEPTH_MAX};
pub use error::VolumeError;
pub use firmware::Firmware;
pub use graph::{ArrayId, Content, Device, DeviceId, DeviceKind, Graph, GroupId};
pub use leaving::Leaving;
pub use newcomer::{Attached, NEWCOMER_NODES_MAX, Newcomer, Purpose};
pub use plan::{LayerKey, LayerSetting, LeafOption, Plan, Setting, parse_setting};
pub use scan::{
    AreaReport, ArrayReport, BitmapReport, DeviceReport, DiskReport, GroupReport, LimitsReport, LvReport,
    MdMemberReport, MemberReport, PartitionReport, PvMemberReport, PvReport, ScanReport, SegmentReport,
    StoreReport, TableReport, UsageReport, percent_as_lvs, scan,
};
pub use settings::Autoextend;
pub use signature::{Signature, signature};
pub use steps::{Step, StepError, Target, Write, carry_out, settle};
pub use table::disks_of_table;
pub use thin::{PoolChange, PoolCommit, PoolCommitError, PoolEditError};
pub use volumes::Chosen;
