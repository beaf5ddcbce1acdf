//! Writing down what is about to happen: bitmap and superblocks, before the writes that need them.
//!
//! Order, as in Linux: bits (with the bitmap's own superblock, which counts events too) on all members, then superblocks, then
//! the writes. Each step is durable (FUA) before the next begins. A crash between the first two leaves a bitmap that is ahead
//! of the superblocks, which means nothing; the other way round it would be taken for stale.
//!
//! One write of the bitmap serves all writes that wait: their bits are wanted from the moment when they were resolved, and
//! whoever has the turn takes all of them; the others find that nothing is left to do.
//!
//! A crash while superblocks are written leaves some members one event behind. That is fresh enough for Linux, and for us; two
//! would not be. So where members were found uneven, they are made even before the first new event.
//!
//! A member that refuses its bitmap or superblock has failed. That is written to the others, and so on, until all that are
//! left have it; the last one that has some data is never given up: then the array takes no writes, and the client hears of it.

use blockwork_engine::{Errno, Sectors, Span, TaskContext};

use super::array::Array;
use super::gate::GateState;
use super::intent::Run;
use super::io;

/// A role whose device refused something.
pub(super) type Refusal = (u16, Errno);

impl Array {
    /// Sees to it that a write to `span` may go.
    pub(super) async fn make_ready(&self, span: Span, cx: &TaskContext) -> Result<(), Errno> {
        let _turn = self.turns.take().await;
        self.settle_with_turn(cx).await?;
        let ready = self.intent.as_ref().is_none_or(|intent| intent.is_ready(span.sector, span.nr));
        if !(ready && self.gate.pass()) {
            self.write_down(cx).await?;
        }
        self.start_upkeep(cx);
        Ok(())
    }

    /// Writes down that the array is active, and all bits that writes wait for. With the turn.
    async fn write_down(&self, cx: &TaskContext) -> Result<(), Errno> {
        let wanted = self.intent.as_ref().map(|intent| intent.take_wanted()).unwrap_or_default();
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
        if let Some(intent) = &self.intent {
            if opened { intent.publish(&wanted) } else { intent.publish_all() }
        }
        self.books().opened = true;
        self.gate.set(GateState::Active);
        Ok(())
    }

    /// Writes the array's state, one event later, to all that take part. With the turn, and with a gate that lets no write
    /// pass which needs the new state.
    pub(super) async fn record_state(&self, cx: &TaskContext) -> Result<(), Errno> {
        loop {
            let (events, was_uneven) = {
                let mut books = self.books();
                let uneven = std::mem::take(&mut books.uneven);
                books.events += u64::from(!uneven);
                (books.events, uneven)
            };
            if let Some(intent) = &self.intent {
                let mut disk = intent.disk();
                disk.superblock.events = events;
                disk.superblock_changed();
            }
            let mut refusals = self.write_intent(cx).await;
            refusals.extend(self.write_superblocks(cx).await);
            if refusals.is_empty() && !was_uneven {
                return Ok(());
            }
            if let Err(errno) = self.give_up(&refusals) {
                // Whoever stays without this event must not fall behind by another one: the next attempt has the same.
                self.books().uneven = true;
                return Err(errno);
            }
        }
    }

    /// These members have failed; writes that down.
    pub(super) async fn give_up_and_record(
        &self,
        refusals: &[Refusal],
        cx: &TaskContext,
    ) -> Result<(), Errno> {
        self.give_up(refusals)?;
        self.record_state(cx).await
    }

    /// As `give_up_and_record`, where nobody waits for it that could be told of an error: the next write is.
    pub(super) async fn go_on_without(&self, refusals: &[Refusal], cx: &TaskContext) {
        if refusals.is_empty() {
            return;
        }
        match self.give_up_and_record(refusals, cx).await {
            Ok(()) => self.reopen(),
            Err(errno) => log::error!("{}: its state cannot be written down: {errno}", self.name),
        }
    }

