//! Superblocks 0.90, which are only read: arrays from before 2010, and those that a boot loader had to understand.
//!
//! 4096 bytes, 64 to 128 KiB before the end of the device, as 1024 words of 32 bits in the byte order of the machine that
//! wrote it, which is told from the magic number. Words:
//!
//! | word | field | | word | field |
//! | --- | --- | --- | --- | --- |
//! | 0 | magic | | 32 | utime |
//! | 1-3 | version 0, 90, patch | | 33 | state: bit 0 clean, bit 8 bitmap |
//! | 9 | disks in all | | 34-37 | disks: active, working, failed, spare |
//! | 5, 13-15 | uuid | | 38 | checksum |
//! | 6 | ctime | | 39-40 | events: low and high; high and low in a big-endian one |
//! | 7 | level | | 41-42 | events at the checkpoint, likewise |
//! | 8 | size of each member, KiB | | 43 | checkpoint of the resync, sectors |
//! | 10 | raid_disks | | 64 | layout |
//! | 11 | md minor | | 65 | chunk, bytes |
//!
//! From word 128 on a table of [`DISKS_MAX`] descriptors of 32 words: number, major, minor, place, state; this disk's own is
//! at word 992. Data starts at sector 0. Version 0.91 is an array in the middle of a reshape, and refused.
//!
//! (1) A superblock that was decoded has a good checksum, its data lies before it, and its chunk and layout are some that its
//! level can have. (2) A partition that ends with its disk shows one superblock at both: whose it is, the sizes say
//! ([`Superblock::member_sectors`]), and the partition is to be preferred.

use super::level::Shape;
use super::v1::Region;
use super::{IN_SYNC, Level, MAGIC, ParityLayout, Raid10Layout, Role, Uuid, checksum, unsupported};
use crate::bytes::length;
use crate::{FormatError, SECTOR_BYTES};

/// Bytes of a superblock.
pub const SUPERBLOCK_BYTES: usize = 4096;

/// Descriptors in a superblock.
pub const DISKS_MAX: u32 = 27;

const PLACE: &str = "md superblock 0.90";
/// Sectors that the end of the device is rounded down to, and that are kept for the superblock.
const RESERVED_SECTORS: u64 = 128;
const WORDS: usize = 1024;
const CHECKSUM_WORD: usize = 38;
const DESCRIPTORS: usize = 128;
const DESCRIPTOR_WORDS: usize = 32;
const THIS_DISK: usize = 992;

/// Byte order of the machine that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// As PCs do.
    Little,
    /// As old Macs and Suns do.
    Big,
}

/// What it says of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Descriptor {
    /// Its number in the table.
    pub number: u32,
    /// Its block device's numbers when the superblock was written.
    pub device: (u32, u32),
    /// Its place in the array.
    pub raid_disk: u32,
    /// Bit 0 faulty, 1 active, 2 in sync, 3 removed, 9 write-mostly.
    pub state: u32,
}

impl Descriptor {
    const FAULTY: u32 = 1;
    const ACTIVE_IN_SYNC: u32 = 1 << 1 | 1 << 2;
    const REMOVED: u32 = 1 << 3;
    const WRITE_MOSTLY: u32 = 1 << 9;

    /// What the disk is, in an array of so many places.
    pub fn role(&self, raid_disks: u32) -> Role {
        let place = u16::try_from(self.raid_disk).ok().filter(|_| self.raid_disk < raid_disks);
        let is_active = self.state & Self::ACTIVE_IN_SYNC == Self::ACTIVE_IN_SYNC;
        match place {
            _ if self.state & (Self::FAULTY | Self::REMOVED) != 0 => Role::Faulty,
            Some(place) if is_active => Role::Active(place),
            _ => Role::Spare,
        }
    }

    /// Whether reads avoid it.
    pub fn is_write_mostly(&self) -> bool {
        self.state & Self::WRITE_MOSTLY != 0
    }
}

/// How many disks an array had when its superblock was written, as it says; nothing follows from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DiskCounts {
    /// In all.
    pub total: u32,
    /// In their places.
    pub active: u32,
    /// Not failed.
    pub working: u32,
    /// Failed.
    pub failed: u32,
    /// Waiting for a place.
    pub spare: u32,
}

