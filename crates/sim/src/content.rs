//! What a simulated device holds: durably, in its volatile cache, and what becomes of the difference in a power cut.
//!
//! Three views of the same sectors, all sparse (what is absent is zeros):
//! - `current`: what reads return: every change that has completed, newest last;
//! - `durable`: what is on stable storage;
//! - `pending`: changes that have completed but are not durable, in the order of their completion.
//!
//! Invariants:
//! 1. `current` = `durable` with `pending` applied in order, less what is superseded.
//! 2. A FUA write is durable when it completes, and no older pending change can come back over it.
//! 3. A flush makes durable what was pending when it *started*, and promises nothing about what completed later.
//! 4. After a cut, an atomic unit holds its durable content or that of any one pending or in-flight change to it;
//!    different units choose independently: requests are torn, and later ones survive while earlier ones do not.
//! 5. A request's sectors are whole: nothing is torn below 512 bytes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use crate::random::Random;

/// The bytes of one sector.
pub(crate) type SectorData = Rc<[u8; 512]>;

/// Sectors by number; absent ones are zeros.
pub(crate) type SectorMap = BTreeMap<u64, SectorData>;

/// What a request changes.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// New content, a sector each from `first` on.
    Data { first: u64, sectors: Vec<SectorData> },
    /// Zeros: write-zeroes, or a discard on a device whose discarded sectors read as zeros.
    Zero { range: Range<u64> },
}

impl Change {
    pub(crate) fn range(&self) -> Range<u64> {
        match self {
            Change::Data { first, sectors } => *first..*first + sectors.len() as u64,
            Change::Zero { range } => range.clone(),
        }
    }

    /// The first `n` sectors of it.
    pub(crate) fn truncate(&mut self, n: u64) {
        match self {
            Change::Data { sectors, .. } => sectors.truncate(usize::try_from(n).unwrap_or(usize::MAX)),
            Change::Zero { range } => range.end = range.end.min(range.start + n),
        }
    }

    /// What it makes of one sector of its range; `None` is zeros.
    fn at(&self, sector: u64) -> Option<&SectorData> {
        match self {
            Change::Data { first, sectors } => sectors.get(usize::try_from(sector - first).ok()?),
            Change::Zero { .. } => None,
        }
    }

