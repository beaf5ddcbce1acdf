//! What a new array has on its members: sizes, superblocks, bitmaps and lists of bad blocks, chosen as mdadm chooses them,
//! so that whoever looks after the array later finds the room that he expects.
//!
//! Where mdadm has a choice, it is this (4.2; later versions differ in nothing that is on disk, but that a RAID0 of equal
//! members may name its layout):
//!
//! | what | how |
//! | --- | --- |
//! | start of the data, 1.1 and 1.2 | 24 sectors, room for a bitmap, and headroom for a later reshape, rounded up to 1 MiB; by the first member, for all of them |
//! | headroom | 128 MiB, halved while it is more than a 1024th of the member, but at least 2 chunks (RAID1: whatever is left) |
//! | room for a bitmap | 8 sectors up to 8 GiB, 128 beyond, 256 from 200 GiB on |
//! | what a bit covers | 64 MiB, or more where the room would not do |
//! | list of bad blocks | 8 sectors behind the bitmap, or before the superblock (1.0) |
//! | size of each member | the least that all have, in whole chunks; RAID1: in 64 KiB; a RAID0 says 0 and uses each to its end |
//! | slots of the table of roles | as many as fill whole sectors: 128 |
//!
//! | level 4, 5, 6 | |
//! | --- | --- |
//! | all members are there | a resync computes the parity (mdadm: the last member of a RAID4 or 5 begins as a spare instead) |
//! | as many are missing as there are parities | whatever the others hold is right: nothing to resync |
//! | one of a RAID6 is missing | the last one that is there begins as a spare, as for mdadm: Linux starts none that is to be resynced while a member is missing |
//!
//! (1) Every superblock passes [`Superblock::check`] for its device. (2) Whatever is missing, each chunk of the array has a
//! member that is there. (3) Regions do not overlap, and begin at multiples of 4 KiB.

use super::bitmap::{BITMAP_SUPERBLOCK_BYTES, BitmapSuperblock, Bits};
use super::v1::{Features, HEAD_BYTES, Minor, Region, Reshape, SLOTS_MAX, Superblock};
use super::{
    IN_SYNC, Level, ParityLayout, RAID10_CHUNK_SECTORS_MIN, Raid10Layout, Role, SetName, Time, Uuid, raid0,
};
use crate::bytes::{index, length};
use crate::{FormatError, SECTOR_BYTES};

/// Sectors of a list of bad blocks.
const BAD_BLOCK_SECTORS: u16 = 8;
/// What a RAID1's members are rounded down to, sectors: what a chunk of a later RAID5 could need.
const RAID1_UNIT: u64 = 128;
/// Least that is used of each member, sectors: below 10, Linux takes none.
const SIZE_MIN: u64 = 16;
/// Where regions may begin, sectors: blocks of 4 KiB.
const ALIGNMENT: u64 = 8;
/// Sectors of 1 MiB.
const MIB: u64 = 2048;
/// Least that a bit of a new bitmap covers, bytes.
const BITMAP_CHUNK: u64 = 64 << 20;
/// Members beyond this size get a bitmap where nobody says, sectors: 100 GiB.
const LARGE: u64 = 100 << 21;

/// What the members do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Stripes.
    Raid0 {
        /// Chunk, sectors.
        chunk_sectors: u32,
    },
    /// Mirrors.
    Raid1,
    /// Stripes of mirrors.
    Raid10 {
        /// Layout, for the array's number of disks.
        layout: Raid10Layout,
        /// Chunk, sectors.
        chunk_sectors: u32,
    },
    /// Stripes with one parity or two.
    Parity {
        /// Level and layout, for the array's number of disks.
        layout: ParityLayout,
        /// Chunk, sectors.
        chunk_sectors: u32,
    },
}

/// Whether there is a write-intent bitmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BitmapChoice {
    /// Where members that can do without one of them use more than 100 GiB.
    #[default]
    Auto,
    /// Yes.
    Internal,
    /// No.
    None,
}

