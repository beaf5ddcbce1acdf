//! The sets of a write-intent bitmap: what is written when, and what may be cleared.

use super::*;
use blockwork_format::md::Uuid;

const CHUNK: u64 = 128;

fn intent(chunks: u64, set: &[u64], may_differ: bool) -> Intent {
    let superblock = BitmapSuperblock {
        version: 4,
        uuid: Uuid([7; 16]),
        events: 17,
        events_cleared: 16,
        sync_size: chunks * CHUNK,
        state: 0,
        chunk_bytes: 64 << 10,
        daemon_sleep: 5,
        write_behind: 0,
        sectors_reserved: 0,
        nodes: 0,
        cluster_name: [0; 64],
        reserved: [0; 120],
    };
    let mut bits = Bits::clean(chunks);
    set.iter().for_each(|chunk| assert!(bits.set(*chunk)));
    Intent::new(IntentConfig { superblock, bits, may_differ }, 17)
}

fn at(chunk: u64) -> (Sector, Sectors) {
    (Sector(chunk * CHUNK), Sectors(1))
}

/// Writes what has changed, as a slow path does, and gives where that was.
fn write(intent: &Intent) -> Vec<(u64, usize)> {
    let wanted = intent.take_wanted();
    let runs = intent.disk().take_changes();
    intent.publish(&wanted);
    runs.iter().map(|run| (run.offset.0, run.bytes.len())).collect()
}

#[test]
fn a_write_waits_for_its_bits_and_only_their_pieces_are_written() {
    let chunks = 3 * 4096 * 8;
    let intent = intent(chunks, &[], false);
    assert_eq!(write(&intent), [(0, 4 * 4096 - 4096 + 512)], "whole at first, in one go");
    let (sector, nr) = at(40_000);
    assert!(!intent.admit(sector, nr));
    intent.want(sector, nr);
    assert_eq!(write(&intent), [(8, 4096)]);
    assert!(intent.admit(sector, nr));
    let both = (Sector(sector.0 - 1), Sectors(2));
    assert!(!intent.admit(both.0, both.1), "the chunk before is not ready");
    intent.want(both.0, both.1);
    assert_eq!(write(&intent), [(8, 4096)]);
    assert!(write(&intent).is_empty());
    assert_eq!(intent.dirty_chunks(), (2, 2));
}

#[test]
fn bits_are_cleared_only_after_a_time_without_writes_and_not_if_wanted_again() {
    let intent = intent(256, &[], false);
    for chunk in [1, 100, 200] {
        intent.want(at(chunk).0, at(chunk).1);
    }
    write(&intent);
    assert!(intent.withdraw_idle().is_empty(), "given just now");
    assert!(intent.admit(at(1).0, at(1).1));
    let idle = intent.withdraw_idle();
    assert_eq!(idle, [(1, 1 << 36), (3, 1 << 8)]);
    assert!(intent.is_ready(at(1).0, at(1).1));
    assert!(!intent.admit(at(100).0, at(100).1), "withdrawn, and wanted again");
    intent.want(at(100).0, at(100).1);
    intent.clear(&idle);
    assert_eq!(intent.dirty_chunks(), (2, 2), "200 is clear");
    assert!(intent.is_ready(at(100).0, at(100).1) && !intent.is_ready(at(200).0, at(200).1));
    assert!(intent.take_wanted().is_empty());
}

#[test]
fn a_chunk_that_another_write_had_set_first_does_not_stay_wanted() {
    let intent = intent(64, &[], false);
    intent.want(at(5).0, at(5).1);
    let wanted = intent.take_wanted();
    intent.want(at(5).0, at(5).1);
    intent.publish(&wanted);
    let clear = || {
        intent.withdraw_idle();
        let idle = intent.withdraw_idle();
        intent.clear(&idle);
    };
    clear();
    assert_eq!(intent.dirty_chunks(), (1, 1), "the second write may be about to use it");
    clear();
    assert_eq!(intent.dirty_chunks(), (0, 0));
}

#[test]
fn a_chunk_that_was_given_to_a_write_meanwhile_is_not_cleared() {
    let intent = intent(64, &[], false);
    intent.want(at(5).0, at(5).1);
    write(&intent);
    intent.withdraw_idle();
    let idle = intent.withdraw_idle();
    assert_eq!(idle, [(0, 1 << 5)]);
    intent.want(at(5).0, at(5).1);
    write(&intent);
    intent.clear(&idle);
    assert_eq!(intent.dirty_chunks(), (1, 1));
    assert!(intent.is_ready(at(5).0, at(5).1));
}

#[test]
fn chunks_that_may_differ_are_never_cleared_and_can_be_written() {
    let intent = intent(64, &[3, 9], true);
    assert!(intent.any_kept() && intent.is_kept(at(3).0, at(3).1) && !intent.is_kept(at(4).0, at(4).1));
    write(&intent);
    intent.publish_all();
    assert!(intent.withdraw_idle().is_empty());
    intent.want(at(4).0, at(4).1);
    write(&intent);
    intent.withdraw_idle();
    let idle = intent.withdraw_idle();
    assert_eq!(idle, [(0, 1 << 4)]);
    intent.keep(at(4).0, at(4).1);
    intent.clear(&idle);
    assert!(intent.is_ready(at(4).0, at(4).1), "kept while it was withdrawn");
    intent.clear_all();
    assert_eq!(intent.dirty_chunks(), (3, 0));
}

#[test]
fn bits_left_over_from_a_degraded_time_are_cleared_when_all_members_are_there() {
    let intent = intent(64, &[3], false);
    assert!(!intent.any_kept());
    write(&intent);
    intent.publish_all();
    let idle = intent.withdraw_idle();
    intent.clear(&idle);
    assert_eq!(intent.dirty_chunks(), (0, 0));
}

#[test]
fn a_stale_bitmap_is_all_dirty_and_believed_from_then_on() {
    let fresh = intent(64, &[], false);
    let superblock = fresh.disk().superblock.clone();
    let stale = IntentConfig { superblock, bits: Bits::clean(64), may_differ: true };
    let intent = Intent::new(stale, 18);
    assert_eq!(intent.dirty_chunks(), (64, 0));
    assert_eq!(intent.disk().superblock.events_cleared, 18);
}
