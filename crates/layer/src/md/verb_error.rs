//! Why a verb (`md add`, `fail`, `remove`, `replace`, `check`, `grow`) cannot be carried out: what is so, and what to do.

use blockwork_engine::{Errno, Sectors};
use blockwork_format::FormatError;

use super::sync_status::SyncAction;

/// Why an array cannot do what it was told to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbError {
    /// Nothing may be written to the array.
    #[error("{array} is read-only: serve it writable to change it")]
    ReadOnly {
        /// The array.
        array: String,
    },
    /// A RAID0, which has no copies.
    #[error(
        "{array} has one copy of its data (RAID0): there is nothing to add to it, to leave out of it, or to compare"
    )]
    NotRedundant {
        /// The array.
        array: String,
    },
    /// The legs of an LVM volume are LVM's business.
    #[error(
        "{array} is a volume of LVM, which knows its legs: use `lvconvert --repair`, `--replace` or `lvextend` for this"
    )]
    Lvm {
        /// The array.
        array: String,
    },
    /// No device of that name, path or role.
    #[error("{array} has no device {device}; it has {known}")]
    NoDevice {
        /// The array.
        array: String,
        /// What was asked for.
        device: String,
        /// Its devices.
        known: String,
    },
    /// Several devices, any of which could be meant.
    #[error("{array}: {device} may be any of {found}: name one of these")]
    Ambiguous {
        /// The array.
        array: String,
        /// What was asked for.
        device: String,
        /// What fits.
        found: String,
    },
    /// The device takes part.
    #[error("{device} is in use by {array} as member {role}: fail it first, then remove it")]
    InUse {
        /// The array.
        array: String,
        /// The device.
        device: String,
        /// Its role.
        role: u16,
    },
    /// The device belongs to the array already.
    #[error("{device} belongs to {array} already: remove it before it is added again")]
    Known {
        /// The array.
        array: String,
        /// The device.
        device: String,
    },
    /// Some data would have no copy without the device.
    #[error(
        "{device} (member {role} of {array}) cannot be left out: without it some data has no copy in sync; add another \
         disk, and wait until it is recovered"
    )]
    LastCopy {
        /// The array.
        array: String,
        /// The device.
        device: String,
        /// Its role.
        role: u16,
    },
    /// A device that is not in the state that the verb needs.
    #[error("{device} of {array} is {found}, expected {expected}")]
    State {
        /// The array.
        array: String,
        /// The device.
        device: String,
        /// How it is.
        found: String,
        /// How it has to be.
        expected: &'static str,
    },
    /// A device without enough room.
    #[error("{device} has {found} sectors, and {array} needs {needed} of each member: take a larger disk")]
    Small {
        /// The array.
        array: String,
        /// The device.
        device: String,
        /// Its size.
        found: Sectors,
        /// What is needed, with what lies before the data.
        needed: Sectors,
    },
    /// A device with larger blocks than the array's.
    #[error(
        "{device} has logical blocks of {found} bytes, and {array} of {expected}: take a disk with blocks of {expected} or fewer"
    )]
    Blocks {
        /// The array.
        array: String,
        /// The device.
        device: String,
        /// Its blocks, bytes.
        found: u32,
        /// The array's, bytes.
        expected: u32,
    },
    /// A device whose events cannot be overtaken.
    #[error(
        "{device} was used without {array}, and its superblock is {ahead} events ahead, which are too many to count: wipe it \
         (`wipefs -a`) and add it as a blank disk, and add none of those that were used with it before they are wiped, too"
    )]
    Ahead {
        /// The array.
        array: String,
        /// The device.
        device: String,
        /// By how many.
        ahead: u64,
    },
    /// No slot for another device, or form.
    #[error("{array} cannot be changed like that: {reason}")]
    Full {
        /// The array.
        array: String,
        /// What is used up.
        reason: String,
    },
    /// No spare to take a member's place.
    #[error("{array} has no spare of {needed} sectors or more: add a disk first")]
    NoSpare {
        /// The array.
        array: String,
        /// The least that a spare must have for data.
        needed: Sectors,
    },
    /// Something else is under way.
    #[error("{array} is busy: {action} is under way; wait for it, or stop it first")]
    Busy {
        /// The array.
        array: String,
        /// What runs.
        action: SyncAction,
    },
    /// An action that begins only by itself.
    #[error("{array}: {action} begins by itself when it is due, and nothing is due")]
    NothingDue {
        /// The array.
        array: String,
        /// What was asked for.
        action: SyncAction,
    },
    /// A layout of which the copies would have to move.
    #[error("{array} has far copies, which lie behind its data on each member: such an array cannot grow")]
    FarLayout {
        /// The array.
        array: String,
    },
    /// The same of a volume of LVM.
    #[error(
        "{array} lacks a leg, or one is being filled, and without it the parity of what is new cannot be computed: wait until it is filled, or \
         have the leg back first (serve the volume with its disk, or use `lvconvert --repair`)"
    )]
    LacksLeg {
        /// The array.
        array: String,
    },
    /// What is new of a parity would have nothing to be computed from.
    #[error(
        "{array} lacks a member, without which the parity of what is new cannot be computed: `md add` a disk first, or say --assume-clean"
    )]
    Degraded {
        /// The array.
        array: String,
    },
    /// Nothing to gain.
    #[error(
        "{array} uses {} KiB of each member and can use at most {}, as much as {}{device} has room for; {}", .used.0 / 2, .room.0 / 2,
        if *.is_spare { "the spare " } else { "" }, no_room(*.used, *.wanted, *.is_spare)
    )]
    NoRoom {
        /// The array.
        array: String,
        /// Used of each member.
        used: Sectors,
        /// The smallest device.
        device: String,
        /// That is a spare.
        is_spare: bool,
        /// Its room.
        room: Sectors,
        /// What was asked for; none: as much as there is.
        wanted: Option<Sectors>,
    },
    /// A superblock, bitmap or list that cannot be as it would have to be.
    #[error("{array}: {device}: {error}")]
    Format {
        /// The array.
        array: String,
        /// The device.
        device: String,
        /// What is wrong.
        error: Box<FormatError>,
    },
    /// A device refused something.
    #[error("{array}: {what}: {errno}")]
    Io {
        /// The array.
        array: String,
        /// What could not be done.
        what: String,
        /// How it failed.
        errno: Errno,
    },
}

/// What keeps an array from growing, and what to do.
fn no_room(used: Sectors, wanted: Option<Sectors>, is_spare: bool) -> String {
    let remedy = if is_spare {
        "take that spare out (`md remove`) or make it larger"
    } else {
        "make all members larger"
    };
    let seen = "(a disk that has become larger is seen when it is opened anew)";
    match wanted {
        Some(wanted) if wanted > used => format!("{} were asked for: {remedy} {seen}", wanted.0 / 2),
        Some(wanted) => format!("{} were asked for, and arrays do not shrink: ask for more", wanted.0 / 2),
        None => format!("there is nothing to grow to: {remedy} {seen}"),
    }
}
