//! Members that fail while we serve, or before: clients see nothing of it, the superblocks tell it, the kernel goes on from there,
//! and a member that comes back gets what it lacks.

use std::fmt::Write;
use std::fs;

use crate::machine::{Facts, MIB, Machine, expect_pattern};
use crate::support::fs::LeftMount;
use crate::support::nbd::{load, nbdload};
use crate::support::{Background, Server, run, tool, until};
use rustix::process::Signal;

/// An array of which the second member fails.
struct Array {
    name: &'static str,
    members: usize,
    /// For `mdadm --create`.
    create: &'static str,
    bitmap: bool,
}

const fn array(name: &'static str, members: usize, create: &'static str, bitmap: bool) -> Array {
    Array { name, members, create, bitmap }
}

const ARRAYS: &[Array] = &[
    array("r1-3", 3, "--level=1 BITS", true),
    array("r1-2-none", 2, "--level=1 --metadata=1.0", false),
    array("r10-n2-4", 4, "--level=10 --layout=n2 --chunk=64 BITS", true),
    array("r10-f2-3", 3, "--level=10 --layout=f2 --chunk=64 BITS", true),
    array("r10-o2-4", 4, "--level=10 --layout=o2 --chunk=64 BITS", true),
];
const BITS: &str = "--bitmap=internal --bitmap-chunk=64K";
const MEMBER_SECTORS: u64 = 14 * 2048;
const FEW_SECTORS: u64 = 4 * 2048;

impl Array {
    fn disk(&self, nth: usize) -> String {
        format!("{}.{nth}", self.name)
    }

    fn devices(&self) -> String {
        (0..self.members).map(|nth| format!("/d/{} ", self.disk(nth))).collect()
    }
}

const JUDGE: &str = "
# The array of $3... whose second member has failed: judge NAME ARRAY MEMBERS...
judge() {
    local name=$1 array=$2 before
    shift 2
    fact $name roles \"$(examine $1 'Array State' | cut -d ' ' -f 1)\"
    fact $name state \"$(examine $1 State)\"
    fact $name behind $(($(examine $1 Events) - $(examine $2 Events)))
    md_assemble $array \"$@\"
    fact $name degraded $(md_reads $array degraded)
    fact $name failed \"$([ -e $(md_sysfs $array)/rd1 ] && echo used || echo left out)\"
    fact $name sha256 $(sha256 $array)
    before=$(sectors_written $2)
    mdadm -q --manage $array --re-add $2 || mdadm -q --manage $array --add $2
    whole_again() { md_is $array sync_action idle && md_is $array degraded 0; }
    wait_for whole_again
    fact $name recovered $(($(sectors_written $2) - before))
    fact $name differs $(md_scrub $array)
    fact $name after $(sha256 $array)
    md_stop $array
}
";

fn make(machine: &mut Machine) {
    let mut script = String::new();
    for (number, array) in ARRAYS.iter().enumerate() {
        for nth in 0..array.members {
            machine.disk(&array.disk(nth), 16 * MIB);
        }
        let create = array.create.replace("BITS", BITS);
        writeln!(
            script,
            "md_create /dev/md{number} {} --raid-devices={} {create} {}
             whole write /dev/md{number} {number}
             md_stop /dev/md{number}",
            array.name,
            array.members,
            array.devices()
        )
        .expect("text");
    }
    machine.run(&script);
}

/// What the kernel says of the arrays, which hold `contents`.
fn judge(machine: &Machine, contents: &[String]) {
    let mut script = JUDGE.to_owned();
    for (number, array) in ARRAYS.iter().enumerate() {
        writeln!(script, "judge {} /dev/md{number} {}", array.name, array.devices()).expect("text");
    }
    let judged = machine.run(&script);
    let facts = Facts(&judged.stdout);
    for (array, sha256) in ARRAYS.iter().zip(contents) {
        let name = array.name;
        let is = |key: &str| facts.get(name, key);
        let roles: String = (0..array.members).map(|nth| if nth == 1 { '.' } else { 'A' }).collect();
        assert_eq!((is("roles"), is("state")), (roles.as_str(), "clean"), "{name}");
        assert!(facts.number(name, "behind") > 1, "{name}: events of the failed member");
        assert_eq!((is("degraded"), is("failed")), ("1", "left out"), "{name}");
        assert_eq!(
            (is("sha256"), is("after"), is("differs")),
            (sha256.as_str(), sha256.as_str(), "0"),
            "{name}"
        );
        let expected = if array.bitmap { 1..FEW_SECTORS } else { MEMBER_SECTORS..u64::MAX };
        let recovered = facts.number(name, "recovered");
        assert!(
            expected.contains(&recovered),
            "{name}: {recovered} sectors were written to it, not {expected:?}"
        );
    }
}

