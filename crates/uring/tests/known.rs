//! Memory that the kernel knows, against the kernel: what goes by it has the same bytes, what it was not told of goes as usual, and it is
//! never told more than may be locked. A test that lowers the limit of locked memory runs in a process of its own.

mod known_support;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::rc::Rc;

use blockwork_engine::{Env, FileId, FileOp, FileOpKind, Token};
use blockwork_memory::{Buffer, Pool, SLAB_BYTES, Segment};
use blockwork_uring::{AsKernel, Io, Uring, UringConfig};
use known_support::{begin, end, files, forbid_registering, pattern, ring, run, text};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const POOL: usize = 64 << 20;
const WRITE: FileOpKind = FileOpKind::Write { dsync: false };

fn segment(pool: &Pool, len: usize) -> Segment {
    Segment::new(pool.get(len), 0, len)
}

#[test]
fn known_memory_brings_and_takes_the_same_bytes() {
    let (mut env, pool) = (ring(), Pool::with_slabs(POOL));
    for file in files() {
        // Of each class, whole and in part, at offsets of their own within slabs.
        let _shifted: Vec<_> = [4096, 16384, 65536].map(|len| pool.get(len)).into();
        for (seed, len) in [512, 4096, 12288, 65536, 200_704, (1 << 20) - 4096].into_iter().enumerate() {
            let (data, at) = (segment(&pool, len + 4096).slice(4096, len), seed as u64 * (1 << 20));
            data.write_at(0, &pattern(seed, len));
            let kind = FileOpKind::Write { dsync: seed % 2 == 0 };
            assert_eq!(run(&mut env, &file, kind, at, &data), (true, len as i32));
            let mut there = vec![0; len];
            // Through the page cache: what direct I/O has written is on the disk.
            File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
                .unwrap()
                .read_exact_at(&mut there, at)
                .unwrap();
            assert!(there == pattern(seed, len), "{len} bytes were written");
            let into = segment(&pool, len);
            into.fill(0xee);
            assert_eq!(run(&mut env, &file, FileOpKind::Read, at, &into), (true, len as i32));
            assert!(text(&into) == pattern(seed, len), "{len} bytes were read");
        }
    }
}

#[test]
fn many_at_once_keep_their_places() {
    let (mut env, pool) = (ring(), Pool::with_slabs(POOL));
    let [direct, buffered] = files();
    let content = pattern(3, 8 << 20);
    buffered.write_all_at(&content, 0).unwrap();
    let all: Vec<_> = (0..128).map(|_| segment(&pool, 65536)).collect();
    let mut known = 0;
    for (i, into) in (0_u64..).zip(&all) {
        known += u64::from(begin(&mut env, i, &direct, FileOpKind::Read, (i * 37 % 128) * 65536, into));
    }
    assert!(end(&mut env, 128).iter().all(|done| done.result == 65536));
    assert_eq!((known, env.fixed()), (128, 128), "four slabs");
    for (i, into) in all.iter().enumerate() {
        assert!(text(into) == content[i * 37 % 128 * 65536..][..65536], "read {i}");
    }
}

#[test]
fn memory_of_other_kinds_and_of_other_pools_goes_as_usual() {
    let (mut env, pool, other) = (ring(), Pool::with_slabs(POOL), Pool::with_slabs(POOL));
    let file = &files()[0];
    let wide = Segment::new(Buffer::new(8192), 0, 8192);
    wide.write_at(0, &pattern(1, 8192));
    assert_eq!(run(&mut env, file, WRITE, 0, &wide), (false, 8192));
    let ours = segment(&pool, 8192);
    assert_eq!(run(&mut env, file, FileOpKind::Read, 0, &ours), (true, 8192));
    assert!(text(&ours) == pattern(1, 8192));
    // It has the same number as the first pool's, and other addresses.
    let theirs = segment(&other, 8192);
    assert_eq!(theirs.buffer().slab().unwrap().number(), ours.buffer().slab().unwrap().number());
    theirs.fill(0xee);
    assert_eq!(run(&mut env, file, FileOpKind::Read, 0, &theirs), (false, 8192));
    assert!(text(&theirs) == pattern(1, 8192));
    // Who says that it is known although nobody was asked is not believed.
    let op = |fixed, data| FileOp {
        file: FileId(file.as_raw_fd() as u32),
        kind: FileOpKind::Read,
        offset: 0,
        len: 8192,
        data,
        fixed,
    };
    env.start(Token(1), op(true, std::slice::from_ref(&wide)));
    env.start(Token(2), op(true, &[theirs.slice(0, 4096), ours.slice(4096, 4096)]));
    assert!(end(&mut env, 2).iter().all(|done| done.result == 8192));
    assert_eq!(env.fixed(), 1);
}

#[test]
fn reads_past_the_end_are_short_and_errors_are_what_they_were() {
    let (mut env, pool) = (ring(), Pool::with_slabs(POOL));
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(9, 5000)).unwrap();
    let into = segment(&pool, 8192);
    assert_eq!(run(&mut env, &file, FileOpKind::Read, 4096, &into), (true, 904));
    assert!(text(&into)[..904] == pattern(9, 5000)[4096..]);
    assert_eq!(run(&mut env, &file, FileOpKind::Read, 1 << 40, &into), (true, 0));
    let read_only = File::open("/dev/null").unwrap();
    assert_eq!(run(&mut env, &read_only, WRITE, 0, &into), (true, -libc::EBADF));
}

