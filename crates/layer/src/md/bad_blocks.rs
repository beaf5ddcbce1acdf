//! The places of a member that must not be read, and those of them that are in its list of bad blocks on disk.
//!
//! | kind | how it came | on disk | writes |
//! | --- | --- | --- | --- |
//! | [`Bad::Renewed`] | a client has written it, or it was written anew before a member went that made up for it: it can be read | yes, until the next flush | go there |
//! | [`Bad::Unread`] | a read failed; it is about to be written anew | no | go there, and it can be read |
//! | [`Bad::Stale`] | a write failed on a member that has to stay: others have what is newer | no | go there |
//! | [`Bad::Listed`] | found in the list, or no copy could be read when the member was filled, or a parity that may not fit (`parity_doubt.rs`) | yes | go there, and renew it |
//! | [`Bad::Unwritable`] | a write failed | yes | leave it out |
//!
//! What was written can be read from then on. It leaves the list on disk behind a flush of the member, before a flush of the array is answered: a
//! range that is in no list holds what was written there, whenever the power fails.
//!
//! Who resolves a bio takes no lock here, but where something is bad: then the list is read under a lock that is only ever
//! held for as long as it takes to look.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use blockwork_engine::{Layer, Limits, Sector, Sectors};
use blockwork_format::md::v1::Region;
use std::sync::Arc;

/// Most ranges that are remembered of a member: as many as md's own list has room for.
pub(super) const BAD_RANGES_MAX: usize = 512;

/// The blocks of an array with these limits that a range touches. What is read from one member instead of another begins and
/// ends at them, since the other's own may be larger.
pub(super) fn whole_blocks(sector: Sector, nr: Sectors, limits: &Limits) -> (Sector, Sectors) {
    let block = Sectors::from_bytes_ceil(limits.logical_block_size.into()).0.max(1);
    let start = sector.0 / block * block;
    let end = sector.0.saturating_add(nr.0).checked_next_multiple_of(block).unwrap_or(u64::MAX);
    (Sector(start), Sectors(end - start))
}

/// Where a member's list of bad blocks is.
#[derive(Clone, Debug)]
pub struct BadBlockLog {
    /// The device that it is on.
    pub layer: Arc<dyn Layer>,
    /// Its first sector.
    pub start: Sector,
    /// Its sectors.
    pub sectors: u16,
    /// Its unit: sectors, as a power of two.
    pub shift: u8,
}

/// What is the matter with a range; see the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bad {
    Renewed,
    Unread,
    Stale,
    Listed,
    Unwritable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: u64,
    end: u64,
    what: Bad,
}

impl Range {
    /// Whether it belongs in the list on disk.
    fn is_on_disk(&self) -> bool {
        self.what >= Bad::Listed || self.what == Bad::Renewed
    }

    fn is_bad_until_written(&self) -> bool {
        matches!(self.what, Bad::Unread | Bad::Listed)
    }

    fn is_one_of(&self, renewed: &[(Sector, Sectors)]) -> bool {
        let place = (Sector(self.start), Sectors(self.end - self.start));
        self.what == Bad::Renewed && renewed.contains(&place)
    }

