//! The environment against the kernel: files, sockets, timers, wake-ups, full queues, cancellation, and dropping it with
//! operations in flight. Everything runs with the newest features, as on Linux 5.11, with sleeps that end with all completions, and without a ring.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blockwork_engine::{Awaited, Completion, Env, FileId, FileOp, FileOpKind, Nanos, Network, Token, Wait};
use blockwork_memory::{Buffer, Segment};
use blockwork_uring::{AsKernel, Io, Uring, UringConfig, WakesWith, more};
use rustix::event::{EventfdFlags, eventfd};

const SOON: Nanos = Nanos::secs(20);

fn configs() -> [UringConfig; 4] {
    let newest = UringConfig { submissions: 64, completions: 128, ..UringConfig::default() };
    let plain = UringConfig { as_kernel: AsKernel::V5_11, ..newest };
    let all = UringConfig { wakes_with: WakesWith::All, ..newest };
    [newest, plain, all, UringConfig { io: Io::Threads, ..newest }]
}

fn everywhere(test: impl Fn(Uring)) {
    for config in configs() {
        test(Uring::new(&config).unwrap());
    }
}

fn with_a_ring(test: impl Fn(Uring)) {
    configs()
        .iter()
        .filter(|config| config.io != Io::Threads)
        .for_each(|config| test(Uring::new(config).unwrap()));
}

#[test]
fn it_tells_who_does_the_i_o_and_whether_somebody_has_said_so() {
    let of = |io| {
        let env = Uring::new(&UringConfig { io, ..UringConfig::default() }).unwrap();
        let told = env.decision().clone();
        assert_eq!(env.calls_return_late(), told.value == "threads");
        (told.value, told.asked, told.why)
    };
    assert_eq!(of(Io::Auto), ("io_uring", false, "the kernel has io_uring".to_owned()));
    assert_eq!(of(Io::Uring), ("io_uring", true, "io=io_uring".to_owned()));
    assert_eq!(of(Io::Threads), ("threads", true, "io=threads".to_owned()));
}

fn file_id(file: &impl AsRawFd) -> FileId {
    FileId(u32::try_from(file.as_raw_fd()).unwrap())
}

fn filled(bytes: &[u8]) -> Segment {
    let buffer = Buffer::new(bytes.len());
    buffer.write_at(0, bytes);
    Segment::new(buffer, 0, bytes.len())
}

fn empty(len: usize) -> Segment {
    Segment::new(Buffer::new(len), 0, len)
}

fn bytes(segments: &[Segment]) -> Vec<u8> {
    let mut all = Vec::new();
    for segment in segments {
        let mut part = vec![0; segment.len()];
        segment.read_at(0, &mut part);
        all.extend(part);
    }
    all
}

fn rw(env: &mut Uring, token: u64, file: &File, kind: FileOpKind, offset: u64, data: &[Segment]) {
    let len = blockwork_memory::bytes_in(data) as u64;
    env.start(Token(token), FileOp { file: file_id(file), kind, offset, len, data, fixed: false });
}

/// Waits until `n` completions are there; fails if that takes too long.
fn complete(env: &mut Uring, n: usize) -> Vec<Completion> {
    let (mut out, deadline) = (Vec::new(), env.now() + SOON);
    while out.len() < n {
        assert!(env.now() < deadline, "{} of {n} completions came", out.len());
        env.wait(Wait::Until(Some(deadline)), &mut out);
    }
    out
}

fn one(env: &mut Uring) -> Completion {
    let all = complete(env, 1);
    assert_eq!(all.len(), 1);
    all[0]
}

fn socketpair() -> (Arc<OwnedFd>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Arc::new(ours.into()), theirs)
}

