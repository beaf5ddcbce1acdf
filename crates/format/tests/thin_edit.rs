//! Pools that are changed by the editor, against `thin_check`, `thin_dump` and a plain model: after every commit of random
//! sequences of all operations, and just before, when all but the superblock is written.
//!
//! `THIN_SEEDS=FIRST..END` runs other sequences than those of an ordinary test run.

mod thin_pool;
mod tool;

use std::collections::BTreeMap;
use std::env;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use blockwork_format::thin::edit::{EditError, Editor, Unmapped, VirtualRun};
use blockwork_format::thin::{BITMAP_ENTRIES, Block, Superblock};
use thin_pool::{Device, Model, Pool, Random, check, dump};

/// Virtual blocks of a device that are used.
const VIRTUAL: u64 = 6000;

struct Run {
    pool: Pool,
    model: Model,
    random: Random,
    data_blocks: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random(seed);
        let data_blocks = 1 + random.below(40_000);
        let pool = Pool::new(data_blocks, 512 + random.below(2048));
        Run { pool, model: Model::default(), random, data_blocks }
    }

    fn device(&mut self) -> Option<u64> {
        let count = u64::try_from(self.model.devices.len()).unwrap();
        let at = usize::try_from(self.random.below(count)).unwrap();
        self.model.devices.keys().nth(at).copied()
    }

    /// One operation, on both.
    fn step(&mut self, folder: &Path) {
        match self.random.below(40) {
            0..=1 => self.create(),
            2..=4 => self.snapshot(),
            5 => self.delete(folder),
            6..=17 => self.map(),
            18..=21 => self.scatter(),
            22..=29 => self.unmap(),
            30 => self.transaction(),
            31 => self.grow(),
            32 => self.hold(),
            33 => self.release(folder),
            34 => self.give_back(),
            35..=36 => self.pool.read.clear(),
            _ => self.look(),
        }
    }

    fn create(&mut self) {
        let id = self.random.below(12);
        let created = self.pool.op(|editor, read| editor.create_device(read, id));
        if self.model.devices.contains_key(&id) {
            return assert_eq!(created, Err(EditError::Exists(id)));
        }
        if created == Err(EditError::NoMetadata) {
            return;
        }
        created.unwrap();
        let mut device = Device::default();
        device.details.transaction_id = self.model.transaction_id;
        (device.details.creation_time, device.details.snapshotted_time) = (self.model.time, self.model.time);
        self.model.devices.insert(id, device);
    }

    fn snapshot(&mut self) {
        let (id, Some(origin)) = (self.random.below(12), self.device()) else { return };
        let created = self.pool.op(|editor, read| editor.create_snapshot(read, id, origin));
        if self.model.devices.contains_key(&id) {
            return assert_eq!(created, Err(EditError::Exists(id)));
        }
        if created == Err(EditError::NoMetadata) {
            return;
        }
        created.unwrap();
        self.model.time += 1;
        let of = self.model.devices.get_mut(&origin).unwrap();
        of.details.snapshotted_time = self.model.time;
        let mut snapshot = of.clone();
        snapshot.details.transaction_id = self.model.transaction_id;
        snapshot.details.creation_time = self.model.time;
        self.model.devices.insert(id, snapshot);
    }

    fn delete(&mut self, folder: &Path) {
        let Some(id) = self.device() else { return };
        loop {
            match self.pool.op(|editor, read| editor.delete_device(read, id)) {
                Ok(true) => break,
                Ok(false) if self.random.below(4) == 0 => {
                    self.pool.commit();
                    check(&self.pool.device, folder);
                }
                Ok(false) => {}
                Err(error) => panic!("{error}"),
            }
        }
        self.model.devices.remove(&id);
        assert_eq!(self.pool.op(|editor, read| editor.delete_device(read, id)), Err(EditError::NoDevice(id)));
    }

    fn map(&mut self) {
        let Some(id) = self.device() else { return };
        let first = self.random.below(VIRTUAL);
        let most = 1 + match self.random.below(4) {
            0 => 0,
            1 => self.random.below(8),
            2 => self.random.below(100),
            _ => self.random.below(900),
        };
        match self.pool.map_new(id, first, most) {
            Ok(data) => self.mapped(id, first, data),
            Err(EditError::NoData | EditError::NoMetadata) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Rows of a few blocks each, anywhere, by one operation: all of them, or none.
    fn scatter(&mut self) {
        let Some(id) = self.device() else { return };
        let most = 1 + self.random.below(120);
        let Ok(data) = self.pool.op(|editor, read| editor.allocate(read, most)) else { return };
        let (mut rows, mut at, mut first) = (Vec::new(), data.start, 0);
        while at < data.end && first < VIRTUAL {
            first += self.random.below(2 * VIRTUAL / (data.end - data.start + 1));
            let end = data.end.min(at + 1 + self.random.below(4));
            rows.push((first, at..end));
            first += end - at;
            at = end;
        }
        self.pool.editor.release(at..data.end);
        match self.pool.op(|editor, read| editor.map_rows(read, id, &rows)) {
            Ok(_) => rows.into_iter().for_each(|(first, data)| self.mapped(id, first, data)),
            Err(EditError::NoMetadata) => self.pool.editor.release(data.start..at),
            Err(error) => panic!("{error}"),
        }
    }

    fn mapped(&mut self, id: u64, first: u64, data: Range<u64>) {
        let used = self.model.used();
        assert!(data.clone().all(|block| !used.contains(&block)), "{data:?} are in use");
        assert!(data.end <= self.data_blocks);
        let (time, device) = (self.model.time, self.model.devices.get_mut(&id).unwrap());
        device.mappings.extend((first..).zip(data.map(|block| (block, time))));
        device.details.mapped_blocks = u64::try_from(device.mappings.len()).unwrap();
    }

    fn unmap(&mut self) {
        let Some(id) = self.device() else { return };
        let first = self.random.below(VIRTUAL);
        let length = [1, 1 + self.random.below(50), 1 + self.random.below(VIRTUAL), u64::MAX - first]
            [usize::try_from(self.random.below(4)).unwrap()];
        let end = first + length;
        let mut next = Some(first);
        while let Some(start) = next {
            let unmapped = self.pool.op(|editor, read| editor.unmap(read, id, start..end));
            let Unmapped { count: more, freed, next: then } = match unmapped {
                Ok(unmapped) => unmapped,
                Err(EditError::NoMetadata) if self.pool.is_committing => return,
                Err(error) => panic!("{error}"),
            };
            assert!(then.is_none_or(|then| then > start && then < end));
            let device = self.model.devices.get_mut(&id).unwrap();
            let gone = device.mappings.len();
            device.mappings.retain(|key, _| !(start..then.unwrap_or(end)).contains(key));
            assert_eq!(u64::try_from(gone - device.mappings.len()).unwrap(), more);
            device.details.mapped_blocks -= more;
            let used = self.model.used();
            assert!(freed.into_iter().flatten().all(|block| !used.contains(&block)));
            next = then;
        }
    }

    fn transaction(&mut self) {
        let now = self.model.transaction_id;
        let wrong = self.pool.editor.set_transaction_id(now + 1, 0);
        assert_eq!(wrong, Err(EditError::Transaction { found: now, expected: now + 1 }));
        self.pool.editor.set_transaction_id(now, now + 1).unwrap();
        self.model.transaction_id += 1;
    }

    fn grow(&mut self) {
        if self.random.below(2) == 0 {
            let wanted = self.data_blocks + self.random.below(20_000);
            match self.pool.op(|editor, read| editor.grow_data(read, wanted)) {
                Ok(()) => self.data_blocks = wanted,
                Err(error) => assert_eq!(error, EditError::NoMetadata),
            }
        } else {
            let more = usize::try_from(self.random.below(3000)).unwrap();
            let bytes = self.pool.device.len() + more * 4096;
            self.pool.device.resize(bytes, 0);
            let wanted = u64::try_from(bytes / 4096).unwrap();
            self.pool.op(|editor, read| editor.grow_metadata(read, wanted)).unwrap();
        }
    }

    fn hold(&mut self) {
        let held = self.pool.op(|editor, read| editor.reserve_metadata_snap(read));
        match held {
            Err(EditError::NoMetadata) => {}
            Err(error) => assert!(error == EditError::Held && self.model.held.is_some()),
            Ok(()) => {
                assert!(self.model.held.is_none());
                self.model.held = Some(self.model.devices.clone());
            }
        }
    }

    fn release(&mut self, folder: &Path) {
        if self.model.held.is_none() {
            let released = self.pool.op(|editor, read| editor.release_metadata_snap(read));
            return assert_eq!(released, Err(EditError::NotHeld));
        }
        while !self.pool.op(|editor, read| editor.release_metadata_snap(read)).unwrap() {
            if self.random.below(4) == 0 {
                self.pool.commit();
                check(&self.pool.device, folder);
            }
        }
        self.model.held = None;
    }

    /// Blocks that are given out and not mapped are free again.
    fn give_back(&mut self) {
        let most = 1 + self.random.below(50);
        if let Ok(data) = self.pool.op(|editor, read| editor.allocate(read, most)) {
            self.pool.editor.release(data);
        }
    }

    fn look(&mut self) {
        let Some(id) = self.device() else { return };
        let (first, most) = (self.random.below(VIRTUAL), 1 + self.random.below(300));
        let found = self.pool.op(|editor, read| editor.look_up(read, id, first, most)).unwrap();
        let mappings = &self.model.devices[&id].mappings;
        match found {
            VirtualRun::Hole { length } => {
                assert!((1..=most).contains(&length));
                assert_eq!(mappings.range(first..first + length).next(), None);
            }
            VirtualRun::Mapped { first: start, length } => {
                assert!((1..=most).contains(&length));
                for n in 0..length {
                    assert_eq!(mappings.get(&(first + n)), Some(&(start.block + n, start.time)));
                }
            }
        }
    }

    /// Changes the pool while its commit is still being written: what is read of the device then is what was committed before, and
    /// the commit is not changed by it.
    fn commit_and_go_on(&mut self, folder: &Path) {
        let commit = self.pool.begin_commit();
        let again = self.pool.op(|editor, read| editor.commit(read));
        assert_eq!(again.unwrap_err(), EditError::Committing);
        let committed = self.model.clone();
        for _ in 0..self.random.below(8) {
            match self.random.below(4) {
                0 => self.snapshot(),
                1 => self.map(),
                2 => self.scatter(),
                _ => self.unmap(),
            }
        }
        self.pool.end_commit(&commit, |_| {});
        check(&self.pool.device, folder);
        let found = dump(&self.pool.device, folder);
        assert!(Model { held: committed.held.clone(), ..found } == committed, "a commit was changed");
    }

    /// Commits, and looks at the pool before and after the superblock is written.
    fn commit(&mut self, folder: &Path) {
        // An operation that needed room has committed since: so what was committed last is read anew.
        let before = dump(&self.pool.device, folder);
        self.pool.commit_and(|device| {
            check(device, folder);
            assert!(dump(device, folder) == before, "the last transaction is damaged");
        });
        check(&self.pool.device, folder);
        let found = dump(&self.pool.device, folder);
        let held = self.model.held.clone();
        assert!(Model { held, ..found } == self.model, "thin_dump tells another pool than the model");
        let used = u64::try_from(self.model.used().len()).unwrap();
        assert_eq!(self.pool.editor.free_data(), self.data_blocks - used);
        self.check_shared();
    }

    fn check_shared(&mut self) {
        let Some((_, device)) = self.model.devices.first_key_value() else { return };
        if let (Some((block, _)), 1) = (device.mappings.values().next(), self.model.devices.len()) {
            let shared = self.pool.op(|editor, read| editor.is_shared(read, *block)).unwrap();
            assert!(!shared || self.model.held.is_some(), "data block {block} has one owner");
        }
    }
}

fn seeds() -> Range<u64> {
    let Ok(text) = env::var("THIN_SEEDS") else { return 0..4 };
    let (first, end) = text.split_once("..").expect("FIRST..END");
    first.parse().unwrap()..end.parse().unwrap()
}

#[test]
fn every_commit_of_random_sequences_is_good_to_the_tools() {
    let folder = tempfile::tempdir().unwrap();
    for seed in seeds() {
        println!("THIN_SEEDS={seed}..{}", seed + 1);
        let mut run = Run::new(seed);
        for _ in 0..6 {
            for _ in 0..1 + run.random.below(30) {
                run.step(folder.path());
            }
            if run.random.below(2) == 0 {
                run.commit_and_go_on(folder.path());
            }
            run.commit(folder.path());
            if run.random.below(3) == 0 {
                run.pool = Pool::open(run.pool.device);
            }
        }
    }
}

/// A pool with a device of so many blocks, mapped in rising order in pieces of 16.
fn with_device(data_blocks: u64, metadata_blocks: u64, mapped: u64) -> Pool {
    let mut pool = Pool::new(data_blocks, metadata_blocks);
    pool.op(|editor, read| editor.create_device(read, 1)).unwrap();
    for first in (0..mapped).step_by(16) {
        let data = pool.map_new(1, first, 16).unwrap();
        assert_eq!(data, first..first + 16, "blocks are given out in order");
    }
    pool.commit();
    pool
}

#[test]
fn rising_blocks_leave_full_nodes() {
    let pool = with_device(100_000, 4096, 80_000);
    let used = pool.editor.durable().metadata_space_map.allocated;
    // 318 full leaves; what else there is, some twenty blocks.
    assert!(used < 318 * 21 / 20 + 20, "{used} metadata blocks for 80,000 mappings");
}

#[test]
fn a_snapshot_is_as_much_work_whatever_the_size() {
    let work = |mapped| {
        let mut pool = Pool::open(with_device(100_000, 4096, mapped).device);
        pool.op(|editor, read| editor.create_snapshot(read, 2, 1)).unwrap();
        let commit = pool.begin_commit();
        (commit.writes.len(), pool.read.len())
    };
    assert_eq!(work(16), work(80_000));
    let (writes, reads) = work(80_000);
    assert!(writes <= 6 && reads <= 8, "{writes} writes and {reads} reads");
}

#[test]
fn what_was_given_out_and_not_mapped_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut pool = with_device(1000, 512, 160);
    let given = pool.op(|editor, read| editor.allocate(read, 100)).unwrap();
    pool.op(|editor, read| editor.create_device(read, 2)).unwrap();
    pool.commit();
    check(&pool.device, folder.path());
    assert_eq!(pool.editor.free_data(), 840);
    // They are nobody else's until then.
    let others = pool.op(|editor, read| editor.allocate(read, 1000)).unwrap();
    assert!(others.start >= given.end || others.end <= given.start);
    let mapped = pool.op(|editor, read| editor.map(read, 2, 0, given.clone())).unwrap();
    assert_eq!((mapped.replaced, mapped.freed), (0, vec![]));
    pool.editor.release(others);
    pool.commit();
    check(&pool.device, folder.path());
    assert_eq!(pool.editor.free_data(), 740);
}

