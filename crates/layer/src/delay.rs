//! dm-delay: a range of another layer, each bio some time later.
//!
//! Invariants: (1) a bio waits once, however many pieces of it come through; (2) none waits for another, so a device so slow takes
//! as many at once as it is given.

use std::sync::Arc;

use blockwork_engine::{
    Defer, Layer, Misaligned, Nanos, NodeId, Op, Reason, Resolver, Sector, Sectors, Shape, Span,
};

use crate::linear::in_a_block;

/// `sectors` sectors of `below`, from `start`, after a delay.
#[derive(Debug)]
pub struct Delay {
    below: Arc<dyn Layer>,
    start: Sector,
    delay: Nanos,
    shape: Shape,
}

impl Delay {
    /// The range, or `None` if it does not lie within `below`.
    pub fn new(
        node: NodeId,
        below: Arc<dyn Layer>,
        start: Sector,
        sectors: Sectors,
        delay: Nanos,
    ) -> Option<Delay> {
        let end = start.0.checked_add(sectors.0)?;
        if end > below.sectors().0 || sectors == Sectors::ZERO {
            return None;
        }
        let shape = Shape { node, sectors, limits: below.limits().clone() };
        Some(Delay { below, start, delay, shape })
    }
}

impl Layer for Delay {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if self.delay > Nanos(0) && !cx.has_prepared(self.shape.node) {
            return Err(Defer { node: self.shape.node, span, reason: Reason::Delay });
        }
        let target =
            if span.op == Op::Flush { span } else { span.moved_to(self.start + Sectors(span.sector.0)) };
        cx.pass(self.shape.node, span.sector, &*self.below, target)
    }
    fn pause(&self, _defer: &Defer) -> Option<Nanos> {
        Some(self.delay)
    }
    fn misaligned(&self) -> Option<Misaligned> {
        in_a_block(&*self.below, self.start)
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}
