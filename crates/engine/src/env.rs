//! The environment: the only way the engine has to the world outside.
//!
//! There are two: `blockwork-uring` (io_uring, real time) and `blockwork-sim` (simulated devices, virtual time, from a
//! seed). An environment belongs to one worker, on one thread.
//!
//! Contract: (1) each started operation completes exactly once, by a [`Completion`] with its token; (2) the memory of
//! its segments is kept alive and is not otherwise touched until then; (3) completions may come in any order;
//! (4) a read or write may transfer less than asked, as the kernel's may.

use std::net::SocketAddr;
use std::sync::Arc;

use blockwork_memory::Segment;

use crate::bio::Errno;
use crate::units::Nanos;

/// What an environment calls a file: a descriptor's number in the real one, a device's index in the simulated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(pub u32);

/// Names an operation that was started, and says whose it is. Built by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

impl Token {
    const PORT: u64 = 1 << 63;
    const LEAF: u64 = 1 << 62;
    const LEAF_NUMBER: u64 = 0xffff << 32;

    /// A request of a leaf's queue.
    #[inline]
    pub(crate) fn request(leaf: u16, request: u32) -> Token {
        Token(u64::from(leaf) << 32 | u64::from(request))
    }
    /// An operation of a port's own: `local` is what the port makes of it.
    #[inline]
    pub(crate) fn port(port: u32, local: u32) -> Token {
        debug_assert!(port < 1 << 31);
        Token(Token::PORT | u64::from(port) << 32 | u64::from(local))
    }
    /// An operation of the leaf's own, of that leaf which this token belongs to already: `local` is what the leaf makes of it
    /// ([`Leaf::event`](crate::Leaf::event)).
    #[inline]
    #[must_use]
    pub fn of_leaf(self, local: u32) -> Token {
        debug_assert!(self.0 & Token::PORT == 0, "a token of a port");
        Token(Token::LEAF | self.0 & Token::LEAF_NUMBER | u64::from(local))
    }
    /// Whose it is.
    #[inline]
    pub(crate) fn owner(self) -> Owner {
        let low = (self.0 & 0xffff_ffff) as u32;
        let high = ((self.0 & !Token::PORT) >> 32) as u32;
        if self.0 & Token::PORT != 0 {
            Owner::Port { port: high, local: low }
        } else if self.0 & Token::LEAF != 0 {
            Owner::Leaf { leaf: high as u16, local: low }
        } else {
            Owner::Request { leaf: high as u16, request: low }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Request { leaf: u16, request: u32 },
    Leaf { leaf: u16, local: u32 },
    Port { port: u32, local: u32 },
}

/// What to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOpKind {
    /// Read into the segments.
    Read,
    /// Write the segments; with `dsync` complete only when they are on stable storage (RWF_DSYNC).
    Write {
        /// RWF_DSYNC.
        dsync: bool,
    },
    /// fdatasync.
    Sync,
    /// fallocate(PUNCH_HOLE | KEEP_SIZE): free the range, which reads as zeros then.
    PunchHole,
    /// fallocate(ZERO_RANGE | KEEP_SIZE): the range reads as zeros, and stays allocated.
    ZeroRange,
    /// BLKDISCARD.
    BlkDiscard,
    /// BLKZEROOUT.
    BlkZeroOut,
}

/// One operation on a file.
#[derive(Debug)]
pub struct FileOp<'a> {
    /// Which file.
    pub file: FileId,
    /// What to do.
    pub kind: FileOpKind,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes: the segments' sum for reads and writes.
    pub len: u64,
    /// Memory for reads and writes. The environment keeps clones of these until the operation completes.
    pub data: &'a [Segment],
    /// Tell the kernel where that memory lies by what it was told before ([`Env::knows`]), where that is so; else as usual.
    pub fixed: bool,
}

/// An operation that has finished.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Which.
    pub token: Token,
    /// Bytes transferred (0 for operations without data) or a negative errno, as io_uring reports it.
    pub result: i32,
    /// The environment's own flags for a port's operations (io_uring's CQE flags); 0 for file operations.
    pub flags: u32,
}

impl Completion {
    /// Bytes transferred, or what went wrong.
    #[inline]
    pub fn outcome(&self) -> Result<u32, Errno> {
        u32::try_from(self.result).map_err(|_| Errno(-self.result))
    }
}

/// How long [`Env::wait`] may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: submit what was started, and take what is there.
    Poll,
    /// Until at least one completion or notification is there, or the time (if any) has come.
    Until(Option<Nanos>),
    /// As `Until`, where the next completion is likely to come within moments: worth looking for before sleeping.
    Soon {
        /// From there.
        of: Awaited,
        /// As in `Until`.
        until: Option<Nanos>,
    },
    /// To gather a batch: until `completions` are there, or `for_at_most` has passed. Then as `Until` without waiting.
    Gather {
        /// Enough of them to go on with.
        completions: u32,
        /// Bound on the time slept.
        for_at_most: Nanos,
    },
}