/// Two writers would have one block, and neither would know.
#[test]
fn what_was_given_out_is_nobody_elses_whatever_becomes_of_later_requests() {
    let mut pool = Pool::open(with_device(2 * BITMAP_ENTRIES, 512, 16).device);
    let first = pool.op(|editor, read| editor.allocate(read, 100)).unwrap();
    assert_eq!(first, 16..116);
    // The second bitmap was not read; then it is damaged.
    let rest = |pool: &mut Pool| pool.editor.allocate(&pool.read, u64::MAX);
    let missing = rest(&mut pool).unwrap_err();
    let EditError::Missing(nr) = missing else { panic!("{missing}") };
    pool.fetch(nr);
    let whole = pool.read[&nr].clone();
    let mut damaged = *whole;
    damaged[1000] ^= 1;
    pool.read.insert(nr, Arc::new(damaged));
    let refused = rest(&mut pool);
    assert!(matches!(refused, Err(EditError::Format(_))), "{refused:?}");
    pool.read.insert(nr, whole);
    assert_eq!(pool.op(|editor, read| editor.allocate(read, u64::MAX)), Ok(116..2 * BITMAP_ENTRIES));
    assert_eq!(pool.op(|editor, read| editor.allocate(read, 1)), Err(EditError::NoData));
    pool.editor.release(first.clone());
    assert_eq!(pool.op(|editor, read| editor.allocate(read, u64::MAX)), Ok(first));
}

