//! Copying out, a batch at a time: what is about to be overwritten goes to the stores that need it.
//!
//! Every write that has to wait says which range it wants. Whoever has the family's turn takes what all of them want, up to a
//! batch, and what sequential writers will want next (`ahead.rs`): one exception for each chunk, one flush and one write of the list for
//! each store. A batch goes through stages, each of which makes true what the next one relies on (the order is that of the head of
//! this folder's `mod.rs`):
//!
//! ```text
//!   given out ─copy─▶ copied ─flush, and readers of before are done─▶ durable ─exceptions on record─▶ settled: writes go
//! ```
//!
//! Batches overlap: the exceptions of one that is durable are written while the next one is copied, and one flush makes both
//! durable; only where nobody wants a next batch they are written with FUA. So under load a batch costs one flush, and not two; a write
//! waits for two. (With as many clients' requests as there are, no order of steps has fewer: of `n` that are always under way, each
//! flush lets `n / 2` go. Copying beside a flush was tried: those that are let go come back too late for the next one, and wait for three.)
//! A chunk that is copied alone, as the one before it was, is written with FUA, and needs no flush behind it.
//!
//! Who waits is let go by whoever settles its chunk, and needs no turn for that.
//!
//! Invariants: (1) one holder of the turn at a time moves batches on; (2) batches are settled in the order in which they were given
//! out; (3) only what is durable is entered into a list, and only what is on record, durably, is settled.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use blockwork_engine::{Errno, Flags, Sector, TaskContext, Turn};

use super::ahead::Stretch;
use super::family::{Family, Want, Writer};
use super::give_out::Share;
use super::list::ListWrite;
use super::store::State;
use crate::md::io;

/// How often a batch takes in who has come while it was copied: a flush takes longer than a copy, and who was let go comes
/// back soon.
const LATE_MAX: u32 = 2;

/// Rounds that somebody goes for what a writer may want next: half a window takes fewer, unless lists are cut off. Who waits for
/// something else gets the turn then.
const ROUNDS_MAX: usize = 16;

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    /// By store, what was copied out last: its content is durable, no reader looks for it elsewhere, and it is not on record.
    durable: Vec<Share>,
    /// The batch that was copied last had one chunk, and nobody came meanwhile.
    was_alone: bool,
}

fn is_empty(shares: &[Share]) -> bool {
    shares.iter().all(Share::is_empty)
}

/// Something done to all stores that tells of each whether it succeeded.
type Step<'a> = Pin<Box<dyn Future<Output = Vec<bool>> + 'a>>;

impl Family {
    /// Waits until a write may go.
    pub(super) async fn make_ready(&self, want: Want, cx: &TaskContext) -> Result<(), Errno> {
        let ticket = self.wait(want, cx);
        let verdict = match self.verdict_or_turn(want, ticket).await {
            Ok(verdict) => verdict,
            Err(_turn) => self.bring_about(want, cx).await,
        };
        self.leave(ticket);
        verdict
    }

    /// What somebody else has brought about, or the turn to do it.
    async fn verdict_or_turn(&self, want: Want, ticket: u64) -> Result<Result<(), Errno>, Turn> {
        let mut taking = Box::pin(self.turns.take());
        std::future::poll_fn(|task| {
            // Noted before it is looked at, so that whoever settles it afterwards wakes this task.
            self.wake_when_settled(ticket, task.waker());
            if let Some(verdict) = self.verdict(&want) {
                return Poll::Ready(Ok(verdict));
            }
            taking.as_mut().poll(task).map(Err)
        })
        .await
    }

    /// With the turn.
    async fn bring_about(&self, want: Want, cx: &TaskContext) -> Result<(), Errno> {
        loop {
            if let Some(verdict) = self.verdict(&want) {
                return verdict;
            }
            if self.is_retired() {
                return Ok(());
            }
            self.round(Some(want), None, cx).await;
        }
    }

