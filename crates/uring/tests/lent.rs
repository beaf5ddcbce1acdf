//! Mappings that were lent to the kernel, against the kernel: what goes by them has the same bytes and lands where it belongs, and what was taken back is
//! let go of, no sooner than nothing is under way by it. One test at a time: what the process has pinned is the process's.

mod known_support;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blockwork_engine::{Env, FileOpKind, Wait};
use blockwork_memory::{Buffer, Mapping, PIECE_BYTES, Segment};
use blockwork_uring::{AsKernel, Io, Uring, UringConfig};
use known_support::{begin, end, files, forbid_registering, pattern, ring, run, text};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const PATIENCE: Duration = Duration::from_secs(30);
const WRITE: FileOpKind = FileOpKind::Write { dsync: false };
const READ: FileOpKind = FileOpKind::Read;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory as a guest shares it.
struct Shared {
    file: File,
    mapping: Arc<Mapping>,
    locked: Arc<AtomicU64>,
}

impl Shared {
    /// All of it is there, as an export makes it before workers use it.
    fn new(bytes: usize) -> Shared {
        let shared = Shared::untouched(bytes);
        (0..shared.mapping.pieces()).for_each(|piece| shared.mapping.bring(piece, || true).unwrap());
        shared
    }

    fn untouched(bytes: usize) -> Shared {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, bytes as u64).unwrap();
        let mapping = Mapping::new(file.as_fd(), bytes as u64).unwrap();
        Shared { file, mapping, locked: Arc::default() }
    }

    fn segment(&self, at: usize, len: usize) -> Segment {
        Segment::new(Buffer::of_mapping(&self.mapping, at, len), 0, len)
    }

    fn lend(&self, env: &mut Uring) {
        env.lend(&self.mapping, &self.locked);
    }

    fn locked(&self) -> u64 {
        self.locked.load(Ordering::Relaxed)
    }

    fn address(&self) -> usize {
        self.mapping.piece(0).0.addr()
    }

    /// What the guest itself sees, by another mapping than the one that was lent.
    fn seen(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, at as u64).unwrap();
        bytes
    }
}

/// Bytes that the kernel says this process has pinned.
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Turns as a worker does that has nothing to do, until that is so.
fn turn_until(env: &mut Uring, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE);
        env.wait(Wait::Poll, &mut Vec::new());
    }
}

/// Operations until one goes by known memory: pieces are told of with rests in between.
fn until_known(env: &mut Uring, file: &File, data: &Segment) {
    let began = Instant::now();
    while !run(env, file, READ, 0, data).0 {
        assert!(began.elapsed() < PATIENCE);
    }
}

#[test]
fn lent_memory_brings_and_takes_the_same_bytes() {
    let _alone = alone();
    let (mut env, guest) = (ring(), Shared::new(2 * PIECE_BYTES));
    for file in files() {
        guest.lend(&mut env);
        // In the first piece, at its very end, and in the second.
        let places = [0x3000, PIECE_BYTES - 65536, PIECE_BYTES, 2 * PIECE_BYTES - 65536];
        for (seed, at) in places.into_iter().enumerate() {
            let (data, offset) = (guest.segment(at, 65536), seed as u64 * 65536);
            until_known(&mut env, &file, &data);
            data.write_at(0, &pattern(seed, 65536));
            assert_eq!(run(&mut env, &file, WRITE, offset, &data), (true, 65536));
            data.fill(0xee);
            assert_eq!(run(&mut env, &file, READ, offset, &data), (true, 65536));
            assert!(guest.seen(at, 65536) == pattern(seed, 65536), "at {at:#x}");
        }
    }
    assert_eq!(guest.locked(), 2 * PIECE_BYTES as u64, "once, however often it is lent");
    // What lies in both is in neither.
    let both = guest.segment(PIECE_BYTES - 4096, 8192);
    assert_eq!(run(&mut env, &files()[0], WRITE, 0, &both), (false, 8192));
    // And one who has lent it has it still.
    env.take_back(&guest.mapping);
    assert!(run(&mut env, &files()[0], READ, 0, &guest.segment(0, 4096)).0);
}

#[test]
fn memory_that_was_not_lent_or_not_brought_goes_as_usual() {
    let _alone = alone();
    let (mut env, file, before) = (ring(), &files()[0], pinned());
    let (other, lent, empty) =
        (Shared::new(PIECE_BYTES), Shared::new(PIECE_BYTES), Shared::untouched(PIECE_BYTES));
    lent.lend(&mut env);
    empty.lend(&mut env);
    until_known(&mut env, file, &lent.segment(0, 4096));
    for _ in 0..1000 {
        for shared in [&other, &empty] {
            assert_eq!(run(&mut env, file, READ, 0, &shared.segment(0, 4096)), (false, 4096));
        }
    }
    assert_eq!((other.locked(), empty.locked()), (0, 0));
    assert_eq!(pinned() - before, PIECE_BYTES as u64);
    drop(env);
    assert_eq!((lent.locked(), pinned()), (0, before));
}

