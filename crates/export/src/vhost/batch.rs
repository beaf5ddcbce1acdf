//! How many requests are taken from a ring before what is done of them is answered.
//!
//! Where the device does them while they are taken, the driver works on the first answers while we work on the next requests: of a
//! ring that is taken as a whole, one side would always wait for the other. To wake a driver whose processor has halted takes longer than
//! all that there is to do, to catch it on its way there takes nothing: that way is one or two microseconds long, and begins when it has
//! put its requests into the ring and finds none of them answered. So of a driver with few under way what was found after a rest is answered
//! from its first request on, and then by twos; of one with more by fours, or eights. One with many has work enough that larger batches
//! keep it awake, and cost us less. A device that takes its time is given what there is, in pieces that leave other rings their turn.
//!
//! Where the two processors are far apart, the first answer is not there in time: its request has to be fetched over there, line by line. So a driver
//! that wanted to be called for the first answer after a rest is called, the next time, as soon as something is found in its ring, before it is
//! done. It hears of its answers as ever, besides; the specification has drivers bear calls for which they find nothing, and of these
//! there is one for each that finds something, at most. Who looks by itself is not called. With processors far apart (a driver that
//! looks has a request answered in 1.4 us, and in 0.4 where they are near) 16, 64, 128 under way of the lean driver go 2.8, 1.5, 1.2 times as fast as
//! without, of one that puts in a request for each answer 1.9, 1.0, 1.0 times; near, one goes ten times as fast, since its driver does not
//! sleep at all, and 16 0.9 and 1.5 times.
//!
//! How far apart they are is measured: to let the driver see a batch takes longer where the line that says so has to come back from far away. There
//! also what is looked at first of a request is fetched before it is taken (`ring/near.rs`), and of a driver with 192 to 383 under way batches are as
//! large as beyond that, which is 1.2 times as fast; with 65 to 191 that makes no difference, and with fewer it is slower.
//!
//! There, 64 under way of the lean driver are bound by how it sleeps. It does its part of a request sooner than the request can be fetched from it, so
//! it finds nothing again and again. Called within a microsecond it loses no more than that; later, 20 to 30 us, as its processor has halted. Of 1,000
//! requests it waits for 12 so long (with qemu-storage-daemon for 22), and more than half of the time it is asleep. It halts less often where it
//! is called once more behind each call, so that its next sleep ends at once (6 of 1,000), but those calls take what they spare. Larger batches (of 4, 8,
//! 16), a look after each request whether it wants to be called, the used ring fetched as well, and several of these together: the same within
//! what one run differs from the next. So is, with 64 and since requests are fetched ahead, to call it only when the first is done; or then without
//! asking first whether it wants that, though it has halted by then 9 times of 10, and not 1 of 10. So is, last, to keep back 16 to 48 answers, also
//! while it is asleep, and to give it these when it puts in requests, so that it may find some before it sleeps: it halts 14 to 16 times.
//!
//! A driver that looks by itself, as it shows by not wanting to be called for a while, need not be kept awake, and each batch is a line of memory
//! that goes over to it and back: it has batches of a quarter of what it has under way. With 64 and 128 of them, 13 million are
//! done in a second, where batches as for those that sleep give 11; far apart 6.5, where those give 3 and 4.4.
//!
//! When the ring is empty and all is answered, the driver may be about to bring more: it has answers to work on. To leave the turn and have the
//! worker look takes some 3,000 instructions, so the ring is looked at for one or two microseconds first, as long as that finds something; where it
//! does not, ever less often. A driver that looks by itself has 1.4 times as many requests done by that, with one under way at a time, and a sleeping one
//! with 32 under way 1.5 times as many; with 64 and more it makes no difference.
//!
//! What a batch costs is to let the driver see it: a fence and a look at what the driver wants. A worker's turn costs more, so several
//! batches are done in one.
//!
//! The figures behind the sizes: 4 KiB from a null disk for a driver that sleeps, as multiples of what qemu-storage-daemon does by turns
//! (libblkio's driver; in brackets one that is leaner; each wherever the kernel places it). With 16 under way,
//! batches of 2 give 5.4 (10), of 4 3.2 (8); with 32, 2.5 (4.3) and 1.8 (4.2). With 64, batches of 2 give 1.5 to 2.0 (2.2 to 2.5), of 4 1.5 to
//! 1.9 (2.2 to 2.7), of 8 1.5 to 1.7; with 128, of 2 2.0 (1.9 to 2.2), of 4 2.0 to 2.3 (1.9 to 2.3), of 8 2.0 (1.9), of 16 2.6 (1.7), of 32 2.7
//! (1.7); with 256, of 8 2.2 to 2.7 (2.3), of 32 1.9 to 2.7 (2.2); beyond, 32 are best: of 16 a tenth less, of 8 a fifth; larger ones are
//! slower, too. Where the first is not alone with 16 under way: 3.0 instead of 4.9; with 48 and 64 a quarter less.
//!
//! Tried, to have both drivers' best with 128: sizes by turns, for a thousand requests each, and to go on with the best. That says little, since
//! where the kernel places driver and server changes with how often they sleep, and later than that. To tell the drivers apart by how many
//! requests come at a time: libblkio's, in bunches of 25 to 35, the lean one's by 6 to 8 after a batch of 4; but in bunches, too, wherever
//! the two are placed so that one works while the other sleeps, and where no data is touched. Batches that grow while the driver stays awake and
//! shrink when it wants to be called are no better at 64 and 128, and a fifth slower beyond.
//! To call a driver that sleeps later than its answers can be seen, after 64 of them, gains a
//! twentieth with 512 and more under way, and loses as much with fewer.

