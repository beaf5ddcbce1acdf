//! A volume of many blocks that leaves a pool which nobody serves: by transactions that are bounded, after each of which the metadata is
//! whole. The power goes between any two writes.

mod cuts;
mod lab;

use std::collections::BTreeMap;
use std::process::Command;

use blockwork_format::thin::build::{Contents, Device, Mappings, build};
use blockwork_format::thin::{BITMAP_ENTRIES, BlockTime, DeviceDetails};
use blockwork_format::{Piece, Sparse};
use blockwork_layer::thin::DIRTY_MAX;
use blockwork_layer::thin::check::{Report, check};
use blockwork_volume::{Assembly, Plan, PoolChange};
use cuts::{Chance, Cut, Event, begin_with_flushes, logged};
use lab::{Disk, Lab};

const BLOCK_SECTORS: u32 = 128;
/// Rows of a leaf as it is built.
const LEAF: u64 = 252;
/// Bitmaps that know of the data blocks of one leaf.
const BITMAPS: u64 = 12;

/// A pool of a table with one volume, whose blocks lie all over the data device.
struct Pool {
    metadata: Disk,
    table: Disk,
}

impl Pool {
    fn new(lab: &Lab, leaves: u64, metadata_blocks: u64) -> Pool {
        let (mapped, stride) = (leaves * LEAF, BITMAPS * BITMAP_ENTRIES / LEAF);
        let rows = (0..mapped).map(|nr| (nr, BlockTime { block: nr * stride, time: 0 }));
        let details =
            DeviceDetails { mapped_blocks: 0, transaction_id: 0, creation_time: 0, snapshotted_time: 0 };
        let volume = Device { details, mappings: Mappings::Own(rows.collect()) };
        let contents = Contents {
            data_block_sectors: BLOCK_SECTORS,
            data_blocks: mapped * stride,
            metadata_blocks,
            time: 0,
            transaction_id: 0,
            devices: BTreeMap::from([(7, volume)]),
        };
        let metadata = lab.disk("metadata", metadata_blocks * 8);
        build(&contents).unwrap().iter().for_each(|piece| metadata.write(piece.offset, &piece.bytes));
        let data = lab.disk("data", contents.data_blocks * u64::from(BLOCK_SECTORS));
        let line = format!(
            "pool: 0 {} thin-pool {} {} {BLOCK_SECTORS} 0\n",
            data.sectors(),
            metadata.path.display(),
            data.path.display()
        );
        let table = lab.disk("table", 0);
        table.write(0, line.as_bytes());
        Pool { metadata, table }
    }

    /// What is written to take the volume away: to the metadata alone.
    fn delete(&self) -> Vec<Event> {
        let mut assembly = Assembly::open(Plan::default()).unwrap();
        let table = self.table.path.to_str().unwrap();
        let commit = assembly.change_table_pool(table, "dm/pool", PoolChange::Delete { device: 7 }).unwrap();
        let mut events = logged(&assembly, |cx| async move { commit.run(&cx).await.unwrap() });
        let first = events.iter().map(leaf).next().unwrap();
        assert!(events.iter().all(|event| leaf(event) == first), "only the metadata is written");
        assert!(begin_with_flushes(&events), "what was read may not be durable");
        events.iter_mut().for_each(|event| {
            let (Event::Write { leaf, .. } | Event::Flush { leaf }) = event;
            *leaf = 0;
        });
        events
    }
}

fn leaf(event: &Event) -> usize {
    let (Event::Write { leaf, .. } | Event::Flush { leaf }) = event;
    *leaf
}

fn is_superblock(event: &Event) -> bool {
    matches!(event, Event::Write { offset: 0, .. })
}

fn report(metadata: Vec<u8>) -> Report {
    let size = metadata.len() as u64;
    check(&Sparse::new(size, vec![Piece { offset: 0, bytes: metadata }]))
}

#[track_caller]
fn expect_checked(cut: &Cut, who: &str) {
    let judged = Command::new("thin_check").arg(&cut.paths[0]).output();
    let judged = judged.unwrap_or_else(|error| {
        panic!(
            "thin_check cannot be run ({error}): this test needs the Debian package thin-provisioning-tools"
        )
    });
    assert!(judged.status.success(), "{who}: {}", String::from_utf8_lossy(&judged.stderr));
}

#[test]
fn a_volume_that_leads_to_more_than_there_is_room_to_change_at_once_is_deleted_by_steps_that_a_power_cut_may_divide()
 {
    const LEAVES: u64 = 16;
    const METADATA_BLOCKS: u64 = 256;
    let lab = Lab::new();
    // All bitmaps at once would take more than what is left of these.
    let pool = Pool::new(&lab, LEAVES, METADATA_BLOCKS);
    let before = pool.metadata.bytes();
    let used = report(before.clone()).metadata_used;
    assert!(METADATA_BLOCKS - used < LEAVES * BITMAPS / 4, "{used} blocks are in use");
    let events = pool.delete();
    let commits = events.iter().filter(|event| is_superblock(event)).count();
    assert!(commits > 3, "{commits} commits");
    let gone = report(pool.metadata.bytes());
    assert_eq!((gone.count, gone.devices, gone.data_used), (0, 0, 0), "{:?}", gone.problems);
    let (mut chance, mut left) = (Chance::default(), u64::MAX);
    for count in 0..=events.len() {
        let who = format!("event {count} of {}", events.len());
        let cut = Cut::at(std::slice::from_ref(&before), &events, count, &mut || chance.bit());
        let metadata = std::fs::read(&cut.paths[0]).unwrap();
        let found = report(metadata.clone());
        assert!(found.is_good(), "{who}: {:?}", found.problems);
        // Each commit takes some of it away, and none that is durable gives any of it back.
        assert!(found.data_used <= left, "{who}: {} after {left}", found.data_used);
        let is_under_way = events.get(count).is_some_and(is_superblock);
        let is_durable = count > 0 && matches!(events[count - 1], Event::Flush { .. }) && !is_under_way;
        if is_durable && found.data_used < left {
            left = found.data_used;
            expect_checked(&cut, &who);
            pool.metadata.write(0, &metadata);
            if found.devices > 0 {
                pool.delete();
            }
            let gone = report(pool.metadata.bytes());
            assert_eq!((gone.count, gone.devices, gone.data_used), (0, 0, 0), "{who}: {:?}", gone.problems);
        }
    }
    assert_eq!(left, 0);
}

#[test]
fn a_transaction_has_no_more_in_memory_than_that_of_a_pool_that_is_served() {
    const LEAVES: u64 = 352;
    let lab = Lab::new();
    // Room enough for all of it at once.
    let pool = Pool::new(&lab, LEAVES, 16_384);
    let events = pool.delete();
    let sizes: Vec<usize> = events.split(is_superblock).map(|events| events.len()).collect();
    let most = DIRTY_MAX + DIRTY_MAX / 8;
    assert!(sizes.len() > 2 && sizes.iter().all(|size| *size <= most), "{sizes:?}");
    let gone = report(pool.metadata.bytes());
    assert_eq!((gone.count, gone.devices, gone.data_used), (0, 0, 0), "{:?}", gone.problems);
}
