//! Parities that may not fit, since a write did not come to all members of its row, and which of them that is known of.
//!
//! | the row | what is noted |
//! | --- | --- |
//! | is all there | parities may not fit from there on, as far as a bitmap does not know better: a resync makes them fit ([`Array::note_difference`]) |
//! | lacks a member, or what one lists as bad | to the block, that its parities are bad: nothing is computed by them |
//! | likewise, of an array whose members have no lists of bad blocks, or no room in them | as the first |
//!
//! What nobody computes by need not fit: a resync could do nothing about it, since it knows the data as little as anybody else. All other rows
//! can be computed as before; so a spare that is filled lists no more than what is lost.
//!
//! Invariants:
//!
//! 1. A parity is bad in memory before its row is let go.
//! 2. It is in the member's list on disk before the array counts as clean there, or a bit of the bitmap goes: both are done by who has the turn, and has
//!    settled what failed, which this is a part of ([`Array::settle_with_turn`]). A crash before leaves an array that was not stopped properly.
//! 3. It is bad until it was written as a whole from data that all are known: by a client's write (`parity_write.rs`), or a resync, check or repair.

use std::sync::{Mutex, PoisonError};

use blockwork_engine::{Errno, Sector, Sectors, TaskContext};

use super::array::Array;
use super::bad_blocks::whole_blocks;
use super::devices::DeviceIndex;
use super::member::Member;

/// Parities that are bad in memory, and not in the lists on disk yet.
#[derive(Debug, Default)]
pub(super) struct Doubts(Mutex<Vec<(DeviceIndex, Sector, Sectors)>>);

impl Doubts {
    fn add(&self, device: DeviceIndex, sector: Sector, nr: Sectors) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((device, sector, nr));
    }

    fn take(&self) -> Vec<(DeviceIndex, Sector, Sectors)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Array {
    /// A device in this role has not taken what it was to have of these sectors of its data, which others may have their parts of. For who has the row.
    pub(super) fn doubt(&self, device: DeviceIndex, role: u16, sector: Sector, nr: Sectors) {
        let (mut at, end) = (sector, sector + nr);
        while at < end {
            let step = self.geometry().chunk_room(at).min(end.since(at));
            if self.may_differ(at, step) || self.has_all_of(at, step) || !self.spoil(device, role, at, step) {
                self.note_difference(at, step);
            }
            at = at + step;
        }
    }

    /// Whether members have all of these sectors of theirs: then a resync can make parities fit.
    fn has_all_of(&self, at: Sector, nr: Sectors) -> bool {
        let has = |member: &Member| member.is_complete() && member.readable(at, nr) == nr;
        (0..self.geometry().members()).all(|role| self.member(role).is_some_and(has))
    }

    /// Notes as bad what does not fit without the part of a device, in one chunk. Whether their lists have room for it.
    fn spoil(&self, device: DeviceIndex, role: u16, at: Sector, nr: Sectors) -> bool {
        let Some(parity) = self.geometry().as_parity() else { return false };
        let both = |role| {
            let holders = self.devices.holders(role);
            [holders.member(), holders.replacement()].into_iter().flatten()
        };
        let parities: Vec<u16> = parity.parities_of(parity.row(at)).map(|(role, _)| role).collect();
        let spoilt: Vec<DeviceIndex> = if self.device_of(role) != Some(device) || parities.contains(&role) {
            // Only what it has itself is old: the data fit what others have.
            Vec::from([device])
        } else {
            // It may have its part or not, or half of it; whoever is to replace it has to have the same.
            let replacing = both(role).filter(|other| *other != device);
            parities.iter().flat_map(|role| both(*role)).chain(replacing).collect()
        };
        let (start, nr) = whole_blocks(at, nr, &self.form().shape.limits);
        let lists = |device: DeviceIndex| {
            let Some(member) = self.devices.get(device).filter(|it| !it.is_faulty()) else { return true };
            let has_list = member.site.as_ref().is_some_and(|(_, site)| site.bad_blocks.is_some());
            let is_listed = has_list && member.bad.list(start, nr);
            if is_listed {
                self.doubts.add(device, start, nr);
            }
            is_listed
        };
        let is_listed = spoilt.into_iter().all(lists);
        self.stripe_cache.forget(at, nr);
        self.choose_with_care();
        is_listed
    }

    /// What is bad since parities may not fit goes into the lists on disk; where that cannot be, parities may not fit from there on. With the turn.
    pub(super) async fn list_doubts(&self, cx: &TaskContext) -> Result<(), Errno> {
        let doubts = self.doubts.take();
        if doubts.is_empty() {
            return Ok(());
        }
        for (device, member) in self.devices.all().filter(|(_, member)| !member.is_faulty()) {
            let of_device = doubts.iter().filter(|(other, ..)| *other == device);
            let ranges: Vec<_> = of_device.map(|(_, sector, nr)| (*sector, *nr)).collect();
            let Some((first, nr)) = ranges.first() else { continue };
            match self.write_bad_blocks(member, cx).await {
                Ok(()) => member.unfit.say(cx.now(), |more| {
                    log::error!(
                        "{}: of {nr} sectors at {} of member {} nobody knows whether they fit the data of their row, of which a write failed; its \
                         list of bad blocks says so until they are written anew{more}",
                        self.name,
                        member.at(*first),
                        member.name
                    );
                }),
                Err(errno) => {
                    log::error!(
                        "{}: the list of bad blocks of member {} cannot be written: {errno}; from sector {first} of members on parities may not fit",
                        self.name,
                        member.name
                    );
                    ranges.iter().for_each(|(sector, nr)| self.note_difference(*sector, *nr));
                }
            }
        }
        // Superblocks tell that there are lists.
        self.record_change(cx).await
    }
}
