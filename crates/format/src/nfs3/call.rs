//! What a client asks. Each function gives a whole message with its record mark; that of [`write()`] counts the data, which the
//! caller sends behind it.

use super::xdr::Writer;
use super::{
    HANDLE_ROOM, LAST_FRAGMENT, MARK_BYTES, MOUNT_PROGRAM, NFS_PROGRAM, PORT_MAPPER_ADDRESS_VERSION,
    PORT_MAPPER_PROGRAM, PORT_MAPPER_VERSION, VERSION,
};

/// Version of RPC itself.
const RPC_VERSION: u32 = 2;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
const TCP: u32 = 6;
/// Most further groups of AUTH_SYS.
const GROUPS_MAX: usize = 16;
/// Longest name of a machine in AUTH_SYS.
const MACHINE_MAX: usize = 255;

/// A file's name for its server; nobody else knows what it means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    len: u8,
    bytes: [u8; HANDLE_ROOM],
}

/// A handle is longer than [`HANDLE_ROOM`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a handle of {0} bytes: expected {HANDLE_ROOM} at most")]
pub struct HandleError(pub usize);

impl Handle {
    /// A handle of these bytes.
    pub fn new(bytes: &[u8]) -> Result<Handle, HandleError> {
        let mut handle = Handle { len: 0, bytes: [0; HANDLE_ROOM] };
        let room = handle.bytes.get_mut(..bytes.len()).ok_or(HandleError(bytes.len()))?;
        room.copy_from_slice(bytes);
        handle.len = u8::try_from(bytes.len()).expect("at most HANDLE_ROOM");
        Ok(handle)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Who asks, as AUTH_SYS has it: servers believe it, if the address is one that they trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    encoded: Vec<u8>,
}

impl Credential {
    /// A user and his groups on a machine. What is longer than the protocol allows is cut off.
    pub fn new(machine: &str, uid: u32, gid: u32, groups: &[u32]) -> Credential {
        let mut out = Writer(Vec::new());
        out.u32(0); // a stamp, which means nothing
        out.opaque(&machine.as_bytes()[..machine.len().min(MACHINE_MAX)]);
        out.u32(uid);
        out.u32(gid);
        let groups = &groups[..groups.len().min(GROUPS_MAX)];
        out.u32(u32::try_from(groups.len()).expect("at most GROUPS_MAX"));
        groups.iter().for_each(|group| out.u32(*group));
        Credential { encoded: out.0 }
    }
}

/// How durable a write must be when it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stable {
    /// Not at all: until a COMMIT the server may forget it, if it restarts.
    Unstable = 0,
    /// The data, and what is needed to find it.
    DataSync = 1,
    /// All of it.
    FileSync = 2,
}

/// The head of a call.
pub(crate) fn head(
    xid: u32,
    program: u32,
    version: u32,
    procedure: u32,
    credential: Option<&Credential>,
) -> Writer {
    let mut out = Writer(Vec::with_capacity(256));
    for value in [0, xid, 0, RPC_VERSION, program, version, procedure] {
        out.u32(value);
    }
    match credential {
        Some(credential) => {
            out.u32(AUTH_SYS);
            out.opaque(&credential.encoded);
        }
        None => {
            out.u32(AUTH_NONE);
            out.u32(0);
        }
    }
    out.u32(AUTH_NONE);
    out.u32(0);
    out
}

/// Sets the record mark: the message is one fragment, which `data` more bytes follow.
pub(crate) fn finish(mut out: Writer, data: u32) -> Vec<u8> {
    let len = u32::try_from(out.0.len() - MARK_BYTES).expect("calls are short");
    let mark = len.checked_add(data).filter(|len| *len < LAST_FRAGMENT).expect("a record below 2 GiB");
    out.0[..MARK_BYTES].copy_from_slice(&(mark | LAST_FRAGMENT).to_be_bytes());
    out.0
}

