//! Words of a buffer that somebody else reads and writes at the same time: the indices of a ring in shared pages.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::buffer::Buffer;

impl Buffer {
    /// The 32-bit word at `offset`, little-endian. One load: what it returns does not change afterwards.
    ///
    /// # Panics
    /// If it lies outside, or its address is no multiple of four.
    #[inline]
    pub fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        u32::from_le(self.word(offset).load(order))
    }

    /// Sets the 32-bit word at `offset`, little-endian, by one store.
    ///
    /// # Panics
    /// If it lies outside, or its address is no multiple of four.
    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.word(offset).store(value.to_le(), order);
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        let inside = offset.checked_add(4).is_some_and(|end| end <= self.len());
        let at = self.as_ptr().wrapping_add(offset).cast::<u32>();
        assert!(inside && at.is_aligned(), "no word at {offset} of a buffer of {}", self.len());
        // SAFETY: in bounds and aligned (checked), and alive as long as `self`. Whoever shares the memory uses atomics too, or
        // is another machine or process; plain copies by this process are made by this thread, of which a buffer never leaves.
        unsafe { AtomicU32::from_ptr(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_little_endian_bytes_of_the_buffer() {
        let buffer = Buffer::new(4096);
        buffer.store_u32(4092, 0x0102_0304, Ordering::Release);
        let mut bytes = [0; 4];
        buffer.read_at(4092, &mut bytes);
        assert_eq!(bytes, [4, 3, 2, 1]);
        assert_eq!(buffer.load_u32(4092, Ordering::Acquire), 0x0102_0304);
    }

    #[test]
    #[should_panic(expected = "no word at 4093")]
    fn a_word_beyond_the_end_is_refused() {
        Buffer::new(4096).load_u32(4093, Ordering::Relaxed);
    }

    #[test]
    #[should_panic(expected = "no word at 2 ")]
    fn a_word_at_an_odd_place_is_refused() {
        Buffer::new(4096).load_u32(2, Ordering::Relaxed);
    }
}
