//! How far away a device is: what a read takes that has it to itself, besides its data's time on the way.
//!
//! Whoever holds reads back so that their memory stays in the processor's cache (a port, see [`Context::distance`](crate::Context::distance)) has to
//! know: of a disk in the same machine a few are as fast as many, and one that is far away works on as many as it is given.
//!
//! What other requests under way make of a read's time says nothing, except that the device is no farther away than that.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::units::Nanos;

/// What the queues of all workers on one leaf have seen.
#[derive(Debug, Default)]
pub(crate) struct Distance {
    /// Nanoseconds, the average of late reads; 0: there were none.
    time: AtomicU64,
}

impl Distance {
    /// A large read of so many bytes took so long; `alone`: nothing large was under way when it was issued.
    #[inline]
    pub(super) fn saw(&self, took: Nanos, bytes: u64, alone: bool) {
        // Taken for a byte in a nanosecond: what is slower counts as distance, too.
        let took = Nanos(took.0.saturating_sub(bytes));
        let known = self.time.load(Relaxed);
        if alone || took.0 < known {
            self.average(known, took);
        }
    }

    #[cold]
    fn average(&self, known: u64, took: Nanos) {
        // One that took long may have met with a pause of anybody's; one that was fast says what it says.
        let part = if took.0 < known { 4 } else { 8 };
        let average = if known == 0 { took.0 } else { known - known / part + took.0 / part };
        // Where two workers do this at once, one of them is forgotten, which an average can bear.
        self.time.store(average.max(1), Relaxed);
    }

    /// What is known.
    pub(super) fn get(&self) -> Option<Nanos> {
        let time = self.time.load(Relaxed);
        (time > 0).then_some(Nanos(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_by_themselves_make_it_farther_and_any_that_is_faster_makes_it_nearer() {
        let distance = Distance::default();
        let saw = |millis, alone| distance.saw(Nanos::millis(millis), 1_000_000, alone);
        saw(50, false);
        assert_eq!(distance.get(), None, "that is what others made of it");
        saw(5, true);
        assert_eq!(distance.get(), Some(Nanos::millis(4)), "a megabyte takes a millisecond");
        saw(50, false);
        assert_eq!(distance.get(), Some(Nanos::millis(4)));
        saw(13, true);
        assert_eq!(distance.get(), Some(Nanos::millis(5)));
        (0..40).for_each(|_| saw(2, false));
        let near = distance.get().unwrap();
        assert!(near >= Nanos::millis(1) && near < Nanos::micros(1010), "{near:?}");
        (0..100).for_each(|_| saw(0, true));
        assert!(distance.get().is_some_and(|distance| distance < Nanos(100)), "it is known, however near");
    }
}
