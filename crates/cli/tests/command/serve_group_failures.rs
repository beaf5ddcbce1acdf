//! A thin volume of a group that is served, whose making fails on its way: at each page in turn that its disk has no room for. Clients are
//! offered what they were offered before, whether it is taken back or stays; and group and pool agree, for the server and for LVM's tools.
//! Whoever asked for a change that failed on its way, of a server or on idle disks, is told whether it is made all the same.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::support::fs::SmallDisk;
use crate::support::lvm::Lab;
use crate::support::nbd::python;
use crate::support::{both, output, run, run_refused, tool, until};
use blockwork_format::thin::Superblock;
use serde_json::Value;

/// What clients can open.
fn offered(lab: &Lab) -> Vec<String> {
    let list = run(tool("nbdinfo").args(["--list", "--json", &lab.scratch.uri("")]));
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let exports = list["exports"].as_array().expect("a list").iter();
    let mut names: Vec<_> =
        exports.map(|export| export["export-name"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

/// The thin volumes as the server tells of them.
fn shown(lab: &Lab) -> Vec<String> {
    let said = run(&mut lab.scratch.blockwork(["lv", "show", "--json", "vg"]));
    let all: Value = serde_json::from_str(&said).expect("JSON");
    let thin = all.as_array().expect("a list").iter().filter(|volume| volume["type"] == "thin");
    let mut names: Vec<_> = thin.map(|volume| volume["name"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

/// The same as LVM reads them from the disk.
fn written(lab: &Lab) -> Vec<String> {
    let lines = lab.columns("lv_name,thin_id");
    let thin = lines.iter().filter_map(|line| line.split_once(';')).filter(|(_, id)| !id.is_empty());
    let mut names: Vec<_> = thin.map(|(name, _)| name.to_owned()).collect();
    names.sort();
    names
}

/// How the making of a volume ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// There was no room for the text that begins it.
    NotBegun,
    /// The pool could not write down the volume.
    Refused,
    /// The pool has it, and there was no room for the text that says so.
    Told,
}

/// Has the running server make `vg/two` while there is room for so many pages; none: that was enough.
fn make_within(lab: &Lab, small: &SmallDisk, pages: u64) -> Option<(End, String)> {
    small.fill_up();
    small.make_room_for(pages);
    let done = output(&mut lab.scratch.blockwork(["lv", "create", "vg/two", "--thin", "pool", "-V", "8M"]));
    small.make_room();
    if done.status.success() {
        return None;
    }
    let said = both(&done);
    let end = match () {
        () if said.contains("the pool pool: ") => End::Refused,
        () if shown(lab) == ["one"] => End::NotBegun,
        () => End::Told,
    };
    Some((end, said))
}

#[test]
fn a_volume_that_fails_at_any_step_is_offered_to_nobody_and_group_and_pool_agree_about_it() {
    let lab = Lab::new(&[("a", 81)]);
    let small = SmallDisk::new(&lab.scratch, "a", 81, 24);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "8M"]);
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "8M"]);
    lab.verb(&["lv", "create", "vg/plain", "--size", "4M"]);
    lab.tag_until_a_text_takes_pages("vg/plain");
    let kept = lab.scratch.at("kept");
    let copy = |from: &str, to: &str| run(tool("cp").args(["--sparse=always", from, to]));
    copy(&lab.scratch.at("a"), &kept);
    let mut ends = BTreeSet::new();
    for pages in 0.. {
        assert!(pages < 100, "it fails however much room there is: {ends:?}");
        copy(&kept, &lab.scratch.at("a"));
        let server = lab.scratch.serve(["--disk", "a"]);
        let before = offered(&lab);
        assert_eq!(before, ["vg/one", "vg/plain"]);
        let Some((end, said)) = make_within(&lab, &small, pages) else {
            assert_eq!(offered(&lab), ["vg/one", "vg/plain", "vg/two"]);
            server.stop_quietly();
            break;
        };
        ends.insert(end);
        let what = format!("{end:?}, with {pages} pages: {said}{}", server.said());
        let is_there = shown(&lab).len() == 2;
        assert_eq!((offered(&lab), written(&lab)), (before.clone(), shown(&lab)), "{what}");
        match end {
            End::NotBegun => assert!(!is_there && said.contains("nothing has changed"), "{what}"),
            // A pool that can write nothing can take nothing back either.
            End::Refused => assert!(!is_there || said.contains("vg/two cannot be taken back"), "{what}"),
            End::Told => assert!(is_there && said.contains("vg/two is made all the same"), "{what}"),
        }
        server.stop();
        if end != End::Refused {
            // Whoever opens the group next makes complete what was cut short. A pool that has failed is to be checked first.
            lab.verb(&["lv", "tag", "vg/plain", "--addtag", "next"]);
            assert_eq!(lab.dumped("pool").matches("dev_id=").count(), written(&lab).len(), "{what}");
        }
        let server = lab.scratch.serve(["--disk", "a"]);
        let is_offered = offered(&lab).contains(&"vg/two".to_owned());
        assert_eq!(is_offered, end == End::Told, "{what}");
        assert!(before.iter().all(|name| offered(&lab).contains(name)), "{what}");
        if is_offered {
            let uri = lab.scratch.uri("vg/two");
            python(&format!("h = connect({uri:?})\nassert h.pread(512, 0) == bytes(512)\n"));
        }
        server.stop();
    }
    assert_eq!(ends.into_iter().collect::<Vec<_>>(), [End::NotBegun, End::Refused, End::Told]);
}

/// A lab whose disk `small` is too small, with the thin volumes `one` and `two` and a snapshot of `one`; and a copy of it.
fn lab_with_a_snapshot() -> (Lab, SmallDisk, String) {
    let lab = Lab::new(&[("a", 81)]);
    let small = SmallDisk::new(&lab.scratch, "a", 81, 24);
    lab.verb(&["vg", "create", "vg", "a", "-s", "1M"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "8M"]);
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "8M"]);
    lab.verb(&["lv", "snapshot", "vg/one", "--name", "snap"]);
    lab.verb(&["lv", "create", "vg/plain", "--size", "4M"]);
    lab.tag_until_a_text_takes_pages("vg/plain");
    let kept = lab.scratch.at("kept");
    run(tool("cp").args(["--sparse=always", &lab.scratch.at("a"), &kept]));
    (lab, small, kept)
}

