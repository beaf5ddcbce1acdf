//! Finding a file on a server: which version it is asked in, the way from an export or the server's root to the file, its limits.
//!
//! Version 4.0 is tried first, at its port and from the server's root; where the server does not speak it, or knows no such file by that path
//! (an export may have another name there), version 3, whose exports begin with a dialogue of their own (`mount`).
//!
//! Symbolic links on the way are followed as long as they lead within the export. Where else one leads, only the machine knows that
//! made it.

use std::net::{SocketAddr, ToSocketAddrs};

use blockwork_engine::SECTOR;
use blockwork_format::escape;
use blockwork_format::nfs3::{self, Credential, FileKind, Handle, Refusal, ReplyError, Status};
use blockwork_format::nfs4;

use super::address::{NfsAddress, NfsOptions, NfsVersion};
use super::dialog::Dialog;
use super::{NfsFile, mount, remedy};
use crate::error::LeafError;

/// Bits of ACCESS.
const ACCESS_READ: u32 = 1;
const ACCESS_MODIFY: u32 = 4;
/// Most symbolic links on the way to a file, as in Linux.
const LINKS_MAX: usize = 40;
/// Largest READ and WRITE of a server of version 4 that says nothing about it, bytes.
const UNSAID_MAX: u64 = 64 << 10;

/// A search for a file.
pub(super) struct Search<'a> {
    pub(super) name: &'a str,
    pub(super) credential: Credential,
    version: NfsVersion,
    dialog: Dialog,
}

/// What a file is.
#[derive(Clone, Copy)]
pub(super) struct Attributes {
    pub(super) kind: FileKind,
    bytes: u64,
    /// Version 4 says all at once.
    of_version_4: Option<nfs4::Attributes>,
}

pub(super) fn unfit(name: &str, found: impl std::fmt::Display, remedy: &str) -> LeafError {
    LeafError::unfit(name, found.to_string(), remedy)
}

/// Finds the file: at the first of the server's addresses at which there is one that answers. From then on it is used there, also after the
/// connection was lost: at another address there may be another machine, with a copy of the file, and nothing in either version tells.
pub(super) fn find(name: &str, address: &NfsAddress, read_only: bool) -> Result<NfsFile, LeafError> {
    let hosts = resolve(name, &address.server)?;
    at_the_first_that_answers(name, &hosts, |host| find_at(name, host, address, read_only))
}

/// Tries one address after the other until something answers there, also that it has no such file.
fn at_the_first_that_answers<T>(
    name: &str,
    hosts: &[SocketAddr],
    mut find: impl FnMut(SocketAddr) -> Result<T, LeafError>,
) -> Result<T, LeafError> {
    let mut failed = Vec::new();
    for host in hosts {
        match find(*host) {
            Err(LeafError::Io { what, source, remedy, .. }) => failed.push((host.ip(), what, source, remedy)),
            answered => return answered,
        }
    }
    let all = failed.iter().map(|(ip, what, source, _)| format!("; {ip}: {what}: {source}"));
    let others: String = all.take(failed.len().saturating_sub(1)).collect();
    let (_, what, source, remedy) =
        failed.pop().ok_or_else(|| unfit(name, "the server has no address", "see the name of the server"))?;
    let remedy = if others.is_empty() {
        remedy
    } else {
        format!("{remedy}; nor is there an answer at the other addresses of that name{others}")
    };
    Err(LeafError::Io { name: name.to_owned(), what, source, remedy })
}

fn find_at(
    name: &str,
    host: SocketAddr,
    address: &NfsAddress,
    read_only: bool,
) -> Result<NfsFile, LeafError> {
    match address.options.version {
        Some(NfsVersion::V3) => find_by_3(name, host, address, read_only),
        Some(NfsVersion::V4) => find_by_4(name, host, address, read_only),
        None => {
            let by_4 = match find_by_4(name, host, address, read_only) {
                Ok(file) => return Ok(file),
                Err(error) => error,
            };
            find_by_3(name, host, address, read_only).map_err(|by_3| better_told(by_3, by_4))
        }
    }
}

