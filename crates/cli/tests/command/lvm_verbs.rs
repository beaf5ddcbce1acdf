//! Our `vg` and `lv` verbs on real disks, judged by LVM's own tools after every step: what they find, that they have nothing to
//! complain of, that they would have put volumes in the same places, and that they go on where we stop.
//! The kernel itself judges in `../kernel/lvm_verbs.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::chance::{Chance, seeds};
use crate::support::fs::Loop;
use crate::support::lvm::Lab;
use crate::support::{Scratch, both, noise, output, run, run_refused, tool, until};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn lvm_has_nothing_to_complain_of_after_any_step() {
    let lab = Lab::new(&[("a", 64), ("b", 64), ("c", 64), ("d", 64)]);
    let three = ["vg", "create", "vg", "a", "b", "c", "--physical-extent-size", "1M", "--addtag", "new"];
    let said = run(&mut lab.scratch.blockwork(three));
    assert_eq!(said, "vg: 3 disks, 189M, 189M free\n");
    run(&mut lab.scratch.blockwork(["vg", "extend", "vg", "d", "--disk", "a", "b", "c"]));
    lab.expect_sound();
    lab.verb(&["lv", "create", "vg/lin", "--size", "5M"]);
    lab.verb(&["lv", "create", "vg/str", "--type", "striped", "--stripes", "3", "--extents", "9"]);
    lab.verb(&["lv", "create", "vg/r1", "-m", "1", "--size", "7M", "--addtag", "x", "--addtag", "y"]);
    lab.verb(&["lv", "create", "vg/r10", "--type", "raid10", "--size", "8M", "--nosync"]);
    let made = json(&lab.verb(&["lv", "create", "vg/half", "--extents", "50%FREE", "--json"]));
    assert_eq!((&made["volume"]["name"], &made["volume"]["type"]), (&"half".into(), &"linear".into()));
    lab.verb(&["lv", "resize", "vg/lin", "--size", "+3M"]);
    lab.verb(&["lv", "resize", "vg/str", "--extents", "3", "--force"]);
    lab.verb(&["lv", "rename", "vg/r1", "vg/mirror"]);
    lab.verb(&["lv", "tag", "vg/mirror", "--deltag", "x"]);
    lab.verb(&["vg", "tag", "vg", "--addtag", "t", "--deltag", "new"]);
    lab.verb(&["lv", "remove", "vg/half", "vg/str"]);
    lab.verb(&["lv", "resize", "vg/mirror", "--extents", "+2"]);
    lab.verb(&["lv", "resize", "vg/r10", "--size", "11M"]);
    let said = lab.lvm(&[
        "lvs --noheadings -o lv_name,lv_size,lv_tags --units m vg",
        "vgs --noheadings -o vg_name,vg_tags,pv_count,lv_count,vg_seqno vg",
    ]);
    let words: Vec<Vec<&str>> = said[0].lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words, [vec!["lin", "8.00m"], vec!["mirror", "9.00m", "y"], vec!["r10", "12.00m"]]);
    assert_eq!(said[1].split_whitespace().collect::<Vec<_>>(), ["vg", "t", "4", "3", "15"]);
    let shown = json(&lab.verb(&["vg", "show", "--json"]));
    assert_eq!((&shown[0]["seqno"], &shown[0]["volumes"]), (&15.into(), &3.into()));
    assert_eq!(shown[0]["attributes"], "wz--n-");
}

#[test]
fn volumes_lie_where_lvcreate_and_lvextend_put_them() {
    const SIZES: &[(&str, u64)] = &[("a", 40), ("b", 30), ("c", 50)];
    const STEPS: &[(&[&str], &str)] = &[
        (&["lv", "create", "vg/one", "--extents", "7"], "lvcreate -an -Zn -Wn -y -n one -l 7 vg"),
        (&["lv", "create", "-l", "25", "-n", "two", "vg"], "lvcreate -an -Zn -Wn -y -n two -l 25 vg"),
        (
            &["lv", "create", "vg/three", "--stripes", "2", "--extents", "9", "--addtag", "t"],
            "lvcreate -an -Zn -Wn -y -n three -i 2 -I 64k -l 9 --addtag t vg",
        ),
        (&["lv", "resize", "vg/one", "--extents", "+4"], "lvextend -y -l +4 vg/one"),
        (&["lv", "create", "vg/four", "--extents", "33"], "lvcreate -an -Zn -Wn -y -n four -l 33 vg"),
        (&["lv", "resize", "vg/three", "--extents", "+2"], "lvextend -y -l +2 vg/three"),
        (&["lv", "resize", "vg/two", "--extents", "20", "--force"], "lvreduce -y -f -l 20 vg/two"),
        (&["lv", "resize", "vg/two", "--extents", "+3"], "lvextend -y -l +3 vg/two"),
        (&["lv", "remove", "vg/one"], "lvremove -y vg/one"),
        // A number alone is MiB.
        (&["lv", "create", "vg/five", "-L", "6"], "lvcreate -an -Zn -Wn -y -n five -L 6 vg"),
        (&["lv", "rename", "vg/five", "last"], "lvrename vg five last"),
        // Numbers alone: MiB, but KiB of a stripe.
        (
            &["lv", "create", "vg/six", "-L", "3.5", "-i", "2", "-I", "8"],
            "lvcreate -an -Zn -Wn -y -n six -L 3.5 -i 2 -I 8 vg",
        ),
        (&["lv", "resize", "vg/six", "-L", "+1.5"], "lvextend -y -L +1.5 vg/six"),
        // As it is typed for LVM's own.
        (&["lv", "rename", "-y", "vg", "last", "end"], "lvrename -y vg last end"),
        (&["lv", "rename", "/dev/vg", "/dev/vg/end", "vg/last"], "lvrename /dev/vg /dev/vg/end vg/last"),
        (&["lv", "resize", "-y", "-f", "-L", "-2", "vg/six"], "lvreduce -y -f -L -2 vg/six"),
        (&["lv", "remove", "-y", "-f", "vg/six"], "lvremove -y -f vg/six"),
        (&["lv", "create", "-y", "-L", "+6", "-n", "s", "vg"], "lvcreate -an -Zn -Wn -y -L +6 -n s vg"),
        (&["lv", "create", "-l", "+50%FREE", "vg/h"], "lvcreate -an -Zn -Wn -y -l +50%FREE -n h vg"),
    ];
    let (ours, theirs) = (Lab::new(SIZES), Lab::new(SIZES));
    run(&mut ours.scratch.blockwork(["vg", "create", "vg", "a", "b", "c", "-s", "1"]));
    theirs.lvm(&["vgcreate -s 1 vg DISKS"]);
    for (verb, command) in STEPS {
        ours.verb(verb);
        theirs.lvm(&[command]);
        assert_eq!(ours.layout("vg"), theirs.layout("vg"), "after {command}");
    }
}

