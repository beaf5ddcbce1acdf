//! How full a client's ring is: a queue of fixed size that a client shares with an export (a virtqueue, a Xen ring).
//!
//! A ring that is full is where a fast disk starves: the client has more to ask for, and no place to say so. So every
//! export that has rings counts what is in flight in each, how much that ever was, and for how long it was all that fits.
//!
//! Invariants: one worker writes a ring's figures, anyone may read them. A ring that comes back under its name (a guest
//! that restarts) goes on with its figures, so what is kept is bounded by the names that there are; with another size, how full it
//! was is counted anew.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::units::Nanos;

/// Most rings of a server that are counted. Those that come later take the places of rings that nobody has any more; where there are none,
/// they work, and nobody sees their figures.
pub const RINGS_MAX: usize = 4096;

/// What is counted of one ring.
#[derive(Debug)]
pub struct RingStats {
    name: String,
    size: AtomicU32,
    in_flight: AtomicU32,
    high_water: AtomicU32,
    requests: AtomicU64,
    full: AtomicU64,
}

/// For how long a ring was full, and whether it is, in one word, so that whoever reads it sees both as of one moment: the lowest
/// bit says whether it is; above it are nanoseconds, of a ring that is full less the time since when (which wraps).
#[derive(Clone, Copy)]
struct Fullness(u64);

impl Fullness {
    fn is_full(self) -> bool {
        self.0 & 1 != 0
    }

    /// For how long, up to `now`.
    fn time(self, now: Nanos) -> Nanos {
        if !self.is_full() {
            return Nanos(self.0 >> 1);
        }
        let time = (self.0 >> 1).wrapping_add(now.0) << 1 >> 1;
        // Whoever looked at the clock before it became full finds less than nothing.
        Nanos(if time >> 62 == 0 { time } else { 0 })
    }

    /// As it is if from `now` on the ring is full, or is not.
    fn turned(self, is_full: bool, now: Nanos) -> Fullness {
        let time = self.time(now).0;
        let half = if is_full { time.wrapping_sub(now.0) } else { time };
        Fullness(half << 1 | u64::from(is_full))
    }
}

