//! Arrays and volumes with a parity that the kernel and we use in turns: written without some members, rebuilt, resynced after a kill or a power
//! cut, repaired; each time the kernel finds that every parity fits, and what was written.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use serde_json::Value;

use crate::machine::{Facts, MIB, Machine, scribble, sha256_of};
use crate::support::nbd::fio;
use crate::support::{run, run_refused};

/// Name, members, arguments of `mdadm --create`, and how many can be missing.
const ARRAYS: &[(&str, usize, &str, usize)] = &[
    ("four", 4, "--level=4 --chunk=16 --bitmap=internal --bitmap-chunk=64K", 1),
    ("five", 4, "--level=5 --chunk=64 --layout=la --bitmap=internal --bitmap-chunk=64K", 1),
    ("plain", 3, "--level=5 --chunk=16 --layout=rs", 1),
    ("six", 5, "--level=6 --chunk=32 --bitmap=internal --bitmap-chunk=128K", 2),
    ("zero", 6, "--level=6 --chunk=16 --layout=ddf-zero-restart", 2),
];

const SIZE: u64 = 10 * MIB;

fn disks(name: &str, members: usize) -> Vec<String> {
    (0..members).map(|nth| format!("{name}.{nth}")).collect()
}

/// The arrays, made and filled by the kernel; of each, `spares` disks more than members.
fn made(spares: usize) -> Machine {
    let mut machine = Machine::new();
    let mut script = String::new();
    for (number, (name, members, create, _)) in ARRAYS.iter().enumerate() {
        disks(name, members + spares).iter().for_each(|disk| machine.disk(disk, SIZE));
        let devices: String = disks(name, *members).iter().map(|disk| format!(" /d/{disk}")).collect();
        script.push_str(&format!(
            "md_create /dev/md{number} {name} --raid-devices={members} {create}{devices}
             whole write /dev/md{number} {number}
             md_wait /dev/md{number}
             md_stop /dev/md{number}\n"
        ));
    }
    machine.run_long(Duration::from_secs(300), &script);
    machine
}

/// `blockwork md ARGS --json`, of a server.
fn md(machine: &Machine, args: &[&str]) -> Value {
    machine.note("md", &args.join(" "));
    let said = run(machine.scratch.blockwork(["md"]).args(args).arg("--json"));
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{args:?}: {error}: {said}"))
}

/// Writes to an array in all sizes, and gives what is in it then.
fn write(machine: &Machine, name: &str, seed: u64) -> String {
    let volume = format!("md/{name}");
    scribble(machine, &volume, seed);
    let job = [
        "--rw=randwrite",
        "--bsrange=512-256k",
        "--iodepth=16",
        "--size=6M",
        "--verify=crc32c",
        "--fsync=64",
    ];
    run(&mut fio(&machine.scratch, &machine.scratch.uri(&volume), &job));
    machine.sha256(&volume)
}

/// `judge NUMBER NAME DEGRADED MEMBERS...`: what the kernel finds; `takes_back NUMBER NAME OTHERS... -- MEMBERS...`: gives it those members, and waits until they are filled.
const JUDGE: &str = "
judge() {
    local array=/dev/md$1 name=$2 degraded=$3
    shift 3
    dmesg -C
    md_assemble $array --run \"$@\"
    ! md_is $array array_state read-auto || mdadm --readwrite $array
    fact $name.$degraded resyncs \"$(dmesg | grep -c 'resync of RAID\\|not clean' || true)\"
    fact $name.$degraded degraded \"$(md_reads $array degraded)\"
    fact $name.$degraded differs $(md_scrub $array)
    fact $name.$degraded sha256 $(sha256 $array)
}
";

fn fact(facts: &Facts<'_>, name: &str, degraded: usize, sha256: &str) {
    let key = format!("{name}.{degraded}");
    let is = |what| facts.get(&key, what);
    assert_eq!(is("degraded"), degraded.to_string(), "{name}");
    assert_eq!((is("resyncs"), is("differs")), ("0", "0"), "{name}");
    assert_eq!(is("sha256"), sha256, "{name}");
}

