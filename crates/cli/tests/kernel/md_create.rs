//! Arrays that we made, and the same made by mdadm, side by side in the real kernel: it assembles ours, resyncs them, rebuilds onto
//! their spares, finds all copies equal, and in the end their superblocks are what mdadm's are. What it writes to them we
//! read, and the reverse.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::machine::{Facts, KIB, MIB, Machine, expect_pattern};
use crate::support::{noise, run, tool};
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

    fn is_degraded(&self) -> bool {
        self.name.contains("degraded")
    }

    /// Size of its partition of a disk, KiB. One that is degraded has another one, for later.
    fn partition(&self, nth: usize) -> u64 {
        let later = if self.is_degraded() && nth == self.disks.len() { 8704 } else { 64 };
        self.disks.get(nth).copied().unwrap_or(later)
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
    // With --force, mdadm does not begin with the last member as a spare, either.
    shape("r4-3", THREE, "--level=4 --raid-devices=3 --chunk=64K --force"),
    shape("r5-4-bitmap", FOUR, "--level=5 --raid-devices=4 --bitmap=internal --force"),
    shape("r5-ra-3-1.0", THREE, "--level=5 --raid-devices=3 --layout=ra --chunk=4K --metadata=1.0 --force"),
    shape(
        "r5-first-spare",
        FOUR,
        "--level=5 --raid-devices=3 --spare-devices=1 --layout=parity-first --chunk=16K --force",
    ),
    shape("r5-rs-2-clean", TWO, "--level=5 --raid-devices=2 --layout=right-symmetric --assume-clean"),
    // Three chunks of data in a row: of two, patterns have the same sum whatever their seed is.
    shape("r5-degraded", THREE, "--level=5 --raid-devices=4 --bitmap=internal --chunk=64K")
        .without_the_first(),
    shape("r5-la-rebuilt", THREE, "--level=5 --raid-devices=3 --spare-devices=1 --chunk=32K --layout=la")
        .without_the_first(),
    shape("r6-4", FOUR, "--level=6 --raid-devices=4"),
    shape(
        "r6-ddf-5-bitmap",
        FIVE,
        "--level=6 --raid-devices=5 --layout=ddf-N-continue --chunk=64K --bitmap=internal",
    ),
    shape(
        "r6-ls-6-5-1.1",
        FIVE,
        "--level=6 --raid-devices=5 --layout=left-symmetric-6 --chunk=16K --metadata=1.1",
    ),
    shape("r6-degraded", FOUR, "--level=6 --raid-devices=5 --chunk=64K").without_the_first(),
    shape("r6-rebuilt", FOUR, "--level=6 --raid-devices=4 --spare-devices=1 --layout=ra --chunk=64K")
        .without_the_first(),
];

