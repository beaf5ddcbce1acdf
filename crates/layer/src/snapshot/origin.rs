//! dm's `snapshot-origin`: the origin as its users see it.
//!
//! Reads go straight to the device. A write goes once all snapshots have kept what it overwrites. As in the kernel there are no
//! discards: they would have to be kept too. A flush does not go to the stores: what they have of the origin is durable before
//! the origin's write begins.

use std::sync::Arc;

use blockwork_engine::{
    Defer, Errno, Layer, LockSnapshot, NodeId, Op, Preparation, Reason, Resolver, Sectors, Shape, Span,
    TaskContext,
};

use super::batch::preparation;
use super::family::{Family, Want, Writer};

/// The origin of a family.
#[derive(Debug)]
pub struct Origin {
    family: Arc<Family>,
    shape: Shape,
}

impl Origin {
    /// The origin, with everything that its snapshots need done.
    pub fn new(node: NodeId, family: Arc<Family>) -> Origin {
        let mut limits = family.origin.limits().clone();
        limits.discard_granularity = 0;
        limits.max_discard = Sectors::ZERO;
        limits.max_hw_discard = Sectors::ZERO;
        // Nothing could be kept.
        limits.read_only |= family.stores.iter().any(|store| store.layer.limits().read_only);
        let shape = Shape { node, sectors: family.origin.sectors(), limits };
        Origin { family, shape }
    }
}

impl Layer for Origin {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        match span.op {
            Op::Read | Op::Flush => {}
            Op::Discard => {
                cx.error(span, Errno::EOPNOTSUPP);
                return Ok(());
            }
            Op::Write | Op::WriteZeroes => {
                let family = &self.family;
                // At a mark, what is ahead is copied besides.
                let is_marked = family.marks.touches(span.sector, span.end());
                if is_marked || !family.lets_write(span.sector, span.end()) {
                    return Err(Defer { node: self.shape.node, span, reason: Reason::CopyOut });
                }
            }
        }
        cx.pass(self.shape.node, span.sector, &*self.family.origin, span)
    }
    #[inline]
    fn approach(&self, span: &Span) {
        if matches!(span.op, Op::Write | Op::WriteZeroes) {
            for store in &self.family.stores {
                store.exceptions.approach(store.chunk_of(span.sector));
            }
        }
    }
    fn prepare(&self, defer: Defer, cx: TaskContext) -> Preparation {
        let want = Want { start: defer.span.sector, end: defer.span.end(), by: Writer::Origin };
        preparation(self.family.clone(), want, cx)
    }
    /// The stores too: what is flushed, or closed, of an origin goes for what keeps its snapshots right.
    fn locks(&self) -> Vec<LockSnapshot> {
        self.family.locks()
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        let stores = self.family.stores.iter().map(|store| store.layer.clone());
        std::iter::once(self.family.origin.clone()).chain(stores).collect()
    }
}
