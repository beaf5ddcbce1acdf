//! Device-mapper tables in dmsetup's syntax.
//!
//! One target a line, `START LENGTH TARGET ARGS...`, in sectors of 512 bytes; what follows a `#` is a comment, blank
//! lines are skipped, and a backslash takes the next character as it is (a space or a `#` in a path). Where each line
//! opens with `NAME: `, as `dmsetup table` prints several devices, each run of lines with one name is a device, and a
//! later device may use an earlier one as `dm/NAME` or `/dev/mapper/NAME`.
//!
//! | target | arguments | |
//! | --- | --- | --- |
//! | `linear` | `DEV OFFSET` | |
//! | `striped` | `N CHUNK (DEV OFFSET)×N` | the length divides by N, and what each stripe gets by CHUNK |
//! | `raid` | `TYPE N_PARAMS CHUNK [PARAM...] N_DEVICES (- DEV)×N` | raid0, raid1, raid10, raid4, raid5_\* or raid6_\*, without metadata devices |
//! | `delay` | `DEV OFFSET MS` | one device and one time for reads, writes and flushes |
//! | `zero`, `error` | | |
//! | `snapshot-origin` | `ORIGIN` | starts at 0 |
//! | `snapshot` | `ORIGIN STORE P\|PO\|N CHUNK [N FEATURE×N]` | starts at 0; the chunk is a power of two; features are `discard_zeroes_cow` and, only with that, `discard_passdown_origin` |
//! | `snapshot-merge` | as `snapshot`, but for `N` | starts at 0; the origin while that snapshot is merged into it |
//! | `thin-pool` | `METADATA DATA BLOCK LOW_WATER [N FEATURE×N]` | starts at 0; the block is a multiple of 128 sectors; features are `skip_block_zeroing`, `ignore_discard`, `no_discard_passdown`, `read_only` and `error_if_no_space` |
//! | `thin` | `POOL DEVICE_ID [EXTERNAL_ORIGIN]` | the pool is a device of the table |
//!
//! Invariants of a [`Table`] that [`parse()`] returns: (1) it has at least one device, and each device at least one
//! target; (2) a device's targets start at 0 and follow each other without gap or overlap; (3) no range of sectors
//! exceeds [`SECTORS_MAX`], so that it can be counted in bytes; (4) a reference to a device of the table leads to an
//! earlier one and lies inside it; (5) printed with `Display` and parsed again, it is the same table (but for the line
//! numbers).
//!
//! A device is a string here (a path, `null:10G`, `memory:64M`, each with `,option=value` behind it): what it means is
//! not this crate's business. Source: the kernel's `Documentation/admin-guide/device-mapper`, dmsetup(8).

mod parse;
mod raid;
mod thin;

use std::fmt;

pub use parse::parse;
pub use raid::{RAID_CHUNK_MIN, RAID_DEVICES_MAX, Raid, Raid10Format, RaidKind};
pub use thin::{Thin, ThinPool, ThinPoolFeatures};

use crate::snapshot::Layout;

/// Longest table text that is read, bytes.
pub const TABLE_BYTES_MAX: usize = 4 << 20;

/// Targets in one table.
pub const TARGETS_MAX: usize = 65_536;

/// Stripes of one `striped` target.
pub const STRIPES_MAX: u32 = 4096;

/// Characters in the name of a device: what the kernel takes (`DM_NAME_LEN` less its NUL).
pub const NAME_MAX: usize = 127;

/// Largest end of a range, sectors: what still can be counted in bytes.
pub const SECTORS_MAX: u64 = u64::MAX / crate::SECTOR_BYTES;

const DISCARD_ZEROES_COW: &str = "discard_zeroes_cow";
const DISCARD_PASSDOWN_ORIGIN: &str = "discard_passdown_origin";

/// Devices, in the order in which they have to be set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// At least one; all have names, or there is only one, which has none.
    pub devices: Vec<Device>,
}

/// One mapped device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name, where the text gives one.
    pub name: Option<String>,
    /// Its targets, in the order of their sectors.
    pub targets: Vec<Target>,
}

impl Device {
    /// Size of the device, sectors.
    pub fn sectors(&self) -> u64 {
        self.targets.last().map_or(0, |target| target.start + target.length)
    }
}

/// A range of a device, and what it is mapped to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// First sector of the device.
    pub start: u64,
    /// Length, sectors; at least 1.
    pub length: u64,
    /// Line of the text, from 1.
    pub line_number: u64,
    /// What it is mapped to.
    pub kind: TargetKind,
}

/// A place on a device below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Below {
    /// The device, as it is written.
    pub dev: String,
    /// First sector on it.
    pub offset: u64,
}

/// The targets that are supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetKind {
    /// The sectors of another device.
    Linear(Below),
    /// Chunks of the devices in turn.
    Striped {
        /// Size of a chunk, sectors.
        chunk: u32,
        /// In the order in which they take turns; at least 1.
        stripes: Vec<Below>,
    },
    /// The sectors of another device, some time later.
    Delay {
        /// Where they are.
        below: Below,
        /// How much later, milliseconds.
        delay_ms: u32,
    },
    /// An array.
    Raid(Raid),
    /// Reads zeros; writes vanish.
    Zero,
    /// Every I/O fails.
    Error,
    /// The origin of snapshots.
    SnapshotOrigin(Below),
    /// A snapshot.
    Snapshot(Box<Snapshot>),
    /// An origin into which this snapshot is being merged.
    SnapshotMerge(Box<Snapshot>),
    /// A pool of thin volumes.
    ThinPool(Box<ThinPool>),
    /// A thin volume.
    Thin(Thin),
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Of what; its offset is 0.
    pub origin: Below,
    /// Where its exceptions are, as it is written.
    pub store: String,
    /// Kind of store.
    pub persistence: Persistence,
    /// Chunk of a store that is new, sectors.
    pub chunk: Layout,
    /// `discard_zeroes_cow`.
    pub discard_zeroes_cow: bool,
    /// `discard_passdown_origin`.
    pub discard_passdown_origin: bool,
}

