//! Layouts as Xen's header has them, and what must not pass.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn segments(n: u8) -> Segments {
    let all: Vec<_> =
        (0..n).map(|i| Segment { gref: 0x100 + u32::from(i), first_sect: i % 8, last_sect: 7 }).collect();
    Segments::new(&all).unwrap()
}

fn write(n: u8) -> Request {
    let (id, sector) = (0x1122_3344_5566_7788, 0x99aa_bbcc);
    Request { id, handle: 0x0cc0, sector, kind: Kind::Direct(Direct::Write, segments(n)) }
}

#[test]
fn rings_hold_what_the_macro_of_the_header_computes() {
    for (pages, slots) in [(0, 0), (1, 32), (2, 64), (4, 128), (8, 256), (16, 512)] {
        assert_eq!(Abi::Bits64.slots(pages), slots);
        assert_eq!(Abi::Bits32.slots(pages), slots);
    }
    assert_eq!(Abi::Bits64.slot_at(256 + 3, 256), 64 + 3 * 112);
    assert_eq!(Abi::Bits32.slot_at(u32::MAX, 32), 64 + 31 * 108);
}

#[test]
fn a_write_lies_as_in_the_header_in_both_layouts() {
    let (bytes, len) = write(2).encode(Abi::Bits64);
    assert_eq!(len, 24 + 16);
    assert_eq!(bytes[..4], [1, 2, 0xc0, 0x0c]);
    assert_eq!(
        bytes[8..24],
        [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xcc, 0xbb, 0xaa, 0x99, 0, 0, 0, 0]
    );
    assert_eq!(bytes[24..40], [0, 1, 0, 0, 0, 7, 0, 0, 1, 1, 0, 0, 1, 7, 0, 0]);
    let (bytes, len) = write(2).encode(Abi::Bits32);
    assert_eq!(len, 20 + 16);
    assert_eq!(bytes[4..8], [0x88, 0x77, 0x66, 0x55]);
    assert_eq!(bytes[12..14], [0xcc, 0xbb]);
    assert_eq!(bytes[20..28], [0, 1, 0, 0, 0, 7, 0, 0]);
}

#[test]
fn indirect_requests_and_discards_lie_as_in_the_header() {
    let grefs = std::array::from_fn(|n| 0x1000 + n as u32);
    let kind = Kind::Indirect { data: Data::Write, nr_segments: 300, grefs };
    let request = Request { kind, ..write(0) };
    let (bytes, len) = request.encode(Abi::Bits64);
    assert_eq!(
        (len, &bytes[..4], &bytes[24..32]),
        (60, &[6, 1, 44, 1][..], &[0xc0, 0x0c, 0, 0, 0, 0x10, 0, 0][..])
    );
    assert_eq!(request.operation(), Operation(operation::WRITE), "the answer names what is within");
    let (bytes, len) = request.encode(Abi::Bits32);
    assert_eq!((len, &bytes[20..28]), (56, &[0xc0, 0x0c, 0, 0, 0, 0x10, 0, 0][..]));
    let discard = Request { kind: Kind::Discard { nr_sectors: 77, secure: true }, ..write(0) };
    let (bytes, len) = discard.encode(Abi::Bits64);
    assert_eq!((len, &bytes[..2], bytes[24]), (32, &[5, 1][..], 77));
    assert_eq!(discard.encode(Abi::Bits32).0[20], 77);
}

#[test]
fn a_response_lies_as_in_the_header() {
    let response = Response { id: 0x0102, operation: Operation(6), status: Status::NotSupported };
    let bytes = response.encode();
    assert_eq!(bytes[..12], [2, 1, 0, 0, 0, 0, 0, 0, 6, 0, 0xfe, 0xff]);
    assert_eq!(Response::decode(&bytes[..12]), response);
}

