//! The checksums of superblocks: sums of 32-bit words with the carry folded in.

use crate::bytes::{array, length};

/// Sum of the little-endian words, the last u16 of an odd number of them as such, and the carry added once. The field of
/// the checksum must have been made zero.
pub(super) fn v1(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
    if length(rest.len()) >= 2 {
        sum += u64::from(u16::from_le_bytes(array(rest, 0)));
    }
    fold(sum)
}

/// Sum of the words of a 0.90 superblock, whose word of the checksum must have been made zero.
pub(super) fn v0(words: &[u32]) -> u32 {
    fold(words.iter().map(|word| u64::from(*word)).sum())
}

/// What is compared of a 0.90 checksum: old kernels summed in an order of their own, which gives another sum of 32 bits
/// and the same of 16.
pub(super) fn to_16_bits(sum: u32) -> u32 {
    let once = (sum & 0xffff) + (sum >> 16);
    (once & 0xffff) + (once >> 16)
}

/// Low half plus high half. A carry out of that sum is lost, as in the kernel.
fn fold(sum: u64) -> u32 {
    let half = |half: u64| u32::try_from(half & 0xffff_ffff).expect("32 bits");
    half(sum).wrapping_add(half(sum >> 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_carry_is_added_once_and_an_odd_word_counts_as_it_is() {
        assert_eq!(v1(&[0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0]), 2);
        assert_eq!(v1(&[1, 0, 0, 0, 0x34, 0x12]), 0x1235);
        // 0xffffffff twice: 0x1_fffffffe, folded to 0xffffffff; its carry would be lost.
        assert_eq!(v1(&[0xff; 8]), 0xffff_ffff);
        assert_eq!(v0(&[0xffff_ffff, 0xffff_ffff]), 0xffff_ffff);
    }

    #[test]
    fn sums_that_differ_by_a_fold_are_the_same_in_16_bits() {
        assert_eq!(to_16_bits(0x0001_0002), to_16_bits(3));
        assert_ne!(to_16_bits(0x0001_0002), to_16_bits(4));
    }
}
