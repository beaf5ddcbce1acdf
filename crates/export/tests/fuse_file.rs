//! A volume as a file, seen through system calls and programs: data, errors, holes, permissions, mounts.
//!
//! Needs root and /dev/fuse.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blockwork_engine::{Counter, Flags, LeafId, LeafLayer, Limits, NodeId, Op, Sectors, Volume, VolumeId};
use blockwork_export::fuse::{self, Files, FuseError, MountError, Options, Served};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

mod fuse_support;
mod tap;
use fuse_support::{Disk, Server, noise, run, text};

const MIB: u64 = 1 << 20;

#[test]
fn what_is_written_to_the_file_is_on_the_disk_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::sparse(dir.path(), "a", 64 * MIB);
    let (backing, file) = (disk.path.clone(), dir.path().join("mnt"));
    let server = Server::start(&file, &[disk]);
    let source = dir.path().join("source");
    fs::write(&source, noise(1, 5 * MIB as usize + 4096)).unwrap();
    for cache in ["iflag=fullblock", "oflag=direct"] {
        let (from, to) = (format!("if={}", text(&source)), format!("of={}", text(&file)));
        run("dd", &[&from, &to, "bs=64k", "seek=16", "conv=notrunc,fsync", cache]);
        for shown in [&file, &backing] {
            run("cmp", &["--ignore-initial=0:1048576", "--bytes=5246976", text(&source), text(shown)]);
        }
    }
    assert_eq!(fs::metadata(&file).unwrap().len(), 64 * MIB);
    assert!(server.count(0, Counter::Flushes) >= 2, "dd's fsync is a flush");
    server.stop().unwrap();
    assert!(!file.exists(), "a mount point that was created is removed");
    run("cmp", &["--ignore-initial=0:1048576", "--bytes=5246976", text(&source), text(&backing)]);
}

#[test]
fn fio_verifies_random_writes_of_all_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mnt");
    let _server = Server::start(&file, &[Disk::sparse(dir.path(), "a", 64 * MIB)]);
    // The last one has more requests waiting than are read in one turn.
    for (direct, sizes, depth, engine) in [
        ("1", "4k-1m", "16", "libaio"),
        ("0", "512-256k", "1", "psync"),
        ("1", "512-64k", "16", "io_uring"),
        ("1", "4k-4k", "256", "libaio"),
    ] {
        let job = [
            "--name=verify",
            "--rw=randwrite",
            "--size=48m",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--randrepeat=1",
            "--end_fsync=1",
            "--verify_state_save=0",
            "--allow_file_create=0",
            "--group_reporting",
        ];
        let file = format!("--filename={}", text(&file));
        let [direct, sizes] = [format!("--direct={direct}"), format!("--bsrange={sizes}")];
        let [depth, engine] = [format!("--iodepth={depth}"), format!("--ioengine={engine}")];
        let output = run("fio", &[&job[..], &[&file, &direct, &sizes, &depth, &engine]].concat());
        assert!(output.contains("err= 0"), "{output}");
    }
}

#[test]
fn ranges_that_are_not_whole_blocks_touch_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk { block: 4096, ..Disk::sparse(dir.path(), "a", MIB) };
    let path = dir.path().join("mnt");
    let _server = Server::start(&path, &[disk]);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut model = noise(2, MIB as usize);
    file.write_all_at(&model, 0).unwrap();
    for (seed, (at, len)) in
        (3..).zip([(0, 1), (511, 2), (4095, 4098), (12_345, 54_321), (MIB as usize - 1, 1)])
    {
        let bytes = noise(seed, len);
        file.write_all_at(&bytes, at as u64).unwrap();
        model[at..at + len].copy_from_slice(&bytes);
        let mut back = vec![0; len];
        file.read_exact_at(&mut back, at as u64).unwrap();
        assert_eq!(back, bytes, "{len} at {at}");
    }
    assert!(fs::read(&path).unwrap() == model);
}

#[test]
fn beyond_the_end_there_is_nothing_to_read_and_no_space_to_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mnt");
    let _server = Server::start(&path, &[Disk::sparse(dir.path(), "a", MIB)]);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut bytes = [0; 100];
    assert_eq!(file.read_at(&mut bytes, MIB - 10).unwrap(), 10);
    assert_eq!(file.read_at(&mut bytes, MIB).unwrap(), 0);
    assert_eq!(file.write_at(&bytes, MIB - 10).unwrap(), 10);
    assert_eq!(file.write_at(&bytes, MIB).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(fs::metadata(&path).unwrap().len(), MIB);
}

