//! Operations of ports: sockets, polls and timers. Safe, and each under a token that the port chooses.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use blockwork_engine::{Nanos, Token};
use blockwork_memory::{Segment, bytes_in};
use io_uring::{opcode, squeue, types};

use crate::enter::timespec;
use crate::ring::{Uring, length};
use crate::slots::{Kind, SEGMENTS_MAX, Slot};

/// Most bytes that one send takes: what the kernel transfers at once (MAX_RW_COUNT).
const SEND_BYTES_MAX: usize = 0x7fff_f000;

/// A descriptor of this process by its number, which a service manager has left there, without any doubt about who owns it: the kernel makes
/// a new one.
///
/// # Errors
///
/// There is none of that number, or as many are open as may be.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers, and changes nothing of the descriptor.
    let made = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has made it just now, and told nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

impl Uring {
    /// One recv(2) into `into`. Result: bytes, which may be fewer than asked; 0: the end of the stream.
    pub fn recv(&mut self, token: Token, fd: Arc<OwnedFd>, into: Segment) {
        let (name, slot) = self.slots.take(token, Kind::Plain);
        let entry = opcode::Recv::new(types::Fd(fd.as_raw_fd()), into.as_ptr(), length(into.len())).build();
        slot.file = Some(fd);
        slot.segments.push(into);
        self.submit(name, entry);
    }

    /// One recvmsg(2) into all of `into`, in order. Result as of [`Uring::recv`].
    ///
    /// # Panics
    /// If `into` has more than 1,024 segments.
    pub fn recv_parts(&mut self, token: Token, fd: Arc<OwnedFd>, into: &[Segment]) {
        assert!(into.len() <= SEGMENTS_MAX, "{} segments in one receive, {SEGMENTS_MAX} at most", into.len());
        let (name, slot) = self.slots.take(token, Kind::Plain);
        slot.file = Some(fd);
        slot.hold(into);
        slot.list();
        slot.header.msg_iov = slot.iovecs.as_mut_ptr();
        slot.header.msg_iovlen = slot.iovecs.len();
        let entry = opcode::RecvMsg::new(slot.fd(), &raw mut slot.header).build();
        self.submit(name, entry);
    }

    /// Sends all of `data`, in order, without SIGPIPE. Result: bytes; fewer than given only if an error or a cancel came
    /// after some were sent (the next send will meet it too).
    ///
    /// # Panics
    /// If `data` has more than 1,024 segments or 2 GiB less a page.
    pub fn send(&mut self, token: Token, fd: Arc<OwnedFd>, data: &[Segment]) {
        assert!(data.len() <= SEGMENTS_MAX, "{} segments in one send, {SEGMENTS_MAX} at most", data.len());
        assert!(bytes_in(data) <= SEND_BYTES_MAX, "more than {SEND_BYTES_MAX} bytes in one send");
        let (name, slot) = self.slots.take(token, Kind::Send { sent: 0 });
        slot.file = Some(fd);
        slot.hold(data);
        slot.list();
        let entry = slot.send_entry(self.features.whole_sends);
        self.submit(name, entry);
    }

    /// Accepts connections until cancelled (multishot). Each result is a descriptor: pass it to
    /// [`Uring::take_accepted`], which also tells that it was seen. `fd` should not have O_NONBLOCK set: older kernels
    /// would complete by EAGAIN instead of waiting.
    pub fn accept(&mut self, token: Token, fd: Arc<OwnedFd>) {
        let (name, slot) = self.slots.take(token, Kind::Accept { multishot: self.features.multishot });
        slot.file = Some(fd);
        let entry = slot.accept_entry();
        self.submit(name, entry);
    }

