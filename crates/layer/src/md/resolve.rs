//! What a bio to an array becomes on its members: loads of atomics, and no lock, no wait and no I/O.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use blockwork_engine::{Defer, Errno, Flags, NodeId, Op, Reason, Resolver, Sector, Sectors, Span};

use super::array::{AHEAD_SHARE, Array};
use super::bad_log::Renewal;
use super::devices::DeviceIndex;
use super::form::Form;
use super::gate::GateState;
use super::geometry::{Geometry, Place, Places};
use super::member::Member;

impl Array {
    pub(super) fn defer(&self, span: Span, reason: Reason) -> Defer {
        Defer { node: self.form().shape.node, span, reason }
    }

    pub(super) fn resolve_bio(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        match span.op {
            Op::Read => self.read(span, cx),
            Op::Flush => self.flush(span, cx),
            _ if self.form().shape.limits.read_only => {
                cx.error(span, Errno::EROFS);
                Ok(())
            }
            _ if self.geometry().as_parity().is_some() => self.write_with_parity(span, cx),
            Op::Write => self.write(span, cx),
            Op::Discard | Op::WriteZeroes => self.write_ranges(span, cx),
        }
    }

    fn read(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let Form { geometry, shape, .. } = self.form();
        let careful = self.irregular.load(Ordering::Acquire);
        self.sync.note_client();
        let mut rest = span;
        let mut room = geometry.read_room(rest.sector);
        cx.split(shape.node, span, pieces(geometry, span, room), Reason::Chunk);
        loop {
            let piece = rest.piece(Sectors::ZERO, room.min(rest.nr));
            if careful && geometry.as_parity().is_some() {
                self.read_or_compute(piece, cx)?;
            } else if careful {
                self.read_with_care(piece, cx)?;
            } else {
                let copy = geometry.preferred_copy(piece.sector);
                let place = geometry.place(piece.sector, copy);
                match self.devices.member(place.member) {
                    Some(member) => pass(shape.node, piece, member, place.sector, cx)?,
                    None => cx.error(piece, Errno::EIO),
                }
            }
            if piece.nr == rest.nr {
                return Ok(());
            }
            rest = rest.piece(piece.nr, rest.nr - piece.nr);
            room = geometry.read_room(rest.sector);
        }
    }

    /// Reads a piece of an array in which something is out of order; it is cut where a copy can be read no further.
    fn read_with_care(&self, piece: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let Form { geometry, shape, .. } = self.form();
        let mut places = Places::new();
        let same = self.may_differ(piece.sector, piece.nr);
        let mut rest = piece;
        while rest.nr > Sectors::ZERO {
            geometry.places(rest.sector, &mut places);
            let preferred = if same { 0 } else { geometry.preferred_copy(rest.sector) };
            let nr = if same { self.same_choice(&places, rest.nr) } else { rest.nr };
            let Some((place, nr)) = self.choose(&places, preferred, same, nr) else {
                cx.error(rest, Errno::EIO);
                return Ok(());
            };
            if let Some(member) = self.member(place.member) {
                pass(shape.node, rest.piece(Sectors::ZERO, nr), member, place.sector, cx)?;
            }
            rest = rest.piece(nr, rest.nr - nr);
        }
        Ok(())
    }

    pub(super) fn may_differ(&self, sector: Sector, nr: Sectors) -> bool {
        match self.intent() {
            Some(intent) => intent.any_kept() && intent.is_kept(sector, nr),
            None => self.differ_from.load(Ordering::Acquire) < sector.0 + nr.0,
        }
    }

    /// How far the choice for the first sector of `nr` holds, where copies may differ: not beyond where a copy that does not have
    /// that sector has the next one. So it does not depend on where a read begins.
    pub(super) fn same_choice(&self, places: &Places, nr: Sectors) -> Sectors {
        let lacking = |place: &Place| {
            let member = self.member(place.member)?;
            Some(member.unreadable(place.sector, nr)).filter(|lacking| *lacking > Sectors::ZERO)
        };
        places.iter().filter_map(lacking).fold(nr, Sectors::min)
    }

