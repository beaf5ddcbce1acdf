//! A set of bits that all workers read and write without a lock.
//!
//! Operations on a range go word by word: they are not atomic as a whole. Each says which ordering its words have; what that is
//! worth is the business of who uses it.

use std::sync::atomic::{AtomicU64, Ordering};

const WORD: u64 = u64::BITS as u64;

/// Bits, all clear at first.
#[derive(Debug)]
pub(super) struct AtomicBits {
    words: Box<[AtomicU64]>,
}

impl AtomicBits {
    pub(super) fn new(bits: u64) -> AtomicBits {
        AtomicBits { words: (0..bits.div_ceil(WORD)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The words from bit `first` to bit `last`, each with the bits in it that are meant.
    #[inline]
    fn words(&self, first: u64, last: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let (from, to) = (first / WORD, last / WORD);
        self.words[from as usize..=to as usize].iter().zip(from..).map(move |(word, number)| {
            let low = if number == from { u64::MAX << (first % WORD) } else { u64::MAX };
            let high = if number == to { u64::MAX >> (WORD - 1 - last % WORD) } else { u64::MAX };
            (word, low & high)
        })
    }

    /// Whether all bits from `first` to `last` are set (acquire).
    #[inline]
    pub(super) fn all(&self, first: u64, last: u64) -> bool {
        self.words(first, last).all(|(word, mask)| word.load(Ordering::Acquire) & mask == mask)
    }

    /// Whether any of them is (acquire).
    #[inline]
    pub(super) fn any(&self, first: u64, last: u64) -> bool {
        self.words(first, last).any(|(word, mask)| word.load(Ordering::Acquire) & mask != 0)
    }

    /// Sets them (release). Those that are set already cost a load.
    #[inline]
    pub(super) fn set(&self, first: u64, last: u64) {
        for (word, mask) in self.words(first, last) {
            if word.load(Ordering::Relaxed) & mask != mask {
                word.fetch_or(mask, Ordering::AcqRel);
            }
        }
    }

    /// Clears one (release).
    pub(super) fn clear(&self, bit: u64) {
        for (word, mask) in self.words(bit, bit) {
            word.fetch_and(!mask, Ordering::AcqRel);
        }
    }

    /// The first that is set at or behind `from` (acquire).
    pub(super) fn next(&self, from: u64) -> Option<u64> {
        let mut word_at = (from / WORD) as usize;
        let mut mask = u64::MAX << (from % WORD);
        while let Some(word) = self.words.get(word_at) {
            let left = word.load(Ordering::Acquire) & mask;
            if left != 0 {
                return Some(word_at as u64 * WORD + u64::from(left.trailing_zeros()));
            }
            (word_at, mask) = (word_at + 1, u64::MAX);
        }
        None
    }

    /// The words, to go through all of them.
    pub(super) fn all_words(&self) -> &[AtomicU64] {
        &self.words
    }
}

/// The numbers of the bits that are set in `word`, the `index`-th of its set.
pub(super) fn bits_of(index: usize, word: u64) -> impl Iterator<Item = u64> {
    let mut left = word;
    std::iter::from_fn(move || {
        let bit = u64::from(left.trailing_zeros());
        (left != 0).then(|| {
            left &= left - 1;
            index as u64 * WORD + bit
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_the_bits_in_them(bits in 1u64..300, ends in proptest::collection::vec((0u64..300, 0u64..300), 1..6)) {
            let set = AtomicBits::new(bits);
            let mut model = vec![false; bits as usize];
            for (a, b) in ends {
                let (first, last) = (a.min(b) % bits, a.max(b) % bits);
                let (first, last) = (first.min(last), first.max(last));
                let part = &mut model[first as usize..=last as usize];
                prop_assert_eq!(set.all(first, last), part.iter().all(|bit| *bit));
                prop_assert_eq!(set.any(first, last), part.iter().any(|bit| *bit));
                set.set(first, last);
                part.fill(true);
            }
            let words = set.all_words().iter().enumerate();
            let found: Vec<u64> = words.flat_map(|(at, word)| bits_of(at, word.load(Ordering::Relaxed))).collect();
            let expected: Vec<u64> = (0..bits).filter(|bit| model[*bit as usize]).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
