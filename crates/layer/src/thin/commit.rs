//! Making transactions durable, and what is done when that fails or space runs out.
//!
//! Order of a commit, which a power cut at any instant survives:
//!
//! 1. no block is being filled any more (`fill.rs`);
//! 2. what changed of the metadata is written, to blocks that the last committed state does not use;
//! 3. the data device and the metadata device are flushed, at once: all content that the new tree leads to is on the one, and the tree on
//!    the other. Until the superblock leads there nobody finds that tree, so nothing is gained by flushing the data first, as the kernel
//!    does; and where both are parts of one disk, it is one flush;
//! 4. the superblock is written, with FUA;
//! 5. bios that were resolved to blocks which became free have come to their end ([`TaskContext::quiesce`], meanwhile), and those blocks
//!    are discarded on the data device, if that is wanted;
//! 6. blocks that became free may be given out again.
//!
//! What the pool was opened with counts as committed when the metadata device has been flushed once: a server that was killed in
//! step 4 may have left a superblock in the kernel's cache that a power cut takes back. So that comes before the first block is given out, and
//! before the first commit.
//!
//! A write that is to outlive the process only (`Flags::OUTLIVES`) waits for the same commit, and not for the flush of the data device that
//! follows one for FUA: its data is in the kernel. The flushes of steps 3 and 4 stay: without the first a power cut could leave a superblock
//! that leads to what is not there, and without the second the blocks that the commit frees could be written over while the superblock on the
//! disk still leads to them.
//!
//! A flush of a volume that has not changed since the last commit goes straight to the data device, and so does that of a write with FUA, or
//! of whoever else has part of the disk. One of these may be the one that hears that something is lost, and that may be what other volumes
//! have written to new blocks: so nobody finds those any more, and the pool asks its data device at once, not when the next commit is due
//! (it may be another part of it that has failed); if it has lost something, no later
//! transaction leads to those blocks, and they are dropped (`doubt.rs`). (In Linux the one who flushed hears of it, and nobody else: the
//! other volumes' blocks stay mapped, the next commit flushes again, successfully perhaps, and makes them durable.)
//!
//! A commit is made for a flush, or for FUA, of a volume that has changed since the last one, once a second while anything has, when
//! much has, and with each verb. Whoever wants one while one is made gets the next, together with all others.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use blockwork_engine::{Bio, Errno, Flags, Nanos, Op, Sector, Sectors, TaskContext};
use blockwork_format::thin::edit::Commit;
use blockwork_format::thin::{BLOCK_BYTES, BLOCK_SECTORS, Block, Superblock};
use blockwork_memory::Segment;

use super::config::Discards;
use super::mode::Mode;
use super::pool::{Pool, Refused};
use super::request::{Answers, Flush, Want};
use crate::md::io;

/// How long something may stay uncommitted that nobody asks for, as in the kernel.
const COMMIT_PERIOD: Nanos = Nanos::secs(1);

/// Metadata blocks that are written by one request at most, and such requests at a time.
const RUN_MAX: usize = 256;
const RUNS_MAX: usize = 8;

/// Part of a commit, to be done beside another.
type Step<'a> = Pin<Box<dyn Future<Output = Result<(), Refused>> + 'a>>;

impl Pool {
    /// Waits until everything up to a transaction is durable.
    pub(super) async fn make_durable(&self, cx: &TaskContext, transaction: u64) -> Result<(), Errno> {
        if transaction <= self.durable() {
            return Ok(());
        }
        let answers = Answers::new(1);
        self.requests.flush(Flush { transaction, answer: answers.to(0) });
        let mut result = Ok(());
        self.served(cx, &answers, |_, given| result = given.map(|_| ())).await;
        result
    }

    /// Makes everything durable that was changed. With the turn.
    pub(super) async fn commit(&self, cx: &TaskContext) -> Result<(), Errno> {
        if self.mode() == Mode::ReadOnly {
            // What was not committed can still be read, as long as its content is there.
            if self.doubts.any() && self.flush_data(cx).await.is_err() {
                self.abandon(cx);
            }
            return Err(Errno::EIO);
        }
        self.settle_fills(cx).await;
        if self.mode() == Mode::ReadOnly {
            return Err(Errno::EIO);
        }
        if self.editor().is_dirty() {
            let committed = self.write_down(cx).await;
            if let Err(refused) = committed {
                if matches!(refused, Refused::Data { .. }) {
                    self.abandon(cx);
                }
                let why = format!("a transaction could not be committed: {refused}");
                self.fail_metadata(&why, cx).await;
                return Err(Errno::EIO);
            }
        } else {
            // Of what was to be freed nothing was, as when a device cannot be deleted: writes that lack space must not commit for it again
            // and again.
            self.books().freed = false;
        }
        self.drop_doubts();
        let transaction = self.transaction.fetch_add(1, Ordering::AcqRel);
        self.durable.store(transaction, Ordering::Release);
        self.look_for_space(cx);
        Ok(())
    }

