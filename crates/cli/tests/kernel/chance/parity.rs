//! Arrays of md with parity, which we only read: members fail, are replaced and refilled, whole or in part, arrays grow, have bad blocks, are stopped
//! and lose power, by mdadm in the guest. Then both read the same, we without members as well: whichever sets of them parity makes up for, and
//! Linux of these one. What cannot be told for certain is an error, and never something else.

use std::collections::{BTreeMap, BTreeSet};

use super::held::Held;
use super::{PATIENCE, Run, Steps};
use crate::machine::{MIB, Machine};
use crate::support::chance::Chance;
use crate::support::output;

const LIBRARY: &str = concat!(include_str!("md.sh"), include_str!("parity.sh"));
const NAMES: &[&str] = &["a", "b", "c", "d", "e", "f", "g", "h", "i"];
/// Disks beside those that the array is made of.
const SPARE: usize = 2;
/// Behind the names of their copies from before the kernel has come back.
const CUT: &str = ".cut";
/// Why we do not read one of which a member is missing.
const UNKNOWN: &str = "nothing says where its parity fits its data";

#[test]
fn arrays_with_parity_by_chance_are_the_same_to_the_kernel_and_to_us() {
    let mut steps = Steps::default();
    for run in Run::all(6) {
        let mut array = Array::new(run, steps);
        array.make();
        for _ in 0..if run.is_short { 0 } else { 3 } {
            let steps = array.steps();
            if array.chance.one_in(3) && !run.is_short {
                if array.cut() {
                    break;
                }
            } else {
                array.kernel("assemble", &steps);
            }
        }
        println!(
            "{run}: {}; {} times with a member that is filled in part, {} sectors not computed",
            array.what, array.filled_in_part, array.not_computed
        );
        steps = array.steps;
    }
    steps.expect_that_much_happens();
}

/// The members of an array: the disks that are in sync, and those that are not all the way.
#[derive(Default)]
struct Members {
    in_sync: Vec<String>,
    filling: Vec<String>,
}

impl Members {
    /// A disk, by the names that sysfs has for its place and its state.
    fn add(&mut self, disk: &str, place: &str, state: &str) {
        match state {
            _ if place == "none" => {}
            "spare" => self.filling.push(disk.to_owned()),
            _ if state.starts_with("in_sync") => self.in_sync.push(disk.to_owned()),
            _ => {}
        }
    }

    /// How many of an array of so many have all that they are to have, without those.
    fn left(&self, missing: &BTreeSet<String>) -> usize {
        self.in_sync.iter().filter(|disk| !missing.contains(*disk)).count()
    }
}

/// What the kernel has found, and left.
#[derive(Default)]
struct Found {
    held: Held,
    /// As they were found after the last assembly.
    before: Members,
    /// As they were left.
    after: Members,
    /// It was started without a member, though parity may not fit.
    is_forced: bool,
    /// And with one that had failed shortly before, which mdadm takes for good then.
    has_revived: bool,
    /// The members that have failed since, and what is held without these, for the kernel.
    without: Option<(BTreeSet<String>, Held)>,
    /// Its parity has not been computed to the end.
    is_dirty: bool,
    has_bad_blocks: bool,
    /// It has a log of parity, from which Linux makes the parity fit; we do not.
    has_ppl: bool,
}

struct Array {
    machine: Machine,
    chance: Chance,
    run: Run,
    steps: Steps,
    what: String,
    members: usize,
    parities: usize,
    /// Its superblocks are of version 0.90.
    is_old: bool,
    uuid: String,
    volume: String,
    /// What was in it when the kernel stopped it.
    held: Held,
    /// Of the names of the disks that we read.
    suffix: &'static str,
    not_computed: usize,
    /// How often a member was found that is not filled all the way.
    filled_in_part: usize,
}

impl Array {
    fn new(run: Run, steps: Steps) -> Array {
        let (mut machine, mut chance) = (Machine::new(), Chance::new(run.seed));
        let parities = chance.of(&[1, 2, 2]);
        let members = parities + chance.of(&[2, 2, 3, 3, 4, 5]);
        for disk in &NAMES[..members + SPARE] {
            machine.disk(disk, chance.of(&[10, 10, 11, 12]) * MIB);
        }
        Array {
            machine,
            chance,
            run,
            steps,
            what: String::new(),
            members,
            parities,
            is_old: false,
            uuid: String::new(),
            volume: String::new(),
            held: Held::default(),
            suffix: "",
            not_computed: 0,
            filled_in_part: 0,
        }
    }

