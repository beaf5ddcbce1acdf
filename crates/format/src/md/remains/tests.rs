//! What is wiped, and in which order: where it could be found, once each, and what counts last.

use super::super::create::{BitmapChoice, NewArray, NewDevice, Shape};
use super::super::v1::{Minor, Superblock};
use super::super::{MAGIC, SetName, Time, Uuid, v0};
use super::*;

const SECTORS: u64 = 64 << 11;

fn superblock(minor: Minor, created: u64, sectors: u64) -> Superblock {
    let array = NewArray {
        minor,
        shape: Shape::Raid1,
        raid_disks: 1,
        bitmap: BitmapChoice::None,
        assume_clean: true,
        size: None,
        data_offset: None,
        uuid: Uuid([7; 16]),
        name: SetName::new("data").unwrap(),
        ctime: Time::new(created, 0),
    };
    let devices = [Some(NewDevice { sectors, uuid: Uuid([1; 16]) })];
    array.lay_out(&devices).unwrap().remove(0).superblock
}

/// What is wiped of a device that has these bytes at these sectors, and cannot be read at those.
fn wipes(minor: Minor, held: &[(u64, Vec<u8>)], unreadable: &[u64]) -> Vec<Region> {
    let mut remains = Remains::new(SECTORS, 1);
    for suspect in suspects(SECTORS) {
        let Region { start, sectors } = suspect.region;
        let mut bytes = vec![0; usize::try_from(sectors * SECTOR_BYTES).unwrap()];
        for (_, held) in held.iter().filter(|(sector, _)| *sector == start) {
            bytes[..held.len()].copy_from_slice(held);
        }
        remains.look(suspect, Some(&*bytes).filter(|_| !unreadable.contains(&start)));
    }
    remains.wipes(&superblock(minor, 1_900_000_000, SECTORS))
}

/// The blocks that the head is wiped in, and what of the start is behind them.
fn head(end: u64) -> Vec<Region> {
    (0..8).rev().map(|sector| region(sector, 1)).chain([region(8, end - 8)]).collect()
}

fn region(start: u64, sectors: u64) -> Region {
    Region { start, sectors }
}

#[test]
fn a_device_with_nothing_has_zeros_at_both_ends_where_no_data_goes() {
    let data = superblock(Minor::V1_2, 0, SECTORS).data();
    assert_eq!(wipes(Minor::V1_2, &[], &[]), head(data.start.min(2048)));
    let data = superblock(Minor::V1_0, 0, SECTORS).data();
    assert_eq!(wipes(Minor::V1_0, &[], &[]), [region(data.end(), SECTORS - data.end())]);
}

#[test]
fn the_second_header_of_a_table_is_wiped_wherever_its_blocks_put_it() {
    for (start, sectors) in [(SECTORS - 1, 1), (SECTORS - 8, 8)] {
        let wipes = wipes(Minor::V1_1, &[(start, GPT_MAGIC.to_vec())], &[]);
        assert_eq!(wipes, [vec![region(start, sectors)], head(2048)].concat());
    }
}

#[test]
fn superblocks_of_both_byte_orders_are_wiped() {
    let place = v0::sector(SECTORS).unwrap();
    for magic in [MAGIC.to_le_bytes(), MAGIC.to_be_bytes()] {
        let wipes = wipes(Minor::V1_2, &[(place, magic.to_vec())], &[]);
        assert_eq!(wipes, [vec![region(place, 8)], head(2048)].concat());
    }
}

fn encoded(minor: Minor, created: u64) -> (u64, Vec<u8>) {
    let superblock = superblock(minor, created, SECTORS);
    (superblock.super_offset, superblock.encode())
}

#[test]
fn of_superblocks_the_one_that_counts_goes_last_and_all_before_what_they_tell_of() {
    let oldest = encoded(Minor::V1_0, 1_500_000_000);
    let newest = encoded(Minor::V1_1, 1_700_000_000);
    let between = encoded(Minor::V1_2, 1_600_000_000);
    let unreadable = v0::sector(SECTORS).unwrap();
    let held = [oldest.clone(), newest.clone(), between.clone()];
    let wipes = wipes(Minor::V1_2, &held, &[unreadable]);
    let order: Vec<u64> = wipes.iter().map(|it| it.start).collect();
    // The newest has one sector, and its list of bad blocks lies between what is hidden by it.
    let log = superblock(Minor::V1_1, 1_700_000_000, SECTORS).bad_block_log().unwrap();
    assert_eq!((newest.0, between.0), (0, 8));
    assert_eq!((log.start, log.end()), (16, 24));
    assert_eq!(order, [unreadable, oldest.0, between.0, 7, 6, 5, 4, 3, 2, 1, 24, newest.0, 16]);
}

#[test]
fn what_a_superblock_hides_goes_before_it_and_what_it_tells_of_behind() {
    let newest = encoded(Minor::V1_2, 1_700_000_000);
    let wipes = wipes(Minor::V1_1, std::slice::from_ref(&newest), &[]);
    let log = superblock(Minor::V1_2, 1_700_000_000, SECTORS).bad_block_log().unwrap();
    let own = wipes.iter().position(|it| it.start == newest.0).unwrap();
    let covers = |wipes: &[Region], sector| wipes.iter().any(|it| it.start <= sector && sector < it.end());
    for hidden in (0..newest.0).chain(log.end()..2048) {
        assert!(covers(&wipes[..own], hidden), "sector {hidden}: {wipes:?}");
    }
    for told in log.start..log.end() {
        assert!(covers(&wipes[own + 1..], told), "sector {told}: {wipes:?}");
    }
}

#[test]
fn what_an_array_holds_goes_behind_its_superblock() {
    let newest = encoded(Minor::V1_0, 1_700_000_000);
    let wipes = wipes(Minor::V1_2, std::slice::from_ref(&newest), &[]);
    assert_eq!(wipes[0], region(newest.0, 8), "its data begins at sector 0: {wipes:?}");
}

#[test]
fn a_table_goes_with_its_boot_sector_and_a_label_before_its_metadata() {
    let table = wipes(Minor::V1_2, &[(1, GPT_MAGIC.to_vec())], &[]);
    assert_eq!(table[..3], [region(0, 1), region(1, 1), region(7, 1)]);
    let blocks_of_4096 = wipes(Minor::V1_2, &[(8, GPT_MAGIC.to_vec())], &[]);
    assert_eq!(blocks_of_4096[..3], [region(0, 8), region(8, 8), region(16, 2032)]);
}

#[test]
fn a_device_with_blocks_of_4096_bytes_has_whole_ones_wiped() {
    let wipes = Remains::new(SECTORS, 8).wipes(&superblock(Minor::V1_2, 0, SECTORS));
    assert_eq!(wipes, [region(0, 8), region(8, 2040)]);
}

#[test]
fn nothing_is_wiped_twice_however_small_the_device() {
    let of = superblock(Minor::V1_2, 0, SECTORS);
    for sectors in 0..600 {
        let mut remains = Remains::new(sectors, 1);
        for suspect in suspects(sectors) {
            assert!(suspect.region.end() <= sectors, "{suspect:?} of {sectors}");
            remains.look(suspect, None);
        }
        let mut wipes = remains.wipes(&of);
        wipes.sort_by_key(|region| region.start);
        assert!(wipes.windows(2).all(|pair| pair[0].end() <= pair[1].start), "{wipes:?} of {sectors}");
    }
}
