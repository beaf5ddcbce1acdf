//! Volumes that become smaller while I/O is under way.

mod rig;

use std::sync::Arc;

use blockwork_engine::*;
use blockwork_memory::Segments;
use rig::{Rig, SECTORS, limits};

/// Prepares for every write, which takes its time.
#[derive(Debug)]
struct Slow {
    shape: Shape,
    below: Arc<dyn Layer>,
}

impl Slow {
    fn over(below: &Arc<dyn Layer>, sectors: u64) -> Arc<dyn Layer> {
        let shape = Shape { node: NodeId(1), sectors: Sectors(sectors), limits: below.limits().clone() };
        Arc::new(Slow { shape, below: below.clone() })
    }
}

impl Layer for Slow {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if span.op == Op::Write && !cx.was_prepared(self.shape.node, span) {
            return Err(Defer { node: self.shape.node, span, reason: Reason::ReadMap });
        }
        cx.pass(self.shape.node, span.sector, &*self.below, span)
    }
    fn prepare(&self, _: Defer, cx: TaskContext) -> Preparation {
        Box::pin(async move {
            cx.sleep(Nanos(10_000)).await;
            Ok(())
        })
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}

/// What became of bios, by their cookies.
type Results = Vec<(u64, Result<(), Errno>)>;

/// What comes of what `submit` submits to a volume that is half as large before any of it has its place.
fn shrunk_meanwhile(submit: impl FnOnce(&mut Rig)) -> (Rig, Results) {
    let mut leaf = None;
    let mut rig = Rig::with_stack(limits(), |below| {
        leaf = Some(below.clone());
        Slow::over(&below, SECTORS)
    });
    submit(&mut rig);
    let smaller = Slow::over(&leaf.unwrap(), SECTORS / 2);
    rig.worker.set_volume(VolumeId(0), Volume::new("rig", smaller, false));
    for _ in 0..40 {
        rig.turn_with_event();
    }
    let mut done: Vec<_> = rig.client.borrow().done.iter().map(|done| (done.cookie, done.result)).collect();
    done.sort_by_key(|(cookie, _)| *cookie);
    (rig, done)
}

#[test]
fn a_write_that_waited_while_its_place_was_taken_from_the_volume_goes_nowhere() {
    let (rig, done) = shrunk_meanwhile(|rig| {
        let bios = [rig.write(SECTORS - 8, 8, 1), rig.write(0, 8, 2)];
        rig.batch(bios);
    });
    assert_eq!(done, [(0, Err(Errno::ENOSPC)), (1, Ok(()))]);
    assert_eq!(rig.seen().iter().map(|seen| seen.sector).collect::<Vec<_>>(), [0]);
}

#[test]
fn what_is_no_whole_block_goes_nowhere_either() {
    let (rig, done) = shrunk_meanwhile(|rig| {
        // One waits for its place, the other one for its turn behind it.
        for (cookie, sector) in [(1, 0), (2, SECTORS - 8)] {
            let data = Segments::from_iter([rig.memory(1, 7)[0].slice(0, 100)]);
            let order = (cookie, Op::Write, Flags::NONE, sector * SECTOR + 10, 100, data);
            rig.client.borrow_mut().bytes_to_submit.push(order);
        }
        rig.turn_with_event();
    });
    assert!(matches!(done[..], [(1, Ok(())), (2, Err(_))]), "{done:?}");
    assert!(rig.seen().iter().all(|seen| seen.sector == 0), "{:?}", rig.seen());
}
