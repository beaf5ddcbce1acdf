//! Traces of real work on a simulated stack, judged by blkparse: it must read our files without a word on stderr, and
//! print, line by line, what we print ourselves.

mod rig;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use blockwork_engine::{
    Action, Event, Flags, Nanos, NodeId, NodeInfo, NodeKind, Op, Payload, Reason, Sector, Sectors,
};
use blockwork_format::blktrace::{Decoder, Note, Record};
use blockwork_insight::trace::{
    Batch, NodeSet, QUEUE_BYTES_MAX, Received, Subscription, TextMerge, TraceFiles, TraceHub,
};
use rig::Rig;

const MIXED: [u32; 5] = [35, 45, 7, 6, 7];

fn received(subscription: &Subscription) -> Vec<Batch> {
    match subscription.receive(Duration::ZERO) {
        Received::Batches(batches) => batches,
        other => panic!("{other:?}"),
    }
}

fn records(batches: &[Batch]) -> Vec<Record<'_>> {
    batches.iter().flat_map(|batch| Decoder::new(&batch.bytes)).map(|record| record.unwrap()).collect()
}

/// Writes the trace, and gives blkparse's lines about events.
fn blkparse(batches: &[Batch]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    write(batches, &folder.path().join("t"));
    let output = Command::new("blkparse").args(["-i", "t"]).current_dir(folder.path()).output();
    let output = output.expect("blkparse runs (Debian: apt-get install blktrace)");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "blkparse says: {stderr}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let end = text.find("\nCPU").expect("a summary follows");
    let summary = &text[end..];
    assert!(summary.contains("Skips: 0 forward"), "blkparse misses records: {summary}");
    text[..end].lines().map(str::to_owned).collect()
}

/// Writes the trace in pieces that do not end where records do.
fn write(batches: &[Batch], base: &Path) {
    let bytes: Vec<u8> = batches.iter().flat_map(|batch| batch.bytes.clone()).collect();
    let mut files = TraceFiles::create(base).unwrap();
    bytes.chunks(10_007).for_each(|piece| files.push(piece).unwrap());
    assert_eq!(files.records(), records(batches).len() as u64);
}

/// Lines by CPU: between CPUs, the order of events of the same time is free.
fn by_cpu(lines: impl Iterator<Item = String>) -> BTreeMap<String, Vec<String>> {
    let mut sorted = BTreeMap::<String, Vec<String>>::new();
    for line in lines {
        let cpu = line.split_whitespace().nth(1).expect("device, CPU ...").to_owned();
        sorted.entry(cpu).or_default().push(line);
    }
    sorted
}

fn letters(lines: &[String]) -> String {
    // Device, CPU, sequence, time, pid, act.
    let mut all: Vec<_> = lines.iter().filter_map(|line| line.split_whitespace().nth(5)).collect();
    all.sort_unstable();
    all.dedup();
    all.concat()
}

fn work(rig: &Rig, hub: &std::sync::Arc<TraceHub>, workers: u16) {
    rig.work((0..workers).map(|n| hub.tracer(n)).collect(), None, 400, MIXED);
}

#[test]
fn blkparse_prints_our_files_as_we_print_them() {
    for workers in [1, 2] {
        let rig = Rig::new(5);
        let hub = TraceHub::new(&rig.nodes);
        let subscription = hub.subscribe(None);
        work(&rig, &hub, workers);
        let batches = received(&subscription);
        assert_eq!(subscription.dropped(), 0);
        let theirs = blkparse(&batches);
        let ours = TextMerge::new().push(&batches).unwrap();
        let (ours, theirs_by_cpu) = (by_cpu(ours.lines().map(str::to_owned)), by_cpu(theirs.iter().cloned()));
        assert!(ours.keys().eq(theirs_by_cpu.keys()), "{:?}", theirs_by_cpu.keys());
        for (ours, theirs) in ours.values().zip(theirs_by_cpu.values()) {
            assert_eq!(ours.len(), theirs.len());
            ours.iter().zip(theirs).for_each(|(ours, theirs)| assert_eq!(ours, theirs));
        }
        assert!(theirs.len() > 5_000, "{} lines", theirs.len());
        let found = letters(&theirs);
        assert!("ABCDGIMPQUXm".chars().all(|letter| found.contains(letter)), "only {found} were there");
    }
}