#[test]
fn what_is_written_is_read_back_with_one_segment_and_with_several() {
    everywhere(|mut env| {
        let file = tempfile::tempfile().unwrap();
        rw(&mut env, 1, &file, FileOpKind::Write { dsync: false }, 100, &[filled(b"hello")]);
        assert_eq!((one(&mut env).token, 105), (Token(1), file.metadata().unwrap().len()));
        rw(
            &mut env,
            2,
            &file,
            FileOpKind::Write { dsync: true },
            105,
            &[filled(b" wide"), filled(b" "), filled(b"world")],
        );
        assert_eq!(one(&mut env).result, 11);
        let into = [empty(3), empty(4096), empty(1)];
        rw(&mut env, 3, &file, FileOpKind::Read, 100, &into);
        let done = one(&mut env);
        assert_eq!((done.token, done.result, done.flags), (Token(3), 16, 0), "short at the end of the file");
        assert_eq!(bytes(&into)[..16], *b"hello wide world");
        let past = empty(10);
        rw(&mut env, 4, &file, FileOpKind::Read, 1 << 40, &[past]);
        assert_eq!(one(&mut env).result, 0, "nothing is past the end");
        rw(&mut env, 5, &file, FileOpKind::Sync, 0, &[]);
        assert_eq!(one(&mut env).result, 0);
    });
}

#[test]
fn errors_come_as_negative_errnos() {
    everywhere(|mut env| {
        let file = OpenOptions::new().read(true).open("/dev/null").unwrap();
        rw(&mut env, 1, &file, FileOpKind::Write { dsync: false }, 0, &[filled(b"x")]);
        assert_eq!(one(&mut env).result, -libc::EBADF);
        let op = FileOp {
            file: FileId(u32::MAX),
            kind: FileOpKind::Sync,
            offset: 0,
            len: 0,
            data: &[],
            fixed: false,
        };
        env.start(Token(2), op);
        assert_eq!(one(&mut env).result, -libc::EBADF);
        // (Not /dev/null for this: it accepts every command of io_uring's.)
        let file = tempfile::tempfile().unwrap();
        for kind in [FileOpKind::BlkDiscard, FileOpKind::BlkZeroOut] {
            env.start(
                Token(3),
                FileOp { file: file_id(&file), kind, offset: 0, len: 4096, data: &[], fixed: false },
            );
            let result = one(&mut env).result;
            assert_eq!(result, -libc::ENOTTY, "{kind:?}");
            env.start(
                Token(4),
                FileOp { file: FileId(u32::MAX), kind, offset: 0, len: 4096, data: &[], fixed: false },
            );
            assert_eq!(one(&mut env).result, -libc::EBADF, "{kind:?}");
        }
    });
}

#[test]
fn punching_a_hole_frees_blocks_and_zeroing_a_range_keeps_them() {
    everywhere(|mut env| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let before = file.metadata().unwrap().blocks();
        let op = |kind, offset| FileOp {
            file: file_id(&file),
            kind,
            offset,
            len: 256 << 10,
            data: &[],
            fixed: false,
        };
        env.start(Token(1), op(FileOpKind::ZeroRange, 0));
        assert_eq!(one(&mut env).result, 0);
        assert_eq!(file.metadata().unwrap().blocks(), before);
        env.start(Token(2), op(FileOpKind::PunchHole, 512 << 10));
        assert_eq!(one(&mut env).result, 0);
        assert_eq!(file.metadata().unwrap().blocks(), before - 512);
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        let mut content = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut content).unwrap();
        for (piece, expected) in content.chunks(256 << 10).zip([0, 7, 0, 7]) {
            assert!(piece.iter().all(|byte| *byte == expected));
        }
    });
}

#[test]
fn ten_thousand_operations_before_one_wait_all_complete_once() {
    everywhere(|mut env| {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
        file.write_all(&content).unwrap();
        let before = env.enters();
        let places: Vec<Segment> = (0..10_000).map(|_| empty(4)).collect();
        for (i, place) in (0_u64..).zip(&places) {
            rw(&mut env, i, &file, FileOpKind::Read, i * 4, std::slice::from_ref(place));
        }
        assert_eq!(env.in_flight(), 10_000);
        let done = complete(&mut env, 10_000);
        let tokens: HashSet<u64> = done.iter().map(|done| done.token.0).collect();
        assert_eq!((done.len(), tokens.len()), (10_000, 10_000));
        assert!(done.iter().all(|done| done.result == 4));
        assert!(bytes(&places) == content);
        assert_eq!(env.in_flight(), 0);
        // 10,000 / 64 submissions, and a few to get what overflowed.
        let calls = env.enters() - before;
        assert!(calls <= 600, "{calls} system calls");
    });
}

