//! The persistent exception store of dm-snapshot: what a snapshot keeps of its origin's old content, and where.
//!
//! A snapshot is its origin but for *exceptions*: chunks whose old content (or what was written to the snapshot itself) lies in
//! the store. Both are counted in chunks, a power of two of sectors. All numbers are little-endian.
//!
//! | chunk of the store | what |
//! | --- | --- |
//! | 0 | header: magic u32 "SnAp", valid u32, version u32 (1), chunk size u32 in sectors |
//! | 1 + k·(E+1) | area k: E = chunk bytes / 16 exceptions, each {old u64, new u64} |
//! | the others | data: the content of one exception each |
//!
//! Invariants: (1) the list of exceptions runs through the areas in order and ends at the first whose new chunk is 0; what
//! lies behind it means nothing; (2) in a [`Contents`] no two exceptions have the same old chunk, or the same new one, every new
//! chunk is a data chunk inside the store, and every old one inside the snapshot; (3) `valid` = 0 is for ever: the snapshot
//! has lost something.
//!
//! Source: the kernel's `drivers/md/dm-snap-persistent.c`, for the facts.

mod read;
#[cfg(test)]
mod tests;

pub use read::{Contents, Found, read, read_header};

use crate::bytes::{put, u32_le, u64_le};
use crate::source::Piece;
use crate::{FormatError, SECTOR_BYTES};

/// Bytes of a header that is written: what matters is in the first 16.
pub const HEADER_BYTES: usize = 512;

/// Bytes of an exception.
pub const EXCEPTION_BYTES: u64 = 16;

/// Largest chunk, sectors: the largest power of two that the kernel takes.
pub const CHUNK_SECTORS_MAX: u32 = 1 << 21;

/// One past the largest number of a chunk that is supported: 16 TiB of chunks of 4 KiB.
pub const CHUNKS_MAX: u64 = u32::MAX as u64 - 1;

const MAGIC: u32 = 0x7041_6e53;
const VERSION: u32 = 1;
const HEADER_CHUNKS: u64 = 1;
const PLACE: &str = "exception store header";

/// What the first chunk says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// False: the snapshot is lost, for ever.
    pub valid: bool,
    /// Size of a chunk.
    pub layout: Layout,
}

impl Header {
    /// Takes the first bytes of a store apart; none: it was never used.
    ///
    /// # Errors
    ///
    /// Another magic or version, or a chunk size that no store can have.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Option<Header>, FormatError> {
        let magic = u32_le(bytes, 0);
        if magic == 0 {
            return Ok(None);
        }
        if magic != MAGIC {
            let expected = format!("{MAGIC:#010x}, or 0 in a new store");
            return Err(FormatError::invalid(PLACE, 0, "magic", format!("{magic:#010x}"), expected)
                .with_remedy("is this the store of a snapshot?"));
        }
        let version = u32_le(bytes, 8);
        if version != VERSION {
            return Err(FormatError::invalid(PLACE, 8, "version", version, VERSION));
        }
        let chunk = u32_le(bytes, 12);
        let layout = Layout::new(chunk).ok_or_else(|| {
            let expected = format!("a power of two up to {CHUNK_SECTORS_MAX} sectors");
            FormatError::invalid(PLACE, 12, "chunk size", chunk, expected)
        })?;
        Ok(Some(Header { valid: u32_le(bytes, 4) != 0, layout }))
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        put(&mut out, 4, &u32::from(self.valid).to_le_bytes());
        put(&mut out, 8, &VERSION.to_le_bytes());
        put(&mut out, 12, &self.layout.chunk_sectors.to_le_bytes());
        out
    }
}

/// What has to be on a store before it is used for the first time: no exceptions. In this order, the second only when the
/// first is durable, a power cut leaves a store that is new.
pub fn create(layout: Layout) -> [Piece; 2] {
    let area = vec![0; usize::try_from(layout.chunk_bytes()).expect("at most 1 GiB")];
    let header = Header { valid: true, layout }.encode().to_vec();
    [
        Piece { offset: layout.area_chunk(0) * layout.chunk_bytes(), bytes: area },
        Piece { offset: 0, bytes: header },
    ]
}

/// A chunk whose content is in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exception {
    /// Chunk of the origin.
    pub old: u64,
    /// Chunk of the store.
    pub new: u64,
}

impl Exception {
    /// Its bytes.
    pub fn encode(&self) -> [u8; 16] {
        let mut out = [0; 16];
        put(&mut out, 0, &self.old.to_le_bytes());
        put(&mut out, 8, &self.new.to_le_bytes());
        out
    }

    /// The exceptions in bytes of a list, up to its end.
    pub fn decode_all(bytes: &[u8]) -> Vec<Exception> {
        bytes.chunks_exact(EXCEPTION_BYTES as usize).map_while(Exception::decode).collect()
    }

    /// The exception in 16 bytes; none: the list ends here.
    fn decode(bytes: &[u8]) -> Option<Exception> {
        let (old, new) = (u64_le(bytes, 0), u64_le(bytes, 8));
        (new != 0).then_some(Exception { old, new })
    }
}

/// Where things are in a store, which follows from its chunk size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    chunk_sectors: u32,
}

impl Layout {
    /// The layout for a chunk size in sectors; none: no store has that.
    pub fn new(chunk_sectors: u32) -> Option<Layout> {
        let fits = chunk_sectors.is_power_of_two() && chunk_sectors <= CHUNK_SECTORS_MAX;
        fits.then_some(Layout { chunk_sectors })
    }

    /// Sectors of a chunk.
    pub fn chunk_sectors(self) -> u64 {
        self.chunk_sectors.into()
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(self) -> u64 {
        self.chunk_sectors() * SECTOR_BYTES
    }

    /// Exceptions in an area.
    pub fn exceptions_per_area(self) -> u64 {
        self.chunk_bytes() / EXCEPTION_BYTES
    }

    /// The chunk that is area `area`.
    pub fn area_chunk(self, area: u64) -> u64 {
        HEADER_CHUNKS + area * (self.exceptions_per_area() + 1)
    }

    /// Whether a chunk is the header or an area.
    pub fn is_metadata(self, chunk: u64) -> bool {
        chunk == 0 || chunk % (self.exceptions_per_area() + 1) == HEADER_CHUNKS
    }

    /// The first data chunk at or behind `chunk`.
    pub fn data_chunk(self, chunk: u64) -> u64 {
        let chunk = chunk.max(HEADER_CHUNKS + 1);
        if self.is_metadata(chunk) { chunk + 1 } else { chunk }
    }

    /// Sectors that are in use, as `dmsetup status` counts them, where `next` is the next chunk to be given out and `area`
    /// the area that is being filled: those of data and metadata together, and those of metadata.
    pub fn used_sectors(self, next: u64, area: u64) -> (u64, u64) {
        (next * self.chunk_sectors(), (area + 1 + HEADER_CHUNKS) * self.chunk_sectors())
    }
}