/// An array to be made.
#[derive(Debug, Clone)]
pub struct NewArray {
    /// Version of the superblocks.
    pub minor: Minor,
    /// What the members do.
    pub shape: Shape,
    /// Places.
    pub raid_disks: u16,
    /// Whether there is a write-intent bitmap.
    pub bitmap: BitmapChoice,
    /// The members hold the same already, or nobody minds: no resync.
    pub assume_clean: bool,
    /// Sectors of each member to use; as many as all have, where it is not said.
    pub size: Option<u64>,
    /// Where the data begins, sectors; where it is not said, as mdadm chooses it. Not for 1.0.
    pub data_offset: Option<u64>,
    /// Who it is.
    pub uuid: Uuid,
    /// Its name.
    pub name: SetName,
    /// Now.
    pub ctime: Time,
}

/// A device for a new array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewDevice {
    /// Size.
    pub sectors: u64,
    /// Who it is.
    pub uuid: Uuid,
}

/// What a device of a new array gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMember {
    /// Its place in the list of devices, and its slot in the table of roles.
    pub slot: usize,
    /// Its superblock.
    pub superblock: Superblock,
    /// Its copy of the bitmap.
    pub bitmap: Option<(BitmapSuperblock, Bits)>,
}

impl NewMember {
    /// What has to be on the member before its superblock is: sectors, and their bytes.
    pub fn before_superblock(&self) -> Vec<(u64, Vec<u8>)> {
        let mut out = Vec::new();
        if let (Some(sector), Some((bitmap, bits))) = (self.superblock.bitmap_sector(), &self.bitmap) {
            let mut bytes = [&bitmap.encode(), bits.as_bytes()].concat();
            bytes.resize(bytes.len().next_multiple_of(4096), 0xff);
            out.push((sector, bytes));
        }
        if let Some(log) = self.superblock.bad_block_log() {
            out.push((log.start, vec![0xff; usize::from(BAD_BLOCK_SECTORS) * 512]));
        }
        out
    }
}

/// Why there is no such array. Devices are told by their places in the list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NewArrayError {
    /// The list has too few or too many.
    #[error(
        "an array of {needed} devices needs as many disks, or the word `missing` for those to come; {given} were given"
    )]
    Count {
        /// In the list.
        given: usize,
        /// Places.
        needed: usize,
    },
    /// No places, or more than there are roles.
    #[error("an array has 1 to {SLOTS_MAX} devices, spares included, and this one {0}")]
    Devices(usize),
    /// A RAID0 with spares or missing members.
    #[error(
        "a RAID0 has no redundancy, and so neither spares nor missing members; use RAID1, 4, 5, 6 or 10 for these"
    )]
    NotRedundant,
    /// A bitmap for a RAID0.
    #[error("a RAID0 has nothing to resync, and so no bitmap")]
    NoBitmap,
    /// A place with a spare device of `missing`.
    #[error("a spare cannot be missing: leave it out")]
    MissingSpare,
    /// Too many are missing.
    #[error(
        "members {0:?} are missing, and some chunks would be on these alone: give a disk for one of them"
    )]
    Missing(Vec<u16>),
    /// More are missing than its parity makes up for.
    #[error(
        "members {missing:?} are missing, and the parity of a {level} makes up for {parities}: give disks for the others"
    )]
    MissingOfParity {
        /// Places.
        missing: Vec<u16>,
        /// Level.
        level: Level,
        /// How many may be missing.
        parities: u16,
    },
    /// Too few or too many for a level with parity.
    #[error(
        "a {level} has {least} to {most} devices (--raid-devices), and this one {found}: give others, or another --level"
    )]
    ParityDevices {
        /// Level.
        level: Level,
        /// Places.
        found: u16,
        /// The fewest.
        least: u16,
        /// The most.
        most: u16,
    },
    /// A chunk that the level cannot have.
    #[error("a chunk of {sectors} sectors of 512 bytes cannot be: {expected}")]
    Chunk {
        /// The chunk.
        sectors: u32,
        /// What can be.
        expected: &'static str,
    },
    /// The layout is for another number of disks, or is not possible.
    #[error("the layout is not possible: {0}")]
    Layout(String),
    /// A device without room.
    #[error(
        "it has {sectors} sectors of 512 bytes, and {needed} are needed for metadata and the least of data"
    )]
    TooSmall {
        /// Which.
        slot: usize,
        /// Its size.
        sectors: u64,
        /// The least.
        needed: u64,
    },
    /// A size that a device does not have.
    #[error("it has room for {room} sectors of data, and the size that was asked for is {size}")]
    Size {
        /// Which.
        slot: usize,
        /// Sectors for data.
        room: u64,
        /// What was asked for.
        size: u64,
    },
    /// A size below a chunk.
    #[error("{0} sectors of each member are less than a chunk, or than the layout needs")]
    SmallSize(u64),
    /// A start of the data that cannot be.
    #[error("data cannot begin at sector {found}: expected {expected}")]
    DataOffset {
        /// What was asked for.
        found: u64,
        /// What can be.
        expected: String,
    },
    /// Members without room for a bitmap.
    #[error("members of {0} sectors have no room for a bitmap; make the array without one (--bitmap none)")]
    BitmapRoom(u64),
    /// What came out cannot be: a size beyond all limits.
    #[error(transparent)]
    Refused(#[from] Box<FormatError>),
}

