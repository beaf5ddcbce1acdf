//! The stand-in for the ring where few descriptors may be open. One test: the limit is the process's.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use blockwork_engine::{Completion, Env, FileId, FileOp, FileOpKind, Token, Wait};
use blockwork_uring::{Io, Uring, UringConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: u64 = 64;

fn sync(env: &mut Uring, token: u64, file: &File) {
    let id = FileId(u32::try_from(file.as_raw_fd()).unwrap());
    env.start(
        Token(token),
        FileOp { file: id, kind: FileOpKind::Sync, offset: 0, len: 0, data: &[], fixed: false },
    );
}

fn complete(env: &mut Uring, n: usize) -> Vec<Completion> {
    let mut out = Vec::new();
    while out.len() < n {
        env.wait(Wait::Until(None), &mut out);
    }
    out
}

#[test]
fn operations_may_be_more_than_descriptors_and_a_want_of_those_is_no_error_of_a_file() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum }).unwrap();
    let mut env = Uring::new(&UringConfig { io: Io::Threads, ..UringConfig::default() }).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let ours: Arc<OwnedFd> = Arc::new(ours.into());
    for token in 0..4 * LIMIT {
        env.poll(Token(token), ours.clone(), token % 2 == 0);
    }
    // It can be written to, but there is nothing to read.
    let done = complete(&mut env, 2 * LIMIT as usize);
    assert!(done.iter().all(|done| done.token.0 % 2 == 1 && done.result == i32::from(libc::POLLOUT)));
    assert_eq!(env.in_flight(), 2 * LIMIT as usize);
    drop(theirs);
    let done = complete(&mut env, 2 * LIMIT as usize);
    assert!(done.iter().all(|done| done.token.0 % 2 == 0 && done.result & i32::from(libc::POLLIN) != 0));

    let file = tempfile::tempfile().unwrap();
    let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    sync(&mut env, 1, &file);
    assert_eq!(complete(&mut env, 1)[0].result, -libc::EAGAIN);
    drop(taken);
    sync(&mut env, 2, &file);
    assert_eq!(complete(&mut env, 1)[0].result, 0);
}
