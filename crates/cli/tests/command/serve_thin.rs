//! `serve --table` with thin pools: real clients of several volumes of one pool, full pools, and servers that are killed. The judges
//! are bytes that the tests keep by themselves, nbdload's log of promises, `thin_check` and `thin_dump`.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use blockwork_format::virtio::blk::{request, status};
use serde_json::Value;

use crate::support;
use crate::support::fs::{LeftMount, Loop};
use crate::support::nbd::{Raw, fio, load, nbdload, python};
use crate::support::thin::{expect_scribbled, mapped, restore, scribble};
use crate::support::{Background, Scratch, Server, run, thin_dump, tool, until};
use vhostload::{Disk, Options, Request};

/// A pool of `blocks` blocks of 64 KiB with the volumes 1 and 2, both empty, and its data.
fn pool(scratch: &Scratch, blocks: u64) {
    restore(scratch, "meta.img", 128, blocks);
    scratch.sparse("data.img", blocks << 16);
}

/// A table with the pool and its two volumes, of 16 MiB each.
fn table(scratch: &Scratch, blocks: u64, features: &str) -> String {
    let lines = format!(
        "pool: 0 {} thin-pool meta.img data.img 128 0 {features}\na: 0 32768 thin dm/pool 1\nb: 0 32768 thin dm/pool 2\n",
        blocks * 128
    );
    scratch.write("thin.table", lines)
}

/// What `thin_dump` makes of the pool, with which `thin_check` is content.
fn dumped(scratch: &Scratch) -> String {
    thin_dump(&scratch.at("meta.img"))
}

#[test]
fn volumes_of_a_pool_are_written_at_once_and_keep_what_was_written_to_them() {
    let scratch = Scratch::new();
    pool(&scratch, 640);
    let table = table(&scratch, 640, "");
    for seed in 1..=2 {
        let server = scratch.serve(["--table", &table]);
        scribble(&scratch, seed);
        server.stop_quietly();
        let dump = dumped(&scratch);
        assert!((1..=256).contains(&mapped(&dump, 1)) && (1..=256).contains(&mapped(&dump, 2)), "{dump}");
    }
    // The next server finds all of it.
    let server = scratch.serve(["--table", &table, "--read-only"]);
    expect_scribbled(&scratch);
    server.stop_quietly();
}

#[test]
fn a_pool_is_made_and_gets_volumes_by_messages() {
    let scratch = Scratch::new();
    pool(&scratch, 64);
    scratch.write("meta.img", vec![0; 4 << 20]);
    let table = table(&scratch, 64, "");
    let said = scratch.refused(["--table", &table]);
    assert!(said.contains("meta.img: it was never used"), "{said}");
    let message = |words: &[&str]| {
        let head = ["message", "--table", &table, "dm/pool", "0"];
        scratch.blockwork([&head, words].concat())
    };
    run(&mut message(&["create_thin", "1"]));
    run(&mut message(&["create_snap 2 1"]));
    run(&mut message(&["create_thin 3"]));
    run(&mut message(&["delete 3"]));
    run(&mut message(&["set_transaction_id", "0", "9"]));
    for (words, expected) in [
        (&["create_thin 2"][..], "meta.img: the pool has a thin device 2 already"),
        (&["create_snap 4 3"], "the pool has no thin device 3"),
        (&["set_transaction_id 0 10"], "the pool's transaction is 9, expected 0"),
        (&["frob 1"], "is no message of a thin pool; expected create_thin ID"),
    ] {
        let said = support::run_refused(&mut message(words));
        assert!(said.contains(expected), "{words:?}: {said}");
    }
    let dump = dumped(&scratch);
    assert!(dump.contains("time=\"1\" transaction=\"9\""), "{dump}");
    assert_eq!((mapped(&dump, 1), mapped(&dump, 2)), (0, 0));
    let server = scratch.serve(["--table", &table]);
    let said = support::run_refused(&mut message(&["create_thin 4"]));
    assert!(said.contains("meta.img: it is locked by process"), "{said}");
    python(&format!("h = connect({:?})\nh.pwrite(b'a' * 100000, 5)\nh.flush()\n", scratch.uri("dm/b")));
    server.stop_quietly();
    assert_eq!(mapped(&dumped(&scratch), 2), 2);
}

