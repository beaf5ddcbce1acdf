//! What a client asks. Each function gives a whole message with its record mark; that of [`writes`] counts the data, which the caller sends
//! behind each of its heads.

use std::ops::Range;

use super::{VERSION, attribute, op};
use crate::nfs3::call::{finish, head};
use crate::nfs3::xdr::Writer;
use crate::nfs3::{Credential, Handle, NFS_PROGRAM, Stable};

/// The only procedure but for NULL.
const COMPOUND: u32 = 1;
const MINOR_VERSION: u32 = 0;
/// Most WRITEs of one call: Linux's server takes 16 operations in one COMPOUND in the versions that take least.
pub const WRITES_MAX: usize = 15;
/// Bytes of a WRITE before its data.
const WRITE_HEAD: usize = 36;

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first one.
    pub offset: u64,
    /// How many, a multiple of four.
    pub count: u32,
}

/// The heads of a call's WRITEs, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writes {
    /// All of them.
    pub bytes: Vec<u8>,
    /// Where the first one ends; the others are of the same length, each.
    first: usize,
}

impl Writes {
    /// Where each head is in `bytes`. The data of each write belongs behind its head.
    pub fn heads(&self) -> impl Iterator<Item = Range<usize>> {
        let further = (self.first..self.bytes.len()).step_by(WRITE_HEAD).map(|at| at..at + WRITE_HEAD);
        std::iter::once(0..self.first).chain(further)
    }
}

/// A COMPOUND of so many operations.
fn compound(xid: u32, credential: &Credential, operations: usize) -> Writer {
    let mut out = head(xid, NFS_PROGRAM, VERSION, COMPOUND, Some(credential));
    out.opaque(b""); // a tag, which means nothing
    out.u32(MINOR_VERSION);
    out.u32(u32::try_from(operations).expect("few"));
    out
}

/// One of operations on a file, `operations` beside that which says on which.
fn on(xid: u32, credential: &Credential, handle: &Handle, operations: usize) -> Writer {
    let mut out = compound(xid, credential, 1 + operations);
    out.u32(op::PUTFH);
    out.opaque(handle.as_bytes());
    out
}

/// The stateid of who has opened nothing.
fn anonymous(out: &mut Writer) {
    out.0.extend([0; 16]);
}

/// What `name` in `folder` is, or the root's where there is none; and its handle.
pub fn find(xid: u32, credential: &Credential, folder: Option<&Handle>, name: Option<&str>) -> Vec<u8> {
    let operations = 2 + usize::from(name.is_some());
    let mut out = match folder {
        Some(folder) => on(xid, credential, folder, operations),
        None => {
            let mut out = compound(xid, credential, 1 + operations);
            out.u32(op::PUTROOTFH);
            out
        }
    };
    if let Some(name) = name {
        out.u32(op::LOOKUP);
        out.opaque(name.as_bytes());
    }
    out.u32(op::GETFH);
    out.u32(op::GETATTR);
    out.u32(1);
    out.u32(attribute::WANTED);
    finish(out, 0)
}

/// READLINK: what a symbolic link says.
pub fn read_link(xid: u32, credential: &Credential, link: &Handle) -> Vec<u8> {
    let mut out = on(xid, credential, link, 1);
    out.u32(op::READLINK);
    finish(out, 0)
}

/// ACCESS: whether a file may be read (bit 0), and written (bits 2 and 3).
pub fn access(xid: u32, credential: &Credential, handle: &Handle, wanted: u32) -> Vec<u8> {
    let mut out = on(xid, credential, handle, 1);
    out.u32(op::ACCESS);
    out.u32(wanted);
    finish(out, 0)
}

/// READ of `count` bytes at `offset`.
pub fn read(xid: u32, credential: &Credential, handle: &Handle, offset: u64, count: u32) -> Vec<u8> {
    let mut out = on(xid, credential, handle, 1);
    out.u32(op::READ);
    anonymous(&mut out);
    out.u64(offset);
    out.u32(count);
    finish(out, 0)
}

/// WRITEs of what the caller sends behind each of the heads.
///
/// # Panics
/// If a count is no multiple of four (all disks have larger blocks), or all are 2 GiB and more; or there are none, or more than
/// [`WRITES_MAX`].
pub fn writes(
    xid: u32,
    credential: &Credential,
    handle: &Handle,
    stable: Stable,
    places: impl ExactSizeIterator<Item = Place>,
) -> Writes {
    assert!((1..=WRITES_MAX).contains(&places.len()), "{} WRITEs in one call", places.len());
    let mut out = on(xid, credential, handle, places.len());
    let first = out.0.len() + WRITE_HEAD;
    let mut data = 0_u32;
    for Place { offset, count } in places {
        assert!(count.is_multiple_of(4), "{count} bytes would have to be padded");
        out.u32(op::WRITE);
        anonymous(&mut out);
        out.u64(offset);
        out.u32(stable as u32);
        out.u32(count);
        data = data.checked_add(count).expect("less than 2 GiB");
    }
    Writes { bytes: finish(out, data), first }
}

/// COMMIT of the whole file.
pub fn commit(xid: u32, credential: &Credential, handle: &Handle) -> Vec<u8> {
    let mut out = on(xid, credential, handle, 1);
    out.u32(op::COMMIT);
    out.u64(0);
    out.u32(0);
    finish(out, 0)
}
