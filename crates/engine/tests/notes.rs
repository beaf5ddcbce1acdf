//! What a layer may ask of a bio beyond its mapping: to hear of its end, a flush behind it, and whether it has prepared for it.

mod rig;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use blockwork_engine::*;
use rig::{Rig, limits};

/// Notes down how bios ended.
#[derive(Debug, Default)]
struct Ends(Mutex<Vec<Result<(), Errno>>>);

impl Watch for Ends {
    fn done(&self, result: Result<(), Errno>) {
        self.0.lock().unwrap().push(result);
    }
}

/// Watches all writes, has FUA ones followed by a flush, and prepares once for each flush.
#[derive(Debug)]
struct Watcher {
    shape: Shape,
    below: Arc<dyn Layer>,
    ends: Arc<Ends>,
    prepared: Arc<AtomicU32>,
    /// The next write defers after it was watched.
    defers: Arc<AtomicBool>,
}

impl Layer for Watcher {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let defer = Defer { node: self.shape.node, span, reason: Reason::ReadMap };
        if span.op == Op::Flush && !cx.was_prepared(self.shape.node, span) {
            return Err(defer);
        }
        let mut flags = span.flags;
        if span.op == Op::Write {
            cx.watch(self.ends.clone());
            if flags.has(Flags::FUA) {
                cx.flush_after();
                flags = flags.without(Flags::FUA);
            }
            if self.defers.swap(false, Relaxed) {
                return Err(defer);
            }
        }
        cx.pass(self.shape.node, span.sector, &*self.below, Span { flags, ..span })
    }
    fn prepare(&self, _: Defer, _: TaskContext) -> Preparation {
        self.prepared.fetch_add(1, Relaxed);
        Box::pin(async { Ok(()) })
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}

struct Watched {
    rig: Rig,
    ends: Arc<Ends>,
    prepared: Arc<AtomicU32>,
    defers: Arc<AtomicBool>,
}

fn watched() -> Watched {
    let (ends, prepared, defers): (Arc<Ends>, Arc<AtomicU32>, Arc<AtomicBool>) = Default::default();
    let (told, counted, asked) = (ends.clone(), prepared.clone(), defers.clone());
    let rig = Rig::with_stack(limits(), move |below| {
        let shape = Shape { node: NodeId(1), sectors: below.sectors(), limits: below.limits().clone() };
        Arc::new(Watcher { shape, below, ends: told, prepared: counted, defers: asked })
    });
    Watched { rig, ends, prepared, defers }
}

fn ops(rig: &Rig) -> Vec<Op> {
    rig.seen().into_iter().map(|seen| seen.op).collect()
}

#[test]
fn a_watch_hears_of_the_end_before_the_client_and_not_of_reads() {
    let Watched { mut rig, ends, .. } = watched();
    rig.hold();
    let bios = [rig.write(0, 8, 1), rig.read(64, 8)];
    rig.batch(bios);
    assert!(ends.0.lock().unwrap().is_empty(), "nothing is done yet");
    rig.complete_all();
    rig.all_succeeded(2);
    assert_eq!(*ends.0.lock().unwrap(), [Ok(())]);
}

#[test]
fn a_watch_hears_of_a_failure() {
    let Watched { mut rig, ends, .. } = watched();
    rig.device.lock().unwrap().bad = vec![3];
    let bio = rig.write(0, 8, 1);
    rig.batch([bio]);
    assert_eq!(*ends.0.lock().unwrap(), [Err(Errno::EIO)]);
}

#[test]
fn what_was_watched_before_a_deferral_is_not_heard_of_twice() {
    let Watched { mut rig, ends, defers, .. } = watched();
    defers.store(true, Relaxed);
    let bio = rig.write(0, 8, 1);
    rig.batch([bio]);
    rig.all_succeeded(1);
    assert_eq!(*ends.0.lock().unwrap(), [Ok(())]);
}

#[test]
fn a_flush_follows_where_a_layer_asked_for_it_and_is_prepared_by_itself() {
    let Watched { mut rig, prepared, defers, .. } = watched();
    // The write itself was prepared for; that does not count for the flush behind it.
    defers.store(true, Relaxed);
    let mut bio = rig.write(0, 8, 1);
    bio.flags = Flags::FUA;
    rig.batch([bio]);
    rig.all_succeeded(1);
    assert_eq!(ops(&rig), [Op::Write, Op::Flush]);
    assert_eq!(prepared.load(Relaxed), 2);
}

#[test]
fn no_flush_follows_a_write_that_failed() {
    let Watched { mut rig, .. } = watched();
    rig.device.lock().unwrap().bad = vec![3];
    let mut bio = rig.write(0, 8, 1);
    bio.flags = Flags::FUA;
    rig.batch([bio]);
    assert_eq!(rig.results(), [(0, Err(Errno::EIO))]);
    assert!(!ops(&rig).contains(&Op::Flush));
}

#[test]
fn a_layer_prepares_once_for_a_bio_if_it_says_so() {
    let Watched { mut rig, prepared, .. } = watched();
    rig.batch([Bio::flush(), Bio::flush()]);
    rig.all_succeeded(2);
    assert_eq!(prepared.load(Relaxed), 2);
}
