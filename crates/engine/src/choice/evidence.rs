//! What trying both ways has shown, in bounded memory, and how sure it is.
//!
//! A pair is two blocks of requests, one after the other, one each way. What counts of it is the difference of what a byte cost, as a
//! part of what it usually costs both ways. (The logarithm of the ratio would be off where the costs of one way vary more than those of
//! the other: half the variance, which is a tenth where latencies are exponential.) Differences that lie further from their
//! median than four deviations, by the median deviation, count as if they lay there: one stall of a server is no evidence. A pair weighs as much as
//! it has requests: blocks become longer while a class is tried, and a mean in which the first ones counted as much as the last would be
//! twice as unsure.
//!
//! The bound: the chance that the evidence of any number of pairs, however often one looks, is ever farther off than
//! [`Estimate::half_width`] is about 1 / [`ERROR_ONE_IN`] where differences are normal. It is Robbins' boundary for sums (a mixture of normal
//! alternatives: n pairs of deviation d add up to more than d sqrt((n + r) ln((n + r) / r e²)) with a chance of e), which grows hardly
//! faster than a single look's. A deviation that is known from few pairs is not believed to be small: two more of a tenth each, as long as
//! the first ones, are counted in, and the bound is widened.

/// What a byte cost, both ways, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pair {
    pub(super) usual: f64,
    pub(super) instead: f64,
}

impl Pair {
    /// A sixteenth of the way to `other`, which counts as if it lay no further off than by the part `most`: what is known does not
    /// jump with each pair.
    pub(super) fn toward(self, other: Pair, most: f64) -> Pair {
        let toward = |from: f64, to: f64| from + (to - from).clamp(-most * from, most * from) / 16.0;
        Pair { usual: toward(self.usual, other.usual), instead: toward(self.instead, other.instead) }
    }
    /// What the way instead saves, as a part of what both cost on average; -2 to 2.
    pub(super) fn gain(self) -> f64 {
        let typical = self.typical();
        if typical > 0.0 { (self.usual - self.instead) / typical } else { 0.0 }
    }
    fn typical(self) -> f64 {
        (self.usual + self.instead) / 2.0
    }
}

/// Entries kept. Where there are more pairs, neighbours are averaged and each entry stands for twice as many.
const ENTRIES: usize = 32;
/// The chance of a wrong decision, and the number of pairs near which the bound is tightest.
const ERROR_ONE_IN: u64 = 100;
const TIGHT: u64 = 4;
/// What is believed of the deviation of the first pairs before there are any, and how many pairs that counts for.
const PRIOR: (f64, f64) = (0.1, 2.0);

/// Pairs, and how many requests they are of, each way.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    pair: Pair,
    requests: f64,
}

impl Entry {
    /// Both, by their weights.
    fn with(self, other: Entry) -> Entry {
        let requests = self.requests + other.requests;
        let mean = |one: f64, another: f64| (one * self.requests + another * other.requests) / requests;
        let pair = Pair {
            usual: mean(self.pair.usual, other.pair.usual),
            instead: mean(self.pair.instead, other.pair.instead),
        };
        Entry { pair, requests }
    }
}

/// Pairs, averaged where there are many. One of many requests says more than one of few.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    entries: Vec<Entry>,
    /// Pairs in an entry, as a power of two.
    weight: u32,
    /// Pairs that do not make an entry yet, and how many.
    partial: (Entry, u32),
    pairs: u32,
}

/// What the way instead saves, as a part of the usual cost: above 0 it is the better one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    /// The mean of all pairs.
    pub(super) gain: f64,
    /// Deviation of that mean.
    pub(super) error: f64,
    /// That, wider where it is known from few pairs.
    pub(super) wide_error: f64,
    /// The bound of the module's head.
    pub(super) half_width: f64,
}

impl Evidence {
    pub(super) fn pairs(&self) -> u32 {
        self.pairs
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        (self.weight, self.partial, self.pairs) = (0, (Entry::default(), 0), 0);
    }

    /// One more, of so many requests each way.
    pub(super) fn push(&mut self, pair: Pair, requests: u32) {
        self.pairs = self.pairs.saturating_add(1);
        let entry = Entry { pair, requests: f64::from(requests) };
        self.partial = (self.partial.0.with(entry), self.partial.1 + 1);
        if self.partial.1 < 1 << self.weight {
            return;
        }
        if self.entries.len() == ENTRIES {
            for i in 0..ENTRIES / 2 {
                self.entries[i] = self.entries[2 * i].with(self.entries[2 * i + 1]);
            }
            self.entries.truncate(ENTRIES / 2);
            self.weight = (self.weight + 1).min(30);
            if self.partial.1 < 1 << self.weight {
                return;
            }
        }
        self.entries.push(std::mem::take(&mut self.partial).0);
    }

