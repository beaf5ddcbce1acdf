//! Requests against what the protocol demands of their answers.

use super::*;
use crate::nbd::exports::Exports;
use crate::nbd::exports::tests::export;
use proptest::prelude::*;

const SIZE: u64 = 10 << 30;

fn session(style: Style) -> Transmission {
    session_of(export("x", SIZE), style)
}

fn session_of(export: Export, style: Style) -> Transmission {
    let mut flags = export.flags;
    if style != Style::Simple {
        flags |= transmission_flags::SEND_DF;
    }
    let opened = Exports::of(vec![export]).unwrap().find(b"").unwrap();
    Transmission::new(opened, style, flags, style != Style::Simple)
}

fn ask(
    session: &mut Transmission,
    command: u16,
    flags: u16,
    offset: u64,
    len: u64,
) -> Result<Step, CloseReason> {
    let request = Request { flags, command, cookie: 0xc0ffee, offset, len };
    match session.style() {
        Style::Extended => session.request(&request.encode_extended()),
        _ => session.request(&request.encode_compact().expect("a compact length")),
    }
}

/// The errno and the payload to skip of a request that is answered at once.
fn refusal(session: &mut Transmission, command: u16, flags: u16, offset: u64, len: u64) -> (u32, u32) {
    match ask(session, command, flags, offset, len) {
        Ok(Step::Answer(refusal)) => (errno(refusal.reply.as_bytes()), refusal.skip),
        other => panic!("expected a refusal: {other:?}"),
    }
}

fn errno(reply: &[u8]) -> u32 {
    let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap());
    match word(0) {
        0x6744_6698 => word(4),
        0x668e_33ef if reply[6] & 0x80 != 0 => word(20),
        0x6e8a_278c if reply[6] & 0x80 != 0 => word(32),
        _ => 0,
    }
}

fn submitted(session: &mut Transmission, command: u16, flags: u16, offset: u64, len: u64) -> Submit {
    match ask(session, command, flags, offset, len) {
        Ok(Step::Submit(submit)) => submit,
        other => panic!("expected it to be let through: {other:?}"),
    }
}

const STYLES: [Style; 3] = [Style::Simple, Style::Structured, Style::Extended];

/// The flag that a write needs in a style.
fn payload(style: Style) -> u16 {
    if style == Style::Extended { flag::PAYLOAD_LEN } else { 0 }
}

#[test]
fn commands_become_what_they_say() {
    for style in STYLES {
        let s = &mut session(style);
        assert_eq!(submitted(s, command::READ, 0, 4096, 512).kind, Kind::Read);
        let write = submitted(s, command::WRITE, flag::FUA | payload(style), 1, 3);
        assert_eq!((write.kind, write.offset, write.len), (Kind::Write { fua: true }, 1, 3));
        assert_eq!(submitted(s, command::FLUSH, 0, 0, 0).kind, Kind::Flush);
        assert_eq!(submitted(s, command::TRIM, 0, 0, 1 << 30).kind, Kind::Trim { fua: false });
        let zeroes =
            submitted(s, command::WRITE_ZEROES, flag::NO_HOLE | flag::FAST_ZERO | flag::FUA, 0, 1 << 31);
        assert_eq!(zeroes.kind, Kind::WriteZeroes { fua: true, no_hole: true, fast: true });
        assert!(matches!(ask(s, command::DISC, 0, 0, 0), Ok(Step::Disconnect)));
    }
}

#[test]
fn extended_lengths_reach_over_the_whole_export() {
    let s = &mut session(Style::Extended);
    assert_eq!(submitted(s, command::WRITE_ZEROES, 0, 0, SIZE).len, SIZE);
    assert_eq!(submitted(s, command::TRIM, 0, 0, SIZE).len, SIZE);
    assert_eq!(submitted(s, command::BLOCK_STATUS, 0, 0, SIZE).kind, Kind::BlockStatus { one: false });
}

