//! Clients that lie, flood, stop reading or vanish: each costs itself, and nobody else.

mod nbd_support;

use std::io::{Read, Write};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use blockwork_engine::Nanos;
use nbd_support::{Disk, Raw, Rig, request, until};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;

/// The server still does its work for others.
fn still_serves(rig: &Rig) {
    let mut raw = Raw::go(rig);
    raw.write(&[request(0, WRITE, 1, 8192, 4096), vec![0x5a; 4096]].concat());
    assert_eq!(raw.reply(), (0, 1));
    raw.request(0, READ, 2, 8192, 4096);
    assert_eq!(raw.reply(), (0, 2));
    assert_eq!(raw.read(4096), [0x5a; 4096]);
    raw.request(0, DISC, 0, 0, 0);
    assert!(raw.is_closed());
}

/// All connections are gone again.
fn nobody_left(rig: &Rig) {
    until("no connection is left", || rig.server.counts().connections == 0);
}

/// The process' resident memory, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Memory is the process's: who measures it runs alone.
static MEASURED: RwLock<()> = RwLock::new(());

fn alone() -> RwLockWriteGuard<'static, ()> {
    MEASURED.write().unwrap_or_else(PoisonError::into_inner)
}

fn beside_others() -> RwLockReadGuard<'static, ()> {
    MEASURED.read().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn garbage_at_any_stage_ends_the_connection() {
    let _beside = beside_others();
    let rig = Rig::new(&[Disk::new("d", "memory:16M")]);
    let garbage: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let stages: [fn(&Rig) -> Raw; 3] = [
        Raw::connect,
        |rig| {
            let mut raw = Raw::connect(rig);
            raw.write(&3u32.to_be_bytes());
            raw
        },
        Raw::go,
    ];
    for stage in stages {
        let mut raw = stage(&rig);
        // The server may close before it has taken all of it.
        let _ = raw.stream.write_all(&garbage);
        assert!(raw.is_closed());
    }
    nobody_left(&rig);
    still_serves(&rig);
}

#[test]
fn half_a_message_and_then_nothing_leaves_nothing_behind() {
    let _beside = beside_others();
    let rig = Rig::new(&[Disk::new("d", "memory:16M")]);
    let write = [request(0, WRITE, 1, 0, 1 << 20), vec![1; 100_000]].concat();
    for cut in [1, 27, 28, 29, 5000, 40_000, write.len()] {
        let mut raw = Raw::go(&rig);
        raw.write(&write[..cut]);
        drop(raw);
    }
    for cut in 0..10 {
        let mut raw = Raw::connect(&rig);
        raw.write(&[&3u32.to_be_bytes()[..], b"IHAVEOPT"].concat()[..cut]);
        drop(raw);
    }
    nobody_left(&rig);
    // What was cut off was not written.
    let mut raw = Raw::go(&rig);
    raw.request(0, READ, 1, 0, 4096);
    assert_eq!(raw.reply(), (0, 1));
    assert_eq!(raw.read(4096), [0; 4096]);
    still_serves(&rig);
}

#[test]
fn a_client_that_vanishes_with_requests_under_way_disturbs_nobody() {
    let _beside = beside_others();
    let rig = Rig::with(&[Disk::new("d", "memory:64M")], 2, |_| {});
    for _ in 0..20 {
        let mut raw = Raw::go(&rig);
        for i in 0..32 {
            raw.request(0, READ, i, i * 65536, 1 << 20);
        }
        drop(raw);
    }
    nobody_left(&rig);
    still_serves(&rig);
}

#[test]
fn a_client_that_does_not_read_is_held_at_its_limit_while_others_go_on() {
    let _alone = alone();
    let rig = Rig::new(&[Disk::new("d", "memory:256M")]);
    let before = resident();
    let mut stuck = Vec::new();
    for _ in 0..2 {
        let mut raw = Raw::go(&rig);
        for i in 0..32 {
            raw.request(0, READ, i, 0, 32 << 20);
        }
        stuck.push(raw);
    }
    for _ in 0..10 {
        still_serves(&rig);
    }
    // Two clients asked for 2 GiB together. Each may hold 64 MiB and the request that was let through at the limit.
    let grown = resident().saturating_sub(before);
    assert!(grown < (2 * (64 + 32 + 8)) << 20, "{} MiB", grown >> 20);
    // When it reads after all, everything is there.
    let mut raw = stuck.pop().unwrap();
    for i in 0..32 {
        assert_eq!(raw.reply(), (0, i));
        let mut left = 32 << 20;
        let mut buffer = vec![0; 1 << 20];
        while left > 0 {
            let n = raw.stream.read(&mut buffer).unwrap();
            assert!(n > 0);
            left -= n.min(left);
            if left < buffer.len() {
                buffer.truncate(left.max(1));
            }
        }
    }
    drop((raw, stuck));
    nobody_left(&rig);
}