/// A change that has failed, with room for so many pages: whether it is made all the same, which must be what was said.
fn expect_truth(lab: &Lab, before: &[String], said: &str) -> bool {
    let is_made = written(lab) != before;
    let told = "the text of vg has the change all the same";
    assert_eq!((said.contains(told), said.contains("nothing has changed")), (is_made, !is_made), "{said}");
    is_made
}

#[test]
fn a_verb_on_an_idle_pool_that_fails_on_its_way_says_whether_its_change_is_made_all_the_same() {
    let (lab, small, kept) = lab_with_a_snapshot();
    let before = written(&lab);
    for verb in [
        &["lv", "create", "vg/new", "--thin", "pool", "-V", "8M"][..],
        &["lv", "snapshot", "vg/one", "--name", "new"],
        &["lv", "merge", "vg/snap"],
        &["lv", "remove", "vg/snap"],
    ] {
        let mut made = BTreeSet::new();
        for pages in 0.. {
            assert!(pages < 100, "{verb:?} fails however much room there is");
            run(tool("cp").args(["--sparse=always", &kept, &lab.scratch.at("a")]));
            small.fill_up();
            small.make_room_for(pages);
            let done = output(&mut lab.scratch.blockwork(lab.args(verb)));
            small.make_room();
            if done.status.success() {
                break;
            }
            let is_made = expect_truth(&lab, &before, &both(&done));
            made.insert(is_made);
            // Whoever opens the group next makes complete what was begun; what was not can be asked for again.
            if is_made {
                lab.verb(&["lv", "tag", "vg/plain", "--addtag", "next"]);
            } else {
                lab.verb(verb);
            }
            assert_eq!(lab.dumped("pool").matches("dev_id=").count(), written(&lab).len(), "{verb:?}");
        }
        assert_eq!(made.len(), 2, "{verb:?}: {made:?}");
    }
}

