//! Data devices on which writes fail: what was there before, here bytes of 0xee, is found by nobody.

use std::sync::Arc;

use blockwork_engine::{Errno, Flags, Fua, Layer, Nanos, NodeId, Op, Sector};
use blockwork_layer::thin::{Mode, PoolFeatures};
use blockwork_layer::{Segment, Table};
use blockwork_sim::{Fault, Faults};

use super::rig::{BLOCK, DATA, METADATA, Make, ORIGIN, Stand, Task, mirror, report, superblock, together};

const ALWAYS: u32 = 1_000_000;

/// Nothing can be written to the data device, or only zeros cannot.
fn fail(stand: &Stand, write_errors: u32) {
    let faults = Faults { write_errors, discard_errors: ALWAYS, ..Faults::default() };
    stand.world.set_faults(DATA, faults);
}

#[test]
fn a_new_block_that_cannot_be_written_is_a_hole_again() {
    for origin in [None, Some(4 * BLOCK)] {
        let make = Make { origin, ..Make::default() };
        let world = make.play(move |stand| async move {
            let thin = &stand.thins[0];
            let old = if origin.is_some() { 0x77 } else { 0 };
            fail(&stand, ALWAYS);
            assert_eq!(stand.write(thin, 0, 3 * BLOCK, 7).await, Err(Errno::EIO));
            assert_eq!(stand.read(thin, 0, 384).await, [old; 384]);
            assert_eq!(stand.write(thin, BLOCK, 2 * BLOCK, 8).await, Err(Errno::EIO));
            stand.flush(thin).await.unwrap();
            assert_eq!((stand.pool.mode(), stand.pool.status().data_used), (Mode::Write, 0));
            stand.world.set_faults(DATA, Faults::default());
            stand.write(thin, BLOCK, BLOCK, 9).await.unwrap();
            stand.flush(thin).await.unwrap();
            assert_eq!(stand.read(thin, 0, 384).await, [[old; 128], [9; 128], [old; 128]].concat());
        });
        assert_eq!(report(&world).data_used, 1);
    }
}

#[test]
fn a_block_that_fails_gets_what_it_would_have_held_where_that_can_be_written() {
    Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 2 * BLOCK, 7).await.unwrap();
        stand.pool.create_snap(&stand.cx, 5, 0).await.unwrap();
        for (at, old) in [(0, 7), (2 * BLOCK, 0)] {
            stand.world.set_faults(DATA, Faults { write_errors: ALWAYS, ..Faults::default() });
            assert_eq!(stand.write(thin, at, BLOCK, 8).await, Err(Errno::EIO));
            stand.world.set_faults(DATA, Faults::default());
            assert_eq!(stand.read(thin, at, 128).await, [old; 128]);
        }
        stand.flush(thin).await.unwrap();
        assert_eq!((stand.pool.mode(), stand.pool.status().data_used), (Mode::Write, 4));
    });
}

#[test]
fn a_shared_block_that_cannot_be_copied_stays_shared_and_the_pool_goes_on() {
    let world = Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 2 * BLOCK, 7).await.unwrap();
        stand.pool.create_snap(&stand.cx, 5, 0).await.unwrap();
        let snapshot = stand.open(5, 64).await;
        fail(&stand, ALWAYS);
        // Written as a whole, and in part: one takes the block before it has content, the other one copies first.
        assert_eq!(stand.write(thin, 0, BLOCK, 8).await, Err(Errno::EIO));
        assert_eq!(stand.write(thin, BLOCK + 8, 8, 8).await, Err(Errno::EIO));
        assert_eq!(stand.range(thin, Op::WriteZeroes, 8, 8).await, Err(Errno::EIO));
        assert_eq!(stand.read(thin, 0, 256).await, [7; 256]);
        stand.flush(thin).await.unwrap();
        assert_eq!((stand.pool.mode(), stand.pool.status().data_used), (Mode::Write, 2));
        stand.world.set_faults(DATA, Faults::default());
        stand.write(thin, 64, 64, 9).await.unwrap();
        stand.flush(thin).await.unwrap();
        assert_eq!(stand.read(thin, 0, 256).await, [[7; 64], [9; 64], [7; 64], [7; 64]].concat());
        assert_eq!(stand.read(&snapshot, 0, 256).await, [7; 256]);
    });
    assert_eq!((report(&world).data_used, superblock(&world).needs_check), (3, false));
}

