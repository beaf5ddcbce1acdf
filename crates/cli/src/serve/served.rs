//! The volumes that some workers serve, which may come, change and go while they do.
//!
//! Invariants: (1) all workers have the same volumes under the same numbers, and have had each change of them when the function that
//! makes it returns; (2) the I/O of a volume that has gone fails, as some of a client that has gone may still be on its way, and its number is
//! not given out again before all other numbers have been; (3) a layer is in no worker's stack before all counters and traces know its node.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use anyhow::{Result, anyhow};
use blockwork_engine::{
    Layer, LeafId, LeafSource, Nanos, NodeId, NodeInfo, Stats, TaskContext, Volume, VolumeId, Worker,
    WorkerHandle, topmost_first,
};
use blockwork_insight::trace::TraceHub;
use blockwork_layer::ErrorTarget;
use blockwork_uring::Uring;
use blockwork_volume::Assembly;

/// How often a leaf is looked at before it is left as it is, and how long it is waited for in between: five seconds in all.
const LEAF_TRIES: usize = 500;
const LEAF_PAUSE: Nanos = Nanos::millis(10);

/// See the module's head.
pub(crate) struct Served {
    slots: Mutex<Slots>,
    handles: Vec<WorkerHandle<Uring>>,
    stats: Arc<Stats>,
    hub: Arc<TraceHub>,
}

#[derive(Default)]
struct Slots {
    /// By number.
    all: Vec<Slot>,
    /// Those of volumes that have gone, in that order.
    gone: VecDeque<VolumeId>,
}

#[derive(Clone)]
struct Slot {
    volume: Volume,
    is_gone: bool,
}

