//! What an editor holds in memory: values by number, read or changed, with a way back to before the operation under way.
//!
//! Invariants: (1) after [`Store::undo`] all is as it was at the last [`Store::keep`], but for what was only read; (2) what was read and
//! not changed is bounded, the oldest goes first; (3) what a commit has taken is neither changed in place nor forgotten before it is
//! durable.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::BuildHasherDefault;
use std::ops::Range;

use crate::spread::Spread;

/// Values that were only read and are kept, where nobody says otherwise.
pub(super) const CLEAN_MAX: usize = 1024;

/// Share of them that goes at once where one that was looked for makes room for itself.
const GOES_AT_ONCE: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// As it is on the device.
    Clean,
    /// Of the transaction under way.
    Changed,
    /// Of the commit that is being written.
    Sealed,
}

#[derive(Debug, Clone)]
struct Held<T> {
    value: T,
    state: State,
    /// The operation that changed it last: of that there is a way back already.
    operation: u64,
    /// The operation that has found it to be its own: see [`Store::is_own`].
    owned: u64,
}

/// The way back to a value as it was.
#[derive(Debug)]
enum Before<T> {
    /// It was this; none: there was none.
    Was(Option<Held<T>>),
    /// What is in this range was put into it, and is taken out again by that.
    Without(Range<u64>, fn(&mut T, &Range<u64>)),
}

/// Values by number.
#[derive(Debug)]
pub(super) struct Store<T> {
    /// Where their order matters, they are sorted.
    held: HashMap<u64, Held<T>, BuildHasherDefault<Spread>>,
    operation: u64,
    undo: Vec<(u64, Before<T>)>,
    /// How many are [`State::Changed`].
    changed: usize,
    /// Those that may be forgotten, the oldest first; some have changed since.
    clean: VecDeque<u64>,
    /// How many of those are kept.
    clean_max: usize,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Store {
            held: HashMap::default(),
            operation: 1,
            undo: Vec::new(),
            changed: 0,
            clean: VecDeque::new(),
            clean_max: CLEAN_MAX,
        }
    }
}

impl<T: Clone> Store<T> {
    /// Keeps only so many of the values that are read from now on.
    pub fn bound(&mut self, clean_max: usize) {
        self.clean_max = clean_max;
    }

    pub fn get(&self, nr: u64) -> Option<&T> {
        self.held.get(&nr).map(|held| &held.value)
    }

    /// Whether it is of the transaction under way, so that it may be changed in place.
    pub fn is_changed(&self, nr: u64) -> bool {
        self.held.get(&nr).is_some_and(|held| held.state == State::Changed)
    }

    /// A value that is not on the device yet.
    pub fn not_durable(&self, nr: u64) -> Option<&T> {
        self.held.get(&nr).filter(|held| held.state != State::Clean).map(|held| &held.value)
    }

    /// How many have changed.
    pub fn changed(&self) -> usize {
        self.changed
    }

