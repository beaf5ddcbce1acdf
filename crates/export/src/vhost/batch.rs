//! How many requests are taken from a ring before what is done of them is answered.
//!
//! The driver works on the first answers while we work on the next requests: of a ring that is taken as a whole, one side would
//! always wait for the other. A driver that sleeps has to be woken, which takes longer than all that there is to do: so after a
//! rest the first batch is small, and the driver wakes up while we do the others. One that looks for answers by itself
//! takes them as they come: the smallest batches serve it best.
//!
//! 4 KiB from a null disk for a driver that sleeps, thousands of I/Os a second, medians of six, by the sizes of the first batch and
//! of the others, at depths 16, 32, 64 and 256: (8, 32) 541, 983, 1,281, 1,675; (8, 16) 512, 875, 1,046, 1,508; (4, 16) 571, 763,
//! 1,164, 1,424; (2, 8) 451, 650, 1,032, 1,420.

/// Requests in a batch for a driver that is called.
pub(super) const LARGE: usize = 32;
/// In the first after a rest.
const FIRST: usize = 8;
/// For a driver that looks by itself.
const SMALL: usize = 4;
/// What is taken of these is given to the kernel together: to take one takes us about a hundredth of what it takes a disk. One more
/// than what drivers often have under way: that goes with the call that sleeps, and not by one just before.
pub(super) const TOGETHER: usize = 33;
/// After so many batches in a row for which the driver wanted no call it is taken for one that looks. One that sleeps has long
/// been asleep by then, however deep its ring is.
const UNCALLED: u32 = 256;

/// What is known of a ring's driver.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// Batches in a row that were answered without a call.
    uncalled: u32,
    /// There was nothing to take before the next one.
    is_first: bool,
}

impl Batches {
    /// A batch was answered; the driver wanted to be called for that, or not.
    #[inline]
    pub(super) fn answered(&mut self, wants_call: bool) {
        self.is_first = false;
        self.uncalled = if wants_call { 0 } else { self.uncalled.saturating_add(1) };
    }

    /// There was nothing to take.
    #[inline]
    pub(super) fn rested(&mut self) {
        self.is_first = true;
    }

    /// Requests in the next one.
    #[inline]
    pub(super) fn size(&self) -> usize {
        match self.uncalled {
            UNCALLED.. => SMALL,
            _ if self.is_first => FIRST,
            _ => LARGE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_batch_after_a_rest_is_small() {
        let mut batches = Batches::default();
        batches.rested();
        assert_eq!(batches.size(), FIRST);
        batches.answered(true);
        assert_eq!(batches.size(), LARGE);
    }

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
