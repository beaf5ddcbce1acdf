//! Whether a 1.x superblock can be true: its place, its shape, and the regions of the member that it names.
//!
//! As strict as the kernel when it loads one, and stricter where the kernel would write over something: the superblock,
//! the data, the bitmap and the list of bad blocks lie inside the device and apart.

use std::fmt;

use super::{Features, PLACE, Superblock, Wrong};
use crate::bytes::length;
use crate::md::{RAID_DISKS_MAX, Role, unsupported};
use crate::{FormatError, SECTOR_BYTES};

/// Largest unit of the list of bad blocks, as a power of two of sectors.
const BBLOG_SHIFT_MAX: u8 = 20;

/// Largest list of bad blocks, sectors: the kernel gives it a page.
pub(crate) const BBLOG_SECTORS_MAX: u16 = 8;

/// Fewest sectors of data that Linux takes a member with.
const DATA_SECTORS_MIN: u64 = 10;

/// Which of the three places a 1.x superblock is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Minor {
    /// Version 1.0: 8 to 12 KiB before the end.
    V1_0,
    /// Version 1.1: at the start.
    V1_1,
    /// Version 1.2: 4 KiB after the start.
    V1_2,
}

impl Minor {
    /// All of them, in the order in which they are looked for.
    pub const ALL: [Minor; 3] = [Minor::V1_1, Minor::V1_2, Minor::V1_0];

    /// Sector of the superblock on a device of so many sectors; none where it has no room for one.
    pub fn sector(self, device_sectors: u64) -> Option<u64> {
        // The room of a superblock, and as much again before (1.0) or after it.
        let last = device_sectors.checked_sub(16)?;
        Some(match self {
            Minor::V1_0 => last & !7,
            Minor::V1_1 => 0,
            Minor::V1_2 => 8,
        })
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Minor::V1_0 => "1.0",
            Minor::V1_1 => "1.1",
            Minor::V1_2 => "1.2",
        })
    }
}

/// What somebody wants to do with the data of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Read and write.
    Write,
}

/// Sectors of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// The first, from the start of the member.
    pub start: u64,
    /// How many.
    pub sectors: u64,
}

impl Region {
    /// The first sector behind it. It is in the device for every region of a superblock that was decoded.
    pub fn end(self) -> u64 {
        self.start.saturating_add(self.sectors)
    }

    fn overlaps(self, other: Region) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sectors {} to {}", self.start, self.end())
    }
}

impl Superblock {
    /// Whether it can be true on a device of `device_sectors`.
    ///
    /// # Errors
    ///
    /// The first thing that cannot: a place, size, number or region, by its field.
    pub fn check(&self, device_sectors: u64) -> Result<(), FormatError> {
        self.check_place(device_sectors)?;
        self.check_features()?;
        self.shape().check()?;
        self.check_data(device_sectors)?;
        self.check_roles()?;
        self.check_regions(device_sectors)
    }

    /// Whether its array can be read, or written, by us.
    ///
    /// # Errors
    ///
    /// A level or feature that is not supported, with what to do instead.
    pub fn supports(&self, access: Access) -> Result<(), FormatError> {
        let refused = |found: &str, expected: &str| {
            Err(unsupported(
                PLACE,
                self.offset(),
                "feature map",
                format!("{} ({found})", self.features),
                expected,
            )
            .with_remedy("let Linux serve this array"))
        };
        self.shape().supports_level()?;
        if self.features.has(Features::RESHAPE_ACTIVE) {
            return refused(
                "a reshape is under way",
                "no reshape, as data before its position has another shape",
            );
        }
        if self.features.has(Features::CLUSTERED) {
            return refused("the array belongs to a cluster", "an array of one host");
        }
        if self.features.has(Features::JOURNAL) || self.role() == Role::Journal {
            return refused("a journal, which may have data that the members lack", "none");
        }
        // A log of parity (PPL) has nothing of the data: those are where they belong when a write is done.
        if access == Access::Read {
            return Ok(());
        }
        if self.features.has_any(Features::PPL | Features::MULTIPLE_PPLS) {
            return refused("a log of parity", "none for writing");
        }
        if self.features.has_any(Features::RESHAPE_BACKWARDS | Features::NEW_OFFSET) {
            return refused("a reshape is under way", "no reshape for writing");
        }
        if self.reserved != [0; 32] {
            let expected = "zeros in bytes 12-15 and 228-255 for writing";
            return Err(unsupported(PLACE, self.offset(), "unnamed bytes", "in use", expected)
                .with_remedy("a newer kernel may mean something by them: serve it read-only"));
        }
        Ok(())
    }

