//! `serve --vhost-user`: a guest's requests while servers come and go. The front end is that of `bench/vhostload`, which has a
//! guest's rings and memory without a guest.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::fs::LeftMount;
use crate::support::nbd::python;
use crate::support::vhost::{BLOCK, Guest};
use crate::support::{PATIENCE, Scratch, Server, Tracing, output, run, run_refused, until};
use blockwork_format::vhost_user::{Message, Region, VringAddr, VringFile, VringState};
use blockwork_format::virtio::blk::{Range, RequestHeader, feature as blk, request, status};
use blockwork_format::virtio::{Descriptor, descriptor_flag, feature, split};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;
use vhostload::{Client, Disk, Options, Request};

const MIB: u64 = 1 << 20;

fn serve(scratch: &Scratch, more: &[&str]) -> Command {
    let mut command = scratch.blockwork(["serve", "--vhost-user", &scratch.at("socket"), "--disk"]);
    command.args(more);
    command
}

/// The same where the ring is forbidden, so that only threads can do what is done.
fn serve_by_threads(scratch: &Scratch, more: &[&str]) -> Command {
    let mut command =
        scratch.without_ring(["serve", "--vhost-user", &scratch.at("socket"), "--io", "threads", "--disk"]);
    command.args(more);
    command
}

fn socket(scratch: &Scratch) -> PathBuf {
    scratch.path("socket")
}

/// Kills the server under load, again and again; each next one takes up what the last one had.
fn killed_under_load(options: Options, serve: fn(&Scratch, &[&str]) -> Command) {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let mut server = Server::start(&mut serve(&scratch, &["disk.img", "--workers", "2"]));
    let mut guest = Guest::new(Disk::new(&socket(&scratch), options).unwrap(), 64 * MIB / BLOCK as u64);
    for round in 0..5 {
        guest.run(500 + round * 37);
        // Of some it is not known how far they are; the last ones it cannot even have seen.
        guest.fill();
        server.signal(Signal::STOP);
        guest.take();
        guest.fill();
        server.kill();
        guest.take();
        assert!(!guest.in_flight.is_empty(), "nothing was in flight in round {round}");
        server = Server::start(&mut serve(&scratch, &["disk.img", "--workers", "2"]));
        guest.disk.connect().unwrap();
    }
    guest.run(500);
    guest.verify();
    drop(guest);
    server.stop_quietly();
}

#[test]
fn a_server_that_was_killed_is_followed_by_one_that_takes_up_its_requests() {
    killed_under_load(Options { queues: 2, requests: 64, ..Options::default() }, serve);
}

#[test]
fn likewise_with_packed_rings() {
    killed_under_load(Options { queues: 2, requests: 64, packed: true, ..Options::default() }, serve);
}

#[test]
fn likewise_where_threads_do_the_io() {
    killed_under_load(Options { queues: 2, requests: 64, ..Options::default() }, serve_by_threads);
}

#[test]
fn likewise_where_requests_take_several_descriptors() {
    for packed in [false, true] {
        let options = Options { requests: 16, ring_size: 64, indirect: false, packed, ..Options::default() };
        killed_under_load(Options { event_idx: false, ..options }, serve);
    }
}

/// What is not committed of a pool's map is known to nobody else: without a commit the driver, which goes on, reads zeros, and its next flush
/// succeeds.
#[test]
fn what_was_written_to_new_blocks_of_a_thin_volume_outlives_the_server() {
    let scratch = Scratch::new();
    scratch.sparse("a.img", 160 * MIB);
    for verb in [
        "vg create vg a.img",
        "lv create vg/pool --thin-pool --size 80M --disk a.img",
        "lv create vg/one --thin pool --virtual-size 64M --disk a.img",
    ] {
        run(&mut scratch.blockwork(verb.split(' ')));
    }
    let start = || Server::start(&mut serve(&scratch, &["a.img", "vg/one", "--workers", "2"]));
    let mut server = start();
    let options = Options { queues: 2, ..Options::default() };
    let mut guest = Guest::new(Disk::new(&socket(&scratch), options).unwrap(), 64 * MIB / BLOCK as u64);
    for _ in 0..3 {
        guest.run(200);
        server.kill();
        guest.take();
        server = start();
        guest.disk.connect().unwrap();
    }
    guest.verify();
    drop(guest);
    server.stop_quietly();
}

