//! Arrays that we made, and the same made by mdadm, side by side in the real kernel: it assembles ours, resyncs them, rebuilds onto
//! their spares, finds all copies equal, and in the end their superblocks are what mdadm's are. What it writes to them we
//! read, and the reverse.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::machine::{Facts, KIB, MIB, Machine, expect_pattern};
use crate::support::{run, tool};
use blockwork_kernel::pattern;

/// Of what the kernel writes, and of what we write later.
const BY_KERNEL: u64 = 0x6d64_c001;
const BY_US: u64 = 0x6d64_c002;

/// Members of all arrays are partitions of these disks: the first ones of the first, and so on.
const OURS: [&str; 5] = ["o0", "o1", "o2", "o3", "o4"];
const THEIRS: [&str; 5] = ["t0", "t1", "t2", "t3", "t4"];

struct Shape {
    name: &'static str,
    /// KiB of each disk.
    disks: &'static [u64],
    /// Options, for mdadm and for us: `--raid-devices` and `--level` at least.
    options: &'static str,
    /// The first member is to come.
    first_missing: bool,
}

const fn shape(name: &'static str, disks: &'static [u64], options: &'static str) -> Shape {
    Shape { name, disks, options, first_missing: false }
}

impl Shape {
    const fn without_the_first(self) -> Shape {
        Shape { first_missing: true, ..self }
    }

    /// The command line of disks, by their names.
    fn devices(&self, device: impl Fn(usize) -> String) -> String {
        let mut words = vec!["missing".to_owned(); usize::from(self.first_missing)];
        words.extend((0..self.disks.len()).map(device));
        words.join(" ")
    }
}

const TWO: &[u64] = &[8192; 2];
const THREE: &[u64] = &[8192, 8500, 8300];
const FOUR: &[u64] = &[8192; 4];
const FIVE: &[u64] = &[9000, 8192, 8400, 8192, 10_000];

const SHAPES: &[Shape] = &[
    shape("r0-2", TWO, "--level=0 --raid-devices=2 --chunk=64K"),
    shape("r0-zones", &[4500, 6500, 10_000], "--level=0 --raid-devices=3 --chunk=16K"),
    shape("r0-zones-1.0", THREE, "--level=0 --raid-devices=3 --metadata=1.0"),
    shape("r1-2", TWO, "--level=1 --raid-devices=2"),
    shape("r1-2-bitmap-1.0", TWO, "--level=1 --raid-devices=2 --bitmap=internal --metadata=1.0"),
    shape("r1-3-1.1", THREE, "--level=1 --raid-devices=3 --metadata=1.1 --bitmap=internal"),
    shape("r1-clean", TWO, "--level=1 --raid-devices=2 --assume-clean --size=4M"),
    shape("r10-n2-4", FOUR, "--level=10 --raid-devices=4"),
    shape("r10-n2-5-bitmap", FIVE, "--level=10 --raid-devices=5 --chunk=64K --bitmap=internal"),
    shape("r10-n3-4-spare", FIVE, "--level=10 --raid-devices=4 --spare-devices=1 --layout=n3 --chunk=64K"),
    shape("r10-f2-3", THREE, "--level=10 --raid-devices=3 --layout=f2 --chunk=32K --bitmap=internal"),
    shape("r10-o2-4-1.0", FOUR, "--level=10 --raid-devices=4 --layout=o2 --chunk=16K --metadata=1.0"),
    shape("r10-n2-degraded", THREE, "--level=10 --raid-devices=4 --chunk=64K").without_the_first(),
    shape(
        "r10-f2-rebuilt",
        FOUR,
        "--level=10 --raid-devices=4 --spare-devices=1 --layout=f2 --chunk=64K --bitmap=internal",
    )
    .without_the_first(),
    shape("r1-rebuilt", TWO, "--level=1 --raid-devices=2 --spare-devices=1").without_the_first(),
];

fn partition(machine: &Machine, disks: &[&str]) {
    for (nth, disk) in disks.iter().enumerate() {
        let mut table = String::from("label: gpt\n");
        for shape in SHAPES {
            writeln!(table, "size={}KiB", shape.disks.get(nth).copied().unwrap_or(64)).expect("text");
        }
        let file = machine.scratch.write("table", table);
        run(tool("sh").args(["-c", &format!("exec sfdisk --quiet {} <{file}", machine.scratch.at(disk))]));
    }
}

fn create_ours(machine: &Machine, name: &str, options: &str, devices: &str) -> String {
    let mut command = machine.scratch.blockwork(["md", "create", &format!("--name=any:{name}")]);
    run(command.args(options.split(' ')).args(devices.split(' ')))
}

