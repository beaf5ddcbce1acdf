//! Small requests beside large ones on one disk: how long they take, what that costs the large ones, and that it costs nothing where there
//! is one kind alone. In virtual time, so it is the same on any machine.

mod running;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    Bio, Counter, CounterTable, FileId, Flags, Layer, LeafId, LeafLayer, LeafSource, Nanos, NodeId, Op,
    Quiescence, Sector, Sectors, TaskContext, Volume, Worker, WorkerConfig,
};
use blockwork_memory::{Segment, Segments};
use blockwork_sim::{Chaos, DeviceModel, Faults, Latencies, Latency, Random, SimEnv, World};

use running::run_all;

const MIB: u64 = 2048;
const DISK: Sectors = Sectors(1 << 24);

/// Who has `depth` requests of so many sectors under way from `start` to `end`, all of one kind, anywhere on the disk.
#[derive(Clone, Copy)]
struct Load {
    op: Op,
    nr: u64,
    depth: u64,
    start: Nanos,
    end: Nanos,
    worker: usize,
    /// Whether some may fail.
    hurt: bool,
}

impl Load {
    fn large(op: Op, end: Nanos) -> Load {
        Load { op, nr: MIB, depth: 32, start: Nanos(0), end, worker: 0, hurt: false }
    }
    /// It comes when what is large is there.
    fn small(end: Nanos) -> Load {
        Load { op: Op::Read, nr: 8, depth: 1, start: Nanos::millis(100), end, worker: 0, hurt: false }
    }
}

/// What came of a load: how long each of its requests took, in order of their ends.
struct Outcome {
    times: Vec<Nanos>,
}

impl Outcome {
    /// So many of a hundred took at most that long.
    fn percentile(&self, percent: usize) -> Nanos {
        let mut sorted = self.times.clone();
        sorted.sort_unstable();
        sorted[sorted.len() * percent / 100]
    }
}

/// A disk that serves some requests at once, each with so many bytes a second.
fn disk(at_once: u32, latency: Nanos, bandwidth: u64) -> DeviceModel {
    let mut model = DeviceModel::null(DISK);
    let time = || Latency::Fixed(latency);
    model.latency =
        Latencies { read: time(), write: time(), flush: time(), discard: time(), sequential: None };
    (model.parallelism, model.channel_bandwidth) = (at_once, bandwidth);
    model.limits.max_sectors = Sectors(MIB);
    model.limits.max_hw_sectors = Sectors(MIB);
    model.limits.wbt_lat = blockwork_engine::WBT_LAT;
    model
}

/// Four requests at once, 500 MB/s in all: 32 of 1 MiB are 67 ms of work.
fn fast() -> DeviceModel {
    disk(4, Nanos::micros(80), 125_000_000)
}

async fn one_after_the_other(cx: TaskContext, disk: Arc<dyn Layer>, load: Load, nth: u64, out: Out) {
    let mut random = Random::part(nth, load.nr);
    let bytes = load.nr as usize * 512;
    let memory = Segment::new(cx.pool().get(bytes), 0, bytes);
    cx.sleep(load.start).await;
    while cx.now() < load.end {
        let sector = Sector(random.below(DISK.0 / load.nr) * load.nr);
        let bio = Bio::with_data(load.op, Flags::NONE, sector, Segments::from_iter([memory.clone()]));
        let begun = cx.now();
        let result = cx.bio(&disk, bio).await.0;
        assert!(result.is_ok() || load.hurt, "{result:?}");
        out.borrow_mut().push(cx.now().since(begun));
    }
}

type Out = Rc<RefCell<Vec<Nanos>>>;

/// Runs loads beside each other; what became of each, and how many large requests were held back.
fn run(model: DeviceModel, loads: &[Load]) -> (Vec<Outcome>, u64) {
    run_with(model, loads, Faults::default(), Chaos::default())
}

