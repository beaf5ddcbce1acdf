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
            let mut mismatches = SmallVec::<[bool; 16]>::new();
            // What is behind the end of an uneven array, in its last block, may differ.
            let ours = |data: &Segment| data.slice(0, piece.nr.byte_len());
            for (copy, data) in &good[1..] {
                let units = differences(piece.sector, &ours(first), &ours(data));
                if units.contains(&true) {
                    differ.push(*copy);
                }
                mismatches.resize(units.len(), false);
                mismatches.iter_mut().zip(units).for_each(|(any, differs)| *any |= differs);
            }
            self.count_mismatches(piece, &mismatches);
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

    fn count_mismatches(&self, piece: &Piece, units: &[bool]) {
        let end = piece.sector.0 + piece.nr.0;
        let mut at = piece.sector.0;
        let mut sum = 0;
        for differs in units {
            let next = (at + 1).next_multiple_of(UNIT).min(end);
            sum += if *differs { next - at } else { 0 };
            at = next;
        }
        if sum > 0 {
            self.sync.state().status.mismatches += Sectors(sum);
        }
    }
}

/// Which units of a piece at `sector` differ.
fn differences(sector: Sector, one: &Segment, other: &Segment) -> SmallVec<[bool; 16]> {
    let bytes = |segment: &Segment| {
        let mut bytes = vec![0; segment.len()];
        segment.read_at(0, &mut bytes);
        bytes
    };
    let (one, other) = (bytes(one), bytes(other));
    let mut out = SmallVec::new();
    let mut at = 0;
    while at < one.len() {
        let here = sector.0 + at as u64 / 512;
        let next = at + ((here + 1).next_multiple_of(UNIT) - here) as usize * 512;
        let next = next.min(one.len());
        out.push(one[at..next] != other[at..next]);
        at = next;
    }
    out
}
