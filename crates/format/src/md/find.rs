//! Looks for superblocks of all versions on a device.

use super::v1::{Minor, SUPERBLOCK_BYTES_MAX};
use super::{Level, ParityLayout, Role, Uuid, v0, v1};
use crate::source::Source;
use crate::{FormatError, SECTOR_BYTES};

/// A superblock of any version, and what all of them tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Superblock {
    /// 0.90.
    V0(Box<v0::Superblock>),
    /// 1.0, 1.1, 1.2.
    V1(Box<v1::Superblock>),
}

impl Superblock {
    /// As mdadm writes it: `1.2`, `0.90`.
    pub fn version(&self) -> &'static str {
        match self {
            Superblock::V0(_) => "0.90",
            Superblock::V1(superblock) => match superblock.minor {
                Minor::V1_0 => "1.0",
                Minor::V1_1 => "1.1",
                Minor::V1_2 => "1.2",
            },
        }
    }

    /// The array.
    pub fn uuid(&self) -> Uuid {
        match self {
            Superblock::V0(superblock) => superblock.uuid,
            Superblock::V1(superblock) => superblock.set_uuid,
        }
    }

    /// Its level.
    pub fn level(&self) -> Level {
        match self {
            Superblock::V0(superblock) => superblock.level,
            Superblock::V1(superblock) => superblock.level,
        }
    }

    /// Its layout, where its level has parity.
    ///
    /// # Errors
    ///
    /// As for [`v1::Superblock::parity_layout`].
    pub fn parity_layout(&self) -> Result<ParityLayout, FormatError> {
        match self {
            Superblock::V0(superblock) => superblock.parity_layout(),
            Superblock::V1(superblock) => superblock.parity_layout(),
        }
    }

    /// Its places.
    pub fn raid_disks(&self) -> u32 {
        match self {
            Superblock::V0(superblock) => superblock.raid_disks,
            Superblock::V1(superblock) => superblock.raid_disks,
        }
    }

    /// What this device is.
    pub fn role(&self) -> Role {
        match self {
            Superblock::V0(superblock) => superblock.role(),
            Superblock::V1(superblock) => superblock.role(),
        }
    }

    /// Raised at each change.
    pub fn events(&self) -> u64 {
        match self {
            Superblock::V0(superblock) => superblock.events,
            Superblock::V1(superblock) => superblock.events,
        }
    }

    /// Whether it can be true on a device of `device_sectors`.
    ///
    /// # Errors
    ///
    /// The first thing that cannot.
    pub fn check(&self, device_sectors: u64) -> Result<(), FormatError> {
        match self {
            Superblock::V0(superblock) => superblock.check(),
            Superblock::V1(superblock) => superblock.check(device_sectors),
        }
    }

    /// When the array was created, seconds since 1970.
    pub fn ctime_seconds(&self) -> u64 {
        match self {
            Superblock::V0(superblock) => superblock.ctime.into(),
            Superblock::V1(superblock) => superblock.ctime.seconds(),
        }
    }
}

/// What was found on a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Superblocks that can be true, in the order in which they were looked for: 1.1, 1.2, 1.0, 0.90. Usually none or one; an
    /// older one may be left from an array of another version.
    pub superblocks: Vec<Superblock>,
    /// What starts like a superblock and is not to be believed, and places that could not be read.
    pub refused: Vec<FormatError>,
    /// Some of these start like a superblock.
    pub damaged: bool,
    /// Of these, the superblocks that are intact (checksum, version) and cannot be true on this device, which may have been cut, say. Nothing of
    /// them has been checked: they are only good for what they tell of other members.
    pub contradicted: Vec<Superblock>,
}

impl Found {
    /// The one that counts: of the array that was created last, as for mdadm.
    pub fn newest(&self) -> Option<&Superblock> {
        newest(&self.superblocks)
    }

    /// Likewise of those that cannot be true.
    pub fn newest_contradicted(&self) -> Option<&Superblock> {
        newest(&self.contradicted)
    }
}

/// Of equal ones the first.
fn newest(superblocks: &[Superblock]) -> Option<&Superblock> {
    superblocks.iter().rev().max_by_key(|superblock| superblock.ctime_seconds())
}

/// A place where a device may have a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its first sector.
    pub sector: u64,
    /// The version that is kept there; none: 0.90.
    minor: Option<Minor>,
}

impl Place {
    /// As much as any superblock may have there: every place has room for so many bytes ([`Minor::sector`], [`v0::sector`]).
    pub const BYTES: usize = SUPERBLOCK_BYTES_MAX;

    /// What a device of `device_sectors` has there, by the [`Place::BYTES`] that were read; none: nothing that is one.
    pub fn decode(&self, bytes: &[u8], device_sectors: u64) -> Option<Result<Superblock, FormatError>> {
        match self.minor {
            Some(minor) => v1::Superblock::is_at(bytes).then(|| {
                let superblock = v1::Superblock::decode(bytes, minor, device_sectors)?;
                Ok(Superblock::V1(Box::new(superblock)))
            }),
            None => v0::Superblock::is_at(bytes).map(|_| {
                let superblock = v0::Superblock::decode(bytes, device_sectors)?;
                Ok(Superblock::V0(Box::new(superblock)))
            }),
        }
    }

    /// The superblock there if it is intact, whether or not it can be true.
    fn decode_unchecked(&self, bytes: &[u8], device_sectors: u64) -> Option<Superblock> {
        match self.minor {
            Some(minor) => {
                let superblock = v1::Superblock::decode_unchecked(bytes, minor, device_sectors).ok()?;
                Some(Superblock::V1(Box::new(superblock)))
            }
            None => {
                let superblock = v0::Superblock::decode_unchecked(bytes, device_sectors).ok()?;
                Some(Superblock::V0(Box::new(superblock)))
            }
        }
    }
}

/// The places on a device of so many sectors: of equally old superblocks, that in the first of them counts.
pub fn places(device_sectors: u64) -> impl Iterator<Item = Place> {
    let of_v1 = Minor::ALL
        .into_iter()
        .filter_map(move |minor| Some(Place { sector: minor.sector(device_sectors)?, minor: Some(minor) }));
    let of_v0 = v0::sector(device_sectors).map(|sector| Place { sector, minor: None });
    of_v1.chain(of_v0)
}

/// Looks for superblocks in the four places where they can be. Reads at most 4 KiB at each.
pub fn find(source: &dyn Source) -> Found {
    let device_sectors = source.size() / SECTOR_BYTES;
    let mut found = Found::default();
    for place in places(device_sectors) {
        let bytes = match read(source, place) {
            Ok(bytes) => bytes,
            Err(error) => {
                found.refused.push(error);
                continue;
            }
        };
        match place.decode(&bytes, device_sectors) {
            None => {}
            Some(Ok(superblock)) => found.superblocks.push(superblock),
            Some(Err(error)) => {
                found.damaged = true;
                found.refused.push(error);
                found.contradicted.extend(place.decode_unchecked(&bytes, device_sectors));
            }
        }
    }
    found
}

fn read(source: &dyn Source, place: Place) -> Result<Vec<u8>, FormatError> {
    let what = if place.minor.is_some() { "md superblock" } else { "md superblock 0.90" };
    let offset = place.sector * SECTOR_BYTES;
    let mut bytes = vec![0; Place::BYTES];
    source.read_at(offset, &mut bytes).map_err(|error| FormatError::unreadable(what, offset, &error))?;
    Ok(bytes)
}