#[test]
fn what_we_write_without_members_is_what_the_kernel_reads_and_rebuilds() {
    let machine = made(0);
    let mut script = JUDGE.to_owned();
    let mut written = Vec::new();
    for (number, (name, members, create, missing)) in ARRAYS.iter().enumerate() {
        let all = disks(name, *members);
        // The first ones, so that data is missing of most rows, and parities of some.
        let (gone, left) = all.split_at(*missing);
        let served = machine.serve(left, &[]);
        written.push(write(&machine, name, 40 + number as u64));
        let said = served.stop();
        assert!(said.contains("it is degraded") && !said.contains("read-only"), "{name}: {said}");
        let devices = |disks: &[String]| disks.iter().map(|disk| format!(" /d/{disk}")).collect::<String>();
        script.push_str(&format!("judge {number} {name} {missing}{}\n", devices(left)));
        for disk in gone {
            // With a bitmap it is taken back as it was, and gets what it lacks.
            let how = if create.contains("bitmap") { "--re-add" } else { "--add" };
            if how == "--add" {
                script.push_str(&format!("mdadm --zero-superblock $(device /d/{disk}) >&2\n"));
            }
            script.push_str(&format!("mdadm /dev/md{number} {how} $(device /d/{disk}) >&2\n"));
        }
        script.push_str(&format!(
            "wait_for md_is /dev/md{number} degraded 0
             md_wait /dev/md{number}
             md_stop /dev/md{number}
             judge {number} {name} 0{}
             md_stop /dev/md{number}\n",
            devices(&all)
        ));
    }
    let judged = machine.run_long(Duration::from_secs(400), &script);
    let facts = Facts(&judged.stdout);
    for ((name, _, _, missing), sha256) in ARRAYS.iter().zip(&written) {
        fact(&facts, name, *missing, sha256);
        fact(&facts, name, 0, sha256);
    }
}

