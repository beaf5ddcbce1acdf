//! A range of another layer: dm-linear, a partition, a segment of a logical volume.

use std::sync::Arc;

use blockwork_engine::{Defer, Layer, Misaligned, NodeId, Op, Resolver, Sector, Sectors, Shape, Span};

/// `sectors` sectors of `below`, from `start`.
#[derive(Debug)]
pub struct Linear {
    below: Arc<dyn Layer>,
    start: Sector,
    shape: Shape,
}

impl Linear {
    /// The range, or `None` if it does not lie within `below`.
    pub fn new(node: NodeId, below: Arc<dyn Layer>, start: Sector, sectors: Sectors) -> Option<Linear> {
        let end = start.0.checked_add(sectors.0)?;
        if end > below.sectors().0 || sectors == Sectors::ZERO {
            return None;
        }
        let shape = Shape { node, sectors, limits: below.limits().clone() };
        Some(Linear { below, start, shape })
    }
}

/// That place of a layer, if it is in the middle of a block.
pub(crate) fn in_a_block(below: &dyn Layer, start: Sector) -> Option<Misaligned> {
    let block = u64::from(below.limits().logical_block_size);
    (!start.bytes().is_multiple_of(block)).then(|| Misaligned::Start { below: below.node(), at: start })
}

impl Layer for Linear {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let target =
            if span.op == Op::Flush { span } else { span.moved_to(self.start + Sectors(span.sector.0)) };
        cx.pass(self.shape.node, span.sector, &*self.below, target)
    }
    fn misaligned(&self) -> Option<Misaligned> {
        in_a_block(&*self.below, self.start)
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}
