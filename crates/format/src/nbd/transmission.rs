//! The transmission phase: requests and replies, in their three styles.

use super::{
    EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, Malformed, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, base_allocation, chunk,
};
use crate::bytes::{array, length};

/// Bytes of a compact request.
pub const COMPACT_REQUEST_LEN: usize = 28;
/// Bytes of an extended request.
pub const EXTENDED_REQUEST_LEN: usize = 32;

/// Which headers were agreed upon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Compact requests, simple replies.
    #[default]
    Simple,
    /// Compact requests; reads and block status are answered in chunks, the rest simply.
    Structured,
    /// Extended requests; everything is answered in extended chunks.
    Extended,
}

impl Style {
    /// Bytes of a request.
    #[inline]
    pub fn request_len(self) -> usize {
        match self {
            Style::Simple | Style::Structured => COMPACT_REQUEST_LEN,
            Style::Extended => EXTENDED_REQUEST_LEN,
        }
    }
}

/// The errors that exist on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum WireErrno {
    /// Not permitted: a write to a read-only export.
    Perm = 1,
    /// Input/output error.
    Io = 5,
    /// Out of memory.
    NoMem = 12,
    /// The request makes no sense.
    Inval = 22,
    /// Beyond the end, or no space left.
    NoSpc = 28,
    /// Too large.
    Overflow = 75,
    /// Not supported.
    NotSup = 95,
    /// The server is going down.
    Shutdown = 108,
}

impl WireErrno {
    /// What a Linux errno becomes on the wire.
    pub fn from_linux(errno: i32) -> WireErrno {
        const EACCES: i32 = 13;
        const EFBIG: i32 = 27;
        const EROFS: i32 = 30;
        const EDQUOT: i32 = 122;
        match errno {
            1 | EACCES | EROFS => WireErrno::Perm,
            12 => WireErrno::NoMem,
            22 => WireErrno::Inval,
            28 | EFBIG | EDQUOT => WireErrno::NoSpc,
            75 => WireErrno::Overflow,
            95 => WireErrno::NotSup,
            108 => WireErrno::Shutdown,
            _ => WireErrno::Io,
        }
    }

    /// Its number on the wire.
    pub fn number(self) -> u32 {
        match self {
            WireErrno::Perm => 1,
            WireErrno::Io => 5,
            WireErrno::NoMem => 12,
            WireErrno::Inval => 22,
            WireErrno::NoSpc => 28,
            WireErrno::Overflow => 75,
            WireErrno::NotSup => 95,
            WireErrno::Shutdown => 108,
        }
    }
}

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// [`command_flags`](super::command_flags).
    pub flags: u16,
    /// [`command`](super::command).
    pub command: u16,
    /// The client's number for it, which comes back in the reply.
    pub cookie: u64,
    /// Where, bytes.
    pub offset: u64,
    /// How much, bytes: of the export, or of the payload.
    pub len: u64,
}

impl Request {
    /// From the wire, in the compact form.
    #[inline]
    pub fn decode_compact(bytes: &[u8; COMPACT_REQUEST_LEN]) -> Result<Request, Malformed> {
        Request::magic(bytes, REQUEST_MAGIC)?;
        Ok(Request { len: u32::from_be_bytes(array(bytes, 24)).into(), ..Request::fields(bytes) })
    }

    /// From the wire, in the extended form.
    #[inline]
    pub fn decode_extended(bytes: &[u8; EXTENDED_REQUEST_LEN]) -> Result<Request, Malformed> {
        Request::magic(bytes, EXTENDED_REQUEST_MAGIC)?;
        Ok(Request { len: u64::from_be_bytes(array(bytes, 24)), ..Request::fields(bytes) })
    }

    #[inline]
    fn magic(bytes: &[u8], expected: u32) -> Result<(), Malformed> {
        let found = u32::from_be_bytes(array(bytes, 0));
        if found == expected {
            return Ok(());
        }
        Err(Malformed::Magic { what: "a request", found: found.into(), expected: expected.into() })
    }

    #[inline]
    fn fields(bytes: &[u8]) -> Request {
        Request {
            flags: u16::from_be_bytes(array(bytes, 4)),
            command: u16::from_be_bytes(array(bytes, 6)),
            cookie: u64::from_be_bytes(array(bytes, 8)),
            offset: u64::from_be_bytes(array(bytes, 16)),
            len: 0,
        }
    }

    /// To the wire, in the compact form; none if the length does not fit.
    pub fn encode_compact(&self) -> Option<[u8; COMPACT_REQUEST_LEN]> {
        let mut out = [0; COMPACT_REQUEST_LEN];
        self.put(REQUEST_MAGIC, &mut out);
        out[24..].copy_from_slice(&u32::try_from(self.len).ok()?.to_be_bytes());
        Some(out)
    }