#[test]
fn a_data_block_that_was_freed_is_not_given_out_before_the_commit_is_durable() {
    let mut pool = with_device(160, 512, 160);
    let allocate = |pool: &mut Pool| pool.op(|editor, read| editor.allocate(read, 100));
    let unmapped = pool.op(|editor, read| editor.unmap(read, 1, 10..20)).unwrap();
    let freed: Vec<_> = unmapped.freed.into_iter().flatten().collect();
    assert_eq!((unmapped.count, freed, unmapped.next), (10, (10..20).collect(), None));
    assert_eq!((pool.editor.free_data(), allocate(&mut pool)), (10, Err(EditError::NoData)));
    let commit = pool.begin_commit();
    assert_eq!(allocate(&mut pool), Err(EditError::NoData), "it may still come to nothing");
    pool.end_commit(&commit, |_| {});
    assert_eq!(allocate(&mut pool), Ok(10..20));

    // Nor one that no commit has ever seen in use, also if the one before it is still being written.
    pool.editor.release(10..20);
    for before_the_commit in [false, true] {
        let begun = before_the_commit.then(|| pool.begin_commit());
        assert_eq!(pool.map_new(1, 300, 10), Ok(10..20));
        pool.op(|editor, read| editor.unmap(read, 1, 300..310)).unwrap();
        assert_eq!(allocate(&mut pool), Err(EditError::NoData));
        if let Some(commit) = begun {
            pool.end_commit(&commit, |_| {});
            assert_eq!(allocate(&mut pool), Err(EditError::NoData), "freed after that");
        }
        pool.commit();
        assert_eq!(allocate(&mut pool), Ok(10..20));
        pool.editor.release(10..20);
    }
}

