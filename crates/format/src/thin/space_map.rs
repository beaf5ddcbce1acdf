//! Space maps: how many references each block has.
//!
//! A bitmap holds 16,320 counts of two bits (3: look in the tree of larger counts), of which the *high* bit comes first: bit 2e of a
//! byte's worth weighs 2, bit 2e+1 weighs 1. The bitmaps of the data device are found by a tree, those of the metadata device by
//! one block, which bounds its size.

use crate::FormatError;
use crate::bytes::{length, put, u64_le};

use super::value::{IndexEntry, Value};
use super::{BLOCK_BYTES, Block, BlockKind};

/// Blocks that one bitmap counts.
pub const BITMAP_ENTRIES: u64 = 16_320;

/// Bitmaps that the index of the metadata space map has room for.
pub const INDEX_ENTRIES: usize = 255;

/// Bytes of a root in the superblock, of which the first 32 are used.
pub(super) const ROOT_BYTES: usize = 128;

const HEADER_BYTES: usize = 16;

/// Entries of a word of a bitmap.
const WORD_ENTRIES: u64 = 32;

/// The lower bit of each entry of a word.
const EACH: u64 = 0x5555_5555_5555_5555;

/// Where a space map begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceMapRoot {
    /// Blocks that it counts.
    pub blocks: u64,
    /// How many of them are in use. A hint: the tools get it wrong by one.
    pub allocated: u64,
    /// Of a data space map the tree bitmap → [`IndexEntry`]; of a metadata space map the [`MetadataIndex`].
    pub bitmap_root: u64,
    /// The tree block → count, of counts from 3 on.
    pub ref_count_root: u64,
}

impl SpaceMapRoot {
    pub(super) fn decode(bytes: &[u8]) -> SpaceMapRoot {
        SpaceMapRoot {
            blocks: u64_le(bytes, 0),
            allocated: u64_le(bytes, 8),
            bitmap_root: u64_le(bytes, 16),
            ref_count_root: u64_le(bytes, 24),
        }
    }

    pub(super) fn encode(&self) -> [u8; ROOT_BYTES] {
        let mut out = [0; ROOT_BYTES];
        let words = [self.blocks, self.allocated, self.bitmap_root, self.ref_count_root];
        for (at, word) in words.into_iter().enumerate() {
            put(&mut out, 8 * at, &word.to_le_bytes());
        }
        out
    }

    /// How many bitmaps it has.
    pub fn bitmaps(&self) -> u64 {
        self.blocks.div_ceil(BITMAP_ENTRIES)
    }
}

/// Counts of 16,320 blocks, up to 3.
#[derive(Clone, PartialEq, Eq)]
pub struct Bitmap(Box<Block>);

impl std::fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = (0..BITMAP_ENTRIES).filter(|entry| self.get(*entry) != 0).count();
        write!(f, "Bitmap({used} of {BITMAP_ENTRIES} in use)")
    }
}

impl Default for Bitmap {
    fn default() -> Self {
        Bitmap(Box::new([0; BLOCK_BYTES]))
    }
}

impl Bitmap {
    /// Takes the bitmap in block `nr`.
    ///
    /// # Errors
    ///
    /// It is damaged, or no bitmap.
    pub fn decode(nr: u64, block: Box<Block>) -> Result<Bitmap, FormatError> {
        BlockKind::Bitmap.verify(nr, &block)?;
        Ok(Bitmap(block))
    }

    /// Its bytes, as block `nr`.
    pub fn encode(mut self, nr: u64) -> Box<Block> {
        BlockKind::Bitmap.seal(nr, &mut self.0);
        self.0
    }

    /// The count of an entry below [`BITMAP_ENTRIES`]; 3: that or more.
    pub fn get(&self, entry: u64) -> u32 {
        let (byte, shift) = place(entry);
        let pair = self.0[byte] >> shift & 3;
        u32::from(pair & 1) << 1 | u32::from(pair >> 1)
    }

    /// Sets the count of an entry; more than 3 becomes 3.
    pub fn set(&mut self, entry: u64, count: u32) {
        let (byte, shift) = place(entry);
        let pair = [0b00, 0b10, 0b01, 0b11][crate::bytes::index(count.min(3))];
        self.0[byte] = self.0[byte] & !(3 << shift) | pair << shift;
    }

    /// 32 entries from `32 * at`: a bit for each that is not 0, at twice its place.
    fn used(&self, at: usize) -> u64 {
        let word = u64_le(&self.0[..], HEADER_BYTES + 8 * at);
        (word | word >> 1) & EACH
    }

