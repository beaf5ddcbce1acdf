//! What a device may have of what it was before it becomes a member, and in which order that goes.
//!
//! (1) Of superblocks, partition tables and file systems, nothing is left outside of the member's data by which somebody could take the
//! device for what it was; of superblocks and of the second header of a GPT, nothing inside either. (2) Of superblocks the one that
//! counts, that of the array which was created last, goes last: if the power goes before that, it is still that one, and no older one is
//! believed in its place. (3) All of them go before what else is there, which is also what they tell of: a superblock whose bitmap or list
//! of bad blocks is gone would be believed.

use super::create::unused_regions;
use super::find::{Place, places};
use super::v1::{Region, Superblock};
use crate::SECTOR_BYTES;
use crate::bytes::length;

/// Sectors of the blocks that a GPT's header may be the last of.
const GPT_BLOCKS: [u64; 2] = [1, 8];

const GPT_MAGIC: &[u8] = b"EFI PART";

/// Where a device may have something of what it was, also where data goes: to be read, and shown to [`Remains::look`].
#[derive(Debug, Clone, Copy)]
pub struct Suspect {
    /// What is to be read.
    pub region: Region,
    /// A superblock's place; none: a GPT's second header.
    place: Option<Place>,
}

/// Where a device of so many sectors is to be looked at.
pub fn suspects(device_sectors: u64) -> impl Iterator<Item = Suspect> {
    let headers = GPT_BLOCKS.into_iter().filter_map(move |block| {
        let start = (device_sectors / block * block).checked_sub(block)?;
        Some(Suspect { region: Region { start, sectors: block }, place: None })
    });
    let superblocks = places(device_sectors).map(|place| {
        let region = Region { start: place.sector, sectors: length(Place::BYTES).div_ceil(SECTOR_BYTES) };
        Suspect { region, place: Some(place) }
    });
    headers.chain(superblocks)
}

/// What a device has of what it was.
#[derive(Debug, Clone)]
pub struct Remains {
    device_sectors: u64,
    headers: Vec<Region>,
    /// With the time at which their arrays were created, where they tell it.
    superblocks: Vec<(Option<u64>, Region)>,
}

impl Remains {
    /// Of a device at which nobody has looked so far.
    pub fn new(device_sectors: u64) -> Remains {
        Remains { device_sectors, headers: Vec::new(), superblocks: Vec::new() }
    }

    /// What was read there; none: it could not be read, but may be some day.
    pub fn look(&mut self, suspect: Suspect, bytes: Option<&[u8]>) {
        let Suspect { region, place } = suspect;
        match (place, bytes) {
            (None, Some(bytes)) if !bytes.starts_with(GPT_MAGIC) => {}
            (None, _) => self.headers.push(region),
            (Some(_), None) => self.superblocks.push((None, region)),
            (Some(place), Some(bytes)) => {
                let found = place.decode(bytes, self.device_sectors);
                let created = found.map(|it| it.ok().map(|superblock| superblock.ctime_seconds()));
                self.superblocks.extend(created.map(|created| (created, region)));
            }
        }
    }

    /// What becomes zeros before the device gets this superblock, in this order. No two overlap.
    pub fn wipes(&self, superblock: &Superblock) -> Vec<Region> {
        // Of equally old ones, that in the first place counts.
        let mut superblocks: Vec<_> = self.superblocks.iter().rev().copied().collect();
        superblocks.sort_by_key(|(created, _)| *created);
        let unused = unused_regions(superblock, self.device_sectors);
        let all = self.headers.iter().copied().chain(superblocks.into_iter().map(|it| it.1)).chain(unused);
        let mut wipes: Vec<Region> = Vec::new();
        for region in all {
            wipes.extend(without(region, &wipes));
        }
        wipes
    }
}

/// The parts of a region that are in none of the others.
fn without(region: Region, others: &[Region]) -> Vec<Region> {
    let mut parts = vec![region];
    for other in others {
        let cut = |part: Region| {
            let before = (part.start, part.end().min(other.start));
            let behind = (part.start.max(other.end()), part.end());
            [before, behind].into_iter().filter(|(start, end)| start < end)
        };
        parts = parts
            .into_iter()
            .flat_map(cut)
            .map(|(start, end)| Region { start, sectors: end - start })
            .collect();
    }
    parts
}

#[cfg(test)]
mod tests;
