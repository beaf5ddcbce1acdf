//! Arrays that the real kernel made, read by us: every byte, whatever the order of the disks, also when disks are missing, and
//! not a byte written.

use std::fmt::Write;

use crate::machine::{Facts, KIB, MIB, Machine, expect_pattern};
use crate::support::{run, tool};

/// Of what arrays are filled with at first, and of what is written to some of them later.
const SEED: u64 = 0x6d64_0001;
const LATER: u64 = 0x6d64_0002;

/// The disks. The first members of all arrays are partitions of the first disk, and so on.
const DISKS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// An array. In its scripts `$M` is the array, `$1`, `$2`, ... are its members, `$LATER` is a seed.
struct Shape {
    name: &'static str,
    /// Its members, KiB each.
    members: &'static [u64],
    /// For `mdadm --create`; the members follow, unless it names them itself.
    create: &'static str,
    /// What happens to it when it has been filled.
    then: &'static str,
    /// Of what it holds in the end.
    seed: u64,
    /// What it can do without: the disks of all others, or one of these sets.
    spares: &'static [&'static str],
}

/// One that can do without one of two neighbours, or without every other one.
const fn shape(name: &'static str, members: &'static [u64], create: &'static str) -> Shape {
    Shape { name, members, create, then: "", seed: SEED, spares: &["a", "c", "bd"] }
}

impl Shape {
    const fn sparing(self, spares: &'static [&'static str]) -> Shape {
        Shape { spares, ..self }
    }

    /// Something happens to it, after which it holds the same as before.
    const fn then(self, then: &'static str) -> Shape {
        Shape { then, ..self }
    }

    /// Something happens to it, and all of it is written anew.
    const fn then_rewritten(self, then: &'static str) -> Shape {
        Shape { then, seed: LATER, ..self }
    }

    fn can_do_without(&self, lost: &str) -> bool {
        lost.is_empty() || self.spares.contains(&lost)
    }
}

const TWO: &[u64] = &[6144; 2];
const THREE: &[u64] = &[6144, 6500, 6200];
const FOUR: &[u64] = &[6144; 4];
const FIVE: &[u64] = &[6144, 6144, 6400, 6144, 7000];
/// Three zones of a RAID0, of which the second has two members.
const ZONES: &[u64] = &[4500, 6500, 10000];
const FAIL_2: &str = "md_fail $M $2; whole write $M $LATER";

