//! Groups and volumes that our verbs made and changed, taken into use by the real kernel and LVM: activated, written, resynced,
//! changed there and again by us.

use std::fmt::Write;
use std::fs::OpenOptions;

use crate::machine::{Facts, MIB, Machine, expect_pattern, scribble};
use crate::support::nbd::fio;
use crate::support::{FuseDisk, run, run_refused, until};
use blockwork_kernel::pattern;

/// Volumes of the group `vg`, by our arguments, and whether they have mirrors.
const VOLUMES: &[(&str, &[&str], bool)] = &[
    ("lin", &["--extents", "9"], false),
    ("str", &["--type", "striped", "--stripes", "3", "--stripesize", "16K", "--extents", "12"], false),
    ("r1", &["--type", "raid1", "--size", "8M"], true),
    ("r1x3", &["--type", "raid1", "--mirrors", "2", "--extents", "6", "--nosync"], true),
    ("r10", &["--type", "raid10", "--stripesize", "16K", "--regionsize", "64K", "--extents", "16"], true),
];

const DISKS: &[&str] = &["a", "b", "c", "d"];

/// One of our verbs, on all disks but `without`; what it printed.
pub fn verb(machine: &Machine, args: &[&str], disks: &[&str]) -> String {
    let all = [args, &["--disk"], disks].concat();
    machine.note("verb", &all.join(" "));
    run(&mut machine.scratch.blockwork(all))
}

fn machine() -> Machine {
    let mut machine = Machine::new();
    for disk in DISKS {
        machine.disk(disk, 40 * MIB);
    }
    machine
}

