//! RAID levels, and which chunk and layout each can have.

use std::fmt;

use super::{ParityLayout, Raid10Layout, unsupported};
use crate::FormatError;

/// Most places that an array can have: the table of roles ends with the superblock's 4096 bytes.
pub const RAID_DISKS_MAX: u32 = (4096 - 256) / 2;

/// Largest chunk, sectors: the kernel counts them in an `int`.
pub const CHUNK_SECTORS_MAX: u32 = 0x7fff_ffff;

/// Smallest chunk of levels that stripe and have more than one copy, sectors: a page of 4 KiB.
pub const RAID10_CHUNK_SECTORS_MIN: u32 = 8;

/// The level of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// Members one behind the other.
    Linear,
    /// Stripes without redundancy.
    Raid0,
    /// Mirrors.
    Raid1,
    /// Parity on a member of its own.
    Raid4,
    /// Parity spread over the members.
    Raid5,
    /// Two parities.
    Raid6,
    /// Stripes of mirrors: near, far, offset.
    Raid10,
    /// Something else (multipath -4, faulty -5, a container -100), by its number.
    Other(i32),
}

impl From<i32> for Level {
    fn from(number: i32) -> Self {
        match number {
            -1 => Level::Linear,
            0 => Level::Raid0,
            1 => Level::Raid1,
            4 => Level::Raid4,
            5 => Level::Raid5,
            6 => Level::Raid6,
            10 => Level::Raid10,
            other => Level::Other(other),
        }
    }
}

impl From<Level> for i32 {
    fn from(level: Level) -> Self {
        match level {
            Level::Linear => -1,
            Level::Raid0 => 0,
            Level::Raid1 => 1,
            Level::Raid4 => 4,
            Level::Raid5 => 5,
            Level::Raid6 => 6,
            Level::Raid10 => 10,
            Level::Other(other) => other,
        }
    }
}

impl fmt::Display for Level {
    /// As mdadm does: `raid10`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Level::Linear => f.write_str("linear"),
            Level::Other(-4) => f.write_str("multipath"),
            Level::Other(-5) => f.write_str("faulty"),
            Level::Other(-100) => f.write_str("container"),
            Level::Other(other) => write!(f, "level {other}"),
            raid => write!(f, "raid{}", i32::from(*raid)),
        }
    }
}

impl Level {
    /// Whether it cuts its data into chunks.
    pub fn stripes(self) -> bool {
        matches!(self, Level::Raid0 | Level::Raid4 | Level::Raid5 | Level::Raid6 | Level::Raid10)
    }

    /// Whether every member holds as much as the array says (RAID0 and linear use each member to its own end).
    pub fn has_equal_members(self) -> bool {
        matches!(self, Level::Raid1 | Level::Raid4 | Level::Raid5 | Level::Raid6 | Level::Raid10)
    }

    /// Whether some of what its members hold is computed from the rest.
    pub fn has_parity(self) -> bool {
        matches!(self, Level::Raid4 | Level::Raid5 | Level::Raid6)
    }

    /// Whether it can do without a member.
    pub fn is_redundant(self) -> bool {
        !matches!(self, Level::Linear | Level::Raid0)
    }
}

/// The shape of an array, as any version of superblock has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub place: &'static str,
    /// Of the superblock, bytes.
    pub offset: u64,
    pub level: Level,
    pub layout: u32,
    pub chunk_sectors: u32,
    pub raid_disks: u32,
}

impl Shape {
    /// Whether there can be such an array. What it means where more is needed than these numbers (a RAID0's layout
    /// depends on its members) is not known here.
    pub fn check(&self) -> Result<(), FormatError> {
        let (disks, chunk) = (self.raid_disks, self.chunk_sectors);
        if disks == 0 {
            return Err(FormatError::invalid(self.place, self.offset, "raid_disks", disks, "at least 1"));
        }
        if disks > RAID_DISKS_MAX {
            let expected = format!("at most {RAID_DISKS_MAX}");
            return Err(FormatError::limit(self.place, self.offset, "raid_disks", disks, expected));
        }
        if chunk > CHUNK_SECTORS_MAX {
            let expected = format!("at most {CHUNK_SECTORS_MAX} sectors");
            return Err(FormatError::limit(self.place, self.offset, "chunk", chunk, expected));
        }
        if self.level.stripes() && chunk == 0 {
            let expected = format!("at least 1 sector in a {}", self.level);
            return Err(FormatError::invalid(self.place, self.offset, "chunk", chunk, expected));
        }
        let pages = matches!(self.level, Level::Raid4 | Level::Raid5 | Level::Raid6 | Level::Raid10);
        if pages && !(chunk.is_power_of_two() && chunk >= RAID10_CHUNK_SECTORS_MIN) {
            let expected =
                format!("a power of two of at least {RAID10_CHUNK_SECTORS_MIN} sectors in a {}", self.level);
            return Err(FormatError::invalid(self.place, self.offset, "chunk", chunk, expected));
        }
        if self.level == Level::Raid10 {
            self.raid10()?;
        }
        Ok(())
    }

    /// The layout of a RAID10, where it is one.
    pub fn raid10(&self) -> Result<Raid10Layout, FormatError> {
        let (layout, disks) = (self.layout, self.raid_disks);
        Raid10Layout::decode(layout, disks).map_err(|wrong| {
            FormatError::invalid(self.place, self.offset, "layout", format!("{layout:#x}"), wrong.expected)
        })
    }

    /// The layout of a level with parity.
    pub fn parity(&self) -> Result<ParityLayout, FormatError> {
        let disks = u16::try_from(self.raid_disks).expect("at most RAID_DISKS_MAX");
        ParityLayout::new(self.level, self.layout, disks).ok_or_else(|| {
            let expected = format!("one that a {} of {disks} members can have", self.level);
            unsupported(self.place, self.offset, "layout", self.layout, expected)
                .with_remedy("let Linux serve this array")
        })
    }

    /// Whether arrays of this level can be read and written.
    pub fn supports_level(&self) -> Result<(), FormatError> {
        if !matches!(self.level, Level::Other(_)) {
            return Ok(());
        }
        let expected = "linear, raid0, raid1, raid4, raid5, raid6 or raid10";
        Err(unsupported(self.place, self.offset, "level", self.level, expected)
            .with_remedy("let Linux serve this array"))
    }
}
