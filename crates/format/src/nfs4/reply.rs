//! What a server answers. See [`crate::nfs3`] for what is hostile and what may be incomplete.

use super::{HANDLE_MAX, attribute, op};
use crate::nfs3::reply::stable;
use crate::nfs3::xdr::Reader;
use crate::nfs3::{CommitReply, FileKind, Handle, PATH_MAX, ReadReply, ReplyError, Status, WriteReply};

/// Longest tag that is believed, bytes: it is what was asked, nothing.
const TAG_MAX: usize = 64;
/// Most words of a bitmap of attributes that are believed.
const BITMAP_MAX: u32 = 8;
/// Bytes of the attributes that must be there. Each of the others has 8.
const ATTRIBUTES_NEEDED: u32 = 16;

/// A file that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its handle.
    pub handle: Handle,
    /// What it is.
    pub attributes: Attributes,
}

/// The attributes of a file that matter for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What it is.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its handle may stop to be one, though the file is there.
    pub handle_expires: bool,
    /// Largest READ and WRITE, bytes, if the server says so.
    pub read_max: Option<u64>,
    /// See `read_max`.
    pub write_max: Option<u64>,
}

/// What has become of the WRITEs of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritesReply {
    /// The first of them, which were done.
    pub done: Vec<WriteReply>,
    /// Why the next one was not. None: all were. Those behind that one were not looked at.
    pub stopped: Option<Status>,
}

/// The answers to a COMPOUND, one after the other.
struct Answers<'a> {
    reader: Reader<'a>,
    /// What became of the last operation that was done.
    status: u32,
    /// How many answers there are.
    count: u32,
    /// How many of them are still to come.
    left: u32,
}

