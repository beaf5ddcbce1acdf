//! One disk of one guest, and the thread that connects it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blockwork_engine::{Stats, Volume, VolumeId, WorkerHandle};
use blockwork_format::blkif::{BackFeatures, FrontParameters, VirtualDevice};
use blockwork_memory::{GrantDevice, Place};
use blockwork_uring::{EventPort, Uring, clock};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::ledger::{LedgerError, LedgerFile};
use super::nodes::{Nodes, NodesError};
use super::queue::{Common, Queue, StartError};
use super::store::Store;
use crate::blkif::{BackDevice, BackStep, ConnectError, StoreError, describe};
use crate::complaints::Complaints;

/// How often the volume's size is looked at: an array that grows tells nobody.
const SIZE_LOOK: Duration = Duration::from_secs(1);

/// Which disk, and how.
#[derive(Clone, Debug)]
pub struct XenOptions {
    /// The guest.
    pub domain: u16,
    /// Its disk.
    pub device: VirtualDevice,
    /// Which worker serves the first queue; the others follow in turn. For several exports to spread.
    pub first_worker: usize,
    /// Folder of ledgers: one that outlives this process and that nobody else can write to.
    pub ledgers: PathBuf,
}

/// Why there is no export.
#[derive(Debug, thiserror::Error)]
pub enum XenError {
    /// Something that Xen's kernel has is not there.
    #[error(
        "{what}: {source}; a guest of Xen's is served from dom0 or a driver domain, as root: boot the machine under Xen, and have its \
         drivers loaded (`modprobe -a xen-gntdev xen-evtchn`) and xenstored running"
    )]
    NoXen {
        /// What.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The device's nodes.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// Its ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The front end.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A descriptor or a thread.
    #[error("starting to serve a guest of Xen's: {0}")]
    Start(io::Error),
}

impl XenError {
    /// Whether it is for reasons of this one guest's, or of its own making, so that other disks can be served.
    pub fn is_of_one_guest(&self) -> bool {
        match self {
            XenError::Nodes(NodesError::NoDomain(_) | NodesError::Taken { .. }) => true,
            XenError::Nodes(NodesError::Store(error)) | XenError::Connect(ConnectError::Store(error)) => {
                error.is_refused
            }
            XenError::Connect(ConnectError::Key { .. }) => true,
            XenError::NoXen { .. } | XenError::Ledger(_) | XenError::Start(_) => false,
        }
    }
}

impl From<StoreError> for XenError {
    fn from(error: StoreError) -> XenError {
        XenError::Connect(error.into())
    }
}

/// A volume that is a disk of a guest of Xen's. Stop it while its workers still run.
pub struct XenServer {
    stopping: Arc<AtomicBool>,
    /// To the thread, which the bell wakes.
    changes: mpsc::Sender<Volume>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    address: String,
}

