//! The system call `io_uring_enter`, by the index of a registered ring where that is possible: it saves the kernel the
//! look-up of the descriptor, with two locked instructions, in a process of several threads.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use blockwork_engine::Nanos;
use io_uring::IoUring;
use io_uring::types::{SubmitArgs, Timespec};

const GETEVENTS: libc::c_long = 1 << 0;
const EXT_ARG: libc::c_long = 1 << 3;
const REGISTERED_RING: libc::c_long = 1 << 4;
const REGISTER_RING_FDS: libc::c_long = 20;
const UNREGISTER_RING_FDS: libc::c_long = 21;

/// The kernel's `struct io_uring_rsrc_update`.
#[repr(C)]
struct ResourceUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// How to call the kernel about one ring.
pub(crate) struct Door {
    /// The ring's descriptor, or its index if it is registered.
    fd: libc::c_long,
    flags: libc::c_long,
    /// How often it was called.
    pub calls: u64,
}

impl Door {
    /// For a ring of this thread; registers it, if `register` and if the kernel can.
    pub fn new(ring: &IoUring, register: bool) -> Door {
        let fd = ring.as_raw_fd();
        match register.then(|| register_ring(fd)).flatten() {
            Some(index) => Door { fd: libc::c_long::from(index), flags: REGISTERED_RING, calls: 0 },
            None => Door { fd: libc::c_long::from(fd), flags: 0, calls: 0 },
        }
    }

    /// Gives the registration up: it belongs to the thread, and would keep the ring alive as long as that lives.
    pub fn close(&mut self, ring: &IoUring) {
        if self.flags & REGISTERED_RING != 0 {
            let index = u32::try_from(self.fd).expect("an index is small");
            let mut update = ResourceUpdate { offset: index, reserved: 0, data: 0 };
            register(ring.as_raw_fd(), UNREGISTER_RING_FDS, &mut update);
            (self.fd, self.flags) = (libc::c_long::from(ring.as_raw_fd()), 0);
        }
    }

    /// Submits up to `submit` entries, and waits for `want` completions (0: not at all, but completes what waits to be)
    /// for at most `time`. Returns the number of entries that the kernel took.
    pub fn enter(&mut self, submit: u32, want: u32, get: bool, time: Option<Nanos>) -> io::Result<u32> {
        self.calls += 1;
        let time = time.map(timespec);
        let arguments = time.as_ref().map(|time| SubmitArgs::new().timespec(time));
        let mut flags = self.flags;
        if get || want > 0 {
            flags |= GETEVENTS;
        }
        let (pointer, size) = match &arguments {
            Some(arguments) => {
                flags |= EXT_ARG;
                (std::ptr::from_ref(arguments), size_of::<SubmitArgs<'_, '_>>())
            }
            None => (std::ptr::null(), 0),
        };
        // SAFETY: the descriptor (or index) is the ring's, whose owner owns this door too; `arguments` is a
        // `struct io_uring_getevents_arg` (transparent), which with its timespec lives until the call returns. That
        // the submitted entries are sound is promised by whoever pushed them.
        let result =
            unsafe { libc::syscall(libc::SYS_io_uring_enter, self.fd, submit, want, flags, pointer, size) };
        match u32::try_from(result) {
            Ok(taken) => Ok(taken),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

fn register_ring(fd: RawFd) -> Option<u32> {
    let mut update = ResourceUpdate { offset: u32::MAX, reserved: 0, data: u64::try_from(fd).ok()? };
    register(fd, REGISTER_RING_FDS, &mut update).then_some(update.offset)
}

/// Registers or unregisters one ring; tells whether that worked.
fn register(fd: RawFd, what: libc::c_long, update: &mut ResourceUpdate) -> bool {
    // SAFETY: `update` is one `struct io_uring_rsrc_update`, live and writable during the call.
    let done = unsafe { libc::syscall(libc::SYS_io_uring_register, fd, what, std::ptr::from_mut(update), 1) };
    done == 1
}

pub(crate) fn timespec(time: Nanos) -> Timespec {
    const SECOND: u64 = 1_000_000_000;
    let below = u32::try_from(time.0 % SECOND).expect("less than a second of nanoseconds");
    Timespec::new().sec(time.0 / SECOND).nsec(below)
}
