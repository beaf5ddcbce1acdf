//! A disk by vhost-user, over real rings in shared memory: every kind of ring, every request.

mod vhost_support;

use std::collections::BTreeSet;
use std::time::Duration;

use blockwork_engine::Counter;
use blockwork_format::virtio::blk::{Range, feature, request, status};
use vhost_support::{Rig, kinds, read, write};
use vhostload::{Area, Options, Request};

const MIB: u64 = 1 << 20;

/// Bytes that tell where they belong.
fn pattern(sector: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (sector.wrapping_mul(31) as usize + i / 512 * 7 + i % 251) as u8).collect()
}

#[test]
fn what_was_written_is_read_by_every_kind_of_ring() {
    let rig = Rig::new("memory:16M", 1);
    for (round, kind) in (0..).zip(kinds()) {
        for pieces in [1, 3] {
            let options =
                Options { pieces, data_bytes: 64 << 10, ring_size: 64, requests: 8, ..kind.clone() };
            let mut disk = rig.disk(options);
            for (i, len) in [512, 4096, 65536, 1024].into_iter().enumerate() {
                let sector = round * 512 + i as u64 * 128;
                let data = pattern(sector + pieces as u64, len);
                let finished = write(&mut disk, 0, sector, &data);
                assert_eq!((finished.status, finished.written), (status::OK, 1), "{kind:?}");
                let (finished, found) = read(&mut disk, 0, sector, len);
                assert_eq!((finished.status, finished.written as usize), (status::OK, len + 1), "{kind:?}");
                assert!(found == data, "{kind:?}: {len} bytes at sector {sector} in {pieces} pieces");
            }
        }
    }
    rig.stop();
}

#[test]
fn many_requests_in_flight_end_in_any_order_and_each_once() {
    let rig = Rig::new("memory:16M", 2);
    for kind in kinds() {
        // As many as fit, round and round the ring.
        let requests = if kind.indirect { 32 } else { 10 };
        let mut disk = rig.disk(Options { ring_size: 32, requests, queues: 3, ..kind.clone() });
        let (mut started, mut done) = (0_u64, 0);
        while done < 3000 {
            for queue in 0..3 {
                while started < 3000
                    && let Some(id) = disk.queues[queue].next_id()
                {
                    let sector = started % 4000 * 8;
                    disk.write_data(queue, id, &pattern(sector, 4096));
                    let request = Request { kind: request::OUT, sector, len: 4096 };
                    if disk.start(queue, request).is_none() {
                        break;
                    }
                    started += 1;
                }
                while let Some(finished) = disk.finished(queue) {
                    assert_eq!(finished.status, status::OK);
                    done += 1;
                }
            }
        }
        for queue in 0..3 {
            assert_eq!(disk.finished(queue), None);
        }
        for sector in (0..3000).map(|i| i * 8).step_by(8 * 97) {
            assert!(read(&mut disk, 1, sector, 4096).1 == pattern(sector, 4096), "{kind:?}: sector {sector}");
        }
    }
    let rings = rig.stats.rings(blockwork_uring::clock());
    assert_eq!(rings.len(), 3);
    assert!(rings.iter().all(|ring| ring.high_water > 1 && ring.in_flight == 0), "{rings:?}");
    rig.stop();
}

#[test]
fn a_request_may_be_larger_than_what_goes_to_a_disk_at_a_time() {
    let rig = Rig::new("memory:320M", 1);
    let len = 200 << 20;
    let options = Options { data_bytes: len, requests: 1, pieces: 3, ..Options::default() };
    let mut disk = rig.disk(options);
    // Neither end is one of a block of the disk's, nor of a part.
    let (sector, data) = (8 * 1000 + 1, pattern(8 * 1000 + 1, len));
    let finished = write(&mut disk, 0, sector, &data);
    assert_eq!((finished.status, finished.written), (status::OK, 1));
    let (finished, found) = read(&mut disk, 0, sector, len);
    assert_eq!((finished.status, finished.written as usize), (status::OK, len + 1));
    assert!(found == data);
    // The last part is not on the disk.
    let sector = (320 - 180) * MIB / 512;
    assert_eq!(write(&mut disk, 0, sector, &vec![1; len]).status, status::IOERR);
    let before = &data[(sector - (8 * 1000 + 1)) as usize * 512..][..4096];
    assert!(read(&mut disk, 0, sector, 4096).1 == before, "nor was any of the others written");
    assert_eq!(read(&mut disk, 0, sector, len).0.status, status::IOERR);
    assert_eq!(read(&mut disk, 0, u64::MAX / 512, len).0.status, status::IOERR);
    assert_eq!(read(&mut disk, 0, 0, 512).0.status, status::OK);
    rig.stop();
}

