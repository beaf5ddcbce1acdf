//! Between the session, which hears what the front end wants, and its queues, which are ports of workers: commands one way, where
//! a queue has ended the other.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use blockwork_engine::{PortId, WorkerHandle};
use blockwork_uring::Uring;

use super::queue::{QueueParts, QueuePort};

/// What a queue is told.
#[derive(Debug)]
pub(super) enum Command {
    /// The driver is called by this eventfd from now on.
    Call(Option<Arc<OwnedFd>>),
    /// The front end hears of errors by this one.
    Error(Option<Arc<OwnedFd>>),
    /// Take no more requests; answer those that were taken; end.
    Stop,
}

#[derive(Default)]
struct State {
    port: Option<PortId>,
    commands: Vec<Command>,
    /// There is no port any more, or never will be.
    gone: bool,
    base: Option<u32>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There are commands.
    any: AtomicBool,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue's end: while it exists, there is a port, or will be one.
pub(super) struct Presence(Arc<Shared>);

impl Presence {
    /// What there is to do. Costs a load, if nothing.
    #[inline]
    pub(super) fn commands(&self) -> Vec<Command> {
        if self.0.any.load(Ordering::Acquire) && self.0.any.swap(false, Ordering::AcqRel) {
            return std::mem::take(&mut self.0.state().commands);
        }
        Vec::new()
    }

    /// The queue has answered everything, and ends where `base` says.
    pub(super) fn ended(&self, base: u32) {
        self.0.state().base = Some(base);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.gone = true;
        state.commands.clear();
        drop(state);
        self.0.changed.notify_all();
    }
}

/// The session's end.
pub(super) struct QueueHandle {
    shared: Arc<Shared>,
    worker: WorkerHandle<Uring>,
}

impl QueueHandle {
    /// Has `worker` serve a queue, made of what `parts` gives.
    pub(super) fn start(
        worker: &WorkerHandle<Uring>,
        parts: impl FnOnce(Presence) -> QueueParts,
    ) -> QueueHandle {
        let shared = Arc::new(Shared::default());
        let parts = parts(Presence(shared.clone()));
        let told = shared.clone();
        worker.run(move |worker| {
            let id = worker.add_port(Box::new(QueuePort::new(parts)));
            told.state().port = Some(id);
        });
        QueueHandle { shared, worker: worker.clone() }
    }

    /// Has the queue do something, soon. Of what it was told before, and has not heard yet, the same is of no use any more: a front end may send
    /// descriptors to call by faster than a busy worker takes them.
    pub(super) fn tell(&self, command: Command) {
        let mut state = self.shared.state();
        if state.gone {
            return;
        }
        let kind = std::mem::discriminant(&command);
        state.commands.retain(|other| std::mem::discriminant(other) != kind);
        state.commands.push(command);
        drop(state);
        if self.shared.any.swap(true, Ordering::AcqRel) {
            return; // it is called already, and looks after that
        }
        let shared = self.shared.clone();
        self.worker.run(move |worker| {
            let port = shared.state().port;
            if let Some(port) = port {
                worker.poke(port);
            }
        });
    }

    /// Ends the queue, and waits until all that it has taken is answered. Where to go on; `None` if nobody knows, because the
    /// ring was never there or the worker has died.
    pub(super) fn stop(self) -> Option<u32> {
        self.tell(Command::Stop);
        let state = self.shared.state();
        let ended = self.shared.changed.wait_while(state, |state| !state.gone);
        ended.unwrap_or_else(PoisonError::into_inner).base
    }
}
