//! A request of virtio's block device, out of the memory of a chain.
//!
//! How the driver has cut header, data and status into descriptors means nothing: what is read is one string of bytes, that
//! begins with the header; what is written another, that ends with the status.

use blockwork_format::virtio::blk::{HEADER_BYTES, RANGE_BYTES, Range, RequestHeader};
use blockwork_memory::{
    Buffer, GuestMemory, GuestRange, GuestRanges, Segment, Segments, bytes_in, copy_between,
};

use super::ring::{Chain, RingError};

/// A request. What it is about lies in its chain, less header and status.
#[derive(Debug)]
pub struct Request<'a> {
    /// What to do, and where.
    pub header: RequestHeader,
    /// What the driver sends: of a write the data, of others what they are about.
    pub sent: &'a [GuestRange],
    /// Where the answer's data go.
    pub room: &'a [GuestRange],
    /// Where the status goes, one byte.
    pub status: GuestRange,
}

impl<'a> Request<'a> {
    /// Takes apart a chain in the guest's `memory`; `None` if it has no header or no place for a status: see [`Request::too_short`].
    #[inline]
    pub fn take(chain: &'a mut Chain, memory: &GuestMemory) -> Option<Request<'a>> {
        let (header, skip) = match chain.readable().first() {
            // As all drivers have it.
            Some(first) if first.len() == HEADER_BYTES => {
                (RequestHeader::decode(&memory.read_16(*first, 0)), 1)
            }
            _ => (cut_header(chain, memory)?, 0),
        };
        let mut end = chain.pieces.len();
        let last = chain.pieces[chain.readable..].last_mut()?;
        let at = last.len() - 1; // a chain holds no empty ranges
        let status = last.slice(at, 1);
        if at > 0 {
            *last = last.slice(0, at);
        } else {
            end -= 1;
        }
        let (sent, room) = (&chain.pieces[skip..chain.readable], &chain.pieces[chain.readable..end]);
        Some(Request { header, sent, room, status })
    }

    /// What is wrong with a chain that is none.
    #[cold]
    pub fn too_short(chain: &Chain) -> RingError {
        let bytes = |ranges: &[GuestRange]| ranges.iter().map(GuestRange::len).sum();
        RingError::Short { readable: bytes(chain.readable()), writable: bytes(chain.writable()) }
    }

    /// The ranges of a discard or write-zeroes; `None` if they are not whole, none, or more than `max`.
    pub fn ranges(&self, memory: &GuestMemory, max: usize) -> Option<Vec<Range>> {
        let sent = segments(memory, self.sent);
        let bytes = bytes_in(&sent);
        let count = bytes / RANGE_BYTES;
        if !bytes.is_multiple_of(RANGE_BYTES) || count == 0 || count > max {
            return None;
        }
        // Into memory that the driver cannot change any more.
        let copy = Segment::new(Buffer::new(bytes), 0, bytes);
        copy_between(&sent, std::slice::from_ref(&copy));
        let range = |i: usize| Range::decode(&copy.buffer().read_16(i * RANGE_BYTES));
        Some((0..count).map(range).collect())
    }
}

/// Ranges of the guest's memory, for I/O.
pub(super) fn segments(memory: &GuestMemory, ranges: &[GuestRange]) -> Segments {
    let mut segments = Segments::new();
    add_segments(memory, ranges, &mut segments);
    segments
}

/// Likewise, added to others.
#[inline(always)]
pub(super) fn add_segments(memory: &GuestMemory, ranges: &[GuestRange], to: &mut Segments) {
    // Not by `extend`: that makes more of one or two than they are.
    for range in ranges {
        to.push(memory.segment(*range));
    }
}

/// Cuts off a header that does not have the first descriptor for itself.
#[cold]
fn cut_header(chain: &mut Chain, memory: &GuestMemory) -> Option<RequestHeader> {
    let (mut header, mut found) = ([0; HEADER_BYTES], 0);
    let mut rest = GuestRanges::new();
    for range in chain.readable() {
        let take = range.len().min(HEADER_BYTES - found);
        memory.segment(range.slice(0, take)).read_at(0, &mut header[found..found + take]);
        found += take;
        if take < range.len() {
            rest.push(range.slice(take, range.len() - take));
        }
    }
    if found < HEADER_BYTES {
        return None;
    }
    let readable = rest.len();
    rest.extend_from_slice(chain.writable());
    (chain.pieces, chain.readable) = (rest, readable);
    Some(RequestHeader::decode(&header))
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
        let mut pieces = cut(memory, 0, readable.0, readable.1);
        let readable = pieces.len();
        pieces.extend_from_slice(&cut(memory, WRITABLE, writable.0, writable.1));
        Chain { pieces, readable, ..Chain::default() }
    }

    #[test]
    fn how_a_request_is_cut_into_pieces_means_nothing() {
        let header = RequestHeader { kind: 13, sector: 0x1122_3344_5566 };
        let range = Range { sector: 9, sectors: 8, flags: 1 };
        let text = [header.encode(), range.encode()].concat();
        let memory = guest(&text, b"abcdS");
        for lens in [&[16][..], &[1], &[15, 1], &[17], &[], &[4, 4, 4, 4, 4, 4, 4], &[31]] {
            for room in [&[][..], &[4], &[1, 1, 1], &[2, 2]] {
                let mut chain = chain(&memory, (32, lens), (5, room));
                let request = Request::take(&mut chain, &memory).unwrap();
                assert_eq!(request.header, header);
                assert_eq!(request.ranges(&memory, 1).unwrap(), [range], "{lens:?}");
                let mut found = Vec::new();
                for segment in &segments(&memory, request.room) {
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
        let chain = |readable, writable| chain(&memory, (readable, &[]), (writable, &[]));
        let error = |mut chain: Chain| {
            assert!(Request::take(&mut chain, &memory).is_none());
            Request::too_short(&chain)
        };
        assert_eq!(error(chain(15, 1)), RingError::Short { readable: 15, writable: 1 });
        assert_eq!(error(chain(0, 1)), RingError::Short { readable: 0, writable: 1 });
        assert_eq!(error(chain(16, 0)), RingError::Short { readable: 16, writable: 0 });
        let ranges = |mut chain: Chain, max| Request::take(&mut chain, &memory).unwrap().ranges(&memory, max);
        assert!(ranges(chain(16 + 40, 1), 9).is_none(), "two ranges and a half");
        assert!(ranges(chain(16 + 32, 1), 1).is_none(), "more than allowed");
        assert!(ranges(chain(16, 1), 1).is_none());
    }
}
