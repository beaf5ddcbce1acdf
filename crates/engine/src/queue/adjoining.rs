//! Whether extents of a batch adjoin each other, for some fifteen instructions each.
//!
//! Sorting a batch, and trying to merge each of its pieces, pays where something merges. Where nothing does, as in random I/O, it
//! would be a quarter of all that the engine does. So the end of each extent is marked in a small table as it is plugged,
//! and the starts are looked up when the batch is complete. A mark may be another's, so what is found is looked at closely.
//!
//! Invariant: extents that adjoin are found, in whatever order they came.

use super::Plugged;
use crate::units::{Sector, Sectors};

/// Places in the table: with a batch of 32, one start in 128 finds a mark that is not meant for it.
const PLACES: usize = 1 << 12;

/// Where the extents of the batch that is being plugged end.
#[derive(Debug)]
pub(super) struct Ends {
    /// By place: the number of the batch that has an end there.
    marks: Box<[u8; PLACES]>,
    batch: u8,
}

impl Default for Ends {
    fn default() -> Ends {
        Ends { marks: Box::new([0; PLACES]), batch: 1 }
    }
}

impl Ends {
    /// An extent that ends there is plugged.
    #[inline]
    pub(super) fn mark(&mut self, end: Sector) {
        self.marks[place(end)] = self.batch;
    }

    /// Whether an extent of the batch, all of whose ends are marked, begins where another one of its kind ends.
    #[inline]
    pub(super) fn adjoin(&self, batch: &[Plugged]) -> bool {
        batch
            .iter()
            .any(|extent| self.marks[place(extent.span.sector)] == self.batch && ends_at(batch, extent))
    }

    /// Forgets all marks.
    #[inline]
    pub(super) fn start_batch(&mut self) {
        self.batch = self.batch.wrapping_add(1);
        if self.batch == 0 {
            self.marks.fill(0);
            self.batch = 1;
        }
    }
}

#[inline]
fn place(sector: Sector) -> usize {
    // Sectors of large devices differ in their low bits too. The multiplier is 2^32 by the golden ratio: it spreads neighbours.
    ((sector.0 as u32).wrapping_mul(0x9e37_79b1) >> (32 - PLACES.ilog2())) as usize
}

/// Whether something of the batch ends where `next`, which is no flush, begins.
#[cold]
fn ends_at(batch: &[Plugged], next: &Plugged) -> bool {
    let next = next.span;
    next.nr > Sectors::ZERO
        && batch.iter().any(|extent| extent.span.end() == next.sector && extent.span.op == next.op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::{Flags, Op};
    use crate::layer::Span;

    fn adjoin(ends: &mut Ends, extents: &[(Op, u64, u64)]) -> bool {
        let batch = extents.iter().map(|&(op, sector, nr)| {
            let (sector, nr) = (Sector(sector), Sectors(nr));
            Plugged { bio: 0, span: Span { op, flags: Flags::NONE, sector, nr, at: Sectors::ZERO } }
        });
        let batch: Vec<_> = batch.collect();
        batch.iter().for_each(|extent| ends.mark(extent.span.end()));
        let adjoin = ends.adjoin(&batch);
        ends.start_batch();
        adjoin
    }

    #[test]
    fn neighbours_are_found_in_any_order_and_only_in_their_own_batch() {
        let mut ends = Ends::default();
        assert!(adjoin(&mut ends, &[(Op::Read, 0, 8), (Op::Read, 64, 8), (Op::Read, 8, 8)]));
        assert!(adjoin(&mut ends, &[(Op::Read, 1 << 40, 8), (Op::Read, (1 << 40) - 3, 3)]));
        assert!(!adjoin(
            &mut ends,
            &[(Op::Read, 0, 8), (Op::Write, 8, 8), (Op::Read, 9, 8), (Op::Read, 0, 8)]
        ));
        assert!(!adjoin(&mut ends, &[(Op::Flush, 0, 0), (Op::Read, 0, 8), (Op::Flush, 0, 0)]));
        for batch in 0..1000 {
            assert!(!adjoin(&mut ends, &[(Op::Read, batch * 8, 8)]), "batch {batch}");
        }
    }

    #[test]
    fn what_shares_a_place_in_the_table_adjoins_only_if_it_does() {
        let mut ends = Ends::default();
        let twin = (17..).find(|&sector| place(Sector(sector)) == place(Sector(16))).unwrap();
        assert!(!adjoin(&mut ends, &[(Op::Read, 8, 8), (Op::Read, twin, 8)]));
        assert!(adjoin(&mut ends, &[(Op::Read, 8, 8), (Op::Read, twin, 8), (Op::Read, 16, 8)]));
    }
}
