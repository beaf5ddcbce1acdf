//! A member's list of bad blocks on disk.
//!
//! It is durable before anything relies on it: before a write that left out a range is acknowledged, and before a device that
//! lacks a range counts as filled. Its superblock says that the list is not empty with the next change of state, which comes
//! before that too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blockwork_engine::{Errno, Sector, Sectors, TaskContext, Watch};
use blockwork_format::md::bad_blocks;

use super::array::Array;
use super::bad_blocks::Bad;
use super::devices::DeviceIndex;
use super::gate::GateState;
use super::geometry::{Place, Places};
use super::io;
use super::member::Member;

/// A write of ranges that could not be read so far, each of a device and where it is there.
#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) array: Arc<Array>,
    pub(super) ranges: Vec<(DeviceIndex, Sector, Sectors)>,
}

/// How many such writes there were, and how many of them are settled: those that are not yet hold up each flush, also one that comes while
/// another one settles them.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    made: AtomicU64,
    settled: AtomicU64,
}

impl Renewals {
    fn add(&self) {
        self.made.fetch_add(1, Ordering::AcqRel);
    }

    /// Up to where they are to be settled, if any are.
    fn due(&self) -> Option<u64> {
        let made = self.made.load(Ordering::Acquire);
        (made != self.settled.load(Ordering::Acquire)).then_some(made)
    }

    pub(super) fn are_due(&self) -> bool {
        self.due().is_some()
    }

    /// With the turn.
    fn settled(&self, due: u64) {
        self.settled.store(due, Ordering::Release);
    }
}

impl Watch for Renewal {
    fn done(&self, result: Result<(), Errno>) {
        if result.is_err() {
            return;
        }
        for (device, sector, nr) in &self.ranges {
            let Some(member) = self.array.devices.get(*device) else { continue };
            if member.bad.renew(*sector, *nr) {
                self.array.renewals.add();
            }
        }
    }
}

impl Array {
    /// A write to this range of a member failed: it is left out from now on. Whether that is on record; if not, the member has
    /// failed. With the turn; the gate is closed before, so that no write leaves the range out too early.
    pub(super) async fn list_unwritable(
        &self,
        device: DeviceIndex,
        sector: Sector,
        nr: Sectors,
        cx: &TaskContext,
    ) -> bool {
        let role = self.devices.role_of(device);
        let Some(member) = self.devices.get(device) else { return false };
        self.gate.set(GateState::Recording);
        self.choose_with_care();
        // The last copy is no matter of a list.
        let has_another = role.is_some_and(|role| self.has_copy(role, sector, nr, role));
        // As long as that is in no list on disk, writes go there still: if this one has to stay, they fail.
        let listed = has_another
            && member.bad.add(sector, nr, Bad::Stale)
            && self.write_bad_blocks_with((sector, nr), member, cx).await.is_ok()
            && member.bad.add(sector, nr, Bad::Unwritable);
        if listed {
            member.ask_for_replacement();
            member.unwritable.say(cx.now(), |more| {
                log::error!(
                    "{}: {nr} sectors at {} of member {} cannot be written; its list of bad blocks says so, and it goes on{more}",
                    self.name,
                    member.at(sector),
                    member.name
                );
            });
        }
        listed
    }

    /// Whether what is in the lists of others has a copy without the member of this role.
    pub(super) fn bad_have_copies(&self, without: u16) -> bool {
        self.bad_of_others(without).all(|(role, sector, nr)| self.has_copy(role, sector, nr, without))
    }

    /// What of it has none: role, sector, and how many.
    pub(super) fn bad_without_copy(&self, without: u16) -> Vec<(u16, Sector, Sectors)> {
        let has_none =
            |(role, sector, nr): &(u16, Sector, Sectors)| !self.has_copy(*role, *sector, *nr, without);
        self.bad_of_others(without).filter(has_none).collect()
    }

    fn bad_of_others(&self, without: u16) -> impl Iterator<Item = (u16, Sector, Sectors)> {
        let others = self.devices.roles().filter(move |(role, _)| *role != without);
        let others =
            others.filter_map(|(role, _)| Some((role, self.member(role).filter(|it| it.bad.any())?)));
        others.flat_map(|(role, member)| {
            member.bad.lacking().into_iter().map(move |(sector, nr)| (role, sector, nr))
        })
    }

    /// What a device that is to take the place of the member of this role lacks, and nobody else has but, maybe, that member.
    pub(super) fn lacks_alone(&self, device: DeviceIndex, role: u16) -> Vec<(Sector, Sectors)> {
        let Some(member) = self.devices.get(device).filter(|member| member.is_replacement()) else {
            return Vec::new();
        };
        let mut lacking = member.bad.lacking();
        lacking.retain(|(sector, nr)| !self.has_copy(role, *sector, *nr, role));
        lacking
    }

