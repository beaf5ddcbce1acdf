//! What a server tells of itself while its disks are away (`--migratable`): that it is there, where guests find its volumes, and what keeps
//! the disks from being open.
//!
//! Invariant: it holds nothing of a disk; and it is gone before the control socket of open disks is made, which is at the same place.

use anyhow::Result;
use blockwork_daemon::{Away, ControlHandle, ControlState, VolumeStatus};
use blockwork_engine::Stats;
use blockwork_insight::trace::TraceHub;

use super::{sandbox, start_control};

/// Why disks are away that nobody waits for.
const UNUSED: &str = "no guest uses them";

/// The control socket of a server whose disks are away.
pub(super) struct AwayControl {
    away: Away,
    _control: ControlHandle,
}

impl AwayControl {
    /// Tells of these volumes, as they were last.
    pub(super) fn open<'a>(volumes: impl Iterator<Item = &'a VolumeStatus>) -> Result<AwayControl> {
        let away = Away::because(UNUSED);
        let mut state = ControlState::new(Stats::new(Vec::new()).into(), TraceHub::new(&[]));
        state.set_sandboxed(sandbox::is_in());
        state.set_away(away.clone());
        volumes.for_each(|volume| state.volumes().add_away(volume.clone()));
        Ok(AwayControl { away, _control: start_control(state)? })
    }

    /// A guest waits for its disks, because of this.
    pub(super) fn is_waited_for(&self, error: &str) {
        self.away.set(&format!("a guest waits for them: {error}"));
    }

    /// None does any more.
    pub(super) fn is_unused(&self) {
        self.away.set(UNUSED);
    }
}
