//! An md array as a layer: RAID0, 1, 10, 4, 5 and 6, healthy or degraded, and how it comes back from that.
//!
//! Here are its state, and what is asked of a layer. On the way of a bio (`resolve.rs`) there are loads of atomics, and nothing
//! else, while the array is healthy. What has to be done first, or afterwards, is done by tasks:
//!
//! | file | what |
//! | --- | --- |
//! | `commit.rs` | makes the array ready for writes; writes bitmap and superblocks |
//! | `failure.rs` | what is done about members that fail: [`Layer::cure`] |
//! | `parting.rs` | saves what others list as bad before a member goes that alone makes up for it |
//! | `mend.rs` | writes anew what could not be read |
//! | `sync.rs`, `sync_pass.rs`, `sync_copy.rs`, `sync_check.rs` | resync, recovery, check and repair |
//! | `parity_read.rs`, `parity_write.rs`, `parity_sync.rs` | what is otherwise where rows have a parity |
//! | `roster.rs` | who gets which role: spares, replacements, devices that come and go |
//! | `upkeep.rs` | clears the bitmap lazily, records that the array is clean, closes it |
//!
//! Invariants:
//!
//! 1. No member gets a write before the superblocks say that the array is active, and the bitmap has the bits of its
//!    range, durably on all members that take part.
//! 2. No write, and no flush, that left out a member because it failed is acknowledged before the superblocks of the
//!    others say so, durably.
//! 3. A member whose absence would leave some data without a copy is never declared faulty: its errors go to the client. Where rows have a parity, that
//!    does not count what others list as bad, once all was done to save it (`parting.rs`).
//! 4. Where mirrors may differ, a sector is always read from the same copy: the first that is in sync, as Linux does.
//! 5. Slow paths change the array's state one at a time ([`Turns`]). None of them waits for [`TaskContext::quiesce`] or for a
//!    fence while it has the turn: bios that are under way may need it to come to their end.
//! 6. Without a [`Record`], nothing is ever written but data; a mirrored array is read-only then.
//! 7. What was copied to a member is on record (`recovery_offset`, `resync_offset`, a cleared bit) only after it has flushed it.
//! 8. While a range is copied, no write to it is under way (`fence.rs`).
//! 9. From the moment that a member's flush fails, nothing is read from it that another has, neither for clients nor to be
//!    copied: it may have forgotten what was acknowledged. (Of reads that are on their way to it then, nobody can say.) Where a flush was part of a
//!    write that fails, and may be why, reads are not answered before that is known: the engine sees to it.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use blockwork_engine::{
    Cure, Defer, Errno, Failure, Holding, Layer, Limits, Lock, LockSnapshot, Misaligned, NodeId, Preparation,
    Reason, Resolver, SECTOR, Sector, Sectors, Shape, Span, TaskContext, Term, Turns,
};

use super::bad_log::Renewals;
use super::devices::{Devices, Holders};
use super::failure::FailedMember;
use super::fence::Fences;
use super::form::Form;
use super::gate::{Gate, GateState};
use super::geometry::{Geometry, Places};
use super::intent::{Intent, IntentConfig};
use super::member::{Member, MemberConfig};
use super::mend::Mending;
use super::parity_doubt::Doubts;
use super::parting::Partings;
use super::record::{ArrayState, Record, Site, SiteState, Standing};
use super::stripe_cache::StripeCache;
use super::stripes::Stripes;
use super::sync::Sync;
use crate::current::Current;
use crate::linear::in_a_block;