/// Of whom something is likely to come. Where looking is in vain for one, it may pay for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A client, which has been answered.
    Client,
    /// A device, which has been asked.
    Device,
    /// Whoever it is: that looking pays was measured, and is again.
    Measured,
}

/// Wakes a worker from any thread: its `wait` returns soon.
pub trait Notify: Send + Sync {
    /// Wakes it.
    fn notify(&self);
}

/// Time, randomness and I/O for one worker. See the module's contract.
pub trait Env {
    /// Monotonic time. Cheap; may be the time at which `wait` last returned.
    fn now(&self) -> Nanos;
    /// Processor time that this worker's thread has used. Always the same where nothing is known of it. Not cheap: a system call.
    fn processor_time(&self) -> Nanos {
        Nanos(0)
    }
    /// A random number; from the seed, in the simulated world.
    fn random(&mut self) -> u64;
    /// Whether the kernel knows this memory, so that an operation of nothing else may be `fixed`. Who asks has it told, where that is
    /// possible: buffers that are cut from slabs, and mappings that were lent for that.
    fn knows(&mut self, memory: &Segment) -> bool {
        let _ = memory;
        false
    }
    /// Whether operations are calls that return when all is done. Linux puts a flush behind such a DSYNC write to a block device
    /// in any case; one that it goes on with by itself is left to the device, where that has FUA.
    fn calls_return_late(&self) -> bool {
        false
    }
    /// Starts an operation; it may reach the kernel only at the next `wait`.
    fn start(&mut self, token: Token, op: FileOp<'_>);
    /// Submits what was started, sleeps as told, appends what has completed to `out`.
    fn wait(&mut self, wait: Wait, out: &mut Vec<Completion>);
    /// A handle that wakes this worker.
    fn notifier(&self) -> Arc<dyn Notify>;
    /// Its network, if it has one.
    fn network(&mut self) -> Option<&mut dyn Network> {
        None
    }
}

/// A connection, as its environment calls it. May be used again once it was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub u32);

/// Ports below 1024 that no well-known service has, all of them, from any of them on: only root may bind these, and some servers
/// answer no others.
pub fn reserved_ports(start: u64) -> impl Iterator<Item = u16> {
    const FIRST: u16 = 665;
    const COUNT: u16 = 1024 - FIRST;
    let start = start % u64::from(COUNT);
    (0..COUNT).map(move |i| FIRST + ((start + u64::from(i)) % u64::from(COUNT)) as u16)
}

/// Connections over TCP and timers: for leaves that lie elsewhere. All operations complete as those on files do (see the
/// module's contract), under tokens of [`Token::of_leaf`].
pub trait Network {
    /// Connects to `to`, where it may from a port below 1024, as some servers demand. Result: 0, or why not; the stream must be
    /// closed either way. How long an answer is waited for on it is for who asks to say, by `close`. It comes from the port `from`,
    /// where there is one and it can be had: a server knows by it who asks again what he has asked on a former connection.
    fn connect(&mut self, token: Token, to: SocketAddr, from: Option<u16>) -> Result<StreamId, Errno>;
    /// Sends all of `data`, 1,024 segments at most. Result: bytes; fewer than given only if the connection is lost.
    fn send(&mut self, token: Token, stream: StreamId, data: &[Segment]);
    /// Receives into `into`. Result: bytes, which may be fewer than asked; 0: the other end has closed.
    fn receive(&mut self, token: Token, stream: StreamId, into: Segment);
    /// How many bytes of all that was sent on it have arrived at the other machine (not: were read there), if that can be told: what is slow
    /// moves.
    fn arrived(&mut self, stream: StreamId) -> Option<u64>;
    /// Ends a connection. What is under way on it completes soon, whichever way. Returns the port that it came from, if it had one:
    /// the next may come from there at once.
    fn close(&mut self, stream: StreamId) -> Option<u16>;
    /// Completes after that time, with whatever result.
    fn timer(&mut self, token: Token, after: Nanos);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_each_tried_once() {
        for start in [0, 358, 359, u64::MAX] {
            let mut ports: Vec<u16> = reserved_ports(start).collect();
            ports.sort_unstable();
            assert_eq!(ports, (665..1024).collect::<Vec<u16>>(), "from {start} on");
        }
        assert_eq!(reserved_ports(358).next(), Some(1023));
    }

    #[test]
    fn a_token_tells_its_owner() {
        assert_eq!(Token::request(7, 99).owner(), Owner::Request { leaf: 7, request: 99 });
        assert_eq!(
            Token::request(u16::MAX, u32::MAX).owner(),
            Owner::Request { leaf: u16::MAX, request: u32::MAX }
        );
        let own = Token::request(u16::MAX, 99).of_leaf(5);
        assert_eq!(own.owner(), Owner::Leaf { leaf: u16::MAX, local: 5 });
        assert_eq!(own.of_leaf(u32::MAX).owner(), Owner::Leaf { leaf: u16::MAX, local: u32::MAX });
        assert_eq!(Token::port(3, 5).owner(), Owner::Port { port: 3, local: 5 });
    }
}
