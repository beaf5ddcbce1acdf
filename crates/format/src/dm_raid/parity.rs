//! Levels with a parity, as device-mapper's `raid` target and LVM's segments call them.
//!
//! Source: `Documentation/admin-guide/device-mapper/dm-raid.rst`; which layout a name stands for, and how many devices it takes, the
//! kernel's `drivers/md/dm-raid.c`.

use crate::md::{Level, ParityLayout};

/// A level with a parity, with its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParityType {
    /// A RAID4: the parity is on the first device.
    Raid4,
    /// [`ParityType::Raid5Ls`], as LVM alone calls it.
    Raid5,
    /// Left symmetric.
    Raid5Ls,
    /// Left asymmetric.
    Raid5La,
    /// Right symmetric.
    Raid5Rs,
    /// Right asymmetric.
    Raid5Ra,
    /// The parity is on the last device.
    Raid5N,
    /// [`ParityType::Raid6Zr`], as LVM alone calls it.
    Raid6,
    /// Rotating zero restart.
    Raid6Zr,
    /// Rotating N restart.
    Raid6Nr,
    /// Rotating N continue.
    Raid6Nc,
    /// The parities are on the last devices.
    Raid6N6,
    /// Left symmetric, and the second parity on the last device.
    Raid6Ls6,
    /// Left asymmetric, and the second parity on the last device.
    Raid6La6,
    /// Right symmetric, and the second parity on the last device.
    Raid6Rs6,
    /// Right asymmetric, and the second parity on the last device.
    Raid6Ra6,
}

impl ParityType {
    /// All of them.
    pub const ALL: [ParityType; 16] = [
        ParityType::Raid4,
        ParityType::Raid5,
        ParityType::Raid5Ls,
        ParityType::Raid5La,
        ParityType::Raid5Rs,
        ParityType::Raid5Ra,
        ParityType::Raid5N,
        ParityType::Raid6,
        ParityType::Raid6Zr,
        ParityType::Raid6Nr,
        ParityType::Raid6Nc,
        ParityType::Raid6N6,
        ParityType::Raid6Ls6,
        ParityType::Raid6La6,
        ParityType::Raid6Rs6,
        ParityType::Raid6Ra6,
    ];

    /// The one that LVM's metadata call so.
    pub fn of_segment(name: &str) -> Option<ParityType> {
        ParityType::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The one that a table calls so.
    pub fn of_target(name: &str) -> Option<ParityType> {
        ParityType::of_segment(name).filter(|kind| !matches!(kind, ParityType::Raid5 | ParityType::Raid6))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            ParityType::Raid4 => "raid4",
            ParityType::Raid5 => "raid5",
            ParityType::Raid5Ls => "raid5_ls",
            ParityType::Raid5La => "raid5_la",
            ParityType::Raid5Rs => "raid5_rs",
            ParityType::Raid5Ra => "raid5_ra",
            ParityType::Raid5N => "raid5_n",
            ParityType::Raid6 => "raid6",
            ParityType::Raid6Zr => "raid6_zr",
            ParityType::Raid6Nr => "raid6_nr",
            ParityType::Raid6Nc => "raid6_nc",
            ParityType::Raid6N6 => "raid6_n_6",
            ParityType::Raid6Ls6 => "raid6_ls_6",
            ParityType::Raid6La6 => "raid6_la_6",
            ParityType::Raid6Rs6 => "raid6_rs_6",
            ParityType::Raid6Ra6 => "raid6_ra_6",
        }
    }

    /// Its level in superblocks: a RAID4 is a RAID5 there.
    pub fn level(self) -> Level {
        if self.parities() == 2 { Level::Raid6 } else { Level::Raid5 }
    }

    /// The number of its layout in superblocks.
    pub fn layout_number(self) -> u32 {
        match self {
            ParityType::Raid5La => 0,
            ParityType::Raid5Ra => 1,
            ParityType::Raid5Ls | ParityType::Raid5 => 2,
            ParityType::Raid5Rs => 3,
            ParityType::Raid4 => 4,
            ParityType::Raid5N | ParityType::Raid6N6 => 5,
            ParityType::Raid6Zr | ParityType::Raid6 => 8,
            ParityType::Raid6Nr => 9,
            ParityType::Raid6Nc => 10,
            ParityType::Raid6La6 => 16,
            ParityType::Raid6Ra6 => 17,
            ParityType::Raid6Ls6 => 18,
            ParityType::Raid6Rs6 => 19,
        }
    }

    /// Where the data lie on so many devices; none where these are too few to have data.
    pub fn layout(self, devices: u16) -> Option<ParityLayout> {
        ParityLayout::new(self.level(), self.layout_number(), devices)
    }

    /// Chunks of parity in a row: how many devices it can do without.
    pub fn parities(self) -> u16 {
        use ParityType::{Raid4, Raid5, Raid5La, Raid5Ls, Raid5N, Raid5Ra, Raid5Rs};
        if matches!(self, Raid4 | Raid5 | Raid5La | Raid5Ls | Raid5N | Raid5Ra | Raid5Rs) { 1 } else { 2 }
    }

    /// Devices that Linux takes it with, at least.
    pub fn devices_min(self) -> u16 {
        2 * self.parities()
    }
}
