//! What an editor holds in memory: values by number, read or changed, with a way back to before the operation under way.
//!
//! Invariants: (1) after [`Store::undo`] all is as it was at the last [`Store::keep`], but for what was only read; (2) what was read and
//! not changed is bounded, the oldest goes first; (3) what a commit has taken is neither changed in place nor forgotten before it is
//! durable.

use std::collections::{BTreeMap, VecDeque};

/// Values that were only read and are kept, where nobody says otherwise.
pub(super) const CLEAN_MAX: usize = 1024;

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
}

/// Values by number.
#[derive(Debug)]
pub(super) struct Store<T> {
    held: BTreeMap<u64, Held<T>>,
    operation: u64,
    undo: Vec<(u64, Option<Held<T>>)>,
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
            held: BTreeMap::new(),
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
        changed.map(|(nr, _)| *nr).collect()
    }

    /// Keeps a value that was read.
    pub fn add_clean(&mut self, nr: u64, value: T) {
        self.held.insert(nr, Held { value, state: State::Clean, operation: 0 });
        self.forgettable(nr);
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
            self.undo.push((nr, Some(held.clone())));
            held.operation = self.operation;
        }
        if held.state != State::Changed {
            held.state = State::Changed;
            self.changed += 1;
        }
        Some(&mut held.value)
    }

    /// A new value.
    pub fn put(&mut self, nr: u64, value: T) {
        let held = Held { value, state: State::Changed, operation: self.operation };
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
        self.undo.push((nr, before));
    }

    /// The operation is over: there is no way back behind it.
    pub fn keep(&mut self) {
        self.undo.clear();
        self.operation += 1;
    }

    /// The operation has not taken place.
    pub fn undo(&mut self) {
        while let Some((nr, before)) = self.undo.pop() {
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
        settled.into_iter().for_each(|nr| self.forgettable(nr));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(store: &Store<u32>) -> Vec<(u64, u32)> {
        store.held.iter().map(|(nr, held)| (*nr, held.value)).collect()
    }

    #[test]
    fn an_operation_that_is_undone_has_changed_nothing() {
        let mut store = Store::default();
        store.add_clean(1, 10);
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

    #[test]
    fn what_was_only_read_is_bounded_and_what_changed_stays() {
        let mut store = Store::default();
        store.put(0, 0);
        for nr in 1..=3 * CLEAN_MAX as u64 {
            store.add_clean(nr, 1);
        }
        assert_eq!(store.held.len(), CLEAN_MAX + 1);
        assert!(store.is_changed(0));
        store.keep();
        store.seal(|_, _| {});
        assert!(!store.is_changed(0) && store.not_durable(0).is_some());
        store.settle(|_| {});
        assert!(store.get(0).is_some() && store.not_durable(0).is_none());
    }
}
