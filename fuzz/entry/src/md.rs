//! Superblocks, bitmaps and lists of bad blocks of Linux md.

use blockwork_format::md::bitmap::{BITMAP_SUPERBLOCK_BYTES, BitmapSuperblock, Bits};
use blockwork_format::md::v1::{self, Access, Minor, Region};
use blockwork_format::md::{Superblock, bad_blocks, find, raid0, v0};
use blockwork_format::{Piece, SECTOR_BYTES, Sparse};

use crate::input::Input;
use crate::{assert_printable, reached};

/// Flag of `md_superblock`: the checksum is mended.
pub(crate) const FIX_CHECKSUM: u8 = 1;
/// Flag of `md_superblock`: the field that says where the superblock is is mended.
pub(crate) const FIX_PLACE: u8 = 2;

/// A superblock on a disk. The input: flags u8; version u8 (1.1, 1.2, 1.0, 0.90); sectors of the disk u32; its bytes.
pub fn md_superblock(data: &[u8]) {
    let mut input = Input(data);
    let (flags, version) = (input.u8(), usize::from(input.u8() % 4));
    let device_sectors = u64::from(input.u32());
    let mut bytes = input.0[..input.0.len().min(v1::SUPERBLOCK_BYTES_MAX)].to_vec();
    let minor = Minor::ALL.get(version).copied();
    let sector = minor.map_or(v0::sector(device_sectors), |minor| minor.sector(device_sectors));
    let Some(sector) = sector else {
        assert_eq!(find(&Sparse::new(device_sectors * SECTOR_BYTES, Vec::new())).superblocks.len(), 0);
        return reached("no room");
    };
    if let (Some(_), true, Some(place)) = (minor, flags & FIX_PLACE != 0, bytes.get_mut(144..152)) {
        place.copy_from_slice(&sector.to_le_bytes());
    }
    if flags & FIX_CHECKSUM != 0 {
        bytes.resize(v1::SUPERBLOCK_BYTES_MAX, 0);
        match minor {
            Some(_) => v1::fix_checksum(&mut bytes),
            None => v0::fix_checksum(&mut bytes),
        }
    }
    let pieces = vec![Piece { offset: sector * SECTOR_BYTES, bytes }];
    let found = find(&Sparse::new(device_sectors * SECTOR_BYTES, pieces));
    for error in &found.refused {
        reached("refused");
        assert_printable(&error.to_string());
    }
    assert_eq!(found.newest().is_some(), !found.superblocks.is_empty());
    for superblock in &found.superblocks {
        match superblock {
            Superblock::V0(superblock) => check_v0(superblock, device_sectors),
            Superblock::V1(superblock) => check_v1(superblock, device_sectors),
        }
    }
}

fn check_v0(superblock: &v0::Superblock, device_sectors: u64) {
    reached("0.90");
    assert!(
        superblock.data().end() <= superblock.super_offset && superblock.super_offset + 8 <= device_sectors
    );
    assert!((1..=superblock.data().sectors).contains(&superblock.member_sectors()));
    if let Err(error) = superblock.supports_reading() {
        assert_printable(&error.to_string());
    }
    for disk in &superblock.disks {
        disk.role(superblock.raid_disks);
    }
    superblock.resync_offset();
}

