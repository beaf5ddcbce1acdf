//! `serve --log-writes`: everything that alters a leaf, in dm-log-writes' format, in the order in which it became durable.
//!
//! Anybody's `replay-log` can then put a disk into each state that a power cut may have left behind, and judge: at every
//! FLUSH and FUA entry, what a client was promised must be there.
//!
//! Order, as in the kernel's dm-log-writes:
//! - A write that has completed is only *remembered*. A flush takes along what completed before it was started; when it
//!   has completed, those writes are logged, and behind them an entry FLUSH.
//! - A FUA write is logged when it completes, with the flag FUA.
//! - A discard is logged as one, without data: afterwards its range is not worth anything. A write-zeroes is logged as
//!   writes of zeros ([`ZEROES_ENTRY_BYTES_MAX`] each), because its range *is* zero; they are holes in the log's file.
//! - At the end come the writes that no flush covered, then the mark `dm-log-writes-end`.
//!
//! Two places where the kernel's target would log an older write of a sector behind a newer one, and so get its last
//! content wrong, are mended: a flush that overtakes an earlier one logs the earlier one's writes too (it covers them), and
//! a FUA write that overlaps remembered writes is logged behind them, and behind all that were remembered before.
//! Both are states that a power cut may leave: a device may store any completed write at any time.
//!
//! Invariants:
//! 1. For every sector, entries are in the order in which their writes completed.
//! 2. An entry FLUSH or FUA is counted only when all before it, and itself, are in the file: the number in the superblock
//!    is written after them. What a killed server leaves behind is a whole log up to its last flush or FUA write. (The
//!    log itself is not synced: it outlives the server, not the machine.)
//! 3. Remembered data takes at most [`MEMORY_BYTES_MAX`] of memory for each leaf; more goes to an unnamed file beside
//!    the log until the next flush.
//! 4. When the log cannot be written (disk full), it ends there, with a line in the program's log; I/O goes on, and
//!    [`LogWrites::close`] returns the error.
//!
//! 5. What is there before is replaced only if it is an old log, or empty, and no other server's: a disk that is named by mistake is left as
//!    it is, and of several files all or none are replaced.
//!
//! Units of the log are 512 bytes whatever the leaf's block size is. Calls block on writing the log: a server that logs
//! is a slow one.

mod spill;

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use blockwork_engine::{Flags, LeafId, Op, Sector, Sectors, WriteTap};
use blockwork_format::log_writes::{Flags as EntryFlags, Placed, Superblock, Writer};
use blockwork_format::{FormatError, escape};
use blockwork_memory::Segment;

use spill::{Data, Spill};

/// Remembered data of a leaf that is kept in memory, bytes.
pub const MEMORY_BYTES_MAX: u64 = 256 << 20;

/// Longest entry that stands for zeros, bytes: who replays keeps an entry in memory.
pub const ZEROES_ENTRY_BYTES_MAX: u64 = 16 << 20;

/// The kernel's name for the end.
const END_MARK: &str = "dm-log-writes-end";

const UNIT: u32 = 512;

/// Why a log could not be made, or is not whole.
#[derive(Debug, thiserror::Error)]
pub enum LogWritesError {
    /// The file could not be made or written.
    #[error("{path}: the log of writes cannot be written: {source}")]
    File {
        /// The log, escaped.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// What is there is not to be replaced.
    #[error("{path}: there is something that is no log of writes: name another file, or remove it")]
    NoLog {
        /// The file, escaped.
        path: String,
    },
    /// Another server writes there.
    #[error("{path}: another server logs its writes there: name another file")]
    InUse {
        /// The file, escaped.
        path: String,
    },
    /// The format does not allow it.
    #[error("{path}: {source}")]
    Format {
        /// The log, escaped.
        path: String,
        /// What is wrong.
        source: Box<FormatError>,
    },
}

/// Logs of all leaves of a server. See the module's head.
pub struct LogWrites {
    leaves: HashMap<LeafId, Mutex<LeafLog>>,
}

impl LogWrites {
    /// Makes a log for each leaf (its number, its name, its size): `base` itself where there is one leaf, else `base.0`,
    /// `base.1` and so on, in the order of `leaves`. Old logs in those files are gone.
    ///
    /// # Errors
    ///
    /// A file cannot be made, or holds something else.
    pub fn create(base: &Path, leaves: &[(LeafId, String, Sectors)]) -> Result<LogWrites, LogWritesError> {
        let mut files = Vec::with_capacity(leaves.len());
        for i in 0..leaves.len() {
            let mut path = base.as_os_str().to_owned();
            if leaves.len() > 1 {
                path.push(format!(".{i}"));
            }
            let path = PathBuf::from(path);
            files.push((open(&path)?, path));
        }
        let mut logs = HashMap::new();
        for ((leaf, name, sectors), (file, path)) in leaves.iter().zip(files) {
            log::info!("{}: logs the writes to {}", path.display(), escape(name));
            logs.insert(*leaf, Mutex::new(LeafLog::create(file, path, *sectors, MEMORY_BYTES_MAX)?));
        }
        Ok(LogWrites { leaves: logs })
    }

