//! The socket at which one volume is served, and the thread that serves it: one front end at a time, as a device has one.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blockwork_engine::{Stats, Volume, VolumeId, WorkerHandle};
use blockwork_uring::Uring;
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use super::device::Device;
use super::session::{Service, Session};
use super::socket;
use crate::nbd::{ListenError, Listener};

/// How long accepting rests when the process or the system has run out of something.
const PAUSE: Duration = Duration::from_millis(100);

/// What to serve, and how.
#[derive(Clone, Copy, Debug)]
pub struct VhostOptions {
    /// Queues that a guest may have.
    pub queues: u16,
    /// Which worker serves the first queue; the others follow in turn. For several exports to spread.
    pub first_worker: usize,
}

/// Why there is no export.
#[derive(Debug, thiserror::Error)]
pub enum VhostError {
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The thread.
    #[error("cannot start a thread for vhost-user: {0}")]
    Thread(std::io::Error),
}

struct Shared {
    stopping: AtomicBool,
    /// The front end that is served.
    client: Mutex<Option<Arc<OwnedFd>>>,
}

impl Shared {
    fn client(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A volume that is served by vhost-user. Stop it while its workers still run.
pub struct VhostServer {
    shared: Arc<Shared>,
    device: Arc<Device>,
    listener: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    address: String,
}

impl VhostServer {
    /// Serves `volume` at a unix socket, by `workers`, of which there must be one.
    ///
    /// # Errors
    /// The socket cannot be there.
    pub fn start(
        path: &Path,
        (id, volume): (VolumeId, &Volume),
        options: VhostOptions,
        workers: &[WorkerHandle<Uring>],
        stats: Arc<Stats>,
    ) -> Result<VhostServer, VhostError> {
        assert!(!workers.is_empty(), "an export needs a worker");
        let listener = Listener::unix(path)?;
        let address = format!("vhost-user:{}", path.display());
        let device = Arc::new(Device::new(volume.clone(), options.queues));
        let service = Service {
            name: format!("{} at {address}", volume.name),
            device: device.clone(),
            volume: id,
            workers: workers.to_vec(),
            first_worker: options.first_worker,
            stats,
        };
        let shared = Arc::new(Shared { stopping: AtomicBool::new(false), client: Mutex::new(None) });
        let fd = listener.fd().clone();
        let known = shared.clone();
        let thread = thread::Builder::new()
            .name("vhost-user".into())
            .spawn(move || serve(&service, listener, &known))
            .map_err(VhostError::Thread)?;
        Ok(VhostServer { shared, device, listener: fd, thread: Some(thread), address })
    }

    /// Where front ends reach it, such as `vhost-user:/run/disk.sock`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The volume has changed, such as its size: the front end is told of that.
    pub fn set_volume(&self, volume: &Volume) {
        self.device.set_volume(volume.clone());
    }

    /// Ends it: what was taken is answered, the rest stays in the guest's rings.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.stopping.store(true, Ordering::Release);
        // Whoever sleeps in these wakes up.
        let _ = shutdown(&self.listener, Shutdown::Both);
        if let Some(client) = &*self.shared.client() {
            let _ = shutdown(client, Shutdown::Both);
        }
        if thread.join().is_err() {
            log::error!("{}: its thread has panicked", self.address);
        }
    }
}

impl Drop for VhostServer {
    fn drop(&mut self) {
        self.end();
    }
}

fn serve(service: &Service, mut listener: Listener, shared: &Shared) {
    while !shared.stopping.load(Ordering::Acquire) {
        let client = match accept_with(&**listener.fd(), SocketFlags::CLOEXEC) {
            Ok(fd) => Arc::new(fd),
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(_) if shared.stopping.load(Ordering::Acquire) => break,
            Err(errno) => {
                log::warn!("{}: cannot accept a front end just now: {errno}", service.name);
                // Until it is over, or we are: a listener that is shut down is ready at once.
                let _ = socket::wait_for_end(listener.fd().as_fd(), PAUSE);
                continue;
            }
        };
        *shared.client() = Some(client.clone());
        if !shared.stopping.load(Ordering::Acquire) {
            log::info!("{}: a front end has come", service.name);
            let mut session = Session::new(service, client);
            if let Err(error) = session.run() {
                log::warn!("{}: the front end is let go: {error}", service.name);
            }
            drop(session);
            log::info!("{}: the front end has gone", service.name);
        }
        *shared.client() = None;
    }
    listener.close();
}
