//! Sectors that could not be read are written anew from another copy, as Linux does: disks then put others in their place.
//!
//! The read itself does not wait for that: the range is remembered, and the bio runs again on another copy. The mending is
//! a task of its own:
//!
//! 1. A fence is raised around the range (`fence.rs`): no write to it is under way from then on.
//! 2. With the array's turn: the range is read from a good copy, written to the bad place with FUA, and read back. If that
//!    works it is forgotten, and counted in the superblock; if not, the member has failed.
//!
//! Nothing is mended on an array of which nothing may be written; its ranges are just not read again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use blockwork_engine::{Cure, Errno, Reason, Sector, Sectors, Span, TaskContext};
use blockwork_memory::Segment;

use super::array::Array;
use super::bad_blocks::{Bad, whole_blocks};
use super::devices::DeviceIndex;
use super::failure::FailedMember;
use super::fence::MENDING;
use super::geometry::{Place, Places};
use super::member::Member;

/// Mended in one go, sectors: bounds memory.
const STEP: Sectors = Sectors(256);

/// What is done about a range that could not be read. Of the parts of a range, the last of these counts: which part it was nobody knows, and
/// as long as something can be read elsewhere, the others may be well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unread {
    /// It is the last copy.
    Last,
    /// It was known, or the device has no role any more: whoever reads again chooses another copy.
    Known,
    /// More than is remembered.
    TooMany,
    /// It will be mended.
    Noted,
}

/// A range of a member that could not be read.
#[derive(Clone, Copy, Debug)]
struct Unreadable {
    device: DeviceIndex,
    place: Place,
    nr: Sectors,
}

/// What waits to be mended.
#[derive(Debug, Default)]
pub(super) struct Mending {
    queue: Mutex<VecDeque<Unreadable>>,
    /// A task is at work on the queue. Changed while the queue is held.
    running: AtomicBool,
}

impl Mending {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Unreadable>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Array {
    /// What is done about a read that failed: on a device, at `span` of its layer.
    pub(super) fn cure_read(&self, device: DeviceIndex, span: Span) -> Cure {
        let Some(member) = self.devices.get(device) else { return Cure::Again };
        let sector = Sector(span.sector.0.saturating_sub(member.data_start.0));
        match self.note_unreadable(device, sector, span.nr) {
            Unread::Known => Cure::Again,
            Unread::Last => Cure::None,
            Unread::TooMany if self.record.is_none() && self.geometry().as_parity().is_some() => {
                self.doubt_all(member);
                Cure::Again
            }
            Unread::TooMany if self.record.is_none() || self.is_needed(device) => Cure::None,
            Unread::TooMany => {
                self.has_failed(FailedMember { device, errno: Errno::EIO, bad: None, lacks: None });
                Cure::Defer(self.defer(span, Reason::MemberFailed))
            }
            Unread::Noted if self.record.is_none() => Cure::Again,
            Unread::Noted => Cure::Defer(self.defer(span, Reason::ReadError)),
        }
    }

    /// A member that is not mended has refused too many places to remember: all that it has is computed, as far as that can be.
    fn doubt_all(&self, member: &Member) {
        log::error!(
            "{}: {} cannot be read in too many places: what it has is computed from the other members from now on, as far as they can be read",
            self.name,
            member.name
        );
        member.bad.forget_unread();
        member.bad.add(Sector(0), self.geometry().sync_sectors(), Bad::Unread);
    }

    /// A range of a device's data cannot be read: it is not read again until it has been mended.
    pub(super) fn note_unreadable(&self, device: DeviceIndex, sector: Sector, nr: Sectors) -> Unread {
        let (Some(member), Some(role)) = (self.devices.get(device), self.devices.role_of(device)) else {
            return Unread::Known;
        };
        let (mut sector, mut left) = whole_blocks(sector, nr, &self.form().shape.limits);
        let mut all = Unread::Last;
        while left > Sectors::ZERO {
            let nr = self.geometry().chunk_room(sector).min(left);
            all = all.max(self.note_unreadable_in_chunk(device, member, Place { member: role, sector }, nr));
            (sector, left) = (sector + nr, left - nr);
        }
        all
    }

    fn note_unreadable_in_chunk(
        &self,
        device: DeviceIndex,
        member: &Member,
        place: Place,
        nr: Sectors,
    ) -> Unread {
        if member.readable(place.sector, nr) < nr {
            return Unread::Known;
        }
        let others_have_it = match self.geometry().as_parity() {
            Some(_) => self.way(place, nr, &[member.layer().node()]).is_some(),
            None => self.other_copy(place, nr).is_some(),
        };
        if !others_have_it {
            return Unread::Last;
        }
        if !member.bad.add(place.sector, nr, Bad::Unread) {
            return Unread::TooMany;
        }
        self.choose_with_care();
        if self.record.is_none() {
            log::warn!(
                "{}: {nr} sectors at {} of member {} cannot be read; what others have is read instead",
                self.name,
                member.at(place.sector),
                member.name
            );
        } else {
            self.mending.queue().push_back(Unreadable { device, place, nr });
        }
        Unread::Noted
    }

