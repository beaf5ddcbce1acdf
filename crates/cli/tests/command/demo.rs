//! `blockwork demo`: it verifies everything by itself, so here is whether it used what this machine has, and what it leaves.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::support;
use crate::support::{Scratch, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// `blockwork demo`, whose folder will be in a scratch folder.
fn demo(scratch: &Scratch) -> Command {
    std::fs::create_dir(scratch.path("tmp")).expect("a folder");
    let mut command = scratch.blockwork(["demo"]);
    command.env("TMPDIR", scratch.path("tmp"));
    command
}

/// No files, no mounts, no loop devices, no processes in its folders.
fn nothing_is_left(scratch: &Scratch) {
    let folder = scratch.at("tmp");
    let left: Vec<_> = std::fs::read_dir(&folder).expect("it is ours").collect();
    assert!(left.is_empty(), "{left:?}");
    let mounts = std::fs::read_to_string("/proc/mounts").expect("Linux has it");
    assert!(!mounts.contains(&folder), "{mounts}");
    let loops = run(support::tool("losetup").arg("--list"));
    assert!(!loops.contains(&folder), "{loops}");
    for process in std::fs::read_dir("/proc").expect("Linux has it") {
        let place = std::fs::read_link(process.expect("an entry").path().join("cwd"));
        assert!(!place.is_ok_and(|place| place.starts_with(&folder)), "a process still runs there");
    }
}

#[test]
fn the_demo_reads_what_linux_made_in_every_way_and_leaves_nothing() {
    let scratch = Scratch::new();
    let outcome: Value = serde_json::from_str(&run(demo(&scratch).arg("--json"))).expect("JSON");
    let names: Vec<_> =
        outcome["volumes"].as_array().expect("a list").iter().map(|volume| &volume["name"]).collect();
    assert_eq!(names, ["vg0/root", "vg0/data"]);
    // Tests run where everything is to be had (scripts/install-test-tools).
    assert_eq!(outcome["skipped"], Value::Array(Vec::new()));
    assert_eq!((&outcome["files"], &outcome["files_by_kernel"]), (&4.into(), &8.into()));
    assert_eq!((&outcome["nbdcopy"], &outcome["fuse"]), (&true.into(), &true.into()));
    let count = |name: &str| outcome["write"][name].as_u64().expect("a number");
    assert_eq!(count("client_writes"), 4096);
    // Two copies of 16 MiB in requests of 512 KiB at most; merged, or it would be 8,192.
    assert!((64..2048).contains(&count("disk_writes")), "{outcome:#}");
    nothing_is_left(&scratch);
}

/// Ends a demo that a failing test has left.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing() {
    let scratch = Scratch::new();
    let mut command = demo(&scratch);
    let mut demo = Ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"));
    let mut lines = BufReader::new(demo.0.stdout.take().expect("it is piped")).lines();
    // A server is up then, with its mounts.
    assert!(lines.any(|line| line.is_ok_and(|line| line.contains("\"ready\""))), "it comes so far");
    kill_process(Pid::from_child(&demo.0), Signal::INT).expect("it runs");
    lines.for_each(drop);
    let said = std::io::read_to_string(demo.0.stderr.take().expect("it is piped")).expect("it can be read");
    let status = demo.0.wait().expect("it is our child");
    assert_eq!((status.code(), said.as_str()), (Some(1), "blockwork: error: interrupted\n"));
    nothing_is_left(&scratch);
}
