//! Messages of a pool.

use std::cell::Cell;
use std::rc::Rc;

use blockwork_engine::{Bio, Flags, Op, Sector, Sectors};
use blockwork_format::thin::edit::EditError;
use blockwork_layer::thin::VerbError;

use super::rig::{BLOCK, METADATA, Make, Task, part, superblock, together};

#[test]
fn a_snapshot_takes_as_many_requests_whatever_the_size() {
    let requests = [1u64, 60].map(|blocks| {
        let count = std::rc::Rc::new(std::cell::Cell::new(0));
        let told = count.clone();
        Make::default().play(move |stand| async move {
            let thin = &stand.thins[0];
            for block in 0..blocks {
                stand.write(thin, block * BLOCK, 8, 7).await.unwrap();
            }
            stand.flush(thin).await.unwrap();
            let before = stand.world.counters(METADATA);
            stand.pool.create_snap(&stand.cx, 5, 0).await.unwrap();
            let after = stand.world.counters(METADATA);
            told.set(
                after.reads + after.writes + after.flushes - before.reads - before.writes - before.flushes,
            );
        });
        count.get()
    });
    assert_eq!(requests[0], requests[1]);
    assert!(requests[0] <= 8, "{requests:?}");
}

#[test]
fn devices_come_and_go_and_numbers_are_checked() {
    let world = Make::default().play(|stand| async move {
        let (pool, cx) = (&stand.pool, &stand.cx);
        pool.create_thin(cx, 3).await.unwrap();
        let twice = pool.create_thin(cx, 3).await;
        assert!(matches!(twice, Err(VerbError::Edit(EditError::Exists(3)))), "{twice:?}");
        let of_none = pool.create_snap(cx, 4, 99).await;
        assert!(matches!(of_none, Err(VerbError::Edit(EditError::NoDevice(99)))), "{of_none:?}");
        let in_use = pool.delete(cx, 0).await;
        assert!(matches!(in_use, Err(VerbError::InUse(0))), "{in_use:?}");
        let three = stand.open(3, 8).await;
        stand.write(&three, 0, 3 * BLOCK, 1).await.unwrap();
        assert_eq!(pool.thin_status(cx, 3).await.unwrap().to_string(), "384 383");
        pool.create_snap(cx, 4, 3).await.unwrap();
        drop(three);
        pool.delete(cx, 3).await.unwrap();
        let ids: Vec<u64> = pool.devices_of(cx).await.unwrap().into_iter().map(|(id, _)| id).collect();
        assert_eq!((ids, pool.status().data_used), (vec![0, 4], 3));
        // A number that was used before is a new device.
        pool.create_thin(cx, 3).await.unwrap();
        let three = stand.open(3, 8).await;
        assert_eq!(stand.read(&three, 0, 8).await, [0; 8]);
        assert_eq!(pool.thin_status(cx, 3).await.unwrap().to_string(), "0 -");
        pool.set_transaction_id(cx, 0, 7).await.unwrap();
        let wrong = pool.set_transaction_id(cx, 0, 8).await;
        assert!(matches!(wrong, Err(VerbError::Edit(EditError::Transaction { found: 7, .. }))), "{wrong:?}");
        assert!(pool.status().to_string().starts_with("7 "), "{}", pool.status());
    });
    assert_eq!(superblock(&world).transaction_id, 7);
}

#[test]
fn a_device_that_is_being_deleted_can_be_had_by_nobody() {
    let make = Make { data_blocks: (4000, 4000), volumes: vec![64], ..Make::default() };
    make.play(|stand| async move {
        let (pool, cx) = (&stand.pool, &stand.cx);
        pool.create_thin(cx, 3).await.unwrap();
        let three = stand.open(3, 4000).await;
        let zeros = Bio::without_data(Op::WriteZeroes, Flags::NO_UNMAP, Sector(0), Sectors(4000 * BLOCK));
        cx.bio(&three, zeros).await.0.unwrap();
        stand.flush(&three).await.unwrap();
        drop(three);
        let deleting = async { pool.delete(cx, 3).await };
        let using = async {
            // What asks for the turn meanwhile gets it between two steps.
            let opened = pool.device(cx, 3).await.map(|_| ());
            assert!(pool.status().data_used > 0, "some is left");
            opened
        };
        let snapping = async { pool.create_snap(cx, 4, 3).await };
        let tasks: Vec<Task<Result<(), VerbError>>> =
            vec![Box::pin(deleting), Box::pin(using), Box::pin(snapping)];
        let results = together(tasks).await;
        assert!(results[0].is_ok(), "{results:?}");
        for result in &results[1..] {
            assert!(
                matches!(result, Err(VerbError::Edit(EditError::NoDevice(3)) | VerbError::Pool(_))),
                "{results:?}"
            );
        }
        assert_eq!(pool.status().data_used, 0);
    });
}

