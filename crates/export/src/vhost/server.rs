//! The socket at which one volume is served, and the threads that serve it: one that accepts, one for each front end. A device has one
//! front end, and for a moment two, when its guest moves from one to the other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blockwork_engine::{Stats, Volume, VolumeId, WorkerHandle};
use blockwork_uring::{Shortage, Uring, clock};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use super::device::Device;
use super::given::Closer;
use super::session::{Service, Session};
use super::socket;
use super::turn::Turns;
use crate::complaints::Complaints;
use crate::nbd::{ListenError, Listener};

/// Front ends that are served at a time; others wait to be accepted.
const FRONT_ENDS_MAX: usize = 2;

/// How long accepting rests when the process or the system has run out of something.
const PAUSE: Duration = Duration::from_millis(100);

/// What to serve, and how.
#[derive(Clone, Copy, Debug)]
pub struct VhostOptions {
    /// Queues that a guest may have.
    pub queues: u16,
    /// Which worker serves the first queue; the others follow in turn. For several exports to spread.
    pub first_worker: usize,
    /// The memory of guests is gathered in huge pages.
    pub huge_pages: bool,
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

#[derive(Default)]
struct State {
    stopping: bool,
    /// The front ends that are served.
    clients: Vec<Client>,
}

/// A front end that is served.
#[derive(Clone)]
struct Client {
    socket: Arc<OwnedFd>,
    closer: Closer,
}

impl Client {
    fn new(socket: OwnedFd) -> io::Result<Client> {
        Ok(Client { socket: Arc::new(socket), closer: Closer::start()? })
    }

    /// Has its session end, which may wait for either.
    fn end(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
        self.closer.end();
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// A front end has gone, or it is time to stop.
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.state().stopping
    }

    /// Waits until one more may be accepted; not so if none may any more.
    fn wait_for_room(&self) -> bool {
        let is_full = |state: &mut State| !state.stopping && state.clients.len() >= FRONT_ENDS_MAX;
        let state = self.changed.wait_while(self.state(), is_full);
        !state.unwrap_or_else(PoisonError::into_inner).stopping
    }

    fn come(&self, client: &Client) {
        let mut state = self.state();
        if state.stopping {
            // Nobody else would tell it.
            client.end();
        }
        state.clients.push(client.clone());
    }

    fn gone(&self, client: &Client) {
        self.state().clients.retain(|other| !Arc::ptr_eq(&other.socket, &client.socket));
        self.changed.notify_all();
    }

    fn stop(&self) {
        let mut state = self.state();
        state.stopping = true;
        state.clients.iter().for_each(Client::end);
        drop(state);
        self.changed.notify_all();
    }
}

/// A volume that is served by vhost-user. Stop it while its workers still run.
pub struct VhostServer {
    shared: Arc<Shared>,
    device: Arc<Device>,
    listener: Listener,
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
            turns: Turns::default(),
            comings: Complaints::default(),
            goings: Complaints::default(),
            refusals: Complaints::default(),
            let_go: Complaints::default(),
            sizes: Complaints::default(),
            waits: Complaints::default(),
            without_memory: Complaints::default(),
            short_rings: Complaints::default(),
            broken: Arc::default(),
            huge_pages: options.huge_pages.then(Arc::default),
        };
        let shared = Arc::new(Shared::default());
        let fd = listener.fd().clone();
        let known = shared.clone();
        let thread = thread::Builder::new()
            .name("vhost-user".into())
            .spawn(move || serve(&service, &fd, &known))
            .map_err(VhostError::Thread)?;
        Ok(VhostServer { shared, device, listener, thread: Some(thread), address })
    }

    /// Where front ends reach it, such as `vhost-user:/run/disk.sock`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether a front end is connected.
    pub fn is_connected(&self) -> bool {
        !self.shared.state().clients.is_empty()
    }

    /// The volume has changed, such as its size: the front end is told of that.
    pub fn set_volume(&self, volume: &Volume) {
        self.device.set_volume(volume.clone());
    }

    /// Ends it: what was taken is answered, the rest stays in the guest's rings. Of what front ends gave, some may still be about to be closed
    /// (see `given`).
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // Whoever sleeps in these wakes up.
        self.shared.stop();
        self.listener.close();
        let _ = shutdown(&**self.listener.fd(), Shutdown::Both);
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

fn serve(service: &Service, listener: &OwnedFd, shared: &Shared) {
    let mut shortage = Shortage::default();
    thread::scope(|scope| {
        while shared.wait_for_room() {
            let client = match accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(fd) => fd,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) if shared.is_stopping() => break,
                Err(errno) => {
                    shortage.begins(clock(), &service.name, blockwork_engine::Errno(errno.raw_os_error()));
                    // Until it is over, or we are: a listener that is shut down is ready at once.
                    let _ = socket::wait_for_end(listener.as_fd(), PAUSE);
                    continue;
                }
            };
            shortage.is_over(clock(), &service.name);
            let thread = thread::Builder::new().name("vhost-user".into());
            let attended = Client::new(client).and_then(|client| {
                shared.come(&client);
                let ours = client.clone();
                let attend = thread.spawn_scoped(scope, move || attend(service, ours, shared));
                attend.map(drop).inspect_err(|_| shared.gone(&client))
            });
            if let Err(error) = attended {
                service.let_go.warn(clock(), || {
                    format!(
                        "{}: a front end is let go: no descriptor or thread for it: {error}",
                        service.name
                    )
                });
            }
        }
    });
}

/// One front end, from its coming to its going.
fn attend(service: &Service, client: Client, shared: &Shared) {
    service.comings.inform(clock(), || format!("{}: a front end has come", service.name));
    // Also when the session panics, or nobody would be let in any more.
    let _place = Place { client: client.clone(), shared };
    let mut session = Session::new(service, client.socket, client.closer);
    if let Err(error) = session.run() {
        service.let_go.warn(clock(), || format!("{}: the front end is let go: {error}", service.name));
    }
    drop(session);
    service.goings.inform(clock(), || format!("{}: the front end has gone", service.name));
}

/// A front end's place among those that are served.
struct Place<'a> {
    client: Client,
    shared: &'a Shared,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.gone(&self.client);
    }
}
