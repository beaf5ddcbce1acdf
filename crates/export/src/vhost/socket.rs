//! Messages on a unix socket, with the file descriptors that go beside them.
//!
//! Invariants:
//! 1. At most [`TABLE_REGIONS_MAX`] descriptors are taken with a message; the kernel closes what is more. Those that no message
//!    wants are closed when they are dropped (see `given`).
//! 2. A wait lasts until there is something to read, or for as long as was asked; [`shutdown`](rustix::net::shutdown) of the socket
//!    ends it.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use blockwork_format::FormatError;
use blockwork_format::vhost_user::{HEADER_BYTES, Header, Message, TABLE_REGIONS_MAX};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::given::{Closer, Given};

/// Why there is no (further) message.
#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    /// The other end has closed it.
    #[error("the front end is gone")]
    Gone,
    /// The other end has closed it in the middle of a message.
    #[error("the front end has gone in the middle of a message, {0} bytes before its end")]
    Cut(usize),
    /// It is no message.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The kernel says no.
    #[error("{what}: {source}")]
    Io {
        /// The call.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

fn io_error(what: &'static str) -> impl Fn(Errno) -> SocketError {
    move |errno| SocketError::Io { what, source: errno.into() }
}

/// Whether there is something to read within this time (or an end of the stream).
pub(super) fn wait(socket: BorrowedFd<'_>, time: Duration) -> Result<bool, SocketError> {
    let time = Timespec::try_from(time).expect("a short time");
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    match poll(&mut polled, Some(&time)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(io_error("poll")(errno)),
    }
}

/// The next message, and what came with it, which is the closer's to close.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    closer: &Closer,
) -> Result<(Header, Message, Vec<Given>), SocketError> {
    let mut files = Vec::new();
    let mut head = [0; HEADER_BYTES];
    fill(socket, &mut head, &mut files, closer)?;
    let header = Header::decode(&head)?;
    let mut payload = vec![0; usize::try_from(header.size).expect("at most PAYLOAD_MAX")];
    if !payload.is_empty() {
        let len = payload.len();
        fill(socket, &mut payload, &mut files, closer).map_err(|error| match error {
            SocketError::Gone => SocketError::Cut(len),
            other => other,
        })?;
    }
    let message = Message::decode(&header, &payload)?;
    let (least, most) = message.files();
    if files.len() < least || files.len() > most {
        let expected = if least == most { format!("{least}") } else { format!("{least} to {most}") };
        let found = format!("{} with message {}", files.len(), header.request);
        return Err(FormatError::invalid("vhost-user message", 0, "number of files", found, expected).into());
    }
    Ok((header, message, files))
}

/// Fills all of `bytes`.
fn fill(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    files: &mut Vec<Given>,
    closer: &Closer,
) -> Result<(), SocketError> {
    let mut at = 0;
    while at < bytes.len() {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TABLE_REGIONS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes[at..])];
        let received = match recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message.bytes,
            Err(Errno::INTR) => continue,
            Err(Errno::CONNRESET) => 0,
            Err(errno) => return Err(io_error("recvmsg")(errno)),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                files.extend(fds.map(|fd| Given::new(fd, closer)));
            }
        }
        // A front end that sends descriptors with every byte gains nothing by it.
        files.truncate(TABLE_REGIONS_MAX);
        match received {
            0 if at == 0 => return Err(SocketError::Gone),
            0 => return Err(SocketError::Cut(bytes.len() - at)),
            received => at += received,
        }
    }
    Ok(())
}

/// Sends a message, with a file.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], file: Option<&OwnedFd>) -> Result<(), SocketError> {
    send_with(socket, bytes, file, SendFlags::NOSIGNAL)
}

/// Sends a message that the other end may not be there to take: where there is no room for it, that is an error.
pub(super) fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), SocketError> {
    send_with(socket, bytes, None, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    file: Option<&OwnedFd>,
    flags: SendFlags,
) -> Result<(), SocketError> {
    let mut at = 0;
    while at < bytes.len() {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = file.filter(|_| at == 0).map(|file| [file.as_fd()]);
        if let Some(fds) = &fds {
            let fits = control.push(SendAncillaryMessage::ScmRights(fds));
            assert!(fits, "there is room for one descriptor");
        }
        match sendmsg(socket, &[IoSlice::new(&bytes[at..])], &mut control, flags) {
            Ok(sent) => at += sent,
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(SocketError::Gone),
            Err(errno) => return Err(io_error("sendmsg")(errno)),
        }
    }
    Ok(())
}

/// Waits for this time, or until the socket is shut down.
pub(super) fn wait_for_end(socket: BorrowedFd<'_>, time: Duration) -> Result<(), SocketError> {
    let time = Timespec::try_from(time).expect("a short time");
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    poll(&mut polled, Some(&time)).map(drop).map_err(io_error("poll"))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType, socketpair};

    use super::*;

    #[test]
    fn who_does_not_listen_is_not_waited_for() {
        let pair =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, rustix::net::SocketFlags::CLOEXEC, None);
        let (ours, _theirs) = pair.unwrap();
        let refused = (0..1_000_000).find_map(|_| send_now(ours.as_fd(), &[0; 4096]).err());
        let Some(SocketError::Io { source, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(source.kind(), io::ErrorKind::WouldBlock);
    }
}