use blockwork_engine::Nanos;
use blockwork_uring::BackOff;

/// Requests in a turn, at most: other rings of the worker wait for that.
pub(super) const TURN: usize = 32;
/// Of a driver with up to so many under way, the first after a rest is answered alone, and the others in batches of so many. Of one with more
/// by turns.
const BATCHES: [(usize, usize); 3] = [(64, 2), (191, 4), (383, 8)];
/// A driver that wanted no call for so many batches looks by itself.
const LOOKS_AFTER: u32 = 64;
/// Of such a one, a batch is this share of what it has under way, and two at least; likewise of one that is far away.
const LOOKED_FOR: usize = 4;
/// How long it takes to let a driver see a batch is measured at one of so many.
const TIMED_IN: u32 = 64;
/// With the 20 ns in it that reading the clock takes, it is 20 to 40 ns near, seldom more than 60; far, 130 to 150 for half of the batches. Without:
const LONG: Nanos = Nanos(55);
/// The last so many that were timed say whether the processors are far apart.
const LATELY: u32 = 32;
/// A share of them, as [`Batches::long`] has it.
const ALL: u32 = 1024;
/// They are, where more than this took long: near, fewer than one of ten do.
const FAR: u32 = ALL / 5;
/// There, a driver with more than this under way has batches as if it looked by itself.
const FEW: usize = 191;
/// Looks at a ring whose driver is about to bring more, at most: one or two microseconds.
pub(super) const LINGER: usize = 64;
/// That is tried at one of so many rests, at least.
const LINGERS_IN: u32 = 256;
/// What is known of how many a driver has under way is forgotten by this share with each batch.
const FORGOTTEN: usize = 16;

/// What is known of a ring's device.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// It had done some of the last batch when that was taken.
    at_once: bool,
    /// Nothing was taken since the ring was found empty.
    rested: bool,
    /// Requests that the driver has under way: the most that have waited lately.
    depth: usize,
    /// No answer was seen since the ring was found empty.
    unseen: bool,
    /// When it saw the first answer after such a rest, the driver wanted to be called.
    sleeps: bool,
    /// Batches since it wanted to be called last.
    uncalled: u32,
    /// Batches since one was timed.
    untimed: u32,
    /// The share of the batches timed lately that took long, of [`ALL`].
    long: u32,
    /// Whether to look at the empty ring for a moment, before the worker turns to others.
    pub(super) lingers: BackOff<LINGERS_IN>,
}

