//! Writing to rows with a parity.
//!
//! A write is a task ([`Layer::carry_out`](blockwork_engine::Layer::carry_out)): the bio counts as under way meanwhile, so that fences, the upkeep and clients' claims
//! wait for it as they do for a write to mirrors. It is done in units: the same sectors of all members, within a row, of which the same members
//! are written. For each:
//!
//! 1. The unit's sectors are held (`stripes.rs`): nobody else writes there, or computes by what is there. What others write of the same sectors of
//!    other members is written with it (`parity_gather.rs`).
//! 2. The data are copied. A guest may change its memory while it is written; the parity would not fit what was stored, and what it makes up
//!    for is other people's data.
//! 3. The new parities come from what takes fewer reads: the data that are not written (*reconstruct-write*), or what is written over and the
//!    old parities (*read-modify-write*). What was written or read there lately is known (`stripe_cache.rs`). Where parities may not fit the data,
//!    they come from the former. Where a member lacks what would be read, from what it had: that is computed.
//! 4. Data and parities are written at once.
//!
//! Invariants:
//!
//! 1. A write has succeeded when every member that takes part has its part of it, data or parity; of those that have not, the superblocks of the
//!    others say that they failed, or their lists of bad blocks that it is bad, durably. No more than what parities make up for. Where one is about
//!    to go (`parting.rs`), what it has there is old from the moment that the row is let go, and the write counts when it has gone.
//! 2. Where some had their parts, and others that stay had not, parities do not count until they were made to fit (`parity_doubt.rs`). A parity that is
//!    bad is not written by halves: all of it, from data that are all known, or none.
//! 3. What is read for a parity was not read from a device that may have lost it ([`Array::check_trust`]).
//!
//! A crash between the writes of a unit leaves a parity that does not fit. The bitmap, or the superblocks, tell of that; the next one to
//! assemble the array resyncs it. If a member is missing then, what it had in that unit may be lost (the *write hole*), as under Linux.

use std::sync::atomic::Ordering;

use blockwork_engine::{
    Bio, Counter, Cure, Defer, Errno, Failure, Flags, Gf256, Op, Resolver, Sector, Sectors, Span,
    TaskContext, Watch, add_times,
};
use blockwork_memory::{Segment, Segments, copy_between, slice_segments};

use super::array::Array;
use super::bad_blocks::Bad;
use super::bad_log::Renewal;
use super::devices::DeviceIndex;
use super::failure::is_no_fault_of_the_disk;
use super::geometry::Place;
use super::io;
use super::member::Member;
use super::mend::Unread;
use super::parity::Parity;
use super::parity_gather::{Gathering, Part, Sources, UnderWay};
use super::stripe_cache::{self, Known};

/// Sectors of all members in a unit, at most, where it is more than a block of each.
const UNIT_OF_ALL: u64 = 4096;

/// Units of one write that are under way at once.
const AT_ONCE: usize = 8;

/// The same sectors of all members of a row, of some of which all are written.
#[derive(Debug, PartialEq, Eq)]
struct Unit {
    row: u64,
    at: Sector,
    nr: Sectors,
    /// Members that are written, each with where that is in the write, sectors.
    written: Vec<(u16, Sectors)>,
}

/// What the rows that a write touches are cut into: `nr` sectors from `sector` on, within the row.
fn units_of_row(parity: &Parity, sector: Sector, nr: Sectors, most: Sectors) -> Vec<Unit> {
    let chunk = parity.chunk().0;
    let end = sector.0 + nr.0;
    let base = sector.0 / parity.row_sectors().0 * parity.row_sectors().0;
    let row = base / parity.row_sectors().0;
    // Where the sets of members that are written change, within a chunk.
    let mut cuts = [0, sector.0 % chunk, (end - 1) % chunk + 1, chunk];
    cuts.sort_unstable();
    let data: Vec<u16> = parity.data_of(row).collect();
    let mut units = Vec::new();
    for (from, to) in cuts.into_iter().zip(cuts.into_iter().skip(1)).filter(|(from, to)| from < to) {
        let place = |nth: u64| base + nth * chunk;
        let is_written = |nth: &u64| sector.0 <= place(*nth) + from && place(*nth) + to <= end;
        let chunks: Vec<u64> = (0..data.len() as u64).filter(is_written).collect();
        if chunks.is_empty() {
            continue;
        }
        for start in (from..to).step_by(usize::try_from(most.0).expect("a unit is small")) {
            let written =
                chunks.iter().map(|nth| (data[*nth as usize], Sectors(place(*nth) + start - sector.0)));
            let nr = Sectors(most.0.min(to - start));
            units.push(Unit { row, at: Sector(row * chunk + start), nr, written: written.collect() });
        }
    }
    units
}

