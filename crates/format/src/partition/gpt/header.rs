//! One copy of a GPT, header and entries, checked.

use super::{ENTRIES_MAX, ENTRY_ARRAY_BYTES_MAX, ENTRY_BYTES, ENTRY_BYTES_MAX};
use crate::FormatError;
use crate::bytes::{array, index, length, put, u32_le, u64_le};
use crate::partition::Guid;
use crate::source::Source;

pub(super) const SIGNATURE: [u8; 8] = *b"EFI PART";
pub(super) const REVISION: u32 = 0x0001_0000;
pub(super) const HEADER_BYTES: u32 = 92;
const SIGNATURE_FIELD: &str = "signature";
const DISK_SIZE_FIELD: &str = "disk size";

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copy {
    Primary,
    Backup,
}

impl Copy {
    fn place(self) -> &'static str {
        match self {
            Copy::Primary => "GPT header",
            Copy::Backup => "backup GPT header",
        }
    }

    fn entries_place(self) -> &'static str {
        match self {
            Copy::Primary => "GPT entries",
            Copy::Backup => "backup GPT entries",
        }
    }
}

/// A header; addresses in logical blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub block: u64,
    pub alternate: u64,
    pub first_usable: u64,
    pub last_usable: u64,
    pub disk_guid: Guid,
    pub entries_block: u64,
    pub entries: u32,
    pub entry_bytes: u32,
    pub entries_crc: u32,
}

impl Header {
    /// The header's block, with its CRC.
    pub fn encode(&self, block_size: u32) -> Vec<u8> {
        let mut out = vec![0; index(block_size)];
        put(&mut out, 0, &SIGNATURE);
        put(&mut out, 8, &REVISION.to_le_bytes());
        put(&mut out, 12, &HEADER_BYTES.to_le_bytes());
        put(&mut out, 24, &self.block.to_le_bytes());
        put(&mut out, 32, &self.alternate.to_le_bytes());
        put(&mut out, 40, &self.first_usable.to_le_bytes());
        put(&mut out, 48, &self.last_usable.to_le_bytes());
        put(&mut out, 56, &self.disk_guid.0);
        put(&mut out, 72, &self.entries_block.to_le_bytes());
        put(&mut out, 80, &self.entries.to_le_bytes());
        put(&mut out, 84, &self.entry_bytes.to_le_bytes());
        put(&mut out, 88, &self.entries_crc.to_le_bytes());
        fix_crcs(&mut out, None);
        out
    }

    fn array_bytes(&self) -> u64 {
        u64::from(self.entries) * u64::from(self.entry_bytes)
    }
}

/// A header whose CRC and fields were checked, with its entries, whose CRC was checked.
#[derive(Debug)]
pub(super) struct Loaded {
    pub block_size: u32,
    /// Last block of the disk.
    pub last_block: u64,
    pub header: Header,
    pub entries: Vec<u8>,
}

impl Loaded {
    /// Reads and checks the copy whose header is at `block`.
    pub fn read(source: &dyn Source, block_size: u32, copy: Copy, block: u64) -> Result<Self, FormatError> {
        let reader = Reader { source, block_size, copy, block };
        let (bytes, last_block) = reader.block_bytes()?;
        let header = reader.parse(&bytes)?;
        reader.check_fields(&header, last_block)?;
        let entries = reader.entries(&header)?;
        Ok(Self { block_size, last_block, header, entries })
    }

    /// Whether the other copy describes the same partitions.
    pub fn agrees_with(&self, other: &Loaded) -> bool {
        self.header.disk_guid == other.header.disk_guid && self.entries == other.entries
    }

    /// Ranges of blocks (inclusive) that no partition may touch.
    pub fn own_blocks(&self) -> [(u64, u64); 3] {
        let header = &self.header;
        let array_blocks = header.array_bytes().div_ceil(u64::from(self.block_size)).max(1);
        let entries = (header.entries_block, header.entries_block + (array_blocks - 1));
        [(0, 1), entries, (header.block, header.block)]
    }
}

/// Last logical block of the disk, where it has at least the three that a GPT needs.
pub(super) fn last_block(source: &dyn Source, block_size: u32) -> Option<u64> {
    (source.size() / u64::from(block_size)).checked_sub(1).filter(|last| *last >= 2)
}

/// Whether the error says that there is no GPT header at all.
pub(super) fn is_absent(error: &FormatError) -> bool {
    error.field == SIGNATURE_FIELD || error.field == DISK_SIZE_FIELD
}

struct Reader<'a> {
    source: &'a dyn Source,
    block_size: u32,
    copy: Copy,
    block: u64,
}

