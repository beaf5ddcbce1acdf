//! The FUSE kernel protocol: requests from bytes, replies to bytes.
//!
//! It is ours rather than a FUSE library's, since it is the data path: libraries either hand each request to a thread
//! of their own or want its answer before they read the next, and both cost a hand-over per request. Here the worker
//! itself reads requests until there are none, submits what they ask for as one batch, and answers in any order.
//!
//! Invariants:
//! 1. Nothing here does I/O, and nothing panics on any bytes: what does not parse is a [`Malformed`].
//! 2. Fields are in the byte order of the machine, since the peer is its kernel.
//! 3. Requests that this server never has a use for (extended attributes, locks, ioctl) parse as [`Request::Other`].
//!
//! Source: the kernel's `include/uapi/linux/fuse.h` (its BSD text), ABI 7.31 (Linux 5.4) to 7.45 (6.18).

use std::fmt;
use std::time::Duration;

/// Bytes of `fuse_in_header`.
pub const IN_HEADER: usize = 40;
/// Bytes of `fuse_out_header`.
pub const OUT_HEADER: usize = 16;
/// Bytes of `fuse_write_in`; the data follow it.
pub const WRITE_IN: usize = 40;
/// Protocol version spoken: major.
pub const MAJOR: u32 = 7;
/// Newest minor version whose replies are known here.
pub const MINOR: u32 = 41;
/// Oldest kernel that is served: 7.31, Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// Longest name in a LOOKUP that can match anything (`NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// The root's node number (`FUSE_ROOT_ID`).
pub const ROOT: u64 = 1;

/// Operation codes (`enum fuse_opcode`).
#[allow(missing_docs)]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const TMPFILE: u32 = 51;
}

/// INIT flags; those from bit 32 on travel in `flags2`.
#[allow(missing_docs)]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// OPEN reply: bypass the page cache.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// OPEN reply: do not send FLUSH at close.
pub const FOPEN_NOFLUSH: u32 = 1 << 5;
/// OPEN reply: writes need not wait for each other.
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// READ: a client's own, of which the kernel says who it is. Of those that fill the page cache it does not.
pub const READ_LOCKOWNER: u32 = 1 << 1;

/// SETATTR: which fields are to be set (`fuse_setattr_in.valid`).
#[allow(missing_docs)]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
}

/// fallocate(2) modes.
#[allow(missing_docs)]
pub mod falloc {
    pub const KEEP_SIZE: u32 = 0x01;
    pub const PUNCH_HOLE: u32 = 0x02;
    pub const ZERO_RANGE: u32 = 0x10;
}

/// `O_ACCMODE`.
pub const O_ACCMODE: u32 = 0o3;
/// `O_RDONLY`.
pub const O_RDONLY: u32 = 0;
/// `O_DSYNC`, of which `O_SYNC` is a superset.
pub const O_DSYNC: u32 = 0o10000;
/// `SEEK_DATA`.
pub const SEEK_DATA: u32 = 3;
/// `SEEK_HOLE`.
pub const SEEK_HOLE: u32 = 4;
/// `S_IFDIR`.
pub const S_IFDIR: u32 = 0o040000;
/// `S_IFREG`.
pub const S_IFREG: u32 = 0o100000;

/// A request that is shorter than its operation's structure, or contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("FUSE operation {opcode}: {found} bytes, expected at least {expected}")]
pub struct Malformed {
    /// The operation; 0 if not even the header is whole.
    pub opcode: u32,
    /// Bytes there.
    pub found: usize,
    /// Bytes needed.
    pub expected: usize,
}

/// What every request starts with (`fuse_in_header`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InHeader {
    /// Bytes of the whole request.
    pub len: u32,
    /// One of [`opcode`].
    pub opcode: u32,
    /// The kernel's number for it; 0 for those that take no answer.
    pub unique: u64,
    /// Which file or folder.
    pub node: u64,
}

/// A request's operation and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request<'a> {
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u64,
    },
    Lookup {
        name: &'a [u8],
    },
    Getattr,
    Setattr {
        valid: u32,
        size: u64,
    },
    Open {
        flags: u32,
    },
    Opendir,
    Read {
        offset: u64,
        size: u32,
        /// READ flags.
        how: u32,
    },
    Readdir {
        offset: u64,
        size: u32,
    },
    /// The data are not among the arguments.
    Write {
        offset: u64,
        size: u32,
        flags: u32,
    },
    Fsync,
    Fallocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Lseek {
        offset: u64,
        whence: u32,
    },
    Statfs,
    /// A file: what OPEN was answered.
    Release {
        handle: u64,
    },
    Releasedir,
    /// FORGET and BATCH_FORGET: no answer is expected.
    Forget,
    Interrupt,
    Destroy,
    /// Whatever would create, rename or remove a name.
    ChangesNames,
    /// Nothing that is served here.
    Other,
}

