//! Doubts: a flush has failed below the data device, whoever had made it, so what was mapped since the last commit may have lost its content;
//! what is on those blocks then may be another volume's.
//!
//! From then on until it is known, nobody finds such a block: the cached map is forgotten, reads that were resolved by it are resolved again,
//! and a page of a device that has changed since the last commit is not put into the cache. Who needs one waits for the pool's turn,
//! and has the data device asked ([`Pool::settle_doubts`]). Either a flush of it succeeds, and all is as before, or what was not
//! committed is dropped ([`Pool::abandon`]).
//!
//! A page of a device that has not changed leads to what is committed, which was flushed before. So a batch that has the turn can read an
//! external origin of its own pool meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use blockwork_engine::{Errno, TaskContext};

use super::bell::Bell;
use super::device::Device;
use super::pool::Pool;
use crate::md::io;

/// The doubts of a pool. They are raised with the editor held, and who fills a page of the cache looks with it held.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// How many there have been.
    raised: AtomicU64,
    /// So many of them are settled.
    settled: AtomicU64,
    /// Rung for each.
    alarm: Bell,
}

impl Doubts {
    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.settled.load(Ordering::Acquire) < self.raised.load(Ordering::Acquire)
    }

    /// What has been raised so far is settled.
    fn settle_all(&self) {
        self.settle(self.raised.load(Ordering::Acquire));
    }

    fn settle(&self, so_many: u64) {
        self.settled.fetch_max(so_many, Ordering::AcqRel);
    }

    /// Ready when there are some.
    pub fn poll(&self, task: &mut Context<'_>) -> Poll<()> {
        self.alarm.poll(task, || self.any().then_some(()))
    }
}

impl Pool {
    /// A flush has failed of something below the data device. If anything depends on it, that is to be asked itself, at once.
    pub(super) fn doubt_data(&self) {
        {
            // Held until no page is left: who fills one from now on knows of the doubt.
            let editor = self.editor();
            if editor.is_durable() {
                return;
            }
            self.doubts.raised.fetch_add(1, Ordering::AcqRel);
            self.cache.forget_all();
        }
        self.doubts.alarm.ring();
    }

    /// Whether a page of a device may lead to what the data device has lost. With the editor held.
    pub(super) fn is_doubtful(&self, device: &Device) -> bool {
        self.doubts.any() && !self.is_durable(device)
    }

    /// Waits until it is known what the data device has lost.
    pub(super) async fn settle_doubts(&self, cx: &TaskContext) {
        let _turn = self.turns.take().await;
        if self.doubts.any() {
            // Where it fails, what depended on it is dropped.
            let _ = self.commit(cx).await;
        }
    }

    /// A device that could not be flushed once says so from then on, whoever asks (`blockwork_engine::queue`): nothing is missed here. With the
    /// turn; who hears of an error abandons what was not committed.
    pub(super) async fn flush_data(&self, cx: &TaskContext) -> Result<(), Errno> {
        // As of now: a failure that is heard of meanwhile is asked after again.
        let raised = self.doubts.raised.load(Ordering::Acquire);
        let flushed = io::flush(cx, self.data.get()).await;
        if flushed.is_ok() {
            self.doubts.settle(raised);
        }
        flushed
    }

    /// The pool is what the last commit has made it. With the turn, before the pool is read-only: what the data device has lost
    /// with a flush that failed may be the content of any block that was mapped since then, and another volume's is found there.
    pub(super) fn abandon(&self, cx: &TaskContext) {
        // Held until no page is left: who fills one from now on takes it from what is committed.
        let mut editor = self.editor();
        editor.abandon();
        self.cache.forget_all();
        self.doubts.settle_all();
        cx.distrust_reads();
    }

    /// Nothing depends on what the data device may have lost. With the turn.
    pub(super) fn drop_doubts(&self) {
        let editor = self.editor();
        if editor.is_durable() {
            self.doubts.settle_all();
        }
    }
}
