//! Exports that come and go while a server runs: guests' disks.
//!
//! What comes so lasts as long as the server: the next one offers what its command line says.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, anyhow};
use blockwork_daemon::{
    ExportAnswer, ExportRequest, Exports, GuestDisk, GuestMemory, Refusal, RefusalKind, socket_path,
};
use blockwork_engine::{Stats, Volume, VolumeId, WorkerHandle};
use blockwork_export::vhost::{VhostOptions, VhostServer};
use blockwork_export::xen::{XenOptions, XenServer};
use blockwork_format::escape;
use blockwork_uring::Uring;

use super::guests::{Guest, pages_of};
use super::merges::MergeCaller;
use super::offers::Offers;
use super::sandbox;
use super::served::Served;
use super::workers::Workers;
use crate::args::xen_disk;

/// Queues of a guest where nobody says how many, and at most: as of the command line.
const QUEUES_DEFAULT: u16 = 64;
const QUEUES_MAX: u16 = 256;

/// What was said of an export. None: nothing.
#[derive(Clone, Copy)]
struct How {
    queues: Option<u16>,
    guest_memory: Option<GuestMemory>,
}

/// See the module's head.
pub(super) struct ServedExports {
    offers: Offers,
    served: Arc<Served>,
    handles: Vec<WorkerHandle<Uring>>,
    stats: Arc<Stats>,
    /// What becomes of guests' memory, where that is not said of one.
    guest_memory: GuestMemory,
    /// Who waits until nobody has a volume open.
    merges: MergeCaller,
    /// Exports that there have been: each begins with another worker.
    count: AtomicUsize,
}

impl ServedExports {
    pub(super) fn new(
        workers: &Workers,
        offers: Offers,
        merges: MergeCaller,
        guest_memory: GuestMemory,
    ) -> ServedExports {
        let (served, stats) = (workers.served.clone(), workers.stats.clone());
        let handles = workers.handles.clone();
        let count = AtomicUsize::new(0);
        ServedExports { offers, served, handles, stats, guest_memory, merges, count }
    }

    fn add(&self, name: &str, to: &GuestDisk, how: How) -> Result<ExportAnswer, Refusal> {
        Self::check(to, how).map_err(|why| Refusal::new(RefusalKind::Invalid, why))?;
        let start = |id, volume: &Volume| self.start((id, volume), to, how);
        let added = self.offers.by_new_guest(|| self.served.find(name), start);
        let conflict = |error: anyhow::Error| {
            let text = format!("{}{}", crate::said(&error), sandbox::remedy(error.as_ref()));
            Refusal::new(RefusalKind::Conflict, text)
        };
        let Some((id, address)) = added.map_err(conflict)? else {
            let shown = escape(name);
            let text = format!("no volume is called {shown} here: `blockwork export show` shows them");
            return Err(Refusal::new(RefusalKind::NotFound, text));
        };
        Ok(self.answer(format!("{} is the disk at {}", escape(name), escape(&address)), id, name))
    }

    /// Whether that can be asked for at all.
    fn check(to: &GuestDisk, how: How) -> Result<(), String> {
        match (to, how) {
            (GuestDisk::VhostUser(path), _) if !path.is_absolute() => {
                let path = escape(&path.display().to_string());
                Err(format!("vhost_user {path}: expected a path that begins with a slash"))
            }
            (GuestDisk::VhostUser(_), How { queues: Some(queues), .. })
                if !(1..=QUEUES_MAX).contains(&queues) =>
            {
                Err(format!("queues {queues}: expected 1 to {QUEUES_MAX}"))
            }
            (GuestDisk::Xen(disk), How { queues: None, guest_memory: None }) => {
                xen_disk(disk).map(drop).map_err(|why| format!("xen {}: {why}", escape(disk)))
            }
            (GuestDisk::Xen(_), _) => Err("queues and guest_memory are of vhost_user: leave them out".into()),
            _ => Ok(()),
        }
    }

    fn start(&self, volume: (VolumeId, &Volume), to: &GuestDisk, how: How) -> Result<Guest> {
        let first_worker = self.count.fetch_add(1, Ordering::Relaxed);
        let (workers, stats) = (&self.handles, self.stats.clone());
        match to {
            GuestDisk::VhostUser(path) => {
                let queues = how.queues.unwrap_or(QUEUES_DEFAULT);
                let pages = pages_of(how.guest_memory.unwrap_or(self.guest_memory), volume.1)?;
                let options = VhostOptions { queues, first_worker, pages };
                Ok(VhostServer::start(path, volume, options, workers, stats)?.into())
            }
            GuestDisk::Xen(disk) => {
                let (domain, device) = xen_disk(disk).map_err(|why| anyhow!("{}: {why}", escape(disk)))?;
                let options = XenOptions { domain, device, first_worker, ledgers: ledgers()? };
                Ok(XenServer::start(options, volume, workers, stats)?.into())
            }
        }
    }

    fn remove(&self, address: &str, force: bool) -> Result<ExportAnswer, Refusal> {
        let ended = self.offers.end_guest(address, force);
        let ended = ended.map_err(|error| Refusal::new(RefusalKind::Conflict, error))?;
        let Some(id) = ended else {
            let text = format!(
                "{}: no guest's disk is there; NBD servers and mounts last as long as the server",
                escape(address)
            );
            return Err(Refusal::new(RefusalKind::NotFound, text));
        };
        self.merges.begin();
        let volumes = self.served.all();
        let name = volumes.iter().find(|(known, _)| *known == id).map_or("", |(_, volume)| &volume.name);
        Ok(self.answer(format!("{} is no disk at {} any more", escape(name), escape(address)), id, name))
    }

    fn answer(&self, said: String, id: VolumeId, volume: &str) -> ExportAnswer {
        ExportAnswer { said, volume: volume.to_owned(), exports: self.offers.of(id, volume) }
    }
}

impl Exports for ServedExports {
    fn change(&self, request: &ExportRequest) -> Result<ExportAnswer, Refusal> {
        match request {
            &ExportRequest::Add { ref volume, ref to, queues, guest_memory } => {
                self.add(volume, to, How { queues, guest_memory })
            }
            ExportRequest::Remove { address, force } => self.remove(address, *force),
        }
    }
}

/// Where what is kept of guests of Xen's for the next server is: beside control sockets.
pub(super) fn ledgers() -> Result<PathBuf> {
    Ok(socket_path()?.parent().map(Path::to_owned).unwrap_or_default())
}
