//! Snapshots of the real kernel read and written by us, and ours judged by it: origins and snapshots with chunks of several
//! sizes, whole and by hash, while both are written at once by different clients.

use std::process::Stdio;

use crate::machine::{Facts, MIB, Machine};
use crate::support::nbd::fio;
use crate::support::run;
use crate::task::on_worker;
use blockwork_layer::snapshot::Step;
use blockwork_volume::{Assembly, Plan};

/// Three snapshots of one origin, made at different times, each half as full as the one before; and what they hold by the kernel.
const MAKE: &str = "
vgcreate -s 256k vg /d/? >&2
lvcreate -y -n origin -l 64 vg >&2
whole write /dev/vg/origin 1
snap() { lvcreate -y -s -n $1 -c $2 -l 80 vg/origin >&2; }
snap small 4k
pattern write /dev/vg/origin 1048576 3145728 2
pattern write /dev/vg/small 8388608 1048576 3
snap middle 16k
pattern write /dev/vg/origin 2621440 2097152 4
pattern write /dev/vg/middle 20480 307200 5
snap large 512k
pattern write /dev/vg/origin 12582912 12288 6
pattern write /dev/vg/large 3145728 4096 7
";

const TELL: &str = "
lvchange -ay vg/origin >&2
for one in origin small middle large; do
    fact $one sha256 $(sha256 /dev/vg/$one)
done
for one in small middle large; do
    fact $one status \"$(dmsetup status vg-$one | cut -d ' ' -f 4-)\"
    fact $one attr \"$(lvs --noheadings -o lv_attr vg/$one | tr -d ' ')\"
done
";

const ALL: [&str; 4] = ["origin", "small", "middle", "large"];

fn volume(name: &str) -> String {
    format!("vg/{name}")
}

/// What `scan` says of a snapshot's store.
fn status(machine: &Machine, name: &str) -> String {
    let mut scan = machine.scratch.blockwork(["scan", "--json"]);
    scan.args(machine.disks());
    let report: serde_json::Value = serde_json::from_str(&run(&mut scan)).expect("JSON");
    let lvs = report["groups"][0]["lvs"].as_array().expect("volumes").clone();
    let lv = lvs.iter().find(|lv| lv["name"] == name).expect("it is there");
    lv["store"]["status"].as_str().unwrap_or("none").to_owned()
}

#[test]
fn an_origin_and_three_snapshots_go_to_and_fro_between_the_kernel_and_us() {
    let mut machine = Machine::new();
    for disk in ["a", "b"] {
        machine.disk(disk, 64 * MIB);
    }
    let made = machine.run(&format!("{MAKE}{TELL}"));
    let facts = Facts(&made.stdout);
    let before = machine.prints();
    let served = machine.serve(&["b", "a"], &["--read-only"]);
    for name in ALL {
        assert_eq!(machine.sha256(&volume(name)), facts.get(name, "sha256"), "{name}");
    }
    served.stop();
    for name in &ALL[1..] {
        assert_eq!(status(&machine, name), facts.get(name, "status"), "{name}");
    }
    machine.expect_untouched(&before);

    // All of them are written at once, each by a client of its own.
    let served = machine.serve(&["a", "b"], &[]);
    let clients = (1..).zip(ALL).map(|(seed, name)| {
        let seed = format!("--randseed={seed}");
        let job = ["--rw=randwrite", "--bsrange=512-64k", "--iodepth=16", "--size=4M", "--fsync=32", &seed];
        let mut fio = fio(&machine.scratch, &machine.scratch.uri(&volume(name)), &job);
        fio.stdout(Stdio::null()).spawn().expect("fio starts")
    });
    for mut client in clients.collect::<Vec<_>>() {
        assert!(client.wait().expect("fio ends").success());
    }
    let written: Vec<String> = ALL.iter().map(|name| machine.sha256(&volume(name))).collect();
    served.stop();
    let statuses: Vec<String> = ALL[1..].iter().map(|name| status(&machine, name)).collect();

    let judged = machine.run(&format!("vgck vg\n{TELL}"));
    let facts = Facts(&judged.stdout);
    for (name, sha256) in ALL.iter().zip(&written) {
        assert_eq!(facts.get(name, "sha256"), sha256, "{name}");
    }
    for (name, status) in ALL[1..].iter().zip(&statuses) {
        assert_eq!(facts.get(name, "status"), status, "{name}");
        assert!(facts.get(name, "attr").starts_with("swi-a-s"), "{name}: {}", facts.get(name, "attr"));
    }

    // The kernel goes on with what we wrote, and we with that.
    let more =
        "pattern write /dev/vg/origin 9437184 2097152 11\npattern write /dev/vg/small 1048576 204800 12\n";
    let again = machine.run(&format!("lvchange -ay vg/origin >&2\n{more}{TELL}"));
    let facts = Facts(&again.stdout);
    let served = machine.serve(&["a", "b"], &["--read-only"]);
    for name in ALL {
        assert_eq!(
            machine.sha256(&volume(name)),
            facts.get(name, "sha256"),
            "{name}, after the kernel wrote more"
        );
    }
    served.stop();
}

