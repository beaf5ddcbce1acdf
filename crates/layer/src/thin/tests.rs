//! The map against its definition, the cache under readers and fillers, and pools that do not fit their devices.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use blockwork_engine::{
    Bio, CounterTable, Defer, Errno, FileId, Flags, Layer, LeafId, LeafLayer, LeafSource, Limits, NodeId, Op,
    Resolver, Sector, Sectors, Shape, Span, TaskContext, Volume, Worker, WorkerConfig,
};
use blockwork_format::thin::build::{self, Contents, Mappings, build};
use blockwork_format::thin::{BLOCK_SECTORS, BlockTime, DeviceDetails, Superblock, read_block};
use blockwork_format::{Sparse, thin};
use blockwork_memory::{Segment, Segments};
use blockwork_sim::{DeviceModel, World};
use proptest::prelude::*;

use super::cache::{Key, MapCache, PAGE_ENTRIES};
use super::device::Device;
use super::entry::Mapped;
use super::map::Run;
use super::*;

const METADATA_BLOCKS: u64 = 4096;
const DATA_BLOCKS: u64 = 100_000;

type Map = BTreeMap<u64, BlockTime>;

fn leaf(id: u16, sectors: u64) -> Arc<dyn Layer> {
    Arc::new(LeafLayer::new(LeafId(id), NodeId(id), Sectors(sectors), Limits::default()))
}

/// The metadata of a pool with one device, number 1, of which a snapshot was made at time 5.
fn metadata(map: Map) -> Sparse {
    Sparse::new(METADATA_BLOCKS * BLOCK_SECTORS * 512, build(&contents(map)).unwrap())
}

fn contents(map: Map) -> Contents {
    let details = DeviceDetails { snapshotted_time: 5, ..DeviceDetails::default() };
    Contents {
        data_block_sectors: 128,
        data_blocks: DATA_BLOCKS,
        metadata_blocks: METADATA_BLOCKS,
        time: 5,
        transaction_id: 1,
        devices: BTreeMap::from([(1, build::Device { details, mappings: Mappings::Own(map) })]),
    }
}

fn superblock(metadata: &Sparse) -> Superblock {
    Superblock::decode(&read_block(metadata, 0).unwrap()).unwrap().unwrap()
}

fn pool(metadata: &Sparse, cache_bytes: usize) -> (Arc<Pool>, Arc<Device>) {
    let pool = Pool::new(PoolConfig {
        name: "vg/pool".into(),
        data: leaf(0, DATA_BLOCKS * 128),
        metadata: leaf(1, METADATA_BLOCKS * BLOCK_SECTORS),
        superblock: superblock(metadata),
        cache_bytes,
        metadata_kept: METADATA_KEPT,
        features: PoolFeatures::default(),
    });
    let pool = pool.unwrap();
    let device = pool.device_now(metadata, 1).unwrap();
    (pool, device.0)
}

/// The run at a block, read first if that is needed; and whether it was.
fn run(pool: &Pool, metadata: &Sparse, device: &Device, block: u64, most: u64) -> (Run, bool) {
    if let Some(run) = pool.look_up(device, block, most, true) {
        return (run, false);
    }
    pool.load_now(metadata, device, block).unwrap();
    (pool.look_up(device, block, most, true).expect("it was just read"), true)
}

/// By hand: where a run goes that begins with `block`; it ends with its page.
fn by_hand(map: &Map, block: u64, most: u64) -> Run {
    let most = most.min(PAGE_ENTRIES - block % PAGE_ENTRIES);
    let at = |block: u64| {
        map.get(&block).map(|mapping| Mapped {
            block: mapping.block,
            is_shared: mapping.time < 5,
            is_filling: false,
        })
    };
    let first = at(block);
    let follows = |n: &u64| at(block + n) == first.map(|mapped| Mapped { block: mapped.block + n, ..mapped });
    Run { at: first, blocks: 1 + (1..most).take_while(follows).count() as u64, is_outdated: false }
}

