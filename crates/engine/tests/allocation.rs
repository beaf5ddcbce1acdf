//! What a question costs about what a volume holds: pieces that are resolved for it, and what leaves are asked.

mod rig;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blockwork_engine::*;
use rig::{Rig, SECTORS, limits};

/// Sectors of a chunk.
const CHUNK: u64 = 8;
/// Of the volume: 4 GiB.
const SIZE: u64 = 8 << 20;
const GIB: u64 = 2 << 20;

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Hole,
    /// Data that lie in the same place of the leaf, as far as it goes.
    Straight,
    /// Data that lie anywhere on the leaf: a piece for each chunk.
    Scattered,
    /// Whoever reads it waits for something.
    Slow,
}

/// A volume in chunks.
#[derive(Debug)]
struct Chunks {
    shape: Shape,
    leaf: Arc<dyn Layer>,
    holds: fn(u64) -> Holds,
    pieces: Arc<AtomicU64>,
}

impl Layer for Chunks {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let mut rest = span;
        while rest.nr > Sectors::ZERO {
            let chunk = rest.sector.0 / CHUNK;
            let holds = (self.holds)(chunk);
            let mut end = chunk + 1;
            while matches!(holds, Holds::Hole | Holds::Straight)
                && end * CHUNK < rest.end().0
                && (self.holds)(end) == holds
            {
                end += 1;
            }
            let piece = rest.piece(Sectors::ZERO, rest.nr.min(Sectors(end * CHUNK - rest.sector.0)));
            self.pieces.fetch_add(1, Ordering::Relaxed);
            let at = match holds {
                Holds::Hole => None,
                Holds::Straight => Some(rest.sector),
                Holds::Scattered => Some(Sector(chunk * 2_654_435_761 % (SECTORS / CHUNK) * CHUNK)),
                Holds::Slow => {
                    return Err(Defer { node: self.shape.node, span: rest, reason: Reason::ReadMap });
                }
            };
            match at {
                None => cx.zero(piece),
                // A question is no I/O: it may lie behind the end of the rig's small leaf.
                Some(at) => cx.leaf(LeafId(0), piece.moved_to(at)),
            }
            rest = rest.piece(piece.nr, rest.nr - piece.nr);
        }
        Ok(())
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.leaf.clone()]
    }
}

struct Lab {
    rig: Rig,
    root: Arc<dyn Layer>,
    pieces: Arc<AtomicU64>,
}

impl Lab {
    fn new(holds: fn(u64) -> Holds) -> Lab {
        let (mut root, pieces) = (None, Arc::new(AtomicU64::new(0)));
        let rig = Rig::with_stack(limits(), |leaf| {
            let shape = Shape { node: NodeId(1), sectors: Sectors(SIZE), limits: leaf.limits().clone() };
            let chunks: Arc<dyn Layer> = Arc::new(Chunks { shape, leaf, holds, pieces: pieces.clone() });
            root.insert(chunks).clone()
        });
        Lab { rig, root: root.unwrap(), pieces }
    }

    /// The answer, the pieces that were resolved for it, and how often the leaf was asked.
    fn ask(&mut self, sector: u64, nr: u64) -> ((Allocation, u64), u64, usize) {
        self.pieces.store(0, Ordering::Relaxed);
        self.rig.device.lock().unwrap().questions.clear();
        let (root, answer) = (self.root.clone(), Rc::new(Cell::new(None)));
        let found = answer.clone();
        self.rig.worker.spawn(|cx| {
            Box::pin(async move { found.set(Some(cx.allocation(&root, Sector(sector), Sectors(nr)).await)) })
        });
        while answer.get().is_none() {
            self.rig.worker.turn(Wait::Poll);
        }
        let (kind, nr) = answer.get().unwrap();
        let asked = self.rig.device.lock().unwrap().questions.len();
        ((kind, nr.0), self.pieces.load(Ordering::Relaxed), asked)
    }
}

