//! How many requests are taken from a ring before what is done of them is answered.
//!
//! Where the device does them while they are taken, the driver works on the first answers while we work on the next requests: of a
//! ring that is taken as a whole, one side would always wait for the other. To wake a driver whose processor has halted takes longer than
//! all that there is to do, to catch it on its way there takes nothing: that way is one or two microseconds long, and begins when it has
//! put its requests into the ring and finds none of them answered. So of a driver with few under way what was found after a rest is answered
//! from its first request on, and then by twos. One with more has work enough that larger batches keep it awake, and cost us less: fours. Some
//! drivers gain nothing by small batches, since they put all of their requests into the ring when they have seen all answers that there are:
//! where they come in such bunches, and of a driver with many under way, an eighth of what it has. A device that takes its time is given what there
//! is, in pieces that leave other rings their turn.
//!
//! What a batch costs is to let the driver see it: a fence and a look at what the driver wants. A worker's turn costs more, so several
//! batches are done in one.
//!
//! The figures behind the sizes: 4 KiB from a null disk for a driver that sleeps, as multiples of what qemu-storage-daemon does by turns
//! (libblkio's driver, which makes bunches; in brackets one that is leaner, and does not; each wherever the kernel places it). With 16 under way,
//! batches of 2 give 5.4 (10), of 4 3.2 (8); with 32, 2.5 (4.3) and 1.8 (4.2). With 64, batches of 2 give 1.5 to 2.0 (2.2 to 2.5), of 4 1.5 to
//! 1.9 (2.2 to 2.7), of 8 1.5 to 1.7; with 128, of 2 2.0 (2.1), of 4 2.0 to 2.3 (2.1 to 2.3), of 8 2.0 (1.9), of 16 2.6 (1.7), of 32 2.7 (1.7);
//! beyond, 32 are best: of 16 a tenth less, of 8 a fifth; larger ones are slower, too. Where the first is not alone with 16 under way: 3.0
//! instead of 4.9; with 48 and 64 a quarter less. A batch of 4 is followed by 6 to 8 requests of the lean driver in one piece, and by 25 to 35 of
//! libblkio's. To try sizes by turns, for a thousand requests each, and to go on with the best tells nothing: where the kernel places driver and
//! server changes with how often they sleep, and later than that. Batches that grow while the driver stays awake and shrink when it wants to be
//! called are no better at 64 and 128, and a fifth slower beyond.
//! A driver that looks by itself does not care. To call a driver that sleeps later than its answers can be seen, after 64 of them, gains a
//! twentieth with 512 and more under way, and loses as much with fewer.

/// Requests in a turn, at most: other rings of the worker wait for that.
pub(super) const TURN: usize = 32;
/// Requests in a batch, at most.
const MOST: usize = TURN;
/// Few are so many: of these, the first after a rest is answered alone, and the others by twos.
const FEW: usize = 64;
const TWOS: usize = 2;
/// Of fewer than so many, the first after a rest is alone, too, and the others go by fours, unless they come in bunches.
const MANY: usize = 192;
const FOURS: usize = 4;
/// Of many, and of bunches, as a share of those that the driver has under way.
const SHARE: usize = 8;
/// What is known of how many a driver has under way is forgotten by this share with each batch.
const FORGOTTEN: usize = 16;
/// Requests after which somebody looks whether they come in bunches.
const LOOK: usize = 2048;
/// A bunch is more than so many, on average.
const BUNCH: usize = 16;
/// Where they do, how many looks are left out: batches are larger meanwhile, and of large ones the answers come in bunches, and so do the
/// requests.
const UNSEEN: usize = 32;
/// Requests in a portion, at least and at most.
const TOGETHER: [usize; 2] = [9, 17];

/// Of so many requests that were taken, how many are given to the kernel at a time. To take one takes us about a hundredth of what it takes a
/// disk, but that begins only when it is told: so two portions, the second of which goes with the call that sleeps.
///
/// Reads of a file on a virtual disk by turns with fio and io_uring, as parts of its rate, medians of 15 (in brackets calls of io_uring_enter
/// for a request): depth 16 in one portion 0.81 (0.125), in two 0.875 (0.19); 32 in one, by a worker that is woken
/// by the first of them, 0.82 to 0.86 (0.095), in two 0.86 to 0.89 (0.094), in four 0.90 (0.16). The least that there is (`bare_ring` in crates/uring): 0.85 in one, 0.92 to 0.98 in four.
#[inline]
pub(super) fn together(taken: usize) -> usize {
    let [least, most] = TOGETHER;
    (taken / 2 + 1).clamp(least, most)
}

/// What is known of a ring's device, and of its driver.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// It had done some of the last batch when that was taken.
    at_once: bool,
    /// Nothing was taken since the ring was found empty.
    rested: bool,
    /// Requests that the driver has under way: the most that have waited lately.
    depth: usize,
    comings: Comings,
}

impl Batches {
    /// So many were taken, and the device has done some of them already, or not.
    #[inline]
    pub(super) fn took(&mut self, count: usize, at_once: bool) {
        (self.at_once, self.rested) = (at_once, false);
        self.comings.took(count);
    }

    /// The ring was empty, and something has come.
    pub(super) fn rested(&mut self) {
        self.rested = true;
    }

