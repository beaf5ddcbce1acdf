//! The environment itself: starting operations, waiting for them, and ending with none left behind.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use blockwork_engine::{
    Completion, Decision, Env, FileOp, FileOpKind, Nanos, Network, Notify, StreamId, Token, Wait,
};
use blockwork_memory::{Mapping, Segment};
use io_uring::{cqueue, opcode, squeue, types};
use rustix::time::{ClockId, clock_gettime};

use crate::alarm::Alarm;
use crate::blocking::{Call, Helpers, Vectors, signed};
use crate::known::Known;
use crate::late::Late;
use crate::look::{LookedFor, Looks};
use crate::network::connected;
use crate::portion::Portion;
use crate::queues::Queues;
use crate::setup::{Features, UringConfig, UringError};
use crate::slots::{CANCEL, Kind, Slot, Slots, UNHEARD, UNHEARD_LAST, WAKE};
use crate::transfer;
use crate::wake::Wake;
use crate::words::Words;

/// How long a drop waits for the kernel, and for threads, to give memory back before it leaks that memory instead.
const DROP_PATIENCE: Nanos = Nanos::secs(30);

/// fallocate(2)'s modes, from the kernel's include/uapi/linux/falloc.h.
const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

/// `BLOCK_URING_CMD_DISCARD` of include/uapi/linux/blkdev.h: `_IO(0x12, 0)`. Linux 6.12.
const BLOCK_DISCARD: u32 = 0x1200;

/// Real time, real files: one worker's io_uring. Not `Send`: it stays on the thread that made it.
pub struct Uring {
    pub(crate) queues: Queues,
    pub(crate) features: Features,
    /// Who does the I/O, and why.
    decision: Decision,
    pub(crate) slots: Slots,
    known: Known,
    wake: Wake,
    helpers: Helpers,
    /// Completions that had to be taken out while room was made for a submission.
    early: Vec<Completion>,
    /// Operations to be submitted once more: the rest of a send, a multishot operation that the kernel has not.
    again: Vec<u64>,
    helped: Vec<(u64, i32)>,
    /// Operations that the kernel has, or will have when the queue is submitted.
    in_kernel: usize,
    portion: Portion,
    /// Calls at once that needed no entry of ours.
    pub(crate) bells: u64,
    pub(crate) alarm: Alarm,
    /// Signals that were given names.
    pub(crate) signals: u64,
    /// Descriptors of entries in the submission queue that no slot holds.
    unheard: Vec<Arc<OwnedFd>>,
    /// Descriptors from accepts that nobody has taken yet.
    pub(crate) accepted: Vec<RawFd>,
    /// Connections to servers, by their numbers.
    pub(crate) streams: Vec<(StreamId, Arc<OwnedFd>)>,
    random: Random,
    pub(crate) looks: Looks,
    pub(crate) words: Words,
    late: Late,
    now: Nanos,
}

impl Uring {
    /// A ring for this thread. Lowers the thread's timer slack to a microsecond, since the default of 50 would make a
    /// [`Wait::Gather`] longer than it is worth.
    pub fn new(config: &UringConfig) -> Result<Uring, UringError> {
        let (queues, features, decision) = Queues::new(config)?;
        let wake = Wake::new().map_err(|source| UringError::Other { what: "eventfd", source })?;
        // Where it is refused, timers are only less exact.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
        Ok(Uring {
            queues,
            features,
            decision,
            slots: Slots::default(),
            known: if features.known_memory { Known::default() } else { Known::nothing() },
            wake,
            helpers: Helpers::default(),
            early: Vec::new(),
            again: Vec::new(),
            helped: Vec::new(),
            in_kernel: 0,
            portion: Portion::default(),
            bells: 0,
            alarm: Alarm::default(),
            signals: 0,
            unheard: Vec::new(),
            accepted: Vec::new(),
            streams: Vec::new(),
            random: Random::default(),
            looks: Looks::new(config.look),
            words: Words::default(),
            late: Late::new(config.look),
            now: clock(),
        })
    }

