//! What bios wait for that need the pool's turn, and how they hear that it is done.
//!
//! Each says what it wants, and waits for the answer or for the turn, whichever comes first. Whoever gets the turn leads: it serves all
//! that wait, until it has its own answer. So many bios share one batch, and one commit.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use blockwork_engine::{Errno, Flags, Lock, LockSnapshot, Op, Sector, Taking, Turn, Turns};

use super::fill::Part;
use super::target::Volume;

/// Parts of blocks that a write is to fill: by data block.
pub(super) type Promises = Vec<(u64, Part)>;

/// How it stands with a request.
#[derive(Debug, Default)]
enum Standing {
    #[default]
    Waiting,
    /// It waits for space: nothing can be done for it.
    Parked,
    Done(Result<Promises, Errno>),
}

/// Where the answer to a request goes.
#[derive(Debug, Default)]
pub(super) struct Answer {
    state: Mutex<(Standing, Option<Waker>)>,
}

impl Answer {
    fn state(&self) -> MutexGuard<'_, (Standing, Option<Waker>)> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, standing: Standing) {
        let waker = {
            let mut state = self.state();
            state.0 = standing;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub fn give(&self, result: Result<Promises, Errno>) {
        self.set(Standing::Done(result));
    }

    /// Waits for the answer, or for the turn; not for the turn while it is parked.
    pub async fn wait(&self, turns: &Turns) -> Outcome {
        let mut taking: Option<Taking> = None;
        poll_fn(|cx| self.poll(turns, &mut taking, cx)).await
    }

    fn poll(&self, turns: &Turns, taking: &mut Option<Taking>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.state();
        match std::mem::take(&mut state.0) {
            Standing::Done(result) => return Poll::Ready(Outcome::Answer(result)),
            other => state.0 = other,
        }
        state.1 = Some(cx.waker().clone());
        let is_parked = matches!(state.0, Standing::Parked);
        drop(state);
        if is_parked {
            *taking = None;
            return Poll::Pending;
        }
        let turn = Pin::new(taking.get_or_insert_with(|| turns.take())).poll(cx);
        turn.map(Outcome::Lead)
    }

    /// Whether whoever leads has to go on for it.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state().0, Standing::Waiting)
    }
}

/// What a request came to.
pub(super) enum Outcome {
    Answer(Result<Promises, Errno>),
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
    pub answer: Arc<Answer>,
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
    pub answer: Arc<Answer>,
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

    pub fn want(&self, want: Want) {
        self.waiting().wants.push(want);
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
        wants.iter().for_each(|want| want.answer.set(Standing::Parked));
        self.waiting().parked.extend(wants);
    }

    /// Those that wait for space are served again.
    pub fn resume(&self) {
        let mut waiting = self.waiting();
        let parked = std::mem::take(&mut waiting.parked);
        waiting.wants.extend(parked.iter().cloned());
        drop(waiting);
        parked.iter().for_each(|want| want.answer.set(Standing::Waiting));
    }

    /// Those that wait for space hear that there is none.
    pub fn fail_parked(&self, errno: Errno) {
        let parked = std::mem::take(&mut self.waiting().parked);
        parked.iter().for_each(|want| want.answer.give(Err(errno)));
    }
}
