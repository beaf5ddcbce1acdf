//! A thread that sees to the memory of a front end's guest, beside everything else, as long as that memory is shared.
//!
//! Invariant: it has ended when its [`Caretaker`] has been dropped, so before the memory that it was given is taken away.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The thread, while this is there.
pub(super) struct Caretaker {
    rests: Arc<Rests>,
    thread: Option<JoinHandle<()>>,
}

/// What its work is broken off, or off for a while, by.
#[derive(Default)]
pub(super) struct Rests {
    ends: Mutex<bool>,
    ended: Condvar,
}

impl Rests {
    /// Waits so long; whether it is to go on then.
    pub(super) fn rest(&self, time: Duration) -> bool {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = self.ended.wait_timeout_while(ends, time, |ends| !*ends);
        !*ended.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Caretaker {
    /// Has a thread of that name do `work`, which ends when it is to.
    pub(super) fn start(name: &str, work: impl FnOnce(&Rests) + Send + 'static) -> io::Result<Caretaker> {
        let rests = Arc::new(Rests::default());
        let known = rests.clone();
        let thread = thread::Builder::new().name(name.into()).spawn(move || work(&known))?;
        Ok(Caretaker { rests, thread: Some(thread) })
    }
}

impl Drop for Caretaker {
    fn drop(&mut self) {
        *self.rests.ends.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rests.ended.notify_all();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("a thread that sees to a guest's memory has panicked");
        }
    }
}
