//! How a disk on an NFS server is named: `nfs://SERVER[:PORT]/PATH/FILE[?OPTION=VALUE&...]`, as libnfs and QEMU have it: in the path
//! `%` and two hexadecimal digits stand for a byte, so that names may hold what means something here.

use super::UNCOMMITTED_BYTES;
use super::arena::BYTES_MAX;
use crate::size::parse_size;

/// A file on a server, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsAddress {
    /// The server's name or address.
    pub server: String,
    /// The port of NFS; the port mapper is asked if there is none.
    pub port: Option<u16>,
    /// The path of the file on the server, from its root. Which part of it is exported is found out.
    pub path: String,
    /// What the query says.
    pub options: NfsOptions,
}

/// A version of NFS that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfsVersion {
    /// 3: one READ or WRITE in a call.
    V3,
    /// 4.0: several WRITEs in a call.
    V4,
}

impl NfsVersion {
    /// Whether a call may have several writes.
    pub(super) fn gathers(self) -> bool {
        self == NfsVersion::V4
    }
}

impl std::fmt::Display for NfsVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NfsVersion::V3 => "3",
            NfsVersion::V4 => "4.0",
        })
    }
}

/// How to speak with a server: names and meanings as in nfs(5), but for `uncommitted`, which is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsOptions {
    /// `vers` (or `nfsvers`): which version to speak. `None`: 4.0 where the server has it, and the file by the same path; 3 otherwise.
    pub version: Option<NfsVersion>,
    /// `mountport`: the port of the mount protocol; the port mapper is asked if there is none.
    pub mount_port: Option<u16>,
    /// `uid`: as whom to ask; the process' own if it is not said.
    pub uid: Option<u32>,
    /// `gid`.
    pub gid: Option<u32>,
    /// `nconnect`: connections of each worker, made as soon as so many calls are under way.
    pub connections: u8,
    /// `timeo`: tenths of a second without an answer after which a connection is given up, and everything asked on a new one.
    pub timeo: u32,
    /// `soft`: how often at most; then I/O fails. `None` (`hard`): as often as it takes.
    pub retrans: Option<u32>,
    /// `rsize` and `wsize`: largest READ and WRITE, bytes, if less than the server's limits.
    pub read_size: Option<u32>,
    /// See `read_size`.
    pub write_size: Option<u32>,
    /// `uncommitted`: memory for what the server may still forget, bytes: a power of two. When half of it is in use, the server is asked to
    /// commit; a client that never flushes writes the faster the more there is.
    pub uncommitted_bytes: usize,
}

impl Default for NfsOptions {
    fn default() -> NfsOptions {
        NfsOptions {
            version: None,
            mount_port: None,
            uid: None,
            gid: None,
            connections: CONNECTIONS,
            timeo: 600,
            retrans: None,
            read_size: None,
            write_size: None,
            uncommitted_bytes: UNCOMMITTED_BYTES,
        }
    }
}

/// Connections of a worker where it is not said: servers that give each connection to a thread of its own (nfs-ganesha) write a quarter
/// more in 64 KiB pieces over four than over one.
const CONNECTIONS: u8 = 4;
/// Most connections of a worker, as in Linux.
const CONNECTIONS_MAX: u8 = 16;
/// The least memory for what is uncommitted, bytes: the largest request.
const UNCOMMITTED_MIN: usize = 1 << 20;
/// Retransmissions of a soft mount, where it does not say how many: as in Linux.
const RETRANS: u32 = 2;

impl NfsAddress {
    /// Takes apart what follows `nfs://`.
    pub fn parse(text: &str) -> Result<NfsAddress, String> {
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let (host, path) = place.split_once('/').unwrap_or((place, ""));
        let (server, port) = server_and_port(host)?;
        let path = format!("/{}", decoded(path)?.trim_start_matches('/'));
        if path.ends_with('/') || path.split('/').any(|name| name == "..") {
            return Err(
                "expected nfs://SERVER[:PORT]/PATH/FILE, the path of a file from the server's root".into()
            );
        }
        let mut options = NfsOptions::default();
        query.split('&').filter(|option| !option.is_empty()).try_for_each(|option| options.set(option))?;
        Ok(NfsAddress { server, port, path, options })
    }
}

/// A path without its escapes.
fn decoded(path: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut parts = path.split('%');
    bytes.extend(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|byte| *byte != 0);
        bytes.push(byte.ok_or_else(|| {
            format!(
                "%{part}: expected two hexadecimal digits of a byte; a percent sign itself is written %25"
            )
        })?);
        bytes.extend(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).map_err(|_| format!("{path}: expected a path in UTF-8"))
}

/// `SERVER`, `SERVER:PORT`, or an address of IPv6 in brackets.
fn server_and_port(host: &str) -> Result<(String, Option<u16>), String> {
    let (server, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => (address, rest.strip_prefix(':')),
        None => host.split_once(':').map_or((host, None), |(server, port)| (server, Some(port))),
    };
    if server.is_empty() {
        return Err("no server is named: expected nfs://SERVER[:PORT]/PATH/FILE".into());
    }
    let port = port.map(|port| number("the server's port", port)).transpose()?;
    Ok((server.to_owned(), port))
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{key} is {value:?}: expected a number"))
}

