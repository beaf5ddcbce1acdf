//! Comparing the copies of a window, and making them the same.
//!
//! No write is under way in the window. Differences are counted as Linux counts them: a unit of 64 KiB of the array (or what a
//! chunk's end leaves of it) in which any two copies differ counts with all its sectors. A repair writes the copy that clients
//! read where mirrors may differ over those that differ from it, and over those that cannot be read.

use blockwork_engine::{Errno, Sector, Sectors, TaskContext};
use blockwork_memory::Segment;
use smallvec::SmallVec;

use super::array::Array;
use super::io;
use super::mend::Unread;
use super::sync_copy::{Copy, PIECE};
use super::sync_pass::{End, Window};

/// What a difference is counted in, sectors.
pub(super) const UNIT: u64 = 128;

/// The copies of one piece of the array.
struct Piece {
    sector: Sector,
    nr: Sectors,
    /// Those that can be read, in the order in which reads choose them.
    copies: SmallVec<[Copy; 4]>,
    /// Those of devices that take part, but cannot be read there.
    unreadable: SmallVec<[Copy; 4]>,
}

impl Array {
    /// Compares a window of the array.
    pub(super) async fn compare(&self, window: Window, repair: bool, cx: &TaskContext) -> Result<(), End> {
        let pieces = self.pieces_of(window);
        let copies = pieces.iter().flat_map(|piece| piece.copies.iter().map(|copy| (*copy, piece.nr)));
        let trust = self.trust();
        let reads = copies.map(|(copy, nr)| self.read_copy(copy, nr, cx));
        let mut read = io::together(reads.collect()).await.into_iter();
        let mut writes = Vec::new();
        for piece in &pieces {
            let results: SmallVec<[_; 4]> = piece.copies.iter().copied().zip(read.by_ref()).collect();
            let good = self.readable_of(piece, results, cx);
            let Some((_, first)) = good.first() else { continue };
            let mut differ = piece.unreadable.clone();
            let mut mismatches = Differing::none(piece.sector, piece.nr, UNIT);
            // What is behind the end of an uneven array, in its last block, may differ.
            let ours = |data: &Segment| data.slice(0, piece.nr.byte_len());
            for (copy, data) in &good[1..] {
                if mismatches.add(&ours(first), &ours(data)) {
                    differ.push(*copy);
                }
            }
            self.sync.state().status.mismatches += mismatches.sectors();
            if repair {
                writes.extend(differ.into_iter().map(|copy| (copy, piece.nr, first.clone())));
            }
        }
        self.check_trust(trust)?;
        self.write_copies(writes, cx).await.map_err(End::Failed)
    }

    fn pieces_of(&self, window: Window) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut sector = Sector(window.start);
        while sector.0 < window.end {
            let nr = self.geometry().room(sector).min(Sectors(window.end - sector.0)).min(PIECE);
            let piece = self.piece_at(sector, nr);
            sector = sector + piece.nr;
            pieces.push(piece);
        }
        pieces
    }

    /// The piece at a sector, of at most `nr`: no copy is bad in a part of it only. So the choice for a sector does not depend on
    /// what lies behind it, as for reads.
    fn piece_at(&self, sector: Sector, nr: Sectors) -> Piece {
        let copies = self.copies_of(sector).into_iter();
        let copies = copies.filter_map(|copy| Some((copy, self.devices.get(copy.device)?)));
        let mut copies: SmallVec<[_; 4]> = copies.collect();
        copies.sort_by_cached_key(|(_, member)| member.last_choice());
        let nr = copies.iter().fold(nr, |nr, (copy, member)| {
            let alike = member.readable(copy.sector, nr).max(member.unreadable(copy.sector, nr));
            // It may have changed between the two; then the whole is looked at again below.
            if alike > Sectors::ZERO { alike } else { nr }
        });
        let mut piece = Piece { sector, nr, copies: SmallVec::new(), unreadable: SmallVec::new() };
        for (copy, member) in copies {
            if member.readable(copy.sector, nr) == nr {
                piece.copies.push(copy);
            } else if member.is_in_sync() {
                piece.unreadable.push(copy);
            }
        }
        piece
    }

    /// The copies that could be read; the others are mended.
    fn readable_of(
        &self,
        piece: &Piece,
        results: SmallVec<[(Copy, Result<Segment, Errno>); 4]>,
        cx: &TaskContext,
    ) -> SmallVec<[(Copy, Segment); 4]> {
        let mut good = SmallVec::new();
        for (copy, result) in results {
            match result {
                Ok(data) => good.push((copy, data)),
                Err(_) if self.note_unreadable(copy.device, copy.sector, piece.nr) == Unread::Noted => {
                    self.start_mending(cx);
                }
                Err(errno) => log::warn!(
                    "{}: {} sectors at {} of the array cannot be read from one of its copies: {errno}",
                    self.name,
                    piece.nr,
                    piece.sector
                ),
            }
        }
        good
    }
}

