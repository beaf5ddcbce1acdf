//! Volumes with a parity that our verbs made, on disks that hold something else: their text beside that of the real `lvcreate`, resynced by the
//! kernel or by us, written, checked and made larger in turns.

use std::fmt::Write;
use std::fs::OpenOptions;
use std::time::Duration;

use blockwork_format::dm_raid::ParityType;
use blockwork_kernel::pattern;

use crate::lvm_verbs::{FUNCTIONS, verb};
use crate::machine::{Facts, KIB, MIB, Machine, expect_pattern, scribble};

const DISKS: &[&str] = &["a", "b", "c", "d", "e", "f"];
const DISK: u64 = 64 * MIB;
const EXTENT: u64 = 512 * KIB;

/// A volume by the arguments that `lvcreate` and we take, and the extents that it gets.
type Made = (String, Vec<&'static str>, u64);

/// One of each type with what there is where nobody says otherwise, and some where somebody does.
fn volumes() -> Vec<Made> {
    let plain = ParityType::ALL.into_iter().map(|kind| {
        let extents = if kind.parities() == 1 { 8 } else { 9 };
        (format!("v_{}", kind.name()), vec!["--type", kind.name(), "--extents", "7"], extents)
    });
    let others: [(&str, &[&str], u64); 7] = [
        // Without a parity, for what they have in common with those: regions and metadata volumes.
        ("odd", &["--type", "raid1", "--mirrors", "1", "--extents", "9"], 9),
        (
            "ten",
            &["--type", "raid10", "--stripes", "2", "--mirrors", "1", "--regionsize", "8K", "--extents", "5"],
            6,
        ),
        ("wide", &["--type", "raid5", "--stripes", "5", "--stripesize", "16K", "--extents", "13"], 15),
        ("fine", &["--type", "raid6", "--stripes", "4", "--regionsize", "64K", "--size", "3M"], 8),
        ("coarse", &["--type", "raid4", "--stripesize", "128K", "--regionsize", "16K", "--size", "2M"], 4),
        ("tiny", &["--type", "raid5_ra", "--stripes", "3", "--extents", "1"], 3),
        ("not", &["--type", "raid5", "--nosync", "--extents", "6"], 6),
    ];
    plain
        .chain(others.into_iter().map(|(name, args, extents)| (name.into(), args.to_vec(), extents)))
        .collect()
}

/// Disks whose legs fit no parity before it was made.
fn machine() -> Machine {
    let mut machine = Machine::new();
    for (seed, disk) in (100..).zip(DISKS) {
        machine.disk(disk, DISK);
        let file = OpenOptions::new().write(true).open(machine.scratch.path(disk)).expect("a disk");
        pattern::write(&file, 0, DISK, seed).expect("it has room");
    }
    verb(&machine, &[&["vg", "create", "vg", "-s", "512K"], DISKS].concat(), &["a"]);
    machine
}

fn create(machine: &Machine, name: &str, args: &[&str]) {
    verb(machine, &[&["lv", "create", &format!("vg/{name}")], args].concat(), DISKS);
}

/// `text NAME`: the group's metadata as `vgcfgbackup` prints it, on a line, without what is never the same; `superblock NAME`: level, layout and
/// chunk in the superblock of a leg, by which Linux goes whatever the text says.
const TEXT: &str = r#"
text() {
    vgcfgbackup -f /tmp/text vg >&2
    sed -E '/^[[:space:]]*(id|seqno|description|creation_time|creation_host) = /d; s/#.*//' /tmp/text >/tmp/common
    fact $1 text "$(tr -s '[:space:]' ' ' </tmp/common)"
}
superblock() { fact $1 superblock "$(od -An -t u4 -j 48 -N 12 /dev/mapper/vg-$1_rmeta_1)"; }
"#;

#[test]
fn volumes_with_a_parity_are_what_lvcreate_makes_and_the_kernel_resyncs_and_writes_them() {
    let machine = machine();
    let volumes = volumes();
    let mut script = format!("{FUNCTIONS}{TEXT}\ntext ours\ndmesg -C\n");
    let mut again = format!("{TEXT}\nlvremove -y vg >&2\n");
    for (name, args, _) in &volumes {
        create(&machine, name, args);
        write!(
            script,
            "lvchange -ay vg/{name} >&2
             superblock {name}
             fact {name} size $(blockdev --getsize64 /dev/vg/{name})
             fact {name} attr $(lvs --noheadings -o lv_attr vg/{name})
             fact {name} start $(head -c 4096 /dev/vg/{name} | tr -d '\\0' | wc -c)
             wait_for idle vg/{name}
             fact {name} resyncs $(dmesg | grep -c 'resync of RAID' || true)
             whole write /dev/vg/{name} 7
             {}
             dmesg -C
             lvchange -an vg/{name} >&2\n",
            if is_synced(args) { format!("mirrors {name}") } else { String::new() }
        )
        .expect("text");
        let args = args.join(" ");
        writeln!(again, "lvcreate -y -n {name} {args} vg >&2\nsuperblock {name}").expect("text");
    }
    let judged = machine.run_long(Duration::from_secs(400), &script);
    let facts = Facts(&judged.stdout);
    for (name, args, extents) in &volumes {
        assert_eq!(facts.number(name, "size"), extents * EXTENT, "{name}");
        assert_eq!(facts.get(name, "start"), "0", "{name}: its first 4 KiB are zeros");
        let attr = if is_synced(args) { "rwi-a-r---" } else { "Rwi-a-r---" };
        assert_eq!(facts.get(name, "attr"), attr, "{name}");
        assert_eq!(facts.number(name, "resyncs"), u64::from(is_synced(args)), "{name}");
        if is_synced(args) {
            assert_eq!([facts.get(name, "differs"), facts.get(name, "health")], ["0", ""], "{name}");
        }
    }

    // With and without a disk: what is missing is computed.
    for disks in [DISKS, &DISKS[1..]] {
        let served = machine.serve(disks, &["--read-only"]);
        // Nobody made the parity of the one without a resync.
        for (name, ..) in volumes.iter().filter(|(_, args, _)| disks.len() == DISKS.len() || is_synced(args))
        {
            expect_pattern(name, machine.copy_out(&format!("vg/{name}")), 7);
        }
        served.stop();
    }

    again.push_str("text theirs\n");
    let theirs = machine.run_long(Duration::from_secs(200), &again);
    let theirs = Facts(&theirs.stdout);
    assert_eq!(facts.get("ours", "text"), theirs.get("theirs", "text"));
    for (name, ..) in &volumes {
        assert_eq!(facts.get(name, "superblock"), theirs.get(name, "superblock"), "{name}");
    }
}

fn is_synced(args: &[&str]) -> bool {
    !args.contains(&"--nosync")
}

#[test]
fn volumes_with_a_parity_that_we_serve_first_are_whole_to_the_kernel_and_so_is_what_they_grow_by() {
    const VOLUMES: &[(&str, &[&str])] = &[
        ("four", &["--type", "raid4"]),
        ("five", &["--type", "raid5", "--stripes", "3", "--stripesize", "16K", "--regionsize", "64K"]),
        ("right", &["--type", "raid5_rs"]),
        ("six", &["--type", "raid6", "--stripesize", "16K"]),
        ("last", &["--type", "raid6_n_6", "--regionsize", "128K"]),
        ("ls", &["--type", "raid6_ls_6", "--stripes", "4"]),
    ];
    let machine = machine();
    for (name, args) in VOLUMES {
        create(&machine, name, &[*args, &["--size", "6M"]].concat());
    }
    let scribbled = |seed: u64| -> Vec<String> {
        let volumes: Vec<String> = VOLUMES.iter().map(|(name, _)| format!("vg/{name}")).collect();
        let served = machine.serve(DISKS, &volumes.iter().map(String::as_str).collect::<Vec<_>>());
        let sums = (seed..).zip(&volumes).map(|(seed, volume)| {
            scribble(&machine, volume, seed);
            machine.sha256(volume)
        });
        let sums = sums.collect();
        served.stop();
        sums
    };
    let names: Vec<&str> = VOLUMES.iter().map(|(name, _)| *name).collect();
    let judge = format!(
        "{FUNCTIONS}
         for name in {}; do
             lvchange -ay vg/$name >&2
             fact $name size $(blockdev --getsize64 /dev/vg/$name)
             fact $name sha256 $(sha256 /dev/vg/$name)
             mirrors $name
             fact $name after $(sha256 /dev/vg/$name)
         done
         vgchange -an vg >&2\n",
        names.join(" ")
    );
    let expect = |facts: &Facts<'_>, size: u64, sums: &[String]| {
        for (name, sum) in names.iter().zip(sums) {
            assert_eq!(facts.number(name, "size"), size, "{name}");
            let found = ["sha256", "after", "differs", "health"].map(|key| facts.get(name, key));
            assert_eq!(found, [sum, sum, "0", ""], "{name}");
        }
    };
    let written = scribbled(1);
    expect(&Facts(&machine.run_long(Duration::from_secs(200), &judge).stdout), 6 * MIB, &written);
    for name in &names {
        verb(&machine, &["lv", "resize", &format!("vg/{name}"), "--size", "+6M"], DISKS);
    }
    let written = scribbled(20);
    expect(&Facts(&machine.run_long(Duration::from_secs(200), &judge).stdout), 12 * MIB, &written);
}