impl NewArrayError {
    /// The device that it is about, where it is about one.
    pub fn slot(&self) -> Option<usize> {
        match self {
            NewArrayError::TooSmall { slot, .. } | NewArrayError::Size { slot, .. } => Some(*slot),
            _ => None,
        }
    }

    /// Whether there can be no such array on any devices.
    pub fn is_of_the_array(&self) -> bool {
        use NewArrayError::{BitmapRoom, Refused, Size, TooSmall};
        !matches!(self, TooSmall { .. } | Size { .. } | BitmapRoom(_) | Refused(_))
    }
}

impl Shape {
    /// Its level.
    pub fn level(&self) -> Level {
        match self {
            Shape::Raid0 { .. } => Level::Raid0,
            Shape::Raid1 => Level::Raid1,
            Shape::Raid10 { .. } => Level::Raid10,
            Shape::Parity { layout, .. } => layout.level(),
        }
    }

    /// Its chunk, sectors; 0 for none.
    pub fn chunk_sectors(&self) -> u32 {
        match self {
            Shape::Raid0 { chunk_sectors }
            | Shape::Raid10 { chunk_sectors, .. }
            | Shape::Parity { chunk_sectors, .. } => *chunk_sectors,
            Shape::Raid1 => 0,
        }
    }

    fn check(&self, raid_disks: u16) -> Result<(), NewArrayError> {
        let wrong = |sectors, expected| Err(NewArrayError::Chunk { sectors, expected });
        let of_other = |disks: u32| {
            let why = format!("it is one for {disks} devices, and there are {raid_disks}");
            Err(NewArrayError::Layout(why))
        };
        match self {
            Shape::Raid1 => Ok(()),
            Shape::Raid0 { chunk_sectors: 0 } => wrong(0, "expected multiples of 4 KiB"),
            Shape::Raid0 { chunk_sectors } if !u64::from(*chunk_sectors).is_multiple_of(ALIGNMENT) => {
                wrong(*chunk_sectors, "expected multiples of 4 KiB")
            }
            Shape::Raid10 { chunk_sectors, .. } | Shape::Parity { chunk_sectors, .. }
                if !chunk_sectors.is_power_of_two() || *chunk_sectors < RAID10_CHUNK_SECTORS_MIN =>
            {
                wrong(*chunk_sectors, "expected a power of two of at least 4 KiB")
            }
            Shape::Raid10 { layout, .. } if layout.disks() != u32::from(raid_disks) => {
                of_other(layout.disks())
            }
            Shape::Parity { layout, .. } if layout.disks() != raid_disks => of_other(layout.disks().into()),
            Shape::Parity { layout, .. } => check_parity_devices(layout.level(), raid_disks),
            Shape::Raid0 { .. } | Shape::Raid10 { .. } => Ok(()),
        }
    }
}