/// Volumes come, grow and go by chance, until what is free is in pieces. Every step of ours is one of LVM's: it is refused by both, or
/// done by both in the same way.
#[test]
fn volumes_lie_where_lvm_puts_them_also_where_free_space_is_in_pieces() {
    const SIZES: &[(&str, u64)] = &[("a", 40), ("b", 28), ("c", 40), ("d", 34)];
    for seed in seeds(1) {
        let (ours, theirs) = (Lab::new(SIZES), Lab::new(SIZES));
        run(&mut ours.scratch.blockwork(["vg", "create", "vg", "a", "b", "c", "d", "-s", "1"]));
        theirs.lvm(&["vgcreate -s 1 vg DISKS"]);
        let mut chance = Chance::new(seed);
        let mut volumes: Vec<String> = Vec::new();
        for number in 0..40 {
            let (verb, command) = step(&mut chance, number, &volumes);
            let verb: Vec<&str> = verb.split_whitespace().collect();
            let done = output(&mut ours.scratch.blockwork(ours.args(&verb)));
            let said = theirs.try_lvm(&[&command]);
            let place = format!("seed {seed}, {command}: {}{said:?}", both(&done));
            // Of hundredths, of which nothing has room, LVM says that it was done.
            let is_done = said.is_ok_and(|said| !said[0].contains("unchanged from"));
            assert_eq!(done.status.success(), is_done, "{place}");
            if !is_done {
                continue;
            }
            assert_eq!(ours.layout("vg"), theirs.layout("vg"), "{place}");
            match verb[1] {
                "create" => volumes.push(verb[2].to_owned()),
                "remove" => volumes.retain(|volume| volume != verb[2]),
                _ => {}
            }
        }
    }
}

/// A verb of ours, and what it is for LVM.
fn step(chance: &mut Chance, number: u32, volumes: &[String]) -> (String, String) {
    let is_large = chance.one_in(5);
    let extents = 1 + chance.below(if is_large { 30 } else { 9 });
    let percent = [5, 30, 60, 100][chance.below(4) as usize];
    match chance.below(13) {
        0..=2 if volumes.len() > 3 => {
            let volume = chance.of(volumes);
            (format!("lv remove {volume}"), format!("lvremove -y {volume}"))
        }
        3..=5 if !volumes.is_empty() => {
            let volume = chance.of(volumes);
            (format!("lv resize {volume} -l +{extents}"), format!("lvextend -y -l +{extents} {volume}"))
        }
        6 => {
            let extents = extents + 1;
            let as_ours = format!("lv create vg/v{number} -i 2 -I 64 -l {extents}");
            (as_ours, format!("lvcreate -an -Zn -Wn -y -n v{number} -i 2 -I 64 -l {extents} vg"))
        }
        7 => {
            let extents = extents + 2;
            let as_ours = format!("lv create vg/v{number} -i 3 -I 8 -l {extents}");
            (as_ours, format!("lvcreate -an -Zn -Wn -y -n v{number} -i 3 -I 8 -l {extents} vg"))
        }
        10 => {
            let stripes = 1 + chance.below(4);
            let of = if chance.one_in(3) { "VG" } else { "FREE" };
            let as_ours = format!("lv create vg/v{number} -i {stripes} -I 64 -l {percent}%{of}");
            let stripes = if stripes == 1 { String::new() } else { format!("-i {stripes} -I 64 ") };
            (as_ours, format!("lvcreate -an -Zn -Wn -y -n v{number} {stripes}-l {percent}%{of} vg"))
        }
        11 if !volumes.is_empty() => {
            let volume = chance.of(volumes);
            (
                format!("lv resize {volume} -l +{percent}%FREE"),
                format!("lvextend -y -l +{percent}%FREE {volume}"),
            )
        }
        _ => {
            let as_ours = format!("lv create vg/v{number} -l {extents}");
            (as_ours, format!("lvcreate -an -Zn -Wn -y -n v{number} -l {extents} vg"))
        }
    }
}

