//! An array that becomes larger, after its members did. (Of a volume of LVM, with its legs: `grow_legs.rs`.)
//!
//! Order of writes: (1) no client's write is under way, and none begins (a fence around everything). (2) All members flush, and
//! superblocks tell of the new size, of no bitmap, and of a resync from the end of the old part. (3) The bitmap is written for the
//! new size. (4) Superblocks tell of it. A crash leaves an array of one size or the other; from 2 to 4 it has no
//! bitmap.
//!
//! A crash in the midst of 2 leaves superblocks of both sizes. Whoever assembles the array takes all of these devices for
//! members, at the size of the newest: nothing is written behind the old part before all superblocks tell of it, and those that
//! do tell of a resync. So nothing is lost with either size, and mirrors that differ are known.

use std::sync::atomic::Ordering;

use blockwork_engine::{Errno, Nanos, Sector, Sectors, Shape, TaskContext, Turn};

use super::array::Array;
use super::devices::DeviceIndex;
use super::fence::Fence;
use super::form::Form;
use super::gate::GateState;
use super::geometry::Geometry;
use super::member::Member;
use super::record::{ArraySize, Record};
use super::sync_status::SyncAction;
use super::verb_error::VerbError;

/// How often it looks again whether something copies.
const LOOK: Nanos = Nanos::millis(1);

/// As long as this lives, no write is under way, and nobody else changes the array's state.
pub(super) struct Standstill<'a> {
    _turn: Turn,
    _fence: Fence<'a>,
}

impl Array {
    /// Makes the array use `to` sectors of each member (none: as much as all of them have, spares too), and gives its new size. Clients see it
    /// when they ask for the size again. Mirrors are resynced in the new part, unless they are said to agree there.
    ///
    /// # Errors
    ///
    /// Far copies; of rows with a parity a member that is missing; members or spares without room; a bitmap without room for its new bits; a resync that is under way.
    pub async fn grow(
        &self,
        cx: &TaskContext,
        to: Option<Sectors>,
        assume_clean: bool,
    ) -> Result<Sectors, VerbError> {
        let record = self.changeable()?;
        let running = self.while_nothing_copies(cx).await?;
        let result = self.grow_alone(record, to, assume_clean, cx).await;
        drop(running);
        self.look_for_sync(cx);
        result
    }

    /// Who looks what is due has the turn for a moment also where nothing is.
    async fn while_nothing_copies(&self, cx: &TaskContext) -> Result<Turn, VerbError> {
        loop {
            if let Some(turn) = self.sync.running.try_take() {
                return Ok(turn);
            }
            let action = self.sync_status().action;
            if action != SyncAction::Idle || !cx.pause(LOOK).await {
                return Err(VerbError::Busy { array: self.name.clone(), action });
            }
        }
    }

    /// While nothing else copies.
    async fn grow_alone(
        &self,
        record: &dyn Record,
        to: Option<Sectors>,
        assume_clean: bool,
        cx: &TaskContext,
    ) -> Result<Sectors, VerbError> {
        let _still = self.stand_still(cx).await?;
        let geometry = self.grown_geometry(to)?;
        if !assume_clean && geometry.as_parity().is_some() && self.is_degraded() {
            return Err(VerbError::Degraded { array: self.name.clone() });
        }
        self.grow_to(record, geometry, assume_clean, cx).await?;
        Ok(self.form().shape.sectors)
    }

