//! The protocol's front end: a message, and its answer.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use blockwork_format::vhost_user::{CONFIG_CHANGE, HEADER_BYTES, Header, Message, header_flag};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// A connection to a back end.
pub struct Client {
    socket: UnixStream,
    /// The back end answers every message on demand.
    acknowledges: bool,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn connect(path: &Path) -> Result<Client> {
        let socket =
            UnixStream::connect(path).with_context(|| format!("connecting to {}", path.display()))?;
        Ok(Client { socket, acknowledges: false })
    }

    /// From now on every message is answered.
    pub fn acknowledged(&mut self) {
        self.acknowledges = true;
    }

    /// Sends bytes as they are, with files.
    ///
    /// # Errors
    /// The back end is gone.
    pub fn send_raw(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ensure!(control.push(SendAncillaryMessage::ScmRights(files)), "too many files");
        }
        let sent = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
            .context("sendmsg")?;
        (&self.socket).write_all(&bytes[sent..]).context("write")
    }

    /// Tells something, and waits until it is obeyed if the back end says so.
    ///
    /// # Errors
    /// It is refused, or the back end is gone.
    pub fn tell(&self, message: &Message, files: &[BorrowedFd<'_>]) -> Result<()> {
        self.send_raw(&message.encode(self.acknowledges), files)?;
        if !self.acknowledges {
            return Ok(());
        }
        match self.answer(message)?.0[..] {
            [0, 0, 0, 0, 0, 0, 0, 0] => Ok(()),
            ref other => bail!("{message:?} was refused: {other:?}"),
        }
    }

    /// Asks something that has an answer.
    ///
    /// # Errors
    /// There is none.
    pub fn ask(&self, message: &Message) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        self.send_raw(&message.encode(false), &[])?;
        self.answer(message)
    }

    /// Asks for a number.
    ///
    /// # Errors
    /// There is no answer, or it is none.
    pub fn number(&self, message: &Message) -> Result<u64> {
        let (payload, _) = self.ask(message)?;
        let bytes = payload.try_into().ok().context("the answer is no number")?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn answer(&self, to: &Message) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        let (header, payload, file) = read_message(self.socket.as_fd())?;
        ensure!(header.flags & header_flag::REPLY != 0, "not an answer: {header:?}");
        ensure!(header.request == to.number(), "the answer to {} came for {to:?}", header.request);
        Ok((payload, file))
    }

    /// Whether the back end has closed the connection; waits for it to say or do something.
    pub fn is_closed(&self) -> bool {
        matches!(std::io::Read::read(&mut &self.socket, &mut [0; 64]), Ok(0) | Err(_))
    }
}

/// Waits for a message of the back end's on its own channel, which must be that the configuration has changed.
///
/// # Errors
/// It is another, the channel is closed, or nothing comes for a minute.
pub(crate) fn wait_for_config_change(channel: BorrowedFd<'_>) -> Result<()> {
    sockopt::set_socket_timeout(channel, Timeout::Recv, Some(Duration::from_secs(60)))?;
    let (header, payload, _) = read_message(channel)?;
    ensure!(header.request == CONFIG_CHANGE && payload.is_empty(), "another message: {header:?}");
    Ok(())
}

fn read_message(socket: BorrowedFd<'_>) -> Result<(Header, Vec<u8>, Option<OwnedFd>)> {
    let mut head = [0; HEADER_BYTES];
    let mut files = Vec::new();
    fill(socket, &mut head, &mut files)?;
    let header = Header::decode(&head)?;
    let mut payload = vec![0; usize::try_from(header.size)?];
    fill(socket, &mut payload, &mut files)?;
    Ok((header, payload, files.pop().map(OwnedFd::from)))
}

fn fill(socket: BorrowedFd<'_>, bytes: &mut [u8], files: &mut Vec<File>) -> Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(socket, &mut [IoSliceMut::new(&mut bytes[at..])], &mut control, RecvFlags::CMSG_CLOEXEC)
                .context("recvmsg")?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                files.extend(fds.map(File::from));
            }
        }
        ensure!(received.bytes > 0, "the back end has closed the connection");
        at += received.bytes;
    }
    Ok(())
}
