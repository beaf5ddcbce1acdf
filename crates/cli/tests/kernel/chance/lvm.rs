//! LVM groups: volumes of all kinds come, grow, are written, moved, merged, renamed and go, by LVM in the guest and by our verbs; then
//! clients write to them over NBD. After each turn both read the same in every volume, and `vgck` has nothing to say.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

use super::{PATIENCE, Run, Steps, Sums, client, expect_same, run_verb, sums};
use crate::machine::{MIB, Machine};
use crate::support::chance::Chance;
use crate::support::output;

const LIBRARY: &str = include_str!("lvm.sh");
const DISKS: &[&str] = &["a", "b", "c", "d"];

#[test]
fn groups_by_chance_are_the_same_to_the_kernel_and_to_us() {
    let mut steps = Steps::default();
    for run in Run::all(1) {
        let mut group = Group::new(run, steps);
        for round in 0..if run.is_short { 1 } else { 2 } {
            let is_cut = !run.is_short && group.chance.one_in(2);
            group.turn(round, if run.is_short { 6 } else { 10 }, is_cut);
        }
        println!("{run}: a group of {} volumes", group.volumes().len());
        steps = group.steps;
    }
    steps.expect_that_much_happens();
}

struct Group {
    machine: Machine,
    chance: Chance,
    run: Run,
    steps: Steps,
    /// What LVM in the guest has not activated since steps of its own (a power cut, or one that failed in its midst), and so nobody can compare:
    /// what does not come up after us is a failure. Names without the group's, which may get another one.
    inactive: BTreeSet<String>,
}

impl Group {
    fn new(run: Run, steps: Steps) -> Group {
        let (mut machine, mut chance) = (Machine::new(), Chance::new(run.seed));
        for disk in DISKS {
            machine.disk(disk, chance.of(&[40, 64, 72, 96, 128]) * MIB);
        }
        Group { machine, chance, run, steps, inactive: BTreeSet::new() }
    }

    /// The kernel's steps, and ours.
    fn turn(&mut self, round: u64, steps: u64, is_cut: bool) {
        let chance = &mut self.chance;
        let mut script = if round == 0 { make(chance) } else { String::new() };
        for number in 0..steps + chance.below(steps) {
            script.push_str(&step(chance, &format!("v{round}{number}")));
            script.push('\n');
        }
        if is_cut {
            self.cut(&script, round);
        } else {
            let theirs = self.kernel(&script);
            self.inactive.clone_from(&theirs.inactive);
            let before = self.machine.prints();
            let ours = self.read();
            self.compare(round, "as the kernel left it", theirs, ours);
            self.machine.expect_untouched(&before);
        }

        self.verbs();
        let written = self.write();
        let ours = self.read();
        expect_same(&self.when(round, "before and after the server's end"), &written, &ours);
        let theirs = self.kernel("");
        self.compare(round, "as we left it", theirs, ours);
    }

    /// Both read the same, of what the guest has activated, or had before we came.
    fn compare(&mut self, round: u64, when: &str, mut theirs: Found, mut ours: Sums) {
        let when = self.when(round, when);
        self.inactive.retain(|name| theirs.inactive.contains(name));
        for name in &self.inactive {
            println!(
                "{when}: {name} is passed over: LVM in the guest has not activated it since steps of its own"
            );
            let is_other = |volume: &str| !volume.ends_with(&format!("/{name}"));
            theirs.sums.retain(|volume, _| is_other(volume));
            ours.retain(|volume, _| is_other(volume));
        }
        expect_same(&when, &theirs.sums, &ours);
    }

    /// The kernel's steps, and a power cut in the middle of the last one. We read what is there then, and the kernel does so afterwards:
    /// which copy of what was being written to a mirror is read is nobody's promise.
    fn cut(&mut self, script: &str, round: u64) {
        let (after, last) = (self.chance.below(3_000_000), step(&mut self.chance, "last"));
        let script = format!("{LIBRARY}\n{script}\nlose_power {after} '{last}'");
        self.machine.run_until_power_cut(PATIENCE, &script);
        let before = self.machine.prints();
        let mut ours = self.read();
        self.machine.expect_untouched(&before);
        let mut theirs = self.kernel("");
        for mirror in &theirs.mirrors {
            theirs.sums.remove(mirror);
            ours.remove(mirror);
        }
        self.inactive.clone_from(&theirs.inactive);
        self.compare(round, "after a power cut", theirs, ours);
    }

