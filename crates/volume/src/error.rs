//! What can go wrong between the names on a command line and a volume.

use blockwork_format::{FormatError, escape};
use blockwork_leaf::LeafError;

/// Why volumes could not be assembled. Each names the place and what to do.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A disk cannot be opened.
    #[error(transparent)]
    Leaf(#[from] LeafError),
    /// A file of ours cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A table in a text file is wrong.
    #[error("{path}: {source}")]
    Table {
        /// The file.
        path: String,
        /// What is wrong, and where.
        source: Box<FormatError>,
    },
    /// A target of a table does not fit what lies below it.
    #[error("{path}, line {line}: {what}")]
    Target {
        /// The table's file.
        path: String,
        /// Its line, from 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
    /// No volume has that name.
    #[error("no volume is called {name:?}; there are: {there_are}")]
    NoVolume {
        /// The name asked for.
        name: String,
        /// Names of those there are.
        there_are: String,
    },
    /// The volume is there, and cannot be served.
    #[error("{name}: {what}", name = escape(.name))]
    Refused {
        /// The volume.
        name: String,
        /// Why, and what can be done.
        what: String,
    },
    /// What is to be made can be on no disks.
    #[error("{name}: {what}")]
    Impossible {
        /// What: `the array`.
        name: &'static str,
        /// Why, and what can be.
        what: String,
    },
    /// Of two volumes to be served one lies under the other.
    #[error(
        "{below} lies under {above}: writing to it would destroy that one; serve one of the two, or add --read-only",
        above = escape(.above),
        below = escape(.below)
    )]
    Overlap {
        /// The upper one.
        above: String,
        /// The lower one.
        below: String,
    },
    /// Of two volumes to be served one is a table's that lies on a disk which the other one's array or group has for itself.
    #[error(
        "{table} lies on {disk}, and so does {other}, which has that for itself: writing to one would destroy the other; serve one of the two, or \
         add --read-only",
        table = escape(.table),
        disk = escape(.disk),
        other = escape(.other)
    )]
    Shared {
        /// The table's.
        table: String,
        /// The other volume.
        other: String,
        /// What both lie on.
        disk: String,
    },
    /// A setting does not exist or is out of range.
    #[error("--set {setting}: {what}")]
    Setting {
        /// As it was given.
        setting: String,
        /// What is wrong.
        what: String,
    },
    /// More of something than the engine can number.
    #[error("more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
}
