//! Standard output: what a command answers, all of it or an error. Not by `println!`, which panics where the reader has gone or the disk is
//! full, also after what was asked for is done. Nor is standard error written by `eprintln!`, for the same reason: who cannot be told there cannot
//! be told anything.

use std::io::{self, BufWriter, StdoutLock, Write};

use anyhow::{Context, Result};
use serde::Serialize;

/// Says this.
pub(crate) fn print(text: &str) -> Result<()> {
    with(|out| out.write_all(text.as_bytes()))
}

/// The same of a change that was made: that must be known even where nobody can be told the rest.
pub(crate) fn print_done(text: &str) -> Result<()> {
    print(text).context("what was asked for is done, and only this cannot be told")
}

/// Says this to programs, and to people who look at what these get: indented, an item a line.
pub(crate) fn print_json(answer: &impl Serialize) -> Result<()> {
    print(&json(answer)?)
}

/// The same of a change that was made.
pub(crate) fn print_json_done(answer: &impl Serialize) -> Result<()> {
    print_done(&json(answer)?)
}

fn json(answer: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(answer)? + "\n")
}

/// Says this on standard error, if that is possible.
pub(crate) fn tell(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Says what may be long: standard output alone would write each line by itself.
pub(crate) fn with(say: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    say(&mut out).and_then(|()| out.flush()).context("standard output cannot be written to")
}
