//! Locks that workers share, in the manner of /proc/lock_stat: whether one of them is what a server waits for is read off here.

use std::fmt::Write;

use blockwork_engine::{LockSnapshot, Times};
use blockwork_format::escape;
use serde::{Deserialize, Serialize};

/// One lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockReport {
    /// Whose it is and what for, as it is: JSON escapes what has to be.
    pub name: String,
    /// How often somebody had to wait for it.
    pub contentions: u64,
    /// How often it was taken.
    pub acquisitions: u64,
    /// How long who had to wait did; left out of what is held too short to be timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ns: Option<TimesReport>,
    /// How long it was held; left out likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ns: Option<TimesReport>,
}

/// Lengths of time, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimesReport {
    /// The shortest.
    pub min: u64,
    /// The longest.
    pub max: u64,
    /// All together.
    pub total: u64,
    /// Their mean.
    pub avg: u64,
}

impl From<&Times> for TimesReport {
    fn from(times: &Times) -> TimesReport {
        TimesReport { min: times.min.0, max: times.max.0, total: times.total.0, avg: times.mean().0 }
    }
}

impl From<&LockSnapshot> for LockReport {
    fn from(lock: &LockSnapshot) -> LockReport {
        LockReport {
            name: lock.name.clone(),
            contentions: lock.contentions,
            acquisitions: lock.acquisitions,
            wait_ns: lock.waits.as_ref().map(TimesReport::from),
            hold_ns: lock.holds.as_ref().map(TimesReport::from),
        }
    }
}

/// Length of a name in [`lock_table`], at least.
const NAME: usize = 36;

/// All locks for people, a line each, times in microseconds; nothing where there are none. The columns are those of /proc/lock_stat, but
/// for bounces, of which nobody knows here.
///
/// ```text
/// locks, us                            contentions waittime-min waittime-max waittime-total waittime-avg acquisitions holdtime-min ...
///   vg/pool: metadata                           12         1.10       310.42         904.77        75.40         8211         0.00 ...
/// ```
pub fn lock_table(locks: &[LockSnapshot]) -> String {
    let mut out = String::new();
    if locks.is_empty() {
        return out;
    }
    let times = |what: &str| ["min", "max", "total", "avg"].map(|which| format!("{what}time-{which}"));
    let cells = |times: Option<TimesReport>| {
        let of = |times: TimesReport| [times.min, times.max, times.total, times.avg].map(micros);
        times.map_or_else(|| ["-"; 4].map(String::from), of)
    };
    put(
        &mut out,
        "locks, us",
        ["contentions", "acquisitions"].map(String::from),
        [times("wait"), times("hold")],
    );
    for lock in locks {
        let lock = LockReport::from(lock);
        let counts = [lock.contentions, lock.acquisitions].map(|n| n.to_string());
        put(&mut out, &format!("  {}", escape(&lock.name)), counts, [lock.wait_ns, lock.hold_ns].map(cells));
    }
    out
}

fn micros(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e3)
}

fn put(
    out: &mut String,
    name: &str,
    [contentions, acquisitions]: [String; 2],
    [waits, holds]: [[String; 4]; 2],
) {
    let times = |[min, max, total, avg]: [String; 4]| format!("{min:>12} {max:>12} {total:>14} {avg:>12}");
    let (waits, holds) = (times(waits), times(holds));
    writeln!(out, "{name:<NAME$} {contentions:>11} {waits} {acquisitions:>12} {holds}")
        .expect("a string has room");
}
