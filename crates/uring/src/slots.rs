//! Operations in flight: who waits for each, and the memory that the kernel needs until it is done.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use blockwork_engine::Token;
use blockwork_memory::{Mapping, Segment, Segments};
use io_uring::types::Timespec;

/// Completion of the eventfd's READ.
pub(crate) const WAKE: u64 = u64::MAX;
/// Completion of a request to cancel another one: of no interest.
pub(crate) const CANCEL: u64 = u64::MAX - 1;
/// From here on, below the two: completions of signals' writes that nobody waits for, a name for each signal.
pub(crate) const UNHEARD: u64 = 1 << 63;
/// The last of these.
pub(crate) const UNHEARD_LAST: u64 = CANCEL - 1;

/// Most segments that the kernel takes in one operation (UIO_MAXIOV).
pub(crate) const SEGMENTS_MAX: usize = 1024;

/// What kind of operation occupies a slot; decides how it goes on when it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Free,
    /// A file's read, write, sync or fallocate; a recv or a timeout.
    Plain,
    /// A send that goes on after a short transfer; what it has sent so far.
    Send {
        sent: u32,
    },
    /// A poll of a socket that is being connected.
    Connect,
    /// Multishot, or, where the kernel has no such thing, started again after each completion.
    Accept {
        multishot: bool,
    },
    /// A watch of an eventfd: multishot, or, where the kernel has no such thing, a single poll.
    Watch {
        multishot: bool,
    },
    /// A command for a block device in the ring; goes to a thread if the kernel does not know it.
    BlockCommand {
        fd: i32,
        zero: bool,
        range: [u64; 2],
    },
    /// A signal's write: of which one, by the name of those of its writes that have no slot, and whether its completion is told.
    Signal {
        of: u64,
        heard: bool,
    },
    /// At a thread (`blocking`).
    Helper,
}

/// One operation. Slots never move: the kernel has addresses of what is in them.
pub(crate) struct Slot {
    generation: u32,
    pub token: Token,
    pub kind: Kind,
    /// It does not go on once more: the kernel has been asked to cancel it, and may have forgotten that with what it had done.
    pub cancelled: bool,
    /// Keeps the memory alive.
    pub segments: Segments,
    /// Keeps the descriptor open.
    pub file: Option<Arc<OwnedFd>>,
    pub iovecs: Vec<libc::iovec>,
    pub header: libc::msghdr,
    pub time: Timespec,
}

impl Slot {
    fn new() -> Slot {
        // SAFETY: a msghdr is plain old data, for which all zeros (null pointers, no lengths) is a value.
        let header = unsafe { std::mem::zeroed() };
        Slot {
            generation: 0,
            token: Token(0),
            kind: Kind::Free,
            cancelled: false,
            segments: Segments::new(),
            file: None,
            iovecs: Vec::new(),
            header,
            time: Timespec::new(),
        }
    }

    /// Takes clones of the segments, and lists their addresses.
    pub fn hold(&mut self, data: &[Segment]) {
        debug_assert!(self.segments.is_empty());
        debug_assert!(self.iovecs.is_empty());
        match data {
            [only] => self.segments.push(only.clone()),
            _ => {
                self.segments.extend(data.iter().take(SEGMENTS_MAX).cloned());
                self.list();
            }
        }
    }

    /// Lists the segments' addresses.
    pub fn list(&mut self) {
        self.iovecs.clear();
        let vector =
            |segment: &Segment| libc::iovec { iov_base: segment.as_ptr().cast(), iov_len: segment.len() };
        self.iovecs.extend(self.segments.iter().map(vector));
    }
}

/// All slots, by number.
#[derive(Default)]
pub(crate) struct Slots {
    // Boxed, so that they stay where they are when the vector grows.
    #[expect(clippy::vec_box, reason = "the kernel has addresses of their content")]
    all: Vec<Box<Slot>>,
    free: Vec<u32>,
}

impl Slots {
    /// A free slot for `token`, and its name for the kernel.
    pub fn take(&mut self, token: Token, kind: Kind) -> (u64, &mut Slot) {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.all.len()).expect("fewer than 2^32 operations in flight");
            self.all.push(Box::new(Slot::new()));
            index
        });
        let slot = &mut self.all[index as usize];
        debug_assert_eq!(slot.kind, Kind::Free);
        slot.token = token;
        slot.kind = kind;
        slot.cancelled = false;
        (name(index, slot.generation), slot)
    }

    /// The slot of that name, if its operation is in flight.
    pub fn get(&mut self, name: u64) -> Option<&mut Slot> {
        let (index, generation) = parts(name);
        let slot = self.all.get_mut(usize::try_from(index).ok()?)?;
        (slot.generation == generation && slot.kind != Kind::Free).then_some(&mut **slot)
    }

    /// Gives a slot back, and lets go of what it held.
    pub fn release(&mut self, name: u64) {
        let (index, _) = parts(name);
        let slot = self.get(name).expect("only an occupied slot is released");
        slot.kind = Kind::Free;
        // 31 bits: so that no name is WAKE, CANCEL or one of a signal's.
        slot.generation = (slot.generation + 1) & 0x7fff_ffff;
        // Mostly there is one.
        drop(slot.segments.pop());
        if !slot.segments.is_empty() {
            slot.segments.clear();
        }
        slot.iovecs.clear();
        slot.file = None;
        self.free.push(index);
    }

    /// Has all operations that satisfy `wanted` not go on once more; their names.
    pub fn cancel(&mut self, wanted: impl Fn(&Slot) -> bool) -> Vec<u64> {
        let names = self.names(wanted);
        for name in &names {
            self.get(*name).expect("in flight").cancelled = true;
        }
        names
    }

    /// Nobody hears any more of the signal of that name. Names of its writes that have slots, likewise.
    pub fn end_signal(&mut self, name: u64) -> Vec<u64> {
        let writes = self.cancel(|slot| matches!(slot.kind, Kind::Signal { of, .. } if of == name));
        for write in &writes {
            self.get(*write).expect("in flight").kind = Kind::Signal { of: name, heard: false };
        }
        writes
    }

    /// Names of all operations in flight that satisfy `wanted`.
    pub fn names(&self, wanted: impl Fn(&Slot) -> bool) -> Vec<u64> {
        let occupied =
            self.all.iter().zip(0_u32..).filter(|(slot, _)| slot.kind != Kind::Free && wanted(slot));
        occupied.map(|(slot, index)| name(index, slot.generation)).collect()
    }

    /// Whether an operation in flight has memory of that mapping.
    pub fn have_memory_of(&self, mapping: &Arc<Mapping>) -> bool {
        let is_of_it =
            |segment: &Segment| segment.buffer().mapping().is_some_and(|of| Arc::ptr_eq(of, mapping));
        self.all.iter().any(|slot| slot.kind != Kind::Free && slot.segments.iter().any(is_of_it))
    }

    /// Occupied slots.
    pub fn occupied(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Forgets everything without freeing it: the kernel may still write there.
    pub fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.all));
        self.free.clear();
    }
}

fn name(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

fn parts(name: u64) -> (u32, u32) {
    let low = u32::try_from(name & 0xffff_ffff).expect("32 bits");
    let high = u32::try_from(name >> 32).expect("32 bits");
    (low, high)
}