    /// The files, by leaf.
    pub fn paths(&self) -> Vec<(LeafId, PathBuf)> {
        let mut paths: Vec<_> =
            self.leaves.iter().map(|(leaf, log)| (*leaf, lock(log).path.clone())).collect();
        paths.sort();
        paths
    }

    /// Sets a mark in all logs: a point that a replay can be told to stop at. What is only remembered stays so.
    pub fn mark(&self, text: &str) {
        self.leaves.values().for_each(|log| lock(log).attempt(|log| log.mark(text)));
    }

    /// Ends all logs: logs what no flush covered, and the mark at the end. Call it when all workers have ended.
    ///
    /// # Errors
    ///
    /// The first that any log met in its life; that log is whole up to there.
    pub fn close(&self) -> Result<(), LogWritesError> {
        let mut result = Ok(());
        for log in self.leaves.values() {
            let mut log = lock(log);
            log.attempt(LeafLog::end);
            if let Some(error) = log.failure.take() {
                result = result.and(Err(error));
            }
        }
        result
    }

    fn with(&self, leaf: LeafId, act: impl FnOnce(&mut LeafLog) -> Result<(), Failure>) {
        // A leaf that nobody asked to log is not logged.
        if let Some(log) = self.leaves.get(&leaf) {
            lock(log).attempt(act);
        }
    }
}

impl WriteTap for LogWrites {
    fn altered(&self, leaf: LeafId, op: Op, flags: Flags, sector: Sector, nr: Sectors, data: &[Segment]) {
        self.with(leaf, |log| log.altered(op, flags, sector, nr, data));
    }

    fn flush_started(&self, leaf: LeafId) -> u64 {
        self.leaves.get(&leaf).map_or(0, |log| lock(log).newest)
    }

    fn flushed(&self, leaf: LeafId, ticket: u64) {
        self.with(leaf, |log| log.flushed(ticket));
    }
}

fn lock(log: &Mutex<LeafLog>) -> MutexGuard<'_, LeafLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file of a log, as it is.
fn open(path: &Path) -> Result<File, LogWritesError> {
    let shown = || escape(&path.to_string_lossy());
    let failed = |source| LogWritesError::File { path: shown(), source };
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(LogWritesError::InUse { path: shown() }),
        // A file system without locks.
        Err(TryLockError::Error(error)) => log::info!("{}: it cannot be locked: {error}", path.display()),
    }
    let there = file.metadata().map_err(failed)?;
    let mut head = [0; 28];
    let mut is_log = || file.read_exact_at(&mut head, 0).is_ok() && Superblock::decode(&head).is_ok();
    if there.is_file() && (there.len() == 0 || is_log()) {
        return Ok(file);
    }
    Err(LogWritesError::NoLog { path: shown() })
}

/// A write that has completed and is not logged.
struct Remembered {
    /// Counts completions from 1: a flush's ticket is the number of the last one that it covers.
    number: u64,
    flags: EntryFlags,
    sectors: Range<u64>,
    data: Data,
}

enum Failure {
    File(io::Error),
    Format(Box<FormatError>),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::File(error)
    }
}
impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Failure {
        Failure::Format(error.into())
    }
}

/// One leaf's log.
struct LeafLog {
    path: PathBuf,
    file: File,
    writer: Writer,
    /// Size of the leaf: nothing that is logged lies beyond.
    size: Sectors,
    /// In the order of their completion, which is that of their numbers.
    remembered: VecDeque<Remembered>,
    newest: u64,
    spill: Spill,
    /// Once it is set, nothing is logged any more.
    failed: bool,
    failure: Option<LogWritesError>,
}

impl LeafLog {
    fn create(file: File, path: PathBuf, size: Sectors, memory_max: u64) -> Result<LeafLog, LogWritesError> {
        let shown = || escape(&path.to_string_lossy());
        let writer = Writer::new(UNIT)
            .map_err(|source| LogWritesError::Format { path: shown(), source: source.into() })?;
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let spill = Spill::new(folder.unwrap_or(Path::new(".")).to_owned(), memory_max);
        let begun = file.set_len(0).and_then(|()| file.write_all_at(&writer.superblock().encode(), 0));
        begun.map_err(|source| LogWritesError::File { path: shown(), source })?;
        let remembered = VecDeque::new();
        Ok(LeafLog { path, file, writer, size, remembered, newest: 0, spill, failed: false, failure: None })
    }

