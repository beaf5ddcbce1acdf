//! Origins that end within a chunk, and within a page of 4 KiB: what is copied out of their last chunk, what is written to it instead,
//! and what is merged back.

mod running;
#[allow(dead_code, reason = "other tests use more of it")]
mod snapshot_bed;

use std::pin::Pin;

use blockwork_engine::TaskContext;
use blockwork_layer::snapshot::Step;

use snapshot_bed::{Bed, ORIGIN, Shape};

/// Chunks of an origin.
const CHUNKS: u64 = 20;

/// What the last chunk holds at first.
const OLD: u8 = CHUNKS as u8;

/// Sectors of a chunk, and of the last one.
const ENDS: [(u64, u64); 7] = [(64, 3), (64, 61), (64, 9), (16, 15), (8, 1), (8, 7), (4, 3)];

/// An origin whose last chunk has so many sectors, and where that begins.
fn bed(chunk: u64, last: u64) -> (Bed, u64) {
    let shape = Shape { lacking: chunk - last, ..Shape::new(chunk, CHUNKS) };
    (Bed::with_store(&shape, &[]), (CHUNKS - 1) * chunk)
}

/// So many sectors that hold this.
fn of(fill: u8, sectors: u64) -> Vec<u8> {
    vec![fill; sectors as usize]
}

#[test]
fn a_snapshot_keeps_the_last_sectors_of_its_origin() {
    for (chunk, last) in ENDS {
        let (bed, start) = bed(chunk, last);
        // One write of the very last sector, or one that goes through the end of the chunk before.
        for (first, fill) in [(start + last - 1, 200), (start - 2, 201)] {
            let nr = start + last - first;
            bed.do_all(vec![vec![bed.write(&bed.origin, first, nr, fill)]]);
            assert_eq!(bed.read(&bed.origin, first, nr), of(fill, nr), "{last} of {chunk}");
            assert_eq!(bed.chunk(CHUNKS - 1), of(OLD, last), "{last} of {chunk}");
        }
        assert_eq!(bed.chunk(CHUNKS - 2), of(OLD - 1, chunk));
        assert_eq!(bed.list().exceptions.len(), 2);
    }
}

#[test]
fn a_last_chunk_that_a_snapshot_overwrites_is_not_read_from_the_origin_and_a_part_is_made_whole() {
    for (chunk, last) in ENDS {
        let (one, start) = bed(chunk, last);
        one.do_all(vec![vec![one.write(&one.snapshot, start, last, 200)]]);
        assert_eq!(one.origin_reads(), 0, "{last} of {chunk}");
        assert_eq!(one.chunk(CHUNKS - 1), of(200, last), "{last} of {chunk}");

        let (other, _) = bed(chunk, last);
        other.do_all(vec![vec![other.write(&other.snapshot, start + last - 1, 1, 200)]]);
        assert_eq!(other.chunk(CHUNKS - 1), [of(OLD, last - 1), of(200, 1)].concat(), "{last} of {chunk}");
        assert_eq!(other.read(&other.origin, start, last), of(OLD, last));
    }
}

#[test]
fn a_merge_brings_back_the_last_sectors_and_writes_nothing_behind_them() {
    for (chunk, last) in ENDS {
        let (bed, start) = bed(chunk, last);
        let writes = vec![
            bed.write(&bed.snapshot, start + last - 1, 1, 200),
            bed.write(&bed.snapshot, start - 1, 1, 201),
        ];
        bed.do_all(vec![writes]);
        let (_, merge) = bed.merging();
        let task = move |cx: TaskContext| -> Pin<Box<dyn Future<Output = ()>>> {
            Box::pin(async move { assert_eq!(merge.step(&cx).await, Ok(Step::Done)) })
        };
        bed.run([Box::new(task) as Box<dyn FnOnce(TaskContext) -> _>]);
        let found: Vec<u8> =
            (start - chunk..start + last).map(|sector| bed.world.peek(ORIGIN, sector)[0]).collect();
        let expected = [of(OLD - 1, chunk - 1), of(201, 1), of(OLD, last - 1), of(200, 1)].concat();
        assert_eq!(found, expected, "{last} of {chunk}");
    }
}
