//! `nbdload`: a lean NBD load generator, and the judge of what a server kept after a crash.
//!
//! The common NBD clients spend 7 to 12 us of CPU per I/O and so hide the server. This one batches: it builds as many
//! requests as are free into one send, takes all replies that have arrived with one receive, and only then refills.
//! `bench/README.md` tells what that costs and how to read the output.
//!
//! The parts: `cli` checks the arguments, `handshake` connects, `link` sends and receives in batches, `replies` parses,
//! `worker` is the loop of one connection, `pattern` and `ledger` verify, `durable_log` keeps a server's promises,
//! `measure` reads what the system knows, `report` prints.
#![forbid(unsafe_code)]

mod cli;
mod durable_log;
mod handshake;
mod histogram;
mod ledger;
mod link;
mod measure;
mod pattern;
mod proto;
mod replies;
mod report;
mod worker;

use std::process::ExitCode;
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use cli::{Args, Job, Verify};
use durable_log::DurableLog;
use handshake::{Export, connect};
use measure::SyscallCount;
use report::{Measured, Report};
use worker::{Tally, Worker};

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(report) => {
            println!("{}", serde_json::to_string(&report).expect("numbers and text"));
            let code = exit_code(&report);
            for word in [&report.first_failure, &report.broken].into_iter().flatten() {
                eprintln!("nbdload: {word}");
            }
            ExitCode::from(code)
        }
        Err(error) => {
            eprintln!("nbdload: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn exit_code(report: &Report) -> u8 {
    if report.wrong_blocks > 0 {
        1
    } else if report.broken.is_some() {
        3
    } else {
        u8::from(report.errors > 0)
    }
}

fn run(args: &Args) -> Result<Report> {
    let first = connect(&args.address, &args.export, args.structured)?;
    let export = first.1;
    let job = Job::new(args, &export)?;
    check_promises_fit(&job, &export)?;
    let log = match (&job.verify, &args.log) {
        (Verify::Own, Some(path)) => {
            ensure!(
                job.fua || job.can_flush,
                "--log: the server offers no flush; only --fua would promise anything"
            );
            Some(DurableLog::create(path, job.seed, job.bs)?)
        }
        _ => None,
    };
    let mut workers = vec![Worker::new(&job, 0, first.0, export, log.as_ref())?];
    for index in 1..job.connections {
        let (socket, export) = connect(&args.address, &args.export, args.structured)
            .with_context(|| format!("connection {} of {}", index + 1, job.connections))?;
        workers.push(Worker::new(&job, index, socket, export, log.as_ref())?);
    }
    let outcome = drive(args, &job, workers)?;
    let mut report = Report::new(args, &job, &export, &outcome.load, &outcome.back, &outcome.measured);
    report.broken = outcome.broken;
    Ok(report)
}

/// A promise about a block outside of what will be read must not pass unseen.
fn check_promises_fit(job: &Job, export: &Export) -> Result<()> {
    let Verify::Log(promises) = &job.verify else { return Ok(()) };
    let outside = promises.latest.keys().find(|offset| !job.blocks.contains(&(*offset / u64::from(job.bs))));
    ensure!(
        outside.is_none(),
        "the log promises the block at byte {}, which is outside of --range or of the export's {} bytes",
        outside.unwrap_or(&0),
        export.bytes
    );
    Ok(())
}

struct Outcome {
    load: Tally,
    back: Tally,
    measured: Measured,
    broken: Option<String>,
}

/// Runs the connections side by side: all start together, the load is measured until the last has ended, and the
/// read-back comes after that.
fn drive(args: &Args, job: &Job, workers: Vec<Worker>) -> Result<Outcome> {
    let syscalls = match args.pid {
        Some(pid) if args.syscalls => Some(SyscallCount::start(pid)?),
        _ => None,
    };
    let before = Snapshot::take(args.pid)?;
    let (start, end) = (Barrier::new(job.connections + 1), Barrier::new(job.connections + 1));
    let (load, back) = (Mutex::new(Tally::new()), Mutex::new(Tally::new()));
    let broken = Mutex::new(None);
    let measured = std::thread::scope(|scope| {
        for mut worker in workers {
            let (start, end, load, back, broken) = (&start, &end, &load, &back, &broken);
            scope.spawn(move || {
                start.wait();
                let result = if job.only_verifies() { Ok(()) } else { worker.load() };
                end.wait();
                let tally = std::mem::replace(&mut worker.tally, Tally::new());
                load.lock().expect("no holder panics").add(&tally);
                let readable = result.is_ok() && !matches!(job.verify, Verify::No);
                let result = if readable { worker.read_back() } else { result };
                back.lock().expect("no holder panics").add(&worker.tally);
                match result {
                    Ok(()) => worker.disconnect(),
                    Err(e) => {
                        broken.lock().expect("no holder panics").get_or_insert(format!("{e:#}"));
                    }
                }
            });
        }
        start.wait();
        let began = Instant::now();
        end.wait();
        measure_since(&before, args.pid, began.elapsed().as_secs_f64(), syscalls)
    });
    let unlock = "the threads have ended";
    Ok(Outcome {
        load: load.into_inner().expect(unlock),
        back: back.into_inner().expect(unlock),
        broken: broken.into_inner().expect(unlock),
        measured: measured?,
    })
}

struct Snapshot {
    client_cpu_us: f64,
    client: measure::CpuTime,
    server: Option<measure::CpuTime>,
    steal: (u64, u64),
}

impl Snapshot {
    fn take(pid: Option<u32>) -> Result<Self> {
        let server = pid.map(measure::cpu_time).transpose()?;
        let client = measure::cpu_time(std::process::id())?;
        Ok(Snapshot { client_cpu_us: measure::own_cpu_us(), client, server, steal: measure::steal_ticks()? })
    }
}

fn measure_since(
    before: &Snapshot,
    pid: Option<u32>,
    seconds: f64,
    syscalls: Option<SyscallCount>,
) -> Result<Measured> {
    let client_cpu_us = measure::own_cpu_us() - before.client_cpu_us;
    let client_user_us = measure::cpu_time(std::process::id())?.user_us - before.client.user_us;
    let steal = measure::steal_ticks()?;
    let all = steal.1.saturating_sub(before.steal.1).max(1);
    // A server that was killed in mid-run has no CPU time left to read: that is not this program's failure.
    let server = pid.and_then(|pid| measure::cpu_time(pid).ok());
    Ok(Measured {
        seconds,
        client_cpu_us,
        client_user_us,
        server_cpu_us: server
            .zip(before.server)
            .map(|(now, then)| (now.user_us - then.user_us, now.system_us - then.system_us)),
        syscalls: syscalls.map(SyscallCount::finish).transpose()?,
        steal_percent: steal.0.saturating_sub(before.steal.0) as f64 / all as f64 * 100.0,
    })
}
