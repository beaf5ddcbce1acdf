//! A server in this process, its mount, and guards for what tests put over it: whatever a failing test leaves
//! undone is undone when its guards are dropped, in the reverse order of making.

#![allow(dead_code)] // each test file uses its part

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use blockwork_engine::{
    Counter, Errno, Flags, Layer, LeafId, LeafLayer, LeafSource, Limits, NodeId, NodeInfo, NodeKind, Op,
    Sector, Sectors, Stats, Volume, VolumeId, Worker, WorkerConfig, WorkerHandle,
};
use blockwork_export::fuse::{self, Files, Mount, Options, Served};
use blockwork_layer::{Stripe, Striped};
use blockwork_leaf::OpenOptions;
use blockwork_uring::{Uring, UringConfig};

use crate::tap::{Log, Seen};

/// A disk to serve.
pub struct Disk {
    /// The volume's name.
    pub name: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Logical block size, bytes.
    pub block: u32,
    /// Striped over the two halves of the file, in chunks of this size.
    pub chunk: Option<Sectors>,
}

impl Disk {
    /// A sparse file of `bytes` in `dir`.
    pub fn sparse(dir: &Path, name: &'static str, bytes: u64) -> Disk {
        let path = dir.join(name.replace('/', "-"));
        File::create(&path).unwrap().set_len(bytes).unwrap();
        Disk { name, path, read_only: false, block: 512, chunk: None }
    }

    /// What lies over the leaf: `node` is for the stripes, if there are any.
    fn stack(&self, leaf: LeafLayer, node: NodeId) -> Arc<dyn Layer> {
        let (leaf, sectors): (Arc<dyn Layer>, _) = (Arc::new(leaf), self.sectors());
        let Some(chunk) = self.chunk else { return leaf };
        let half = |start| Stripe { below: leaf.clone(), start: Sector(start) };
        Arc::new(Striped::new(node, chunk, vec![half(0), half(sectors.0 / 2)], sectors).unwrap())
    }

    fn sectors(&self) -> Sectors {
        Sectors::from_bytes_floor(std::fs::metadata(&self.path).unwrap().len())
    }

    fn source(&self) -> Arc<dyn LeafSource> {
        blockwork_leaf::open(text(&self.path), &OpenOptions::default()).unwrap().source
    }
}

/// A worker with a FUSE export.
pub struct Server {
    mount: Option<Mount>,
    handle: WorkerHandle<Uring>,
    thread: Option<JoinHandle<Result<(), Errno>>>,
    stats: Arc<Stats>,
    tap: Arc<Log>,
    /// The mount point.
    pub path: PathBuf,
}

impl Server {
    /// Serves `disks` at `path`.
    pub fn start(path: &Path, disks: &[Disk]) -> Server {
        let sources: Vec<Arc<dyn LeafSource>> = disks.iter().map(Disk::source).collect();
        let node = |name: &str, kind| NodeInfo { name: name.into(), kind, device: (0, 0) };
        let nodes = sources.iter().map(|source| node(source.name(), NodeKind::Leaf));
        let nodes = nodes.chain(disks.iter().map(|disk| node(disk.name, NodeKind::Striped)));
        let stats = Arc::new(Stats::new(nodes.collect()));
        let volumes: Arc<[Volume]> = (0u16..)
            .zip(disks.iter().zip(&sources))
            .map(|(i, (disk, source))| {
                let limits = Limits { logical_block_size: disk.block, ..source.limits().clone() };
                let leaf = LeafLayer::new(LeafId(i), NodeId(i), source.sectors(), limits);
                let stripes = NodeId(u16::try_from(disks.len()).unwrap() + i);
                Volume::new(disk.name, disk.stack(leaf, stripes), disk.read_only)
            })
            .collect();
        let leaves = (0u16..).zip(sources).map(|(i, source)| (NodeId(i), source)).collect();
        let served = |(i, volume)| Served::new(VolumeId(i), volume, false);
        let files = Files::of((0u16..).zip(volumes.iter()).map(served)).unwrap();
        let (session, mount) = fuse::mount(path, &files, Options::default()).unwrap();
        let tap = Arc::new(Log::default());
        let config = WorkerConfig {
            tap: Some(tap.clone()),
            ..WorkerConfig::new(volumes.clone(), leaves, stats.worker())
        };
        let (send, receive) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut worker = Worker::new(Uring::new(&UringConfig::default()).unwrap(), config);
            send.send(worker.handle()).unwrap();
            worker.add_port(Box::new(session.into_port()));
            worker.run()
        });
        let handle = receive.recv().expect("the worker starts");
        Server { mount: Some(mount), handle, thread: Some(thread), stats, tap, path: path.to_owned() }
    }

    /// A counter of the `disk`-th leaf.
    pub fn count(&self, disk: u16, counter: Counter) -> u64 {
        self.stats.get(NodeId(disk), counter)
    }

    /// What has altered the leaves so far, in order.
    pub fn altered(&self) -> Vec<(Op, Flags)> {
        self.alterations().map(|(op, flags, _)| (op, flags)).collect()
    }

    /// The lengths of all requests of one operation so far.
    pub fn altered_bytes(&self, wanted: Op) -> Vec<u64> {
        self.alterations().filter(|(op, ..)| *op == wanted).map(|(_, _, nr)| nr.bytes()).collect()
    }

    fn alterations(&self) -> impl Iterator<Item = (Op, Flags, Sectors)> {
        self.tap.so_far().into_iter().filter_map(|seen| match seen {
            Seen::Altered(op, flags, _, nr) => Some((op, flags, Sectors(nr))),
            Seen::FlushStarted | Seen::Flushed => None,
        })
    }

    /// Stops the worker and leaves the mount as a killed server would.
    pub fn kill(&mut self) {
        self.handle.stop();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }

    /// Unmounts, stops, and gives what the worker's last flush said.
    pub fn stop(mut self) -> Result<(), Errno> {
        self.mount.take().unwrap().unmount().unwrap();
        self.handle.stop();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.mount.take());
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs a program, which must succeed; gives its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{text}", output.status);
    text.trim().to_owned()
}

/// A path as text.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A loop device over a file.
pub struct Loop {
    /// `/dev/loopN`.
    pub device: String,
}

impl Loop {
    /// With direct I/O.
    pub fn over(file: &Path) -> Loop {
        Loop { device: run("losetup", &["--find", "--show", "--direct-io=on", text(file)]) }
    }

    /// A file of its folder in sysfs.
    pub fn sysfs(&self, name: &str) -> String {
        let path = format!("/sys/block/{}/{name}", self.device.trim_start_matches("/dev/"));
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}")).trim().to_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

/// A mounted file system.
pub struct Mounted {
    path: PathBuf,
}

impl Mounted {
    /// Mounts `device` at a new folder `path`.
    pub fn new(device: &str, path: &Path) -> Mounted {
        std::fs::create_dir_all(path).unwrap();
        run("mount", &[device, text(path)]);
        Mounted { path: path.to_owned() }
    }

    /// Unmounts, which must succeed.
    pub fn unmount(self) {
        run("umount", &[text(&self.path)]);
        std::mem::forget(self);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

/// Bytes that look like nothing, from a seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(&mut next).take(len.div_ceil(8)).flatten().collect();
    bytes.truncate(len);
    bytes
}
