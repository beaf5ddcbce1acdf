//! The field GF(2^8), over which parities of RAID are sums: addition is XOR, and multiplication is one of polynomials modulo
//! x^8 + x^4 + x^3 + x^2 + 1 (0x11d), in which 2 generates all elements but zero. Source: H. Peter Anvin, "The mathematics of RAID-6".

use std::ops::{Add, Div, Mul};

const POLYNOMIAL: u16 = 0x11d;
/// Elements but zero.
const ORDER: usize = 255;

/// Powers of 2, and to which power each element is that of 2.
const TABLES: ([u8; ORDER], [u8; 256]) = {
    let (mut powers, mut logarithms) = ([0; ORDER], [0; 256]);
    let (mut power, mut nth) = (1_u16, 0);
    while nth < ORDER {
        powers[nth] = power as u8; // below 256, by the next lines
        logarithms[power as usize] = nth as u8; // below 255
        power <<= 1;
        if power > 255 {
            power ^= POLYNOMIAL;
        }
        nth += 1;
    }
    (powers, logarithms)
};

/// An element of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gf256(pub u8);

impl Gf256 {
    /// Nothing is changed by adding it.
    pub const ZERO: Gf256 = Gf256(0);
    /// Nothing is changed by multiplying with it.
    pub const ONE: Gf256 = Gf256(1);

    /// 2 to the power of `n`.
    pub fn power_of_two(n: usize) -> Gf256 {
        Gf256(TABLES.0[n % ORDER])
    }

    /// Adds this times each byte of `from` to the byte of `to` in its place.
    ///
    /// # Panics
    /// They are not equally long.
    pub fn add_times(self, from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len());
        if self == Gf256::ONE {
            add(from, to);
            return;
        }
        // By what is shifted and added, many bytes at a time: looked up in a table, they would go one by one.
        let mut multiple = [0; AT_ONCE];
        for (from, to) in from.chunks(AT_ONCE).zip(to.chunks_mut(AT_ONCE)) {
            let multiple = &mut multiple[..from.len()];
            multiple.copy_from_slice(from);
            let mut bits = self.0;
            while bits != 0 {
                if bits & 1 != 0 {
                    add(multiple, to);
                }
                bits >>= 1;
                if bits != 0 {
                    double(multiple);
                }
            }
        }
    }

    /// Which power of 2 it is; zero is none.
    pub fn exponent(self) -> Option<usize> {
        (self != Gf256::ZERO).then(|| usize::from(TABLES.1[usize::from(self.0)]))
    }
}

/// Multiplied in one go, bytes: they stay in the processor's nearest cache.
const AT_ONCE: usize = 1024;

/// Adds each byte of `from` to the byte of `to` in its place.
pub(crate) fn add(from: &[u8], to: &mut [u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from);
}

/// Multiplies each byte with 2.
pub(crate) fn double(bytes: &mut [u8]) {
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = twice(u64::from_ne_bytes(*word)).to_ne_bytes();
    }
    for byte in rest {
        *byte = twice((*byte).into()) as u8; // what was beyond it is in others
    }
}

/// Twice each byte of a word. Source: the same paper, and the kernel's `lib/raid6/int.uc` for the idea of whole words.
fn twice(word: u64) -> u64 {
    let each = |byte: u8| u64::from_ne_bytes([byte; 8]);
    let high = word & each(0x80);
    // All bits of the bytes that are too large then.
    let too_large = (high << 1).wrapping_sub(high >> 7);
    ((word ^ high) << 1) ^ (too_large & each(POLYNOMIAL as u8)) // without its highest bit, which is gone
}

impl Add for Gf256 {
    type Output = Gf256;
    #[expect(clippy::suspicious_arithmetic_impl, reason = "in this field it is what addition is")]
    fn add(self, other: Gf256) -> Gf256 {
        Gf256(self.0 ^ other.0)
    }
}

impl Mul for Gf256 {
    type Output = Gf256;
    fn mul(self, other: Gf256) -> Gf256 {
        if self == Gf256::ZERO || other == Gf256::ZERO {
            return Gf256::ZERO;
        }
        let power = |element: Gf256| usize::from(TABLES.1[usize::from(element.0)]);
        Gf256::power_of_two(power(self) + power(other))
    }
}

impl Div for Gf256 {
    type Output = Gf256;
    /// # Panics
    /// `other` is zero.
    fn div(self, other: Gf256) -> Gf256 {
        assert_ne!(other, Gf256::ZERO, "nothing is divided by zero");
        let inverse = Gf256::power_of_two(ORDER - usize::from(TABLES.1[usize::from(other.0)]));
        self * inverse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition: a sum of shifted ones, less multiples of the polynomial.
    fn product(a: u8, b: u8) -> u8 {
        let mut sum = 0_u16;
        for bit in 0..8 {
            if b & 1 << bit != 0 {
                sum ^= u16::from(a) << bit;
            }
        }
        for bit in (8..16).rev() {
            if sum & 1 << bit != 0 {
                sum ^= POLYNOMIAL << (bit - 8);
            }
        }
        sum as u8 // all above is zero now
    }

    #[test]
    fn products_are_those_of_polynomials_and_division_undoes_them() {
        for a in 0..=255 {
            for b in 0..=255 {
                let found = Gf256(a) * Gf256(b);
                assert_eq!(found.0, product(a, b), "{a} times {b}");
                if b != 0 {
                    assert_eq!(found / Gf256(b), Gf256(a), "{a} times and by {b}");
                }
            }
        }
        assert_eq!(Gf256::power_of_two(8), Gf256(0x1d));
        assert_eq!(Gf256::power_of_two(255), Gf256::ONE);
    }

    #[test]
    fn a_multiple_is_added_byte_for_byte() {
        let from: Vec<u8> = (0..=255).collect();
        for factor in 0..=255 {
            let mut to: Vec<u8> = (0..=255).rev().collect();
            Gf256(factor).add_times(&from, &mut to);
            for (byte, sum) in (0..=255_u8).zip(to) {
                assert_eq!(sum, (255 - byte) ^ product(factor, byte));
            }
        }
        // Of any length.
        for bytes in [0, 1, 7, 9, 1023, 1031, 5000] {
            let from: Vec<u8> = (0..bytes).map(|nth| (nth * 7) as u8).collect();
            let mut to = vec![0; bytes];
            Gf256(0x9d).add_times(&from, &mut to);
            assert!(from.iter().zip(to).all(|(from, to)| to == product(0x9d, *from)), "{bytes}");
        }
        assert_eq!(
            [0, 1, 2, 4, 0x1d].map(|byte| Gf256(byte).exponent()),
            [None, Some(0), Some(1), Some(2), Some(8)]
        );
    }
}