/// Runs of blocks, with holes between them.
fn maps() -> impl Strategy<Value = Map> {
    let piece = (0u64..3000, 1u64..60, 0u64..DATA_BLOCKS - 100, 0u32..8);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| {
        let blocks = pieces.into_iter().flat_map(|(gap, length, data, time)| {
            (0..length).map(move |n| (gap * 17 + n, BlockTime { block: data + n, time }))
        });
        blocks.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_block_is_where_its_tree_says_however_small_the_cache(
        map in maps(), places in prop::collection::vec((0u64..60_000, 1u64..600), 1..200),
    ) {
        let metadata = metadata(map.clone());
        let (pool, device) = pool(&metadata, 0);
        for (block, most) in places {
            let run = run(&pool, &metadata, &device, block, most).0;
            prop_assert_eq!(run, by_hand(&map, block, most), "{}", block);
            for is_write in [false, true] {
                let settled = run.at.filter(|at| !is_write || !at.is_shared).map(|at| at.block);
                // Not where others have taken the way that is its page's own.
                let found = pool.settled(&device, block, is_write);
                prop_assert!(found.is_none() || found == settled, "{} {} {:?}", block, is_write, found);
            }
        }
    }
}

#[test]
fn a_pool_of_one_device_passes_the_check() {
    let map = (0..5000).map(|n| (3 * n, BlockTime { block: n, time: 0 })).collect();
    let report = check::check(&metadata(map));
    assert!(report.is_good(), "{:?}", report.problems);
    assert_eq!((report.devices, report.data_used), (1, 5000));
}

#[test]
fn a_hole_of_any_size_is_read_once_for_256_pages() {
    let far = 1 << 30;
    let metadata =
        metadata(Map::from([(0, BlockTime { block: 7, time: 0 }), (far, BlockTime { block: 8, time: 6 })]));
    let (pool, device) = pool(&metadata, CACHE_BYTES);
    let mut reads = 0;
    for page in 1..2048 {
        let (found, was_read) = run(&pool, &metadata, &device, page * PAGE_ENTRIES + 9, 1000);
        assert_eq!(found, Run { at: None, blocks: PAGE_ENTRIES - 9, is_outdated: false });
        reads += u32::from(was_read);
    }
    assert_eq!(reads, 8);
    let found = |block, is_shared| Run {
        at: Some(Mapped { block, is_shared, is_filling: false }),
        blocks: 1,
        is_outdated: false,
    };
    assert_eq!(run(&pool, &metadata, &device, 0, 5).0, found(7, true));
    assert_eq!(run(&pool, &metadata, &device, far, 5).0, found(8, false));
    let settled = |block, is_write| pool.settled(&device, block, is_write);
    assert_eq!([settled(0, false), settled(0, true)], [Some(7), None]);
    assert_eq!([settled(far, false), settled(far, true), settled(far + 1, false)], [Some(8), Some(8), None]);
    assert_eq!(run(&pool, &metadata, &device, far + 1, 5).0, Run { at: None, blocks: 5, is_outdated: false });
}

#[test]
fn a_hole_ends_where_something_is_mapped_within_a_page_of_either_level() {
    for end in [PAGE_ENTRIES + 7, 3 * PAGE_ENTRIES - 1, 300 * PAGE_ENTRIES + 1, 512 * PAGE_ENTRIES] {
        let map = Map::from([(end, BlockTime { block: 7, time: 6 })]);
        let metadata = metadata(map.clone());
        let (pool, device) = pool(&metadata, CACHE_BYTES);
        for block in [0, 9, end - 1, end, end + 1, end + 1000 * PAGE_ENTRIES] {
            let found = run(&pool, &metadata, &device, block, 1).0;
            assert_eq!(found, by_hand(&map, block, 1), "block {block} of a hole until {end}");
        }
    }
}

#[test]
fn what_is_used_stays_when_others_come_and_go() {
    let cache = MapCache::new(0);
    let hot = Key::new(0, 0, 1);
    cache.update(hot, 0, |put| put(3, 33));
    for page in 2..100 {
        assert_eq!(cache.find(hot).and_then(|found| found.get(3)), Some(33), "after page {page}");
        cache.update(Key::new(0, 0, page), 0, |put| put(0, page));
    }
    let kept = (2..100).filter(|page| cache.find(Key::new(0, 0, *page)).is_some()).count();
    assert_eq!(kept, 7);
}

#[test]
fn a_page_that_was_given_up_is_not_read_any_more() {
    let cache = MapCache::new(0);
    cache.update(Key::new(0, 0, 0), 0, |put| put(1, 11));
    let page = cache.find(Key::new(0, 0, 0)).unwrap();
    assert_eq!((page.get(1), page.get(2)), (Some(11), Some(0)));
    // It was used once: it goes when the hand has come by twice.
    (1..100).for_each(|n| cache.update(Key::new(0, 0, n), 0, |put| put(1, n)));
    assert_eq!(page.get(1), None);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "other threads are what this is about")]
