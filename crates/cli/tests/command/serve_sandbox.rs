//! `serve --sandbox on`: a server that has given up what it does not need serves all that it was started with, by every way, and leaves
//! nothing behind; what else its user could have, it cannot. (What seccomp and Landlock refuse is tried from the inside by the tests of
//! `src/serve/sandbox`.)

use std::path::Path;

use crate::support::lvm::Lab;
use crate::support::nbd::python;
use crate::support::nfs::NfsServer;
use crate::support::{Scratch, Server, output, run, run_refused, until};
use blockwork_format::virtio::blk::{request, status};
use vhostload::{Disk, Options, Request};

const MIB: u64 = 1 << 20;
/// landlock_create_ruleset(2), the same on every machine.
const LANDLOCK_CREATE_RULESET: &str = "444";

fn serve(scratch: &Scratch, args: &[&str]) -> Server {
    let mut command = scratch.blockwork(["serve", "--sandbox", "on", "--nbd", "unix:socket"]);
    Server::start(command.args(args))
}

/// All threads are in it, whichever way they were started; and the server says so.
fn expect_sandboxed(scratch: &Scratch, server: &Server) {
    // A thread names itself, some time after it was started.
    until("all have their names", || {
        let names = expect_each_sandboxed(server.pid());
        ["blockwork-0", "blockwork-ctl"].iter().all(|name| names.iter().any(|it| it == name))
    });
    assert_eq!(scratch.ask("/v1/status")["sandbox"], true);
}

/// The names of all threads, each of which is in it.
fn expect_each_sandboxed(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let mut names = Vec::new();
    for task in tasks {
        // A thread may have ended meanwhile.
        let task = task.expect("it runs").path();
        let Ok(text) = std::fs::read_to_string(task.join("status")) else { continue };
        let value = |field: &str| {
            let line = text.lines().find(|line| line.starts_with(field)).expect("a field of proc(5)");
            line.split_whitespace().nth(1).expect("a value").to_owned()
        };
        assert_eq!((value("NoNewPrivs:"), value("Seccomp:")), ("1".into(), "2".into()), "{text}");
        names.push(value("Name:"));
    }
    names
}

/// Writes at the beginning of an export, and reads it again.
fn write(uri: &str) {
    let script = format!(
        "h = connect({uri:?})\nh.pwrite(b'a' * 65536, 4096)\nh.flush()\nprint(h.pread(65536, 4096) == b'a' * 65536)\n"
    );
    assert_eq!(python(&script), "True\n");
}

fn nothing_in(folder: &Path) -> bool {
    std::fs::read_dir(folder).expect("a folder").next().is_none()
}

#[test]
fn tables_and_guests_are_served_and_no_socket_is_left() {
    let scratch = Scratch::new();
    for name in ["a.img", "b.img", "origin.img", "store.img"] {
        scratch.sparse(name, 8 * MIB);
    }
    for folder in ["guests", "logs"] {
        std::fs::create_dir(scratch.path(folder)).unwrap();
    }
    let table = "stripes: 0 16384 striped 2 128 a.img 0 b.img 0\n\
                 base: 0 16384 snapshot-origin origin.img\nsnap: 0 16384 snapshot origin.img store.img P 16\n";
    scratch.write("t.table", table);
    let server = serve(
        &scratch,
        &[
            "--table",
            "t.table",
            "dm/stripes",
            "dm/snap",
            "--nbd",
            "127.0.0.1:0",
            "--vhost-user",
            "guests/socket",
            "--log-writes",
            "logs/log",
        ],
    );
    expect_sandboxed(&scratch, &server);
    write(&scratch.uri("dm/stripes"));
    write(&scratch.uri("dm/snap"));
    let tcp = server.addresses.iter().find(|it| it.starts_with("nbd://")).expect("one over TCP");
    write(tcp);
    let mut guest = Disk::new(&scratch.path("guests/socket"), Options::default()).expect("a guest's disk");
    let last = Request { kind: request::OUT, sector: 16384 - 8, len: 4096 };
    assert_eq!(guest.run(0, last).expect("an answer").status, status::OK);
    drop(guest);
    let shown = run(&mut scratch.blockwork(["status"]));
    assert!(shown.contains(&format!("(server {}, in its sandbox)", server.pid())), "{shown}");
    server.stop_quietly();
    assert!(nothing_in(&scratch.path("guests")) && nothing_in(&scratch.run_dir()));
    assert!(!scratch.path("socket").exists());
}

