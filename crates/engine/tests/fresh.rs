//! What a port submits in a turn: layers hear of all of it before any is resolved, and it is resolved in its order.

mod rig;

use std::sync::{Arc, Mutex};

use blockwork_engine::*;
use rig::{Rig, limits};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Approach(u64),
    Resolve(u64),
}

/// Notes what it is asked.
#[derive(Debug)]
struct Noting {
    shape: Shape,
    below: Arc<dyn Layer>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Layer for Noting {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn approach(&self, span: &Span) {
        self.calls.lock().unwrap().push(Call::Approach(span.sector.0));
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        self.calls.lock().unwrap().push(Call::Resolve(span.sector.0));
        cx.pass(self.shape.node, span.sector, &*self.below, span)
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}

#[test]
fn layers_hear_of_all_that_was_submitted_before_they_resolve_it_in_that_order() {
    let calls = Arc::<Mutex<Vec<Call>>>::default();
    let noted = calls.clone();
    let mut rig = Rig::with_stack(limits(), move |below| {
        let shape = Shape { node: NodeId(1), sectors: below.sectors(), limits: below.limits().clone() };
        Arc::new(Noting { shape, below, calls: noted })
    });
    // More than are resolved together.
    let sectors: Vec<u64> = (0..40).map(|n| n * 7 % 40 * 8).collect();
    let bios: Vec<Bio> = sectors.iter().map(|sector| rig.read(*sector, 8)).collect();
    rig.batch(bios);
    rig.all_succeeded(40);
    let calls_of = |call: fn(u64) -> Call, sectors: &[u64]| {
        sectors.iter().map(|sector| call(*sector)).collect::<Vec<_>>()
    };
    let (first, rest) = sectors.split_at(32);
    let expected = [
        calls_of(Call::Approach, first),
        calls_of(Call::Resolve, first),
        calls_of(Call::Approach, rest),
        calls_of(Call::Resolve, rest),
    ];
    assert_eq!(*calls.lock().unwrap(), expected.concat());
    // One by itself has nothing to wait together with.
    calls.lock().unwrap().clear();
    let bio = rig.read(0, 8);
    rig.batch([bio]);
    rig.all_succeeded(41);
    assert_eq!(*calls.lock().unwrap(), [Call::Resolve(0)]);
}
