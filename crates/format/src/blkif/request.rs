//! Requests, their segments, and responses.

use std::fmt;

use super::{
    Abi, INDIRECT_PAGES_MAX, INDIRECT_SEGMENTS_MAX, PAGE_SECTORS, REQUEST_BYTES_MAX, SEGMENT_BYTES,
    SEGMENTS_MAX,
};
use crate::bytes::{array, put, u16_le, u32_le, u64_le};

/// Numbers of operations.
pub mod operation {
    /// Read.
    pub const READ: u8 = 0;
    /// Write.
    pub const WRITE: u8 = 1;
    /// A write behind all that were before it, and before all that come later.
    pub const WRITE_BARRIER: u8 = 2;
    /// Make durable what was written.
    pub const FLUSH_DISKCACHE: u8 = 3;
    /// The range is not needed any more.
    pub const DISCARD: u8 = 5;
    /// A read or write whose segments lie in pages of their own.
    pub const INDIRECT: u8 = 6;
}

/// Of a discard's flags: all copies must become unreadable.
const SECURE: u8 = 1;

/// Operations whose segments, if any, are in the request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// Read.
    Read,
    /// Write.
    Write,
    /// A write behind all that were before it, and before all that come later; of no segments, only that.
    Barrier,
    /// Make durable what was written; then write the segments, if there are any.
    Flush,
}

/// Operations that carry data in indirect requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Read.
    Read,
    /// Write.
    Write,
}

/// What an answer says that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation(pub u8);

/// Part of a page of the front end's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The grant of the page.
    pub gref: u32,
    /// The first sector of the page that is meant.
    pub first_sect: u8,
    /// The last one, inclusive.
    pub last_sect: u8,
}

impl Segment {
    /// Sectors that it has.
    ///
    /// # Errors
    /// It ends before it begins, or beyond its page.
    #[inline]
    pub fn sectors(self) -> Result<u64, Fault> {
        let Segment { first_sect, last_sect, .. } = self;
        if first_sect > last_sect || last_sect >= PAGE_SECTORS {
            return Err(Fault::Segment { first_sect, last_sect });
        }
        Ok(u64::from(last_sect - first_sect) + 1)
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Segment {
        Segment { gref: u32_le(bytes, 0), first_sect: bytes[4], last_sect: bytes[5] }
    }

    fn encode(self) -> [u8; SEGMENT_BYTES] {
        let mut bytes = [0; SEGMENT_BYTES];
        put(&mut bytes, 0, &self.gref.to_le_bytes());
        bytes[4] = self.first_sect;
        bytes[5] = self.last_sect;
        bytes
    }
}

/// Segments of a request that has them itself.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Segments {
    all: [Segment; SEGMENTS_MAX],
    len: usize,
}

impl Segments {
    /// These; `None` if they are more than [`SEGMENTS_MAX`].
    pub fn new(segments: &[Segment]) -> Option<Segments> {
        let mut all = [Segment::default(); SEGMENTS_MAX];
        all.get_mut(..segments.len())?.copy_from_slice(segments);
        Some(Segments { all, len: segments.len() })
    }

    /// In order.
    #[inline]
    pub fn as_slice(&self) -> &[Segment] {
        &self.all[..self.len]
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// Segments of a request that has them itself, where they were found: each lies in its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    bytes: &'a [u8],
}

impl Found<'_> {
    /// In order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Segment> + Clone {
        self.bytes.chunks_exact(SEGMENT_BYTES).map(Segment::decode)
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<S = Segments> {
    /// With the segments in the request.
    Direct(Direct, S),
    /// With the segments in pages of their own.
    Indirect {
        /// Read or write.
        data: Data,
        /// Segments, at least one and at most [`INDIRECT_SEGMENTS_MAX`].
        nr_segments: u16,
        /// Grants of the pages; as many count as the segments fill.
        grefs: [u32; INDIRECT_PAGES_MAX],
    },
    /// A range that is not needed any more.
    Discard {
        /// Sectors.
        nr_sectors: u64,
        /// All copies must become unreadable.
        secure: bool,
    },
}

/// A request, with its segments, or those that were [`Found`] in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<S = Segments> {
    /// The front end's number for it, which comes back in the response.
    pub id: u64,
    /// The front end's number of the device. Back ends do not look at it: a ring belongs to one device.
    pub handle: u16,
    /// Where, in sectors of 512 bytes.
    pub sector: u64,
    /// What.
    pub kind: Kind<S>,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No such operation.
    #[error("operation is {0}, expected 0 to 3, 5 or 6")]
    Operation(u8),
    /// An indirect request that is neither read nor write.
    #[error("indirect_op is {0}, expected 0 (read) or 1 (write)")]
    IndirectOperation(u8),
    /// Too many segments, or none where there must be some.
    #[error("nr_segments is {found}, expected {least} to {most}")]
    SegmentCount {
        /// What it says.
        found: u16,
        /// The fewest.
        least: u16,
        /// The most.
        most: u16,
    },
    /// A segment that is no part of a page.
    #[error(
        "a segment has first_sect {first_sect} and last_sect {last_sect}, expected first_sect <= last_sect <= 7"
    )]
    Segment {
        /// Its first sector.
        first_sect: u8,
        /// Its last one.
        last_sect: u8,
    },
}

