//! What a worker does with the layers of its volumes as a whole: opening and closing them, and finding one among them.

mod rig;

use std::sync::{Arc, Mutex};

use blockwork_engine::*;
use rig::{Rig, limits};

/// What was done, and with which node.
type Log = Arc<Mutex<Vec<(&'static str, u16)>>>;

/// A layer on others that notes what is done with it; reads and writes go to the first of them.
#[derive(Debug)]
struct Noting {
    shape: Shape,
    below: Vec<Arc<dyn Layer>>,
    log: Log,
    /// What opening and closing it come to.
    result: Result<(), Errno>,
    /// It is redundant, and has nothing to offer.
    redundant: bool,
}

impl Noting {
    fn note(&self, what: &'static str, cx: &TaskContext) -> Option<Preparation> {
        let (log, node, result, cx) = (self.log.clone(), self.shape.node.0, self.result, cx.clone());
        Some(Box::pin(async move {
            cx.sleep(Nanos::millis(1)).await;
            log.lock().unwrap().push((what, node));
            result
        }))
    }
}

impl Layer for Noting {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        cx.pass(self.shape.node, span.sector, &*self.below[0], span)
    }
    fn is_redundant(&self) -> bool {
        self.redundant
    }
    fn open(&self, cx: TaskContext) -> Option<Preparation> {
        self.note("open", &cx)
    }
    fn close(&self, cx: TaskContext) -> Option<Preparation> {
        self.note("close", &cx)
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        self.below.clone()
    }
}

/// A layer with this number.
fn noting(node: u16, below: Vec<Arc<dyn Layer>>, log: &Log) -> Noting {
    let shape = Shape { node: NodeId(node), sectors: below[0].sectors(), limits: below[0].limits().clone() };
    Noting { shape, below, log: log.clone(), result: Ok(()), redundant: false }
}

/// 1 on 2 and 3, both on 4, also directly; 2 fails.
fn diamond(log: &Log) -> Rig {
    let log = log.clone();
    Rig::with_stack(limits(), move |leaf| {
        let lowest: Arc<dyn Layer> = Arc::new(noting(4, vec![leaf], &log));
        let failing = Noting { result: Err(Errno::EIO), ..noting(2, vec![lowest.clone()], &log) };
        let other = noting(3, vec![lowest.clone()], &log);
        Arc::new(noting(1, vec![Arc::new(failing), lowest, Arc::new(other)], &log))
    })
}

/// Turns, of a microsecond each, until `count` notes were taken.
fn turn_until(rig: &mut Rig, log: &Log, count: usize) {
    for _ in 0..20_000 {
        if log.lock().unwrap().len() >= count {
            return;
        }
        rig.worker.turn(Wait::Poll);
    }
    panic!("{:?}", log.lock().unwrap());
}

#[test]
fn layers_are_opened_from_below_and_closed_from_above_each_once_and_all_whatever_fails() {
    let log = Log::default();
    let mut rig = diamond(&log);
    rig.worker.open();
    turn_until(&mut rig, &log, 4);
    let opened = std::mem::take(&mut *log.lock().unwrap());
    assert_eq!((opened[0], opened[3], opened.len()), (("open", 4), ("open", 1), 4), "{opened:?}");
    assert_eq!(rig.worker.close(), Err(Errno::EIO));
    let closed = log.lock().unwrap().clone();
    assert_eq!((closed[0], closed[3], closed.len()), (("close", 1), ("close", 4), 4), "{closed:?}");
}

#[test]
fn a_task_runs_on_its_worker_which_does_not_end_before_it_does() {
    let log = Log::default();
    let mut rig = diamond(&log);
    let noted = log.clone();
    rig.worker.spawn(|cx| async move {
        while cx.pause(Nanos::millis(5)).await {
            noted.lock().unwrap().push(("pause", 0));
        }
        cx.sleep(Nanos::millis(5)).await;
        noted.lock().unwrap().push(("end", 0));
    });
    turn_until(&mut rig, &log, 2);
    rig.worker.handle().stop();
    rig.worker.run().unwrap();
    assert_eq!(log.lock().unwrap().last(), Some(&("end", 0)));
}

