//! Connects and negotiates: fixed newstyle, OPT_STRUCTURED_REPLY when asked for, OPT_GO.
//!
//! The server is not trusted: option replies have a length limit and every field is checked.
//! No older style and no EXPORT_NAME fallback: a server without OPT_GO is refused by name.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail, ensure};

use crate::proto::*;

/// Most bytes taken from one option reply: room for any name, description or block size.
const OPTION_REPLY_MAX: usize = 64 << 10;
/// Most option replies read for one option.
const OPTION_REPLIES_MAX: usize = 64;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Path of a unix socket.
    Unix(String),
    /// `HOST:PORT`.
    Tcp(String),
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.strip_prefix("unix:") {
            Some("") => Err("unix: needs the path of a socket after it".into()),
            Some(path) => Ok(Address::Unix(path.into())),
            None if s.contains(':') => Ok(Address::Tcp(s.into())),
            None => Err(format!("`{s}` is neither unix:PATH nor HOST:PORT")),
        }
    }
}

/// What the server said about the export.
#[derive(Debug, Clone, Copy)]
pub struct Export {
    /// Size in bytes.
    pub bytes: u64,
    /// Transmission flags.
    pub flags: u16,
    /// Whether structured replies were agreed on.
    pub structured: bool,
    /// Smallest request in bytes, and alignment.
    pub block_min: u32,
    /// Largest payload in bytes.
    pub payload_max: u32,
}

impl Export {
    /// Whether the server announced this transmission flag.
    pub fn can(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Opens a connection in the transmission phase.
pub fn connect(address: &Address, name: &str, structured: bool) -> Result<(OwnedFd, Export)> {
    let socket: OwnedFd = match address {
        Address::Unix(path) => {
            UnixStream::connect(path).with_context(|| format!("unix:{path}: no server answers there"))?.into()
        }
        Address::Tcp(at) => {
            let stream = TcpStream::connect(at).with_context(|| format!("{at}: no server answers there"))?;
            stream.set_nodelay(true)?;
            stream.into()
        }
    };
    let mut file = File::from(socket);
    let export = negotiate(&mut file, name, structured)?;
    Ok((file.into(), export))
}

fn negotiate(server: &mut (impl Read + Write), name: &str, structured: bool) -> Result<Export> {
    let mut hello = [0; 18];
    server.read_exact(&mut hello).context("handshake: the server closed before its greeting")?;
    ensure!(be64(&hello, 0) == NBDMAGIC, "handshake: the greeting is not NBD's; is this an NBD server?");
    ensure!(be64(&hello, 8) == IHAVEOPT, "handshake: the server speaks oldstyle NBD; newstyle is needed");
    let flags = be16(&hello, 16);
    ensure!(flags & FLAG_FIXED_NEWSTYLE != 0, "handshake: flags are {flags:#x}, fixed newstyle is needed");
    let mine = u32::from(flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES));
    server.write_all(&mine.to_be_bytes())?;
    let structured = structured && agree_structured(server)?;
    go(server, name, structured)
}

fn agree_structured(server: &mut (impl Read + Write)) -> Result<bool> {
    send_option(server, OPT_STRUCTURED_REPLY, &[])?;
    let (kind, text) = read_reply(server, OPT_STRUCTURED_REPLY)?;
    if kind != REP_ACK {
        bail!("--structured: the server refused ({})", refusal(kind, &text));
    }
    Ok(true)
}

fn go(server: &mut (impl Read + Write), name: &str, structured: bool) -> Result<Export> {
    let mut data = Vec::new();
    data.extend_from_slice(&u32::try_from(name.len()).context("--export: name too long")?.to_be_bytes());
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&1u16.to_be_bytes());
    data.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
    send_option(server, OPT_GO, &data)?;
    let mut found: Option<(u64, u16)> = None;
    let (mut block_min, mut payload_max) = (1, 32 << 20);
    for _ in 0..OPTION_REPLIES_MAX {
        let (kind, data) = read_reply(server, OPT_GO)?;
        match kind {
            REP_ACK => {
                let (bytes, flags) = found.context("OPT_GO: accepted without the export's size")?;
                return Ok(Export { bytes, flags, structured, block_min, payload_max });
            }
            REP_INFO if data.len() == 12 && be16(&data, 0) == INFO_EXPORT => {
                found = Some((be64(&data, 2), be16(&data, 10)));
            }
            REP_INFO if data.len() == 14 && be16(&data, 0) == INFO_BLOCK_SIZE => {
                (block_min, payload_max) = (be32(&data, 2), be32(&data, 10));
                ensure!(block_min > 0, "OPT_GO: the server's minimum block size is 0");
            }
            REP_INFO => {}
            _ => bail!("export `{name}`: the server refused it ({})", refusal(kind, &data)),
        }
    }
    bail!("OPT_GO: more than {OPTION_REPLIES_MAX} replies without an end")
}

fn send_option(server: &mut impl Write, option: u32, data: &[u8]) -> Result<()> {
    let mut raw = Vec::with_capacity(16 + data.len());
    raw.extend_from_slice(&IHAVEOPT.to_be_bytes());
    raw.extend_from_slice(&option.to_be_bytes());
    raw.extend_from_slice(&u32::try_from(data.len())?.to_be_bytes());
    raw.extend_from_slice(data);
    server.write_all(&raw).with_context(|| format!("option {option}: the server closed the connection"))
}

fn read_reply(server: &mut impl Read, option: u32) -> Result<(u32, Vec<u8>)> {
    let mut head = [0; 20];
    server
        .read_exact(&mut head)
        .with_context(|| format!("option {option}: the server closed the connection"))?;
    ensure!(
        be64(&head, 0) == OPTION_REPLY_MAGIC,
        "option {option}: the reply's magic is {:#x}",
        be64(&head, 0)
    );
    ensure!(be32(&head, 8) == option, "option {option}: the reply is for option {}", be32(&head, 8));
    let length = usize::try_from(be32(&head, 16))?;
    ensure!(
        length <= OPTION_REPLY_MAX,
        "option {option}: a reply of {length} bytes, at most {OPTION_REPLY_MAX}"
    );
    let mut data = vec![0; length];
    server.read_exact(&mut data).with_context(|| format!("option {option}: the server closed in a reply"))?;
    Ok((be32(&head, 12), data))
}

fn refusal(kind: u32, text: &[u8]) -> String {
    let code = kind.wrapping_sub(REP_ERR_BASE);
    let name = match code {
        1 => "unsupported",
        2 => "forbidden by policy",
        3 => "invalid",
        4 => "not on this platform",
        5 => "TLS required",
        6 => "unknown export",
        7 => "shutting down",
        8 => "block size required",
        9 => "too big",
        _ => "unexpected reply",
    };
    format!("{name}, reply {kind:#x} {}", String::from_utf8_lossy(text)).trim_end().to_string()
}
