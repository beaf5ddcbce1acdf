//! Why a leaf could not be opened: which one, what was found, and what to do about it.

use std::io;

use blockwork_engine::SettingError;
use rustix::io::Errno;

/// Why a leaf could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LeafError {
    /// The text that names the disk cannot be understood.
    #[error("{spec}: {problem}")]
    Spec {
        /// The text.
        spec: String,
        /// What is wrong with it, and what is expected.
        problem: String,
    },
    /// A setting was refused.
    #[error("{name}: {source}")]
    Setting {
        /// The disk.
        name: String,
        /// The setting.
        source: SettingError,
    },
    /// A system call failed.
    #[error("{name}: {what}: {source}{remedy}")]
    Io {
        /// The disk.
        name: String,
        /// What was being done.
        what: &'static str,
        /// The error.
        source: io::Error,
        /// What to do, starting with a separator; empty if the error says it all.
        remedy: String,
    },
    /// Somebody else uses it.
    #[error("{name}: {holder}; {remedy}")]
    InUse {
        /// The disk.
        name: String,
        /// Who, as far as can be told.
        holder: String,
        /// What to do.
        remedy: String,
    },
    /// It is not something that can be a disk, or not in the way asked for.
    #[error("{name}: {found}; {remedy}")]
    Unfit {
        /// The disk.
        name: String,
        /// What it is.
        found: String,
        /// What to do.
        remedy: String,
    },
}

impl LeafError {
    pub(crate) fn io(name: &str, what: &'static str, source: impl Into<io::Error>) -> LeafError {
        LeafError::of_system(name, what, source.into(), "")
    }

    /// With what is to be done about it; of a want of descriptors it is the same whatever was tried.
    pub(crate) fn of_system(name: &str, what: &'static str, source: io::Error, remedy: &str) -> LeafError {
        let remedy = match Errno::from_io_error(&source) {
            Some(Errno::MFILE) => {
                "; all files that this process may have open are in use: let it have more (ulimit -n; LimitNOFILE= of its unit in systemd)"
            }
            _ => remedy,
        };
        LeafError::Io { name: name.into(), what, source, remedy: remedy.into() }
    }

    pub(crate) fn unfit(name: &str, found: impl Into<String>, remedy: impl Into<String>) -> LeafError {
        LeafError::Unfit { name: name.into(), found: found.into(), remedy: remedy.into() }
    }
}