/// An array as it was found.
#[derive(Debug)]
pub struct ArrayConfig {
    /// What people call it.
    pub name: String,
    /// Where its sectors are.
    pub geometry: Geometry,
    /// By role; none: missing.
    pub members: Vec<Option<MemberConfig>>,
    /// Mirrors may differ at and beyond it, or parities not fit the data, in the sectors of [`Geometry::sync_sectors`]; none: in sync.
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
        "{name}: the write-intent bitmap covers {found} sectors, expected {expected}, which are to be kept in it"
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
    /// For tasks, which outlive the call that starts them.
    me: Weak<Array>,
    pub(super) name: String,
    /// Size, geometry and bitmap, which change when it grows.
    pub(super) forms: Current<Form>,
    pub(super) devices: Devices,
    pub(super) record: Option<Box<dyn Record>>,
    /// Whether writes may go.
    pub(super) gate: Gate,
    /// Some member is missing, failed, not in sync, not to be read, or mirrors may differ: reads choose with care.
    pub(super) irregular: AtomicBool,
    /// Bad blocks of some member that were written, and are in its list on disk still: a flush takes them off.
    pub(super) renewals: Renewals,
    /// Mirrors may differ at and beyond this sector of the array, or parities not fit the data at and beyond this one of members; `u64::MAX`:
    /// nowhere. With a bitmap, only where it keeps a bit.
    pub(super) differ_from: AtomicU64,
    /// A member has refused a write-zeroes that its limits allow: none that must be fast is tried any more.
    pub(super) no_fast_zeroes: AtomicBool,
    /// The coarsest granule of discards of all devices that have had a role, sectors; 0: one of them takes none.
    pub(super) discard_granule: AtomicU64,
    /// Discards and write-zeroes that follow each other.
    pub(super) run: Mutex<ZeroRun>,
    /// There were writes since the upkeep last looked.
    pub(super) busy: AtomicBool,
    pub(super) fences: Fences,
    /// Rows with a parity that is being read or written.
    pub(super) stripes: Stripes,
    pub(super) stripe_cache: StripeCache,
    pub(super) mending: Mending,
    pub(super) sync: Sync,
    /// How often a member was distrusted.
    pub(super) distrusts: AtomicU64,
    /// Members that have failed a write, and were not dealt with yet.
    pub(super) failed: Mutex<Vec<FailedMember>>,
    /// Members that go when it is seen to what they alone make up for.
    pub(super) partings: Partings,
    /// Parities that are about to be listed as bad.
    pub(super) doubts: Doubts,
    /// Who may change the array's state: superblocks, bitmap, which members take part.
    pub(super) turns: Turns,
    books: Lock<Books>,
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
    /// A member has failed, and is to fall behind by more than the one event that everybody forgives.
    pub(super) left_behind: bool,
    /// As `differ_from`, as far as what was copied is durable.
    pub(super) synced: u64,
    /// The superblocks tell of no bitmap: it is being made anew.
    pub(super) without_bitmap: bool,
    /// A task looks after the bitmap and the clean state.
    pub(super) upkeep: bool,
}

/// Discards and write-zeroes that follow each other, as far as they had to wait for bits.
#[derive(Debug, Default)]
pub(super) struct ZeroRun {
    /// Where the bits end that were asked for, and how many sectors they cover.
    end: Sector,
    len: Sectors,
}

/// Bits are set ahead for at most this share of the array: what a crash makes a resync copy in vain.
pub(super) const AHEAD_SHARE: u64 = 16;

impl ZeroRun {
    /// How much to ask for behind `span`.
    pub(super) fn ahead(&mut self, span: Span, most: Sectors) -> Sectors {
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
        let sites = record.as_ref().map_or(&[][..], |record| record.sites());
        let (members, holders) = devices(members, sites);
        let mut limits =
            limits(&geometry, members.iter().filter(|(_, role)| role.is_some()).map(|(it, _)| it));
        if geometry.as_parity().is_some() {
            // What a device holds that discarded something is not the same for all, and a parity has to fit it.
            (limits.max_discard, limits.max_hw_discard) = (Sectors::ZERO, Sectors::ZERO);
        }
        limits.read_only |= geometry.is_redundant() && record.is_none();
        let members: Vec<Member> = members.into_iter().map(|(member, _)| member).collect();
        members.iter().for_each(|member| member.bad.widen(&limits));
        let found = found_events(record.as_deref());
        let events = found.iter().copied().max().unwrap_or(0);
        let differ_from = resync_from.map_or(u64::MAX, |from| from.0);
        let books = Books {
            events,
            uneven: found.iter().any(|other| *other != events),
            clean: true,
            synced: differ_from,
            ..Books::default()
        };
        let discard_granule = AtomicU64::new(discard_granule(&limits));
        let shape = Shape { node, sectors: geometry.sectors(), limits };
        let intent = intent.map(|intent| Intent::new(intent, events));
        let is_filled_whole = |(at, site): (usize, &Site)| {
            !site.by_bitmap && record.as_ref().is_some_and(|record| record.comes_back(at))
        };
        let sites = record.as_ref().map_or(&[][..], |record| record.sites());
        if let Some(intent) = intent.as_ref().filter(|_| sites.iter().enumerate().any(is_filled_whole)) {
            intent.set_all();
        }
        let form = Form { shape, geometry, intent };
        Ok(Arc::new_cyclic(|me| {
            let array = Array {
                me: me.clone(),
                name,
                forms: Current::new(form),
                devices: Devices::new(members, &holders),
                record,
                gate: Gate::default(),
                irregular: AtomicBool::new(false),
                renewals: Renewals::default(),
                differ_from: AtomicU64::new(differ_from),
                no_fast_zeroes: AtomicBool::new(false),
                discard_granule,
                run: Mutex::default(),
                busy: AtomicBool::new(false),
                fences: Fences::default(),
                stripes: Stripes::default(),
                stripe_cache: StripeCache::default(),
                mending: Mending::default(),
                sync: Sync::default(),
                distrusts: AtomicU64::new(0),
                failed: Mutex::default(),
                partings: Partings::default(),
                doubts: Doubts::default(),
                turns: Turns::default(),
                books: Lock::new(books),
            };
            array.irregular.store(array.is_irregular(), Ordering::Release);
            array
        }))
    }