/// Whether a new array of a level with parity can have so many members.
///
/// # Errors
///
/// Too few, or too many.
pub fn check_parity_devices(level: Level, raid_disks: u16) -> Result<(), NewArrayError> {
    let range = ParityLayout::members_of_new(level);
    if range.contains(&raid_disks) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    Err(NewArrayError::ParityDevices { level, found: raid_disks, least, most })
}

impl NewArray {
    /// What each device gets: first those in their places, then spares; `None` stands for a member that is missing.
    ///
    /// # Errors
    ///
    /// There can be no such array on these devices: [`NewArrayError`].
    pub fn lay_out(&self, devices: &[Option<NewDevice>]) -> Result<Vec<NewMember>, NewArrayError> {
        self.check(devices)?;
        let data_offset = self.data_offset(devices)?;
        let rooms = self.rooms(devices, data_offset)?;
        let size = self.member_size(&rooms)?;
        let is_in_sync = self.is_in_sync(devices);
        let bitmap = self.bitmap(size, is_in_sync)?;
        let roles = self.roles(devices);
        let mut members = Vec::with_capacity(devices.len());
        for (slot, device) in devices.iter().enumerate() {
            let Some(device) = device else { continue };
            let mut superblock = self.superblock(device, size, data_offset, is_in_sync);
            superblock.dev_number = u32::try_from(slot).expect("at most SLOTS_MAX devices");
            superblock.roles.clone_from(&roles);
            self.place_regions(&mut superblock, device, bitmap.as_ref());
            members.push(NewMember { slot, superblock, bitmap: bitmap.clone() });
        }
        self.state_raid0_layout(&mut members);
        for (member, device) in members.iter().zip(devices.iter().flatten()) {
            member.superblock.check(device.sectors).map_err(Box::new)?;
        }
        Ok(members)
    }

    fn check(&self, devices: &[Option<NewDevice>]) -> Result<(), NewArrayError> {
        let places = usize::from(self.raid_disks);
        if devices.is_empty() || places == 0 || devices.len() > index(SLOTS_MAX) {
            return Err(NewArrayError::Devices(devices.len()));
        }
        let Some((members, spares)) = devices.split_at_checked(places) else {
            return Err(NewArrayError::Count { given: devices.len(), needed: places });
        };
        if spares.iter().any(Option::is_none) {
            return Err(NewArrayError::MissingSpare);
        }
        let missing: Vec<u16> =
            (0..).zip(members).filter(|(_, member)| member.is_none()).map(|(place, _)| place).collect();
        let is_redundant = self.shape.level() != Level::Raid0;
        if !is_redundant && (!spares.is_empty() || !missing.is_empty()) {
            return Err(NewArrayError::NotRedundant);
        }
        if !is_redundant && self.bitmap == BitmapChoice::Internal {
            return Err(NewArrayError::NoBitmap);
        }
        self.shape.check(self.raid_disks)?;
        let is_there = |place: u32| !missing.iter().any(|gone| u32::from(*gone) == place);
        let has_all = match &self.shape {
            Shape::Raid10 { layout, .. } => layout.has_every_chunk(is_there),
            Shape::Parity { layout, .. } if missing.len() > layout.parities().into() => {
                let (level, parities) = (layout.level(), layout.parities());
                return Err(NewArrayError::MissingOfParity { missing, level, parities });
            }
            Shape::Parity { .. } => true,
            Shape::Raid0 { .. } | Shape::Raid1 => missing.len() < places,
        };
        if has_all { Ok(()) } else { Err(NewArrayError::Missing(missing)) }
    }

    /// Where the data begins on all members.
    fn data_offset(&self, devices: &[Option<NewDevice>]) -> Result<u64, NewArrayError> {
        let wrong = |found, expected| Err(NewArrayError::DataOffset { found, expected });
        let least = self.minor.sector(MIB).unwrap_or(0) + 2 * ALIGNMENT;
        match (self.minor, self.data_offset) {
            (Minor::V1_0, Some(found)) if found > 0 => {
                wrong(found, "0, as the superblock lies behind the data in version 1.0".to_owned())
            }
            (Minor::V1_0, _) => Ok(0),
            (_, Some(found)) if found < least || !found.is_multiple_of(ALIGNMENT) => {
                wrong(found, format!("a multiple of {ALIGNMENT} from {least} on"))
            }
            (_, Some(found)) => Ok(found),
            (_, None) => {
                let first = devices.iter().flatten().next().map_or(0, |device| device.sectors);
                Ok(usual_data_offset(first, self.shape.chunk_sectors().into()))
            }
        }
    }

