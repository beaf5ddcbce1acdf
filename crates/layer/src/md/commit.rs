//! Writing down what is about to happen: bitmap and superblocks, before the writes that need them.
//!
//! Order, as in Linux: bits (with the bitmap's own superblock, which counts events too) on all members, then superblocks, then
//! the writes. Each step is durable (FUA) before the next begins. A crash between the first two leaves a bitmap that is ahead
//! of the superblocks, which means nothing; the other way round it would be taken for stale.
//!
//! One write of the bitmap serves all writes that wait: their bits are wanted from the moment when they were resolved, and
//! whoever has the turn takes all of them; the others find that nothing is left to do.
//!
//! Of superblocks, those of devices that are filled, and that are being filled, come first.
//!
//! A crash while superblocks are written leaves some members one event behind. That is fresh enough for Linux, and for us; two
//! would not be. So where members were found uneven, they are made even before the first new event.
//!
//! A member that refuses its bitmap or superblock has failed. That is written to the others, and so on, until all that are
//! left have it; the last one that has some data is never given up: then the array takes no writes, and the client hears of it.

use std::sync::atomic::Ordering;

use blockwork_engine::{Errno, Span, TaskContext};

use super::array::Array;
use super::devices::DeviceIndex;
use super::gate::GateState;
use super::intent::Run;
use super::io;
use super::member::Member;
use super::record::ArrayState;

/// A device that refused something.
pub(super) type Refusal = (DeviceIndex, Errno);

impl Array {
    /// Sees to it that a write to `span` may go.
    pub(super) async fn make_ready(&self, span: Span, cx: &TaskContext) -> Result<(), Errno> {
        let _turn = self.turns.take().await;
        self.settle_with_turn(cx).await?;
        let (sector, nr) = self.geometry().sync_range(span.sector, span.nr);
        let ready = self.intent().is_none_or(|intent| intent.is_ready(sector, nr));
        if !(ready && self.gate.pass()) {
            self.write_down(cx).await?;
        }
        self.start_upkeep(cx);
        Ok(())
    }

    /// Writes down that the array is active, and all bits that writes wait for. With the turn.
    async fn write_down(&self, cx: &TaskContext) -> Result<(), Errno> {
        let wanted = self.intent().map(|intent| intent.take_wanted()).unwrap_or_default();
        let (opened, clean) = {
            let books = self.books();
            (books.opened, books.clean)
        };
        let result = if clean || !opened {
            self.books().clean = false;
            self.record_state(cx).await
        } else {
            match self.write_intent(cx).await {
                refusals if refusals.is_empty() => Ok(()),
                refusals => self.give_up_and_record(&refusals, cx).await,
            }
        };
        if result.is_err() {
            // Not all say that it is active: the next write begins anew.
            self.books().clean = clean;
        }
        result?;
        if let Some(intent) = self.intent() {
            intent.publish(&wanted);
        }
        self.gate.set(GateState::Active);
        Ok(())
    }

    /// Writes the array's state, one event later, to all that take part. With the turn, and with a gate that lets no write
    /// pass which needs the new state.
    ///
    /// After a failure it is written twice. A member that is one event behind may have been cut off in the middle of an update,
    /// and is taken for current (mdadm does so, and says that the superblock of one that failed is in a wrong state): two
    /// events behind, it is known to be out of date. One step of two would do that to all that a power cut leaves behind.
    pub(super) async fn record_state(&self, cx: &TaskContext) -> Result<(), Errno> {
        loop {
            let (events, was_uneven) = {
                let mut books = self.books();
                let uneven = std::mem::take(&mut books.uneven);
                books.events += u64::from(!uneven);
                (books.events, uneven)
            };
            if let Some(intent) = self.intent() {
                let mut disk = intent.disk();
                disk.superblock.events = events;
                disk.superblock_changed();
            }
            let of_intent = self.write_intent(cx).await;
            // One that has been filled goes before the one whose data it has, if both refuse: that one is on record as in sync.
            let mut refusals = self.write_superblocks(cx).await;
            refusals.extend(of_intent);
            if refusals.is_empty() && !was_uneven {
                self.is_on_record();
                if !std::mem::take(&mut self.books().left_behind) {
                    return Ok(());
                }
                // A spare may take its place.
                self.sync.state().halted = false;
                self.look_for_sync(cx);
            }
            if let Err(errno) = self.give_up(&refusals, cx) {
                // Whoever stays without this event must not fall behind by another one: the next attempt has the same.
                self.books().uneven = true;
                return Err(errno);
            }
        }
    }

    /// All that take part say the same. The first time, bits that were set when they were found are usable from then on.
    fn is_on_record(&self) {
        if !std::mem::replace(&mut self.books().opened, true)
            && let Some(intent) = self.intent()
        {
            intent.publish_all();
        }
    }

    /// As `record_state`, where the gate lets writes pass that need no new state; it is as it was afterwards.
    pub(super) async fn record_change(&self, cx: &TaskContext) -> Result<(), Errno> {
        self.record_state(cx).await?;
        self.reopen();
        Ok(())
    }

    /// These members have failed; writes that down.
    pub(super) async fn give_up_and_record(
        &self,
        refusals: &[Refusal],
        cx: &TaskContext,
    ) -> Result<(), Errno> {
        self.give_up(refusals, cx)?;
        self.record_state(cx).await
    }

    /// As `give_up_and_record`, where nobody waits for it that could be told of an error: the next write is. Whether it goes on.
    pub(super) async fn go_on_without(&self, refusals: &[Refusal], cx: &TaskContext) -> bool {
        if refusals.is_empty() {
            return true;
        }
        let recorded = self.give_up_and_record(refusals, cx).await;
        match recorded {
            Ok(()) => self.reopen(),
            Err(errno) => log::error!("{}: its state cannot be written down: {errno}", self.name),
        }
        recorded.is_ok()
    }

