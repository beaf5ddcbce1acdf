//! `serve` without io_uring: threads do the I/O, because somebody asked for it or because the ring is forbidden, as in a container. And with
//! registered buffers, and where these are refused.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Instant;

use crate::support;
use crate::support::fs::{LeftMount, SmallDisk};
use crate::support::nbd::fio;
use crate::support::{FuseDisk, Scratch, Server, Stats, both, output, run, tool, until};

const MIB: u64 = 1 << 20;

fn verifies(scratch: &Scratch) {
    for options in [["--bs=4k", "--fsync=16", "--iodepth=16"], ["--bs=3584", "--numjobs=1", "--iodepth=1"]] {
        let job = ["--rw=randrw", "--verify=crc32c", "--verify_fatal=1", "--size=16M", "--io_size=8M"];
        let said = run(fio(scratch, &scratch.uri(""), &job).args(options));
        assert!(said.contains("err= 0"), "{said}");
    }
}

/// A server where the ring is forbidden, so that only threads can have done what it does.
fn without_ring<'a>(scratch: &Scratch, args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = scratch.without_ring(["serve", "--disk", "disk.img"]);
    command.args(args);
    command
}

#[test]
fn threads_serve_nbd_with_the_same_answers() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 16 * MIB);
    let args = ["--nbd", "unix:socket", "--io", "threads", "--workers", "2", "--stats", "--json"];
    let server = Server::start(&mut without_ring(&scratch, args));
    verifies(&scratch);
    let stats = server.stop_for_stats();
    assert_eq!(stats.count("disk.img", "errors"), 0);
    assert!(stats.count("disk.img", "flushes") > 10);
}

#[test]
fn threads_serve_a_file() {
    let scratch = Scratch::new();
    let content = scratch.noise("disk.img", 4 << 20, 3);
    let place = scratch.at("fuse.img");
    let _left = LeftMount(place.clone().into());
    let server = Server::start(&mut without_ring(&scratch, ["--fuse", &place, "--io", "threads"]));
    assert!(fs::read(&place).unwrap() == content);
    let file = OpenOptions::new().write(true).open(&place).unwrap();
    file.write_all_at(&[7; 10_000], 12_345).unwrap();
    file.sync_all().unwrap();
    drop(file);
    run(tool("fallocate").args(["--punch-hole", "--offset", "1M", "--length", "1M", &place]));
    server.stop_quietly();
    let after = scratch.read("disk.img");
    assert!(after[12_345..22_345].iter().all(|byte| *byte == 7) && after[..12_345] == content[..12_345]);
    assert!(after[1 << 20..2 << 20].iter().all(|byte| *byte == 0) && after[2 << 20..] == content[2 << 20..]);
}

#[test]
fn where_the_ring_is_forbidden_threads_stand_in_and_a_warning_says_why() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 16 * MIB);
    let forbidden = |io| without_ring(&scratch, ["--nbd", "unix:socket", "--io", io]);
    let server = Server::start(&mut forbidden("auto"));
    verifies(&scratch);
    let said = server.stop().stderr;
    assert!(said.contains("threads do the I/O") && said.contains("seccomp"), "{said}");
    let refused = support::output(&mut forbidden("io_uring"));
    assert_eq!(refused.status.code(), Some(1));
    assert!(support::both(&refused).contains("io_uring is forbidden here"), "{}", support::both(&refused));
}

/// The words of the line of a setting, with which they begin.
fn words_of<'a>(said: &'a str, setting: &str) -> Vec<&'a str> {
    let words = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .into_iter()
        .find(|words| words.first() == Some(&setting))
        .unwrap_or_else(|| panic!("{setting}: {said}"))
}

