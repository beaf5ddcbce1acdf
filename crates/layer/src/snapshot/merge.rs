//! Merging a snapshot back into its origin: its exceptions go, from the last of the list to the first, as the kernel does it, so
//! that either can go on with what the other has begun.
//!
//! A step merges the last exceptions of the list, many at once:
//!
//! 1. what other snapshots need of their chunks is copied out and settled (`batch.rs`);
//! 2. from here on, writes to the chunks wait for the end of the step; those under way come to their end;
//! 3. the chunks are copied from the store to the origin, and the origin is flushed;
//! 4. their exceptions are taken from the end of the list, and that is durable (FUA);
//! 5. in memory they are gone too: reads and writes of the chunks go to the origin (`merging.rs`).
//!
//! So a power cut leaves exceptions whose content may be in the origin already, and merging it again changes nothing: no write
//! goes past an exception that is still on the disk. A step that fails ends the merge: what is not merged stays in the store.
//! Where it cannot be known whether exceptions have left the disk (4 failed), their chunks are written no more in this life.
//! A family that is retired merges nothing more: what has taken its place goes on from what the store holds.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use blockwork_engine::{Errno, Nanos, Sector, Sectors, TaskContext};
use blockwork_format::snapshot::Exception;

use super::copy::PIECE;
use super::exceptions;
use super::family::{Family, Want, Writer};
use super::status::SnapshotStatus;
use super::store::{State, Store};
use super::window::{RUNS_MAX, Window};
use crate::md::io;

/// What a step merges where nobody says otherwise.
pub const STEP: Sectors = Sectors(16_384);

/// Pieces on their way at a time: so many have memory.
const PIECES_MAX: usize = 8;

/// Longest pause between two steps.
const PAUSE_MAX: Nanos = Nanos::millis(100);

/// What a step of a merge came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There are exceptions left.
    More,
    /// There are none: nobody needs the store any more.
    Done,
}

/// How a merge that runs by itself has ended, where nothing is left to be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeEnd {
    /// All is merged: nobody needs the store any more.
    Merged,
    /// The snapshot is invalid: the origin stays as it is.
    Invalid,
}

/// Who hears of that.
struct Hook(Box<dyn Fn(MergeEnd) + Send + Sync>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

/// Why a merge cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// There is nothing left that could be merged.
    #[error("{name}: the snapshot is invalid: it cannot be merged, only removed")]
    Invalid {
        /// The snapshot.
        name: String,
    },
    /// A device has failed.
    #[error(
        "{name}: {what}: {errno}; what is not merged stays in the store, and a merge that is begun anew goes on there"
    )]
    Failed {
        /// The snapshot.
        name: String,
        /// What could not be done.
        what: &'static str,
        /// Why.
        errno: Errno,
    },
    /// What the list has is not what it had when it was opened.
    #[error(
        "{name}: the list of exceptions on its store has been changed by somebody else; is the store in use twice?"
    )]
    Changed {
        /// The snapshot.
        name: String,
    },
    /// It has failed before.
    #[error("{name}: the merge has failed before; it can go on when the volume is opened anew")]
    Before {
        /// The snapshot.
        name: String,
    },
    /// Something else has taken the place of its family.
    #[error("{name}: its origin was built anew meanwhile, and goes on with the merge")]
    Retired {
        /// The snapshot.
        name: String,
    },
}

/// A merge: of the one snapshot of a family that is made for that.
#[derive(Debug)]
pub struct Merge {
    pub(super) family: Arc<Family>,
    nth: usize,
    /// What a step merges, unless a single chunk is larger.
    step: Sectors,
    /// What is being merged: chunks of the origin.
    window: Window,
    /// A client was at work since this was looked at.
    is_busy: AtomicBool,
    ended: OnceLock<MergeEnd>,
    /// Why it does not go on in this life.
    failure: OnceLock<MergeError>,
    hook: OnceLock<Hook>,
}

/// Exceptions that follow each other in the origin, in the store and in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    old: u64,
    new: u64,
    chunks: u64,
}

impl Merge {
    /// The merge of a family that was made by [`Family::with_merge`], in steps of at most `step`; none: it was not.
    pub fn new(family: Arc<Family>, step: Sectors) -> Option<Arc<Merge>> {
        let nth = family.stores.iter().position(|store| store.is_merging)?;
        let (window, is_busy) = (Window::default(), AtomicBool::new(false));
        let (ended, failure, hook) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Some(Arc::new(Merge { family, nth, step, window, is_busy, ended, failure, hook }))
    }

    /// How far it is.
    pub fn status(&self) -> SnapshotStatus {
        self.store().status()
    }

