//! Rows with a parity: where each sector is read, or what it is computed from. No I/O but that of who computes.
//!
//! | a member | what is read of it | terms of others |
//! | --- | --- | --- |
//! | is missing, or in its list of bad blocks, or behind what was rebuilt | computed, else EIO | never |
//! | has just refused it | computed, else EIO | not for this read |
//! | has refused it before, or may have lost what it was given | computed; where that cannot be, read from it | only where there is no other way |
//!
//! Where the parity may not fit the data ([`Array::may_differ`]), nothing is computed. Of what a write that failed has left, single parities are bad
//! instead (`parity_doubt.rs`).

use blockwork_engine::{
    Defer, Errno, Failure, Flags, Gf256, NodeId, Op, Reason, Resolver, Sector, Sectors, Span, Sum,
    TaskContext, Term, compute,
};
use blockwork_memory::Segment;

use super::array::Array;
use super::devices::DeviceIndex;
use super::geometry::Place;
use super::io;
use super::member::Member;
use super::mend::Unread;
use super::parity::Way;
use super::resolve::pass;

/// What belongs to a role, whether that has it or not.
pub(super) struct OfRole<'a> {
    array: &'a Array,
    role: u16,
    /// Devices that are not asked.
    without: &'a [NodeId],
}

impl Sum for OfRole<'_> {
    fn terms(&self, span: Span, without: &[NodeId]) -> Result<Vec<Term>, Errno> {
        let without = [self.without, without].concat();
        self.array.terms_of(Place { member: self.role, sector: span.sector }, span.nr, &without)
    }
    fn refused(&self, failure: &Failure) {
        self.array.cure_failure(failure);
    }
    fn block(&self) -> Sectors {
        self.array.block()
    }
}

impl Array {
    /// A block of the array.
    pub(super) fn block(&self) -> Sectors {
        Sectors::from_bytes_ceil(self.form().shape.limits.logical_block_size.into())
    }

    /// Whether a member has all of that for sure, as far as anybody knows.
    pub(super) fn is_sure(&self, role: u16, sector: Sector, nr: Sectors) -> bool {
        self.member(role).is_some_and(|it| !it.is_distrusted() && it.readable(sector, nr) == nr)
    }

    /// Who serves for a role has refused to read that: it is mended, if others have it.
    pub(super) fn note_refusal(&self, role: u16, at: Sector, nr: Sectors, cx: &TaskContext) -> Unread {
        let Some(device) = self.device_of(role) else { return Unread::Known };
        let noted = self.note_unreadable(device, at, nr);
        if noted == Unread::Noted {
            self.start_mending(cx);
        }
        noted
    }

    pub(super) fn device_of(&self, role: u16) -> Option<DeviceIndex> {
        let serving = self.member(role)?;
        let mut all = self.devices.all();
        all.find(|(_, member)| std::ptr::eq(*member, serving)).map(|(device, _)| device)
    }

    /// Reads a piece that is in one chunk, from the member that has it as far as that can be, and else has it computed.
    pub(super) fn read_or_compute(&self, piece: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let node = self.form().shape.node;
        let place = self.geometry().place(piece.sector, 0);
        let mut rest = piece;
        while rest.nr > Sectors::ZERO {
            let at = place.sector + Sectors(rest.sector.0 - piece.sector.0);
            let (nr, member) = self.alike(Place { sector: at, ..place }, rest.nr);
            let here = rest.piece(Sectors::ZERO, nr);
            if nr < rest.nr {
                cx.split(node, here, 2, Reason::Chunk);
            }
            match member {
                Some(member) => pass(node, here, member, at, cx)?,
                None => cx.sum(node, here),
            }
            rest = rest.piece(nr, rest.nr - nr);
        }
        Ok(())
    }

    /// How many of the sectors from there on are all read from their member, which is given then, or all computed.
    fn alike(&self, place: Place, nr: Sectors) -> (Sectors, Option<&Member>) {
        let Some(member) = self.member(place.member).filter(|member| !member.is_distrusted()) else {
            return (nr, None);
        };
        match member.readable(place.sector, nr) {
            // It may have been mended between the two.
            Sectors::ZERO => (member.unreadable(place.sector, nr).max(self.block()).min(nr), None),
            good => (good, Some(member)),
        }
    }

    /// What a piece of a read, which is in one chunk, is computed from.
    pub(super) fn terms_of_read(&self, span: Span, without: &[NodeId]) -> Result<Vec<Term>, Errno> {
        self.terms_of(self.geometry().place(span.sector, 0), span.nr, without)
    }

    fn terms_of(&self, place: Place, nr: Sectors, without: &[NodeId]) -> Result<Vec<Term>, Errno> {
        let way = self.way(place, nr, without).ok_or(Errno::EIO)?;
        let term = |(role, factor)| {
            let member = self.member(role).ok_or(Errno::EIO)?;
            Ok(Term { below: member.layer().clone(), sector: member.at(place.sector), factor })
        };
        way.into_iter().map(term).collect()
    }

    /// From which members the `nr` sectors at a place can be had, without those; none: too much is missing.
    pub(super) fn way(&self, place: Place, nr: Sectors, without: &[NodeId]) -> Option<Way> {
        let parity = self.geometry().as_parity()?;
        let row = parity.row(place.sector);
        let is_gone = |role: u16| {
            self.member(role)
                .is_none_or(|it| without.contains(&it.layer().node()) || it.is_lacking(place.sector, nr))
        };
        let is_doubted = |role: u16| is_gone(role) || !self.is_sure(role, place.sector, nr);
        let is_stale = self.may_differ(place.sector, nr);
        let solve = |is_lost: &dyn Fn(u16) -> bool| {
            if is_stale { None } else { parity.way(row, place.member, is_lost) }
        };
        solve(&is_doubted)
            .or_else(|| (!is_gone(place.member)).then(|| Vec::from([(place.member, Gf256::ONE)])))
            .or_else(|| solve(&is_gone))
    }

    /// Computes what belongs to a role at `sector`, in one chunk, or reads it from there, `without` asking those.
    pub(super) async fn computed(
        &self,
        role: u16,
        sector: Sector,
        nr: Sectors,
        without: &[NodeId],
        cx: &TaskContext,
    ) -> Result<Segment, Errno> {
        let span = Span { op: Op::Read, flags: Flags::NONE, sector, nr, at: Sectors::ZERO };
        let data = io::memory(cx, nr);
        let of_role = OfRole { array: self, role, without };
        let result = compute(&of_role, span, std::slice::from_ref(&data), cx).await;
        self.start_mending(cx);
        result.map(|()| data)
    }
}
