//! Words of a buffer that somebody else reads and writes at the same time: the indices and entries of a ring in shared pages.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

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

    /// The 16-bit word at `offset`, little-endian. One load, as above.
    ///
    /// # Panics
    /// If it lies outside, or its address is no multiple of two.
    #[inline]
    pub fn load_u16(&self, offset: usize, order: Ordering) -> u16 {
        u16::from_le(self.short(offset).load(order))
    }

    /// Sets the 16-bit word at `offset`, little-endian, by one store.
    ///
    /// # Panics
    /// If it lies outside, or its address is no multiple of two.
    #[inline]
    pub fn store_u16(&self, offset: usize, value: u16, order: Ordering) {
        self.short(offset).store(value.to_le(), order);
    }

    /// The 64-bit word at `offset`, little-endian. One load, as above.
    ///
    /// # Panics
    /// If it lies outside, or its address is no multiple of eight.
    #[inline]
    pub fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        u64::from_le(self.long(offset).load(order))
    }

    /// Sets the 64-bit word at `offset`, little-endian, by one store.
    ///
    /// # Panics
    /// If it lies outside, or its address is no multiple of eight.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.long(offset).store(value.to_le(), order);
    }

    /// Copies out the 16 bytes at `offset`, by one load each of the first and the last eight: what was checked is what is
    /// used, whatever others write meanwhile.
    ///
    /// # Panics
    /// If they lie outside.
    #[inline]
    pub fn read_16(&self, offset: usize) -> [u8; 16] {
        let inside = offset.checked_add(16).is_some_and(|end| end <= self.len());
        assert!(inside, "16 bytes at {offset} of a buffer of {}", self.len());
        let at = self.as_ptr().wrapping_add(offset).cast::<Pair>();
        // SAFETY: in bounds (checked), and alive as long as `self`; a packed struct of integers has no alignment and takes
        // any bits. Volatile, so that the compiler does not load again what it has loaded.
        let Pair(low, high) = unsafe { at.read_volatile() };
        (u128::from(u64::from_le(low)) | u128::from(u64::from_le(high)) << 64).to_le_bytes()
    }

    /// Sets bits of the byte at `offset`, and returns what it was. Whoever sees them set sees all that this thread wrote before.
    ///
    /// # Panics
    /// If it lies outside.
    pub fn set_bits(&self, offset: usize, bits: u8) -> u8 {
        self.byte(offset).fetch_or(bits, Ordering::AcqRel)
    }

    /// Takes the byte at `offset` out: it is zero afterwards.
    ///
    /// # Panics
    /// If it lies outside.
    pub fn take_byte(&self, offset: usize) -> u8 {
        self.byte(offset).swap(0, Ordering::AcqRel)
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.len(), "a byte at {offset} of a buffer of {}", self.len());
        let at = self.as_ptr().wrapping_add(offset);
        // SAFETY: in bounds (checked), and alive as long as `self`; see `word`.
        unsafe { AtomicU8::from_ptr(at) }
    }

    #[inline]
    fn short(&self, offset: usize) -> &AtomicU16 {
        let inside = offset.checked_add(2).is_some_and(|end| end <= self.len());
        let at = self.as_ptr().wrapping_add(offset).cast::<u16>();
        assert!(inside && at.is_aligned(), "no short word at {offset} of a buffer of {}", self.len());
        // SAFETY: as in `word`.
        unsafe { AtomicU16::from_ptr(at) }
    }

    #[inline]
    fn long(&self, offset: usize) -> &AtomicU64 {
        let inside = offset.checked_add(8).is_some_and(|end| end <= self.len());
        let at = self.as_ptr().wrapping_add(offset).cast::<u64>();
        assert!(inside && at.is_aligned(), "no long word at {offset} of a buffer of {}", self.len());
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(at) }
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

/// Two words, at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Pair(u64, u64);

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
    fn short_words_and_pairs_are_the_same_bytes() {
        let buffer = Buffer::new(4096);
        buffer.store_u16(4094, 0x0102, Ordering::Release);
        assert_eq!(buffer.load_u16(4094, Ordering::Acquire), 0x0102);
        buffer.write_at(4079, b"0123456789abcdef");
        assert_eq!(&buffer.read_16(4079), b"0123456789abcdef");
    }

    #[test]
    fn long_words_are_the_same_bytes_and_lie_where_the_processor_writes_them_whole() {
        let buffer = Buffer::new(4096);
        buffer.store_u64(4088, 0x0102_0304_0506_0708, Ordering::Release);
        let mut bytes = [0; 8];
        buffer.read_at(4088, &mut bytes);
        assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1]);
        let refused = |offset| {
            let store = std::panic::AssertUnwindSafe(|| buffer.store_u64(offset, 1, Ordering::Relaxed));
            std::panic::catch_unwind(store).is_err()
        };
        assert!(refused(4) && refused(4096) && refused(usize::MAX));
    }

    #[test]
    #[should_panic(expected = "16 bytes at 4081")]
    fn a_pair_beyond_the_end_is_refused() {
        Buffer::new(4096).read_16(4081);
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
