//! The slow path's executor: plain `async` code, run on the worker's own thread between its turns.
//!
//! Tasks do not touch the engine's state. What they want done they put into a mailbox as [`Command`]s, which the core
//! takes out after the tasks have run; the answer wakes the task. So there is no re-entrance, and in the simulated
//! world the order of everything follows from the order of wake-ups, which is first in, first out.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BinaryHeap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use blockwork_memory::{Pool, Segment, Segments};
use slab::Slab;

use crate::bio::{Bio, Errno};
use crate::core::Owner;
use crate::counters::Counter;
use crate::env::Notify;
use crate::layer::{Defer, Layer, NodeId, Span};
use crate::leaf::Allocation;
use crate::lock::{Lock, LockSnapshot, tell_time};
use crate::notes::Prepared;
use crate::quiesce::Quiescence;
use crate::turn::{Turn, Turns};
use crate::units::{Nanos, Sector, Sectors};
use crate::volume::VolumeId;

/// What a task asks of the core.
pub(crate) enum Command {
    /// Run this bio on that stack.
    Submit { root: Arc<dyn Layer>, bio: Bio, reply: Reply },
    /// Run this bio on what a volume lies on whenever it is resolved.
    SubmitToVolume { volume: VolumeId, bio: Bio, reply: Reply },
    /// Run this bio, which has waited for its volume's turn, since a ragged write had claimed what it alters.
    SubmitInTurn { volume: VolumeId, owner: Owner, bio: Bio, turn: Turn },
    /// The slow path of a deferred bio has finished, that of these layers for these pieces: resolve it again.
    Resume { bio: u32, prepared: Prepared },
    /// The slow path has found nothing to do for it, so often in a row: resolve it again.
    ResumeIdle { bio: u32, rounds: u16 },
    /// It has failed, that of this layer for this piece, which one above may do without; none: it was to cure a failure already.
    Unprepared { bio: u32, of: Option<(NodeId, Span)>, errno: Errno },
    /// A part of a read is computed, or one of a write done, by this layer, but for what it refuses.
    CarriedOut { bio: u32, node: NodeId, refused: Vec<(Span, Errno)> },
    /// A leaf's queue has the turn to flush that it asked for.
    FlushTurn { leaf: crate::LeafId, turn: Turn },
    /// Count that of a layer.
    Count { node: NodeId, counter: Counter },
    /// Run this task too.
    Spawn(Pin<Box<dyn Future<Output = ()>>>),
    /// Say what that stack holds there.
    Allocation { root: Arc<dyn Layer>, sector: Sector, nr: Sectors, answer: Answer<(Allocation, Sectors)> },
    /// A client's operation that a task carried out as a whole is done.
    Finish { owner: Owner, op: crate::Op, result: Result<(), Errno>, data: Segments },
}

/// Where the answer to what a task has asked goes.
pub(crate) struct Answer<T>(Rc<RefCell<Asked<T>>>);

struct Asked<T> {
    answer: Option<T>,
    waker: Option<Waker>,
}

/// Where the answer to a task's bio goes.
pub(crate) type Reply = Answer<(Result<(), Errno>, Segments)>;

impl<T> Default for Answer<T> {
    fn default() -> Answer<T> {
        Answer(Rc::new(RefCell::new(Asked { answer: None, waker: None })))
    }
}

impl<T> Clone for Answer<T> {
    fn clone(&self) -> Answer<T> {
        Answer(self.0.clone())
    }
}

