//! How many requests are taken from a ring before what is done of them is answered.
//!
//! Where the device does them while they are taken, the driver works on the first answers while we work on the next requests: of a
//! ring that is taken as a whole, one side would always wait for the other. To wake a driver that sleeps takes longer than all that there is
//! to do, and to find it awake takes nothing: it stays awake if answers come before it has fallen asleep. One with few requests has
//! little to do before that, one with many has much: so the part of what is there that is answered together grows with what is
//! there. A device that takes its time is given what there is, in pieces that leave other rings their turn.
//!
//! 4 KiB from a null disk for a driver that sleeps and has a processor of its own, thousands of I/Os a second, medians of nine, at depths
//! 16, 32 and 64: batches of 2: 1,538, 1,593, 1,949; an eighth of what is there, at least 2: 1,069, 1,194, 2,194; a quarter: 637,
//! 1,903, 2,418. What is here takes 2 of 16, 8 of 32 and 32 of 64. Deeper rings, and drivers that look by themselves, do not care.

/// Requests in a batch, at least, unless there are fewer.
const MIN: usize = 2;
/// And at most.
const MAX: usize = 32;
/// Where so many wait, all are a batch: of half as many half of them, and so on.
const WHOLE: usize = 128;
/// What is taken of these is given to the kernel together: to take one takes us about a hundredth of what it takes a disk. One more
/// than what drivers often have under way: that goes with the call that sleeps, and not by one just before.
pub(super) const TOGETHER: usize = 33;

/// What is known of a ring's device.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// It had done some of the last batch when that was taken.
    at_once: bool,
}

impl Batches {
    /// A batch was taken, and the device has done some of it already, or not.
    #[inline]
    pub(super) fn took(&mut self, at_once: bool) {
        self.at_once = at_once;
    }

    /// Requests in the next one, where so many wait, which is asked only where it matters.
    #[inline]
    pub(super) fn size(&self, waiting: impl FnOnce() -> usize) -> usize {
        if !self.at_once {
            return MAX;
        }
        let waiting = waiting();
        (waiting * waiting / WHOLE).clamp(MIN, MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_does_at_once_is_answered_in_parts() {
        let mut batches = Batches::default();
        assert_eq!(batches.size(|| 64), MAX);
        batches.took(true);
        assert_eq!(
            [0, 1, 16, 24, 32, 63, 64, 1024].map(|waiting| batches.size(|| waiting)),
            [2, 2, 2, 4, 8, 31, 32, 32]
        );
        batches.took(false);
        assert_eq!(batches.size(|| 64), MAX);
    }
}
