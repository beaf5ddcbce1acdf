//! The process of one guest: its devices, its console, and that it does not outlive us.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cache::BootFiles;
use crate::error::GuestError;
use crate::guest::VhostDisk;
use crate::programs::{command, not_started, tail};

/// Processors of a guest; one with disks by vhost-user has one for each queue of a disk. A script runs one program after the other, and
/// what a second processor costs (locks, waiting for both to forget a mapping) is a fifth of all that the first one does.
const PROCESSORS: u16 = 1;
/// Memory (KiB) of a guest: not a multiple of 256 KiB. Of memory that is one, QEMU before 9.0 loses what its emulated processors write while
/// the guest moves (mended by its commit 03bfc2188f06).
const MEMORY: u64 = (1024 << 10) + 8;
/// What it can have beside that, where it may be given some.
const MEMORY_MAX: &str = ",slots=1,maxmem=2048M";
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=4 panic=-1 nokaslr no_timer_check random.trust_cpu=on";
/// A guest has nothing to guard. What a distribution's kernel does to be guarded, and to account for memory, is a sixth of its time.
const NOT_HARDENED: &str =
    "mitigations=off init_on_alloc=0 randomize_kstack_offset=off lsm= audit=0 cgroup_disable=memory";
/// So much of the console is shown with an error: the kernel's last words, with the registers and calls of a panic.
const CONSOLE_LINES: usize = 100;

/// A running QEMU; killed when dropped.
#[derive(Debug)]
pub(crate) struct Qemu {
    process: OwnedFd,
    /// Hears of the end of the process.
    ended: Receiver<()>,
    console: File,
    said: File,
}

/// What a QEMU does when it has been started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    Boot,
    /// It waits for a guest that moves in.
    Receive,
}

/// Lines to a QEMU that has just been started.
pub(crate) struct Lines {
    pub(crate) control: UnixStream,
    pub(crate) agent: UnixStream,
}

impl Qemu {
    /// Starts it, and takes its calls on both lines.
    pub(crate) fn start(
        files: &BootFiles,
        vhost_disks: &[VhostDisk],
        begin: Begin,
    ) -> Result<(Qemu, Lines), GuestError> {
        // Only until all are connected or open.
        let folder = tempfile::Builder::new()
            .prefix("blockwork-guest-")
            .tempdir()
            .map_err(GuestError::file("cannot make a folder in", std::env::temp_dir()))?;
        let (control, agent) = (listen(&folder.path().join("qmp"))?, listen(&folder.path().join("agent"))?);
        let (console_path, said_path) = (folder.path().join("console"), folder.path().join("said"));
        let console = create(&console_path)?;
        let said = create(&said_path)?;
        let said_by_qemu = said.try_clone().map_err(GuestError::file("cannot share", &said_path))?;
        let mut command = command_line(files, folder.path());
        let queues = vhost_disks.iter().map(|disk| disk.queues).max();
        command.args(["-smp", &queues.unwrap_or(0).max(PROCESSORS).to_string()]);
        command.args(["-m", &format!("{MEMORY}K{}", if queues.is_some() { MEMORY_MAX } else { "" })]);
        vhost_disks.iter().enumerate().for_each(|(number, disk)| add_vhost(&mut command, number, disk));
        if begin == Begin::Receive {
            command.args(["-incoming", "defer"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said_by_qemu);
        let (process, ended) = keep(command)?;
        let qemu = Qemu { process, ended, console, said };
        let lines = Lines { control: qemu.accept(&control)?, agent: qemu.accept(&agent)? };
        Ok((qemu, lines))
    }

    /// QEMU calls while it sets up its devices, or ends with an error.
    fn accept(&self, listener: &UnixListener) -> Result<UnixStream, GuestError> {
        let failed = |source| GuestError::File { what: "cannot accept", path: "QEMU's call".into(), source };
        let mut events = [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut events, None).map_err(|errno| failed(errno.into()))?;
        if events[0].revents().is_empty() {
            return Err(self.gone("QEMU starts"));
        }
        listener.accept().map(|(stream, _)| stream).map_err(failed)
    }

    /// The end of the console and of what QEMU itself said.
    pub(crate) fn console(&self) -> String {
        let mut text = Vec::new();
        for mut file in [&self.console, &self.said] {
            // As much as can be had: this is for a message of another failure.
            let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut text));
        }
        tail(&text, CONSOLE_LINES)
    }