/// How far behind the end of a write the last data of a unit end of which it has the first; none: it has others, and who goes on behind it
/// does not come to the first.
fn rest_of_unit(parity: &Parity, unit: &Unit, end: Sector) -> Option<Sectors> {
    let mut data = parity.data_of(unit.row);
    let has_first = data.next() == unit.written.first().map(|(role, _)| *role);
    let last = data.last().filter(|_| has_first)?;
    let last = parity.to_array(Place { member: last, sector: unit.at })? + unit.nr;
    Some(Sectors(last.0.saturating_sub(end.0)))
}

/// What each member of some has, or is to have, in a unit.
type Parts = Vec<(u16, Segment)>;

/// What is to be written beside the data, and what was read for it.
struct Made {
    parities: Parts,
    /// What data members have that are not written.
    others: Parts,
    /// What this counts as.
    how: Counter,
}

/// How far the writes of a unit have come.
#[derive(Default)]
struct Outcome {
    error: Option<Errno>,
    /// A device has failed, or did before.
    left_out: bool,
    /// What was refused by somebody who is to be given up, or to list a bad block, before this counts.
    refused: Vec<ToDevice>,
    renewed: Vec<(DeviceIndex, Sector, Sectors)>,
}

impl Array {
    /// A write, write-zeroes or discard of an array with a parity.
    pub(super) fn write_with_parity(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if !self.takes(span) || (span.flags.has(Flags::FAST_ONLY) && !self.is_rows(span)) {
            cx.error(span, Errno::EOPNOTSUPP);
            return Ok(());
        }
        self.admit(span)?;
        cx.task(self.form().shape.node, span);
        Ok(())
    }

    fn is_rows(&self, span: Span) -> bool {
        let row = self.geometry().as_parity().map_or(1, |parity| parity.row_sectors().0);
        span.sector.0.is_multiple_of(row) && span.nr.0.is_multiple_of(row)
    }

    /// Writes a span of the array.
    pub(super) async fn write_rows(&self, span: Span, cx: &TaskContext) -> Result<(), Errno> {
        let parity = self.geometry().as_parity().expect("only rows with a parity are written like this");
        let row = parity.row_sectors().0;
        // A part of a chunk, so that units of several writes are the same.
        let least = stripe_cache::BLOCK.max(self.block().0);
        let most: u64 = 1 << (UNIT_OF_ALL / u64::from(parity.members())).max(least).ilog2();
        let write = cx.kept::<Gathering>(self.form().shape.node).enter(span);
        let mut units = Vec::new();
        let mut at = span.sector.0;
        while at < span.end().0 {
            let whole_rows = (span.end().0 - at) / row;
            if span.op == Op::WriteZeroes && at.is_multiple_of(row) && whole_rows > 0 {
                self.write_zero_rows(at / row, whole_rows, span.flags, cx).await?;
                at += whole_rows * row;
                continue;
            }
            let nr = (row - at % row).min(span.end().0 - at);
            let skip = Sectors(at - span.sector.0);
            for mut unit in units_of_row(parity, Sector(at), Sectors(nr), Sectors(most)) {
                unit.written.iter_mut().for_each(|(_, from)| *from += skip);
                units.push(unit);
                if units.len() == AT_ONCE {
                    self.write_units(std::mem::take(&mut units), &write, span.flags, cx).await?;
                }
            }
            at += nr;
        }
        self.write_units(units, &write, span.flags, cx).await?;
        self.settle_written(span.flags, cx).await
    }

