//! Superblocks of dm-raid, kept as Linux keeps them for LVM's RAID volumes: in a metadata volume beside each leg.
//!
//! While writes may be under way, `array_resync_offset` is 0: a resync has to begin there, and goes where the bitmap says.
//! Linux does not set it, and so does not resync after a crash of its own, whatever the bitmap has: the kernel takes bits for
//! differences only at and beyond that offset. With it, legs agree again when Linux activates what we were killed on.
//!
//! A leg that has failed, or is missing, has its bit in `failed_devices` of all others from the next change on. Which legs there are
//! is for LVM to say: none is added or removed here.
//!
//! A leg that was away, and is there again when the array is opened, *comes back*: it takes part at once, and is filled. Before
//! anything is written to its data, its own superblock says that nothing of it is in sync (`disk_recovery_offset` 0): half filled, it
//! must never be taken for what it was, also where it is all that somebody has. What the others say tells how it is to be filled, to
//! Linux as to us:
//!
//! | | its bit in `failed_devices` | its `disk_recovery_offset` | who finds it so fills it |
//! | --- | --- | --- | --- |
//! | [`ComesBack::ByBitmap`] | set in all superblocks, its own as well, until it is whole | 0 until it is whole | by the bitmap, from the start |
//! | [`ComesBack::Whole`] | cleared | how far it is | whole, from there on |
//! | [`ComesBack::ByBitmap`], of mirrors, filled | cleared | its end | whole, from there on: not at all |
//! | away again | set in those of the others | as it was then | by the bitmap, if its own superblock has the bit; whole, if not |
//!
//! Linux fills a leg by the bitmap wherever the bit is set. So of one that is to be filled whole the bitmap has all bits set before that
//! begins, and keeps them until it is done, as an array without all of its legs clears none: should it be away again in the midst of that,
//! Linux fills all of it, too. Its own superblock is written first each time: as soon as no other calls it failed, it tells how far it is. So the
//! one of a mirror's leg that was filled by the bitmap first tells that it is filled to its end, then that it is whole: never is a leg whole that another one, which knows of
//! all that was written, calls failed. Should that one be away next, and the leg go on alone, it would look as if it had been used apart. (With a parity no
//! leg goes on alone; and one that is filled in part, when the power goes, is worth less than one that is not or is whole: parities may not fit.)
//!
//! How large the array is, LVM says as well. Where that is more than superblocks tell, they get the new size with the first change
//! that is written: after the bitmap, which has the new part set, and with a resync that is due. A power cut before leaves
//! an array that is found smaller than LVM says once more; after it, one that is not in sync behind its old end. So it is where it grows
//! while it is served (`grow_legs.rs`): the group's text first, then the bitmaps, then the superblocks, then what is written to the new part.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockwork_engine::{Layer, Sector};
use blockwork_format::SECTOR_BYTES;
use blockwork_format::dm_raid::{BITMAP_OFFSET, IN_SYNC, Superblock};
use blockwork_format::md::bitmap::BitmapSuperblock;

use super::record::{ArraySize, ArrayState, Record, RecordError, Site, SiteState, Standing};

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
    /// It was away: how it is filled.
    pub comes_back: Option<ComesBack>,
}

/// How a leg that was away is filled. See the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComesBack {
    /// It lacks nothing but what the bitmap has.
    ByBitmap,
    /// Nothing is known of what it lacks.
    Whole,
}

/// Superblocks of dm-raid. See the module's head.
#[derive(Debug)]
pub struct DmRaidRecord {
    sites: Vec<Site>,
    found: Vec<Superblock>,
    /// By site.
    comes_back: Vec<Option<ComesBack>>,
    /// It is larger than the superblocks were found to say.
    grown: Mutex<Option<ArraySize>>,
}

impl DmRaidRecord {
    /// The record of an array with these legs; `has_bitmap`: with a bitmap behind each superblock; `grown`: it is larger than
    /// the superblocks say.
    pub fn new(legs: Vec<DmRaidLeg>, has_bitmap: bool, grown: Option<ArraySize>) -> DmRaidRecord {
        let bitmap = has_bitmap.then_some(Sector(BITMAP_OFFSET / SECTOR_BYTES));
        let comes_back = legs.iter().map(|leg| leg.comes_back).collect();
        let split = legs.into_iter().map(|DmRaidLeg { role, name, layer, superblock, comes_back }| {
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
                by_bitmap: comes_back == Some(ComesBack::ByBitmap),
                bad_blocks: None,
                bad: Vec::new(),
            };
            (site, superblock)
        });
        let (sites, found) = split.unzip();
        DmRaidRecord { sites, found, comes_back, grown: Mutex::new(grown) }
    }

    fn grown(&self) -> MutexGuard<'_, Option<ArraySize>> {
        self.grown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record for DmRaidRecord {
    fn sites(&self) -> &[Site] {
        &self.sites
    }

    fn superblock(&self, site: usize, state: &ArrayState) -> Vec<u8> {
        let mut superblock = self.found[site].clone();
        superblock.events = state.events;
        if let Some(ArraySize { array, member }) = self.grown().filter(|_| superblock.is_extended()) {
            (superblock.array_sectors, superblock.sectors) = (array.0, member.0);
        }
        let from = state.resync_from.map_or(IN_SYNC, |from| from.0);
        superblock.array_resync_offset = if state.clean { from } else { 0 };
        if let Standing::Active { recovered, by_bitmap, .. } = state.sites[site].standing {
            let end = recovered.map(|end| if by_bitmap { 0 } else { end.0 });
            superblock.disk_recovery_offset = end.unwrap_or(IN_SYNC);
        }
        let lacks_what_the_bitmap_has = |position: u16| {
            let is = |site: &SiteState| matches!(site.standing, Standing::Active { role, recovered: Some(_), by_bitmap: true, .. } if role == position);
            state.sites.iter().any(is)
        };
        for (position, gone) in (0..).zip(&state.gone) {
            if *gone || lacks_what_the_bitmap_has(position) {
                superblock.fail(position);
            } else {
                superblock.unfail(position);
            }
        }
        superblock.encode().into()
    }

    fn comes_back(&self, site: usize) -> bool {
        self.comes_back[site].is_some()
    }

    fn resize(
        &self,
        size: ArraySize,
        bitmap: Option<&BitmapSuperblock>,
        told: &[usize],
    ) -> Result<(), RecordError> {
        let sites = told.iter().map(|site| &self.sites[*site]);
        for (site, bitmap) in sites.filter_map(|site| Some((site, bitmap?))) {
            let start = site.bitmap.unwrap_or_default();
            let room = site.layer.sectors().0.saturating_sub(start.0);
            let checked = bitmap.check_for(bitmap.uuid, bitmap.sync_size, room, start.bytes());
            checked.map_err(|error| RecordError::Format(Box::new(error)))?;
        }
        *self.grown() = Some(size);
        Ok(())
    }

    fn events(&self, site: usize) -> u64 {
        self.found[site].events
    }
}
