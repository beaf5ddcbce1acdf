//! The result: one JSON object on one line.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cli::{Args, Job, Verify};
use crate::handshake::{Address, Export};
use crate::proto::{CAN_MULTI_CONN, error_name};
use crate::worker::Tally;

/// What was measured beside the tally.
#[derive(Debug, Default)]
pub struct Measured {
    /// Length of the load in seconds.
    pub seconds: f64,
    /// This program's CPU time in us.
    pub client_cpu_us: f64,
    /// The part of it in user mode, in clock ticks of 10 ms.
    pub client_user_us: f64,
    /// The server's CPU time in us, user and system, if its process is known.
    pub server_cpu_us: Option<(f64, f64)>,
    /// The server's system calls, if counted.
    pub syscalls: Option<u64>,
    /// Share of all CPU time that the host took away, percent.
    pub steal_percent: f64,
}

/// The printed object. Latencies and CPU times are in us; `null` means not measured.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Report {
    pub address: String,
    pub rw: String,
    pub bs: u32,
    pub depth: usize,
    pub connections: usize,
    pub structured: bool,
    pub multi_conn: bool,
    pub seed: u64,
    pub seconds: f64,
    pub ios: u64,
    pub reads: u64,
    pub writes: u64,
    pub iops: f64,
    pub mibps: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    pub flushes: u64,
    pub flush_p50_us: f64,
    pub flush_p99_us: f64,
    pub client_cpu_us_per_io: f64,
    pub client_user_us_per_io: f64,
    pub client_sends_per_io: f64,
    pub client_receives_per_io: f64,
    pub server_cpu_us_per_io: Option<f64>,
    pub server_user_us_per_io: Option<f64>,
    pub server_system_us_per_io: Option<f64>,
    pub server_syscalls: Option<u64>,
    pub server_syscalls_per_io: Option<f64>,
    pub steal_percent: f64,
    pub errors: u64,
    pub errors_by_name: BTreeMap<String, u64>,
    pub verified: bool,
    pub checked_blocks: u64,
    pub wrong_blocks: u64,
    pub torn_blocks: u64,
    pub promised_blocks: Option<u64>,
    pub first_failure: Option<String>,
    pub broken: Option<String>,
}

impl Report {
    /// `load` is what the timed part counted, `back` the read-back after it.
    pub fn new(args: &Args, job: &Job, export: &Export, load: &Tally, back: &Tally, at: &Measured) -> Self {
        let ios = load.reads + load.writes;
        let per_io = |total: f64| if ios == 0 { 0.0 } else { round(total / ios as f64) };
        let rate = |total: f64| if at.seconds > 0.0 { round(total / at.seconds) } else { 0.0 };
        let mut all = load.clone();
        all.add(back);
        Report {
            address: match &args.address {
                Address::Unix(path) => format!("unix:{path}"),
                Address::Tcp(at) => at.clone(),
            },
            rw: if job.only_verifies() { "verify-only".into() } else { args.rw.word() },
            bs: job.bs,
            depth: job.depth,
            connections: job.connections,
            structured: export.structured,
            multi_conn: export.can(CAN_MULTI_CONN),
            seed: job.seed,
            seconds: round(at.seconds),
            ios,
            reads: load.reads,
            writes: load.writes,
            iops: rate(ios as f64),
            mibps: rate(ios as f64 * f64::from(job.bs) / f64::from(1u32 << 20)),
            mean_us: round(load.latency.mean_us()),
            p50_us: round(load.latency.percentile_us(0.5)),
            p99_us: round(load.latency.percentile_us(0.99)),
            p999_us: round(load.latency.percentile_us(0.999)),
            max_us: round(load.latency.max_us()),
            flushes: load.flushes,
            flush_p50_us: round(load.flush_latency.percentile_us(0.5)),
            flush_p99_us: round(load.flush_latency.percentile_us(0.99)),
            client_cpu_us_per_io: per_io(at.client_cpu_us),
            client_user_us_per_io: per_io(at.client_user_us),
            client_sends_per_io: per_io(load.sends as f64),
            client_receives_per_io: per_io(load.receives as f64),
            server_cpu_us_per_io: at.server_cpu_us.map(|(user, system)| per_io(user + system)),
            server_user_us_per_io: at.server_cpu_us.map(|(user, _)| per_io(user)),
            server_system_us_per_io: at.server_cpu_us.map(|(_, system)| per_io(system)),
            server_syscalls: at.syscalls,
            server_syscalls_per_io: at.syscalls.map(|calls| per_io(calls as f64)),
            steal_percent: round(at.steal_percent),
            errors: all.errors.values().sum(),
            errors_by_name: all
                .errors
                .iter()
                .map(|(e, n)| (format!("{} ({e})", error_name(*e)), *n))
                .collect(),
            verified: !matches!(job.verify, Verify::No),
            checked_blocks: all.checked,
            wrong_blocks: all.wrong,
            torn_blocks: all.torn,
            promised_blocks: match &job.verify {
                Verify::Log(promises) => Some(promises.latest.len() as u64),
                _ => None,
            },
            first_failure: all.first_failure,
            broken: None,
        }
    }
}

/// To four places: more would be noise.
fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
