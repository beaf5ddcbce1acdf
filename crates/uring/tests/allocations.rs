//! Invariant 4: once warm, starting and completing operations allocates nothing. Counts every allocation of the process, so this is a
//! program of its own: the main thread of a test harness allocates while a test begins.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use blockwork_engine::{Completion, Env, FileId, FileOp, FileOpKind, Nanos, Token, Wait};
use blockwork_memory::{Buffer, Segment};
use blockwork_uring::{Uring, UringConfig};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything to the system's allocator, unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let mut env = Uring::new(&UringConfig { submissions: 32, ..UringConfig::default() }).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[1; 1 << 16]).unwrap();
    let id = FileId(u32::try_from(file.as_raw_fd()).unwrap());
    let (near, far) = UnixStream::pair().unwrap();
    let (near, far): (Arc<OwnedFd>, Arc<OwnedFd>) = (Arc::new(near.into()), Arc::new(far.into()));
    let memory = Segment::new(Buffer::new(1 << 16), 0, 1 << 16);
    let pieces: Vec<Segment> = (0..16).map(|i| memory.slice(i * 4096, 4096)).collect();
    let mut out: Vec<Completion> = Vec::with_capacity(256);
    let round = |env: &mut Uring, out: &mut Vec<Completion>| {
        for i in 0..48 {
            let data = if i % 3 == 0 { &pieces[..] } else { &pieces[..1] };
            let kind = if i % 2 == 0 { FileOpKind::Read } else { FileOpKind::Write { dsync: false } };
            let len = blockwork_memory::bytes_in(data) as u64;
            env.start(Token(i), FileOp { file: id, kind, offset: 0, len, data, fixed: false });
        }
        env.send(Token(100), near.clone(), &pieces[..4]);
        env.recv(Token(101), far.clone(), memory.clone());
        env.timeout(Token(102), Nanos::micros(10));
        out.clear();
        while out.len() < 51 {
            env.wait(Wait::Until(None), out);
        }
        assert_eq!((out.len(), env.in_flight()), (51, 0));
    };
    // Every slot has once held as much as it ever will.
    for i in 0..60 {
        let op =
            FileOp { file: id, kind: FileOpKind::Read, offset: 0, len: 1 << 16, data: &pieces, fixed: false };
        env.start(Token(i), op);
    }
    while env.in_flight() > 0 {
        env.wait(Wait::Until(None), &mut out);
    }
    (0..3).for_each(|_| round(&mut env, &mut out));
    let before = ALLOCATIONS.load(Relaxed);
    (0..100).for_each(|_| round(&mut env, &mut out));
    assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0);
}
