//! A connection's socket and what is still to be sent on it.
//!
//! Requests gather in one batch and leave in one `sendmsg`: headers from one buffer, payloads from where they lie.
//! (1) Sending never blocks: a server that waits for us to take its replies before it reads on would otherwise
//! lock both sides. (2) Receiving blocks only when all has been sent; else both directions are awaited.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use crate::proto::{CMD_DISCONNECT, REQUEST_BYTES, request};
use crate::replies::Replies;

/// Most pieces the kernel takes in one `sendmsg` (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// Where a request's payload lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// It has none.
    None,
    /// The content that all unverified writes share.
    Shared,
    /// The buffer of this slot.
    Slot(usize),
}

/// The buffers that payloads are sent from.
pub struct Payloads {
    /// What every unverified write sends.
    pub shared: Vec<u8>,
    /// One buffer per slot, when verifying.
    pub slots: Vec<Vec<u8>>,
}

/// The socket, the batch being sent, and how often the kernel was asked.
pub struct Link {
    socket: OwnedFd,
    headers: Vec<u8>,
    pieces: Vec<Piece>,
    /// The first piece that is not wholly sent, and how many of its bytes are.
    next: usize,
    next_sent: usize,
    timeout: Duration,
    /// Calls of `sendmsg` that sent something.
    pub sends: u64,
    /// Calls of `recv` that received something.
    pub receives: u64,
}

impl Link {
    /// Takes over a connected socket; `timeout` bounds each wait for the server.
    pub fn new(socket: OwnedFd, timeout: Duration) -> Result<Self> {
        set_socket_timeout(&socket, Timeout::Recv, Some(timeout))?;
        Ok(Link {
            socket,
            headers: Vec::new(),
            pieces: Vec::new(),
            next: 0,
            next_sent: 0,
            timeout,
            sends: 0,
            receives: 0,
        })
    }

    /// Adds a request to the batch. Only when `drained`, or the batch would grow without end.
    pub fn enqueue(&mut self, header: [u8; REQUEST_BYTES], payload: Payload) {
        let start = self.headers.len();
        self.headers.extend_from_slice(&header);
        match self.pieces.last_mut() {
            Some(Piece::Headers(range)) => range.end = self.headers.len(),
            _ => self.pieces.push(Piece::Headers(start..self.headers.len())),
        }
        match payload {
            Payload::None => {}
            Payload::Shared => self.pieces.push(Piece::Shared),
            Payload::Slot(slot) => self.pieces.push(Piece::Slot(slot)),
        }
    }

    /// Whether everything enqueued has been sent.
    pub fn drained(&self) -> bool {
        self.next == self.pieces.len()
    }

    /// Sends as much as the socket takes now.
    pub fn push(&mut self, from: &Payloads) -> Result<()> {
        while !self.drained() {
            let slices = self.slices(from);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.socket, &slices, &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => {
                    drop(slices);
                    self.sends += 1;
                    self.advance(sent, from);
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e).context("the server closed the connection while we sent"),
            }
        }
        self.headers.clear();
        self.pieces.clear();
        (self.next, self.next_sent) = (0, 0);
        Ok(())
    }

    /// Waits for replies, and meanwhile goes on sending.
    pub fn receive(&mut self, replies: &mut Replies, from: &Payloads) -> Result<()> {
        if self.drained() {
            return self.receive_with(replies, RecvFlags::empty());
        }
        let both = PollFlags::IN | PollFlags::OUT;
        let wait = Timespec { tv_sec: i64::try_from(self.timeout.as_secs())?, tv_nsec: 0 };
        let socket = self.socket.as_fd();
        let mut fds = [PollFd::new(&socket, both)];
        match poll(&mut fds, Some(&wait)) {
            Ok(0) => return self.silence(),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).context("poll"),
        }
        let ready = fds[0].revents();
        if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.receive_with(replies, RecvFlags::DONTWAIT)?;
        }
        self.push(from)
    }

    /// Says goodbye. The server may be gone already, which is no one's loss.
    pub fn disconnect(&mut self) {
        let header = request(0, CMD_DISCONNECT, 0, 0, 0);
        let _ = rustix::net::send(&self.socket, &header, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    fn receive_with(&mut self, replies: &mut Replies, flags: RecvFlags) -> Result<()> {
        loop {
            match recv(&self.socket, &mut *replies.space(), flags) {
                Ok((0, _)) => bail!("the server closed the connection with requests in flight"),
                Ok((received, _)) => {
                    self.receives += 1;
                    replies.received(received);
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => return Ok(()),
                Err(Errno::AGAIN) => return self.silence(),
                Err(e) => return Err(e).context("the server closed the connection with requests in flight"),
            }
        }
    }

    fn silence(&self) -> Result<()> {
        bail!(
            "the server answered nothing for {} s with requests in flight (see --timeout)",
            self.timeout.as_secs()
        )
    }

    fn slices<'a>(&'a self, from: &'a Payloads) -> Vec<IoSlice<'a>> {
        let rest = self.pieces[self.next..].iter().take(PIECES_MAX);
        let mut slices: Vec<IoSlice> = rest.map(|piece| IoSlice::new(self.bytes_of(piece, from))).collect();
        if let Some(first) = slices.first_mut() {
            first.advance(self.next_sent);
        }
        slices
    }

    fn bytes_of<'a>(&'a self, piece: &Piece, from: &'a Payloads) -> &'a [u8] {
        match piece {
            Piece::Headers(range) => &self.headers[range.clone()],
            Piece::Shared => &from.shared,
            Piece::Slot(slot) => &from.slots[*slot],
        }
    }

    fn advance(&mut self, mut sent: usize, from: &Payloads) {
        while sent > 0 {
            let left = self.bytes_of(&self.pieces[self.next], from).len() - self.next_sent;
            if sent < left {
                self.next_sent += sent;
                return;
            }
            sent -= left;
            (self.next, self.next_sent) = (self.next + 1, 0);
        }
    }
}

enum Piece {
    /// Requests without payload and the next one's header, side by side in `headers`.
    Headers(Range<usize>),
    Shared,
    Slot(usize),
}
