//! Looking after an array that is written to: clearing its bitmap lazily, recording that it is clean when it is idle, and
//! putting it to rest at the end.
//!
//! A task, started by the first write that had to wait, on its worker; it ends when nothing is left to do.
//!
//! **Clearing bits.** The danger is a write that goes because it saw its bit, on one worker, while another clears it:
//!
//! 1. Bits that were not touched for a while are taken out of *ready*. A write that is resolved after that wants its bit, and
//!    waits for a slow path.
//! 2. [`TaskContext::quiesce`]: whatever was resolved while they were still ready has come to its end, on all members. It
//!    works by each worker passing a point between two bios, which is also what makes step 1 visible to what that worker
//!    resolves later (release, acquire): so it does not matter in which order one resolution reads gate, bits and members.
//! 3. With the turn: failures that were noticed by then are dealt with; degraded, the bits stay (they tell what the absent
//!    member lacks), and are ready again. All members flush. Then those bits are cleared which nobody has wanted or been
//!    given since step 1, and which are not kept. A write that failed without its member failing has been noted as kept before it counted as
//!    over in step 2; one that is to run again has wanted its bit before that, since running it again begins by
//!    resolving it. A write that wants its bit only now waits for the turn, finds it cleared, and sets it again.
//!
//! **Going clean.** The same with the gate in the place of the bits: Active becomes Leaving, all that passed comes to its end, and
//! then, with the turn, Leaving becomes Clean, unless a write has passed since, and so made it Active. From then on writes
//! wait for the turn; members flush, superblocks are written. Bad blocks that were written have left the lists before that.
//!
//! The turn is not held while waiting in `quiesce`: a bio may need it to come to its end.

use blockwork_engine::{Errno, Nanos, TaskContext, Turn};
use std::sync::atomic::Ordering;

use super::array::Array;
use super::gate::GateState;

/// An array without writes for so long is clean (Linux: `safe_mode_delay`).
const SAFE_MODE_DELAY: Nanos = Nanos::millis(200);

impl Array {
    /// Has somebody look after the array, if nobody does. With the turn.
    pub(super) fn start_upkeep(&self, cx: &TaskContext) {
        if !std::mem::replace(&mut self.books().upkeep, true) {
            let (array, own) = (self.itself(), cx.clone());
            cx.spawn(async move { array.look_after(&own).await });
        }
    }

    async fn look_after(&self, cx: &TaskContext) {
        let sleep = self.intent().map_or(SAFE_MODE_DELAY, |intent| intent.daemon_sleep());
        let mut bits_due = cx.now() + sleep;
        loop {
            let active = self.gate.state() != GateState::Clean;
            let until_bits = bits_due.since(cx.now());
            let pause = if active { SAFE_MODE_DELAY.min(until_bits) } else { until_bits };
            if !cx.pause(pause).await || self.sync.retired.load(Ordering::Acquire) {
                self.books().upkeep = false;
                return;
            }
            if cx.now() >= bits_due {
                self.clear_idle_bits(cx).await;
                bits_due = cx.now() + sleep;
            }
            if active && !self.busy.swap(false, Ordering::AcqRel) {
                self.go_clean(cx).await;
            }
            if self.ends_upkeep().await {
                return;
            }
        }
    }

    /// Whether nothing is left to look after; then this task is nobody's any more.
    async fn ends_upkeep(&self) -> bool {
        let _turn = self.turns.take().await;
        let active = self.gate.state() != GateState::Clean;
        let retired = self.sync.retired.load(Ordering::Acquire);
        let ends = retired || !active && !self.has_bits_to_clear();
        self.books().upkeep = !ends;
        ends
    }

    /// The turn, for what the array does by itself; none where it is retired, which is done with the turn, and may have been meanwhile.
    pub(super) async fn turn_to_look_after(&self) -> Option<Turn> {
        let turn = self.turns.take().await;
        (!self.sync.retired.load(Ordering::Acquire)).then_some(turn)
    }

    fn has_bits_to_clear(&self) -> bool {
        !self.is_degraded() && self.intent().is_some_and(|intent| intent.dirty_chunks().1 > 0)
    }

    async fn clear_idle_bits(&self, cx: &TaskContext) {
        let Some(intent) = self.intent() else { return };
        if !self.has_bits_to_clear() {
            return;
        }
        let idle = intent.withdraw_idle();
        if idle.is_empty() {
            return;
        }
        cx.quiesce().await;
        let Some(_turn) = self.turn_to_look_after().await else { return };
        if self.settle_with_turn(cx).await.is_err() || self.is_degraded() {
            intent.publish(&idle);
            return;
        }
        let mut refusals = self.flush_members(cx).await;
        if refusals.is_empty() {
            refusals = self.write_cleared(Some(&idle), cx).await;
        } else {
            intent.publish(&idle);
        }
        self.go_on_without(&refusals, cx).await;
    }

    async fn go_clean(&self, cx: &TaskContext) {
        if !self.gate.change(GateState::Active, GateState::Leaving) {
            return;
        }
        cx.quiesce().await;
        let Some(_turn) = self.turn_to_look_after().await else { return };
        let is_settled = self.settle_with_turn(cx).await.is_ok();
        // Where that fails, the next flush tells whoever wants to know; mirrors do not differ by it.
        let _ = self.settle_renewed(cx).await;
        if !is_settled || !self.gate.change(GateState::Leaving, GateState::Clean) {
            return;
        }
        match self.write_clean(cx).await {
            Ok(()) => self.gate.set(GateState::Clean),
            Err(errno) => log::error!("{}: cannot be marked clean: {errno}", self.name),
        }
    }

    /// All members have all writes: says so in the superblocks. With the turn, and a closed gate.
    async fn write_clean(&self, cx: &TaskContext) -> Result<(), Errno> {
        let refusals = self.flush_members(cx).await;
        self.give_up(&refusals, cx)?;
        self.books().clean = true;
        self.record_state(cx).await
    }

    /// Its volume is no more: what runs ends, and from then on nothing is written where it lies.
    pub(super) async fn retire(&self, cx: &TaskContext) -> Result<(), Errno> {
        // In this order: who looks what is due takes the last back, and then sees the others.
        self.sync.at_rest.store(true, Ordering::Release);
        self.sync.retired.store(true, Ordering::Release);
        self.sync.stop.store(true, Ordering::Release);
        drop(self.sync.running.take().await);
        drop(self.partings.turns.take().await);
        self.put_to_rest(cx).await
    }

    /// All clients and workers are gone: clears the bits of what all members have, and says that the array is clean.
    pub(super) async fn put_to_rest(&self, cx: &TaskContext) -> Result<(), Errno> {
        let _turn = self.turns.take().await;
        self.sync.at_rest.store(true, Ordering::Release);
        self.settle_with_turn(cx).await?;
        self.settle_renewed(cx).await?;
        if !self.books().opened || (self.gate.state() == GateState::Clean && !self.has_bits_to_clear()) {
            return Ok(());
        }
        self.gate.set(GateState::Clean);
        let refusals = self.flush_members(cx).await;
        self.give_up(&refusals, cx)?;
        if !self.is_degraded() {
            let refusals = self.write_cleared(None, cx).await;
            self.give_up(&refusals, cx)?;
        }
        self.books().clean = true;
        self.record_state(cx).await
    }
}
