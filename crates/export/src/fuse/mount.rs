//! A FUSE mount: made by mount(2) as root, by `fusermount3` otherwise, and taken away when dropped.
//!
//! Invariants:
//! 1. What was mounted is unmounted when the [`Mount`] is dropped, and only that: where something else lies at the
//!    path by then, it is left alone.
//! 2. A mount point that this program created is removed again, a file only if it is still empty.
//! 3. Nothing is mounted over a FUSE mount that is already there, alive or dead: the error says how to get rid of it.
//! 4. Nothing here waits for an answer of the file system that it mounts, which may not have a worker yet (or any
//!    more): stat goes with AT_STATX_DONT_SYNC, and what is dirty is written back by somebody who is waited for so long only
//!    (`write_back`).
//!
//! Unmounting is lazy (MNT_DETACH): the name goes away at once, open files keep working until the server closes
//! its end.
//!
//! Sources: mount(2), fusermount3(1), libfuse's `lib/mount.c` protocol (`_FUSE_COMMFD`).

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use super::abi::S_IFDIR;
use super::tree::{Files, Tree};
use super::write_back::write_back;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// Why a volume could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// A mount of a server that is gone.
    #[error("{}: the mount of a server that was killed is still there. Remove it by `{HELPER} -u {}` (as root: `umount {}`) and start again", .0.display(), .0.display(), .0.display())]
    Stale(PathBuf),
    /// A mount of somebody alive.
    #[error("{}: a FUSE file system is already mounted here. Stop its server, or choose another file", .0.display())]
    Busy(PathBuf),
    /// Neither a file nor a folder.
    #[error("{}: found {found}, expected {expected} to mount over", path.display())]
    Kind {
        /// The mount point.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// What was expected.
        expected: &'static str,
    },
    /// A call failed.
    #[error("{}: cannot {doing}: {source}{}", path.display(), hint(path, source))]
    Io {
        /// Where.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Pages were not written back.
    #[error(
        "{}: what clients have changed in mapped pages (mmap) may not be on the disk: {why}. Have them end, or say msync, before \
         the server is stopped, and check what they wrote last", path.display()
    )]
    WriteBack {
        /// The mount point.
        path: PathBuf,
        /// What went wrong.
        why: String,
    },
    /// `fusermount3` refused.
    #[error("{}: {HELPER} did not mount it: {said}", path.display())]
    Helper {
        /// The mount point.
        path: PathBuf,
        /// What it printed.
        said: String,
    },
}

fn hint(path: &Path, error: &io::Error) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    match (error.kind(), folder) {
        (ErrorKind::NotFound, Some(folder)) => {
            format!(" (there is no folder {}: make it first)", folder.display())
        }
        (ErrorKind::NotFound, None) => " (is FUSE there: `modprobe fuse`, package fuse3?)".into(),
        (ErrorKind::PermissionDenied, _) => " (FUSE needs /dev/fuse, and root or fusermount3)".into(),
        _ => String::new(),
    }
}

/// What lies at a mount point before anything is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// Nothing.
    Nothing,
}

/// Looks at a mount point without mounting.
///
/// # Errors
/// A FUSE mount that is there already, something that is neither file nor folder, or what the kernel says.
pub fn look(path: &Path) -> Result<Found, MountError> {
    let failed = |doing, error: Errno| MountError::Io { path: path.to_owned(), doing, source: error.into() };
    let flags = AtFlags::STATX_DONT_SYNC;
    let stat = match rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Found::Nothing),
        Err(Errno::NOTCONN | Errno::CONNABORTED) => return Err(MountError::Stale(path.to_owned())),
        Err(error) => return Err(failed("look at it", error)),
    };
    if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        const FUSE_SUPER_MAGIC: u32 = 0x6573_5546;
        // fstatfs of an O_PATH descriptor asks the server; its answer, or that there is none, is what is to be known.
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        match fd.and_then(|fd| rustix::fs::fstatfs(&fd)) {
            // Its server is gone, or goes while this is asked.
            Err(Errno::NOTCONN | Errno::CONNABORTED) => return Err(MountError::Stale(path.to_owned())),
            Ok(fs) if u32::try_from(fs.f_type) == Ok(FUSE_SUPER_MAGIC) => {
                return Err(MountError::Busy(path.to_owned()));
            }
            _ => {}
        }
    }
    match u32::from(stat.stx_mode) & 0o170_000 {
        0o100_000 => Ok(Found::File),
        0o040_000 => Ok(Found::Folder),
        mode => {
            Err(MountError::Kind { path: path.to_owned(), found: kind(mode), expected: "a file or a folder" })
        }
    }
}

fn kind(mode: u32) -> &'static str {
    match mode {
        0o060_000 => "a block device",
        0o020_000 => "a character device",
        0o010_000 => "a pipe",
        0o140_000 => "a socket",
        _ => "something else",
    }
}

