//! What a front end has given: descriptors of files that may be anybody's, until they were looked at. To close one may take for ever: of a
//! file system of FUSE's, close(2) asks the process behind it (FLUSH), and waits for the answer whatever signal comes. Whatever else gives up
//! a descriptor (dup2, close_range) does the same.
//!
//! So each front end has a thread that closes, for which its session waits; but nobody does at the end of the server, and the thread is left to
//! itself. It ends when that process answers or ends, or its mount is aborted; until then the kernel keeps what is left of us in its table of processes.
//!
//! Invariants:
//! 1. What is dropped is closed before its session goes on: a front end keeps no more descriptors here than come with a few messages, and nobody
//!    waiting but itself.
//! 2. Once the server ends, no session waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::fs::fcntl_get_seals;

/// A descriptor that a front end has given.
pub(super) struct Given {
    /// None: taken out.
    fd: Option<OwnedFd>,
    closer: Closer,
}

impl Given {
    pub(super) fn new(fd: OwnedFd, closer: &Closer) -> Given {
        Given { fd: Some(fd), closer: closer.clone() }
    }

    /// It, if it is an eventfd; otherwise what it is. Of anything else, to ask whether it is ready might mean to ask a process (FUSE), and to
    /// wait for its answer.
    pub(super) fn into_eventfd(mut self) -> Result<OwnedFd, String> {
        let fd = self.fd.take().expect("it is taken out once");
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let is_other = match std::fs::read_link(&link) {
            Ok(name) if name.as_os_str() == "anon_inode:[eventfd]" => return Ok(fd),
            Ok(name) => blockwork_format::escape(&name.to_string_lossy()),
            Err(error) => format!("not to be told ({link}: {error})"),
        };
        self.fd = Some(fd);
        Err(is_other)
    }
}

impl AsFd for Given {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it was not taken out").as_fd()
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        // Nobody has to be asked about memory, and nearly all of it is that.
        if let Some(fd) = self.fd.take_if(|fd| fcntl_get_seals(fd).is_err()) {
            self.closer.close(fd);
        }
    }
}

/// Who closes what one front end gave.
#[derive(Clone)]
pub(super) struct Closer {
    files: Sender<OwnedFd>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Files that are not closed yet.
    open: usize,
    /// The server ends.
    is_ending: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Closer {
    /// Starts its thread, which ends with the last file and the last of those who could hand it one.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn start() -> io::Result<Closer> {
        let (files, handed) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let told = shared.clone();
        thread::Builder::new().name("vhost-close".into()).spawn(move || {
            for file in handed {
                drop::<OwnedFd>(file);
                told.state().open -= 1;
                told.changed.notify_all();
            }
        })?;
        Ok(Closer { files, shared })
    }

    /// Has it closed, and waits for that unless the server ends.
    fn close(&self, file: OwnedFd) {
        self.shared.state().open += 1;
        self.files.send(file).expect("the thread lives as long as somebody can ask it");
        let goes_on = |state: &mut State| state.open > 0 && !state.is_ending;
        drop(self.shared.changed.wait_while(self.shared.state(), goes_on));
    }

    /// The server ends: nobody waits any more.
    pub(super) fn end(&self) {
        self.shared.state().is_ending = true;
        self.shared.changed.notify_all();
    }
}
