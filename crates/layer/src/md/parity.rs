//! RAID4, 5 and 6, for reading: striping with gaps. What a member had that is missing, or does not give some of its sectors, is computed
//! from the others and the parity.
//!
//! | a member | what is read of it | terms of others |
//! | --- | --- | --- |
//! | is missing, or in its list of bad blocks, or behind what was rebuilt | computed, else EIO | never |
//! | has just refused it | computed, else EIO | not for this read |
//! | has refused it before | computed; where that cannot be, read from it once more | only where there is no other way |
//!
//! Where the parity may not fit the data ([`ParityConfig::stale`]), nothing is computed.
//!
//! Source, for the facts: the kernel's `drivers/md/raid5.c`; H. Peter Anvin, "The mathematics of RAID-6".

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use blockwork_engine::{
    Cure, Defer, Errno, Failure, Gf256, Layer, Limits, Misaligned, NodeId, Op, Reason, Resolver, Sector,
    Sectors, Shape, Span, Term,
};
use blockwork_format::md::ParityLayout;

use super::MemberConfig;
use super::bad_blocks::{Bad, BadBlocks, whole_blocks};
use crate::divisor::Divisor;
use crate::linear::in_a_block;

/// What an array with parity is made of.
#[derive(Clone, Debug)]
pub struct ParityConfig {
    /// What messages call it.
    pub name: String,
    /// Where the data of a row are.
    pub layout: ParityLayout,
    /// Sectors of a chunk.
    pub chunk: NonZeroU64,
    /// Members, by their places; none: it is missing.
    pub members: Vec<Option<MemberConfig>>,
    /// Sectors of each that count.
    pub size: Sectors,
    /// Sectors of each, from where its data begin, whose parity may not fit the data: it was being written when the array was last in use. In
    /// order.
    pub stale: Vec<Range<u64>>,
}

/// Why it cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParityError {
    /// Not as many as the layout is for.
    #[error("it has {0} members, and its layout is one for {1}")]
    Members(usize, u16),
    /// More are missing than it has parities.
    #[error("{which} missing, and its parity makes up for {most}; give those disks as well")]
    Missing {
        /// Those, for people: "members 1, 3 of 5 are".
        which: String,
        /// How many may be.
        most: u16,
    },
    /// A member is too small.
    #[error("member {place} has {found} sectors, and its data are to end at sector {end}; was it cut?")]
    Member {
        /// Which.
        place: usize,
        /// What it has.
        found: Sectors,
        /// What it should.
        end: u64,
    },
    /// The members have no whole chunk, or more than a device can have.
    #[error("members of {0} sectors make no array")]
    Size(Sectors),
}

/// A member that is there.
#[derive(Debug)]
struct Leg {
    name: String,
    layer: Arc<dyn Layer>,
    start: Sector,
    /// What it does not have (listed), and what it has refused (unread).
    bad: BadBlocks,
}

/// A sector of the array.
#[derive(Clone, Copy, Debug)]
struct Place {
    row: u64,
    member: u16,
    /// Where in the data of that member.
    sector: Sector,
    /// Up to the end of its chunk.
    most: Sectors,
}

/// An array with parity.
#[derive(Debug)]
pub struct Parity {
    name: String,
    layout: ParityLayout,
    chunk: Divisor,
    data_disks: Divisor,
    legs: Box<[Option<Leg>]>,
    stale: Box<[Range<u64>]>,
    size: Sectors,
    shape: Shape,
}

impl Parity {
    /// The array.
    ///
    /// # Errors
    /// Its members are too few, or too small.
    pub fn new(node: NodeId, config: ParityConfig) -> Result<Parity, ParityError> {
        let ParityConfig { name, layout, chunk, members, size, stale } = config;
        if members.len() != usize::from(layout.disks()) {
            return Err(ParityError::Members(members.len(), layout.disks()));
        }
        check_missing(&layout, &members)?;
        for (place, config) in members.iter().enumerate() {
            let Some(MemberConfig { layer, data_start, .. }) = config else { continue };
            let end = data_start.0.saturating_add(size.0);
            if end > layer.sectors().0 {
                return Err(ParityError::Member { place, found: layer.sectors(), end });
            }
        }
        let data_disks = NonZeroU64::new(layout.data_disks().into()).expect("a layout has data");
        let sectors = (size.0 / chunk * chunk.get()).checked_mul(data_disks.get());
        let sectors = sectors.filter(|sectors| (1..=Sectors::MAX.0).contains(sectors));
        let sectors = Sectors(sectors.ok_or(ParityError::Size(size))?);
        let mut limits = Limits::stacked(members.iter().flatten().map(|member| member.layer.limits()));
        limits.read_only = true;
        let leg = |config: MemberConfig| Leg::new(config, size, &limits);
        let legs = members.into_iter().map(|config| config.map(leg)).collect();
        Ok(Parity {
            name,
            layout,
            chunk: Divisor::new(chunk),
            data_disks: Divisor::new(data_disks),
            legs,
            stale: stale.into(),
            size,
            shape: Shape { node, sectors, limits },
        })
    }

