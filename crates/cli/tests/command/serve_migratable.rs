//! `serve --migratable`: guests that move from one server to another and back on the same disks. (A virtual machine that moves is in
//! `../kernel/vhost.rs`.)

use std::path::Path;
use std::process::Command;

use crate::support::fs::{Loop, is_free};
use crate::support::vhost::{BLOCK, Guest};
use crate::support::{PATIENCE, Scratch, Server, Stats, both, output, run, run_refused, until};
use blockwork_format::vhost_user::{ConfigPart, Message, VringState, protocol};
use blockwork_format::virtio::blk::{CONFIG_BYTES, request, status};
use rustix::process::Signal;
use vhostload::{Client, Disk, Options, Request};

const MIB: u64 = 1 << 20;
const READ: Request = Request { kind: request::IN, sector: 0, len: BLOCK };

fn migratable(scratch: &Scratch, socket: &str, more: &[&str]) -> Command {
    let head = ["serve", "--migratable", "--vhost-user", &scratch.at(socket), "--workers", "2"];
    let mut command = scratch.blockwork([&head, more].concat());
    command.env("RUST_LOG", "info");
    command
}

fn start(scratch: &Scratch, socket: &str, more: &[&str]) -> Server {
    Server::start(&mut migratable(scratch, socket, more))
}

fn connect(scratch: &Scratch, socket: &str, options: Options) -> Disk {
    Disk::new(&scratch.path(socket), options).unwrap()
}

/// Disks to move on: what is served of them, and what has them be in order when nobody uses them.
struct Stack {
    scratch: Scratch,
    serve: Vec<&'static str>,
    judge: fn(&Scratch),
}

fn file() -> Stack {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    Stack { scratch, serve: vec!["--disk", "disk.img"], judge: |_| {} }
}

fn mirror() -> Stack {
    let scratch = Scratch::new();
    for name in ["a.img", "b.img"] {
        scratch.sparse(name, 80 * MIB);
    }
    let create = "md create --level 1 --raid-devices 2 --name data --bitmap internal --data-offset 1M --size 64M --assume-clean a.img b.img";
    run(&mut scratch.blockwork(create.split(' ')));
    let judge = |scratch: &Scratch| {
        let said = run(&mut scratch.blockwork(["md", "examine", "a.img", "b.img"]));
        assert_eq!(said.matches("State : clean").count(), 2, "{said}");
        let data = ["a.img", "b.img"].map(|name| scratch.read(name)[MIB as usize..][..64 << 20].to_vec());
        assert!(data[0] == data[1], "the mirrors differ");
    };
    Stack { scratch, serve: vec!["--disk", "a.img", "b.img", "md/data"], judge }
}

/// A thin volume whose blocks the snapshot shares, so that writes alter the map.
fn thin() -> Stack {
    let scratch = Scratch::new();
    scratch.sparse("pv.img", 320 * MIB);
    for verb in [
        "vg create vg pv.img",
        "lv create vg/pool --thin-pool --size 200M --disk pv.img",
        "lv create vg/one --thin pool --virtual-size 64M --disk pv.img",
    ] {
        run(&mut scratch.blockwork(verb.split(' ')));
    }
    Stack { scratch, serve: vec!["--disk", "pv.img", "vg/one"], judge: |_| {} }
}

fn stacks() -> [Stack; 3] {
    [file(), mirror(), thin()]
}

fn first_disk(stack: &Stack) -> String {
    stack.scratch.at(stack.serve[1])
}

/// Moves between two servers again and again while it writes; each finds all of what went before.
fn moves_while_it_writes(stack: &Stack, options: Options, more: &[&str]) {
    let Stack { scratch, serve, judge } = stack;
    let serve = [serve, more].concat();
    let servers = [start(scratch, "here", &serve), start(scratch, "there", &serve)];
    let disk = first_disk(stack);
    assert!(is_free(&disk), "no guest has been here yet");
    let mut guest = Guest::new(connect(scratch, "here", options), 64 * MIB / BLOCK as u64);
    for round in 0..6 {
        guest.run(200 + 31 * round);
        assert!(!is_free(&disk), "a guest uses it");
        guest.fill();
        let next = scratch.path(["there", "here"][round as usize % 2]);
        drop(guest.disk.move_to(&next).unwrap());
        guest.take();
    }
    guest.verify();
    drop(guest);
    until("the disks are let go of", || is_free(&disk));
    judge(scratch);
    for server in servers {
        let ended = server.stop();
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(!ended.stderr.contains("error"), "{}", ended.stderr);
    }
}