impl XenServer {
    /// Makes the device's nodes, or takes up those of a server that is gone, and serves `volume` by `workers`, of which there must
    /// be one. Rings that the guest uses already are taken up by the export's own thread: where that fails, the log says why, and
    /// the disk is served when the guest has let go of it.
    ///
    /// # Errors
    /// See [`XenError`].
    pub fn start(
        options: XenOptions,
        (id, volume): (VolumeId, &Volume),
        workers: &[WorkerHandle<Uring>],
        stats: Arc<Stats>,
    ) -> Result<XenServer, XenError> {
        assert!(!workers.is_empty(), "an export needs a worker");
        let no_xen = |what| move |source| XenError::NoXen { what, source };
        GrantDevice::open().map_err(no_xen("/dev/xen/gntdev"))?;
        EventPort::probe().map_err(no_xen("/dev/xen/evtchn"))?;
        let store = Store::connect().map_err(no_xen("/dev/xen/xenbus"))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| XenError::Start(errno.into()))?;
        let bell = Arc::new(bell);
        let address = format!("xen:{}/{}", options.domain, options.device);
        let mut session = Session::begin(&options, (id, volume), workers, stats, (store, bell.clone()))?;
        let stopping = session.stopping.clone();
        let (changes, changed) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("xen".into())
            .spawn(move || {
                session.take_up();
                session.serve(&changed);
                session.end();
            })
            .map_err(XenError::Start)?;
        Ok(XenServer { stopping, changes, bell, thread: Some(thread), address })
    }

    /// Which disk of which guest it is, such as `xen:3/xvda`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether it is over, as the disk was taken away from the guest, or the guest is gone: nobody gets it any more.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The volume has changed, such as its size: the guest is told of that.
    pub fn set_volume(&self, volume: &Volume) {
        // Nobody hears of it where the disk was taken away from the guest.
        let _ = self.changes.send(volume.clone());
        self.ring();
    }

    /// It is about to end, and so are its workers: no guest connects any more, and none is told that a worker which has ended cannot serve it.
    pub fn ask_to_end(&self) {
        self.stopping.store(true, Ordering::Release);
        self.ring();
    }

    /// Ends it: what was taken is answered, the rest stays in the guest's rings for the next server.
    pub fn stop(mut self) {
        self.end();
    }

    fn ring(&self) {
        // An eventfd that cannot be written to is full, and so readable.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.ask_to_end();
        if thread.join().is_err() {
            log::error!("{}: its thread has panicked", self.address);
        }
    }
}

impl Drop for XenServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// A device that is served, by its thread.
struct Session {
    name: String,
    store: Store,
    nodes: Nodes,
    device: BackDevice<Store>,
    features: BackFeatures,
    /// Taken when the disk is gone.
    ledger: Option<LedgerFile>,
    volume: (VolumeId, Volume),
    domain: u16,
    workers: Vec<WorkerHandle<Uring>>,
    first_worker: usize,
    stats: Arc<Stats>,
    bell: Arc<OwnedFd>,
    /// Told to end.
    stopping: Arc<AtomicBool>,
    queues: Vec<Queue>,
    /// The size that the front end knows of, sectors.
    announced: u64,
    /// The front end has rings that another server has served.
    resumes: bool,
    /// About what the front end does wrong, and about its coming and going.
    refusals: Complaints,
    comings: Complaints,
    goings: Complaints,
    /// No rings were begun with yet: those that come first may be ones that another server had begun with when it was killed.
    is_new: bool,
}

impl Session {
    fn begin(
        options: &XenOptions,
        (id, volume): (VolumeId, &Volume),
        workers: &[WorkerHandle<Uring>],
        stats: Arc<Stats>,
        (mut store, bell): (Store, Arc<OwnedFd>),
    ) -> Result<Session, XenError> {
        let XenOptions { domain, device, first_worker, ref ledgers } = *options;
        let nodes = Nodes::find(&store, domain, device)?;
        let resumes = nodes.is_connected(&store)?;
        let ledger = LedgerFile::open(ledgers, domain, device)?;
        let (features, _) = describe(volume);
        let begin = if resumes {
            BackDevice::resume
        } else {
            nodes.make(&mut store, volume.read_only)?;
            BackDevice::new
        };
        let device = begin(store.clone(), &nodes.back, &nodes.front, features.clone())?;
        store.watch(&nodes.front)?;
        Ok(Session {
            name: format!("{} as {} of domain {domain}", volume.name, options.device),
            store,
            nodes,
            device,
            features,
            ledger: Some(ledger),
            volume: (id, volume.clone()),
            domain,
            workers: workers.to_vec(),
            first_worker,
            stats,
            bell,
            stopping: Arc::default(),
            queues: Vec::new(),
            announced: 0,
            resumes,
            refusals: Complaints::default(),
            comings: Complaints::default(),
            goings: Complaints::default(),
            is_new: true,
        })
    }

    /// Goes on with rings that another server has left, if there are any.
    fn take_up(&mut self) {
        if !self.resumes {
            return;
        }
        match self.resume() {
            Ok(()) => {}
            Err(StartError::Ending) => self.leave(),
            Err(StartError::Failed(reason)) => self.cannot_resume(&reason),
        }
    }

