//! Calls against bytes put together by hand from the RFCs, replies whole, cut anywhere, and stopped in the middle.

use super::*;
use crate::nfs3::tests::{credential, handle, units};
use crate::nfs3::{CommitReply, FileKind, ReadReply, ReplyError, Stable, Status, WriteReply, decode_mark};

fn some_writes(counts: &[u32]) -> Writes {
    let places = counts.iter().map(|count| Place { offset: 0, count: *count });
    writes(7, &credential(), &handle(), Stable::Unstable, places)
}

/// A call of so many operations, without its record mark.
fn asked(operations: u32, rest: &[&[u8]]) -> Vec<u8> {
    let mut out = units(&[7, 0, 2, 100_003, 4, 1]);
    out.extend(units(&[1, 32, 0, 3]));
    out.extend(b"box\0");
    out.extend(units(&[1000, 100, 2, 4, 24, 0, 0]));
    // No tag, minor version 0.
    out.extend(units(&[0, 0, operations]));
    out.extend(rest.concat());
    out
}

/// PUTFH.
fn put() -> Vec<u8> {
    [&units(&[22, 6])[..], b"handle\0\0"].concat()
}

/// An answer: its head and a tag, the status, the number of results, and these.
fn answer(status: u32, results: u32, rest: &[&[u8]]) -> Vec<u8> {
    let mut out = units(&[9, 1, 0, 0, 0, 0, status, 3]);
    out.extend(b"tag\0");
    out.extend(units(&[results]));
    out.extend(rest.concat());
    out
}

/// Where it begins behind its head.
const AT: usize = 24;
/// The attributes that are asked for.
const WANTED: u32 = 0xc000_0016;

#[test]
fn two_writes_are_what_the_rfcs_say() {
    let places = [Place { offset: 0x1_0000_0200, count: 4096 }, Place { offset: 1024, count: 512 }];
    let call = writes(7, &credential(), &handle(), Stable::FileSync, places.into_iter());
    let first = units(&[38, 0, 0, 0, 0, 1, 0x200, 2, 4096]);
    let second = units(&[38, 0, 0, 0, 0, 0, 1024, 2, 512]);
    let expected = asked(3, &[&put(), &first, &second]);
    let mark = u32::try_from(expected.len()).unwrap() + 4096 + 512;
    assert_eq!(decode_mark(*call.bytes.first_chunk().unwrap()), (mark, true));
    assert_eq!(call.bytes[4..], expected);
    let (first_ends, end) = (call.bytes.len() - second.len(), call.bytes.len());
    assert_eq!(call.heads().collect::<Vec<_>>(), [0..first_ends, first_ends..end]);
}

#[test]
fn calls_are_compounds_of_their_operations() {
    let (who, file) = (credential(), handle());
    let (put, name) = (&put()[..], &[&units(&[15, 3])[..], b"a/b\0"].concat()[..]);
    let (root, ask) = (&units(&[24])[..], &units(&[10, 9, 1, WANTED])[..]);
    for (call, expected) in [
        (find(7, &who, None, None), asked(3, &[root, ask])),
        (find(7, &who, None, Some("a/b")), asked(4, &[root, name, ask])),
        (find(7, &who, Some(&file), None), asked(3, &[put, ask])),
        (find(7, &who, Some(&file), Some("a/b")), asked(4, &[put, name, ask])),
        (access(7, &who, &file, 13), asked(2, &[put, &units(&[3, 13])])),
        (read_link(7, &who, &file), asked(2, &[put, &units(&[27])])),
        (
            read(7, &who, &file, 0x1_0000_0200, 512),
            asked(2, &[put, &units(&[25, 0, 0, 0, 0, 1, 0x200, 512])]),
        ),
        (commit(7, &who, &file), asked(2, &[put, &units(&[5, 0, 0, 0])])),
    ] {
        assert_eq!(call[4..], expected);
        let len = u32::try_from(expected.len()).unwrap();
        assert_eq!(decode_mark(*call.first_chunk().unwrap()), (len, true));
    }
}

