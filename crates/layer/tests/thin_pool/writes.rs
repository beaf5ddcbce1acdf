//! First writes, writes to what is shared, discards, flushes: what reaches the devices for them.

use std::cell::Cell;
use std::sync::Arc;

use blockwork_engine::{Errno, Flags, Layer, Nanos, NodeId, Op, Sector, Sectors};
use blockwork_layer::thin::{Discards, PoolFeatures};
use blockwork_layer::{DiscardMax, Linear, Segment, Table};
use blockwork_sim::Faults;

use super::rig::{BLOCK, DATA, METADATA, Make, Task, expect_checked, report, together};

#[test]
fn a_part_of_a_block_that_is_written_first_is_in_zeros() {
    Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        assert_eq!(stand.read(thin, 0, 256).await, [0; 256]);
        stand.write(thin, 130, 2, 7).await.unwrap();
        let mut expected = [0; 256];
        expected[130..132].fill(7);
        assert_eq!(stand.read(thin, 0, 256).await, expected);
        assert_eq!(stand.pool.status().data_used, 1, "reading has given out nothing");
    });
}

#[test]
fn blocks_that_are_written_as_a_whole_are_neither_zeroed_nor_read() {
    let world = Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 4 * BLOCK, 7).await.unwrap();
        // Two writes that wait together, and cover a block together.
        let halves = [(4 * BLOCK, 9), (4 * BLOCK + 64, 8)];
        let writes = halves.map(|(at, fill)| stand.write(thin, at, 64, fill));
        assert!(together(writes.into()).await.iter().all(Result::is_ok));
        assert_eq!(stand.read(thin, 0, 512).await, [7; 512]);
        assert_eq!(stand.read(thin, 512, 128).await, [[9; 64], [8; 64]].concat());
        let counters = stand.world.counters(DATA);
        assert_eq!((counters.zeroes, counters.written_bytes), (0, 5 * BLOCK * 512));
    });
    assert_eq!(report(&world).data_used, 5);
}

#[test]
fn a_volume_with_a_smaller_limit_on_discards_gets_its_blocks_as_any_other() {
    Make::default().play(|stand| async move {
        let capped: Arc<dyn Layer> = Arc::new(DiscardMax::new(stand.thins[0].clone(), "65536").unwrap());
        assert_eq!(stand.read(&capped, 0, 128).await, [0; 128]);
        let halves = [(0, 7), (64, 8)].map(|(at, fill)| stand.write(&capped, at, 64, fill));
        assert!(together(halves.into()).await.iter().all(Result::is_ok));
        assert_eq!(stand.read(&capped, 0, 128).await, [[7; 64], [8; 64]].concat());
        assert_eq!(stand.world.counters(DATA).zeroes, 0, "they have filled it together");
        stand.range(&capped, Op::Discard, 0, 2 * BLOCK).await.unwrap();
        assert_eq!(stand.read(&capped, 0, 128).await, [0; 128]);
    });
}

