//! The workers over some volumes: started together, and taken down in an order that loses nothing.
//!
//! Down: workers (they answer what was asked, checkpoint what they sync, and flush) ─▶ layers (arrays record that they are
//! clean) ─▶ the log of writes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};
use blockwork_engine::{
    Decision, Errno, LeafId, LeafSource, Nanos, NodeId, Quiescence, Stats, Volume, Waiting, Worker,
    WorkerConfig, WorkerHandle,
};
use blockwork_insight::LogWrites;
use blockwork_insight::trace::TraceHub;
use blockwork_uring::{Io, Uring, UringConfig, WakesWith};
use blockwork_volume::Assembly;

use super::keeper::NO_THREAD;
use super::served::Served;

/// How workers are started.
#[derive(Debug, Default)]
pub(crate) struct WorkersConfig {
    /// How many.
    pub(crate) count: usize,
    /// Who does their I/O.
    pub(crate) io: Io,
    /// They look for completions for so many microseconds before they sleep.
    pub(crate) poll: Option<u16>,
    /// What their sleeps end with.
    pub(crate) wakes_with: WakesWith,
    /// Where everything that is written is recorded.
    pub(crate) log_writes: Option<PathBuf>,
}

/// All leaves, by their numbers.
pub(crate) type Leaves = Arc<[(NodeId, Arc<dyn LeafSource>)]>;

/// Who hears that a worker's thread has ended: of its own accord, or as it was asked to.
pub(crate) type OnEnd = Arc<dyn Fn(u16) + Send + Sync>;

/// Workers that run.
pub(crate) struct Workers {
    pub(crate) served: Arc<Served>,
    pub(crate) handles: Vec<WorkerHandle<Uring>>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) hub: Arc<TraceHub>,
    pub(crate) log: Option<Arc<LogWrites>>,
    /// What the volumes were made of; a disk may come.
    pub(crate) assembly: Arc<Mutex<Assembly>>,
    threads: Vec<WorkerThread>,
    on_end: OnEnd,
    io: Io,
}

impl Workers {
    /// Starts them. When one ends, `on_end` is told its number.
    pub(crate) fn start(
        config: &WorkersConfig,
        assembly: Assembly,
        volumes: Vec<Volume>,
        on_end: OnEnd,
    ) -> Result<Workers> {
        let (stats, leaves) = (Arc::new(assembly.stats()), assembly.leaves());
        let hub = TraceHub::new(&stats.nodes());
        let log = config.log_writes.as_deref().map(|path| log_writes(path, &assembly)).transpose()?;
        let parts = Parts { volumes: volumes.into(), leaves, stats, log };
        let quiescence = Quiescence::default();
        let mut uring =
            UringConfig { io: config.io, wakes_with: config.wakes_with, ..UringConfig::default() };
        uring.look = config.poll.map_or(uring.look, |us| Nanos::micros(us.into()));
        let (mut handles, mut threads, mut who) = (Vec::new(), Vec::new(), None);
        for index in (0u16..).take(config.count) {
            let mut worker = parts.config();
            worker.index = index;
            worker.tracer = hub.tracer(index);
            worker.quiescence = quiescence.clone();
            worker.waiting = match config.poll {
                None => Waiting::Measured,
                Some(0) => Waiting::Asleep,
                Some(_) => Waiting::Looking,
            };
            let ended = Ended { index, on_end: on_end.clone() };
            let ((handle, decision), thread) = start_worker(worker, ended, &uring, Worker::run)?;
            if who.is_none() || decision.value == Io::Threads.name() {
                who = Some(decision);
            }
            handles.push(handle);
            threads.push(thread);
        }
        let Parts { volumes, stats, log, .. } = parts;
        let served = Served::new(&volumes, handles.clone(), stats.clone(), hub.clone());
        let mut assembly = assembly;
        assembly.begin_to_serve();
        let (served, assembly) = (Arc::new(served), Arc::new(Mutex::new(assembly)));
        let workers = Workers { served, handles, stats, hub, log, assembly, threads, on_end, io: config.io };
        workers.watch_locks(quiescence);
        workers.watch_decisions(who);
        Ok(workers)
    }

