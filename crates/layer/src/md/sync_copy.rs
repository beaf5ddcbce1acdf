//! Copying a window: a device is filled from others, or the first copy goes to the others.
//!
//! No write is under way in the window. All of it is read, then all of it is written: so disks stream, and what lies side by
//! side becomes one request. A piece that cannot be read is read block by block, each from whichever copy has it; a bad copy
//! that another one can mend is mended (`mend.rs`). What no copy has goes into the list of bad blocks of the device that is
//! filled, on disk, before that counts as filled.
//!
//! Nothing written here is durable by itself: positions are recorded after a flush.

use std::iter::once;

use blockwork_engine::{Errno, Sector, Sectors, TaskContext};
use blockwork_memory::Segment;
use smallvec::SmallVec;

use super::array::Array;
use super::bad_blocks::{Bad, whole_blocks};
use super::commit::Refusal;
use super::devices::DeviceIndex;
use super::failure::FailedMember;
use super::geometry::{Place, Places};
use super::io;
use super::mend::Unread;
use super::sync_pass::{End, Window};

/// Longest piece, sectors.
pub(super) const PIECE: Sectors = Sectors(1024);

/// Least that is read on its own where a piece cannot be read.
pub(super) const BLOCK: Sectors = Sectors(8);

/// Where a copy is: a device, and a sector of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) device: DeviceIndex,
    pub(super) sector: Sector,
}

/// What is read once, and written to others.
#[derive(Debug)]
struct Piece {
    from: Copy,
    to: SmallVec<[Copy; 2]>,
    nr: Sectors,
}

impl Piece {
    /// Whether the other one lies right behind this one, on all devices.
    fn joins(&self, other: &Piece) -> bool {
        let copies =
            |piece: &Piece| once(piece.from).chain(piece.to.clone()).collect::<SmallVec<[Copy; 4]>>();
        let behind =
            |(one, other): (&Copy, &Copy)| one.device == other.device && one.sector + self.nr == other.sector;
        self.nr + other.nr <= PIECE
            && self.to.len() == other.to.len()
            && copies(self).iter().zip(&copies(other)).all(behind)
    }
}

/// Appends a piece, or makes the last one longer.
fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last) if last.joins(&piece) => last.nr += piece.nr,
        _ => pieces.push(piece),
    }
}

impl Array {
    /// Where `nr` sectors of the array can be read, and how far: the first copy that has the first of them, in the order in
    /// which bios read where mirrors may differ.
    pub(super) fn source(&self, sector: Sector, nr: Sectors, not: &[DeviceIndex]) -> Option<(Copy, Sectors)> {
        let mut places = Places::new();
        self.geometry().places(sector, &mut places);
        let copies = places.iter().filter_map(|place| {
            let device = self.devices.holders(place.member).member().filter(|it| !not.contains(it))?;
            let member = self.devices.get(device)?;
            let readable = member.readable(place.sector, nr);
            let copy = Copy { device, sector: place.sector };
            (readable > Sectors::ZERO).then_some((member.last_choice(), copy, readable))
        });
        copies.min_by_key(|(choice, ..)| *choice).map(|(_, copy, readable)| (copy, readable))
    }

    /// As `source`, and how far one may go on with the same choice: what is copied where mirrors may differ is what clients have
    /// read until then.
    fn steady_source(&self, sector: Sector, nr: Sectors, not: &[DeviceIndex]) -> (Option<Copy>, Sectors) {
        let mut places = Places::new();
        self.geometry().places(sector, &mut places);
        let nr = self.same_choice(&places, nr);
        match self.source(sector, nr, not) {
            Some((copy, readable)) => (Some(copy), readable),
            None => (None, nr.min(BLOCK)),
        }
    }

    /// All copies of a sector that get writes.
    pub(super) fn copies_of(&self, sector: Sector) -> SmallVec<[Copy; 4]> {
        let mut places = Places::new();
        self.geometry().places(sector, &mut places);
        let holders = places.iter().flat_map(|place| {
            let holders = self.devices.holders(place.member);
            [holders.member(), holders.replacement()].map(|device| (device, place.sector))
        });
        let copies = holders.filter_map(|(device, sector)| Some(Copy { device: device?, sector }));
        copies.filter(|copy| self.devices.get(copy.device).is_some_and(|it| !it.is_faulty())).collect()
    }

    /// Fills a window of a device's data.
    pub(super) async fn fill(
        &self,
        device: DeviceIndex,
        role: u16,
        window: Window,
        cx: &TaskContext,
    ) -> Result<(), End> {
        let lost = match self.geometry().as_parity() {
            Some(_) => self.fill_rows(device, role, window, cx).await?,
            None => self.fill_copies(device, role, window, cx).await?,
        };
        if lost.is_empty() { Ok(()) } else { self.remember_lost(device, &lost, cx).await }
    }