    /// Writes these at once. Each is tried, also where another one fails.
    async fn write_units(
        &self,
        units: Vec<Unit>,
        write: &UnderWay,
        flags: Flags,
        cx: &TaskContext,
    ) -> Result<(), Errno> {
        let writes = units.iter().map(|unit| self.write_unit(unit, write, flags, cx));
        io::together(writes.collect()).await.into_iter().collect()
    }

    /// Writes a unit, together with what else is written of the same sectors of its row.
    async fn write_unit(
        &self,
        unit: &Unit,
        write: &UnderWay,
        flags: Flags,
        cx: &TaskContext,
    ) -> Result<(), Errno> {
        let parity = self.geometry().as_parity().expect("a unit is one of rows with a parity");
        let data = parity.layout().data_disks().into();
        let sources = unit.written.iter().map(|(role, from)| (*role, source(*from, unit.nr, cx)));
        match write.join((unit.at, unit.nr), data, sources.collect(), flags) {
            Part::Follow(follow) => follow.result().await,
            Part::Lead(lead) => {
                let (at, nr) = stripe_cache::whole(unit.at, unit.nr);
                let held = self.stripes.hold(at, nr).await;
                cx.others_first().await;
                if let Some(rest) = rest_of_unit(parity, unit, write.end()) {
                    lead.gather(write, rest, |moment| cx.sleep(moment)).await;
                }
                let room = self.stripes.room().await;
                let (sources, flags) = lead.begin();
                let result = match self.write_held(unit, sources, flags, cx).await {
                    Ok(Some(missed)) => {
                        drop((room, held));
                        lead.is_written();
                        self.go_on_after(&missed, cx).await
                    }
                    result => result.map(drop),
                };
                lead.tell(result)
            }
        }
    }

    /// Gives what was missed, if anything was.
    async fn write_held(
        &self,
        unit: &Unit,
        sources: Sources,
        flags: Flags,
        cx: &TaskContext,
    ) -> Result<Option<Missed>, Errno> {
        let data: Parts =
            sources.into_iter().map(|(role, source)| (role, copied(source, unit.nr, cx))).collect();
        let pieces = self.pieces_of_unit(unit);
        if pieces.is_empty() {
            return self.write_piece(unit, data, flags, cx).await;
        }
        let mut all: Option<Missed> = None;
        for (skip, nr) in pieces {
            let piece = Unit { row: unit.row, at: unit.at + skip, nr, written: Vec::new() };
            let part = |(role, all): &(u16, Segment)| (*role, all.slice(skip.byte_len(), nr.byte_len()));
            match (self.write_piece(&piece, data.iter().map(part).collect(), flags, cx).await, all.take()) {
                (Ok(None), before) => all = before,
                (Ok(Some(missed)), None) => all = Some(missed),
                (Ok(Some(missed)), Some(before)) => all = Some(before.and(missed)),
                (Err(errno), None) => return Err(errno),
                // What was missed before that is seen to all the same.
                (Err(errno), Some(before)) => return Ok(Some(Missed { failure: Some(errno), ..before })),
            }
        }
        Ok(all)
    }