pub const FUNCTIONS: &str = "
in_sync() { [ $(lvs --noheadings -o sync_percent $1) = 100.00 ]; }
idle() { in_sync $1 && [ $(lvs --noheadings -o raid_sync_action $1) = idle ]; }
mirrors() {
    wait_for idle vg/$1
    lvchange --syncaction check vg/$1 >&2
    wait_for idle vg/$1
    fact $1 differs $(lvs --noheadings -o raid_mismatch_count vg/$1)
    fact $1 health \"$(lvs --noheadings -o lv_health_status vg/$1)\"
}
sound() { local said; said=$(vgck vg 2>&1) && [ -z \"$said\" ] && pvck /d/a /d/b /d/c /d/d >&2; }
";

#[test]
fn what_we_make_the_kernel_activates_resyncs_writes_and_we_read_and_lvm_and_we_change_it_in_turns() {
    let machine = machine();
    verb(&machine, &["vg", "create", "vg", "a", "b", "c", "--physical-extent-size", "512K"], &["a"]);
    verb(&machine, &["vg", "extend", "vg", "d"], &["a", "b", "c"]);
    for (name, args, _) in VOLUMES {
        let volume = format!("vg/{name}");
        verb(&machine, &[&["lv", "create", &volume], *args].concat(), DISKS);
    }

    let mut script = format!("{FUNCTIONS}\nsound\ndmesg -C\nvgchange -ay vg >&2\n");
    for (name, _, is_mirrored) in VOLUMES {
        writeln!(script, "fact {name} size $(blockdev --getsize64 /dev/vg/{name})").expect("text");
        writeln!(script, "fact {name} start $(head -c 4096 /dev/vg/{name} | tr -d '\\0' | wc -c)")
            .expect("text");
        if *is_mirrored {
            writeln!(script, "fact {name} resyncs $(dmesg | grep -c 'resync of RAID' || true)")
                .expect("text");
            writeln!(script, "wait_for idle vg/{name}").expect("text");
        }
        writeln!(script, "whole write /dev/vg/{name} 7").expect("text");
        if *is_mirrored && *name != "r1x3" {
            writeln!(script, "mirrors {name}").expect("text");
        }
    }
    script.push_str(
        "fact all complaints \"$(dmesg | grep -ci 'bitmap.*fail\\|mismatch\\|unable\\|invalid' || true)\"
         mkfs.ext4 -q /dev/vg/lin >&2
         lvcreate -y -l 4 -n theirs vg >&2
         whole write /dev/vg/theirs 9
         lvextend -y -l +3 vg/str >&2
         lvcreate -y -s -c 4k -l 3 -n snap vg/theirs >&2
         lvchange --addtag kernel vg/r1 >&2
         sound
         vgchange -an vg >&2\n",
    );
    let output = machine.run(&script);
    let facts = Facts(&output.stdout);
    for (name, size) in [("lin", 9), ("str", 12), ("r1", 16), ("r1x3", 6), ("r10", 16)] {
        assert_eq!(facts.number(name, "size"), size * 512 * 1024, "{name}");
        assert_eq!(facts.get(name, "start"), "0", "{name}: its first 4 KiB are zeros");
    }
    for name in ["r1", "r10"] {
        assert_eq!([facts.get(name, "differs"), facts.get(name, "health")], ["0", ""], "{name}");
    }
    assert_eq!(facts.get("all", "complaints"), "0");

    // Ours again, on what LVM has changed: its snapshot and its tags stay.
    let said = verb(&machine, &["lv", "show", "vg"], DISKS);
    for expected in ["snapshot", "theirs", "kernel"] {
        assert!(said.contains(expected), "{said}");
    }
    verb(&machine, &["lv", "resize", "vg/lin", "--extents", "+5"], DISKS);
    verb(&machine, &["lv", "rename", "vg/r1", "mirror"], DISKS);
    verb(&machine, &["lv", "remove", "vg/r1x3"], DISKS);
    verb(&machine, &["lv", "create", "vg/late", "--size", "3M", "--addtag", "ours"], DISKS);
    verb(&machine, &["vg", "tag", "vg", "--addtag", "both"], DISKS);
    let origin = [&["lv", "remove", "vg/theirs", "--disk"], DISKS].concat();
    let refused = run_refused(&mut machine.scratch.blockwork(origin));
    assert!(refused.contains("origin of these snapshots") && refused.contains("snap"), "{refused}");

    let served = machine.serve(DISKS, &["vg/mirror", "vg/r10"]);
    for name in ["mirror", "r10"] {
        let volume = format!("vg/{name}");
        expect_pattern(name, machine.copy_out(&volume), 7);
    }
    served.stop();

    let output = machine.run(&format!(
        "{FUNCTIONS}
         sound
         vgchange -ay vg >&2
         whole verify /dev/vg/theirs 9
         whole verify /dev/vg/snap 9
         whole verify /dev/vg/mirror 7
         whole verify /dev/vg/r10 7
         e2fsck -fn /dev/vg/lin >&2
         resize2fs /dev/vg/lin >&2
         fact vg tags $(vgs --noheadings -o vg_tags vg)
         fact late tags $(lvs --noheadings -o lv_tags vg/late)
         fact mirror tags $(lvs --noheadings -o lv_tags vg/mirror)
         fact vg names $(lvs --noheadings -o lv_name --sort lv_name vg | tr -s ' \\n' ',')
         lvremove -y vg/snap >&2
         lvextend -y -l +2 vg/late >&2
         mirrors mirror
         sound"
    ));
    let facts = Facts(&output.stdout);
    assert_eq!(facts.get("vg", "tags"), "both");
    assert_eq!([facts.get("late", "tags"), facts.get("mirror", "tags")], ["ours", "kernel"]);
    assert_eq!(facts.get("vg", "names"), ",late,lin,mirror,r10,snap,str,theirs,");
    assert_eq!(facts.get("mirror", "differs"), "0");
}

#[test]
fn a_new_mirror_is_resynced_by_the_kernel_and_one_made_with_nosync_is_not() {
    let machine = machine();
    verb(&machine, &["vg", "create", "vg", "a", "b", "c", "d"], &["a"]);
    verb(&machine, &["lv", "create", "vg/due", "--type", "raid1", "--size", "12M"], DISKS);
    verb(&machine, &["lv", "create", "vg/not", "--type", "raid1", "--size", "8M", "--nosync"], DISKS);
    let output = machine.run(&format!(
        "{FUNCTIONS}
         for name in due not; do
             dmesg -C
             lvchange -ay vg/$name >&2
             wait_for idle vg/$name
             fact $name resyncs $(dmesg | grep -c 'resync of RAID' || true)
             fact $name copied $(sectors_written /dev/mapper/vg-${{name}}_rimage_1)
             fact $name attr $(lvs --noheadings -o lv_attr vg/$name)
         done"
    ));
    let facts = Facts(&output.stdout);
    assert_eq!([facts.get("due", "resyncs"), facts.get("not", "resyncs")], ["1", "0"]);
    assert!(facts.number("due", "copied") >= 12 * 2048, "all of it: nothing is known of its legs");
    assert!(facts.number("not", "copied") < 2048);
    assert!(facts.get("due", "attr").starts_with('r') && facts.get("not", "attr").starts_with('R'));
}

#[test]
fn a_new_mirror_that_we_serve_first_is_whole_to_the_kernel() {
    let machine = machine();
    verb(&machine, &["vg", "create", "vg", "a", "b", "c", "d"], &["a"]);
    let shapes = [("r1", "raid1"), ("r10", "raid10")];
    for (name, kind) in shapes {
        verb(&machine, &["lv", "create", &format!("vg/{name}"), "--type", kind, "--size", "16M"], DISKS);
    }
    let served = machine.serve(DISKS, &["vg/r1", "vg/r10"]);
    let mut written = Vec::new();
    for (seed, (name, _)) in (1..).zip(shapes) {
        let volume = format!("vg/{name}");
        scribble(&machine, &volume, seed);
        written.push(machine.sha256(&volume));
    }
    served.stop();
    let output = machine.run(&format!(
        "{FUNCTIONS}
         sound
         for name in r1 r10; do
             lvchange -ay vg/$name >&2
             fact $name sha256 $(sha256 /dev/vg/$name)
             mirrors $name
             fact $name after $(sha256 /dev/vg/$name)
         done"
    ));
    let facts = Facts(&output.stdout);
    for ((name, _), sha256) in shapes.iter().zip(&written) {
        let found = ["sha256", "after", "differs", "health"].map(|key| facts.get(name, key));
        assert_eq!(found, [sha256, sha256, "0", ""], "{name}");
    }
}

/// RAID volumes of 4 MiB that become 6 MiB: by our verb (k, s), by `lvextend` of an idle one (e), of one in use (a); the kernel
/// activates k first, and all others are served first.
const GROWING: &[(&str, &str)] = &[
    ("k1", "raid1"),
    ("k10", "raid10"),
    ("k5", "raid5"),
    ("s1", "raid1"),
    ("s10", "raid10"),
    ("s5", "raid5"),
    ("e1", "raid1"),
    ("e10", "raid10"),
    ("e5", "raid5"),
    ("a1", "raid1"),
    ("a10", "raid10"),
    ("a5", "raid5"),
];

#[test]
fn raid_volumes_that_we_or_lvm_made_larger_are_whole_to_both() {
    let mut machine = Machine::new();
    for (seed, disk) in (100..).zip(DISKS) {
        // What was on the disks before differs from leg to leg.
        machine.disk(disk, 64 * MIB);
        let file = OpenOptions::new().write(true).open(machine.scratch.path(disk)).expect("a disk");
        pattern::write(&file, 0, 64 * MIB, seed).expect("it has room");
    }
    verb(&machine, &["vg", "create", "vg", "a", "b", "c", "d", "-s", "512K"], &["a"]);
    for (name, kind) in GROWING.iter().filter(|(_, kind)| *kind != "raid5") {
        verb(&machine, &["lv", "create", &format!("vg/{name}"), "--type", kind, "--size", "4M"], DISKS);
    }
    let names: Vec<&str> = GROWING.iter().map(|(name, _)| *name).collect();
    machine.run(&format!(
        "{FUNCTIONS}
         lvcreate -y --type raid0 -i 2 -I 64k -l 8 -n r0 vg >&2
         for name in k5 s5 e5 a5; do lvcreate -y --type raid5 -i 2 -I 16k -R 64k -l 8 -n $name vg >&2; done
         vgchange -ay vg >&2
         whole write /dev/vg/r0 7
         for name in {all}; do wait_for idle vg/$name; whole write /dev/vg/$name 7; done
         for name in a1 a10 a5; do lvextend -y -l +4 vg/$name >&2; wait_for idle vg/$name; done
         vgchange -an vg >&2
         for name in e1 e10 e5; do lvextend -y -l +4 vg/$name >&2; done
         sound",
        all = names.join(" ")
    ));

    for name in ["k1", "k10", "k5", "s1", "s10", "s5", "r0"] {
        verb(&machine, &["lv", "resize", &format!("vg/{name}"), "--size", "+2M"], DISKS);
    }
    let (first, served_first) = names.split_at(3);
    let volumes: Vec<String> = served_first.iter().map(|name| format!("vg/{name}")).collect();
    let served = machine.serve(DISKS, &volumes.iter().map(String::as_str).collect::<Vec<_>>());
    let mut written = Vec::new();
    for (seed, (name, volume)) in (1..).zip(served_first.iter().zip(&volumes)) {
        let copy = machine.copy_out(volume);
        let file = OpenOptions::new().write(true).open(&copy).expect("it was copied");
        assert_eq!(file.metadata().expect("a file").len(), 6 * MIB, "{name}");
        file.set_len(4 * MIB).expect("a file");
        expect_pattern(name, &copy, 7);
        scribble(&machine, volume, seed);
        written.push(machine.sha256(volume));
    }
    served.stop();

    let output = machine.run(&format!(
        "{FUNCTIONS}
         sound
         for name in {} r0; do
             dmesg -C
             lvchange -ay vg/$name >&2
             pattern verify /dev/vg/$name 0 4194304 7
             fact $name size $(blockdev --getsize64 /dev/vg/$name)
             fact $name resyncs $(dmesg | grep -c 'resync of RAID' || true)
         done
         for name in {}; do mirrors $name; pattern verify /dev/vg/$name 0 4194304 7; done
         for name in {}; do
             lvchange -ay vg/$name >&2
             fact $name sha256 $(sha256 /dev/vg/$name)
             mirrors $name
             fact $name after $(sha256 /dev/vg/$name)
         done",
        first.join(" "),
        first.join(" "),
        served_first.join(" ")
    ));
    let facts = Facts(&output.stdout);
    for name in ["k1", "k10", "k5", "r0"] {
        assert_eq!(facts.number(name, "size"), 6 * MIB, "{name}");
    }
    for name in first {
        let found = ["resyncs", "differs", "health"].map(|key| facts.get(name, key));
        assert_eq!(found, ["1", "0", ""], "{name}");
    }
    for (name, sha256) in served_first.iter().zip(&written) {
        let found = ["sha256", "after", "differs", "health"].map(|key| facts.get(name, key));
        assert_eq!(found, [sha256, sha256, "0", ""], "{name}");
    }
}

#[test]
fn the_kernel_keeps_snapshots_that_we_made_and_we_go_on_with_them() {
    let machine = machine();
    verb(&machine, &["vg", "create", "vg", "a", "b", "c", "d", "-s", "256K"], &["a"]);
    verb(&machine, &["lv", "create", "vg/origin", "--size", "8M"], DISKS);
    // What LVM gives a snapshot that asks for too much, and for all that its origin needs.
    let made = machine.run(
        "size() { lvs --noheadings --units b --nosuffix -o lv_size vg/$1; }
         lvchange -ay vg/origin >&2
         whole write /dev/vg/origin 7
         for chunk in 4 16 512; do
             lvcreate -y -s -c ${chunk}k -l 100 -n much vg/origin >&2
             fact $chunk much $(size much)
             lvremove -y vg/much >&2
             lvcreate -y -s -c ${chunk}k -l 30%ORIGIN -n some vg/origin >&2
             fact $chunk some $(size some)
             lvremove -y vg/some >&2
         done",
    );
    let sizes = Facts(&made.stdout);
    for chunk in ["4", "16", "512"] {
        for (kind, extents) in [("much", "100"), ("some", "30%ORIGIN")] {
            let chunksize = format!("{chunk}K");
            let args =
                ["lv", "snapshot", "vg/origin", "--extents", extents, "-c", &chunksize, "--name", kind];
            let said = verb(&machine, &[&args[..], &["--json"]].concat(), DISKS);
            let made: serde_json::Value = serde_json::from_str(&said).expect("JSON");
            assert_eq!(made["volume"]["bytes"], sizes.number(chunk, kind), "{kind}, chunks of {chunk}K");
            verb(&machine, &["lv", "remove", &format!("vg/{kind}")], DISKS);
        }
    }
    verb(&machine, &["lv", "snapshot", "vg/origin", "--size", "3M", "--name", "fine"], DISKS);
    let coarse = ["lv", "snapshot", "vg/origin", "--extents", "100%ORIGIN", "--name", "coarse", "-c", "64K"];
    verb(&machine, &coarse, DISKS);

    let kept = machine.run(&format!(
        "{FUNCTIONS}
         sound
         lvchange -ay vg/origin >&2
         for one in fine coarse; do whole verify /dev/vg/$one 7; done
         pattern write /dev/vg/origin 1048576 1048576 8
         pattern write /dev/vg/coarse 4194304 65536 9
         whole verify /dev/vg/fine 7
         for one in origin fine coarse; do
             fact $one sha256 $(sha256 /dev/vg/$one)
             fact $one origin \"$(lvs --noheadings -o origin vg/$one)\"
             fact $one percent \"$(lvs --noheadings -o data_percent vg/$one)\"
         done"
    ));
    let facts = Facts(&kept.stdout);
    let text = verb(&machine, &["lv", "show", "vg", "--json"], DISKS);
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for name in ["fine", "coarse"] {
        assert_eq!(facts.get(name, "origin"), "origin", "{name}");
        let lv =
            shown.as_array().expect("volumes").iter().find(|lv| lv["name"] == name).expect("it is there");
        let percent: f64 = facts.get(name, "percent").parse().expect("a number");
        let ours = lv["data_percent"].as_f64().expect("a number");
        assert!(percent > 5.0 && (ours - percent).abs() < 0.011, "{name}: {ours} and {percent}");
    }

    let served = machine.serve(DISKS, &["vg/origin", "vg/fine", "vg/coarse"]);
    for name in ["origin", "fine", "coarse"] {
        assert_eq!(machine.sha256(&format!("vg/{name}")), facts.get(name, "sha256"), "{name}");
    }
    let job = ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=512k"];
    run(&mut fio(&machine.scratch, &machine.scratch.uri("vg/origin"), &job));
    let origin = machine.sha256("vg/origin");
    served.stop();
    verb(&machine, &["lv", "resize", "vg/fine", "--extents", "+1"], DISKS);

    let judged = machine.run(&format!(
        "{FUNCTIONS}
         sound
         lvchange -ay vg/origin >&2
         whole verify /dev/vg/fine 7
         for one in origin coarse; do fact $one sha256 $(sha256 /dev/vg/$one); done
         lvremove -y vg/fine >&2
         sound"
    ));
    let last = Facts(&judged.stdout);
    assert_eq!(last.get("origin", "sha256"), origin);
    assert_eq!(last.get("coarse", "sha256"), facts.get("coarse", "sha256"));
}

/// What is merged into nothing but zeros is lost when LVM activates the group next, so the text must never say so.
#[test]
fn a_snapshot_of_nothing_but_zeros_stays_what_it_is_and_leaves_nothing_behind() {
    let machine = machine();
    machine.run(
        "vgcreate -q -s 256k vg /d/a /d/b /d/c /d/d >&2
         lvcreate -y --type snapshot -V 8m -L 12m -n sparse vg >&2
         whole write /dev/vg/sparse 7
         vgchange -an vg >&2",
    );
    let said = run_refused(
        &mut machine.scratch.blockwork([&["lv", "merge", "vg/sparse", "--disk"], DISKS].concat()),
    );
    assert!(said.contains("nothing behind it but zeros"), "{said}");
    verb(&machine, &["lv", "rename", "vg/sparse", "vg/other"], DISKS);
    let judged = machine.run(&format!(
        "{FUNCTIONS}
         sound
         vgchange -ay vg >&2
         whole verify /dev/vg/other 7
         fact vg names \"$(lvs -a --noheadings -o lv_name vg | tr -d ' ' | sort | xargs)\"
         vgchange -an vg >&2"
    ));
    assert_eq!(Facts(&judged.stdout).get("vg", "names"), "[other_vorigin] other");
    verb(&machine, &["lv", "remove", "vg/other"], DISKS);
    let judged =
        machine.run(&format!("{FUNCTIONS}\nsound\nfact vg names \"$(lvs -a --noheadings -o lv_name vg)\""));
    assert_eq!(Facts(&judged.stdout).get("vg", "names"), "");
}

/// How much of `vg/fine` is left to be merged into its origin, percent of its store, by the server; none: that is over.
fn left_to_merge(machine: &Machine) -> Option<f64> {
    let text = run(&mut machine.scratch.blockwork(["lv", "show", "--json", "vg/origin"]));
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    (shown[0]["merging"] == true).then(|| shown[0]["data_percent"].as_f64().expect("how full it is"))
}

#[test]
fn a_merge_goes_from_our_server_to_the_kernel_and_another_from_the_kernel_to_our_server() {
    let machine = machine();
    verb(&machine, &["vg", "create", "vg", "a", "b", "c", "d", "-s", "256K"], &["a"]);
    verb(&machine, &["lv", "create", "vg/origin", "--size", "8M"], DISKS);
    verb(&machine, &["lv", "snapshot", "vg/origin", "--extents", "100%ORIGIN", "--name", "fine"], DISKS);
    let coarse = ["lv", "snapshot", "vg/origin", "--extents", "100%ORIGIN", "--name", "coarse", "-c", "64K"];
    verb(&machine, &coarse, DISKS);
    let served = machine.serve(DISKS, &[]);
    for (seed, name, size) in [(1, "origin", "4M"), (2, "fine", "1M"), (3, "coarse", "1M")] {
        let (seed, size) = (format!("--randseed={seed}"), format!("--io_size={size}"));
        let job = ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=8M", &size, &seed];
        run(&mut fio(&machine.scratch, &machine.scratch.uri(&format!("vg/{name}")), &job));
    }
    let [fine, coarse] = ["vg/fine", "vg/coarse"].map(|name| machine.sha256(name));
    served.stop();

    // So slow that there is time to kill the server in the middle.
    let slow = FuseDisk::slow(&machine.scratch, "a", 40, 40);
    let served = machine.serve(&[&*slow.file, "b", "c", "d"], &[]);
    let said = run(&mut machine.scratch.blockwork(["lv", "merge", "vg/fine"]));
    assert!(said.contains("is being merged into vg/origin"), "{said}");
    let all = left_to_merge(&machine).expect("it has not ended yet");
    until("some of it is merged", || left_to_merge(&machine).is_none_or(|left| left < all));
    served.kill();
    drop(slow);
    let went_on = machine.run(&format!(
        "{FUNCTIONS}
         fact text merging \"$(lvs -a --noheadings -o lv_merging vg/fine | tr -d ' ')\"
         lvchange -ay vg/origin >&2
         fact merge sha256 $(sha256 /dev/vg/origin)
         is_gone() {{ ! lvs vg/$1 2>/dev/null; }}
         wait_for is_gone fine
         fact origin sha256 $(sha256 /dev/vg/origin)
         fact coarse sha256 $(sha256 /dev/vg/coarse)
         sound
         exec 8</dev/vg/origin
         lvconvert -y --merge vg/coarse >/tmp/said 2>&1
         fact text delayed $(grep -c 'Delaying merge\\|will occur on next activation' /tmp/said)
         fact text still $(sha256 /dev/vg/origin)
         exec 8<&-"
    ));
    let facts = Facts(&went_on.stdout);
    assert_eq!(facts.get("text", "merging"), "merging", "our server had merged all before it was killed");
    for (name, key, expected) in [
        ("merge", "sha256", &fine),
        ("origin", "sha256", &fine),
        ("coarse", "sha256", &coarse),
        ("text", "still", &fine),
    ] {
        assert_eq!(facts.get(name, key), expected, "{name} {key}, by the kernel");
    }
    assert!(facts.number("text", "delayed") > 0);

    // What LVM has put off, our server begins when it begins to serve, and ends in the text as well.
    let served = machine.serve(DISKS, &[]);
    assert_eq!(machine.sha256("vg/origin"), coarse);
    until("it is merged", || left_to_merge(&machine).is_none());
    assert_eq!(machine.sha256("vg/origin"), coarse);
    served.stop();
    let judged = machine.run(&format!(
        "{FUNCTIONS}
         sound
         lvchange -ay vg/origin >&2
         fact origin sha256 $(sha256 /dev/vg/origin)
         fact origin table \"$(dmsetup table vg-origin | cut -d ' ' -f 3 | sort -u | tr '\\n' ' ')\"
         fact all volumes $(lvs -a --noheadings -o lv_name vg)"
    ));
    let facts = Facts(&judged.stdout);
    let found = [("origin", "sha256"), ("origin", "table"), ("all", "volumes")];
    assert_eq!(found.map(|(name, key)| facts.get(name, key)), [&*coarse, "linear", "origin"]);
}
