//! Finding a file on a server: its ports, the export that the path begins with, the way from there to the file, its limits.

use std::net::{SocketAddr, ToSocketAddrs};

use blockwork_engine::SECTOR;
use blockwork_format::nfs3::{
    self, Credential, FileKind, Handle, MOUNT_PROGRAM, NFS_PROGRAM, PATH_MAX, PORT_MAPPER_PORT, Refusal,
    ReplyError, Status, VERSION,
};

use super::address::NfsAddress;
use super::dialog::Dialog;
use super::{NfsFile, UNCOMMITTED_BYTES, remedy};
use crate::error::LeafError;

/// Bits of ACCESS.
const ACCESS_READ: u32 = 1;
const ACCESS_MODIFY: u32 = 4;

/// A search for a file.
struct Search<'a> {
    name: &'a str,
    credential: Credential,
    dialog: Dialog,
}

fn unfit(name: &str, found: impl std::fmt::Display, remedy: &str) -> LeafError {
    LeafError::unfit(name, found.to_string(), remedy)
}

/// Finds the file.
pub(super) fn find(name: &str, address: &NfsAddress, read_only: bool) -> Result<NfsFile, LeafError> {
    let host = resolve(name, &address.server)?;
    let credential = credential(address);
    let nfs_port = port(name, host, address.port, NFS_PROGRAM, "NFS", "nfs://SERVER:PORT/...")?;
    let options = &address.options;
    let mount_port =
        port(name, host, options.mount_port, MOUNT_PROGRAM, "the mount protocol", "?mountport=")?;
    let (folder, rest) = mount(name, SocketAddr::new(host.ip(), mount_port), &credential, &address.path)?;
    let address = SocketAddr::new(host.ip(), nfs_port);
    let dialog = dialog(name, address, "NFS")?;
    let mut search = Search { name, credential, dialog };
    let handle = rest
        .split('/')
        .filter(|part| !part.is_empty())
        .try_fold(folder, |at, part| search.step(&at, part))?;
    let bytes = search.size(&handle)?;
    search.check_access(&handle, read_only)?;
    let (read_max, write_max) = search.limits(&handle)?;
    Ok(NfsFile {
        name: name.to_owned(),
        address,
        handle,
        credential: search.credential,
        bytes,
        read_max: read_max.min(options.read_size.unwrap_or(u32::MAX)),
        write_max: write_max.min(options.write_size.unwrap_or(u32::MAX)),
        read_only,
        uncommitted_bytes: UNCOMMITTED_BYTES,
    })
}

/// The server's address. The port of it means nothing.
fn resolve(name: &str, server: &str) -> Result<SocketAddr, LeafError> {
    let found = (server, 0)
        .to_socket_addrs()
        .map_err(|error| LeafError::io(name, "looking for the server", error))?;
    let mut found: Vec<SocketAddr> = found.collect();
    found.sort_by_key(|address| !address.is_ipv4());
    found
        .first()
        .copied()
        .ok_or_else(|| unfit(name, "the server has no address", "see the name of the server"))
}

fn credential(address: &NfsAddress) -> Credential {
    let machine = rustix::system::uname();
    let uid = address.options.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let gid = address.options.gid.unwrap_or_else(|| rustix::process::getegid().as_raw());
    Credential::new(&machine.nodename().to_string_lossy(), uid, gid, &[])
}

fn dialog(name: &str, to: SocketAddr, what: &'static str) -> Result<Dialog, LeafError> {
    Dialog::connect(to).map_err(|source| LeafError::Io {
        name: name.to_owned(),
        what: "connecting to the server",
        source,
        remedy: format!(" ({what} at {to}); see that the server runs there and that nothing is in between"),
    })
}

/// The port of a program: the one given, or what the port mapper says.
fn port(
    name: &str,
    host: SocketAddr,
    given: Option<u16>,
    program: u32,
    what: &'static str,
    how: &str,
) -> Result<u16, LeafError> {
    if let Some(port) = given {
        return Ok(port);
    }
    let mut mapper = dialog(name, SocketAddr::new(host.ip(), PORT_MAPPER_PORT), "the port mapper")?;
    let call = |xid| nfs3::get_port(xid, program, VERSION);
    match mapper
        .ask(call, nfs3::port_reply)
        .map_err(|error| LeafError::io(name, "asking the port mapper", error))?
    {
        Ok(0) => Err(unfit(
            name,
            format_args!("the server's port mapper knows no version 3 of {what} over TCP"),
            &format!("switch version 3 on there, or name the port: {how}"),
        )),
        Ok(port) => Ok(port),
        Err(refusal) => Err(refused(name, "the port mapper", refusal)),
    }
}

