//! The metadata area: a header, and behind it a ring in which texts lie.
//!
//! The header is 512 bytes at the area's start, little-endian:
//!
//! | at | what |
//! | --- | --- |
//! | 0 | CRC of bytes 4 to 512, u32 |
//! | 4 | magic, 16 bytes |
//! | 20 | version, u32: 1 |
//! | 24 | where the area begins on the disk, u64, bytes |
//! | 32 | its size with the header, u64, bytes |
//! | 40 | slots of 24 bytes: offset (u64, from the area's start), size (u64), CRC of the text (u32), flags (u32) |
//!
//! Slot 0 is the committed text, slot 1 one that was precommitted; an offset of 0 is an empty slot. Bit 0 of slot 0's flags
//! says that the area is not in use ("ignored"). Size and CRC of a text include the NUL that ends it.
//!
//! The ring begins behind the header and ends with the area; a text that passes the end goes on behind the header. A new
//! text begins at the next multiple of 512 after the committed one, and has at most about half of the ring, so that it
//! never touches the committed one ([`AreaHeader::place`]).

use super::crc::crc;
use super::label::DiskArea;
use super::{BLOCK_BYTES, TEXT_BYTES_MAX};
use crate::bytes::{length, put, u32_le, u64_le};
use crate::{FormatError, Piece, Source};

const PLACE: &str = "LVM2 metadata area";
const MAGIC: &[u8; 16] = b"\x20LVM2\x20x[5A%r0N*>";
const VERSION: u32 = 1;
const SLOTS_AT: usize = 40;
const SLOT_BYTES: usize = 24;
const HEADER_BYTES: u64 = 512;

/// Where a text lies in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RawLocation {
    /// First byte, from the start of the area; 0: no text.
    pub offset: u64,
    /// Bytes, with the NUL at the end.
    pub size: u64,
    /// CRC of those bytes.
    pub checksum: u32,
    /// Bit 0 (of slot 0 only): the area is ignored.
    pub flags: u32,
}

impl RawLocation {
    /// In `flags`: the area is ignored.
    pub const IGNORED: u32 = 1;

    fn exists(&self) -> bool {
        self.offset != 0 && self.size != 0
    }
}

/// The header of a metadata area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AreaHeader {
    /// Where the area lies, bytes from the start of the disk; its header counts.
    pub area: DiskArea,
    /// Slot 0, the committed text, and slot 1, a precommitted one.
    pub slots: [RawLocation; 2],
}

impl AreaHeader {
    /// The header of an area without a text.
    ///
    /// # Errors
    ///
    /// Where the area has no room for a header and two texts, or is no range of a disk.
    pub fn new(area: DiskArea) -> Result<Self, FormatError> {
        let header = Self { area, slots: Default::default() };
        header.checked_size(area)?;
        if header.text_bytes_max() == 0 {
            return Err(FormatError::invalid(PLACE, area.offset, "size", area.size, "room for texts"));
        }
        Ok(header)
    }

    /// Reads the header of an area that a PV header names.
    ///
    /// # Errors
    ///
    /// As for [`AreaHeader::parse`]; also where the area does not lie inside the disk, or cannot be read.
    pub fn read(source: &dyn Source, area: DiskArea) -> Result<Self, FormatError> {
        let end = area.offset.checked_add(area.size).filter(|end| *end <= source.size());
        if end.is_none() || area.size < HEADER_BYTES {
            let found = format!("{} bytes at {}", area.size, area.offset);
            let expected = format!("a header of 512 bytes and more inside a disk of {} bytes", source.size());
            return Err(FormatError::invalid(PLACE, area.offset, "area", found, expected));
        }
        let mut bytes = [0; BLOCK_BYTES];
        let read = source.read_at(area.offset, &mut bytes);
        read.map_err(|error| FormatError::unreadable(PLACE, area.offset, &error))?;
        Self::parse(&bytes, area)
    }

