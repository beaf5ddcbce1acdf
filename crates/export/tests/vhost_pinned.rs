//! Guests' memory that is pinned: requests go by io_uring's registered buffers, and none by those of memory that is not the guest's any more.

mod vhost_support;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use blockwork_engine::Counter;
use blockwork_export::vhost::GuestPages;
use blockwork_format::vhost_user::Message;
use blockwork_format::virtio::blk::{request, status};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tempfile::TempDir;
use vhost_support::{Rig, kinds, read, write};
use vhostload::{Disk, Guest, Options, Request};

const PATIENCE: Duration = Duration::from_secs(30);
const BLOCK: usize = 4096;
/// Sectors of a block.
const EACH: u64 = 8;

/// A disk with O_DIRECT of which each block is its number, again and again. Its requests go by known memory wherever that can be, and nobody reads ahead,
/// into memory of ours.
struct Image {
    _folder: TempDir,
    spec: String,
}

impl Image {
    fn new() -> Image {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("disk.img");
        let blocks: Vec<u8> = (0..1024_u64).flat_map(block).collect();
        std::fs::write(&path, blocks).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let spec = format!("{},direct=on,lock=off,fixed=on,read_ahead_kb=0", path.display());
        Image { _folder: folder, spec }
    }
}

fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

fn pinned(spec: &str, workers: usize) -> Rig {
    Rig::with_pages(&[spec], workers, GuestPages::Pinned)
}

/// Reads a block; whether it went by known memory.
fn reads(rig: &Rig, disk: &mut Disk, number: u64) -> bool {
    let before = rig.count(Counter::Fixed);
    let (finished, data) = read(disk, 0, number * EACH, BLOCK);
    assert_eq!(finished.status, status::OK);
    assert!(data == block(number), "block {number}");
    rig.count(Counter::Fixed) > before
}