#[test]
fn answers_to_errors_that_nobody_reads_are_bounded_too() {
    let _alone = alone();
    let rig = Rig::new(&[Disk::new("d", "memory:1M")]);
    let mut raw = Raw::go(&rig);
    let before = resident();
    raw.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let flood = request(0, 99, 7, 0, 0).repeat(1000);
    let mut sent = 0usize;
    // Until the server stops taking them.
    while raw.stream.write_all(&flood).is_ok() {
        sent += flood.len();
        assert!(sent < 1 << 30, "the server takes requests without end from someone who reads no answer");
    }
    assert!(resident().saturating_sub(before) < 32 << 20);
    still_serves(&rig);
}

#[test]
fn a_flood_of_options_and_huge_options_end_the_connection() {
    let _beside = beside_others();
    let rig = Rig::new(&[Disk::new("d", "memory:1M")]);
    let mut raw = Raw::connect(&rig);
    raw.write(&3u32.to_be_bytes());
    let list = [&b"IHAVEOPT"[..], &3u32.to_be_bytes(), &0u32.to_be_bytes()].concat().repeat(5000);
    let _ = raw.stream.write_all(&list);
    assert!(raw.is_closed());
    for len in [(1u32 << 20) + 1, u32::MAX] {
        let mut raw = Raw::connect(&rig);
        raw.write(&3u32.to_be_bytes());
        raw.write(&[&b"IHAVEOPT"[..], &7u32.to_be_bytes(), &len.to_be_bytes()].concat());
        assert!(raw.is_closed());
    }
    // Oversize, but not absurd: answered, and the session goes on.
    let mut raw = Raw::connect(&rig);
    raw.write(&3u32.to_be_bytes());
    raw.option(7, &vec![0; 70_000]);
    assert_eq!(raw.option_reply().0, 1 << 31 | 9);
    raw.option(7, &[0; 6]);
    assert_eq!(raw.option_reply().0, 3);
    nobody_left_after(raw, &rig);
}

fn nobody_left_after(raw: Raw, rig: &Rig) {
    drop(raw);
    nobody_left(rig);
}

// nbdkit CVE-2019-14850: a client that only connects must cost nothing behind the handshake.
#[test]
fn a_handshake_that_stands_still_is_ended_and_touches_no_disk() {
    let _beside = beside_others();
    let rig =
        Rig::with(&[Disk::new("d", "memory:1M")], 1, |config| config.handshake_time = Nanos::millis(100));
    let mut silent = Raw::connect(&rig);
    let mut slow = Raw::connect(&rig);
    slow.write(&3u32.to_be_bytes());
    slow.option(3, b"");
    assert!(silent.is_closed());
    assert!(slow.is_closed());
    assert!(rig.stats.snapshot()[0].counts.iter().all(|(_, n)| *n == 0));
    // Those who have finished it may take their time.
    let mut done = Raw::go(&rig);
    std::thread::park_timeout(Duration::from_millis(250));
    done.request(0, READ, 1, 0, 512);
    assert_eq!(done.reply(), (0, 1));
}

// nbdkit CVE-2019-14851 and 2021: options in any order never hit an assertion.
#[test]
fn options_in_any_order_are_answered() {
    let _beside = beside_others();
    let rig = Rig::new(&[Disk::new("d", "memory:1M")]);
    let meta =
        [&0u32.to_be_bytes()[..], &1u32.to_be_bytes(), &15u32.to_be_bytes(), b"base:allocation"].concat();
    let options: [(u32, &[u8]); 7] =
        [(3, b""), (6, &[0; 6]), (8, b""), (9, &meta), (10, &meta), (11, b""), (77, b"whatever")];
    let mut order: Vec<usize> = (0..options.len()).collect();
    for round in 0..50usize {
        let n = order.len();
        order.swap(round % n, (round * 5 + 3) % n);
        let mut raw = Raw::connect(&rig);
        raw.write(&3u32.to_be_bytes());
        for i in &order {
            let (number, data) = options[*i];
            raw.option(number, data);
            loop {
                let (kind, _) = raw.option_reply();
                if kind == 1 || kind & 1 << 31 != 0 {
                    break;
                }
            }
        }
        raw.option(2, b"");
        assert_eq!(raw.option_reply().0, 1);
        assert!(raw.is_closed());
    }
    nobody_left(&rig);
}