/// What a mount is to be like.
#[derive(Clone, Copy, Debug)]
pub struct MountOptions {
    /// Type and permissions of its root.
    pub root_mode: u32,
    /// Whether users other than the server's may use it.
    pub allow_other: bool,
    /// Whether nothing in it can be written.
    pub read_only: bool,
}

/// A mount that this process made. Dropping it unmounts.
#[derive(Debug)]
pub struct Mount {
    point: MountPoint,
    is_folder: bool,
    mounted: bool,
    /// What clients may have changed is in these files, and how long its writing back may take.
    shown: Option<(Tree, Files)>,
    write_back_time: Duration,
}

/// Where something is mounted, for those who take it away without having the [`Mount`].
#[derive(Clone, Debug)]
pub struct MountPoint {
    path: PathBuf,
    created: Option<Found>,
    /// Its device number; none until it is known, which is at once.
    device: Option<(u32, u32)>,
    by_helper: bool,
    /// This process takes it away: what ends by that is no surprise.
    taken: Arc<AtomicBool>,
}

impl Mount {
    /// Mounts at `path`, creating the mount point if there is none. The descriptor is the server's end: non-blocking.
    ///
    /// # Errors
    /// See [`MountError`]; nothing is left behind then.
    pub fn new(path: &Path, options: MountOptions) -> Result<(Mount, OwnedFd), MountError> {
        let folder = options.root_mode & 0o170_000 == S_IFDIR;
        let (wanted, expected) = if folder { (Found::Folder, "a folder") } else { (Found::File, "a file") };
        let created = match look(path)? {
            Found::Nothing => {
                create(path, wanted)?;
                Some(wanted)
            }
            found if found == wanted => None,
            found => {
                let found = if found == Found::File { "a file" } else { "a folder" };
                return Err(MountError::Kind { path: path.to_owned(), found, expected });
            }
        };
        let absolute = fs::canonicalize(path).map_err(|source| failed(path, "resolve its path", source))?;
        let point =
            MountPoint { path: absolute, created, device: None, by_helper: false, taken: Arc::default() };
        let mut mount =
            Mount { point, is_folder: folder, mounted: false, shown: None, write_back_time: Duration::ZERO };
        let fd = mount.attach(options)?;
        Ok((mount, fd))
    }

    /// Where it is mounted, absolute.
    pub fn path(&self) -> &Path {
        &self.point.path
    }

    /// Whether it is a folder of files.
    pub fn is_folder(&self) -> bool {
        self.is_folder
    }

    /// By this it can be taken away from elsewhere.
    pub fn point(&self) -> MountPoint {
        self.point.clone()
    }

    /// Set before this process unmounts it.
    pub(super) fn taken(&self) -> Arc<AtomicBool> {
        self.point.taken.clone()
    }

    /// It shows these files so: before it is taken away, what is dirty of them is written back, for that long at most.
    pub(super) fn serves(&mut self, tree: Tree, files: Files, write_back_time: Duration) {
        (self.shown, self.write_back_time) = (Some((tree, files)), write_back_time);
    }

    /// Unmounts now; dropping would do the same but could not say what went wrong.
    ///
    /// # Errors
    /// What the kernel or `fusermount3` says. It is unmounted even if something could not be written back.
    pub fn unmount(mut self) -> Result<(), MountError> {
        match (self.write_back(), self.detach()) {
            (Err(also), Err(error)) => {
                log::warn!("{also}");
                Err(error)
            }
            (written, detached) => written.and(detached),
        }
    }

    fn attach(&mut self, options: MountOptions) -> Result<OwnedFd, MountError> {
        let point = &mut self.point;
        point.by_helper = !rustix::process::geteuid().is_root();
        let fd = if point.by_helper { point.by_helper(options)? } else { point.by_system_call(options)? };
        self.mounted = true;
        let device =
            device_at(&point.path).map_err(|source| failed(&point.path, "look at the mount", source))?;
        point.device = Some(device);
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(|e| failed(&point.path, "read flags", e.into()))?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)
            .map_err(|e| failed(&point.path, "make /dev/fuse non-blocking", e.into()))?;
        Ok(fd)
    }

    fn write_back(&mut self) -> Result<(), MountError> {
        let Some((mut tree, files)) = self.shown.take() else { return Ok(()) };
        if !(self.mounted && self.point.is_there()) {
            return Ok(());
        }
        tree.follow(&files);
        write_back(&tree.writable(&self.point.path), self.write_back_time)
            .map_err(|why| MountError::WriteBack { path: self.point.path.clone(), why })
    }

    fn detach(&mut self) -> Result<(), MountError> {
        if self.mounted {
            self.point.unmount()?;
        }
        self.mounted = false;
        let removed = self.point.remove_created();
        self.point.created = None;
        removed
    }
}

