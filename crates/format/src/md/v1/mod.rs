//! Superblocks 1.0, 1.1 and 1.2: one structure in three places.
//!
//! Little-endian. 256 bytes, and a u16 for each slot of the table of roles; at most 4096 bytes in all.
//!
//! | off | type | field | | off | type | field |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 0 | u32 | magic | | 136 | u64 | data_size |
//! | 4 | u32 | major version, 1 | | 144 | u64 | super_offset |
//! | 8 | u32 | feature_map | | 152 | u64 | recovery_offset |
//! | 12 | u32 | zero | | 160 | u32 | dev_number |
//! | 16 | u8 × 16 | set_uuid | | 164 | u32 | corrected read errors |
//! | 32 | u8 × 32 | set_name | | 168 | u8 × 16 | device_uuid |
//! | 64 | u64 | ctime | | 184 | u8 | devflags |
//! | 72 | i32 | level | | 185 | u8 | bblog_shift |
//! | 76 | u32 | layout | | 186 | u16 | bblog_size |
//! | 80 | u64 | size | | 188 | i32 | bblog_offset |
//! | 88 | u32 | chunk | | 192 | u64 | utime |
//! | 92 | u32 | raid_disks | | 200 | u64 | events |
//! | 96 | i32 | bitmap_offset | | 208 | u64 | resync_offset |
//! | 100 | u32 | new_level | | 216 | u32 | checksum |
//! | 104 | u64 | reshape_position | | 220 | u32 | max_dev |
//! | 112 | i32 | delta_disks | | 224 | u32 | logical_block_size |
//! | 116 | u32 | new_layout | | 228 | u8 × 28 | zero |
//! | 120 | u32 | new_chunk | | 256 | u16 × max_dev | roles |
//! | 124 | i32 | new_offset | | | | |
//! | 128 | u64 | data_offset | | | | |
//!
//! The checksum is over 256 + 2·max_dev bytes with its own field as zero. What is named zero is kept as it was found, and
//! keeps us from writing: a newer kernel may mean something by it.

mod check;
mod feature;
#[cfg(test)]
mod tests;

pub use check::{Access, Minor, Region};
pub use feature::Features;

use super::level::Shape;
use super::{IN_SYNC, Level, MAGIC, ParityLayout, Raid10Layout, Role, SetName, Time, Uuid, checksum};
use crate::bytes::{array, index, length, put, u16_le, u32_le, u64_le};
use crate::{FormatError, SECTOR_BYTES};

/// Bytes before the table of roles.
pub const HEAD_BYTES: usize = 256;

/// Most bytes that a superblock has, and the bytes to read where one may be.
pub const SUPERBLOCK_BYTES_MAX: usize = 4096;

/// Most slots of the table of roles.
pub const SLOTS_MAX: u32 = 1920;

/// Slots that mdadm makes: with them, the superblock fills a sector.
pub const SLOTS_OF_MDADM: usize = 128;

const PLACE: &str = "md superblock";
const CHECKSUM_AT: usize = 216;

/// The reshape fields: where an array is on its way to another shape. Zero where it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Reshape {
    /// The level to come.
    pub new_level: i32,
    /// Sectors of the array that have the new shape.
    pub position: u64,
    /// Disks more (or less) than before.
    pub delta_disks: i32,
    /// The layout to come.
    pub new_layout: u32,
    /// The chunk to come, sectors.
    pub new_chunk_sectors: u32,
    /// By how much the data moves, sectors.
    pub new_offset: i32,
}

