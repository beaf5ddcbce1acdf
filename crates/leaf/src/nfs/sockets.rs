//! Connections for which this machine has no socket: what is said about it, and how often.
//!
//! Invariant: of all connections of all workers to one file, a line is said when that begins or its reason changes, and one when it is over,
//! which is when none of them waits any more; however often they are tried meanwhile.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use blockwork_engine::Errno;

/// No more files for this process, and for this machine.
const EMFILE: Errno = Errno(libc::EMFILE);
const ENFILE: Errno = Errno(libc::ENFILE);

/// What is known of connections that cannot be opened.
#[derive(Default)]
pub(super) struct Sockets(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: usize,
    said: Option<Errno>,
}

impl Sockets {
    /// A connection has got no socket; `waits`: nor the last time.
    pub(super) fn refused(&self, name: &str, to: SocketAddr, errno: Errno, waits: &mut bool) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting += usize::from(!std::mem::replace(waits, true));
        if state.said.replace(errno) == Some(errno) {
            log::debug!("{name}: no connection to {to} can be made, again: {errno}");
            return;
        }
        log::warn!(
            "{name}: no connection to {to} can be made: {errno}; what is asked waits, and it is tried again. {}",
            remedy(errno)
        );
    }

    /// One has got a socket.
    pub(super) fn had(&self, name: &str, to: SocketAddr, waits: &mut bool) {
        if !std::mem::take(waits) {
            return;
        }
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        if state.waiting == 0 && state.said.take().is_some() {
            log::warn!("{name}: connections to {to} can be made again");
        }
    }

    /// What was said last, and is not over.
    #[cfg(test)]
    fn said(&self) -> Option<Errno> {
        self.0.lock().unwrap().said
    }
}

/// What to do about it.
fn remedy(errno: Errno) -> &'static str {
    match errno {
        EMFILE => {
            "All files that this server may have open are in use: let it have more (ulimit -n; LimitNOFILE= of its unit in systemd), or \
             let clients go that need not be there"
        }
        ENFILE => {
            "All files of this machine are in use: see who has them (lsof), or allow more (sysctl fs.file-max)"
        }
        _ => "See what this machine has run out of, or forbids",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_over_when_the_last_one_that_waits_has_its_socket() {
        let (sockets, to) = (Sockets::default(), SocketAddr::from(([127, 0, 0, 1], 2049)));
        let (mut first, mut second) = (false, false);
        sockets.had("x", to, &mut first);
        assert_eq!(sockets.said(), None);
        for _ in 0..3 {
            sockets.refused("x", to, EMFILE, &mut first);
            sockets.refused("x", to, EMFILE, &mut second);
        }
        sockets.had("x", to, &mut first);
        sockets.had("x", to, &mut first);
        assert_eq!(sockets.said(), Some(EMFILE), "the second one waits");
        sockets.refused("x", to, ENFILE, &mut second);
        assert_eq!(sockets.said(), Some(ENFILE));
        sockets.had("x", to, &mut second);
        assert_eq!(sockets.said(), None);
    }
}