#[test]
fn a_member_that_dies_under_load_is_left_out_on_record_and_the_kernel_brings_it_up_to_date() {
    let mut machine = Machine::new();
    make(&mut machine);
    // The second members are files that another server of ours shows, until it dies.
    let folder = machine.scratch.path("dying");
    fs::create_dir(&folder).expect("a folder");
    let dying: Vec<String> = ARRAYS.iter().map(|array| array.disk(1)).collect();
    let mut below = machine.scratch.blockwork(["serve", "--fuse"]);
    below.arg(&folder).arg("--disk").args(&dying);
    for disk in &dying {
        below.arg(format!("disk/{disk}"));
    }
    let _left = LeftMount(folder);
    let below = Server::start(&mut below);
    let given: Vec<String> = machine
        .disks()
        .iter()
        .map(|disk| if disk.ends_with(".1") { format!("dying/disk/{disk}") } else { (*disk).to_owned() })
        .collect();
    let served = machine.serve(&given, &[]);

    let log = |array: &Array| machine.scratch.at(&format!("{}.log", array.name));
    let clients: Vec<Background> = ARRAYS
        .iter()
        .zip(1..)
        .map(|(array, seed): (_, u32)| {
            let mut client = nbdload();
            client.arg(format!("unix:{}", machine.scratch.at("socket")));
            client.args(["--export", &format!("md/{}", array.name), "--verify", "--log", &log(array)]);
            client
                .args(["--rw", "randrw", "--bs", "4k", "--range", "1m+1m", "--depth", "8", "--ios", "6000"]);
            client.args(["--flush-every", "16", "--seed", &seed.to_string()]);
            Background::start(&mut client)
        })
        .collect();
    for array in ARRAYS {
        let promises = || fs::read_to_string(log(array)).unwrap_or_default().lines().count();
        until(&format!("{} has promised something", array.name), || promises() > 200);
    }
    below.kill();
    for (client, array) in clients.into_iter().zip(ARRAYS) {
        let (code, said) = client.finish();
        assert_eq!(code, Some(0), "{}: its client saw errors: {said}", array.name);
    }
    // Whoever was done before the members died writes something now.
    for array in ARRAYS {
        let volume = format!("md/{}", array.name);
        let args =
            ["--export", &volume, "--rw", "randwrite", "--bs", "4k", "--range", "2m+64k", "--ios", "64"];
        load(&machine.scratch.at("socket"), &args);
    }
    let contents: Vec<String> =
        ARRAYS.iter().map(|array| machine.sha256(&format!("md/{}", array.name))).collect();
    for array in ARRAYS {
        let args = ["--export", &format!("md/{}", array.name), "--verify-only", "--log", &log(array)];
        let report = load(&machine.scratch.at("socket"), &args);
        assert_eq!((&report["wrong_blocks"], &report["errors"]), (&0.into(), &0.into()), "{report}");
    }
    let said = served.stop();
    for array in ARRAYS {
        assert!(
            said.contains(&format!(
                "md/{}: member dying/disk/{} (role 1) has failed",
                array.name,
                array.disk(1)
            )),
            "{said}"
        );
    }
    expect_degraded(&machine);
    judge(&machine, &contents);
}

/// `scan` tells the same, of the disks themselves.
fn expect_degraded(machine: &Machine) {
    let scanned = run(machine.scratch.blockwork(["scan"]).args(machine.disks()));
    machine.note("scan", &scanned);
    for array in ARRAYS {
        let line = scanned.lines().find(|line| line.starts_with(&format!("md/{} ", array.name)));
        assert!(line.is_some_and(|line| line.contains("degraded")), "{}:\n{scanned}", array.name);
    }
}

#[test]
fn an_array_that_is_written_without_a_member_tells_the_kernel_what_that_lacks() {
    let mut machine = Machine::new();
    make(&mut machine);
    let given: Vec<String> = ARRAYS
        .iter()
        .flat_map(|array| (0..array.members).filter(|nth| *nth != 1).map(|nth| array.disk(nth)))
        .collect();
    // Twice: what the first one has left in the bitmap is there after the second.
    for seed in ["1", "2"] {
        let served = machine.serve(&given, &[]);
        for array in ARRAYS {
            let volume = format!("md/{}", array.name);
            let range = if seed == "1" { "1m+512k" } else { "2m+512k" };
            let args = ["--export", &volume, "--verify", "--rw", "randwrite", "--bs", "4k", "--range", range];
            load(&machine.scratch.at("socket"), &[&args[..], &["--ios", "500", "--seed", seed]].concat());
        }
        served.stop();
    }
    let served = machine.serve(&given, &["--read-only"]);
    let contents: Vec<String> =
        ARRAYS.iter().map(|array| machine.sha256(&format!("md/{}", array.name))).collect();
    served.stop();
    expect_degraded(&machine);
    judge(&machine, &contents);
}

/// Arrays of which some sectors of the second member cannot be read, and whether they can when something was written to it.
const UNREADABLE: &[(&str, usize, &str, bool)] = &[
    ("r1-mended", 2, "--level=1", true),
    ("r10-mended", 3, "--level=10 --layout=f2 --chunk=64 BITS", true),
    ("r1-lost", 2, "--level=1 BITS", false),
    ("r10-lost", 4, "--level=10 --layout=n2 --chunk=64", false),
];

