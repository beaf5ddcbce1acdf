//! Messages of vhost-user, by which a virtual machine monitor (the front end) hands its guest's rings to another process (the
//! back end): bytes to structs and back, for both ends, so that what one encodes the other can check.
//!
//! Source: `docs/interop/vhost-user.rst` of QEMU. Integers are in the host's byte order; file descriptors go beside a
//! message, as SCM_RIGHTS.
//!
//! Invariants: nothing here allocates by a number that a peer sent; a payload is at most [`PAYLOAD_MAX`] bytes, and has
//! exactly the size that its message has.
//!
//! Not here: what a message means for the state of a session. Why not rust-vmm's `vhost` crate: it has no way to send the
//! front end a CONFIG_CHANGE, its errors do not say what was wrong with a message, and it brings six more crates.

pub mod inflight;
mod message;

pub use message::{ConfigPart, InflightArea, LogArea, Message, Region, VringAddr, VringFile, VringState};

use crate::bytes::index;
use crate::error::FormatError;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;
/// Largest payload, bytes: a memory table of [`TABLE_REGIONS_MAX`] regions, or 256 bytes of configuration.
pub const PAYLOAD_MAX: usize = 4096 - HEADER_BYTES;
/// Regions of one memory table, and so file descriptors of one message, at most.
pub const TABLE_REGIONS_MAX: usize = 8;
/// Bytes of configuration in one message at most.
pub const CONFIG_PART_MAX: usize = 256;

/// The feature bit of a device that says that there are features of the protocol.
pub const FEATURE_PROTOCOL: u64 = 1 << 30;
/// The feature bit of a device that says that written pages are logged, while it is set.
pub const FEATURE_LOG_ALL: u64 = 1 << 26;

/// Features of the protocol, as bits.
pub mod protocol {
    /// Several queues.
    pub const MQ: u64 = 1 << 0;
    /// The dirty log is shared memory.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// A message may ask to be answered.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// There is a socket for messages from the back end.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The back end has the device's configuration.
    pub const CONFIG: u64 = 1 << 9;
    /// Requests in flight are marked in shared memory.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Regions of memory are added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// The device's status is told.
    pub const STATUS: u64 = 1 << 16;
}

/// Flags of a header.
pub mod header_flag {
    /// The version, which is 1.
    pub const VERSION: u32 = 3;
    /// It is an answer.
    pub const REPLY: u32 = 1 << 2;
    /// The sender waits for an answer.
    pub const NEED_REPLY: u32 = 1 << 3;
}

/// What a message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which message: a number of [`Message`], or of the back end's ([`CONFIG_CHANGE`]).
    pub request: u32,
    /// See [`header_flag`].
    pub flags: u32,
    /// Bytes that follow.
    pub size: u32,
}

/// The back end's message that the configuration has changed.
pub const CONFIG_CHANGE: u32 = 2;

impl Header {
    /// From its bytes.
    ///
    /// # Errors
    /// Another version than 1, or more payload than any message has.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FormatError> {
        let field = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let header = Header { request: field(0), flags: field(4), size: field(8) };
        let version = header.flags & header_flag::VERSION;
        if version != 1 {
            return Err(FormatError::invalid("vhost-user message", 4, "version", version, 1));
        }
        if index(header.size) > PAYLOAD_MAX {
            let expected = format!("at most {PAYLOAD_MAX} bytes");
            return Err(FormatError::limit("vhost-user message", 8, "size", header.size, expected));
        }
        Ok(header)
    }

    /// To its bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.request.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.size.to_ne_bytes());
        bytes
    }

    /// Whether the sender waits for an answer.
    pub fn needs_reply(&self) -> bool {
        self.flags & header_flag::NEED_REPLY != 0
    }

    /// The bytes of an answer to it.
    ///
    /// # Panics
    /// If the payload is longer than [`PAYLOAD_MAX`].
    pub fn reply(&self, payload: &[u8]) -> Vec<u8> {
        assert!(payload.len() <= PAYLOAD_MAX);
        let size = u32::try_from(payload.len()).expect("a payload is short");
        let header = Header { request: self.request, flags: 1 | header_flag::REPLY, size };
        [&header.encode()[..], payload].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_another_version_or_size_is_refused() {
        let header = Header { request: 5, flags: 1, size: 80 };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        let error = Header::decode(&Header { flags: 2, ..header }.encode()).unwrap_err().to_string();
        assert!(error.contains("version is 2, expected 1"), "{error}");
        let error = Header::decode(&Header { size: 4085, ..header }.encode()).unwrap_err().to_string();
        assert!(error.contains("4085") && error.contains("4084"), "{error}");
        assert_eq!(
            header.reply(&[7])[..],
            [&Header { request: 5, flags: 5, size: 1 }.encode()[..], &[7]].concat()
        );
    }
}
