//! Superblocks of dm-raid, kept as Linux keeps them for LVM's RAID volumes: in a metadata volume beside each leg.
//!
//! While writes may be under way, `array_resync_offset` is 0: a resync has to begin there, and goes where the bitmap says.
//! Linux does not set it, and so does not resync after a crash of its own, whatever the bitmap has: the kernel takes bits for
//! differences only at and beyond that offset. With it, legs agree again when Linux activates what we were killed on.
//!
//! A leg that has failed, or is missing, has its bit in `failed_devices` of all others from the next change on. Bits are
//! never taken back here: that is for whoever repairs the volume. Which legs there are is for LVM to say: none is added or
//! removed here.
//!
//! How large the array is, LVM says as well. Where that is more than superblocks tell, they get the new size with the first change
//! that is written: after the bitmap, which has the new part set, and with a resync that is due. A power cut before leaves
//! an array that is found smaller than LVM says once more; after it, one that is not in sync behind its old end.

use std::sync::Arc;

use blockwork_engine::{Layer, Sector, Sectors};
use blockwork_format::SECTOR_BYTES;
use blockwork_format::dm_raid::{BITMAP_OFFSET, IN_SYNC, Superblock};

use super::record::{ArrayState, Record, Site, Standing};

/// A leg with its superblock as it was found.
#[derive(Debug)]
pub struct DmRaidLeg {
    /// Its position.
    pub role: u16,
    /// What people call its metadata volume.
    pub name: String,
    /// That volume.
    pub layer: Arc<dyn Layer>,
    /// Its superblock.
    pub superblock: Superblock,
}

/// The size of an array that has grown.
#[derive(Clone, Copy, Debug)]
pub struct DmRaidSize {
    /// Of the array.
    pub array: Sectors,
    /// Of what it uses of each leg.
    pub leg: Sectors,
}

/// Superblocks of dm-raid. See the module's head.
#[derive(Debug)]
pub struct DmRaidRecord {
    sites: Vec<Site>,
    found: Vec<Superblock>,
    grown: Option<DmRaidSize>,
}

impl DmRaidRecord {
    /// The record of an array with these legs; `has_bitmap`: with a bitmap behind each superblock; `grown`: it is larger than
    /// the superblocks say.
    pub fn new(legs: Vec<DmRaidLeg>, has_bitmap: bool, grown: Option<DmRaidSize>) -> DmRaidRecord {
        let bitmap = has_bitmap.then_some(Sector(BITMAP_OFFSET / SECTOR_BYTES));
        let split = legs.into_iter().map(|DmRaidLeg { role, name, layer, superblock }| {
            let site = Site {
                role: Some(role),
                replacement: false,
                name,
                layer,
                superblock: Sector(0),
                bitmap,
                data_start: Sector(0),
                room: None,
                recovered: None,
                by_bitmap: false,
                bad_blocks: None,
                bad: Vec::new(),
            };
            (site, superblock)
        });
        let (sites, found) = split.unzip();
        DmRaidRecord { sites, found, grown }
    }
}

impl Record for DmRaidRecord {
    fn sites(&self) -> &[Site] {
        &self.sites
    }

    fn superblock(&self, site: usize, state: &ArrayState) -> Vec<u8> {
        let mut superblock = self.found[site].clone();
        superblock.events = state.events;
        if let Some(DmRaidSize { array, leg }) = self.grown.filter(|_| superblock.is_extended()) {
            (superblock.array_sectors, superblock.sectors) = (array.0, leg.0);
        }
        let from = state.resync_from.map_or(IN_SYNC, |from| from.0);
        superblock.array_resync_offset = if state.clean { from } else { 0 };
        if let Standing::Active { recovered, .. } = state.sites[site].standing {
            superblock.disk_recovery_offset = recovered.map_or(IN_SYNC, |end| end.0);
        }
        for (position, _) in (0..).zip(&state.gone).filter(|(_, gone)| **gone) {
            superblock.fail(position);
        }
        superblock.encode().into()
    }

    fn events(&self, site: usize) -> u64 {
        self.found[site].events
    }
}