/// What a host needs that starts and ends virtual machines while one server has their disks.
#[test]
fn volumes_become_disks_of_guests_and_cease_to_be_while_others_go_on() {
    let scratch = Scratch::new();
    scratch.sparse("pv.img", 128 * MIB);
    for verb in ["vg create vg pv.img", "lv create vg/one --size 16M --disk pv.img"] {
        run(&mut scratch.blockwork(verb.split(' ')));
    }
    let ask = |words: &str| run(&mut scratch.blockwork(words.split(' ')));
    let refused = |words: &str| run_refused(&mut scratch.blockwork(words.split(' ')));
    let connect = |path: &str| {
        let disk = Disk::new(&scratch.path(path), Options { queues: 2, ..Options::default() });
        Guest::new(disk.unwrap(), 16 * MIB / BLOCK as u64)
    };
    let server = Server::start(&mut scratch.blockwork([
        "serve",
        "--disk",
        "pv.img",
        "--nbd",
        "unix:nbd.sock",
        "--workers",
        "2",
    ]));
    ask("lv create vg/two --size 16M");
    let (one, two) = (scratch.at("one.sock"), scratch.at("two.sock"));
    assert_eq!(
        ask("export add vg/one --vhost-user one.sock"),
        format!("vg/one is the disk at vhost-user:{one}\n")
    );
    let mut first = connect("one.sock");
    first.run(100);
    ask(&format!("export add vg/two --vhost-user {two} --queues 2 --json"));
    let mut second = connect("two.sock");
    second.run(100);
    first.run(100);
    let shown = ask("export show");
    let line = shown.lines().find(|line| line.starts_with("vg/two")).expect("a line for it");
    assert!(
        line.contains("16M")
            && line.ends_with(&format!(
                " nbd+unix:///vg/two?socket={} vhost-user:{two}",
                scratch.at("nbd.sock")
            )),
        "{shown}"
    );

    let said = refused("export add vg/two --vhost-user other.sock");
    assert!(said.contains(&format!("vg/two is the disk at vhost-user:{two} already")), "{said}");
    let said = refused("export add vg/none --vhost-user other.sock");
    assert!(said.contains("no running server serves the volume vg/none; served are: "), "{said}");
    let said = refused("lv remove vg/two");
    assert!(said.contains("`blockwork export remove`"), "{said}");
    let said = refused("export remove two.sock");
    assert!(said.contains("a guest has it"), "{said}");
    let said = refused("export remove nowhere.sock");
    assert!(said.contains("no running server serves the export nowhere.sock; served are: "), "{said}");
    let uri = scratch.ask("/v1/status")["volumes"][0]["exports"][0].as_str().unwrap().to_owned();
    let said = refused(&format!("export remove {uri}"));
    assert!(said.contains("no guest's disk is there"), "{said}");

    // What it has asked for since stays in its rings, and the next one goes on with that.
    second.fill();
    let said = ask(&format!("export remove vhost-user:{two} --force"));
    assert_eq!(said, format!("vg/two is no disk at vhost-user:{two} any more\n"));
    assert!(!fs::exists(&two).unwrap(), "its socket is gone");
    first.run(100);
    second.take();
    ask("export add vg/two --vhost-user two.sock");
    second.disk.connect().unwrap();
    second.verify();
    drop(second);
    until("the server has seen it go", || {
        output(&mut scratch.blockwork(["export", "remove", "two.sock"])).status.success()
    });
    ask("lv remove vg/two");
    let said = refused("export add vg/two --vhost-user two.sock");
    assert!(said.contains("served are: vg/one"), "{said}");
    first.verify();
    drop(first);
    server.stop_quietly();
    assert!(!fs::exists(&one).unwrap());
}

