//! The command line, and the checks that turn it into a `Job`.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};

use crate::durable_log::{self, Promises};
use crate::handshake::{Address, Export};
use crate::pattern::{SECTOR_BYTES, mix};
use crate::proto::*;

/// Most requests in flight on one connection.
const DEPTH_MAX: usize = 4096;
/// Most connections.
const CONNECTIONS_MAX: usize = 256;
/// Largest block in bytes.
const BS_MAX: u64 = 32 << 20;

const EXIT_CODES: &str = "\
Examples:
  nbdload unix:/run/disk.sock --rw randread --depth 32 --seconds 5 --pid 1234 --syscalls
  nbdload unix:/run/disk.sock --rw randwrite --verify --flush-every 64 --log /tmp/flushed
  nbdload unix:/run/disk.sock --verify-only --log /tmp/flushed

Exit code: 0 all went well; 1 an I/O failed or a block was wrong; 2 the run could not start;
3 a connection broke in mid-run (a log is valid up to its last line).";

/// Loads an NBD server and says what an I/O costs; or checks that it kept what it promised.
#[derive(Parser, Debug)]
#[command(version, after_help = EXIT_CODES)]
pub struct Args {
    /// Where the server listens: unix:PATH or HOST:PORT
    pub address: Address,
    /// Name of the export
    #[arg(long, default_value = "")]
    pub export: String,
    /// Negotiate structured replies
    #[arg(long)]
    pub structured: bool,
    /// What the load does
    #[arg(long, value_enum, default_value_t = Rw::Randread)]
    pub rw: Rw,
    /// Share of reads in rw and randrw, in percent
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,
    /// Bytes of an I/O (suffixes k, m, g, t); 4k if not given
    #[arg(long, value_parser = parse_bytes)]
    pub bs: Option<u64>,
    /// Requests kept in flight on each connection
    #[arg(long, default_value_t = 1)]
    pub depth: usize,
    /// Connections, each with its own thread
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Send again only when this many requests have been answered (1: at once)
    #[arg(long, default_value_t = 1)]
    pub refill: usize,
    /// Length of the run; 5 if neither --ios nor --bytes is given
    #[arg(long)]
    pub seconds: Option<f64>,
    /// I/Os of the run, over all connections
    #[arg(long, conflicts_with = "bytes")]
    pub ios: Option<u64>,
    /// Bytes of the run, over all connections
    #[arg(long, value_parser = parse_bytes)]
    pub bytes: Option<u64>,
    /// Part of the disk to use: LENGTH or START+LENGTH
    #[arg(long, value_parser = parse_range)]
    pub range: Option<(u64, u64)>,
    /// Seed of offsets and content; drawn from the clock if not given, and printed
    #[arg(long)]
    pub seed: Option<u64>,
    /// Write with FUA
    #[arg(long)]
    pub fua: bool,
    /// Flush after this many acknowledged writes, per connection
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub flush_every: Option<u64>,
    /// Write self-describing blocks, check those read, and read all of them back at the end
    #[arg(long)]
    pub verify: bool,
    /// Only read and check: the blocks of --log, or without it every block of the range (needs --seed)
    #[arg(long, conflicts_with_all = ["verify", "rw", "fua", "flush_every", "seconds", "ios", "bytes"])]
    pub verify_only: bool,
    /// With --verify: write the promises the server made to this file; with --verify-only: check them
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// The server's process: report its CPU time per I/O
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Count the server's system calls with perf (this slows it down; needs --pid)
    #[arg(long, requires = "pid")]
    pub syscalls: bool,
    /// Give up when the server answers nothing for this long
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub timeout: u64,
}

/// The kinds of load, by fio's names.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
// `Rw::Rw` is fio's word, too.
#[allow(missing_docs, clippy::enum_variant_names)]
pub enum Rw {
    Read,
    Write,
    Rw,
    Randread,
    Randwrite,
    Randrw,
    Trim,
    Randtrim,
    Zero,
    Randzero,
}

impl Rw {
    /// The command-line word.
    pub fn word(self) -> String {
        self.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default()
    }

    /// Whether offsets are random.
    pub fn random(self) -> bool {
        matches!(self, Rw::Randread | Rw::Randwrite | Rw::Randrw | Rw::Randtrim | Rw::Randzero)
    }

    fn kinds(self, read_percent: u8) -> (Kind, u8) {
        match self {
            Rw::Read | Rw::Randread => (Kind::Read, 100),
            Rw::Write | Rw::Randwrite => (Kind::Write, 0),
            Rw::Rw | Rw::Randrw => (Kind::Write, read_percent),
            Rw::Trim | Rw::Randtrim => (Kind::Trim, 0),
            Rw::Zero | Rw::Randzero => (Kind::Zero, 0),
        }
    }
}

