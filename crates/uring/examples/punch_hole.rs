//! Measures fallocate(PUNCH_HOLE) on a sparse file: called directly, and through io_uring, which hands it to a thread of
//! the kernel's. Prints medians and the 99th percentile, in microseconds, interleaved over five rounds.
//!
//!     cargo run --release -p blockwork-uring --example punch_hole -- FOLDER

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Instant;

use blockwork_engine::{Env, FileId, FileOp, FileOpKind, Token, Wait};
use blockwork_uring::{Uring, UringConfig};
use rustix::fs::{FallocateFlags, fallocate};

const DISK: u64 = 3800 << 30;
const ROUNDS: usize = 5;
const CALLS: u64 = 1000;

fn main() {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let file = tempfile::tempfile_in(folder).expect("a file in the folder given");
    file.set_len(DISK).expect("a sparse file of 3,800 GiB");
    let mut env = Uring::new(&UringConfig::default()).expect("io_uring");
    println!("{:>10} {:>8} {:>10} {:>10} {:>12}", "bytes", "state", "how", "p50 us", "p99 us");
    for (len, allocated) in [(4096, false), (1 << 20, false), (2 << 30, false), (4096, true), (1 << 20, true)]
    {
        let (mut direct, mut ring, mut batch) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            prepare(&file, len, allocated);
            direct.extend(places(len).map(|at| {
                let start = Instant::now();
                fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
                    .expect("a hole");
                micros(start)
            }));
            prepare(&file, len, allocated);
            ring.extend(places(len).map(|at| {
                let start = Instant::now();
                punch(&mut env, &file, at, len);
                complete(&mut env, 1);
                micros(start)
            }));
            prepare(&file, len, allocated);
            let at: Vec<u64> = places(len).collect();
            batch.extend(at.chunks(32).map(|chunk| {
                let start = Instant::now();
                chunk.iter().for_each(|at| punch(&mut env, &file, *at, len));
                complete(&mut env, chunk.len());
                micros(start) / chunk.len() as f64
            }));
        }
        let state = if allocated { "data" } else { "hole" };
        for (how, mut times) in [("direct", direct), ("ring", ring), ("ring, 32", batch)] {
            times.sort_by(f64::total_cmp);
            let (half, most) = (times[times.len() / 2], times[times.len() * 99 / 100]);
            println!("{len:>10} {state:>8} {how:>10} {half:>10.1} {most:>12.1}");
        }
    }
}

fn places(len: u64) -> impl Iterator<Item = u64> {
    let step = (DISK / CALLS / 4096 * 4096).max(len);
    (0..CALLS).map(move |i| i * step).take_while(move |at| at + len <= DISK)
}

fn prepare(file: &File, len: u64, allocated: bool) {
    if allocated {
        for at in places(len) {
            fallocate(file, FallocateFlags::KEEP_SIZE, at, len).expect("room for the data");
        }
    }
}

fn punch(env: &mut Uring, file: &File, offset: u64, len: u64) {
    let id = FileId(u32::try_from(file.as_raw_fd()).expect("an open descriptor"));
    env.start(
        Token(offset),
        FileOp { file: id, kind: FileOpKind::PunchHole, offset, len, data: &[], fixed: false },
    );
}

fn complete(env: &mut Uring, n: usize) {
    let mut out = Vec::new();
    while out.len() < n {
        env.wait(Wait::Until(None), &mut out);
    }
    assert!(out.iter().all(|done| done.result == 0));
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / 1000.0
}
