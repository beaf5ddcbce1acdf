//! `blockwork trace` of a running server: live text, JSON, and files that blkparse reads without a word, with the letters
//! and sectors of a workload that is known.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::nbd::{Raw, load, python};
use crate::support::{
    Background, Lines, Scratch, Server, Tracing, both, output, resident_bytes, run, tool, until,
};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A line of blkparse's: the letter, what it was (`R`, `WF`, ...), and the rest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    device: String,
    letter: String,
    kind: String,
    rest: String,
}

fn event(line: &str) -> Event {
    let words: Vec<&str> = line.split_whitespace().collect();
    assert!(words.len() >= 7, "{line}");
    let word = |i: usize| words[i].to_owned();
    Event { device: word(0), letter: word(5), kind: word(6), rest: words[7..].join(" ") }
}

/// Those with this letter: kind and where.
fn with<'a>(events: &'a [Event], letter: &str) -> Vec<(&'a str, &'a str)> {
    let found = events.iter().filter(|event| event.letter == letter);
    let place = |event: &'a Event| event.rest.split(" [").next().expect("there is always one");
    found.map(|event| (event.kind.as_str(), place(event))).collect()
}

fn server(scratch: &Scratch) -> Server {
    scratch.sparse("disk.img", 16 * MIB);
    // FUA writes as they come, and not as they turn out to be faster.
    let set = ["--set", "read_ahead_kb=0", "--set", "fua=dsync"];
    scratch.serve(["--disk", "disk.img", "--workers", "1"].iter().chain(&set))
}

/// Two contiguous reads in one batch, and one apart; a FUA write; a discard; a flush. They are done when this returns.
fn known_workload(scratch: &Scratch) {
    let mut client = Raw::open(&scratch.at("socket"));
    let reads = [Raw::request(0, 0, 1, 64 << 10, 4096), Raw::request(0, 0, 2, 68 << 10, 4096)].concat();
    client.stream.write_all(&reads).expect("the server reads");
    client.stream.read_exact(&mut [0; 2 * (16 + 4096)]).expect("two answers");
    let mut ask = |request: Vec<u8>, answer: usize| {
        client.stream.write_all(&request).expect("the server reads");
        client.stream.read_exact(&mut vec![0; answer]).expect("an answer");
    };
    ask(Raw::request(0, 0, 3, 8 << 20, 512), 16 + 512);
    ask([Raw::request(1, 1, 4, 1 << 20, 8192), vec![7; 8192]].concat(), 16);
    ask(Raw::request(4, 0, 5, 2 << 20, 1 << 20), 16);
    ask(Raw::request(3, 0, 6, 0, 0), 16);
}

/// What must be seen of that, however it was recorded.
fn check(events: &[Event]) {
    let queued = [
        ("R", "128 + 8"),
        ("R", "136 + 8"),
        ("R", "16384 + 1"),
        ("WF", "2048 + 16"),
        ("D", "4096 + 2048"),
        ("FW", ""),
    ];
    let requests =
        [("R", "128 + 16"), ("R", "16384 + 1"), ("WF", "2048 + 16"), ("D", "4096 + 2048"), ("FW", "")];
    let place = |events: Vec<(&str, &str)>| -> Vec<(String, String)> {
        // A flush has no place: what stands there is its name, or 0.
        let clean = |kind: &str, place: &str| if kind == "FW" { String::new() } else { place.to_owned() };
        events.into_iter().map(|(kind, at)| (kind.to_owned(), clean(kind, at))).collect()
    };
    let expected = |list: &[(&str, &str)]| place(list.to_vec());
    assert_eq!(place(with(events, "Q")), expected(&queued), "queued: {events:#?}");
    assert_eq!(with(events, "M"), [("R", "136 + 8")], "back-merged: {events:#?}");
    assert_eq!(place(with(events, "D")), expected(&requests), "issued to the disk: {events:#?}");
    assert_eq!(place(with(events, "C")), expected(&requests), "completed: {events:#?}");
    let got = place(with(events, "G"));
    assert_eq!(got[..2], expected(&[("R", "128 + 8"), ("R", "16384 + 1")]), "requests: {events:#?}");
    assert!(events.iter().all(|event| event.device == "259,0"), "{events:#?}");
    assert!(events.iter().filter(|event| event.letter == "C").all(|event| event.rest.ends_with("[0]")));
}