    /// The header in these bytes, which lie at the start of the area that a PV header names.
    ///
    /// # Errors
    ///
    /// Where CRC, magic, version, start or size are wrong. What the slots say is checked when they are read.
    pub fn parse(bytes: &[u8; BLOCK_BYTES], area: DiskArea) -> Result<Self, FormatError> {
        let wrong = |field, found: String, expected: String| {
            Err(FormatError::invalid(PLACE, area.offset, field, found, expected))
        };
        // Before the CRC: an area that was wiped is said to be no area, not to be damaged.
        if &bytes[4..20] != MAGIC {
            return wrong("magic", format!("{:02x?}", &bytes[4..20]), format!("{MAGIC:02x?}"));
        }
        let (found, computed) = (u32_le(bytes, 0), crc([&bytes[4..]]));
        if found != computed {
            return wrong("header CRC", format!("{found:#010x}"), format!("{computed:#010x}"));
        }
        if u32_le(bytes, 20) != VERSION {
            return wrong("version", u32_le(bytes, 20).to_string(), VERSION.to_string());
        }
        if u64_le(bytes, 24) != area.offset {
            return wrong("start", u64_le(bytes, 24).to_string(), area.offset.to_string());
        }
        let size = u64_le(bytes, 32);
        let slot = |n: usize| {
            let at = SLOTS_AT + n * SLOT_BYTES;
            RawLocation {
                offset: u64_le(bytes, at),
                size: u64_le(bytes, at + 8),
                checksum: u32_le(bytes, at + 16),
                flags: u32_le(bytes, at + 20),
            }
        };
        let header = Self { area: DiskArea { size, ..area }, slots: [slot(0), slot(1)] };
        header.checked_size(area)?;
        Ok(header)
    }

    fn checked_size(&self, named: DiskArea) -> Result<(), FormatError> {
        let size = self.area.size;
        let end = named.offset.checked_add(size).filter(|end| i64::try_from(*end).is_ok());
        if size <= HEADER_BYTES || size > named.size || end.is_none() {
            let expected = format!("more than 512, and at most the {} of the PV header", named.size);
            return Err(FormatError::invalid(PLACE, named.offset, "size", size, expected));
        }
        // LVM knows areas by sectors. Texts are written by whole ones.
        for (field, bytes) in [("start", named.offset), ("size", size)] {
            if !bytes.is_multiple_of(HEADER_BYTES) {
                return Err(FormatError::invalid(PLACE, named.offset, field, bytes, "a multiple of 512"));
            }
        }
        Ok(())
    }