/// A line without its time: from a pipe, blkparse counts from whichever record it happens to read first, and that need
/// not be the earliest of all workers'. (The test above compares times.)
fn timeless(line: &str) -> String {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    words.remove(3);
    words.join(" ")
}

/// As `curl .../v1/trace | blkparse -i -` does it. From a pipe, blkparse orders each device's records apart.
#[test]
fn blkparse_reads_the_stream_of_all_workers_from_a_pipe() {
    let rig = Rig::new(9);
    let hub = TraceHub::new(&rig.nodes);
    let subscription = hub.subscribe(None);
    work(&rig, &hub, 2);
    let batches = received(&subscription);
    let mut child = Command::new("blkparse")
        .args(["-i", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("blkparse runs");
    let mut pipe = child.stdin.take().unwrap();
    let bytes: Vec<u8> = batches.iter().flat_map(|batch| batch.bytes.clone()).collect();
    let writer = std::thread::spawn(move || pipe.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut theirs: Vec<_> = text[..text.find("\nCPU").unwrap()].lines().map(timeless).collect();
    let ours = TextMerge::new().push(&batches).unwrap();
    let mut ours: Vec<_> = ours.lines().map(timeless).collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).for_each(|(ours, theirs)| assert_eq!(*ours, theirs));
}

#[test]
fn a_stream_begins_with_the_time_and_our_name_and_is_numbered_without_a_gap() {
    let rig = Rig::new(6);
    let hub = TraceHub::new(&rig.nodes);
    let subscription = hub.subscribe(None);
    work(&rig, &hub, 2);
    let batches = received(&subscription);
    let all = records(&batches);
    for cpu in 0..2 {
        let mine: Vec<_> = all.iter().filter(|record| record.cpu == cpu).collect();
        assert_eq!(mine[0].action.as_note(), Some(Note::Timestamp));
        assert_eq!(mine[1].action.as_note(), Some(Note::Process));
        assert_eq!(mine[1].payload_text(), "blockwork");
        assert!(mine.is_sorted_by_key(|record| record.time_ns));
        let acts = mine.iter().filter(|record| record.action.act().is_some());
        assert!(acts.zip(1..).all(|(record, number)| record.sequence == number));
        assert!(mine[1..].iter().all(|record| record.pid == std::process::id()));
    }
    let messages: Vec<_> = all
        .iter()
        .filter(|record| record.action.as_note() == Some(Note::Message))
        .map(|record| record.payload_text().into_owned())
        .collect();
    for (name, reason) in [
        ("dm/test", "(chunk)"),
        ("dm/test", "deferred"),
        ("disk 2?", "(max_sectors_kb)"),
        ("disk 0?", "(dma_alignment)"),
    ] {
        let start = format!("blockwork: {name}: ");
        let found = messages.iter().any(|text| text.starts_with(&start) && text.contains(reason));
        assert!(found, "no message of {name} has {reason}");
    }
}

#[test]
fn a_subscriber_hears_of_its_volumes_stack_only() {
    let rig = Rig::new(7);
    let hub = TraceHub::new(&rig.nodes);
    let nodes = NodeSet::under(&*rig.volumes[0].root);
    assert_eq!(nodes, [NodeId(0), NodeId(1), NodeId(3)].into_iter().collect());
    let some = hub.subscribe(Some(nodes));
    let all = hub.subscribe(None);
    work(&rig, &hub, 1);
    let (some, all) = (received(&some), received(&all));
    let devices = |batches: &[Batch]| {
        let acts = records(batches).into_iter().filter(|record| record.action.act().is_some());
        let mut devices: Vec<_> = acts.map(|record| record.device.to_string()).collect();
        devices.sort();
        devices.dedup();
        devices
    };
    assert_eq!(devices(&some), ["253,0", "259,0", "259,1"]);
    assert_eq!(devices(&all), ["253,0", "259,0", "259,1", "259,2"]);
    blkparse(&some);
}

#[test]
fn who_listens_to_a_node_hears_of_it_by_its_new_name_but_nothing_when_it_becomes_another_one() {
    let hub = TraceHub::new(&[node("first")]);
    hub.name(NodeId(1), &node("vg/old"));
    let [old, disk] = [NodeId(1), NodeId(0)].map(|node| hub.subscribe(Some([node].into_iter().collect())));
    let all = hub.subscribe(None);
    let mut sink = hub.sink(0);
    let mut happens = |node| {
        let long = event(5, Action::Queue, Op::Discard, Sectors(1 << 40));
        sink.take(0, &mut vec![Event { node: NodeId(node), ..long }]);
    };
    happens(1);
    hub.rename(NodeId(1), &node("vg/renamed"));
    happens(1);
    hub.name(NodeId(1), &node("vg/new"));
    happens(1);
    hub.rename(NodeId(0), &node("disk"));
    happens(0);
    // What a record cannot tell is a message, with the name.
    const NAMES: [&str; 5] = ["first", "disk", "vg/old", "vg/renamed", "vg/new"];
    let names = |subscription: &Subscription| {
        let batches = received(subscription);
        let text = TextMerge::new().push(&batches).unwrap();
        let named = |line: &str| NAMES.into_iter().find(|name| line.contains(name));
        text.lines().filter_map(named).collect::<Vec<_>>()
    };
    assert_eq!(names(&old), ["vg/old", "vg/renamed"]);
    assert_eq!(names(&disk), ["disk"]);
    assert_eq!(names(&all), ["vg/old", "vg/renamed", "vg/new", "disk"]);
}

#[test]
fn nobody_who_listens_means_no_events() {
    let rig = Rig::new(8);
    let hub = TraceHub::new(&rig.nodes);
    let wanted = hub.wanted();
    let is_wanted = || wanted.load(std::sync::atomic::Ordering::Relaxed);
    assert!(!is_wanted());
    let first = hub.subscribe(None);
    let second = hub.subscribe(None);
    drop(first);
    assert!(is_wanted());
    drop(second);
    assert!(!is_wanted());
    work(&rig, &hub, 1);
    let late = hub.subscribe(None);
    assert_eq!(late.receive(Duration::ZERO), Received::Nothing);
}

fn node(name: &str) -> NodeInfo {
    NodeInfo { name: name.to_owned(), kind: NodeKind::Leaf, device: (7, 1) }
}

fn event(time: u64, action: Action, op: Op, nr: Sectors) -> Event {
    Event {
        time: Nanos(time),
        node: NodeId(0),
        action,
        op,
        flags: Flags::NONE,
        sector: Sector(0),
        nr,
        payload: Payload::None,
        reason: Reason::None,
        errno: 0,
    }
}

#[test]
fn a_subscriber_that_does_not_read_loses_events_and_is_told_how_many() {
    let hub = TraceHub::new(&[node("x")]);
    let subscription = hub.subscribe(None);
    let mut sink = hub.sink(3);
    let total = 500_000u64;
    let mut time = 0;
    for _ in 0..total / 100 {
        let mut events = Vec::new();
        events.extend((0..100).map(|_| {
            time += 1;
            event(time, Action::Queue, Op::Read, Sectors(8))
        }));
        sink.take(3, &mut events);
        assert!(events.is_empty());
    }
    let dropped = subscription.dropped();
    let first = received(&subscription);
    let held: usize = first.iter().map(|batch| batch.bytes.len()).sum();
    assert!(held <= QUEUE_BYTES_MAX, "{held} bytes were kept");
    let acts = |batches: &[Batch]| {
        records(batches).iter().filter(|record| record.action.act().is_some()).count() as u64
    };
    assert!(dropped > 0);
    assert_eq!(acts(&first) + dropped, total);
    // That was the last event for now, and may have been for ever.
    let last = Decoder::new(&first.last().unwrap().bytes).last().unwrap().unwrap();
    let text = format!("blockwork: {dropped} events dropped: the reader was too slow");
    assert_eq!(last.payload_text(), text);
    sink.take(3, &mut vec![event(time + 1, Action::Queue, Op::Read, Sectors(8))]);
    let mut batches = first;
    batches.extend(received(&subscription));
    let told = blkparse(&batches).iter().filter(|line| line.contains("events dropped")).count();
    assert_eq!(told, 1, "it is told once");
    assert!(blkparse(&batches).iter().any(|line| line.contains(&text)));
}

#[test]
fn what_blktrace_has_no_words_for_is_said_otherwise() {
    let hub = TraceHub::new(&[node("x")]);
    let subscription = hub.subscribe(None);
    let mut sink = hub.sink(0);
    let whole_disk = Sectors(1 << 33);
    let mut failed = event(5, Action::Complete, Op::Write, Sectors(8));
    failed.errno = 5;
    let mut flush = event(6, Action::Queue, Op::Flush, Sectors::ZERO);
    flush.flags = Flags::SYNC;
    let mut zeroes = event(7, Action::Issue, Op::WriteZeroes, Sectors(8));
    zeroes.flags = Flags::FUA;
    let discard = event(4, Action::Queue, Op::Discard, whole_disk);
    sink.take(0, &mut vec![discard, failed, flush, zeroes]);
    let text = TextMerge::new().push(&received(&subscription)).unwrap();
    let from_act = |line: &'_ str| line.split_whitespace().skip(5).collect::<Vec<_>>().join(" ");
    let lines: Vec<_> = text.lines().map(from_act).collect();
    assert_eq!(
        lines,
        [
            "Q D 0 + 8388607 [blockwork]",
            "m N blockwork: x: queued 0 + 8589934592",
            // As the kernel's: -5 in 16 bits.
            "C W 0 + 8 [65531]",
            "Q FWS [blockwork]",
            "D WF 0 + 8 [blockwork]",
        ]
    );
}

#[test]
fn subscriptions_end_when_the_hub_is_closed_but_what_was_told_is_still_there() {
    let hub = TraceHub::new(&[node("x")]);
    let subscription = hub.subscribe(None);
    let mut sink = hub.sink(0);
    sink.take(0, &mut vec![event(1, Action::Queue, Op::Read, Sectors(8))]);
    let waiting = std::thread::scope(|scope| {
        let other = hub.subscribe(None);
        let waits = scope.spawn(move || other.receive(Duration::from_secs(60)));
        hub.close();
        waits.join().unwrap()
    });
    assert_eq!(waiting, Received::Closed);
    assert_eq!(records(&received(&subscription)).len(), 3);
    assert_eq!(subscription.receive(Duration::from_secs(60)), Received::Closed);
    assert_eq!(hub.subscribe(None).receive(Duration::from_secs(60)), Received::Closed);
}

#[test]
fn a_new_trace_of_the_same_name_leaves_nothing_of_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("t");
    let record = |cpu| {
        let mut bytes = Vec::new();
        Record { cpu, ..Record::message(blockwork_format::blktrace::Device(8), "x") }.encode(&mut bytes);
        bytes
    };
    let mut files = TraceFiles::create(&base).unwrap();
    files.push(&record(2)).unwrap();
    let sizes: Vec<_> = files.paths().iter().map(|path| path.metadata().unwrap().len()).collect();
    assert_eq!(sizes, [0, 0, 49]);
    TraceFiles::create(&base).unwrap();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [folder.path().join("t.blktrace.0")]);
    let mut files = TraceFiles::create(&base).unwrap();
    let error = files.push(&record(1 << 20)).unwrap_err().to_string();
    assert!(error.contains("CPU is 1048576, expected less than 1024"), "{error}");
}