    /// Writes what has changed of the bitmap to all members that take part; gives those that refused.
    pub(super) async fn write_intent(&self, cx: &TaskContext) -> Vec<Refusal> {
        let (Some(intent), Some(record)) = (&self.intent, &self.record) else { return Vec::new() };
        let runs = {
            let mut disk = intent.disk();
            if disk.has_changes() { disk.take_changes() } else { return Vec::new() }
        };
        let sites =
            record.sites().iter().filter(|site| site.role.is_some_and(|role| self.member(role).is_some()));
        let writes =
            sites.filter_map(|site| Some((site, site.role?, site.bitmap?))).map(|(site, role, start)| {
                let runs = &runs;
                async move {
                    for Run { offset, bytes } in runs {
                        let written = io::write_bytes(cx, &site.layer, start + *offset, bytes).await;
                        written
                            .map_err(|errno| self.refused(role, &site.name, "write-intent bitmap", errno))?;
                    }
                    Ok(())
                }
            });
        let results: Vec<Result<(), Refusal>> = io::together(writes.collect()).await;
        results.into_iter().filter_map(Result::err).collect()
    }

    /// Writes superblocks to all sites but those of members that have failed; gives the members that refused.
    async fn write_superblocks(&self, cx: &TaskContext) -> Vec<Refusal> {
        let Some(record) = &self.record else { return Vec::new() };
        let state = self.state(cx);
        let dead = self.books().dead_sites.clone();
        let sites = record.sites().iter().enumerate();
        let alive =
            sites.filter(|(at, site)| !dead[*at] && site.role.is_none_or(|role| self.member(role).is_some()));
        let writes = alive.map(|(at, site)| {
            let bytes = record.superblock(at, &state);
            async move { (at, io::write_bytes(cx, &site.layer, site.superblock, &bytes).await) }
        });
        let mut refusals = Vec::new();
        for (at, result) in io::together(writes.collect()).await {
            let Err(errno) = result else { continue };
            let site = &record.sites()[at];
            match site.role {
                Some(role) => refusals.push(self.refused(role, &site.name, "superblock", errno)),
                None => {
                    log::warn!("{}: superblock of spare {} cannot be written: {errno}", self.name, site.name);
                    self.books().dead_sites[at] = true;
                }
            }
        }
        refusals
    }

    fn refused(&self, role: u16, name: &str, what: &str, errno: Errno) -> Refusal {
        log::error!("{}: {what} on member {name} (role {role}) cannot be written: {errno}", self.name);
        (role, errno)
    }

    /// Makes all that was written durable; gives the members that refused.
    pub(super) async fn flush_members(&self, cx: &TaskContext) -> Vec<Refusal> {
        let flushes = self.taking_part().map(|(role, member)| async move {
            io::flush(cx, &member.layer)
                .await
                .map_err(|errno| self.refused(role, &member.name, "cache", errno))
        });
        let results: Vec<Result<(), Refusal>> = io::together(flushes.collect()).await;
        results.into_iter().filter_map(Result::err).collect()
    }

    /// Clears what may be cleared of the bitmap. Before a bit goes, the members say as of which event nothing but the bits
    /// is missing on a member that was there: one that comes back with fewer events has to be copied whole.
    pub(super) async fn write_cleared(
        &self,
        idle: Option<&[(usize, u64)]>,
        cx: &TaskContext,
    ) -> Vec<Refusal> {
        let Some(intent) = &self.intent else { return Vec::new() };
        let events = self.books().events;
        {
            let mut disk = intent.disk();
            if disk.superblock.events_cleared < events {
                disk.superblock.events_cleared = events;
                disk.superblock_changed();
            }
        }
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

    /// How many sectors of member `role` a superblock counts as mended.
    pub(super) fn count_corrected(&self, role: u16, nr: Sectors) {
        if let Some(count) = self.books().corrected.get_mut(usize::from(role)) {
            *count = count.saturating_add(u32::try_from(nr.0).unwrap_or(u32::MAX));
        }
    }
}
