//! Takes replies out of a byte stream that arrives in large pieces.
//!
//! One receive fills as much of the buffer as the server has sent; `next` then hands out events until only an
//! incomplete message is left. Payloads are handed out in place and may come in several pieces.
//!
//! (1) A header is parsed only when it is complete; (2) the bytes of a payload are handed out once and in order;
//! (3) whatever the server sends, nothing is allocated and no index leaves the buffer.

use std::ops::Range;

use anyhow::{Result, bail, ensure};

use crate::proto::*;

/// Bytes of the receive buffer: many small replies, yet within a core's second-level cache.
const BUFFER_BYTES: usize = 256 << 10;
/// Longest error chunk taken.
const ERROR_CHUNK_MAX: u32 = 16 << 10;

/// Something a server's stream says about one request.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Payload: where it belongs, and where it lies in the buffer.
    Data { cookie: u64, at: At, range: Range<usize> },
    /// A stretch of zeros that is not sent.
    Hole { cookie: u64, offset: u64, length: u32 },
    /// The request failed with this error; `Done` follows.
    Fault { cookie: u64, errno: u32 },
    /// The request's last word.
    Done { cookie: u64 },
}

/// Where a piece of payload belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Bytes from the start of the request.
    Relative(u64),
    /// Bytes from the start of the disk.
    Absolute(u64),
}

enum State {
    Header,
    Payload { cookie: u64, at: At, left: usize, done: bool },
    Finished { cookie: u64 },
}

/// The receive buffer and where the parser stands in it.
pub struct Replies {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    state: State,
    structured: bool,
}

impl Replies {
    /// An empty buffer; `structured` as negotiated.
    pub fn new(structured: bool) -> Self {
        Replies { buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, state: State::Header, structured }
    }

    /// The free space to receive into; never empty after `next` returned `None`.
    pub fn space(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        &mut self.buffer[self.end..]
    }