#[test]
fn a_pool_without_metadata_blocks_is_left_whole_and_gets_out_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut pool = Pool::new(1_000_000, 128);
    pool.op(|editor, read| editor.create_device(read, 1)).unwrap();
    // Far apart, so that no two share a leaf for long; the harness commits whenever that may help.
    let mut mapped = 0;
    while pool.map_new(1, mapped * 7919 % 1_000_003, 1).is_ok() {
        mapped += 1;
    }
    assert!(mapped > 5000, "{mapped}");
    assert!(!pool.editor.is_dirty(), "what is given up for lack of room is tried on a clean pool");
    check(&pool.device, folder.path());
    // A device that maps nothing needs less than a mapping, and at last that is too much.
    let refused = (2..).find_map(|id| pool.op(|editor, read| editor.create_device(read, id)).err());
    assert_eq!(refused, Some(EditError::NoMetadata));
    pool.commit();
    check(&pool.device, folder.path());
    let mut next = Some(0);
    while let Some(start) = next {
        next = pool.op(|editor, read| editor.unmap(read, 1, start..500_000)).unwrap().next;
    }
    pool.commit();
    check(&pool.device, folder.path());
    pool.op(|editor, read| editor.create_snapshot(read, 1000, 1)).unwrap();
    pool.commit();
    check(&pool.device, folder.path());
}