#[test]
fn what_breaks_the_protocol_comes_back_with_its_number() {
    let mut bytes = write(3).encode(Abi::Bits64).0;
    let fault = |bytes: &[u8]| Request::decode(Abi::Bits64, bytes).unwrap_err();
    bytes[1] = 12;
    assert_eq!(fault(&bytes).fault, Fault::SegmentCount { found: 12, least: 1, most: 11 });
    assert_eq!((fault(&bytes).id, fault(&bytes).status()), (write(0).id, Status::Error));
    bytes[1] = 0;
    assert_eq!(fault(&bytes).fault, Fault::SegmentCount { found: 0, least: 1, most: 11 });
    bytes[1] = 3;
    (bytes[24 + 12], bytes[24 + 13]) = (5, 4);
    assert_eq!(fault(&bytes).fault, Fault::Segment { first_sect: 5, last_sect: 4 });
    (bytes[24 + 12], bytes[24 + 13]) = (0, 8);
    assert_eq!(fault(&bytes).fault, Fault::Segment { first_sect: 0, last_sect: 8 });
    bytes[0] = 4;
    assert_eq!((fault(&bytes).fault, fault(&bytes).status()), (Fault::Operation(4), Status::NotSupported));
    (bytes[0], bytes[1]) = (6, 5);
    assert_eq!(fault(&bytes).fault, Fault::IndirectOperation(5));
}

fn flush_of_nothing(direct: Direct) -> Request {
    Request { id: 1, handle: 0, sector: 0, kind: Kind::Direct(direct, Segments::default()) }
}

#[test]
fn flushes_and_barriers_may_be_empty() {
    for direct in [Direct::Flush, Direct::Barrier] {
        let request = flush_of_nothing(direct);
        assert_eq!(Request::decode(Abi::Bits64, &request.encode(Abi::Bits64).0), Ok(request));
    }
}

#[test]
fn an_event_is_wanted_when_its_index_is_passed_also_where_indices_wrap() {
    assert!(wants_event(4, 5, 5));
    assert!(!wants_event(5, 6, 5), "that was passed before");
    assert!(!wants_event(4, 5, 6), "that comes later");
    assert!(wants_event(u32::MAX, 2, 0));
    assert!(!wants_event(7, 7, 7), "nothing was put in");
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        id: u64, sector: u64, handle: u16, n in 1u8..=11, which in 0u8..6, nr in 1u16..=4096, secure: bool,
        wide: bool,
    ) {
        let kind = match which {
            0 => Kind::Direct(Direct::Read, segments(n)),
            1 => Kind::Direct(Direct::Write, segments(n)),
            2 => Kind::Direct(Direct::Barrier, segments(n - 1)),
            3 => Kind::Direct(Direct::Flush, segments(n - 1)),
            4 => Kind::Indirect { data: Data::Read, nr_segments: nr, grefs: [7; 8] },
            _ => Kind::Discard { nr_sectors: sector, secure },
        };
        let request = Request { id, handle, sector, kind };
        let abi = if wide { Abi::Bits64 } else { Abi::Bits32 };
        let (bytes, len) = request.encode(abi);
        prop_assert!(len <= abi.slot_bytes() && len % 4 == 0);
        prop_assert_eq!(Request::decode(abi, &bytes[..len]), Ok(request));
    }

    #[test]
    fn any_bytes_are_a_request_or_say_why_not(bytes: [u8; 112], wide: bool) {
        let abi = if wide { Abi::Bits64 } else { Abi::Bits32 };
        let len = request_len(abi, [bytes[0], bytes[1], bytes[2], bytes[3]]);
        prop_assert!(len <= abi.slot_bytes());
        if let Ok(request) = Request::decode(abi, &bytes[..len]) {
            let (again, _) = request.encode(abi);
            prop_assert_eq!(Request::decode(abi, &again), Ok(request));
        }
    }
}

fn store(pairs: &Pairs) -> impl FnMut(&str) -> Option<String> + use<> {
    let keys: BTreeMap<_, _> = pairs.iter().cloned().collect();
    move |key: &str| keys.get(key).cloned()
}

const LIMITS: Limits = Limits { max_ring_page_order: 3, max_queues: 4 };

