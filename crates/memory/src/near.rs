//! A word to the processor of what will be looked at soon.

/// Has the processor fetch the line of memory that this begins in, and goes on without waiting for it. Changes nothing but how soon a
/// later look is answered; where the processor is not told how, it does nothing.
#[inline(always)]
pub fn bring_near<T>(what: &T) {
    fetch(std::ptr::from_ref(what).cast());
}

/// The line that holds this address, as above. Nothing need be there.
#[inline(always)]
pub(crate) fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that a program could see, and never faults; SSE is there on every x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Likewise, to be written: no other processor is to keep it. (The compiler's own knows of no such fetch, but for processors that it is told of.)
#[inline(always)]
pub(crate) fn fetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; a processor that does not know the instruction does nothing for it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