#[test]
fn a_batch_costs_one_system_call() {
    with_a_ring(|mut env| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 1 << 16]).unwrap();
        let places: Vec<Segment> = (0..16).map(|_| empty(4096)).collect();
        let mut out = Vec::new();
        env.wait(Wait::Poll, &mut out); // arms the eventfd
        for round in 1..=10 {
            let before = env.enters();
            for (i, place) in (0_u64..).zip(&places) {
                rw(&mut env, i, &file, FileOpKind::Read, i * 4096, std::slice::from_ref(place));
            }
            out.clear();
            env.wait(Wait::Gather { completions: 16, for_at_most: SOON }, &mut out);
            assert_eq!((out.len(), env.enters() - before), (16, 1), "round {round}");
        }
        let before = env.enters();
        env.wait(Wait::Poll, &mut out);
        assert_eq!(env.enters(), before, "polling when there is nothing is free");
    });
}

/// From now on this thread (and what it starts) runs on this processor only.
fn stay_on_one_processor() {
    let mut here = rustix::thread::CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &here).unwrap();
}

#[test]
fn a_sleep_ends_with_all_that_came_at_a_time_where_that_is_asked_for() {
    const WATCHES: u64 = 8;
    stay_on_one_processor();
    let all = UringConfig { wakes_with: WakesWith::All, ..UringConfig::default() };
    let mut env = Uring::new(&all).unwrap();
    let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    (0..WATCHES).for_each(|token| env.watch(Token(token), bell.clone()));
    let mut out = Vec::new();
    env.wait(Wait::Poll, &mut out);
    let sleeper = format!("/proc/self/task/{}/stat", rustix::thread::gettid().as_raw_nonzero());
    let caller = std::thread::spawn(move || {
        // One write, once the other thread sleeps: on the same processor it goes on when all watches have been told.
        while !std::fs::read_to_string(&sleeper).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
        rustix::io::write(&*bell, &1_u64.to_ne_bytes()).unwrap();
    });
    env.wait(Wait::Until(None), &mut out);
    caller.join().unwrap();
    let mut told: Vec<_> = out.iter().map(|completion| completion.token.0).collect();
    told.sort_unstable();
    assert_eq!(told, Vec::from_iter(0..WATCHES));
}

#[test]
fn scattered_operations_reach_the_file_in_portions_before_anybody_waits() {
    with_a_ring(|mut env| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let data = filled(&[9; 4096]);
        let mut out = Vec::new();
        env.wait(Wait::Poll, &mut out); // arms the eventfd
        let before = env.enters();
        // A portion is four operations, or half of what the kernel has.
        let calls = [4, 8, 12, 18, 27];
        for i in 0..30 {
            rw(&mut env, i, &file, FileOpKind::Write { dsync: false }, i * 8192, std::slice::from_ref(&data));
            let expected = calls.iter().filter(|&&call| call <= i + 1).count();
            assert_eq!(env.enters() - before, expected as u64, "after operation {i}");
        }
        // 27 of them are with the kernel, which writes whether or not we wait.
        let deadline = Instant::now() + Duration::from_secs(20);
        let is_there = |i: u64| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, i * 8192).unwrap();
            byte == [9]
        };
        while !(0..27).all(is_there) {
            assert!(
                Instant::now() < deadline,
                "{:?} are missing",
                (0..27).filter(|&i| !is_there(i)).collect::<Vec<_>>()
            );
            std::thread::yield_now();
        }
        // None is held back.
        complete(&mut env, 30);
        assert!((0..30).all(is_there));
        assert_eq!(env.in_flight(), 0);
    });
}

#[test]
fn of_what_is_expected_until_the_next_wait_a_part_goes_first() {
    with_a_ring(|mut env| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let place = empty(4096);
        env.wait(Wait::Poll, &mut Vec::new()); // arms the eventfd
        // A few go with the call that sleeps.
        for (count, expected, calls) in
            [(20, Some(20), &[6][..]), (1, Some(1), &[]), (5, Some(5), &[]), (20, None, &[4, 8, 12, 18])]
        {
            expected.into_iter().for_each(|expected| env.expect(expected));
            let before = env.enters();
            for i in 0..count {
                rw(&mut env, i, &file, FileOpKind::Read, i * 8192, std::slice::from_ref(&place));
                let called = calls.iter().filter(|&&call| call <= i + 1).count();
                assert_eq!(env.enters() - before, called as u64, "{expected:?}, after operation {i}");
            }
            complete(&mut env, count as usize);
        }
    });
}