/// A guest's disk that is taken away by force ends when what was taken is answered. What that waits for may be an operator's to give, by the
/// same server, which has other guests besides.
#[test]
fn while_a_disk_that_is_taken_away_waits_for_space_everything_else_goes_on() {
    let scratch = Scratch::new();
    scratch.sparse("pv.img", 128 * MIB);
    for verb in [
        "vg create vg pv.img",
        "lv create vg/pool --thin-pool --size 16M --disk pv.img",
        "lv create vg/one --thin pool --virtual-size 32M --disk pv.img",
        "lv create vg/two --thin pool --virtual-size 32M --disk pv.img",
    ] {
        run(&mut scratch.blockwork(verb.split(' ')));
    }
    let ask = |words: &str| run(&mut scratch.blockwork(words.split(' ')));
    let refused = |words: &str| run_refused(&mut scratch.blockwork(words.split(' ')));
    let socket = scratch.at("one.sock");
    let take_away = |guest: &mut Disk, block: u64| {
        guest.start(0, Request { kind: request::OUT, sector: block * 128, len: BLOCK }).unwrap();
        until("a write waits for space", || {
            let stats = scratch.ask("/v1/stats");
            stats["rings"].as_array().is_some_and(|rings| rings.iter().any(|ring| ring["in_flight"] == 1))
        });
        let mut removing = scratch.blockwork(["export", "remove", &socket, "--force"]);
        let removing = removing.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        until("its socket is gone", || !fs::exists(&socket).unwrap());
        removing
    };
    let serve = ["serve", "--disk", "pv.img", "--nbd", "unix:nbd.sock"];
    let server = Server::start(scratch.blockwork(serve).args([
        "--set",
        "vg/pool:no_space_timeout=0",
        "vg/one",
        "vg/two",
    ]));
    let connect = || {
        ask("export add vg/one --vhost-user one.sock");
        Disk::new(&scratch.path("one.sock"), Options { data_bytes: 1 << 20, ..Options::default() }).unwrap()
    };
    let mut guest = connect();
    for mib in 0..16 {
        let fill = Request { kind: request::OUT, sector: mib * 2048, len: 1 << 20 };
        assert_eq!(guest.run(0, fill).unwrap().status, status::OK);
    }
    let removing = take_away(&mut guest, 16 * 16);
    assert_eq!(ask("lv resize vg/two --size +4M"), "vg/two: 36M, before it was 32M\n");
    let said = refused("export add vg/one --vhost-user other.sock");
    assert!(said.contains("what its guest has under way is not answered yet"), "{said}");
    let said = refused("lv remove vg/one");
    assert!(said.contains("whose guest still has requests under way"), "{said}");
    ask("export add vg/two --vhost-user one.sock");
    ask("lv resize vg/pool --size +4M");
    let removed = removing.wait_with_output().unwrap();
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(guest.finished(0).map(|done| done.status), Some(status::OK));
    assert!(ask("export show").contains(&format!("vhost-user:{socket}")), "that of the other one");
    ask("export remove one.sock");

    // Nor does it keep the server from ending.
    let mut guest = connect();
    for block in 16 * 16 + 1..20 * 16 {
        let fill = Request { kind: request::OUT, sector: block * 128, len: BLOCK };
        assert_eq!(guest.run(0, fill).unwrap().status, status::OK);
    }
    let mut removing = take_away(&mut guest, 20 * 16);
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(guest.finished(0).map(|done| done.status), Some(status::IOERR));
    removing.wait().unwrap();
}

#[test]
fn a_server_without_exports_gets_guests_and_goes_on_when_the_last_one_has_gone() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 16 * MIB);
    let serve = |args: &[&str]| {
        let mut command = scratch.blockwork(["serve", "--disk", "disk.img", "--no-exports"]);
        command.args(args);
        command
    };
    for (more, expected) in [
        (["--nbd", "unix:nbd.sock"].as_slice(), "cannot be used with '--nbd"),
        (&["--vhost-user", "a.sock"], "cannot be used with '--vhost-user"),
        (&["--no-control"], "cannot be used with '--no-control'"),
    ] {
        let done = output(&mut serve(more));
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(2) && said.contains(expected), "{said}");
    }
    let ask = |words: &str| run(&mut scratch.blockwork(words.split(' ')));
    let server = Server::start(&mut serve(&[]));
    assert!(server.addresses.is_empty(), "{:?}", server.addresses);
    let exports = || scratch.ask("/v1/status")["volumes"][0]["exports"].as_array().map(Vec::len);
    assert_eq!(exports(), Some(0));
    for round in 0..2 {
        ask("export add disk/disk.img --vhost-user guest.sock");
        assert_eq!(exports(), Some(1));
        let disk = Disk::new(&scratch.path("guest.sock"), Options::default()).unwrap();
        let mut guest = Guest::new(disk, 16 * MIB / BLOCK as u64);
        guest.run(100);
        guest.verify();
        drop(guest);
        until(&format!("guest {round} has gone"), || {
            output(&mut scratch.blockwork(["export", "remove", "guest.sock"])).status.success()
        });
        assert_eq!(exports(), Some(0));
    }
    server.stop_quietly();
}

