//! Counts how far the inputs of this thread got.

use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    static REACHED: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Notes that an input got to `place`.
pub fn reached(place: &'static str) {
    REACHED.with_borrow_mut(|reached| *reached.entry(place).or_default() += 1);
}

/// What was reached in this thread since the last call, and how often.
pub fn take_reached() -> BTreeMap<&'static str, u64> {
    REACHED.take()
}
