//! What happens when a part of a bio fails, on a leaf or in a layer that does it itself, and a layer above that can do without.
//!
//! The way of each part through the stack is not kept while it is under way: that would cost every bio what few need. When one
//! fails, the bio is resolved once more with a [`Trail`], which tells through which layers the failed place was reached. The
//! redundant ones among those are asked, the lowest first. What they cure (a member is left out from now on, and that
//! is on record) is followed by a second run of the whole bio: a write that is repeated stores the same, and nobody was told of
//! its first end.
//!
//! Invariant: a bio is run at most [`CURES_MAX`] + 1 times.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Core;
use crate::bio::{Errno, Op};
use crate::counters::{Counter, CounterTable};
use crate::event::{Action, Tracer};
use crate::layer::{Cure, Defer, Failure, Layer, NodeId, Resolver, Span, any_redundant, layer_under};
use crate::leaf::LeafId;
use crate::notes::{Notes, Prepared};
use crate::task::Command;
use crate::units::{Sector, Sectors};

/// How often one bio may be cured: an array of that many members may lose all of them to it.
const CURES_MAX: u16 = 64;

/// Where a way through a stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// On a leaf.
    Leaf(LeafId),
    /// In a layer that computes that part, does it itself, or has to prepare something first.
    Layer(NodeId),
    /// In a layer that refuses it.
    Error,
}

/// A part of a bio that has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartFailure {
    pub(crate) bio: u32,
    pub(crate) end: End,
    /// What failed there: a flush may be that of a FUA write.
    pub(crate) op: Op,
    pub(crate) sector: Sector,
    pub(crate) nr: Sectors,
    pub(crate) errno: Errno,
}

/// A step down: from the layer `above` to `below`, with the span as it arrived there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) above: NodeId,
    pub(crate) below: NodeId,
    pub(crate) span: Span,
}

/// The ways of a bio through a stack.
#[derive(Default)]
pub(crate) struct Trail {
    /// The steps to where the resolver is now.
    pub(crate) steps: Vec<Step>,
    /// Where these end, each with the span there and the steps that led to it.
    pub(crate) ends: Vec<(End, Span, Vec<Step>)>,
}

impl Trail {
    pub(crate) fn reached(&mut self, end: End, span: Span) {
        self.ends.push((end, span, self.steps.clone()));
    }
}

/// The piece of `step`'s span in which `failure` lies, whose way ended with `end`. What carries no data has no place in
/// the bio to go by: the whole of it.
fn piece_of(step: &Step, end: Span, failure: &PartFailure) -> Span {
    if !step.span.op.has_data() || failure.nr == Sectors::ZERO {
        return step.span;
    }
    let from = failure.sector.max(end.sector);
    let to = (failure.sector + failure.nr).min(end.end());
    let at = end.at + Sectors(from.0 - end.sector.0);
    step.span.piece(at - step.span.at, Sectors(to.0 - from.0))
}

fn overlaps(end: Span, failure: &PartFailure) -> bool {
    failure.nr == Sectors::ZERO || (failure.sector < end.end() && end.sector < failure.sector + failure.nr)
}

/// Tells `layer`, and those below, each once, that a leaf may have lost something, if that is below them; whether it is.
fn suspect(layer: &Arc<dyn Layer>, leaf: NodeId, known: &mut BTreeMap<NodeId, bool>) -> bool {
    if layer.node() == leaf {
        return true;
    }
    if let Some(reached) = known.get(&layer.node()) {
        return *reached;
    }
    let mut reached = false;
    for below in layer.below() {
        if suspect(&below, leaf, known) {
            layer.suspects(below.node());
            reached = true;
        }
    }
    known.insert(layer.node(), reached);
    reached
}

impl Core {
    /// Layers above leaves of which a flush has failed hear of it.
    #[cold]
    pub(super) fn tell_of_losses(&mut self) {
        for leaf in std::mem::take(&mut self.lost) {
            let node = self.queues[usize::from(leaf.0)].node();
            let mut known = BTreeMap::new();
            for volume in &self.volumes {
                suspect(&volume.root, node, &mut known);
            }
        }
        // Those of this worker at once.
        self.attendance.distrust();
        self.look();
    }

    /// A part of a bio that ended in a layer, or was to be prepared for by it, has failed.
    #[cold]
    pub(super) fn note_failure(&mut self, bio: u32, end: End, span: Span, errno: Errno) {
        let Span { op, sector, nr, .. } = span;
        self.failures.push(PartFailure { bio, end, op, sector, nr, errno });
    }

