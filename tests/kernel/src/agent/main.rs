//! What runs inside the guest: takes scripts from the host, runs them, and sends back what they say.
//!
//! `agent serve PORT` is that; `agent pattern write|verify FILE OFFSET LENGTH SEED` and `agent held FILE RESULT` are tools for scripts. It
//! has no dependencies, since the library compiles it by one call of rustc, statically: the guest's C library is another one.
#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

#[path = "../held.rs"]
mod held;
#[path = "../pattern.rs"]
mod pattern;
#[path = "../wire.rs"]
mod wire;

use wire::{Kind, read_frame, write_frame};

const BASH: &str = "/bin/bash";
const BUSYBOX: &str = "/bin/busybox";
const SCRIPT: &str = "/run/script";
const INPUTS: &str = "/in";
const RESULTS: &str = "/out";

type Port = Arc<Mutex<File>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["serve", port] => serve(port),
        ["pattern", what, file, offset, length, seed] => on_pattern(what, file, [offset, length, seed]),
        ["held", file, result] => on_held(file, result),
        _ => Err(io::Error::other(
            "usage: agent serve PORT | agent pattern write|verify FILE OFFSET LENGTH SEED | agent held FILE RESULT",
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agent: {}: {error}", args.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn on_pattern(what: &str, file: &str, numbers: [&str; 3]) -> io::Result<()> {
    let mut parsed = [0; 3];
    for (text, number) in numbers.iter().zip(&mut parsed) {
        let read = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        *number = read.map_err(|error| io::Error::other(format!("`{text}`: {error}")))?;
    }
    let [offset, length, seed] = parsed;
    match what {
        "write" => pattern::write(&OpenOptions::new().write(true).open(file)?, offset, length, seed),
        "verify" => pattern::verify(&File::open(file)?, offset, length, seed),
        _ => Err(io::Error::other("`write` or `verify`")),
    }
}

fn on_held(file: &str, result: &str) -> io::Result<()> {
    let numbers = held::of(&File::open(file)?)?;
    fs::write(result, numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
}

/// Until the host hangs up.
fn serve(port: &str) -> io::Result<()> {
    let mut from_host = OpenOptions::new().read(true).write(true).open(port)?;
    let to_host = Arc::new(Mutex::new(from_host.try_clone()?));
    let release = fs::read("/proc/sys/kernel/osrelease")?;
    send(&to_host, Kind::Ready, release.trim_ascii())?;
    let mut running = None;
    loop {
        let (kind, payload) = match read_frame(&mut from_host) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        match kind {
            Kind::Input => {
                let (name, contents) = split_name(&payload);
                fs::write(Path::new(INPUTS).join(name), contents)?;
            }
            Kind::Script => running = Some(start(&to_host, &payload)?),
            Kind::Kill => {
                if let Some(group) = running {
                    kill_group(group);
                }
            }
            other => return Err(io::Error::other(format!("unexpected frame {other:?}"))),
        }
    }
}

fn send(port: &Port, kind: Kind, payload: &[u8]) -> io::Result<()> {
    write_frame(&mut *port.lock().unwrap_or_else(PoisonError::into_inner), kind, payload)
}

fn split_name(payload: &[u8]) -> (String, &[u8]) {
    let end = payload.iter().position(|byte| *byte == 0).unwrap_or(payload.len());
    let contents = payload.get(end + 1..).unwrap_or_default();
    (String::from_utf8_lossy(&payload[..end]).into_owned(), contents)
}

/// Starts a script in a process group of its own, whose number it returns.
fn start(port: &Port, script: &[u8]) -> io::Result<u32> {
    fs::write(SCRIPT, script)?;
    let child = Command::new(BASH)
        .arg(SCRIPT)
        .current_dir("/tmp")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let group = child.id();
    let port = Arc::clone(port);
    thread::spawn(move || {
        // The host learns of a failure from the missing exit status.
        if let Err(error) = finish(&port, child) {
            eprintln!("agent: the script's end: {error}");
        }
    });
    Ok(group)
}

fn finish(port: &Port, mut child: Child) -> io::Result<()> {
    let stdout = child.stdout.take().map(|pipe| forward(port, Kind::Stdout, pipe));
    let stderr = child.stderr.take().map(|pipe| forward(port, Kind::Stderr, pipe));
    let status = child.wait()?;
    // What the script left in the background holds the pipes.
    kill_group(child.id());
    for copy in [stdout, stderr].into_iter().flatten() {
        copy.join().map_err(|_| io::Error::other("a copying thread panicked"))??;
    }
    send_results(port, Path::new(RESULTS))?;
    for folder in [INPUTS, RESULTS] {
        empty(Path::new(folder))?;
    }
    send(port, Kind::Exit, exit_code(status).to_string().as_bytes())
}

/// As a shell counts.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

fn kill_group(group: u32) {
    // That none of it is left is as good.
    let _ =
        Command::new(BUSYBOX).args(["kill", "-KILL", &format!("-{group}")]).stderr(Stdio::null()).status();
}

fn forward(port: &Port, kind: Kind, mut pipe: impl Read + Send + 'static) -> JoinHandle<io::Result<()>> {
    let port = Arc::clone(port);
    thread::spawn(move || {
        let mut piece = vec![0; 64 << 10];
        loop {
            let nr = pipe.read(&mut piece)?;
            if nr == 0 {
                return Ok(());
            }
            send(&port, kind, &piece[..nr])?;
        }
    })
}

fn send_results(port: &Port, folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            send_results(port, &path)?;
        } else if kind.is_file() {
            let name = path.strip_prefix(RESULTS).unwrap_or(&path);
            let mut payload = name.to_string_lossy().into_owned().into_bytes();
            payload.push(0);
            payload.extend(fs::read(&path)?);
            send(port, Kind::Result, &payload)?;
        }
    }
    Ok(())
}

fn empty(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?
        } else {
            fs::remove_file(entry.path())?
        }
    }
    Ok(())
}
