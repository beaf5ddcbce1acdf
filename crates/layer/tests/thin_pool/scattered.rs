//! Volumes whose blocks lie all over the data device, so that what is to be read for them does not go into memory.

use std::cell::Cell;

use blockwork_engine::{Nanos, Op};
use blockwork_format::thin::BITMAP_ENTRIES;
use blockwork_sim::Faults;

use super::rig::{BLOCK, METADATA, Make, Stand, Task, expect_checked, report, together};

/// Of the tree of volume 0, which maps every other block.
const LEAVES: u64 = 16;
const LEAF: u64 = 252;
/// Bitmaps that know of the data blocks of one leaf; a call of the editor goes through eight of them.
const BITMAPS: u64 = 12;
/// Metadata blocks that are kept: half as many, if they are bitmaps, by the editor.
const KEPT: usize = 48;
/// All there are.
const METADATA_BLOCKS: u64 = 512;

const MAPPED: u64 = LEAVES * LEAF;

fn scattered() -> Make {
    let stride = BITMAPS * BITMAP_ENTRIES / LEAF;
    Make {
        data_blocks: (MAPPED * stride, MAPPED * stride),
        metadata_blocks: (METADATA_BLOCKS, METADATA_BLOCKS),
        volumes: vec![2 * MAPPED],
        mapped: MAPPED,
        stride,
        is_blank: true,
        metadata_kept: KEPT,
        ..Make::default()
    }
}

/// Plays what gives all blocks back, and sees to it that it reads nothing again and again.
fn ends<F: Future<Output = ()>>(name: &str, script: impl FnOnce(Stand) -> F + 'static) {
    let world = scattered().play(|stand| async move {
        // So that time passes while it reads.
        let slow = Faults { stalls: 1_000_000, stall_time: Nanos::micros(100), ..Faults::default() };
        stand.world.set_faults(METADATA, slow);
        let is_done = Cell::new(false);
        let script = script(stand.clone());
        let playing = async {
            script.await;
            is_done.set(true);
        };
        let watching = async {
            while !is_done.get() {
                stand.cx.sleep(Nanos::millis(1)).await;
                let reads = stand.world.counters(METADATA).reads;
                assert!(reads < 4 * METADATA_BLOCKS, "the same blocks are read again and again");
            }
        };
        let tasks: Vec<Task<()>> = vec![Box::pin(playing), Box::pin(watching)];
        together(tasks).await;
        let reads = stand.world.counters(METADATA).reads;
        assert!(reads > LEAVES * BITMAPS, "{reads} reads: what several leaves need was in memory");
        stand.flush(&stand.thins[0]).await.unwrap();
    });
    assert_eq!(report(&world).data_used, 0);
    expect_checked(&world, name);
}

#[test]
fn a_discard_of_blocks_in_more_bitmaps_than_are_kept_in_memory_comes_to_its_end() {
    ends("scattered-discard", |stand| async move {
        stand.range(&stand.thins[0], Op::Discard, 0, 2 * MAPPED * BLOCK).await.unwrap();
    });
}

#[test]
fn a_device_whose_blocks_are_in_more_bitmaps_than_are_kept_in_memory_is_deleted() {
    ends("scattered-delete", |stand| async move {
        stand.pool.create_snap(&stand.cx, 5, 0).await.unwrap();
        stand.range(&stand.thins[0], Op::Discard, 0, 2 * MAPPED * BLOCK).await.unwrap();
        stand.pool.delete(&stand.cx, 5).await.unwrap();
    });
}

#[test]
fn a_metadata_snapshot_that_has_the_last_reference_to_such_blocks_is_released() {
    ends("scattered-release", |stand| async move {
        stand.pool.reserve_metadata_snap(&stand.cx).await.unwrap();
        stand.range(&stand.thins[0], Op::Discard, 0, 2 * MAPPED * BLOCK).await.unwrap();
        stand.pool.release_metadata_snap(&stand.cx).await.unwrap();
    });
}
