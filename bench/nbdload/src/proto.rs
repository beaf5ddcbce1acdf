//! NBD messages as this client needs them: constants, requests out, nothing stateful.
//!
//! Everything on the wire is big-endian. Source: `doc/proto.md` of the NetworkBlockDevice project
//! (fixed newstyle negotiation, simple and structured replies).

/// First eight bytes a server sends ("NBDMAGIC").
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes, and the start of every option ("IHAVEOPT").
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Start of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Handshake flag, both sides: fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag, both sides: no 124 zeros after EXPORT_NAME.
pub const FLAG_NO_ZEROES: u16 = 2;

/// Option: choose the export and enter transmission.
pub const OPT_GO: u32 = 7;
/// Option: agree on structured replies.
pub const OPT_STRUCTURED_REPLY: u32 = 8;

/// Option reply: accepted.
pub const REP_ACK: u32 = 1;
/// Option reply: a piece of information about the export.
pub const REP_INFO: u32 = 3;
/// Option replies from here on are errors.
pub const REP_ERR_BASE: u32 = 1 << 31;

/// Information: size and transmission flags.
pub const INFO_EXPORT: u16 = 0;
/// Information: minimum, preferred and maximum block size.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flag: the export is read-only.
pub const SEND_READ_ONLY: u16 = 1 << 1;
/// Transmission flag: flush is understood.
pub const SEND_FLUSH: u16 = 1 << 2;
/// Transmission flag: FUA is understood.
pub const SEND_FUA: u16 = 1 << 3;
/// Transmission flag: trim is understood.
pub const SEND_TRIM: u16 = 1 << 5;
/// Transmission flag: write zeroes is understood.
pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Transmission flag: several connections see one consistent disk.
pub const CAN_MULTI_CONN: u16 = 1 << 8;

/// Start of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a structured reply's chunk.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of a request without its payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply without its payload.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a chunk's header without its payload.
pub const CHUNK_BYTES: usize = 20;

/// Command flag: the data are durable before the reply.
pub const CMD_FLAG_FUA: u16 = 1;
/// Command: end of the session.
pub const CMD_DISCONNECT: u16 = 2;
/// Command: make completed writes durable.
pub const CMD_FLUSH: u16 = 3;

/// Chunk flag: the last of its reply.
pub const CHUNK_DONE: u16 = 1;
/// Chunk: no content.
pub const CHUNK_NONE: u16 = 0;
/// Chunk: an offset and bytes.
pub const CHUNK_DATA: u16 = 1;
/// Chunk: an offset and a length of zeros.
pub const CHUNK_HOLE: u16 = 2;
/// Chunk: an error.
pub const CHUNK_ERROR: u16 = 0x8001;
/// Chunk: an error and the offset where it happened.
pub const CHUNK_ERROR_OFFSET: u16 = 0x8002;

/// What an I/O of the load does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Read `bs` bytes.
    Read,
    /// Write `bs` bytes.
    Write,
    /// Discard `bs` bytes.
    Trim,
    /// Write zeroes, without payload.
    Zero,
    /// Flush; not counted as an I/O.
    Flush,
}

impl Kind {
    /// The command's number on the wire.
    pub fn command(self) -> u16 {
        match self {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Flush => CMD_FLUSH,
            Kind::Trim => 4,
            Kind::Zero => 6,
        }
    }
}

/// A request's 28 bytes. `offset` and `length` are in bytes.
pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
    let mut raw = [0; REQUEST_BYTES];
    raw[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    raw[4..6].copy_from_slice(&flags.to_be_bytes());
    raw[6..8].copy_from_slice(&command.to_be_bytes());
    raw[8..16].copy_from_slice(&cookie.to_be_bytes());
    raw[16..24].copy_from_slice(&offset.to_be_bytes());
    raw[24..28].copy_from_slice(&length.to_be_bytes());
    raw
}

/// The name of an NBD error number; only these travel on the wire.
pub fn error_name(errno: u32) -> &'static str {
    match errno {
        1 => "EPERM",
        5 => "EIO",
        12 => "ENOMEM",
        22 => "EINVAL",
        28 => "ENOSPC",
        75 => "EOVERFLOW",
        95 => "ENOTSUP",
        108 => "ESHUTDOWN",
        _ => "an error NBD does not define",
    }
}

/// Big-endian `u16` at `at`; the caller has checked the length.
pub fn be16(raw: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(raw[at..at + 2].try_into().expect("two bytes"))
}

/// Big-endian `u32` at `at`; the caller has checked the length.
pub fn be32(raw: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(raw[at..at + 4].try_into().expect("four bytes"))
}

/// Big-endian `u64` at `at`; the caller has checked the length.
pub fn be64(raw: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(raw[at..at + 8].try_into().expect("eight bytes"))
}