/// A 1.x superblock of one member.
///
/// [`Superblock::decode`] gives only what [`Superblock::check`] finds nothing wrong with. Fields can be changed freely;
/// who changes others than those that live (`events`, `utime`, `resync_offset`, `recovery_offset`, roles, `features`)
/// calls `check` before writing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Which of the three places it is at.
    pub minor: Minor,
    /// What it makes use of.
    pub features: Features,
    /// The array.
    pub set_uuid: Uuid,
    /// Its name.
    pub set_name: SetName,
    /// When the array was created.
    pub ctime: Time,
    /// Its level.
    pub level: Level,
    /// Its layout, in its level's own terms; a RAID0's only with [`Features::RAID0_LAYOUT`].
    pub layout: u32,
    /// Sectors of each member that the array uses; a RAID0 has 0, or ignores it.
    pub size: u64,
    /// Chunk, sectors. 0 for levels without.
    pub chunk_sectors: u32,
    /// Places of the array.
    pub raid_disks: u32,
    /// Where the bitmap is, sectors from the superblock. Means something only with [`Features::BITMAP`]; its bytes are those of
    /// [`Superblock::partial_parity_log`], where there is one.
    pub bitmap_offset: i32,
    /// The shape to come.
    pub reshape: Reshape,
    /// Where the data starts, sectors.
    pub data_offset: u64,
    /// Sectors that there are for data.
    pub data_size: u64,
    /// Where the superblock itself is, sectors.
    pub super_offset: u64,
    /// Means something only with [`Features::RECOVERY_OFFSET`]: sectors from `data_offset` that are in sync. In the
    /// journal's superblock, its tail.
    pub recovery_offset: u64,
    /// This device's slot in `roles`.
    pub dev_number: u32,
    /// Read errors that were mended by writing.
    pub corrected_errors: u32,
    /// This device.
    pub device_uuid: Uuid,
    /// Bit 0 write-mostly, bit 1 fail fast.
    pub devflags: u8,
    /// Unit of the list of bad blocks: sectors, as a power of two.
    pub bblog_shift: u8,
    /// Room of that list, sectors.
    pub bblog_sectors: u16,
    /// Where it is, sectors from the superblock; 0 where there is none.
    pub bblog_offset: i32,
    /// When this was last written.
    pub utime: Time,
    /// Raised by one at each change: the member with the most is right.
    pub events: u64,
    /// Sectors of the array that are known to be in sync, or [`IN_SYNC`].
    pub resync_offset: u64,
    /// Logical block size of the array, bytes, where the kernel keeps it (from the end of 2025); otherwise 0.
    pub logical_block_size: u32,
    /// What each device is: `max_dev` slots.
    pub roles: Vec<Role>,
    /// Bytes 12-15 and 228-255: zero in all versions that are known.
    pub reserved: [u8; 32],
}

impl Superblock {
    /// Devflag: reads avoid this member.
    pub const WRITE_MOSTLY: u8 = 1;
    /// Devflag: errors of this member are not tried again.
    pub const FAILFAST: u8 = 2;

    /// Whether the bytes start like one.
    pub fn is_at(bytes: &[u8]) -> bool {
        bytes.len() >= 8 && u32_le(bytes, 0) == MAGIC && u32_le(bytes, 4) == 1
    }

    /// Takes apart what was read at [`Minor::sector`] of a device of `device_sectors`: [`SUPERBLOCK_BYTES_MAX`] bytes, or
    /// what there is of them.
    ///
    /// # Errors
    ///
    /// No superblock, a wrong checksum, features that are not known, or [`Superblock::check`].
    pub fn decode(bytes: &[u8], minor: Minor, device_sectors: u64) -> Result<Self, FormatError> {
        let superblock = Self::decode_unchecked(bytes, minor, device_sectors)?;
        superblock.check(device_sectors)?;
        Ok(superblock)
    }