/// A ring's figures at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingSnapshot {
    /// Whose ring it is: the volume, the client, the queue's number.
    pub name: String,
    /// Requests that fit.
    pub size: u32,
    /// Requests that the export has found in it and the client knows no answer to.
    pub in_flight: u32,
    /// The most that this ever was.
    pub high_water: u32,
    /// Requests that were found, in all.
    pub requests: u64,
    /// For how long it was full, up to that moment.
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
            full: AtomicU64::new(0),
        }
    }

    /// The export has taken or found `count` requests in it, and it may have no room (`is_full`) by that. Whether it had some before:
    /// then that is worth [`Context::ring_is_full`](crate::Context::ring_is_full).
    #[inline]
    pub fn taken(&self, count: u32, is_full: bool, now: Nanos) -> bool {
        // One thread writes, so plain loads and stores lose nothing.
        let in_flight = self.in_flight.load(Relaxed).saturating_add(count);
        self.in_flight.store(in_flight, Relaxed);
        self.requests.store(self.requests.load(Relaxed).wrapping_add(count.into()), Relaxed);
        if in_flight > self.high_water.load(Relaxed) {
            self.high_water.store(in_flight, Relaxed);
        }
        self.turn(is_full, now) && is_full
    }

    /// The client can see the answers to `count` of them; it may have no room all the same.
    #[inline]
    pub fn answered(&self, count: u32, is_full: bool, now: Nanos) {
        let in_flight = self.in_flight.load(Relaxed).saturating_sub(count);
        self.in_flight.store(in_flight, Relaxed);
        self.turn(is_full, now);
    }

    /// The client is gone, and with it what was in flight.
    pub fn closed(&self, now: Nanos) {
        self.in_flight.store(0, Relaxed);
        self.turn(false, now);
    }

    /// Whether that is another state than before.
    #[inline]
    fn turn(&self, is_full: bool, now: Nanos) -> bool {
        let before = Fullness(self.full.load(Relaxed));
        let turns = before.is_full() != is_full;
        if turns {
            self.full.store(before.turned(is_full, now).0, Relaxed);
        }
        turns
    }

    /// Its figures at `now`, of the clock of the environment whose worker counts.
    pub fn snapshot(&self, now: Nanos) -> RingSnapshot {
        let full = Fullness(self.full.load(Relaxed));
        RingSnapshot {
            name: self.name.clone(),
            size: self.size.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            high_water: self.high_water.load(Relaxed),
            requests: self.requests.load(Relaxed),
            full: full.time(now),
            is_full: full.is_full(),
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
            // How full a ring was tells nothing of one of another size, which nobody has yet.
            if known.size.swap(size, Relaxed) != size {
                known.high_water.store(0, Relaxed);
                known.full.store(0, Relaxed);
            }
            return known.clone();
        }
        let ring = Arc::new(RingStats::new(name, size));
        if all.len() == RINGS_MAX
            && let Some(closed) = all.iter().position(|ring| Arc::strong_count(ring) == 1)
        {
            all.remove(closed);
        }
        if all.len() < RINGS_MAX {
            all.push(ring.clone());
        }
        ring
    }

    pub(crate) fn snapshot(&self, now: Nanos) -> Vec<RingSnapshot> {
        let all = self.all.lock().expect("no holder of this lock panics");
        all.iter().map(|ring| ring.snapshot(now)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_full_from_the_request_that_fills_it_to_the_first_answer() {
        let ring = RingStats::new("a", 4);
        assert!(!ring.taken(3, false, Nanos(10)) && !ring.snapshot(Nanos(15)).is_full);
        assert!(ring.taken(1, true, Nanos(20)) && !ring.taken(0, true, Nanos(25)));
        assert_eq!(ring.snapshot(Nanos(19)).full, Nanos(0), "by a clock that was read before");
        let meanwhile = ring.snapshot(Nanos(40));
        assert!(meanwhile.is_full && meanwhile.full == Nanos(20), "{meanwhile:?}");
        ring.answered(1, false, Nanos(50));
        assert_eq!(ring.snapshot(Nanos(1000)).full, Nanos(30));
        ring.taken(1, true, Nanos(60));
        ring.answered(4, false, Nanos(65));
        let figures = ring.snapshot(Nanos(70));
        assert_eq!(figures.full, Nanos(35));
        assert_eq!((figures.in_flight, figures.high_water, figures.requests), (0, 4, 5));
    }

    #[test]
    fn a_ring_that_comes_back_goes_on_with_its_figures() {
        let rings = Rings::default();
        let first = rings.ring("guest 1, queue 0", 32);
        first.taken(32, true, Nanos(5));
        first.closed(Nanos(9));
        let again = rings.ring("guest 1, queue 0", 32);
        again.taken(1, false, Nanos(20));
        let figures = rings.snapshot(Nanos(30));
        assert_eq!(figures.len(), 1);
        assert_eq!((figures[0].size, figures[0].high_water, figures[0].requests), (32, 32, 33));
        assert_eq!((figures[0].full, figures[0].in_flight), (Nanos(4), 1));
    }

    #[test]
    fn a_ring_that_comes_back_larger_was_never_full() {
        let rings = Rings::default();
        let first = rings.ring("guest 1, queue 0", 32);
        first.taken(32, true, Nanos(5));
        first.closed(Nanos(9));
        let again = rings.ring("guest 1, queue 0", 256);
        again.taken(1, false, Nanos(20));
        let figures = &rings.snapshot(Nanos(30))[0];
        assert_eq!((figures.size, figures.high_water, figures.requests), (256, 1, 33));
        assert_eq!((figures.full, figures.in_flight), (Nanos(0), 1));
    }

    #[test]
    fn rings_that_are_counted_are_bounded_and_those_that_nobody_has_are_forgotten_first() {
        let rings = Rings::default();
        let open: Vec<_> = (0..RINGS_MAX - 2).map(|n| rings.ring(&n.to_string(), 1)).collect();
        (0..5).for_each(|n| drop(rings.ring(&format!("closed {n}"), 1)));
        let names: Vec<String> = rings.snapshot(Nanos(0)).into_iter().map(|ring| ring.name).collect();
        assert_eq!(names.len(), RINGS_MAX);
        assert_eq!(names[RINGS_MAX - 3..], [(RINGS_MAX - 3).to_string().as_str(), "closed 3", "closed 4"]);
        let more = [rings.ring("one more", 1), rings.ring("another", 1), rings.ring("too many", 1)];
        let names: Vec<String> = rings.snapshot(Nanos(0)).into_iter().map(|ring| ring.name).collect();
        assert_eq!(names[RINGS_MAX - 3..], [(RINGS_MAX - 3).to_string().as_str(), "one more", "another"]);
        drop((open, more));
    }
}
