//! Front ends and drivers that do what they must not: each loses its own device, and the next one is served.

mod vhost_support;

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use blockwork_format::vhost_user::{
    ConfigPart, FEATURE_LOG_ALL, InflightArea, LogArea, Message, Region, VringAddr, VringFile, VringState,
    inflight,
};
use blockwork_format::virtio::blk::{RequestHeader, request, status};
use blockwork_format::virtio::{Descriptor, descriptor_flag, split};
use blockwork_memory::{Buffer, Mapping};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost_support::{Rig, kinds, read, write};
use vhostload::{Area, Client, Disk, Options, Request};

/// The server still serves, and its disk still works.
fn still_serves(rig: &Rig) {
    let mut disk = rig.disk(Options::default());
    assert_eq!(write(&mut disk, 0, 8, &[7; 4096]).status, status::OK);
    assert!(read(&mut disk, 0, 8, 4096).1 == [7; 4096]);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn what_is_no_message_ends_the_session_and_nothing_else() {
    let rig = Rig::new("memory:16M", 1);
    let header = |request: u32, flags: u32, size: u32| {
        [request, flags, size].iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>()
    };
    let bad = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        header(1, 2, 0),
        header(5, 1, u32::MAX),
        [header(5, 1, 8), vec![0xff; 8]].concat(),
        [header(9, 1, 39), vec![0; 39]].concat(),
        header(99, 1, 0),
        header(12, 1, 8).into_iter().chain([0; 8]).collect(), // a kick without its file
    ];
    for bytes in bad {
        let client = Client::connect(&rig.socket()).unwrap();
        client.send_raw(&bytes, &[]).unwrap();
        assert!(client.is_closed(), "{bytes:?}");
    }
    // Gone in the middle of a message.
    let client = Client::connect(&rig.socket()).unwrap();
    client.send_raw(&header(5, 1, 72)[..7], &[]).unwrap();
    drop(client);
    still_serves(&rig);
    rig.stop();
}

#[test]
fn what_cannot_be_obeyed_is_refused() {
    let rig = Rig::new("memory:16M", 1);
    let disk = rig.disk(Options::default());
    let client = disk.client().unwrap();
    let state = |index, num| VringState { index, num };
    let region = Region { guest: 0, size: 4096, user: 0, offset: 0 };
    let area = InflightArea { size: 1 << 20, offset: 0, queues: 1, queue_size: 128 };
    let null = File::open("/dev/null").unwrap();
    // Of a file system that is not memory, wherever this runs.
    let no_memory = File::open("/proc/self/status").unwrap();
    let memory = disk.guest.file.as_fd();
    // It would take a third of the addresses that this process has, and more.
    let holes = memfd_create("holes", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&holes, 1 << 50).unwrap();
    let huge = Region { guest: 1 << 46, user: 1 << 46, size: 40 << 40, offset: 0 };
    let refused: Vec<(Message, Vec<BorrowedFd<'_>>)> = vec![
        (Message::SetFeatures(1 << 60), vec![]),
        (Message::SetProtocolFeatures(1 << 60), vec![]),
        (Message::SetVringNum(state(8, 128)), vec![]),
        (Message::SetVringNum(state(u32::MAX, 128)), vec![]),
        (Message::SetVringNum(state(0, 0)), vec![]),
        (Message::SetVringNum(state(0, 40000)), vec![]),
        (Message::SetVringKick(VringFile { index: 0, has_file: false }), vec![]),
        (Message::SetVringKick(VringFile { index: 0, has_file: true }), vec![null.as_fd()]),
        (Message::SetVringCall(VringFile { index: 0, has_file: true }), vec![memory]),
        (Message::SetVringErr(VringFile { index: 0, has_file: true }), vec![memory]),
        (Message::SetMemTable(vec![region]), vec![null.as_fd()]),
        (Message::SetMemTable(vec![region]), vec![no_memory.as_fd()]),
        (Message::SetMemTable(vec![Region { size: 1 << 62, ..region }]), vec![memory]),
        (Message::SetMemTable(vec![Region { offset: u64::MAX, ..region }]), vec![memory]),
        (Message::SetMemTable(vec![region, region]), vec![memory, memory]),
        (Message::AddMemReg(disk.guest.region()), vec![memory]),
        (Message::AddMemReg(huge), vec![holes.as_fd()]),
        (Message::AddMemReg(Region { size: 4096, offset: 1 << 50, ..huge }), vec![holes.as_fd()]),
        (Message::SetLogBase(LogArea { size: 2 << 40, offset: 0 }), vec![holes.as_fd()]),
        (Message::SetLogBase(LogArea { size: 1 << 30, offset: u64::MAX }), vec![holes.as_fd()]),
        (Message::RemMemReg(region), vec![]),
        (Message::SetInflightFd(InflightArea { size: 64, ..area }), vec![memory]),
        (Message::SetInflightFd(InflightArea { offset: u64::MAX, ..area }), vec![memory]),
        (Message::SetInflightFd(InflightArea { queues: 0, ..area }), vec![memory]),
        (Message::SetConfig(ConfigPart { offset: 0, flags: 0, bytes: vec![0; 8] }), vec![]),
        (Message::SetLogBase(LogArea { size: 4096, offset: 0 }), vec![memory]),
        (Message::Unknown(77), vec![]),
    ];
    for (message, files) in refused {
        let error = client.tell(&message, &files).unwrap_err().to_string();
        assert!(error.contains("was refused"), "{message:?}: {error}");
    }
    drop(disk);
    still_serves(&rig);
    rig.stop();
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let rig = Rig::new("memory:16M", 1);
    still_serves(&rig);
    let before = descriptors();
    let file = File::open("/dev/null").unwrap();
    let flood: Vec<BorrowedFd<'_>> = (0..60).map(|_| file.as_fd()).collect();
    for _ in 0..50 {
        let client = Client::connect(&rig.socket()).unwrap();
        client.send_raw(&Message::GetFeatures.encode(false), &flood).unwrap();
        assert!(client.is_closed());
    }
    still_serves(&rig);
    // Others open some meanwhile; 3,000 came.
    assert!(descriptors() <= before + 256, "{} descriptors, {before} before", descriptors());
    rig.stop();
}

