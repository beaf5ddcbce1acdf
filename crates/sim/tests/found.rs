//! Bugs that the crash lab found in the engine, each in its smallest form.

use std::sync::Arc;

use blockwork_engine::{
    Bio, Completion, Context, CounterTable, Done, Errno, FileId, Flags, Fua, Layer, LeafId, LeafLayer,
    LeafSource, NodeId, Op, Port, PortState, Sector, Sectors, Volume, VolumeId, Worker, WorkerConfig,
    WorkerHandle,
};
use blockwork_layer::{Linear, Segment, Table};
use blockwork_memory::{Segment as Memory, Segments};
use blockwork_sim::{DeviceModel, Fault, SimEnv, World};

/// Submits its bios one after the other, expects these results, and stops the worker.
struct Script {
    bios: Vec<(Bio, Result<(), Errno>)>,
    at: usize,
    stop: WorkerHandle<SimEnv>,
}

impl Script {
    fn next(&mut self, cx: &mut Context<'_, SimEnv>) {
        if let Some((bio, _)) = self.bios.get(self.at) {
            cx.submit(VolumeId(0), self.at as u64, bio.clone());
        }
    }
}

impl Port<SimEnv> for Script {
    fn open(&mut self, cx: &mut Context<'_, SimEnv>) {
        self.next(cx);
    }
    fn event(&mut self, _: &mut Context<'_, SimEnv>, _: u32, _: Completion) {}
    fn done(&mut self, cx: &mut Context<'_, SimEnv>, done: Done) {
        assert_eq!(done.result, self.bios[self.at].1, "bio {}: {:?}", self.at, done.op);
        self.at += 1;
        self.next(cx);
    }
    fn turn(&mut self, _: &mut Context<'_, SimEnv>) -> PortState {
        if self.at < self.bios.len() {
            return PortState::Open;
        }
        self.stop.stop();
        PortState::Closed
    }
    fn drain(&mut self, _: &mut Context<'_, SimEnv>) {}
}

/// Two devices with a volatile cache, one after the other.
fn world() -> World {
    let world = World::new(1);
    for _ in 0..2 {
        let mut model = DeviceModel::null(Sectors(64));
        model.cache_bytes = 1 << 20;
        model.limits.dma_alignment = 512;
        world.add_device(model);
    }
    world
}

fn worker(world: &World) -> Worker<SimEnv> {
    let mut leaves: Vec<(NodeId, Arc<dyn LeafSource>)> = Vec::new();
    let mut segments = Vec::new();
    for n in 0..2 {
        let source = world.source(FileId(u32::from(n)));
        let leaf = LeafLayer::new(LeafId(n), NodeId(n), source.sectors(), source.limits().clone());
        let target = Linear::new(NodeId(n + 2), Arc::new(leaf), Sector(0), Sectors(64)).unwrap();
        segments.push(Segment { start: Sector(u64::from(n) * 64), target: Arc::new(target) });
        leaves.push((NodeId(n), source));
    }
    let root: Arc<dyn Layer> = Arc::new(Table::new(NodeId(4), segments).unwrap());
    let volumes = vec![Volume::new("dm/two", root, false)];
    let counters = Arc::new(CounterTable::new(5));
    Worker::new(world.env(), WorkerConfig::new(volumes.into(), leaves.into(), counters))
}

fn run(world: &World, bios: Vec<(Bio, Result<(), Errno>)>) -> Result<(), Errno> {
    let mut worker = worker(world);
    let stop = worker.handle();
    worker.add_port(Box::new(Script { bios, at: 0, stop }));
    worker.run()
}

fn write(flags: Flags, sector: u64) -> Bio {
    let buffer = blockwork_memory::Buffer::new(512);
    buffer.fill(0, 512, 7);
    Bio::with_data(Op::Write, flags, Sector(sector), Segments::from_iter([Memory::new(buffer, 0, 512)]))
}

const EIO: Result<(), Errno> = Err(Errno::EIO);

#[test]
fn the_flush_after_a_fua_discard_reaches_every_device_of_a_table() {
    let world = world();
    // Its sector lies beyond the end of either device.
    let discard = Bio::without_data(Op::Discard, Flags::FUA, Sector(100), Sectors(8));
    let zeroes = Bio::without_data(Op::WriteZeroes, Flags::FUA, Sector(110), Sectors(8));
    assert_eq!(run(&world, vec![(discard, Ok(())), (zeroes, Ok(()))]), Ok(()));
    assert!(world.counters(FileId(1)).flushes >= 2);
}

#[test]
fn what_a_port_submits_when_it_is_opened_is_done_although_nothing_else_happens() {
    assert_eq!(run(&world(), vec![(write(Flags::NONE, 3), Ok(()))]), Ok(()));
}

#[test]
fn a_worker_that_stops_flushes_what_was_written() {
    let world = world();
    assert_eq!(run(&world, vec![(write(Flags::NONE, 3), Ok(()))]), Ok(()));
    // Through the volume, and so on both devices.
    assert_eq!([0, 1].map(|n| world.counters(FileId(n)).flushes), [1, 1]);
    assert_eq!(world.power_cut().peek(FileId(0), 3), [7; 512]);
}

#[test]
fn a_worker_whose_leaf_has_failed_does_not_end_in_success() {
    let world = world();
    world.fail_nth(FileId(0), 1, Fault::LostFlush);
    // The write was acknowledged, and lost: a second flush would succeed, and prove nothing.
    let bios = vec![
        (write(Flags::NONE, 3), Ok(())),
        (Bio::flush(), EIO),
        (Bio::flush(), EIO),
        (write(Flags::NONE, 4), EIO),
        (write(Flags::FUA, 70), Ok(())),
    ];
    assert_eq!(run(&world, bios), EIO);
    assert_eq!(world.counters(FileId(0)).flushes, 1);
}

#[test]
fn a_worker_whose_leaf_failed_in_the_flush_behind_a_discard_does_not_end_in_success() {
    let world = world();
    world.fail_nth(FileId(0), 2, Fault::LostFlush);
    // The discard has lost nothing, but the write before it had been acknowledged.
    let discard = Bio::without_data(Op::Discard, Flags::FUA, Sector(8), Sectors(8));
    assert_eq!(run(&world, vec![(write(Flags::NONE, 3), Ok(())), (discard, EIO)]), EIO);
    assert_eq!(world.faults(), 1);
}

#[test]
fn the_rest_of_a_bounced_write_that_came_short_is_the_rest_when_it_is_tried_again_too() {
    let world = world();
    world.fail_nth(FileId(0), 0, Fault::Short);
    world.fail_nth(FileId(0), 1, Fault::Error(Errno::EAGAIN));
    // Misaligned, so that it goes through a bounce buffer; every sector differs.
    let buffer = blockwork_memory::Buffer::new(8 * 512 + 4);
    (0..8u8).for_each(|n| buffer.fill(4 + usize::from(n) * 512, 512, n + 1));
    let data = Segments::from_iter([Memory::new(buffer, 4, 8 * 512)]);
    let write = Bio::with_data(Op::Write, Flags::NONE, Sector(8), data);
    assert_eq!(run(&world, vec![(write, Ok(()))]), Ok(()));
    assert_eq!(world.faults(), 2);
    assert_eq!([8, 9, 10, 11, 12, 13, 14, 15].map(|s| world.peek(FileId(0), s)[0]), [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// One device whose FUA writes go as RWF_DSYNC, the second request of which suffers that fault.
fn second_write(fault: Fault) -> World {
    let world = World::new(1);
    let mut model = DeviceModel::null(Sectors(64));
    model.cache_bytes = 1 << 20;
    (model.limits.dma_alignment, model.limits.hw_fua, model.limits.fua) = (512, true, Fua::Dsync);
    for _ in 0..2 {
        world.add_device(model.clone());
    }
    world.fail_nth(FileId(0), 1, fault);
    world
}

#[test]
fn a_fua_write_whose_flush_has_lost_what_others_wrote_makes_the_next_flush_fail() {
    let world = second_write(Fault::LostFlush);
    let bios = vec![
        (write(Flags::NONE, 3), Ok(())),
        (write(Flags::FUA, 9), EIO),
        (Bio::flush(), EIO),
        (write(Flags::FUA, 9), EIO),
    ];
    assert_eq!(run(&world, bios), EIO);
    let counters = world.counters(FileId(0));
    assert_eq!((counters.writes, counters.fua_writes, counters.flushes), (3, 1, 0));
    assert!(world.has_lost_data());
}

#[test]
fn a_fua_write_to_a_sector_that_cannot_be_written_fails_alone() {
    let world = second_write(Fault::ForEver);
    let bios = vec![
        (write(Flags::NONE, 3), Ok(())),
        (write(Flags::FUA, 9), EIO),
        (Bio::flush(), Ok(())),
        (write(Flags::FUA, 10), Ok(())),
    ];
    assert_eq!(run(&world, bios), Ok(()));
    assert_eq!(world.power_cut().peek(FileId(0), 3), [7; 512]);
}