/// As the kernel and the tools, which do not ask for it: `thin_restore` writes whatever its text says.
#[test]
fn a_pool_is_served_whatever_its_version_and_keeps_that() {
    let scratch = Scratch::new();
    pool(&scratch, 64);
    let (table, dump) = (table(&scratch, 64, ""), dumped(&scratch));
    for version in [1, 7] {
        let version = format!("version=\"{version}\"");
        let xml = scratch.write("pool.xml", dump.replace("version=\"2\"", &version));
        run(tool("thin_restore").args(["-i", &xml, "-o", &scratch.at("meta.img")]));
        let server = scratch.serve(["--table", &table]);
        python(&format!("h = connect({:?})\nh.pwrite(b'a' * 100000, 5)\nh.flush()\n", scratch.uri("dm/b")));
        server.stop_quietly();
        run(&mut scratch.blockwork(["message", "--table", &table, "dm/pool", "0", "reserve_metadata_snap"]));
        let dump = dumped(&scratch);
        assert!(dump.contains(&version) && mapped(&dump, 2) == 2, "{dump}");
        let held = run(tool("thin_dump").args(["-m", &scratch.at("meta.img")]));
        assert!(held.contains(&version) && mapped(&held, 2) == 2, "{held}");
    }
}

#[test]
fn a_read_provisions_nothing() {
    let scratch = Scratch::new();
    pool(&scratch, 64);
    let table = table(&scratch, 64, "");
    let server = scratch.serve(["--table", &table]);
    run(tool("nbdcopy").args([&scratch.uri("dm/a"), &scratch.at("copied")]));
    assert!(scratch.read("copied").iter().all(|byte| *byte == 0));
    server.stop_quietly();
    let dump = dumped(&scratch);
    assert_eq!((mapped(&dump, 1), mapped(&dump, 2)), (0, 0));
}

/// What a server says of a full pool, once.
const FULL: &str = "dm/pool: it has no free data blocks: extend it, or discard what is not needed";

#[test]
fn a_full_pool_refuses_what_needs_space_and_goes_on_when_there_is_some_again() {
    let scratch = Scratch::new();
    pool(&scratch, 32);
    let table = table(&scratch, 32, "1 error_if_no_space");
    let server = scratch.serve(["--table", &table]);
    let said = python(&format!(
        "a, b = connect({:?}), connect({:?})
block = 65536
for n in range(32):
    a.pwrite(bytes([n + 1]) * block, n * block)
a.flush()
print(refused(lambda: a.pwrite(b'x' * block, 32 * block)) == errno.ENOSPC)
print(refused(lambda: b.pwrite(b'x' * block, 0)) == errno.ENOSPC)
a.pwrite(b'y' * block, 0)
print(a.pread(block, 0) == b'y' * block, all(a.pread(block, n * block) == bytes([n + 1]) * block for n in range(1, 32)))
a.trim(2 * block, 8 * block)
a.flush()
b.pwrite(b'z' * 2 * block, 0)
b.flush()
print(b.pread(2 * block, 0) == b'z' * 2 * block, a.pread(block, 8 * block) == bytes(block))
",
        scratch.uri("dm/a"),
        scratch.uri("dm/b")
    ));
    assert_eq!(said, "True\nTrue\nTrue True\nTrue True\n");
    let said = server.stop().stderr;
    assert!(said.contains(FULL) && said.lines().count() == 1, "{said}");
    let dump = dumped(&scratch);
    assert_eq!((mapped(&dump, 1), mapped(&dump, 2)), (30, 2));
}

