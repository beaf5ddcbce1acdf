//! The list of bad blocks of a member: ranges that must be read from another copy.
//!
//! An array of little-endian u64: bits 10-63 the place, bits 0-9 the length, both in units of 2^shift sectors; all ones
//! ends it, and fills the rest. Places count from the start of the member, *not* of its data.
//!
//! (1) Every range that was read is not empty and lies below 2^54 units. (2) Reading takes at most
//! [`ENTRIES_MAX`] entries.

use crate::FormatError;
use crate::bytes::{length, u64_le};

use super::v1::Region;

/// Most entries: a page of 4096 bytes.
pub const ENTRIES_MAX: usize = 512;

/// Most units in an entry.
pub const UNITS_MAX: u64 = 1023;

const PLACE: &str = "md bad block log";
const END: u64 = u64::MAX;
const LENGTH_BITS: u32 = 10;

/// Reads a list. `bytes` is what the log's sectors hold, `shift` the superblock's `bblog_shift`, `offset` where the list
/// is on the member, for errors.
///
/// # Errors
///
/// An entry of length 0, one that ends beyond `member_sectors`, or more than [`ENTRIES_MAX`].
pub fn decode(bytes: &[u8], shift: u8, offset: u64, member_sectors: u64) -> Result<Vec<Region>, FormatError> {
    let mut out = Vec::new();
    for (at, entry) in bytes.chunks_exact(8).enumerate() {
        let entry = u64_le(entry, 0);
        if entry == END {
            return Ok(out);
        }
        let here = offset.saturating_add(8 * length(at));
        if at == ENTRIES_MAX {
            let expected = format!("at most {ENTRIES_MAX}");
            return Err(FormatError::limit(PLACE, here, "number of entries", at + 1, expected));
        }
        let (start, units) = (entry >> LENGTH_BITS, entry & UNITS_MAX);
        let unit = 1u64.checked_shl(shift.into());
        let scaled = |n: u64| unit.and_then(|unit| n.checked_mul(unit));
        let region = match (scaled(start), scaled(units)) {
            (Some(start), Some(sectors)) if sectors > 0 => Region { start, sectors },
            _ => {
                let expected = "a length of 1 to 1023 and a place below 2^64 sectors";
                let found = format!("{units} units of 2^{shift} sectors at {start}");
                return Err(FormatError::invalid(PLACE, here, "entry", found, expected));
            }
        };
        if region.start.checked_add(region.sectors).is_none_or(|end| end > member_sectors) {
            let expected = format!("an end at {member_sectors} at most, where the device ends");
            return Err(FormatError::invalid(PLACE, here, "entry", region, expected));
        }
        out.push(region);
    }
    Ok(out)
}

/// Writes a list into `sectors` sectors; ranges that are longer than an entry takes several. Places and lengths are
/// rounded outwards to units of 2^shift sectors.
///
/// # Errors
///
/// More entries than there is room for, or a place of 2^54 units or more: the member has to be given up then.
pub fn encode(list: &[Region], shift: u8, sectors: u16) -> Result<Vec<u8>, FormatError> {
    let room = usize::from(sectors) * 64;
    let mut out = Vec::new();
    for region in list.iter().filter(|region| region.sectors > 0) {
        let wrong = |expected: &str| FormatError::limit(PLACE, 0, "entry", region, expected);
        let unit = 1u64.checked_shl(shift.into()).ok_or_else(|| wrong("a unit below 2^64 sectors"))?;
        let mut start = region.start / unit;
        let end = region.start.checked_add(region.sectors).ok_or_else(|| wrong("an end below 2^64"))?;
        let end = end.div_ceil(unit);
        if end > u64::MAX >> LENGTH_BITS {
            return Err(wrong("an end below 2^54 units"));
        }
        while start < end {
            if out.len() == room.min(ENTRIES_MAX) {
                let expected = format!("at most {} in {sectors} sectors", room.min(ENTRIES_MAX));
                return Err(FormatError::limit(PLACE, 0, "number of entries", out.len() + 1, expected));
            }
            let units = (end - start).min(UNITS_MAX);
            out.push(start << LENGTH_BITS | units);
            start += units;
        }
    }
    out.resize(room, END);
    Ok(out.iter().flat_map(|entry| entry.to_le_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use proptest::prelude::*;

    fn entries(list: &[u64]) -> Vec<u8> {
        list.iter().flat_map(|entry| entry.to_le_bytes()).collect()
    }

    #[test]
    fn a_list_ends_at_its_first_entry_of_all_ones() {
        let bytes = entries(&[2048 << 10 | 8, 4096 << 10 | 1023, END, 0]);
        let found = decode(&bytes, 0, 0, 10_000).unwrap();
        assert_eq!(found, [Region { start: 2048, sectors: 8 }, Region { start: 4096, sectors: 1023 }]);
        let found = decode(&bytes, 3, 0, 80_000).unwrap();
        assert_eq!(found[0], Region { start: 2048 * 8, sectors: 64 });
    }

    #[test]
    fn entries_that_are_empty_or_beyond_the_device_are_errors_that_name_their_place() {
        let error = decode(&entries(&[1 << 10 | 1, 5 << 10]), 0, 8192, 100).unwrap_err();
        assert_eq!(
            error.to_string(),
            "md bad block log at 8200: entry is 0 units of 2^0 sectors at 5, \
             expected a length of 1 to 1023 and a place below 2^64 sectors"
        );
        for (entry, shift) in [(100 << 10 | 1, 0), (13 << 10 | 1, 3), (1 << 63 | 1, 20), (1 << 10 | 1, 64)] {
            assert!(decode(&entries(&[entry]), shift, 0, 100).is_err(), "{entry:#x} << {shift}");
        }
        let many = entries(&vec![1 << 10 | 1; ENTRIES_MAX + 1]);
        assert_eq!(decode(&many, 0, 0, 100).unwrap_err().kind, ErrorKind::Limit);
    }

    #[test]
    fn a_list_without_room_is_an_error_and_not_a_shorter_list() {
        let list = vec![Region { start: 5, sectors: 1 }; 65];
        assert_eq!(encode(&list, 0, 1).unwrap_err().kind, ErrorKind::Limit);
        assert_eq!(encode(&list[..64], 0, 1).unwrap().len(), 512);
        assert!(encode(&[Region { start: 1 << 54, sectors: 1 }], 0, 1).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_covers_the_same_sectors_when_it_is_read(
            ranges in proptest::collection::vec((0u64..3000, 1u64..3000), 0..12), shift in 0u8..4,
        ) {
            let list: Vec<_> = ranges.iter().map(|(start, sectors)| Region { start: *start, sectors: *sectors }).collect();
            let bytes = encode(&list, shift, 8).unwrap();
            prop_assert_eq!(bytes.len(), 4096);
            let read = decode(&bytes, shift, 0, 7000).unwrap();
            let unit = 1 << shift;
            for sector in 0..7000u64 {
                let within = |list: &[Region]| {
                    list.iter().any(|region| {
                        let first = region.start / unit * unit;
                        (first..region.end().next_multiple_of(unit)).contains(&sector)
                    })
                };
                prop_assert_eq!(within(&read), within(&list), "sector {}", sector);
            }
        }
    }
}