    /// How often `io_uring_enter` was called, or an eventfd written to. With a ring, the environment makes no other system call on the worker's thread for I/O, but
    /// to hand BLKDISCARD and BLKZEROOUT to other threads where the ring cannot take them, and to tell it of memory, once for each slab, and for each piece of a mapping that was lent, which it is told to forget, too. Without one: how often the stand-in was
    /// entered, which makes the calls that do not block itself.
    pub fn enters(&self) -> u64 {
        self.queues.enters() + self.bells
    }

    /// Who does its I/O, and why: the setting `io`.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How many operations were started by memory that the kernel knows.
    pub fn fixed(&self) -> u64 {
        self.known.operations
    }

    /// Operations on that mapping's memory may go by io_uring's registered buffers from now on, once its pieces were brought ([`Mapping::bring`]); what the
    /// kernel holds of it for that is counted in `locked`, bytes. Whoever lends it says that whoever shares it gives none of it back meanwhile: what is
    /// read into pages that are no part of it any more is lost. Each time it is lent, it is to be taken back once.
    pub fn lend(&mut self, mapping: &Arc<Mapping>, locked: &Arc<AtomicU64>) {
        self.known.lend(mapping, locked);
    }

    /// Undoes one [`Uring::lend`]. After the last one no operation begins so, and when none has memory of it any more the kernel lets go of it, bit by bit.
    pub fn take_back(&mut self, mapping: &Arc<Mapping>) {
        self.known.take_back(mapping);
    }

    /// Has the kernel let go of a piece of what was taken back; whether it has, and may of more.
    #[cold]
    fn forget_a_piece(&mut self) -> bool {
        let Uring { known, queues, slots, .. } = self;
        known.forget(queues, |mapping| slots.have_memory_of(mapping))
    }

    /// Operations that were started and have not completed.
    pub fn in_flight(&self) -> usize {
        self.slots.occupied()
    }

    /// So many operations on files are about to be started, before the next wait, and prepared in so little time that what the disk waits for
    /// is the kernel: a part of them goes first, and the others together.
    pub fn expect(&mut self, operations: usize) {
        self.portion.expect(operations);
    }

    /// Whether the kernel has everything that was started.
    #[inline]
    pub(crate) fn is_all_submitted(&mut self) -> bool {
        !self.queues.are_stand_in() && self.queues.queued() == 0
    }

    /// Whether the kernel is to be called, at the latest by the next wait.
    pub(crate) fn has_something(&mut self) -> bool {
        self.queues.have_something()
    }

    /// Has the kernel tell now of what has completed.
    pub(crate) fn have_told(&mut self) {
        if self.has_something() {
            self.enter(0, true, None);
        }
        let mut early = std::mem::take(&mut self.early);
        self.take_completed(&mut early);
        self.early = early;
    }

    /// Forgets completions that nobody has taken yet.
    pub(crate) fn forget(&mut self, which: impl Fn(&Completion) -> bool) {
        self.early.retain(|completion| !which(completion));
    }

    /// Cancels all operations with this token. Each still completes: with ECANCELED, or as if it had not been
    /// cancelled, if that came too late (a write that has begun, a call that a thread makes).
    pub fn cancel(&mut self, token: Token) {
        self.cancel_all(|slot| slot.token == token && slot.kind != Kind::Helper);
    }

