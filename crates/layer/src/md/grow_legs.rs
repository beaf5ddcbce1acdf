//! A RAID volume of LVM that becomes larger while it is served: its legs are other layers then, of which each is what the old one was, and more.
//!
//! The group's text says so before. Order of writes: (1) what copies stops at a checkpoint; no client's write is under way, and none begins
//! (a fence around everything). (2) All legs flush. (3) The bitmap is written for the new size, with the new part set. (4) Superblocks tell
//! of that size, and of a resync from the end of the old part. (5) Writes go on, and what was stopped, and the resync.
//!
//! A power cut before (4) leaves superblocks that tell of less than the text does, as where the volume grew while nobody served it: all that is
//! new may differ then, to Linux and to us. The other way round, with superblocks before bitmaps, Linux would take bits for those of the new
//! part that were never written.
//!
//! A leg that lacks data, and is filled, lacks the new part as well: one that is filled by the bitmap has it set there. Nothing is known of
//! the new part with a parity where a leg is missing: no resync makes it fit, so such a volume does not grow, as in Linux, which does not start it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use blockwork_engine::{Layer, Sector, Sectors, Shape, TaskContext};

use super::array::Array;
use super::form::Form;
use super::gate::GateState;
use super::geometry::Geometry;
use super::member::Member;
use super::record::{ArraySize, Record};
use super::verb_error::VerbError;

/// What a volume of LVM is when it has grown.
#[derive(Clone, Debug)]
pub struct GrownLegs {
    /// Where its sectors are: where they were, as far as there were any.
    pub geometry: Geometry,
    /// Its size, which is not that of whole rows.
    pub sectors: Sectors,
    /// Its legs, by role; none: as missing as before.
    pub legs: Vec<Option<Arc<dyn Layer>>>,
}

/// A leg that takes part, and what it is from now on.
type Growing<'a> = (&'a Member, &'a Arc<dyn Layer>);

impl Array {
    /// Whether its legs can become larger while it is served.
    ///
    /// # Errors
    ///
    /// Nothing may be written to it, it has a parity and lacks a leg, or it has grown too often.
    pub fn check_growing_legs(&self) -> Result<(), VerbError> {
        self.writable()?;
        self.check_growths()?;
        self.check_parity_of_legs()
    }

    fn check_parity_of_legs(&self) -> Result<(), VerbError> {
        if self.geometry().as_parity().is_some() && self.is_degraded() {
            return Err(VerbError::LacksLeg { array: self.name.clone() });
        }
        Ok(())
    }

    /// Goes on with larger legs, as large as the group's text says. Clients see it when they ask for the size again; the new part is resynced.
    ///
    /// # Errors
    ///
    /// As [`Array::check_growing_legs`]; a leg that is not what the text says. Nothing has changed then. Or its new state cannot be written
    /// down: no write goes before it is.
    pub async fn grow_legs(&self, cx: &TaskContext, grown: GrownLegs) -> Result<(), VerbError> {
        let record = self.writable()?;
        let hold = self.sync.hold().await;
        let result = self.grow_legs_alone(record, grown, cx).await;
        drop(hold);
        self.look_for_sync(cx);
        result
    }

    /// While nothing else copies.
    async fn grow_legs_alone(
        &self,
        record: &dyn Record,
        grown: GrownLegs,
        cx: &TaskContext,
    ) -> Result<(), VerbError> {
        let _still = self.stand_still(cx).await?;
        let GrownLegs { geometry, sectors, legs } = grown;
        let old = self.form();
        if geometry.sectors() <= old.geometry.sectors() {
            return Ok(());
        }
        let refusals = self.flush_members(cx).await;
        if !refusals.is_empty() {
            let recorded = self.give_up_and_record(&refusals, cx).await;
            recorded.map_err(|errno| self.io("its legs cannot be flushed", errno))?;
            self.reopen();
        }
        self.check_growths()?;
        self.check_parity_of_legs()?;
        let grows = self.check_legs(&geometry, &legs)?;
        let intent = old
            .intent
            .as_ref()
            .map(|intent| intent.grown(geometry.sync_sectors(), self.books().events, true));
        let bitmap = intent.as_ref().map(|intent| intent.disk().superblock.clone());
        let told: Vec<_> = self.told().filter_map(|(_, member)| Some(member.site.as_ref()?.0)).collect();
        let size = ArraySize { array: sectors, member: geometry.sectors_on_member(0) };
        record
            .resize(size, bitmap.as_ref(), &told)
            .map_err(|error| self.record_error("a metadata volume", error))?;
        for (member, leg) in grows {
            self.heed(leg.limits());
            member.grow(leg.clone());
        }
        self.differ_from.fetch_min(old.geometry.sync_sectors().0, Ordering::AcqRel);
        self.books().clean = true;
        self.gate.set(GateState::Clean);
        let shape = Shape { sectors: geometry.sectors(), ..old.shape.clone() };
        let taken = self.take_form(Form { shape, geometry, intent }, true, cx).await;
        taken.map_err(|errno| self.io("its new size is not on record", errno))
    }

    /// The legs that take part, each with what it is from now on.
    fn check_legs<'a>(
        &'a self,
        geometry: &Geometry,
        legs: &'a [Option<Arc<dyn Layer>>],
    ) -> Result<Vec<Growing<'a>>, VerbError> {
        let mut grows = Vec::with_capacity(legs.len());
        for (index, member) in self.taking_part() {
            let Some(role) = self.devices.role_of(index) else { continue };
            let (array, device) = (self.name.clone(), member.name.clone());
            let Some(leg) = legs.get(usize::from(role)).and_then(Option::as_ref) else {
                let (found, expected) = ("not there in its new size".into(), "a leg of that size");
                return Err(VerbError::State { array, device, found, expected });
            };
            let (found, needed) = (leg.sectors(), geometry.sectors_on_member(role));
            if found < needed || member.at(Sector(0)) != Sector(0) {
                return Err(VerbError::Small { array, device, found, needed });
            }
            let block = |limits: &blockwork_engine::Limits| limits.logical_block_size;
            let (found, expected) = (block(leg.limits()), block(&self.form().shape.limits));
            if found > expected {
                return Err(VerbError::Blocks { array, device, found, expected });
            }
            grows.push((member, leg));
        }
        Ok(grows)
    }
}