/// A request that breaks the protocol, and what its answer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {id:#x}: {fault}")]
pub struct Malformed {
    /// The front end's number for it.
    pub id: u64,
    /// What the answer says that it answers.
    pub operation: Operation,
    /// What is wrong.
    pub fault: Fault,
}

impl Malformed {
    /// What the answer says.
    pub fn status(&self) -> Status {
        match self.fault {
            Fault::Operation(_) => Status::NotSupported,
            _ => Status::Error,
        }
    }
}

/// Where the fields are.
struct Offsets {
    id: usize,
    sector: usize,
    /// Segments; and the number of sectors of a discard.
    body: usize,
    indirect_handle: usize,
    grefs: usize,
}

impl Abi {
    #[inline]
    fn offsets(self) -> &'static Offsets {
        match self {
            Abi::Bits64 => &Offsets { id: 8, sector: 16, body: 24, indirect_handle: 24, grefs: 28 },
            Abi::Bits32 => &Offsets { id: 4, sector: 12, body: 20, indirect_handle: 20, grefs: 24 },
        }
    }
}

/// Bytes that a request has whose first four are these: what has to be copied out of the ring. A whole number of 32-bit
/// words, and never more than a slot.
#[inline]
pub fn request_len(abi: Abi, first: [u8; 4]) -> usize {
    let at = abi.offsets();
    match first[0] {
        operation::INDIRECT => at.grefs + 4 * INDIRECT_PAGES_MAX,
        operation::DISCARD => at.body + 8,
        _ => at.body + usize::from(first[1]).min(SEGMENTS_MAX) * SEGMENT_BYTES,
    }
}

impl Request {
    /// As [`Request::find`], with the segments in it.
    ///
    /// # Errors
    /// See there.
    ///
    /// # Panics
    /// See there.
    pub fn decode(abi: Abi, bytes: &[u8]) -> Result<Request, Malformed> {
        let Request { id, handle, sector, kind } = Request::find(abi, bytes)?;
        let kind = match kind {
            Kind::Direct(direct, found) => {
                let mut segments = Segments::default();
                for segment in found.iter() {
                    segments.all[segments.len] = segment;
                    segments.len += 1;
                }
                Kind::Direct(direct, segments)
            }
            Kind::Indirect { data, nr_segments, grefs } => Kind::Indirect { data, nr_segments, grefs },
            Kind::Discard { nr_sectors, secure } => Kind::Discard { nr_sectors, secure },
        };
        Ok(Request { id, handle, sector, kind })
    }

    /// As a slot's bytes, and how many of them count.
    pub fn encode(&self, abi: Abi) -> ([u8; REQUEST_BYTES_MAX], usize) {
        let at = abi.offsets();
        let mut bytes = [0; REQUEST_BYTES_MAX];
        bytes[0] = self.operation().0;
        put(&mut bytes, 2, &self.handle.to_le_bytes());
        put(&mut bytes, at.id, &self.id.to_le_bytes());
        put(&mut bytes, at.sector, &self.sector.to_le_bytes());
        match &self.kind {
            Kind::Direct(_, segments) => {
                bytes[1] = segments.len.to_le_bytes()[0];
                for (n, segment) in segments.as_slice().iter().enumerate() {
                    put(&mut bytes, at.body + n * SEGMENT_BYTES, &segment.encode());
                }
            }
            Kind::Indirect { nr_segments, grefs, .. } => {
                bytes[1] = bytes[0];
                bytes[0] = operation::INDIRECT;
                put(&mut bytes, 2, &nr_segments.to_le_bytes());
                put(&mut bytes, at.indirect_handle, &self.handle.to_le_bytes());
                for (n, gref) in grefs.iter().enumerate() {
                    put(&mut bytes, at.grefs + 4 * n, &gref.to_le_bytes());
                }
            }
            Kind::Discard { nr_sectors, secure } => {
                bytes[1] = if *secure { SECURE } else { 0 };
                put(&mut bytes, at.body, &nr_sectors.to_le_bytes());
            }
        }
        let len = request_len(abi, array(&bytes, 0));
        (bytes, len)
    }
}

