//! `serve --fuse`: volumes as files, and the kernel's loop driver with XFS and ext4 over them. That file systems are
//! whole is judged by their own tools; how the disk was treated, by the statistics.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use serde_json::json;

use crate::support::fs::{LeftMount, Loop, Mounted, checksums, make_tree, print_of};
use crate::support::nbd::python;
use crate::support::{Scratch, Server, Stats, both, output, run, run_refused, tool, until};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `serve --fuse` of one volume at `fuse.img`, with statistics.
fn serve(scratch: &Scratch, volume: &[&str]) -> (Server, LeftMount, String) {
    let place = scratch.at("fuse.img");
    let mut command = scratch.blockwork(["serve", "--stats", "--json", "--fuse", &place, "--disk"]);
    let server = Server::start(command.args(volume));
    assert_eq!(server.addresses, [format!("fuse:{place}")]);
    (server, LeftMount(place.clone().into()), place)
}

#[test]
fn a_volume_is_a_file_and_several_are_a_folder() {
    let scratch = Scratch::new();
    let content = scratch.noise("a.img", 1 << 20, 1);
    scratch.sparse("b.img", 3 * MIB);
    let (server, _left, file) = serve(&scratch, &["a.img"]);
    assert_eq!(fs::metadata(&file).unwrap().len(), MIB);
    assert!(fs::read(&file).unwrap() == content);
    server.stop_for_stats();
    // What was not there before is not there afterwards.
    assert!(!fs::exists(&file).unwrap());
    fs::write(&file, "").unwrap();
    let said = run_refused(&mut scratch.blockwork(["serve", "--fuse", &file, "--disk", "a.img", "b.img"]));
    assert!(said.contains("it is a file, which can be one volume, and there are 2"), "{said}");
    assert!(said.contains("--fuse FOLDER"), "{said}");
    let folder = scratch.at("folder");
    fs::create_dir(&folder).unwrap();
    let _left = LeftMount(folder.clone().into());
    let mut command = scratch.blockwork(["serve", "--fuse", &folder, "--disk", "a.img", "b.img"]);
    let server = Server::start(&mut command);
    let found = run(tool("find").args([&folder, "-type", "f", "-printf", "%P %s\n"]));
    let mut found: Vec<_> = found.lines().collect();
    found.sort_unstable();
    assert_eq!(found, ["disk/a.img 1048576", "disk/b.img 3145728"]);
    assert!(fs::read(format!("{folder}/disk/a.img")).unwrap() == content);
    server.stop_quietly();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the folder is there, and nothing is mounted");
}

/// nbdfuse ends by that, too, and what it was given is as whole as after SIGTERM.
#[test]
fn a_server_whose_only_mount_is_taken_away_ends() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 4 * MIB);
    let content = scratch.noise("content", 1 << 20, 3);
    let (server, _left, file) = serve(&scratch, &["disk.img"]);
    OpenOptions::new().write(true).open(&file).unwrap().write_all_at(&content, MIB).unwrap();
    run(tool("umount").arg(&file));
    let ended = server.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert!(!fs::exists(&file).unwrap(), "it was not there before");
    assert!(scratch.read("disk.img")[MIB as usize..2 * MIB as usize] == content);
}

#[test]
fn a_server_that_offers_something_else_goes_on_without_a_mount_and_says_so() {
    let scratch = Scratch::new();
    scratch.noise("disk.img", 1 << 20, 4);
    let (place, socket) = (scratch.at("fuse.img"), scratch.at("nbd.sock"));
    let _left = LeftMount(place.clone().into());
    let address = format!("unix:{socket}");
    let server = Server::start(
        &mut scratch.blockwork(["serve", "--disk", "disk.img", "--fuse", &place, "--nbd", &address]),
    );
    // Somebody has it open: it goes away when that ends.
    let open = fs::File::open(&place).unwrap();
    run(tool("umount").args(["--lazy", &place]));
    let mut first = [0; 512];
    open.read_exact_at(&mut first, 0).unwrap();
    assert!(first == scratch.read("disk.img")[..512]);
    drop(open);
    let said = format!("fuse:{place} is gone, as somebody has unmounted it");
    until("it is heard of", || server.said().contains(&said));
    assert_eq!(
        scratch.ask("/v1/status")["volumes"][0]["exports"],
        json!([format!("nbd+unix:///disk/disk.img?socket={socket}")])
    );
    run(tool("nbdinfo").arg(format!("nbd+unix:///?socket={socket}")));
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(!fs::exists(&place).unwrap(), "it was not there before");
}

