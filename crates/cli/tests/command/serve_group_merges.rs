//! Old snapshots that are merged into their origins while their group is served: at once, or when the last client has gone; through
//! servers that are killed; beside other snapshots. LVM's tools judge what is on the disks afterwards; `../kernel/lvm_verbs.rs` has Linux go on.

use std::io::{Read, Write};

use crate::support;
use crate::support::fs::SmallDisk;
use crate::support::lvm::Lab;
use crate::support::nbd::{Raw, checksum, fio, python};
use crate::support::{Server, both, output, run, run_refused, until};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const ALL: std::ops::Range<u64> = 0..u64::MAX;

/// A verb that the running server is asked for.
pub fn served(lab: &Lab, args: &[&str]) -> String {
    run(&mut lab.scratch.blockwork(args))
}

/// The same, where it must not be done.
pub fn served_refused(lab: &Lab, args: &[&str]) -> String {
    run_refused(&mut lab.scratch.blockwork(args))
}

pub fn sum(lab: &Lab, export: &str) -> String {
    checksum(&lab.scratch, export, ALL)
}

/// Writes all over a volume, 4 KiB here and there.
pub fn scatter(lab: &Lab, export: &str, seed: u32, mib: u64) {
    let seed = format!("--randseed={seed}");
    let size = format!("--io_size={mib}M");
    let job = ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=32M", &size, &seed];
    run(&mut fio(&lab.scratch, &lab.scratch.uri(export), &job));
}

/// What `before` and `other` hold, two snapshots of the volume `root` in the group `vg`, which all differ from each other.
pub struct Sums {
    pub root: String,
    pub before: String,
    pub other: String,
}

impl Sums {
    /// Of a group that is served.
    pub fn of(lab: &Lab) -> Sums {
        let [root, before, other] = ["vg/root", "vg/before", "vg/other"].map(|name| sum(lab, name));
        assert!(root != before && before != other && other != root);
        Sums { root, before, other }
    }
}

