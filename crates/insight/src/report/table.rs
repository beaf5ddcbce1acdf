//! The table for people.

use std::fmt::Write;

use blockwork_engine::{Counter, Snapshot};

use super::{LatencyReport, shown};

/// Statistics of all nodes that did anything, or one line that says that none did. Ends with a line feed.
///
/// ```text
/// dm/test (striped, 253:0)
///   in 1024, out 2048, split 1024 (chunk 1024)
///   reads 1024 (4.0 MiB)
///   latency           count       p50       p99     p99.9       max
///     read             1024   57.3 us  114.7 us  131.1 us  131.1 us
/// ```
pub fn table(snapshots: &[Snapshot]) -> String {
    let mut out = String::new();
    for snapshot in snapshots {
        let lines = [flow(snapshot), odd(snapshot), operations(snapshot)];
        if lines.iter().all(String::is_empty) {
            continue;
        }
        let (major, minor) = snapshot.info.device;
        put(&mut out, format_args!("{} ({}, {major}:{minor})", shown(snapshot), snapshot.info.kind.name()));
        for line in lines.iter().filter(|line| !line.is_empty()) {
            put(&mut out, format_args!("  {line}"));
        }
        latency(snapshot, &mut out);
    }
    if out.is_empty() {
        out.push_str("no I/O\n");
    }
    out
}

fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(out, "{line}").expect("a String takes all");
}

/// `words` with their counts, those that are zero left out.
fn list(snapshot: &Snapshot, words: &[(Counter, &str)]) -> Vec<String> {
    let one = |(counter, word): &(Counter, &str)| match snapshot.get(*counter) {
        0 => None,
        n => Some(format!("{word} {n}")),
    };
    words.iter().filter_map(one).collect()
}

/// A sum of counters with what it is made of in brackets; none where it is zero.
fn group(snapshot: &Snapshot, word: &str, parts: &[(Counter, &str)]) -> Option<String> {
    let sum: u64 = parts.iter().map(|(counter, _)| snapshot.get(*counter)).sum();
    (sum > 0).then(|| format!("{word} {sum} ({})", list(snapshot, parts).join(", ")))
}

/// What went in, what came out, and why those differ.
fn flow(snapshot: &Snapshot) -> String {
    let mut words = list(snapshot, &[(Counter::In, "in"), (Counter::Out, "out")]);
    words.extend(snapshot.in_flight().filter(|n| *n > 0).map(|n| format!("in flight {n}")));
    words.extend(group(
        snapshot,
        "merged",
        &[(Counter::BackMerged, "back"), (Counter::FrontMerged, "front")],
    ));
    words.extend(group(
        snapshot,
        "split",
        &[
            (Counter::SplitChunk, "chunk"),
            (Counter::SplitTarget, "target end"),
            (Counter::SplitMaxSectors, "max_sectors_kb"),
            (Counter::SplitMaxSegments, "max_segments"),
            (Counter::SplitDiscard, "discard or write-zeroes limit"),
        ],
    ));
    words.join(", ")
}

/// What should be rare, and read-ahead.
fn odd(snapshot: &Snapshot) -> String {
    let mut words = list(
        snapshot,
        &[
            (Counter::Errors, "errors"),
            (Counter::Bounced, "bounced"),
            (Counter::Linearized, "linearized"),
            (Counter::Fixed, "by registered buffers"),
        ],
    );
    words.extend(list(
        snapshot,
        &[
            (Counter::Deferred, "deferred to a slow path"),
            (Counter::Cured, "run again after a failure below"),
            (Counter::Computed, "computed from parity"),
            (Counter::Unaligned, "unaligned to logical_block_size"),
            (Counter::Requeued, "requeued"),
            (Counter::Waited, "waited for nr_requests"),
            (Counter::Held, "held back for small ones"),
            (Counter::FlushMerged, "flushes shared"),
            (Counter::ZeroesWritten, "zeroes written"),
        ],
    ));
    words.extend(group(
        snapshot,
        "rows with a parity",
        &[
            (Counter::RowsWhole, "written whole"),
            (Counter::RowsKnown, "with what was known"),
            (Counter::RowsRead, "read first"),
        ],
    ));
    words.extend(group(
        snapshot,
        "read ahead",
        &[(Counter::ReadAheadIssued, "requests"), (Counter::ReadAheadHit, "hits")],
    ));
    words.join(", ")
}

fn operations(snapshot: &Snapshot) -> String {
    let sized = [
        (Counter::Reads, "reads", Counter::ReadBytes),
        (Counter::Writes, "writes", Counter::WriteBytes),
        (Counter::Discards, "discards", Counter::DiscardBytes),
        (Counter::WriteZeroes, "write zeroes", Counter::DiscardBytes),
    ];
    let mut words = Vec::new();
    for (ops, word, size) in sized {
        let n = snapshot.get(ops);
        // Discards and write-zeroes share their bytes: said once, behind the last of them.
        let shared = ops == Counter::Discards && snapshot.get(Counter::WriteZeroes) > 0;
        match n {
            0 => {}
            n if shared => words.push(format!("{word} {n}")),
            n => words.push(format!("{word} {n} ({})", bytes(snapshot.get(size)))),
        }
    }
    words.extend(list(snapshot, &[(Counter::Flushes, "flushes")]));
    words.join(", ")
}

fn latency(snapshot: &Snapshot, out: &mut String) {
    let rows: Vec<_> = snapshot
        .latency
        .iter()
        .filter_map(|(class, histogram)| Some((*class, LatencyReport::of(histogram)?)))
        .collect();
    if rows.is_empty() {
        return;
    }
    let heads = ["count", "p50", "p99", "p99.9", "max"];
    let [count, p50, p99, p999, max] = heads;
    put(out, format_args!("  {:<10} {count:>12} {p50:>9} {p99:>9} {p999:>9} {max:>9}", "latency"));
    for (class, row) in rows {
        let [p50, p99, p999, max] = [row.p50, row.p99, row.p999, row.max].map(time);
        put(out, format_args!("    {class:<8} {:>12} {p50:>9} {p99:>9} {p999:>9} {max:>9}", row.count));
    }
}

/// A length of time, nanoseconds, in a unit that suits it.
pub(super) fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// A number of bytes in a unit that suits it.
fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter();
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    loop {
        value /= 1024.0;
        let unit = units.next().expect("2^64 bytes are 16 EiB");
        if value < 1024.0 || unit == "EiB" {
            return format!("{value:.1} {unit}");
        }
    }
}
