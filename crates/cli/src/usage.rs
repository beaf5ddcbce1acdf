//! Wrong usage: what is wrong with a command line whatever there is on the disks, and whoever serves them. It ends with exit code 2, as what
//! clap finds does; a disk that is not there or has no room, and what a running server declines, is a failure.

use std::error::Error;
use std::fmt;

use blockwork_export::nbd::ListenError;
use blockwork_leaf::LeafError;
use blockwork_volume::VolumeError;
use blockwork_volume::lvm::edit::EditError;

/// What is wrong, and what is expected.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Usage {}

/// An error of wrong usage, in the words that `format!` takes.
macro_rules! usage {
    ($($words:tt)*) => {
        anyhow::Error::new($crate::usage::Usage(format!($($words)*)))
    };
}
/// Ends a function with wrong usage.
macro_rules! bail_usage {
    ($($words:tt)*) => {
        return Err($crate::usage::usage!($($words)*))
    };
}
pub(crate) use {bail_usage, usage};

/// Whether an error is of wrong usage. The crates below read a part of the command line, too: a disk with its options, a setting, a name.
pub(crate) fn is_wrong(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Usage>()
            || cause.downcast_ref().is_some_and(of_disks)
            || cause.downcast_ref().is_some_and(of_volumes)
            || cause.downcast_ref().is_some_and(of_groups)
            || cause.downcast_ref().is_some_and(of_addresses)
    })
}

fn of_disks(error: &LeafError) -> bool {
    matches!(error, LeafError::Spec { .. } | LeafError::Setting { .. })
}

fn of_volumes(error: &VolumeError) -> bool {
    match error {
        VolumeError::Leaf(error) => of_disks(error),
        VolumeError::Setting { .. } | VolumeError::Impossible { .. } => true,
        _ => false,
    }
}

fn of_groups(error: &EditError) -> bool {
    match error {
        EditError::Volume(error) => of_volumes(error),
        EditError::Name { .. } | EditError::Value { .. } => true,
        _ => false,
    }
}

fn of_addresses(error: &ListenError) -> bool {
    matches!(error, ListenError::NotAnAddress(_) | ListenError::PathTooLong { .. } | ListenError::Insecure(_))
}
