//! The superblock of dm-raid, which LVM's RAID volumes have: at the start of each leg's small `_rmeta_` volume.
//!
//! Little-endian, 148 bytes, zeros to the end of the logical block. No checksum. At 4096 follows a write-intent bitmap as md
//! has it ([`crate::md::bitmap`]), with a uuid of zeros; data is on another volume, the `_rimage_`, from its start.
//!
//! | off | type | field | | off | type | field |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 0 | u32 | magic | | 60 | u32 | flags |
//! | 4 | u32 | compat_features | | 64 | u64 | reshape_position |
//! | 8 | u32 | num_devices | | 72 | u32 | new_level |
//! | 12 | u32 | array_position | | 76 | u32 | new_layout |
//! | 16 | u64 | events | | 80 | u32 | new_stripe_sectors |
//! | 24 | u64 | failed_devices | | 84 | i32 | delta_disks |
//! | 32 | u64 | disk_recovery_offset | | 88 | u64 | array_sectors |
//! | 40 | u64 | array_resync_offset | | 96 | u64 | data_offset |
//! | 48 | u32 | level | | 104 | u64 | new_data_offset |
//! | 52 | u32 | layout | | 112 | u64 | sectors |
//! | 56 | u32 | stripe_sectors | | 120 | u64 × 3 | failed_devices, the rest |
//! | | | | | 144 | u32 | incompat_features |
//!
//! What is behind byte 60 counts only with [`Superblock::EXTENDED`] in `compat_features`; otherwise it is kept as it was found.
//!
//! (1) A superblock that was decoded has a place among its devices, and features that are known. (2) `encode` of what was
//! decoded gives the same 148 bytes. (3) Nothing here says whether the array was stopped cleanly: dm-raid does not record
//! it, and the bits of the bitmap alone tell what may differ.
//!
//! Sources: the kernel's `drivers/md/dm-raid.c` (layout, and which values it takes) and
//! `Documentation/admin-guide/device-mapper/dm-raid.rst`.

mod parity;
#[cfg(test)]
mod tests;

use std::fmt::Display;

use crate::bytes::{array, put, u32_le, u64_le};
use crate::md::Level;
use crate::{ErrorKind, FormatError};

pub use parity::ParityType;

/// Bytes that mean something.
pub const SUPERBLOCK_BYTES: usize = 148;

/// Where the bitmap is, bytes from the start of the metadata volume.
pub const BITMAP_OFFSET: u64 = 4096;

/// Most legs: what the kernel takes.
pub const DEVICES_MAX: u32 = 253;

/// Instead of an offset: everything is in sync, or has been recovered.
pub const IN_SYNC: u64 = u64::MAX;

/// Events of a new array, as the kernel counts them: made, and taken into use.
pub const EVENTS_OF_NEW: u64 = 2;

const MAGIC: u32 = 0x6452_6d44;
const PLACE: &str = "dm-raid superblock";

/// Words of `failed_devices`.
const FAILED_WORDS: usize = 4;

/// The superblock of one leg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// [`Superblock::EXTENDED`], or 0 from long ago.
    pub compat_features: u32,
    /// Legs of the array.
    pub num_devices: u32,
    /// Which of them this is.
    pub array_position: u32,
    /// Raised at each change: the leg with the most is right.
    pub events: u64,
    /// A bit for each leg that has failed, the lowest first; see [`Superblock::has_failed`].
    pub failed_devices: [u64; FAILED_WORDS],
    /// Sectors of this leg that are in sync, or [`IN_SYNC`].
    pub disk_recovery_offset: u64,
    /// Sectors of the array that are in sync, or [`IN_SYNC`].
    pub array_resync_offset: u64,
    /// Its level, as md has it.
    pub level: Level,
    /// Its layout, in its level's own terms.
    pub layout: u32,
    /// Chunk, sectors; 0 for levels without.
    pub stripe_sectors: u32,
    /// Bit 0 a reshape is active, bit 1 it goes backwards.
    pub flags: u32,
    /// How far the reshape is, sectors.
    pub reshape_position: u64,
    /// The level to come.
    pub new_level: u32,
    /// The layout to come.
    pub new_layout: u32,
    /// The chunk to come.
    pub new_stripe_sectors: u32,
    /// Legs more (or less) than before.
    pub delta_disks: i32,
    /// Size of the array, sectors.
    pub array_sectors: u64,
    /// Where the data starts on its volume, sectors.
    pub data_offset: u64,
    /// Where it will start.
    pub new_data_offset: u64,
    /// Sectors of data of this leg.
    pub sectors: u64,
    /// None are known.
    pub incompat_features: u32,
}