#[test]
fn blkparse_reads_the_files_without_a_word_and_sees_the_workload() {
    let scratch = Scratch::new();
    let server = server(&scratch);
    let trace = Tracing::start(&scratch, &["disk/disk.img", "-o", "t"]);
    known_workload(&scratch);
    // The server's end is the trace's end: nothing of it is lost.
    server.stop_quietly();
    let said = trace.finish();
    assert!(said.contains("show them with: blkparse -i t"), "{said}");
    let done = output(tool("blkparse").args(["-i", "t"]).current_dir(scratch.path("")));
    assert!(done.status.success(), "{}", both(&done));
    assert_eq!(String::from_utf8_lossy(&done.stderr), "");
    let text = String::from_utf8(done.stdout).unwrap();
    let (lines, summary) = text.split_once("\nCPU").expect("a summary follows");
    assert!(summary.contains("Skips: 0 forward"), "{summary}");
    let events: Vec<Event> = lines.lines().map(event).collect();
    check(&events);
    // blkparse counts as iostat would: three reads asked for, two made.
    let counts = |what: &str| {
        let at = summary.find(what).unwrap_or_else(|| panic!("{what} in {summary}")) + what.len();
        summary[at..].trim_start().split(',').next().unwrap().trim().parse::<u64>().unwrap()
    };
    assert_eq!([counts("Reads Queued:"), counts("Read Dispatches:"), counts("Reads Completed:")], [3, 2, 2]);
}

#[test]
fn a_trace_under_load_of_several_workers_loses_nothing_that_it_does_not_say() {
    let scratch = Scratch::new();
    scratch.sparse("0.img", 16 * MIB);
    scratch.sparse("1.img", 16 * MIB);
    let table = scratch.write("stripes.table", "0 65536 striped 2 16 0.img 0 1.img 0\n");
    let server = scratch.serve(["--table", &table, "--workers", "2"]);
    let trace = Tracing::start(&scratch, &["dm/stripes", "-o", "t"]);
    let args = ["--rw", "randrw", "--bs", "16k", "--depth", "8", "--connections", "2", "--ios", "4000"];
    let report = load(&scratch.at("socket"), &args);
    assert_eq!(report["ios"], 4000);
    server.stop_quietly();
    trace.finish();
    let done = output(tool("blkparse").args(["-q", "-i", "t"]).current_dir(scratch.path("")));
    assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).unwrap();
    let (lines, summary) = text.split_once("\nCPU").unwrap_or((&text, "Skips: 0 forward"));
    assert!(summary.contains("Skips: 0 forward"), "{summary}");
    let count = |device: &str, letter: &str| {
        let is = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.first() == Some(&device) && words.get(5) == Some(&letter) && words.get(6) != Some(&"FW")
        };
        lines.lines().filter(is).count()
    };
    assert_eq!(count("253,0", "Q"), 4000, "each request of a client is queued at the volume");
    assert_eq!(count("253,0", "C"), 4000, "and completed there");
    let remapped = count("259,0", "A") + count("259,1", "A");
    assert_eq!(remapped, 8000, "16 KiB over chunks of 8 go to both disks");
    let issued = count("259,0", "D") + count("259,1", "D");
    assert_eq!(issued, count("259,0", "C") + count("259,1", "C"), "what is issued completes");
    assert!(issued > 0 && issued <= 8000);
}

#[test]
fn text_is_live_and_ends_by_ctrl_c() {
    let scratch = Scratch::new();
    let server = server(&scratch);
    let mut trace = Tracing::start(&scratch, &["disk/disk.img"]);
    let mut lines = Lines::of(trace.stdout());
    known_workload(&scratch);
    // The server runs on: these lines come because they happened, not because something ended.
    let mut events = Vec::new();
    while !events.iter().any(|event: &Event| event.letter == "C" && event.kind == "FW") {
        events.push(event(&lines.next().expect("a line")));
    }
    check(&events);
    trace.signal(Signal::INT);
    trace.finish();
    server.stop_quietly();
}

#[test]
fn json_is_one_object_an_event() {
    let scratch = Scratch::new();
    let server = server(&scratch);
    let trace = Tracing::start(&scratch, &["disk/disk.img", "--json"]);
    known_workload(&scratch);
    server.stop_quietly();
    let said = trace.finish();
    let objects: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    let events: Vec<Event> =
        objects.iter().map(|object| event(object["text"].as_str().expect("text"))).collect();
    check(&events);
    let issued = objects.iter().zip(&events).find(|(_, event)| event.letter == "D").expect("one was").0;
    assert_eq!(
        (&issued["sector"], &issued["bytes"], &issued["device"]),
        (&128.into(), &8192.into(), &"259:0".into())
    );
    let times: Vec<u64> = objects.iter().map(|object| object["time_ns"].as_u64().expect("a time")).collect();
    assert!(times.is_sorted() && times[0] > 0, "one worker's events are in order: {times:?}");
}

