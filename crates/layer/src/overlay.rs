//! An origin of which some blocks lie on another device: dm-cache and dm-writecache, as far as their reads go.
//!
//! What is where is known from the beginning, and stays as it is, as nothing is written: who wrote would have to keep the metadata of both.

use std::num::NonZeroU64;
use std::sync::Arc;

use blockwork_engine::{
    Defer, Errno, Layer, Limits, Misaligned, NodeId, Op, Reason, Resolver, Sector, Sectors, Shape, Span,
};

use crate::divisor::Divisor;
use crate::linear::in_a_block;

/// What lies where.
#[derive(Clone, Debug)]
pub struct OverlayConfig {
    /// Where everything is that is not elsewhere.
    pub origin: Arc<dyn Layer>,
    /// Where the blocks are.
    pub fast: Arc<dyn Layer>,
    /// Sectors of a block.
    pub block: NonZeroU64,
    /// Where the first block begins on the fast device.
    pub start: Sector,
    /// Blocks of the origin, which rise strictly, each with its block of the fast device.
    pub blocks: Vec<(u64, u32)>,
}

/// Why it cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverlayError {
    /// A block is where no device is.
    #[error("block {block} of {what} is at sector {sector}, of {sectors}; was that cut?")]
    Outside {
        /// Of which device.
        what: &'static str,
        /// Its number.
        block: u64,
        /// Where it begins.
        sector: u64,
        /// What that device has.
        sectors: Sectors,
    },
    /// The blocks do not rise.
    #[error("block {0} of the origin is there twice, or not in its place")]
    Order(u64),
}

/// An origin, and what of it lies elsewhere. Only for reading.
#[derive(Debug)]
pub struct Overlay {
    origin: Arc<dyn Layer>,
    fast: Arc<dyn Layer>,
    block: Divisor,
    start: Sector,
    blocks: Box<[(u64, u32)]>,
    shape: Shape,
}

impl Overlay {
    /// The origin with what lies elsewhere.
    ///
    /// # Errors
    /// A block is outside of its device, or there twice.
    pub fn new(node: NodeId, config: OverlayConfig) -> Result<Overlay, OverlayError> {
        let OverlayConfig { origin, fast, block, start, blocks } = config;
        if let Some(pair) = blocks.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(OverlayError::Order(pair[1].0));
        }
        let sectors = origin.sectors();
        for (of_origin, of_fast) in &blocks {
            // The origin's last one may be a part of a block.
            let begin = of_origin.checked_mul(block.get()).filter(|begin| *begin < sectors.0);
            if begin.is_none() {
                let sector = of_origin.saturating_mul(block.get());
                return Err(OverlayError::Outside { what: "the origin", block: *of_origin, sector, sectors });
            }
            let block_end = (u64::from(*of_fast) + 1).checked_mul(block.get());
            let end = block_end.and_then(|end| end.checked_add(start.0)).unwrap_or(u64::MAX);
            if end > fast.sectors().0 {
                let (sector, block) = (end.saturating_sub(block.get()), u64::from(*of_fast));
                let sectors = fast.sectors();
                return Err(OverlayError::Outside { what: "the fast device", block, sector, sectors });
            }
        }
        let mut limits = Limits::stacked([origin.limits(), fast.limits()]);
        limits.read_only = true;
        let shape = Shape { node, sectors, limits };
        Ok(Overlay { origin, fast, block: Divisor::new(block), start, blocks: blocks.into(), shape })
    }

    /// Where on the fast device a sector is (none: it is the origin's), and how many from there on, `most` at most, lie together.
    fn run(&self, sector: Sector, most: Sectors) -> (Option<Sector>, Sectors) {
        let size = self.block.get();
        let (first, within) = self.block.divide(sector.0);
        let at = self.blocks.partition_point(|(own, _)| *own < first);
        let Some((own, place)) = self.blocks.get(at) else { return (None, most) };
        if *own != first {
            return (None, most.min(Sectors(own * size - sector.0)));
        }
        let mut blocks = 1;
        while blocks * size - within < most.0
            && let Some((own, next)) = self.blocks.get(at + blocks as usize)
            && *own == first + blocks
            && u64::from(*next) == u64::from(*place) + blocks
        {
            blocks += 1;
        }
        let to = self.start + Sectors(u64::from(*place) * size + within);
        (Some(to), most.min(Sectors(blocks * size - within)))
    }
}

impl Layer for Overlay {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if span.op == Op::Flush {
            cx.pass(self.shape.node, span.sector, &*self.origin, span)?;
            return cx.pass(self.shape.node, span.sector, &*self.fast, span);
        }
        if span.op != Op::Read {
            cx.error(span, Errno::EROFS);
            return Ok(());
        }
        let mut rest = span;
        loop {
            let (place, nr) = self.run(rest.sector, rest.nr);
            let piece = rest.piece(Sectors::ZERO, nr);
            if nr < rest.nr {
                cx.split(self.shape.node, piece, 2, Reason::Chunk);
            }
            match place {
                Some(to) => cx.pass(self.shape.node, piece.sector, &*self.fast, piece.moved_to(to))?,
                None => cx.pass(self.shape.node, piece.sector, &*self.origin, piece)?,
            }
            if nr == rest.nr {
                return Ok(());
            }
            rest = rest.piece(nr, rest.nr - nr);
        }
    }
    fn misaligned(&self) -> Option<Misaligned> {
        in_a_block(&*self.fast, self.start)
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.origin.clone(), self.fast.clone()]
    }
}