const SHAPES: &[Shape] = &[
    shape("linear", ZONES, "--level=linear").sparing(&[]),
    shape("linear-rounded-1.0", &[4501, 6503, 3000], "--level=linear --rounding=64 --metadata=1.0").sparing(&[]),
    shape("linear-90", THREE, "--level=linear --metadata=0.90").sparing(&[]),
    shape("r0-2", TWO, "--level=0 --chunk=64").sparing(&[]),
    shape("r0-3-chunk-20K", THREE, "--level=0 --chunk=20").sparing(&[]),
    shape("r0-zones-original", ZONES, "--level=0 --chunk=16 --layout=original").sparing(&[]),
    shape("r0-zones-alternate", ZONES, "--level=0 --chunk=512 --layout=alternate").sparing(&[]),
    shape("r0-5-zones-1.0", &[3000, 8000, 4500, 8000, 6000], "--level=0 --chunk=4 --metadata=1.0 --layout=alternate").sparing(&[]),
    // What Linux makes of sizes where a chunk is no power of two.
    shape("r0-zones-chunk-12K", &[5001, 7778, 3333, 9001, 7777], "--level=0 --chunk=12 --layout=original").sparing(&[]),
    shape("r1-2", TWO, "--level=1"),
    shape("r1-2-1.0", TWO, "--level=1 --metadata=1.0"),
    shape("r1-3-1.1", THREE, "--level=1 --metadata=1.1"),
    shape("r1-2-90", TWO, "--level=1 --metadata=0.90"),
    shape("r1-3-bitmap", THREE, "--level=1 --bitmap=internal --bitmap-chunk=64K"),
    shape("r1-2-1.0-bitmap", TWO, "--level=1 --metadata=1.0 --bitmap=internal"),
    shape("r1-write-mostly", THREE, "--level=1 --bitmap=internal --write-behind=256 $1 --write-mostly $2 $3"),
    shape("r1-spare", THREE, "--level=1 --raid-devices=2 --spare-devices=1"),
    shape("r1-spare-used", THREE, "--level=1 --raid-devices=2 --spare-devices=1")
        .then_rewritten("mdadm -q $M --fail $1; md_wait $M; whole write $M $LATER"),
    shape("r1-stale", TWO, "--level=1").sparing(&["c", "bd"]).then_rewritten(FAIL_2),
    shape("r1-stale-bitmap", THREE, "--level=1 --bitmap=internal").then_rewritten(FAIL_2),
    shape("r1-stale-90", THREE, "--level=1 --metadata=0.90").then_rewritten(FAIL_2),
    shape("r1-grown", TWO, "--level=1 --size=4M").then_rewritten("mdadm -q --grow $M --size=max; whole write $M $LATER"),
    shape("r1-bad-blocks", TWO, "--level=1").sparing(&["a", "c"]).then(
        "echo 4096 16 >$(md_sysfs $M)/rd0/bad_blocks
         grep -q '^4096 16' $(md_sysfs $M)/rd0/bad_blocks
         # The list goes to the disk with the next superblock, which an array that is at rest by then does not write when it is stopped.
         dd if=$M of=$M bs=4096 count=1 iflag=direct oflag=direct conv=notrunc status=none
         finish
         dd if=/dev/urandom of=$1 seek=4096 count=16 conv=notrunc,fsync status=none",
    ),
    shape("r10-n2-3", THREE, "--level=10 --layout=n2 --chunk=64"),
    shape("r10-n2-4-1.0", FOUR, "--level=10 --layout=n2 --chunk=4 --metadata=1.0 --bitmap=internal"),
    shape("r10-n2-5", FIVE, "--level=10 --layout=n2 --chunk=128"),
    shape("r10-n3-4", FOUR, "--level=10 --layout=n3 --chunk=8"),
    shape("r10-n3-5", FIVE, "--level=10 --layout=n3 --chunk=512"),
    shape("r10-n4-4", FOUR, "--level=10 --layout=n4 --chunk=64"),
    shape("r10-f2-2", TWO, "--level=10 --layout=f2 --chunk=32"),
    shape("r10-f2-3", THREE, "--level=10 --layout=f2 --chunk=64"),
    shape("r10-f2-5", FIVE, "--level=10 --layout=f2 --chunk=256 --bitmap=internal"),
    shape("r10-f3-4", FOUR, "--level=10 --layout=f3 --chunk=64"),
    shape("r10-o2-3", THREE, "--level=10 --layout=o2 --chunk=16"),
    shape("r10-o2-4", FOUR, "--level=10 --layout=o2 --chunk=64"),
    shape("r10-o3-5", FIVE, "--level=10 --layout=o3 --chunk=64"),
    shape("r10-n2-4-90", FOUR, "--level=10 --layout=n2 --chunk=64 --metadata=0.90"),
    shape("r10-n2-stale", FOUR, "--level=10 --layout=n2 --chunk=64 --bitmap=internal").sparing(&["c", "bd"]).then_rewritten(FAIL_2),
    shape("r10-f2-stale", FOUR, "--level=10 --layout=f2 --chunk=64").sparing(&["bd"]).then_rewritten(FAIL_2),
    shape("r10-o2-born-degraded", THREE, "--level=10 --layout=o2 --raid-devices=4 $1 missing $2 $3").sparing(&["c"]),
    shape("r10-recovering", FOUR, "--level=10 --layout=n2 --chunk=64").sparing(&["c", "bd"]).then_rewritten(
        "md_fail $M $2; whole write $M $LATER; mdadm -q --zero-superblock $2
         dd if=/dev/urandom of=$2 bs=1M count=6 conv=notrunc,fsync status=none
         echo 500 | tee /proc/sys/dev/raid/speed_limit_min >/proc/sys/dev/raid/speed_limit_max
         mdadm -q $M --add $2
         recovers() { [ \"$(md_reads $M sync_completed)\" != none ] && [ \"$(md_reads $M sync_completed | cut -d' ' -f1)\" -gt 2000 ]; }
         wait_for recovers
         echo frozen >$(md_sysfs $M)/sync_action
         fact $N size $(size_of $M)
         mdadm --stop $M >&2",
    ),
];

/// Makes all arrays, fills them, and has happen to them what does.
fn make() -> String {
    let mut script = String::from("finish() { fact $N size $(size_of $M); md_stop $M; }\n");
    for (number, shape) in SHAPES.iter().enumerate() {
        let Shape { name, create, then, members, .. } = shape;
        let partition = number + 1;
        let devices: Vec<String> =
            DISKS.iter().take(members.len()).map(|disk| format!("$(part /d/{disk} {partition})")).collect();
        let count = if create.contains("--raid-devices") {
            String::new()
        } else {
            format!("--raid-devices={}", members.len())
        };
        let named = if create.contains('$') { "" } else { "$@" };
        let clean = if ["--level=0", "--level=linear"].iter().any(|level| create.contains(level)) {
            ""
        } else {
            "--assume-clean"
        };
        writeln!(
            script,
            "echo '== {name}' after $SECONDS s >&2
             N={name} M=/dev/md{number} LATER={LATER}; set -- {}
             md_create $M $N {count} {clean} {create} {named}
             whole write $M {SEED}
             {then}
             [ ! -d $(md_sysfs $M) ] || finish",
            devices.join(" ")
        )
        .expect("text");
    }
    script
}

/// A partition for each member on each disk.
fn partition(machine: &Machine, nth: usize) {
    let mut table = String::from("label: gpt\n");
    for shape in SHAPES {
        let kib = shape.members.get(nth).copied().unwrap_or(8);
        writeln!(table, "size={kib}KiB").expect("text");
    }
    let file = machine.scratch.write("table", table);
    run(tool("sh").args(["-c", &format!("exec sfdisk --quiet {} <{file}", machine.scratch.at(DISKS[nth]))]));
}

/// What an array is called here: a superblock of version 0.90 has no name.
fn volume(number: usize, shape: &Shape) -> String {
    if shape.create.contains("0.90") { format!("md/{number}") } else { format!("md/{}", shape.name) }
}

#[test]
fn arrays_of_every_shape_are_read_whole_and_without_some_disks_and_nothing_is_written() {
    let mut machine = Machine::new();
    for (nth, name) in DISKS.iter().enumerate() {
        let kib: u64 = SHAPES.iter().map(|shape| shape.members.get(nth).copied().unwrap_or(8) + KIB).sum();
        machine.disk(name, kib * KIB + 4 * MIB);
        partition(&machine, nth);
    }
    let made = machine.run(&make());
    let facts = Facts(&made.stdout);
    let before = machine.prints();
    for lost in ["", "a", "c", "bd"] {
        let given: Vec<&str> = DISKS.into_iter().filter(|disk| !lost.contains(disk)).rev().collect();
        let served = machine.serve(&given, &["--read-only"]);
        for (number, shape) in SHAPES.iter().enumerate().filter(|(_, shape)| shape.can_do_without(lost)) {
            let copy = machine.copy_out(&volume(number, shape));
            let length = expect_pattern(&format!("{} without {lost:?}", shape.name), copy, shape.seed);
            assert_eq!(length, facts.number(shape.name, "size"), "{}", shape.name);
        }
        let said = served.stop();
        let tells = said.contains("md/r1-2: it is degraded: member 0 of 2 is missing");
        assert_eq!(tells, lost == "a", "without {lost:?}:\n{said}");
    }
    machine.expect_untouched(&before);
}