#[test]
fn memory_that_the_kernel_knows_stays_where_it_is() {
    let (mut env, file) = (ring(), &files()[0]);
    let pool = Pool::with_slabs(POOL);
    let first = segment(&pool, 65536);
    let slab = Rc::downgrade(first.buffer().slab().unwrap());
    let start_of_slab = |segment: &Segment| segment.as_ptr().addr() & !(SLAB_BYTES - 1);
    let place = start_of_slab(&first);
    assert!(run(&mut env, file, FileOpKind::Read, 0, &first).0);
    drop((first, pool));
    // Whoever got the addresses of memory that the kernel still knows would not see what it reads there.
    for _ in 0..16 {
        let (pool, mut others) = (Pool::with_slabs(POOL), Vec::new());
        for len in [4096, 16384, 65536, 262_144, 1 << 20] {
            others.push(segment(&pool, len));
            assert_ne!(start_of_slab(others.last().unwrap()), place);
        }
    }
    assert_eq!(slab.strong_count(), 1, "the ring has it");
    drop(env);
    assert_eq!(slab.strong_count(), 0, "and with the ring it goes");
}

#[test]
fn older_kernels_and_threads_know_nothing() {
    let newest = UringConfig::default();
    for config in
        [UringConfig { as_kernel: AsKernel::V5_11, ..newest }, UringConfig { io: Io::Threads, ..newest }]
    {
        let (mut env, pool) = (Uring::new(&config).unwrap(), Pool::with_slabs(POOL));
        let data = segment(&pool, 65536);
        assert_eq!(run(&mut env, &files()[0], FileOpKind::Read, 0, &data), (false, 65536));
    }
}

#[test]
fn where_registering_is_refused_all_goes_as_usual() {
    // IORING_REGISTER_BUFFERS2 and IORING_REGISTER_BUFFERS_UPDATE.
    for (operation, errno) in [(15, libc::EINVAL), (15, libc::EPERM), (16, libc::ENOMEM)] {
        let refused = std::thread::spawn(move || {
            forbid_registering(operation, errno);
            let (mut env, pool, file) = (ring(), Pool::with_slabs(POOL), &files()[0]);
            for seed in 0..3 {
                let data = segment(&pool, 65536);
                data.write_at(0, &pattern(seed, 65536));
                assert_eq!(run(&mut env, file, WRITE, 0, &data), (false, 65536));
                data.fill(0xee);
                assert_eq!(run(&mut env, file, FileOpKind::Read, 0, &data), (false, 65536));
                assert!(text(&data) == pattern(seed, 65536));
            }
        });
        refused.join().unwrap();
    }
}

const LIMITED: &str = "TEST_OF_LOCKED_MEMORY_RUNS";

/// What may be locked is used, and what is beyond goes as usual. Runs itself in another process: the limit is the process's.
#[test]
fn where_little_may_be_locked_the_rest_goes_as_usual() {
    if std::env::var_os(LIMITED).is_none() {
        let itself = std::env::current_exe().unwrap();
        let name = "where_little_may_be_locked_the_rest_goes_as_usual";
        let output =
            Command::new(itself).args(["--exact", name, "--nocapture"]).env(LIMITED, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("of four slabs"), "{output:?}");
        return;
    }
    // Who may lock what they like meets no limit.
    let mut may = capabilities(None).unwrap();
    // Then others of this user hardly count, and what is known is known exactly.
    let is_exact = may.effective.contains(CapabilitySet::IPC_LOCK);
    may.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, may).unwrap();
    let bytes = 2 * SLAB_BYTES as u64 + (1 << 20);
    let limit = rustix::process::Rlimit { current: Some(bytes), maximum: Some(bytes) };
    rustix::process::setrlimit(rustix::process::Resource::Memlock, limit).unwrap();
    let (mut env, pool, file) = (ring(), Pool::with_slabs(POOL), &files()[0]);
    let all: Vec<_> = (0..4 * SLAB_BYTES / (1 << 20)).map(|_| segment(&pool, 1 << 20)).collect();
    let mut known = Vec::new();
    for (seed, data) in all.iter().enumerate() {
        data.write_at(0, &pattern(seed, 1 << 20));
        let (is_known, result) = run(&mut env, file, WRITE, (seed as u64) << 20, data);
        assert_eq!(result, 1 << 20);
        known.push(is_known);
        data.fill(0xee);
        assert_eq!(run(&mut env, file, FileOpKind::Read, (seed as u64) << 20, data), (is_known, 1 << 20));
        assert!(text(data) == pattern(seed, 1 << 20), "megabyte {seed}");
    }
    let slabs = known.iter().filter(|known| **known).count() / 2;
    assert!(known.is_sorted_by(|a, b| a >= b) && slabs <= 2 && (slabs == 2 || !is_exact), "{known:?}");
    // With the ring it is unlocked, and a new one may have as much.
    drop(env);
    let (mut env, pool) = (ring(), Pool::with_slabs(POOL));
    let again = (0..4).filter(|_| {
        let all: Vec<_> = (0..2).map(|_| segment(&pool, 1 << 20)).collect();
        let known = run(&mut env, file, FileOpKind::Read, 0, &all[0]).0;
        std::mem::forget(all);
        known
    });
    assert!(again.count() == slabs || !is_exact);
    println!("{slabs} of four slabs");
}
