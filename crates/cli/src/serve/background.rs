//! `serve --fork`: the command returns when the server is ready, and the server goes on in the background.
//!
//! ```text
//! blockwork serve --fork ──▶ the same anew, with FORKED     command line, files and terminal are the same
//!        │ reads its standard output ◀── ready ...   ─┐
//!        │ until nobody writes to it ◀── closed       ├─ [`Launch::is_ready`]
//!        ▼                                           ─┘
//!    exit 0; or what the server has ended with, which has told why
//! ```
//!
//! Invariants: (1) who started it returns after `ready`, or after the server is gone; (2) a server whose starter is gone before it is ready ends, as
//! `ready` can be told to nobody; (3) one that is ready holds neither the terminal nor a pipe of whoever started it.
//!
//! It is a program started anew, not a copy of this one: threads do not survive fork(2), and what is safe between that and exec(2) is little.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio, exit};

use anyhow::{Context, Result, anyhow, bail};
use blockwork_export::nbd;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::pid_file::PidFile;
use crate::args::ServeArgs;
use crate::out;
use crate::usage::bail_usage;

/// In the environment of the server that --fork has started. No option: nobody is to give it.
const FORKED: &str = "BLOCKWORK_FORKED";
/// Where what is said goes that nobody wants to hear.
const NOWHERE: &str = "/dev/null";

/// Whether a command line with `--fork` is that of the server, and not of who starts it.
pub(super) fn is_server() -> bool {
    env::var_os(FORKED).is_some()
}

/// Starts the server, and returns when it is ready. Where it does not come up, this process ends as it did.
pub(super) fn start() -> Result<()> {
    if !nbd::inherited(|name| env::var(name).ok())?.is_empty() {
        bail_usage!(
            "--fork, and sockets of a service manager (LISTEN_FDS), which knows a server by the process that it has started: leave out --fork"
        );
    }
    let program = env::current_exe().context("--fork: the program's own file cannot be told")?;
    let mut words = env::args_os();
    let mut command = Command::new(&program);
    command.arg0(words.next().unwrap_or_else(|| program.clone().into()));
    command.args(words).env(FORKED, "1").stdout(Stdio::piped());
    let mut server = command.spawn().with_context(|| format!("--fork: {}", program.display()))?;
    let mut said = Vec::new();
    let mut words = server.stdout.take().expect("it is piped");
    words.read_to_end(&mut said).context("--fork: what the server says cannot be read")?;
    if !said.ends_with(b"\n") {
        return Err(its_end(&mut server)?);
    }
    // As without --fork: a server whose address can be told to nobody is none.
    out::print(&String::from_utf8_lossy(&said)).inspect_err(|_| stop(&mut server))
}

/// Ends this process as the server has ended, which has told why. An error: it has not.
fn its_end(server: &mut Child) -> Result<anyhow::Error> {
    let status = server.wait().context("--fork: how the server has ended cannot be told")?;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(anyhow!("the server was asked to end before it was ready")),
        (Some(code), _) => exit(code),
        (None, signal) => {
            Ok(anyhow!("the server was ended by signal {} before it was ready", signal.unwrap_or_default()))
        }
    }
}

fn stop(server: &mut Child) {
    // It is our child, and not waited for: its number is nobody else's.
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw);
    if pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok()) {
        let _ = server.wait();
    }
}

/// How a server comes up: whom it tells that, and where what it says later goes. Until its end.
pub(super) struct Launch {
    /// What a server in the background reads.
    nothing: Option<File>,
    later: Option<File>,
    pid_file: Option<PidFile>,
}

impl Launch {
    /// Opens what will be needed, while it can be: before a sandbox, and before anything is done that would have to be undone.
    pub(super) fn prepare(args: &ServeArgs) -> Result<Launch> {
        let nothing = args.fork.then(|| File::open(NOWHERE).context(NOWHERE)).transpose()?;
        let later = match &args.log_file {
            None if !args.fork => None,
            log => Some(open_log(log.as_deref().unwrap_or(Path::new(NOWHERE)))?),
        };
        let pid_file = args.pid_file.as_deref().map(PidFile::open).transpose()?;
        Ok(Launch { nothing, later, pid_file })
    }

    /// Tells where clients find the server. From then on it is on its own.
    pub(super) fn is_ready(&self, args: &ServeArgs, addresses: &[String]) -> Result<()> {
        if let Some(pid_file) = &self.pid_file {
            pid_file.write()?;
        }
        // ^C, and the terminal's end, are no longer for it. Until now they were, as for who started it.
        if self.nothing.is_some()
            && let Err(errno) = setsid()
        {
            bail!("--fork: setsid: {errno}");
        }
        announce(args, addresses)?;
        let cannot = "what the server says later cannot be sent elsewhere";
        if let Some(nothing) = &self.nothing {
            dup2_stdin(nothing).context(cannot)?;
        }
        if let Some(later) = &self.later {
            dup2_stderr(later).context(cannot)?;
            // At last, as who started it waits for that.
            dup2_stdout(later).context(cannot)?;
        }
        Ok(())
    }
}

/// What is no text is left as it is: it may be a disk.
fn open_log(path: &Path) -> Result<File> {
    let at = || format!("--log-file {}", path.display());
    // Nor is it waited until somebody reads a pipe, then or later.
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let log = OpenOptions::new().append(true).create(true).custom_flags(nonblock).open(path);
    let log = log
        .with_context(|| format!("{}: name a file in a folder that is there and may be written to", at()))?;
    let kind = log.metadata().with_context(at)?.file_type();
    // One that may only be written is no disk of ours.
    let is_text = || {
        let mut head = [0; 4096];
        let read = File::open(path).and_then(|file| file.read_at(&mut head, 0)).unwrap_or(0);
        !head[..read].contains(&0)
    };
    if kind.is_block_device() || (kind.is_file() && !is_text()) {
        bail!("{}: it is there, and holds no text: name another file", at());
    }
    Ok(log)
}

fn announce(args: &ServeArgs, addresses: &[String]) -> Result<()> {
    if args.json {
        out::print(&format!("{}\n", serde_json::json!({ "ready": addresses })))
    } else {
        out::print(&format!("{}\n", format!("ready {}", addresses.join(" ")).trim_end()))
    }
}
