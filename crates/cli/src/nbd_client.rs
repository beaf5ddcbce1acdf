//! A small NBD client for the demo: one connection over a unix socket, many requests under way.
//!
//! It is a client, not a peer for benchmarks (`bench/nbdload` is): simple replies, whole requests, no options but GO.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use blockwork_format::nbd::{
    GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, Request, SIMPLE_REPLY_MAGIC, command,
    handshake_flags, info, option, option_reply_type,
};

/// Requests under way at once.
const DEPTH: usize = 64;
/// A reply's header: magic, error, cookie.
const REPLY_LEN: usize = 16;
/// Longest answer to an option that is read.
const ANSWER_MAX: u32 = 64 << 10;

/// A connection in its transmission phase.
pub(crate) struct NbdClient {
    stream: UnixStream,
    /// The export's size, bytes.
    pub(crate) size: u64,
}

/// One transfer: where, and its data (written from, or read into).
pub(crate) struct Transfer {
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
}

impl NbdClient {
    /// Connects to the export `name`; the empty name is the default one.
    pub(crate) fn connect(socket: &Path, name: &str) -> Result<NbdClient> {
        let mut stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        let magic = (read_u64(&mut stream)?, read_u64(&mut stream)?);
        ensure!(magic == (GREETING_MAGIC, OPTION_MAGIC), "{}: not an NBD server", socket.display());
        let flags = read_u16(&mut stream)? & (handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES);
        stream.write_all(&u32::from(flags).to_be_bytes())?;
        let mut data = u32::try_from(name.len())?.to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        data.extend(0u16.to_be_bytes());
        stream.write_all(&OptionHeader { option: option::GO, len: u32::try_from(data.len())? }.encode())?;
        stream.write_all(&data)?;
        let size = Self::answers(&mut stream)?;
        Ok(NbdClient { stream, size })
    }

    /// Reads the answers to GO; gives the export's size.
    fn answers(stream: &mut UnixStream) -> Result<u64> {
        let mut size = None;
        loop {
            ensure!(read_u64(stream)? == OPTION_REPLY_MAGIC, "the server's answer is no option reply");
            let _option = read_u32(stream)?;
            let kind = read_u32(stream)?;
            let len = read_u32(stream)?;
            ensure!(len <= ANSWER_MAX, "the server's answer has {len} bytes");
            let mut data = vec![0; len as usize];
            stream.read_exact(&mut data)?;
            match kind {
                option_reply_type::ACK => return size.context("the server did not tell the export's size"),
                option_reply_type::INFO if data.get(..2) == Some(&info::EXPORT.to_be_bytes()) => {
                    let bytes: [u8; 8] = data.get(2..10).context("a short answer")?.try_into()?;
                    size = Some(u64::from_be_bytes(bytes));
                }
                option_reply_type::INFO => {}
                other => bail!("the server refused: reply {other:#x} {}", String::from_utf8_lossy(&data)),
            }
        }
    }

    /// Writes all of them, [`DEPTH`] at a time.
    pub(crate) fn write(&mut self, transfers: &mut [Transfer]) -> Result<()> {
        self.run(command::WRITE, transfers)
    }
    /// Reads all of them, likewise.
    pub(crate) fn read(&mut self, transfers: &mut [Transfer]) -> Result<()> {
        self.run(command::READ, transfers)
    }
    /// Makes everything written durable.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&request(command::FLUSH, 0, 0, 0)?)?;
        let mut header = [0; REPLY_LEN];
        self.stream.read_exact(&mut header)?;
        reply(&header).map(drop)
    }

    fn run(&mut self, command: u16, transfers: &mut [Transfer]) -> Result<()> {
        for batch in transfers.chunks_mut(DEPTH) {
            let mut out = Vec::new();
            for (cookie, transfer) in batch.iter().enumerate() {
                out.extend(request(command, cookie as u64, transfer.offset, transfer.data.len() as u64)?);
                if command == command::WRITE {
                    out.extend(&transfer.data);
                }
            }
            self.stream.write_all(&out)?;
            for _ in 0..batch.len() {
                let mut header = [0; REPLY_LEN];
                self.stream.read_exact(&mut header)?;
                let cookie = usize::try_from(reply(&header)?)?;
                let transfer = batch.get_mut(cookie).context("a reply to no request")?;
                if command == command::READ {
                    self.stream.read_exact(&mut transfer.data)?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for NbdClient {
    fn drop(&mut self) {
        if let Ok(goodbye) = request(command::DISC, 0, 0, 0) {
            // The server may be gone already, which is as good.
            let _ = self.stream.write_all(&goodbye);
        }
    }
}

fn request(command: u16, cookie: u64, offset: u64, len: u64) -> Result<[u8; 28]> {
    Request { flags: 0, command, cookie, offset, len }.encode_compact().context("a request of 4 GiB or more")
}

/// The cookie of a successful reply.
fn reply(header: &[u8; REPLY_LEN]) -> Result<u64> {
    let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
    ensure!(word(0) == SIMPLE_REPLY_MAGIC, "the server's answer is no reply");
    ensure!(word(4) == 0, "the server failed a request with error {}", word(4));
    Ok(u64::from_be_bytes(header[8..].try_into().expect("eight bytes")))
}

fn read_u16(stream: &mut UnixStream) -> std::io::Result<u16> {
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes).map(|()| u16::from_be_bytes(bytes))
}
fn read_u32(stream: &mut UnixStream) -> std::io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).map(|()| u32::from_be_bytes(bytes))
}
fn read_u64(stream: &mut UnixStream) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).map(|()| u64::from_be_bytes(bytes))
}