    /// What a byte costs both ways, on average; one stall is no evidence here either.
    pub(super) fn mean(&self) -> Option<Pair> {
        let mean = |way: fn(&Pair) -> f64| {
            let mut costs: Vec<_> = self.weighted(|entry| way(&entry.pair));
            let center = median(costs.iter().map(|(cost, _)| *cost).collect())?;
            bring_near(&mut costs, center * self.prior().sqrt())?;
            Some(costs.iter().map(|(cost, weight)| cost * weight).sum::<f64>() / self.requests())
        };
        Some(Pair { usual: mean(|pair| pair.usual)?, instead: mean(|pair| pair.instead)? })
    }

    fn weighted(&self, value: impl Fn(&Entry) -> f64) -> Vec<(f64, f64)> {
        self.entries.iter().map(|entry| (value(entry), entry.requests)).collect()
    }

    fn requests(&self) -> f64 {
        self.entries.iter().map(|entry| entry.requests).sum()
    }

    /// What is believed before there are any of the variance of a pair of one request each way. The first ones are the shortest, and it is
    /// believed of those: were the same believed of longer ones, it would be what keeps a quiet device from being decided.
    fn prior(&self) -> f64 {
        let first = self.entries.first().map_or(0.0, |entry| entry.requests);
        PRIOR.0 * PRIOR.0 * first / self.pairs_in_entry()
    }

    fn pairs_in_entry(&self) -> f64 {
        f64::from(1u32 << self.weight)
    }

    /// `None` without evidence.
    pub(super) fn estimate(&self) -> Option<Estimate> {
        let n = self.entries.len() as f64;
        let typical = median(self.entries.iter().map(|entry| entry.pair.typical()).collect())?;
        if typical <= 0.0 {
            return None; // a clock that stands still says nothing
        }
        let mut gains = self.weighted(|entry| (entry.pair.usual - entry.pair.instead) / typical);
        bring_near(&mut gains, self.prior().sqrt())?;
        let requests = self.requests();
        let gain = gains.iter().map(|(one, weight)| one * weight).sum::<f64>() / requests;
        let squares: f64 = gains.iter().map(|(one, weight)| weight * (one - gain) * (one - gain)).sum();
        // In entries: what is believed counts for as few pairs as ever.
        let believed = PRIOR.1 / self.pairs_in_entry();
        let variance = (squares + believed * self.prior()) / (n - 1.0 + believed);
        let error = (variance / requests).sqrt();
        // As many of one weight say as much.
        let alike = requests * requests / gains.iter().map(|(_, weight)| weight * weight).sum::<f64>();
        let wide_error = error * unsure(alike).sqrt();
        Some(Estimate { gain, error, wide_error, half_width: wide_error * self.quantile() })
    }

    /// The deviation of a pair of so many requests each way, as far as it is known.
    pub(super) fn deviation(&self, requests: u32) -> Option<f64> {
        let estimate = self.estimate()?;
        Some(estimate.error * (self.requests() / f64::from(requests)).sqrt())
    }

    /// How many deviations of the mean the bound is wide.
    fn quantile(&self) -> f64 {
        let n = u64::from(self.pairs.max(1));
        let odds = (n + TIGHT) * ERROR_ONE_IN * ERROR_ONE_IN / TIGHT;
        ((n + TIGHT) as f64 / n as f64 * ln_above(odds)).sqrt()
    }
}

/// The natural logarithm, rounded up by 0.06 at most: the same on every machine.
fn ln_above(of: u64) -> f64 {
    let whole = of.ilog2();
    let part = of as f64 / (1u64 << whole) as f64 - 1.0;
    // A chord of the logarithm lies below it by 0.0861 at most.
    std::f64::consts::LN_2 * (f64::from(whole) + part + 0.0861)
}

/// Values further from their median than four deviations, by the median deviation, are put there; none that lies less than `near` off. Each has
/// a weight: deviations are those of weight one.
fn bring_near(values: &mut [(f64, f64)], near: f64) -> Option<()> {
    let center = median(values.iter().map(|(value, _)| *value).collect())?;
    let spread =
        median(values.iter().map(|(value, weight)| (value - center).abs() * weight.sqrt()).collect())?;
    // 1.4826 median deviations are a standard deviation, of what is normal.
    let far = (4.0 * 1.4826 * spread * unsure(values.len() as f64)).max(near);
    for (value, weight) in values {
        let far = far / weight.sqrt();
        *value = value.clamp(center - far, center + far);
    }
    Some(())
}

