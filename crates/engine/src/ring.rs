//! How full a client's ring is: a queue of fixed size that a client shares with an export (a virtqueue, a Xen ring).
//!
//! A ring that is full is where a fast disk starves: the client has more to ask for, and no place to say so. So every
//! export that has rings counts what is in flight in each, how much that ever was, and for how long it was all that fits.
//!
//! Invariants: one worker writes a ring's figures, anyone may read them. A ring that comes back under its name (a guest
//! that restarts) goes on with its figures, so what is kept is bounded by the names that there are.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::units::Nanos;

/// Most rings of a server that are counted; further ones work, and nobody sees their figures.
pub const RINGS_MAX: usize = 4096;

/// Stands in `full_since` for "not full".
const NOT_FULL: u64 = u64::MAX;

/// What is counted of one ring.
#[derive(Debug)]
pub struct RingStats {
    name: String,
    size: AtomicU32,
    in_flight: AtomicU32,
    high_water: AtomicU32,
    requests: AtomicU64,
    full_ns: AtomicU64,
    full_since: AtomicU64,
}

/// A ring's figures at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingSnapshot {
    /// Whose ring it is: the volume, the client, the queue's number.
    pub name: String,
    /// Requests that fit.
    pub size: u32,
    /// Requests that were taken and are not answered.
    pub in_flight: u32,
    /// The most that this ever was.
    pub high_water: u32,
    /// Requests that were taken, in all.
    pub requests: u64,
    /// For how long it was full, until it last had room again.
    pub full: Nanos,
    /// Whether it is full now.
    pub is_full: bool,
}

impl RingStats {
    /// A ring for `size` requests that belongs to no [`Stats`](crate::Stats): see [`Stats::ring`](crate::Stats::ring).
    pub fn new(name: impl Into<String>, size: u32) -> RingStats {
        RingStats {
            name: name.into(),
            size: AtomicU32::new(size),
            in_flight: AtomicU32::new(0),
            high_water: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            full_ns: AtomicU64::new(0),
            full_since: AtomicU64::new(NOT_FULL),
        }
    }

    /// The export took `count` requests out of it. Whether it is full by that, and was not before: worth
    /// [`Context::ring_is_full`](crate::Context::ring_is_full).
    #[inline]
    pub fn taken(&self, count: u32, now: Nanos) -> bool {
        // One thread writes, so plain loads and stores lose nothing.
        let in_flight = self.in_flight.load(Relaxed).saturating_add(count);
        self.in_flight.store(in_flight, Relaxed);
        self.requests.store(self.requests.load(Relaxed).wrapping_add(count.into()), Relaxed);
        if in_flight > self.high_water.load(Relaxed) {
            self.high_water.store(in_flight, Relaxed);
        }
        let fills = in_flight >= self.size.load(Relaxed) && self.full_since.load(Relaxed) == NOT_FULL;
        if fills {
            self.full_since.store(now.0, Relaxed);
        }
        fills
    }

    /// The client can see the answers to `count` of them.
    #[inline]
    pub fn answered(&self, count: u32, now: Nanos) {
        let in_flight = self.in_flight.load(Relaxed).saturating_sub(count);
        self.in_flight.store(in_flight, Relaxed);
        if in_flight < self.size.load(Relaxed) {
            self.has_room(now);
        }
    }

    /// The client is gone, and with it what was in flight.
    pub fn closed(&self, now: Nanos) {
        self.in_flight.store(0, Relaxed);
        self.has_room(now);
    }

    fn has_room(&self, now: Nanos) {
        let since = self.full_since.load(Relaxed);
        if since != NOT_FULL {
            self.full_since.store(NOT_FULL, Relaxed);
            let full = self.full_ns.load(Relaxed).saturating_add(now.0.saturating_sub(since));
            self.full_ns.store(full, Relaxed);
        }
    }

    /// Its figures now.
    pub fn snapshot(&self) -> RingSnapshot {
        RingSnapshot {
            name: self.name.clone(),
            size: self.size.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            high_water: self.high_water.load(Relaxed),
            requests: self.requests.load(Relaxed),
            full: Nanos(self.full_ns.load(Relaxed)),
            is_full: self.full_since.load(Relaxed) != NOT_FULL,
        }
    }
}

/// All rings of a server, in the order in which they first came.
#[derive(Default)]
pub(crate) struct Rings {
    all: Mutex<Vec<Arc<RingStats>>>,
}

impl Rings {
    pub(crate) fn ring(&self, name: &str, size: u32) -> Arc<RingStats> {
        let mut all = self.all.lock().expect("no holder of this lock panics");
        if let Some(known) = all.iter().find(|ring| ring.name == name) {
            known.in_flight.store(0, Relaxed);
            known.full_since.store(NOT_FULL, Relaxed);
            known.size.store(size, Relaxed);
            return known.clone();
        }
        let ring = Arc::new(RingStats::new(name, size));
        if all.len() < RINGS_MAX {
            all.push(ring.clone());
        }
        ring
    }

    pub(crate) fn snapshot(&self) -> Vec<RingSnapshot> {
        let all = self.all.lock().expect("no holder of this lock panics");
        all.iter().map(|ring| ring.snapshot()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_full_from_the_request_that_fills_it_to_the_first_answer() {
        let ring = RingStats::new("a", 4);
        assert!(!ring.taken(3, Nanos(10)) && !ring.snapshot().is_full);
        assert!(ring.taken(1, Nanos(20)) && ring.snapshot().is_full);
        ring.answered(1, Nanos(50));
        ring.taken(1, Nanos(60));
        ring.answered(4, Nanos(65));
        let figures = ring.snapshot();
        assert_eq!(figures.full, Nanos(35));
        assert_eq!((figures.in_flight, figures.high_water, figures.requests), (0, 4, 5));
    }

    #[test]
    fn a_ring_that_comes_back_goes_on_with_its_figures() {
        let rings = Rings::default();
        let first = rings.ring("guest 1, queue 0", 32);
        first.taken(32, Nanos(5));
        first.closed(Nanos(9));
        let again = rings.ring("guest 1, queue 0", 256);
        again.taken(1, Nanos(20));
        let figures = rings.snapshot();
        assert_eq!(figures.len(), 1);
        assert_eq!((figures[0].size, figures[0].high_water, figures[0].requests), (256, 32, 33));
        assert_eq!((figures[0].full, figures[0].in_flight), (Nanos(4), 1));
    }

    #[test]
    fn rings_that_are_counted_are_bounded() {
        let rings = Rings::default();
        (0..RINGS_MAX + 3).for_each(|n| drop(rings.ring(&n.to_string(), 1)));
        assert_eq!(rings.snapshot().len(), RINGS_MAX);
    }
}
