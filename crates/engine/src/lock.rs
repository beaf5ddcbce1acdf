//! What it costs that workers share something: how often each lock was taken, how often somebody had to wait for it, and for how long.
//! In the manner of Linux's lock_stat.
//!
//! A [`Lock`] is held only while something in memory is looked at or altered, never across a wait: it is counted. [`Turns`](crate::Turns) are
//! held across waits, and timed as well. The engine has no clock but its environment's, and that one is read once per turn of a worker:
//! so what begins and ends within one turn took no time, and who is no worker is counted, not timed.
//!
//! Invariant: who takes a lock pays for its count within the lock, and no bio that is mapped takes any.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::units::Nanos;

thread_local! {
    /// The time of the turn that the worker of this thread has.
    static TIME: Cell<Option<Nanos>> = const { Cell::new(None) };
}

/// A turn of this thread's worker begins.
#[inline]
pub(crate) fn tell_time(now: Nanos) {
    TIME.set(Some(now));
}

/// The time, on a worker's thread.
pub(crate) fn time() -> Option<Nanos> {
    TIME.get()
}

/// Lengths of time, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// How many there were.
    pub count: u64,
    /// The shortest.
    pub min: Nanos,
    /// The longest.
    pub max: Nanos,
    /// All together.
    pub total: Nanos,
}

impl Times {
    /// One more, which began at `since` and ends now; without a time of either, none.
    pub(crate) fn add(&mut self, since: Option<Nanos>) {
        if let (Some(since), Some(now)) = (since, time()) {
            let took = now.since(since);
            *self = self.and(&Times { count: 1, min: took, max: took, total: took });
        }
    }

    fn and(&self, other: &Times) -> Times {
        if self.count == 0 || other.count == 0 {
            return if self.count == 0 { *other } else { *self };
        }
        Times {
            count: self.count + other.count,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            total: self.total + other.total,
        }
    }

    /// Their mean; zero, if there were none.
    pub fn mean(&self) -> Nanos {
        Nanos(self.total.0.checked_div(self.count).unwrap_or(0))
    }
}

/// What was counted of a lock, or of several that do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSnapshot {
    /// Whose it is and what for, such as `vg/pool: metadata`.
    pub name: String,
    /// How often somebody had to wait for it.
    pub contentions: u64,
    /// How often it was taken.
    pub acquisitions: u64,
    /// How long who had to wait did; none: it is counted only.
    pub waits: Option<Times>,
    /// How long it was held, as far as it was given back.
    pub holds: Option<Times>,
}

impl LockSnapshot {
    /// Several as one.
    pub fn sum(name: impl Into<String>, all: impl IntoIterator<Item = LockSnapshot>) -> LockSnapshot {
        let none =
            LockSnapshot { name: name.into(), contentions: 0, acquisitions: 0, waits: None, holds: None };
        let both = |one: Option<Times>, other: Option<Times>| match (one, other) {
            (Some(one), Some(other)) => Some(one.and(&other)),
            (one, other) => one.or(other),
        };
        all.into_iter().fold(none, |sum, one| LockSnapshot {
            name: sum.name,
            contentions: sum.contentions + one.contentions,
            acquisitions: sum.acquisitions + one.acquisitions,
            waits: both(sum.waits, one.waits),
            holds: both(sum.holds, one.holds),
        })
    }
}

/// A mutex that counts. It cannot be poisoned: what it guards is whole between any two statements of its holders, which do not panic.
#[derive(Default)]
pub struct Lock<T> {
    inner: Mutex<T>,
    acquisitions: AtomicU64,
    contentions: AtomicU64,
}

impl<T> Lock<T> {
    /// A lock on that.
    pub const fn new(value: T) -> Lock<T> {
        Lock { inner: Mutex::new(value), acquisitions: AtomicU64::new(0), contentions: AtomicU64::new(0) }
    }

    /// Waits until nobody else has it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.contentions.fetch_add(1, Relaxed);
                self.inner.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        // Nobody else writes it now.
        self.acquisitions.store(self.acquisitions.load(Relaxed) + 1, Relaxed);
        guard
    }

    /// What was counted.
    pub fn snapshot(&self, name: impl Into<String>) -> LockSnapshot {
        let (contentions, acquisitions) = (self.contentions.load(Relaxed), self.acquisitions.load(Relaxed));
        LockSnapshot { name: name.into(), contentions, acquisitions, waits: None, holds: None }
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lock(taken {} times)", self.acquisitions.load(Relaxed))
    }
}

/// Whoever has locks to tell of.
type Source = Box<dyn Fn() -> Vec<LockSnapshot> + Send + Sync>;

/// Where all locks of a server are heard of.
#[derive(Default)]
pub(crate) struct Locks(Mutex<Vec<Source>>);

impl Locks {
    pub(crate) fn watch(&self, source: Source) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// Those that were ever taken, each once: who was waited for most comes first.
    pub(crate) fn snapshot(&self) -> Vec<LockSnapshot> {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<LockSnapshot> = sources.iter().flat_map(|source| source()).collect();
        all.retain(|lock| lock.acquisitions > 0);
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all.dedup_by(|one, other| one.name == other.name);
        all.sort_by_key(|lock| std::cmp::Reverse((lock.contentions, lock.acquisitions)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "another thread is what this is about")]
    fn who_has_to_wait_is_counted() {
        let lock = Lock::new(1);
        let held = lock.lock();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock() += 1);
            while lock.snapshot("").contentions == 0 {
                std::hint::spin_loop();
            }
            drop(held);
            other.join().unwrap();
        });
        assert_eq!(*lock.lock(), 2);
        let snapshot = lock.snapshot("it");
        assert_eq!((snapshot.contentions, snapshot.acquisitions, snapshot.waits), (1, 3, None));
    }

    #[test]
    fn a_report_has_each_lock_once_and_none_that_nobody_took() {
        let locks = Locks::default();
        let lock = |name: &str, contentions, acquisitions| {
            let name = name.to_owned();
            LockSnapshot { name, contentions, acquisitions, waits: None, holds: None }
        };
        locks.watch(Box::new(move || vec![lock("pool", 1, 9), lock("idle", 0, 0)]));
        locks.watch(Box::new(move || vec![lock("worker", 2, 3), lock("pool", 1, 9)]));
        let names: Vec<_> = locks.snapshot().into_iter().map(|lock| lock.name).collect();
        assert_eq!(names, ["worker", "pool"]);
    }

    #[test]
    fn a_sum_has_the_least_and_the_most_of_all() {
        let of = |ns: &[u64]| {
            let mut times = Times::default();
            for ns in ns {
                tell_time(Nanos(100 + ns));
                times.add(Some(Nanos(100)));
            }
            let (waits, holds) = (Some(times), None);
            LockSnapshot { name: String::new(), contentions: 0, acquisitions: 1, waits, holds }
        };
        let sum = LockSnapshot::sum("all", [of(&[]), of(&[5, 9]), of(&[1])]);
        let waits = Times { count: 3, min: Nanos(1), max: Nanos(9), total: Nanos(15) };
        assert_eq!((sum.acquisitions, sum.waits, waits.mean()), (3, Some(waits), Nanos(5)));
    }
}