/// Which units of a piece differ: those that end at multiples of so many sectors, and the last.
pub(super) struct Differing {
    sector: Sector,
    nr: Sectors,
    unit: u64,
    units: SmallVec<[bool; 16]>,
}

impl Differing {
    /// None of the `nr` sectors at `sector`.
    pub(super) fn none(sector: Sector, nr: Sectors, unit: u64) -> Differing {
        let count = (sector.0 + nr.0).div_ceil(unit) - sector.0 / unit;
        let units = SmallVec::from_elem(false, usize::try_from(count).expect("a piece is small"));
        Differing { sector, nr, unit, units }
    }

    /// Where the units end, from the first sector on.
    fn ends(&self) -> impl Iterator<Item = u64> {
        let (start, end, unit) = (self.sector.0, self.sector.0 + self.nr.0, self.unit);
        (start / unit + 1..).map(move |next| (next * unit).min(end) - start).take(self.units.len())
    }

    /// Those as well in which the two differ; whether any does.
    pub(super) fn add(&mut self, one: &Segment, other: &Segment) -> bool {
        let bytes = |segment: &Segment| {
            let mut bytes = vec![0; segment.len()];
            segment.read_at(0, &mut bytes);
            bytes
        };
        let (one, other) = (bytes(one), bytes(other));
        let (mut from, mut any) = (0, false);
        let ends: SmallVec<[u64; 16]> = self.ends().collect();
        for (differs, end) in self.units.iter_mut().zip(ends) {
            let end = Sectors(end).byte_len();
            let is_other = one[from..end] != other[from..end];
            *differs |= is_other;
            any |= is_other;
            from = end;
        }
        any
    }

    /// How much they are.
    pub(super) fn sectors(&self) -> Sectors {
        let mut from = 0;
        let all = self.units.iter().zip(self.ends()).map(|(differs, end)| {
            let nr = end - std::mem::replace(&mut from, end);
            if *differs { nr } else { 0 }
        });
        Sectors(all.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwork_memory::Pool;

    #[test]
    fn units_end_at_multiples_and_count_with_all_their_sectors_of_the_piece() {
        let pool = Pool::new(0);
        let segment = |at: Option<u64>| {
            let segment = Segment::new(pool.get(20 * 512), 0, 20 * 512);
            segment.fill(7);
            if let Some(sector) = at {
                segment.write_at(Sectors(sector).byte_len() + 511, &[8]);
            }
            segment
        };
        // Units of 8 from sector 5 on: 5 to 7, 8 to 15, 16 to 23, and 24 alone.
        for (other, expected) in [(None, 0), (Some(2), 3), (Some(3), 8), (Some(18), 8), (Some(19), 1)] {
            let mut differing = Differing::none(Sector(5), Sectors(20), 8);
            assert_eq!(differing.add(&segment(None), &segment(other)), other.is_some());
            assert_eq!(differing.sectors(), Sectors(expected), "{other:?}");
            assert!(differing.add(&segment(None), &segment(Some(19))));
            let both = if other == Some(19) { 1 } else { expected + 1 };
            assert_eq!(differing.sectors(), Sectors(both), "{other:?} and the last");
        }
    }
}
