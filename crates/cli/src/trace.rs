//! `blockwork trace`: live events of a volume that is being served, as text, JSON or blktrace files.

use std::io::{Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blockwork_daemon::{ServerInfo, find_volume, stream, trace_path};
use blockwork_format::blktrace::{Formatter, Record};
use blockwork_format::escape;
use blockwork_insight::trace::{RecordStream, TraceFiles};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::TraceArgs;
use crate::out;
use crate::usage::bail_usage;

/// Longest piece of the stream that is read at once, bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces that have been read and wait to be printed. Where printing stops, in a pager, reading does too: the server then drops
/// what does not fit, and says so, and our memory does not grow.
const PIECES_MAX: usize = 8;

/// What ends or feeds a trace.
enum News {
    Bytes(Vec<u8>),
    /// The server has closed the stream.
    End,
    /// ^C.
    Stop,
    Broken(std::io::Error),
}

pub(crate) fn run(args: &TraceArgs) -> Result<()> {
    if let Some(path) = &args.output
        && path.extension().is_some_and(|extension| extension == "parquet")
    {
        bail_usage!(
            "{}: Parquet is not written yet; use -o NAME for blktrace files, or --json",
            path.display()
        );
    }
    let server = find_volume(&args.volume)?;
    if let Some(why) = &server.status.away {
        let (volume, pid) = (escape(&args.volume), server.pid);
        bail!("{volume}: there is nothing to trace: the disks of server {pid} are not open: {}", escape(why));
    }
    let text = args.output.is_none() && !args.json;
    let news = listen(&server, &trace_path(&args.volume, text))?;
    let deadline = args.stopwatch.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let mut next = Next { news, deadline };
    match &args.output {
        Some(base) => {
            let mut files = TraceFiles::create(base)?;
            // Says that the trace is on: whoever starts a load after it misses nothing.
            out::tell(&format!("tracing {} to {}.blktrace.*; ^C ends\n", args.volume, base.display()));
            while let Some(bytes) = next.bytes()? {
                files.push(&bytes).context("writing the trace")?;
            }
            out::tell(&format!(
                "{} events; show them with: blkparse -i {}\n",
                files.records(),
                base.display()
            ));
        }
        None if args.json => {
            out::tell(&format!("tracing {}; ^C ends\n", args.volume));
            json(&mut next)?;
        }
        None => {
            out::tell(&format!("tracing {}; ^C ends\n", args.volume));
            while let Some(bytes) = next.bytes()? {
                out::with(|out| out.write_all(&bytes))?;
            }
        }
    }
    Ok(())
}

/// How long what has happened before ^C may take to come here: events come in batches, by way of the server.
const ON_ITS_WAY: Duration = Duration::from_millis(300);

struct Next {
    news: Receiver<News>,
    deadline: Option<Instant>,
}

impl Next {
    /// The next bytes of the stream; `None` at its end, however that comes.
    fn bytes(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let news = match self.deadline {
                None => self.news.recv().map_err(|_| RecvTimeoutError::Disconnected),
                // What is left may be without end, if it comes faster than it is printed.
                Some(at) if at <= Instant::now() => return Ok(None),
                Some(at) => self.news.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match news {
                Ok(News::Bytes(bytes)) => return Ok(Some(bytes)),
                Ok(News::Stop) => {
                    let at = Instant::now() + ON_ITS_WAY;
                    self.deadline = Some(self.deadline.map_or(at, |deadline| deadline.min(at)));
                }
                Ok(News::End) | Err(_) => return Ok(None),
                Ok(News::Broken(error)) => return Err(error).context("the server ended the trace"),
            }
        }
    }
}

/// Reads the stream, and signals, each in a thread of its own.
fn listen(server: &ServerInfo, path: &str) -> Result<Receiver<News>> {
    let (send, receive) = mpsc::sync_channel(PIECES_MAX);
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let stop = send.clone();
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            // Nobody listens any more: the trace has ended by itself.
            let _ = stop.send(News::Stop);
        }
    });
    let mut stream = stream(&server.socket, path)?;
    thread::spawn(move || {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let news = match stream.read(&mut buffer) {
                Ok(0) => News::End,
                Ok(len) => News::Bytes(buffer[..len].to_vec()),
                Err(error) => News::Broken(error),
            };
            let last = !matches!(news, News::Bytes(_));
            if send.send(news).is_err() || last {
                return;
            }
        }
    });
    Ok(receive)
}

fn json(next: &mut Next) -> Result<()> {
    let mut records = RecordStream::new();
    let mut formatter = Formatter::new();
    while let Some(bytes) = next.bytes()? {
        let mut lines = String::new();
        records.push(&bytes, |record, _| lines.push_str(&event(&mut formatter, record)))?;
        out::print(&lines)?;
    }
    Ok(())
}

/// One event as JSON: the numbers of its record, and the line that blkparse would print. Nothing for a record that makes no
/// line: it only names a process, or the trace's beginning.
fn event(formatter: &mut Formatter, record: &Record<'_>) -> String {
    let mut line = String::new();
    formatter.line(record, &mut line);
    if line.is_empty() {
        return line;
    }
    let value = serde_json::json!({
        "time_ns": record.time_ns,
        "worker": record.cpu,
        "sequence": record.sequence,
        "device": format!("{}:{}", record.device.major(), record.device.minor()),
        "sector": record.sector,
        "bytes": record.bytes,
        "error": record.error,
        "text": line.trim_end(),
    });
    format!("{value}\n")
}