    /// Size, geometry and bitmap, as they are now.
    #[inline]
    pub(super) fn form(&self) -> &Form {
        self.forms.get()
    }

    #[inline]
    pub(super) fn geometry(&self) -> &Geometry {
        &self.form().geometry
    }

    #[inline]
    pub(super) fn intent(&self) -> Option<&Intent> {
        self.form().intent.as_ref()
    }

    /// Itself, for a task.
    pub(super) fn itself(&self) -> Arc<Array> {
        self.me.upgrade().expect("who calls a method of an array has a share in it")
    }

    /// Held only for as long as it takes to look or to alter, never across a wait.
    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }

    /// The member of a role, if it takes part.
    #[inline]
    pub(super) fn member(&self, role: u16) -> Option<&Member> {
        match self.devices.member(role) {
            Some(member) if member.is_faulty() => self.successor(role),
            member => member,
        }
    }

    /// Who has a member's data when that is faulty: the one that is to take its place, as far as it is filled.
    #[cold]
    fn successor(&self, role: u16) -> Option<&Member> {
        let replacement = self.devices.get(self.devices.holders(role).replacement()?)?;
        (!replacement.is_faulty() && !self.may_differ_anywhere()).then_some(replacement)
    }

    /// Those that get writes: members, and those that are to take a member's place.
    pub(super) fn taking_part(&self) -> impl Iterator<Item = (u16, &Member)> {
        let of_role = |(_, holders): (u16, Holders)| [holders.member(), holders.replacement()];
        let indices = self.devices.roles().flat_map(of_role).flatten();
        let devices = indices.filter_map(|index| Some((index, self.devices.get(index)?)));
        devices.filter(|(_, member)| !member.is_faulty())
    }

    /// Whether some member is missing, has failed, or is not in sync yet.
    pub(super) fn is_degraded(&self) -> bool {
        !(0..self.geometry().members()).all(|role| self.member(role).is_some_and(Member::is_in_sync))
    }

    /// Whether all data has a copy in sync without the member of this role. One that has just been filled counts as soon as
    /// superblocks are written that say so.
    pub(super) fn can_do_without(&self, role: u16) -> bool {
        self.has_all_data_without(role) && self.bad_have_copies(role)
    }

    /// Likewise, but for what others have in their lists of bad blocks.
    pub(super) fn has_all_data_without(&self, role: u16) -> bool {
        let present = |other| other != role && self.member(other).is_some_and(Member::is_complete);
        // Where a parity may not fit, it makes up for nobody, until a resync has been there; what that can do nothing about is lost.
        let waits = self.may_differ_anywhere() && !self.sync.stuck.load(Ordering::Acquire);
        let makes_up = self.geometry().as_parity().is_none() || !waits;
        self.geometry().is_redundant() && makes_up && self.geometry().has_all_data(&present)
    }

    /// The superblocks are as the books are: writes may go again, if they could before.
    pub(super) fn reopen(&self) {
        self.gate.set(if self.books().clean { GateState::Clean } else { GateState::Active });
    }

    /// The state for superblocks.
    pub(super) fn state(&self, cx: &TaskContext) -> ArrayState {
        let count = self.devices.all().filter_map(|(_, it)| it.site.as_ref()).map(|(at, _)| at + 1).max();
        let nothing = SiteState { standing: Standing::Removed, corrected: 0, bad_blocks: false };
        let mut sites = vec![nothing; count.unwrap_or(0)];
        for (index, member) in self.devices.all() {
            if let Some((at, _)) = &member.site {
                sites[*at] = member.standing(self.devices.role_of(index));
            }
        }
        let books = self.books();
        let from = self.differ_from.load(Ordering::Acquire).min(books.synced);
        ArrayState {
            events: books.events,
            clean: books.clean,
            resync_from: Some(Sector(from)).filter(|from| from.0 != u64::MAX),
            gone: (0..self.geometry().members()).map(|role| self.member(role).is_none()).collect(),
            sites,
            has_bitmap: !books.without_bitmap,
            now: cx.now(),
        }
    }

    /// Where a resync would have to begin.
    pub(super) fn resync_from(&self) -> Option<Sector> {
        Some(Sector(self.differ_from.load(Ordering::Acquire))).filter(|from| from.0 != u64::MAX)
    }

    /// Mirrors may differ in this range of the array from now on, or parities not fit the data in this one of members.
    pub(super) fn note_difference(&self, sector: Sector, nr: Sectors) {
        if let Some(intent) = self.intent() {
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
        let ordinary =
            (0..self.geometry().members()).all(|role| self.member(role).is_some_and(Member::is_ordinary));
        self.geometry().is_redundant() && (!ordinary || self.may_differ_anywhere())
    }

    /// Whether mirrors may differ somewhere.
    pub(super) fn may_differ_anywhere(&self) -> bool {
        match self.intent() {
            Some(intent) => intent.any_kept(),
            None => self.resync_from().is_some(),
        }
    }
}

