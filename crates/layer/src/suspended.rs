//! A volume whose stack is about to be another one, as a device that dm has suspended: what would alter it waits.
//!
//! Whoever changes what a volume lies on puts this over its stack, on all workers, waits until what was resolved before has ended
//! ([`TaskContext::quiesce`]), and then finds below what stays as it is. When the volume has its new stack, on all workers, it is resumed:
//! what has waited is resolved anew, and comes to that. Reads and flushes go on; so reads must mean the same in both stacks.
//!
//! It has the number of the layer that it lies over: to counters and traces the two are one.

use std::sync::Arc;

use blockwork_engine::{
    Cure, Defer, Failure, Layer, Nanos, Op, Preparation, Reason, Resolver, Shape, Span, TaskContext, Turn,
    Turns,
};

/// Volumes are suspended as long as this lives.
pub struct Suspension {
    resumed: Turns,
    /// Given back when they are resumed.
    _until: Turn,
}

impl Default for Suspension {
    fn default() -> Suspension {
        let resumed = Turns::default();
        let until = resumed.try_take().expect("a new turn is free");
        Suspension { resumed, _until: until }
    }
}

impl Suspension {
    /// What takes the place of `root` meanwhile.
    pub fn over(&self, root: Arc<dyn Layer>) -> Arc<dyn Layer> {
        Arc::new(Suspended { below: root, resumed: self.resumed.clone() })
    }
}

/// See the module's head.
#[derive(Debug)]
struct Suspended {
    below: Arc<dyn Layer>,
    /// Whoever can take a turn goes on.
    resumed: Turns,
}

fn alters(op: Op) -> bool {
    matches!(op, Op::Write | Op::WriteZeroes | Op::Discard)
}

impl Layer for Suspended {
    fn shape(&self) -> &Shape {
        self.below.shape()
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if alters(span.op) {
            return Err(Defer { node: self.node(), span, reason: Reason::Suspended });
        }
        self.below.resolve(span, cx)
    }
    fn pause(&self, defer: &Defer) -> Option<Nanos> {
        if alters(defer.span.op) { None } else { self.below.pause(defer) }
    }
    fn prepare(&self, defer: Defer, cx: TaskContext) -> Preparation {
        if !alters(defer.span.op) {
            return self.below.prepare(defer, cx);
        }
        let resumed = self.resumed.take();
        Box::pin(async move {
            drop(resumed.await);
            Ok(())
        })
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
