//! The write-intent bitmap of a member: its superblock, and a bit for each chunk that may differ between members.
//!
//! Little-endian, 256 bytes, then the bits, the lowest of a byte first:
//!
//! | off | type | field | | off | type | field |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 0 | u32 | magic | | 48 | u32 | state |
//! | 4 | u32 | version | | 52 | u32 | chunksize, bytes |
//! | 8 | u8 × 16 | uuid of the array | | 56 | u32 | daemon_sleep, seconds |
//! | 24 | u64 | events | | 60 | u32 | write_behind |
//! | 32 | u64 | events_cleared | | 64 | u32 | sectors_reserved |
//! | 40 | u64 | sync_size, sectors | | 68 | u32 | nodes |
//! | | | | | 72 | u8 × 64 | cluster_name |
//!
//! (1) There are ⌈sync_size / chunk⌉ bits; sync_size is the *member's* size for a RAID1, and the *array's* for a RAID10.
//! (2) A bitmap has no checksum: [`BitmapSuperblock::check_for`] compares it with its array before it is believed, and
//! one that is older than the array ([`BitmapSuperblock::is_stale`]) says nothing. (3) Bits behind the last chunk are never
//! looked at, and are kept; in a new bitmap they are ones, as mdadm makes them.

use crate::bytes::{array, length, put, u32_le, u64_le};
use crate::{FormatError, SECTOR_BYTES};

use super::{Uuid, unsupported};

/// Bytes of the superblock: the bits follow.
pub const BITMAP_SUPERBLOCK_BYTES: usize = 256;

/// Most bits that are read: 32 MiB of them. mdadm makes at most 2^20 by itself.
pub const BITS_MAX: u64 = 1 << 28;

/// Smallest chunk, bytes.
pub const BITMAP_CHUNK_MIN: u32 = 512;

/// Most writes that may be behind on write-mostly members, as in the kernel.
pub const WRITE_BEHIND_MAX: u32 = 16_383;

const PLACE: &str = "md bitmap";

/// The superblock of a bitmap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitmapSuperblock {
    /// 4; 3 from long ago, with the bits in the order of the host, which is the same on little-endian ones.
    pub version: u32,
    /// The array's.
    pub uuid: Uuid,
    /// The array's when this was written.
    pub events: u64,
    /// The array's when bits were last cleared with all members there: a member that is older lacks more than the bits say.
    pub events_cleared: u64,
    /// What the bits cover, sectors.
    pub sync_size: u64,
    /// Bit 1 stale, bit 2 a write to the bitmap failed, bit 15 bits in the order of the host.
    pub state: u32,
    /// What a bit covers, bytes; a power of two.
    pub chunk_bytes: u32,
    /// Seconds between turns of clearing.
    pub daemon_sleep: u32,
    /// Most writes that may be behind; 0 for none.
    pub write_behind: u32,
    /// Room of the bitmap on disk, sectors; 0 where it is not known.
    pub sectors_reserved: u32,
    /// Nodes of a cluster, otherwise 0.
    pub nodes: u32,
    /// Name of a cluster, otherwise zeros.
    pub cluster_name: [u8; 64],
    /// Bytes 136-255: zero in all versions that are known.
    pub reserved: [u8; 120],
}

impl BitmapSuperblock {
    /// Its magic number.
    pub const MAGIC: u32 = 0x6d74_6962;
    /// State: the bits are not to be believed.
    pub const STALE: u32 = 1 << 1;
    /// State: a write of bits failed.
    pub const WRITE_ERROR: u32 = 1 << 2;

    /// The superblock of a new bitmap: `sync_size` sectors in chunks of `chunk_bytes`, for an array without a past. The bits
    /// are cleared every 5 seconds, as mdadm and LVM have it.
    pub fn new(uuid: Uuid, sync_size: u64, chunk_bytes: u32) -> Self {
        Self {
            version: 4,
            uuid,
            events: 0,
            events_cleared: 0,
            sync_size,
            state: 0,
            chunk_bytes,
            daemon_sleep: 5,
            write_behind: 0,
            sectors_reserved: 0,
            nodes: 0,
            cluster_name: [0; 64],
            reserved: [0; 120],
        }
    }