#[test]
fn what_was_shared_once_and_cannot_be_copied_is_mapped_again_though_nobody_else_has_it() {
    let world = Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 2 * BLOCK, 7).await.unwrap();
        // Going by the times, it counts as shared when the snapshot is gone, too: the last reference goes, and comes back.
        stand.pool.create_snap(&stand.cx, 5, 0).await.unwrap();
        stand.pool.delete(&stand.cx, 5).await.unwrap();
        fail(&stand, ALWAYS);
        assert_eq!(stand.write(thin, 0, BLOCK, 8).await, Err(Errno::EIO));
        stand.flush(thin).await.unwrap();
        stand.world.set_faults(DATA, Faults::default());
        stand.write(thin, 10 * BLOCK, 20 * BLOCK, 9).await.unwrap();
        assert_eq!(stand.read(thin, 0, 256).await, [7; 256]);
        assert_eq!(stand.pool.mode(), Mode::Write);
    });
    assert_eq!(report(&world).data_used, 22);
}

#[test]
fn what_is_mapped_again_was_discarded_by_another_volume_and_is_not_passed_down() {
    Make::default().play(|stand| async move {
        let one = &stand.thins[0];
        stand.write(one, 0, 3 * BLOCK, 7).await.unwrap();
        stand.flush(one).await.unwrap();
        stand.pool.create_snap(&stand.cx, 5, 0).await.unwrap();
        let other = stand.open(5, 64).await;
        stand.world.set_faults(DATA, Faults { write_errors: ALWAYS, ..Faults::default() });
        assert_eq!(stand.write(one, BLOCK, BLOCK, 8).await, Err(Errno::EIO));
        // The only reference goes, and comes back when nothing can be written in the new block's place.
        stand.range(&other, Op::Discard, 0, 3 * BLOCK).await.unwrap();
        stand.flush(one).await.unwrap();
        stand.world.set_faults(DATA, Faults::default());
        assert_eq!(stand.read(one, 0, 384).await, [7; 384]);
        assert_eq!(stand.world.peek(DATA, BLOCK), [7; 512]);
        assert_eq!(stand.pool.mode(), Mode::Write);
    });
}

/// The first request for data writes both halves of a block. It fails, and so does the second of those for one half each.
fn fail_second_half(stand: &Stand) {
    [0, 2].iter().for_each(|nth| stand.world.fail_nth(DATA, *nth, Fault::Error(Errno::EIO)));
}

#[test]
fn half_a_block_that_was_written_is_not_taken_back_with_the_other_half() {
    let world = Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        assert_eq!(stand.read(thin, 0, 8).await, [0; 8]);
        fail(&stand, 0);
        fail_second_half(&stand);
        let halves = [0, 64].map(|at| stand.write(thin, at, 64, 7));
        assert_eq!(together(halves.into()).await, [Ok(()), Err(Errno::EIO)]);
        for at in [0, 64] {
            assert_eq!(stand.try_read(thin, at, 64).await, Err(Errno::EIO));
        }
        assert_eq!(stand.pool.mode(), Mode::ReadOnly);
        assert_eq!(stand.flush(thin).await, Err(Errno::EIO));
    });
    assert_eq!((report(&world).data_used, superblock(&world).needs_check), (0, true));
}

/// A write of a new block has failed, and nobody has seen to it yet.
async fn leave_unfilled(stand: &Stand) {
    stand.world.set_faults(DATA, Faults { write_errors: ALWAYS, ..Faults::default() });
    assert_eq!(stand.write(&stand.thins[0], 0, BLOCK, 7).await, Err(Errno::EIO));
    stand.world.set_faults(DATA, Faults::default());
}

