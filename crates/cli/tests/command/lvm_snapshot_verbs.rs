//! `lv snapshot`, and what the other verbs make of snapshots: LVM's own tools judge every step, clients of both volumes read
//! and write them. The kernel itself judges in `../kernel/lvm_verbs.rs`.

use crate::support::fs::SmallDisk;
use crate::support::lvm::Lab;
use crate::support::nbd::fio;
use crate::support::{both, output, run, run_refused, tool, until};
use crate::task::on_worker;
use blockwork_volume::lvm::edit::{Author, GroupEditor};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// A group with extents of 1 MiB and `vg/origin` of 16 MiB, on two disks that were full of other things.
fn lab() -> Lab {
    let lab = Lab::new(&[("a", 40), ("b", 40)]);
    lab.scratch.noise("a", 40 * MIB, 1);
    lab.scratch.noise("b", 40 * MIB, 2);
    run(&mut lab.scratch.blockwork(["vg", "create", "vg", "a", "b", "-s", "1M"]));
    lab.verb(&["lv", "create", "vg/origin", "--size", "16M"]);
    lab
}

/// The volumes by LVM: name, and for snapshots origin, size and chunk.
fn by_lvm(lab: &Lab) -> Vec<Vec<String>> {
    let said = lab.lvm(&["lvs --noheadings --units k --nosuffix -o lv_name,origin,lv_size,chunk_size vg"]);
    said[0].lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

fn shown(lab: &Lab, name: &str) -> Value {
    let text = lab.verb(&["lv", "show", "vg", "--json"]);
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let all = all.as_array().expect("volumes").clone();
    all.into_iter().find(|lv| lv["name"] == name).expect("it is there")
}

/// That one volume is a snapshot of another is a volume of its own in the text alone.
#[test]
fn all_volumes_are_those_that_lvs_has() {
    let lab = lab();
    lab.verb(&["lv", "snapshot", "vg/origin", "--size", "4M", "--name", "snap"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "16M"]);
    let all: Value = serde_json::from_str(&lab.verb(&["lv", "show", "--all", "--json", "vg"])).expect("JSON");
    let mut ours: Vec<String> =
        all.as_array().expect("volumes").iter().map(|lv| lv["name"].to_string()).collect();
    ours.sort_unstable();
    let theirs = lab.lvm(&["lvs -a --noheadings -o lv_name vg"]).remove(0);
    let plain = |line: &str| format!("{:?}", line.trim().trim_matches(['[', ']']));
    let mut theirs: Vec<String> = theirs.lines().map(plain).collect();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);
}

#[test]
fn lvm_takes_snapshots_as_its_own_and_both_go_on_with_them() {
    let lab = lab();
    let said =
        lab.verb(&["lv", "snapshot", "vg/origin", "--size", "3M", "--name", "vg/snap", "--addtag", "t"]);
    assert_eq!(said, "vg/snap: a snapshot of origin, with room for 3M\n");
    lab.verb(&["lv", "snapshot", "vg/origin", "--extents", "50%ORIGIN", "--chunksize", "64K"]);
    let most = output(&mut lab.scratch.blockwork(lab.args(&[
        "lv",
        "snapshot",
        "vg/origin",
        "--extents",
        "100%FREE",
        "--name",
        "all",
        "-c",
        "512K",
    ])));
    let told = both(&most);
    assert!(most.status.success() && told.contains("never needs more than 17 extents (17 MiB)"), "{told}");
    lab.expect_sound();
    let expected: [&[&str]; 4] = [
        &["all", "origin", "17408.00", "512.00"],
        &["lvol0", "origin", "9216.00", "64.00"],
        &["origin", "16384.00", "0"],
        &["snap", "origin", "3072.00", "4.00"],
    ];
    assert_eq!(by_lvm(&lab), expected);
    let text = lab.verb(&["lv", "show", "vg/snap"]);
    let words: Vec<&str> = text.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(
        words,
        ["snap", "vg", "swi---s---", "3M", "snapshot", "origin", "0.26", "a(16)", "t"],
        "{text}"
    );

    lab.verb(&["lv", "resize", "vg/snap", "--extents", "+2"]);
    lab.verb(&["lv", "rename", "vg/snap", "monday"]);
    lab.verb(&["lv", "remove", "vg/all"]);
    lab.lvm(&["lvextend -y -l +1 vg/monday", "lvrename vg origin base"]);
    assert_eq!(by_lvm(&lab)[2], ["monday", "base", "6144.00", "4.00"]);
    assert_eq!(shown(&lab, "monday")["origin"], "base");
    lab.verb(&["lv", "remove", "vg/monday", "vg/lvol0", "vg/base"]);
    assert_eq!(by_lvm(&lab), [] as [Vec<String>; 0]);
}