impl Served {
    /// What `handles` serve from the beginning.
    pub(super) fn new(
        volumes: &[Volume],
        handles: Vec<WorkerHandle<Uring>>,
        stats: Arc<Stats>,
        hub: Arc<TraceHub>,
    ) -> Served {
        let all = volumes.iter().map(|volume| Slot { volume: volume.clone(), is_gone: false }).collect();
        let slots = Slots { all, ..Slots::default() };
        Served { slots: Mutex::new(slots), handles, stats, hub }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All volumes.
    pub(crate) fn all(&self) -> Vec<(VolumeId, Volume)> {
        let slots = self.slots();
        let numbered = (0..=u16::MAX).map(VolumeId).zip(slots.all.iter());
        numbered.filter(|(_, slot)| !slot.is_gone).map(|(id, slot)| (id, slot.volume.clone())).collect()
    }

    /// The volume of that name.
    pub(crate) fn find(&self, name: &str) -> Option<(VolumeId, Volume)> {
        self.all().into_iter().find(|(_, volume)| volume.name == name)
    }

    /// Counters and traces get to know the nodes that an assembly has made, or given other names, since they did last. Whoever calls has not let go of the
    /// assembly since it made them.
    ///
    /// # Errors
    ///
    /// There is no room for them.
    pub(crate) fn name_nodes(&self, assembly: &mut Assembly) -> Result<()> {
        let renewed = assembly.take_renewed_nodes();
        if !renewed.is_empty() {
            let nodes = renewed.clone();
            self.each_worker(move |worker| worker.clear_counters(&nodes));
        }
        for node in renewed {
            self.stats.renew(node, assembly.node(node).clone());
            self.hub.name(node, assembly.node(node));
        }
        for at in self.stats.node_count()..assembly.node_count() {
            let node = NodeId(u16::try_from(at).map_err(|_| anyhow!("there are more than 65535 layers"))?);
            let info: &NodeInfo = assembly.node(node);
            let named = self.stats.add(info.clone())?;
            self.hub.name(named, info);
        }
        for node in assembly.take_renamed_nodes() {
            self.stats.renew(node, assembly.node(node).clone());
            self.hub.rename(node, assembly.node(node));
        }
        Ok(())
    }

    /// One more volume.
    ///
    /// # Errors
    ///
    /// There are too many.
    pub(crate) fn add(&self, volume: Volume) -> Result<VolumeId> {
        let id = {
            let mut slots = self.slots();
            let slot = Slot { volume: volume.clone(), is_gone: false };
            match u16::try_from(slots.all.len()) {
                Ok(next) => {
                    slots.all.push(slot);
                    VolumeId(next)
                }
                Err(_) => {
                    let id = slots.gone.pop_front().ok_or_else(|| anyhow!("65536 volumes are served"))?;
                    slots.all[usize::from(id.0)] = slot;
                    id
                }
            }
        };
        self.tell_workers(id, &volume);
        Ok(id)
    }

    /// Another one in the place of a volume: what is submitted from now on goes to that.
    pub(crate) fn set(&self, id: VolumeId, volume: Volume) {
        self.slots().all[usize::from(id.0)].volume = volume.clone();
        self.tell_workers(id, &volume);
    }

    /// A volume goes, which no client has open.
    pub(crate) fn withdraw(&self, id: VolumeId) {
        let volume = {
            let mut slots = self.slots();
            slots.gone.push_back(id);
            let slot = &mut slots.all[usize::from(id.0)];
            let root = &slot.volume.root;
            let nothing: Arc<dyn Layer> = Arc::new(ErrorTarget::new(root.node(), root.sectors()));
            *slot = Slot { volume: slot.volume.with_root(nothing), is_gone: true };
            slot.volume.clone()
        };
        self.tell_workers(id, &volume);
    }

    fn tell_workers(&self, id: VolumeId, volume: &Volume) {
        let volume = volume.clone();
        self.each_worker(move |worker| worker.set_volume(id, volume.clone()));
    }

    /// Has all workers do something, and waits until they have. A worker that has ended does not do it.
    pub(crate) fn each_worker(&self, act: impl Fn(&mut Worker<Uring>) + Clone + Send + 'static) {
        let (send, told) = mpsc::channel::<()>();
        for handle in &self.handles {
            let (act, send) = (act.clone(), send.clone());
            handle.run(move |worker| {
                act(worker);
                drop(send);
            });
        }
        drop(send);
        // It ends when the last of them has done it.
        let _ = told.recv();
    }

    /// All workers have another source for a leaf that no volume reaches: one that is opened anew, or what stands for one that is closed. Not
    /// before all that is under way there has ended, such as reading ahead; where that does not end, all have the source that they `had`,
    /// and false is returned.
    pub(crate) fn change_leaf(
        &self,
        leaf: LeafId,
        node: NodeId,
        source: &Arc<dyn LeafSource>,
        had: &Arc<dyn LeafSource>,
    ) -> bool {
        let set = |source: &Arc<dyn LeafSource>| {
            let (source, is_busy) = (source.clone(), Arc::new(AtomicBool::new(false)));
            let told = is_busy.clone();
            self.each_worker(move |worker| {
                if !worker.set_leaf(leaf, node, source.clone()) {
                    told.store(true, Ordering::Relaxed);
                }
            });
            !is_busy.load(Ordering::Relaxed)
        };
        for _ in 0..LEAF_TRIES {
            if set(source) {
                return true;
            }
            // A server that stops closes all of them.
            if !matches!(self.run(|cx| async move { cx.pause(LEAF_PAUSE).await }), Ok(true)) {
                break;
            }
        }
        set(had);
        false
    }

    /// Has a worker run a task, and waits for what becomes of it.
    ///
    /// # Errors
    ///
    /// The server is being stopped.
    pub(crate) fn run<T, F>(&self, task: impl FnOnce(TaskContext) -> F + Send + 'static) -> Result<T>
    where
        F: Future<Output = T>,
        T: Send + 'static,
    {
        let (send, receive) = mpsc::channel();
        self.handles[0].run(move |worker| {
            worker.spawn(|cx| async move {
                // Nobody waits any more if the server is being stopped.
                let _ = send.send(task(cx).await);
            });
        });
        receive.recv().map_err(|_| anyhow!("the server stops"))
    }

    /// The layers that volumes have now, by address.
    pub(crate) fn layers(&self) -> HashSet<usize> {
        let roots = self.all().into_iter().map(|(_, volume)| volume.root);
        topmost_first(roots).iter().map(address).collect()
    }

    /// Has the layers under `roots` take up what is due, which no volume had `before`: an array its resync, a merge what is left of it.
    ///
    /// # Errors
    ///
    /// The server is being stopped.
    pub(crate) fn open(
        &self,
        roots: impl IntoIterator<Item = Arc<dyn Layer>>,
        before: &HashSet<usize>,
    ) -> Result<()> {
        let mut layers = topmost_first(roots);
        layers.retain(|layer| !before.contains(&address(layer)));
        layers.reverse();
        self.run(|cx| async move {
            for layer in layers {
                if let Some(opening) = layer.open(cx.clone())
                    && let Err(errno) = opening.await
                {
                    log::error!("the layer of node {} cannot be opened: {errno}", layer.node().0);
                }
            }
        })
    }
}

fn address(layer: &Arc<dyn Layer>) -> usize {
    Arc::as_ptr(layer).cast::<()>() as usize
}