#[test]
fn a_guest_moves_between_servers_of_the_same_disks_while_it_writes() {
    for stack in stacks() {
        for packed in [false, true] {
            moves_while_it_writes(&stack, Options { queues: 2, packed, ..Options::default() }, &[]);
        }
    }
}

#[test]
fn likewise_where_both_are_in_their_sandboxes() {
    moves_while_it_writes(&thin(), Options { queues: 2, ..Options::default() }, &["--sandbox", "on"]);
}

/// Who has stopped the guest here may start it there at once, whether or not disks there can be locked.
#[test]
fn disks_are_in_order_and_free_when_the_front_end_is_told_that_its_queues_rest() {
    for stack in stacks() {
        let scratch = &stack.scratch;
        let server = start(scratch, "here", &stack.serve);
        let mut disk = connect(scratch, "here", Options { queues: 2, ..Options::default() });
        for _ in 0..3 {
            let write = Request { kind: request::OUT, sector: 4096, len: BLOCK };
            assert_eq!(disk.run(1, write).unwrap().status, status::OK);
            assert!(!is_free(&first_disk(&stack)) && server.has_open(&first_disk(&stack)));
            disk.stop_as_it_moves().unwrap();
            assert!(is_free(&first_disk(&stack)));
            assert!(!server.has_open(&first_disk(&stack)));
            (stack.judge)(scratch);
            // It stays here after all, as the other host did not get it going.
            disk.client = None;
            disk.connect().unwrap();
        }
        drop(disk);
        server.stop();
    }
}

/// What was in flight is taken up by the next one, wherever that is.
#[test]
fn a_server_that_is_killed_is_followed_by_one_that_opens_the_disks_for_the_guest_that_waits() {
    for stack in stacks() {
        let Stack { scratch, serve, .. } = &stack;
        let mut server = start(scratch, "here", serve);
        let options = Options { queues: 2, ..Options::default() };
        let mut guest = Guest::new(connect(scratch, "here", options), 64 * MIB / BLOCK as u64);
        for _ in 0..3 {
            guest.run(200);
            guest.fill();
            server.kill();
            guest.take();
            server = start(scratch, "here", serve);
            guest.disk.connect().unwrap();
        }
        guest.verify();
        drop(guest);
        until("the disks are let go of", || is_free(&first_disk(&stack)));
        assert!(server.stop().status.success());
    }
}

/// A guest whose rings rest, and of which nobody says that it moves: it may be about to boot, or to be started anew.
#[test]
fn disks_stay_open_for_a_guest_that_pauses_and_not_for_one_that_has_gone() {
    let stack = file();
    let server = start(&stack.scratch, "here", &stack.serve);
    let mut disk = connect(&stack.scratch, "here", Options::default());
    disk.run(0, READ).unwrap();
    let client = disk.client().unwrap();
    client.ask(&Message::GetVringBase(VringState { index: 0, num: 0 })).unwrap();
    client.tell(&Message::SetStatus(0), &[]).unwrap();
    assert!(!is_free(&first_disk(&stack)));
    drop(disk);
    until("the disk is let go of", || is_free(&first_disk(&stack)));
    // The next guest gets it as the first one did.
    let mut disk = connect(&stack.scratch, "here", Options::default());
    assert_eq!(disk.run(0, READ).unwrap().status, status::OK);
    drop(disk);
    assert!(server.stop().status.success());
}

/// What a front end is told of a disk before its guest begins: features, configuration.
fn told(socket: &Path) -> (u64, Vec<u8>) {
    let client = Client::connect(socket).unwrap();
    let features = client.number(&Message::GetFeatures).unwrap();
    client.tell(&Message::SetProtocolFeatures(protocol::CONFIG), &[]).unwrap();
    let all = Message::GetConfig(ConfigPart { offset: 0, flags: 0, bytes: vec![0; CONFIG_BYTES] });
    (features, client.ask(&all).unwrap().0)
}