/// A 0.90 superblock of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Of the machine that wrote it. Data has no byte order: arrays of both kinds can be read.
    pub byte_order: ByteOrder,
    /// The array.
    pub uuid: Uuid,
    /// When it was created, seconds since 1970.
    pub ctime: u32,
    /// Its level.
    pub level: Level,
    /// Used size of each member, KiB; 0 in a RAID0.
    pub size_kib: u32,
    /// Places of the array.
    pub raid_disks: u32,
    /// Its number: `/dev/mdN`.
    pub md_minor: u32,
    /// When this was written, seconds since 1970.
    pub utime: u32,
    /// Bit 0 clean, bit 8 with a bitmap.
    pub state: u32,
    /// Last part of the version: `0.90.03`.
    pub patch_version: u32,
    /// How many disks there were.
    pub counts: DiskCounts,
    /// As it was read.
    pub checksum: u32,
    /// Raised at each change.
    pub events: u64,
    /// `events` when the checkpoint was written.
    pub checkpoint_events: u64,
    /// Where the resync was, sectors; it counts only where its events are the array's.
    pub checkpoint: u32,
    /// Layout, in the level's own terms.
    pub layout: u32,
    /// Chunk, bytes. 0 for levels without.
    pub chunk_bytes: u32,
    /// All descriptors.
    pub disks: [Descriptor; 27],
    /// This disk.
    pub this_disk: Descriptor,
    /// Where it was found, sectors.
    pub super_offset: u64,
}

/// Sector of a 0.90 superblock on a device of so many sectors; none where it has no room.
pub fn sector(device_sectors: u64) -> Option<u64> {
    (device_sectors & !(RESERVED_SECTORS - 1)).checked_sub(RESERVED_SECTORS)
}

impl Superblock {
    const CLEAN: u32 = 1;
    const BITMAP: u32 = 1 << 8;

    /// Whether the bytes start like one, and in which order.
    pub fn is_at(bytes: &[u8]) -> Option<ByteOrder> {
        let head = bytes.get(..8)?;
        let word = |at: usize| head[at..at + 4].try_into().expect("4 bytes");
        [(ByteOrder::Little, u32::from_le_bytes as fn([u8; 4]) -> u32), (ByteOrder::Big, u32::from_be_bytes)]
            .into_iter()
            .find(|(_, read)| read(word(0)) == MAGIC && read(word(4)) == 0)
            .map(|(order, _)| order)
    }

    /// Takes apart the [`SUPERBLOCK_BYTES`] that were read at [`sector`] of a device of `device_sectors`.
    ///
    /// # Errors
    ///
    /// No superblock, a wrong checksum, a reshape under way (0.91), or a number that cannot be.
    pub fn decode(bytes: &[u8], device_sectors: u64) -> Result<Self, FormatError> {
        let superblock = Self::decode_unchecked(bytes, device_sectors)?;
        superblock.check()?;
        Ok(superblock)
    }

    /// As [`Superblock::decode`], of one that is intact, whether or not its numbers can be.
    pub(crate) fn decode_unchecked(bytes: &[u8], device_sectors: u64) -> Result<Self, FormatError> {
        let super_offset = sector(device_sectors);
        let offset = super_offset.unwrap_or(0).saturating_mul(SECTOR_BYTES);
        let invalid = |field, found: String, expected: String| {
            Err(FormatError::invalid(PLACE, offset, field, found, expected))
        };
        let (Some(super_offset), true) = (super_offset, bytes.len() >= SUPERBLOCK_BYTES) else {
            let found = format!("{} bytes on a device of {device_sectors} sectors", bytes.len());
            return invalid("size", found, format!("{SUPERBLOCK_BYTES} bytes of 128 sectors or more"));
        };
        let Some(byte_order) = Self::is_at(bytes) else {
            return invalid(
                "magic",
                format!("{}", bytes[..4].escape_ascii()),
                format!("{MAGIC:#010x}, version 0"),
            );
        };
        let words = words(bytes, byte_order);
        if words[2] == 91 {
            let remedy = "let Linux finish the reshape";
            return Err(unsupported(PLACE, offset, "minor version", "91 (a reshape is under way)", 90)
                .with_remedy(remedy));
        }
        if words[2] != 90 {
            return invalid("minor version", words[2].to_string(), "90".into());
        }
        let (stored, computed) = (words[CHECKSUM_WORD], sum(&words));
        if checksum::to_16_bits(stored) != checksum::to_16_bits(computed) {
            return invalid("checksum", format!("{stored:#010x}"), format!("{computed:#010x}"));
        }
        Ok(Self::take_apart(&words, byte_order, super_offset))
    }