    /// Whether the bytes start like one.
    pub fn is_at(bytes: &[u8]) -> bool {
        bytes.len() >= 4 && u32_le(bytes, 0) == Self::MAGIC
    }

    /// Takes apart what was read at `offset` (bytes, for errors) of a member.
    ///
    /// # Errors
    ///
    /// No bitmap, a version that is not supported (clustered, lockless), or a field that no bitmap can have.
    pub fn decode(bytes: &[u8], offset: u64) -> Result<Self, FormatError> {
        if bytes.len() < BITMAP_SUPERBLOCK_BYTES {
            let expected = format!("{BITMAP_SUPERBLOCK_BYTES} bytes or more");
            return Err(FormatError::invalid(PLACE, offset, "size", bytes.len(), expected));
        }
        let magic = u32_le(bytes, 0);
        if magic != Self::MAGIC {
            let (found, expected) = (format!("{magic:#010x}"), format!("{:#010x}", Self::MAGIC));
            return Err(FormatError::invalid(PLACE, offset, "magic", found, expected));
        }
        let superblock = Self {
            version: u32_le(bytes, 4),
            uuid: Uuid(array(bytes, 8)),
            events: u64_le(bytes, 24),
            events_cleared: u64_le(bytes, 32),
            sync_size: u64_le(bytes, 40),
            state: u32_le(bytes, 48),
            chunk_bytes: u32_le(bytes, 52),
            daemon_sleep: u32_le(bytes, 56),
            write_behind: u32_le(bytes, 60),
            sectors_reserved: u32_le(bytes, 64),
            nodes: u32_le(bytes, 68),
            cluster_name: array(bytes, 72),
            reserved: array(bytes, 136),
        };
        superblock.check(offset)?;
        Ok(superblock)
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; BITMAP_SUPERBLOCK_BYTES] {
        let mut out = [0; BITMAP_SUPERBLOCK_BYTES];
        put(&mut out, 0, &Self::MAGIC.to_le_bytes());
        put(&mut out, 4, &self.version.to_le_bytes());
        put(&mut out, 8, &self.uuid.0);
        put(&mut out, 24, &self.events.to_le_bytes());
        put(&mut out, 32, &self.events_cleared.to_le_bytes());
        put(&mut out, 40, &self.sync_size.to_le_bytes());
        put(&mut out, 48, &self.state.to_le_bytes());
        put(&mut out, 52, &self.chunk_bytes.to_le_bytes());
        put(&mut out, 56, &self.daemon_sleep.to_le_bytes());
        put(&mut out, 60, &self.write_behind.to_le_bytes());
        put(&mut out, 64, &self.sectors_reserved.to_le_bytes());
        put(&mut out, 68, &self.nodes.to_le_bytes());
        put(&mut out, 72, &self.cluster_name);
        put(&mut out, 136, &self.reserved);
        out
    }

    /// Whether there can be such a bitmap.
    ///
    /// # Errors
    ///
    /// As [`BitmapSuperblock::decode`]. `offset` is for errors.
    pub fn check(&self, offset: u64) -> Result<(), FormatError> {
        let invalid = |field, found: u64, expected: &str| {
            Err(FormatError::invalid(PLACE, offset, field, found, expected))
        };
        match self.version {
            3 | 4 => {}
            5 => return Err(unsupported(PLACE, offset, "version", "5 (clustered)", "4")),
            6 => return Err(unsupported(PLACE, offset, "version", "6 (lockless)", "4")),
            other => return Err(unsupported(PLACE, offset, "version", other, "4")),
        }
        if !self.chunk_bytes.is_power_of_two() || self.chunk_bytes < BITMAP_CHUNK_MIN {
            return invalid("chunksize", self.chunk_bytes.into(), "a power of two of at least 512 bytes");
        }
        if self.daemon_sleep == 0 || self.daemon_sleep > i32::MAX.unsigned_abs() {
            return invalid("daemon_sleep", self.daemon_sleep.into(), "1 second or more, below 2^31");
        }
        if self.write_behind > WRITE_BEHIND_MAX {
            return invalid("write_behind", self.write_behind.into(), "at most 16383");
        }
        if self.sync_size == 0 {
            return invalid("sync_size", 0, "at least 1 sector");
        }
        if self.chunks() > BITS_MAX {
            let expected = format!("at most {BITS_MAX}");
            return Err(FormatError::limit(PLACE, offset, "number of bits", self.chunks(), expected));
        }
        let (room, needed) = (u64::from(self.sectors_reserved), self.disk_sectors());
        if room != 0 && room < needed {
            let expected = format!("0, or at least {needed} for {} bits", self.chunks());
            return Err(FormatError::invalid(PLACE, offset, "sectors_reserved", room, expected));
        }
        Ok(())
    }

