//! The handshake against what the protocol demands, message by message.

use super::*;
use crate::nbd::exports::tests::export;
use proptest::prelude::*;

fn exports() -> Exports {
    Exports::of(vec![export("first", 1 << 20), export("second", 2 << 20)]).unwrap()
}

fn session(tls: TlsState) -> Handshake {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(exports(), tls, &mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
    assert!(matches!(handshake.feed(&3u32.to_be_bytes(), 0, &mut out), (4, Progress::More)));
    handshake
}

fn message(number: u32, data: &[u8]) -> Vec<u8> {
    let header = OptionHeader { option: number, len: u32::try_from(data.len()).unwrap() };
    [&header.encode()[..], data].concat()
}

/// Sends one option; gives the replies as (type, data), and what it came to.
fn ask(handshake: &mut Handshake, number: u32, data: &[u8]) -> (Vec<(u32, Vec<u8>)>, Progress) {
    let input = message(number, data);
    let (mut out, mut taken) = (Vec::new(), 0);
    let progress = loop {
        let (n, progress) = handshake.feed(&input[taken..], 0, &mut out);
        taken += n;
        if taken == input.len() || !matches!(progress, Progress::More) {
            break progress;
        }
    };
    (replies(&out, number), progress)
}

fn replies(mut out: &[u8], number: u32) -> Vec<(u32, Vec<u8>)> {
    let mut all = Vec::new();
    while !out.is_empty() {
        assert_eq!(out[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        assert_eq!(out[8..12], number.to_be_bytes());
        let kind = u32::from_be_bytes(out[12..16].try_into().unwrap());
        let len = u32::from_be_bytes(out[16..20].try_into().unwrap()) as usize;
        all.push((kind, out[20..20 + len].to_vec()));
        out = &out[20 + len..];
    }
    all
}

fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
    replies.iter().map(|(kind, _)| *kind).collect()
}

fn name(name: &str) -> Vec<u8> {
    [&u32::try_from(name.len()).unwrap().to_be_bytes()[..], name.as_bytes()].concat()
}

fn go(name_: &str, infos: &[u16]) -> Vec<u8> {
    let count = u16::try_from(infos.len()).unwrap().to_be_bytes();
    [name(name_), count.to_vec(), infos.iter().flat_map(|i| i.to_be_bytes()).collect()].concat()
}

fn contexts(export: &str, queries: &[&str]) -> Vec<u8> {
    let count = u32::try_from(queries.len()).unwrap().to_be_bytes();
    [name(export), count.to_vec(), queries.iter().flat_map(|query| name(query)).collect()].concat()
}

#[test]
fn go_describes_and_chooses_an_export() {
    let mut handshake = session(TlsState::Off);
    let (replies, progress) =
        ask(&mut handshake, option::GO, &go("second", &[info::NAME, info::BLOCK_SIZE, 77]));
    assert_eq!(kinds(&replies), [reply::INFO, reply::INFO, reply::INFO, reply::ACK]);
    assert_eq!(replies[0].1[2..10], (2u64 << 20).to_be_bytes());
    assert_eq!(replies[1].1[2..], *b"second");
    assert_eq!(replies[2].1[2..], [0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
    let Progress::Go(transmission) = progress else { panic!("{progress:?}") };
    assert_eq!(transmission.export().name, "second");
    assert_eq!(transmission.flags() & transmission_flags::SEND_DF, 0, "DF needs structured replies");
}

#[test]
fn info_answers_as_go_does_and_the_handshake_goes_on() {
    let mut handshake = session(TlsState::Off);
    let request = go("", &[info::NAME, info::DESCRIPTION]);
    let (info_replies, progress) = ask(&mut handshake, option::INFO, &request);
    assert!(matches!(progress, Progress::More));
    let (go_replies, progress) = ask(&mut handshake, option::GO, &request);
    assert!(matches!(progress, Progress::Go(_)));
    assert_eq!(info_replies, go_replies);
}

#[test]
fn an_unknown_export_is_an_error_or_for_export_name_the_end() {
    let mut handshake = session(TlsState::Off);
    let (replies, progress) = ask(&mut handshake, option::GO, &go("third", &[]));
    assert_eq!(kinds(&replies), [reply::ERR_UNKNOWN]);
    assert!(matches!(progress, Progress::More));
    let (_, progress) = ask(&mut handshake, option::EXPORT_NAME, b"third");
    assert!(matches!(progress, Progress::Close(CloseReason::NoSuchExport)));
}

#[test]
fn export_name_is_answered_without_a_header_and_padded_unless_agreed_otherwise() {
    for (flags, len) in [(1u32, 134), (3, 10)] {
        let mut out = Vec::new();
        let mut handshake = Handshake::new(exports(), TlsState::Off, &mut out);
        handshake.feed(&flags.to_be_bytes(), 0, &mut out);
        out.clear();
        let (_, progress) = handshake.feed(&message(option::EXPORT_NAME, b""), 0, &mut out);
        assert!(matches!(progress, Progress::Go(_)));
        assert_eq!(out.len(), len);
        assert_eq!(out[..8], (1u64 << 20).to_be_bytes());
    }
}

#[test]
fn list_names_all_exports() {
    let mut handshake = session(TlsState::Off);
    let (replies, _) = ask(&mut handshake, option::LIST, b"");
    assert_eq!(kinds(&replies), [reply::SERVER, reply::SERVER, reply::ACK]);
    assert_eq!(replies[1].1, [&name("second")[..], b"for tests"].concat());
    let (replies, _) = ask(&mut handshake, option::LIST, b"x");
    assert_eq!(kinds(&replies), [reply::ERR_INVALID]);
}

#[test]
fn unknown_options_are_refused_politely_whatever_their_data() {
    let mut handshake = session(TlsState::Off);
    for number in [0, 4, 12, 1000, u32::MAX] {
        let (replies, progress) = ask(&mut handshake, number, &[7; 1000]);
        assert_eq!(kinds(&replies), [reply::ERR_UNSUP], "{number}");
        assert!(matches!(progress, Progress::More));
    }
}

#[test]
fn abort_is_acknowledged_with_or_without_data() {
    for data in [&b""[..], b"because"] {
        let (replies, progress) = ask(&mut session(TlsState::Off), option::ABORT, data);
        assert_eq!(kinds(&replies), [reply::ACK]);
        assert!(matches!(progress, Progress::Close(CloseReason::Aborted)));
    }
}

#[test]
fn an_oversize_option_is_thrown_away_and_a_huge_one_ends_it() {
    let mut handshake = session(TlsState::Off);
    let (replies, progress) = ask(&mut handshake, option::LIST, &vec![0; OPTION_MAX + 1]);
    assert_eq!(kinds(&replies), [reply::ERR_TOO_BIG]);
    assert!(matches!(progress, Progress::More));
    assert_eq!(kinds(&ask(&mut handshake, option::LIST, b"").0).last(), Some(&reply::ACK));
    let header = OptionHeader { option: option::LIST, len: u32::MAX };
    let (_, progress) = handshake.feed(&header.encode(), 0, &mut Vec::new());
    assert!(matches!(progress, Progress::Close(CloseReason::OptionTooLong(u32::MAX))));
}

#[test]
fn a_flood_of_options_ends() {
    let mut handshake = session(TlsState::Off);
    for _ in 0..OPTIONS_MAX {
        assert!(matches!(ask(&mut handshake, 99, b"").1, Progress::More));
    }
    assert!(matches!(ask(&mut handshake, 99, b"").1, Progress::Close(CloseReason::TooManyOptions(_))));
}

#[test]
fn malformed_info_requests_are_invalid_and_nothing_more() {
    let mut handshake = session(TlsState::Off);
    for data in [&b""[..], b"\0\0\0\x09first\0\0", b"\0\0\0\0\0\x02\0\0", b"\0\0\0\0\0\0x"] {
        let (replies, progress) = ask(&mut handshake, option::GO, data);
        assert_eq!(kinds(&replies), [reply::ERR_INVALID], "{data:?}");
        assert!(matches!(progress, Progress::More));
    }
}

#[test]
fn structured_replies_and_extended_headers_are_agreed_upon_once_and_in_that_order() {
    let mut handshake = session(TlsState::Off);
    assert_eq!(kinds(&ask(&mut handshake, option::STRUCTURED_REPLY, b"x").0), [reply::ERR_INVALID]);
    assert_eq!(kinds(&ask(&mut handshake, option::STRUCTURED_REPLY, b"").0), [reply::ACK]);
    assert_eq!(kinds(&ask(&mut handshake, option::STRUCTURED_REPLY, b"").0), [reply::ERR_INVALID]);
    assert_eq!(kinds(&ask(&mut handshake, option::EXTENDED_HEADERS, b"x").0), [reply::ERR_INVALID]);
    assert_eq!(kinds(&ask(&mut handshake, option::EXTENDED_HEADERS, b"").0), [reply::ACK]);
    assert_eq!(kinds(&ask(&mut handshake, option::EXTENDED_HEADERS, b"").0), [reply::ERR_INVALID]);
    assert_eq!(kinds(&ask(&mut handshake, option::STRUCTURED_REPLY, b"").0), [reply::ERR_EXT_HEADER_REQD]);
    let (_, progress) = ask(&mut handshake, option::EXPORT_NAME, b"");
    assert!(matches!(progress, Progress::Close(CloseReason::ExportNameAfterExtended)));
}

#[test]
fn contexts_hold_for_the_export_they_were_chosen_for() {
    for (chosen, opened, holds) in [("first", "first", true), ("", "first", true), ("first", "second", false)]
    {
        let mut handshake = session(TlsState::Off);
        ask(&mut handshake, option::EXTENDED_HEADERS, b"");
        let (replies, _) = ask(
            &mut handshake,
            option::SET_META_CONTEXT,
            &contexts(chosen, &["x-unknown:thing", "base:allocation", "base:allocation"]),
        );
        assert_eq!(kinds(&replies), [reply::META_CONTEXT, reply::ACK]);
        assert_eq!(replies[0].1, [&ALLOCATION_CONTEXT.to_be_bytes()[..], b"base:allocation"].concat());
        let (_, Progress::Go(transmission)) = ask(&mut handshake, option::GO, &go(opened, &[])) else {
            panic!()
        };
        let told = transmission.flags() & transmission_flags::BLOCK_STATUS_PAYLOAD != 0;
        assert_eq!(told, holds, "{chosen} {opened}");
    }
}

#[test]
fn setting_contexts_replaces_them_even_when_it_fails() {
    let mut handshake = session(TlsState::Off);
    let set = contexts("", &["base:allocation"]);
    assert_eq!(kinds(&ask(&mut handshake, option::SET_META_CONTEXT, &set).0), [reply::ERR_INVALID]);
    ask(&mut handshake, option::EXTENDED_HEADERS, b"");
    assert_eq!(
        kinds(&ask(&mut handshake, option::SET_META_CONTEXT, &set).0),
        [reply::META_CONTEXT, reply::ACK]
    );
    let unknown = contexts("nobody", &["base:allocation"]);
    assert_eq!(kinds(&ask(&mut handshake, option::SET_META_CONTEXT, &unknown).0), [reply::ERR_UNKNOWN]);
    let (_, Progress::Go(transmission)) = ask(&mut handshake, option::GO, &go("", &[])) else { panic!() };
    assert_eq!(transmission.flags() & transmission_flags::BLOCK_STATUS_PAYLOAD, 0);
}

#[test]
fn contexts_are_listed_by_none_by_name_and_by_namespace_but_not_chosen_by_it() {
    let mut handshake = session(TlsState::Off);
    ask(&mut handshake, option::STRUCTURED_REPLY, b"");
    for queries in [&[][..], &["base:"], &["base:allocation"]] {
        let (replies, _) = ask(&mut handshake, option::LIST_META_CONTEXT, &contexts("", queries));
        assert_eq!(kinds(&replies), [reply::META_CONTEXT, reply::ACK], "{queries:?}");
        assert_eq!(replies[0].1[..4], [0; 4]);
    }
    for queries in [&[][..], &["base:"], &["qemu:"]] {
        let (replies, _) = ask(&mut handshake, option::SET_META_CONTEXT, &contexts("", queries));
        assert_eq!(kinds(&replies), [reply::ACK], "{queries:?}");
    }
}

#[test]
fn before_tls_nothing_is_told_and_nothing_but_tls_is_served() {
    let mut handshake = session(TlsState::Required);
    for (number, data) in [
        (option::LIST, vec![]),
        (option::INFO, go("first", &[])),
        (option::GO, go("first", &[])),
        (option::GO, go("nobody", &[])),
        (option::STRUCTURED_REPLY, vec![]),
        (option::EXTENDED_HEADERS, vec![]),
        (option::LIST_META_CONTEXT, contexts("first", &[])),
        (option::SET_META_CONTEXT, contexts("first", &["base:allocation"])),
        (99, vec![]),
    ] {
        let (replies, progress) = ask(&mut handshake, number, &data);
        assert_eq!(kinds(&replies), [reply::ERR_TLS_REQD], "{number}");
        assert!(matches!(progress, Progress::More));
    }
    assert_eq!(kinds(&ask(&mut handshake, option::STARTTLS, b"x").0), [reply::ERR_INVALID]);
    let (replies, progress) = ask(&mut handshake, option::STARTTLS, b"");
    assert_eq!(kinds(&replies), [reply::ACK]);
    assert!(matches!(progress, Progress::StartTls));
    let (_, progress) = ask(&mut session(TlsState::Required), option::EXPORT_NAME, b"first");
    assert!(matches!(progress, Progress::Close(CloseReason::NoSuchExport)));
}

// CVE-2021-3716: a man in the middle sends options before the client's STARTTLS.
#[test]
fn what_was_said_before_tls_is_forgotten() {
    // In the worst case: a session that had served the options. (Ours refuses them, as the test above shows.)
    let mut handshake = session(TlsState::Off);
    ask(&mut handshake, option::EXTENDED_HEADERS, b"");
    ask(&mut handshake, option::SET_META_CONTEXT, &contexts("", &["base:allocation"]));
    let mut handshake = handshake.after_tls();
    assert_eq!(kinds(&ask(&mut handshake, option::STARTTLS, b"").0), [reply::ERR_INVALID]);
    let (_, Progress::Go(transmission)) = ask(&mut handshake, option::GO, &go("", &[])) else { panic!() };
    assert_eq!(transmission.style(), Style::Simple);
    assert_eq!(
        transmission.flags() & (transmission_flags::SEND_DF | transmission_flags::BLOCK_STATUS_PAYLOAD),
        0
    );
}

#[test]
fn clear_text_behind_starttls_ends_the_session() {
    let mut handshake = session(TlsState::Required);
    let input = [message(option::STARTTLS, b""), message(option::LIST, b"")].concat();
    let (_, progress) = handshake.feed(&input, 0, &mut Vec::new());
    assert!(matches!(progress, Progress::Close(CloseReason::PlainTextAfterStartTls(16))));
}

#[test]
fn clear_text_behind_starttls_ends_the_session_where_only_what_is_wanted_is_looked_at() {
    let mut handshake = session(TlsState::Required);
    let input = message(option::STARTTLS, b"");
    assert_eq!(handshake.wanted(), input.len());
    let (_, progress) = handshake.feed(&input, 16, &mut Vec::new());
    assert!(matches!(progress, Progress::Close(CloseReason::PlainTextAfterStartTls(16))));
}

#[test]
fn starttls_without_tls_is_not_supported() {
    assert_eq!(kinds(&ask(&mut session(TlsState::Off), option::STARTTLS, b"").0), [reply::ERR_UNSUP]);
}

#[test]
fn a_server_going_down_opens_no_export() {
    let mut handshake = session(TlsState::Off);
    handshake.shut_down();
    assert_eq!(kinds(&ask(&mut handshake, option::GO, &go("", &[])).0), [reply::ERR_SHUTDOWN]);
}

#[test]
fn who_asks_for_an_export_that_cannot_be_opened_just_now_is_answered_when_it_can() {
    let all = exports();
    let withheld = ["first".to_owned()];
    let meta = [&name("first")[..], &0u32.to_be_bytes()].concat();
    for (number, data) in [
        (option::GO, go("first", &[])),
        (option::INFO, go("", &[])),
        (option::LIST_META_CONTEXT, meta.clone()),
        (option::SET_META_CONTEXT, meta),
        (option::EXPORT_NAME, b"first".to_vec()),
        (option::EXPORT_NAME, Vec::new()),
    ] {
        all.withhold_unused(&withheld).unwrap();
        let mut out = Vec::new();
        let mut handshake = Handshake::new(all.clone(), TlsState::Off, &mut out);
        handshake.feed(&3u32.to_be_bytes(), 0, &mut out);
        ask(&mut handshake, option::STRUCTURED_REPLY, &[]);
        // With the start of what the client says next.
        let input = [&message(number, &data)[..], b"IHAVE"].concat();
        let len = input.len() - 5;
        let mut out = Vec::new();
        let mut put_off = |taken: usize, rest: &[u8]| {
            let fed = handshake.feed(rest, 0, &mut out);
            assert!(
                fed.0 == taken && matches!(fed.1, Progress::Later) && out.is_empty(),
                "{number}: {fed:?}"
            );
            assert_eq!(handshake.wanted(), 0);
        };
        put_off(len, &input);
        put_off(0, &input[len..]);
        put_off(0, &[]);
        all.withhold(&withheld, false);
        let (taken, progress) = handshake.feed(&input[len..], 0, &mut out);
        assert!(taken == 0 && matches!(progress, Progress::More | Progress::Go(_)), "{number}: {progress:?}");
        if number == option::EXPORT_NAME {
            assert_eq!(out[..8], (1u64 << 20).to_be_bytes());
        } else {
            assert_eq!(kinds(&replies(&out, number)).last(), Some(&reply::ACK));
        }
    }
    // One that goes down has nothing to wait for.
    all.withhold_unused(&withheld).unwrap();
    let mut handshake = Handshake::new(all, TlsState::Off, &mut Vec::new());
    handshake.feed(&3u32.to_be_bytes(), 0, &mut Vec::new());
    handshake.shut_down();
    assert_eq!(kinds(&ask(&mut handshake, option::GO, &go("first", &[])).0), [reply::ERR_SHUTDOWN]);
}

/// Feeds `input` in pieces of at most `step` bytes; gives what was sent and how it ended.
fn feed_in_steps(input: &[u8], step: usize) -> (Vec<u8>, String) {
    let (mut out, mut at) = (Vec::new(), 0);
    let mut handshake = Handshake::new(exports(), TlsState::Off, &mut out);
    while at < input.len() {
        let end = input.len().min(at.saturating_add(step));
        let (taken, progress) = handshake.feed(&input[at..end], input.len() - end, &mut out);
        at += taken;
        if !matches!(progress, Progress::More) {
            return (out, format!("{progress:?} at {at}"));
        }
    }
    (out, format!("more, {at} taken"))
}

proptest! {
    #[test]
    fn how_the_bytes_are_cut_makes_no_difference(
        options in proptest::collection::vec((0u32..14, proptest::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..20),
        step in 1usize..100,
    ) {
        let mut input = 3u32.to_be_bytes().to_vec();
        for (number, data, sensible) in options {
            let data = match number {
                _ if !sensible => data,
                option::INFO => go("second", &[0, 3]),
                option::GO => go("nobody", &[]),
                option::SET_META_CONTEXT | option::LIST_META_CONTEXT => contexts("first", &["base:"]),
                option::EXPORT_NAME => b"second".to_vec(),
                _ => vec![],
            };
            input.extend(message(number, &data));
        }
        prop_assert_eq!(feed_in_steps(&input, step), feed_in_steps(&input, usize::MAX));
    }

    #[test]
    fn garbage_never_hurts(input: Vec<u8>, tls: bool) {
        let mut out = Vec::new();
        let tls = if tls { TlsState::Required } else { TlsState::Off };
        let mut handshake = Handshake::new(exports(), tls, &mut out);
        let mut at = 0;
        while at < input.len() {
            let (taken, progress) = handshake.feed(&input[at..], 0, &mut out);
            at += taken;
            if !matches!(progress, Progress::More) { break }
            prop_assert!(taken > 0);
        }
    }
}
