//! A member of an array while it is served: whether it may be read and written, and where it cannot be read.
//!
//! Who resolves a bio takes no lock here, but where a range that cannot be read is known: then that list is read under a
//! lock that is only ever held for as long as it takes to look.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use blockwork_engine::{Layer, Limits, Sector, Sectors};

/// Most ranges that cannot be read which are remembered of a member: as many as md's own list has room for.
pub(super) const BAD_RANGES_MAX: usize = 512;

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

/// The blocks of an array with these limits that a range touches. What is read from one member instead of another begins and
/// ends at them, since the other's own may be larger.
pub(super) fn whole_blocks(sector: Sector, nr: Sectors, limits: &Limits) -> (Sector, Sectors) {
    let block = Sectors::from_bytes_ceil(limits.logical_block_size.into()).0.max(1);
    let start = sector.0 / block * block;
    let end = sector.0.saturating_add(nr.0).checked_next_multiple_of(block).unwrap_or(u64::MAX);
    (Sector(start), Sectors(end - start))
}

/// A member of an array that is served.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) layer: Arc<dyn Layer>,
    pub(super) data_start: Sector,
    pub(super) recovered: Option<Sector>,
    pub(super) write_mostly: bool,
    /// It takes part no more. Set once, under the array's turn.
    faulty: AtomicBool,
    has_bad: AtomicBool,
    bad: RwLock<Vec<(Sector, Sectors)>>,
}

impl Member {
    pub(super) fn new(config: MemberConfig) -> Member {
        let MemberConfig { name, layer, data_start, recovered, write_mostly, bad } = config;
        Member {
            name,
            layer,
            data_start,
            recovered,
            write_mostly,
            faulty: AtomicBool::new(false),
            has_bad: AtomicBool::new(!bad.is_empty()),
            bad: RwLock::new(bad),
        }
    }

    /// Whether it has failed (acquire: whoever sees it sees also that the array's gate was closed before).
    #[inline]
    pub(super) fn is_faulty(&self) -> bool {
        self.faulty.load(Ordering::Acquire)
    }

    pub(super) fn fail(&self) {
        self.faulty.store(true, Ordering::Release);
    }

    /// Whether it holds all of its data.
    pub(super) fn is_in_sync(&self) -> bool {
        !self.is_faulty() && self.recovered.is_none()
    }

    /// Whether reading it is a matter of where, or not to be done at all.
    pub(super) fn is_ordinary(&self) -> bool {
        self.is_in_sync() && !self.write_mostly && !self.has_bad.load(Ordering::Acquire)
    }

    /// How many of the `nr` sectors at `sector` of its data can be read, from the first on.
    pub(super) fn readable(&self, sector: Sector, nr: Sectors) -> Sectors {
        if self.is_faulty() {
            return Sectors::ZERO;
        }
        let nr = match self.recovered {
            Some(end) => Sectors(end.0.saturating_sub(sector.0)).min(nr),
            None => nr,
        };
        if !self.has_bad.load(Ordering::Acquire) {
            return nr;
        }
        let bad = self.bad.read().unwrap_or_else(PoisonError::into_inner);
        let met = bad.iter().filter(|(start, len)| *start < sector + nr && sector < *start + *len);
        met.map(|(start, _)| Sectors(start.0.saturating_sub(sector.0))).fold(nr, Sectors::min)
    }

    /// Widens the ranges that cannot be read to whole blocks of the array.
    pub(super) fn widen_bad(&self, limits: &Limits) {
        let mut bad = self.bad.write().unwrap_or_else(PoisonError::into_inner);
        bad.iter_mut().for_each(|(sector, nr)| (*sector, *nr) = whole_blocks(*sector, *nr, limits));
    }

    /// Remembers that the range cannot be read; whether there was room for that.
    pub(super) fn add_bad(&self, sector: Sector, nr: Sectors) -> bool {
        let mut bad = self.bad.write().unwrap_or_else(PoisonError::into_inner);
        if !bad.contains(&(sector, nr)) {
            if bad.len() >= BAD_RANGES_MAX {
                return false;
            }
            bad.push((sector, nr));
        }
        self.has_bad.store(true, Ordering::Release);
        true
    }

    /// Forgets it: it was written anew, and read.
    pub(super) fn remove_bad(&self, sector: Sector, nr: Sectors) {
        let mut bad = self.bad.write().unwrap_or_else(PoisonError::into_inner);
        bad.retain(|range| *range != (sector, nr));
        self.has_bad.store(!bad.is_empty(), Ordering::Release);
    }

    pub(super) fn bad_ranges(&self) -> usize {
        self.bad.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Zero;
    use blockwork_engine::NodeId;

    fn member(recovered: Option<Sector>, bad: Vec<(Sector, Sectors)>) -> Member {
        Member::new(MemberConfig {
            name: "a".into(),
            layer: Arc::new(Zero::new(NodeId(0), Sectors(1000))),
            data_start: Sector(8),
            recovered,
            write_mostly: false,
            bad,
        })
    }

    #[test]
    fn what_can_be_read_ends_at_the_first_bad_sector_or_where_recovery_is() {
        let bad = vec![(Sector(100), Sectors(10)), (Sector(50), Sectors(5))];
        let member = member(Some(Sector(200)), bad);
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

    #[test]
    fn bad_ranges_are_whole_blocks_of_the_array() {
        let limits = Limits { logical_block_size: 4096, ..Limits::default() };
        let member = member(None, vec![(Sector(9), Sectors(8)), (Sector(u64::MAX - 1), Sectors(7))]);
        member.widen_bad(&limits);
        assert_eq!(member.readable(Sector(0), Sectors(100)), Sectors(8));
        assert_eq!(member.readable(Sector(23), Sectors(100)), Sectors::ZERO);
        assert_eq!(member.readable(Sector(24), Sectors(100)), Sectors(100));
    }

    #[test]
    fn bad_ranges_are_remembered_once_forgotten_when_mended_and_bounded() {
        let member = member(None, vec![]);
        assert!(member.is_ordinary());
        assert!(member.add_bad(Sector(8), Sectors(8)) && member.add_bad(Sector(8), Sectors(8)));
        assert_eq!(member.bad_ranges(), 1);
        member.remove_bad(Sector(8), Sectors(8));
        assert!(member.is_ordinary());
        let added = (0..).take_while(|n| member.add_bad(Sector(n * 2), Sectors(1))).count();
        assert_eq!(added, BAD_RANGES_MAX);
    }
}
