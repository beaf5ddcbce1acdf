//! What a server answers. See the module's head for what is hostile and what may be incomplete.

use std::fmt;

use super::xdr::Reader;
use super::{HANDLE_MAX, Handle, PATH_MAX, Stable, Status, Verifier};
use crate::error::FormatError;

/// Longest body of a verifier of RPC (RFC 5531).
const AUTH_MAX: usize = 400;
/// Longest address in text that is believed, bytes: one of IPv6 with its scope is shorter.
const ADDRESS_MAX: usize = 128;
/// Most flavours of authentication that a MNT reply may name.
const FLAVOURS_MAX: u32 = 64;
/// Bytes of the attributes of a file behind its type.
const ATTRIBUTES_REST: usize = 80;
/// What a weak cache consistency data's "before" has: size, mtime, ctime.
const BEFORE_BYTES: usize = 24;

/// Why a reply could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyError {
    /// It is not all there.
    Short,
    /// It contradicts the protocol.
    Invalid(FormatError),
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplyError::Short => f.write_str("an RPC reply ends before its last field"),
            ReplyError::Invalid(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReplyError {}

/// Why a server did not even look at what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It speaks other versions of RPC.
    RpcVersion,
    /// It does not accept who asks. The number is RFC 5531's `auth_stat`.
    Credential(u32),
    /// It has no such program.
    ProgramUnavailable,
    /// It has the program in other versions.
    ProgramVersion,
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// It could not decode the call.
    GarbageArguments,
    /// It is out of memory, or the like.
    System,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::RpcVersion => f.write_str("RPC_MISMATCH: it does not speak version 2 of RPC"),
            Refusal::Credential(number) => {
                write!(f, "AUTH_ERROR {number}: it does not accept this user or address")
            }
            Refusal::ProgramUnavailable => f.write_str("PROG_UNAVAIL: it does not have this service"),
            Refusal::ProgramVersion => f.write_str(
                "PROG_MISMATCH: it does not have the version of this service that it was asked in",
            ),
            Refusal::ProcedureUnavailable => f.write_str("PROC_UNAVAIL: it does not have this procedure"),
            Refusal::GarbageArguments => f.write_str("GARBAGE_ARGS: it could not decode the call"),
            Refusal::System => f.write_str("SYSTEM_ERR: it could not do the call for lack of something"),
        }
    }
}

/// The head of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Of which call.
    pub xid: u32,
    /// Where the result starts in the message, if the call was looked at.
    pub outcome: Result<usize, Refusal>,
}

/// The attributes of a file that matter for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What it is.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
}

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A folder.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, a socket or a pipe.
    Other,
}

/// What a READ has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadReply {
    /// Bytes.
    pub count: u32,
    /// The file ends behind them.
    pub eof: bool,
    /// Where they start in the message.
    pub data_at: usize,
}

/// What a WRITE has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteReply {
    /// Bytes that were written.
    pub count: u32,
    /// How durable they are.
    pub committed: Stable,
    /// Which life of the server has them.
    pub verifier: Verifier,
}

/// What a COMMIT has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitReply {
    /// Writes with this verifier are durable; others are lost.
    pub verifier: Verifier,
}

/// The server's limits, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsInfo {
    /// Largest READ.
    pub read_max: u32,
    /// Largest WRITE.
    pub write_max: u32,
    /// What its sizes should be a multiple of.
    pub write_multiple: u32,
    /// Largest file.
    pub file_max: u64,
}