impl<'a> Answers<'a> {
    fn new(message: &'a [u8], at: usize) -> Result<Answers<'a>, ReplyError> {
        let mut reader = Reader::new(message, at);
        let status = reader.u32()?;
        reader.opaque("tag", TAG_MAX)?;
        let count = reader.u32()?;
        Ok(Answers { reader, status, count, left: count })
    }

    /// The next one is to this operation; what it says.
    fn next(&mut self, operation: u32) -> Result<Result<(), Status>, ReplyError> {
        let Some(left) = self.left.checked_sub(1) else {
            // It did not get so far.
            return match self.status {
                0 => Err(self.reader.invalid("number of results", self.count, "one for each operation")),
                status => Ok(Err(Status(status))),
            };
        };
        self.left = left;
        let found = self.reader.u32()?;
        if found != operation {
            return Err(self.reader.invalid("operation", found, &operation.to_string()));
        }
        Ok(match self.reader.u32()? {
            0 => Ok(()),
            status => Err(Status(status)),
        })
    }
}

/// Decodes the answers to those operations, which have none of their own, and by `rest` that to the last one.
fn result<'a, T>(
    message: &'a [u8],
    at: usize,
    operations: &[u32],
    rest: impl FnOnce(&mut Reader<'a>) -> Result<T, ReplyError>,
) -> Result<Result<T, Status>, ReplyError> {
    let mut answers = Answers::new(message, at)?;
    for operation in operations {
        if let Err(status) = answers.next(*operation)? {
            return Ok(Err(status));
        }
    }
    rest(&mut answers.reader).map(Ok)
}

/// Decodes the answer to [`find`](super::find), with a folder and a name or without.
pub fn find_reply(
    message: &[u8],
    at: usize,
    has_folder: bool,
    has_name: bool,
) -> Result<Result<Found, Status>, ReplyError> {
    let mut answers = Answers::new(message, at)?;
    let put = if has_folder { op::PUTFH } else { op::PUTROOTFH };
    let looked_up = if has_name { &[put, op::LOOKUP, op::GETFH][..] } else { &[put, op::GETFH] };
    for operation in looked_up {
        if let Err(status) = answers.next(*operation)? {
            return Ok(Err(status));
        }
    }
    let bytes = answers.reader.opaque("handle", HANDLE_MAX)?;
    let handle = Handle::new(bytes).expect("its length was just checked");
    if let Err(status) = answers.next(op::GETATTR)? {
        return Ok(Err(status));
    }
    let attributes = attributes(&mut answers.reader)?;
    Ok(Ok(Found { handle, attributes }))
}

fn attributes(reader: &mut Reader<'_>) -> Result<Attributes, ReplyError> {
    let words = reader.u32()?;
    if words > BITMAP_MAX {
        return Err(reader.invalid("words of a bitmap of attributes", words, "8 at most"));
    }
    let mut there = 0;
    for word in 0..words {
        let found = reader.u32()?;
        let unwanted = if word == 0 { found & !attribute::WANTED } else { found };
        if unwanted != 0 {
            return Err(reader.invalid(
                "attributes",
                format_args!("{found:#x}"),
                "those that were asked for",
            ));
        }
        there |= found;
    }
    for (needed, what) in
        [(attribute::TYPE, "type"), (attribute::EXPIRES, "fh_expire_type"), (attribute::SIZE, "size")]
    {
        if there & 1 << needed == 0 {
            return Err(reader.invalid(
                "attributes",
                format_args!("{there:#x}"),
                &format!("{what} among them"),
            ));
        }
    }
    let len = reader.u32()?;
    let limits = there >> attribute::MAX_READ;
    let expected = ATTRIBUTES_NEEDED + 8 * limits.count_ones();
    if len != expected {
        return Err(reader.invalid("length of the attributes", len, &format!("{expected}, by their bitmap")));
    }
    let kind = match reader.u32()? {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        5 => FileKind::Link,
        3 | 4 | 6..=9 => FileKind::Other,
        found => return Err(reader.invalid("type of a file", found, "1 to 9")),
    };
    let handle_expires = reader.u32()? != 0;
    let size = reader.u64()?;
    let mut limit = |number: u32| (there & 1 << number != 0).then(|| reader.u64()).transpose();
    let (read_max, write_max) = (limit(attribute::MAX_READ)?, limit(attribute::MAX_WRITE)?);
    Ok(Attributes { kind, size, handle_expires, read_max, write_max })
}

/// Decodes the answer to READLINK.
pub fn link_reply(message: &[u8], at: usize) -> Result<Result<&[u8], Status>, ReplyError> {
    result(message, at, &[op::PUTFH, op::READLINK], |reader| {
        reader.opaque("path of a symbolic link", PATH_MAX)
    })
}

/// Decodes the answer to ACCESS.
pub fn access_reply(message: &[u8], at: usize) -> Result<Result<u32, Status>, ReplyError> {
    result(message, at, &[op::PUTFH, op::ACCESS], |reader| {
        reader.u32()?; // what it can tell of
        reader.u32()
    })
}

/// Decodes the answer to READ, up to the data, which need not be there yet.
pub fn read_reply(message: &[u8], at: usize) -> Result<Result<ReadReply, Status>, ReplyError> {
    result(message, at, &[op::PUTFH, op::READ], |reader| {
        let eof = reader.bool("eof")?;
        let count = reader.u32()?;
        Ok(ReadReply { count, eof, data_at: reader.at() })
    })
}

/// Decodes the answer to so many WRITEs.
pub fn writes_reply(message: &[u8], at: usize, asked: usize) -> Result<WritesReply, ReplyError> {
    let mut answers = Answers::new(message, at)?;
    let mut out = WritesReply { done: Vec::with_capacity(asked), stopped: None };
    if let Err(status) = answers.next(op::PUTFH)? {
        out.stopped = Some(status);
        return Ok(out);
    }
    for _ in 0..asked {
        if let Err(status) = answers.next(op::WRITE)? {
            out.stopped = Some(status);
            break;
        }
        let reader = &mut answers.reader;
        out.done.push(WriteReply {
            count: reader.u32()?,
            committed: stable(reader)?,
            verifier: reader.bytes8()?,
        });
    }
    Ok(out)
}

/// Decodes the answer to COMMIT.
pub fn commit_reply(message: &[u8], at: usize) -> Result<Result<CommitReply, Status>, ReplyError> {
    result(message, at, &[op::PUTFH, op::COMMIT], |reader| Ok(CommitReply { verifier: reader.bytes8()? }))
}