    /// The superblock of the bitmap when its array has grown to so many sectors.
    #[must_use]
    pub fn grown(&self, sync_size: u64) -> Self {
        let mut grown = Self { sync_size, ..self.clone() };
        if grown.sectors_reserved != 0 {
            let needed = u32::try_from(grown.disk_sectors()).unwrap_or(u32::MAX);
            grown.sectors_reserved = grown.sectors_reserved.max(needed);
        }
        grown
    }

    /// Whether it belongs to an array: `uuid` of its superblock, `sync_sectors` and the room that the bitmap has
    /// ([`super::v1::Superblock::sync_sectors`], [`super::v1::Superblock::bitmap_room_sectors`]). Where it does not, nothing is
    /// known about which chunks differ.
    ///
    /// # Errors
    ///
    /// Another array's bitmap, one of another size, or one that would reach into what lies behind it.
    pub fn check_for(
        &self,
        uuid: Uuid,
        sync_sectors: u64,
        room_sectors: u64,
        offset: u64,
    ) -> Result<(), FormatError> {
        let remedy = "without a bitmap, the whole array is to be resynced after an unclean stop";
        let wrong = |field, found: &dyn std::fmt::Display, expected: &dyn std::fmt::Display| {
            Err(FormatError::invalid(PLACE, offset, field, found, expected).with_remedy(remedy))
        };
        if self.uuid != uuid {
            return wrong("uuid", &self.uuid, &format!("{uuid}, the array's"));
        }
        if self.sync_size != sync_sectors {
            return wrong("sync_size", &self.sync_size, &format!("{sync_sectors} sectors, as the array has"));
        }
        let needed = self.disk_sectors();
        if needed > room_sectors {
            let found = format!("{} in {needed} sectors", self.chunks());
            return wrong(
                "number of bits",
                &found,
                &format!("at most {room_sectors} sectors, where the next region begins"),
            );
        }
        Ok(())
    }

    /// Whether the array has changed since without the bitmap, or the bitmap itself says that it is not to be believed:
    /// every chunk may differ then.
    pub fn is_stale(&self, array_events: u64) -> bool {
        self.state & Self::STALE != 0 || self.events < array_events
    }

    /// What a bit covers, sectors.
    pub fn chunk_sectors(&self) -> u64 {
        (u64::from(self.chunk_bytes) / SECTOR_BYTES).max(1)
    }

    /// Chunks, and so bits.
    pub fn chunks(&self) -> u64 {
        self.sync_size.div_ceil(self.chunk_sectors())
    }

    /// Bytes of the bits on disk, behind the superblock.
    pub fn bits_bytes(&self) -> u64 {
        self.chunks().div_ceil(8)
    }

    /// Sectors of superblock and bits on disk.
    pub fn disk_sectors(&self) -> u64 {
        (length(BITMAP_SUPERBLOCK_BYTES) + self.bits_bytes()).div_ceil(SECTOR_BYTES)
    }
}

/// The bits: which chunks may differ between members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bits {
    bytes: Vec<u8>,
    chunks: u64,
}

impl Bits {
    /// All clean; bits behind the last one, in its byte, are ones.
    ///
    /// # Panics
    ///
    /// More than [`BITS_MAX`] chunks.
    pub fn clean(chunks: u64) -> Self {
        assert!(chunks <= BITS_MAX, "{chunks} bits");
        let mut bits =
            Self { bytes: vec![0; usize::try_from(chunks.div_ceil(8)).expect("at most 32 MiB")], chunks };
        let tail = bits.tail();
        if let Some(last) = bits.bytes.last_mut() {
            *last = tail;
        }
        bits
    }