/// An eventfd by which the front end hears of errors of its first ring.
fn errors_of(disk: &Disk) -> OwnedFd {
    let error = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let at = VringFile { index: 0, has_file: true };
    disk.client().unwrap().tell(&Message::SetVringErr(at), &[error.as_fd()]).unwrap();
    error
}

/// Blocks until the front end is told of one.
fn wait_for(error: &OwnedFd) {
    assert_eq!(rustix::io::read(error, &mut [0; 8]), Ok(8));
}

/// A disk with an error eventfd, whose first descriptor the test sets as it likes.
struct Broken {
    disk: Disk,
    error: OwnedFd,
}

impl Broken {
    fn new(rig: &Rig) -> Broken {
        Broken::telling(rig, 0)
    }

    /// The eventfd has this count at first.
    fn telling(rig: &Rig, count: u64) -> Broken {
        let options = Options { indirect: false, event_idx: false, ring_size: 8, ..Options::default() };
        let disk = rig.disk(options);
        let error = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&error, &count.to_ne_bytes()).unwrap();
        let at = VringFile { index: 0, has_file: true };
        disk.client().unwrap().tell(&Message::SetVringErr(at), &[error.as_fd()]).unwrap();
        Broken { disk, error }
    }

    /// Makes these descriptors available, from the first on, and waits until the device says that it is broken.
    fn offer(mut self, head: u16, index: u16, descriptors: &[Descriptor]) {
        self.send(head, index, descriptors);
        wait_for(&self.error);
        self.stop();
    }

    fn send(&mut self, head: u16, index: u16, descriptors: &[Descriptor]) {
        let memory = &self.disk.guest.memory;
        // As laid out by the front end: descriptors, available ring, used ring.
        for (i, descriptor) in descriptors.iter().enumerate() {
            memory.write_at(16 * i, &descriptor.encode());
        }
        let available = 128;
        memory.write_at(available + split::ENTRIES, &head.to_le_bytes());
        memory.write_at(available + split::INDEX, &index.to_le_bytes());
        self.disk.queues[0].kick();
    }

    /// It is broken, yet it can be stopped.
    fn stop(self) {
        self.disk.client().unwrap().ask(&Message::GetVringBase(VringState { index: 0, num: 0 })).unwrap();
    }
}

