//! Event file descriptors (eventfd(2)) by which other processes call us, and we them.
//!
//! A watch is one poll for as long as it lasts (multishot, edge-triggered): each write to the eventfd completes it once, and
//! its count is never read, so a call costs us no system call. A signal is a write in the ring that has no completion, so that
//! the `io_uring_enter` that submits it can also sleep; or, where it is to be heard at once, a plain write under an alarm (`alarm`), or what
//! `bell` does.
//!
//! At once means before the other process is asleep: who calls within a microsecond or so of its last look saves it the whole way back. So each
//! tenth of a microsecond counts. 4 KiB from a null disk for a driver that sleeps, on a machine where to wake it takes 22 us, by turns, what a write
//! does in multiples of what a bell does: at depth 1 1.4 and 1.8 (two runs, medians of 5 and 7), 16 1.45 and 1.5, 32 1.04, 64 1.1 and 1.2; from 128
//! on, where nobody sleeps, the same.
//!
//! Invariant: of a [`Signal`], the kernel never has more unfinished writes than twice [`SIGNALS_FENCE`] and one. An eventfd that takes
//! no more (its count is full, and it blocks) would otherwise fill the kernel with writes that wait. They are cancelled when the signal ends
//! ([`Uring::end_signal`], [`Uring::end_signal_heard`]): who is called by one eventfd after the other has no more of them, and they outlive nobody.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use blockwork_engine::Token;
use io_uring::{opcode, squeue, types};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use crate::bell::Bell;
use crate::ring::Uring;
use crate::slots::{Kind, Slot, UNHEARD};

/// After so many signals comes one that completes; after as many again the next must wait for that.
const SIGNALS_FENCE: u32 = 64;

/// What a signal writes.
static ONE: u64 = 1;

/// An eventfd of another process's, that we call.
pub struct Signal {
    fd: Arc<OwnedFd>,
    /// What the kernel knows its writes by; none as long as it has none.
    name: Option<u64>,
    /// How often the kernel had been called when the last one was queued: until it is called again, that one will do.
    queued_at: Option<u64>,
    /// Since the last one that completes.
    since: u32,
    /// One that completes has not.
    fenced: bool,
    /// How it is done at once; none inside: not by a bell.
    bell: Option<Option<Bell>>,
    /// A write to it does not wait, unless the other process has made it so since.
    is_ready: bool,
}

impl Signal {
    /// Signals by `fd`.
    pub fn new(fd: Arc<OwnedFd>) -> Signal {
        let is_ready = fcntl_getfl(&*fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        Signal { fd, name: None, queued_at: None, since: 0, fenced: false, bell: None, is_ready }
    }

    #[inline]
    fn ring_bell(&mut self) -> bool {
        let bell = self.bell.get_or_insert_with(|| Bell::new(&self.fd));
        let rung = bell.as_mut().is_some_and(Bell::ring);
        if !rung {
            self.bell = Some(None);
        }
        rung
    }

    /// A signal has completed, well or not.
    pub fn completed(&mut self) {
        self.fenced = false;
    }
}

impl Uring {
    /// Completes each time that `fd` is written to, until cancelled (with [`more`](crate::more) set each time; without it, the
    /// watch has ended, and is to be started again). Once at the beginning, if its count is not zero.
    pub fn watch(&mut self, token: Token, fd: Arc<OwnedFd>) {
        let (name, slot) = self.slots.take(token, Kind::Watch { multishot: self.features.multishot });
        slot.file = Some(fd);
        let entry = slot.watch_entry();
        self.submit(name, entry);
    }

