//! A request of virtio's block device, out of the memory of a chain.
//!
//! How the driver has cut header, data and status into descriptors means nothing: what is read is one string of bytes, that
//! begins with the header; what is written another, that ends with the status.

use blockwork_format::virtio::blk::{HEADER_BYTES, RANGE_BYTES, Range, RequestHeader};
use blockwork_memory::{
    Buffer, GuestMemory, GuestRange, Segment, Segments, bytes_in, copy_between, slice_segments,
};

use super::ring::{Chain, RingError};

/// A request.
#[derive(Debug)]
pub struct Request {
    /// What to do, and where.
    pub header: RequestHeader,
    /// What the driver sends: of a write the data, of others what they are about.
    pub sent: Segments,
    /// Where the answer's data go.
    pub room: Segments,
    /// Where the status goes, one byte.
    pub status: GuestRange,
}

impl Request {
    /// Takes apart a chain in the guest's `memory`.
    ///
    /// # Errors
    /// It has no header or no place for a status.
    #[inline]
    pub fn take(chain: &Chain, memory: &GuestMemory) -> Result<Request, RingError> {
        let (header, sent) = match chain.readable.split_first() {
            // As all drivers have it.
            Some((first, rest)) if first.len() == HEADER_BYTES => {
                (RequestHeader::decode(&memory.read_16(*first, 0)), segments(memory, rest))
            }
            _ => ragged_header(chain, memory).ok_or_else(|| short(chain))?,
        };
        let Some((last, before)) = chain.writable.split_last() else { return Err(short(chain)) };
        let mut room = segments(memory, before);
        let at = last.len() - 1; // a chain holds no empty ranges
        if at > 0 {
            room.push(memory.segment(last.slice(0, at)));
        }
        Ok(Request { header, sent, room, status: last.slice(at, 1) })
    }

    /// The ranges of a discard or write-zeroes; `None` if they are not whole, none, or more than `max`.
    pub fn ranges(&self, max: usize) -> Option<Vec<Range>> {
        let bytes = bytes_in(&self.sent);
        let count = bytes / RANGE_BYTES;
        if !bytes.is_multiple_of(RANGE_BYTES) || count == 0 || count > max {
            return None;
        }
        // Into memory that the driver cannot change any more.
        let copy = Segment::new(Buffer::new(bytes), 0, bytes);
        copy_between(&self.sent, std::slice::from_ref(&copy));
        let range = |i: usize| Range::decode(&copy.buffer().read_16(i * RANGE_BYTES));
        Some((0..count).map(range).collect())
    }
}

#[cold]
fn short(chain: &Chain) -> RingError {
    let bytes = |ranges: &[GuestRange]| ranges.iter().map(GuestRange::len).sum();
    RingError::Short { readable: bytes(&chain.readable), writable: bytes(&chain.writable) }
}

#[inline]
fn segments(memory: &GuestMemory, ranges: &[GuestRange]) -> Segments {
    let mut segments = Segments::new();
    // Not by `collect`: that makes more of one or two than they are.
    ranges.iter().for_each(|range| segments.push(memory.segment(*range)));
    segments
}

/// A header that does not have the first descriptor for itself, and what follows it.
#[cold]
fn ragged_header(chain: &Chain, memory: &GuestMemory) -> Option<(RequestHeader, Segments)> {
    let sent = segments(memory, &chain.readable);
    let rest = bytes_in(&sent).checked_sub(HEADER_BYTES)?;
    let mut front = Segments::new();
    slice_segments(&sent, 0, HEADER_BYTES, &mut front);
    let copy = Segment::new(Buffer::new(HEADER_BYTES), 0, HEADER_BYTES);
    copy_between(&front, std::slice::from_ref(&copy));
    let mut data = Segments::new();
    if rest > 0 {
        slice_segments(&sent, HEADER_BYTES, rest, &mut data);
    }
    Some((RequestHeader::decode(&copy.buffer().read_16(0)), data))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use blockwork_memory::{GuestLayout, GuestRanges, GuestRegion, Mapping};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const MEMORY: u64 = 0x10000;
    /// Where what the device writes begins.
    const WRITABLE: u64 = 0x800;

    /// A guest's memory that holds `readable` at its beginning and `writable` at [`WRITABLE`].
    fn guest(readable: &[u8], writable: &[u8]) -> GuestMemory {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, 0x1000).unwrap();
        let mapping = Mapping::new(file.as_fd(), 0x1000).unwrap();
        let buffer = Buffer::of_mapping(&mapping, 0, 0x1000);
        buffer.write_at(0, readable);
        buffer.write_at(usize::try_from(WRITABLE).unwrap(), writable);
        let region = GuestRegion { guest: MEMORY, user: MEMORY, len: 0x1000, mapping, offset: 0 };
        GuestMemory::new(&GuestLayout::new(vec![region]).unwrap())
    }

    /// `len` bytes from `start` on, cut after each of these lengths.
    fn cut(memory: &GuestMemory, start: u64, len: usize, lens: &[usize]) -> GuestRanges {
        let mut ranges = GuestRanges::new();
        let mut at = 0;
        for &piece in lens.iter().chain([&(len - lens.iter().sum::<usize>())]) {
            let address = MEMORY + start + at as u64;
            memory.ranges(address, u32::try_from(piece).unwrap(), &mut ranges).unwrap();
            at += piece;
        }
        ranges
    }

    fn chain(memory: &GuestMemory, readable: (usize, &[usize]), writable: (usize, &[usize])) -> Chain {
        Chain {
            readable: cut(memory, 0, readable.0, readable.1),
            writable: cut(memory, WRITABLE, writable.0, writable.1),
            ..Chain::default()
        }
    }

    #[test]
    fn how_a_request_is_cut_into_pieces_means_nothing() {
        let header = RequestHeader { kind: 13, sector: 0x1122_3344_5566 };
        let range = Range { sector: 9, sectors: 8, flags: 1 };
        let text = [header.encode(), range.encode()].concat();
        let memory = guest(&text, b"abcdS");
        for lens in [&[16][..], &[1], &[15, 1], &[17], &[], &[4, 4, 4, 4, 4, 4, 4], &[31]] {
            for room in [&[][..], &[4], &[1, 1, 1], &[2, 2]] {
                let request = Request::take(&chain(&memory, (32, lens), (5, room)), &memory).unwrap();
                assert_eq!(request.header, header);
                assert_eq!(request.ranges(1).unwrap(), [range], "{lens:?}");
                let mut found = Vec::new();
                for segment in &request.room {
                    let mut bytes = vec![0; segment.len()];
                    segment.read_at(0, &mut bytes);
                    found.extend(bytes);
                }
                assert_eq!(found, b"abcd");
                let mut status = [0];
                memory.segment(request.status).read_at(0, &mut status);
                assert_eq!((&status, request.status.len()), (b"S", 1));
            }
        }
    }

    #[test]
    fn what_has_no_header_or_no_status_is_no_request() {
        let memory = guest(&[], &[]);
        let take =
            |readable, writable| Request::take(&chain(&memory, (readable, &[]), (writable, &[])), &memory);
        assert_eq!(take(15, 1).unwrap_err(), RingError::Short { readable: 15, writable: 1 });
        assert!(take(0, 1).is_err());
        assert!(take(16, 0).is_err());
        assert!(take(16 + 40, 1).unwrap().ranges(9).is_none(), "two ranges and a half");
        assert!(take(16 + 32, 1).unwrap().ranges(1).is_none(), "more than allowed");
        assert!(take(16, 1).unwrap().ranges(1).is_none());
    }
}