#[test]
fn a_wait_ends_when_its_time_has_come_and_not_before() {
    everywhere(|mut env| {
        let mut out = Vec::new();
        let before = Instant::now();
        env.wait(Wait::Poll, &mut out);
        env.wait(Wait::Until(Some(env.now() + Nanos::millis(30))), &mut out);
        assert!(before.elapsed() >= Duration::from_millis(30));
        let before = Instant::now();
        env.wait(Wait::Until(Some(Nanos(1))), &mut out);
        env.wait(Wait::Gather { completions: 4, for_at_most: Nanos(0) }, &mut out);
        assert!(before.elapsed() < Duration::from_secs(5), "a time that has passed is not waited for");
        let start = env.now();
        env.wait(Wait::Gather { completions: 4, for_at_most: Nanos::millis(30) }, &mut out);
        assert!(env.now().since(start) >= Nanos::millis(30));
        assert!(out.is_empty());
    });
}

#[test]
fn a_look_ends_when_the_wait_does() {
    for config in configs() {
        let mut env = Uring::new(&UringConfig { look: Nanos::secs(5), ..config }).unwrap();
        let mut out = Vec::new();
        env.wait(Wait::Poll, &mut out);
        let start = env.now();
        let until = start + Nanos::millis(20);
        env.wait(Wait::Soon { of: Awaited::Client, until: Some(until) }, &mut out);
        assert!((Nanos::millis(20)..Nanos::secs(2)).contains(&env.now().since(start)));
        env.wait(Wait::Soon { of: Awaited::Client, until: Some(until) }, &mut out);
        assert!(env.now().since(start) < Nanos::secs(2), "a time that has passed is not waited for");
        assert!(out.is_empty());
    }
}

#[test]
fn gathering_returns_what_is_there_when_the_time_is_over() {
    everywhere(|mut env| {
        let (ours, mut theirs) = socketpair();
        env.recv(Token(1), ours, empty(100));
        theirs.write_all(b"abc").unwrap();
        let mut out = Vec::new();
        env.wait(Wait::Poll, &mut out);
        let more = Wait::Gather { completions: 5, for_at_most: Nanos::millis(20) };
        env.wait(more, &mut out);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].result, 3);
    });
}

#[test]
fn timers_run_out_in_order_and_can_be_cancelled() {
    everywhere(|mut env| {
        env.timeout(Token(1), Nanos::millis(40));
        env.timeout(Token(2), Nanos::millis(5));
        env.timeout(Token(3), Nanos::secs(3600));
        let done = complete(&mut env, 2);
        assert_eq!(
            done.iter().map(|done| (done.token.0, done.result)).collect::<Vec<_>>(),
            [(2, -libc::ETIME), (1, -libc::ETIME)]
        );
        env.cancel(Token(3));
        let done = one(&mut env);
        assert_eq!((done.token, done.result), (Token(3), -libc::ECANCELED));
        env.cancel(Token(3)); // nothing has that name any more
        assert_eq!(env.in_flight(), 0);
    });
}

#[test]
fn a_notify_from_another_thread_ends_the_sleep() {
    everywhere(|mut env| {
        let mut out = Vec::new();
        let notify = env.notifier();
        notify.notify();
        env.wait(Wait::Until(None), &mut out); // before the sleep: it does not begin
        for _ in 0..200 {
            let woken = Arc::new(AtomicBool::new(false));
            let (notify, flag) = (env.notifier(), woken.clone());
            let thread = std::thread::spawn(move || {
                flag.store(true, Ordering::Release);
                (0..5).for_each(|_| notify.notify());
            });
            while !woken.load(Ordering::Acquire) {
                env.wait(Wait::Until(None), &mut out);
            }
            thread.join().unwrap();
        }
        assert!(out.is_empty(), "a notification is not a completion");
    });
}

#[test]
fn several_notifies_cost_one_wake_up() {
    everywhere(|mut env| {
        let mut out = Vec::new();
        env.wait(Wait::Poll, &mut out);
        let notify = env.notifier();
        let before = env.enters();
        (0..1000).for_each(|_| notify.notify());
        env.wait(Wait::Until(None), &mut out);
        assert!(env.enters() - before <= 1);
        let start = env.now();
        env.wait(Wait::Until(Some(start + Nanos::millis(20))), &mut out);
        assert!(env.now().since(start) >= Nanos::millis(20), "the second wait sleeps");
    });
}

