//! How many requests are taken from a ring before what is done of them is answered.
//!
//! Where the device does them while they are taken, the driver works on the first answers while we work on the next requests: of a
//! ring that is taken as a whole, one side would always wait for the other. To wake a driver whose processor has halted takes longer than
//! all that there is to do, to catch it on its way there takes nothing: that way is one or two microseconds long, and begins when it has
//! put its requests into the ring and finds none of them answered. So what was found after a rest is answered from its first request on, and
//! then in small batches, as long as the driver has few under way. One with many has work enough that batches of half of them keep it
//! awake, and cost us less. A device that takes its time is given what there is, in pieces that leave other rings their turn.
//!
//! 4 KiB from a null disk for a driver that sleeps and has a processor of its own, in multiples of what qemu-storage-daemon does by turns,
//! medians of five, at depths 16, 32, 64 and 128: one, then batches of 4: 5.0, 2.5, 2.0, 2.1; one, then 8: 4.5, 1.5, 1.6, 2.4; one, then
//! 16: 3.2, 1.2, 1.3, 3.0; 2 of 16, 8 of 32 and 32 of 64 and more, with the first like the others: 3.6, 1.6, 2.0, 2.5 (the driver called by write(2) in
//! all but the last). What is here, medians of seven in another hour: 4.6, 2.5, 1.9, 3.0; with the first alone and batches of 4 to 16 for deeper
//! rings too: 5.2, 2.3, 1.8, 2.3. A driver that looks by itself does not care.

/// Requests in a batch, at least, unless there are fewer.
const MIN: usize = 4;
/// And at most.
const MAX: usize = 32;
/// Where so many wait, they keep the driver busy: half of them are a batch. Of half as many an eighth of those.
const MANY: usize = 64;
/// What is taken of these is given to the kernel together: to take one takes us about a hundredth of what it takes a disk. One more
/// than what drivers often have under way: that goes with the call that sleeps, and not by one just before.
pub(super) const TOGETHER: usize = 33;

/// What is known of a ring's device.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// It had done some of the last batch when that was taken.
    at_once: bool,
    /// Nothing was taken since the ring was found empty.
    rested: bool,
}

impl Batches {
    /// A batch was taken, and the device has done some of it already, or not.
    #[inline]
    pub(super) fn took(&mut self, at_once: bool) {
        (self.at_once, self.rested) = (at_once, false);
    }

    /// The ring was empty, and something has come.
    pub(super) fn rested(&mut self) {
        self.rested = true;
    }

    /// Requests in the next one, where so many wait, which is asked only where it matters.
    #[inline]
    pub(super) fn size(&self, waiting: impl FnOnce() -> usize) -> usize {
        if !self.at_once {
            return MAX;
        }
        let waiting = waiting().min(MANY);
        match self.rested {
            true if waiting < MANY => 1,
            _ => (waiting.pow(3) / (MANY * MANY * MANY / MAX)).max(MIN),
        }
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
        let sizes =
            |batches: &Batches| [0, 1, 16, 32, 40, 56, 64, 1024].map(|waiting| batches.size(|| waiting));
        assert_eq!(sizes(&batches), [4, 4, 4, 4, 7, 21, 32, 32]);
        batches.rested();
        assert_eq!(sizes(&batches), [1, 1, 1, 1, 1, 1, 32, 32], "the first of few goes alone");
        batches.took(true);
        assert_eq!(batches.size(|| 16), 4);
        batches.took(false);
        batches.rested();
        assert_eq!(batches.size(|| 16), MAX);
    }
}
