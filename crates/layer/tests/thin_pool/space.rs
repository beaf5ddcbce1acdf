//! Pools that run out of space, of data or of metadata, and pools that may not be written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use blockwork_engine::{Errno, Nanos, Op};
use blockwork_layer::thin::{Mode, PoolFeatures, VerbError};
use blockwork_sim::Faults;

use super::rig::{BLOCK, DATA, Make, Task, part, superblock, together};

fn small(error_if_no_space: bool) -> Make {
    let features = PoolFeatures { error_if_no_space, ..PoolFeatures::default() };
    Make { data_blocks: (4, 16), features, ..Make::default() }
}

#[test]
fn a_write_without_space_waits_a_minute_and_what_is_mapped_goes_on() {
    small(false).play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 4 * BLOCK, 7).await.unwrap();
        let began = stand.cx.now();
        let late = async {
            let result = stand.write(thin, 10 * BLOCK, 8, 1).await;
            (result, stand.cx.now().since(began))
        };
        let others = async {
            stand.cx.sleep(Nanos::secs(1)).await;
            assert_eq!(stand.pool.mode(), Mode::OutOfDataSpace);
            assert!(stand.pool.status().to_string().contains(" 4/4 - out_of_data_space "));
            stand.write(thin, 0, 8, 9).await.unwrap();
            stand.flush(thin).await.unwrap();
            assert_eq!(stand.read(thin, 0, 16).await, [[9; 8], [7; 8]].concat());
            (Ok(()), Nanos(0))
        };
        let tasks: Vec<Task<(Result<(), Errno>, Nanos)>> = vec![Box::pin(late), Box::pin(others)];
        let (result, took) = together(tasks).await[0];
        assert_eq!(result, Err(Errno::ENOSPC));
        assert!((Nanos::secs(60)..Nanos::secs(62)).contains(&took), "{took:?}");
        // From now on nobody waits.
        let began = stand.cx.now();
        assert_eq!(stand.write(thin, 10 * BLOCK, 8, 1).await, Err(Errno::ENOSPC));
        assert!(stand.cx.now().since(began) < Nanos::secs(1));
    });
}

#[test]
fn a_device_that_could_not_be_deleted_has_freed_nothing_that_is_waited_for() {
    small(true).play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 4 * BLOCK, 7).await.unwrap();
        stand.flush(thin).await.unwrap();
        assert!(stand.pool.delete(&stand.cx, 9).await.is_err(), "there is none");
        assert_eq!(stand.write(thin, 10 * BLOCK, 8, 1).await, Err(Errno::ENOSPC));
    });
}

#[test]
fn a_worker_that_is_to_end_waits_for_no_space_however_long_its_writes_would() {
    let features = PoolFeatures { no_space_timeout: None, ..PoolFeatures::default() };
    Make { features, ..small(false) }.play(|stand| async move {
        stand.write(&stand.thins[0], 0, 4 * BLOCK, 7).await.unwrap();
        let waiting = stand.clone();
        stand.cx.spawn(async move {
            let result = waiting.write(&waiting.thins[0], 10 * BLOCK, 8, 1).await;
            assert_eq!(result, Err(Errno::ENOSPC));
        });
        stand.cx.sleep(Nanos::secs(1000)).await;
        assert!(stand.pool.status().to_string().contains(" out_of_data_space "));
        assert!(!stand.pool.status().error_if_no_space, "it still waits");
    });
}

#[test]
fn a_write_without_space_fails_at_once_where_that_is_wanted_and_only_until_there_is_some() {
    small(true).play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 4 * BLOCK, 7).await.unwrap();
        assert_eq!(stand.write(thin, 10 * BLOCK, 8, 1).await, Err(Errno::ENOSPC));
        stand.range(thin, Op::Discard, BLOCK, BLOCK).await.unwrap();
        stand.write(thin, 10 * BLOCK, 8, 1).await.unwrap();
        assert_eq!((stand.pool.mode(), stand.pool.status().data_used), (Mode::Write, 4));
    });
}

