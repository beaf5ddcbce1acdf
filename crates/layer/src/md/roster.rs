//! Who gets which role: spares take the places of members that failed or are missing, and replacements those of members that are
//! still there, but have refused a write, or are to go.
//!
//! A device that is not in sync gets a role only while readers choose with care, and after all that was resolved before that has
//! come to its end; so nobody reads it for a member. Writes go to it from then on. Its superblock, and the whole bitmap, are
//! written in the same step; a crash before that leaves a spare.

use std::sync::atomic::Ordering;

use blockwork_engine::{Limits, Sectors, TaskContext};

use super::array::{Array, discard_granule};
use super::devices::{DeviceIndex, Holders};
use super::member::Member;

impl Array {
    /// Gives roles without a member that works to those that can have them. With the turn, after a quiescence in which the
    /// array was known to be out of order.
    pub(super) async fn fill_roles(&self, cx: &TaskContext) {
        let mut changed = false;
        for (role, holders) in self.devices.roles() {
            let works = |index: Option<DeviceIndex>| {
                index.filter(|index| self.devices.get(*index).is_some_and(|member| !member.is_faulty()))
            };
            let (member, replacement) = (works(holders.member()), works(holders.replacement()));
            if member.is_some() {
                if replacement != holders.replacement() {
                    self.devices.set_holders(role, Holders::new(member, None));
                }
                continue;
            }
            if let Some(index) = replacement {
                if let Some(member) = self.devices.get(index) {
                    if self.may_differ_anywhere() {
                        // Nobody has read it so far: it may differ from the copy that clients have seen.
                        member.begin_recovery(false);
                    }
                    member.take_over();
                }
                self.devices.set_holders(role, Holders::new(Some(index), None));
                changed = true;
            } else if let Some(index) = self.spare(self.geometry().sectors_on_member(role)) {
                self.assign(index, role, Holders::new(Some(index), None));
                changed = true;
            }
        }
        changed |= self.replace_who_refused();
        if changed && let Err(errno) = self.record_change(cx).await {
            log::error!("{}: the new member is not on record: {errno}", self.name);
        }
    }

    /// Gives members that have refused a write a spare to replace them: one that nobody needs whose role has no member at all. Whether
    /// there was any.
    fn replace_who_refused(&self) -> bool {
        let mut changed = false;
        for (role, holders) in self.devices.roles() {
            let member = holders.member().and_then(|index| self.devices.get(index));
            let wants = member.is_some_and(|it| !it.is_faulty() && it.wants_replacement());
            if wants
                && holders.replacement().is_none()
                && let Some(spare) = self.spare(self.geometry().sectors_on_member(role))
            {
                self.assign(spare, role, Holders::new(holders.member(), Some(spare)));
                changed = true;
            }
        }
        changed
    }

    /// A device has a role from now on that takes no more than this says, while the array's limits were given out.
    pub(super) fn heed(&self, limits: &Limits) {
        let granule = discard_granule(limits);
        let _ = self.discard_granule.fetch_update(Ordering::AcqRel, Ordering::Acquire, |known| {
            Some(if granule == 0 || known == 0 { 0 } else { known.max(granule) })
        });
        // Others would do what it refuses, and a client that asked for fast zeroes, or none, would find them all the same.
        if limits.max_write_zeroes == Sectors::ZERO {
            self.no_fast_zeroes.store(true, Ordering::Relaxed);
        }
    }

    /// A device begins to be filled for a role, as a member or as a replacement. With the turn; who calls this records it.
    pub(super) fn assign(&self, index: DeviceIndex, role: u16, holders: Holders) {
        let Some(member) = self.devices.get(index) else { return };
        // What was resolved before this may miss the device, or be refused by it: it is filled after that.
        self.heed(member.layer().limits());
        self.choose_with_care();
        member.begin_recovery(holders.replacement() == Some(index));
        if let Some(intent) = self.intent() {
            intent.disk().all_changed();
        }
        self.devices.set_holders(role, holders);
        log::info!("{}: {} is filled with the data of member {role}", self.name, member.name);
    }

    /// A device that was filled has its role for itself. With the turn.
    pub(super) fn take_role(&self, index: DeviceIndex, role: u16) {
        if self.devices.holders(role).member() != Some(index) {
            self.devices.set_holders(role, Holders::new(Some(index), None));
        }
    }

    /// A spare with room for so much data, and blocks no larger than the array's.
    pub(super) fn spare(&self, needed: Sectors) -> Option<DeviceIndex> {
        let is_spare = |(index, member): &(DeviceIndex, &Member)| {
            self.is_spare(*index, member) && member.room() >= needed && self.has_blocks_of(member)
        };
        self.devices.all().find(is_spare).map(|(index, _)| index)
    }

    /// Whether a device takes all that the array is asked for.
    pub(super) fn has_blocks_of(&self, member: &Member) -> bool {
        member.layer().limits().logical_block_size <= self.form().shape.limits.logical_block_size
    }

    pub(super) fn is_spare(&self, index: DeviceIndex, member: &Member) -> bool {
        !member.is_faulty() && self.devices.role_of(index).is_none()
    }
}
