//! Why a volume group is not changed.

use blockwork_format::{FormatError, escape};

use crate::error::VolumeError;

/// Why a volume group is not changed. Nothing has been written.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// A name or a tag that LVM does not take.
    #[error("{what} {name:?}: {why}")]
    Name {
        /// What it would name: `the logical volume`.
        what: &'static str,
        /// As it was given.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The name is taken.
    #[error("{what} {name} exists already; choose another name")]
    Exists {
        /// What has it: `the logical volume`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// There is no such thing.
    #[error("there is no {what} {name:?}; there are: {there_are}")]
    Absent {
        /// What was looked for: `logical volume`.
        what: &'static str,
        /// As it was given.
        name: String,
        /// Names of those there are.
        there_are: String,
    },
    /// Not enough free extents, or not where they are needed.
    #[error("{needed} needed, {free} free{why}; {remedy}")]
    Room {
        /// How much it takes: `12 extents (48 MiB) on each of 2 physical volumes are`.
        needed: String,
        /// What there is.
        free: String,
        /// Why that does not do, beginning with a separator; empty where the numbers say it.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// A size or a number that cannot be.
    #[error("{what} {found}: expected {expected}")]
    Value {
        /// Which: `--stripesize`.
        what: &'static str,
        /// As it was given.
        found: String,
        /// What it could be.
        expected: String,
    },
    /// It is possible, and is not done, for a reason.
    #[error("{what} {name}: {why}", name = escape(.name))]
    Refused {
        /// What it is about: `the volume group`.
        what: &'static str,
        /// Its name.
        name: String,
        /// Why, and what can be done.
        why: String,
    },
    /// The metadata cannot be read, or has no room for what is new.
    #[error("{title}: {source}", title = escape(.title))]
    Metadata {
        /// The disk, or the group.
        title: String,
        /// What is wrong.
        source: Box<FormatError>,
    },
    /// The disks could not be opened.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl EditError {
    pub(crate) fn group(name: &str, why: impl Into<String>) -> EditError {
        EditError::Refused { what: "the volume group", name: name.to_owned(), why: why.into() }
    }

    pub(crate) fn volume(name: &str, why: impl Into<String>) -> EditError {
        EditError::Refused { what: "the logical volume", name: name.to_owned(), why: why.into() }
    }

    pub(crate) fn metadata(title: &str, source: FormatError) -> EditError {
        EditError::Metadata { title: title.to_owned(), source: Box::new(source) }
    }

    pub(crate) fn disk(name: &str, why: impl Into<String>) -> EditError {
        EditError::Refused { what: "the disk", name: name.to_owned(), why: why.into() }
    }
}

/// A size for people, as LVM's tools show it.
pub(super) fn bytes_shown(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut unit, mut whole) = (0, bytes / 1024);
    let mut rest = bytes % 1024;
    while whole >= 1024 && unit + 1 < UNITS.len() {
        rest = whole % 1024;
        whole /= 1024;
        unit += 1;
    }
    let hundredths = rest * 100 / 1024;
    if hundredths == 0 {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{whole}.{hundredths:02} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::bytes_shown;

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_leaves_a_whole_one() {
        let shown = [0, 512, 1 << 10, 3 << 19, (4 << 20) * 10, 1 << 40, u64::MAX].map(bytes_shown);
        assert_eq!(shown, ["0 B", "512 B", "1 KiB", "1.50 MiB", "40 MiB", "1 TiB", "15.99 EiB"]);
    }
}
