//! Xenstore's wire protocol: messages of a header and a payload, to and from the daemon that keeps the keys.
//!
//! Source: Xen's public header `io/xs_wire.h` and `docs/misc/xenstore.txt`. Numbers are in the machine's own order: the daemon runs on
//! the same one.
//!
//! Invariant: a header that was decoded announces no more than [`PAYLOAD_MAX`] bytes, so that whoever reads the payload allocates no
//! more than that.

use crate::FormatError;

/// Kinds of messages. A reply has the kind of its request, or [`kind::ERROR`].
pub mod kind {
    /// A key's value.
    pub const READ: u32 = 2;
    /// Be told of changes of a key and of all below it.
    pub const WATCH: u32 = 4;
    /// Set a key.
    pub const WRITE: u32 = 11;
    /// Remove a key and all below it.
    pub const REMOVE: u32 = 13;
    /// Say who may read and write a key.
    pub const SET_PERMISSIONS: u32 = 14;
    /// Something that is watched has changed; unasked.
    pub const WATCH_EVENT: u32 = 15;
    /// The request was refused; the payload is the name of an error.
    pub const ERROR: u32 = 16;
}

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a payload at most.
pub const PAYLOAD_MAX: usize = 4096;

/// What precedes a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// [`kind`].
    pub kind: u32,
    /// The request's number, which comes back in the reply. Of a watch's events: nothing.
    pub request: u32,
    /// The transaction that it is part of; 0: none.
    pub transaction: u32,
    /// Bytes of the payload.
    pub len: u32,
}

impl Header {
    /// As sent.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        for (word, value) in
            bytes.chunks_exact_mut(4).zip([self.kind, self.request, self.transaction, self.len])
        {
            word.copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    /// As received.
    ///
    /// # Errors
    /// The payload is too long.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FormatError> {
        let word = |at: usize| u32::from_ne_bytes(crate::bytes::array(bytes, at));
        let header = Header { kind: word(0), request: word(4), transaction: word(8), len: word(12) };
        if crate::bytes::index(header.len) > PAYLOAD_MAX {
            let expected = format!("at most {PAYLOAD_MAX}");
            return Err(FormatError::invalid("xenstore message", 12, "length", header.len, expected));
        }
        Ok(header)
    }
}

/// A request: `parts` are ended by a NUL each, `value` is not.
///
/// # Errors
/// It is longer than a message may be.
pub fn request(kind: u32, number: u32, parts: &[&str], value: &str) -> Result<Vec<u8>, FormatError> {
    let len = parts.iter().map(|part| part.len() + 1).sum::<usize>() + value.len();
    if len > PAYLOAD_MAX {
        let expected = format!("at most {PAYLOAD_MAX}");
        return Err(FormatError::limit("xenstore request", 12, "length", len, expected));
    }
    let len = u32::try_from(len).expect("at most PAYLOAD_MAX");
    let mut bytes = Header { kind, request: number, transaction: 0, len }.encode().to_vec();
    for part in parts {
        bytes.extend_from_slice(part.as_bytes());
        bytes.push(0);
    }
    bytes.extend_from_slice(value.as_bytes());
    Ok(bytes)
}

/// A reply's text: a value, or the name of an error. What is no UTF-8 is replaced, a NUL at the end left out.
pub fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload.strip_suffix(b"\0").unwrap_or(payload)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_a_nul_behind_each_part_and_none_behind_the_value() {
        let bytes = request(kind::WRITE, 7, &["/local/domain/3/x"], "12").unwrap();
        let header = Header::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
        assert_eq!(header, Header { kind: 11, request: 7, transaction: 0, len: 20 });
        assert_eq!(&bytes[HEADER_BYTES..], b"/local/domain/3/x\x0012");
    }

    #[test]
    fn what_is_too_long_is_neither_sent_nor_taken() {
        let long = "x".repeat(PAYLOAD_MAX - 1);
        assert!(request(kind::READ, 1, &[&long], "").is_ok());
        assert!(request(kind::WRITE, 1, &[&long], "y").is_err());
        let header = Header { kind: kind::READ, request: 1, transaction: 0, len: 4097 };
        let said = Header::decode(&header.encode()).unwrap_err().to_string();
        assert_eq!(said, "xenstore message at 12: length is 4097, expected at most 4096");
    }

    #[test]
    fn texts_lose_their_nul_and_nothing_else() {
        assert_eq!(text(b"ENOENT\0"), "ENOENT");
        assert_eq!(text(b"a\0b\0"), "a\0b");
        assert_eq!(text(b"\xff"), "\u{fffd}");
    }
}
