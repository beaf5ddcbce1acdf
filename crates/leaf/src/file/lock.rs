//! Locking a disk against other processes: ours, and QEMU's.
//!
//! Locks are those of the open file description (F_OFD_SETLK), held until they are given back or the last descriptor is closed, which can be
//! later than a process knows: an io_uring has references of its own, and the kernel winds it up in its own time. Who writes locks the whole
//! file exclusively. Who only reads locks enough of it, shared, to keep writers out: QEMU locks single bytes, 100 + n for what it does itself
//! and 200 + n for what it does not allow others (block/file-posix.c of QEMU, RAW_LOCK_PERM_BASE and RAW_LOCK_SHARED_BASE; n: 0 read, 1 write,
//! 3 resize), and reads beside another reader only as long as nobody has locked byte 200.
//!
//! | | holds | and finds free |
//! | --- | --- | --- |
//! | our writer | all bytes, exclusive | |
//! | our reader | 0..=100, 201, 203, shared | 101, 103 (QEMU's writers) |

use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{fstat, major, minor};

use crate::error::LeafError;

/// Longest wait for the kernel to let go of what a dead process had.
const RELEASE_TIME: Duration = Duration::from_secs(5);

/// Locks the file, or says who has. False, with a warning, where files cannot be locked.
pub(super) fn take(
    file: &OwnedFd,
    name: &str,
    read_only: bool,
    warnings: &mut Vec<String>,
) -> Result<bool, LeafError> {
    let attempt = || if read_only { for_reading(file) } else { set(file, libc::F_WRLCK, 0, 0) };
    let is_nobodys = |errno: &Errno| matches!(errno, Errno::EAGAIN | Errno::EACCES) && holder(file).is_none();
    match until_released(attempt, is_nobodys) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Err(LeafError::InUse {
            name: name.to_owned(),
            holder: format!(
                "it is locked{}",
                holder(file).map(|who| format!(" by {who}")).unwrap_or_default()
            ),
            remedy: if read_only {
                "somebody writes to it, and what is read would not fit together: stop that first, or open it with \
                 ',lock=off' to read it anyhow"
                    .into()
            } else {
                "two writers would destroy each other's data: stop that first".into()
            },
        }),
        Err(errno) => {
            warnings.push(format!(
                "it cannot be locked ({errno}): see to it that no other process writes to it; lock=off says that \
                 this is intended"
            ));
            Ok(false)
        }
    }
}

/// Gives back what was taken. Where nothing was, nothing is.
pub(super) fn give_back(file: &OwnedFd) {
    // It cannot be refused; and if it were, the last close would do it.
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&description(libc::F_UNLCK, 0, 0)));
}

/// Tries again for a while as long as nobody is to be found who holds what is wanted.
///
/// A process that was killed holds its files for longer than it lives: its io_uring, which has references to them, is
/// wound up by the kernel afterwards. Whoever restarts a server at once must not be told that its disk is in use.
pub(super) fn until_released<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    is_nobodys: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if start.elapsed() < RELEASE_TIME && is_nobodys(&error) => pause(),
            result => return result,
        }
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the kernel tells nobody when it has closed a dead process's files"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

fn for_reading(file: &OwnedFd) -> Result<(), Errno> {
    for (start, len) in [(0, 101), (201, 1), (203, 1)] {
        set(file, libc::F_RDLCK, start, len)?;
    }
    // After ours are set, as QEMU does it: of two that start at once, at least one sees the other.
    for writers in [101, 103] {
        if is_locked(file, writers)? {
            return Err(Errno::EAGAIN);
        }
    }
    Ok(())
}

fn description(kind: i32, start: i64, len: i64) -> libc::flock {
    let narrow = |n: i32| i16::try_from(n).expect("the kernel's numbers for these are small");
    libc::flock {
        l_type: narrow(kind),
        l_whence: narrow(libc::SEEK_SET),
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Locks `len` bytes at `start`; 0: to the end, wherever it will be.
fn set(file: &OwnedFd, kind: i32, start: i64, len: i64) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&description(kind, start, len))).map(drop)
}

/// Whether somebody else has any lock on a byte.
fn is_locked(file: &OwnedFd, byte: i64) -> Result<bool, Errno> {
    let mut lock = description(libc::F_WRLCK, byte, 1);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Which process holds a lock on this file, as far as we may know: the kernel lists a descriptor's locks in its fdinfo
/// (in /proc/locks, those of an open file description have no owner).
pub(super) fn holder(file: &OwnedFd) -> Option<String> {
    let stat = fstat(file).ok()?;
    let id = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let pid = process.file_name().to_string_lossy().into_owned();
        if !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let Ok(descriptors) = fs::read_dir(process.path().join("fdinfo")) else {
            continue;
        };
        let holds = |text: String| text.lines().any(|line| line.starts_with("lock:") && line.contains(&id));
        if descriptors.flatten().any(|fd| fs::read_to_string(fd.path()).is_ok_and(holds)) {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let own = if pid == std::process::id().to_string() { ", this very process" } else { "" };
            return Some(format!("process {pid} ({}{own})", command.trim()));
        }
    }
    None
}
