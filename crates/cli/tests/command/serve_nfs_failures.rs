//! What a real NFS server (nfs-ganesha) refuses or no longer has, in the middle of what clients do: each failure reaches the client by
//! its number and the log by its name, what was acknowledged stays, and what comes after goes on. Needs root, for a network of its own.

use crate::support::nbd::python;
use crate::support::nfs::NfsServer;
use crate::support::{Background, Scratch, Server, run, tool, until};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;
/// Versions of NFS, as an address names them.
const VERSIONS: [&str; 2] = ["vers=3", "vers=4"];

/// `blockwork serve` of a file of the server, over NBD.
fn serve(scratch: &Scratch, nfs: &NfsServer, query: &str) -> Server {
    let url = nfs.url("disk.img", query);
    let command = scratch.blockwork(["serve", "--nbd", "unix:socket", "--disk", &url, "--workers", "1"]);
    Server::start(&mut nfs.beside(&command))
}

/// Writes 64 KiB after 64 KiB of a byte that tells the block's number, `blocks` of them from block `from` on, a flush behind each,
/// until one is refused: how many were not, and the error's name.
fn fill(scratch: &Scratch, from: u64, blocks: u64) -> String {
    let uri = scratch.uri("");
    python(&format!(
        "h = connect({uri:?})\ndone, why = 0, None\nfor n in range({from}, {from} + {blocks}):\n    \
         why = refused(lambda: (h.pwrite(bytes([n + 1]) * 65536, n * 65536), h.flush()))\n    \
         if why: break\n    done += 1\nprint(done, errno.errorcode.get(why))"
    ))
    .trim()
    .to_owned()
}

/// What comes of each of these calls of a client: the error's name.
fn calls(scratch: &Scratch, calls: &[&str]) -> String {
    let (uri, calls) = (scratch.uri(""), calls.join(", lambda: "));
    python(&format!(
        "h = connect({uri:?})\nprint([(lambda why: errno.errorcode.get(why))(refused(call)) for call in [lambda: {calls}]])"
    ))
    .trim()
    .to_owned()
}

/// Which of the first blocks hold something else than [`fill`] has written.
fn differing(scratch: &Scratch, blocks: u64) -> String {
    let uri = scratch.uri("");
    python(&format!(
        "h = connect({uri:?})\nprint([n for n in range({blocks}) if h.pread(65536, n * 65536) != bytes([n + 1]) * 65536])"
    ))
    .trim()
    .to_owned()
}

#[test]
fn a_file_system_that_is_full_refuses_writes_and_takes_them_again_when_there_is_room() {
    for version in VERSIONS {
        let scratch = Scratch::new();
        // Room that ends within a write: the server does a part of it first.
        let nfs = NfsServer::start_on_tmpfs(&scratch, "size=1000k");
        nfs.within(&format!("truncate -s 4M {}", nfs.path("disk.img")));
        let server = serve(&scratch, &nfs, &format!("?{version}"));
        assert_eq!(fill(&scratch, 0, 64), "15 ENOSPC");
        until("the reason is told", || {
            server.said().contains("NFSERR_NOSPC; make room in the server's file system")
        });
        assert_eq!(differing(&scratch, 15), "[]");
        nfs.within(&format!("mount -o remount,size=8m {}", nfs.path("")));
        assert_eq!(fill(&scratch, 15, 49), "49 None");
        assert_eq!(differing(&scratch, 64), "[]");
        assert!(server.stop().status.success());
    }
}

#[test]
fn a_file_that_was_replaced_is_stale_and_one_that_shrinks_ends_where_it_ends() {
    for version in VERSIONS {
        let scratch = Scratch::new();
        let mut nfs = NfsServer::start(&scratch);
        scratch.sparse("export/disk.img", 4 * MIB);
        let server = serve(&scratch, &nfs, &format!("?timeo=50&{version}"));
        assert_eq!(fill(&scratch, 0, 64), "64 None");
        let file = std::fs::OpenOptions::new().write(true).open(scratch.path("export/disk.img"));
        file.and_then(|file| file.set_len(MIB)).expect("it is cut");
        let read = |block: u64| {
            let uri = scratch.uri("");
            let said = python(&format!(
                "h = connect({uri:?})\nwhy = refused(lambda: h.pread(65536, {block} * 65536))\nprint(errno.errorcode.get(why))"
            ));
            said.trim().to_owned()
        };
        assert_eq!((read(15), read(16)), ("None".to_owned(), "EIO".to_owned()));
        until("the reason is told", || server.said().contains("it ends at byte 1048576 now"));
        nfs.kill();
        std::fs::remove_file(scratch.path("export/disk.img")).expect("it is removed");
        scratch.sparse("export/disk.img", 4 * MIB);
        nfs.start_again();
        assert_eq!(fill(&scratch, 0, 1), "0 EIO");
        until("the reason is told", || {
            server.said().contains("NFSERR_STALE; the file was removed or replaced")
        });
    }
}

#[test]
fn a_soft_mount_gives_up_on_a_server_that_hangs_and_goes_on_when_it_answers() {
    for version in VERSIONS {
        let scratch = Scratch::new();
        let nfs = NfsServer::start(&scratch);
        scratch.sparse("export/disk.img", 4 * MIB);
        let server = serve(&scratch, &nfs, &format!("?timeo=5&retrans=1&{version}"));
        assert_eq!(fill(&scratch, 0, 16), "16 None");
        nfs.freeze();
        assert_eq!(fill(&scratch, 16, 16), "0 EIO");
        until("the reason is told", || server.said().contains("it is a soft mount, so I/O fails"));
        nfs.thaw();
        assert_eq!(fill(&scratch, 16, 47), "47 None");
        // What a flush without an answer was to make durable is kept for the next one.
        assert_eq!(calls(&scratch, &["h.pwrite(bytes([64]) * 65536, 63 * 65536)"]), "[None]");
        nfs.freeze();
        assert_eq!(calls(&scratch, &["h.flush()"]), "['EIO']");
        nfs.thaw();
        assert_eq!(calls(&scratch, &["h.flush()"]), "[None]");
        assert_eq!(differing(&scratch, 64), "[]");
        assert!(server.stop().status.success());
    }
}

