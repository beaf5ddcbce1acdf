//! Data that says where it belongs: the 64-bit little-endian word at byte offset `o` is `(o / 8) XOR seed`.
//!
//! The same in the guest (`pattern write` and `pattern verify` of its scripts) and in tests of the host, so that what the kernel
//! wrote is verified by us and the other way round, and a wrong piece says where it came from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const PIECE: usize = 1 << 20;

/// Fills `data`, whose first byte is at byte `offset`, a multiple of 8.
pub fn fill(data: &mut [u8], offset: u64, seed: u64) {
    for (place, word) in (offset / 8..).zip(data.chunks_mut(8)) {
        word.copy_from_slice(&(place ^ seed).to_le_bytes()[..word.len()]);
    }
}

/// The first byte of `data` that is not of the pattern, from the pattern's start; `data` starts at byte `offset`, a multiple of 8.
pub fn mismatch(data: &[u8], offset: u64, seed: u64) -> Option<u64> {
    let mut expected = vec![0; data.len()];
    fill(&mut expected, offset, seed);
    let at = data.iter().zip(&expected).position(|(found, expected)| found != expected)?;
    Some(offset + at as u64)
}

/// Writes the pattern to bytes `offset..offset + length`, multiples of 8, and makes it durable.
pub fn write(file: &File, offset: u64, length: u64, seed: u64) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    for (at, nr) in pieces(offset, length) {
        fill(&mut piece[..nr], at, seed);
        file.write_all_at(&piece[..nr], at)?;
    }
    file.sync_all()
}

/// Compares bytes `offset..offset + length`, multiples of 8, with the pattern. The error says where they differ, and how.
pub fn verify(file: &File, offset: u64, length: u64, seed: u64) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    for (at, nr) in pieces(offset, length) {
        file.read_exact_at(&mut piece[..nr], at)?;
        if let Some(wrong) = mismatch(&piece[..nr], at, seed) {
            let start = (wrong - at) as usize & !7;
            let mut word = [0; 8];
            word[..(nr - start).min(8)].copy_from_slice(&piece[start..nr.min(start + 8)]);
            let (found, expected) = (u64::from_le_bytes(word), (wrong / 8) ^ seed);
            return Err(io::Error::other(format!(
                "byte {}: found word {found:#018x}, expected {expected:#018x}; with this seed it belongs to byte {}",
                wrong & !7,
                (found ^ seed).wrapping_mul(8)
            )));
        }
    }
    Ok(())
}

fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + length;
    (offset..end).step_by(PIECE).map(move |at| (at, (end - at).min(PIECE as u64) as usize))
}
