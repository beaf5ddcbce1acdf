//! RAID4, 5 and 6 of md and of LVM that the real kernel made, in every layout: read by us with and without the members that their parity makes
//! up for, and refused where more are missing. Written they are in `parity_writes.rs`.

use std::time::Duration;

use crate::failures::faulty;
use crate::machine::{Facts, MIB, Machine, expect_pattern, regions_read};
use crate::support::fs::LeftMount;
use crate::support::{Background, run, run_refused};

const SEED: u64 = 0x7061_7201;

const DISKS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Name, members, arguments of `mdadm --create`.
const ARRAYS: &[(&str, usize, &str)] = &[
    ("four", 3, "--level=4 --chunk=16"),
    ("la", 4, "--level=5 --chunk=4 --layout=la"),
    ("ra", 4, "--level=5 --chunk=64 --layout=ra"),
    ("ls", 5, "--level=5 --chunk=16 --layout=ls --bitmap=internal --bitmap-chunk=64K"),
    ("rs", 4, "--level=5 --chunk=32 --layout=rs --metadata=1.0"),
    ("first", 3, "--level=5 --chunk=16 --layout=parity-first"),
    ("last", 4, "--level=5 --chunk=16 --layout=parity-last --metadata=1.1"),
    ("ppl", 4, "--level=5 --chunk=16 --layout=ls --consistency-policy=ppl"),
    ("6la", 4, "--level=6 --chunk=16 --layout=la"),
    ("6ra", 5, "--level=6 --chunk=16 --layout=ra"),
    ("6ls", 5, "--level=6 --chunk=4 --layout=ls"),
    ("6rs", 4, "--level=6 --chunk=16 --layout=rs"),
    ("6first", 5, "--level=6 --chunk=16 --layout=parity-first"),
    ("6last", 5, "--level=6 --chunk=16 --layout=parity-last"),
    ("6zero", 5, "--level=6 --chunk=16 --layout=ddf-zero-restart"),
    ("6restart", 5, "--level=6 --chunk=16 --layout=ddf-N-restart"),
    ("6continue", 5, "--level=6 --chunk=16 --layout=ddf-N-continue"),
    ("6la-6", 5, "--level=6 --chunk=16 --layout=left-asymmetric-6"),
    ("6ra-6", 5, "--level=6 --chunk=16 --layout=right-asymmetric-6"),
    ("6ls-6", 5, "--level=6 --chunk=16 --layout=left-symmetric-6"),
    ("6rs-6", 5, "--level=6 --chunk=16 --layout=right-symmetric-6"),
    ("6first-6", 5, "--level=6 --chunk=16 --layout=parity-first-6"),
    // With a superblock that has no name: its number is that of the device.
    ("23", 4, "--level=5 --chunk=16 --layout=ls --metadata=0.90 --bitmap=internal --bitmap-chunk=64K"),
];

/// The members of an array are the partitions of its number. It is clean from the beginning: the parity of zeros is zeros.
fn make() -> String {
    let mut script = String::from("for disk in a b c d e; do\n    {\n");
    for _ in ARRAYS {
        script.push_str("        echo size=3MiB\n");
    }
    script.push_str(
        "    } | sfdisk -q --label gpt /d/$disk\n    blockdev --rereadpt $(device /d/$disk)\ndone\n",
    );
    for (number, (name, count, args)) in (1..).zip(ARRAYS) {
        let members: Vec<_> =
            DISKS[..*count].iter().map(|disk| format!("$(part /d/{disk} {number})")).collect();
        let members = members.join(" ");
        script.push_str(&format!(
            "md_create /dev/md{number} {name} {args} --assume-clean --raid-devices={count} {members}
             whole write /dev/md{number} $((SEED + {number}))
             fact md/{name} size $(size_of /dev/md{number})
             mdadm --stop /dev/md{number} >&2\n"
        ));
    }
    script
}

/// What is read without which disks: `parities` tells of how many one that is served can do without.
const MISSING: &[(&[&str], usize)] =
    &[(&[], 0), (&["a"], 1), (&["c"], 1), (&["a", "b"], 2), (&["b", "d"], 2), (&["c", "e"], 2)];

fn without<'a>(disks: &[&'a str], missing: &[&str]) -> Vec<&'a str> {
    disks.iter().copied().filter(|disk| !missing.contains(disk)).collect()
}