/// Without a client of another kind: what `lv` verbs do is all that changes the folder.
#[test]
fn a_folder_shows_volumes_that_come_grow_get_other_names_and_go() {
    let scratch = Scratch::new();
    scratch.sparse("pv.img", 64 * MIB);
    for verb in ["vg create vg pv.img", "lv create vg/old --size 8M --disk pv.img"] {
        run(&mut scratch.blockwork(verb.split(' ')));
    }
    let folder = scratch.at("files");
    fs::create_dir(&folder).unwrap();
    let _left = LeftMount(folder.clone().into());
    let server = Server::start(&mut scratch.blockwork(["serve", "--fuse", &folder, "--disk", "pv.img"]));
    let at = |name: &str| format!("{folder}/vg/{name}");
    let verb = |words: &str| run(&mut scratch.blockwork(words.split(' ')));
    let names = || {
        let found =
            fs::read_dir(at("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut found: Vec<_> = found.collect();
        found.sort();
        found
    };
    assert_eq!(names(), ["old"]);
    // Names that are not there are looked up first: the kernel must not go on believing that.
    assert!(!fs::exists(at("new")).unwrap());
    verb("lv create vg/new --size 4M");
    assert_eq!(
        (names(), fs::metadata(at("new")).unwrap().len()),
        (vec!["new".into(), "old".into()], 4 * MIB)
    );
    let new = OpenOptions::new().read(true).write(true).open(at("new")).unwrap();
    new.write_all_at(b"first", 4 * MIB - 5).unwrap();
    // It grows, also for who has it open, and what is behind its old end can be used.
    verb("lv resize vg/new --size 12M");
    assert_eq!(new.metadata().unwrap().len(), 12 * MIB);
    new.write_all_at(b"last", 12 * MIB - 4).unwrap();
    assert_eq!(new.write_at(b"x", 12 * MIB).unwrap_err().raw_os_error(), Some(28), "ENOSPC");
    verb("lv rename vg/new vg/renamed");
    assert_eq!(names(), ["old", "renamed"]);
    assert!(!fs::exists(at("new")).unwrap(), "the kernel knows nothing of names by itself");
    let mut found = [0; 4];
    new.read_exact_at(&mut found, 12 * MIB - 4).unwrap();
    assert_eq!(&found, b"last", "it is still the same file");
    let said = run_refused(&mut scratch.blockwork(["lv", "remove", "vg/renamed"]));
    assert!(said.contains(&format!("vg/renamed is in use: 1 program has it open (fuse:{folder})")), "{said}");
    drop(new);
    until("the kernel has said that it is closed", || {
        output(&mut scratch.blockwork(["lv", "remove", "vg/renamed"])).status.success()
    });
    assert_eq!(names(), ["old"]);
    // One with the same name is another file.
    verb("lv create vg/renamed --size 4M");
    assert!(fs::read(at("renamed")).unwrap().len() == 4 << 20);
    server.stop_quietly();
}

/// What clients of the old size know nothing of is shown by `losetup -c`, as for any file.
#[test]
fn a_loop_device_over_a_file_that_has_grown_gets_its_size() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 8 * MIB);
    let (server, _left, file) = serve(&scratch, &["disk.img"]);
    let device = Loop::over(&file);
    assert_eq!(device.sysfs("size"), (8 * MIB / 512).to_string());
    scratch.sparse("disk.img", 24 * MIB);
    until("the server sees that its disk has grown", || fs::metadata(&file).unwrap().len() == 24 * MIB);
    run(tool("losetup").args(["-c", &device.device]));
    assert_eq!(device.sysfs("size"), (24 * MIB / 512).to_string());
    run(tool("mkfs.ext4").args(["-q", &device.device]));
    run(tool("e2fsck").args(["-fn", &device.device]));
    drop(device);
    server.stop_for_stats();
}

#[test]
fn qemu_img_and_dd_read_and_write_the_file() {
    let scratch = Scratch::new();
    let content = scratch.noise("content", 4 << 20, 2);
    scratch.sparse("disk.img", 4 * MIB);
    let (server, _left, file) = serve(&scratch, &["disk.img"]);
    let (from, to) = (format!("if={}", scratch.at("content")), format!("of={file}"));
    run(tool("dd").args([&from, &to, "bs=64k", "oflag=direct", "conv=notrunc,fsync", "status=none"]));
    let args = ["compare", "-f", "raw", "-F", "raw", &file, &scratch.at("content")];
    assert!(run(tool("qemu-img").args(args)).contains("identical"));
    let stats = server.stop_for_stats();
    assert!(scratch.read("disk.img") == content);
    assert_eq!(stats.count("disk.img", "write_bytes"), 4 * MIB);
}

