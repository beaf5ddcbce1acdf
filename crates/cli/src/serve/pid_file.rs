//! `serve --pid-file`: the file that tells a server's process, as nbdkit and qemu-nbd have it.
//!
//! Invariants: (1) one server at a time has a file, by its lock (flock(2)), which ends with its process whatever happens to it, so that what a server that
//! was killed has left is nobody's; (2) it is empty until the server is ready, and gone after its end; (3) what is no such file is left as it is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// More than a process's number takes: what is longer is something else.
const LENGTH_MAX: u64 = 32;

/// It, and the lock.
pub(super) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Takes the file, empty.
    pub(super) fn open(path: &Path) -> Result<PidFile> {
        let at = || format!("--pid-file {}", path.display());
        loop {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).open(path);
            let mut file = file.with_context(at)?;
            if !file.metadata().with_context(at)?.is_file() {
                bail!("{}: it is there, and no regular file: name another one", at());
            }
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    bail!(
                        "{}: it is of another server, which runs: stop that first, or name another file",
                        at()
                    )
                }
                Err(errno) => return Err(io::Error::from(errno)).with_context(at),
            }
            // Whoever had it may have removed it meanwhile.
            if !is_at(&file, path) {
                continue;
            }
            let mut text = String::new();
            let read = (&mut file).take(LENGTH_MAX).read_to_string(&mut text);
            if read.is_err() || !(text.is_empty() || text.trim().parse::<u32>().is_ok()) {
                bail!(
                    "{}: it is there, and holds no process's number: remove it if it is of no use, or name another file",
                    at()
                );
            }
            if let Some((pid, command)) = process_of(&text) {
                bail!(
                    "{}: process {pid} ({command}), which stands in it, runs: stop that first, or remove the file if it is of no server",
                    at()
                );
            }
            file.set_len(0).with_context(at)?;
            return Ok(PidFile { path: path.to_owned(), file });
        }
    }

    /// Has it tell this process.
    pub(super) fn write(&self) -> Result<()> {
        let text = format!("{}\n", process::id());
        let written = self.file.write_all_at(text.as_bytes(), 0);
        written.with_context(|| format!("--pid-file {}", self.path.display()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // While it is locked: what another server has put there is not ours.
        if is_at(&self.file, &self.path)
            && let Err(error) = fs::remove_file(&self.path)
        {
            log::warn!("--pid-file {}: it is left behind: {error}", self.path.display());
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(there)) => identity(ours) == identity(there),
        _ => false,
    }
}

/// The process that a text tells, and its command, if it runs and is not this one: in a container, each has the number of the one before.
fn process_of(text: &str) -> Option<(i32, String)> {
    let pid: i32 = text.trim().parse().ok()?;
    let runs = matches!(test_kill_process(Pid::from_raw(pid)?), Ok(()) | Err(Errno::PERM));
    let is_another = u32::try_from(pid) != Ok(process::id());
    let of = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    // Nobody has waited for it yet: it has ended all the same.
    let is_zombie = of("stat").rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z'));
    (runs && is_another && !is_zombie).then(|| (pid, of("comm").trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        let refused = PidFile::open(path).err().expect("it is refused");
        format!("{refused:#}")
    }

    #[test]
    fn it_is_one_servers_until_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let ours = PidFile::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        let said = refusal(&path);
        assert!(said.contains("it is of another server, which runs"), "{said}");
        ours.write().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", process::id()));
        drop(ours);
        assert!(!path.exists());
    }

    #[test]
    fn what_another_process_or_something_else_has_there_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let parent = rustix::process::getppid().expect("somebody runs this").as_raw_nonzero();
        for (text, why) in [
            (format!("{parent}\n"), format!("process {parent} (")),
            ("a disk's bytes".into(), "holds no process's number".into()),
            ("7".repeat(64), "holds no process's number".into()),
        ] {
            fs::write(&path, &text).unwrap();
            let said = refusal(&path);
            assert!(said.contains(&why), "{said}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn what_a_dead_server_has_left_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let start = || process::Command::new("true").spawn().unwrap();
        let (mut dead, mut zombie) = (start(), start());
        dead.wait().unwrap();
        let stat = format!("/proc/{}/stat", zombie.id());
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        // One of this very number was another one, as in a container.
        for left in [dead.id(), zombie.id(), process::id()] {
            fs::write(&path, format!("{left}\n")).unwrap();
            drop(PidFile::open(&path).unwrap());
        }
        zombie.wait().unwrap();
    }

    #[test]
    fn what_another_server_has_put_there_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let ours = PidFile::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let theirs = PidFile::open(&path).unwrap();
        drop(ours);
        assert!(path.exists());
        drop(theirs);
        assert!(!path.exists());
    }
}
