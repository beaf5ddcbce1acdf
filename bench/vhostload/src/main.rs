//! `vhostload`: requests to a vhost-user-blk server in a closed loop, by one queue, measured at both ends. Prints one JSON object.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use blockwork_format::virtio::blk::{request, status};
use clap::{Parser, ValueEnum};
use serde::Serialize;
use vhostload::{Disk, Options, Request};

/// Clock ticks of /proc/PID/stat in a second: what every kernel has.
const TICKS: f64 = 100.0;
/// Longest sleep: a call that is lost shows as a stall, and not as a hang.
const PATIENCE: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Randread,
    Randwrite,
    Read,
    Write,
}

/// A closed loop of requests to a vhost-user-blk server.
#[derive(Debug, Parser)]
struct Args {
    /// The server's socket.
    #[arg(long)]
    socket: PathBuf,
    /// What to do.
    #[arg(long, value_enum, default_value = "randread")]
    rw: Kind,
    /// Requests in flight.
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// Descriptors of the ring.
    #[arg(long, default_value_t = 128)]
    queue_size: u16,
    /// Bytes of a request.
    #[arg(long, default_value_t = 4096)]
    bs: usize,
    /// For so long.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Look for answers without sleeping.
    #[arg(long)]
    poll: bool,
    /// A packed ring.
    #[arg(long)]
    packed: bool,
    /// Without indirect tables: each request takes three descriptors.
    #[arg(long)]
    direct: bool,
    /// The server's process, whose time is measured.
    #[arg(long)]
    pid: Option<u32>,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    requests: u64,
    kicks_per_io: f64,
    stalls: u64,
    server_cpu_us_per_io: Option<f64>,
}

fn main() -> Result<()> {
    let report = run(&Args::parse())?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn run(args: &Args) -> Result<Report> {
    let options = Options {
        ring_size: args.queue_size,
        requests: args.depth,
        data_bytes: args.bs,
        packed: args.packed,
        indirect: !args.direct,
        ..Options::default()
    };
    let mut disk = Disk::new(&args.socket, options)?;
    let blocks = disk.config()?.capacity * 512 / args.bs as u64;
    ensure!(blocks > 0, "the disk is smaller than one request");
    let before = args.pid.map(cpu_seconds).transpose()?;
    let mut load =
        Load { args, blocks, next: 0, started: vec![Instant::now(); args.depth.into()], took: Vec::new() };
    let begin = Instant::now();
    let stalls = load.run(&mut disk, begin + Duration::from_secs_f64(args.seconds))?;
    let seconds = begin.elapsed().as_secs_f64();
    let after = args.pid.map(cpu_seconds).transpose()?;
    let mut took = load.took;
    took.sort_unstable();
    let requests = took.len() as u64;
    ensure!(requests > 0, "nothing was answered");
    let quantile = |q: f64| took[(q * (took.len() - 1) as f64) as usize].as_secs_f64() * 1e6;
    Ok(Report {
        iops: requests as f64 / seconds,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        requests,
        kicks_per_io: disk.queues[0].kicks as f64 / requests as f64,
        stalls,
        server_cpu_us_per_io: before
            .zip(after)
            .map(|(before, after)| (after - before) * 1e6 / requests as f64),
    })
}

struct Load<'a> {
    args: &'a Args,
    blocks: u64,
    next: u64,
    started: Vec<Instant>,
    took: Vec<Duration>,
}

impl Load<'_> {
    fn request(&mut self) -> Request {
        let (kind, random) = match self.args.rw {
            Kind::Randread => (request::IN, true),
            Kind::Randwrite => (request::OUT, true),
            Kind::Read => (request::IN, false),
            Kind::Write => (request::OUT, false),
        };
        self.next += 1;
        let number = if random { self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16 } else { self.next };
        let sector = number % self.blocks * (self.args.bs as u64 / 512);
        Request { kind, sector, len: self.args.bs }
    }

    /// Until `end`, then until all is answered; how often a call did not come.
    fn run(&mut self, disk: &mut Disk, end: Instant) -> Result<u64> {
        let mut stalls = 0;
        let mut in_flight = 0_u32;
        disk.queues[0].want_calls(&disk.guest, !self.args.poll);
        loop {
            let now = Instant::now();
            while let Some(finished) = disk.finished(0) {
                ensure!(finished.status == status::OK, "{finished:?}");
                self.took.push(now - self.started[usize::from(finished.id)]);
                in_flight -= 1;
            }
            let mut any = false;
            while now < end && disk.queues[0].next_id().is_some() {
                let request = self.request();
                let Some(id) = disk.queues[0].prepare(&disk.guest, request) else { break };
                self.started[usize::from(id)] = now;
                in_flight += 1;
                any = true;
            }
            if any {
                disk.queues[0].publish(&disk.guest);
            }
            if in_flight == 0 && now >= end {
                return Ok(stalls);
            }
            if !self.args.poll
                && !disk.queues[0].want_calls(&disk.guest, true)
                && !disk.queues[0].sleep(PATIENCE)
            {
                stalls += 1;
            }
        }
    }
}

/// Processor time that a process has used.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = Path::new("/proc").join(pid.to_string()).join("stat");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let behind = text.rsplit_once(") ").context("no name")?.1;
    let field =
        |n: usize| behind.split(' ').nth(n).and_then(|word| word.parse::<f64>().ok()).context("no number");
    Ok((field(11)? + field(12)?) / TICKS)
}
