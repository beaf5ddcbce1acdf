//! dm's `snapshot-merge`: an origin into which one of its snapshots is being merged, as its users see it.
//!
//! What they see is that snapshot, all the time: a chunk that has an exception is in the store, all others are in the origin;
//! chunk by chunk, the merge moves what is in the one to the other (`merge.rs`). Other snapshots of the origin stay as they are:
//! what is written to the origin, by clients or by the merge, is copied out for them first. Of the snapshot that is merged
//! nothing is left to keep.
//!
//! A write waits where its chunk is being merged in this moment, and never again after that. As in the kernel, there are no
//! discards.

use std::sync::Arc;

use blockwork_engine::{
    Defer, Errno, Layer, Limits, LockSnapshot, NodeId, Op, Preparation, Reason, Resolver, Sector, Sectors,
    Shape, Span, TaskContext,
};

use super::batch::preparation;
use super::family::{Want, Writer};
use super::merge::Merge;

/// The origin of a family while a snapshot is merged into it.
#[derive(Debug)]
pub struct Merging {
    merge: Arc<Merge>,
    goes_on: bool,
    shape: Shape,
}

impl Merging {
    /// The origin as it is seen during `merge`, which goes on while this is served, or rests: then nothing may be written to it.
    pub fn new(node: NodeId, merge: Arc<Merge>, goes_on: bool) -> Merging {
        let family = &merge.family;
        let stores = || family.stores.iter().map(|store| store.layer.limits());
        let mut limits = Limits::stacked([family.origin.limits(), merge.store().layer.limits()]);
        limits.read_only |= stores().any(|limits| limits.read_only);
        limits.discard_granularity = 0;
        limits.max_discard = Sectors::ZERO;
        limits.max_hw_discard = Sectors::ZERO;
        let shape = Shape { node, sectors: family.origin.sectors(), limits };
        let goes_on = goes_on && !shape.limits.read_only;
        Merging { merge, goes_on, shape }
    }

    /// Hands on what `span` covers: to the store where there are exceptions, the rest to the origin.
    #[inline]
    fn map(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let (store, family, node) = (self.merge.store(), &self.merge.family, self.shape.node);
        let chunk = store.layout.chunk_sectors();
        let is_read = span.op == Op::Read;
        let mut rest = span;
        loop {
            let (first, within) = (rest.sector.0 / chunk, rest.sector.0 % chunk);
            let most = (within + rest.nr.0).div_ceil(chunk);
            let (run, waits) = if is_read {
                (store.exceptions.run(first, most), false)
            } else {
                self.merge.find(first, most)
            };
            let piece = rest.piece(Sectors::ZERO, rest.nr.min(Sectors(run.chunks * chunk - within)));
            if piece.nr < rest.nr {
                cx.split(node, piece, 2, Reason::Chunk);
            }
            match run.new {
                Some(_) if waits => return Err(Defer { node, span: piece, reason: Reason::Merge }),
                Some(new) => {
                    let to = piece.moved_to(Sector(new * chunk + within));
                    cx.pass(node, piece.sector, &*store.layer, to)?;
                }
                None if is_read || family.lets_write(piece.sector, piece.end()) => {
                    cx.pass(node, piece.sector, &*family.origin, piece)?;
                }
                None => return Err(Defer { node, span: piece, reason: Reason::CopyOut }),
            }
            if piece.nr == rest.nr {
                return Ok(());
            }
            rest = rest.piece(piece.nr, rest.nr - piece.nr);
        }
    }
}

impl Layer for Merging {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        self.merge.note_client();
        match span.op {
            Op::Flush => {
                cx.pass(self.shape.node, span.sector, &*self.merge.family.origin, span)?;
                cx.pass(self.shape.node, span.sector, &*self.merge.store().layer, span)
            }
            Op::Discard => {
                cx.error(span, Errno::EOPNOTSUPP);
                Ok(())
            }
            Op::Read | Op::Write | Op::WriteZeroes => self.map(span, cx),
        }
    }
    fn prepare(&self, defer: Defer, cx: TaskContext) -> Preparation {
        let span = defer.span;
        if defer.reason == Reason::Merge {
            let merge = self.merge.clone();
            let chunk = merge.store().layout.chunk_sectors();
            let chunks = span.sector.0 / chunk..span.end().0.div_ceil(chunk);
            return Box::pin(async move { merge.wait_for_step(chunks).await });
        }
        let want = Want { start: span.sector, end: span.end(), by: Writer::Origin };
        preparation(self.merge.family.clone(), want, cx)
    }
    /// The merge goes on for as long as there is something to merge, and the worker lasts.
    fn open(&self, cx: TaskContext) -> Option<Preparation> {
        if !self.goes_on {
            return None;
        }
        let (merge, own) = (self.merge.clone(), cx.clone());
        Some(Box::pin(async move {
            cx.spawn(async move { merge.run(&own).await });
            Ok(())
        }))
    }
    fn status(&self) -> Option<String> {
        Some(self.merge.status().to_string())
    }
    /// The stores too: what is flushed, or closed, of an origin goes for what keeps its snapshots right.
    fn locks(&self) -> Vec<LockSnapshot> {
        self.merge.family.locks()
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        let family = &self.merge.family;
        let stores = family.stores.iter().map(|store| store.layer.clone());
        std::iter::once(family.origin.clone()).chain(stores).collect()
    }
}
