//! What trying both ways has shown, in bounded memory, and how sure it is.
//!
//! A pair is two blocks of requests, one after the other, one each way. What counts of it is the difference of what a byte cost, as a
//! part of what it usually costs both ways. (The logarithm of the ratio would be off where the costs of one way vary more than those of
//! the other: half the variance, which is a tenth where latencies are exponential.) Differences that lie further from their
//! median than four deviations, by the median deviation, count as if they lay there: one stall of a server is no evidence.
//!
//! The bound: the chance that the n-th look at the evidence is farther off than [`Estimate::half_width`] is at most
//! ERROR / n(n+1) where differences are normal; the sum over all n is ERROR, however often one looks. A deviation that is known from
//! few pairs is not believed to be small: two more of a tenth each are counted in.

/// What a byte cost, both ways, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pair {
    pub(super) usual: f64,
    pub(super) instead: f64,
}

impl Pair {
    fn plus(self, other: Pair) -> Pair {
        Pair { usual: self.usual + other.usual, instead: self.instead + other.instead }
    }
    fn over(self, n: f64) -> Pair {
        Pair { usual: self.usual / n, instead: self.instead / n }
    }
    /// A sixteenth of the way to `other`: what is known does not jump with each pair.
    pub(super) fn toward(self, other: Pair) -> Pair {
        Pair {
            usual: self.usual + (other.usual - self.usual) / 16.0,
            instead: self.instead + (other.instead - self.instead) / 16.0,
        }
    }
    fn typical(self) -> f64 {
        (self.usual + self.instead) / 2.0
    }
}

/// Entries kept. Where there are more pairs, neighbours are averaged and each entry stands for twice as many.
const ENTRIES: usize = 32;
/// The chance of a wrong decision, at most.
const ERROR_ONE_IN: u64 = 100;
/// What is believed of the deviation of pairs before there are any, and how many pairs that counts for.
const PRIOR: (f64, f64) = (0.1, 2.0);

/// Pairs, averaged where there are many.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    entries: Vec<Pair>,
    /// Pairs in an entry, as a power of two.
    weight: u32,
    /// The sum of pairs that do not make an entry yet.
    partial: (Pair, u32),
    pairs: u32,
}

/// What the way instead saves, as a part of the usual cost: above 0 it is the better one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    /// The mean of all pairs.
    pub(super) gain: f64,
    /// Deviation of that mean.
    pub(super) error: f64,
    /// The bound of the module's head.
    pub(super) half_width: f64,
}

impl Evidence {
    pub(super) fn pairs(&self) -> u32 {
        self.pairs
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        (self.weight, self.partial, self.pairs) = (0, (Pair::default(), 0), 0);
    }

    pub(super) fn push(&mut self, pair: Pair) {
        self.pairs = self.pairs.saturating_add(1);
        self.partial = (self.partial.0.plus(pair), self.partial.1 + 1);
        if self.partial.1 < 1 << self.weight {
            return;
        }
        if self.entries.len() == ENTRIES {
            for i in 0..ENTRIES / 2 {
                self.entries[i] = self.entries[2 * i].plus(self.entries[2 * i + 1]).over(2.0);
            }
            self.entries.truncate(ENTRIES / 2);
            self.weight = (self.weight + 1).min(30);
            if self.partial.1 < 1 << self.weight {
                return;
            }
        }
        let (sum, n) = std::mem::take(&mut self.partial);
        self.entries.push(sum.over(f64::from(n)));
    }

    /// Forgets all but the newest `n` pairs; for evidence that never holds more than an entry each.
    pub(super) fn keep_newest(&mut self, n: usize) {
        let excess = self.entries.len().saturating_sub(n);
        self.entries.drain(..excess);
    }

    /// What a byte costs both ways, on average.
    pub(super) fn mean(&self) -> Option<Pair> {
        let sum = self.entries.iter().fold(Pair::default(), |sum, pair| sum.plus(*pair));
        (!self.entries.is_empty()).then(|| sum.over(self.entries.len() as f64))
    }

