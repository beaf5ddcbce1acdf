//! A smaller `discard_max_bytes` over any layer, as Linux's queues have it: discards are cut *before* the layer sees them.
//!
//! That is what ruined discards under md's RAID10 until Linux 5.13 (Launchpad 1896578). The array's queue had a chunk for
//! its limit, so a discard of a disk became a bio per chunk; each was mapped by itself, to a bio per copy; and those were
//! submitted one by one, past the plug, to NVMe queues without a scheduler, where nothing put them together again. So
//! here pieces are marked never to be merged, and whatever the layer makes of a piece is a request of its own. That
//! RAID10 also cut each piece at its chunks, as it does with writes: [`DiscardMax::cut_at_chunks`].
//!
//! Without this layer a discard is resolved whole, and only a leaf's own limit cuts it.
//!
//! It has the number of the layer that it lies over, in counters and traces: to them the two are one, and cuts are counted
//! there. Everything but discards goes straight through. It is not opened or closed itself: who does that visits each
//! number once, at its lowest layer.

use std::io;
use std::sync::Arc;

use blockwork_engine::{
    Cure, Defer, Deferred, Errno, Failure, Flags, Layer, Nanos, Op, Preparation, Preparations, ReadNow,
    Reason, Resolver, SECTOR, Sector, Sectors, SettingError, Shape, Span, TaskContext,
};

/// A layer with a smaller limit on discards. See the module's head.
#[derive(Debug)]
pub struct DiscardMax {
    below: Arc<dyn Layer>,
    shape: Shape,
    /// Pieces do not go beyond a multiple of it; zero: they may.
    chunk: Sectors,
}

impl DiscardMax {
    /// Sets `discard_max_bytes` of `below`, as in sysfs: at most what it can do, in whole granules; 0 for no discards.
    ///
    /// # Errors
    ///
    /// No number, or more than what lies below can do.
    pub fn new(below: Arc<dyn Layer>, bytes: &str) -> Result<DiscardMax, SettingError> {
        let mut shape = below.shape().clone();
        shape.limits.set("discard_max_bytes", bytes)?;
        Ok(DiscardMax { below, shape, chunk: Sectors::ZERO })
    }

    /// Pieces are cut again where they cross a multiple of `chunk`.
    #[must_use]
    pub fn cut_at_chunks(self, chunk: Sectors) -> DiscardMax {
        DiscardMax { chunk, ..self }
    }

    /// Where the first piece of a discard ends: so that the next one starts with a granule, if that is possible.
    fn first_end(&self, span: Span) -> Sector {
        let limits = &self.shape.limits;
        let granule = (u64::from(limits.discard_granularity) / SECTOR).max(1);
        let end = span.sector + limits.max_discard;
        let aligned = Sector(end.0 / granule * granule);
        if aligned > span.sector { aligned } else { end }
    }

    /// Cuts a discard to the limit.
    fn cut(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let mut rest = span;
        while rest.nr > self.shape.limits.max_discard {
            let nr = Sectors(self.first_end(rest).0 - rest.sector.0);
            self.count(rest.piece(Sectors::ZERO, nr), cx);
            self.by_chunk(rest.piece(Sectors::ZERO, nr), cx)?;
            rest = rest.piece(nr, rest.nr - nr);
        }
        self.by_chunk(rest, cx)
    }

    /// Cuts a piece at chunks.
    fn by_chunk(&self, piece: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let mut rest = piece;
        while let Some(within) = rest.sector.0.checked_rem(self.chunk.0)
            && self.chunk.0 - within < rest.nr.0
        {
            let nr = Sectors(self.chunk.0 - within);
            self.count(rest.piece(Sectors::ZERO, nr), cx);
            self.below.resolve(rest.piece(Sectors::ZERO, nr), cx)?;
            rest = rest.piece(nr, rest.nr - nr);
        }
        self.below.resolve(rest, cx)
    }

    fn count(&self, piece: Span, cx: &mut Resolver<'_>) {
        cx.split(self.shape.node, piece, 2, Reason::DiscardMax);
    }
}

impl Layer for DiscardMax {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if span.op != Op::Discard {
            return self.below.resolve(span, cx);
        }
        if !self.shape.limits.discards() {
            cx.error(span, Errno::EOPNOTSUPP);
            return Ok(());
        }
        self.cut(Span { flags: span.flags.with(Flags::NO_MERGE), ..span }, cx)
    }
    fn pause(&self, defer: &Defer) -> Option<Nanos> {
        self.below.pause(defer)
    }
    fn prepare(&self, defer: Defer, cx: TaskContext) -> Preparation {
        self.below.prepare(defer, cx)
    }
    fn prepare_now(&self, defer: &Defer, read: &ReadNow<'_>) -> Option<io::Result<()>> {
        self.below.prepare_now(defer, read)
    }
    fn prepares_together(&self, defer: &Defer) -> bool {
        self.below.prepares_together(defer)
    }
    fn prepare_all(&self, deferred: Vec<Deferred>, cx: TaskContext) -> Preparations {
        self.below.prepare_all(deferred, cx)
    }
    fn is_redundant(&self) -> bool {
        self.below.is_redundant()
    }
    fn cure(&self, failure: &Failure) -> Cure {
        self.below.cure(failure)
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}