    /// Where a sector is.
    #[inline]
    fn place(&self, sector: Sector) -> Place {
        let (chunk, within) = self.chunk.divide(sector.0);
        let (row, nth) = self.data_disks.divide(chunk);
        Place {
            row,
            member: self.layout.member(row, nth as u16), // less than the number of data disks
            sector: Sector(row * self.chunk.get() + within),
            most: Sectors(self.chunk.get() - within),
        }
    }

    fn leg(&self, member: u16) -> Option<&Leg> {
        self.legs[usize::from(member)].as_ref()
    }

    /// How many of the sectors from there on are all read from their member, which is given then, or all computed.
    #[inline]
    fn alike(&self, place: &Place, nr: Sectors) -> (Sectors, Option<&Leg>) {
        let Some(leg) = self.leg(place.member) else { return (nr, None) };
        match leg.bad.readable(place.sector, nr) {
            Sectors::ZERO => (leg.bad.unreadable(place.sector, nr), None),
            good => (good, Some(leg)),
        }
    }

    /// What the data of a member are the sum of, in a row of which `is_lost` says whose are not there; none: too many.
    fn solve(&self, row: u64, wanted: u16, is_lost: impl Fn(u16) -> bool) -> Option<Vec<(u16, Gf256)>> {
        let data = || (0..self.layout.data_disks()).map(|nth| self.layout.member(row, nth));
        let weight = |member| Gf256::power_of_two(self.layout.exponent(row, member).into());
        let (p, q) = self.layout.parity(row);
        let (p, q) = (Some(p).filter(|p| !is_lost(*p)), q.filter(|q| !is_lost(*q)));
        let mut lost = data().filter(|member| *member != wanted && is_lost(*member));
        let (other, has_more) = (lost.next(), lost.next().is_some());
        let others = data().filter(|member| *member != wanted && Some(*member) != other);
        match (other, p, q) {
            _ if has_more => None,
            (None, Some(p), _) => Some(others.chain([p]).map(|member| (member, Gf256::ONE)).collect()),
            // Q is the sum of all data by their weights.
            (None, None, Some(q)) => {
                let share = |factor: Gf256| factor / weight(wanted);
                let others = others.map(|member| (member, share(weight(member))));
                Some(others.chain([(q, share(Gf256::ONE))]).collect())
            }
            // With P and Q less the data that are there, p and q: wanted + other = p, and by their weights q.
            (Some(other), Some(p), Some(q)) => {
                let both = weight(wanted) + weight(other);
                if both == Gf256::ZERO {
                    return None; // more members than the field has weights
                }
                let share = |factor: Gf256| factor / both;
                let others = others.map(|member| (member, share(weight(other) + weight(member))));
                Some(others.chain([(p, share(weight(other))), (q, share(Gf256::ONE))]).collect())
            }
            _ => None,
        }
    }

    /// What is read to get the `nr` sectors at a place, without those members. See the module.
    fn ways(&self, place: &Place, nr: Sectors, without: &[NodeId]) -> Option<Vec<(u16, Gf256)>> {
        let is_gone = |member: u16| {
            self.leg(member)
                .is_none_or(|leg| without.contains(&leg.layer.node()) || leg.bad.is_lacking(place.sector, nr))
        };
        let is_doubted =
            |member: u16| self.leg(member).is_some_and(|leg| leg.bad.readable(place.sector, nr) < nr);
        let is_stale = self.is_stale(place.sector, nr);
        let solve = |is_lost: &dyn Fn(u16) -> bool| {
            if is_stale { None } else { self.solve(place.row, place.member, is_lost) }
        };
        solve(&|member| is_gone(member) || is_doubted(member))
            .or_else(|| (!is_gone(place.member)).then(|| vec![(place.member, Gf256::ONE)]))
            .or_else(|| solve(&is_gone))
    }

    /// Whether the parity of some of these sectors may not fit the data.
    fn is_stale(&self, sector: Sector, nr: Sectors) -> bool {
        let next = self.stale.partition_point(|range| range.end <= sector.0);
        self.stale.get(next).is_some_and(|range| range.start < sector.0 + nr.0)
    }

