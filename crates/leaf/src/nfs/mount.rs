//! What version 3 needs beside NFS itself: the server's port mapper, and the mount protocol, which gives the handle of an exported folder.

use std::net::SocketAddr;

use blockwork_format::nfs3::{
    self, FileKind, Handle, MOUNT_PROGRAM, NFS_PROGRAM, PATH_MAX, PORT_MAPPER_PORT, Status, VERSION,
};

use super::address::NfsAddress;
use super::find::{Search, dialog, refused, unfit, with_port};
use crate::error::LeafError;

/// Where a server's NFS and its mount protocol are.
pub(super) struct Ports {
    pub(super) nfs: SocketAddr,
    pub(super) mount: SocketAddr,
}

/// Those that the address names, and the port mapper's answers for the others.
pub(super) fn ports(name: &str, host: SocketAddr, address: &NfsAddress) -> Result<Ports, LeafError> {
    let nfs = port(name, host, address.port, NFS_PROGRAM, "NFS", "nfs://SERVER:PORT/...")?;
    let given = address.options.mount_port;
    let mount = port(name, host, given, MOUNT_PROGRAM, "the mount protocol", "?mountport=")?;
    Ok(Ports { nfs: with_port(host, nfs), mount: with_port(host, mount) })
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
    let mut mapper = dialog(name, with_port(host, PORT_MAPPER_PORT), "the port mapper")?;
    let answer = if host.is_ipv4() {
        mapper.ask(|xid| nfs3::get_port(xid, program, VERSION), nfs3::port_reply)
    } else {
        mapper.ask(|xid| nfs3::get_address(xid, program, VERSION), nfs3::address_reply)
    };
    match answer.map_err(|error| LeafError::io(name, "asking the port mapper", error))? {
        Ok(0) => Err(unfit(
            name,
            format_args!("the server's port mapper knows no version 3 of {what} over TCP"),
            &format!("switch version 3 on there, or name the port: {how}"),
        )),
        Ok(port) => Ok(port),
        Err(refusal) => Err(refused(name, "the port mapper", refusal)),
    }
}

/// Mounts the longest part of the path that the server takes for a folder of an export; also gives the rest of the path.
pub(super) fn mount<'a>(
    search: &mut Search<'_>,
    to: SocketAddr,
    path: &'a str,
) -> Result<(Handle, &'a str), LeafError> {
    let name = search.name;
    if path.len() > PATH_MAX {
        return Err(unfit(name, format_args!("a path of {} bytes", path.len()), "expected 1024 at most"));
    }
    let mut dialog = dialog(name, to, "the mount protocol")?;
    let mut first = None;
    let mut end = path.len();
    while let Some(slash) = path[..end].rfind('/') {
        let folder = if slash == 0 { "/" } else { &path[..slash] };
        let answer = dialog.ask(|xid| nfs3::mount(xid, &search.credential, folder), nfs3::mount_reply);
        match answer.map_err(|error| LeafError::io(name, "asking for the export", error))? {
            // A link on the way is followed from the folder that it is in.
            Ok(Ok(handle)) if search.attributes(&handle)?.kind != FileKind::Directory => {}
            Ok(Ok(handle)) => return Ok((handle, &path[slash..])),
            Ok(Err(status)) => drop(first.get_or_insert((folder, status))),
            Err(refusal) => return Err(refused(name, "the mount protocol", refusal)),
        }
        end = slash;
    }
    let (folder, status) = first.unwrap_or(("/", Status::NOENT));
    Err(unfit(
        name,
        format_args!("the server does not export {folder} to us ({status}), nor a folder above it"),
        "see its exports (showmount -e SERVER), and that they allow this machine",
    ))
}