/// A checked run, the same for every connection.
#[derive(Debug)]
pub struct Job {
    /// Random or sequential offsets.
    pub random: bool,
    /// The kind of those that are not reads.
    pub kind: Kind,
    /// Share of reads, percent.
    pub read_percent: u8,
    /// Bytes of an I/O.
    pub bs: u32,
    /// Requests in flight per connection.
    pub depth: usize,
    /// Connections.
    pub connections: usize,
    /// Answers to wait for before sending again.
    pub refill: usize,
    /// End by time.
    pub length: Option<Duration>,
    /// End by number of I/Os, over all connections.
    pub ios: Option<u64>,
    /// Blocks (of `bs` bytes) in use.
    pub blocks: Range<u64>,
    /// Seed of offsets and content.
    pub seed: u64,
    /// Writes carry FUA.
    pub fua: bool,
    /// Flush after so many acknowledged writes.
    pub flush_every: Option<u64>,
    /// Whether the server takes a flush.
    pub can_flush: bool,
    /// What is verified.
    pub verify: Verify,
    /// Longest silence.
    pub timeout: Duration,
}

/// What is verified.
#[derive(Debug)]
pub enum Verify {
    /// Nothing.
    No,
    /// What this run writes.
    Own,
    /// Only read: every block of the range.
    All,
    /// Only read: the promises of a log.
    Log(Promises),
}

impl Job {
    /// Checks the arguments against each other and against the export.
    pub fn new(args: &Args, export: &Export) -> Result<Job> {
        let verify = verify_of(args)?;
        let promises = if let Verify::Log(promises) = &verify { Some(promises) } else { None };
        let bs = args.bs.or(promises.map(|p| u64::from(p.bs))).unwrap_or(4096);
        ensure!((1..=BS_MAX).contains(&bs), "--bs {bs}: must be 1 to {BS_MAX} bytes");
        let bs = u32::try_from(bs)?;
        if let Some(promises) = promises {
            ensure!(promises.bs == bs, "--bs {bs}: the log was written with {}", promises.bs);
        }
        ensure!((1..=DEPTH_MAX).contains(&args.depth), "--depth {}: must be 1 to {DEPTH_MAX}", args.depth);
        ensure!(
            (1..=CONNECTIONS_MAX).contains(&args.connections),
            "--connections {}: must be 1 to {CONNECTIONS_MAX}",
            args.connections
        );
        ensure!(args.timeout > 0, "--timeout 0: must be at least 1 second");
        let blocks = blocks_of(args, export, bs)?;
        let share = (blocks.end - blocks.start) / args.connections as u64;
        ensure!(share > 0, "fewer blocks than connections: enlarge --range or take a smaller --bs");
        let (kind, read_percent) = args.rw.kinds(args.read_percent);
        if !matches!(verify, Verify::No) {
            let sector = SECTOR_BYTES;
            ensure!(
                bs.is_multiple_of(u32::try_from(sector)?),
                "--bs {bs}: verifying needs a multiple of {sector}"
            );
            ensure!(matches!(kind, Kind::Read | Kind::Write), "--verify: only with reads and writes");
            ensure!(share >= args.depth as u64, "--verify: --depth is larger than the blocks per connection");
        }
        if matches!(verify, Verify::Own) {
            ensure!(
                read_percent < 100,
                "--verify: a load that writes is needed; --verify-only checks what is there"
            );
        }
        let ios = args.ios.or(args.bytes.map(|b| b.div_ceil(u64::from(bs))));
        Job {
            random: args.rw.random(),
            kind,
            read_percent,
            bs,
            depth: args.depth,
            connections: args.connections,
            refill: args.refill.clamp(1, args.depth),
            length: length_of(args, ios)?,
            ios,
            blocks,
            seed: promises.map(|p| p.seed).or(args.seed).unwrap_or_else(seed_from_clock),
            fua: args.fua,
            flush_every: args.flush_every,
            can_flush: export.can(SEND_FLUSH),
            verify,
            timeout: Duration::from_secs(args.timeout),
        }
        .permitted_by(export)
    }

    /// Whether this run only reads back.
    pub fn only_verifies(&self) -> bool {
        matches!(self.verify, Verify::All | Verify::Log(_))
    }

    fn permitted_by(self, export: &Export) -> Result<Job> {
        if self.only_verifies() {
            return Ok(self);
        }
        let needs = |flag, what: &str| {
            ensure!(export.can(flag), "the server does not offer {what} on this export");
            Ok(())
        };
        if self.read_percent < 100 {
            ensure!(!export.can(SEND_READ_ONLY), "the export is read-only; take a load that only reads");
            match self.kind {
                Kind::Trim => needs(SEND_TRIM, "trim")?,
                Kind::Zero => needs(SEND_WRITE_ZEROES, "write zeroes")?,
                _ => {}
            }
        }
        if self.fua {
            needs(SEND_FUA, "FUA")?;
        }
        if self.flush_every.is_some() {
            needs(SEND_FLUSH, "flush")?;
        }
        Ok(self)
    }
}

