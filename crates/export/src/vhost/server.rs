//! The socket at which one volume is served, and the threads that serve it: one that accepts, one for each front end. A device has one
//! front end, and for a moment two, when its guest moves from one to the other.
//!
//! The socket may be there without the disk ([`VhostSocket`]): its front ends are told what the disk was like when it was seen, and their guests'
//! requests wait until it is there. So a guest moves to another host: the server there must not use the disk before the one here has let go of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blockwork_engine::{Stats, Volume, VolumeId, WorkerHandle};
use blockwork_uring::{Shortage, Uring, clock};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use super::device::Device;
use super::given::Closer;
use super::service::{Backing, DiskKeeper, Service};
use super::session::Session;
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
    /// What becomes of the memory of guests.
    pub pages: GuestPages,
}

/// What becomes of the pages of guests' memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestPages {
    /// Nothing.
    #[default]
    AsIs,
    /// They are gathered in huge ones.
    Huge,
    /// All of them are there, and io_uring holds them, which spares it to find them for each request. Not where a guest gives memory back while it runs:
    /// what it reads by memory that it has given back and got again is lost.
    Pinned,
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

/// A socket for the front ends of a disk, which may be here or away.
pub struct VhostSocket {
    shared: Arc<Shared>,
    service: Arc<Service>,
    /// Until it ends.
    listening: Mutex<Option<(Listener, JoinHandle<()>)>>,
    address: String,
}

impl VhostSocket {
    /// Listens at a unix socket for the front ends of a disk that is away; `seen` is what it is like. `keeper` hears when it is wanted, and when it
    /// is not any more. Without one it stays where it is brought.
    ///
    /// # Errors
    /// The socket cannot be there.
    pub fn open(
        path: &Path,
        seen: &Volume,
        options: VhostOptions,
        keeper: Option<Arc<dyn DiskKeeper>>,
    ) -> Result<VhostSocket, VhostError> {
        let listener = Listener::unix(path)?;
        // Where there is no folder any more, the path says what can be said.
        let place = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let address = format!("vhost-user:{}", place.display());
        let service = Arc::new(Service {
            name: format!("{} at {address}", seen.name),
            device: Arc::new(Device::new(seen, options.queues)),
            first_worker: options.first_worker,
            backing: Mutex::default(),
            wishes: AtomicUsize::new(0),
            keeper,
            turns: Turns::away(),
            comings: Complaints::default(),
            goings: Complaints::default(),
            refusals: Complaints::default(),
            let_go: Complaints::default(),
            sizes: Complaints::default(),
            waits: Complaints::default(),
            without_memory: Complaints::default(),
            short_rings: Complaints::default(),
            broken: Arc::default(),
            huge_pages: (options.pages == GuestPages::Huge).then(Arc::default),
            pinned: (options.pages == GuestPages::Pinned).then(Arc::default),
        });
        let shared = Arc::new(Shared::default());
        let fd = listener.fd().clone();
        let (known, served) = (shared.clone(), service.clone());
        let thread = thread::Builder::new()
            .name("vhost-user".into())
            .spawn(move || serve(&served, &fd, &known))
            .map_err(VhostError::Thread)?;
        let listening = Mutex::new(Some((listener, thread)));
        Ok(VhostSocket { shared, service, listening, address })
    }

    /// Where front ends reach it, such as `vhost-user:/run/disk.sock`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where it is counted how much of its guest's memory is locked for it, bytes, by all workers together: where that is pinned.
    pub fn locked(&self) -> Option<Arc<AtomicU64>> {
        self.service.pinned.as_ref().map(|pinned| pinned.locked.clone())
    }

    /// Whether a guest's requests wait for the disk.
    pub fn is_waited_for(&self) -> bool {
        self.service.wishes.load(Ordering::Relaxed) > 0
    }

    /// Has all these disks go, if no guest uses any of them; whether they are away now. Their workers may be ended then, and they are held open by nothing
    /// that is known here.
    pub fn take_away(all: &[Arc<VhostSocket>]) -> bool {
        let gone = all.iter().take_while(|one| one.service.turns.go()).count();
        if gone < all.len() {
            all[..gone]
                .iter()
                .filter(|one| one.service.backing().is_some())
                .for_each(|one| one.service.turns.come());
            return false;
        }
        all.iter().for_each(|one| one.service.forget_backing());
        true
    }

    /// Ends it: what was taken is answered, the rest stays in the guest's rings. Of what front ends gave, some may still be about to be closed
    /// (see `given`).
    pub fn end(&self) {
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((mut listener, thread)) = listening else { return };
        // Whoever sleeps in these wakes up.
        self.shared.stop();
        listener.close();
        let _ = shutdown(&**listener.fd(), Shutdown::Both);
        if thread.join().is_err() {
            log::error!("{}: its thread has panicked", self.address);
        }
    }
}

impl Drop for VhostSocket {
    fn drop(&mut self) {
        self.end();
    }
}

/// A volume that is served by vhost-user. Stop it while its workers still run.
pub struct VhostServer(Arc<VhostSocket>);

impl VhostServer {
    /// Serves `volume` at a unix socket, by `workers`, of which there must be one.
    ///
    /// # Errors
    /// The socket cannot be there.
    pub fn start(
        path: &Path,
        volume: (VolumeId, &Volume),
        options: VhostOptions,
        workers: &[WorkerHandle<Uring>],
        stats: Arc<Stats>,
    ) -> Result<VhostServer, VhostError> {
        let socket = VhostSocket::open(path, volume.1, options, None)?;
        Ok(VhostServer::at(Arc::new(socket), volume, workers, stats))
    }

    /// The disk of a socket is here: `volume`.
    pub fn at(
        socket: Arc<VhostSocket>,
        (id, volume): (VolumeId, &Volume),
        workers: &[WorkerHandle<Uring>],
        stats: Arc<Stats>,
    ) -> VhostServer {
        assert!(!workers.is_empty(), "an export needs a worker");
        socket.service.bring(volume, Backing { volume: id, workers: workers.to_vec(), stats });
        VhostServer(socket)
    }

    /// Where front ends reach it, such as `vhost-user:/run/disk.sock`.
    pub fn address(&self) -> &str {
        self.0.address()
    }

    /// See [`VhostSocket::locked`].
    pub fn locked(&self) -> Option<Arc<AtomicU64>> {
        self.0.locked()
    }

    /// Whether a front end is connected.
    pub fn is_connected(&self) -> bool {
        !self.0.shared.state().clients.is_empty()
    }

    /// Whether its disk comes and goes ([`VhostSocket`]).
    pub fn comes_and_goes(&self) -> bool {
        self.0.service.keeper.is_some()
    }

    /// The volume has changed, such as its size: the front end is told of that.
    pub fn set_volume(&self, volume: &Volume) {
        self.0.service.device.set_volume(volume.clone());
    }

    /// Ends it, and the socket ([`VhostSocket::end`]). Where the disk was taken away, nothing is to be ended, and the socket stays.
    pub fn stop(self) {
        if !self.0.service.turns.is_away() {
            self.0.end();
        }
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
    service.leave_the_disk();
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