    /// As [`Superblock::decode`], without [`Superblock::check`]: one that is intact, whether or not it can be true on this device.
    pub(crate) fn decode_unchecked(
        bytes: &[u8],
        minor: Minor,
        device_sectors: u64,
    ) -> Result<Self, FormatError> {
        let wrong = Wrong { offset: minor.sector(device_sectors).unwrap_or(0).saturating_mul(SECTOR_BYTES) };
        if bytes.len() < HEAD_BYTES {
            return Err(wrong.invalid("size", length(bytes.len()), format!("{HEAD_BYTES} bytes or more")));
        }
        let (magic, major) = (u32_le(bytes, 0), u32_le(bytes, 4));
        if magic != MAGIC {
            return Err(wrong.invalid("magic", format!("{magic:#010x}"), format!("{MAGIC:#010x}")));
        }
        if major != 1 {
            return Err(wrong.invalid("major version", major, 1));
        }
        let slots = u32_le(bytes, 220);
        if slots > SLOTS_MAX {
            return Err(wrong.limit("max_dev", slots, format!("at most {SLOTS_MAX}")));
        }
        let Some(whole) = bytes.get(..HEAD_BYTES + 2 * index(slots)) else {
            let expected = format!("{} slots, which were read", (bytes.len() - HEAD_BYTES) / 2);
            return Err(wrong.invalid("max_dev", slots, expected));
        };
        let (stored, computed) = (u32_le(whole, CHECKSUM_AT), sum(whole));
        if stored != computed {
            return Err(wrong.invalid("checksum", format!("{stored:#010x}"), format!("{computed:#010x}")));
        }
        Ok(Self::take_apart(whole, minor))
    }

    fn take_apart(bytes: &[u8], minor: Minor) -> Self {
        let i32_le = |at| i32::from_le_bytes(array(bytes, at));
        let (roles, _) = bytes[HEAD_BYTES..].as_chunks::<2>();
        let mut reserved = [0; 32];
        reserved[..4].copy_from_slice(&bytes[12..16]);
        reserved[4..].copy_from_slice(&bytes[228..256]);
        Self {
            minor,
            features: Features(u32_le(bytes, 8)),
            set_uuid: Uuid(array(bytes, 16)),
            set_name: SetName(array(bytes, 32)),
            ctime: Time(u64_le(bytes, 64)),
            level: i32_le(72).into(),
            layout: u32_le(bytes, 76),
            size: u64_le(bytes, 80),
            chunk_sectors: u32_le(bytes, 88),
            raid_disks: u32_le(bytes, 92),
            bitmap_offset: i32_le(96),
            reshape: Reshape {
                new_level: i32_le(100),
                position: u64_le(bytes, 104),
                delta_disks: i32_le(112),
                new_layout: u32_le(bytes, 116),
                new_chunk_sectors: u32_le(bytes, 120),
                new_offset: i32_le(124),
            },
            data_offset: u64_le(bytes, 128),
            data_size: u64_le(bytes, 136),
            super_offset: u64_le(bytes, 144),
            recovery_offset: u64_le(bytes, 152),
            dev_number: u32_le(bytes, 160),
            corrected_errors: u32_le(bytes, 164),
            device_uuid: Uuid(array(bytes, 168)),
            devflags: bytes[184],
            bblog_shift: bytes[185],
            bblog_sectors: u16_le(bytes, 186),
            bblog_offset: i32_le(188),
            utime: Time(u64_le(bytes, 192)),
            events: u64_le(bytes, 200),
            resync_offset: u64_le(bytes, 208),
            logical_block_size: u32_le(bytes, 224),
            roles: roles.iter().map(|role| u16::from_le_bytes(*role).into()).collect(),
            reserved,
        }
    }

