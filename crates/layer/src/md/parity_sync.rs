//! Resync, recovery, check and repair of rows with a parity.
//!
//! No write is under way in a window. A resync, check or repair reads all members, computes the parities from the data, and compares; a resync or
//! repair writes those that differ, and what is to replace a member, as far as it is filled: that may lack a write which the member has. A recovery computes what the device is to have, data or parity.
//!
//! Of a row with two parities that lacks one member, the two may tell different things, where the power went in the midst of a write and the parity is
//! taken as it is: when it lacked the member nobody could resync it. The first one is believed, when that member is read as when it is filled; what
//! fits it is written to the other then. Otherwise what others have, and nobody was writing, could not be computed any more.
//!
//! Differences are counted as Linux counts them: 4 KiB of each member in which any parity does not fit count with all their sectors.

use blockwork_engine::{Gf256, Sector, Sectors, TaskContext, add_times};
use blockwork_memory::Segment;

use super::array::Array;
use super::devices::DeviceIndex;
use super::geometry::Place;
use super::io;
use super::mend::Unread;
use super::sync_check::Differing;
use super::sync_copy::{BLOCK, Copy, PIECE};
use super::sync_pass::{End, Window};

/// What a difference is counted in, sectors of a member.
const PAGE: u64 = 8;

/// What is to be done about the parities of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parities {
    /// Those that may not fit are made to.
    Resync,
    /// Differences are counted, and made good if told so.
    Check {
        /// If told so.
        repair: bool,
    },
}

/// What is to be written to a device.
type Write = (Copy, Sectors, Segment);

/// The same sectors of all members of a row.
#[derive(Clone, Copy, Debug)]
struct Piece {
    row: u64,
    at: Sector,
    nr: Sectors,
}

impl Array {
    /// Fills a window of a device's data, which has the role, or is to replace the member that has it.
    pub(super) async fn fill_rows(
        &self,
        device: DeviceIndex,
        role: u16,
        window: Window,
        cx: &TaskContext,
    ) -> Result<Vec<(Sector, Sectors)>, End> {
        let by_bitmap = self.devices.get(device).is_some_and(|member| member.is_by_bitmap());
        let trust = self.trust();
        let pieces = self.pieces_of_rows(window);
        let pieces =
            pieces.filter(|piece| !by_bitmap || self.lacks(Place { member: role, sector: piece.at }));
        let fills = pieces.map(|piece| async move {
            match self.fill_row(role, piece, cx).await {
                Some((data, unfit)) => (Vec::from([(piece.at, piece.nr, Some(data))]), unfit),
                None => (self.fill_piece(device, role, piece, cx).await, Vec::new()),
            }
        });
        let results = io::together(fills.collect()).await;
        self.check_trust(trust)?;
        let (mut writes, mut lost) = (Vec::new(), Vec::new());
        for (filled, unfit) in results {
            for (at, nr, data) in filled {
                match data {
                    Some(data) => writes.push((Copy { device, sector: at }, nr, data)),
                    None => lost.push((at, nr)),
                }
            }
            writes.extend(unfit);
        }
        self.write_copies(writes, cx).await.map_err(End::Failed)?;
        Ok(lost)
    }

