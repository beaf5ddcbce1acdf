//! The `blockwork` command: one verb a file. It reads the command line, calls the crates below, and puts what they say
//! into words; it knows no format, no protocol and no I/O of its own.
//!
//! Exit codes: 0 success, 1 failure (with one line on stderr that says what to do), 2 wrong usage.
#![forbid(unsafe_code)]

mod args;
mod at_once;
mod completion;
mod demo;
mod export;
mod habits;
mod lv;
mod man;
mod md;
mod message;
mod nbd_client;
mod out;
mod reproduce;
mod scan;
mod serve;
mod signals;
mod sizes;
mod status;
mod trace;
mod usage;
mod vg;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use args::Verb;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};
use signal_hook::consts::SIGXFSZ;

/// As clap has it.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = habits::parse();
    start_log();
    heed_no_limit_by_dying();
    take_all_descriptors();
    keep_rights_of_owner();
    let result = match cli.verb {
        Verb::Scan(args) => scan::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Trace(args) => trace::run(&args),
        Verb::Export(args) => export::run(&args),
        Verb::Md(args) => md::run(&args),
        Verb::Vg(args) => vg::run(&args),
        Verb::Lv(args) => lv::run(&args),
        Verb::Message(args) => message::run(&args),
        Verb::Reproduce(args) => reproduce::run(&args),
        Verb::Demo(args) => demo::run(&args),
        Verb::Completion(args) => completion::run(&args),
        Verb::Man(args) => man::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // `blockwork scan | head`: the reader has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::tell(&format!("blockwork: error: {}\n", said(&error)));
            if usage::is_wrong(&error) { ExitCode::from(WRONG_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// A write behind the limit of a file's size (ulimit -f) is an error for who has asked for it, and no reason to end a server in the midst of all others.
fn heed_no_limit_by_dying() {
    if let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::default()) {
        log::warn!("a write behind the limit of a file's size will end this process: {error}");
    }
}

/// Every client, disk and guest takes some of the files that a process may have open: the soft limit, of 1,024 mostly, is for programs that use
/// select(2), and each may raise it to the hard one.
fn take_all_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        log::warn!(
            "no more than {} files can be open at once (ulimit -n): {errno}",
            current.unwrap_or(u64::MAX)
        );
    }
}

/// A umask that takes rights from the owner of what is made, too, would have sockets and folders made that nobody can use.
fn keep_rights_of_owner() {
    let asked = umask(Mode::RWXU | Mode::RWXG | Mode::RWXO);
    umask(asked - Mode::RWXU);
}

/// An error and its causes in one line. Many of our errors quote their cause where it belongs in the sentence: such a
/// cause is not said again at the end.
fn said(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    };
    error.chain().any(io)
}

/// Messages of the crates below go to stderr, in one form; `RUST_LOG` says how many (default: warnings).
fn start_log() {
    let environment = env_logger::Env::default().default_filter_or("warn");
    let mut builder = env_logger::Builder::from_env(environment);
    builder.format(|out, record| {
        let level = match record.level() {
            log::Level::Error => "error",
            log::Level::Warn => "warning",
            log::Level::Info => "info",
            log::Level::Debug => "debug",
            log::Level::Trace => "trace",
        };
        writeln!(out, "blockwork: {level}: {}", record.args())
    });
    builder.init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_is_quoted_is_not_said_twice() {
        let cause = || std::io::Error::other("no medium");
        let quoted = anyhow::Error::new(cause()).context("disk.img: no medium; insert one");
        assert_eq!(said(&quoted), "disk.img: no medium; insert one");
        assert_eq!(said(&anyhow::Error::new(cause()).context("disk.img")), "disk.img: no medium");
    }
}
