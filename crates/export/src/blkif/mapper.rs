//! Pages of a front end, mapped for its requests; those that it uses again and again stay mapped.

use std::collections::{BTreeMap, VecDeque};

use blockwork_memory::Segment;

use super::{Access, GrantError, GrantRef, Grants};

/// Maps pages for requests.
///
/// Of a front end that said that it uses the same pages again (`feature-persistent`), pages are mapped to write, as the
/// protocol says, and kept: as many as its ring can name at a time, the oldest making room for the newest.
pub(super) struct Mapper {
    grants: Box<dyn Grants>,
    /// Pages kept at most; 0: none.
    most: usize,
    kept: BTreeMap<GrantRef, Segment>,
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
            kept: BTreeMap::new(),
            ages: VecDeque::new(),
            missing: Vec::new(),
            mapped: Vec::new(),
        }
    }

    /// The pages of these grants, in their order.
    pub(super) fn pages(
        &mut self,
        refs: impl Iterator<Item = GrantRef> + Clone,
        access: Access,
        out: &mut Vec<Segment>,
    ) -> Result<(), GrantError> {
        out.clear();
        self.mapped.clear();
        if self.most == 0 {
            self.missing.clear();
            self.missing.extend(refs);
            return self.grants.map(&self.missing, access, out);
        }
        self.missing.clear();
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
        for (gref, page) in self.missing.drain(..).zip(self.mapped.drain(..)) {
            self.kept.insert(gref, page);
            self.ages.push_back(gref);
        }
        out.extend(refs.map(|gref| self.kept[&gref].clone()));
        while self.kept.len() > self.most {
            let oldest = self.ages.pop_front().expect("each page that is kept has an age");
            self.kept.remove(&oldest);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    use blockwork_memory::Buffer;

    type Told = Rc<RefCell<Vec<(GrantRef, Access)>>>;

    /// Maps any page, and tells which.
    struct Telling(Told);

    impl Grants for Telling {
        fn map(
            &mut self,
            refs: &[GrantRef],
            access: Access,
            out: &mut Vec<Segment>,
        ) -> Result<(), GrantError> {
            if let Some(&gref) = refs.iter().find(|gref| **gref == 13) {
                return Err(GrantError { gref, reason: "not granted".to_owned() });
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
}