#[test]
fn a_server_that_was_killed_while_it_was_busy_is_called_by_a_driver_that_comes_later() {
    for (packed, event_idx) in [(false, false), (false, true), (true, false), (true, true)] {
        let scratch = Scratch::new();
        scratch.sparse("disk.img", 64 * MIB);
        let server = Server::start(&mut serve(&scratch, &["disk.img"]));
        let options = Options { requests: 16, packed, event_idx, ..Options::default() };
        let mut guest = Guest::new(Disk::new(&socket(&scratch), options).unwrap(), 64 * MIB / BLOCK as u64);
        guest.run(500);
        until("all is answered", || {
            guest.take();
            guest.in_flight.is_empty()
        });
        server.kill();
        guest.disk.hush();
        let server = Server::start(&mut serve(&scratch, &["disk.img"]));
        guest.disk.connect().unwrap();
        // It has nothing to take up, and rests: the next request has to call it.
        guest.run(1);
        guest.verify();
        drop(guest);
        server.stop_quietly();
    }
}

#[test]
fn a_server_that_is_asked_to_stop_answers_what_it_has_taken_and_leaves_the_rest_to_the_next() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let server = Server::start(&mut serve(&scratch, &["disk.img"]));
    let options = Options { requests: 64, ..Options::default() };
    let mut guest = Guest::new(Disk::new(&socket(&scratch), options).unwrap(), 64 * MIB / BLOCK as u64);
    guest.run(300);
    guest.fill();
    server.stop_quietly();
    guest.take();
    guest.fill();
    let server = Server::start(&mut serve(&scratch, &["disk.img"]));
    guest.disk.connect().unwrap();
    guest.verify();
    server.stop_quietly();
}

/// One request of a guest that looks for its answer only when it is called.
fn sleep_through(disk: &mut Disk, queue: usize, request: Request) -> u16 {
    let Disk { guest, queues, .. } = &mut *disk;
    assert!(!queues[queue].want_calls(guest, true), "nothing else is under way");
    // Calls from before.
    queues[queue].sleep(Duration::ZERO);
    let id = disk.start(queue, request).expect("room");
    let done = loop {
        assert!(disk.queues[queue].sleep(PATIENCE), "{request:?}: nobody has called the guest");
        if let Some(done) = disk.finished(queue) {
            break done;
        }
    };
    assert_eq!((done.id, done.status), (id, status::OK), "{request:?}");
    id
}

/// The server behind it tells what has reached the disk: a flush, or a hole, that was only answered did not.
#[test]
fn where_threads_do_the_io_a_guest_is_heard_and_called_and_what_it_flushes_and_discards_reaches_the_disk() {
    const ROUNDS: u64 = 6;
    const LEN: usize = 64 << 10;
    for (packed, event_idx) in [(false, false), (false, true), (true, false), (true, true)] {
        let scratch = Scratch::new();
        let path = scratch.sparse("behind.img", 16 * MIB);
        let place = scratch.at("disk.img");
        let _left = LeftMount(place.clone().into());
        let args = ["serve", "--disk", "behind.img", "--fuse", &place, "--no-control", "--stats", "--json"];
        let behind = Server::start(&mut scratch.blockwork(args));
        let server = Server::start(&mut serve_by_threads(&scratch, &["disk.img", "--workers", "2"]));
        let options = Options { queues: 2, data_bytes: LEN, packed, event_idx, ..Options::default() };
        let mut disk = Disk::new(&socket(&scratch), options).unwrap();
        for round in 0..ROUNDS {
            let (queue, sector) = (round as usize % 2, round * 1024);
            let id = disk.queues[queue].next_id().expect("room");
            disk.write_data(queue, id, &[round as u8 + 1; LEN]);
            sleep_through(&mut disk, queue, Request { kind: request::OUT, sector, len: LEN });
            sleep_through(&mut disk, queue, Request { kind: request::FLUSH, sector: 0, len: 0 });
            // By the other queue: what one has written, all find.
            let other = 1 - queue;
            let id = sleep_through(&mut disk, other, Request { kind: request::IN, sector, len: LEN });
            let mut found = vec![0; LEN];
            disk.read_data(other, id, &mut found);
            assert!(found == vec![round as u8 + 1; LEN], "packed: {packed}, round {round}");
        }
        let kicks: Vec<u64> = disk.queues.iter().map(|queue| queue.kicks).collect();
        assert!(kicks.iter().all(|kicks| *kicks > 0), "{kicks:?}");
        let blocks = || fs::metadata(&path).expect("it is there").blocks() * 512;
        let before = blocks();
        let discarded = Range { sector: 1024, sectors: LEN as u32 / 512, flags: 0 };
        let bytes = discarded.encode();
        let id = disk.queues[0].next_id().expect("room");
        disk.write_data(0, id, &bytes);
        sleep_through(&mut disk, 0, Request { kind: request::DISCARD, sector: 0, len: bytes.len() });
        assert_eq!(blocks(), before - LEN as u64);
        drop(disk);
        // At its end it would flush of its own accord.
        server.kill();
        let flushes = behind.stop_for_stats().count("behind.img", "flushes");
        assert!(flushes >= ROUNDS, "{flushes} flushes have reached the disk, of {ROUNDS}");
        let content = scratch.read("behind.img");
        for round in 0..ROUNDS {
            let at = round as usize * 1024 * 512;
            let expected = if round == 1 { 0 } else { round as u8 + 1 };
            assert!(content[at..at + LEN] == vec![expected; LEN], "packed: {packed}, round {round}");
        }
    }
}

