//! Arrays that the kernel and we look after in turns: what one leaves half-filled the other fills, what we have made equal the kernel
//! finds equal, and what we have given up it does without.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::machine::{Facts, MIB, Machine, expect_pattern};
use crate::support::{Background, Stats, run, until};
use rustix::process::Signal;
use serde_json::Value;

/// An array of the kernel's is left while it is being filled; the others are whole.
const MAKE: &str = "
md_past() { local done rest; read -r done rest <$(md_sysfs $1)/sync_completed; [ $done != none ] && [ $done -gt $2 ]; }
md_create /dev/md0 half --level=10 --layout=n2 --chunk=64 --raid-devices=4 /d/half.0 /d/half.1 /d/half.2 /d/half.3
whole write /dev/md0 1
md_wait /dev/md0
md_fail /dev/md0 $(device /d/half.1)
echo 1 >$(md_sysfs /dev/md0)/sync_speed_min
echo 2000 >$(md_sysfs /dev/md0)/sync_speed_max
mdadm -q /dev/md0 --add $(device /d/half.4)
wait_for md_past /dev/md0 4000
mdadm --stop /dev/md0 >&2
md_create /dev/md1 ours --level=1 --raid-devices=2 --bitmap=internal /d/ours.0 /d/ours.1
whole write /dev/md1 2
md_stop /dev/md1
md_create /dev/md2 less --level=10 --layout=o2 --chunk=64 --raid-devices=3 /d/less.0 /d/less.1 /d/less.2
whole write /dev/md2 3
md_stop /dev/md2
md_create /dev/md3 differ --level=10 --layout=f2 --chunk=64 --raid-devices=2 /d/differ.0 /d/differ.1
whole write /dev/md3 4
md_stop /dev/md3
";

/// What the kernel finds after us.
const JUDGE: &str = "
judge() {
    local array=$1 name=$2 seed=$3 degraded=$4
    shift 4
    dmesg -C
    md_assemble $array \"$@\"
    # Read-only until it is written to, and without a recovery until then: unless it is told.
    ! md_is $array array_state read-auto || mdadm --readwrite $array
    wait_for md_is $array degraded $degraded
    fact $name recoveries \"$(dmesg | grep -c 'recovery of RAID' || true)\"
    fact $name degraded \"$(md_reads $array degraded)\"
    fact $name differs $(md_scrub $array)
    whole verify $array $seed && fact $name content whole
    md_stop $array
}
judge /dev/md0 half 1 0 /d/half.0 /d/half.2 /d/half.3 /d/half.4
before=$(sectors_written /d/ours.2)
judge /dev/md1 ours 2 0 /d/ours.0 /d/ours.2
fact ours written $(($(sectors_written /d/ours.2) - before))
judge /dev/md2 less 3 1 /d/less.0 /d/less.1 /d/less.2
judge /dev/md3 differ 4 0 /d/differ.0 /d/differ.1
";

const SIZE: u64 = 24 * MIB;

fn machine() -> Machine {
    let mut machine = Machine::new();
    for disk in ["half.0", "half.1", "half.2", "half.3", "half.4", "ours.0", "ours.1", "ours.2"] {
        machine.disk(disk, SIZE);
    }
    for disk in ["less.0", "less.1", "less.2", "differ.0", "differ.1"] {
        machine.disk(disk, 16 * MIB);
    }
    machine
}

/// `blockwork md ARGS --json`.
fn md(machine: &Machine, args: &[&str]) -> Value {
    machine.note("md", &args.join(" "));
    let said = run(machine.scratch.blockwork(["md"]).args(args));
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{args:?}: {error}: {said}"))
}

/// How far a device of an array on these disks is in sync; none: it is not being filled.
fn recovered(machine: &Machine, disks: &[&str]) -> Option<u64> {
    let status = md(machine, &[&["status", "--json", "--disk"], disks].concat());
    let devices = status["arrays"][0]["devices"].as_array().expect("a list").clone();
    devices.iter().find_map(|device| device["recovered"].as_u64())
}

/// The kernel has begun to fill `half.4`, and we go on.
fn fill_the_rest(machine: &Machine) {
    let disks = ["half.0", "half.2", "half.3", "half.4"];
    let before = recovered(machine, &disks).expect("it is not filled yet");
    assert!(before > MIB, "{before} bytes are filled");
    let served = machine.serve(&disks, &["--stats", "--json"]);
    let done = md(machine, &["wait", "md/half", "--json"]);
    assert_eq!(done["array"]["degraded"], 0, "{done}");
    expect_pattern("md/half", machine.copy_out("md/half"), 1);
    let said = served.stop();
    let stats = Stats::all(&said).remove(0);
    let written = stats.count("half.4", "write_bytes");
    assert!(written + before <= SIZE, "{written} bytes were written after {before}");
}

/// We begin to fill `ours.2`, and are stopped.
fn begin_to_fill(machine: &Machine) {
    let both = ["--json", "--disk", "ours.0", "ours.1"];
    md(machine, &[&["fail", "md/ours", "ours.1"][..], &both].concat());
    md(machine, &[&["remove", "md/ours", "failed"][..], &both].concat());
    let add = ["md", "add", "md/ours", "ours.2", "--sync-speed-max", "4000", "--disk", "ours.0"];
    let filling = Background::start(&mut machine.scratch.blockwork(add));
    let disks = ["ours.0", "ours.2"];
    until("it is being filled", || recovered(machine, &disks).is_some());
    filling.signal(Signal::INT);
    let (code, said) = filling.finish();
    assert!(code == Some(1) && said.contains("recover was stopped at"), "{said}");
    let filled = recovered(machine, &disks).expect("it is not filled yet");
    assert!((1..SIZE).contains(&filled), "{filled}");
}

#[test]
fn the_kernel_and_we_go_on_with_what_the_other_has_begun() {
    let machine = machine();
    machine.run(MAKE);
    fill_the_rest(&machine);
    begin_to_fill(&machine);
    let filled = recovered(&machine, &["ours.0", "ours.2"]).expect("it is not filled yet");
    // One member less, and one that is not what it should be.
    let less = ["--json", "--disk", "less.0", "less.1", "less.2"];
    md(&machine, &[&["fail", "md/less", "less.1"][..], &less].concat());
    let file = File::options().write(true).open(machine.scratch.path("differ.1")).expect("it is there");
    // Second copies are in the second half of a member: a repair takes the first ones.
    file.write_all_at(&[0xee; 4096], 12 * MIB).expect("it can be written");
    drop(file);
    let both = ["--json", "--disk", "differ.0", "differ.1"];
    let repaired = md(&machine, &[&["repair", "md/differ"][..], &both].concat());
    assert!(repaired["array"]["sync"]["mismatch_sectors"].as_u64() > Some(0), "{repaired}");

    let judged = machine.run(JUDGE);
    let facts = Facts(&judged.stdout);
    for (name, degraded, recoveries) in [("half", 0, 0), ("ours", 0, 1), ("less", 1, 0), ("differ", 0, 0)] {
        assert_eq!(facts.number(name, "degraded"), degraded, "{name}");
        assert_eq!(facts.number(name, "recoveries"), recoveries, "{name}");
        assert_eq!(facts.number(name, "differs"), 0, "{name}");
        assert_eq!(facts.get(name, "content"), "whole", "{name}");
    }
    // It has gone on from where we were.
    let written = facts.number("ours", "written") * 512;
    assert!(written + filled / 2 < SIZE, "{written} bytes were written after {filled}");
}
