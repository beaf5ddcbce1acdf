//! `vhostload`: requests to a vhost-user-blk server in a closed loop, by one thread, measured at both ends. Prints one JSON object.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use blockwork_format::virtio::blk::{request, status};
use clap::{Parser, ValueEnum};
use serde::Serialize;
use vhostload::{Bare, Disk, Options, Request};

/// Longest sleep: a call that is lost shows as a stall, and not as a hang.
const PATIENCE: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Randread,
    Randwrite,
    Read,
    Write,
}

/// How a bare back end waits for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Waits {
    /// Asleep.
    Sleeps,
    /// Looking.
    Looks,
}

/// Bytes of its disk.
const BARE_BYTES: u64 = 1 << 30;

/// A closed loop of requests to a vhost-user-blk server.
#[derive(Debug, Parser)]
struct Args {
    /// The server's socket.
    #[arg(long, required_unless_present = "bare")]
    socket: Option<PathBuf>,
    /// In place of a server: a thread that does the least that one can, for random reads of one queue.
    #[arg(long, value_enum, conflicts_with_all = ["socket", "packed", "direct", "queues", "pid", "rw"])]
    bare: Option<Waits>,
    /// What each of its requests takes, microseconds.
    #[arg(long, default_value_t = 0, requires = "bare")]
    delay: u64,
    /// What to do.
    #[arg(long, value_enum, default_value = "randread")]
    rw: Kind,
    /// Requests in flight in each queue; none: how much of a processor an idle guest takes.
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// Queues.
    #[arg(long, default_value_t = 1)]
    queues: u16,
    /// Descriptors of each ring.
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
    /// Of one processor.
    server_cpu_share: Option<f64>,
}

fn main() -> Result<()> {
    let report = run(&Args::parse())?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn run(args: &Args) -> Result<Report> {
    let options = Options {
        queues: args.queues,
        ring_size: args.queue_size,
        requests: args.depth.max(1),
        data_bytes: args.bs,
        packed: args.packed,
        indirect: !args.direct,
        ..Options::default()
    };
    let (mut disk, bare) = match (&args.socket, args.bare) {
        (Some(socket), _) => (Disk::new(socket, options)?, None),
        (None, waits) => {
            let disk = Disk::without_server(options)?;
            let bare = Bare::start(&disk, waits == Some(Waits::Sleeps), Duration::from_micros(args.delay))?;
            (disk, Some(bare))
        }
    };
    let bytes = if bare.is_some() { BARE_BYTES } else { disk.config()?.capacity * 512 };
    let blocks = bytes / args.bs as u64;
    ensure!(blocks > 0, "the disk is smaller than one request");
    let started = vec![vec![Instant::now(); args.depth.into()]; args.queues.into()];
    let mut load = Load { args, blocks, next: 0, started, took: Vec::new(), in_flight: 0 };
    if args.depth == 0 {
        // A device that was never used might sleep deeper.
        let first = load.request();
        (0..args.queues.into()).try_for_each(|queue| disk.run(queue, first).map(drop))?;
    }
    let before = args.pid.map(cpu_seconds).transpose()?;
    let begin = Instant::now();
    let stalls = load.run(&mut disk, begin + Duration::from_secs_f64(args.seconds))?;
    let seconds = begin.elapsed().as_secs_f64();
    let after = args.pid.map(cpu_seconds).transpose()?;
    let cpu = match bare {
        Some(bare) => Some(bare.end()?.as_secs_f64()),
        None => before.zip(after).map(|(before, after)| after - before),
    };
    let mut took = load.took;
    took.sort_unstable();
    let requests = took.len() as u64;
    ensure!(requests > 0 || args.depth == 0, "nothing was answered");
    let quantile = |q: f64| {
        let at = (q * took.len().saturating_sub(1) as f64) as usize;
        took.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    let kicks: u64 = disk.queues.iter().map(|queue| queue.kicks).sum();
    let per_io = 1.0 / requests.max(1) as f64;
    Ok(Report {
        iops: requests as f64 / seconds,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        requests,
        kicks_per_io: kicks as f64 * per_io,
        stalls,
        server_cpu_us_per_io: cpu.filter(|_| requests > 0).map(|cpu| cpu * 1e6 * per_io),
        server_cpu_share: cpu.map(|cpu| cpu / seconds),
    })
}

struct Load<'a> {
    args: &'a Args,
    blocks: u64,
    next: u64,
    /// By queue and request.
    started: Vec<Vec<Instant>>,
    took: Vec<Duration>,
    in_flight: u32,
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
        for queue in &mut disk.queues {
            queue.want_calls(&disk.guest, !self.args.poll);
        }
        loop {
            for queue in 0..disk.queues.len() {
                self.turn(disk, queue, end)?;
            }
            if self.in_flight == 0 && Instant::now() >= end {
                return Ok(stalls);
            }
            if !self.args.poll && !any_is_done(disk) && !disk.sleep(PATIENCE) && self.in_flight > 0 {
                stalls += 1;
            }
        }
    }

    /// Takes the answers of a queue, and has it as full as it may be.
    fn turn(&mut self, disk: &mut Disk, queue: usize, end: Instant) -> Result<()> {
        let now = Instant::now();
        while let Some(finished) = disk.finished(queue) {
            ensure!(finished.status == status::OK, "{finished:?}");
            self.took.push(now - self.started[queue][usize::from(finished.id)]);
            self.in_flight -= 1;
        }
        let mut any = false;
        while now < end && self.args.depth > 0 && disk.queues[queue].next_id().is_some() {
            let request = self.request();
            let Some(id) = disk.queues[queue].prepare(&disk.guest, request) else { break };
            self.started[queue][usize::from(id)] = now;
            self.in_flight += 1;
            any = true;
        }
        if any {
            disk.queues[queue].publish(&disk.guest);
        }
        Ok(())
    }
}

/// Has all queues call from now on; whether something is done in one already.
fn any_is_done(disk: &mut Disk) -> bool {
    let guest = &disk.guest;
    // All are asked, also where the first has something.
    disk.queues.iter_mut().filter_map(|queue| queue.want_calls(guest, true).then_some(())).count() > 0
}

/// Processor time that the threads of a process have used, to the nanosecond (what /proc/PID/stat tells is in ticks of 10 ms).
fn cpu_seconds(pid: u32) -> Result<f64> {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let mut nanos = 0;
    for task in std::fs::read_dir(&tasks).with_context(|| tasks.display().to_string())? {
        // One that ends meanwhile took next to nothing since it was listed.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let first = text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
        nanos += first.context("schedstat holds no number")?;
    }
    Ok(nanos as f64 / 1e9)
}