#[test]
fn a_device_says_what_it_is() {
    let rig = Rig::new("memory:16M", 1);
    let mut disk = rig.disk(Options::default());
    let config = disk.config().unwrap();
    assert_eq!((config.capacity, config.blk_size, config.num_queues), (16 * MIB / 512, 512, 8));
    assert!(config.writeback && config.discard.ranges > 0 && config.write_zeroes.sectors > 0);
    let finished = disk.run(0, Request { kind: request::GET_ID, sector: 0, len: 20 }).unwrap();
    assert_eq!((finished.status, finished.written), (status::OK, 21));
    let mut id = [0; 20];
    disk.read_data(0, finished.id, &mut id);
    assert_eq!(&id, b"disk/test\0\0\0\0\0\0\0\0\0\0\0");
    let unknown = disk.run(0, Request { kind: 77, sector: 0, len: 0 }).unwrap();
    assert_eq!(unknown.status, status::UNSUPP);
    let outside = write(&mut disk, 0, config.capacity, &[1; 512]);
    assert_eq!(outside.status, status::IOERR);
    let ragged = write(&mut disk, 0, 0, &[1; 700]);
    assert_eq!(ragged.status, status::IOERR);
    drop(disk);
    rig.stop();
}

#[test]
fn a_request_may_have_as_many_segments_as_its_ring_has_room_for() {
    let rig = Rig::new("null:1M", 1);
    for (ring_size, expected) in [(16, 14), (128, 126), (256, 254), (4096, 1024)] {
        let disk = rig.disk(Options { ring_size, ..Options::default() });
        assert_eq!(disk.config().unwrap().seg_max, expected, "a ring of {ring_size}");
    }
}

#[test]
fn ranges_are_zeroed_and_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(16 * MIB).unwrap();
    let rig = Rig::new(path.to_str().unwrap(), 1);
    let mut disk = rig.disk(Options { data_bytes: 1 << 20, requests: 4, ..Options::default() });
    assert_ne!(disk.features & feature::DISCARD, 0);
    write(&mut disk, 0, 0, &vec![0xaa; 1 << 20]);
    let ranges =
        [Range { sector: 8, sectors: 8, flags: 0 }, Range { sector: 24, sectors: 16, flags: Range::UNMAP }];
    let mut run = |kind, ranges: &[Range]| {
        let bytes: Vec<u8> = ranges.iter().flat_map(Range::encode).collect();
        let id = disk.queues[0].next_id().unwrap();
        disk.write_data(0, id, &bytes);
        disk.run(0, Request { kind, sector: 0, len: bytes.len() }).unwrap().status
    };
    assert_eq!(run(request::WRITE_ZEROES, &ranges), status::OK);
    assert_eq!(run(request::DISCARD, &[Range { sector: 1024, sectors: 512, flags: 0 }]), status::OK);
    assert_eq!(run(request::DISCARD, &[ranges[1]]), status::UNSUPP, "a flag that discards have not");
    assert_eq!(run(request::WRITE_ZEROES, &[Range { flags: 2, ..ranges[0] }]), status::UNSUPP);
    assert_eq!(run(request::DISCARD, &[Range { sector: u64::MAX, ..ranges[0] }]), status::IOERR);
    let beyond = Range { sector: 16 * MIB / 512 - 4, sectors: 8, flags: 0 };
    for (kind, sector) in [(request::WRITE_ZEROES, 64), (request::DISCARD, 128)] {
        let on_disk = Range { sector, sectors: 8, flags: 0 };
        assert_eq!(run(kind, &[on_disk, beyond]), status::IOERR, "and nothing is done of the first");
    }
    assert_eq!(run(request::FLUSH, &[]), status::OK);
    let (_, found) = read(&mut disk, 0, 0, 1 << 20);
    for (sector, bytes) in found.chunks(512).enumerate() {
        let zero = (8..16).contains(&sector) || (24..40).contains(&sector);
        if !(1024..1536).contains(&sector) {
            assert!(bytes.iter().all(|&byte| byte == if zero { 0 } else { 0xaa }), "sector {sector}");
        }
    }
    drop(disk);
    assert!(rig.count(Counter::Flushes) >= 1);
    rig.stop();
}

#[test]
fn a_read_only_volume_says_so_and_refuses_writes() {
    let rig = Rig::with("memory:16M", 1, true);
    let mut disk = rig.disk(Options::default());
    assert_ne!(disk.features & feature::RO, 0);
    assert_eq!(disk.features & feature::WRITE_ZEROES, 0);
    assert_eq!(write(&mut disk, 0, 0, &[1; 512]).status, status::IOERR);
    assert_eq!(read(&mut disk, 0, 0, 512).0.status, status::OK);
    drop(disk);
    rig.stop();
}