    /// The first entry from `from` on and below `end` that is 0 in all of `maps`.
    pub(super) fn first_free(maps: &[&Bitmap], from: u64, end: u64) -> Option<u64> {
        let mut entry = from;
        while entry < end {
            let at = usize::try_from(entry / WORD_ENTRIES).expect("below 510");
            let before = (1u64 << (2 * (entry % WORD_ENTRIES))) - 1;
            let used = maps.iter().fold(before & EACH, |used, map| used | map.used(at));
            let first = entry / WORD_ENTRIES * WORD_ENTRIES;
            if used != EACH {
                let free = first + u64::from((!used & EACH).trailing_zeros()) / 2;
                return Some(free).filter(|free| *free < end);
            }
            entry = first + WORD_ENTRIES;
        }
        None
    }

    /// The first entry from `from` on and below `end` that is not 0 in one of `maps`; `end`: there is none.
    pub(super) fn first_used(maps: &[&Bitmap], from: u64, end: u64) -> u64 {
        let mut entry = from;
        while entry < end {
            let at = usize::try_from(entry / WORD_ENTRIES).expect("below 510");
            let used = maps.iter().fold(0, |used, map| used | map.used(at)) >> (2 * (entry % WORD_ENTRIES));
            if used != 0 {
                return end.min(entry + u64::from(used.trailing_zeros()) / 2);
            }
            entry = (entry / WORD_ENTRIES + 1) * WORD_ENTRIES;
        }
        end
    }

    /// What is not 0 in another one is not 0 here either.
    pub(super) fn unite(&mut self, other: &Bitmap) {
        self.0.iter_mut().zip(&other.0[..]).skip(HEADER_BYTES).for_each(|(own, other)| *own |= other);
    }

    /// How many entries are 0 here and not in all of `others`.
    pub(super) fn freed(&self, others: &[&Bitmap]) -> u64 {
        let words = 0..usize::try_from(BITMAP_ENTRIES / WORD_ENTRIES).expect("510");
        let freed = |at| {
            let used = others.iter().fold(0, |used, map| used | map.used(at));
            u64::from((used & !self.used(at)).count_ones())
        };
        words.map(freed).sum()
    }

    /// How many of the first `end` entries are 0.
    pub(super) fn free(&self, end: u64) -> u64 {
        let word = |at: u64| {
            let used = self.used(usize::try_from(at).expect("below 510"));
            let entries = (end - at * WORD_ENTRIES).min(WORD_ENTRIES);
            let mask = if entries == WORD_ENTRIES { EACH } else { ((1 << (2 * entries)) - 1) & EACH };
            u64::from((!used & mask).count_ones())
        };
        (0..end.min(BITMAP_ENTRIES).div_ceil(WORD_ENTRIES)).map(word).sum()
    }
}

/// The byte of an entry, and how far its pair is shifted there.
fn place(entry: u64) -> (usize, u32) {
    assert!(entry < BITMAP_ENTRIES, "entry {entry} of a bitmap");
    let within = u32::try_from(entry % 4).expect("below 4");
    (HEADER_BYTES + usize::try_from(entry / 4).expect("below 4080"), 2 * within)
}

/// Where the bitmaps of the metadata space map are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetadataIndex {
    /// The entries, as many as there are bitmaps.
    pub entries: Vec<IndexEntry>,
}

impl MetadataIndex {
    /// Takes the index in block `nr` apart, which has so many bitmaps.
    ///
    /// # Errors
    ///
    /// It is damaged, no index, or has no room for so many.
    pub fn decode(nr: u64, block: &Block, bitmaps: u64) -> Result<MetadataIndex, FormatError> {
        BlockKind::Index.verify(nr, block)?;
        if bitmaps > length(INDEX_ENTRIES) {
            return Err(BlockKind::Index.wrong(nr, HEADER_BYTES, "bitmaps", bitmaps, "at most 255"));
        }
        let bytes = block[HEADER_BYTES..].chunks_exact(IndexEntry::BYTES);
        let bitmaps = usize::try_from(bitmaps).expect("at most 255");
        Ok(MetadataIndex { entries: bytes.take(bitmaps).map(IndexEntry::decode).collect() })
    }

    /// Its bytes, as block `nr`.
    ///
    /// # Panics
    ///
    /// It has more than [`INDEX_ENTRIES`].
    pub fn encode(&self, nr: u64) -> Box<Block> {
        assert!(self.entries.len() <= INDEX_ENTRIES, "an index of 255 bitmaps");
        let mut block = Box::new([0; BLOCK_BYTES]);
        let places = block[HEADER_BYTES..].chunks_exact_mut(IndexEntry::BYTES);
        places.zip(&self.entries).for_each(|(place, entry)| entry.encode(place));
        BlockKind::Index.seal(nr, &mut block);
        block
    }
}
