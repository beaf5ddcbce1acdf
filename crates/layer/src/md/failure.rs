//! Members that refuse something: who is given up, and who is not.
//!
//! | what failed | what is done |
//! | --- | --- |
//! | a read | another copy is read at once; the place is written anew from it (`mend.rs`) |
//! | a write, discard or write-zeroes | the member has failed: it is left out, the others record it, then the bio runs again |
//! | a flush, also one behind a FUA | likewise: nobody knows what it has lost |
//! | a write without room or memory (ENOSPC of a sparse file, ENOMEM) | nothing is wrong with the member: the client hears of it. Mirrors may differ there now, and that is remembered |
//! | a write-zeroes that has to be fast, and is not on this member | likewise; none is tried any more |
//! | a discard that a member turns out not to support | the client hears of it; what was to be discarded has no defined content |
//! | anything, on the last member that has some data | the client hears of it |
//!
//! [`Layer::cure`](blockwork_engine::Layer::cure) decides, and writes nothing down but in memory. What it says of mirrors that
//! may differ is in place before the failed bio counts as over, so that the upkeep, which waits for that, never clears the
//! bit of a write that one member has and another has not. The same holds for members that failed: they are in the list
//! by then, and whoever has the turn looks at it first.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use blockwork_engine::{Cure, Errno, Failure, Op, Reason, Sector, Sectors, Span, TaskContext};

use super::array::Array;
use super::commit::Refusal;
use super::gate::GateState;
use super::geometry::{Place, Places};

/// A member that failed, to be dealt with.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedMember {
    pub(super) role: u16,
    pub(super) errno: Errno,
}

/// EDQUOT: the quota of a file system is used up.
const EDQUOT: Errno = Errno(122);

/// Whether a write failed for want of room, and not because of the disk.
fn lacks_room(errno: Errno) -> bool {
    errno == Errno::ENOSPC || errno == Errno::ENOMEM || errno == EDQUOT
}

impl Array {
    /// What is done about a failure below; see the module's head.
    pub(super) fn cure_failure(&self, failure: &Failure) -> Cure {
        let members = (0..).zip(&self.members);
        let mut found = members.filter_map(|(role, member)| Some((role, member.as_ref()?)));
        let Some((role, member)) = found.find(|(_, member)| member.layer.node() == failure.below) else {
            return Cure::None;
        };
        if self.geometry.copies() < 2 {
            return Cure::None;
        }
        if member.is_faulty() {
            return Cure::Again;
        }
        if failure.op == Op::Read {
            return self.cure_read(role, failure.span);
        }
        let discard = failure.op == Op::Discard && failure.errno == Errno::EOPNOTSUPP;
        if discard || self.record.is_none() {
            return Cure::None;
        }
        let unsupported = failure.op == Op::WriteZeroes && failure.errno == Errno::EOPNOTSUPP;
        if unsupported {
            self.no_fast_zeroes.store(true, Ordering::Relaxed);
        }
        if unsupported || (failure.op != Op::Flush && lacks_room(failure.errno)) {
            self.note_differences(role, failure.span);
            return Cure::None;
        }
        if !self.can_do_without(role) {
            self.note_differences(role, failure.span);
            return Cure::None;
        }
        let failed = FailedMember { role, errno: failure.errno };
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(failed);
        Cure::Defer(self.defer(failure.span, Reason::MemberFailed))
    }

    /// Mirrors may differ in what `span` of the member `role` holds, where there is another copy of it.
    fn note_differences(&self, role: u16, span: Span) {
        let Some(Some(member)) = self.members.get(usize::from(role)) else { return };
        let mut places = Places::new();
        let (mut at, mut left) = (Sector(span.sector.0.saturating_sub(member.data_start.0)), span.nr);
        while left > Sectors::ZERO {
            let chunk = self.geometry.chunk().unwrap_or(left);
            let nr = Sectors(chunk.0 - at.0 % chunk.0.max(1)).min(left);
            if let Some(sector) = self.geometry.to_array(Place { member: role, sector: at }) {
                self.geometry.places(sector, &mut places);
                if places.iter().any(|place| place.member != role && self.member(place.member).is_some()) {
                    self.note_difference(sector, nr);
                }
            }
            (at, left) = (at + nr, left - nr);
        }
    }

    /// Deals with the members that failed.
    pub(super) async fn settle_failures(&self, cx: &TaskContext) -> Result<(), Errno> {
        let _turn = self.turns.take().await;
        self.settle_with_turn(cx).await
    }

    /// As `settle_failures`, for who has the turn. The first thing to do with it.
    pub(super) async fn settle_with_turn(&self, cx: &TaskContext) -> Result<(), Errno> {
        let failed = std::mem::take(&mut *self.failed.lock().unwrap_or_else(PoisonError::into_inner));
        let mut refusals: Vec<Refusal> = Vec::new();
        for FailedMember { role, errno } in failed {
            let known = refusals.iter().any(|(known, _)| *known == role);
            if !known && self.member(role).is_some() {
                refusals.push((role, errno));
            }
        }
        if !refusals.is_empty() {
            // One that cannot be given up any more, since another went before it, stays: its bio fails when it is run again.
            refusals.retain(|refusal| self.give_up(std::slice::from_ref(refusal)).is_ok());
        }
        if refusals.is_empty() && self.gate.state() != GateState::Recording {
            return Ok(());
        }
        self.record_state(cx).await?;
        self.reopen();
        Ok(())
    }

    /// Declares members faulty, in memory; closes the gate first, so that no write leaves them out before that is on record.
    /// With the turn; who calls this records it next, and opens the gate again.
    ///
    /// # Errors
    ///
    /// The error of a member without which some data would have no copy: it stays.
    pub(super) fn give_up(&self, refusals: &[Refusal]) -> Result<(), Errno> {
        for (role, errno) in refusals {
            let Some(member) = self.member(*role) else { continue };
            if member.is_in_sync() && !self.can_do_without(*role) {
                log::error!(
                    "{}: member {} (role {role}) failed ({errno}), and stays, as it has the only copy of some data",
                    self.name,
                    member.name
                );
                if let Some(intent) = &self.intent {
                    intent.disk().all_changed();
                }
                return Err(*errno);
            }
            self.gate.set(GateState::Recording);
            member.fail();
            self.choose_with_care();
            log::error!(
                "{}: member {} (role {role}) has failed ({errno}); the array goes on without it. When the disk is replaced or \
                 found to be sound, `mdadm --manage ARRAY --add DISK` (LVM: `lvconvert --repair`) makes the array whole",
                self.name,
                member.name
            );
        }
        Ok(())
    }
}