    /// Likewise, from mirrors. Gives what no copy has.
    async fn fill_copies(
        &self,
        device: DeviceIndex,
        role: u16,
        window: Window,
        cx: &TaskContext,
    ) -> Result<Vec<(Sector, Sectors)>, End> {
        let by_bitmap = self.devices.get(device).is_some_and(|member| member.is_by_bitmap());
        let mut pieces = Vec::new();
        let mut lost = Vec::new();
        let mut place = Place { member: role, sector: Sector(window.start) };
        while place.sector.0 < window.end {
            let mut nr = self.step(place).min(Sectors(window.end - place.sector.0)).min(PIECE);
            if let Some(sector) = self.geometry().to_array(place)
                && (!by_bitmap || self.lacks(place))
            {
                let to = Copy { device, sector: place.sector };
                let source;
                (source, nr) = self.steady_source(sector, nr, &[device]);
                match source {
                    Some(from) => push(&mut pieces, Piece { from, to: SmallVec::from_iter([to]), nr }),
                    None => lost.push((place.sector, nr)),
                }
            }
            place.sector = place.sector + nr;
        }
        lost.extend(self.copy(pieces, cx).await?.into_iter().map(|(copy, nr)| (copy.sector, nr)));
        Ok(lost)
    }

    /// Copies the first copy of a window of the array to the others, where they may differ.
    pub(super) async fn copy_first(&self, window: Window, cx: &TaskContext) -> Result<(), End> {
        let mut pieces = Vec::new();
        let mut nowhere = Vec::new();
        let mut sector = Sector(window.start);
        while sector.0 < window.end {
            let bit = self.intent().map_or(u64::MAX, |it| it.chunk_sectors() - sector.0 % it.chunk_sectors());
            let room = self.geometry().room(sector).0.min(bit).min(window.end - sector.0);
            let mut nr = Sectors(room).min(PIECE);
            if self.intent().is_none_or(|intent| intent.is_kept(sector, nr)) {
                let source;
                (source, nr) = self.steady_source(sector, nr, &[]);
                if let Some(from) = source {
                    let to: SmallVec<_> = self
                        .copies_of(sector)
                        .into_iter()
                        .filter(|copy| copy.device != from.device)
                        .collect();
                    if !to.is_empty() {
                        push(&mut pieces, Piece { from, to, nr });
                    }
                } else {
                    nowhere.extend(self.copies_of(sector).into_iter().map(|copy| (copy, nr)));
                }
            }
            sector = sector + nr;
        }
        nowhere.extend(self.copy(pieces, cx).await?);
        // What no copy has cannot differ: whoever reads it hears of it. But what is only old can be read once the array is served again.
        let is_stale = |(copy, nr): &(Copy, Sectors)| {
            self.devices.get(copy.device).is_some_and(|it| it.bad.is_stale(copy.sector, *nr))
        };
        match nowhere.into_iter().find(is_stale) {
            Some((copy, _)) => Err(End::Stuck(copy.sector)),
            None => Ok(()),
        }
    }

    /// Reads all pieces, then writes them. Gives what could not be read, by where it should have gone.
    async fn copy(&self, pieces: Vec<Piece>, cx: &TaskContext) -> Result<Vec<(Copy, Sectors)>, End> {
        let trust = self.trust();
        let reads = pieces.iter().map(|piece| self.read_copy(piece.from, piece.nr, cx));
        let read = io::together(reads.collect()).await;
        let (mut writes, mut lost) = (Vec::new(), Vec::new());
        for (piece, data) in pieces.iter().zip(read) {
            match data {
                Ok(data) => writes.extend(piece.to.iter().map(|to| (*to, piece.nr, data.clone()))),
                Err(_) => self.read_blocks(piece, &mut writes, &mut lost, cx).await,
            }
        }
        self.check_trust(trust)?;
        self.write_copies(writes, cx).await.map_err(End::Failed)?;
        Ok(lost)
    }

    /// Reads `nr` sectors, and what else is in the last of the array's blocks where an uneven array ends in its midst: no less of it
    /// can be read, or written elsewhere, and clients' writes have it as a whole, too.
    pub(super) async fn read_copy(
        &self,
        copy: Copy,
        nr: Sectors,
        cx: &TaskContext,
    ) -> Result<Segment, Errno> {
        let member = self.devices.get(copy.device).ok_or(Errno::EIO)?;
        let (start, whole) = whole_blocks(copy.sector, nr, &self.form().shape.limits);
        let nr = Sectors(start.0 + whole.0 - copy.sector.0);
        member.read(copy.sector, nr, cx).await
    }