    /// Adds one to the eventfd, at the next `wait`. Once in a while one completes under `token`: tell [`Signal::completed`].
    /// Where too many have not gone through, this one is dropped, and false returned.
    pub fn signal(&mut self, token: Token, to: &mut Signal) -> bool {
        if to.queued_at == Some(self.enters()) {
            return true;
        }
        if to.since >= SIGNALS_FENCE && to.fenced {
            return false;
        }
        to.queued_at = Some(self.enters());
        let signal = *to.name.get_or_insert_with(|| {
            self.signals += 1;
            UNHEARD + self.signals
        });
        let entry = opcode::Write::new(types::Fd(to.fd.as_raw_fd()), (&raw const ONE).cast(), 8).build();
        if to.since < SIGNALS_FENCE {
            to.since += 1;
            self.submit_unheard(signal, entry, to.fd.clone());
        } else {
            (to.since, to.fenced) = (0, true);
            let (name, slot) = self.slots.take(token, Kind::Signal { of: signal, heard: true });
            slot.file = Some(to.fd.clone());
            self.submit(name, entry);
        }
        true
    }

    /// Nobody is called by that one any more: writes of its that wait are cancelled, and none of them completes under its token. For whom there
    /// is another way to hear what these would have told: a write that would have gone through in a moment is cancelled with the others.
    pub fn end_signal(&mut self, signal: Signal) {
        if let Some(name) = signal.name {
            self.cancel_signal(name);
        }
    }

    /// As [`Uring::end_signal`], and who was called so hears of that.
    pub fn end_signal_heard(&mut self, mut signal: Signal) {
        // Writes to one that does not wait are done when they are submitted, which is before they are cancelled; the stand-in's, too, and where
        // such a one takes no more, it tells already.
        let may_be_lost = signal.name.is_some() && !signal.is_ready && !self.queues.are_stand_in();
        // Without a bell: better a write that waits than a call that is lost.
        if !may_be_lost || signal.ring_bell() {
            self.end_signal(signal);
        }
    }

    /// As [`Uring::signal`], but at once, with whatever else was started so far.
    pub fn signal_now(&mut self, token: Token, to: &mut Signal) -> bool {
        // A kernel that has something to tell is called for that sooner or later: now, and then one call does for both. Not for a write that a
        // kernel's thread would take charge of.
        let is_called_anyway = to.is_ready && self.has_something();
        if !is_called_anyway && self.is_all_submitted() && (self.write_now(to) || to.ring_bell()) {
            self.bells += 1;
            return true;
        }
        let sent = self.signal(token, to);
        self.enter(0, true, None);
        sent
    }

    /// Calls by a plain write, if that does not wait, or not for long; whether that was done.
    #[inline]
    fn write_now(&mut self, to: &Signal) -> bool {
        if !to.is_ready || !self.alarm.set() {
            return false;
        }
        match rustix::io::write(&*to.fd, &ONE.to_ne_bytes()) {
            // Where it is full, whoever looks sees that.
            Ok(_) | Err(Errno::AGAIN) => true,
            Err(Errno::INTR) => {
                log::warn!(
                    "an eventfd that another process is called by was full and blocked: that process is broken or hostile; \
                     who is served by this worker is called in a slower way from now on, which cannot be held up"
                );
                self.alarm.give_up();
                false
            }
            Err(_) => false,
        }
    }

    /// For somebody who looks by itself, next, for what the watch under `token` tells of: what that has told until now is not told any more,
    /// and does not end the next sleep.
    pub fn unhear(&mut self, token: Token) {
        self.have_told();
        self.forget(|completion| completion.token == token && crate::more(completion.flags));
    }
}

impl Slot {
    pub(crate) fn watch_entry(&self) -> squeue::Entry {
        let events = u32::from(libc::POLLIN.unsigned_abs());
        let multishot = matches!(self.kind, Kind::Watch { multishot: true });
        opcode::PollAdd::new(self.fd(), events).multi(multishot).build()
    }
}

#[cfg(test)]
mod tests {
    use blockwork_engine::{Env, Nanos, Wait};
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

    use super::*;
    use crate::{AsKernel, Io, UringConfig};

    fn count(fd: &OwnedFd) -> Option<u64> {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).ok().map(|_| u64::from_ne_bytes(bytes))
    }

    fn environments() -> [Uring; 3] {
        [(Io::Uring, AsKernel::Newest), (Io::Uring, AsKernel::V5_11), (Io::Threads, AsKernel::Newest)].map(
            |(io, as_kernel)| Uring::new(&UringConfig { io, as_kernel, ..UringConfig::default() }).unwrap(),
        )
    }

