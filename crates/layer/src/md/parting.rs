//! Members that fail while others list as bad what only they make up for, in arrays with a parity.
//!
//! Such a member is not given up at once: where it only refuses writes, what the others lack may still be computed by what it has. So what it
//! alone makes up for is written anew to whoever lists it, which cures it there as a client's write does. Then the member is given up. What could
//! not be saved stays in the lists, which are on disk, and whoever reads it is told so, as under Linux. Were the member kept for that, each write
//! that it has a part in would fail, for ever.
//!
//! [`Array::give_up`](super::array::Array::give_up) says that such a member is about to go, and has a task see to that. Whoever has met it does so
//! itself, or waits for who does: with neither the turn nor a row nor room for memory, and without others in its rows waiting for it. A write of rows is
//! done by then but for that member's parts, and counts when it has gone.
//!
//! Invariants:
//!
//! 1. What such a member has is read only where it is what belongs there: a part of a write that it has not taken is noted as old before the row is
//!    let go. If it may have lost something, it saves nothing, and neither does another one that is distrusted.
//! 2. What is saved is read, computed and written with its row held, and only where it is still bad then: no client's write comes in between.
//! 3. A member goes for the sake of others' lists only if all that it alone makes up for is in lists on disk. What of it was saved has left them
//!    before its absence is on record, as far as who lists it takes its list.
//!
//! Mirrors do without this: the member stays. (There, writes that are under way to the range have to be waited for, which nobody may do whose
//! write is one of them.)

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use blockwork_engine::{Errno, NodeId, Sector, Sectors, TaskContext, Turns};

use super::array::Array;
use super::bad_blocks::Bad;
use super::commit::Refusal;
use super::devices::DeviceIndex;
use super::geometry::Place;
use super::member::Member;
use super::stripe_cache;

/// Saved in one go, sectors: bounds memory.
const STEP: Sectors = Sectors(256);

/// What a role lists.
type Listed = (u16, Sector, Sectors);

/// Members that are about to be given up.
#[derive(Debug, Default)]
pub(super) struct Partings {
    /// Who sees to them.
    pub(super) turns: Turns,
    leaving: Mutex<Vec<Refusal>>,
    /// How many have gone.
    gone: AtomicU64,
}

impl Partings {
    fn leaving(&self) -> MutexGuard<'_, Vec<Refusal>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether that is one more that is about to go.
    pub(super) fn add(&self, refusal: Refusal) -> bool {
        let mut leaving = self.leaving();
        let is_new = leaving.iter().all(|(device, _)| *device != refusal.0);
        leaving.extend(is_new.then_some(refusal));
        is_new
    }

    pub(super) fn has(&self, device: DeviceIndex) -> bool {
        self.leaving().iter().any(|(other, _)| *other == device)
    }

    fn next(&self) -> Option<Refusal> {
        self.leaving().first().copied()
    }

    fn gone(&self) -> u64 {
        self.gone.load(Ordering::Acquire)
    }
}

impl Array {
    /// Whether a member that is needed is so only for what others list, and may go once that is saved, or known to be lost.
    pub(super) fn may_part_with(&self, device: DeviceIndex) -> bool {
        let stays = self.devices.get(device).is_none_or(Member::has_to_stay);
        !stays
            && self.record.is_some()
            && !self.sync.retired.load(Ordering::Acquire)
            && self.geometry().as_parity().is_some()
            && self.devices.role_of(device).is_some_and(|role| self.has_all_data_without(role))
    }

    /// Does what may fail for a member that is about to go: once more when that has gone. For who has neither the turn nor a row.
    pub(super) async fn parting(
        &self,
        cx: &TaskContext,
        attempt: impl AsyncFn() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        loop {
            let before = self.partings.gone();
            let result = attempt().await;
            self.part(cx).await;
            if result.is_ok() || self.partings.gone() == before {
                return result;
            }
        }
    }

    /// Gives up those that are about to go, or waits until that is done. For who has neither the turn nor a row.
    pub(super) async fn part(&self, cx: &TaskContext) {
        while let Some((device, errno)) = self.partings.next() {
            let _turn = self.partings.turns.take().await;
            // Somebody else may have seen to it meanwhile.
            if !self.partings.has(device) {
                continue;
            }
            // Whoever retires the array waits for that turn before it does.
            if !self.sync.retired.load(Ordering::Acquire) {
                self.part_with(device, errno, cx).await;
            }
            let is_gone = self.devices.get(device).is_none_or(Member::is_faulty);
            self.partings.gone.fetch_add(is_gone.into(), Ordering::AcqRel);
            self.partings.leaving().retain(|(other, _)| *other != device);
        }
    }

