//! How much too late a sleep with a time limit ends: an idle processor that has been given back to a hypervisor takes longer to come
//! back than what it is woken for takes. So such a sleep is begun with that much less time, and what is left when it ends is looked
//! away.
//!
//! Invariant: no sleep ends earlier than asked for by this; and looking takes no longer than sleeps were late, than any look may take, and than
//! [`LATE_MAX`].

use blockwork_engine::Nanos;

/// What is later than this has another reason than waking up.
const LATE_MAX: Nanos = Nanos::micros(60);
/// Share of the newest sleep in what is expected of the next.
const WEIGHT: u64 = 8;

/// How late sleeps were.
#[derive(Debug)]
pub(crate) struct Late {
    /// As much of that counts, at most.
    max: Nanos,
    /// On average, in nanoseconds times [`WEIGHT`].
    weighted: u64,
}

impl Late {
    /// Where no look takes longer than `look`.
    pub(crate) fn new(look: Nanos) -> Late {
        Late { max: look.min(LATE_MAX), weighted: 0 }
    }

    /// By how much the next sleep is to be shorter.
    #[inline]
    pub(crate) fn expected(&self) -> Nanos {
        Nanos(self.weighted / WEIGHT)
    }

    /// A sleep ended by its limit, so much after it.
    pub(crate) fn learn(&mut self, by: Nanos) {
        self.weighted = self.weighted - self.weighted / WEIGHT + by.0.min(self.max.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_follows_what_was_and_is_bounded() {
        let mut late = Late::new(Nanos::secs(1));
        assert_eq!(late.expected(), Nanos(0));
        (0..100).for_each(|_| late.learn(Nanos::micros(30)));
        let expected = late.expected();
        assert!((Nanos::micros(29)..=Nanos::micros(30)).contains(&expected), "{expected:?}");
        (0..100).for_each(|_| late.learn(Nanos::secs(3)));
        assert!(late.expected() <= LATE_MAX);
        (0..200).for_each(|_| late.learn(Nanos(0)));
        assert!(late.expected() < Nanos(10));
    }

    #[test]
    fn where_nobody_may_look_no_sleep_ends_early() {
        for look in [Nanos(0), Nanos::micros(10)] {
            let mut late = Late::new(look);
            (0..100).for_each(|_| late.learn(Nanos::micros(30)));
            assert!((Nanos(look.0 * 9 / 10)..=look).contains(&late.expected()), "{late:?}");
        }
    }
}