/// A front end asks while the disk is open, free, or somebody else's, and its guest goes by what was said for as long as it lives.
#[test]
fn front_ends_are_told_the_same_of_a_disk_whether_it_is_open_free_or_in_use_elsewhere() {
    let read_only = |stack: Stack, serve| Stack { serve, ..stack };
    let stacks = stacks().into_iter().chain([
        read_only(file(), vec!["--disk", "disk.img,ro"]),
        read_only(mirror(), vec!["--disk", "a.img", "b.img", "md/data", "--read-only"]),
    ]);
    for Stack { scratch, serve, .. } in stacks {
        let socket = scratch.at("plain");
        let plain = [&["serve", "--vhost-user", &socket], &serve[..]].concat();
        let server = Server::start(&mut scratch.blockwork(&plain));
        let expected = told(&scratch.path("plain"));
        let elsewhere = start(&scratch, "elsewhere", &serve);
        assert_eq!(told(&scratch.path("elsewhere")), expected, "{serve:?}, in use elsewhere");
        server.stop();
        let free = start(&scratch, "free", &serve);
        assert_eq!(told(&scratch.path("free")), expected, "{serve:?}, free");
        let mut disk = connect(&scratch, "free", Options::default());
        disk.run(0, READ).unwrap();
        assert_eq!(told(&scratch.path("free")), expected, "{serve:?}, open");
        disk.stop_as_it_moves().unwrap();
        assert_eq!(told(&scratch.path("free")), expected, "{serve:?}, away");
        drop(disk);
        for server in [elsewhere, free] {
            assert!(server.stop().status.success());
        }
    }
}

/// Its requests do not fail, and whoever looks for the reason finds it.
#[test]
fn a_guests_requests_wait_for_disks_that_somebody_else_has_and_the_server_ends_all_the_same() {
    let Stack { scratch, serve, .. } = file();
    let holder = Server::start(&mut scratch.blockwork(["serve", "--disk", "disk.img", "--nbd", "unix:nbd"]));
    let mut server = start(&scratch, "here", &serve);
    let mut disk = connect(&scratch, "here", Options::default());
    disk.start(0, READ).unwrap();
    let waits =
        "a guest's requests wait, as its disks cannot be opened yet: disk.img: it is locked by process";
    until("the server says why it waits", || server.said().contains(waits));
    assert!(server.stop().status.success());
    assert_eq!(disk.finished(0), None);

    // The next one takes up what waits; a guest that has gone meanwhile does not have the disk opened.
    server = start(&scratch, "here", &serve);
    until("the server says why it waits", || {
        disk.connect().unwrap();
        server.said().contains(waits)
    });
    drop(disk);
    until("the server hears of it", || server.said().contains("no guest waits for the disks any more"));
    until("it tells that", || {
        run(&mut scratch.blockwork(["status"])).contains("its disks are not open: no guest uses them")
    });
    holder.stop();
    disk = connect(&scratch, "here", Options::default());
    assert_eq!(disk.run(0, READ).unwrap().status, status::OK);
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches(waits).count(), 1, "it is said once: {}", ended.stderr);
}

#[test]
fn disks_of_a_guest_come_and_go_together() {
    let scratch = Scratch::new();
    for name in ["a.img", "b.img"] {
        scratch.sparse(name, 16 * MIB);
    }
    let serve = ["--vhost-user", &scratch.at("second"), "--disk", "a.img", "b.img"];
    let server = start(&scratch, "first", &serve);
    let mut disks = ["first", "second"].map(|socket| connect(&scratch, socket, Options::default()));
    let are_free = || ["a.img", "b.img"].map(|name| is_free(&scratch.at(name)));
    for _ in 0..3 {
        disks.iter_mut().for_each(|disk| assert_eq!(disk.run(0, READ).unwrap().status, status::OK));
        disks[1].stop_as_it_moves().unwrap();
        assert_eq!(are_free(), [false; 2], "the first one is in use");
        disks[0].stop_as_it_moves().unwrap();
        assert_eq!(are_free(), [true; 2]);
        for disk in &mut disks {
            disk.client = None;
            disk.connect().unwrap();
        }
    }
    drop(disks);
    assert!(server.stop().status.success());
}