/// A tree is copied to a new file system on a loop device over the FUSE file, trimmed, checked, and found again after
/// all was taken down and put up once more. Gives the statistics of the first turn.
fn a_real_workload(bytes: u64, mkfs: &[&str], check: &[&str]) -> Stats {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", bytes);
    let tree = scratch.path("tree");
    make_tree(&tree);
    let expected = checksums(&tree);
    let (server, left, file) = serve(&scratch, &["disk.img"]);
    {
        let device = Loop::over(&file);
        assert_eq!(device.sysfs("loop/dio"), "1", "loop takes the file for direct I/O");
        assert_eq!(device.sysfs("queue/discard_granularity"), "4096");
        run(tool(mkfs[0]).args(&mkfs[1..]).arg(&device.device));
        let mounted = Mounted::new(&device.device, &scratch.path("mnt"));
        for copy in ["first", "second"] {
            run(tool("cp").arg("-r").arg(&tree).arg(mounted.place.join(copy)));
        }
        run(tool("sync").arg("--file-system").arg(&mounted.place));
        assert_eq!(checksums(&mounted.place.join("first")), expected);
        fs::remove_dir_all(mounted.place.join("second")).unwrap();
        // Both free in the background: only unmounting waits for it.
        mounted.unmount();
        let mounted = Mounted::new(&device.device, &scratch.path("mnt"));
        let said = run(tool("fstrim").arg("-v").arg(&mounted.place));
        assert!(said.contains("trimmed"), "{said}");
        mounted.unmount();
        let done = output(tool(check[0]).args(&check[1..]).arg(&device.device));
        assert_eq!(done.status.code(), Some(0), "{}", both(&done));
    }
    let stats = server.stop_for_stats();
    drop(left);
    let (server, _left, file) = serve(&scratch, &["disk.img"]);
    {
        let device = Loop::over(&file);
        let mounted = Mounted::new(&device.device, &scratch.path("mnt"));
        assert_eq!(checksums(&mounted.place.join("first")), expected);
        mounted.unmount();
    }
    server.stop_for_stats();
    stats
}

#[test]
fn xfs_on_a_loop_device_survives_a_workload_and_a_trim() {
    let stats = a_real_workload(2 * GIB, &["mkfs.xfs", "-q"], &["xfs_repair", "-n"]);
    assert!(stats.count("disk.img", "discard_bytes") > GIB, "nearly all of it is free");
    assert_eq!(stats.count("disk.img", "errors"), 0);
}

#[test]
fn ext4_on_a_loop_device_survives_a_workload_and_a_trim() {
    let stats = a_real_workload(GIB, &["mkfs.ext4", "-q"], &["e2fsck", "-f", "-n"]);
    assert!(stats.count("disk.img", "discard_bytes") > GIB / 2, "nearly all of it is free");
    assert_eq!(stats.count("disk.img", "errors"), 0);
}

#[test]
fn mkfs_and_fstrim_of_3800_gib_make_few_fallocates_and_none_below_4_kib() {
    // qemu-storage-daemon makes 11,888, of which 8,082 are below 4 KiB.
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 3800 * GIB);
    let (server, _left, file) = serve(&scratch, &["disk.img"]);
    {
        let device = Loop::over(&file);
        run(tool("mkfs.xfs").args(["-q", &device.device]));
        let mounted = Mounted::new(&device.device, &scratch.path("mnt"));
        run(tool("fstrim").arg(&mounted.place));
        mounted.unmount();
    }
    let stats = server.stop_for_stats();
    let fallocates = stats.count("disk.img", "discards") + stats.count("disk.img", "write_zeroes");
    assert!(
        stats.count("disk.img", "discard_bytes") > 2 * 3700 * GIB,
        "all was discarded by mkfs and by fstrim"
    );
    assert!(fallocates <= 2900, "{fallocates} fallocates");
    // The file says that its granularity is 4 KiB, so that the kernel sends nothing smaller to be cut or zeroed by hand.
    assert_eq!(stats.count("disk.img", "discard_bytes") % 4096, 0);
    assert_eq!(stats.count("disk.img", "zeroes_written"), 0);
}

#[test]
fn holes_are_seen_punched_and_zeroed_through_the_file() {
    let scratch = Scratch::new();
    let mut model = scratch.noise("disk.img", 8 << 20, 3);
    let (server, _left, file) = serve(&scratch, &["disk.img"]);
    let fallocate = |mode: &str, at: u64, len: u64| {
        run(tool("fallocate").args([mode, "--offset", &at.to_string(), "--length", &len.to_string(), &file]));
    };
    fallocate("--punch-hole", MIB, MIB);
    fallocate("--zero-range", 4 * MIB + 4096, 2 * MIB);
    let map = run(tool("qemu-img").args(["map", "-f", "raw", "--output=json", &file]));
    let map: serde_json::Value = serde_json::from_str(&map).expect("JSON");
    let hole = map.as_array().unwrap().iter().find(|e| e["start"] == MIB).expect("an extent begins there");
    assert_eq!((&hole["length"], &hole["data"]), (&MIB.into(), &false.into()), "{map}");
    model[1 << 20..2 << 20].fill(0);
    model[(4 << 20) + 4096..(6 << 20) + 4096].fill(0);
    assert!(fs::read(&file).unwrap() == model);
    // It is a disk: it does not grow, and does not shrink.
    let file = OpenOptions::new().write(true).open(&file).unwrap();
    assert!(file.set_len(MIB).is_err());
    assert!(file.write_all_at(b"x", 8 * MIB).is_err());
    drop(file);
    server.stop_for_stats();
    assert!(scratch.read("disk.img") == model);
}