/// Of why a file was found by neither version, what helps more: what a server says rather than that it is not reached.
fn better_told(by_3: LeafError, by_4: LeafError) -> LeafError {
    match (&by_3, &by_4) {
        (LeafError::Io { .. }, LeafError::Unfit { .. }) => by_4,
        _ => by_3,
    }
}

fn find_by_3(
    name: &str,
    host: SocketAddr,
    address: &NfsAddress,
    read_only: bool,
) -> Result<NfsFile, LeafError> {
    let ports = mount::ports(name, host, address)?;
    let mut search = Search::new(name, address, NfsVersion::V3, ports.nfs)?;
    let (folder, rest) = mount::mount(&mut search, ports.mount, &address.path)?;
    let attributes = search.attributes(&folder)?;
    search.find((folder, attributes), rest, ports.nfs, address, read_only)
}

fn find_by_4(
    name: &str,
    host: SocketAddr,
    address: &NfsAddress,
    read_only: bool,
) -> Result<NfsFile, LeafError> {
    let nfs = with_port(host, address.port.unwrap_or(nfs4::PORT));
    let mut search = Search::new(name, address, NfsVersion::V4, nfs)?;
    let root = search.look_up(None, None)?;
    search.find(root, &address.path, nfs, address, read_only)
}

/// On the same machine, another port.
pub(super) fn with_port(host: SocketAddr, port: u16) -> SocketAddr {
    let mut address = host;
    address.set_port(port);
    address
}