#[test]
fn a_new_snapshot_is_what_its_origin_is_whatever_was_on_the_disk_and_stays_so() {
    let lab = lab();
    let content = |volume: &str| {
        run(tool("nbdcopy").args([lab.scratch.uri(volume), lab.scratch.at("copied")]));
        lab.scratch.read("copied")
    };
    lab.verb(&["lv", "snapshot", "vg/origin", "--size", "6M", "--name", "one", "--chunksize", "4K"]);
    lab.verb(&["lv", "snapshot", "vg/origin", "--size", "8M", "--name", "two", "--chunksize", "512K"]);
    assert_eq!(shown(&lab, "origin")["data_percent"], Value::Null);

    let server = lab.scratch.serve(lab.args(&["vg/origin", "vg/one", "vg/two"]));
    let frozen = content("vg/origin");
    assert!(content("vg/one") == frozen && content("vg/two") == frozen, "not what the origin is");
    for (volume, size) in [("vg/origin", "2M"), ("vg/one", "1M")] {
        let size = format!("--size={size}");
        run(&mut fio(&lab.scratch, &lab.scratch.uri(volume), &["--rw=write", "--bs=64k", &size]));
    }
    assert!(content("vg/two") == frozen, "its origin was written, and it has changed");
    let (origin, one) = (content("vg/origin"), content("vg/one"));
    assert!(origin[..2 * MIB] != frozen[..2 * MIB] && origin[2 * MIB..] == frozen[2 * MIB..]);
    assert!(one[..MIB] != frozen[..MIB] && one[MIB..] == frozen[MIB..]);
    for args in [
        &["lv", "remove", "vg/one"][..],
        &["lv", "snapshot", "vg/origin", "--size", "1M"],
        &["lv", "resize", "vg/one", "--size", "+1M"],
    ] {
        let said = run_refused(&mut lab.scratch.blockwork(lab.args(args)));
        assert!(said.contains(&format!("locked by process {}", server.pid())), "{said}");
    }
    server.stop_quietly();

    // 512 chunks of 4 KiB, the header and three areas, of 1536; 4 chunks of 512 KiB, the header and an area, of 16.
    let fill = |name: &str| shown(&lab, name)["data_percent"].as_f64().expect("a number");
    assert!((33.4..34.0).contains(&fill("one")), "{}", fill("one"));
    assert!((37.4..37.6).contains(&fill("two")), "{}", fill("two"));
    lab.verb(&["lv", "remove", "vg/one"]);
    let server = lab.scratch.serve(lab.args(&["vg/origin", "vg/two"]));
    assert!(content("vg/two") == frozen && content("vg/origin") == origin, "another snapshot was removed");
    server.stop_quietly();
}

