//! Our server killed, or the kernel's machine without power, while an array is being resynced, filled, replaced or made larger under clients
//! that write: the other one goes on, all copies are the same in the end, and what was promised is there.

use std::fmt::Write;
use std::fs::{self, File};
use std::time::Duration;

use blockwork_kernel::pattern;
use serde_json::Value;

use crate::machine::{Facts, MIB, Machine};
use crate::support::nbd::{load, nbdload};
use crate::support::{Background, run, until};

/// What an array is at when that happens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Resync,
    Recovery,
    Replacement,
    Growth,
}

/// An array of disks of its own; the last one is a spare, or comes to be one, where it is filled.
struct Array {
    name: &'static str,
    members: usize,
    /// For `mdadm --create`.
    create: &'static str,
    at: At,
}

const fn array(name: &'static str, members: usize, create: &'static str, at: At) -> Array {
    Array { name, members, create, at }
}

const ARRAYS: &[Array] = &[
    array("resync-r1", 2, "--level=1 --metadata=1.0", At::Resync),
    array("resync-o2", 3, "--level=10 --layout=o2 --chunk=64 BITS", At::Resync),
    array("recovery-r1", 2, "--level=1 BITS", At::Recovery),
    array("recovery-n2", 4, "--level=10 --layout=n2 --chunk=64 --metadata=1.0", At::Recovery),
    array("recovery-f2", 3, "--level=10 --layout=f2 --chunk=64 BITS", At::Recovery),
    array("replacement-r1", 2, "--level=1 --metadata=1.0 BITS", At::Replacement),
    array("replacement-n2", 3, "--level=10 --layout=n2 --chunk=64", At::Replacement),
    array("replacement-o2", 4, "--level=10 --layout=o2 --chunk=64 BITS", At::Replacement),
    array("growth-r1", 2, "--level=1 --size=6M", At::Growth),
    array("growth-n2", 4, "--level=10 --layout=n2 --chunk=64 --size=6M --metadata=1.0", At::Growth),
];

