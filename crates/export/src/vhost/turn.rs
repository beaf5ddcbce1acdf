//! Which of a disk's front ends has it: a guest that moves to another virtual machine monitor on this machine has one there before it has
//! left the first. None has it while the disk is away: another machine's server may have it then (`server`).
//!
//! Invariants:
//! 1. Queues of one front end at most run at a time: what was answered by one is in the disk before the next takes a request.
//! 2. Who has the disk keeps it until all of its queues are at rest.
//! 3. Before it has come, and after it has gone, no queue runs.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Nobody's.
const FREE: u64 = 0;

/// The disk is away. No front end has this number.
const AWAY: u64 = u64::MAX;

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct Turns {
    holder: AtomicU64,
    last: AtomicU64,
    /// Front ends that wait until another one's turn ends.
    waiting: AtomicUsize,
}

/// What becomes of a wish to have the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is ours.
    Ours,
    /// Another front end has it.
    Others,
    /// It is not here.
    Away,
}

/// A front end's claim. The turn ends with it.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turns {
    /// Of a disk that is away.
    pub(super) fn away() -> Turns {
        Turns { holder: AtomicU64::new(AWAY), last: AtomicU64::new(0), waiting: AtomicUsize::new(0) }
    }

    /// One more front end, whose turn it is not.
    pub(super) fn join(&self) -> Turn<'_> {
        Turn { turns: self, number: self.last.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// The disk is here.
    pub(super) fn come(&self) {
        let _ = self.holder.compare_exchange(AWAY, FREE, Ordering::Release, Ordering::Relaxed);
    }

    /// The disk goes, unless a front end has it; whether it is away now.
    pub(super) fn go(&self) -> bool {
        // Pairs with the Release in `end`, as `take` does.
        let gone = self.holder.compare_exchange(FREE, AWAY, Ordering::Acquire, Ordering::Relaxed);
        gone.is_ok() || gone == Err(AWAY)
    }

    pub(super) fn is_away(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == AWAY
    }
}

/// That a front end waits until another one's turn ends.
#[derive(Debug)]
pub(super) struct Waiting<'a>(&'a Turns);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a> Turn<'a> {
    /// It is another front end's turn, for whose end this one waits.
    pub(super) fn wait(&self) -> Waiting<'a> {
        self.turns.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self.turns)
    }

    /// Whether it is ours, and another front end waits for its end.
    pub(super) fn is_waited_for(&self) -> bool {
        self.turns.waiting.load(Ordering::Relaxed) > 0
            && self.turns.holder.load(Ordering::Relaxed) == self.number
    }

    /// Takes the turn, where nobody else has it.
    pub(super) fn take(&self) -> Taken {
        // Pairs with the Release in `end`: what its queues have done is done; and with that in `come`.
        let taken =
            self.turns.holder.compare_exchange(FREE, self.number, Ordering::Acquire, Ordering::Relaxed);
        match taken {
            Err(AWAY) => Taken::Away,
            Err(other) if other != self.number => Taken::Others,
            _ => Taken::Ours,
        }
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
        let turns = Turns::away();
        turns.come();
        let (first, second) = (turns.join(), turns.join());
        assert_eq!([first.take(), first.take()], [Taken::Ours; 2]);
        assert_eq!(second.take(), Taken::Others);
        second.end();
        assert_eq!(second.take(), Taken::Others, "it was not its own to end");
        first.end();
        assert_eq!([second.take(), first.take()], [Taken::Ours, Taken::Others]);
        let waiting = first.wait();
        assert_eq!([first.is_waited_for(), second.is_waited_for()], [false, true]);
        drop(waiting);
        assert!(!second.is_waited_for());
        drop(second);
        assert_eq!(first.take(), Taken::Ours);
    }

    #[test]
    fn a_disk_that_is_away_is_nobodys_and_one_that_somebody_has_does_not_go() {
        let turns = Turns::away();
        let turn = turns.join();
        assert_eq!(turn.take(), Taken::Away);
        turn.end();
        assert!(turns.is_away() && turns.go(), "it is away all the same");
        turns.come();
        assert_eq!(turn.take(), Taken::Ours);
        assert!(!turns.go() && !turns.is_away());
        turns.come();
        assert!(!turns.go(), "it is somebody's as before");
        turn.end();
        assert!(turns.go());
        assert_eq!(turn.take(), Taken::Away);
    }
}