#[test]
fn what_reaches_beyond_the_end_is_refused_with_the_protocols_errors() {
    for style in STYLES {
        let s = &mut session(style);
        for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 2), (u64::MAX - 1, 0x00ff_ffff)] {
            let len32 = u32::try_from(len).unwrap();
            assert_eq!(refusal(s, command::READ, 0, offset, len), (22, 0));
            assert_eq!(refusal(s, command::TRIM, 0, offset, len), (22, 0));
            assert_eq!(refusal(s, command::CACHE, 0, offset, len), (22, 0));
            assert_eq!(refusal(s, command::WRITE, payload(style), offset, len), (28, len32));
            assert_eq!(refusal(s, command::WRITE_ZEROES, 0, offset, len), (28, 0));
        }
    }
}

#[test]
fn a_read_only_export_refuses_writes_and_skips_their_payload() {
    let mut read_only = export("x", SIZE);
    read_only.flags = transmission_flags::HAS_FLAGS | transmission_flags::READ_ONLY;
    for style in STYLES {
        let s = &mut session_of(read_only.clone(), style);
        assert_eq!(refusal(s, command::WRITE, payload(style), 0, 4096), (1, 4096));
        assert_eq!(refusal(s, command::TRIM, 0, 0, 4096), (1, 0));
        assert_eq!(refusal(s, command::WRITE_ZEROES, 0, 0, 4096), (1, 0));
        submitted(s, command::READ, 0, 0, 4096);
        submitted(s, command::FLUSH, 0, 0, 0);
    }
}

#[test]
fn unknown_commands_and_flags_are_invalid() {
    for style in STYLES {
        let s = &mut session(style);
        for number in [8, 9, 100, u16::MAX] {
            assert_eq!(refusal(s, number, 0, 0, 0).0, 22);
        }
        assert_eq!(refusal(s, command::READ, 1 << 15, 0, 512).0, 22);
        assert_eq!(refusal(s, command::READ, flag::NO_HOLE, 0, 512).0, 22);
        assert_eq!(refusal(s, command::WRITE, payload(style) | flag::DF, 0, 512), (22, 512));
        assert_eq!(refusal(s, command::CACHE, flag::REQ_ONE, 0, 512).0, 22);
        assert_eq!(refusal(s, command::FLUSH, 0, 0, 1).0, 22);
    }
    assert_eq!(refusal(&mut session(Style::Simple), command::READ, flag::DF, 0, 512).0, 22);
    submitted(&mut session(Style::Structured), command::READ, flag::DF, 0, 512);
}

#[test]
fn too_large_is_an_error_for_reads_and_the_end_for_payloads() {
    let over = u64::from(PAYLOAD_MAX) + 1;
    for style in STYLES {
        let s = &mut session(style);
        assert_eq!(refusal(s, command::READ, 0, 0, over), (75, 0));
        submitted(s, command::READ, 0, 0, over - 1);
        let too_long = ask(s, command::WRITE, payload(style), 0, over);
        assert_eq!(too_long.unwrap_err(), CloseReason::PayloadTooLong(over));
    }
    let s = &mut session(Style::Extended);
    assert!(ask(s, 77, flag::PAYLOAD_LEN, 0, over).is_err());
}

#[test]
fn nothing_is_done_and_nothing_harmed_by_empty_requests() {
    for style in STYLES {
        let s = &mut session(style);
        for number in [command::READ, command::TRIM, command::WRITE_ZEROES, command::CACHE] {
            assert_eq!(refusal(s, number, 0, 4096, 0), (0, 0), "{number}");
        }
        assert_eq!(refusal(s, command::WRITE, payload(style), 4096, 0), (0, 0));
    }
}

#[test]
fn with_extended_headers_the_payload_flag_decides_whether_bytes_follow() {
    let s = &mut session(Style::Extended);
    assert_eq!(refusal(s, command::WRITE, 0, 0, 4096), (22, 0));
    assert_eq!(refusal(s, command::READ, flag::PAYLOAD_LEN, 0, 4096), (22, 4096));
    assert_eq!(refusal(s, 99, flag::PAYLOAD_LEN, 0, 1 << 20), (22, 1 << 20));
    let s = &mut session(Style::Structured);
    assert_eq!(refusal(s, command::WRITE, flag::PAYLOAD_LEN, 0, 4096), (22, 4096));
}