    /// The header as it is written to the disk, at the area's offset.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        put(&mut bytes, 4, MAGIC);
        put(&mut bytes, 20, &VERSION.to_le_bytes());
        put(&mut bytes, 24, &self.area.offset.to_le_bytes());
        put(&mut bytes, 32, &self.area.size.to_le_bytes());
        for (n, slot) in self.slots.iter().enumerate() {
            let at = SLOTS_AT + n * SLOT_BYTES;
            put(&mut bytes, at, &slot.offset.to_le_bytes());
            put(&mut bytes, at + 8, &slot.size.to_le_bytes());
            put(&mut bytes, at + 16, &slot.checksum.to_le_bytes());
            put(&mut bytes, at + 20, &slot.flags.to_le_bytes());
        }
        mend_header_crc(&mut bytes);
        bytes
    }

    /// Where the committed text is; `None` where there is none yet.
    pub fn committed(&self) -> Option<RawLocation> {
        Some(self.slots[0]).filter(RawLocation::exists)
    }

    /// Where a precommitted text is, which an interrupted change left behind.
    pub fn precommitted(&self) -> Option<RawLocation> {
        Some(self.slots[1]).filter(RawLocation::exists)
    }

    /// Whether the area is not in use: what it holds may be old.
    pub fn ignored(&self) -> bool {
        self.slots[0].flags & RawLocation::IGNORED != 0
    }

    /// The text at a location of this area, with its NUL, after its CRC was checked.
    ///
    /// # Errors
    ///
    /// Where the location does not lie in the ring, is longer than [`TEXT_BYTES_MAX`], has another CRC, or cannot be read.
    pub fn read_text(&self, source: &dyn Source, location: &RawLocation) -> Result<Vec<u8>, FormatError> {
        let runs = self.runs(location)?;
        let mut text = vec![0; usize::try_from(location.size).expect("at most TEXT_BYTES_MAX")];
        let mut rest = &mut text[..];
        for run in runs {
            let (piece, after) = rest.split_at_mut(usize::try_from(run.size).expect("a part of the text"));
            let read = source.read_at(run.offset, piece);
            read.map_err(|error| FormatError::unreadable("LVM2 metadata text", run.offset, &error))?;
            rest = after;
        }
        let computed = crc([&text[..]]);
        if computed != location.checksum {
            let (at, found) = (self.area.offset + location.offset, format!("{computed:#010x}"));
            let expected = format!("{:#010x} ({} bytes)", location.checksum, location.size);
            return Err(FormatError::invalid("LVM2 metadata text", at, "CRC", found, expected));
        }
        Ok(text)
    }

    /// Longest text that this area takes, with its NUL, bytes: two of them never meet in the ring.
    pub fn text_bytes_max(&self) -> u64 {
        let half = (self.area.size.saturating_sub(HEADER_BYTES) / 2).saturating_sub(HEADER_BYTES);
        half.min(length(TEXT_BYTES_MAX))
    }

    /// Where a new text goes: behind the committed one, which it does not touch. The text is without its NUL.
    ///
    /// # Errors
    ///
    /// Where the text is longer than [`AreaHeader::text_bytes_max`], or does not fit beside the committed one (older versions of LVM let
    /// texts become longer than that), or the committed location is wrong.
    pub fn place(&self, text: &[u8]) -> Result<RawLocation, FormatError> {
        assert!(!text.contains(&0), "a text has no NUL but the one that ends it");
        let size = length(text.len()) + 1;
        let most = self.text_bytes_max();
        if size > most {
            let (found, expected) = (format!("{size} bytes"), format!("at most {most}"));
            return Err(FormatError::limit(PLACE, self.area.offset, "new text", found, expected)
                .with_remedy(
                    "the area is full: remove volumes, snapshots or tags; then a disk with a larger one can be added (`pvcreate --metadatasize`) and the \
                     others ignored (`pvchange --metadataignore y`)",
                ));
        }
        let offset = match self.committed() {
            None => HEADER_BYTES,
            Some(old) => {
                self.runs(&old)?;
                let end = (old.offset + old.size).next_multiple_of(HEADER_BYTES);
                let taken = end - old.offset / HEADER_BYTES * HEADER_BYTES;
                let room = (self.area.size - HEADER_BYTES).saturating_sub(taken);
                if size.next_multiple_of(HEADER_BYTES) > room {
                    let (found, expected) = (
                        format!("{size} bytes"),
                        format!("at most {room} beside the committed one's {}", old.size),
                    );
                    return Err(FormatError::limit(PLACE, self.area.offset, "new text", found, expected)
                        .with_remedy("have LVM make the group's text shorter, by fewer volumes at a time"));
                }
                HEADER_BYTES + (end - HEADER_BYTES) % (self.area.size - HEADER_BYTES)
            }
        };
        Ok(RawLocation { offset, size, checksum: crc([text, &[0]]), flags: 0 })
    }

    /// Whether the committed location, if there is one, is one of this area.
    pub fn is_whole(&self) -> bool {
        self.committed().is_none_or(|committed| self.runs(&committed).is_ok())
    }

    /// What has to be written for a text at a place that [`AreaHeader::place`] gave: one piece, or two where it passes the
    /// end of the ring. Each is filled up with zeros to whole sectors as far as the area goes.
    ///
    /// # Errors
    ///
    /// Where the location does not lie in the ring.
    pub fn pieces(&self, location: &RawLocation, text: &[u8]) -> Result<Vec<Piece>, FormatError> {
        assert_eq!(location.size, length(text.len()) + 1, "the location is that of this text");
        let mut rest = [text, &[0]].concat();
        let mut pieces = Vec::new();
        for run in self.runs(location)? {
            let after = rest.split_off(usize::try_from(run.size).expect("a part of the text"));
            let whole = run.size.next_multiple_of(HEADER_BYTES);
            let room = self.area.offset + self.area.size - run.offset;
            rest.resize(usize::try_from(whole.min(room)).expect("a text and a sector"), 0);
            pieces.push(Piece { offset: run.offset, bytes: rest });
            rest = after;
        }
        Ok(pieces)
    }

    /// The one or two ranges of the disk where a location lies, in the order of the text.
    fn runs(&self, location: &RawLocation) -> Result<Vec<DiskArea>, FormatError> {
        let (at, area) = (self.area.offset, self.area.size);
        let ring = area - HEADER_BYTES;
        if !(HEADER_BYTES..area).contains(&location.offset) {
            let expected = format!("at least 512, and less than the area's {area}");
            return Err(FormatError::invalid(PLACE, at, "offset of the text", location.offset, expected));
        }
        if location.size == 0 || location.size > ring {
            let expected = format!("1 to {ring}, the area without its header");
            return Err(FormatError::invalid(PLACE, at, "size of the text", location.size, expected));
        }
        if location.size > length(TEXT_BYTES_MAX) {
            let expected = format!("at most {TEXT_BYTES_MAX} bytes");
            return Err(FormatError::limit(PLACE, at, "size of the text", location.size, expected));
        }
        let head = location.size.min(area - location.offset);
        let mut runs = vec![DiskArea { offset: at + location.offset, size: head }];
        if head < location.size {
            runs.push(DiskArea { offset: at + HEADER_BYTES, size: location.size - head });
        }
        Ok(runs)
    }
}