    /// To the wire, in the extended form.
    pub fn encode_extended(&self) -> [u8; EXTENDED_REQUEST_LEN] {
        let mut out = [0; EXTENDED_REQUEST_LEN];
        self.put(EXTENDED_REQUEST_MAGIC, &mut out);
        out[24..].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    fn put(&self, magic: u32, out: &mut [u8]) {
        out[..4].copy_from_slice(&magic.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
    }
}

/// The payload of BLOCK_STATUS for one metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusPayload {
    /// How much of the export, bytes.
    pub len: u64,
    /// The context.
    pub context: u32,
}

impl StatusPayload {
    /// Bytes on the wire, with one context.
    pub const LEN: usize = 12;

    /// From the wire.
    pub fn decode(bytes: &[u8; Self::LEN]) -> StatusPayload {
        StatusPayload {
            len: u64::from_be_bytes(array(bytes, 0)),
            context: u32::from_be_bytes(array(bytes, 8)),
        }
    }
}

/// What precedes a reply's data, or is all of it.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHead {
    bytes: [u8; ReplyHead::MAX],
    len: usize,
}

impl ReplyHead {
    /// The longest one, bytes.
    pub const MAX: usize = 40;

    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Before the `len` bytes of a read.
    #[inline]
    pub fn data(style: Style, cookie: u64, offset: u64, len: u32) -> ReplyHead {
        match style {
            Style::Simple => ReplyHead::simple(cookie, 0),
            Style::Structured | Style::Extended => {
                let mut head =
                    ReplyHead::chunk(style, chunk::OFFSET_DATA, cookie, offset, u64::from(len) + 8);
                head.push(&offset.to_be_bytes());
                head
            }
        }
    }

    /// A success without data. `offset` is the request's.
    #[inline]
    pub fn done(style: Style, cookie: u64, offset: u64) -> ReplyHead {
        match style {
            Style::Simple | Style::Structured => ReplyHead::simple(cookie, 0),
            Style::Extended => ReplyHead::chunk(style, chunk::NONE, cookie, offset, 0),
        }
    }

    /// The success of a command that must be answered in chunks where these are agreed upon, without any data.
    pub fn done_in_chunks(style: Style, cookie: u64, offset: u64) -> ReplyHead {
        match style {
            Style::Simple => ReplyHead::simple(cookie, 0),
            Style::Structured | Style::Extended => ReplyHead::chunk(style, chunk::NONE, cookie, offset, 0),
        }
    }

    /// A failure. `chunks`: the command (a read, a block status) must be answered in chunks where these are agreed upon.
    pub fn error(style: Style, chunks: bool, cookie: u64, offset: u64, errno: WireErrno) -> ReplyHead {
        if style == Style::Simple || style == Style::Structured && !chunks {
            return ReplyHead::simple(cookie, errno.number());
        }
        let mut head = ReplyHead::chunk(style, chunk::ERROR, cookie, offset, 6);
        head.push(&errno.number().to_be_bytes());
        head.push(&[0, 0]); // no text: the errno says it all
        head
    }

