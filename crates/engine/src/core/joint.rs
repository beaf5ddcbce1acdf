//! Slow paths that bios share: whatever a layer has deferred until the tasks run next, it prepares for in one of them.

use std::sync::Arc;

use crate::core::Core;
use crate::layer::{Defer, Layer};
use crate::task::Deferred;

/// What is about to be prepared for, by one layer.
pub(super) struct Joint {
    layer: Arc<dyn Layer>,
    deferred: Vec<Deferred>,
}

impl Core {
    /// One more bio for which a layer prepares together with others.
    pub(super) fn join(&mut self, layer: Arc<dyn Layer>, bio: u32, defer: Defer) {
        let idle_rounds = self.bios.get(bio).idle_rounds;
        let deferred = self.executor.deferred(bio, defer, idle_rounds);
        match self.joint.iter_mut().find(|joint| Arc::ptr_eq(&joint.layer, &layer)) {
            Some(joint) => joint.deferred.push(deferred),
            None => self.joint.push(Joint { layer, deferred: vec![deferred] }),
        }
    }

    /// Has them prepared for.
    #[inline]
    pub(super) fn begin_joint(&mut self) {
        if self.joint.is_empty() {
            return;
        }
        for Joint { layer, deferred } in std::mem::take(&mut self.joint) {
            let cx = self.executor.context().clone();
            self.executor.spawn(layer.prepare_all(deferred, cx));
        }
    }
}
