//! dm's `thin`: a volume of a pool.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use blockwork_engine::{
    Defer, Deferred, Errno, Flags, Layer, Limits, LockSnapshot, Misaligned, NodeId, Op, Preparation,
    Preparations, ReadNow, Reason, Resolver, Sector, Sectors, Shape, Span, TaskContext,
};
use blockwork_format::Source;
use blockwork_format::thin::edit::EditError;

use super::config::Discards;
use super::device::Device;
use super::entry::Mapped;
use super::fill::{Filling, Part};
use super::map::Run;
use super::pool::{OpenDevice, Pool};

/// What of a volume is discarded at once at most: 16 GiB, as in the kernel.
const DISCARD_MAX: Sectors = Sectors(1 << 25);

/// What of a volume is made zeros at once at most; more goes in pieces, one after the other.
pub(super) const WRITE_ZEROES_MAX: Sectors = Sectors(1 << 15);

/// What a volume is.
#[derive(Debug)]
pub struct ThinConfig {
    /// Its pool.
    pub pool: Arc<Pool>,
    /// Which device of it.
    pub device: OpenDevice,
    /// Its size, which the pool does not know.
    pub sectors: Sectors,
    /// What is read where it maps nothing; behind its end, or without one, there are zeros. Nobody may write to it.
    pub external_origin: Option<Arc<dyn Layer>>,
}

/// What the tasks of a volume share with it.
#[derive(Debug)]
pub(super) struct Volume {
    pub pool: Arc<Pool>,
    pub device: Arc<Device>,
    pub external_origin: Option<Arc<dyn Layer>>,
    pub shape: Shape,
}

/// A volume of a pool.
#[derive(Clone, Debug)]
pub struct Thin(Arc<Volume>);

impl Thin {
    /// The volume.
    pub fn new(node: NodeId, config: ThinConfig) -> Thin {
        let ThinConfig { pool, device, sectors, external_origin } = config;
        let below = std::iter::once(pool.data.get()).chain(&external_origin);
        let mut limits = Limits::stacked(below.map(|layer| layer.limits()));
        limits.read_only = pool.data.get().limits().read_only;
        let block = pool.block();
        limits.io_opt = u32::try_from(block.bytes()).unwrap_or(u32::MAX);
        let takes_discards = pool.features.discards != Discards::Ignore;
        limits.discard_granularity =
            if takes_discards { u32::try_from(block.bytes()).unwrap_or(u32::MAX) } else { 0 };
        limits.max_discard = if takes_discards { DISCARD_MAX.max(block) } else { Sectors::ZERO };
        limits.max_hw_discard = limits.max_discard;
        let shape = Shape { node, sectors, limits };
        Thin(Arc::new(Volume { pool, device: device.0, external_origin, shape }))
    }

    /// Reads the map around a sector while there is no worker: volumes are looked into before they are served.
    ///
    /// # Errors
    ///
    /// What of it cannot be read, or is damaged.
    pub fn load(&self, metadata: &dyn Source, sector: Sector) -> Result<(), EditError> {
        let block = self.0.pool.block.divide(sector.0).0;
        self.0.pool.load_now(metadata, &self.0.device, block)
    }

    /// Its number in the pool.
    pub fn device(&self) -> u64 {
        self.0.device.id
    }
}

/// A piece of a span on one run of blocks.
struct Piece {
    span: Span,
    run: Run,
    /// Sectors of the run's first block before it.
    within: u64,
}

impl Volume {
    /// The blocks that it touches.
    fn blocks(&self, span: Span) -> Range<u64> {
        let size = self.pool.block.get();
        span.sector.0 / size..span.end().0.div_ceil(size)
    }