impl NfsOptions {
    fn set(&mut self, option: &str) -> Result<(), String> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "vers" | "nfsvers" => self.version = Some(version(key, value)?),
            "mountport" => self.mount_port = Some(number(key, value)?),
            "uid" => self.uid = Some(number(key, value)?),
            "gid" => self.gid = Some(number(key, value)?),
            "nconnect" => {
                self.connections = number(key, value)?;
                if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
                    return Err(format!("nconnect={value}: expected 1 to {CONNECTIONS_MAX}"));
                }
            }
            "timeo" => {
                self.timeo = number(key, value)?;
                if self.timeo == 0 {
                    return Err("timeo=0: expected tenths of a second, at least 1".into());
                }
            }
            "retrans" => self.retrans = Some(number(key, value)?),
            "soft" => self.retrans = Some(self.retrans.unwrap_or(RETRANS)),
            "hard" => self.retrans = None,
            "rsize" => self.read_size = Some(size(key, value)?),
            "wsize" => self.write_size = Some(size(key, value)?),
            "uncommitted" => self.uncommitted_bytes = uncommitted(value)?,
            _ => {
                return Err(format!(
                    "{option:?} is no option of NFS: expected vers=, mountport=, uid=, gid=, nconnect=, timeo=, soft, hard, \
                     retrans= (which means soft), rsize=, wsize= or uncommitted="
                ));
            }
        }
        Ok(())
    }
}

fn version(key: &str, value: &str) -> Result<NfsVersion, String> {
    match value {
        "3" => Ok(NfsVersion::V3),
        "4" | "4.0" => Ok(NfsVersion::V4),
        _ => Err(format!("{key}={value}: expected 3 or 4.0")),
    }
}

fn size(key: &str, value: &str) -> Result<u32, String> {
    let bytes = number(key, value)?;
    if bytes < 4096 { Err(format!("{key}={value}: expected 4096 bytes at least")) } else { Ok(bytes) }
}

fn uncommitted(value: &str) -> Result<usize, String> {
    let bytes = parse_size(value).map_err(|why| format!("uncommitted: {why}"))?;
    let is_allowed = |bytes: &usize| bytes.is_power_of_two() && (UNCOMMITTED_MIN..=BYTES_MAX).contains(bytes);
    let bytes = usize::try_from(bytes).ok().filter(is_allowed);
    bytes.ok_or_else(|| format!("uncommitted={value}: expected a power of two from 1M to 2G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let plain = NfsAddress::parse("store/vm/a.img").unwrap();
        assert_eq!((plain.server.as_str(), plain.port, plain.path.as_str()), ("store", None, "/vm/a.img"));
        assert_eq!(plain.options, NfsOptions::default());
        let all = "[::1]:20490//vm/a.img?vers=3&mountport=635&uid=7&gid=8&nconnect=4&timeo=20&soft&rsize=65536&wsize=32768&uncommitted=1G";
        let all = NfsAddress::parse(all).unwrap();
        assert_eq!((all.server.as_str(), all.port, all.path.as_str()), ("::1", Some(20490), "/vm/a.img"));
        let options = NfsOptions {
            version: Some(NfsVersion::V3),
            mount_port: Some(635),
            uid: Some(7),
            gid: Some(8),
            connections: 4,
            timeo: 20,
            retrans: Some(2),
            read_size: Some(65536),
            write_size: Some(32768),
            uncommitted_bytes: 1 << 30,
        };
        assert_eq!(all.options, options);
        let named = NfsAddress::parse("store/vm/Gäste 1/100%25%3f.img?nconnect=2").unwrap();
        assert_eq!((named.path.as_str(), named.options.connections), ("/vm/Gäste 1/100%?.img", 2));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("", "SERVER"),
            ("/a", "SERVER"),
            ("store", "PATH/FILE"),
            ("store/a/", "PATH/FILE"),
            ("store/a/../b", "PATH/FILE"),
            ("store/a/%2e%2e/b", "PATH/FILE"),
            ("store/100%", "%25"),
            ("store/a%0", "%0: expected two hexadecimal digits"),
            ("store/a%00b", "%00b"),
            ("store/a%+1", "%+1"),
            ("store/a%é", "%é"),
            ("store/%ff", "UTF-8"),
            ("store:x/a", "port"),
            ("store/a?nconnect=17", "1 to 16"),
            ("store/a?wsize=5", "4096"),
            ("store/a?uncommitted=x", "uncommitted: "),
            ("store/a?uncommitted=100M", "from 1M to 2G"),
            ("store/a?uncommitted=4G", "from 1M to 2G"),
            ("store/a?uncommitted=512K", "from 1M to 2G"),
            ("store/a?vers=4.1", "expected 3 or 4.0"),
            ("store/a?version=4", "version=4"),
        ] {
            let error = NfsAddress::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