#[test]
fn a_write_to_a_full_pool_waits_for_space() {
    let scratch = Scratch::new();
    pool(&scratch, 32);
    let table = table(&scratch, 32, "");
    let server = scratch.serve(["--table", &table]);
    let [a, b] = ["dm/a", "dm/b"].map(|name| scratch.uri(name));
    python(&format!("a = connect({a:?})\na.pwrite(b'a' * 32 * 65536, 0)\n"));
    let mut waiting = Raw::open_export(&scratch.at("socket"), "dm/b");
    waiting.write_unanswered(0, 65536);
    until("the pool is full", || server.said().contains(FULL));
    // A read of what is mapped overtakes it.
    let said = python(&format!("a = connect({a:?})\nprint(a.pread(65536, 31 * 65536) == b'a' * 65536)\n"));
    assert_eq!(said, "True\n");
    waiting.stream.set_nonblocking(true).unwrap();
    let mut answer = [0xff; 16];
    let none = waiting.stream.read(&mut answer).expect_err("it waits");
    assert_eq!(none.kind(), ErrorKind::WouldBlock);
    waiting.stream.set_nonblocking(false).unwrap();
    python(&format!("a = connect({a:?})\na.trim(65536, 0)\na.flush()\n"));
    waiting.stream.read_exact(&mut answer).expect("there is space");
    assert_eq!(answer[..8], *b"gDf\x98\0\0\0\0", "a simple reply without an error");
    let said = python(&format!("b = connect({b:?})\nprint(b.pread(65536, 0) == b'\\xdd' * 65536)\n"));
    assert_eq!(said, "True\n");
    let said = server.stop().stderr;
    assert!(said.contains(FULL) && said.lines().count() == 1, "{said}");
    dumped(&scratch);
}

#[test]
fn a_write_to_a_full_pool_waits_no_longer_than_it_was_set_to() {
    let scratch = Scratch::new();
    pool(&scratch, 32);
    let table = table(&scratch, 32, "");
    let server = scratch.serve(["--table", &table, "--set", "dm/pool:no_space_timeout=1"]);
    let said = python(&format!(
        "import time
a = connect({:?})
block = 65536
a.pwrite(b'a' * 32 * block, 0)
start = time.monotonic()
print(refused(lambda: a.pwrite(b'b', 40 * block)) == errno.ENOSPC, time.monotonic() - start > 0.9)
print(a.pread(32 * block, 0) == b'a' * 32 * block)
",
        scratch.uri("dm/a")
    ));
    assert_eq!(said, "True True\nTrue\n");
    let said = server.stop().stderr;
    assert!(said.contains(FULL), "{said}");
    dumped(&scratch);
    let said = scratch.misused(["--table", &table, "--set", "dm/a:no_space_timeout=1"]);
    assert!(said.contains("dm/a, a device of the kind thin, has no such setting"), "{said}");
}

#[test]
fn a_guests_write_that_waits_for_space_does_not_keep_the_server_from_ending() {
    let scratch = Scratch::new();
    pool(&scratch, 4);
    let (table, socket) = (table(&scratch, 4, ""), scratch.path("socket"));
    let socket_name = scratch.at("socket");
    let set = ["--set", "dm/pool:no_space_timeout=0"];
    let serve = ["serve", "--vhost-user", &socket_name, "--table", &table];
    let server = Server::start(scratch.blockwork(serve).args(set).arg("dm/a"));
    let mut guest = Disk::new(&socket, Options::default()).unwrap();
    let write = |block: u64| Request { kind: request::OUT, sector: block * 128, len: 4096 };
    for block in 0..4 {
        assert_eq!(guest.run(0, write(block)).unwrap().status, status::OK);
    }
    guest.start(0, write(10)).unwrap();
    until("the pool is full", || server.said().contains(FULL));
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(
        guest.finished(0).is_some_and(|done| done.status == status::IOERR),
        "it heard that there is no space"
    );
    dumped(&scratch);
}

