//! Messages of NFS version 4.0, as far as a client needs them that has one file as its disk. RPC, credentials, handles and statuses are
//! those of [`crate::nfs3`].
//!
//! A call is a COMPOUND: a file handle is put, and operations on it follow. What version 3 has no way to say is that of several WRITEs
//! at once ([`writes`]): a server takes one call for all of them, which is most of what it does for a small one.
//!
//! Nothing is opened: READ and WRITE have the anonymous stateid (RFC 7530, section 9.1.4.3), so there is no state on the server that a
//! client would have to keep alive, or to reclaim after a restart. Locks that others hold are respected by the server if they are mandatory.
//!
//! Sources: RFC 7530 (the protocol), RFC 7531 (its XDR), RFC 5531 (RPC).
//!
//! Invariants: those of [`crate::nfs3`]. A server that stops in the middle of a COMPOUND says so by the status of what it did last; what
//! follows was not done ([`WritesReply::stopped`]).
//!
//! Not here: OPEN, locks, delegations, sessions (4.1 and later).

mod call;
mod reply;

pub use call::{Place, WRITES_MAX, Writes, access, commit, find, read, read_link, writes};
pub use reply::{
    Attributes, Found, WritesReply, access_reply, commit_reply, find_reply, link_reply, read_reply,
    writes_reply,
};

/// The version of the program [`NFS_PROGRAM`](crate::nfs3::NFS_PROGRAM).
pub const VERSION: u32 = 4;
/// The port, which version 4 has no need to ask for.
pub const PORT: u16 = 2049;
/// Longest handle of a file, bytes.
pub const HANDLE_MAX: usize = 128;

/// Numbers of operations (RFC 7531).
mod op {
    pub(super) const ACCESS: u32 = 3;
    pub(super) const COMMIT: u32 = 5;
    pub(super) const GETATTR: u32 = 9;
    pub(super) const GETFH: u32 = 10;
    pub(super) const LOOKUP: u32 = 15;
    pub(super) const PUTFH: u32 = 22;
    pub(super) const PUTROOTFH: u32 = 24;
    pub(super) const READ: u32 = 25;
    pub(super) const READLINK: u32 = 27;
    pub(super) const WRITE: u32 = 38;
}

/// Attributes of a file, by their numbers, in the order in which a server gives them. All are in the first word of a bitmap.
mod attribute {
    pub(super) const TYPE: u32 = 1;
    /// Whether a handle may stop to be one while the file is there.
    pub(super) const EXPIRES: u32 = 2;
    pub(super) const SIZE: u32 = 4;
    pub(super) const MAX_READ: u32 = 30;
    pub(super) const MAX_WRITE: u32 = 31;
    /// Those that are asked for.
    pub(super) const WANTED: u32 = 1 << TYPE | 1 << EXPIRES | 1 << SIZE | 1 << MAX_READ | 1 << MAX_WRITE;
}

#[cfg(test)]
mod tests;
