//! What survives: servers killed under load, disks that fill up, fail, are served already, or may not be written. The
//! judges are nbdload's log of promises, fio's checksums, and e2fsck over replayed dm-log-writes logs.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::support::fs::{LeftMount, Loop, Mounted};
use crate::support::nbd::{fio, load, nbdload, python, try_load};
use crate::support::{Background, Scratch, Server, both, noise, output, run, tool, until};
use blockwork_format::log_writes::{Flags, Log, Until, replay};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Promises in nbdload's log so far.
fn promises(log: &Path) -> usize {
    fs::read_to_string(log).unwrap_or_default().lines().skip(1).count()
}

/// Loads a server with flushes, kills it, and asks the next server for everything that had been promised.
fn killed_under_load(scratch: &Scratch, serve: &[&str], volume: &str, options: &[&str]) {
    for round in 1..=3 {
        let server = scratch.serve(serve);
        let log = scratch.path(&format!("promises{round}"));
        let mut client = nbdload();
        client
            .arg(format!("unix:{}", scratch.at("socket")))
            .args(["--export", volume, "--verify", "--log"])
            .arg(&log);
        let seed = round.to_string();
        client
            .args(["--depth", "16", "--connections", "2", "--seconds", "100", "--seed", &seed])
            .args(options);
        let client = Background::start(&mut client);
        until("the server has promised much", || promises(&log) > 400 * round);
        server.kill();
        let (code, said) = client.finish();
        assert_eq!(code, Some(3), "the client saw its server die: {said}");

        let server = scratch.serve(serve);
        let log = log.to_str().unwrap();
        let report = load(&scratch.at("socket"), &["--export", volume, "--verify-only", "--log", log]);
        assert_eq!((&report["wrong_blocks"], &report["errors"]), (&0.into(), &0.into()), "{report}");
        assert!(report["promised_blocks"].as_u64().unwrap() > 300, "{report}");
        server.stop_quietly();
    }
}

#[test]
fn every_flushed_block_is_there_after_kill_9() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let options = ["--rw", "randrw", "--bs", "4k", "--flush-every", "32"];
    killed_under_load(&scratch, &["--disk", "disk.img"], "disk/disk.img", &options);
}

#[test]
fn every_fua_write_to_a_striped_volume_is_there_after_kill_9() {
    let scratch = Scratch::new();
    for i in 0..3 {
        scratch.sparse(&format!("{i}.img"), 16 * MIB);
    }
    let table = scratch.write("stripes.table", "0 98304 striped 3 16 0.img 0 1.img 0 2.img 0\n");
    // 12 KiB over chunks of 8: each write has parts on two disks.
    let options = ["--rw", "randwrite", "--bs", "12k", "--fua", "--range", "48m"];
    killed_under_load(&scratch, &["--table", &table], "dm/stripes", &options);
}

