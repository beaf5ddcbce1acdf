//! Layers that can do without a part of what lies below: how the engine asks them, and runs a bio again.

mod rig;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use blockwork_engine::*;
use rig::{Half, Rig, limits};

const HALF: u64 = rig::SECTORS / 2;

/// Hands all on to the layer below, and notes down what it is told of that.
#[derive(Debug)]
struct Above {
    shape: Shape,
    below: Arc<dyn Layer>,
    told: Arc<Mutex<Vec<NodeId>>>,
}

impl Layer for Above {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        cx.pass(self.shape.node, span.sector, &*self.below, span)
    }
    fn suspects(&self, below: NodeId) {
        self.told.lock().unwrap().push(below);
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}

/// How a layer ends what it cannot do otherwise than on a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Refuses,
    Computes,
    CarriesOut,
    Prepares,
}

/// Hands all on to the layer below, but for what reaches [`REFUSED`]: that fails, in one way or another.
#[derive(Debug)]
struct Refusing {
    shape: Shape,
    way: Way,
    below: Arc<dyn Layer>,
}

/// A block.
const REFUSED: std::ops::Range<u64> = 104..112;

fn is_refused(span: Span) -> bool {
    span.sector.0 < REFUSED.end && REFUSED.start < span.end().0
}

impl Layer for Refusing {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let node = self.shape.node;
        match self.way {
            Way::Computes if span.op == Op::Read => cx.sum(node, span),
            _ if !is_refused(span) => return cx.pass(node, span.sector, &*self.below, span),
            Way::Refuses => cx.error(span, Errno::EIO),
            Way::CarriesOut => cx.task(node, span),
            _ => return Err(Defer { node, span, reason: Reason::None }),
        }
        Ok(())
    }
    fn terms(&self, span: Span, _without: &[NodeId]) -> Result<Vec<Term>, Errno> {
        let term = Term { below: self.below.clone(), sector: span.sector, factor: Gf256(1) };
        if is_refused(span) { Err(Errno::EIO) } else { Ok(vec![term]) }
    }
    fn carry_out(&self, _span: Span, _cx: TaskContext) -> Preparation {
        Box::pin(async { Err(Errno::EIO) })
    }
    fn prepare(&self, _defer: Defer, _cx: TaskContext) -> Preparation {
        Box::pin(async { Err(Errno::EIO) })
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}

fn refusing(way: Way, below: Arc<dyn Layer>) -> Arc<dyn Layer> {
    let shape = Shape { node: NodeId(4), sectors: below.sectors(), limits: below.limits().clone() };
    Arc::new(Refusing { shape, way, below })
}

fn over_refusing(way: Way) -> Mirrored {
    mirrored_over(false, move |half| refusing(way, half), |mirror| mirror)
}