#[test]
fn a_driver_that_breaks_its_ring_hears_of_it_and_loses_only_that() {
    let rig = Rig::new("memory:16M", 1);
    const NEXT: u16 = descriptor_flag::NEXT;
    const WRITE: u16 = descriptor_flag::WRITE;
    const INDIRECT: u16 = descriptor_flag::INDIRECT;
    let good = rig.disk(Options::default()).guest.region().guest;
    let d = |address, len, flags, next| Descriptor { address, len, flags, next };
    let cases: Vec<(u16, u16, Vec<Descriptor>)> = vec![
        (8, 1, vec![]),                                                      // no such descriptor
        (0, 9, vec![]),                                                      // further than there is room
        (0, 1, vec![d(good, 16, NEXT, 0)]),                                  // a loop
        (0, 1, vec![d(good, 16, NEXT, 1), d(good, 1, NEXT | WRITE, 0)]),     // a longer one
        (0, 1, vec![d(good, 16, NEXT, 8)]),                                  // out of the table
        (0, 1, vec![d(1, 16, NEXT, 1), d(good, 1, WRITE, 0)]),               // not its memory
        (0, 1, vec![d(u64::MAX - 3, 16, 0, 0)]),                             // around the end
        (0, 1, vec![d(good, u32::MAX, NEXT, 1), d(good, 1, WRITE, 0)]),      // over the end
        (0, 1, vec![d(good, 16, 0, 0)]),                                     // no status
        (0, 1, vec![d(good, 15, NEXT, 1), d(good, 1, WRITE, 0)]),            // no whole header
        (0, 1, vec![d(good, 1, WRITE | NEXT, 1), d(good, 16, 0, 0)]),        // the wrong way round
        (0, 1, vec![d(good, 17, INDIRECT, 0)]),                              // no whole table
        (0, 1, vec![d(good, 0, INDIRECT, 0)]),                               // an empty one
        (0, 1, vec![d(good, 1 << 20, INDIRECT, 0)]),                         // a huge one
        (0, 1, vec![d(good, 16, INDIRECT | NEXT, 1), d(good, 1, WRITE, 0)]), // one that goes on
        (0, 1, vec![d(good, 16, NEXT, 1), d(good, 16, INDIRECT, 0)]),        // behind a chain, out of itself
        (0, 1, vec![d(good, 16, NEXT, 1), d(good + 16, 16, INDIRECT, 0)]),   // there, one in itself
        (0, 1, vec![d(good, 16, INDIRECT, 0)]),                              // one in itself
    ];
    for (head, index, descriptors) in cases {
        Broken::new(&rig).offer(head, index, &descriptors);
        still_serves(&rig);
    }
    rig.stop();
}

