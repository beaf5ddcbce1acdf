//! What is said of a snapshot, in the words of `dmsetup status`.

use std::fmt;

use blockwork_engine::Sectors;

/// How a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotStatus {
    /// All is well.
    Used {
        /// What is in use of the store, metadata included.
        used: Sectors,
        /// The store.
        total: Sectors,
        /// What metadata takes.
        metadata: Sectors,
    },
    /// It is lost: the store overflowed, could not be read or could not be written.
    Invalid,
    /// The store is full: it can be read, but no longer be written.
    Overflow,
    /// A merge was begun, and has failed.
    MergeFailed,
}

impl SnapshotStatus {
    /// Whether there is not a single exception in the store: a snapshot that is being merged is merged.
    pub fn is_empty(&self) -> bool {
        matches!(self, SnapshotStatus::Used { used, metadata, .. } if used == metadata)
    }

    /// Percent of the store that are in use; none: that says nothing any more.
    pub fn percent(&self) -> Option<f64> {
        match self {
            SnapshotStatus::Used { used, total, .. } if total.0 > 0 => {
                Some(used.0 as f64 * 100.0 / total.0 as f64)
            }
            _ => None,
        }
    }
}

impl fmt::Display for SnapshotStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotStatus::Used { used, total, metadata } => write!(f, "{used}/{total} {metadata}"),
            SnapshotStatus::Invalid => write!(f, "Invalid"),
            SnapshotStatus::Overflow => write!(f, "Overflow"),
            SnapshotStatus::MergeFailed => write!(f, "Merge failed"),
        }
    }
}
