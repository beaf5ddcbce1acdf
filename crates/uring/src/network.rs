//! Connections to servers: for leaves that lie elsewhere.
//!
//! A stream's number is its descriptor's. It is closed when the kernel has done with its last operation; until then the number
//! is not used again. What is under way on a stream that is closed is cancelled, and what was not sent yet is not sent any more: the
//! other end must not get half of it later.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use blockwork_engine::{Errno, Nanos, Network, StreamId, Token, reserved_ports};
use blockwork_memory::Segment;
use io_uring::{opcode, types};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with, sockopt};

use crate::ring::Uring;
use crate::slots::{Kind, Slot};

/// How often to ask the other machine for a sign of life, and how many may be missing: an idle connection to one that is gone ends
/// after 20 seconds.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVES: u32 = 3;
/// How long to wait until a connection is made: the pauses between the kernel's attempts double. One that was made has no such end: the
/// kernel would end it, too, where a server that hangs leaves no room for what is sent (a zero window).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

impl Network for Uring {
    fn connect(&mut self, token: Token, to: SocketAddr) -> Result<StreamId, Errno> {
        let fd = self.start_connect(to).map_err(|error| Errno::from_io(&error))?;
        let id = StreamId(u32::try_from(fd.as_raw_fd()).expect("an open descriptor is not negative"));
        self.streams.push((id, fd.clone()));
        let (name, slot) = self.slots.take(token, Kind::Connect);
        let events = u32::from(libc::POLLOUT.unsigned_abs());
        let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), events).build();
        slot.file = Some(fd);
        self.submit(name, entry);
        Ok(id)
    }

    fn send(&mut self, token: Token, stream: StreamId, data: &[Segment]) {
        let fd = self.stream(stream);
        Uring::send(self, token, fd, data);
    }

    fn receive(&mut self, token: Token, stream: StreamId, into: Segment) {
        let fd = self.stream(stream);
        self.recv(token, fd, into);
    }

    fn close(&mut self, stream: StreamId) {
        let place = self.streams.iter().position(|(id, _)| *id == stream);
        let (_, fd) = self.streams.swap_remove(place.expect("a stream is closed once"));
        self.cancel_all_of(&fd);
    }

    fn timer(&mut self, token: Token, after: Nanos) {
        self.timeout(token, after);
    }
}

impl Uring {
    fn stream(&self, stream: StreamId) -> Arc<OwnedFd> {
        let found = self.streams.iter().find(|(id, _)| *id == stream);
        found.expect("only open streams are used").1.clone()
    }

    /// A socket that is being connected.
    fn start_connect(&mut self, to: SocketAddr) -> io::Result<Arc<OwnedFd>> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        sockopt::set_socket_keepalive(&fd, true)?;
        sockopt::set_tcp_keepidle(&fd, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(&fd, KEEPALIVE)?;
        sockopt::set_tcp_keepcnt(&fd, KEEPALIVES)?;
        sockopt::set_tcp_user_timeout(&fd, CONNECT_TIMEOUT.as_millis() as u32)?;
        // The end is a reset, which throws away what was not sent.
        sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
        let start = blockwork_engine::Env::random(self);
        bind_reserved(&fd, to, start)?;
        match connect(&fd, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(Arc::new(fd)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Binds a reserved port, beginning the search somewhere, where that is permitted and one is free.
fn bind_reserved(fd: &OwnedFd, to: SocketAddr, start: u64) -> io::Result<()> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    for port in reserved_ports(start) {
        match bind(fd, &SocketAddr::new(any, port)) {
            Ok(()) | Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => return Ok(()),
            Err(rustix::io::Errno::ADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The poll of a connecting socket has ended: how the connection stands. From here on the ring waits for it, and its owner decides for
/// how long.
pub(crate) fn connected(slot: &Slot, result: i32) -> i32 {
    if result < 0 {
        return result;
    }
    let fd = slot.file.as_ref().expect("a port's operation holds its descriptor").as_fd();
    let outcome = match sockopt::socket_error(fd) {
        Ok(Ok(())) => fcntl_getfl(fd)
            .and_then(|flags| fcntl_setfl(fd, flags - OFlags::NONBLOCK))
            .and_then(|()| sockopt::set_tcp_user_timeout(fd, 0)),
        Ok(Err(error)) | Err(error) => Err(error),
    };
    outcome.map_or_else(|error| -error.raw_os_error(), |()| 0)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use blockwork_engine::{Env, Wait};

    use super::*;
    use crate::setup::UringConfig;

    #[test]
    fn a_connection_that_was_made_has_no_end_that_its_owner_did_not_set() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut ring = Uring::new(&UringConfig::default()).unwrap();
        let stream = ring.connect(Token(1), listener.local_addr().unwrap()).unwrap();
        let fd = ring.stream(stream);
        let patience = u128::from(sockopt::tcp_user_timeout(&fd).unwrap());
        assert_eq!(patience, CONNECT_TIMEOUT.as_millis(), "while it is made");
        let mut done = Vec::new();
        while done.is_empty() {
            ring.wait(Wait::Until(None), &mut done);
        }
        assert_eq!(done[0].result, 0);
        assert_eq!(sockopt::tcp_user_timeout(&fd), Ok(0));
        assert_eq!(
            sockopt::socket_keepalive(&fd),
            Ok(true),
            "one that is idle ends when the machine is gone"
        );
        ring.close(stream);
    }
}
