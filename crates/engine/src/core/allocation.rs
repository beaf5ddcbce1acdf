//! What a stack holds: the answer to NBD's block status, and to FUSE's SEEK_DATA and SEEK_HOLE.
//!
//! It is put together from every piece of every leaf in a range: nothing for a plain file, a quarter of a million pieces for 1 GiB in
//! chunks of 4 KiB. So it is looked a little ahead at first, twice as far each time that all was the same up to there, and no further
//! than where something else begins. A leaf is asked about more than its piece, since that may be a system call, or a way over a network:
//! what it has said is remembered for the pieces that follow.
//!
//! Invariant: a question costs what its answer is worth, and never much. What is resolved in vain is as much as the answer covers, and
//! [`STEP_MIN`]; all that is resolved is little more than twice [`PIECES_MAX`] pieces or, where they become finer on the way, than
//! [`STEP_MAX`] has. A leaf is asked once for each piece at most.

use crate::bio::{Errno, Flags, Op};
use crate::counters::CounterTable;
use crate::event::Tracer;
use crate::layer::{Extent, Layer, Resolver, Span, Target};
use crate::leaf::{Allocation, LeafId};
use crate::units::{Sector, Sectors};
use crate::volume::VolumeId;

use super::Core;

/// How far one question looks: 1 GiB. Who wants to know more asks again.
const REACH_MAX: Sectors = Sectors(1 << 21);
/// How far the first look goes: 64 KiB, the least block of a thin pool.
const STEP_MIN: Sectors = Sectors(128);
/// How far any goes: 64 MiB.
const STEP_MAX: Sectors = Sectors(128 << 10);
/// Pieces that an answer is put together from.
const PIECES_MAX: usize = 1024;

/// What a question has found so far.
#[derive(Debug, Default)]
struct Found {
    kind: Option<Allocation>,
    /// How far that goes.
    nr: Sectors,
    pieces: usize,
    /// It goes no further, or further pieces are another question's.
    ended: bool,
    /// The last word of each leaf.
    told: Vec<Told>,
}

/// What a leaf has said.
#[derive(Clone, Copy, Debug)]
struct Told {
    leaf: LeafId,
    kind: Allocation,
    start: Sector,
    end: Sector,
}

impl Found {
    /// A piece holds that for its first `nr` sectors of `of`.
    fn add(&mut self, kind: Allocation, nr: Sectors, of: Sectors) {
        if *self.kind.get_or_insert(kind) != kind {
            self.ended = true;
            return;
        }
        self.nr += nr.min(of);
        self.pieces += 1;
        self.ended = nr < of || self.pieces >= PIECES_MAX;
    }

    /// What `leaf` has said of `sector`, and how far that goes.
    fn told(&self, leaf: LeafId, sector: Sector) -> Option<(Allocation, Sectors)> {
        let told = self.told.iter().find(|told| told.leaf == leaf)?;
        (told.start <= sector && sector < told.end).then(|| (told.kind, told.end.since(sector)))
    }

    fn remember(&mut self, told: Told) {
        match self.told.iter_mut().find(|before| before.leaf == told.leaf) {
            Some(before) => *before = told,
            None => self.told.push(told),
        }
    }
}

impl Core {
    /// What the volume holds at `sector`. See [`Context::allocation`](crate::Context::allocation).
    pub(crate) fn allocation(
        &mut self,
        volume: VolumeId,
        sector: Sector,
        nr: Sectors,
    ) -> Result<(Allocation, Sectors), Errno> {
        let root = self.volumes[volume.0 as usize].root.clone();
        self.allocation_of(&*root, sector, nr)
    }

    /// Likewise, of any stack.
    pub(super) fn allocation_of(
        &mut self,
        root: &dyn Layer,
        sector: Sector,
        nr: Sectors,
    ) -> Result<(Allocation, Sectors), Errno> {
        let nr = nr.min(REACH_MAX);
        let (mut found, mut extents, mut step) = (Found::default(), Vec::new(), STEP_MIN);
        while !found.ended && found.nr < nr {
            let at = found.nr;
            let asked = step.min(nr - at);
            let span = Span { op: Op::Read, flags: Flags::NONE, sector: sector + at, nr: asked, at };
            if self.resolve_quietly(root, span, &mut extents) {
                self.take_in(&extents, nr, &mut found)?;
            } else {
                found.add(Allocation::Data, asked, asked);
            }
            found.ended |= found.nr < at + asked;
            step = Sectors(step.0 * 2).min(STEP_MAX);
        }
        Ok((found.kind.unwrap_or(Allocation::Data), found.nr))
    }

    /// What these extents hold, which lie where `found` ends, up to the first that holds something else. A leaf is asked as far as all of
    /// the question goes.
    fn take_in(&mut self, extents: &[Extent], all: Sectors, found: &mut Found) -> Result<(), Errno> {
        for extent in extents {
            let Extent { target, span } = *extent;
            if found.ended || span.at != found.nr {
                break;
            }
            let (kind, nr) = match target {
                Target::Zero => (Allocation::Hole, span.nr),
                Target::Sum(_) | Target::Task(_) | Target::Error(_) => (Allocation::Data, span.nr),
                Target::Leaf(leaf) => match found.told(leaf, span.sector) {
                    Some(told) => told,
                    None => self.ask(leaf, span.sector, all - span.at, found)?,
                },
            };
            found.add(kind, nr, span.nr);
        }
        Ok(())
    }

    fn ask(
        &mut self,
        leaf: LeafId,
        sector: Sector,
        nr: Sectors,
        found: &mut Found,
    ) -> Result<(Allocation, Sectors), Errno> {
        let (kind, nr) = self.queues[usize::from(leaf.0)].leaf_mut().allocation(sector, nr)?;
        found.remember(Told { leaf, kind, start: sector, end: sector + nr });
        Ok((kind, nr))
    }

    /// Puts the extents of `span` in order. Not if who reads it would have to wait for something. A question is no I/O: it is counted
    /// apart, and not traced.
    fn resolve_quietly(&mut self, root: &dyn Layer, span: Span, extents: &mut Vec<Extent>) -> bool {
        extents.clear();
        let nodes = usize::from(self.node_count());
        let quiet = self.questions.get_or_insert_with(|| CounterTable::new(nodes));
        let mut tracer = Tracer::default();
        let resolved = root.resolve(span, &mut Resolver::new(extents, quiet, &mut tracer)).is_ok();
        extents.sort_by_key(|extent| extent.span.at);
        resolved
    }
}
