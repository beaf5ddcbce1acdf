//! dm-stripe: chunks dealt out to the stripes in turn.
//!
//! Chunk `c` of the target lies on stripe `c mod n`, row `c div n`; neither the number of stripes nor the chunk need be a
//! power of two. Reads and writes are cut at chunks. A discard or write-zeroes is not: the chunks of a contiguous range
//! that lie on one stripe are contiguous there, so each stripe gets at most one piece, however large the range is.

use std::num::NonZeroU64;
use std::sync::Arc;

use blockwork_engine::{
    Defer, Layer, Limits, Misaligned, NodeId, Op, Reason, Resolver, SECTOR, Sector, Sectors, Shape, Span,
};

use crate::divisor::Divisor;
use crate::linear::in_a_block;

/// One member of a striped target.
#[derive(Clone, Debug)]
pub struct Stripe {
    /// The layer below.
    pub below: Arc<dyn Layer>,
    /// Where the stripe starts on it.
    pub start: Sector,
}

/// Why stripes cannot be put together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StripedError {
    /// No stripes.
    #[error("a striped target needs at least one stripe")]
    None,
    /// The chunk is zero.
    #[error("the chunk size is 0 sectors; expected 1 or more")]
    Chunk,
    /// The size cannot be dealt out evenly.
    #[error("{sectors} sectors cannot be divided into {stripes} stripes of whole chunks of {chunk} sectors")]
    Uneven {
        /// Size of the target.
        sectors: Sectors,
        /// Number of stripes.
        stripes: usize,
        /// Chunk size.
        chunk: Sectors,
    },
    /// A stripe does not fit its device.
    #[error("stripe {stripe} needs sectors {start} to {end} of a device of {device} sectors")]
    Outside {
        /// Which, from 0.
        stripe: usize,
        /// Its first sector.
        start: Sector,
        /// One past its last.
        end: u64,
        /// The device's size.
        device: Sectors,
    },
}

/// `sectors` sectors dealt out in chunks.
#[derive(Debug)]
pub struct Striped {
    /// Sectors of a chunk.
    chunk: Divisor,
    /// Stripes.
    count: Divisor,
    stripes: Vec<Stripe>,
    shape: Shape,
}

impl Striped {
    /// Stripes of `chunk` sectors.
    pub fn new(
        node: NodeId,
        chunk: Sectors,
        stripes: Vec<Stripe>,
        sectors: Sectors,
    ) -> Result<Striped, StripedError> {
        let count = stripes.len() as u64;
        let by_count = Divisor::new(NonZeroU64::new(count).ok_or(StripedError::None)?);
        let by_chunk = Divisor::new(NonZeroU64::new(chunk.0).ok_or(StripedError::Chunk)?);
        let each = sectors.0 / count;
        if sectors == Sectors::ZERO || !sectors.0.is_multiple_of(count) || !each.is_multiple_of(chunk.0) {
            return Err(StripedError::Uneven { sectors, stripes: stripes.len(), chunk });
        }
        for (i, stripe) in stripes.iter().enumerate() {
            let end = stripe.start.0.saturating_add(each);
            if end > stripe.below.sectors().0 {
                let device = stripe.below.sectors();
                return Err(StripedError::Outside { stripe: i, start: stripe.start, end, device });
            }
        }
        let mut limits = Limits::stacked(stripes.iter().map(|stripe| stripe.below.limits()));
        // As the kernel's stripe_io_hints: a chunk is the least that is worth while, a row of them the best.
        let chunk_bytes = u32::try_from(chunk.0.saturating_mul(SECTOR)).unwrap_or(u32::MAX);
        limits.io_min = chunk_bytes;
        limits.io_opt = u32::try_from(count).map_or(u32::MAX, |n| chunk_bytes.saturating_mul(n));
        Ok(Striped { chunk: by_chunk, count: by_count, stripes, shape: Shape { node, sectors, limits } })
    }

    /// Hands the chunks that `span` touches on, one piece each.
    #[inline]
    fn by_chunk(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let chunk_sectors = self.chunk.get();
        let (first, within) = self.chunk.divide(span.sector.0);
        if within + span.nr.0 <= chunk_sectors {
            return self.pass_piece(span, first, within, cx);
        }
        let (last, _) = self.chunk.divide(span.end().0 - 1);
        cx.split(self.shape.node, span, last - first + 1, Reason::Chunk);
        let (mut chunk, mut within, mut skip) = (first, within, 0);
        while skip < span.nr.0 {
            let nr = (chunk_sectors - within).min(span.nr.0 - skip);
            self.pass_piece(span.piece(Sectors(skip), Sectors(nr)), chunk, within, cx)?;
            (chunk, within, skip) = (chunk + 1, 0, skip + nr);
        }
        Ok(())
    }

    #[inline]
    fn pass_piece(&self, piece: Span, chunk: u64, within: u64, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let (row, column) = self.count.divide(chunk);
        let stripe = &self.stripes[column as usize];
        let sector = stripe.start + Sectors(row * self.chunk.get() + within);
        cx.pass(self.shape.node, piece.sector, &*stripe.below, piece.moved_to(sector))
    }

    /// Hands each stripe the one range of it that `span` touches.
    fn by_stripe(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let pieces = self.stripes.iter().enumerate();
        let ranges = pieces.map(|(i, stripe)| {
            let start = self.sectors_before(i as u64, span.sector.0);
            let end = self.sectors_before(i as u64, span.end().0);
            (stripe, start, end)
        });
        let touched = ranges.clone().filter(|(_, start, end)| start < end);
        cx.split(self.shape.node, span, touched.clone().count() as u64, Reason::Chunk);
        for (stripe, start, end) in touched {
            // Without data, a piece's place within the bio means nothing.
            let piece = Span { sector: stripe.start + Sectors(start), nr: Sectors(end - start), ..span };
            cx.pass(self.shape.node, span.sector, &*stripe.below, piece)?;
        }
        Ok(())
    }

    /// How many sectors of stripe `i` lie before `sector` of the target.
    fn sectors_before(&self, i: u64, sector: u64) -> u64 {
        let (chunk, within) = self.chunk.divide(sector);
        let (row, column) = self.count.divide(chunk);
        row * self.chunk.get()
            + match i.cmp(&column) {
                std::cmp::Ordering::Less => self.chunk.get(),
                std::cmp::Ordering::Equal => within,
                std::cmp::Ordering::Greater => 0,
            }
    }
}

impl Layer for Striped {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        match span.op {
            Op::Read | Op::Write => self.by_chunk(span, cx),
            Op::Discard | Op::WriteZeroes => self.by_stripe(span, cx),
            Op::Flush => self
                .stripes
                .iter()
                .try_for_each(|stripe| cx.pass(self.shape.node, span.sector, &*stripe.below, span)),
        }
    }
    fn misaligned(&self) -> Option<Misaligned> {
        let chunk = Sector(self.chunk.get());
        let block = u64::from(self.shape.limits.logical_block_size);
        let cut = (!chunk.bytes().is_multiple_of(block)).then_some(Misaligned::Boundary { at: chunk });
        cut.or_else(|| self.stripes.iter().find_map(|stripe| in_a_block(&*stripe.below, stripe.start)))
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        self.stripes.iter().map(|stripe| stripe.below.clone()).collect()
    }
}