#[test]
fn arrays_with_parity_are_read_in_every_layout_whichever_members_are_missing() {
    let mut machine = Machine::new();
    DISKS.iter().for_each(|disk| machine.disk(disk, 73 * MIB));
    let made = machine.run_long(Duration::from_secs(400), &format!("SEED={SEED}\n{}", make()));
    let facts = Facts(&made.stdout);
    let before = machine.prints();
    for (missing, parities) in MISSING {
        let served = machine.serve(&without(&DISKS, missing), &["--read-only"]);
        for (number, (name, ..)) in (1..).zip(ARRAYS) {
            if *parities < 2 || name.starts_with('6') {
                let name = format!("md/{name}");
                let length = expect_pattern(&name, machine.copy_out(&name), SEED + number);
                assert_eq!(length, facts.number(&name, "size"), "{name} without {missing:?}");
            }
        }
        let told = run(&mut machine.scratch.blockwork(["md", "detail", "md/6continue"]));
        assert!(told.contains("raid6") && told.contains("ddf-N-continue"), "{told}");
        assert_eq!(told.matches("missing").count(), missing.len(), "{told}");
        let said = run_refused(&mut machine.scratch.blockwork(["md", "check", "md/6ls"]));
        assert!(said.contains("md/6ls") && said.contains("read-only"), "{said}");
        served.stop();
    }
    machine.expect_untouched(&before);
    // Not for writing where nobody keeps what Linux keeps, and not without more than the parity makes up for.
    let said = machine.serve(&DISKS, &["md/ppl", "md/23"]).stop();
    assert!(said.contains("a log of parity") && said.contains("version 0.90 are not written"), "{said}");
    for (name, disks, which) in [
        (
            "md/four",
            &["a", "d", "e"][..],
            "members 1, 2 of 3 are missing or not in sync, and its parity makes up for 1",
        ),
        (
            "md/6ls",
            &["c", "d"][..],
            "members 0, 1, 4 of 5 are missing or not in sync, and its parity makes up for 2",
        ),
    ] {
        let args = [&["--read-only", "--disk"][..], disks, &[name]].concat();
        let said = machine.scratch.refused(args);
        assert!(said.contains(which), "{said}");
    }
    sectors_that_cannot_be_read(&machine);
    power_cuts(&machine);
}

/// Of two members some sectors cannot be read: in different places, each is computed from the others.
fn sectors_that_cannot_be_read(machine: &Machine) {
    // In the data of the members of md/ls, which are the fourth partitions.
    let end = 2048 + 4 * 6144;
    let faulty = [("b", [end - 1000, end - 500]), ("e", [end - 1100, end - 600])];
    let running: Vec<_> = faulty.iter().map(|(disk, sectors)| faulty_disk(machine, disk, sectors)).collect();
    let served = machine.serve(&["a", "b.faulty", "c", "d", "e.faulty"], &["--read-only", "md/ls"]);
    expect_pattern("md/ls", machine.copy_out("md/ls"), SEED + 4);
    let said = served.stop();
    for disk in ["b.faulty", "e.faulty"] {
        let told = said.lines().filter(|line| line.contains(disk) && line.contains("cannot be read"));
        assert!(told.count() > 0, "{disk}: {said}");
    }
    drop(running);
}

fn faulty_disk(machine: &Machine, disk: &str, sectors: &[u64]) -> (LeftMount, Background) {
    faulty(machine, disk, sectors, false)
}