    /// Copies what is ahead of a writer that has come to its mark, while it goes on.
    async fn go_ahead(&self, slot: usize, mark: Sector, end: Sector, cx: &TaskContext) {
        let _turn = self.turns.take().await;
        let next = {
            let mut ahead = self.ahead();
            let next = ahead.at_mark(slot, mark, end);
            self.marks.set(ahead.marks());
            next
        };
        let Some(next) = next else { return };
        for _ in 0..ROUNDS_MAX {
            let is_done = self.is_retired() || self.verdict(&next.want).is_some();
            if is_done || !self.round(None, Some(next), cx).await {
                return;
            }
        }
    }

    /// Copies out a batch of what is wanted, and brings to its end the one that is durable. Tells whether there was anything. With the
    /// turn.
    async fn round(&self, own: Option<Want>, ahead: Option<Stretch>, cx: &TaskContext) -> bool {
        let UnderWay { durable, was_alone } = std::mem::take(&mut *self.under_way());
        // Entered before anything else is given out: an area has room for so many.
        let writes = self.enter(&durable);
        let mut shares = self.give_out_next(own, ahead, &[]);
        if is_empty(&durable) && is_empty(&shares) {
            self.under_way().was_alone = was_alone;
            return false;
        }
        let is_alone = shares.iter().map(|share| share.exceptions.len()).sum::<usize>() == 1;
        // Else a flush would do for both.
        let is_durable = is_alone && was_alone && is_empty(&durable);
        self.copy_and_record(&mut shares, writes, if is_durable { Flags::FUA } else { Flags::NONE }, cx)
            .await;
        self.publish(&mut shares);
        let mut is_late = false;
        if !is_empty(&shares) {
            self.count_batch();
            is_late = self.take_in_late(own, &mut shares, cx).await;
            self.flush_and_quiesce(&mut shares, is_durable && !is_late, cx).await;
        }
        self.settle(&durable, &shares, cx).await;
        let was_alone = if is_empty(&shares) { was_alone } else { is_alone && !is_late };
        *self.under_way() = UnderWay { durable: shares, was_alone };
        self.wake_settled();
        true
    }

    /// Gives out chunks for what is wanted now and comes next; `taken` is what was given out to the same batch.
    fn give_out_next(&self, own: Option<Want>, ahead: Option<Stretch>, taken: &[Share]) -> Vec<Share> {
        let wants = self.wants(own);
        let mut next: Vec<_> = ahead.into_iter().collect();
        next.extend(self.after(&wants));
        self.give_out(&wants, &next, taken)
    }

    /// Enters what is durable into the lists; gives what has to be written for that.
    fn enter(&self, durable: &[Share]) -> Vec<Option<ListWrite>> {
        let of_store = |nth: usize| durable.get(nth).map_or(&[][..], |share| &share.exceptions);
        self.stores.iter().enumerate().map(|(nth, store)| store.append(of_store(nth))).collect()
    }

    /// Copies what has come to be wanted while a batch was copied, and adds it to the batch. Tells whether there was any.
    async fn take_in_late(&self, own: Option<Want>, shares: &mut [Share], cx: &TaskContext) -> bool {
        for nth in 0..LATE_MAX {
            let mut late = self.give_out_next(own, None, shares);
            if is_empty(&late) {
                return nth > 0;
            }
            let copied = self.copy(&late, Flags::NONE, cx).await;
            late.iter_mut().zip(copied).for_each(|(share, copied)| share.lost |= !copied);
            self.publish(&mut late);
            shares.iter_mut().zip(late).for_each(|(share, late)| share.take_in(late));
        }
        true
    }

    /// Lets readers find what was copied.
    fn publish(&self, shares: &mut [Share]) {
        for (store, share) in self.stores.iter().zip(&mut *shares) {
            share.lost |=
                share.exceptions.iter().any(|exception| store.exceptions.insert(*exception).is_err());
        }
        self.begin_losing(shares);
    }

