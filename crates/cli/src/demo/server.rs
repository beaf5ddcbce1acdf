//! This very program as other processes, among the demo's own files: `scan`, `serve`, `trace`.
//!
//! Whatever becomes of the demo, none of them outlives it, and a server's mounts go with the server.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use blockwork_insight::report::Report;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// How long a process may take to end, and a trace to show something.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where a server's NBD socket, its mounts and its messages are, in the demo's folder.
pub(crate) const SOCKET: &str = "nbd.sock";
pub(crate) const MOUNTS: &str = "volumes";
const MESSAGES: &str = "serve.log";

/// `blockwork`, in the demo's folder.
pub(crate) fn own_command(folder: &Path) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    // Its control socket lies there as well: nothing else on this machine is touched.
    command.current_dir(folder).env("BLOCKWORK_RUN_DIR", folder.join("run")).env_remove("RUST_LOG");
    // No socket that a service manager may have given us is meant for it.
    command.env_remove("LISTEN_FDS").env_remove("LISTEN_PID").stdin(Stdio::null());
    // ^C is for us: we end what we have started in an order that leaves nothing behind.
    command.process_group(0);
    Ok(command)
}

/// A process that ends with this value.
struct Process(Child);

impl Process {
    /// SIGTERM, as a service manager would, and its end. One that does not end in time is ended, which is an error.
    fn end(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.0.try_wait()? {
            return Ok(status);
        }
        let pid = Pid::from_child(&self.0);
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        kill_process(pid, Signal::TERM)?;
        if !is_ready(&process)? {
            self.0.kill()?;
            self.0.wait()?;
            bail!("process {} had not ended {PATIENCE:?} after SIGTERM: it was killed", self.0.id());
        }
        Ok(self.0.wait()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Who wants to know how it ended has called `end`.
        let _ = self.end();
    }
}

/// Waits until there is something to read, or a process has ended, but not for ever.
fn is_ready(source: &impl AsFd) -> Result<bool> {
    let patience = Timespec::try_from(PATIENCE)?;
    Ok(poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&patience))? > 0)
}

/// A server that is up.
pub(crate) struct Server {
    process: Process,
    folder: PathBuf,
    /// The command, and the line that said that it is up.
    pub(crate) shown: String,
}

impl Server {
    /// `blockwork serve ARGUMENTS`, once it is ready.
    pub(crate) fn start(folder: &Path, arguments: &[String]) -> Result<Server> {
        let messages = File::create(folder.join(MESSAGES))?;
        let mut command = own_command(folder)?;
        let child = command.args(arguments).stdout(Stdio::piped()).stderr(messages).spawn();
        let mut process = Process(child.context("starting the server")?);
        let mut ready = String::new();
        BufReader::new(process.0.stdout.take().context("stdout is piped")?).read_line(&mut ready)?;
        let shown = format!("$ blockwork {}\n{}", arguments.join(" "), ready.trim_end());
        let server = Server { process, folder: folder.to_owned(), shown };
        if ready.is_empty() {
            let messages = server.messages()?;
            bail!("{}", messages.trim_start_matches("blockwork: error: ").trim_end_matches('.'));
        }
        Ok(server)
    }

    /// What it has said so far besides.
    pub(crate) fn messages(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.folder.join(MESSAGES))?.trim_end().to_owned())
    }

    /// Ends it; gives the statistics that it prints then.
    pub(crate) fn stop(mut self) -> Result<Report> {
        let status = self.process.end()?;
        let messages = self.messages()?;
        ensure!(status.success(), "the server failed: {messages}");
        let json = messages.lines().last().context("the server printed no statistics")?;
        serde_json::from_str(json).with_context(|| format!("the server's statistics: {json}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Only one that could not end by itself leaves its mount.
        if self.process.end().is_err() {
            let mounts = self.folder.join(MOUNTS);
            if unmount(&mounts, UnmountFlags::DETACH).is_err() {
                let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&mounts).output();
            }
        }
    }
}

/// `blockwork trace VOLUME`, once it listens.
pub(crate) struct Trace {
    _process: Process,
    stdout: BufReader<ChildStdout>,
}

impl Trace {
    pub(crate) fn start(folder: &Path, volume: &str) -> Result<Trace> {
        let mut command = own_command(folder)?;
        let child = command.args(["trace", volume]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut process = Process(child.context("starting the trace")?);
        let mut said = String::new();
        let mut errors = BufReader::new(process.0.stderr.take().context("stderr is piped")?);
        errors.read_line(&mut said)?;
        if !said.starts_with("tracing") {
            errors.read_to_string(&mut said)?;
            bail!("the trace did not start: {}", said.trim_end());
        }
        let stdout = process.0.stdout.take().context("stdout is piped")?;
        Ok(Trace { _process: process, stdout: BufReader::new(stdout) })
    }

    /// Its next line.
    pub(crate) fn line(&mut self) -> Result<String> {
        if self.stdout.buffer().is_empty() {
            ensure!(is_ready(self.stdout.get_ref())?, "the trace has shown nothing for {PATIENCE:?}");
        }
        let mut line = String::new();
        ensure!(self.stdout.read_line(&mut line)? > 0, "the trace ended early");
        Ok(line)
    }
}