    /// A unit, cut where its parities are bad: each of them is so in all of a piece, or in none of it. Nothing, where none is.
    fn pieces_of_unit(&self, unit: &Unit) -> Vec<(Sectors, Sectors)> {
        let (start, end) = (unit.at, unit.at + unit.nr);
        let parity = self.geometry().as_parity().expect("a unit is one of rows with a parity");
        let members = parity.parities_of(unit.row).filter_map(|(role, _)| self.member(role));
        let bad: Vec<_> =
            members.filter(|member| member.bad.any()).flat_map(|member| member.bad.lacking()).collect();
        if bad.is_empty() {
            return Vec::new();
        }
        let borders = bad.into_iter().flat_map(|(sector, nr)| [sector, sector + nr]);
        let mut cuts: Vec<Sector> =
            borders.filter(|at| start < *at && *at < end).chain([start, end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|pair| (pair[0].since(start), pair[1].since(pair[0]))).collect()
    }

    /// As `write_held`, a unit or a piece of one.
    async fn write_piece(
        &self,
        unit: &Unit,
        data: Parts,
        flags: Flags,
        cx: &TaskContext,
    ) -> Result<Option<Missed>, Errno> {
        let mut known = self.stripe_cache.take(unit.at, unit.nr, self.trust());
        let Made { parities, others, how } = self.new_parities(unit, &data, &mut known, cx).await?;
        cx.count(self.form().shape.node, how);
        let mut parts = data;
        parts.extend(parities);
        let writes = parts
            .iter()
            .flat_map(|(role, data)| self.writes_of(*role, unit.at, Op::Write, unit.nr, Some(data.clone())));
        let missed = self.write_parts(writes.collect(), flags, cx).await?;
        if !missed.is_empty() {
            let written = parts.iter().map(|(role, _)| *role).collect();
            return Ok(Some(Missed { at: unit.at, nr: unit.nr, written, parts: missed, failure: None }));
        }
        let unwritten = self.unwritten(unit, &parts);
        // Who writes rows as a whole reads nothing, and does not come back.
        if !unwritten.is_empty() {
            known.keep_only(&unwritten);
            parts.extend(others);
            self.stripe_cache.put(known, &parts, self.trust());
        }
        Ok(None)
    }

    /// Whole rows of zeros, whose parities are zeros, too.
    async fn write_zero_rows(
        &self,
        row: u64,
        rows: u64,
        flags: Flags,
        cx: &TaskContext,
    ) -> Result<(), Errno> {
        let chunk = self.geometry().chunk().unwrap_or_default().0;
        let (at, nr) = (Sector(row * chunk), Sectors(rows * chunk));
        let held = self.stripes.hold(at, nr).await;
        self.stripe_cache.forget(at, nr);
        let roles = 0..self.geometry().members();
        let writes: Vec<_> =
            roles.flat_map(|role| self.writes_of(role, at, Op::WriteZeroes, nr, None)).collect();
        // A device that cannot do it fast says so before it gets a role, which it may have got since this was taken in. With some rows
        // zeroed and others not, what a missing member has there would be lost.
        if flags.has(Flags::FAST_ONLY) && self.no_fast_zeroes.load(Ordering::Relaxed) {
            return Err(Errno::EOPNOTSUPP);
        }
        let parts = self.write_parts(writes, flags, cx).await?;
        drop(held);
        if parts.is_empty() {
            return Ok(());
        }
        let written = (0..self.geometry().members()).collect();
        self.go_on_after(&Missed { at, nr, written, parts, failure: None }, cx).await
    }

    /// Members whose data of a unit is not among that.
    fn unwritten(&self, unit: &Unit, written: &Parts) -> Vec<u16> {
        let is_written = |role: &u16| written.iter().any(|(written, _)| written == role);
        let data = self.geometry().as_parity().map(|parity| parity.data_of(unit.row));
        data.into_iter().flatten().filter(|role| !is_written(role)).collect()
    }

    /// The parities that a unit is to have with that data written.
    async fn new_parities(
        &self,
        unit: &Unit,
        data: &Parts,
        known: &mut Known,
        cx: &TaskContext,
    ) -> Result<Made, Errno> {
        let parity = self.geometry().as_parity().expect("a unit is one of rows with a parity");
        let mut wanted: Vec<_> = parity
            .parities_of(unit.row)
            .filter(|(role, _)| !self.writes_of(*role, unit.at, Op::Write, unit.nr, None).is_empty())
            .collect();
        let others = self.unwritten(unit, data);
        let counted_as = |roles: &[u16], known: &Known| {
            let is_known = roles.iter().all(|role| known.has(*role));
            match (others.is_empty(), is_known) {
                (true, _) => Counter::RowsWhole,
                (false, true) => Counter::RowsKnown,
                (false, false) => Counter::RowsRead,
            }
        };
        // Each time that something cannot be read, that is known the next time.
        for _ in 0..=2 * self.geometry().members() {
            let trust = self.trust();
            known.follow(trust);
            let any_lost = wanted.iter().any(|(role, _)| self.is_lost(*role, unit));
            if any_lost && self.does_without_lost(unit, data, &others, known) {
                wanted.retain(|(role, _)| !self.is_lost(*role, unit));
            }
            if wanted.is_empty() {
                return Ok(Made { parities: Vec::new(), others: Vec::new(), how: counted_as(&[], known) });
            }
            let modifying: Vec<u16> =
                data.iter().map(|(role, _)| *role).chain(wanted.iter().map(|(role, _)| *role)).collect();
            let modifies = {
                let reads = |roles: &[u16]| roles.iter().filter(|role| !known.has(**role)).count();
                let is_had = |role: &u16| known.has(*role) || self.is_sure(*role, unit.at, unit.nr);
                let is_less = reads(&modifying) < reads(&others);
                let fits = !self.may_differ(unit.at, unit.nr);
                modifying.iter().all(is_had) && (!others.iter().all(is_had) || (is_less && fits))
            };
            let roles = if modifies { &modifying } else { &others };
            let Some(old) = self.read_parts(unit, roles, known, cx).await? else { continue };
            if self.check_trust(trust).is_err() {
                continue;
            }
            let of = |role: u16| old.iter().filter(move |(other, _)| *other == role);
            let sums = wanted.iter().map(|(role, weight)| {
                let sum = io::memory(cx, unit.nr);
                let new = data.iter().map(|(role, new)| (weight(*role), new));
                let terms: Vec<_> = if modifies {
                    let before =
                        data.iter().flat_map(|(role, _)| of(*role)).map(|(role, old)| (weight(*role), old));
                    let parity = of(*role).map(|(_, old)| (Gf256::ONE, old));
                    new.chain(before).chain(parity).collect()
                } else {
                    new.chain(old.iter().map(|(role, old)| (weight(*role), old))).collect()
                };
                add_times(&terms, &sum);
                (*role, sum)
            });
            let parities = sums.collect();
            let how = counted_as(roles, known);
            return Ok(Made { parities, others: if modifies { Vec::new() } else { old }, how });
        }
        Err(Errno::EIO)
    }

    /// Whether a parity that is bad as a whole stays so, as it cannot be made to fit: not all other data are to be had. What is written has to be where it
    /// belongs then, since nothing makes up for it.
    fn does_without_lost(&self, unit: &Unit, data: &Parts, others: &[u16], known: &Known) -> bool {
        let (at, nr) = (unit.at, unit.nr);
        let is_to_be_had = |role: &u16| {
            known.has(*role)
                || self.is_sure(*role, at, nr)
                || self.way(Place { member: *role, sector: at }, nr, &[]).is_some()
        };
        let takes_all =
            |member: &Member| member.is_complete() && member.bad.writable(at, nr) == (nr, Sectors::ZERO);
        !others.iter().all(is_to_be_had)
            && data.iter().all(|(role, _)| self.member(*role).is_some_and(takes_all))
    }

    fn is_lost(&self, role: u16, unit: &Unit) -> bool {
        self.member(role).is_some_and(|member| member.bad.any() && member.bad.lacks_all(unit.at, unit.nr))
    }

    /// What these have in a unit, or should have; none: one that was thought to have it does not give it, which is known now.
    async fn read_parts(
        &self,
        unit: &Unit,
        roles: &[u16],
        known: &Known,
        cx: &TaskContext,
    ) -> Result<Option<Parts>, Errno> {
        let read = |role: u16| async move {
            if known.has(role) {
                let data = io::memory(cx, unit.nr);
                known.copy(role, &data);
                return Ok(Some((role, data)));
            }
            let member = self.member(role).filter(|_| self.is_sure(role, unit.at, unit.nr));
            let Some(member) = member else {
                return self.computed(role, unit.at, unit.nr, &[], cx).await.map(|data| Some((role, data)));
            };
            // What is written next to it makes what was read ahead worthless.
            match io::read_once(cx, member.layer(), member.at(unit.at), unit.nr).await {
                Ok(data) => Ok(Some((role, data))),
                Err(errno) => match self.note_refusal(role, unit.at, unit.nr, cx) {
                    Unread::Noted | Unread::Known => Ok(None),
                    Unread::Last | Unread::TooMany => Err(errno),
                },
            }
        };
        let results: Result<Vec<_>, Errno> =
            io::together(roles.iter().copied().map(read).collect()).await.into_iter().collect();
        Ok(results?.into_iter().collect())
    }

    /// What is written of a role's part: to each device that has the role, or is to have it, but for what that cannot write.
    fn writes_of(&self, role: u16, at: Sector, op: Op, nr: Sectors, data: Option<Segment>) -> Vec<ToDevice> {
        let holders = self.devices.holders(role);
        let mut parts = Vec::new();
        for device in [holders.member(), holders.replacement()].into_iter().flatten() {
            self.add_writable(ToDevice { device, op, at, nr, data: data.clone() }, &mut parts);
        }
        parts
    }

    /// What its device can write of a part.
    fn add_writable(&self, part: ToDevice, parts: &mut Vec<ToDevice>) {
        let ToDevice { device, op, at, nr, data } = part;
        let Some(member) = self.devices.get(device).filter(|it| !it.is_faulty()) else { return };
        let mut done = Sectors::ZERO;
        while done < nr {
            let (good, bad) = member.bad.writable(at + done, nr - done);
            if good > Sectors::ZERO {
                let data = data.as_ref().map(|it| it.slice(done.byte_len(), good.byte_len()));
                parts.push(ToDevice { device, op, at: at + done, nr: good, data });
            }
            if good + bad == Sectors::ZERO {
                break;
            }
            done = done + good + bad;
        }
    }

    /// Writes all parts of a unit that is held. One that a device refused is tried again if that is not given up after all, as another one
    /// went before it: then it has to stay, and the client hears of it. Gives those of devices that are about to go.
    async fn write_parts(
        &self,
        parts: Vec<ToDevice>,
        flags: Flags,
        cx: &TaskContext,
    ) -> Result<Vec<ToDevice>, Errno> {
        let (mut parts, mut missed) = (parts, Vec::new());
        loop {
            let outcome = self.try_parts(parts, flags, cx).await;
            let settled = self.settle_outcome(&outcome, cx).await;
            let Outcome { error, refused, renewed, .. } = outcome;
            let mut refused = self.without_missed(refused, &mut missed);
            let stays =
                |part: &ToDevice| self.devices.get(part.device).is_some_and(|member| !member.is_faulty());
            refused.retain(stays);
            // What is not on record now will be when those have gone.
            let may_yet = error.is_none() && refused.is_empty() && !missed.is_empty();
            if let Err(errno) = settled
                && !may_yet
            {
                // None of these is tried again. Who was given up has lost them with all the rest.
                let differ = refused.iter().chain(missed.iter().filter(|part| stays(part)));
                differ.for_each(|part| self.doubt_part(part));
                // As long as a parity may not fit, no member can be done without.
                self.look_for_sync(cx);
                return Err(errno);
            }
            if !renewed.is_empty() {
                Renewal { array: self.itself(), ranges: renewed }.done(Ok(()));
            }
            parts = Vec::new();
            refused.into_iter().for_each(|part| self.add_writable(part, &mut parts));
            if parts.is_empty() {
                return Ok(missed);
            }
        }
    }

    /// Those of devices that are about to go are not tried again. What these have there is old now, and nothing may be computed by it: others have
    /// their parts.
    fn without_missed(&self, refused: Vec<ToDevice>, missed: &mut Vec<ToDevice>) -> Vec<ToDevice> {
        let (goes, others): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|part| self.partings.has(part.device));
        for part in goes {
            if let Some(member) = self.devices.get(part.device)
                && !member.bad.add(part.at, part.nr, Bad::Stale)
            {
                member.bad.add_all_stale(self.geometry().sync_sectors());
            }
            self.choose_with_care();
            missed.push(part);
        }
        others
    }