impl Layer for Array {
    fn shape(&self) -> &Shape {
        &self.form().shape
    }

    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        self.resolve_bio(span, cx)
    }

    fn prepare(&self, defer: Defer, cx: TaskContext) -> Preparation {
        let array = self.itself();
        Box::pin(async move {
            match defer.reason {
                Reason::MemberFailed => array.parting(&cx, async || array.settle_failures(&cx).await).await,
                Reason::BadBlocks => array.parting(&cx, async || array.take_off_lists(&cx).await).await,
                Reason::ReadError => {
                    array.start_mending(&cx);
                    Ok(())
                }
                Reason::Resync => {
                    let (sector, nr) = array.geometry().sync_range(defer.span.sector, defer.span.nr);
                    array.fences.wait(sector, nr).await;
                    Ok(())
                }
                _ => {
                    let ready = array.parting(&cx, async || array.make_ready(defer.span, &cx).await).await;
                    if ready.is_err() {
                        array.fails_unprepared(defer.span);
                    }
                    ready
                }
            }
        })
    }

    fn terms(&self, span: Span, without: &[NodeId]) -> Result<Vec<Term>, Errno> {
        self.terms_of_read(span, without)
    }

    fn hold_terms(&self, span: Span) -> Option<Holding> {
        let array = self.itself();
        let (sector, nr) = self.geometry().sync_range(span.sector, span.nr);
        Some(Box::pin(async move {
            let held: Box<dyn Any> = Box::new(array.stripes.hold(sector, nr).await);
            held
        }))
    }

    fn carry_out(&self, span: Span, cx: TaskContext) -> Preparation {
        let array = self.itself();
        Box::pin(async move { array.write_rows(span, &cx).await })
    }

    fn is_redundant(&self) -> bool {
        self.geometry().is_redundant()
    }

    fn cure(&self, failure: &Failure) -> Cure {
        self.cure_failure(failure)
    }

    fn suspects(&self, below: NodeId) {
        self.suspect(below);
    }

    fn open(&self, cx: TaskContext) -> Option<Preparation> {
        self.record.as_ref()?;
        let array = self.itself();
        Some(Box::pin(async move {
            array.sync.at_rest.store(false, Ordering::Release);
            array.look_for_sync(&cx);
            Ok(())
        }))
    }

    fn close(&self, cx: TaskContext) -> Option<Preparation> {
        self.record.as_ref()?;
        let array = self.itself();
        Some(Box::pin(async move { array.parting(&cx, async || array.put_to_rest(&cx).await).await }))
    }

    fn retire(&self, cx: TaskContext) -> Option<Preparation> {
        self.record.as_ref()?;
        let array = self.itself();
        Some(Box::pin(async move { array.retire(&cx).await }))
    }

    fn misaligned(&self) -> Option<Misaligned> {
        let (devices, geometry) = (&self.devices, self.geometry());
        let members = (0..geometry.members()).filter_map(|role| devices.member(role));
        let start = members.map(|member| in_a_block(&**member.layer(), member.data_start)).find_map(|it| it);
        let block_of = |role| {
            let member: Option<&Member> = devices.member(role);
            member.map_or(512, |member| member.layer().limits().logical_block_size)
        };
        let is_cut = |at: &Sector, block: u32| !at.bytes().is_multiple_of(block.into());
        let border = match geometry {
            Geometry::Linear(linear) => (0..).zip(linear.borders()).find_map(|(role, at)| {
                Some(at).filter(|at| is_cut(at, block_of(role).max(block_of(role + 1))))
            }),
            _ => {
                let chunk = geometry.chunk().map(|chunk| Sector(chunk.0));
                chunk.filter(|at| is_cut(at, self.form().shape.limits.logical_block_size))
            }
        };
        start.or(border.map(|at| Misaligned::Boundary { at }))
    }

    fn locks(&self) -> Vec<LockSnapshot> {
        let of_array = |what: &str| format!("{}: {what}", self.name);
        let bitmap = self.intent().map(|intent| intent.locks(of_array("bitmap")));
        let parity = self.geometry().as_parity();
        let rows = parity.map(|_| {
            [self.stripes.snapshot(of_array("rows")), self.stripe_cache.snapshot(of_array("stripe cache"))]
        });
        let own = [self.turns.snapshot(of_array("state")), self.books.snapshot(of_array("books"))];
        let bitmap = bitmap.into_iter().chain(rows.into_iter().flatten());
        own.into_iter().chain(bitmap).collect()
    }

    fn below(&self) -> Vec<Arc<dyn Layer>> {
        let mut below: Vec<Arc<dyn Layer>> = Vec::new();
        let data = self.devices.all().map(|(_, member)| member.layer());
        // Metadata volumes are written to as well: they are closed after this layer.
        let sites = self.devices.all().filter_map(|(_, member)| Some(&member.site.as_ref()?.1.layer));
        for layer in data.chain(sites) {
            if !below.iter().any(|known| known.node() == layer.node()) {
                below.push(layer.clone());
            }
        }
        below
    }
}