#[test]
fn what_a_front_end_publishes_is_read_by_a_back_end() {
    for (pages, queues) in [(1, 1), (8, 1), (1, 2), (4, 4)] {
        let queue = |n: u32| QueueParameters {
            ring_refs: (0..pages).map(|page| 100 * n + page).collect(),
            event_channel: 7 + n,
        };
        let parameters =
            FrontParameters { abi: Abi::Bits32, persistent: true, queues: (0..queues).map(queue).collect() };
        let pairs = parameters.pairs();
        assert_eq!(FrontParameters::read(&mut store(&pairs), LIMITS), Ok(parameters));
        let is_there = |key: &str| pairs.iter().any(|(name, _)| name == key);
        assert_eq!(is_there("ring-ref"), pages == 1 && queues == 1);
        assert_eq!(is_there("queue-1/event-channel"), queues > 1);
        assert_eq!(is_there("ring-page-order"), pages > 1);
    }
}

#[test]
fn the_older_key_of_a_larger_ring_is_understood() {
    let mut pairs: Pairs = vec![pair_of("num-ring-pages", "2"), pair_of("event-channel", "5")];
    pairs.extend([pair_of("ring-ref0", "10"), pair_of("ring-ref1", "11")]);
    let read = FrontParameters::read(&mut store(&pairs), LIMITS).unwrap();
    assert_eq!((read.abi, &*read.queues[0].ring_refs), (Abi::NATIVE, &[10, 11][..]));
}

fn pair_of(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[test]
fn a_front_end_that_asks_for_more_than_was_offered_is_refused() {
    for (pairs, said) in [
        (vec![pair_of("ring-page-order", "4")], "ring-page-order is \"4\", expected a number from 0 to 3"),
        (vec![pair_of("num-ring-pages", "3")], "num-ring-pages is \"3\", expected a power of two"),
        (
            vec![pair_of("multi-queue-num-queues", "5")],
            "multi-queue-num-queues is \"5\", expected a number from 1 to 4",
        ),
        (
            vec![pair_of("protocol", "m68k\u{1b}")],
            "protocol is \"m68k\\u{1b}\", expected x86_64-abi, x86_32-abi or arm-abi",
        ),
        (vec![], "ring-ref is missing, expected a number from 0 to 4294967295"),
        (vec![pair_of("ring-ref", "-1")], "ring-ref is \"-1\", expected a number from 0 to 4294967295"),
        (vec![pair_of("ring-ref", "8")], "event-channel is missing, expected a number from 0 to 4294967295"),
    ] {
        let error = FrontParameters::read(&mut store(&pairs), LIMITS).unwrap_err();
        assert_eq!(error.to_string(), said);
    }
}

#[test]
fn what_a_back_end_publishes_is_read_by_a_front_end() {
    let features = BackFeatures {
        max_ring_page_order: 4,
        max_queues: 8,
        barrier: true,
        flush: true,
        discards: Some(Discards { granularity: 4096, alignment: 512 }),
        persistent: true,
        max_indirect_segments: 256,
    };
    assert_eq!(BackFeatures::read(&mut store(&features.pairs())), Ok(features.clone()));
    let none = BackFeatures::read(&mut store(&Vec::new())).unwrap();
    assert_eq!((none.max_ring_page_order, none.max_queues, none.max_indirect_segments), (0, 1, 0));
    assert!(!none.flush && none.discards.is_none());
    let properties = BackProperties {
        sectors: 1 << 40,
        info: vdisk::READ_ONLY,
        sector_size: 4096,
        physical_sector_size: 4096,
    };
    assert_eq!(BackProperties::read(&mut store(&properties.pairs())), Ok(properties));
    assert!(BackProperties::read(&mut store(&Vec::new())).is_err());
}

#[test]
fn states_are_numbers_and_what_is_none_is_unknown() {
    for state in XenbusState::ALL {
        assert_eq!(XenbusState::from_text(&state.text()), state);
    }
    assert_eq!(XenbusState::from_text("9"), XenbusState::Unknown);
    assert_eq!(XenbusState::from_text("x"), XenbusState::Unknown);
}
