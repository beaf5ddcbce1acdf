//! Disks that are taken out of an array that is served: they are closed, and others may have them; they come back as disks that were never here
//! would. What something else in the server uses stays open.

use crate::md_lab::{Lab, MIB};
use crate::support::fs::is_free;
use crate::support::nbd::{nbdload, python};
use crate::support::{Background, Server, run, tool, until};

/// The disks that a server says it has.
fn disks(lab: &Lab) -> Vec<String> {
    let status = lab.scratch.ask("/v1/status");
    let names = status["disks"].as_array().expect("a list").iter();
    names.map(|disk| disk["name"].as_str().expect("text").to_owned()).collect()
}

/// It is nobody's, at this very moment: a file is closed when the verb has ended, and not some time later.
#[track_caller]
fn expect_closed(lab: &Lab, server: &Server, disk: &str) {
    let path = lab.scratch.at(disk);
    assert!(is_free(&path) && !server.has_open(&path), "{disk} is open");
}

#[test]
fn a_disk_that_was_taken_out_is_closed_and_serves_elsewhere_while_its_array_goes_on() {
    let lab = Lab::new();
    lab.create("1", &["a.img", "b.img"], 32 * MIB, &["--assume-clean", "--bitmap", "internal"]);
    let args = ["--workers", "2", "--set", "leaf:read_ahead_kb=512", "md/data", "--disk", "a.img", "b.img"];
    let server = lab.scratch.serve(args);
    lab.md(&["sync-speed", "md/data", "--min", "1000000", "--max", "1000000"]);
    let mut client = nbdload();
    client.arg(format!("unix:{}", lab.socket())).args(["--export", "md/data", "--verify", "--rw", "randrw"]);
    client.args(["--bs", "4k", "--depth", "16", "--connections", "2", "--seconds", "12"]);
    let mut client = Background::start(&mut client);
    until("the client is at work", || lab.counters_of("b.img")["writes"].as_u64() > Some(0));
    for round in 0..8 {
        lab.md(&["fail", "md/data", "b.img"]);
        assert!(!is_free(&lab.scratch.at("b.img")), "it is the array's until it is taken out");
        assert_eq!(lab.md(&["remove", "md/data", "b.img"]), "removed from md/data: b.img\n");
        expect_closed(&lab, &server, "b.img");
        assert_eq!(disks(&lab), ["a.img"]);
        // By its path, or by the name that it had here.
        let again = if round % 2 == 0 { "b.img" } else { "disk/b.img" };
        lab.md(&["add", "md/data", again, "--wait"]);
        assert_eq!((lab.state("b.img"), disks(&lab).len()), ("in_sync".into(), 2));
        assert!(!is_free(&lab.scratch.at("b.img")) && server.has_open(&lab.scratch.at("b.img")));
    }
    assert!(client.is_running(), "the client was at work all the time");
    client.succeed();
    assert_eq!(lab.mismatches_of_check(), 0);

    // Somebody else's in between.
    lab.md(&["fail", "md/data", "b.img"]);
    lab.md(&["remove", "md/data", "b.img"]);
    let create = ["create", "--level", "1", "--raid-devices", "2", "--name", "other", "--force"];
    lab.md(&[&create[..], &["b.img", "missing"]].concat());
    let mut elsewhere = lab.scratch.blockwork([
        "serve",
        "md/other",
        "--disk",
        "b.img",
        "--nbd",
        "unix:other",
        "--no-control",
    ]);
    let other = Server::start(&mut elsewhere);
    let uri = format!("nbd+unix:///?socket={}", lab.scratch.at("other"));
    python(&format!("h = connect({uri:?})\nh.pwrite(b'x' * 65536, 0)\nh.flush()\n"));
    let said = lab.refused(&["add", "md/data", "b.img", "--force"]);
    assert!(said.contains("b.img: it is locked by process"), "{said}");
    assert_eq!(disks(&lab), ["a.img"]);
    lab.stop(other);
    // It holds something now, and is known to.
    let said = lab.refused(&["add", "md/data", "b.img"]);
    assert!(said.contains("it holds a member of the raid1 array \"other\""), "{said}");
    expect_closed(&lab, &server, "b.img");
    lab.md(&["add", "md/data", "b.img", "--force", "--wait"]);
    assert_eq!(lab.mismatches_of_check(), 0);
    lab.stop(server);
    lab.expect_equal("a.img", "b.img");
}

