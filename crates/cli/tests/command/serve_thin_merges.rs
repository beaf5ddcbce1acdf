//! Thin snapshots that take the place of their origins: without a server, and while their group is served, at once or when the last client
//! has gone. LVM's tools and `thin_check` judge what is on the disks afterwards; `../kernel/thin_verbs.rs` has Linux read it.

use std::fs;
use std::io::ErrorKind;

use super::serve_group_merges::{Sums, merge, offers, open, scatter, served, served_refused, shown, sum};
use crate::support;
use crate::support::lvm::Lab;
use crate::support::nbd::{fio, python};
use crate::support::{run, tool, until};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A group with a pool of 128 MiB, and in it `root` and its snapshots `before` and `other`, which nobody serves. Their numbers are 1 to 3.
fn group() -> (Lab, Sums) {
    let lab = Lab::new(&[("a", 165)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "128M"]);
    lab.verb(&["lv", "create", "vg/root", "--thin", "pool", "-V", "32M", "--addtag", "mine"]);
    let server = lab.scratch.serve(["--disk", "a"]);
    scatter(&lab, "vg/root", 1, 24);
    served(&lab, &["lv", "snapshot", "vg/root", "--name", "before"]);
    scatter(&lab, "vg/root", 2, 16);
    scatter(&lab, "vg/before", 3, 4);
    served(&lab, &["lv", "snapshot", "vg/root", "--name", "other"]);
    scatter(&lab, "vg/root", 4, 4);
    let sums = Sums::of(&lab);
    server.stop_quietly();
    (lab, sums)
}

/// LVM has nothing to complain of, `thin_check` neither, and both know of these volumes: name, origin, number and tags. `lab.dumped`
/// checks the metadata.
fn expect_volumes(lab: &Lab, volumes: &[&str], gone: &[u64], transaction: u64) {
    lab.expect_sound();
    let columns = lab.columns("lv_name,origin,thin_id,lv_tags");
    let columns: Vec<&str> = columns
        .iter()
        .map(String::as_str)
        .filter(|row| !row.contains("pool") && !row.contains("pmspare"))
        .collect();
    assert_eq!(columns, volumes);
    let dump = lab.dumped("pool");
    let head: Vec<&str> = dump.lines().filter(|line| line.contains(" transaction=")).collect();
    assert!(head[0].contains(&format!("transaction=\"{transaction}\" flags=\"0\"")), "{head:?}");
    for device in gone {
        assert!(!dump.contains(&format!("dev_id=\"{device}\"")), "{head:?}");
    }
    assert!(lab.columns("transaction_id,segtype").contains(&format!("{transaction};thin-pool")));
}

/// Clients of the origin come all the while: they wait while the one takes the place of the other.
fn until_merged(lab: &Lab, snapshot: &str, origin: &str) {
    until("it is done", || {
        (0..100).for_each(|_| drop(open(lab, origin)));
        shown(lab, snapshot).is_none()
    });
}

#[test]
fn a_thin_snapshot_takes_the_place_of_its_origin_without_a_server() {
    let (lab, sums) = group();
    let said = lab.verb(&["lv", "merge", "vg/before"]);
    assert_eq!(said, "vg/before: it has taken the place of its origin vg/root, and is gone\n");
    expect_volumes(&lab, &["other;;3;", "root;;2;mine"], &[1], 4);
    let said = lab.refused(&["lv", "merge", "vg/other"]);
    assert!(said.contains("it is no snapshot of a volume that is still there"), "{said}");
    let server = lab.scratch.serve(["--disk", "a"]);
    assert_eq!([sum(&lab, "vg/root"), sum(&lab, "vg/other")], [sums.before, sums.other]);
    scatter(&lab, "vg/root", 5, 16);
    server.stop_quietly();
    expect_volumes(&lab, &["other;;3;", "root;;2;mine"], &[1], 4);
}

