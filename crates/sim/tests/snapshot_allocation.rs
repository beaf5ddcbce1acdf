//! What a question costs about what a snapshot holds, whose chunks lie in its store and in its origin by turns.

mod running;
#[allow(dead_code, reason = "other tests use more of it")]
mod snapshot_bed;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blockwork_engine::{Allocation, Defer, Layer, Resolver, Sector, Sectors, Shape, Span, TaskContext};
use blockwork_layer::Zero;

use snapshot_bed::Bed;

/// Sectors of a chunk: 4 KiB.
const CHUNK: u64 = 8;
const CHUNKS: u64 = 2 << 10;

/// Counts what is resolved through it.
#[derive(Debug)]
struct Counted(Arc<dyn Layer>, Arc<AtomicU64>);

impl Layer for Counted {
    fn shape(&self) -> &Shape {
        self.0.shape()
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.resolve(span, cx)
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.0.clone()]
    }
}

/// What `layer` holds from here to its end, extent by extent, `nr` of them.
fn extents(bed: &Bed, layer: &Arc<dyn Layer>, nr: usize) -> Vec<(Allocation, u64)> {
    let (layer, all) = (layer.clone(), Rc::new(RefCell::new(Vec::new())));
    let told = all.clone();
    bed.run([Box::new(move |cx: TaskContext| async move {
        let mut at = Sector(0);
        for _ in 0..nr {
            let (kind, nr) = cx.allocation(&layer, at, layer.sectors() - Sectors(at.0)).await;
            told.borrow_mut().push((kind, nr.0));
            at = at + nr;
        }
    }) as Box<dyn FnOnce(TaskContext) -> _>]);
    all.take()
}

#[test]
fn a_snapshot_whose_chunks_lie_in_its_store_by_turns_is_asked_in_steps_that_do_not_grow_with_it() {
    let bed = Bed::with_store(&snapshot_bed::Shape::new(CHUNK, CHUNKS), &[]);
    let writes = (0..CHUNKS).step_by(2).map(|chunk| bed.write(&bed.snapshot, chunk * CHUNK, CHUNK, 7));
    bed.do_all(vec![writes.collect()]);
    let counter = Arc::new(AtomicU64::new(0));
    let holes = Arc::new(Zero::new(bed.plain.node(), bed.plain.sectors()));
    let snapshot = bed.over(Arc::new(Counted(holes, counter.clone())));
    let told = extents(&bed, &snapshot, 100);
    let expected: Vec<_> =
        (0..100).map(|nth| ([Allocation::Data, Allocation::Hole][nth % 2], CHUNK)).collect();
    assert_eq!(told, expected);
    // A step has 16 chunks, half of which lie in the origin.
    assert_eq!(counter.load(Ordering::Relaxed), 100 * 8);
}
