//! Connections to servers: for leaves that lie elsewhere.
//!
//! A stream's number is its descriptor's. It is closed when the kernel has done with its last operation; until then the number
//! is not used again. What is under way on a stream that is closed is cancelled, and what was not sent yet is not sent any more: the
//! other end must not get half of it later. Its port is free from then on, whatever the kernel has still to do: an NFS server tells by
//! the port that a call is asked again, so the next connection comes from the same one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use blockwork_engine::{Errno, Nanos, Network, StreamId, Token, reserved_ports};
use blockwork_memory::Segment;
use io_uring::{opcode, types};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno as Refused;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, connect_unspec, getsockname, ipproto, socket_with,
    sockopt,
};

use crate::ring::Uring;
use crate::slots::{Kind, Slot};
use crate::socket::bytes_acknowledged;

/// How often to ask the other machine for a sign of life, and how many may be missing: an idle connection to one that is gone ends
/// after 20 seconds.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVES: u32 = 3;
/// How long to wait until a connection is made: the pauses between the kernel's attempts double. One that was made has no such end: the
/// kernel would end it, too, where a server that hangs leaves no room for what is sent (a zero window).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// What is said of a port that somebody else has by now, or the former connection still, or that we have lost the right to.
const IS_NOT_TO_BE_HAD: [Refused; 4] =
    [Refused::ADDRINUSE, Refused::ADDRNOTAVAIL, Refused::ACCESS, Refused::PERM];