#[test]
fn who_has_a_server_remove_what_its_pool_cannot_be_told_of_hears_that_it_is_gone_all_the_same() {
    let (lab, small, kept) = lab_with_a_snapshot();
    let before = written(&lab);
    let mut made = BTreeSet::new();
    for pages in 0.. {
        assert!(pages < 100, "it fails however much room there is");
        run(tool("cp").args(["--sparse=always", &kept, &lab.scratch.at("a")]));
        let server = lab.scratch.serve(["--disk", "a"]);
        small.fill_up();
        small.make_room_for(pages);
        let done = output(&mut lab.scratch.blockwork(["lv", "remove", "vg/snap"]));
        if done.status.success() {
            small.make_room();
            server.stop_quietly();
            break;
        }
        let next = output(&mut lab.scratch.blockwork(["lv", "tag", "vg/plain", "--addtag", "next"]));
        small.make_room();
        let is_made = expect_truth(&lab, &before, &both(&done));
        made.insert(is_made);
        assert_eq!(!offered(&lab).contains(&"vg/snap".to_owned()), is_made, "{}", both(&done));
        if is_made {
            // What has nothing to do with that is made, if there is room for it.
            let (said, unfinished) =
                (both(&next), "vg: a change that was cut short before cannot be made complete");
            assert_eq!(said.contains(unfinished), next.status.success(), "{said}");
        }
        server.stop();
    }
    assert_eq!(made.len(), 2, "{made:?}");
}

/// Has the pool say that it needs a check, as after a failure.
fn ask_for_a_check(lab: &Lab) {
    let (starts, _) = lab.metadata_places("pool");
    let disk = File::options().read(true).write(true).open(lab.scratch.path("a")).expect("a disk");
    let mut block = [0; 4096];
    disk.read_exact_at(&mut block, starts[0]).expect("it is there");
    let superblock = Superblock::decode(&block).expect("it is whole").expect("it is there");
    let asking = Superblock { needs_check: true, ..superblock };
    disk.write_all_at(&asking.encode(0)[..], starts[0]).expect("it is written");
}

/// What changes the pool is refused before a text says it, on idle disks and by a server. All else goes on, also where the pool has yet to be
/// told of something.
#[test]
fn a_pool_that_is_to_be_checked_first_holds_up_nothing_but_its_own_changes() {
    let lab = Lab::new(&[("a", 161)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "16M"]);
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "16M"]);
    lab.verb(&["lv", "snapshot", "vg/one", "--name", "snap"]);
    lab.verb(&["lv", "create", "vg/plain", "--size", "4M"]);
    ask_for_a_check(&lab);
    let mut size = 4;
    for is_cut_short in [false, true] {
        if is_cut_short {
            let (before, after) = ("transaction_id = 2\n\t\t\t\t", "chunk_size");
            let message = "message1 {\n\t\t\t\t\tdelete = 77\n\t\t\t\t}\n\t\t\t\t";
            let told = before.replace('2', "3");
            lab.edit(&format!("{before}{after}"), &format!("{told}{message}{after}"));
        }
        let text = || lab.columns("lv_name,lv_size,thin_id,transaction_id");
        for is_served in [false, true] {
            let server = is_served.then(|| lab.scratch.serve(["--disk", "a"]));
            let command = |verb: &[&str]| match is_served {
                true => lab.scratch.blockwork(verb),
                false => lab.scratch.blockwork(lab.args(verb)),
            };
            let before = text();
            for verb in [
                &["lv", "create", "vg/new", "--thin", "pool", "-V", "8M"][..],
                &["lv", "snapshot", "vg/one", "--name", "new"],
                &["lv", "merge", "vg/snap"],
                &["lv", "remove", "vg/snap"],
            ] {
                let said = run_refused(&mut command(verb));
                let why = if is_served {
                    "the pool is read-only: its metadata needs a check"
                } else {
                    "needs_check"
                };
                assert!(said.contains(why), "{verb:?}: {said}");
                assert_eq!(text(), before, "{verb:?}: {said}");
            }
            size += 4;
            for verb in [
                &["lv", "resize", "vg/plain", "--size", &format!("{size}M")][..],
                &["lv", "rename", "vg/plain", "other"],
                &["lv", "rename", "vg/other", "plain"],
            ] {
                let said = both(&output(&mut command(verb)));
                let unfinished = "a change that was cut short before cannot be made complete";
                assert_eq!(said.contains(unfinished), is_cut_short, "{verb:?}: {said}");
            }
            assert!(text().iter().any(|line| line.starts_with(&format!("plain;{size}.00;"))), "{:?}", text());
            server.map(|server| server.stop());
        }
    }
    lab.verb(&["lv", "remove", "vg/one", "vg/snap", "vg/pool"]);
    assert_eq!(lab.columns("lv_name"), ["plain"]);
    lab.expect_sound();
}

