//! What is made from Debian's packages: the kernel, the root file system, and the modules that find it.
//!
//! The root file system is an image that the guest mounts for reading: so it costs no memory and no boot time that a script
//! does not use, and any number of guests share it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::error::GuestError;
use crate::packages;
use crate::programs::{command, complete};

/// Names in the system's folder.
pub(crate) const KERNEL: &str = "vmlinux";
pub(crate) const ROOT: &str = "root.img";
pub(crate) const BUSYBOX: &str = "busybox";
/// The modules for the initial RAM disk, named so that they load in the order of their names.
pub(crate) const MODULES: &str = "modules";

/// Modules without which the root file system cannot be had, or the agent not be spoken to.
const BOOT_MODULES: [&str; 7] =
    ["virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "virtio_scsi", "sd_mod", "virtio_console"];

/// Folders of the packages that no script needs, two thirds of all. `*` is the kernel's release.
const LEFT_OUT: [&str; 19] = [
    "boot",
    "usr/share/doc",
    "usr/share/i18n",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/perl",
    "lib/modules/*/kernel/sound",
    "lib/modules/*/kernel/net/mac80211",
    "lib/modules/*/kernel/net/wireless",
    "lib/modules/*/kernel/drivers/bluetooth",
    "lib/modules/*/kernel/drivers/gpu",
    "lib/modules/*/kernel/drivers/hid",
    "lib/modules/*/kernel/drivers/iio",
    "lib/modules/*/kernel/drivers/infiniband",
    "lib/modules/*/kernel/drivers/media",
    "lib/modules/*/kernel/drivers/net",
    "lib/modules/*/kernel/drivers/staging",
    "lib/modules/*/kernel/drivers/usb",
];

/// Where the guest mounts something, or finds its disks.
const MOUNT_POINTS: [&str; 5] = ["d", "in", "mnt", "out", "run/lock"];

const CONFIGURATION: [(&str, &str); 4] = [
    ("etc/lvm/lvm.conf", include_str!("../guest/lvm.conf")),
    ("etc/mdadm/mdadm.conf", include_str!("../guest/mdadm.conf")),
    ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
    ("etc/group", "root:x:0:\ndisk:x:6:\n"),
];

/// Room beside the files in the image: its own tables.
const IMAGE_SPARE: u64 = 64 << 20;

/// All that decides what the system is; but for the packages' versions, which are those of the day it is made.
pub(crate) fn ingredients() -> impl std::hash::Hash {
    (packages::PACKAGES, packages::LEFT_OUT, BOOT_MODULES, LEFT_OUT, MOUNT_POINTS, CONFIGURATION)
}

/// Makes it in the new folder `folder`, from packages that are kept in `apt`.
pub(crate) fn make(apt: &Path, folder: &Path) -> Result<(), GuestError> {
    let root = folder.join("root");
    fs::create_dir_all(&root).map_err(GuestError::file("cannot make the folder", &root))?;
    packages::unpack(&packages::download(apt)?, &root)?;
    let release = release(&root)?;
    unpack_kernel(&root.join(format!("boot/vmlinuz-{release}")), &folder.join(KERNEL))?;
    for path in LEFT_OUT.map(|path| root.join(path.replace('*', &release))) {
        if path.exists() {
            fs::remove_dir_all(&path).map_err(GuestError::file("cannot remove", path))?;
        }
    }
    complete("listing the kernel's modules", command("depmod").arg("-b").arg(&root).arg(&release))?;
    copy_modules(&root.join("lib/modules").join(&release), &folder.join(MODULES))?;
    let busybox = root.join("bin/busybox");
    fs::copy(&busybox, folder.join(BUSYBOX)).map_err(GuestError::file("cannot copy", busybox))?;
    configure(&root)?;
    make_image(&root, &folder.join(ROOT))?;
    fs::remove_dir_all(&root).map_err(GuestError::file("cannot remove", root))
}

/// The kernel's release, as its modules name it.
fn release(root: &Path) -> Result<String, GuestError> {
    let folder = root.join("lib/modules");
    let mut entries = fs::read_dir(&folder).map_err(GuestError::file("cannot list", &folder))?;
    let name =
        entries.next().and_then(Result::ok).map(|entry| entry.file_name().to_string_lossy().into_owned());
    name.ok_or_else(|| GuestError::Package { path: folder, found: "no kernel in the packages".to_owned() })
}

/// Debian's vmlinuz is a loader with an xz stream in it, which is the kernel as an ELF file.
fn unpack_kernel(vmlinuz: &Path, to: &Path) -> Result<(), GuestError> {
    const XZ_MAGIC: &[u8] = b"\xfd7zXZ\0";
    let mut file = File::open(vmlinuz).map_err(GuestError::file("cannot open", vmlinuz))?;
    let mut image = Vec::new();
    file.read_to_end(&mut image).map_err(GuestError::file("cannot read", vmlinuz))?;
    let start = image.windows(XZ_MAGIC.len()).position(|window| window == XZ_MAGIC);
    let start = start.ok_or_else(|| GuestError::Package {
        path: vmlinuz.to_owned(),
        found: "no xz stream in it: this kernel is packed in another way, which unpack_kernel must learn"
            .to_owned(),
    })?;
    file.seek(SeekFrom::Start(start as u64)).map_err(GuestError::file("cannot read", vmlinuz))?;
    let mut xz = command("xz");
    let unpacked = complete(
        "unpacking the kernel",
        xz.args(["--decompress", "--stdout", "--single-stream"]).stdin(file),
    )?;
    fs::write(to, unpacked.stdout).map_err(GuestError::file("cannot write", to))
}

/// Copies the modules for booting with all that they need, numbered in the order in which they must be loaded.
fn copy_modules(from: &Path, to: &Path) -> Result<(), GuestError> {
    fs::create_dir(to).map_err(GuestError::file("cannot make the folder", to))?;
    let list = from.join("modules.dep");
    let text = fs::read_to_string(&list).map_err(GuestError::file("cannot read", &list))?;
    let needs: BTreeMap<&str, Vec<&str>> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(module, needs)| (module, needs.split_whitespace().collect()))
        .collect();
    let mut order: Vec<&str> = Vec::new();
    for name in BOOT_MODULES {
        let file = format!("/{name}.ko");
        let module =
            needs.keys().find(|module| module.ends_with(&file)).ok_or_else(|| GuestError::Package {
                path: list.clone(),
                found: format!("no module {name}: BOOT_MODULES names one that this kernel has not"),
            })?;
        // depmod lists what must come first last.
        for module in needs[module].iter().rev().chain([module]) {
            if !order.contains(module) {
                order.push(module);
            }
        }
    }
    for (number, module) in order.iter().enumerate() {
        let path = from.join(module);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        fs::copy(&path, to.join(format!("{number:02}-{name}")))
            .map_err(GuestError::file("cannot copy", &path))?;
    }
    Ok(())
}

