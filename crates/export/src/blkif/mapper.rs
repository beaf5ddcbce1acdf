//! Pages of a front end, mapped for its requests; those that it uses again and again stay mapped.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicUsize, Ordering};

use blockwork_format::spread::Spread;
use blockwork_memory::{MappingBudget, Segment};

use super::{Access, GrantError, GrantRef, Grants};

/// Pages that a ring keeps at most: as many as Linux' back end does.
pub const KEPT_MAX: usize = 1056;

/// Mappings that all rings which share this may have. A process has so many and no more: whoever would have too many would leave none to
/// others.
///
/// Invariants:
/// 1. Pages are kept while that budget has so many taken at most. Each may be a mapping of its own.
/// 2. Of other mappings, requests under way have so many at most: each ring an equal share, and one request in any case. So a ring waits for
///    requests of its own, never for those of another, however many those are and however long they take. What was under way when another ring
///    began goes on.
#[derive(Debug)]
pub struct Mappings {
    budget: &'static MappingBudget,
    budget_most: usize,
    under_way: usize,
    rings: AtomicUsize,
}

impl Mappings {
    /// Pages that are kept from this budget, while so many are taken of it at most; so many mappings of requests under way.
    pub const fn new(budget: &'static MappingBudget, budget_most: usize, under_way: usize) -> Mappings {
        Mappings { budget, budget_most, under_way, rings: AtomicUsize::new(0) }
    }

    /// Whether so many are no more than half of a ring's share.
    fn is_half(&self, count: usize) -> bool {
        count.saturating_mul(2).saturating_mul(self.rings.load(Ordering::Relaxed)) <= self.under_way
    }

    /// Takes one that is kept, if there is one left.
    fn take(&self) -> bool {
        self.budget.take(self.budget_most)
    }

    fn give_back(&self, count: usize) {
        self.budget.give_back(count);
    }
}

/// Maps pages for requests.
///
/// Of a front end that said that it uses the same pages again (`feature-persistent`), pages are mapped to write, as the
/// protocol says, and kept: as many as its ring can name at a time, up to [`KEPT_MAX`], the oldest making room for the newest.
/// Where others have all that may be kept, they are mapped for their request only.
///
/// A request under way has one mapping of its own, for those of its pages that were not kept; and any that is kept no more, since it made room
/// meanwhile. Half of the ring's share is for either: that many requests are under way, and room is made while they have that many pages.
pub(super) struct Mapper {
    grants: Box<dyn Grants>,
    /// Pages kept at most; 0: none.
    most: usize,
    all: Option<&'static Mappings>,
    /// Requests under way that have pages, and these pages.
    requests: usize,
    pages: usize,
    kept: HashMap<GrantRef, Segment, BuildHasherDefault<Spread>>,
    ages: VecDeque<GrantRef>,
    missing: Vec<GrantRef>,
    mapped: Vec<Segment>,
}

impl Mapper {
    /// Keeps up to `most` pages.
    pub(super) fn new(grants: Box<dyn Grants>, most: usize) -> Mapper {
        Mapper {
            grants,
            most,
            all: None,
            requests: 0,
            pages: 0,
            kept: HashMap::default(),
            ages: VecDeque::new(),
            missing: Vec::new(),
            mapped: Vec::new(),
        }
    }

    /// Of these, which it shares with others. To be said before anything is kept.
    pub(super) fn within(mut self, all: &'static Mappings) -> Mapper {
        debug_assert!(self.all.is_none() && self.kept.is_empty(), "nothing is kept yet");
        all.rings.fetch_add(1, Ordering::Relaxed);
        self.all = Some(all);
        self
    }