impl Reader<'_> {
    fn wrong(
        &self,
        field: &'static str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> FormatError {
        let offset = self.block.saturating_mul(u64::from(self.block_size));
        FormatError::invalid(self.copy.place(), offset, field, found, expected)
    }

    fn block_bytes(&self) -> Result<(Vec<u8>, u64), FormatError> {
        let last = last_block(self.source, self.block_size).filter(|last| self.block <= *last);
        let Some(last) = last else {
            let size = self.source.size();
            let expected =
                format!("a disk that holds block {} of {} bytes", self.block.max(2), self.block_size);
            return Err(self
                .wrong(DISK_SIZE_FIELD, size, expected)
                .with_remedy("was the disk or image cut?"));
        };
        let mut bytes = vec![0; index(self.block_size)];
        let offset = self.block * u64::from(self.block_size);
        self.source
            .read_at(offset, &mut bytes)
            .map_err(|error| FormatError::unreadable(self.copy.place(), offset, &error))?;
        Ok((bytes, last))
    }

    /// Signature, size and CRC; after that the bytes are what somebody meant to write.
    fn parse(&self, bytes: &[u8]) -> Result<Header, FormatError> {
        if bytes[..8] != SIGNATURE {
            let found = format!("\"{}\"", bytes[..8].escape_ascii());
            return Err(self.wrong(SIGNATURE_FIELD, found, "\"EFI PART\""));
        }
        let header_bytes = u32_le(bytes, 12);
        if !(HEADER_BYTES..=self.block_size).contains(&header_bytes) {
            let expected = format!("{HEADER_BYTES} to {}", self.block_size);
            return Err(self.wrong("header size", header_bytes, expected));
        }
        let (stored, computed) = (u32_le(bytes, 16), header_crc(&bytes[..index(header_bytes)]));
        if stored != computed {
            return Err(self.wrong("header CRC", format!("{stored:#010x}"), format!("{computed:#010x}")));
        }
        Ok(Header {
            block: u64_le(bytes, 24),
            alternate: u64_le(bytes, 32),
            first_usable: u64_le(bytes, 40),
            last_usable: u64_le(bytes, 48),
            disk_guid: Guid(array(bytes, 56)),
            entries_block: u64_le(bytes, 72),
            entries: u32_le(bytes, 80),
            entry_bytes: u32_le(bytes, 84),
            entries_crc: u32_le(bytes, 88),
        })
    }

    fn check_fields(&self, header: &Header, last_block: u64) -> Result<(), FormatError> {
        if header.block != self.block {
            return Err(self.wrong("own block", header.block, self.block));
        }
        if header.last_usable > last_block {
            return Err(self
                .wrong(
                    "last usable block",
                    header.last_usable,
                    format!("at most {last_block}, the disk's last"),
                )
                .with_remedy("the disk or image was cut: bring it back to its old size"));
        }
        if header.first_usable > header.last_usable {
            let expected = format!("at most {}, the last usable one", header.last_usable);
            return Err(self.wrong("first usable block", header.first_usable, expected));
        }
        let (size, max) = (header.entry_bytes, ENTRY_BYTES_MAX);
        if !size.is_power_of_two() || !(ENTRY_BYTES..=max).contains(&size) {
            return Err(self.wrong("entry size", size, format!("128 times a power of two, at most {max}")));
        }
        if header.entries > ENTRIES_MAX || header.array_bytes() > ENTRY_ARRAY_BYTES_MAX {
            let expected = format!("at most {ENTRIES_MAX}, and {ENTRY_ARRAY_BYTES_MAX} bytes in all");
            let offset = self.block * u64::from(self.block_size);
            return Err(FormatError::limit(
                self.copy.place(),
                offset,
                "number of entries",
                header.entries,
                expected,
            ));
        }
        let blocks = header.array_bytes().div_ceil(u64::from(self.block_size)).max(1);
        let end = header.entries_block.checked_add(blocks).filter(|end| *end - 1 <= last_block);
        if header.entries_block < 2 || end.is_none() {
            let expected = format!("2 or more, with {blocks} blocks up to the disk's last, {last_block}");
            return Err(self.wrong("first block of the entries", header.entries_block, expected));
        }
        Ok(())
    }

    fn entries(&self, header: &Header) -> Result<Vec<u8>, FormatError> {
        let offset = header.entries_block * u64::from(self.block_size);
        let bytes = usize::try_from(header.array_bytes()).expect("checked against ENTRY_ARRAY_BYTES_MAX");
        let mut entries = vec![0; bytes];
        let place = self.copy.entries_place();
        self.source
            .read_at(offset, &mut entries)
            .map_err(|error| FormatError::unreadable(place, offset, &error))?;
        let (stored, computed) = (header.entries_crc, crc32fast::hash(&entries));
        if stored != computed {
            let expected = format!("{stored:#010x} as the header says");
            return Err(FormatError::invalid(place, offset, "CRC", format!("{computed:#010x}"), expected));
        }
        Ok(entries)
    }
}

/// CRC of a header with its CRC field as zero.
fn header_crc(header: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..16]);
    hasher.update(&[0; 4]);
    hasher.update(&header[20..]);
    hasher.finalize()
}

pub(super) fn fix_crcs(header: &mut [u8], entries: Option<&[u8]>) {
    if header.len() < index(HEADER_BYTES) {
        return;
    }
    if let Some(entries) = entries {
        let bytes = u64::from(u32_le(header, 80)) * u64::from(u32_le(header, 84));
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(entries.len());
        let crc = crc32fast::hash(&entries[..bytes]);
        put(header, 88, &crc.to_le_bytes());
    }
    let size = u64::from(u32_le(header, 12)).clamp(u64::from(HEADER_BYTES), length(header.len()));
    let crc = header_crc(&header[..usize::try_from(size).expect("at most a slice's length")]);
    put(header, 16, &crc.to_le_bytes());
}
