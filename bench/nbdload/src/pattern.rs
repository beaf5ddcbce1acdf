//! The self-describing content of a verified block.
//!
//! Every 512-byte sector carries, in little-endian 64-bit words: magic, run seed, its own byte offset on the disk, the
//! generation of its block's write (1 for the first write, then counting up), and 60 words that a mixing function
//! derives from those. Hence (1) a sector at the wrong place, (2) a stale one, (3) one of another run and (4) a single
//! changed byte are all seen, and each is told apart in the message; (5) a torn write is seen as sectors of different
//! generations.

use std::fmt;
use std::ops::RangeInclusive;

/// Bytes of the unit that describes itself.
pub const SECTOR_BYTES: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"nbdload1");
const HEAD_WORDS: usize = 4;

/// Fills a block that starts at byte `offset` of the disk. Its length is a multiple of 512.
pub fn fill(block: &mut [u8], seed: u64, offset: u64, generation: u32) {
    assert!(block.len().is_multiple_of(SECTOR_BYTES));
    for (index, sector) in block.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        let at = offset + (index * SECTOR_BYTES) as u64;
        let key = key(seed, at, generation);
        let head = [MAGIC, seed, at, u64::from(generation)];
        for (n, word) in sector.chunks_exact_mut(8).enumerate() {
            let value = if n < HEAD_WORDS { head[n] } else { body(key, n) };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// What a block should be.
#[derive(Debug, Clone)]
pub struct Expected {
    /// Seed of the run that wrote it.
    pub seed: u64,
    /// The generations it may have.
    pub generations: RangeInclusive<u32>,
}

/// A sector that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Byte offset of the sector on the disk.
    pub offset: u64,
    /// What is there instead.
    pub found: Found,
    /// The generations that were allowed.
    pub generations: RangeInclusive<u32>,
}

/// What was found in a wrong sector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Only zeros: never written, or lost.
    Zeros,
    /// No pattern of this program.
    Foreign,
    /// A sector that another run wrote.
    OtherRun(u64),
    /// A sector that belongs at this byte offset.
    OtherPlace(u64),
    /// Another generation: too old is a lost write, too new was never issued.
    Generation(u64),
    /// The right head, but a damaged body: the byte in the sector, and that byte as it should be and is.
    Damaged { byte: usize, expected: u8, found: u8 },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = (self.generations.start(), self.generations.end());
        write!(f, "sector at byte {}: expected generation {low}", self.offset)?;
        match *high {
            u32::MAX => write!(f, " or later")?,
            high if high != *low => write!(f, " to {high}")?,
            _ => {}
        }
        match &self.found {
            Found::Zeros => write!(f, ", found zeros"),
            Found::Foreign => write!(f, ", found data that nbdload did not write"),
            Found::OtherRun(seed) => write!(f, ", found data of the run with seed {seed}"),
            Found::OtherPlace(at) => write!(f, ", found the sector that belongs at byte {at}"),
            Found::Generation(g) => write!(f, ", found generation {g}"),
            Found::Damaged { byte, expected, found } => {
                write!(f, ", found byte {byte} damaged: {found:#04x} instead of {expected:#04x}")
            }
        }
    }
}

/// Checks a block read from byte `offset`. `Ok(true)` means that its sectors differ in generation (a torn write, all
/// within what is allowed).
pub fn check(block: &[u8], offset: u64, expected: &Expected) -> Result<bool, Mismatch> {
    let mut first: Option<u64> = None;
    let mut torn = false;
    for (index, sector) in block.chunks_exact(SECTOR_BYTES).enumerate() {
        let at = offset + (index * SECTOR_BYTES) as u64;
        let generation = check_sector(sector, at, expected).map_err(|found| Mismatch {
            offset: at,
            found,
            generations: expected.generations.clone(),
        })?;
        torn |= *first.get_or_insert(generation) != generation;
    }
    Ok(torn)
}

fn check_sector(sector: &[u8], at: u64, expected: &Expected) -> Result<u64, Found> {
    let word = |n: usize| u64::from_le_bytes(sector[n * 8..n * 8 + 8].try_into().expect("eight bytes"));
    if word(0) != MAGIC {
        return Err(if sector.iter().all(|b| *b == 0) { Found::Zeros } else { Found::Foreign });
    }
    if word(1) != expected.seed {
        return Err(Found::OtherRun(word(1)));
    }
    if word(2) != at {
        return Err(Found::OtherPlace(word(2)));
    }
    let generation = word(3);
    let Some(small) = u32::try_from(generation).ok().filter(|g| expected.generations.contains(g)) else {
        return Err(Found::Generation(generation));
    };
    let key = key(expected.seed, at, small);
    for n in HEAD_WORDS..SECTOR_BYTES / 8 {
        if word(n) != body(key, n) {
            let right = body(key, n).to_le_bytes();
            let byte = (0..8).find(|b| right[*b] != sector[n * 8 + b]).expect("the words differ");
            let (expected, found) = (right[byte], sector[n * 8 + byte]);
            return Err(Found::Damaged { byte: n * 8 + byte, expected, found });
        }
    }
    Ok(generation)
}

fn key(seed: u64, at: u64, generation: u32) -> u64 {
    mix(mix(seed ^ at.rotate_left(17)) ^ u64::from(generation))
}

fn body(key: u64, n: usize) -> u64 {
    mix(key.wrapping_add(n as u64))
}

/// SplitMix64's finaliser: a bijection that spreads one changed bit over all 64.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expect(generations: RangeInclusive<u32>) -> Expected {
        Expected { seed: 7, generations }
    }

    fn block(offset: u64, generation: u32) -> Vec<u8> {
        let mut block = vec![0; 4096];
        fill(&mut block, 7, offset, generation);
        block
    }

    proptest! {
        #[test]
        fn any_single_changed_byte_is_found(byte in 0usize..4096, flip in 1u8..=255, generation in 1u32..1000) {
            let mut data = block(8192, generation);
            prop_assert_eq!(check(&data, 8192, &expect(generation..=generation)), Ok(false));
            data[byte] ^= flip;
            let wrong = check(&data, 8192, &expect(generation..=generation)).unwrap_err();
            prop_assert_eq!(wrong.offset, 8192 + (byte / 512 * 512) as u64);
        }
    }

    #[test]
    fn a_misplaced_a_stale_a_foreign_and_an_empty_block_are_told_apart() {
        let found = |data: &[u8], at, e: &Expected| check(data, at, e).unwrap_err().found;
        assert_eq!(found(&block(0, 1), 4096, &expect(1..=1)), Found::OtherPlace(0));
        assert_eq!(found(&block(0, 1), 0, &expect(2..=u32::MAX)), Found::Generation(1));
        assert_eq!(found(&block(0, 1), 0, &Expected { seed: 8, generations: 1..=1 }), Found::OtherRun(7));
        assert_eq!(found(&[0; 4096], 0, &expect(1..=1)), Found::Zeros);
        assert_eq!(found(&[9; 4096], 0, &expect(1..=1)), Found::Foreign);
    }

    #[test]
    fn a_torn_block_is_allowed_only_within_the_range_and_is_reported() {
        let mut torn = block(0, 3);
        torn[2048..].copy_from_slice(&block(0, 4)[2048..]);
        assert_eq!(check(&torn, 0, &expect(3..=u32::MAX)), Ok(true));
        assert_eq!(check(&torn, 0, &expect(4..=4)).unwrap_err().found, Found::Generation(3));
    }
}