    fn cannot_resume(&mut self, reason: &str) {
        log::error!(
            "{}: the guest uses the disk already, and its rings cannot be taken up again: {reason}; it is served when the guest has \
                 let go of it. Or take it away (`xenstore-rm {}`), and start the server anew",
            self.name,
            self.nodes.front
        );
        self.device.cannot_resume(reason);
    }

    fn resume(&mut self) -> Result<(), StartError> {
        let rings = self.device.rings().map_err(|error| error.to_string())?;
        let ledger = self.ledger.as_ref().expect("it has not ended");
        let whose = self.nodes.whose(&self.store).map_err(|error| error.to_string())?;
        let places = ledger.resume(&whose, &rings).map_err(|error| error.to_string())?;
        self.start(&rings, places, true)?;
        let left: u32 = self.queues.iter().map(|queue| queue.left).sum();
        log::info!("{}: goes on with the guest's rings; {left} requests were open", self.name);
        Ok(self.announce().map_err(|error| error.to_string())?)
    }

    /// Serves until it is told to end, or the disk is gone, or its guest lets us read its keys no more.
    fn serve(&mut self, changes: &mpsc::Receiver<Volume>) {
        match self.run(changes) {
            Ok(()) => {}
            Err(ConnectError::Store(error)) if !error.is_refused => self.serve_on(&error),
            Err(error) => log::error!("{}: it is served no more: {error}", self.name),
        }
    }

    /// Serves the rings that there are until it is told to end. Requests need no xenstored, and a guest whose disk stands still could not
    /// even be shut down.
    fn serve_on(&self, error: &StoreError) {
        log::error!(
            "{}: xenstored cannot be asked any more: {error}; what the guest has connected is served on, and what it connects or lets go from \
             now on is not noticed: start the server anew when `xenstore-ls` works",
            self.name
        );
        while !self.is_ending() {
            let mut polled = [PollFd::new(&*self.bell, PollFlags::IN)];
            if let Err(errno) = poll(&mut polled, None)
                && errno != Errno::INTR
            {
                return log::error!("{}: it is served no more: {errno}", self.name);
            }
            let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        }
    }

    /// Follows the front end until then.
    fn run(&mut self, changes: &mpsc::Receiver<Volume>) -> Result<(), ConnectError> {
        let mut changed = true;
        while !self.is_ending() {
            self.end_what_is_broken()?;
            if changed {
                self.follow()?;
                if !self.nodes.is_there(&self.store)? {
                    log::info!("{}: the disk was taken away from the guest, or the guest is gone", self.name);
                    return self.clean_up();
                }
            }
            changed = self.store.wait(self.bell.as_fd(), SIZE_LOOK)?;
            if !changed {
                // Emptied before what it tells of is looked at.
                let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
                if let Some(volume) = changes.try_iter().last() {
                    self.volume.1 = volume;
                }
                self.announce_size()?;
            }
        }
        Ok(())
    }

