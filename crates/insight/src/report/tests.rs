//! One set of counters in all three forms.

use super::*;
use blockwork_engine::{Counter, Nanos, NodeId, NodeInfo, NodeKind, Op, Stats, Times};

/// A volume with a hostile name, and a leaf that did nothing.
fn stats() -> Stats {
    let info = |name: &str, kind, device| NodeInfo { name: name.to_owned(), kind, device };
    let stats = Stats::new(vec![
        info("dm/\u{1b}[2J\"x\\\n", NodeKind::Striped, (253, 4)),
        info("idle.img", NodeKind::Leaf, (259, 0)),
    ]);
    let worker = stats.worker();
    let node = NodeId(0);
    for (counter, n) in [
        (Counter::In, 10),
        (Counter::Out, 14),
        (Counter::BackMerged, 2),
        (Counter::FrontMerged, 1),
        (Counter::SplitChunk, 4),
        (Counter::SplitMaxSectors, 3),
        (Counter::Bounced, 5),
        (Counter::Deferred, 6),
    ] {
        worker.add(node, counter, n);
    }
    (0..98).for_each(|_| worker.latency(node, Op::Read, Nanos(100)));
    worker.latency(node, Op::Read, Nanos::micros(50));
    worker.latency(node, Op::Read, Nanos::secs(2));
    (0..3).for_each(|_| worker.operation(node, Op::Read, 4096));
    worker.operation(node, Op::Discard, 1 << 40);
    stats
}

#[test]
fn the_table_says_what_happened_and_why_and_leaves_out_what_did_not() {
    let text = table(&stats().snapshot());
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "dm/\\u{1b}[2J\"x\\\\\\n (striped, 253:4)",
            "  in 10, out 14, merged 3 (back 2, front 1), split 7 (chunk 4, max_sectors_kb 3)",
            "  bounced 5, deferred to a slow path 6",
            "  reads 3 (12.0 KiB), discards 1 (1.0 TiB)",
            "  latency           count       p50       p99     p99.9       max",
            "    read              100    112 ns   57.3 us     2.1 s     2.1 s",
        ]
    );
}

#[test]
fn what_a_disk_has_in_flight_is_told_in_every_form_and_of_layers_it_is_not() {
    let stats = stats();
    let worker = stats.worker();
    let disk = NodeId(1);
    worker.add(disk, Counter::Out, 7);
    worker.add(disk, Counter::Incomplete, 2);
    (0..3).for_each(|_| worker.latency(disk, Op::Write, Nanos(100)));
    let snapshot = stats.snapshot();
    let text = table(&snapshot);
    assert!(text.contains("  out 7, in flight 2\n") && text.matches("in flight").count() == 1, "{text}");
    let report = Report::new(&snapshot);
    assert_eq!([report.nodes[0].in_flight, report.nodes[1].in_flight], [None, Some(2)]);
    let text = prometheus(&snapshot);
    let told: Vec<_> = text.lines().filter(|line| line.starts_with("blockwork_in_flight{")).collect();
    assert_eq!(told, [r#"blockwork_in_flight{node="idle.img",kind="leaf",device="259:0"} 2"#]);
}

#[test]
fn a_table_of_nothing_says_so() {
    let quiet = Stats::new(stats().nodes());
    assert_eq!(table(&quiet.snapshot()), "no I/O\n");
}

#[test]
fn json_has_all_counters_and_comes_back_as_it_was() {
    let report = Report::new(&stats().snapshot());
    let json = report.json();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let node = &value["nodes"][0];
    assert_eq!(node["name"], "dm/\u{1b}[2J\"x\\\n");
    assert_eq!((&node["kind"], &node["device"]), (&"striped".into(), &"253:4".into()));
    assert_eq!(node["counters"].as_object().unwrap().len(), Counter::ALL.len());
    assert_eq!(node["counters"]["split_max_sectors"], 3);
    assert_eq!(node["latency_ns"]["read"]["p50"], 112);
    assert!(node["latency_ns"].get("write").is_none());
    assert_eq!(value["nodes"][1]["counters"]["in"], 0);
}

#[test]
fn prometheus_text_has_one_line_per_sample_and_cumulative_buckets() {
    let text = prometheus(&stats().snapshot());
    let labels = r#"{node="dm/\\u{1b}[2J\"x\\\\\\n",kind="striped",device="253:4"}"#;
    assert!(text.contains(&format!("\nblockwork_in_total{labels} 10\n")), "{text}");
    let mut buckets = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(series.starts_with("blockwork_") && series.ends_with('}'), "{line}");
        let value: f64 = value.parse().unwrap();
        if series.starts_with("blockwork_latency_seconds_bucket") {
            let le = series.rsplit_once("le=\"").unwrap().1.trim_end_matches("\"}");
            buckets.push((le.replace("+Inf", "inf").parse::<f64>().unwrap(), value));
        }
    }
    assert!(buckets.is_sorted(), "{buckets:?}");
    assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{buckets:?}");
    let at = |le: f64| buckets.iter().find(|(bound, _)| *bound >= le).unwrap().1;
    assert_eq!((at(1e-6), at(1e-4), at(4.0), at(f64::INFINITY)), (98.0, 99.0, 100.0, 100.0));
    assert!(text.contains(r#",op="read"} 100"#), "{text}");
}

/// A lock that was waited for and timed, with a hostile name, and one that is counted only.
fn locks() -> Vec<LockSnapshot> {
    let times =
        |count, min, max, total| Some(Times { count, min: Nanos(min), max: Nanos(max), total: Nanos(total) });
    let timed = LockSnapshot {
        name: "vg/p\u{1b}: metadata".into(),
        contentions: 2,
        acquisitions: 8,
        waits: times(2, 1_100, 310_420, 311_520),
        holds: times(7, 0, 2_000_000, 7_000_000),
    };
    let counted = LockSnapshot {
        name: "worker 0: tasks".into(),
        contentions: 0,
        acquisitions: 5,
        waits: None,
        holds: None,
    };
    vec![timed, counted]
}

#[test]
fn locks_have_the_columns_of_lock_stat() {
    let text = lock_table(&locks());
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let columns = "locks, us contentions waittime-min waittime-max waittime-total waittime-avg acquisitions holdtime-min \
                   holdtime-max holdtime-total holdtime-avg";
    assert_eq!(lines[0].join(" "), columns);
    let timed = "vg/p\\u{1b}: metadata 2 1.10 310.42 311.52 155.76 8 0.00 2000.00 7000.00 1000.00";
    assert_eq!(lines[1].join(" "), timed);
    assert_eq!(lines[2].join(" "), "worker 0: tasks 0 - - - - 5 - - - -");
    assert_eq!(lock_table(&[]), "");
}

#[test]
fn json_has_the_locks_if_there_are_any() {
    let report = Report::new(&stats().snapshot());
    assert!(!report.json().contains("\"locks\""));
    let report = report.with_locks(&locks());
    let json = report.json();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    let wait =
        r#""contentions":2,"acquisitions":8,"wait_ns":{"min":1100,"max":310420,"total":311520,"avg":155760}"#;
    assert!(json.contains(wait), "{json}");
    assert!(json.contains(r#"{"name":"worker 0: tasks","contentions":0,"acquisitions":5}"#), "{json}");
}
