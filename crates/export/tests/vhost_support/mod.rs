//! A vhost-user server in this process, over one disk by its spec, and the front end of `bench/vhostload`.
#![allow(dead_code, reason = "each test uses what it needs of this")]

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use blockwork_engine::{
    Counter, Errno, Layer, LeafId, LeafLayer, LeafSource, NodeId, NodeInfo, NodeKind, Sectors, Stats, Volume,
    VolumeId, Worker, WorkerConfig, WorkerHandle,
};
use blockwork_export::vhost::{DiskKeeper, GuestPages, VhostOptions, VhostServer, VhostSocket};
use blockwork_format::virtio::blk::{request, status};
use blockwork_uring::{Uring, UringConfig};
use vhostload::{Disk, Finished, Options, Request};

const OPTIONS: VhostOptions = VhostOptions { queues: 8, first_worker: 0, pages: GuestPages::AsIs };

/// Running servers, one for each disk, on the same workers.
pub struct Rig {
    servers: Vec<VhostServer>,
    volumes: Arc<[Volume]>,
    pub folder: tempfile::TempDir,
    pub stats: Arc<Stats>,
    workers: Vec<(WorkerHandle<Uring>, WorkerThread)>,
}

/// How a worker ends: what its last flush said, and how often it called the kernel.
type WorkerThread = JoinHandle<(Result<(), Errno>, u64)>;

impl Rig {
    /// Serves a disk at `socket` in a scratch folder.
    pub fn new(spec: &str, workers: usize) -> Rig {
        Rig::with(spec, workers, false)
    }

    pub fn with(spec: &str, workers: usize, read_only: bool) -> Rig {
        Rig::of(&[spec], workers, read_only)
    }

    /// Serves several disks, each at a socket of its own.
    pub fn of(specs: &[&str], workers: usize, read_only: bool) -> Rig {
        Rig::build(specs, workers, read_only).serve_all(GuestPages::AsIs)
    }

    /// Workers that have disks, and nothing to serve them by yet.
    pub fn unserved(specs: &[&str], workers: usize) -> Rig {
        Rig::build(specs, workers, false)
    }

    /// Serves disks to guests of whose memory that becomes.
    pub fn with_pages(specs: &[&str], workers: usize, pages: GuestPages) -> Rig {
        Rig::build(specs, workers, false).serve_all(pages)
    }

    fn build(specs: &[&str], workers: usize, read_only: bool) -> Rig {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let open =
            |spec: &&str| blockwork_leaf::open(spec, &Default::default()).expect("the disk opens").source;
        let leaves: Arc<[_]> = (0..).map(NodeId).zip(specs.iter().map(open)).collect();
        let info = || NodeInfo { name: "disk".into(), kind: NodeKind::Leaf, device: (0, 0) };
        let stats = Arc::new(Stats::new(leaves.iter().map(|_| info()).collect()));
        let volume = |(index, (node, leaf)): (u16, &(NodeId, Arc<dyn LeafSource>))| {
            let layer = LeafLayer::new(LeafId(index), *node, leaf.sectors(), leaf.limits().clone());
            Volume::new("disk/test", Arc::new(layer), read_only)
        };
        let volumes: Arc<[Volume]> = (0..).zip(leaves.iter()).map(volume).collect();
        let workers: Vec<_> = (0..workers)
            .map(|index| {
                let (volumes, leaves, stats) = (volumes.clone(), leaves.clone(), stats.clone());
                let (send, receive) = mpsc::channel();
                let thread = std::thread::spawn(move || {
                    let env = Uring::new(&UringConfig::default()).expect("io_uring works here");
                    let config = WorkerConfig {
                        index: u16::try_from(index).unwrap(),
                        ..WorkerConfig::new(volumes, leaves, stats.worker())
                    };
                    let mut worker = Worker::new(env, config);
                    send.send(worker.handle()).expect("somebody waits for it");
                    (worker.run(), worker.env.enters())
                });
                (receive.recv().expect("the worker starts"), thread)
            })
            .collect();
        Rig { servers: Vec::new(), volumes, folder, stats, workers }
    }

    fn serve_all(mut self, pages: GuestPages) -> Rig {
        for disk in 0..self.volumes.len() {
            let options = VhostOptions { pages, ..OPTIONS };
            let server = VhostServer::start(
                &self.socket_of(disk),
                self.volume(disk),
                options,
                &self.handles(),
                self.stats.clone(),
            );
            self.servers.push(server.expect("the server starts"));
        }
        self
    }

    fn volume(&self, disk: usize) -> (VolumeId, &Volume) {
        (VolumeId(disk.try_into().expect("a few")), &self.volumes[disk])
    }

    fn handles(&self) -> Vec<WorkerHandle<Uring>> {
        self.workers.iter().map(|(handle, _)| handle.clone()).collect()
    }

    /// A socket for a disk that is away.
    pub fn open(&self, disk: usize, keeper: Arc<dyn DiskKeeper>) -> Arc<VhostSocket> {
        let socket = VhostSocket::open(&self.socket_of(disk), &self.volumes[disk], OPTIONS, Some(keeper));
        Arc::new(socket.expect("the socket is there"))
    }

    /// The disk of such a socket is here.
    pub fn bring(&self, disk: usize, socket: &Arc<VhostSocket>) -> VhostServer {
        VhostServer::at(socket.clone(), self.volume(disk), &self.handles(), self.stats.clone())
    }

    pub fn socket(&self) -> PathBuf {
        self.socket_of(0)
    }

    pub fn socket_of(&self, disk: usize) -> PathBuf {
        self.folder.path().join(format!("socket{disk}"))
    }

