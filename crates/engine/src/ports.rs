//! The ports of a worker, by their numbers.
//!
//! A number is a place and a life: the place of a port that has closed is given to another one, which has the next life there.
//!
//! Invariants:
//! 1. No number is given twice: what completes late, for a port that has closed, finds nobody, whoever has the place now. A place
//!    whose lives are used up is not given again.
//! 2. What is kept grows with the ports that are open at a time, and not with those that ever were.

use crate::port::PortId;

/// Bits of a number that say which place; those above, of the 31 that a token takes along, say which life.
const PLACE_BITS: u32 = 16;
const LIFE: u32 = 1 << PLACE_BITS;
const NUMBERS_END: u32 = 1 << 31;

struct Entry<T> {
    id: PortId,
    port: T,
}

/// See the module.
pub(crate) struct Ports<T> {
    places: Vec<Option<Entry<T>>>,
    /// The numbers that come next in places that are free.
    free: Vec<PortId>,
    open: usize,
}

fn place(id: PortId) -> usize {
    (id.0 % LIFE) as usize
}

impl<T> Ports<T> {
    pub(crate) fn new() -> Ports<T> {
        Ports { places: Vec::new(), free: Vec::new(), open: 0 }
    }

    /// Takes up a port.
    ///
    /// # Panics
    /// If there are 65,536 already.
    pub(crate) fn add(&mut self, port: T) -> PortId {
        let id = self.free.pop().unwrap_or_else(|| {
            let next = u32::try_from(self.places.len()).ok().filter(|place| *place < LIFE);
            self.places.push(None);
            PortId(next.expect("at most 65,536 ports at a time"))
        });
        self.places[place(id)] = Some(Entry { id, port });
        self.open += 1;
        id
    }

    /// The port of that number, if it is open.
    #[inline]
    pub(crate) fn get(&mut self, id: PortId) -> Option<&mut T> {
        match self.places.get_mut(place(id)) {
            Some(Some(entry)) if entry.id == id => Some(&mut entry.port),
            _ => None,
        }
    }

    /// It has closed.
    pub(crate) fn remove(&mut self, id: PortId) {
        let Some(found) = self.places.get_mut(place(id)) else { return };
        if found.take_if(|entry| entry.id == id).is_none() {
            return;
        }
        self.open -= 1;
        let next = id.0 + LIFE;
        if next < NUMBERS_END {
            self.free.push(PortId(next));
        }
    }

    /// Those that are open.
    pub(crate) fn ids(&self) -> Vec<PortId> {
        self.places.iter().flatten().map(|entry| entry.id).collect()
    }

    /// How many are open.
    pub(crate) fn len(&self) -> usize {
        self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_later_has_the_place_of_who_has_gone_and_hears_nothing_that_was_for_them() {
        let mut ports = Ports::new();
        let first = [ports.add("a"), ports.add("b")];
        assert_eq!(first, [PortId(0), PortId(1)]);
        ports.remove(first[0]);
        ports.remove(first[0]);
        let later = ports.add("c");
        assert_eq!((ports.get(first[0]).copied(), ports.get(later).copied()), (None, Some("c")));
        ports.remove(first[0]);
        assert_eq!((ports.get(later).copied(), ports.len(), ports.places.len()), (Some("c"), 2, 2));
        assert_eq!(ports.ids(), [later, first[1]]);
        assert_eq!(ports.get(PortId(u32::MAX)), None);
    }

    #[test]
    fn many_that_come_and_go_take_the_room_of_one_and_no_number_twice() {
        let mut ports = Ports::new();
        let mut seen = Vec::new();
        for nth in 0..100_000 {
            let id = ports.add(nth);
            seen.push(id.0);
            assert_eq!(ports.get(id), Some(&mut nth.clone()));
            ports.remove(id);
        }
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() == 100_000 && seen[99_999] < NUMBERS_END);
        // Each place has 32,768 lives.
        assert_eq!((ports.places.len(), ports.len()), (4, 0));
    }
}