    /// `None` without evidence. `deviation`: of a single pair, where it is known from elsewhere.
    pub(super) fn estimate(&self, deviation: Option<f64>) -> Option<Estimate> {
        let n = self.entries.len() as f64;
        let typical = median(self.entries.iter().map(|pair| pair.typical()).collect())?;
        if typical <= 0.0 {
            return None; // a clock that stands still says nothing
        }
        let mut gains: Vec<f64> =
            self.entries.iter().map(|pair| (pair.usual - pair.instead) / typical).collect();
        let center = median(gains.clone())?;
        let spread = median(gains.iter().map(|gain| (gain - center).abs()).collect())?;
        let (prior, count) = PRIOR;
        let prior = prior * prior / f64::from(1u32 << self.weight);
        // 1.4826 median deviations are a standard deviation, of what is normal.
        let far = (4.0 * 1.4826 * spread).max(prior.sqrt());
        gains.iter_mut().for_each(|gain| *gain = gain.clamp(center - far, center + far));
        let gain = gains.iter().sum::<f64>() / n;
        let squares: f64 = gains.iter().map(|one| (one - gain) * (one - gain)).sum();
        let variance = match deviation {
            Some(deviation) => deviation * deviation,
            None => (squares + count * prior) / (n - 1.0 + count),
        };
        let error = (variance / n).sqrt();
        Some(Estimate { gain, error, half_width: error * self.quantile() })
    }

    /// The deviation of a single pair, as far as it is known.
    pub(super) fn deviation(&self) -> Option<f64> {
        let estimate = self.estimate(None)?;
        Some(estimate.error * (self.entries.len() as f64 * f64::from(1u32 << self.weight)).sqrt())
    }

    /// How many deviations the bound is wide: a normal variable exceeds q at either side with a chance of at most 2 exp(-q²/2).
    fn quantile(&self) -> f64 {
        const LN_2: f64 = std::f64::consts::LN_2;
        let n = u64::from(self.pairs.max(1));
        let odds = (2 * ERROR_ONE_IN).saturating_mul(n).saturating_mul(n + 1);
        // The logarithm rounded up: the same on every machine.
        (2.0 * LN_2 * f64::from(odds.ilog2() + 1)).sqrt()
    }
}

fn median(mut of: Vec<f64>) -> Option<f64> {
    of.sort_by(f64::total_cmp);
    let n = of.len();
    let middle = of.get(n / 2)?;
    Some(if n.is_multiple_of(2) { (middle + of[n / 2 - 1]) / 2.0 } else { *middle })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(usual: f64, instead: f64) -> Pair {
        Pair { usual, instead }
    }

    #[test]
    fn a_clear_difference_is_sure_after_few_pairs_and_a_small_one_after_more() {
        let needed = |instead: f64| {
            let mut evidence = Evidence::default();
            (1..100).find(|_| {
                evidence.push(pair(1.0, instead));
                evidence.estimate(None).is_some_and(|it| it.gain > it.half_width)
            })
        };
        assert!(needed(0.2).unwrap() < 3);
        assert!((4..12).contains(&needed(0.9).unwrap()), "{:?}", needed(0.9));
        assert!(needed(1.1).is_none());
    }

    #[test]
    fn one_stall_is_no_evidence() {
        let mut evidence = Evidence::default();
        (0..9).for_each(|i| evidence.push(pair(1.0, 1.01 + 0.001 * f64::from(i % 3))));
        evidence.push(pair(1000.0, 1.01));
        let estimate = evidence.estimate(None).unwrap();
        assert!(estimate.gain.abs() < 0.02 && estimate.gain < estimate.half_width, "{estimate:?}");
    }

    #[test]
    fn memory_is_bounded_and_the_mean_is_kept() {
        let mut evidence = Evidence::default();
        for i in 0..100_000u32 {
            evidence.push(pair(f64::from(i % 2), 3.0));
        }
        assert!(evidence.entries.len() <= ENTRIES && evidence.entries.capacity() <= 2 * ENTRIES);
        let mean = evidence.mean().unwrap();
        assert!((mean.usual - 0.5).abs() < 0.01 && (mean.instead - 3.0).abs() < 1e-9, "{mean:?}");
        assert_eq!(evidence.pairs(), 100_000);
    }
}
