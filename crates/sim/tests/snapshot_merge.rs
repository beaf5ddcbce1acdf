//! A merge whose family is retired: what was built in its place reads the store as it is, and goes on.

mod running;
#[allow(dead_code, reason = "other tests use more of it")]
mod snapshot_bed;

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;

use blockwork_engine::{Nanos, TaskContext};
use blockwork_layer::snapshot::{MergeError, Step};

use snapshot_bed::{Bed, CHUNK, ORIGIN, STORE};

type Task = Box<dyn FnOnce(TaskContext) -> Pin<Box<dyn Future<Output = ()>>>>;

fn task<F: Future<Output = ()> + 'static>(run: impl FnOnce(TaskContext) -> F + 'static) -> Task {
    Box::new(|cx| Box::pin(run(cx)))
}

/// A snapshot that has so many chunks of its own.
fn bed(chunks: u64) -> Bed {
    let bed = Bed::new(64);
    let writes = (0..chunks).map(|nth| bed.write(&bed.snapshot, 2 * nth * CHUNK, CHUNK, 200));
    bed.do_all(vec![writes.collect()]);
    assert_eq!(bed.list().exceptions.len() as u64, chunks);
    bed
}

/// Writes that the disks have got: those with data, and flushes.
fn writes(bed: &Bed) -> u64 {
    let of = |disk| {
        let counters = bed.world.counters(disk);
        counters.writes + counters.zeroes + counters.flushes
    };
    of(ORIGIN) + of(STORE)
}

#[test]
fn a_merge_whose_family_is_retired_does_nothing_and_another_one_goes_on() {
    let bed = bed(8);
    let (family, merge) = bed.merging();
    let before = writes(&bed);
    let told = Rc::new(RefCell::new(Vec::new()));
    let steps = told.clone();
    bed.run([task(move |cx| async move {
        family.retire().await;
        for _ in 0..2 {
            let step = merge.step(&cx).await;
            steps.borrow_mut().push(step);
        }
        // It has not failed: it is no longer its business.
        assert_eq!(merge.failure(), None);
    })]);
    let retired = Err(MergeError::Retired { name: "snap".into() });
    assert_eq!(told.take(), [retired.clone(), retired]);
    assert_eq!((writes(&bed), bed.list().exceptions.len()), (before, 8));

    let (_, merge) = bed.merging();
    let steps = told.clone();
    bed.run([task(move |cx| async move {
        let step = merge.step(&cx).await;
        steps.borrow_mut().push(step);
        assert!(merge.status().is_empty());
    })]);
    assert_eq!(told.take(), [Ok(Step::Done)]);
    assert_eq!(bed.world.peek(ORIGIN, 2 * CHUNK)[0], 200);
}

#[test]
fn a_family_is_retired_when_the_step_is_over_that_was_under_way() {
    let bed = bed(8);
    let (family, merge) = bed.merging();
    let (world, log) = (bed.world.clone(), Rc::new(RefCell::new(Vec::new())));
    let (stepping, retiring) = (log.clone(), log.clone());
    let count = {
        let world = world.clone();
        move || [ORIGIN, STORE].map(|disk| world.counters(disk).requests())
    };
    let at_the_end = count.clone();
    bed.run([
        task(move |cx| async move {
            assert_eq!(merge.step(&cx).await, Ok(Step::Done));
            stepping.borrow_mut().push("merged");
        }),
        task(move |cx| async move {
            // A read or a write takes 100 us, and a flush ten times that.
            cx.sleep(Nanos::micros(150)).await;
            assert!(retiring.borrow().is_empty(), "the step is under way");
            family.retire().await;
            let then = count();
            retiring.borrow_mut().push("retired");
            cx.sleep(Nanos::secs(1)).await;
            assert_eq!(count(), then, "requests of a family that is retired");
        }),
    ]);
    assert_eq!(log.take(), ["merged", "retired"]);
    assert!(at_the_end()[0] > 0);
}