    /// Why it has failed, if it has.
    pub fn failure(&self) -> Option<&MergeError> {
        self.failure.get()
    }

    /// Has `hook` called when the merge, which goes on while its origin is served, has nothing left to do; maybe twice. It must not wait.
    /// Only the first one counts.
    pub fn when_ended(&self, hook: impl Fn(MergeEnd) + Send + Sync + 'static) {
        let _ = self.hook.set(Hook(Box::new(hook)));
        self.tell_end();
    }

    fn tell_end(&self) {
        if let (Some(end), Some(hook)) = (self.ended.get(), self.hook.get()) {
            (hook.0)(*end);
        }
    }

    #[inline]
    pub(super) fn store(&self) -> &Store {
        &self.family.stores[self.nth]
    }

    /// What the chunks from `first` on, at most `most` of them, have in common for a write, and whether that has to wait.
    #[inline]
    pub(super) fn find(&self, first: u64, most: u64) -> (exceptions::Run, bool) {
        self.window.find(&self.store().exceptions, first, most)
    }

    /// A client is at work.
    #[inline]
    pub(super) fn note_client(&self) {
        // A store that changes nothing would take the line from the other workers.
        if !self.is_busy.load(Ordering::Relaxed) {
            self.is_busy.store(true, Ordering::Relaxed);
        }
    }

    /// Merges the last exceptions of the list: as many as one step takes.
    ///
    /// # Errors
    ///
    /// A disk fails, or the snapshot is lost: the merge is over in this life. Or its family is retired: nothing was done.
    pub async fn step(&self, cx: &TaskContext) -> Result<Step, MergeError> {
        let _turn = self.family.steps.take().await;
        let store = self.store();
        // Nothing would be copied out any more for other snapshots, and the store may be somebody else's.
        if self.family.is_retired() {
            return Err(MergeError::Retired { name: store.name.clone() });
        }
        if store.state() >= State::Losing {
            return Err(MergeError::Invalid { name: store.name.clone() });
        }
        if store.has_failed_to_merge() {
            return Err(MergeError::Before { name: store.name.clone() });
        }
        let result = self.step_with_turn(cx).await;
        if let Err(error) = &result {
            let _ = self.failure.set(error.clone());
            store.fail_to_merge();
        }
        result
    }

    async fn step_with_turn(&self, cx: &TaskContext) -> Result<Step, MergeError> {
        let exceptions = self.last(cx).await?;
        if exceptions.is_empty() {
            return Ok(Step::Done);
        }
        let runs = runs(&exceptions);
        for run in &runs {
            let (start, end) = self.place(run);
            if self.family.lets_write(start, end) {
                // Who waits is known until the next batch, and where nobody needs one there is none.
                continue;
            }
            let want = Want { start, end, by: Writer::Origin };
            let copied = self.family.make_ready(want, cx).await;
            copied.map_err(|errno| self.failed("what other snapshots need cannot be copied out", errno))?;
        }
        self.window.open(runs.iter().map(|run| run.old..run.old + run.chunks));
        cx.quiesce().await;
        if let Err(error) = self.copy_back(&runs, cx).await {
            self.window.close();
            return Err(error);
        }
        // Where this fails the window stays open: nobody knows what the disk has.
        let taken = self.store().take_back(cx, &exceptions).await;
        taken.map_err(|errno| self.failed("the list of exceptions cannot be written", errno))?;
        self.window.close();
        Ok(if self.store().books().list.is_empty() { Step::Done } else { Step::More })
    }

    /// The exceptions at the end of the list that a step takes, in the list's order.
    async fn last(&self, cx: &TaskContext) -> Result<Vec<Exception>, MergeError> {
        let store = self.store();
        let list = store.books().list.clone();
        let most = (self.step.0 / store.layout.chunk_sectors()).max(1);
        let found = list.last(cx, &store.layer, most).await;
        let found = found.map_err(|errno| self.failed("the list of exceptions cannot be read", errno))?;
        let is_known = |exception: &Exception| store.exceptions.find(exception.old) == Some(exception.new);
        let Some(mut found) = found.filter(|found| found.iter().all(is_known)) else {
            return Err(MergeError::Changed { name: store.name.clone() });
        };
        let runs = runs(&found);
        let left: u64 = runs[..runs.len().saturating_sub(RUNS_MAX)].iter().map(|run| run.chunks).sum();
        Ok(found.split_off(left as usize))
    }