    fn take_apart(words: &[u32; WORDS], byte_order: ByteOrder, super_offset: u64) -> Self {
        let mut uuid = [0; 16];
        for (part, word) in uuid.chunks_exact_mut(4).zip([words[5], words[13], words[14], words[15]]) {
            part.copy_from_slice(&word.to_be_bytes());
        }
        let wide = |at: usize| match byte_order {
            ByteOrder::Little => u64::from(words[at]) | u64::from(words[at + 1]) << 32,
            ByteOrder::Big => u64::from(words[at]) << 32 | u64::from(words[at + 1]),
        };
        let descriptor = |at: usize| Descriptor {
            number: words[at],
            device: (words[at + 1], words[at + 2]),
            raid_disk: words[at + 3],
            state: words[at + 4],
        };
        Self {
            byte_order,
            uuid: Uuid(uuid),
            ctime: words[6],
            level: words[7].cast_signed().into(),
            size_kib: words[8],
            raid_disks: words[10],
            md_minor: words[11],
            utime: words[32],
            state: words[33],
            patch_version: words[3],
            counts: DiskCounts {
                total: words[9],
                active: words[34],
                working: words[35],
                failed: words[36],
                spare: words[37],
            },
            checksum: words[CHECKSUM_WORD],
            events: wide(39),
            checkpoint_events: wide(41),
            checkpoint: words[43],
            layout: words[64],
            chunk_bytes: words[65],
            disks: std::array::from_fn(|n| descriptor(DESCRIPTORS + n * DESCRIPTOR_WORDS)),
            this_disk: descriptor(THIS_DISK),
            super_offset,
        }
    }

    pub(crate) fn check(&self) -> Result<(), FormatError> {
        let offset = self.super_offset.saturating_mul(SECTOR_BYTES);
        self.shape().check()?;
        if self.raid_disks > DISKS_MAX {
            let expected = format!("at most {DISKS_MAX}");
            return Err(FormatError::limit(PLACE, offset, "raid_disks", self.raid_disks, expected));
        }
        if !u64::from(self.chunk_bytes).is_multiple_of(SECTOR_BYTES) {
            let expected = "whole sectors of 512 bytes";
            return Err(FormatError::invalid(PLACE, offset, "chunk", self.chunk_bytes, expected));
        }
        let (used, room) = (self.member_sectors(), self.super_offset);
        if used == 0 || used > room {
            let expected = format!("1 to {room} sectors, which are before the superblock");
            return Err(FormatError::invalid(PLACE, offset, "size", format!("{used} sectors"), expected)
                .with_remedy("it may belong to a partition that ends here, or the disk was cut"));
        }
        Ok(())
    }

    /// Whether its array can be read by us.
    ///
    /// # Errors
    ///
    /// A level that is not supported.
    pub fn supports_reading(&self) -> Result<(), FormatError> {
        self.shape().supports_level()
    }

    /// Where the data is: from the start of the device.
    pub fn data(&self) -> Region {
        Region { start: 0, sectors: self.super_offset }
    }

    /// Sectors of this member that hold data of the array, before they are rounded to chunks.
    pub fn member_sectors(&self) -> u64 {
        if self.level.has_equal_members() { u64::from(self.size_kib) * 2 } else { self.super_offset }
    }

    /// What this device is.
    pub fn role(&self) -> Role {
        self.this_disk.role(self.raid_disks)
    }

    /// Whether the array was stopped, or was idle, when this was written.
    pub fn is_clean(&self) -> bool {
        self.state & Self::CLEAN != 0
    }

    /// Whether there is a bitmap, 8 sectors behind the start of the superblock.
    pub fn bitmap_sector(&self) -> Option<u64> {
        (self.state & Self::BITMAP != 0).then(|| self.super_offset + length(SUPERBLOCK_BYTES) / SECTOR_BYTES)
    }

