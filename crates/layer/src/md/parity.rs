//! RAID4, 5 and 6 of which all members are there: striping with gaps. Only for reading, as nothing of parity is computed.

use std::num::NonZeroU64;
use std::sync::Arc;

use blockwork_engine::{
    Defer, Errno, Layer, Limits, Misaligned, NodeId, Op, Reason, Resolver, Sector, Sectors, Shape, Span,
};
use blockwork_format::md::ParityLayout;

use crate::divisor::Divisor;
use crate::linear::in_a_block;

/// What an array with parity is made of.
#[derive(Clone, Debug)]
pub struct ParityConfig {
    /// Where the data of a row are.
    pub layout: ParityLayout,
    /// Sectors of a chunk.
    pub chunk: NonZeroU64,
    /// All members, by their places, and where their data begin.
    pub members: Vec<(Arc<dyn Layer>, Sector)>,
    /// Sectors of each that count.
    pub size: Sectors,
}

/// Why it cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParityError {
    /// Not as many as the layout is for.
    #[error("it has {0} members, and its layout is one for {1}")]
    Members(usize, u16),
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

/// An array with parity that has all its members.
#[derive(Debug)]
pub struct Parity {
    layout: ParityLayout,
    chunk: Divisor,
    data_disks: Divisor,
    members: Box<[(Arc<dyn Layer>, Sector)]>,
    shape: Shape,
}

impl Parity {
    /// The array.
    ///
    /// # Errors
    /// Its members are too few, or too small.
    pub fn new(node: NodeId, config: ParityConfig) -> Result<Parity, ParityError> {
        let ParityConfig { layout, chunk, members, size } = config;
        if members.len() != usize::from(layout.disks()) {
            return Err(ParityError::Members(members.len(), layout.disks()));
        }
        for (place, (member, start)) in members.iter().enumerate() {
            let end = start.0.saturating_add(size.0);
            if end > member.sectors().0 {
                return Err(ParityError::Member { place, found: member.sectors(), end });
            }
        }
        let data_disks = NonZeroU64::new(layout.data_disks().into()).expect("a layout has data");
        let sectors = (size.0 / chunk * chunk.get()).checked_mul(data_disks.get());
        let sectors = sectors.filter(|sectors| (1..=Sectors::MAX.0).contains(sectors));
        let sectors = Sectors(sectors.ok_or(ParityError::Size(size))?);
        let mut limits = Limits::stacked(members.iter().map(|(member, _)| member.limits()));
        limits.read_only = true;
        Ok(Parity {
            layout,
            chunk: Divisor::new(chunk),
            data_disks: Divisor::new(data_disks),
            members: members.into(),
            shape: Shape { node, sectors, limits },
        })
    }

    /// Where a sector is, and how many more lie behind it there.
    #[inline]
    fn place(&self, sector: Sector) -> (&(Arc<dyn Layer>, Sector), Sector, Sectors) {
        let (chunk, within) = self.chunk.divide(sector.0);
        let (row, nth) = self.data_disks.divide(chunk);
        // Less than the number of data disks.
        let member = &self.members[usize::from(self.layout.member(row, nth as u16))];
        let at = member.1 + Sectors(row * self.chunk.get() + within);
        (member, at, Sectors(self.chunk.get() - within))
    }
}

impl Layer for Parity {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if span.op == Op::Flush {
            let mut all = self.members.iter();
            return all.try_for_each(|(member, _)| cx.pass(self.shape.node, span.sector, &**member, span));
        }
        if span.op != Op::Read {
            cx.error(span, Errno::EROFS);
            return Ok(());
        }
        let mut rest = span;
        loop {
            let ((member, _), at, most) = self.place(rest.sector);
            let piece = rest.piece(Sectors::ZERO, rest.nr.min(most));
            if piece.nr < rest.nr {
                cx.split(self.shape.node, piece, 2, Reason::Chunk);
            }
            cx.pass(self.shape.node, piece.sector, &**member, piece.moved_to(at))?;
            if piece.nr == rest.nr {
                return Ok(());
            }
            rest = rest.piece(piece.nr, rest.nr - piece.nr);
        }
    }
    fn misaligned(&self) -> Option<Misaligned> {
        self.members.iter().find_map(|(member, start)| in_a_block(&**member, *start))
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        self.members.iter().map(|(member, _)| member.clone()).collect()
    }
}
