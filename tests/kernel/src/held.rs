//! What each sector of a device holds, as a number that tells one content from another: the same in the guest (`held` of its scripts) and in
//! tests of the host, so that a whole device is compared without being carried, and one that is unreadable here and there as well.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

/// Bytes that have a number.
pub const SECTOR: usize = 512;

/// The number of a sector that cannot be read; no content has it.
pub const UNREADABLE: u64 = 0;

const PIECE: usize = 64 << 10;
/// What is read at once where a piece cannot be: what the kernel keeps together in its cache.
const PAGE: usize = 4096;

/// The number of what a sector holds.
pub fn number_of(sector: &[u8]) -> u64 {
    let mut number = 0x6865_6c64;
    for word in sector.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        number = (number ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    number.max(UNREADABLE + 1)
}

/// The numbers of all sectors of a file or block device.
pub fn of(mut file: &File) -> io::Result<Vec<u64>> {
    let length = file.seek(SeekFrom::End(0))?;
    let mut numbers = Vec::new();
    for (at, nr) in pieces(0, length, PIECE) {
        if read(file, at, nr, &mut numbers).is_err() {
            for (at, nr) in pieces(at, at + nr as u64, PAGE) {
                let sectors = nr.div_ceil(SECTOR);
                read(file, at, nr, &mut numbers)
                    .unwrap_or_else(|_| numbers.extend((0..sectors).map(|_| UNREADABLE)));
            }
        }
    }
    Ok(numbers)
}

fn read(file: &File, at: u64, nr: usize, numbers: &mut Vec<u64>) -> io::Result<()> {
    let mut piece = vec![0; nr];
    file.read_exact_at(&mut piece, at)?;
    numbers.extend(piece.chunks(SECTOR).map(number_of));
    Ok(())
}

fn pieces(start: u64, end: u64, most: usize) -> impl Iterator<Item = (u64, usize)> {
    (start..end).step_by(most).map(move |at| (at, (end - at).min(most as u64) as usize))
}