/// Shows a disk as a file whose sectors at `sectors` cannot be read, for ever or until something is written to it.
pub fn faulty(machine: &Machine, disk: &str, sectors: &[u64], heals: bool) -> (LeftMount, Background) {
    let place = machine.scratch.path(&format!("{disk}.faulty"));
    fs::write(&place, "").expect("a place to mount on");
    let image = machine.scratch.at(disk);
    let mut node = format!(
        "driver=raw,node-name=disk,file.driver=blkdebug,file.image.driver=file,file.image.filename={image}"
    );
    for (rule, sector) in sectors.iter().enumerate() {
        let rule = format!("file.inject-error.{rule}");
        node += &format!(",{rule}.event=read_aio,{rule}.iotype=read,{rule}.sector={sector},{rule}.state=1");
    }
    if heals {
        // The rules of the first state are dropped for those of the second, one that never applies.
        let rule = format!("file.inject-error.{}", sectors.len());
        node += &format!(",{rule}.event=read_aio,{rule}.iotype=discard,{rule}.sector=0,{rule}.state=2");
        node += ",file.set-state.0.event=write_aio,file.set-state.0.state=1,file.set-state.0.new_state=2";
    }
    let export = format!("fuse,id=file,node-name=disk,writable=on,mountpoint={}", place.display());
    let mut daemon = tool("qemu-storage-daemon");
    let daemon = Background::start(daemon.args(["--blockdev", &node, "--export", &export]));
    until("the disk is shown", || fs::metadata(&place).is_ok_and(|file| file.len() > 0));
    (LeftMount(place), daemon)
}

#[test]
fn sectors_that_cannot_be_read_are_read_from_another_member_and_written_anew() {
    let mut machine = Machine::new();
    let mut script = String::new();
    for (number, (name, members, create, _)) in UNREADABLE.iter().enumerate() {
        let devices: String = (0..*members).map(|nth| format!("/d/{name}.{nth} ")).collect();
        (0..*members).for_each(|nth| machine.disk(&format!("{name}.{nth}"), 8 * MIB));
        writeln!(
            script,
            "md_create /dev/md{number} {name} --raid-devices={members} --assume-clean {} {devices}
             whole write /dev/md{number} {number}
             md_stop /dev/md{number}
             fact {name} start \"$(examine /d/{name}.1 'Data Offset' | cut -d ' ' -f 1)\"",
            create.replace("BITS", BITS)
        )
        .expect("text");
    }
    let made = machine.run(&script);
    let facts = Facts(&made.stdout);
    let mut given = machine.disks().iter().map(|disk| (*disk).to_owned()).collect::<Vec<_>>();
    let mut faults = Vec::new();
    for (name, _, _, mended) in UNREADABLE {
        let start = facts.number(name, "start");
        let sectors: Vec<u64> = (0..6).map(|nth| start + 40 + nth * 2600).collect();
        let disk = format!("{name}.1");
        faults.push(faulty(&machine, &disk, &sectors, *mended));
        *given.iter_mut().find(|other| **other == disk).expect("it was given") = format!("{disk}.faulty");
    }
    let served = machine.serve(&given, &[]);
    for (seed, (name, _, _, _)) in (0..).zip(UNREADABLE) {
        for _ in 0..2 {
            expect_pattern(name, machine.copy_out(&format!("md/{name}")), seed);
        }
    }
    let said = served.stop();
    for (_left, daemon) in faults {
        daemon.signal(Signal::TERM);
        daemon.succeed();
    }

    let mut script = String::new();
    for (number, (name, members, _, _)) in UNREADABLE.iter().enumerate() {
        let devices: String = (0..*members).map(|nth| format!("/d/{name}.{nth} ")).collect();
        writeln!(
            script,
            "fact {name} state \"$(examine /d/{name}.0 State)\"
             md_assemble /dev/md{number} {devices}
             fact {name} degraded $(md_reads /dev/md{number} degraded)
             whole verify /dev/md{number} {number}
             fact {name} differs $(md_scrub /dev/md{number})
             whole verify /dev/md{number} {number}
             md_stop /dev/md{number}"
        )
        .expect("text");
    }
    let judged = machine.run(&script);
    let facts = Facts(&judged.stdout);
    for (name, _, _, mended) in UNREADABLE {
        let of = ["state", "degraded", "differs"].map(|key| facts.get(name, key));
        assert_eq!(of, ["clean", if *mended { "0" } else { "1" }, "0"], "{name}");
        let told = if *mended { "they were written anew" } else { "has failed" };
        let line = said.lines().find(|line| line.contains(&format!("md/{name}: ")) && line.contains(told));
        assert!(line.is_some(), "{name}: no line with `{told}` in\n{said}");
    }
}