/// The devices of an array, each with its role if it has one, and who of them has which role.
fn devices(members: Vec<Option<MemberConfig>>, sites: &[Site]) -> (Vec<(Member, Option<u16>)>, Vec<Holders>) {
    let mut all: Vec<(Member, Option<u16>)> = Vec::new();
    let mut indices = vec![(None, None); members.len()];
    for (role, config) in (0..).zip(members) {
        let Some(config) = config else { continue };
        let site = sites.iter().position(|site| site.role == Some(role) && !site.replacement);
        indices[usize::from(role)].0 = Some(all.len() as u16);
        all.push((Member::new(config, site.map(|at| (at, sites[at].clone()))), Some(role)));
    }
    for (at, site) in sites.iter().enumerate().filter(|(_, site)| site.replacement || site.role.is_none()) {
        let config = MemberConfig {
            name: site.name.clone(),
            layer: site.layer.clone(),
            data_start: site.data_start,
            recovered: site.recovered.filter(|_| site.replacement).or(site.replacement.then_some(Sector(0))),
            write_mostly: false,
            bad: site.bad.clone(),
        };
        let role = site.role.filter(|role| indices.get(usize::from(*role)).is_some_and(|it| it.1.is_none()));
        if let Some(role) = role {
            indices[usize::from(role)].1 = Some(all.len() as u16);
        }
        all.push((Member::new(config, Some((at, site.clone()))), role));
    }
    let holders = indices.into_iter().map(|(member, replacement)| Holders::new(member, replacement));
    (all, holders.collect())
}

/// Sectors; 0: no discards.
pub(super) fn discard_granule(limits: &Limits) -> u64 {
    if limits.discards() { (u64::from(limits.discard_granularity) / SECTOR).max(1) } else { 0 }
}

/// The events of the members as they were found.
fn found_events(record: Option<&dyn Record>) -> Vec<u64> {
    let Some(record) = record else { return Vec::new() };
    let sites = record.sites().iter().enumerate().filter(|(_, site)| site.role.is_some());
    sites.map(|(at, _)| record.events(at)).collect()
}

/// Stacked limits, with the hints that the kernel's md gives: a chunk is the least that is worth while, a row of all data
/// the best.
fn limits<'a>(geometry: &Geometry, members: impl Iterator<Item = &'a Member>) -> Limits {
    let mut limits = Limits::stacked(members.map(|member| member.layer().limits()));
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
    if let Some(parity) = geometry.as_parity() {
        return parity.layout().data_disks().into();
    }
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
        Some(intent) if intent.superblock.sync_size != geometry.sync_sectors().0 => Err(ArrayError::Intent {
            name: name.clone(),
            found: intent.superblock.sync_size,
            expected: geometry.sync_sectors(),
        }),
        _ => Ok(()),
    }
}
