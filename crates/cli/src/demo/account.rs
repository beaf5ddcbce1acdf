//! What each layer did to the I/O, in a table that fits a screen.

use std::path::Path;

use blockwork_insight::report::{NodeReport, Report};

use crate::scan::size;

/// What is counted, and how it is called here.
const COLUMNS: [(&str, &[&str]); 6] = [
    ("in", &["in"]),
    ("out", &["out"]),
    ("split", &["split_chunk", "split_target", "split_max_sectors", "split_max_segments"]),
    ("merged", &["merged_back", "merged_front"]),
    ("read ahead", &["read_ahead_hit"]),
    ("errors", &["errors"]),
];

/// A line for each node that did anything, the topmost first, with its number in traces: requests in and out, why those differ,
/// and bytes.
pub(crate) fn table(report: &Report) -> String {
    let cell = |text: &str| format!("{text:>12}");
    let heads: String =
        COLUMNS.iter().map(|(head, _)| *head).chain(["bytes read", "written"]).map(cell).collect();
    let mut text = format!("{:27}{heads}", "");
    for node in report.nodes.iter().rev().filter(|node| count(node, &["in", "out"]) > 0) {
        let counts =
            COLUMNS.iter().map(|(_, counters)| count(node, counters)).map(|n| shown(n, n.to_string()));
        let bytes = ["read_bytes", "write_bytes"].map(|counter| count(node, &[counter]));
        let bytes = bytes.into_iter().map(|n| shown(n, size(n)));
        let cells: String = counts.chain(bytes).map(|text| cell(&text)).collect();
        text += &format!("\n{:18}{:9}{cells}", name(node), node.device);
    }
    text
}

/// Sum of a counter over the disks.
pub(crate) fn of_disks(report: &Report, counter: &str) -> u64 {
    report.nodes.iter().filter(|node| node.kind == "leaf").map(|node| count(node, &[counter])).sum()
}

fn shown(value: u64, text: String) -> String {
    if value == 0 { "-".to_owned() } else { text }
}

/// As `scan` shows it; of a disk its file.
fn name(node: &NodeReport) -> String {
    match Path::new(&node.name).file_name() {
        Some(file) if node.kind == "leaf" => file.to_string_lossy().into(),
        _ => node.name.clone(),
    }
}

fn count(node: &NodeReport, counters: &[&str]) -> u64 {
    counters.iter().filter_map(|counter| node.counters.get(*counter)).sum()
}