#[test]
fn writes_that_do_not_fit_into_a_call_are_refused() {
    let most = some_writes(&[4; WRITES_MAX]).bytes;
    // The number of operations, before PUTFH, whose handle has 16 bytes with its length and number.
    let heads = most.len() - WRITES_MAX * 36;
    assert_eq!(most[heads - 20..heads - 16], units(&[16]));
    for (counts, word) in [
        (&[][..], "0 WRITEs"),
        (&[4; WRITES_MAX + 1], "16 WRITEs"),
        (&[512, 510], "510 bytes would have to be padded"),
        (&[1 << 30, 1 << 30], "2 GiB"),
        (&[1 << 31, 1 << 31], "2 GiB"),
    ] {
        let panic = std::panic::catch_unwind(|| some_writes(counts)).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// Decodes every beginning of a message: each must be short, and the whole must not.
fn every_beginning<T: std::fmt::Debug>(
    message: &[u8],
    decode: impl Fn(&[u8], usize) -> Result<T, ReplyError>,
) -> T {
    for len in 0..message.len() {
        let found = decode(&message[..len], AT);
        assert_eq!(found.expect_err("a reply that was cut"), ReplyError::Short, "{len} bytes");
    }
    decode(message, AT).unwrap()
}

#[test]
fn replies_decode_whole_and_are_short_when_they_are_cut() {
    let put = &units(&[22, 0])[..];
    let message = answer(0, 2, &[put, &units(&[25, 0, 1, 512])]);
    let read = every_beginning(&message, read_reply).unwrap();
    assert_eq!(read, ReadReply { count: 512, eof: true, data_at: message.len() });

    let message = answer(0, 2, &[put, &units(&[3, 0, 31, 13])]);
    assert_eq!(every_beginning(&message, access_reply), Ok(13));

    let message = answer(0, 2, &[put, &units(&[27, 0, 3]), b"a/b\0"]);
    let link = every_beginning(&message, |message, at| Ok(link_reply(message, at)?.map(<[u8]>::to_vec)));
    assert_eq!(link, Ok(b"a/b".to_vec()));

    let message = answer(0, 2, &[put, &units(&[5, 0]), b"verifier"]);
    assert_eq!(every_beginning(&message, commit_reply), Ok(CommitReply { verifier: *b"verifier" }));

    let (first, second) = (units(&[38, 0, 4096, 2]), units(&[38, 0, 512, 0]));
    let message = answer(0, 3, &[put, &first, b"verifier", &second, b"rebooted"]);
    let written = every_beginning(&message, |message, at| writes_reply(message, at, 2));
    let done = [(4096, Stable::FileSync, b"verifier"), (512, Stable::Unstable, b"rebooted")];
    let done = done.map(|(count, committed, verifier)| WriteReply { count, committed, verifier: *verifier });
    assert_eq!(written, WritesReply { done: done.to_vec(), stopped: None });
}

#[test]
fn a_file_is_found_with_a_folder_and_a_name_or_without() {
    let got = [&units(&[10, 0, 6])[..], b"handle\0\0"].concat();
    let all = units(&[9, 0, 1, WANTED, 32, 1, 2, 1, 0x200, 0, 1 << 20, 0, 1 << 19]);
    let limits = (Some(1 << 20), Some(1 << 19));
    // No limits, or one, and a bitmap that is longer than it needs to be.
    let none = units(&[9, 0, 1, 0x16, 16, 1, 2, 1, 0x200]);
    let reads = units(&[9, 0, 2, 0x4000_0016, 0, 24, 1, 2, 1, 0x200, 0, 1 << 20]);
    let writes = units(&[9, 0, 1, 0x8000_0016, 24, 1, 2, 1, 0x200, 0, 1 << 19]);
    for (has_folder, has_name, said, (read_max, write_max)) in [
        (false, false, all.clone(), limits),
        (false, true, all.clone(), limits),
        (true, false, all.clone(), limits),
        (true, true, all, limits),
        (true, true, none, (None, None)),
        (true, true, reads, (limits.0, None)),
        (true, true, writes, (None, limits.1)),
    ] {
        let put = units(&[if has_folder { 22 } else { 24 }, 0]);
        let looked_up = if has_name { units(&[15, 0]) } else { Vec::new() };
        let message = answer(0, 3 + u32::from(has_name), &[&put, &looked_up, &got, &said]);
        let found = every_beginning(&message, |message, at| find_reply(message, at, has_folder, has_name));
        let kind = FileKind::Regular;
        let attributes = Attributes { kind, size: 1 << 32 | 512, handle_expires: true, read_max, write_max };
        assert_eq!(found, Ok(Found { handle: handle(), attributes }));
    }
}

#[test]
fn a_handle_may_be_long_and_a_file_of_any_type() {
    let long = [&units(&[24, 0, 10, 0, 128])[..], &[7; 128]].concat();
    let kinds = [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|kind| {
        let message = answer(0, 3, &[&long, &units(&[9, 0, 1, 0x16, 16, kind, 0, 0, 0])]);
        let found = find_reply(&message, AT, false, false).unwrap().unwrap();
        assert_eq!(found.handle.as_bytes(), [7; HANDLE_MAX]);
        assert!(!found.attributes.handle_expires);
        found.attributes.kind
    });
    let other = FileKind::Other;
    let expected =
        [FileKind::Regular, FileKind::Directory, other, other, FileKind::Link, other, other, other, other];
    assert_eq!(kinds, expected);
}

#[test]
fn a_compound_that_stops_says_what_was_done() {
    let stopped = |message: &[u8]| {
        let written = every_beginning(message, |message, at| writes_reply(message, at, 3));
        (written.done.iter().map(|done| done.count).collect::<Vec<_>>(), written.stopped)
    };
    let put = &units(&[22, 0])[..];
    let write = |count| [&units(&[38, 0, count, 2])[..], b"verifier"].concat();
    let (first, second) = (&write(4096)[..], &write(512)[..]);
    // The last result has the status.
    let message = answer(28, 4, &[put, first, second, &units(&[38, 28])]);
    assert_eq!(stopped(&message), (vec![4096, 512], Some(Status(28))));
    let message = answer(10008, 3, &[put, first, &units(&[38, 10008])]);
    assert_eq!(stopped(&message), (vec![4096], Some(Status::JUKEBOX)));
    let message = answer(5, 2, &[put, &units(&[38, 5])]);
    assert_eq!(stopped(&message), (vec![], Some(Status(5))));
    let message = answer(70, 1, &[&units(&[22, 70])]);
    assert_eq!(stopped(&message), (vec![], Some(Status::STALE)));
    // There was no room for it.
    let message = answer(10018, 2, &[put, first]);
    assert_eq!(stopped(&message), (vec![4096], Some(Status::RESOURCE)));
    let message = answer(10021, 0, &[]);
    assert_eq!(stopped(&message), (vec![], Some(Status(10021))));
}

#[test]
fn what_follows_a_status_is_not_looked_at() {
    let put = &units(&[22, 0])[..];
    let write = [&units(&[38, 0, 512, 2])[..], b"verifier"].concat();
    let message = answer(28, 4, &[put, &write, &units(&[38, 28]), &write]);
    let told = message.len() - write.len();
    for len in 0..message.len() {
        match writes_reply(&message[..len], AT, 3) {
            Err(error) => assert!(error == ReplyError::Short && len < told, "{len} bytes: {error}"),
            Ok(found) => assert!(found.done.len() == 1 && len >= told, "{len} bytes: {found:?}"),
        }
    }
}

#[test]
fn a_status_is_that_of_any_operation() {
    let (put, looked_up, got) = (units(&[22, 0]), units(&[15, 0]), units(&[10, 0, 0]));
    let before: [&[&[u8]]; 4] = [&[], &[&put], &[&put, &looked_up], &[&put, &looked_up, &got]];
    for ((before, operation), results) in before.into_iter().zip([22, 15, 10, 9]).zip(1..) {
        let message = answer(2, results, &[&before.concat(), &units(&[operation, 2])]);
        let found = every_beginning(&message, |message, at| find_reply(message, at, true, true));
        assert_eq!(found, Err(Status::NOENT), "{results} results");
    }
    for (results, rest) in [(0, &[][..]), (1, &[22, 10008]), (1, &[22, 0]), (2, &[22, 0, 5, 10008])] {
        let message = answer(10008, results, &[&units(rest)]);
        assert_eq!(every_beginning(&message, commit_reply), Err(Status::JUKEBOX), "{results} results");
    }
}

/// The answer to [`find`] in the root, with what GETATTR says behind its status.
fn told(attributes: &[u32]) -> ReplyError {
    let message = answer(0, 3, &[&units(&[24, 0, 10, 0, 0, 9, 0]), &units(attributes)]);
    find_reply(&message, AT, false, false).unwrap_err()
}

#[test]
fn what_contradicts_the_protocol_is_named() {
    let result = |results: u32, rest: &[u32]| answer(0, results, &[&units(rest)]);
    let head = units(&[9, 1, 0, 0, 0, 0, 0, 65]);
    let two = |rest: &[u32]| writes_reply(&result(3, rest), AT, 2).unwrap_err();
    let errors = [
        (commit_reply(&head, AT).unwrap_err(), "tag is 65, expected a length of 64"),
        // Too few results.
        (commit_reply(&result(0, &[]), AT).unwrap_err(), "number of results"),
        (read_reply(&result(1, &[22, 0]), AT).unwrap_err(), "number of results"),
        (find_reply(&result(2, &[24, 0, 10, 0, 0]), AT, false, false).unwrap_err(), "number of results"),
        (
            writes_reply(&result(2, &[22, 0, 38, 0, 512, 2, 17, 18]), AT, 2).unwrap_err(),
            "number of results is 2, expected one for each operation",
        ),
        // Those of another operation.
        (commit_reply(&result(2, &[24]), AT).unwrap_err(), "operation is 24, expected 22"),
        (read_reply(&result(2, &[22, 0, 38]), AT).unwrap_err(), "operation is 38, expected 25"),
        (find_reply(&result(3, &[22]), AT, false, false).unwrap_err(), "operation is 22, expected 24"),
        (find_reply(&result(3, &[24]), AT, true, false).unwrap_err(), "operation is 24, expected 22"),
        (find_reply(&result(4, &[24, 0, 10]), AT, false, true).unwrap_err(), "operation is 10, expected 15"),
        (find_reply(&result(3, &[24, 0, 15]), AT, false, false).unwrap_err(), "operation is 15, expected 10"),
        (two(&[22, 0, 38, 0, 512, 2, 17, 18, 10044, 10044]), "operation is 10044, expected 38"),
        // Their fields.
        (read_reply(&result(2, &[22, 0, 25, 0, 2]), AT).unwrap_err(), "eof"),
        (link_reply(&result(2, &[22, 0, 27, 0, 1025]), AT).unwrap_err(), "symbolic link"),
        (two(&[22, 0, 38, 0, 512, 3]), "committed"),
        (find_reply(&result(3, &[24, 0, 10, 0, 129]), AT, false, false).unwrap_err(), "a length of 128"),
        (told(&[9]), "words of a bitmap of attributes is 9"),
        (told(&[1, 0x1e]), "attributes is 0x1e, expected those that were asked for"),
        (told(&[2, 0x16, 2]), "attributes is 0x2, expected those that were asked for"),
        (told(&[0]), "attributes is 0x0, expected type"),
        (told(&[1, 0x14]), "attributes is 0x14, expected type"),
        (told(&[1, 0x12]), "attributes is 0x12, expected fh_expire_type"),
        (told(&[1, 6]), "attributes is 0x6, expected size"),
        (told(&[1, 0x16, 12]), "length of the attributes is 12, expected 16"),
        (told(&[1, 0x16, 24]), "length of the attributes is 24, expected 16"),
        (told(&[1, WANTED, 24]), "length of the attributes is 24, expected 32"),
        (told(&[1, 0x16, 16, 0]), "RPC reply at 80: type of a file is 0"),
        (told(&[1, 0x16, 16, 10]), "RPC reply at 80: type of a file is 10"),
    ];
    for (error, word) in errors {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}