#[test]
fn an_array_that_grows_is_a_larger_disk_and_its_guest_is_told() {
    let scratch = Scratch::new();
    for name in ["a.img", "b.img"] {
        scratch.sparse(name, 32 * MIB);
    }
    let create = "md create --level 1 --raid-devices 2 --name data --data-offset 1M --size 16M --assume-clean a.img b.img";
    run(&mut scratch.blockwork(create.split(' ')));
    let server = Server::start(serve(&scratch, &["a.img", "b.img"]).arg("md/data"));
    let disk = Disk::new(&socket(&scratch), Options::default()).unwrap();
    assert_eq!(disk.config().unwrap().capacity, 16 * MIB / 512);
    run(&mut scratch.blockwork(["md", "grow", "md/data", "--size", "24576", "--assume-clean", "--wait"]));
    disk.wait_for_config_change().unwrap();
    assert_eq!(disk.config().unwrap().capacity, 24 * MIB / 512);
    drop(disk);
    server.stop_quietly();
}

#[test]
fn an_image_that_is_made_larger_is_a_larger_disk_and_its_guest_is_told() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 16 * MIB);
    let server = Server::start(serve(&scratch, &["disk.img"]).args(["--nbd", "unix:nbd"]));
    let mut disk = Disk::new(&socket(&scratch), Options::default()).unwrap();
    assert_eq!(disk.config().unwrap().capacity, 16 * MIB / 512);
    let image = File::options().write(true).open(scratch.path("disk.img")).unwrap();
    image.set_len(24 * MIB).unwrap();
    disk.wait_for_config_change().unwrap();
    assert_eq!(disk.config().unwrap().capacity, 24 * MIB / 512);
    // The guest that it has, and clients that come, get at what is new.
    let last = Request { kind: request::OUT, sector: 24 * MIB / 512 - 8, len: 4096 };
    assert_eq!(disk.run(0, last).unwrap().status, status::OK);
    let behind = Request { sector: 24 * MIB / 512, ..last };
    assert_eq!(disk.run(0, behind).unwrap().status, status::IOERR);
    let uri = format!("nbd+unix:///?socket={}", scratch.at("nbd"));
    let said = python(&format!(
        "h = connect({uri:?})\nprint(h.get_size(), len(h.pread(4096, (24 << 20) - 4096)))\n"
    ));
    assert_eq!(said, format!("{} 4096\n", 24 * MIB));
    assert_eq!(scratch.ask("/v1/status")["volumes"][0]["bytes"], 24 * MIB);
    assert_eq!(image.metadata().unwrap().len(), 24 * MIB);
    drop(disk);
    server.stop_quietly();
}

/// A front end that has rings, headers and statuses in one file, and the data of its request in another, which it cuts short.
struct Cutter {
    disk: Disk,
    data: File,
    error: OwnedFd,
}

impl Cutter {
    const DATA: Region = Region { guest: 9 << 32, size: 64 << 10, user: 9 << 40, offset: 0 };

    fn new(socket: &Path) -> Cutter {
        let options = Options { indirect: false, event_idx: false, ring_size: 8, ..Options::default() };
        let disk = Disk::new(socket, options).unwrap();
        let data = File::from(memfd_create("data", MemfdFlags::CLOEXEC).unwrap());
        data.set_len(Self::DATA.size).unwrap();
        let error = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let client = disk.client().unwrap();
        client.tell(&Message::AddMemReg(Self::DATA), &[data.as_fd()]).unwrap();
        let errors = VringFile { index: 0, has_file: true };
        client.tell(&Message::SetVringErr(errors), &[error.as_fd()]).unwrap();
        Cutter { disk, data, error }
    }

