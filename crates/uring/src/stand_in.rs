//! What stands in for the ring where io_uring is forbidden or missing: poll(2), and calls that do not block.
//!
//! It takes the very entries that the kernel would take, so nobody who makes them has to know. It needs to know those only that are
//! made for a ring as plain as Linux 5.11's, for descriptors: sockets, event descriptors, polls and timers. Operations on files, which
//! block, are made by threads (`blocking`).
//!
//! Invariants:
//! 1. An entry's memory is touched until its completion is in the list of those that are done, and not after (so whoever keeps
//!    the kernel's promises with it keeps these).
//! 2. Nothing blocks but the poll in [`StandIn::enter`], for as long as that was asked to wait; with one exception. A front end's
//!    eventfd may block whoever writes to it, and is not altered, since the front end reads it too. It is written to only if a poll
//!    right before has said that it takes one more: a front end that raises its count between the two has us wait until it
//!    is read.
//! 3. Each entry completes exactly once, but for signals that nobody waits for ([`UNHEARD`]): those go at once or are dropped. An eventfd
//!    that takes no more is readable already, so no wake-up is lost.
//! 4. Orders that wait are sorted by descriptor, those of one as they came. So each descriptor is polled once, and they are never more
//!    than a process may have open, beyond which the kernel does not poll.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;

use blockwork_engine::Nanos;
use io_uring::{opcode, squeue};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::ring::clock;
use crate::slots::{UNHEARD, UNHEARD_LAST};

/// An entry as the kernel reads it: `struct io_uring_sqe` of include/uapi/linux/io_uring.h, as far as it is of use here.
#[repr(C)]
#[derive(Clone, Copy)]
struct Order {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    len: u32,
    /// Of the operation: those of recv(2), send(2) and accept4(2), or a poll's events.
    operation_flags: u32,
    name: u64,
    rest: [u64; 3],
}

const _: () = assert!(size_of::<Order>() == size_of::<squeue::Entry>());

impl Order {
    fn of(entry: &squeue::Entry) -> Order {
        // SAFETY: an entry is the kernel's structure and nothing else, as long and as aligned as this one, of integers only.
        unsafe { ptr::from_ref(entry).cast::<Order>().read() }
    }

    fn memory(&self) -> *mut libc::c_void {
        ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// What its descriptor has to be ready for.
    fn events(&self) -> libc::c_short {
        match self.opcode {
            opcode::PollAdd::CODE => self.operation_flags as libc::c_short,
            opcode::Send::CODE | opcode::SendMsg::CODE | opcode::Write::CODE => libc::POLLOUT,
            _ => libc::POLLIN,
        }
    }

    /// Does it, if that is possible at once; its descriptor is ready for `ready`.
    fn attempt(&self, ready: libc::c_short) -> Option<i32> {
        let (fd, len) = (self.fd, self.len as usize);
        let flags = self.operation_flags as libc::c_int;
        let now = flags | libc::MSG_DONTWAIT;
        // SAFETY: of all of these, invariant 1: what the address leads to (memory of that length, or a message header with what that
        // leads to) lives, and nobody else uses it, until the entry has completed.
        let result = unsafe {
            match self.opcode {
                opcode::PollAdd::CODE if ready & libc::POLLNVAL != 0 => return Some(-libc::EBADF),
                opcode::PollAdd::CODE => return Some(ready.into()),
                opcode::Recv::CODE => libc::recv(fd, self.memory(), len, now),
                opcode::RecvMsg::CODE => libc::recvmsg(fd, self.memory().cast(), now),
                opcode::Send::CODE => libc::send(fd, self.memory(), len, now),
                opcode::SendMsg::CODE => libc::sendmsg(fd, self.memory().cast(), now),
                opcode::Accept::CODE => libc::accept4(fd, ptr::null_mut(), ptr::null_mut(), flags) as isize,
                opcode::Read::CODE => libc::read(fd, self.memory(), len),
                opcode::Write::CODE => return self.write(),
                _ => return Some(-libc::EINVAL),
            }
        };
        outcome(result)
    }

    /// Writes to an eventfd, if it takes one more.
    fn write(&self) -> Option<i32> {
        let mut polled = [self.polled()];
        loop {
            match ppoll(&mut polled, Some(Nanos(0))) {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => return Some(-error.raw_os_error().unwrap_or(libc::EIO)),
            }
        }
        match polled[0].revents {
            0 => None,
            ready if ready & libc::POLLNVAL != 0 => Some(-libc::EBADF),
            // A count that no write can have reached.
            ready if ready & libc::POLLOUT == 0 => Some(-libc::EAGAIN),
            // SAFETY: invariant 1: memory of that length lives until the entry has completed.
            _ => outcome(unsafe { libc::write(self.fd, self.memory(), self.len as usize) }),
        }
    }

    fn polled(&self) -> libc::pollfd {
        libc::pollfd { fd: self.fd, events: self.events(), revents: 0 }
    }
}

/// The result of a call that has just returned; none if it is to be made again.
fn outcome(result: isize) -> Option<i32> {
    match i32::try_from(result) {
        Ok(done) if done >= 0 => Some(done),
        _ => match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
            libc::EAGAIN | libc::EINTR => None,
            errno => Some(-errno),
        },
    }
}

/// The queues of a ring, and what the kernel would do between them.
#[derive(Default)]
pub(crate) struct StandIn {
    queued: Vec<Order>,
    /// Orders that wait for their descriptors (invariant 4).
    waiting: Vec<Order>,
    /// Timers: when each runs out, and its name.
    timers: Vec<(Nanos, u64)>,
    /// Names and results.
    done: Vec<(u64, i32)>,
    /// The descriptors of those that wait, for the kernel.
    polled: Vec<libc::pollfd>,
    /// How often it was entered.
    pub calls: u64,
}