/// The server's addresses, each once. Their port means nothing.
fn resolve(name: &str, server: &str) -> Result<Vec<SocketAddr>, LeafError> {
    let found = (server, 0)
        .to_socket_addrs()
        .map_err(|error| LeafError::io(name, "looking for the server", error))?;
    let mut found: Vec<SocketAddr> = found.collect();
    found.sort_by_key(|address| !address.is_ipv4());
    found.dedup();
    Ok(found)
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

pub(super) fn dialog(name: &str, to: SocketAddr, what: &'static str) -> Result<Dialog, LeafError> {
    Dialog::connect(to).map_err(|source| LeafError::Io {
        name: name.to_owned(),
        what: "connecting to the server",
        source,
        remedy: format!(" ({what} at {to}); see that the server runs there and that nothing is in between"),
    })
}

pub(super) fn refused(name: &str, what: &str, refusal: Refusal) -> LeafError {
    unfit(name, format_args!("{what}: {refusal}"), "see which services, versions and users the server allows")
}

impl<'a> Search<'a> {
    fn new(
        name: &'a str,
        address: &NfsAddress,
        version: NfsVersion,
        nfs: SocketAddr,
    ) -> Result<Search<'a>, LeafError> {
        let credential = credential(address);
        Ok(Search { name, credential, version, dialog: dialog(name, nfs, "NFS")? })
    }

    /// The file at the end of `path`, which begins in that folder.
    fn find(
        &mut self,
        folder: (Handle, Attributes),
        path: &str,
        nfs: SocketAddr,
        address: &NfsAddress,
        read_only: bool,
    ) -> Result<NfsFile, LeafError> {
        let options = &address.options;
        let (handle, attributes) = self.walk(folder, path)?;
        self.check_kind(attributes.kind)?;
        self.check_access(&handle, read_only)?;
        let (read_max, write_max) = self.limits(&handle, attributes)?;
        Ok(NfsFile {
            name: self.name.to_owned(),
            address: nfs,
            version: self.version,
            handle,
            credential: self.credential.clone(),
            bytes: attributes.bytes,
            read_max: read_max.min(options.read_size.unwrap_or(u32::MAX)),
            write_max: write_max.min(options.write_size.unwrap_or(u32::MAX)),
            read_only,
            uncommitted_bytes: options.uncommitted_bytes,
        })
    }

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

    /// Goes from a folder to what a path names, and follows symbolic links.
    fn walk(&mut self, folder: (Handle, Attributes), path: &str) -> Result<(Handle, Attributes), LeafError> {
        let mut way = vec![folder];
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
            let (next, attributes) = self.look_up(Some(&here), Some(&part))?;
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

    /// What `name` in a folder is, or the root of a server of version 4.
    fn look_up(
        &mut self,
        folder: Option<&Handle>,
        name: Option<&str>,
    ) -> Result<(Handle, Attributes), LeafError> {
        if let (NfsVersion::V3, Some(folder), Some(name)) = (self.version, folder, name) {
            let call = |xid, credential: &Credential| nfs3::lookup(xid, credential, folder, name);
            let handle = self.ask("LOOKUP", call, nfs3::lookup_reply)?;
            return Ok((handle, self.attributes(&handle)?));
        }
        let call = |xid, credential: &Credential| nfs4::find(xid, credential, folder, name);
        let decode = |message: &[u8], at| nfs4::find_reply(message, at, folder.is_some(), name.is_some());
        let nfs4::Found { handle, attributes } = self.ask("LOOKUP", call, decode)?;
        let nfs4::Attributes { kind, size, .. } = attributes;
        Ok((handle, Attributes { kind, bytes: size, of_version_4: Some(attributes) }))
    }

    /// In version 3.
    pub(super) fn attributes(&mut self, handle: &Handle) -> Result<Attributes, LeafError> {
        let call = |xid, credential: &Credential| nfs3::get_attributes(xid, credential, handle);
        let nfs3::Attributes { kind, size } = self.ask("GETATTR", call, nfs3::attributes_reply)?;
        Ok(Attributes { kind, bytes: size, of_version_4: None })
    }

    fn read_link(&mut self, link: &Handle) -> Result<String, LeafError> {
        let version = self.version;
        let call = |xid, credential: &Credential| match version {
            NfsVersion::V3 => nfs3::read_link(xid, credential, link),
            NfsVersion::V4 => nfs4::read_link(xid, credential, link),
        };
        let decode = |message: &[u8], at| {
            let found = match version {
                NfsVersion::V3 => nfs3::link_reply(message, at),
                NfsVersion::V4 => nfs4::link_reply(message, at),
            };
            Ok(found?.map(<[u8]>::to_vec))
        };
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
        let version = self.version;
        let call = |xid, credential: &Credential| match version {
            NfsVersion::V3 => nfs3::access(xid, credential, handle, wanted),
            NfsVersion::V4 => nfs4::access(xid, credential, handle, wanted),
        };
        let decode = match version {
            NfsVersion::V3 => nfs3::access_reply,
            NfsVersion::V4 => nfs4::access_reply,
        };
        let granted = self.ask("ACCESS", call, decode)?;
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
    fn limits(&mut self, handle: &Handle, attributes: Attributes) -> Result<(u32, u32), LeafError> {
        let (read_max, write_max) = match attributes.of_version_4 {
            Some(attributes) => {
                self.check_handle(attributes)?;
                let limit = |max: Option<u64>| u32::try_from(max.unwrap_or(UNSAID_MAX)).unwrap_or(u32::MAX);
                (limit(attributes.read_max), limit(attributes.write_max))
            }
            None => {
                let call = |xid, credential: &Credential| nfs3::fsinfo(xid, credential, handle);
                let info = self.ask("FSINFO", call, nfs3::fsinfo_reply)?;
                (info.read_max, info.write_max)
            }
        };
        let least = u64::from(read_max.min(write_max));
        if least < SECTOR {
            return Err(unfit(
                self.name,
                format_args!("the server takes {least} bytes at most in a READ or WRITE"),
                "a disk needs 512: raise the server's limits",
            ));
        }
        Ok((read_max, write_max))
    }

    /// A file is found once, and used until the end.
    fn check_handle(&self, attributes: nfs4::Attributes) -> Result<(), LeafError> {
        if !attributes.handle_expires {
            return Ok(());
        }
        Err(unfit(
            self.name,
            "what the server calls the file by may change while it is used (fh_expire_type)",
            "name version 3, in which it may not: ?vers=3",
        ))
    }
}