#[test]
fn a_metadata_snapshot_is_held_until_it_is_released() {
    Make::default().play(|stand| async move {
        let (pool, cx, thin) = (&stand.pool, &stand.cx, &stand.thins[0]);
        stand.write(thin, 0, 3 * BLOCK, 1).await.unwrap();
        pool.reserve_metadata_snap(cx).await.unwrap();
        let held = superblock(&stand.world).held_root;
        assert!(held > 0 && pool.status().held_root == held);
        assert!(matches!(pool.reserve_metadata_snap(cx).await, Err(VerbError::Edit(EditError::Held))));
        stand.write(thin, 3 * BLOCK, 3 * BLOCK, 1).await.unwrap();
        pool.release_metadata_snap(cx).await.unwrap();
        assert_eq!(superblock(&stand.world).held_root, 0);
        assert!(matches!(pool.release_metadata_snap(cx).await, Err(VerbError::Edit(EditError::NotHeld))));
    });
}

#[test]
fn devices_that_have_grown_are_used_and_smaller_ones_refused() {
    Make { data_blocks: (2, 64), metadata_blocks: (64, 512), ..Make::default() }.play(|stand| async move {
        let (pool, cx, thin) = (&stand.pool, &stand.cx, &stand.thins[0]);
        stand.write(thin, 0, 2 * BLOCK, 1).await.unwrap();
        let smaller = pool.grow_data(cx, part(&stand.disks[1], BLOCK)).await;
        assert!(matches!(smaller, Err(VerbError::Edit(EditError::Smaller { .. }))), "{smaller:?}");
        pool.grow_data(cx, part(&stand.disks[1], 64 * BLOCK)).await.unwrap();
        pool.grow_metadata(cx, part(&stand.disks[0], 512 * 8)).await.unwrap();
        let status = pool.status();
        assert_eq!((status.data_blocks, status.metadata_blocks), (64, 512));
        stand.write(thin, 0, 64 * BLOCK, 2).await.unwrap();
        assert_eq!(stand.read(thin, 0, 64 * BLOCK).await, vec![2; 64 * BLOCK as usize]);
    });
}

#[test]
fn what_devices_have_grown_by_while_nobody_served_the_pool_is_counted_when_it_is_opened() {
    let make = Make { data_blocks: (2, 64), metadata_blocks: (64, 512), has_grown: true, ..Make::default() };
    let world = make.clone().play(|stand| async move {
        let thin = &stand.thins[0];
        thin.open(stand.cx.clone()).unwrap().await.unwrap();
        let status = stand.pool.status();
        assert_eq!((status.data_blocks, status.metadata_blocks), (64, 512));
        stand.write(thin, 0, 64 * BLOCK, 2).await.unwrap();
        assert_eq!(stand.read(thin, 0, 64 * BLOCK).await, vec![2; 64 * BLOCK as usize]);
    });
    assert_eq!(superblock(&world).data_space_map.blocks, 64);
    // Who only reads changes nothing.
    let world = Make { needs_check: true, ..make }.play(|stand| async move {
        stand.thins[0].open(stand.cx.clone()).unwrap().await.unwrap();
    });
    assert_eq!(superblock(&world).data_space_map.blocks, 2);
}

#[test]
fn full_metadata_that_has_grown_with_the_data_is_counted_first() {
    // More data takes more bitmaps than there are blocks of metadata.
    const GROWN: u64 = 1 << 17;
    let counted = |metadata| {
        let make = Make {
            data_blocks: (64, GROWN),
            metadata_blocks: (16, metadata),
            has_grown: true,
            is_blank: true,
            ..Make::default()
        };
        let told = Rc::new(Cell::new((0, 0)));
        let own = told.clone();
        make.play(move |stand| async move {
            _ = stand.thins[0].open(stand.cx.clone()).unwrap().await;
            let status = stand.pool.status();
            own.set((status.data_blocks, status.metadata_blocks));
        });
        told.get()
    };
    assert!(counted(16).0 < GROWN);
    assert_eq!(counted(512), (GROWN, 512));
}