    /// The copy to read, and how far. Where copies may differ (`same`), the choice for a sector must not depend on where a
    /// read ends: the first that has the first sector. Otherwise one that has all of it, if there is one. Write-mostly
    /// members come late, and one that is about to be given up last.
    pub(super) fn choose(
        &self,
        places: &Places,
        preferred: usize,
        same: bool,
        nr: Sectors,
    ) -> Option<(Place, Sectors)> {
        let mut best: Option<(u8, Sectors, Place)> = None;
        let order = places.iter().cycle().skip(preferred).take(places.len());
        for place in order {
            let Some(member) = self.member(place.member) else { continue };
            let readable = member.readable(place.sector, nr);
            let choice = member.last_choice();
            let better = readable > Sectors::ZERO
                && best.is_none_or(|(best, len, _)| {
                    choice < best || (!same && choice == best && readable > len)
                });
            if better {
                best = Some((choice, readable, *place));
            }
        }
        best.map(|(_, readable, place)| (place, readable))
    }

    /// A write: all copies of each piece.
    fn write(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        self.admit(span)?;
        let Form { geometry, shape, .. } = self.form();
        let mut places = Places::new();
        let mut rest = span;
        let mut room = geometry.room(rest.sector);
        cx.split(shape.node, span, pieces(geometry, span, room), Reason::Chunk);
        let mut left_out = false;
        let mut renewed = Vec::new();
        loop {
            let piece = rest.piece(Sectors::ZERO, room.min(rest.nr));
            geometry.places(piece.sector, &mut places);
            let mut any = false;
            for place in &places {
                let holders = self.devices.holders(place.member);
                for index in [holders.member(), holders.replacement()].into_iter().flatten() {
                    let Some(member) = self.devices.get(index) else { continue };
                    if member.is_faulty() {
                        left_out = true;
                        continue;
                    }
                    if member.bad.is_renewed_by_write(place.sector, piece.nr) {
                        renewed.push((index, place.sector, piece.nr));
                    }
                    if member.bad.any_unwritable() {
                        any |= self.write_around(piece, member, place.sector, &mut left_out, cx)?;
                    } else {
                        any = true;
                        pass(shape.node, piece, member, place.sector, cx)?;
                    }
                }
            }
            if !any {
                cx.error(piece, Errno::EIO);
            }
            if piece.nr == rest.nr {
                self.renews(span, renewed, cx);
                return self.confirm(span, left_out);
            }
            rest = rest.piece(piece.nr, rest.nr - piece.nr);
            room = geometry.room(rest.sector);
        }
    }

    /// These ranges of devices can be read again when the write of them has succeeded.
    #[inline]
    fn renews(&self, span: Span, ranges: Vec<(DeviceIndex, Sector, Sectors)>, cx: &mut Resolver<'_>) {
        if !ranges.is_empty() {
            cx.watch(Arc::new(Renewal { array: self.itself(), ranges }));
            if span.flags.has(Flags::FUA) {
                // It is durable when they have left the lists.
                cx.flush_after();
            }
        }
    }

    /// A write to a member that has blocks which cannot be written: they are left out, as a member that failed is. Whether
    /// anything was written.
    #[cold]
    fn write_around(
        &self,
        piece: Span,
        member: &Member,
        sector: Sector,
        left_out: &mut bool,
        cx: &mut Resolver<'_>,
    ) -> Result<bool, Defer> {
        let node = self.form().shape.node;
        let (mut done, mut any) = (Sectors::ZERO, false);
        while done < piece.nr {
            let (good, bad) = member.bad.writable(sector + done, piece.nr - done);
            if good > Sectors::ZERO {
                any = true;
                // Where it carries no data, a piece's place within the bio means nothing.
                let nr = if piece.op.has_data() { done } else { Sectors::ZERO };
                let part = Span { nr: good, at: piece.at + nr, ..piece };
                pass(node, part, member, sector + done, cx)?;
            }
            *left_out |= bad > Sectors::ZERO;
            done = done + good + bad;
            if good + bad == Sectors::ZERO {
                break;
            }
        }
        Ok(any)
    }

