//! dm-zero and dm-error: the two ends of a stack that are no device.

use blockwork_engine::{Defer, Errno, Layer, Limits, NodeId, Op, Resolver, Sectors, Shape, Span};

/// Reads give zeros; writes and discards vanish.
#[derive(Debug)]
pub struct Zero {
    shape: Shape,
}

impl Zero {
    /// Zeros of that size.
    pub fn new(node: NodeId, sectors: Sectors) -> Zero {
        Zero { shape: no_device(node, sectors) }
    }
}

impl Layer for Zero {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if span.op != Op::Flush {
            cx.zero(span);
        }
        Ok(())
    }
}

/// Everything fails with EIO; there is nothing to flush.
#[derive(Debug)]
pub struct ErrorTarget {
    shape: Shape,
}

impl ErrorTarget {
    /// Errors of that size.
    pub fn new(node: NodeId, sectors: Sectors) -> ErrorTarget {
        ErrorTarget { shape: no_device(node, sectors) }
    }
}

impl Layer for ErrorTarget {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if span.op != Op::Flush {
            cx.error(span, Errno::EIO);
        }
        Ok(())
    }
}

/// No device, no limits; a discard is dropped like anything else.
fn no_device(node: NodeId, sectors: Sectors) -> Shape {
    Shape { node, sectors, limits: Limits { discard_granularity: 512, ..Limits::default() } }
}