/// What is asked for in hundredths, and has no room on as many disks for all of it: it lies where `lvcreate` puts it, run by run.
#[test]
fn sizes_in_hundredths_are_those_of_lvcreate() {
    let first = ("first", &["--extents", "50"][..]);
    let sets: [&[(&str, &[&str])]; 2] = [
        &[first, ("rest", &["--type", "raid5", "--extents", "100%FREE"])],
        &[
            first,
            ("part", &["--type", "raid6", "--stripes", "3", "--extents", "10%FREE"]),
            ("of_all", &["--type", "raid1", "--mirrors", "1", "--extents", "9%VG"]),
            ("stripes", &["--stripes", "4", "--stripesize", "16K", "--extents", "11%FREE"]),
            ("rest", &["--type", "raid10", "--stripes", "2", "--mirrors", "1", "--extents", "70%FREE"]),
        ],
    ];
    let machine = machine();
    for volumes in sets {
        let mut script = format!("{TEXT}\ntext ours\nlvremove -y vg >&2\n");
        for (name, args) in volumes {
            create(&machine, name, args);
            writeln!(script, "lvcreate -an -y -n {name} {} vg >&2", args.join(" ")).expect("text");
        }
        script.push_str("text theirs\nlvremove -y vg >&2\n");
        let judged = machine.run_long(Duration::from_secs(200), &script);
        let facts = Facts(&judged.stdout);
        let [ours, theirs] = ["ours", "theirs"].map(|whose| facts.get(whose, "text"));
        assert!(volumes.iter().all(|(name, _)| ours.contains(&format!(" {name} {{"))), "{ours}");
        assert_eq!(ours, theirs);
    }
}
