//! Division by a number that is known when the array is put together.
//!
//! A division instruction costs as much as everything else that a lookup does. A product with the reciprocal does not: with
//! m = ⌊(2^64 − 1) / n⌋, the upper half of x·m is ⌊x / n⌋ or one less, for every x below 2^64. (2^64 − m·n is at most n, so
//! x·m / 2^64 falls short of x / n by at most x / 2^64, which is less than 1.) The remainder says which of the two it is.

use std::num::NonZeroU64;

/// A number to divide by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    n: u64,
    reciprocal: u64,
}

impl Divisor {
    pub fn new(n: NonZeroU64) -> Divisor {
        Divisor { n: n.get(), reciprocal: u64::MAX / n }
    }

    /// What it divides by.
    #[inline]
    pub fn get(self) -> u64 {
        self.n
    }

    /// Quotient and remainder.
    #[inline]
    pub fn divide(self, x: u64) -> (u64, u64) {
        let low = ((u128::from(x) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = x - low * self.n;
        if rest < self.n { (low, rest) } else { (low + 1, rest - self.n) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(x: u64, n: u64) {
        let n = NonZeroU64::new(n).unwrap();
        assert_eq!(Divisor::new(n).divide(x), (x / n, x % n), "{x} / {n}");
    }

    #[test]
    fn the_ends_of_both_ranges_divide_exactly() {
        let edges = [1, 2, 3, 5, 7, 1 << 32, u64::MAX / 2, u64::MAX - 1, u64::MAX];
        for n in edges {
            for x in edges.into_iter().chain([0, n - 1, n, n.saturating_add(1), u64::MAX / n * n]) {
                check(x, n);
                check(x.saturating_sub(1), n);
            }
        }
    }

    proptest! {
        #[test]
        fn it_divides_as_the_processor_does(x: u64, n in 1u64.., small in 1u64..2000, times: u64) {
            check(x, n);
            check(x, small);
            check((times / small).wrapping_mul(small), small);
        }
    }
}
