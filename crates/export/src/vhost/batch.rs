//! How many requests are taken from a ring before what is done of them is answered.
//!
//! The driver works on the first answers while we work on the next requests: of a ring that is taken as a whole, one side would
//! always wait for the other. A driver that sleeps between answers is woken for each batch that it waited for, and then finds
//! little: its batches are large. One that looks for answers by itself takes them as they come: small batches give it
//! 1.6 to 2.7 times the rate (4 KiB from a null disk, 32 in flight), and cost a driver that sleeps a third of its.

/// Requests in a batch for a driver that is called.
pub(super) const LARGE: usize = 32;
/// For one that looks by itself.
const SMALL: usize = 4;
/// After so many batches in a row for which the driver wanted no call it is taken for one that looks. One that sleeps has long
/// been asleep by then, however deep its ring is.
const UNCALLED: u32 = 256;

/// What is known of a ring's driver.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// Batches in a row that were answered without a call.
    uncalled: u32,
}

impl Batches {
    /// A batch was answered; the driver wanted to be called for that, or not.
    #[inline]
    pub(super) fn answered(&mut self, wants_call: bool) {
        self.uncalled = if wants_call { 0 } else { self.uncalled.saturating_add(1) };
    }

    /// Requests in the next one.
    #[inline]
    pub(super) fn size(&self) -> usize {
        if self.uncalled < UNCALLED { LARGE } else { SMALL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_looks_by_itself_gets_small_batches_until_it_wants_a_call() {
        let mut batches = Batches::default();
        for _ in 0..10 {
            (1..UNCALLED).for_each(|_| batches.answered(false));
            assert_eq!(batches.size(), LARGE);
            batches.answered(true);
        }
        (0..UNCALLED).for_each(|_| batches.answered(false));
        assert_eq!(batches.size(), SMALL);
        batches.answered(false);
        assert_eq!(batches.size(), SMALL);
        batches.answered(true);
        assert_eq!(batches.size(), LARGE);
    }
}