/// By how much a variance may be larger that was estimated from `n` values.
fn unsure(n: f64) -> f64 {
    (n + 3.0) / (n - 1.0).max(1.0)
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
                evidence.push(pair(1.0, instead), 2);
                evidence.estimate().is_some_and(|it| it.gain > it.half_width)
            })
        };
        assert!(needed(0.2).unwrap() < 3);
        assert!((4..12).contains(&needed(0.9).unwrap()), "{:?}", needed(0.9));
        assert!(needed(1.1).is_none());
    }

    #[test]
    fn logarithms_are_rounded_up() {
        for of in [1, 2, 3, 20_000, 36_000, u64::MAX] {
            let above = ln_above(of) - (of as f64).ln();
            assert!((0.0..0.0601).contains(&above), "{of}: {above}");
        }
    }

    #[test]
    fn chance_is_rarely_taken_for_a_difference_however_often_one_looks() {
        let mut noise = 1u64;
        let mut normal = || {
            let mut sum = -6.0;
            for _ in 0..12 {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                sum += (noise >> 11) as f64 / (1u64 << 53) as f64;
            }
            sum
        };
        let mut is_misled = || {
            let mut evidence = Evidence::default();
            (0..300).any(|_| {
                evidence.push(pair(1.0 + 0.2 * normal(), 1.0 + 0.2 * normal()), 2);
                evidence.pairs() >= 4 && evidence.estimate().is_some_and(|it| it.gain.abs() > it.half_width)
            })
        };
        let misled = (0..400).filter(|_| is_misled()).count();
        assert!(misled <= 12, "{misled} of 400");
    }

    #[test]
    fn a_pair_weighs_as_much_as_it_has_requests() {
        let mut evidence = Evidence::default();
        // As many pairs of two requests as of sixteen, by each of which the way instead saves little; the short ones vary eight times as much.
        for n in 0..12 {
            let off = |n: i32| if n % 2 == 0 { 0.05 } else { -0.05 };
            evidence.push(pair(1.02 + off(n) * 8f64.sqrt(), 1.0), 2);
            evidence.push(pair(1.02 + off(n / 2), 1.0), 16);
        }
        let of_all = evidence.estimate().unwrap();
        assert!((of_all.gain - 0.0198).abs() < 0.002, "{of_all:?}");
        // 216 requests of which one varies by 0.2 tell it to 0.0136. Did all pairs weigh the same, it would be 0.022.
        assert!((0.012..0.0155).contains(&of_all.error), "{of_all:?}");
        let [short, long] = [2, 16].map(|requests| evidence.deviation(requests).unwrap());
        assert!((short / long - 8f64.sqrt()).abs() < 1e-9 && (0.04..0.06).contains(&long), "{short} {long}");
    }

    #[test]
    fn what_is_believed_before_there_are_pairs_counts_for_no_more_than_two_of_the_first() {
        // None of these pairs differs, so all that is unsure is what was believed.
        let error = |pairs: u32, requests: fn(u32) -> u32| {
            let mut evidence = Evidence::default();
            (0..pairs).for_each(|n| evidence.push(pair(1.0, 1.0), requests(n)));
            evidence.estimate().unwrap().error
        };
        // Two of a tenth each, of so many and one more; in however many entries they are.
        for pairs in [8, 32, 128, 1024] {
            let expected = 0.1 * 2f64.sqrt() / f64::from(pairs);
            assert!((0.9..1.1).contains(&(error(pairs, |_| 2) / expected)), "{pairs}");
        }
        // Longer ones are not believed to vary as much.
        let [short, long] = [error(12, |_| 2), error(12, |n| if n < 4 { 2 } else { 32 })];
        assert!(long < short / 2.0, "{short} {long}");
    }

    #[test]
    fn one_stall_is_no_evidence() {
        let mut evidence = Evidence::default();
        (0..9).for_each(|i| evidence.push(pair(1.0, 1.01 + 0.001 * f64::from(i % 3)), 2));
        evidence.push(pair(1000.0, 1.01), 2);
        let estimate = evidence.estimate().unwrap();
        assert!(estimate.gain.abs() < 0.02 && estimate.gain < estimate.half_width, "{estimate:?}");
        // Nor does it hide what that way costs: a change is measured by it.
        let mean = evidence.mean().unwrap();
        assert!((mean.usual - 1.0).abs() < 0.02, "{mean:?}");
        let known = pair(1.0, 1.01).toward(pair(1000.0, 1.01), 0.2);
        assert!((known.usual - 1.0).abs() < 0.02, "{known:?}");
    }

    #[test]
    fn memory_is_bounded_and_the_mean_is_kept() {
        let mut evidence = Evidence::default();
        for i in 0..100_000u32 {
            evidence.push(pair(f64::from(i % 2), 3.0), 2);
        }
        assert!(evidence.entries.len() <= ENTRIES && evidence.entries.capacity() <= 2 * ENTRIES);
        let mean = evidence.mean().unwrap();
        assert!((mean.usual - 0.5).abs() < 0.01 && (mean.instead - 3.0).abs() < 1e-9, "{mean:?}");
        assert_eq!(evidence.pairs(), 100_000);
    }
}