#[test]
fn what_fio_has_synced_verifies_after_kill_9() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let server = scratch.serve(["--disk", "disk.img"]);
    let job =
        ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=12M", "--verify=crc32c", "--verify_fatal=1"];
    let uri = scratch.uri("disk/disk.img");
    // Another client keeps the server busy elsewhere, then and when it dies.
    let mut busy = nbdload();
    busy.arg(format!("unix:{}", scratch.at("socket"))).args([
        "--rw",
        "randwrite",
        "--depth",
        "16",
        "--seconds",
        "100",
    ]);
    let busy = Background::start(busy.args(["--range", "16m+32m"]));
    run(fio(&scratch, &uri, &job).args(["--do_verify=0", "--fsync=32", "--end_fsync=1"]));
    server.kill();
    assert_eq!(busy.finish().0, Some(3));
    let server = scratch.serve(["--disk", "disk.img"]);
    let said = run(fio(&scratch, &uri, &job).arg("--verify_only"));
    assert!(said.contains("err= 0"), "{said}");
    server.stop_quietly();
    // And fio's verification can fail.
    let file = File::options().write(true).open(scratch.path("disk.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xee; 5], 4096 * 7 + 100).unwrap();
    let server = scratch.serve(["--disk", "disk.img"]);
    let done = output(fio(&scratch, &uri, &job).arg("--verify_only"));
    assert!(!done.status.success(), "{}", both(&done));
    server.stop_quietly();
}

/// Entries with a flush or FUA in a log that is being written.
fn flushes(log: &Path) -> u64 {
    let bytes = fs::read(log).expect("the log is there");
    let log = Log::open(&bytes).expect("a superblock");
    let promises = |entry: &blockwork_format::log_writes::Located| {
        entry.entry.flags.has(Flags::FLUSH) || entry.entry.flags.has(Flags::FUA)
    };
    log.entries().map(|entry| entry.expect("what counts is whole")).filter(promises).count() as u64
}

/// Serves `disk` as a FUSE file with a loop device over it, and gives that device to `work`.
fn with_loop(scratch: &Scratch, more: &[&str], work: impl FnOnce(&Loop)) {
    let place = scratch.path("fuse.img");
    let mut command = scratch.blockwork(["serve", "--disk", "disk.img", "disk/disk.img", "--fuse"]);
    let server = Server::start(command.arg(&place).args(more));
    let _left = LeftMount(place.clone());
    {
        let device = Loop::over(place.to_str().unwrap());
        work(&device);
    }
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
}

#[test]
fn ext4_is_clean_and_has_every_synced_file_at_each_flush_of_a_log() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 32 * MIB);
    with_loop(&scratch, &[], |device| {
        run(tool("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", &device.device]));
    });
    let base = scratch.read("disk.img");

    // What is written and synced, and how many flushes the log had when fsync came back.
    let log = scratch.path("log");
    let mut synced: Vec<(String, Vec<u8>, u64)> = Vec::new();
    with_loop(&scratch, &["--log-writes", log.to_str().unwrap()], |device| {
        let mounted = Mounted::new(&device.device, &scratch.path("mnt"));
        for i in 0..8u64 {
            let name = format!("file{i}");
            let content = noise(usize::try_from(1000 + i * 40_000).unwrap(), 100 + i);
            let mut file = File::create(mounted.place.join(&name)).unwrap();
            file.write_all(&content).unwrap();
            file.sync_all().unwrap();
            synced.push((name, content, flushes(&log)));
            if i % 3 == 2 {
                fs::write(mounted.place.join("gone"), noise(300_000, i)).unwrap();
                fs::remove_file(mounted.place.join("gone")).unwrap();
                run(tool("fstrim").arg(&mounted.place));
            }
        }
        mounted.unmount();
    });

    let bytes = fs::read(&log).unwrap();
    let log = Log::open(&bytes).unwrap();
    let total = flushes(&scratch.path("log"));
    assert!(total >= 16, "{total} flushes");
    assert!(synced.windows(2).all(|pair| pair[0].2 < pair[1].2), "each fsync is a flush of the disk");
    let image = scratch.at("replayed.img");
    for n in 1..=total {
        let mut disk = base.clone();
        assert!(replay(&log, Until::Flush(n), &mut disk).unwrap().reached);
        fs::write(&image, &disk).unwrap();
        // The journal first, as a mount would; then nothing may be left to repair.
        let done = output(tool("e2fsck").args(["-y", "-E", "journal_only", &image]));
        assert!(matches!(done.status.code(), Some(0 | 1)), "flush {n}: {}", both(&done));
        let done = output(tool("e2fsck").args(["-f", "-n", &image]));
        assert_eq!(done.status.code(), Some(0), "flush {n} of {total}: {}", both(&done));
        if let Some((name, content, _)) = synced.iter().rev().find(|(_, _, at)| *at <= n) {
            let found = scratch.at("found");
            run(tool("debugfs").args(["-R", &format!("dump /{name} {found}"), &image]));
            assert!(scratch.read("found") == *content, "{name} at flush {n}");
        }
    }
    // Replayed whole, the log is the disk.
    let mut disk = base;
    replay(&log, Until::End, &mut disk).unwrap();
    fs::write(&image, &disk).unwrap();
    run(tool("e2fsck").args(["-f", "-n", &image]));
}

