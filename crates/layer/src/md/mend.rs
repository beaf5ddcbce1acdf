//! Sectors that could not be read are written anew from another copy, as Linux does: disks then put others in their place.
//!
//! The read itself does not wait for that: the range is remembered, and the bio runs again on another copy. The mending is
//! a task of its own:
//!
//! 1. The range is published ([`Mending`]). Writes that meet it wait from now on.
//! 2. All that was resolved before that comes to its end ([`TaskContext::quiesce`]): no write to the range is under way.
//! 3. With the array's turn: the range is read from a good copy, written to the bad place with FUA, and read back. If that
//!    works it is forgotten, and counted in the superblock; if not, the member has failed.
//!
//! A write that meets the range before step 3 stops the mending, and goes: it may store other data there, which what was read
//! in step 3 would overwrite. The mending begins anew a little later. One that comes during step 3 waits for the turn.
//! Nothing is mended on an array of which nothing may be written; its ranges are just not read again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use blockwork_engine::{Cure, Errno, Nanos, Reason, Sector, Sectors, Span, TaskContext};

use super::array::Array;
use super::failure::FailedMember;
use super::geometry::{Place, Places};
use super::io;
use super::member::whole_blocks;

/// How long a mending waits after a write has stopped it.
const RETRY_AFTER: Nanos = Nanos::millis(20);

/// How often one range is tried. Whoever writes to it this often does the disk the same service.
const ATTEMPTS_MAX: u32 = 16;

/// Mended in one go, sectors: bounds memory.
const STEP: Sectors = Sectors(256);

/// A range of a member that could not be read.
#[derive(Clone, Copy, Debug)]
struct Unreadable {
    place: Place,
    nr: Sectors,
}

/// What is mended now, and what waits for it.
#[derive(Debug, Default)]
pub(super) struct Mending {
    /// The range of the array that is being mended; an end of 0: none.
    start: AtomicU64,
    end: AtomicU64,
    queue: Mutex<VecDeque<Unreadable>>,
    /// A task is at work on the queue. Changed while the queue is held.
    running: AtomicBool,
}

impl Mending {
    /// Whether a write to this range of the array has to wait. One that reads half of a change is resolved while the range
    /// is being published, and waited for.
    #[inline]
    pub(super) fn meets(&self, sector: Sector, nr: Sectors) -> bool {
        let end = self.end.load(Ordering::Acquire);
        end != 0 && sector.0 < end && self.start.load(Ordering::Acquire) < sector.0 + nr.0
    }

    fn publish(&self, sector: Sector, nr: Sectors) {
        self.start.store(sector.0, Ordering::Release);
        self.end.store(sector.0 + nr.0, Ordering::Release);
    }

    fn is_published(&self) -> bool {
        self.end.load(Ordering::Acquire) != 0
    }

    fn withdraw(&self) {
        self.end.store(0, Ordering::Release);
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Unreadable>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Array {
    /// What is done about a read that failed: on member `role`, at `span` of its layer.
    pub(super) fn cure_read(&self, role: u16, span: Span) -> Cure {
        let Some(member) = self.member(role) else { return Cure::Again };
        let sector = Sector(span.sector.0.saturating_sub(member.data_start.0));
        let (sector, nr) = whole_blocks(sector, span.nr, &self.shape.limits);
        let place = Place { member: role, sector };
        if member.readable(sector, nr) < nr {
            // Another bio has met it before.
            return Cure::Again;
        }
        if self.other_copy(place, nr).is_none() {
            return Cure::None;
        }
        if !member.add_bad(sector, nr) {
            return self.too_many_bad(role, span);
        }
        self.choose_with_care();
        if self.record.is_none() {
            return Cure::Again;
        }
        self.mending.queue().push_back(Unreadable { place, nr });
        Cure::Defer(self.defer(span, Reason::ReadError))
    }

    /// A member of which more cannot be read than is remembered.
    fn too_many_bad(&self, role: u16, span: Span) -> Cure {
        if self.record.is_none() || !self.can_do_without(role) {
            return Cure::None;
        }
        let failed = FailedMember { role, errno: Errno::EIO };
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(failed);
        Cure::Defer(self.defer(span, Reason::MemberFailed))
    }

    /// A copy of what is at `place`, on another member that can read all of it.
    fn other_copy(&self, place: Place, nr: Sectors) -> Option<Place> {
        let sector = self.geometry.to_array(place)?;
        let mut places = Places::new();
        self.geometry.places(sector, &mut places);
        places.retain(|other| other.member != place.member);
        let readable = |other: &&Place| {
            self.member(other.member).is_some_and(|member| member.readable(other.sector, nr) == nr)
        };
        places.iter().find(readable).copied()
    }

    /// Has the queue worked off, if nobody is at it.
    pub(super) fn start_mending(&self, cx: &TaskContext) {
        let queue = self.mending.queue();
        if !queue.is_empty() && !self.mending.running.swap(true, Ordering::AcqRel) {
            let (array, own) = (self.itself(), cx.clone());
            cx.spawn(async move { array.mend_all(&own).await });
        }
    }

    /// A write has met the range that is being mended: it goes first.
    pub(super) async fn stop_mending(&self) {
        let _turn = self.turns.take().await;
        self.mending.withdraw();
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

    async fn mend(&self, Unreadable { place, nr }: Unreadable, cx: &TaskContext) {
        let Some(sector) = self.geometry.to_array(place) else { return };
        for _ in 0..ATTEMPTS_MAX {
            self.mending.publish(sector, nr);
            cx.quiesce().await;
            let turn = self.turns.take().await;
            if self.mending.is_published() {
                self.mend_with_turn(place, nr, cx).await;
                self.mending.withdraw();
                return;
            }
            drop(turn);
            if !cx.pause(RETRY_AFTER).await {
                return;
            }
        }
    }

    /// Nobody writes to the range now.
    async fn mend_with_turn(&self, place: Place, nr: Sectors, cx: &TaskContext) {
        let Some(member) = self.member(place.member) else { return };
        let name = &member.name;
        match self.rewrite(place, nr, cx).await {
            Ok(true) => {
                member.remove_bad(place.sector, nr);
                self.choose_freely_again();
                self.count_corrected(place.member, nr);
                log::warn!(
                    "{}: {nr} sectors at {} of member {name} (role {}) could not be read; they were written anew from another copy",
                    self.name,
                    member.data_start + Sectors(place.sector.0),
                    place.member
                );
            }
            // No other copy can be read: nothing to write anew from.
            Ok(false) => {}
            Err(errno) => self.go_on_without(&[(place.member, errno)], cx).await,
        }
    }

    /// Copies a range from a good copy and reads it back. False where there is none; the error of the bad member.
    async fn rewrite(&self, place: Place, nr: Sectors, cx: &TaskContext) -> Result<bool, Errno> {
        let Some(member) = self.member(place.member) else { return Ok(false) };
        let mut done = Sectors::ZERO;
        while done < nr {
            let step = STEP.min(nr - done);
            let bad = Place { sector: place.sector + done, ..place };
            let Some(good) = self.other_copy(bad, step) else { return Ok(false) };
            let Some(source) = self.member(good.member) else { return Ok(false) };
            let from = source.data_start + Sectors(good.sector.0);
            let Ok(data) = io::read(cx, &source.layer, from, step).await else { return Ok(false) };
            let at = member.data_start + Sectors(bad.sector.0);
            io::write(cx, &member.layer, at, data).await?;
            io::read(cx, &member.layer, at, step).await?;
            done += step;
        }
        Ok(true)
    }
}