/// As long as each leg has room on its own disks. Where it has none, `lvextend` lets two legs have parts on one disk, if only these are
/// copies of different extents; we look for another disk.
#[test]
fn legs_of_a_volume_that_grows_lie_where_lvextend_puts_them() {
    const SIZES: &[(&str, u64)] = &[("a", 40), ("b", 40), ("c", 40), ("d", 40), ("e", 30)];
    const STEPS: &[(&str, &str)] = &[
        ("vg/r1", "+3"),
        ("vg/r1", "+3%FREE"),
        ("vg/r10", "+4"),
        ("vg/r10", "+5%FREE"),
        ("vg/r1x3", "+2"),
        ("vg/r1", "14"),
        ("vg/r10", "+1"),
        ("vg/between", "+2"),
        ("vg/r1x3", "+3"),
    ];
    let (ours, theirs) = (Lab::new(SIZES), Lab::new(SIZES));
    for lab in [&ours, &theirs] {
        run(&mut lab.scratch.blockwork(["vg", "create", "vg", "a", "b", "c", "d", "e", "-s", "1M"]));
        lab.verb(&["lv", "create", "vg/r1", "--type", "raid1", "--extents", "7"]);
        lab.verb(&["lv", "create", "vg/between", "--extents", "4"]);
        lab.verb(&["lv", "create", "vg/r10", "--type", "raid10", "--extents", "8"]);
        lab.verb(&["lv", "create", "vg/r1x3", "--mirrors", "2", "--type", "raid1", "--extents", "3"]);
    }
    for (volume, extents) in STEPS {
        ours.verb(&["lv", "resize", volume, "--extents", extents]);
        theirs.lvm(&[&format!("lvextend -y -l {extents} {volume}")]);
        assert_eq!(ours.layout("vg"), theirs.layout("vg"), "after {extents} for {volume}");
    }
}

/// One leg has room in one piece, and another one in two: in the second round the first goes on where it was, in the same segment, as LVM
/// writes it.
#[test]
fn legs_that_take_two_rounds_have_no_more_segments_than_pieces() {
    const SIZES: &[(&str, u64)] = &[("a", 32), ("b", 32)];
    let (ours, theirs) = (Lab::new(SIZES), Lab::new(SIZES));
    let linear = "lvcreate -an -Zn -Wn -y";
    for lab in [&ours, &theirs] {
        lab.lvm(&[
            "vgcreate -s 1M vg DISKS",
            &format!("{linear} -n hole -l 6 vg DISK1"),
            &format!("{linear} -n stays -l 1 vg DISK1"),
            &format!("{linear} -n between -l 8 vg DISK1"),
            &format!("{linear} -n last -l 2 vg DISK1"),
            "lvremove -y vg/hole vg/between",
        ]);
        lab.verb(&["lv", "create", "vg/r", "--type", "raid1", "--extents", "17"]);
    }
    // As the text has them: LVM's own tools show as one what adjoins.
    let segments = |lab: &Lab| -> BTreeMap<String, Value> {
        let found = json(&run(&mut lab.scratch.blockwork(["scan", "--json", "a", "b"])));
        let volumes = found["groups"][0]["lvs"].as_array().expect("a list").iter();
        volumes.map(|lv| (lv["name"].as_str().unwrap().to_owned(), lv["segments"].clone())).collect()
    };
    let of_ours = segments(&ours);
    let count = |leg: &str| of_ours[leg].as_array().expect("a list").len();
    assert_eq!((count("r_rimage_0"), count("r_rimage_1")), (1, 2), "{of_ours:?}");
    for extents in ["+3", "+1"] {
        ours.verb(&["lv", "resize", "vg/r", "--extents", extents]);
        theirs.lvm(&[&format!("lvextend -y -l {extents} vg/r")]);
        assert_eq!(segments(&ours), segments(&theirs), "after {extents}");
    }
}

