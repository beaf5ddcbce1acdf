//! Arrays of md: members fail and come back, are replaced and refilled, arrays grow, are read-only and are stopped, by mdadm in the guest and
//! by our verbs, while clients write. After each turn both read the same, and the kernel finds no copy that differs from another.

use std::fmt::Write;

use super::{PATIENCE, Run, Steps, Sums, client, expect_same, run_verb, sums};
use crate::machine::{MIB, Machine, Served};
use crate::support::chance::Chance;

const LIBRARY: &str = include_str!("md.sh");
const NAMES: &[&str] = &["a", "b", "c", "d", "e", "f", "g"];
/// Disks beside those that the array is made of.
const SPARE: usize = 2;

#[test]
fn arrays_by_chance_are_the_same_to_the_kernel_and_to_us() {
    // In the usual one nobody is killed, so that everything is compared.
    let mut steps = Steps::default();
    for run in Run::all(4) {
        let mut array = Array::new(run, steps);
        array.make();
        for turn in 0..if run.is_short { 1 } else { 3 } {
            if turn > 0 {
                let steps = array.steps();
                array.kernel("assemble", &steps);
            }
            if !run.is_short && array.chance.one_in(2) {
                array.cut();
            }
            array.turn();
            array.judge();
        }
        println!("{run}: {:?} of {} members", array.level, array.members);
        steps = array.steps;
    }
    steps.expect_that_much_happens();
}

/// Nobody is killed, and no power goes: of what lacks a member then, nobody knows all data (`md_parity.rs` of the simulator has these).
#[test]
fn rows_with_parity_by_chance_are_the_same_to_the_kernel_and_to_us() {
    let mut steps = Steps::default();
    for run in Run::all(2) {
        let mut chance = Chance::new(run.seed);
        let level = chance.of(&[Level::Raid4, Level::Raid5, Level::Raid5, Level::Raid6, Level::Raid6]);
        let mut array = Array::of_level(run, steps, level, chance);
        array.make();
        for turn in 0..if run.is_short { 1 } else { 4 } {
            if turn > 0 {
                let steps = array.steps();
                array.kernel("assemble", &steps);
            }
            array.turn();
            array.judge();
        }
        println!("{run}: {:?} of {} members", array.level, array.members);
        steps = array.steps;
    }
    steps.expect_that_much_happens();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Raid0,
    Raid1,
    Raid10,
    Raid4,
    Raid5,
    Raid6,
}

impl Level {
    fn has_parity(self) -> bool {
        matches!(self, Level::Raid4 | Level::Raid5 | Level::Raid6)
    }
}

/// What is to be found by whoever reads the array next.
#[derive(Default)]
struct Held {
    /// The bytes of the array, and their hash; none after a crash, when two copies of what was not flushed may differ until one of them is
    /// copied to the other.
    sum: Option<Sums>,
    /// The kernel has found copies that differ, for instance of what was never written: which of them is read is nobody's promise.
    differs: bool,
}

struct Array {
    machine: Machine,
    chance: Chance,
    run: Run,
    steps: Steps,
    level: Level,
    members: usize,
    /// Of each chunk; one more than there are parities.
    copies: usize,
    uuid: String,
    held: Held,
}

impl Array {
    fn new(run: Run, steps: Steps) -> Array {
        let mut chance = Chance::new(run.seed);
        let level = chance.of(&[
            Level::Raid0,
            Level::Raid1,
            Level::Raid1,
            Level::Raid10,
            Level::Raid10,
            Level::Raid10,
        ]);
        Array::of_level(run, steps, level, chance)
    }

    fn of_level(run: Run, steps: Steps, level: Level, mut chance: Chance) -> Array {
        let mut machine = Machine::new();
        let members = match level {
            Level::Raid0 => chance.of(&[2, 3, 4]),
            Level::Raid1 => chance.of(&[2, 2, 3]),
            Level::Raid10 => chance.of(&[2, 3, 4, 4, 5]),
            Level::Raid4 | Level::Raid5 => chance.of(&[3, 3, 4, 4, 5]),
            Level::Raid6 => chance.of(&[4, 5, 5]),
        };
        let copies = match level {
            Level::Raid0 => 1,
            Level::Raid1 => members,
            Level::Raid10 if members == 2 => 2,
            Level::Raid10 => chance.of(&[2, 2, 2, 3]),
            Level::Raid4 | Level::Raid5 => 2,
            Level::Raid6 => 3,
        };
        for disk in &NAMES[..members + SPARE] {
            machine.disk(disk, chance.of(&[20, 20, 22, 24]) * MIB);
        }
        Array {
            machine,
            chance,
            run,
            steps,
            level,
            members,
            copies,
            uuid: String::new(),
            held: Held::default(),
        }
    }

