//! Random numbers that are the same on every machine and for ever, for one seed.
//!
//! The generator is xoshiro256** 1.0 (Blackman and Vigna, <https://prng.di.unimi.it/xoshiro256starstar.c>), its state
//! filled by SplitMix64 from the seed, as its authors advise. Real numbers are made with `+ - * /` and `sqrt` alone:
//! IEEE 754 defines those to the bit, while `ln` and `exp` of a system's library differ between machines.
//!
//! Invariant: the stream of a seed never changes. A change here makes every recorded seed mean another run; the test
//! `the_streams_are_pinned` says so.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

/// One step of SplitMix64: also a good way to turn a number into one that looks unrelated.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        let mut s = seed;
        Random { state: [split_mix(&mut s), split_mix(&mut s), split_mix(&mut s), split_mix(&mut s)] }
    }

    /// A stream of its own for part `number` of a run: what that part draws does not shift the draws of others.
    pub fn part(seed: u64, number: u64) -> Random {
        let mut s = number;
        Random::new(seed ^ split_mix(&mut s))
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`, all (very nearly) equally likely.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        let wide = u128::from(self.bits()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of a 128-bit product has 64 bits")
    }

    /// As [`Random::below`], for places in memory.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("smaller than a usize")
    }

    /// A number from `low` to `high`, both possible.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        match (high - low).checked_add(1) {
            Some(span) => low + self.below(span),
            None => self.bits(),
        }
    }

    /// True `parts` times in `of`.
    pub fn chance(&mut self, parts: u32, of: u32) -> bool {
        self.below(u64::from(of)) < u64::from(parts)
    }

    /// True in `per_million` of a million cases. Draws nothing if that is never.
    pub fn rate(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// True or false, equally likely.
    pub fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// One of `choices`.
    pub fn choose<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// A number in (0, 1), never either end.
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// A normally distributed number with mean 0 and deviation 1 (polar method of Marsaglia).
    pub fn normal(&mut self) -> f64 {
        loop {
            let (u, v) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let s = u * u + v * v;
            if s > 0.0 && s < 1.0 {
                return u * (-2.0 * ln(s) / s).sqrt();
            }
        }
    }
}

const LN_2: f64 = std::f64::consts::LN_2;

/// The natural logarithm of a positive, normal number, by the series of the area tangent.
pub fn ln(x: f64) -> f64 {
    assert!(x.is_normal() && x > 0.0, "ln of {x}");
    let bits = x.to_bits();
    let biased = i32::try_from(bits >> 52).expect("eleven bits: the sign is plus");
    let mut exponent = f64::from(biased - 1023);
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | 1023 << 52);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1.0;
    }
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut sum, mut power) = (0.0, t);
    for k in 0..12 {
        sum += power / f64::from(2 * k + 1);
        power *= t * t;
    }
    exponent * LN_2 + 2.0 * sum
}

/// e to the `x`, by Taylor's series on [-ln 2 / 2, ln 2 / 2]; `x` from -700 to 700.
pub fn exp(x: f64) -> f64 {
    assert!(x.abs() <= 700.0, "exp of {x}");
    let n = (x / LN_2 + if x < 0.0 { -0.5 } else { 0.5 }) as i64;
    let r = x - n as f64 * LN_2;
    let (mut sum, mut term) = (1.0, 1.0);
    for k in 1..16 {
        term *= r / f64::from(k);
        sum += term;
    }
    let exponent = u64::try_from(n + 1023).expect("within the range of exponents, as |x| <= 700");
    sum * f64::from_bits(exponent << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_are_pinned() {
        // The first value is that of the authors' C code, for the state that SplitMix64 gives from zero.
        let mut zero = Random::new(0);
        assert_eq!([zero.bits(), zero.bits()], [0x99ec_5f36_cb75_f2b4, 0xbf6e_1f78_4956_452a]);
        let mut normals = Random::new(1);
        let sum: f64 = (0..1000).map(|_| normals.normal()).sum();
        assert_eq!(sum.to_bits(), 0xc026_d58d_d953_7a65, "{:#x}", sum.to_bits());
    }

    #[test]
    fn logarithm_and_exponential_agree_with_the_library_to_twelve_digits() {
        let mut random = Random::new(7);
        for _ in 0..10_000 {
            let x = random.unit() * 100.0 + 1e-9;
            assert!((ln(x) - x.ln()).abs() <= 1e-12 * x.ln().abs().max(1.0), "ln {x}");
            let y = random.unit() * 60.0 - 30.0;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-12, "exp {y}");
        }
    }

    #[test]
    fn the_normal_distribution_has_mean_zero_and_deviation_one() {
        let mut random = Random::new(3);
        let n = 50_000;
        let all: Vec<f64> = (0..n).map(|_| random.normal()).collect();
        let mean = all.iter().sum::<f64>() / f64::from(n);
        let variance = all.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / f64::from(n);
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.03, "{variance}");
    }

    #[test]
    fn parts_of_a_run_draw_from_streams_of_their_own() {
        let (mut a, mut b) = (Random::part(5, 0), Random::part(5, 1));
        assert_ne!(a.bits(), b.bits());
        assert_eq!(Random::part(5, 1).bits(), Random::part(5, 1).bits());
    }
}
