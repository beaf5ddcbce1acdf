//! What is computed: what a member of an array had that is not there, from what the others have.
//!
//! Such a part of a read ends on no leaf ([`Target::Sum`](crate::Target::Sum)). Its layer says what it is the sum of ([`Layer::terms`]), times
//! which factors; that is read below it, all terms of a piece at a time, and added up. Where some of that cannot be read, the piece is tried
//! block by block: each by what the layer makes of it without those, so that two members may have bad sectors in one piece, but not in one
//! place. A layer that computes for itself ([`compute`]) does so likewise, of whatever it says.
//!
//! Invariant: a block is tried once for each member that refuses it, and once more.

use std::sync::Arc;

use blockwork_memory::{Segment, Segments, copy_between, slice_segments};

use crate::bio::{Bio, Errno, Flags, Op};
use crate::gf256::{Gf256, add, double};
use crate::layer::{Failure, Layer, NodeId, Span};
use crate::task::TaskContext;
use crate::units::{SECTOR, Sector, Sectors};

/// Computed in one go: bounds memory, of which each term takes as much.
const STEP: Sectors = Sectors(256);
/// Added up in one go, bytes: it stays in the processor's cache.
const SUM_BYTES: usize = 16 << 10;
/// Blocks into which that is cut where something cannot be read, at least: what disks write at a time.
const BLOCK_MIN: u64 = 8;

/// A term of a sum.
#[derive(Clone, Debug)]
pub struct Term {
    /// The layer directly below on which it is.
    pub below: Arc<dyn Layer>,
    /// Where, there; it is as long as what it is a term of.
    pub sector: Sector,
    /// What it is multiplied with.
    pub factor: Gf256,
}

/// What can be computed, by spans.
pub trait Sum {
    /// What that is the sum of: ranges of layers, each as long as `span`. Those in `without` have just refused some of it.
    ///
    /// # Errors
    /// Too much is missing.
    fn terms(&self, span: Span, without: &[NodeId]) -> Result<Vec<Term>, Errno>;
    /// A layer has refused a term of a block.
    fn refused(&self, failure: &Failure);
    /// What is tried by itself where something cannot be read, at least.
    fn block(&self) -> Sectors;
}

/// Parts of reads of a layer.
struct OfLayer<'a>(&'a dyn Layer);

impl Sum for OfLayer<'_> {
    fn terms(&self, span: Span, without: &[NodeId]) -> Result<Vec<Term>, Errno> {
        self.0.terms(span, without)
    }
    fn refused(&self, failure: &Failure) {
        self.0.cure(failure);
    }
    fn block(&self) -> Sectors {
        Sectors(u64::from(self.0.limits().logical_block_size) / SECTOR)
    }
}

/// What was read of a term.
struct Read {
    factor: Gf256,
    data: Segment,
}

/// Computes `span` of a read of `layer` into `data`; of what too much is missing, and why: of the first such block, or of all, if
/// `goes_on` says so then. The others are worth trying only where somebody has another copy of that one: each try of a disk that fails
/// may take seconds.
pub(crate) async fn compute_read(
    layer: &dyn Layer,
    span: Span,
    data: &[Segment],
    goes_on: &dyn Fn() -> bool,
    cx: &TaskContext,
) -> Vec<(Span, Errno)> {
    let _held = match layer.hold_terms(span) {
        Some(holding) => Some(holding.await),
        None => None,
    };
    compute_pieces(&OfLayer(layer), span, data, goes_on, cx).await
}

/// Computes `span` into `data`, which is as long.
///
/// # Errors
/// Too much is missing of a block, or refused.
pub async fn compute(sum: &dyn Sum, span: Span, data: &[Segment], cx: &TaskContext) -> Result<(), Errno> {
    compute_pieces(sum, span, data, &|| false, cx).await.first().map_or(Ok(()), |(_, errno)| Err(*errno))
}

/// Computes `span` into `data`, which is as long; what cannot be, in ranges of whole blocks.
async fn compute_pieces(
    sum: &dyn Sum,
    span: Span,
    data: &[Segment],
    goes_on: &dyn Fn() -> bool,
    cx: &TaskContext,
) -> Vec<(Span, Errno)> {
    let block = sum.block().max(Sectors(BLOCK_MIN));
    let mut refused: Vec<(Span, Errno)> = Vec::new();
    for step in pieces(span, STEP) {
        if let Ok(Ok(read)) = read(sum, step, &[], cx).await {
            add_up(&read, &part(data, span, step));
            continue;
        }
        // Also where too much is missing of the whole: it may not be in one place.
        for block in pieces(step, block) {
            let Err(errno) = compute_block(sum, block, part(data, span, block), cx).await else { continue };
            match refused.last_mut() {
                Some((last, of)) if last.end() == block.sector && *of == errno => last.nr += block.nr,
                _ => refused.push((block, errno)),
            }
            if !goes_on() {
                return refused;
            }
        }
    }
    refused
}