    /// Notes that this many bytes were received into `space`.
    pub fn received(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.buffer.len());
    }

    /// The bytes of a `Data` event.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// The next event, or `None` when more bytes are needed. `payload_bytes` gives the bytes that a simple reply to
    /// this cookie carries if it succeeds, or refuses an unknown cookie.
    pub fn next(&mut self, payload_bytes: impl Fn(u64) -> Result<usize>) -> Result<Option<Event>> {
        loop {
            match self.state {
                State::Finished { cookie } => {
                    self.state = State::Header;
                    return Ok(Some(Event::Done { cookie }));
                }
                State::Payload { cookie, at, left, done } => {
                    let take = left.min(self.end - self.start);
                    if take == 0 {
                        return Ok(None);
                    }
                    let range = self.start..self.start + take;
                    self.start = range.end;
                    self.state = match (left - take, done) {
                        (0, true) => State::Finished { cookie },
                        (0, false) => State::Header,
                        (left, done) => State::Payload { cookie, at: at.advanced(take), left, done },
                    };
                    return Ok(Some(Event::Data { cookie, at, range }));
                }
                State::Header => match self.header(&payload_bytes)? {
                    Header::Incomplete => return Ok(None),
                    Header::Silent => {}
                    Header::Event(event) => return Ok(Some(event)),
                },
            }
        }
    }

    fn header(&mut self, payload_bytes: &impl Fn(u64) -> Result<usize>) -> Result<Header> {
        let raw = &self.buffer[self.start..self.end];
        if raw.len() < SIMPLE_REPLY_BYTES {
            return Ok(Header::Incomplete);
        }
        match be32(raw, 0) {
            SIMPLE_REPLY_MAGIC => {
                let (errno, cookie) = (be32(raw, 4), be64(raw, 8));
                let left = payload_bytes(cookie)?;
                self.start += SIMPLE_REPLY_BYTES;
                if errno != 0 {
                    self.state = State::Finished { cookie };
                    return Ok(Header::Event(Event::Fault { cookie, errno }));
                }
                if left == 0 {
                    return Ok(Header::Event(Event::Done { cookie }));
                }
                ensure!(
                    !self.structured,
                    "a simple reply to a read, though structured replies were agreed on"
                );
                self.state = State::Payload { cookie, at: At::Relative(0), left, done: true };
                Ok(Header::Silent)
            }
            CHUNK_MAGIC if self.structured => self.chunk(),
            magic => bail!(
                "a reply starts with {magic:#010x}, expected a reply's magic: the stream is out of step"
            ),
        }
    }

    fn chunk(&mut self) -> Result<Header> {
        let raw = &self.buffer[self.start..self.end];
        if raw.len() < CHUNK_BYTES {
            return Ok(Header::Incomplete);
        }
        let (flags, kind, cookie, length) = (be16(raw, 4), be16(raw, 6), be64(raw, 8), be32(raw, 16));
        let done = flags & CHUNK_DONE != 0;
        // What must have arrived before the chunk is looked at: an error whole, of data only the offset.
        let fixed: u32 = match kind {
            CHUNK_NONE => 0,
            CHUNK_DATA => 8,
            CHUNK_HOLE => 12,
            CHUNK_ERROR | CHUNK_ERROR_OFFSET => length,
            _ => bail!("a chunk of unknown type {kind:#x}"),
        };
        let fits = match kind {
            CHUNK_DATA => length > fixed,
            CHUNK_ERROR | CHUNK_ERROR_OFFSET => (6..=ERROR_CHUNK_MAX).contains(&length),
            _ => length == fixed,
        };
        ensure!(fits, "a chunk of type {kind:#x} with the impossible length {length}");
        let fixed = usize::try_from(fixed)?;
        if raw.len() < CHUNK_BYTES + fixed {
            return Ok(Header::Incomplete);
        }
        let body = &raw[CHUNK_BYTES..CHUNK_BYTES + fixed];
        let event = match kind {
            CHUNK_NONE => None,
            CHUNK_DATA => {
                let left = usize::try_from(length)? - 8;
                let at = At::Absolute(be64(body, 0));
                self.start += CHUNK_BYTES + fixed;
                self.state = State::Payload { cookie, at, left, done };
                return Ok(Header::Silent);
            }
            CHUNK_HOLE => Some(Event::Hole { cookie, offset: be64(body, 0), length: be32(body, 8) }),
            _ => Some(Event::Fault { cookie, errno: be32(body, 0) }),
        };
        self.start += CHUNK_BYTES + fixed;
        if done {
            self.state = State::Finished { cookie };
        }
        Ok(event.map_or(Header::Silent, Header::Event))
    }
}

impl At {
    fn advanced(self, bytes: usize) -> At {
        let bytes = bytes as u64;
        match self {
            At::Relative(at) => At::Relative(at + bytes),
            // The sum is checked against the request's range where the piece is used.
            At::Absolute(at) => At::Absolute(at.saturating_add(bytes)),
        }
    }
}

enum Header {
    Incomplete,
    Silent,
    Event(Event),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a stream amounts to, with the payload joined: (cookie, payload, holes, errno).
    type Answer = (u64, Vec<u8>, u32, u32);

    fn parse(stream: &[u8], structured: bool, cut: usize) -> Result<Vec<Answer>> {
        let mut replies = Replies::new(structured);
        let mut done = Vec::new();
        let mut current: Answer = (0, Vec::new(), 0, 0);
        for piece in stream.chunks(cut) {
            replies.space()[..piece.len()].copy_from_slice(piece);
            replies.received(piece.len());
            while let Some(event) = replies.next(|_| Ok(10))? {
                match event {
                    Event::Data { cookie, range, .. } => {
                        current.0 = cookie;
                        current.1.extend_from_slice(replies.bytes(range));
                    }
                    Event::Hole { length, .. } => current.2 += length,
                    Event::Fault { errno, .. } => current.3 = errno,
                    Event::Done { cookie } => {
                        current.0 = cookie;
                        done.push(std::mem::take(&mut current));
                    }
                }
            }
        }
        Ok(done)
    }