    /// A write of `span` failed on a device in this role that has to stay. Where another copy can be read, that may be newer: this one is not read until it
    /// has been written anew, by a resync, since mirrors may differ there.
    pub(super) fn note_stale(&self, member: &Member, role: u16, span: Span) {
        let limits = &self.form().shape.limits;
        let start = Sector(span.sector.0.saturating_sub(member.data_start.0));
        let (mut sector, mut left) = whole_blocks(start, span.nr, limits);
        while left > Sectors::ZERO {
            let mut nr = self.geometry().chunk_room(sector).min(left);
            let place = Place { member: role, sector };
            let readable = |(other, member): (Place, &Member)| member.readable(other.sector, nr);
            let newer = self.others(place).map(readable).max().unwrap_or_default();
            if newer > Sectors::ZERO {
                nr = newer;
                if member.bad.add(sector, nr, Bad::Stale) {
                    self.choose_with_care();
                }
            } else {
                nr = nr.min(whole_blocks(sector, Sectors(1), limits).1);
            }
            (sector, left) = (sector + nr, left - nr);
        }
    }

    /// The other copies of what is at `place`, each with its member.
    fn others(&self, place: Place) -> impl Iterator<Item = (Place, &Member)> {
        let mut places = Places::new();
        if let Some(sector) = self.geometry().to_array(place) {
            self.geometry().places(sector, &mut places);
        }
        let others = places.into_iter().filter(move |other| other.member != place.member);
        others.filter_map(|other| Some((other, self.member(other.member)?)))
    }

    /// A copy of what is at `place`, on another member that can read all of it.
    fn other_copy(&self, place: Place, nr: Sectors) -> Option<Place> {
        let readable = self.others(place).filter(|(other, member)| member.readable(other.sector, nr) == nr);
        readable.min_by_key(|(_, member)| member.last_choice()).map(|(other, _)| other)
    }

    /// Has the queue worked off, if nobody is at it.
    pub(super) fn start_mending(&self, cx: &TaskContext) {
        let queue = self.mending.queue();
        if !queue.is_empty() && !self.mending.running.swap(true, Ordering::AcqRel) {
            let (array, own) = (self.itself(), cx.clone());
            cx.spawn(async move { array.mend_all(&own).await });
        }
    }

    async fn mend_all(&self, cx: &TaskContext) {
        loop {
            let next = {
                let mut queue = self.mending.queue();
                let next = queue.pop_front();
                self.mending.running.store(next.is_some(), Ordering::Release);
                next
            };
            let Some(unreadable) = next else { return };
            self.mend(unreadable, cx).await;
        }
    }

    async fn mend(&self, Unreadable { device, place, nr }: Unreadable, cx: &TaskContext) {
        let Some(sector) = self.geometry().to_sync(place) else { return };
        let _fence = self.fences.raise(MENDING, sector, sector + nr).await;
        cx.quiesce().await;
        let Some(_turn) = self.turn_to_look_after().await else { return };
        let has_role = self.devices.role_of(device) == Some(place.member);
        let Some(member) = self.devices.get(device).filter(|member| has_role && !member.is_faulty()) else {
            return;
        };
        match self.rewrite(member, place, nr, cx).await {
            Ok(true) => {
                self.was_written_anew(device, place.sector, nr, cx).await;
                self.choose_freely_again();
                member.count_corrected(nr);
                log::warn!(
                    "{}: {nr} sectors at {} of member {} (role {}) could not be read; they were written anew from another copy",
                    self.name,
                    member.at(place.sector),
                    member.name,
                    place.member
                );
            }
            // No other copy can be read: nothing to write anew from.
            Ok(false) => {}
            Err(errno) => {
                self.go_on_without(&[(device, errno)], cx).await;
                self.look_for_sync(cx);
            }
        }
    }

    /// What others have of what is at a place of a member, or what it is computed from.
    async fn good_copy(
        &self,
        member: &Member,
        place: Place,
        nr: Sectors,
        cx: &TaskContext,
    ) -> Option<Segment> {
        if self.geometry().as_parity().is_some() {
            return self.computed(place.member, place.sector, nr, &[member.layer().node()], cx).await.ok();
        }
        let good = self.other_copy(place, nr)?;
        self.member(good.member)?.read(good.sector, nr, cx).await.ok()
    }

    /// Copies a range from a good copy and reads it back. False where there is none; the error of the bad member.
    async fn rewrite(
        &self,
        member: &Member,
        place: Place,
        nr: Sectors,
        cx: &TaskContext,
    ) -> Result<bool, Errno> {
        let mut done = Sectors::ZERO;
        while done < nr {
            let step = STEP.min(nr - done);
            let bad = Place { sector: place.sector + done, ..place };
            let trust = self.trust();
            let Some(data) = self.good_copy(member, bad, step, cx).await else { return Ok(false) };
            if self.check_trust(trust).is_err() {
                continue;
            }
            self.stripe_cache.forget(bad.sector, step);
            member.write(bad.sector, data, true, cx).await?;
            member.read(bad.sector, step, cx).await?;
            done += step;
        }
        Ok(true)
    }
}
