//! Which extents a volume gets: LVM's policy `normal`, and what `contiguous` and `cling` take away from it.
//!
//! A volume has one or more *columns* (stripes, or legs of a mirror), each of which gets the same number of extents. They are
//! given in *rounds*: in a round every column gets one run of extents, all of one length, on PVs that differ. First what
//! follows the volume's last extents; then, with `cling`, what is on the PVs that its columns end on; then what else there is, of
//! each PV its largest free run, the first PVs first where that is enough. This is where LVM's own `lvcreate` and `lvextend` put a
//! volume that needs one round; where free space is in many pieces, the order in which LVM takes these may be another.
//!
//! Legs of a mirror stay apart for good: a PV that has a part of one leg is never used for another one, in whichever round.
//! (LVM looks at each round by itself, and so may put the end of one leg beside the start of another.)

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

    /// The largest run of a PV; of equal ones the first.
    fn largest(&self, pv: PvIndex) -> Option<Run> {
        self.runs[pv.0].iter().rev().max_by_key(|run| run.count).copied()
    }

    /// The run that begins at an extent.
    fn at(&self, pv: PvIndex, extent: u64) -> Option<Run> {
        self.runs[pv.0].iter().find(|run| run.start == extent).copied()
    }

    /// Takes the first `count` extents of the run that begins at `start`.
    fn take(&mut self, pv: PvIndex, start: u64, count: u64) {
        let runs = &mut self.runs[pv.0];
        let at = runs.iter().position(|run| run.start == start).expect("a run that was found");
        if runs[at].count == count {
            runs.remove(at);
        } else {
            runs[at] = Run { start: start + count, count: runs[at].count - count };
        }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Of each column: the PV and the extent behind its last one; nothing known of columns of a new volume.
    pub columns: Vec<Option<(PvIndex, u64)>>,
    /// Extents that the first round has to have at least.
    pub first: u64,
    /// Columns never share a PV: what each of them is on already, or nothing where rounds are looked at one by one.
    pub apart: Option<&'a [Vec<PvIndex>]>,
    /// How it may lie.
    pub policy: Policy,
}

/// A run for each column, all of the same length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Extents of each.
    pub count: u64,
    /// Where each begins.
    pub starts: Vec<(PvIndex, u64)>,
}

/// Takes what is asked for out of `free`. None where there is not enough: `free` is then as it was.
pub fn allocate(free: &mut FreeExtents, request: &Request<'_>) -> Option<Vec<Round>> {
    let mut allocation = Allocation {
        free: free.clone(),
        left: request.extents,
        first: request.first,
        ends: request.columns.clone(),
        owners: request.apart.map(owners),
        rounds: Vec::new(),
    };
    let follows = request.columns.iter().all(Option::is_some);
    if follows {
        allocation.round(|it, column| it.behind(column));
        while request.policy != Policy::Contiguous && allocation.round(|it, column| it.beside(column)) {}
    }
    let may_move = match request.policy {
        Policy::Normal => true,
        Policy::Contiguous | Policy::Cling => !follows,
    };
    if may_move {
        let least = if request.policy == Policy::Contiguous { request.extents } else { 1 };
        while allocation.anywhere(least) {}
    }
    (allocation.left == 0).then(|| {
        *free = allocation.free;
        allocation.rounds
    })
}

/// Which column has a part on a PV.
type Owners = BTreeMap<PvIndex, usize>;

fn owners(apart: &[Vec<PvIndex>]) -> Owners {
    apart.iter().enumerate().flat_map(|(column, pvs)| pvs.iter().map(move |pv| (*pv, column))).collect()
}

/// An allocation under way.
struct Allocation {
    free: FreeExtents,
    /// Extents that each column still needs.
    left: u64,
    /// What the next round has to have at least: 1 but for the first.
    first: u64,
    ends: Vec<Option<(PvIndex, u64)>>,
    owners: Option<Owners>,
    rounds: Vec<Round>,
}

impl Allocation {
    /// What follows a column's end.
    fn behind(&self, column: usize) -> Option<(PvIndex, Run)> {
        let (pv, extent) = self.ends[column]?;
        Some((pv, self.free.at(pv, extent)?))
    }

    /// The largest run on the PV that a column ends on.
    fn beside(&self, column: usize) -> Option<(PvIndex, Run)> {
        let (pv, _) = self.ends[column]?;
        Some((pv, self.free.largest(pv)?))
    }

    /// A round with the run that `find` gives for each column; whether there was one.
    fn round(&mut self, find: impl Fn(&Allocation, usize) -> Option<(PvIndex, Run)>) -> bool {
        let found: Option<Vec<(PvIndex, Run)>> =
            (0..self.ends.len()).map(|column| find(self, column)).collect();
        let Some(found) = found.filter(|found| are_apart(found)) else { return false };
        self.give(&found)
    }

    /// A round wherever there is room for runs of `least` extents.
    fn anywhere(&mut self, least: u64) -> bool {
        let most = self.left;
        let least = least.max(self.first).min(most.max(1));
        let mut runs: Vec<(PvIndex, Run)> = (0..self.free.runs.len())
            .map(PvIndex)
            .filter_map(|pv| Some((pv, self.free.largest(pv)?)))
            .filter(|(_, run)| run.count >= least)
            .collect();
        // More than what is needed is no better; of equal ones the first PV.
        runs.sort_by_key(|(_, run)| std::cmp::Reverse(run.count.min(most)));
        let found = match &self.owners {
            None => runs.get(..self.ends.len()).map(<[_]>::to_vec),
            Some(owners) => own_runs(owners, &runs, self.ends.len()),
        };
        found.is_some_and(|found| self.give(&found))
    }

    fn give(&mut self, found: &[(PvIndex, Run)]) -> bool {
        let shortest = found.iter().map(|(_, run)| run.count).min().unwrap_or(0);
        let count = shortest.min(self.left);
        if count == 0 || count < self.first {
            return false;
        }
        for (column, (pv, run)) in found.iter().enumerate() {
            self.free.take(*pv, run.start, count);
            self.ends[column] = Some((*pv, run.start + count));
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

fn are_apart(found: &[(PvIndex, Run)]) -> bool {
    let mut pvs: Vec<PvIndex> = found.iter().map(|(pv, _)| *pv).collect();
    pvs.sort_unstable();
    pvs.windows(2).all(|pair| pair[0] != pair[1])
}

/// For each column the best run on a PV of its own, or else on one that is nobody's.
fn own_runs(owners: &Owners, runs: &[(PvIndex, Run)], columns: usize) -> Option<Vec<(PvIndex, Run)>> {
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
        Request { extents, columns: vec![None; columns], first: 1, apart: None, policy: Policy::Normal }
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
        more.columns = vec![Some((PvIndex(0), 4)), Some((PvIndex(1), 2))];
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
                let runs: Vec<_> =
                    round.starts.iter().map(|(pv, at)| (*pv, Run { start: *at, count: 1 })).collect();
                prop_assert!(are_apart(&runs));
                for (column, (pv, start)) in round.starts.iter().enumerate() {
                    prop_assert!(inside(*pv, *start, round.count));
                    prop_assert!(!apart || *owner.entry(*pv).or_insert(column) == column);
                }
            }
        }
    }
}
