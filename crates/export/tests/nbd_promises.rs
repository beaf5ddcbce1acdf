//! What the server promises: durability over several connections, errors that are errors, 64-bit headers, no allocation
//! without bound.

mod nbd_support;
mod tap;

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use blockwork_engine::{Flags, Op};
use nbd_support::slow::SlowSource;
use nbd_support::{Disk, Raw, Rig, request, until};
use tap::{Log, Seen};

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;

fn file(folder: &tempfile::TempDir, bytes: u64) -> Disk {
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
    Disk::new("d", image.display().to_string())
}

// The promise of CAN_MULTI_CONN.
#[test]
fn a_flush_on_one_connection_covers_what_was_answered_on_another() {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(Log::default());
    let rig = Rig::tapped(&[file(&folder, 1 << 20)], log.clone());
    // The second connection goes to the second worker, which has written nothing itself.
    let (mut writer, mut flusher) = (Raw::go(&rig), Raw::go(&rig));
    for round in 0..10 {
        writer.write(&[request(0, WRITE, round, 4096 * round, 4096), vec![1; 4096]].concat());
        assert_eq!(writer.reply(), (0, round));
        flusher.request(0, FLUSH, 100 + round, 0, 0);
        assert_eq!(flusher.reply(), (0, 100 + round));
        let written = Seen::Altered(Op::Write, Flags::NONE, 8 * round, 8);
        assert_eq!(log.take(), [written, Seen::FlushStarted, Seen::Flushed]);
    }
}

#[test]
fn fua_is_durable_when_answered_for_writes_zeroes_and_trims() {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(Log::default());
    let rig = Rig::tapped(&[file(&folder, 1 << 20)], log.clone());
    let mut raw = Raw::go(&rig);
    raw.write(&[request(1, WRITE, 1, 0, 4096), vec![1; 4096]].concat());
    assert_eq!(raw.reply(), (0, 1));
    let by_the_device = [Seen::Altered(Op::Write, Flags::FUA, 0, 8)];
    let by_a_flush = [Seen::Altered(Op::Write, Flags::NONE, 0, 8), Seen::FlushStarted, Seen::Flushed];
    let seen = log.take();
    assert!(seen == by_the_device || seen == by_a_flush, "{seen:?}");
    for (command, op) in [(WRITE_ZEROES, Op::WriteZeroes), (TRIM, Op::Discard)] {
        raw.request(1, command, 2, 65536, 65536);
        assert_eq!(raw.reply(), (0, 2));
        let seen = log.take();
        assert!(matches!(seen[0], Seen::Altered(found, _, 128, 128) if found == op), "{seen:?}");
        assert_eq!(seen[1..], [Seen::FlushStarted, Seen::Flushed], "{command}");
    }
}

// libnbd CVE-2022-0485, seen from the server: what cannot be read is an error, not zeros.
#[test]
fn a_disk_that_shrinks_gives_errors_and_never_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::new(&[file(&folder, 1 << 20)]);
    let mut raw = Raw::go(&rig);
    std::fs::OpenOptions::new()
        .write(true)
        .open(folder.path().join("image"))
        .unwrap()
        .set_len(65536)
        .unwrap();
    raw.request(0, READ, 1, 512 << 10, 4096);
    assert_eq!(raw.reply(), (5, 1));
    raw.request(0, READ, 2, 65536 - 4096, 8192);
    assert_eq!(raw.reply(), (5, 2));
    raw.request(0, READ, 3, 0, 4096);
    assert_eq!(raw.reply(), (0, 3));
    assert_eq!(raw.read(4096), [0; 4096]);
    assert!(std::fs::metadata(folder.path().join("image")).unwrap().len() == 65536);
    rig.ask_to_stop();
}

fn extended(flags: u16, command: u16, cookie: u64, offset: u64, len: u64) -> Vec<u8> {
    [
        &0x21e4_1c71u32.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &command.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}

/// The type and the payload of a reply that is one extended chunk.
fn chunk(raw: &mut Raw, cookie: u64, offset: u64) -> (u16, Vec<u8>) {
    let head = raw.read(32);
    let long = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().unwrap());
    assert_eq!(head[..6], [0x6e, 0x8a, 0x27, 0x8c, 0, 1]);
    assert_eq!((long(8), long(16)), (cookie, offset));
    (u16::from_be_bytes([head[6], head[7]]), raw.read(usize::try_from(long(24)).unwrap()))
}

