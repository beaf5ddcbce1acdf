//! Somebody who fails, removes, adds and replaces devices of an array at random, checks and repairs it, and stops all that.

use std::rc::Rc;

use blockwork_engine::{Nanos, TaskContext};
use blockwork_layer::md::{Array, SyncAction};
use blockwork_sim::{Random, World};

use crate::rig::{Make, Served, new_member};

/// What is done, until the worker ends. What the array refuses is as good as what it does.
pub struct Operator {
    pub world: Rc<World>,
    pub make: Make,
    pub served: Served,
    pub random: Random,
}

impl Operator {
    pub async fn work(mut self, cx: TaskContext) {
        while cx.pause(Nanos::micros(self.random.between(0, 30_000))).await {
            let array = self.served.array.clone();
            self.act(&array, &cx).await;
        }
    }

    async fn act(&mut self, array: &Array, cx: &TaskContext) {
        let random = &mut self.random;
        let role = random.below(self.make.members.into()).to_string();
        match random.below(9) {
            // Until a resync has been done after a cut, a copy that is lost takes with it what only it had, as in Linux.
            0 if array.status().resync_from.is_none() => drop(array.fail(&role, cx).await),
            1 => drop(array.remove("failed", cx).await),
            2..=4 => {
                let device = random.below((self.make.devices() + self.make.blank).into());
                let device = u16::try_from(device).expect("few devices");
                let new = new_member(&self.world, &self.make, &self.served.layers, device);
                drop(array.add(new, cx).await);
            }
            5 => drop(array.replace(&role, None, cx).await),
            6 => drop(array.start_sync(*random.choose(&[SyncAction::Check, SyncAction::Repair]), cx).await),
            7 => drop(array.start_sync(SyncAction::Idle, cx).await),
            _ => drop(array.start_sync(*random.choose(&[SyncAction::Recover, SyncAction::Resync]), cx).await),
        }
    }
}