fn readers_never_see_another_page_while_frames_are_filled_under_them() {
    const PAGES: u64 = 40;
    let cache = MapCache::new(0);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let seen = std::sync::atomic::AtomicU64::new(0);
    let order = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !is_done.load(order) {
                        for n in 0..PAGES {
                            let Some(page) = cache.find(Key::new(0, 0, n)) else { continue };
                            for at in [0, 100, 255] {
                                let Some(entry) = page.get(at) else { break };
                                assert_eq!(entry, n * 1000 + at);
                                seen.fetch_add(1, order);
                            }
                        }
                    }
                })
            })
            .collect();
        // On a busy machine it takes a while until a reader has its turn.
        for round in (0..).take_while(|round| *round < 20_000 || seen.load(order) == 0) {
            let n = round * 7 % PAGES;
            cache.update(Key::new(0, 0, n), 0, |put| (0..PAGE_ENTRIES).for_each(|at| put(at, n * 1000 + at)));
        }
        is_done.store(true, order);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn devices_that_are_smaller_than_the_metadata_has_it_are_refused() {
    let metadata = metadata(Map::new());
    let config = |data, blocks| PoolConfig {
        name: "pool".into(),
        data: leaf(0, data),
        metadata: leaf(1, blocks * BLOCK_SECTORS),
        superblock: superblock(&metadata),
        cache_bytes: 0,
        metadata_kept: METADATA_KEPT,
        features: PoolFeatures::default(),
    };
    let error = Pool::new(config(DATA_BLOCKS * 128 - 1, METADATA_BLOCKS)).unwrap_err();
    assert_eq!(error, PoolError::Data { wanted: DATA_BLOCKS, sectors: 128, found: DATA_BLOCKS - 1 });
    let error = Pool::new(config(DATA_BLOCKS * 128, METADATA_BLOCKS - 1)).unwrap_err();
    assert_eq!(error, PoolError::Metadata { wanted: METADATA_BLOCKS, found: METADATA_BLOCKS - 1 });
}

#[test]
fn a_mapping_beyond_the_data_device_is_an_error_that_names_it() {
    let metadata = metadata(Map::from([(3, BlockTime { block: DATA_BLOCKS, time: 0 })]));
    let (pool, device) = pool(&metadata, 0);
    let error = pool.load_now(&metadata, &device, 0).unwrap_err().to_string();
    assert!(error.contains("data block is 100000 for block 3"), "{error}");
    assert_eq!(thin::metadata_blocks(u64::MAX), thin::METADATA_BLOCKS_MAX);
}

/// Counts how often bios are resolved, and gives up one that is so for ever.
#[derive(Debug)]
struct Counting {
    shape: Shape,
    below: Arc<dyn Layer>,
    resolved: Arc<AtomicU32>,
}

impl Layer for Counting {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if self.resolved.fetch_add(1, Ordering::Relaxed) > 1000 {
            cx.error(span, Errno::EINVAL);
            return Ok(());
        }
        cx.pass(self.shape.node, span.sector, &*self.below, span)
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}