/// Up to the transmission phase of the default export, which has `size` bytes, with extended headers; and the number of `base:allocation`.
fn go_extended(rig: &Rig, size: u64) -> (Raw, [u8; 4]) {
    let mut raw = Raw::connect(rig);
    raw.write(&3u32.to_be_bytes());
    raw.option(11, b"");
    assert_eq!(raw.option_reply(), (1, vec![]));
    raw.option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
    let (kind, context) = raw.option_reply();
    assert_eq!(kind, 4);
    assert_eq!(raw.option_reply().0, 1);
    raw.option(7, &[0; 6]);
    let (_, info) = raw.option_reply();
    assert_eq!(info[2..10], size.to_be_bytes());
    assert_ne!(u16::from_be_bytes([info[10], info[11]]) & 1 << 12, 0, "BLOCK_STATUS_PAYLOAD");
    assert_eq!(raw.option_reply().0, 1);
    (raw, context[..4].try_into().unwrap())
}

/// Extents that the reply to a question tells, which began at `start`: lengths and flags.
fn extents(raw: &mut Raw, context: [u8; 4], cookie: u64, start: u64) -> Vec<(u64, u64)> {
    let (kind, payload) = chunk(raw, cookie, start);
    assert_eq!(kind, 6);
    assert_eq!(payload[..4], context);
    let long = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    let all: Vec<_> = payload[8..].chunks(16).map(|pair| (long(&pair[..8]), long(&pair[8..]))).collect();
    assert_eq!(all.len(), usize::try_from(u32::from_be_bytes(payload[4..8].try_into().unwrap())).unwrap());
    all
}

// libnbd and qemu of Debian 12 do not speak these yet: a client by hand.
#[test]
fn extended_headers_carry_64_bit_lengths() {
    const SIZE: u64 = 1 << 40;
    const PAYLOAD: u16 = 1 << 5;
    // Looked through in no time, so that an answer tells all that was asked.
    let rig = Rig::new(&[Disk::new("d", "null:1T")]);
    let (mut raw, context) = go_extended(&rig, SIZE);
    // More than 32 bits can say, in one extent.
    const LONG: u64 = 8 << 30;
    let start = 1 << 39;
    // The processor's time may be up after a part of it all the same, on a busy machine: then the answer is that, and one asks again.
    let mut told = |ask: &dyn Fn(u64) -> Vec<u8>, cookies: Range<u64>| {
        let mut answers = cookies.map(|cookie| {
            raw.write(&ask(cookie));
            extents(&mut raw, context, cookie, start)
        });
        answers.any(|all| all == [(LONG, 3)])
    };
    assert!(told(&|cookie| extended(0, BLOCK_STATUS, cookie, start, LONG), 1..10));
    let payload = [&LONG.to_be_bytes()[..], &context].concat();
    assert!(told(
        &|cookie| [&extended(PAYLOAD, BLOCK_STATUS, cookie, start, 12)[..], &payload].concat(),
        10..20
    ));
    drop((raw, rig));

    let rig = Rig::new(&[Disk::new("d", "memory:1T")]);
    let (mut raw, context) = go_extended(&rig, SIZE);
    let at = start + 512;
    raw.write(&[extended(PAYLOAD, WRITE, 1, at, 4096), vec![9; 4096]].concat());
    assert_eq!(chunk(&mut raw, 1, at), (0, vec![]));
    raw.write(&extended(0, READ, 2, at, 4096));
    assert_eq!(chunk(&mut raw, 2, at), (1, [&at.to_be_bytes()[..], &[9; 4096]].concat()));
    raw.write(&extended(0, BLOCK_STATUS, 3, start, 2 * 65_536));
    assert_eq!(extents(&mut raw, context, 3, start), [(65_536, 0), (65_536, 3)]);
    // All of the disk in one request each.
    raw.write(&extended(0, TRIM, 4, 0, SIZE));
    assert_eq!(chunk(&mut raw, 4, 0), (0, vec![]));
    raw.write(&extended(0, WRITE_ZEROES, 5, 0, SIZE));
    assert_eq!(chunk(&mut raw, 5, 0), (0, vec![]));
    raw.write(&extended(0, BLOCK_STATUS, 6, start, 2 * 65_536));
    assert_eq!(extents(&mut raw, context, 6, start), [(2 * 65_536, 3)]);
    raw.write(&extended(0, READ, 7, SIZE, 1));
    let (kind, error) = chunk(&mut raw, 7, SIZE);
    assert_eq!((kind, &error[..4]), (0x8001, &22u32.to_be_bytes()[..]));
}

