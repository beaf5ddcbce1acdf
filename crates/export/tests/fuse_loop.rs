//! File systems on a loop device over the FUSE export: the kernel's loop driver, XFS and ext4 are the judges.
//!
//! Needs root, /dev/fuse and free loop devices.

use std::fs;
use std::path::Path;

use blockwork_engine::Op;

mod fuse_support;
mod tap;
use fuse_support::{Disk, Loop, Mounted, Server, noise, run, text};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Files of many sizes, some in folders; as their own checksums.
fn make_tree(root: &Path) {
    for (i, size) in (0u64..).zip([0, 1, 511, 4096, 4097, 65_536, 300_000, 1 << 20, (5 << 20) + 3]) {
        let folder = root.join(format!("folder{}", i % 3));
        fs::create_dir_all(&folder).unwrap();
        for copy in 0..8 {
            let path = folder.join(format!("file{i}-{copy}"));
            fs::write(path, noise(i * 8 + copy, usize::try_from(size).unwrap())).unwrap();
        }
    }
}

fn checksums(root: &Path) -> String {
    run(
        "sh",
        &["-c", &format!("cd '{}' && find . -type f -print0 | sort -z | xargs -0 sha256sum", text(root))],
    )
}

/// Copies a tree to a new file system over loop over FUSE, trims it, checks it with its own tool, and finds the
/// tree there again after everything was taken down and put up once more.
fn a_real_workload(mkfs: &[&str], check: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let (disk, file) = (Disk::sparse(dir.path(), "vg/lv", 2 * GIB), dir.path().join("mnt"));
    let backing = disk.path.clone();
    let allocated = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&backing).unwrap()) * 512;
    let source = dir.path().join("source");
    make_tree(&source);
    let expected = checksums(&source);

    let server = Server::start(&file, std::slice::from_ref(&disk));
    {
        let device = Loop::over(&file);
        assert_eq!(device.sysfs("loop/dio"), "1", "loop takes the file for direct I/O");
        assert_eq!(device.sysfs("queue/discard_granularity"), "4096");
        run(mkfs[0], &[&mkfs[1..], &[&device.device]].concat());
        let place = dir.path().join("fs");
        let mounted = Mounted::new(&device.device, &place);
        run("cp", &["-r", text(&source), text(&place.join("copy"))]);
        run("sync", &["--file-system", text(&place)]);
        assert!(server.altered().len() > 10);
        assert_eq!(checksums(&place.join("copy")), expected);
        run("cp", &["-r", text(&source), text(&place.join("second"))]);
        run("sync", &["--file-system", text(&place)]);
        let before = allocated();
        fs::remove_dir_all(place.join("second")).unwrap();
        // Both free in the background, XFS even after sync(2): only unmounting waits for it.
        mounted.unmount();
        let mounted = Mounted::new(&device.device, &place);
        run("fstrim", &[text(&place)]);
        // XFS does not wait for its discards before it says that it has trimmed.
        mounted.unmount();
        assert!(
            allocated() + 40 * MIB < before,
            "trimming frees: {before} bytes before, {} after",
            allocated()
        );
        run(check[0], &[&check[1..], &[&device.device]].concat());
    }
    server.stop().unwrap();

    let server = Server::start(&file, &[disk]);
    {
        let device = Loop::over(&file);
        let mounted = Mounted::new(&device.device, &dir.path().join("fs"));
        assert_eq!(checksums(&dir.path().join("fs/copy")), expected);
        mounted.unmount();
        run(check[0], &[&check[1..], &[&device.device]].concat());
    }
    server.stop().unwrap();
    // And without us: the disk is a plain image.
    run(check[0], &[&check[1..], &[text(&backing)]].concat());
}

#[test]
fn xfs_over_loop_over_fuse_keeps_a_tree() {
    a_real_workload(&["mkfs.xfs", "-q"], &["xfs_repair", "-n"]);
}

#[test]
fn ext4_over_loop_over_fuse_keeps_a_tree() {
    a_real_workload(&["mkfs.ext4", "-q", "-F"], &["e2fsck", "-fn"]);
}

/// Launchpad 1896578's cure at this door: qemu-storage-daemon makes 11,888 fallocates of the same two commands, 8,082
/// of them below 4 KiB.
#[test]
fn mkfs_xfs_and_fstrim_of_a_large_disk_pass_their_discards_uncut() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, file) = (Disk::sparse(dir.path(), "large", 3800 * GIB), dir.path().join("mnt"));
    let server = Server::start(&file, &[disk]);
    {
        let device = Loop::over(&file);
        run("mkfs.xfs", &["-q", &device.device]);
        let mounted = Mounted::new(&device.device, &dir.path().join("fs"));
        run("fstrim", &[text(&dir.path().join("fs"))]);
        mounted.unmount();
    }
    let sizes: Vec<u64> = server.altered_bytes(Op::WriteZeroes);
    assert!((1000..=2900).contains(&sizes.len()), "{} fallocates", sizes.len());
    assert!(sizes.iter().all(|&bytes| bytes >= 4096), "{:?}", sizes.iter().min());
    assert!(server.altered_bytes(Op::Discard).is_empty());
    server.stop().unwrap();
}