#[test]
fn writes_that_wait_for_space_go_on_when_it_comes() {
    for way in ["discard", "delete", "grow"] {
        let make = Make { volumes: vec![64, 4], ..small(false) };
        make.play(move |stand| async move {
            let thin = &stand.thins[0];
            stand.write(thin, 0, 3 * BLOCK, 7).await.unwrap();
            stand.pool.create_snap(&stand.cx, 9, 0).await.unwrap();
            stand.write(thin, 0, BLOCK, 8).await.unwrap();
            let waiting = async { stand.write(thin, 10 * BLOCK, 8, 1).await };
            let helping = async {
                stand.cx.sleep(Nanos::secs(5)).await;
                match way {
                    "discard" => stand.range(thin, Op::Discard, 0, BLOCK).await,
                    "delete" => stand.pool.delete(&stand.cx, 9).await.map_err(|_| Errno::EIO),
                    _ => {
                        let data = part(&stand.disks[1], 8 * BLOCK);
                        stand.pool.grow_data(&stand.cx, data).await.map_err(|_| Errno::EIO)
                    }
                }
            };
            let tasks: Vec<Task<Result<(), Errno>>> = vec![Box::pin(waiting), Box::pin(helping)];
            assert_eq!(together(tasks).await, [Ok(()), Ok(())], "{way}");
            assert!(stand.cx.now() < Nanos::secs(10));
            assert_eq!(stand.read(thin, 10 * BLOCK, 8).await, [1; 8]);
            assert_eq!(stand.pool.mode(), Mode::Write);
        });
    }
}

#[test]
fn what_becomes_free_when_a_block_is_copied_is_space() {
    small(true).play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 3 * BLOCK, 7).await.unwrap();
        // Going by the times, what the snapshot had counts as shared when it is gone, too.
        stand.pool.create_snap(&stand.cx, 9, 0).await.unwrap();
        stand.pool.delete(&stand.cx, 9).await.unwrap();
        stand.write(thin, 0, BLOCK, 8).await.unwrap();
        stand.write(thin, 10 * BLOCK, BLOCK, 9).await.unwrap();
        assert_eq!((stand.pool.mode(), stand.pool.status().data_used), (Mode::Write, 4));
        assert_eq!(stand.read(thin, 0, 256).await, [[8; 128], [7; 128]].concat());
    });
}

#[test]
fn a_block_that_was_given_back_is_nobody_elses_before_the_last_write_to_it_has_ended() {
    Make { volumes: vec![64, 64], ..small(false) }.play(|stand| async move {
        let (one, other) = (&stand.thins[0], &stand.thins[1]);
        stand.write(one, 0, 4 * BLOCK, 7).await.unwrap();
        stand.flush(one).await.unwrap();
        stand.world.set_faults(DATA, Faults { stalls: 1_000_000, ..Faults::default() });
        let slow = async {
            stand.write(one, 0, BLOCK, 8).await.unwrap();
            stand.cx.now()
        };
        let others = async {
            stand.cx.sleep(Nanos::secs(1)).await;
            stand.world.set_faults(DATA, Faults::default());
            stand.range(one, Op::Discard, 0, BLOCK).await.unwrap();
            stand.write(other, 0, BLOCK, 9).await.unwrap();
            stand.cx.now()
        };
        let tasks: Vec<Task<Nanos>> = vec![Box::pin(slow), Box::pin(others)];
        let ended = together(tasks).await;
        assert!(ended[0] > Nanos::secs(30) && ended[1] >= ended[0], "{ended:?}");
        assert_eq!(stand.read(other, 0, 128).await, [9; 128]);
        assert_eq!(stand.read(one, 0, 256).await, [[0; 128], [7; 128]].concat());
    });
}