    #[test]
    fn signals_arrive_and_most_of_them_complete_unheard() {
        for mut uring in environments() {
            let theirs = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            let mut signal = Signal::new(Arc::new(theirs.try_clone().unwrap()));
            let mut heard = Vec::new();
            for turn in 0..1000 {
                assert!(uring.signal(Token(7), &mut signal));
                assert!(uring.signal(Token(7), &mut signal), "the one before will do");
                let before = uring.enters();
                let there = heard.len();
                uring.wait(Wait::Poll, &mut heard);
                assert_eq!(uring.enters(), before + 1);
                assert_eq!(count(&theirs), Some(1), "turn {turn}");
                if heard.len() > there {
                    signal.completed();
                }
            }
            assert!((10..20).contains(&heard.len()), "{} were heard", heard.len());
        }
    }

    #[test]
    fn an_eventfd_that_takes_no_more_is_not_written_to_for_ever() {
        for mut uring in environments() {
            let full = eventfd(0, EventfdFlags::empty()).unwrap();
            rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            let held = Arc::new(full.try_clone().unwrap());
            let mut signal = Signal::new(held.clone());
            let mut heard = Vec::new();
            let sent = (0..1000).filter(|_| {
                let sent = uring.signal(Token(7), &mut signal);
                uring.wait(Wait::Poll, &mut heard);
                sent
            });
            assert_eq!(sent.count(), 2 * SIGNALS_FENCE as usize + 1);
            assert!(heard.is_empty());
            // Here, in the signal, and in the slot of the one that completes.
            assert_eq!(Arc::strong_count(&held), 3, "descriptors are not kept for the others");
        }
    }

    #[test]
    fn what_is_not_taken_waits_no_longer_than_somebody_is_called_so() {
        for mut uring in environments() {
            // A pipe tells its reader when the kernel has let go of the last that may write to it.
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            let room = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
            assert_eq!(rustix::io::write(&writer, &vec![0; room]), Ok(room));
            let writer = Arc::new(writer);
            let mut heard = Vec::new();
            for _ in 0..20 {
                let mut signal = Signal::new(writer.clone());
                while uring.signal(Token(7), &mut signal) {
                    uring.wait(Wait::Poll, &mut heard);
                }
                uring.end_signal(signal);
            }
            drop(writer);
            let mut polled = [PollFd::new(&reader, PollFlags::empty())];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            // The kernel does so in a few turns.
            let has_let_go = (0..100).any(|_| {
                uring.wait(Wait::Poll, &mut heard);
                poll(&mut polled, Some(&now)) == Ok(1)
            });
            assert!(has_let_go, "some still wait");
            assert!(heard.is_empty(), "{heard:?}");
            assert_eq!(uring.in_flight(), 0);
        }
    }

    #[test]
    fn the_last_call_is_heard_though_what_waits_is_cancelled() {
        for mut uring in environments() {
            for flags in [EventfdFlags::NONBLOCK, EventfdFlags::empty()] {
                let theirs = Arc::new(eventfd(0, flags).unwrap());
                let mut signal = Signal::new(theirs.clone());
                assert!(uring.signal(Token(7), &mut signal));
                uring.end_signal_heard(signal);
                uring.wait(Wait::Poll, &mut Vec::new());
                rustix::fs::fcntl_setfl(&*theirs, OFlags::NONBLOCK).unwrap();
                assert!(count(&theirs) >= Some(1), "{flags:?}");
            }
        }
    }