    /// The numbers of those that have changed, in order.
    pub fn changed_numbers(&self) -> Vec<u64> {
        let changed = self.held.iter().filter(|(_, held)| held.state == State::Changed);
        let mut numbers: Vec<u64> = changed.map(|(nr, _)| *nr).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The value; one that is not held is read, and kept.
    pub fn get_or_read<E>(&mut self, nr: u64, read: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        // Before it is looked for, since who has found it holds on to it.
        if self.clean.len() >= self.clean_max {
            self.make_room(nr);
        }
        match self.held.entry(nr) {
            Entry::Occupied(held) => Ok(&held.into_mut().value),
            Entry::Vacant(place) => {
                let value = read()?;
                self.clean.push_back(nr);
                Ok(&place.insert(Held { value, state: State::Clean, operation: 0, owned: 0 }).value)
            }
        }
    }

    /// Some of what was only read is forgotten, but not number `but`.
    fn make_room(&mut self, but: u64) {
        for _ in 0..self.clean_max.div_ceil(GOES_AT_ONCE) {
            let Some(oldest) = self.clean.pop_front() else { return };
            if oldest == but {
                self.clean.push_back(oldest);
            } else if self.held.get(&oldest).is_some_and(|held| held.state == State::Clean) {
                self.held.remove(&oldest);
            }
        }
    }

    /// Whether the operation under way has found it to be its own: of the transaction under way, and referred to once.
    pub fn is_own(&self, nr: u64) -> bool {
        self.held.get(&nr).is_some_and(|held| held.owned == self.operation)
    }

    /// The operation under way has found it to be its own. Until it ends, nobody else comes to refer to it.
    pub fn set_own(&mut self, nr: u64) {
        if let Some(held) = self.held.get_mut(&nr) {
            held.owned = self.operation;
        }
    }

    fn forgettable(&mut self, nr: u64) {
        self.clean.push_back(nr);
        while self.clean.len() > self.clean_max
            && let Some(oldest) = self.clean.pop_front()
        {
            if oldest != nr && self.held.get(&oldest).is_some_and(|held| held.state == State::Clean) {
                self.held.remove(&oldest);
            }
        }
    }

    /// A value that is held, to be changed.
    pub fn change(&mut self, nr: u64) -> Option<&mut T> {
        let held = self.held.get_mut(&nr)?;
        if held.operation != self.operation {
            self.undo.push((nr, Before::Was(Some(held.clone()))));
            held.operation = self.operation;
        }
        if held.state != State::Changed {
            held.state = State::Changed;
            self.changed += 1;
        }
        Some(&mut held.value)
    }

    /// A value that is held, to have something of a range put into it of which it has nothing: `take_out` takes that out again. Much
    /// cheaper than [`Store::change`], which keeps a copy for the way back.
    pub fn extend(
        &mut self,
        nr: u64,
        range: Range<u64>,
        take_out: fn(&mut T, &Range<u64>),
    ) -> Option<&mut T> {
        if !self.is_changed(nr) {
            return self.change(nr);
        }
        let held = self.held.get_mut(&nr)?;
        if held.operation != self.operation {
            self.undo.push((nr, Before::Without(range, take_out)));
        }
        Some(&mut held.value)
    }

    /// A new value.
    pub fn put(&mut self, nr: u64, value: T) {
        let held = Held { value, state: State::Changed, operation: self.operation, owned: self.operation };
        let before = self.held.insert(nr, held);
        self.changed += 1;
        self.note(nr, before);
    }

    /// A value of the transaction under way that is needed no more.
    pub fn remove(&mut self, nr: u64) {
        if let Some(before) = self.held.remove(&nr) {
            self.note(nr, Some(before));
        }
    }

    /// What was there before a change; the first of an operation is the way back.
    fn note(&mut self, nr: u64, before: Option<Held<T>>) {
        self.changed -= usize::from(before.as_ref().is_some_and(|held| held.state == State::Changed));
        self.undo.push((nr, Before::Was(before)));
    }

    /// The operation is over: there is no way back behind it.
    pub fn keep(&mut self) {
        self.undo.clear();
        self.operation += 1;
    }

    /// The operation has not taken place.
    pub fn undo(&mut self) {
        while let Some((nr, before)) = self.undo.pop() {
            let before = match before {
                Before::Was(before) => before,
                Before::Without(range, take_out) => {
                    if let Some(held) = self.held.get_mut(&nr) {
                        take_out(&mut held.value, &range);
                    }
                    continue;
                }
            };
            let is = |held: &Option<Held<T>>, state| held.as_ref().is_some_and(|held| held.state == state);
            let (clean, changed) = (is(&before, State::Clean), is(&before, State::Changed));
            let after = match before {
                Some(held) => self.held.insert(nr, held),
                None => self.held.remove(&nr),
            };
            self.changed += usize::from(changed);
            self.changed -= usize::from(is(&after, State::Changed));
            if clean {
                self.forgettable(nr);
            }
        }
        self.operation += 1;
    }

    /// Everything that has changed goes into a commit.
    pub fn seal(&mut self, mut each: impl FnMut(u64, &mut T)) {
        let changed = self.held.iter_mut().filter(|(_, held)| held.state == State::Changed);
        for (nr, held) in changed {
            each(*nr, &mut held.value);
            held.state = State::Sealed;
        }
        self.changed = 0;
    }

    /// What went into a commit is on the device; `each` sees everything that is held.
    pub fn settle(&mut self, mut each: impl FnMut(&mut T)) {
        let mut settled = Vec::new();
        for (nr, held) in &mut self.held {
            each(&mut held.value);
            if held.state == State::Sealed {
                held.state = State::Clean;
                settled.push(*nr);
            }
        }
        // What is forgotten first is the same in each run.
        settled.sort_unstable();
        settled.into_iter().for_each(|nr| self.forgettable(nr));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(store: &Store<u32>) -> Vec<(u64, u32)> {
        let mut values: Vec<_> = store.held.iter().map(|(nr, held)| (*nr, held.value)).collect();
        values.sort_unstable();
        values
    }

    #[test]
    fn an_operation_that_is_undone_has_changed_nothing() {
        let mut store = Store::default();
        add_clean(&mut store, 1, 10);
        store.put(2, 20);
        store.keep();
        *store.change(1).unwrap() += 1;
        *store.change(1).unwrap() += 1;
        *store.change(2).unwrap() += 1;
        store.remove(2);
        store.put(2, 99);
        store.put(3, 30);
        store.remove(3);
        store.put(4, 40);
        assert_eq!((values(&store), store.changed()), (vec![(1, 12), (2, 99), (4, 40)], 3));
        store.undo();
        assert_eq!((values(&store), store.changed()), (vec![(1, 10), (2, 20)], 1));
        assert!(!store.is_changed(1) && store.is_changed(2));
    }

    /// Puts a number of a range, by its bit.
    fn with(value: &mut u32, nr: u32) {
        *value |= 1 << nr;
    }

    fn without(value: &mut u32, range: &Range<u64>) {
        range.clone().for_each(|nr| *value &= !(1 << nr));
    }

    #[test]
    fn what_was_put_into_a_value_is_taken_out_again_and_nothing_else() {
        let mut store = Store::default();
        add_clean(&mut store, 1, 0b1);
        store.put(2, 0b1);
        store.keep();
        // Of the committed state: a copy is kept.
        with(store.extend(1, 4..6, without).unwrap(), 4);
        // Of the transaction: twice without one, then with one, and without one again.
        with(store.extend(2, 1..4, without).unwrap(), 3);
        with(store.extend(2, 4..5, without).unwrap(), 4);
        with(store.change(2).unwrap(), 5);
        with(store.extend(2, 6..7, without).unwrap(), 6);
        store.remove(2);
        store.undo();
        assert_eq!((values(&store), store.changed()), (vec![(1, 0b1), (2, 0b1)], 1));
        with(store.extend(2, 2..3, without).unwrap(), 2);
        store.keep();
        with(store.extend(2, 7..8, without).unwrap(), 7);
        store.undo();
        assert_eq!(values(&store), [(1, 0b1), (2, 0b101)], "what was kept stays");
    }

    #[test]
    fn what_an_operation_owns_is_its_own_until_it_ends() {
        let mut store = Store::default();
        store.put(1, 1);
        assert!(store.is_own(1));
        store.keep();
        assert!(!store.is_own(1));
        store.set_own(1);
        assert!(store.is_own(1) && !store.is_own(2));
        store.undo();
        assert!(!store.is_own(1));
    }

    fn add_clean(store: &mut Store<u32>, nr: u64, value: u32) {
        let Ok(_) = store.get_or_read(nr, || Ok::<_, std::convert::Infallible>(value));
    }

    #[test]
    fn what_is_looked_for_stays_though_it_is_the_oldest() {
        let mut store = Store::default();
        (1..=CLEAN_MAX as u64).for_each(|nr| add_clean(&mut store, nr, 1));
        let found = store.get_or_read(1, || Err("it was forgotten"));
        assert_eq!(found, Ok(&1));
        assert!(store.get(2).is_none(), "others have made room");
    }

    #[test]
    fn what_was_only_read_is_bounded_and_what_changed_stays() {
        let mut store = Store::default();
        store.put(0, 0);
        for nr in 1..=3 * CLEAN_MAX as u64 {
            add_clean(&mut store, nr, 1);
            assert!(store.get(nr).is_some() && store.held.len() <= CLEAN_MAX + 1);
        }
        assert!(store.held.len() > CLEAN_MAX - CLEAN_MAX / GOES_AT_ONCE);
        assert!(store.is_changed(0));
        store.keep();
        store.seal(|_, _| {});
        assert!(!store.is_changed(0) && store.not_durable(0).is_some());
        store.settle(|_| {});
        assert!(store.get(0).is_some() && store.not_durable(0).is_none());
    }
}