#[test]
fn a_stream_is_sent_whole_and_received_in_pieces() {
    everywhere(|mut env| {
        let (ours, mut theirs) = socketpair();
        // Far more than a socket's buffer holds, so that the send is short many times.
        let pieces: Vec<Segment> = (0..100_u8).map(|i| filled(&vec![i; 50_000 + usize::from(i)])).collect();
        let expected = bytes(&pieces);
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; 100 * 50_000 + 4950];
            theirs.read_exact(&mut got).unwrap();
            theirs.write_all(b"thanks").unwrap();
            got
        });
        env.send(Token(1), ours.clone(), &pieces);
        drop(pieces); // the environment keeps its own clones
        assert_eq!(one(&mut env).result, 5_004_950);
        assert!(reader.join().unwrap() == expected);
        let into = empty(100);
        env.recv(Token(2), ours.clone(), into.clone());
        assert_eq!(one(&mut env).result, 6);
        assert_eq!(bytes(&[into.slice(0, 6)]), b"thanks");
        env.recv(Token(3), ours.clone(), into.clone());
        assert_eq!(one(&mut env).result, 0, "end of the stream");
        env.send(Token(4), ours, &[into]);
        assert_eq!(one(&mut env).result, -libc::EPIPE);
    });
}

#[test]
fn what_is_received_in_parts_fills_them_in_order() {
    everywhere(|mut env| {
        let (ours, mut theirs) = socketpair();
        let parts = [empty(3), empty(100), empty(4)];
        env.recv_parts(Token(1), ours.clone(), &parts);
        let mut out = Vec::new();
        env.wait(Wait::Poll, &mut out);
        assert!(out.is_empty(), "nothing is there yet");
        theirs.write_all(b"headpayload").unwrap();
        assert_eq!(one(&mut env).result, 11);
        assert_eq!(bytes(&[parts[0].clone(), parts[1].slice(0, 8)]), b"headpayload");
        drop(theirs);
        env.recv_parts(Token(2), ours, &parts);
        assert_eq!(one(&mut env).result, 0, "end of the stream");
    });
}

#[test]
fn a_send_that_is_cut_short_tells_what_was_sent() {
    everywhere(|mut env| {
        let (ours, mut theirs) = socketpair();
        env.send(Token(1), ours, &[filled(&vec![9; 8 << 20]), filled(b"end")]);
        let mut out = Vec::new();
        env.wait(Wait::Poll, &mut out);
        assert!(out.is_empty(), "nobody reads");
        theirs.read_exact(&mut [0; 1000]).unwrap();
        drop(theirs);
        let result = one(&mut env).result;
        assert!(
            result == -libc::EPIPE || result == -libc::ECONNRESET || (1000..8 << 20).contains(&result),
            "{result}"
        );
    });
}

#[test]
fn one_accept_takes_many_clients_until_it_is_cancelled() {
    everywhere(|mut env| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener: Arc<OwnedFd> = Arc::new(UnixListener::bind(&path).unwrap().into());
        env.accept(Token(1), listener);
        let mut clients: Vec<UnixStream> = Vec::new();
        for i in 0..10_u8 {
            clients.push(UnixStream::connect(&path).unwrap());
            let done = one(&mut env);
            assert!(more(done.flags));
            let mut accepted = UnixStream::from(env.take_accepted(done.result));
            clients[usize::from(i)].write_all(&[i]).unwrap();
            let mut byte = [0];
            accepted.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [i]);
        }
        env.cancel(Token(1));
        let done = one(&mut env);
        assert_eq!((done.result, more(done.flags)), (-libc::ECANCELED, false));
        assert_eq!(env.in_flight(), 0);
    });
}

#[test]
fn accepting_on_what_does_not_listen_says_so() {
    everywhere(|mut env| {
        let (ours, _theirs) = socketpair();
        env.accept(Token(1), ours);
        let done = one(&mut env);
        assert_eq!((done.result, more(done.flags)), (-libc::EINVAL, false));
    });
}