    /// The volume has so many sectors now.
    pub fn resize(&self, sectors: Sectors) {
        let limits = blockwork_engine::Limits::default();
        let layer = LeafLayer::new(LeafId(0), NodeId(0), sectors, limits);
        let volume = Volume::new("disk/test", Arc::new(layer), false);
        self.servers[0].set_volume(&volume);
    }

    /// A disk of this server's.
    pub fn disk(&self, options: Options) -> Disk {
        Disk::new(&self.socket(), options).expect("the server takes a front end")
    }

    /// Bytes of guests' memory that are locked for the first disk: none where it is not pinned.
    pub fn locked(&self) -> Option<u64> {
        self.locked_for(0)
    }

    pub fn locked_for(&self, disk: usize) -> Option<u64> {
        self.servers[disk].locked().map(|locked| locked.load(Ordering::Relaxed))
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.stats.get(NodeId(0), counter)
    }

    /// Ends it; gives how often the kernel was called.
    pub fn stop(mut self) -> u64 {
        self.servers.drain(..).for_each(VhostServer::stop);
        self.workers.iter().for_each(|(handle, _)| handle.stop());
        let mut enters = 0;
        for (_, thread) in self.workers.drain(..) {
            let (result, calls) = thread.join().expect("no worker panics");
            assert_eq!(result, Ok(()));
            enters += calls;
        }
        enters
    }
}

/// A server whose worker takes its turns when it is told to, on the thread of the guest.
pub struct Single {
    pub worker: Worker<Uring>,
    pub disk: Disk,
    pub stats: Arc<Stats>,
    server: VhostServer,
    _folder: tempfile::TempDir,
}

impl Single {
    /// Serves what `top` makes of a disk.
    pub fn new(
        leaf: Arc<dyn LeafSource>,
        top: impl FnOnce(Arc<dyn Layer>) -> Arc<dyn Layer>,
        options: Options,
    ) -> Single {
        let node = |name: &str| NodeInfo { name: name.into(), kind: NodeKind::Other("test"), device: (0, 0) };
        let stats = Arc::new(Stats::new(vec![node("disk"), node("top")]));
        let layer = LeafLayer::new(LeafId(0), NodeId(0), leaf.sectors(), leaf.limits().clone());
        let volume = Volume::new("disk/test", top(Arc::new(layer)), false);
        let leaves: Arc<[_]> = Arc::new([(NodeId(0), leaf)]);
        let config = WorkerConfig::new(Arc::new([volume.clone()]), leaves, stats.worker());
        let env = Uring::new(&UringConfig::default()).expect("io_uring works here");
        let worker = Worker::new(env, config);
        let folder = tempfile::tempdir().expect("a scratch folder");
        let socket = folder.path().join("socket");
        let which = VhostOptions { queues: 1, first_worker: 0, pages: GuestPages::AsIs };
        let server =
            VhostServer::start(&socket, (VolumeId(0), &volume), which, &[worker.handle()], stats.clone());
        let disk = Disk::new(&socket, options).expect("the server takes a front end");
        Single { worker, disk, stats, server: server.expect("the server starts"), _folder: folder }
    }

    /// Starts so many reads of 4 KiB, and calls the device if it wants that; how often it did.
    pub fn start(&mut self, reads: usize) -> u64 {
        let Disk { guest, queues, .. } = &mut self.disk;
        let before = queues[0].kicks;
        for n in 0..reads {
            let read = Request { kind: request::IN, sector: n as u64 * 64, len: 4096 };
            queues[0].prepare(guest, read).expect("room");
        }
        queues[0].publish(guest);
        queues[0].kicks - before
    }

    /// How many are answered that were not before. Those that are not shall be told of by a call.
    pub fn answered(&mut self) -> usize {
        let mut answered = 0;
        while let Some(finished) = self.disk.finished(0) {
            assert_eq!(finished.status, status::OK);
            answered += 1;
        }
        self.disk.queues[0].want_calls(&self.disk.guest, true);
        answered
    }

    /// Whether the device has called since this was asked last.
    pub fn is_called(&self) -> bool {
        self.disk.queues[0].sleep(Duration::ZERO)
    }

    /// Ends it.
    pub fn stop(self) {
        let Single { mut worker, server, disk, .. } = self;
        drop(disk);
        let handle = worker.handle();
        // It waits for its queues, which the worker ends.
        let ending = std::thread::spawn(move || {
            server.stop();
            handle.stop();
        });
        assert_eq!(worker.run(), Ok(()));
        ending.join().expect("it does not panic");
    }
}

/// Every kind of ring.
pub fn kinds() -> impl Iterator<Item = Options> {
    let flags = |bits: u32, n: u32| bits >> n & 1 != 0;
    (0..8).map(move |bits| Options {
        packed: flags(bits, 0),
        indirect: flags(bits, 1),
        event_idx: flags(bits, 2),
        ..Options::default()
    })
}

pub fn write(disk: &mut Disk, queue: usize, sector: u64, data: &[u8]) -> Finished {
    let id = disk.queues[queue].next_id().expect("room");
    disk.write_data(queue, id, data);
    disk.run(queue, Request { kind: request::OUT, sector, len: data.len() }).expect("an answer")
}

pub fn read(disk: &mut Disk, queue: usize, sector: u64, len: usize) -> (Finished, Vec<u8>) {
    let finished = disk.run(queue, Request { kind: request::IN, sector, len }).expect("an answer");
    let mut data = vec![0; len];
    disk.read_data(queue, finished.id, &mut data);
    (finished, data)
}
