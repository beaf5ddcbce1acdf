//! An md array as a layer: RAID0, RAID1 and RAID10, healthy or degraded.
//!
//! Here is how a bio is resolved, with nothing but loads of atomics on the way of a healthy array. What has to be done
//! first, or afterwards, is done by tasks:
//!
//! | file | what |
//! | --- | --- |
//! | `commit.rs` | makes the array ready for writes; writes bitmap and superblocks |
//! | `failure.rs` | what is done about members that fail: [`Layer::cure`] |
//! | `mend.rs` | writes anew what could not be read |
//! | `upkeep.rs` | clears the bitmap lazily, records that the array is clean, closes it |
//!
//! Invariants:
//!
//! 1. No member gets a write before the superblocks say that the array is active, and the bitmap has the bits of its
//!    range, durably on all members that take part.
//! 2. No write, and no flush, that left out a member because it failed is acknowledged before the superblocks of the
//!    others say so, durably.
//! 3. A member whose absence would leave some data without a copy is never declared faulty: its errors go to the client.
//! 4. Where mirrors may differ, a sector is always read from the same copy: the first that is in sync, as Linux does.
//! 5. Slow paths change the array's state one at a time ([`Turns`]). None of them waits for [`TaskContext::quiesce`] while it
//!    has the turn: bios that are under way may need it to come to their end.
//! 6. Without a [`Record`], nothing is ever written but data; a mirrored array is read-only then.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use blockwork_engine::{
    Cure, Defer, Errno, Failure, Flags, Layer, Limits, NodeId, Op, Preparation, Reason, Resolver, SECTOR,
    Sector, Sectors, Shape, Span, TaskContext, Turns,
};

use super::failure::FailedMember;
use super::gate::{Gate, GateState};
use super::geometry::{Geometry, Place, Places};
use super::intent::{Intent, IntentConfig};
use super::member::{Member, MemberConfig};
use super::mend::Mending;
use super::record::{ArrayState, Record};

/// An array as it was found.
#[derive(Debug)]
pub struct ArrayConfig {
    /// What people call it.
    pub name: String,
    /// Where its sectors are.
    pub geometry: Geometry,
    /// By role; none: missing.
    pub members: Vec<Option<MemberConfig>>,
    /// Mirrors may differ at and beyond it; none: in sync.
    pub resync_from: Option<Sector>,
    /// Its write-intent bitmap, if it has one.
    pub intent: Option<IntentConfig>,
    /// What is written about it; none: nothing is (a RAID0, or read-only).
    pub record: Option<Box<dyn Record>>,
}

/// Why members do not make an array that can be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    /// Not as many places for members as the geometry has.
    #[error("{name}: {found} places for members, expected {expected}, as the geometry has")]
    Members {
        /// The array.
        name: String,
        /// Given.
        found: usize,
        /// Needed.
        expected: u16,
    },
    /// A member ends before its data does.
    #[error(
        "{name}: member {member} has {sectors} sectors, expected {needed} or more; was the disk or image cut?"
    )]
    Small {
        /// The array.
        name: String,
        /// The member.
        member: String,
        /// Its size.
        sectors: Sectors,
        /// Start and length of its data.
        needed: u64,
    },
    /// Some data has no copy.
    #[error(
        "{name}: too many members are missing: {missing:?} of {members}; some data has no copy in sync on those that are there"
    )]
    Incomplete {
        /// The array.
        name: String,
        /// Roles.
        missing: Vec<u16>,
        /// Places.
        members: u16,
    },
    /// The bitmap is not one of this array.
    #[error(
        "{name}: the write-intent bitmap covers {found} sectors, expected {expected}, the size of the array"
    )]
    Intent {
        /// The array.
        name: String,
        /// Given.
        found: u64,
        /// Needed.
        expected: Sectors,
    },
}

