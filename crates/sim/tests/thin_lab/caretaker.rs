//! Whoever looks after a pool while it is served: makes volumes and snapshots, deletes them, extends the pool.
//!
//! A snapshot is judged at the moment when it is made: as a read of all of its origin that began with the verb and ended with it.
//! From then on it stays as it is.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{FileId, Layer, Nanos, NodeId, Sector, Sectors, TaskContext};
use blockwork_format::thin::edit::EditError;
use blockwork_layer::Linear;
use blockwork_layer::thin::{Mode, Pool, VerbError};
use blockwork_sim::{Random, Referee, World};

use super::image::content;
use crate::running::bytes::Bytes;

/// Where the devices of a pool are, and how much of them it has.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub metadata: u64,
    pub data: u64,
}

/// A device of the pool that clients use.
#[derive(Clone)]
pub struct Served {
    pub id: u64,
    pub sectors: u64,
    pub referee: Rc<RefCell<Referee>>,
}

/// What is known of the pool's devices that nobody uses now.
#[derive(Debug, Default)]
pub struct Known {
    /// Size and content of snapshots.
    pub frozen: BTreeMap<u64, Vec<u8>>,
    /// Devices that may be there or not, and whose content nobody knows.
    pub uncertain: BTreeSet<u64>,
    pub next: u64,
    /// Verbs that were carried out.
    pub verbs: BTreeMap<&'static str, u64>,
    pub violations: Vec<String>,
}

pub struct Caretaker {
    pub seed: u64,
    pub verbs: u64,
    pub pause: Nanos,
    pub world: World,
    pub pool: Arc<Pool>,
    /// Whole devices: metadata, data.
    pub disks: [Arc<dyn Layer>; 2],
    pub extent: Rc<RefCell<Extent>>,
    pub nodes: [NodeId; 2],
    pub served: Vec<Served>,
    pub known: Rc<RefCell<Known>>,
}

impl Caretaker {
    pub async fn work(self, cx: TaskContext) {
        let random = &mut Random::part(self.seed, 9);
        for _ in 0..self.verbs {
            if !cx.pause(Nanos(random.below(self.pause.0.max(1)))).await || self.world.is_off() {
                return;
            }
            match random.below(10) {
                0..5 => self.snapshot(random, &cx).await,
                5 => self.create(&cx).await,
                6..9 => self.delete(random, &cx).await,
                _ => self.grow(random, &cx).await,
            }
            if self.pool.mode() == Mode::ReadOnly {
                return;
            }
        }
    }

    fn number(&self) -> u64 {
        let mut known = self.known.borrow_mut();
        known.next += 1;
        let next = known.next;
        known.uncertain.insert(next);
        known.next
    }

    /// A verb has returned.
    fn book(&self, verb: &'static str, result: &Result<(), VerbError>) -> bool {
        let mut known = self.known.borrow_mut();
        // After a fault, and where there is no space, anything may fail.
        let excused = matches!(
            result,
            Err(VerbError::Commit | VerbError::ReadOnly(_) | VerbError::Read { .. })
                | Err(VerbError::Edit(EditError::NoMetadata | EditError::NoData))
        );
        match result {
            Ok(()) => *known.verbs.entry(verb).or_default() += 1,
            Err(error) if !excused => known.violations.push(format!("{verb}: {error}")),
            Err(_) => {}
        }
        result.is_ok()
    }

    async fn snapshot(&self, random: &mut Random, cx: &TaskContext) {
        let origin = random.choose(&self.served).clone();
        let id = self.number();
        let read = origin.referee.borrow_mut().oracle.begin_read(0, origin.sectors * 512);
        let made = self.pool.create_snap(cx, id, origin.id).await;
        if self.world.is_off() {
            return;
        }
        if !self.book("snapshot", &made) {
            let _ = origin.referee.borrow_mut().oracle.end_read(read, None);
            return;
        }
        let extent = *self.extent.borrow();
        let metadata = Bytes { world: &self.world, device: FileId(0), start: 0, sectors: extent.metadata };
        let data = Bytes { world: &self.world, device: FileId(1), start: 0, sectors: extent.data };
        let mut known = self.known.borrow_mut();
        match content(&metadata, &data, id, origin.sectors) {
            Ok(bytes) => {
                let verdict = origin.referee.borrow_mut().oracle.end_read(read, Some(&bytes));
                if let Err(violation) = verdict {
                    known.violations.push(format!("snapshot {id} of {}: {violation}", origin.id));
                }
                known.uncertain.remove(&id);
                known.frozen.insert(id, bytes);
            }
            Err(error) => known.violations.push(format!("snapshot {id} of {}: {error}", origin.id)),
        }
    }

    async fn create(&self, cx: &TaskContext) {
        let id = self.number();
        let made = self.pool.create_thin(cx, id).await;
        if !self.world.is_off() && self.book("create", &made) {
            let mut known = self.known.borrow_mut();
            known.uncertain.remove(&id);
            known.frozen.insert(id, vec![0; 128 * 512 * 3]);
        }
    }

    async fn delete(&self, random: &mut Random, cx: &TaskContext) {
        let id = {
            let mut known = self.known.borrow_mut();
            let all: Vec<u64> = known.frozen.keys().chain(&known.uncertain).copied().collect();
            if all.is_empty() {
                return;
            }
            let id = *random.choose(&all);
            known.frozen.remove(&id);
            known.uncertain.insert(id);
            id
        };
        let deleted = self.pool.delete(cx, id).await;
        if self.world.is_off() {
            return;
        }
        let was_gone = matches!(deleted, Err(VerbError::Edit(EditError::NoDevice(_))));
        if was_gone || self.book("delete", &deleted) {
            self.known.borrow_mut().uncertain.remove(&id);
        }
    }

    async fn grow(&self, random: &mut Random, cx: &TaskContext) {
        let which = random.index(2);
        let disk = self.disks[which].clone();
        let sectors = {
            let mut extent = self.extent.borrow_mut();
            let own = if which == 0 { &mut extent.metadata } else { &mut extent.data };
            *own = (*own + random.between(1, 8) * 128).min(disk.sectors().0);
            *own
        };
        let layer = Linear::new(self.nodes[which], disk, Sector(0), Sectors(sectors));
        let layer: Arc<dyn Layer> = Arc::new(layer.expect("it fits its disk"));
        let grown = if which == 0 {
            self.pool.grow_metadata(cx, layer).await
        } else {
            self.pool.grow_data(cx, layer).await
        };
        if !self.world.is_off() {
            self.book("grow", &grown);
        }
    }
}
