//! Thin pools that are extended by themselves when they fill up, as LVM's dmeventd does it: by
//! `--set thin-pool:thin_pool_autoextend_threshold=PERCENT`.
//!
//! A pool calls when the mark is passed. A thread of the server then makes the change as a person would: in the group's text first, so that
//! whoever opens the group next finds the pool as large as it is.
//!
//! Invariants: (1) what the thread has not looked at yet is one word for each pool that there is, however often pools call meanwhile;
//! (2) after each call the pool is looked at once more, or is being called for still; (3) of the group nothing is taken that the pool does
//! not make use of.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use anyhow::Result;
use blockwork_daemon::{GroupAnswer, GroupRequest, Groups, Refusal};
use blockwork_format::escape;
use blockwork_layer::thin::{Mode, Pool};
use blockwork_volume::lvm::edit::{Change, Resize};
use blockwork_volume::lvm::served::GrowingPool;

use super::groups::ServedGroups;
use super::keeper::{Keeper, OnPanic};

/// What the thread hears, as far as it has not looked at it.
struct Inbox<T> {
    /// Pools that may have to be extended, each once; the one that has called first comes first.
    filling: Vec<Weak<T>>,
    /// The server stops.
    stops: bool,
}

/// Calls the thread.
struct Calls<T> {
    inbox: Mutex<Inbox<T>>,
    come: Condvar,
}

impl<T> Default for Calls<T> {
    fn default() -> Calls<T> {
        Calls { inbox: Mutex::new(Inbox { filling: Vec::new(), stops: false }), come: Condvar::new() }
    }
}

impl<T> Calls<T> {
    fn inbox(&self) -> MutexGuard<'_, Inbox<T>> {
        // Nothing panics while it is held.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called by whoever has the pool's turn: it takes no time.
    fn call(&self, pool: &Arc<T>) {
        let mut inbox = self.inbox();
        // Those that have gone need nobody, and would be more and more.
        inbox.filling.retain(|known| known.strong_count() > 0);
        if !inbox.filling.iter().any(|known| known.as_ptr() == Arc::as_ptr(pool)) {
            inbox.filling.push(Arc::downgrade(pool));
        }
        drop(inbox);
        self.come.notify_one();
    }

    fn stop(&self) {
        self.inbox().stops = true;
        self.come.notify_one();
    }

    fn stops(&self) -> bool {
        self.inbox().stops
    }