    /// Cancels all operations on this descriptor, as [`Uring::cancel`] does.
    pub(crate) fn cancel_all_of(&mut self, fd: &Arc<OwnedFd>) {
        self.cancel_all(|slot| slot.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, fd)));
    }

    fn cancel_all(&mut self, wanted: impl Fn(&Slot) -> bool) {
        for name in self.slots.cancel(wanted) {
            self.push(&opcode::AsyncCancel::new(name).build().user_data(CANCEL));
        }
    }

    /// Has the kernel write nothing more for the signal of that name, nor anybody hear of what it has written.
    pub(crate) fn cancel_signal(&mut self, name: u64) {
        if self.features.silent {
            let all = types::CancelBuilder::user_data(name).all();
            self.push(&opcode::AsyncCancel2::new(all).build().user_data(CANCEL));
        }
        for write in self.slots.end_signal(name) {
            self.push(&opcode::AsyncCancel::new(write).build().user_data(CANCEL));
        }
    }

    /// Queues the entry of an operation that occupies a slot.
    pub(crate) fn submit(&mut self, name: u64, entry: squeue::Entry) {
        self.push(&entry.user_data(name));
        self.in_kernel += 1;
    }

    /// Queues the entry of a signal's write whose completion nobody waits for; what it points to must be static.
    pub(crate) fn submit_unheard(&mut self, signal: u64, entry: squeue::Entry, fd: Arc<OwnedFd>) {
        if self.features.silent {
            self.push(&entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(signal));
        } else if self.queues.are_stand_in() {
            self.push(&entry.user_data(signal));
        } else {
            let (name, _) = self.slots.take(Token(0), Kind::Signal { of: signal, heard: false });
            self.submit(name, entry);
        }
        self.unheard.push(fd);
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: whatever an entry points to lies in a slot's segments (which, if it names memory that the kernel knows, are of just that),
        // vectors, header or timespec, or in `self.wake`, all of which stay where they are and live until the operation has completed (invariant 1 of the crate), or is
        // static.
        while !unsafe { self.queues.push(entry) } {
            self.make_room();
        }
    }

    /// Submits what fills the queue.
    fn make_room(&mut self) {
        let mut early = std::mem::take(&mut self.early);
        self.enter(0, false, None);
        // If the kernel takes nothing more until completions are taken out (before 5.19, when its queue has overflowed;
        // or when it is short of memory), take them; else leave them to the next wait.
        if self.queues.are_full() {
            self.take_completed(&mut early);
            self.enter(0, true, None);
        }
        self.early = early;
    }

    /// Calls the kernel. Whether it did what was asked shows in the queues; errors that time or another try cures are
    /// left to the caller's loop.
    pub(crate) fn enter(&mut self, want: u32, get: bool, time: Option<Nanos>) {
        if let Err(error) = self.try_enter(want, get, time) {
            // Nothing that goes wrong on a device is reported here: it is a fault of ours, or lost completions (EBADR).
            panic!("io_uring_enter({want} wanted): {error}");
        }
    }

    fn try_enter(&mut self, want: u32, get: bool, time: Option<Nanos>) -> io::Result<()> {
        // What the kernel does not take now is in the queue at the next call, whatever that is made for.
        self.portion.submitted();
        let Err(error) = self.queues.enter(want, get, time) else {
            if !self.unheard.is_empty() && self.queues.queued() == 0 {
                self.unheard.clear();
            }
            return Ok(());
        };
        match error.raw_os_error() {
            Some(libc::ETIME) => Ok(()),
            Some(libc::EINTR) => {
                self.alarm.interrupted();
                Ok(())
            }
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {
                // No memory just now, or completions must be taken first. Not to burn the processor until it is cured:
                std::thread::yield_now();
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Moves what has completed to `out`. No system call.
    fn take_completed(&mut self, out: &mut Vec<Completion>) {
        self.queues.take(|name, result, flags| match name {
            WAKE => self.wake.disarm(),
            CANCEL | UNHEARD..=UNHEARD_LAST => {}
            _ => {
                let slot = self.slots.get(name).expect("the kernel completes only what is in flight");
                let more = cqueue::more(flags);
                if !more {
                    self.in_kernel -= 1;
                }
                if matches!(slot.kind, Kind::Accept { .. }) && result >= 0 {
                    self.accepted.push(result);
                }
                match settle(slot, result, more) {
                    Next::Done(result) => {
                        if !matches!(slot.kind, Kind::Signal { heard: false, .. }) {
                            out.push(Completion { token: slot.token, result, flags });
                        }
                        if !more {
                            self.slots.release(name);
                        }
                    }
                    Next::Again { report: true } => {
                        let flags = flags | CQE_F_MORE;
                        out.push(Completion { token: slot.token, result, flags });
                        self.again.push(name);
                    }
                    Next::Again { report: false } => self.again.push(name),
                }
            }
        });
        self.helpers.collect(&mut self.helped);
        for (name, result) in self.helped.drain(..) {
            let slot = self.slots.get(name).expect("helpers complete only what is in flight");
            out.push(Completion { token: slot.token, result, flags: 0 });
            self.slots.release(name);
        }
    }

    fn start_again(&mut self, name: u64) {
        let whole = self.features.whole_sends;
        let slot = self.slots.get(name).expect("only what is in flight goes on");
        if slot.cancelled {
            let result = slot.as_cancelled();
            self.early.push(Completion { token: slot.token, result, flags: 0 });
            return self.slots.release(name);
        }
        let entry = match slot.kind {
            Kind::Send { .. } => slot.send_entry(whole),
            Kind::Accept { .. } => slot.accept_entry(),
            Kind::Watch { .. } => slot.watch_entry(),
            Kind::BlockCommand { fd, zero, range } => {
                let call = if zero { Call::ZeroOut(range) } else { Call::Discard(range) };
                return self.help(name, fd, call);
            }
            Kind::Free | Kind::Plain | Kind::Connect | Kind::Signal { .. } | Kind::Helper => {
                unreachable!("these complete at once")
            }
        };
        self.submit(name, entry);
    }

    /// Has a blocking call made by another thread.
    fn help(&mut self, name: u64, fd: RawFd, call: Call) {
        let slot = self.slots.get(name).expect("only what is in flight goes on");
        slot.kind = Kind::Helper;
        let token = slot.token;
        if let Err(errno) = self.helpers.start(name, fd, call, &self.wake.notifier()) {
            self.slots.release(name);
            self.early.push(Completion { token, result: -errno, flags: 0 });
        }
    }

    /// Takes what has completed, and prepares what goes on.
    fn gather(&mut self, out: &mut Vec<Completion>) {
        self.take_completed(out);
        while let Some(name) = self.again.pop() {
            self.start_again(name);
        }
        if let Some(entry) = self.wake.arm() {
            self.push(&entry);
        }
        out.append(&mut self.early);
    }
}

/// `IORING_CQE_F_MORE`.
const CQE_F_MORE: u32 = 1 << 1;

/// What to do with an operation whose completion has come.
enum Next {
    /// Report this result.
    Done(i32),
    /// Submit it once more; `report` this completion as one of several.
    Again { report: bool },
}

fn settle(slot: &mut Slot, result: i32, more: bool) -> Next {
    match slot.kind {
        Kind::Send { sent } => settle_send(slot, sent, result),
        Kind::Connect => Next::Done(connected(slot, result)),
        Kind::Accept { multishot: true } if !more && result == -libc::EINVAL => {
            // Before 5.19, or a socket that does not listen: then the plain accept says so.
            slot.kind = Kind::Accept { multishot: false };
            Next::Again { report: false }
        }
        Kind::Watch { multishot: true } if !more && result == -libc::EINVAL => {
            // Before 5.13.
            slot.kind = Kind::Watch { multishot: false };
            Next::Again { report: false }
        }
        Kind::Accept { multishot: false } if result >= 0 => Next::Again { report: true },
        // Before 6.12, and devices without discards, which the ioctl then reports.
        Kind::BlockCommand { .. } if [-libc::EINVAL, -libc::EOPNOTSUPP, -libc::ENOTTY].contains(&result) => {
            Next::Again { report: false }
        }
        _ => Next::Done(result),
    }
}

/// A send that is short goes on with the rest (before 5.19 the kernel does not do so by itself for MSG_WAITALL), unless it was cancelled: one of
/// which a part was sent completes with that part then, not with ECANCELED.
fn settle_send(slot: &mut Slot, sent: u32, result: i32) -> Next {
    let Some(now) = u32::try_from(result).ok().filter(|&bytes| bytes > 0) else {
        return Next::Done(if sent > 0 { total(sent) } else { result });
    };
    let sent = sent + now;
    if slot.skip_sent(now as usize) {
        return Next::Done(total(sent));
    }
    slot.kind = Kind::Send { sent };
    Next::Again { report: false }
}

fn total(sent: u32) -> i32 {
    i32::try_from(sent).expect("a send is limited to 2^31 - 1 bytes")
}

impl Slot {
    /// The result of one that would go on, and was cancelled.
    fn as_cancelled(&self) -> i32 {
        match self.kind {
            Kind::Send { sent } if sent > 0 => total(sent),
            _ => -libc::ECANCELED,
        }
    }
}

/// The call by which a thread does `op`, which occupies that slot.
fn call(slot: &mut Slot, op: &FileOp<'_>) -> Call {
    slot.list();
    let count = i32::try_from(slot.iovecs.len()).expect("a thousand segments at most");
    let vectors = Vectors { first: slot.iovecs.as_ptr(), count, offset: signed(op.offset) };
    let range = [op.offset, op.len];
    match op.kind {
        FileOpKind::Read => Call::Read(vectors),
        FileOpKind::Write { dsync } => Call::Write(vectors, if dsync { libc::RWF_DSYNC } else { 0 }),
        FileOpKind::Sync => Call::Sync,
        FileOpKind::PunchHole => Call::Allocate(PUNCH_HOLE, range),
        FileOpKind::ZeroRange => Call::Allocate(ZERO_RANGE, range),
        FileOpKind::BlkDiscard => Call::Discard(range),
        FileOpKind::BlkZeroOut => Call::ZeroOut(range),
    }
}

impl Env for Uring {
    #[inline]
    fn now(&self) -> Nanos {
        self.now
    }

    fn processor_time(&self) -> Nanos {
        read(ClockId::ThreadCPUTime)
    }

    fn random(&mut self) -> u64 {
        self.random.next()
    }

    #[inline]
    fn knows(&mut self, memory: &Segment) -> bool {
        self.known.knows(&self.queues, memory)
    }

    fn calls_return_late(&self) -> bool {
        self.queues.are_stand_in()
    }

    fn start(&mut self, token: Token, op: FileOp<'_>) {
        let fd = RawFd::try_from(op.file.0).unwrap_or(-1); // -1: EBADF
        let file = types::Fd(fd);
        let (name, slot) = self.slots.take(token, Kind::Plain);
        slot.hold(op.data);
        if self.queues.are_stand_in() {
            let call = call(slot, &op);
            return self.help(name, fd, call);
        }
        let known = match op.data {
            [only] if op.fixed => self.known.index(only),
            _ => None,
        };
        self.known.operations += u64::from(known.is_some());
        let entry = match op.kind {
            FileOpKind::Read => transfer::read(slot, file, &op, known),
            FileOpKind::Write { dsync } => {
                transfer::write(slot, file, &op, known, if dsync { libc::RWF_DSYNC } else { 0 })
            }
            FileOpKind::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            FileOpKind::PunchHole => {
                opcode::Fallocate::new(file, op.len).offset(op.offset).mode(PUNCH_HOLE).build()
            }
            FileOpKind::ZeroRange => {
                opcode::Fallocate::new(file, op.len).offset(op.offset).mode(ZERO_RANGE).build()
            }
            FileOpKind::BlkDiscard if self.features.block_commands => {
                slot.kind = Kind::BlockCommand { fd, zero: false, range: [op.offset, op.len] };
                let mut command = [0; 16];
                command[..8].copy_from_slice(&op.len.to_ne_bytes()); // the entry's `addr3`
                opcode::UringCmd16::new(file, BLOCK_DISCARD).cmd(command).addr(Some(op.offset)).build()
            }
            FileOpKind::BlkDiscard | FileOpKind::BlkZeroOut => {
                let call = call(slot, &op);
                return self.help(name, fd, call);
            }
        };
        self.submit(name, entry);
        if self.portion.queued(&op, self.in_kernel) {
            self.enter(0, false, None);
        }
    }

    fn wait(&mut self, wait: Wait, out: &mut Vec<Completion>) {
        let before = out.len();
        self.portion.turn_over();
        self.gather(out);
        // A piece of it at a time: clients are served in between.
        let wait = if self.known.are_leaving() && self.forget_a_piece() { Wait::Poll } else { wait };
        if !self.look_first(wait, before, out) {
            match wait {
                Wait::Poll => self.sleep(0, None, Nanos(0), before, out),
                Wait::Until(until) | Wait::Soon { until, .. } => {
                    self.sleep(1, until, self.late.expected(), before, out);
                }
                // When exactly it ends does not matter.
                Wait::Gather { completions, for_at_most } => {
                    let end = clock() + for_at_most;
                    self.sleep(completions as usize, Some(end), Nanos(0), before, out);
                }
            }
        }
        self.helpers.end_turn();
        self.now = clock();
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.wake.notifier()
    }

    fn network(&mut self) -> Option<&mut dyn Network> {
        Some(self)
    }
}

impl Drop for Uring {
    /// Cancels what is in flight, and waits until the kernel and the threads have done with its memory.
    fn drop(&mut self) {
        let have_ended = self.helpers.close(Duration::from_nanos(DROP_PATIENCE.0));
        if std::thread::panicking() || !self.drain() || !have_ended {
            self.slots.leak();
        } else {
            self.known.close(&self.queues);
        }
        self.queues.close();
        for fd in self.accepted.drain(..) {
            // SAFETY: the kernel gave us this descriptor in an accept's completion, and `take_accepted` has not given
            // it away (it would not be in the list).
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

impl Uring {
    /// Looks before the worker sleeps, where that is asked for. Tells whether there is something to do by that, if only for ports
    /// whose words have not changed.
    fn look_first(&mut self, wait: Wait, before: usize, out: &mut Vec<Completion>) -> bool {
        let within =
            |time: Nanos, until: Option<Nanos>| until.map_or(time, |until| time.min(until.since(clock())));
        match wait {
            Wait::Poll => false,
            _ if !self.words.is_empty() => {
                let until = match wait {
                    Wait::Soon { until, .. } | Wait::Until(until) => until,
                    Wait::Poll | Wait::Gather { .. } => None,
                };
                let (of, time) = match wait {
                    Wait::Soon { of, .. } => (of.into(), self.looks.time),
                    _ if self.words.await_refill() => (LookedFor::Refill, self.looks.refill_time(clock())),
                    _ => (LookedFor::Busy, self.short_look()),
                };
                let time = within(time, until);
                let found = time > Nanos(0) && self.look(of, time, before, out);
                self.words.looked(found);
                self.words.resolve(out);
                true
            }
            Wait::Soon { of, until } => {
                let time = within(self.looks.time, until);
                !self.words.were_in_vain() && time > Nanos(0) && self.look(of.into(), time, before, out)
            }
            Wait::Until(_) | Wait::Gather { .. } => false,
        }
    }

    /// Submits what was started, and sleeps until there are `enough` completions, somebody notifies us, or the time has come. Looks the
    /// last `early` of that away.
    fn sleep(
        &mut self,
        enough: usize,
        deadline: Option<Nanos>,
        early: Nanos,
        before: usize,
        out: &mut Vec<Completion>,
    ) {
        loop {
            let there = out.len() - before;
            let now = clock();
            let left = deadline.map(|deadline| deadline.since(now));
            let limit = left.map(|left| Nanos(left.0.saturating_sub(early.0)));
            let sleep = there < enough && limit != Some(Nanos(0)) && self.wake.prepare_to_sleep();
            if sleep {
                self.enter(length(enough - there), true, limit);
            } else if self.queues.have_something() {
                self.enter(0, true, None);
            }
            let notified = self.wake.awake();
            self.gather(out);
            // A sleep may have been ended by a signal, by an old wake-up, or by what the kernel could not submit.
            if notified || out.len() - before >= enough || left == Some(Nanos(0)) {
                break;
            }
            match limit {
                _ if !sleep => std::hint::spin_loop(),
                Some(limit) if now + limit <= clock() => self.late.learn(clock().since(now + limit)),
                _ => {}
            }
        }
    }

    /// Submits what was started, and looks for completions for a moment without sleeping; tells whether one came. Where
    /// looking is in vain it is tried less and less often.
    ///
    /// Leaving and waking an idle processor can cost more than the whole request, in a virtual machine above all: for a
    /// client with one request under way, looking for a moment takes less of the processor than sleeping does.
    fn look(&mut self, of: LookedFor, time: Nanos, before: usize, out: &mut Vec<Completion>) -> bool {
        let Some(_looking) = self.looks.of(of).begin() else { return false };
        let mut start = None;
        let mut looked = Nanos(0);
        let found = loop {
            if self.queues.have_something() {
                self.enter(0, true, None);
            }
            self.gather(out);
            if out.len() > before || self.words.have_changed() {
                if start.is_some() {
                    self.looks.of(of).found();
                }
                break true;
            }
            let now = clock();
            looked = now.since(*start.get_or_insert(now));
            if looked >= time {
                self.looks.of(of).in_vain();
                break false;
            }
            std::hint::spin_loop();
        };
        if of == LookedFor::Refill {
            self.looks.looked_for_refill(looked);
        }
        found
    }

    /// Ends all operations; false if some did not end in time.
    fn drain(&mut self) -> bool {
        let mut ignored = Vec::new();
        self.take_completed(&mut ignored);
        self.cancel_all(|slot| slot.kind != Kind::Helper);
        if self.wake.is_armed() {
            self.push(&opcode::AsyncCancel::new(WAKE).build().user_data(CANCEL));
        }
        let deadline = clock() + DROP_PATIENCE;
        while self.in_kernel > 0 || self.wake.is_armed() {
            let left = deadline.since(clock());
            if left == Nanos(0) || self.try_enter(1, true, Some(left)).is_err() {
                return false;
            }
            self.take_completed(&mut ignored);
            self.again.clear(); // these go on no more
        }
        true
    }
}

/// Random numbers from the kernel, a few at a time.
#[derive(Default)]
struct Random {
    stock: Vec<u64>,
}

impl Random {
    fn next(&mut self) -> u64 {
        if self.stock.is_empty() {
            self.refill();
        }
        self.stock.pop().expect("just filled")
    }

    fn refill(&mut self) {
        let mut bytes = [0_u8; 256]; // as many as getrandom(2) gives whole, whatever signals come
        let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        assert_eq!(got, Ok(bytes.len()), "getrandom(2) gives 256 bytes since Linux 3.17");
        let (numbers, _) = bytes.as_chunks::<8>();
        self.stock.extend(numbers.iter().map(|number| u64::from_ne_bytes(*number)));
    }
}

/// The monotonic clock, which environments here go by, read now.
pub fn clock() -> Nanos {
    read(ClockId::Monotonic)
}

fn read(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    let part = |n: i64| u64::try_from(n).expect("neither the monotonic clock nor a thread's is negative");
    Nanos::secs(part(time.tv_sec)) + Nanos(part(time.tv_nsec))
}

/// A count of bytes or entries, for the kernel's 32-bit fields. Segments and lists of them are shorter than that.
pub(crate) fn length(n: usize) -> u32 {
    u32::try_from(n).expect("a segment or a list of them is shorter than 2^32")
}
