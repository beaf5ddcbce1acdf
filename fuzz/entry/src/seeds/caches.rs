//! Seeds of caches.

use crate::cache_metadata::FIX_HEADER;

/// Of a version of a cache: not shut down cleanly.
pub(super) const UNCLEAN: u32 = 1 << 31;

/// Metadata of a cache: superblock, the mappings' tree and its two blocks, the bitmap's and its one.
pub(super) fn cache_input(flags: u8, version: u32) -> Vec<u8> {
    let word = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    // Words of a block by their numbers. Checksums and numbers come from the flag.
    let clean = u32::from(version & UNCLEAN == 0);
    let version = version & !UNCLEAN;
    let superblock = vec![
        (0, word(0, clean)),
        (4, 0o6_142_003),
        (5, word(version, 0)),
        (24, 1),
        (29, word(128, 8)),
        (30, word(540, 0)),
        (35, word(0, if version > 1 { 4 } else { 0 })),
    ];
    let leaf = |children: &[u64]| {
        let count = u32::try_from(children.len()).expect("few");
        let keys = (0..).zip(children).map(|(n, _)| (4 + n, u64::from(n)));
        let values = (0..).zip(children).map(|(n, child)| (4 + 252 + n, *child));
        let head = [(0, word(0, 2)), (2, word(count, 252)), (3, 8)];
        head.into_iter().chain(keys).chain(values).collect::<Vec<_>>()
    };
    let array = |values: Vec<(u16, u64)>, count| {
        let head = [(0, word(0, 509)), (1, word(count, 8))];
        head.into_iter().chain(values.into_iter().map(|(n, value)| (3 + n, value))).collect::<Vec<_>>()
    };
    // Every second one, the last first, the flags by turns.
    let mapping = |n: u64| (1000 - 3 * n) << 16 | 1 | (n % 4);
    let first = (0..120).map(|n| (2 * n, mapping(u64::from(n)))).collect();
    let second = (0..15).map(|n| (2 * n, mapping(120 + u64::from(n)))).collect();
    let blocks = [
        (0, 0, superblock),
        (1, 1, leaf(&[2, 3])),
        (2, 2, array(first, 509)),
        (3, 2, array(second, 31)),
        (4, 1, leaf(&[5])),
        (5, 2, array((0..9).map(|n| (n, 0x5555_1234_dead_beef)).collect(), 9)),
    ];
    let mut input = vec![flags];
    for (nr, kind, words) in blocks {
        let words: Vec<_> = words.into_iter().filter(|(_, word)| *word != 0).collect();
        input.extend([nr, kind, u8::try_from(words.len()).expect("at most 255")]);
        words
            .iter()
            .for_each(|(at, word)| input.extend([&at.to_le_bytes()[..], &word.to_le_bytes()].concat()));
    }
    input
}

/// A writecache of so many blocks of 512 bytes, of which some are free, some older than others, and some not committed.
pub(super) fn writecache_input(blocks: u64) -> Vec<u8> {
    let mut bytes = [512_u32, 0].map(u32::to_le_bytes).concat();
    bytes.splice(0..0, [0; 8]);
    bytes.extend([blocks, 90].map(u64::to_le_bytes).concat());
    bytes.resize(64, 0);
    for n in 0..blocks {
        let sequence = if n % 5 == 0 { u64::MAX } else { n % 97 };
        bytes.extend([n / 2 * 3, sequence].map(u64::to_le_bytes).concat());
    }
    let zeros = u32::try_from(blocks * 512 + 512).expect("few");
    [&[FIX_HEADER][..], &zeros.to_le_bytes(), &bytes].concat()
}
