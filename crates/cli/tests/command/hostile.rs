//! Clients that mean harm or are broken: while they do their worst, others' verified work goes on, and the server's memory
//! stays within bounds.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support;
use crate::support::nbd::{Raw, fio, load, nbdload};
use crate::support::{Background, Scratch, Server, noise, output, tool, until};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Serves a disk to an honest client, who verifies all it writes, while `attack` goes on (given the socket); and then to
/// another. What the attacker may have written is elsewhere.
fn beside_an_honest_client(attack: impl FnOnce(&Scratch, &Server)) {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let mut server = scratch.serve(["--disk", "disk.img", "--workers", "2"]);
    let mut honest = nbdload();
    honest.arg(format!("unix:{}", scratch.at("socket"))).args(["--verify", "--rw", "randrw", "--depth", "8"]);
    honest.args(["--range", "32m", "--seconds", "4", "--flush-every", "100", "--timeout", "20"]);
    let mut honest = Background::start(&mut honest);
    attack(&scratch, &server);
    assert!(server.is_alive(), "{}", server.said());
    let mut said = String::new();
    honest.stdout().read_to_string(&mut said).expect("text");
    honest.succeed();
    let report: Value = serde_json::from_str(&said).expect("a report");
    assert_eq!((&report["errors"], &report["wrong_blocks"]), (&0.into(), &0.into()), "{report}");
    assert!(report["ios"].as_u64().unwrap() > 1000, "{report}");
    load(&scratch.at("socket"), &["--verify", "--rw", "randrw", "--ios", "200", "--range", "1m"]);
    assert!(server.resident_bytes() < 256 * MIB, "{} MiB", server.resident_bytes() / MIB);
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

/// Whether the server has closed the connection, after whatever it still says.
fn closes(stream: &mut UnixStream) {
    stream.set_read_timeout(Some(support::PATIENCE)).expect("a socket has it");
    let mut rest = [0; 4096];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the server does not hang up: {error}"),
        }
    }
}

#[test]
fn garbage_instead_of_a_handshake_ends_only_its_own_connection() {
    beside_an_honest_client(|scratch, _| {
        for seed in 1..=50 {
            let mut raw = Raw::connect(&scratch.at("socket"));
            // Some begin well.
            let mut bytes = noise(1 + usize::try_from(seed * 37 % 3000).unwrap(), seed);
            if seed % 2 == 0 {
                bytes.splice(
                    0..0,
                    [&3u32.to_be_bytes()[..], b"IHAVEOPT", &[0, 0, 0, u8::try_from(seed % 12).unwrap()]]
                        .concat(),
                );
            }
            // It may hang up before all is sent.
            let _ = raw.stream.write_all(&bytes);
            let _ = raw.stream.shutdown(Shutdown::Write);
            closes(&mut raw.stream);
        }
    });
}

#[test]
fn garbage_instead_of_requests_ends_only_its_own_connection() {
    beside_an_honest_client(|scratch, _| {
        for seed in 1..=50 {
            let mut raw = Raw::open(&scratch.at("socket"));
            raw.stream.write_all(&Raw::request(0, 0, 1, 40 * MIB, 512)).expect("the server reads");
            let _ = raw.stream.write_all(&noise(4096, seed));
            let _ = raw.stream.shutdown(Shutdown::Write);
            closes(&mut raw.stream);
        }
    });
}

#[test]
fn absurd_requests_are_answered_with_errors_or_a_closed_connection() {
    beside_an_honest_client(|scratch, server| {
        let before = server.resident_bytes();
        for (kind, flags, offset, len) in [
            (0, 0, 0, u32::MAX),
            (0, 0, u64::MAX, 4096),
            (0, 0, u64::MAX - 4095, 4096),
            (0, 0, 64 * MIB, 512),
            (0, 0xffff, 0, 512),
            (4, 0, 64 * MIB - 512, 4096),
            (6, 0, u64::MAX, u32::MAX),
            (5, 0, 0, u32::MAX),
            (7, 0, 0, u32::MAX),
            (99, 0, 0, 512),
            (1, 0, 0, u32::MAX),
            (1, 0, 64 * MIB, 512),
        ] {
            let mut raw = Raw::open(&scratch.at("socket"));
            raw.stream.write_all(&Raw::request(kind, flags, 7, offset, len)).expect("the server reads");
            if kind == 1 && len < 4096 {
                raw.stream.write_all(&vec![0; usize::try_from(len).unwrap()]).expect("the server reads");
            }
            let mut answer = [0; 16];
            match raw.stream.read_exact(&mut answer) {
                Ok(()) => {
                    assert_eq!(answer[..4], 0x6744_6698u32.to_be_bytes());
                    assert_ne!(answer[4..8], [0; 4], "request {kind} of {len} at {offset} succeeded");
                }
                Err(error) => assert!(
                    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
                    "request {kind} of {len} at {offset}: {error}"
                ),
            }
        }
        assert!(server.resident_bytes() < before + 64 * MIB, "nothing was allocated for them");
    });
}