/// Decodes the xid, the first thing in a message; `None` while that is not all there.
pub fn reply_xid(message: &[u8]) -> Option<u32> {
    message.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Decodes the head of a message, which begins behind its record mark.
pub fn reply(message: &[u8]) -> Result<Reply, ReplyError> {
    let mut reader = Reader::new(message, 0);
    let xid = reader.u32()?;
    let kind = reader.u32()?;
    if kind != 1 {
        return Err(reader.invalid("message type", kind, "1 (a reply)"));
    }
    let outcome = match reader.u32()? {
        0 => accepted(&mut reader)?,
        1 => Err(denied(&mut reader)?),
        found => return Err(reader.invalid("reply_stat", found, "0 or 1")),
    };
    Ok(Reply { xid, outcome: outcome.map(|()| reader.at()) })
}

fn accepted(reader: &mut Reader<'_>) -> Result<Result<(), Refusal>, ReplyError> {
    reader.u32()?;
    reader.opaque("verifier", AUTH_MAX)?;
    Ok(Err(match reader.u32()? {
        0 => return Ok(Ok(())),
        1 => Refusal::ProgramUnavailable,
        2 => Refusal::ProgramVersion,
        3 => Refusal::ProcedureUnavailable,
        4 => Refusal::GarbageArguments,
        5 => Refusal::System,
        found => return Err(reader.invalid("accept_stat", found, "0 to 5")),
    }))
}

fn denied(reader: &mut Reader<'_>) -> Result<Refusal, ReplyError> {
    match reader.u32()? {
        0 => Ok(Refusal::RpcVersion),
        1 => Ok(Refusal::Credential(reader.u32()?)),
        found => Err(reader.invalid("reject_stat", found, "0 or 1")),
    }
}

/// The status that a result begins with.
fn status(reader: &mut Reader<'_>) -> Result<Result<(), Status>, ReplyError> {
    Ok(match reader.u32()? {
        0 => Ok(()),
        number => Err(Status(number)),
    })
}

fn attributes(reader: &mut Reader<'_>) -> Result<Attributes, ReplyError> {
    let kind = match reader.u32()? {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        5 => FileKind::Link,
        3 | 4 | 6 | 7 => FileKind::Other,
        found => return Err(reader.invalid("type of a file", found, "1 to 7")),
    };
    reader.skip(16)?; // mode, links, owner, group
    let size = reader.u64()?;
    reader.skip(ATTRIBUTES_REST - 16 - 8)?;
    Ok(Attributes { kind, size })
}

fn maybe_attributes(reader: &mut Reader<'_>) -> Result<Option<Attributes>, ReplyError> {
    if reader.bool("attributes_follow")? { attributes(reader).map(Some) } else { Ok(None) }
}

/// `wcc_data`: what a file was before and is after a change.
fn before_and_after(reader: &mut Reader<'_>) -> Result<(), ReplyError> {
    if reader.bool("attributes_follow")? {
        reader.skip(BEFORE_BYTES)?;
    }
    maybe_attributes(reader).map(drop)
}

fn handle(reader: &mut Reader<'_>) -> Result<Handle, ReplyError> {
    let bytes = reader.opaque("handle", HANDLE_MAX)?;
    Ok(Handle::new(bytes).expect("its length was just checked"))
}

pub(crate) fn stable(reader: &mut Reader<'_>) -> Result<Stable, ReplyError> {
    match reader.u32()? {
        0 => Ok(Stable::Unstable),
        1 => Ok(Stable::DataSync),
        2 => Ok(Stable::FileSync),
        found => Err(reader.invalid("committed", found, "0, 1 or 2")),
    }
}

/// Decodes a result that `at` bytes of the message come before: its status, and by `rest` what follows OK.
fn result<'a, T>(
    message: &'a [u8],
    at: usize,
    rest: impl FnOnce(&mut Reader<'a>) -> Result<T, ReplyError>,
) -> Result<Result<T, Status>, ReplyError> {
    let mut reader = Reader::new(message, at);
    match status(&mut reader)? {
        Ok(()) => rest(&mut reader).map(Ok),
        Err(status) => Ok(Err(status)),
    }
}

/// Decodes the answer to GETPORT: 0 if there is no such program.
pub fn port_reply(message: &[u8], at: usize) -> Result<u16, ReplyError> {
    let mut reader = Reader::new(message, at);
    let found = reader.u32()?;
    u16::try_from(found).map_err(|_| reader.invalid("port", found, "0 to 65535"))
}

/// Decodes the answer to GETADDR, such as `::.8.1`, of which the port is what matters: 0 if there is no such program.
pub fn address_reply(message: &[u8], at: usize) -> Result<u16, ReplyError> {
    let mut reader = Reader::new(message, at);
    let text = reader.opaque("address", ADDRESS_MAX)?;
    if text.is_empty() {
        return Ok(0);
    }
    let port = |text: &str| {
        let mut numbers = text.rsplit('.').map(|number| number.parse::<u8>().ok());
        let low = numbers.next()??;
        Some(u16::from_be_bytes([numbers.next()??, low]))
    };
    let found = std::str::from_utf8(text).ok();
    found.and_then(port).ok_or_else(|| {
        let found = crate::escape(&String::from_utf8_lossy(text));
        reader.invalid("address", found, "one that ends with the two bytes of a port, such as ::1.8.1")
    })
}

/// Decodes the answer to MNT.
pub fn mount_reply(message: &[u8], at: usize) -> Result<Result<Handle, Status>, ReplyError> {
    result(message, at, |reader| {
        let handle = handle(reader)?;
        let flavours = reader.u32()?;
        if flavours > FLAVOURS_MAX {
            return Err(reader.invalid("number of auth_flavors", flavours, "64 at most"));
        }
        (0..flavours).try_for_each(|_| reader.u32().map(drop))?;
        Ok(handle)
    })
}

/// Decodes the answer to GETATTR.
pub fn attributes_reply(message: &[u8], at: usize) -> Result<Result<Attributes, Status>, ReplyError> {
    result(message, at, attributes)
}

/// Decodes the answer to LOOKUP.
pub fn lookup_reply(message: &[u8], at: usize) -> Result<Result<Handle, Status>, ReplyError> {
    result(message, at, handle)
}

/// Decodes the answer to READLINK.
pub fn link_reply(message: &[u8], at: usize) -> Result<Result<&[u8], Status>, ReplyError> {
    result(message, at, |reader| {
        maybe_attributes(reader)?;
        reader.opaque("path of a symbolic link", PATH_MAX)
    })
}

/// Decodes the answer to ACCESS.
pub fn access_reply(message: &[u8], at: usize) -> Result<Result<u32, Status>, ReplyError> {
    result(message, at, |reader| {
        maybe_attributes(reader)?;
        reader.u32()
    })
}

/// Decodes the answer to FSINFO.
pub fn fsinfo_reply(message: &[u8], at: usize) -> Result<Result<FsInfo, Status>, ReplyError> {
    result(message, at, |reader| {
        maybe_attributes(reader)?;
        let read_max = reader.u32()?;
        reader.skip(8)?; // what it prefers to read, and its multiple
        let write_max = reader.u32()?;
        reader.u32()?;
        let write_multiple = reader.u32()?;
        reader.u32()?;
        let file_max = reader.u64()?;
        Ok(FsInfo { read_max, write_max, write_multiple, file_max })
    })
}

/// Decodes the answer to READ, up to the data, which need not be there yet.
pub fn read_reply(message: &[u8], at: usize) -> Result<Result<ReadReply, Status>, ReplyError> {
    result(message, at, |reader| {
        maybe_attributes(reader)?;
        let count = reader.u32()?;
        let eof = reader.bool("eof")?;
        let len = reader.u32()?;
        if len != count {
            return Err(reader.invalid("length of the data", len, &format!("the count, {count}")));
        }
        Ok(ReadReply { count, eof, data_at: reader.at() })
    })
}

/// Decodes the answer to WRITE.
pub fn write_reply(message: &[u8], at: usize) -> Result<Result<WriteReply, Status>, ReplyError> {
    result(message, at, |reader| {
        before_and_after(reader)?;
        Ok(WriteReply { count: reader.u32()?, committed: stable(reader)?, verifier: reader.bytes8()? })
    })
}

/// Decodes the answer to COMMIT.
pub fn commit_reply(message: &[u8], at: usize) -> Result<Result<CommitReply, Status>, ReplyError> {
    result(message, at, |reader| {
        before_and_after(reader)?;
        Ok(CommitReply { verifier: reader.bytes8()? })
    })
}
