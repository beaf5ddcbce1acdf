//! What a device was in this array before it is copied whole: that past must never come back by others who share it.
//!
//! An array of three or more may have been split: some of its members were used without the others, and those without them. One
//! that then comes to the other side is copied whole, and may be all that is left of that side one day. Who was used with it before is
//! let in by its superblock then, and by the bitmap, which knows nothing of the past that the two had: their tables of roles name each
//! other, as the one that was copied may have its slot again. So before it is copied,
//!
//! 1. the bitmap says that bits were cleared behind the end of that past (`events_cleared`): whoever shares it is too old for the
//!    bitmap, to us and to Linux;
//! 2. the array counts its events past that end: whoever shares it is out of date where all are assembled at once, where the most
//!    events win. Nor does Linux believe in bits that were cleared in the future: it takes that back to the events of the array.
//!
//! In this order, each durable before the next, and both before anything of the device is overwritten: after a power cut between
//! them its superblock is still there, and whoever adds it again begins anew. Only its events may be no more than the array's by then, so what
//! keeps it from being copied by the bitmap is (1).
//!
//! A power cut leaves a member behind by no more than one event: so there are as many updates as there are events to count.

use blockwork_engine::{Errno, Nanos, TaskContext};
use blockwork_format::md::v1::Superblock;

use super::array::Array;
use super::record::Record;
use super::verb_error::VerbError;
use super::verbs::NewMember;

/// Events that are counted at most, each by an update of all superblocks: minutes on an SSD.
const COUNTED_MAX: u64 = 1 << 20;

/// As many in one update, where one superblock is all that there is. Others that are added later count on from there.
const COUNTED_AT_ONCE_MAX: u64 = 1 << 48;

/// The first events that nobody has who shares a device's past: a power cut in the midst of an update may have left others one ahead.
fn end_of_past(own: &Superblock) -> u64 {
    own.events.saturating_add(2)
}

impl Array {
    /// Leaves behind what a device was in this array, if it does not come back by the bitmap. Takes the array's turn, again and
    /// again.
    ///
    /// # Errors
    ///
    /// It has counted so far ahead that it cannot be overtaken; the array cannot be written.
    pub(super) async fn leave_past(
        &self,
        record: &dyn Record,
        new: &NewMember,
        cx: &TaskContext,
    ) -> Result<(), VerbError> {
        let Some(own) = new.superblock.as_deref() else { return Ok(()) };
        let end = end_of_past(own);
        let refused = |errno| self.io("its state cannot be written", errno);
        loop {
            let turn = self.turns.take().await;
            self.settle_with_turn(cx).await.map_err(refused)?;
            if self.role_to_come_back_to(record, own, new, cx).is_some() {
                return Ok(());
            }
            self.check_overtakable(new, end)?;
            if record.was_apart(own, &self.state(cx)) {
                self.clear_past(end, cx).await.map_err(refused)?;
            }
            if self.books().events >= end {
                return Ok(());
            }
            self.count_towards(end);
            self.record_change(cx).await.map_err(refused)?;
            drop(turn);
            if !cx.pause(Nanos(0)).await {
                return Err(
                    self.io(&format!("{} is not added, as the server ends", new.name), Errno::ECANCELED)
                );
            }
        }
    }

    fn check_overtakable(&self, new: &NewMember, end: u64) -> Result<(), VerbError> {
        let ahead = end.saturating_sub(self.books().events);
        let most = if self.has_one_superblock() { COUNTED_AT_ONCE_MAX } else { COUNTED_MAX };
        if ahead <= most {
            return Ok(());
        }
        Err(VerbError::Ahead { array: self.name.clone(), device: new.name.clone(), ahead })
    }

    /// Nothing of what ended before `end` is in the bits.
    async fn clear_past(&self, end: u64, cx: &TaskContext) -> Result<(), Errno> {
        let Some(intent) = self.intent() else { return Ok(()) };
        intent.raise_events_cleared(end);
        let refusals = self.write_intent(cx).await;
        if refusals.is_empty() {
            return Ok(());
        }
        self.give_up_and_record(&refusals, cx).await?;
        self.reopen();
        Ok(())
    }

    /// One superblock is the old one or the new one, so the next update may take all steps at once.
    fn count_towards(&self, end: u64) {
        if self.has_one_superblock() {
            let mut books = self.books();
            books.events = books.events.max(end.saturating_sub(1));
        }
    }

    /// Whether there is nobody whom a power cut could leave behind: spares have superblocks too.
    fn has_one_superblock(&self) -> bool {
        self.devices.all().filter(|(_, member)| !member.is_faulty()).count() == 1
    }
}