impl<T> Answer<T> {
    pub(crate) fn give(&self, answer: T) {
        let mut state = self.0.borrow_mut();
        state.answer = Some(answer);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

impl Reply {
    pub(crate) fn answer(&self, result: Result<(), Errno>, data: Segments) {
        self.give((result, data));
    }

    /// The result, if it is there; for those who are no task.
    pub(crate) fn take(&self) -> Option<Result<(), Errno>> {
        self.0.borrow_mut().answer.take().map(|(result, _)| result)
    }
}

impl<T> Future for Answer<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.borrow_mut();
        match state.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A bio that waits for a slow path which it shares with others ([`Layer::prepare_all`](crate::Layer::prepare_all)). Dropped before it
/// was let go, it fails.
pub struct Deferred {
    defer: Defer,
    /// None: it has gone.
    bio: Option<u32>,
    idle_rounds: u16,
    shared: Rc<Shared>,
}

impl Deferred {
    /// What the layer is to prepare for.
    pub fn span(&self) -> Span {
        self.defer.span
    }

    /// The bio is resolved again, in this turn of its worker; or it fails.
    pub fn go_on(mut self, result: Result<(), Errno>) {
        if let Err(errno) = result {
            return self.fail(errno);
        }
        if let Some(bio) = self.bio.take() {
            let prepared = Prepared::new();
            self.shared.commands.borrow_mut().push(Command::Resume { bio, prepared });
        }
    }

    /// Likewise, where the layer has found nothing to do for it. Mostly somebody else has done that meanwhile. A layer that finds nothing
    /// time after time, and defers the bio all the same, contradicts itself: so it is counted, and for the layer to end it.
    pub fn go_on_idle(mut self) {
        if let Some(bio) = self.bio.take() {
            let rounds = self.idle_rounds.saturating_add(1);
            self.shared.commands.borrow_mut().push(Command::ResumeIdle { bio, rounds });
        }
    }

    /// How often in a row, until now, it went on by [`Deferred::go_on_idle`], and was deferred again.
    pub fn idle_rounds(&self) -> u16 {
        self.idle_rounds
    }

    fn fail(&mut self, errno: Errno) {
        if let Some(bio) = self.bio.take() {
            let Defer { node, span, .. } = self.defer;
            self.shared.commands.borrow_mut().push(Command::Unprepared {
                bio,
                of: Some((node, span)),
                errno,
            });
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.fail(Errno::EIO);
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deferred").field(&self.defer).finish()
    }
}

/// What tasks share with their worker.
pub(crate) struct Shared {
    pub(crate) commands: RefCell<Vec<Command>>,
    now: Cell<Nanos>,
    timers: RefCell<BinaryHeap<Timer>>,
    timer_count: Cell<u64>,
    /// The worker is to end: pauses are over.
    stopping: Cell<bool>,
    /// See [`TaskContext::turn_of_few`].
    few: [Turns; FEW],
    /// How many have waited for one of them.
    few_waited: Cell<usize>,
    /// What layers keep on this worker.
    kept: RefCell<Vec<(NodeId, Rc<dyn Any>)>>,
}

/// How many tasks of a worker may have much memory at once.
const FEW: usize = 16;

struct Timer {
    at: Nanos,
    order: u64,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    /// Reversed, since `BinaryHeap` gives the greatest first.
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// What slow-path code may do: I/O through a layer, time, memory. Cloning is cheap.
#[derive(Clone)]
pub struct TaskContext {
    shared: Rc<Shared>,
    pool: Pool,
    quiescence: Quiescence,
    /// What the bio that is prepared for writes.
    written: Option<Rc<Segments>>,
}

impl TaskContext {
    /// Runs `bio` on the stack under `root`, and gives its memory back with the result.
    pub async fn bio(&self, root: &Arc<dyn Layer>, bio: Bio) -> (Result<(), Errno>, Segments) {
        self.start_bio(root, bio).await
    }

    /// As [`TaskContext::bio`]; it is on its way whether or not anybody waits for it.
    pub(crate) fn start_bio(&self, root: &Arc<dyn Layer>, bio: Bio) -> Reply {
        let reply = Reply::default();
        self.command(Command::Submit { root: root.clone(), bio, reply: reply.clone() });
        reply
    }

    /// As [`TaskContext::bio`], on a volume, whose stack may change while the bio waits.
    pub(crate) async fn volume_bio(&self, volume: VolumeId, bio: Bio) -> (Result<(), Errno>, Segments) {
        let reply = Reply::default();
        self.command(Command::SubmitToVolume { volume, bio, reply: reply.clone() });
        reply.await
    }

    /// In a [`Layer::prepare`] of a write: the data of the span that was deferred. It may still change, where a client's
    /// memory is shared with it, until the write is done.
    pub fn written(&self) -> Option<&[Segment]> {
        self.written.as_deref().map(|data| &data[..])
    }

    pub(crate) fn with_written(self, data: Segments) -> TaskContext {
        TaskContext { written: Some(Rc::new(data)), ..self }
    }

    /// The same without the data of the write that is prepared for: for what goes on when that is done.
    pub fn without_written(&self) -> TaskContext {
        TaskContext { written: None, ..self.clone() }
    }

    /// What the stack under `root` holds at `sector`, and how far (at most `nr`) that goes. A hole reads as zeros, on whichever way it is
    /// read, until it is written to.
    pub async fn allocation(
        &self,
        root: &Arc<dyn Layer>,
        sector: Sector,
        nr: Sectors,
    ) -> (Allocation, Sectors) {
        let answer = Answer::default();
        self.command(Command::Allocation { root: root.clone(), sector, nr, answer: answer.clone() });
        answer.await
    }

    /// The worker's stock of memory.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The environment's time, as of the worker's current turn.
    pub fn now(&self) -> Nanos {
        self.shared.now.get()
    }

    /// Waits for `duration` of the environment's time.
    pub async fn sleep(&self, duration: Nanos) {
        let at = self.now() + duration;
        std::future::poll_fn(|cx| if self.now() >= at { Poll::Ready(()) } else { self.wake_at(at, cx) })
            .await;
    }

    /// As `sleep`, for a task that looks after something now and then: true when the time has come, and false, at once, when
    /// the worker is to end, and so is the task.
    pub async fn pause(&self, duration: Nanos) -> bool {
        let at = self.now() + duration;
        std::future::poll_fn(|cx| {
            if self.shared.stopping.get() {
                return Poll::Ready(false);
            }
            if self.now() >= at { Poll::Ready(true) } else { self.wake_at(at, cx) }
        })
        .await
    }

    fn wake_at<T>(&self, at: Nanos, cx: &mut Context<'_>) -> Poll<T> {
        let order = self.shared.timer_count.replace(self.shared.timer_count.get() + 1);
        self.shared.timers.borrow_mut().push(Timer { at, order, waker: cx.waker().clone() });
        Poll::Pending
    }

    /// Waits until every bio that was resolved before this call, on any worker, has completed. What the caller published
    /// before is what all others go by. Not for a task that a bio under way waits for.
    pub async fn quiesce(&self) {
        self.quiescence.wait().await;
    }

    /// Reads that were resolved before this call and are under way still, on any worker, may find what nobody is to have: they are
    /// resolved again when they come to their end, by what the caller published before.
    pub fn distrust_reads(&self) {
        self.quiescence.distrust();
    }

    /// One of a few turns of this worker, for what takes much memory, and of which there may be any number: whichever is free, or else each in
    /// its order. Whoever has one must not wait for another.
    pub async fn turn_of_few(&self) -> Turn {
        let few = &self.shared.few;
        if let Some(turn) = few.iter().find_map(Turns::try_take) {
            return turn;
        }
        let waited = self.shared.few_waited.replace(self.shared.few_waited.get().wrapping_add(1));
        few[waited % FEW].take().await
    }

    /// What a layer keeps of a kind on this worker, for all of its tasks here; a new one the first time.
    pub fn kept<T: Default + 'static>(&self, node: NodeId) -> Rc<T> {
        let mut kept = self.shared.kept.borrow_mut();
        let mut of_layer = kept.iter().filter(|(of, _)| *of == node);
        if let Some(known) = of_layer.find_map(|(_, it)| it.clone().downcast().ok()) {
            return known;
        }
        let new = Rc::<T>::default();
        kept.push((node, new.clone()));
        new
    }

    /// Lets all other tasks go on that can, each once.
    pub async fn others_first(&self) {
        let mut has_waited = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut has_waited, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// What the workers of a server share.
    pub(crate) fn workers(&self) -> &Quiescence {
        &self.quiescence
    }

    /// Runs another task on this worker. The worker does not end before it does: one that lasts goes by
    /// [`TaskContext::pause`].
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.command(Command::Spawn(Box::pin(task)));
    }

    /// One more of what is counted of a layer.
    pub fn count(&self, node: NodeId, counter: Counter) {
        self.command(Command::Count { node, counter });
    }

    pub(crate) fn command(&self, command: Command) {
        self.shared.commands.borrow_mut().push(command);
    }
}

/// The worker's tasks.
pub(crate) struct Executor {
    tasks: Slab<Task>,
    ready: Arc<Ready>,
    context: TaskContext,
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    waker: Waker,
}

/// Tasks that were woken, possibly from another thread.
pub(crate) struct Ready {
    queue: Lock<Vec<usize>>,
    any: AtomicBool,
    notify: Arc<dyn Notify>,
}

impl Ready {
    pub(crate) fn snapshot(&self, name: String) -> LockSnapshot {
        self.queue.snapshot(name)
    }
}

struct TaskWaker {
    task: usize,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.queue.lock().push(self.task);
        self.ready.any.store(true, Ordering::Release); // pairs with the swap in `run`
        self.ready.notify.notify();
    }
}

impl Executor {
    pub(crate) fn new(notify: Arc<dyn Notify>, pool: Pool, quiescence: Quiescence) -> Executor {
        let shared = Shared {
            commands: RefCell::default(),
            now: Cell::default(),
            timers: RefCell::default(),
            timer_count: Cell::default(),
            stopping: Cell::default(),
            few: Default::default(),
            few_waited: Cell::default(),
            kept: RefCell::default(),
        };
        let ready = Ready { queue: Lock::default(), any: AtomicBool::new(false), notify };
        Executor {
            tasks: Slab::new(),
            ready: Arc::new(ready),
            context: TaskContext { shared: Rc::new(shared), pool, quiescence, written: None },
        }
    }

    pub(crate) fn ready(&self) -> &Arc<Ready> {
        &self.ready
    }

    pub(crate) fn context(&self) -> &TaskContext {
        &self.context
    }

    pub(crate) fn spawn(&mut self, future: impl Future<Output = ()> + 'static) {
        let entry = self.tasks.vacant_entry();
        let task = entry.key();
        let waker = Waker::from(Arc::new(TaskWaker { task, ready: self.ready.clone() }));
        entry.insert(Task { future: Box::pin(future), waker });
        self.ready.queue.lock().push(task);
        self.ready.any.store(true, Ordering::Release);
    }

    /// A bio that waits for what is done for many, and how often in a row nothing was done for it.
    pub(crate) fn deferred(&self, bio: u32, defer: Defer, idle_rounds: u16) -> Deferred {
        Deferred { defer, bio: Some(bio), idle_rounds, shared: self.context.shared.clone() }
    }

    /// The worker is to end: ends all pauses.
    pub(crate) fn stop(&mut self) {
        self.context.shared.stopping.set(true);
        // Who sleeps for another reason looks at the time, and sleeps on.
        for timer in self.context.shared.timers.borrow_mut().drain() {
            timer.waker.wake();
        }
    }

    /// Number of tasks that have not finished.
    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether some task could run now.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.any.load(Ordering::Acquire)
    }

    /// When the next sleeper wants to wake.
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        if self.tasks.is_empty() {
            return None;
        }
        self.context.shared.timers.borrow().peek().map(|timer| timer.at)
    }

