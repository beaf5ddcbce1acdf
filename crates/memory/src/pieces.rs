//! Pieces of a mapping that the kernel can be told of once (io_uring's registered buffers), and having their pages be there before that is done.
//!
//! To tell the kernel of a piece holds its pages. Those that are not there are made for that, which takes tens of milliseconds for a piece, and less than
//! one where all are there. So who has the time makes them first ([`Mapping::bring`]), and a worker tells the kernel of what was made only.
//!
//! Invariants:
//! 1. A piece never changes its place in its mapping, and one piece is next to the other: only the last one is shorter.
//! 2. Contents do not change.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::mapping::Mapping;
use crate::segment::Segment;

/// Bytes of a piece. io_uring takes 1 GiB at most; a worker does nothing else while it tells the kernel of one, which is half a millisecond for so many.
pub const PIECE_BYTES: usize = 32 << 20;

/// What is made at a time: tens of milliseconds would be long for who wants it to end.
const STEP: usize = 2 << 20;

/// Where a segment lies, if that is one piece of a mapping.
#[derive(Clone, Copy, Debug)]
pub struct InPiece<'a> {
    /// Which mapping.
    pub mapping: &'a Arc<Mapping>,
    /// Which of its pieces.
    pub piece: usize,
}

impl Mapping {
    /// How many pieces it has.
    pub fn pieces(&self) -> usize {
        self.len().div_ceil(PIECE_BYTES)
    }

    /// Address, for the kernel, and bytes of a piece; valid while the mapping lives.
    ///
    /// # Panics
    /// If there is no such piece.
    pub fn piece(&self, piece: usize) -> (*mut u8, usize) {
        assert!(piece < self.pieces(), "piece {piece} of {}", self.pieces());
        let at = piece * PIECE_BYTES;
        let len = PIECE_BYTES.min(self.len() - at);
        (self.range(at, len).as_ptr(), len)
    }

    /// Has all pages of a piece be there, in steps, before each of which `goes_on` is asked. Pieces are made in their order. Where the kernel makes no
    /// pages beforehand (Linux before 5.14), it makes them when it is told of the piece.
    ///
    /// # Errors
    /// There is no memory for them, or none behind the end of a file that was cut short.
    ///
    /// # Panics
    /// If there is no such piece.
    pub fn bring(&self, piece: usize, mut goes_on: impl FnMut() -> bool) -> io::Result<()> {
        let (start, len) = self.piece(piece);
        for at in (0..len).step_by(STEP) {
            if !goes_on() || self.is_torn() {
                return Ok(());
            }
            let step = STEP.min(len - at);
            // SAFETY: within our own mapping, whose contents stay as they are: pages that are not there read as zeros before, and after.
            if unsafe { libc::madvise(start.wrapping_add(at).cast(), step, libc::MADV_POPULATE_WRITE) } != 0 {
                let error = io::Error::last_os_error();
                if error.raw_os_error() != Some(libc::EINVAL) {
                    return Err(error);
                }
            }
        }
        self.brought().store(piece + 1, Ordering::Release);
        Ok(())
    }

    /// Whether [`Mapping::bring`] has been through a piece, and all before it.
    #[inline]
    pub fn is_brought(&self, piece: usize) -> bool {
        piece < self.brought().load(Ordering::Acquire)
    }
}

impl Segment {
    /// Where it lies, if that is a mapping, and one piece there.
    #[inline]
    pub fn in_piece(&self) -> Option<InPiece<'_>> {
        let mapping = self.buffer().mapping()?;
        let at = self.as_ptr().addr() - mapping.range(0, 0).addr().get();
        let piece = at / PIECE_BYTES;
        let is_within = at % PIECE_BYTES + self.len() <= PIECE_BYTES;
        is_within.then_some(InPiece { mapping, piece })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::Buffer;

    fn memory(bytes: usize) -> (File, Arc<Mapping>) {
        let file = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, bytes as u64).unwrap();
        let mapping = Mapping::new(file.as_fd(), bytes as u64).unwrap();
        (file, mapping)
    }

    #[test]
    fn a_segment_is_in_the_piece_that_all_of_it_lies_in() {
        let (_file, mapping) = memory(2 * PIECE_BYTES + 0x5000);
        assert_eq!(mapping.pieces(), 3);
        let lens = [0, 1, 2].map(|piece| mapping.piece(piece).1);
        assert_eq!(lens, [PIECE_BYTES, PIECE_BYTES, 0x5000]);
        // From the middle of it on: offsets of a buffer are not those of its mapping.
        let buffer = Buffer::of_mapping(&mapping, 0x3000, mapping.len() - 0x3000);
        let piece = |at: usize, len| {
            Segment::new(buffer.clone(), at - 0x3000, len).in_piece().map(|found| {
                let (start, bytes) = found.mapping.piece(found.piece);
                let there = buffer.as_ptr().addr() + at - 0x3000;
                assert!(start.addr() <= there && there + len <= start.addr() + bytes);
                found.piece
            })
        };
        assert_eq!(piece(0x3000, 0x1000), Some(0));
        assert_eq!(piece(PIECE_BYTES - 0x1000, 0x1000), Some(0));
        assert_eq!(piece(PIECE_BYTES - 0x1000, 0x1001), None);
        assert_eq!(piece(PIECE_BYTES, PIECE_BYTES), Some(1));
        assert_eq!(piece(2 * PIECE_BYTES, 0x5000), Some(2));
        assert!(Segment::new(Buffer::new(4096), 0, 4096).in_piece().is_none());
    }

    #[test]
    fn what_is_brought_is_there_with_what_it_held_and_what_is_cut_off_is_an_error() {
        let (file, mapping) = memory(PIECE_BYTES + STEP);
        let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks as usize * 512;
        let all = Buffer::of_mapping(&mapping, 0, mapping.len());
        all.write_at(0x1ffe, b"here");
        let mut steps = 2;
        let two_of_them = || {
            steps -= 1;
            steps >= 0
        };
        mapping.bring(0, two_of_them).unwrap();
        assert!((2 * STEP..PIECE_BYTES).contains(&blocks()) && !mapping.is_brought(0), "it was to end");
        mapping.bring(0, || true).unwrap();
        assert_eq!((blocks(), mapping.is_brought(0), mapping.is_brought(1)), (PIECE_BYTES, true, false));
        let mut bytes = [0; 4];
        all.read_at(0x1ffe, &mut bytes);
        assert_eq!(&bytes, b"here");
        ftruncate(&file, PIECE_BYTES as u64).unwrap();
        assert!(mapping.bring(1, || true).is_err());
        assert!(!mapping.is_brought(1));
    }
}
