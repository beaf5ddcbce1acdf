//! Small requests do not wait behind large ones: while both are there, only so many bytes of large ones are given to the device that
//! a small one is served within `wbt_lat_usec`; the other large ones wait here.
//!
//! A device serves what it has been given more or less in turn. 64 reads of 1 MiB from a disk of 2 GB/s are 32 ms of work, and the read of
//! 4 KiB behind them takes as long, though four of them at a time would keep the disk as busy. Linux has the same idea for
//! what the page cache writes back (`blk-wbt`), and for readers against writers (`kyber`); here it is sizes that count, since one
//! client's reads are as much in the way of another's as its writes are.
//!
//! How many bytes that are depends on the device, and is found out (`control`) by what small requests take: of all workers that have some,
//! one looks, and tells the others the limit.
//!
//! Invariants:
//! 1. Where nothing small has come for a second, or nothing large is there, nothing waits: a load of one kind goes as it would without.
//!    Nor does it for the sake of small ones that are too few to tell what they take.
//! 2. What waits here is let go by the end of a large request of the same queue: while there is something waiting, one is in flight
//!    (or others that are as many as may be, whose ends do it as well).
//! 3. A small request never waits here, nor for room that large ones take up while they wait.

mod control;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::request::{Request, Stage};
use crate::bio::{Flags, Op};
use crate::units::{Nanos, Sectors};

use control::Control;

/// A request of at most so many sectors is a small one: pages of databases, metadata of file systems and our own.
pub const SMALL_REQUEST: Sectors = Sectors(32);
/// Large ones are held back for so long after the last small one.
const MEMORY: Nanos = Nanos::secs(1);
/// That there are small ones is told at most so often: other workers read it for every large one.
const TOLD_EVERY: Nanos = Nanos::millis(1);
/// Bytes of large requests that may be in flight at least: about a millisecond of a slow disk.
const LEAST: u64 = 256 << 10;
/// The most that a limit can become, and what it is while nothing is known: none.
const MOST: u64 = 1 << 30;
/// Who looks has not done so for as long: somebody else does.
const LOOKS_AGAIN: Nanos = Nanos::millis(250);

/// What the queues of all workers on one leaf share.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Bytes of large requests in flight.
    in_flight: AtomicU64,
    /// Of those that have come to their end, all in all.
    ended: AtomicU64,
    /// Bytes that may be in flight, while there are small ones.
    limit: AtomicU64,
    /// Until then it is `LEAST`, to see what small ones take by themselves.
    least_until: AtomicU64,
    /// When the last small one came, by about a millisecond; 0: none ever did.
    small_at: AtomicU64,
    /// When a large one had to wait last.
    held_at: AtomicU64,
    /// The queue that looks, and when it did last.
    looks: AtomicU32,
    looked_at: AtomicU64,
    /// Queues so far, to number them.
    queues: AtomicU32,
}

impl Default for Pressure {
    fn default() -> Pressure {
        Pressure {
            in_flight: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            limit: AtomicU64::new(MOST),
            least_until: AtomicU64::new(0),
            small_at: AtomicU64::new(0),
            held_at: AtomicU64::new(0),
            looks: AtomicU32::new(0),
            looked_at: AtomicU64::new(0),
            queues: AtomicU32::new(0),
        }
    }
}

impl Pressure {
    /// Whether small ones have come of late.
    fn has_small(&self, now: Nanos) -> bool {
        let at = self.small_at.load(Relaxed);
        at > 0 && now.0.saturating_sub(at) < MEMORY.0
    }

    /// Bytes of large ones that may be in flight, if there are small ones.
    fn limit(&self, now: Nanos) -> u64 {
        if now.0 < self.least_until.load(Relaxed) { LEAST } else { self.limit.load(Relaxed) }
    }

    fn small_came(&self, now: Nanos) {
        let at = self.small_at.load(Relaxed);
        if at == 0 || now.0.saturating_sub(at) > TOLD_EVERY.0 {
            self.small_at.store(now.0.max(1), Relaxed);
        }
    }

    /// Whether queue `me` is the one that looks; it becomes it, where nobody else does.
    fn looks(&self, me: u32, now: Nanos) -> bool {
        let who = self.looks.load(Relaxed);
        if who != me {
            let idle = now.0.saturating_sub(self.looked_at.load(Relaxed));
            if who != 0 && idle < LOOKS_AGAIN.0
                || self.looks.compare_exchange(who, me, Relaxed, Relaxed).is_err()
            {
                return false;
            }
        }
        self.looked_at.store(now.0, Relaxed);
        true
    }
}