/// The same of a file of FUSE's.
#[test]
fn a_files_write_that_waits_for_space_does_not_keep_the_server_from_ending() {
    let scratch = Scratch::new();
    pool(&scratch, 4);
    let (table, file) = (table(&scratch, 4, ""), scratch.at("file"));
    let serve = ["serve", "--fuse", &file, "--table", &table, "--set", "dm/pool:no_space_timeout=0", "dm/a"];
    let server = Server::start(&mut scratch.blockwork(serve));
    let _left = LeftMount(file.clone().into());
    let script = format!(
        "import errno, mmap, os
fd, page = os.open({file:?}, os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, 4096)
for n in range(4):
    os.pwritev(fd, [page], n * 65536)
try:
    os.pwritev(fd, [page], 10 * 65536)
except OSError as error:
    print(errno.errorcode[error.errno])
"
    );
    let client = Background::start(tool("/usr/bin/python3").args(["-c", &script]));
    until("the pool is full", || server.said().contains(FULL));
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(client.finish(), (Some(0), "ENOSPC\n".to_owned()));
    assert!(!std::fs::exists(&file).unwrap(), "it is mounted still");
    dumped(&scratch);
}

#[test]
fn what_is_a_hole_of_the_data_file_is_not_made_zeros_again_and_what_is_not_is() {
    let write_zeroes = [false, true].map(|is_full| {
        let scratch = Scratch::new();
        pool(&scratch, 64);
        if is_full {
            scratch.write("data.img", vec![b'x'; 64 << 16]);
        }
        let table = table(&scratch, 64, "");
        let server = scratch.serve(["--table", &table, "--stats", "--json"]);
        let said = python(&format!(
            "a, block = connect({:?}), 65536
for n in (0, 1, 2, 5, 7):
    a.pwrite(b'a' * 4096, n * block + 8192)
a.flush()
one = bytes(8192) + b'a' * 4096 + bytes(block - 12288)
print(all(a.pread(block, n * block) == (one if n in (0, 1, 2, 5, 7) else bytes(block)) for n in range(9)))
",
            scratch.uri("dm/a")
        ));
        assert_eq!(said, "True\n");
        let stats = server.stop_for_stats();
        assert_eq!(mapped(&dumped(&scratch), 1), 5);
        stats.count("data.img", "write_zeroes")
    });
    assert!(write_zeroes[0] == 0 && write_zeroes[1] > 0, "{write_zeroes:?}");
}

/// Blocks that are not zeroed as they are given out have zeros where a client has written zeros, in whatever way.
#[test]
fn zeros_stay_zeros_where_new_blocks_are_not_zeroed() {
    for features in ["", "1 skip_block_zeroing"] {
        let scratch = Scratch::new();
        pool(&scratch, 64);
        scratch.write("data.img", vec![b'x'; 64 << 16]);
        let files = scratch.at("files");
        std::fs::create_dir(&files).expect("a folder");
        let server = scratch.serve(["--table", &table(&scratch, 64, features), "--fuse", &files]);
        let said = python(&format!(
            "a, block = connect({:?}), 65536
a.zero(block, 0, nbd.CMD_FLAG_NO_HOLE)
a.zero(block, block)
if refused(lambda: a.zero(block, 2 * block, nbd.CMD_FLAG_FAST_ZERO)) is not None:
    a.zero(block, 2 * block)
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open({:?}, os.O_RDWR)
assert libc.fallocate(fd, 3, ctypes.c_long(3 * block), ctypes.c_long(block)) == 0  # KEEP_SIZE | PUNCH_HOLE
a.zero(block - 1000, 4 * block + 500)
for n in range(5):
    a.pwrite(b'a' * 4096, n * block + 8192)
a.flush()
for n in range(5):
    found = a.pread(block, n * block)
    edge = 500 if n == 4 else 0
    print(found[edge:8192] + found[12288:block - edge] == bytes(block - 4096 - 2 * edge))
",
            scratch.uri("dm/a"),
            scratch.at("files/dm/a"),
        ));
        assert_eq!(said, "True\n".repeat(5), "{features:?}");
        server.stop_quietly();
    }
}

/// How often the locks of the pool were taken, by name, while a server ran on which a client did that with the volume `a`.
fn pool_locks(scratch: &Scratch, table: &str, what: &str) -> BTreeMap<String, u64> {
    let server = scratch.serve(["--table", table, "--workers", "1", "--stats", "--json"]);
    python(&format!("a, block = connect({:?}), 65536\n{what}", scratch.uri("dm/a")));
    let said = server.stop().stderr;
    let report: Value = said.lines().find_map(|line| serde_json::from_str(line).ok()).expect("statistics");
    let locks = report["locks"].as_array().expect("locks were taken").iter();
    let name = |lock: &Value| lock["name"].as_str().expect("a name").to_owned();
    let of_pool = locks.filter(|lock| name(lock).starts_with("dm/pool: "));
    of_pool.map(|lock| (name(lock), lock["acquisitions"].as_u64().expect("a number"))).collect()
}