    /// Sectors for data on each device that is there, by slot.
    fn rooms(
        &self,
        devices: &[Option<NewDevice>],
        data_offset: u64,
    ) -> Result<Vec<(usize, u64)>, NewArrayError> {
        let least = match self.shape.level() {
            Level::Raid1 if self.size.is_some() => SIZE_MIN,
            Level::Raid1 => RAID1_UNIT,
            _ => self.shape.chunk_sectors().into(),
        };
        let there = devices.iter().enumerate().filter_map(|(slot, device)| Some((slot, device.as_ref()?)));
        let room = |(slot, device): (usize, &NewDevice)| {
            let sectors = device.sectors;
            let (behind, overhead) = match self.minor {
                Minor::V1_0 => {
                    let overhead = 16 + u64::from(BAD_BLOCK_SECTORS) + bitmap_room(sectors);
                    (sectors / ALIGNMENT * ALIGNMENT, overhead)
                }
                Minor::V1_1 | Minor::V1_2 => (sectors, data_offset),
            };
            match behind.checked_sub(overhead).filter(|room| *room >= least) {
                Some(room) => Ok((slot, room)),
                None => Err(NewArrayError::TooSmall { slot, sectors, needed: overhead + least }),
            }
        };
        there.map(room).collect()
    }

    /// Sectors of each member that the array uses; 0 for a RAID0.
    fn member_size(&self, rooms: &[(usize, u64)]) -> Result<u64, NewArrayError> {
        let chunk = u64::from(self.shape.chunk_sectors()).max(2);
        let least = rooms.iter().map(|(_, room)| *room).min().unwrap_or(0);
        if self.shape.level() == Level::Raid0 {
            return Ok(0);
        }
        let size = match self.size {
            Some(size) => {
                let size = size / chunk * chunk;
                if let Some((slot, room)) = rooms.iter().find(|(_, room)| *room < size) {
                    return Err(NewArrayError::Size { slot: *slot, room: *room, size });
                }
                size
            }
            None if self.shape == Shape::Raid1 => least / RAID1_UNIT * RAID1_UNIT,
            None => least / chunk * chunk,
        };
        let is_enough = match &self.shape {
            Shape::Raid10 { layout, chunk_sectors } => {
                layout
                    .sizes(*chunk_sectors, size)
                    .map_err(|why| NewArrayError::Layout(why.expected))?
                    .array_chunks
                    > 0
            }
            _ => size >= SIZE_MIN,
        };
        if is_enough { Ok(size) } else { Err(NewArrayError::SmallSize(size)) }
    }

    /// The member of a RAID6 that begins as a spare, since another one is missing: its place.
    fn begins_as_spare(&self, devices: &[Option<NewDevice>]) -> Option<usize> {
        let members = devices.get(..self.raid_disks.into())?;
        let missing = members.iter().filter(|member| member.is_none()).count();
        let is_needed = self.shape.level() == Level::Raid6 && missing == 1 && !self.assume_clean;
        members.iter().rposition(Option::is_some).filter(|_| is_needed)
    }

    /// Whether there is nothing to resync.
    fn is_in_sync(&self, devices: &[Option<NewDevice>]) -> bool {
        match &self.shape {
            Shape::Raid0 { .. } => true,
            // As many are missing then as there are parities (of a RAID6, one begins as a spare): whatever the others hold fits.
            Shape::Parity { .. } => self.assume_clean || devices.iter().any(Option::is_none),
            Shape::Raid1 | Shape::Raid10 { .. } => self.assume_clean,
        }
    }

