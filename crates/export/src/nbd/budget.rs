//! What the clients of a server may hold together.
//!
//! Each has [`OWN`] to itself. Beyond that, what it holds counts against the budget of all; where that is used up, it takes no further request
//! until it holds less than its own again. So whoever asks for little at a time never hears of the others, and whoever asks for much goes on with
//! a request at a time. Nobody ever waits for another one to let go: a client that does not read its answers holds what it holds, and stops nobody.
//!
//! Invariant: all hold no more than the budget, and [`OWN`] and a request each.
//!
//! Large reads under way are fewer than that, where more would gain nothing ([`Share::enough`]): the fewer there are, the sooner their memory is used again, and the
//! less of it goes through the processor's cache, by the device, by us and by the socket in turn.
//!
//! The budget is counted in steps of [`STEP`], so that small requests do not touch what all workers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blockwork_engine::Nanos;

/// What each client has to itself, bytes.
pub(super) const OWN: usize = 1 << 20;
/// How exactly the rest is counted, bytes.
const STEP: usize = 1 << 20;

/// Bytes of large reads under way that each of many clients may have. With `reads_enough`, 4 MiB, for all: a copy of 4 GiB by 1, 4 and 8 connections
/// was fastest with 4, 1 and 1 MiB each, of half a MiB to 16 on a disk of 1.6 GB/s. They are four gigabytes a second, of a disk that is [`NEAR`].
const ENOUGH_OF_MANY: usize = 1 << 20;
/// A disk is near whose large reads take no longer by themselves. Of one that is farther away as many more are under way, so that it is kept as busy.
const NEAR: Nanos = Nanos::millis(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: usize,
    held: AtomicUsize,
    /// Bytes of large reads that are enough for one client, of a disk that is near.
    enough: usize,
    /// Clients that have large reads under way.
    readers: AtomicUsize,
}

impl Budget {
    pub(super) fn new(bytes: usize, enough: usize) -> Arc<Budget> {
        Arc::new(Budget { bytes, held: AtomicUsize::new(0), enough, readers: AtomicUsize::new(0) })
    }

    /// For one more client.
    pub(super) fn share(self: &Arc<Budget>) -> Share {
        Share { budget: self.clone(), counted: 0, reads: false }
    }
}

/// What one client has of it.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    counted: usize,
    reads: bool,
}

impl Share {
    /// Whether a client that holds `held` bytes may take another request.
    #[inline]
    pub(super) fn may_take(&mut self, held: usize) -> bool {
        if held < OWN {
            return true;
        }
        self.settle(held);
        self.budget.held.load(Ordering::Relaxed) < self.budget.bytes
    }

    /// The client holds `held` bytes now.
    #[inline]
    pub(super) fn settle(&mut self, held: usize) {
        let counted = if held < OWN { 0 } else { held / STEP * STEP };
        // A count, by which nothing else is ordered.
        if counted > self.counted {
            self.budget.held.fetch_add(counted - self.counted, Ordering::Relaxed);
        } else if counted < self.counted {
            self.budget.held.fetch_sub(self.counted - counted, Ordering::Relaxed);
        }
        self.counted = counted;
    }

    /// Whether the client has large reads under way.
    #[inline]
    pub(super) fn reads(&mut self, reads: bool) {
        if reads != self.reads {
            self.reads = reads;
            match reads {
                true => self.budget.readers.fetch_add(1, Ordering::Relaxed),
                false => self.budget.readers.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }

    /// Bytes of large reads under way that are enough for this client, with its disks so far away, where that is known.
    #[inline]
    pub(super) fn enough(&self, distance: Option<Nanos>) -> usize {
        let readers = self.budget.readers.load(Ordering::Relaxed);
        let near = (self.budget.enough / readers.max(1)).max(ENOUGH_OF_MANY);
        let far = distance.map_or(0, |distance| (near as u64).saturating_mul(distance.0) / NEAR.0);
        near.max(usize::try_from(far).unwrap_or(usize::MAX))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.settle(0);
        self.reads(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_up_leaves_each_its_own_and_comes_back() {
        let budget = Budget::new(4 * STEP, STEP);
        let (mut one, mut other) = (budget.share(), budget.share());
        assert!(one.may_take(0) && one.may_take(3 * STEP));
        assert!(!one.may_take(4 * STEP), "that is all there is");
        assert!(other.may_take(OWN - 1), "its own is");
        assert!(!other.may_take(OWN));
        one.settle(2 * STEP);
        assert!(other.may_take(OWN));
        one.settle(40 * STEP); // one request more was let through
        assert!(!other.may_take(OWN) && other.may_take(0));
        drop(one);
        assert!(other.may_take(3 * STEP));
        drop(other);
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_more_read_the_less_is_enough_for_each_and_more_if_disks_are_far() {
        let budget = Budget::new(0, 4 << 20);
        let mut all: Vec<_> = (0..40).map(|_| budget.share()).collect();
        assert_eq!(all[0].enough(None), 4 << 20);
        let mut each = Vec::new();
        for i in 0..all.len() {
            all[i].reads(true);
            all[i].reads(true); // as before
            each.push(all[0].enough(None));
        }
        let some = [0, 1, 3, 7, 39].map(|i: usize| each[i] >> 20);
        assert_eq!(some, [4, 2, 1, 1, 1]);
        all.truncate(2);
        assert_eq!(all[0].enough(None), 2 << 20, "who is gone does not count");
        let of_distance = |micros| all[0].enough(Some(Nanos::micros(micros))) >> 20;
        assert_eq!([0, 1, 300, 1000, 1500, 2000, 19_000].map(of_distance), [2, 2, 2, 2, 3, 4, 38]);
        assert!(all[0].enough(Some(Nanos(u64::MAX))) > 1 << 40, "however far");
        all.iter_mut().for_each(|share| share.reads(false));
        assert_eq!(budget.readers.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn small_requests_touch_nothing_that_is_shared() {
        let budget = Budget::new(0, STEP);
        let mut share = budget.share();
        for held in (0..OWN).step_by(4096) {
            assert!(share.may_take(held));
            share.settle(held);
            assert_eq!(budget.held.load(Ordering::Relaxed), 0);
        }
    }
}