#[test]
fn a_snapshot_whose_store_overflows_through_us_is_invalid_for_the_kernel_and_the_origin_is_whole() {
    let mut machine = Machine::new();
    machine.disk("a", 48 * MIB);
    machine.run(
        "vgcreate -s 256k vg /d/a >&2
         lvcreate -y -n origin -l 64 vg >&2
         whole write /dev/vg/origin 1
         lvcreate -y -s -n tiny -c 8k -l 4 vg/origin >&2
         lvcreate -y -s -n roomy -c 8k -l 70 vg/origin >&2",
    );
    let served = machine.serve(&["a"], &[]);
    let kept = machine.sha256("vg/roomy");
    let job = ["--rw=write", "--bs=64k", "--iodepth=8", "--size=8M"];
    run(&mut fio(&machine.scratch, &machine.scratch.uri("vg/origin"), &job));
    let origin = machine.sha256("vg/origin");
    assert_eq!(machine.sha256("vg/roomy"), kept, "its origin was overwritten, and it has changed");
    let said = served.stop();
    assert!(said.contains("vg/tiny: its store is full"), "{said}");
    let refused = machine.scratch.refused(["--disk", machine.disks()[0], "vg/tiny"]);
    assert!(refused.contains("the snapshot is invalid"), "{refused}");

    let judged = machine.run(
        "lvchange -ay vg/origin >&2
         fact tiny status \"$(dmsetup status vg-tiny | cut -d ' ' -f 4-)\"
         for one in origin roomy; do fact $one sha256 $(sha256 /dev/vg/$one); done",
    );
    let facts = Facts(&judged.stdout);
    assert_eq!(facts.get("tiny", "status"), "Invalid");
    assert_eq!([facts.get("origin", "sha256"), facts.get("roomy", "sha256")], [&*origin, &*kept]);
}

/// An origin whose snapshots differ from it in thousands of places, each by itself, so that there are many steps to a merge.
/// Each begins with a read of a store, and how long that takes is in our hands.
const SCATTER: &str = "
on_delay b
vgcreate -s 256k vg /d/a /d/b >&2
lvcreate -y -n origin -l 64 vg /d/a >&2
whole write /dev/vg/origin 1
scatter() { fio --name=x --filename=$1 --rw=randwrite --bs=4k --randseed=$2 --size=16m --io_size=$3 --ioengine=psync >&2; }
lvcreate -y -s -n small -c 4k -l 80 vg/origin /d/b >&2
scatter /dev/vg/origin 1 6m
scatter /dev/vg/small 2 1m
lvcreate -y -s -n large -c 64k -l 80 vg/origin /d/b >&2
scatter /dev/vg/origin 3 1m
sync
";

