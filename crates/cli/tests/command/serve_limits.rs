//! Servers that are allowed little: what a process may not have, or must not write, is an error that is told, and no end in the midst of things.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::support::lvm::Lab;
use crate::support::md::array;
use crate::support::{BLOCKWORK, Scratch, Server, both, output, run, run_refused, tool};
use blockwork_format::md::Level;

const MIB: u64 = 1 << 20;

/// `blockwork ARGS` by way of another program, which runs it.
fn by_way_of(scratch: &Scratch, program: &str, its_args: &[&str], args: &[&str]) -> Command {
    let mut command = tool(program);
    command.current_dir(scratch.path("")).env("BLOCKWORK_RUN_DIR", scratch.run_dir());
    command.args(its_args).arg(BLOCKWORK).args(args);
    command
}

/// The kernel sends SIGXFSZ to who writes behind that limit.
#[test]
fn a_write_behind_the_limit_of_a_files_size_is_want_of_room_and_nothing_else() {
    let scratch = Scratch::new();
    let disks = array(&scratch, "mirrors", Level::Raid10, 2, 32 * MIB);
    let args = ["serve", "--nbd", "unix:socket", "--disk", &disks[0], &disks[1], "md/mirrors"];
    for more in [&[][..], &["--io", "threads"]] {
        let limit = format!("--fsize={}", 16 * MIB);
        let server = Server::start(by_way_of(&scratch, "prlimit", &[&limit], &args).args(more));
        let write = |at: &str| {
            let write = format!("write -P 7 {at} 1M");
            both(&output(tool("qemu-io").args(["-f", "raw", "-c", &write, "-c", "flush", &scratch.uri("")])))
        };
        assert!(write("24M").contains("No space left on device"));
        assert!(write("1M").contains("wrote 1048576/1048576"), "it goes on");
        let arrays = scratch.ask("/v1/arrays");
        assert_eq!(arrays["arrays"][0]["degraded"], 0, "no member has failed: {arrays}");
        let ended = server.stop();
        assert!(ended.status.success(), "{}", ended.stderr);
        let said = format!("blockwork: error: {}: Write of ", disks[0]);
        assert!(ended.stderr.contains(&said) && ended.stderr.contains("LimitFSIZE="), "{}", ended.stderr);
    }
}

#[test]
fn what_is_made_is_its_owners_whatever_the_umask() {
    let scratch = Scratch::new();
    let under = ["-c", "umask 0777; exec \"$0\" \"$@\""];
    let server = Server::start(&mut by_way_of(
        &scratch,
        "sh",
        &under,
        &["serve", "--disk", "memory:1M", "--nbd", "unix:socket", "--log-writes", "log"],
    ));
    let mode = |name: &str| fs::symlink_metadata(scratch.path(name)).expect("it is there").mode() & 0o777;
    assert_eq!((mode("socket"), mode("run"), mode("log")), (0o600, 0o700, 0o600));
    assert_eq!(run(tool("nbdinfo").args(["--size", &scratch.uri("")])).trim(), "1048576");
    assert!(server.stop().status.success());
}

/// Clients may have come by then, and arrays have begun to be resynced.
#[test]
fn a_server_that_cannot_say_that_it_is_ready_is_taken_down_in_order() {
    let scratch = Scratch::new();
    let nobody = ["-c", "exec \"$0\" \"$@\" >/dev/full"];
    let args = ["serve", "--disk", "memory:1M", "--nbd", "unix:socket", "--stats"];
    let ended = output(&mut by_way_of(&scratch, "sh", &nobody, &args));
    let said = both(&ended);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("standard output cannot be written to: No space left on device"), "{said}");
    assert!(said.contains("no I/O"), "its statistics come at the end: {said}");
    assert!(!fs::exists(scratch.path("socket")).unwrap(), "its socket is gone");
    assert_eq!(fs::read_dir(scratch.path("run")).unwrap().count(), 0);
}

/// As in a container whose root is read-only.
#[test]
fn who_has_no_place_for_a_control_socket_is_told_how_to_serve_without() {
    let scratch = Scratch::new();
    let args = ["serve", "--disk", "memory:1M", "--nbd", "unix:socket"];
    let said = run_refused(scratch.blockwork(args).env("BLOCKWORK_RUN_DIR", "/proc/none"));
    assert!(said.contains("/proc/none: the folder for control sockets: "), "{said}");
    assert!(said.contains("set BLOCKWORK_RUN_DIR") && said.contains("(--no-control)"), "{said}");
    let without = args.into_iter().chain(["--no-control"]);
    let server = Server::start(scratch.blockwork(without).env("BLOCKWORK_RUN_DIR", "/proc/none"));
    assert!(server.stop().status.success());
}

