//! What every end-to-end test needs: the real `blockwork` binary as a process, scratch folders, real clients, and guards
//! that undo whatever a failing test leaves behind (servers, mounts, loop devices), in the reverse order of making.
//!
//! Nothing here sleeps for a while and hopes: a server is up when it says `ready`, and everything else is waited for by
//! looking at it, up to [`PATIENCE`].

pub mod chance;
pub mod fs;
pub mod lvm;
pub mod md;
pub mod nbd;
pub mod nfs;
pub mod thin;
pub mod vhost;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The command under test.
pub const BLOCKWORK: &str = env!("CARGO_BIN_EXE_blockwork");
/// Longest wait for anything that should happen soon: generous, for machines that are busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Debian's package of each program that tests call.
const PACKAGES: &[(&str, &str)] = &[
    ("blkparse", "blktrace"),
    ("certtool", "gnutls-bin"),
    ("chattr", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("fio", "fio"),
    ("fstrim", "util-linux"),
    ("ganesha.nfsd", "nfs-ganesha"),
    ("losetup", "mount"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("/usr/bin/python3", "python3-libnbd"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("sfdisk", "fdisk"),
    ("sgdisk", "gdisk"),
    ("systemd-socket-activate", "systemd"),
    ("xfs_repair", "xfsprogs"),
];

/// A program to run. One that is not there fails the test with the name of its package.
pub fn tool(name: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let also = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(also).map(|folder| folder.join(name));
    places.find(|place| place.exists()).map(Command::new).unwrap_or_else(|| {
        let package = PACKAGES.iter().find(|(tool, _)| *tool == name).map_or(name, |(_, package)| package);
        panic!("{name} is not installed: it is in Debian's package {package}; scripts/install-test-tools installs all");
    })
}

/// Runs a program where a system call fails with EPERM: a seccomp filter, as Docker's default profile has it.
const FORBIDDEN: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, int(sys.argv[1])), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
text = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(steps), ctypes.addressof(text)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[2], sys.argv[2:])
"#;

/// io_uring_setup(2) and pidfd_getfd(2), which such profiles forbid, by their numbers: the same on every machine.
const IO_URING_SETUP: &str = "425";
pub const PIDFD_GETFD: &str = "438";

/// What python3 is given to run this program where a system call is forbidden; the program's own arguments follow.
pub fn without_call(number: &str) -> [&str; 4] {
    ["-c", FORBIDDEN, number, BLOCKWORK]
}

/// Runs a command to its end, however it ends, but not for ever.
pub fn output(command: &mut Command) -> Output {
    let mut limited = Command::new("timeout");
    limited.arg("120").arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(key, value),
            None => limited.env_remove(key),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    limited.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a command, which must succeed; its standard output.
pub fn run(command: &mut Command) -> String {
    let done = output(command);
    assert!(done.status.success(), "{command:?}: {}\n{}", done.status, both(&done));
    text(&done.stdout)
}

/// Runs a command, which must not succeed; all that it printed.
pub fn run_refused(command: &mut Command) -> String {
    let done = output(command);
    assert!(!done.status.success(), "{command:?} succeeded:\n{}", both(&done));
    both(&done)
}

/// What `thin_dump` makes of a pool's metadata, with which `thin_check` is content.
pub fn thin_dump(metadata: &str) -> String {
    let checked = output(tool("thin_check").args(["-q", metadata]));
    assert!(checked.status.success(), "{}", both(&checked));
    run(tool("thin_dump").arg(metadata))
}

/// Standard output and error, for reading.
pub fn both(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A process's resident memory, bytes.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("every process has it");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
    kib << 10
}

/// Waits until something is so.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "still not so after {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

/// A folder for one test: disks, sockets, and the control sockets of its servers.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(tempfile::Builder::new().prefix("blockwork-e2e-").tempdir().expect("a scratch folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The same as text.
    pub fn at(&self, name: &str) -> String {
        self.path(name).to_str().expect("our names are text").to_owned()
    }

    /// A sparse file of `bytes`.
    pub fn sparse(&self, name: &str, bytes: u64) -> String {
        std::fs::File::create(self.path(name)).and_then(|file| file.set_len(bytes)).expect("a sparse file");
        self.at(name)
    }

    /// A file of `bytes` that repeat nowhere, and are others for each `seed`.
    pub fn noise(&self, name: &str, bytes: usize, seed: u64) -> Vec<u8> {
        let content = noise(bytes, seed);
        std::fs::write(self.path(name), &content).expect("the file is written");
        content
    }

    /// A file of text.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), content).expect("the file is written");
        self.at(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("the file is read")
    }

    /// `blockwork ARGS`, with its control sockets in this folder.
    pub fn blockwork<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(BLOCKWORK);
        command.args(args).current_dir(self.0.path()).env("BLOCKWORK_RUN_DIR", self.run_dir());
        command.env_remove("RUST_LOG").env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
        command
    }

    /// The same where the ring is forbidden, so that only threads can do the I/O.
    pub fn without_ring<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        self.without(IO_URING_SETUP, args)
    }

    /// The same where the system call of that number is forbidden.
    pub fn without<S: AsRef<OsStr>>(&self, call: &str, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = tool("/usr/bin/python3");
        command.current_dir(self.0.path()).env("BLOCKWORK_RUN_DIR", self.run_dir());
        command.args(without_call(call)).args(args);
        command
    }

    /// The same with so many files open at most: its soft and its hard limit.
    pub fn with_descriptors<S: AsRef<OsStr>>(
        &self,
        soft: u32,
        hard: u32,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = tool("prlimit");
        command.current_dir(self.0.path()).env("BLOCKWORK_RUN_DIR", self.run_dir());
        command.env_remove("RUST_LOG").env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
        command.arg(format!("--nofile={soft}:{hard}")).arg(BLOCKWORK).args(args);
        command
    }

    pub fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    /// `blockwork serve ARGS` over the unix socket `socket` of this folder.
    pub fn serve<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Server {
        let mut command = self.blockwork(["serve", "--nbd", "unix:socket"]);
        Server::start(command.args(args))
    }

    /// `blockwork serve ARGS`, which must be refused with exit code 1; what it said.
    pub fn refused<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        self.ends_with(1, args)
    }

    /// The same of what is wrong with the command line itself: exit code 2.
    pub fn misused<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        self.ends_with(2, args)
    }

    fn ends_with<S: AsRef<OsStr>>(&self, code: i32, args: impl IntoIterator<Item = S>) -> String {
        let mut command = self.blockwork(["serve", "--nbd", "unix:refused"]);
        let done = output(command.args(args));
        assert_eq!(done.status.code(), Some(code), "{command:?}: {}", both(&done));
        assert_eq!(text(&done.stdout), "", "a server that is refused is not ready");
        let said = text(&done.stderr);
        assert!(said.contains("blockwork: error: "), "{said}");
        said
    }

    /// What the one server of this folder answers on its control socket.
    pub fn ask(&self, path: &str) -> serde_json::Value {
        serde_json::from_str(&run(&mut self.http(path))).expect("JSON")
    }

    /// What it answers to who wants something of it, and the status.
    pub fn post(&self, path: &str, body: &str) -> (serde_json::Value, u16) {
        let said = run(self.http(path).args(["-d", body, "-w", "\n%{http_code}"]));
        let (answer, status) = said.rsplit_once('\n').expect("two lines");
        (serde_json::from_str(answer).expect("JSON"), status.parse().expect("a number"))
    }

    /// curl of a path of its control socket.
    pub fn http(&self, path: &str) -> Command {
        let mut sockets = std::fs::read_dir(self.path("run")).expect("the folder of control sockets");
        let socket = sockets.next().expect("a server's").expect("it can be read").path();
        let mut curl = tool("curl");
        curl.args(["-sS", "--max-time", "60", "--unix-socket"])
            .arg(socket)
            .arg(format!("http://localhost{path}"));
        curl
    }

    /// The URI of an export of [`Scratch::serve`]'s server.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.at("socket"))
    }
}