    /// Tells the time to tasks, and wakes those whose time has come.
    #[inline]
    pub(crate) fn set_time(&mut self, now: Nanos) {
        tell_time(now);
        if self.tasks.is_empty() {
            self.context.shared.now.set(now);
            return;
        }
        self.context.shared.now.set(now);
        let mut timers = self.context.shared.timers.borrow_mut();
        while timers.peek().is_some_and(|timer| timer.at <= now) {
            if let Some(timer) = timers.pop() {
                timer.waker.wake();
            }
        }
    }

    /// Runs every task that is ready, once; tells whether there was any.
    pub(crate) fn run(&mut self) -> bool {
        // Mostly there is none: a load costs less than a swap.
        if !self.is_ready() || !self.ready.any.swap(false, Ordering::AcqRel) {
            return false;
        }
        let ready = std::mem::take(&mut *self.ready.queue.lock());
        for id in ready {
            // A task that has finished may have been woken once more: nothing to do then.
            let Some(task) = self.tasks.get_mut(id) else { continue };
            let waker = task.waker.clone();
            if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.tasks.remove(id);
            }
        }
        true
    }

    /// Takes the commands that tasks have left.
    #[inline]
    pub(crate) fn take_commands(&mut self, into: &mut Vec<Command>) {
        into.append(&mut self.context.shared.commands.borrow_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;
    impl Notify for Nobody {
        fn notify(&self) {}
    }

    fn executor() -> Executor {
        Executor::new(Arc::new(Nobody), Pool::new(0), Quiescence::default())
    }

    #[test]
    fn sleepers_wake_in_order_of_time() {
        let mut executor = executor();
        let order = Rc::new(RefCell::new(Vec::new()));
        for ms in [3, 1, 2] {
            let (cx, order) = (executor.context().clone(), order.clone());
            executor.spawn(async move {
                cx.sleep(Nanos::millis(ms)).await;
                order.borrow_mut().push(ms);
            });
        }
        executor.run();
        while let Some(at) = executor.next_timer() {
            executor.set_time(at);
            executor.run();
        }
        assert_eq!(*order.borrow(), [1, 2, 3]);
        assert_eq!(executor.len(), 0);
    }

    #[test]
    fn what_a_layer_keeps_is_found_again_by_its_kind_and_nobody_elses() {
        let executor = executor();
        let cx = executor.context();
        cx.kept::<Cell<u32>>(NodeId(1)).set(7);
        assert_eq!(cx.clone().kept::<Cell<u32>>(NodeId(1)).get(), 7);
        assert_eq!(cx.kept::<Cell<u32>>(NodeId(2)).get(), 0);
        assert!(!cx.kept::<Cell<bool>>(NodeId(1)).get());
    }

    #[test]
    fn others_that_can_go_on_come_first() {
        let mut executor = executor();
        let order = Rc::new(RefCell::new(Vec::new()));
        for n in 0..3 {
            let (cx, order) = (executor.context().clone(), order.clone());
            executor.spawn(async move {
                order.borrow_mut().push(n);
                cx.others_first().await;
                order.borrow_mut().push(n + 10);
            });
        }
        while executor.run() {}
        assert_eq!(*order.borrow(), [0, 1, 2, 10, 11, 12]);
    }

    #[test]
    fn of_many_tasks_only_few_go_on_at_once_and_all_in_their_order() {
        let mut executor = executor();
        let (begun, at_once, most) =
            (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        for n in 0..5 * FEW {
            let (cx, begun, at_once, most) =
                (executor.context().clone(), begun.clone(), at_once.clone(), most.clone());
            executor.spawn(async move {
                let _turn = cx.turn_of_few().await;
                begun.borrow_mut().push(n);
                at_once.set(at_once.get() + 1);
                most.set(most.get().max(at_once.get()));
                cx.sleep(Nanos::millis(1)).await;
                at_once.set(at_once.get() - 1);
            });
        }
        executor.run();
        assert_eq!(begun.borrow().len(), FEW);
        while let Some(at) = executor.next_timer() {
            executor.set_time(at);
            while executor.is_ready() {
                executor.run();
            }
        }
        assert_eq!((most.get(), executor.len()), (FEW, 0));
        assert_eq!(*begun.borrow(), (0..5 * FEW).collect::<Vec<_>>());
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "another thread is what this is about")]
    fn a_task_woken_from_another_thread_runs() {
        let mut executor = executor();
        let turns = crate::turn::Turns::default();
        let held = turns.try_take().unwrap();
        let (inner, done) = (turns.clone(), Rc::new(Cell::new(false)));
        let told = done.clone();
        executor.spawn(async move {
            let _turn = inner.take().await;
            told.set(true);
        });
        executor.run();
        assert!(!executor.is_ready());
        std::thread::spawn(move || drop(held)).join().unwrap();
        assert!(executor.run());
        assert!(done.get());
    }
}
