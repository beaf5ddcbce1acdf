//! Rings of clients, in the three forms: whether a ring starves its disk is read off here.

use std::fmt::Write;

use blockwork_engine::{Nanos, RingSnapshot};
use blockwork_format::escape;
use serde::{Deserialize, Serialize};

use super::table::time;

/// One ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingReport {
    /// Whose it is, as it is: JSON escapes what has to be.
    pub name: String,
    /// Requests that fit.
    pub size: u32,
    /// Requests that were taken and are not answered.
    pub in_flight: u32,
    /// The most that this ever was.
    pub high_water: u32,
    /// Requests in all.
    pub requests: u64,
    /// For how long it was full, nanoseconds.
    pub full_ns: u64,
    /// Whether it is full now.
    pub is_full: bool,
}

impl From<&RingSnapshot> for RingReport {
    fn from(ring: &RingSnapshot) -> RingReport {
        RingReport {
            name: ring.name.clone(),
            size: ring.size,
            in_flight: ring.in_flight,
            high_water: ring.high_water,
            requests: ring.requests,
            full_ns: ring.full.0,
            is_full: ring.is_full,
        }
    }
}

/// All rings for people, a line each; nothing where there are none. A name that fills its ring is said so.
///
/// ```text
/// rings                                   size in flight  most    requests  time full
///   vg/lv, domain 3, queue 0                32         0    32       81920     2.1 s   was full: a larger one may be faster
/// ```
pub fn ring_table(rings: &[RingSnapshot]) -> String {
    let mut out = String::new();
    if rings.is_empty() {
        return out;
    }
    let [size, in_flight, most, requests, full] = ["size", "in flight", "most", "requests", "time full"];
    put(
        &mut out,
        format_args!("{:<36} {size:>7} {in_flight:>9} {most:>5} {requests:>11} {full:>10}", "rings"),
    );
    for ring in rings {
        let advice = if ring.full > Nanos(0) { "   was full: a larger one may be faster" } else { "" };
        let (name, full) = (escape(&ring.name), time(ring.full.0));
        let RingSnapshot { size, in_flight, high_water, requests, .. } = ring;
        put(
            &mut out,
            format_args!(
                "  {name:<34} {size:>7} {in_flight:>9} {high_water:>5} {requests:>11} {full:>10}{advice}"
            ),
        );
    }
    out
}

/// All rings as gauges and counters with the label `ring`; nothing where there are none.
pub fn rings_prometheus(rings: &[RingSnapshot]) -> String {
    type Value = fn(&RingSnapshot) -> String;
    const METRICS: [(&str, &str, &str, Value); 5] = [
        ("ring_size", "gauge", "Requests that fit a client's ring", |ring| ring.size.to_string()),
        ("ring_in_flight", "gauge", "Requests of a ring that are not answered", |ring| {
            ring.in_flight.to_string()
        }),
        ("ring_high_water", "gauge", "The most that were in flight", |ring| ring.high_water.to_string()),
        ("ring_requests_total", "counter", "Requests taken out of a ring", |ring| ring.requests.to_string()),
        ("ring_full_seconds_total", "counter", "For how long a ring was full", |ring| {
            (ring.full.0 as f64 / 1e9).to_string()
        }),
    ];
    let mut out = String::new();
    if rings.is_empty() {
        return out;
    }
    for (name, kind, help, value) in METRICS {
        put(&mut out, format_args!("# HELP blockwork_{name} {help}"));
        put(&mut out, format_args!("# TYPE blockwork_{name} {kind}"));
        for ring in rings {
            let label = escape(&ring.name).replace('\\', "\\\\").replace('"', "\\\"");
            put(&mut out, format_args!("blockwork_{name}{{ring=\"{label}\"}} {}", value(ring)));
        }
    }
    out
}

fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(out, "{line}").expect("a String takes all");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> RingSnapshot {
        RingSnapshot {
            name: "vg/\u{1b}lv, domain 3, queue 0".to_owned(),
            size: 32,
            in_flight: 5,
            high_water: 32,
            requests: 81920,
            full: Nanos(2_100_000_000),
            is_full: false,
        }
    }

    #[test]
    fn a_ring_that_was_full_is_said_so() {
        let roomy = RingSnapshot { size: 256, full: Nanos(0), ..ring() };
        let text = ring_table(&[ring(), roomy]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].contains("\\u{1b}lv") && lines[1].contains("2.1 s   was full"), "{text}");
        assert!(!lines[2].contains("was full"), "{text}");
        assert_eq!(ring_table(&[]), "");
    }

    #[test]
    fn prometheus_gets_the_time_in_seconds() {
        let text = rings_prometheus(&[ring()]);
        assert!(
            text.contains(
                "blockwork_ring_full_seconds_total{ring=\"vg/\\\\u{1b}lv, domain 3, queue 0\"} 2.1\n"
            )
        );
        assert!(text.contains("# TYPE blockwork_ring_high_water gauge\n"), "{text}");
        assert_eq!(rings_prometheus(&[]), "");
    }
}
