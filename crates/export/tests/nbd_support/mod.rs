//! A real server in this process: worker threads over io_uring, disks by their specs, and a scratch folder.
#![allow(dead_code, reason = "each test uses what it needs of this")]

pub mod slow;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blockwork_engine::{
    Errno, LeafId, LeafLayer, LeafSource, NodeId, NodeInfo, NodeKind, Stats, Volume, VolumeId, Worker,
    WorkerConfig, WorkerHandle, WriteTap,
};
use blockwork_export::nbd::{Export, Exports, Listener, NbdConfig, Server};
use blockwork_uring::{Uring, UringConfig};

/// A disk to serve.
pub struct Disk {
    pub name: &'static str,
    pub spec: String,
    pub read_only: bool,
    /// Instead of what `spec` says.
    pub source: Option<Arc<dyn LeafSource>>,
}

impl Disk {
    pub fn new(name: &'static str, spec: impl Into<String>) -> Disk {
        Disk { name, spec: spec.into(), read_only: false, source: None }
    }
    pub fn of(name: &'static str, source: Arc<dyn LeafSource>) -> Disk {
        Disk { source: Some(source), ..Disk::new(name, "") }
    }
    pub fn read_only(self) -> Disk {
        Disk { read_only: true, ..self }
    }
}

/// A running server.
pub struct Rig {
    pub server: Server,
    pub folder: tempfile::TempDir,
    pub stats: Arc<Stats>,
    workers: Vec<(WorkerHandle<Uring>, WorkerThread)>,
}

type WorkerThread = JoinHandle<Result<(), Errno>>;

impl Rig {
    /// Serves `disks` at `socket` in a scratch folder, by one worker.
    pub fn new(disks: &[Disk]) -> Rig {
        Rig::with(disks, 1, |_| {})
    }

    /// As `new`, with settings.
    pub fn with(disks: &[Disk], workers: usize, configure: impl FnOnce(&mut NbdConfig)) -> Rig {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let socket = Listener::unix(&folder.path().join("socket")).expect("a socket in a fresh folder");
        Rig::listening(disks, workers, configure, vec![socket], folder)
    }

    /// Two workers, and somebody who hears of what they write.
    pub fn tapped(disks: &[Disk], tap: Arc<dyn WriteTap>) -> Rig {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let socket = Listener::unix(&folder.path().join("socket")).expect("a socket in a fresh folder");
        Rig::start(disks, 2, |_| {}, vec![socket], folder, Some(tap))
    }

    pub fn listening(
        disks: &[Disk],
        workers: usize,
        configure: impl FnOnce(&mut NbdConfig),
        listeners: Vec<Listener>,
        folder: tempfile::TempDir,
    ) -> Rig {
        Rig::start(disks, workers, configure, listeners, folder, None)
    }

    fn start(
        disks: &[Disk],
        workers: usize,
        configure: impl FnOnce(&mut NbdConfig),
        listeners: Vec<Listener>,
        folder: tempfile::TempDir,
        tap: Option<Arc<dyn WriteTap>>,
    ) -> Rig {
        let opened: Vec<_> = disks
            .iter()
            .map(|disk| {
                let open =
                    || blockwork_leaf::open(&disk.spec, &Default::default()).expect("the disk opens").source;
                disk.source.clone().unwrap_or_else(open)
            })
            .collect();
        let node = |i: usize| NodeId(u16::try_from(i).unwrap());
        let stats = Arc::new(Stats::new(
            disks
                .iter()
                .map(|disk| NodeInfo { name: disk.name.into(), kind: NodeKind::Leaf, device: (0, 0) })
                .collect(),
        ));
        let volumes: Arc<[Volume]> = disks
            .iter()
            .zip(&opened)
            .enumerate()
            .map(|(i, (disk, leaf))| {
                let id = LeafId(u16::try_from(i).unwrap());
                let layer = LeafLayer::new(id, node(i), leaf.sectors(), leaf.limits().clone());
                Volume::new(disk.name, Arc::new(layer), disk.read_only)
            })
            .collect();
        let leaves: Arc<[_]> = opened.into_iter().enumerate().map(|(i, leaf)| (node(i), leaf)).collect();
        let exports = volumes
            .iter()
            .enumerate()
            .map(|(i, volume)| Export::new(VolumeId(u16::try_from(i).unwrap()), volume, false));
        let mut config = NbdConfig::new(Exports::of(exports).expect("names are good"));
        configure(&mut config);
        let workers: Vec<_> = (0..workers)
            .map(|index| {
                let (volumes, leaves, stats, tap) =
                    (volumes.clone(), leaves.clone(), stats.clone(), tap.clone());
                let (send, receive) = mpsc::channel();
                let thread = std::thread::spawn(move || {
                    let env = Uring::new(&UringConfig::default()).expect("io_uring works here");
                    let config = WorkerConfig {
                        index: u16::try_from(index).unwrap(),
                        tap,
                        ..WorkerConfig::new(volumes, leaves, stats.worker())
                    };
                    let mut worker = Worker::new(env, config);
                    send.send(worker.handle()).expect("somebody waits for it");
                    worker.run()
                });
                (receive.recv().expect("the worker starts"), thread)
            })
            .collect();
        let handles: Vec<_> = workers.iter().map(|(handle, _)| handle.clone()).collect();
        let server = Server::start(config, listeners, &handles).expect("the server starts");
        Rig { server, folder, stats, workers }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The URI of an export.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Asks the workers to stop; does not wait.
    pub fn ask_to_stop(&self) {
        self.workers.iter().for_each(|(worker, _)| worker.stop());
    }

    /// Stops the server; its workers' results.
    pub fn stop(&mut self) -> Vec<Result<(), Errno>> {
        self.ask_to_stop();
        self.workers.drain(..).map(|(_, thread)| thread.join().expect("the worker did not panic")).collect()
    }

    /// Connects, without a word.
    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(self.socket()).expect("the server listens")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // a worker that hangs must not hide why the test failed
        }
        for result in self.stop() {
            result.expect("the last flush succeeds");
        }
    }
}