    /// All dirty: what a stale bitmap means.
    ///
    /// # Panics
    ///
    /// More than [`BITS_MAX`] chunks.
    pub fn dirty(chunks: u64) -> Self {
        let mut bits = Self::clean(chunks);
        bits.bytes.fill(0xff);
        bits
    }

    /// The bits behind a superblock. `bytes` is what was read from byte 256 on; `offset` where that is, for errors.
    ///
    /// # Errors
    ///
    /// Fewer bytes than [`BitmapSuperblock::bits_bytes`], or more bits than [`BITS_MAX`].
    pub fn decode(superblock: &BitmapSuperblock, bytes: &[u8], offset: u64) -> Result<Self, FormatError> {
        let chunks = superblock.chunks();
        if chunks > BITS_MAX {
            let expected = format!("at most {BITS_MAX}");
            return Err(FormatError::limit(PLACE, offset, "number of bits", chunks, expected));
        }
        let needed = superblock.bits_bytes();
        let own = usize::try_from(needed).ok().and_then(|needed| bytes.get(..needed));
        let Some(own) = own else {
            let (found, expected) = (format!("{} bytes", bytes.len()), format!("{needed} bytes of bits"));
            return Err(FormatError::invalid(PLACE, offset, "size", found, expected));
        };
        Ok(Self { bytes: own.to_vec(), chunks })
    }

    /// Their bytes, to be written behind the superblock.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Whether the chunk may differ.
    ///
    /// # Panics
    ///
    /// There is no such chunk; so for all that take one.
    pub fn is_dirty(&self, chunk: u64) -> bool {
        let (byte, mask) = self.place(chunk);
        self.bytes[byte] & mask != 0
    }

    /// Marks it; whether it was not marked before.
    pub fn set(&mut self, chunk: u64) -> bool {
        let (byte, mask) = self.place(chunk);
        let before = self.bytes[byte];
        self.bytes[byte] = before | mask;
        before & mask == 0
    }

    /// Unmarks it; whether it was marked before.
    pub fn clear(&mut self, chunk: u64) -> bool {
        let (byte, mask) = self.place(chunk);
        let before = self.bytes[byte];
        self.bytes[byte] = before & !mask;
        before & mask != 0
    }

    /// These, of an array that has so many chunks now; what is new is clean.
    ///
    /// # Panics
    ///
    /// There are fewer than before, or more than [`BITS_MAX`].
    pub fn grown(&self, chunks: u64) -> Self {
        let mut bits = Self::clean(chunks);
        let mut from = 0;
        while let Some(chunk) = self.next_dirty(from) {
            bits.set(chunk);
            from = chunk + 1;
        }
        bits
    }

    /// How many are dirty.
    pub fn dirty_chunks(&self) -> u64 {
        let all: u64 = self.bytes.iter().map(|byte| u64::from(byte.count_ones())).sum();
        let behind = self.bytes.last().map_or(0, |last| (last & self.tail()).count_ones());
        all - u64::from(behind)
    }

    /// The first dirty chunk at or behind this one.
    pub fn next_dirty(&self, from: u64) -> Option<u64> {
        if from >= self.chunks {
            return None;
        }
        let (first, _) = self.place(from);
        let in_first = self.bytes[first] >> (from % 8) << (from % 8);
        let rest = self.bytes[first + 1..].iter().copied();
        let mut bytes = (length(first)..).zip([in_first].into_iter().chain(rest));
        let found = bytes.find(|(_, byte)| *byte != 0);
        found.map(|(at, byte)| at * 8 + u64::from(byte.trailing_zeros())).filter(|chunk| *chunk < self.chunks)
    }

    /// Marks all that another member has marked: what may differ is what any member says may differ.
    ///
    /// # Panics
    ///
    /// The other one has another number of chunks.
    pub fn merge(&mut self, other: &Bits) {
        assert_eq!(self.chunks, other.chunks, "bitmaps of one array have one size");
        for (byte, theirs) in self.bytes.iter_mut().zip(&other.bytes) {
            *byte |= theirs;
        }
    }