#[test]
fn a_batch_in_more_shared_leaves_than_are_kept_in_memory_comes_to_its_end() {
    // Of the tree of volume 0, which maps every other block.
    const LEAVES: u64 = 64;
    const LEAF: u64 = 2 * 252;
    const KEPT: usize = 32;
    const READS_MAX: u64 = 1000;
    let mapped = LEAVES * LEAF / 2;
    let make = Make {
        data_blocks: (mapped + 100, mapped + 100),
        metadata_blocks: (512, 512),
        volumes: vec![LEAVES * LEAF],
        mapped,
        is_blank: true,
        metadata_kept: KEPT,
        ..Make::default()
    };
    let world = make.play(move |stand| async move {
        let thin = &stand.thins[0];
        stand.pool.create_snap(&stand.cx, 5, 0).await.unwrap();
        let snapshot = stand.open(5, LEAVES * LEAF).await;
        let holes: Vec<u64> = (0..LEAVES).map(|leaf| (leaf * LEAF + 1) * BLOCK).collect();
        // That they are holes is known, so all of them wait for blocks at once.
        for hole in &holes {
            assert_eq!(stand.read(thin, *hole, 1).await, [0]);
        }
        // So that time passes while it reads.
        let slow = Faults { stalls: 1_000_000, stall_time: Nanos::micros(100), ..Faults::default() };
        stand.world.set_faults(METADATA, slow);
        let reads = || stand.world.counters(METADATA).reads;
        let (before, is_done) = (reads(), Cell::new(false));
        let writing = async {
            let writes = holes.iter().map(|hole| stand.write(thin, *hole, BLOCK, 7));
            assert_eq!(together(writes.collect()).await, [Ok(()); LEAVES as usize]);
            is_done.set(true);
        };
        let watching = async {
            while !is_done.get() {
                stand.cx.sleep(Nanos::millis(1)).await;
                assert!(reads() - before < READS_MAX, "the same nodes are read again and again");
            }
        };
        let tasks: Vec<Task<()>> = vec![Box::pin(writing), Box::pin(watching)];
        together(tasks).await;
        println!("{} reads", reads() - before);
        assert!(reads() - before > LEAVES, "a batch had all that it needed in memory");
        stand.world.set_faults(METADATA, Faults::default());
        stand.flush(thin).await.unwrap();
        for hole in &holes {
            let found = [stand.read(thin, *hole, BLOCK).await, stand.read(&snapshot, *hole, BLOCK).await];
            assert_eq!(found, [[7; BLOCK as usize], [0; BLOCK as usize]]);
        }
    });
    assert_eq!(report(&world).data_used, mapped + LEAVES);
    expect_checked(&world, "many-shared-leaves");
}

#[test]
fn a_write_across_two_pages_of_the_map_gets_its_blocks_at_once_and_fills_all_of_them() {
    Make { volumes: vec![512], ..Make::default() }.play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 250 * BLOCK, 12 * BLOCK, 7).await.unwrap();
        let counters = stand.world.counters(DATA);
        assert_eq!((counters.zeroes, counters.written_bytes), (0, 12 * BLOCK * 512));
        assert_eq!(stand.read(thin, 249 * BLOCK, 14 * BLOCK).await, {
            [vec![0; 128], vec![7; 12 * 128], vec![0; 128]].concat()
        });
    });
}

#[test]
fn writes_that_come_together_get_neighbours_in_their_order() {
    Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        // Once it is known that nothing is mapped, all of them wait for the same.
        assert_eq!(stand.read(thin, 0, 8).await, [0; 8]);
        // From the last to the first, small ones: each block is zeroed, and all by one request.
        let writes = (0..16).rev().map(|block| stand.write(thin, block * BLOCK + 5, 1, block as u8 + 1));
        assert!(together(writes.collect()).await.iter().all(Result::is_ok));
        assert_eq!(stand.world.counters(DATA).zeroes, 1);
        for block in 0..16 {
            assert_eq!(stand.world.peek(DATA, block * BLOCK + 5), [block as u8 + 1; 512]);
        }
    });
}

#[test]
fn what_is_shared_is_copied_once_and_what_is_not_is_not() {
    Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 8 * BLOCK, 7).await.unwrap();
        stand.pool.create_snap(&stand.cx, 5, 0).await.unwrap();
        let before = stand.world.counters(DATA);
        let writes = (0..4).map(|block| stand.write(thin, block * BLOCK + 9, 1, 9));
        assert!(together(writes.collect()).await.iter().all(Result::is_ok));
        stand.write(thin, 9, 1, 10).await.unwrap();
        let after = stand.world.counters(DATA);
        // Neighbours by one read.
        assert_eq!((after.reads - before.reads, after.read_bytes - before.read_bytes), (1, 4 * BLOCK * 512));
        let snapshot = stand.open(5, 64).await;
        assert_eq!(stand.read(&snapshot, 0, 1024).await, [7; 1024]);
        let mut expected = [7; 512];
        (0..4).for_each(|block| expected[block * 128 + 9] = if block == 0 { 10 } else { 9 });
        assert_eq!(stand.read(thin, 0, 512).await, expected);
        assert_eq!(stand.pool.status().data_used, 12);
    });
}