    #[inline]
    fn simple(cookie: u64, error: u32) -> ReplyHead {
        let mut head = ReplyHead { bytes: [0; ReplyHead::MAX], len: 0 };
        head.push(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        head.push(&error.to_be_bytes());
        head.push(&cookie.to_be_bytes());
        head
    }

    /// The head of a reply's only chunk.
    #[inline]
    fn chunk(style: Style, kind: u16, cookie: u64, offset: u64, len: u64) -> ReplyHead {
        debug_assert!(style != Style::Simple);
        let mut head = ReplyHead { bytes: [0; ReplyHead::MAX], len: 0 };
        let extended = style == Style::Extended;
        let magic = if extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
        head.push(&magic.to_be_bytes());
        head.push(&chunk::DONE.to_be_bytes());
        head.push(&kind.to_be_bytes());
        head.push(&cookie.to_be_bytes());
        if extended {
            head.push(&offset.to_be_bytes());
            head.push(&len.to_be_bytes());
        } else {
            let len = u32::try_from(len).expect("a payload is limited to 32 MiB");
            head.push(&len.to_be_bytes());
        }
        head
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Bytes of a block status reply with that many extents.
pub fn block_status_len(style: Style, extents: usize) -> usize {
    match style {
        Style::Simple | Style::Structured => 20 + 4 + 8 * extents,
        Style::Extended => 32 + 8 + 16 * extents,
    }
}

/// Appends a reply to BLOCK_STATUS: `extents` are lengths in bytes with bits of [`base_allocation`], at least one,
/// each not empty. Where lengths have 32 bits, the list ends before the first that does not fit (which is cut).
pub fn block_status(
    out: &mut Vec<u8>,
    style: Style,
    cookie: u64,
    offset: u64,
    context: u32,
    extents: &[(u64, u32)],
) {
    debug_assert!(
        extents
            .iter()
            .all(|(len, bits)| *len > 0 && bits & !(base_allocation::HOLE | base_allocation::ZERO) == 0)
    );
    if style == Style::Extended {
        let count = u32::try_from(extents.len()).expect("the number of extents is limited");
        let len = 8 + 16 * length(extents.len());
        out.extend(ReplyHead::chunk(style, chunk::BLOCK_STATUS_EXT, cookie, offset, len).as_bytes());
        out.extend(context.to_be_bytes());
        out.extend(count.to_be_bytes());
        for (len, bits) in extents {
            out.extend(len.to_be_bytes());
            out.extend(u64::from(*bits).to_be_bytes());
        }
        return;
    }
    // A multiple of any block size, so that what follows stays aligned.
    const CUT: u32 = 0xffff_0000;
    let fit = extents.iter().take_while(|(len, _)| u32::try_from(*len).is_ok()).count();
    let count = (fit + 1).min(extents.len());
    out.extend(
        ReplyHead::chunk(style, chunk::BLOCK_STATUS, cookie, offset, 4 + 8 * length(count)).as_bytes(),
    );
    out.extend(context.to_be_bytes());
    for (len, bits) in &extents[..count] {
        out.extend(u32::try_from(*len).unwrap_or(CUT).to_be_bytes());
        out.extend(bits.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_the_wire_in_both_forms() {
        let request = Request {
            flags: 0x21,
            command: 6,
            cookie: 0x0102_0304_0506_0708,
            offset: 1 << 40,
            len: 0xffff_ffff,
        };
        assert_eq!(Request::decode_compact(&request.encode_compact().unwrap()), Ok(request));
        let long = Request { len: 1 << 50, ..request };
        assert_eq!(long.encode_compact(), None);
        assert_eq!(Request::decode_extended(&long.encode_extended()), Ok(long));
        let mut bad = request.encode_compact().unwrap();
        bad[3] ^= 1;
        assert!(Request::decode_compact(&bad).is_err());
        assert!(Request::decode_extended(&[0; 32]).is_err());
    }

    #[test]
    fn replies_have_the_forms_of_their_styles() {
        use Style::{Extended, Simple, Structured};
        let len = |head: ReplyHead| head.as_bytes().len();
        assert_eq!(len(ReplyHead::data(Simple, 1, 2, 3)), 16);
        assert_eq!(len(ReplyHead::data(Structured, 1, 2, 3)), 28);
        assert_eq!(len(ReplyHead::data(Extended, 1, 2, 3)), 40);
        assert_eq!(len(ReplyHead::done(Structured, 1, 2)), 16);
        assert_eq!(len(ReplyHead::done_in_chunks(Structured, 1, 2)), 20);
        assert_eq!(len(ReplyHead::done(Extended, 1, 2)), 32);
        assert_eq!(len(ReplyHead::error(Structured, false, 1, 2, WireErrno::Io)), 16);
        assert_eq!(len(ReplyHead::error(Structured, true, 1, 2, WireErrno::Io)), 26);
        assert_eq!(len(ReplyHead::error(Extended, false, 1, 2, WireErrno::Io)), 38);
        let head = ReplyHead::data(Structured, 0x11, 0x22, 4096);
        assert_eq!(head.as_bytes()[..4], 0x668e_33ef_u32.to_be_bytes());
        assert_eq!(head.as_bytes()[4..8], [0, 1, 0, 1]);
        assert_eq!(head.as_bytes()[16..20], 4104u32.to_be_bytes());
        assert_eq!(head.as_bytes()[20..], 0x22u64.to_be_bytes());
    }

    #[test]
    fn a_status_with_short_lengths_is_cut_where_they_end() {
        let extents = [(4096, 0), (5 << 32, 3), (4096, 0)];
        let mut out = Vec::new();
        block_status(&mut out, Style::Structured, 1, 2, 7, &extents);
        assert_eq!(out.len(), 20 + 4 + 2 * 8);
        assert_eq!(out[16..20], 20u32.to_be_bytes());
        assert_eq!(out[32..36], 0xffff_0000_u32.to_be_bytes());
        out.clear();
        block_status(&mut out, Style::Extended, 1, 2, 7, &extents);
        assert_eq!(out.len(), block_status_len(Style::Extended, 3));
        assert_eq!(out[24..32], 56u64.to_be_bytes());
    }

    #[test]
    fn only_errors_of_the_protocol_reach_the_wire() {
        let known = [1, 5, 12, 22, 28, 75, 95, 108];
        for errno in -1..200 {
            assert!(known.contains(&WireErrno::from_linux(errno).number()), "{errno}");
        }
        assert_eq!(WireErrno::from_linux(30), WireErrno::Perm);
        assert_eq!(WireErrno::from_linux(122), WireErrno::NoSpc);
        assert_eq!(WireErrno::from_linux(4), WireErrno::Io);
    }
}