#[test]
fn a_block_that_was_discarded_gets_nothing_for_a_write_that_failed() {
    Make::default().play(|stand| async move {
        leave_unfilled(&stand).await;
        stand.range(&stand.thins[0], Op::Discard, 0, BLOCK).await.unwrap();
        stand.flush(&stand.thins[0]).await.unwrap();
        assert_eq!((stand.world.counters(DATA).zeroes, stand.pool.status().data_used), (0, 0));
    });
}

#[test]
fn a_block_without_content_is_not_read_when_its_page_of_the_map_has_come_anew() {
    Make { volumes: vec![1 << 20], cache_bytes: 0, ..Make::default() }.play(|stand| async move {
        let thin = &stand.thins[0];
        // A page with something in it for each place.
        for n in 1..20 {
            stand.write(thin, n * 300 * BLOCK, 8, 1).await.unwrap();
        }
        stand.flush(thin).await.unwrap();
        leave_unfilled(&stand).await;
        for n in 1..20 {
            assert_eq!(stand.read(thin, n * 300 * BLOCK, 8).await, [1; 8]);
        }
        assert_eq!(stand.read(thin, 0, 128).await, [0; 128]);
    });
}

#[test]
fn what_a_failed_flush_has_lost_is_a_hole_again_and_not_what_others_had_there() {
    let make = Make { volumes: vec![64, 64], ..Make::default() };
    let world = make.play(|stand| async move {
        let (one, other) = (&stand.thins[0], &stand.thins[1]);
        stand.write(one, 0, 2 * BLOCK, 7).await.unwrap();
        stand.write(other, 0, BLOCK, 8).await.unwrap();
        stand.flush(one).await.unwrap();
        // New blocks, one zeroed and one written as a whole, and a copy of what is shared.
        stand.pool.create_snap(&stand.cx, 5, 0).await.unwrap();
        stand.write(other, 3 * BLOCK, 8, 9).await.unwrap();
        stand.write(other, 5 * BLOCK, BLOCK, 9).await.unwrap();
        stand.write(one, 8, 8, 9).await.unwrap();
        stand.world.set_faults(DATA, Faults { lost_flushes: ALWAYS, ..Faults::default() });
        assert_eq!(stand.flush(one).await, Err(Errno::EIO));
        stand.world.set_faults(DATA, Faults::default());
        for at in [3 * BLOCK, 5 * BLOCK] {
            assert_eq!(stand.read(other, at, 128).await, [0; 128], "sector {at}");
        }
        assert_eq!(stand.read(one, 0, 256).await, [7; 256]);
        assert_eq!(stand.read(other, 0, 128).await, [8; 128]);
        let status = stand.pool.status();
        assert_eq!((status.mode, status.data_used), (Mode::ReadOnly, 3));
        for thin in [one, other] {
            assert_eq!(stand.flush(thin).await, Err(Errno::EIO));
            assert_eq!(stand.write(thin, 9 * BLOCK, 8, 1).await, Err(Errno::EIO));
        }
    });
    assert_eq!((report(&world).data_used, superblock(&world).needs_check), (3, true));
}

#[test]
fn a_read_that_was_on_its_way_when_a_flush_has_lost_its_block_finds_a_hole() {
    let make = Make { volumes: vec![64, 64], ..Make::default() };
    make.play(|stand| async move {
        let (one, other) = (&stand.thins[0], &stand.thins[1]);
        stand.write(one, 0, BLOCK, 7).await.unwrap();
        stand.flush(one).await.unwrap();
        stand.write(other, 0, BLOCK, 8).await.unwrap();
        stand.world.set_faults(DATA, Faults { lost_flushes: ALWAYS, stalls: ALWAYS, ..Faults::default() });
        // Some of them take what is there when they begin, others what is there when they end.
        let reading = async {
            let reads = (0..16).map(|n| stand.read(other, n * 8, 4));
            together(reads.collect()).await.concat()
        };
        let flushing = async {
            // The read is on its way by now.
            stand.cx.sleep(Nanos::millis(1)).await;
            stand.world.set_faults(DATA, Faults { lost_flushes: ALWAYS, ..Faults::default() });
            assert_eq!(stand.flush(other).await, Err(Errno::EIO));
            assert!(stand.cx.now() < Nanos::secs(30), "the reads are still on their way");
            Vec::new()
        };
        let tasks: Vec<Task<Vec<u8>>> = vec![Box::pin(reading), Box::pin(flushing)];
        assert_eq!(together(tasks).await[0], [0; 64]);
        assert!(stand.cx.now() > Nanos::secs(30));
    });
}

