//! RAID volumes that grow while they are served, and what the kernel finds then: of one that came to its end, nothing that is left to do; of one
//! whose server was killed, what was new to be resynced. And what `lvextend` makes of volumes that the kernel has active is the same to us.

use std::fmt::Write;
use std::time::Duration;

use crate::lvm_legs::{DISKS, FUNCTIONS, VOLUMES, is_whole, shown};
use crate::machine::{Facts, MIB, Machine, scribble};
use crate::support::nbd::load;
use crate::support::{run, until};

/// Extents of 256 KiB that each becomes larger by, a multiple of all stripes.
const MORE: &str = "+48";

/// A machine that has made the volumes, and filled them.
fn machine() -> Machine {
    let mut machine = Machine::new();
    DISKS.iter().for_each(|disk| machine.disk(disk, 128 * MIB));
    let mut make = format!("{FUNCTIONS}vgcreate -s 256k vg /d/? >&2\n");
    for (name, create) in VOLUMES {
        writeln!(make, "lvcreate -y {create} -n {name} vg >&2\nwait_for is_whole {name}").expect("text");
        writeln!(make, "whole write /dev/vg/{name} 7").expect("text");
    }
    // Of stripes without a parity nothing is ever resynced.
    make += "lvcreate -y --type raid0 -i 2 -I 16k -l 32 -n plain vg >&2\nwhole write /dev/vg/plain 7\n";
    machine.run(&make);
    machine
}

fn size(machine: &Machine, volume: &str, disks: &[&str]) -> u64 {
    shown(machine, volume, disks)["bytes"].as_u64().expect("a size")
}

/// All grow while they are served; what each holds then, its new end included, and how large it is.
fn grow(machine: &Machine) -> Vec<(String, u64)> {
    let grown = VOLUMES.iter().map(|(name, _)| *name).chain(["plain"]).map(|name| {
        let volume = format!("vg/{name}");
        let before = size(machine, name, &[]);
        run(&mut machine.scratch.blockwork(["lv", "resize", &volume, "--extents", MORE]));
        let after = size(machine, name, &[]);
        assert_eq!(after, before + 48 * (256 << 10), "{name}");
        let range = format!("{}k+128k", (after >> 10) - 128);
        let args = [
            "--export",
            &volume,
            "--verify",
            "--rw",
            "randwrite",
            "--bs",
            "4k",
            "--ios",
            "40",
            "--flush-every",
            "8",
        ];
        load(&machine.scratch.at("socket"), &[&args[..], &["--range", &range]].concat());
        (machine.sha256(&volume), after)
    });
    grown.collect()
}

/// The kernel brings each up, and finds what we have left, in legs that fit each other in the end; what it says of that.
fn judge(machine: &Machine, grown: &[(String, u64)]) -> u64 {
    let mut script = format!("{FUNCTIONS}vgck vg\n");
    VOLUMES.iter().for_each(|(name, _)| writeln!(script, "bring_up {name}").expect("text"));
    script += "lvchange -ay vg/plain >&2\nfact plain sha256 $(sha256 /dev/vg/plain)\n";
    script += "fact plain size $(lvs --noheadings --units b --nosuffix -o lv_size vg/plain)\n";
    let judged = machine.run_long(Duration::from_secs(200), &script);
    let facts = Facts(&judged.stdout);
    let plain = ["sha256", "size"].map(|key| facts.get("plain", key).to_owned());
    assert_eq!(grown.last(), Some(&(plain[0].clone(), plain[1].parse().expect("a size"))), "plain");
    for ((name, _), (sum, size)) in VOLUMES.iter().zip(grown) {
        let is = ["sha256", "after", "differs", "health", "size", "sync"].map(|key| facts.get(name, key));
        assert_eq!(is, [sum, sum, "0", "", &size.to_string(), "100.00"], "{name}");
    }
    VOLUMES.iter().map(|(name, _)| facts.number(name, "recoveries")).sum()
}

#[test]
fn what_has_grown_while_it_was_served_is_whole_to_the_kernel() {
    let machine = machine();
    let served = machine.serve(&DISKS, &[]);
    VOLUMES.iter().for_each(|(name, _)| scribble(&machine, &format!("vg/{name}"), 3));
    let grown = grow(&machine);
    VOLUMES.iter().for_each(|(name, _)| until("what is new is resynced", || is_whole(&machine, name)));
    served.stop();
    assert_eq!(judge(&machine, &grown), 0, "there was nothing left to do");
}

#[test]
fn the_kernel_resyncs_what_was_new_where_the_server_was_killed() {
    let machine = machine();
    let slowly = ["--set", "raid:sync_speed_min=1", "--set", "raid:sync_speed_max=1"];
    let served = machine.serve(&DISKS, &slowly);
    let grown = grow(&machine);
    for (name, _) in VOLUMES {
        assert_eq!(shown(&machine, name, &[])["sync"]["action"], "resync", "{name}: it takes its time");
    }
    served.kill();
    assert_eq!(judge(&machine, &grown), 2 * VOLUMES.len() as u64, "each is not clean, and is resynced");
}

#[test]
fn what_lvextend_makes_of_active_volumes_and_what_we_make_of_served_ones_are_the_same_to_both() {
    let machine = machine();
    let mut script = format!("{FUNCTIONS}vgchange -ay vg >&2\n");
    for (name, _) in VOLUMES {
        writeln!(script, "lvextend -l {MORE} vg/{name} >&2\nwait_for is_whole {name}").expect("text");
        writeln!(script, "fact {name} size $(lvs --noheadings --units b --nosuffix -o lv_size vg/{name})")
            .expect("text");
        writeln!(script, "fact {name} sha256 $(sha256 /dev/vg/{name})").expect("text");
    }
    let said = machine.run_long(Duration::from_secs(200), &script);
    let facts = Facts(&said.stdout);
    let served = machine.serve(&DISKS, &[]);
    for (name, _) in VOLUMES {
        assert_eq!(size(&machine, name, &[]).to_string(), facts.get(name, "size"), "{name}");
        assert_eq!(machine.sha256(&format!("vg/{name}")), facts.get(name, "sha256"), "{name}");
        until("it is whole", || is_whole(&machine, name));
    }
    // Once more, by us.
    let grown = grow(&machine);
    VOLUMES.iter().for_each(|(name, _)| until("what is new is resynced", || is_whole(&machine, name)));
    served.stop();
    assert_eq!(judge(&machine, &grown), 0);
}
