//! What an array writes about itself, and where: superblocks on each of its devices, and the place of its bitmap.
//!
//! A [`Record`] knows bytes and places, and does no I/O: the array writes what it is given, in an order that its own head
//! explains. There are two: [`super::MdRecord`] (superblocks 1.x) and [`super::DmRaidRecord`] (LVM's RAID volumes).

use std::fmt::Debug;
use std::sync::Arc;

use blockwork_engine::{Layer, Nanos, Sector, Sectors};
use blockwork_format::FormatError;
use blockwork_format::md::bitmap::BitmapSuperblock;
use blockwork_format::md::v1::Superblock;
use blockwork_format::md::{Region, Remains, Uuid};

use super::bad_blocks::BadBlockLog;

/// A device on which an array writes about itself, as it was found.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its role; none for a spare.
    pub role: Option<u16>,
    /// It is filled to take the place of the member that has this role.
    pub replacement: bool,
    /// What people call it.
    pub name: String,
    /// The device: a whole member, or a leg's metadata volume.
    pub layer: Arc<dyn Layer>,
    /// Where the superblock is.
    pub superblock: Sector,
    /// Where the superblock of the bitmap is, if there is a bitmap.
    pub bitmap: Option<Sector>,
    /// Where the data starts, for devices that hold data themselves.
    pub data_start: Sector,
    /// Room for data from there on, up to what the array keeps behind it; none: all of the device that has the data.
    pub room: Option<Sectors>,
    /// In sync only below it (from the start of the data); none: all of it.
    pub recovered: Option<Sector>,
    /// While it is recovered: it lacks only what the bitmap has.
    pub by_bitmap: bool,
    /// Its list of bad blocks, if it has one.
    pub bad_blocks: Option<BadBlockLog>,
    /// What was found in it, of a replacement.
    pub bad: Vec<(Sector, Sectors)>,
}

/// What a device is to its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has this role, or is about to.
    Active {
        /// From 0.
        role: u16,
        /// In sync only below it; none: all of it.
        recovered: Option<Sector>,
        /// It lacks only what the bitmap has.
        by_bitmap: bool,
        /// Another device has the role still.
        replacement: bool,
    },
    /// It waits for a role.
    Spare,
    /// It has failed.
    Faulty,
    /// It was taken out.
    Removed,
}

/// What a superblock says of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteState {
    /// What it is.
    pub standing: Standing,
    /// Sectors that could not be read, and were mended by writing, since the array was opened.
    pub corrected: u32,
    /// Its list of bad blocks is not empty.
    pub bad_blocks: bool,
}

/// The state of an array, as its superblocks tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayState {
    /// Raised by one each time that superblocks are written.
    pub events: u64,
    /// No write is under way, and all members have all writes.
    pub clean: bool,
    /// Mirrors may differ at and beyond it; none: nowhere.
    pub resync_from: Option<Sector>,
    /// By role: which have failed, or are not there.
    pub gone: Vec<bool>,
    /// By site.
    pub sites: Vec<SiteState>,
    /// The bitmap can be believed.
    pub has_bitmap: bool,
    /// Now, by the clock of the environment.
    pub now: Nanos,
}

/// How large an array is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArraySize {
    /// The array itself; a volume of LVM, which may be cut off before its rows end.
    pub array: Sectors,
    /// What it uses of each member.
    pub member: Sectors,
}

/// A device that is to be written about.
#[derive(Debug)]
pub struct NewSite {
    /// What people call it.
    pub name: String,
    /// The whole device.
    pub layer: Arc<dyn Layer>,
    /// Its superblock, where that stays; otherwise it gets a new one.
    pub superblock: Option<Box<Superblock>>,
    /// What it is called in a new one.
    pub device_uuid: Uuid,
}

/// Why a record cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// The devices are somebody else's business.
    Fixed,
    /// No slot is free.
    Full(String),
    /// What would be written could not be read again.
    Format(Box<FormatError>),
}

/// Bytes and places of superblocks.
pub trait Record: Send + Sync + Debug {
    /// The devices on which something is written, as they were found.
    fn sites(&self) -> &[Site];
    /// The superblock of the `site`-th of them, those that were added included: whole sectors.
    fn superblock(&self, site: usize, state: &ArrayState) -> Vec<u8>;
    /// The events of the `site`-th of them as they were found.
    fn events(&self, site: usize) -> u64;
    /// Whether the `site`-th of them, as it was found, calls itself whole or lost, and is to be filled: before anything is copied to it,
    /// its superblock has to say so.
    fn comes_back(&self, site: usize) -> bool {
        let _ = site;
        false
    }
    /// A device that comes back: what its superblock says of it, if that is a superblock of this array, of the same shape.
    fn knows(&self, superblock: &Superblock) -> bool {
        let _ = superblock;
        false
    }
    /// Whether a device that comes back, by its superblock, may have writes that those that take part have not: each half of an
    /// array was used without the other. The bitmap here knows nothing of such writes.
    fn was_apart(&self, superblock: &Superblock, state: &ArrayState) -> bool {
        let _ = (superblock, state);
        true
    }
    /// One more device; its number.
    ///
    /// # Errors
    ///
    /// The devices cannot be changed, no slot is free, or the device cannot have such a superblock.
    fn add(&self, site: NewSite) -> Result<(usize, Site), RecordError> {
        let _ = site;
        Err(RecordError::Fixed)
    }
    /// What becomes zeros before the `site`-th device, which is new, gets its superblock: in this order.
    fn wipes(&self, site: usize, remains: &Remains) -> Vec<Region> {
        let _ = (site, remains);
        Vec::new()
    }
    /// The `site`-th device was taken out: its slot is free.
    fn remove(&self, site: usize) {
        let _ = site;
    }
    /// From now on the array is so large, and has this bitmap, if it has one. `told` are the sites whose superblocks are going to say so.
    ///
    /// # Errors
    ///
    /// As [`Record::add`], and one of those sites without room for the data, or for the bitmap. Nothing has changed then.
    fn resize(
        &self,
        size: ArraySize,
        bitmap: Option<&BitmapSuperblock>,
        told: &[usize],
    ) -> Result<(), RecordError> {
        let _ = (size, bitmap, told);
        Err(RecordError::Fixed)
    }
    /// Whether its devices are somebody else's business.
    fn is_fixed(&self) -> bool {
        true
    }
}
