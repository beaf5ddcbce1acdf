//! Whoever keeps a volume served until its clients have ended, or its legs are in sync.

use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{Nanos, TaskContext, WorkerHandle};
use blockwork_layer::md::{Array, SyncAction};
use blockwork_sim::{Closing, SimEnv, World};

pub struct Keeper {
    pub world: World,
    pub array: Arc<Array>,
    /// `sync_speed_min` and `sync_speed_max`, KiB/s: at little speed, filling a leg takes longer than the clients' work.
    pub speed: (u64, u64),
    /// It lets the volume do all that is due before it is stopped.
    pub stays: bool,
    /// The clients.
    pub closing: Rc<Closing>,
    pub workers: Vec<WorkerHandle<SimEnv>>,
}

/// From nearly nothing to as fast as it goes.
pub const SPEEDS: [(u64, u64); 4] = [(64, 128), (128, 1000), (1000, 200_000), (200_000, 200_000)];

impl Keeper {
    /// From the opening of the volume to the end of its workers.
    pub async fn work(self, cx: TaskContext) {
        self.array.set_speed(self.speed.0, self.speed.1);
        while self.closing.left() > 0 && !self.world.is_off() && cx.pause(Nanos::millis(5)).await {}
        if self.stays && !self.world.is_off() {
            for action in [SyncAction::Recover, SyncAction::Resync] {
                // Refused where nothing is due.
                let _ = self.array.start_sync(action, &cx).await;
                self.array.wait_sync(&cx).await;
            }
        }
        self.workers.iter().for_each(WorkerHandle::stop);
    }
}
