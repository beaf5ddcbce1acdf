//! Guests' memory that is gathered in huge pages while it is used.

mod vhost_support;

use std::fs::read_to_string;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use blockwork_export::vhost::GuestPages;
use blockwork_format::virtio::blk::{request, status};
use blockwork_memory::HUGE_PAGE;
use vhost_support::Rig;
use vhostload::{Disk, Options, Request};

/// It takes some milliseconds for each huge page, and a second or two until it is begun.
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK: usize = 64 << 10;
/// Requests that a guest has memory for, and of how many it is used.
const REQUESTS: u16 = 256;
const USED: usize = 128;

/// Bytes of a guest's memory that the server, which is in this process, has in huge pages.
fn huge_bytes(disk: &Disk) -> usize {
    let inode = disk.guest.file.metadata().expect("it is a file").ino().to_string();
    let maps = read_to_string("/proc/self/smaps").expect("there is a /proc");
    let (mut is_it, mut bytes) = (false, 0);
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["ShmemPmdMapped:", kib, "kB"] if is_it => bytes += kib.parse::<usize>().expect("a number") << 10,
            // A mapping: addresses, rights, offset, device, inode, file.
            [addresses, _, _, _, found, ..] if addresses.contains('-') => is_it = found == inode,
            _ => {}
        }
    }
    bytes
}

/// Block `number` as it is written in that turn.
fn content(number: usize, turn: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (at / 509 + 7 * number) as u8 ^ turn).collect()
}

/// As many requests at once as it uses memory for, each from or into memory of its own.
fn all_at_once(disk: &mut Disk, turn: u8, kind: u32) {
    let mut numbers = vec![0; usize::from(REQUESTS)];
    for number in 0..USED {
        let id = disk.queues[0].next_id().expect("room");
        // Of a read, what it is not to be.
        let fill = if kind == request::OUT { content(number, turn) } else { vec![turn; BLOCK] };
        disk.write_data(0, id, &fill);
        numbers[usize::from(id)] = number;
        let sector = (number * BLOCK / 512) as u64;
        assert_eq!(disk.start(0, Request { kind, sector, len: BLOCK }), Some(id));
    }
    for _ in 0..USED {
        let finished = disk.wait(0, PATIENCE).expect("an answer");
        assert_eq!(finished.status, status::OK);
        let mut data = vec![0; BLOCK];
        disk.read_data(0, finished.id, &mut data);
        let number = numbers[usize::from(finished.id)];
        assert!(data == content(number, turn), "block {number}, turn {turn}");
    }
}

#[test]
fn memory_is_gathered_while_it_is_used_and_no_byte_changes_and_no_page_is_added() {
    let (asked, not_asked) =
        (Rig::with_pages(&["memory:16M"], 1, GuestPages::Huge), Rig::new("memory:16M", 1));
    let options = || Options { requests: REQUESTS, data_bytes: BLOCK, ring_size: 1024, ..Options::default() };
    let (mut disk, mut other) = (asked.disk(options()), not_asked.disk(options()));
    let used = USED * BLOCK;
    let began = Instant::now();
    // Some turns more when all is gathered but what lies at the ends.
    let (mut turn, mut rest) = (0_u8, 3);
    while rest > 0 {
        assert!(began.elapsed() < PATIENCE, "{} of {used} bytes are in huge pages", huge_bytes(&disk));
        for guest in [&mut disk, &mut other] {
            all_at_once(guest, turn, request::OUT);
            all_at_once(guest, turn, request::IN);
        }
        turn = turn.wrapping_add(1);
        rest -= u32::from(huge_bytes(&disk) + 2 * HUGE_PAGE >= used);
    }
    assert_eq!(huge_bytes(&other), 0, "nobody has asked for it");
    let bytes = |disk: &Disk| disk.guest.file.metadata().expect("it is a file").blocks() * 512;
    assert!(bytes(&disk) >= used as u64);
    assert_eq!(bytes(&disk), bytes(&other), "no page is there that was not used");
    drop((disk, other));
    asked.stop();
    not_asked.stop();
}