/// Whether a snapshot's store outlives its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// `P`.
    Persistent,
    /// `PO`: it says so when it is full.
    PersistentOverflow,
    /// `N`: exceptions are in memory only.
    Transient,
}

impl Persistence {
    /// As in a table.
    pub fn word(self) -> &'static str {
        match self {
            Persistence::Persistent => "P",
            Persistence::PersistentOverflow => "PO",
            Persistence::Transient => "N",
        }
    }
}

impl TargetKind {
    /// The target's name in a table.
    pub fn name(&self) -> &'static str {
        match self {
            TargetKind::Linear(_) => "linear",
            TargetKind::Striped { .. } => "striped",
            TargetKind::Delay { .. } => "delay",
            TargetKind::Raid(_) => "raid",
            TargetKind::Zero => "zero",
            TargetKind::Error => "error",
            TargetKind::SnapshotOrigin(_) => "snapshot-origin",
            TargetKind::Snapshot(_) => "snapshot",
            TargetKind::SnapshotMerge(_) => "snapshot-merge",
            TargetKind::ThinPool(_) => "thin-pool",
            TargetKind::Thin(_) => "thin",
        }
    }

    /// All devices that it names, as they are written.
    pub fn devices(&self) -> Vec<&str> {
        let beside: Vec<&str> = match self {
            TargetKind::Snapshot(snapshot) | TargetKind::SnapshotMerge(snapshot) => vec![&snapshot.store],
            TargetKind::ThinPool(pool) => vec![&pool.metadata],
            TargetKind::Thin(thin) => {
                std::iter::once(&thin.pool).chain(&thin.external_origin).map(String::as_str).collect()
            }
            _ => Vec::new(),
        };
        self.below().into_iter().map(|below| below.dev.as_str()).chain(beside).collect()
    }

    /// The places that it is mapped to.
    pub fn below(&self) -> Vec<&Below> {
        match self {
            TargetKind::Linear(below)
            | TargetKind::Delay { below, .. }
            | TargetKind::SnapshotOrigin(below) => vec![below],
            TargetKind::Snapshot(snapshot) | TargetKind::SnapshotMerge(snapshot) => vec![&snapshot.origin],
            TargetKind::ThinPool(pool) => vec![&pool.data],
            TargetKind::Striped { stripes, .. } => stripes.iter().collect(),
            TargetKind::Raid(raid) => raid.present().collect(),
            // A volume of a pool lies anywhere in it.
            TargetKind::Zero | TargetKind::Error | TargetKind::Thin(_) => Vec::new(),
        }
    }
}

/// The name of the device of the same table that a device string means: `dm/NAME` or `/dev/mapper/NAME`, without
/// `,option=value`. `None` for anything else.
pub fn reference(dev: &str) -> Option<&str> {
    let path = dev.split_once(',').map_or(dev, |(path, _)| path);
    path.strip_prefix("dm/").or_else(|| path.strip_prefix("/dev/mapper/"))
}

impl fmt::Display for Table {
    /// As `dmsetup table` prints it, one line for each target.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for device in &self.devices {
            for target in &device.targets {
                if let Some(name) = &device.name {
                    write!(f, "{}: ", Quoted(name))?;
                }
                writeln!(f, "{target}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.start, self.length, self.kind.name())?;
        match &self.kind {
            TargetKind::Striped { chunk, stripes } => write!(f, " {} {chunk}", stripes.len())?,
            TargetKind::Delay { below, delay_ms } => {
                return write!(f, " {} {} {delay_ms}", Quoted(&below.dev), below.offset);
            }
            TargetKind::Raid(raid) => return write!(f, " {raid}"),
            TargetKind::SnapshotOrigin(origin) => return write!(f, " {}", Quoted(&origin.dev)),
            TargetKind::Snapshot(snapshot) | TargetKind::SnapshotMerge(snapshot) => {
                return write!(f, " {snapshot}");
            }
            TargetKind::ThinPool(pool) => return write!(f, " {pool}"),
            TargetKind::Thin(thin) => return write!(f, " {thin}"),
            _ => {}
        }
        for below in self.kind.below() {
            write!(f, " {} {}", Quoted(&below.dev), below.offset)?;
        }
        Ok(())
    }
}

impl fmt::Display for Snapshot {
    /// The arguments of the target.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (origin, store) = (Quoted(&self.origin.dev), Quoted(&self.store));
        write!(f, "{origin} {store} {} {}", self.persistence.word(), self.chunk.chunk_sectors())?;
        match (self.discard_zeroes_cow, self.discard_passdown_origin) {
            (false, _) => Ok(()),
            (true, false) => write!(f, " 1 {DISCARD_ZEROES_COW}"),
            (true, true) => write!(f, " 2 {DISCARD_ZEROES_COW} {DISCARD_PASSDOWN_ORIGIN}"),
        }
    }
}

/// A word with a backslash before what would end it.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_whitespace() || matches!(c, '\\' | '#') {
                write!(f, "\\")?;
            }
            write!(f, "{c}")?;
        }
        Ok(())
    }
}
