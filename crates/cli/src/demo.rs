//! `blockwork demo`: the whole thing on four sparse files in a temporary folder.
//!
//! It starts a real server (this very program) on a striped volume over the four, writes and verifies data as an NBD
//! client would, traces some of it, reads it back through the kernel where FUSE is to be had, lets `nbdinfo` speak where
//! that is installed, and shows what each layer did to the I/O. It fails if anything does not verify.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use blockwork_insight::report::Report;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::args::DemoArgs;
use crate::nbd_client::{NbdClient, Transfer};
use crate::scan::size;

const DISKS: u64 = 4;
const DISK_BYTES: u64 = 1 << 30;
/// Chunk of the striped volume: 64 KiB.
const CHUNK_SECTORS: u64 = 128;
/// What the client writes and reads, in pieces of 4 KiB.
const DATA_BYTES: u64 = 64 << 20;
const PIECE: u64 = 4096;
/// How long the server may take to come up or down.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the demo found, for `--json`.
#[derive(Debug, Serialize)]
struct Outcome {
    write_seconds: f64,
    read_seconds: f64,
    client_requests: u64,
    disk_writes: u64,
    disk_reads: u64,
    fuse: bool,
}

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("blockwork-demo-").tempdir()?;
    let demo = Demo { folder: folder.path().to_owned(), quiet: args.json };
    let result = demo.run();
    if args.keep {
        let path = folder.keep();
        eprintln!("kept: {}", path.display());
    }
    let outcome = result?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    }
    Ok(())
}

struct Demo {
    folder: PathBuf,
    quiet: bool,
}