/// Another kind of socket: to find out who has it is refused, and that is no proof of a server.
#[test]
fn a_socket_of_which_nothing_can_be_found_out_is_no_other_servers() {
    let scratch = Scratch::new();
    let _other = std::os::unix::net::UnixDatagram::bind(scratch.path("refused")).unwrap();
    let said = scratch.refused(["--disk", "memory:1M"]);
    assert!(
        said.contains("refused: whether a server answers on this socket cannot be found out: "),
        "{said}"
    );
    assert!(said.contains("remove it if none does"), "{said}");
    assert!(fs::exists(scratch.path("refused")).unwrap());
}

/// Nobody has to know that the soft limit is for programs that use select(2).
#[test]
fn more_disks_are_looked_at_than_the_soft_limit_of_files_allows() {
    let scratch = Scratch::new();
    let disks: Vec<String> = (0..40).map(|n| format!("{n}.img")).collect();
    disks.iter().for_each(|disk| drop(scratch.sparse(disk, MIB)));
    let args: Vec<&str> = ["scan"].into_iter().chain(disks.iter().map(String::as_str)).collect();
    let shown = run(&mut scratch.with_descriptors(20, 60, &args));
    assert!(shown.contains("disk/39.img"), "{shown}");
    let refused = both(&output(&mut scratch.with_descriptors(20, 30, &args)));
    assert!(
        refused.contains(".img: open: Too many open files") && refused.contains("ulimit -n"),
        "{refused}"
    );
}

/// By whoever writes to the socket himself: our own verbs do not let such requests out.
#[test]
fn requests_that_can_never_be_done_are_not_understood_and_change_nothing() {
    let lab = Lab::new(&[("a", 40)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    lab.verb(&["lv", "create", "vg/one", "--size", "4M"]);
    let server = lab.scratch.serve(["--disk", "a"]);
    for (path, body, status, words) in [
        (
            "groups",
            r#""verb": "remove", "volumes": []"#,
            400,
            "the volumes to be removed: none: expected one at least",
        ),
        ("groups", r#""verb": "remove", "volumes": ["one", "one"]"#, 400, "one twice: expected each once"),
        ("groups", r#""verb": "remove", "volumes": ["two"]"#, 404, "two"),
        (
            "groups",
            r#""verb": "tag-group""#,
            400,
            "the tags to be added or removed: none: expected one at least",
        ),
        (
            "groups",
            r#""verb": "tag-volume", "volume": "one", "add": [], "remove": []"#,
            400,
            "expected one at least",
        ),
        ("groups", r#""verb": "tag-group", "add": ["a b"]"#, 400, "the tag \"a b\""),
        ("groups", r#""verb": "rename", "volume": "one", "new": "-x""#, 400, "the logical volume \"-x\""),
        ("groups", r#""verb": "resize", "volume": "one", "to": {"to-bytes": 0}"#, 400, "the size"),
        (
            "exports",
            r#""verb": "add", "volume": "vg/one", "vhost_user": "vm.sock""#,
            400,
            "begins with a slash",
        ),
        (
            "exports",
            r#""verb": "add", "volume": "vg/one", "vhost_user": "/x/vm", "queues": 0"#,
            400,
            "queues 0: expected 1 to 256",
        ),
        (
            "exports",
            r#""verb": "add", "volume": "vg/one", "vhost_user": "/x/vm", "queues": 257"#,
            400,
            "queues 257: expected 1 to 256",
        ),
        (
            "exports",
            r#""verb": "add", "volume": "vg/one", "vhost_user": "/x/vm", "xen": "3/xvda""#,
            400,
            "not both",
        ),
        ("exports", r#""verb": "add", "volume": "vg/one""#, 400, "vhost_user or xen is missing"),
        (
            "exports",
            r#""verb": "add", "volume": "vg/one", "xen": "3/xvda", "queues": 2"#,
            400,
            "leave them out",
        ),
        ("exports", r#""verb": "add", "volume": "vg/one", "xen": "x""#, 400, "xen x: "),
        ("pools", r#""pool": "dm/pool", "message": "melt""#, 400, "melt"),
        ("pools", r#""pool": "dm/pool", "message": "create_thin 1""#, 404, "dm/pool"),
    ] {
        let group = if path == "groups" { r#""group": "vg", "# } else { "" };
        let (answer, found) = lab.scratch.post(&format!("/v1/{path}"), &format!("{{{group}{body}}}"));
        assert_eq!(found, status, "{body}: {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(words)), "{body}: {answer}");
    }
    let groups = lab.scratch.ask("/v1/groups");
    assert_eq!(groups["groups"][0]["seqno"], 2, "{groups}");
    server.stop_quietly();
}
