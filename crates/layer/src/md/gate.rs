//! The gate of an array: whether writes may go.
//!
//! ```text
//!            make_ready                upkeep: idle
//!   Clean ───────────────▶ Active ◀─────────────────▶ Leaving ──▶ Clean
//!                            ▲ │      a write came       upkeep, when all writes are over
//!                            │ ▼ a member failed
//!                          Recording
//! ```
//!
//! Writes pass while it is Active. One that meets Leaving makes it Active again, without waiting: the superblocks still say
//! active then. All other changes are made by slow paths that have the array's turn, but for Active to Leaving.
//!
//! Orderings: stores release, loads acquire. So who passes an active gate sees that the superblocks said so before, and who
//! has seen a failed member ([`super::member::Member::is_faulty`]) sees the gate closed, or opened again afterwards.

use std::sync::atomic::{AtomicU8, Ordering};

/// States of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum GateState {
    /// Superblocks say that all is well: to be changed before a write goes. Also: not opened yet.
    Clean,
    /// Superblocks say that writes may be under way.
    Active,
    /// As `Active`, but about to be closed unless a write comes.
    Leaving,
    /// A member has failed, and the others do not say so yet.
    Recording,
}

/// The gate of an array, closed at first.
#[derive(Debug, Default)]
pub(super) struct Gate(AtomicU8);

impl Gate {
    pub(super) fn state(&self) -> GateState {
        match self.0.load(Ordering::Acquire) {
            0 => GateState::Clean,
            1 => GateState::Active,
            2 => GateState::Leaving,
            _ => GateState::Recording,
        }
    }

    /// Whether a write may go.
    #[inline]
    pub(super) fn pass(&self) -> bool {
        let state = self.0.load(Ordering::Acquire);
        state == GateState::Active as u8
            || (state == GateState::Leaving as u8 && self.change(GateState::Leaving, GateState::Active))
    }

    pub(super) fn set(&self, state: GateState) {
        self.0.store(state as u8, Ordering::Release);
    }

    /// From one state to another; false where it was in a third one.
    pub(super) fn change(&self, from: GateState, to: GateState) -> bool {
        let changed = self.0.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
        // Somebody else's write may have made it active just before.
        changed.is_ok() || changed == Err(to as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_keeps_an_idle_array_active_and_passes_no_other_gate() {
        let gate = Gate::default();
        assert!(!gate.pass());
        gate.set(GateState::Active);
        assert!(gate.pass() && gate.change(GateState::Active, GateState::Leaving));
        assert!(gate.pass());
        assert_eq!(gate.state(), GateState::Active);
        gate.set(GateState::Recording);
        assert!(!gate.pass() && !gate.change(GateState::Leaving, GateState::Clean));
        assert_eq!(gate.state(), GateState::Recording);
    }
}
