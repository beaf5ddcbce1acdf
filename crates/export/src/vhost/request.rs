//! A request of virtio's block device, out of the memory of a chain.
//!
//! How the driver has cut header, data and status into descriptors means nothing: what is read is one string of bytes, that
//! begins with the header; what is written another, that ends with the status.

use blockwork_format::virtio::blk::{HEADER_BYTES, RANGE_BYTES, Range, RequestHeader};
use blockwork_memory::{Buffer, Segment, Segments, bytes_in, copy_between, slice_segments};

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
    pub status: Segment,
}

impl Request {
    /// Takes a chain apart. Its memory moves into the request.
    ///
    /// # Errors
    /// It has no header or no place for a status.
    #[inline]
    pub fn take(chain: &mut Chain) -> Result<Request, RingError> {
        let mut sent = std::mem::take(&mut chain.readable);
        let mut room = std::mem::take(&mut chain.writable);
        let header = match header(&mut sent) {
            Some(header) => header,
            None => return Err(short(&sent, &room)),
        };
        match status(&mut room) {
            Some(status) => Ok(Request { header, sent, room, status }),
            None => Err(short(&sent, &room)),
        }
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

fn short(sent: &Segments, room: &Segments) -> RingError {
    RingError::Short { readable: bytes_in(sent), writable: bytes_in(room) }
}

/// Cuts the header off the front.
#[inline]
fn header(sent: &mut Segments) -> Option<RequestHeader> {
    let first = sent.first()?;
    if first.len() == HEADER_BYTES {
        // As all drivers have it.
        let header = RequestHeader::decode(&first.buffer().read_16(first.offset()));
        sent.remove(0);
        return Some(header);
    }
    let bytes = bytes_in(sent);
    let rest = bytes.checked_sub(HEADER_BYTES)?;
    let mut front = Segments::new();
    slice_segments(sent, 0, HEADER_BYTES, &mut front);
    let copy = Segment::new(Buffer::new(HEADER_BYTES), 0, HEADER_BYTES);
    copy_between(&front, std::slice::from_ref(&copy));
    let mut data = Segments::new();
    if rest > 0 {
        slice_segments(sent, HEADER_BYTES, rest, &mut data);
    }
    *sent = data;
    Some(RequestHeader::decode(&copy.buffer().read_16(0)))
}

/// Cuts the status off the end.
#[inline]
fn status(room: &mut Segments) -> Option<Segment> {
    let last = room.pop()?;
    let at = last.len() - 1; // a chain holds no empty segments
    if at > 0 {
        room.push(last.slice(0, at));
        return Some(last.slice(at, 1));
    }
    Some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text, cut after each of these lengths.
    fn cut(text: &[u8], lens: &[usize]) -> Segments {
        let buffer = Buffer::new(text.len());
        buffer.write_at(0, text);
        let mut at = 0;
        let mut segments: Segments = lens
            .iter()
            .map(|&len| {
                at += len;
                Segment::new(buffer.clone(), at - len, len)
            })
            .collect();
        if at < text.len() {
            segments.push(Segment::new(buffer, at, text.len() - at));
        }
        segments
    }

    #[test]
    fn how_a_request_is_cut_into_pieces_means_nothing() {
        let header = RequestHeader { kind: 13, sector: 0x1122_3344_5566 };
        let range = Range { sector: 9, sectors: 8, flags: 1 };
        let text = [header.encode(), range.encode()].concat();
        for lens in [&[16][..], &[1], &[15, 1], &[17], &[], &[4, 4, 4, 4, 4, 4, 4], &[31]] {
            for room in [&[][..], &[4], &[1, 1, 1], &[2, 2]] {
                let mut chain = Chain::default();
                (chain.readable, chain.writable) = (cut(&text, lens), cut(b"abcdS", room));
                let request = Request::take(&mut chain).unwrap();
                assert_eq!(request.header, header);
                assert_eq!(request.ranges(1).unwrap(), [range], "{lens:?}");
                assert_eq!(bytes_in(&request.room), 4);
                let mut status = [0];
                request.status.read_at(0, &mut status);
                assert_eq!(&status, b"S");
            }
        }
    }

    #[test]
    fn what_has_no_header_or_no_status_is_no_request() {
        let take = |readable: &[u8], writable: &[u8]| {
            let mut chain = Chain::default();
            if !readable.is_empty() {
                chain.readable = cut(readable, &[]);
            }
            if !writable.is_empty() {
                chain.writable = cut(writable, &[]);
            }
            Request::take(&mut chain)
        };
        assert_eq!(take(&[0; 15], b"S").unwrap_err(), RingError::Short { readable: 15, writable: 1 });
        assert!(take(&[], b"S").is_err());
        assert!(take(&[0; 16], b"").is_err());
        let request = take(&[0; 16 + 40], b"S").unwrap();
        assert!(request.ranges(9).is_none(), "two ranges and a half");
        assert!(take(&[0; 16 + 32], b"S").unwrap().ranges(1).is_none(), "more than allowed");
        assert!(take(&[0; 16], b"S").unwrap().ranges(1).is_none());
    }
}