    fn when(&self, round: u64, what: &str) -> String {
        format!("{}, turn {round}, {what}", self.run)
    }

    /// Runs a script in the guest; what the volumes hold then, for the kernel.
    fn kernel(&self, script: &str) -> Found {
        let script = format!("{LIBRARY}\n{script}\nvgck || echo vgck\nsums");
        let said = self.machine.run_long(PATIENCE, &script);
        self.steps.count(&said.stderr);
        assert!(!said.stdout.contains("vgck"), "{}: {said}", self.run);
        let named = |kind: &str| {
            let names = said.stdout.lines().filter_map(|line| line.strip_prefix(kind));
            names.map(str::to_owned).collect()
        };
        Found { sums: sums(&said.stdout), mirrors: named("mirror "), inactive: named("inactive ") }
    }

    /// What they hold for us.
    fn read(&self) -> Sums {
        let served = self.machine.serve(DISKS, &["--read-only"]);
        let said = client(&self.machine, "for name in volumes(uri):\n    tell(name, connect_to(name))\n");
        served.stop();
        sums(&said)
    }

    /// A client writes to all that can be written; what they hold then.
    fn write(&mut self) -> Sums {
        let served = self.machine.serve(DISKS, &[]);
        let seed = self.chance.below(u64::MAX);
        let script = format!(
            "rng = random.Random({seed})\nfor name in volumes(uri):\n    h = connect_to(name)\n    \
             scatter(h, rng, 6)\n    flush(h)\nfor name in volumes(uri):\n    tell(name, connect_to(name))\n"
        );
        let said = client(&self.machine, &script);
        served.stop();
        sums(&said)
    }

    /// Some of our verbs.
    fn verbs(&mut self) {
        for number in 0..2 + self.chance.below(5) {
            let volumes = self.volumes();
            let verb = verb(&mut self.chance, number, &volumes);
            run_verb(&self.machine, self.run, &self.steps, &verb, DISKS);
        }
    }

    fn volumes(&self) -> Vec<Volume> {
        let show = ["lv", "show", "--json", "--disk"];
        let done = output(&mut self.machine.scratch.blockwork(show.iter().chain(DISKS)));
        let Ok(Value::Array(volumes)) = serde_json::from_slice(&done.stdout) else {
            panic!("{}, lv show: {done:?}", self.run)
        };
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let volume = |it: &Value| Volume {
            group: text(&it["group"]),
            name: text(&it["name"]),
            is_pool: it["type"] == "thin-pool",
        };
        volumes.iter().map(volume).collect()
    }
}

/// What the kernel finds.
struct Found {
    sums: Sums,
    mirrors: BTreeSet<String>,
    inactive: BTreeSet<String>,
}

struct Volume {
    group: String,
    name: String,
    is_pool: bool,
}

/// The group, with some volumes.
fn make(chance: &mut Chance) -> String {
    let mut script = String::new();
    let label =
        chance.of(&["", "", "--dataalignment 64k", "--dataalignment 192k", "--bootloaderareasize 200k"]);
    for (number, disk) in DISKS.iter().enumerate() {
        let copies = chance.of(&["", "", "--metadatacopies 2", "--metadatacopies 0"]);
        let copies = if number == 0 { "" } else { copies };
        writeln!(script, "try pvcreate -y {label} {copies} /d/{disk}").expect("text");
    }
    let extent = chance.of(&["64k", "128k", "256k", "384k", "512k", "1m", "1m", "4m"]);
    let fourth = chance.of(&["/d/d", "/d/d", ""]);
    writeln!(script, "try vgcreate -s {extent} vg /d/a /d/b /d/c {fourth}\nVG=$(group)").expect("text");
    let volumes = [("base", "-L SIZE"), ("striped", "-i 2 -I 16k -L SIZE")];
    let mirror = [("mirror", "--type raid1 -m 1 -L SIZE")];
    for (name, create) in volumes.iter().chain(if chance.one_in(2) { &mirror[..] } else { &[] }) {
        let create = create.replace("SIZE", &format!("{}m", 2 + chance.below(8)));
        writeln!(script, "try lvcreate -y -n {name} {create} $VG\nfill {name} 4 {}", chance.below(32768))
            .expect("text");
    }
    if chance.below(5) < 3 {
        let (chunk, size) = (chance.of(&["64k", "128k", "192k", "512k"]), 12 + chance.below(16));
        write!(
            script,
            "try lvcreate -y -n pool --type thin-pool -c {chunk} -L {size}m --poolmetadatasize 2m $VG\n\
             try lvcreate -y -n thin -T -V 40m $VG/pool\nfill thin 6 {}\n\
             try lvcreate -y -s -kn -n thin_snap $VG/thin\nfill thin_snap 4 {}\nfill thin 3 {}\n",
            chance.below(32768),
            chance.below(32768),
            chance.below(32768)
        )
        .expect("text");
    }
    if chance.below(5) < 3 {
        let chunk = chance.of(&[4, 16, 64]);
        write!(
            script,
            "try lvcreate -y -s -n snap -L 4m -c {chunk}k $VG/base\nfill base 4 {}\nfill snap 2 {}\n",
            chance.below(32768),
            chance.below(32768)
        )
        .expect("text");
    }
    script
}

