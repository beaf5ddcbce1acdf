//! Where clients connect: sockets, their modes, stale ones, other machines, and inherited ones.

mod nbd_support;

use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use blockwork_engine::Nanos;
use blockwork_export::nbd::{ListenError, Listener, NbdConfig, inherited};
use nbd_support::{Disk, Raw, Rig, python, run, until};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn a_unix_socket_is_for_its_owner_only() {
    let rig = Rig::new(&[Disk::new("d", "memory:1M")]);
    let mode = std::fs::metadata(rig.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "as after a crash");
    let first = Listener::unix(&path).unwrap();
    assert!(matches!(Listener::unix(&path), Err(ListenError::InUse(_))));
    drop(first);
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    assert!(matches!(Listener::unix(&path), Err(ListenError::NotASocket(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    let long = folder.path().join("x".repeat(120));
    assert!(matches!(Listener::unix(&long), Err(ListenError::PathTooLong { .. })));
}

/// A server of somebody else's that has put itself in the background: the process that called listen(2) has gone.
struct Background {
    pid: Pid,
}

impl Background {
    fn serve(socket: &Path) -> Background {
        let file = socket.with_extension("pid");
        // When it returns, the server in the background listens, though it need not have said yet which process it is.
        run(Command::new("nbdkit").arg("-U").arg(socket).arg("-P").arg(&file).args(["memory", "1M"]));
        let mut pid = String::new();
        until("it says which process it is", || {
            pid = std::fs::read_to_string(&file).unwrap_or_default();
            pid.ends_with('\n')
        });
        Background { pid: Pid::from_raw(pid.trim().parse().unwrap()).unwrap() }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::TERM);
    }
}

#[test]
fn the_socket_of_a_server_in_the_background_is_not_taken_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let _theirs = Background::serve(&path);
    let refused = Listener::unix(&path).unwrap_err();
    assert!(matches!(refused, ListenError::InUse(_)), "{refused}");
    run(Command::new("nbdinfo").arg(format!("nbd+unix:///?socket={}", path.display())));
}

// One that has nothing to say, or no time to accept anybody.
#[test]
fn a_socket_that_somebody_listens_on_is_not_taken_however_silent_or_busy_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(matches!(Listener::unix(&path), Err(ListenError::InUse(_))));
    let address = SocketAddrUnix::new(&path).unwrap();
    let mut waiting = Vec::new();
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        if connect(&client, &address) == Err(Errno::AGAIN) {
            break; // no room for another one: who would wait for it waits for ever
        }
        waiting.push(client);
    }
    assert!(matches!(Listener::unix(&path), Err(ListenError::InUse(_))));
    drop((theirs, waiting));
    Listener::unix(&path).unwrap();
}

// As with a server that was killed: what it listened on is closed a moment after it has gone.
#[test]
fn a_socket_that_is_closed_while_we_look_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let ours = std::thread::scope(|scope| {
        let looking = scope.spawn(|| Listener::unix(&path));
        // It has connected, and waits.
        let mut ready = [PollFd::new(&theirs, PollFlags::IN)];
        assert_eq!(poll(&mut ready, None), Ok(1));
        drop(theirs);
        looking.join().unwrap()
    });
    ours.unwrap();
}

// As the io_uring of a server that was killed, on a busy machine.
#[test]
fn a_socket_that_outlives_who_has_made_it_for_more_than_a_second_is_replaced_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let script = "import os, select, socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
if os.fork(): os._exit(0)
select.select([s], [], [])
time.sleep(1.5)";
    assert!(Command::new("/usr/bin/python3").args(["-c", script]).arg(&path).status().unwrap().success());
    Listener::unix(&path).unwrap();
}

#[test]
fn a_socket_that_somebody_has_replaced_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let ours = Listener::unix(&path).unwrap();
    std::fs::rename(&path, folder.path().join("aside")).unwrap();
    let theirs = Listener::unix(&path).unwrap();
    drop(ours);
    assert!(path.exists());
    drop(theirs);
}

#[test]
fn tcp_serves_this_machine_and_others_only_if_meant() {
    let folder = || tempfile::tempdir().unwrap();
    let disks = || [Disk::new("d", "memory:1M")];
    let local = Listener::tcp("127.0.0.1:0").unwrap();
    let rig = Rig::listening(&disks(), 1, |_| {}, vec![local], folder());
    run(Command::new("nbdinfo").arg(&rig.server.addresses()[0]));
    let open = Listener::tcp("0.0.0.0:0").unwrap().insecure(true);
    let rig = Rig::listening(&disks(), 1, |_| {}, vec![open], folder());
    let address = rig.server.addresses()[0].replace("0.0.0.0", "127.0.0.1");
    run(Command::new("nbdinfo").arg(address));
    let refused = std::panic::catch_unwind(|| {
        let open = Listener::tcp("0.0.0.0:0").unwrap();
        Rig::listening(&[Disk::new("d", "memory:1M")], 1, |_| {}, vec![open], tempfile::tempdir().unwrap())
    });
    let message = *refused.err().expect("without TLS it is refused").downcast::<String>().unwrap();
    assert!(message.contains("Insecure"), "{message}");
}