#[test]
#[should_panic(expected = "the result of an accept, once")]
fn a_descriptor_that_was_not_accepted_is_not_given_away() {
    Uring::new(&UringConfig::default()).unwrap().take_accepted(1);
}

#[test]
fn a_poll_reports_what_is_there_already_and_no_second_event() {
    everywhere(|mut env| {
        let (ours, mut theirs) = socketpair();
        theirs.write_all(b"x").unwrap();
        for token in 1..=2 {
            env.poll(Token(token), ours.clone(), true);
            let done = one(&mut env);
            assert_eq!((done.token, more(done.flags)), (Token(token), false));
            assert!(done.result & i32::from(libc::POLLIN) != 0);
        }
        UnixStream::from(ours.try_clone().unwrap()).read_exact(&mut [0]).unwrap();
        env.poll(Token(3), ours.clone(), true);
        env.wait(Wait::Poll, &mut Vec::new());
        assert_eq!(env.in_flight(), 1, "it waits");
        theirs.write_all(b"y").unwrap();
        assert_eq!(one(&mut env).token, Token(3));
        assert_eq!((env.in_flight(), Arc::strong_count(&ours)), (0, 1));
    });
}

#[test]
fn dropping_with_operations_in_flight_ends_them_all() {
    everywhere(|mut env| {
        let (ours, theirs) = socketpair();
        let pool = blockwork_memory::Pool::new(1 << 20);
        let segment = || Segment::new(pool.get(4096), 0, 4096);
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        for token in 0..50 {
            env.recv(Token(token), ours.clone(), segment());
            env.timeout(Token(1000 + token), Nanos::secs(3600));
        }
        env.poll(Token(2000), Arc::new(theirs.try_clone().unwrap().into()), true);
        env.wait(Wait::Poll, &mut Vec::new());
        for token in 0..10 {
            env.recv(Token(3000 + token), ours.clone(), segment()); // not submitted yet
            rw(&mut env, 4000 + token, &file, FileOpKind::Read, 4096 * token, &[segment()]);
        }
        assert_eq!(pool.kept_bytes(), 0);
        drop(env);
        assert_eq!(pool.kept_bytes(), 70 * 4096, "memory came back");
        assert_eq!(Arc::strong_count(&ours), 1, "descriptors came back");
    });
}

#[test]
fn a_client_accepted_but_never_taken_is_hung_up_on_by_the_drop() {
    everywhere(|mut env| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        env.accept(Token(1), Arc::new(UnixListener::bind(&path).unwrap().into()));
        let mut client = UnixStream::connect(&path).unwrap();
        let _ = one(&mut env);
        drop(env);
        assert_eq!(client.read(&mut [0; 10]).unwrap(), 0);
    });
}

#[test]
fn signals_do_not_end_a_sleep() {
    // A handler without SA_RESTART, so that system calls of the thread end by EINTR.
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: installs a handler that does nothing; the struct is zeroed plain data otherwise.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
    }
    everywhere(|mut env| {
        // SAFETY: no preconditions.
        let worker = unsafe { libc::pthread_self() };
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let pest = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                // SAFETY: the worker's thread joins this one before it ends.
                unsafe { libc::pthread_kill(worker, libc::SIGUSR2) };
                std::thread::yield_now();
            }
        });
        let start = env.now();
        let mut out = Vec::new();
        env.wait(Wait::Until(Some(start + Nanos::millis(50))), &mut out);
        assert!(env.now().since(start) >= Nanos::millis(50));
        env.timeout(Token(1), Nanos::millis(50));
        env.wait(Wait::Until(None), &mut out);
        assert_eq!(out.len(), 1);
        stop.store(true, Ordering::Relaxed);
        pest.join().unwrap();
    });
}

#[test]
fn a_thread_can_make_any_number_of_rings_one_after_the_other() {
    // It has 16 places for registered ones.
    for _ in 0..40 {
        let mut env = Uring::new(&UringConfig::default()).unwrap();
        env.timeout(Token(1), Nanos(1));
        assert_eq!(one(&mut env).result, -libc::ETIME);
    }
}

#[test]
fn random_numbers_differ() {
    let mut env = Uring::new(&UringConfig::default()).unwrap();
    let numbers: HashSet<u64> = (0..1000).map(|_| env.random()).collect();
    assert_eq!(numbers.len(), 1000);
}

