//! LVM's volumes with parity, which we only read: they grow, lose legs and get them back, are repaired, rebuilt, moved and converted, by LVM in the
//! guest. Then both read the same, also on copies of the disks of which some are missing: we without them, and Linux in what it calls degraded.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::held::Held;
use super::{PATIENCE, Run, Steps};
use crate::machine::{MIB, Machine};
use crate::support::chance::Chance;

const LIBRARY: &str = concat!(include_str!("lvm.sh"), include_str!("parity_lvm.sh"));
const NAMES: &[&str] = &["a", "b", "c", "d", "e", "f", "g", "h"];
/// Behind the names of copies of the disks.
const COPY: &str = ".copy";

/// Types, and how many parities each has.
const TYPES: &[(&str, u64)] = &[
    ("raid4", 1),
    ("raid5_ls", 1),
    ("raid5_la", 1),
    ("raid5_rs", 1),
    ("raid5_ra", 1),
    ("raid5_n", 1),
    ("raid6_zr", 2),
    ("raid6_nr", 2),
    ("raid6_nc", 2),
    ("raid6_n_6", 2),
    ("raid6_ls_6", 2),
    ("raid6_la_6", 2),
    ("raid6_rs_6", 2),
    ("raid6_ra_6", 2),
];

#[test]
fn volumes_with_parity_by_chance_are_the_same_to_the_kernel_and_to_us() {
    let mut steps = Steps::default();
    let mut all = 0;
    for run in Run::all(2) {
        let mut group = Group::new(run, steps);
        let made = group.make();
        group.turn(&made, Turn::First);
        for _ in 0..if run.is_short { 0 } else { 3 } {
            let steps = group.steps();
            let turn = if group.chance.one_in(3) { Turn::Cut } else { Turn::Usual };
            group.turn(&steps, turn);
        }
        let Group { what, compared, not_computed, .. } = &group;
        all += compared;
        println!("{run}: {what} read {compared} times; {not_computed} sectors not computed");
        steps = group.steps;
    }
    assert!(all > 0, "no volume has been compared");
    steps.expect_that_much_happens();
}

/// What the kernel has found of a volume.
struct Found {
    held: Held,
    /// Of each leg whether it is in sync (A), is not all the way (a), or is not there (D).
    health: String,
}

impl Found {
    /// Some of its parity was not computed yet, or some leg not filled.
    fn is_partial(&self) -> bool {
        self.health.contains('a')
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The group is made.
    First,
    Usual,
    /// It ends by a power cut.
    Cut,
}

struct Group {
    machine: Machine,
    chance: Chance,
    run: Run,
    steps: Steps,
    what: String,
    compared: usize,
    not_computed: usize,
}

impl Group {
    fn new(run: Run, steps: Steps) -> Group {
        let (mut machine, mut chance) = (Machine::new(), Chance::new(run.seed));
        for disk in NAMES {
            machine.disk(disk, chance.of(&[24, 28]) * MIB);
        }
        Group { machine, chance, run, steps, what: String::new(), compared: 0, not_computed: 0 }
    }

    /// The group, with some volumes.
    fn make(&mut self) -> String {
        let chance = &mut self.chance;
        let extent = chance.of(&["64k", "128k", "256k", "1m"]);
        let disks: String = NAMES.iter().map(|disk| format!(" /d/{disk}")).collect();
        let mut script = format!("modprobe dm-raid\ntry vgcreate -s {extent} vg{disks}\nVG=vg\n");
        for number in 0..2 {
            let (kind, parities) = chance.of(TYPES);
            let most = 7 - parities;
            let stripes = (if parities == 2 { 3 } else { 2 }) + chance.below(most - 2);
            let stripe = chance.of(&["4k", "8k", "16k", "64k", "128k"]);
            let size = chance.of(&["3m", "6m", "10m"]);
            // LVM makes no raid6 without a resync.
            let more = chance.of(&["", "", "-R 64k", "-R 256k", if parities == 1 { "--nosync" } else { "" }]);
            write!(self.what, "{kind} -i {stripes} -I {stripe} {more}, ").expect("text");
            write!(
                script,
                "try lvcreate -y --type {kind} -i {stripes} -I {stripe} -L {size} {more} -n v{number} vg\n\
                 whole write /dev/vg/v{number} {} >&2\nfill v{number} 6 {}\n{}\n",
                chance.below(32768),
                chance.below(32768),
                chance.of(&["settle", ""]),
            )
            .expect("text");
        }
        script + &self.steps()
    }