#[test]
fn what_cannot_be_is_refused_with_the_reason_and_nothing_is_written() {
    let lab = lab();
    lab.verb(&["lv", "snapshot", "vg/origin", "--size", "3M", "--name", "snap"]);
    lab.verb(&["lv", "create", "vg/r1", "--type", "raid1", "--size", "4M"]);
    for (args, expected) in [
        (
            &["lv", "snapshot", "vg/snap", "--size", "1M"][..],
            "it is a snapshot itself, and those have none: make another one of origin",
        ),
        (&["lv", "snapshot", "vg/r1_rimage_0", "--size", "1M"], "it is a part of another volume"),
        (&["lv", "snapshot", "vg/none", "--size", "1M"], "no logical volume \"vg/none\""),
        (&["lv", "snapshot", "vg/origin", "--size", "1M", "--name", "snap"], "vg/snap exists already"),
        (
            &["lv", "snapshot", "vg/origin", "--size", "1M", "--name", "x/y"],
            "expected a name in vg, not in x",
        ),
        (
            &["lv", "snapshot", "vg/origin", "--size", "1M", "-c", "12K"],
            "--chunksize 12 KiB: expected a power",
        ),
        (&["lv", "snapshot", "vg/origin", "--size", "1M", "-c", "1M"], "from 4 KiB to 512 KiB"),
        (&["lv", "snapshot", "vg/origin", "--size", "1M", "-c", "512K"], "at least 3 chunks of 512 KiB"),
        (&["lv", "snapshot", "vg/origin", "--extents", "200%ORIGIN"], "expected 1 to 100"),
        (&["lv", "remove", "vg/origin"], "it is the origin of these snapshots"),
        (&["lv", "resize", "vg/origin", "--extents", "-1", "--force"], "it can only become larger"),
        (&["lv", "merge", "vg/origin"], "it is no snapshot"),
        (&["lv", "resize", "vg/snap", "--extents", "-1", "--force"], "it is a snapshot"),
    ] {
        let said = lab.refused(args);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    lab.verb(&["lv", "create", "vg/all", "--extents", "100%FREE"]);
    let said = lab.refused(&["lv", "snapshot", "vg/origin", "--size", "2M"]);
    assert!(said.contains("2 extents (2 MiB) are needed, 0 extents"), "{said}");
}

/// All bytes of a volume, by a server of it alone.
fn bytes_of(lab: &Lab, volume: &str) -> Vec<u8> {
    let server = lab.scratch.serve(lab.args(&[volume, "--read-only"]));
    run(tool("nbdcopy").args([lab.scratch.uri(volume), lab.scratch.at("copied")]));
    server.stop_quietly();
    lab.scratch.read("copied")
}

/// Two snapshots, and an origin that both of them differ from, in many places.
fn two_snapshots(lab: &Lab) {
    lab.verb(&["lv", "snapshot", "vg/origin", "--extents", "100%ORIGIN", "--name", "one"]);
    lab.verb(&["lv", "snapshot", "vg/origin", "--extents", "100%ORIGIN", "--name", "two", "-c", "64K"]);
    let server = lab.scratch.serve(lab.args(&["vg/origin", "vg/one", "vg/two"]));
    for (volume, seed) in [("vg/origin", 1), ("vg/one", 2), ("vg/two", 3)] {
        let seed = format!("--randseed={seed}");
        let job = ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=16M", "--io_size=3M", &seed];
        run(&mut fio(&lab.scratch, &lab.scratch.uri(volume), &job));
    }
    server.stop_quietly();
}

#[test]
fn a_snapshot_goes_back_into_its_origin_and_the_other_one_stays_as_it_is() {
    let lab = lab();
    two_snapshots(&lab);
    let (one, two) = (bytes_of(&lab, "vg/one"), bytes_of(&lab, "vg/two"));
    let said = lab.verb(&["lv", "merge", "vg/one"]);
    assert!(
        said.starts_with("vg/one: ") && said.ends_with(" are merged into its origin, and it is gone\n"),
        "{said}"
    );
    assert!(bytes_of(&lab, "vg/origin") == one, "the origin is not what the snapshot was");
    assert!(bytes_of(&lab, "vg/two") == two, "another snapshot was merged, and this one has changed");
    assert_eq!(by_lvm(&lab).iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), ["origin", "two"]);
    let said = lab.refused(&["lv", "merge", "vg/one"]);
    assert!(said.contains("no logical volume \"vg/one\""), "{said}");
}

/// Linux merges what the text says is being merged when it activates the group next: before that is written, all is asked.
#[test]
fn what_is_refused_is_not_said_to_be_merging() {
    let lab = lab();
    two_snapshots(&lab);
    lab.lvm(&["lvchange -pr vg/origin"]);
    let said = lab.refused(&["lv", "merge", "vg/one"]);
    assert!(said.contains("its origin must not be written"), "{said}");
    lab.lvm(&["lvchange -prw vg/origin"]);
    lab.verb(&["lv", "merge", "vg/one"]);
}

/// Has the text say that `vg/one` is being merged, and merges nothing: as `lvconvert --merge` of an origin that is in use.
fn plan_merge(lab: &Lab) {
    let disks = ["a", "b"].map(|disk| lab.scratch.at(disk));
    let ids = Box::new(|| unreachable!("nothing is made"));
    let author = Author { host: "host".into(), time: 1_700_000_000, command: "test".into(), ids };
    let mut editor = GroupEditor::open(&disks, "vg", author).expect("the group");
    assert!(editor.begin_merge("one").expect("a snapshot"));
    let commit = editor.plan().expect("room for the text");
    on_worker(editor.assembly(), |cx| async move { commit.run(&cx).await }).expect("it is written");
}

