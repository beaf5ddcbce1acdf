//! The label and the PV header behind it: who a physical volume is, and where its areas are.
//!
//! A label is one sector, one of the first four of the disk, normally sector 1. All little-endian:
//!
//! | at | what |
//! | --- | --- |
//! | 0 | `LABELONE` |
//! | 8 | number of the sector, u64 |
//! | 16 | CRC of bytes 20 to 512, u32 |
//! | 20 | where the PV header begins in this sector, u32: 32 |
//! | 24 | `LVM2 001` |
//!
//! The PV header: UUID (32 characters), size of the device in bytes (u64), and then lists of areas ({offset, size}, u64,
//! bytes from the start of the disk), each ended by a pair of zeros: data areas, metadata areas; then an extension:
//! version and flags (u32 each), and the list of bootloader areas. An extension that has no room left, or has version 0,
//! is not there.

use super::crc::crc;
use super::{BLOCK_BYTES, LABEL_SECTORS, Uuid};
use crate::bytes::{length, put, u32_le, u64_le};
use crate::{FormatError, SECTOR_BYTES, Source, escape};

const PLACE: &str = "LVM2 label";
const MAGIC: &[u8; 8] = b"LABELONE";
const TYPE: &[u8; 8] = b"LVM2 001";
/// Where the label's own fields end, and where its PV header begins in every label that LVM writes.
const HEADER_AT: usize = 32;
/// UUID and device size: the shortest PV header.
const PV_HEADER_BYTES: usize = 40;
/// The first byte that the CRC covers.
const CRC_FROM: usize = 20;

/// A range of bytes on a physical volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskArea {
    /// First byte, from the start of the disk.
    pub offset: u64,
    /// Bytes. Of a data area, 0 means: up to the end of the disk.
    pub size: u64,
}

/// What follows the lists of a PV header since LVM 2.02.99.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// 1 or 2; a higher one may have fields that are not known here.
    pub version: u32,
    /// Bit 0: the PV belongs to a VG (from version 2).
    pub flags: u32,
    /// Areas that are left to a bootloader.
    pub bootloader_areas: Vec<DiskArea>,
}

impl Extension {
    /// The highest version whose fields are all known here: a label with a higher one must not be rewritten.
    pub const VERSION: u32 = 2;
    /// In `flags`: the PV belongs to a VG.
    pub const IN_USE: u32 = 1;
}

/// Who a PV is, and where its areas are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PvHeader {
    /// The PV's identifier: the only thing by which a VG knows it.
    pub id: Uuid,
    /// Size of the device when the PV was made or resized last, bytes.
    pub device_bytes: u64,
    /// Where extents may be; LVM writes one, whose size is 0.
    pub data_areas: Vec<DiskArea>,
    /// Where metadata is, none to two of them in practice.
    pub metadata_areas: Vec<DiskArea>,
    /// Absent on PVs of old versions.
    pub extension: Option<Extension>,
}

impl PvHeader {
    /// Where the metadata area of a new PV begins, bytes: behind the sectors of labels.
    pub const AREA_OFFSET: u64 = 4096;

    /// Where extents begin on a new PV, bytes, unless its device wants another alignment.
    pub const DATA_OFFSET: u64 = 1 << 20;

    /// The header of a new PV that belongs to no VG yet: one metadata area, and extents from `data_offset` (bytes) on.
    pub fn new(id: Uuid, device_bytes: u64, data_offset: u64) -> Self {
        let area =
            DiskArea { offset: Self::AREA_OFFSET, size: data_offset.saturating_sub(Self::AREA_OFFSET) };
        let extension = Extension { version: Extension::VERSION, flags: 0, bootloader_areas: Vec::new() };
        Self {
            id,
            device_bytes,
            data_areas: vec![DiskArea { offset: data_offset, size: 0 }],
            metadata_areas: vec![area],
            extension: Some(extension),
        }
    }