    /// Copies what is new, with these flags, while the exceptions of what is durable are written: durably, if no flush follows in that
    /// store.
    async fn copy_and_record(
        &self,
        shares: &mut [Share],
        writes: Vec<Option<ListWrite>>,
        data: Flags,
        cx: &TaskContext,
    ) {
        let flags: Vec<_> = shares
            .iter()
            .map(|share| {
                let is_flushed = !share.exceptions.is_empty() && !share.lost && data == Flags::NONE;
                if is_flushed { Flags::NONE } else { Flags::FUA }
            })
            .collect();
        let recording = self.stores.iter().zip(writes).zip(flags).map(|((store, write), flags)| async move {
            match write {
                Some(write) => store.write_list(cx, write, flags).await,
                None => true,
            }
        });
        let recording = io::together(recording.collect());
        let copying = self.copy(shares, data, cx);
        let steps: Vec<Step<'_>> = vec![Box::pin(recording), Box::pin(copying)];
        let succeeded = io::together(steps).await;
        for (nth, share) in shares.iter_mut().enumerate() {
            share.lost |= succeeded.iter().any(|succeeded| !succeeded[nth]);
        }
    }

    /// Makes durable what was written to the stores, if it is not, and waits for readers that have not seen it.
    async fn flush_and_quiesce(&self, shares: &mut [Share], is_durable: bool, cx: &TaskContext) {
        let flushing = self.stores.iter().zip(&*shares).map(|(store, share)| async move {
            share.lost || store.flush(cx, share.exceptions.len() as u64, is_durable).await
        });
        let flushing = io::together(flushing.collect());
        let quiet = async {
            cx.quiesce().await;
            Vec::new()
        };
        let steps: Vec<Step<'_>> = vec![Box::pin(flushing), Box::pin(quiet)];
        let flushed = io::together(steps).await.into_iter().flatten();
        for (share, flushed) in shares.iter_mut().zip(flushed) {
            share.lost |= !flushed;
        }
        if self.begin_losing(shares) {
            cx.quiesce().await;
        }
    }

    /// Snapshots that cannot go on answer no more; the origin still waits. Tells whether there are any that did answer.
    fn begin_losing(&self, shares: &[Share]) -> bool {
        let mut any = false;
        for (store, _) in self.stores.iter().zip(shares).filter(|(_, share)| share.lost) {
            if store.state() < State::Losing {
                log::error!("{}: the snapshot is lost; its origin goes on", store.name);
                any = true;
            }
            store.worsen(State::Losing);
        }
        any
    }

    /// What was durable is on record.
    async fn settle(&self, durable: &[Share], shares: &[Share], cx: &TaskContext) {
        for (nth, (store, share)) in self.stores.iter().zip(shares).enumerate() {
            if share.lost {
                store.record_loss(cx).await;
                store.worsen(State::Lost);
            } else if let Some(durable) = durable.get(nth) {
                store.settle(durable.end);
            }
        }
    }

    /// What comes after these wants, where writers are sequential.
    fn after(&self, wants: &[Want]) -> Vec<Stretch> {
        let mut ahead = self.ahead();
        let next = ahead.after(wants);
        self.marks.set(ahead.marks());
        next
    }

    /// What has to wait still, and of which something is not copied yet.
    fn wants(&self, own: Option<Want>) -> Vec<Want> {
        let waiting = self.wanted().ranges();
        // Its own first, so that whoever has the turn gets on.
        let others = waiting.into_iter().filter(|want| Some(*want) != own);
        let all = own.into_iter().chain(others);
        all.filter(|want| self.verdict(want).is_none() && !self.is_copied(want)).collect()
    }

    /// Whether nothing is to be copied for a want that waits: what it needs is under way.
    fn is_copied(&self, want: &Want) -> bool {
        self.stores.iter().enumerate().all(|(nth, store)| match want.by {
            _ if store.is_merging || store.state() >= State::Losing => store.state() != State::Losing,
            Writer::Snapshot(own) if own != nth => true,
            _ => store.first_without(store.chunks(want.start, want.end)).is_none(),
        })
    }
}

/// The work of a deferred bio, as a layer's `prepare` wants it.
pub(super) fn preparation(
    family: Arc<Family>,
    want: Want,
    cx: TaskContext,
) -> Pin<Box<dyn Future<Output = Result<(), Errno>>>> {
    if want.by == Writer::Origin
        && let Some((slot, mark)) = family.marks.take(want.start, want.end)
    {
        // Beside the write, which does not wait for it.
        let (family, own) = (family.clone(), cx.without_written());
        cx.spawn(async move { family.go_ahead(slot, mark, want.end, &own).await });
    }
    Box::pin(async move { family.make_ready(want, &cx).await })
}
