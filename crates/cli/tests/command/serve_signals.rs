//! Signals that a server gets: which end it, how, and what is left behind.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::fs::LeftMount;
use crate::support::{BLOCKWORK, Scratch, Server, both, output, run, tool, until};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;

/// A client's read never comes back, and so the end is waited for: the second signal does not wait.
#[test]
fn a_second_signal_leaves_no_mount_behind() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", MIB);
    let table = scratch.write("slow.table", "slow: 0 2048 delay disk.img 0 3600000\n");
    let place = scratch.at("fuse.img");
    let _left = LeftMount(place.clone().into());
    let server = Server::start(&mut scratch.blockwork(["serve", "--table", &table, "--fuse", &place]));
    let copy = format!("if={place}");
    let mut client = tool("dd");
    client.args([&copy, "of=/dev/null", "bs=4k", "count=1", "status=none"]).stderr(Stdio::null());
    let mut client = client.spawn().unwrap();
    until("the read is under way", || {
        let stats = scratch.ask("/v1/stats");
        let nodes = stats["nodes"].as_array().expect("a list");
        nodes.iter().any(|node| node["name"] == "dm/slow 0+2048" && node["counters"]["in"] == 1)
    });
    server.signal(Signal::TERM);
    until("another one is the second", || has_thread(&server, "blockwork-exit"));
    server.signal(Signal::TERM);
    assert_eq!(server.wait().status.code(), Some(130));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&place), "{mounts}");
    assert!(!fs::exists(&place).unwrap(), "what was not there before is not there afterwards");
    assert!(!client.wait().unwrap().success(), "its read has failed");
}

fn has_thread(server: &Server, name: &str) -> bool {
    let mut threads = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    threads.any(|thread| {
        fs::read_to_string(thread.unwrap().path().join("comm")).is_ok_and(|it| it.trim() == name)
    })
}

/// timeout(1) signals its command twice: by its number, and with its process group.
#[test]
fn signals_that_come_together_are_one() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", MIB);
    let server = scratch.serve(["--disk", "disk.img"]);
    let first = Instant::now();
    while first.elapsed() < Duration::from_millis(100) {
        server.signal(Signal::TERM);
        server.signal(Signal::INT);
    }
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn a_server_whose_terminal_is_gone_ends_as_one_that_is_asked_to() {
    let scratch = Scratch::new();
    let place = scratch.at("fuse.img");
    let _left = LeftMount(place.clone().into());
    // Whoever runs these tests may have it ignored, and what is ignored is inherited.
    let mut command = tool("env");
    command.env("BLOCKWORK_RUN_DIR", scratch.path("run")).current_dir(scratch.path("."));
    command.args(["--default-signal=HUP", BLOCKWORK, "serve", "--disk", "memory:1M", "--fuse", &place]);
    let server = Server::start(&mut command);
    server.signal(Signal::HUP);
    let ended = server.wait();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{}\n{}", ended.status, ended.stderr);
    assert!(!fs::exists(&place).unwrap());
}

#[test]
fn a_server_that_nohup_has_started_outlives_its_terminal() {
    let scratch = Scratch::new();
    let mut command = tool("nohup");
    command.env("BLOCKWORK_RUN_DIR", scratch.path("run")).current_dir(scratch.path("."));
    command.args([BLOCKWORK, "serve", "--disk", "memory:1M", "--nbd", "unix:socket"]);
    let server = Server::start(&mut command);
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("every process has it");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a number");
    assert_eq!(mask & 1, 1, "SIGHUP is ignored: {status}");
    server.signal(Signal::HUP);
    server.signal(Signal::USR1);
    until("it prints statistics", || server.said().contains("memory"));
    assert!(scratch.ask("/v1/stats")["nodes"].is_array());
    let ended = server.stop();
    assert!(ended.status.success(), "{}\n{}", ended.status, ended.stderr);
}

/// The thread that looks at signals must not end of it: who could end the server then?
#[test]
fn statistics_that_nobody_can_be_told_do_not_end_what_looks_at_signals() {
    let scratch = Scratch::new();
    let mut command = tool("sh");
    command.env("BLOCKWORK_RUN_DIR", scratch.path("run")).current_dir(scratch.path("."));
    command.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full", BLOCKWORK]);
    command.args(["serve", "--disk", "memory:1M", "--nbd", "unix:socket"]);
    let server = Server::start(&mut command);
    server.signal(Signal::USR1);
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.status);
}

/// It lives, and what it has is not known: nobody takes that for nothing, and what others have is shown all the same.
#[test]
fn a_server_that_is_stopped_is_told_of_by_whoever_would_have_asked_it() {
    let scratch = Scratch::new();
    let serve = |disk: &str, socket: &str| {
        scratch.sparse(disk, MIB);
        let socket = format!("unix:{socket}");
        Server::start(&mut scratch.blockwork(["serve", "--disk", disk, "--nbd", &socket]))
    };
    let stopped = serve("a.img", "a.sock");
    stopped.signal(Signal::STOP);
    let pid = stopped.pid();
    let why =
        format!("does not answer: no answer within 5 s, as it is stopped: `kill -CONT {pid}` has it go on");
    let told = &|args: &[&str]| {
        let done = output(&mut scratch.blockwork(args));
        let said = both(&done);
        assert_eq!(done.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains(&format!("the server {pid} (")) && said.contains(&why), "{args:?}: {said}");
        assert!(!said.contains("no running server") && !said.contains("no server is running"), "{said}");
        said
    };
    thread::scope(|all| {
        for args in [
            "export show",
            "export show --json",
            "export remove /run/vm.sock",
            "status",
            "status --json",
            "md status",
            "md status md/data",
            "md check md/data",
            "vg show",
            "lv show vg",
            "lv remove vg/a",
            "message dm/pool 0 create_thin 1",
            "trace disk/a.img",
        ] {
            all.spawn(move || told(&args.split(' ').collect::<Vec<_>>()));
        }
    });
    let other = serve("b.img", "b.sock");
    let said = told(&["export", "show"]);
    assert!(said.contains("disk/b.img") && !said.contains("disk/a.img"), "{said}");
    // What is found elsewhere needs nobody else.
    let done =
        output(scratch.blockwork(["export", "add", "disk/b.img", "--vhost-user"]).arg(scratch.at("vm")));
    assert!(done.status.success() && both(&done).contains(&why), "{}", both(&done));
    stopped.signal(Signal::CONT);
    let said = run(&mut scratch.blockwork(["export", "show"]));
    assert!(said.contains("disk/a.img") && said.contains("disk/b.img"), "{said}");
    assert!(stopped.stop().status.success() && other.stop().status.success());
}