/// Reads until that goes by known memory: it is brought by another thread, after the front end has shared it.
fn until_known(rig: &Rig, disk: &mut Disk) {
    let began = Instant::now();
    while !reads(rig, disk, 5) {
        assert!(began.elapsed() < PATIENCE, "{:?} bytes are locked", rig.locked());
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn every_kind_of_ring_reads_and_writes_the_same_by_pinned_memory() {
    let image = Image::new();
    let rig = pinned(&image.spec, 1);
    for (number, kind) in (100..).zip(kinds()) {
        let mut disk = rig.disk(kind);
        until_known(&rig, &mut disk);
        assert_eq!(rig.locked(), Some(disk.guest.memory.len() as u64));
        assert!(reads(&rig, &mut disk, number));
        let before = rig.count(Counter::Fixed);
        assert_eq!(write(&mut disk, 0, number * EACH, &block(7 * number)).status, status::OK);
        assert_eq!(rig.count(Counter::Fixed), before + 1);
        assert!(read(&mut disk, 0, number * EACH, BLOCK).1 == block(7 * number));
        drop(disk);
        until("nothing of a guest that has gone is locked", || rig.locked() == Some(0));
    }
    rig.stop();
}

#[test]
fn memory_of_guests_is_not_known_to_the_kernel_where_nobody_has_asked_for_it() {
    let image = Image::new();
    let rig = Rig::new(&image.spec, 1);
    let mut disk = rig.disk(Options::default());
    for number in 0..500 {
        assert!(!reads(&rig, &mut disk, number));
    }
    assert_eq!((rig.locked(), rig.count(Counter::Fixed)), (None, 0));
    drop(disk);
    rig.stop();
}

/// The queues of one guest on one worker share what the kernel knows, on two each has its own, and one that stops takes nothing from others.
#[test]
fn queues_lock_the_memory_once_for_each_worker() {
    let image = Image::new();
    for workers in [1, 2] {
        let rig = pinned(&image.spec, workers);
        let mut disk = rig.disk(Options { queues: 4, ..Options::default() });
        let all = (workers * disk.guest.memory.len()) as u64;
        let began = Instant::now();
        while rig.locked() != Some(all) {
            assert!(began.elapsed() < PATIENCE, "{:?} of {all} bytes are locked", rig.locked());
            (0..4).for_each(|queue| assert!(read(&mut disk, queue, EACH, BLOCK).1 == block(1)));
        }
        let state = blockwork_format::vhost_user::VringState { index: 1, num: 0 };
        disk.client().unwrap().tell(&Message::SetVringEnable(state), &[]).unwrap();
        assert!(reads(&rig, &mut disk, 9) && rig.locked() == Some(all));
        drop(disk);
        until("nothing is locked", || rig.locked() == Some(0));
        rig.stop();
    }
}

#[test]
fn pages_that_are_read_into_by_pinned_memory_are_marked_while_the_guest_moves() {
    let image = Image::new();
    let rig = pinned(&image.spec, 1);
    let mut disk = rig.disk(Options::default());
    disk.log_writes(true).unwrap();
    until_known(&rig, &mut disk);
    disk.written_pages();
    let before = rig.count(Counter::Fixed);
    let (finished, data) = read(&mut disk, 0, 33 * EACH, BLOCK);
    assert!(data == block(33) && rig.count(Counter::Fixed) == before + 1);
    let area = disk.queues[0].data(finished.id);
    let last = area.offset + BLOCK - 1;
    let pages = area.offset / BLOCK..=last / BLOCK;
    let marked = disk.written_pages();
    assert!(pages.into_iter().all(|page| marked.contains(&(page * BLOCK))), "{area:?} of {marked:?}");
    drop(disk);
    rig.stop();
}

/// Has the guest's memory be another file from now on, with what it holds, at the same addresses; the one of before.
fn replug(disk: &mut Disk) -> File {
    let len = disk.guest.memory.len();
    let (region, next) = (disk.guest.region(), Guest::new(len).unwrap());
    disk.client().unwrap().tell(&Message::RemMemReg(region), &[]).unwrap();
    next.memory.copy_from(0, &disk.guest.memory, 0, len);
    disk.client().unwrap().tell(&Message::AddMemReg(region), &[next.file.as_fd()]).unwrap();
    std::mem::replace(&mut disk.guest, next).file
}

/// Where a region is removed and another one comes at the same addresses, what is read lands in that one, and never in what had them before.
#[test]
fn memory_that_comes_at_the_addresses_of_other_memory_is_not_mixed_up_with_it() {
    let image = Image::new();
    let rig = pinned(&image.spec, 1);
    let mut disk = rig.disk(Options::default());
    let mut gone: Vec<(File, Vec<u8>)> = Vec::new();
    let content = |file: &File, len| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    for round in 0..12 {
        // Each read is looked at: by the old way, and by the new one when that is there.
        until_known(&rig, &mut disk);
        for number in 0..40 {
            assert!(reads(&rig, &mut disk, 40 * round + number), "it is known by now");
        }
        for (file, before) in &gone {
            assert!(content(file, before.len()) == *before, "round {round}: what has gone was written to");
        }
        let len = disk.guest.memory.len();
        let file = replug(&mut disk);
        let before = content(&file, len);
        gone.push((file, before));
        assert!(rig.locked().unwrap() <= 2 * len as u64);
        if round % 3 == 0 {
            // Once the kernel has forgotten it, its number there is the next one's.
            until("what is gone is unlocked", || rig.locked().unwrap() <= len as u64);
        }
    }
    drop(disk);
    until("nothing is locked", || rig.locked() == Some(0));
    rig.stop();
}

#[test]
fn requests_under_way_end_before_their_memory_goes_and_the_next_one_has_the_rest() {
    let image = Image::new();
    let rig = pinned(&image.spec, 1);
    let mut disk = rig.disk(Options { requests: 64, ..Options::default() });
    until_known(&rig, &mut disk);
    for round in 0..20 {
        let mut numbers = vec![None; 64];
        for number in 0..64 {
            let sector = (64 * (round % 15) + number) * EACH;
            let id = disk.start(0, Request { kind: request::IN, sector, len: BLOCK }).unwrap();
            numbers[usize::from(id)] = Some(sector / EACH);
        }
        replug(&mut disk);
        // A queue that has stopped and goes on looks at its ring by itself.
        for _ in 0..64 {
            let finished = disk.wait(0, PATIENCE).unwrap();
            assert_eq!(finished.status, status::OK);
            let mut data = vec![0; BLOCK];
            disk.read_data(0, finished.id, &mut data);
            let number = numbers[usize::from(finished.id)].take().expect("it was asked for");
            assert!(data == block(number), "round {round}: block {number}");
        }
    }
    drop(disk);
    rig.stop();
}

const LIMITED: &str = "TEST_OF_PINNED_MEMORY_RUNS";

/// Runs itself in another process: the limit is the process's.
#[test]
fn where_less_may_be_locked_the_rest_goes_as_usual() {
    if std::env::var_os(LIMITED).is_none() {
        let itself = std::env::current_exe().unwrap();
        let name = "where_less_may_be_locked_the_rest_goes_as_usual";
        let output =
            Command::new(itself).args(["--exact", name, "--nocapture"]).env(LIMITED, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("nothing else is locked"), "{output:?}");
        return;
    }
    let mut may = capabilities(None).unwrap();
    may.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, may).unwrap();
    let bytes = 5 << 20;
    setrlimit(Resource::Memlock, Rlimit { current: Some(bytes), maximum: Some(bytes) }).unwrap();
    let images = [Image::new(), Image::new()];
    let rig = Rig::with_pages(&[&images[0].spec, &images[1].spec], 1, GuestPages::Pinned);
    let guest = |disk, mib: usize| {
        let options = Options { requests: 16, data_bytes: mib << 16, ..Options::default() };
        Disk::new(&rig.socket_of(disk), options).unwrap()
    };
    let reads_right = |disk: &mut Disk, number| {
        let (finished, data) = read(disk, 0, number * EACH, BLOCK);
        assert!(finished.status == status::OK && data == block(number), "block {number}");
    };
    let mut first = guest(0, 3);
    until_known(&rig, &mut first);
    // Alone it would not be too much.
    let mut second = guest(1, 3);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        (0..100).for_each(|number| reads_right(&mut second, number));
    }
    assert!(rig.locked_for(0) > Some(3 << 20) && rig.locked_for(1) == Some(0));
    // When the first one has gone there is room.
    drop(first);
    let began = Instant::now();
    while rig.locked_for(1) == Some(0) {
        assert!(began.elapsed() < PATIENCE);
        reads_right(&mut second, 17);
    }
    drop(second);
    // One that is too large by itself is not even brought.
    let mut third = guest(1, 6);
    for number in 0..1000 {
        reads_right(&mut third, number);
    }
    assert_eq!((rig.locked_for(0), rig.locked_for(1)), (Some(0), Some(0)));
    let blocks = std::os::unix::fs::MetadataExt::blocks(&third.guest.file.metadata().unwrap());
    assert!(blocks * 512 < 6 << 20, "{blocks} sectors of it are there");
    println!("nothing else is locked");
    drop(third);
    rig.stop();
}
