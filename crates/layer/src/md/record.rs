//! What an array writes about itself, and where: superblocks on each of its members, and the place of its bitmap.
//!
//! A [`Record`] knows bytes and places, and does no I/O: the array writes what it is given, in an order that its own head
//! explains. There are two: [`super::MdRecord`] (superblocks 1.x) and [`super::DmRaidRecord`] (LVM's RAID volumes).

use std::fmt::Debug;
use std::sync::Arc;

use blockwork_engine::{Layer, Nanos, Sector};

/// A device on which an array writes about itself.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its role; none for a spare.
    pub role: Option<u16>,
    /// What people call it.
    pub name: String,
    /// The device: a whole member, or a leg's metadata volume.
    pub layer: Arc<dyn Layer>,
    /// Where the superblock is.
    pub superblock: Sector,
    /// Where the superblock of the bitmap is, if there is a bitmap.
    pub bitmap: Option<Sector>,
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
    /// By role: sectors that could not be read, and were mended by writing, since the array was opened.
    pub corrected: Vec<u32>,
    /// Now, by the clock of the environment.
    pub now: Nanos,
}

/// Bytes and places of superblocks.
pub trait Record: Send + Sync + Debug {
    /// The devices on which something is written. The same for as long as the record lives.
    fn sites(&self) -> &[Site];
    /// The superblock of the `site`-th of them: whole sectors.
    fn superblock(&self, site: usize, state: &ArrayState) -> Vec<u8>;
    /// The events of the `site`-th of them as they were found.
    fn events(&self, site: usize) -> u64;
}
