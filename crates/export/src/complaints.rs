//! What is said in the log of what a guest or its front end does, mistakes above all: that can be done as often as anybody likes, and a log has
//! an end.
//!
//! Invariant: of one kind and at one socket (or of one guest's disk), a complaint is made every [`INTERVAL_NS`] at most, and the next one tells how many were not.

use std::sync::{Mutex, PoisonError};

use blockwork_engine::Nanos;
use log::Level;

/// Between two complaints of a kind.
const INTERVAL_NS: u64 = 10_000_000_000;

/// Complaints of one kind.
#[derive(Debug, Default)]
pub(crate) struct Complaints(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// None before then.
    next: Nanos,
    unsaid: u64,
}

impl Complaints {
    /// Says this, unless something was said just now.
    pub(crate) fn warn(&self, now: Nanos, text: impl FnOnce() -> String) {
        self.say(Level::Warn, now, text);
    }

    /// Likewise of what is no mistake.
    pub(crate) fn inform(&self, now: Nanos, text: impl FnOnce() -> String) {
        self.say(Level::Info, now, text);
    }

    fn say(&self, level: Level, now: Nanos, text: impl FnOnce() -> String) {
        match self.due(now) {
            None => {}
            Some(0) => log::log!(level, "{}", text()),
            Some(unsaid) => log::log!(level, "{} ({unsaid} like this were not told of)", text()),
        }
    }

    /// How many were not said, and not told of.
    #[cfg(test)]
    pub(crate) fn unsaid(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).unsaid
    }

    /// Whether it is time to say one more; if so, how many were not said.
    fn due(&self, now: Nanos) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now < state.next {
            state.unsaid += 1;
            return None;
        }
        state.next = Nanos(now.0.saturating_add(INTERVAL_NS));
        Some(std::mem::take(&mut state.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_complaints_is_one_line_and_a_number() {
        let complaints = Complaints::default();
        let start = 5;
        assert_eq!(complaints.due(Nanos(start)), Some(0));
        for n in 1..1000 {
            assert_eq!(complaints.due(Nanos(start + n)), None);
        }
        assert_eq!(complaints.due(Nanos(start + INTERVAL_NS)), Some(999));
        assert_eq!(complaints.due(Nanos(start + 2 * INTERVAL_NS - 1)), None);
        assert_eq!(complaints.due(Nanos(start + 2 * INTERVAL_NS)), Some(1));
    }
}
