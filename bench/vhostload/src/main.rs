//! `vhostload`: requests to a vhost-user-blk server in a closed loop, by one thread, measured at both ends. Prints one JSON object.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use blockwork_format::virtio::blk::request;
use clap::{Parser, ValueEnum};
use serde::Serialize;
use vhostload::{Bare, Disk, Load, Options, Request};

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
    /// Of its data, in so many pieces that do not lie one after the other, as pages of a guest.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128), conflicts_with = "bare")]
    pieces: u16,
    /// For so long.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Before that, use all of the guest's memory, and rest for so long: what the server does about that memory is done by then.
    #[arg(long, default_value_t = 0.0)]
    rest: f64,
    /// Look for answers without sleeping.
    #[arg(long)]
    poll: bool,
    /// A packed ring.
    #[arg(long)]
    packed: bool,
    /// Without indirect tables: each request takes two descriptors, and one for each piece.
    #[arg(long)]
    direct: bool,
    /// The server's process, whose time is measured.
    #[arg(long)]
    pid: Option<u32>,
    /// After that, move to the server at this socket and back, ten times, with a full queue of writes before each.
    #[arg(long, conflicts_with = "bare")]
    move_to: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    requests: u64,
    kicks_per_io: f64,
    /// How often the driver slept, and how much of the time in all.
    sleeps_per_io: f64,
    asleep_share: f64,
    stalls: u64,
    server_cpu_us_per_io: Option<f64>,
    /// Of one processor.
    server_cpu_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moves: Option<Moves>,
}

/// What a guest waits that moves, milliseconds: medians.
#[derive(Debug, Serialize)]
struct Moves {
    /// Until the server has stopped the queues, and let go of the disk.
    stopped_ms: f64,
    /// From there until the next server has answered a read.
    answered_ms: f64,
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
        pieces: args.pieces.into(),
        scattered: true,
        ..Options::default()
    };
    let here = args.socket.as_deref().unwrap_or(Path::new(""));
    let (mut disk, bare) = match (&args.socket, args.bare) {
        (Some(socket), _) => (Disk::new(socket, options)?, None),
        (None, waits) => {
            let disk = Disk::without_server(options)?;
            let bare = Bare::start(&disk, waits == Some(Waits::Sleeps), Duration::from_micros(args.delay))?;
            (disk, Some(bare))
        }
    };
    let bytes = if bare.is_some() { BARE_BYTES } else { disk.config()?.capacity * 512 };
    let (kind, random) = match args.rw {
        Kind::Randread => (request::IN, true),
        Kind::Randwrite => (request::OUT, true),
        Kind::Read => (request::IN, false),
        Kind::Write => (request::OUT, false),
    };
    let blocks = bytes / args.bs as u64;
    ensure!(blocks > 0, "the disk is smaller than one request");
    let load = Load { kind, random, block: args.bs, blocks, depth: args.depth, poll: args.poll };
    if args.depth == 0 {
        // A device that was never used might sleep deeper.
        let first = load.request(1);
        (0..args.queues.into()).try_for_each(|queue| disk.run(queue, first).map(drop))?;
    }
    if args.rest > 0.0 {
        disk.guest.use_all();
        std::thread::park_timeout(Duration::from_secs_f64(args.rest));
    }
    let before = args.pid.map(cpu_seconds).transpose()?;
    let measured = load.run(&mut disk, Duration::from_secs_f64(args.seconds))?;
    let after = args.pid.map(cpu_seconds).transpose()?;
    let cpu = match bare {
        Some(bare) => Some(bare.end()?.as_secs_f64()),
        None => before.zip(after).map(|(before, after)| after - before),
    };
    let requests = measured.took.len() as u64;
    ensure!(requests > 0 || args.depth == 0, "nothing was answered");
    let kicks: u64 = disk.queues.iter().map(|queue| queue.kicks).sum();
    let per_io = 1.0 / requests.max(1) as f64;
    Ok(Report {
        iops: measured.iops(),
        p50_us: measured.quantile_us(0.5),
        p99_us: measured.quantile_us(0.99),
        requests,
        kicks_per_io: kicks as f64 * per_io,
        sleeps_per_io: measured.sleeps.0 as f64 * per_io,
        asleep_share: measured.sleeps.1.as_secs_f64() / measured.time.as_secs_f64(),
        stalls: measured.stalls,
        server_cpu_us_per_io: cpu.filter(|_| requests > 0).map(|cpu| cpu * 1e6 * per_io),
        server_cpu_share: cpu.map(|cpu| cpu / measured.time.as_secs_f64()),
        moves: args.move_to.as_ref().map(|there| moves(&mut disk, [there, here], &load)).transpose()?,
    })
}

/// There and back.
fn moves(disk: &mut Disk, sockets: [&Path; 2], load: &Load) -> Result<Moves> {
    let (mut stopped, mut answered) = (Vec::new(), Vec::new());
    for number in 0..10 {
        for socket in sockets {
            for nth in 0..u64::from(load.depth.max(1)) {
                disk.run(0, Request { kind: request::OUT, ..load.request(number * 1000 + nth) })?;
            }
            let began = Instant::now();
            let bases = disk.stop_as_it_moves()?;
            stopped.push(began.elapsed());
            let began = Instant::now();
            let before = disk.go_on_at(socket, &bases)?;
            disk.run(0, Request { kind: request::IN, ..load.request(number) })?;
            answered.push(began.elapsed());
            drop(before);
        }
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e3
    };
    Ok(Moves { stopped_ms: median(&mut stopped), answered_ms: median(&mut answered) })
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