/// Computes a block without whatever refuses it.
async fn compute_block(sum: &dyn Sum, block: Span, data: Segments, cx: &TaskContext) -> Result<(), Errno> {
    let mut without = Vec::new();
    loop {
        match read(sum, block, &without, cx).await? {
            Ok(read) => {
                add_up(&read, &data);
                return Ok(());
            }
            Err(failures) => {
                for failure in failures {
                    sum.refused(&failure);
                    without.push(failure.below);
                }
            }
        }
    }
}

/// The terms of a piece; or those that cannot be read.
async fn read(
    sum: &dyn Sum,
    piece: Span,
    without: &[NodeId],
    cx: &TaskContext,
) -> Result<Result<Vec<Read>, Vec<Failure>>, Errno> {
    let terms = sum.terms(piece, without)?;
    debug_assert!(terms.iter().all(|term| !without.contains(&term.below.node())), "nobody is asked twice");
    let bytes = piece.nr.byte_len();
    let under_way: Vec<_> = terms
        .into_iter()
        .map(|Term { below, sector, factor }| {
            let memory = Segment::new(cx.pool().get(bytes), 0, bytes);
            let data = Segments::from_iter([memory.clone()]);
            let bio = Bio { op: Op::Read, flags: Flags::NONE, sector, nr: piece.nr, data };
            let span = Span { op: Op::Read, flags: Flags::NONE, sector, nr: piece.nr, at: Sectors::ZERO };
            (below.node(), span, Read { factor, data: memory }, cx.start_bio(&below, bio))
        })
        .collect();
    let (mut found, mut failures) = (Vec::with_capacity(under_way.len()), Vec::new());
    for (below, span, read, reply) in under_way {
        match reply.await.0 {
            Ok(()) => found.push(read),
            Err(errno) => failures.push(Failure { op: Op::Read, below, span, errno }),
        }
    }
    Ok(if failures.is_empty() { Ok(found) } else { Err(failures) })
}

/// The sum of what was read goes to `data`, which is as long as each term; by the memory of the first, which is needed no more.
fn add_up(read: &[Read], data: &[Segment]) {
    let first = &read.first().expect("a sum has terms").data;
    let terms: Vec<_> = read.iter().map(|Read { factor, data }| (*factor, data)).collect();
    add_times(&terms, first);
    copy_between(std::slice::from_ref(first), data);
}

/// Adds up: each of these times that, byte by byte, into `sum`, which is as long and may be one of them.
pub fn add_times(terms: &[(Gf256, &Segment)], sum: &Segment) {
    let mut powers: Vec<(usize, &Segment)> =
        terms.iter().filter_map(|(factor, segment)| Some((factor.exponent()?, *segment))).collect();
    powers.sort_by_key(|(exponent, _)| std::cmp::Reverse(*exponent));
    // The second parity of a row is of powers that follow each other: from the highest on, all before it is doubled once for each.
    let in_turn = powers.first().is_some_and(|(highest, _)| *highest <= 2 * powers.len());
    let most = SUM_BYTES.min(sum.len());
    let (mut all, mut term) = (vec![0; most], vec![0; most]);
    for from in (0..sum.len()).step_by(SUM_BYTES) {
        let bytes = SUM_BYTES.min(sum.len() - from);
        let (all, term) = (&mut all[..bytes], &mut term[..bytes]);
        all.fill(0);
        let mut reached = powers.first().map_or(0, |(highest, _)| *highest);
        for (exponent, segment) in &powers {
            segment.read_at(from, term);
            if in_turn {
                (*exponent..reached).for_each(|_| double(all));
                reached = *exponent;
                add(term, all);
            } else {
                Gf256::power_of_two(*exponent).add_times(term, all);
            }
        }
        if in_turn {
            (0..reached).for_each(|_| double(all));
        }
        sum.write_at(from, all);
    }
}

/// A span in pieces of so many sectors.
fn pieces(span: Span, step: Sectors) -> impl Iterator<Item = Span> {
    let starts = (0..span.nr.0).step_by(usize::try_from(step.0).expect("a step is small"));
    starts.map(move |skip| span.piece(Sectors(skip), step.min(span.nr - Sectors(skip))))
}

/// The memory of a piece of `span`, whose memory is `data`.
fn part(data: &[Segment], span: Span, piece: Span) -> Segments {
    let mut out = Segments::new();
    slice_segments(data, (piece.at - span.at).byte_len(), piece.nr.byte_len(), &mut out);
    out
}