/// The data path neither copies nor calls the kernel once per request. (`linearize=auto` copies where it has measured that this is faster, and
/// to find out.)
#[test]
fn the_guests_memory_goes_to_the_disk_without_a_copy_and_in_batches() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(16 * MIB).unwrap();
    let rig = Rig::new(&format!("{},linearize=off", path.display()), 1);
    let options = Options { ring_size: 128, requests: 64, ..Options::default() };
    let mut disk = rig.disk(options);
    const ROUNDS: u64 = 50;
    for round in 0..ROUNDS {
        // One index for the whole batch, in order on the disk: merged to few requests.
        while let Some(id) = disk.queues[0].next_id() {
            disk.guest.memory.fill(disk.queues[0].data(id).offset, 4096, round as u8);
            let request = Request { kind: request::OUT, sector: u64::from(id) * 8, len: 4096 };
            let guest = &disk.guest;
            disk.queues[0].prepare(guest, request).unwrap();
        }
        let guest = &disk.guest;
        disk.queues[0].publish(guest);
        for _ in 0..64 {
            let finished = disk.wait(0, Duration::from_secs(20)).unwrap();
            assert_eq!(finished.status, status::OK);
        }
    }
    let kicks = disk.queues[0].kicks;
    drop(disk);
    let copied = [Counter::Bounced, Counter::Linearized].map(|counter| rig.count(counter));
    let enters = rig.stop();
    assert_eq!(copied, [0, 0]);
    assert!(kicks <= ROUNDS, "{kicks} kicks for {ROUNDS} batches");
    let requests = ROUNDS * 64;
    assert!(enters * 5 < requests, "{enters} calls of the kernel for {requests} requests");
}

/// The pages of some memory.
fn pages(area: Area) -> impl Iterator<Item = usize> {
    (area.offset / 4096..=(area.offset + area.len - 1) / 4096).map(|page| page * 4096)
}

#[test]
fn what_is_written_while_a_guest_moves_is_marked_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(16 * MIB).unwrap();
    // What is done while it is taken, and what is done later.
    let disks = ["memory:16M", path.to_str().unwrap()];
    for (packed, disk) in [false, true].into_iter().flat_map(|packed| disks.map(|disk| (packed, disk))) {
        let rig = Rig::new(disk, 1);
        let options = Options { requests: 24, ring_size: 64, data_bytes: 8192, packed, ..Options::default() };
        let mut disk = rig.disk(options);
        disk.log_writes(true).unwrap();
        disk.written_pages(); // a queue that starts may say at once whether it wants to be called
        let address = disk.queues[0].address(0);
        let ring = if packed {
            vec![Area::at_user(address.descriptors, 64 * 16), Area::at_user(address.used, 4)]
        } else {
            vec![Area::at_user(address.used, 6 + 8 * 64)]
        };
        for round in 0..50_u64 {
            let kind = if round % 3 == 0 { request::OUT } else { request::IN };
            let len = if round % 2 == 0 { 8192 } else { 512 };
            let finished = disk.run(0, Request { kind, sector: round * 16, len }).unwrap();
            assert_eq!(finished.status, status::OK);
            let id = finished.id;
            let data = Area { len, ..disk.queues[0].data(id) };
            let mut expected: BTreeSet<usize> = ring.iter().copied().flat_map(pages).collect();
            expected.extend(pages(disk.queues[0].status(id)));
            if kind == request::IN {
                expected.extend(pages(data));
            }
            disk.log_writes(true).unwrap(); // the queue has rested in between: all that it does is done
            assert_eq!(disk.written_pages(), expected, "round {round}, packed: {packed}");
        }
        disk.log_writes(false).unwrap();
        disk.written_pages();
        assert_eq!(read(&mut disk, 0, 0, 4096).0.status, status::OK);
        disk.log_writes(false).unwrap();
        assert!(disk.written_pages().is_empty(), "no longer wanted");
        drop(disk);
        rig.stop();
    }
}

#[test]
fn a_ring_is_full_when_one_more_request_like_the_last_has_no_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let rig = Rig::new(path.to_str().unwrap(), 1);
    let full = || rig.stats.rings(blockwork_uring::clock()).iter().map(|ring| ring.full.0).sum::<u64>();
    // Without indirect tables a request takes three of the eight descriptors.
    for (indirect, requests, is_full) in
        [(false, 1, false), (false, 2, true), (true, 7, false), (true, 8, true)]
    {
        let before = full();
        let mut disk = rig.disk(Options { indirect, ring_size: 8, requests: 8, ..Options::default() });
        for n in 0..requests {
            let read = Request { kind: request::IN, sector: n * 64, len: 4096 };
            disk.queues[0].prepare(&disk.guest, read).unwrap();
        }
        disk.queues[0].publish(&disk.guest);
        for _ in 0..requests {
            assert_eq!(disk.wait(0, Duration::from_secs(20)).unwrap().status, status::OK);
        }
        drop(disk);
        assert_eq!(full() > before, is_full, "{requests} requests, indirect: {indirect}");
    }
    rig.stop();
}
