//! Messages of NFS version 3 and of what it stands on: XDR, ONC RPC over TCP, the port mapper and the mount protocol. What a
//! client sends is encoded, what a server answers is decoded.
//!
//! Only what a client needs that has one file as its disk: to find it (GETPORT, GETADDR, MNT, LOOKUP, READLINK, GETATTR, FSINFO,
//! ACCESS), and to use it (READ, WRITE, COMMIT).
//!
//! Sources: RFC 4506 (XDR), RFC 5531 (RPC), RFC 1813 (NFS version 3 and the mount protocol), RFC 1833 (port mapper), RFC 5665
//! (addresses in text).
//!
//! Invariants:
//! 1. A reply is hostile: every length in it is checked against its limit in the protocol before it is used, and nothing is
//!    allocated by a number that it holds.
//! 2. A reply may be decoded while only its beginning is there: [`ReplyError::Short`] says that more bytes may help. What a
//!    READ brings is not part of what is decoded: it follows at [`ReadReply::data_at`].
//! 3. All data that is sent is a multiple of four bytes: nothing is padded.
//!
//! Version 4 is beside this, in [`crate::nfs4`]: it uses the same RPC, credentials, handles and statuses.
//!
//! Not here: xids, retransmission, which call a reply belongs to.

pub(crate) mod call;
pub(crate) mod reply;
mod status;
pub(crate) mod xdr;

pub use call::{
    Credential, Handle, HandleError, Stable, access, commit, fsinfo, get_address, get_attributes, get_port,
    lookup, mount, read, read_link, write,
};
pub use reply::{
    Attributes, CommitReply, FileKind, FsInfo, ReadReply, Refusal, Reply, ReplyError, WriteReply,
    access_reply, address_reply, attributes_reply, commit_reply, fsinfo_reply, link_reply, lookup_reply,
    mount_reply, port_reply, read_reply, reply, reply_xid, write_reply,
};
pub use status::Status;

/// The port of the port mapper.
pub const PORT_MAPPER_PORT: u16 = 111;
/// Program number of NFS.
pub const NFS_PROGRAM: u32 = 100_003;
/// Program number of the mount protocol.
pub const MOUNT_PROGRAM: u32 = 100_005;
/// Program number of the port mapper.
pub const PORT_MAPPER_PROGRAM: u32 = 100_000;
/// NFS and the mount protocol that belongs to it.
pub const VERSION: u32 = 3;
/// The port mapper's version that has GETPORT.
pub const PORT_MAPPER_VERSION: u32 = 2;
/// The one that has GETADDR.
pub const PORT_MAPPER_ADDRESS_VERSION: u32 = 3;

/// Longest handle of a file, bytes.
pub const HANDLE_MAX: usize = 64;
/// What a [`Handle`] has room for, bytes: the longest of version 4.
pub const HANDLE_ROOM: usize = 128;
/// Longest path that the mount protocol takes, and longest content of a symbolic link that is followed, bytes.
pub const PATH_MAX: usize = 1024;
/// Longest name of a file, bytes: what every server takes.
pub const NAME_MAX: usize = 255;
/// Most bytes of a reply but for what a READ brings. The largest is that of a READLINK.
pub const REPLY_MAX: usize = 2048;

/// Bytes of a record mark: length of the fragment, and whether it is the last of its record.
pub const MARK_BYTES: usize = 4;

/// What a write verifier or a COMMIT says which life of the server it is from.
pub type Verifier = [u8; 8];

/// The record mark `bytes`: the length of the fragment that follows, and whether it ends its record.
pub fn decode_mark(bytes: [u8; MARK_BYTES]) -> (u32, bool) {
    let mark = u32::from_be_bytes(bytes);
    (mark & !LAST_FRAGMENT, mark & LAST_FRAGMENT != 0)
}

const LAST_FRAGMENT: u32 = 1 << 31;

#[cfg(test)]
pub(crate) mod tests;
