//! What a device may have of what it was before it becomes a member, and in which order that goes.
//!
//! (1) Of superblocks, partition tables and file systems, nothing is left outside of the member's data by which somebody could take the
//! device for what it was; of superblocks and of the second header of a GPT, nothing inside either. (2) What counts hides what is older,
//! and goes behind it: if the power goes before that, the device is still what it was, and nothing older is believed in its place. Of
//! superblocks that of the array which was created last counts; before a table of partitions, that before the label of a physical volume,
//! and that before a file system which begins behind it. (3) What counts goes before what it tells of: a superblock whose bitmap or list
//! of bad blocks is gone would be believed, and so would a label whose metadata is.
//!
//! What is in an array's data is that array's, and is wiped behind its superblock: with one at the end of the device, a power cut between
//! the two leaves what the array held.

use super::create::unused_regions;
use super::find::{self, Place, places};
use super::v1::{self, Features, Region};
use crate::SECTOR_BYTES;
use crate::bytes::length;

/// Sectors of the blocks that a GPT's header may be the last of.
const GPT_BLOCKS: [u64; 2] = [1, 8];

const GPT_MAGIC: &[u8] = b"EFI PART";

/// Sectors at the start, each of which may be where something else is found: a boot sector, a label, a file system.
const HEAD_SECTORS: u64 = 8;

/// Where a device may have something of what it was, also where data goes: to be read, and shown to [`Remains::look`].
#[derive(Debug, Clone, Copy)]
pub struct Suspect {
    /// What is to be read.
    pub region: Region,
    what: What,
}

/// What may be there.
#[derive(Debug, Clone, Copy)]
enum What {
    FirstHeader,
    SecondHeader,
    Superblock(Place),
}

/// Where a device of so many sectors is to be looked at.
pub fn suspects(device_sectors: u64) -> impl Iterator<Item = Suspect> {
    let header = |what, start, block| Suspect { region: Region { start, sectors: block }, what };
    let second = GPT_BLOCKS.into_iter().filter_map(move |block| {
        let start = (device_sectors / block * block).checked_sub(block)?;
        Some(header(What::SecondHeader, start, block))
    });
    let first = GPT_BLOCKS.into_iter().filter(move |block| block * 2 <= device_sectors);
    let first = first.map(move |block| header(What::FirstHeader, block, block));
    let superblocks = places(device_sectors).map(|place| {
        let region = Region { start: place.sector, sectors: length(Place::BYTES).div_ceil(SECTOR_BYTES) };
        Suspect { region, what: What::Superblock(place) }
    });
    second.chain(first).chain(superblocks)
}

/// What a device has of what it was.
#[derive(Debug, Clone)]
pub struct Remains {
    device_sectors: u64,
    block_sectors: u64,
    /// The first header of a table that may count.
    table: Option<Region>,
    second_headers: Vec<Region>,
    superblocks: Vec<Old>,
}

/// A superblock.
#[derive(Debug, Clone)]
struct Old {
    region: Region,
    /// When its array was created, where it tells that.
    created: Option<u64>,
    /// What it is and tells of.
    uses: Vec<Region>,
}

impl Remains {
    /// Of a device at which nobody has looked so far, and that writes blocks of so many sectors as one.
    pub fn new(device_sectors: u64, block_sectors: u64) -> Remains {
        Remains {
            device_sectors,
            block_sectors: block_sectors.max(1),
            table: None,
            second_headers: Vec::new(),
            superblocks: Vec::new(),
        }
    }

    /// What was read there; none: it could not be read, but may be some day.
    pub fn look(&mut self, suspect: Suspect, bytes: Option<&[u8]>) {
        let Suspect { region, what } = suspect;
        let is_header = bytes.map(|bytes| bytes.starts_with(GPT_MAGIC));
        match what {
            What::SecondHeader if is_header != Some(false) => self.second_headers.push(region),
            What::FirstHeader if is_header == Some(true) => self.table = self.table.or(Some(region)),
            What::FirstHeader | What::SecondHeader => {}
            What::Superblock(place) => self.superblocks.extend(self.superblock(region, place, bytes)),
        }
    }

    fn superblock(&self, region: Region, place: Place, bytes: Option<&[u8]>) -> Option<Old> {
        let found = match bytes {
            Some(bytes) => place.decode(bytes, self.device_sectors)?.ok(),
            None => None,
        };
        let created = found.as_ref().map(find::Superblock::ctime_seconds);
        let known = match &found {
            Some(find::Superblock::V1(superblock)) => known_uses(superblock, self.device_sectors),
            _ => None,
        };
        // What is not understood here may be believed elsewhere, and tell of anything.
        let uses = known.unwrap_or_else(|| vec![Region { start: 0, sectors: self.device_sectors }]);
        Some(Old { region, created, uses })
    }

    /// What becomes zeros before the device gets this superblock, in this order. No two overlap.
    pub fn wipes(&self, superblock: &v1::Superblock) -> Vec<Region> {
        // Of equally old ones, that in the first place counts.
        let mut superblocks: Vec<&Old> = self.superblocks.iter().rev().collect();
        superblocks.sort_by_key(|old| old.created);
        let counting = superblocks.pop();
        let unused = self.in_order(&unused_regions(superblock, self.device_sectors));
        let hidden =
            counting.into_iter().flat_map(|old| unused.iter().flat_map(|it| without(*it, &old.uses)));
        let older = superblocks.into_iter().map(|old| old.region);
        let all = self.second_headers.iter().copied().chain(older).chain(hidden);
        let all = all.chain(counting.map(|old| old.region)).chain(unused.iter().copied());
        let mut wipes: Vec<Region> = Vec::new();
        for region in all {
            wipes.extend(without(region, &wipes));
        }
        wipes
    }

    /// The same, with what lies in the head before the rest. A table goes at once with the boot sector that announces it; of anything
    /// else, what begins further behind is what counts less.
    fn in_order(&self, regions: &[Region]) -> Vec<Region> {
        let table =
            self.table.iter().flat_map(|header| [Region { start: 0, sectors: header.start }, *header]);
        let blocks = (0..HEAD_SECTORS.div_ceil(self.block_sectors)).rev();
        let sectors = self.block_sectors;
        let head = table.chain(blocks.map(|block| Region { start: block * sectors, sectors }));
        let in_regions = head.flat_map(|part| regions.iter().filter_map(move |it| common(part, *it)));
        in_regions.chain(regions.iter().copied()).collect()
    }
}

/// What a superblock is and tells of; none where that is more than what is written here.
fn known_uses(superblock: &v1::Superblock, device_sectors: u64) -> Option<Vec<Region>> {
    let plain = Features::BITMAP
        | Features::RECOVERY_OFFSET
        | Features::BAD_BLOCKS
        | Features::REPLACEMENT
        | Features::RECOVERY_BITMAP
        | Features::RAID0_LAYOUT;
    if superblock.features.with(plain, false) != Features::default() {
        return None;
    }
    let bitmap = superblock.bitmap_sector().map(|start| {
        let sectors = superblock.bitmap_room_sectors(device_sectors).unwrap_or(device_sectors);
        Region { start, sectors }
    });
    let all = [Some(superblock.own()), Some(superblock.data()), bitmap, superblock.bad_block_log()];
    Some(all.into_iter().flatten().collect())
}

/// What two have in common.
fn common(one: Region, other: Region) -> Option<Region> {
    let start = one.start.max(other.start);
    let sectors = one.end().min(other.end()).checked_sub(start)?;
    (sectors > 0).then_some(Region { start, sectors })
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
