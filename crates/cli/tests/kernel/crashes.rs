//! Our server killed while it writes to arrays and RAID volumes of the real kernel: the kernel then resyncs what the bitmap tells,
//! or all where there is none, and what clients had been promised is there.

use std::fmt::Write;
use std::fs;

use crate::machine::{Facts, MIB, Machine};
use crate::support::nbd::{load, nbdload};
use crate::support::{Background, until};

/// An array, or a volume of the group `vg`.
struct Volume {
    name: &'static str,
    /// Its own disks; none: the group's.
    disks: usize,
    /// For `mdadm --create` or `lvcreate`.
    create: &'static str,
    bitmap: bool,
}

const fn array(name: &'static str, disks: usize, create: &'static str) -> Volume {
    Volume { name, disks, create, bitmap: true }
}

const fn volume(name: &'static str, create: &'static str) -> Volume {
    Volume { name, disks: 0, create, bitmap: true }
}

impl Volume {
    const fn without_bitmap(self) -> Volume {
        Volume { bitmap: false, ..self }
    }

    fn served_as(&self) -> String {
        format!("{}/{}", if self.disks == 0 { "vg" } else { "md" }, self.name)
    }

    fn devices(&self) -> String {
        (0..self.disks).map(|nth| format!("/d/{}.{nth} ", self.name)).collect()
    }
}

const BITS: &str = "--bitmap=internal --bitmap-chunk=64K";

const VOLUMES: &[Volume] = &[
    array("r1-2", 2, "--level=1 BITS"),
    array("r1-2-none", 2, "--level=1").without_bitmap(),
    array("r10-n2-4", 4, "--level=10 --layout=n2 --chunk=64 BITS"),
    array("r10-f2-3", 3, "--level=10 --layout=f2 --chunk=64 BITS"),
    array("r10-o2-4-none", 4, "--level=10 --layout=o2 --chunk=64").without_bitmap(),
    volume("raid1", "--type raid1 -m 1 -R 64k -L 16m"),
    volume("raid10", "--type raid10 -i 2 -m 1 -I 16k -R 64k -L 32m"),
];

/// Sectors of each member or leg, about.
const MEMBER_SECTORS: u64 = 14 * 2048;
/// Sectors that a resync of the mebibyte that was written to reads from a member at most, with what assembling reads.
const FEW_SECTORS: u64 = 3 * 2048;

const JUDGE: &str = "
# Sectors that a resync has read from the device $1 since $2 had been read.
resynced() { fact $name resynced $(($(sectors_read $1) - $2)); }
md_judge() {
    name=$1 bitmap=$3
    local array=/dev/md$2 disk before
    shift 3
    for disk; do
        fact $name state.$disk \"$(examine $disk State)\"
        [ $bitmap = no ] || fact $name dirty.$disk \"$(mdadm --examine-bitmap $(device $disk) | sed -n 's/^ *Bitmap : .*, \\([0-9]*\\) dirty.*/\\1/p')\"
    done
    dmesg -C
    before=$(sectors_read $1)
    md_assemble $array \"$@\"
    fact $name kernel \"$(dmesg | grep -c 'not clean -- starting background reconstruction' || true)\"
    # Debian starts arrays read-only until the first write, and a resync waits for that, too.
    mdadm -q --readwrite $array
    wait_for md_is $array sync_action idle
    resynced $1 $before
    fact $name differs $(md_scrub $array)
    fact $name sha256 $(sha256 $array)
    md_stop $array
}
lv_idle() { [ $(lvs --noheadings -o raid_sync_action vg/$name) = idle ] && [ $(lvs --noheadings -o sync_percent vg/$name) = 100.00 ]; }
lv_judge() {
    name=$1
    lvchange -ay vg/$name >&2
    wait_for lv_idle
    resynced /dev/mapper/vg-${name}_rimage_0 0
    lvchange --syncaction check vg/$name >&2
    wait_for lv_idle
    fact $name differs $(lvs --noheadings -o raid_mismatch_count vg/$name)
    fact $name sha256 $(sha256 /dev/vg/$name)
    lvchange -an vg/$name >&2
}
";