/// Regions of 16 bytes, one behind the other in the guest's addresses, all at the beginning of a file; where the first is.
fn many_regions(client: &Client, regions: u64) -> (u64, Buffer) {
    let file = File::from(memfd_create("regions", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&file, 4096).unwrap();
    let start = 1 << 40;
    for n in 0..regions {
        let address = start + 16 * n;
        let region = Region { guest: address, size: 16, user: address, offset: 0 };
        client.tell(&Message::AddMemReg(region), &[file.as_fd()]).unwrap();
    }
    (start, Buffer::of_mapping(&Mapping::new(file.as_fd(), 4096).unwrap(), 0, 4096))
}

#[test]
fn a_request_in_hundreds_of_thousands_of_pieces_fails_and_is_not_taken_apart() {
    const REGIONS: u64 = 480;
    let rig = Rig::new("memory:16M", 1);
    let mut broken = Broken::new(&rig);
    let (start, shared) = many_regions(broken.disk.client().unwrap(), REGIONS);
    let all = u32::try_from(16 * REGIONS).unwrap();
    let guest = &broken.disk.guest;
    let memory = guest.memory.clone();
    let (header, table) = (1 << 11, 1 << 12);
    let address = |offset: usize| guest.region().guest + offset as u64;
    let indirect =
        Descriptor { address: address(table), len: 16 << 10, flags: descriptor_flag::INDIRECT, next: 0 };
    let header_at = address(header);
    memory.write_at(header, &RequestHeader { kind: request::IN, sector: 0 }.encode());
    let put = |n: u16, address: u64, len: u32, flags: u16| {
        let descriptor = Descriptor { address, len, flags, next: n + 1 };
        memory.write_at(table + 16 * usize::from(n), &descriptor.encode());
    };
    let used = Area::at_user(broken.disk.queues[0].address(0).used, 4).offset + split::INDEX;
    let told = |of: &Buffer, at: usize, requests: u16| {
        until(|| memory.load_u16(used, Ordering::Acquire) == requests);
        let mut told = [0];
        of.read_at(at, &mut told);
        told[0]
    };
    put(0, header_at, 16, descriptor_flag::NEXT);
    // All regions once: as many pieces as anybody may need.
    put(1, start, all, descriptor_flag::WRITE | descriptor_flag::NEXT);
    put(2, header_at + 16, 1, descriptor_flag::WRITE);
    memory.write_at(header + 16, &[0xff]);
    broken.send(0, 1, &[indirect]);
    assert_eq!(told(&memory, header + 16, 1), status::OK);
    // A thousand times, and the status behind another block, in a piece of its own.
    (1..1023).for_each(|n| put(n, start, all, descriptor_flag::WRITE | descriptor_flag::NEXT));
    put(1023, start, 512 + 1, descriptor_flag::WRITE);
    broken.send(0, 2, &[indirect]);
    assert_eq!(told(&shared, 0, 2), status::IOERR);
    broken.stop();
    still_serves(&rig);
    rig.stop();
}

#[test]
fn memory_that_is_cut_short_costs_the_guest_its_disk() {
    let rig = Rig::new("memory:16M", 1);
    for kind in kinds() {
        let mut disk = rig.disk(kind);
        write(&mut disk, 0, 0, &[1; 4096]);
        let error = errors_of(&disk);
        ftruncate(&disk.guest.file, 0).unwrap();
        disk.queues[0].kick();
        // The device finds out, says so though nobody calls it any more, and lets go; the session goes on until the front end does.
        wait_for(&error);
        // So does one that asks only then to be told.
        wait_for(&errors_of(&disk));
        disk.client().unwrap().ask(&Message::GetVringBase(VringState { index: 0, num: 0 })).unwrap();
        drop(disk);
        still_serves(&rig);
    }
    rig.stop();
}

#[test]
fn memory_may_be_taken_away_while_requests_are_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let rig = Rig::new(path.to_str().unwrap(), 2);
    for round in 0..20 {
        let options = Options { requests: 64, data_bytes: 64 << 10, ..Options::default() };
        let mut disk = rig.disk(options);
        for i in 0..64 {
            let sector = (round * 64 + i) % 200 * 128;
            disk.start(0, Request { kind: request::OUT, sector, len: 64 << 10 }).unwrap();
        }
        let region = disk.guest.region();
        disk.client().unwrap().tell(&Message::RemMemReg(region), &[]).unwrap();
        // What was taken is answered before the removal is.
        let done = std::iter::from_fn(|| disk.finished(0)).count();
        let file = disk.guest.file.try_clone().unwrap();
        disk.client().unwrap().tell(&Message::AddMemReg(region), &[file.as_fd()]).unwrap();
        disk.client()
            .unwrap()
            .tell(
                &Message::SetVringKick(VringFile { index: 0, has_file: true }),
                &[eventfd(1, EventfdFlags::empty()).unwrap().as_fd()],
            )
            .unwrap();
        for _ in done..64 {
            assert_eq!(disk.wait(0, Duration::from_secs(20)).unwrap().status, status::OK);
        }
        if round % 2 == 0 {
            // Gone with requests in flight.
            for i in 0..64 {
                disk.start(0, Request { kind: request::OUT, sector: i * 128, len: 64 << 10 }).unwrap();
            }
        }
    }
    still_serves(&rig);
    rig.stop();
}

#[test]
fn a_ring_that_cannot_be_where_it_is_said_to_be_is_broken() {
    let rig = Rig::new("memory:16M", 1);
    for kind in kinds() {
        let disk = rig.disk(kind);
        let good = disk.queues[0].address(0);
        let client = disk.client().unwrap();
        let error = errors_of(&disk);
        for bad in [
            VringAddr { descriptors: 1, ..good },
            VringAddr { descriptors: good.descriptors + 1, ..good },
            VringAddr { available: good.available + 1, ..good },
            VringAddr { used: u64::MAX, ..good },
            VringAddr { used: good.descriptors + disk.guest.region().size - 2, ..good },
        ] {
            client.tell(&Message::SetVringAddr(bad), &[]).unwrap();
            wait_for(&error);
        }
        client.tell(&Message::SetVringAddr(good), &[]).unwrap();
        drop(disk);
    }
    still_serves(&rig);
    rig.stop();
}

#[test]
fn who_cannot_be_told_of_an_error_keeps_nobody_waiting() {
    let rig = Rig::new("memory:16M", 1);
    // It takes no more: whoever writes to it waits.
    let mut broken = Broken::telling(&rig, u64::MAX - 1);
    broken.send(8, 1, &[]);
    broken.stop();
    still_serves(&rig);
    rig.stop();
}

