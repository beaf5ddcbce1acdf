//! What workers found out about requests of several elements (`linearize=auto`), for people and programs.

use std::fmt::Write;

use blockwork_engine::{LinearizeSnapshot, Snapshot};
use blockwork_format::escape;
use serde::{Deserialize, Serialize};

/// What is done with the requests of a class on one leaf.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearizeReport {
    /// The leaf's number.
    pub node: usize,
    /// Which requests, such as `writes of 32 KiB in 4 KiB off pages`: at least so long, at least such elements on average, and where
    /// these meet.
    pub class: String,
    /// `trying`, `vectored`, `linear`, or `mixed` where workers differ.
    pub decision: String,
    /// What a byte costs of the time during which the device is busy, nanoseconds; nothing before both ways were tried.
    pub vectored_ns_per_byte: Option<f64>,
    /// Likewise, copied to one piece of memory.
    pub linear_ns_per_byte: Option<f64>,
    /// Pairs of blocks of requests that these figures are from.
    pub pairs: u64,
    /// How often workers have decided.
    pub decisions: u64,
    /// Requests that went as they were, until this was last told.
    pub vectored_requests: u64,
    /// Requests that were copied.
    pub linear_requests: u64,
}

impl From<&LinearizeSnapshot> for LinearizeReport {
    fn from(it: &LinearizeSnapshot) -> LinearizeReport {
        LinearizeReport {
            node: usize::from(it.node.0),
            class: it.class.to_string(),
            decision: decision(it.workers).to_owned(),
            vectored_ns_per_byte: Some(it.vectored_ns_per_byte).filter(|cost| *cost > 0.0),
            linear_ns_per_byte: Some(it.linear_ns_per_byte).filter(|cost| *cost > 0.0),
            pairs: it.pairs,
            decisions: it.settlements,
            vectored_requests: it.requests[0],
            linear_requests: it.requests[1],
        }
    }
}

fn decision(workers: [u32; 3]) -> &'static str {
    match workers {
        [_, 0, 0] => "trying",
        [0, _, 0] => "vectored",
        [0, 0, _] => "linear",
        _ => "mixed",
    }
}

/// All classes for people, a line each; nothing where there are none.
///
/// ```text
/// linearize                                                      vectored     linear  decided    requests    copied
///   disk/a.img: writes of 32 KiB in 4 KiB off pages             17.1 MB/s  88.3 MB/s  linear         4096      4071
/// ```
pub fn linearize_table(classes: &[LinearizeSnapshot], nodes: &[Snapshot]) -> String {
    let mut out = String::new();
    if classes.is_empty() {
        return out;
    }
    let [vectored, linear, decided, requests, copied] =
        ["vectored", "linear", "decided", "requests", "copied"];
    put(
        &mut out,
        format_args!(
            "{:<64} {vectored:>12} {linear:>12}  {decided:<9} {requests:>10} {copied:>10}",
            "linearize"
        ),
    );
    for it in classes {
        let name = nodes.get(usize::from(it.node.0)).map_or_else(String::new, |node| escape(&node.info.name));
        let what = format!("{name}: {}", it.class);
        let [vectored, linear] = [it.vectored_ns_per_byte, it.linear_ns_per_byte].map(rate);
        let (decided, all) = (decision(it.workers), it.requests[0] + it.requests[1]);
        put(
            &mut out,
            format_args!(
                "  {what:<62} {vectored:>12} {linear:>12}  {decided:<9} {all:>10} {:>10}",
                it.requests[1]
            ),
        );
    }
    out
}

/// What a device does that is busy with nothing else.
fn rate(ns_per_byte: f64) -> String {
    if ns_per_byte > 0.0 { format!("{:.1} MB/s", 1e3 / ns_per_byte) } else { "-".to_owned() }
}

fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(out, "{line}").expect("a String takes all");
}

#[cfg(test)]
mod tests {
    use blockwork_engine::{Boundaries, NodeId, Op, RequestClass};

    use super::*;

    fn class(workers: [u32; 3]) -> LinearizeSnapshot {
        LinearizeSnapshot {
            node: NodeId(0),
            class: RequestClass {
                op: Op::Write,
                fua: false,
                bytes: 32768,
                element_bytes: 4096,
                boundaries: Boundaries::Within,
            },
            workers,
            vectored_ns_per_byte: 58.6,
            linear_ns_per_byte: if workers[0] == 0 { 11.3 } else { 0.0 },
            pairs: 8,
            settlements: 1,
            requests: [25, 4071],
        }
    }

    #[test]
    fn a_line_says_what_was_decided_and_from_which_figures() {
        let text = linearize_table(&[class([0, 0, 2])], &[]);
        let line = text.lines().nth(1).unwrap();
        for word in
            ["writes of 32 KiB in 4 KiB off pages", "17.1 MB/s", "88.5 MB/s", "linear", "4096", "4071"]
        {
            assert!(line.contains(word), "{word}: {text}");
        }
        assert_eq!(linearize_table(&[], &[]), "");
    }

    #[test]
    fn workers_may_differ_and_what_is_not_known_is_left_out() {
        assert_eq!(LinearizeReport::from(&class([0, 1, 1])).decision, "mixed");
        let trying = LinearizeReport::from(&class([1, 0, 0]));
        assert_eq!((trying.decision.as_str(), trying.linear_ns_per_byte), ("trying", None));
    }
}