    /// Whether one more request may be under way. Where none is, one may.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.requests == 0 || self.all.is_none_or(|all| all.is_half(self.requests + 1))
    }

    /// A request has so many pages until it [ends](Mapper::ended).
    #[inline]
    pub(super) fn began(&mut self, pages: usize) {
        self.requests += usize::from(pages > 0);
        self.pages += pages;
    }

    /// It has them no more.
    #[inline]
    pub(super) fn ended(&mut self, pages: usize) {
        self.requests -= usize::from(pages > 0);
        self.pages -= pages;
    }

    /// The pages of these grants, in their order.
    pub(super) fn pages(
        &mut self,
        refs: impl Iterator<Item = GrantRef> + Clone,
        access: Access,
        out: &mut Vec<Segment>,
    ) -> Result<(), GrantError> {
        match self.try_pages(refs.clone(), access, out) {
            // What is kept is worth less than what is asked for.
            Err(error) if error.no_room && !self.kept.is_empty() => {
                log::debug!("xen: {error}; {} pages that were kept are given up for it", self.kept.len());
                self.give_up();
                self.try_pages(refs, access, out)
            }
            other => other,
        }
    }

    fn try_pages(
        &mut self,
        refs: impl Iterator<Item = GrantRef> + Clone,
        access: Access,
        out: &mut Vec<Segment>,
    ) -> Result<(), GrantError> {
        out.clear();
        self.missing.clear();
        self.mapped.clear();
        if self.most == 0 {
            self.missing.extend(refs);
            return self.grants.map(&self.missing, access, out);
        }
        for gref in refs.clone() {
            match self.kept.get(&gref) {
                Some(page) => out.push(page.clone()),
                None => self.missing.push(gref),
            }
        }
        if self.missing.is_empty() {
            return Ok(());
        }
        out.clear();
        self.missing.sort_unstable();
        self.missing.dedup();
        self.grants.map(&self.missing, Access::Write, &mut self.mapped)?;
        out.extend(refs.map(|gref| match self.missing.binary_search(&gref) {
            Ok(place) => self.mapped[place].clone(),
            Err(_) => self.kept[&gref].clone(),
        }));
        self.keep(out.len());
        Ok(())
    }

    /// Keeps what was mapped, as far as that may be, for a request with so many pages.
    fn keep(&mut self, at_hand: usize) {
        let may_forget = self.all.is_none_or(|all| all.is_half(self.pages + at_hand));
        for (gref, page) in self.missing.drain(..).zip(self.mapped.drain(..)) {
            if self.kept.len() == self.most {
                if !may_forget {
                    continue;
                }
                let oldest = self.ages.pop_front().expect("each page that is kept has an age");
                self.kept.remove(&oldest);
            } else if !self.all.is_none_or(Mappings::take) {
                continue;
            }
            self.kept.insert(gref, page);
            self.ages.push_back(gref);
        }
    }

    /// Keeps nothing of what was kept.
    fn give_up(&mut self) {
        if let Some(all) = self.all {
            all.give_back(self.kept.len());
        }
        self.kept.clear();
        self.ages.clear();
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        self.give_up();
        if let Some(all) = self.all {
            all.rings.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    use blockwork_memory::Buffer;

    type Told = Rc<RefCell<Vec<(GrantRef, Access)>>>;

    /// Maps any page but that of one grant, and tells which.
    struct Telling(Told);

    impl Grants for Telling {
        fn map(
            &mut self,
            refs: &[GrantRef],
            access: Access,
            out: &mut Vec<Segment>,
        ) -> Result<(), GrantError> {
            if let Some(&gref) = refs.iter().find(|gref| **gref == 13) {
                return Err(GrantError { gref, reason: "not granted".to_owned(), no_room: false });
            }
            self.0.borrow_mut().extend(refs.iter().map(|gref| (*gref, access)));
            out.extend(refs.iter().map(|_| Segment::new(Buffer::new(4096), 0, 4096)));
            Ok(())
        }
    }

    fn mapper(most: usize) -> (Mapper, Told) {
        let told = Told::default();
        (Mapper::new(Box::new(Telling(told.clone())), most), told)
    }

    #[test]
    fn a_page_that_is_kept_is_mapped_once_and_to_write() {
        let (mut mapper, told) = mapper(2);
        let mut out = Vec::new();
        mapper.pages([1, 2, 1].into_iter(), Access::Read, &mut out).unwrap();
        assert!(out.len() == 3 && out[0].buffer().same(out[2].buffer()));
        mapper.pages([2].into_iter(), Access::Read, &mut out).unwrap();
        assert_eq!(*told.borrow(), [(1, Access::Write), (2, Access::Write)]);
        mapper.pages([3].into_iter(), Access::Read, &mut out).unwrap();
        mapper.pages([1].into_iter(), Access::Read, &mut out).unwrap();
        assert_eq!(told.borrow()[2..], [(3, Access::Write), (1, Access::Write)], "the oldest made room");
    }

    #[test]
    fn pages_that_are_not_kept_are_mapped_each_time_as_they_are_used() {
        let (mut mapper, told) = mapper(0);
        let mut out = Vec::new();
        mapper.pages([1, 1].into_iter(), Access::Read, &mut out).unwrap();
        mapper.pages([1].into_iter(), Access::Write, &mut out).unwrap();
        assert_eq!(*told.borrow(), [(1, Access::Read), (1, Access::Read), (1, Access::Write)]);
    }

    #[test]
    fn a_page_that_cannot_be_mapped_leaves_nothing_half_done() {
        let (mut mapper, _) = mapper(4);
        let mut out = Vec::new();
        assert!(mapper.pages([1, 13].into_iter(), Access::Read, &mut out).is_err());
        assert!(out.is_empty());
        mapper.pages([1].into_iter(), Access::Read, &mut out).unwrap();
    }

    #[test]
    fn who_shares_what_may_be_kept_maps_the_rest_each_time_and_gives_back_what_it_kept() {
        static BUDGET: MappingBudget = MappingBudget::new();
        static ALL: Mappings = Mappings::new(&BUDGET, 3, 100);
        let (first, _) = mapper(2);
        let (second, told) = mapper(2);
        let (mut first, mut second) = (first.within(&ALL), second.within(&ALL));
        let mut out = Vec::new();
        first.pages([1, 2].into_iter(), Access::Read, &mut out).unwrap();
        for _ in 0..2 {
            second.pages([7, 8, 7].into_iter(), Access::Read, &mut out).unwrap();
            assert!(out.len() == 3 && out[0].buffer().same(out[2].buffer()));
        }
        let refs = |told: &Told| told.borrow_mut().drain(..).map(|(gref, _)| gref).collect::<Vec<_>>();
        assert_eq!(refs(&told), [7, 8, 8], "there was room to keep one");
        first.pages([3, 4].into_iter(), Access::Read, &mut out).unwrap();
        second.pages([8].into_iter(), Access::Read, &mut out).unwrap();
        assert_eq!(refs(&told), [8], "what one keeps in the place of another is the same room");
        drop(first);
        for _ in 0..2 {
            second.pages([7, 8].into_iter(), Access::Read, &mut out).unwrap();
        }
        assert_eq!(refs(&told), [8], "the other has ended");
        drop(second);
        assert_eq!(BUDGET.taken(), 0);
    }

    #[test]
    fn what_somebody_else_has_mapped_is_room_that_pages_do_not_have() {
        static BUDGET: MappingBudget = MappingBudget::new();
        static ALL: Mappings = Mappings::new(&BUDGET, 3, 100);
        assert!((0..2).all(|_| BUDGET.take(4)), "memory that a front end shares");
        let (mapper, told) = mapper(10);
        let mut mapper = mapper.within(&ALL);
        let mut maps = |gref| {
            mapper.pages([gref].into_iter(), Access::Read, &mut Vec::new()).unwrap();
            told.borrow_mut().drain(..).count() > 0
        };
        assert!(maps(1) && !maps(1) && maps(2) && maps(2), "one is kept");
        assert!(BUDGET.take(4) && !BUDGET.take(4), "what is kept leaves one to who cannot do without");
        BUDGET.give_back(2);
        assert!(maps(2) && !maps(2));
    }

    #[test]
    fn each_ring_has_its_share_of_requests_under_way_and_one_in_any_case() {
        static BUDGET: MappingBudget = MappingBudget::new();
        static ALL: Mappings = Mappings::new(&BUDGET, 0, 8);
        let fits = |mapper: &mut Mapper| {
            let mut requests = 0;
            while mapper.has_room() {
                mapper.began(3);
                requests += 1;
            }
            mapper.began(0); // one without pages is none
            (0..requests).for_each(|_| mapper.ended(3));
            requests
        };
        let new = || mapper(0).0.within(&ALL);
        let (mut first, mut second) = (new(), new());
        assert_eq!((fits(&mut first), fits(&mut second)), (2, 2));
        drop(second);
        assert_eq!(fits(&mut first), 4);
        let others: Vec<_> = (0..100).map(|_| new()).collect();
        assert_eq!(fits(&mut first), 1);
        drop(others);
        assert_eq!(fits(&mut first), 4);
    }

    #[test]
    fn pages_that_requests_have_are_not_forgotten_but_for_a_few() {
        static BUDGET: MappingBudget = MappingBudget::new();
        static ALL: Mappings = Mappings::new(&BUDGET, 10, 8);
        let (mapper, told) = mapper(2);
        let mut mapper = mapper.within(&ALL);
        let mapped = |mapper: &mut Mapper, gref| {
            mapper.pages([gref].into_iter(), Access::Read, &mut Vec::new()).unwrap();
            told.borrow_mut().drain(..).count() > 0
        };
        [1, 2].iter().for_each(|gref| assert!(mapped(&mut mapper, *gref)));
        mapper.began(4);
        for _ in 0..2 {
            assert!(mapped(&mut mapper, 3), "it is for its request only");
            assert!(!mapped(&mut mapper, 1) && !mapped(&mut mapper, 2));
        }
        mapper.ended(4);
        mapper.began(3);
        assert!(mapped(&mut mapper, 3) && !mapped(&mut mapper, 3), "it has the place of one");
    }

    /// A process that has room for so many pages, and those that are mapped.
    struct Narrow(usize, Vec<Segment>);

    impl Grants for Narrow {
        fn map(&mut self, refs: &[GrantRef], _: Access, out: &mut Vec<Segment>) -> Result<(), GrantError> {
            // What nobody else has any more is unmapped.
            self.1.retain(|page| !page.buffer().is_unique());
            if self.1.len() + refs.len() > self.0 {
                return Err(GrantError { gref: refs[0], reason: "no room".to_owned(), no_room: true });
            }
            let pages = refs.iter().map(|_| Segment::new(Buffer::new(4096), 0, 4096));
            self.1.extend(pages);
            out.extend_from_slice(&self.1[self.1.len() - refs.len()..]);
            Ok(())
        }
    }

    #[test]
    fn what_is_kept_makes_room_for_what_is_asked_for_where_there_is_none() {
        static BUDGET: MappingBudget = MappingBudget::new();
        static ALL: Mappings = Mappings::new(&BUDGET, 100, 100);
        let mut mapper = Mapper::new(Box::new(Narrow(10, Vec::new())), 100).within(&ALL);
        let mut out = Vec::new();
        mapper.pages(0..8, Access::Read, &mut out).unwrap();
        mapper.pages([3, 20, 21, 22].into_iter(), Access::Read, &mut out).unwrap();
        assert_eq!((out.len(), BUDGET.taken()), (4, 4));
        out.clear();
        let error = mapper.pages(0..11, Access::Read, &mut out).unwrap_err();
        assert!(error.no_room && out.is_empty(), "not even then");
        mapper.pages(0..9, Access::Read, &mut out).unwrap();
    }
}
