//! What workers found out about requests that can go two ways (`linearize=auto`, `fua=auto`, `fixed=auto`), for people and programs.

use std::collections::BTreeMap;

use blockwork_engine::{ChoiceSnapshot, Snapshot};
use blockwork_format::escape;
use serde::{Deserialize, Serialize};

/// What is done with the requests of a class on one leaf.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChoiceReport {
    /// The leaf's number.
    pub node: usize,
    /// The setting that is auto: `linearize`, `fua` or `fixed`.
    pub setting: String,
    /// Which requests, such as `writes of 32 KiB in 4 KiB off pages`: at least so long, at least such elements on average, and where
    /// these meet.
    pub class: String,
    /// `trying`, one of the ways (`vectored` or `linear`, `dsync` or `flush`, `plain` or `fixed`), or `mixed` where workers differ.
    pub decision: String,
    /// What a byte costs, by way, nanoseconds of the time that such requests share; null before both ways were tried.
    pub ns_per_byte: BTreeMap<String, Option<f64>>,
    /// Pairs of blocks of requests that these figures are from.
    pub pairs: u64,
    /// How often workers have decided.
    pub decisions: u64,
    /// How often the decision was the opposite of the one before.
    #[serde(default)]
    pub changes: u64,
    /// How often it was tried anew since requests had become dearer.
    #[serde(default)]
    pub alarms: u64,
    /// Requests by way, until this was last told.
    pub requests: BTreeMap<String, u64>,
}

impl From<&ChoiceSnapshot> for ChoiceReport {
    fn from(it: &ChoiceSnapshot) -> ChoiceReport {
        let ways = it.subject.ways().map(str::to_owned);
        let known = it.ns_per_byte.map(|cost| Some(cost).filter(|cost| *cost > 0.0));
        ChoiceReport {
            node: usize::from(it.node.0),
            setting: it.subject.setting().to_owned(),
            class: it.subject.to_string(),
            decision: decision(it).to_owned(),
            ns_per_byte: ways.clone().into_iter().zip(known).collect(),
            pairs: it.pairs,
            decisions: it.settlements,
            changes: it.changes,
            alarms: it.alarms,
            requests: ways.into_iter().zip(it.requests).collect(),
        }
    }
}

fn decision(it: &ChoiceSnapshot) -> &'static str {
    let [usual, instead] = it.subject.ways();
    match it.workers {
        [_, 0, 0] => "trying",
        [0, _, 0] => usual,
        [0, 0, _] => instead,
        _ => "mixed",
    }
}

/// All classes for people, a line each; nothing where there are none.
///
/// ```text
/// choices                                                          decided                   one way              the other    requests
///   disk/a.img: linearize: writes of 32 KiB in 4 KiB off pages     linear         17.1 MB/s vectored       88.3 MB/s linear     25+4071
/// ```
pub fn choice_table(classes: &[ChoiceSnapshot], nodes: &[Snapshot]) -> String {
    let mut out = String::new();
    if classes.is_empty() {
        return out;
    }
    let line = |what: &str, decided: &str, [usual, instead]: [&str; 2], requests: &str| {
        format!("{what:<66} {decided:<9} {usual:>22} {instead:>22} {requests:>14}\n")
    };
    out += &line("choices", "decided", ["one way", "the other"], "requests");
    for it in classes {
        let name = nodes.get(usize::from(it.node.0)).map_or_else(String::new, |node| escape(&node.info.name));
        let what = format!("  {name}: {}: {}", it.subject.setting(), it.subject);
        let ways = it.subject.ways();
        let [usual, instead] = [0, 1].map(|way| format!("{} {}", rate(it.ns_per_byte[way]), ways[way]));
        let requests = format!("{}+{}", it.requests[0], it.requests[1]);
        out += &line(&what, decision(it), [&usual, &instead], &requests);
    }
    out
}

/// What a device does that is busy with nothing else.
fn rate(ns_per_byte: f64) -> String {
    if ns_per_byte > 0.0 { format!("{:.1} MB/s", 1e3 / ns_per_byte) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use blockwork_engine::{Boundaries, NodeId, Op, RequestClass, Subject};

    use super::*;

    fn class(workers: [u32; 3]) -> ChoiceSnapshot {
        ChoiceSnapshot {
            node: NodeId(0),
            subject: Subject::Linearize(RequestClass {
                op: Op::Write,
                fua: false,
                bytes: 32768,
                element_bytes: 4096,
                boundaries: Boundaries::Within,
            }),
            workers,
            ns_per_byte: [58.6, if workers[0] == 0 { 11.3 } else { 0.0 }],
            pairs: 8,
            settlements: 1,
            changes: 0,
            alarms: 2,
            requests: [25, 4071],
        }
    }

    #[test]
    fn a_line_says_what_was_decided_and_from_which_figures() {
        let fua = ChoiceSnapshot { subject: Subject::Fua { bytes: 4096 }, ..class([0, 2, 0]) };
        let text = choice_table(&[class([0, 0, 2]), fua], &[]);
        let lines: Vec<_> = text.lines().collect();
        for word in [
            "linearize: writes of 32 KiB in 4 KiB off pages",
            "17.1 MB/s vectored",
            "88.5 MB/s linear",
            " linear ",
            "25+4071",
        ] {
            assert!(lines[1].contains(word), "{word}: {text}");
        }
        for word in ["fua: FUA writes of 4 KiB", "17.1 MB/s dsync", "88.5 MB/s flush", " dsync "] {
            assert!(lines[2].contains(word), "{word}: {text}");
        }
        assert_eq!(choice_table(&[], &[]), "");
    }

    #[test]
    fn workers_may_differ_and_what_is_not_known_is_left_out() {
        assert_eq!(ChoiceReport::from(&class([0, 1, 1])).decision, "mixed");
        let trying = ChoiceReport::from(&class([1, 0, 0]));
        assert_eq!((trying.decision.as_str(), trying.ns_per_byte["linear"]), ("trying", None));
        assert_eq!(trying.requests["linear"], 4071);
    }
}
