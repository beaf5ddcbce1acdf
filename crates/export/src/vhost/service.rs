//! What a socket's front ends are served: a device, whose disk is here, or away.
//!
//! Invariant: while a front end has the turn, the disk is here: it comes before a turn can be taken ([`Service::bring`]), and goes after the last one
//! has ended ([`Service::take_away`]).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockwork_engine::{Stats, Volume, VolumeId, WorkerHandle};
use blockwork_uring::Uring;

use super::device::Device;
use super::pinned::Pinned;
use super::turn::Turns;
use crate::complaints::Complaints;

/// Who has a disk come when a guest wants it, and go when it does not any more.
pub trait DiskKeeper: Send + Sync {
    /// A guest's requests wait for the disk, which is away; for how long, [`VhostSocket::is_waited_for`](super::VhostSocket::is_waited_for) tells.
    fn is_wanted(&self);

    /// Its guest is about to go on elsewhere, or has ended. It returns when that has been heeded: by then the disk is away, or others use it.
    fn is_left(&self);
}

/// Who serves a disk that is here.
pub(super) struct Backing {
    pub(super) volume: VolumeId,
    pub(super) workers: Vec<WorkerHandle<Uring>>,
    pub(super) stats: Arc<Stats>,
}

/// What the sessions of a socket serve.
pub(super) struct Service {
    /// For people: the export's address.
    pub(super) name: String,
    pub(super) device: Arc<Device>,
    /// The worker of the first queue.
    pub(super) first_worker: usize,
    /// Who does it. None: the disk is away.
    pub(super) backing: Mutex<Option<Arc<Backing>>>,
    /// Front ends that wait for it.
    pub(super) wishes: AtomicUsize,
    /// Who has it come and go.
    pub(super) keeper: Option<Arc<dyn DiskKeeper>>,
    pub(super) turns: Turns,
    /// About front ends that come and go, about messages, those that are let go, and rings.
    pub(super) comings: Complaints,
    pub(super) goings: Complaints,
    pub(super) refusals: Complaints,
    pub(super) let_go: Complaints,
    /// About what they are told of the size, that they wait for the disk, and that their queues have no memory.
    pub(super) sizes: Complaints,
    pub(super) waits: Complaints,
    pub(super) without_memory: Complaints,
    /// About rings that are too short for what their drivers do.
    pub(super) short_rings: Complaints,
    pub(super) broken: Arc<Complaints>,
    /// That the guest's memory is, or is not, in huge pages. None: it is as it is.
    pub(super) huge_pages: Option<Arc<Complaints>>,
    /// The guest's memory is pinned.
    pub(super) pinned: Option<Arc<Pinned>>,
}

impl Service {
    fn slot(&self) -> MutexGuard<'_, Option<Arc<Backing>>> {
        self.backing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who serves the disk.
    pub(super) fn backing(&self) -> Option<Arc<Backing>> {
        self.slot().clone()
    }

    /// The disk is here from now on.
    pub(super) fn bring(&self, volume: &Volume, backing: Backing) {
        self.device.set_volume(volume.clone());
        *self.slot() = Some(Arc::new(backing));
        self.turns.come();
    }

    /// Of a disk whose turn nobody can take any more.
    pub(super) fn forget_backing(&self) {
        debug_assert!(self.turns.is_away(), "somebody may use it");
        *self.slot() = None;
        self.device.forget_volume();
    }

    /// A front end waits for it.
    pub(super) fn want_the_disk(&self) -> Wish<'_> {
        self.wishes.fetch_add(1, Ordering::Relaxed);
        self.keeper.iter().for_each(|keeper| keeper.is_wanted());
        Wish(self)
    }

    /// Its guest goes on elsewhere, or is no more.
    pub(super) fn leave_the_disk(&self) {
        self.keeper.iter().for_each(|keeper| keeper.is_left());
    }
}

/// That a front end waits for the disk.
pub(super) struct Wish<'a>(&'a Service);

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        self.0.wishes.fetch_sub(1, Ordering::Relaxed);
    }
}
