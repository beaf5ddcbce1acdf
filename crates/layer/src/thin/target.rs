//! dm's `thin`: a volume of a pool.

use std::sync::Arc;

use blockwork_engine::{
    Defer, Errno, Layer, Limits, NodeId, Op, Preparation, Reason, Resolver, Sector, Sectors, Shape, Span,
    TaskContext,
};
use blockwork_format::thin::DeviceDetails;
use blockwork_format::{FormatError, Source};

use super::pool::{Pool, PoolError, Tree};

/// What a volume is.
#[derive(Debug)]
pub struct ThinConfig {
    /// Its pool.
    pub pool: Arc<Pool>,
    /// The root of its tree.
    pub root: u64,
    /// What the pool knows of it.
    pub details: DeviceDetails,
    /// Its size, which the pool does not know.
    pub sectors: Sectors,
    /// What is read where it maps nothing; behind its end, or without one, there are zeros.
    pub external_origin: Option<Arc<dyn Layer>>,
}

/// A volume of a pool, for reading.
#[derive(Clone, Debug)]
pub struct Thin {
    pool: Arc<Pool>,
    tree: Tree,
    external_origin: Option<Arc<dyn Layer>>,
    shape: Shape,
}

impl Thin {
    /// The volume.
    ///
    /// # Errors
    ///
    /// The pool has no room for more.
    pub fn new(node: NodeId, config: ThinConfig) -> Result<Thin, PoolError> {
        let ThinConfig { pool, root, details, sectors, external_origin } = config;
        let below = std::iter::once(&pool.data).chain(&external_origin);
        let mut limits = Limits::stacked(below.map(|layer| layer.limits()));
        limits.read_only = true;
        limits.io_opt = u32::try_from(pool.block().bytes()).unwrap_or(u32::MAX);
        limits.discard_granularity = 0;
        limits.max_discard = Sectors::ZERO;
        limits.max_hw_discard = Sectors::ZERO;
        let tree = pool.tree(root, details)?;
        Ok(Thin { pool, tree, external_origin, shape: Shape { node, sectors, limits } })
    }

    /// Reads the map around a sector while there is no worker: volumes are looked into before they are served, and what was
    /// not read by then can only be read by a worker.
    ///
    /// # Errors
    ///
    /// What of it cannot be read, or is damaged.
    pub fn load(&self, metadata: &dyn Source, sector: Sector) -> Result<(), FormatError> {
        self.pool.load_now(metadata, &self.tree, self.pool.block.divide(sector.0).0)
    }

    /// What is read where nothing is mapped.
    fn unmapped(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let Some(origin) = &self.external_origin else {
            cx.zero(span);
            return Ok(());
        };
        let there = Sectors(origin.sectors().0.saturating_sub(span.sector.0)).min(span.nr);
        if there > Sectors::ZERO {
            cx.pass(self.shape.node, span.sector, &**origin, span.piece(Sectors::ZERO, there))?;
        }
        if there < span.nr {
            cx.zero(span.piece(there, span.nr - there));
        }
        Ok(())
    }
}

impl Layer for Thin {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let node = self.shape.node;
        match span.op {
            Op::Read => {}
            Op::Flush => {
                cx.pass(node, span.sector, &*self.pool.data, span)?;
                return cx.pass(node, span.sector, &*self.pool.metadata, span);
            }
            Op::Write | Op::Discard | Op::WriteZeroes => {
                cx.error(span, Errno::EROFS);
                return Ok(());
            }
        }
        let mut rest = span;
        loop {
            let (block, within) = self.pool.block.divide(rest.sector.0);
            let size = self.pool.block.get();
            let most = (within + rest.nr.0).div_ceil(size);
            let Some(run) = self.pool.look_up(&self.tree, block, most) else {
                return Err(Defer { node, span: rest, reason: Reason::ReadMap });
            };
            let piece = rest.piece(Sectors::ZERO, rest.nr.min(Sectors(run.blocks * size - within)));
            if piece.nr < rest.nr {
                cx.split(node, piece, 2, Reason::Chunk);
            }
            match run.at {
                Some(mapped) => {
                    let to = Sector(mapped.block * size + within);
                    cx.pass(node, piece.sector, &*self.pool.data, piece.moved_to(to))?;
                }
                None => self.unmapped(piece, cx)?,
            }
            if piece.nr == rest.nr {
                return Ok(());
            }
            rest = rest.piece(piece.nr, rest.nr - piece.nr);
        }
    }

    fn prepare(&self, defer: Defer, cx: TaskContext) -> Preparation {
        let block = |sector: u64| self.pool.block.divide(sector).0;
        let (first, last) = (block(defer.span.sector.0), block(defer.span.end().0 - 1));
        let (pool, tree) = (self.pool.clone(), self.tree);
        Box::pin(async move { pool.load(&cx, &tree, first, last).await })
    }

    fn below(&self) -> Vec<Arc<dyn Layer>> {
        let both = [&self.pool.data, &self.pool.metadata];
        both.into_iter().chain(&self.external_origin).cloned().collect()
    }
}
