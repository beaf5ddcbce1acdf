//! Linux's old behaviour, as a layer over a thin volume: a look-up takes its turn at the lock of the pool, and what is not mapped its turn
//! at the pool's worker.
//!
//! How long a turn lasts is what the report's figures say, or no longer than it has to; who waits for whom is the engine's own lock, held
//! across that time.

use std::sync::Arc;

use blockwork_engine::{
    Defer, Layer, Nanos, NodeId, Preparation, Reason, Resolver, Sector, Shape, Span, TaskContext, Turns,
};

/// What a look-up holds the lock for: 200,000 a second.
const LOCK: Nanos = Nanos::micros(5);
/// What the worker does for one read, beside the look-up: 29,417 a second with both, since the worker looks it up under the lock
/// while that is not free for others.
const WORKER: Nanos = Nanos(29_000);

/// How long a turn lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// As long as the report's figures say, in the environment's time.
    Calibrated,
    /// As long as it takes to have had it.
    AsItIs,
}

/// A volume of a pool with locks. See the module's head.
#[derive(Debug)]
pub struct PoolLock {
    thin: Arc<dyn Layer>,
    is_mapped: bool,
    turn: Turn,
    lock: Turns,
    worker: Turns,
    shape: Shape,
}

impl PoolLock {
    /// Over a volume that has its pool for itself: of which all blocks are mapped, or none.
    pub fn new(node: NodeId, thin: Arc<dyn Layer>, is_mapped: bool, turn: Turn) -> PoolLock {
        let shape = Shape { node, sectors: thin.sectors(), limits: thin.limits().clone() };
        PoolLock { thin, is_mapped, turn, lock: Turns::default(), worker: Turns::default(), shape }
    }
}

impl Layer for PoolLock {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let node = self.shape.node;
        if cx.was_prepared(node, span) {
            return cx.pass(node, Sector(span.sector.0), &*self.thin, span);
        }
        Err(Defer { node, span, reason: Reason::ReadMap })
    }

    fn prepare(&self, _: Defer, cx: TaskContext) -> Preparation {
        let (lock, worker, is_mapped) = (self.lock.clone(), self.worker.clone(), self.is_mapped);
        let turn = self.turn;
        Box::pin(async move {
            let last = async |time| {
                if turn == Turn::Calibrated {
                    cx.sleep(time).await;
                }
            };
            let look_up = async || {
                let _turn = lock.take().await;
                last(LOCK).await;
            };
            look_up().await;
            if !is_mapped {
                let _turn = worker.take().await;
                look_up().await;
                last(WORKER).await;
            }
            Ok(())
        })
    }

    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.thin.clone()]
    }
}