/// Runs a client; its output, which must be a success.
pub fn run(command: &mut Command) -> String {
    let output = try_run(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs a client, however it ends; but not for more than a minute.
pub fn try_run(command: &mut Command) -> Output {
    let mut limited = Command::new("timeout");
    limited.arg("60").arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            limited.env(key, value);
        }
    }
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    limited.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a script with libnbd's Python module; `uri` is its variable for the export.
pub fn python(uri: &str, script: &str) -> String {
    let script = format!("import nbd, errno, sys\nuri = {uri:?}\n{script}");
    run(Command::new("/usr/bin/python3").args(["-c", &script]))
}

/// Waits until something is so.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "still not so: {what}");
        std::thread::yield_now();
    }
}

/// A file of `len` bytes that repeat nowhere.
pub fn file_of_noise(path: &Path, len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    std::fs::write(path, &bytes).expect("the file is written");
    bytes
}

/// The simplest client: fixed newstyle, GO, simple replies; and whatever bytes a test wants.
pub struct Raw {
    pub stream: UnixStream,
}

impl Raw {
    pub fn connect(rig: &Rig) -> Raw {
        let stream = rig.connect();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut raw = Raw { stream };
        assert_eq!(raw.read(18), *b"NBDMAGICIHAVEOPT\0\x03");
        raw
    }

    /// Up to the transmission phase of the default export.
    pub fn go(rig: &Rig) -> Raw {
        let mut raw = Raw::connect(rig);
        raw.write(&3u32.to_be_bytes());
        raw.option(7, &[0; 6]);
        while raw.option_reply().0 != 1 {}
        raw
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server takes it");
    }

    pub fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    /// Whether the server has closed, after whatever it had to say.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    /// Bytes that have come and were not read.
    pub fn waiting(&self) -> usize {
        usize::try_from(rustix::io::ioctl_fionread(&self.stream).unwrap()).unwrap()
    }

    pub fn option(&mut self, number: u32, data: &[u8]) {
        let len = u32::try_from(data.len()).unwrap().to_be_bytes();
        self.write(&[&b"IHAVEOPT"[..], &number.to_be_bytes(), &len, data].concat());
    }

    /// Type and data.
    pub fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let head = self.read(20);
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        (word(12), self.read(word(16) as usize))
    }

    pub fn request(&mut self, flags: u16, command: u16, cookie: u64, offset: u64, len: u32) {
        self.write(&request(flags, command, cookie, offset, len));
    }

    /// Errno and cookie of a simple reply.
    pub fn reply(&mut self) -> (u32, u64) {
        let head = self.read(16);
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        (
            u32::from_be_bytes(head[4..8].try_into().unwrap()),
            u64::from_be_bytes(head[8..].try_into().unwrap()),
        )
    }
}

/// A compact request.
pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    [
        &0x2560_9513u32.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &command.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}
