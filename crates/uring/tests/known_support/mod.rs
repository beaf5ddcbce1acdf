//! Operations by memory that the kernel knows, and files for them.
#![allow(dead_code, reason = "each test uses what it needs of this")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use blockwork_engine::{Completion, Env, FileId, FileOp, FileOpKind, Token, Wait};
use blockwork_memory::Segment;
use blockwork_uring::{Io, Uring, UringConfig};

pub fn ring() -> Uring {
    Uring::new(&UringConfig { io: Io::Uring, ..UringConfig::default() }).unwrap()
}

/// As a leaf does it whose queue wants known memory: asks, and starts.
pub fn begin(
    env: &mut Uring,
    token: u64,
    file: &File,
    kind: FileOpKind,
    offset: u64,
    data: &Segment,
) -> bool {
    let fixed = env.knows(data);
    let (len, file) = (data.len() as u64, FileId(u32::try_from(file.as_raw_fd()).unwrap()));
    env.start(Token(token), FileOp { file, kind, offset, len, data: std::slice::from_ref(data), fixed });
    fixed
}

pub fn end(env: &mut Uring, n: usize) -> Vec<Completion> {
    let mut out = Vec::new();
    while out.len() < n {
        env.wait(Wait::Until(None), &mut out);
    }
    assert_eq!((out.len(), env.in_flight()), (n, 0));
    out
}

/// One operation; whether it went by known memory, and its result.
pub fn run(env: &mut Uring, file: &File, kind: FileOpKind, offset: u64, data: &Segment) -> (bool, i32) {
    let before = env.fixed();
    let known = begin(env, 1, file, kind, offset, data);
    let result = end(env, 1)[0].result;
    assert_eq!(env.fixed() - before, u64::from(known), "what is known is used, and nothing else");
    (known, result)
}

pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512 * 31 + i + seed * 101) as u8).collect()
}

pub fn text(segment: &Segment) -> Vec<u8> {
    let mut bytes = vec![0; segment.len()];
    segment.read_at(0, &mut bytes);
    bytes
}

/// A file on a disk, opened with O_DIRECT, and the same through the page cache.
pub fn files() -> [File; 2] {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("disk");
    let buffered = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    buffered.set_len(8 << 20).unwrap();
    let direct = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    [direct, buffered]
}

/// Has io_uring_register fail by `errno` for this operation, for this thread and for good.
pub fn forbid_registering(operation: u32, errno: i32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, jump) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let mut filter = [
        step(load, 0, 0, 0), // the call's number
        step(jump, 0, 3, libc::SYS_io_uring_register as u32),
        step(load, 0, 0, 24), // its second argument
        step(jump, 0, 1, operation),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls take numbers, and the program, which lives as long as the filter that it points to.
    let (first, second) = unsafe {
        (
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        )
    };
    assert_eq!((first, second), (0, 0), "{}", std::io::Error::last_os_error());
}