#[test]
fn the_locks_of_a_pool_are_told_of_and_none_is_taken_for_what_is_mapped() {
    let scratch = Scratch::new();
    pool(&scratch, 64);
    let table = table(&scratch, 64, "");
    let written = pool_locks(&scratch, &table, "a.pwrite(b'a' * 32 * block, 0)\na.flush()\n");
    for lock in ["metadata", "editor", "requests", "map cache"] {
        assert!(written.get(&format!("dm/pool: {lock}")).is_some_and(|n| *n > 0), "{lock}: {written:?}");
    }
    let [once, often] = [1, 50].map(|times| {
        let reads = format!("for n in range({times}):\n    a.pread(32 * block, 0)\n");
        pool_locks(&scratch, &table, &reads)
    });
    assert!(once["dm/pool: editor"] > 0, "the map was read: {once:?}");
    assert_eq!(once, often);
}

/// Promises in nbdload's log so far.
fn promises(log: &Path) -> usize {
    std::fs::read_to_string(log).unwrap_or_default().lines().skip(1).count()
}

#[test]
fn every_flushed_block_of_a_thin_volume_is_there_after_kill_9_and_the_pool_is_whole() {
    let scratch = Scratch::new();
    pool(&scratch, 640);
    let table = table(&scratch, 640, "");
    let serve = ["--table", &table];
    for round in 1..=3 {
        let server = scratch.serve(serve);
        let log = scratch.path(&format!("promises{round}"));
        let mut client = nbdload();
        client
            .arg(format!("unix:{}", scratch.at("socket")))
            .args(["--export", "dm/a", "--verify", "--log"])
            .arg(&log);
        let seed = round.to_string();
        client.args(["--depth", "16", "--connections", "2", "--seconds", "100", "--seed", &seed]);
        let client = Background::start(client.args(["--rw", "randrw", "--bs", "4k", "--flush-every", "32"]));
        until("the server has promised much", || promises(&log) > 400);
        server.kill();
        assert_eq!(client.finish().0, Some(3), "the client saw its server die");
        assert!(mapped(&dumped(&scratch), 1) > 0);
        let server = scratch.serve(serve);
        let log = log.to_str().unwrap();
        let report = load(&scratch.at("socket"), &["--export", "dm/a", "--verify-only", "--log", log]);
        assert_eq!((&report["wrong_blocks"], &report["errors"]), (&0.into(), &0.into()), "{report}");
        server.stop_quietly();
    }
    dumped(&scratch);
}

#[test]
fn lines_that_are_no_pool_or_no_volume_of_one_are_refused_by_name() {
    let scratch = Scratch::new();
    pool(&scratch, 32);
    scratch.sparse("empty.img", 4 << 20);
    let cases = [
        ("p: 0 4096 thin-pool empty.img data.img 128 0\nt: 0 8 thin dm/p 1", "empty.img: it was never used"),
        (
            "p: 0 4096 thin-pool meta.img data.img 256 0\nt: 0 8 thin dm/p 1",
            "blocks of 128 sectors, and the line 256",
        ),
        ("p: 0 4096 thin-pool meta.img data.img 128 0\nt: 0 8 thin dm/p 7", "dm/p knows no device 7"),
        (
            "p: 0 2048 thin-pool meta.img data.img 128 0\nt: 0 8 thin dm/p 1",
            "32 blocks of data of 128 sectors",
        ),
        ("p: 0 4096 thin-pool meta.img meta.img 128 0\nt: 0 8 thin dm/p 1", "the same device"),
        ("p: 0 8 linear data.img 0\nt: 0 8 thin dm/p 1", "dm/p: expected a thin-pool that is defined above"),
        (
            "p: 0 4096 thin-pool meta.img data.img 128 0\nt: 0 8 linear dm/p 0",
            "it is a thin pool, whose volumes can be served",
        ),
    ];
    for (lines, expected) in cases {
        let table = scratch.write("wrong.table", format!("{lines}\n"));
        let said = scratch.refused(["--table", &table]);
        assert!(said.contains(expected), "{lines}: {said}");
    }
}

