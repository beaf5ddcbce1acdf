//! Where io_uring is forbidden, or threads are: a seccomp filter, as containers have it, on the thread that asks for them.

use std::fs::File;
use std::os::fd::AsRawFd;

use blockwork_engine::{Completion, Env, FileId, FileOp, FileOpKind, Token, Wait};
use blockwork_memory::{Buffer, Segment};
use blockwork_uring::{Io, Uring, UringConfig, UringError};

/// Has system calls of that number fail by `errno`, for this thread and for good.
fn forbid(number: libc::c_long, errno: i32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // the call's number
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
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

/// Writes 4 KiB behind the first 4 KiB of `file`.
fn write(env: &mut Uring, file: &File) -> Vec<Completion> {
    let id = FileId(u32::try_from(file.as_raw_fd()).unwrap());
    let data = [Segment::new(Buffer::new(4096), 0, 4096)];
    data[0].fill(7);
    let kind = FileOpKind::Write { dsync: true };
    env.start(Token(1), FileOp { file: id, kind, offset: 4096, len: 4096, data: &data, fixed: false });
    let mut out = Vec::new();
    while out.is_empty() {
        env.wait(Wait::Until(None), &mut out);
    }
    out
}

#[test]
fn threads_stand_in_where_the_ring_is_refused_and_only_if_that_is_wanted() {
    let calls = [
        (libc::SYS_io_uring_setup, "io_uring_setup"),
        (libc::SYS_io_uring_register, "io_uring_register"),
        (libc::SYS_io_uring_enter, "io_uring_enter"),
    ];
    let strict = UringConfig { io: Io::Uring, ..UringConfig::default() };
    for (number, name) in calls {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let asked = std::thread::spawn(move || {
                forbid(number, errno);
                match Uring::new(&strict).err() {
                    Some(UringError::Forbidden { call, .. }) => {
                        assert_eq!((call, errno), (name, libc::EPERM))
                    }
                    Some(UringError::Missing { call }) => assert_eq!((call, errno), (name, libc::ENOSYS)),
                    other => panic!("{name}: {other:?}"),
                }
                let mut env = Uring::new(&UringConfig::default()).unwrap();
                let told = env.decision();
                assert_eq!((told.value, told.asked), ("threads", false));
                let word = if errno == libc::EPERM { "EPERM" } else { "ENOSYS" };
                assert!(told.why.contains(name) && told.why.contains(word), "{}", told.why);
                let file = tempfile::tempfile().unwrap();
                let done = write(&mut env, &file);
                assert_eq!((done[0].result, file.metadata().unwrap().len()), (4096, 8192), "{name}");
            });
            asked.join().unwrap();
        }
    }
    Uring::new(&strict).expect("other threads have theirs");
}

/// Rings count against the limit of locked memory, which all processes of a user share: whoever comes last has none.
#[test]
fn threads_stand_in_where_the_ring_would_lock_more_memory_than_is_allowed() {
    let asked = std::thread::spawn(move || {
        forbid(libc::SYS_io_uring_setup, libc::ENOMEM);
        let strict = Uring::new(&UringConfig { io: Io::Uring, ..UringConfig::default() });
        assert!(matches!(strict.err(), Some(UringError::NoMemory)));
        let mut env = Uring::new(&UringConfig::default()).unwrap();
        let told = env.decision();
        assert_eq!((told.value, told.asked), ("threads", false));
        assert!(told.why.contains("LimitMEMLOCK="), "{}", told.why);
        let file = tempfile::tempfile().unwrap();
        assert_eq!(write(&mut env, &file)[0].result, 4096);
    });
    asked.join().unwrap();
}

#[test]
fn the_worker_makes_the_calls_where_it_may_have_no_threads() {
    let asked = std::thread::spawn(|| {
        forbid(libc::SYS_clone3, libc::EAGAIN);
        forbid(libc::SYS_clone, libc::EAGAIN);
        std::thread::Builder::new().spawn(|| ()).expect_err("no thread can be made");
        let mut env = Uring::new(&UringConfig { io: Io::Threads, ..UringConfig::default() }).unwrap();
        let file = tempfile::tempfile().unwrap();
        let done = write(&mut env, &file);
        assert_eq!((done[0].result, file.metadata().unwrap().len()), (4096, 8192));
        assert_eq!(env.in_flight(), 0);
    });
    asked.join().unwrap();
}