    /// Whether it says that the PV belongs to a VG.
    pub fn in_use(&self) -> bool {
        self.extension.as_ref().is_some_and(|extension| extension.flags & Extension::IN_USE != 0)
    }

    /// Says whether the PV belongs to a VG, where the extension has a flag for that; whether that was to be changed.
    pub fn set_in_use(&mut self, in_use: bool) -> bool {
        let Some(extension) =
            self.extension.as_mut().filter(|extension| extension.version == Extension::VERSION)
        else {
            return false;
        };
        let before = extension.flags;
        extension.flags = if in_use { before | Extension::IN_USE } else { before & !Extension::IN_USE };
        extension.flags != before
    }
}

/// The label of a physical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Sector in which it lies, 0 to 3.
    pub sector: u64,
    /// What it says.
    pub pv: PvHeader,
}

/// A label, and what else was found on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLabel {
    /// The first good label.
    pub label: Label,
    /// What is wrong with sectors before it that claim to be labels.
    pub damaged: Vec<FormatError>,
}

impl Label {
    /// Looks for the label of a disk. `None` where no sector claims to be one.
    ///
    /// # Errors
    ///
    /// Where there are labels but no good one, what is wrong with the first; and where the disk cannot be read.
    pub fn find(source: &dyn Source) -> Result<Option<FoundLabel>, FormatError> {
        let mut damaged = Vec::new();
        for sector in 0..LABEL_SECTORS.min(source.size() / SECTOR_BYTES) {
            let at = sector * SECTOR_BYTES;
            let mut bytes = [0; BLOCK_BYTES];
            source.read_at(at, &mut bytes).map_err(|error| FormatError::unreadable(PLACE, at, &error))?;
            if &bytes[..8] != MAGIC {
                continue;
            }
            match Self::parse(&bytes, sector) {
                Ok(label) => return Ok(Some(FoundLabel { label, damaged })),
                Err(error) => damaged.push(error),
            }
        }
        damaged.into_iter().next().map_or(Ok(None), Err)
    }

    /// The label in these bytes, which are those of the given sector.
    ///
    /// # Errors
    ///
    /// Where magic, sector number, CRC or type are wrong, or the PV header does not fit or is inconsistent.
    pub fn parse(bytes: &[u8; BLOCK_BYTES], sector: u64) -> Result<Self, FormatError> {
        let at = sector.saturating_mul(SECTOR_BYTES);
        let wrong = |field, found: String, expected: String| {
            Err(FormatError::invalid(PLACE, at, field, found, expected))
        };
        if &bytes[..8] != MAGIC {
            return wrong("magic", hex(&bytes[..8]), hex(MAGIC));
        }
        if u64_le(bytes, 8) != sector {
            return wrong("sector number", u64_le(bytes, 8).to_string(), sector.to_string());
        }
        let (found, computed) = (u32_le(bytes, 16), crc([&bytes[CRC_FROM..]]));
        if found != computed {
            return wrong("CRC", format!("{found:#010x}"), format!("{computed:#010x}"));
        }
        if &bytes[24..32] != TYPE {
            return wrong("type", escape(&String::from_utf8_lossy(&bytes[24..32])), "LVM2 001".into());
        }
        let start = crate::bytes::index(u32_le(bytes, 20));
        let most = BLOCK_BYTES - PV_HEADER_BYTES;
        if !(HEADER_AT..=most).contains(&start) {
            return wrong("offset of the PV header", start.to_string(), format!("{HEADER_AT} to {most}"));
        }
        let pv = Fields { bytes: &bytes[start..], at: at + length(start) }.pv_header()?;
        Ok(Self { sector, pv })
    }