    /// Makes durable what the pool was opened with, once: whoever had it before may have been killed when the superblock was written, and
    /// not flushed. After a power cut the one before it may be found, and what that leads to must not have been given out, or written over. With
    /// the turn.
    async fn adopt(&self, cx: &TaskContext) -> Result<(), Refused> {
        if self.books().is_adopted {
            return Ok(());
        }
        self.flush_metadata(cx).await?;
        self.books().is_adopted = true;
        Ok(())
    }

    /// The same before blocks are given out; false: it cannot be done, and the pool is read-only.
    pub(super) async fn can_give_out(&self, cx: &TaskContext) -> bool {
        let Err(refused) = self.adopt(cx).await else { return true };
        let why = format!("what was committed last cannot be made durable: {refused}");
        self.fail_metadata(&why, cx).await;
        false
    }

    async fn flush_metadata(&self, cx: &TaskContext) -> Result<(), Refused> {
        let flushed = io::flush(cx, self.metadata.get()).await;
        flushed.map_err(|errno| Refused::Write { nr: 0, errno })
    }

    async fn write_down(&self, cx: &TaskContext) -> Result<(), Refused> {
        self.adopt(cx).await?;
        let commit = self.edit(cx, |editor, blocks| editor.commit(blocks)).await?;
        let (freed, discarded) = {
            let mut books = self.books();
            (std::mem::take(&mut books.freed), std::mem::take(&mut books.discarded))
        };
        let quiet = async {
            if freed {
                cx.quiesce().await;
            }
            Ok(())
        };
        let steps: Vec<Step<'_>> = vec![Box::pin(self.write_blocks(&commit, cx)), Box::pin(quiet)];
        io::together(steps).await.into_iter().collect::<Result<(), _>>()?;
        for range in discarded {
            self.pass_down(range, cx).await;
        }
        self.blocks.wrote(commit.writes.iter().cloned());
        self.editor().committed();
        Ok(())
    }

    async fn write_blocks(&self, commit: &Commit, cx: &TaskContext) -> Result<(), Refused> {
        self.blocks.overtake(commit.writes.iter().map(|(nr, _)| nr));
        let follows = |a: &(u64, Arc<Block>), b: &(u64, Arc<Block>)| a.0 + 1 == b.0;
        let runs: Vec<_> = commit.writes.chunk_by(follows).flat_map(|run| run.chunks(RUN_MAX)).collect();
        for some in runs.chunks(RUNS_MAX) {
            let writes = some.iter().map(|run| self.write_run(run, cx));
            io::together(writes.collect()).await.into_iter().collect::<Result<(), _>>()?;
        }
        let data = async { self.flush_data(cx).await.map_err(|errno| Refused::Data { errno }) };
        // The data's error first, if both have one: by it what was not committed is dropped.
        let both: Vec<Step<'_>> = vec![Box::pin(data), Box::pin(self.flush_metadata(cx))];
        io::together(both).await.into_iter().collect::<Result<(), _>>()?;
        self.write_superblock(&commit.superblock, cx).await
    }

    async fn write_run(&self, run: &[(u64, Arc<Block>)], cx: &TaskContext) -> Result<(), Refused> {
        let bytes = run.len() * BLOCK_BYTES;
        let memory = Segment::new(cx.pool().get(bytes), 0, bytes);
        for (nth, (_, block)) in run.iter().enumerate() {
            memory.write_at(nth * BLOCK_BYTES, &block[..]);
        }
        let nr = run[0].0;
        let written = io::store(cx, self.metadata.get(), Sector(nr * BLOCK_SECTORS), memory).await;
        written.map_err(|errno| Refused::Write { nr, errno })
    }

    async fn write_superblock(&self, block: &Block, cx: &TaskContext) -> Result<(), Refused> {
        let written = io::write_bytes(cx, self.metadata.get(), Sector(0), block).await;
        written.map_err(|errno| Refused::Write { nr: 0, errno })
    }

    /// The data device hears that nobody has these blocks any more.
    async fn pass_down(&self, blocks: std::ops::Range<u64>, cx: &TaskContext) {
        let (data, size) = (self.data.get(), self.block.get());
        if self.features.discards != Discards::Passdown || data.limits().max_discard == Sectors::ZERO {
            return;
        }
        let (start, nr) = (Sector(blocks.start * size), Sectors((blocks.end - blocks.start) * size));
        let bio = Bio::without_data(Op::Discard, Flags::NONE, start, nr);
        if let Err(errno) = cx.bio(data, bio).await.0 {
            self.complaints.undiscarded.say(cx.now(), |more| {
                log::warn!(
                    "{}: a discard of its data device at sector {start} failed: {errno}{more}",
                    self.name
                );
            });
        }
    }

    /// Has somebody commit now and then, if nobody does. With the turn.
    pub(super) fn start_upkeep(&self, cx: &TaskContext) {
        if !self.editor().is_dirty() || std::mem::replace(&mut self.books().upkeep, true) {
            return;
        }
        let (pool, own) = (self.itself(), cx.clone());
        cx.spawn(async move { pool.look_after(&own).await });
    }