    /// Requests in the next one, at most, where so many wait, which is asked only where it matters.
    #[inline]
    pub(super) fn size(&mut self, waiting: impl FnOnce() -> usize) -> usize {
        if !self.at_once {
            return MOST;
        }
        let waiting = waiting();
        self.depth = waiting.max(self.depth - self.depth / FORGOTTEN);
        self.comings.wait(waiting);
        let small = match self.depth {
            0..=FEW => TWOS,
            ..MANY if !self.comings.bunches => FOURS,
            depth => return (depth / SHARE).clamp(TWOS, MOST),
        };
        if self.rested { 1 } else { small }
    }
}

/// How requests come into a ring whose batches are small: by and by, as the driver sees answers, or in bunches, after it has seen all.
#[derive(Debug, Default)]
struct Comings {
    /// What is still there if nothing has come.
    left: usize,
    /// Requests taken, and times that some had come, since the last look.
    taken: usize,
    came: usize,
    /// The last look has found bunches; one may be chance.
    doubt: bool,
    /// They come in bunches, and batches are large.
    bunches: bool,
    /// Looks that are left out.
    unseen: usize,
}

impl Comings {
    #[inline]
    fn wait(&mut self, waiting: usize) {
        self.came += usize::from(waiting > self.left);
        self.left = waiting;
    }

    #[inline]
    fn took(&mut self, count: usize) {
        self.left = self.left.saturating_sub(count);
        self.taken += count;
        if self.taken >= LOOK {
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        let bunches = self.taken > self.came * BUNCH;
        (self.taken, self.came) = (0, 0);
        if self.unseen > 0 {
            self.unseen -= 1;
            // The last one that is left out has small batches again: what comes then, the large ones before have made.
            self.bunches = self.unseen > 1;
        } else if bunches && std::mem::replace(&mut self.doubt, true) {
            (self.bunches, self.unseen) = (true, UNSEEN);
        } else {
            self.doubt = bunches;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(at_once: bool) -> Batches {
        let mut batches = Batches::default();
        batches.took(1, at_once);
        batches
    }

    #[test]
    fn what_was_taken_goes_in_two_portions() {
        assert_eq!([1, 16, 17, 24, 32, 64].map(together), [9, 9, 9, 13, 17, 17]);
    }

    #[test]
    fn what_a_device_does_at_once_is_answered_in_parts() {
        assert_eq!(Batches::default().size(|| 64), MOST, "nothing is known yet");
        let sizes = [0, 1, 16, 32, 64, 65, 128, 191, 192, 1024].map(|waiting| of(true).size(|| waiting));
        assert_eq!(sizes, [2, 2, 2, 2, 2, 4, 4, 4, 24, 32]);
        let mut batches = of(true);
        batches.rested();
        assert_eq!(batches.size(|| 128), 1, "the first goes alone");
        batches.took(1, true);
        assert_eq!(batches.size(|| 127), FOURS);
        batches.took(4, false);
        batches.rested();
        assert_eq!(batches.size(|| 16), MOST);
    }

    /// Requests of a driver with 128 under way, as parts of a look, in small batches and in larger ones. What was answered comes back when that
    /// are so many.
    fn served(batches: &mut Batches, looks: usize, bunch: usize) -> [usize; 2] {
        let (mut sizes, mut waiting, mut answered) = ([0; 2], 128, 0);
        let mut left = looks * LOOK;
        while left > 0 {
            let size = batches.size(|| waiting).min(waiting).min(left);
            batches.took(size, true);
            sizes[usize::from(size > FOURS)] += size;
            (left, waiting, answered) = (left - size, waiting - size, answered + size);
            if answered >= bunch || waiting == 0 {
                (waiting, answered) = (waiting + answered, 0);
            }
        }
        sizes.map(|requests| requests / LOOK)
    }

    #[test]
    fn of_requests_that_come_in_bunches_batches_are_larger_and_nobody_else_is_taken_for_that() {
        let mut batches = of(true);
        assert_eq!(served(&mut batches, 100, 8), [100, 0]);
        // One look may be chance.
        assert_eq!(served(&mut batches, 1, 32), [1, 0]);
        assert_eq!(served(&mut batches, 2, 8), [2, 0]);
        let [small, large] = served(&mut batches, 200, 32);
        assert!((8..20).contains(&small) && large > 175, "{small} and {large} of 200 looks");
        // It has changed its ways, which shows where batches are small.
        served(&mut batches, UNSEEN + 2, 8);
        assert_eq!(served(&mut batches, 100, 8), [100, 0]);
    }

    #[test]
    fn a_driver_that_had_many_under_way_has_until_others_have_come_for_a_while() {
        let mut batches = of(true);
        batches.size(|| 512);
        batches.rested();
        let sizes: Vec<_> = (0..100).map(|_| batches.size(|| 10)).collect();
        let large = sizes.iter().take_while(|size| **size == MOST).count();
        let alone = sizes.iter().position(|size| *size == 1).expect("it has few by then");
        assert!((4..20).contains(&large) && (10..50).contains(&alone), "{large} {alone}");
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
        assert!(sizes[alone..].iter().all(|size| *size == 1));
    }
}