/// `bytes` that repeat nowhere (xorshift).
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend(state.to_le_bytes());
    }
    content.truncate(bytes);
    content
}

/// A `blockwork serve` that has said `ready`. Dropped, it is killed.
pub struct Server {
    child: Child,
    /// What stands after `ready`.
    pub addresses: Vec<String>,
    stderr: Transcript,
    stdout: Option<JoinHandle<String>>,
}

/// A disk that is a file of FUSE's, behind which another server does to requests what a table says.
pub struct FuseDisk {
    pub file: String,
    // In this order: nothing is left mounted by a server that has not ended.
    _server: Server,
    _left: fs::LeftMount,
}

impl FuseDisk {
    /// A file of so many MiB whose every request takes some time.
    pub fn slow(scratch: &Scratch, disk: &str, mib: u64, delay_ms: u32) -> FuseDisk {
        FuseDisk::of(scratch, &format!("0 {} delay {disk} 0 {delay_ms}\n", mib * 2048))
    }

    /// A file of so many sectors, of which the 8 from `bad` on can neither be read nor written: EIO, by the kernel.
    pub fn with_bad_sectors(scratch: &Scratch, disk: &str, sectors: u64, bad: u64) -> FuseDisk {
        let (behind, left) = (bad + 8, sectors - bad - 8);
        let table =
            format!("0 {bad} linear {disk} 0\n{bad} 8 error\n{behind} {left} linear {disk} {behind}\n");
        FuseDisk::of(scratch, &table)
    }

