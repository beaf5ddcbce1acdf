//! Statistics of every node, for people and programs.
//!
//! [`table()`], [`ring_table`], [`decision_table`], [`choice_table`] and [`lock_table`] are what `serve --stats` prints. [`Report`] is the JSON of
//! `/v1/stats`; its field names are kept stable.
//! [`prometheus()`] is `/metrics`. All of them come from one [`Snapshot`] of the engine's counters, which is not a moment
//! frozen: counters of workers that run move on while they are read.
//!
//! Latencies are known by their bucket (four per doubling): a quantile is its bucket's upper bound, at most a quarter too
//! high.

mod choices;
mod decisions;
mod locks;
mod prometheus;
mod rings;
mod table;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use blockwork_engine::{ChoiceSnapshot, Decision, Histogram, LockSnapshot, NodeId, RingSnapshot, Snapshot};
use blockwork_format::escape;

pub use choices::{ChoiceReport, choice_table};
pub use decisions::{DecisionReport, decision_table};
pub use locks::{LockReport, TimesReport, lock_table};
pub use prometheus::prometheus;
pub use rings::{RingReport, ring_table, rings_prometheus};
pub use table::table;

/// Everything that is known of all nodes.
///
/// ```json
/// {"nodes": [{"node": 0, "name": "disk/a.img", "kind": "leaf", "device": "259:0",
///   "counters": {"in": 12, "out": 3, "merged_back": 9}, "in_flight": 0,
///   "latency_ns": {"read": {"count": 3, "p50": 112, "p99": 160, "p999": 160, "max": 160}}}]}
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// In the order of their numbers.
    pub nodes: Vec<NodeReport>,
    /// Rings that clients share with exports; left out where there was none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<RingReport>,
    /// What is in force on the leaves of what can be done in several ways; left out where there is nothing of the kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<DecisionReport>,
    /// What was found out about requests that can go two ways; left out where there was none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<ChoiceReport>,
    /// Locks that workers share; left out where none was ever taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<LockReport>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its number.
    pub node: usize,
    /// Its name, as it is: JSON escapes what has to be.
    pub name: String,
    /// What it is: `leaf`, `part`, `linear` ...
    pub kind: String,
    /// Its number in traces, as `major:minor`.
    pub device: String,
    /// All counters by name, zeros too. Names: [`Counter::name`](blockwork_engine::Counter::name).
    pub counters: BTreeMap<String, u64>,
    /// Of a leaf: requests that the disk has been given, and has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// By class of operation: `read`, `write`, `flush`, `discard` (with write-zeroes). Classes that did not occur are
    /// left out.
    pub latency_ns: BTreeMap<String, LatencyReport>,
}

/// Latencies of a class of operations, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Operations.
    pub count: u64,
    /// Half of them took less.
    pub p50: u64,
    /// 99 of 100 took less.
    pub p99: u64,
    /// 999 of 1000 took less.
    pub p999: u64,
    /// All took less.
    pub max: u64,
}

impl LatencyReport {
    /// Of a histogram; none where it is empty.
    pub fn of(histogram: &Histogram) -> Option<LatencyReport> {
        Some(LatencyReport {
            count: histogram.count(),
            p50: histogram.quantile(0.5)?,
            p99: histogram.quantile(0.99)?,
            p999: histogram.quantile(0.999)?,
            max: histogram.quantile(1.0)?,
        })
    }
}

impl Report {
    /// From the engine's counters ([`Stats::snapshot`](blockwork_engine::Stats::snapshot)).
    pub fn new(snapshots: &[Snapshot]) -> Report {
        let nodes = snapshots.iter().enumerate().map(|(node, snapshot)| NodeReport {
            node,
            name: snapshot.info.name.clone(),
            kind: snapshot.info.kind.name().to_owned(),
            device: format!("{}:{}", snapshot.info.device.0, snapshot.info.device.1),
            counters: snapshot.counts.iter().map(|(counter, n)| (counter.name().to_owned(), *n)).collect(),
            in_flight: snapshot.in_flight(),
            latency_ns: snapshot
                .latency
                .iter()
                .filter_map(|(class, histogram)| Some(((*class).to_owned(), LatencyReport::of(histogram)?)))
                .collect(),
        });
        Report {
            nodes: nodes.collect(),
            rings: Vec::new(),
            decisions: Vec::new(),
            choices: Vec::new(),
            locks: Vec::new(),
        }
    }

    /// With the rings of clients ([`Stats::rings`](blockwork_engine::Stats::rings)).
    pub fn with_rings(self, rings: &[RingSnapshot]) -> Report {
        Report { rings: rings.iter().map(RingReport::from).collect(), ..self }
    }

    /// With what is in force on the leaves ([`Stats::decisions`](blockwork_engine::Stats::decisions)).
    pub fn with_decisions(self, leaves: &[(NodeId, Vec<Decision>)]) -> Report {
        Report { decisions: DecisionReport::all(leaves), ..self }
    }

    /// With what was found out on the clients' requests ([`Stats::choices`](blockwork_engine::Stats::choices)).
    pub fn with_choices(self, classes: &[ChoiceSnapshot]) -> Report {
        Report { choices: classes.iter().map(ChoiceReport::from).collect(), ..self }
    }

    /// With the locks of the engine ([`Stats::locks`](blockwork_engine::Stats::locks)).
    pub fn with_locks(self, locks: &[LockSnapshot]) -> Report {
        Report { locks: locks.iter().map(LockReport::from).collect(), ..self }
    }

    /// As one line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are JSON")
    }
}

/// A node's name in a line of text.
fn shown(snapshot: &Snapshot) -> String {
    escape(&snapshot.info.name)
}

#[cfg(test)]
mod tests;
