//! A real NFS server, nfs-ganesha, in namespaces of its own: its ports and its port mapper are seen by nobody else.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::Signal;

use super::{Background, Scratch, run, tool, until};

/// Sets up the network, starts the port mapper, says so, and undoes it when its input ends.
const NETWORK: &str = include_str!("../../../../tests/nfs/network.sh");
/// The server's configuration; `bench/run nfs` has the same server.
const CONFIGURATION: &str = include_str!("../../../../tests/nfs/ganesha.conf");

/// What the versions of NFS that it speaks follow.
const PROTOCOLS: &str = "Protocols = ";

/// Where it is said at which address it listens, and how that ends.
const CORE: &str = "NFS_CORE_PARAM {";
const BIND_END: &str = " # the address\n";

/// How a disk is mounted there: its journal is written for nobody but who asks, while a test runs.
const ON_DISK: &str = "loop,commit=600";

/// A network with a port mapper, and a server in it that exports one folder of a scratch.
pub struct NfsServer {
    namespace: Child,
    /// Closed, it ends the namespace.
    input: Option<ChildStdin>,
    server: Option<Background>,
    config: String,
    log: String,
    folder: String,
}

impl NfsServer {
    /// A server that exports `export` in `scratch`.
    pub fn start(scratch: &Scratch) -> NfsServer {
        NfsServer::start_mounted(scratch, "RW", None)
    }

    /// Has it speak these versions of NFS only, from its next life on.
    pub fn speak(&self, versions: &str) {
        let configuration = std::fs::read_to_string(&self.config).expect("it was written");
        let mut parts = configuration.split(PROTOCOLS);
        let mut changed = parts.next().expect("its beginning").to_owned();
        for part in parts {
            changed += &format!("{PROTOCOLS}{versions}{}", &part[part.find(';').expect("an end")..]);
        }
        std::fs::write(&self.config, changed).expect("it is written");
    }

    /// Has it listen at this address only, from its next life on.
    pub fn listen_at(&self, address: &str) {
        let configuration = std::fs::read_to_string(&self.config).expect("it was written");
        let (_, after) = configuration.split_once(CORE).expect("its first part");
        let after = after.split_once(BIND_END).map_or(after, |(_, after)| after);
        let bound = format!("{CORE} Bind_addr = {address};{BIND_END}{after}");
        std::fs::write(&self.config, bound).expect("it is written");
    }

    /// One that lets nobody write.
    pub fn start_read_only(scratch: &Scratch) -> NfsServer {
        NfsServer::start_mounted(scratch, "RO", None)
    }

    /// One whose export is a tmpfs with these options, which only it sees.
    pub fn start_on_tmpfs(scratch: &Scratch, options: &str) -> NfsServer {
        NfsServer::start_mounted(scratch, "RW", Some(&format!("-t tmpfs -o {options} tmpfs")))
    }

    /// One whose export is a file system on a disk of `bytes` bytes (the file `platter` in `scratch`), which only it sees: it can lose its
    /// power.
    pub fn start_on_disk(scratch: &Scratch, bytes: u64) -> NfsServer {
        let platter = scratch.sparse("platter", bytes);
        run(tool("mkfs.ext4").args(["-q", "-E", "root_owner=0:0,lazy_itable_init=0", &platter]));
        NfsServer::start_mounted(scratch, "RW", Some(&format!("-o {ON_DISK} {platter}")))
    }

