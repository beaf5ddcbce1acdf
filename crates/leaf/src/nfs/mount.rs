//! Finding a file on a server: its ports, the export that the path begins with, the way from there to the file, its limits.
//!
//! Symbolic links on the way are followed as long as they lead within the export. Where else one leads, only the machine knows that
//! made it.

use std::net::{SocketAddr, ToSocketAddrs};

use blockwork_engine::SECTOR;
use blockwork_format::escape;
use blockwork_format::nfs3::{
    self, Attributes, Credential, FileKind, Handle, MOUNT_PROGRAM, NFS_PROGRAM, PATH_MAX, PORT_MAPPER_PORT,
    Refusal, ReplyError, Status, VERSION,
};

use super::address::{NfsAddress, NfsOptions};
use super::dialog::Dialog;
use super::{NfsFile, remedy};
use crate::error::LeafError;

/// Bits of ACCESS.
const ACCESS_READ: u32 = 1;
const ACCESS_MODIFY: u32 = 4;
/// Most symbolic links on the way to a file, as in Linux.
const LINKS_MAX: usize = 40;

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
    let nfs = with_port(host, nfs_port);
    let mut search = Search { name, credential, dialog: dialog(name, nfs, "NFS")? };
    let (folder, rest) = search.mount(with_port(host, mount_port), &address.path)?;
    let (handle, attributes) = search.walk(folder, rest)?;
    search.check_kind(attributes.kind)?;
    search.check_access(&handle, read_only)?;
    let (read_max, write_max) = search.limits(&handle)?;
    Ok(NfsFile {
        name: name.to_owned(),
        address: nfs,
        handle,
        credential: search.credential,
        bytes: attributes.size,
        read_max: read_max.min(options.read_size.unwrap_or(u32::MAX)),
        write_max: write_max.min(options.write_size.unwrap_or(u32::MAX)),
        read_only,
        uncommitted_bytes: options.uncommitted_bytes,
    })
}

/// On the same machine, another port.
fn with_port(host: SocketAddr, port: u16) -> SocketAddr {
    let mut address = host;
    address.set_port(port);
    address
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

/// Whoever the options say; this process' own user with all his groups if they say nothing.
fn credential(address: &NfsAddress) -> Credential {
    let machine = rustix::system::uname();
    let NfsOptions { uid, gid, .. } = address.options;
    let own = uid.is_none() && gid.is_none();
    let groups = if own { rustix::process::getgroups().unwrap_or_default() } else { Vec::new() };
    let groups: Vec<u32> = groups.into_iter().map(|group| group.as_raw()).collect();
    let uid = uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let gid = gid.unwrap_or_else(|| rustix::process::getegid().as_raw());
    Credential::new(&machine.nodename().to_string_lossy(), uid, gid, &groups)
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

fn refused(name: &str, what: &str, refusal: Refusal) -> LeafError {
    unfit(name, format_args!("{what}: {refusal}"), "see which services, versions and users the server allows")
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

    /// Mounts the longest part of the path that the server takes for a folder of an export; also gives the rest of the path.
    fn mount<'a>(&mut self, to: SocketAddr, path: &'a str) -> Result<(Handle, &'a str), LeafError> {
        let name = self.name;
        if path.len() > PATH_MAX {
            return Err(unfit(name, format_args!("a path of {} bytes", path.len()), "expected 1024 at most"));
        }
        let mut dialog = dialog(name, to, "the mount protocol")?;
        let mut first = None;
        let mut end = path.len();
        while let Some(slash) = path[..end].rfind('/') {
            let folder = if slash == 0 { "/" } else { &path[..slash] };
            let answer = dialog.ask(|xid| nfs3::mount(xid, &self.credential, folder), nfs3::mount_reply);
            match answer.map_err(|error| LeafError::io(name, "asking for the export", error))? {
                // A link on the way is followed from the folder that it is in.
                Ok(Ok(handle)) if self.attributes(&handle)?.kind != FileKind::Directory => {}
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

    /// Goes from a folder to what a path names, and follows symbolic links.
    fn walk(&mut self, folder: Handle, path: &str) -> Result<(Handle, Attributes), LeafError> {
        let mut way = vec![(folder, self.attributes(&folder)?)];
        // Names that are still to be gone to, the next one last.
        let mut names: Vec<String> = path.rsplit('/').map(str::to_owned).collect();
        let mut links = 0;
        while let Some(part) = names.pop() {
            let (here, _) = way[way.len() - 1];
            match part.as_str() {
                "" | "." => continue,
                ".." if way.len() > 1 => {
                    way.pop();
                    continue;
                }
                ".." => return Err(self.leads_astray("a folder above the export")),
                _ => {}
            }
            let next = self.step(&here, &part)?;
            let attributes = self.attributes(&next)?;
            if attributes.kind != FileKind::Link {
                way.push((next, attributes));
                continue;
            }
            links += 1;
            let target = self.read_link(&next)?;
            if target.starts_with('/') || links > LINKS_MAX {
                return Err(self.leads_astray(&escape(&target)));
            }
            names.extend(target.rsplit('/').map(str::to_owned));
        }
        Ok(way.pop().expect("at least the folder that it began with"))
    }

    fn leads_astray(&self, place: &str) -> LeafError {
        unfit(
            self.name,
            format_args!("a symbolic link on the way leads to {place}, which is not followed"),
            "name the file by its own path on the server",
        )
    }

    fn step(&mut self, folder: &Handle, part: &str) -> Result<Handle, LeafError> {
        self.ask("LOOKUP", |xid, credential| nfs3::lookup(xid, credential, folder, part), nfs3::lookup_reply)
    }

    fn attributes(&mut self, handle: &Handle) -> Result<Attributes, LeafError> {
        let call = |xid, credential: &Credential| nfs3::get_attributes(xid, credential, handle);
        self.ask("GETATTR", call, nfs3::attributes_reply)
    }

    fn read_link(&mut self, link: &Handle) -> Result<String, LeafError> {
        let call = |xid, credential: &Credential| nfs3::read_link(xid, credential, link);
        let decode = |message: &[u8], at| Ok(nfs3::link_reply(message, at)?.map(<[u8]>::to_vec));
        let target = self.ask("READLINK", call, decode)?;
        String::from_utf8(target).map_err(|_| self.leads_astray("a path that is not UTF-8"))
    }

    fn check_kind(&self, kind: FileKind) -> Result<(), LeafError> {
        let what = match kind {
            FileKind::Regular => return Ok(()),
            FileKind::Directory => "a folder",
            // Links are followed.
            FileKind::Link | FileKind::Other => "a device, a socket or a pipe of the server",
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
        if granted & ACCESS_READ == 0 {
            return Err(unfit(self.name, "the server does not let it be read", remedy(Status(13))));
        }
        Err(unfit(
            self.name,
            "the server does not let it be written",
            &format!("open it with ',ro', or {}, and that it is not exported read-only", remedy(Status(13))),
        ))
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