    /// A unit of which these were written was let go, but some parts of it were missed: it counts when who has not taken them has gone, if all that
    /// was written can be had from the others.
    async fn go_on_after(&self, missed: &Missed, cx: &TaskContext) -> Result<(), Errno> {
        self.part(cx).await;
        // It is on record, or will not be.
        let settled = self.parting(cx, async || self.settle_failures(cx).await).await;
        let stays = |part: &&ToDevice| self.devices.get(part.device).is_some_and(|it| !it.is_faulty());
        let mut is_had = missed.written.iter().all(|role| self.is_had(*role, missed.at, missed.nr));
        let stay: Vec<_> = missed.parts.iter().filter(stays).collect();
        if !stay.is_empty() {
            is_had = false;
            let _held = self.stripes.hold(missed.at, missed.nr).await;
            // They have what they had: the client knows.
            for part in &stay {
                if let Some(member) = self.devices.get(part.device) {
                    member.bad.forget_stale(part.at, part.nr);
                }
            }
            // In this order: where all can be read, a resync makes the parities fit.
            stay.into_iter().for_each(|part| self.doubt_part(part));
            self.look_for_sync(cx);
        }
        settled.and(match missed.failure {
            Some(errno) => Err(errno),
            None if is_had => Ok(()),
            None => Err(Errno::EIO),
        })
    }

