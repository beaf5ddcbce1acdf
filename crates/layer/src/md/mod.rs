//! Linux md (software RAID): what an I/O to an array becomes on its members.
//!
//! | here | what |
//! | --- | --- |
//! | [`Geometry`] | where each sector of an array lies on its members, and back: arithmetic, no I/O |
//! | [`Array`] | the layer: state of the members, write-intent bitmap, failures |
//! | [`Record`] | what is written about an array, and where: [`MdRecord`], [`DmRaidRecord`], [`Unrecorded`] |
//!
//! What the bytes of superblocks and bitmaps mean is `blockwork_format::md`'s business.

mod array;
mod atomic_bits;
mod bad_blocks;
mod bad_log;
mod commit;
mod concatenation;
mod devices;
mod dm_raid_record;
mod failure;
mod fence;
mod form;
mod gate;
mod geometry;
mod grow;
mod grow_legs;
mod intent;
pub(crate) mod io;
mod md_record;
mod member;
mod mend;
mod pace;
mod parity;
mod parity_doubt;
mod parity_gather;
mod parity_read;
mod parity_sync;
mod parity_write;
mod parting;
mod past;
mod raid0;
mod raid1;
mod raid10;
mod record;
mod resolve;
mod roster;
mod status;
mod stripe_cache;
mod stripes;
mod sync;
mod sync_check;
mod sync_copy;
mod sync_pass;
mod sync_status;
mod unrecorded;
mod upkeep;
mod verb_error;
mod verbs;

pub use array::{Array, ArrayConfig, ArrayError};
pub use bad_blocks::BadBlockLog;
pub use concatenation::Concatenation;
pub use dm_raid_record::{ComesBack, DmRaidLeg, DmRaidRecord};
pub use geometry::{Geometry, GeometryError, Place, Places};
pub use grow_legs::GrownLegs;
pub use intent::IntentConfig;
pub use md_record::{MdRecord, MdRecordError, MdSite};
pub use member::MemberConfig;
pub use parity::Parity;
pub use raid0::Raid0;
pub use raid1::Raid1;
pub use raid10::Raid10;
pub use record::{ArraySize, ArrayState, NewSite, Record, RecordError, Site, SiteState, Standing};
pub use status::{ArrayStatus, MemberState, MemberStatus};
pub use sync::SYNC_SPEED_DEFAULT;
pub use sync_status::{SyncAction, SyncStatus};
pub use unrecorded::Unrecorded;
pub use verb_error::VerbError;
pub use verbs::{Added, NewMember};
