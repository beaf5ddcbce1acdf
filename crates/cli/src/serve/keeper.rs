//! Threads that look after something for as long as the server runs.
//!
//! Invariant: none of them dies unheard. One that panics ends the server, as a worker does: nobody else would do what it has left
//! undone, and whoever opens the volumes next goes by what is on the disks.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

/// What is to be done where a thread cannot be made.
pub(super) const NO_THREAD: &str = "no thread can be made: raise the limit of processes (ulimit -u, or TasksMax= of the systemd unit, or a \
                                    container's limit of pids)";

/// Who hears what has panicked.
pub(super) type OnPanic = Arc<dyn Fn(&'static str) + Send + Sync>;

/// Such a thread.
pub(super) struct Keeper(JoinHandle<()>);

impl Keeper {
    /// Starts it: `what` is what people call it.
    pub(super) fn start(
        name: &str,
        what: &'static str,
        on_panic: OnPanic,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<Keeper> {
        let heard = Heard { what, on_panic };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _heard = heard;
            run();
        });
        Ok(Keeper(thread.context(NO_THREAD)?))
    }

    /// Waits for its end.
    pub(super) fn join(self) {
        // Of a panic it was told when it happened.
        let _ = self.0.join();
    }
}

/// Says of a thread that it has panicked.
struct Heard {
    what: &'static str,
    on_panic: OnPanic,
}

impl Drop for Heard {
    fn drop(&mut self) {
        if thread::panicking() {
            log::error!("{} has panicked", self.what);
            (self.on_panic)(self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn who_panics_is_heard_of_and_who_ends_is_not() {
        let (send, hear) = mpsc::channel();
        let on_panic: OnPanic = Arc::new(move |what| send.send(what).unwrap());
        Keeper::start("ends", "what ends", on_panic.clone(), || {}).unwrap().join();
        let panics = || panic!("as it should in this test");
        Keeper::start("panics", "what panics", on_panic, panics).unwrap().join();
        assert_eq!(hear.iter().collect::<Vec<_>>(), ["what panics"]);
    }
}