#[test]
fn a_question_about_chunks_that_alternate_costs_the_same_however_far_it_goes() {
    let mut lab = Lab::new(|chunk| [Holds::Scattered, Holds::Hole][(chunk % 2) as usize]);
    for reach in [CHUNK * 16, GIB / 64, GIB, SIZE] {
        let (answer, pieces, asked) = lab.ask(0, reach);
        assert_eq!((answer, asked), ((Allocation::Data, CHUNK), 1));
        assert_eq!(pieces, 16, "{reach} sectors: as many as the first step has");
        let (answer, pieces, asked) = lab.ask(CHUNK + 3, reach);
        assert_eq!((answer, asked), ((Allocation::Hole, CHUNK - 3), 1));
        assert_eq!(pieces, 17);
    }
}

#[test]
fn what_is_resolved_in_vain_is_no_more_than_what_the_answer_covers_and_one_step() {
    // Runs of 1, 2, 4 ... 512 chunks, one of data behind one of a hole.
    let mut lab = Lab::new(|chunk| match (chunk % 1024 + 1).ilog2() % 2 {
        0 => Holds::Scattered,
        _ => Holds::Hole,
    });
    let mut at = 0;
    while at < 64 * 1024 * CHUNK {
        let ((kind, nr), pieces, _) = lab.ask(at, SIZE - at);
        // What anybody can see.
        let is_data = |sector: u64| (sector / CHUNK % 1024 + 1).ilog2().is_multiple_of(2);
        let data = is_data(at);
        let run = (at..SIZE).take_while(|sector| is_data(*sector) == data).count() as u64;
        assert_eq!((kind == Allocation::Data, nr), (data, run), "at {at}");
        assert!(pieces <= 2 * (nr / CHUNK) + 16 + 15, "{pieces} pieces for {nr} sectors at {at}");
        at += nr;
    }
}

#[test]
fn a_huge_run_in_small_pieces_is_answered_in_parts() {
    let mut lab = Lab::new(|_| Holds::Scattered);
    let ((kind, nr), pieces, asked) = lab.ask(0, GIB);
    assert_eq!((kind, nr), (Allocation::Data, 1024 * CHUNK));
    assert!(pieces <= 2 * 1024 + 16 && asked <= 1024, "{pieces} pieces, {asked} questions");
}

#[test]
fn a_run_that_becomes_finer_on_the_way_is_answered_in_parts() {
    let mut lab = Lab::new(|chunk| match chunk * CHUNK < GIB / 2 {
        true => Holds::Straight,
        false => Holds::Scattered,
    });
    let ((kind, nr), pieces, asked) = lab.ask(0, GIB);
    assert!(kind == Allocation::Data && (GIB / 2..GIB / 2 + 1024 * CHUNK).contains(&nr), "{nr}");
    assert!(pieces <= 16 + 1024 + (GIB / 16 / CHUNK), "{pieces} pieces");
    assert!(asked <= 1024, "{asked} questions");
}

#[test]
fn a_leaf_that_knows_a_run_is_asked_once() {
    let mut lab = Lab::new(|_| Holds::Straight);
    let (answer, pieces, asked) = lab.ask(0, SIZE);
    assert_eq!((answer, asked), ((Allocation::Data, GIB), 1));
    assert!(pieces <= 26, "{pieces} steps");
    let (answer, pieces, asked) = lab.ask(GIB - 5, 3);
    assert_eq!((answer, pieces, asked), ((Allocation::Data, 3), 1, 1));
}

#[test]
fn where_a_reader_would_have_to_wait_there_are_data() {
    // The last of the chunks of a step: what lies before it in that step is known no better.
    let mut lab = Lab::new(|chunk| if chunk == 47 { Holds::Slow } else { Holds::Hole });
    assert_eq!(lab.ask(0, SIZE).0, (Allocation::Hole, 16 * CHUNK));
    assert_eq!(lab.ask(16 * CHUNK, SIZE / 2).0, (Allocation::Hole, 16 * CHUNK));
    assert_eq!(lab.ask(32 * CHUNK, SIZE / 2).0, (Allocation::Data, 16 * CHUNK));
    assert_eq!(lab.ask(48 * CHUNK, 4 * GIB / 2).0, (Allocation::Hole, GIB));
}
