//! Loop devices, mounts, trees of files, and hashes of what must not change.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{noise, output, run, tool};

/// A loop device over a file; detached when dropped.
pub struct Loop {
    /// `/dev/loopN`.
    pub device: String,
}

impl Loop {
    /// With direct I/O.
    pub fn over(file: &str) -> Loop {
        Loop::with(&["--direct-io=on"], file)
    }

    pub fn with(options: &[&str], file: &str) -> Loop {
        let device = run(tool("losetup").args(["--find", "--show"]).args(options).arg(file));
        Loop { device: device.trim().to_owned() }
    }

    /// A file of its folder in sysfs.
    pub fn sysfs(&self, name: &str) -> String {
        let path = format!("/sys/block/{}/{name}", self.device.trim_start_matches("/dev/"));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        output(tool("losetup").args(["--detach", &self.device]));
    }
}

/// A mounted file system; unmounted when dropped.
pub struct Mounted {
    pub place: PathBuf,
    mounted: bool,
}

impl Mounted {
    /// Mounts `device` at `place`, a folder that is made.
    pub fn new(device: &str, place: &Path) -> Mounted {
        fs::create_dir_all(place).expect("a mount point");
        run(tool("mount").arg(device).arg(place));
        Mounted { place: place.to_owned(), mounted: true }
    }

    pub fn unmount(mut self) {
        run(tool("umount").arg(&self.place));
        self.mounted = false;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted {
            output(tool("umount").arg(&self.place));
        }
    }
}

/// Unmounts, however often, what a killed server has left there.
pub struct LeftMount(pub PathBuf);

impl Drop for LeftMount {
    fn drop(&mut self) {
        output(tool("umount").arg("--lazy").arg("--quiet").arg(&self.0));
    }
}

/// Files of many sizes in folders.
pub fn make_tree(root: &Path) {
    for (i, size) in (0u64..).zip([0, 1, 511, 4096, 4097, 65_536, 300_000, 1 << 20, (3 << 20) + 3]) {
        let folder = root.join(format!("folder{}", i % 3));
        fs::create_dir_all(&folder).expect("a folder");
        for copy in 0..4 {
            fs::write(folder.join(format!("file{i}-{copy}")), noise(size, 1 + i * 8 + copy)).expect("a file");
        }
    }
}

/// All files of a tree with their checksums.
pub fn checksums(root: &Path) -> String {
    run(tool("sh").current_dir(root).args(["-c", "find . -type f -print0 | sort -z | xargs -0 sha256sum"]))
}

/// Content, length and times of a file: nothing may have been written if these are as before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Print {
    hash: u64,
    len: u64,
    blocks: u64,
    modified: (i64, i64),
}

/// See [`Print`].
pub fn print_of(path: &str) -> Print {
    use std::os::unix::fs::MetadataExt;
    let mut file = fs::File::open(path).expect("it is there");
    let data = file.metadata().expect("it has");
    let mut hasher = DefaultHasher::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece).expect("it can be read") {
            0 => break,
            n => hasher.write(&piece[..n]),
        }
    }
    Print {
        hash: hasher.finish(),
        len: data.len(),
        blocks: data.blocks(),
        modified: (data.mtime(), data.mtime_nsec()),
    }
}