/// Has us merge so many pieces of what is being merged into the group's origin, and no more.
fn merge_a_little(machine: &Machine, steps: usize) {
    let disks = machine.disks().iter().map(|disk| machine.scratch.at(disk)).collect();
    let mut assembly = Assembly::open(Plan { disks, ..Plan::default() }).expect("disks");
    assembly.choose(&["vg/origin".to_owned()]).expect("the origin");
    let merge = assembly.graph().groups[0].merges.values().next().expect("it is being merged").clone();
    on_worker(&assembly, |cx| async move {
        for _ in 0..steps {
            assert_eq!(
                merge.step(&cx).await.expect("no disk fails"),
                Step::More,
                "the merge is over too early"
            );
        }
    });
}

#[test]
fn a_merge_that_the_kernel_has_begun_goes_on_with_us_and_then_with_the_kernel_again() {
    let mut machine = Machine::new();
    machine.disk("a", 20 * MIB);
    machine.disk("b", 48 * MIB);
    let begun = machine.run(&format!(
        "{SCATTER}
         for one in small large; do fact $one sha256 $(sha256 /dev/vg/$one); done
         reads_take b 8
         lvconvert -y --merge -b -i 1000 vg/small >&2
         dmsetup suspend --nolockfs vg-origin
         fact merge status \"$(dmsetup status vg-origin | cut -d ' ' -f 4-)\"
         dmsetup resume vg-origin
         fact merge sha256 $(sha256 /dev/vg/origin)
         dmsetup suspend --nolockfs vg-origin
         fact merge later \"$(dmsetup status vg-origin | cut -d ' ' -f 4-)\"
         dmsetup remove vg-origin"
    ));
    let facts = Facts(&begun.stdout);
    let (small, large) = (facts.get("small", "sha256").to_owned(), facts.get("large", "sha256").to_owned());
    assert_eq!(facts.get("merge", "sha256"), small);
    let before = machine.prints();
    let expect = |what: &str| {
        let served = machine.serve(&machine.disks(), &["--read-only"]);
        assert_eq!(machine.sha256("vg/origin"), small, "the origin {what}");
        assert_eq!(machine.sha256("vg/large"), large, "another snapshot {what}");
        served.stop();
    };
    expect("as the kernel has left it");
    machine.expect_untouched(&before);
    assert_eq!(status(&machine, "small"), facts.get("merge", "later"), "not interrupted, or not understood");
    merge_a_little(&machine, 1);
    expect("after a step of ours");

    let went_on = machine.run(
        "lvchange -ay vg/origin >&2
         dmsetup suspend --nolockfs vg-origin
         fact merge status \"$(dmsetup status vg-origin | cut -d ' ' -f 4-)\"
         dmsetup resume vg-origin
         fact merge sha256 $(sha256 /dev/vg/origin)
         is_gone() { ! lvs vg/small 2>/dev/null; }
         wait_for is_gone
         fact origin sha256 $(sha256 /dev/vg/origin)
         fact large sha256 $(sha256 /dev/vg/large)",
    );
    let facts = Facts(&went_on.stdout);
    for (name, expected) in [("merge", &small), ("origin", &small), ("large", &large)] {
        assert_eq!(facts.get(name, "sha256"), expected, "{name}, by the kernel");
    }
    // LVM has seen that all was merged. The other one is merged by us alone.
    run(&mut machine.scratch.blockwork(["lv", "merge", "vg/large", "--disk", "a", "b"]));
    let judged = machine.run(
        "vgck vg
         lvchange -ay vg/origin >&2
         fact origin sha256 $(sha256 /dev/vg/origin)
         fact all volumes $(lvs --noheadings -o lv_name vg)",
    );
    let facts = Facts(&judged.stdout);
    assert_eq!(facts.get("origin", "sha256"), large);
    assert_eq!(facts.get("all", "volumes"), "origin");
}