    /// The descriptor that an accept's completion brought (close-on-exec).
    ///
    /// # Panics
    /// If `result` is not one that an accept of this ring has brought, or was taken before.
    pub fn take_accepted(&mut self, result: i32) -> OwnedFd {
        let place = self.accepted.iter().position(|fd| *fd == result);
        let fd = self.accepted.swap_remove(place.expect("the result of an accept, once"));
        // SAFETY: the kernel gave us this descriptor, nobody else owns it, and it has just left the list.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    /// Polls for readability, or else for writability, once. Result: poll(2)'s `revents`, at once if it is so already.
    pub fn poll(&mut self, token: Token, fd: Arc<OwnedFd>, readable: bool) {
        let (name, slot) = self.slots.take(token, Kind::Plain);
        let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), poll_events(readable)).build();
        slot.file = Some(fd);
        self.submit(name, entry);
    }

    /// One timer, `after` from the moment it is submitted. Result: -ETIME when it has run out.
    pub fn timeout(&mut self, token: Token, after: Nanos) {
        let (name, slot) = self.slots.take(token, Kind::Plain);
        slot.time = timespec(after);
        let entry = opcode::Timeout::new(&raw const slot.time).build();
        self.submit(name, entry);
    }
}

fn poll_events(readable: bool) -> u32 {
    let events = if readable { libc::POLLIN } else { libc::POLLOUT };
    u32::from(events.unsigned_abs())
}

/// Where the kernel's `struct tcp_info` has `tcpi_bytes_acked`, and how much of it there is up to its end (linux/tcp.h; since 4.1).
const BYTES_ACKED_AT: usize = 120;
const TCP_INFO_BYTES: usize = BYTES_ACKED_AT + size_of::<u64>();

/// How much of what was sent on a connection over TCP the other machine has acknowledged, if the kernel tells.
pub(crate) fn bytes_acknowledged(fd: &OwnedFd) -> Option<u64> {
    let mut info = [0_u8; TCP_INFO_BYTES];
    let mut len = libc::socklen_t::try_from(info.len()).expect("few bytes");
    // SAFETY: the kernel writes at most `len` bytes, which are all of `info`; both live until the call returns.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let is_told = result == 0 && len as usize == info.len();
    let (_, bytes) = info.split_at(BYTES_ACKED_AT);
    is_told.then(|| u64::from_ne_bytes(bytes.try_into().expect("the bytes of a u64")))
}

impl Slot {
    pub(crate) fn fd(&self) -> types::Fd {
        types::Fd(self.file.as_ref().expect("a port's operation holds its descriptor").as_raw_fd())
    }

    /// Sends what is left in the list; `whole`: not less.
    pub(crate) fn send_entry(&mut self, whole: bool) -> squeue::Entry {
        let fd = self.fd();
        let flags = if whole { libc::MSG_NOSIGNAL | libc::MSG_WAITALL } else { libc::MSG_NOSIGNAL };
        if let [only] = self.iovecs[..] {
            return opcode::Send::new(fd, only.iov_base.cast::<u8>().cast_const(), length(only.iov_len))
                .flags(flags)
                .build();
        }
        self.header.msg_iov = self.iovecs.as_mut_ptr();
        self.header.msg_iovlen = self.iovecs.len();
        let flags = u32::try_from(flags).expect("flags are positive");
        opcode::SendMsg::new(fd, &raw const self.header).flags(flags).build()
    }

    /// Removes `bytes` from the front of the list; tells whether nothing is left.
    pub(crate) fn skip_sent(&mut self, mut bytes: usize) -> bool {
        let mut whole = 0;
        for vector in &mut self.iovecs {
            if vector.iov_len > bytes {
                vector.iov_base = vector.iov_base.cast::<u8>().wrapping_add(bytes).cast();
                vector.iov_len -= bytes;
                break;
            }
            bytes -= vector.iov_len;
            whole += 1;
        }
        self.iovecs.drain(..whole);
        self.iovecs.is_empty()
    }

    pub(crate) fn accept_entry(&self) -> squeue::Entry {
        match self.kind {
            Kind::Accept { multishot: true } => {
                opcode::AcceptMulti::new(self.fd()).flags(libc::SOCK_CLOEXEC).build()
            }
            _ => opcode::Accept::new(self.fd(), std::ptr::null_mut(), std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build(),
        }
    }
}
