//! What one device says of the array that it is a member of: its superblock, its copy of the bitmap and its list of bad
//! blocks, as they are on it. For people who look; nothing here is compared with other members.

use blockwork_format::md::bitmap::{BitmapSuperblock, Bits};
use blockwork_format::md::v1::Region;
use blockwork_format::md::{Superblock, bad_blocks, v1};
use blockwork_format::{FormatError, SECTOR_BYTES, Source};

use super::intent::{self, Copy};
use crate::assembly::Assembly;
use crate::graph::{Content, DeviceId};

/// What was found on a member.
#[derive(Debug)]
pub struct Examined {
    /// Size of the device, sectors.
    pub sectors: u64,
    /// Its superblock.
    pub superblock: Superblock,
    /// Its copy of the write-intent bitmap, or why that cannot be read; none where the superblock tells of none.
    pub bitmap: Option<Result<(BitmapSuperblock, Bits), FormatError>>,
    /// Ranges of the device that must not be read, or why they cannot be told; none where it keeps no list.
    pub bad_blocks: Option<Result<Vec<Region>, FormatError>>,
}

impl Assembly {
    /// What a device says of its array; none where it is a member of none.
    pub fn examine(&mut self, id: DeviceId) -> Option<Examined> {
        let device = self.graph.device(id);
        let Content::MdMember(superblock) = &device.content else { return None };
        let (superblock, layer) = ((**superblock).clone(), device.layer()?.clone());
        Some(self.read(&*layer, |source| Examined {
            sectors: source.size() / SECTOR_BYTES,
            bitmap: bitmap(source, &superblock),
            bad_blocks: bad_block_list(source, &superblock),
            superblock,
        }))
    }
}

fn bitmap(source: &dyn Source, superblock: &Superblock) -> Option<Copy> {
    match superblock {
        Superblock::V1(superblock) => {
            let offset = superblock.bitmap_sector()?.saturating_mul(SECTOR_BYTES);
            let room = superblock.bitmap_room_sectors(source.size() / SECTOR_BYTES).unwrap_or(0);
            Some(own_bitmap(source, offset, room))
        }
        Superblock::V0(superblock) => {
            // Up to the end of what is kept for the superblock.
            let sector = superblock.bitmap_sector()?;
            let room = (source.size() / SECTOR_BYTES).saturating_sub(sector);
            Some(own_bitmap(source, sector.saturating_mul(SECTOR_BYTES), room))
        }
    }
}

/// The bitmap at byte `offset`, as large as it says, with so much room.
fn own_bitmap(source: &dyn Source, offset: u64, room: u64) -> Copy {
    intent::read_at(source, offset, |bitmap| (bitmap.uuid, bitmap.sync_size), room)
}

fn bad_block_list(source: &dyn Source, superblock: &Superblock) -> Option<Result<Vec<Region>, FormatError>> {
    let Superblock::V1(superblock) = superblock else { return None };
    let log = superblock.bad_block_log()?;
    if !superblock.features.has(v1::Features::BAD_BLOCKS) {
        return Some(Ok(Vec::new()));
    }
    let offset = log.start.saturating_mul(SECTOR_BYTES);
    let unreadable = |error| FormatError::unreadable("md bad block log", offset, &error);
    // `check` has bounded its size.
    let mut bytes = vec![0; usize::from(superblock.bblog_sectors) * 512];
    Some(source.read_at(offset, &mut bytes).map_err(unreadable).and_then(|()| {
        bad_blocks::decode(&bytes, superblock.bblog_shift, offset, source.size() / SECTOR_BYTES)
    }))
}
