//! md arrays: from superblocks on devices to arrays.
//!
//! `choose` decides, from superblocks alone, which devices make up an array and which are out of date or belong elsewhere
//! (`behind`: whom a power cut has kept from the last update belongs to it);
//! `build` reads what else there is (bitmap, lists of bad blocks) and makes the layer. `create` makes arrays, `examine` tells
//! what is on one member, `zero` takes superblocks away.
//!
//! Invariants: (1) the superblock with the most events is the truth; who is more than one event behind, or whom the truth
//! does not count on, is never read, also where the device with that superblock cannot be used itself: then the array is
//! refused; (2) where two devices contradict each other and none is newer, the array is refused;
//! (3) an array of which data is missing is refused, and says which member; (4) nothing is written while arrays are
//! assembled or examined.

mod behind;
pub(crate) mod build;
pub(crate) mod choose;
mod create;
mod examine;
pub(crate) mod intent;
mod layout;
mod zero;

pub use create::{CreateRequest, Created, Creation, MISSING, Writing, disk_of};
pub use examine::Examined;
pub use zero::{Zeroed, Zeroing};

use std::fmt;
use std::sync::Arc;

use blockwork_format::md::{Role, Superblock};
use blockwork_layer::md::IntentConfig;

use crate::graph::DeviceId;

/// An array, assembled or not.
#[derive(Debug)]
pub struct Array {
    /// Its volume's name: `md/NAME`.
    pub name: String,
    /// The array as a device; it says why it cannot be served, where it cannot.
    pub device: DeviceId,
    /// The superblock that is believed.
    pub truth: Box<Superblock>,
    /// All devices with a superblock of this array.
    pub members: Vec<Member>,
    /// Its write-intent bitmap, where it has one and is assembled.
    pub bitmap: Option<Bitmap>,
    /// What is asked to do something with it, where it is assembled.
    pub layer: Option<Arc<blockwork_layer::md::Array>>,
    /// What people should know.
    pub warnings: Vec<String>,
}

impl Array {
    /// Places of the array that nobody fills.
    pub fn missing(&self) -> Vec<u16> {
        let places = u16::try_from(self.truth.raid_disks()).unwrap_or(u16::MAX);
        let filled = |place: &u16| self.members.iter().any(|member| member.place() == Some(*place));
        (0..places).filter(|place| !filled(place)).collect()
    }
}

/// What the copies of a write-intent bitmap say together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bitmap {
    /// What a bit covers, bytes.
    pub chunk_bytes: u32,
    /// How many chunks there are.
    pub chunks: u64,
    /// How many of them may differ between members.
    pub dirty_chunks: u64,
}

impl Bitmap {
    fn of(intent: &IntentConfig) -> Bitmap {
        Bitmap {
            chunk_bytes: intent.superblock.chunk_bytes,
            chunks: intent.bits.chunks(),
            dirty_chunks: intent.bits.dirty_chunks(),
        }
    }
}

/// A device with a superblock of an array.
#[derive(Debug, Clone)]
pub struct Member {
    /// The device.
    pub device: DeviceId,
    /// Events of its superblock.
    pub events: u64,
    /// What it is to the array now.
    pub state: MemberState,
}

impl Member {
    /// The place that it fills.
    pub fn place(&self) -> Option<u16> {
        match self.state {
            MemberState::InPlace { place } => Some(place),
            _ => None,
        }
    }
}

/// What a device is to its array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberState {
    /// It fills this place. It may still be recovering.
    InPlace {
        /// From 0.
        place: u16,
    },
    /// It waits for a place.
    Spare,
    /// It is being filled to take the place of a member that is still there.
    Replacement,
    /// The journal of a RAID5 or 6.
    Journal,
    /// It misses writes: its events are behind.
    OutOfDate,
    /// The array has given it up.
    Faulty,
    /// It has the array's UUID, and is a member of something else.
    Foreign,
    /// There is a newer device for its place.
    Superseded,
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberState::InPlace { place } => write!(f, "{}", Role::Active(*place)),
            MemberState::Spare => f.write_str("spare"),
            MemberState::Replacement => f.write_str("replacement"),
            MemberState::Journal => f.write_str("journal"),
            MemberState::OutOfDate => f.write_str("out of date"),
            MemberState::Faulty => f.write_str("faulty"),
            MemberState::Foreign => f.write_str("of another array"),
            MemberState::Superseded => f.write_str("superseded"),
        }
    }
}