    /// Does `act` unless the log has ended by a failure before.
    fn attempt(&mut self, act: impl FnOnce(&mut LeafLog) -> Result<(), Failure>) {
        if self.failed {
            return;
        }
        let Err(failure) = act(self) else { return };
        let path = escape(&self.path.to_string_lossy());
        let error = match failure {
            Failure::File(source) => LogWritesError::File { path, source },
            Failure::Format(source) => LogWritesError::Format { path, source },
        };
        log::error!("{error}. The log ends here; what it holds so far can be replayed.");
        self.failed = true;
        self.failure = Some(error);
        self.remembered.clear();
        self.spill.clear();
    }

    fn altered(
        &mut self,
        op: Op,
        flags: Flags,
        sector: Sector,
        nr: Sectors,
        data: &[Segment],
    ) -> Result<(), Failure> {
        assert!(op.is_write(), "{op:?} alters nothing");
        assert!(sector.0 + nr.0 <= self.size.0, "{nr} sectors at {sector} of a leaf of {}", self.size);
        let durable = flags.has(Flags::FUA);
        let mut entry_flags = if durable { EntryFlags::FUA } else { EntryFlags::default() };
        let data = match op {
            Op::Discard => {
                entry_flags = entry_flags | EntryFlags::DISCARD;
                Data::None
            }
            Op::Write => self.spill.keep(data)?,
            _ => Data::Zeroes,
        };
        self.newest += 1;
        let sectors = sector.0..sector.0 + nr.0;
        let write = Remembered { number: self.newest, flags: entry_flags, sectors, data };
        if !durable {
            self.remembered.push_back(write);
            return Ok(());
        }
        let overlaps = |other: &Remembered| {
            other.sectors.start < write.sectors.end && write.sectors.start < other.sectors.end
        };
        let before = self.remembered.iter().rposition(overlaps).map_or(0, |last| last + 1);
        self.log_oldest(before)?;
        self.log_one(&write)?;
        self.spill.forget(write.data);
        self.count()
    }

    fn flushed(&mut self, ticket: u64) -> Result<(), Failure> {
        let covered = self.remembered.partition_point(|write| write.number <= ticket);
        self.log_oldest(covered)?;
        let placed = self.writer.entry(EntryFlags::FLUSH, 0, 0)?;
        self.put(&placed)?;
        self.count()
    }

    fn mark(&mut self, text: &str) -> Result<(), Failure> {
        let placed = self.writer.mark(text)?;
        self.put(&placed)?;
        self.count()
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.log_oldest(self.remembered.len())?;
        self.mark(END_MARK)
    }

    fn log_oldest(&mut self, count: usize) -> Result<(), Failure> {
        for _ in 0..count {
            let write = self.remembered.pop_front().expect("there are at least `count`");
            self.log_one(&write)?;
            self.spill.forget(write.data);
        }
        Ok(())
    }

    fn log_one(&mut self, write: &Remembered) -> Result<(), Failure> {
        let Range { start, end } = write.sectors;
        let most = match write.data {
            Data::Zeroes => ZEROES_ENTRY_BYTES_MAX / u64::from(UNIT),
            _ => end - start,
        };
        let mut at = start;
        while at < end {
            let nr = most.min(end - at);
            // Of zeros in several entries, only the last one says that all of it is durable.
            let flags = if at + nr == end { write.flags } else { EntryFlags::default() };
            let placed = self.writer.entry(flags, at, nr)?;
            self.put(&placed)?;
            if let Data::Memory(_) | Data::Spilled { .. } = &write.data {
                self.spill.copy(&write.data, &self.file, placed.data_offset, placed.data_bytes)?;
            }
            at += nr;
        }
        Ok(())
    }

    /// Writes an entry's block, and makes the file as long as its data will need: zeros stay a hole.
    fn put(&mut self, placed: &Placed) -> io::Result<()> {
        self.file.write_all_at(&placed.block, placed.offset)?;
        if placed.data_bytes > 0 {
            self.file.set_len(placed.data_offset + placed.data_bytes)?;
        }
        Ok(())
    }

    /// Makes what is there count (invariant 2).
    fn count(&mut self) -> Result<(), Failure> {
        Ok(self.file.write_all_at(&self.writer.superblock().encode(), 0)?)
    }
}

#[cfg(test)]
mod tests;