    /// Waits until a commit is due: true; or until the worker is to end.
    async fn until_due(&self, cx: &TaskContext) -> bool {
        let mut pause = pin!(cx.pause(COMMIT_PERIOD));
        poll_fn(|task| match pause.as_mut().poll(task) {
            Poll::Pending => self.doubts.poll(task).map(|()| true),
            over => over,
        })
        .await
    }

    async fn look_after(&self, cx: &TaskContext) {
        loop {
            let goes_on = self.until_due(cx).await;
            let _turn = self.turns.take().await;
            // The volumes are flushed, and closed, when a worker ends.
            if !goes_on || self.editor().is_durable() {
                self.books().upkeep = false;
                return;
            }
            // Where it fails, it looks again: what cannot be committed is dropped when its content is lost.
            let _ = self.commit(cx).await;
        }
    }

    /// The metadata cannot be changed any more: says so there, in the last transaction that is durable. With the turn.
    pub(super) async fn fail_metadata(&self, why: &str, cx: &TaskContext) {
        if self.mode() == Mode::ReadOnly {
            return;
        }
        log::error!("{}: from now on its metadata is read-only: {why}", self.name);
        self.mode.set(Mode::ReadOnly);
        self.books().why_read_only = Some(why.to_owned());
        self.requests.fail_parked(Errno::EIO);
        let last = Superblock { needs_check: true, ..*self.editor().durable() };
        match self.write_superblock(&last.encode(0), cx).await {
            Ok(()) => self.books().needs_check = true,
            Err(refused) => {
                log::error!("{}: that it needs a check cannot be written either: {refused}", self.name);
            }
        }
    }

    /// No metadata block is free, and everything is committed: nothing is changed until the metadata device has grown. With the turn.
    pub(super) fn out_of_metadata(&self) {
        if !self.mode().allows_changes() {
            return;
        }
        let why = "its metadata is full: extend it";
        log::error!("{}: nothing new is mapped from now on: {why}", self.name);
        self.mode.set(Mode::OutOfMetadataSpace);
        self.books().why_read_only = Some(why.to_owned());
        self.requests.fail_parked(Errno::EIO);
        self.look_at_watch();
    }

    /// Metadata blocks are free again. With the turn.
    pub(super) fn leave_out_of_metadata(&self) {
        if self.mode() == Mode::OutOfMetadataSpace {
            self.mode.set(Mode::Write);
            self.books().why_read_only = None;
        }
    }

    /// No data block is free: who needs one waits, or hears of it.
    pub(super) fn out_of_data(&self, wants: Vec<Want>, cx: &TaskContext) {
        if self.mode() == Mode::Write {
            self.complaints.full.say(cx.now(), |more| {
                log::error!(
                    "{}: it has no free data blocks: extend it, or discard what is not needed{more}",
                    self.name
                );
            });
            self.start_timeout(self.mode.run_out(), cx);
            self.look_at_watch();
        }
        if self.features.error_if_no_space || self.mode.has_timed_out() {
            wants.iter().for_each(|want| want.answer.give(Err(Errno::ENOSPC)));
        } else {
            self.requests.park(wants);
        }
    }

    /// Waiting ends when it has lasted for as long as it may, and when the worker is to end, which waits for its writes.
    fn start_timeout(&self, period: u64, cx: &TaskContext) {
        if self.features.error_if_no_space {
            return;
        }
        let (pool, own) = (self.itself(), cx.clone());
        cx.spawn(async move {
            match pool.features.no_space_timeout {
                Some(timeout) => _ = own.pause(timeout).await,
                None => while pool.mode.is_out(period) && own.pause(COMMIT_PERIOD).await {},
            }
            let _turn = pool.turns.take().await;
            if pool.mode.time_out(period) {
                log::warn!("{}: no space has come: writes that need it fail", pool.name);
                pool.requests.fail_parked(Errno::ENOSPC);
            }
        });
    }

    /// After a commit: space that came back is for those who wait for it.
    fn look_for_space(&self, cx: &TaskContext) {
        let free = self.editor().free_data();
        if free > 0 && self.mode() == Mode::OutOfDataSpace {
            log::info!("{}: {free} data blocks are free again", self.name);
            self.mode.set(Mode::Write);
            self.requests.resume();
        }
        self.look_at_low_water(cx);
    }

    /// Tells once when little space is left.
    pub(super) fn look_at_low_water(&self, cx: &TaskContext) {
        self.look_at_watch();
        let (free, mark) = (self.editor().free_data(), self.features.low_water);
        let is_low = free <= mark && mark > 0;
        let was_told = std::mem::replace(&mut self.books().low_water_told, is_low);
        if is_low && !was_told {
            self.complaints.low_water.say(cx.now(), |more| {
                log::warn!(
                    "{}: {free} data blocks are free: the low water mark of {mark} is reached{more}",
                    self.name
                );
            });
        }
    }
}
