//! Memory that the kernel knows: slabs that were registered (IORING_REGISTER_BUFFERS2), each when it is first asked for. A read or
//! write of one piece of a slab may name it, and the kernel need not find and hold its pages once more.
//!
//! Only memory of our own comes in slabs. A guest's is never registered: the kernel holds the pages that it was told of, but who shares
//! that memory may give some back at any time (a balloon, free page reporting, postcopy), and the guest gets others in their
//! place. Data read into the old ones would be lost without a word.
//!
//! Invariants:
//! 1. A slab that is registered stays mapped until the ring is gone, so its addresses never become those of other memory.
//! 2. What cannot be registered is no error: those operations go as usual. Who runs the server is told once.

use std::io;
use std::rc::Rc;
use std::sync::Once;

use blockwork_memory::{SLAB_BYTES, Segment, Slab};
use io_uring::IoUring;

use crate::queues::Queues;

/// Slabs of a ring, by their numbers; those of higher ones stay unknown.
const SLABS_MAX: u32 = 64;

/// What the kernel knows.
#[derive(Default)]
pub(crate) struct Known {
    /// By number, which is also the kernel's index.
    slabs: Vec<Option<Rc<Slab>>>,
    table: Table,
    /// Operations that were started by known memory.
    pub operations: u64,
}

/// How the kernel's table stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Table {
    /// It was not asked for one.
    #[default]
    Unasked,
    /// It takes slabs.
    Open,
    /// It takes no more, or there is none.
    Closed,
}

impl Known {
    /// What a ring has that knows nothing, and never will.
    pub fn nothing() -> Known {
        Known { table: Table::Closed, ..Known::default() }
    }

    /// The kernel's index of that memory, if it knows it.
    #[inline]
    pub fn index(&self, memory: &Segment) -> Option<u16> {
        let slab = memory.buffer().slab()?;
        let number = slab.number();
        match self.slabs.get(number as usize) {
            // Other pools have numbers of their own.
            Some(Some(known)) if Rc::ptr_eq(known, slab) => u16::try_from(number).ok(),
            _ => None,
        }
    }

    /// Whether the kernel knows that memory; it is told of it now if it can be.
    #[inline]
    pub fn knows(&mut self, queues: &Queues, memory: &Segment) -> bool {
        // Mostly it is a guest's, and none of our slabs.
        memory.buffer().slab().is_some() && (self.index(memory).is_some() || self.tell(queues, memory))
    }

    fn tell(&mut self, queues: &Queues, memory: &Segment) -> bool {
        let (Some(slab), Queues::Ring(ring, _)) = (memory.buffer().slab(), queues) else { return false };
        let number = slab.number() as usize;
        let is_taken = self.slabs.get(number).is_some_and(Option::is_some);
        if self.table == Table::Closed || is_taken || slab.number() >= SLABS_MAX {
            return false;
        }
        let made = match self.table {
            Table::Unasked => ring.submitter().register_buffers_sparse(SLABS_MAX),
            Table::Open | Table::Closed => Ok(()),
        };
        match made.and_then(|()| register(ring, slab)) {
            Ok(()) => {
                self.table = Table::Open;
                self.slabs.resize(self.slabs.len().max(number + 1), None);
                self.slabs[number] = Some(slab.clone());
                true
            }
            Err(error) => {
                self.table = Table::Closed;
                tell_once(self.slabs.iter().flatten().count() * SLAB_BYTES, &error);
                false
            }
        }
    }

    /// Has the kernel forget all of it; what was locked may be locked by others again. No operation is under way.
    pub fn close(&mut self, queues: &Queues) {
        if let (false, Queues::Ring(ring, _)) = (self.slabs.is_empty(), queues) {
            // If it does not, the end of the ring does.
            let _ = ring.submitter().unregister_buffers();
        }
        self.table = Table::Closed;
        self.slabs.clear();
    }
}

fn register(ring: &IoUring, slab: &Rc<Slab>) -> io::Result<()> {
    let whole = libc::iovec { iov_base: slab.as_ptr().cast(), iov_len: SLAB_BYTES };
    // SAFETY: the slab is mapped, at that address and of that length, as long as anybody holds it. `Known` does until the kernel has
    // forgotten it or the ring is closed; and the kernel writes there only for operations that name it, whose slots hold their memory.
    unsafe { ring.submitter().register_buffers_update(slab.number(), &[whole], None) }
}

/// Says once in a process why memory stays unknown, of which so much is known.
fn tell_once(known: usize, error: &io::Error) {
    static TOLD: Once = Once::new();
    let much = if known > 0 { format!("only {} MiB of a worker's", known >> 20) } else { "none".to_owned() };
    TOLD.call_once(|| {
        log::warn!(
            "buffers registered with io_uring: {much}, the others' pages are looked up for each request (io_uring_register: {error}): {}; \
             fixed=off says that this is intended",
            remedy(error)
        );
    });
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            "they count against the limit of locked memory, up to 64 MiB for each worker: raise it (ulimit -l, or LimitMEMLOCK= of the \
             systemd unit)"
        }
        Some(libc::EINVAL) => "it takes Linux 5.19",
        Some(libc::EPERM | libc::EACCES) => {
            "forbidden, probably by the seccomp profile of a container or sandbox"
        }
        _ => "no remedy is known",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let remedy = |errno| remedy(&io::Error::from_raw_os_error(errno));
        assert!(remedy(libc::ENOMEM).contains("LimitMEMLOCK"));
        assert!(remedy(libc::EINVAL).contains("5.19"));
        assert!(remedy(libc::EPERM).contains("seccomp"));
    }
}