/// What is added by hand does not move: the disks stay until it is taken away.
#[test]
fn disks_stay_open_for_a_guest_that_was_added_by_hand() {
    let scratch = Scratch::new();
    for name in ["a.img", "b.img"] {
        scratch.sparse(name, 16 * MIB);
    }
    let server = start(&scratch, "first", &["--disk", "a.img", "b.img"]);
    let mut disk = connect(&scratch, "first", Options::default());
    disk.run(0, READ).unwrap();
    let export = |words: &[&str]| scratch.blockwork([&["export"], words].concat());
    let (first, added) = (scratch.at("first"), scratch.at("added"));
    let said = run_refused(&mut export(&["remove", &first, "--force"]));
    assert!(said.contains("it is there for as long as this server"), "{said}");
    run(&mut export(&["add", "disk/b.img", "--vhost-user", &added]));
    disk.stop_as_it_moves().unwrap();
    assert!(!is_free(&scratch.at("a.img")));
    until("it says so", || server.said().contains("its disks stay open"));
    disk.client = None;
    disk.connect().unwrap();
    run(&mut export(&["remove", &added]));
    disk.stop_as_it_moves().unwrap();
    assert!(is_free(&scratch.at("a.img")) && is_free(&scratch.at("b.img")));
    drop(disk);
    assert!(server.stop().status.success());
}

/// While no guest uses the disks nobody else could tell that the server is there.
#[test]
fn it_tells_why_its_disks_are_not_open() {
    let Stack { scratch, serve, .. } = file();
    let [here, there] = ["here", "there"].map(|socket| start(&scratch, socket, &serve));
    let status = || run(&mut scratch.blockwork(["status"]));
    let away = |server: &Server, why: &str| {
        format!("disk/disk.img (server {})\n  its disks are not open: {why}\n", server.pid())
    };
    let unused = "no guest uses them";
    let told = output(&mut scratch.blockwork(["status"]));
    assert!(told.stderr.is_empty(), "{}", both(&told));
    let told = both(&told);
    assert!(told.contains(&away(&here, unused)) && told.contains(&away(&there, unused)), "{told}");
    let shown = run(&mut scratch.blockwork(["export", "show"]));
    assert!(["here", "there"].iter().all(|socket| shown.contains(&scratch.at(socket))), "{shown}");
    let trace = ["trace", "disk/disk.img", "-w", "0.1"];
    let two = "the volume disk/disk.img is served by several servers";
    assert!(run_refused(&mut scratch.blockwork(trace)).contains(two));

    let mut disk = connect(&scratch, "here", Options::default());
    disk.run(0, READ).unwrap();
    let told = status();
    assert!(told.contains(&format!("disk.img (server {})\n  io ", here.pid())), "{told}");
    assert!(!told.contains(&away(&here, unused)) && told.contains(&away(&there, unused)), "{told}");
    run(&mut scratch.blockwork(trace));

    let mut next = connect(&scratch, "there", Options::default());
    next.start(0, READ).unwrap();
    let waits = away(&there, "a guest waits for them: disk.img: it is locked by process");
    until("it says what for", || status().contains(waits.trim_end()));
    drop(disk);
    next.wait(0, PATIENCE).unwrap();
    until("they have changed places", || status().contains(&away(&here, unused)));
    assert!(!status().contains(&format!("(server {})\n  its", there.pid())), "{}", status());
    drop(next);
    until("it is told again", || status().contains(&away(&there, unused)));
    drop(here);
    let json = run(&mut scratch.blockwork(["status", "--json"]));
    let told: serde_json::Value = serde_json::from_str(&json).unwrap();
    let expected = serde_json::json!([{ "pid": there.pid(), "volume": "disk/disk.img", "sandbox": false, "why": unused }]);
    assert_eq!((&told["disks"], &told["away"]), (&serde_json::json!([]), &expected));
    let refused = run_refused(&mut scratch.blockwork(trace));
    assert!(refused.contains("there is nothing to trace") && refused.contains(unused), "{refused}");
    let add = ["export", "add", "disk/disk.img", "--vhost-user", &scratch.at("more")];
    let refused = run_refused(&mut scratch.blockwork(add));
    assert!(refused.contains("the disks of this server are not open: no guest uses them"), "{refused}");
    assert!(there.stop().status.success());
    assert!(run(&mut scratch.blockwork(["status"])).is_empty());
}

