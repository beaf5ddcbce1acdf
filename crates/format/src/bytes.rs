//! Fixed-width integers out of byte slices, in either byte order.
//!
//! Every function here panics where the slice is too short: its length is the caller's business, and each caller cuts
//! a slice of a constant size first.

/// The `N` bytes at `at`.
#[inline]
pub(crate) fn array<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&from[at..at + N]);
    out
}

#[inline]
pub(crate) fn u16_le(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(from, at))
}

#[inline]
pub(crate) fn u32_le(from: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(from, at))
}

#[inline]
pub(crate) fn u64_le(from: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(from, at))
}

/// Writes `bytes` at `at`.
#[inline]
pub(crate) fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    into[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A `u32` as an index. Lossless: this crate does not build where an address has less than 32 bits.
pub(crate) fn index(n: u32) -> usize {
    const { assert!(usize::BITS >= 32) };
    usize::try_from(n).expect("usize has at least 32 bits")
}

/// A length in memory as a number of bytes on a disk. Lossless, as above.
pub(crate) fn length(n: usize) -> u64 {
    const { assert!(usize::BITS <= 64) };
    u64::try_from(n).expect("usize has at most 64 bits")
}