/// Reads fields one after the other.
struct Fields<'a> {
    opcode: u32,
    whole: usize,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn new(opcode: u32, bytes: &'a [u8]) -> Fields<'a> {
        Fields { opcode, whole: bytes.len(), rest: bytes }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            let expected = self.whole - self.rest.len() + N;
            return Err(Malformed { opcode: self.opcode, found: self.whole, expected });
        };
        self.rest = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_ne_bytes)
    }

    fn skip<const N: usize>(&mut self) -> Result<(), Malformed> {
        self.take::<N>().map(drop)
    }
}

impl InHeader {
    /// From the first [`IN_HEADER`] bytes of a request.
    ///
    /// # Errors
    /// Fewer bytes than that.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<InHeader, Malformed> {
        let mut fields = Fields::new(0, bytes);
        let (len, opcode) = (fields.u32()?, fields.u32()?);
        let (unique, node) = (fields.u64()?, fields.u64()?);
        fields.skip::<16>()?; // uid, gid, pid, total_extlen: the kernel has checked permissions (default_permissions)
        Ok(InHeader { len, opcode, unique, node })
    }
}

impl<'a> Request<'a> {
    /// From the operation and the bytes after the header: all of them, except that a WRITE's data may be left out.
    ///
    /// # Errors
    /// Fewer bytes than the operation's structure has.
    #[inline]
    pub fn parse(op: u32, bytes: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let mut fields = Fields::new(op, bytes);
        Ok(match op {
            opcode::READ => {
                let (offset, size, how, _) = transfer(&mut fields)?;
                Request::Read { offset, size, how }
            }
            opcode::WRITE => {
                let (offset, size, _, flags) = transfer(&mut fields)?;
                Request::Write { offset, size, flags }
            }
            opcode::READDIR => {
                let (offset, size, ..) = transfer(&mut fields)?;
                Request::Readdir { offset, size }
            }
            opcode::FSYNC => Request::Fsync,
            opcode::FALLOCATE => {
                fields.skip::<8>()?; // fh
                Request::Fallocate { offset: fields.u64()?, length: fields.u64()?, mode: fields.u32()? }
            }
            opcode::LSEEK => {
                fields.skip::<8>()?; // fh
                Request::Lseek { offset: fields.u64()?, whence: fields.u32()? }
            }
            opcode::LOOKUP => Request::Lookup { name: name(bytes) },
            opcode::GETATTR => Request::Getattr,
            opcode::SETATTR => {
                let valid = fields.u32()?;
                fields.skip::<12>()?; // padding, fh
                Request::Setattr { valid, size: fields.u64()? }
            }
            opcode::OPEN => Request::Open { flags: fields.u32()? },
            opcode::OPENDIR => Request::Opendir,
            opcode::INIT => parse_init(&mut fields)?,
            opcode::STATFS => Request::Statfs,
            opcode::RELEASE => Request::Release { handle: fields.u64()? },
            opcode::RELEASEDIR => Request::Releasedir,
            opcode::FORGET | opcode::BATCH_FORGET => Request::Forget,
            opcode::INTERRUPT => Request::Interrupt,
            opcode::DESTROY => Request::Destroy,
            opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::CREATE
            | opcode::TMPFILE => Request::ChangesNames,
            _ => Request::Other,
        })
    }
}

/// `fuse_read_in` and `fuse_write_in` have their fields at the same places: offset, size, the operation's own flags, the open file's.
#[inline]
fn transfer(fields: &mut Fields<'_>) -> Result<(u64, u32, u32, u32), Malformed> {
    fields.skip::<8>()?; // fh
    let (offset, size, how) = (fields.u64()?, fields.u32()?, fields.u32()?);
    fields.skip::<8>()?; // lock_owner
    let flags = fields.u32()?;
    fields.skip::<4>()?; // padding
    Ok((offset, size, how, flags))
}

fn parse_init<'a>(fields: &mut Fields<'_>) -> Result<Request<'a>, Malformed> {
    let (major, minor) = (fields.u32()?, fields.u32()?);
    let (max_readahead, low) = (fields.u32()?, fields.u32()?);
    let mut flags = u64::from(low);
    if flags & init::INIT_EXT != 0 {
        flags |= u64::from(fields.u32()?) << 32;
    }
    Ok(Request::Init { major, minor, max_readahead, flags })
}

/// A name up to its NUL.
fn name(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// What the kernel wants to know of a file or folder (`fuse_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Attr {
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// When it was read last, since 1970.
    pub accessed: Duration,
    /// When it was altered last, content and attributes, since 1970.
    pub altered: Duration,
    /// Preferred I/O, bytes.
    pub blksize: u32,
}

