//! Copies ahead of those who write through an origin, and copies of what is written at random: how many flushes they cost, how long
//! they keep the writers, and how much room of a store they take in vain. In virtual time, so it is the same on any machine.

mod running;
#[allow(dead_code, reason = "other tests use more of it")]
mod snapshot_bed;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{Bio, Flags, Fua, Layer, Nanos, Op, Sector, TaskContext};
use blockwork_layer::snapshot::SnapshotStatus;
use blockwork_memory::{Segment, Segments};
use blockwork_sim::Random;

use snapshot_bed::{Bed, ORIGIN, STORE, Shape};

type Task = Box<dyn FnOnce(TaskContext) -> std::pin::Pin<Box<dyn Future<Output = ()>>>>;

/// Writes `nr` sectors; the write must succeed.
async fn write(cx: &TaskContext, layer: &Arc<dyn Layer>, sector: u64, nr: u64) {
    let bytes = nr as usize * 512;
    let data = Segments::from_iter([Segment::new(cx.pool().get(bytes), 0, bytes)]);
    let bio = Bio::with_data(Op::Write, Flags::NONE, Sector(sector), data);
    assert_eq!(cx.bio(layer, bio).await.0, Ok(()));
}

/// `depth` writers that take what is next of these sectors, `nr` at a time, and may each dawdle before they write; how long
/// they take in all.
fn write_all(
    bed: &Bed,
    layer: &Arc<dyn Layer>,
    sectors: Vec<u64>,
    nr: u64,
    depth: u64,
    dawdle_us: u64,
) -> Nanos {
    let begun = bed.world.now();
    let sectors = Rc::new(RefCell::new(sectors.into_iter()));
    let ended = Rc::new(Cell::new(begun));
    let tasks = (0..depth).map(|writer| {
        let (layer, sectors, ended) = (layer.clone(), sectors.clone(), ended.clone());
        let mut random = Random::part(7, writer);
        Box::new(move |cx: TaskContext| {
            Box::pin(async move {
                loop {
                    let Some(sector) = sectors.borrow_mut().next() else { break };
                    if dawdle_us > 0 {
                        cx.sleep(Nanos::micros(random.below(dawdle_us))).await;
                    }
                    write(&cx, &layer, sector, nr).await;
                }
                ended.set(cx.now());
            }) as std::pin::Pin<Box<dyn Future<Output = ()>>>
        }) as Task
    });
    bed.run(tasks.collect::<Vec<_>>());
    ended.get().since(begun)
}

/// What made something durable in the store.
fn flushes(bed: &Bed) -> u64 {
    let counters = bed.world.counters(STORE);
    counters.flushes + counters.fua_writes
}

/// The sectors of all chunks, each once and no two in a row.
fn scattered(chunk: u64, chunks: u64) -> Vec<u64> {
    (0..chunks).map(|nth| nth * 277 % chunks * chunk).collect()
}

/// All chunks of an origin, one after the other.
fn in_order(shape: &Shape, nr: u64) -> Vec<u64> {
    (0..shape.chunk * shape.chunks).step_by(nr as usize).collect()
}

const MIB: u64 = 2048;

#[test]
fn a_sequential_writer_costs_few_flushes_whatever_the_size_of_chunks_and_requests_and_in_whatever_order_they_come()
 {
    // Chunks of 4 KiB: at the end of each of 16 areas a batch is cut off. And who begins with little takes longer until its window has
    // grown: by half at each batch.
    for (chunk, nr, depth, dawdle_us, most) in [
        (8, 8, 1, 0, 90),
        (8, 64, 1, 0, 70),
        (64, 64, 1, 0, 52),
        (64, 8, 1, 0, 60),
        (8, 8, 32, 40, 50),
        (64, 64, 32, 0, 26),
        (64, 64, 32, 40, 26),
    ] {
        let shape = Shape::new(chunk, 16 * MIB / chunk);
        let bed = Bed::with_store(&shape, &[]);
        write_all(&bed, &bed.origin, in_order(&shape, nr), nr, depth, dawdle_us);
        let (flushes, case) =
            (flushes(&bed), format!("chunk {chunk}, {nr} at depth {depth}, {dawdle_us} us"));
        assert!((2..=most).contains(&flushes), "{case}: {flushes} flushes and FUA writes");
    }
}

#[test]
fn what_a_sequential_writer_of_a_part_leaves_in_vain_is_at_most_half_of_what_it_has_written() {
    for (chunk, depth) in [(8, 1), (8, 32), (64, 1), (64, 32)] {
        let shape = Shape::new(chunk, 16 * MIB / chunk);
        let bed = Bed::with_store(&shape, &[]);
        let part: Vec<_> =
            in_order(&shape, chunk).into_iter().take_while(|sector| *sector < 4 * MIB).collect();
        write_all(&bed, &bed.origin, part, chunk, depth, 0);
        let read = bed.world.counters(ORIGIN).read_bytes;
        assert!(
            (4 << 20..=(6 << 20) + chunk * 512).contains(&read),
            "chunk {chunk}, depth {depth}: {read} bytes"
        );
    }
}

