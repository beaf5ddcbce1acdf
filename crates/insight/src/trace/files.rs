//! A trace as files that blkparse reads: `NAME.blktrace.CPU`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::stream::RecordStream;

/// Workers that a trace may have; more is a broken stream.
pub const CPUS_MAX: u32 = 1024;

/// Bytes gathered for one file before they are written.
const GATHER_BYTES: usize = 256 << 10;

/// Writes a stream of records to a file for each worker.
///
/// There is a file for every number up to the highest, an empty one for a worker that had nothing to tell: `blkparse -i
/// NAME` stops at the first that is missing.
#[derive(Debug)]
pub struct TraceFiles {
    base: PathBuf,
    stream: RecordStream,
    files: Vec<Output>,
    records: u64,
}

#[derive(Debug)]
struct Output {
    file: File,
    gathered: Vec<u8>,
}

impl TraceFiles {
    /// Starts the trace `base`. Files of an earlier trace with this name are removed, as those that the new one does not
    /// write would be taken for a part of it.
    ///
    /// # Errors
    ///
    /// An old file cannot be removed, or the first cannot be made.
    pub fn create(base: &Path) -> io::Result<TraceFiles> {
        for cpu in 0.. {
            match fs::remove_file(name(base, cpu)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                other => other.map_err(|error| place(base, cpu, &error))?,
            }
        }
        let mut files =
            TraceFiles { base: base.to_owned(), stream: RecordStream::new(), files: Vec::new(), records: 0 };
        files.open(0)?;
        Ok(files)
    }

    /// Writes the next bytes of the stream, cut anywhere.
    ///
    /// # Errors
    ///
    /// What is no record, and whatever writing a file says.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stream = std::mem::take(&mut self.stream);
        let mut result = Ok(());
        let decoded = stream.push(bytes, |record, bytes| {
            if result.is_ok() {
                result = self.write(record.cpu, bytes);
            }
        });
        self.stream = stream;
        decoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        result?;
        (0..self.files.len()).try_for_each(|cpu| self.flush(cpu))
    }

    /// Number of records written.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The files.
    pub fn paths(&self) -> Vec<PathBuf> {
        (0..self.files.len()).map(|cpu| name(&self.base, cpu as u64)).collect()
    }

    fn write(&mut self, cpu: u32, bytes: &[u8]) -> io::Result<()> {
        if cpu >= CPUS_MAX {
            let text = format!("blktrace record: CPU is {cpu}, expected less than {CPUS_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let cpu = cpu as usize;
        while self.files.len() <= cpu {
            self.open(self.files.len())?;
        }
        self.files[cpu].gathered.extend_from_slice(bytes);
        self.records += 1;
        if self.files[cpu].gathered.len() >= GATHER_BYTES { self.flush(cpu) } else { Ok(()) }
    }

    fn open(&mut self, cpu: usize) -> io::Result<()> {
        let file = File::create(name(&self.base, cpu as u64))
            .map_err(|error| place(&self.base, cpu as u64, &error))?;
        self.files.push(Output { file, gathered: Vec::new() });
        Ok(())
    }

    fn flush(&mut self, cpu: usize) -> io::Result<()> {
        let Output { file, gathered } = &mut self.files[cpu];
        file.write_all(gathered).map_err(|error| place(&self.base, cpu as u64, &error))?;
        gathered.clear();
        Ok(())
    }
}

fn name(base: &Path, cpu: u64) -> PathBuf {
    let mut name = base.as_os_str().to_owned();
    name.push(format!(".blktrace.{cpu}"));
    name.into()
}

fn place(base: &Path, cpu: u64, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", name(base, cpu).display()))
}