/// One queue's part in it.
#[derive(Debug)]
pub(super) struct Throttle {
    /// What a small request may take; zero: large ones are not held back.
    target: Nanos,
    /// This queue's number.
    me: u32,
    /// Large requests that wait, in order.
    waiting: VecDeque<u32>,
    /// Bytes of this queue's large requests in flight.
    in_flight: u64,
    control: Control,
}

impl Throttle {
    pub(super) fn new(target: Nanos, pressure: &Pressure) -> Throttle {
        let me = pressure.queues.fetch_add(1, Relaxed) + 1;
        Throttle { target, me, waiting: VecDeque::new(), in_flight: 0, control: Control::new(target) }
    }

    /// Requests that wait here.
    pub(super) fn waiting(&self) -> &VecDeque<u32> {
        &self.waiting
    }

    /// Whether large requests are held back now.
    pub(super) fn is_on(&self, pressure: &Pressure, now: Nanos) -> bool {
        self.target > Nanos(0) && pressure.has_small(now)
    }

    /// Whether that request may go to the device now.
    #[inline]
    pub(super) fn admits(&self, pressure: &Pressure, now: Nanos, request: &Request) -> bool {
        self.target == Nanos(0) || !is_large(request) || self.in_flight == 0 || {
            let after = pressure.in_flight.load(Relaxed) + request.nr.bytes();
            after <= pressure.limit(now) || !pressure.has_small(now)
        }
    }

    /// A request that is not admitted waits.
    pub(super) fn hold(&mut self, pressure: &Pressure, now: Nanos, id: u32) {
        pressure.held_at.store(now.0, Relaxed);
        self.waiting.push_back(id);
    }

    /// The first that waits was admitted.
    pub(super) fn let_go(&mut self) -> Option<u32> {
        self.waiting.pop_front()
    }

    /// A request goes to the device.
    #[inline]
    pub(super) fn starts(&mut self, pressure: &Pressure, now: Nanos, request: &mut Request) {
        if is_large(request) {
            let bytes = request.nr.bytes();
            request.weight = bytes;
            self.in_flight += bytes;
            request.alone = pressure.in_flight.fetch_add(bytes, Relaxed) == 0;
        } else if self.target > Nanos(0) && is_measure(request) {
            pressure.small_came(now);
        }
    }

    /// A request has come back, however it went.
    #[inline]
    pub(super) fn ends(&mut self, pressure: &Pressure, request: &mut Request) {
        let bytes = std::mem::take(&mut request.weight);
        if bytes > 0 {
            self.in_flight -= bytes;
            pressure.in_flight.fetch_sub(bytes, Relaxed);
            pressure.ended.fetch_add(bytes, Relaxed);
        }
    }

    /// A request has succeeded: what it has taken tells something, where it is a small one beside large ones.
    #[inline]
    pub(super) fn succeeded(&mut self, pressure: &Pressure, now: Nanos, request: &Request) {
        if self.target > Nanos(0) && pressure.in_flight.load(Relaxed) > 0 && is_measure(request) {
            self.look(pressure, now, request.issued);
        }
    }

    #[cold]
    fn look(&mut self, pressure: &Pressure, now: Nanos, issued: Nanos) {
        if pressure.looks(self.me, now) {
            self.control.took(pressure, now, issued);
        }
    }
}

/// Whether a piece of so many sectors is a small one.
pub(super) fn is_small(nr: Sectors) -> bool {
    nr <= SMALL_REQUEST
}

/// Whether a request is a large one: of data that goes to the device or comes from it.
#[inline]
pub(super) fn is_large(request: &Request) -> bool {
    request.nr > SMALL_REQUEST && request.op.has_data()
}

/// Whether it is a small one by whose time one sees how busy the device is. A FUA write has a flush in it, and takes as long as that.
#[inline]
fn is_measure(request: &Request) -> bool {
    let plain = request.op == Op::Read || request.op == Op::Write && !request.device_flags().has(Flags::FUA);
    plain && request.nr <= SMALL_REQUEST && request.stage == Stage::Client
}