    /// Has the statistics tell what is in force on the disks, as long as they are open; `io` is who does their I/O: threads, where some
    /// workers have no ring, for want of memory.
    fn watch_decisions(&self, io: Option<Decision>) {
        let assembly = Arc::downgrade(&self.assembly);
        self.stats.watch_decisions(move || {
            let Some(assembly) = assembly.upgrade() else { return Vec::new() };
            let leaves = assembly.lock().unwrap_or_else(PoisonError::into_inner).leaves();
            let all = leaves.iter().map(|(node, leaf)| (*node, with_io(io.as_ref(), leaf.decisions())));
            all.filter(|(_, decisions)| !decisions.is_empty()).collect()
        });
    }

    /// Has the statistics tell of all locks that the workers share, as long as there is something to be served.
    fn watch_locks(&self, quiescence: Quiescence) {
        let (served, assembly) = (Arc::downgrade(&self.served), Arc::downgrade(&self.assembly));
        let handles = self.handles.clone();
        self.stats.watch_locks(move || {
            let (Some(served), Some(assembly)) = (served.upgrade(), assembly.upgrade()) else {
                return Vec::new();
            };
            let leaves = assembly.lock().unwrap_or_else(PoisonError::into_inner).leaves();
            let leaves = leaves.iter().flat_map(|(_, leaf)| leaf.locks());
            let workers = handles.iter().enumerate().flat_map(|(n, one)| one.locks(&format!("worker {n}")));
            let volumes = served.all();
            let layers = volumes.iter().flat_map(|(_, volume)| volume.locks());
            layers.chain(leaves).chain(workers).chain([quiescence.locks()]).collect()
        });
    }

    /// Has the layers take up what is due: an array its resync.
    pub(crate) fn open_layers(&self) {
        self.handles[0].run(Worker::open);
    }

    fn assembly(&self) -> MutexGuard<'_, Assembly> {
        self.assembly.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disks that are open now.
    pub(crate) fn leaves(&self) -> Leaves {
        self.assembly().leaves()
    }

    /// The end is near: what clients wait for and may never come, such as space in a pool, comes no more. They are served until
    /// [`Workers::ask_to_end`].
    pub(crate) fn end_pauses(&self) {
        self.handles.iter().for_each(|handle| handle.run(Worker::end_pauses));
    }

    /// They take nothing new, answer what they have, and end.
    pub(crate) fn ask_to_end(&self) {
        self.handles.iter().for_each(WorkerHandle::stop);
    }

    /// Ends them, in order. What fails on the way, which `note` is told, does not keep the rest from being done.
    pub(crate) fn stop(&mut self, note: &mut dyn FnMut(anyhow::Error)) {
        self.ask_to_end();
        let mut panicked = false;
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(errno)) => note(anyhow!(
                    "the last flush failed ({errno}): what was written since the one before may be lost"
                )),
                Err(_) => {
                    panicked = true;
                    note(anyhow!("a worker has panicked: what was written since the last flush may be lost"))
                }
            }
        }
        // After a panic nobody knows what is on the disks: it is for the next one who opens them to find out.
        if !panicked && let Err(error) = self.close_layers() {
            note(error);
        }
        if let Some(log) = &self.log
            && let Err(error) = log.close()
        {
            note(error.into());
        }
    }

    /// Has the layers record what they have to, on one last worker: those of all volumes, and all arrays, to which a verb may have written
    /// where no volume of them is served.
    fn close_layers(&self) -> Result<()> {
        let served = self.served.all().into_iter().map(|(_, volume)| volume);
        let assembly = self.assembly();
        let arrays = assembly.arrays().map(|array| Volume::new("an array", array, true));
        let parts = Parts {
            volumes: served.chain(arrays).collect(),
            leaves: assembly.leaves(),
            stats: self.stats.clone(),
            log: self.log.clone(),
        };
        drop(assembly);
        let ended = Ended { index: 0, on_end: self.on_end.clone() };
        // What is recorded so must not fail since the rings of the workers before, which the kernel takes apart later, have all the memory.
        let io = if self.io == Io::Uring { Io::Auto } else { self.io };
        let uring = UringConfig { io, ..UringConfig::default() };
        let (_, thread) = start_worker(parts.config(), ended, &uring, Worker::close)?;
        match thread.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(errno)) => Err(anyhow!(
                "arrays or pools could not record that they are in order ({errno}; see above): they are checked when \
                 they are opened next"
            )),
            Err(_) => {
                Err(anyhow!("closing the arrays has panicked: they are checked when they are opened next"))
            }
        }
    }
}