    /// Where the bit of a chunk is on disk, bytes from the start of the bitmap's superblock: what has to be written when
    /// it changes.
    pub fn byte_on_disk(chunk: u64) -> u64 {
        length(BITMAP_SUPERBLOCK_BYTES) + chunk / 8
    }

    fn place(&self, chunk: u64) -> (usize, u8) {
        assert!(chunk < self.chunks, "chunk {chunk} of {}", self.chunks);
        (usize::try_from(chunk / 8).expect("an index of bytes"), 1 << (chunk % 8))
    }

    /// The bits of the last byte that are behind the last chunk.
    fn tail(&self) -> u8 {
        match self.chunks % 8 {
            0 => 0,
            used => 0xff << used,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use proptest::prelude::*;

    #[test]
    fn what_has_grown_keeps_its_bits_and_the_rest_is_clean() {
        let mut bits = Bits::clean(11);
        [0, 7, 10].into_iter().for_each(|chunk| _ = bits.set(chunk));
        let grown = bits.grown(30);
        assert_eq!((0..30).filter(|chunk| grown.is_dirty(*chunk)).collect::<Vec<_>>(), [0, 7, 10]);
        assert_eq!(grown.as_bytes().len(), 4);
    }

    fn superblock() -> BitmapSuperblock {
        BitmapSuperblock {
            version: 4,
            uuid: Uuid([7; 16]),
            events: 17,
            events_cleared: 16,
            sync_size: 96_256,
            state: 0,
            chunk_bytes: 256 << 10,
            daemon_sleep: 5,
            write_behind: 0,
            sectors_reserved: 0,
            nodes: 0,
            cluster_name: [0; 64],
            reserved: [0; 120],
        }
    }

    #[test]
    fn a_bitmap_has_a_bit_for_each_chunk_and_for_a_last_part_of_one() {
        let mut bitmap = superblock();
        assert_eq!((bitmap.chunks(), bitmap.bits_bytes(), bitmap.disk_sectors()), (188, 24, 1));
        bitmap.sync_size += 1;
        assert_eq!(bitmap.chunks(), 189);
        bitmap.sync_size = 512 * 8 * 256 + 1;
        assert_eq!((bitmap.chunks(), bitmap.disk_sectors()), (2049, 2));
    }

    #[test]
    fn fields_that_no_bitmap_has_are_errors() {
        type Change = fn(&mut BitmapSuperblock);
        let changes: [(&str, ErrorKind, Change); 11] = [
            ("version", ErrorKind::Unsupported, |b| b.version = 5),
            ("version", ErrorKind::Unsupported, |b| b.version = 6),
            ("version", ErrorKind::Unsupported, |b| b.version = 0),
            ("chunksize", ErrorKind::Invalid, |b| b.chunk_bytes = 0),
            ("chunksize", ErrorKind::Invalid, |b| b.chunk_bytes = 256),
            ("chunksize", ErrorKind::Invalid, |b| b.chunk_bytes = 3 << 10),
            ("daemon_sleep", ErrorKind::Invalid, |b| b.daemon_sleep = 0),
            ("write_behind", ErrorKind::Invalid, |b| b.write_behind = 16_384),
            ("sync_size", ErrorKind::Invalid, |b| b.sync_size = 0),
            ("number of bits", ErrorKind::Limit, |b| b.sync_size = u64::MAX),
            ("sectors_reserved", ErrorKind::Invalid, |b| (b.sync_size, b.sectors_reserved) = (1 << 21, 1)),
        ];
        for (field, kind, change) in changes {
            let mut bitmap = superblock();
            change(&mut bitmap);
            let error = BitmapSuperblock::decode(&bitmap.encode(), 8192).unwrap_err();
            assert_eq!((error.field, error.kind), (field, kind), "{error}");
            assert!(error.to_string().starts_with("md bitmap at 8192: "), "{error}");
        }
        let error = BitmapSuperblock::decode(&[0; 256], 0).unwrap_err();
        assert_eq!(error.to_string(), "md bitmap at 0: magic is 0x00000000, expected 0x6d746962");
        assert!(BitmapSuperblock::decode(&superblock().encode()[..255], 0).is_err());
    }

    #[test]
    fn a_bitmap_of_another_array_or_size_is_not_believed() {
        let bitmap = superblock();
        assert_eq!(bitmap.check_for(Uuid([7; 16]), 96_256, 1, 0), Ok(()));
        for (uuid, sectors, room, field) in
            [(8, 96_256, 8, "uuid"), (7, 96_255, 8, "sync_size"), (7, 96_256, 0, "number of bits")]
        {
            let error = bitmap.check_for(Uuid([uuid; 16]), sectors, room, 0).unwrap_err();
            assert_eq!(error.field, field);
        }
        assert!(bitmap.is_stale(18) && !bitmap.is_stale(17) && !bitmap.is_stale(16));
        assert!(BitmapSuperblock { state: BitmapSuperblock::STALE, ..bitmap }.is_stale(0));
    }

    #[test]
    fn bits_behind_the_last_chunk_do_not_count() {
        let bitmap = BitmapSuperblock { sync_size: 3 * 512, ..superblock() };
        for (byte, dirty, next) in [(0xff, 3, Some(1)), (0xf8, 0, None), (0x01, 1, None)] {
            let bits = Bits::decode(&bitmap, &[byte; 100], 0).unwrap();
            assert_eq!(
                (bits.dirty_chunks(), bits.next_dirty(1), bits.as_bytes()),
                (dirty, next, &[byte][..])
            );
        }
        assert_eq!((Bits::clean(3).as_bytes(), Bits::dirty(3).as_bytes()), (&[0xf8][..], &[0xff][..]));
        assert_eq!((Bits::clean(16).as_bytes(), Bits::dirty(16).dirty_chunks()), (&[0, 0][..], 16));
        assert!(Bits::decode(&bitmap, &[], 0).is_err());
        assert_eq!(Bits::byte_on_disk(17), 258);
    }

    proptest! {
        #[test]
        fn a_bitmap_that_is_written_reads_back(
            ids: [u8; 16], numbers in proptest::array::uniform2(any::<u64>()), sync_size in 1u64..1 << 40,
            shift in 12u32..28, daemon_sleep in 1u32..100, write_behind in 0u32..=WRITE_BEHIND_MAX, state: u32, filler: u8,
        ) {
            let bitmap = BitmapSuperblock {
                uuid: Uuid(ids), events: numbers[0], events_cleared: numbers[1], sync_size, state,
                chunk_bytes: 1 << shift, daemon_sleep, write_behind,
                cluster_name: [filler; 64], reserved: [filler; 120], ..superblock()
            };
            let read = BitmapSuperblock::decode(&bitmap.encode(), 0);
            if bitmap.chunks() > BITS_MAX {
                prop_assert_eq!(read.unwrap_err().kind, ErrorKind::Limit);
            } else {
                prop_assert_eq!(read.unwrap(), bitmap);
            }
        }

        #[test]
        fn bits_are_a_set_of_chunks(chunks in 1u64..100, steps in proptest::collection::vec((any::<bool>(), 0u64..100), 0..60)) {
            let mut bits = Bits::clean(chunks);
            let mut set = std::collections::BTreeSet::new();
            for (on, chunk) in steps {
                let chunk = chunk % chunks;
                if on {
                    prop_assert_eq!(bits.set(chunk), set.insert(chunk));
                } else {
                    prop_assert_eq!(bits.clear(chunk), set.remove(&chunk));
                }
            }
            prop_assert_eq!(bits.dirty_chunks(), u64::try_from(set.len()).unwrap());
            for chunk in 0..chunks + 10 {
                prop_assert_eq!(bits.next_dirty(chunk), set.range(chunk..).next().copied());
                prop_assert!(chunk >= chunks || bits.is_dirty(chunk) == set.contains(&chunk));
            }
            let mut merged = Bits::clean(chunks);
            merged.set(0);
            merged.merge(&bits);
            set.insert(0);
            prop_assert_eq!((0..chunks).filter(|chunk| merged.is_dirty(*chunk)).collect::<std::collections::BTreeSet<_>>(), set);
        }
    }
}
