//! The log of writes that the server has promised to keep, for a check after a crash.
//!
//! Text, append-only. The first line names the run:
//!
//! ```text
//! nbdload-log 1 seed=SEED bs=BYTES
//! ```
//!
//! and each further line is one promise, in decimal:
//!
//! ```text
//! OFFSET GENERATION
//! ```
//!
//! "The block at byte OFFSET holds generation GENERATION or a later one, durably." (1) A line is written only after
//! the server acknowledged a flush that was sent when the write had been acknowledged, or acknowledged the write itself
//! with FUA. (2) Lines of one acknowledgement are handed to the kernel in one write. (3) A last line without its newline is
//! ignored by the reader: this program, too, may have been killed. The log survives the end of the server and of this
//! program, not of the machine it is written on: for power cuts keep it elsewhere.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};

/// Most promises read from a log.
const RECORDS_MAX: usize = 1 << 28;

/// A log being written; shared by the connections.
pub struct DurableLog {
    file: Mutex<File>,
}

impl DurableLog {
    /// Starts an empty log; one that exists is replaced.
    pub fn create(path: &Path, seed: u64, bs: u32) -> Result<Self> {
        let mut file =
            File::create(path).with_context(|| format!("{}: cannot create the log", path.display()))?;
        writeln!(file, "nbdload-log 1 seed={seed} bs={bs}")?;
        Ok(DurableLog { file: Mutex::new(file) })
    }

    /// Appends promises: (byte offset, generation).
    pub fn append(&self, promises: &[(u64, u32)]) -> Result<()> {
        let mut text = String::with_capacity(promises.len() * 20);
        for (offset, generation) in promises {
            writeln!(text, "{offset} {generation}")?;
        }
        let mut file = self.file.lock().expect("no connection panics while it appends");
        file.write_all(text.as_bytes()).context("the log cannot be written")
    }
}

/// A log read back.
#[derive(Debug, PartialEq, Eq)]
pub struct Promises {
    /// Seed of the run.
    pub seed: u64,
    /// Block size of the run in bytes.
    pub bs: u32,
    /// For each byte offset the latest generation promised.
    pub latest: HashMap<u64, u32>,
}

/// Reads a log.
pub fn read(path: &Path) -> Result<Promises> {
    let file = File::open(path).with_context(|| format!("{}: cannot open the log", path.display()))?;
    let mut lines = BufReader::new(file);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let (seed, bs) = parse_header(&line)
        .with_context(|| format!("{}: line 1 is not `nbdload-log 1 seed=SEED bs=BYTES`", path.display()))?;
    let mut latest = HashMap::new();
    for number in 2..RECORDS_MAX {
        line.clear();
        if lines.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(Promises { seed, bs, latest });
        }
        let (offset, generation) = parse_promise(&line)
            .with_context(|| format!("{}: line {number} is not `OFFSET GENERATION`", path.display()))?;
        ensure!(
            offset % u64::from(bs) == 0,
            "{}: line {number}: {offset} is not a multiple of {bs}",
            path.display()
        );
        let known: &mut u32 = latest.entry(offset).or_default();
        *known = generation.max(*known);
    }
    bail!("{}: more than {RECORDS_MAX} lines", path.display())
}

fn parse_header(line: &str) -> Option<(u64, u32)> {
    let (seed, bs) = line.strip_suffix('\n')?.strip_prefix("nbdload-log 1 seed=")?.split_once(" bs=")?;
    Some((seed.parse().ok()?, bs.parse().ok().filter(|bs| *bs > 0)?))
}

fn parse_promise(line: &str) -> Option<(u64, u32)> {
    let (offset, generation) = line.trim_end_matches('\n').split_once(' ')?;
    Some((offset.parse().ok()?, generation.parse().ok().filter(|g| *g > 0)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_back_with_the_latest_generation_and_without_its_torn_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = DurableLog::create(&path, 42, 4096).unwrap();
        log.append(&[(4096, 2), (0, 1)]).unwrap();
        log.append(&[(4096, 1), (8192, 7)]).unwrap();
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"12288 9").unwrap();
        let latest = HashMap::from([(0, 1), (4096, 2), (8192, 7)]);
        assert_eq!(read(&path).unwrap(), Promises { seed: 42, bs: 4096, latest });
    }

    #[test]
    fn a_damaged_log_is_refused_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for (text, place) in [
            ("hello\n", "line 1"),
            ("nbdload-log 1 seed=1 bs=0\n", "line 1"),
            ("nbdload-log 1 seed=1 bs=512\n0 1\nx 1\n", "line 3"),
            ("nbdload-log 1 seed=1 bs=512\n0 0\n", "line 2"),
            ("nbdload-log 1 seed=1 bs=512\n77 1\n", "line 2"),
        ] {
            std::fs::write(&path, text).unwrap();
            let message = format!("{:#}", read(&path).unwrap_err());
            assert!(message.contains(place), "{text:?}: {message}");
        }
    }
}