fn run_with(model: DeviceModel, loads: &[Load], faults: Faults, chaos: Chaos) -> (Vec<Outcome>, u64) {
    let world = World::new(1);
    let device = world.add_device(model);
    world.set_faults(device, faults);
    world.set_chaos(chaos);
    let source = world.source(device);
    let limits = source.limits().clone();
    let layer: Arc<dyn Layer> = Arc::new(LeafLayer::new(LeafId(0), NodeId(0), source.sectors(), limits));
    let leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]> = [(NodeId(0), source)].into();
    let volumes: Arc<[Volume]> = [Volume::new("disk", layer.clone(), false)].into();
    let quiescence = Quiescence::default();
    let workers = loads.iter().map(|load| load.worker + 1).max().unwrap();
    let tables: Vec<_> = (0..workers).map(|_| Arc::new(CounterTable::new(1))).collect();
    let mut workers: Vec<Worker<SimEnv>> = tables
        .iter()
        .zip(0..)
        .map(|(table, index)| {
            let mut config = WorkerConfig::new(volumes.clone(), leaves.clone(), table.clone());
            (config.index, config.quiescence) = (index, quiescence.clone());
            Worker::new(world.env(), config)
        })
        .collect();
    let outs: Vec<Out> = loads.iter().map(|_| Out::default()).collect();
    for (load, out) in loads.iter().zip(&outs) {
        for nth in 0..load.depth {
            let (layer, load, out) = (layer.clone(), *load, out.clone());
            workers[load.worker].spawn(move |cx| one_after_the_other(cx, layer, load, nth, out));
        }
    }
    workers.iter().for_each(|worker| worker.handle().stop());
    assert!(run_all(&world, workers));
    assert_eq!(world.counters(FileId(0)).flushes, 0);
    let held = tables.iter().map(|table| table.get(NodeId(0), Counter::Held)).sum();
    (outs.into_iter().map(|out| Outcome { times: out.take() }).collect(), held)
}

const TIME: Nanos = Nanos::millis(1500);

#[test]
fn a_small_read_is_served_in_time_beside_large_ones_and_these_are_as_many_as_before() {
    // Of many small ones that are served in time there are more, and the disk's time is theirs as well.
    for (op, depth, share) in [(Op::Read, 1, 92), (Op::Write, 1, 92), (Op::Read, 12, 75)] {
        let loads = [Load::large(op, TIME), Load { depth, ..Load::small(TIME) }];
        let mut old = fast();
        old.limits.wbt_lat = Nanos(0);
        let (before, held) = run(old, &loads);
        assert_eq!(held, 0);
        assert!(before[1].percentile(50) > Nanos::millis(50), "{:?}", before[1].percentile(50));
        let (now, held) = run(fast(), &loads);
        assert!(held > 300, "{held}");
        assert!(now[1].percentile(50) <= Nanos::millis(2), "{:?}", now[1].percentile(50));
        // One of 1 MiB takes 8.5 ms by itself.
        assert!(now[1].percentile(95) <= Nanos::micros(8500), "{:?}", now[1].percentile(95));
        let (large, larger) = (now[0].times.len(), before[0].times.len());
        assert!(large * 100 >= larger * share, "{large} large ones, {larger} without");
    }
}

#[test]
fn the_small_ones_of_one_worker_are_not_late_for_the_large_ones_of_another() {
    let loads = [Load { worker: 1, ..Load::large(Op::Read, TIME) }, Load::small(TIME)];
    let (now, held) = run(fast(), &loads);
    assert!(held > 300, "{held}");
    assert!(now[1].percentile(50) <= Nanos::millis(2), "{:?}", now[1].percentile(50));
    // And with large ones of both.
    let loads = [loads[0], Load::large(Op::Write, TIME), loads[1]];
    let (now, _) = run(fast(), &loads);
    assert!(now[2].percentile(50) <= Nanos::millis(2), "{:?}", now[2].percentile(50));
    assert!(now[0].times.len() > 100 && now[1].times.len() > 100, "each worker gets on");
}

#[test]
fn where_requests_are_of_one_kind_nothing_waits() {
    let (_, held) = run(fast(), &[Load::large(Op::Read, TIME)]);
    assert_eq!(held, 0);
    let (_, held) = run(fast(), &[Load { depth: 64, ..Load::small(TIME) }]);
    assert_eq!(held, 0);
    // Nor a second after the last small one.
    let half = Nanos::millis(500);
    let both = [Load::large(Op::Read, half), Load::small(half)];
    let late = Load { start: Nanos::millis(1600), ..Load::large(Op::Read, Nanos::millis(2200)) };
    let ((_, held), (_, after)) = (run(fast(), &both), run(fast(), &[&both[..], &[late]].concat()));
    assert!(
        held > 0 && held == after,
        "{held} held while there were small ones, {after} with those that came later"
    );
}

