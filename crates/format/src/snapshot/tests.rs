//! The exception store: where things lie in it, what is read back, and what is refused with which words.

use proptest::prelude::*;

use super::*;
use crate::{ErrorKind, Sparse};

/// Chunks of 1 sector: 32 exceptions an area.
fn small() -> Layout {
    Layout::new(1).unwrap()
}

/// A store of `chunks` small chunks with these exceptions in its list.
fn store(chunks: u64, exceptions: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(chunks * 512).unwrap()];
    for Piece { offset, bytes: piece } in create(small()) {
        put(&mut bytes, usize::try_from(offset).unwrap(), &piece);
    }
    for (n, (old, new)) in (0u64..).zip(exceptions) {
        let at = small().area_chunk(n / 32) * 512 + n % 32 * 16;
        put(&mut bytes, usize::try_from(at).unwrap(), &Exception { old: *old, new: *new }.encode());
    }
    bytes
}

fn contents(bytes: &[u8], sectors: u64) -> Contents {
    match read(&bytes, sectors).unwrap() {
        Found::Valid(contents) => contents,
        other => panic!("{other:?}"),
    }
}

fn message(bytes: &[u8], sectors: u64) -> String {
    read(&bytes, sectors).unwrap_err().to_string()
}

#[test]
fn a_new_store_has_no_exceptions_and_one_of_zeros_was_never_used() {
    let found = contents(&store(10, &[]), 100);
    assert_eq!((found.exceptions.len(), found.remains, found.area(), found.next_chunk()), (0, false, 0, 2));
    assert_eq!(read(&vec![0u8; 5120], 100).unwrap(), Found::New);
    let lost = Header { valid: false, layout: small() }.encode();
    assert_eq!(read(&lost.to_vec(), 100).unwrap(), Found::Invalid(small()));
}

#[test]
fn areas_lie_where_the_kernel_has_them() {
    let layout = Layout::new(8).unwrap();
    assert_eq!((layout.exceptions_per_area(), layout.area_chunk(0), layout.area_chunk(2)), (256, 1, 515));
    assert_eq!([0, 2, 257, 258, 259].map(|chunk| layout.data_chunk(chunk)), [2, 2, 257, 259, 259]);
    assert_eq!(layout.used_sectors(259, 1), (2072, 24));
    assert!([0, 3, 1 << 22].iter().all(|chunk| Layout::new(*chunk).is_none()));
}

#[test]
fn the_list_runs_through_areas_and_ends_at_a_new_chunk_of_0() {
    let list: Vec<(u64, u64)> = (0..40).map(|n| (90 - n, if n < 32 { 2 + n } else { 3 + n })).collect();
    let mut bytes = store(50, &list);
    let found = contents(&bytes, 91);
    let expected: Vec<Exception> = list.iter().map(|&(old, new)| Exception { old, new }).collect();
    assert_eq!(found.exceptions, expected);
    assert_eq!((found.remains, found.area(), found.next_chunk()), (false, 1, 43));
    // The end comes earlier now; what is behind it must not come back.
    let at = usize::try_from(small().area_chunk(1) * 512).unwrap();
    bytes[at..at + 16].fill(0);
    let cut = contents(&bytes, 91);
    assert_eq!((cut.exceptions.len(), cut.remains, cut.next_chunk()), (32, true, 35));
    bytes[at] = 7;
    assert!(contents(&bytes, 91).remains, "an old chunk without a new one is no end made of zeros");
}

#[test]
fn a_full_area_at_the_end_of_the_store_ends_the_list() {
    let list: Vec<(u64, u64)> = (0..32).map(|n| (n, 2 + n)).collect();
    assert_eq!(contents(&store(34, &list), 91).exceptions.len(), 32);
}

#[test]
fn what_contradicts_the_format_is_refused_with_its_place() {
    for (list, expected) in [
        (&[(5, 2), (91, 3)][..], "exception store at 528: old chunk is 91, expected below 91"),
        (&[(5, 50)], "exception store at 520: new chunk is 50, expected below 50"),
        (&[(5, u64::MAX)], "new chunk is 18446744073709551615, expected below 50"),
        (&[(5, 1)], "new chunk is 1, which is the header or an area, expected a data chunk"),
        (&[(5, 34)], "new chunk is 34, which is the header or an area"),
        (&[(5, 2), (5, 3)], "old chunk is 5 in two exceptions"),
        (&[(5, 2), (6, 2)], "new chunk is 2 in two exceptions"),
    ] {
        let found = message(&store(50, list), 91);
        assert!(found.contains(expected), "{found}");
    }
    for (at, value, expected) in [
        (0, 0x1234_5678u32, "exception store header at 0: magic is 0x12345678"),
        (8, 2, "version is 2, expected 1"),
        (12, 3, "chunk size is 3, expected a power of two"),
        (12, 0, "chunk size is 0"),
    ] {
        let mut bytes = store(50, &[]);
        put(&mut bytes, at, &value.to_le_bytes());
        let found = message(&bytes, 91);
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn a_store_that_was_cut_inside_its_first_area_cannot_be_read() {
    let bytes = store(50, &[(1, 2)]);
    for size in [0, 100, 512, 1000] {
        let error = read(&bytes[..size].to_vec(), 91).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Io(_)), "{size} bytes: {error}");
    }
    // The largest chunk: areas are read in pieces, and nothing is allocated for what is not there.
    let header = Header { valid: true, layout: Layout::new(CHUNK_SECTORS_MAX).unwrap() }.encode();
    let sparse = Sparse::new(1 << 62, vec![Piece { offset: 0, bytes: header.to_vec() }]);
    assert!(matches!(read(&sparse, 1 << 40).unwrap(), Found::Valid(found) if found.exceptions.is_empty()));
}

proptest! {
    #[test]
    fn what_is_written_is_read(count in 0u64..100, chunk in 0u32..4, step in 1u64..7) {
        let layout = Layout::new(1 << chunk).unwrap();
        let mut disk = Sparse::new(1 << 20, create(layout).to_vec());
        let (mut expected, mut next) = (Vec::new(), layout.data_chunk(0));
        for n in 0..count {
            let exception = Exception { old: n * step, new: next };
            let (area, within) = (n / layout.exceptions_per_area(), n % layout.exceptions_per_area());
            disk.write(layout.area_chunk(area) * layout.chunk_bytes() + within * 16, exception.encode().to_vec());
            expected.push(exception);
            next = layout.data_chunk(next + 1);
        }
        let Found::Valid(found) = read(&disk, 1 << 20).unwrap() else { panic!("not valid") };
        prop_assert_eq!(found.next_chunk(), next);
        prop_assert_eq!(found.exceptions, expected);
    }
}