    /// The sector as it is written to the disk.
    ///
    /// # Errors
    ///
    /// Where the areas do not fit into a sector, or one of them would be taken for a list's end.
    pub fn encode(&self) -> Result<[u8; BLOCK_BYTES], FormatError> {
        let at = self.sector.saturating_mul(SECTOR_BYTES);
        let mut rest = Vec::new();
        let pv = &self.pv;
        rest.extend(pv.id.bytes());
        rest.extend(pv.device_bytes.to_le_bytes());
        let list = |rest: &mut Vec<u8>, areas: &[DiskArea]| {
            for area in areas {
                if area.offset == 0 {
                    return Err(FormatError::invalid(PLACE, at, "offset of an area", 0, "more than 0"));
                }
                rest.extend([area.offset.to_le_bytes(), area.size.to_le_bytes()].concat());
            }
            rest.extend([0; 16]);
            Ok(())
        };
        list(&mut rest, &pv.data_areas)?;
        list(&mut rest, &pv.metadata_areas)?;
        if let Some(extension) = &pv.extension {
            rest.extend([extension.version.to_le_bytes(), extension.flags.to_le_bytes()].concat());
            list(&mut rest, &extension.bootloader_areas)?;
        }
        let most = BLOCK_BYTES - HEADER_AT;
        if rest.len() > most {
            let expected = format!("at most {most} bytes");
            return Err(FormatError::limit(
                PLACE,
                at,
                "PV header",
                format!("{} bytes", rest.len()),
                expected,
            ));
        }
        let mut bytes = [0; BLOCK_BYTES];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 8, &self.sector.to_le_bytes());
        put(&mut bytes, 20, &32u32.to_le_bytes());
        put(&mut bytes, 24, TYPE);
        put(&mut bytes, HEADER_AT, &rest);
        mend_label_crc(&mut bytes);
        Ok(bytes)
    }
}

/// Sets the CRC of a label's sector to what it should be: for tests of what lies behind that check.
pub fn mend_label_crc(bytes: &mut [u8; BLOCK_BYTES]) {
    let crc = crc([&bytes[CRC_FROM..]]);
    put(bytes, 16, &crc.to_le_bytes());
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The PV header, taken from the front.
struct Fields<'a> {
    bytes: &'a [u8],
    /// Where on the disk it begins.
    at: u64,
}

impl<'a> Fields<'a> {
    fn pv_header(mut self) -> Result<PvHeader, FormatError> {
        let at = self.at;
        let uuid = self.take(32).expect("a PV header fits, as it was checked");
        let id = Uuid::from_compact(uuid).ok_or_else(|| {
            let found = escape(&String::from_utf8_lossy(uuid));
            FormatError::invalid("LVM2 PV header", at, "UUID", found, "32 characters of 0-9a-zA-Z!#")
        })?;
        let device_bytes = u64_le(self.take(8).expect("a PV header fits, as it was checked"), 0);
        let data_areas = self.areas("data areas")?;
        let metadata_areas = self.areas("metadata areas")?;
        let extension = self.extension()?;
        Ok(PvHeader { id, device_bytes, data_areas, metadata_areas, extension })
    }

    fn extension(&mut self) -> Result<Option<Extension>, FormatError> {
        let Some(head) = self.take(8) else { return Ok(None) };
        let (version, flags) = (u32_le(head, 0), u32_le(head, 4));
        if version == 0 {
            return Ok(None);
        }
        Ok(Some(Extension { version, flags, bootloader_areas: self.areas("bootloader areas")? }))
    }

    /// A list up to the zero pair that ends it.
    fn areas(&mut self, field: &'static str) -> Result<Vec<DiskArea>, FormatError> {
        let mut areas = Vec::new();
        let start = self.at;
        let wrong = |found: String, expected: &str| {
            Err(FormatError::invalid("LVM2 PV header", start, field, found, expected))
        };
        loop {
            let Some(pair) = self.take(16) else {
                return wrong("a list without an end".into(), "a zero pair in this sector");
            };
            let area = DiskArea { offset: u64_le(pair, 0), size: u64_le(pair, 8) };
            if area.offset == 0 {
                return Ok(areas);
            }
            if area.offset.checked_add(area.size).is_none_or(|end| i64::try_from(end).is_err()) {
                let found = format!("{} bytes at {}", area.size, area.offset);
                return wrong(found, "an end below 2^63");
            }
            areas.push(area);
        }
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        self.at += length(count);
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Piece, Sparse};