#[test]
fn a_commit_that_lacks_a_block_halfway_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    // The index of so many bitmaps has three leaves: the first one moves, and the last one fills up, before the second is missed.
    let mut pool = Pool::open(with_device(6_500_000, 2048, 16).device);
    pool.map_new(1, 100, 16).unwrap();
    pool.op(|editor, read| editor.grow_data(read, 7_200_000)).unwrap();
    let missing = pool.editor.commit(&pool.read).unwrap_err();
    assert!(matches!(missing, EditError::Missing(_)), "{missing}");
    pool.commit();
    check(&pool.device, folder.path());
    assert_eq!(Pool::open(pool.device).editor.free_data(), 7_200_000 - 32);
}

/// Something that is done to a pool.
type Op = fn(&mut Editor, &BTreeMap<u64, Arc<Block>>) -> Result<(), EditError>;

/// What is to be done when a pool has much in it, and changes of its own that are not committed.
const OPS: [(&str, Op); 12] = [
    ("a device", |editor, read| editor.create_device(read, 7)),
    ("a snapshot", |editor, read| editor.create_snapshot(read, 7, 2)),
    ("the end of a device", |editor, read| editor.delete_device(read, 1).map(drop)),
    ("a row in place of another", |editor, read| editor.map(read, 2, 1000, 9000..9100).map(drop)),
    ("rows in shared leaves", |editor, read| {
        let rows: Vec<_> = (0..20).map(|n| (n * 150 + 1, 9000 + n * 2..9001 + n * 2)).collect();
        editor.map_rows(read, 1, &rows).map(drop)
    }),
    ("nothing in many leaves", |editor, read| editor.unmap(read, 1, 700..2500).map(drop)),
    ("blocks", |editor, read| editor.allocate(read, 300).map(drop)),
    ("more data", |editor, read| editor.grow_data(read, 70_000)),
    ("more metadata", |editor, read| editor.grow_metadata(read, 40_000)),
    ("a metadata snapshot", |editor, read| editor.reserve_metadata_snap(read)),
    ("a commit", |editor, read| editor.commit(read).map(drop)),
    // Of several rows the first may be mapped before the last cannot be.
    ("rows of a device that there is not", |editor, read| {
        editor.map_rows(read, 8, &[(0, 9000..9010), (20, 9500..9501)]).map(drop)
    }),
];