    /// Writes, not durably. What was bad there is not any more.
    pub(super) async fn write_copies(
        &self,
        writes: Vec<(Copy, Sectors, Segment)>,
        cx: &TaskContext,
    ) -> Result<(), Refusal> {
        let write = |(copy, nr, data): (Copy, Sectors, Segment)| async move {
            let Some(member) = self.devices.get(copy.device).filter(|member| !member.is_faulty()) else {
                return Ok(());
            };
            self.stripe_cache.forget(copy.sector, nr);
            // What leaves the list of bad blocks is durable before.
            let some_bad = member.bad.any();
            let written = member.write(copy.sector, data, some_bad, cx).await;
            written.map_err(|errno| {
                self.distrust_at_once(copy.device, cx);
                self.has_failed(FailedMember { device: copy.device, errno, bad: None, lacks: None });
                (copy.device, errno)
            })?;
            if some_bad {
                let _turn = self.turns.take().await;
                self.was_written_anew(copy.device, copy.sector, nr, cx).await;
                self.choose_freely_again();
            }
            Ok(())
        };
        let results = io::together(writes.into_iter().map(write).collect()).await;
        results.into_iter().collect()
    }

    /// A piece that could not be read as a whole, block by block.
    async fn read_blocks(
        &self,
        piece: &Piece,
        writes: &mut Vec<(Copy, Sectors, Segment)>,
        lost: &mut Vec<(Copy, Sectors)>,
        cx: &TaskContext,
    ) {
        let block = Sectors::from_bytes_ceil(self.form().shape.limits.logical_block_size.into()).max(BLOCK);
        let mut done = Sectors::ZERO;
        while done < piece.nr {
            // A piece may be of several chunks, and begin anywhere.
            let room = self.geometry().chunk_room(piece.from.sector + done);
            let nr = block.min(room).min(piece.nr - done);
            let data = self.read_any(piece, done, nr, cx).await;
            for to in &piece.to {
                let to = Copy { sector: to.sector + done, ..*to };
                match &data {
                    Some(data) => writes.push((to, nr, data.clone())),
                    None => lost.push((to, nr)),
                }
            }
            done += nr;
        }
    }

    /// A block of a piece, `skip` sectors from its start, from whichever copy can be read.
    async fn read_any(&self, piece: &Piece, skip: Sectors, nr: Sectors, cx: &TaskContext) -> Option<Segment> {
        let role = self.devices.role_of(piece.from.device)?;
        let sector = self.geometry().to_array(Place { member: role, sector: piece.from.sector + skip })?;
        let mut tried: SmallVec<[DeviceIndex; 4]> = SmallVec::new();
        // What is being filled, or overwritten, is no source where it has no copy of its own.
        tried.extend(piece.to.iter().map(|to| to.device).filter(|device| !self.is_source(*device)));
        while let Some((copy, readable)) = self.source(sector, nr, &tried) {
            if readable == nr
                && let Ok(data) = self.read_copy(copy, nr, cx).await
            {
                return Some(data);
            }
            if readable == nr && self.note_unreadable(copy.device, copy.sector, nr) == Unread::Noted {
                self.start_mending(cx);
            }
            tried.push(copy.device);
        }
        None
    }

    /// Whether a device holds data of its own.
    fn is_source(&self, device: DeviceIndex) -> bool {
        self.devices.get(device).is_some_and(|member| member.is_in_sync())
    }

    /// No copy of these could be read: they are bad on the device that was filled, and its list says so.
    async fn remember_lost(
        &self,
        device: DeviceIndex,
        lost: &[(Sector, Sectors)],
        cx: &TaskContext,
    ) -> Result<(), End> {
        let _turn = self.turns.take().await;
        let Some(member) = self.devices.get(device) else { return Ok(()) };
        for (sector, nr) in lost {
            let has_list = member.site.as_ref().is_some_and(|(_, site)| site.bad_blocks.is_some());
            if !has_list || !member.bad.add(*sector, *nr, Bad::Listed) {
                return Err(End::Stuck(*sector));
            }
        }
        if let Some((first, _)) = lost.first() {
            let all = lost.iter().fold(Sectors::ZERO, |all, (_, nr)| all + *nr);
            member.lost.say(cx.now(), |more| {
                log::error!(
                    "{}: {all} sectors, the first at {}, of {} have no copy that can be read; they are bad there from now on{more}",
                    self.name,
                    member.at(*first),
                    member.name
                );
            });
        }
        self.choose_with_care();
        self.write_bad_blocks(member, cx).await.map_err(|errno| End::Failed((device, errno)))
    }
}