/// An array that is served.
#[derive(Debug)]
pub struct Array {
    pub(super) shape: Shape,
    /// For tasks, which outlive the call that starts them.
    me: Weak<Array>,
    pub(super) name: String,
    pub(super) geometry: Geometry,
    pub(super) members: Box<[Option<Member>]>,
    pub(super) intent: Option<Intent>,
    pub(super) record: Option<Box<dyn Record>>,
    /// Whether writes may go.
    pub(super) gate: Gate,
    /// Some member is missing, failed, not in sync, not to be read, or mirrors may differ: reads choose with care.
    irregular: AtomicBool,
    /// Mirrors may differ at and beyond this sector of the array; `u64::MAX`: nowhere. With a bitmap, only where it keeps a bit.
    differ_from: AtomicU64,
    /// A member has refused a write-zeroes that its limits allow: none that must be fast is tried any more.
    pub(super) no_fast_zeroes: AtomicBool,
    /// Discards and write-zeroes that follow each other.
    run: Mutex<ZeroRun>,
    /// There were writes since the upkeep last looked.
    pub(super) busy: AtomicBool,
    pub(super) mending: Mending,
    /// Members that have failed a write, and were not dealt with yet.
    pub(super) failed: Mutex<Vec<FailedMember>>,
    /// Who may change the array's state: superblocks, bitmap, which members take part.
    pub(super) turns: Turns,
    books: Mutex<Books>,
}

/// What only the one who has the turn looks at and changes (and who asks for the status).
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) events: u64,
    /// As the superblocks say.
    pub(super) clean: bool,
    /// Superblocks have been written since the array was opened.
    pub(super) opened: bool,
    /// Members were found with different events, and still have them.
    pub(super) uneven: bool,
    /// By role.
    pub(super) corrected: Vec<u32>,
    /// By site: superblocks of spares that could not be written, and are let alone since.
    pub(super) dead_sites: Vec<bool>,
    /// A task looks after the bitmap and the clean state.
    pub(super) upkeep: bool,
}

/// Discards and write-zeroes that follow each other, as far as they had to wait for bits.
#[derive(Debug, Default)]
struct ZeroRun {
    /// Where the bits end that were asked for, and how many sectors they cover.
    end: Sector,
    len: Sectors,
}

/// Bits are set ahead for at most this share of the array: what a crash makes a resync copy in vain.
const AHEAD_SHARE: u64 = 16;

impl ZeroRun {
    /// How much to ask for behind `span`.
    fn ahead(&mut self, span: Span, most: Sectors) -> Sectors {
        let follows = span.sector <= self.end && self.end < span.end();
        let ahead = if follows { self.len.min(most) } else { Sectors::ZERO };
        let before = if follows { self.len } else { Sectors::ZERO };
        *self = ZeroRun { end: span.end() + ahead, len: before + span.nr + ahead };
        ahead
    }
}

impl Array {
    /// An array to be served.
    ///
    /// # Errors
    ///
    /// Members that are too small, or too few to have all data; a bitmap of another size.
    pub fn new(node: NodeId, config: ArrayConfig) -> Result<Arc<Array>, ArrayError> {
        check(&config)?;
        let ArrayConfig { name, geometry, members, resync_from, intent, record } = config;
        let members: Box<[_]> = members.into_iter().map(|member| member.map(Member::new)).collect();
        let mut limits = limits(&geometry, &members);
        limits.read_only |= geometry.copies() > 1 && record.is_none();
        members.iter().flatten().for_each(|member| member.widen_bad(&limits));
        let found = found_events(record.as_deref());
        let events = found.iter().copied().max().unwrap_or(0);
        let books = Books {
            events,
            uneven: found.iter().any(|other| *other != events),
            clean: true,
            corrected: vec![0; members.len()],
            dead_sites: vec![false; record.as_ref().map_or(0, |record| record.sites().len())],
            ..Books::default()
        };
        let sectors = geometry.sectors();
        Ok(Arc::new_cyclic(|me| {
            let array = Array {
                shape: Shape { node, sectors, limits },
                me: me.clone(),
                name,
                geometry,
                members,
                intent: intent.map(|intent| Intent::new(intent, events)),
                record,
                gate: Gate::default(),
                irregular: AtomicBool::new(false),
                differ_from: AtomicU64::new(resync_from.map_or(u64::MAX, |from| from.0)),
                no_fast_zeroes: AtomicBool::new(false),
                run: Mutex::default(),
                busy: AtomicBool::new(false),
                mending: Mending::default(),
                failed: Mutex::default(),
                turns: Turns::default(),
                books: Mutex::new(books),
            };
            array.irregular.store(array.is_irregular(), Ordering::Release);
            array
        }))
    }