    fn disks(&self) -> &'static [&'static str] {
        &NAMES[..self.members + SPARE]
    }

    /// The kernel makes it, and takes the first steps.
    fn make(&mut self) {
        let chance = &mut self.chance;
        let layouts: &[&str] = match (self.parities, chance.below(4)) {
            (1, 0) => &["--level=4"],
            (1, _) => &[
                "--level=5 --layout=la",
                "--level=5 --layout=ra",
                "--level=5 --layout=ls",
                "--level=5 --layout=rs",
                "--level=5 --layout=parity-first",
                "--level=5 --layout=parity-last",
                "--level=5 --layout=ddf-zero-restart",
                "--level=5 --layout=ddf-N-restart",
                "--level=5 --layout=ddf-N-continue",
            ],
            _ => &[
                "--level=6 --layout=la",
                "--level=6 --layout=ra",
                "--level=6 --layout=ls",
                "--level=6 --layout=rs",
                "--level=6 --layout=parity-first",
                "--level=6 --layout=parity-last",
                "--level=6 --layout=ddf-zero-restart",
                "--level=6 --layout=ddf-N-restart",
                "--level=6 --layout=ddf-N-continue",
                "--level=6 --layout=left-asymmetric-6",
                "--level=6 --layout=right-asymmetric-6",
                "--level=6 --layout=left-symmetric-6",
                "--level=6 --layout=right-symmetric-6",
                "--level=6 --layout=parity-first-6",
            ],
        };
        let layout = chance.of(layouts);
        let metadata = chance.of(&["1.2", "1.2", "1.1", "1.0", "0.90"]);
        self.is_old = metadata == "0.90";
        let mut policies = vec!["--bitmap=internal", "--bitmap=internal --bitmap-chunk=64K", "--bitmap=none"];
        if layout.starts_with("--level=5") && !self.is_old {
            policies.push("--consistency-policy=ppl");
        }
        let policy = chance.of(&policies);
        let (size, clean) =
            (chance.of(&["", "--size=6M"]), chance.of(&["", "--assume-clean", "--assume-clean", "--force"]));
        let chunk = chance.of(&[4, 8, 16, 64, 64, 256, 512, 1024]);
        self.what = format!(
            "{layout} --chunk={chunk} --metadata={metadata} {policy} {size} {clean} --raid-devices={}",
            self.members
        );
        let mut disks: Vec<_> = NAMES[..self.members].iter().map(|name| format!("/d/{name}")).collect();
        if chance.one_in(6) {
            let missing = chance.below(self.members as u64) as usize;
            disks[missing] = "missing".to_owned();
        }
        let make = format!(
            "md_create $array chance {} {}\n\
             uuid=$(mdadm --detail $array | sed -n 's/ *UUID : //p')\necho uuid $uuid\n\
             whole write $array {} >&2\nfill 8 {}",
            self.what,
            disks.join(" "),
            chance.below(32768),
            chance.below(32768)
        );
        let steps = self.steps();
        self.volume = if self.is_old { "md/0" } else { "md/chance" }.to_owned();
        self.kernel(&make, &steps);
    }

    /// Steps of the kernel's.
    fn steps(&mut self) -> String {
        let count = 2 + self.chance.below(5);
        let steps = (0..count).fold(String::new(), |steps, _| steps + &self.step() + "\n");
        // In the end, often, a disk that has nothing is filled in part.
        let (which, at) = (self.chance.below(1000), 1 + self.chance.below(14));
        let half = format!(
            "idle; pause_at {at}; lose {} {which}; new=$(outside {which}); \
             dd if=/dev/zero of=$new bs=1M oflag=direct 2>/dev/null; try mdadm $array --add $new; half\n",
            self.parities + 1
        );
        if self.chance.one_in(2) { steps + &half } else { steps }
    }

    fn step(&mut self) -> String {
        let chance = &mut self.chance;
        let (which, seed) = (chance.below(1000), chance.below(32768));
        let (pause, then) = match chance.below(3) {
            0 => (String::new(), "idle"),
            1 => (format!("pause_at {};", chance.below(16)), "half"),
            _ => (String::new(), ""),
        };
        let copies = self.parities + 1;
        match chance.below(20) {
            0..=3 => format!("fill {} {seed}", 1 + chance.below(4)),
            4..=6 => format!("lose {copies} {which}"),
            7..=8 => format!("{pause} try mdadm $array --add $(outside {which}); {then}"),
            9 => format!("{pause} try mdadm $array --re-add $(outside {which}); {then}"),
            10 => format!(
                "new=$(outside {which}); try mdadm --zero-superblock $new; {pause} try mdadm $array --add $new; {then}"
            ),
            11 => chance.of(&[
                "idle; try mdadm --grow $array --bitmap=none",
                "idle; try mdadm --grow $array --bitmap=internal",
                "idle; try mdadm --grow $array --bitmap=none; try mdadm --grow $array --consistency-policy=ppl",
                "idle; try mdadm --grow $array --consistency-policy=resync",
            ]).to_owned(),
            12 => format!("idle; {pause} try mdadm --grow $array --size={}; {then}", chance.of(&["max", "7168"])),
            13 => format!("idle; {pause} try mdadm $array --replace $(member {which}); {then}"),
            14..=15 => {
                format!("bad $(member {which}) {} {}", chance.below(12 << 10), chance.of(&[1, 8, 24, 300]))
            }
            16 => {
                let action = chance.of(&["check", "repair"]);
                format!("{pause} echo {action} >$(md_sysfs $array)/sync_action; {then}")
            }
            17 => "echo idle >$(md_sysfs $array)/sync_action; go_on".to_owned(),
            18 => {
                let update = chance.of(&["", "", "--update=resync", "--update=force-no-bbl"]);
                format!("try mdadm --stop $array; assemble {update}")
            }
            _ => "go_on; try mdadm --readonly $array; try mdadm --readwrite $array".to_owned(),
        }
    }

    /// Runs a script in the guest, which begins with how the array comes to be there. What it holds in the end we find as well.
    fn kernel(&mut self, begin: &str, steps: &str) {
        let found = self.told(&format!("{begin}\n{steps}"));
        self.compare(&found);
        self.held = found.held;
    }

    /// We say of each disk what mdadm says of it.
    fn examine(&self, files: &BTreeMap<String, Vec<u8>>) {
        for disk in self.disks() {
            let theirs = String::from_utf8_lossy(&files[&format!("examine.{disk}")]).into_owned();
            let ours = output(&mut self.machine.scratch.blockwork(["md", "examine", disk]));
            let ours = String::from_utf8_lossy(&ours.stdout).into_owned();
            // Behind the name of the disk; our times are UTC, and who knows what a disk of other numbers is called.
            let lines = |said: &str| {
                let named = |line: &str| line.split(" UTC").next()?.split("/dev/").next().map(str::to_owned);
                let lines = said.lines().skip(1).filter_map(|line| Some(named(line)?.trim().to_owned()));
                lines.filter(|line| !line.is_empty()).collect::<Vec<_>>()
            };
            assert_eq!(lines(&ours), lines(&theirs), "{}: {disk}, of us and of mdadm", self.run);
        }
    }

    fn told(&mut self, steps: &str) -> Found {
        let end = format!("tell {} {}", self.parities, self.chance.below(32768));
        let script = format!("{LIBRARY}\nuuid={}\n{steps}\n{end}", self.uuid);
        let mut output = self.machine.run_long(PATIENCE, &script);
        self.steps.count(&output.stderr);
        let said = &output.stdout;
        let Some(held) = output.files.remove("held") else {
            panic!("{}: there is no array: {said}", self.run)
        };
        self.examine(&output.files);
        let has_revived = output.stderr.contains("clearing FAULTY flag");
        let mut found = Found { held: Held::decode(&held), has_revived, ..Found::default() };
        for line in said.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["uuid", uuid] => uuid.clone_into(&mut self.uuid),
                ["before", disk, place, state] => found.before.add(disk, place, state),
                ["member", disk, place, state] => found.after.add(disk, place, state),
                ["assembled"] => found.before = Members::default(),
                ["forced"] => found.is_forced = true,
                ["state", state] => found.is_dirty = state == "dirty",
                ["ppl"] => found.has_ppl = true,
                ["bad_blocks"] => found.has_bad_blocks = true,
                ["without", ref disks @ ..] => {
                    let held = output.files.remove("without").expect("it was read");
                    let disks = disks.iter().map(|disk| (*disk).to_owned()).collect();
                    found.without = Some((disks, Held::decode(&held)));
                }
                _ => {}
            }
        }
        found
    }

    /// We read it as the kernel has left it, with all members and without some.
    fn compare(&mut self, found: &Found) {
        let before = self.machine.prints();
        let members = &found.after;
        self.filled_in_part += usize::from(!members.filling.is_empty());
        let may_fail = members.in_sync.len() < self.members;
        self.without(found, &BTreeSet::new(), &found.held, may_fail);
        if let Some((missing, held)) = &found.without {
            self.without(found, missing, held, found.is_dirty);
        }
        for _ in 0..4 {
            let all: Vec<&String> = members.in_sync.iter().chain(&members.filling).collect();
            let count = 1 + self.chance.below(self.parities as u64);
            let missing: BTreeSet<String> = (0..count).map(|_| self.chance.of(&all).clone()).collect();
            self.without(found, &missing, &found.held, true);
        }
        self.machine.expect_untouched(&before);
    }

    fn without(&mut self, found: &Found, missing: &BTreeSet<String>, held: &Held, may_fail: bool) {
        let members = &found.after;
        let lost = self.members - members.left(missing);
        let filling = members.filling.iter().filter(|disk| !missing.contains(*disk)).count();
        if lost > self.parities + filling {
            return;
        }
        let (ours, said) = self.read(missing, &[]);
        let when = format!("{}, without {missing:?}", self.run);
        let Some(ours) = ours else {
            let is_unknown = found.is_dirty && said.contains(UNKNOWN);
            let is_too_few = lost > self.parities && said.contains("and its parity makes up for");
            assert!(is_unknown || is_too_few, "{when}: we have no array");
            return;
        };
        let may_fail = may_fail && (found.is_dirty || found.has_bad_blocks || lost > self.parities);
        let failed = ours.expect(&when, held, may_fail);
        if failed > 0 {
            println!(
                "{when}: {failed} sectors are not computed ({lost} lost, dirty {}, bad {})",
                found.is_dirty, found.has_bad_blocks
            );
        }
        self.not_computed += failed;
    }

    /// What it holds for us without those disks; and what the server said.
    fn read(&self, missing: &BTreeSet<String>, args: &[&str]) -> (Option<Held>, String) {
        let all = self.disks().iter().filter(|disk| !missing.contains(**disk));
        let disks: Vec<String> = all.map(|disk| format!("{disk}{}", self.suffix)).collect();
        // What nothing is served of has no server.
        let plain = self.machine.scratch.sparse("plain", MIB);
        let served = self.machine.serve(&disks, &[&[&plain, "--read-only"], args].concat());
        let held = Held::of_server(&self.machine, &self.volume);
        (held, served.stop())
    }

    /// The power goes while the kernel writes and takes a step; whether no more can be compared since. What we read then is what the kernel
    /// reads afterwards. Of an array without a member it takes parity as it is: that we do as well if we are told to, and else what we
    /// read is what was there before, or was being written.
    fn cut(&mut self) -> bool {
        let (after, last) = (self.chance.below(2_000_000), self.step());
        let lose = match self.chance.below(2) {
            0 => String::new(),
            _ => format!("lose {} {after}", self.parities + 1),
        };
        let script = format!("{LIBRARY}\nuuid={}\nassemble\n{lose}\nlose_power {after} '{last}'", self.uuid);
        let cut = self.machine.run_until_power_cut(PATIENCE, &script);
        let number = |text: &str| text.parse().expect("a number");
        let writes = cut.stdout.lines().filter_map(|line| {
            let words: Vec<&str> = line.strip_prefix("write ")?.split(' ').collect();
            Some([number(words[0]), number(words[1]), number(words[2])])
        });
        let writes: Vec<[u64; 3]> = writes.collect();
        for disk in self.disks() {
            let copy = self.machine.scratch.path(&format!("{disk}{CUT}"));
            std::fs::copy(self.machine.scratch.path(disk), copy).expect("room for a copy");
        }
        let mut found = self.told("assemble");
        self.suffix = CUT;
        let is_forced = found.is_forced;
        let (ours, said) = self.read(&BTreeSet::new(), &[]);
        let when = format!("{}, after a power cut", self.run);
        match &ours {
            Some(ours) => {
                let failed = ours.expect_old_or_new(&when, &self.held, &writes);
                println!(
                    "{when}: {failed} sectors of an array {} cannot be read",
                    if is_forced { "without a member" } else { "" }
                );
            }
            None => {
                assert!((is_forced || found.has_ppl) && said.contains(UNKNOWN), "{when}: we have no array")
            }
        }
        if is_forced && !found.has_revived {
            let told = ["--set", "md:start_dirty_degraded=1"];
            let (ours, _) = self.read(&BTreeSet::new(), &told);
            let ours = ours.unwrap_or_else(|| panic!("{when}: we have no array"));
            ours.expect(&format!("{when}, forced"), &found.held, found.has_bad_blocks);
        } else if !is_forced {
            found.is_dirty = true;
            found.without = None;
            found.after = std::mem::take(&mut found.before);
            self.compare(&found);
        }
        self.suffix = "";
        self.held = found.held;
        is_forced
    }
}