    fn doubt_part(&self, ToDevice { device, at, nr, .. }: &ToDevice) {
        if let Some(role) = self.devices.role_of(*device) {
            self.doubt(*device, role, *at, *nr);
        }
    }

    /// Whether what a role has of some sectors, if that is data, can be read or computed.
    fn is_had(&self, role: u16, at: Sector, nr: Sectors) -> bool {
        let (mut at, end) = (at, at + nr);
        while at < end {
            let step = self.geometry().chunk_room(at).min(end.since(at));
            let is_data = self.geometry().to_array(Place { member: role, sector: at }).is_some();
            let is_read = || self.member(role).is_some_and(|member| member.readable(at, step) == step);
            if is_data && !is_read() && !self.has_copy(role, at, step, role) {
                return false;
            }
            at = at + step;
        }
        true
    }

    async fn try_parts(&self, parts: Vec<ToDevice>, flags: Flags, cx: &TaskContext) -> Outcome {
        let mut outcome = Outcome { left_out: self.is_degraded(), ..Outcome::default() };
        let write = |part: ToDevice| async move {
            let op = part.op;
            let Some(member) = self.devices.get(part.device) else { return (part, op, Ok(())) };
            let sector = member.at(part.at);
            let data = Segments::from_iter(part.data.clone());
            let bio = Bio { op, flags, sector, nr: part.nr, data };
            let result = cx.bio(member.layer(), bio).await.0;
            let op = match result {
                Err(errno) if flags.has(Flags::FUA) && was_flush(member, errno, cx).await => Op::Flush,
                _ => op,
            };
            (part, op, result)
        };
        for (part, op, result) in io::together(parts.into_iter().map(write).collect()).await {
            let Some(member) = self.devices.get(part.device) else { continue };
            let Err(errno) = result else {
                if member.bad.is_renewed_by_write(part.at, part.nr) {
                    outcome.renewed.push((part.device, part.at, part.nr));
                }
                continue;
            };
            let (sector, nr) = (member.at(part.at), part.nr);
            let span = Span { op: part.op, flags, sector, nr, at: Sectors::ZERO };
            let below = member.layer().node();
            outcome.left_out = true;
            match self.cure_failure(&Failure { op, below, span, errno }) {
                Cure::None => outcome.error = outcome.error.or(Some(errno)),
                Cure::Again => {}
                Cure::Defer(_) => outcome.refused.push(part),
            }
        }
        outcome
    }

