//! Calls against bytes put together by hand from the RFCs, replies whole and cut anywhere.

use super::*;

pub(crate) fn units(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

pub(crate) fn credential() -> Credential {
    Credential::new("box", 1000, 100, &[4, 24])
}

pub(crate) fn handle() -> Handle {
    Handle::new(b"handle").unwrap()
}

/// The attributes of a file of `size` bytes.
fn file(kind: u32, size: u32) -> Vec<u8> {
    units(&[[kind, 0o644, 1, 0, 0, 0, size].as_slice(), &[0; 14]].concat())
}

/// A reply's head, and where the result begins.
fn head(xid: u32) -> Vec<u8> {
    units(&[xid, 1, 0, 0, 0, 0])
}

#[test]
fn a_write_is_what_the_rfcs_say() {
    let call = write(7, &credential(), &handle(), 0x1_0000_0200, 4096, Stable::FileSync);
    let mut expected = units(&[7, 0, 2, 100_003, 3, 7]);
    expected.extend(units(&[1, 32, 0, 3]));
    expected.extend(b"box\0");
    expected.extend(units(&[1000, 100, 2, 4, 24, 0, 0]));
    expected.extend(units(&[6]));
    expected.extend(b"handle\0\0");
    expected.extend(units(&[1, 0x200, 4096, 2, 4096]));
    let mark = u32::try_from(expected.len()).unwrap() + 4096;
    assert_eq!(decode_mark(*call.first_chunk().unwrap()), (mark, true));
    assert_eq!(call[4..], expected);
}

#[test]
fn calls_have_their_programs_versions_and_procedures() {
    let (who, file) = (credential(), handle());
    for (call, program, version, procedure) in [
        (get_port(1, NFS_PROGRAM, VERSION), 100_000, 2, 3),
        (get_address(1, NFS_PROGRAM, VERSION), 100_000, 3, 3),
        (mount(1, &who, "/a"), 100_005, 3, 1),
        (get_attributes(1, &who, &file), 100_003, 3, 1),
        (lookup(1, &who, &file, "a"), 100_003, 3, 3),
        (access(1, &who, &file, 13), 100_003, 3, 4),
        (read_link(1, &who, &file), 100_003, 3, 5),
        (read(1, &who, &file, 0, 512), 100_003, 3, 6),
        (fsinfo(1, &who, &file), 100_003, 3, 19),
        (commit(1, &who, &file), 100_003, 3, 21),
    ] {
        assert_eq!(call[4..28], units(&[1, 0, 2, program, version, procedure]));
        let (len, last) = decode_mark(*call.first_chunk().unwrap());
        assert!(last && len as usize == call.len() - 4 && len % 4 == 0);
    }
}

#[test]
fn what_is_too_long_for_the_protocol_is_cut_or_refused() {
    assert_eq!(Handle::new(&[1; 129]), Err(HandleError(129)));
    assert_eq!(Handle::new(&[1; 128]).unwrap().as_bytes(), [1; 128]);
    let long = "m".repeat(300);
    let call = get_attributes(1, &Credential::new(&long, 0, 0, &[7; 20]), &handle());
    // The credential: stamp, name, user, group, 16 groups.
    assert_eq!(call[32..36], units(&[4 + 4 + 256 + 8 + 4 + 64]));
}

/// Decodes every beginning of a message: each must be short, and the whole must not.
fn every_beginning<T: std::fmt::Debug>(
    message: &[u8],
    decode: impl Fn(&[u8], usize) -> Result<Result<T, Status>, ReplyError>,
) -> Result<T, Status> {
    for len in 0..message.len() {
        let cut = &message[..len];
        match reply(cut) {
            Err(error) => assert_eq!(error, ReplyError::Short, "{len} bytes"),
            Ok(reply) => {
                let found = decode(cut, reply.outcome.unwrap());
                assert_eq!(found.expect_err("a reply that was cut"), ReplyError::Short, "{len} bytes");
            }
        }
    }
    let reply = reply(message).unwrap();
    assert_eq!(reply.xid, 9);
    decode(message, reply.outcome.unwrap()).unwrap()
}

#[test]
fn replies_decode_whole_and_are_short_when_they_are_cut() {
    let with = |rest: &[&[u8]]| [head(9), rest.concat()].concat();
    let (one, none, ok) = (units(&[1]), units(&[0]), units(&[0]));
    let message = with(&[&ok, &file(1, 4096)]);
    let attributes = every_beginning(&message, attributes_reply).unwrap();
    assert_eq!(attributes, Attributes { kind: FileKind::Regular, size: 4096 });

    let message = with(&[&ok, &one, &file(1, 4096), &units(&[512, 1, 512])]);
    let read = every_beginning(&message, read_reply).unwrap();
    assert_eq!(read, ReadReply { count: 512, eof: true, data_at: message.len() });

    let message = with(&[&ok, &one, &[0; 24], &one, &file(1, 0), &units(&[512, 2]), b"verifier"]);
    let written = every_beginning(&message, write_reply).unwrap();
    assert_eq!(written, WriteReply { count: 512, committed: Stable::FileSync, verifier: *b"verifier" });

    let message = with(&[&ok, &none, &none, b"verifier"]);
    assert_eq!(every_beginning(&message, commit_reply).unwrap().verifier, *b"verifier");

    let message = with(&[&ok, &none, &units(&[1 << 20, 2, 3, 1 << 19, 5, 4096, 7, 1, 0])]);
    let info = every_beginning(&message, fsinfo_reply).unwrap();
    let expected = FsInfo { read_max: 1 << 20, write_max: 1 << 19, write_multiple: 4096, file_max: 1 << 32 };
    assert_eq!(info, expected);

    let message = with(&[&ok, &units(&[6]), b"handle\0\0", &units(&[2, 1, 6])]);
    assert_eq!(every_beginning(&message, mount_reply).unwrap(), handle());
    let message = with(&[&ok, &units(&[6]), b"handle\0\0"]);
    assert_eq!(every_beginning(&message, lookup_reply).unwrap(), handle());
    let message = with(&[&ok, &one, &file(5, 3), &units(&[3]), b"a/b\0"]);
    for len in 0..message.len() {
        assert_eq!(link_reply(&message[..len], 24).unwrap_err(), ReplyError::Short, "{len} bytes");
    }
    assert_eq!(link_reply(&message, 24).unwrap(), Ok(b"a/b".as_slice()));
    let message = with(&[&ok, &none, &units(&[13])]);
    assert_eq!(every_beginning(&message, access_reply).unwrap(), 13);
    let message = with(&[&units(&[69])]);
    assert_eq!(every_beginning(&message, commit_reply), Err(Status(69)));
}

#[test]
fn refusals_are_told_apart() {
    let refusal = |values: &[u32]| reply(&units(values)).unwrap().outcome.unwrap_err();
    assert_eq!(refusal(&[9, 1, 0, 0, 0, 1]), Refusal::ProgramUnavailable);
    assert_eq!(refusal(&[9, 1, 0, 0, 0, 2, 2, 2]), Refusal::ProgramVersion);
    assert_eq!(refusal(&[9, 1, 1, 0, 2, 2]), Refusal::RpcVersion);
    assert_eq!(refusal(&[9, 1, 1, 1, 5]), Refusal::Credential(5));
}

#[test]
fn what_contradicts_the_protocol_is_named() {
    let result = |values: &[u32]| [head(9), units(values)].concat();
    let errors = [
        (reply(&units(&[9, 0])).unwrap_err(), "message type"),
        (reply(&units(&[9, 1, 0, 0, 401])).unwrap_err(), "verifier"),
        (mount_reply(&result(&[0, 65]), 24).unwrap_err(), "a length of 64"),
        (lookup_reply(&result(&[0, 65]), 24).unwrap_err(), "a length of 64"),
        (mount_reply(&result(&[0, 0, 65]), 24).unwrap_err(), "auth_flavors"),
        (read_reply(&result(&[0, 0, 512, 2]), 24).unwrap_err(), "eof"),
        (read_reply(&result(&[0, 0, 512, 0, 513]), 24).unwrap_err(), "length of the data"),
        (write_reply(&result(&[0, 0, 0, 512, 3]), 24).unwrap_err(), "committed"),
        (attributes_reply(&result(&[0, 8]), 24).unwrap_err(), "type of a file"),
        (port_reply(&result(&[65536]), 24).unwrap_err(), "port"),
        (address_reply(&result(&[129]), 24).unwrap_err(), "a length of 128"),
        (address_reply(&[&result(&[4])[..], b":::1"].concat(), 24).unwrap_err(), ":::1"),
        (address_reply(&[&result(&[8])[..], b"::.1.256"].concat(), 24).unwrap_err(), "::.1.256"),
        (address_reply(&[&result(&[4])[..], b"\xff.1\n"].concat(), 24).unwrap_err(), "\\n"),
        (link_reply(&result(&[0, 0, 1025]), 24).unwrap_err(), "symbolic link"),
    ];
    for (error, word) in errors {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

#[test]
fn an_address_of_ipv6_tells_the_port() {
    let reply = |text: &str| {
        let mut out = xdr::Writer(head(9));
        out.opaque(text.as_bytes());
        address_reply(&out.0, 24)
    };
    let ports = ["", "::.8.1", "::1.0.111", "fe80::1%eth0.255.255"].map(|text| reply(text).unwrap());
    assert_eq!(ports, [0, 2049, 111, 65535]);
}

#[test]
fn a_status_has_its_name_and_linuxs_number() {
    assert_eq!(Status(69).to_string(), "NFSERR_DQUOT");
    assert_eq!(Status(69).errno(), 122);
    assert_eq!(Status(28).errno(), 28);
    assert_eq!(Status::STALE.errno(), 116);
    assert_eq!((Status(4711).errno(), Status(4711).to_string()), (5, "status 4711".to_owned()));
    // Version 4's.
    for (number, name, errno) in [
        (10012, "LOCKED", 16),
        (10014, "FHEXPIRED", 116),
        (10029, "SYMLINK", 40),
        (10047, "ADMIN_REVOKED", 5),
    ] {
        assert_eq!((Status(number).to_string(), Status(number).errno()), (format!("NFSERR_{name}"), errno));
    }
}

#[test]
fn some_statuses_ask_for_patience() {
    let patient = (0..11_000).filter(|number| Status(*number).asks_for_patience());
    assert_eq!(patient.collect::<Vec<_>>(), [10008, 10013, 10018]);
}