/// What all workers have.
struct Parts {
    volumes: Arc<[Volume]>,
    leaves: Leaves,
    stats: Arc<Stats>,
    log: Option<Arc<LogWrites>>,
}

impl Parts {
    fn config(&self) -> WorkerConfig {
        let mut config = WorkerConfig::new(self.volumes.clone(), self.leaves.clone(), self.stats.worker());
        config.tap = self.log.clone().map(|log| log as _);
        config
    }
}

/// What is in force on a disk, and who does its I/O, if it is of the kind that has any.
fn with_io(io: Option<&Decision>, of_disk: Vec<Decision>) -> Vec<Decision> {
    let Some(io) = io.filter(|_| !of_disk.is_empty()) else { return of_disk };
    let threads = io.value == Io::Threads.name();
    let known = |it: Decision| match it.setting {
        // Whatever was asked for: there is nothing to register buffers with.
        "fixed" if threads && it.value != "off" => {
            let why = "threads do the I/O, and buffers are io_uring's to register".into();
            Decision { value: "off", asked: false, why, ..it }
        }
        _ => it,
    };
    [io.clone()].into_iter().chain(of_disk.into_iter().map(known)).collect()
}

/// Says that a worker's thread has ended, even if it panics.
struct Ended {
    index: u16,
    on_end: OnEnd,
}

impl Drop for Ended {
    fn drop(&mut self) {
        (self.on_end)(self.index);
    }
}

/// What a worker's thread says when it is up: its handle, and who does its I/O.
type Up = Result<(WorkerHandle<Uring>, Decision), blockwork_uring::UringError>;

/// A worker's thread; it ends with what the last flush said.
type WorkerThread = JoinHandle<Result<(), Errno>>;

fn start_worker(
    config: WorkerConfig,
    ended: Ended,
    uring: &UringConfig,
    run: fn(&mut Worker<Uring>) -> Result<(), Errno>,
) -> Result<((WorkerHandle<Uring>, Decision), WorkerThread)> {
    let (send, up) = mpsc::channel::<Up>();
    let uring = *uring;
    let name = format!("blockwork-{}", config.index);
    let thread = thread::Builder::new().name(name).spawn(move || {
        let _ended = ended;
        let env = match Uring::new(&uring) {
            Ok(env) => env,
            Err(error) => {
                let _ = send.send(Err(error));
                return Ok(());
            }
        };
        let decision = env.decision().clone();
        let mut worker = Worker::new(env, config);
        let _ = send.send(Ok((worker.handle(), decision)));
        drop(send);
        run(&mut worker)
    });
    let thread = thread.context(NO_THREAD)?;
    let started = up.recv().context("a worker's thread died while it started")??;
    Ok((started, thread))
}

fn log_writes(path: &Path, assembly: &Assembly) -> Result<Arc<LogWrites>> {
    let leaves: Vec<_> = (0u16..)
        .zip(assembly.leaves().iter())
        .map(|(i, (_, source))| (LeafId(i), source.name().to_owned(), source.sectors()))
        .collect();
    Ok(Arc::new(LogWrites::create(path, &leaves)?))
}
