//! What a parser reads that needs more than one place: a disk, a file, or bytes in memory.
//!
//! [`Source`] is the whole seam: a size and a read. [`Sparse`] is a disk of which only some places were written; the
//! writers of this crate return such places ([`Piece`]), so that a table for a disk of many TiB is a few KiB in memory.

use std::io;

use crate::bytes::length;

/// Bytes that can be read at any offset.
pub trait Source {
    /// How many bytes there are.
    fn size(&self) -> u64;

    /// Fills `buf` from `offset` (bytes).
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` where the range does not lie inside [`Source::size`]; otherwise whatever the device says.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

impl Source for [u8] {
    fn size(&self) -> u64 {
        length(self.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| past_the_end())?;
        let end = start.checked_add(buf.len()).ok_or_else(past_the_end)?;
        buf.copy_from_slice(self.get(start..end).ok_or_else(past_the_end)?);
        Ok(())
    }
}

impl Source for Vec<u8> {
    fn size(&self) -> u64 {
        self.as_slice().size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_at(offset, buf)
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, buf)
    }
}

/// Bytes that belong at an offset of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Where, in bytes from the start of the disk.
    pub offset: u64,
    /// What.
    pub bytes: Vec<u8>,
}

impl Piece {
    /// The first byte after this piece.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(length(self.bytes.len()))
    }
}

/// A disk that is zero but for some pieces. Where pieces overlap, the later one counts, as if they had been written
/// in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sparse {
    size: u64,
    pieces: Vec<Piece>,
}

impl Sparse {
    /// A disk of `size` bytes with these pieces; what a piece holds beyond the end of the disk is never read.
    pub fn new(size: u64, pieces: Vec<Piece>) -> Self {
        Self { size, pieces }
    }

    /// Writes `bytes` at `offset`.
    pub fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        self.pieces.push(Piece { offset, bytes });
    }
}

impl Source for Sparse {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(length(buf.len())).filter(|end| *end <= self.size);
        let end = end.ok_or_else(past_the_end)?;
        buf.fill(0);
        for piece in &self.pieces {
            let (from, to) = (piece.offset.max(offset), piece.end().min(end));
            if from < to {
                let within = |at: u64, base: u64| usize::try_from(at - base).expect("inside a slice");
                buf[within(from, offset)..within(to, offset)]
                    .copy_from_slice(&piece.bytes[within(from, piece.offset)..within(to, piece.offset)]);
            }
        }
        Ok(())
    }
}

fn past_the_end() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the range lies past the end")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_range_past_the_end_is_unexpected_eof_and_never_a_panic() {
        let disk = vec![7u8; 100];
        for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 1), (1, 100), (u64::MAX - 1, 100)] {
            let mut buf = vec![0; len];
            let kinds = [
                disk.read_at(offset, &mut buf).unwrap_err().kind(),
                Sparse::new(100, Vec::new()).read_at(offset, &mut buf).unwrap_err().kind(),
            ];
            assert_eq!(kinds, [io::ErrorKind::UnexpectedEof; 2], "offset {offset}, {len} bytes");
        }
    }

    proptest! {
        #[test]
        fn a_sparse_disk_reads_as_the_flat_one_that_was_written_in_the_same_order(
            pieces in proptest::collection::vec((0u64..200, proptest::collection::vec(any::<u8>(), 0..60)), 0..8),
            from in 0usize..200, len in 0usize..100,
        ) {
            let mut flat = [0u8; 200];
            let mut sparse = Sparse::new(200, Vec::new());
            for (offset, bytes) in pieces {
                for (byte, at) in bytes.iter().zip(offset..200) {
                    flat[usize::try_from(at).unwrap()] = *byte;
                }
                sparse.write(offset, bytes);
            }
            let len = len.min(200 - from);
            let mut buf = vec![0xff; len];
            sparse.read_at(u64::try_from(from).unwrap(), &mut buf).unwrap();
            prop_assert_eq!(&buf[..], &flat[from..from + len]);
        }
    }
}