    #[test]
    fn without_a_ring_an_eventfd_is_written_to_only_as_far_as_it_takes_that() {
        let mut uring = Uring::new(&UringConfig { io: Io::Threads, ..UringConfig::default() }).unwrap();
        let theirs = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let mut signal = Signal::new(Arc::new(theirs.try_clone().unwrap()));
        let mut heard = Vec::new();
        while uring.signal(Token(7), &mut signal) {
            uring.wait(Wait::Poll, &mut heard);
        }
        assert_eq!(count(&theirs), Some(u64::MAX - 1));
        // Room for one: for the one that completes, since the others were dropped.
        rustix::io::write(&theirs, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        uring.wait(Wait::Until(None), &mut heard);
        let [completion] = heard[..] else { panic!("{heard:?}") };
        assert_eq!((completion.token, completion.result), (Token(7), 8));
        signal.completed();
        assert_eq!(count(&theirs), Some(u64::MAX - 1));
        assert!(uring.signal(Token(7), &mut signal));
        uring.wait(Wait::Poll, &mut heard);
        assert_eq!(count(&theirs), Some(1));
    }

    #[test]
    fn every_call_is_heard_without_reading_the_count() {
        for mut uring in environments() {
            let ours = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
            let mut heard = Vec::new();
            uring.watch(Token(9), ours.clone());
            uring.wait(Wait::Poll, &mut heard);
            assert!(heard.is_empty());
            for call in 1..=100 {
                rustix::io::write(&*ours, &1_u64.to_ne_bytes()).unwrap();
                heard.clear();
                uring.wait(Wait::Until(None), &mut heard);
                let [completion] = heard[..] else { panic!("call {call}: {heard:?}") };
                assert_eq!(completion.token, Token(9));
                if !crate::more(completion.flags) {
                    count(&ours);
                    uring.watch(Token(9), ours.clone());
                }
            }
            assert_eq!(uring.in_flight(), 1);
        }
    }

    #[test]
    fn a_call_at_once_has_come_when_that_returns_and_waits_for_no_room() {
        for mut uring in environments() {
            for flags in [EventfdFlags::NONBLOCK, EventfdFlags::empty()] {
                let theirs = Arc::new(eventfd(0, flags).unwrap());
                let mut signal = Signal::new(theirs.clone());
                // Of the stand-in's some may be one: it writes when the eventfd is ready.
                let is_ring = uring.is_all_submitted();
                for calls in [1, 2, 70] {
                    (0..calls).for_each(|_| assert!(uring.signal_now(Token(7), &mut signal)));
                    let counts = if is_ring { calls..=calls } else { 1..=calls };
                    assert!(counts.contains(&count(&theirs).unwrap()), "{calls} calls, {flags:?}");
                }
                let is_written_to = signal.bell.is_none();
                assert_eq!(is_written_to, !is_ring || flags == EventfdFlags::NONBLOCK, "{flags:?}");
                rustix::io::write(&*theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
                (0..1000).for_each(|_| _ = uring.signal_now(Token(7), &mut signal));
                assert!(count(&theirs).unwrap() >= u64::MAX - 1);
            }
        }
    }

    #[test]
    fn who_fills_his_eventfd_and_has_it_block_holds_a_worker_up_once() {
        let mut uring = Uring::new(&UringConfig::default()).unwrap();
        let full = || {
            let theirs = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
            let signal = Signal::new(theirs.clone());
            rustix::fs::fcntl_setfl(&*theirs, OFlags::empty()).unwrap();
            rustix::io::write(&*theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            (theirs, signal)
        };
        let (theirs, mut signal) = full();
        // It would wait for ever.
        assert!(uring.signal_now(Token(7), &mut signal));
        assert!(!uring.alarm.set() && !uring.alarm.runs(), "nothing is written to any more");
        assert!(count(&theirs).unwrap() >= u64::MAX - 1);
        let (_again, mut another) = full();
        assert!(uring.signal_now(Token(7), &mut another));
        // The first one is called as before.
        assert!(uring.signal_now(Token(7), &mut signal));
        assert_eq!(count(&theirs), Some(1));
        assert!(signal.bell.is_some_and(|bell| bell.is_some()));
    }

    #[test]
    fn who_sleeps_is_interrupted_three_times_at_most_after_its_last_call() {
        let mut uring = Uring::new(&UringConfig::default()).unwrap();
        let theirs = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let mut signal = Signal::new(theirs.clone());
        assert!(uring.signal_now(Token(7), &mut signal) && uring.alarm.runs());
        assert!(signal.bell.is_none(), "a write has done");
        let before = uring.enters();
        uring.timeout(Token(8), Nanos::millis(1000));
        let mut heard = Vec::new();
        uring.wait(Wait::Until(None), &mut heard);
        assert_eq!(heard.iter().map(|it| it.token).collect::<Vec<_>>(), [Token(8)]);
        assert!(!uring.alarm.runs());
        // One that ends the sleep, and three that were interrupted, of which the first had submitted something and told of that instead.
        assert!((2..=4).contains(&(uring.enters() - before)), "{}", uring.enters() - before);
        assert!(uring.signal_now(Token(7), &mut signal) && uring.alarm.runs(), "and again");
        assert_eq!(count(&theirs), Some(2));
    }

    #[test]
    fn what_was_started_is_submitted_with_a_call_at_once() {
        let mut uring = Uring::new(&UringConfig::default()).unwrap();
        let mut bells = [(); 2].map(|()| Signal::new(Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap())));
        let before = uring.enters();
        let [first, second] = &mut bells;
        assert!(uring.signal(Token(7), first) && uring.signal_now(Token(8), second));
        assert_eq!((count(&first.fd), count(&second.fd)), (Some(1), Some(1)));
        assert_eq!(uring.enters(), before + 1);
        assert!(uring.signal_now(Token(8), second));
        assert_eq!((count(&second.fd), uring.enters()), (Some(1), before + 2), "each is counted");
    }

    #[test]
    fn one_call_of_the_kernel_tells_what_has_come_and_calls_at_once() {
        let mut uring = Uring::new(&UringConfig::default()).unwrap();
        let ours = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        uring.watch(Token(9), ours.clone());
        let mut heard = Vec::new();
        uring.wait(Wait::Poll, &mut heard);
        for (flags, calls) in [(EventfdFlags::NONBLOCK, 1), (EventfdFlags::empty(), 2)] {
            let theirs = Arc::new(eventfd(0, flags).unwrap());
            let mut signal = Signal::new(theirs.clone());
            rustix::io::write(&*ours, &1_u64.to_ne_bytes()).unwrap();
            let before = uring.enters();
            assert!(uring.signal_now(Token(7), &mut signal));
            uring.unhear(Token(9));
            assert_eq!(uring.enters() - before, calls, "{flags:?}");
            assert_eq!(count(&theirs), Some(1));
            uring.wait(Wait::Poll, &mut heard);
            assert_eq!((uring.enters() - before, heard.len()), (calls, 0), "{flags:?}");
        }
    }

    #[test]
    fn a_call_whose_owner_looks_by_itself_ends_no_sleep_and_the_next_one_does() {
        let mut uring = Uring::new(&UringConfig::default()).unwrap();
        let bells = [7, 9].map(|token| {
            let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
            uring.watch(Token(token), bell.clone());
            bell
        });
        let call = |bell: &OwnedFd| rustix::io::write(bell, &1_u64.to_ne_bytes()).unwrap();
        let mut heard = Vec::new();
        uring.wait(Wait::Poll, &mut heard);
        bells.iter().for_each(|bell| _ = call(bell));
        uring.unhear(Token(9));
        uring.wait(Wait::Until(None), &mut heard);
        assert_eq!(heard.iter().map(|it| it.token).collect::<Vec<_>>(), [Token(7)], "the other one is heard");
        heard.clear();
        call(&bells[1]);
        uring.wait(Wait::Until(None), &mut heard);
        assert_eq!(heard.iter().map(|it| it.token).collect::<Vec<_>>(), [Token(9)]);
        heard.clear();
        // That a watch has ended is always told.
        uring.cancel(Token(9));
        uring.unhear(Token(9));
        uring.wait(Wait::Until(None), &mut heard);
        assert_eq!(
            heard.iter().map(|it| (it.token, crate::more(it.flags))).collect::<Vec<_>>(),
            [(Token(9), false)]
        );
    }
}