    /// Waits for the next pool; none: the server stops. What calls from then on is heard of anew: it may not have been looked at.
    fn next(&self) -> Option<Arc<T>> {
        let mut inbox = self.inbox();
        loop {
            if inbox.stops {
                return None;
            }
            while !inbox.filling.is_empty() {
                if let Some(pool) = inbox.filling.remove(0).upgrade() {
                    return Some(pool);
                }
            }
            inbox = self.come.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Calls the thread that extends pools.
#[derive(Clone, Default)]
pub(super) struct Caller(Arc<Calls<Pool>>);

impl Caller {
    /// A pool may have to be extended.
    pub(super) fn call(&self, pool: &Arc<Pool>) {
        self.0.call(pool);
    }
}

/// The thread that extends pools.
pub(super) struct Autoextender {
    caller: Caller,
    thread: Keeper,
}

impl Autoextender {
    /// Looks after the pools of these groups from now on.
    pub(super) fn start(groups: Arc<ServedGroups>, on_panic: OnPanic) -> Result<Autoextender> {
        let caller = Caller::default();
        groups.call_when_filling(caller.clone());
        let calls = caller.0.clone();
        let what = "the thread that extends thin pools";
        let thread = Keeper::start("autoextend", what, on_panic, move || {
            while let Some(pool) = calls.next() {
                look_after(&groups, &pool, &calls);
            }
        })?;
        Ok(Autoextender { caller, thread })
    }

    /// Ends it; a change that is being made is made to its end.
    pub(super) fn stop(self) {
        self.caller.0.stop();
        self.thread.join();
    }
}

/// A part of a pool that fills up.
#[derive(Clone, Copy)]
enum Part {
    Map,
    Data,
}

/// Extends a pool until it is not beyond its mark any more, there is no room, or the server stops.
fn look_after(groups: &ServedGroups, pool: &Arc<Pool>, calls: &Calls<Pool>) {
    // A map that is as large as it may be does not keep the data from growing.
    let (mut is_map_stuck, mut is_data_stuck) = (false, false);
    while !calls.stops()
        && let Some(now) = groups.growing_pool(pool)
    {
        let (data, map) = pool.is_beyond(now.autoextend.threshold);
        match () {
            // The map first: it has to have room for what is counted of the data.
            () if map && !is_map_stuck => is_map_stuck = !grow(groups, pool, &now, Part::Map),
            () if data && !is_data_stuck => is_data_stuck = !grow(groups, pool, &now, Part::Data),
            () if data || map => return,
            () => return pool.watch_again(),
        }
    }
}

/// Extends a part of a pool; whether the pool makes use of that. One that cannot (it is read-only for good) would take all that the group
/// has left, step by step.
fn grow(groups: &ServedGroups, pool: &Pool, now: &GrowingPool, part: Part) -> bool {
    let (what, extents) = match part {
        Part::Map => ("map", now.metadata_extents),
        Part::Data => ("data", now.data_extents),
    };
    let name = format!("{}/{}", escape(&now.group), escape(&now.name));
    let stuck = |why: &str| {
        let threshold = now.autoextend.threshold;
        log::warn!(
            "{name}: more than {threshold}% of its {what} is in use, and it cannot be extended: {why}"
        );
        false
    };
    let before = pool.status();
    if before.mode == Mode::ReadOnly {
        return stuck(&format!("it is read-only: {}", before.why_read_only.unwrap_or_default()));
    }
    let answer = match extend(groups, now, extents, part) {
        Ok(answer) => answer,
        Err(error) => return stuck(&error.to_string()),
    };
    log::info!("{}", answer.said);
    answer.notes.iter().for_each(|note| log::warn!("{note}"));
    let after = pool.status();
    let counts_more =
        (after.data_blocks, after.metadata_blocks) != (before.data_blocks, before.metadata_blocks);
    // By less than a block it may have grown without counting more.
    if !counts_more && !answer.notes.is_empty() {
        return stuck(
            "the text of its group has it larger now, and the pool does not count that; start the server anew",
        );
    }
    true
}

/// Extends by the share that was asked for, or by all that there is.
fn extend(
    groups: &ServedGroups,
    now: &GrowingPool,
    extents: u64,
    part: Part,
) -> Result<GroupAnswer, Refusal> {
    let wanted = extents.saturating_mul(now.autoextend.percent).div_ceil(100).max(1);
    let more = if now.free_extents > 0 { wanted.min(now.free_extents) } else { wanted };
    let (volume, to) = (now.name.clone(), Resize::MoreExtents(more));
    let change = match part {
        Part::Map => Change::ResizePoolMetadata { volume, to },
        Part::Data => Change::Resize { volume, to, may_shrink: false },
    };
    let request = GroupRequest { group: now.group.clone(), change, serve: false, command: None };
    groups.change(&request)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    /// What stands for pools: whether they are beyond their mark.
    type Pools = [Arc<AtomicU64>; 3];

    fn pools() -> Pools {
        std::array::from_fn(|_| Arc::default())
    }

    fn waiting(calls: &Calls<AtomicU64>) -> usize {
        calls.inbox().filling.len()
    }

    #[test]
    fn a_pool_that_calls_again_and_again_is_one_word_and_comes_in_its_turn() {
        let (calls, pools) = (Calls::default(), pools());
        for _ in 0..100_000 {
            pools.iter().for_each(|pool| calls.call(pool));
        }
        assert_eq!(waiting(&calls), 3);
        for pool in &pools {
            assert!(calls.next().is_some_and(|next| Arc::ptr_eq(&next, pool)));
            // While it is looked after: for the next look.
            calls.call(pool);
        }
        assert_eq!(waiting(&calls), 3);
    }

    #[test]
    fn pools_that_have_gone_take_no_room_and_nobody_looks_after_them() {
        let (calls, last) = (Calls::default(), Arc::default());
        for _ in 0..1000 {
            calls.call(&Arc::new(AtomicU64::new(0)));
        }
        calls.call(&last);
        assert_eq!(waiting(&calls), 1);
        let gone = Arc::default();
        calls.call(&gone);
        drop(gone);
        assert!(calls.next().is_some_and(|next| Arc::ptr_eq(&next, &last)));
        calls.call(&last);
        assert!(calls.next().is_some_and(|next| Arc::ptr_eq(&next, &last)));
    }

    #[test]
    fn a_server_that_stops_looks_after_nobody_who_has_called_before() {
        let (calls, pools) = (Calls::default(), pools());
        calls.call(&pools[0]);
        assert!(!calls.stops());
        calls.stop();
        assert!(calls.stops() && calls.next().is_none());
    }

    #[test]
    fn no_call_is_lost_whenever_it_comes() {
        const ROUNDS: u64 = 20_000;
        let (calls, pools) = (Arc::<Calls<AtomicU64>>::default(), pools());
        let of_thread = calls.clone();
        let keeper = thread::spawn(move || {
            while let Some(pool) = of_thread.next() {
                pool.store(0, Ordering::SeqCst);
            }
        });
        thread::scope(|scope| {
            let calls = &calls;
            for pool in &pools {
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        // It becomes too full, and calls. Whoever looks after it comes, however busy it was at that moment.
                        pool.store(round, Ordering::SeqCst);
                        calls.call(pool);
                        let start = Instant::now();
                        while round % 64 == 0 && pool.load(Ordering::SeqCst) != 0 {
                            assert!(start.elapsed() < Duration::from_secs(60), "nobody has come");
                            thread::yield_now();
                        }
                    }
                });
            }
        });
        calls.stop();
        keeper.join().unwrap();
    }
}
