//! Logs made here by hand: what they say, and which are refused.

use proptest::prelude::*;

use super::*;

/// A log with this header and these bits.
fn log(version: u32, nr_regions: u64, bits: &[u8]) -> Vec<u8> {
    let mut bytes = [&MAGIC.to_le_bytes()[..], &version.to_le_bytes(), &nr_regions.to_le_bytes()].concat();
    bytes.resize(1024, 0);
    [&bytes, bits].concat()
}

/// Where the clean runs begin and end.
fn clean(log: &[u8], regions: u64) -> Vec<(u64, u64)> {
    read_clean(&log, regions).unwrap().into_iter().map(|run| (run.start, run.end)).collect()
}

fn refused(log: &[u8], regions: u64) -> String {
    read_clean(&log, regions).unwrap_err().to_string()
}

#[test]
fn the_lowest_bit_of_each_byte_is_its_first_region() {
    let bits = [0b0110_0001, 0xff, 0b0000_0001];
    for version in [1, 2] {
        assert_eq!(clean(&log(version, 24, &bits), 24), [(0, 1), (5, 7), (8, 17)]);
    }
    assert_eq!(&log(2, 0, &[])[..4], b"rRiM");
}

#[test]
fn what_the_log_has_no_bits_of_is_not_clean_and_a_new_log_has_bits_of_all() {
    assert_eq!(clean(&log(2, 5, &[0xff; 3]), 24), [(0, 5)]);
    assert_eq!(clean(&log(2, u64::MAX, &[0xff; 3]), 21), [(0, 21)]);
    assert_eq!(clean(&log(2, u64::MAX, &[0; 3]), 21), []);
}

#[test]
fn a_run_goes_on_where_another_batch_is_read() {
    let mut bits = vec![0; BATCH_BYTES + 8];
    bits[BATCH_BYTES - 1] = 0x80;
    bits[BATCH_BYTES] = 0x01;
    let (at, regions) = (BATCH_BYTES as u64 * 8, bits.len() as u64 * 8);
    assert_eq!(clean(&log(2, regions, &bits), regions), [(at - 1, at + 1)]);
}

#[test]
fn what_is_no_log_or_too_much_of_one_is_refused_with_its_place() {
    assert_eq!(refused(&[0; 2048], 8), "mirror log at 0: magic is 0x00000000, expected 0x4d695272");
    assert_eq!(refused(&log(3, 8, &[0; 64]), 8), "mirror log at 4: version is 3, expected 1 or 2");
    let said = refused(&log(2, 8, &[0; 2]), 17);
    assert_eq!(said, "mirror log at 1024: room for bits is 16, expected 17 for the regions of its mirror");
    let said = refused(&log(2, 8, &[0; 2]), REGIONS_MAX + 1);
    assert_eq!(said, "mirror log at 1024: regions is 134217729, expected at most 134217728");
    let holes = vec![0x55; RUNS_MAX / 4];
    assert_eq!(clean(&log(2, u64::MAX, &holes), RUNS_MAX as u64 * 2).len(), RUNS_MAX);
    let said = refused(&log(2, u64::MAX, &[&holes[..], &[1]].concat()), RUNS_MAX as u64 * 2 + 1);
    assert!(said.contains("what is clean is in more than 4096 pieces"), "{said}");
}

proptest! {
    #[test]
    fn runs_are_the_regions_whose_bits_are_set(
        bits in proptest::collection::vec(any::<u8>(), 0..40), known in 0u64..400, regions in 0u64..320,
    ) {
        let regions = regions.min(bits.len() as u64 * 8);
        let slow: Vec<u64> = (0..regions.min(known))
            .filter(|n| bits[usize::try_from(n / 8).unwrap()] & 1 << (n % 8) != 0)
            .collect();
        let runs = read_clean(&log(2, known, &bits), regions).unwrap();
        prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
        prop_assert_eq!(runs.into_iter().flatten().collect::<Vec<_>>(), slow);
    }
}
