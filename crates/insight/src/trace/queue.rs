//! The queue between the workers and one subscriber: bounded in bytes, never waited for by those who fill it.
//!
//! Its lock is held only to push or take pointers, so a worker meets at most a reader that is just doing that.

use std::collections::VecDeque;
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
    pub(super) batches: VecDeque<Batch>,
    pub(super) closed: bool,
    pub(super) waker: Option<Waker>,
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
        self.bytes.fetch_add(batch.bytes.len(), Relaxed);
        state.batches.push_back(batch);
        let waker = state.waker.take();
        drop(state);
        self.wake(waker);
        true
    }

    /// Takes all there is.
    pub(super) fn take(&self, state: &mut State) -> Vec<Batch> {
        self.bytes.store(0, Relaxed);
        state.batches.drain(..).collect()
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

    pub(super) fn count_dropped(&self, events: u64) {
        self.dropped.fetch_add(events, Relaxed);
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