/// Loads one volume so that it meets errors of this name, and another at the same time so that it meets none; then
/// asks for all that the first was promised.
fn errors_under_load(scratch: &Scratch, serve: &[&str], volume: &str, name: &str, options: &[&str]) -> Value {
    let server = scratch.serve(serve);
    let socket = scratch.at("socket");
    let mut other = nbdload();
    other.arg(format!("unix:{socket}")).args(["--export", "disk/good.img", "--rw", "randrw", "--depth", "8"]);
    let other =
        Background::start(other.args(["--verify", "--flush-every", "64", "--ios", "20000", "--bs", "4k"]));
    let promises = scratch.at("promises");
    let common = [
        "--export",
        volume,
        "--verify",
        "--flush-every",
        "32",
        "--log",
        &promises,
        "--depth",
        "16",
        "--bs",
        "4k",
    ];
    let (code, report, said) = try_load(&socket, &[&common, options].concat());
    assert_eq!(code, Some(1), "{report}\n{said}");
    assert_eq!(report["wrong_blocks"], 0, "{report}\n{said}");
    let errors = report["errors_by_name"].as_object().expect("there were some");
    assert_eq!(errors.keys().collect::<Vec<_>>(), [name], "{report}");
    assert!(report["ios"].as_u64() > report["errors"].as_u64(), "the rest goes on: {report}");
    let others: Value = serde_json::from_str(&other.succeed()).expect("a report");
    assert_eq!((&others["errors"], &others["wrong_blocks"]), (&0.into(), &0.into()), "{others}");
    let checked = load(&socket, &["--export", volume, "--verify-only", "--log", &promises]);
    assert_eq!(checked["wrong_blocks"], 0, "{checked}");
    assert!(checked["promised_blocks"].as_u64().unwrap() > 100, "{checked}");
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    report
}

#[test]
fn a_disk_that_is_full_gives_enospc_and_loses_nothing() {
    let scratch = Scratch::new();
    // A file system with room for a part of the disk.
    let device = Loop::over(&scratch.sparse("small.fs", 24 * MIB));
    run(tool("mkfs.ext4").args(["-q", "-O", "^has_journal", "-m", "0", &device.device]));
    let mounted = Mounted::new(&device.device, &scratch.path("small"));
    let full = scratch.sparse("small/full.img", 64 * MIB);
    scratch.sparse("good.img", 32 * MIB);
    let serve = ["--disk", &full, "good.img"];
    errors_under_load(
        &scratch,
        &serve,
        "disk/full.img",
        "ENOSPC (28)",
        &["--rw", "randwrite", "--ios", "12000"],
    );
    // With room, it takes writes again.
    let server = scratch.serve(serve);
    python(&format!(
        "h = connect({:?})\nh.trim(64 << 20, 0)\nh.flush()\nh.pwrite(b'x' * (1 << 20), 1 << 20)\nh.flush()\nh.shutdown()\n",
        scratch.uri("disk/full.img")
    ));
    server.stop_quietly();
    mounted.unmount();
}

#[test]
fn a_disk_with_bad_sectors_gives_eio_and_loses_nothing() {
    // The bad disk is a file of another server, whose table has an error target in the middle.
    let scratch = Scratch::new();
    scratch.sparse("behind.img", 32 * MIB);
    let table = scratch.write(
        "bad.table",
        "0 32768 linear behind.img 0\n32768 128 error\n32896 32640 linear behind.img 32896\n",
    );
    let bad = scratch.at("bad.img");
    let behind = Server::start(&mut scratch.blockwork(["serve", "--table", &table, "--fuse", &bad]));
    let _left = LeftMount(bad.clone().into());
    scratch.sparse("good.img", 32 * MIB);
    let options = ["--rw", "randrw", "--ios", "12000"];
    errors_under_load(&scratch, &["--disk", &bad, "good.img"], "disk/bad.img", "EIO (5)", &options);
    assert!(behind.stop().status.success());
}