    fn of(scratch: &Scratch, table: &str) -> FuseDisk {
        let table = scratch.write("fuse.table", table);
        let file = scratch.at("fuse");
        let mut command = scratch.blockwork(["serve", "--table", &table, "--fuse", &file, "--no-control"]);
        let _left = fs::LeftMount(file.clone().into());
        FuseDisk { _server: Server::start(&mut command), _left, file }
    }
}

/// How a server has ended.
pub struct Ended {
    pub status: ExitStatus,
    /// All of its standard error.
    pub stderr: String,
    /// From the signal to the end.
    pub took: Duration,
}

impl Server {
    /// Starts `command` (a `blockwork serve`) and waits for its `ready`.
    pub fn start(command: &mut Command) -> Server {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stderr = Transcript::of(child.stderr.take().expect("it is piped"));
        let (first, stdout) = first_line(child.stdout.take().expect("it is piped"));
        let mut server = Server { child, addresses: Vec::new(), stderr, stdout: Some(stdout) };
        let line = first.recv_timeout(PATIENCE).unwrap_or_default();
        let Some(addresses) = ready(&line) else {
            server.signal(Signal::KILL);
            let status = server.child.wait();
            panic!("{command:?} is not ready but says {line:?}, {status:?}:\n{}", server.stderr.whole());
        };
        server.addresses = addresses;
        server
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process number");
        kill_process(pid, signal).expect("it is our child, and not waited for");
    }

    /// What it has said so far on standard error.
    pub fn said(&self) -> String {
        self.stderr.now()
    }

    /// Whether it has a file open.
    pub fn has_open(&self, file: &str) -> bool {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs");
        let mut files = descriptors.flatten().filter_map(|one| std::fs::read_link(one.path()).ok());
        files.any(|open| open == Path::new(file))
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Asks it to end, as an operator would, and waits.
    pub fn stop(self) -> Ended {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Asks it to end; that must succeed. The statistics that `--stats --json` prints then.
    pub fn stop_for_stats(self) -> Stats {
        let ended = self.stop();
        assert!(ended.status.success(), "{}\n{}", ended.status, ended.stderr);
        let mut found = Stats::all(&ended.stderr);
        assert_eq!(found.len(), 1, "{}", ended.stderr);
        found.remove(0)
    }

    /// Asks it to end; that must succeed, without a word.
    pub fn stop_quietly(self) {
        let ended = self.stop();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{}\n{}", ended.status, ended.stderr);
    }

    /// Ends it as a crash would.
    pub fn kill(self) -> Ended {
        self.signal(Signal::KILL);
        self.wait()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Ended {
        let start = Instant::now();
        let mut status = None;
        until("the server has ended", || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        let took = start.elapsed();
        if let Some(stdout) = self.stdout.take() {
            assert_eq!(stdout.join().expect("no panic"), "", "nothing follows `ready` on standard output");
        }
        Ended { status: status.expect("it was waited for"), stderr: self.stderr.whole(), took }
    }

    /// Resident memory, bytes.
    pub fn resident_bytes(&self) -> u64 {
        resident_bytes(self.pid())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL is for a process that may be stopped, hung, or gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The addresses in a `ready` line, in either form; none where it is something else.
fn ready(line: &str) -> Option<Vec<String>> {
    let is_ready = |rest: &&str| rest.is_empty() || rest.starts_with(' ');
    if let Some(addresses) = line.trim_end().strip_prefix("ready").filter(is_ready) {
        return Some(addresses.split_whitespace().map(str::to_owned).collect());
    }
    let json: Value = serde_json::from_str(line).ok()?;
    json["ready"].as_array()?.iter().map(|address| address.as_str().map(str::to_owned)).collect()
}

/// The first line; and, at the end, all that follows it.
fn first_line(stdout: ChildStdout) -> (Receiver<String>, JoinHandle<String>) {
    let (send, receive) = mpsc::channel();
    let rest = std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        let _ = reader.read_line(&mut line);
        let _ = send.send(line);
        let mut rest = String::new();
        let _ = reader.read_to_string(&mut rest);
        rest
    });
    (receive, rest)
}

/// What a process says on standard error, as it says it.
struct Transcript {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Transcript {
    fn of(stderr: ChildStderr) -> Transcript {
        let shared = Arc::new(Mutex::new(String::new()));
        let into = shared.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                let mut text = into.lock().expect("no holder panics");
                text.push_str(&String::from_utf8_lossy(&line));
                text.push('\n');
            }
        });
        Transcript { text: shared, reader: Some(reader) }
    }

    fn now(&self) -> String {
        self.text.lock().expect("no holder panics").clone()
    }

    /// After the process has ended.
    fn whole(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("it does not panic");
        }
        self.now()
    }
}

/// A `blockwork trace` that is on. Dropped, it is killed.
pub struct Tracing {
    process: Background,
    stderr: BufReader<ChildStderr>,
}

impl Tracing {
    /// Starts `blockwork trace ARGS` and waits until it says that it traces.
    pub fn start(scratch: &Scratch, args: &[&str]) -> Tracing {
        let mut process = Background::start(scratch.blockwork(["trace"]).args(args));
        let mut stderr = BufReader::new(process.stderr());
        let mut line = String::new();
        stderr.read_line(&mut line).expect("a line");
        assert!(line.starts_with("tracing "), "{line}");
        Tracing { process, stderr }
    }

