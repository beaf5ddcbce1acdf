//! The log of real work on a simulated stack, replayed: it must give what the disks hold.

mod rig;

use std::sync::Arc;

use blockwork_engine::{FileId, LeafId, SECTOR, Tracer};
use blockwork_format::log_writes::{Log, Until, replay};
use blockwork_insight::LogWrites;
use rig::{DISK_SECTORS, Rig};

/// Without discards: what a disk gives for discarded sectors is its own business.
const NO_DISCARDS: [u32; 5] = [10, 60, 10, 0, 10];

#[test]
fn a_replay_of_the_whole_log_gives_what_the_disks_hold() {
    for (seed, workers) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
        let rig = Rig::new(seed);
        let folder = tempfile::tempdir().unwrap();
        let leaves: Vec<_> = (0..3).map(|n| (LeafId(n), format!("disk {n}"), DISK_SECTORS)).collect();
        let logs = Arc::new(LogWrites::create(&folder.path().join("log"), &leaves).unwrap());
        let tracers = (0..workers).map(|_| Tracer::default()).collect();
        rig.work(tracers, Some(logs.clone()), 500, NO_DISCARDS);
        logs.close().unwrap();
        for (leaf, path) in logs.paths() {
            let bytes = std::fs::read(path).unwrap();
            let mut disk = vec![0u8; DISK_SECTORS.byte_len()];
            let done = replay(&Log::open(&bytes).unwrap(), Until::End, &mut disk).unwrap();
            assert!(done.entries > 100 && done.flushes > 10 && done.written_bytes > 0, "{done:?}");
            for (sector, found) in (0..).zip(disk.chunks(usize::try_from(SECTOR).unwrap())) {
                let expected = rig.world.peek(FileId(u32::from(leaf.0)), sector);
                assert!(*found == expected, "seed {seed}, {leaf:?}, sector {sector} differs");
            }
        }
    }
}
