//! What the clients of a server may hold together.
//!
//! Each has [`OWN`] to itself. Beyond that, what it holds counts against the budget of all; where that is used up, it takes no further request
//! until it holds less than its own again. So whoever asks for little at a time never hears of the others, and whoever asks for much goes on with
//! a request at a time. Nobody ever waits for another one to let go: a client that does not read its answers holds what it holds, and stops nobody.
//!
//! Invariant: all hold no more than the budget, and [`OWN`] and a request each.
//!
//! The budget is counted in steps of [`STEP`], so that small requests do not touch what all workers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What each client has to itself, bytes.
pub(super) const OWN: usize = 1 << 20;
/// How exactly the rest is counted, bytes.
const STEP: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: usize,
    held: AtomicUsize,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Arc<Budget> {
        Arc::new(Budget { bytes, held: AtomicUsize::new(0) })
    }

    /// For one more client.
    pub(super) fn share(self: &Arc<Budget>) -> Share {
        Share { budget: self.clone(), counted: 0 }
    }
}

/// What one client has of it.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    counted: usize,
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
}

impl Drop for Share {
    fn drop(&mut self) {
        self.settle(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_up_leaves_each_its_own_and_comes_back() {
        let budget = Budget::new(4 * STEP);
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
    fn small_requests_touch_nothing_that_is_shared() {
        let budget = Budget::new(0);
        let mut share = budget.share();
        for held in (0..OWN).step_by(4096) {
            assert!(share.may_take(held));
            share.settle(held);
            assert_eq!(budget.held.load(Ordering::Relaxed), 0);
        }
    }
}