fn configure(root: &Path) -> Result<(), GuestError> {
    for path in MOUNT_POINTS.map(|path| root.join(path)) {
        fs::create_dir_all(&path).map_err(GuestError::file("cannot make the folder", path))?;
    }
    for (path, text) in CONFIGURATION {
        let path = root.join(path);
        let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
        fs::create_dir_all(&folder).map_err(GuestError::file("cannot make the folder", folder))?;
        fs::write(&path, text).map_err(GuestError::file("cannot write", path))?;
    }
    let mtab = root.join("etc/mtab");
    symlink("/proc/mounts", &mtab).map_err(GuestError::file("cannot link", mtab))
}

fn make_image(root: &Path, image: &Path) -> Result<(), GuestError> {
    let size = bytes_in(root)? + IMAGE_SPARE;
    let mut mkfs = command("mkfs.ext4");
    mkfs.args(["-q", "-F", "-m", "0", "-b", "4096", "-O", "^has_journal", "-E", "root_owner=0:0", "-d"]);
    mkfs.arg(root).arg(image).arg(format!("{}K", size.div_ceil(4096) * 4));
    complete("making the guest's root file system", &mut mkfs).map(drop)
}

/// What the files take in blocks of 4 KiB, and an inode each.
fn bytes_in(folder: &Path) -> Result<u64, GuestError> {
    const BLOCK: u64 = 4096;
    let entries = fs::read_dir(folder).map_err(GuestError::file("cannot list", folder))?;
    let mut sum = 0;
    for entry in entries {
        let entry = entry.map_err(GuestError::file("cannot list", folder))?;
        let metadata = entry.metadata().map_err(GuestError::file("cannot look at", entry.path()))?;
        sum += BLOCK + metadata.len().next_multiple_of(BLOCK);
        if metadata.is_dir() {
            sum += bytes_in(&entry.path())?;
        }
    }
    Ok(sum)
}