/// The text of a merge that somebody has planned, Linux or a server of ours, is what the verb makes good.
#[test]
fn what_lvm_has_left_for_later_is_done_by_the_verb_and_by_a_server() {
    for by_server in [false, true] {
        let (lab, sums) = group();
        // As `lvconvert --merge vg/before` leaves it while the origin is open.
        let text = "device_id = 2\n\t\t\t\torigin = \"root\"";
        lab.edit(text, &format!("{text}\n\t\t\t\tmerge = \"root\""));
        let said = lab.refused(&["lv", "resize", "vg/root", "--size", "+1M"]);
        assert!(said.contains("finish that first: blockwork lv merge vg/before"), "{said}");
        if by_server {
            // Nothing is done by one that changes nothing.
            let server = lab.scratch.serve(["--disk", "a", "--read-only"]);
            assert_eq!(sum(&lab, "vg/root"), sums.before);
            assert_eq!(merge(&lab).as_deref(), Some("planned"));
            server.stop_quietly();
            let server = lab.scratch.serve(["--disk", "a", "vg/root"]);
            until_merged(&lab, "before", "vg/root");
            assert_eq!(sum(&lab, "vg/root"), sums.before);
            server.stop_quietly();
        } else {
            let said = lab.verb(&["lv", "merge", "vg/before", "--json"]);
            let said: Value = serde_json::from_str(&said).expect("JSON");
            assert_eq!(said["volume"], serde_json::json!({ "merged": "vg/before", "origin": "vg/root" }));
        }
        expect_volumes(&lab, &["other;;3;", "root;;2;mine"], &[1], 4);
        let server = lab.scratch.serve(["--disk", "a"]);
        assert_eq!([sum(&lab, "vg/root"), sum(&lab, "vg/other")], [sums.before, sums.other]);
        server.stop_quietly();
    }
}

/// Nor does who only reads begin what makes the origin smaller, however often its clients come and go.
#[test]
fn who_only_reads_leaves_a_merge_alone_that_makes_its_origin_smaller() {
    let (lab, _) = group();
    lab.verb(&["lv", "resize", "vg/root", "--size", "+1M"]);
    let text = "device_id = 2\n\t\t\t\torigin = \"root\"";
    lab.edit(text, &format!("{text}\n\t\t\t\tmerge = \"root\""));
    let server = lab.scratch.serve(["--disk", "a", "--read-only"]);
    for _ in 0..20 {
        assert!(offers(&lab, "vg/root"));
        drop(open(&lab, "vg/root"));
    }
    assert_eq!(merge(&lab).as_deref(), Some("planned"));
    let said = server.said();
    assert!(!said.contains("merge"), "{said}");
    server.stop_quietly();
}

#[test]
fn a_thin_snapshot_that_nobody_has_open_takes_the_place_of_its_origin_at_once() {
    let (lab, sums) = group();
    let server = lab.scratch.serve(["--disk", "a", "--workers", "2"]);
    let said = served(&lab, &["lv", "merge", "vg/before"]);
    assert_eq!(said, "vg/before: it has taken the place of its origin vg/root, and is gone\n");
    assert_eq!([sum(&lab, "vg/root"), sum(&lab, "vg/other")], [sums.before.clone(), sums.other.clone()]);
    assert!(shown(&lab, "before").is_none() && merge(&lab).is_none());
    let list = run(support::tool("nbdinfo").args(["--list", &lab.scratch.uri("")]));
    assert!(list.contains("vg/root") && list.contains("vg/other") && !list.contains("vg/before"), "{list}");
    // It can be whatever any volume can.
    scatter(&lab, "vg/root", 6, 8);
    let root = sum(&lab, "vg/root");
    served(&lab, &["lv", "snapshot", "vg/root", "--name", "again"]);
    scatter(&lab, "vg/root", 7, 8);
    served(&lab, &["lv", "resize", "vg/root", "--size", "+8M"]);
    // The snapshot is smaller than its origin by now.
    served(&lab, &["lv", "merge", "vg/again"]);
    assert_eq!(sum(&lab, "vg/root"), root);
    let size = python(&format!("print(connect({:?}).get_size())\n", lab.scratch.uri("vg/root")));
    assert_eq!(size.trim(), (32 * MIB).to_string());
    server.stop_quietly();
    expect_volumes(&lab, &["other;;3;", "root;;4;mine"], &[1, 2], 6);
}

