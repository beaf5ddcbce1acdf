//! Logical volumes that the real kernel and LVM made, written by us, and judged by them: the group's metadata, that no leg is
//! resynced, that all legs are the same, and what they hold.

use std::fmt::Write;

use crate::machine::{Facts, MIB, Machine, scribble};
use crate::support::nbd::{fio, load};
use crate::support::{run, until};

/// Volumes of the group `vg`, by the arguments of `lvcreate`.
const VOLUMES: &[(&str, &str)] = &[
    ("linear", "-l 9"),
    ("striped", "-i 3 -I 16k -l 12"),
    ("raid0", "--type raid0 -i 2 -I 64k -l 8"),
    ("raid1", "--type raid1 -m 1 -l 32"),
    ("raid1x3", "--type raid1 -m 2 -R 64k -l 24"),
    ("raid10", "--type raid10 -i 2 -m 1 -I 16k -R 256k -l 32"),
    ("raid4", "--type raid4 -i 2 -I 64k -l 16"),
    ("raid5", "--type raid5 -i 3 -I 16k -R 64k -l 24"),
    ("raid5_n", "--type raid5_n -i 4 -I 16k -l 16"),
    ("raid6", "--type raid6 -i 3 -I 32k -R 64k -l 24"),
    ("raid6_ls_6", "--type raid6_ls_6 -i 3 -I 16k -l 24"),
];

const JUDGE: &str = "
checked() { [ $(lvs --noheadings -o raid_sync_action $1) = idle ] && [ $(lvs --noheadings -o sync_percent $1) = 100.00 ]; }
lv_judge() {
    local name=$1 raid=$2 lv=vg/$1
    dmesg -C
    lvchange -ay $lv >&2
    fact $name kernel \"$(dmesg | grep -c 'resync of RAID\\|recovery of RAID\\|not clean' || true)\"
    if [ $raid = yes ]; then
        fact $name status \"$(dmsetup status vg-$name)\"
        fact $name sync $(lvs --noheadings -o sync_percent $lv)
        fact $name health \"$(lvs --noheadings -o lv_health_status $lv)\"
    fi
    fact $name sha256 $(sha256 /dev/$lv)
    if [ $raid = yes ]; then
        wait_for checked $lv
        lvchange --syncaction check $lv >&2
        wait_for checked $lv
        fact $name differs $(lvs --noheadings -o raid_mismatch_count $lv)
    fi
    lvchange -an $lv >&2
}
vgck vg
";

fn is_redundant(name: &str) -> bool {
    name.starts_with("raid") && name != "raid0"
}

#[test]
fn what_we_write_to_a_volume_is_what_the_kernel_reads_from_every_leg_without_a_resync() {
    let mut machine = Machine::new();
    for disk in ["a", "b", "c", "d", "e"] {
        machine.disk(disk, 40 * MIB);
    }
    let mut make = String::from("vgcreate -s 256k vg /d/? >&2\n");
    for (name, create) in VOLUMES {
        writeln!(make, "lvcreate -y {create} -n {name} vg >&2").expect("text");
    }
    make.push_str("in_sync() { [ $(lvs --noheadings -o sync_percent $1) = 100.00 ]; }\n");
    for (name, _) in VOLUMES {
        if is_redundant(name) {
            writeln!(make, "wait_for in_sync vg/{name}").expect("text");
        }
        writeln!(make, "whole write /dev/vg/{name} 7").expect("text");
    }
    machine.run(&make);

    let served = machine.serve(&["d", "a", "e", "c", "b"], &[]);
    let mut written = Vec::new();
    for (seed, (name, _)) in (1..).zip(VOLUMES) {
        let volume = format!("vg/{name}");
        scribble(&machine, &volume, seed);
        let job = [
            "--rw=randwrite",
            "--bsrange=512-128k",
            "--iodepth=16",
            "--size=2M",
            "--verify=crc32c",
            "--fsync=64",
        ];
        run(&mut fio(&machine.scratch, &machine.scratch.uri(&volume), &job));
        written.push(machine.sha256(&volume));
    }
    served.stop();

    let mut judge = JUDGE.to_owned();
    for (name, _) in VOLUMES {
        writeln!(judge, "lv_judge {name} {}", if is_redundant(name) { "yes" } else { "no" }).expect("text");
    }
    let judged = machine.run(&judge);
    let facts = Facts(&judged.stdout);
    for ((name, _), sha256) in VOLUMES.iter().zip(&written) {
        assert_eq!(facts.get(name, "sha256"), sha256, "{name}");
        assert_eq!(facts.get(name, "kernel"), "0", "{name}: a resync was begun");
        if is_redundant(name) {
            let of = ["sync", "health", "differs"].map(|key| facts.get(name, key));
            assert_eq!(of, ["100.00", "", "0"], "{name}: {}", facts.get(name, "status"));
        }
    }
}