#[test]
fn a_second_server_on_one_disk_is_refused_with_the_name_of_the_first() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", MIB);
    let server = scratch.serve(["--disk", "disk.img"]);
    for more in [&[][..], &["--read-only"]] {
        let said = scratch.refused(["--disk", "disk.img"].iter().chain(more));
        assert!(
            said.contains(&format!("disk.img: it is locked by process {} (blockwork)", server.pid())),
            "{said}"
        );
        assert!(said.contains("stop that first"), "{said}");
    }
    let table = scratch.write("t.table", "0 8 zero\n8 8 linear disk.img 0\n");
    let said = scratch.refused(["--table", &table]);
    assert!(
        said.contains("t.table, line 2: ") && said.contains(&format!("process {}", server.pid())),
        "{said}"
    );
    // qemu takes no disk that we write to, either.
    let done = output(tool("qemu-io").args(["-f", "raw", "-c", "read 0 512", &scratch.at("disk.img")]));
    assert!(both(&done).contains("lock"), "{}", both(&done));
    // What the first was killed with is nobody's any more.
    server.kill();
    scratch.serve(["--disk", "disk.img"]).stop_quietly();
}

#[test]
fn a_block_device_in_use_is_refused_with_who_uses_it() {
    let scratch = Scratch::new();
    let device = Loop::over(&scratch.sparse("disk.img", 32 * MIB));
    run(tool("mkfs.ext4").args(["-q", &device.device]));
    let mounted = Mounted::new(&device.device, &scratch.path("mnt"));
    let said = scratch.refused(["--disk", &device.device]);
    assert!(said.contains(&format!("mounted at {}", scratch.at("mnt"))), "{said}");
    assert!(said.contains("release it first (umount"), "{said}");
    mounted.unmount();
    let server = scratch.serve(["--disk", &device.device]);
    let said = scratch.refused(["--disk", &device.device]);
    assert!(said.contains(&format!("it is locked by process {} (blockwork)", server.pid())), "{said}");
    server.kill();
    scratch.serve(["--disk", &device.device]).stop_quietly();
}

/// Undoes `chattr +i`, without which the scratch folder could not be removed.
struct Immutable(String);

impl Drop for Immutable {
    fn drop(&mut self) {
        output(tool("chattr").args(["-i", &self.0]));
    }
}

#[test]
fn a_read_only_disk_asked_for_writing_is_refused_and_served_with_read_only() {
    let scratch = Scratch::new();
    let content = scratch.noise("disk.img", 1 << 20, 8);
    let device = Loop::with(&["--read-only"], &scratch.at("disk.img"));
    scratch.noise("file.img", 1 << 20, 8);
    run(tool("chattr").args(["+i", &scratch.at("file.img")]));
    let _immutable = Immutable(scratch.at("file.img"));
    for disk in [&device.device, "file.img"] {
        let said = scratch.refused(["--disk", disk]);
        assert!(said.contains(disk) && said.contains("read-only"), "{said}");
        let name = disk.rsplit('/').next().unwrap();
        let server = scratch.serve(["--disk", disk, "--read-only"]);
        run(tool("nbdcopy").args([&scratch.uri(&format!("disk/{name}")), &scratch.at("copy.img")]));
        assert!(scratch.read("copy.img") == content);
        server.stop_quietly();
        // For one disk of several, the option.
        let server = scratch.serve(["--disk", &format!("{disk},ro")]);
        let info = run(tool("nbdinfo").args(["--json", &scratch.uri("")]));
        assert!(info.contains("\"is_read_only\": true"), "{info}");
        server.stop_quietly();
    }
}