/// Bytes of `fuse_attr`.
const ATTR: usize = 88;
/// How long the kernel may believe names and attributes, in seconds: not at all, as volumes come, go and grow.
const VALID_SECS: u64 = 0;

/// Builds replies in a vector that is used again and again.
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({} bytes)", self.out.len())
    }
}

impl<'a> Reply<'a> {
    /// Starts a successful reply; [`Reply::finish`] puts the length in.
    pub fn new(out: &'a mut Vec<u8>, unique: u64) -> Reply<'a> {
        out.clear();
        out.extend(out_header(unique, 0, 0));
        Reply { out }
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.out.extend(value.to_ne_bytes());
        self
    }
    fn u32(&mut self, value: u32) -> &mut Self {
        self.out.extend(value.to_ne_bytes());
        self
    }
    fn u64(&mut self, value: u64) -> &mut Self {
        self.out.extend(value.to_ne_bytes());
        self
    }

    fn zeros(&mut self, bytes: usize) {
        self.out.resize(self.out.len() + bytes, 0);
    }

    /// `fuse_init_out`.
    pub fn init(&mut self, reply: InitReply) {
        self.u32(MAJOR).u32(reply.minor).u32(reply.max_readahead);
        let [low, high] = [reply.flags & 0xffff_ffff, reply.flags >> 32];
        let [low, high] = [low, high].map(|half| u32::try_from(half).expect("half of 64 bits"));
        self.u32(low).u16(reply.max_background).u16(reply.congestion_threshold).u32(reply.max_write);
        self.u32(1).u16(reply.max_pages).u16(0); // time_gran: 1 ns; map_alignment: no DAX
        self.u32(high);
        self.zeros(7 * 4); // unused
    }

    /// `fuse_entry_out`: the answer to a LOOKUP.
    pub fn entry(&mut self, attr: &Attr) {
        self.u64(attr.ino).u64(0).u64(VALID_SECS).u64(VALID_SECS).u32(0).u32(0).attr_fields(attr);
    }

    /// `fuse_attr_out`: the answer to GETATTR and SETATTR.
    pub fn attr(&mut self, attr: &Attr) {
        self.u64(VALID_SECS).u32(0).u32(0).attr_fields(attr);
    }

    fn attr_fields(&mut self, attr: &Attr) {
        let start = self.out.len();
        self.u64(attr.ino).u64(attr.size).u64(attr.size / 512);
        let times = [attr.accessed, attr.altered, attr.altered];
        for time in times {
            self.u64(time.as_secs());
        }
        for time in times {
            self.u32(time.subsec_nanos());
        }
        self.u32(attr.mode).u32(attr.nlink).u32(attr.uid).u32(attr.gid).u32(0).u32(attr.blksize).u32(0);
        debug_assert_eq!(self.out.len() - start, ATTR);
    }

    /// `fuse_open_out`: how RELEASE is going to call it, and FOPEN flags.
    pub fn open(&mut self, handle: u64, flags: u32) {
        self.u64(handle).u32(flags).u32(0);
    }

    /// `fuse_write_out`: bytes written.
    pub fn written(&mut self, bytes: u32) {
        self.u32(bytes).u32(0);
    }

    /// `fuse_lseek_out`.
    pub fn offset(&mut self, offset: u64) {
        self.u64(offset);
    }

    /// `fuse_statfs_out` of something that is full: `blocks` blocks of `bsize` bytes, none free, `files` files.
    pub fn statfs(&mut self, blocks: u64, bsize: u32, files: u64) {
        self.u64(blocks).u64(0).u64(0).u64(files).u64(0);
        self.u32(bsize).u32(u32::try_from(NAME_MAX).expect("255")).u32(bsize).u32(0);
        self.zeros(6 * 4); // spare
    }

    /// One entry of a folder (`fuse_dirent`); `next` is where to go on after it. False, and nothing added, if it would
    /// make the content larger than `size` bytes.
    pub fn dirent(&mut self, size: usize, next: u64, node: u64, mode: u32, name: &[u8]) -> bool {
        let Ok(len) = u32::try_from(name.len()) else { return false };
        let padded = name.len().next_multiple_of(8);
        if self.out.len() - OUT_HEADER + 24 + padded > size {
            return false;
        }
        self.u64(node).u64(next).u32(len).u32(mode >> 12);
        self.out.extend(name);
        self.out.resize(self.out.len() + padded - name.len(), 0);
        true
    }

    /// Puts the length in, and gives the bytes.
    pub fn finish(self) -> &'a [u8] {
        let len = u32::try_from(self.out.len()).expect("a reply without data is small");
        self.out[..4].copy_from_slice(&len.to_ne_bytes());
        self.out
    }
}