    fn apply(&self, map: &mut SectorMap, wanted: impl Fn(u64) -> bool) {
        match self {
            Change::Data { first, sectors } => {
                for (sector, data) in (*first..).zip(sectors) {
                    if wanted(sector) {
                        map.insert(sector, data.clone());
                    }
                }
            }
            Change::Zero { range } => {
                let there: Vec<u64> = map.range(range.clone()).map(|(sector, _)| *sector).collect();
                for sector in there.into_iter().filter(|sector| wanted(*sector)) {
                    map.remove(&sector);
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Pending {
    number: u64,
    change: Change,
    /// Sectors of it that a later FUA write has overwritten durably.
    superseded: BTreeSet<u64>,
}

/// A device's content.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    current: SectorMap,
    durable: SectorMap,
    pending: VecDeque<Pending>,
    pending_bytes: u64,
    next: u64,
}

impl Content {
    /// All durable.
    pub(crate) fn new(durable: SectorMap) -> Content {
        Content { current: durable.clone(), durable, ..Content::default() }
    }

    /// One sector as a read sees it.
    pub(crate) fn get(&self, sector: u64) -> Option<&SectorData> {
        self.current.get(&sector)
    }

    /// All sectors that are not zeros, as reads see them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&u64, &SectorData)> {
        self.current.iter()
    }

    /// A change has completed and is durable: FUA, or a device without a volatile cache.
    pub(crate) fn complete_durably(&mut self, change: &Change) {
        change.apply(&mut self.current, |_| true);
        change.apply(&mut self.durable, |_| true);
        let range = change.range();
        for pending in &mut self.pending {
            let theirs = pending.change.range();
            let both = range.start.max(theirs.start)..range.end.min(theirs.end);
            pending.superseded.extend(both);
        }
    }

    /// A change has completed into the volatile cache, which destages its oldest when it holds more than `cache_bytes`.
    pub(crate) fn complete_cached(&mut self, change: Change, cache_bytes: u64) {
        change.apply(&mut self.current, |_| true);
        self.pending_bytes += cost(&change);
        self.pending.push_back(Pending { number: self.next, change, superseded: BTreeSet::new() });
        self.next += 1;
        while self.pending_bytes > cache_bytes {
            self.destage_oldest();
        }
    }

    /// What a flush that starts now will cover.
    pub(crate) fn mark(&self) -> u64 {
        self.next
    }

    /// A flush that started at `mark` has completed.
    pub(crate) fn flush(&mut self, mark: u64) {
        while self.pending.front().is_some_and(|pending| pending.number < mark) {
            self.destage_oldest();
        }
    }

    fn destage_oldest(&mut self) {
        let Some(Pending { change, superseded, .. }) = self.pending.pop_front() else { return };
        self.pending_bytes -= cost(&change);
        change.apply(&mut self.durable, |sector| !superseded.contains(&sector));
    }

    /// A flush that started at `mark` fails, and each change that it should have covered is destaged or forgotten: later
    /// reads find older content, and later flushes succeed. Returns how many were forgotten.
    pub(crate) fn lose(&mut self, mark: u64, random: &mut Random) -> usize {
        let all = std::mem::take(&mut self.pending);
        let mut lost = Vec::new();
        for pending in all {
            if pending.number >= mark {
                self.pending.push_back(pending);
            } else if random.chance(3, 4) {
                self.pending_bytes -= cost(&pending.change);
                lost.push(pending.change);
            } else {
                self.pending_bytes -= cost(&pending.change);
                pending.change.apply(&mut self.durable, |sector| !pending.superseded.contains(&sector));
            }
        }
        // Invariant 1, from the start.
        self.current = self.durable.clone();
        for pending in &self.pending {
            pending.change.apply(&mut self.current, |sector| !pending.superseded.contains(&sector));
        }
        lost.len()
    }

    /// What is on stable storage after a power cut now, with `in_flight` changes under way, oldest first.
    pub(crate) fn after_cut(&self, in_flight: &[Change], unit: u64, random: &mut Random) -> SectorMap {
        let mood = Mood::draw(random);
        let mut survives = self.durable.clone();
        for pending in &self.pending {
            let fate = mood.pending(random);
            survive(&pending.change, &pending.superseded, fate, unit, &mut survives, random);
        }
        for change in in_flight {
            let fate = mood.in_flight(random);
            survive(change, &BTreeSet::new(), fate, unit, &mut survives, random);
        }
        survives
    }

    /// A read of `nr` sectors from `first` on, while `in_flight` changes are under way: each sector is old or new.
    pub(crate) fn sample(
        &self,
        first: u64,
        nr: u64,
        in_flight: &[&Change],
        random: &mut Random,
    ) -> Vec<Option<SectorData>> {
        (first..first + nr)
            .map(|sector| {
                let mut seen = self.current.get(&sector);
                for change in in_flight {
                    if change.range().contains(&sector) && random.coin() {
                        seen = change.at(sector);
                    }
                }
                seen.cloned()
            })
            .collect()
    }
}

/// Bytes of cache that a change takes.
fn cost(change: &Change) -> u64 {
    match change {
        Change::Data { sectors, .. } => sectors.len() as u64 * 512,
        Change::Zero { .. } => 64,
    }
}

/// What a cut does to a change that is not durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Dropped,
    /// Each atomic unit by itself.
    Torn,
}

/// A cut's manner. Purely independent choices would nearly never drop or keep everything, which are the cuts that show
/// most clearly who relied on a flush that was not there.
#[derive(Clone, Copy)]
enum Mood {
    Nothing,
    Cached,
    Everything,
    Requests,
    Units,
}

impl Mood {
    fn draw(random: &mut Random) -> Mood {
        *random.choose(&[
            Mood::Nothing,
            Mood::Cached,
            Mood::Everything,
            Mood::Requests,
            Mood::Requests,
            Mood::Units,
        ])
    }

    fn pending(self, random: &mut Random) -> Fate {
        match self {
            Mood::Nothing => Fate::Dropped,
            Mood::Cached | Mood::Everything => Fate::Kept,
            Mood::Requests => *random.choose(&[Fate::Kept, Fate::Dropped, Fate::Torn]),
            Mood::Units => Fate::Torn,
        }
    }

    fn in_flight(self, random: &mut Random) -> Fate {
        match self {
            Mood::Cached => Fate::Dropped,
            _ => self.pending(random),
        }
    }
}

fn survive(
    change: &Change,
    superseded: &BTreeSet<u64>,
    fate: Fate,
    unit: u64,
    map: &mut SectorMap,
    random: &mut Random,
) {
    match fate {
        Fate::Dropped => {}
        Fate::Kept => change.apply(map, |sector| !superseded.contains(&sector)),
        Fate::Torn => {
            // A hash decides per unit, so that both halves of a unit share their fate without a table.
            let key = random.bits();
            change.apply(map, |sector| {
                let mut state = key ^ (sector / unit);
                crate::random::split_mix(&mut state) >> 63 == 0 && !superseded.contains(&sector)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(value: u8) -> SectorData {
        Rc::new([value; 512])
    }
    fn write(first: u64, value: u8, nr: usize) -> Change {
        Change::Data { first, sectors: vec![data(value); nr] }
    }
    fn value(map: &SectorMap, sector: u64) -> u8 {
        map.get(&sector).map_or(0, |data| data[0])
    }

    #[test]
    fn a_flush_covers_what_completed_before_it_started_and_nothing_else() {
        let mut content = Content::default();
        content.complete_cached(write(0, 1, 2), 1 << 20);
        let mark = content.mark();
        content.complete_cached(write(1, 2, 2), 1 << 20);
        content.flush(mark);
        assert_eq!([0, 1, 2].map(|s| value(&content.durable, s)), [1, 1, 0]);
        assert_eq!([0, 1, 2].map(|s| value(&content.current, s)), [1, 2, 2]);
    }

    #[test]
    fn nothing_pending_comes_back_over_a_fua_write() {
        for seed in 0..200 {
            let mut content = Content::default();
            content.complete_cached(write(0, 1, 4), 1 << 20);
            content.complete_durably(&write(1, 2, 2));
            let after = content.after_cut(&[], 1, &mut Random::new(seed));
            assert_eq!([1, 2].map(|s| value(&after, s)), [2, 2]);
            assert!([0, 1].contains(&value(&after, 0)));
            content.flush(content.mark());
            assert_eq!([0, 1, 2, 3].map(|s| value(&content.durable, s)), [1, 2, 2, 1]);
        }
    }

    #[test]
    fn a_cut_can_leave_any_one_version_of_each_unit_and_tears_between_units_only() {
        let (mut versions, mut reordered, mut torn) = (BTreeSet::new(), false, false);
        for seed in 0..400 {
            let mut content = Content::new(BTreeMap::from_iter((0..16).map(|s| (s, data(9)))));
            content.complete_cached(write(0, 1, 16), 1 << 20);
            content.complete_cached(Change::Zero { range: 0..8 }, 1 << 20);
            let after = content.after_cut(&[write(0, 3, 8)], 4, &mut Random::new(seed));
            let values: Vec<u8> = (0..16).map(|s| value(&after, s)).collect();
            for unit in values.chunks(4) {
                assert!(unit.iter().all(|v| v == &unit[0]), "torn within a unit: {values:?}");
            }
            versions.insert(values[0]);
            reordered |= values[0] == 0 && values[8] == 9;
            torn |= values[8] != values[12];
        }
        assert_eq!(versions, BTreeSet::from([0, 1, 3, 9]));
        assert!(reordered, "the later discard never survived without the earlier write");
        assert!(torn, "no write was torn");
    }

    #[test]
    fn a_lost_flush_takes_current_content_back_to_durable_or_keeps_it() {
        let mut outcomes = BTreeSet::new();
        for seed in 0..50 {
            let mut content = Content::default();
            content.complete_cached(write(0, 1, 1), 1 << 20);
            let mark = content.mark();
            content.complete_cached(write(5, 2, 1), 1 << 20);
            content.lose(mark, &mut Random::new(seed));
            assert_eq!(value(&content.current, 0), value(&content.durable, 0));
            assert_eq!([value(&content.current, 5), value(&content.durable, 5)], [2, 0]);
            outcomes.insert(value(&content.current, 0));
        }
        assert_eq!(outcomes, BTreeSet::from([0, 1]));
    }

    #[test]
    fn a_full_cache_destages_its_oldest() {
        let mut content = Content::default();
        content.complete_cached(write(0, 1, 2), 1024);
        assert_eq!(value(&content.durable, 0), 0);
        content.complete_cached(write(8, 2, 1), 1024);
        assert_eq!([value(&content.durable, 0), value(&content.durable, 8)], [1, 0]);
    }
}