#[test]
fn a_disk_that_an_array_has_not_taken_in_is_not_kept_open() {
    let lab = Lab::new();
    lab.create("1", &["a.img", "b.img"], 16 * MIB, &["--assume-clean"]);
    let server = lab.serve(&["a.img", "b.img"]);
    lab.blank("small.img", MIB);
    for _ in 0..2 {
        let said = lab.refused(&["add", "md/data", "small.img"]);
        assert!(said.contains("small.img"), "{said}");
        expect_closed(&lab, &server, "small.img");
        assert_eq!(disks(&lab), ["a.img", "b.img"]);
    }
    lab.resize("small.img", 16 * MIB);
    lab.md(&["add", "md/data", "small.img"]);
    let path = lab.scratch.at("small.img");
    assert_eq!((lab.state(&path), disks(&lab).len()), ("spare".into(), 3));
    // A spare that goes does so as a member.
    lab.md(&["remove", "md/data", &path]);
    expect_closed(&lab, &server, "small.img");
    lab.stop(server);
}

#[test]
fn a_disk_of_several_partitions_is_closed_with_the_last_one_that_is_used() {
    let lab = Lab::new();
    let table = lab.scratch.write("table", "label: gpt\nsize=16M\nsize=16M\n");
    for disk in ["a.img", "b.img"] {
        lab.blank(disk, 40 * MIB);
        run(tool("sh").args(["-c", &format!("exec sfdisk --quiet {} <{table}", lab.scratch.at(disk))]));
    }
    for (name, number) in [("data", 1), ("more", 2)] {
        let members = ["a.img", "b.img"].map(|disk| format!("{disk}/{number}"));
        let create = ["create", "--level", "1", "--raid-devices", "2", "--name", name, "--assume-clean"];
        lab.md(&[&create[..], &[&members[0], &members[1]]].concat());
    }
    let server = lab.scratch.serve(["md/data", "md/more", "--disk", "a.img", "b.img"]);
    lab.md(&["fail", "md/data", "b.img/1"]);
    let said = lab.md(&["remove", "md/data", "b.img/1"]);
    let stays =
        "removed from md/data: disk/b.img/1; disk/b.img/1 stays open here: an array has disk/b.img/2\n";
    assert_eq!(said, stays);
    assert!(server.has_open(&lab.scratch.at("b.img")));
    lab.md(&["add", "md/data", "b.img/1", "--wait"]);
    for (array, part) in [("md/data", "b.img/1"), ("md/more", "b.img/2")] {
        lab.md(&["fail", array, part]);
        lab.md(&["remove", array, part]);
    }
    expect_closed(&lab, &server, "b.img");
    // Its partitions are those that it has when it comes back.
    run(tool("sfdisk").args(["--quiet", "--delete", &lab.scratch.at("b.img"), "2"]));
    lab.md(&["add", "md/data", "b.img/1", "--wait"]);
    assert_eq!(
        (lab.state("disk/b.img/1"), disks(&lab)),
        ("in_sync".into(), vec!["a.img".into(), "b.img".into()])
    );
    let said = lab.refused(&["add", "md/more", "b.img/2"]);
    assert!(said.contains("the disk has no such partition any more"), "{said}");
    lab.stop(server);
}

#[test]
fn a_disk_whose_writes_are_recorded_stays_open() {
    let lab = Lab::new();
    lab.create("1", &["a.img", "b.img"], 16 * MIB, &["--assume-clean"]);
    let args = ["--log-writes", &lab.scratch.at("log"), "md/data", "--disk", "a.img", "b.img"];
    let server = lab.scratch.serve(args);
    lab.md(&["fail", "md/data", "b.img"]);
    let said = lab.md(&["remove", "md/data", "b.img"]);
    assert_eq!(said, "removed from md/data: b.img; b.img stays open here: --log-writes records it\n");
    assert!(server.has_open(&lab.scratch.at("b.img")));
    lab.md(&["add", "md/data", "b.img", "--wait"]);
    lab.stop(server);
}