#[test]
fn a_read_only_server_has_read_only_files() {
    let scratch = Scratch::new();
    let content = scratch.noise("disk.img", 1 << 20, 4);
    let before = print_of(&scratch.at("disk.img"));
    let (server, _left, file) = serve(&scratch, &["disk.img", "--read-only"]);
    assert!(fs::read(&file).unwrap() == content);
    let error = OpenOptions::new().write(true).open(&file).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{error}");
    run_refused(tool("fallocate").args(["--punch-hole", "--offset", "0", "--length", "4096", &file]));
    server.stop_for_stats();
    assert_eq!(print_of(&scratch.at("disk.img")), before);
}

#[test]
fn where_nothing_can_be_mounted_the_remedy_is_named() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", MIB);
    let (server, _left, file) = serve(&scratch, &["disk.img"]);
    server.kill();
    let said = scratch.refused(["--disk", "disk.img", "--fuse", &file]);
    assert!(said.contains("the mount of a server that was killed is still there"), "{said}");
    run(tool("umount").arg(&file));
    let (server, _left, file) = serve(&scratch, &["disk.img"]);
    let said = scratch.refused(["--disk", "null:1M", "--fuse", &file]);
    assert!(said.contains("already mounted here"), "{said}");
    let said = scratch.refused(["--disk", "null:1M", "--fuse", "nowhere/file"]);
    assert!(said.contains("there is no folder nowhere: make it first"), "{said}");
    server.stop_for_stats();
}

/// A client that has a file open, and reads it by the kernel's page cache alone, while others write the volume: by NBD, to the whole disk.
/// One page it changes itself, by mmap, and says nothing of it.
#[test]
fn what_others_write_is_read_by_sendfile_and_mmap_once_the_file_was_looked_at() {
    for (name, volume, file, start) in [
        ("disk.img", "disk/disk.img", "/disk/disk.img/1", MIB),
        // Nobody wants to know of writes but the mount.
        ("disk.img,read_ahead_kb=0", "disk/disk.img", "/disk/disk.img/1", MIB),
        // It does what it is asked at once.
        ("memory:4M", "", "", 0),
    ] {
        let scratch = Scratch::new();
        let disk = scratch.sparse("disk.img", 64 * MIB);
        run(tool("sgdisk").args(["--clear", "--new=1:2048:+16M", &disk]));
        // A folder of several files, or one.
        let place = scratch.at("mnt");
        let _left = LeftMount(place.clone().into());
        let server = scratch.serve(["--disk", name, "--fuse", &place]);
        let said = python(&format!(
            "import mmap, os
disk = connect({:?})
fd = os.open({:?}, os.O_RDWR)
out = os.memfd_create('out')
def sent(at):
    os.lseek(out, 0, 0)
    os.sendfile(out, fd, at, 4)
    return os.pread(out, 4, 0)
try: pages = mmap.mmap(fd, 1 << 20)
except OSError: pages = None # before Linux 6.6
def seen(at):
    return {{sent(at)}} | ({{pages[at:at + 4]}} if pages else set())
assert seen(8192) == {{bytes(4)}}, seen(8192)
if pages: pages[4096:4100] = b'mine'
times = {{os.fstat(fd).st_mtime_ns}}
for n in range(1, 50):
    wanted = bytes([n]) * 4
    disk.pwrite(wanted * 1024, {start} + 8192)
    if n % 5 == 0: os.utime(fd)
    times.add((os.fstat(fd) if n % 2 else os.stat({:?})).st_mtime_ns)
    assert seen(8192) == {{wanted}}, (n, seen(8192))
assert len(times) == 50, times
if pages:
    assert seen(4096) == {{b'mine'}}, seen(4096)
    assert disk.pread(4, {start} + 4096) == b'mine'
print('fresh')
",
            scratch.uri(volume),
            format!("{place}{file}"),
            format!("{place}{file}"),
        ));
        assert_eq!(said.trim(), "fresh", "{name}");
        server.stop_quietly();
    }
}
