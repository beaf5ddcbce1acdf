//! Memory that the kernel knows: what was registered (IORING_REGISTER_BUFFERS2), each piece when it is first asked for. A read or write of
//! one piece of it may name it, and the kernel need not find and hold its pages once more.
//!
//! It is of two kinds. Slabs of our own are known as long as the ring is there. Mappings, which others share, are known where somebody has lent them
//! ([`Known::lend`]), and until they are taken back (`lent`): the kernel holds the pages that it was told of, but who shares that memory may give some back at
//! any time (a balloon, free page reporting, postcopy), and the guest gets others in their place. Data read into the old ones would be lost without a word.
//! So a guest's memory is lent only where whoever runs the server says that this does not happen to it.
//!
//! Invariants:
//! 1. What is registered stays mapped until the kernel has forgotten it, or the ring is gone, so its addresses never become those of other memory.
//! 2. What cannot be registered is no error: those operations go as usual. Who runs the server is told once.
//! 3. The kernel is told to forget a piece when no operation has memory of its mapping any more, whether it names it or not, so an index that stands in an
//!    entry means what it meant when it was written. (The kernel would keep the pages for operations that it has begun, but it looks an index up when it begins.)
//! 4. Telling it of mappings takes an eighth of the worker's time at most, and forgetting is done a piece at a time, between completions.

use std::io;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Once};

use blockwork_engine::Nanos;
use blockwork_memory::{Mapping, SLAB_BYTES, Segment, Slab};
use io_uring::IoUring;

use crate::queues::Queues;
use crate::ring::clock;

mod lent;

use lent::{LentMappings, Piece};

/// Slabs of a ring, by their numbers, which are the kernel's indices; those of higher ones stay unknown.
const SLABS_MAX: u16 = 64;
/// Indices of the kernel's table: the others are for pieces of mappings, of 254 GiB in all.
const INDICES: u16 = 8192;
/// After it was told of a piece of a mapping, so many times as long nothing more of the kind is done.
const RESTS: u64 = 7;