fn partition(machine: &Machine, disks: &[&str]) {
    for (nth, disk) in disks.iter().enumerate() {
        let mut table = String::from("label: gpt\n");
        for shape in SHAPES {
            writeln!(table, "size={}KiB", shape.partition(nth)).expect("text");
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
    let mut shown = shown(stdout);
    // Two places are filled at a time: which spare gets which goes by their numbers, and mdadm gives the member that begins as one the last.
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((name, whose), lines) in &mut shown {
        if name.starts_with("r6-rebuilt ") {
            let is_place = |line: &mut String| line.contains("Device Role : ");
            places.entry(whose.clone()).or_default().extend(lines.extract_if(.., is_place));
        }
    }
    places.values_mut().for_each(|places| places.sort());
    assert_eq!(places.get("ours"), places.get("theirs"), "places of r6-rebuilt");
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
        let kib: u64 = SHAPES.iter().map(|shape| shape.partition(nth) + KIB).sum();
        machine.disk(disk, kib * KIB + 4 * MIB);
    }
    partition(&machine, &OURS);
    partition(&machine, &THEIRS);
    for (number, shape) in (1..).zip(SHAPES) {
        let number: usize = number;
        let devices = shape.devices(|nth| format!("{}/{number}", OURS[nth]));
        let said = create_ours(&machine, shape.name, shape.options, &devices);
        let fits_at_once = shape.options.contains("level=0")
            || shape.options.contains("assume-clean")
            || shape.first_missing && (shape.name.starts_with("r5") || shape.name.starts_with("r6"));
        assert_eq!(said.contains("resynced"), !fits_at_once, "{said}");
        assert_eq!(
            said.contains("begins as a spare"),
            shape.first_missing && shape.name.starts_with("r6"),
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
            let degraded = if shape.is_degraded() { "1" } else { "0" };
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
             [ ! -e $(md_sysfs /dev/md{number})/sync_action ] || fact {name} differs $(md_scrub /dev/md{number})"
        )
        .expect("text");
        if shape.is_degraded() {
            let later = OURS[shape.disks.len()];
            writeln!(
                script,
                "mdadm -q /dev/md{number} --add $(part /d/{later} {number})
                 md_wait /dev/md{number}
                 fact {name} degraded $(md_reads /dev/md{number} degraded)
                 whole verify /dev/md{number} {BY_US}
                 fact {name} rebuilt.differs $(md_scrub /dev/md{number})"
            )
            .expect("text");
        }
        writeln!(script, "md_stop /dev/md{number}").expect("text");
    }
    let judged = machine.run_long(Duration::from_secs(400), &script);
    let facts = Facts(&judged.stdout);
    for shape in SHAPES.iter().filter(|shape| shape.is_degraded()) {
        assert_eq!(facts.get(shape.name, "degraded"), "0", "{}", shape.name);
        assert_eq!(facts.get(shape.name, "rebuilt.differs"), "0", "{}", shape.name);
    }
    for shape in SHAPES.iter().filter(|shape| !shape.options.contains("level=0")) {
        assert_eq!(facts.get(shape.name, "differs"), "0", "{}", shape.name);
    }
}

/// Name, level, layout as it is asked for and as the kernel numbers it, members, and those that come later.
const PARITIES: &[(&str, u8, &str, u32, usize, usize)] = &[
    ("four", 4, "", 0, 3, 0),
    ("la", 5, "la", 0, 4, 0),
    ("ra", 5, "ra", 1, 3, 1),
    ("ls", 5, "", 2, 5, 0),
    ("rs", 5, "rs", 3, 2, 0),
    ("first", 5, "parity-first", 4, 3, 0),
    ("last", 5, "parity-last", 5, 4, 0),
    ("zero", 5, "ddf-zero-restart", 1, 4, 0),
    ("6la", 6, "la", 0, 4, 1),
    ("6ra", 6, "ra", 1, 5, 0),
    ("6ls", 6, "default", 2, 5, 2),
    ("6rs", 6, "rs", 3, 4, 0),
    ("6first", 6, "parity-first", 4, 5, 0),
    ("6last", 6, "parity-last", 5, 4, 0),
    ("6zero", 6, "ddf-zero-restart", 8, 5, 0),
    ("6restart", 6, "ddf-N-restart", 9, 5, 1),
    ("6continue", 6, "ddf-N-continue", 10, 4, 0),
    ("6la-6", 6, "left-asymmetric-6", 16, 5, 0),
    ("6ra-6", 6, "right-asymmetric-6", 17, 4, 2),
    ("6ls-6", 6, "left-symmetric-6", 18, 5, 0),
    ("6rs-6", 6, "right-symmetric-6", 19, 5, 1),
    ("6first-6", 6, "parity-first-6", 20, 4, 0),
];

#[test]
fn every_layout_that_we_make_and_resync_is_the_kernels_and_its_parities_fit() {
    let mut machine = Machine::new();
    let table = format!("label: gpt\n{}", "size=3MiB\n".repeat(PARITIES.len()));
    let table = machine.scratch.write("table", table);
    for (seed, disk) in (1..).zip(OURS) {
        machine.disk(disk, 70 * MIB);
        // What is there fits nothing.
        std::fs::write(machine.scratch.path(disk), noise(70 << 20, seed)).expect("it is a file");
        run(tool("sh").args(["-c", &format!("exec sfdisk --quiet {} <{table}", machine.scratch.at(disk))]));
    }
    let mut script = String::from("md_ready\n");
    for (number, (name, level, layout, _, members, later)) in (1..).zip(PARITIES) {
        let (number, first): (usize, _) = (number, members - later);
        let mut options = format!("--level={level} --raid-devices={members} --chunk=16K --force");
        if !layout.is_empty() {
            write!(options, " --layout={layout}").expect("text");
        }
        // Those that come later are the first ones: who begins as a spare gets the place of one of them.
        let part = |nth: usize| format!("{}/{number}", OURS[nth]);
        let devices: Vec<_> =
            vec!["missing".to_owned(); *later].into_iter().chain((0..first).map(part)).collect();
        create_ours(&machine, name, &options, &devices.join(" "));
        let verb = |verb: &[&str], disks: &[&str]| {
            run(&mut machine.scratch.blockwork([&["md"], verb, &["--disk"], disks].concat()))
        };
        let array = format!("md/{name}");
        verb(&["wait", &array], &OURS[..first]);
        for nth in first..*members {
            verb(&["add", &array, &part(nth)], &OURS[..nth]);
        }
        let said = verb(&["detail", &array], &OURS[..*members]);
        assert!(said.contains(&format!("[{members}/{members}]")), "{said}");
        let devices = (0..*members).map(|nth| format!("$(part /d/{} {number})", OURS[nth]));
        let devices: Vec<_> = devices.collect();
        writeln!(
            script,
            "mdadm --assemble -q /dev/md{number} {}
             fact {name} start $(md_reads /dev/md{number} resync_start)
             ! md_is /dev/md{number} array_state read-auto || mdadm --readwrite /dev/md{number}
             for what in level layout chunk_size degraded; do fact {name} $what $(md_reads /dev/md{number} $what); done
             fact {name} size $(size_of /dev/md{number})
             fact {name} differs $(md_scrub /dev/md{number})
             md_stop /dev/md{number}",
            devices.join(" ")
        )
        .expect("text");
    }
    let judged = machine.run_long(Duration::from_secs(400), &script);
    let facts = Facts(&judged.stdout);
    for (name, level, _, number, members, _) in PARITIES {
        assert_eq!(facts.get(name, "level"), format!("raid{level}"), "{name}");
        assert_eq!(facts.number(name, "layout"), u64::from(*number), "{name}");
        assert_eq!(facts.number(name, "chunk_size"), 16 * KIB, "{name}");
        let parities = if *level == 6 { 2 } else { 1 };
        assert_eq!(facts.number(name, "size"), (*members as u64 - parities) * 2 * MIB, "{name}");
        let fits = ["start", "degraded", "differs"].map(|what| facts.get(name, what));
        assert_eq!(fits, ["none", "0", "0"], "{name}");
    }
}

/// Sizes where mdadm leaves more room, or a bitmap is made by itself: GiB of each member.
const LARGE: &[(&str, u64, &str)] = &[
    ("l1-9", 9, "--level=1 --raid-devices=2"),
    ("l10-110", 110, "--level=10 --raid-devices=2"),
    ("l1-110-1.0", 110, "--level=1 --raid-devices=2 --metadata=1.0"),
    ("l1-250", 250, "--level=1 --raid-devices=2"),
    ("l10-f2-3000", 3000, "--level=10 --raid-devices=2 --layout=f2 --chunk=64K"),
    ("l5-110", 110, "--level=5 --raid-devices=2"),
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
