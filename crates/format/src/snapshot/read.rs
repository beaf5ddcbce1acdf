//! Reading a whole store, and believing none of it.

use crate::FormatError;
use crate::bytes::length;
use crate::source::Source;

use super::{CHUNKS_MAX, EXCEPTION_BYTES, Exception, HEADER_BYTES, Header, Layout};

const PLACE: &str = "exception store";

/// Bytes of an area that are read at once.
const READ_BYTES: u64 = 64 << 10;

/// What a store holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It was never used.
    New,
    /// The snapshot is lost: it overflowed, or could not be written.
    Invalid(Layout),
    /// These exceptions.
    Valid(Contents),
}

/// The exceptions of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Where they are.
    pub layout: Layout,
    /// In the order in which they were entered: number i is in area i / E.
    pub exceptions: Vec<Exception>,
    /// Behind the end of the list, its area holds something else than zeros: a write of it was cut off. It must be zeros before
    /// an exception is entered, or what is there would become a part of the list.
    pub remains: bool,
}

impl Contents {
    /// The area that the next exception goes to.
    pub fn area(&self) -> u64 {
        length(self.exceptions.len()) / self.layout.exceptions_per_area()
    }

    /// The next chunk that is to be given out, as the kernel counts after loading.
    pub fn next_chunk(&self) -> u64 {
        let highest = self.exceptions.iter().map(|exception| exception.new).max();
        self.layout.data_chunk(highest.map_or(0, |new| new + 1))
    }
}

/// Reads the header of a store; none: it was never used.
///
/// # Errors
///
/// What cannot be read, or is no header.
pub fn read_header(source: &dyn Source) -> Result<Option<Header>, FormatError> {
    let mut bytes = [0; HEADER_BYTES];
    let unreadable = |error| FormatError::unreadable(super::PLACE, 0, &error);
    source.read_at(0, &mut bytes).map_err(unreadable)?;
    Header::decode(&bytes)
}

/// Reads a store of a snapshot of `sectors` sectors.
///
/// # Errors
///
/// What cannot be read, or contradicts the format: then nothing of the snapshot can be trusted.
pub fn read(source: &dyn Source, sectors: u64) -> Result<Found, FormatError> {
    let Some(header) = read_header(source)? else { return Ok(Found::New) };
    if !header.valid {
        return Ok(Found::Invalid(header.layout));
    }
    let layout = header.layout;
    let mut reader = Reader {
        source,
        layout,
        store_chunks: source.size() / layout.chunk_bytes(),
        old_chunks: sectors.div_ceil(layout.chunk_sectors()),
        exceptions: Vec::new(),
    };
    let mut remains = false;
    for area in 0.. {
        // An area that is full ends the list too where the store has no room for another one.
        let start = layout.area_chunk(area);
        if area > 0 && start >= reader.store_chunks {
            break;
        }
        if let Some(rest) = reader.area(start)? {
            remains = rest;
            break;
        }
    }
    let Reader { exceptions, .. } = reader;
    check_unique(&exceptions)?;
    Ok(Found::Valid(Contents { layout, exceptions, remains }))
}

struct Reader<'a> {
    source: &'a dyn Source,
    layout: Layout,
    /// Whole chunks of the store.
    store_chunks: u64,
    /// Chunks of the snapshot.
    old_chunks: u64,
    exceptions: Vec<Exception>,
}

impl Reader<'_> {
    /// Takes in the area at `chunk`. Where the list ends in it: whether anything is behind the end.
    fn area(&mut self, chunk: u64) -> Result<Option<bool>, FormatError> {
        let start = chunk * self.layout.chunk_bytes();
        let mut ended = false;
        let mut bytes = Vec::new();
        let mut at = 0;
        while at < self.layout.chunk_bytes() {
            let nr = READ_BYTES.min(self.layout.chunk_bytes() - at);
            bytes.resize(usize::try_from(nr).expect("at most READ_BYTES"), 0);
            let unreadable = |error| FormatError::unreadable(PLACE, start + at, &error);
            self.source.read_at(start + at, &mut bytes).map_err(unreadable)?;
            for (entry, offset) in bytes.chunks_exact(16).zip((start + at..).step_by(16)) {
                if ended {
                    if entry.iter().any(|byte| *byte != 0) {
                        return Ok(Some(true));
                    }
                    continue;
                }
                match Exception::decode(entry) {
                    Some(exception) => {
                        self.check(exception, offset)?;
                        self.exceptions.push(exception);
                    }
                    // Half of an exception, without a new chunk, is as good as nothing, but it is not zeros.
                    None if entry.iter().any(|byte| *byte != 0) => return Ok(Some(true)),
                    None => ended = true,
                }
            }
            at += nr;
        }
        Ok(ended.then_some(false))
    }

    fn check(&self, exception: Exception, offset: u64) -> Result<(), FormatError> {
        let Exception { old, new } = exception;
        if old >= self.old_chunks {
            let expected = format!("below {}, the chunks of the snapshot", self.old_chunks);
            return Err(FormatError::invalid(PLACE, offset, "old chunk", old, expected));
        }
        let (at, most) = (offset + EXCEPTION_BYTES / 2, self.store_chunks.min(CHUNKS_MAX));
        if new >= most {
            let expected = format!("below {most}, the whole chunks of the store");
            return Err(FormatError::invalid(PLACE, at, "new chunk", new, expected)
                .with_remedy("was the volume with the store cut?"));
        }
        if self.layout.is_metadata(new) {
            let found = format!("{new}, which is the header or an area");
            return Err(FormatError::invalid(PLACE, at, "new chunk", found, "a data chunk"));
        }
        Ok(())
    }
}

/// No chunk has two exceptions, and no two of them share their content.
fn check_unique(contents: &[Exception]) -> Result<(), FormatError> {
    for (field, key) in [("old chunk", (|e| e.old) as fn(&Exception) -> u64), ("new chunk", |e| e.new)] {
        let mut chunks: Vec<u64> = contents.iter().map(key).collect();
        chunks.sort_unstable();
        if let Some(twice) = chunks.windows(2).find(|pair| pair[0] == pair[1]) {
            let found = format!("{} in two exceptions", twice[0]);
            return Err(FormatError::invalid(PLACE, 0, field, found, "each chunk in at most one"));
        }
    }
    Ok(())
}