    /// The array's UUID as its bitmap has it: the words in the byte order of the machine.
    pub fn bitmap_uuid(&self) -> Uuid {
        let mut uuid = self.uuid;
        if self.byte_order == ByteOrder::Little {
            uuid.0.chunks_exact_mut(4).for_each(<[u8]>::reverse);
        }
        uuid
    }

    /// Sectors of the array that are known to be in sync, or [`IN_SYNC`].
    pub fn resync_offset(&self) -> u64 {
        match self.is_clean() {
            true => IN_SYNC,
            false if self.checkpoint_events == self.events => self.checkpoint.into(),
            false => 0,
        }
    }

    /// Chunk, sectors.
    pub fn chunk_sectors(&self) -> u32 {
        self.chunk_bytes / 512
    }

    /// The layout of a RAID10.
    ///
    /// # Errors
    ///
    /// As for [`super::v1::Superblock::raid10_layout`].
    pub fn raid10_layout(&self) -> Result<Raid10Layout, FormatError> {
        self.shape().raid10()
    }

    /// Its layout, where its level has parity.
    ///
    /// # Errors
    ///
    /// As for [`super::v1::Superblock::parity_layout`].
    pub fn parity_layout(&self) -> Result<ParityLayout, FormatError> {
        self.shape().parity()
    }

    fn shape(&self) -> Shape {
        Shape {
            place: PLACE,
            offset: self.super_offset.saturating_mul(SECTOR_BYTES),
            level: self.level,
            layout: self.layout,
            chunk_sectors: self.chunk_sectors(),
            raid_disks: self.raid_disks,
        }
    }
}

/// Mends the checksum of bytes that start like a superblock, after they were changed.
pub fn fix_checksum(bytes: &mut [u8]) {
    let (Some(order), true) = (Superblock::is_at(bytes), bytes.len() >= SUPERBLOCK_BYTES) else { return };
    let sum = sum(&words(bytes, order));
    let sum = match order {
        ByteOrder::Little => sum.to_le_bytes(),
        ByteOrder::Big => sum.to_be_bytes(),
    };
    bytes[CHECKSUM_WORD * 4..CHECKSUM_WORD * 4 + 4].copy_from_slice(&sum);
}

fn words(bytes: &[u8], order: ByteOrder) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = match order {
            ByteOrder::Little => u32::from_le_bytes(*bytes),
            ByteOrder::Big => u32::from_be_bytes(*bytes),
        };
    }
    words
}

/// The checksum of all words, whatever its own holds.
fn sum(words: &[u32; WORDS]) -> u32 {
    let mut copy = *words;
    copy[CHECKSUM_WORD] = 0;
    checksum::v0(&copy)
}