#[test]
fn a_pool_that_makes_no_use_of_more_room_is_given_none() {
    let lab = Lab::new(&[("a", 241)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    lab.verb(&["lv", "create", "vg/pool", "--thin-pool", "--size", "16M"]);
    lab.verb(&["lv", "create", "vg/one", "--thin", "pool", "-V", "16M"]);
    let server = lab.scratch.serve(["--disk", "a"]);
    let uri = lab.scratch.uri("vg/one");
    python(&format!("h = connect({uri:?})\nh.pwrite(b'x' * (12 << 20), 0)\nh.flush()\n"));
    server.stop_quietly();
    ask_for_a_check(&lab);
    let before = lab.columns("lv_name,lv_size");
    let set = ["--set", "thin-pool:thin_pool_autoextend_threshold=50"];
    let server = lab.scratch.serve(["--disk", "a"].iter().chain(&set));
    let told = || {
        server.said().matches("it cannot be extended: it is read-only: its metadata needs a check").count()
    };
    until("it is told", || told() > 0);
    let before_change = told();
    // Whoever changes the group has it looked at once more.
    run(&mut lab.scratch.blockwork(["lv", "create", "vg/new", "--size", "4M"]));
    until("it is told again", || told() > before_change);
    server.stop();
    let mut after = lab.columns("lv_name,lv_size");
    after.retain(|line| !line.starts_with("new;"));
    assert_eq!(after, before);
}

/// Volumes and pools may come later: a server is started by the same command line whether there are some or not.
#[test]
fn a_group_that_has_nothing_but_a_pool_is_served_with_settings_for_what_may_come() {
    let lab = Lab::new(&[("a", 161)]);
    lab.verb(&["vg", "create", "vg", "a"]);
    let set = ["thin-pool:thin_pool_autoextend_threshold=70", "raid:sync_speed_max=5000"];
    let serve = ["--disk", "a", "--set", set[0], "--set", set[1]];
    lab.scratch.serve(serve).stop();
    let named = "vg/pool:thin_pool_autoextend_threshold=70";
    for (more, setting) in [(None, named), (None, "md:sync_speed_max=5000"), (Some("--read-only"), set[0])] {
        let args = ["--disk", "a", "--set", setting];
        let said = lab.scratch.misused(args.into_iter().chain(more));
        assert!(said.contains("no device of that kind or name is assembled"), "{said}");
    }
    let server = lab.scratch.serve(serve);
    run(&mut lab.scratch.blockwork(["lv", "create", "vg/pool", "--thin-pool", "--size", "16M"]));
    server.stop();
    let server = lab.scratch.serve(serve);
    run(&mut lab.scratch.blockwork(["lv", "create", "vg/one", "--thin", "pool", "-V", "32M"]));
    // By the setting, which came before the pool did.
    let uri = lab.scratch.uri("vg/one");
    python(&format!(
        "h = connect({uri:?})\nfor at in range(24):\n h.pwrite(b'1' * (1 << 20), at << 20)\nh.flush()\n"
    ));
    let ended = server.stop();
    assert!(ended.stderr.contains("vg: no volume yet that can be opened"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("not served"), "{}", ended.stderr);
    lab.expect_sound();
}