impl<'a> Request<Found<'a>> {
    /// From a slot's bytes, of which as many are looked at as [`request_len`] says. Its segments stay where they are: to move what was just
    /// written in parts waits until all of that is done.
    ///
    /// # Errors
    /// It breaks the protocol. What is wrong with the device's range is not looked at here.
    ///
    /// # Panics
    /// If there are fewer bytes.
    #[inline]
    pub fn find(abi: Abi, bytes: &'a [u8]) -> Result<Request<Found<'a>>, Malformed> {
        let at = abi.offsets();
        let (id, sector) = (u64_le(bytes, at.id), u64_le(bytes, at.sector));
        let malformed = |operation: u8, fault| Malformed { id, operation: Operation(operation), fault };
        let (number, count) = (bytes[0], bytes[1]);
        let handle = if number == operation::INDIRECT { at.indirect_handle } else { 2 };
        let request = |kind| Request { id, handle: u16_le(bytes, handle), sector, kind };
        let direct = match number {
            operation::READ => Direct::Read,
            operation::WRITE => Direct::Write,
            operation::WRITE_BARRIER => Direct::Barrier,
            operation::FLUSH_DISKCACHE => Direct::Flush,
            operation::DISCARD => {
                let secure = bytes[1] & SECURE != 0;
                return Ok(request(Kind::Discard { nr_sectors: u64_le(bytes, at.body), secure }));
            }
            operation::INDIRECT => {
                let kind = indirect(abi, bytes).map_err(|fault| malformed(bytes[1], fault))?;
                return Ok(request(kind));
            }
            other => return Err(malformed(other, Fault::Operation(other))),
        };
        let found = direct_segments(direct, count, &bytes[at.body..]);
        Ok(request(Kind::Direct(direct, found.map_err(|fault| malformed(number, fault))?)))
    }
}

impl<S> Request<S> {
    /// What its answer says that it answers: of an indirect request, the operation within.
    #[inline]
    pub fn operation(&self) -> Operation {
        Operation(match self.kind {
            Kind::Direct(Direct::Read, _) | Kind::Indirect { data: Data::Read, .. } => operation::READ,
            Kind::Direct(Direct::Write, _) | Kind::Indirect { data: Data::Write, .. } => operation::WRITE,
            Kind::Direct(Direct::Barrier, _) => operation::WRITE_BARRIER,
            Kind::Direct(Direct::Flush, _) => operation::FLUSH_DISKCACHE,
            Kind::Discard { .. } => operation::DISCARD,
        })
    }
}

#[inline]
fn direct_segments(direct: Direct, count: u8, bytes: &[u8]) -> Result<Found<'_>, Fault> {
    let least = u16::from(matches!(direct, Direct::Read | Direct::Write));
    let found = u16::from(count);
    let most = SEGMENTS_MAX as u16;
    if !(least..=most).contains(&found) {
        return Err(Fault::SegmentCount { found, least, most });
    }
    let found = Found { bytes: &bytes[..usize::from(count) * SEGMENT_BYTES] };
    found.iter().try_for_each(|segment| segment.sectors().map(drop))?;
    Ok(found)
}

fn indirect<S>(abi: Abi, bytes: &[u8]) -> Result<Kind<S>, Fault> {
    let data = match bytes[1] {
        operation::READ => Data::Read,
        operation::WRITE => Data::Write,
        other => return Err(Fault::IndirectOperation(other)),
    };
    let nr_segments = u16_le(bytes, 2);
    let most = INDIRECT_SEGMENTS_MAX as u16;
    if !(1..=most).contains(&nr_segments) {
        return Err(Fault::SegmentCount { found: nr_segments, least: 1, most });
    }
    let at = abi.offsets().grefs;
    let grefs = std::array::from_fn(|n| u32_le(bytes, at + 4 * n));
    Ok(Kind::Indirect { data, nr_segments, grefs })
}

/// The segments that fill `bytes`, of an indirect page. Those are the same in both layouts.
///
/// # Errors
/// One of them is no part of a page.
pub fn decode_segments(bytes: &[u8], out: &mut Vec<Segment>) -> Result<(), Fault> {
    for bytes in bytes.chunks_exact(SEGMENT_BYTES) {
        let segment = Segment::decode(bytes);
        segment.sectors()?;
        out.push(segment);
    }
    Ok(())
}

/// As the bytes of an indirect page.
pub fn encode_segments(segments: &[Segment]) -> Vec<u8> {
    segments.iter().flat_map(|segment| segment.encode()).collect()
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was done.
    Okay,
    /// It failed. The protocol has no more to say.
    Error,
    /// The back end cannot do this at all.
    NotSupported,
    /// A number that no back end should send.
    Other(i16),
}

impl Status {
    fn number(self) -> i16 {
        match self {
            Status::Okay => 0,
            Status::Error => -1,
            Status::NotSupported => -2,
            Status::Other(number) => number,
        }
    }

    fn from_number(number: i16) -> Status {
        match number {
            0 => Status::Okay,
            -1 => Status::Error,
            -2 => Status::NotSupported,
            other => Status::Other(other),
        }
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The request's number.
    pub id: u64,
    /// The request's operation.
    pub operation: Operation,
    /// What became of it.
    pub status: Status,
}

impl Response {
    /// As a slot's bytes, of which [`Abi::response_bytes`] count.
    #[inline]
    pub fn encode(&self) -> [u8; 16] {
        let id = u128::from(self.id);
        let operation = u128::from(self.operation.0);
        let status = u128::from(u16::from_le_bytes(self.status.number().to_le_bytes()));
        (id | operation << 64 | status << 80).to_le_bytes()
    }

    /// From a slot's bytes: at least the first twelve.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Response {
        let status = Status::from_number(i16::from_le_bytes(array(bytes, 10)));
        Response { id: u64_le(bytes, 0), operation: Operation(bytes[8]), status }
    }
}