#[test]
fn a_pool_without_free_metadata_is_read_only_until_it_has_more() {
    let make = Make {
        metadata_blocks: (32, 64),
        data_blocks: (2000, 2000),
        volumes: vec![4_000_000],
        ..Make::default()
    };
    let world = make.play(|stand| async move {
        let thin = &stand.thins[0];
        stand.write(thin, 0, 8, 7).await.unwrap();
        stand.flush(thin).await.unwrap();
        let mut written = 0;
        // Far from each other: many leaves.
        for n in 1..2000 {
            if stand.write(thin, n * 2000 * BLOCK, 8, 1).await.is_err() {
                break;
            }
            written = n;
        }
        assert!((3..1999).contains(&written), "{written}");
        assert_eq!(stand.pool.mode(), Mode::OutOfMetadataSpace);
        let status = stand.pool.status().to_string();
        assert!(status.contains(" ro ") && !status.contains("needs_check"), "{status}");
        // What is mapped goes on.
        stand.write(thin, 0, 8, 9).await.unwrap();
        assert_eq!(stand.read(thin, 0, 16).await, [[9; 8], [0; 8]].concat());
        assert_eq!(stand.read(thin, 4000 * BLOCK, 8).await, [1; 8]);
        stand.range(thin, Op::Discard, 0, BLOCK).await.unwrap();
        assert_eq!(stand.read(thin, 0, 8).await, [9; 8], "nothing is given back");
        stand.flush(thin).await.unwrap();
        let refused = stand.pool.create_thin(&stand.cx, 9).await;
        assert!(matches!(refused, Err(VerbError::ReadOnly(_))), "{refused:?}");
        let next = (written + 1) * 2000 * BLOCK;
        assert_eq!(stand.write(thin, next, 8, 1).await, Err(Errno::EIO));
        stand.pool.grow_metadata(&stand.cx, part(&stand.disks[0], 64 * 8)).await.unwrap();
        stand.write(thin, next, 8, 1).await.unwrap();
        stand.flush(thin).await.unwrap();
        let status = stand.pool.status().to_string();
        assert!(status.contains(" rw ") && status.contains("/64 "), "{status}");
    });
    assert!(!superblock(&world).needs_check);
}

#[test]
fn a_pool_that_needs_a_check_does_not_grow_before_that() {
    Make { needs_check: true, ..Make::default() }.play(|stand| async move {
        let (data, metadata) = (part(&stand.disks[1], 128 * BLOCK), part(&stand.disks[0], 512 * 8));
        for grown in
            [stand.pool.grow_data(&stand.cx, data).await, stand.pool.grow_metadata(&stand.cx, metadata).await]
        {
            let Err(VerbError::ReadOnly(why)) = grown else { panic!("{grown:?}") };
            assert!(why.contains("thin_check"), "{why}");
        }
    });
}

#[test]
fn a_pool_that_may_not_be_changed_takes_what_needs_no_change() {
    let read_only = PoolFeatures { read_only: true, ..PoolFeatures::default() };
    for make in
        [Make { features: read_only, ..Make::default() }, Make { needs_check: true, ..Make::default() }]
    {
        make.play(|stand| async move {
            let thin = &stand.thins[0];
            assert_eq!(stand.write(thin, 0, 8, 1).await, Err(Errno::EIO));
            stand.flush(thin).await.unwrap();
            assert!(stand.pool.create_thin(&stand.cx, 3).await.is_err());
            assert_eq!(stand.read(thin, 0, 8).await, [0; 8]);
        });
    }
}

#[test]
fn a_watcher_hears_each_time_that_the_mark_is_passed_also_where_nobody_has_looked_in_between() {
    let make = Make { data_blocks: (128, 128), volumes: vec![128], ..Make::default() };
    make.play(|stand| async move {
        let heard = Arc::new(AtomicU32::new(0));
        let count = heard.clone();
        stand.pool.watch(50, move || _ = count.fetch_add(1, Ordering::Relaxed));
        let heard = || heard.load(Ordering::Relaxed);
        let thin = &stand.thins[0];
        stand.write(thin, 0, 64 * BLOCK, 7).await.unwrap();
        assert_eq!((stand.pool.is_beyond(50), heard()), ((false, false), 0));
        for blocks in [65, 66] {
            stand.write(thin, (blocks - 1) * BLOCK, BLOCK, 7).await.unwrap();
            assert_eq!(heard(), 1, "{blocks} blocks");
        }
        // It comes below it, and passes it again before the next commit. Meanwhile the one who has heard of it has looked.
        stand.range(thin, Op::Discard, 0, 2 * BLOCK).await.unwrap();
        assert_eq!(stand.pool.is_beyond(50), (false, false));
        stand.pool.watch_again();
        assert_eq!(heard(), 1);
        stand.write(thin, 0, 2 * BLOCK, 8).await.unwrap();
        assert_eq!((stand.pool.is_beyond(50), heard()), ((true, false), 2));
        // Who looks when that has just happened is told at once.
        stand.pool.watch_again();
        assert_eq!(heard(), 3);
        // A commit has it looked at, too.
        stand.range(thin, Op::Discard, 0, 2 * BLOCK).await.unwrap();
        stand.flush(thin).await.unwrap();
        stand.write(thin, 0, 2 * BLOCK, 9).await.unwrap();
        assert_eq!(heard(), 4);
    });
}
