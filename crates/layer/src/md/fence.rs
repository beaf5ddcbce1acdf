//! Fences: ranges of an array that are being copied, and that no write may enter meanwhile.
//!
//! Whoever copies raises a fence, waits in [`blockwork_engine::TaskContext::quiesce`] until what was resolved before has come to its
//! end, copies, and lowers it. A write, discard or write-zeroes that meets a fence waits for it to be lowered, and is
//! resolved again. Reads go on.
//!
//! 1. A fence has one owner: whoever has the turn of its `passage`. Who waits for the fence waits for that turn, so the next range
//!    is not fenced before those that wait have had theirs: a write waits for one window of a resync, and no longer.
//! 2. One that would meet the fences of many windows (a discard of the whole array) waits until it has the turns of all, and so
//!    has a moment without any.
//! 3. Owners take the array's turn only after the fence, and nobody waits for a fence with the array's turn.
//! 4. A write that reads half of a change of a fence was resolved while that was being raised, and is waited for.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use blockwork_engine::{Sector, Sectors, Turn, Turns};

/// Windows of a resync that may be under way at once.
pub(super) const LANES: usize = 4;

/// The fence of those who mend.
pub(super) const MENDING: usize = LANES;

/// A range from here on counts as many windows.
const MANY: Sectors = Sectors(1 << 15);

#[derive(Debug, Default)]
struct Slot {
    start: AtomicU64,
    /// 0: not raised.
    end: AtomicU64,
    passage: Turns,
}

/// All fences of an array.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// How many are raised.
    raised: AtomicU32,
    slots: [Slot; LANES + 1],
}

/// A fence that is raised; dropped, it is lowered.
pub(super) struct Fence<'a> {
    fences: &'a Fences,
    slot: usize,
    _passage: Turn,
}

impl Fences {
    /// Whether a write to this range has to wait.
    #[inline]
    pub(super) fn meets(&self, sector: Sector, nr: Sectors) -> bool {
        self.raised.load(Ordering::Acquire) != 0 && self.slots.iter().any(|slot| slot.meets(sector, nr))
    }

    /// Raises a fence around `start..end` of the array, which is not empty.
    pub(super) async fn raise(&self, slot: usize, start: Sector, end: Sector) -> Fence<'_> {
        let passage = self.slots[slot].passage.take().await;
        self.slots[slot].start.store(start.0, Ordering::Release);
        self.slots[slot].end.store(end.0, Ordering::Release);
        self.raised.fetch_add(1, Ordering::AcqRel);
        Fence { fences: self, slot, _passage: passage }
    }

    /// Waits until the fences that a write to this range meets have been lowered.
    pub(super) async fn wait(&self, sector: Sector, nr: Sectors) {
        let mut held = Vec::new();
        for slot in &self.slots {
            if nr >= MANY {
                held.push(slot.passage.take().await);
            } else if slot.meets(sector, nr) {
                drop(slot.passage.take().await);
            }
        }
    }
}

impl Slot {
    fn meets(&self, sector: Sector, nr: Sectors) -> bool {
        let end = self.end.load(Ordering::Acquire);
        end != 0 && sector.0 < end && self.start.load(Ordering::Acquire) < sector.0 + nr.0
    }
}

impl Drop for Fence<'_> {
    fn drop(&mut self) {
        self.fences.slots[self.slot].end.store(0, Ordering::Release);
        self.fences.raised.fetch_sub(1, Ordering::AcqRel);
    }
}
