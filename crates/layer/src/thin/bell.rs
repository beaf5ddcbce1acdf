//! A bell: tasks wait until something is so, and look again whenever it rings.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The bell. Whoever changes what others wait for rings it afterwards.
#[derive(Debug, Default)]
pub(super) struct Bell(Mutex<Vec<Waker>>);

impl Bell {
    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn ring(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Polls `look`; if that gives nothing, the task is woken when it rings.
    pub fn poll<T>(&self, cx: &mut Context<'_>, look: impl Fn() -> Option<T>) -> Poll<T> {
        {
            let mut waiting = self.waiting();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
        }
        // Looked at last: what was so before the bell was rung is seen, and what is so later rings it.
        look().map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits until `look` gives something.
    pub async fn wait<T>(&self, look: impl Fn() -> Option<T>) -> T {
        if let Some(found) = look() {
            return found;
        }
        poll_fn(|cx| self.poll(cx, &look)).await
    }
}