impl StandIn {
    /// # Safety
    ///
    /// What the entry points to must live, and be left alone, until its completion was taken.
    pub unsafe fn push(&mut self, entry: &squeue::Entry) {
        self.queued.push(Order::of(entry));
    }

    /// Entries that it was not entered with yet.
    pub fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Whether entering it may bring anything.
    pub fn has_something(&self) -> bool {
        !(self.queued.is_empty() && self.waiting.is_empty() && self.timers.is_empty())
    }

    /// What has completed: names and results.
    pub fn take_done(&mut self) -> std::vec::Drain<'_, (u64, i32)> {
        self.done.drain(..)
    }

    /// Begins what was queued; with `get`, waits until `want` completions are there, for at most `time`.
    ///
    /// # Errors
    ///
    /// The kernel cannot poll: it is short of memory, or fewer descriptors may be open than are.
    pub fn enter(&mut self, want: u32, get: bool, time: Option<Nanos>) -> io::Result<()> {
        self.calls += 1;
        let mut queued = std::mem::take(&mut self.queued);
        queued.drain(..).for_each(|order| self.begin(order));
        self.queued = queued; // keeps its memory
        if !get {
            return Ok(());
        }
        let deadline = time.map(|time| clock() + time);
        loop {
            let now = clock();
            let is_enough = self.done.len() >= want as usize;
            let until =
                if is_enough { Some(now) } else { self.next_timer().into_iter().chain(deadline).min() };
            let was_interrupted = !self.poll(until.map(|until| until.since(now)))?;
            let now = clock();
            self.ring_timers(now);
            let is_enough = self.done.len() >= want as usize;
            if is_enough || was_interrupted || deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(());
            }
        }
    }

    fn begin(&mut self, order: Order) {
        match order.opcode {
            opcode::Timeout::CODE => {
                // SAFETY: the timespec lives until the entry has completed (invariant 1), and nobody writes to it.
                let time = unsafe { order.memory().cast::<libc::timespec>().read() };
                self.timers.push((clock() + after(time), order.name));
            }
            opcode::AsyncCancel::CODE => {
                self.cancel(order.address);
                self.done.push((order.name, 0));
            }
            opcode::PollAdd::CODE | opcode::Read::CODE => self.wait_for(order),
            _ => {
                if order.opcode == opcode::Accept::CODE {
                    keep_from_blocking(order.fd);
                }
                match order.attempt(0) {
                    _ if (UNHEARD..=UNHEARD_LAST).contains(&order.name) => {}
                    Some(result) => self.done.push((order.name, result)),
                    None => self.wait_for(order),
                }
            }
        }
    }

    fn wait_for(&mut self, order: Order) {
        let place = self.waiting.partition_point(|other| other.fd <= order.fd);
        self.waiting.insert(place, order);
    }

    fn cancel(&mut self, name: u64) {
        let before = self.waiting.len() + self.timers.len();
        self.waiting.retain(|order| order.name != name);
        self.timers.retain(|(_, timer)| *timer != name);
        if self.waiting.len() + self.timers.len() < before {
            self.done.push((name, -libc::ECANCELED));
        }
    }

    fn ring_timers(&mut self, now: Nanos) {
        let done = &mut self.done;
        self.timers.retain(|&(at, name)| {
            let is_due = at <= now;
            if is_due {
                done.push((name, -libc::ETIME));
            }
            !is_due
        });
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.timers.iter().map(|(at, _)| *at).min()
    }

    /// Waits until some descriptor is ready, for at most `time`, and does what waited for it. False if a signal came.
    fn poll(&mut self, time: Option<Nanos>) -> io::Result<bool> {
        self.list_polled();
        if !ppoll(&mut self.polled, time)? {
            return Ok(false);
        }
        let (polled, done) = (&self.polled, &mut self.done);
        let mut at = 0;
        self.waiting.retain(|order| {
            while polled[at].fd != order.fd {
                at += 1;
            }
            // What another order has asked for is nothing to this one; what is wrong with the descriptor is.
            let ready =
                polled[at].revents & (order.events() | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL);
            let result = if ready == 0 { None } else { order.attempt(ready) };
            done.extend(result.map(|result| (order.name, result)));
            result.is_none()
        });
        Ok(true)
    }

    /// Lists each descriptor that is waited for once, with all that it is waited for.
    fn list_polled(&mut self) {
        self.polled.clear();
        for order in &self.waiting {
            match self.polled.last_mut() {
                Some(last) if last.fd == order.fd => last.events |= order.events(),
                _ => self.polled.push(order.polled()),
            }
        }
    }
}

/// ppoll(2), for at most `time`. False if a signal came.
fn ppoll(polled: &mut [libc::pollfd], time: Option<Nanos>) -> io::Result<bool> {
    let time = time.map(timespec);
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the list and the time live during the call, and the list is as long as it says.
    let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, time, ptr::null()) };
    if ready >= 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
}

/// Several workers wait for the clients of one socket: who comes too late must not wait in accept(2) for the next one.
fn keep_from_blocking(fd: i32) {
    if fd < 0 {
        return;
    }
    // SAFETY: only borrowed for these calls, which tell a number that is not open by EBADF.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    // If that fails, accept(2) says why.
    let _ = fcntl_getfl(file).and_then(|flags| fcntl_setfl(file, flags | OFlags::NONBLOCK));
}

const SECOND: u64 = 1_000_000_000;

fn after(time: libc::timespec) -> Nanos {
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    Nanos(part(time.tv_sec) * SECOND + part(time.tv_nsec))
}

fn timespec(time: Nanos) -> libc::timespec {
    let part = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    libc::timespec { tv_sec: part(time.0 / SECOND), tv_nsec: part(time.0 % SECOND) }
}
