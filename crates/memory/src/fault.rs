//! Surviving a file that is cut short while it is mapped.
//!
//! Whoever shares memory with us by a file can truncate it, and our next look at a page that is gone is a SIGBUS, which would
//! end the process and the service of everybody else. Seals could forbid that, but not every front end can set them (huge
//! pages, files on tmpfs). So the signal is handled: if the address lies in one of our mappings, the whole mapping is
//! replaced by private zeros, and marked as torn; its user finds out when it looks next, and lets the client go.
//!
//! Invariants:
//! 1. The handler does nothing but loads and stores of the table below, mmap(2) and sigaction(2), which are all
//!    async-signal-safe; it takes no lock and allocates nothing.
//! 2. A slot of the table is written by who has claimed it (its `len` left zero for the claim's), and read by handlers: the
//!    start is stored before the length, so that a handler that sees the length sees the start.
//! 3. A SIGBUS that is none of ours goes where it would have gone without us.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::budget::MAPPINGS_MAX;

struct Slot {
    start: AtomicUsize,
    /// Zero: free, or about to be used.
    len: AtomicUsize,
    torn: AtomicBool,
}

static SLOTS: [Slot; MAPPINGS_MAX] =
    [const { Slot { start: AtomicUsize::new(0), len: AtomicUsize::new(0), torn: AtomicBool::new(false) } };
        MAPPINGS_MAX];

/// Numbers of slots that nobody has claimed.
static FREE: OnceLock<Mutex<Vec<usize>>> = OnceLock::new();

/// What was done about SIGBUS before us.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

fn free() -> std::sync::MutexGuard<'static, Vec<usize>> {
    let all = FREE.get_or_init(|| Mutex::new((0..MAPPINGS_MAX).rev().collect()));
    all.lock().expect("no holder of this lock panics")
}

/// A range of addresses that is guarded until this is dropped.
pub(crate) struct Guard(usize);

impl Guard {
    /// Guards `len` bytes, whole pages of their file, at `start`: one of the process's mappings (see `budget`).
    pub(crate) fn new(start: usize, len: usize) -> io::Result<Guard> {
        install()?;
        let number = free().pop().expect("there is a slot for each mapping that may be");
        let slot = &SLOTS[number];
        slot.torn.store(false, Ordering::Relaxed);
        slot.start.store(start, Ordering::Relaxed);
        slot.len.store(len, Ordering::Release);
        Ok(Guard(number))
    }

    /// Guards no more: the range is about to be unmapped.
    pub(crate) fn release(&self) {
        SLOTS[self.0].len.store(0, Ordering::Release);
    }

    /// Whether the file was found to be too short, and zeros put in its place.
    #[inline]
    pub(crate) fn is_torn(&self) -> bool {
        SLOTS[self.0].torn.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.release();
        free().push(self.0);
    }
}

/// Installs the handler, once.
fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().expect("no holder of this lock panics");
    if *installed {
        return Ok(());
    }
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null new action changes nothing; `before` has room for the old one.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, and has filled it in. Stored before the handler can run.
    let _ = BEFORE.set(unsafe { before.assume_init() });
    // SAFETY: plain old data, for which all zeros is a value (no flags, an empty mask).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
    action.sa_sigaction = handler as libc::sighandler_t;
    // ONSTACK: a thread may have an alternate stack for overflows; ours is shallow and runs on either.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `action` is initialised, its handler has the signature that SA_SIGINFO demands, and is safe to run at any
    // point (invariant 1).
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    *installed = true;
    Ok(())
}

extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid siginfo, in which SIGBUS has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    let hit = SLOTS.iter().find(|slot| {
        let len = slot.len.load(Ordering::Acquire);
        len > 0 && address.wrapping_sub(slot.start.load(Ordering::Relaxed)) < len
    });
    if let Some(slot) = hit
        && replace(slot.start.load(Ordering::Relaxed), slot.len.load(Ordering::Relaxed))
    {
        slot.torn.store(true, Ordering::Release);
        return;
    }
    // Not ours: the instruction is run again when we return, and faults again under the action of before.
    if let Some(before) = BEFORE.get() {
        // SAFETY: it is what sigaction(2) itself gave us.
        unsafe { libc::sigaction(libc::SIGBUS, std::ptr::from_ref(before), std::ptr::null_mut()) };
    }
}

/// Puts private zeros at these addresses.
fn replace(start: usize, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let at = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the range is a mapping of ours, guarded and so still mapped; nobody holds a reference into it, only raw
    // pointers, which stay valid. The kernel's own accesses in flight have their pages pinned.
    unsafe { libc::mmap(at, len, protection, flags, -1, 0) != libc::MAP_FAILED }
}