/// The connection of `pid` to an NFS server: where it comes from, and the number of its socket. In /proc/net/tcp the second to fourth
/// column are local and remote address and state, in hex, and the tenth is that number.
fn connection(pid: u32) -> Option<(String, String)> {
    let all = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).expect("its network");
    let mut sockets = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let socket = sockets.find(|socket| socket[2].ends_with(":0801") && socket[3] == "01")?;
    Some((socket[1].to_owned(), socket[9].to_owned()))
}

#[test]
fn a_connection_that_is_lost_is_made_again_from_the_same_port() {
    for version in VERSIONS {
        let scratch = Scratch::new();
        let nfs = NfsServer::start(&scratch);
        scratch.sparse("export/disk.img", 4 * MIB);
        let server = serve(&scratch, &nfs, &format!("?timeo=10&nconnect=1&{version}"));
        assert_eq!(fill(&scratch, 0, 1), "1 None");
        let (port, socket) = connection(server.pid()).expect("one that is up");
        // It does not answer in time, so it is asked again, on another connection.
        nfs.freeze();
        std::thread::scope(|scope| {
            let filled = scope.spawn(|| fill(&scratch, 1, 1));
            let mut next = None;
            until("there is another connection", || {
                next = connection(server.pid()).filter(|(_, next)| *next != socket);
                next.is_some()
            });
            nfs.thaw();
            assert_eq!(next.expect("it is there").0, port);
            assert_eq!(filled.join().expect("it does not panic"), "1 None");
        });
        assert_eq!(differing(&scratch, 2), "[]");
        assert!(server.stop().status.success());
    }
}

/// Without a descriptor for it no connection can be made: that is said once, however often it is tried, and when it is over.
#[test]
fn a_connection_for_which_there_is_no_descriptor_is_told_of_once_and_when_it_is_over() {
    let scratch = Scratch::new();
    let nfs = NfsServer::start(&scratch);
    scratch.sparse("export/disk.img", 4 * MIB);
    let url = nfs.url("disk.img", "?timeo=5&nconnect=1");
    let mut command = scratch.blockwork(["serve", "--nbd", "unix:socket", "--disk", &url, "--workers", "1"]);
    let server = Server::start(&mut nfs.beside(command.env("RUST_LOG", "warn,blockwork_leaf=debug")));
    assert_eq!(fill(&scratch, 0, 1), "1 None");
    nfs.freeze();
    let (pid, uri) = (server.pid(), scratch.uri(""));
    let lines = |what: &str| server.said().lines().filter(|line| line.contains(what)).count();
    std::thread::scope(|scope| {
        // As few as no process has: what is open stays so.
        let starved = format!(
            "import resource\nh = connect({uri:?})\nlimits = resource.prlimit({pid}, resource.RLIMIT_NOFILE)\n\
             resource.prlimit({pid}, resource.RLIMIT_NOFILE, (3, limits[1]))\nh.pwrite(bytes([2]) * 65536, 65536)\nh.flush()"
        );
        let written = scope.spawn(move || python(&starved));
        until("it is tried again and again", || lines("can be made, again: ") >= 3);
        assert_eq!(lines("can be made: Too many open files"), 1, "{}", server.said());
        assert_eq!(lines("LimitNOFILE= of its unit"), 1, "{}", server.said());
        assert_eq!(lines("can be made again"), 0, "{}", server.said());
        run(tool("prlimit").arg(format!("--pid={pid}")).arg("--nofile=1024:"));
        nfs.thaw();
        written.join().expect("what waited is written");
    });
    until("it is over", || lines("connections to ") == 1 && lines("can be made again") == 1);
    assert_eq!(differing(&scratch, 2), "[]");
    assert!(server.stop().status.success());
}

#[test]
fn a_server_that_cannot_end_says_what_it_waits_for_and_ends_at_once_when_it_is_told_again() {
    let scratch = Scratch::new();
    let nfs = NfsServer::start(&scratch);
    scratch.sparse("export/disk.img", 4 * MIB);
    let mut server = serve(&scratch, &nfs, "");
    assert_eq!(fill(&scratch, 0, 1), "1 None");
    nfs.freeze();
    let write =
        format!("import nbd\nh = nbd.NBD()\nh.connect_uri({:?})\nh.pwrite(b'x' * 65536, 0)", scratch.uri(""));
    let writer = Background::start(tool("/usr/bin/python3").args(["-c", &write]));
    until("the write is under way", || {
        let stats = scratch.ask("/v1/stats");
        stats["nodes"].as_array().expect("a list").iter().any(|node| node["in_flight"] == 1)
    });
    server.signal(Signal::TERM);
    until("it says what it waits for", || server.said().contains("the end waits for 1 request to"));
    assert!(server.said().contains("disk.img; another SIGINT (^C) or SIGTERM ends"), "{}", server.said());
    assert!(server.is_alive());
    // Whichever: who has asked by one loses patience by the other.
    server.signal(Signal::INT);
    assert_eq!(server.wait().status.code(), Some(130));
    nfs.thaw();
    let (code, _) = writer.finish();
    assert_ne!(code, Some(0), "a write that nobody did was acknowledged");
}
