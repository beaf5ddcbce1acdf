//! Read-modify-write: the whole blocks around a ragged write (`unaligned`) are its own from before they are read until they are written.
//!
//! Otherwise a write of whole blocks that ends in between is undone where the ragged one has not even touched the block: what is written back
//! there was read before. (A discard and a write-zeroes are such writes too.)
//!
//! How a ragged write comes to its blocks:
//! 1. It takes its volume's turn: there is one at a time, whichever worker has it.
//! 2. It claims the range, and raises the workers' epoch (`quiesce`). Each worker that sees that looks through its bios under way, and
//!    has those that alter something in the range hold the claim until they end.
//! 3. When all workers have looked, and no bio holds it any more, the blocks are read.
//!
//! What alters something in the range and is submitted after its worker has looked waits for the volume's turn, behind those who
//! wait for it already, so that nobody starves; it is submitted in its turn, and whoever has the next one waits for it. A bio that has
//! been let in never waits here: a layer may have prepared for it, so that others wait for it already. And nothing but what overlaps is waited for.
//!
//! Cost where nothing is claimed: a bio pays a load and a branch, of its worker's own (`Core::look` sets what they look at).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use crate::layer::Span;
use crate::lock::{Lock, LockSnapshot};
use crate::quiesce::Quiescence;
use crate::turn::{Taking, Turn, Turns};
use crate::units::Sector;

/// Who may read, modify and write blocks of one volume. Cloning shares it.
#[derive(Clone, Default)]
pub(crate) struct Modify(Arc<Shared>);

#[derive(Default)]
struct Shared {
    turns: Turns,
    is_claimed: AtomicBool,
    claim: Lock<Claim>,
}

#[derive(Default)]
struct Claim {
    start: Sector,
    end: Sector,
    /// Bios under way that hold it.
    holds: usize,
    /// Who waits for those.
    waiter: Option<Waker>,
}

impl Modify {
    /// Waits for the turn.
    pub(crate) fn take(&self) -> Taking {
        self.0.turns.take()
    }

    /// Waits for the turn, and then until nobody else alters anything in that range, and nobody begins to.
    pub(crate) async fn claim(&self, start: Sector, end: Sector, workers: &Quiescence) -> Claimed {
        let turn = self.take().await;
        {
            let mut claim = self.0.claim.lock();
            (claim.start, claim.end) = (start, end);
        }
        // Whoever sees the epoch that is raised next sees this.
        self.0.is_claimed.store(true, Ordering::Relaxed);
        let claimed = Claimed { modify: self.clone(), _turn: turn };
        workers.have_all_look().await;
        std::future::poll_fn(|cx| {
            let mut claim = self.0.claim.lock();
            if claim.holds == 0 {
                return Poll::Ready(());
            }
            claim.waiter = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        claimed
    }

    /// Whether something is claimed.
    #[inline]
    pub(crate) fn is_claimed(&self) -> bool {
        self.0.is_claimed.load(Ordering::Relaxed)
    }

    /// Whether it alters something that is claimed.
    pub(crate) fn meets(&self, span: &Span) -> bool {
        if !self.is_claimed() {
            return false;
        }
        let claim = self.0.claim.lock();
        self.is_claimed() && span.op.is_write() && span.sector < claim.end && claim.start < span.end()
    }

    /// The claim is held from now on.
    pub(crate) fn hold(&self) -> Hold {
        self.0.claim.lock().holds += 1;
        Hold(self.clone())
    }

    pub(crate) fn snapshot(&self, name: impl Into<String>) -> LockSnapshot {
        self.0.turns.snapshot(name)
    }
}

impl fmt::Debug for Modify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Modify({:?}, claimed: {})", self.0.turns, self.is_claimed())
    }
}

/// A range that is claimed; dropped, it is everybody's again.
pub(crate) struct Claimed {
    modify: Modify,
    /// Given back when the claim has ended.
    _turn: Turn,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.modify.0.is_claimed.store(false, Ordering::Relaxed);
    }
}

/// Somebody alters what is claimed, since before it was. Dropped when that is done.
pub(crate) struct Hold(Modify);

impl Drop for Hold {
    fn drop(&mut self) {
        let mut claim = self.0.0.claim.lock();
        claim.holds -= 1;
        let waiter = if claim.holds == 0 { claim.waiter.take() } else { None };
        drop(claim);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}