#[test]
fn a_write_that_waits_for_blocks_and_lacks_none_fails_after_some_rounds_and_the_log_says_where() {
    let map = Map::from([(0, BlockTime { block: 7, time: 6 })]);
    let (world, metadata) = (World::new(1), metadata(map.clone()));
    for sectors in [DATA_BLOCKS * 128, METADATA_BLOCKS * BLOCK_SECTORS] {
        world.add_device(DeviceModel::null(Sectors(sectors)));
    }
    for piece in build(&contents(map)).unwrap() {
        world.preload(FileId(1), piece.offset / 512, &piece.bytes);
    }
    let (pool, device) = pool(&metadata, CACHE_BYTES);
    let current = device.snapshotted();
    let config = ThinConfig {
        pool: pool.clone(),
        device: OpenDevice(device.clone()),
        sectors: Sectors(8 * 128),
        external_origin: None,
    };
    let below: Arc<dyn Layer> = Arc::new(Thin::new(NodeId(2), config));
    let shape = Shape { node: NodeId(3), ..below.shape().clone() };
    let resolved = Arc::new(AtomicU32::new(0));
    let top: Arc<dyn Layer> = Arc::new(Counting { shape, below, resolved: resolved.clone() });
    let leaves =
        [0u16, 1].map(|n| -> (NodeId, Arc<dyn LeafSource>) { (NodeId(n), world.source(FileId(n.into()))) });
    let volumes = Arc::new([Volume::new("thin", top.clone(), false)]);
    let config = WorkerConfig::new(volumes, Arc::new(leaves), Arc::new(CounterTable::new(4)));
    let mut worker = Worker::new(world.env(), config);
    let handle = worker.handle();
    worker.spawn(move |cx| async move {
        let write = || {
            let data = Segments::from_iter([Segment::new(cx.pool().get(4096), 0, 4096)]);
            cx.bio(&top, Bio::with_data(Op::Write, Flags::NONE, Sector(8), data))
        };
        // No page of the map is ever as new as this: a bio never sees that the block is its own, and the tree always says so.
        device.set_snapshotted(u64::MAX);
        assert_eq!(write().await.0, Err(Errno::EIO));
        let rounds = resolved.swap(0, Ordering::Relaxed);
        let most = u32::from(provision::IDLE_ROUNDS_MAX);
        assert!((most..most + 5).contains(&rounds), "{rounds} rounds");
        device.set_snapshotted(current);
        assert_eq!(write().await.0, Ok(()));
        assert!(resolved.load(Ordering::Relaxed) < 5);
        handle.stop();
    });
    assert_eq!(worker.run(), Ok(()));
    let nr = Sectors(8);
    let span = Span { op: Op::Write, flags: Flags::NONE, sector: Sector(8), nr, at: Sectors::ZERO };
    let told = pool.contradiction(1, span);
    for words in [
        "vg/pool: thin device 1: a write of 8 sectors at sector 8 (byte 4096)",
        "fault of blockwork",
        "Report this line",
    ] {
        assert!(told.contains(words), "{told}");
    }
}

/// A bio of 4 KiB, or of a block of the pool where it has no data.
fn bio_at(op: Op, flags: Flags, block: u64, cx: &TaskContext) -> Bio {
    let sector = Sector(block * 128);
    match op {
        Op::Write => {
            let data = Segments::from_iter([Segment::new(cx.pool().get(4096), 0, 4096)]);
            Bio::with_data(op, flags, sector, data)
        }
        _ => Bio::without_data(op, flags, sector, Sectors(128)),
    }
}

/// What a device is asked to do: the kind, and the device. 0 is the pool's data device, 1 that of its metadata.
type Asked = Vec<(String, u16)>;

