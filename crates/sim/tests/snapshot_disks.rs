//! What a snapshot does to its disks: what need not be read of an origin, how many flushes first writes cost, and what its list
//! holds where something was left behind its end.

mod running;
#[allow(dead_code, reason = "other tests use more of it")]
mod snapshot_bed;

use blockwork_engine::{Bio, Errno, Flags, Op, Sector, Sectors, TaskContext};
use blockwork_format::snapshot::{Exception, Header, Layout};
use blockwork_memory::{Segment, Segments};

use snapshot_bed::{Bed, CHUNK, STORE, Shape};

#[test]
fn a_chunk_that_a_snapshot_overwrites_as_a_whole_is_not_read_from_the_origin() {
    let bed = Bed::new(64);
    let snapshot = &bed.snapshot;
    bed.do_all(vec![vec![bed.write(snapshot, 3 * CHUNK, CHUNK, 200)]]);
    assert_eq!(bed.origin_reads(), 0);
    assert_eq!(bed.chunk(3), vec![200; CHUNK as usize]);
    // Of three chunks, the one in the middle is whole.
    bed.do_all(vec![vec![bed.write(snapshot, 6 * CHUNK - 8, CHUNK + 16, 201)]]);
    assert_eq!(bed.origin_reads(), 2);
    assert_eq!(bed.chunk(5), [vec![6; CHUNK as usize - 8], vec![201; 8]].concat());
    assert_eq!(bed.chunk(6), vec![201; CHUNK as usize]);
    assert_eq!(bed.chunk(7), [vec![201; 8], vec![8; CHUNK as usize - 8]].concat());
}

#[test]
fn writes_that_wait_together_and_cover_a_chunk_save_reading_it() {
    let bed = Bed::new(64);
    let snapshot = &bed.snapshot;
    let half = CHUNK / 2;
    // While the first is copied out, the others wait.
    let first = bed.write(snapshot, 9 * CHUNK, 8, 1);
    let halves = [0, half].map(|skip| bed.write(snapshot, 4 * CHUNK + skip, half, 100 + skip as u8));
    let part = bed.write(snapshot, 20 * CHUNK, half, 7);
    bed.do_all(vec![std::iter::once(first).chain(halves).chain([part]).collect()]);
    assert_eq!(bed.origin_reads(), 2, "of chunks 9 and 20");
    assert_eq!(bed.chunk(4), [vec![100; half as usize], vec![100 + half as u8; half as usize]].concat());
    assert_eq!(bed.chunk(20), [vec![7; half as usize], vec![21; half as usize]].concat());
}

#[test]
fn what_is_discarded_of_a_snapshot_is_not_copied_first() {
    let bed = Bed::new(64);
    let discard = Bio::without_data(Op::Discard, Flags::NONE, Sector(8 * CHUNK), Sectors(4 * CHUNK));
    bed.do_all(vec![vec![(bed.snapshot.clone(), discard)]]);
    assert_eq!((bed.origin_reads(), bed.world.counters(STORE).requests()), (0, 0));
}

#[test]
fn random_first_writes_share_flushes_and_each_flush_serves_two_batches() {
    let (writers, each) = (32, 16);
    let bed = Bed::new(writers * each);
    let tasks = (0..writers).map(|writer| {
        let origin = bed.origin.clone();
        Box::new(move |cx: TaskContext| async move {
            for nth in 0..each {
                // An odd number times a number below a power of two: each chunk once, and no two in a row.
                let chunk = (writer * each + nth) * 277 % (writers * each);
                let segment = Segment::new(cx.pool().get(4096), 0, 4096);
                let data = Segments::from_iter([segment]);
                let bio = Bio::with_data(Op::Write, Flags::NONE, Sector(chunk * CHUNK), data);
                let result: Result<(), Errno> = cx.bio(&origin, bio).await.0;
                assert_eq!(result, Ok(()));
            }
        }) as Box<dyn FnOnce(TaskContext) -> _>
    });
    bed.run(tasks);
    let (counters, writes) = (bed.world.counters(STORE), writers * each);
    let flushes = counters.flushes + counters.fua_writes;
    // Batches of half the writers, and a flush for each: 2 / 32. With two for each it would be twice as many.
    assert!(flushes * 100 <= writes * 8, "{flushes} flushes and FUA writes for {writes} first writes");
}

/// A power cut may leave a block of the list without the one before it. Of a list that has grown up to it, it must be no part.
#[test]
fn what_lies_behind_the_end_of_a_list_is_no_part_of_it_when_it_grows() {
    let layout = Layout::new(CHUNK as u32).unwrap();
    let (per_block, entry) = (4096 / 16, Exception { old: 3, new: 5 });
    let mut store = Header { valid: true, layout }.encode().to_vec();
    store.resize(layout.chunk_bytes() as usize + per_block * 16, 0);
    store.extend(entry.encode());
    store.resize(2 * layout.chunk_bytes() as usize, 0);
    let bed = Bed::with_store(&Shape::new(CHUNK, 300), &store);
    assert!(bed.list().remains && bed.list().exceptions.is_empty());
    // As many as a block of the list has, and one less first: the block is written with zeros behind its end.
    for chunks in [0..per_block as u64 - 1, per_block as u64 - 1..per_block as u64] {
        let writes = chunks.map(|nth| bed.write(&bed.snapshot, (20 + nth) * CHUNK, CHUNK, 1));
        bed.do_all(vec![writes.collect()]);
    }
    let found = bed.list();
    let olds: Vec<_> = found.exceptions.iter().map(|exception| exception.old).collect();
    assert_eq!(olds, (20..20 + per_block as u64).collect::<Vec<_>>());
    assert!(!found.remains);
}
