//! Which extents a volume gets: where LVM's own `lvcreate` and `lvextend` put it, with their policies `contiguous`, `cling` and
//! `normal`.
//!
//! A volume has one or more *columns* (stripes, or legs of a mirror), each of which gets the same number of extents. They are
//! given in *rounds*: in a round every column gets one run of extents, all of one length, on PVs that differ. The policies are tried in
//! turn, up to the volume's own, and each goes on with what the one before has left to do:
//!
//! 1. *contiguous*, one round: what follows the volume's last extents. A new volume gets of each PV the smallest run that is
//!    large enough, or else the largest one; the longest of these, and of equally long ones those on the first PVs.
//! 2. *cling*, while it finds something: the largest run of each PV that the volume is on already, column by column.
//! 3. *normal*: on the PVs that it is on; where that finds nothing, a round as that of a new volume.
//!
//! In what order LVM comes to the runs of a PV decides which it takes, and is kept here too ([`Areas`]).
//!
//! Legs of a mirror stay apart for good: a PV that has a part of one leg is never used for another one, in whichever round.
//! (LVM looks at each round by itself, and so may put the end of one leg beside the start of another.)
//!
//! Source: what `lib/metadata/lv_manip.c` and `pv_map.c` of LVM 2.03 do, and `lvcreate` itself, which the tests ask.

use std::collections::BTreeMap;

use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{Area, PvIndex};

/// A run of extents of a PV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First extent.
    pub start: u64,
    /// How many.
    pub count: u64,
}

/// What no volume uses, of the PVs that may be allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeExtents {
    /// By PV, in the order of their extents.
    runs: Vec<Vec<Run>>,
}

impl FreeExtents {
    /// Of a group.
    pub fn of(vg: &VolumeGroup) -> FreeExtents {
        let mut used: Vec<Vec<Run>> = vec![Vec::new(); vg.pvs.len()];
        for segment in vg.lvs.iter().flat_map(|lv| &lv.segments) {
            let (areas, count) = segment.areas();
            for area in areas {
                if let Area::Pv { pv, extent } = *area {
                    used[pv.0].push(Run { start: extent, count });
                }
            }
        }
        let runs = vg.pvs.iter().zip(used).map(|(pv, used)| {
            if pv.flags.has("ALLOCATABLE") && !pv.missing() { gaps(used, pv.pe_count) } else { Vec::new() }
        });
        FreeExtents { runs: runs.collect() }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.runs.iter().flatten().map(|run| run.count).sum()
    }

    /// Those of a PV.
    pub fn on(&self, pv: PvIndex) -> u64 {
        self.runs[pv.0].iter().map(|run| run.count).sum()
    }

    /// PVs that have any.
    pub fn pvs(&self) -> usize {
        self.runs.iter().filter(|runs| !runs.is_empty()).count()
    }
}

/// What is left between the used runs of a PV.
fn gaps(mut used: Vec<Run>, pe_count: u64) -> Vec<Run> {
    used.sort_unstable_by_key(|run| run.start);
    used.push(Run { start: pe_count, count: 0 });
    let mut free = Vec::new();
    let mut next = 0;
    for run in used {
        if run.start > next {
            free.push(Run { start: next, count: run.start - next });
        }
        next = run.start + run.count;
    }
    free
}

/// How a volume may lie, by its `allocation_policy` or its group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Policy {
    /// One run, and what follows it.
    Contiguous,
    /// Only on PVs that it is on already.
    Cling,
    /// Anywhere, columns on different PVs.
    Normal,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Extents for each column.
    pub extents: u64,
    /// Columns.
    pub columns: usize,
    /// Where the columns of a volume that is there go on, one for each; none of a new volume.
    pub there: Vec<Column>,
    /// Extents that the first round has to have at least.
    pub first: u64,
    /// Columns never share a PV: what each of them is on already, or nothing where rounds are looked at one by one.
    pub apart: Option<&'a [Vec<PvIndex>]>,
    /// How it may lie.
    pub policy: Policy,
    /// As much as there is room for will do.
    pub approximate: bool,
}

/// A column that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The PV that it ends on, and the extent behind its last one.
    pub end: (PvIndex, u64),
    /// The PV that it begins on, if its first segment has such a column: what LVM clings to.
    pub head: Option<PvIndex>,
}