#[test]
fn clients_keep_what_they_have_open_and_the_last_one_that_goes_ends_it() {
    let (lab, sums) = group();
    let server = lab.scratch.serve(["--disk", "a", "--workers", "2"]);
    let (mut of_root, of_before) = (open(&lab, "vg/root"), open(&lab, "vg/before"));
    let said = served(&lab, &["lv", "merge", "vg/before"]);
    let expected = "vg/before: it is to be merged into vg/root; vg/root is in use: 1 NBD client has it open; it begins when the last \
                    client has gone\n";
    assert_eq!(said, expected);
    assert_eq!(merge(&lab).as_deref(), Some("waiting"));
    // Nobody else comes to the snapshot, and whoever comes to the origin finds it as it was.
    assert!(!offers(&lab, "vg/before"));
    assert_eq!(sum(&lab, "vg/root"), sums.root);
    for (args, why) in [
        (&["lv", "merge", "vg/other"][..], "before is to be merged into the same origin"),
        (&["lv", "remove", "vg/before"], "it is being merged into root: name that one"),
        (&["lv", "remove", "vg/root"], "finish that first: blockwork lv merge vg/before"),
        (&["lv", "snapshot", "vg/root"], "finish that first: blockwork lv merge vg/before"),
        (&["lv", "resize", "vg/root", "--size", "+4M"], "finish that first: blockwork lv merge vg/before"),
    ] {
        let said = served_refused(&lab, args);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    assert_eq!(served(&lab, &["lv", "merge", "vg/before"]), expected, "again is not more");
    // Other volumes of the pool come and go.
    served(&lab, &["lv", "create", "vg/more", "--thin", "pool", "-V", "8M"]);
    served(&lab, &["lv", "remove", "vg/more"]);
    // What the last client of the origin has sent, and did not wait for, is not in what the origin is afterwards.
    drop(of_before);
    for n in 0..512_u32 {
        let at = u64::from(n * 31 % 8000) * 4096 + u64::from(n % 2 * 300);
        of_root.write_unanswered(at, 4096);
    }
    assert_eq!(merge(&lab).as_deref(), Some("waiting"));
    drop(of_root);
    until_merged(&lab, "before", "vg/root");
    assert_eq!([sum(&lab, "vg/root"), sum(&lab, "vg/other")], [sums.before, sums.other]);
    server.stop_quietly();
    expect_volumes(&lab, &["other;;3;", "root;;2;mine"], &[1], 6);
}

#[test]
fn a_server_that_is_killed_while_a_client_has_the_snapshot_leaves_the_merge_to_the_next() {
    let (lab, sums) = group();
    let server = lab.scratch.serve(["--disk", "a"]);
    let of_before = open(&lab, "vg/before");
    let said = served(&lab, &["lv", "merge", "vg/before"]);
    assert!(said.contains("vg/before is in use: 1 NBD client has it open; it begins when"), "{said}");
    assert_eq!(sum(&lab, "vg/root"), sums.root);
    server.kill();
    drop(of_before);
    let server = lab.scratch.serve(["--disk", "a"]);
    until_merged(&lab, "before", "vg/root");
    assert_eq!([sum(&lab, "vg/root"), sum(&lab, "vg/other")], [sums.before, sums.other]);
    server.stop_quietly();
    expect_volumes(&lab, &["other;;3;", "root;;2;mine"], &[1], 4);
}

/// A file of a mount is there for as long as the server is.
#[test]
fn partitions_follow_and_whoever_has_a_file_open_has_the_merge_wait() {
    let (lab, _) = group();
    let server = lab.scratch.serve(["--disk", "a"]);
    lab.partition("vg/root");
    served(&lab, &["lv", "snapshot", "vg/root", "--name", "snap"]);
    server.stop_quietly();
    let server = lab.scratch.serve(["--disk", "a"]);
    let before = sum(&lab, "vg/root/1");
    let job = ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=6M"];
    run(&mut fio(&lab.scratch, &lab.scratch.uri("vg/root/1"), &job));
    let after = sum(&lab, "vg/root/1");
    assert_ne!(before, after);
    let client = open(&lab, "vg/root/1");
    let said = served(&lab, &["lv", "merge", "vg/snap"]);
    assert!(said.contains("vg/root/1 is in use"), "{said}");
    assert_eq!(sum(&lab, "vg/root/1"), after);
    drop(client);
    until_merged(&lab, "snap", "vg/root/1");
    assert_eq!(sum(&lab, "vg/root/1"), before);
    served(&lab, &["lv", "snapshot", "vg/root", "--name", "snap"]);
    run(&mut fio(&lab.scratch, &lab.scratch.uri("vg/root/1"), &job));
    let after = sum(&lab, "vg/root/1");
    server.stop_quietly();

    let files = lab.scratch.at("files");
    fs::create_dir(&files).expect("a folder");
    let file = |name: &str| format!("{files}/vg/{name}");
    let server = lab.scratch.serve(["--disk", "a", "--fuse", &files]);
    let held = fs::File::open(file("root/1")).expect("a file");
    let said = served(&lab, &["lv", "merge", "vg/snap"]);
    assert!(said.contains("vg/root/1 is in use: 1 program has it open; it begins when the last"), "{said}");
    let withheld = fs::File::open(file("snap/1")).expect_err("it is to go");
    assert_eq!(withheld.kind(), ErrorKind::ResourceBusy);
    let said = served_refused(&lab, &["export", "add", "vg/snap", "--vhost-user", "guest"]);
    assert!(said.contains("vg/snap is about to go"), "{said}");
    assert_eq!(sum(&lab, "vg/root/1"), after);
    drop(held);
    until("it is done", || {
        (0..100).for_each(|_| drop(fs::File::open(file("root/1")).expect("a file")));
        shown(&lab, "snap").is_none()
    });
    assert_eq!(sum(&lab, "vg/root/1"), before);
    assert!(
        !fs::exists(file("snap")).expect("a folder") && fs::exists(file("root/whole")).expect("a folder")
    );
    served(&lab, &["lv", "snapshot", "vg/root", "--name", "snap"]);
    server.stop_quietly();

    let alone = lab.scratch.at("alone");
    let server = lab.scratch.serve(["--disk", "a", "vg/root", "--fuse", &alone, "--vhost-user", "guest"]);
    let whole = sum(&lab, "vg/root");
    scatter(&lab, "vg/root", 7, 8);
    let said = served_refused(&lab, &["lv", "merge", "vg/snap"]);
    let at = format!("vg/root is the disk of a guest, at vhost-user:{}, and what", lab.scratch.at("guest"));
    assert!(said.contains(&at), "{said}");
    assert_eq!(merge(&lab), None, "nothing is planned");
    served(&lab, &["export", "remove", "guest"]);
    let said = served(&lab, &["lv", "merge", "vg/snap"]);
    assert!(said.contains("vg/root is in use: it is the file fuse:"), "{said}");
    assert!(said.contains("it begins when that is unmounted, or the server started anew"), "{said}");
    let said = served_refused(&lab, &["export", "add", "vg/root", "--vhost-user", "guest"]);
    assert!(said.contains("vg/root is about to go, or to become what"), "{said}");
    assert_eq!((merge(&lab).as_deref(), sum(&lab, "vg/root") == whole), (Some("waiting"), false));
    run(tool("umount").arg(&alone));
    until_merged(&lab, "snap", "vg/root");
    assert_eq!(sum(&lab, "vg/root"), whole);
    served(&lab, &["export", "add", "vg/root", "--vhost-user", "guest"]);
    server.stop();
    lab.expect_sound();
}

/// What a client that has gone had sent waits for room in the pool, while the merge is made and the pool gets some.
#[test]
fn a_write_that_waits_for_room_in_the_pool_neither_holds_the_merge_up_nor_is_in_it() {
    let lab = Lab::new(&[("a", 161)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "4M"]);
    for name in ["root", "full"] {
        lab.verb(&["lv", "create", &format!("vg/{name}"), "--thin", "pool", "-V", "16M"]);
    }
    lab.verb(&["lv", "snapshot", "vg/root", "--name", "before"]);
    let server = lab.scratch.serve(["--disk", "a"]);
    let fill = ["--rw=write", "--bs=1M", "--size=4M", "--iodepth=1"];
    run(&mut fio(&lab.scratch, &lab.scratch.uri("vg/full"), &fill));
    let before = sum(&lab, "vg/before");
    let mut client = open(&lab, "vg/root");
    client.write_unanswered(MIB, 4096);
    client.write_unanswered(2 * MIB + 300, 1000);
    until("they wait for space", || server.said().contains("it has no free data blocks"));
    drop(client);
    served(&lab, &["lv", "merge", "vg/before"]);
    until_merged(&lab, "before", "vg/root");
    assert_eq!(sum(&lab, "vg/root"), before);
    served(&lab, &["lv", "resize", "vg/pool", "--size", "+4M"]);
    until("the pool hears of it with the next change", || {
        support::output(&mut lab.scratch.blockwork(["lv", "tag", "vg/full", "--addtag", "t"]))
            .status
            .success()
    });
    assert_eq!(sum(&lab, "vg/root"), before);
    server.stop();
    expect_volumes(&lab, &["full;;2;t", "root;;3;"], &[1], 4);
}