    /// Cuts its data to `left` bytes, and has 4 KiB that begin at `at` read or written. Returns what it is told of that, once it has heard
    /// that its ring is broken.
    fn cut(mut self, left: u64, at: u64, kind: u32) -> u8 {
        let (queue, memory) = (&self.disk.queues[0], &self.disk.guest.memory);
        let (header, answer) = (queue.data(0), queue.status(0));
        memory.write_at(header.offset, &RequestHeader { kind, sector: 128 }.encode());
        memory.write_at(answer.offset, &[0xff]);
        let (next, write) = (descriptor_flag::NEXT, descriptor_flag::WRITE);
        let data = if kind == request::IN { next | write } else { next };
        let chain =
            [(header.guest(), 16, next), (Self::DATA.guest + at, 4096, data), (answer.guest(), 1, write)];
        for (i, (address, len, flags)) in (0..).zip(chain) {
            let descriptor = Descriptor { address, len, flags, next: i + 1 };
            memory.write_at(16 * usize::from(i), &descriptor.encode());
        }
        self.data.set_len(left).unwrap();
        let available = 16 * 8;
        memory.write_at(available + split::ENTRIES, &0_u16.to_le_bytes());
        memory.write_at(available + split::INDEX, &1_u16.to_le_bytes());
        self.disk.queues[0].kick();
        // Blocks until it is told.
        assert_eq!(rustix::io::read(&self.error, &mut [0; 8]), Ok(8));
        let mut told = [0];
        self.disk.guest.memory.read_at(answer.offset, &mut told);
        told[0]
    }
}

#[test]
fn a_front_end_that_cuts_off_the_data_of_its_requests_costs_no_array_a_member() {
    for direct in ["auto", "off"] {
        let scratch = Scratch::new();
        for name in ["a.img", "b.img"] {
            scratch.sparse(name, 32 * MIB);
        }
        let create =
            "md create --level 1 --raid-devices 2 --name data --data-offset 1M --assume-clean a.img b.img";
        run(&mut scratch.blockwork(create.split(' ')));
        let [first, second] = ["a.img", "b.img"].map(|name| format!("{name},direct={direct}"));
        let server = Server::start(serve(&scratch, &[&first, &second]).arg("md/data"));
        // All of the data is gone, or all but its first bytes, which are less than a sector.
        for (left, at) in [(0, 0), (4096, 4096 - 256)] {
            for kind in [request::OUT, request::IN] {
                let told = Cutter::new(&socket(&scratch)).cut(left, at, kind);
                // Where the disk demands it, what is not aligned is copied by the server, which finds zeros.
                assert!(
                    told == status::IOERR || at > 0 && direct == "auto",
                    "{direct} {left} {kind}: {told}"
                );
                // The next one finds all as it should be.
                let mut guest = Guest::new(Disk::new(&socket(&scratch), Options::default()).unwrap(), 1024);
                guest.run(100);
                guest.verify();
            }
        }
        let said = server.stop().stderr;
        assert!(said.contains("the file of the guest's memory was cut short"), "{said}");
        assert!(!said.contains("md/data: member") && !said.contains("it ends at byte"), "{said}");
        for name in ["a.img", "b.img"] {
            let found = run(&mut scratch.blockwork(["md", "examine", name]));
            assert!(found.contains("Array State : AA"), "{name}: {found}");
        }
    }
}

#[test]
fn a_ring_that_starves_shows_in_the_statistics() {
    let scratch = Scratch::new();
    // Each request takes a millisecond.
    std::fs::write(scratch.at("table"), "0 32768 delay memory:16M 0 1\n").unwrap();
    let mut command = scratch.blockwork([
        "serve",
        "--vhost-user",
        &scratch.at("socket"),
        "--table",
        &scratch.at("table"),
        "--stats",
    ]);
    let server = Server::start(&mut command);
    let options = Options { ring_size: 4, requests: 4, ..Options::default() };
    let mut guest = Guest::new(Disk::new(&socket(&scratch), options).unwrap(), 1024);
    guest.run(200);
    guest.verify();
    drop(guest);
    let said = server.stop().stderr;
    let ring = said.lines().find(|line| line.contains("vhost-user:") && line.contains("queue 0"));
    let ring = ring.unwrap_or_else(|| panic!("no ring is told of: {said}"));
    assert!(ring.ends_with("was full: a larger one may be faster"), "{ring}");
}

