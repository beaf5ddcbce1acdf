//! What dm's own tests of thin volumes try besides: long chains of snapshots, discards of what is shared by some, devices that come and go
//! in numbers, external origins of all sizes, pools that grow under writes, again and again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{Layer, Nanos, NodeId, Op, Sectors};
use blockwork_format::thin::DEVICES_MAX;
use blockwork_format::thin::edit::EditError;
use blockwork_layer::thin::{Mode, Thin, ThinConfig, VerbError};

use super::rig::{BLOCK, DATA, METADATA, Make, Stand, Task, part, report, together};

/// Blocks of each device of a chain.
const CHAIN_BLOCKS: usize = 12;

/// Each device holds what is known of it.
async fn expect(stand: &Stand, known: &BTreeMap<u64, [u8; CHAIN_BLOCKS]>) {
    for (id, blocks) in known {
        let device = stand.open(*id, CHAIN_BLOCKS as u64).await;
        let found = stand.read(&device, 0, CHAIN_BLOCKS as u64 * BLOCK).await;
        let expected: Vec<u8> = blocks.iter().flat_map(|fill| [*fill; BLOCK as usize]).collect();
        assert!(found == expected, "device {id}");
    }
}

#[test]
fn snapshots_of_snapshots_stay_what_they_were_whatever_becomes_of_those_between() {
    const DEPTH: u64 = 40;
    let make = Make {
        data_blocks: (200, 200),
        metadata_blocks: (512, 512),
        volumes: vec![CHAIN_BLOCKS as u64],
        ..Make::default()
    };
    let world = make.play(|stand| async move {
        let (pool, cx) = (&stand.pool, &stand.cx);
        let mut known = BTreeMap::from([(0, [0; CHAIN_BLOCKS])]);
        for block in 0..8 {
            stand.write(&stand.thins[0], block * BLOCK, BLOCK, 1).await.unwrap();
            known.get_mut(&0).unwrap()[block as usize] = 1;
        }
        // Block 0 is everybody's; of the others each device has changed some, and given some back.
        for id in 1..=DEPTH {
            pool.create_snap(cx, id, id - 1).await.unwrap();
            let device = stand.open(id, CHAIN_BLOCKS as u64).await;
            let mut own = known[&(id - 1)];
            let (written, dropped) = (1 + id % 11, 1 + id * 5 % 11);
            stand.write(&device, written * BLOCK + 8, BLOCK - 8, id as u8).await.unwrap();
            // The rest of it was copied.
            assert_eq!(stand.read(&device, written * BLOCK, 8).await, [own[written as usize]; 8], "{id}");
            stand.write(&device, written * BLOCK, 8, id as u8).await.unwrap();
            own[written as usize] = id as u8;
            stand.range(&device, Op::Discard, dropped * BLOCK, BLOCK).await.unwrap();
            own[dropped as usize] = 0;
            known.insert(id, own);
        }
        expect(&stand, &known).await;
        for id in (1..DEPTH).step_by(2) {
            pool.delete(cx, id).await.unwrap();
            known.remove(&id);
        }
        expect(&stand, &known).await;
        // What the others have too is not passed down with a discard of one of them.
        let middle = stand.open(DEPTH / 2, CHAIN_BLOCKS as u64).await;
        stand.range(&middle, Op::Discard, 0, CHAIN_BLOCKS as u64 * BLOCK).await.unwrap();
        stand.flush(&middle).await.unwrap();
        known.insert(DEPTH / 2, [0; CHAIN_BLOCKS]);
        drop(middle);
        expect(&stand, &known).await;
        for id in (2..DEPTH).step_by(2) {
            pool.delete(cx, id).await.unwrap();
            known.remove(&id);
        }
        stand.range(&stand.thins[0], Op::Discard, 0, CHAIN_BLOCKS as u64 * BLOCK).await.unwrap();
        stand.flush(&stand.thins[0]).await.unwrap();
        known.insert(0, [0; CHAIN_BLOCKS]);
        expect(&stand, &known).await;
        let left = known[&DEPTH].iter().filter(|fill| **fill != 0).count() as u64;
        assert!(left > 4);
        assert_eq!(pool.status().data_used, left);
    });
    assert_eq!(report(&world).devices, 2);
}