#[test]
fn clients_that_vanish_in_mid_request_are_cleaned_up() {
    beside_an_honest_client(|scratch, server| {
        let descriptors =
            || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it runs").count();
        let before = descriptors();
        for turn in 0..100u64 {
            let mut raw = Raw::open(&scratch.at("socket"));
            // In the head, in the data of a write, with answers on their way.
            match turn % 3 {
                0 => raw.stream.write_all(&Raw::request(0, 0, 1, 0, 4096)[..11]).expect("the server reads"),
                1 => {
                    let write = [Raw::request(1, 0, 1, 40 * MIB, 1 << 20), vec![1; 5000]].concat();
                    raw.stream.write_all(&write).expect("the server reads");
                }
                _ => {
                    let reads: Vec<u8> =
                        (0..64).flat_map(|i| Raw::request(0, 0, i, i * 65_536, 65_536)).collect();
                    raw.stream.write_all(&reads).expect("the server reads");
                }
            }
        }
        until("their descriptors are closed", || descriptors() <= before);
    });
}

#[test]
fn clients_that_stop_reading_cost_little_memory_and_nobody_time() {
    beside_an_honest_client(|scratch, server| {
        let mut silent = Vec::new();
        for _ in 0..8 {
            // Two GiB of answers are asked for, and none is read.
            let mut raw = Raw::open(&scratch.at("socket"));
            raw.stream.set_write_timeout(Some(Duration::from_millis(300))).expect("a socket has it");
            let reads: Vec<u8> = (0..2048).flat_map(|i| Raw::request(0, 0, i, 0, 1 << 20)).collect();
            // It stops to listen at some time, as it should.
            let _ = raw.stream.write_all(&reads);
            silent.push(raw);
        }
        // 64 MiB each may be under way, by the server's limits; these are eight.
        let mut most = 0;
        let mut fio = Background::start(&mut fio(
            scratch,
            &scratch.uri("disk/disk.img"),
            &[
                "--rw=randrw",
                "--bs=4k",
                "--iodepth=8",
                "--offset=48M",
                "--size=4M",
                "--verify=crc32c",
                "--verify_fatal=1",
            ],
        ));
        let mut said = String::new();
        let mut stdout = fio.stdout();
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = stdout.read(&mut piece) {
            most = most.max(server.resident_bytes());
            said.push_str(&String::from_utf8_lossy(&piece[..n]));
        }
        fio.succeed();
        assert!(said.contains("err= 0"), "{said}");
        assert!(most < 8 * 64 * MIB + 256 * MIB, "{} MiB", most / MIB);
        drop(silent);
        until("the memory is given back", || server.resident_bytes() < 200 * MIB);
    });
}

#[test]
fn more_clients_than_there_may_be_are_turned_away_and_those_who_are_there_stay() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let server = scratch.serve(["--disk", "disk.img"]);
    let mut first = Raw::open(&scratch.at("socket"));
    let mut others: Vec<UnixStream> = Vec::new();
    let mut refused = 0;
    for _ in 0..300 {
        let mut stream = UnixStream::connect(scratch.at("socket")).expect("it listens");
        stream.set_read_timeout(Some(support::PATIENCE)).expect("a socket has it");
        match stream.read(&mut [0; 18]) {
            Ok(0) | Err(_) => refused += 1,
            Ok(_) => others.push(stream),
        }
    }
    assert_eq!(others.len(), 255, "256 may be there at once");
    assert_eq!(refused, 45);
    first.stream.write_all(&Raw::request(0, 0, 1, 0, 512)).expect("the server reads");
    first.stream.read_exact(&mut [0; 16 + 512]).expect("an answer");
    drop(others);
    until("there is room again", || {
        output(tool("nbdinfo").args(["--size", &scratch.uri("")])).status.success()
    });
    assert!(server.resident_bytes() < 256 * MIB);
    assert!(server.stop().status.success());
}