#[test]
fn the_size_cannot_be_changed_and_times_can_be_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mnt");
    let _server = Server::start(&path, &[Disk::sparse(dir.path(), "a", MIB)]);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"kept", 0).unwrap();
    file.set_len(MIB).unwrap();
    for len in [0, MIB - 512, MIB + 512] {
        assert_eq!(file.set_len(len).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    // O_TRUNC is a truncation: pretending would let cp and dd skip what they take for zeros.
    assert_eq!(File::create(&path).unwrap_err().kind(), ErrorKind::PermissionDenied);
    run("touch", &[text(&path)]);
    assert_eq!(fs::metadata(&path).unwrap().len(), MIB);
    assert_eq!(&fs::read(&path).unwrap()[..4], b"kept");
}

#[test]
fn punched_and_zeroed_ranges_read_as_zeros_and_only_the_punched_are_holes() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::sparse(dir.path(), "a", 16 * MIB);
    let (backing, path) = (disk.path.clone(), dir.path().join("mnt"));
    let server = Server::start(&path, &[disk]);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut model = noise(5, 16 * MIB as usize);
    file.write_all_at(&model, 0).unwrap();
    file.sync_all().unwrap();
    let allocated = || fs::metadata(&backing).unwrap().blocks() * 512;
    assert!(allocated() >= 16 * MIB);

    run("fallocate", &["-p", "-o", "1048576", "-l", "4194304", text(&path)]);
    model[MIB as usize..5 * MIB as usize].fill(0);
    assert!(fs::read(&path).unwrap() == model);
    assert!(allocated() <= 12 * MIB + 65536, "{} bytes are allocated", allocated());
    let punched = server.altered().iter().filter(|(op, _)| *op == Op::WriteZeroes).count();
    assert_eq!(punched, 1, "one fallocate is one request");
    assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), MIB);
    assert_eq!(seek(&file, SeekFrom::Data(MIB + 7)).unwrap(), 5 * MIB);
    assert_eq!(seek(&file, SeekFrom::Data(6 * MIB + 7)).unwrap(), 6 * MIB + 7);
    assert_eq!(seek(&file, SeekFrom::Hole(6 * MIB)).unwrap(), 16 * MIB);
    assert_eq!(seek(&file, SeekFrom::Data(16 * MIB)), Err(rustix::io::Errno::NXIO));

    run("fallocate", &["-z", "-n", "-o", "8388608", "-l", "1048576", text(&path)]);
    model[8 * MIB as usize..9 * MIB as usize].fill(0);
    assert!(fs::read(&path).unwrap() == model);
    assert!(allocated() >= 12 * MIB, "zeroing keeps the space");

    // A range that is not whole blocks, and one that goes beyond the end.
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 10 * MIB + 100, 3 * 4096).unwrap();
    model[10 * MIB as usize + 100..][..3 * 4096].fill(0);
    fallocate(&file, punch, 15 * MIB, 7 * MIB).unwrap();
    model[15 * MIB as usize..].fill(0);
    assert!(fs::read(&path).unwrap() == model);

    // There is no more space than the volume's own.
    fallocate(&file, FallocateFlags::empty(), 0, 16 * MIB).unwrap();
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 16 * MIB + 1), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, MIB), Err(rustix::io::Errno::OPNOTSUPP));
}

#[test]
fn seeking_over_a_large_striped_volume_does_not_keep_others_waiting() {
    let dir = tempfile::tempdir().unwrap();
    // 2^20 chunks of 64 KiB, and one block of data at the end.
    let disk = Disk { chunk: Some(Sectors(128)), ..Disk::sparse(dir.path(), "a", 65_536 * MIB) };
    let path = dir.path().join("mnt");
    let _server = Server::start(&path, &[disk]);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let last = 65_536 * MIB - 4096;
    file.write_all_at(&[1; 4096], last).unwrap();
    let done = AtomicBool::new(false);
    let (found, served) = std::thread::scope(|scope| {
        let seeker = scope.spawn(|| {
            let found = seek(&file, SeekFrom::Data(0));
            done.store(true, Ordering::Release);
            found
        });
        let other = File::open(&path).unwrap();
        let mut served = 0;
        while !done.load(Ordering::Acquire) {
            other.read_exact_at(&mut [0; 4096], 0).unwrap();
            served += 1;
        }
        (seeker.join().unwrap(), served)
    });
    assert_eq!(found, Ok(last));
    assert!(served >= 10, "{served} reads were served during the seek");
}