    /// The kernel makes it, and takes the first steps.
    fn make(&mut self) {
        let chance = &mut self.chance;
        let mut how = match self.level {
            Level::Raid0 => {
                format!("--level=0 {}", chance.of(&["", "--layout=alternate", "--layout=original"]))
            }
            Level::Raid1 => "--level=1".to_owned(),
            Level::Raid10 => format!("--level=10 --layout={}{}", chance.of(&["n", "f", "o"]), self.copies),
            Level::Raid4 => "--level=4".to_owned(),
            Level::Raid5 => {
                format!(
                    "--level=5 --layout={}",
                    chance.of(&["la", "ra", "ls", "rs", "parity-first", "parity-last"])
                )
            }
            Level::Raid6 => {
                let layouts = [
                    "la",
                    "ra",
                    "ls",
                    "rs",
                    "parity-first",
                    "ddf-zero-restart",
                    "ddf-N-restart",
                    "ddf-N-continue",
                    "left-symmetric-6",
                    "parity-first-6",
                ];
                format!("--level=6 --layout={}", chance.of(&layouts))
            }
        };
        if self.level != Level::Raid1 {
            write!(how, " --chunk={}", chance.of(&[4, 16, 64, 128, 512])).expect("text");
        }
        if self.level != Level::Raid0 {
            let bitmap =
                chance.of(&["--bitmap=internal", "--bitmap=internal --bitmap-chunk=64K", "--bitmap=none"]);
            let (clean, size) = (chance.of(&["", "--assume-clean"]), chance.of(&["", "--size=12M"]));
            write!(how, " {bitmap} {clean} {size}").expect("text");
        }
        let disks: String = NAMES[..self.members].iter().map(|name| format!(" /d/{name}")).collect();
        let metadata = chance.of(&["1.2", "1.2", "1.1", "1.0"]);
        let make = format!(
            "md_create $array chance {how} --metadata={metadata} --raid-devices={}{disks}\n\
             uuid=$(mdadm --detail $array | sed -n 's/ *UUID : //p')\necho uuid $uuid\nfill 8 {}",
            self.members,
            chance.below(32768)
        );
        let steps = self.steps();
        let said = self.kernel(&make, &steps);
        let uuid = said.lines().find_map(|line| line.strip_prefix("uuid "));
        self.uuid = uuid.unwrap_or_else(|| panic!("{}: no uuid: {said}", self.run)).to_owned();
    }