/// What [`Reply::init`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct InitReply {
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u64,
    pub max_background: u16,
    pub congestion_threshold: u16,
    /// Bytes.
    pub max_write: u32,
    pub max_pages: u16,
}

/// `fuse_out_header`: of a reply with `payload` bytes after it, or of an error (`errno` > 0).
#[inline]
pub fn out_header(unique: u64, errno: i32, payload: u32) -> [u8; OUT_HEADER] {
    let mut bytes = [0; OUT_HEADER];
    bytes[..4].copy_from_slice(&(payload + 16).to_ne_bytes());
    bytes[4..8].copy_from_slice(&(-errno).to_ne_bytes());
    bytes[8..].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn transfer_bytes(offset: u64, size: u32, how: u32, flags: u32) -> Vec<u8> {
        let mut bytes = vec![0xee; 8];
        bytes.extend(offset.to_ne_bytes());
        bytes.extend(size.to_ne_bytes());
        bytes.extend(how.to_ne_bytes());
        bytes.extend([0xee; 8]);
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    #[test]
    fn a_write_is_found_where_the_kernel_puts_it() {
        let bytes = transfer_bytes(0x1122_3344_5566, 4096, 0xee, O_DSYNC | 2);
        assert_eq!(bytes.len(), WRITE_IN);
        let expected = Request::Write { offset: 0x1122_3344_5566, size: 4096, flags: O_DSYNC | 2 };
        assert_eq!(Request::parse(opcode::WRITE, &bytes), Ok(expected));
        let error = Request::parse(opcode::WRITE, &bytes[..39]).unwrap_err();
        assert_eq!(error, Malformed { opcode: opcode::WRITE, found: 39, expected: 40 });
    }

    #[test]
    fn init_flags_beyond_32_count_only_if_the_kernel_says_that_they_are_there() {
        let init = |low: u32| {
            let words = [7, 45, 65536, low, 1 << 4].map(u32::to_ne_bytes);
            let bytes = words.concat();
            match Request::parse(opcode::INIT, &bytes) {
                Ok(Request::Init { flags, .. }) => flags,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(init(1 << 30), init::INIT_EXT | init::DIRECT_IO_ALLOW_MMAP);
        assert_eq!(init(1), 1);
    }

    #[test]
    fn replies_have_the_sizes_of_the_kernels_structures() {
        let [accessed, altered] = [1, 2].map(Duration::from_secs);
        let (mode, blksize) = (S_IFREG, 4096);
        let attr = Attr { ino: 1, size: 1, mode, nlink: 1, uid: 0, gid: 0, accessed, altered, blksize };
        let init = InitReply {
            minor: 31,
            max_readahead: 0,
            flags: 0,
            max_background: 1,
            congestion_threshold: 1,
            max_write: 4096,
            max_pages: 1,
        };
        let size = |build: &dyn Fn(&mut Reply<'_>)| {
            let mut out = Vec::new();
            let mut reply = Reply::new(&mut out, 9);
            build(&mut reply);
            let bytes = reply.finish();
            assert_eq!(bytes[..4], u32::try_from(bytes.len()).unwrap().to_ne_bytes());
            bytes.len() - OUT_HEADER
        };
        assert_eq!(size(&|r| r.init(init)), 64);
        assert_eq!(size(&|r| r.entry(&attr)), 128);
        assert_eq!(size(&|r| r.attr(&attr)), 104);
        assert_eq!(size(&|r| r.open(0, 0)), 16);
        assert_eq!(size(&|r| r.written(0)), 8);
        assert_eq!(size(&|r| r.offset(0)), 8);
        assert_eq!(size(&|r| r.statfs(1, 4096, 1)), 80);
    }

    #[test]
    fn a_folder_entry_that_does_not_fit_is_left_for_the_next_call() {
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, 1);
        assert!(reply.dirent(64, 1, 2, S_IFREG, b"12345678"));
        assert!(!reply.dirent(64, 2, 3, S_IFREG, b"123456789"));
        assert!(reply.dirent(64, 2, 3, S_IFDIR, b"1"));
        assert_eq!(reply.finish().len(), OUT_HEADER + 64);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(op in 0u32..64, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = InHeader::parse(&bytes);
            let _ = Request::parse(op, &bytes);
        }

        #[test]
        fn a_read_says_what_was_written_into_it(offset: u64, size: u32, how: u32, flags: u32) {
            let bytes = transfer_bytes(offset, size, how, flags);
            prop_assert_eq!(Request::parse(opcode::READ, &bytes), Ok(Request::Read { offset, size, how }));
        }
    }
}