    async fn part_with(&self, device: DeviceIndex, errno: Errno, cx: &TaskContext) {
        let Some(role) = self.devices.role_of(device) else { return };
        let mut tried: Vec<Listed> = Vec::new();
        let _turn = loop {
            let untried = self.untried(role, &tried);
            for (lister, sector, nr) in untried {
                self.save(device, Place { member: lister, sector }, nr, cx).await;
                tried.push((lister, sector, nr));
            }
            let turn = self.turns.take().await;
            // Meanwhile, somebody may have refused more.
            if self.untried(role, &tried).is_empty() {
                break turn;
            }
        };
        let Some(member) = self.devices.get(device).filter(|member| !member.is_faulty()) else { return };
        if self.has_to_stay(device) {
            // Says so.
            let _ = self.give_up(&[(device, errno)], cx);
            return;
        }
        let lost = self.bad_without_copy(role);
        for lost in &lost {
            if !self.is_in_a_list(lost, cx).await {
                // What it refuses is its own from now on.
                member.stay();
                let _ = self.give_up(&[(device, errno)], cx);
                return;
            }
        }
        lost.iter().for_each(|lost| self.say_lost(lost, member));
        self.gives_up(member, &format!("role {role}"), errno);
        // Where that fails, the next flush hears of it. Now nobody who does not take its list is given up in this one's stead.
        let _ = self.settle_renewed(cx).await;
        match self.record_state(cx).await {
            Ok(()) => self.reopen(),
            Err(errno) => log::error!("{}: its state cannot be written down: {errno}", self.name),
        }
    }

    /// What others list, only this one makes up for, and was not tried to be saved.
    fn untried(&self, role: u16, tried: &[Listed]) -> Vec<Listed> {
        let is_in = |(lister, sector, nr): &Listed, (other, start, all): &Listed| {
            lister == other && start <= sector && *sector + *nr <= *start + *all
        };
        let mut untried = self.bad_without_copy(role);
        untried.retain(|one| !tried.iter().any(|other| is_in(one, other)));
        untried
    }

    /// Whether what is lost is in a list on disk. What a member has only not taken, and would have if the array were assembled anew, is put there.
    /// With the turn.
    async fn is_in_a_list(&self, (lister, sector, nr): &Listed, cx: &TaskContext) -> bool {
        let Some(member) = self.member(*lister) else { return false };
        !member.bad.is_stale_range(*sector, *nr)
            || (self.write_bad_blocks_with((*sector, *nr), member, cx).await.is_ok()
                && member.bad.add(*sector, *nr, Bad::Listed))
    }

    fn say_lost(&self, (lister, sector, nr): &Listed, leaving: &Member) {
        let Some(lister) = self.member(*lister) else { return };
        log::error!(
            "{}: {nr} sectors at {} of member {} are bad, and could not be saved before member {} goes, which alone made up for them: they are \
             lost, and so is what that one had beside them",
            self.name,
            lister.at(*sector),
            lister.name,
            leaving.name
        );
    }

    /// Writes anew what a member lists, as far as that can be had with one that is about to go.
    async fn save(&self, leaving: DeviceIndex, place: Place, nr: Sectors, cx: &TaskContext) {
        let mut done = Sectors::ZERO;
        while done < nr {
            let at = Place { sector: place.sector + done, ..place };
            let step = STEP.min(self.geometry().chunk_room(at.sector)).min(nr - done);
            if !self.save_piece(leaving, at, step, cx).await {
                let mut skip = Sectors::ZERO;
                while skip < step {
                    let block = self.block().min(step - skip);
                    self.save_piece(leaving, Place { sector: at.sector + skip, ..at }, block, cx).await;
                    skip += block;
                }
            }
            done += step;
        }
    }

    /// Whether a piece, which is in one chunk, is no longer bad.
    async fn save_piece(&self, leaving: DeviceIndex, place: Place, nr: Sectors, cx: &TaskContext) -> bool {
        let Place { member: role, sector } = place;
        let Some(lister) = self.device_of(role) else { return false };
        let (Some(member), Some(other)) = (self.devices.get(lister), self.devices.get(leaving)) else {
            return false;
        };
        let (at, all) = stripe_cache::whole(sector, nr);
        let _held = self.stripes.hold(at, all).await;
        let data = loop {
            // A client may have written it, or have had it saved.
            if member.readable(sector, nr) == nr {
                return true;
            }
            if other.has_lost() {
                return false;
            }
            let trust = self.trust();
            let without = self.no_sources(lister, leaving);
            let data = self.computed(role, sector, nr, &without, cx).await;
            if self.check_trust(trust).is_ok() && !other.has_lost() {
                break data;
            }
        };
        let Ok(data) = data else { return false };
        self.stripe_cache.forget(sector, nr);
        let written = match member.write(sector, data, true, cx).await {
            Ok(()) => member.read(sector, nr, cx).await.map(drop),
            Err(errno) => Err(errno),
        };
        if let Err(errno) = written {
            log::error!(
                "{}: {nr} bad sectors at {} of member {} cannot be written anew: {errno}",
                self.name,
                member.at(sector),
                member.name
            );
            return false;
        }
        self.was_cured(member, sector, nr);
        log::warn!(
            "{}: {nr} bad sectors at {} of member {} were written anew, by what member {} has, which is about to be given up",
            self.name,
            member.at(sector),
            member.name,
            other.name
        );
        member.readable(sector, nr) == nr
    }

    /// Who is not read for what is saved: who lists it, and whoever may have lost something.
    fn no_sources(&self, lister: DeviceIndex, leaving: DeviceIndex) -> Vec<NodeId> {
        let is_none = |(device, member): &(DeviceIndex, &Member)| {
            *device == lister || (*device != leaving && member.is_distrusted())
        };
        self.devices.all().filter(is_none).map(|(_, member)| member.layer().node()).collect()
    }
}