    /// Writes what has changed of the bitmap to all members that take part; gives those that refused.
    pub(super) async fn write_intent(&self, cx: &TaskContext) -> Vec<Refusal> {
        let Some(intent) = self.intent() else { return Vec::new() };
        let runs = {
            let mut disk = intent.disk();
            if disk.has_changes() { disk.take_changes() } else { return Vec::new() }
        };
        let sites = self.taking_part().filter_map(|(index, member)| {
            let (_, site) = member.site.as_ref()?;
            Some((index, site, site.bitmap?))
        });
        let writes = sites.map(|(index, site, start)| {
            let runs = &runs;
            async move {
                for Run { offset, bytes } in runs {
                    let written = io::write_bytes(cx, &site.layer, start + *offset, bytes).await;
                    written.map_err(|errno| self.refused(index, "write-intent bitmap", errno, cx))?;
                }
                Ok(())
            }
        });
        let results: Vec<Result<(), Refusal>> = io::together(writes.collect()).await;
        results.into_iter().filter_map(Result::err).collect()
    }

    /// Writes superblocks to all devices but those that have failed; gives those that refused.
    ///
    /// Those of devices that are filled by now come first, then those of devices that are being filled. As long as the own superblock of
    /// one calls it a spare, or in sync, no other may say that it has a role, or whoever assembles the array after a crash would
    /// read it; and as long as it says that data is missing, no other may say that whoever had the data before is faulty.
    async fn write_superblocks(&self, cx: &TaskContext) -> Vec<Refusal> {
        let state = self.state(cx);
        let mut alive: Vec<_> = self.devices.all().filter(|(_, member)| !member.is_faulty()).collect();
        let turn = |member: &Member| match member.recovered() {
            Some(_) if member.is_complete() => 0,
            Some(_) => 1,
            None => 2,
        };
        alive.sort_by_key(|(_, member)| turn(member));
        for devices in alive.chunk_by(|(_, one), (_, other)| turn(one) == turn(other)) {
            let refusals = self.write_superblocks_of(devices, &state, cx).await;
            if !refusals.is_empty() {
                // The others do not know of this event, and must not fall behind by another one.
                self.books().uneven = true;
                return refusals;
            }
        }
        Vec::new()
    }

    /// As `write_superblocks`, at once. A spare that refuses is of no use, and has failed with that.
    async fn write_superblocks_of(
        &self,
        devices: &[(DeviceIndex, &Member)],
        state: &ArrayState,
        cx: &TaskContext,
    ) -> Vec<Refusal> {
        let Some(record) = &self.record else { return Vec::new() };
        let sites = devices.iter().filter_map(|(index, member)| Some((*index, member.site.as_ref()?)));
        let writes = sites.map(|(index, (at, site))| {
            let bytes = record.superblock(*at, state);
            async move { (index, io::write_bytes(cx, &site.layer, site.superblock, &bytes).await) }
        });
        let mut refusals = Vec::new();
        for (index, result) in io::together(writes.collect()).await {
            let Err(errno) = result else { continue };
            let refusal = self.refused(index, "superblock", errno, cx);
            match self.devices.get(index) {
                Some(spare) if self.devices.role_of(index).is_none() => spare.fail(),
                _ => refusals.push(refusal),
            }
        }
        refusals
    }

    fn refused(&self, index: DeviceIndex, what: &str, errno: Errno, cx: &TaskContext) -> Refusal {
        let role = self.devices.role_of(index).map_or("spare".into(), |role| format!("role {role}"));
        if let Some(member) = self.devices.get(index) {
            member.refusals.say(cx.now(), |more| {
                let (array, name) = (&self.name, &member.name);
                log::error!("{array}: {what} on member {name} ({role}) cannot be written: {errno}{more}");
            });
        }
        self.distrust_at_once(index, cx);
        (index, errno)
    }

    /// Makes all that was written durable; gives the members that refused. What was copied until it began counts as durable
    /// then.
    pub(super) async fn flush_members(&self, cx: &TaskContext) -> Vec<Refusal> {
        let synced = self.differ_from.load(Ordering::Acquire);
        let flushes = self.taking_part().map(|(index, member)| async move {
            let recovered = member.recovered();
            let flushed = member.flush(cx).await;
            flushed.map_err(|errno| self.refused(index, "cache", errno, cx))?;
            // One that is complete stays so, also where that could not be recorded: another may have been given up since.
            if let Some(end) = recovered.filter(|_| !member.is_complete()) {
                member.is_durable_to(Some(end));
            }
            Ok(())
        });
        let results: Vec<Result<(), Refusal>> = io::together(flushes.collect()).await;
        let refusals: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        if refusals.is_empty() {
            self.books().synced = synced;
        }
        refusals
    }

    /// Clears what may be cleared of the bitmap. Before a bit goes, the members say as of which event nothing but the bits
    /// is missing on a member that was there: one that comes back with fewer events has to be copied whole.
    pub(super) async fn write_cleared(
        &self,
        idle: Option<&[(usize, u64)]>,
        cx: &TaskContext,
    ) -> Vec<Refusal> {
        let Some(intent) = self.intent() else { return Vec::new() };
        intent.raise_events_cleared(self.books().events);
        let refusals = self.write_intent(cx).await;
        if !refusals.is_empty() {
            return refusals;
        }
        match idle {
            Some(idle) => intent.clear(idle),
            None => intent.clear_all(),
        }
        self.write_intent(cx).await
    }
}