/// What is refused, whatever is in memory, and why.
const REFUSED: [(Op, EditError); 8] = [
    (
        |editor, read| {
            let rows = [(0, 9000..9010), (10, 9500..9501), (20, 39_990..40_001)];
            editor.map_rows(read, 2, &rows).map(drop)
        },
        EditError::Range { first: 39_990, length: 11, blocks: 40_000 },
    ),
    (
        |editor, read| editor.map(read, 2, 0, 39_999..40_001).map(drop),
        EditError::Range { first: 39_999, length: 2, blocks: 40_000 },
    ),
    (|editor, read| editor.map(read, 7, 0, 9000..9001).map(drop), EditError::NoDevice(7)),
    (|editor, read| editor.unmap(read, 7, 0..9).map(drop), EditError::NoDevice(7)),
    (|editor, read| editor.create_snapshot(read, 7, 8), EditError::NoDevice(8)),
    (|editor, read| editor.create_device(read, 2), EditError::Exists(2)),
    (|editor, read| editor.grow_data(read, 39_999), EditError::Smaller { now: 40_000, wanted: 39_999 }),
    (|editor, read| editor.release_metadata_snap(read).map(drop), EditError::NotHeld),
];

/// The same pool each time, of which nothing is in memory: a device, and a snapshot of it.
fn fresh() -> Pool {
    let mut pool = with_device(40_000, 2048, 3200);
    pool.op(|editor, read| editor.create_snapshot(read, 2, 1)).unwrap();
    pool.commit();
    Pool::open(pool.device)
}