#[test]
fn an_array_is_recorded_and_gets_no_disk_but_those_that_are_allowed() {
    let scratch = Scratch::new();
    let elsewhere = Scratch::new();
    for folder in ["disks", "spares", "guests"] {
        std::fs::create_dir(scratch.path(folder)).unwrap();
    }
    for name in ["disks/a.img", "disks/b.img", "other.img", "spares/c.img"] {
        scratch.sparse(name, 32 * MIB);
    }
    let create = ["md", "create", "--level=1", "--raid-devices=2", "--name=d", "--bitmap=internal"];
    run(&mut scratch.blockwork(create.into_iter().chain(["disks/a.img", "disks/b.img"])));
    let events = || {
        let said = run(&mut scratch.blockwork(["md", "examine", "--json", "disks/a.img"]));
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        said[0]["events"].as_u64().expect("a count")
    };
    let before = events();
    let server = serve(
        &scratch,
        &[
            "--disk",
            "disks/a.img",
            "disks/b.img",
            "--sandbox-allow",
            &scratch.at("spares"),
            &scratch.at("guests"),
        ],
    );
    expect_sandboxed(&scratch, &server);
    write(&scratch.uri("md/d"));
    run(&mut scratch.blockwork(["md", "wait", "md/d"]));
    // Its user may open it.
    std::fs::File::open(scratch.path("other.img")).expect("nothing is in the way");
    let said = run_refused(&mut scratch.blockwork(["md", "add", "md/d", "other.img"]));
    assert!(said.contains("other.img") && said.contains("the server is in its sandbox"), "{said}");
    assert!(said.contains("--sandbox-allow PATH"), "{said}");
    assert!(!said.contains("ls -lL"), "its rights are not the reason: {said}");
    let said = run(&mut scratch.blockwork(["md", "add", "md/d", "spares/c.img"]));
    assert!(said.contains("c.img is a spare of md/d"), "{said}");
    // What has gone can be opened again, as it could be at first.
    run(&mut scratch.blockwork(["md", "fail", "md/d", "a.img"]));
    run(&mut scratch.blockwork(["md", "wait", "md/d"]));
    for (name, path) in [("a.img", "disks/a.img"), ("c.img", "spares/c.img")] {
        run(&mut scratch.blockwork(["md", "fail", "md/d", name]));
        run(&mut scratch.blockwork(["md", "remove", "md/d", name]));
        assert!(!server.has_open(&scratch.at(path)));
        run(&mut scratch.blockwork(["md", "add", "md/d", path]));
        assert!(server.has_open(&scratch.at(path)));
        run(&mut scratch.blockwork(["md", "wait", "md/d"]));
    }
    // Likewise sockets.
    let place = elsewhere.at("guest");
    let said = run_refused(&mut scratch.blockwork(["export", "add", "md/d", "--vhost-user", &place]));
    assert!(said.contains("the server is in its sandbox"), "{said}");
    run(&mut scratch.blockwork(["export", "add", "md/d", "--vhost-user", "guests/guest"]));
    assert!(scratch.path("guests/guest").exists());
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(nothing_in(&scratch.path("guests")));
    assert!(events() > before, "the superblock was written");
}

#[test]
fn volumes_come_and_go() {
    let lab = Lab::new(&[("a", 161)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "96M"]);
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "64M"]);
    let server = serve(&lab.scratch, &["--disk", "a"]);
    expect_sandboxed(&lab.scratch, &server);
    write(&lab.scratch.uri("vg/one"));
    for args in [
        &["lv", "snapshot", "vg/one", "--name", "snap"][..],
        &["lv", "create", "vg/two", "--size", "8M"],
        &["lv", "resize", "vg/one", "--size", "+16M"],
        &["lv", "remove", "vg/snap"],
    ] {
        run(&mut lab.scratch.blockwork(args));
    }
    write(&lab.scratch.uri("vg/two"));
    server.stop_quietly();
    lab.expect_sound();
}

#[test]
fn a_disk_on_an_nfs_server_is_reached() {
    let scratch = Scratch::new();
    let nfs = NfsServer::start(&scratch);
    scratch.sparse("export/disk.img", 32 * MIB);
    for query in ["", "?vers=3"] {
        let url = nfs.url("disk.img", query);
        let command = scratch.blockwork(["serve", "--sandbox", "on", "--nbd", "unix:socket", "--disk", &url]);
        let server = Server::start(&mut nfs.beside(&command));
        expect_sandboxed(&scratch, &server);
        write(&scratch.uri(""));
        let ended = server.stop();
        assert!(ended.status.success(), "{}", ended.stderr);
    }
    assert_eq!(scratch.read("export/disk.img")[4096..4096 + 65536], [b'a'; 65536]);
}

#[test]
fn who_asks_for_a_sandbox_that_cannot_be_had_gets_no_server() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", MIB);
    let args = ["serve", "--sandbox", "on", "--nbd", "unix:socket", "--disk", "disk.img"];
    let done = output(&mut scratch.without(LANDLOCK_CREATE_RULESET, args));
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("there is no Landlock here") && said.contains("serve without --sandbox"), "{said}");
    assert!(!scratch.path("socket").exists());
    for (args, expected) in [
        (&["--sandbox", "on", "--fuse", "mount"][..], "--fuse does not go with --sandbox on"),
        (&["--sandbox", "on", "--xen", "3/xvda"], "--xen does not go with --sandbox on"),
        (&["--sandbox-allow", "/tmp"], "add --sandbox on"),
        (&["--sandbox", "on", "--table", "/dev/null"], "write it to a file"),
    ] {
        let said = scratch.misused(args.iter().chain(&["--disk", "disk.img"]));
        assert!(said.contains(expected), "{said}");
    }
    let said = scratch.refused(["--sandbox", "on", "--sandbox-allow", "/nowhere", "--disk", "disk.img"]);
    assert!(said.contains("--sandbox-allow /nowhere: No such file"), "{said}");
}