fn make(machine: &mut Machine) {
    let mut script = String::from("in_sync() { [ $(lvs --noheadings -o sync_percent vg/$1) = 100.00 ]; }\n");
    for disk in ["a", "b", "c", "d"] {
        machine.disk(disk, 40 * MIB);
    }
    script.push_str("vgcreate -s 256k vg /d/a /d/b /d/c /d/d >&2\n");
    for (number, Volume { name, disks, create, .. }) in VOLUMES.iter().enumerate() {
        let create = create.replace("BITS", BITS);
        let (device, made) = if *disks == 0 {
            (
                format!("/dev/vg/{name}"),
                format!("lvcreate -y {create} -n {name} vg >&2; wait_for in_sync {name}"),
            )
        } else {
            for nth in 0..*disks {
                machine.disk(&format!("{name}.{nth}"), 16 * MIB);
            }
            let devices = VOLUMES[number].devices();
            let array = format!("/dev/md{number}");
            (array.clone(), format!("md_create {array} {name} --raid-devices={disks} {create} {devices}"))
        };
        let stop = if *disks == 0 { String::new() } else { format!("md_stop {device}") };
        writeln!(script, "{made}\nwhole write {device} {number}\n{stop}").expect("text");
    }
    machine.run(&script);
}

/// Loads all volumes at once, each within its second mebibyte, and kills the server when it has promised much.
fn kill_under_load(machine: &Machine) {
    let served = machine.serve(&machine.disks(), &[]);
    let clients: Vec<(usize, Background)> = VOLUMES
        .iter()
        .enumerate()
        .map(|(seed, volume)| {
            let mut client = nbdload();
            client.arg(format!("unix:{}", machine.scratch.at("socket")));
            client.args(["--export", &volume.served_as(), "--verify", "--log", &log(machine, volume)]);
            client.args(["--rw", "randwrite", "--bs", "4k", "--range", "1m+1m", "--depth", "8"]);
            client.args(["--flush-every", "16", "--seconds", "100", "--seed", &seed.to_string()]);
            (seed, Background::start(&mut client))
        })
        .collect();
    for volume in VOLUMES {
        let log = log(machine, volume);
        let promises = || fs::read_to_string(&log).unwrap_or_default().lines().count();
        until(&format!("{} has promised much", volume.name), || promises() > 300);
    }
    served.kill();
    for (seed, client) in clients {
        let (code, said) = client.finish();
        assert_eq!(code, Some(3), "{}: the client saw its server die: {said}", VOLUMES[seed].name);
    }
}

fn log(machine: &Machine, volume: &Volume) -> String {
    machine.scratch.at(&format!("{}.log", volume.name))
}

#[test]
fn after_kill_9_the_kernel_resyncs_what_was_being_written_and_all_promises_are_kept() {
    let mut machine = Machine::new();
    make(&mut machine);
    kill_under_load(&machine);
    let mut judge = JUDGE.to_owned();
    for (number, volume) in VOLUMES.iter().enumerate() {
        let Volume { name, disks, bitmap, .. } = volume;
        let bitmap = if *bitmap { "yes" } else { "no" };
        let line = match disks {
            0 => format!("lv_judge {name}"),
            _ => format!("md_judge {name} {number} {bitmap} {}", volume.devices()),
        };
        writeln!(judge, "{line}").expect("text");
    }
    let judged = machine.run(&judge);
    let facts = Facts(&judged.stdout);
    for volume in VOLUMES {
        let name = volume.name;
        for nth in 0..volume.disks {
            let of = |key: &str| format!("{key}./d/{name}.{nth}");
            assert_eq!(facts.get(name, &of("state")), "active", "{name}: {nth}");
            if volume.bitmap {
                let dirty = facts.number(name, &of("dirty"));
                assert!((1..=17).contains(&dirty), "{name}: {nth}: {dirty} chunks are dirty");
            }
        }
        if volume.disks > 0 {
            assert_eq!(facts.get(name, "kernel"), "1", "{name}: a resync was begun");
        }
        let resynced = facts.number(name, "resynced");
        let expected = if volume.bitmap { 1..FEW_SECTORS } else { MEMBER_SECTORS..u64::MAX };
        assert!(
            expected.contains(&resynced),
            "{name}: {resynced} sectors were read by a resync, not {expected:?}"
        );
        assert_eq!(facts.get(name, "differs"), "0", "{name}: sectors that differ between copies");
    }
    let served = machine.serve(&machine.disks(), &["--read-only"]);
    for volume in VOLUMES {
        let name = volume.name;
        assert_eq!(machine.sha256(&volume.served_as()), facts.get(name, "sha256"), "{name}");
        let args = ["--export", &volume.served_as(), "--verify-only", "--log", &log(&machine, volume)];
        let report = load(&machine.scratch.at("socket"), &args);
        assert_eq!((&report["wrong_blocks"], &report["errors"]), (&0.into(), &0.into()), "{name}: {report}");
        assert!(report["promised_blocks"].as_u64() > Some(100), "{name}: {report}");
    }
    served.stop();
}
