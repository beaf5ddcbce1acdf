//! Has the kernel write back what clients have changed in pages that they have mapped (mmap), before a mount goes away.
//!
//! 1. By fsync of each file: it waits until the server has answered all writes, on any kernel. syncfs(2) waits only until they are queued
//!    (before 6.16), and a queue goes with its mount.
//! 2. By another process, for a limited time. Who waits in fsync for a file system that it serves itself, which does not answer, cannot even
//!    be killed: the wait ends when the server's end of the mount is closed, and each of its threads keeps that open. So `sync FILE...`
//!    (coreutils, busybox) does it, which has no such descriptor; in a process group of its own, since a signal that ends the server may come
//!    to its group more than once (timeout(1) sends it to the server, and then to the group).

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

const PROGRAM: &str = "sync";

/// Writes back what is dirty of `files`, unless that takes longer than `time`.
///
/// # Errors
/// What went wrong, in words.
pub(super) fn write_back(files: &[PathBuf], time: Duration) -> Result<(), String> {
    if files.is_empty() {
        return Ok(());
    }
    let mut child = start(files).map_err(|error| format!("cannot run {PROGRAM}: {error}"))?;
    if !ends_within(&child, time).map_err(|error| format!("cannot wait for {PROGRAM}: {error}"))? {
        // Nor is its end waited for: whatever it hangs in ends with the mount.
        let _ = child.kill();
        return Err(format!("it was not done after {} s", time.as_secs_f32()));
    }
    let output = child.wait_with_output().map_err(|error| format!("cannot wait for {PROGRAM}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(if said.is_empty() { output.status.to_string() } else { said })
}

fn start(files: &[PathBuf]) -> io::Result<Child> {
    let mut command = Command::new(PROGRAM);
    command.arg("--").args(files).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
}

fn ends_within(child: &Child, time: Duration) -> rustix::io::Result<bool> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let start = Instant::now();
    loop {
        let left = Timespec::try_from(time.saturating_sub(start.elapsed())).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ended => return Ok(ended? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpgid;

    use super::*;

    #[test]
    fn a_signal_to_the_servers_process_group_is_none_to_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = start(&[folder.path().to_owned()]).unwrap();
        let itself = Pid::from_child(&child);
        assert_eq!(getpgid(Some(itself)).unwrap(), itself);
        assert!(child.wait().unwrap().success());
    }
}