/// Sets the CRC of an area's header to what it should be: for tests of what lies behind that check.
pub fn mend_header_crc(bytes: &mut [u8; BLOCK_BYTES]) {
    let crc = crc([&bytes[4..]]);
    put(bytes, 0, &crc.to_le_bytes());
}

const _: () = assert!(SLOTS_AT + 2 * SLOT_BYTES <= BLOCK_BYTES);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ErrorKind, Sparse};

    const AREA: DiskArea = DiskArea { offset: 4096, size: 1 << 20 };

    fn disk() -> Sparse {
        Sparse::new(2 << 20, Vec::new())
    }

    /// A header with one slot, as it is on a disk.
    fn header_of(size: u64, slot: RawLocation) -> [u8; BLOCK_BYTES] {
        AreaHeader { area: DiskArea { size, ..AREA }, slots: [slot, RawLocation::default()] }.encode()
    }

    #[track_caller]
    fn assert_refused<T: std::fmt::Debug>(found: Result<T, FormatError>, expected: &str) {
        let error = found.expect_err("it contradicts the format").to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_header_is_refused_where_a_field_is_wrong() {
        let good = AreaHeader::new(AREA).unwrap();
        assert_eq!(AreaHeader::parse(&good.encode(), AREA), Ok(good.clone()));
        for (at, expected) in [
            (4, "LVM2 metadata area at 4096: magic is [21, 4c"),
            (20, "version is 0, expected 1"),
            (24, "start is 4097, expected 4096"),
            (35, "size is 17825792, expected more than 512"),
        ] {
            let mut bytes = good.encode();
            bytes[at] ^= 1;
            if at > 20 {
                assert_refused(AreaHeader::parse(&bytes, AREA), "header CRC is");
            }
            mend_header_crc(&mut bytes);
            assert_refused(AreaHeader::parse(&bytes, AREA), expected);
        }
    }

    #[test]
    fn an_area_of_zero_or_one_byte_is_refused_though_its_crc_is_right() {
        for size in [0, 1, 511, 512] {
            assert_refused(AreaHeader::parse(&header_of(size, RawLocation::default()), AREA), "size is");
        }
        AreaHeader::parse(&header_of(1 << 20, RawLocation::default()), AREA).unwrap();
        for size in [0, 512, 1536] {
            assert_refused(AreaHeader::new(DiskArea { size, ..AREA }), "size is");
        }
    }

    #[test]
    fn an_area_outside_its_disk_is_refused() {
        for area in [
            DiskArea { offset: 4096, size: 2 << 20 },
            DiskArea { offset: u64::MAX, size: 4096 },
            DiskArea { offset: 4096, size: 511 },
        ] {
            assert_refused(AreaHeader::read(&disk(), area), "area is");
        }
    }

    #[test]
    fn a_text_of_eight_gigabytes_in_an_area_that_says_it_is_as_large_is_refused() {
        let area = DiskArea { offset: 4096, size: 0x2_0000_0000 };
        let slot = RawLocation { offset: 0x1_0000_0000, size: 0x1_ffff_fe00, ..RawLocation::default() };
        let header = AreaHeader { area, slots: [slot, RawLocation::default()] };
        let header = AreaHeader::parse(&header.encode(), area).unwrap();
        let error = header.read_text(&disk(), &header.committed().unwrap()).unwrap_err();
        assert_eq!((error.kind, error.field), (ErrorKind::Limit, "size of the text"));
    }

    #[test]
    fn a_text_outside_its_area_is_refused() {
        for (offset, size, expected) in [
            (2 << 20, 4096, "offset of the text is 2097152, expected at least 512, and less than"),
            (1 << 20, 1, "offset of the text is 1048576"),
            (511, 10, "offset of the text is 511"),
            (u64::MAX, u64::MAX, "offset of the text is"),
            (512, (1 << 20) - 511, "size of the text is 1048065, expected 1 to 1048064"),
            (512, u64::MAX, "size of the text is"),
        ] {
            let header = header_of(1 << 20, RawLocation { offset, size, ..RawLocation::default() });
            let header = AreaHeader::parse(&header, AREA).unwrap();
            assert_refused(header.read_text(&disk(), &header.slots[0]), expected);
            assert_refused(header.place(b"a text"), expected);
        }
        let slot = RawLocation { offset: 512, size: 4096, ..RawLocation::default() };
        let header = AreaHeader::parse(&header_of(1 << 20, slot), AREA).unwrap();
        assert_refused(header.read_text(&disk(), &slot), "LVM2 metadata text at 4608: CRC is");
    }

    #[test]
    fn an_empty_slot_is_no_text_and_a_flag_says_that_an_area_is_ignored() {
        let mut header = AreaHeader::new(AREA).unwrap();
        assert_eq!((header.committed(), header.precommitted(), header.ignored()), (None, None, false));
        header.slots[0].flags = RawLocation::IGNORED;
        header.slots[1] = RawLocation { offset: 512, size: 7, ..RawLocation::default() };
        let header = AreaHeader::parse(&header.encode(), AREA).unwrap();
        assert_eq!((header.committed(), header.ignored()), (None, true));
        assert_eq!(header.precommitted(), Some(header.slots[1]));
    }

    #[test]
    fn a_text_that_is_longer_than_half_of_the_ring_is_refused() {
        let header = AreaHeader::new(DiskArea { offset: 4096, size: 1_044_480 }).unwrap();
        assert_eq!(header.text_bytes_max(), (1_044_480 - 512) / 2 - 512);
        let most = usize::try_from(header.text_bytes_max()).unwrap();
        header.place(&vec![b' '; most - 1]).unwrap();
        assert_refused(header.place(&vec![b' '; most]), "new text is");
    }

    #[test]
    fn a_text_that_would_meet_a_committed_one_that_is_longer_than_half_of_the_ring_is_refused() {
        // 255 sectors, as old versions made them, and a text of theirs.
        let area = DiskArea { offset: 4096, size: 130_560 };
        for (offset, old, most) in [(512, 74_164, 55_808), (1023, 74_164, 55_296), (100_000, 74_164, 55_296)]
        {
            let slot = RawLocation { offset, size: old, ..RawLocation::default() };
            let mut bytes = header_of(area.size, slot);
            mend_header_crc(&mut bytes);
            let header = AreaHeader::parse(&bytes, area).unwrap();
            assert!(header.is_whole());
            let place = header.place(&vec![b' '; most - 1]).unwrap();
            let ends = |start: u64, size: u64| (start / 512 * 512..start + size).step_by(512);
            let ring = area.size - 512;
            let sectors = |start: u64, size: u64| {
                ends(start, size).map(|at| (at - 512) % ring / 512).collect::<Vec<_>>()
            };
            let (theirs, ours) = (sectors(offset, old), sectors(place.offset, place.size));
            assert!(ours.iter().all(|sector| !theirs.contains(sector)), "{offset}");
            assert_refused(header.place(&vec![b' '; most]), "beside the committed one's 74164");
        }
    }

    #[test]
    fn an_area_that_is_no_whole_sectors_is_refused() {
        for (offset, size, expected) in
            [(4100, 1 << 20, "start is 4100"), (4096, (1 << 20) - 100, "size is 1048476")]
        {
            let area = DiskArea { offset, size };
            let header = AreaHeader { area, slots: [RawLocation::default(); 2] };
            assert_refused(AreaHeader::parse(&header.encode(), DiskArea { size: 2 << 20, ..area }), expected);
            assert_refused(AreaHeader::new(area), expected);
        }
    }

    proptest! {
        /// The stupid ring: an array of who wrote which byte last.
        #[test]
        fn texts_round_the_ring_never_touch_the_committed_one_and_read_back(
            sectors in 6u64..18, lengths in proptest::collection::vec(0usize..4000, 1..40),
        ) {
            let area = DiskArea { offset: 4096, size: sectors * 512 };
            let mut header = AreaHeader::new(area).unwrap();
            let mut disk = disk();
            let mut texts: Vec<(RawLocation, Vec<u8>)> = Vec::new();
            for (n, length) in lengths.into_iter().enumerate() {
                let most = usize::try_from(header.text_bytes_max()).unwrap() - 1;
                let text: Vec<u8> = (0..length.min(most)).map(|at| b'a' + u8::try_from((at + n) % 26).unwrap()).collect();
                let place = header.place(&text).unwrap();
                for piece in header.pieces(&place, &text).unwrap() {
                    prop_assert!(piece.offset >= area.offset + 512 && piece.end() <= area.offset + area.size);
                    disk.write(piece.offset, piece.bytes);
                }
                if let Some((old, text)) = texts.last() {
                    let again = header.read_text(&disk, old);
                    prop_assert_eq!(again.as_ref(), Ok(&[&text[..], &[0]].concat()), "old text, before the commit");
                }
                header.slots[0] = place;
                prop_assert_eq!(header.read_text(&disk, &place).unwrap(), [&text[..], &[0]].concat());
                texts.push((place, text));
            }
        }
    }
}