/// What the devices of a pool are asked to do for each of these bios to a volume of it, one after the other: what, how, and to which block of
/// the volume; and whether all that the volume was changed by is committed then.
fn asked_for(map: Map, bios: &[(Op, Flags, u64)]) -> Vec<(Asked, bool)> {
    let (world, metadata) = (World::new(1), metadata(map.clone()));
    for sectors in [DATA_BLOCKS * 128, METADATA_BLOCKS * BLOCK_SECTORS] {
        world.add_device(DeviceModel::hdd(Sectors(sectors)));
    }
    for piece in build(&contents(map)).unwrap() {
        world.preload(FileId(1), piece.offset / 512, &piece.bytes);
    }
    world.keep_journal();
    let (pool, device) = pool(&metadata, CACHE_BYTES);
    let (sectors, external_origin) = (Sectors(8 * 128), None);
    let config =
        ThinConfig { pool: pool.clone(), device: OpenDevice(device.clone()), sectors, external_origin };
    let top: Arc<dyn Layer> = Arc::new(Thin::new(NodeId(2), config));
    let leaves =
        [0u16, 1].map(|n| -> (NodeId, Arc<dyn LeafSource>) { (NodeId(n), world.source(FileId(n.into()))) });
    let volumes = Arc::new([Volume::new("thin", top.clone(), false)]);
    let config = WorkerConfig::new(volumes, Arc::new(leaves), Arc::new(CounterTable::new(3)));
    let mut worker = Worker::new(world.env(), config);
    let (handle, own, bios) = (worker.handle(), world.clone(), bios.to_vec());
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = asked.clone();
    worker.spawn(move |cx| async move {
        for (op, flags, block) in bios {
            let before = own.journal().len();
            assert_eq!(cx.bio(&top, bio_at(op, flags, block, &cx)).await.0, Ok(()));
            let asked = own.journal().iter().skip(before).filter_map(|line| asked_by(line)).collect();
            told.lock().unwrap().push((asked, pool.is_durable(&device)));
        }
        handle.stop();
    });
    assert_eq!(worker.run(), Ok(()));
    std::mem::take(&mut *asked.lock().unwrap())
}

/// What a line of the journal says.
fn asked_by(line: &str) -> Option<(String, u16)> {
    let words: Vec<_> = line.split(' ').collect();
    let at = words.iter().position(|word| *word == "start")?;
    Some((words[at + 1].to_owned(), words[2].parse().ok()?))
}

/// How often one of them is flushed.
fn flushes(asked: &Asked, device: u16) -> usize {
    asked.iter().filter(|asked| **asked == ("Sync".to_owned(), device)).count()
}

#[test]
fn a_write_that_is_to_outlive_the_process_flushes_the_data_once_and_one_with_fua_once_more() {
    let flushes_of_data = |flags| {
        let asked = asked_for(Map::new(), &[(Op::Write, flags, 0)]);
        let [(asked, is_committed)] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(*is_committed, flags != Flags::NONE, "{flags:?}");
        flushes(asked, 0)
    };
    let both = Flags::OUTLIVES.with(Flags::FUA);
    // The disk has no FUA: the write's own flush comes first.
    assert_eq!([Flags::NONE, Flags::OUTLIVES, Flags::FUA, both].map(flushes_of_data), [0, 1, 3, 3]);
}

#[test]
fn what_is_written_to_committed_blocks_waits_for_no_commit_of_others() {
    // What a write makes durable by itself: a disk without FUA is flushed behind it.
    for (flags, own) in [(Flags::OUTLIVES, 0), (Flags::FUA, 1), (Flags::OUTLIVES.with(Flags::FUA), 1)] {
        let map = Map::from([(0, BlockTime { block: 7, time: 5 }), (3, BlockTime { block: 8, time: 5 })]);
        let bios = [
            (Op::Write, Flags::NONE, 1),
            (Op::Write, flags, 0),
            (Op::Write, flags, 1),
            // Gone, and not committed: who comes next would find what was there.
            (Op::Discard, Flags::NONE, 3),
            (Op::Write, flags, 0),
            (Op::WriteZeroes, flags, 3),
        ];
        let asked = asked_for(map, &bios);
        let seen: Vec<_> =
            asked.iter().map(|(asked, is_committed)| (flushes(asked, 0), *is_committed)).collect();
        assert_eq!(seen[..2], [(0, false), (own, false)], "{flags:?}: {asked:?}");
        assert_eq!(seen[3..5], [(0, false), (own, false)], "{flags:?}: {asked:?}");
        assert!(seen[2].1 && seen[5].1, "{flags:?}: {asked:?}");
    }
}

#[test]
fn what_a_pool_was_opened_with_is_flushed_before_anything_is_given_out() {
    let (asked, _) = asked_for(Map::new(), &[(Op::Write, Flags::NONE, 0)]).remove(0);
    let first = asked.iter().position(|(kind, device)| kind == "Sync" && *device == 1);
    let write = asked.iter().position(|(kind, _)| kind != "Sync" && kind != "Read");
    assert!(first.is_some() && first < write, "{asked:?}");
}