#[test]
fn a_merge_that_is_planned_begins_when_the_origin_is_served_and_a_client_writes_meanwhile() {
    let lab = lab();
    two_snapshots(&lab);
    let (mut one, two) = (bytes_of(&lab, "vg/one"), bytes_of(&lab, "vg/two"));
    plan_merge(&lab);
    lab.expect_sound();
    let said = lab.lvm(&["lvs -a --noheadings -o lv_name,lv_merging vg"]);
    assert!(said[0].contains("[one]") && said[0].contains("merging"), "{said:?}");
    assert!(bytes_of(&lab, "vg/origin") == one, "the origin is the snapshot from now on");
    let fill = shown(&lab, "origin")["data_percent"].as_f64().expect("a number");
    assert!(fill > 10.0, "{fill}");
    for (args, why) in [
        (&["lv", "merge", "vg/two"][..], "one is being merged into the same origin"),
        (&["lv", "remove", "vg/one"], "`blockwork lv merge` finishes that"),
        (&["lv", "snapshot", "vg/origin", "--size", "1M"], "`blockwork lv merge` finishes that"),
    ] {
        let said = lab.refused(args);
        assert!(said.contains(why), "{said}");
    }
    let server = lab.scratch.serve(lab.args(&["vg/origin", "vg/two"]));
    run(&mut fio(&lab.scratch, &lab.scratch.uri("vg/origin"), &["--rw=write", "--bs=64k", "--size=2M"]));
    run(tool("nbdcopy").args([lab.scratch.uri("vg/origin"), lab.scratch.at("copied")]));
    let now = lab.scratch.read("copied");
    assert!(now[2 * MIB..] == one[2 * MIB..] && now[..2 * MIB] != one[..2 * MIB]);
    one = now;
    // What is merged, the server itself takes out of the text.
    until("the text has no snapshot any more", || {
        !run(&mut lab.scratch.blockwork(["lv", "show", "vg", "--all", "--json"])).contains("\"one\"")
    });
    server.stop_quietly();
    lab.expect_sound();
    assert_eq!(by_lvm(&lab).iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), ["origin", "two"]);
    assert!(bytes_of(&lab, "vg/origin") == one && bytes_of(&lab, "vg/two") == two);
}

#[test]
fn an_origin_grows_and_its_snapshots_stay_as_long_as_they_are() {
    let lab = lab();
    lab.verb(&["lv", "snapshot", "vg/origin", "--size", "3M", "--name", "snap"]);
    let frozen = bytes_of(&lab, "vg/snap");
    lab.verb(&["lv", "resize", "vg/origin", "--extents", "+4"]);
    assert!(bytes_of(&lab, "vg/snap") == frozen && bytes_of(&lab, "vg/origin").len() == 20 * MIB);
    lab.verb(&["lv", "merge", "vg/snap"]);
    let merged = bytes_of(&lab, "vg/origin");
    assert!(merged.len() == 20 * MIB && merged[..16 * MIB] == frozen);
}

#[test]
fn a_merge_whose_end_the_text_has_no_room_for_says_so_and_is_gone_on_with() {
    let lab = Lab::new(&[("a", 41)]);
    let small = SmallDisk::new(&lab.scratch, "a", 41, 24);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/origin", "--size", "4M"]);
    lab.verb(&["lv", "snapshot", "vg/origin", "--size", "1M", "--name", "snap"]);
    lab.tag_until_a_text_takes_pages("vg/origin");
    let kept = lab.scratch.at("kept");
    run(tool("cp").args(["--sparse=always", &lab.scratch.at("a"), &kept]));
    let before = lab.columns("lv_name,origin");
    let mut ends = Vec::new();
    for pages in 0.. {
        assert!(pages < 100, "it fails however much room there is: {ends:?}");
        run(tool("cp").args(["--sparse=always", &kept, &lab.scratch.at("a")]));
        small.fill_up();
        small.make_room_for(pages);
        let done = output(&mut lab.scratch.blockwork(lab.args(&["lv", "merge", "vg/snap"])));
        small.make_room();
        if done.status.success() {
            break;
        }
        let said = both(&done);
        let is_begun = lab.columns("lv_name,origin") != before;
        let is_told = said.contains("vg/snap: all is merged, and the group's text cannot say so: ")
            && said.contains("; go on with: blockwork lv merge vg/snap --disk a");
        assert_eq!((is_told, said.contains("nothing has changed")), (is_begun, !is_begun), "{said}");
        ends.push(is_begun);
        lab.verb(&["lv", "merge", "vg/snap"]);
    }
    ends.dedup();
    assert_eq!(ends, [false, true]);
}
