//! A real server without exports: a worker over io_uring and two null devices, and the control API on it.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blockwork_daemon::{Control, ControlHandle, ControlState};
use blockwork_engine::{
    Bio, Completion, Context, Done, Flags, LeafId, LeafLayer, LeafSource, NodeId, NodeInfo, NodeKind, Op,
    Port, PortState, Sector, Stats, Volume, VolumeId, Worker, WorkerConfig, WorkerHandle,
};
use blockwork_insight::trace::TraceHub;
use blockwork_leaf::NullSource;
use blockwork_memory::{Segment, Segments};
use blockwork_uring::{Uring, UringConfig};

/// Longest time that anything here may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A name that tries to be a query, a terminal command, and JSON.
pub const HOSTILE: &str = "disk/a b&volume=x\u{1b}[2J\"%41";

pub struct Rig {
    pub folder: tempfile::TempDir,
    pub socket: PathBuf,
    pub hub: Arc<TraceHub>,
    pub control: Option<ControlHandle>,
    worker: WorkerHandle<Uring>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    pub fn new() -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let names = ["disk/null", HOSTILE];
        let sources: Vec<Arc<dyn LeafSource>> = names
            .iter()
            .map(|name| Arc::new(NullSource::new(1 << 30, name).unwrap()) as Arc<dyn LeafSource>)
            .collect();
        let info = |(name, minor): (&&str, u32)| NodeInfo {
            name: (*name).to_owned(),
            kind: NodeKind::Leaf,
            device: (259, minor),
        };
        let stats = Arc::new(Stats::new(names.iter().zip(0..).map(info).collect()));
        let hub = TraceHub::new(&stats.nodes());
        let volume = |(source, n): (&Arc<dyn LeafSource>, u16)| {
            let layer = LeafLayer::new(LeafId(n), NodeId(n), source.sectors(), source.limits().clone());
            Volume::new(source.name(), Arc::new(layer), n == 1)
        };
        let volumes: Arc<[Volume]> = sources.iter().zip(0..).map(volume).collect();
        let state = ControlState::new(stats.clone(), hub.clone());
        volumes.iter().for_each(|volume| state.volumes().add(volume, vec!["nbd:unix:/x".to_owned()]));
        sources.iter().for_each(|source| state.disks().add(source.clone()));
        let (worker, thread) = start(volumes, sources, &stats, &hub);
        let socket = folder.path().join(format!("{}.sock", std::process::id()));
        let control = Some(Control::start(state, &socket).unwrap());
        Rig { folder, socket, hub, control, worker, thread: Some(thread) }
    }

    /// Reads 4 KiB of a volume at sector 8, and waits for it.
    pub fn read(&self, volume: u16) {
        let (done, wait) = mpsc::channel();
        let port = Reader { volume: VolumeId(volume), done: Some(done) };
        self.worker.run(move |worker| {
            worker.add_port(Box::new(port));
        });
        wait.recv_timeout(PATIENCE).expect("a read of a null device completes");
    }

    /// Waits until somebody traces, or nobody.
    pub fn until_traced(&self, traced: bool) {
        let wanted = self.hub.wanted();
        let start = Instant::now();
        while wanted.load(Ordering::Relaxed) != traced {
            assert!(start.elapsed() < PATIENCE, "traced is not {traced}");
            std::thread::yield_now();
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.control.take());
        self.worker.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn start(
    volumes: Arc<[Volume]>,
    sources: Vec<Arc<dyn LeafSource>>,
    stats: &Stats,
    hub: &Arc<TraceHub>,
) -> (WorkerHandle<Uring>, JoinHandle<()>) {
    let (counters, tracer) = (stats.worker(), hub.tracer(0));
    let (handles, handle) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let leaves = sources.into_iter().zip(0..).map(|(source, n)| (NodeId(n), source)).collect();
        let mut config = WorkerConfig::new(volumes, leaves, counters);
        config.tracer = tracer;
        let mut worker = Worker::new(Uring::new(&UringConfig::default()).unwrap(), config);
        handles.send(worker.handle()).unwrap();
        worker.run().unwrap();
    });
    (handle.recv().unwrap(), thread)
}

/// Does one read, tells, and closes.
struct Reader {
    volume: VolumeId,
    done: Option<mpsc::Sender<()>>,
}

impl Port<Uring> for Reader {
    fn open(&mut self, cx: &mut Context<'_, Uring>) {
        let memory = Segment::new(cx.pool().get(4096), 0, 4096);
        let bio = Bio::with_data(Op::Read, Flags::SYNC, Sector(8), Segments::from_iter([memory]));
        cx.submit(self.volume, 0, bio);
    }
    fn event(&mut self, _: &mut Context<'_, Uring>, _: u32, _: Completion) {}
    fn done(&mut self, _: &mut Context<'_, Uring>, done: Done) {
        done.result.unwrap();
        self.done.take().unwrap().send(()).unwrap();
    }
    fn turn(&mut self, _: &mut Context<'_, Uring>) -> PortState {
        if self.done.is_none() { PortState::Closed } else { PortState::Open }
    }
    fn drain(&mut self, _: &mut Context<'_, Uring>) {}
}