#[test]
fn ragged_writes_by_several_clients_to_one_block_all_survive() {
    let folder = tempfile::tempdir().unwrap();
    let image = file(&folder, 1 << 20);
    let rig = Rig::with(&[image], 2, |_| {});
    std::thread::scope(|scope| {
        for client in 0..4u64 {
            let rig = &rig;
            scope.spawn(move || {
                let mut raw = Raw::go(rig);
                for i in 0..64 {
                    let at = i * 4096 + client * 1024 + 1;
                    raw.write(&[request(0, WRITE, i, at, 1000), vec![client as u8 + 1; 1000]].concat());
                }
                (0..64).for_each(|_| assert_eq!(raw.reply().0, 0));
            });
        }
    });
    let mut raw = Raw::go(&rig);
    raw.request(0, READ, 1, 0, 64 * 4096);
    assert_eq!(raw.reply(), (0, 1));
    let all = raw.read(64 * 4096);
    for (at, byte) in all.iter().enumerate() {
        let (client, place) = (at % 4096 / 1024, at % 1024);
        let expected = if (1..=1000).contains(&place) { client + 1 } else { 0 };
        assert_eq!(usize::from(*byte), expected, "byte {at}");
    }
}

// Large reads wait for answers to leave; nothing else waits for them.
#[test]
fn a_write_behind_large_reads_that_nobody_takes_is_done_and_all_reads_are_answered() {
    const READS: u64 = 40;
    const LEN: u32 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(Log::default());
    let rig = Rig::tapped(&[file(&folder, READS * u64::from(LEN))], log.clone());
    let mut client = Raw::go(&rig);
    let mut requests: Vec<u8> =
        (0..READS).flat_map(|n| request(0, READ, n, n * u64::from(LEN), LEN)).collect();
    let place = (READS - 1) * u64::from(LEN);
    requests.extend([request(0, WRITE, 1000, place, 4096), vec![7; 4096]].concat());
    client.write(&requests);
    nbd_support::until("the write is done", || {
        log.take().contains(&Seen::Altered(Op::Write, Flags::NONE, place / 512, 8))
    });
    let mut answered = Vec::new();
    while answered.len() as u64 <= READS {
        let (error, cookie) = client.reply();
        assert_eq!(error, 0);
        if cookie < READS {
            client.read(LEN as usize);
        }
        answered.push(cookie);
    }
    answered.sort_unstable();
    assert!(answered.iter().copied().eq((0..READS).chain([1000])), "{answered:?}");
}

// While the disk is slow, nothing leaves, and nothing but the limit ends what is begun.
#[test]
fn reads_of_a_slow_disk_hold_no_more_than_the_limit_and_are_all_answered() {
    const LEN: u32 = 1 << 20;
    const LIMIT: usize = 4 << 20;
    for (reads, len) in [(40, LEN), (3, 8 * LEN)] {
        let disk = Arc::new(SlowSource::new(1 << 30));
        let rig = Rig::with(&[Disk::of("d", disk.clone())], 1, |config| {
            (config.bytes_max, config.reads_enough) = (LIMIT, usize::MAX);
        });
        let mut client = Raw::go(&rig);
        let requests: Vec<u8> =
            (0..reads).flat_map(|n| request(0, READ, n, n * u64::from(len), len)).collect();
        client.write(&requests);
        let mut answered = Vec::new();
        for _ in 0..reads {
            let (error, cookie) = client.reply();
            assert_eq!((error, client.read(len as usize) == vec![0; len as usize]), (0, true));
            answered.push(cookie);
        }
        answered.sort_unstable();
        assert!(answered.iter().copied().eq(0..reads), "{answered:?}");
        // One that is larger than the limit is done, alone.
        assert_eq!(disk.most(), LIMIT.max(len as usize));
    }
}

/// Sends so many reads of `len` bytes at once.
fn ask_for(client: &mut Raw, reads: u64, len: usize) {
    let read = |n| request(0, READ, n, n * len as u64, len as u32);
    client.write(&(0..reads).flat_map(read).collect::<Vec<u8>>());
}

/// Takes the answers.
fn take_answers(client: &mut Raw, reads: u64, len: usize) {
    let mut answered: Vec<u64> = (0..reads)
        .map(|_| {
            let (error, cookie) = client.reply();
            assert_eq!(error, 0);
            client.read(len);
            cookie
        })
        .collect();
    answered.sort_unstable();
    assert!(answered.iter().copied().eq(0..reads), "{answered:?}");
}