#[test]
fn a_sequential_writer_goes_on_while_what_is_ahead_of_it_is_copied() {
    for chunk in [8, 64] {
        let shape = Shape { flush_us: 300, ..Shape::new(chunk, 16 * MIB / chunk) };
        let bed = Bed::with_store(&shape, &[]);
        let plain = write_all(&bed, &bed.plain, in_order(&shape, chunk), chunk, 1, 0);
        let bed = Bed::with_store(&shape, &[]);
        let took = write_all(&bed, &bed.origin, in_order(&shape, chunk), chunk, 1, 0);
        // If it waited for each batch, that would be some 40 times two flushes, a read and two writes: a third of all here.
        assert!(took.0 * 100 <= plain.0 * 118, "chunk {chunk}: {took:?}, plain {plain:?}");
    }
}

/// How many chunks of the store hold something, as its status has it; none: the snapshot is lost.
fn used(bed: &Bed, chunk: u64) -> Option<u64> {
    match bed.family.status(0) {
        Some(SnapshotStatus::Used { used, metadata, .. }) => Some((used.0 - metadata.0) / chunk),
        _ => None,
    }
}

#[test]
fn a_store_that_can_become_full_has_at_most_a_sixteenth_in_vain_and_none_is_added_when_it_is_nearly_full() {
    let shape = Shape { store_chunks: 1024, ..Shape::new(8, 8192) };
    let bed = Bed::with_store(&shape, &[]);
    let (mut wanted, mut random) = (BTreeSet::new(), Random::part(3, 0));
    let (mut most, mut before) = (0, 0);
    // The kernel has four areas and a header besides.
    while wanted.len() < (1024 - 5) * 15 / 16 - 40 {
        // A writer that begins somewhere, and stops soon.
        let (first, length) = (random.below(8192 - 40), random.between(1, 40));
        wanted.extend(first..first + length);
        write_all(&bed, &bed.origin, (first..first + length).map(|chunk| chunk * 8).collect(), 8, 1, 0);
        let used = used(&bed, 8).expect("there is room for all that was wanted");
        let in_vain = used - wanted.len() as u64;
        assert!(in_vain <= 1024 / 16, "{in_vain} chunks in vain, of {used}");
        let free = 1024 - used;
        assert!(
            free >= 16 * before.max(1) || in_vain <= before,
            "{in_vain} in vain with {free} free, {before} before"
        );
        (most, before) = (most.max(in_vain), in_vain);
    }
    assert!(most > 1024 / 64, "writers are seen to be sequential, and given something: {most}");
}

#[test]
fn a_store_with_room_for_all_is_never_lost_whatever_is_copied_ahead() {
    let shape = Shape::new(8, 2048);
    let bed = Bed::with_store(&shape, &[]);
    let mut random = Random::part(4, 0);
    for _ in 0..60 {
        let (first, length) = (random.below(2048 - 40), random.between(1, 40));
        write_all(&bed, &bed.origin, (first..first + length).map(|chunk| chunk * 8).collect(), 8, 1, 0);
    }
    write_all(&bed, &bed.origin, scattered(8, 2048), 8, 32, 0);
    assert_eq!(used(&bed, 8), Some(2048));
}

#[test]
fn a_chunk_that_is_copied_alone_is_made_durable_by_its_own_write() {
    let shape = Shape { fua: Fua::Dsync, ..Shape::new(8, 512) };
    let bed = Bed::with_store(&shape, &[]);
    write_all(&bed, &bed.origin, scattered(8, 512).into_iter().take(200).collect(), 8, 1, 0);
    let counters = bed.world.counters(STORE);
    // For each its content and its exception; flushes until that is begun, and where an area ends.
    assert!((390..=402).contains(&counters.fua_writes), "{counters:?}");
    assert!(counters.flushes <= 5, "{counters:?}");
    // Two at a time share flushes instead.
    let bed = Bed::with_store(&shape, &[]);
    write_all(&bed, &bed.origin, scattered(8, 512).into_iter().take(200).collect(), 8, 2, 0);
    assert!(flushes(&bed) <= 300, "{:?}", bed.world.counters(STORE));
}

#[test]
fn random_first_writes_wait_for_two_flushes_each_and_share_them() {
    for flush_us in [300, 1000] {
        let shape = Shape { flush_us, ..Shape::new(8, 2048) };
        let bed = Bed::with_store(&shape, &[]);
        let took = write_all(&bed, &bed.origin, scattered(8, 2048), 8, 32, 0);
        // Of 32 under way, each flush can let 16 go at most.
        let (least, flushes) = (2048 * 2 / 32, flushes(&bed));
        assert!(
            (least..=least * 6 / 5).contains(&flushes),
            "{flushes} flushes and FUA writes, at least {least}"
        );
        // Besides the flushes: a read, a write of the store, of the list, of the origin, and late copies.
        assert!(
            took.0 <= flushes * (flush_us + 400) * 1000,
            "{took:?} with {flushes} flushes of {flush_us} us"
        );
    }
}
