//! dm-zero and dm-error: the two ends of a stack that are no device.

use std::sync::Arc;

use blockwork_engine::{Defer, Errno, Layer, Limits, NodeId, Op, Resolver, Sectors, Span};

/// Reads give zeros; writes and discards vanish.
#[derive(Debug)]
pub struct Zero {
    node: NodeId,
    sectors: Sectors,
    limits: Limits,
}

impl Zero {
    /// Zeros of that size.
    pub fn new(node: NodeId, sectors: Sectors) -> Zero {
        Zero { node, sectors, limits: no_device() }
    }
}

impl Layer for Zero {
    fn node(&self) -> NodeId {
        self.node
    }
    fn sectors(&self) -> Sectors {
        self.sectors
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if span.op != Op::Flush {
            cx.zero(span);
        }
        Ok(())
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        Vec::new()
    }
}

/// Everything fails with EIO; there is nothing to flush.
#[derive(Debug)]
pub struct ErrorTarget {
    node: NodeId,
    sectors: Sectors,
    limits: Limits,
}

impl ErrorTarget {
    /// Errors of that size.
    pub fn new(node: NodeId, sectors: Sectors) -> ErrorTarget {
        ErrorTarget { node, sectors, limits: no_device() }
    }
}

impl Layer for ErrorTarget {
    fn node(&self) -> NodeId {
        self.node
    }
    fn sectors(&self) -> Sectors {
        self.sectors
    }
    fn limits(&self) -> &Limits {
        &self.limits
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if span.op != Op::Flush {
            cx.error(span, Errno::EIO);
        }
        Ok(())
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        Vec::new()
    }
}

/// No device, no limits; a discard is dropped like anything else.
fn no_device() -> Limits {
    Limits { discard_granularity: 512, ..Limits::default() }
}