    const ID: &[u8; 32] = b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    /// A label whose PV header begins at `offset`, with these words behind UUID and size, and a right CRC.
    fn label(offset: u32, words: &[u64]) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        put(&mut bytes, 0, MAGIC);
        bytes[8] = 1;
        put(&mut bytes, 20, &offset.to_le_bytes());
        put(&mut bytes, 24, TYPE);
        let mut header = [&ID[..], &(1u64 << 32).to_le_bytes()].concat();
        header.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let at = crate::bytes::index(offset);
        for (to, from) in bytes.iter_mut().skip(at).zip(header) {
            *to = from;
        }
        mend_label_crc(&mut bytes);
        bytes
    }

    #[track_caller]
    fn assert_refused(bytes: &[u8; BLOCK_BYTES], expected: &str) {
        let error = Label::parse(bytes, 1).expect_err("it contradicts the format").to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_header_that_does_not_fit_into_the_sector_is_refused() {
        assert_refused(
            &label(0x2000, &[]),
            "LVM2 label at 512: offset of the PV header is 8192, expected 32 to 472",
        );
        assert_refused(&label(473, &[]), "offset of the PV header is 473");
        let mut before_its_place = label(32, &[]);
        before_its_place[20] = 31;
        mend_label_crc(&mut before_its_place);
        assert_refused(&before_its_place, "offset of the PV header is 31");
        assert_refused(&label(u32::MAX, &[]), "offset of the PV header is 4294967295");
        let good = Label::parse(&label(32, &[]), 1).unwrap();
        assert_eq!((good.pv.id.bytes(), good.pv.device_bytes, good.pv.extension), (ID, 1 << 32, None));
        // There is room for the header, and none for the ends of its lists.
        assert_refused(&label(472, &[]), "LVM2 PV header at 1024: data areas is a list without an end");
    }

    #[test]
    fn a_list_of_areas_without_an_end_is_refused() {
        let areas: Vec<u64> = (0..60).flat_map(|n| [0x10_0000 + n * 0x1000, 0x1000]).collect();
        assert_refused(&label(32, &areas), "data areas is a list without an end");
        assert_refused(
            &label(32, &[&[0, 0], &areas[..]].concat()),
            "metadata areas is a list without an end",
        );
        let extension = [2, 0x10_0000, 0x1000];
        let tail = [&[0, 0, 0, 0], &extension[..1], &areas[..]].concat();
        assert_refused(&label(32, &tail), "bootloader areas is a list without an end");
    }

    #[test]
    fn an_extension_that_has_no_room_is_absent() {
        // With the header at 40 the last zero pair ends with the sector.
        let areas: Vec<u64> = [&[0x10_0000, 0x1000, 0, 0], &[0x1000u64, 0x10_0000].repeat(24)[..]].concat();
        let label = Label::parse(&label(40, &areas), 1).unwrap();
        assert_eq!(label.pv.extension, None);
        assert_eq!((label.pv.data_areas.len(), label.pv.metadata_areas.len()), (1, 24));
    }

    #[test]
    fn an_area_that_ends_beyond_63_bits_is_refused() {
        assert_refused(&label(32, &[u64::MAX, 1]), "data areas is 1 bytes at 18446744073709551615");
        assert_refused(
            &label(32, &[0, 0, 4096, 1 << 63]),
            "metadata areas is 9223372036854775808 bytes at 4096",
        );
    }

    #[test]
    fn a_new_header_has_one_area_before_its_extents_and_a_flag_that_can_be_set() {
        let id = Uuid::from_compact(ID).unwrap();
        let mut pv = PvHeader::new(id, 1 << 30, PvHeader::DATA_OFFSET);
        assert_eq!(pv.metadata_areas, [DiskArea { offset: 4096, size: 1_044_480 }]);
        assert_eq!(pv.data_areas, [DiskArea { offset: 1 << 20, size: 0 }]);
        assert!(!pv.in_use() && pv.set_in_use(true) && !pv.set_in_use(true) && pv.in_use());
        let label = Label { sector: 1, pv: pv.clone() };
        assert_eq!(Label::parse(&label.encode().unwrap(), 1), Ok(label));
        assert!(pv.set_in_use(false) && !pv.in_use());
        pv.extension.as_mut().unwrap().version = 1;
        assert!(!pv.set_in_use(true), "version 1 has no such flag");
    }

    #[test]
    fn magic_sector_crc_type_and_uuid_are_checked() {
        let good = label(32, &[]);
        for (at, expected) in
            [(0, "magic is"), (8, "sector number is 0, expected 1"), (16, "CRC is"), (25, "type is")]
        {
            let mut bytes = good;
            bytes[at] ^= 1;
            if at == 25 {
                assert_refused(&bytes, "CRC is");
                mend_label_crc(&mut bytes);
            }
            assert_refused(&bytes, expected);
        }
        let mut bytes = good;
        bytes[40] = 0x1b;
        mend_label_crc(&mut bytes);
        assert_refused(&bytes, "UUID is AAAAAAAA\\u{1b}AAA");
    }

    #[test]
    fn the_first_good_label_of_four_sectors_is_taken_and_damaged_ones_are_told() {
        let good = Label::parse(&label(32, &[]), 1).unwrap();
        let at = |sector: u64| {
            let bytes = Label { sector, ..good.clone() }.encode().unwrap().to_vec();
            Piece { offset: sector * 512, bytes }
        };
        let find = |pieces: Vec<Piece>| Label::find(&Sparse::new(1 << 20, pieces));
        assert_eq!(find(vec![]), Ok(None));
        assert_eq!(find(vec![at(4)]), Ok(None));
        assert_eq!(find(vec![at(3)]).unwrap().unwrap().label.sector, 3);
        let torn = Piece { offset: 600, bytes: vec![7] };
        let found = find(vec![at(1), at(2), torn.clone()]).unwrap().unwrap();
        assert_eq!((found.label.sector, found.damaged.len()), (2, 1));
        assert_eq!(find(vec![at(1), torn]).unwrap_err().field, "CRC");
        assert_eq!(Label::find(&Sparse::new(100, vec![])), Ok(None));
        // A label that was copied to another sector is none.
        let moved = Piece { offset: 1024, ..at(1) };
        assert_eq!(find(vec![moved]).unwrap_err().field, "sector number");
    }

    fn any_areas() -> impl Strategy<Value = Vec<DiskArea>> {
        let area = (1..1u64 << 62, 0..1u64 << 62).prop_map(|(offset, size)| DiskArea { offset, size });
        proptest::collection::vec(area, 0..6)
    }

    proptest! {
        #[test]
        fn a_label_that_is_encoded_and_parsed_is_the_same_label(
            id in "[0-9a-zA-Z!#]{32}", device_bytes: u64, sector in 0u64..4, data in any_areas(), metadata in any_areas(),
            extension in proptest::option::of((1u32.., any::<u32>(), any_areas())),
        ) {
            let extension =
                extension.map(|(version, flags, bootloader_areas)| Extension { version, flags, bootloader_areas });
            let id = Uuid::from_compact(id.as_bytes()).unwrap();
            let pv = PvHeader { id, device_bytes, data_areas: data, metadata_areas: metadata, extension };
            let label = Label { sector, pv };
            prop_assert_eq!(Label::parse(&label.encode().unwrap(), sector), Ok(label));
        }
    }
}