    /// Invariants 1 and 2, of a unit that is still held.
    async fn settle_outcome(&self, outcome: &Outcome, cx: &TaskContext) -> Result<(), Errno> {
        if !outcome.refused.is_empty() || (outcome.left_out && !self.gate.pass()) {
            self.settle_failures(cx).await?;
        }
        outcome.error.map_or(Ok(()), Err)
    }

    /// What was bad and has been written durably has left the lists before that is answered.
    async fn settle_written(&self, flags: Flags, cx: &TaskContext) -> Result<(), Errno> {
        if flags.has(Flags::FUA) && self.renewals.are_due() {
            return self.parting(cx, async || self.take_off_lists(cx).await).await;
        }
        Ok(())
    }
}

/// Whether it was the flush behind a durable write that failed like this on a member, and not the write: the bio's error may be of either. A flush that
/// has failed is final, so that the next one tells. It is asked only where the error by itself would be no fault of the disk.
async fn was_flush(member: &Member, errno: Errno, cx: &TaskContext) -> bool {
    is_no_fault_of_the_disk(errno) && io::flush(cx, member.layer()).await.is_err()
}

/// A unit that was written, but for some parts: their devices are about to go.
struct Missed {
    at: Sector,
    nr: Sectors,
    /// By role.
    written: Vec<u16>,
    parts: Vec<ToDevice>,
    /// What is behind it in its unit has failed: the client hears of that, whatever becomes of these.
    failure: Option<Errno>,
}

