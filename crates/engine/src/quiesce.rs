//! Quiescence: waiting until everything that was under way has ended, on all workers, without stopping anyone.
//!
//! A slow path that withdraws something that resolved bios may rely on (a bit of a write-intent bitmap, a mapping) first
//! publishes the change, then waits here, then acts: every bio that was resolved before the change was seen has completed.
//!
//! How: there is one epoch for all workers. A worker looks at it once per turn, and counts its bios by the epoch in which they
//! were resolved. Whoever waits raises the epoch and wakes the workers; a worker whose bios of earlier epochs have all
//! completed says so. So a bio costs two additions to the worker's own memory, and the wait costs each worker one turn.
//!
//! Why it is right: what was published before the epoch was raised (release) is seen by every bio that is resolved after its
//! worker has seen the epoch (acquire); and bios resolved before that are waited for. A bio that waits for its slow
//! path is not resolved, and not counted, so slow paths may wait here.
//!
//! Who cannot wait, since what reads are on their way to is lost already, raises the epoch all the same: reads of earlier ones are
//! distrusted, and resolved again when they come to their end. That costs those only whose epoch is over. Another worker in the
//! middle of a turn may still give out reads of before until that ends.
//!
//! And who wants to know of some bios only raises it so that every worker looks what was published, once: `modify`.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::{Poll, Waker};

use crate::env::Notify;
use crate::lock::{Lock, LockSnapshot};

/// What the workers of one server share so that a slow path can wait for all of them. Cloning shares it.
#[derive(Clone, Default)]
pub struct Quiescence(Arc<Shared>);

#[derive(Default)]
struct Shared {
    epoch: AtomicU64,
    /// Reads of earlier epochs than this are distrusted.
    distrusted: AtomicU64,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    members: Vec<Member>,
    joined: u64,
    /// Who waits, and for which epoch.
    waiting: Vec<(u64, Waker)>,
    /// Who waits for the workers to have looked, and since which epoch.
    until_looked: Vec<(u64, Waker)>,
}

struct Member {
    number: u64,
    /// Its bios of all earlier epochs have completed.
    reached: u64,
    /// The epoch that it is in, and has looked what was published before.
    looked: u64,
    notify: Arc<dyn Notify>,
}

impl fmt::Debug for Quiescence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quiescence(epoch: {})", self.0.epoch.load(Ordering::Relaxed))
    }
}

impl Quiescence {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// What is known of the lock that is taken where somebody waits.
    pub fn locks(&self) -> LockSnapshot {
        self.0.state.snapshot("workers: quiescence")
    }

    /// One more worker.
    pub(crate) fn join(&self, notify: Arc<dyn Notify>) -> Attendance {
        let mut state = self.state();
        let epoch = self.0.epoch.load(Ordering::Acquire);
        let number = state.joined;
        state.joined += 1;
        state.members.push(Member { number, reached: epoch, looked: epoch, notify });
        drop(state);
        Attendance { all: self.clone(), number, epoch, count: 0, earlier: VecDeque::new() }
    }

    /// Begins an epoch; which.
    fn raise(&self, is_distrusted: bool) -> u64 {
        // One at a time, so that whoever sees the epoch sees what is distrusted.
        let state = self.state();
        let next = self.0.epoch.load(Ordering::Relaxed) + 1;
        if is_distrusted {
            self.0.distrusted.store(next, Ordering::Relaxed);
        }
        self.0.epoch.store(next, Ordering::Release);
        state.members.iter().for_each(|member| member.notify.notify());
        next
    }

    /// Reads that were resolved before this call are distrusted.
    pub(crate) fn distrust(&self) {
        self.raise(true);
    }