    /// Its bytes, with the checksum.
    ///
    /// # Panics
    ///
    /// More than [`SLOTS_MAX`] roles.
    pub fn encode(&self) -> Vec<u8> {
        let slots = u32::try_from(self.roles.len()).ok().filter(|slots| *slots <= SLOTS_MAX);
        let slots = slots.expect("a superblock has at most SLOTS_MAX roles");
        let mut out = vec![0; self.encoded_bytes()];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 4, &1u32.to_le_bytes());
        put(&mut out, 8, &self.features.0.to_le_bytes());
        put(&mut out, 12, &self.reserved[..4]);
        put(&mut out, 16, &self.set_uuid.0);
        put(&mut out, 32, &self.set_name.0);
        put(&mut out, 64, &self.ctime.0.to_le_bytes());
        put(&mut out, 72, &i32::from(self.level).to_le_bytes());
        put(&mut out, 76, &self.layout.to_le_bytes());
        put(&mut out, 80, &self.size.to_le_bytes());
        put(&mut out, 88, &self.chunk_sectors.to_le_bytes());
        put(&mut out, 92, &self.raid_disks.to_le_bytes());
        put(&mut out, 96, &self.bitmap_offset.to_le_bytes());
        put(&mut out, 100, &self.reshape.new_level.to_le_bytes());
        put(&mut out, 104, &self.reshape.position.to_le_bytes());
        put(&mut out, 112, &self.reshape.delta_disks.to_le_bytes());
        put(&mut out, 116, &self.reshape.new_layout.to_le_bytes());
        put(&mut out, 120, &self.reshape.new_chunk_sectors.to_le_bytes());
        put(&mut out, 124, &self.reshape.new_offset.to_le_bytes());
        self.put_device(&mut out);
        put(&mut out, 220, &slots.to_le_bytes());
        for (slot, role) in self.roles.iter().enumerate() {
            put(&mut out, HEAD_BYTES + 2 * slot, &u16::from(*role).to_le_bytes());
        }
        let sum = sum(&out);
        put(&mut out, CHECKSUM_AT, &sum.to_le_bytes());
        out
    }

    /// The part that tells of this device, and of the array's state.
    fn put_device(&self, out: &mut [u8]) {
        put(out, 128, &self.data_offset.to_le_bytes());
        put(out, 136, &self.data_size.to_le_bytes());
        put(out, 144, &self.super_offset.to_le_bytes());
        put(out, 152, &self.recovery_offset.to_le_bytes());
        put(out, 160, &self.dev_number.to_le_bytes());
        put(out, 164, &self.corrected_errors.to_le_bytes());
        put(out, 168, &self.device_uuid.0);
        put(out, 184, &[self.devflags, self.bblog_shift]);
        put(out, 186, &self.bblog_sectors.to_le_bytes());
        put(out, 188, &self.bblog_offset.to_le_bytes());
        put(out, 192, &self.utime.0.to_le_bytes());
        put(out, 200, &self.events.to_le_bytes());
        put(out, 208, &self.resync_offset.to_le_bytes());
        put(out, 224, &self.logical_block_size.to_le_bytes());
        put(out, 228, &self.reserved[4..]);
    }

    /// Its bytes with zeros up to a whole number of blocks of `block_bytes`, as they can be written: at most
    /// [`SUPERBLOCK_BYTES_MAX`] bytes, all of which belong to the superblock.
    ///
    /// # Panics
    ///
    /// As [`Superblock::encode`], or a block size that is no power of two from 512 to 4096.
    pub fn encode_blocks(&self, block_bytes: u32) -> Vec<u8> {
        assert!(
            block_bytes.is_power_of_two() && (512..=4096).contains(&block_bytes),
            "blocks of {block_bytes} bytes"
        );
        let mut out = self.encode();
        out.resize(out.len().next_multiple_of(index(block_bytes)), 0);
        out
    }

    /// Length of [`Superblock::encode`], bytes.
    pub fn encoded_bytes(&self) -> usize {
        HEAD_BYTES + 2 * self.roles.len()
    }

    /// Checksum that the superblock has when it is written.
    pub fn checksum(&self) -> u32 {
        u32_le(&self.encode(), CHECKSUM_AT)
    }

    /// What this device is. One whose number has no slot is a spare, as for the kernel.
    pub fn role(&self) -> Role {
        self.roles.get(index(self.dev_number)).copied().unwrap_or(Role::Spare)
    }

    /// Whether the array was stopped, or was idle, when this was written: no resync is needed.
    pub fn is_clean(&self) -> bool {
        !self.level.is_redundant() || self.resync_offset == IN_SYNC
    }

    /// Sectors from the start of the data that are in sync on this member; [`IN_SYNC`] where all are.
    pub fn recovered_sectors(&self) -> u64 {
        let counts = self.features.has(Features::RECOVERY_OFFSET) && self.role() != Role::Journal;
        if counts { self.recovery_offset } else { IN_SYNC }
    }

    /// Sectors of this member that hold data of the array, before they are rounded to chunks.
    pub fn member_sectors(&self) -> u64 {
        if self.level.has_equal_members() { self.size } else { self.data_size }
    }

    /// The layout of a RAID10.
    ///
    /// # Errors
    ///
    /// The layout word is none for this number of disks; not for a superblock that was decoded.
    pub fn raid10_layout(&self) -> Result<Raid10Layout, FormatError> {
        self.shape().raid10()
    }

    /// Its layout, where its level has parity.
    ///
    /// # Errors
    ///
    /// It is one that is not known, or that so many members cannot have.
    pub fn parity_layout(&self) -> Result<ParityLayout, FormatError> {
        self.shape().parity()
    }

    /// Size of the array, sectors, where one superblock tells it: all but RAID0 and linear.
    pub fn array_sectors(&self) -> Option<u64> {
        match self.level {
            Level::Raid1 => Some(self.size),
            Level::Raid10 => {
                let sizes = self.raid10_layout().ok()?.sizes(self.chunk_sectors, self.size);
                sizes.ok().map(|sizes| sizes.array_sectors)
            }
            level if level.has_parity() => {
                let data = u64::from(self.parity_layout().ok()?.data_disks());
                let chunk = u64::from(self.chunk_sectors);
                (self.size.checked_div(chunk)? * chunk).checked_mul(data)
            }
            _ => None,
        }
    }

    /// What [`super::bitmap`] has a bit for each chunk of, sectors: a RAID10's array, of other levels a member.
    pub fn sync_sectors(&self) -> Option<u64> {
        if self.level.has_parity() { Some(self.size) } else { self.array_sectors() }
    }

    fn shape(&self) -> Shape {
        Shape {
            place: PLACE,
            offset: self.offset(),
            level: self.level,
            layout: self.layout,
            chunk_sectors: self.chunk_sectors,
            raid_disks: self.raid_disks,
        }
    }

    /// Where it is, bytes.
    fn offset(&self) -> u64 {
        self.super_offset.saturating_mul(SECTOR_BYTES)
    }
}