/// What the kernel knows.
#[derive(Default)]
pub(crate) struct Known {
    /// By number.
    slabs: Vec<Option<Rc<Slab>>>,
    lent: LentMappings,
    /// Indices behind those of slabs: up to here they were used, and of these some are free again.
    used: u16,
    free: Vec<u16>,
    /// Until then it is not told of pieces of mappings.
    rests_until: Nanos,
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
    /// It takes more.
    Open,
    /// It takes nothing more until something is forgotten.
    Full,
    /// There is none.
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
        let Some(slab) = memory.buffer().slab() else { return self.lent.index(memory) };
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
        self.index(memory).is_some() || self.tell(queues, memory)
    }

    /// Its pieces may be told from now on, as often as they are lent; what is known of it is counted there, in bytes. Only those that were brought
    /// ([`Mapping::bring`]) are: the others would have the worker wait while their pages are made.
    pub fn lend(&mut self, mapping: &Arc<Mapping>, locked: &Arc<AtomicU64>) {
        if self.table != Table::Closed {
            self.lent.lend(mapping, locked);
        }
    }

    /// Undoes one [`Known::lend`]. After the last one no operation begins by it, and the kernel forgets it soon.
    pub fn take_back(&mut self, mapping: &Arc<Mapping>) {
        self.lent.take_back(mapping);
    }

    #[inline]
    fn tell(&mut self, queues: &Queues, memory: &Segment) -> bool {
        match (self.table, queues) {
            (Table::Unasked | Table::Open, Queues::Ring(ring, _)) => match memory.buffer().slab() {
                Some(slab) => self.tell_of_slab(ring, slab),
                None => self.lent.untold(memory).is_some_and(|piece| self.tell_of_piece(ring, piece)),
            },
            _ => false,
        }
    }

    #[cold]
    fn tell_of_slab(&mut self, ring: &IoUring, slab: &Rc<Slab>) -> bool {
        let number = slab.number() as usize;
        let is_taken = self.slabs.get(number).is_some_and(Option::is_some);
        if is_taken || slab.number() >= SLABS_MAX.into() {
            return false;
        }
        let told = self.register(ring, slab.number(), (slab.as_ptr(), SLAB_BYTES));
        if let Err(error) = told {
            self.is_full(&error);
            return false;
        }
        self.slabs.resize(self.slabs.len().max(number + 1), None);
        self.slabs[number] = Some(slab.clone());
        true
    }

    #[cold]
    fn tell_of_piece(&mut self, ring: &IoUring, piece: Piece) -> bool {
        let now = clock();
        if now < self.rests_until || (self.free.is_empty() && self.used == INDICES - SLABS_MAX) {
            return false;
        }
        let index = self.free.last().copied().unwrap_or(SLABS_MAX + self.used);
        let told = self.register(ring, index.into(), self.lent.memory(piece));
        let took = clock().since(now);
        self.rests_until = now + Nanos(took.0.saturating_mul(RESTS + 1));
        match told {
            Ok(()) => {
                if self.free.pop().is_none() {
                    self.used += 1;
                }
                self.lent.told(piece, index);
                true
            }
            // It was cut off, or is memory that no device may have: others are not.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EOPNOTSUPP)) => {
                self.lent.refused(piece);
                false
            }
            Err(error) => {
                self.is_full(&error);
                false
            }
        }
    }

    /// Has the kernel know that memory by that index, of which it does not know any.
    fn register(&mut self, ring: &IoUring, index: u32, (start, len): (*mut u8, usize)) -> io::Result<()> {
        if self.table == Table::Unasked {
            ring.submitter().register_buffers_sparse(INDICES.into())?;
            self.table = Table::Open;
        }
        let whole = libc::iovec { iov_base: start.cast(), iov_len: len };
        // SAFETY: it is a slab or a piece of a mapping, mapped, at that address and of that length, as long as anybody holds it. `Known` does until
        // the kernel has forgotten it or the ring is closed. The kernel writes there only for operations that name it, whose slots hold their memory;
        // that is memory of ours that is touched through raw pointers alone, or shared with a process that may write there at any time as well.
        unsafe { ring.submitter().register_buffers_update(index, &[whole], None) }
    }

    fn is_full(&mut self, error: &io::Error) {
        self.table = if self.table == Table::Unasked { Table::Closed } else { Table::Full };
        tell_once(self.slabs.iter().flatten().count() * SLAB_BYTES + self.lent.bytes(), error);
    }

    /// Whether there is something that the kernel is to forget.
    #[inline]
    pub fn are_leaving(&self) -> bool {
        self.lent.are_leaving()
    }

    /// Has the kernel forget a piece of what was taken back, if nothing is under way by that; whether it has. What was locked may be locked by others again.
    #[cold]
    pub fn forget(&mut self, queues: &Queues, is_under_way: impl Fn(&Arc<Mapping>) -> bool) -> bool {
        let Queues::Ring(ring, _) = queues else { return false };
        let Some((piece, index)) = self.lent.next_to_forget(is_under_way) else { return false };
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: nothing is no memory, and takes the place of what is there.
        match unsafe { ring.submitter().register_buffers_update(index.into(), &[nothing], None) } {
            Ok(()) => {
                self.lent.forgotten(piece);
                self.free.push(index);
                if self.table == Table::Full {
                    self.table = Table::Open;
                }
            }
            // Then neither the index nor the memory is ever used for anything else.
            Err(error) => {
                log::warn!(
                    "io_uring does not forget memory that was registered with it, which stays locked: {error}"
                );
                self.lent.keep(piece);
            }
        }
        true
    }

    /// Has the kernel forget all of it; what was locked may be locked by others again. No operation is under way.
    pub fn close(&mut self, queues: &Queues) {
        if let (Table::Open | Table::Full, Queues::Ring(ring, _)) = (self.table, queues) {
            // If it does not, the end of the ring does.
            let _ = ring.submitter().unregister_buffers();
        }
        self.table = Table::Closed;
        self.slabs.clear();
        self.lent.clear();
    }
}

/// Says once in a process why memory stays unknown, of which so much is known.
fn tell_once(known: usize, error: &io::Error) {
    static TOLD: Once = Once::new();
    let much = if known > 0 { format!("only {} MiB of a worker's", known >> 20) } else { "none".to_owned() };
    TOLD.call_once(|| {
        log::warn!(
            "memory registered with io_uring: {much}, the rest's pages are looked up for each request (io_uring_register: {error}): {}; \
             fixed=off says that this is intended",
            remedy(error)
        );
    });
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            "it counts against the limit of locked memory, up to 64 MiB of buffers for each worker, and once for each worker what of guests' \
             memory is pinned: raise it (ulimit -l, or LimitMEMLOCK= of the systemd unit)"
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