#[test]
fn volumes_with_a_parity_are_what_lvm_takes_them_for_and_grow_as_lvextend_has_it() {
    const SIZES: &[(&str, u64)] = &[("a", 32), ("b", 32), ("c", 32), ("d", 32), ("e", 32), ("f", 32)];
    let (ours, theirs) = (Lab::new(SIZES), Lab::new(SIZES));
    for lab in [&ours, &theirs] {
        run(&mut lab.scratch.blockwork(["vg", "create", "vg", "a", "b", "c", "d", "e", "f", "-s", "1M"]));
        let said = lab.verb(&["lv", "create", "vg/five", "--type", "raid5", "--extents", "7"]);
        assert_eq!(said, "vg/five: 8M\n");
        lab.verb(&["lv", "create", "vg/six", "--type", "raid6", "--size", "6M", "--addtag", "t"]);
        let four = ["--type", "raid4", "-i", "3", "-I", "16K", "-R", "8K", "--extents", "6", "--nosync"];
        lab.verb(&[&["lv", "create", "vg/four"], &four[..]].concat());
        lab.expect_sound();
    }
    let fields = "lv_name,segtype,stripes,data_stripes,stripe_size,region_size,lv_size,lv_tags";
    let said = ours.lvm(&[&format!("lvs --noheadings --units k -o {fields} vg")]);
    let words: Vec<Vec<&str>> = said[0].lines().map(|line| line.split_whitespace().collect()).collect();
    let expected = [
        vec!["five", "raid5", "3", "2", "64.00k", "2048.00k", "8192.00k"],
        vec!["four", "raid4", "4", "3", "16.00k", "16.00k", "6144.00k"],
        vec!["six", "raid6", "5", "3", "64.00k", "2048.00k", "6144.00k", "t"],
    ];
    assert_eq!(words, expected);
    for extents in ["+1", "+6", "18"] {
        ours.verb(&["lv", "resize", "vg/four", "--extents", extents]);
        theirs.lvm(&[&format!("lvextend -y -l {extents} vg/four")]);
        assert_eq!(ours.layout("vg"), theirs.layout("vg"), "after {extents}");
    }
    ours.verb(&["lv", "remove", "vg/five", "vg/six"]);
    ours.expect_sound();
}

#[test]
fn a_server_makes_a_volume_with_a_parity_and_serves_it() {
    let disks = ["a", "b", "c", "d", "e", "f"];
    let lab = Lab::new(&disks.map(|disk| (disk, 16)));
    run(&mut lab.scratch.blockwork([&["vg", "create", "vg", "-s", "512K"][..], &disks].concat()));
    lab.verb(&["lv", "create", "vg/other", "--size", "1M"]);
    let server = lab.scratch.serve([&["--disk"][..], &disks].concat());
    run(&mut lab
        .scratch
        .blockwork(["lv", "create", "vg/six", "--type", "raid6_nc", "-i", "4", "--size", "4M"]));
    let written = noise(4 << 20, 1);
    let from = lab.scratch.write("new", &written);
    run(tool("nbdcopy").args(["--flush", &from, &lab.scratch.uri("vg/six")]));
    let read = |volume: &str| {
        run(tool("nbdcopy").args([&lab.scratch.uri(volume), &lab.scratch.at("copy")]));
        lab.scratch.read("copy")
    };
    assert!(read("vg/six") == written);
    server.stop_quietly();
    lab.expect_sound();
    let shown = json(&lab.verb(&["lv", "show", "--json", "vg/six"]));
    assert_eq!(shown[0]["type"], "raid6_nc");
    let server = lab.scratch.serve([&["--disk"][..], &disks, &["vg/six"]].concat());
    assert!(read("vg/six") == written);
    server.stop_quietly();
}

/// `X` is what LVM says of what it would have to ask the kernel for, here without one; it takes every leg for one that is not in sync (`I`) then.
#[test]
fn the_letters_of_volumes_are_those_of_lvs() {
    const DISKS: [&str; 4] = ["a", "b", "c", "d"];
    let lab = Lab::new(&DISKS.map(|disk| (disk, 96)));
    run(&mut lab.scratch.blockwork([&["vg", "create", "vg", "-s", "1M"][..], &DISKS].concat()));
    for verb in [
        "create vg/linear --size 4M",
        "create vg/striped --type striped -i 2 --size 4M",
        "create vg/mirror --type raid1 --size 4M",
        "create vg/nosync --type raid1 --size 4M --nosync",
        "create vg/parity --type raid5 --size 4M",
        "create vg/pool --thin-pool --size 16M",
        "create vg/thin --thin pool -V 8M",
        "snapshot vg/thin --name snap",
        "snapshot vg/linear --size 2M --name old",
        "create vg/keep --size 3M",
    ] {
        lab.verb(&["lv"].into_iter().chain(verb.split(' ')).collect::<Vec<_>>());
    }
    lab.lvm(&[
        "lvchange -p r vg/striped",
        "lvchange --alloc contiguous vg/keep",
        "lvchange -k y vg/keep",
        "lvchange -My --major 253 --minor 77 vg/keep",
        "lvchange --alloc cling vg/mirror",
        "lvcreate -an -y --type cache-pool -l 8 -n cache vg",
    ]);
    let mut letters = BTreeSet::new();
    for without in [None, Some("b"), Some("d")] {
        let here = DISKS.into_iter().filter(|disk| Some(*disk) != without);
        let args: Vec<&str> =
            ["lv", "show", "--all", "--json", "vg", "--disk"].into_iter().chain(here).collect();
        let ours = json(&run(&mut lab.scratch.blockwork(args)));
        let ours = ours.as_array().expect("a list").iter();
        let ours: BTreeMap<String, String> = ours
            .map(|lv| {
                (lv["name"].as_str().unwrap().to_owned(), lv["attributes"].as_str().unwrap().to_owned())
            })
            .collect();
        let theirs = lab.field_by_lvm("lv_attr", without);
        assert!(ours.keys().eq(theirs.keys()), "{ours:?}, {theirs:?}");
        for (name, theirs) in &theirs {
            let ours = &ours[name];
            let is_alike = |(ours, theirs): (char, char)| match theirs {
                'X' => true,
                'I' => matches!(ours, 'i' | 'I'),
                theirs => ours == theirs,
            };
            let pairs = || ours.chars().zip(theirs.chars());
            assert!(
                ours.len() == 10 && pairs().all(is_alike),
                "{name} without {without:?}: {ours}, {theirs}"
            );
            letters.extend(
                pairs()
                    .enumerate()
                    .filter(|(_, (_, theirs))| *theirs != 'X')
                    .map(|(at, (ours, _))| (at, ours)),
            );
        }
    }
    for letter in [
        (0, 'o'),
        (0, 's'),
        (0, 'V'),
        (0, 'R'),
        (0, 'e'),
        (1, 'r'),
        (2, 'c'),
        (3, 'm'),
        (7, 'z'),
        (8, 'p'),
        (9, 'k'),
    ] {
        assert!(letters.contains(&letter), "{letter:?} was not asked for: {letters:?}");
    }
}