    /// Itself, for a task.
    pub(super) fn itself(&self) -> Arc<Array> {
        self.me.upgrade().expect("who calls a method of an array has a share in it")
    }

    /// Held only for as long as it takes to look or to alter, never across a wait.
    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member of a role, if it takes part.
    #[inline]
    pub(super) fn member(&self, role: u16) -> Option<&Member> {
        self.members.get(usize::from(role))?.as_ref().filter(|member| !member.is_faulty())
    }

    /// Those that take part, by role.
    pub(super) fn taking_part(&self) -> impl Iterator<Item = (u16, &Member)> {
        (0..).zip(&self.members).filter_map(|(role, _)| self.member(role).map(|member| (role, member)))
    }

    /// Whether some member is missing, has failed, or is not in sync yet.
    pub(super) fn is_degraded(&self) -> bool {
        !self.members.iter().all(|member| member.as_ref().is_some_and(Member::is_in_sync))
    }

    /// Whether all data has a copy in sync without this member.
    pub(super) fn can_do_without(&self, role: u16) -> bool {
        let present = |other| other != role && self.member(other).is_some_and(Member::is_in_sync);
        self.geometry.copies() > 1 && self.geometry.has_all_data(&present)
    }

    /// The superblocks are as the books are: writes may go again, if they could before.
    pub(super) fn reopen(&self) {
        self.gate.set(if self.books().clean { GateState::Clean } else { GateState::Active });
    }

    /// The state for superblocks.
    pub(super) fn state(&self, cx: &TaskContext) -> ArrayState {
        let books = self.books();
        ArrayState {
            events: books.events,
            clean: books.clean,
            resync_from: self.resync_from(),
            gone: (0..self.geometry.members()).map(|role| self.member(role).is_none()).collect(),
            corrected: books.corrected.clone(),
            now: cx.now(),
        }
    }

    /// Where a resync would have to begin.
    pub(super) fn resync_from(&self) -> Option<Sector> {
        Some(Sector(self.differ_from.load(Ordering::Acquire))).filter(|from| from.0 != u64::MAX)
    }

    /// Mirrors may differ in this range of the array from now on.
    pub(super) fn note_difference(&self, sector: Sector, nr: Sectors) {
        if let Some(intent) = &self.intent {
            intent.keep(sector, nr);
        }
        self.differ_from.fetch_min(sector.0, Ordering::AcqRel);
        self.choose_with_care();
    }

    /// From now on, reads choose with care: called once the reason for that is in place.
    pub(super) fn choose_with_care(&self) {
        self.irregular.store(true, Ordering::Release);
    }

    /// A reason to choose with care is gone: were there others? With the turn.
    pub(super) fn choose_freely_again(&self) {
        if !self.is_irregular() {
            // A new reason may come up at the same time. Either it is seen when we look again, or its mark is set after ours.
            self.irregular.swap(false, Ordering::AcqRel);
            if self.is_irregular() {
                self.choose_with_care();
            }
        }
    }

    fn is_irregular(&self) -> bool {
        let ordinary = self.members.iter().all(|member| member.as_ref().is_some_and(Member::is_ordinary));
        let differs = match &self.intent {
            Some(intent) => intent.any_kept(),
            None => self.resync_from().is_some(),
        };
        self.geometry.copies() > 1 && (!ordinary || differs)
    }

    fn may_differ(&self, sector: Sector, nr: Sectors) -> bool {
        match &self.intent {
            Some(intent) => intent.any_kept() && intent.is_kept(sector, nr),
            None => self.differ_from.load(Ordering::Acquire) < sector.0 + nr.0,
        }
    }

    pub(super) fn defer(&self, span: Span, reason: Reason) -> Defer {
        Defer { node: self.shape.node, span, reason }
    }

    /// How many pieces `span` is cut into, if `room` is where the first ends.
    fn pieces(&self, span: Span, room: Sectors) -> u64 {
        match self.geometry.chunk() {
            _ if span.nr <= room => 1,
            Some(chunk) => (span.end().0 - 1) / chunk.0 - span.sector.0 / chunk.0 + 1,
            None => 1 + (span.nr - room).0.div_ceil(self.geometry.read_room(span.sector + room).0),
        }
    }

