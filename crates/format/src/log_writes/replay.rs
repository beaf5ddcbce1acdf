//! Replays a log onto a device, up to an entry, a flush or a mark.
//!
//! A discard is handed to the sink as a discard. What a device gives back for discarded blocks is its own business; the
//! kernel's tool writes zeros where the device cannot discard, and a sink for a plain file does the same.

use std::io;

use super::{Flags, Located, Log};
use crate::FormatError;
use crate::bytes::length;

/// Data is copied in pieces of at most this many bytes, whatever an entry's length is.
pub const PIECE_BYTES_MAX: usize = 1 << 20;

/// What a log is replayed onto.
pub trait Sink {
    /// Writes `bytes` at `offset` (bytes).
    ///
    /// # Errors
    ///
    /// Whatever the device says; the replay ends with it.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Discards `bytes` bytes from `offset` (bytes) on.
    ///
    /// # Errors
    ///
    /// Whatever the device says; the replay ends with it.
    fn discard(&mut self, offset: u64, bytes: u64) -> io::Result<()>;
}

/// A `Vec` is a device of fixed size, on which discarded blocks read as zeros.
impl Sink for Vec<u8> {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        range(self, offset, length(bytes.len()))?.copy_from_slice(bytes);
        Ok(())
    }

    fn discard(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        range(self, offset, bytes)?.fill(0);
        Ok(())
    }
}

fn range(device: &mut [u8], offset: u64, bytes: u64) -> io::Result<&mut [u8]> {
    let start = usize::try_from(offset).ok();
    let end = offset.checked_add(bytes).and_then(|end| usize::try_from(end).ok());
    let range = start.zip(end).and_then(|(start, end)| device.get_mut(start..end));
    range.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the range lies outside the device"))
}

/// Where a replay ends. What it ends at is replayed too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until<'a> {
    /// After all entries.
    End,
    /// After so many entries.
    Entries(u64),
    /// After the n-th flush or FUA, counted from 1: where something was promised.
    Flush(u64),
    /// After the mark with this text.
    Mark(&'a str),
}

/// What was replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replayed {
    /// Entries, of any kind.
    pub entries: u64,
    /// Of them, with a flush or FUA.
    pub flushes: u64,
    /// Data, bytes.
    pub written_bytes: u64,
    /// Discarded, bytes.
    pub discarded_bytes: u64,
    /// Whether the end that was asked for was reached. (`Until::End` always is.)
    pub reached: bool,
}

/// Why a replay ended early. What was replayed before stays.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The log is wrong.
    #[error(transparent)]
    Log(#[from] FormatError),
    /// The device refused.
    #[error("entry {index} of the log, {bytes} bytes at {offset}: {source}")]
    Sink {
        /// The entry, from 0.
        index: u64,
        /// Where on the device, bytes.
        offset: u64,
        /// How much, bytes.
        bytes: u64,
        /// What the device said.
        source: io::Error,
    },
}

/// Applies the entries of `log` to `sink`, in order, until `until`.
///
/// # Errors
///
/// See [`ReplayError`].
pub fn replay(log: &Log<'_>, until: Until<'_>, sink: &mut dyn Sink) -> Result<Replayed, ReplayError> {
    let mut done = Replayed { reached: until == Until::End, ..Replayed::default() };
    if matches!(until, Until::Entries(0) | Until::Flush(0)) {
        return Ok(Replayed { reached: true, ..done });
    }
    for located in log.entries() {
        let located = located?;
        apply(log, &located, sink, &mut done)?;
        let ends = match until {
            Until::End => false,
            Until::Entries(n) => done.entries == n,
            Until::Flush(n) => is_flush(&located) && done.flushes == n,
            Until::Mark(text) => located.mark.as_deref() == Some(text),
        };
        if ends {
            done.reached = true;
            break;
        }
    }
    Ok(done)
}

fn is_flush(located: &Located) -> bool {
    let flags = located.entry.flags;
    flags.has(Flags::FLUSH) || flags.has(Flags::FUA)
}

fn apply(
    log: &Log<'_>,
    located: &Located,
    sink: &mut dyn Sink,
    done: &mut Replayed,
) -> Result<(), ReplayError> {
    let refused = |source| ReplayError::Sink {
        index: located.index,
        offset: located.device_offset,
        bytes: located.device_bytes,
        source,
    };
    if located.entry.flags.has(Flags::DISCARD) {
        sink.discard(located.device_offset, located.device_bytes).map_err(refused)?;
        done.discarded_bytes = done.discarded_bytes.saturating_add(located.device_bytes);
    } else {
        copy(log, located, sink, refused)?;
        done.written_bytes = done.written_bytes.saturating_add(located.data_bytes);
    }
    done.entries += 1;
    done.flushes += u64::from(is_flush(located));
    Ok(())
}

fn copy(
    log: &Log<'_>,
    located: &Located,
    sink: &mut dyn Sink,
    refused: impl Fn(io::Error) -> ReplayError,
) -> Result<(), ReplayError> {
    let most = length(PIECE_BYTES_MAX);
    let mut piece = vec![0; usize::try_from(located.data_bytes.min(most)).expect("at most PIECE_BYTES_MAX")];
    let mut copied = 0;
    while copied < located.data_bytes {
        let bytes =
            usize::try_from((located.data_bytes - copied).min(most)).expect("at most PIECE_BYTES_MAX");
        let from = located.data_offset + copied;
        log.source
            .read_at(from, &mut piece[..bytes])
            .map_err(|error| FormatError::unreadable("data of a dm-log-writes entry", from, &error))?;
        sink.write(located.device_offset + copied, &piece[..bytes]).map_err(&refused)?;
        copied += length(bytes);
    }
    Ok(())
}