impl Network for Uring {
    fn connect(&mut self, token: Token, to: SocketAddr, from: Option<u16>) -> Result<StreamId, Errno> {
        let fd = self.start_connect(to, from).map_err(|error| Errno::from_io(&error))?;
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

    fn arrived(&mut self, stream: StreamId) -> Option<u64> {
        bytes_acknowledged(&self.stream(stream))
    }

    fn close(&mut self, stream: StreamId) -> Option<u16> {
        let place = self.streams.iter().position(|(id, _)| *id == stream);
        let (_, fd) = self.streams.swap_remove(place.expect("a stream is closed once"));
        let port = local_port(&fd);
        // What is under way holds the socket until it was cancelled. Where it cannot be let go before (kernels that refuse that while a
        // send waits for room), the next connection comes from another port.
        let _ = connect_unspec(&fd);
        self.cancel_all_of(&fd);
        port
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

    /// A socket that is being connected, from the port `from` if that can be had.
    fn start_connect(&mut self, to: SocketAddr, from: Option<u16>) -> io::Result<Arc<OwnedFd>> {
        if let Some(port) = from {
            match connect_from(new_socket(to)?, to, port) {
                Err(errno) if IS_NOT_TO_BE_HAD.contains(&errno) => {}
                outcome => return Ok(outcome?),
            }
        }
        let fd = new_socket(to)?;
        let start = blockwork_engine::Env::random(self);
        bind_reserved(&fd, to, start)?;
        // Not before: a port that another one has would be taken for free.
        sockopt::set_socket_reuseaddr(&fd, true)?;
        Ok(begin(fd, to)?)
    }
}

/// A socket for connections to `to`.
fn new_socket(to: SocketAddr) -> rustix::io::Result<OwnedFd> {
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
    Ok(fd)
}

/// Begins to connect it.
fn begin(fd: OwnedFd, to: SocketAddr) -> rustix::io::Result<Arc<OwnedFd>> {
    match connect(&fd, &to) {
        Ok(()) | Err(Refused::INPROGRESS) => Ok(Arc::new(fd)),
        Err(error) => Err(error),
    }
}

/// The same, from that port, though the socket that has had it be still there.
fn connect_from(fd: OwnedFd, to: SocketAddr, port: u16) -> rustix::io::Result<Arc<OwnedFd>> {
    sockopt::set_socket_reuseaddr(&fd, true)?;
    bind(&fd, &any_address(to, port))?;
    begin(fd, to)
}

/// That port of any address of this machine, in the family of `to`.
fn any_address(to: SocketAddr, port: u16) -> SocketAddr {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, port)
}

/// Where it is bound, if it is.
fn local_port(fd: &OwnedFd) -> Option<u16> {
    let address = getsockname(fd).ok().and_then(|address| SocketAddr::try_from(address).ok());
    address.map(|address| address.port()).filter(|port| *port > 0)
}

/// Binds a reserved port, beginning the search somewhere, where that is permitted and one is free.
fn bind_reserved(fd: &OwnedFd, to: SocketAddr, start: u64) -> io::Result<()> {
    for port in reserved_ports(start) {
        match bind(fd, &any_address(to, port)) {
            Ok(()) | Err(Refused::ACCESS | Refused::PERM) => return Ok(()),
            Err(Refused::ADDRINUSE) => {}
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
    use std::io::Read;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

    use blockwork_engine::{Completion, Env, Wait};
    use blockwork_memory::Buffer;

    use super::*;
    use crate::setup::UringConfig;

    fn ring() -> Uring {
        Uring::new(&UringConfig::default()).unwrap()
    }

    /// A connection, its other end, and the port that it comes from.
    fn connection(ring: &mut Uring, listener: &TcpListener, from: Option<u16>) -> (StreamId, TcpStream, u16) {
        let stream = ring.connect(Token(1), listener.local_addr().unwrap(), from).unwrap();
        let mut done: Vec<Completion> = Vec::new();
        // What was under way on the former one ends as well.
        let connected = loop {
            ring.wait(Wait::Until(None), &mut done);
            if let Some(connected) = done.iter().find(|one| one.token == Token(1)) {
                break connected;
            }
        };
        assert_eq!(connected.result, 0);
        let (other, peer) = listener.accept().unwrap();
        (stream, other, peer.port())
    }

    #[test]
    fn a_connection_that_was_made_has_no_end_that_its_owner_did_not_set() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut ring = ring();
        let stream = ring.connect(Token(1), listener.local_addr().unwrap(), None).unwrap();
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

    #[test]
    fn the_next_connection_comes_from_the_port_of_the_former_one_at_once() {
        for host in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let listener = TcpListener::bind((host, 0)).unwrap();
            let mut ring = ring();
            let (mut stream, mut other, port) = connection(&mut ring, &listener, None);
            for _ in 0..3 {
                // What is under way holds the socket.
                ring.receive(Token(2), stream, Segment::new(Buffer::new(4096), 0, 4096));
                ring.wait(Wait::Poll, &mut Vec::new());
                assert_eq!(ring.close(stream), Some(port));
                let again;
                (stream, other, again) = connection(&mut ring, &listener, Some(port));
                assert_eq!(again, port, "{host}");
            }
            // One that the server has ended first, and one that it knows nothing of any more.
            drop(other);
            assert_eq!(ring.close(stream), Some(port));
            let (stream, _other, again) = connection(&mut ring, &listener, Some(port));
            assert_eq!(again, port, "{host}");
            ring.close(stream);
        }
    }

    #[test]
    fn what_has_arrived_is_told_while_the_rest_waits_for_room() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut ring = ring();
        let (stream, mut other, _) = connection(&mut ring, &listener, None);
        // More than both machines keep of what nobody reads.
        let data = Segment::new(Buffer::new(64 << 20), 0, 64 << 20);
        let all = data.len() as u64;
        Network::send(&mut ring, Token(3), stream, std::slice::from_ref(&data));
        let mut done: Vec<Completion> = Vec::new();
        ring.wait(Wait::Poll, &mut done);
        let mut seen = 0;
        let mut rest = all;
        let mut into = vec![0; 1 << 20];
        while rest > 0 {
            rest -= other.read(&mut into).unwrap() as u64;
            ring.wait(Wait::Poll, &mut done);
            let arrived = ring.arrived(stream).unwrap();
            assert!(arrived >= seen, "{arrived} after {seen}");
            assert!(seen > 0 || arrived < all, "not all at once");
            seen = arrived;
        }
        while done.iter().all(|one| one.token != Token(3)) {
            ring.wait(Wait::Until(None), &mut done);
        }
        // The last of it is acknowledged soon; the kernel also counts the byte that a connection begins with.
        while ring.arrived(stream).unwrap() < all {
            std::thread::yield_now();
        }
        assert!(ring.arrived(stream).unwrap() <= all + 1);
        ring.close(stream);
    }

    #[test]
    fn a_port_that_is_not_to_be_had_is_another_one() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut ring = ring();
        let (first, _one, port) = connection(&mut ring, &listener, None);
        // The connection is there still; and nobody comes from the server's own port.
        for taken in [port, listener.local_addr().unwrap().port()] {
            let (stream, _other, from) = connection(&mut ring, &listener, Some(taken));
            assert_ne!(from, taken);
            assert_eq!(ring.close(stream), Some(from));
        }
        ring.close(first);
    }
}