    /// Where the data is.
    pub fn data(&self) -> Region {
        Region { start: self.data_offset, sectors: self.data_size }
    }

    /// Where the superblock is: its bytes in whole sectors.
    pub fn own(&self) -> Region {
        let sectors = length(self.encoded_bytes()).div_ceil(SECTOR_BYTES);
        Region { start: self.super_offset, sectors }
    }

    /// Sector of the bitmap, where there is one.
    pub fn bitmap_sector(&self) -> Option<u64> {
        if self.features.has(Features::BITMAP) {
            self.super_offset.checked_add_signed(self.bitmap_offset.into())
        } else {
            None
        }
    }

    /// Where the log of partial parity is, sectors from the superblock, and how many it has; it takes the place of a bitmap.
    pub fn partial_parity_log(&self) -> Option<(i16, u16)> {
        let [a, b, c, d] = self.bitmap_offset.to_le_bytes();
        let has_log = self.features.has_any(Features::PPL | Features::MULTIPLE_PPLS);
        has_log.then(|| (i16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])))
    }

    /// Where the list of bad blocks is, where it has a place. It holds something only with [`Features::BAD_BLOCKS`].
    pub fn bad_block_log(&self) -> Option<Region> {
        if self.bblog_offset == 0 || self.bblog_sectors == 0 {
            return None;
        }
        let start = self.super_offset.checked_add_signed(self.bblog_offset.into())?;
        Some(Region { start, sectors: self.bblog_sectors.into() })
    }

    /// Sectors from the bitmap's first to whatever comes next: the superblock, the data, the list of bad blocks or the end
    /// of the device.
    pub fn bitmap_room_sectors(&self, device_sectors: u64) -> Option<u64> {
        let start = self.bitmap_sector()?;
        let others = [Some(self.own()), Some(self.data()), self.bad_block_log()];
        let next = others.iter().flatten().map(|other| other.start).filter(|other| *other >= start);
        next.chain([device_sectors]).min()?.checked_sub(start)
    }

    /// Sectors of data for which there is room on a device that has this size by now. A superblock at the end is found on devices
    /// that kept their size only, and what lies before it is kept for a bitmap also while there is none: it stays as it is.
    pub fn room_for_data(&self, device_sectors: u64) -> u64 {
        match self.minor {
            Minor::V1_0 => self.data_size,
            Minor::V1_1 | Minor::V1_2 => {
                let metadata = [self.bitmap_sector(), self.bad_block_log().map(|log| log.start)];
                let behind = metadata.into_iter().flatten().filter(|start| *start >= self.data_offset);
                let end = behind.chain([device_sectors]).min().unwrap_or(device_sectors);
                end.saturating_sub(self.data_offset).max(self.data_size)
            }
        }
    }

    fn wrong(&self) -> Wrong {
        Wrong { offset: self.offset() }
    }

    fn check_place(&self, device_sectors: u64) -> Result<(), FormatError> {
        let Some(sector) = self.minor.sector(device_sectors) else {
            let expected = "16 sectors or more";
            return Err(self.wrong().invalid("device", format!("{device_sectors} sectors"), expected));
        };
        if self.super_offset != sector {
            let expected = format!("{sector}, where it was found");
            let remedy = match self.minor {
                Minor::V1_0 => {
                    "it may belong to a partition that ends here, or the disk has another size than it had"
                }
                _ => "it was copied from somewhere else",
            };
            let wrong = Wrong { offset: sector.saturating_mul(SECTOR_BYTES) };
            return Err(wrong.invalid("super_offset", self.super_offset, expected).with_remedy(remedy));
        }
        Ok(())
    }

    fn check_features(&self) -> Result<(), FormatError> {
        let unknown = self.features.0 & !Features::KNOWN.0;
        if unknown != 0 {
            let expected = format!("no others than {}", Features::KNOWN);
            return Err(unsupported(PLACE, self.offset(), "feature map", self.features, expected)
                .with_remedy("a newer kernel made it: a newer version of this program may know it"));
        }
        if self.features.has(Features::RAID0_LAYOUT) && self.level != crate::md::Level::Raid0 {
            let expected = "no layout of a RAID0 in another level";
            return Err(self.wrong().invalid("feature map", self.features, expected));
        }
        Ok(())
    }

    /// The data lies in the device, on the side of the superblock where it belongs, and has room for what the array uses.
    fn check_data(&self, device_sectors: u64) -> Result<(), FormatError> {
        let wrong = self.wrong();
        let (start, size) = (self.data_offset, self.data_size);
        if size < DATA_SECTORS_MIN {
            return Err(wrong.invalid("data_size", size, format!("at least {DATA_SECTORS_MIN} sectors")));
        }
        let limit = match self.minor {
            Minor::V1_0 => self.super_offset,
            Minor::V1_1 | Minor::V1_2 => device_sectors,
        };
        if start.checked_add(size).is_none_or(|end| end > limit) {
            let found = format!("{size} sectors from {start}");
            let what = match self.minor {
                Minor::V1_0 => "where the superblock is",
                Minor::V1_1 | Minor::V1_2 => "where the device ends",
            };
            return Err(wrong
                .invalid("data_size", found, format!("an end at {limit} at most, {what}"))
                .with_remedy("was the disk or image cut?"));
        }
        let used = self.size;
        if self.level.has_equal_members() && (used == 0 || used > size) {
            let expected = format!("1 to {size}, the sectors for data");
            return Err(wrong.invalid("size", used, expected));
        }
        if self.level == crate::md::Level::Raid10 {
            let sizes = self.raid10_layout()?.sizes(self.chunk_sectors, used);
            sizes.map_err(|why| wrong.invalid("size", used, why.expected))?;
        }
        Ok(())
    }

    /// This device's place is one of the array's. What others are is for them to say.
    fn check_roles(&self) -> Result<(), FormatError> {
        // While an array shrinks, there are places beyond its number of disks.
        let leaving = self.reshape.delta_disks.min(0).unsigned_abs();
        let places = self.raid_disks.saturating_add(leaving).min(RAID_DISKS_MAX);
        match self.role() {
            Role::Active(place) if u32::from(place) >= places => {
                let expected = format!("a place below {places}");
                Err(self.wrong().invalid("role of this device", place, expected))
            }
            _ => Ok(()),
        }
    }

    fn check_regions(&self, device_sectors: u64) -> Result<(), FormatError> {
        let wrong = self.wrong();
        let own = ("the superblock", self.own());
        let data = ("the data", self.data());
        if own.1.overlaps(data.1) {
            let expected = format!("an end before {} or a start behind", own.1);
            return Err(wrong.invalid("data_offset", data.1, expected));
        }
        if self.bblog_shift > BBLOG_SHIFT_MAX {
            return Err(wrong.limit("bblog_shift", self.bblog_shift, format!("at most {BBLOG_SHIFT_MAX}")));
        }
        if self.bblog_sectors > BBLOG_SECTORS_MAX {
            let expected = format!("at most {BBLOG_SECTORS_MAX} sectors");
            return Err(wrong.limit("bblog_size", self.bblog_sectors, expected));
        }
        let log = self.bad_block_log();
        let names_a_log = self.bblog_offset != 0 && self.bblog_sectors != 0;
        if log.is_none() && (names_a_log || self.features.has(Features::BAD_BLOCKS)) {
            let found = format!("{} ({} sectors)", self.bblog_offset, self.bblog_sectors);
            return Err(wrong.invalid("bblog_offset", found, "a place on this device"));
        }
        // Its length is known when it is read (`bitmap`); its first sector has to be apart already.
        let bitmap = self.bitmap_sector().map(|start| Region { start, sectors: 1 });
        if bitmap.is_none() && self.features.has(Features::BITMAP) {
            return Err(wrong.invalid("bitmap_offset", self.bitmap_offset, "a place on this device"));
        }
        let named = |name, region: Option<Region>| region.map(|region| (name, region));
        let others = [Some(own), Some(data), named("the list of bad blocks", log)];
        for (field, region, others) in
            [("bblog_offset", log, &others[..2]), ("bitmap_offset", bitmap, &others[..])]
        {
            let Some(region) = region else { continue };
            if region.end() > device_sectors {
                let expected = format!("an end at {device_sectors} at most, where the device ends");
                return Err(wrong.invalid(field, region, expected));
            }
            if let Some((name, other)) = others.iter().flatten().find(|(_, other)| other.overlaps(region)) {
                return Err(wrong.invalid(field, region, format!("a place apart from {name}, {other}")));
            }
        }
        Ok(())
    }
}