    /// Its standard output.
    pub fn stdout(&mut self) -> ChildStdout {
        self.process.stdout()
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for its end, which must be a success; all it printed on standard output, unless that was taken, and then on
    /// standard error.
    pub fn finish(mut self) -> String {
        let mut said = self.process.succeed();
        self.stderr.read_to_string(&mut said).expect("text");
        said
    }
}

/// A client or tool that runs beside the test. Dropped, it is killed.
pub struct Background {
    child: Child,
    what: String,
}

impl Background {
    /// Starts it; both its outputs are kept.
    pub fn start(command: &mut Command) -> Background {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Background {
            child: child.unwrap_or_else(|error| panic!("{command:?}: {error}")),
            what: format!("{command:?}"),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    pub fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("it is taken once")
    }

    pub fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().expect("it is taken once")
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process number");
        kill_process(pid, signal).expect("it is our child, and not waited for");
    }

    /// Waits for its end; its exit code and all it printed. Output must be short or taken, else it fills the pipe.
    pub fn finish(mut self) -> (Option<i32>, String) {
        let what = self.what.clone();
        let mut pipes: Vec<Box<dyn Read + Send>> = Vec::new();
        pipes.extend(self.child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
        pipes.extend(self.child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
        let readers: Vec<_> = pipes
            .into_iter()
            .map(|mut pipe| {
                std::thread::spawn(move || {
                    let mut bytes = Vec::new();
                    let _ = pipe.read_to_end(&mut bytes);
                    text(&bytes)
                })
            })
            .collect();
        let mut status = None;
        until(&format!("{what} has ended"), || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        let said = readers.into_iter().map(|reader| reader.join().expect("no panic")).collect();
        (status.and_then(|status| status.code()), said)
    }

    /// Waits for its end, which must be a success; what it printed.
    pub fn succeed(self) -> String {
        let what = self.what.clone();
        let (code, said) = self.finish();
        assert_eq!(code, Some(0), "{what}\n{said}");
        said
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines that a process prints, as they come. A process that has gone silent fails the test instead of hanging it.
pub struct Lines(Receiver<String>);

impl Lines {
    pub fn of(pipe: impl Read + Send + 'static) -> Lines {
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            // Whoever does not want more has dropped the receiver.
            BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        Lines(receive)
    }
}

impl Iterator for Lines {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        match self.0.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no further line for {PATIENCE:?}"),
        }
    }
}

/// Statistics as `--stats --json` prints them.
pub struct Stats(Value);

impl Stats {
    /// All that stand in what a server has said.
    pub fn all(said: &str) -> Vec<Stats> {
        let lines = said.lines().filter(|line| line.starts_with("{\"nodes\":"));
        lines.map(|line| Stats(serde_json::from_str(line).expect("a line of JSON"))).collect()
    }

    /// The settings that were found out, one for each class of requests.
    pub fn chosen(&self) -> Vec<String> {
        let classes = self.0["choices"].as_array().map_or(&[][..], Vec::as_slice);
        classes.iter().map(|class| class["setting"].as_str().expect("a name").to_owned()).collect()
    }

    /// A counter of the node that is named so, or whose name ends so after a slash.
    pub fn count(&self, node: &str, counter: &str) -> u64 {
        let nodes = self.0["nodes"].as_array().expect("a list");
        let named = |value: &&Value| {
            let name = value["name"].as_str().expect("a name");
            name == node || name.strip_suffix(node).is_some_and(|start| start.ends_with('/'))
        };
        let found: Vec<_> = nodes.iter().filter(named).collect();
        assert_eq!(found.len(), 1, "{node} in {}", self.0);
        found[0]["counters"][counter].as_u64().unwrap_or_else(|| panic!("{counter} in {}", found[0]))
    }
}