    fn defer(&self, span: Span, reason: Reason) -> Defer {
        Defer { node: self.shape.node, span, reason }
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

    /// Where a read or a write goes that lies within one block, if nothing is the matter with that.
    #[inline(always)]
    fn straight(&self, span: Span) -> Option<Sector> {
        if !matches!(span.op, Op::Read | Op::Write) || span.flags.has(Flags::FUA) {
            return None;
        }
        let size = self.pool.block.get();
        let (block, within) = self.pool.block.divide(span.sector.0);
        if within + span.nr.0 > size {
            return None;
        }
        let data = self.pool.settled(&self.device, block, span.op != Op::Read)?;
        // After the map, as below.
        if span.flags.has(Flags::OUTLIVES) && !self.pool.are_durable(&self.device, block..block + 1) {
            return None;
        }
        Some(Sector(data * size + within))
    }

    /// Everything that does not go straight to one block.
    #[inline(never)]
    fn resolve_otherwise(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        match span.op {
            Op::Read => return self.map(span, cx, Volume::read),
            Op::Write => self.map(span, cx, Volume::write)?,
            Op::WriteZeroes if span.nr > WRITE_ZEROES_MAX => {
                if !cx.was_prepared(self.shape.node, span) {
                    return Err(self.defer(span, Reason::WriteZeroesMax));
                }
                cx.zero(span);
            }
            Op::WriteZeroes => self.map(span, cx, Volume::write)?,
            Op::Flush => return self.flush(span, cx),
            Op::Discard => return self.discard(span, cx),
        }
        // What is not committed is known to this process only. What else the volume has uncommitted is not this bio's business.
        let is_to_stay = span.flags.has(Flags::FUA) || span.flags.has(Flags::OUTLIVES);
        if is_to_stay && !self.pool.are_durable(&self.device, self.blocks(span)) {
            cx.flush_after();
        }
        Ok(())
    }

    /// Hands a span on, run by run.
    fn map(
        &self,
        span: Span,
        cx: &mut Resolver<'_>,
        to: impl Fn(&Volume, Piece, &mut Resolver<'_>) -> Result<(), Defer>,
    ) -> Result<(), Defer> {
        let size = self.pool.block.get();
        let mut rest = span;
        loop {
            let (block, within) = self.pool.block.divide(rest.sector.0);
            let most = self.pool.block.divide((within + rest.nr.0).saturating_sub(1)).0 + 1;
            let Some(run) = self.pool.look_up(&self.device, block, most, span.op != Op::Read) else {
                return Err(self.defer(rest, Reason::ReadMap));
            };
            let piece = rest.piece(Sectors::ZERO, rest.nr.min(Sectors(run.blocks * size - within)));
            if piece.nr < rest.nr {
                cx.split(self.shape.node, piece, 2, Reason::Chunk);
            }
            to(self, Piece { span: piece, run, within }, cx).map_err(|defer| {
                // What follows needs blocks as well, mostly: all of them by one batch.
                let is_own = defer.node == self.shape.node && defer.reason == Reason::Provision;
                if is_own { Defer { span: rest, ..defer } } else { defer }
            })?;
            if piece.nr == rest.nr {
                return Ok(());
            }
            rest = rest.piece(piece.nr, rest.nr - piece.nr);
        }
    }

    fn pass(&self, mapped: Mapped, piece: &Piece, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let to = Sector(mapped.block * self.pool.block.get() + piece.within);
        cx.pass(self.shape.node, piece.span.sector, &**self.pool.data.get(), piece.span.moved_to(to))
    }

    fn read(&self, piece: Piece, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        match piece.run.at {
            None => self.unmapped(piece.span, cx),
            Some(mapped) if mapped.is_filling => Err(self.defer(piece.span, Reason::Fill)),
            Some(mapped) => self.pass(mapped, &piece, cx),
        }
    }

    /// A write, or write-zeroes.
    fn write(&self, piece: Piece, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        match piece.run.at {
            Some(mapped) if !(mapped.is_shared || mapped.is_filling || piece.run.is_outdated) => {
                self.pass(mapped, &piece, cx)
            }
            Some(mapped) if mapped.is_filling && !piece.run.is_outdated => self.fill(mapped, piece, cx),
            None if self.holes_will_do(piece.span.op, piece.span.flags) => {
                cx.zero(piece.span);
                Ok(())
            }
            _ => Err(self.defer(piece.span, Reason::Provision)),
        }
    }

    /// Whether this wants zeros, and holes are as good as those: they have to be zeros still when a part of their block is written. Blocks
    /// that are not zeroed as they are given out hold what somebody else has written.
    pub(super) fn holes_will_do(&self, op: Op, flags: Flags) -> bool {
        op == Op::WriteZeroes
            && self.external_origin.is_none()
            && self.pool.features.zero_new_blocks
            && !flags.has(Flags::NO_UNMAP)
    }

    /// A write to blocks that are being filled: by it, or by others that it waits for.
    #[cold]
    fn fill(&self, mapped: Mapped, piece: Piece, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let size = self.pool.block.get();
        for nth in 0..piece.run.blocks {
            let (start, end) = (nth * size, (nth + 1) * size);
            let (from, to) = (piece.within.max(start), (piece.within + piece.span.nr.0).min(end));
            let part = Part { start: from - start, end: to - start };
            if !self.pool.fills.meet(mapped.block + nth, part) {
                return Err(self.defer(piece.span, Reason::Fill));
            }
            cx.watch(Arc::new(Filling::new(&self.pool, mapped.block + nth, part)));
        }
        self.pass(mapped, &piece, cx)
    }

    /// Nothing is handed on: blocks are given back to the pool, which hands on what nobody has any more.
    fn discard(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if self.pool.features.discards == Discards::Ignore {
            cx.error(span, Errno::EOPNOTSUPP);
            return Ok(());
        }
        let size = self.pool.block.get();
        let has_whole_blocks = span.sector.0.div_ceil(size) < span.end().0 / size;
        if has_whole_blocks && !cx.was_prepared(self.shape.node, span) && self.pool.mode().allows_changes() {
            return Err(self.defer(span, Reason::Unmap));
        }
        cx.zero(span);
        Ok(())
    }

    fn flush(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        // What others change meanwhile is not this flush's business.
        if !self.pool.is_durable(&self.device) && !cx.was_prepared(self.shape.node, span) {
            return Err(self.defer(span, Reason::Commit));
        }
        cx.pass(self.shape.node, span.sector, &**self.pool.data.get(), span)
    }
}

/// A layer, while there is no worker.
struct AtRest<'a> {
    layer: &'a dyn Layer,
    read: &'a ReadNow<'a>,
}

impl Source for AtRest<'_> {
    fn size(&self) -> u64 {
        self.layer.sectors().bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (self.read)(self.layer, offset, buf)
    }
}