/// Arrays resynchronize as fast as they can, or hardly at all.
const SPEED: &str = "
speed=2000000
md_ready() { modprobe md-mod; echo $speed | tee /proc/sys/dev/raid/speed_limit_min >/proc/sys/dev/raid/speed_limit_max; }
md_create_slow() { speed=100; md_create \"$@\"; speed=2000000; }
";

const BITS: &str = "--bitmap=internal --bitmap-chunk=64K";
/// Of each array, what clients write to.
const WRITTEN: &str = "1m+2m";

impl Array {
    fn disk(&self, nth: usize) -> String {
        format!("{}.{nth}", self.name)
    }

    fn has_spare(&self) -> bool {
        matches!(self.at, At::Recovery | At::Replacement)
    }

    fn disks(&self) -> Vec<String> {
        (0..self.members + usize::from(self.has_spare())).map(|nth| self.disk(nth)).collect()
    }

    /// Without the one that has failed.
    fn whole_disks(&self) -> Vec<String> {
        let mut disks = self.disks();
        if self.at == At::Recovery {
            disks.remove(1);
        }
        disks
    }

    fn volume(&self) -> String {
        format!("md/{}", self.name)
    }
}

/// New arrays of the kernel's, each with a pattern; those that are to be resynced have only begun.
fn make(machine: &mut Machine) {
    let mut script = String::from(SPEED);
    for (number, array) in ARRAYS.iter().enumerate() {
        for disk in array.disks() {
            machine.disk(&disk, 16 * MIB);
        }
        let create = array.create.replace("BITS", BITS);
        let members: String = (0..array.members).map(|nth| format!("/d/{} ", array.disk(nth))).collect();
        let device = format!("/dev/md{number}");
        let (name, count) = (array.name, array.members);
        let make = match array.at {
            // It has hardly begun when the array is stopped.
            At::Resync => "md_create_slow",
            At::Recovery | At::Replacement | At::Growth => "md_create",
        };
        let stop = match array.at {
            At::Resync => "mdadm --stop",
            At::Recovery | At::Replacement | At::Growth => "md_stop",
        };
        writeln!(
            script,
            "{make} {device} {name} --raid-devices={count} {create} {members}
             whole write {device} {number}
             {stop} {device} >&2"
        )
        .expect("text");
    }
    machine.run(&script);
}

/// `blockwork md ARGS`, of the server that runs.
fn md(machine: &Machine, args: &[&str]) -> String {
    machine.note("md", &args.join(" "));
    run(machine.scratch.blockwork(["md"]).args(args))
}

fn log(machine: &Machine, array: &Array) -> String {
    machine.scratch.at(&format!("{}.log", array.name))
}

/// Whether an array is at it, and how far.
fn done(machine: &Machine, array: &Array) -> Option<f64> {
    let said: Value =
        serde_json::from_str(&md(machine, &["status", &array.volume(), "--json"])).expect("JSON");
    let sync = &said["arrays"][0]["sync"];
    let number = |name: &str| sync[name].as_f64().unwrap_or(0.0);
    (number("total_sectors") > 0.0).then(|| number("done_sectors") / number("total_sectors"))
}

#[test]
fn what_a_killed_server_was_syncing_the_kernel_goes_on_with() {
    let mut machine = Machine::new();
    make(&mut machine);
    // Whoever serves a disk by itself cannot take it for a spare.
    let members: Vec<String> =
        ARRAYS.iter().flat_map(|array| (0..array.members).map(|nth| array.disk(nth))).collect();
    let slow = ["--set", "md:sync_speed_min=400", "--set", "md:sync_speed_max=400"];
    let served = machine.serve(&members, &slow);
    let clients: Vec<(&Array, Background)> = ARRAYS
        .iter()
        .zip(0..)
        .map(|(array, seed): (_, u32)| {
            let mut client = nbdload();
            client.arg(format!("unix:{}", machine.scratch.at("socket")));
            client.args(["--export", &array.volume(), "--verify", "--log", &log(&machine, array)]);
            client.args(["--rw", "randwrite", "--bs", "4k", "--range", WRITTEN, "--depth", "8"]);
            client.args(["--flush-every", "16", "--seconds", "100", "--seed", &seed.to_string()]);
            (array, Background::start(&mut client))
        })
        .collect();
    for array in ARRAYS {
        let (volume, second, spare) = (array.volume(), array.disk(1), array.disk(array.members));
        match array.at {
            At::Resync => {}
            At::Recovery => {
                md(&machine, &["fail", &volume, &second]);
                md(&machine, &["remove", &volume, &second]);
                md(&machine, &["add", &volume, &machine.scratch.at(&spare)]);
            }
            At::Replacement => {
                md(&machine, &["add", &volume, &machine.scratch.at(&spare)]);
                md(&machine, &["replace", &volume, &second]);
            }
            At::Growth => drop(md(&machine, &["grow", &volume])),
        }
    }
    for array in ARRAYS {
        let log = log(&machine, array);
        let promises = || fs::read_to_string(&log).unwrap_or_default().lines().count();
        until(&format!("{} has promised much", array.name), || promises() > 200);
        let far = done(&machine, array);
        assert!(far.is_some_and(|far| far < 0.9), "{}: {far:?}", array.name);
    }
    served.kill();
    for (array, client) in clients {
        let (code, said) = client.finish();
        assert_eq!(code, Some(3), "{}: the client saw its server die: {said}", array.name);
    }
    let judged = machine.run(&judge());
    let facts = Facts(&judged.stdout);
    for array in ARRAYS {
        let name = array.name;
        assert_eq!(facts.get(name, "degraded"), "0", "{name}");
        // Linux fills a replacement before it resyncs, and forgets meanwhile that what it fills may differ. What it leaves
        // different is then what we had marked, and nothing else.
        let may_differ = if array.at == At::Replacement { facts.number(name, "marked") } else { 0 };
        let differs = facts.number(name, "differs");
        assert!(
            differs <= may_differ,
            "{name}: {differs} sectors differ between copies, not up to {may_differ}"
        );
    }
    expect_promises(&machine, &facts);
}

/// The kernel has all arrays whole.
fn judge() -> String {
    let mut script = String::from(
        "
# Sectors of all chunks of 64 KiB that a member's bitmap has marked.
md_marked() {
    local chunks=$(mdadm --examine-bitmap $1 2>/dev/null | sed -n 's/.* bits (chunks), \\([0-9]*\\) dirty .*/\\1/p')
    echo $((${chunks:-0} * 128))
}
whole_again() { md_is $1 sync_action idle && md_is $1 degraded 0; }
judge() {
    local name=$1 array=$2
    shift 2
    fact $name marked $(md_marked $1)
    md_assemble $array \"$@\"
    ! md_is $array array_state read-auto || mdadm -q --readwrite $array
    wait_for whole_again $array || { cat /proc/mdstat; mdadm --examine \"$@\"; } >&2
    fact $name degraded $(md_reads $array degraded)
    fact $name size $(size_of $array)
    fact $name differs $(md_scrub $array)
    echo repair >$(md_sysfs $array)/sync_action
    wait_for md_is $array sync_action idle
    fact $name sha256 $(sha256 $array)
    md_stop $array
}
",
    );
    for (number, array) in ARRAYS.iter().enumerate() {
        writeln!(
            script,
            "judge {} /dev/md{number} {}",
            array.name,
            array.whole_disks().iter().map(|disk| format!("/d/{disk}")).collect::<Vec<_>>().join(" ")
        )
        .expect("text");
    }
    script
}

fn expect_promises(machine: &Machine, facts: &Facts<'_>) {
    let disks: Vec<String> = ARRAYS.iter().flat_map(Array::whole_disks).collect();
    let served = machine.serve(&disks, &["--read-only"]);
    for array in ARRAYS {
        let name = array.name;
        assert_eq!(machine.sha256(&array.volume()), facts.get(name, "sha256"), "{name}");
        let args = ["--export", &array.volume(), "--verify-only", "--log", &log(machine, array)];
        let report = load(&machine.scratch.at("socket"), &args);
        assert_eq!((&report["wrong_blocks"], &report["errors"]), (&0.into(), &0.into()), "{name}: {report}");
        assert!(report["promised_blocks"].as_u64() > Some(100), "{name}: {report}");
    }
    served.stop();
}

/// What is written while an array is at it, flushed.
const BEFORE_THE_CUT: u64 = 100;

#[test]
fn what_a_machine_without_power_was_syncing_we_go_on_with() {
    let mut machine = Machine::new();
    make(&mut machine);
    let mut script = format!("{SPEED}speed=100\nis_at() {{ md_is $1 sync_action $2; }}\n");
    for (number, array) in ARRAYS.iter().enumerate() {
        let (device, second, spare) = (format!("/dev/md{number}"), array.disk(1), array.disk(array.members));
        let members: String = (0..array.members).map(|nth| format!("/d/{} ", array.disk(nth))).collect();
        let (action, begin) = match array.at {
            At::Resync => ("resync", format!("mdadm -q --readwrite {device} || true")),
            At::Recovery => (
                "recover",
                format!("md_fail {device} $(device /d/{second})\nmdadm -q --add {device} /d/{spare}"),
            ),
            At::Replacement => (
                "recover",
                format!(
                    "mdadm -q --add {device} /d/{spare}\nmdadm -q {device} --replace $(device /d/{second}) --with $(device /d/{spare})"
                ),
            ),
            At::Growth => ("resync", format!("mdadm -q --grow {device} --size=max >&2")),
        };
        writeln!(
            script,
            "md_assemble {device} {members}
             {begin}
             wait_for is_at {device} {action}
             pattern write {device} {MIB} {MIB} {}",
            number as u64 + BEFORE_THE_CUT,
        )
        .expect("text");
    }
    for (number, array) in ARRAYS.iter().enumerate() {
        writeln!(script, "sync\nfact {} at $(md_reads /dev/md{number} sync_action)", array.name)
            .expect("text");
    }
    script.push_str("power_cut\n");
    let cut = machine.run_until_power_cut(Duration::from_secs(120), &script);
    let facts = Facts(&cut.stdout);
    for array in ARRAYS {
        assert_ne!(facts.get(array.name, "at"), "idle", "{}", array.name);
    }
    let disks: Vec<String> = ARRAYS.iter().flat_map(Array::whole_disks).collect();
    let served = machine.serve(&disks, &[]);
    for (array, number) in ARRAYS.iter().zip(0..) {
        let (name, volume) = (array.name, array.volume());
        let done: Value = serde_json::from_str(&md(&machine, &["wait", &volume, "--json"])).expect("JSON");
        assert_eq!(done["array"]["degraded"], 0, "{name}: {done}");
        let checked: Value =
            serde_json::from_str(&md(&machine, &["check", &volume, "--wait", "--json"])).expect("JSON");
        assert_eq!(checked["array"]["sync"]["mismatch_sectors"], 0, "{name}: {checked}");
        let file = File::open(machine.copy_out(&volume)).expect("it was copied");
        let verify = |start, length, seed| {
            pattern::verify(&file, start, length, seed).unwrap_or_else(|error| panic!("{name}: {error}"));
        };
        verify(0, MIB, number);
        verify(MIB, MIB, number + BEFORE_THE_CUT);
        verify(2 * MIB, 3 * MIB, number);
    }
    served.stop();
}