/// A step of the kernel's. Volumes it makes are called `name`.
fn step(chance: &mut Chance, name: &str) -> String {
    let (which, seed) = (chance.below(1000), chance.below(32000));
    let size = format!("{}m", 1 + chance.below(13));
    let fill = format!("fill {name} 3 {seed}");
    match chance.below(48) {
        0..=2 => {
            let place = chance.of(&["", "", "", "/d/b", "/d/c /d/a", "--alloc anywhere"]);
            format!("try lvcreate -y -n {name} -L {size} $VG {place}; {fill}")
        }
        3..=4 => {
            let (stripes, stripe) = (chance.of(&[2, 3]), chance.of(&[4, 8, 16, 64, 256]));
            format!("try lvcreate -y -n {name} -i {stripes} -I {stripe}k -L {size} $VG; {fill}")
        }
        5 => {
            let (kind, stripe) = (chance.of(&["raid0", "raid0_meta"]), chance.of(&[4, 16, 64]));
            format!("try lvcreate -y -n {name} --type {kind} -i 2 -I {stripe}k -L {size} $VG; {fill}")
        }
        6..=7 => {
            let (copies, region) = (chance.of(&[1, 1, 2]), chance.of(&["", "-R 64k", "-R 1m"]));
            format!("try lvcreate -y -n {name} --type raid1 -m {copies} -L {size} {region} $VG; {fill}")
        }
        8 => format!("try lvcreate -y -n {name} --type raid10 -i 2 -m 1 -L {size} $VG; {fill}"),
        9..=11 => format!("try lvextend -y -L +{size} $VG/$(one {which} \"$grown\")"),
        12 => format!("try lvreduce -y -f -L -2m $VG/$(one {which} \"$linear\")"),
        13..=15 => {
            let chunk = chance.of(&[4, 8, 16, 64, 256, 512]);
            format!(
                "of=$(one {which} \"$origin\"); try lvcreate -y -s -n {name} -L 5m -c {chunk}k $VG/$of; \
                 fill $of 3 {which}; {fill}"
            )
        }
        16..=17 => {
            let later = chance.of(&["", "-b"]);
            format!("try lvconvert --merge {later} $VG/$(one {which} \"$copies\")")
        }
        18..=19 => {
            let (chunk, size) = (chance.of(&["64k", "64k", "128k", "192k", "512k", "1m"]), 8 + which % 20);
            let how = chance.of(&["", "-Zn", "-Zy", "--discards nopassdown"]);
            let map = chance.of(&["2m", "4m"]);
            format!(
                "try lvcreate -y --type thin-pool -n {name} -c {chunk} -L {size}m --poolmetadatasize {map} {how} $VG"
            )
        }
        20..=23 => {
            let size = chance.of(&[5, 17, 64, 150]);
            format!(
                "try lvcreate -y -n {name} -T -V {size}m $VG/$(one {which} \"$pool\"); {fill}; discard {name} {seed}"
            )
        }
        24..=26 => format!(
            "of=$(one {which} \"$thin\"); try lvcreate -y -s -kn -n {name} $VG/$of; fill $of 3 {which}; {fill}; \
             discard {name} {seed}"
        ),
        27 => format!(
            "of=$(one {which} \"$plain\"); try lvchange -an $VG/$of; try lvchange -pr $VG/$of; \
             try lvcreate -y -s -kn -n {name} --thinpool $VG/$(one {seed} \"$pool\") $VG/$of; \
             try lvchange -ay $VG/$of; {fill}"
        ),
        28..=29 => format!("fill \"$(one {which} \"$any\")\" 5 {seed}"),
        30 => format!("discard \"$(one {which} \"$no_thin\")\" {seed}"),
        31..=32 => format!("try lvremove -y $VG/$(one {which} \"$any\")"),
        33 => format!("try lvrename $VG/$(one {which} \"$any\") $VG/{name}--x.y"),
        34 => format!("vgchange -an $VG >&2; try vgrename $VG {name}-g; VG=$(group); lvm_up -K 2>/dev/null"),
        35 => format!("try lvconvert -y --type raid1 -m 1 $VG/$(one {which} \"$plain\")"),
        36 => format!("settle; try lvconvert -y -m 0 $VG/$(one {which} \"$mirror\")"),
        37 => format!("settle; try lvconvert -y --splitmirrors 1 -n {name} $VG/$(one {which} \"$mirror\")"),
        38..=39 => {
            let disk = chance.of(DISKS);
            format!("try pvmove -y -i 0 -n \"$(one {which} \"$any\")\" /d/{disk}")
        }
        40 => "try vgextend $VG /d/d".to_owned(),
        41 => format!("try pvchange --metadataignore {} /d/{}", chance.of(&["y", "n"]), chance.of(DISKS)),
        42 => format!("try lvchange --addtag t{which} $VG/$(one {seed} \"$any\")"),
        43 => format!("try lvextend -y --poolmetadatasize +2m $VG/$(one {which} \"$pool\")"),
        44 => format!("try lvconvert -y --type thin-pool -c 64k $VG/$(one {which} \"$plain\")"),
        45..=46 => format!(
            "try lvconvert -y --type thin --thinpool $VG/$(one {which} \"$pool\") --originname {name} \
             $VG/$(one {seed} \"$plain\")"
        ),
        _ => format!("try lvchange -y --resync $VG/$(one {which} \"$mirror\")"),
    }
}