    fn meets(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

/// The bad ranges of a member, from the start of its data.
#[derive(Debug, Default)]
pub(super) struct BadBlocks {
    any: AtomicBool,
    /// Some must not be written either.
    unwritable: AtomicBool,
    ranges: RwLock<Vec<Range>>,
}

impl BadBlocks {
    /// Those of a list as it was found.
    pub(super) fn listed(list: &[(Sector, Sectors)]) -> BadBlocks {
        let range = |(sector, nr): &(Sector, Sectors)| Range {
            start: sector.0,
            end: sector.0.saturating_add(nr.0),
            what: Bad::Listed,
        };
        let any = AtomicBool::new(!list.is_empty());
        BadBlocks { any, ranges: RwLock::new(list.iter().map(range).collect()), ..BadBlocks::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Range>> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Range>> {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether writes have to leave something out.
    #[inline]
    pub(super) fn any_unwritable(&self) -> bool {
        self.unwritable.load(Ordering::Acquire)
    }

    /// How many of the `nr` sectors at `sector` can be read, from the first on.
    pub(super) fn readable(&self, sector: Sector, nr: Sectors) -> Sectors {
        if !self.any() {
            return nr;
        }
        self.free(sector, nr, Bad::Unread)
    }

    /// How many of the `nr` sectors at `sector` cannot be read, from the first on.
    pub(super) fn unreadable(&self, sector: Sector, nr: Sectors) -> Sectors {
        let ranges = self.read();
        let met =
            ranges.iter().filter(|range| range.what >= Bad::Unread && range.meets(sector.0, sector.0 + 1));
        met.map(|range| Sectors(range.end - sector.0)).fold(Sectors::ZERO, Sectors::max).min(nr)
    }

    /// Sectors from `sector` on that meet nothing bad of this kind or worse.
    fn free(&self, sector: Sector, nr: Sectors, least: Bad) -> Sectors {
        let ranges = self.read();
        let met = ranges.iter().filter(|range| range.what >= least && range.meets(sector.0, sector.0 + nr.0));
        met.map(|range| Sectors(range.start.saturating_sub(sector.0))).fold(nr, Sectors::min)
    }

    /// How much from `sector` on can be written, and how much behind that cannot; both within `nr`.
    pub(super) fn writable(&self, sector: Sector, nr: Sectors) -> (Sectors, Sectors) {
        let good = self.free(sector, nr, Bad::Unwritable);
        let at = sector.0 + good.0;
        let ranges = self.read();
        let met = ranges.iter().filter(|range| range.what == Bad::Unwritable && range.meets(at, at + 1));
        let end = met.map(|range| range.end).max().unwrap_or(at);
        (good, Sectors((end - at).min(nr.0 - good.0)))
    }

    /// Whether some of the `nr` sectors at `sector` are only others'.
    pub(super) fn is_lacking(&self, sector: Sector, nr: Sectors) -> bool {
        self.any() && self.free(sector, nr, Bad::Stale) < nr
    }

    /// Forgets what was found out by reading.
    pub(super) fn forget_unread(&self) {
        self.write().retain(|range| range.what != Bad::Unread);
    }

    /// Widens the ranges to whole blocks of the array.
    pub(super) fn widen(&self, limits: &Limits) {
        for range in self.write().iter_mut() {
            let nr = Sectors(range.end - range.start);
            let (start, nr) = whole_blocks(Sector(range.start), nr, limits);
            (range.start, range.end) = (start.0, start.0.saturating_add(nr.0));
        }
    }

    /// Remembers a range; whether there was room for that.
    pub(super) fn add(&self, sector: Sector, nr: Sectors, what: Bad) -> bool {
        let mut ranges = self.write();
        let (start, end) = (sector.0, sector.0 + nr.0);
        let full = ranges.len() >= BAD_RANGES_MAX;
        let same = |range: &&mut Range| (range.start, range.end) == (start, end);
        let joins = |range: &&mut Range| range.what == what && range.end == start;
        if let Some(range) = ranges.iter_mut().find(same) {
            // What was in the list on disk stays there: it may not be durable yet that it was written.
            let was_listed = range.what == Bad::Renewed && what > Bad::Renewed;
            range.what = what.max(if was_listed { Bad::Listed } else { range.what });
        } else if let Some(range) = ranges.iter_mut().find(joins) {
            range.end = end;
        } else if full {
            return false;
        } else {
            ranges.push(Range { start, end, what });
        }
        self.any.store(true, Ordering::Release);
        self.unwritable.fetch_or(what == Bad::Unwritable, Ordering::Release);
        true
    }

    /// Lists a range, as one with those listed that it meets or adjoins; whether there was room for that.
    pub(super) fn list(&self, sector: Sector, nr: Sectors) -> bool {
        let mut ranges = self.write();
        let (mut start, mut end) = (sector.0, sector.0 + nr.0);
        let joins = |range: &Range| {
            range.what == Bad::Listed && range.start <= sector.0 + nr.0 && sector.0 <= range.end
        };
        let joined: Vec<Range> = ranges.iter().copied().filter(joins).collect();
        if joined.is_empty() && ranges.len() >= BAD_RANGES_MAX {
            return false;
        }
        ranges.retain(|range| !joins(range));
        for range in joined {
            (start, end) = (start.min(range.start), end.max(range.end));
        }
        ranges.push(Range { start, end, what: Bad::Listed });
        self.any.store(true, Ordering::Release);
        true
    }

    /// Whether each of the `nr` sectors at `sector` is only others'.
    pub(super) fn lacks_all(&self, sector: Sector, nr: Sectors) -> bool {
        let ranges = self.read();
        let (mut at, end) = (sector.0, sector.0 + nr.0);
        while at < end {
            let met = ranges.iter().filter(|range| range.what > Bad::Unread && range.meets(at, at + 1));
            let Some(next) = met.map(|range| range.end).max() else { return false };
            at = next;
        }
        true
    }

    /// As `add` of what is old, where there is no room: nothing of so many sectors counts any more.
    pub(super) fn add_all_stale(&self, nr: Sectors) {
        let mut ranges = self.write();
        ranges.retain(Range::is_on_disk);
        ranges.push(Range { start: 0, end: nr.0, what: Bad::Stale });
        self.any.store(true, Ordering::Release);
    }

    /// Forgets a range: it was written anew. Whether the list on disk is another one now. Where there is no room for the parts of
    /// a range that is cut in two, all of that stays bad.
    pub(super) fn remove(&self, sector: Sector, nr: Sectors) -> bool {
        if !self.any() {
            return false;
        }
        let (start, end) = (sector.0, sector.0 + nr.0);
        let mut ranges = self.write();
        let mut changed = false;
        let mut left = Vec::with_capacity(ranges.len());
        let total = ranges.len();
        for range in ranges.drain(..) {
            let cut_in_two = range.start < start && end < range.end;
            if !range.meets(start, end) || (cut_in_two && total >= BAD_RANGES_MAX) {
                left.push(range);
                continue;
            }
            changed |= range.is_on_disk();
            left.extend((range.start < start).then_some(Range { end: start, ..range }));
            left.extend((end < range.end).then_some(Range { start: end, ..range }));
        }
        self.any.store(!left.is_empty(), Ordering::Release);
        self.unwritable.store(left.iter().any(|range| range.what == Bad::Unwritable), Ordering::Release);
        *ranges = left;
        changed
    }

    /// Whether a write of these sectors has something to renew.
    pub(super) fn is_renewed_by_write(&self, sector: Sector, nr: Sectors) -> bool {
        self.any()
            && self
                .read()
                .iter()
                .any(|range| range.is_bad_until_written() && range.meets(sector.0, sector.0 + nr.0))
    }

    /// A range was written, and can be read again; whether some of it has to leave the list on disk. Where there is no room for the parts of
    /// a range that is cut, all of that stays bad.
    pub(super) fn renew(&self, sector: Sector, nr: Sectors) -> bool {
        self.written(sector, nr, Range::is_bad_until_written)
    }

    fn written(&self, sector: Sector, nr: Sectors, ends: fn(&Range) -> bool) -> bool {
        let (start, end) = (sector.0, sector.0 + nr.0);
        let mut ranges = self.write();
        let has_room = ranges.len() + 2 <= BAD_RANGES_MAX;
        let mut renewed = false;
        let mut left = Vec::with_capacity(ranges.len() + 2);
        for range in ranges.drain(..) {
            let is_whole = start <= range.start && range.end <= end;
            if !ends(&range) || !range.meets(start, end) || !(is_whole || has_room) {
                left.push(range);
                continue;
            }
            left.extend((range.start < start).then_some(Range { end: start, ..range }));
            if range.is_on_disk() {
                renewed = true;
                let (start, end) = (range.start.max(start), range.end.min(end));
                left.push(Range { start, end, what: Bad::Renewed });
            }
            left.extend((end < range.end).then_some(Range { start: end, ..range }));
        }
        self.any.store(!left.is_empty(), Ordering::Release);
        self.unwritable.store(left.iter().any(|range| range.what == Bad::Unwritable), Ordering::Release);
        *ranges = left;
        renewed
    }

    /// As `renew`, where something was written anew by who has made sure of it: also what writes leave out.
    pub(super) fn cure(&self, sector: Sector, nr: Sectors) -> bool {
        self.written(sector, nr, |range| range.what >= Bad::Unread)
    }

    /// Others have nothing there that is newer, or it does not count.
    pub(super) fn forget_stale(&self, sector: Sector, nr: Sectors) {
        self.written(sector, nr, |range| range.what == Bad::Stale);
    }

    /// Ranges that were written, and are in the list on disk still.
    pub(super) fn renewed(&self) -> Vec<(Sector, Sectors)> {
        let ranges = self.read();
        let renewed = ranges.iter().filter(|range| range.what == Bad::Renewed);
        renewed.map(|range| (Sector(range.start), Sectors(range.end - range.start))).collect()
    }

    /// Those of them are durable now, as far as nothing has happened to them since.
    pub(super) fn settle(&self, renewed: &[(Sector, Sectors)]) {
        let mut ranges = self.write();
        ranges.retain(|range| !range.is_one_of(renewed));
        self.any.store(!ranges.is_empty(), Ordering::Release);
    }

    /// Ranges that only others have, for as long as this member is there.
    pub(super) fn lacking(&self) -> Vec<(Sector, Sectors)> {
        let ranges = self.read();
        let lacking = ranges.iter().filter(|range| range.what > Bad::Unread);
        lacking.map(|range| (Sector(range.start), Sectors(range.end - range.start))).collect()
    }

    /// Whether others have what is newer of some of the `nr` sectors at `sector`.
    pub(super) fn is_stale(&self, sector: Sector, nr: Sectors) -> bool {
        let is_met = |range: &Range| range.what == Bad::Stale && range.meets(sector.0, sector.0 + nr.0);
        self.any() && self.read().iter().any(is_met)
    }

    /// Whether that is one of the ranges of which others have what is newer, which are in no list.
    pub(super) fn is_stale_range(&self, sector: Sector, nr: Sectors) -> bool {
        let place = (sector.0, sector.0 + nr.0);
        self.read().iter().any(|range| range.what == Bad::Stale && (range.start, range.end) == place)
    }

    /// What belongs in the list on disk of a member whose data starts there, in whole units of it.
    pub(super) fn for_disk(&self, data_start: Sector) -> Vec<Region> {
        self.for_disk_but(&[], None, data_start)
    }

    /// Likewise when these that were written are settled, and with one more.
    pub(super) fn for_disk_but(
        &self,
        renewed: &[(Sector, Sectors)],
        more: Option<(Sector, Sectors)>,
        data_start: Sector,
    ) -> Vec<Region> {
        let ranges = self.read();
        let stays = |range: &&Range| range.is_on_disk() && !range.is_one_of(renewed);
        let mut listed: Vec<_> = ranges.iter().filter(stays).map(|range| (range.start, range.end)).collect();
        listed.extend(more.map(|(sector, nr)| (sector.0, sector.0 + nr.0)));
        // What was cut, for a part of it was written, is one range in the list still.
        listed.sort_unstable();
        listed.dedup_by(|next, last| {
            let joins = next.0 <= last.1;
            last.1 = if joins { last.1.max(next.1) } else { last.1 };
            joins
        });
        let region = |(start, end): &(u64, u64)| Region { start: data_start.0 + start, sectors: end - start };
        listed.iter().map(region).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.read().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(bad: &BadBlocks, sector: u64, nr: u64) -> u64 {
        bad.readable(Sector(sector), Sectors(nr)).0
    }

    #[test]
    fn bad_ranges_are_whole_blocks_of_the_array() {
        let limits = Limits { logical_block_size: 4096, ..Limits::default() };
        let bad = BadBlocks::listed(&[(Sector(9), Sectors(8)), (Sector(u64::MAX - 1), Sectors(7))]);
        bad.widen(&limits);
        assert_eq!([readable(&bad, 0, 100), readable(&bad, 23, 100), readable(&bad, 24, 100)], [8, 0, 100]);
    }

    #[test]
    fn ranges_are_remembered_once_cut_when_written_anew_and_bounded() {
        let bad = BadBlocks::default();
        assert!(bad.add(Sector(8), Sectors(8), Bad::Unread) && bad.add(Sector(8), Sectors(8), Bad::Unread));
        assert_eq!((bad.len(), readable(&bad, 0, 20)), (1, 8));
        assert!(!bad.remove(Sector(8), Sectors(8)), "the list on disk has not changed");
        assert!(!bad.any());
        assert!(bad.add(Sector(8), Sectors(24), Bad::Listed));
        assert!(bad.remove(Sector(16), Sectors(8)));
        assert_eq!([readable(&bad, 0, 100), readable(&bad, 16, 100), readable(&bad, 24, 100)], [8, 8, 0]);
        let regions = bad.for_disk(Sector(100));
        assert_eq!(regions, [Region { start: 108, sectors: 8 }, Region { start: 124, sectors: 8 }]);
        for i in 2..BAD_RANGES_MAX as u64 {
            assert!(bad.add(Sector(100 + 2 * i), Sectors(1), Bad::Unread), "{i}");
        }
        assert!(!bad.add(Sector(5000), Sectors(1), Bad::Unread));
    }

    #[test]
    fn what_is_old_is_lacking_and_in_no_list() {
        let bad = BadBlocks::listed(&[(Sector(0), Sectors(8))]);
        assert!(bad.add(Sector(16), Sectors(8), Bad::Unread) && bad.add(Sector(32), Sectors(8), Bad::Stale));
        assert_eq!([readable(&bad, 8, 100), readable(&bad, 24, 100)], [8, 8]);
        assert_eq!(bad.lacking(), [(Sector(0), Sectors(8)), (Sector(32), Sectors(8))]);
        assert_eq!(bad.for_disk(Sector(100)), [Region { start: 100, sectors: 8 }]);
        assert!(bad.is_stale(Sector(24), Sectors(9)) && !bad.is_stale(Sector(16), Sectors(16)));
        assert!(
            !bad.any_unwritable() && !bad.remove(Sector(32), Sectors(8)) && readable(&bad, 24, 100) == 100
        );
    }

    #[test]
    fn what_was_written_can_be_read_and_stays_in_the_list_until_that_is_settled() {
        let region = |start, sectors| Region { start, sectors };
        let bad = BadBlocks::listed(&[(Sector(8), Sectors(24))]);
        assert!(bad.add(Sector(40), Sectors(8), Bad::Unread));
        assert!(!bad.renew(Sector(40), Sectors(8)) && readable(&bad, 40, 8) == 8, "it was in no list");
        assert!(
            !bad.is_renewed_by_write(Sector(0), Sectors(8))
                && bad.is_renewed_by_write(Sector(15), Sectors(2))
        );
        assert!(bad.renew(Sector(16), Sectors(8)));
        assert_eq!([readable(&bad, 16, 100), readable(&bad, 24, 100)], [8, 0]);
        assert_eq!(bad.unreadable(Sector(16), Sectors(8)), Sectors::ZERO);
        assert_eq!(bad.lacking(), [(Sector(8), Sectors(8)), (Sector(24), Sectors(8))]);
        assert_eq!(bad.for_disk(Sector(0)), [region(8, 24)]);
        let renewed = bad.renewed();
        assert_eq!(renewed, [(Sector(16), Sectors(8))]);
        bad.settle(&renewed);
        assert_eq!(bad.for_disk(Sector(0)), [region(8, 8), region(24, 8)]);
        assert!(bad.renew(Sector(0), Sectors(64)) && bad.any());
        bad.settle(&bad.renewed());
        assert!(!bad.any());
    }

    #[test]
    fn what_is_bad_anew_stays_in_the_list_that_it_has_not_left() {
        let region = |start, sectors| Region { start, sectors };
        for what in [Bad::Unread, Bad::Stale, Bad::Listed, Bad::Unwritable] {
            let bad = BadBlocks::listed(&[(Sector(8), Sectors(8))]);
            assert!(bad.renew(Sector(8), Sectors(8)) && bad.add(Sector(8), Sectors(8), what));
            assert_eq!((readable(&bad, 8, 8), bad.for_disk(Sector(0))), (0, vec![region(8, 8)]), "{what:?}");
            bad.settle(&[(Sector(8), Sectors(8))]);
            assert_eq!(readable(&bad, 8, 8), 0, "{what:?}");
        }
    }

    #[test]
    fn what_was_cured_can_be_read_and_written_and_leaves_the_list() {
        let region = |start, sectors| Region { start, sectors };
        let bad = BadBlocks::listed(&[(Sector(8), Sectors(8))]);
        assert!(
            bad.add(Sector(16), Sectors(8), Bad::Unwritable) && bad.add(Sector(32), Sectors(8), Bad::Stale)
        );
        assert!(!bad.cure(Sector(32), Sectors(8)), "that was in no list");
        assert_eq!(bad.lacking(), [(Sector(8), Sectors(8)), (Sector(16), Sectors(8))]);
        assert!(bad.cure(Sector(12), Sectors(8)) && bad.any_unwritable());
        assert_eq!([readable(&bad, 8, 8), readable(&bad, 12, 100), readable(&bad, 20, 4)], [0, 8, 0]);
        assert_eq!(bad.writable(Sector(16), Sectors(8)), (Sectors(4), Sectors(4)));
        assert!(bad.cure(Sector(20), Sectors(4)) && !bad.any_unwritable());
        assert_eq!(bad.for_disk(Sector(0)), [region(8, 16)]);
        bad.settle(&bad.renewed());
        assert_eq!(bad.for_disk(Sector(0)), [region(8, 4)]);
        assert_eq!(bad.for_disk_but(&[], Some((Sector(10), Sectors(8))), Sector(0)), [region(8, 10)]);
        assert_eq!(bad.for_disk_but(&[], Some((Sector(12), Sectors(8))), Sector(0)), [region(8, 12)]);
        assert_eq!(bad.for_disk_but(&[], Some((Sector(8), Sectors(4))), Sector(0)), [region(8, 4)]);
    }

    #[test]
    fn what_is_listed_is_one_with_what_it_meets_and_is_never_forgotten_for_want_of_room() {
        let bad = BadBlocks::default();
        assert!(bad.list(Sector(8), Sectors(8)) && bad.list(Sector(24), Sectors(8)) && bad.len() == 2);
        assert!(!bad.lacks_all(Sector(8), Sectors(24)) && bad.lacks_all(Sector(9), Sectors(7)));
        assert!(bad.list(Sector(12), Sectors(12)) && bad.len() == 1);
        assert!(bad.lacks_all(Sector(8), Sectors(24)) && !bad.lacks_all(Sector(7), Sectors(2)));
        assert!(bad.add(Sector(32), Sectors(8), Bad::Stale) && bad.lacks_all(Sector(8), Sectors(32)));
        assert_eq!(bad.for_disk(Sector(0)), [Region { start: 8, sectors: 24 }]);
        for i in 2..BAD_RANGES_MAX as u64 {
            assert!(bad.list(Sector(100 * i), Sectors(1)), "{i}");
        }
        assert!(!bad.list(Sector(64), Sectors(8)) && bad.list(Sector(4), Sectors(8)));
        assert_eq!((readable(&bad, 0, 100), readable(&bad, 64, 8)), (4, 8));
    }

    #[test]
    fn where_there_is_no_room_for_what_is_old_nothing_counts() {
        let bad = BadBlocks::listed(&[(Sector(0), Sectors(8))]);
        for i in 1..BAD_RANGES_MAX as u64 {
            assert!(bad.add(Sector(100 * i), Sectors(1), Bad::Stale));
        }
        assert!(!bad.add(Sector(8), Sectors(1), Bad::Stale) && readable(&bad, 8, 1) == 1);
        bad.add_all_stale(Sectors(1 << 20));
        assert_eq!((readable(&bad, 8, 1), readable(&bad, (1 << 20) - 1, 1), bad.len()), (0, 0, 2));
        assert!(
            bad.is_stale_range(Sector(0), Sectors(1 << 20)) && !bad.is_stale_range(Sector(0), Sectors(8))
        );
        assert_eq!(bad.for_disk(Sector(0)), [Region { start: 0, sectors: 8 }]);
    }

    #[test]
    fn writes_leave_out_only_what_a_write_failed_on() {
        let bad = BadBlocks::listed(&[(Sector(0), Sectors(8))]);
        assert!(!bad.any_unwritable());
        assert!(bad.add(Sector(16), Sectors(8), Bad::Unwritable) && bad.any_unwritable());
        let writable = |sector, nr| bad.writable(Sector(sector), Sectors(nr));
        assert_eq!(writable(0, 32), (Sectors(16), Sectors(8)));
        assert_eq!(writable(16, 4), (Sectors(0), Sectors(4)));
        assert_eq!(writable(24, 8), (Sectors(8), Sectors(0)));
        bad.remove(Sector(16), Sectors(8));
        assert!(!bad.any_unwritable() && bad.any());
    }
}
