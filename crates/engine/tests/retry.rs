//! What is asked of a device once more, where a layer asked for something else than its client.

mod rig;

use std::sync::Arc;

use blockwork_engine::*;
use rig::{Rig, limits};

/// Has its discards zero what they discard, as a snapshot does in its store.
#[derive(Debug)]
struct ZeroesDiscards {
    below: Arc<dyn Layer>,
    shape: Shape,
}

impl Layer for ZeroesDiscards {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let op = if span.op == Op::Discard { Op::WriteZeroes } else { span.op };
        cx.pass(self.shape.node, span.sector, &*self.below, Span { op, ..span })
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}

#[test]
fn what_a_layer_asked_for_is_tried_again_and_not_what_its_client_did() {
    let zeroing = || {
        let rig = Rig::with_stack(limits(), |below| {
            let shape = Shape { node: NodeId(1), ..below.shape().clone() };
            Arc::new(ZeroesDiscards { below, shape })
        });
        rig.hold();
        rig.device.lock().unwrap().bytes.fill(1);
        rig
    };
    let discard = |sector| Bio::without_data(Op::Discard, Flags::NONE, Sector(sector), Sectors(8));
    let ops = |rig: &Rig| rig.seen().iter().map(|seen| (seen.op, seen.nr)).collect::<Vec<_>>();
    // A device that turns out not to have it.
    let mut rig = zeroing();
    rig.batch([discard(8)]);
    let held = rig.next_held();
    rig.complete(held, Err(Errno::EOPNOTSUPP));
    rig.complete_all();
    rig.all_succeeded(1);
    assert_eq!(ops(&rig), [(Op::WriteZeroes, 8), (Op::Write, 8)]);
    assert!(rig.device.lock().unwrap().bytes[8 * 512..16 * 512].iter().all(|byte| *byte == 0));
    // Two that went together, and failed.
    let mut rig = zeroing();
    rig.batch([discard(8), discard(16)]);
    let held = rig.next_held();
    rig.complete(held, Err(Errno::EIO));
    rig.complete_all();
    rig.all_succeeded(2);
    assert_eq!(ops(&rig), [(Op::WriteZeroes, 16), (Op::WriteZeroes, 8), (Op::WriteZeroes, 8)]);
}
