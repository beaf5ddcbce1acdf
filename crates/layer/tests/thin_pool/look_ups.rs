//! Look-ups that read the map from the metadata device, while others change it.

use blockwork_engine::{Errno, Nanos};
use blockwork_sim::Faults;

use super::rig::{BLOCK, DATA, METADATA, Make, Task, together};

/// Blocks of a page of the map.
const PAGE: u64 = 256;

/// What is at the beginning of each block of the data device.
fn mark(block: u64) -> u8 {
    (block % 251) as u8
}

#[test]
fn what_a_look_up_has_read_before_commits_gave_the_block_to_others_is_believed_by_nobody() {
    // What a commit leaves free is taken by one of the next ones: which, and what for, differs with their number.
    (20..28).for_each(read_slowly_under_commits);
}

/// Leaves of the map are read while that many commits pass.
fn read_slowly_under_commits(commits: u64) {
    const MAPPED: u64 = 1000;
    let make = Make {
        data_blocks: (1200, 1200),
        metadata_blocks: (40, 40),
        volumes: vec![2 * MAPPED],
        mapped: MAPPED,
        // So that the map is looked up in the tree again and again.
        cache_bytes: 0,
        ..Make::default()
    };
    make.play(move |stand| async move {
        let thin = &stand.thins[0];
        for block in 0..MAPPED {
            stand.world.preload(DATA, block * BLOCK, &[mark(block); 512]);
        }
        // What lies above the leaves is known from now on.
        stand.read(thin, (2 * MAPPED - 2) * BLOCK, 1).await;
        stand.world.set_faults(METADATA, Faults { stalls: 1_000_000, ..Faults::default() });
        let slow = |page: u64| {
            let stand = stand.clone();
            async move {
                let found = stand.read(&stand.thins[0], page * PAGE * BLOCK, 1).await;
                assert_eq!(found, [mark(page * PAGE / 2)]);
            }
        };
        let changing = async {
            // The others have asked for their leaves by now.
            stand.cx.sleep(Nanos::millis(1)).await;
            stand.world.set_faults(METADATA, Faults::default());
            for n in 0..commits {
                // An entry of one of the same leaves, in another page.
                let at = (n % 3 * 2 + 1) * PAGE + 1 + n / 3 * 2;
                stand.write(thin, at * BLOCK, 8, 7).await.unwrap();
                stand.flush(thin).await.unwrap();
            }
            assert!(stand.cx.now() < Nanos::secs(30), "the leaves are still being read");
        };
        let mut tasks: Vec<Task<()>> = vec![Box::pin(changing)];
        for page in [0, 2, 4] {
            tasks.push(Box::pin(slow(page)));
        }
        together(tasks).await;
        assert!(stand.cx.now() > Nanos::secs(30));
        // By the nodes that are in memory; then, when a flush has failed, by what was kept of the last commit.
        for has_failed in [false, true] {
            for block in 0..MAPPED {
                let found = stand.read(thin, 2 * block * BLOCK, 1).await;
                assert_eq!(found, [mark(block)], "block {block}, {has_failed}");
            }
            stand.write(thin, (2 * MAPPED - 1) * BLOCK, 8, 7).await.unwrap_or_default();
            stand.world.set_faults(DATA, Faults { lost_flushes: 1_000_000, ..Faults::default() });
            assert_eq!(stand.flush(thin).await, Err(Errno::EIO));
        }
    });
}