#[test]
fn a_stream_connects_carries_bytes_both_ways_and_ends_when_it_is_closed() {
    everywhere(|mut env| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = env.connect(Token(1), listener.local_addr().unwrap(), None).unwrap();
        let connected = one(&mut env);
        assert_eq!((connected.token, connected.result), (Token(1), 0));
        let (mut peer, _) = listener.accept().unwrap();
        let into = empty(100);
        env.receive(Token(2), stream, into.clone());
        Network::send(&mut env, Token(3), stream, &[filled(b"ques"), filled(b"tion")]);
        assert_eq!(one(&mut env).token, Token(3));
        let mut question = [0; 8];
        peer.read_exact(&mut question).unwrap();
        assert_eq!(&question, b"question");
        peer.write_all(b"answer").unwrap();
        let received = one(&mut env);
        assert_eq!((received.token, received.result), (Token(2), 6));
        assert_eq!(bytes(&[into.slice(0, 6)]), b"answer");
        // A receive that waits ends when the stream is closed from our side.
        env.receive(Token(4), stream, into);
        env.wait(Wait::Poll, &mut Vec::new());
        env.close(stream);
        let ended = one(&mut env);
        assert_eq!(ended.token, Token(4));
        assert!(ended.result <= 0, "{ended:?}");
    });
}

#[test]
fn of_a_stream_that_is_closed_in_the_middle_of_a_send_the_rest_is_never_sent() {
    const PART: usize = 4 << 20;
    everywhere(|mut env| {
        for parts in [1, 4] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 64 << 10).unwrap();
            let stream = env.connect(Token(1), listener.local_addr().unwrap(), None).unwrap();
            assert_eq!(one(&mut env).result, 0);
            let (mut peer, _) = listener.accept().unwrap();
            peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let data: Vec<_> = (0..parts).map(|_| empty(PART * 4 / parts)).collect();
            Network::send(&mut env, Token(2), stream, &data);
            let begin = Instant::now();
            while rustix::io::ioctl_fionread(&peer).unwrap() < 32 << 10 {
                assert!(begin.elapsed() < Duration::from_secs(20), "nothing was sent");
                env.wait(Wait::Poll, &mut Vec::new());
            }
            env.close(stream);
            let ended = one(&mut env);
            assert_eq!(ended.token, Token(2));
            let sent = usize::try_from(ended.result).expect("a part was sent");
            assert!(sent > 0 && sent < 4 * PART, "{sent}");
            assert_eq!(env.in_flight(), 0);
            let mut received = Vec::new();
            match peer.read_to_end(&mut received) {
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
                Ok(_) => panic!("the stream ended in order, after {} bytes of {sent}", received.len()),
            }
            assert!(received.len() <= sent, "{} of {sent}", received.len());
        }
    });
}

#[test]
fn a_stream_to_where_nobody_listens_is_refused() {
    everywhere(|mut env| {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let stream = env.connect(Token(1), free, None).unwrap();
        assert_eq!(one(&mut env).result, -libc::ECONNREFUSED);
        env.close(stream);
    });
}

#[test]
fn the_processor_time_is_that_of_the_worker_and_of_nobody_else() {
    // The kernel books what a thread has used when it leaves a processor and at ticks; the clock adds what has gone by since.
    fn used_by_spinning(ring: &Uring, time: Nanos) -> Nanos {
        let begin = ring.processor_time();
        let wall = Instant::now();
        while ring.processor_time().since(begin) < time {
            assert!(wall.elapsed() < Duration::from_secs(60), "it spins, and uses nothing");
        }
        ring.processor_time().since(begin)
    }
    const TIME: Nanos = Nanos::millis(30);
    let ring = Uring::new(&UringConfig::default()).unwrap();
    let begin = ring.processor_time();
    let other = std::thread::spawn(|| used_by_spinning(&Uring::new(&UringConfig::default()).unwrap(), TIME));
    let others = other.join().unwrap();
    let slept = ring.processor_time().since(begin);
    assert!(others >= TIME && slept < TIME, "{slept:?} asleep, while another used {others:?}");
    assert!(used_by_spinning(&ring, TIME) >= TIME);
}