/// A run for each column, all of the same length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Extents of each.
    pub count: u64,
    /// Where each begins.
    pub starts: Vec<(PvIndex, u64)>,
}

/// Takes what is asked for out of `free`, or as much as there is where that will do. None where there is not enough: `free` is then as it was.
pub fn allocate(free: &mut FreeExtents, request: &Request<'_>) -> Option<Vec<Round>> {
    let mut allocation = Allocation {
        request,
        free: free.runs.iter().map(|runs| Areas::new(runs)).collect(),
        left: request.extents,
        first: request.first,
        given: vec![Vec::new(); request.columns],
        owners: request.apart.map(owners),
        rounds: Vec::new(),
    };
    allocation.contiguous();
    if request.policy >= Policy::Cling {
        allocation.cling();
    }
    if request.policy >= Policy::Normal {
        allocation.normal();
    }
    let is_enough = allocation.left == 0 || request.approximate && !allocation.rounds.is_empty();
    is_enough.then(|| {
        free.runs = allocation.free.iter().map(Areas::runs).collect();
        allocation.rounds
    })
}

/// Free runs of a PV, the largest first, as LVM goes through them.
///
/// What a look at a run would take is taken off it for the rest of the round, and it then stands behind all that are as large as its
/// rest; the look goes on from there. So a run that would have fitted better is passed over where it is larger than that rest. It
/// is odd, but it decides where volumes lie.
struct Areas {
    areas: Vec<Free>,
    /// A look has taken something off some of them.
    is_touched: bool,
}

#[derive(Clone, Copy)]
struct Free {
    run: Run,
    /// What looks of this round have left of it, extents.
    rest: u64,
}

impl Areas {
    fn new(runs: &[Run]) -> Areas {
        let mut areas = Areas { areas: Vec::with_capacity(runs.len()), is_touched: false };
        for run in runs {
            areas.insert(Free { run: *run, rest: run.count }, run.count);
        }
        areas
    }

    /// Puts one in, behind all that are at least `size` large; where it is then.
    fn insert(&mut self, area: Free, size: u64) -> usize {
        let at = self.areas.iter().position(|other| size > other.run.count).unwrap_or(self.areas.len());
        self.areas.insert(at, area);
        at
    }

    /// A round begins: nothing has been looked at. Those that were go behind others of their size.
    fn forget_looks(&mut self) {
        if !std::mem::take(&mut self.is_touched) {
            return;
        }
        let mut at = 0;
        while let Some(area) = self.areas.get(at).copied() {
            if area.rest != area.run.count {
                self.areas.remove(at);
                at = self.insert(Free { rest: area.run.count, ..area }, area.run.count);
            }
            at += 1;
        }
    }

    /// Looks at one for as much as `needed`: how much it has, and where it is then.
    fn look(&mut self, at: usize, needed: u64) -> (u64, usize) {
        self.is_touched = true;
        let area = &mut self.areas[at];
        let found = needed.min(area.rest);
        area.rest -= found;
        if area.rest == 0 {
            return (found, at);
        }
        let area = self.areas.remove(at);
        (found, self.insert(area, area.rest))
    }

    /// Takes the first `count` extents of the run that begins at `start`.
    fn take(&mut self, start: u64, count: u64) {
        let at = self.areas.iter().position(|area| area.run.start == start).expect("a run that was found");
        let Run { count: all, .. } = self.areas.remove(at).run;
        if count < all {
            let run = Run { start: start + count, count: all - count };
            self.insert(Free { run, rest: run.count }, run.count);
        }
    }

    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = self.areas.iter().map(|area| area.run).collect();
        runs.sort_unstable_by_key(|run| run.start);
        runs
    }
}

/// A run that a column can have, as far as it is needed.
type Found = (PvIndex, Run);

/// Which column has a part on a PV.
type Owners = BTreeMap<PvIndex, usize>;

fn owners(apart: &[Vec<PvIndex>]) -> Owners {
    apart.iter().enumerate().flat_map(|(column, pvs)| pvs.iter().map(move |pv| (*pv, column))).collect()
}