#[test]
fn an_external_origin_is_read_and_copied_as_far_as_it_goes() {
    let make = Make { origin: Some(BLOCK + 64), ..Make::default() };
    make.play(|stand| async move {
        let thin = &stand.thins[0];
        let old = |at: usize| [[0x77; 192].as_slice(), &[0; 320]].concat()[at];
        assert_eq!(stand.read(thin, 0, 512).await, (0..512).map(old).collect::<Vec<_>>());
        stand.write(thin, 130, 1, 1).await.unwrap();
        stand.write(thin, 300, 1, 2).await.unwrap();
        let expected = |at| match at {
            130 => 1,
            300 => 2,
            _ => old(at),
        };
        assert_eq!(stand.read(thin, 0, 512).await, (0..512).map(expected).collect::<Vec<_>>());
        // What is given back is the origin's again.
        stand.range(thin, Op::Discard, 0, 512).await.unwrap();
        assert_eq!(stand.read(thin, 0, 512).await, (0..512).map(old).collect::<Vec<_>>());
    });
}

#[test]
fn a_discard_gives_whole_blocks_back_and_one_range_down_once_that_is_durable() {
    let world = Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 16 * BLOCK, 7).await.unwrap();
        stand.flush(thin).await.unwrap();
        stand.range(thin, Op::Discard, 2 * BLOCK + 1, 8 * BLOCK).await.unwrap();
        assert_eq!(stand.world.counters(DATA).discards, 0, "it is not durable yet");
        let mut expected = [7; 2048];
        expected[384..1280].fill(0);
        assert_eq!(stand.read(thin, 0, 2048).await, expected);
        stand.flush(thin).await.unwrap();
        assert_eq!(stand.world.counters(DATA).discards, 1);
        assert_eq!(stand.pool.status().data_used, 9);
    });
    assert_eq!(report(&world).data_used, 9);
}

#[test]
fn a_discard_of_what_a_snapshot_has_too_goes_no_further() {
    Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 4 * BLOCK, 7).await.unwrap();
        stand.pool.create_snap(&stand.cx, 5, 0).await.unwrap();
        stand.range(thin, Op::Discard, 0, 4 * BLOCK).await.unwrap();
        stand.flush(thin).await.unwrap();
        assert_eq!((stand.world.counters(DATA).discards, stand.pool.status().data_used), (0, 4));
        assert_eq!(stand.read(thin, 0, 512).await, [0; 512]);
        let snapshot = stand.open(5, 64).await;
        assert_eq!(stand.read(&snapshot, 0, 512).await, [7; 512]);
    });
}

#[test]
fn discards_are_refused_or_kept_to_the_pool_where_that_is_wanted() {
    for (discards, result) in [(Discards::Ignore, Err(Errno::EOPNOTSUPP)), (Discards::NoPassdown, Ok(()))] {
        let make = Make { features: PoolFeatures { discards, ..PoolFeatures::default() }, ..Make::default() };
        make.play(move |stand| async move {
            let thin = &stand.thins[0];
            stand.write(thin, 0, 4 * BLOCK, 7).await.unwrap();
            assert_eq!(stand.range(thin, Op::Discard, 0, 4 * BLOCK).await, result);
            stand.flush(thin).await.unwrap();
            assert_eq!(stand.world.counters(DATA).discards, 0);
            assert_eq!(stand.pool.status().data_used, if result.is_ok() { 0 } else { 4 });
        });
    }
}

#[test]
fn zeros_for_holes_need_nothing_and_others_go_where_the_data_is() {
    Make::default().play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 2 * BLOCK, 7).await.unwrap();
        stand.range(thin, Op::WriteZeroes, 64, 64 * BLOCK - 64).await.unwrap();
        assert_eq!(stand.read(thin, 0, 384).await, [[7; 64].as_slice(), &[0; 320]].concat());
        assert_eq!(stand.pool.status().data_used, 2);
    });
}

/// A device of two targets, both of which are parts of one volume.
fn two_parts(thin: &Arc<dyn Layer>, [first, second]: [u64; 2], blocks: u64) -> Arc<dyn Layer> {
    let part = |n: u16, at: u64| {
        let (node, nr) = (NodeId(60 + n), Sectors(blocks * BLOCK));
        let target = Arc::new(Linear::new(node, thin.clone(), Sector(at * BLOCK), nr).unwrap());
        Segment { start: Sector(u64::from(n) * blocks * BLOCK), target }
    };
    Arc::new(Table::new(NodeId(62), vec![part(0, first), part(1, second)]).unwrap())
}

