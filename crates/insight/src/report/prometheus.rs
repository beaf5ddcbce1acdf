//! Prometheus' text format, version 0.0.4.
//!
//! Written by hand: the format is a page long, and every value is read from the engine's own counters, so that a metrics
//! crate's registry would only be a second copy of them.

use std::fmt::Write;

use blockwork_engine::{Counter, Histogram, Snapshot};

/// A histogram has a bucket for each doubling, from 1 us up; the engine's own have four.
const FIRST_OCTAVE: usize = 10;
/// Above 2^36 ns, over a minute, there is only `+Inf`.
const LAST_OCTAVE: usize = 36;

/// All counters as `blockwork_NAME_total`, what disks have under way as `blockwork_in_flight`, latencies as the histogram `blockwork_latency_seconds`, each with the labels
/// `node` (its name), `kind` and `device`.
pub fn prometheus(snapshots: &[Snapshot]) -> String {
    let mut out = String::new();
    let labels: Vec<String> = snapshots.iter().map(labels).collect();
    for &counter in Counter::ALL {
        let name = counter.name();
        put(&mut out, format_args!("# HELP blockwork_{name}_total {}", help(counter)));
        put(&mut out, format_args!("# TYPE blockwork_{name}_total counter"));
        for (snapshot, labels) in snapshots.iter().zip(&labels) {
            put(&mut out, format_args!("blockwork_{name}_total{{{labels}}} {}", snapshot.get(counter)));
        }
    }
    put(
        &mut out,
        format_args!("# HELP blockwork_in_flight Requests that the disk has been given and has not ended"),
    );
    put(&mut out, format_args!("# TYPE blockwork_in_flight gauge"));
    for (snapshot, labels) in snapshots.iter().zip(&labels) {
        if let Some(n) = snapshot.in_flight() {
            put(&mut out, format_args!("blockwork_in_flight{{{labels}}} {n}"));
        }
    }
    let help = "Latency of bios; the sum is estimated from the middles of fine buckets (within an eighth)";
    put(&mut out, format_args!("# HELP blockwork_latency_seconds {help}"));
    put(&mut out, format_args!("# TYPE blockwork_latency_seconds histogram"));
    for (snapshot, labels) in snapshots.iter().zip(&labels) {
        for (class, buckets) in &snapshot.latency {
            // A series that does not exist yet is Prometheus' own way to say that nothing has happened.
            if buckets.count() > 0 {
                histogram(&mut out, &format!("{labels},op=\"{class}\""), buckets);
            }
        }
    }
    out
}

fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(out, "{line}").expect("a String takes all");
}

fn histogram(out: &mut String, labels: &str, histogram: &Histogram) {
    let name = "blockwork_latency_seconds";
    let mut cumulative = 0;
    let mut sum_ns = 0.0;
    for (i, n) in histogram.buckets.iter().enumerate() {
        let bound = Histogram::bound(i);
        let lower = i.checked_sub(1).map_or(0, Histogram::bound).min(bound);
        sum_ns += *n as f64 * (lower + (bound - lower) / 2) as f64;
        cumulative += n;
        let (octave, quarter) = (i / 4, i % 4);
        if quarter == 3 && (FIRST_OCTAVE - 1..LAST_OCTAVE).contains(&octave) {
            let le = bound as f64 / 1e9;
            put(out, format_args!("{name}_bucket{{{labels},le=\"{le}\"}} {cumulative}"));
        }
    }
    put(out, format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {cumulative}"));
    put(out, format_args!("{name}_sum{{{labels}}} {}", sum_ns / 1e9));
    put(out, format_args!("{name}_count{{{labels}}} {cumulative}"));
}

fn labels(snapshot: &Snapshot) -> String {
    let (major, minor) = snapshot.info.device;
    let (name, kind) = (quoted(&super::shown(snapshot)), snapshot.info.kind.name());
    format!("node=\"{name}\",kind=\"{kind}\",device=\"{major}:{minor}\"")
}

/// A label's value: backslashes and quotes are escaped. (Line feeds are gone by then.)
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn help(counter: Counter) -> &'static str {
    match counter {
        Counter::In => "Bios or pieces of them that arrived",
        Counter::Out => "Pieces handed on to layers below or as requests to the device",
        Counter::BackMerged => "Pieces added to the end of a request",
        Counter::FrontMerged => "Pieces added to the front of a request",
        Counter::SplitChunk => "Cuts at a chunk",
        Counter::SplitTarget => "Cuts at the end of a table's target",
        Counter::SplitMaxSectors => "Cuts because of max_sectors_kb",
        Counter::SplitMaxSegments => "Cuts because of max_segments",
        Counter::SplitDiscard => "Cuts because of discard or write-zeroes limits",
        Counter::Bounced => "Requests that went through another buffer because of dma_alignment",
        Counter::Linearized => "Requests that were copied to one piece of memory because of linearize",
        Counter::Fixed => "Requests that went by registered buffers because of fixed",
        Counter::Deferred => "Bios that waited for a slow path",
        Counter::Cured => "Bios run again after a layer dealt with a failure below it",
        Counter::Computed => "Parts of reads computed from what is left of an array and its parity",
        Counter::RowsWhole => "Parts of rows with a parity that were written as a whole",
        Counter::RowsKnown => "Parts of rows with a parity written in part, by what was known of the rest",
        Counter::RowsRead => {
            "Parts of rows with a parity written in part, for which something was read first"
        }
        Counter::Unaligned => "Byte ranges that were read, modified and written",
        Counter::Requeued => "Requests asked for again after a short transfer or a failed merged request",
        Counter::Incomplete => "Requests that the disk ended in part, interrupted or with an error",
        Counter::Waited => "Times that requests waited because nr_requests were in flight",
        Counter::Held => "Large requests that waited so that small ones need not (wbt_lat_usec)",
        Counter::FlushMerged => "Flushes that one other flush covered as well",
        Counter::ReadAheadHit => "Reads served from what was read ahead",
        Counter::ReadAheadIssued => "Requests that read ahead",
        Counter::ZeroesWritten => "Write-zeroes that became writes of zeros",
        Counter::Reads => "Reads",
        Counter::Writes => "Writes",
        Counter::Flushes => "Flushes",
        Counter::Discards => "Discards",
        Counter::WriteZeroes => "Write-zeroes",
        Counter::ReadBytes => "Bytes read",
        Counter::WriteBytes => "Bytes written",
        Counter::DiscardBytes => "Bytes discarded or zeroed",
        Counter::FuaWrites => "Writes that the disk was asked to make durable itself",
        Counter::Errors => "I/Os that failed",
    }
}