    fn simple(cookie: u64, errno: u32, payload: &[u8]) -> Vec<u8> {
        let mut raw = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
        raw.extend_from_slice(&errno.to_be_bytes());
        raw.extend_from_slice(&cookie.to_be_bytes());
        raw.extend_from_slice(payload);
        raw
    }

    fn chunk(flags: u16, kind: u16, cookie: u64, body: &[u8]) -> Vec<u8> {
        let mut raw = CHUNK_MAGIC.to_be_bytes().to_vec();
        raw.extend_from_slice(&flags.to_be_bytes());
        raw.extend_from_slice(&kind.to_be_bytes());
        raw.extend_from_slice(&cookie.to_be_bytes());
        raw.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
        raw.extend_from_slice(body);
        raw
    }

    proptest! {
        #[test]
        fn simple_replies_are_the_same_however_the_stream_is_cut(cut in 1usize..80, n in 1u64..20) {
            let mut stream = Vec::new();
            let mut expected: Vec<Answer> = Vec::new();
            for cookie in 0..n {
                let errno = if cookie % 3 == 2 { 5 } else { 0 };
                let payload = if errno == 0 { vec![cookie as u8; 10] } else { Vec::new() };
                stream.extend(simple(cookie, errno, &payload));
                expected.push((cookie, payload, 0, errno));
            }
            prop_assert_eq!(parse(&stream, false, cut).unwrap(), expected);
        }

        #[test]
        fn chunks_are_the_same_however_the_stream_is_cut(cut in 1usize..80) {
            let data = |offset: u64, bytes: &[u8]| [&offset.to_be_bytes()[..], bytes].concat();
            let hole = [&512u64.to_be_bytes()[..], &77u32.to_be_bytes()[..]].concat();
            let error = [&28u32.to_be_bytes()[..], &2u16.to_be_bytes()[..], b"no"].concat();
            let stream = [
                chunk(0, CHUNK_DATA, 9, &data(0, b"abc")),
                chunk(0, CHUNK_HOLE, 9, &hole),
                chunk(CHUNK_DONE, CHUNK_DATA, 9, &data(700, b"defgh")),
                chunk(0, CHUNK_ERROR, 4, &error),
                chunk(CHUNK_DONE, CHUNK_NONE, 4, b""),
            ]
            .concat();
            let expected = vec![(9, b"abcdefgh".to_vec(), 77, 0), (4, Vec::new(), 0, 28)];
            prop_assert_eq!(parse(&stream, true, cut).unwrap(), expected);
        }

        #[test]
        fn any_bytes_at_all_give_an_answer_or_an_error(
            noise in proptest::collection::vec(any::<u8>(), 0..200), magic in 0u8..3, cut in 1usize..64
        ) {
            let mut stream = match magic {
                0 => Vec::new(),
                1 => SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec(),
                _ => CHUNK_MAGIC.to_be_bytes().to_vec(),
            };
            stream.extend(noise);
            let _ = parse(&stream, true, cut);
        }
    }

    #[test]
    fn a_stream_out_of_step_an_unknown_chunk_and_an_impossible_length_are_refused() {
        assert!(parse(&[1; 40], true, 40).unwrap_err().to_string().contains("out of step"));
        assert!(parse(&chunk(1, 99, 0, b""), true, 40).unwrap_err().to_string().contains("unknown type"));
        assert!(
            parse(&chunk(1, CHUNK_HOLE, 0, b"abc"), true, 40).unwrap_err().to_string().contains("length")
        );
        assert!(parse(&chunk(1, CHUNK_NONE, 0, b""), false, 40).is_err(), "a chunk that was not agreed on");
    }
}