    /// A member has refused sectors of its data: they are computed from now on.
    fn note(&self, leg: &Leg, sector: Sector, nr: Sectors, errno: Errno) {
        let Leg { name: member, bad, .. } = leg;
        let array = &self.name;
        if bad.add(sector, nr, Bad::Unread) {
            log::warn!(
                "{array}: {nr} sectors at {sector} of the data of {member} cannot be read ({errno}); they are computed from the other \
                 members"
            );
        } else {
            bad.forget_unread();
            bad.add(Sector(0), self.size, Bad::Unread);
            log::error!(
                "{array}: {member} cannot be read in too many places, the last one {nr} sectors at {sector} of its data ({errno}): \
                 what it has is computed from the other members from now on, as far as they can be read"
            );
        }
    }
}

/// Whether the parities make up for what is missing.
fn check_missing(layout: &ParityLayout, members: &[Option<MemberConfig>]) -> Result<(), ParityError> {
    let is_missing = |(_, member): &(usize, &Option<MemberConfig>)| {
        member.as_ref().is_none_or(|config| config.recovered == Some(Sector(0)))
    };
    let missing: Vec<_> = members.iter().enumerate().filter(is_missing).map(|(place, _)| place).collect();
    let (all, most) = (members.len(), layout.disks() - layout.data_disks());
    if missing.len() <= usize::from(most) {
        return Ok(());
    }
    let list: Vec<_> = missing.iter().map(ToString::to_string).collect();
    Err(ParityError::Missing { which: format!("members {} of {all} are", list.join(", ")), most })
}

impl Leg {
    fn new(config: MemberConfig, size: Sectors, limits: &Limits) -> Leg {
        let MemberConfig { name, layer, data_start, recovered, bad: mut list, .. } = config;
        if let Some(from) = recovered.filter(|from| from.0 < size.0) {
            list.push((from, Sectors(size.0 - from.0)));
        }
        let bad = BadBlocks::listed(&list);
        bad.widen(limits);
        Leg { name, layer, start: data_start, bad }
    }
}

impl Layer for Parity {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if span.op == Op::Flush {
            let mut all = self.legs.iter().flatten();
            return all.try_for_each(|leg| cx.pass(self.shape.node, span.sector, &*leg.layer, span));
        }
        if span.op != Op::Read {
            cx.error(span, Errno::EROFS);
            return Ok(());
        }
        let mut rest = span;
        loop {
            let place = self.place(rest.sector);
            let (nr, leg) = self.alike(&place, rest.nr.min(place.most));
            let piece = rest.piece(Sectors::ZERO, nr);
            if nr < rest.nr {
                cx.split(self.shape.node, piece, 2, Reason::Chunk);
            }
            match leg {
                Some(leg) => {
                    let at = leg.start + Sectors(place.sector.0);
                    cx.pass(self.shape.node, piece.sector, &*leg.layer, piece.moved_to(at))?;
                }
                None => cx.sum(self.shape.node, piece),
            }
            if nr == rest.nr {
                return Ok(());
            }
            rest = rest.piece(nr, rest.nr - nr);
        }
    }
    fn terms(&self, span: Span, without: &[NodeId]) -> Result<Vec<Term>, Errno> {
        let place = self.place(span.sector);
        let ways = self.ways(&place, span.nr, without).ok_or(Errno::EIO)?;
        let term = |(member, factor): (u16, Gf256)| {
            let leg = self.leg(member).expect("who is missing is no term");
            Term { below: leg.layer.clone(), sector: leg.start + Sectors(place.sector.0), factor }
        };
        Ok(ways.into_iter().map(term).collect())
    }
    fn is_redundant(&self) -> bool {
        true
    }
    fn cure(&self, failure: &Failure) -> Cure {
        let place = (0..).zip(&self.legs).find_map(|(member, leg)| {
            leg.as_ref().filter(|leg| leg.layer.node() == failure.below).map(|leg| (member, leg))
        });
        let Some((member, leg)) = place.filter(|_| failure.op == Op::Read && failure.errno != Errno::EFAULT)
        else {
            return Cure::None;
        };
        let sector = Sector(failure.span.sector.0.saturating_sub(leg.start.0));
        let (sector, nr) = whole_blocks(sector, failure.span.nr, &self.shape.limits);
        if leg.bad.readable(sector, nr) == Sectors::ZERO {
            return Cure::Again; // known by now
        }
        let (row, within) = self.chunk.divide(sector.0);
        let place = Place { row, member, sector, most: Sectors(self.chunk.get() - within) };
        if self.ways(&place, nr, &[failure.below]).is_none() {
            return Cure::None;
        }
        self.note(leg, sector, nr, failure.errno);
        Cure::Again
    }
    fn misaligned(&self) -> Option<Misaligned> {
        self.legs.iter().flatten().find_map(|leg| in_a_block(&*leg.layer, leg.start))
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        self.legs.iter().flatten().map(|leg| leg.layer.clone()).collect()
    }
}