fn nfs(xid: u32, procedure: u32, credential: &Credential, handle: &Handle) -> Writer {
    let mut out = head(xid, NFS_PROGRAM, VERSION, procedure, Some(credential));
    out.opaque(handle.as_bytes());
    out
}

/// GETPORT: on which TCP port a program is, over IPv4.
pub fn get_port(xid: u32, program: u32, version: u32) -> Vec<u8> {
    let mut out = head(xid, PORT_MAPPER_PROGRAM, PORT_MAPPER_VERSION, 3, None);
    [program, version, TCP, 0].into_iter().for_each(|value| out.u32(value));
    finish(out, 0)
}

/// GETADDR: at which address a program is, over TCP on IPv6, of which GETPORT knows nothing.
pub fn get_address(xid: u32, program: u32, version: u32) -> Vec<u8> {
    let mut out = head(xid, PORT_MAPPER_PROGRAM, PORT_MAPPER_ADDRESS_VERSION, 3, None);
    [program, version].into_iter().for_each(|value| out.u32(value));
    // The address and the owner are of no interest to who asks.
    ["tcp6", "", ""].into_iter().for_each(|text| out.opaque(text.as_bytes()));
    finish(out, 0)
}

/// MNT: the handle of an exported folder.
pub fn mount(xid: u32, credential: &Credential, path: &str) -> Vec<u8> {
    let mut out = head(xid, MOUNT_PROGRAM, VERSION, 1, Some(credential));
    out.opaque(path.as_bytes());
    finish(out, 0)
}

/// GETATTR.
pub fn get_attributes(xid: u32, credential: &Credential, handle: &Handle) -> Vec<u8> {
    finish(nfs(xid, 1, credential, handle), 0)
}

/// LOOKUP of a name in a folder.
pub fn lookup(xid: u32, credential: &Credential, folder: &Handle, name: &str) -> Vec<u8> {
    let mut out = nfs(xid, 3, credential, folder);
    out.opaque(name.as_bytes());
    finish(out, 0)
}

/// READLINK: what a symbolic link says.
pub fn read_link(xid: u32, credential: &Credential, link: &Handle) -> Vec<u8> {
    finish(nfs(xid, 5, credential, link), 0)
}

/// ACCESS: whether a file may be read (bit 0), and written (bits 2 and 3).
pub fn access(xid: u32, credential: &Credential, handle: &Handle, wanted: u32) -> Vec<u8> {
    let mut out = nfs(xid, 4, credential, handle);
    out.u32(wanted);
    finish(out, 0)
}

/// FSINFO: the server's limits.
pub fn fsinfo(xid: u32, credential: &Credential, handle: &Handle) -> Vec<u8> {
    finish(nfs(xid, 19, credential, handle), 0)
}

/// READ of `count` bytes at `offset`.
pub fn read(xid: u32, credential: &Credential, handle: &Handle, offset: u64, count: u32) -> Vec<u8> {
    let mut out = nfs(xid, 6, credential, handle);
    out.u64(offset);
    out.u32(count);
    finish(out, 0)
}

/// WRITE of the `count` bytes that the caller sends behind this to `offset`.
///
/// # Panics
/// If `count` is no multiple of four (all disks have larger blocks), or 2 GiB and more.
pub fn write(
    xid: u32,
    credential: &Credential,
    handle: &Handle,
    offset: u64,
    count: u32,
    stable: Stable,
) -> Vec<u8> {
    assert!(count.is_multiple_of(4), "{count} bytes would have to be padded");
    let mut out = nfs(xid, 7, credential, handle);
    out.u64(offset);
    out.u32(count);
    out.u32(stable as u32);
    out.u32(count);
    finish(out, count)
}

/// COMMIT of the whole file.
pub fn commit(xid: u32, credential: &Credential, handle: &Handle) -> Vec<u8> {
    let mut out = nfs(xid, 21, credential, handle);
    out.u64(0);
    out.u32(0);
    finish(out, 0)
}