impl Batches {
    /// A batch was taken, and the device has done some of it already, or not.
    #[inline]
    pub(super) fn took(&mut self, at_once: bool) {
        (self.at_once, self.rested) = (at_once, false);
    }

    /// The ring was empty, and something has come. Whether its driver is called before any of that is done, once however it was heard of: see
    /// the module.
    pub(super) fn rested(&mut self) -> bool {
        self.unseen = true;
        !std::mem::replace(&mut self.rested, true) && self.at_once && self.sleeps
    }

    /// Lets the driver see answers, by `publish`, which tells whether it wants to be called for that, as this does. Some are timed by `clock`.
    #[inline]
    pub(super) fn publish(&mut self, publish: impl FnOnce() -> bool, clock: impl Fn() -> Nanos) -> bool {
        self.untimed += 1;
        let wanted = if self.untimed < TIMED_IN {
            publish()
        } else {
            let begun = clock();
            let wanted = publish();
            let ended = clock();
            // Reading it takes as long as what is measured, or, where it is a system call, much longer.
            let reading = clock().since(ended);
            self.took_for(Nanos(ended.since(begun).0.saturating_sub(reading.0)));
            wanted
        };
        if std::mem::take(&mut self.unseen) {
            self.sleeps = wanted;
        }
        self.uncalled = if wanted { 0 } else { self.uncalled.saturating_add(1) };
        wanted
    }

    /// It took so long to let the driver see a batch.
    #[cold]
    fn took_for(&mut self, time: Nanos) {
        self.untimed = 0;
        let it = if time > LONG { ALL / LATELY } else { 0 };
        self.long = self.long - self.long / LATELY + it;
    }

    /// The driver's processor is far away.
    pub(super) fn is_far(&self) -> bool {
        self.long > FAR
    }

