//! The real environment: io_uring, an eventfd to be woken by, the monotonic clock and the kernel's random numbers.
//!
//! A [`Uring`] belongs to one worker, on the thread that made it. What the worker starts during a turn is handed to the
//! kernel by the `io_uring_enter` that also waits for what comes next: a batch costs one system call, however many
//! operations are in it. Only scattered operations on files go earlier, in portions, so that a disk that has little to do
//! begins with the first while the turn still starts others (`portion`).
//!
//! Invariants:
//! 1. Memory that the kernel may read or write (segments, iovecs, message headers, timespecs) is static, or owned by the
//!    slot of its operation and stays where it is until the kernel, or the thread that makes the call, has said that it is done with
//!    it. If it never says so, which [`Uring`]'s drop waits for but not for ever, that memory is leaked, never freed.
//! 2. Each operation that was started completes exactly once (multishot ones: once without [`more`], and of a watch what is unheard not; signals: now and then one), also when it is
//!    cancelled, when the submission queue is full, and when there are more completions than the queue holds.
//! 3. A completion is matched to its operation by slot number and generation: a late one can never complete the
//!    wrong operation.
//! 4. Once warm, starting and completing operations in a ring allocates nothing.
//!
//! `unsafe` lives in `enter` (the system call), `queues`, `ring` and `bell` (submission), `slots` (addresses for the kernel), `known` (memory that the kernel is told
//! of), `socket` (accepted
//! and inherited descriptors, what TCP says of a connection), `wake` (the eventfd's read), `alarm` (a timer and its signal), `blocking` (threads' calls), `stand_in` (calls that do not block), `evtchn` (two ioctls) and
//! `direct` (readv and writev without the ring).
//!
//! Where io_uring is forbidden (a container's seccomp profile, a sysctl) or missing, `queues` leads to a stand-in: the same entries and
//! completions, by poll(2) for descriptors and by threads for files. Everything else here is the same, and no port knows.
//!
//! A descriptor given as a [`FileId`](blockwork_engine::FileId) must stay open until the `wait` that follows the
//! start has returned: from then on the kernel holds the file itself.
//!
//! Sources: io_uring_setup(2), io_uring_enter(2), io_uring_prep_*(3).

mod alarm;
mod back_off;
mod bell;
mod blocking;
mod direct;
mod enter;
mod event;
mod evtchn;
mod known;
mod late;
mod look;
mod network;
mod portion;
mod queues;
mod ring;
mod setup;
mod shortage;
mod slots;
mod socket;
mod stand_in;
mod transfer;
mod wake;
mod words;

pub use back_off::BackOff;
pub use direct::{NOW_SEGMENTS_MAX, read_now, write_now};
pub use event::Signal;
pub use evtchn::EventPort;
pub use ring::{Uring, clock};
pub use setup::{AsKernel, Io, UringConfig, UringError, WakesWith};
pub use shortage::Shortage;
pub use socket::duplicate;

/// Whether a multishot operation goes on: more completions with its token will follow this one.
#[inline]
pub fn more(flags: u32) -> bool {
    io_uring::cqueue::more(flags)
}