    /// The bitmap, where there is one.
    fn bitmap(&self, size: u64, is_in_sync: bool) -> Result<Option<(BitmapSuperblock, Bits)>, NewArrayError> {
        let has_one = match self.bitmap {
            BitmapChoice::Auto => size > LARGE,
            BitmapChoice::Internal => true,
            BitmapChoice::None => false,
        };
        if !has_one {
            return Ok(None);
        }
        let sync_size = match &self.shape {
            Shape::Raid10 { layout, chunk_sectors } => {
                layout
                    .sizes(*chunk_sectors, size)
                    .map_err(|why| NewArrayError::Layout(why.expected))?
                    .array_sectors
            }
            _ => size,
        };
        let room = bitmap_room(size);
        if room == 0 {
            return Err(NewArrayError::BitmapRoom(size));
        }
        let chunk = bitmap_chunk(sync_size, room).ok_or(NewArrayError::BitmapRoom(size))?;
        let bitmap = BitmapSuperblock::new(self.uuid, sync_size, chunk);
        bitmap.check(0).map_err(Box::new)?;
        let chunks = bitmap.chunks();
        let bits = if is_in_sync { Bits::clean(chunks) } else { Bits::dirty(chunks) };
        Ok(Some((bitmap, bits)))
    }

    fn roles(&self, devices: &[Option<NewDevice>]) -> Vec<Role> {
        let used = HEAD_BYTES + 2 * devices.len();
        let slots = (used.next_multiple_of(index(512u32)) - HEAD_BYTES) / 2;
        let mut roles = vec![Role::Spare; slots.min(index(SLOTS_MAX))];
        let spare = self.begins_as_spare(devices);
        for ((place, role), device) in (0..self.raid_disks).zip(&mut roles).zip(devices) {
            if device.is_some() && spare != Some(place.into()) {
                *role = Role::Active(place);
            }
        }
        roles
    }

    /// The superblock of a device, without what differs from slot to slot and without regions.
    fn superblock(&self, device: &NewDevice, size: u64, data_offset: u64, is_in_sync: bool) -> Superblock {
        let level = self.shape.level();
        let layout = match &self.shape {
            Shape::Raid0 { .. } => raid0::Raid0Layout::Original.encode(),
            Shape::Raid1 => 0,
            Shape::Raid10 { layout, .. } => layout.encode(),
            Shape::Parity { layout, .. } => layout.encode(),
        };
        Superblock {
            minor: self.minor,
            features: Features::default(),
            set_uuid: self.uuid,
            set_name: self.name,
            ctime: self.ctime,
            level,
            layout,
            size,
            chunk_sectors: self.shape.chunk_sectors(),
            raid_disks: self.raid_disks.into(),
            bitmap_offset: 0,
            reshape: Reshape::default(),
            data_offset,
            data_size: device.sectors.saturating_sub(data_offset),
            super_offset: self.minor.sector(device.sectors).unwrap_or(0),
            recovery_offset: 0,
            dev_number: 0,
            corrected_errors: 0,
            device_uuid: device.uuid,
            devflags: 0,
            bblog_shift: 0,
            bblog_sectors: 0,
            bblog_offset: 0,
            utime: self.ctime,
            events: 0,
            resync_offset: if is_in_sync { IN_SYNC } else { 0 },
            logical_block_size: 0,
            roles: Vec::new(),
            reserved: [0; 32],
        }
    }

