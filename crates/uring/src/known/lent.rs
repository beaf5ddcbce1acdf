//! Mappings that others have lent the kernel: by which of their pieces operations may go, and which of these it knows.
//!
//! A mapping is found by its address in memory, which no other one has while it is in the list: the list holds it until the kernel has forgotten all of
//! its pieces. So no number that could be given anew says which memory is meant, and a mapping that comes later, for the same addresses of the same guest
//! or of another one, is not in the list before it was lent itself.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blockwork_memory::{InPiece, Mapping, Segment};

/// What stands for an index of the kernel's: it was not told of the piece.
const UNTOLD: u16 = u16::MAX;
/// Nor will it be: it has refused this one.
const REFUSED: u16 = u16::MAX - 1;

/// A mapping, and the kernel's indices of its pieces.
struct Lent {
    mapping: Arc<Mapping>,
    /// Who has lent it and not taken it back. None: the kernel is to forget it.
    lenders: u32,
    indices: Box<[u16]>,
    /// Where it is counted what the kernel holds of it, bytes.
    locked: Arc<AtomicU64>,
}

/// All of them, in the order of their addresses.
#[derive(Default)]
pub(super) struct LentMappings {
    all: Vec<Lent>,
    /// The one that was found last.
    last: Cell<usize>,
    /// How many the kernel is to forget.
    leaving: usize,
}

/// A piece that the kernel can be told of, or is to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which of all.
    lent: usize,
    piece: usize,
}

/// Lets go of mappings. Where nobody else has them any more they are unmapped, for which a worker has no time: it takes milliseconds for each GiB.
fn unmap(mappings: Vec<Arc<Mapping>>) {
    if !mappings.is_empty() {
        // Without a thread it is done here.
        let _ = std::thread::Builder::new().name("unmap".into()).spawn(move || drop(mappings));
    }
}

impl LentMappings {
    /// One is lent, once more perhaps.
    pub fn lend(&mut self, mapping: &Arc<Mapping>, locked: &Arc<AtomicU64>) {
        match self.place(mapping) {
            Ok(at) => {
                let lent = &mut self.all[at];
                self.leaving -= usize::from(lent.lenders == 0);
                lent.lenders += 1;
            }
            Err(at) => {
                let indices = vec![UNTOLD; mapping.pieces()].into();
                let (mapping, locked) = (mapping.clone(), locked.clone());
                self.all.insert(at, Lent { mapping, lenders: 1, indices, locked });
            }
        }
    }

    /// One who has lent it takes it back.
    pub fn take_back(&mut self, mapping: &Arc<Mapping>) {
        let Ok(at) = self.place(mapping) else { return };
        let lent = &mut self.all[at];
        if lent.lenders > 0 {
            lent.lenders -= 1;
            self.leaving += usize::from(lent.lenders == 0);
        }
    }

    fn place(&self, mapping: &Arc<Mapping>) -> Result<usize, usize> {
        self.all.binary_search_by_key(&Arc::as_ptr(mapping), |lent| Arc::as_ptr(&lent.mapping))
    }

    #[inline]
    fn find(&self, memory: &Segment) -> Option<Piece> {
        if self.all.is_empty() {
            return None;
        }
        let InPiece { mapping, piece } = memory.in_piece()?;
        let last = self.last.get();
        let at = match self.all.get(last) {
            Some(lent) if Arc::ptr_eq(&lent.mapping, mapping) => last,
            _ => self.place(mapping).ok().inspect(|at| self.last.set(*at))?,
        };
        (self.all[at].lenders > 0).then_some(Piece { lent: at, piece })
    }

    /// The kernel's index of the piece that this memory lies in, if it knows that, and may be asked for it.
    #[inline]
    pub fn index(&self, memory: &Segment) -> Option<u16> {
        let Piece { lent, piece } = self.find(memory)?;
        Some(self.all[lent].indices[piece]).filter(|index| *index < REFUSED)
    }

    /// The piece that this memory lies in, if the kernel can be told of it now.
    pub fn untold(&self, memory: &Segment) -> Option<Piece> {
        let found = self.find(memory)?;
        let lent = &self.all[found.lent];
        let can_be = lent.indices[found.piece] == UNTOLD && lent.mapping.is_brought(found.piece);
        (can_be && !lent.mapping.is_torn()).then_some(found)
    }

    /// Where a piece lies.
    pub fn memory(&self, piece: Piece) -> (*mut u8, usize) {
        self.all[piece.lent].mapping.piece(piece.piece)
    }

    /// The kernel knows a piece by that index.
    pub fn told(&mut self, piece: Piece, index: u16) {
        let bytes = self.memory(piece).1 as u64;
        let lent = &mut self.all[piece.lent];
        lent.indices[piece.piece] = index;
        lent.locked.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The kernel has refused a piece for what it is.
    pub fn refused(&mut self, piece: Piece) {
        self.all[piece.lent].indices[piece.piece] = REFUSED;
    }

    /// Whether there is anything that the kernel is to forget.
    #[inline]
    pub fn are_leaving(&self) -> bool {
        self.leaving > 0
    }

    /// A piece that the kernel is to forget, and its index there, of a mapping by which nothing is under way. Mappings of which it knows no piece any
    /// more are let go.
    pub fn next_to_forget(&mut self, is_under_way: impl Fn(&Arc<Mapping>) -> bool) -> Option<(Piece, u16)> {
        if self.leaving == 0 {
            return None;
        }
        let is_known = |index: &u16| *index < REFUSED;
        let is_over = |lent: &mut Lent| lent.lenders == 0 && !lent.indices.iter().any(is_known);
        unmap(self.all.extract_if(.., is_over).map(|lent| lent.mapping).collect());
        self.leaving = self.all.iter().filter(|lent| lent.lenders == 0).count();
        let mut those = self.all.iter().enumerate().filter(|(_, lent)| lent.lenders == 0);
        let (at, lent) = those.find(|(_, lent)| !is_under_way(&lent.mapping))?;
        let piece = lent.indices.iter().position(is_known)?;
        Some((Piece { lent: at, piece }, lent.indices[piece]))
    }

    /// It has forgotten it.
    pub fn forgotten(&mut self, piece: Piece) {
        let bytes = self.memory(piece).1 as u64;
        let lent = &mut self.all[piece.lent];
        lent.indices[piece.piece] = UNTOLD;
        lent.locked.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The kernel has not forgotten a piece as it was told to: what it lies in stays where it is for good.
    pub fn keep(&mut self, piece: Piece) {
        std::mem::forget(self.all[piece.lent].mapping.clone());
        self.forgotten(piece);
    }

    /// Bytes that the kernel knows.
    pub fn bytes(&self) -> usize {
        let of = |lent: &Lent| {
            let known = (0..lent.indices.len()).filter(|piece| lent.indices[*piece] < REFUSED);
            known.map(|piece| lent.mapping.piece(piece).1).sum::<usize>()
        };
        self.all.iter().map(of).sum()
    }

    /// The kernel has forgotten all of them.
    pub fn clear(&mut self) {
        let known = |lent: &Lent, piece: &usize| lent.indices[*piece] < REFUSED;
        for lent in self.all.drain(..) {
            for piece in (0..lent.indices.len()).filter(|piece| known(&lent, piece)) {
                lent.locked.fetch_sub(lent.mapping.piece(piece).1 as u64, Ordering::Relaxed);
            }
        }
        self.leaving = 0;
    }
}