/// With a transaction under way: one more snapshot, mappings, and blocks that were given out.
fn under_way() -> Pool {
    let mut pool = fresh();
    pool.op(|editor, read| editor.create_snapshot(read, 3, 2)).unwrap();
    pool.map_new(2, 40, 20).unwrap();
    pool.op(|editor, read| editor.unmap(read, 3, 3000..3050)).unwrap();
    pool.op(|editor, read| editor.allocate(read, 5)).unwrap();
    pool.read.clear();
    pool
}

/// All that can be told of a pool: the superblock, what is free, what the next blocks are, and every byte of its metadata after a commit.
type Whole = (Superblock, [u64; 4], usize, Range<u64>, Vec<u8>);

fn whole(mut pool: Pool) -> Whole {
    // What was read may be damaged.
    pool.read.clear();
    let (superblock, changed) = (*pool.editor.superblock(), pool.editor.dirty_blocks());
    let next = pool.map_new(2, 5000, 7).unwrap();
    pool.commit();
    let editor = &pool.editor;
    let counts = [editor.free_data(), editor.free_metadata(), editor.data_blocks(), editor.metadata_blocks()];
    (superblock, counts, changed, next, pool.device)
}

/// Does something when so many of the blocks have been read that it needs. The next one is not there, or is damaged.
fn lacking(pool: &mut Pool, op: Op, reads: usize, is_damaged: bool) -> Result<(), EditError> {
    for n in 0.. {
        let nr = match op(&mut pool.editor, &pool.read) {
            Err(EditError::Missing(nr)) if n < reads || (n == reads && is_damaged) => nr,
            result => return result,
        };
        pool.fetch(nr);
        if n == reads {
            let mut damaged = *pool.read[&nr];
            damaged[1000] ^= 1;
            pool.read.insert(nr, Arc::new(damaged));
        }
    }
    unreachable!("a pool has not so many blocks")
}

#[test]
fn an_operation_that_fails_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for make in [fresh, under_way] {
        let untouched = whole(make());
        assert!(untouched == whole(make()), "two that are made alike are alike");
        check(&untouched.4, folder.path());
        for (what, op) in OPS {
            let reads = fail_everywhere(make, &untouched, what, op);
            println!("{what}: {reads} blocks");
            assert!(reads > 0 || make().editor.is_dirty(), "{what}: there was nothing to be missed");
        }
        for (op, expected) in REFUSED {
            let mut pool = make();
            assert_eq!(pool.op(op), Err(expected.clone()));
            assert!(whole(pool) == untouched, "{expected}");
        }
    }
}

/// Each block that an operation needs is missing once, after others were changed; and each is damaged once. How many there are.
fn fail_everywhere(make: fn() -> Pool, untouched: &Whole, what: &str, op: Op) -> usize {
    for reads in 0.. {
        let mut pool = make();
        let Err(error) = lacking(&mut pool, op, reads, false) else { return reads };
        assert!(whole(pool) == *untouched, "{what}, after {reads} blocks: {error}");
        if !matches!(error, EditError::Missing(_)) {
            return reads;
        }
        let mut pool = make();
        let error = lacking(&mut pool, op, reads, true).unwrap_err();
        assert!(matches!(error, EditError::Format(_)), "{what}, block {reads} is damaged: {error}");
        assert!(whole(pool) == *untouched, "{what}, block {reads} is damaged");
    }
    unreachable!("a pool has not so many blocks")
}

#[test]
fn an_operation_that_lacks_metadata_blocks_changes_nothing() {
    let rows: Vec<_> = (0..60).map(|n| (n * 500 + 3, 30_000 + n..30_001 + n)).collect();
    // Each in a leaf of its own, which is copied.
    let full = || {
        let mut pool = with_device(40_000, 256, 30_000);
        pool.op(|editor, read| editor.create_snapshot(read, 2, 1)).unwrap();
        pool.commit();
        let mut pool = Pool::open(pool.device);
        let mut next = 30_200;
        while pool.editor.free_metadata() > 40 {
            let at = (next - 30_200) * 252;
            pool.op(|editor, read| editor.map(read, 1, at, next..next + 1)).unwrap();
            next += 1;
        }
        assert!(pool.editor.is_dirty());
        pool
    };
    let mut pool = full();
    let refused = loop {
        match pool.editor.map_rows(&pool.read, 2, &rows) {
            Err(EditError::Missing(nr)) => pool.fetch(nr),
            result => break result,
        }
    };
    assert_eq!(refused, Err(EditError::NoMetadata));
    assert!(whole(pool) == whole(full()));
}