#[test]
fn of_a_range_that_is_shared_in_part_the_rest_is_given_back_and_passed_down() {
    Make::default().play(|stand| async move {
        let (pool, cx, thin) = (&stand.pool, &stand.cx, &stand.thins[0]);
        stand.write(thin, 0, 8 * BLOCK, 7).await.unwrap();
        pool.create_snap(cx, 5, 0).await.unwrap();
        // These are copied, and so are its own.
        stand.write(thin, 2 * BLOCK, 2 * BLOCK, 8).await.unwrap();
        stand.write(thin, 6 * BLOCK, BLOCK, 8).await.unwrap();
        stand.flush(thin).await.unwrap();
        assert_eq!(pool.status().data_used, 11);
        let own = (8..11).map(|block| stand.world.peek(DATA, block * BLOCK)[0]).collect::<Vec<_>>();
        assert_eq!(own, [8, 8, 8]);
        stand.range(thin, Op::Discard, 0, 8 * BLOCK).await.unwrap();
        stand.flush(thin).await.unwrap();
        assert_eq!((pool.status().data_used, stand.world.counters(DATA).discards), (8, 1));
        assert_eq!(stand.read(thin, 0, 8 * BLOCK).await, [0; 1024]);
        let snapshot = stand.open(5, 64).await;
        assert_eq!(stand.read(&snapshot, 0, 8 * BLOCK).await, [7; 1024]);
    });
}

#[test]
fn what_was_shared_once_is_passed_down_when_the_last_one_gives_it_back() {
    Make::default().play(|stand| async move {
        let (pool, cx, thin) = (&stand.pool, &stand.cx, &stand.thins[0]);
        stand.write(thin, 0, 4 * BLOCK, 7).await.unwrap();
        pool.create_snap(cx, 5, 0).await.unwrap();
        let snapshot = stand.open(5, 64).await;
        for (device, passed, left) in [(&snapshot, 0, 4), (thin, 1, 0)] {
            stand.range(device, Op::Discard, 0, 4 * BLOCK).await.unwrap();
            stand.flush(device).await.unwrap();
            assert_eq!((stand.world.counters(DATA).discards, pool.status().data_used), (passed, left));
        }
    });
}

#[test]
fn discards_of_what_maps_nothing_change_nothing() {
    Make { volumes: vec![1 << 24], ..Make::default() }.play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 8 * BLOCK, BLOCK, 7).await.unwrap();
        stand.flush(thin).await.unwrap();
        let before = stand.world.counters(METADATA);
        // Holes of one block and of a tebibyte, parts of blocks, and a block on both sides of which there is nothing.
        for (at, nr) in [
            (0, BLOCK),
            (9 * BLOCK, (1 << 24) * BLOCK - 9 * BLOCK),
            (8 * BLOCK + 1, BLOCK - 1),
            (7 * BLOCK + 1, BLOCK),
        ] {
            for _ in 0..3 {
                stand.range(thin, Op::Discard, at, nr).await.unwrap();
            }
        }
        stand.flush(thin).await.unwrap();
        let after = stand.world.counters(METADATA);
        assert_eq!((after.writes, after.flushes), (before.writes, before.flushes));
        assert_eq!(stand.read(thin, 8 * BLOCK, BLOCK).await, [7; 128]);
    });
}