#[test]
fn a_volume_that_nobody_serves_is_refused_with_those_that_are() {
    let scratch = Scratch::new();
    let said = both(&output(&mut scratch.blockwork(["trace", "disk/other.img"])));
    assert!(said.contains("no running server serves the volume disk/other.img; none is running"), "{said}");
    scratch.sparse("disk.img", MIB);
    scratch.sparse("b.img", MIB);
    let server = scratch.serve(["--disk", "disk.img", "b.img"]);
    let done = output(&mut scratch.blockwork(["trace", "disk/other.img"]));
    assert_eq!(done.status.code(), Some(1));
    let said = both(&done);
    assert!(said.contains("served are: disk/disk.img, disk/b.img"), "{said}");
    server.stop_quietly();
    // A server that was told to open no control socket is not found.
    let server = scratch.serve(["--disk", "disk.img", "--no-control"]);
    let said = both(&output(&mut scratch.blockwork(["trace", "disk/disk.img"])));
    assert!(said.contains("none is running"), "{said}");
    server.stop_quietly();
}

#[test]
fn tracing_changes_no_data_and_a_reader_that_goes_away_stops_nothing() {
    let scratch = Scratch::new();
    let server = server(&scratch);
    let mut client = support::nbd::nbdload();
    client.arg(format!("unix:{}", scratch.at("socket")));
    client.args(["--rw", "randrw", "--verify", "--depth", "8", "--ios", "20000", "--flush-every", "100"]);
    let client = Background::start(&mut client);
    for turn in 0..5 {
        // Killed, and one whose reader stops reading: neither may hold the server up.
        let mut trace = Tracing::start(&scratch, &["disk/disk.img"]);
        let mut stdout = trace.stdout();
        stdout.read_exact(&mut [0; 4096]).expect("events");
        if turn % 2 == 0 {
            trace.signal(Signal::STOP);
        }
        drop(trace);
    }
    let report: Value = serde_json::from_str(&client.succeed()).expect("a report");
    assert_eq!((&report["errors"], &report["wrong_blocks"]), (&0.into(), &0.into()), "{report}");
    server.stop_quietly();
}

#[test]
fn what_a_pager_does_not_read_is_lost_as_is_said_and_not_kept() {
    let scratch = Scratch::new();
    let server = scratch.serve(["--disk", "memory:16M", "--workers", "2"]);
    let mut trace = Tracing::start(&scratch, &["disk/memory"]);
    let pipe = trace.stdout();
    let args = ["--rw", "randread", "--bs", "4k", "--depth", "32", "--connections", "2", "--ios", "300000"];
    assert_eq!(load(&scratch.at("socket"), &args)["ios"], 300_000);
    // Their text would be some 100 MiB.
    let kept = resident_bytes(trace.pid());
    assert!(kept < 48 * MIB, "{} MiB", kept / MIB);
    // Nothing more happens, and still it is said.
    assert!(Lines::of(pipe).any(|line| line.contains("events dropped: the reader was too slow")));
    trace.signal(Signal::INT);
    trace.finish();
    server.stop_quietly();
}

#[test]
fn a_stopwatch_ends_the_trace() {
    let scratch = Scratch::new();
    let server = server(&scratch);
    run(&mut scratch.blockwork(["trace", "disk/disk.img", "-w", "0.1", "-o", "t"]));
    let said = python(&format!(
        "h = connect({:?})\nh.pwrite(b'x' * 512, 0)\nprint(h.get_size())\n",
        scratch.uri("")
    ));
    assert_eq!(said.trim(), (16 * MIB).to_string());
    server.stop_quietly();
}

#[test]
fn a_stopwatch_ends_a_trace_also_of_what_is_printed_too_slowly() {
    let scratch = Scratch::new();
    let server = scratch.serve(["--disk", "memory:16M", "--workers", "1"]);
    let mut trace = Tracing::start(&scratch, &["disk/memory", "-w", "1"]);
    let start = Instant::now();
    let mut pipe = trace.stdout();
    let args = ["--rw", "randread", "--bs", "4k", "--depth", "32", "--ios", "100000"];
    assert_eq!(load(&scratch.at("socket"), &args)["ios"], 100_000);
    until("its time is over", || start.elapsed() > Duration::from_secs(1));
    // The server still has 16 MiB of records for it, which make more text.
    let mut text = Vec::new();
    pipe.read_to_end(&mut text).expect("text");
    assert!(!text.is_empty() && text.len() < 4 << 20, "{} bytes", text.len());
    trace.finish();
    server.stop_quietly();
}
