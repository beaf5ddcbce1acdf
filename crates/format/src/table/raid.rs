//! The `raid` target: what its arguments say, and how they are printed.

use std::fmt;

use super::{Below, Quoted};
use crate::dm_raid::ParityType;

/// Devices of one `raid` target: what the kernel takes (`MAX_RAID_DEVICES`).
pub const RAID_DEVICES_MAX: u32 = 253;

/// Smallest chunk of a striped level, sectors.
pub const RAID_CHUNK_MIN: u32 = 8;

/// An array without metadata of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raid {
    /// Its level, and what goes with it.
    pub kind: RaidKind,
    /// Sectors, a power of two; means nothing to a RAID1.
    pub chunk: u32,
    /// `nosync`: its mirrors are alike already, its parity fits. Otherwise (`sync`, or neither) they may differ.
    pub nosync: bool,
    /// `rebuild`: devices that hold nothing yet.
    pub rebuild: Vec<u16>,
    /// `write_mostly`: devices of a RAID1 that are read only if there is no other.
    pub write_mostly: Vec<u16>,
    /// `region_size`, sectors: how much a bit of the bitmap covers, where there is one.
    pub region_size: Option<u64>,
    /// `stripe_cache`, of an array with a parity: how many rows Linux keeps in memory. It means nothing here.
    pub stripe_cache: Option<u64>,
    /// `min_recovery_rate`, KiB a second and device.
    pub min_recovery_rate: Option<u64>,
    /// `max_recovery_rate`, KiB a second and device.
    pub max_recovery_rate: Option<u64>,
    /// By role; none: missing. Their offset is 0.
    pub devices: Vec<Option<Below>>,
}

/// Levels of the `raid` target that are supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaidKind {
    /// Stripes.
    Raid0,
    /// Mirrors.
    Raid1,
    /// Stripes of mirrors.
    Raid10 {
        /// Where copies are.
        format: Raid10Format,
        /// How many there are, at least 2.
        copies: u8,
        /// `raid10_use_near_sets`: a far copy may be on any device, not only on one of its set.
        use_near_sets: bool,
    },
    /// Stripes with one or two parities.
    Parity(ParityType),
}

/// `raid10_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raid10Format {
    /// Beside each other.
    Near,
    /// In another part of the devices.
    Far,
    /// In the next row.
    Offset,
}

impl Raid10Format {
    /// All of them.
    pub const ALL: [Raid10Format; 3] = [Raid10Format::Near, Raid10Format::Far, Raid10Format::Offset];

    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Raid10Format::Near => "near",
            Raid10Format::Far => "far",
            Raid10Format::Offset => "offset",
        }
    }
}

impl RaidKind {
    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            RaidKind::Raid0 => "raid0",
            RaidKind::Raid1 => "raid1",
            RaidKind::Raid10 { .. } => "raid10",
            RaidKind::Parity(kind) => kind.name(),
        }
    }
}

impl Raid {
    /// The devices that are there.
    pub fn present(&self) -> impl Iterator<Item = &Below> {
        self.devices.iter().flatten()
    }

    /// What each device gives to a target of `length` sectors; `None` where that does not come out even.
    pub fn device_sectors(&self, length: u64) -> Option<u64> {
        let devices = self.devices.len() as u64;
        let (times, parts) = match self.kind {
            RaidKind::Raid0 => (1, devices),
            RaidKind::Raid1 => (1, 1),
            RaidKind::Raid10 { copies, .. } => (u64::from(copies), devices),
            RaidKind::Parity(kind) => (1, devices.saturating_sub(kind.parities().into())),
        };
        let all = u128::from(length) * u128::from(times);
        let each = all.checked_div(u128::from(parts))?;
        u64::try_from(each).ok().filter(|_| each * u128::from(parts) == all)
    }

    /// The optional parameters, as words.
    fn parameters(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut pair = |name: &str, value: String| words.extend([name.to_owned(), value]);
        if let RaidKind::Raid10 { format, copies, .. } = self.kind {
            pair("raid10_copies", copies.to_string());
            pair("raid10_format", format.name().to_owned());
        }
        self.rebuild.iter().for_each(|role| pair("rebuild", role.to_string()));
        self.write_mostly.iter().for_each(|role| pair("write_mostly", role.to_string()));
        let numbers = [
            ("region_size", self.region_size),
            ("stripe_cache", self.stripe_cache),
            ("min_recovery_rate", self.min_recovery_rate),
            ("max_recovery_rate", self.max_recovery_rate),
        ];
        numbers.iter().filter_map(|(name, value)| Some((name, (*value)?))).for_each(|(name, value)| {
            pair(name, value.to_string());
        });
        words.extend(self.nosync.then(|| "nosync".to_owned()));
        if matches!(self.kind, RaidKind::Raid10 { use_near_sets: true, .. }) {
            words.push("raid10_use_near_sets".to_owned());
        }
        words
    }
}

impl fmt::Display for Raid {
    /// What stands behind `raid`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters = self.parameters();
        write!(f, "{} {} {}", self.kind.name(), parameters.len() + 1, self.chunk)?;
        parameters.iter().try_for_each(|word| write!(f, " {word}"))?;
        write!(f, " {}", self.devices.len())?;
        self.devices.iter().try_for_each(|device| match device {
            None => write!(f, " - -"),
            Some(below) => write!(f, " - {}", Quoted(&below.dev)),
        })
    }
}