    /// Whether a range of a member's data can be read in sync from others, or computed from them, but for one of them.
    pub(super) fn has_copy(&self, role: u16, sector: Sector, nr: Sectors, without: u16) -> bool {
        let mut places = Places::new();
        let mut at = Place { member: role, sector };
        while at.sector < sector + nr {
            let step = self.step(at).min((sector + nr).since(at.sector));
            if let Some(parity) = self.geometry().as_parity() {
                let is_lost = |other: u16| {
                    let member = self.member(other).filter(|it| other != without && it.is_complete());
                    member.is_none_or(|member| member.readable(at.sector, step) < step)
                };
                if parity.way(parity.row(at.sector), role, &is_lost).is_none() {
                    return false;
                }
            } else if let Some(array) = self.geometry().to_array(at) {
                self.geometry().places(array, &mut places);
                let reads = |place: &Place| {
                    let other = place.member != without && place.member != role;
                    let member = self.member(place.member).filter(|member| other && member.is_complete());
                    member.is_some_and(|member| member.readable(place.sector, step) == step)
                };
                if !places.iter().any(reads) {
                    return false;
                }
            }
            at.sector = at.sector + step;
        }
        true
    }

    /// Writes a member's list. With the turn.
    pub(super) async fn write_bad_blocks(&self, member: &Member, cx: &TaskContext) -> Result<(), Errno> {
        self.write_bad_blocks_but(&[], None, member, cx).await
    }

    /// Likewise, with a range that is not in it yet.
    pub(super) async fn write_bad_blocks_with(
        &self,
        more: (Sector, Sectors),
        member: &Member,
        cx: &TaskContext,
    ) -> Result<(), Errno> {
        self.write_bad_blocks_but(&[], Some(more), member, cx).await
    }

    /// Likewise, without what was written of it.
    async fn write_bad_blocks_but(
        &self,
        renewed: &[(Sector, Sectors)],
        more: Option<(Sector, Sectors)>,
        member: &Member,
        cx: &TaskContext,
    ) -> Result<(), Errno> {
        let Some(log) = member.site.as_ref().and_then(|(_, site)| site.bad_blocks.as_ref()) else {
            return Err(Errno::EIO);
        };
        let list = member.bad.for_disk_but(renewed, more, member.data_start);
        let bytes = bad_blocks::encode(&list, log.shift, log.sectors).map_err(|error| {
            log::error!("{}: {}: {error}", self.name, member.name);
            Errno::ENOSPC
        })?;
        io::write_bytes(cx, &log.layer, log.start, &bytes).await
    }

    /// As `settle_renewed`, for who does not have the turn.
    pub(super) async fn take_off_lists(&self, cx: &TaskContext) -> Result<(), Errno> {
        let _turn = self.turns.take().await;
        self.settle_renewed(cx).await
    }

    /// What clients have written of the lists of bad blocks leaves them, behind a flush of what was written. Where a member that has to stay
    /// does not take its new list, that is due again: what was written could not be read after the next start. With the turn.
    pub(super) async fn settle_renewed(&self, cx: &TaskContext) -> Result<(), Errno> {
        let Some(due) = self.renewals.due() else { return Ok(()) };
        for (device, member) in self.devices.all() {
            let renewed = member.bad.renewed();
            if renewed.is_empty() || member.is_faulty() {
                continue;
            }
            if let Err(errno) = self.settle_renewed_of(member, &renewed, cx).await
                && !self.go_on_without(&[(device, errno)], cx).await
            {
                return Err(errno);
            }
        }
        self.renewals.settled(due);
        self.choose_freely_again();
        Ok(())
    }

    async fn settle_renewed_of(
        &self,
        member: &Member,
        renewed: &[(Sector, Sectors)],
        cx: &TaskContext,
    ) -> Result<(), Errno> {
        member.flush(cx).await?;
        self.write_bad_blocks_but(renewed, None, member, cx).await?;
        member.bad.settle(renewed);
        let nr = renewed.iter().fold(Sectors::ZERO, |all, (_, nr)| all + *nr);
        log::info!(
            "{}: {nr} bad sectors of member {} were written, and have left its list",
            self.name,
            member.name
        );
        Ok(())
    }

    /// A range of a member was written anew, by who has made sure of it, and is durable: as a client's write has it, it leaves the list with the
    /// next flush.
    pub(super) fn was_cured(&self, member: &Member, sector: Sector, nr: Sectors) {
        if member.bad.cure(sector, nr) {
            self.renewals.add();
        }
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
