//! What a sequential reader will want next: asked of its stack, and read ahead on whichever leaves that is.
//!
//! A leaf sees only what reaches it. Where a stack cuts a volume into pieces (a snapshot that has some of its chunks, stripes,
//! linear segments), a leaf that guesses reads in vain behind the end of a piece, and begins a piece only when
//! the reader is there. So when a reader comes to a slot of what was read ahead for it (`queue/read_ahead.rs`), the next
//! [`HORIZON`] slots' worth of its volume are resolved, as a question: nothing is counted or traced of that.
//!
//! Invariant: what is read ahead for a reader on a leaf is within the leaf's allowance, however many pieces there are.

use crate::bio::{Flags, Op};
use crate::counters::CounterTable;
use crate::env::Env;
use crate::event::Tracer;
use crate::layer::{Extent, Resolver, Span, Target};
use crate::leaf::LeafId;
use crate::queue::{Allowance, Behind, Stretch, Wish};
use crate::units::{Sector, Sectors};

use super::Core;

/// How far is looked ahead, in slots.
const HORIZON: u64 = 3;

/// A stretch has to be as large as so many of the reader's requests: smaller ones are read when they are wanted.
const REQUESTS_MIN: u64 = 4;

/// What a reader will want of one leaf, in one piece but for gaps that are no larger than its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    leaf: LeafId,
    start: Sector,
    end: Sector,
    /// How far from the reader it begins, on the volume.
    from: Sectors,
    /// And ends.
    until: Sectors,
}

/// What lies before a reader.
#[derive(Debug, Default)]
struct View {
    /// In the order in which it comes to them.
    pieces: Vec<Piece>,
    /// How far is known.
    known: Sectors,
    /// That is all there is of the volume.
    is_all: bool,
}

impl View {
    /// What these extents of a question are to a reader that asks for `nr` sectors at a time.
    fn of(extents: &mut [Extent], nr: Sectors) -> View {
        extents.sort_by_key(|extent| extent.span.at);
        let mut view = View::default();
        for extent in extents.iter() {
            let span = extent.span;
            view.known = Sectors((span.at + span.nr).0);
            let Target::Leaf(leaf) = extent.target else { continue };
            let before = view.pieces.iter_mut().rev().find(|piece| piece.leaf == leaf);
            match before {
                Some(piece) if piece.end <= span.sector && span.sector <= piece.end + nr.min(span.nr) => {
                    (piece.end, piece.until) = (span.end(), view.known);
                }
                _ => view.pieces.push(Piece {
                    leaf,
                    start: span.sector,
                    end: span.end(),
                    from: span.at,
                    until: view.known,
                }),
            }
        }
        view
    }

    /// What is to be read ahead of `piece`, if anything.
    fn stretch(&self, piece: &Piece, wish: &Wish, nr: Sectors) -> Option<Stretch> {
        let window = wish.window.0;
        let may_go_on = !self.is_all && self.known.0 - piece.until.0 < (window / 4).max(1);
        let is_own = self.pieces.iter().find(|piece| piece.leaf == wish.leaf) == Some(piece);
        let is_due = is_own || piece.from.0 < window;
        let behind = match may_go_on {
            true if is_due => Behind::GoesOn,
            true => Behind::Later,
            false => Behind::Ends,
        };
        let is_large = piece.end.since(piece.start).0 >= REQUESTS_MIN * nr.0;
        (is_large || behind == Behind::GoesOn).then_some(Stretch {
            start: piece.start,
            end: piece.end,
            behind,
        })
    }
}

impl Core {
    /// Reads ahead for readers that have come to what was read ahead for them.
    #[inline]
    pub(super) fn read_ahead(&mut self, env: &mut dyn Env) {
        while let Some(wish) = self.wishes.pop() {
            self.grant(env, wish);
        }
    }

    fn grant(&mut self, env: &mut dyn Env, wish: Wish) {
        let nr = self.bios.get(wish.bio).span.nr;
        let view = self.view(&wish);
        let mut allowances: Vec<(LeafId, Allowance)> = Vec::new();
        for piece in &view.pieces {
            let Some(stretch) = view.stretch(piece, &wish, nr) else { continue };
            let leaf = usize::from(piece.leaf.0);
            let at = allowances.iter().position(|(leaf, _)| *leaf == piece.leaf).unwrap_or_else(|| {
                allowances.push((piece.leaf, self.queues[leaf].allowance()));
                allowances.len() - 1
            });
            let allowance = &mut allowances[at].1;
            if !allowance.is_used_up() {
                self.with_queue(env, leaf, |queue, cx| queue.read_ahead(cx, stretch, allowance));
            }
        }
    }

    /// What lies before the reader that has asked for `wish.bio`. What would have to wait for a slow path is not seen.
    fn view(&mut self, wish: &Wish) -> View {
        let root = self.root_of(wish.bio);
        let asked = self.bios.get(wish.bio).span;
        let sector = asked.end();
        // It may have become smaller since.
        let left = Sectors(root.sectors().0.saturating_sub(sector.0));
        let nr = Sectors(wish.window.0 * HORIZON).min(left);
        if nr == Sectors::ZERO {
            return View::default();
        }
        let nodes = usize::from(self.node_count());
        let quiet = self.questions.get_or_insert_with(|| CounterTable::new(nodes));
        let (mut extents, mut tracer) = (Vec::new(), Tracer::default());
        let span = Span { op: Op::Read, flags: Flags::NONE, sector, nr, at: Sectors::ZERO };
        // Whatever was resolved before a layer would have to wait is true all the same.
        let _ = root.resolve(span, &mut Resolver::new(&mut extents, quiet, &mut tracer));
        let mut view = View::of(&mut extents, asked.nr);
        view.is_all = view.known == left;
        view
    }
}