    fn read(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let careful = self.irregular.load(Ordering::Acquire);
        let mut rest = span;
        let mut room = self.geometry.read_room(rest.sector);
        cx.split(self.shape.node, span, self.pieces(span, room), Reason::Chunk);
        loop {
            let piece = rest.piece(Sectors::ZERO, room.min(rest.nr));
            if careful {
                self.read_with_care(piece, cx)?;
            } else {
                let copy = self.geometry.preferred_copy(piece.sector);
                self.pass(piece, self.geometry.place(piece.sector, copy), cx)?;
            }
            if piece.nr == rest.nr {
                return Ok(());
            }
            rest = rest.piece(piece.nr, rest.nr - piece.nr);
            room = self.geometry.read_room(rest.sector);
        }
    }

    /// Hands a piece to the member at `place`, which is there.
    #[inline]
    fn pass(&self, piece: Span, place: Place, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let Some(Some(member)) = self.members.get(usize::from(place.member)) else {
            cx.error(piece, Errno::EIO);
            return Ok(());
        };
        let sector = member.data_start + Sectors(place.sector.0);
        cx.pass(self.shape.node, piece.sector, &*member.layer, piece.moved_to(sector))
    }

    /// Reads a piece of an array in which something is out of order; it is cut where a copy can be read no further.
    fn read_with_care(&self, piece: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let mut places = Places::new();
        let same = self.may_differ(piece.sector, piece.nr);
        let mut rest = piece;
        while rest.nr > Sectors::ZERO {
            self.geometry.places(rest.sector, &mut places);
            let preferred = if same { 0 } else { self.geometry.preferred_copy(rest.sector) };
            let Some((place, nr)) = self.choose(&places, preferred, same, rest.nr) else {
                cx.error(rest, Errno::EIO);
                return Ok(());
            };
            self.pass(rest.piece(Sectors::ZERO, nr), place, cx)?;
            rest = rest.piece(nr, rest.nr - nr);
        }
        Ok(())
    }

    /// The copy to read, and how far. Where copies may differ (`same`), the choice for a sector must not depend on where a
    /// read ends: the first that has the first sector. Otherwise one that has all of it, if there is one. Write-mostly
    /// members come last.
    pub(super) fn choose(
        &self,
        places: &Places,
        preferred: usize,
        same: bool,
        nr: Sectors,
    ) -> Option<(Place, Sectors)> {
        let mut best: Option<(bool, Sectors, Place)> = None;
        let order = places.iter().cycle().skip(preferred).take(places.len());
        for place in order {
            let Some(member) = self.member(place.member) else { continue };
            let readable = member.readable(place.sector, nr);
            let better = readable > Sectors::ZERO
                && best.is_none_or(|(eager, len, _)| {
                    (!member.write_mostly && !eager)
                        || (!same && eager != member.write_mostly && readable > len)
                });
            if better {
                best = Some((!member.write_mostly, readable, *place));
            }
        }
        best.map(|(_, readable, place)| (place, readable))
    }

    /// A write: all copies of each piece.
    fn write(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        self.admit(span)?;
        let mut places = Places::new();
        let mut rest = span;
        let mut room = self.geometry.room(rest.sector);
        cx.split(self.shape.node, span, self.pieces(span, room), Reason::Chunk);
        let mut left_out = false;
        loop {
            let piece = rest.piece(Sectors::ZERO, room.min(rest.nr));
            self.geometry.places(piece.sector, &mut places);
            let mut any = false;
            for place in &places {
                match &self.members[usize::from(place.member)] {
                    Some(member) if member.is_faulty() => left_out = true,
                    Some(_) => {
                        any = true;
                        self.pass(piece, *place, cx)?;
                    }
                    None => {}
                }
            }
            if !any {
                cx.error(piece, Errno::EIO);
            }
            if piece.nr == rest.nr {
                return self.confirm(span, left_out);
            }
            rest = rest.piece(piece.nr, rest.nr - piece.nr);
            room = self.geometry.room(rest.sector);
        }
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
        let mut ranges = 0;
        self.geometry.ranges(span.sector, span.nr, &mut |_, _| ranges += 1);
        cx.split(self.shape.node, span, ranges / u64::from(self.geometry.copies()), Reason::Chunk);
        let (mut left_out, mut result) = (false, Ok(()));
        self.geometry.ranges(span.sector, span.nr, &mut |place, nr| {
            let Some(member) = &self.members[usize::from(place.member)] else { return };
            if member.is_faulty() {
                left_out = true;
            } else if result.is_ok() {
                // Without data, a piece's place within the bio means nothing.
                let sector = member.data_start + Sectors(place.sector.0);
                let piece = Span { sector, nr, ..span };
                result = cx.pass(self.shape.node, span.sector, &*member.layer, piece);
            }
        });
        result?;
        self.confirm(span, left_out)
    }

