//! Chance that is the same for each seed, for tests whose steps nobody has planned.

use std::ops::Range;

/// Numbers by chance (splitmix64).
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    /// Whether something happens that happens once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub fn of<T: Clone>(&mut self, these: &[T]) -> T {
        these[usize::try_from(self.below(these.len() as u64)).expect("it is an index")].clone()
    }
}

/// `SEEDS=100 FROM=7` for others than the usual one.
pub fn seeds(usual: u64) -> Range<u64> {
    let from = number("FROM").unwrap_or(usual);
    from..from + number("SEEDS").unwrap_or(1)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}
