//! Why a message is not obeyed, and what is asked of numbers in more than one.

use blockwork_memory::{GuestLayout, LayoutError, MapError};

use super::dirty::bytes_for;

/// Bytes of a log of written pages at most: no guest has as much memory, and it is mapped as a whole.
const LOG_BYTES_MAX: u64 = 1 << 40;

/// Why a message was not obeyed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// There is no such queue.
    #[error("queue {found}, expected less than {queues}")]
    NoQueue {
        /// Which.
        found: u32,
        /// How many there are.
        queues: usize,
    },
    /// Features that were not offered.
    #[error("{what} {found:#x}, expected none but {offered:#x}")]
    Features {
        /// Of what.
        what: &'static str,
        /// What is asked for.
        found: u64,
        /// What there is.
        offered: u64,
    },
    /// A number that cannot be.
    #[error("{what} is {found}, expected {expected}")]
    Number {
        /// Which.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it may be.
        expected: String,
    },
    /// Not something that we do.
    #[error("{0}")]
    Unknown(String),
    /// A file that was to be mapped.
    #[error("{what}, {len} bytes at {offset} of its file: {source}")]
    Map {
        /// What it is.
        what: &'static str,
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
        /// Why not.
        source: MapError,
    },
    /// Regions.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// What is no eventfd.
    #[error("{what} is {found}, expected an eventfd")]
    NoEventfd {
        /// Which descriptor.
        what: &'static str,
        /// What it is.
        found: String,
    },
    /// The kernel says no.
    #[error("{what}: {source}")]
    Io {
        /// The call.
        what: &'static str,
        /// Its error.
        source: rustix::io::Errno,
    },
}

pub(super) fn check_features(what: &'static str, found: u64, offered: u64) -> Result<(), Refusal> {
    if found & !offered == 0 { Ok(()) } else { Err(Refusal::Features { what, found, offered }) }
}

/// Whether a log is large enough, and no larger than any may be.
pub(super) fn check_log(size: u64, layout: &GuestLayout) -> Result<(), Refusal> {
    let least = bytes_for(layout.end());
    if (least..=LOG_BYTES_MAX).contains(&size) {
        return Ok(());
    }
    let expected = format!("{least} to {LOG_BYTES_MAX}, a bit for each page of 4096 bytes");
    Err(Refusal::Number { what: "the size of the log of written pages", found: size, expected })
}