#[test]
fn a_write_of_a_file_opened_with_o_dsync_is_durable_when_it_returns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mnt");
    let server = Server::start(&path, &[Disk::sparse(dir.path(), "a", MIB)]);
    let o_dsync = i32::try_from(rustix::fs::OFlags::DSYNC.bits()).unwrap();
    let file = File::options().write(true).custom_flags(o_dsync).open(&path).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    let plain = File::options().write(true).open(&path).unwrap();
    plain.write_all_at(&[1; 4096], 4096).unwrap();
    let fua = |&(op, flags): &(Op, Flags)| op == Op::Write && flags.has(Flags::FUA);
    let written: Vec<_> = server.altered().iter().map(fua).collect();
    let [by_the_device, false] = written[..] else { panic!("{written:?}") };
    assert_eq!(server.count(0, Counter::Flushes), u64::from(!by_the_device), "one or the other, once");
}

#[test]
fn a_read_only_volume_refuses_writers() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Disk::sparse(dir.path(), "one", MIB), Disk::sparse(dir.path(), "two", MIB));
    fs::create_dir(dir.path().join("mnt")).unwrap();
    let root = dir.path().join("mnt");
    let _server = Server::start(&root, &[Disk { read_only: true, ..one }, two]);
    let error = File::options().write(true).open(root.join("one")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::metadata(root.join("one")).unwrap().mode() & 0o7777, 0o400);
    assert_eq!(fs::metadata(root.join("two")).unwrap().mode() & 0o7777, 0o600);
    File::open(root.join("one")).unwrap();
    File::options().write(true).open(root.join("two")).unwrap();
}

#[test]
fn several_volumes_are_files_in_folders() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["disk/a.img", "disk/a.img/1", "vg/home"];
    let disks: Vec<_> = names.map(|name| Disk::sparse(dir.path(), name, MIB)).into();
    let root = dir.path().join("mnt");
    let server = Server::start(&root, &disks);
    let listing = run("find", &[text(&root), "-type", "f", "-printf", "%P %s\\n"]);
    let mut lines: Vec<_> = listing.lines().collect();
    lines.sort();
    assert_eq!(lines, ["disk/a.img/1 1048576", "disk/a.img/whole 1048576", "vg/home 1048576"]);
    for (name, seed) in [("disk/a.img/1", 1), ("disk/a.img/whole", 2), ("vg/home", 3)] {
        let file = File::options().read(true).write(true).open(root.join(name)).unwrap();
        file.write_all_at(&noise(seed, 4096), 4096).unwrap();
    }
    for (disk, seed) in [(1, 1), (0, 2), (2, 3)] {
        let mut back = vec![0; 4096];
        File::open(&disks[disk as usize].path).unwrap().read_exact_at(&mut back, 4096).unwrap();
        assert!(back == noise(seed, 4096), "{}", names[disk as usize]);
    }
    assert!(fs::write(root.join("vg/new"), "x").is_err());
    assert!(fs::remove_file(root.join("vg/home")).is_err());
    server.stop().unwrap();
    assert!(!root.exists(), "a folder that was created is removed");
}

#[test]
fn a_server_that_is_dropped_unmounts_and_what_was_there_is_seen_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mnt");
    fs::write(&path, "what was there").unwrap();
    let server = Server::start(&path, &[Disk::sparse(dir.path(), "a", MIB)]);
    assert_eq!(fs::metadata(&path).unwrap().len(), MIB);
    drop(server);
    assert_eq!(fs::read(&path).unwrap(), b"what was there");
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(text(&path)));
}

#[test]
fn a_volume_can_be_mounted_over_the_very_file_that_it_is_made_of() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::sparse(dir.path(), "a", MIB);
    let path = disk.path.clone();
    let server = Server::start(&path, &[disk]);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"through", 512).unwrap();
    drop(file);
    server.stop().unwrap();
    assert_eq!(&fs::read(&path).unwrap()[512..519], b"through");
}