/// Mends the checksum of bytes that start like a superblock, after they were changed. Not where `max_dev` is beyond
/// the bytes.
pub fn fix_checksum(bytes: &mut [u8]) {
    if bytes.len() < HEAD_BYTES {
        return;
    }
    let slots = usize::try_from(u32_le(bytes, 220)).unwrap_or(usize::MAX);
    let end = slots.checked_mul(2).and_then(|roles| roles.checked_add(HEAD_BYTES));
    if let Some(whole) = end.and_then(|end| bytes.get_mut(..end)) {
        let sum = sum(whole);
        put(whole, CHECKSUM_AT, &sum.to_le_bytes());
    }
}

/// The checksum of a whole superblock, whatever its field holds.
fn sum(whole: &[u8]) -> u32 {
    let mut copy = whole.to_vec();
    put(&mut copy, CHECKSUM_AT, &[0; 4]);
    checksum::v1(&copy)
}

/// Errors of a superblock at a place.
struct Wrong {
    offset: u64,
}

impl Wrong {
    fn invalid(
        &self,
        field: &'static str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> FormatError {
        FormatError::invalid(PLACE, self.offset, field, found, expected)
    }

    fn limit(
        &self,
        field: &'static str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> FormatError {
        FormatError::limit(PLACE, self.offset, field, found, expected)
    }
}