impl Superblock {
    /// In `compat_features`: the fields behind byte 60 count.
    pub const EXTENDED: u32 = 1;

    const RESHAPE: u32 = 1 | 2;

    /// Whether the bytes start like one. A new leg, in need of a full copy, does not.
    pub fn is_at(bytes: &[u8]) -> bool {
        bytes.len() >= 4 && u32_le(bytes, 0) == MAGIC
    }

    /// Takes apart what was read at byte 0 of a metadata volume: [`SUPERBLOCK_BYTES`] or more.
    ///
    /// # Errors
    ///
    /// No superblock, features that are not known, or a place that no leg can have.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() < SUPERBLOCK_BYTES {
            let expected = format!("{SUPERBLOCK_BYTES} bytes or more");
            return Err(FormatError::invalid(PLACE, 0, "size", bytes.len(), expected));
        }
        let magic = u32_le(bytes, 0);
        if magic != MAGIC {
            let (found, expected) = (format!("{magic:#010x}"), format!("{MAGIC:#010x}"));
            return Err(FormatError::invalid(PLACE, 0, "magic", found, expected));
        }
        let superblock = Self::take_apart(bytes);
        superblock.check()?;
        Ok(superblock)
    }

    fn take_apart(bytes: &[u8]) -> Self {
        Self {
            compat_features: u32_le(bytes, 4),
            num_devices: u32_le(bytes, 8),
            array_position: u32_le(bytes, 12),
            events: u64_le(bytes, 16),
            failed_devices: [24, 120, 128, 136].map(|at| u64_le(bytes, at)),
            disk_recovery_offset: u64_le(bytes, 32),
            array_resync_offset: u64_le(bytes, 40),
            level: i32::from_le_bytes(array(bytes, 48)).into(),
            layout: u32_le(bytes, 52),
            stripe_sectors: u32_le(bytes, 56),
            flags: u32_le(bytes, 60),
            reshape_position: u64_le(bytes, 64),
            new_level: u32_le(bytes, 72),
            new_layout: u32_le(bytes, 76),
            new_stripe_sectors: u32_le(bytes, 80),
            delta_disks: i32::from_le_bytes(array(bytes, 84)),
            array_sectors: u64_le(bytes, 88),
            data_offset: u64_le(bytes, 96),
            new_data_offset: u64_le(bytes, 104),
            sectors: u64_le(bytes, 112),
            incompat_features: u32_le(bytes, 144),
        }
    }

    /// Its bytes: a sector, with zeros behind the fields.
    pub fn encode(&self) -> [u8; 512] {
        let mut out = [0; 512];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 4, &self.compat_features.to_le_bytes());
        put(&mut out, 8, &self.num_devices.to_le_bytes());
        put(&mut out, 12, &self.array_position.to_le_bytes());
        put(&mut out, 16, &self.events.to_le_bytes());
        for (at, word) in [24, 120, 128, 136].into_iter().zip(self.failed_devices) {
            put(&mut out, at, &word.to_le_bytes());
        }
        put(&mut out, 32, &self.disk_recovery_offset.to_le_bytes());
        put(&mut out, 40, &self.array_resync_offset.to_le_bytes());
        put(&mut out, 48, &i32::from(self.level).to_le_bytes());
        put(&mut out, 52, &self.layout.to_le_bytes());
        put(&mut out, 56, &self.stripe_sectors.to_le_bytes());
        put(&mut out, 60, &self.flags.to_le_bytes());
        put(&mut out, 64, &self.reshape_position.to_le_bytes());
        put(&mut out, 72, &self.new_level.to_le_bytes());
        put(&mut out, 76, &self.new_layout.to_le_bytes());
        put(&mut out, 80, &self.new_stripe_sectors.to_le_bytes());
        put(&mut out, 84, &self.delta_disks.to_le_bytes());
        put(&mut out, 88, &self.array_sectors.to_le_bytes());
        put(&mut out, 96, &self.data_offset.to_le_bytes());
        put(&mut out, 104, &self.new_data_offset.to_le_bytes());
        put(&mut out, 112, &self.sectors.to_le_bytes());
        put(&mut out, 144, &self.incompat_features.to_le_bytes());
        out
    }

    /// Whether there can be such a leg.
    ///
    /// # Errors
    ///
    /// As [`Superblock::decode`].
    pub fn check(&self) -> Result<(), FormatError> {
        let remedy = "a newer kernel made it: let Linux serve this volume";
        let unknown = |field, found: u32, expected: &str| {
            let found = format!("{found:#x}");
            Err(unsupported(field, found, expected).with_remedy(remedy))
        };
        if self.compat_features & !Self::EXTENDED != 0 {
            return unknown("compat_features", self.compat_features, "0 or 1");
        }
        if self.is_extended() && self.incompat_features != 0 {
            return unknown("incompat_features", self.incompat_features, "0");
        }
        if !(1..=DEVICES_MAX).contains(&self.num_devices) {
            let expected = format!("1 to {DEVICES_MAX}");
            return Err(FormatError::limit(PLACE, 0, "num_devices", self.num_devices, expected));
        }
        if self.array_position >= self.num_devices {
            let expected = format!("below {}, the number of devices", self.num_devices);
            return Err(FormatError::invalid(PLACE, 0, "array_position", self.array_position, expected));
        }
        Ok(())
    }

    /// Whether the data of its array can be read and written by us.
    ///
    /// # Errors
    ///
    /// A reshape is under way, or has moved the data.
    pub fn supports(&self) -> Result<(), FormatError> {
        let refused = |field, found: u64, expected: &str| {
            Err(unsupported(field, found, expected).with_remedy("let Linux finish the reshape first"))
        };
        if !self.is_extended() {
            return Ok(());
        }
        if self.flags & Self::RESHAPE != 0 {
            return refused("flags", self.flags.into(), "no reshape under way");
        }
        if self.data_offset != 0 {
            return refused(
                "data_offset",
                self.data_offset,
                "0, where data starts unless a reshape moved it",
            );
        }
        Ok(())
    }

    /// Size of the array as it tells, sectors; none: it does not tell.
    pub fn size(&self) -> Option<u64> {
        Some(self.array_sectors).filter(|sectors| self.is_extended() && *sectors > 0)
    }

    /// Whether the leg at `position` has failed.
    pub fn has_failed(&self, position: u16) -> bool {
        let (word, mask) = place(position);
        self.failed_devices.get(word).is_some_and(|word| word & mask != 0)
    }

    /// Notes that the leg at `position` has failed. One beyond [`DEVICES_MAX`] there is not.
    pub fn fail(&mut self, position: u16) {
        let (word, mask) = place(position);
        if let Some(word) = self.failed_devices.get_mut(word) {
            *word |= mask;
        }
    }

    /// Takes back that the leg at `position` has failed.
    pub fn unfail(&mut self, position: u16) {
        let (word, mask) = place(position);
        if let Some(word) = self.failed_devices.get_mut(word) {
            *word &= !mask;
        }
    }

    /// Whether what is behind byte 60 counts.
    pub fn is_extended(&self) -> bool {
        self.compat_features & Self::EXTENDED != 0
    }
}

fn unsupported(field: &'static str, found: impl Display, expected: &str) -> FormatError {
    let error = FormatError::invalid(PLACE, 0, field, found, expected);
    FormatError { kind: ErrorKind::Unsupported, ..error }
}

fn place(position: u16) -> (usize, u64) {
    (usize::from(position / 64), 1 << (position % 64))
}