#[test]
fn a_mount_that_is_there_already_is_not_mounted_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mnt");
    let mut server = Server::start(&path, &[Disk::sparse(dir.path(), "a", MIB)]);
    let busy = blockwork_export::fuse::look(&path).unwrap_err();
    assert!(matches!(busy, MountError::Busy(_)), "{busy}");
    server.kill();
    let stale = blockwork_export::fuse::look(&path).unwrap_err();
    assert!(matches!(stale, MountError::Stale(_)), "{stale}");
    assert!(stale.to_string().contains("fusermount3 -u"), "{stale}");
    // The remedy that the message names.
    run("fusermount3", &["-u", text(&path)]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    let none = fuse::mount(&path, &Files::default(), Options::default()).unwrap_err();
    assert!(matches!(none, FuseError::Empty(_)), "{none}");
}

#[test]
fn a_client_that_has_the_file_open_gets_an_error_when_the_server_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mnt");
    let server = Server::start(&path, &[Disk::sparse(dir.path(), "a", MIB)]);
    let file = File::open(&path).unwrap();
    file.read_exact_at(&mut [0; 512], 0).unwrap();
    server.stop().unwrap();
    let error = file.read_exact_at(&mut [0; 512], 0).unwrap_err();
    assert!([Some(103), Some(107)].contains(&error.raw_os_error()), "{error}");
}

/// A client that has changed the bytes at `at` of a file by mmap, says nothing of it to the kernel, and stays.
struct Mapper(std::process::Child);

impl Mapper {
    /// None where the kernel has no mmap for such files (before 6.6).
    fn change(file: &Path, at: u64) -> Option<Mapper> {
        let script = "import errno, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try: pages = mmap.mmap(fd, os.fstat(fd).st_size)
except OSError as error:
    assert error.errno == errno.ENODEV, error
    sys.exit('no mmap')
at = int(sys.argv[2])
pages[at:at + 7] = b'changed'
print('changed', flush=True)
sys.stdin.read()";
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", script, text(file), &at.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        if said == "changed\n" {
            return Some(Mapper(child));
        }
        assert!(!child.wait().unwrap().success());
        None
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_clients_have_changed_by_mmap_is_on_the_disk_when_the_server_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let disks = |names: &[&'static str]| -> Vec<Disk> {
        names.iter().map(|name| Disk::sparse(dir.path(), name, 4 * MIB)).collect()
    };
    for (mount, names, files) in [
        ("file", &["alone"][..], &[""][..]),
        ("folder", &["vg/a", "vg/a/1", "b"], &["vg/a/whole", "vg/a/1", "b"]),
    ] {
        let path = dir.path().join(mount);
        let disks = disks(names);
        let images: Vec<_> = disks.iter().map(|disk| disk.path.clone()).collect();
        let server = Server::start(&path, &disks);
        let places = (1u64..).map(|n| n * MIB + 100);
        let files = files.iter().map(|file| if file.is_empty() { path.clone() } else { path.join(file) });
        let clients: Option<Vec<_>> =
            files.zip(places.clone()).map(|(file, at)| Mapper::change(&file, at)).collect();
        let Some(clients) = clients else { return eprintln!("this kernel has no mmap for such files") };
        server.stop().unwrap();
        for (image, at) in images.iter().zip(places) {
            let mut found = [0; 7];
            File::open(image).unwrap().read_exact_at(&mut found, at).unwrap();
            assert_eq!(&found, b"changed", "{}", image.display());
        }
        drop(clients);
    }
}

#[test]
fn a_mount_whose_server_does_not_answer_is_taken_away_all_the_same_and_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mnt");
    let leaf = LeafLayer::new(LeafId(0), NodeId(0), Sectors(2048), Limits::default());
    let volume = Volume::new("a", Arc::new(leaf), false);
    let options = Options { write_back_time: Duration::from_millis(100), ..Options::default() };
    let files = Files::of([Served::new(VolumeId(0), &volume, false)]).unwrap();
    let (session, mount) = fuse::mount(&path, &files, options).unwrap();
    // No worker ever answers.
    let error = mount.unmount().unwrap_err();
    assert!(matches!(error, MountError::WriteBack { .. }), "{error}");
    assert!(error.to_string().contains("was not done after 0.1 s"), "{error}");
    assert!(error.to_string().starts_with(text(&path)), "{error}");
    assert!(!path.exists());
    drop(session);
}