/// Notes down what is heard of the ends of writes.
#[derive(Debug, Default)]
struct Heard(Mutex<Vec<(&'static str, Result<(), Errno>)>>);

impl Watch for Heard {
    fn done(&self, result: Result<(), Errno>) {
        self.0.lock().unwrap().push(("done", result));
    }
    fn cured(&self, errno: Errno) {
        self.0.lock().unwrap().push(("cured", Err(errno)));
    }
}

/// Two copies; one that fails is left out. With `slow`, leaving it out takes a task.
#[derive(Debug)]
struct Mirror {
    shape: Shape,
    halves: [Arc<dyn Layer>; 2],
    failed: Arc<[AtomicBool; 2]>,
    slow: bool,
    asked: Arc<Mutex<Vec<Span>>>,
    closed: Arc<AtomicU32>,
    heard: Arc<Heard>,
    suspected: Arc<Mutex<Vec<NodeId>>>,
}

impl Layer for Mirror {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let good = (0..2).filter(|i| !self.failed[*i].load(Relaxed));
        let copies = if span.op == Op::Read { 1 } else { 2 };
        if span.op == Op::Write {
            cx.watch(self.heard.clone());
        }
        for i in good.take(copies) {
            cx.pass(self.shape.node, span.sector, &*self.halves[i], span)?;
        }
        Ok(())
    }
    fn is_redundant(&self) -> bool {
        true
    }
    fn cure(&self, failure: &Failure) -> Cure {
        self.asked.lock().unwrap().push(failure.span);
        let i = self.halves.iter().position(|half| half.node() == failure.below).unwrap();
        if self.failed[1 - i].load(Relaxed) {
            return Cure::None;
        }
        if self.slow {
            return Cure::Defer(Defer { node: NodeId(1), span: failure.span, reason: Reason::MemberFailed });
        }
        self.failed[i].store(true, Relaxed);
        Cure::Again
    }
    fn suspects(&self, below: NodeId) {
        // As if the other half were on another disk.
        self.failed[0].store(true, Relaxed);
        self.suspected.lock().unwrap().push(below);
    }
    fn prepare(&self, defer: Defer, cx: TaskContext) -> Preparation {
        assert_eq!(defer.reason, Reason::MemberFailed);
        let failed = self.failed.clone();
        Box::pin(async move {
            cx.quiesce().await;
            failed[0].store(true, Relaxed);
            Ok(())
        })
    }
    fn close(&self, cx: TaskContext) -> Option<Preparation> {
        let closed = self.closed.clone();
        Some(Box::pin(async move {
            cx.sleep(Nanos::millis(1)).await;
            closed.fetch_add(1, Relaxed);
            Ok(())
        }))
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        self.halves.to_vec()
    }
}

struct Mirrored {
    rig: Rig,
    failed: Arc<[AtomicBool; 2]>,
    asked: Arc<Mutex<Vec<Span>>>,
    closed: Arc<AtomicU32>,
    heard: Arc<Heard>,
    suspected: Arc<Mutex<Vec<NodeId>>>,
}

fn mirrored(slow: bool) -> Mirrored {
    mirrored_below(slow, |mirror| mirror)
}

fn mirrored_below(slow: bool, top: impl FnOnce(Arc<dyn Layer>) -> Arc<dyn Layer>) -> Mirrored {
    mirrored_over(slow, |half| half, top)
}

/// Whose first half is what `first` makes of it.
fn mirrored_over(
    slow: bool,
    first: impl FnOnce(Arc<dyn Layer>) -> Arc<dyn Layer>,
    top: impl FnOnce(Arc<dyn Layer>) -> Arc<dyn Layer>,
) -> Mirrored {
    let (failed, closed): (Arc<[AtomicBool; 2]>, Arc<AtomicU32>) = Default::default();
    let asked = Arc::<Mutex<Vec<Span>>>::default();
    let heard = Arc::<Heard>::default();
    let writes = heard.clone();
    let suspected = Arc::<Mutex<Vec<NodeId>>>::default();
    let suspects = suspected.clone();
    let shape =
        |node, limits: &Limits| Shape { node: NodeId(node), sectors: Sectors(HALF), limits: limits.clone() };
    let (ours, told, ended) = (failed.clone(), asked.clone(), closed.clone());
    let rig = Rig::with_stack(limits(), move |leaf| {
        let half = |i: u16| -> Arc<dyn Layer> {
            let shape = shape(2 + i, leaf.limits());
            Arc::new(Half { shape, start: u64::from(i) * HALF, below: leaf.clone() })
        };
        let halves = [first(half(0)), half(1)];
        top(Arc::new(Mirror {
            shape: shape(1, leaf.limits()),
            halves,
            failed: ours,
            slow,
            asked: told,
            closed: ended,
            heard: writes,
            suspected: suspects,
        }))
    });
    Mirrored { rig, failed, asked, closed, heard, suspected }
}

#[test]
fn a_write_that_one_copy_refuses_is_run_again_without_it() {
    let Mirrored { mut rig, failed, asked, heard, .. } = mirrored(false);
    rig.device.lock().unwrap().bad = vec![105];
    let write = rig.write(100, 16, 7);
    rig.batch([write]);
    rig.all_succeeded(1);
    assert_eq!(rig.bytes(HALF + 100, 16), [7; 16 * 512]);
    assert_eq!((failed[0].load(Relaxed), failed[1].load(Relaxed)), (true, false));
    assert_eq!(asked.lock().unwrap().len(), 1);
    assert_eq!(rig.stats.get(NodeId(1), Counter::Cured), 1);
    assert_eq!(rig.stats.get(NodeId(1), Counter::Errors), 0);
    assert_eq!(*heard.0.lock().unwrap(), [("cured", Err(Errno::EIO)), ("done", Ok(()))]);
}

#[test]
fn what_a_layer_below_refuses_computes_or_prepares_in_vain_another_copy_has() {
    for (way, refused) in [
        (Way::Refuses, 96..128),
        // All that can be is computed.
        (Way::Computes, REFUSED),
        (Way::Prepares, 96..128),
    ] {
        let Mirrored { mut rig, failed, asked, .. } = over_refusing(way);
        rig.device.lock().unwrap().bytes[((HALF + 96) * 512) as usize..][..32 * 512].fill(7);
        let read = rig.read(96, 32);
        rig.batch([read]);
        rig.all_succeeded(1);
        assert_eq!(rig.data_of(0), [7; 32 * 512], "{way:?}");
        let asked: Vec<_> = asked.lock().unwrap().iter().map(|span| span.sector.0..span.end().0).collect();
        assert_eq!((asked, failed[0].load(Relaxed)), (vec![refused], true), "{way:?}");
    }
}

#[test]
fn a_write_that_a_layer_below_refuses_or_does_in_vain_is_run_again_without_it() {
    for way in [Way::Refuses, Way::CarriesOut, Way::Prepares] {
        let Mirrored { mut rig, failed, heard, .. } = over_refusing(way);
        let write = rig.write(100, 16, 7);
        rig.batch([write]);
        rig.all_succeeded(1);
        assert_eq!(rig.bytes(HALF + 100, 16), [7; 16 * 512], "{way:?}");
        assert!(failed[0].load(Relaxed), "{way:?}");
        assert_eq!(heard.0.lock().unwrap().last(), Some(&("done", Ok(()))), "{way:?}");
    }
}

#[test]
fn what_the_other_copy_has_not_either_is_the_error_of_the_layer_below() {
    for way in [Way::Refuses, Way::Computes, Way::Prepares] {
        let Mirrored { mut rig, failed, asked, .. } = over_refusing(way);
        failed[1].store(true, Relaxed);
        let read = rig.read(96, 32);
        rig.batch([read]);
        assert_eq!(rig.results(), [(0, Err(Errno::EIO))], "{way:?}");
        assert_eq!(asked.lock().unwrap().len(), 1, "{way:?}");
    }
}

#[test]
fn what_a_layer_above_prepares_in_vain_is_no_business_of_a_mirror_below_and_tried_once() {
    let Mirrored { mut rig, asked, .. } = mirrored_below(false, |mirror| refusing(Way::Prepares, mirror));
    let read = rig.read(96, 32);
    rig.batch([read]);
    assert_eq!(rig.results(), [(0, Err(Errno::EIO))]);
    assert_eq!((rig.stats.get(NodeId(4), Counter::Deferred), asked.lock().unwrap().len()), (1, 0));
}

#[test]
fn what_no_copy_has_is_an_error_and_asking_ends() {
    let Mirrored { mut rig, asked, .. } = mirrored(false);
    rig.device.lock().unwrap().bad = vec![105, HALF + 105];
    let read = rig.read(100, 16);
    rig.batch([read]);
    assert_eq!(rig.results(), [(0, Err(Errno::EIO))]);
    assert_eq!(asked.lock().unwrap().len(), 2);
    assert_eq!(rig.stats.get(NodeId(1), Counter::Errors), 1);
}

#[test]
fn each_failure_of_a_bio_is_asked_about_also_where_one_has_no_cure() {
    let Mirrored { mut rig, failed, asked, .. } = mirrored(false);
    failed[1].store(true, Relaxed);
    rig.device.lock().unwrap().bad = vec![105, 700];
    // Two requests, since one of 600 sectors is beyond max_sectors; the only copy left fails in both.
    let write = rig.write(100, 700, 7);
    rig.batch([write]);
    assert_eq!(rig.results(), [(0, Err(Errno::EIO))]);
    assert_eq!(asked.lock().unwrap().len(), 2);
}

#[test]
fn only_the_bio_with_the_bad_sector_is_run_again() {
    let Mirrored { mut rig, .. } = mirrored(false);
    rig.device.lock().unwrap().bad = vec![8];
    let bios: Vec<_> = (0..4).map(|i| rig.read(i * 8, 8)).collect();
    rig.batch(bios);
    rig.all_succeeded(4);
    assert_eq!(rig.stats.get(NodeId(1), Counter::Cured), 1);
}

#[test]
fn a_slow_cure_may_wait_for_all_bios_under_way() {
    let Mirrored { mut rig, failed, .. } = mirrored(true);
    rig.hold();
    let other = rig.write(1000, 8, 1);
    rig.batch([other]);
    rig.device.lock().unwrap().bad = vec![3];
    let write = rig.write(0, 8, 9);
    rig.batch([write]);
    // The half that did not fail, and both of the other bio.
    let held: Vec<_> = std::iter::from_fn(|| rig.device.lock().unwrap().held.pop_front()).collect();
    let (failing, others): (Vec<_>, Vec<_>) = held.into_iter().partition(|held| held.sector % HALF == 0);
    failing.into_iter().for_each(|held| rig.complete(held, Ok(())));
    for _ in 0..3 {
        rig.worker.turn(Wait::Poll);
    }
    assert!(!failed[0].load(Relaxed), "a bio that was resolved before is still under way");
    others.into_iter().for_each(|held| rig.complete(held, Ok(())));
    for _ in 0..3 {
        rig.worker.turn(Wait::Poll);
    }
    assert!(failed[0].load(Relaxed));
    rig.complete_all();
    rig.all_succeeded(2);
    assert_eq!(rig.bytes(HALF, 8), [9; 8 * 512]);
}

#[test]
fn a_read_on_its_way_to_what_may_have_lost_something_is_run_again() {
    let told = Arc::<Mutex<Vec<NodeId>>>::default();
    let ours = told.clone();
    let Mirrored { mut rig, suspected, .. } = mirrored_below(false, |below| {
        let shape = Shape { node: NodeId(4), sectors: below.sectors(), limits: below.limits().clone() };
        Arc::new(Above { shape, below, told: ours })
    });
    rig.hold();
    let read = rig.read(0, 8);
    rig.batch([Bio::flush(), read]);
    let held: Vec<_> = std::iter::from_fn(|| rig.device.lock().unwrap().held.pop_front()).collect();
    let (reads, flushes): (Vec<_>, Vec<_>) = held.into_iter().partition(|held| held.op == Op::Read);
    assert_eq!(reads.iter().map(|held| held.sector).collect::<Vec<_>>(), [0]);
    flushes.into_iter().for_each(|held| rig.complete(held, Err(Errno::EIO)));
    reads.into_iter().for_each(|held| rig.complete(held, Ok(())));
    rig.worker.turn(Wait::Poll);
    // Both halves are on that leaf; each is told of once.
    assert_eq!(*suspected.lock().unwrap(), [NodeId(2), NodeId(3)]);
    // The mirror may not be able to do without it: who is above hears as well.
    assert_eq!(*told.lock().unwrap(), [NodeId(1)]);
    assert_eq!(rig.next_held().sector, HALF, "it reads the other half");
}

#[test]
fn a_read_beside_a_fua_write_whose_flush_has_failed_is_run_again() {
    let Mirrored { mut rig, suspected, .. } = mirrored(false);
    rig.hold();
    let write = Bio { flags: Flags::FUA, ..rig.write(800, 8, 2) };
    let read = rig.read(0, 8);
    rig.batch([write, read]);
    let held: Vec<_> = std::iter::from_fn(|| rig.device.lock().unwrap().held.pop_front()).collect();
    let (reads, writes): (Vec<_>, Vec<_>) = held.into_iter().partition(|held| held.op == Op::Read);
    let mut writes = writes.into_iter();
    rig.complete(writes.next().expect("a write to the first half"), Err(Errno::EIO));
    reads.into_iter().for_each(|held| rig.complete(held, Ok(())));
    assert_eq!(*suspected.lock().unwrap(), [], "nothing is known yet");
    let again = rig.next_held();
    assert_eq!((again.op, again.sector), (Op::Write, 800));
    rig.complete(again, Ok(()));
    rig.worker.turn(Wait::Poll);
    assert_eq!(*suspected.lock().unwrap(), [NodeId(2), NodeId(3)]);
    let instead = rig.next_held();
    assert_eq!((instead.op, instead.sector), (Op::Read, HALF), "it reads the other half");
}

#[test]
fn each_layer_is_closed_once() {
    let Mirrored { mut rig, closed, .. } = mirrored(false);
    rig.worker.close().unwrap();
    assert_eq!(closed.load(Relaxed), 1);
}