/// RAID volumes that are written without one of their legs.
const DEGRADED: &[(&str, &str)] =
    &[("raid1", "--type raid1 -m 1 -R 64k -l 32"), ("raid10", "--type raid10 -i 2 -m 1 -I 16k -R 64k -l 64")];

const BRING_BACK: &str = "
bring_back() {
    name=$1
    local lv=vg/$name
    whole_again() { dmsetup status vg-$name | grep -q ' A* [0-9/]* idle '; }
    lvchange -ay $lv >&2
    fact $name sha256 $(sha256 /dev/$lv)
    wait_for whole_again
    fact $name recovered $(sectors_written /dev/mapper/vg-${name}_rimage_1)
    lvchange --syncaction check $lv >&2
    wait_for whole_again
    fact $name differs $(lvs --noheadings -o raid_mismatch_count $lv)
    fact $name health \"$(lvs --noheadings -o lv_health_status $lv)\"
    fact $name after $(sha256 /dev/$lv)
    lvchange -an $lv >&2
}
vgck vg
";

#[test]
fn a_leg_that_was_missing_gets_what_it_lacks_when_the_kernel_has_it_again() {
    let mut machine = Machine::new();
    for disk in ["a", "b", "c", "d", "e"] {
        machine.disk(disk, 24 * MIB);
    }
    let mut make = String::from("vgcreate -s 256k vg /d/? >&2\n");
    let mut judge = BRING_BACK.to_owned();
    for (name, create) in DEGRADED {
        writeln!(
            make,
            "lvcreate -y {create} -n {name} vg >&2
             in_sync() {{ [ $(lvs --noheadings -o sync_percent vg/{name}) = 100.00 ]; }}
             wait_for in_sync
             whole write /dev/vg/{name} 7"
        )
        .expect("text");
        writeln!(judge, "bring_back {name}").expect("text");
    }
    machine.run(&make);

    let served = machine.serve(&["a", "c", "d"], &["vg/raid1", "vg/raid10"]);
    let mut written = Vec::new();
    for (name, _) in DEGRADED {
        let volume = format!("vg/{name}");
        let args = ["--export", &volume, "--verify", "--rw", "randwrite", "--bs", "4k", "--range", "1m+512k"];
        load(&machine.scratch.at("socket"), &[&args[..], &["--ios", "500", "--seed", "5"]].concat());
        written.push(machine.sha256(&volume));
    }
    served.stop();

    let judged = machine.run(&judge);
    let facts = Facts(&judged.stdout);
    for ((name, _), sha256) in DEGRADED.iter().zip(&written) {
        let is = |key: &str| facts.get(name, key);
        assert_eq!(
            [is("sha256"), is("after"), is("differs"), is("health")],
            [sha256, sha256, "0", ""],
            "{name}"
        );
        let recovered = facts.number(name, "recovered");
        assert!((1..4 * 2048).contains(&recovered), "{name}: {recovered} sectors were written to the leg");
    }
}