#[test]
fn a_client_that_holds_what_all_may_hold_keeps_nobody_waiting_and_what_it_lets_go_of_is_the_others() {
    const MIB: usize = 1 << 20;
    let disk = Arc::new(SlowSource::new(1 << 30));
    let rig = Rig::with(&[Disk::of("d", disk.clone())], 1, |config| {
        (config.bytes_of_all_max, config.reads_enough) = (8 * MIB, usize::MAX);
    });
    let (mut greedy, mut other) = (Raw::go(&rig), Raw::go(&rig));
    ask_for(&mut greedy, 20, 2 * MIB);
    let (error, first) = greedy.reply();
    assert_eq!((error, disk.most_since()), (0, 8 * MIB));
    // It does not read on. Who asks for little has all of it under way at once, who asks for much goes on by single requests.
    for (reads, len, most) in [(128, 4096, 128 * 4096), (8, MIB, MIB), (3, 32 * MIB, 32 * MIB)] {
        ask_for(&mut other, reads, len);
        take_answers(&mut other, reads, len);
        assert_eq!(disk.most_since(), most, "{reads} reads of {len} bytes");
    }
    greedy.read(2 * MIB);
    let mut answered = vec![first];
    while answered.len() < 20 {
        answered.push(greedy.reply().1);
        greedy.read(2 * MIB);
    }
    answered.sort_unstable();
    assert!(answered.iter().copied().eq(0..20), "{answered:?}");
    // By the answer to this, all of the others is known to have left.
    ask_for(&mut greedy, 1, 512);
    take_answers(&mut greedy, 1, 512);
    disk.most_since();
    ask_for(&mut other, 8, MIB);
    take_answers(&mut other, 8, MIB);
    assert_eq!(disk.most_since(), 8 * MIB);
}

#[test]
fn large_reads_of_a_near_disk_are_begun_as_answers_leave_and_small_ones_at_once() {
    const LEN: usize = 256 << 10;
    let disk = Arc::new(SlowSource::new(1 << 30));
    let rig = Rig::with(&[Disk::of("d", disk.clone())], 1, |_| ());
    let mut client = Raw::go(&rig);
    let mut requests: Vec<u8> =
        (0..64).flat_map(|n| request(0, READ, n, n * LEN as u64, LEN as u32)).collect();
    requests.extend((64..100).flat_map(|n| request(0, READ, n, n * 4096, 4096)));
    client.write(&requests);
    let mut answered = Vec::new();
    for _ in 0..100 {
        let (error, cookie) = client.reply();
        assert_eq!(error, 0);
        client.read(if cookie < 64 { LEN } else { 4096 });
        answered.push(cookie);
    }
    assert_eq!(
        disk.first(),
        Some((4 << 20) + 36 * 4096),
        "nothing is known of the disk, which is taken to be near"
    );
    answered.sort_unstable();
    assert!(answered.iter().copied().eq(0..100), "{answered:?}");
}

#[test]
fn who_reads_beside_another_begins_half_as_much() {
    const LEN: usize = 256 << 10;
    // So slow that it has not answered the first when it has what the second begins.
    let disk = Arc::new(SlowSource::far(1 << 30, 5000));
    let rig = Rig::with(&[Disk::of("d", disk.clone())], 1, |_| ());
    let (mut first, mut second) = (Raw::go(&rig), Raw::go(&rig));
    ask_for(&mut first, 24, LEN);
    until("the first has begun all that is enough", || disk.most() == 4 << 20);
    ask_for(&mut second, 24, LEN);
    take_answers(&mut first, 24, LEN);
    take_answers(&mut second, 24, LEN);
    assert_eq!(disk.first(), Some(6 << 20));
}

#[test]
fn of_a_disk_that_is_far_away_more_is_under_way() {
    const LEN: usize = 256 << 10;
    // 20 ms and more.
    let disk = Arc::new(SlowSource::far(1 << 30, 200));
    let rig = Rig::with(&[Disk::of("d", disk.clone())], 1, |_| ());
    let mut client = Raw::go(&rig);
    ask_for(&mut client, 1, LEN);
    take_answers(&mut client, 1, LEN);
    assert_eq!(disk.most_since(), LEN);
    ask_for(&mut client, 128, LEN);
    take_answers(&mut client, 128, LEN);
    assert_eq!(disk.most(), 32 << 20, "at 4 GB/s it has twice as many in that time");
}

