//! The kernel as a client: a volume's FUSE file under a loop device, mounted by the kernel's own file system.
//!
//! What was attached and mounted is taken down again in the reverse order, whatever becomes of the demo. Everything is
//! read-only.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A mounted file system; unmounted when dropped.
pub(crate) struct Mounted {
    /// Where it is.
    pub(crate) place: PathBuf,
    /// Detached after that.
    _device: Loop,
}

impl Mounted {
    /// Mounts the file system in `image` at `place`, a folder that is made.
    pub(crate) fn new(image: &Path, file_system: &str, place: &Path) -> Result<Mounted> {
        let device = Loop::over(image)?;
        std::fs::create_dir_all(place)?;
        let options = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount(&device.0, place, file_system, options, None)
            .with_context(|| format!("mount -t {file_system} {}", device.0))?;
        Ok(Mounted { place: place.to_owned(), _device: device })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if unmount(&self.place, UnmountFlags::empty()).is_err() {
            // Somebody is looking around in it: it goes when they do.
            let _ = unmount(&self.place, UnmountFlags::DETACH);
        }
    }
}

/// A loop device over a file, by its path; detached when dropped.
struct Loop(String);

impl Loop {
    fn over(image: &Path) -> Result<Loop> {
        let mut command = Command::new("losetup");
        command.args(["--read-only", "--direct-io=on", "--find", "--show"]).arg(image);
        let done = command.output().context("losetup")?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr).trim_end());
        Ok(Loop(String::from_utf8(done.stdout)?.trim_end().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).output();
    }
}