    /// Of a piece in which two parities may tell different things: what belongs there, and parities that do not fit that, as they should be. None
    /// where that cannot be, or not all others can be read.
    async fn fill_row(&self, role: u16, piece: Piece, cx: &TaskContext) -> Option<(Segment, Vec<Write>)> {
        let Piece { row, at, nr } = piece;
        let parity = self.geometry().as_parity()?;
        let may_be_torn = self.intent().is_some_and(|intent| intent.is_dirty(at));
        let has_two = parity.parities_of(row).count() > 1;
        if !(has_two && may_be_torn) || self.may_differ(at, nr) || self.is_sure(role, at, nr) {
            return None;
        }
        let others = (0..parity.members()).filter(|other| *other != role);
        let reads = others.map(|other| async move { Some((other, self.read_of(other, piece, cx).await?)) });
        let read = io::together(reads.collect()).await;
        let mut read = read.into_iter().collect::<Option<Vec<(u16, Segment)>>>()?;
        let data = io::memory(cx, nr);
        {
            let of = |member: u16| read.iter().find(|(other, _)| *other == member).map(|(_, data)| data);
            let way = parity.way(row, role, &|member| member == role)?;
            let terms: Option<Vec<_>> =
                way.into_iter().map(|(member, factor)| Some((factor, of(member)?))).collect();
            add_times(&terms?, &data);
        }
        read.push((role, data.clone()));
        let of = |member: u16| read.iter().find(|(other, _)| *other == member).map(|(_, data)| data);
        let mut unfit = Vec::new();
        for (other, weight) in parity.parities_of(row).filter(|(other, _)| *other != role) {
            let terms: Option<Vec<_>> =
                parity.data_of(row).map(|member| Some((weight(member), of(member)?))).collect();
            let sum = io::memory(cx, nr);
            add_times(&terms?, &sum);
            if Differing::none(at, nr, PAGE).add(of(other)?, &sum) {
                let holders = self.devices.holders(other);
                let devices = [holders.member(), holders.replacement()].into_iter().flatten();
                unfit.extend(devices.map(|device| (Copy { device, sector: at }, nr, sum.clone())));
            }
        }
        Some((data, unfit))
    }

    /// What belongs into a piece, as a whole or by blocks; none: it is lost.
    async fn fill_piece(
        &self,
        device: DeviceIndex,
        role: u16,
        Piece { at, nr, .. }: Piece,
        cx: &TaskContext,
    ) -> Vec<(Sector, Sectors, Option<Segment>)> {
        let own = self.devices.get(device).map(|member| member.layer().node());
        let without: Vec<_> = own.into_iter().collect();
        // Where a member is replaced, that is read first.
        if self.is_sure(role, at, nr)
            && let Some(member) = self.member(role).filter(|it| Some(it.layer().node()) != own)
            && let Ok(data) = member.read(at, nr, cx).await
        {
            return Vec::from([(at, nr, Some(data))]);
        }
        if let Ok(data) = self.computed(role, at, nr, &without, cx).await {
            return Vec::from([(at, nr, Some(data))]);
        }
        let block = self.block().max(BLOCK);
        let mut blocks = Vec::new();
        let mut done = Sectors::ZERO;
        while done < nr {
            let step = block.min(nr - done);
            let data = self.computed(role, at + done, step, &without, cx).await.ok();
            blocks.push((at + done, step, data));
            done += step;
        }
        blocks
    }

    /// The pieces of a window, each in one row and, where there is a bitmap, one of its bits.
    fn pieces_of_rows(&self, window: Window) -> impl Iterator<Item = Piece> {
        let parity = self.geometry().as_parity().expect("only rows with a parity are resynced like this");
        let bit = self.intent().map_or(u64::MAX, |intent| intent.chunk_sectors());
        let mut at = window.start;
        std::iter::from_fn(move || {
            let left = Some(window.end.saturating_sub(at)).filter(|left| *left > 0)?;
            let room = self.geometry().sync_room(Sector(at)).0;
            let nr = left.min(room).min(bit - at % bit).min(PIECE.0);
            let piece = Piece { row: parity.row(Sector(at)), at: Sector(at), nr: Sectors(nr) };
            at += nr;
            Some(piece)
        })
    }

    /// Makes the parities of a window fit the data, or looks whether they do.
    pub(super) async fn sync_rows(
        &self,
        window: Window,
        what: Parities,
        cx: &TaskContext,
    ) -> Result<(), End> {
        let pieces: Vec<_> = self
            .pieces_of_rows(window)
            .filter(|piece| what != Parities::Resync || self.may_differ(piece.at, piece.nr))
            .collect();
        let trust = self.trust();
        let results = io::together(pieces.iter().map(|piece| self.compare_row(*piece, cx)).collect()).await;
        self.check_trust(trust)?;
        let mut writes = Vec::new();
        for (piece, compared) in pieces.iter().zip(results) {
            let Some(Compared { differing, to_write }) = compared else {
                if what == Parities::Resync {
                    self.stays_unsynced(piece);
                }
                continue;
            };
            if let Parities::Check { .. } = what {
                self.sync.state().status.mismatches += differing;
            }
            if what != (Parities::Check { repair: false }) {
                writes.extend(to_write.into_iter().map(|(copy, data)| (copy, piece.nr, data)));
            }
        }
        self.write_copies(writes, cx).await.map_err(End::Failed)
    }