/// A cut leaves one that is not clean, and data that is where it was. Where its parity may not fit the data, what is missing is not computed,
/// unless that is asked for.
fn power_cuts(machine: &Machine) {
    machine.run_until_power_cut(
        Duration::from_secs(300),
        &format!(
            "md_assemble /dev/md4 $(part /d/a 4) $(part /d/b 4) $(part /d/c 4) $(part /d/d 4) $(part /d/e 4)
             md_assemble /dev/md23 $(part /d/a 23) $(part /d/b 23) $(part /d/c 23) $(part /d/d 23)
             md_assemble /dev/md3 $(part /d/a 3) $(part /d/b 3) $(part /d/c 3) $(part /d/d 3)
             whole write /dev/md3 {SEED}
             mdadm -q /dev/md3 --fail $(part /d/b 3) >&2
             whole write /dev/md3 $(({SEED} + 3))
             no_bits() {{ mdadm -X $(part /d/a $1) | grep -q ' 0 dirty'; }}
             for number in 4 23; do
                 echo 1 > /sys/block/md$number/md/bitmap/time_base
                 whole write /dev/md$number {SEED}
                 wait_for no_bits $number
                 echo 600 > /sys/block/md$number/md/bitmap/time_base
             done
             for md in md3 md4 md23; do
                 echo 600 > /sys/block/$md/md/safe_mode_delay
                 dd if=/dev/$md of=/dev/$md bs=64k count=5 skip=11 seek=11 iflag=direct oflag=direct >&2
             done
             mdadm -X $(part /d/a 4) $(part /d/a 23) >&2
             power_cut"
        ),
    );
    let disks = without(&DISKS, &["b"]);
    for name in ["md/ls", "md/23"] {
        let served = machine.serve(&DISKS, &["--read-only", name]);
        expect_pattern(name, machine.copy_out(name), SEED);
        served.stop();
        let served = machine.serve(&disks, &["--read-only", name]);
        let regions = regions_read(machine, name, 16 << 10, SEED);
        let said = served.stop();
        assert!(
            said.contains("what a missing member had where its parity may not fit is not read"),
            "{said}"
        );
        let failed = regions.matches('0').count();
        // 320 KiB over rows of 64 or 48: the member has a chunk of each row but one of five, or four.
        assert!((3..40).contains(&failed) && regions.len() > 200, "{name}: {regions}");
    }
    // Without a bitmap nobody knows.
    let said = machine.scratch.refused(["--read-only", "--disk", "a", "c", "d", "md/ra"]);
    assert!(said.contains("nothing says where its parity fits its data"), "{said}");
    let served =
        machine.serve(&disks, &["--read-only", "--set", "md:start_dirty_degraded=1", "md/ls", "md/ra"]);
    expect_pattern("md/ls", machine.copy_out("md/ls"), SEED);
    expect_pattern("md/ra", machine.copy_out("md/ra"), SEED + 3);
    let said = served.stop();
    assert!(said.contains("its parity is taken as it is: start_dirty_degraded"), "{said}");
}

const TYPES: &[(&str, usize)] = &[
    ("raid4", 2),
    ("raid5_ls", 3),
    ("raid5_la", 2),
    ("raid5_rs", 3),
    ("raid5_ra", 4),
    ("raid5_n", 3),
    ("raid6_zr", 3),
    ("raid6_nr", 3),
    ("raid6_nc", 3),
    ("raid6_n_6", 3),
    ("raid6_ls_6", 3),
    ("raid6_la_6", 3),
    ("raid6_rs_6", 3),
    ("raid6_ra_6", 3),
];

#[test]
fn volumes_with_parity_are_read_in_every_layout_whichever_legs_are_missing() {
    let mut machine = Machine::new();
    let disks = ["a", "b", "c", "d", "e", "f"];
    disks.iter().for_each(|disk| machine.disk(disk, 64 * MIB));
    let mut script = format!(
        "SEED={SEED}\nmodprobe dm-raid\nvgcreate -s 128k vg /d/a /d/b /d/c /d/d /d/e /d/f >&2
         in_sync() {{ [ $(lvs --noheadings -o sync_percent $1) = 100.00 ]; }}\n"
    );
    for (number, (kind, stripes)) in (1..).zip(TYPES) {
        script.push_str(&format!(
            "lvcreate -y --type {kind} -i {stripes} -I 16k -L 3m -n {kind} vg >&2
             wait_for in_sync vg/{kind}
             whole write /dev/vg/{kind} $((SEED + {number}))
             fact vg/{kind} size $(size_of /dev/vg/{kind})\n"
        ));
    }
    script.push_str("lvs -a -o name,segtype,size,devices vg >&2\nvgchange -an vg >&2\n");
    let made = machine.run_long(Duration::from_secs(400), &script);
    let facts = Facts(&made.stdout);
    let before = machine.prints();
    for (missing, parities) in MISSING {
        let served = machine.serve(&without(&disks, missing), &["--read-only"]);
        for (number, (kind, _)) in (1..).zip(TYPES) {
            if *parities < 2 || kind.starts_with("raid6") {
                let name = format!("vg/{kind}");
                let length = expect_pattern(&name, machine.copy_out(&name), SEED + number);
                assert_eq!(length, facts.number(&name, "size"), "{name} without {missing:?}");
            }
        }
        let said = served.stop();
        assert!(!said.contains("bitmap"), "{said}");
    }
    machine.expect_untouched(&before);
    let said = machine.scratch.refused(["--read-only", "--disk", "c", "d", "e", "f", "vg/raid5_ls"]);
    assert!(
        said.contains("are missing or out of date, and its parity makes up for 1; give those disks as well"),
        "{said}"
    );
}