#[test]
fn devices_that_come_and_go_in_numbers_leave_nothing_behind() {
    let make = Make { metadata_blocks: (512, 512), ..Make::default() };
    make.play(|stand| async move {
        let (pool, cx) = (&stand.pool, &stand.cx);
        stand.write(&stand.thins[0], 0, 3 * BLOCK, 7).await.unwrap();
        stand.flush(&stand.thins[0]).await.unwrap();
        pool.create_thin(cx, 1).await.unwrap();
        pool.delete(cx, 1).await.unwrap();
        let before = pool.status();
        for round in 0..3 {
            for id in 1..=150 {
                match (id + round) % 2 {
                    0 => pool.create_thin(cx, id).await.unwrap(),
                    _ => pool.create_snap(cx, id, 0).await.unwrap(),
                }
            }
            assert_eq!(pool.devices_of(cx).await.unwrap().len(), 151);
            // From the first, from the last, and every third one first.
            let mut order: Vec<u64> = (1..=150).collect();
            match round {
                0 => {}
                1 => order.reverse(),
                _ => order.sort_by_key(|id| id % 3),
            }
            for id in order {
                pool.delete(cx, id).await.unwrap();
            }
            let after = pool.status();
            assert_eq!((after.metadata_used, after.data_used), (before.metadata_used, before.data_used));
        }
        let unknown = pool.delete(cx, 77).await;
        assert!(matches!(unknown, Err(VerbError::Edit(EditError::NoDevice(77)))), "{unknown:?}");
        pool.create_thin(cx, DEVICES_MAX - 1).await.unwrap();
        let large = pool.create_thin(cx, DEVICES_MAX).await;
        assert!(matches!(large, Err(VerbError::Edit(EditError::DeviceNumber(DEVICES_MAX)))), "{large:?}");
    });
}

/// A volume of so many sectors, which may end within a block.
async fn uneven(stand: &Stand, id: u64, sectors: u64, origin: Option<Arc<dyn Layer>>) -> Arc<dyn Layer> {
    let device = stand.pool.device(&stand.cx, id).await.unwrap();
    let (pool, sectors) = (stand.pool.clone(), Sectors(sectors));
    Arc::new(Thin::new(NodeId(50), ThinConfig { pool, device, sectors, external_origin: origin }))
}

#[test]
fn an_external_origin_may_be_of_any_size_and_a_volume_may_end_within_a_block() {
    let whole = 4 * BLOCK;
    for (volume, origin) in [
        (whole, whole),
        (whole, whole + 40),
        (whole, 9 * BLOCK),
        (whole, 88),
        (whole + 40, whole),
        (whole + 40, whole + 40),
        (whole + 40, whole + 24),
    ] {
        Make { origin: Some(origin), volumes: vec![], ..Make::default() }.play(move |stand| async move {
            let (pool, cx) = (&stand.pool, &stand.cx);
            let outside = || Some(stand.disks[2].clone());
            pool.create_thin(cx, 3).await.unwrap();
            let thin = uneven(&stand, 3, volume, outside()).await;
            let old = |at: u64| if at < origin { 0x77 } else { 0 };
            let mut model: Vec<u8> = (0..volume).map(old).collect();
            assert_eq!(stand.read(&thin, 0, volume).await, model, "{volume} over {origin}");
            // The last sector, one in the middle, and what ends with the origin.
            for (at, nr, fill) in [(volume - 1, 1, 1), (130, 2, 2), (origin.min(volume) - 8, 8, 3)] {
                stand.write(&thin, at, nr, fill).await.unwrap();
                model[at as usize..(at + nr) as usize].fill(fill);
                assert_eq!(stand.read(&thin, 0, volume).await, model, "{volume} over {origin}");
            }
            pool.create_snap(cx, 4, 3).await.unwrap();
            let frozen = model.clone();
            stand.write(&thin, 0, volume, 9).await.unwrap();
            let snapshot = uneven(&stand, 4, volume, outside()).await;
            assert_eq!(stand.read(&snapshot, 0, volume).await, frozen, "{volume} over {origin}");
            stand.range(&snapshot, Op::Discard, 0, volume).await.unwrap();
            // Whole blocks only: of the last one there may be less than that.
            let kept = volume / BLOCK * BLOCK;
            let expected = (0..volume).map(|at| if at < kept { old(at) } else { frozen[at as usize] });
            assert_eq!(stand.read(&snapshot, 0, volume).await, expected.collect::<Vec<_>>());
            assert_eq!(stand.read(&thin, 0, volume).await, vec![9; volume as usize]);
        });
    }
}