    fn start_mounted(scratch: &Scratch, access: &str, mount: Option<&str>) -> NfsServer {
        let mut unshare = tool("unshare");
        unshare.args(["--mount", "--net", "--propagation", "private", "sh", "-c", NETWORK]);
        let spawned = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut namespace = spawned.unwrap_or_else(|error| panic!("{unshare:?}: {error}"));
        let mut line = String::new();
        let stdout = namespace.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line, "up\n", "network namespaces need root");
        let folder = scratch.at("export");
        std::fs::create_dir_all(&folder).expect("a folder");
        let configuration = CONFIGURATION.replace("@FOLDER@", &folder).replace("@ACCESS@", access);
        let config = scratch.write("ganesha.conf", configuration);
        let input = namespace.stdin.take();
        let log = scratch.at("ganesha.log");
        let mut server = NfsServer { namespace, input, server: None, config, log, folder };
        if let Some(mount) = mount {
            server.within(&format!("mount {mount} {}", server.folder));
        }
        server.start_again();
        server
    }

    /// Starts it, in a new life.
    pub fn start_again(&mut self) {
        // Of an earlier life there is none: the file may not be there.
        let _ = std::fs::remove_file(&self.log);
        let mut ganesha = self.enter(&["--mount"]);
        ganesha.arg(tool("ganesha.nfsd").get_program());
        ganesha.args(["-F", "-f", &self.config, "-L", &self.log, "-p", "/run/ganesha.pid"]);
        let server = self.server.insert(Background::start(&mut ganesha));
        until("the NFS server is up", || {
            let ended = !server.is_running();
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let up = log.contains("NFS SERVER INITIALIZED");
            assert!(up || !ended, "the NFS server ended while it started; it said:\n{log}");
            up
        });
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        let server = self.server.take().expect("it runs");
        server.signal(Signal::KILL);
        server.finish();
    }

    /// Ends it as a power cut would, and gives it power again: what was not written to its disk is lost.
    pub fn lose_power(&mut self, scratch: &Scratch) {
        self.kill();
        // What is on the disk now, as its next owner finds it; the file system's memory goes to the old one.
        let (platter, copy) = (scratch.at("platter"), scratch.at("copy"));
        self.within(&format!(
            "cp --sparse=always {platter} {copy} && umount {folder} && mv {copy} {platter} && \
             mount -o {ON_DISK} {platter} {folder}",
            folder = self.folder
        ));
        self.start_again();
    }

    /// Stops it where it is: it answers nothing until it goes on.
    pub fn freeze(&self) {
        self.server.as_ref().expect("it runs").signal(Signal::STOP);
    }

    pub fn thaw(&self) {
        self.server.as_ref().expect("it runs").signal(Signal::CONT);
    }

    /// Runs a script of the shell where the server is, with its mounts.
    pub fn within(&self, script: &str) {
        run(self.enter(&["--mount"]).args(["sh", "-c", script]));
    }

    fn enter(&self, also: &[&str]) -> Command {
        let mut nsenter = tool("nsenter");
        nsenter.args(["--target", &self.namespace.id().to_string(), "--net"]).args(also);
        nsenter
    }

    /// The same command, in the server's network.
    pub fn beside(&self, command: &Command) -> Command {
        self.entered(&[], command)
    }

    /// The same, with its mounts.
    pub fn beside_with_its_mounts(&self, command: &Command) -> Command {
        let folder = command.get_current_dir().expect("it runs in its scratch folder");
        self.entered(&["--mount", &format!("--wd={}", folder.display())], command)
    }

    fn entered(&self, also: &[&str], command: &Command) -> Command {
        let mut nsenter = self.enter(also);
        nsenter.arg(command.get_program()).args(command.get_args());
        nsenter.current_dir(command.get_current_dir().expect("it runs in its scratch folder"));
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => nsenter.env(key, value),
                None => nsenter.env_remove(key),
            };
        }
        nsenter
    }

    /// Where a file of the export is on the server.
    pub fn path(&self, file: &str) -> String {
        format!("{}/{file}", self.folder)
    }

    /// A file of the export as whoever is not there reaches it, also where only the server sees the export.
    pub fn path_outside(&self, file: &str) -> String {
        format!("/proc/{}/root{}", self.namespace.id(), self.path(file))
    }

    /// How it is named as a disk.
    pub fn url(&self, file: &str, query: &str) -> String {
        format!("nfs://127.0.0.1{}{query}", self.path(file))
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        self.server = None;
        // The end of its input is what the namespace waits for.
        self.input = None;
        let _ = self.namespace.wait();
    }
}