/// Faults of a device that loses what it was to make durable.
fn losing() -> Faults {
    Faults { lost_flushes: ALWAYS, ..Faults::default() }
}

#[test]
fn what_is_lost_with_another_volumes_flush_is_found_by_nobody_and_never_committed() {
    let make = Make { volumes: vec![64, 64], ..Make::default() };
    let world = make.play(|stand| async move {
        let (one, other) = (&stand.thins[0], &stand.thins[1]);
        stand.write(one, 0, BLOCK, 7).await.unwrap();
        stand.flush(one).await.unwrap();
        stand.write(other, 0, BLOCK, 8).await.unwrap();
        stand.world.set_faults(DATA, losing());
        // This volume has not changed since the last commit: its flush makes none.
        assert_eq!(stand.flush(one).await, Err(Errno::EIO));
        stand.world.set_faults(DATA, Faults::default());
        stand.cx.sleep(Nanos::millis(1)).await;
        assert_eq!(stand.read(other, 0, 128).await, [0; 128], "not only when the next commit is due");
        assert!(stand.cx.now() < Nanos::millis(500));
        assert_eq!(stand.flush(other).await, Err(Errno::EIO));
        assert_eq!(stand.read(one, 0, 128).await, [7; 128]);
        assert_eq!((stand.pool.mode(), stand.pool.status().data_used), (Mode::ReadOnly, 1));
    });
    assert_eq!((report(&world).data_used, superblock(&world).needs_check), (1, true));
}

#[test]
fn what_is_lost_with_the_flush_behind_a_write_with_fua_is_found_by_nobody() {
    let make = Make { volumes: vec![64, 64], fua: Fua::Flush, ..Make::default() };
    make.play(|stand| async move {
        let (one, other) = (&stand.thins[0], &stand.thins[1]);
        stand.write(one, 0, BLOCK, 7).await.unwrap();
        stand.flush(one).await.unwrap();
        stand.write(other, 0, BLOCK, 8).await.unwrap();
        stand.world.set_faults(DATA, losing());
        // Nothing is to be committed for it.
        assert_eq!(stand.write_with(one, 0, 8, 9, Flags::FUA).await, Err(Errno::EIO));
        stand.world.set_faults(DATA, Faults::default());
        stand.cx.sleep(Nanos::millis(1)).await;
        assert_eq!(stand.read(other, 0, 128).await, [0; 128], "not only when the next commit is due");
        assert!(stand.cx.now() < Nanos::millis(500));
        assert_eq!(stand.flush(other).await, Err(Errno::EIO));
    });
}

#[test]
fn what_one_half_of_a_mirror_has_lost_is_not_lost() {
    let make = Make { volumes: vec![64, 64], is_mirrored: true, ..Make::default() };
    let world = make.play(|stand| async move {
        let (one, other) = (&stand.thins[0], &stand.thins[1]);
        stand.write(one, 0, BLOCK, 7).await.unwrap();
        stand.flush(one).await.unwrap();
        stand.write(other, 0, BLOCK, 8).await.unwrap();
        stand.world.set_faults(DATA, losing());
        stand.flush(one).await.unwrap();
        stand.cx.sleep(Nanos::secs(3)).await;
        assert_eq!(stand.read(other, 0, 128).await, [8; 128]);
        stand.write(other, BLOCK, BLOCK, 9).await.unwrap();
        stand.flush(other).await.unwrap();
        assert_eq!((stand.pool.mode(), stand.pool.status().data_used), (Mode::Write, 3));
    });
    assert_eq!((report(&world).data_used, world.counters(DATA).faults), (3, 1));
}

