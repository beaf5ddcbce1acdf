//! XDR (RFC 4506): big-endian units of four bytes.

use super::reply::ReplyError;
use crate::bytes::{array, index};
use crate::error::FormatError;

/// The structure that errors name.
const PLACE: &str = "RPC reply";

/// Builds a message, which begins with room for its record mark.
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_be_bytes());
    }

    /// Bytes of a length that varies.
    pub(crate) fn opaque(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("names and handles are short"));
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// Takes a message apart.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Reader<'a> {
        Reader { bytes, at }
    }

    /// Bytes taken so far, from the start of the message.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ReplyError> {
        if self.bytes.len().saturating_sub(self.at) < N {
            return Err(ReplyError::Short);
        }
        let out = array(self.bytes, self.at);
        self.at += N;
        Ok(out)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ReplyError> {
        self.take().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ReplyError> {
        self.take().map(u64::from_be_bytes)
    }

    pub(crate) fn bytes8(&mut self) -> Result<[u8; 8], ReplyError> {
        self.take()
    }

    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool, ReplyError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(self.invalid(field, found, "0 or 1")),
        }
    }

    /// Bytes of a length that varies, and is `max` at most.
    pub(crate) fn opaque(&mut self, field: &'static str, max: usize) -> Result<&'a [u8], ReplyError> {
        let found = self.u32()?;
        let len = index(found);
        if len > max {
            return Err(self.invalid(field, found, &format!("a length of {max} at most")));
        }
        let padded = len.next_multiple_of(4);
        if self.bytes.len() - self.at < padded {
            return Err(ReplyError::Short);
        }
        let out = &self.bytes[self.at..self.at + len];
        self.at += padded;
        Ok(out)
    }

    pub(crate) fn skip(&mut self, bytes: usize) -> Result<(), ReplyError> {
        if self.bytes.len().saturating_sub(self.at) < bytes {
            return Err(ReplyError::Short);
        }
        self.at += bytes;
        Ok(())
    }

    /// The unit that was taken last is wrong.
    pub(crate) fn invalid(
        &self,
        field: &'static str,
        found: impl std::fmt::Display,
        expected: &str,
    ) -> ReplyError {
        let offset = crate::bytes::length(self.at.saturating_sub(4));
        ReplyError::Invalid(FormatError::invalid(PLACE, offset, field, found, expected))
    }
}
