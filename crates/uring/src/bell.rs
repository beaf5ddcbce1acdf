//! A call of another process at once: a ring that does nothing but to have the kernel count its completions in that process's eventfd.
//!
//! For eventfds that wait, and for where there is no alarm. To write to one would do as well, but for a front end that has filled it:
//! write(2) would wait for that, with the worker and all that it serves, and of a write in the worker's ring a thread of the kernel has to take charge where the eventfd is one that waits at
//! all. A count of completions never waits. Measured here: 0.3 us by write(2), 0.6 by this, 0.9 by a write in a ring, and 70 by that where the
//! eventfd is one that waits. A write in the worker's ring is still best where that is entered anyway (see [`Signal`](crate::Signal)).
//!
//! Source: io_uring_register_eventfd(3).

use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{IoUring, opcode};

use crate::enter::Door;

/// See the module.
pub(crate) struct Bell {
    ring: IoUring,
    door: Door,
}

impl Bell {
    /// For this eventfd; none where the kernel, a limit or a sandbox does not allow that.
    pub fn new(fd: &OwnedFd) -> Option<Bell> {
        let ring = IoUring::builder().build(1).ok()?;
        ring.submitter().register_eventfd(fd.as_raw_fd()).ok()?;
        let door = Door::new(&ring, true);
        Some(Bell { ring, door })
    }

    /// Adds one to the eventfd; whether that worked.
    #[inline]
    pub fn ring(&mut self) -> bool {
        let nothing = opcode::Nop::new().build();
        // SAFETY: it points to nothing. No room is there if one of before was not submitted, which does as well.
        let _ = unsafe { self.ring.submission().push(&nothing) };
        let rung = self.door.enter(1, 0, false, None).is_ok_and(|taken| taken == 1);
        self.ring.completion().for_each(drop);
        rung
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.door.close(&self.ring);
    }
}
