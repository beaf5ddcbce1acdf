//! Legs of RAID volumes of LVM that were away, and are there again: the kernel leaves them behind and we bring them back; we leave them
//! behind and the kernel brings them back; and what we have begun to bring back, it ends.

use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use blockwork_format::dm_raid::Superblock;
use serde_json::Value;

use crate::machine::{Facts, MIB, Machine, scribble};
use crate::support::nbd::load;
use crate::support::{run, until};

pub const DISKS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Without the disk of the second leg of each.
const REST: [&str; 4] = ["a", "c", "d", "e"];

pub const VOLUMES: [(&str, &str); 4] = [
    ("mirror", "--type raid1 -m 2 -R 64k -l 32"),
    ("ten", "--type raid10 -i 2 -m 1 -I 16k -R 64k -l 64"),
    ("five", "--type raid5 -i 2 -I 16k -R 64k -l 64"),
    ("six", "--type raid6 -i 3 -I 16k -R 64k -l 64"),
];

/// `bring_up` activates a volume, and tells what the kernel finds and makes of it.
pub const FUNCTIONS: &str = "
is_whole() { dmsetup status vg-$1 | grep -q ' A* [0-9/]* idle '; }
bring_up() {
    dmesg -C
    lvchange -ay vg/$1 >&2
    fact $1 recoveries \"$(dmesg | grep -c 'resync of RAID\\|recovery of RAID\\|not clean' || true)\"
    fact $1 sha256 $(sha256 /dev/vg/$1)
    wait_for is_whole $1
    lvchange --syncaction check vg/$1 >&2
    wait_for is_whole $1
    fact $1 differs $(lvs --noheadings -o raid_mismatch_count vg/$1)
    fact $1 health \"$(lvs --noheadings -o lv_health_status vg/$1)\"
    fact $1 size $(lvs --noheadings --units b --nosuffix -o lv_size vg/$1)
    fact $1 sync $(lvs --noheadings -o sync_percent vg/$1)
    fact $1 after $(sha256 /dev/vg/$1)
    lvchange -an vg/$1 >&2
}
";

pub fn shown(machine: &Machine, volume: &str, disks: &[&str]) -> Value {
    let volume = format!("vg/{volume}");
    let mut args = vec!["lv", "show", "--json", &volume];
    args.extend(disks.first().map(|_| "--disk"));
    args.extend(disks);
    let mut all: Value = serde_json::from_str(&run(&mut machine.scratch.blockwork(args))).expect("JSON");
    all[0].take()
}

pub fn is_whole(machine: &Machine, volume: &str) -> bool {
    let now = shown(machine, volume, &[]);
    let legs = now["legs"].as_array().expect("it has legs");
    legs.iter().all(|leg| leg["state"] == "in_sync") && now["sync"]["action"] == "idle"
}

/// Writes to places of each volume; what each holds then.
fn written(machine: &Machine, seed: u64) -> Vec<String> {
    let each = VOLUMES.iter().map(|(name, _)| {
        let (volume, seed) = (format!("vg/{name}"), seed.to_string());
        let args = ["--export", &volume, "--verify", "--rw", "randwrite", "--bs", "4k", "--range", "1m+2m"];
        load(&machine.scratch.at("socket"), &[&args[..], &["--ios", "300", "--seed", &seed]].concat());
        machine.sha256(&volume)
    });
    each.collect()
}

/// The kernel brings each up, and finds all legs to be the same; how many of them it has to fill.
fn judge(machine: &Machine, sums: &[String]) -> u64 {
    let mut script = format!("{FUNCTIONS}vgck vg\n");
    for (name, _) in VOLUMES {
        writeln!(script, "bring_up {name}").expect("text");
    }
    let judged = machine.run_long(Duration::from_secs(200), &script);
    let facts = Facts(&judged.stdout);
    for ((name, _), sum) in VOLUMES.iter().zip(sums) {
        let is = ["sha256", "after", "differs", "health"].map(|key| facts.get(name, key));
        assert_eq!(is, [sum, sum, "0", ""], "{name}");
    }
    VOLUMES.iter().map(|(name, _)| facts.number(name, "recoveries")).sum()
}

