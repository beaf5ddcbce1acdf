//! A server that has no file left to open, or no room for another client: what its listeners say, how often, and that it goes on when there is some
//! again.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use crate::support::{Scratch, Server, run, tool, until};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// Enough for a server to begin, and not for many clients.
const DESCRIPTORS: u32 = 64;
/// Times that a listener must have tried again, of ten in a second.
const TRIES: u64 = 10;
/// What a client of NBD says that chooses the default export: one that says nothing is let go after 10 s.
const GO: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
const BEGIN: &str = "clients cannot be accepted, and wait: ";
const END: &str = "clients are accepted again";

/// A client of a socket, which waits to be accepted at least; none where as many wait as may: whoever waited for room there would wait for a
/// server that can accept nobody.
fn connect(path: &Path) -> Option<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("a short path")) {
        Ok(()) => {
            let stream = UnixStream::from(socket);
            stream.set_nonblocking(false).expect("it is a socket");
            Some(stream)
        }
        Err(Errno::AGAIN) => None,
        Err(errno) => panic!("{}: {errno}", path.display()),
    }
}

fn lines(server: &Server, listener: &str, what: &str) -> usize {
    server.said().lines().filter(|line| line.contains(listener) && line.contains(what)).count()
}

/// How often threads of that name have slept, all together.
fn sleeps(pid: u32, thread: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let status = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let ours = status.filter(|status| status.lines().next() == Some(&format!("Name:\t{thread}")));
    let count = |status: String| {
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?.to_owned();
        line.split_whitespace().last()?.parse::<u64>().ok()
    };
    ours.filter_map(count).sum()
}

#[test]
fn of_descriptors_that_run_out_each_listener_tells_once_with_what_to_do_and_when_it_is_over() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 1 << 20);
    let args =
        ["serve", "--workers", "1", "--nbd", "unix:socket", "--vhost-user", "guest", "--disk", "disk.img"];
    let server = Server::start(&mut scratch.with_descriptors(DESCRIPTORS, DESCRIPTORS, args));
    let control = scratch.run_dir().join(format!("{}.sock", server.pid()));
    let nbd = "nbd: nbd+unix:";
    let (mut clients, begun) = (Vec::new(), Instant::now());
    until("the clients of NBD have all descriptors", || {
        if let Some(mut client) = connect(&scratch.path("socket")) {
            client.write_all(GO).expect("a socket has room for that");
            clients.push(client);
        }
        lines(&server, nbd, BEGIN) > 0
    });
    let others = [("vhost-user", "guest", "vhost-user"), ("the control API", "", "blockwork-ctl")];
    for (listener, path, thread) in others {
        let path = if path.is_empty() { control.clone() } else { scratch.path(path) };
        until("it is told", || {
            clients.extend(connect(&path));
            lines(&server, listener, BEGIN) > 0
        });
        let before = sleeps(server.pid(), thread);
        until("it has tried again", || sleeps(server.pid(), thread) >= before + TRIES);
    }
    let said = server.said();
    assert!(said.contains("Too many open files") && said.contains("LimitNOFILE="), "{said}");
    drop(clients);
    for (listener, path, _) in [others[0], others[1], (nbd, "socket", "")] {
        let path = if path.is_empty() { control.clone() } else { scratch.path(path) };
        until("it is over", || {
            drop(connect(&path));
            lines(&server, listener, END) > 0
        });
        // A descriptor that is free for a moment may end it, and it may begin again: that is told of once in 10 s.
        let most = 1 + begun.elapsed().as_secs() as usize / 10;
        assert!(lines(&server, listener, BEGIN) <= most, "{}", server.said());
    }
    let uri = scratch.uri("");
    assert!(run(tool("nbdinfo").args(["--size", &uri])).contains("1048576"));
    assert!(server.stop().status.success());
}

#[test]
fn a_server_may_have_as_many_files_open_as_it_is_allowed_to() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 1 << 20);
    let args = ["serve", "--nbd", "unix:socket", "--disk", "disk.img"];
    let server = Server::start(&mut scratch.with_descriptors(DESCRIPTORS, 700, args));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).expect("it runs");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    assert_eq!(line.split_whitespace().rev().nth(2), Some("700"), "{line}");
    server.stop_quietly();
}

/// Whether a client is greeted, rather than turned away.
fn is_greeted(client: &mut UnixStream) -> bool {
    client.read(&mut [0; 18]).expect("an answer, or the end") == 18
}

#[test]
fn a_client_for_whom_there_is_no_room_is_told_of_with_what_to_do_until_another_has_gone() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 1 << 20);
    let server = scratch.serve(["--nbd-clients", "2", "--disk", "disk.img"]);
    let connect = || UnixStream::connect(scratch.path("socket")).expect("it listens");
    let mut clients = [connect(), connect()];
    assert!(clients.iter_mut().all(is_greeted));
    (0..20).for_each(|_| assert!(!is_greeted(&mut connect())));
    until("it is told", || server.said().contains("2 clients are connected"));
    let said = server.said();
    let told: Vec<_> = said.lines().filter(|line| line.contains("2 clients are connected")).collect();
    // One in ten seconds.
    assert!((1..=3).contains(&told.len()) && told[0].contains("--nbd-clients"), "{said}");
    drop(clients);
    until("there is room again", || is_greeted(&mut connect()));
    assert!(server.stop().status.success());
}