fn check_v1(superblock: &v1::Superblock, device_sectors: u64) {
    reached("1.x");
    let apart = |a: Region, b: Region| a.end() <= b.start || b.end() <= a.start;
    let (own, data) = (superblock.own(), superblock.data());
    assert!(apart(own, data), "{superblock:?}");
    assert!(own.end() <= device_sectors && data.end() <= device_sectors, "{superblock:?}");
    if let Some(log) = superblock.bad_block_log() {
        assert!(log.end() <= device_sectors && apart(log, own) && apart(log, data), "{superblock:?}");
    }
    if let Some(room) = superblock.bitmap_room_sectors(device_sectors) {
        reached("bitmap");
        let start = superblock.bitmap_sector().expect("it has room");
        let region = Region { start, sectors: room };
        assert!(room >= 1 && region.end() <= device_sectors && apart(region, own) && apart(region, data));
    }
    if let Err(error) = superblock.supports(Access::Write) {
        assert_printable(&error.to_string());
    } else {
        reached("writable");
        assert_eq!(superblock.supports(Access::Read), Ok(()));
    }
    assert!(superblock.member_sectors() <= data.sectors || superblock.size == 0);
    if let Some(sectors) = superblock.array_sectors() {
        reached("size");
        assert!(u128::from(sectors) <= u128::from(data.sectors) * u128::from(superblock.raid_disks));
    }
    if superblock.chunk_sectors > 0
        && let Ok(zones) =
            raid0::zones(superblock.chunk_sectors, &[data.sectors, own.sectors * 9, superblock.events])
    {
        let _ = raid0::layout(&zones, Some(superblock.layout));
    }
    assert_printable(&superblock.set_name.to_string());
    // What is written is what was read.
    let bytes = superblock.encode();
    let again = v1::Superblock::decode(&bytes, superblock.minor, device_sectors);
    assert_eq!(again.as_ref(), Ok(superblock));
}

/// A bitmap with its bits. The input: bytes of bits to append u16; superblock and bits.
pub fn md_bitmap(data: &[u8]) {
    let mut input = Input(data);
    let more = usize::from(input.u16());
    let superblock = match BitmapSuperblock::decode(input.0, 8192) {
        Ok(superblock) => superblock,
        Err(error) => {
            reached("refused");
            return assert_printable(&error.to_string());
        }
    };
    reached("bitmap");
    assert_eq!(superblock.encode()[..], input.0[..BITMAP_SUPERBLOCK_BYTES]);
    assert_eq!(
        superblock.check_for(superblock.uuid, superblock.sync_size, superblock.disk_sectors(), 0),
        Ok(())
    );
    let mut bytes = input.0[BITMAP_SUPERBLOCK_BYTES..].to_vec();
    bytes.resize(bytes.len() + more, 0x10);
    let mut bits = match Bits::decode(&superblock, &bytes, 8448) {
        Ok(bits) => bits,
        Err(error) => {
            reached("bits missing");
            return assert_printable(&error.to_string());
        }
    };
    reached("bits");
    assert_eq!(bits.as_bytes(), &bytes[..bits.as_bytes().len()]);
    let (mut dirty, mut from) = (0, 0);
    while let Some(chunk) = bits.next_dirty(from) {
        assert!(chunk >= from && chunk < bits.chunks() && bits.clear(chunk));
        (dirty, from) = (dirty + 1, chunk);
    }
    assert_eq!(bits.dirty_chunks(), 0);
    for (at, byte) in bits.as_bytes().iter().enumerate() {
        let last = at + 1 == bits.as_bytes().len();
        assert!(*byte == 0 || last, "byte {at}");
    }
    assert!(dirty <= bits.chunks());
}

/// A list of bad blocks. The input: the unit u8; sectors of the disk u32; the list.
pub fn md_bad_blocks(data: &[u8]) {
    let mut input = Input(data);
    let (shift, device_sectors) = (input.u8() % 24, u64::from(input.u32()));
    let list = match bad_blocks::decode(input.0, shift, 8192, device_sectors) {
        Ok(list) => list,
        Err(error) => {
            reached("refused");
            return assert_printable(&error.to_string());
        }
    };
    reached("list");
    assert!(list.len() <= bad_blocks::ENTRIES_MAX);
    assert!(list.iter().all(|region| region.sectors > 0 && region.end() <= device_sectors));
    if !list.is_empty() {
        reached("entry");
    }
    let bytes = bad_blocks::encode(&list, shift, 8).expect("as many entries as there were");
    assert_eq!(bad_blocks::decode(&bytes, shift, 0, device_sectors), Ok(list));
}
