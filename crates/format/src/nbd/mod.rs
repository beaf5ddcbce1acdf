//! Messages of the NBD protocol: numbers, and bytes to structs and back. Both ends are here, so that what one encodes
//! the other can check.
//!
//! Source: the protocol's own document, `doc/proto.md` of the nbd project, with its extension-ext-header branch for the
//! 64-bit headers. All integers are big-endian; lengths and offsets are bytes.
//!
//! Invariants:
//! 1. Nothing here allocates by a number that a peer sent; decoding borrows from the bytes given.
//! 2. Names and queries are limited to [`NAME_MAX`] bytes, options to [`OPTION_MAX`], queries to [`QUERIES_MAX`].
//! 3. Only the errors of [`WireErrno`] can be put on the wire: the protocol knows no others.
//!
//! Not here: what a message means for the state of a session, which is the server's business.

mod handshake;
mod transmission;

pub use handshake::{
    InfoRequest, MetaRequest, OptionHeader, client_flags, export_name_reply, greeting, info_block_size,
    info_export, info_text, meta_context, option_error, option_reply, server_entry,
};
pub use transmission::{
    COMPACT_REQUEST_LEN, EXTENDED_REQUEST_LEN, ReplyHead, Request, StatusPayload, Style, WireErrno,
    block_status, block_status_len,
};

/// The TCP port that IANA assigned.
pub const PORT: u16 = 10809;
/// `NBDMAGIC`, the first eight bytes of a server.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, before each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before each compact request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before each extended request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Before a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Before a structured reply's chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Before an extended reply's chunk.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Longest name or query, bytes: the protocol's limit for strings.
pub const NAME_MAX: usize = 4096;
/// Longest data of an option that is looked at, bytes.
pub const OPTION_MAX: usize = 64 << 10;
/// Most queries in a request for metadata contexts.
pub const QUERIES_MAX: u32 = 1024;
/// Largest payload of a read or a write, bytes; what clients may rely on without asking.
pub const PAYLOAD_MAX: u32 = 32 << 20;

/// Handshake flags, of server and client alike.
pub mod handshake_flags {
    /// Unknown options are answered, not punished.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No padding after the answer to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

/// Numbers of options.
pub mod option {
    /// Choose an export, without any answer in case of an error.
    pub const EXPORT_NAME: u32 = 1;
    /// Give up.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Upgrade to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe and choose an export.
    pub const GO: u32 = 7;
    /// Answer in chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// 64-bit headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub mod option_reply_type {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// A fact about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// All errors have this bit.
    pub const ERROR: u32 = 1 << 31;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = ERROR | 1;
    /// Forbidden here.
    pub const ERR_POLICY: u32 = ERROR | 2;
    /// Malformed, or at the wrong time.
    pub const ERR_INVALID: u32 = ERROR | 3;
    /// Not on this platform.
    pub const ERR_PLATFORM: u32 = ERROR | 4;
    /// STARTTLS first.
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    /// The server is going down.
    pub const ERR_SHUTDOWN: u32 = ERROR | 7;
    /// Ask for the block size first.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR | 8;
    /// Too much of it.
    pub const ERR_TOO_BIG: u32 = ERROR | 9;
    /// Extended headers are in the way, or needed.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR | 10;
}

/// Facts about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Its canonical name.
    pub const NAME: u16 = 1;
    /// A text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum request sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
pub mod transmission_flags {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// Refuses writes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Knows FLUSH.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Knows FUA.
    pub const SEND_FUA: u16 = 1 << 3;
    /// A disk with heads.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// Knows TRIM.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Knows WRITE_ZEROES.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Knows the flag DF.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers all of them.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Knows CACHE.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// Knows the flag FAST_ZERO.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    /// Knows BLOCK_STATUS with a payload.
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Numbers of commands.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Disconnect.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// The content is not needed any more.
    pub const TRIM: u16 = 4;
    /// Will be read soon.
    pub const CACHE: u16 = 5;
    /// Write zeros, without sending them.
    pub const WRITE_ZEROES: u16 = 6;
    /// What is allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod command_flags {
    /// Durable when answered.
    pub const FUA: u16 = 1;
    /// WRITE_ZEROES must not punch holes.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer a read in one chunk.
    pub const DF: u16 = 1 << 2;
    /// Tell one extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than write zeros slowly.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// The length is that of a payload.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Chunks of replies.
pub mod chunk {
    /// Flag: the last chunk of a reply.
    pub const DONE: u16 = 1;
    /// Nothing but the flag.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents, 32 bits.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents, 64 bits.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// An error.
    pub const ERROR: u16 = 1 << 15 | 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = 1 << 15 | 2;
}

/// The metadata context of allocation, and its bits.
pub mod base_allocation {
    /// Its name.
    pub const NAME: &str = "base:allocation";
    /// The namespace, as a query that selects all of it.
    pub const NAMESPACE: &str = "base:";
    /// Not allocated.
    pub const HOLE: u32 = 1;
    /// Reads as zeros.
    pub const ZERO: u32 = 2;
}

/// Bytes from a peer that contradict the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A message does not begin with its magic number.
    #[error("{what} begins with {found:#x}, expected {expected:#x}")]
    Magic {
        /// The message.
        what: &'static str,
        /// What is there.
        found: u64,
        /// What should be.
        expected: u64,
    },
    /// A client's handshake flags.
    #[error("the client's handshake flags are {found:#x}, expected no others than {expected:#x}")]
    ClientFlags {
        /// What is there.
        found: u32,
        /// What is known.
        expected: u32,
    },
    /// A length within a message points out of it, or leaves bytes over.
    #[error("{field} has {found} bytes where {expected} fit")]
    Length {
        /// The field.
        field: &'static str,
        /// What is there.
        found: u64,
        /// What is possible.
        expected: u64,
    },
    /// A length or count exceeds a limit of ours.
    #[error("{field} is {found}, the limit is {limit}")]
    Limit {
        /// The field.
        field: &'static str,
        /// What is there.
        found: u64,
        /// The limit.
        limit: u64,
    },
}

/// Reads big-endian integers and strings off the front of a message.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn bytes(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], Malformed> {
        if len > self.rest.len() {
            return Err(Malformed::Length {
                field,
                found: crate::bytes::length(len),
                expected: crate::bytes::length(self.rest.len()),
            });
        }
        let (bytes, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(bytes)
    }
    fn u16(&mut self, field: &'static str) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(crate::bytes::array(self.bytes(field, 2)?, 0)))
    }
    fn u32(&mut self, field: &'static str) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(crate::bytes::array(self.bytes(field, 4)?, 0)))
    }
    /// A string after its length.
    fn text(&mut self, field: &'static str) -> Result<&'a [u8], Malformed> {
        let len = crate::bytes::index(self.u32(field)?);
        let text = self.bytes(field, len)?;
        if len > NAME_MAX {
            return Err(Malformed::Limit {
                field,
                found: crate::bytes::length(len),
                limit: crate::bytes::length(NAME_MAX),
            });
        }
        Ok(text)
    }
    fn end(&self, field: &'static str) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Malformed::Length { field, found: crate::bytes::length(self.rest.len()), expected: 0 })
    }
}