#[test]
fn what_is_in_force_and_why_is_told_by_status_and_statistics() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 16 * MIB);
    let status = |scratch: &Scratch| run(&mut scratch.blockwork(["status"]));
    assert_eq!(status(&scratch), "", "nobody serves");

    // The ring is forbidden, and the page cache was asked for.
    let mut command = scratch.without_ring(["serve", "--disk", "disk.img,direct=off", "--stats"]);
    let server =
        Server::start(command.args(["--nbd", "unix:socket", "--set", "fua=auto", "--set", "fixed=on"]));
    verifies(&scratch);
    let said = status(&scratch);
    assert_eq!(words_of(&said, "io")[1..3], ["threads", "chosen"], "{said}");
    assert!(words_of(&said, "io").contains(&"(io_uring_setup:"), "{said}");
    assert_eq!(words_of(&said, "direct")[1..], ["off", "asked", "direct=off"], "{said}");
    assert_eq!(words_of(&said, "fua")[1..5], ["flush", "chosen", "through", "the"], "{said}");
    assert_eq!(words_of(&said, "fixed")[1..5], ["off", "chosen", "threads", "do"], "{said}");
    let table = server.stop().stderr;
    for line in ["disk.img: io ", "disk.img: fua ", "direct=off"] {
        assert!(table.contains(line), "{line}: {table}");
    }

    let server = scratch.serve(["--disk", "disk.img", "--set", "linearize=on", "--stats", "--json"]);
    verifies(&scratch);
    let said = status(&scratch);
    assert_eq!(
        words_of(&said, "io")[1..],
        ["io_uring", "chosen", "the", "kernel", "has", "io_uring"],
        "{said}"
    );
    assert_eq!(words_of(&said, "linearize")[1..], ["on", "asked", "linearize=on"], "{said}");
    let json = run(&mut scratch.blockwork(["status", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let told = json["disks"][0]["decisions"].as_array().expect("decisions");
    let settings: Vec<_> = told.iter().map(|it| it["setting"].as_str().expect("a word")).collect();
    assert_eq!(settings, ["io", "direct", "linearize", "fua", "fixed"]);
    let ended = server.stop().stderr;
    assert!(ended.contains(r#""setting":"direct","value":"on","asked":false"#), "{ended}");
}

/// Runs a program that may lock a megabyte, neither more as root: enough for rings, and less than a slab.
const LITTLE_LOCKED: &str = r#"
import ctypes, os, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
libc.prctl(24, 14, 0, 0, 0) # PR_CAPBSET_DROP, CAP_IPC_LOCK: exec gives it to root else
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn requests_go_by_registered_buffers_as_the_setting_says() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 16 * MIB);
    for (setting, is_all) in [("on", Some(true)), ("off", Some(false)), ("auto", None)] {
        let fixed = format!("fixed={setting}");
        let server = scratch.serve(["--disk", "disk.img", "--stats", "--json", "--set", &fixed]);
        verifies(&scratch);
        let stats = server.stop_for_stats();
        let count = |counter| stats.count("disk.img", counter);
        assert_eq!(count("errors"), 0);
        match is_all {
            // Not those whose memory is in several pieces.
            Some(true) => {
                assert!(count("fixed") > count("writes") / 2, "{} of {}", count("fixed"), count("writes"))
            }
            Some(false) => assert_eq!(count("fixed"), 0),
            None => assert!(count("fixed") > 0 && stats.chosen().iter().any(|setting| setting == "fixed")),
        }
    }
}

#[test]
fn where_little_memory_may_be_locked_requests_go_as_usual_and_a_warning_says_why() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 16 * MIB);
    let mut command = tool("/usr/bin/python3");
    command.current_dir(scratch.path("")).env("BLOCKWORK_RUN_DIR", scratch.path("run"));
    command.args(["-c", LITTLE_LOCKED, env!("CARGO_BIN_EXE_blockwork"), "serve", "--disk", "disk.img"]);
    let server =
        Server::start(command.args(["--nbd", "unix:socket", "--set", "fixed=on", "--stats", "--json"]));
    verifies(&scratch);
    let said = server.stop().stderr;
    assert!(
        said.contains("registered") && said.contains("LimitMEMLOCK") && said.contains("fixed=off"),
        "{said}"
    );
    let stats = Stats::all(&said);
    let stats = stats.last().expect("statistics");
    assert_eq!((stats.count("disk.img", "fixed"), stats.count("disk.img", "errors")), (0, 0));
    assert!(stats.count("disk.img", "writes") > 1000);
}