#[test]
fn a_slow_disk_with_much_under_way_serves_small_ones_in_time_as_well() {
    // Heads: 8 ms for each, and 32 of 1 MiB are half a second.
    let heads = disk(1, Nanos::millis(8), 150_000_000);
    let end = Nanos::secs(12);
    let (now, _) = run(heads, &[Load::large(Op::Write, end), Load::small(end)]);
    let small = &now[1].times;
    let of_late = Outcome { times: small[small.len() / 2..].to_vec() };
    assert!(of_late.percentile(50) < Nanos::millis(40), "{:?}", of_late.percentile(50));
}

#[test]
fn small_ones_that_are_too_few_to_tell_cost_the_large_ones_next_to_nothing() {
    // One a second, as a file system's.
    let few: Vec<_> = (0..3)
        .map(|nth| {
            let start = Nanos::millis(100 + 900 * nth);
            Load { start, end: start + Nanos(1), ..Load::small(start) }
        })
        .collect();
    let end = Nanos::secs(3);
    let (alone, _) = run(fast(), &[Load::large(Op::Read, end)]);
    let (beside, _) = run(fast(), &[&[Load::large(Op::Read, end)], &few[..]].concat());
    let (alone, beside) = (alone[0].times.len(), beside[0].times.len());
    assert!(beside * 100 >= alone * 94, "{beside} beside one a second, {alone} alone");
}

#[test]
fn a_disk_that_is_far_away_gets_as_many_large_ones_as_it_can_take() {
    // It takes as long whatever is asked: to hold back helps nobody, and costs most of the rate.
    for ms in [6, 20] {
        let far = disk(256, Nanos::millis(ms), 1_000_000_000);
        let end = Nanos::millis(200 * ms);
        let (alone, _) = run(far.clone(), &[Load::large(Op::Read, end)]);
        let (beside, _) = run(far, &[Load::large(Op::Read, end), Load::small(end)]);
        let (alone, beside) = (alone[0].times.len(), beside[0].times.len());
        assert!(beside * 100 >= alone * 80, "{ms} ms: {beside} beside a small reader, {alone} alone");
    }
}

#[test]
fn what_waits_does_not_keep_small_ones_from_being_made() {
    // A request of the device is 64 KiB, and few are made beyond those in flight: the rest of a large bio waits uncut. Small bios go past it.
    let mut model = fast();
    (model.limits.max_sectors, model.limits.nr_requests) = (Sectors(128), 64);
    let (now, held) = run(model, &[Load::large(Op::Write, TIME), Load::small(TIME)]);
    assert!(held > 300, "{held}");
    assert!(now[1].percentile(50) <= Nanos::millis(2), "{:?}", now[1].percentile(50));
}

#[test]
fn whatever_becomes_of_requests_each_bio_comes_back() {
    let faults = Faults {
        short: 100_000,
        again: 50_000,
        read_errors: 20_000,
        write_errors: 20_000,
        ..Faults::default()
    };
    let chaos = Chaos { spurious_wakeups: 50_000, partial_batches: 300_000, shuffled_batches: 300_000 };
    for nr_requests in [1, 3, 16, 128] {
        let mut model = fast();
        model.limits.nr_requests = nr_requests;
        model.limits.max_sectors = Sectors(300);
        let end = Nanos::millis(400);
        let loads: Vec<_> =
            [(Op::Read, 8), (Op::Write, 24), (Op::Read, 64), (Op::Write, 700), (Op::Read, MIB)]
                .into_iter()
                .zip([0, 1, 0, 1, 1])
                .map(|((op, nr), worker)| Load {
                    op,
                    nr,
                    depth: 12,
                    start: Nanos(0),
                    end,
                    worker,
                    hurt: true,
                })
                .collect();
        let (done, held) = run_with(model, &loads, faults.clone(), chaos);
        // Where only few requests may be in flight, that is less than what large ones may have.
        assert!(held > 0 || nr_requests < 16, "{held}");
        assert!(done.iter().all(|load| load.times.len() >= 12), "nr_requests {nr_requests}");
    }
}