    /// A discard or write-zeroes: few ranges on each member, however large it is.
    fn write_ranges(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if !self.takes(span) {
            cx.error(span, Errno::EOPNOTSUPP);
            return Ok(());
        }
        let Some(span) = self.done_alike(span) else {
            cx.zero(span);
            return Ok(());
        };
        self.admit(span)?;
        let Form { geometry, shape, .. } = self.form();
        let mut ranges = 0;
        geometry.ranges(span.sector, span.nr, &mut |_, _| ranges += 1);
        cx.split(shape.node, span, ranges / u64::from(geometry.copies()), Reason::Chunk);
        let (mut left_out, mut result, mut renewed) = (false, Ok(()), Vec::new());
        geometry.ranges(span.sector, span.nr, &mut |place, nr| {
            let holders = self.devices.holders(place.member);
            for index in [holders.member(), holders.replacement()].into_iter().flatten() {
                let Some(member) = self.devices.get(index) else { continue };
                if member.is_faulty() {
                    left_out = true;
                } else if result.is_ok() {
                    // Without data, a piece's place within the bio means nothing.
                    let piece = Span { nr, ..span };
                    if span.op == Op::WriteZeroes && member.bad.is_renewed_by_write(place.sector, nr) {
                        renewed.push((index, place.sector, nr));
                    }
                    result = if member.bad.any_unwritable() {
                        self.write_around(piece, member, place.sector, &mut left_out, cx).map(drop)
                    } else {
                        pass(shape.node, piece, member, place.sector, cx)
                    };
                }
            }
        });
        result?;
        self.renews(span, renewed, cx);
        self.confirm(span, left_out)
    }

    /// Whether a discard or write-zeroes is for all members. What only some of them did would make mirrors differ.
    pub(super) fn takes(&self, span: Span) -> bool {
        let limits = &self.form().shape.limits;
        match span.op {
            Op::Discard => self.discard_granule.load(Ordering::Acquire) > 0,
            _ if !span.flags.has(Flags::FAST_ONLY) => true,
            _ => limits.max_write_zeroes > Sectors::ZERO && !self.no_fast_zeroes.load(Ordering::Relaxed),
        }
    }

    /// The part of a discard or write-zeroes that all members do, if there is one. Each leaves out of a discard what is not a
    /// whole granule of its own; so that mirrors do not differ, what is not one of the coarsest is left out of all. (That
    /// takes members whose data starts at a granule, and chunks of whole ones. Otherwise they may differ in what was discarded,
    /// as under Linux.)
    fn done_alike(&self, span: Span) -> Option<Span> {
        if span.op != Op::Discard || self.geometry().copies() == 1 {
            return Some(span);
        }
        let granule = self.discard_granule.load(Ordering::Acquire).max(1);
        let start = span.sector.0.next_multiple_of(granule);
        let end = span.end().0 / granule * granule;
        let whole = (start < end).then(|| span.piece(Sectors(start - span.sector.0), Sectors(end - start)));
        whole.filter(|span| self.is_writable(*span))
    }

    /// Whether no member has blocks in it that cannot be written. Of a discard such a member would leave out what lies beside them, too, as
    /// that is no whole granule, and others would not.
    fn is_writable(&self, span: Span) -> bool {
        let mut is_writable = true;
        self.geometry().ranges(span.sector, span.nr, &mut |place, nr| {
            let holders = self.devices.holders(place.member);
            let devices = [holders.member(), holders.replacement()].into_iter().flatten();
            let mut members = devices.filter_map(|index| self.devices.get(index));
            is_writable &= members.all(|member| {
                let has_list = !member.is_faulty() && member.bad.any_unwritable();
                !has_list || member.bad.writable(place.sector, nr) == (nr, Sectors::ZERO)
            });
        });
        is_writable
    }