#[test]
fn what_another_disk_has_lost_of_a_volume_that_is_partly_there_is_not_the_pools_loss() {
    let make = Make { volumes: vec![64, 64], ..Make::default() };
    let world = make.play(|stand| async move {
        let (one, other) = (&stand.thins[0], &stand.thins[1]);
        stand.write(one, 0, BLOCK, 7).await.unwrap();
        stand.flush(one).await.unwrap();
        stand.write(other, 0, BLOCK, 8).await.unwrap();
        let segment = |start, target: &Arc<dyn Layer>| Segment { start, target: target.clone() };
        let segments = vec![segment(Sector(0), one), segment(Sector(one.sectors().0), &stand.disks[2])];
        let table: Arc<dyn Layer> = Arc::new(Table::new(NodeId(60), segments).unwrap());
        // Written to, so that its flush says what became of that.
        stand.write(&table, one.sectors().0, 8, 9).await.unwrap();
        stand.world.set_faults(ORIGIN, losing());
        assert_eq!(stand.flush(&table).await, Err(Errno::EIO));
        stand.cx.sleep(Nanos::secs(3)).await;
        assert_eq!(stand.read(other, 0, 128).await, [8; 128]);
        // Nor with nothing under way.
        assert_eq!(stand.flush(&table).await, Err(Errno::EIO));
        stand.cx.sleep(Nanos::secs(3)).await;
        stand.write(other, BLOCK, BLOCK, 9).await.unwrap();
        stand.cx.sleep(Nanos::secs(3)).await;
        assert_eq!(stand.read(other, BLOCK, 128).await, [9; 128]);
        stand.flush(other).await.unwrap();
        assert_eq!((stand.pool.mode(), stand.pool.status().data_used), (Mode::Write, 3));
    });
    assert_eq!((report(&world).data_used, superblock(&world).needs_check), (3, false));
}

#[test]
fn what_a_pool_has_lost_below_one_half_of_a_mirror_is_its_loss() {
    let make = Make { volumes: vec![64, 64], ..Make::default() };
    let world = make.play(|stand| async move {
        let (one, other) = (&stand.thins[0], &stand.thins[1]);
        let array = mirror([one, &stand.disks[3]]);
        stand.write(&array, 0, BLOCK, 7).await.unwrap();
        stand.flush(&array).await.unwrap();
        stand.write(other, 0, BLOCK, 8).await.unwrap();
        stand.world.set_faults(DATA, losing());
        // The other half has it.
        stand.flush(&array).await.unwrap();
        stand.world.set_faults(DATA, Faults::default());
        stand.cx.sleep(Nanos::millis(1)).await;
        assert_eq!(stand.read(other, 0, 128).await, [0; 128]);
        assert!(stand.cx.now() < Nanos::millis(500), "not only when the next commit is due");
        assert_eq!(stand.read(&array, 0, 128).await, [7; 128]);
        assert_eq!((stand.pool.mode(), stand.pool.status().data_used), (Mode::ReadOnly, 1));
    });
    assert_eq!((report(&world).data_used, superblock(&world).needs_check), (1, true));
}

#[test]
fn what_could_not_be_committed_is_read_until_its_content_is_lost() {
    let make = Make { volumes: vec![64, 64], ..Make::default() };
    make.play(|stand| async move {
        let (one, other) = (&stand.thins[0], &stand.thins[1]);
        stand.write(one, 0, BLOCK, 7).await.unwrap();
        stand.flush(one).await.unwrap();
        stand.write(other, 0, BLOCK, 8).await.unwrap();
        stand.world.set_faults(METADATA, Faults { write_errors: ALWAYS, ..Faults::default() });
        assert_eq!(stand.flush(other).await, Err(Errno::EIO));
        assert_eq!(stand.pool.mode(), Mode::ReadOnly);
        stand.cx.sleep(Nanos::secs(5)).await;
        stand.flush(one).await.unwrap();
        assert_eq!(stand.read(other, 0, 128).await, [8; 128]);
        // Written over since that flush, and lost with the next one.
        stand.write(other, 0, BLOCK, 9).await.unwrap();
        stand.world.set_faults(DATA, losing());
        assert_eq!(stand.flush(one).await, Err(Errno::EIO));
        stand.world.set_faults(DATA, Faults::default());
        stand.cx.sleep(Nanos::millis(1)).await;
        assert_eq!(stand.read(other, 0, 128).await, [0; 128]);
        assert_eq!(stand.read(one, 0, 128).await, [7; 128]);
    });
}

