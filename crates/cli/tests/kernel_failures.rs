//! Members that fail while we serve, or before: clients see nothing of it, the superblocks tell it, the kernel goes on from there,
//! and a member that comes back gets what it lacks.

mod kernel;
mod support;

use std::fmt::Write;
use std::fs;

use kernel::{Facts, MIB, Machine};
use support::fs::LeftMount;
use support::nbd::{load, nbdload};
use support::{Background, Server, run, until};

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