fn verify_of(args: &Args) -> Result<Verify> {
    match (args.verify, args.verify_only, &args.log) {
        (true, _, _) => Ok(Verify::Own),
        (_, true, Some(log)) => Ok(Verify::Log(durable_log::read(log)?)),
        (_, true, None) => {
            ensure!(
                args.seed.is_some(),
                "--verify-only needs --log FILE, or the --seed of the run that wrote"
            );
            Ok(Verify::All)
        }
        (false, false, Some(_)) => bail!("--log needs --verify (to write it) or --verify-only (to check it)"),
        (false, false, None) => Ok(Verify::No),
    }
}

fn blocks_of(args: &Args, export: &Export, bs: u32) -> Result<Range<u64>> {
    let (start, length) = args.range.unwrap_or((0, export.bytes));
    let end = start
        .checked_add(length)
        .filter(|end| *end <= export.bytes)
        .with_context(|| format!("--range {start}+{length}: the export has only {} bytes", export.bytes))?;
    let min = export.block_min;
    ensure!(bs.is_multiple_of(min), "--bs {bs}: the server's minimum block size is {min}");
    ensure!(bs <= export.payload_max, "--bs {bs}: the server's maximum is {}", export.payload_max);
    let bs = u64::from(bs);
    ensure!(start.is_multiple_of(bs), "--range: the start {start} is not a multiple of --bs {bs}");
    ensure!(end / bs > start / bs, "--range: {length} bytes hold no block of {bs} bytes");
    Ok(start / bs..end / bs)
}

fn length_of(args: &Args, ios: Option<u64>) -> Result<Option<Duration>> {
    match (args.seconds, ios) {
        (Some(seconds), _) => {
            let length = Duration::try_from_secs_f64(seconds).ok().filter(|d| !d.is_zero());
            Ok(Some(length.with_context(|| format!("--seconds {seconds}: must be more than 0"))?))
        }
        (None, Some(_)) => Ok(None),
        (None, None) => Ok(Some(Duration::from_secs(5))),
    }
}

fn seed_from_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    mix(now.as_secs() ^ u64::from(now.subsec_nanos()).rotate_left(32) ^ u64::from(std::process::id()))
}

/// A number of bytes: `4096`, `4k`, `1M`, `2g`, `1T` (powers of 1024).
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, shift) = match lower.char_indices().last() {
        Some((at, 'k')) => (&lower[..at], 10),
        Some((at, 'm')) => (&lower[..at], 20),
        Some((at, 'g')) => (&lower[..at], 30),
        Some((at, 't')) => (&lower[..at], 40),
        _ => (lower.as_str(), 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("`{text}` is not a number of bytes such as 4096 or 4k"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is more than 64 bits hold"))
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    match text.split_once('+') {
        Some((start, length)) => Ok((parse_bytes(start)?, parse_bytes(length)?)),
        None => Ok((0, parse_bytes(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ranges_are_powers_of_1024_and_overflow_is_refused() {
        assert_eq!(parse_bytes("4k"), Ok(4096));
        assert_eq!(parse_bytes("1T"), Ok(1 << 40));
        assert_eq!(parse_range("1m+2M"), Ok((1 << 20, 2 << 20)));
        assert!(parse_bytes("99999999999999t").is_err());
        assert!(parse_bytes("k").is_err());
        assert!(parse_bytes("4\u{e9}").is_err());
    }

    fn job(line: &str) -> Result<Job> {
        let args = Args::try_parse_from(["nbdload", "unix:x"].into_iter().chain(line.split_whitespace()))?;
        let export = Export {
            bytes: 1 << 30,
            flags: SEND_FLUSH,
            structured: false,
            block_min: 512,
            payload_max: 32 << 20,
        };
        Job::new(&args, &export)
    }

    #[test]
    fn what_the_export_or_another_option_forbids_is_refused_by_name() {
        assert!(job("--depth 32 --rw randwrite").is_ok());
        for (line, word) in [
            ("--range 2g", "--range"),
            ("--bs 100", "minimum"),
            ("--bs 64m", "--bs"),
            ("--rw trim", "trim"),
            ("--rw randwrite --fua", "FUA"),
            ("--verify", "writes"),
            ("--verify-only", "--seed"),
            ("--log x", "--verify"),
            ("--depth 0", "--depth"),
            ("--seconds 0", "--seconds"),
            ("--rw write --verify --depth 8 --range 4k", "--depth"),
        ] {
            let message = format!("{:#}", job(line).expect_err(line));
            assert!(message.contains(word), "{line}: {message}");
        }
    }
}