    fn steps(&mut self) -> String {
        let count = 2 + self.chance.below(5);
        (0..count).fold(String::new(), |steps, _| steps + &self.step() + "\n")
    }

    fn step(&mut self) -> String {
        let chance = &mut self.chance;
        let (which, seed) = (chance.below(1000), chance.below(32768));
        let (lv, then) = (chance.of(&["v0", "v1"]), chance.of(&["settle", "settle", ""]));
        let slowly = chance.of(&["", &format!("slowly {lv};")]).to_owned();
        match chance.below(20) {
            0..=3 => format!("fill {lv} 4 {seed}"),
            4..=5 => format!("{slowly} try lvextend -y -L +{}m $VG/{lv}; {then}", 1 + which % 3),
            6 => format!("try lvchange --syncaction {} $VG/{lv}; {then}", chance.of(&["check", "repair"])),
            7 => format!("{slowly} try lvchange -y --resync $VG/{lv}; {then}"),
            8..=9 => format!("{slowly} try lvchange -y --rebuild $(pv {which} {lv}) $VG/{lv}; {then}"),
            10 => format!("try lvchange -an $VG/{lv}; try lvchange -ay $VG/{lv}"),
            11..=12 => format!("settle; try lvconvert -y --replace $(pv {which} {lv}) $VG/{lv}; {then}"),
            13 => format!("settle; try pvmove -y -i 0 $(pv {which} {lv})"),
            // Reshaped ones we refuse, until LVM is asked for the same once more and frees what it needed.
            14 => {
                let kind = chance.of(&["raid5", "raid5_n", "raid6", "raid6_n_6", "raid4", "raid5_rs"]);
                let convert = format!("settle; try lvconvert -y --type {kind} $VG/{lv}; settle;");
                convert.repeat(chance.of(&[1, 3]))
            }
            15 => {
                let size = chance.of(&[16, 32]);
                let convert = format!("settle; try lvconvert -y --stripesize {size}k $VG/{lv}; settle;");
                convert.repeat(chance.of(&[1, 2, 2]))
            }
            16 => format!(
                "settle; try lvconvert -y --raidintegrity y $VG/{lv}; fill {lv} 2 {seed}; settle; \
                 try lvconvert -y --raidintegrity n $VG/{lv}"
            ),
            17 => format!("fast {lv}; {then}"),
            18 => "vgchange --refresh $VG >&2".to_owned(),
            _ => format!("try lvconvert -y --repair $VG/{lv}; {then}"),
        }
    }

    /// The kernel takes steps, sometimes without a disk, or until the power goes. What it finds in the end, or when it comes back, we find on copies of
    /// what it has left; and without some more disks we find what it does without these.
    fn turn(&mut self, steps: &str, turn: Turn) {
        let chance = &mut self.chance;
        let is_without = turn != Turn::First && chance.one_in(4);
        let lost: BTreeSet<&str> = is_without.then(|| chance.of(NAMES)).into_iter().collect();
        let (count, mut missing) = (1 + chance.below(2), lost.clone());
        missing.extend((0..count).map(|_| chance.of(NAMES)));
        let disks = without(&lost, "");
        let found = if turn == Turn::Cut {
            self.cut(&disks);
            self.copy();
            self.kernel(&disks, "")
        } else {
            let found = self.kernel(&disks, steps);
            self.copy();
            found
        };
        assert!(turn != Turn::First || found.len() == 2, "{}: {} volumes", self.run, found.len());
        let when = format!("{}, without {lost:?}", self.run);
        self.compare(&when, &without(&lost, COPY), &found);
        let when = format!("{}, both without {missing:?}", self.run);
        let ours = self.read(&without(&missing, COPY), &found);
        let theirs = self.kernel(&without(&missing, COPY), "");
        for (name, it) in theirs.iter().filter(|(name, _)| found.contains_key(*name)) {
            self.expect(&when, name, &ours, it, found[name].is_partial());
        }
    }