#[test]
fn lvm_and_we_take_turns() {
    let lab = Lab::new(&[("a", 64), ("b", 64)]);
    lab.lvm(&["vgcreate -s 1M --addtag theirs vg DISKS", "lvcreate -an -Zn -Wn -y -n lin -l 9 vg"]);
    lab.verb(&["lv", "create", "vg/ours", "--size", "4M"]);
    lab.lvm(&[
        "lvextend -y -l +3 vg/ours",
        "lvcreate -an -Zn -Wn -y -n more -i 2 -l 4 vg",
        "vgchange --addtag z vg",
    ]);
    lab.verb(&["lv", "resize", "vg/more", "--extents", "+2"]);
    lab.verb(&["lv", "rename", "vg/lin", "base"]);
    lab.lvm(&["lvrename vg base lin", "lvremove -y vg/ours", "lvreduce -y -f -l 5 vg/lin"]);
    let layout = lab.layout("vg");
    assert!(layout.iter().any(|line| line.starts_with("lin;linear;0;5;")), "{layout:?}");
}

#[test]
fn a_change_that_was_cut_half_way_is_old_or_new_to_lvm_and_the_next_change_mends_it() {
    let lab = Lab::new(&[("a", 16), ("b", 16), ("c", 16)]);
    run(&mut lab.scratch.blockwork(["vg", "create", "vg", "a", "b", "c", "-s", "1M"]));
    lab.verb(&["lv", "create", "vg/old", "--extents", "3"]);
    let before = lab.bytes();
    lab.verb(&["lv", "create", "vg/new", "--extents", "3"]);
    let after = lab.bytes();
    // The headers of the areas come last, one disk after the other: so far it got.
    for committed in 0..=3 {
        let mut images = after.clone();
        for (image, old) in images.iter_mut().zip(&before).skip(committed) {
            image[4096..4608].copy_from_slice(&old[4096..4608]);
        }
        lab.restore(&images);
        let said = lab.lvm(&["lvs --noheadings -o lv_name vg", "vgs --noheadings -o vg_seqno vg"]);
        let is_there = |word: &str| said[0].lines().any(|line| line.trim() == word);
        assert!(is_there("old"), "{committed}: {}", said[0]);
        assert_eq!(is_there("new"), committed > 0, "{committed}: {}", said[0]);
        lab.restore(&images);
        let name = format!("vg/mended{committed}");
        lab.verb(&["lv", "create", &name, "--extents", "1"]);
        let seqno = lab.lvm(&["vgs --noheadings -o vg_seqno vg"]).remove(0);
        assert_eq!(seqno.trim(), if committed > 0 { "4" } else { "3" });
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_reason_and_nothing_is_written() {
    let lab = Lab::new(&[("a", 32), ("b", 32)]);
    run(&mut lab.scratch.blockwork(["vg", "create", "vg", "a", "b", "-s", "1M"]));
    lab.verb(&["lv", "create", "vg/lv", "--size", "20M"]);
    for (args, expected) in [
        (
            &["lv", "create", "vg/big", "--size", "50M"][..],
            "50 extents (50 MiB) are needed, 42 extents (42 MiB) are",
        ),
        (&["lv", "create", "vg/lv", "--size", "1M"], "vg/lv exists already"),
        (&["lv", "create", "vg/a_tdata", "--size", "1M"], "LVM's own"),
        (
            &["lv", "create", "vg/x", "--type", "raid1", "--size", "30M"],
            "on each of 2 physical volumes are needed",
        ),
        (&["lv", "create", "vg/x", "--size", "1M", "--nosync"], "--nosync: only the mirrors"),
        (
            &["lv", "create", "vg/x", "--type", "raid5", "--size", "4M"],
            "3 extents (3 MiB) on each of 3 physical volumes are needed",
        ),
        (&["lv", "create", "vg/x", "--type", "raid6", "--size", "3M", "--nosync"], "leave --nosync out"),
        (
            &["lv", "create", "vg/x", "--type", "raid4", "--size", "2M", "-i", "1"],
            "--stripes 1: expected 2 to 63",
        ),
        (
            &["lv", "create", "vg/x", "--type", "raid5_n", "--size", "2M", "-m", "1"],
            "--mirrors: a volume of that type",
        ),
        (&["lv", "create", "none/x", "--size", "1M"], "there is no volume group \"none\"; there are: vg"),
        (&["lv", "create", "x", "--size", "1M"], "expected VG/LV"),
        (&["lv", "create", "vg/x", "--size", "1M", "-n", "x"], "beside --name, expected the group alone"),
        (&["lv", "resize", "vg/lv", "--size", "-1M"], "add --force"),
        (&["lv", "resize", "vg/lv", "--size", "20M"], "it has 20 extents (20 MiB) already"),
        (&["lv", "remove", "vg/none"], "no logical volume \"vg/none\"; there are: lv"),
        (&["lv", "rename", "vg/lv", "other/lv"], "expected a name in vg, not in other"),
        (&["vg", "tag", "vg", "--addtag", "a b"], "the tag \"a b\""),
        (&["vg", "reduce", "vg", "a"], "these volumes lie on it: lv"),
        (&["vg", "extend", "none", "a"], "there is no volume group \"none\"; there are: vg"),
        (&["vg", "extend", "vg", "a", "b"], "all of these disks belong to it already"),
        (&["vg", "create", "other", "a"], "it is a physical volume of the group vg"),
    ] {
        let said = lab.refused(args);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    let one = run_refused(&mut lab.scratch.blockwork(["lv", "remove", "vg/lv", "--disk", "a"]));
    assert!(
        one.contains("is missing")
            && one.contains("a change needs all disks of the group, each once and up to date"),
        "{one}"
    );

    lab.scratch.sparse("c", 16 << 20);
    let alone = run_refused(&mut lab.scratch.blockwork(["vg", "extend", "vg", "c"]));
    assert!(alone.ends_with("; name the disks that vg has: --disk DISK...\n"), "{alone}");

    let server = lab.scratch.serve(["--disk", "a", "b", "vg/lv"]);
    let busy = lab.refused(&["lv", "remove", "vg/lv"]);
    assert!(busy.contains(&format!("locked by process {} (blockwork)", server.pid())), "{busy}");
    server.stop_quietly();
    lab.verb(&["lv", "remove", "vg/lv"]);
}

#[test]
fn extents_that_are_smaller_than_a_disks_blocks_are_refused_as_by_lvm() {
    let scratch = Scratch::new();
    let file = scratch.sparse("a", 8 << 20);
    let looped = Loop::with(&["--sector-size=4096"], &file);
    let create = |extent| scratch.blockwork(["vg", "create", "-s", extent, "vg", &looped.device]);
    let said = run_refused(&mut create("2k"));
    for word in [&*looped.device, "4096", "2048", "--physical-extent-size"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    run(&mut create("4k"));
}

#[test]
fn sizes_end_where_lvm_counts_no_further() {
    const EXTENTS: u64 = 4_294_967_295;
    let lab = Lab::new(&[("a", 3 << 20), ("b", 3 << 20)]);
    lab.scratch.sparse("large", 5 << 40);
    let too_many = "give the group larger ones (--physical-extent-size)";
    let create = ["vg", "create", "--physical-extent-size", "1k", "vg"];
    let said = run_refused(&mut lab.scratch.blockwork([&create[..], &["large"]].concat()));
    let found = "large: it would have 5368708096 extents (4.99 TiB), and may have 4294967295 extents (3.99 TiB) at most";
    assert!(said.contains(found) && said.contains(too_many), "{said}");
    let said = run_refused(&mut lab.scratch.blockwork([&create[..], &["a", "b"]].concat()));
    assert!(said.contains("the group would have 6442448896 extents") && said.contains(too_many), "{said}");
    run(&mut lab.scratch.blockwork([&create[..], &["a"]].concat()));
    let said = run_refused(&mut lab.scratch.blockwork(["vg", "extend", "vg", "b", "--disk", "a"]));
    assert!(said.contains("the group would have 6442448896 extents"), "{said}");
    assert!(said.contains("give the group larger ones (`vgchange --physicalextentsize`)"), "{said}");
    // LVM says the same, and that cures it.
    let extend = "vgextend -q -q vg DISK1";
    let by_lvm = lab.try_lvm(&[extend]).expect_err("too many");
    assert!(by_lvm.contains("new extent count (6442448896) exceeds limit (4294967295)"), "{by_lvm}");
    lab.lvm(&["vgchange --physicalextentsize 1m vg"]);
    run(&mut lab.scratch.blockwork(["vg", "extend", "vg", "b", "--disk", "a"]));
    lab.expect_sound();

    // As large as can be.
    let lab = Lab::new(&[("a", 1), ("pool", 100)]);
    lab.scratch.sparse("a", (EXTENTS + 1024) << 10);
    run(&mut lab.scratch.blockwork([&create[..], &["a"]].concat()));
    run(&mut lab.scratch.blockwork(["lv", "create", "vg/all", "-l", "100%FREE", "--disk", "a"]));
    let by_lvm = lab.lvm(&["lvs --noheadings --units k --nosuffix -o lv_size,vg_extent_count vg", "vgck vg"]);
    assert_eq!(by_lvm[1], "");
    assert_eq!(by_lvm[0].split_whitespace().collect::<Vec<_>>(), ["4294967295.00", "4294967295"]);
    run(&mut lab.scratch.blockwork(["vg", "create", "pools", "pool"]));
    let of_pool = |args: &[&str]| lab.scratch.blockwork([args, &["--disk", "pool"]].concat());
    run(&mut of_pool(&["lv", "create", "pools/p", "--thin-pool", "-L", "16M"]));
    run(&mut of_pool(&["lv", "create", "pools/most", "--thin", "p", "-V", "17179869180M"]));
    run(&mut of_pool(&["lv", "create", "pools/t", "--thin", "p", "-V", "1G"]));
    let before = lab.scratch.read("pool");
    for too_large in [
        &["lv", "create", "pools/more", "--thin", "p", "-V", "16P"][..],
        &["lv", "resize", "pools/most", "-L", "+4M"],
        &["lv", "resize", "pools/t", "-L", "16P"],
    ] {
        let said = run_refused(&mut of_pool(too_large));
        let expected = "expected at most 4294967295 extents (15.99 PiB), as LVM counts them in 32 bits";
        assert!(said.contains(expected), "{said}");
    }
    assert!(lab.scratch.read("pool") == before, "refused, and written to");
    let by_lvm = lab.lvm(&["lvs --noheadings --units m --nosuffix -o lv_name,lv_size pools"]);
    let words: Vec<&str> = by_lvm[0].split_whitespace().collect();
    assert_eq!(words, ["most", "17179869180.00", "p", "16.00", "t", "1024.00"]);
}

#[test]
fn a_cache_pool_of_metadata_format_2_keeps_no_volume_of_its_group_from_another_name() {
    let lab = Lab::new(&[("a", 64)]);
    run(&mut lab.scratch.blockwork(["vg", "create", "vg", "a"]));
    lab.verb(&["lv", "create", "vg/plain", "--size", "8M"]);
    // As `lvcreate --type cache-pool` writes it, which wants the kernel.
    let lv = |name: &str, id: &str, flags: &str, segment: &str| {
        format!(
            "{name} {{ id = \"AAAAAA-LVid-0000-0000-0000-0000-{id:0>6}\" status = [{flags}] flags = []\n\
             creation_time = 1700000000\ncreation_host = \"host\"\nsegment_count = 1\n\
             segment1 {{ start_extent = 0\nextent_count = 2\n{segment} }} }}\n"
        )
    };
    let on = |extent: u32| format!("type = \"striped\"\nstripe_count = 1\nstripes = [\"pv0\", {extent}]");
    let hidden = "\"READ\", \"WRITE\"";
    let pool = "type = \"cache-pool+METADATA_FORMAT\"\ndata = \"cp_cdata\"\nmetadata = \"cp_cmeta\"\nmetadata_format = 2\n\
                chunk_size = 128\ncache_mode = \"writethrough\"\npolicy = \"smq\"";
    let pool = [
        lv("cp", "1", "\"READ\", \"WRITE\", \"VISIBLE\"", pool),
        lv("cp_cdata", "2", hidden, &on(4)),
        lv("cp_cmeta", "3", hidden, &on(6)),
    ];
    lab.edit("logical_volumes {", &format!("logical_volumes {{\n{}", pool.concat()));
    let types = |lab: &Lab| lab.columns("lv_name,segtype");
    assert_eq!(types(&lab), ["cp;cache-pool", "[cp_cdata];linear", "[cp_cmeta];linear", "plain;linear"]);
    lab.verb(&["lv", "rename", "vg/plain", "data"]);
    lab.verb(&["lv", "rename", "vg/cp", "fast"]);
    assert_eq!(types(&lab), ["data;linear", "fast;cache-pool", "[fast_cdata];linear", "[fast_cmeta];linear"]);
    let file = lab.scratch.at("after");
    lab.lvm(&[&format!("vgcfgbackup -f {file} vg")]);
    let text = std::fs::read_to_string(file).expect("LVM has written it");
    assert!(
        text.contains("type = \"cache-pool+METADATA_FORMAT\"") && text.contains("metadata_format = 2"),
        "{text}"
    );
    let said = run(&mut lab.scratch.blockwork(["scan", "a"]));
    assert!(!said.contains("METADATA_FORMAT"), "{said}");
}

#[test]
fn a_disk_whose_own_metadata_area_is_ignored_says_what_else_it_takes() {
    let lab = Lab::new(&[("a", 16), ("b", 16)]);
    lab.verb(&["vg", "create", "vg", "a", "b"]);
    lab.lvm(&["pvchange --metadataignore y DISK1"]);
    let create = |disks: &[&str]| {
        let args = ["lv", "create", "vg/lv", "--size", "4M", "--disk"].iter().chain(disks);
        lab.scratch.blockwork(args.collect::<Vec<_>>())
    };
    let said = run_refused(&mut create(&["b"]));
    let expected = "there is no volume group \"vg\"; there are: none; b: it belongs to a volume group, and no disk here has usable metadata \
                    of that, since its own area is ignored: give the group's other disks as well; `pvchange --metadataignore n` with them has \
                    LVM keep it on this one, too\n";
    assert!(said.ends_with(expected), "{said}");
    let scan = both(&output(&mut lab.scratch.blockwork(["scan", "b"])));
    assert!(scan.contains("its own area is ignored: give the group's other disks as well"), "{scan}");
    run(&mut create(&["a", "b"]));
    lab.lvm(&["lvremove -y vg/lv", "pvchange --metadataignore n DISK1"]);
    // It has the group's text from then on; what the group lacks is told by name.
    let said = run_refused(&mut create(&["b"]));
    assert!(said.contains("a change needs all disks of the group"), "{said}");
    lab.expect_sound();
}

#[test]
fn what_volumes_lie_on_is_told_as_lvm_tells_it() {
    let lab = Lab::new(&[("a", 64), ("b", 64), ("c", 64)]);
    lab.verb(&["vg", "create", "vg", "a", "b", "c"]);
    for made in ["wide -L 80M", "stripes --type striped -i 2 -L 16M", "mirror --type raid1 -m 1 -L 16M"] {
        let words: Vec<&str> = made.split(' ').collect();
        lab.verb(&[&["lv", "create", &format!("vg/{}", words[0])], &words[1..]].concat());
    }
    for disks in [3, 2] {
        let theirs = lab.areas_by_lvm(disks);
        assert!(theirs.len() > 6 && theirs["wide"].starts_with("a(0),"), "{theirs:?}");
        let mut args = vec!["lv", "show", "--all", "--json", "vg", "--disk", "a", "b", "c"];
        args.truncate(args.len() - 3 + disks);
        let said = output(&mut lab.scratch.blockwork(args));
        let shown = json(&String::from_utf8_lossy(&said.stdout));
        let areas = |lv: &Value| {
            let of = |area: &Value| area.as_str().expect("a text").to_owned();
            lv["areas"].as_array().expect("areas").iter().map(of).collect::<Vec<_>>().join(",")
        };
        let name = |lv: &Value| lv["name"].as_str().expect("a name").to_owned();
        let ours: BTreeMap<_, _> =
            shown.as_array().expect("volumes").iter().map(|lv| (name(lv), areas(lv))).collect();
        assert_eq!(ours, theirs, "{disks} disks");
    }
}

/// Who has just made one has left nothing undone; LVM's own are told likewise.
#[test]
fn a_new_raid_volume_is_told_from_one_that_was_not_stopped() {
    for (kind, wrong) in [("raid1", "its mirrors may differ"), ("raid5", "its parity may not fit its data")] {
        let lab = Lab::new(&[("a", 64), ("b", 64), ("c", 64)]);
        lab.verb(&["vg", "create", "vg", "a", "b", "c"]);
        lab.verb(&["lv", "create", "vg/new", "--type", kind, "--size", "8M"]);
        let scan = || run(&mut lab.scratch.blockwork(["scan", "a", "b", "c"]));
        let new = format!("it is new, and not resynced yet, as is done while it is served: {wrong}");
        assert!(scan().contains(&new), "{}", scan());
        let server = lab.scratch.serve(["--disk", "a", "b", "c"]);
        until("it is resynced", || !scan().contains("it is new"));
        let ended = server.stop();
        assert!(ended.status.success() && ended.stderr.contains(&new), "{}", ended.stderr);
        assert!(!scan().contains(wrong), "{}", scan());
    }
}

#[test]
fn a_volume_with_copies_or_a_parity_grows_when_nobody_serves_it() {
    for kind in ["raid1", "raid10", "raid4", "raid5", "raid6"] {
        let lab = Lab::new(&[("a", 40), ("b", 40), ("c", 40), ("d", 40), ("e", 40)]);
        lab.verb(&["vg", "create", "vg", "a", "b", "c", "d", "e"]);
        lab.verb(&["lv", "create", "vg/r", "--type", kind, "--size", "8M"]);
        let before = json(&lab.verb(&["lv", "show", "--json", "vg/r"]))[0]["bytes"].as_u64().unwrap();
        lab.verb(&["lv", "resize", "vg/r", "--size", "+8M"]);
        let grown = json(&lab.verb(&["lv", "show", "--json", "vg/r"]))[0]["bytes"].as_u64().unwrap();
        assert!(before < 16 << 20 && grown >= before + (8 << 20), "{kind}: {before} {grown}");
    }
}

/// What is asked for in hundredths are extents of physical volumes: `lvextend` counts copies among them, and no parities.
#[test]
fn hundredths_for_a_raid_volume_are_what_lvextend_makes_of_them() {
    const KINDS: &[&str] = &["raid1", "raid10", "raid5", "raid6"];
    let disks = ["a", "b", "c", "d", "e", "f"].map(|name| (name, 90));
    let (ours, theirs) = (Lab::new(&disks), Lab::new(&disks));
    for lab in [&ours, &theirs] {
        let create = "vg create vg a b c d e f -s 1M";
        run(&mut lab.scratch.blockwork(create.split(' ')));
        for kind in KINDS {
            lab.verb(&["lv", "create", &format!("vg/{kind}"), "--type", kind, "--extents", "6"]);
        }
    }
    for (percent, kind) in [2, 3, 5].iter().flat_map(|percent| KINDS.iter().map(move |kind| (percent, kind)))
    {
        let (name, size) = (format!("vg/{kind}"), format!("+{percent}%FREE"));
        ours.verb(&["lv", "resize", &name, "--extents", &size]);
        theirs.lvm(&[&format!("lvextend -y -l {size} {name}")]);
        assert_eq!(ours.layout("vg"), theirs.layout("vg"), "after {size} for {name}");
    }
}