#[test]
fn rows_that_fail_halfway_leave_nothing_of_those_before_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut pool = with_device(4000, 512, 16);
    for first in (32..3200).step_by(32) {
        pool.map_new(1, first, 16).unwrap();
    }
    pool.commit();
    let mut pool = Pool::open(pool.device);
    // Of the first leaf, a part is of this transaction; the last one was not read.
    pool.map_new(1, 20, 2).unwrap();
    let data = pool.op(|editor, read| editor.allocate(read, 6)).unwrap();
    let rows = |skip: u64| {
        let block = |n: u64| data.start + (n + skip) % 6..data.start + (n + skip) % 6 + 1;
        [(18, block(0)), (24, block(1)), (25, block(2)), (26, block(3)), (3190, block(4))]
    };
    let dirty = pool.editor.dirty_blocks();
    let missing = pool.editor.map_rows(&pool.read, 1, &rows(0)).unwrap_err();
    assert!(matches!(missing, EditError::Missing(_)), "{missing}");
    assert_eq!(pool.editor.dirty_blocks(), dirty);
    for (first, length) in [(17, 3), (22, 10)] {
        let found = pool.editor.look_up(&pool.read, 1, first, length);
        assert_eq!(found, Ok(VirtualRun::Hole { length }), "from {first} on");
    }
    let found = pool.editor.look_up(&pool.read, 1, 20, 9);
    assert!(matches!(found, Ok(VirtualRun::Mapped { length: 2, .. })), "{found:?}");
    // Others than before, so that what is left of those would be found replaced.
    let mapped = pool.op(|editor, read| editor.map_rows(read, 1, &rows(1))).unwrap();
    assert_eq!((mapped.replaced, mapped.freed), (0, vec![]));
    pool.commit();
    check(&pool.device, folder.path());
    let mappings = &dump(&pool.device, folder.path()).devices[&1].mappings;
    for (first, data) in rows(1) {
        assert_eq!(mappings[&first], (data.start, 0));
    }
    assert_eq!(mappings.len(), 100 * 16 + 2 + 5);
}

#[test]
fn blocks_are_given_out_up_to_the_next_one_in_use_over_the_ends_of_bitmaps() {
    let mut pool = Pool::new(3 * BITMAP_ENTRIES, 512);
    pool.op(|editor, read| editor.create_device(read, 1)).unwrap();
    let all = pool.op(|editor, read| editor.allocate(read, u64::MAX)).unwrap();
    assert_eq!(all, 0..3 * BITMAP_ENTRIES);
    pool.editor.release(all);
    // In use: the first block of the third bitmap, one more in the middle of a word, and one that is given out only.
    let (first, second) = (2 * BITMAP_ENTRIES, 2 * BITMAP_ENTRIES + 75);
    for (nth, block) in [(0, first), (1, second)] {
        pool.op(|editor, read| editor.map(read, 1, nth, block..block + 1)).unwrap();
    }
    let mut next = |most| pool.op(|editor, read| editor.allocate(read, most)).unwrap();
    assert_eq!(next(3), 0..3);
    assert_eq!(next(u64::MAX), 3..first, "two bitmaps, up to one in use");
    assert_eq!(next(u64::MAX), first + 1..second);
    assert_eq!(next(10), second + 1..second + 11);
    assert_eq!(next(u64::MAX), second + 11..3 * BITMAP_ENTRIES);
}
