//! Numbers of requests that are under way, to find one that is used twice.

use std::collections::BTreeSet;

/// A set of numbers that front ends choose. Linux' are below the ring's size, and cost a bit each; any other works too.
#[derive(Debug)]
pub(super) struct Ids {
    small: Vec<u64>,
    others: BTreeSet<u64>,
}

impl Ids {
    /// None. Numbers below `small` are the cheap ones.
    pub(super) fn new(small: u32) -> Ids {
        Ids { small: vec![0; (small as usize).div_ceil(64)], others: BTreeSet::new() }
    }

    #[inline]
    fn bit(&mut self, id: u64) -> Option<(&mut u64, u64)> {
        let word = usize::try_from(id / 64).ok()?;
        Some((self.small.get_mut(word)?, 1 << (id % 64)))
    }

    /// Adds a number; whether it was not there.
    #[inline]
    pub(super) fn insert(&mut self, id: u64) -> bool {
        match self.bit(id) {
            Some((word, bit)) => {
                let is_new = *word & bit == 0;
                *word |= bit;
                is_new
            }
            None => self.others.insert(id),
        }
    }

    /// Takes a number away.
    #[inline]
    pub(super) fn remove(&mut self, id: u64) {
        match self.bit(id) {
            Some((word, bit)) => *word &= !bit,
            None => drop(self.others.remove(&id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_there_from_insert_to_remove() {
        let mut ids = Ids::new(32);
        for id in [0, 31, 63, 64, u64::MAX] {
            assert!(ids.insert(id));
            assert!(!ids.insert(id), "{id} is there");
            ids.remove(id);
            assert!(ids.insert(id));
        }
    }
}