#[test]
fn a_trace_says_how_many_requests_fill_a_ring_of_which_they_take_several_descriptors() {
    let scratch = Scratch::new();
    // Each request takes a millisecond, so that they meet.
    let table = scratch.write("table", "slow: 0 32768 delay memory:16M 0 1\n");
    let vhost = ["serve", "--vhost-user", &scratch.at("socket"), "--table", &table];
    let server = Server::start(&mut scratch.blockwork(vhost));
    let tracing = Tracing::start(&scratch, &["dm/slow"]);
    let options = Options { ring_size: 8, requests: 8, indirect: false, ..Options::default() };
    let mut guest = Guest::new(Disk::new(&socket(&scratch), options).unwrap(), 1024);
    guest.run(20);
    guest.verify();
    tracing.signal(Signal::INT);
    let said = tracing.finish();
    assert!(said.contains("ring full: 2 requests in flight, size 8; full before for "), "{said}");
    server.stop();
}

/// A front end asks for the configuration before it tells of its rings, as QEMU does, and its guest keeps to that.
#[test]
fn a_ring_without_room_for_the_requests_that_its_driver_was_told_of_is_warned_of() {
    let short = "makes no indirect descriptors, and its ring of 64 is too short for the 126 pieces";
    let those = blk::SEG_MAX | blk::FLUSH | feature::INDIRECT_DESC;
    for (features, ring_size, warned) in [
        (blk::SEG_MAX | blk::FLUSH, 64, true),
        (blk::SEG_MAX | blk::FLUSH, 128, false),
        (those, 64, false),
        // Firmware, which makes no such requests.
        (blk::SEG_MAX, 64, false),
        (blk::FLUSH, 64, false),
    ] {
        let scratch = Scratch::new();
        let server = Server::start(&mut serve(&scratch, &["memory:16M"]));
        let mut disk =
            Disk::new(&socket(&scratch), Options { ring_size: 128, ..Options::default() }).unwrap();
        assert_eq!(disk.config().unwrap().seg_max, 126);
        let features = disk.features & !those | features;
        disk.client().unwrap().tell(&Message::SetFeatures(features), &[]).unwrap();
        let smaller = Message::SetVringNum(VringState { index: 0, num: ring_size });
        disk.client().unwrap().tell(&smaller, &[]).unwrap();
        disk.client = None;
        let said = server.stop().stderr;
        assert_eq!(said.contains(short), warned, "{features:#x} {ring_size}: {said}");
        assert_eq!(said.contains("indirect_desc=on, or queue-size=128"), warned, "{said}");
    }
}

/// As QEMU does it whose guest has no memory that can be shared.
#[test]
fn a_guest_whose_memory_is_not_shared_is_told_of() {
    let scratch = Scratch::new();
    let server = Server::start(&mut serve(&scratch, &["memory:16M"]));
    let complaint = "shares no memory of its guest";
    let has_come = Client::connect(&socket(&scratch)).unwrap();
    let set_going = |client: &Client| {
        let descriptor = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let (index, at) = (0, 0x1000);
        let address = VringAddr { index, flags: 0, descriptors: at, used: at, available: at, log: 0 };
        client.tell(&Message::SetVringNum(VringState { index, num: 8 }), &[]).unwrap();
        client.tell(&Message::SetVringAddr(address), &[]).unwrap();
        let kick = Message::SetVringKick(VringFile { index, has_file: true });
        client.tell(&kick, &[descriptor.as_fd()]).unwrap();
        client.tell(&Message::SetVringEnable(VringState { index, num: 1 }), &[]).unwrap();
    };
    set_going(&has_come);
    until("it is told of", || server.said().contains(complaint));
    drop(has_come);
    // Who shares it is not told.
    let disk = Disk::new(&socket(&scratch), Options::default()).unwrap();
    drop(disk);
    let said = server.stop().stderr;
    assert_eq!(said.matches(complaint).count(), 1, "{said}");
}

#[test]
fn each_socket_is_one_volume() {
    let scratch = Scratch::new();
    let mut command = serve(&scratch, &["memory:16M"]);
    let said = run_refused(command.args(["--vhost-user", &scratch.at("other")]));
    assert!(said.contains("2 times --vhost-user for 1 volume:"), "{said}");
    let mut command = serve(&scratch, &["memory:16M", "null:16M", "disk/memory", "disk/null"]);
    let said = run_refused(command.args(["--vhost-user", &scratch.at("socket")]));
    assert!(said.contains("a server answers on this socket already, another one or this one"), "{said}");
}