#[test]
fn a_pool_grows_under_writes_that_wait_for_it_and_nothing_is_lost() {
    const WRITERS: u64 = 3;
    const WRITES: u64 = 24;
    let blocks = WRITERS * WRITES;
    let make = Make {
        data_blocks: (8, blocks),
        metadata_blocks: (64, 512),
        volumes: vec![100; WRITERS as usize],
        ..Make::default()
    };
    let world = make.play(move |stand| async move {
        let left = Rc::new(RefCell::new(WRITERS));
        let mut tasks: Vec<Task<()>> = Vec::new();
        for writer in 0..WRITERS {
            let (stand, left) = (stand.clone(), left.clone());
            tasks.push(Box::pin(async move {
                let thin = &stand.thins[writer as usize];
                for n in 0..WRITES {
                    // Some of them as a whole, others in part.
                    let (at, nr) = (n * 29 % 100 * BLOCK, if n % 3 == 0 { BLOCK } else { 8 });
                    stand.write(thin, at, nr, n as u8 + 1).await.unwrap();
                    if n % 5 == 0 {
                        stand.flush(thin).await.unwrap();
                    }
                }
                *left.borrow_mut() -= 1;
            }));
        }
        let growing = stand.clone();
        tasks.push(Box::pin(async move {
            let (mut data, mut metadata) = (8, 64);
            while *left.borrow() > 0 {
                growing.cx.sleep(Nanos::millis(50)).await;
                (data, metadata) = ((data + 7).min(blocks), (metadata + 40).min(512));
                let (pool, cx) = (&growing.pool, &growing.cx);
                pool.grow_metadata(cx, part(&growing.disks[0], metadata * 8)).await.unwrap();
                pool.grow_data(cx, part(&growing.disks[1], data * BLOCK)).await.unwrap();
            }
        }));
        together(tasks).await;
        assert_eq!((stand.pool.mode(), stand.pool.status().data_used), (Mode::Write, blocks));
        for thin in &stand.thins {
            for n in 0..WRITES {
                let (nr, mut expected) = (if n % 3 == 0 { 128 } else { 8 }, vec![0; 128]);
                expected[..nr].fill(n as u8 + 1);
                assert_eq!(stand.read(thin, n * 29 % 100 * BLOCK, BLOCK).await, expected);
            }
        }
    });
    assert_eq!(report(&world).data_used, blocks);
}

/// A device has the blocks that were written up to `last`.
async fn expect_rows(stand: &Stand, device: &Arc<dyn Layer>, last: u64) {
    for n in 0..=last {
        assert_eq!(stand.read(device, n * BLOCK, 8).await, [n as u8 + 1; 8], "block {n} of {last}");
    }
}

#[test]
fn metadata_that_is_full_again_and_again_is_extended_each_time_and_snapshots_go_then() {
    let make =
        Make { metadata_blocks: (32, 160), data_blocks: (300, 300), volumes: vec![300], ..Make::default() };
    let world = make.play(|stand| async move {
        let (pool, cx, thin) = (&stand.pool, &stand.cx, &stand.thins[0]);
        let mut made = 0;
        for size in [40, 56, 128, 160] {
            let before = made;
            // With each snapshot, the next write copies its way through the map.
            while stand.write(thin, made * BLOCK, 8, made as u8 + 1).await.is_ok() {
                match pool.create_snap(cx, made + 1, 0).await {
                    Ok(()) => made += 1,
                    Err(VerbError::Edit(EditError::NoMetadata)) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(made > before + 1, "{made} snapshots with less than {size} blocks");
            stand.flush(thin).await.unwrap();
            for last in 0..made {
                let snapshot = stand.open(last + 1, 300).await;
                expect_rows(&stand, &snapshot, last).await;
                assert_eq!(stand.read(&snapshot, (last + 1) * BLOCK, 8).await, [0; 8]);
            }
            pool.grow_metadata(cx, part(&stand.disks[0], size * 8)).await.unwrap();
            assert_eq!(pool.mode(), Mode::Write);
        }
        for id in 1..=made {
            pool.delete(cx, id).await.unwrap();
        }
        expect_rows(&stand, thin, made - 1).await;
        assert!(pool.status().metadata_used < 32, "{}", pool.status());
    });
    assert_eq!(report(&world).devices, 1);
}
