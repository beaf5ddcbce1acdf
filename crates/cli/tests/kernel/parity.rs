//! RAID4, 5 and 6 of md and of LVM that the real kernel made, in every layout: read by us where all members are there, refused where one is
//! not, and never written.

use std::time::Duration;

use crate::machine::{Facts, MIB, Machine, expect_pattern};
use crate::support::{run, run_refused};

const SEED: u64 = 0x7061_7201;

const DISKS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Name, members, arguments of `mdadm --create`.
const ARRAYS: &[(&str, usize, &str)] = &[
    ("four", 3, "--level=4 --chunk=16"),
    ("la", 4, "--level=5 --chunk=4 --layout=la"),
    ("ra", 4, "--level=5 --chunk=64 --layout=ra"),
    ("ls", 5, "--level=5 --chunk=16 --layout=ls --bitmap=internal"),
    ("rs", 4, "--level=5 --chunk=32 --layout=rs --metadata=1.0"),
    ("first", 3, "--level=5 --chunk=16 --layout=parity-first"),
    ("last", 4, "--level=5 --chunk=16 --layout=parity-last --metadata=1.1"),
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
];

/// The members of an array are the partitions of its number. It is clean from the beginning, as what its parity has does not matter here.
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

#[test]
fn arrays_with_parity_are_read_in_every_layout_where_no_member_is_missing() {
    let mut machine = Machine::new();
    DISKS.iter().for_each(|disk| machine.disk(disk, 70 * MIB));
    let made = machine.run_long(Duration::from_secs(400), &format!("SEED={SEED}\n{}", make()));
    let facts = Facts(&made.stdout);
    let before = machine.prints();
    let served = machine.serve(&["c", "a", "e", "d", "b"], &["--read-only"]);
    for (number, (name, ..)) in (1..).zip(ARRAYS) {
        let name = format!("md/{name}");
        let length = expect_pattern(&name, machine.copy_out(&name), SEED + number);
        assert_eq!(length, facts.number(&name, "size"), "{name}");
    }
    let told = run(&mut machine.scratch.blockwork(["md", "detail", "md/6continue"]));
    assert!(told.contains("raid6") && told.contains("ddf-N-continue"), "{told}");
    let said = run_refused(&mut machine.scratch.blockwork(["md", "check", "md/ls"]));
    assert!(said.contains("md/ls is a raid5, which is only read here"), "{said}");
    served.stop();
    machine.expect_untouched(&before);
    // Not for writing, and not in part.
    let said = machine.serve(&DISKS, &["md/ls", "md/6ls"]).stop();
    assert!(
        said.contains("a raid5 is only read here") && said.contains("a raid6 is only read here"),
        "{said}"
    );
    for name in ["md/four", "md/ls", "md/6ls"] {
        let said = machine.scratch.refused(["--read-only", "--disk", "a", "c", "d", "e", name]);
        assert!(said.contains("member 1 of") && said.contains("only with all of its members"), "{said}");
    }

    // A cut leaves one that is not clean, and data that is where it was; one that is being rebuilt lacks some.
    machine.run_until_power_cut(
        Duration::from_secs(300),
        &format!(
            "md_assemble /dev/md4 $(part /d/a 4) $(part /d/b 4) $(part /d/c 4) $(part /d/d 4) $(part /d/e 4)
             md_assemble /dev/md3 $(part /d/a 3) $(part /d/b 3) $(part /d/c 3) $(part /d/d 3)
             whole write /dev/md3 {SEED}
             mdadm -q /dev/md3 --fail $(part /d/b 3) >&2
             whole write /dev/md4 {SEED}
             sync
             power_cut"
        ),
    );
    let served = machine.serve(&DISKS, &["--read-only", "md/ls"]);
    expect_pattern("md/ls", machine.copy_out("md/ls"), SEED);
    served.stop();
    let said = machine.scratch.refused(["--read-only", "--disk", "a", "b", "c", "d", "e", "md/ra"]);
    assert!(said.contains("member 1 of 4 is missing or not in sync"), "{said}");
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
fn volumes_with_parity_are_read_in_every_layout_where_no_leg_is_missing() {
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
    let served = machine.serve(&disks, &["--read-only"]);
    for (number, (kind, _)) in (1..).zip(TYPES) {
        let name = format!("vg/{kind}");
        let length = expect_pattern(&name, machine.copy_out(&name), SEED + number);
        assert_eq!(length, facts.number(&name, "size"), "{name}");
    }
    served.stop();
    machine.expect_untouched(&before);
    let said = machine.serve(&disks, &["vg/raid5_ls"]).stop();
    assert!(said.contains("it is a RAID with parity, which is not written here"), "{said}");
    let said = machine.scratch.refused(["--read-only", "--disk", "b", "c", "d", "e", "f", "vg/raid5_ls"]);
    assert!(said.contains("raid5_ls_r") && said.contains("only with all of its legs"), "{said}");
}