    /// Waits until no write is under way, with nothing that failed before left to be recorded. While nothing copies.
    pub(super) async fn stand_still(&self, cx: &TaskContext) -> Result<Standstill<'_>, VerbError> {
        let fence = self.fences.raise(0, Sector(0), Sector(u64::MAX)).await;
        cx.quiesce().await;
        let turn = self.turns.take().await;
        self.settle_with_turn(cx).await.map_err(|errno| self.io("its state cannot be written", errno))?;
        Ok(Standstill { _turn: turn, _fence: fence })
    }

    /// Devices whose superblocks tell of the new size.
    pub(super) fn told(&self) -> impl Iterator<Item = (DeviceIndex, &Member)> {
        self.devices.all().filter(|(_, member)| !member.is_faulty())
    }

    /// The geometry with more of each member.
    fn grown_geometry(&self, to: Option<Sectors>) -> Result<Geometry, VerbError> {
        let old = self.geometry();
        let used = old.sectors_on_member(0);
        // As in Linux, spares count: one without room could take nobody's place any more.
        let smallest = self.told().min_by_key(|(_, member)| member.room());
        let (room, device, is_spare) = smallest
            .map_or((Sectors::ZERO, String::new(), false), |(index, it)| {
                (it.room(), it.name.clone(), self.is_spare(index, it))
            });
        let no_room = || {
            let (array, device) = (self.name.clone(), device.clone());
            VerbError::NoRoom { array, used, device, is_spare, room, wanted: to }
        };
        if to.is_some_and(|to| to > room) {
            return Err(no_room());
        }
        self.check_growths()?;
        let grown =
            old.grown(to.unwrap_or(room)).ok_or_else(|| VerbError::FarLayout { array: self.name.clone() })?;
        let grown = grown.map_err(|_| no_room())?;
        if grown.sectors() > old.sectors() { Ok(grown) } else { Err(no_room()) }
    }

    pub(super) fn check_growths(&self) -> Result<(), VerbError> {
        if self.forms.has_room() && self.devices.all().all(|(_, member)| member.can_grow()) {
            return Ok(());
        }
        let reason = "it has grown too often since it was opened; serve it anew to make it larger".to_owned();
        Err(VerbError::Full { array: self.name.clone(), reason })
    }

    async fn grow_to(
        &self,
        record: &dyn Record,
        geometry: Geometry,
        assume_clean: bool,
        cx: &TaskContext,
    ) -> Result<(), VerbError> {
        let old = self.form();
        let size = |of: &Geometry| ArraySize { array: of.sectors(), member: of.sectors_on_member(0) };
        let (from, to) = (size(&old.geometry), size(&geometry));
        let events = self.books().events;
        let dirty = !assume_clean;
        let intent = old.intent.as_ref().map(|intent| intent.grown(geometry.sync_sectors(), events, dirty));
        let bitmap = intent.as_ref().map(|intent| intent.disk().superblock.clone());
        let told: Vec<_> = self.told().filter_map(|(_, member)| Some(member.site.as_ref()?.0)).collect();
        record.resize(to, bitmap.as_ref(), &told).map_err(|error| self.record_error("a member", error))?;
        let refusals = self.flush_members(cx).await;
        let flushed = self.give_up(&refusals, cx);
        let end = Sector(old.geometry.sync_sectors().0);
        if dirty {
            self.differ_from.fetch_min(end.0, Ordering::AcqRel);
        }
        {
            let mut books = self.books();
            books.without_bitmap = intent.is_some();
            // Nothing is under way, and everything is flushed.
            books.clean = true;
        }
        self.gate.set(GateState::Clean);
        let written = match flushed {
            Ok(()) => self.record_state(cx).await,
            refused => refused,
        };
        if let Err(errno) = written {
            self.books().without_bitmap = false;
            let was = old.intent.as_ref().map(|intent| intent.disk().superblock.clone());
            record.resize(from, was.as_ref(), &[]).map_err(|error| self.record_error("a member", error))?;
            return Err(self.io("its new size is not on record", errno));
        }
        let shape = Shape { sectors: geometry.sectors(), ..old.shape.clone() };
        let taken = self.take_form(Form { shape, geometry, intent }, dirty, cx).await;
        taken.map_err(|errno| self.io("its new bitmap is not on record", errno))
    }

    /// The array has another form, as it says with its bitmap and superblocks from now on. All that was written is durable, and the gate is
    /// closed: where that cannot be written down, the next write tries it again.
    pub(super) async fn take_form(&self, form: Form, differs: bool, cx: &TaskContext) -> Result<(), Errno> {
        if differs {
            self.choose_with_care();
        }
        self.forms.replace(form);
        self.books().without_bitmap = false;
        self.record_state(cx).await?;
        if let Some(intent) = self.intent() {
            intent.publish_all();
        }
        self.reopen();
        self.start_upkeep(cx);
        Ok(())
    }
}