#[test]
fn zeros_and_discards_reach_all_parts_of_a_volume_that_they_come_to_by_two_ways() {
    Make { volumes: vec![1000], ..Make::default() }.play(|stand| async move {
        let thin = &stand.thins[0];
        let table = two_parts(thin, [0, 500], 400);
        for op in [Op::WriteZeroes, Op::Discard] {
            for block in [10, 510] {
                stand.write(thin, block * BLOCK, BLOCK, 7).await.unwrap();
            }
            stand.range(&table, op, 0, 800 * BLOCK).await.unwrap();
            for block in [10, 510] {
                assert_eq!(stand.read(thin, block * BLOCK, 8).await, [0; 8], "{op:?}, block {block}");
            }
        }
        stand.flush(thin).await.unwrap();
        assert_eq!(stand.pool.status().data_used, 0);
    });
}

#[test]
fn a_volume_that_is_opened_again_knows_of_what_was_not_committed() {
    Make::default().play(|stand| async move {
        stand.pool.create_thin(&stand.cx, 5).await.unwrap();
        let five = stand.open(5, 8).await;
        stand.write(&five, 0, 8, 7).await.unwrap();
        drop(five);
        let five = stand.open(5, 8).await;
        let before = stand.world.counters(METADATA).fua_writes;
        stand.flush(&five).await.unwrap();
        assert_eq!(stand.world.counters(METADATA).fua_writes, before + 1);
    });
}

#[test]
fn flushes_share_a_commit_and_one_without_a_change_writes_nothing() {
    Make { volumes: vec![64, 64], ..Make::default() }.play(|stand| async move {
        let (one, other) = (&stand.thins[0], &stand.thins[1]);
        for thin in [one, other] {
            stand.write(thin, 0, 8, 7).await.unwrap();
        }
        let flushes = (0..20).map(|n| stand.flush(&stand.thins[n % 2]));
        assert!(together(flushes.collect()).await.iter().all(Result::is_ok));
        let counters = stand.world.counters(METADATA);
        // One more flush came before the first block was given out.
        assert_eq!((counters.fua_writes, counters.flushes), (1, 2));
        // A volume that has not changed since is nobody's business here.
        stand.write(one, 0, 8, 8).await.unwrap();
        stand.flush(one).await.unwrap();
        stand.write(one, 20 * BLOCK, 8, 8).await.unwrap();
        stand.flush(other).await.unwrap();
        assert_eq!(stand.world.counters(METADATA), counters);
        stand.write_with(one, 30 * BLOCK, 8, 8, Flags::FUA).await.unwrap();
        assert_eq!(stand.world.counters(METADATA).fua_writes, 2);
    });
}

#[test]
fn what_nobody_flushes_is_durable_after_a_while() {
    Make::default().play(|stand| async move {
        stand.write(&stand.thins[0], 0, 8, 7).await.unwrap();
        assert_eq!(report(&stand.world).data_used, 0);
        stand.cx.sleep(blockwork_engine::Nanos::secs(2)).await;
        assert_eq!(report(&stand.world).data_used, 1);
    });
}

#[test]
fn what_was_mapped_is_found_however_small_the_cache() {
    let make = Make { volumes: vec![1 << 20], cache_bytes: 0, ..Make::default() };
    make.play(|stand| async move {
        let thin = &stand.thins[0];
        // A block in each of more pages than the cache has room for, where it was known that nothing is.
        let places = (0..40u64).map(|n| (n * 300 * BLOCK, n as u8 + 1));
        for (at, _) in places.clone() {
            assert_eq!(stand.read(thin, at, 8).await, [0; 8]);
        }
        for (at, fill) in places.clone() {
            stand.write(thin, at, 8, fill).await.unwrap();
        }
        for _ in 0..2 {
            for (at, fill) in places.clone() {
                assert_eq!(stand.read(thin, at, 16).await, [[fill; 8], [0; 8]].concat(), "sector {at}");
            }
        }
        // The same after a snapshot, when all of them have to be copied.
        stand.pool.create_snap(&stand.cx, 5, 0).await.unwrap();
        for (at, fill) in places.clone().take(20) {
            stand.write(thin, at + 8, 8, fill).await.unwrap();
        }
        for (at, fill) in places.take(20) {
            assert_eq!(stand.read(thin, at, 16).await, [fill; 16], "sector {at}");
        }
    });
}