    /// Has the failures of a bio, all of whose parts are done, cured if that is possible; the bio runs again then.
    #[cold]
    pub(super) fn cure(&mut self, bio: u32) -> bool {
        let failures: Vec<_> = self.failures.extract_if(.., |failure| failure.bio == bio).collect();
        let root = self.root_of(bio);
        let state = &mut self.bios.all[bio as usize];
        if failures.is_empty() || state.cures >= CURES_MAX || !any_redundant(&*root, None) {
            return false;
        }
        let mut deferred: Vec<(Arc<dyn Layer>, Defer)> = Vec::new();
        let trail = explain(&*root, state.span, state.notes.preparations(), self.counters.len());
        let mut hopeless = false;
        for failure in &failures {
            match ask(&root, &trail, failure) {
                // The others are asked all the same: a layer has to know of each copy that lacks this write.
                Some((_, Cure::None)) => hopeless = true,
                Some((layer, Cure::Defer(defer))) => {
                    if !deferred.iter().any(|(_, known)| *known == defer) {
                        deferred.push((layer, defer));
                    }
                }
                // Not reached any more: another bio's failure was cured meanwhile.
                Some((_, Cure::Again)) | None => {}
            }
        }
        if hopeless {
            return false;
        }
        if let Some(errno) = state.error.take() {
            state.notes.tell_cured(errno);
        }
        state.notes.forget_wishes();
        state.cures += 1;
        state.idle_rounds = 0;
        let node = state.node;
        if let Some(epoch) = state.epoch.take() {
            self.attendance.end(epoch);
        }
        self.counters.add(node, Counter::Cured, 1);
        self.run_cures(bio, deferred);
        true
    }

    /// Runs the slow paths one after the other, then the bio again.
    fn run_cures(&mut self, bio: u32, deferred: Vec<(Arc<dyn Layer>, Defer)>) {
        if deferred.is_empty() {
            self.resolve_again(bio);
            return;
        }
        for (_, defer) in &deferred {
            self.counters.add(defer.node, Counter::Deferred, 1);
            if self.tracer.on() {
                self.trace(defer.node, Action::Defer, defer.span, defer.reason, 0);
            }
        }
        let cx = self.executor.context().clone();
        self.executor.spawn(async move {
            let (mut result, mut prepared) = (Ok(()), Prepared::new());
            for (layer, defer) in deferred {
                result = result.and(layer.prepare(defer, cx.clone()).await);
                prepared.push((defer.node, defer.span));
            }
            cx.command(match result {
                Ok(()) => Command::Resume { bio, prepared },
                Err(errno) => Command::Unprepared { bio, of: None, errno },
            });
        });
    }
}

/// How `span` of `root` is resolved, as things are now.
fn explain(root: &dyn Layer, span: Span, notes: Notes, nodes: u16) -> Trail {
    let (mut extents, mut trail, mut tracer) = (Vec::new(), Trail::default(), Tracer::default());
    let counters = CounterTable::new(usize::from(nodes));
    let mut resolver =
        Resolver::new(&mut extents, &counters, &mut tracer).with_notes(notes).on_trail(&mut trail);
    // Where something has to be prepared first, what was found until then counts: the bio is resolved again anyway.
    if let Err(defer) = root.resolve(span, &mut resolver)
        && defer.node == root.node()
    {
        trail.reached(End::Layer(defer.node), defer.span);
    }
    trail
}

/// Asks the redundant layers over a failure, the lowest first; the answer of the first that can do something. `None` where the
/// bio does not go there any more.
fn ask(root: &Arc<dyn Layer>, trail: &Trail, failure: &PartFailure) -> Option<(Arc<dyn Layer>, Cure)> {
    let mut ways = trail.ends.iter().filter(|(end, span, _)| *end == failure.end && overlaps(*span, failure));
    let mut answer = None;
    ways.try_for_each(|(_, end, steps)| {
        for step in steps.iter().rev() {
            let layer = layer_under(root, step.above).expect("a step starts at a layer of the stack");
            if !layer.is_redundant() {
                continue;
            }
            let span = piece_of(step, *end, failure);
            let cure = layer.cure(&Failure { op: failure.op, below: step.below, span, errno: failure.errno });
            if cure != Cure::None {
                answer = Some((layer, cure));
                return Some(());
            }
        }
        // One way on which nobody helps is enough: that part would fail again.
        answer = Some((root.clone(), Cure::None));
        None
    });
    answer
}
