//! Whether to wait a moment for more to come, so that one wake-up serves many requests.
//!
//! A server that is faster than its client or its disk is woken for every single request or completion, and pays a
//! system call and a context switch for each. Sleeping a little longer lets several gather. That is worth it only while
//! others are under way to gather; a lone request must not wait.
//!
//! Rule: the pause is on while recent wake-ups found company (two or more bios finished per turn, or requests in flight
//! at the devices), is bounded by [`PAUSE_MAX`], and is dropped at once when a pause brought nothing but what was there
//! before it. After a useless pause it is tried again only after a growing number of turns.

use crate::env::Wait;
use crate::units::Nanos;

/// Longest pause. Small against a disk's latency (80 µs and up), so that it costs little where it gathers nothing.
const PAUSE_MAX: Nanos = Nanos::micros(40);
/// As many completions as end a pause early.
const ENOUGH: u32 = 16;
/// Turns between tries, at most.
const BACK_OFF_MAX: u32 = 1024;

pub(crate) struct Gatherer {
    enabled: bool,
    /// Bios finished in the turn before this wait.
    finished: usize,
    /// Whether the wait that has just ended was a pause.
    paused: bool,
    back_off: u32,
    until_next_try: u32,
}

impl Gatherer {
    pub(crate) fn new(enabled: bool) -> Gatherer {
        Gatherer { enabled, finished: 0, paused: false, back_off: 1, until_next_try: 0 }
    }

    /// A wait has ended, with so many completions.
    pub(crate) fn woke(&mut self, _completions: usize) {
        self.finished = 0;
    }

    /// So many bios were finished in this turn.
    pub(crate) fn finished(&mut self, bios: usize) {
        self.finished += bios;
    }

    /// How to wait now.
    pub(crate) fn wait(&mut self, in_flight: u32) -> Wait {
        if !self.enabled {
            return Wait::Until(None);
        }
        if self.paused {
            // The pause was worth it if it gathered company.
            if self.finished >= 2 {
                self.back_off = 1;
                self.until_next_try = 0;
            } else {
                self.until_next_try = self.back_off;
                self.back_off = (self.back_off * 2).min(BACK_OFF_MAX);
            }
        }
        self.paused = false;
        let company = in_flight >= 2 || self.finished >= 1;
        if !company {
            return Wait::Until(None);
        }
        if self.until_next_try > 0 {
            self.until_next_try -= 1;
            return Wait::Until(None);
        }
        self.paused = true;
        Wait::Gather { completions: ENOUGH, for_at_most: PAUSE_MAX }
    }
}