    /// Whether a discard or write-zeroes is for all members. What only some of them did would make mirrors differ.
    fn takes(&self, span: Span) -> bool {
        let limits = &self.shape.limits;
        match span.op {
            Op::Discard => limits.discards(),
            _ if !span.flags.has(Flags::FAST_ONLY) => true,
            _ => limits.max_write_zeroes > Sectors::ZERO && !self.no_fast_zeroes.load(Ordering::Relaxed),
        }
    }

    /// The part of a discard or write-zeroes that all members do, if there is one. Each leaves out of a discard what is not a
    /// whole granule of its own; so that mirrors do not differ, what is not one of the coarsest is left out of all. (That
    /// takes members whose data starts at a granule, and chunks of whole ones. Otherwise they may differ in what was discarded,
    /// as under Linux.)
    fn done_alike(&self, span: Span) -> Option<Span> {
        if span.op != Op::Discard || self.geometry.copies() == 1 {
            return Some(span);
        }
        let granule = (u64::from(self.shape.limits.discard_granularity) / SECTOR).max(1);
        let start = span.sector.0.next_multiple_of(granule);
        let end = span.end().0 / granule * granule;
        (start < end).then(|| span.piece(Sectors(start - span.sector.0), Sectors(end - start)))
    }

    fn flush(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let mut left_out = false;
        for member in self.members.iter().flatten() {
            if member.is_faulty() {
                left_out = true;
            } else {
                cx.pass(self.shape.node, span.sector, &*member.layer, span)?;
            }
        }
        if left_out && self.gate.state() == GateState::Recording {
            return Err(self.defer(span, Reason::MemberFailed));
        }
        Ok(())
    }

    /// Whether a write may go (invariant 1).
    #[inline]
    fn admit(&self, span: Span) -> Result<(), Defer> {
        if self.record.is_none() {
            return Ok(());
        }
        if !self.gate.pass() {
            self.want(span);
            return Err(self.defer(span, Reason::Activate));
        }
        if let Some(intent) = &self.intent
            && !intent.admit(span.sector, span.nr)
        {
            self.want(span);
            return Err(self.defer(span, Reason::WriteIntent));
        }
        if self.mending.meets(span.sector, span.nr) {
            return Err(self.defer(span, Reason::ReadError));
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
        let Some(intent) = &self.intent else { return };
        let mut nr = span.nr;
        if !span.op.has_data() {
            let most = Sectors(self.shape.sectors.0 / AHEAD_SHARE);
            let ahead = self.run.lock().unwrap_or_else(PoisonError::into_inner).ahead(span, most);
            nr = Sectors((nr + ahead).0.min(self.shape.sectors.0 - span.sector.0));
        }
        intent.want(span.sector, nr);
    }

    /// Whether a write that left out a member may go (invariant 2). The gate was closed before the member was marked, and is
    /// opened again when that is on record; so whoever has seen the mark sees one or the other here.
    #[inline]
    fn confirm(&self, span: Span, left_out: bool) -> Result<(), Defer> {
        if left_out && !self.gate.pass() {
            return Err(self.defer(span, Reason::MemberFailed));
        }
        Ok(())
    }
}

impl Layer for Array {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        match span.op {
            Op::Read => self.read(span, cx),
            Op::Flush => self.flush(span, cx),
            _ if self.shape.limits.read_only => {
                cx.error(span, Errno::EROFS);
                Ok(())
            }
            Op::Write => self.write(span, cx),
            Op::Discard | Op::WriteZeroes => self.write_ranges(span, cx),
        }
    }

