//! A device of an array while it is served: whether it may be read and written, and where it cannot be read.
//!
//! What changes is in atomics: who resolves a bio takes no lock. `recovered` and what superblocks may say of it are apart: data
//! is readable as soon as it was copied, and is on record once the device has flushed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use blockwork_engine::{Complaint, Errno, Layer, NodeId, Sector, Sectors, TaskContext};
use blockwork_memory::{Segment, copy_between};

use super::bad_blocks::BadBlocks;
use super::io;
use super::record::{Site, SiteState, Standing};
use crate::current::Current;

/// `recovered`: all of it.
const ALL: u64 = u64::MAX;

/// A member of an array that is there.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// What people call it.
    pub name: String,
    /// The whole device: an array's member, a leg's data volume.
    pub layer: Arc<dyn Layer>,
    /// Where the data starts on it.
    pub data_start: Sector,
    /// In sync only below it (from the start of the data); none: all of it.
    pub recovered: Option<Sector>,
    /// Reads avoid it.
    pub write_mostly: bool,
    /// Ranges that must be read from another copy, from the start of the data.
    pub bad: Vec<(Sector, Sectors)>,
}

/// A device of an array that is served: a member, one that takes a member's place, or a spare.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    layer: Current<Arc<dyn Layer>>,
    pub(super) data_start: Sector,
    pub(super) write_mostly: bool,
    /// Where it is written about, and its number in the record.
    pub(super) site: Option<(usize, Site)>,
    pub(super) bad: BadBlocks,
    recovered: AtomicU64,
    /// As `recovered`, as far as it is durable.
    recorded: AtomicU64,
    /// While it is recovered: it lacks only what the bitmap has.
    by_bitmap: AtomicBool,
    /// It takes the place of a member that is still there.
    replacement: AtomicBool,
    /// A flush failed, or a write that had to be durable: what it has lost since the last one, nobody knows. It is about to be
    /// given up, for which somebody has to wait for the array's turn; until then it is the last to be read.
    distrusted: AtomicBool,
    /// A flush of it has failed: what it has may be old, also where it has to be read all the same.
    has_lost: AtomicBool,
    /// It has failed, and cannot be given up for what others list as bad.
    has_to_stay: AtomicBool,
    /// It has refused a write, and its list of bad blocks says so: a spare is to take its place, while it still serves.
    wants_replacement: AtomicBool,
    /// It takes part no more. Set once, under the array's turn.
    faulty: AtomicBool,
    /// It belongs to the array no more; it was faulty or a spare before.
    removed: AtomicBool,
    /// Sectors that could not be read and were mended since the array was opened.
    corrected: AtomicU32,
    /// Of what it could not write, as often as clients try.
    pub(super) unwritable: Complaint,
    /// Of parities of it that may not fit, as often as clients' writes fail.
    pub(super) unfit: Complaint,
    /// Of what nobody has that it was to be filled with, block by block.
    pub(super) lost: Complaint,
    /// Of bitmaps, superblocks and flushes that it refuses, as often as clients try.
    pub(super) refusals: Complaint,
    /// Of what it has failed in, and stays all the same.
    pub(super) stays: Complaint,
}

impl Member {
    pub(super) fn new(config: MemberConfig, site: Option<(usize, Site)>) -> Member {
        let MemberConfig { name, layer, data_start, recovered, write_mostly, bad } = config;
        let recovered = recovered.map_or(ALL, |end| end.0);
        let is = |what: fn(&Site) -> bool| AtomicBool::new(site.as_ref().is_some_and(|(_, site)| what(site)));
        Member {
            name,
            layer: Current::new(layer),
            data_start,
            write_mostly,
            bad: BadBlocks::listed(&bad),
            recovered: AtomicU64::new(recovered),
            recorded: AtomicU64::new(recovered),
            by_bitmap: is(|site| site.by_bitmap),
            replacement: is(|site| site.replacement),
            distrusted: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            has_to_stay: AtomicBool::new(false),
            wants_replacement: AtomicBool::new(false),
            faulty: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            corrected: AtomicU32::new(0),
            unwritable: Complaint::default(),
            unfit: Complaint::default(),
            lost: Complaint::default(),
            refusals: Complaint::default(),
            stays: Complaint::default(),
            site,
        }
    }

    /// The whole device.
    #[inline]
    pub(super) fn layer(&self) -> &Arc<dyn Layer> {
        self.layer.get()
    }

    /// Whether that is its device, or was before it has grown: a read that was on its way to it then may fail there still.
    pub(super) fn is_on(&self, node: NodeId) -> bool {
        self.layer.all().any(|layer| layer.node() == node)
    }

    /// The device has grown, and is another layer: the old one, and more. Under the array's turn. False: that was too often.
    pub(super) fn grow(&self, layer: Arc<dyn Layer>) -> bool {
        self.layer.replace(layer)
    }

    /// Whether the device can grow once more.
    pub(super) fn can_grow(&self) -> bool {
        self.layer.has_room()
    }

    /// Whether it has failed (acquire: whoever sees it sees also that the array's gate was closed before).
    #[inline]
    pub(super) fn is_faulty(&self) -> bool {
        self.faulty.load(Ordering::Acquire)
    }