    /// Does what the front end's state asks for.
    fn follow(&mut self) -> Result<(), ConnectError> {
        while !self.is_ending() {
            match self.device.front_changed() {
                Ok(BackStep::Wait) => return Ok(()),
                Ok(BackStep::Connect(rings)) => self.connect(&rings)?,
                Ok(BackStep::Disconnect) => {
                    self.goings.inform(clock(), || format!("{}: the front end lets go", self.name));
                    self.stop_queues();
                    self.device.disconnected()?;
                }
                // The device is closed with the reason; the front end may begin again.
                Err(error @ ConnectError::Key { .. }) => self.warn(|| error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Complains of the front end, as far as the log has room for that.
    fn warn(&self, what: impl FnOnce() -> String) {
        self.refusals.warn(clock(), || format!("{}: {}", self.name, what()));
    }

    fn is_ending(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The workers have ended, and so does the server: the rings, of which nothing was taken, and the nodes are the next one's.
    fn leave(&self) {
        log::info!(
            "{}: the server ends before the guest's rings are served; they are the next one's",
            self.name
        );
        self.stopping.store(true, Ordering::Release);
    }

    fn connect(&mut self, rings: &FrontParameters) -> Result<(), ConnectError> {
        let ledger = self.ledger.as_ref().expect("it has not ended");
        let places = ledger.begin(&self.nodes.whose(&self.store)?, rings).map_err(|error| error.to_string());
        let started = places.map_err(StartError::from).and_then(|places| self.start(rings, places, false));
        self.conclude(rings, started)
    }

    /// Tells the front end what has become of its rings.
    fn conclude(
        &mut self,
        rings: &FrontParameters,
        started: Result<(), StartError>,
    ) -> Result<(), ConnectError> {
        match started {
            Ok(()) => {
                let pages = rings.queues.first().map_or(0, |queue| queue.ring_refs.len());
                let queues = rings.queues.len();
                self.comings.inform(clock(), || {
                    format!("{}: {queues} queues with rings of {pages} pages", self.name)
                });
                self.announce()
            }
            Err(StartError::Ending) => {
                self.leave();
                Ok(())
            }
            Err(StartError::Failed(reason)) => {
                self.warn(|| format!("its rings cannot be served: {reason}"));
                Ok(self.device.refuse(&reason)?)
            }
        }
    }

    /// Starts all queues, or none.
    fn start(
        &mut self,
        rings: &FrontParameters,
        places: Vec<Place>,
        resumes: bool,
    ) -> Result<(), StartError> {
        let common = Arc::new(Common {
            name: self.name.clone(),
            volume: self.volume.0,
            domain: self.domain.into(),
            abi: rings.abi,
            persistent: rings.persistent,
            max_indirect_segments: self.features.max_indirect_segments,
            stats: self.stats.clone(),
            bell: self.bell.clone(),
            stopping: self.stopping.clone(),
            awaits_another: std::mem::take(&mut self.is_new),
        });
        for (index, (queue, place)) in rings.queues.iter().zip(places).enumerate() {
            let worker = &self.workers[(self.first_worker + index) % self.workers.len()];
            match Queue::start(worker, &common, index, queue, place, resumes) {
                Ok(queue) => self.queues.push(queue),
                Err(reason) => {
                    self.stop_queues();
                    return Err(reason);
                }
            }
        }
        Ok(())
    }

    /// A ring whose front end breaks the protocol ends the device.
    fn end_what_is_broken(&mut self) -> Result<(), ConnectError> {
        let Some(reason) = self.queues.iter().find_map(Queue::broken) else { return Ok(()) };
        self.warn(|| format!("the disk is closed: {reason}"));
        self.stop_queues();
        Ok(self.device.refuse(&reason)?)
    }

    fn announce(&mut self) -> Result<(), ConnectError> {
        let (_, properties) = describe(&self.volume.1);
        self.announced = properties.sectors;
        Ok(self.device.connected(&properties)?)
    }

    fn announce_size(&mut self) -> Result<(), ConnectError> {
        let (_, properties) = describe(&self.volume.1);
        if !self.queues.is_empty() && properties.sectors != self.announced {
            self.announced = properties.sectors;
            log::info!("{}: it has {} sectors now", self.name, properties.sectors);
            self.device.resized(&properties)?;
        }
        Ok(())
    }

    fn stop_queues(&mut self) {
        // All at once, then one after the other waited for.
        self.queues.iter().for_each(Queue::close);
        self.queues.drain(..).for_each(Queue::join);
    }

    /// The disk is gone, and all that was kept for it goes too.
    fn clean_up(&mut self) -> Result<(), ConnectError> {
        self.stop_queues();
        if let Some(Err(error)) = self.ledger.take().map(LedgerFile::remove) {
            log::warn!("{}: {error}", self.name);
        }
        Ok(self.nodes.remove(&mut self.store)?)
    }

    /// Has everything answered that was taken.
    fn end(&mut self) {
        self.stop_queues();
    }
}

#[cfg(test)]
mod tests;