    /// Waits until every bio that was resolved before this call has completed.
    pub(crate) async fn wait(&self) {
        let wanted = self.raise(false);
        let mut known = None;
        std::future::poll_fn(|cx| {
            let mut state = self.state();
            if state.members.iter().all(|member| member.reached >= wanted) {
                return Poll::Ready(());
            }
            register(&mut state.waiting, wanted, &mut known, cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Waits until every worker has looked, in a turn that began after this call, what was published before it.
    pub(crate) async fn have_all_look(&self) {
        let wanted = self.raise(false);
        let mut known = None;
        std::future::poll_fn(|cx| {
            let mut state = self.state();
            if state.members.iter().all(|member| member.looked >= wanted) {
                return Poll::Ready(());
            }
            register(&mut state.until_looked, wanted, &mut known, cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Wakes those whose wait may be over. They look again themselves.
    fn wake(mut state: MutexGuard<'_, State>) {
        let least = |of: fn(&Member) -> u64| state.members.iter().map(of).min().unwrap_or(u64::MAX);
        let (reached, looked) = (least(|member| member.reached), least(|member| member.looked));
        let mut due: Vec<_> = state.waiting.extract_if(.., |(wanted, _)| *wanted <= reached).collect();
        due.extend(state.until_looked.extract_if(.., |(wanted, _)| *wanted <= looked));
        drop(state);
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// Has a task woken when that epoch is reached; once, however often it looks for itself. A task that waits for other things besides, as one that syncs
/// several windows does, is polled for each of them: woken as often as it had been polled, it would be polled so often again, each time
/// beside the next wait.
fn register(waiting: &mut Vec<(u64, Waker)>, wanted: u64, known: &mut Option<Waker>, waker: &Waker) {
    if known.as_ref().is_none_or(|known| !known.will_wake(waker)) {
        *known = Some(waker.clone());
        waiting.push((wanted, waker.clone()));
    }
}

/// One worker's part.
pub(crate) struct Attendance {
    all: Quiescence,
    number: u64,
    /// The epoch that this worker is in, and how many bios of it are under way.
    epoch: u64,
    count: u32,
    /// Earlier epochs that still have bios, oldest first, with how many.
    earlier: VecDeque<(u64, u32)>,
}

impl Attendance {
    /// Looks whether the epoch was raised. Once per turn, before anything is resolved. Where it was, the worker looks what was
    /// published, and says so by [`Attendance::has_looked`].
    #[inline]
    pub(crate) fn look(&mut self) -> bool {
        let epoch = self.all.0.epoch.load(Ordering::Acquire);
        if self.epoch == epoch {
            return false;
        }
        self.enter(epoch);
        true
    }

    /// This worker has looked what was published before the epoch that it is in.
    pub(crate) fn has_looked(&self) {
        let mut state = self.all.state();
        self.own(&mut state).looked = self.epoch;
        Quiescence::wake(state);
    }

    /// As [`Quiescence::distrust`]. This worker does so once it has looked.
    pub(crate) fn distrust(&self) {
        self.all.distrust();
    }

    fn own<'a>(&self, state: &'a mut State) -> &'a mut Member {
        let own = state.members.iter_mut().find(|member| member.number == self.number);
        own.expect("a worker belongs to those waited for until it ends")
    }

    #[cold]
    fn enter(&mut self, epoch: u64) {
        self.earlier.push_back((self.epoch, self.count));
        (self.epoch, self.count) = (epoch, 0);
        self.reach();
    }

    /// A bio was resolved; the epoch to give back to [`Attendance::end`].
    #[inline]
    pub(crate) fn begin(&mut self) -> u64 {
        self.count += 1;
        self.epoch
    }

    /// A bio that was resolved in `epoch` has come to its end. True: if it is a read, it is distrusted.
    #[inline]
    pub(crate) fn end(&mut self, epoch: u64) -> bool {
        if epoch == self.epoch {
            self.count -= 1;
            return false;
        }
        self.end_earlier(epoch);
        epoch < self.all.0.distrusted.load(Ordering::Relaxed)
    }

    #[cold]
    fn end_earlier(&mut self, epoch: u64) {
        let found = self.earlier.iter_mut().find(|(of, _)| *of == epoch);
        let (_, count) = found.expect("an epoch stays while it has bios");
        *count -= 1;
        if *count == 0 {
            self.reach();
        }
    }

    /// Drops epochs that are over, and says how far this worker is.
    fn reach(&mut self) {
        while self.earlier.front().is_some_and(|(_, count)| *count == 0) {
            self.earlier.pop_front();
        }
        let oldest = self.earlier.front().map_or(self.epoch, |(epoch, _)| *epoch);
        let mut state = self.all.state();
        self.own(&mut state).reached = oldest;
        Quiescence::wake(state);
    }
}

impl Drop for Attendance {
    /// A worker that has ended is not waited for.
    fn drop(&mut self) {
        let mut state = self.all.state();
        state.members.retain(|member| member.number != self.number);
        Quiescence::wake(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::Context;

    struct Nobody;
    impl Notify for Nobody {
        fn notify(&self) {}
    }

    fn done(wait: &mut Pin<&mut impl Future<Output = ()>>) -> bool {
        wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_wait_ends_when_all_that_was_under_way_has_ended() {
        let all = Quiescence::default();
        let (mut one, mut two) = (all.join(Arc::new(Nobody)), all.join(Arc::new(Nobody)));
        let (first, second) = (one.begin(), two.begin());
        let mut wait = pin!(all.wait());
        assert!(!done(&mut wait));
        one.look();
        two.look();
        let later = one.begin();
        one.end(first);
        assert!(!done(&mut wait), "the second worker's bio is still under way");
        two.end(second);
        assert!(done(&mut wait), "what began later is not waited for");
        one.end(later);
    }

    struct Count(AtomicU64);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_is_polled_for_other_things_meanwhile_is_woken_once() {
        let all = Quiescence::default();
        let mut one = all.join(Arc::new(Nobody));
        let under_way = one.begin();
        let woken = Arc::new(Count(AtomicU64::new(0)));
        let waker = Waker::from(woken.clone());
        let (mut wait, mut look) = (pin!(all.wait()), pin!(all.have_all_look()));
        for _ in 0..5 {
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert!(look.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        one.look();
        one.has_looked();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "all have looked");
        one.end(under_way);
        assert_eq!(woken.0.load(Ordering::Relaxed), 2, "and it has ended");
        assert!(done(&mut wait) && done(&mut look));
    }

    #[test]
    fn what_is_distrusted_was_resolved_before_and_nothing_else() {
        let all = Quiescence::default();
        let mut one = all.join(Arc::new(Nobody));
        let (before, under_way) = (one.begin(), one.begin());
        assert!(!one.end(before));
        all.distrust();
        one.look();
        let later = one.begin();
        assert!(one.end(under_way));
        let mut wait = pin!(all.wait());
        assert!(!done(&mut wait));
        one.look();
        assert!(!one.end(later), "only an epoch is over, in which nothing was lost");
        assert!(done(&mut wait));
    }

    #[test]
    fn a_worker_that_has_not_looked_may_still_rely_on_the_old_state() {
        let all = Quiescence::default();
        let mut one = all.join(Arc::new(Nobody));
        let mut wait = pin!(all.wait());
        assert!(!done(&mut wait));
        let late = one.begin();
        one.look();
        assert!(!done(&mut wait));
        one.end(late);
        assert!(done(&mut wait));
    }

    #[test]
    fn a_worker_that_has_ended_is_not_waited_for_and_waits_may_overlap() {
        let all = Quiescence::default();
        let (mut one, two) = (all.join(Arc::new(Nobody)), all.join(Arc::new(Nobody)));
        let old = one.begin();
        let (mut first, mut second) = (pin!(all.wait()), pin!(all.wait()));
        assert!(!done(&mut first) && !done(&mut second));
        one.look();
        let young = one.begin();
        let mut third = pin!(all.wait());
        assert!(!done(&mut third));
        one.look();
        drop(two);
        one.end(old);
        assert!(done(&mut first) && done(&mut second));
        assert!(!done(&mut third));
        one.end(young);
        assert!(done(&mut third));
    }
}