    pub(super) fn fail(&self) {
        self.faulty.store(true, Ordering::Release);
    }

    /// As in Linux, where who has refused one write is thought to refuse more of them.
    pub(super) fn wants_replacement(&self) -> bool {
        self.wants_replacement.load(Ordering::Acquire)
    }

    pub(super) fn ask_for_replacement(&self) {
        self.wants_replacement.store(true, Ordering::Release);
    }

    pub(super) fn is_distrusted(&self) -> bool {
        self.distrusted.load(Ordering::Acquire)
    }

    /// That it may have lost something, or that it has to stay all the same; what it was before.
    pub(super) fn set_distrusted(&self, is: bool) -> bool {
        self.distrusted.swap(is, Ordering::AcqRel)
    }

    pub(super) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Acquire)
    }

    pub(super) fn lose(&self) {
        self.has_lost.store(true, Ordering::Release);
    }

    pub(super) fn has_to_stay(&self) -> bool {
        self.has_to_stay.load(Ordering::Acquire)
    }

    pub(super) fn stay(&self) {
        self.has_to_stay.store(true, Ordering::Release);
    }

    /// Its turn among the copies that can be read: the lowest is read first.
    pub(super) fn last_choice(&self) -> u8 {
        if self.is_distrusted() { 2 } else { u8::from(self.write_mostly) }
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(super) fn remove(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// Up to where it holds its data; none: all of it.
    #[inline]
    pub(super) fn recovered(&self) -> Option<Sector> {
        Some(Sector(self.recovered.load(Ordering::Acquire))).filter(|end| end.0 != ALL)
    }

    /// Whether it holds all of its data.
    #[inline]
    pub(super) fn is_in_sync(&self) -> bool {
        !self.is_faulty() && self.recovered().is_none()
    }

    /// Whether it holds all of its data, and its superblock says so, or is the first one that is about to: what the others hold is
    /// not needed for it any more.
    pub(super) fn is_complete(&self) -> bool {
        !self.is_faulty() && self.recorded.load(Ordering::Acquire) == ALL
    }

    /// It is to be filled from its start.
    pub(super) fn begin_recovery(&self, replacement: bool) {
        self.replacement.store(replacement, Ordering::Release);
        self.recovered.store(0, Ordering::Release);
        self.recorded.store(0, Ordering::Release);
    }

    /// So much of it is filled.
    pub(super) fn recover_to(&self, end: Sector) {
        self.recovered.store(end.0, Ordering::Release);
    }

    /// It has flushed what it was filled with up to there.
    pub(super) fn is_durable_to(&self, end: Option<Sector>) {
        self.recorded.store(end.map_or(ALL, |end| end.0), Ordering::Release);
    }

    /// It has flushed all that it lacked, so that it is filled up to its end: no matter what the bitmap has.
    pub(super) fn is_filled_to(&self, end: Sectors) {
        self.recovered.store(end.0, Ordering::Release);
        self.recorded.store(end.0, Ordering::Release);
        self.by_bitmap.store(false, Ordering::Release);
    }

    /// It is filled, and that is on record.
    pub(super) fn end_recovery(&self) {
        self.by_bitmap.store(false, Ordering::Release);
        self.recovered.store(ALL, Ordering::Release);
    }

    pub(super) fn is_replacement(&self) -> bool {
        self.replacement.load(Ordering::Acquire)
    }

    /// The place that it was to take is its own now.
    pub(super) fn take_over(&self) {
        self.replacement.store(false, Ordering::Release);
    }

    /// While it is recovered: whether it lacks only what the bitmap has.
    pub(super) fn is_by_bitmap(&self) -> bool {
        self.by_bitmap.load(Ordering::Acquire)
    }

    /// Whether reading it is a matter of where, or not to be done at all.
    pub(super) fn is_ordinary(&self) -> bool {
        self.is_in_sync() && self.last_choice() == 0 && !self.bad.any()
    }

    /// How far it is read while it is filled: what it would lose with a flush that fails is not its own data there, but what was on the disk
    /// before.
    fn read_to(&self) -> Option<Sector> {
        let recorded = Sector(self.recorded.load(Ordering::Acquire));
        self.recovered().map(|end| end.min(recorded))
    }

    /// How many of the `nr` sectors at `sector` of its data can be read, from the first on.
    pub(super) fn readable(&self, sector: Sector, nr: Sectors) -> Sectors {
        if self.is_faulty() {
            return Sectors::ZERO;
        }
        let nr = match self.read_to() {
            Some(end) => Sectors(end.0.saturating_sub(sector.0)).min(nr),
            None => nr,
        };
        if nr == Sectors::ZERO { nr } else { self.bad.readable(sector, nr) }
    }

    /// How many of the `nr` sectors at `sector` of its data cannot be read, from the first on.
    pub(super) fn unreadable(&self, sector: Sector, nr: Sectors) -> Sectors {
        let lacks = self.read_to().is_some_and(|end| sector >= end);
        if self.is_faulty() || lacks { nr } else { self.bad.unreadable(sector, nr) }
    }

    /// Whether some of that was never written to it, or others have what is newer.
    pub(super) fn is_lacking(&self, sector: Sector, nr: Sectors) -> bool {
        let ends_before = self.read_to().is_some_and(|end| end.0 < sector.0 + nr.0);
        self.is_faulty() || ends_before || self.bad.is_lacking(sector, nr)
    }

    /// Where a sector of its data is on the device.
    #[inline]
    pub(super) fn at(&self, sector: Sector) -> Sector {
        self.data_start + Sectors(sector.0)
    }

    /// Room for data: a superblock at the end, and what belongs to it, lie behind that.
    pub(super) fn room(&self) -> Sectors {
        let known = self.site.as_ref().and_then(|(_, site)| site.room);
        known.unwrap_or(Sectors(self.layer().sectors().0.saturating_sub(self.data_start.0)))
    }

    /// How much of a piece is on the device. The last block of an array that ends in its midst goes on behind the array's end, and where this device
    /// has smaller blocks and ends there, behind its own: a partition's neighbour is there, or nothing.
    #[inline]
    pub(super) fn reach(&self, sector: Sector, nr: Sectors) -> Sectors {
        if self.at(sector).0 + nr.0 <= self.layer().sectors().0 { nr } else { self.reach_at_end(sector, nr) }
    }

    #[cold]
    fn reach_at_end(&self, sector: Sector, nr: Sectors) -> Sectors {
        nr.min(Sectors(io::end_of_blocks(&**self.layer()).0.saturating_sub(self.at(sector).0)))
    }

    /// Reads `nr` sectors of its data; what it does not have of an array's last block is zeros.
    pub(super) async fn read(&self, sector: Sector, nr: Sectors, cx: &TaskContext) -> Result<Segment, Errno> {
        let reach = self.reach(sector, nr);
        let read = io::read(cx, self.layer(), self.at(sector), reach).await?;
        if reach == nr {
            return Ok(read);
        }
        let all = Segment::new(cx.pool().get(nr.byte_len()), 0, nr.byte_len());
        all.fill(0);
        copy_between(&[read], std::slice::from_ref(&all));
        Ok(all)
    }

    /// Writes its data, as far as it has them, durably or not.
    pub(super) async fn write(
        &self,
        sector: Sector,
        data: Segment,
        durable: bool,
        cx: &TaskContext,
    ) -> Result<(), Errno> {
        let reach = self.reach(sector, Sectors::from_bytes_floor(data.len() as u64));
        let data = data.slice(0, reach.byte_len());
        let at = self.at(sector);
        if durable {
            io::write(cx, self.layer(), at, data).await
        } else {
            io::store(cx, self.layer(), at, data).await
        }
    }

    /// Makes durable what was written to it.
    pub(super) async fn flush(&self, cx: &TaskContext) -> Result<(), Errno> {
        io::flush(cx, self.layer()).await.inspect_err(|_| self.lose())
    }

    pub(super) fn count_corrected(&self, nr: Sectors) {
        let more = u32::try_from(nr.0).unwrap_or(u32::MAX);
        self.corrected.store(self.corrected().saturating_add(more), Ordering::Relaxed);
    }

    pub(super) fn corrected(&self) -> u32 {
        self.corrected.load(Ordering::Relaxed)
    }

    /// How its superblock tells of it.
    pub(super) fn standing(&self, role: Option<u16>) -> SiteState {
        let recorded = Some(Sector(self.recorded.load(Ordering::Acquire))).filter(|end| end.0 != ALL);
        let standing = match role {
            _ if self.is_removed() => Standing::Removed,
            _ if self.is_faulty() => Standing::Faulty,
            None => Standing::Spare,
            Some(role) => Standing::Active {
                role,
                recovered: recorded,
                by_bitmap: self.is_by_bitmap(),
                replacement: self.is_replacement(),
            },
        };
        SiteState {
            standing,
            corrected: self.corrected(),
            bad_blocks: !self.bad.for_disk(self.data_start).is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Zero;
    use blockwork_engine::NodeId;

    #[test]
    fn what_can_be_read_ends_at_the_first_bad_sector_or_where_recovery_is() {
        let config = MemberConfig {
            name: "a".into(),
            layer: Arc::new(Zero::new(NodeId(0), Sectors(1000))),
            data_start: Sector(8),
            recovered: Some(Sector(200)),
            write_mostly: false,
            bad: vec![(Sector(100), Sectors(10)), (Sector(50), Sectors(5))],
        };
        let member = Member::new(config, None);
        for (sector, nr, readable) in [
            (0, 50, 50),
            (0, 51, 50),
            (54, 3, 0),
            (55, 100, 45),
            (99, 1, 1),
            (110, 90, 90),
            (110, 91, 90),
            (250, 1, 0),
        ] {
            assert_eq!(member.readable(Sector(sector), Sectors(nr)), Sectors(readable), "{sector}+{nr}");
        }
        assert!(!member.is_ordinary());
        member.fail();
        assert_eq!(member.readable(Sector(0), Sectors(1)), Sectors::ZERO);
    }
}
