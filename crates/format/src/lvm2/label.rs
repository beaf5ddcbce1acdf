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