    /// Where data cannot be read, nobody knows what parities would fit: the others are resynced, and this is left as it is.
    fn stays_unsynced(&self, piece: &Piece) {
        self.note_difference(piece.at, piece.nr);
        let mut state = self.sync.state();
        state.unsynced = Some(state.unsynced.map_or(piece.at, |known| known.min(piece.at)));
    }

    /// Reads a piece of all members; none: the data are not all there.
    async fn compare_row(&self, piece: Piece, cx: &TaskContext) -> Option<Compared> {
        let parity = self.geometry().as_parity()?;
        let data: Vec<u16> = parity.data_of(piece.row).collect();
        let weights: Vec<_> = parity.parities_of(piece.row).collect();
        let roles = data.iter().copied().chain(weights.iter().map(|(role, _)| *role));
        let reads = roles.map(|role| self.read_of(role, piece, cx));
        let mut read = io::together(reads.collect()).await.into_iter();
        let data: Option<Vec<(u16, Segment)>> =
            data.into_iter().map(|role| Some((role, read.next()??))).collect();
        let data = data?;
        let mut pages = Differing::none(piece.at, piece.nr, PAGE);
        let copies = data.iter().filter_map(|(role, data)| Some((self.filled(*role, piece)?, data.clone())));
        let mut to_write: Vec<_> = copies.collect();
        for ((role, weight), found) in weights.into_iter().zip(read) {
            let sum = io::memory(cx, piece.nr);
            let terms: Vec<(Gf256, &Segment)> =
                data.iter().map(|(role, data)| (weight(*role), data)).collect();
            add_times(&terms, &sum);
            let is_same = found.is_some_and(|found| !pages.add(&found, &sum));
            if !is_same {
                let holders = self.devices.holders(role);
                let devices = [holders.member(), holders.replacement()].into_iter().flatten();
                to_write.extend(devices.map(|device| (Copy { device, sector: piece.at }, sum.clone())));
            } else {
                to_write.extend(self.filled(role, piece).map(|copy| (copy, sum.clone())));
            }
        }
        Some(Compared { differing: pages.sectors(), to_write })
    }

    /// Where a piece is on the device that is to replace a member, if it has been filled that far.
    fn filled(&self, role: u16, piece: Piece) -> Option<Copy> {
        let device = self.devices.holders(role).replacement()?;
        let end = self.devices.get(device).filter(|it| !it.is_faulty())?.recovered();
        end.is_none_or(|end| end > piece.at).then_some(Copy { device, sector: piece.at })
    }

    /// What a member has of a piece; one that refuses it is mended.
    async fn read_of(&self, role: u16, piece: Piece, cx: &TaskContext) -> Option<Segment> {
        let member = self.member(role).filter(|_| self.is_sure(role, piece.at, piece.nr))?;
        match member.read(piece.at, piece.nr, cx).await {
            Ok(data) => Some(data),
            Err(errno) => {
                if self.note_refusal(role, piece.at, piece.nr, cx) != Unread::Noted {
                    log::warn!(
                        "{}: {} sectors at {} of the data of member {role} cannot be read: {errno}",
                        self.name,
                        piece.nr,
                        piece.at
                    );
                }
                None
            }
        }
    }
}

/// What has come of comparing the parities of a piece with its data.
struct Compared {
    /// Of a member, in whole pages.
    differing: Sectors,
    /// Parities that do not fit, or cannot be read, as they should be; and what replacements are to have.
    to_write: Vec<(Copy, Segment)>,
}