/// Which runs a round by size takes into account.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// Those on PVs that the volume is on, whatever their size: of each PV the last that is come to.
    OnVolume,
    /// The same, and on those that it was given by this request.
    Near,
    /// Of each PV the smallest that is large enough; or else the largest, where a run may be too short.
    Anywhere { may_be_short: bool },
}

/// Whether a run that begins at an extent of a PV is one for a column.
type Fits<'a> = dyn Fn(&Allocation<'_>, usize, (PvIndex, u64)) -> bool + 'a;

/// The column goes on there.
fn goes_on(allocation: &Allocation<'_>, column: usize, start: (PvIndex, u64)) -> bool {
    allocation.request.there[column].end == start
}

/// An allocation under way.
struct Allocation<'a> {
    request: &'a Request<'a>,
    /// By PV.
    free: Vec<Areas>,
    /// What each column still needs.
    left: u64,
    /// What the next round has to have at least: 1 but for the first.
    first: u64,
    /// By column: PVs that it was given something on.
    given: Vec<Vec<PvIndex>>,
    owners: Option<Owners>,
    rounds: Vec<Round>,
}

impl Allocation<'_> {
    fn is_new(&self) -> bool {
        self.request.there.is_empty()
    }

    fn contiguous(&mut self) {
        if self.is_new() {
            self.by_size(Where::Anywhere { may_be_short: self.request.policy != Policy::Contiguous });
        } else {
            self.by_column(true, &[&goes_on]);
        }
    }

    fn cling(&mut self) {
        if self.is_new() {
            let follows =
                |it: &Allocation<'_>, column: usize, (pv, _): (PvIndex, u64)| it.given[column].contains(&pv);
            while self.by_column(false, &[&follows]) {}
            return;
        }
        let begins = |it: &Allocation<'_>, column: usize, (pv, _): (PvIndex, u64)| {
            it.request.there[column].head == Some(pv)
        };
        while self.by_column(false, &[&goes_on, &begins]) {}
        while self.by_size(Where::OnVolume) {}
    }

    fn normal(&mut self) {
        loop {
            while self.by_size(Where::Near) {}
            if !self.by_size(Where::Anywhere { may_be_short: true }) {
                return;
            }
        }
    }

    /// A round with a run for each column that fits it by one of the tests, in their order; of each PV the first such run, of `all` that
    /// it has or of the largest alone. Whether there was one.
    fn by_column(&mut self, all: bool, tests: &[&Fits<'_>]) -> bool {
        self.free.iter_mut().for_each(Areas::forget_looks);
        let mut found: Vec<Option<Found>> = vec![None; self.request.columns];
        for (pv, areas) in self.free.iter().enumerate().map(|(pv, areas)| (PvIndex(pv), areas)) {
            for Free { run, .. } in areas.areas.iter().take(if all { usize::MAX } else { 1 }) {
                let by_one = |fits: &&Fits<'_>| {
                    (0..found.len()).find(|at| found[*at].is_none() && fits(self, *at, (pv, run.start)))
                };
                if let Some(column) = tests.iter().find_map(by_one) {
                    found[column] = Some((pv, *run));
                    break;
                }
            }
        }
        found.into_iter().collect::<Option<Vec<Found>>>().is_some_and(|found| self.give(&found))
    }

    /// A round with the longest runs of those that the PVs have there, one of each; of equally long ones those on the first PVs.
    /// Whether there was one.
    fn by_size(&mut self, place: Where) -> bool {
        self.free.iter_mut().for_each(Areas::forget_looks);
        let mut free = std::mem::take(&mut self.free);
        let best = free.iter_mut().enumerate().filter_map(|(pv, areas)| {
            let pv = PvIndex(pv);
            self.best(areas, pv, place).map(|run| (pv, run))
        });
        let mut runs: Vec<Found> = best.filter(|(_, run)| run.count >= self.first).collect();
        self.free = free;
        runs.sort_by_key(|(_, run)| std::cmp::Reverse(run.count));
        let found = match &self.owners {
            None => runs.get(..self.request.columns).map(<[_]>::to_vec),
            Some(owners) => own_runs(owners, &runs, self.request.columns),
        };
        found.is_some_and(|found| self.give(&found))
    }

    /// What a PV has for a round by size.
    fn best(&self, areas: &mut Areas, pv: PvIndex, place: Where) -> Option<Run> {
        let mut best = None;
        let mut at = 0;
        while let Some(area) = areas.areas.get(at).copied() {
            let is_usable = match place {
                Where::OnVolume => self.is_on(pv, area.run.start),
                Where::Near => {
                    self.is_on(pv, area.run.start) || self.given.iter().any(|pvs| pvs.contains(&pv))
                }
                Where::Anywhere { may_be_short } => area.rest >= self.left || may_be_short && best.is_none(),
            };
            if area.rest == 0 {
                at += 1;
                continue;
            }
            if !is_usable {
                break;
            }
            let (count, now) = areas.look(at, self.left);
            best = Some(Run { start: area.run.start, count });
            at = now + 1;
        }
        best
    }

    /// Whether the volume goes on there, or begins on that PV.
    fn is_on(&self, pv: PvIndex, start: u64) -> bool {
        self.request.there.iter().any(|column| column.end == (pv, start) || column.head == Some(pv))
    }

    fn give(&mut self, found: &[Found]) -> bool {
        let shortest = found.iter().map(|(_, run)| run.count).min().unwrap_or(0);
        let count = shortest.min(self.left);
        if count == 0 || count < self.first {
            return false;
        }
        for (column, (pv, run)) in found.iter().enumerate() {
            self.free[pv.0].take(run.start, count);
            if !self.given[column].contains(pv) {
                self.given[column].push(*pv);
            }
            if let Some(owners) = &mut self.owners {
                owners.insert(*pv, column);
            }
        }
        let starts = found.iter().map(|(pv, run)| (*pv, run.start)).collect();
        self.rounds.push(Round { count, starts });
        self.left -= count;
        self.first = 1;
        true
    }
}