impl MountPoint {
    /// Takes away what was mounted, and the mount point where it was made for that. Nothing is written back before.
    ///
    /// # Errors
    /// What the kernel or `fusermount3` says.
    pub fn detach(&self) -> Result<(), MountError> {
        self.unmount()?;
        self.remove_created()
    }

    fn by_system_call(&self, options: MountOptions) -> Result<OwnedFd, MountError> {
        let fd: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(DEVICE)
            .map_err(|source| failed(Path::new(DEVICE), "open it", source))?
            .into();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
        let mut data = format!(
            "fd={number},rootmode={:o},user_id={uid},group_id={gid},default_permissions",
            options.root_mode
        );
        if options.allow_other {
            data.push_str(",allow_other");
        }
        let data = CString::new(data).expect("numbers and words hold no NUL");
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
        if options.read_only {
            flags |= MountFlags::RDONLY;
        }
        rustix::mount::mount("blockwork", &self.path, "fuse.blockwork", flags, data.as_c_str())
            .map_err(|error| failed(&self.path, "mount over it", error.into()))?;
        Ok(fd)
    }

    /// `fusermount3` gets one end of a socket pair as its standard input, mounts, and sends the descriptor over it.
    fn by_helper(&self, options: MountOptions) -> Result<OwnedFd, MountError> {
        let io = |doing| move |error: Errno| failed(Path::new(HELPER), doing, error.into());
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(io("make a socket pair"))?;
        let mut words =
            vec!["default_permissions", "nosuid", "nodev", "fsname=blockwork", "subtype=blockwork"];
        if options.allow_other {
            words.push("allow_other");
        }
        if options.read_only {
            words.push("ro");
        }
        let child = Command::new(HELPER)
            .arg("-o")
            .arg(words.join(","))
            .arg("--")
            .arg(&self.path)
            .env("_FUSE_COMMFD", "0")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| failed(Path::new(HELPER), "run it", source))?;
        let received = receive(&ours);
        let output =
            child.wait_with_output().map_err(|source| failed(Path::new(HELPER), "wait for it", source))?;
        match received.map_err(io("receive the descriptor"))? {
            Some(fd) if output.status.success() => Ok(fd),
            _ => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                let said = if said.is_empty() { output.status.to_string() } else { said };
                Err(MountError::Helper { path: self.path.clone(), said })
            }
        }
    }

    /// Whether what is mounted at the path is what was mounted there.
    fn is_there(&self) -> bool {
        self.device.is_none_or(|ours| device_at(&self.path).is_ok_and(|there| there == ours))
    }

    fn unmount(&self) -> Result<(), MountError> {
        if !self.is_there() {
            return Ok(());
        }
        self.taken.store(true, Ordering::Release);
        if !self.by_helper {
            return rustix::mount::unmount(&self.path, UnmountFlags::DETACH)
                .map_err(|error| failed(&self.path, "unmount it", error.into()));
        }
        let output = Command::new(HELPER)
            .args(["-u", "-z", "--"])
            .arg(&self.path)
            .output()
            .map_err(|source| failed(&self.path, "run fusermount3", source))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(MountError::Helper { path: self.path.clone(), said });
        }
        Ok(())
    }

    fn remove_created(&self) -> Result<(), MountError> {
        let removed = match self.created {
            Some(Found::File)
                if fs::metadata(&self.path).is_ok_and(|meta| meta.is_file() && meta.len() == 0) =>
            {
                fs::remove_file(&self.path)
            }
            Some(Found::Folder) => fs::remove_dir(&self.path),
            _ => Ok(()),
        };
        removed.map_err(|source| failed(&self.path, "remove it", source))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        for result in [self.write_back(), self.detach()] {
            if let Err(error) = result {
                log::warn!("{error}");
            }
        }
    }
}

fn failed(path: &Path, doing: &'static str, source: io::Error) -> MountError {
    MountError::Io { path: path.to_owned(), doing, source }
}

/// Private: what is served over it later is no one else's to read before its own permissions are in force.
fn create(path: &Path, what: Found) -> Result<(), MountError> {
    let done = match what {
        Found::Folder => fs::DirBuilder::new().mode(0o700).create(path),
        _ => OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(drop),
    };
    done.map_err(|source| failed(path, "create it", source))
}

/// The device number of what is mounted at `path`, from what the kernel has cached.
fn device_at(path: &Path) -> io::Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// The descriptor that `fusermount3` sends; none if it closed its end instead.
fn receive(socket: &OwnedFd) -> rustix::io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let into = &mut [IoSliceMut::new(&mut byte)];
        match recvmsg(socket.as_fd(), into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    if message.bytes == 0 {
        return Ok(None);
    }
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(fds.last())
}
