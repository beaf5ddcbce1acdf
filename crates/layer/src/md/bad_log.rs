//! A member's list of bad blocks on disk.
//!
//! It is durable before anything relies on it: before a write that left out a range is acknowledged, and before a device that
//! lacks a range counts as filled. Its superblock says that the list is not empty with the next change of state, which comes
//! before that too.

use blockwork_engine::{Errno, Sector, Sectors, TaskContext};
use blockwork_format::md::bad_blocks;

use super::array::Array;
use super::bad_blocks::Bad;
use super::devices::DeviceIndex;
use super::gate::GateState;
use super::io;
use super::member::Member;

impl Array {
    /// A write to this range of a member failed: it is left out from now on. Whether that is on record; if not, the member has
    /// failed. With the turn; the gate is closed before, so that no write leaves the range out too early.
    pub(super) async fn list_unwritable(
        &self,
        member: &Member,
        sector: Sector,
        nr: Sectors,
        cx: &TaskContext,
    ) -> bool {
        self.gate.set(GateState::Recording);
        self.choose_with_care();
        let listed =
            member.bad.add(sector, nr, Bad::Unwritable) && self.write_bad_blocks(member, cx).await.is_ok();
        if listed {
            log::error!(
                "{}: {nr} sectors at {} of member {} cannot be written; its list of bad blocks says so, and it goes on",
                self.name,
                member.at(sector),
                member.name
            );
        }
        listed
    }

    /// Writes a member's list. With the turn.
    pub(super) async fn write_bad_blocks(&self, member: &Member, cx: &TaskContext) -> Result<(), Errno> {
        let Some(log) = member.site.as_ref().and_then(|(_, site)| site.bad_blocks.as_ref()) else {
            return Err(Errno::EIO);
        };
        let list = member.bad.for_disk(member.data_start);
        let bytes = bad_blocks::encode(&list, log.shift, log.sectors).map_err(|error| {
            log::error!("{}: {}: {error}", self.name, member.name);
            Errno::ENOSPC
        })?;
        io::write_bytes(cx, &log.layer, log.start, &bytes).await
    }

    /// A range of a device was written, and can be read again: it is bad no more. With the turn.
    pub(super) async fn was_written_anew(
        &self,
        device: DeviceIndex,
        sector: Sector,
        nr: Sectors,
        cx: &TaskContext,
    ) {
        let Some(member) = self.devices.get(device) else { return };
        if member.bad.remove(sector, nr)
            && let Err(errno) = self.write_bad_blocks(member, cx).await
        {
            self.go_on_without(&[(device, errno)], cx).await;
        }
    }
}
