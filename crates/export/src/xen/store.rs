//! Xenstore over its wire protocol: one request at a time, and events of what is watched in between.
//!
//! Invariant: whoever asks gets an answer or an error within [`ANSWER_TIME`] of silence.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blockwork_format::FormatError;
use blockwork_format::xenstore::{HEADER_BYTES, Header, kind, request, text};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::blkif::{StoreError, Xenstore};

/// Ways to xenstored: through the kernel, and its socket where it is a process of this domain.
const DEVICE: &str = "/dev/xen/xenbus";
const SOCKET: &str = "/run/xenstored/socket";
/// How long xenstored may say nothing before it is thought to be dead.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// A connection to xenstored. Cloning gives another handle on the same one.
#[derive(Clone, Debug)]
pub(super) struct Store {
    connection: Arc<Mutex<Connection>>,
}

#[derive(Debug)]
struct Connection {
    fd: OwnedFd,
    /// Number of the last request.
    last: u32,
    /// Something that is watched has changed since it was asked for last.
    changed: bool,
}

/// Why there is no (further) message.
#[derive(Debug, thiserror::Error)]
enum WireError {
    #[error("xenstored has closed the connection")]
    Gone,
    #[error("xenstored has said nothing for {} seconds", ANSWER_TIME.as_secs())]
    Silent,
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("a reply of kind {found} to request {number}, expected kind {expected}")]
    NoReply { found: u32, number: u32, expected: u32 },
    /// What xenstored says to a request that it refuses, such as `ENOENT`.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl WireError {
    fn of(&self, path: &str) -> StoreError {
        let is_refused = matches!(self, WireError::Refused(_));
        StoreError { path: path.to_owned(), reason: self.to_string(), is_refused }
    }
}

impl From<Errno> for WireError {
    fn from(errno: Errno) -> WireError {
        WireError::Io(errno.into())
    }
}

impl Store {
    /// Connects to this machine's xenstored.
    ///
    /// # Errors
    /// There is none, or not for us.
    pub(super) fn connect() -> io::Result<Store> {
        match OpenOptions::new().read(true).write(true).open(DEVICE) {
            Ok(file) => Ok(Store::over(file.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // What is said of the device tells more than that there is no socket either.
                UnixStream::connect(SOCKET).map(|socket| Store::over(socket.into())).map_err(|_| error)
            }
            Err(error) => Err(error),
        }
    }

    /// Over a connection that there is.
    pub(super) fn over(fd: OwnedFd) -> Store {
        Store { connection: Arc::new(Mutex::new(Connection { fd, last: 0, changed: false })) }
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, kind: u32, parts: &[&str], value: &str) -> Result<Vec<u8>, StoreError> {
        let asked = self.connection().ask(kind, parts, value);
        asked.map_err(|error| error.of(parts[0]))
    }

    /// Gives a key, and what will be made below it, to `owner`, for `reader` to read.
    pub(super) fn give(&self, path: &str, owner: u32, reader: u32) -> Result<(), StoreError> {
        let (owner, reader) = (format!("n{owner}"), format!("r{reader}"));
        self.ask(kind::SET_PERMISSIONS, &[path, &owner, &reader], "").map(drop)
    }

    /// Watches a key and all below it; from now on, and once at the beginning, [`Store::wait`] tells of changes.
    pub(super) fn watch(&self, path: &str) -> Result<(), StoreError> {
        self.ask(kind::WATCH, &[path, path], "").map(drop)
    }

    /// Waits until something that is watched has changed, `bell` can be read, or so much time has passed. Whether it was the
    /// first.
    pub(super) fn wait(&self, bell: BorrowedFd<'_>, time: Duration) -> Result<bool, StoreError> {
        let waited = self.connection().wait(bell, time);
        waited.map_err(|error| error.of("a watch"))
    }
}

impl Xenstore for Store {
    fn read(&self, path: &str) -> Result<Option<String>, StoreError> {
        match self.connection().ask(kind::READ, &[path], "") {
            Ok(value) => Ok(Some(text(&value))),
            Err(WireError::Refused(name)) if name == "ENOENT" => Ok(None),
            Err(error) => Err(error.of(path)),
        }
    }

    fn write(&mut self, path: &str, value: &str) -> Result<(), StoreError> {
        self.ask(kind::WRITE, &[path], value).map(drop)
    }

    fn remove(&mut self, path: &str) -> Result<(), StoreError> {
        match self.connection().ask(kind::REMOVE, &[path], "") {
            Err(WireError::Refused(name)) if name == "ENOENT" => Ok(()),
            Err(error) => Err(error.of(path)),
            Ok(_) => Ok(()),
        }
    }
}

impl Connection {
    fn ask(&mut self, kind: u32, parts: &[&str], value: &str) -> Result<Vec<u8>, WireError> {
        self.last = self.last.wrapping_add(1);
        let message = request(kind, self.last, parts, value)?;
        let mut left = &message[..];
        while !left.is_empty() {
            match rustix::io::write(&self.fd, left) {
                Ok(written) => left = &left[written..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        loop {
            let (header, payload) = self.receive()?;
            match header.kind {
                kind::WATCH_EVENT => self.changed = true,
                // What an earlier request was refused is of no interest any more.
                _ if header.request != self.last => {}
                kind::ERROR => return Err(WireError::Refused(text(&payload))),
                found if found == kind => return Ok(payload),
                found => return Err(WireError::NoReply { found, number: self.last, expected: kind }),
            }
        }
    }

    fn wait(&mut self, bell: BorrowedFd<'_>, time: Duration) -> Result<bool, WireError> {
        if std::mem::take(&mut self.changed) {
            return Ok(true);
        }
        let store = self.fd.as_fd();
        let mut polled = [store, bell].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll_for(&mut polled, time)?;
        if polled[0].revents().is_empty() {
            return Ok(false);
        }
        let (header, _) = self.receive()?;
        Ok(header.kind == kind::WATCH_EVENT)
    }

    fn receive(&self) -> Result<(Header, Vec<u8>), WireError> {
        let mut head = [0; HEADER_BYTES];
        self.fill(&mut head)?;
        let header = Header::decode(&head)?;
        let mut payload = vec![0; usize::try_from(header.len).expect("at most PAYLOAD_MAX")];
        self.fill(&mut payload)?;
        Ok((header, payload))
    }

    fn fill(&self, bytes: &mut [u8]) -> Result<(), WireError> {
        let mut at = 0;
        while at < bytes.len() {
            let mut polled = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)];
            if poll_for(&mut polled, ANSWER_TIME)? == 0 {
                return Err(WireError::Silent);
            }
            match rustix::io::read(&self.fd, &mut bytes[at..]) {
                Ok(0) => return Err(WireError::Gone),
                Ok(read) => at += read,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// How many are ready within this time. A signal does not end the wait.
fn poll_for(polled: &mut [PollFd<'_>], time: Duration) -> Result<usize, Errno> {
    let time = Timespec::try_from(time).expect("a short time");
    loop {
        match poll(polled, Some(&time)) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