#[test]
fn a_leaf_that_is_added_is_read_like_the_others() {
    let mut rig = Rig::new(limits());
    let device = rig.device.clone();
    device.lock().unwrap().bytes[..512].fill(7);
    let source = rig::Source {
        device,
        limits: limits(),
        sectors: Sectors(rig::SECTORS),
        shared: Arc::new(LeafShared::default()),
    };
    assert!(rig.worker.set_leaf(LeafId(1), NodeId(1), Arc::new(source)));
    let layer: Arc<dyn Layer> =
        Arc::new(LeafLayer::new(LeafId(1), NodeId(1), Sectors(rig::SECTORS), limits()));
    let (read, told) = (rig.read(0, 1), Arc::new(Mutex::new(None)));
    let answer = told.clone();
    rig.worker.spawn(|cx| async move {
        let (result, data) = cx.bio(&layer, read).await;
        let mut byte = [0];
        data[0].read_at(0, &mut byte);
        *answer.lock().unwrap() = Some((result, byte[0]));
    });
    rig.worker.handle().stop();
    rig.client.borrow_mut().close = true;
    rig.worker.run().unwrap();
    assert_eq!(*told.lock().unwrap(), Some((Ok(()), 7)));
    assert_eq!((rig.stats.get(NodeId(0), Counter::Reads), rig.stats.get(NodeId(1), Counter::Reads)), (0, 1));
}

#[test]
fn a_leaf_gets_another_source_when_nothing_is_under_way_there() {
    let mut rig = Rig::new(limits());
    let other = Rig::new(limits());
    other.device.lock().unwrap().bytes[..512].fill(7);
    rig.hold();
    let read = rig.read(0, 1);
    rig.batch([read]);
    let held = rig.next_held();
    assert!(!rig.worker.set_leaf(LeafId(0), NodeId(0), other.source.clone()), "a request is under way");
    rig.complete(held, Ok(()));
    assert_eq!(rig.data_of(0), [0; 512], "it was the first source's");
    let readers = Arc::strong_count(&rig.device);
    assert!(rig.worker.set_leaf(LeafId(0), NodeId(0), other.source.clone()));
    assert!(Arc::strong_count(&rig.device) < readers, "the worker has nothing of it any more");
    rig.batch([rig.read(0, 1)]);
    assert_eq!(rig.client.borrow().done.len(), 2);
    let mut bytes = [0; 512];
    rig.client.borrow().done[1].data[0].read_at(0, &mut bytes);
    assert_eq!(bytes, [7; 512]);
}

#[test]
fn a_stack_through_which_more_ways_lead_than_anybody_can_go_is_opened_cured_and_closed() {
    let log = Log::default();
    let ours = log.clone();
    // Each of 60 layers lies on the next one four times: 2^120 ways.
    let mut rig = Rig::with_stack(limits(), move |leaf| {
        let mut top: Arc<dyn Layer> = Arc::new(Noting { redundant: true, ..noting(5, vec![leaf], &ours) });
        for _ in 0..60 {
            // One number will do: who has been looked at is known by more than that.
            top = Arc::new(noting(6, vec![top; 4], &ours));
        }
        Arc::new(noting(7, vec![top; 4], &ours))
    });
    rig.device.lock().unwrap().bad = vec![3];
    let bio = rig.read(0, 8);
    rig.batch([bio]);
    assert_eq!(rig.results(), [(0, Err(Errno::EIO))], "nobody can help, which is found out");
    rig.worker.open();
    turn_until(&mut rig, &log, 3);
    rig.worker.close().unwrap();
    let log = log.lock().unwrap();
    assert_eq!(log[..], [("open", 5), ("open", 6), ("open", 7), ("close", 7), ("close", 6), ("close", 5)]);
}

#[test]
fn what_is_asked_of_a_worker_that_has_ended_is_dropped() {
    let rig = Rig::new(limits());
    let handle = rig.worker.handle();
    let ask = || {
        let carried = Arc::new(());
        let seen = Arc::downgrade(&carried);
        handle.run(move |_| drop(carried));
        seen
    };
    let before = ask();
    assert!(before.upgrade().is_some());
    drop(rig);
    assert!(before.upgrade().is_none() && ask().upgrade().is_none());
}