#[test]
fn a_payload_beyond_the_limit_ends_the_connection_and_a_refused_one_is_skipped() {
    let _beside = beside_others();
    let rig = Rig::new(&[Disk::new("d", "memory:64M")]);
    let mut raw = Raw::go(&rig);
    raw.request(0, WRITE, 1, 0, (32 << 20) + 1);
    assert!(raw.is_closed());
    let mut raw = Raw::go(&rig);
    let beyond = (64 << 20) - 512;
    raw.write(
        &[request(0, WRITE, 1, beyond, 1 << 20), request(0, WRITE, 7, 0, 100).repeat(40_000)].concat()
            [..28 + (1 << 20)],
    );
    assert_eq!(raw.reply(), (28, 1));
    raw.request(0, READ, 2, 0, 512);
    assert_eq!(raw.reply(), (0, 2));
    assert_eq!(raw.read(512), [0; 512], "bytes of a refused payload were taken for requests");
}

#[test]
fn more_clients_than_allowed_are_turned_away_until_one_leaves() {
    let _beside = beside_others();
    let rig = Rig::with(&[Disk::new("d", "memory:1M")], 2, |config| config.connections_max = 3);
    let clients: Vec<Raw> = (0..3).map(|_| Raw::go(&rig)).collect();
    let mut fourth = rig.connect();
    assert_eq!(fourth.read(&mut [0; 10]).unwrap(), 0);
    assert_eq!(rig.server.counts().refused, 1);
    drop(clients);
    nobody_left(&rig);
    still_serves(&rig);
}

#[test]
fn requests_before_a_disconnect_are_finished_and_answered() {
    let _beside = beside_others();
    let rig = Rig::new(&[Disk::new("d", "memory:16M")]);
    let mut raw = Raw::go(&rig);
    let all: Vec<u8> = (0..64)
        .flat_map(|i| [request(0, WRITE, i, i * 4096, 4096), vec![i as u8; 4096]].concat())
        .chain(request(0, DISC, 0, 0, 0))
        .collect();
    raw.write(&all);
    let mut cookies: Vec<u64> =
        (0..64).map(|_| raw.reply()).map(|(errno, cookie)| (assert_eq!(errno, 0), cookie).1).collect();
    cookies.sort();
    assert_eq!(cookies, (0..64).collect::<Vec<_>>());
    assert!(raw.is_closed());
}

// QEMU CVE-2024-7409: a client that holds its socket while the server stops.
#[test]
fn a_stop_waits_for_clients_that_hold_the_socket_only_so_long() {
    let _beside = beside_others();
    let mut rig =
        Rig::with(&[Disk::new("d", "memory:64M")], 2, |config| config.linger_time = Nanos::millis(300));
    let idle = Raw::go(&rig);
    let handshaking = Raw::connect(&rig);
    let mut stuck = Raw::go(&rig);
    for i in 0..32 {
        stuck.request(0, READ, i, 0, 32 << 20);
    }
    let start = std::time::Instant::now();
    for result in rig.stop() {
        result.unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(!rig.socket().exists(), "the socket's file is removed");
    drop((idle, handshaking, stuck));
}

#[test]
fn a_stop_answers_what_was_asked_and_flushes_it() {
    let _beside = beside_others();
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let mut rig = Rig::new(&[Disk::new("d", image.display().to_string())]);
    let mut raw = Raw::go(&rig);
    for i in 0..256u64 {
        raw.write(&[request(0, WRITE, i, i * 65536, 65536), vec![i as u8; 65536]].concat());
    }
    // The first answer shows that the server is at work on them.
    let first = raw.reply();
    rig.ask_to_stop();
    let mut answered = vec![first];
    let mut head = [0; 16];
    while raw.stream.read_exact(&mut head).is_ok() {
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        answered.push((word(4), u64::from(word(12))));
    }
    for result in rig.stop() {
        result.unwrap();
    }
    let content = std::fs::read(&image).unwrap();
    for (errno, i) in answered {
        assert!(errno == 0 || errno == 108, "{errno}");
        let at = usize::try_from(i).unwrap() * 65536;
        if errno == 0 {
            assert!(
                content[at..at + 65536].iter().all(|byte| *byte == i as u8),
                "block {i} was acknowledged"
            );
        }
    }
}