impl Missed {
    /// As one with what is behind it in its unit.
    fn and(mut self, next: Missed) -> Missed {
        self.nr = (next.at + next.nr).since(self.at);
        self.parts.extend(next.parts);
        self
    }
}

/// What is written to one device.
struct ToDevice {
    device: DeviceIndex,
    op: Op,
    /// Of its data.
    at: Sector,
    nr: Sectors,
    data: Option<Segment>,
}

/// So much of what is written; none: zeros.
fn source(from: Sectors, nr: Sectors, cx: &TaskContext) -> Option<Segments> {
    let mut part = Segments::new();
    slice_segments(cx.written()?, from.byte_len(), nr.byte_len(), &mut part);
    Some(part)
}

/// A copy of that.
fn copied(source: Option<Segments>, nr: Sectors, cx: &TaskContext) -> Segment {
    let copy = io::memory(cx, nr);
    match source {
        Some(source) => drop(copy_between(&source, std::slice::from_ref(&copy))),
        None => copy.fill(0),
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwork_format::md::{Level, ParityLayout};

    #[test]
    fn each_sector_of_a_write_is_in_one_unit_of_which_all_is_written() {
        let layout = ParityLayout::new(Level::Raid6, 2, 5).unwrap();
        let parity = Parity::new(layout, Sectors(16), Sectors(160)).unwrap();
        let row = parity.row_sectors().0;
        for (start, nr) in (0..row).flat_map(|start| (1..=row - start).map(move |nr| (start, nr))) {
            let start = 3 * row + start;
            let mut found = vec![false; nr as usize];
            for most in [8, 64] {
                found.fill(false);
                for unit in units_of_row(&parity, Sector(start), Sectors(nr), Sectors(most)) {
                    assert!(unit.row == 3 && unit.nr.0 <= most && unit.nr > Sectors::ZERO);
                    assert!(unit.written.windows(2).all(|pair| pair[0].0 != pair[1].0));
                    for (member, from) in &unit.written {
                        for at in 0..unit.nr.0 {
                            let place = parity.place(Sector(start + from.0 + at));
                            assert_eq!((place.member, place.sector), (*member, unit.at + Sectors(at)));
                            let seen = &mut found[(from.0 + at) as usize];
                            assert!(!std::mem::replace(seen, true), "{start}+{nr}: a sector is in two");
                        }
                    }
                }
                assert!(found.iter().all(|found| *found), "{start}+{nr}");
            }
        }
        let whole = units_of_row(&parity, Sector(3 * row), Sectors(row), Sectors(64));
        assert!(
            matches!(&whole[..], [unit] if unit.written.len() == 3),
            "a row as a whole is one unit: {whole:?}"
        );
    }

    #[test]
    fn who_has_the_first_data_of_a_unit_knows_how_far_its_last_are() {
        let layout = ParityLayout::new(Level::Raid6, 2, 5).unwrap();
        let parity = Parity::new(layout, Sectors(16), Sectors(160)).unwrap();
        let rests = |from: u64, nr: u64| -> Vec<Option<u64>> {
            let start = Sector(3 * parity.row_sectors().0 + from);
            let units = units_of_row(&parity, start, Sectors(nr), Sectors(64));
            let rest = |unit| rest_of_unit(&parity, unit, start + Sectors(nr)).map(|rest| rest.0);
            units.iter().map(rest).collect()
        };
        assert_eq!(rests(0, 16), [Some(32)]);
        assert_eq!(rests(4, 4), [Some(32)]);
        assert_eq!(rests(0, 24), [Some(16), Some(24)], "a chunk and a half");
        assert_eq!(rests(0, 48), [Some(0)]);
        assert_eq!(rests(16, 16), [None], "it has the second");
        assert_eq!(rests(8, 24), [None, Some(16)]);
    }
}