    /// The error of a guest that has ended by itself.
    pub(crate) fn gone(&self, during: &str) -> GuestError {
        GuestError::Gone { during: during.to_owned(), console: self.console() }
    }

    /// Whether the process ends within that time.
    pub(crate) fn ends_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let rest = deadline.saturating_duration_since(Instant::now());
        !matches!(self.ended.recv_timeout(rest), Err(mpsc::RecvTimeoutError::Timeout))
    }

    /// Kills it at once, and waits until it is gone: what it had written to its disks is in their files then.
    pub(crate) fn kill(&self) {
        // It may have ended already, which is as good.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        let _ = self.ended.recv();
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}

fn listen(path: &Path) -> Result<UnixListener, GuestError> {
    UnixListener::bind(path).map_err(GuestError::file("cannot listen at", path))
}

fn create(path: &Path) -> Result<File, GuestError> {
    let mut options = File::options();
    options.read(true).append(true).create_new(true);
    options.open(path).map_err(GuestError::file("cannot make", path))
}

/// Starts the process from a thread that lives as long as it does: the kernel kills it when that thread ends, so also when this
/// process does, by whatever signal. The thread of a test would end too soon.
fn keep(mut command: Command) -> Result<(OwnedFd, Receiver<()>), GuestError> {
    let (to_starter, started) = mpsc::channel();
    let (at_end, ended) = mpsc::channel();
    thread::spawn(move || {
        let child = command.spawn().map_err(|error| not_started(&command, error));
        let child = child.and_then(|child| Ok((process_of(&child)?, child)));
        match child {
            Ok((process, mut child)) => {
                // A starter that is gone leaves nothing that needs the process; the line is dropped, and with it the guest.
                if to_starter.send(Ok(process)).is_err() {
                    let _ = child.kill();
                }
                let _ = child.wait();
                drop(at_end);
            }
            Err(error) => drop(to_starter.send(Err(error))),
        }
    });
    let process = started.recv().unwrap_or_else(|_| {
        let source = std::io::Error::other("the thread that starts it is gone");
        Err(GuestError::File { what: "cannot start", path: "QEMU".into(), source })
    })?;
    Ok((process, ended))
}

fn process_of(child: &Child) -> Result<OwnedFd, GuestError> {
    let pid = Pid::from_child(child);
    pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| GuestError::File {
        what: "cannot watch process",
        path: pid.as_raw_nonzero().to_string().into(),
        source: errno.into(),
    })
}

fn command_line(files: &BootFiles, folder: &Path) -> Command {
    let mut command = command("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
    command.args([
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-machine",
        // A server's process sees the memory of a disk that it serves by vhost-user.
        "pc,hpet=off,memory-backend=memory",
        "-object",
        &format!("memory-backend-memfd,id=memory,size={MEMORY}K,share=on"),
    ]);
    // 57-bit addresses and what keeps the kernel from programs' memory make emulation slower, and nothing here needs them.
    command.args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off,smap=off,pku=off"]);
    command.arg("-kernel").arg(&files.kernel).arg("-initrd").arg(&files.initrd);
    command.args(["-append", &format!("{KERNEL_ARGUMENTS} {NOT_HARDENED}")]);
    let root = format!("if=none,id=root,format=raw,readonly=on,file={}", files.root.display());
    command.args(["-drive", &root, "-device", "virtio-blk-pci,drive=root"]);
    command.args([
        "-device",
        "virtio-scsi-pci,id=scsi",
        "-device",
        "virtio-rng-pci",
        "-device",
        "virtio-serial-pci",
    ]);
    command.args(["-chardev", &format!("file,id=console,path={}/console,append=on", folder.display())]);
    command.args(["-serial", "chardev:console"]);
    command.args(["-chardev", &format!("socket,id=agent,path={}/agent", folder.display())]);
    command.args(["-device", "virtserialport,chardev=agent,name=agent"]);
    command.args(["-chardev", &format!("socket,id=control,path={}/qmp", folder.display())]);
    command.args(["-mon", "chardev=control,mode=control"]);
    command
}

fn add_vhost(command: &mut Command, number: usize, disk: &VhostDisk) {
    let VhostDisk { socket, queues, queue_size, packed } = disk;
    let packed = if *packed { "on" } else { "off" };
    let line = format!("socket,id=vhost{number},path={},reconnect=1", socket.display());
    let device = format!(
        "vhost-user-blk-pci,chardev=vhost{number},num-queues={queues},queue-size={queue_size},packed={packed}"
    );
    command.args(["-chardev", &line, "-device", &device]);
}