/// For each column the best run on a PV of its own, or else on one that is nobody's.
fn own_runs(owners: &Owners, runs: &[Found], columns: usize) -> Option<Vec<Found>> {
    let mut nobodys = runs.iter().filter(|(pv, _)| !owners.contains_key(pv));
    let one = |column| {
        let own = runs.iter().find(|(pv, _)| owners.get(pv) == Some(&column));
        own.or_else(|| nobodys.next()).copied()
    };
    (0..columns).map(one).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn free(pvs: &[&[(u64, u64)]]) -> FreeExtents {
        let run = |(start, count): &(u64, u64)| Run { start: *start, count: *count };
        FreeExtents { runs: pvs.iter().map(|pv| pv.iter().map(run).collect()).collect() }
    }

    fn request(columns: usize, extents: u64) -> Request<'static> {
        Request {
            extents,
            columns,
            there: Vec::new(),
            first: 1,
            apart: None,
            policy: Policy::Normal,
            approximate: false,
        }
    }

    /// Extents, and where each column has them: PV and start.
    type Plain = (u64, Vec<(usize, u64)>);

    fn given(free: &mut FreeExtents, request: &Request<'_>) -> Option<Vec<Plain>> {
        let rounds = allocate(free, request)?;
        let plain = |round: Round| (round.count, round.starts.iter().map(|(pv, at)| (pv.0, *at)).collect());
        Some(rounds.into_iter().map(plain).collect())
    }

    #[test]
    fn a_new_volume_gets_the_first_run_that_is_large_enough_and_otherwise_the_largest_ones() {
        let pvs = free(&[&[(0, 4), (10, 3)], &[(5, 9)], &[(0, 20)]]);
        assert_eq!(given(&mut pvs.clone(), &request(1, 4)), Some(vec![(4, vec![(0, 0)])]));
        assert_eq!(given(&mut pvs.clone(), &request(1, 9)), Some(vec![(9, vec![(1, 5)])]));
        let three = vec![(20, vec![(2, 0)]), (9, vec![(1, 5)]), (4, vec![(0, 0)]), (1, vec![(0, 10)])];
        assert_eq!(given(&mut pvs.clone(), &request(1, 34)), Some(three));
        let mut left = pvs.clone();
        assert_eq!(given(&mut left, &request(1, 37)), None);
        assert_eq!(left, pvs, "nothing is taken where it is not enough");
    }

    #[test]
    fn columns_lie_on_different_pvs_and_continue_where_they_end() {
        let pvs = free(&[&[(4, 6)], &[(2, 20)], &[(0, 20)]]);
        assert_eq!(given(&mut pvs.clone(), &request(2, 5)), Some(vec![(5, vec![(0, 4), (1, 2)])]));
        let mut more = request(2, 8);
        let column = |pv, behind| Column { end: (PvIndex(pv), behind), head: Some(PvIndex(pv)) };
        more.there = vec![column(0, 4), column(1, 2)];
        let expected = vec![(6, vec![(0, 4), (1, 2)]), (2, vec![(1, 8), (2, 0)])];
        assert_eq!(given(&mut pvs.clone(), &more), Some(expected));
        more.policy = Policy::Contiguous;
        assert_eq!(given(&mut pvs.clone(), &more), None);
        more.policy = Policy::Cling;
        assert_eq!(given(&mut pvs.clone(), &more), None);
        assert_eq!(given(&mut pvs.clone(), &request(4, 1)), None, "there are three");
    }

    #[test]
    fn legs_that_stay_apart_never_share_a_pv_in_whichever_round() {
        let pvs = free(&[&[(0, 5)], &[(0, 20)], &[(0, 20)]]);
        let mut legs = request(2, 8);
        legs.apart = Some(&[]);
        assert_eq!(given(&mut pvs.clone(), &legs), Some(vec![(8, vec![(1, 0), (2, 0)])]));
        let parts = [vec![PvIndex(1)], vec![PvIndex(0)]];
        legs.apart = Some(&parts);
        let expected = vec![(5, vec![(1, 0), (0, 0)]), (3, vec![(1, 5), (2, 0)])];
        assert_eq!(given(&mut pvs.clone(), &legs), Some(expected));
        let all = [vec![PvIndex(1), PvIndex(2)], vec![PvIndex(0)]];
        legs.apart = Some(&all);
        assert_eq!(given(&mut pvs.clone(), &legs), None);
    }

    #[test]
    fn a_first_round_that_needs_more_is_not_begun_on_less() {
        let mut needs = request(1, 3);
        needs.first = 3;
        assert_eq!(given(&mut free(&[&[(0, 2), (5, 1)]]), &needs), None);
        assert_eq!(given(&mut free(&[&[(0, 2), (5, 3)]]), &needs), Some(vec![(3, vec![(0, 5)])]));
    }

    proptest! {
        #[test]
        fn what_is_given_was_free_is_given_once_and_is_as_much_as_was_asked_for(
            used in proptest::collection::vec(proptest::collection::vec((0u64..40, 1u64..6), 0..6), 1..5),
            columns in 1usize..4, extents in 1u64..60, apart: bool,
        ) {
            let runs: Vec<Vec<Run>> = used.iter().map(|used| {
                let mut taken = [false; 50];
                used.iter().flat_map(|(start, count)| *start..start + count).for_each(|at| taken[at as usize] = true);
                let used = (0u64..50).filter(|at| taken[*at as usize]).map(|start| Run { start, count: 1 }).collect();
                gaps(used, 50)
            }).collect();
            let before = FreeExtents { runs };
            let mut free = before.clone();
            let mut asked = request(columns, extents);
            asked.apart = apart.then_some(&[]);
            let Some(rounds) = allocate(&mut free, &asked) else {
                prop_assert!(columns > 1 || before.total() < extents, "one column can have whatever is free");
                return Ok(());
            };
            prop_assert_eq!(rounds.iter().map(|round| round.count).sum::<u64>(), extents);
            prop_assert_eq!(free.total() + extents * columns as u64, before.total());
            let inside = |pv: PvIndex, start: u64, count: u64| {
                before.runs[pv.0].iter().any(|run| run.start <= start && start + count <= run.start + run.count)
            };
            let mut owner = BTreeMap::new();
            for round in &rounds {
                let pvs: std::collections::BTreeSet<_> = round.starts.iter().map(|(pv, _)| *pv).collect();
                prop_assert_eq!(pvs.len(), columns);
                for (column, (pv, start)) in round.starts.iter().enumerate() {
                    prop_assert!(inside(*pv, *start, round.count));
                    prop_assert!(!apart || *owner.entry(*pv).or_insert(column) == column);
                }
            }
        }
    }
}