    /// Requests in the next one, at most, where so many wait, which is asked only where it matters.
    #[inline]
    pub(super) fn size(&mut self, waiting: impl FnOnce() -> usize) -> usize {
        if !self.at_once {
            return TURN;
        }
        self.depth = waiting().max(self.depth - self.depth / FORGOTTEN);
        match BATCHES.iter().find(|(most, _)| self.depth <= *most) {
            Some(_) if self.rested => 1,
            Some(_) if self.uncalled >= LOOKS_AFTER || self.is_far() && self.depth > FEW => {
                (self.depth / LOOKED_FOR).clamp(2, TURN)
            }
            Some((_, batch)) => *batch,
            None => TURN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(at_once: bool) -> Batches {
        let mut batches = Batches::default();
        batches.took(at_once);
        batches
    }

    #[test]
    fn what_a_device_does_at_once_is_answered_in_parts() {
        assert_eq!(Batches::default().size(|| 64), TURN, "nothing is known yet");
        let sizes =
            [0, 1, 16, 64, 65, 128, 191, 192, 256, 384, 1024].map(|waiting| of(true).size(|| waiting));
        assert_eq!(sizes, [2, 2, 2, 2, 4, 4, 4, 8, 8, 32, 32]);
        let mut batches = of(true);
        _ = batches.rested();
        assert_eq!(batches.size(|| 128), 1, "the first goes alone");
        batches.took(true);
        assert_eq!(batches.size(|| 127), 4);
        batches.took(false);
        _ = batches.rested();
        assert_eq!(batches.size(|| 16), TURN);
    }

    #[test]
    fn who_looks_by_itself_has_larger_batches_until_it_wants_to_be_called() {
        let mut batches = of(true);
        let mut after = |wanted: bool, waiting| {
            batches.publish(|| wanted, Nanos::default);
            batches.size(|| waiting)
        };
        let sizes: Vec<_> = (0..LOOKS_AFTER).map(|_| after(false, 64)).collect();
        assert_eq!(sizes.iter().position(|size| *size != 2), Some(LOOKS_AFTER as usize - 1));
        assert_eq!(sizes.last(), Some(&16));
        assert_eq!([after(false, 64), after(true, 64), after(false, 64)], [16, 2, 2]);
        let sizes = [1, 8, 16, 128, 383, 384].map(|waiting| {
            let mut batches = Batches { uncalled: LOOKS_AFTER, ..of(true) };
            batches.size(|| waiting)
        });
        assert_eq!(sizes, [2, 2, 4, 32, 32, 32]);
    }

    /// Lets `batches` more be seen, each of which takes as long as `cost` says, by a clock that takes a microsecond to read.
    fn publish(batches: &mut Batches, count: u32, mut cost: impl FnMut() -> u64) {
        let now = std::cell::Cell::new(0);
        let pass = |ns| {
            now.set(now.get() + ns);
            now.get()
        };
        for _ in 0..count {
            let publish = || pass(cost()) > 0;
            batches.publish(publish, || Nanos(pass(1_000)));
        }
    }

    #[test]
    fn where_the_processors_are_far_apart_who_has_many_under_way_has_larger_batches() {
        let mut batches = of(true);
        let sizes = |batches: &mut Batches| {
            [383, 192, 191, 64].map(|waiting| {
                batches.depth = 0;
                batches.size(|| waiting)
            })
        };
        let (near, far) = ([8, 8, 4, 2], [32, 32, 4, 2]);
        publish(&mut batches, 100 * TIMED_IN, || 40);
        assert_eq!(sizes(&mut batches), near);
        publish(&mut batches, TIMED_IN, || 1_000_000);
        assert_eq!(sizes(&mut batches), near, "one was interrupted");
        publish(&mut batches, 30 * TIMED_IN, || 140);
        assert_eq!(sizes(&mut batches), far);
        let mut times = [140, 30, 30].into_iter().cycle();
        publish(&mut batches, 1000 * TIMED_IN, || times.next().expect("they come again"));
        assert_eq!(sizes(&mut batches), far, "many take long");
        let mut times = [30; 10].into_iter().chain([140]).cycle();
        publish(&mut batches, 1000 * TIMED_IN, || times.next().expect("they come again"));
        assert_eq!(sizes(&mut batches), near, "few do");
    }

    #[test]
    fn one_batch_of_many_is_timed() {
        let (mut batches, looks) = (of(true), std::cell::Cell::new(0));
        for _ in 0..10 * TIMED_IN {
            batches.publish(|| false, || Nanos(looks.replace(looks.get() + 1)));
        }
        assert_eq!(looks.get(), 30);
    }

    #[test]
    fn who_slept_through_the_first_answer_is_called_before_the_next_one() {
        let mut batches = of(true);
        let mut first_answer = |wanted: [bool; 2]| {
            let early = batches.rested();
            assert!(!batches.rested(), "once");
            batches.took(true);
            for wanted in wanted {
                assert_eq!(batches.publish(|| wanted, Nanos::default), wanted);
            }
            early
        };
        assert!(!first_answer([true, false]), "nothing is known yet");
        assert!(first_answer([false, true]), "it wanted to be called for the first");
        assert!(!first_answer([true, true]), "only the first answer after a rest counts");
        batches.took(false);
        assert!(!batches.rested(), "a device that takes its time leaves it the time to sleep");
    }

    #[test]
    fn a_driver_that_had_many_under_way_has_until_others_have_come_for_a_while() {
        let mut batches = of(true);
        batches.size(|| 512);
        let sizes: Vec<_> = (0..100).map(|_| batches.size(|| 10)).collect();
        let so_many = |size| sizes.iter().filter(|it| **it == size).count();
        assert!((4..20).contains(&so_many(TURN)), "{sizes:?}");
        assert!(so_many(8) > 4 && so_many(4) > 8 && so_many(2) > 50, "{sizes:?}");
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    }
}
