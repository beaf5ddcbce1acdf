//! Which of a disk's front ends has it: a guest that moves to another virtual machine monitor on this machine has one there before it has
//! left the first.
//!
//! Invariants:
//! 1. Queues of one front end at most run at a time: what was answered by one is in the disk before the next takes a request.
//! 2. Who has the disk keeps it until all of its queues are at rest.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nobody's.
const FREE: u64 = 0;

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Turns {
    holder: AtomicU64,
    last: AtomicU64,
}

/// A front end's claim. The turn ends with it.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turns {
    /// One more front end, whose turn it is not.
    pub(super) fn join(&self) -> Turn<'_> {
        Turn { turns: self, number: self.last.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl Turn<'_> {
    /// Takes the turn, where nobody else has it; whether it is ours.
    pub(super) fn take(&self) -> bool {
        // Pairs with the Release in `end`: what its queues have done is done.
        let taken =
            self.turns.holder.compare_exchange(FREE, self.number, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok() || taken == Err(self.number)
    }

    /// Our queues are at rest: the next one may have it.
    pub(super) fn end(&self) {
        // Nothing changes where it is not ours.
        let _ = self.turns.holder.compare_exchange(self.number, FREE, Ordering::Release, Ordering::Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turn_is_one_front_ends_until_that_one_ends_it() {
        let turns = Turns::default();
        let (first, second) = (turns.join(), turns.join());
        assert!(first.take() && first.take());
        assert!(!second.take());
        second.end();
        assert!(!second.take(), "it was not its own to end");
        first.end();
        assert!(second.take() && !first.take());
        drop(second);
        assert!(first.take());
    }
}
