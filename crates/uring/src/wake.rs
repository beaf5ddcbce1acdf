//! Waking a worker that sleeps in its `wait`, from any thread.
//!
//! An eventfd, which a READ in the ring waits for, and a state that keeps both sides from system calls that are not
//! needed:
//!
//! ```text
//!            prepare_to_sleep            notify: writes the eventfd
//!   Awake ───────────────────▶ Sleeping ────────────────────────▶ Notified
//!     ▲ │                          │                                 │ ▲
//!     │ └──────────────────────────┼── notify: nothing else to do ───┼─┘
//!     └──── awake ─────────────────┴──────────── awake ──────────────┘
//! ```
//!
//! Any number of notifies while a worker is busy, and all but the first while it sleeps, cost one atomic exchange each.
//! No wake-up is lost: all transitions are read-modify-writes of one word, so that either the notifier sees Sleeping
//! and writes, or the worker sees Notified and does not sleep.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use blockwork_engine::Notify;
use io_uring::{opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};

use crate::slots::WAKE;

const AWAKE: u8 = 0;
const SLEEPING: u8 = 1;
const NOTIFIED: u8 = 2;

/// What notifiers hold.
struct Bell {
    state: AtomicU8,
    eventfd: OwnedFd,
}

impl Notify for Bell {
    fn notify(&self) {
        // Release: what the caller left for the worker is there before the worker sees Notified (`Wake::awake`).
        if self.state.swap(NOTIFIED, Ordering::AcqRel) == SLEEPING {
            // The eventfd is a counter far from full, so this neither blocks nor fails; and a failure could not be
            // told to anybody here.
            let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
        }
    }
}

/// The worker's side.
pub(crate) struct Wake {
    bell: Arc<Bell>,
    /// Where the kernel puts the eventfd's count.
    count: NonNull<u64>,
    /// Whether a READ is in flight.
    armed: bool,
}

impl Wake {
    pub fn new() -> std::io::Result<Wake> {
        // Not EFD_NONBLOCK: io_uring would then fail the READ by EAGAIN instead of waiting for the event.
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC)?;
        let count = NonNull::from(Box::leak(Box::new(0_u64)));
        Ok(Wake { bell: Arc::new(Bell { state: AtomicU8::new(AWAKE), eventfd }), count, armed: false })
    }

    pub fn notifier(&self) -> Arc<dyn Notify> {
        self.bell.clone()
    }

    /// The entry that waits for the eventfd, if none does.
    pub fn arm(&mut self) -> Option<squeue::Entry> {
        if self.armed {
            return None;
        }
        self.armed = true;
        let fd: RawFd = self.bell.eventfd.as_raw_fd();
        Some(opcode::Read::new(types::Fd(fd), self.count.as_ptr().cast(), 8).build().user_data(WAKE))
    }

    /// The READ has completed.
    pub fn disarm(&mut self) {
        self.armed = false;
    }

    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// Says that the worker is about to sleep; false if it must not, because somebody has notified it.
    pub fn prepare_to_sleep(&self) -> bool {
        self.bell.state.compare_exchange(AWAKE, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Says that the worker is awake, and tells whether it was notified.
    pub fn awake(&self) -> bool {
        // The plain load spares the worker that polls a locked instruction. A notify that it misses is seen by the
        // next `prepare_to_sleep`.
        if self.bell.state.load(Ordering::Relaxed) == AWAKE {
            return false;
        }
        self.bell.state.swap(AWAKE, Ordering::AcqRel) == NOTIFIED
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        if self.armed {
            return; // The kernel may still write there: leaked (invariant 1 of the crate).
        }
        // SAFETY: `count` came from a Box, is freed here only, and no READ into it is in flight.
        drop(unsafe { Box::from_raw(self.count.as_ptr()) });
    }
}