#[test]
fn clients_can_use_the_address_that_is_told_whatever_the_sockets_path() {
    for name in ["s", "a b", "a?b#c&d=e", "100%25", "a+b;c:d@e", "d\u{fc}\u{2603}", "a\"b'c\\d", "a\nb"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let theirs = std::os::unix::net::UnixListener::bind(path.with_extension("theirs")).unwrap();
        let listeners = vec![Listener::unix(&path).unwrap(), Listener::from_fd(theirs.into()).unwrap()];
        let rig = Rig::listening(&[Disk::new("d", "memory:1M")], 1, |_| {}, listeners, folder);
        for address in rig.server.addresses() {
            let said = run(Command::new("nbdinfo").args(["--size", address]));
            assert_eq!(said.trim(), "1048576", "{address}");
            let said = run(Command::new("qemu-img").args(["info", "--output=json", address]));
            assert!(said.contains("\"virtual-size\": 1048576"), "{address}: {said}");
        }
    }
}

#[test]
fn inherited_sockets_are_for_the_process_they_are_meant_for() {
    let own = std::process::id().to_string();
    let vars = |pid: &str, fds: &str| {
        let (pid, fds) = (pid.to_owned(), fds.to_owned());
        move |name: &str| match name {
            "LISTEN_PID" => Some(pid.clone()),
            "LISTEN_FDS" => Some(fds.clone()),
            _ => None,
        }
    };
    assert!(inherited(|_| None).unwrap().is_empty());
    assert!(inherited(vars("1", "3")).unwrap().is_empty());
    for wrong in ["", "x", "0", "-1", "100000"] {
        assert!(matches!(inherited(vars(&own, wrong)), Err(ListenError::ListenFds { .. })), "{wrong:?}");
    }
}

#[test]
fn an_inherited_socket_serves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
    theirs.set_nonblocking(true).unwrap();
    {
        let listener = Listener::from_fd(theirs.try_clone().unwrap().into()).unwrap();
        let mut rig = Rig::listening(&[Disk::new("d", "memory:1M")], 1, |_| {}, vec![listener], folder);
        let mut raw = Raw::go(&rig);
        raw.request(0, 0, 1, 0, 512);
        assert_eq!(raw.reply(), (0, 1));
        drop(raw);
        rig.stop();
        assert!(path.exists(), "it is not ours to remove");
    }
    let file = std::fs::File::open("/dev/null").unwrap();
    let number = file.as_raw_fd();
    let error = Listener::from_fd(file.into()).unwrap_err();
    assert!(error.to_string().contains(&number.to_string()), "{error}");
}

/// The timer of the server's end of a connection over TCP on this machine, as /proc/net/tcp has it: its kind, and how many hundredths of a
/// second are left.
fn timer(server: u16, client: u16) -> (u32, u32) {
    let ends = format!("0100007F:{server:04X} 0100007F:{client:04X} 01 ");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let line = table.lines().find(|line| line.contains(&ends)).expect("it is connected");
    let timer = line.split_whitespace().nth(5).unwrap().split_once(':').unwrap();
    let number = |text| u32::from_str_radix(text, 16).unwrap();
    (number(timer.0), number(timer.1))
}

fn over_tcp(configure: impl FnOnce(&mut NbdConfig)) -> (Rig, u16) {
    let disks = [Disk::new("d", "memory:1M")];
    let listener = Listener::tcp("127.0.0.1:0").unwrap();
    let rig = Rig::listening(&disks, 1, configure, vec![listener], tempfile::tempdir().unwrap());
    let port = rig.server.addresses()[0].rsplit(':').next().unwrap().parse().unwrap();
    (rig, port)
}

#[test]
fn the_host_of_a_silent_client_over_tcp_will_be_asked_whether_it_is_there() {
    const KEEP_ALIVE: u32 = 2;
    let (rig, port) = over_tcp(|_| {});
    let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let from = client.local_addr().unwrap().port();
    until("it is accepted", || rig.server.counts().connections == 1);
    let mut seen = (0, 0);
    // Until what was sent is acknowledged, there is another timer.
    until("nothing else is waited for", || {
        seen = timer(port, from);
        seen.0 == KEEP_ALIVE
    });
    assert!((1..=6000).contains(&seen.1), "{seen:?}");
}

#[test]
fn a_client_over_tcp_whose_host_was_started_again_is_gone() {
    let (rig, port) = over_tcp(|config| config.silence_time = Nanos::secs(1));
    let uri = format!("nbd://127.0.0.1:{port}");
    // It reads, and is silent: nothing is sent again for want of an acknowledgement. Then its end of the connection is forgotten without a
    // word, as by a host that loses its power.
    python(
        &uri,
        "import os, socket
h = nbd.NBD()
h.connect_uri(uri)
h.pread(512, 0)
client = socket.socket(fileno=os.dup(h.aio_get_fd()))
ends = ' '.join('0100007F:%04X' % end[1] for end in (client.getpeername(), client.getsockname()))
def is_sending():
    line = next(line for line in open('/proc/net/tcp') if ends in line)
    return line.split()[5].startswith('01:')
while is_sending(): pass
TCP_REPAIR = 19
client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
os._exit(0)",
    );
    assert_eq!(rig.server.counts().accepted, 1);
    until("its connection is closed", || rig.server.counts().connections == 0);
}
