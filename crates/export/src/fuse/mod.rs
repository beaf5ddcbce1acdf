//! The FUSE export: a volume as a regular file, or several as files in folders, for a loop device or whatever else opens files.
//!
//! ```text
//!   mount() ─▶ Mount    (main thread: dropping it unmounts)
//!          └─▶ Session ─▶ FusePort (on a worker: reads requests, submits bios, writes replies)
//! ```
//!
//! Invariants:
//! 1. What a client wrote and then fsynced is durable: FSYNC is a flush bio, a write of a file opened with O_DSYNC or
//!    O_SYNC is a FUA bio (the kernel sends no FSYNC after a direct write; it passes the flag instead).
//! 2. A hole that was punched, and a range that was zeroed, reads as zeros. Punching is a write-zeroes that may unmap, never a
//!    discard, whose content afterwards is undefined: loop sends its write-zeroes as hole punching, too.
//! 3. A fallocate of the client's is one bio: none is cut here, and since statfs says 4096-byte blocks, loop (which takes
//!    its discard granularity from there) sends whole blocks only.
//! 4. The size of a file is its volume's, and cannot be changed from here: truncating to another size is EPERM, as
//!    ftruncate(2) says of file systems that cannot do it. Opening with O_TRUNC is such a truncation: programs that
//!    truncate first (dd without `conv=notrunc`, cp) take what they then skip for zeros, so pretending would lose data.
//! 5. The page cache is bypassed (FOPEN_DIRECT_IO), so a volume that other exports serve too is never read from a stale
//!    cache; mmap still works where the kernel allows it with that (6.6). What goes by the page cache all the same (mmap, sendfile, splice)
//!    finds no stale page after somebody has opened the file or looked at it (`pages`).
//! 6. What a client has changed by mmap before the mount is taken away is on the disk afterwards, whether the client has said msync or not
//!    (`write_back`). It is a volume's content like any other; only a server that is killed loses it.
//! 7. Which volumes there are, what they are called and how large they are, the kernel asks whenever a client wants to know it.
//!
//! Not here: growing files by writing behind their ends, extended attributes, locks (the kernel does those by itself), FUSE over io_uring.

pub mod abi;
mod mount;
mod pages;
mod port;
mod tree;
mod write_back;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use mount::{Found, Mount, MountError, MountOptions, MountPoint, look};
pub use port::FusePort;
pub use tree::{Entry, Files, NameError, Served, Tree, WHOLE};

/// Block size that statfs and stat report, in bytes: loop takes its discard granularity from it, so no discard below it
/// is made, and none that is not aligned to it.
pub const BLOCK: u32 = 4096;

/// How volumes are shown.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Permissions of the files; a read-only volume's has no write bits. The default is 0600, as a disk's
    /// content is not for every user to read.
    pub file_mode: u32,
    /// Whether other users than the server's may use the mount at all. By default as root: yes, within `file_mode`;
    /// otherwise no, since `fusermount3` allows it only where /etc/fuse.conf says `user_allow_other`.
    pub allow_other: bool,
    /// Whether nothing in it can ever be written.
    pub read_only: bool,
    /// How long unmounting waits for the kernel to write back what clients have changed in mapped pages.
    pub write_back_time: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            file_mode: 0o600,
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            write_back_time: Duration::from_secs(30),
        }
    }
}

/// Why an export could not be started.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// The mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The volumes' names.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No volume for a file.
    #[error("{}: there is no volume that it could be; a folder shows those that come later, too", .0.display())]
    Empty(std::path::PathBuf),
    /// More of them than a file has room for.
    #[error(
        "{}: it is a file, which can be one volume, and there are {}: name one of them, or give the path of a folder, or of nothing, for all \
         (--fuse FOLDER)",
        .0.display(),
        .1
    )]
    Several(std::path::PathBuf, usize),
}

/// The server's end of a mount, on its way to the worker that will serve it.
#[derive(Debug)]
pub struct Session {
    fd: OwnedFd,
    tree: Tree,
    files: Files,
    loss: Loss,
}

impl Session {
    /// Has `hook` called, once, on the worker, when the mount is served no more though neither its [`Mount`] nor its worker has ended that:
    /// somebody has unmounted it, and the last who had a file of it open has closed that; or its connection was aborted, or is
    /// one that cannot be served.
    #[must_use]
    pub fn when_lost(mut self, hook: impl FnOnce() + Send + 'static) -> Session {
        self.loss.hook = Some(Box::new(hook));
        self
    }

    /// The port that serves it. Make it on the worker's thread, and add it there; the mount answers from then on.
    pub fn into_port(self) -> FusePort {
        let Session { fd, tree, files, loss } = self;
        FusePort::new(Arc::new(fd), tree, files, loss)
    }
}

/// Whom it concerns that a mount is gone.
struct Loss {
    /// This process takes it away: nobody.
    taken: Arc<AtomicBool>,
    hook: Option<Box<dyn FnOnce() + Send>>,
}

impl Loss {
    /// It is gone.
    fn tell(&mut self) {
        if let Some(hook) = self.hook.take()
            && !self.taken.load(Ordering::Acquire)
        {
            hook();
        }
    }
}

impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loss").field("taken", &self.taken).finish_non_exhaustive()
    }
}

/// Mounts `files` at `path`: one volume over a file (created if there is nothing), or as many as you like in a folder
/// (likewise created, where there are several). A folder shows what comes and goes later, too.
///
/// Whatever opens the mount waits until the [`Session`]'s port is on a worker. On the way down drop the [`Mount`] first, while
/// the worker still runs, then stop the worker: pages that a client dirtied by mmap are written back then.
///
/// # Errors
/// See [`FuseError`]; nothing stays mounted or created.
pub fn mount(path: &Path, files: &Files, options: Options) -> Result<(Session, Mount), FuseError> {
    let count = files.look(|all| all.count());
    let is_folder = match (look(path)?, count) {
        (Found::File | Found::Nothing, 0) => return Err(FuseError::Empty(path.to_owned())),
        (Found::File, 2..) => return Err(FuseError::Several(path.to_owned(), count)),
        (Found::File | Found::Nothing, 1) => false,
        _ => true,
    };
    if is_folder {
        let unfit = files.look(|all| all.map(|seen| seen.one.check_path()).find(Result::is_err));
        unfit.unwrap_or(Ok(()))?;
    }
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let tree = || {
        let mut tree = Tree::new(is_folder, owner, options.file_mode);
        tree.follow(files);
        tree
    };
    let shown = tree();
    let mounting = MountOptions {
        root_mode: shown.root_mode(),
        allow_other: options.allow_other,
        // Of a folder, what comes later may be written.
        read_only: options.read_only || !is_folder && shown.volumes().all(|served| served.read_only),
    };
    let (mut mount, fd) = Mount::new(path, mounting)?;
    mount.serves(tree(), files.clone(), options.write_back_time);
    let loss = Loss { taken: mount.taken(), hook: None };
    Ok((Session { fd, tree: shown, files: files.clone(), loss }, mount))
}