/// Looks until this is so.
fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "it does not come to that");
        std::thread::yield_now();
    }
}

/// Writes of this process's rings that the kernel keeps until somebody takes them.
fn writes_that_wait() -> usize {
    let lines = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let all: String = infos.map(|info| lines(info.unwrap().path())).collect();
    // IORING_OP_WRITE, as the kernel's io_uring/fdinfo.c tells of it.
    all.lines().filter(|line| line.trim_start().starts_with("op=23,")).count()
}

#[test]
fn calls_that_are_not_taken_wait_no_longer_than_somebody_is_called_so() {
    let rig = Rig::new("memory:16M", 1);
    // It takes no more: whoever writes to it waits.
    let full = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let at = VringFile { index: 0, has_file: true };
    let call_by_it = |disk: &mut Disk| {
        disk.client().unwrap().tell(&Message::SetVringCall(at), &[full.as_fd()]).unwrap();
        // It is obeyed by the time that a request is done.
        disk.start(0, Request { kind: request::IN, sector: 0, len: 512 }).unwrap();
        until(|| disk.finished(0).is_some());
    };
    let mut disk = rig.disk(Options::default());
    call_by_it(&mut disk);
    until(|| writes_that_wait() > 0);
    (0..200).for_each(|_| call_by_it(&mut disk));
    // Another test may have a few.
    let waiting = writes_that_wait();
    assert!(waiting < 20, "{waiting} after other eventfds were set");
    drop(disk);
    for _ in 0..50 {
        call_by_it(&mut rig.disk(Options::default()));
    }
    still_serves(&rig);
    let waiting = writes_that_wait();
    assert!(waiting < 20, "{waiting} after their front ends have gone");
    rig.stop();
}

#[test]
fn marks_that_do_not_fit_the_ring_break_it() {
    let rig = Rig::new("memory:16M", 1);
    let memory = memfd_create("marks", MemfdFlags::CLOEXEC).unwrap();
    let size = inflight::queue_bytes(128, false) as u64;
    ftruncate(&memory, size).unwrap();
    let area = InflightArea { size, offset: 0, queues: 1, queue_size: 128 };
    for packed in [false, true] {
        let mut disk = rig.disk(Options { packed, ..Options::default() });
        // For fewer descriptors than the ring has.
        let few = Message::SetInflightFd(InflightArea { queue_size: 1, ..area });
        let error = errors_of(&disk);
        disk.client().unwrap().tell(&few, &[memory.as_fd()]).unwrap();
        wait_for(&error);
        for _ in 0..16 {
            disk.start(0, Request { kind: request::IN, sector: 0, len: 512 }).unwrap();
        }
        disk.client().unwrap().ask(&Message::GetVringBase(VringState { index: 0, num: 0 })).unwrap();
        drop(disk);
        still_serves(&rig);
    }
    // As large as those of the one kind of ring, and then it is of the other kind.
    let disk = rig.disk(Options::default());
    let client = disk.client().unwrap();
    let error = errors_of(&disk);
    client.tell(&Message::SetInflightFd(area), &[memory.as_fd()]).unwrap();
    let all = client.number(&Message::GetFeatures).unwrap();
    // With that one it would wait for a log.
    client.tell(&Message::SetFeatures(all & !FEATURE_LOG_ALL), &[]).unwrap();
    wait_for(&error);
    drop(disk);
    still_serves(&rig);
    rig.stop();
}

/// What it gives keeps the connection open at our own end, or keeps that, unread.
#[test]
fn a_front_end_that_gives_its_own_end_away_keeps_the_disk_from_nobody_once_it_is_gone() {
    for is_hidden in [false, true] {
        let rig = Rig::new("memory:16M", 1);
        let mut gone = rig.disk(Options::default());
        assert_eq!(write(&mut gone, 0, 0, &[1; 512]).status, status::OK);
        let client = gone.client.take().unwrap();
        let own = client.as_fd().try_clone_to_owned().unwrap();
        let given = if is_hidden {
            let (near, far) = UnixStream::pair().unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let files = [own.as_fd()];
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
            sendmsg(&near, &[IoSlice::new(&[0])], &mut control, SendFlags::empty()).unwrap();
            far.into()
        } else {
            own.try_clone().unwrap()
        };
        client.tell(&Message::SetBackendReqFd, &[given.as_fd()]).unwrap();
        drop((client, own, given, gone));
        still_serves(&rig);
        rig.stop();
    }
}