    /// What they hold on those disks, for us, is what was found.
    fn compare(&mut self, when: &str, disks: &[String], found: &BTreeMap<String, Found>) {
        let before = self.machine.prints();
        let ours = self.read(disks, found);
        for (name, it) in found {
            self.expect(when, name, &ours, it, it.is_partial());
        }
        self.machine.expect_untouched(&before);
    }

    fn expect(
        &mut self,
        when: &str,
        name: &str,
        (ours, said): &(BTreeMap<String, Held>, String),
        theirs: &Found,
        may_fail: bool,
    ) {
        let when = format!("{when}: {name}, {}", theirs.health);
        let Some(ours) = ours.get(name) else {
            let refused = said.lines().find(|line| line.contains(&format!("not served: vg/{name}")));
            let is_reshaped = refused.is_some_and(|line| line.contains("has the flag RESHAPE"));
            assert!(is_reshaped, "{when}: {refused:?}");
            return;
        };
        self.not_computed += ours.expect(&when, &theirs.held, may_fail);
        self.compared += 1;
    }

    /// What we read on those disks, of volumes that are found there; and what the server said.
    fn read(&self, disks: &[String], found: &BTreeMap<String, Found>) -> (BTreeMap<String, Held>, String) {
        // What nothing is served of has no server.
        let plain = self.machine.scratch.sparse("plain", MIB);
        let served = self.machine.serve(disks, &[&plain, "--read-only"]);
        let held =
            |name: &String| Some((name.clone(), Held::of_server(&self.machine, &format!("vg/{name}"))?));
        let held = found.keys().filter_map(held).collect();
        (held, served.stop())
    }

    /// Runs a script in the guest; what the volumes hold then.
    fn kernel(&self, disks: &[String], steps: &str) -> BTreeMap<String, Found> {
        let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
        let script = format!("{LIBRARY}\n{steps}\ntell");
        let mut output = self.machine.run_long_with(&disks, PATIENCE, &script);
        self.steps.count(&output.stderr);
        let health = output.stdout.lines().filter_map(|line| line.strip_prefix("health ")?.split_once(' '));
        let found = health.filter_map(|(name, health)| {
            let held = Held::decode(&output.files.remove(&format!("held.{name}"))?);
            Some((name.to_owned(), Found { held, health: health.to_owned() }))
        });
        found.collect()
    }

    /// The power goes while the kernel writes and takes a step.
    fn cut(&mut self, disks: &[String]) {
        let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
        let (after, last) = (self.chance.below(2_000_000), self.step());
        let script = format!("{LIBRARY}\nlose_power {after} '{last}'");
        self.machine.run_with_until_power_cut(&disks, PATIENCE, &script);
    }

    fn copy(&self) {
        for disk in NAMES {
            let copy = self.machine.scratch.path(&format!("{disk}{COPY}"));
            std::fs::copy(self.machine.scratch.path(disk), copy).expect("room for a copy");
        }
    }
}

/// All disks but those, or their copies.
fn without(missing: &BTreeSet<&str>, suffix: &str) -> Vec<String> {
    NAMES.iter().filter(|disk| !missing.contains(**disk)).map(|disk| format!("{disk}{suffix}")).collect()
}