/// What both are asked for. mdadm must have nothing to say on stderr.
const SHOW: &str = "
quiet() { \"$@\" 2>/tmp/said; [ ! -s /tmp/said ] || { echo \"$* said:\"; cat /tmp/said; return 1; } >&2; }
# show NAME WHOSE MEMBERS...
show() {
    local name=$1 whose=$2 device nth=0
    shift 2
    for device; do
        echo \"@@ $name $whose $nth\"
        quiet mdadm --examine $device >/tmp/shown
        cat /tmp/shown
        ! grep -q 'Internal Bitmap' /tmp/shown || quiet mdadm --examine-bitmap $device
        echo @@
        nth=$((nth + 1))
    done
}
# lives NAME ARRAY WHOSE SEED MEMBERS...: an array that runs is waited for, judged, filled and stopped.
lives() {
    local name=$1 array=$2 whose=$3 seed=$4
    shift 4
    md_wait $array
    quiet mdadm --detail $array >/dev/null
    quiet mdadm --detail --scan $array >/dev/null
    [ ! -e $(md_sysfs $array)/degraded ] || fact $name degraded.$whose $(md_reads $array degraded)
    [ ! -e $(md_sysfs $array)/sync_action ] || fact $name differs.$whose $(md_scrub $array)
    whole write $array $seed
    fact $name size.$whose $(size_of $array)
    md_stop $array
    show $name $whose \"$@\"
}
";

/// The lines of `mdadm --examine` by member, without what differs between any two arrays.
fn shown(stdout: &str) -> BTreeMap<(String, String), Vec<String>> {
    const OWN: [&str; 8] = [
        "Array UUID",
        "UUID",
        "Device UUID",
        "Creation Time",
        "Update Time",
        "Checksum",
        "Events",
        "Filename",
    ];
    let mut found = BTreeMap::new();
    for block in stdout.split("@@ ").skip(1) {
        let text = block.split("@@\n").next().unwrap_or_default();
        let (head, lines) = text.split_once('\n').expect("a member has lines");
        let [name, whose, nth] = head.split(' ').collect::<Vec<_>>()[..] else { panic!("{head}") };
        let is_common = |line: &&str| {
            let key = line.split(" : ").next().unwrap_or_default().trim();
            !OWN.contains(&key) && key != "Events Cleared" && !line.starts_with("/dev/")
        };
        let lines = lines.lines().filter(is_common).map(str::to_owned).collect();
        assert!(found.insert((format!("{name} {nth}"), whose.to_owned()), lines).is_none(), "{head} twice");
    }
    found
}

/// All members of ours are described as those of theirs.
fn compare(stdout: &str) -> usize {
    let shown = shown(stdout);
    let ours = shown.iter().filter(|((_, whose), _)| whose == "ours");
    let compared = ours.map(|((name, _), lines)| {
        let theirs = &shown[&(name.clone(), "theirs".to_owned())];
        assert_eq!(lines.join("\n"), theirs.join("\n"), "{name}: ours (left) and theirs");
    });
    compared.count()
}

fn parts(disks: [&str; 5], shape: &Shape, number: usize) -> String {
    shape.devices(|nth| format!("$(part /d/{} {number})", disks[nth]))
}

fn live(shapes: &[(usize, &Shape)]) -> String {
    let mut script = format!("{SHOW}\nmd_ready\n");
    for (number, shape) in shapes {
        let number = *number;
        let Shape { name, options, .. } = shape;
        let (ours, theirs) = (parts(OURS, shape, number), parts(THEIRS, shape, number));
        let there = |devices: &str| devices.replace("missing ", "");
        writeln!(
            script,
            "echo '== {name}' after $SECONDS s >&2
             show {name} fresh {ours_there}
             md_create /dev/md{number} {name} {options} {theirs}
             lives {name} /dev/md{number} theirs {BY_KERNEL} {theirs_there}
             quiet mdadm --assemble -q /dev/md{number} {ours_there}
             ! md_is /dev/md{number} array_state read-auto || mdadm --readwrite /dev/md{number}
             lives {name} /dev/md{number} ours {BY_KERNEL} {ours_there}",
            ours_there = there(&ours),
            theirs_there = there(&theirs),
        )
        .expect("text");
    }
    script
}

#[test]
fn the_kernel_takes_what_we_make_for_what_mdadm_makes_and_both_write_to_it() {
    let mut machine = Machine::new();
    for (nth, disk) in [OURS, THEIRS].into_iter().flat_map(|disks| disks.into_iter().enumerate()) {
        let kib: u64 = SHAPES.iter().map(|shape| shape.disks.get(nth).copied().unwrap_or(64) + KIB).sum();
        machine.disk(disk, kib * KIB + 4 * MIB);
    }
    partition(&machine, &OURS);
    partition(&machine, &THEIRS);
    for (number, shape) in (1..).zip(SHAPES) {
        let number: usize = number;
        let devices = shape.devices(|nth| format!("{}/{number}", OURS[nth]));
        let said = create_ours(&machine, shape.name, shape.options, &devices);
        assert_eq!(
            said.contains("resynced"),
            !shape.options.contains("level=0") && shape.name != "r1-clean",
            "{said}"
        );
    }
    let numbered: Vec<_> = (1..).zip(SHAPES).collect();
    // A few at a time, as a script must not last for ever.
    let lived: String = numbered.chunks(4).map(|some| machine.run(&live(some)).stdout).collect();
    let facts = Facts(&lived);
    for shape in SHAPES {
        assert_eq!(
            facts.get(shape.name, "size.ours"),
            facts.get(shape.name, "size.theirs"),
            "{}",
            shape.name
        );
        if !shape.options.contains("level=0") {
            assert_eq!(facts.get(shape.name, "differs.ours"), "0", "{}", shape.name);
            let degraded = if shape.name.contains("degraded") { "1" } else { "0" };
            assert_eq!(facts.get(shape.name, "degraded.ours"), degraded, "{}", shape.name);
        }
    }
    assert_eq!(compare(&lived), SHAPES.iter().map(|shape| shape.disks.len()).sum::<usize>());

    let served = machine.serve(&OURS, &[]);
    for shape in SHAPES {
        let volume = format!("md/{}", shape.name);
        let copy = machine.copy_out(&volume);
        let length = expect_pattern(shape.name, &copy, BY_KERNEL);
        assert_eq!(length, facts.number(shape.name, "size.ours"), "{}", shape.name);
        let file = std::fs::File::options().write(true).open(&copy).expect("the copy");
        pattern::write(&file, 0, length, BY_US).expect("the pattern is written");
        run(tool("nbdcopy").arg(&copy).arg(machine.scratch.uri(&volume)));
    }
    served.stop();
    let mut script = String::new();
    for (number, shape) in (1..).zip(SHAPES) {
        let name = shape.name;
        let there = parts(OURS, shape, number).replace("missing ", "");
        writeln!(
            script,
            "md_assemble /dev/md{number} {there}
             whole verify /dev/md{number} {BY_US}
             [ ! -e $(md_sysfs /dev/md{number})/sync_action ] || fact {name} differs $(md_scrub /dev/md{number})
             md_stop /dev/md{number}"
        )
        .expect("text");
    }
    let judged = machine.run(&script);
    let facts = Facts(&judged.stdout);
    for shape in SHAPES.iter().filter(|shape| !shape.options.contains("level=0")) {
        assert_eq!(facts.get(shape.name, "differs"), "0", "{}", shape.name);
    }
}

/// Sizes where mdadm leaves more room, or a bitmap is made by itself: GiB of each member.
const LARGE: &[(&str, u64, &str)] = &[
    ("l1-9", 9, "--level=1 --raid-devices=2"),
    ("l10-110", 110, "--level=10 --raid-devices=2"),
    ("l1-110-1.0", 110, "--level=1 --raid-devices=2 --metadata=1.0"),
    ("l1-250", 250, "--level=1 --raid-devices=2"),
    ("l10-f2-3000", 3000, "--level=10 --raid-devices=2 --layout=f2 --chunk=64K"),
];

#[test]
fn large_members_are_laid_out_as_mdadm_lays_them_out() {
    let mut machine = Machine::new();
    let mut script = format!("{SHOW}\nmd_ready\n");
    for (number, (name, gib, options)) in LARGE.iter().enumerate() {
        let disks = |whose: &str| [0, 1].map(|nth| format!("{name}.{whose}{nth}"));
        for disk in [disks("o"), disks("t")].concat() {
            machine.disk(&disk, gib << 30);
        }
        let options = format!("{options} --assume-clean");
        create_ours(&machine, name, &options, &disks("o").join(" "));
        let devices = |whose| disks(whose).map(|disk| format!("$(device /d/{disk})")).join(" ");
        let (ours, theirs) = (devices("o"), devices("t"));
        writeln!(
            script,
            "md_create /dev/md{number} {name} {options} {theirs}
             mdadm --stop /dev/md{number} >&2
             show {name} theirs {theirs}
             quiet mdadm --assemble -q /dev/md{number} {ours}
             quiet mdadm --detail /dev/md{number} >/dev/null
             mdadm --stop /dev/md{number} >&2
             show {name} ours {ours}"
        )
        .expect("text");
    }
    let shown = machine.run(&script);
    assert_eq!(compare(&shown.stdout), 2 * LARGE.len());
}