impl Layer for Thin {
    fn shape(&self) -> &Shape {
        &self.0.shape
    }

    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let volume = &*self.0;
        let Some(to) = volume.straight(span) else { return volume.resolve_otherwise(span, cx) };
        let data = &**volume.pool.data.get();
        cx.pass(volume.shape.node, span.sector, data, span.moved_to(to))
    }

    fn approach(&self, span: &Span) {
        let pool = &self.0.pool;
        pool.approach(&self.0.device, pool.block.divide(span.sector.0).0);
    }

    fn prepare(&self, defer: Defer, cx: TaskContext) -> Preparation {
        let (volume, span) = (self.0.clone(), defer.span);
        let (size, blocks) = (volume.pool.block.get(), volume.blocks(span));
        // Each by itself: a write that needs blocks, the only one that is frequent, carries nothing of what the others need.
        match defer.reason {
            Reason::ReadMap => Box::pin(async move { volume.pool.load(&cx, &volume.device, blocks).await }),
            Reason::Fill => {
                Box::pin(async move { volume.pool.await_fills(&cx, &volume.device, blocks).await })
            }
            Reason::Commit => {
                Box::pin(async move { volume.pool.make_durable(&cx, volume.device.changed()).await })
            }
            Reason::Unmap => {
                let whole = span.sector.0.div_ceil(size)..span.end().0 / size;
                Box::pin(async move { volume.pool.discard(&cx, &volume.device, whole).await })
            }
            Reason::WriteZeroesMax => {
                let top = self.clone();
                Box::pin(async move { top.write_zeroes(span, &cx).await })
            }
            _ => unreachable!("what lacks blocks is prepared for together"),
        }
    }

    fn prepare_now(&self, defer: &Defer, read: &ReadNow<'_>) -> Option<io::Result<()>> {
        let metadata = AtRest { layer: &**self.0.pool.metadata.get(), read };
        let load = || self.load(&metadata, defer.span.sector).map_err(io::Error::other);
        (defer.reason == Reason::ReadMap).then(load)
    }

    fn prepares_together(&self, defer: &Defer) -> bool {
        defer.reason == Reason::Provision
    }

    fn prepare_all(&self, deferred: Vec<Deferred>, cx: TaskContext) -> Preparations {
        let volume = self.0.clone();
        Box::pin(async move { volume.pool.make_all_ready(&volume, deferred, &cx).await })
    }

    fn open(&self, cx: TaskContext) -> Option<Preparation> {
        let pool = self.0.pool.clone();
        Some(Box::pin(async move {
            if let Err(error) = pool.count_growth(&cx).await {
                log::error!("{}: its devices have grown, and that is not counted: {error}", pool.name);
            }
            Ok(())
        }))
    }

    fn close(&self, cx: TaskContext) -> Option<Preparation> {
        let volume = self.0.clone();
        Some(Box::pin(async move { volume.pool.make_durable(&cx, volume.device.changed()).await }))
    }

    fn suspects(&self, below: NodeId) {
        if self.0.pool.data.get().node() == below {
            self.0.pool.doubt_data();
        }
    }

    /// Behind the end of the external origin is nothing, but zeros: where that is in the midst of a block, this would be of both.
    fn misaligned(&self) -> Option<Misaligned> {
        let Volume { pool, external_origin, shape, .. } = &*self.0;
        let end = Sector(external_origin.as_ref()?.sectors().0);
        // Of blocks of the pool, all is copied that there is, and be it behind the volume's own end.
        let is_used = end.0 < shape.sectors.0.next_multiple_of(pool.block().0);
        let in_a_block = !end.bytes().is_multiple_of(shape.limits.logical_block_size.into());
        (is_used && in_a_block).then_some(Misaligned::Boundary { at: end })
    }

    fn locks(&self) -> Vec<LockSnapshot> {
        self.0.pool.locks()
    }

    fn below(&self) -> Vec<Arc<dyn Layer>> {
        let both = [self.0.pool.data.get(), self.0.pool.metadata.get()];
        both.into_iter().chain(&self.0.external_origin).cloned().collect()
    }
}

impl Thin {
    /// Makes a large range zeros, piece by piece.
    async fn write_zeroes(&self, span: Span, cx: &TaskContext) -> Result<(), Errno> {
        let own: Arc<dyn Layer> = Arc::new(self.clone());
        let mut at = span.sector;
        while at < span.end() {
            let nr = (span.end().since(at)).min(WRITE_ZEROES_MAX);
            let bio = blockwork_engine::Bio::without_data(Op::WriteZeroes, span.flags, at, nr);
            cx.bio(&own, bio).await.0?;
            at = at + nr;
        }
        Ok(())
    }
}