#[test]
fn who_asks_for_a_group_whose_disks_are_not_open_is_told_so() {
    let Stack { scratch, serve, .. } = thin();
    let server = start(&scratch, "here", &serve);
    let is_away =
        format!("the disks of server {}, which has vg/one, are not open: no guest uses them", server.pid());
    for verb in [&["vg", "show"][..], &["vg", "show", "vg"], &["lv", "show"], &["lv", "show", "vg/one"]] {
        let said = run_refused(&mut scratch.blockwork(verb));
        assert!(said.contains(&is_away) && said.contains("add --disk DISK..."), "{verb:?}: {said}");
    }
    let create = ["lv", "create", "vg/two", "--size", "4M"];
    let said = run_refused(&mut scratch.blockwork(create));
    let on_disks = format!("the volume group vg is on disks of server {}, which are not open", server.pid());
    assert!(said.contains(&on_disks) && said.contains("add --disk DISK..."), "{said}");
    // Of groups of others nothing is missing.
    scratch.sparse("other.img", 16 * MIB);
    run(&mut scratch.blockwork(["vg", "create", "other", "other.img"]));
    let other = scratch.serve(["--disk", "other.img"]);
    for (verb, is_told) in [(&["vg", "show"][..], true), (&["vg", "show", "other"], false)] {
        let shown = output(&mut scratch.blockwork(verb));
        assert!(shown.status.success() && both(&shown).contains("other"), "{}", both(&shown));
        assert_eq!(both(&shown).contains(&is_away), is_told, "{verb:?}: {}", both(&shown));
    }
    assert!(other.stop().status.success() && server.stop().status.success());
}

#[test]
fn what_cannot_be_let_go_of_and_opened_again_is_refused() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 16 * MIB);
    let misused = |words: &str| {
        let done = output(scratch.blockwork(["serve", "--migratable"]).args(words.split(' ')));
        assert_eq!(done.status.code(), Some(2));
        both(&done)
    };
    let said = misused("--vhost-user s --disk memory:16M");
    assert!(said.contains("memory:16M: its content would be gone whenever no guest runs"), "{said}");
    for more in ["--nbd unix:n", "--log-writes log"] {
        let said = misused(&format!("--vhost-user s --disk disk.img {more}"));
        assert!(said.contains("cannot be used with"), "{said}");
    }
    let said = misused("--disk disk.img");
    assert!(said.contains("--vhost-user"), "{said}");
    let said = misused("--vhost-user s --vhost-user t --disk disk.img");
    assert!(said.contains("2 times --vhost-user for 1 volume"), "{said}");
    // No guest is to wait for what will never be.
    let device = Loop::with(&["--read-only"], &scratch.at("disk.img"));
    let said = run_refused(&mut scratch.blockwork([
        "serve",
        "--migratable",
        "--vhost-user",
        "s",
        "--disk",
        &device.device,
    ]));
    assert!(said.contains("read-only"), "{said}");
    let missing = "serve --migratable --vhost-user s --disk none.img";
    let said = run_refused(&mut scratch.blockwork(missing.split(' ')));
    assert!(said.contains("none.img"), "{said}");
}

#[test]
fn statistics_are_of_each_stay_and_asked_for_at_any_time() {
    let Stack { scratch, serve, .. } = file();
    let server = start(&scratch, "here", &[&serve[..], &["--stats", "--json"]].concat());
    server.signal(Signal::USR1);
    until("it says that there are none", || server.said().contains("no disk is open"));
    let mut disk = connect(&scratch, "here", Options::default());
    let reads = |said: &str| -> Vec<u64> {
        Stats::all(said).iter().map(|stats| stats.count("disk.img", "read_bytes") / BLOCK as u64).collect()
    };
    for _ in 0..2 {
        disk.run(0, READ).unwrap();
    }
    server.signal(Signal::USR1);
    until("it prints them", || reads(&server.said()) == [2]);
    disk.stop_as_it_moves().unwrap();
    disk.client = None;
    disk.connect().unwrap();
    disk.run(0, READ).unwrap();
    drop(disk);
    until("the disk is let go of", || is_free(&scratch.at("disk.img")));
    let ended = server.stop();
    assert!(ended.status.success());
    assert_eq!(reads(&ended.stderr), [2, 2, 1]);
}