#[test]
fn block_status_needs_its_context_and_a_length() {
    let mut none = session(Style::Structured);
    none.allocation = false;
    assert_eq!(refusal(&mut none, command::BLOCK_STATUS, 0, 0, 4096).0, 22);
    let s = &mut session(Style::Structured);
    assert_eq!(refusal(s, command::BLOCK_STATUS, 0, 0, 0).0, 22);
    assert_eq!(
        submitted(s, command::BLOCK_STATUS, flag::REQ_ONE, 0, 1).kind,
        Kind::BlockStatus { one: true }
    );
}

#[test]
fn block_status_with_a_payload_is_for_the_one_context_that_there_is() {
    let s = &mut session(Style::Extended);
    let with_payload = |s: &mut Transmission, len: u64, context: u32| {
        assert!(matches!(ask(s, command::BLOCK_STATUS, flag::PAYLOAD_LEN, 4096, 12), Ok(Step::More)));
        assert_eq!(s.wanted(), 12);
        let bytes = [&len.to_be_bytes()[..], &context.to_be_bytes()].concat();
        s.request(&bytes).unwrap()
    };
    let Step::Submit(submit) = with_payload(s, 1 << 33, ALLOCATION_CONTEXT) else { panic!() };
    assert_eq!((submit.offset, submit.len), (4096, 1 << 33));
    assert_eq!(s.wanted(), 32);
    for (len, context) in [(512, 7), (0, ALLOCATION_CONTEXT), (SIZE, ALLOCATION_CONTEXT)] {
        let Step::Answer(refusal) = with_payload(s, len, context) else { panic!() };
        assert_eq!((errno(refusal.reply.as_bytes()), refusal.skip), (22, 0));
    }
    // None, two (so one unknown or twice), and no whole number of contexts.
    for len in [8, 16, 13, 1 << 20] {
        let skip = u32::try_from(len).unwrap();
        assert_eq!(refusal(s, command::BLOCK_STATUS, flag::PAYLOAD_LEN, 0, len), (22, skip));
    }
}

#[test]
fn going_down_refuses_everything_and_still_skips_payloads() {
    for style in STYLES {
        let s = &mut session(style);
        s.shut_down();
        assert_eq!(refusal(s, command::READ, 0, 0, 512), (108, 0));
        assert_eq!(refusal(s, command::WRITE, payload(style), 0, 512), (108, 512));
        assert!(matches!(ask(s, command::DISC, 0, 0, 0), Ok(Step::Disconnect)));
    }
}

#[test]
fn a_wrong_magic_number_is_the_end() {
    for style in STYLES {
        let s = &mut session(style);
        let bytes = vec![0x25; s.wanted()];
        assert!(matches!(s.request(&bytes), Err(CloseReason::Malformed(_))));
    }
}

#[test]
fn not_supported_is_only_for_those_who_asked_for_fast_zeroes() {
    let s = session(Style::Simple);
    let zeroes = |fast| Submit {
        kind: Kind::WriteZeroes { fua: false, no_hole: false, fast },
        cookie: 0,
        offset: 0,
        len: 512,
    };
    assert_eq!(errno(s.failure(&zeroes(true), WireErrno::NotSup).as_bytes()), 95);
    assert_eq!(errno(s.failure(&zeroes(false), WireErrno::NotSup).as_bytes()), 5);
}

proptest! {
    #[test]
    fn whatever_is_let_through_lies_within_the_export(
        flags: u16, command in 0u16..10, offset: u64, len: u64, near in any::<bool>(), style in 0usize..3,
    ) {
        let style = STYLES[style];
        let (offset, len) = if near { (SIZE.wrapping_sub(offset % 10_000), len % 20_000) } else { (offset, len) };
        let len = if style == Style::Extended { len } else { len & 0xffff_ffff };
        let s = &mut session(style);
        match ask(s, command, flags & 0x3f, offset, len) {
            Ok(Step::Submit(submit)) => {
                prop_assert!(submit.offset.checked_add(submit.len).is_some_and(|end| end <= SIZE));
                prop_assert!(submit.len > 0 || submit.kind == Kind::Flush);
                if matches!(submit.kind, Kind::Read | Kind::Write { .. }) {
                    prop_assert!(submit.len <= u64::from(PAYLOAD_MAX));
                }
            }
            Ok(Step::Answer(refusal)) => prop_assert!(refusal.skip <= PAYLOAD_MAX),
            Ok(Step::More | Step::Disconnect) | Err(_) => {}
        }
    }
}