/// A verb of ours.
fn verb(chance: &mut Chance, number: u64, volumes: &[Volume]) -> String {
    let pools: Vec<&str> = volumes.iter().filter(|it| it.is_pool).map(|it| it.name.as_str()).collect();
    let names: Vec<&str> = volumes.iter().map(|it| it.name.as_str()).collect();
    let group = volumes.first().map_or("vg", |it| &it.group);
    let any = if names.is_empty() { "none" } else { chance.of(&names) };
    let new = format!("{group}/b{number}{}", chance.below(1000));
    match chance.below(14) {
        0..=1 => {
            let kind = chance.of(&["", "--type striped -i 2 -I 16K", "--type raid1", "--type raid10"]);
            format!("lv create {new} -L {}M {kind}", 1 + chance.below(8))
        }
        2..=3 => {
            let chunk = chance.of(&["4K", "16K", "64K", "512K"]);
            let store = format!("-L {}M -c {chunk}", 1 + chance.below(5));
            let store = if chance.one_in(2) { "" } else { &store };
            format!("lv snapshot {group}/{any} -n s{number}{} {store}", chance.below(1000))
        }
        4 => format!("lv merge {group}/{any}"),
        5..=6 => {
            let size = chance.of(&["+1M", "+3M", "+7M", "-1M", "-1M --force"]);
            format!("lv resize {group}/{any} -L {size}")
        }
        7 => format!("lv rename {group}/{any} {new}"),
        8 => format!("lv remove {group}/{any}"),
        9 => format!("lv tag {group}/{any} --addtag x"),
        10 => format!("vg rename {group} {group}r"),
        11 => {
            let chunk = chance.of(&["64K", "128K", "192K"]);
            format!("lv create {new} --thin-pool -L {}M -c {chunk}", 8 + chance.below(12))
        }
        _ if pools.is_empty() => format!("lv remove {group}/{any}"),
        _ => {
            let pool = chance.of(&pools);
            format!("lv create {new} --thin {pool} -V {}M", 4 + chance.below(96))
        }
    }
}
