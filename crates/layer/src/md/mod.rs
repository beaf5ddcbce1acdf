//! Linux md (software RAID): what an I/O to an array becomes on its members.
//!
//! | here | what |
//! | --- | --- |
//! | [`Geometry`] | where each sector of an array lies on its members, and back: arithmetic, no I/O |
//!
//! What the bytes of superblocks and bitmaps mean is `blockwork_format::md`'s business.

mod divisor;
mod geometry;
mod raid0;
mod raid1;
mod raid10;

pub use geometry::{Geometry, GeometryError, Place, Places};
pub use raid0::Raid0;
pub use raid1::Raid1;
pub use raid10::Raid10;
