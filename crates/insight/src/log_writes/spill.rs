//! Data of writes that are remembered until a flush: in memory, and beyond a limit in an unnamed file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use blockwork_memory::{Segment, bytes_in};

/// Bytes that are copied at once.
const COPY_BYTES: usize = 256 << 10;

/// What a remembered write wrote.
pub(super) enum Data {
    /// It has no data: a discard.
    None,
    /// Zeros, however many.
    Zeroes,
    /// Its bytes.
    Memory(Vec<u8>),
    /// Its bytes are in the file.
    Spilled {
        /// Where, bytes.
        offset: u64,
    },
}

/// Keeps data. The file is given back to the file system when nothing in it is needed any more.
pub(super) struct Spill {
    folder: PathBuf,
    memory_max: u64,
    in_memory: u64,
    file: Option<File>,
    file_end: u64,
    /// Writes whose data is in the file.
    in_file: u64,
}

impl Spill {
    /// Keeps `memory_max` bytes in memory, the rest in a file in `folder`.
    pub(super) fn new(folder: PathBuf, memory_max: u64) -> Spill {
        Spill { folder, memory_max, in_memory: 0, file: None, file_end: 0, in_file: 0 }
    }

    /// Copies what `segments` hold.
    pub(super) fn keep(&mut self, segments: &[Segment]) -> io::Result<Data> {
        let len = bytes_in(segments);
        let bytes = len as u64;
        if self.in_memory + bytes <= self.memory_max {
            let mut copy = vec![0; len];
            let mut at = 0;
            for segment in segments {
                segment.read_at(0, &mut copy[at..at + segment.len()]);
                at += segment.len();
            }
            self.in_memory += bytes;
            return Ok(Data::Memory(copy));
        }
        let offset = self.file_end;
        self.write_out(segments, offset)?;
        self.file_end = offset + bytes;
        self.in_file += 1;
        Ok(Data::Spilled { offset })
    }

    fn write_out(&mut self, segments: &[Segment], mut offset: u64) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(tempfile::tempfile_in(&self.folder)?);
        }
        let file = self.file.as_ref().expect("made just now");
        let mut piece = vec![0; COPY_BYTES.min(bytes_in(segments))];
        for segment in segments {
            let mut at = 0;
            while at < segment.len() {
                let len = piece.len().min(segment.len() - at);
                segment.read_at(at, &mut piece[..len]);
                file.write_all_at(&piece[..len], offset)?;
                offset += len as u64;
                at += len;
            }
        }
        Ok(())
    }

    /// Copies kept data of `bytes` bytes to `to_offset` of `to`.
    pub(super) fn copy(&self, data: &Data, to: &File, to_offset: u64, bytes: u64) -> io::Result<()> {
        match data {
            Data::None | Data::Zeroes => Ok(()),
            Data::Memory(copy) => {
                assert_eq!(copy.len() as u64, bytes, "a write's data has its length");
                to.write_all_at(copy, to_offset)
            }
            Data::Spilled { offset } => {
                let file = self.file.as_ref().expect("the file is there while something is in it");
                let mut piece = vec![0; COPY_BYTES];
                let mut done = 0;
                while done < bytes {
                    let len = (bytes - done).min(COPY_BYTES as u64);
                    let piece = &mut piece[..usize::try_from(len).expect("at most COPY_BYTES")];
                    file.read_exact_at(piece, offset + done)?;
                    to.write_all_at(piece, to_offset + done)?;
                    done += len;
                }
                Ok(())
            }
        }
    }

    /// Data is not needed any more.
    pub(super) fn forget(&mut self, data: Data) {
        match data {
            Data::None | Data::Zeroes => {}
            Data::Memory(copy) => self.in_memory -= copy.len() as u64,
            Data::Spilled { .. } => {
                self.in_file -= 1;
                if self.in_file == 0 {
                    (self.file, self.file_end) = (None, 0);
                }
            }
        }
    }

    /// Nothing is needed any more.
    pub(super) fn clear(&mut self) {
        (self.in_memory, self.file, self.file_end, self.in_file) = (0, None, 0, 0);
    }
}