#[test]
fn that_no_memory_can_be_had_in_huge_pages_is_told_with_the_remedy_and_the_guest_is_served() {
    let scratch = Scratch::new();
    let served = scratch.at("socket");
    let args = ["serve", "--vhost-user", &served, "--guest-memory", "huge", "--disk", "memory:16M"];
    let server = Server::start(&mut scratch.without(&libc::SYS_madvise.to_string(), args));
    let options = Options { requests: 64, data_bytes: 64 << 10, ..Options::default() };
    let mut disk = Disk::new(&socket(&scratch), options).expect("the server takes a front end");
    disk.guest.use_all();
    until("it is told", || server.said().contains("memory can be had in huge pages"));
    let told = server.said();
    assert!(told.contains("Operation not permitted") && told.contains("hugetlb=on"), "{told}");
    let read = Request { kind: request::IN, sector: 0, len: 64 << 10 };
    assert_eq!(disk.run(0, read).expect("an answer").status, status::OK);
    drop(disk);
    server.stop();
}

/// What `blockwork status` says of pinned memory: by addresses, locked bytes.
fn pinned(scratch: &Scratch) -> Vec<(String, u64)> {
    let status = run(&mut scratch.blockwork(["status", "--json"]));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let one = |it: &serde_json::Value| {
        (it["address"].as_str().unwrap().to_owned(), it["locked_bytes"].as_u64().unwrap())
    };
    status["pinned"].as_array().unwrap().iter().map(one).collect()
}

#[test]
fn a_guests_memory_is_pinned_where_that_is_said_and_status_tells_how_much() {
    let scratch = Scratch::new();
    for disk in ["a.img", "b.img"] {
        scratch.sparse(disk, MIB);
    }
    let disks = ["--disk", "a.img,fixed=on", "b.img,fixed=on", "null:1M", "--set", "read_ahead_kb=0"];
    let mut command = scratch.blockwork(["serve", "--no-exports"]);
    let server = Server::start(command.args(disks));
    let add = |volume: &str, more: &[&str]| {
        let at = scratch.at(&volume.replace('/', "-"));
        let mut command = scratch.blockwork(["export", "add", volume, "--vhost-user", &at]);
        command.args(more);
        (at, command)
    };
    let (plain, mut command) = add("disk/a.img", &[]);
    run(&mut command);
    let (at, mut command) = add("disk/b.img", &["--guest-memory", "pinned"]);
    run(&mut command);
    let (_, mut command) = add("disk/null", &["--guest-memory", "pinned"]);
    let said = run_refused(&mut command);
    assert!(said.contains("pinned in vain") && said.contains("--set fixed=auto"), "{said}");
    assert_eq!(pinned(&scratch), [(format!("vhost-user:{at}"), 0)]);
    let [mut of_a, mut of_b] = [&plain, &at].map(|at| Disk::new(at.as_ref(), Options::default()).unwrap());
    let read = Request { kind: request::IN, sector: 8, len: 4096 };
    let len = of_b.guest.memory.len() as u64;
    until("all of it is locked", || {
        for disk in [&mut of_a, &mut of_b] {
            assert_eq!(disk.run(0, read).unwrap().status, status::OK);
        }
        pinned(&scratch)[0].1 == len
    });
    let said = run(&mut scratch.blockwork(["status"]));
    assert!(said.contains(&format!("vhost-user:{at}: the guest's memory is pinned, ")), "{said}");
    drop(of_b);
    until("nothing is locked for a guest that has gone", || pinned(&scratch)[0].1 == 0);
    run(&mut scratch.blockwork(["export", "remove", &at]));
    assert_eq!(pinned(&scratch), []);
    drop(of_a);
    server.stop();
}

#[test]
fn memory_that_would_be_pinned_in_vain_is_not_and_that_is_told() {
    let scratch = Scratch::new();
    let server = Server::start(&mut serve(&scratch, &["null:1M", "--guest-memory", "pinned"]));
    assert!(server.said().contains("pinned in vain"), "{}", server.said());
    assert_eq!(pinned(&scratch), []);
    server.stop();
    // Where it is not in vain, requests go so without more being said.
    scratch.sparse("disk.img", MIB);
    let server = Server::start(&mut serve(&scratch, &["disk.img", "--guest-memory", "pinned"]));
    let said = run(&mut scratch.blockwork(["status"]));
    let is_auto = said.lines().any(|line| line.split_whitespace().take(2).eq(["fixed", "auto"]));
    assert!(is_auto && pinned(&scratch).len() == 1, "{said}");
    assert!(!server.stop().stderr.contains("in vain"));
}