/// A group with all of them on one disk, which nobody serves.
fn group() -> (Lab, Sums) {
    let lab = Lab::new(&[("a", 165)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/root", "--size", "32M"]);
    let server = lab.scratch.serve(["--disk", "a"]);
    scatter(&lab, "vg/root", 1, 24);
    served(&lab, &["lv", "snapshot", "vg/root", "--size", "40M", "--name", "before"]);
    scatter(&lab, "vg/root", 2, 16);
    scatter(&lab, "vg/before", 3, 4);
    served(&lab, &["lv", "snapshot", "vg/root", "--size", "40M", "--name", "other", "--chunksize", "64K"]);
    scatter(&lab, "vg/root", 4, 4);
    let sums = Sums::of(&lab);
    server.stop_quietly();
    (lab, sums)
}

/// A volume as the running server tells of it; none: it is gone.
pub fn shown(lab: &Lab, name: &str) -> Option<Value> {
    let text = served(lab, &["lv", "show", "--all", "--json", "vg"]);
    let all: Value = serde_json::from_str(&text).expect("JSON");
    all.as_array().expect("volumes").iter().find(|lv| lv["name"] == name).cloned()
}

/// How far the merge into the origin is.
pub fn merge(lab: &Lab) -> Option<String> {
    shown(lab, "root").expect("the origin")["merge"].as_str().map(str::to_owned)
}

/// What is left of a merge by the text and the store, while nobody serves the group: percent of the store; none: the text has none.
fn left_on_disk(lab: &Lab) -> Option<f64> {
    let text = run(&mut lab.scratch.blockwork(lab.args(&["lv", "show", "--all", "--json", "vg"])));
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let root = all.as_array().expect("volumes").iter().find(|lv| lv["name"] == "root").expect("it is there");
    (root["merging"] == true).then(|| root["data_percent"].as_f64().expect("how full it is"))
}

fn wait_for_the_end(lab: &Lab) {
    until("the snapshot is merged, and the text says so", || {
        shown(lab, "before").is_none() && merge(lab).is_none()
    });
}

fn names(lab: &Lab) -> Vec<String> {
    let said = lab.lvm(&["lvs -a --noheadings -O lv_name -o lv_name vg"]);
    said[0].lines().map(|line| line.trim().to_owned()).collect()
}

/// A client's read.
fn read(client: &mut Raw, offset: u64, length: u32) -> Vec<u8> {
    client.stream.write_all(&Raw::request(0, 0, 7, offset, length)).expect("the server reads");
    let mut head = [0; 16];
    client.stream.read_exact(&mut head).expect("an answer");
    assert_eq!(head[4..8], [0; 4], "the read failed");
    let mut data = vec![0; usize::try_from(length).expect("it fits")];
    client.stream.read_exact(&mut data).expect("its data");
    data
}

pub fn open(lab: &Lab, export: &str) -> Raw {
    Raw::open_export(&lab.scratch.at("socket"), export)
}

/// What the server does not say when nothing goes wrong.
fn stop(server: Server) {
    server.stop_quietly();
}

#[test]
fn a_snapshot_that_nobody_has_open_is_merged_at_once_and_clients_come_meanwhile() {
    let (lab, sums) = group();
    let server = lab.scratch.serve(["--disk", "a", "--workers", "2"]);
    let said = served(&lab, &["lv", "merge", "vg/before"]);
    assert_eq!(said, "vg/before: it is being merged into vg/root, which is what it was from now on\n");
    // Whoever comes finds what the snapshot was, however far the merge is, and writes.
    let rest = checksum(&lab.scratch, "vg/root", 4 * MIB..32 * MIB);
    let job = [
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=16",
        "--size=4M",
        "--io_size=16M",
        "--verify=crc32c",
        "--fsync=64",
    ];
    run(&mut fio(&lab.scratch, &lab.scratch.uri("vg/root"), &job));
    assert_eq!(checksum(&lab.scratch, "vg/root", 4 * MIB..32 * MIB), rest);
    wait_for_the_end(&lab);
    let root = sum(&lab, "vg/root");
    assert_eq!(checksum(&lab.scratch, "vg/root", 4 * MIB..32 * MIB), rest);
    assert_eq!(sum(&lab, "vg/other"), sums.other);
    let list = run(support::tool("nbdinfo").args(["--list", &lab.scratch.uri("")]));
    assert!(list.contains("vg/other") && !list.contains("vg/before"), "{list}");
    let said = served_refused(&lab, &["lv", "merge", "vg/before"]);
    assert!(said.contains("no logical volume \"vg/before\""), "{said}");
    stop(server);
    lab.expect_sound();
    assert_eq!(names(&lab), ["other", "root"]);

    // What was merged is what the snapshot was: the next server has it from the origin's own extents.
    let server = lab.scratch.serve(["--disk", "a"]);
    assert_eq!([sum(&lab, "vg/root"), sum(&lab, "vg/other")], [root, sums.other.clone()]);
    // The last one goes the same way, and leaves a plain volume.
    let merged = served(&lab, &["lv", "merge", "vg/other"]);
    assert!(merged.starts_with("vg/other: it is "), "{merged}");
    until("the snapshot is merged", || shown(&lab, "other").is_none());
    assert_eq!(sum(&lab, "vg/root"), sums.other);
    until("the origin is a plain volume", || {
        python(&format!("print(connect({:?}).can_trim())\n", lab.scratch.uri("vg/root"))) == "True\n"
    });
    stop(server);
    lab.expect_sound();
    assert_eq!(names(&lab), ["root"]);
}

/// Whether a client may open it.
pub fn offers(lab: &Lab, volume: &str) -> bool {
    let uri = lab.scratch.uri(volume);
    python(&format!(
        "try:\n    connect({uri:?})\n    print('yes')\nexcept nbd.Error as error:\n    print('no')\n"
    )) == "yes\n"
}

#[test]
fn what_a_client_has_open_stays_what_it_is_and_the_merge_begins_when_the_last_has_gone() {
    let (lab, sums) = group();
    let server = lab.scratch.serve(["--disk", "a", "--workers", "2"]);
    let (mut of_root, mut of_before) = (open(&lab, "vg/root"), open(&lab, "vg/before"));
    let first = |client: &mut Raw| read(client, 0, 1 << 20);
    let (root, before) = (first(&mut of_root), first(&mut of_before));
    let said = served(&lab, &["lv", "merge", "vg/before"]);
    assert_eq!(
        said,
        "vg/before: it is to be merged into vg/root; vg/root is in use: 1 NBD client has it open; it begins when the last client has gone\n"
    );
    assert_eq!(merge(&lab).as_deref(), Some("waiting"));
    let text = served(&lab, &["lv", "show", "vg/root"]);
    assert!(text.contains("linear, merge waiting"), "{text}");
    // Nobody else comes to the snapshot, and whoever comes to the origin finds it as it was.
    let refused = format!(
        "try:\n    connect({:?})\nexcept nbd.Error as error:\n    print('refused')\n",
        lab.scratch.uri("vg/before")
    );
    assert_eq!(python(&refused), "refused\n");
    assert_eq!(sum(&lab, "vg/root"), sums.root);
    for (args, why) in [
        (&["lv", "merge", "vg/before"][..], "it is being merged into its origin already"),
        (&["lv", "merge", "vg/other"], "before is being merged into the same origin"),
        (&["lv", "remove", "vg/before"], "`blockwork lv merge` finishes that"),
        (&["lv", "snapshot", "vg/root", "--size", "4M"], "`blockwork lv merge` finishes that"),
        (
            &["lv", "resize", "vg/root", "--size", "+4M"],
            "a snapshot is being merged into it: let that come to its end",
        ),
        (&["lv", "resize", "vg/other", "--size", "-1M", "--force"], "it is a snapshot"),
    ] {
        let said = served_refused(&lab, args);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    // Other volumes of the group come and go.
    served(&lab, &["lv", "create", "vg/more", "--size", "2M"]);
    served(&lab, &["lv", "rename", "vg/more", "less"]);
    served(&lab, &["lv", "remove", "vg/less"]);
    assert_eq!((first(&mut of_root), first(&mut of_before)), (root, before.clone()));
    assert_eq!(merge(&lab).as_deref(), Some("waiting"));

    // What the last client of the origin has sent, and did not wait for, is not in what the origin is afterwards.
    drop(of_before);
    for n in 0..512_u32 {
        let at = u64::from(n * 31 % 8000) * 4096 + u64::from(n % 2 * 300);
        of_root.write_unanswered(at, 4096);
    }
    drop(of_root);
    // Who comes while it is being switched waits for that.
    until("the merge has begun", || {
        (0..100).for_each(|_| drop(open(&lab, "vg/root")));
        merge(&lab).as_deref() != Some("waiting")
    });
    assert_eq!(sum(&lab, "vg/root"), sums.before);
    wait_for_the_end(&lab);
    assert_eq!([sum(&lab, "vg/root"), sum(&lab, "vg/other")], [sums.before, sums.other]);
    stop(server);
    lab.expect_sound();
    assert_eq!(names(&lab), ["other", "root"]);
}

#[test]
fn a_client_of_the_snapshot_keeps_it_as_well_and_a_killed_server_leaves_the_merge_to_the_next() {
    let (lab, sums) = group();
    let server = lab.scratch.serve(["--disk", "a"]);
    let of_before = open(&lab, "vg/before");
    let said = served(&lab, &["lv", "merge", "vg/before"]);
    assert!(said.contains("vg/before is in use: 1 NBD client has it open; it begins when"), "{said}");
    assert_eq!(sum(&lab, "vg/root"), sums.root);
    // A newcomer that has gone again begins nothing.
    assert_eq!(merge(&lab).as_deref(), Some("waiting"));
    server.kill();
    drop(of_before);
    lab.expect_sound();
    let left = left_on_disk(&lab).expect("the text says that it is being merged");
    assert!(left > 10.0, "{left}");
    // A guest would go on with the next server's disk, whatever that is by then.
    let server = lab.scratch.serve(["--disk", "a", "vg/root", "vg/other", "--vhost-user", "guest"]);
    assert_eq!(sum(&lab, "vg/root"), sums.before);
    wait_for_the_end(&lab);
    let said = served_refused(&lab, &["lv", "merge", "vg/other"]);
    let at = format!("vg/root is the disk of a guest, at vhost-user:{}, and", lab.scratch.at("guest"));
    assert!(said.contains(&at), "{said}");
    served(&lab, &["export", "remove", "guest"]);
    let of_root = open(&lab, "vg/root");
    let said = served(&lab, &["lv", "merge", "vg/other"]);
    assert!(said.contains("vg/root is in use: 1 NBD client has it open; it begins when"), "{said}");
    let said = served_refused(&lab, &["export", "add", "vg/root", "--vhost-user", "guest"]);
    assert!(said.contains("vg/root is about to go, or to become what"), "{said}");
    assert_eq!(sum(&lab, "vg/root"), sums.before);
    stop(server);
    drop(of_root);
    lab.expect_sound();
    let said = lab.scratch.refused(["--disk", "a", "vg/other"]);
    assert!(said.contains("vg/other: it is being merged into root: serve that"), "{said}");
    let server = lab.scratch.serve(["--disk", "a"]);
    assert_eq!(sum(&lab, "vg/root"), sums.other);
    until("the snapshot is merged", || shown(&lab, "other").is_none());
    stop(server);
    assert_eq!(names(&lab), ["root"]);
}

#[test]
fn a_server_that_is_killed_while_it_merges_is_followed_by_one_that_goes_on() {
    let (lab, sums) = group();
    let serve = || lab.scratch.serve(["--disk", "a", "--workers", "2"]);
    let (mut was_cut, mut left) = (0, f64::INFINITY);
    let mut server = serve();
    served(&lab, &["lv", "merge", "vg/before"]);
    while was_cut < 3 && left > 0.0 {
        until("some of it is merged", || {
            let root = shown(&lab, "root").expect("it is there");
            root["merging"] == false || root["data_percent"].as_f64().is_some_and(|now| now < left)
        });
        server.kill();
        lab.expect_sound();
        let now = left_on_disk(&lab).unwrap_or(0.0);
        assert!(now <= left, "{now} after {left}");
        was_cut += u64::from(now > 0.0);
        left = now;
        server = serve();
        assert_eq!(sum(&lab, "vg/root"), sums.before, "with {left} % left");
        assert_eq!(sum(&lab, "vg/other"), sums.other, "with {left} % left");
    }
    assert!(was_cut > 0, "it was merged before anybody could kill the server");
    wait_for_the_end(&lab);
    assert_eq!([sum(&lab, "vg/root"), sum(&lab, "vg/other")], [sums.before, sums.other]);
    stop(server);
    lab.expect_sound();
    assert_eq!(names(&lab), ["other", "root"]);
}

#[test]
fn a_snapshot_that_is_found_lost_is_shown_so_and_not_merged() {
    let lab = Lab::new(&[("a", 61)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/root", "--size", "32M"]);
    lab.verb(&["lv", "snapshot", "vg/root", "--size", "1M", "--name", "before"]);
    let server = lab.scratch.serve(["--disk", "a", "vg/root"]);
    scatter(&lab, "vg/root", 1, 4);
    let ended = server.stop();
    assert!(ended.stderr.contains("the snapshot is lost; its origin goes on"), "{}", ended.stderr);
    let alone = run(&mut lab.scratch.blockwork(lab.args(&["lv", "show", "--json", "vg/before"])));
    let alone: Value = serde_json::from_str(&alone).expect("JSON");
    assert_eq!(alone[0]["status"], "Invalid", "{alone}");
    let scan = run(&mut lab.scratch.blockwork(["scan", "--json", "a"]));
    assert!(scan.contains("\"status\": \"Invalid\""), "{scan}");
    let server = lab.scratch.serve(["--disk", "a", "vg/root"]);
    let said = served_refused(&lab, &["lv", "merge", "vg/before"]);
    assert!(said.contains("it cannot be merged"), "{said}");
    assert_eq!(merge(&lab), None);
    server.stop();
    lab.expect_sound();
}

#[test]
fn a_snapshot_whose_origin_is_not_served_is_looked_at_before_its_merge_is_promised() {
    let lab = Lab::new(&[("a", 61)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/root", "--size", "32M"]);
    lab.verb(&["lv", "snapshot", "vg/root", "--size", "1M", "--name", "before"]);
    lab.verb(&["lv", "create", "vg/sound", "--size", "4M"]);
    lab.verb(&["lv", "snapshot", "vg/sound", "--size", "2M", "--name", "of_sound"]);
    lab.verb(&["lv", "create", "vg/plain", "--size", "2M"]);
    let server = lab.scratch.serve(["--disk", "a", "vg/root"]);
    scatter(&lab, "vg/root", 1, 4);
    let ended = server.stop();
    assert!(ended.stderr.contains("the snapshot is lost; its origin goes on"), "{}", ended.stderr);
    let server = lab.scratch.serve(["--disk", "a", "vg/plain"]);
    let before = lab.scratch.read("a");
    let said = served_refused(&lab, &["lv", "merge", "vg/before"]);
    assert!(said.contains("it cannot be merged: its store was full, or could not be written"), "{said}");
    assert!(lab.scratch.read("a") == before, "refused, and written to");
    assert_eq!(shown(&lab, "before").expect("it is there")["status"], "Invalid");
    assert_eq!(merge(&lab), None);
    // What can be merged is, when its origin is served; and the lost one goes.
    let said = served(&lab, &["lv", "merge", "vg/of_sound"]);
    assert!(said.starts_with("vg/of_sound: it is to be merged into vg/sound"), "{said}");
    served(&lab, &["lv", "remove", "vg/before"]);
    stop(server);
    lab.expect_sound();
    stop(lab.scratch.serve(["--disk", "a", "vg/root"]));
}

#[test]
fn a_snapshot_that_is_lost_while_its_merge_waits_is_given_up_and_can_be_removed() {
    let lab = Lab::new(&[("a", 61)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/root", "--size", "32M"]);
    lab.verb(&["lv", "snapshot", "vg/root", "--size", "1M", "--name", "before"]);
    let server = lab.scratch.serve(["--disk", "a"]);
    let of_root = open(&lab, "vg/root");
    served(&lab, &["lv", "merge", "vg/before"]);
    scatter(&lab, "vg/root", 1, 4);
    let root = sum(&lab, "vg/root");
    drop(of_root);
    until("the merge is given up", || merge(&lab).is_none());
    let snapshot = shown(&lab, "before").expect("a snapshot as any other");
    assert_eq!((&snapshot["status"], &snapshot["visible"]), (&"Invalid".into(), &true.into()));
    assert_eq!(sum(&lab, "vg/root"), root);
    let said = served_refused(&lab, &["lv", "merge", "vg/before"]);
    assert!(said.contains("it cannot be merged"), "{said}");
    until("nobody has it open", || {
        let done = output(&mut lab.scratch.blockwork(["lv", "remove", "vg/before"]));
        assert!(done.status.success() || both(&done).contains("is in use"), "{}", both(&done));
        done.status.success()
    });
    let ended = server.stop();
    assert!(
        ended.status.success() && ended.stderr.contains("was lost before it could be merged"),
        "{}",
        ended.stderr
    );
    lab.expect_sound();
    assert_eq!(names(&lab), ["root"]);
}

#[test]
fn a_merge_of_which_the_text_cannot_be_told_says_so_and_is_tried_again() {
    let lab = Lab::new(&[("a", 33)]);
    let small = SmallDisk::new(&lab.scratch, "a", 33, 32);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/root", "--size", "8M"]);
    lab.tag_until_a_text_takes_pages("vg/root");
    let server = lab.scratch.serve(["--disk", "a"]);
    let fill = |fill: &str, mib: u64| {
        let uri = lab.scratch.uri("vg/root");
        python(&format!("h = connect({uri:?})\nh.pwrite({fill} * ({mib} << 20), 0)\nh.flush()\n"));
    };
    fill("b'1'", 8);
    let before = sum(&lab, "vg/root");
    served(&lab, &["lv", "snapshot", "vg/root", "--size", "9M", "--name", "before"]);
    fill("b'2'", 1);
    let client = open(&lab, "vg/root");
    served(&lab, &["lv", "merge", "vg/before"]);
    assert_eq!(merge(&lab).as_deref(), Some("waiting"));
    // What is merged lies where something was written before; the text does not.
    small.fill_up();
    drop(client);
    until("the text could not be written", || merge(&lab).as_deref() == Some("failed"));
    let why = shown(&lab, "root").expect("the origin")["merge_failure"].clone();
    let why = why.as_str().expect("a reason");
    assert!(why.contains("all is merged, and the group's text cannot say so: "), "{why}");
    assert!(why.contains("could not be written at byte ") && why.contains("nothing has changed"), "{why}");
    let text = served(&lab, &["lv", "show", "vg/root"]);
    let line = format!("vg/root: the merge has failed: {why}");
    assert!(text.contains("linear, merge failed") && text.lines().any(|found| found == line), "{text}");
    until("it says when it is tried again", || server.said().contains("it is tried again in 1 s"));
    assert_eq!(sum(&lab, "vg/root"), before);
    small.make_room();
    wait_for_the_end(&lab);
    assert_eq!(sum(&lab, "vg/root"), before);
    assert_eq!(shown(&lab, "root").expect("the origin")["merge_failure"], Value::Null);
    let ended = server.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    lab.expect_sound();
    assert_eq!(names(&lab), ["root"]);
}

#[test]
fn partitions_of_an_origin_follow_its_merge_and_whoever_has_one_open_has_it_wait() {
    let lab = Lab::new(&[("a", 101), ("b", 101)]);
    lab.verb(&["vg", "create", "vg", "a", "b", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/disk", "--type", "raid1", "--size", "16M", "--nosync"]);
    let server = lab.scratch.serve(["--disk", "a", "b"]);
    lab.partition("vg/disk");
    stop(server);
    lab.verb(&["lv", "snapshot", "vg/disk", "--size", "8M", "--name", "snap"]);
    let server = lab.scratch.serve(["--disk", "a", "b", "--workers", "2"]);
    let before = sum(&lab, "vg/disk/1");
    let job = ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=6M"];
    run(&mut fio(&lab.scratch, &lab.scratch.uri("vg/disk/1"), &job));
    let after = sum(&lab, "vg/disk/1");
    let client = open(&lab, "vg/disk/1");
    let said = served(&lab, &["lv", "merge", "vg/snap"]);
    assert!(said.contains("vg/disk/1 is in use"), "{said}");
    assert_eq!(sum(&lab, "vg/disk/1"), after);
    drop(client);
    until("the snapshot is merged", || shown(&lab, "snap").is_none());
    assert_eq!(sum(&lab, "vg/disk/1"), before);
    stop(server);
    lab.expect_sound();
    let server = lab.scratch.serve(["--disk", "a", "b"]);
    assert_eq!(sum(&lab, "vg/disk/1"), before);
    stop(server);
}

/// A group with the thin volume `root` in a pool of 4 MiB, and its old snapshot `before`.
fn thin_group() -> Lab {
    let lab = Lab::new(&[("a", 161)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "4M"]);
    lab.verb(&["lv", "create", "vg/root", "--thin", "pool", "-V", "16M"]);
    lab.verb(&["lv", "create", "vg/full", "--thin", "pool", "-V", "16M"]);
    lab.verb(&["lv", "create", "vg/plain", "--size", "16M"]);
    lab.verb(&["lv", "snapshot", "vg/plain", "--size", "18M", "--name", "before"]);
    lab.move_snapshots("plain", "root");
    lab
}

/// What a client that has gone had sent waits below the family, for space in a pool, when the merge begins; and goes on after that.
#[test]
fn a_write_that_waits_below_the_origin_is_not_in_what_is_merged() {
    let lab = thin_group();
    let server = lab.scratch.serve(["--disk", "a"]);
    let fill = ["--rw=write", "--bs=1M", "--size=4M", "--iodepth=1"];
    run(&mut fio(&lab.scratch, &lab.scratch.uri("vg/full"), &fill));
    let before = sum(&lab, "vg/before");
    assert_eq!(sum(&lab, "vg/root"), before);
    let mut client = open(&lab, "vg/root");
    client.write_unanswered(MIB, 4096);
    until("it waits for space", || server.said().contains("it has no free data blocks"));
    drop(client);
    served(&lab, &["lv", "merge", "vg/before"]);
    until("the merge begins", || merge(&lab).is_some_and(|merge| merge == "running"));
    served(&lab, &["lv", "resize", "vg/pool", "--size", "+4M"]);
    wait_for_the_end(&lab);
    assert_eq!(sum(&lab, "vg/root"), before);
    server.stop();
    lab.expect_sound();
}

/// As Linux, which copies nothing out for what is written behind a snapshot's end, and merges chunks whole.
#[test]
fn what_lies_behind_the_end_of_a_snapshot_is_neither_kept_in_it_nor_lost_by_its_merge() {
    let lab = Lab::new(&[("a", 40)]);
    lab.verb(&["vg", "create", "vg", "a", "-s", "128k"]);
    lab.verb(&["lv", "create", "vg/root", "--extents", "3"]);
    let server = lab.scratch.serve(["--disk", "a"]);
    let write = |byte: &str, at: u32, kib: u32| {
        let uri = lab.scratch.uri("vg/root");
        python(&format!(
            "h = connect({uri:?})\nh.pwrite(b'{byte}' * ({kib} << 10), {at} << 10)\nh.flush()\n"
        ));
    };
    let all = || {
        let uri = lab.scratch.uri("vg/root");
        python(&format!(
            "import itertools\nh = connect({uri:?})\n\
             print([(chr(byte), len(list(run)) >> 10) for byte, run in itertools.groupby(h.pread(h.get_size(), 0))])\n"
        ))
    };
    write("A", 0, 384);
    served(
        &lab,
        &["lv", "snapshot", "vg/root", "--name", "before", "-l", "100%ORIGIN", "--chunksize", "512"],
    );
    served(&lab, &["lv", "resize", "vg/root", "--extents", "+2"]);
    let fill =
        || shown(&lab, "before").expect("the snapshot")["data_percent"].as_f64().expect("how full it is");
    let empty = fill();
    write("E", 384, 256);
    assert_eq!(fill().to_bits(), empty.to_bits(), "nothing of that is the snapshot's");
    write("B", 0, 4);
    assert!(fill() > empty);
    let why = "before: it cannot be merged: it ends at 384 KiB, in the middle of one of its chunks of 512 KiB, and root has become larger since: what \
               root has from there to 512 KiB would be lost; copy what the snapshot holds into root instead, and remove it";
    let said = served_refused(&lab, &["lv", "merge", "vg/before"]);
    assert!(said.contains(why), "{said}");
    assert_eq!(all(), "[('B', 4), ('A', 380), ('E', 256)]\n");
    stop(server);
    let said = lab.refused(&["lv", "merge", "vg/before"]);
    assert!(said.contains(why), "{said}");
}
