//! Debian's packages: downloads those of the guest with all that they depend on, and unpacks them.
//!
//! apt-get is asked as on a machine on which nothing is installed, with state and cache of our own: it needs no root, changes
//! nothing on the host, checks signatures, and knows the host's mirrors.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::GuestError;
use crate::programs::{command, complete};

/// What scripts may want; dependencies come along.
pub(crate) const PACKAGES: [&str; 22] = [
    "bash",
    "blktrace",
    "bsdextrautils",
    "busybox-static",
    "coreutils",
    "diffutils",
    "e2fsprogs",
    "fdisk",
    "findutils",
    "fio",
    "gdisk",
    "grep",
    "kmod",
    "linux-image-amd64",
    "lvm2",
    "mawk",
    "mdadm",
    "mount",
    "sed",
    "thin-provisioning-tools",
    "util-linux",
    "xfsprogs",
];

/// Packages, by the start of their name, that are dependencies of maintainer scripts and not of programs.
pub(crate) const LEFT_OUT: [&str; 6] = ["perl", "libperl", "python3", "libpython3", "adduser_", "usrmerge_"];

/// Downloads what is not there yet into `apt`/archives, and returns the files of all packages.
pub(crate) fn download(apt: &Path) -> Result<Vec<PathBuf>, GuestError> {
    for folder in ["archives/partial", "lists/partial"] {
        let path = apt.join(folder);
        fs::create_dir_all(&path).map_err(GuestError::file("cannot make the folder", &path))?;
    }
    let status = apt.join("status");
    fs::write(&status, "").map_err(GuestError::file("cannot write", &status))?;
    // The host's lists are good enough as long as what they name can still be had.
    if let Ok(files) = install(apt, &[]) {
        return Ok(files);
    }
    let lists = format!("Dir::State::Lists={}", apt.join("lists").display());
    complete("apt-get update", apt_get(apt).args(["-o", &lists, "update"]))?;
    install(apt, &["-o", &lists])
}

fn install(apt: &Path, options: &[&str]) -> Result<Vec<PathBuf>, GuestError> {
    let mut command = apt_get(apt);
    command.args(options).args(["--no-install-recommends", "--download-only", "install"]).args(PACKAGES);
    complete("downloading the guest's packages with apt-get", &mut command)?;
    // Older versions may be beside them, from an earlier day.
    let plan = complete("listing the guest's packages with apt-get", command.arg("--simulate"))?;
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    Ok(plan.lines().filter_map(file_name).map(|name| apt.join("archives").join(name)).collect())
}

/// Of `Inst NAME (VERSION SOURCES... [ARCHITECTURE])`, as apt-get simulates; none for other lines.
fn file_name(line: &str) -> Option<String> {
    let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
    let (plan, _) = rest.split_once(')')?;
    let version = plan.split(' ').next()?.replace(':', "%3a");
    let architecture = plan.rsplit_once('[')?.1.strip_suffix(']')?;
    Some(format!("{name}_{version}_{architecture}.deb"))
}

fn apt_get(apt: &Path) -> std::process::Command {
    let mut command = command("apt-get");
    command.args(["-q", "-y"]);
    for (option, value) in [
        ("Dir::State::status", apt.join("status").display().to_string()),
        ("Dir::Cache::archives", apt.join("archives").display().to_string()),
        ("Acquire::Retries", "5".to_owned()),
        // The host's own lock is for those who install.
        ("Debug::NoLocking", "1".to_owned()),
        ("APT::Sandbox::User", String::new()),
    ] {
        command.arg("-o").arg(format!("{option}={value}"));
    }
    command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Unpacks the packages but those that are left out, without running their scripts.
pub(crate) fn unpack(packages: &[PathBuf], root: &Path) -> Result<(), GuestError> {
    for package in packages {
        let name = package.file_name().unwrap_or_default().to_string_lossy();
        if !LEFT_OUT.iter().any(|start| name.starts_with(start)) {
            complete("unpacking a package", command("dpkg-deb").arg("--extract").arg(package).arg(root))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_package_is_named_by_what_apt_would_install() {
        let line = "Inst lvm2 (2.03.16-2 Debian:12.11/oldstable [amd64]) [libc6:amd64 ]";
        assert_eq!(file_name(line).as_deref(), Some("lvm2_2.03.16-2_amd64.deb"));
        let line = "Inst busybox-static (1:1.35.0-4+b1 Debian:12/stable, Debian-Security:12/stable [amd64])";
        assert_eq!(file_name(line).as_deref(), Some("busybox-static_1%3a1.35.0-4+b1_amd64.deb"));
        assert_eq!(file_name("Conf lvm2 (2.03.16-2 Debian:12.11/oldstable [amd64])"), None);
    }
}