/// A sparse disk on a file system that is full: the client is told, and so is whoever reads the log, but not each time.
#[test]
fn a_disk_without_room_is_told_with_the_place_and_what_to_do() {
    let (scratch, start) = (Scratch::new(), Instant::now());
    scratch.sparse("disk.img", 0);
    let _small = SmallDisk::new(&scratch, "disk.img", 64, 8);
    let server = scratch.serve(["--disk", "disk.img"]);
    let write = |at: &str| {
        let write = format!("write -P 7 {at} 16M");
        output(tool("qemu-io").args(["-f", "raw", "-c", &write, &scratch.uri("")]))
    };
    for at in ["0", "16M", "32M"] {
        assert!(both(&write(at)).contains("No space left on device"), "{}", both(&write(at)));
    }
    until("it is said", || server.said().contains("No space left on device"));
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    let said: Vec<&str> = ended.stderr.lines().collect();
    assert!(said[0].starts_with("blockwork: error: disk.img: Write of "), "{said:?}");
    assert!(said[0].contains(" at byte ") && said[0].contains("Make room on the file system"), "{said:?}");
    let most = 1 + start.elapsed().as_secs() / 10;
    assert!(said.len() as u64 <= most, "{said:?}");
}

/// Sectors that the kernel cannot read or write: the client is told, and so is whoever reads the log, once for each operation.
#[test]
fn what_a_disk_refuses_is_told_with_the_place_and_what_to_do() {
    const BAD: u64 = 8192;
    let (scratch, start) = (Scratch::new(), Instant::now());
    scratch.sparse("base.img", 8 * MIB);
    let disk = FuseDisk::with_bad_sectors(&scratch, "base.img", 16384, BAD);
    let server = scratch.serve(["--disk", &disk.file]);
    let asked = |what: &str| {
        let command = format!("{what} 4M 4k");
        both(&output(tool("qemu-io").args(["-f", "raw", "-c", &command, &scratch.uri("")])))
    };
    for what in ["read", "read", "read", "write", "write"] {
        assert!(asked(what).contains("Input/output error"), "{what}");
    }
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    for operation in ["Read", "Write"] {
        let line = format!("blockwork: error: {}: {operation} of 4096 bytes at byte 4194304: ", disk.file);
        let said: Vec<&str> = ended.stderr.lines().filter(|said| said.starts_with(&line)).collect();
        assert!((1..=1 + start.elapsed().as_secs() / 10).contains(&(said.len() as u64)), "{}", ended.stderr);
        assert!(
            said[0].contains(
                "Input/output error (os error 5). Whoever asked was told. See what the kernel's log says"
            ),
            "{said:?}"
        );
    }
}

/// A mirror makes good for what the leg that it reads cannot: the client sees nothing of it, and the log does.
#[test]
fn what_a_mirror_makes_good_for_is_told_of_the_disk() {
    let scratch = Scratch::new();
    let content = scratch.noise("base.img", 8 << 20, 3);
    scratch.write("good.img", &content);
    let disk = FuseDisk::with_bad_sectors(&scratch, "base.img", 16384, 8192);
    let table = scratch.write(
        "mirror.table",
        format!("0 16384 raid raid1 4 0 nosync write_mostly 1 2 - {} - good.img\n", disk.file),
    );
    let server = scratch.serve(["--table", &table]);
    run(tool("nbdcopy").args([&scratch.uri(""), &scratch.at("copy")]));
    assert!(scratch.read("copy") == content, "the copy differs");
    let said = server.stop().stderr;
    assert!(said.contains(&format!("blockwork: error: {}: Read of ", disk.file)), "{said}");
}