#[test]
fn an_external_origin_that_ends_within_a_block_of_the_pools_disk_is_refused() {
    let scratch = Scratch::new();
    pool(&scratch, 32);
    let origin = scratch.noise("origin.img", 1001 * 512, 1);
    let looped = Loop::with(&["--direct-io=on", "--sector-size=4096"], &scratch.at("data.img"));
    let table = |origin: &str| {
        let pool = format!("p: 0 4096 thin-pool meta.img {} 128 0\n", looped.device);
        scratch.write(
            "t.table",
            format!("{pool}o: 0 {origin} linear origin.img 0\nt: 0 4096 thin dm/p 1 dm/o\n"),
        )
    };
    let uneven = table("1001");
    let said = scratch.refused(["--table", &uneven, "dm/t"]);
    for word in ["dm/t", "ends at sector 1001", "in the middle of one of its blocks of 4096 bytes"] {
        assert!(said.contains(word), "{said}");
    }
    let server = scratch.serve(["--table", &table("1000"), "dm/t"]);
    python(&format!(
        "h = connect({:?})\nh.pwrite(b'n' * 512, 999 * 512)\n\
         assert h.pread(1024, 999 * 512) == b'n' * 512 + bytes(512)\n\
         open({:?}, 'wb').write(h.pread(999 * 512, 0))\n",
        scratch.uri("dm/t"),
        scratch.at("read")
    ));
    server.stop();
    assert!(scratch.read("read") == origin[..999 * 512]);
}

/// fio's checksums: what a client writes with, and checks by.
const CHECKSUMS: [&str; 5] =
    ["--bs=4k", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--randseed=7"];

#[test]
fn fio_finds_what_it_wrote_to_a_pool_that_was_full_meanwhile() {
    let scratch = Scratch::new();
    pool(&scratch, 48);
    let table = table(&scratch, 48, "");
    let server = scratch.serve(["--table", &table]);
    let [a, b] = ["dm/a", "dm/b"].map(|name| scratch.uri(name));
    python(&format!("b = connect({b:?})\nb.pwrite(b'b' * (32 << 16), 0)\nb.flush()\n"));
    // It wants 32 blocks, of which there are 16.
    let writes = [&CHECKSUMS[..], &["--rw=randwrite", "--size=2m"]].concat();
    let writer = Background::start(&mut fio(&scratch, &a, &writes));
    until("the pool is full", || server.said().contains(FULL));
    python(&format!("b = connect({b:?})\nb.trim(32 << 16, 0)\nb.flush()\n"));
    writer.succeed();
    server.stop();
    let dump = dumped(&scratch);
    assert_eq!((mapped(&dump, 1), mapped(&dump, 2)), (32, 0));
}

#[test]
fn fio_finds_what_it_flushed_before_a_full_pool_was_killed_under_its_writes() {
    let scratch = Scratch::new();
    pool(&scratch, 48);
    let table = table(&scratch, 48, "");
    let uri = scratch.uri("dm/a");
    let with = |more: &[&str]| fio(&scratch, &uri, &[&CHECKSUMS[..], more].concat());
    let server = scratch.serve(["--table", &table]);
    run(&mut with(&["--rw=randwrite", "--size=1m", "--do_verify=0", "--end_fsync=1"]));
    let writer =
        Background::start(&mut with(&["--rw=randwrite", "--offset=4m", "--size=4m", "--do_verify=0"]));
    until("the pool is full, and writes wait", || server.said().contains(FULL));
    server.kill();
    assert_ne!(writer.finish().0, Some(0), "its server has died");
    dumped(&scratch);
    let server = scratch.serve(["--table", &table]);
    run(&mut with(&["--rw=randwrite", "--size=1m", "--verify_only=1"]));
    server.stop();
    assert!(mapped(&dumped(&scratch), 1) >= 16);
}