    fn disks(&self) -> &'static [&'static str] {
        &NAMES[..self.members + SPARE]
    }

    /// Steps of the kernel's.
    fn steps(&mut self) -> String {
        let count = 3 + self.chance.below(6);
        (0..count).fold(String::new(), |steps, _| steps + &self.step() + "\n")
    }

    fn step(&mut self) -> String {
        let chance = &mut self.chance;
        let (which, seed) = (chance.below(1000), chance.below(32768));
        let idle = chance.of(&["", "idle"]);
        if self.level == Level::Raid0 {
            return format!("fill {} {seed}", 1 + chance.below(4));
        }
        match chance.below(if self.level == Level::Raid1 { 21 } else { 19 }) {
            0..=3 => format!("fill {} {seed}", 1 + chance.below(4)),
            4..=6 => format!("lose {} {which}", self.copies),
            7..=8 => format!("try mdadm $array --add $(outside {which}); {idle}"),
            9..=10 => format!("try mdadm $array --re-add $(outside {which}); {idle}"),
            11 => format!(
                "new=$(outside {which}); try mdadm --zero-superblock $new; try mdadm $array --add $new; {idle}"
            ),
            12 => "idle; try mdadm --grow $array --bitmap=none; try mdadm --grow $array --bitmap=internal"
                .to_owned(),
            13 => "idle; try mdadm --grow $array --size=max".to_owned(),
            14 => format!("idle; try mdadm $array --replace $(member {which}); idle"),
            15 => format!("echo repair >$(md_sysfs $array)/sync_action; {idle}"),
            16 => "echo idle >$(md_sysfs $array)/sync_action".to_owned(),
            17 => "try mdadm --stop $array; assemble".to_owned(),
            18 => "try mdadm --readonly $array; try mdadm --readwrite $array".to_owned(),
            19 => format!("idle; try mdadm --grow $array --raid-devices={}", chance.of(&[2, 3])),
            _ => "idle; try mdadm --grow $array --write-behind=128".to_owned(),
        }
    }

    /// Runs a script in the guest, which begins with how the array comes to be there; what it holds in the end is what we have to find. What
    /// the script printed.
    fn kernel(&mut self, begin: &str, steps: &str) -> String {
        let script = format!("{LIBRARY}\nuuid={}\n{begin}\n{steps}\ntell", self.uuid);
        let output = self.machine.run_long(PATIENCE, &script);
        self.steps.count(&output.stderr);
        let said = output.stdout;
        let differs = said.lines().find_map(|line| line.strip_prefix("differs "));
        assert_eq!(sums(&said).len(), 1, "{}: there is no array: {said}", self.run);
        self.held = Held { sum: Some(sums(&said)), differs: differs.is_some_and(|sectors| sectors != "0") };
        said
    }

    /// The power goes while the kernel writes and takes a step.
    fn cut(&mut self) {
        let (after, last) = (self.chance.below(2_000_000), self.step());
        let script = format!("{LIBRARY}\nuuid={}\nassemble\nlose_power {after} '{last}'", self.uuid);
        self.machine.run_until_power_cut(PATIENCE, &script);
        self.held.sum = None;
    }

    /// We find what the kernel has left, and take our steps.
    fn turn(&mut self) {
        let before = self.machine.prints();
        self.expect("as the kernel left it", &self.held, &self.read());
        self.machine.expect_untouched(&before);
        if self.chance.one_in(2) {
            for _ in 0..1 + self.chance.below(3) {
                let verb = self.verb(false);
                run_verb(&self.machine, self.run, &self.steps, &verb, self.disks());
            }
        }
        let is_killed = !self.level.has_parity() && self.chance.one_in(4);
        let written = self.serve_and_write(is_killed);
        let read = self.read();
        if is_killed {
            self.held.sum = None;
        } else {
            expect_same(&format!("{}, before and after our end", self.run), &written, &read);
            self.held.sum = Some(read);
        }
    }

    /// Somebody reads what the other has left.
    fn expect(&self, when: &str, held: &Held, read: &Sums) {
        if let Some(sum) = held.sum.as_ref().filter(|_| !held.differs) {
            expect_same(&format!("{}, {when}", self.run), sum, read);
        }
    }

    /// The kernel finds what we have left.
    fn judge(&mut self) {
        let ours = std::mem::take(&mut self.held);
        self.kernel("assemble", "");
        assert!(ours.differs || !self.held.differs, "{}: copies differ after us", self.run);
        let theirs = self.held.sum.clone().expect("the kernel tells");
        self.expect("as we left it", &ours, &theirs);
    }

    fn serve(&self, args: &[&str]) -> Served<'_> {
        let all = [args, &["--set", "md:sync_speed_min=200000", "md/chance"]].concat();
        self.machine.serve(self.disks(), &all)
    }

    /// What it holds for us.
    fn read(&self) -> Sums {
        let served = self.serve(&["--read-only"]);
        let said = client(&self.machine, "tell('array', connect_to('md/chance'))\n");
        served.stop();
        sums(&said)
    }

    /// Clients write while our verbs change it; what it holds then.
    fn serve_and_write(&mut self, is_killed: bool) -> Sums {
        let (most, wait) = (self.chance.below(4), self.chance.one_in(2));
        let seeds = [self.chance.below(1 << 32), self.chance.below(1 << 32)];
        let verbs: Vec<String> = (0..most).map(|_| self.verb(true)).collect();
        let served = self.serve(&[]);
        self.write(seeds[0]);
        for verb in &verbs {
            run_verb(&self.machine, self.run, &self.steps, verb, &[]);
        }
        let said = self.write(seeds[1]);
        if is_killed {
            served.kill();
        } else {
            if wait {
                run_verb(&self.machine, self.run, &self.steps, "md wait md/chance", &[]);
            }
            served.stop();
        }
        sums(&said)
    }

    fn write(&self, seed: u64) -> String {
        let script = format!(
            "rng = random.Random({seed})\nh = connect_to('md/chance')\nscatter(h, rng, 6)\n\
             if rng.random() < 0.7:\n    flush(h)\ntell('array', h)\n"
        );
        client(&self.machine, &script)
    }

    /// A verb of ours. A server does it in the background unless it is waited for.
    fn verb(&mut self, is_served: bool) -> String {
        let (one, other) = (self.chance.of(self.disks()), self.chance.of(self.disks()));
        let wait = if is_served { "--wait" } else { "" };
        if self.level == Level::Raid0 {
            return "md status".to_owned();
        }
        match self.chance.below(12) {
            0 => format!("md fail md/chance {one}"),
            1..=2 => format!("md remove md/chance {}", self.chance.of(&["failed", "detached", one])),
            3..=5 => format!("md add md/chance {one} {} {wait}", self.chance.of(&["", "--force"])),
            6 => format!("md replace md/chance {one}"),
            7 => format!("md replace md/chance {one} --with {other}"),
            8 => format!("md grow md/chance --size {}", self.chance.of(&["max", "14336"])),
            9 => format!("md check md/chance {wait}"),
            10 => format!("md repair md/chance {wait}"),
            _ => "md status".to_owned(),
        }
    }
}
