//! Loop devices over a disk: they take no lock, and do not claim what they are over.
//!
//! sysfs tells everybody the path of what a loop device is over; device and inode would be told by LOOP_GET_STATUS64 only, to who may open the loop
//! device. So what is at that path is compared by device and inode. What cannot be reached by it is not found: a file that has another name than the one
//! by which the device was set up, where that is gone, and one in another namespace of mounts.
//!
//! Invariant: nobody is waited for who does not have the disk itself: file systems whose servers may not answer (FUSE, NFS), one of which may be this very
//! process, are not looked into, unless the disk lies there, too.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat, major, minor, stat};

use super::claim::{self, unescaped};
use super::lock;
use crate::error::LeafError;

/// A loop device over a disk.
#[derive(Debug)]
struct Loop {
    /// `/dev/loop0`.
    device: String,
    /// ` (mounted at /srv)`, if it is in use.
    use_of_it: String,
    /// What takes it away.
    release: Vec<String>,
    is_read_only: bool,
    /// It goes when the last who has it open closes it, and has no use that is known.
    is_leaving: bool,
}

/// Refuses to write to what a loop device is over. Who only reads is told of one by which it is written.
pub(super) fn check(
    name: &str,
    disk: &Stat,
    read_only: bool,
    warnings: &mut Vec<String>,
) -> Result<(), LeafError> {
    let attempt = || {
        let mut found = loops_over(disk);
        found.retain(|it| !read_only || !it.is_read_only);
        if found.is_empty() { Ok(()) } else { Err(found) }
    };
    // After `losetup -d`, it may be open a moment longer, by udev.
    let is_leaving = |found: &Vec<Loop>| found.iter().all(|it| it.is_leaving);
    let Err(found) = lock::until_released(attempt, is_leaving) else { return Ok(()) };
    let list = |words: Vec<String>, by| words.join(by);
    let what = list(found.iter().map(|it| format!("{}{}", it.device, it.use_of_it)).collect(), ", ");
    let release = list(found.into_iter().flat_map(|it| it.release).collect(), " and ");
    if read_only {
        warnings.push(format!(
            "{what} is a loop device over it: what is written there meanwhile is read late, or in part; release it first ({release}), or say \
             with lock=off that this is intended"
        ));
        return Ok(());
    }
    Err(LeafError::InUse {
        name: name.to_owned(),
        holder: format!("{what} is a loop device over it"),
        remedy: format!(
            "two writers would destroy each other's data: release it first ({release}), or open it with ',ro', or with ',lock=off' if nobody \
             uses it there"
        ),
    })
}

fn loops_over(disk: &Stat) -> Vec<Loop> {
    // Not /sys/block: in its sandbox a server may look here.
    let devices = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let mut found = Vec::new();
    let mut mounts = None;
    for device in devices.filter(|device| device.file_name().as_encoded_bytes().starts_with(b"loop")) {
        let text = |file: &str| fs::read_to_string(device.path().join(file)).unwrap_or_default();
        let Ok(backing) = fs::read(device.path().join("loop/backing_file")) else { continue };
        let Some(path) = backing.strip_suffix(b"\n").filter(|path| !path.is_empty()) else { continue };
        let mounts = mounts.get_or_insert_with(|| fs::read("/proc/self/mountinfo").unwrap_or_default());
        let mounts = &String::from_utf8_lossy(mounts);
        if is_it(disk, path, mounts) {
            let numbers = text("dev");
            let name = format!("/dev/{}", device.file_name().display());
            let (uses, mut release) = claim::of_numbers(numbers.trim());
            release.push(format!("losetup -d {name}"));
            found.push(Loop {
                is_leaving: uses.is_empty() && text("loop/autoclear").trim() == "1",
                use_of_it: if uses.is_empty() { String::new() } else { format!(" ({})", uses.join(", ")) },
                release,
                is_read_only: text("ro").trim() == "1",
                device: name,
            });
        }
    }
    found
}

/// Whether a disk is what `path` tells, as sysfs writes it. Of a file without a name, it ends in ` (deleted)`: what has the name now is another one.
fn is_it(disk: &Stat, path: &[u8], mounts: &str) -> bool {
    let path = Path::new(OsStr::from_bytes(path));
    may_be_looked_at(disk, path, mounts) && stat(path).is_ok_and(|there| is_same(disk, &there))
}