/// Writes in rows of one length, each to a place of its own, reads and flushes between them, and a bad request now and then: what the
/// client sends, what the disk then holds, and the bytes of all answers.
fn rows_of_writes(disk_bytes: usize, mut number: impl FnMut(usize) -> usize) -> (Vec<u8>, Vec<u8>, usize) {
    let (mut stream, mut disk, mut answers) = (Vec::new(), Vec::new(), 0);
    let lengths = [65_536, 65_536, 40_960, 262_144, 100_352, 1 << 20, 300_032, 4096, 512];
    let mut cookie = 0;
    loop {
        let len = lengths[number(lengths.len())];
        for _ in 0..number(9) {
            if disk.len() + len > disk_bytes {
                return (stream, disk, answers);
            }
            let start = disk.len();
            let value = number(251) as u8;
            disk.extend((0..len).map(|at| value.wrapping_add((at / 512) as u8)));
            stream.extend(request(0, WRITE, cookie, start as u64, len as u32));
            stream.extend_from_slice(&disk[start..]);
            (cookie, answers) = (cookie + 1, answers + 16);
        }
        answers += match number(4) {
            0 => {
                stream.extend(request(0, READ, cookie, disk_bytes as u64, 512));
                16 + 512
            }
            1 => {
                stream.extend(request(0, FLUSH, cookie, 0, 0));
                16
            }
            // As long as those before, and refused: it lies beyond the disk.
            2 => {
                stream.extend(request(0, WRITE, cookie, 2 * disk_bytes as u64, len as u32));
                stream.extend(vec![0xee; len]);
                16
            }
            _ => 0,
        };
        cookie += 1;
    }
}

#[test]
fn rows_of_writes_may_be_followed_by_anything_in_any_pieces() {
    const DISK: usize = 24 << 20;
    for (seed, requests_max, bytes_max) in
        [(1u64, 128, 32 << 20), (2, 128, 32 << 20), (3, 3, 32 << 20), (4, 128, 200_000)]
    {
        let mut state = seed;
        let mut number = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let rig = Rig::with(&[Disk::new("d", format!("memory:{}", DISK + 512))], 1, |config| {
            (config.requests_max, config.bytes_max) = (requests_max, bytes_max);
        });
        let (stream, disk, answers) = rows_of_writes(DISK, &mut number);
        let mut raw = Raw::go(&rig);
        let mut answered = raw.stream.try_clone().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; answers];
            answered.read_exact(&mut bytes).expect("every request is answered");
        });
        let mut left = &stream[..];
        while !left.is_empty() {
            let (piece, rest) = left.split_at(left.len().min(1 + number(400_000)));
            raw.write(piece);
            left = rest;
        }
        reader.join().unwrap();
        for (nth, expected) in disk.chunks(1 << 20).enumerate() {
            raw.request(0, READ, 1, (nth << 20) as u64, expected.len() as u32);
            assert_eq!(raw.reply(), (0, 1));
            assert!(raw.read(expected.len()) == expected, "seed {seed}, MiB {nth}");
        }
    }
}

#[test]
fn of_a_payload_that_ends_with_its_client_nothing_is_written_though_it_was_expected() {
    const LEN: u64 = 65_536;
    let log = Arc::new(Log::default());
    let rig = Rig::tapped(&[Disk::new("d", "memory:16M")], log.clone());
    // How much of the last request comes, and whether it comes with those before or later.
    for (part, at_once) in
        [(5, true), (28, true), (28 + 512, true), (28 + 40_000, false), (28 + 65_535, true)]
    {
        let mut raw = Raw::go(&rig);
        // At places that do not adjoin: each is a request of its own to the disk.
        let write =
            |n: u64| [request(0, WRITE, n, 2 * LEN * n, LEN as u32), vec![n as u8; LEN as usize]].concat();
        for n in 0..8 {
            raw.write(&write(n));
            assert_eq!(raw.reply(), (0, n));
        }
        log.take();
        let whole = [write(8), write(9)].concat();
        let cut = write(10)[..part].to_vec();
        if at_once {
            raw.write(&[whole, cut].concat());
        } else {
            raw.write(&whole);
            raw.write(&cut);
        }
        raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answers = [raw.reply(), raw.reply()];
        answers.sort_unstable();
        assert_eq!(answers, [(0, 8), (0, 9)]);
        assert!(raw.is_closed());
        let mut places: Vec<u64> = log
            .take()
            .into_iter()
            .map(|seen| match seen {
                Seen::Altered(Op::Write, _, first, nr) if nr == LEN / 512 => first * 512 / (2 * LEN),
                other => panic!("{other:?} of a client that only writes"),
            })
            .collect();
        places.sort_unstable();
        assert_eq!(places, [8, 9], "{part} bytes of the last");
    }
}
