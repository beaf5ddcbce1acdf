//! Slow paths that bios share: one for all that a layer has deferred in a turn, from which each goes on by itself.

mod rig;

use std::sync::{Arc, Mutex};

use blockwork_engine::*;
use rig::{Rig, limits};

/// Who has prepared for what: how many bios each time.
type Told = Arc<Mutex<Vec<usize>>>;

/// Prepares for all writes together, once for each piece; flushes are prepared for one by one. What it is to do with a write is in its
/// place: from sector 64 on it fails, from 128 on it is forgotten, from 192 on it waits for another turn of the tasks, from 256 on there
/// is nothing to do for it in each round but the fourth, until that has been so for [`ROUNDS`] rounds in a row.
#[derive(Debug)]
struct Joiner {
    shape: Shape,
    below: Arc<dyn Layer>,
    /// Sectors that were prepared for.
    ready: Arc<Mutex<Vec<u64>>>,
    together: Told,
    alone: Told,
    rounds: Rounds,
}

/// Nothing is to be done for a bio so often in a row at most.
const ROUNDS: u16 = 5;

/// What each round of a bio has said of those before it.
type Rounds = Arc<Mutex<Vec<u16>>>;

fn idle(deferred: Deferred, rounds: &Rounds) {
    let before = deferred.idle_rounds();
    let count = {
        let mut rounds = rounds.lock().unwrap();
        rounds.push(before);
        rounds.len()
    };
    match count {
        4 => deferred.go_on(Ok(())),
        _ if before < ROUNDS => deferred.go_on_idle(),
        _ => deferred.go_on(Err(Errno::EIO)),
    }
}

impl Layer for Joiner {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let is_ready = match span.op {
            Op::Write => self.ready.lock().unwrap().contains(&span.sector.0),
            Op::Flush => cx.was_prepared(self.shape.node, span),
            _ => true,
        };
        if !is_ready {
            return Err(Defer { node: self.shape.node, span, reason: Reason::Provision });
        }
        cx.pass(self.shape.node, span.sector, &*self.below, span)
    }
    fn prepare(&self, _: Defer, _: TaskContext) -> Preparation {
        self.alone.lock().unwrap().push(1);
        Box::pin(async { Ok(()) })
    }
    fn prepares_together(&self, defer: &Defer) -> bool {
        defer.span.op == Op::Write
    }
    fn prepare_all(&self, deferred: Vec<Deferred>, cx: TaskContext) -> Preparations {
        self.together.lock().unwrap().push(deferred.len());
        let (ready, rounds) = (self.ready.clone(), self.rounds.clone());
        Box::pin(async move {
            let mut late = Vec::new();
            for deferred in deferred {
                let sector = deferred.span().sector.0;
                match sector / 64 {
                    0 => {
                        ready.lock().unwrap().push(sector);
                        deferred.go_on(Ok(()));
                    }
                    1 => deferred.go_on(Err(Errno::ENOSPC)),
                    2 => drop(deferred),
                    3 => late.push(deferred),
                    _ => idle(deferred, &rounds),
                }
            }
            cx.sleep(Nanos(1)).await;
            for deferred in late {
                ready.lock().unwrap().push(deferred.span().sector.0);
                deferred.go_on(Ok(()));
            }
        })
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}

fn joiner() -> (Rig, Told, Told, Rounds) {
    let (together, alone, rounds) = (Told::default(), Told::default(), Rounds::default());
    let of_layer = rounds.clone();
    let told = (together.clone(), alone.clone());
    let rig = Rig::with_stack(limits(), move |below| {
        let shape = Shape { node: NodeId(1), sectors: below.sectors(), limits: below.limits().clone() };
        let (ready, rounds) = (Arc::default(), of_layer);
        Arc::new(Joiner { shape, below, ready, together: told.0, alone: told.1, rounds })
    });
    (rig, together, alone, rounds)
}

#[test]
fn all_of_a_turn_are_prepared_for_at_once_and_others_one_by_one() {
    let (mut rig, together, alone, _) = joiner();
    let bios = [rig.write(0, 8, 1), rig.write(16, 8, 2), rig.write(32, 8, 3), Bio::flush(), Bio::flush()];
    rig.batch(bios);
    rig.all_succeeded(5);
    assert_eq!((&together.lock().unwrap()[..], &alone.lock().unwrap()[..]), (&[3][..], &[1, 1][..]));
    let bio = rig.write(48, 8, 4);
    rig.batch([bio]);
    rig.all_succeeded(6);
    assert_eq!(*together.lock().unwrap(), [3, 1]);
}

#[test]
fn each_goes_on_by_itself_and_one_that_is_forgotten_fails() {
    let (mut rig, together, ..) = joiner();
    let bios = [rig.write(0, 8, 1), rig.write(64, 8, 2), rig.write(128, 8, 3), rig.write(192, 8, 4)];
    rig.batch(bios);
    let mut early = rig.results();
    early.sort_by_key(|(cookie, _)| *cookie);
    assert_eq!(early, [(0, Ok(())), (1, Err(Errno::ENOSPC)), (2, Err(Errno::EIO))]);
    rig.turn_with_event();
    assert_eq!(rig.results()[3..], [(3, Ok(()))], "time has passed");
    assert_eq!(*together.lock().unwrap(), [4]);
}

#[test]
fn rounds_in_which_there_was_nothing_to_do_for_a_bio_are_counted_in_a_row() {
    let (mut rig, _, _, rounds) = joiner();
    let bio = rig.write(256, 8, 1);
    rig.batch([bio]);
    assert_eq!(rig.results(), [(0, Err(Errno::EIO))]);
    // In the fourth round something was done.
    assert_eq!(*rounds.lock().unwrap(), [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]);
    // Another bio in the same place of the list begins anew.
    let bio = rig.write(256, 8, 1);
    rig.batch([bio]);
    assert_eq!(rounds.lock().unwrap()[10..], [0, 1, 2, 3, 4, 5]);
}