const _: () = assert!(THIS_DISK + DESCRIPTOR_WORDS == WORDS);
const _: () = assert!(SUPERBLOCK_BYTES == WORDS * 4);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::md::find;
    use crate::source::{Piece, Sparse};
    use proptest::prelude::*;

    const DEVICE_SECTORS: u64 = 98_304;

    /// A mirror of two, clean, with these words changed.
    fn with(changes: &[(usize, u32)]) -> Vec<u8> {
        let head = [
            (0, MAGIC),
            (2, 90),
            (5, 0x0102_0304),
            (7, 1),
            (8, 40_000),
            (10, 2),
            (33, 1),
            (39, 17),
            (41, 16),
        ];
        let disks = [(132, 6), (160, 1), (163, 1), (164, 6), (992, 1), (995, 1), (996, 6)];
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        for (word, value) in head.iter().chain(&disks).chain(changes) {
            bytes[word * 4..word * 4 + 4].copy_from_slice(&value.to_le_bytes());
        }
        fix_checksum(&mut bytes);
        bytes
    }

    fn decode(changes: &[(usize, u32)]) -> Result<Superblock, FormatError> {
        Superblock::decode(&with(changes), DEVICE_SECTORS)
    }

    #[test]
    fn a_superblock_is_64_to_128_kib_before_the_end() {
        for (device, expected) in [
            (98_304, Some(98_176)),
            (98_431, Some(98_176)),
            (98_432, Some(98_304)),
            (128, Some(0)),
            (127, None),
        ] {
            assert_eq!(sector(device), expected, "{device}");
        }
    }

    #[test]
    fn what_cannot_be_is_an_error_that_names_the_field() {
        type Changes = &'static [(usize, u32)];
        let cases: [(&str, ErrorKind, Changes); 12] = [
            ("magic", ErrorKind::Invalid, &[(0, 1)]),
            ("magic", ErrorKind::Invalid, &[(1, 1)]),
            ("minor version", ErrorKind::Unsupported, &[(2, 91)]),
            ("minor version", ErrorKind::Invalid, &[(2, 92)]),
            ("raid_disks", ErrorKind::Invalid, &[(10, 0)]),
            ("raid_disks", ErrorKind::Limit, &[(10, 28)]),
            ("raid_disks", ErrorKind::Limit, &[(10, u32::MAX)]),
            ("chunk", ErrorKind::Invalid, &[(7, 0)]),
            ("chunk", ErrorKind::Invalid, &[(7, 0), (65, 1023)]),
            ("layout", ErrorKind::Invalid, &[(7, 10), (65, 4096), (64, 0x103)]),
            ("size", ErrorKind::Invalid, &[(8, 49_089)]),
            ("size", ErrorKind::Invalid, &[(8, 0)]),
        ];
        for (field, kind, changes) in cases {
            let error = decode(changes).expect_err(field);
            assert_eq!((error.field, error.kind), (field, kind), "{error}");
            assert!(error.to_string().starts_with("md superblock 0.90 at 50266112: "), "{error}");
        }
        assert!(decode(&[(8, 49_088)]).is_ok());
        assert!(Superblock::decode(&with(&[])[..4095], DEVICE_SECTORS).is_err());
        assert!(Superblock::decode(&with(&[]), 127).is_err());
    }

    #[test]
    fn a_checkpoint_counts_only_where_its_events_are_the_arrays() {
        assert_eq!(decode(&[]).unwrap().resync_offset(), IN_SYNC);
        assert_eq!(decode(&[(33, 0), (43, 4096)]).unwrap().resync_offset(), 0);
        assert_eq!(decode(&[(33, 0), (41, 17), (43, 4096)]).unwrap().resync_offset(), 4096);
    }

    #[test]
    fn what_a_disk_is_follows_from_its_state_and_place() {
        for (state, place, role) in [
            (6, 1, Role::Active(1)),
            (6, 2, Role::Spare),
            (0, 1, Role::Spare),
            (2, 1, Role::Spare),
            (1, 1, Role::Faulty),
            (7, 1, Role::Faulty),
            (8, 0, Role::Faulty),
            (6 | 1 << 9, 0, Role::Active(0)),
        ] {
            let superblock = decode(&[(995, place), (996, state)]).unwrap();
            assert_eq!(superblock.role(), role, "state {state:#x}, place {place}");
        }
    }

    #[test]
    fn the_superblock_of_a_partition_at_the_end_of_a_disk_shows_at_both_and_fits_only_the_partition() {
        let disk_sectors = DEVICE_SECTORS + 2048;
        let bytes = with(&[(8, 49_088)]);
        let place = |device| sector(device).unwrap() * 512;
        let disk = Sparse::new(
            disk_sectors * 512,
            vec![Piece { offset: place(disk_sectors), bytes: bytes.clone() }],
        );
        let partition =
            Sparse::new(DEVICE_SECTORS * 512, vec![Piece { offset: place(DEVICE_SECTORS), bytes }]);
        assert_eq!(place(disk_sectors), place(DEVICE_SECTORS) + 2048 * 512);
        for device in [&disk, &partition] {
            let found = find(device);
            assert_eq!(found.newest().map(|superblock| superblock.version()), Some("0.90"));
        }
        // Both can be true; the data fills the partition, and leaves room on the disk.
        let room = |device| sector(device).unwrap() - decode(&[(8, 49_088)]).unwrap().member_sectors();
        assert_eq!((room(DEVICE_SECTORS), room(disk_sectors)), (0, 2048));
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_an_error(bit in 0..SUPERBLOCK_BYTES * 8, word in 200usize..900, value: u32) {
            let mut bytes = with(&[(word, value)]);
            prop_assert!(Superblock::decode(&bytes, DEVICE_SECTORS).is_ok());
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Superblock::decode(&bytes, DEVICE_SECTORS).is_err());
        }
    }
}