fn is_same(disk: &Stat, there: &Stat) -> bool {
    let types = [disk, there].map(|stat| FileType::from_raw_mode(stat.st_mode));
    match types {
        [FileType::BlockDevice, FileType::BlockDevice] => {
            disk.st_rdev == there.st_rdev || is_part(&folder_of(disk.st_rdev), &folder_of(there.st_rdev))
        }
        [FileType::RegularFile, FileType::RegularFile] => {
            (disk.st_dev, disk.st_ino) == (there.st_dev, there.st_ino)
        }
        _ => false,
    }
}

/// A device's folder in sysfs, in which those of its partitions are.
fn folder_of(device: u64) -> Option<PathBuf> {
    fs::canonicalize(format!("/sys/dev/block/{}:{}", major(device), minor(device))).ok()
}

/// Whether one of two is a partition of the other.
fn is_part(one: &Option<PathBuf>, other: &Option<PathBuf>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return false };
    one.starts_with(other) || other.starts_with(one)
}

/// Whether the file system of a path answers by itself, or has the disk as well, which was opened by now.
fn may_be_looked_at(disk: &Stat, path: &Path, mounts: &str) -> bool {
    /// As mountinfo calls them; the ones of FUSE have names of their own behind a dot.
    const OF_SERVERS: [&str; 8] = ["fuse", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "9p", "ceph"];
    let at = |line: &str| -> Option<(usize, bool)> {
        let (place, file_system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(2);
        let (device, point) = (place.next()?, unescaped(place.nth(1)?));
        let kind = file_system.split(['.', ' ']).next()?;
        let has_disk = device == format!("{}:{}", major(disk.st_dev), minor(disk.st_dev));
        let is_below = path.starts_with(&point);
        is_below.then(|| (point.len(), has_disk || !OF_SERVERS.contains(&kind)))
    };
    // Of several at one place, the last one hides the others.
    mounts.lines().filter_map(at).max_by_key(|(len, _)| *len).is_none_or(|(_, may)| may)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                          23 22 0:40 / /mnt/a\\040b rw - fuse.sshfs host:/ rw\n\
                          24 22 0:41 / /srv rw - nfs4 server:/ rw\n\
                          25 24 8:2 / /srv rw - xfs /dev/sda2 rw\n\
                          26 22 0:42 / /one.img rw - fuse blockwork rw\n";

    #[test]
    fn file_systems_of_servers_are_asked_only_where_the_disk_lies_there_too() {
        let here = stat("/").unwrap();
        let may = |path| may_be_looked_at(&here, Path::new(path), MOUNTS);
        assert!(may("/var/a.img") && may("/srv/a.img") && may("/mnt/a.img") && may("/one.img.old"));
        assert!(!may("/mnt/a b/c.img") && !may("/one.img"));
        let there =
            format!("27 22 {}:{} / /here rw - fuse.own own rw", major(here.st_dev), minor(here.st_dev));
        assert!(may_be_looked_at(&here, Path::new("/here/a.img"), &there));
    }

    #[test]
    fn a_file_is_known_by_its_inode_under_each_of_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("a"), "").unwrap();
        fs::write(path("b"), "").unwrap();
        fs::hard_link(path("a"), path("c")).unwrap();
        let a = stat(path("a")).unwrap();
        let is_a = |name: &str| is_it(&a, path(name).as_bytes(), "");
        assert!(is_a("a") && is_a("c") && !is_a("b") && !is_a("a (deleted)"));
        fs::rename(path("a"), path("a (deleted)")).unwrap();
        assert!(is_a("a (deleted)") && !is_a("a"));
    }

    #[test]
    fn a_disk_and_its_partition_are_one() {
        let at = |place: &str| Some(PathBuf::from(place));
        let (disk, part) = (at("/sys/block/sda"), at("/sys/block/sda/sda1"));
        assert!(is_part(&disk, &part) && is_part(&part, &disk));
        assert!(!is_part(&part, &at("/sys/block/sda/sda2")) && !is_part(&disk, &at("/sys/block/sdab")));
        assert!(!is_part(&disk, &None));
    }
}