#[test]
fn what_we_rebuild_resync_and_repair_is_as_the_kernel_would_have_it() {
    let machine = made(1);
    let mut script = JUDGE.to_owned();
    let mut written = Vec::new();
    for (number, (name, members, ..)) in ARRAYS.iter().enumerate() {
        let all = disks(name, *members + 1);
        let (volume, spare) = (format!("md/{name}"), &all[*members]);
        // A member fails while it is written to, and a spare takes its place; then the server is killed in the midst of writes.
        let served = machine.serve(&all[..*members], &[]);
        scribble(&machine, &volume, number as u64);
        md(&machine, &["fail", &volume, &all[1]]);
        scribble(&machine, &volume, 70 + number as u64);
        md(&machine, &["add", &volume, spare]);
        write(&machine, name, 80 + number as u64);
        let done = md(&machine, &["wait", &volume]);
        assert_eq!(done["array"]["degraded"], 0, "{done}");
        write(&machine, name, 90 + number as u64);
        served.kill();
        let left: Vec<&str> =
            all.iter().enumerate().filter(|(nth, _)| *nth != 1).map(|(_, disk)| disk.as_str()).collect();
        // What may not fit is made to, and what does not, is found and made good.
        let served = machine.serve(&left, &[]);
        let done = md(&machine, &["wait", &volume]);
        assert_eq!(
            (&done["array"]["degraded"], &done["array"]["resync_from"]),
            (&0.into(), &Value::Null),
            "{done}"
        );
        let sha256 = write(&machine, name, 95 + number as u64);
        served.stop();
        // Of a RAID4 that is the parity: the data stay.
        let other = if *name == "four" { "four.3" } else { left[0] };
        let file = File::options().write(true).open(machine.scratch.path(other)).expect("it is there");
        file.write_all_at(&[0xee; 4096], 5 * MIB).expect("it can be written");
        drop(file);
        let served = machine.serve(&left, &[]);
        for (action, mismatches) in [("check", 8), ("repair", 8), ("check", 0)] {
            md(&machine, &[action, &volume]);
            let done = md(&machine, &["wait", &volume]);
            assert_eq!(done["array"]["sync"]["mismatch_sectors"], mismatches, "{name}, {action}: {done}");
        }
        let copy = machine.copy_out(&volume);
        let (after, length) = (sha256_of(&copy), fs::metadata(&copy).expect("it was copied").len());
        served.stop();
        assert!(after == sha256 || *name != "four", "{name}");
        // It becomes larger, and what is new fits as well.
        left.iter().for_each(|disk| {
            let disk = File::options().write(true).open(machine.scratch.path(disk));
            disk.and_then(|disk| disk.set_len(SIZE + 3 * MIB)).expect("it can become larger");
        });
        run(machine.scratch.blockwork(["md", "grow", &volume, "--disk"]).args(&left));
        let served = machine.serve(&left, &[]);
        let copy = machine.copy_out(&volume);
        let larger = File::options().write(true).open(&copy).expect("it was copied");
        assert!(larger.metadata().expect("a file").len() > length, "{name}");
        larger.set_len(length).expect("a file");
        assert_eq!(sha256_of(&copy), after, "{name}");
        let after = write(&machine, name, 97 + number as u64);
        served.stop();
        written.push(after);
        let devices: String = left.iter().map(|disk| format!(" /d/{disk}")).collect();
        script.push_str(&format!("judge {number} {name} 0{devices}\nmd_stop /dev/md{number}\n"));
    }
    let judged = machine.run_long(Duration::from_secs(400), &script);
    let facts = Facts(&judged.stdout);
    for ((name, ..), sha256) in ARRAYS.iter().zip(&written) {
        fact(&facts, name, 0, sha256);
    }
}

/// What cannot be read of a row is in a list of bad blocks: no parity can be made to fit it, and all others are.
#[test]
fn a_resync_goes_past_rows_that_cannot_be_read() {
    let mut machine = Machine::new();
    let all = disks("r", 3);
    all.iter().for_each(|disk| machine.disk(disk, SIZE));
    machine.run(
        "md_create /dev/md0 r --level=5 --chunk=16 --bitmap=none --assume-clean --raid-devices=3 /d/r.0 /d/r.1 /d/r.2
         whole write /dev/md0 1
         start=$(examine /d/r.0 'Data Offset' | cut -d ' ' -f 1)
         echo $((start + 96)) 8 >$(md_sysfs /dev/md0)/dev-$(basename $(device /d/r.0))/bad_blocks
         # The list is written with the superblock, which is when a write begins.
         pattern write /dev/md0 4194304 1048576 8
         md_stop /dev/md0
         mdadm --examine-badblocks $(device /d/r.0) | grep -q ' for 8 sectors'",
    );
    let served = machine.serve(&all, &[]);
    run(&mut fio(
        &machine.scratch,
        &machine.scratch.uri("md/r"),
        &["--rw=randwrite", "--bs=4k", "--size=1M", "--offset=4M"],
    ));
    served.kill();
    // Data or parity, far behind.
    let file = File::options().write(true).open(machine.scratch.path("r.2")).expect("it is there");
    file.write_all_at(&[0xee; 4096], 8 * MIB).expect("it can be written");
    let served = machine.serve(&all, &[]);
    let said = run_refused(&mut machine.scratch.blockwork(["md", "wait", "md/r"]));
    assert!(said.contains("parities may not fit the data from byte 49152 of each member"), "{said}");
    let checked = run(&mut machine.scratch.blockwork(["md", "check", "md/r", "--wait"]));
    assert!(checked.contains("mismatch_cnt 0"), "{checked}");
    let said = served.stop();
    assert!(said.contains("resync stops at sector 96 of a member"), "{said}");
}
