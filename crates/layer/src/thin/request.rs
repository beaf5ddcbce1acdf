//! What bios wait for that need the pool's turn, and how they hear that it is done.
//!
//! A task says what it wants, one thing or many, and waits for answers or for the turn, whichever comes first. Whoever gets the turn leads:
//! it serves all that wait, until it has its own answers. So many bios share one batch, and one commit.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use blockwork_engine::{Errno, Flags, Lock, LockSnapshot, Op, Sector, Taking, Turn, Turns};

use super::fill::Part;
use super::target::Volume;

/// Parts of blocks that a write is to fill: by data block.
pub(super) type Promises = Vec<(u64, Part)>;

/// What came of a request.
#[derive(Debug)]
pub(super) enum Got {
    /// Blocks, or some of them, and what of them it is to fill.
    Blocks(Promises),
    /// There was nothing to do for it.
    Nothing,
}

/// How it stands with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Waiting,
    /// It waits for space: nothing can be done for it.
    Parked,
    Done,
}

/// What a task has asked for, by number, and the answers to that.
#[derive(Debug)]
pub(super) struct Answers(Mutex<State>);

/// An answer, and to which request.
pub(super) type Given = (usize, Result<Got, Errno>);

#[derive(Debug)]
struct State {
    each: Vec<Standing>,
    /// How many are [`Standing::Waiting`].
    waiting: usize,
    /// Answers that the task has not taken.
    given: Vec<Given>,
    /// How many answers it still has to take.
    left: usize,
    waker: Option<Waker>,
}

/// Where the answer to one request goes.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    of: Arc<Answers>,
    nth: usize,
}

impl Answer {
    fn set(&self, standing: Standing, given: Option<Result<Got, Errno>>) {
        let mut state = self.of.state();
        let State { each, waiting, .. } = &mut *state;
        let before = std::mem::replace(&mut each[self.nth], standing);
        debug_assert_ne!(before, Standing::Done, "one answer is enough");
        *waiting =
            *waiting + usize::from(standing == Standing::Waiting) - usize::from(before == Standing::Waiting);
        state.given.extend(given.map(|result| (self.nth, result)));
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub fn give(&self, result: Result<Got, Errno>) {
        self.set(Standing::Done, Some(result));
    }
}

impl Answers {
    /// Those to so many requests.
    pub fn new(count: usize) -> Arc<Answers> {
        let each = vec![Standing::Waiting; count];
        let state = State { each, waiting: count, given: Vec::new(), left: count, waker: None };
        Arc::new(Answers(Mutex::new(state)))
    }

    /// Where the answer to request number `nth` goes.
    pub fn to(self: &Arc<Answers>, nth: usize) -> Answer {
        Answer { of: self.clone(), nth }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for answers, or for the turn; not for the turn while all that is open is parked.
    pub async fn wait(&self, turns: &Turns) -> Outcome {
        let mut taking: Option<Taking> = None;
        poll_fn(|cx| self.poll(turns, &mut taking, cx)).await
    }

    fn poll(&self, turns: &Turns, taking: &mut Option<Taking>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.state();
        if !state.given.is_empty() {
            return Poll::Ready(Outcome::Answers(state.take()));
        }
        state.waker = Some(cx.waker().clone());
        let is_parked = state.waiting == 0;
        drop(state);
        if is_parked {
            *taking = None;
            return Poll::Pending;
        }
        let turn = Pin::new(taking.get_or_insert_with(|| turns.take())).poll(cx);
        turn.map(Outcome::Lead)
    }

    /// The answers that are there and were not taken.
    pub fn take(&self) -> Vec<Given> {
        self.state().take()
    }

    /// Whether whoever leads has to go on for one of them.
    pub fn is_waiting(&self) -> bool {
        self.state().waiting > 0
    }

    /// Whether there are answers that were not taken, or given.
    pub fn is_open(&self) -> bool {
        self.state().left > 0
    }
}

impl State {
    fn take(&mut self) -> Vec<Given> {
        self.left -= self.given.len();
        std::mem::take(&mut self.given)
    }
}

/// What waiting came to.
pub(super) enum Outcome {
    Answers(Vec<Given>),
    Lead(Turn),
}

/// A write that needs blocks of its own.
#[derive(Clone, Debug)]
pub(super) struct Want {
    pub volume: Arc<Volume>,
    pub op: Op,
    pub flags: Flags,
    pub start: Sector,
    pub end: Sector,
    pub answer: Answer,
}

impl Want {
    /// Whether a block that it covers has its content afterwards, if it succeeds.
    pub fn fills(&self) -> bool {
        // What may be refused because it is not fast is no content.
        self.op == Op::Write || !self.flags.has(Flags::FAST_ONLY)
    }
}

/// A flush that needs what was changed until some transaction to be durable.
#[derive(Clone, Debug)]
pub(super) struct Flush {
    pub transaction: u64,
    pub answer: Answer,
}

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Requests(Lock<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    wants: Vec<Want>,
    flushes: Vec<Flush>,
    parked: Vec<Want>,
    /// What can be had only after a commit is wanted.
    commit_first: bool,
}

/// What whoever leads is to do.
#[derive(Debug)]
pub(super) struct Work {
    pub wants: Vec<Want>,
    pub flushes: Vec<Flush>,
    pub commit_first: bool,
}

impl Requests {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock()
    }

    /// What is known of its lock.
    pub fn locks(&self, name: String) -> LockSnapshot {
        self.0.snapshot(name)
    }

    pub fn want(&self, wants: impl Iterator<Item = Want>) {
        self.waiting().wants.extend(wants);
    }

    pub fn flush(&self, flush: Flush) {
        self.waiting().flushes.push(flush);
    }

    /// Takes everything that waits for whoever leads.
    pub fn take(&self) -> Work {
        let mut waiting = self.waiting();
        Work {
            wants: std::mem::take(&mut waiting.wants),
            flushes: std::mem::take(&mut waiting.flushes),
            commit_first: std::mem::take(&mut waiting.commit_first),
        }
    }

    /// These could not be served without a commit.
    pub fn again_after_commit(&self, wants: Vec<Want>) {
        let mut waiting = self.waiting();
        waiting.commit_first = true;
        waiting.wants.extend(wants);
    }

    /// These wait for space.
    pub fn park(&self, wants: Vec<Want>) {
        wants.iter().for_each(|want| want.answer.set(Standing::Parked, None));
        self.waiting().parked.extend(wants);
    }

    /// Those that wait for space are served again.
    pub fn resume(&self) {
        let mut waiting = self.waiting();
        let parked = std::mem::take(&mut waiting.parked);
        waiting.wants.extend(parked.iter().cloned());
        drop(waiting);
        parked.iter().for_each(|want| want.answer.set(Standing::Waiting, None));
    }

    /// Those that wait for space hear that there is none.
    pub fn fail_parked(&self, errno: Errno) {
        let parked = std::mem::take(&mut self.waiting().parked);
        parked.iter().for_each(|want| want.answer.give(Err(errno)));
    }
}