    fn prepare(&self, defer: Defer, cx: TaskContext) -> Preparation {
        let array = self.itself();
        Box::pin(async move {
            match (defer.reason, defer.span.op) {
                (Reason::MemberFailed, _) => array.settle_failures(&cx).await,
                (Reason::ReadError, Op::Read) => {
                    array.start_mending(&cx);
                    Ok(())
                }
                (Reason::ReadError, _) => {
                    array.stop_mending().await;
                    Ok(())
                }
                _ => array.make_ready(defer.span, &cx).await,
            }
        })
    }

    fn is_redundant(&self) -> bool {
        self.geometry.copies() > 1
    }

    fn cure(&self, failure: &Failure) -> Cure {
        self.cure_failure(failure)
    }

    fn close(&self, cx: TaskContext) -> Option<Preparation> {
        self.record.as_ref()?;
        let array = self.itself();
        Some(Box::pin(async move { array.put_to_rest(&cx).await }))
    }

    fn below(&self) -> Vec<Arc<dyn Layer>> {
        let mut below: Vec<_> = self.members.iter().flatten().map(|member| member.layer.clone()).collect();
        // Metadata volumes and spares are written to as well: they are closed after this layer.
        for site in self.record.iter().flat_map(|record| record.sites()) {
            if !below.iter().any(|layer| layer.node() == site.layer.node()) {
                below.push(site.layer.clone());
            }
        }
        below
    }
}

/// The events of the members as they were found.
fn found_events(record: Option<&dyn Record>) -> Vec<u64> {
    let Some(record) = record else { return Vec::new() };
    let sites = record.sites().iter().enumerate().filter(|(_, site)| site.role.is_some());
    sites.map(|(at, _)| record.events(at)).collect()
}

/// Stacked limits, with the hints that the kernel's md gives: a chunk is the least that is worth while, a row of all data
/// the best.
fn limits(geometry: &Geometry, members: &[Option<Member>]) -> Limits {
    let mut limits = Limits::stacked(members.iter().flatten().map(|member| member.layer.limits()));
    if let Some(chunk) = geometry.chunk() {
        let chunk = u32::try_from(chunk.0.saturating_mul(SECTOR)).unwrap_or(u32::MAX);
        limits.io_min = chunk;
        limits.io_opt = chunk.saturating_mul(chunks_of_a_row(geometry));
    }
    limits
}

/// How many different chunks a row of all members has, where that is a whole number; otherwise the members, as in Linux.
fn chunks_of_a_row(geometry: &Geometry) -> u32 {
    let mut copies = Places::new();
    geometry.places(Sector(0), &mut copies);
    // Near copies of the first chunk are in the first row, far copies in others.
    let near = copies.iter().filter(|place| place.sector == Sector(0)).count().max(1) as u32;
    let members = u32::from(geometry.members());
    if members.is_multiple_of(near) { members / near } else { members }
}

fn check(config: &ArrayConfig) -> Result<(), ArrayError> {
    let (name, geometry) = (&config.name, &config.geometry);
    let expected = geometry.members();
    if config.members.len() != usize::from(expected) {
        let found = config.members.len();
        return Err(ArrayError::Members { name: name.clone(), found, expected });
    }
    for (role, member) in (0..).zip(&config.members) {
        let Some(member) = member else { continue };
        let (sectors, needed) = (member.layer.sectors(), geometry.sectors_on_member(role));
        let needed = member.data_start.0.saturating_add(needed.0);
        if needed > sectors.0 {
            let (name, member) = (name.clone(), member.name.clone());
            return Err(ArrayError::Small { name, member, sectors, needed });
        }
    }
    let in_sync = |role: u16| {
        config.members[usize::from(role)].as_ref().is_some_and(|member| member.recovered.is_none())
    };
    if !geometry.has_all_data(&in_sync) {
        let missing = (0..expected).filter(|role| !in_sync(*role)).collect();
        return Err(ArrayError::Incomplete { name: name.clone(), missing, members: expected });
    }
    match &config.intent {
        Some(intent) if intent.superblock.sync_size != geometry.sectors().0 => Err(ArrayError::Intent {
            name: name.clone(),
            found: intent.superblock.sync_size,
            expected: geometry.sectors(),
        }),
        _ => Ok(()),
    }
}