    fn flush(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let node = self.form().shape.node;
        if self.renewals.are_due() && !cx.was_prepared(node, span) {
            return Err(self.defer(span, Reason::BadBlocks));
        }
        let mut left_out = false;
        for (_, holders) in self.devices.roles() {
            for index in [holders.member(), holders.replacement()].into_iter().flatten() {
                match self.devices.get(index) {
                    Some(member) if member.is_faulty() => left_out = true,
                    Some(member) => cx.pass(node, span.sector, &**member.layer(), span)?,
                    None => {}
                }
            }
        }
        if left_out && self.gate.state() == GateState::Recording {
            return Err(self.defer(span, Reason::MemberFailed));
        }
        Ok(())
    }

    /// Whether a write may go (invariant 1).
    #[inline]
    pub(super) fn admit(&self, span: Span) -> Result<(), Defer> {
        if self.record.is_none() {
            return Ok(());
        }
        self.sync.note_client();
        if !self.gate.pass() {
            self.want(span);
            return Err(self.defer(span, Reason::Activate));
        }
        let (sector, nr) = self.geometry().sync_range(span.sector, span.nr);
        if let Some(intent) = self.intent()
            && !intent.admit(sector, nr)
        {
            self.want(span);
            return Err(self.defer(span, Reason::WriteIntent));
        }
        if self.fences.meets(sector, nr) {
            return Err(self.defer(span, Reason::Resync));
        }
        if !self.busy.load(Ordering::Relaxed) {
            self.busy.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A write waits for its bits. Of discards and write-zeroes that follow each other (mkfs goes over the whole disk, 2 GiB at
    /// a time) each would wait for a write of the bitmap: so as many bits again are set ahead as the run has had so far.
    #[cold]
    fn want(&self, span: Span) {
        let Some(intent) = self.intent() else { return };
        let mut nr = span.nr;
        if !span.op.has_data() {
            let most = Sectors(self.form().shape.sectors.0 / AHEAD_SHARE);
            let ahead = self.run.lock().unwrap_or_else(PoisonError::into_inner).ahead(span, most);
            nr = Sectors((nr + ahead).0.min(self.form().shape.sectors.0 - span.sector.0));
        }
        let (sector, nr) = self.geometry().sync_range(span.sector, nr);
        intent.want(sector, nr);
    }

    /// Whether a write that left out a member may go (invariant 2). The gate was closed before the member was marked, and is
    /// opened again when that is on record; so whoever has seen the mark sees one or the other here.
    #[inline]
    fn confirm(&self, span: Span, left_out: bool) -> Result<(), Defer> {
        if left_out && !self.gate.pass() {
            // As where the gate was found closed.
            return Err(self.defer(span, Reason::Activate));
        }
        Ok(())
    }
}

/// How many pieces `span` is cut into, if `room` is where the first ends.
fn pieces(geometry: &Geometry, span: Span, room: Sectors) -> u64 {
    match geometry.chunk() {
        _ if span.nr <= room => 1,
        Some(chunk) => (span.end().0 - 1) / chunk.0 - span.sector.0 / chunk.0 + 1,
        None => 1 + (span.nr - room).0.div_ceil(geometry.read_room(span.sector + room).0),
    }
}

/// Hands a piece to a member, where it is at `sector` of its data.
#[inline]
pub(super) fn pass(
    node: NodeId,
    piece: Span,
    member: &Member,
    sector: Sector,
    cx: &mut Resolver<'_>,
) -> Result<(), Defer> {
    let reach = member.reach(sector, piece.nr);
    if reach < piece.nr {
        return pass_end(node, piece, reach, member, sector, cx);
    }
    cx.pass(node, piece.sector, &**member.layer(), piece.moved_to(member.at(sector)))
}

/// Likewise, a piece that goes on behind what the member has.
#[cold]
fn pass_end(
    node: NodeId,
    piece: Span,
    reach: Sectors,
    member: &Member,
    sector: Sector,
    cx: &mut Resolver<'_>,
) -> Result<(), Defer> {
    if reach > Sectors::ZERO {
        let here = piece.piece(Sectors::ZERO, reach);
        cx.pass(node, here.sector, &**member.layer(), here.moved_to(member.at(sector)))?;
    }
    cx.zero(piece.piece(reach, piece.nr - reach));
    Ok(())
}
