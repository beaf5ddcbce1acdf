//! A word to the processor of what will be looked at soon.

/// Has the processor fetch the line of memory that this begins in, and goes on without waiting for it. Changes nothing but how soon a
/// later look is answered; where the processor is not told how, it does nothing.
#[inline(always)]
pub fn bring_near<T>(what: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that a program could see, and never faults; SSE is there on every x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(what).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}