fn refused(name: &str, what: &str, refusal: Refusal) -> LeafError {
    unfit(name, format_args!("{what}: {refusal}"), "see which services, versions and users the server allows")
}

/// Mounts the longest part of the path that the server takes for a folder of an export; also gives the rest of the path.
fn mount<'a>(
    name: &str,
    to: SocketAddr,
    credential: &Credential,
    path: &'a str,
) -> Result<(Handle, &'a str), LeafError> {
    if path.len() > PATH_MAX {
        return Err(unfit(name, format_args!("a path of {} bytes", path.len()), "expected 1024 at most"));
    }
    let mut dialog = dialog(name, to, "the mount protocol")?;
    let mut first = None;
    let mut end = path.len();
    while let Some(slash) = path[..end].rfind('/') {
        let folder = if slash == 0 { "/" } else { &path[..slash] };
        let call = |xid| nfs3::mount(xid, credential, folder);
        let answer = dialog.ask(call, nfs3::mount_reply);
        match answer.map_err(|error| LeafError::io(name, "asking for the export", error))? {
            Ok(Ok(handle)) => return Ok((handle, &path[slash..])),
            Ok(Err(status)) => drop(first.get_or_insert((folder, status))),
            Err(refusal) => return Err(refused(name, "the mount protocol", refusal)),
        }
        end = slash;
    }
    let (folder, status) = first.expect("a path begins with a slash");
    Err(unfit(
        name,
        format_args!("the server does not export {folder} to us ({status}), nor a folder above it"),
        "see its exports (showmount -e SERVER), and that they allow this machine",
    ))
}

impl Search<'_> {
    fn ask<T>(
        &mut self,
        what: &'static str,
        call: impl FnOnce(u32, &Credential) -> Vec<u8>,
        decode: impl FnOnce(&[u8], usize) -> Result<Result<T, Status>, ReplyError>,
    ) -> Result<T, LeafError> {
        let answer = self.dialog.ask(|xid| call(xid, &self.credential), decode);
        match answer.map_err(|error| LeafError::io(self.name, what, error))? {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(status)) => {
                Err(unfit(self.name, format_args!("{what}: the server says {status}"), remedy(status)))
            }
            Err(refusal) => Err(refused(self.name, what, refusal)),
        }
    }

    fn step(&mut self, folder: &Handle, part: &str) -> Result<Handle, LeafError> {
        self.ask("LOOKUP", |xid, credential| nfs3::lookup(xid, credential, folder, part), nfs3::lookup_reply)
    }

    fn size(&mut self, handle: &Handle) -> Result<u64, LeafError> {
        let call = |xid, credential: &Credential| nfs3::get_attributes(xid, credential, handle);
        let found = self.ask("GETATTR", call, nfs3::attributes_reply)?;
        let what = match found.kind {
            FileKind::Regular => return Ok(found.size),
            FileKind::Directory => "a folder",
            FileKind::Link => "a symbolic link",
            FileKind::Other => "a device, a socket or a pipe of the server",
        };
        Err(unfit(
            self.name,
            format_args!("is {what}"),
            "a disk on a server is a regular file: name it by its own path",
        ))
    }

    fn check_access(&mut self, handle: &Handle, read_only: bool) -> Result<(), LeafError> {
        let wanted = if read_only { ACCESS_READ } else { ACCESS_READ | ACCESS_MODIFY };
        let call = |xid, credential: &Credential| nfs3::access(xid, credential, handle, wanted);
        let granted = self.ask("ACCESS", call, nfs3::access_reply)?;
        if granted & wanted == wanted {
            return Ok(());
        }
        let what = if granted & ACCESS_READ == 0 { "read" } else { "written" };
        Err(unfit(self.name, format_args!("the server does not let it be {what}"), remedy(Status(13))))
    }

    /// Largest READ and WRITE.
    fn limits(&mut self, handle: &Handle) -> Result<(u32, u32), LeafError> {
        let call = |xid, credential: &Credential| nfs3::fsinfo(xid, credential, handle);
        let info = self.ask("FSINFO", call, nfs3::fsinfo_reply)?;
        let least = u64::from(info.read_max.min(info.write_max));
        if least < SECTOR {
            return Err(unfit(
                self.name,
                format_args!("the server takes {least} bytes at most in a READ or WRITE"),
                "a disk needs 512: raise the server's limits",
            ));
        }
        Ok((info.read_max, info.write_max))
    }
}