/// A machine that has made the volumes, and then written to them without the second legs.
fn machine() -> Machine {
    let mut machine = Machine::new();
    DISKS.iter().for_each(|disk| machine.disk(disk, 64 * MIB));
    let mut make = format!("{FUNCTIONS}vgcreate -s 256k vg /d/? >&2\n");
    let mut go_on = String::from("vgchange -ay vg >&2\n");
    for (name, create) in VOLUMES {
        writeln!(make, "lvcreate -y {create} -n {name} vg >&2\nwait_for is_whole {name}").expect("text");
        writeln!(make, "whole write /dev/vg/{name} 7").expect("text");
        writeln!(go_on, "pattern write /dev/vg/{name} 1048576 262144 9").expect("text");
        writeln!(go_on, "fact {name} health $(lvs --noheadings -o lv_health_status vg/{name})")
            .expect("text");
    }
    machine.run(&make);
    let said = machine.run_with(&REST, &go_on);
    for (name, _) in VOLUMES {
        let ours = shown(&machine, name, &REST);
        assert_eq!(ours["health"], Facts(&said.stdout).get(name, "health"), "{name}");
    }
    machine
}

#[test]
fn a_leg_that_the_kernel_has_left_behind_is_brought_back_and_the_other_way_round() {
    let machine = machine();
    let served = machine.serve(&DISKS, &[]);
    VOLUMES.iter().for_each(|(name, _)| until("it is whole", || is_whole(&machine, name)));
    let sums: Vec<String> = VOLUMES
        .iter()
        .map(|(name, _)| {
            scribble(&machine, &format!("vg/{name}"), 3);
            machine.sha256(&format!("vg/{name}"))
        })
        .collect();
    let said = served.stop();
    let told = "it comes back, and is filled where it was written to meanwhile";
    assert_eq!(said.matches(told).count(), VOLUMES.len(), "{said}");
    assert_eq!(judge(&machine, &sums), 0, "there was nothing left to do");

    let served = machine.serve(&REST, &[]);
    let sums = written(&machine, 5);
    served.stop();
    assert_eq!(judge(&machine, &sums), VOLUMES.len() as u64);
}

/// The superblock of the second leg of the mirror, which is the first thing on its disk.
fn change_superblock(machine: &Machine, change: impl FnOnce(&mut Superblock)) {
    let file = File::options().read(true).write(true).open(machine.scratch.path("b")).expect("a disk");
    let mut bytes = [0; 512];
    file.read_exact_at(&mut bytes, MIB).expect("it is there");
    let mut superblock = Superblock::decode(&bytes).expect("the first volume's");
    assert_eq!((superblock.array_position, superblock.num_devices), (1, 3));
    change(&mut superblock);
    file.write_all_at(&superblock.encode(), MIB).expect("it can be written");
}

#[test]
fn the_kernel_ends_what_we_have_begun_to_bring_back() {
    let machine = machine();
    let slowly = ["--set", "raid:sync_speed_min=1", "--set", "raid:sync_speed_max=1"];
    let begin = |seed: u64| {
        let served = machine.serve(&DISKS, &slowly);
        let is_filled = |name: &str| shown(&machine, name, &[])["sync"]["action"] == "recover";
        VOLUMES.iter().for_each(|(name, _)| until("it is being filled", || is_filled(name)));
        (written(&machine, seed), served)
    };
    let (sums, served) = begin(11);
    served.stop();
    assert_eq!(judge(&machine, &sums), VOLUMES.len() as u64, "by the bitmap");

    // Half filled, and gone once more; and one of which nobody knows what it lacks.
    machine.serve(&REST, &[]).stop();
    let served = machine.serve(&REST, &[]);
    written(&machine, 12);
    served.stop();
    change_superblock(&machine, |superblock| superblock.disk_recovery_offset = 64);
    let (_, served) = begin(13);
    let said = served.stop();
    assert!(
        said.contains("mirror_rimage_1: it") && said.contains("is filled from its start to its end"),
        "{said}"
    );
    let served = machine.serve(&REST, &[]);
    let sums = written(&machine, 14);
    served.stop();
    assert!(judge(&machine, &sums) >= VOLUMES.len() as u64);

    // Killed in the midst of it. Where there is a parity, Linux starts no such volume, nor do we.
    let served = machine.serve(&REST, &[]);
    written(&machine, 15);
    served.stop();
    change_superblock(&machine, |superblock| superblock.disk_recovery_offset = 64);
    let volumes = ["vg/mirror", "vg/ten"];
    let served = machine.serve(&DISKS, &[&volumes[..], &slowly].concat());
    until("it is being filled", || shown(&machine, "mirror", &[])["sync"]["action"] == "recover");
    let sums = volumes.map(|volume| machine.sha256(volume));
    served.kill();
    let judged =
        machine.run_long(Duration::from_secs(100), &format!("{FUNCTIONS}bring_up mirror\nbring_up ten\n"));
    let facts = Facts(&judged.stdout);
    for (name, sum) in ["mirror", "ten"].iter().zip(&sums) {
        let is = ["sha256", "after", "differs", "health"].map(|key| facts.get(name, key));
        assert_eq!(is, [sum, sum, "0", ""], "{name}");
    }
}
