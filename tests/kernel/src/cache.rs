//! Where what a guest boots from is kept between runs: `target/kernel-guest`, or `$BLOCKWORK_GUEST_CACHE`.
//!
//! ```text
//! lock              held while something is made
//! apt/              packages as downloaded, and package lists of our own where the host's are out of date
//! system-KEY/       from the packages: kernel, root file system, modules for the initial RAM disk
//! initrd-KEY.cpio   the initial RAM disk, with the agent
//! ```
//!
//! A key is a hash of all that the thing is made from, so a change of a list or of a script makes a new one. Things are made under
//! another name and renamed, so that what is there is whole.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::error::GuestError;
use crate::{initrd, system};

/// The folder, and the lock on it.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    _lock: File,
}

/// What QEMU is given.
#[derive(Debug, Clone)]
pub(crate) struct BootFiles {
    /// The kernel, uncompressed: QEMU starts it without the seconds of unpacking by an emulated processor.
    pub(crate) kernel: PathBuf,
    /// The initial RAM disk.
    pub(crate) initrd: PathBuf,
    /// The root file system, for reading.
    pub(crate) root: PathBuf,
}

impl Cache {
    /// Waits for whoever makes something in it now.
    pub(crate) fn open() -> Result<Cache, GuestError> {
        let folder = match std::env::var_os("BLOCKWORK_GUEST_CACHE") {
            Some(folder) => PathBuf::from(folder),
            None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/kernel-guest"),
        };
        fs::create_dir_all(&folder).map_err(GuestError::file("cannot make the folder", &folder))?;
        let folder = folder.canonicalize().map_err(GuestError::file("cannot find", &folder))?;
        let path = folder.join("lock");
        let lock = File::create(&path).map_err(GuestError::file("cannot make", &path))?;
        lock.lock().map_err(GuestError::file("cannot lock", &path))?;
        Ok(Cache { folder, _lock: lock })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes what is not there.
    pub(crate) fn boot_files(&self) -> Result<BootFiles, GuestError> {
        let system = self.folder.join(format!("system-{:016x}", key(&system::ingredients())));
        if !system.exists() {
            self.remove_old("system-")?;
            let new = self.folder.join("new-system");
            if new.exists() {
                fs::remove_dir_all(&new).map_err(GuestError::file("cannot remove", &new))?;
            }
            system::make(&self.folder.join("apt"), &new)?;
            fs::rename(&new, &system).map_err(GuestError::file("cannot rename", &new))?;
        }
        let initrd = self.folder.join(format!("initrd-{:016x}.cpio", key(&(&system, initrd::ingredients()))));
        if !initrd.exists() {
            self.remove_old("initrd-")?;
            let new = self.folder.join("new-initrd");
            initrd::make(&system, &new)?;
            fs::rename(&new, &initrd).map_err(GuestError::file("cannot rename", &new))?;
        }
        Ok(BootFiles { kernel: system.join(system::KERNEL), root: system.join(system::ROOT), initrd })
    }

    /// What was made from other ingredients. A guest that still runs on it keeps its files open.
    fn remove_old(&self, prefix: &str) -> Result<(), GuestError> {
        let entries = fs::read_dir(&self.folder).map_err(GuestError::file("cannot list", &self.folder))?;
        for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        {
            let path = entry.path();
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(GuestError::file("cannot remove", path))?;
        }
        Ok(())
    }
}

fn key(ingredients: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    ingredients.hash(&mut hasher);
    hasher.finish()
}