/// RAID volumes that are resynced at 512 KiB/s of each leg.
const SLOW: &[(&str, &str)] = &[
    ("raid1", "--type raid1 -m 1 -R 64k -L 24M"),
    ("raid10", "--type raid10 -i 2 -m 1 -I 64k -R 64k -L 24M"),
    ("raid5", "--type raid5 -i 2 -I 64k -R 64k -L 48M"),
];

/// What `lv show` has of a volume that is served, or of one on disks.
fn percent_shown(machine: &Machine, name: &str, disks: &[&str]) -> f64 {
    let volume = format!("vg/{name}");
    let args = [&["lv", "show", "--json", &volume][..], disks].concat();
    let said = run(&mut machine.scratch.blockwork(args));
    let all: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    all[0]["sync_percent"].as_f64().unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn how_much_of_a_volume_is_in_sync_is_as_lvs_has_it_whoever_has_resynced_it_so_far() {
    let mut machine = Machine::new();
    for disk in ["a", "b", "c", "d"] {
        machine.disk(disk, 80 * MIB);
    }
    let on_disks = ["--disk", "a", "b", "c", "d"];
    let percent =
        |facts: &Facts<'_>, name: &str| facts.get(name, "percent").parse::<f64>().expect("a number");
    let mut make = String::from(
        "vgcreate -s 256k vg /d/? >&2
         percent() { lvs --noheadings -o sync_percent vg/$1 | tr -d ' '; }
         begun() { local p=$(percent $1); [ ${p%.*} -ge 15 ]; }\n",
    );
    for (name, create) in SLOW {
        writeln!(
            make,
            "lvcreate -y {create} --minrecoveryrate 512k --maxrecoveryrate 512k -n {name} vg >&2
             wait_for begun {name}
             fact {name} percent $(percent {name})
             lvchange -an vg/{name} >&2"
        )
        .expect("text");
    }
    let made = machine.run(&make);
    for (name, _) in SLOW {
        let (theirs, ours) = (percent(&Facts(&made.stdout), name), percent_shown(&machine, name, &on_disks));
        // It went on for a moment.
        assert!((theirs..theirs + 20.0).contains(&ours), "{name}: {ours}, and by lvs it was {theirs} before");
    }

    let slowly = ["--set", "raid:sync_speed_min=256", "--set", "raid:sync_speed_max=256"];
    let at_rest = SLOW.iter().map(|(name, _)| percent_shown(&machine, name, &on_disks)).collect::<Vec<_>>();
    let served = machine.serve(&["a", "b", "c", "d"], &slowly);
    let mut before = Vec::new();
    for ((name, _), at_rest) in SLOW.iter().zip(at_rest) {
        until("it goes on", || percent_shown(&machine, name, &[]) > at_rest + 2.0);
        before.push(percent_shown(&machine, name, &[]));
    }
    served.stop();
    let mut judge = String::new();
    for (name, _) in SLOW {
        writeln!(
            judge,
            "lvchange -ay vg/{name} >&2
             fact {name} percent $(lvs --noheadings -o sync_percent vg/{name})
             in_sync() {{ [ $(lvs --noheadings -o sync_percent vg/{name}) = 100.00 ]; }}
             lvchange --minrecoveryrate 0 --maxrecoveryrate 0 vg/{name} >&2
             wait_for in_sync
             lvchange -an vg/{name} >&2"
        )
        .expect("text");
    }
    let judged = machine.run(&judge);
    for ((name, _), before) in SLOW.iter().zip(before) {
        let theirs = percent(&Facts(&judged.stdout), name);
        // By whole regions of the bitmap.
        assert!(
            (before - 1.0..before + 30.0).contains(&theirs),
            "{name}: {theirs} by lvs, after our {before}"
        );
        assert_eq!(percent_shown(&machine, name, &on_disks), 100.0, "{name}");
    }
}