#[test]
fn what_was_taken_back_is_let_go_of() {
    let _alone = alone();
    let (mut env, file, before) = (ring(), &files()[0], pinned());
    let guest = Shared::new(3 * PIECE_BYTES);
    guest.lend(&mut env);
    (0..3).for_each(|piece| until_known(&mut env, file, &guest.segment(piece * PIECE_BYTES, 4096)));
    assert_eq!(pinned() - before, 3 * PIECE_BYTES as u64);
    env.take_back(&guest.mapping);
    assert_eq!(run(&mut env, file, READ, 0, &guest.segment(0, 4096)), (false, 4096), "from then on");
    turn_until(&mut env, || pinned() == before);
    assert_eq!(guest.locked(), 0);
    // The mapping, too, once the list has seen that nothing of it is known.
    turn_until(&mut env, || Arc::strong_count(&guest.mapping) == 1);
    // It may be lent again, also before all of it is forgotten.
    guest.lend(&mut env);
    (0..3).for_each(|piece| until_known(&mut env, file, &guest.segment(piece * PIECE_BYTES, 4096)));
    env.take_back(&guest.mapping);
    turn_until(&mut env, || guest.locked() < 3 * PIECE_BYTES as u64);
    guest.lend(&mut env);
    let kept = guest.locked();
    assert!(kept > 0, "a piece at a time");
    for _ in 0..100 {
        env.wait(Wait::Poll, &mut Vec::new());
    }
    assert_eq!(guest.locked(), kept);
    (0..3).for_each(|piece| until_known(&mut env, file, &guest.segment(piece * PIECE_BYTES, 4096)));
}

/// The dangerous one: addresses, places in lists and the kernel's numbers all come again, and what is read must never land in what had them before.
#[test]
fn memory_that_comes_in_the_place_of_other_memory_is_not_mixed_up_with_it() {
    let _alone = alone();
    let (mut env, [direct, buffered]) = (ring(), files());
    buffered.write_all_at(&pattern(1, 65536), 0).unwrap();
    buffered.sync_all().unwrap();
    let (mut addresses, mut same) = (Vec::new(), 0);
    let mut gone: Vec<File> = Vec::new();
    for round in 0..20 {
        let guest = Shared::new(PIECE_BYTES);
        same += usize::from(addresses.contains(&guest.address()));
        addresses.push(guest.address());
        let data = guest.segment(0x5000, 65536);
        guest.lend(&mut env);
        let mut known = false;
        let began = Instant::now();
        while !known && began.elapsed() < PATIENCE {
            data.fill(0xee);
            let (is_known, result) = run(&mut env, &direct, READ, 0, &data);
            (known, _) = (is_known, assert_eq!(result, 65536));
            assert!(guest.seen(0x5000, 65536) == pattern(1, 65536), "round {round}: it has what was read");
        }
        assert!(known);
        for file in &gone {
            let mut bytes = [0; 16];
            file.read_exact_at(&mut bytes, 0x5000).unwrap();
            assert_eq!(bytes, [0xaa; 16], "round {round}: memory of one that has gone was written to");
        }
        // It goes, with a mark in it that nobody may change any more.
        data.fill(0xaa);
        env.take_back(&guest.mapping);
        let Shared { file, mapping, .. } = guest;
        let weak = Arc::downgrade(&mapping);
        drop((mapping, data));
        gone.push(file);
        // The next one comes before it is forgotten, or after.
        if round % 2 == 0 {
            turn_until(&mut env, || weak.strong_count() == 0);
        }
    }
    assert!(same > 0, "no address came again, so nothing was tried: {addresses:x?}");
}

#[test]
fn what_is_under_way_keeps_its_memory_until_it_has_ended() {
    let _alone = alone();
    let (mut env, file, before) = (ring(), &files()[0], pinned());
    let guest = Shared::new(PIECE_BYTES);
    guest.lend(&mut env);
    let data = guest.segment(0x7000, 4096);
    until_known(&mut env, file, &data);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let reader = File::from(std::os::fd::OwnedFd::from(reader));
    // Not even handed to the kernel yet.
    assert!(begin(&mut env, 7, &reader, READ, 0, &data));
    env.take_back(&guest.mapping);
    drop(data);
    for _ in 0..100 {
        let mut out = Vec::new();
        env.wait(Wait::Poll, &mut out);
        assert!(out.is_empty(), "nobody has written");
    }
    assert_eq!((guest.locked(), pinned() - before), (PIECE_BYTES as u64, PIECE_BYTES as u64));
    writer.write_all(b"late").unwrap();
    assert_eq!(end(&mut env, 1)[0].result, 4);
    assert_eq!(guest.seen(0x7000, 4), b"late");
    turn_until(&mut env, || pinned() == before);
}

#[test]
fn where_it_cannot_be_lent_all_goes_as_usual() {
    let _alone = alone();
    // IORING_REGISTER_BUFFERS2 and IORING_REGISTER_BUFFERS_UPDATE; the last of one piece alone, which says nothing of others.
    for (operation, errno) in [(15, libc::EINVAL), (16, libc::ENOMEM), (16, libc::EFAULT)] {
        let refused = std::thread::spawn(move || {
            forbid_registering(operation, errno);
            goes_as_usual(ring());
        });
        refused.join().unwrap();
    }
    let newest = UringConfig::default();
    for config in
        [UringConfig { as_kernel: AsKernel::V5_11, ..newest }, UringConfig { io: Io::Threads, ..newest }]
    {
        goes_as_usual(Uring::new(&config).unwrap());
    }
}

fn goes_as_usual(mut env: Uring) {
    let (guest, file) = (Shared::new(PIECE_BYTES), &files()[0]);
    guest.lend(&mut env);
    let data = guest.segment(0, 65536);
    for seed in 0..3 {
        data.write_at(0, &pattern(seed, 65536));
        assert_eq!(run(&mut env, file, WRITE, 0, &data), (false, 65536));
        data.fill(0xee);
        assert_eq!(run(&mut env, file, READ, 0, &data), (false, 65536));
        assert!(text(&data) == pattern(seed, 65536));
    }
    assert_eq!(guest.locked(), 0);
    env.take_back(&guest.mapping);
    drop(data);
    turn_until(&mut env, || Arc::strong_count(&guest.mapping) == 1);
}