#[test]
fn where_a_block_cannot_be_filled_since_the_device_has_failed_others_may_have_lost_theirs() {
    let make = Make { volumes: vec![64, 64], ..Make::default() };
    let world = make.play(|stand| async move {
        let (one, other) = (&stand.thins[0], &stand.thins[1]);
        assert_eq!(stand.read(one, 0, 8).await, [0; 8]);
        fail_second_half(&stand);
        let halves = [0, 64].map(|at| stand.write(one, at, 64, 7));
        assert_eq!(together(halves.into()).await, [Ok(()), Err(Errno::EIO)]);
        stand.write(other, 0, BLOCK, 8).await.unwrap();
        // Somebody else has something on the same device, and the pool hears nothing of that.
        stand.world.set_faults(DATA, losing());
        assert_eq!(stand.flush(&stand.disks[1]).await, Err(Errno::EIO));
        stand.world.set_faults(DATA, Faults::default());
        assert_eq!(stand.flush(one).await, Err(Errno::EIO));
        for thin in [one, other] {
            assert_eq!(stand.read(thin, 0, 128).await, [0; 128]);
        }
        assert_eq!((stand.pool.mode(), stand.pool.status().data_used), (Mode::ReadOnly, 0));
    });
    assert_eq!((report(&world).data_used, superblock(&world).needs_check), (0, true));
}

#[test]
fn blocks_of_a_commit_that_fails_are_not_passed_down() {
    Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 4 * BLOCK, 7).await.unwrap();
        stand.flush(thin).await.unwrap();
        stand.range(thin, Op::Discard, 0, 4 * BLOCK).await.unwrap();
        stand.world.set_faults(METADATA, Faults { write_errors: ALWAYS, ..Faults::default() });
        assert_eq!(stand.flush(thin).await, Err(Errno::EIO));
        // What is committed still leads to them.
        assert_eq!(stand.world.counters(DATA).discards, 0);
    });
}

#[test]
fn what_stands_in_for_a_write_is_not_written_over_what_another_one_has_written_there() {
    let features = PoolFeatures { error_if_no_space: true, ..PoolFeatures::default() };
    for order in [[0, 1, 2], [0, 2, 1]] {
        Make { data_blocks: (2, 128), features, ..Make::default() }.play(move |stand| async move {
            let thin = &stand.thins[0];
            // While the first one is given its block the others come together. The third overlaps with the second, and reaches into a
            // block for which there is no space.
            let write = |nth| {
                let stand = stand.clone();
                async move {
                    let (at, nr, fill) = [(9 * BLOCK, BLOCK, 4), (0, 96, 5), (64, 64 + BLOCK, 6)][nth];
                    (nth, stand.write(&stand.thins[0], at, nr, fill).await)
                }
            };
            let mut done = together(order.map(write).into()).await;
            done.sort_by_key(|(nth, _)| *nth);
            let results: Vec<_> = done.iter().map(|(_, result)| *result).collect();
            assert_eq!(results, [Ok(()), Ok(()), Err(Errno::ENOSPC)]);
            stand.flush(thin).await.unwrap();
            assert_eq!(stand.read(thin, 0, 64).await, [5; 64]);
            let both = stand.read(thin, 64, 32).await;
            assert!(both.iter().all(|byte| [5, 6].contains(byte)), "{order:?}: {both:?}");
        });
    }
}
