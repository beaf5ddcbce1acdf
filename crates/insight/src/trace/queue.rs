//! The queue between the workers and one subscriber: bounded in bytes, never waited for by those who fill it.
//!
//! Its lock is held only to push or take pointers, or to note a loss, so a worker meets at most a reader that is just doing that.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::task::Waker;

use super::hub::QUEUE_BYTES_MAX;

/// Whole records of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The worker's number.
    pub cpu: u32,
    /// Encoded records, version 7.
    pub bytes: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    /// Of the batches inside. Changed under the lock; read without it, to see that there is no room.
    bytes: AtomicUsize,
    dropped: AtomicU64,
}

#[derive(Default)]
pub(super) struct State {
    batches: VecDeque<Batch>,
    /// By worker, what it has lost and nobody has been told of yet: behind all its batches above.
    missing: BTreeMap<u32, Missing>,
    pub(super) closed: bool,
    pub(super) waker: Option<Waker>,
}

/// Events of one worker that were dropped.
#[derive(Default)]
struct Missing {
    count: u64,
    /// The records that tell so.
    note: Vec<u8>,
}

impl State {
    /// Whether there is something to take.
    pub(super) fn has_news(&self) -> bool {
        !self.batches.is_empty() || !self.missing.is_empty()
    }
}

impl Queue {
    /// Whether there is no room for `bytes` more.
    pub(super) fn is_full(&self, bytes: usize) -> bool {
        self.bytes.load(Relaxed).saturating_add(bytes) > QUEUE_BYTES_MAX
    }

    /// Adds a batch, unless there is no room for it or nobody takes it any more; tells whether it was added.
    pub(super) fn push(&self, batch: Batch) -> bool {
        let mut state = self.lock();
        if state.closed || self.is_full(batch.bytes.len()) {
            return false;
        }
        if let Some(missing) = state.missing.remove(&batch.cpu) {
            self.add(&mut state, Batch { cpu: batch.cpu, bytes: missing.note });
        }
        self.add(&mut state, batch);
        let waker = state.waker.take();
        drop(state);
        self.wake(waker);
        true
    }

    fn add(&self, state: &mut State, batch: Batch) {
        self.bytes.fetch_add(batch.bytes.len(), Relaxed);
        state.batches.push_back(batch);
    }

    /// Counts events that a worker could not add, with `note`, which makes the records that tell so of their number. They stand before the
    /// worker's next batch; or at the end of what is taken before, since it may have no other.
    pub(super) fn lose(&self, cpu: u32, events: u64, note: impl FnOnce(u64) -> Vec<u8>) {
        self.dropped.fetch_add(events, Relaxed);
        let mut state = self.lock();
        if state.closed {
            // That it comes too late is not the reader's fault.
            return;
        }
        let missing = state.missing.entry(cpu).or_default();
        missing.count += events;
        missing.note = note(missing.count);
        let waker = state.waker.take();
        drop(state);
        self.wake(waker);
    }

    /// Takes all there is.
    pub(super) fn take(&self, state: &mut State) -> Vec<Batch> {
        self.bytes.store(0, Relaxed);
        let missing = std::mem::take(&mut state.missing);
        let missing = missing.into_iter().map(|(cpu, missing)| Batch { cpu, bytes: missing.note });
        state.batches.drain(..).chain(missing).collect()
    }

    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let waker = state.waker.take();
        drop(state);
        self.wake(waker);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    pub(super) fn filled(&self) -> &Condvar {
        &self.filled
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn wake(&self, waker: Option<Waker>) {
        self.filled.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
