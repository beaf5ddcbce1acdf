//! A request that is larger than a bio may be: several bios, answered together.
//!
//! A virtio disk has no way to say how large a request may be in all: its driver knows a number of pieces, each of any length. So what is
//! large is cut, at multiples of [`BIO_BYTES_MAX`] of the disk, where no two parts share a block.
//!
//! Invariants:
//! 1. Of a request that ends behind the disk's end no part is begun, as of a small one nothing is done.
//! 2. At most [`AT_A_TIME`] parts are under way, as layers and leaves may need memory for what goes through them. After an error no more of
//!    them are begun.

use blockwork_engine::{Bio, Flags, Op, SECTOR, Sectors};
use blockwork_memory::{Segments, slice_segments};

/// Largest bio, bytes of data.
pub const BIO_BYTES_MAX: usize = 32 << 20;
/// Largest request: as much as the length of an answer tells, and as Linux's requests can be.
pub const REQUEST_BYTES_MAX: usize = u32::MAX as usize;
/// Parts of a request that are under way.
pub(super) const AT_A_TIME: usize = super::BYTES_MAX / BIO_BYTES_MAX;

/// What is left of a request.
pub(super) struct Parts {
    pub(super) op: Op,
    pub(super) flags: Flags,
    /// Where the request begins on the disk, bytes.
    start: u64,
    data: Segments,
    /// Bytes of it that were handed out, and all.
    at: usize,
    bytes: usize,
}

/// One of them.
pub(super) struct Part {
    /// Where on the disk, bytes.
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) data: Segments,
}

impl Parts {
    /// Of a bio with so many bytes of data; none where it reaches beyond the end of its disk, which has so many sectors.
    pub(super) fn new(bio: Bio, bytes: usize, disk: Sectors) -> Option<Parts> {
        let start = bio.sector.0.checked_mul(SECTOR)?;
        start.checked_add(bytes as u64).filter(|end| *end <= disk.bytes())?;
        Some(Parts { op: bio.op, flags: bio.flags, start, data: bio.data, at: 0, bytes })
    }
}

impl Iterator for Parts {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let offset = self.start + self.at as u64;
        // Less than a bio may have.
        let into = (offset % BIO_BYTES_MAX as u64) as usize;
        let len = (self.bytes - self.at).min(BIO_BYTES_MAX - into);
        if len == 0 {
            return None;
        }
        let mut data = Segments::new();
        slice_segments(&self.data, self.at, len, &mut data);
        self.at += len;
        Some(Part { offset, len: len as u64, data })
    }
}

#[cfg(test)]
mod tests {
    use blockwork_engine::Sector;
    use blockwork_memory::{Buffer, Segment, bytes_in};

    use super::*;

    #[test]
    fn parts_are_the_request_and_none_shares_a_block_with_another() {
        const MIB: usize = 1 << 20;
        let segment = |len| Segment::new(Buffer::new(len), 0, len);
        for sector in [0, 1, 65535, 65536, 131_000] {
            let data = Segments::from_iter([20 * MIB, 512, 50 * MIB].map(segment));
            let bytes = bytes_in(&data);
            let bio = Bio {
                op: Op::Read,
                flags: Flags::NONE,
                sector: Sector(sector),
                nr: Sectors(0),
                data: data.clone(),
            };
            let mut end = sector * SECTOR;
            let mut found = Segments::new();
            let disk = Sectors(sector + bytes as u64 / SECTOR);
            for Part { offset, len, data } in Parts::new(bio, bytes, disk).unwrap() {
                assert_eq!((offset, len), (end, bytes_in(&data) as u64));
                assert!(offset == sector * SECTOR || offset.is_multiple_of(BIO_BYTES_MAX as u64));
                assert_eq!((end + len - 1) / BIO_BYTES_MAX as u64, end / BIO_BYTES_MAX as u64);
                end += len;
                for piece in data {
                    match found.last_mut() {
                        Some(last)
                            if last.buffer().same(piece.buffer())
                                && last.offset() + last.len() == piece.offset() =>
                        {
                            *last =
                                Segment::new(piece.buffer().clone(), last.offset(), last.len() + piece.len());
                        }
                        _ => found.push(piece),
                    }
                }
            }
            assert_eq!(end, sector * SECTOR + bytes as u64);
            let places = |segments: &Segments| {
                segments.iter().map(|piece| (piece.as_ptr(), piece.len())).collect::<Vec<_>>()
            };
            assert_eq!(places(&found), places(&data));
        }
        let of = |sector| {
            let (flags, nr, data) = (Flags::NONE, Sectors(0), Segments::new());
            Parts::new(Bio { op: Op::Read, flags, sector: Sector(sector), nr, data }, 1024, Sectors(100))
        };
        assert!(of(98).is_some());
        assert!([99, 100, u64::MAX / SECTOR, u64::MAX].iter().all(|sector| of(*sector).is_none()));
    }
}