    /// Where a run lies in the origin. What a chunk has behind the origin's end is nobody's.
    fn place(&self, run: &Run) -> (Sector, Sector) {
        let chunk = self.store().layout.chunk_sectors();
        let end = Sector((run.old + run.chunks) * chunk).min(io::end_of_blocks(&*self.family.origin));
        (Sector(run.old * chunk), end)
    }

    /// Copies runs to the origin, so that they are durable there.
    async fn copy_back(&self, runs: &[Run], cx: &TaskContext) -> Result<(), MergeError> {
        let chunk = self.store().layout.chunk_sectors();
        let pieces = runs.iter().flat_map(|run| {
            let (start, end) = self.place(run);
            let from = Sector(run.new * chunk);
            (0..end.since(start).0).step_by(PIECE.0 as usize).map(move |skip| {
                let skip = Sectors(skip);
                (from + skip, start + skip, Sectors(PIECE.0.min(end.since(start + skip).0)))
            })
        });
        let pieces: Vec<_> = pieces.collect();
        for some in pieces.chunks(PIECES_MAX) {
            let copies = some.iter().map(|(from, to, nr)| self.copy_piece(*from, *to, *nr, cx));
            io::together(copies.collect()).await.into_iter().collect::<Result<(), _>>()?;
        }
        let flushed = io::flush(cx, &self.family.origin).await;
        flushed.map_err(|errno| self.failed("the origin cannot be flushed", errno))
    }

    async fn copy_piece(
        &self,
        from: Sector,
        to: Sector,
        nr: Sectors,
        cx: &TaskContext,
    ) -> Result<(), MergeError> {
        let data = io::read(cx, &self.store().layer, from, nr).await;
        let data = data.map_err(|errno| self.failed("its store cannot be read", errno))?;
        let written = io::store(cx, &self.family.origin, to, data).await;
        written.map_err(|errno| self.failed("the origin cannot be written", errno))
    }

    fn failed(&self, what: &'static str, errno: Errno) -> MergeError {
        MergeError::Failed { name: self.store().name.clone(), what, errno }
    }

    /// Merges, step by step, until all is merged, something fails, or the worker is to end. While clients are at work, it rests
    /// as long as it works.
    pub(super) async fn run(&self, cx: &TaskContext) {
        log::info!("{}: the snapshot is being merged into its origin", self.store().name);
        if let Some(end) = self.steps(cx).await {
            let _ = self.ended.set(end);
            self.tell_end();
        }
    }

    async fn steps(&self, cx: &TaskContext) -> Option<MergeEnd> {
        let mut pause = Nanos(0);
        while cx.pause(pause).await {
            let begun = cx.now();
            match self.step(cx).await {
                Ok(Step::More) => {}
                Ok(Step::Done) => {
                    log::info!(
                        "{}: the snapshot is merged; nobody needs its store any more",
                        self.store().name
                    );
                    return Some(MergeEnd::Merged);
                }
                Err(MergeError::Retired { .. }) => return None,
                Err(error) => {
                    log::error!("{error}");
                    return matches!(error, MergeError::Invalid { .. }).then_some(MergeEnd::Invalid);
                }
            }
            let is_busy = self.is_busy.swap(false, Ordering::Relaxed);
            pause = if is_busy { cx.now().since(begun).min(PAUSE_MAX) } else { Nanos(0) };
        }
        None
    }

    /// Waits until a step is over. A window that is still open then is so for ever.
    pub(super) async fn wait_for_step(&self, chunks: Range<u64>) -> Result<(), Errno> {
        let _turn = self.family.steps.take().await;
        if self.window.touches(chunks) { Err(Errno::EIO) } else { Ok(()) }
    }
}

/// Exceptions in the order of the list, as runs.
fn runs(exceptions: &[Exception]) -> Vec<Run> {
    let follows = |a: &Exception, b: &Exception| a.old + 1 == b.old && a.new + 1 == b.new;
    let runs = exceptions.chunk_by(follows);
    runs.map(|run| Run { old: run[0].old, new: run[0].new, chunks: run.len() as u64 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_only_where_both_the_origin_and_the_store_do() {
        // The kernel enters exceptions in the order in which copies end, which need not be that of their chunks.
        let list = [(3, 2), (4, 3), (5, 5), (6, 4), (7, 6), (8, 7), (9, 9), (8, 10)];
        let list: Vec<_> = list.map(|(old, new)| Exception { old, new }).into();
        let found: Vec<_> = runs(&list).iter().map(|run| (run.old, run.new, run.chunks)).collect();
        assert_eq!(found, [(3, 2, 2), (5, 5, 1), (6, 4, 1), (7, 6, 2), (9, 9, 1), (8, 10, 1)]);
    }
}
