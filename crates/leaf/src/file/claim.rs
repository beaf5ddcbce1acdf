//! Who claims a block device that cannot be opened exclusively.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{fstat, major, minor};

use super::lock;
use crate::error::LeafError;

/// The error for a device that is busy, naming its claimants where the kernel tells.
pub(super) fn in_use(name: &str, file: &OwnedFd) -> LeafError {
    let claimants = claimants_of(file);
    let (holder, remedy) = match claimants.as_slice() {
        [] => match lock::holder(file) {
            Some(holder) => (format!("it is locked by {holder}"), "stop that first".to_owned()),
            None => (
                "it is in use by the kernel or by another program (EBUSY)".to_owned(),
                "release it first".to_owned(),
            ),
        },
        list => {
            let what = list.iter().map(|claim| claim.what.as_str()).collect::<Vec<_>>().join(", ");
            let how = list.iter().map(|claim| claim.release.as_str()).collect::<Vec<_>>().join(" and ");
            (what, format!("release it first ({how})"))
        }
    };
    LeafError::InUse { name: name.to_owned(), holder, remedy: format!("{remedy}, or open it with ',ro'") }
}

/// Whether nobody can be found who has the device, though it is busy.
pub(super) fn is_nobodys(file: &OwnedFd) -> bool {
    claimants_of(file).is_empty() && lock::holder(file).is_none()
}

fn claimants_of(file: &OwnedFd) -> Vec<Claim> {
    fstat(file).map(|stat| claimants(major(stat.st_rdev), minor(stat.st_rdev))).unwrap_or_default()
}

/// What claims the device of these numbers (`7:0`) or its partitions, and how each of that is undone.
pub(super) fn of_numbers(numbers: &str) -> (Vec<String>, Vec<String>) {
    let numbers =
        numbers.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let found = numbers.map(|(major, minor)| claimants(major, minor)).unwrap_or_default();
    found.into_iter().map(|claim| (claim.what, claim.release)).unzip()
}

struct Claim {
    /// What there is, such as `mounted at /srv`.
    what: String,
    /// How to undo it.
    release: String,
}

/// All that claims the device or one of its partitions.
fn claimants(major: u32, minor: u32) -> Vec<Claim> {
    let place = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    let mut found = claims_on(&format!("{major}:{minor}"), &place, "");
    for entry in fs::read_dir(&place).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            let id = fs::read_to_string(entry.path().join("dev")).unwrap_or_default();
            let name = entry.file_name().to_string_lossy().into_owned();
            found.extend(claims_on(id.trim(), &entry.path(), &format!("its partition {name} is ")));
        }
    }
    found
}

fn claims_on(id: &str, place: &Path, whose: &str) -> Vec<Claim> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<Claim> = mounts
        .lines()
        .filter_map(|line| mounted_at(line, id))
        .map(|at| Claim { what: format!("{whose}mounted at {at}"), release: format!("umount {at}") })
        .collect();
    for holder in fs::read_dir(place.join("holders")).into_iter().flatten().flatten() {
        let holder = holder.file_name().to_string_lossy().into_owned();
        found.push(Claim { what: format!("{whose}part of {holder}"), release: format!("stop {holder}") });
    }
    found
}

/// The mount point in a line of mountinfo, if it is of the device `id`. See proc_pid_mountinfo(5).
fn mounted_at(line: &str, id: &str) -> Option<String> {
    let mut fields = line.split(' ');
    let device = fields.nth(2)?;
    let at = fields.nth(1)?;
    (device == id).then(|| unescaped(at))
}

/// A path as mountinfo writes it: blanks, backslashes and the like by their octal numbers.
pub(super) fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_owned(), |path, (octal, letter)| path.replace(octal, letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_device_number() {
        let line =
            "36 35 98:0 /mnt1 /srv/my\\040disk rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(mounted_at(line, "98:0").as_deref(), Some("/srv/my disk"));
        assert_eq!(mounted_at(line, "98:1"), None);
        assert_eq!(mounted_at("", "98:0"), None);
    }
}
