//! Loop devices, mounts, trees of files, and hashes of what must not change.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, fcntl_lock};

use super::{Scratch, noise, output, run, tool};

/// Whether nobody has a disk locked, at this very moment.
pub fn is_free(disk: &str) -> bool {
    let file = fs::File::options().read(true).write(true).open(disk).expect("it is there");
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

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
        sysfs(&self.device, name)
    }

    /// Has it go when the last who has it open closes it; its name, which may be another's then.
    pub fn leave(mut self) -> String {
        run(tool("losetup").args(["--detach", &self.device]));
        std::mem::take(&mut self.device)
    }
}

/// A file of a device's folder in sysfs.
pub fn sysfs(device: &str, name: &str) -> String {
    let path = format!("/sys/block/{}/{name}", device.trim_start_matches("/dev/"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

impl Drop for Loop {
    fn drop(&mut self) {
        if self.device.is_empty() {
            return;
        }
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

/// A disk of a scratch folder on a file system of its own, which has not room for all of it.
pub struct SmallDisk {
    tmpfs: LeftMount,
    disk: PathBuf,
}

impl SmallDisk {
    /// An empty one in the place of a disk of so many MiB.
    pub fn new(scratch: &Scratch, disk: &str, mib: u64, room_mib: u64) -> SmallDisk {
        let tmpfs = LeftMount(scratch.path("tmpfs"));
        fs::create_dir(&tmpfs.0).expect("a folder");
        run(tool("mount").args(["-t", "tmpfs", "-o", &format!("size={room_mib}m"), "tmpfs"]).arg(&tmpfs.0));
        fs::remove_file(scratch.path(disk)).expect("it is there");
        scratch.sparse(&format!("tmpfs/{disk}"), mib << 20);
        let place = tmpfs.0.join(disk);
        std::os::unix::fs::symlink(&place, scratch.path(disk)).expect("a link");
        SmallDisk { tmpfs, disk: place }
    }

    /// What is there from `offset` on is given up: zeros are read.
    pub fn punch(&self, offset: u64, length: u64) {
        let (offset, length) = (offset.to_string(), length.to_string());
        let punch = ["--punch-hole", "--offset", &offset, "--length", &length];
        run(tool("fallocate").args(punch).arg(&self.disk));
    }

    /// From now on, only what holds something can be written: not what is free of the group's area for texts, at the beginning.
    pub fn fill_up(&self) {
        // A page less than that: it digs one more than it is told to, whatever that holds.
        run(tool("fallocate").args(["--dig-holes", "--offset", "0", "--length", "1044480"]).arg(&self.disk));
        let filler = format!("of={}", self.tmpfs.0.join("filler").display());
        let full = output(tool("dd").args(["if=/dev/zero", "bs=4k"]).arg(filler));
        assert!(!full.status.success(), "it ends when there is no room left");
    }

    /// After [`SmallDisk::fill_up`]: there is room for so many pages of 4 KiB.
    pub fn make_room_for(&self, pages: u64) {
        let filler = fs::File::options().write(true).open(self.tmpfs.0.join("filler")).expect("it is there");
        let length = filler.metadata().expect("its length").len();
        filler.set_len(length / 4096 * 4096 - pages * 4096).expect("it is cut");
    }

    /// There is room again.
    pub fn make_room(&self) {
        fs::remove_file(self.tmpfs.0.join("filler")).expect("it is there");
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
