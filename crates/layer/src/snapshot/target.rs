//! dm's `snapshot`: a volume that stays as its origin was, but for what is written to it.

use std::sync::Arc;

use blockwork_engine::{
    Defer, Errno, Flags, Layer, Limits, LockSnapshot, NodeId, Op, Preparation, Reason, Resolver, Sector,
    Sectors, Shape, Span, TaskContext,
};

use super::batch::preparation;
use super::family::{Family, Want, Writer};
use super::store::{State, Store};

/// A snapshot of a family.
#[derive(Debug)]
pub struct Snapshot {
    family: Arc<Family>,
    nth: usize,
    shape: Shape,
}

impl Snapshot {
    /// Snapshot number `nth`; none: there are fewer.
    pub fn new(node: NodeId, family: Arc<Family>, nth: usize) -> Option<Snapshot> {
        let store = family.stores.get(nth)?;
        let mut limits = Limits::stacked([family.origin.limits(), store.layer.limits()]);
        let chunk = Sectors(store.layout.chunk_sectors());
        let discards = store.features.discard_zeroes_cow;
        limits.discard_granularity =
            if discards { u32::try_from(chunk.bytes()).unwrap_or(u32::MAX) } else { 0 };
        limits.max_discard = if discards { limits.max_discard.max(chunk) } else { Sectors::ZERO };
        limits.max_hw_discard = limits.max_discard;
        let shape = Shape { node, sectors: store.sectors, limits };
        Some(Snapshot { family, nth, shape })
    }

    fn store(&self) -> &Store {
        &self.family.stores[self.nth]
    }

    /// A read, mostly of one chunk: from the store, or from the origin.
    #[inline]
    fn read(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let (store, node) = (self.store(), self.shape.node);
        let chunk = store.layout.chunk_sectors();
        let within = span.sector.0 & (chunk - 1);
        if within + span.nr.0 > chunk {
            return self.map(span, cx);
        }
        match store.exceptions.find(store.chunk_of(span.sector)) {
            Some(new) => {
                cx.pass(node, span.sector, &*store.layer, span.moved_to(Sector(new * chunk + within)))
            }
            None => cx.pass(node, span.sector, &*self.family.origin, span),
        }
    }

    /// Hands on what `span` covers: to the store where there are exceptions, the rest to the origin. A write goes only to
    /// exceptions that are settled.
    #[inline(never)]
    fn map(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let store = self.store();
        let chunk = store.layout.chunk_sectors();
        let mut rest = span;
        loop {
            let (first, within) = (store.chunk_of(rest.sector), rest.sector.0 & (chunk - 1));
            let run = store.exceptions.run(first, store.end_chunk(rest.end()) - first);
            let piece = rest.piece(Sectors::ZERO, rest.nr.min(Sectors(run.chunks * chunk - within)));
            if piece.nr < rest.nr {
                cx.split(self.shape.node, piece, 2, Reason::Chunk);
            }
            match run.new {
                Some(new) if span.op == Op::Read || store.is_settled(new + run.chunks) => {
                    let to = piece.moved_to(Sector(new * chunk + within));
                    cx.pass(self.shape.node, piece.sector, &*store.layer, to)?;
                }
                None if span.op == Op::Read => {
                    cx.pass(self.shape.node, piece.sector, &*self.family.origin, piece)?;
                }
                _ => return Err(Defer { node: self.shape.node, span: rest, reason: Reason::CopyOut }),
            }
            if piece.nr == rest.nr {
                return Ok(());
            }
            rest = rest.piece(piece.nr, rest.nr - piece.nr);
        }
    }

    /// A discard zeroes the whole chunks that the snapshot has for itself; others are the origin's.
    fn discard(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let store = self.store();
        if !store.features.discard_zeroes_cow {
            cx.error(span, Errno::EOPNOTSUPP);
            return Ok(());
        }
        if store.features.discard_passdown_origin {
            cx.pass(self.shape.node, span.sector, &*self.family.origin, span)?;
        }
        let chunk = store.layout.chunk_sectors();
        let (mut at, end) = (span.sector.0.div_ceil(chunk), span.end().0 / chunk);
        while at < end {
            let run = store.exceptions.run(at, end - at);
            if let Some(new) = run.new.filter(|new| store.is_settled(new + run.chunks)) {
                // Without data, a piece's place within the bio means nothing.
                let (sector, nr) = (Sector(new * chunk), Sectors(run.chunks * chunk));
                let flags = span.flags.without(Flags::FAST_ONLY);
                let zeroes = Span { op: Op::WriteZeroes, flags, sector, nr, at: Sectors::ZERO };
                cx.pass(self.shape.node, span.sector, &*store.layer, zeroes)?;
            }
            at += run.chunks;
        }
        Ok(())
    }
}

impl Layer for Snapshot {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if span.op == Op::Flush {
            cx.pass(self.shape.node, span.sector, &*self.family.origin, span)?;
            return cx.pass(self.shape.node, span.sector, &*self.store().layer, span);
        }
        match self.store().state() {
            State::Valid => {}
            State::Overflow if span.op == Op::Read => {}
            _ => {
                cx.error(span, Errno::EIO);
                return Ok(());
            }
        }
        match span.op {
            Op::Read => self.read(span, cx),
            Op::Discard => self.discard(span, cx),
            _ => self.map(span, cx),
        }
    }
    #[inline]
    fn approach(&self, span: &Span) {
        let store = self.store();
        store.exceptions.approach(store.chunk_of(span.sector));
    }
    fn prepare(&self, defer: Defer, cx: TaskContext) -> Preparation {
        let want = Want { start: defer.span.sector, end: defer.span.end(), by: Writer::Snapshot(self.nth) };
        preparation(self.family.clone(), want, cx)
    }
    fn status(&self) -> Option<String> {
        self.family.status(self.nth).map(|status| status.to_string())
    }
    fn locks(&self) -> Vec<LockSnapshot> {
        self.family.locks()
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.family.origin.clone(), self.store().layer.clone()]
    }
}