    /// Gives the bitmap and the list of bad blocks their places, and the data what they leave.
    fn place_regions(
        &self,
        superblock: &mut Superblock,
        device: &NewDevice,
        bitmap: Option<&(BitmapSuperblock, Bits)>,
    ) {
        let log = u64::from(BAD_BLOCK_SECTORS);
        let needed = bitmap.map(|(bitmap, _)| bitmap.disk_sectors().next_multiple_of(ALIGNMENT));
        let room = needed.unwrap_or_else(|| bitmap_room(superblock.size));
        let signed = |sectors: u64| i32::try_from(sectors).expect("a bitmap of new arrays is below 1 MiB");
        if bitmap.is_some() {
            superblock.features = Features::BITMAP;
        }
        match self.minor {
            Minor::V1_0 => {
                let behind = room + log;
                let room_left = superblock.super_offset.saturating_sub(superblock.size);
                superblock.data_size = superblock.super_offset.saturating_sub(behind.min(room_left));
                superblock.bitmap_offset = needed.map_or(0, |needed| -signed(needed + log));
                superblock.bblog_offset = -signed(log);
                superblock.bblog_sectors = BAD_BLOCK_SECTORS;
            }
            Minor::V1_1 | Minor::V1_2 => {
                superblock.data_size = device.sectors.saturating_sub(superblock.data_offset);
                superblock.bitmap_offset = needed.map_or(0, |_| signed(ALIGNMENT));
                let behind_superblock = superblock.data_offset.saturating_sub(superblock.super_offset);
                let place = ALIGNMENT + room;
                if behind_superblock >= place + log {
                    superblock.bblog_offset = signed(place);
                    superblock.bblog_sectors = BAD_BLOCK_SECTORS;
                } else if bitmap.is_none() && behind_superblock >= ALIGNMENT + log {
                    superblock.bblog_offset = signed((behind_superblock - log).min(place));
                    superblock.bblog_sectors = BAD_BLOCK_SECTORS;
                }
            }
        }
    }

    /// A RAID0 of unequal members says by which rule its later zones are striped. One of equal members does not, so that
    /// kernels before 5.4, which do not know the feature, take it as well.
    fn state_raid0_layout(&self, members: &mut [NewMember]) {
        let Shape::Raid0 { chunk_sectors } = self.shape else { return };
        let chunks = |member: &NewMember| member.superblock.data_size / u64::from(chunk_sectors);
        let are_equal = members.windows(2).all(|pair| chunks(&pair[0]) == chunks(&pair[1]));
        if !are_equal {
            members.iter_mut().for_each(|member| member.superblock.features = Features::RAID0_LAYOUT);
        }
    }
}

/// Where data begins behind a superblock 1.1 or 1.2 on a device of so many sectors.
fn usual_data_offset(device_sectors: u64, chunk_sectors: u64) -> u64 {
    let mut headroom = 128 * MIB;
    while headroom * 1024 > device_sectors && headroom > 0 && headroom / 2 >= chunk_sectors * 2 {
        headroom /= 2;
    }
    (24 + bitmap_room(device_sectors) + headroom).next_multiple_of(MIB)
}

/// Sectors that are kept for a bitmap on a member of so many.
fn bitmap_room(sectors: u64) -> u64 {
    const GIB: u64 = 1 << 21;
    match sectors {
        0..128 => 0,
        _ if sectors - 128 >= 200 * GIB => 256,
        _ if sectors - 8 > 8 * GIB => 128,
        _ => 8,
    }
}

/// What a bit covers, bytes, where there are so many sectors of room.
fn bitmap_chunk(sync_sectors: u64, room: u64) -> Option<u32> {
    let most = (room * SECTOR_BYTES - length(BITMAP_SUPERBLOCK_BYTES)) * 8;
    let mut chunk = BITMAP_CHUNK;
    while u128::from(sync_sectors) * 512 / u128::from(chunk) + 1 > u128::from(most) {
        chunk *= 2;
    }
    u32::try_from(chunk).ok()
}

/// Places of a device that a new member's regions and data do not use, and where something old may lie: zero bytes there
/// make sure that nobody takes the device for what it was. At most 1 MiB at either end.
pub fn unused_regions(superblock: &Superblock, device_sectors: u64) -> Vec<Region> {
    let data = superblock.data();
    let head = Region { start: 0, sectors: data.start.min(MIB) };
    let behind = match superblock.minor {
        Minor::V1_0 => data.end(),
        Minor::V1_1 | Minor::V1_2 => device_sectors,
    };
    let start = behind.max(device_sectors.saturating_sub(MIB));
    let tail = Region { start, sectors: device_sectors.saturating_sub(start) };
    [head, tail].into_iter().filter(|region| region.sectors > 0).collect()
}

#[cfg(test)]
mod tests;