impl Demo {
    fn run(&self) -> Result<Outcome> {
        self.say("# Four sparse files, striped in chunks of 64 KiB");
        let table = self.make_disks()?;
        self.show("blockwork", &["scan", "--table", &table.display().to_string()])?;

        let (mut server, fuse) = self.start(&table)?;
        let socket = self.folder.join("demo.sock");
        self.outside_clients(&socket);

        self.say(&format!(
            "\n# An NBD client writes {} in pieces of 4 KiB, flushes, and reads them back",
            size(DATA_BYTES)
        ));
        let mut client = NbdClient::connect(&socket, "")?;
        ensure!(client.size == DISKS * DISK_BYTES, "the volume has {} bytes", client.size);
        let write_seconds = self.write(&mut client)?;
        let read_seconds = self.read(&mut client)?;
        if fuse {
            self.read_by_kernel()?;
        }
        self.trace(&mut client)?;
        drop(client);

        let report = server.stop()?;
        let leaves = || report.nodes.iter().filter(|node| node.kind == "leaf");
        let sum = |counter: &str| leaves().filter_map(|node| node.counters.get(counter)).sum::<u64>();
        let outcome = Outcome {
            write_seconds,
            read_seconds,
            client_requests: 2 * DATA_BYTES / PIECE,
            disk_writes: sum("writes"),
            disk_reads: sum("reads"),
            fuse,
        };
        self.say("\n# What each layer did");
        self.say(&server.table);
        self.say(&format!(
            "{} requests of 4 KiB came from the client; the four disks saw {} writes and {} reads.\nEverything verified.",
            outcome.client_requests, outcome.disk_writes, outcome.disk_reads
        ));
        Ok(outcome)
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            println!("{text}");
        }
    }

    /// The disks, and the table that makes them one volume. Returns the table's path.
    fn make_disks(&self) -> Result<PathBuf> {
        let mut line = format!("demo: 0 {} striped {DISKS} {CHUNK_SECTORS}", DISKS * DISK_BYTES / 512);
        for i in 0..DISKS {
            let path = self.folder.join(format!("disk{i}.img"));
            File::create(&path)?.set_len(DISK_BYTES)?;
            line += &format!(" {} 0", path.display());
        }
        let table = self.folder.join("demo.table");
        std::fs::write(&table, line + "\n")?;
        Ok(table)
    }

    /// Starts a server on the table, with FUSE where that is possible; tells whether it is.
    fn start(&self, table: &Path) -> Result<(ServerProcess, bool)> {
        let mut options = vec!["serve".to_owned(), "--table".to_owned(), table.display().to_string()];
        options.extend(["--nbd".to_owned(), format!("unix:{}", self.folder.join("demo.sock").display())]);
        options.extend(["--stats".to_owned(), "--json".to_owned()]);
        let mut with_fuse = options.clone();
        with_fuse.extend(["--fuse".to_owned(), self.folder.join("demo.img").display().to_string()]);
        self.say(&format!("\n$ blockwork {}", with_fuse.join(" ")));
        match ServerProcess::start(&self.folder, &with_fuse) {
            Ok(server) => {
                self.say(&server.ready);
                Ok((server, true))
            }
            Err(error) => {
                self.say(&format!("(without FUSE here: {error:#})"));
                let server = ServerProcess::start(&self.folder, &options)?;
                self.say(&server.ready);
                Ok((server, false))
            }
        }
    }

    /// Other people's clients, where they are installed.
    fn outside_clients(&self, socket: &Path) {
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        if let Ok(output) = Command::new("nbdinfo").arg(&uri).output()
            && output.status.success()
        {
            self.say(&format!("\n$ nbdinfo '{uri}'\n{}", String::from_utf8_lossy(&output.stdout).trim_end()));
        }
    }

    fn write(&self, client: &mut NbdClient) -> Result<f64> {
        let mut transfers: Vec<_> =
            offsets().map(|offset| Transfer { offset, data: pattern(offset) }).collect();
        let start = Instant::now();
        client.write(&mut transfers)?;
        client.flush()?;
        Ok(self.timed("written and flushed", start))
    }

    fn read(&self, client: &mut NbdClient) -> Result<f64> {
        let mut transfers: Vec<_> =
            offsets().map(|offset| Transfer { offset, data: vec![0; PIECE as usize] }).collect();
        let start = Instant::now();
        client.read(&mut transfers)?;
        let seconds = self.timed("read", start);
        for transfer in &transfers {
            ensure!(
                transfer.data == pattern(transfer.offset),
                "byte {}: other data came back",
                transfer.offset
            );
        }
        Ok(seconds)
    }

    fn timed(&self, what: &str, start: Instant) -> f64 {
        let seconds = start.elapsed().as_secs_f64();
        self.say(&format!(
            "{what} in {seconds:.3} s ({:.0} MiB/s)",
            DATA_BYTES as f64 / seconds / f64::from(1 << 20)
        ));
        seconds
    }

    /// The same data, as a file that the kernel serves.
    fn read_by_kernel(&self) -> Result<()> {
        let path = self.folder.join("demo.img");
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        let mut data = vec![0; PIECE as usize];
        for offset in offsets() {
            file.read_exact_at(&mut data, offset)?;
            ensure!(data == pattern(offset), "byte {offset}: other data came back through FUSE");
        }
        self.say(&format!("read once more as the file {} (FUSE): the same", path.display()));
        Ok(())
    }

    /// Sixteen contiguous reads under a trace.
    fn trace(&self, client: &mut NbdClient) -> Result<()> {
        self.say("\n$ blockwork trace dm/demo        (while the client reads 16 x 4 KiB)");
        let mut trace = own_command(&self.folder)?
            .args(["trace", "dm/demo"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        // It says on stderr that it listens.
        let mut said = String::new();
        BufReader::new(trace.stderr.take().context("stderr is piped")?).read_line(&mut said)?;
        ensure!(said.starts_with("tracing"), "the trace did not start: {said}");
        let mut lines = BufReader::new(trace.stdout.take().context("stdout is piped")?).lines();
        let mut text = String::new();
        let mut completed = 0;
        while completed < 16 {
            let base = DATA_BYTES + (1 << 20);
            let mut transfers: Vec<_> = (0..16)
                .map(|i| Transfer { offset: base + i * PIECE, data: vec![0; PIECE as usize] })
                .collect();
            client.read(&mut transfers)?;
            // The first lines may be notes; each of the reads ends in a completion on the volume.
            while completed < 16 {
                let line = lines.next().context("the trace ended early")??;
                completed += usize::from(line.contains("  C  "));
                text += &line;
                text.push('\n');
            }
        }
        trace.kill()?;
        trace.wait()?;
        self.say(&excerpt(&text));
        Ok(())
    }

    fn show(&self, name: &str, arguments: &[&str]) -> Result<()> {
        self.say(&format!("\n$ {name} {}", arguments.join(" ")));
        let output = own_command(&self.folder)?.args(arguments).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.say(String::from_utf8_lossy(&output.stdout).trim_end());
        Ok(())
    }
}

/// Two lines of each action (Q A G M D C ...), in order: how the pieces came, were merged, and went.
fn excerpt(text: &str) -> String {
    let mut seen: Vec<(&str, usize)> = Vec::new();
    let mut shown = Vec::new();
    for line in text.lines() {
        let Some(action) = line.split_whitespace().nth(5) else { continue };
        let count = match seen.iter_mut().find(|(letter, _)| *letter == action) {
            Some((_, count)) => count,
            None => {
                seen.push((action, 0));
                &mut seen.last_mut().expect("one was pushed").1
            }
        };
        *count += 1;
        if *count <= 2 {
            shown.push(line);
        }
    }
    let rest = text.lines().count() - shown.len();
    format!("{}\n... and {rest} more lines", shown.join("\n"))
}

/// Every piece of the data, in order.
fn offsets() -> impl Iterator<Item = u64> {
    (0..DATA_BYTES / PIECE).map(|i| i * PIECE)
}

/// What stands at `offset`: it tells its own place.
fn pattern(offset: u64) -> Vec<u8> {
    (0..PIECE / 8).flat_map(|i| (offset + i * 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

fn own_command(folder: &Path) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    // Its control socket lies among the demo's own files: nothing else on this machine is touched.
    command.env("BLOCKWORK_RUN_DIR", folder.join("run"));
    Ok(command)
}

/// A server that ends with this value.
struct ServerProcess {
    child: Child,
    ready: String,
    table: String,
}

impl ServerProcess {
    fn start(folder: &Path, arguments: &[String]) -> Result<ServerProcess> {
        let mut child = own_command(folder)?
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting the server")?;
        let mut ready = String::new();
        BufReader::new(child.stdout.take().context("stdout is piped")?).read_line(&mut ready)?;
        let mut server = ServerProcess { child, ready: ready.trim_end().to_owned(), table: String::new() };
        if server.ready.is_empty() {
            let mut said = String::new();
            server.child.stderr.take().context("stderr is piped")?.read_to_string(&mut said)?;
            bail!("{}", said.trim_end());
        }
        Ok(server)
    }

    /// SIGTERM, as a service manager would; gives the statistics that it prints at its end.
    fn stop(&mut self) -> Result<Report> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let mut said = String::new();
        self.child.stderr.take().context("stderr is piped")?.read_to_string(&mut said)?;
        let start = Instant::now();
        let status = self.child.wait()?;
        ensure!(start.elapsed() < PATIENCE, "the server took {:?} to end", start.elapsed());
        ensure!(status.success(), "the server failed: {said}");
        let json = said.find('{').context("the server printed no statistics")?;
        let report: Report = serde_json::from_str(&said[json..])?;
        self.table = summary(&report);
        Ok(report)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Harmless where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line a node: what came in, what went out, what was done to it.
fn summary(report: &Report) -> String {
    let shown =
        ["in", "out", "merged_back", "merged_front", "split_chunk", "read_ahead_hit", "bounced", "errors"];
    let mut text = format!("{:28}", "");
    shown.iter().for_each(|counter| text += &format!("{counter:>15}"));
    for node in &report.nodes {
        let name =
            Path::new(&node.name).file_name().map_or(node.name.clone(), |name| name.to_string_lossy().into());
        text += &format!("\n{:28}", format!("{} {name}", node.kind));
        shown
            .iter()
            .for_each(|counter| text += &format!("{:>15}", node.counters.get(*counter).unwrap_or(&0)));
    }
    text
}
