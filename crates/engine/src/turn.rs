//! Turns: a lock for slow paths that is held across waits, by tasks of any worker, first come first served.
//!
//! Strictly in order, so that a run in the simulator is the same each time and nobody starves: whoever ends a turn gives
//! it to the one that has waited longest. (Libraries' async locks let latecomers overtake, by the clock.)
//! How often turns were taken and waited for, and how long, is counted: see [`lock`](crate::lock).

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::lock::{LockSnapshot, Times, time};
use crate::units::Nanos;

/// Who may go on with something that only one may do at a time. Cloning shares it.
#[derive(Clone, Default)]
pub struct Turns(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    taken: bool,
    next_number: u64,
    waiting: VecDeque<(u64, Waker)>,
    /// Whose turn it is, given to a waiter that has not been polled since.
    given_to: Option<u64>,
    acquisitions: u64,
    contentions: u64,
    waits: Times,
    holds: Times,
}

/// The right to go on; dropped, it is the next one's.
pub struct Turn {
    turns: Turns,
    since: Option<Nanos>,
}

impl Turns {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held, and the state is whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn, if it is free and nobody waits for it.
    pub fn try_take(&self) -> Option<Turn> {
        let mut state = self.state();
        if state.taken {
            return None;
        }
        state.taken = true;
        state.acquisitions += 1;
        Some(self.turn())
    }

    fn turn(&self) -> Turn {
        Turn { turns: self.clone(), since: time() }
    }

    /// Waits for the turn.
    pub fn take(&self) -> Taking {
        Taking { turns: self.clone(), number: None, asked: None }
    }

    /// What was counted.
    pub fn snapshot(&self, name: impl Into<String>) -> LockSnapshot {
        let state = self.state();
        LockSnapshot {
            name: name.into(),
            contentions: state.contentions,
            acquisitions: state.acquisitions,
            waits: Some(state.waits),
            holds: Some(state.holds),
        }
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        write!(f, "Turns(taken: {}, waiting: {})", state.taken, state.waiting.len())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        state.holds.add(self.since);
        match state.waiting.pop_front() {
            None => state.taken = false,
            Some((number, waker)) => {
                state.given_to = Some(number);
                drop(state);
                waker.wake();
            }
        }
    }
}

/// The wait for a turn.
pub struct Taking {
    turns: Turns,
    /// Our number in the queue, once we are in it.
    number: Option<u64>,
    /// When it came to the queue.
    asked: Option<Nanos>,
}

impl Future for Taking {
    type Output = Turn;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Turn> {
        let turns = self.turns.clone();
        let mut state = turns.state();
        match self.number {
            None if !state.taken => {
                state.taken = true;
                state.acquisitions += 1;
                drop(state);
                return Poll::Ready(turns.turn());
            }
            None => {
                let number = state.next_number;
                state.next_number += 1;
                state.contentions += 1;
                state.waiting.push_back((number, cx.waker().clone()));
                (self.number, self.asked) = (Some(number), time());
            }
            Some(number) if state.given_to == Some(number) => {
                state.given_to = None;
                state.acquisitions += 1;
                state.waits.add(self.asked);
                self.number = None;
                drop(state);
                return Poll::Ready(turns.turn());
            }
            Some(number) => {
                let ours = state.waiting.iter_mut().find(|(waiting, _)| *waiting == number);
                ours.expect("who waits is in the queue").1.clone_from(cx.waker());
            }
        }
        Poll::Pending
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.turns.state();
        state.waiting.retain(|(waiting, _)| *waiting != number);
        if state.given_to == Some(number) {
            // It was given to us while we went away: pass it on.
            state.given_to = None;
            drop(state);
            drop(Turn { turns: self.turns.clone(), since: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::tell_time;

    fn poll(taking: &mut Pin<Box<Taking>>) -> Option<Turn> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn turns_are_taken_in_the_order_of_asking() {
        let turns = Turns::default();
        let first = turns.try_take().unwrap();
        let (mut second, mut third) = (Box::pin(turns.take()), Box::pin(turns.take()));
        assert!(poll(&mut second).is_none() && poll(&mut third).is_none());
        drop(first);
        assert!(turns.try_take().is_none(), "nobody overtakes");
        assert!(poll(&mut third).is_none());
        let held = poll(&mut second).unwrap();
        assert!(poll(&mut third).is_none());
        drop(held);
        drop(poll(&mut third).unwrap());
        assert!(turns.try_take().is_some());
    }

    #[test]
    fn who_goes_away_passes_the_turn_on() {
        let turns = Turns::default();
        let first = turns.try_take().unwrap();
        let (mut second, mut third) = (Box::pin(turns.take()), Box::pin(turns.take()));
        assert!(poll(&mut second).is_none() && poll(&mut third).is_none());
        drop(first);
        drop(second); // it was given to this one
        assert!(poll(&mut third).is_some());
        assert!(turns.try_take().is_some());
    }

    #[test]
    fn waits_and_holds_are_timed_by_the_workers_turns() {
        let turns = Turns::default();
        tell_time(Nanos(100));
        let first = turns.try_take().unwrap();
        let mut second = Box::pin(turns.take());
        assert!(poll(&mut second).is_none());
        tell_time(Nanos(107));
        drop(first);
        tell_time(Nanos(110));
        let held = poll(&mut second).unwrap();
        drop(held);
        drop(turns.try_take());
        let snapshot = turns.snapshot("pool");
        assert_eq!((snapshot.contentions, snapshot.acquisitions), (1, 3));
        let times = |count, min, max, total| {
            Some(Times { count, min: Nanos(min), max: Nanos(max), total: Nanos(total) })
        };
        assert_eq!((snapshot.waits, snapshot.holds), (times(1, 10, 10, 10), times(3, 0, 7, 7)));
    }
}
