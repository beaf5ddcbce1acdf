//! Groups and arrays that nobody has planned: chance takes the steps, the kernel's and ours in turns, and each reads what the other
//! has left. With parity (`parity`, `parity_lvm`) the kernel alone takes them, and we read also without some of the disks.
//!
//! `make chance` runs seeds that nobody has tried (`SEEDS=N FROM=M`), one after the other and until one fails: two or three minutes each.
//! `make test` runs one of each, with fewer steps.

mod held;
mod lvm;
mod md;
mod parity;
mod parity_lvm;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter, Write};
use std::time::Duration;

use crate::machine::Machine;
use crate::support::chance::seeds;
use crate::support::nbd::python;
use crate::support::output;

/// What the scripts of clients have beside those of [`python`].
const CLIENT: &str = include_str!("client.py");

/// For a script in the guest, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(900);

/// One run of a test, told as what runs it again: a short one where nobody has asked for `SEEDS`.
#[derive(Clone, Copy)]
struct Run {
    seed: u64,
    is_short: bool,
}

impl Run {
    fn all(usual: u64) -> impl Iterator<Item = Run> {
        let is_short = std::env::var_os("SEEDS").is_none();
        seeds(usual).map(move |seed| Run { seed, is_short })
    }
}

impl Display for Run {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}FROM={}", if self.is_short { "" } else { "SEEDS=1 " }, self.seed)
    }
}

/// How often commands of a kind were given that none of them ever obeyed.
const IN_VAIN_MAX: usize = 25;

/// How often commands of each kind were given, and obeyed.
#[derive(Default)]
struct Steps(RefCell<BTreeMap<String, (usize, usize)>>);

impl Steps {
    /// Counts those of the kernel's, by what `try` says of them.
    fn count(&self, said: &str) {
        let mut last = String::new();
        for line in said.lines() {
            if let Some(command) = line.strip_prefix("+ ") {
                last = kind_of(command);
                self.add(&last, true);
            } else if line.starts_with("! exit status")
                && let Some((_, obeyed)) = self.0.borrow_mut().get_mut(&last)
            {
                *obeyed -= 1;
                last.clear();
            }
        }
    }

    fn add(&self, kind: &str, is_obeyed: bool) {
        let mut all = self.0.borrow_mut();
        let (given, obeyed) = all.entry(kind.to_owned()).or_default();
        *given += 1;
        *obeyed += usize::from(is_obeyed);
    }

    /// Tests in which nothing happens would find nothing.
    fn expect_that_much_happens(&self) {
        let all = self.0.borrow();
        for (kind, (given, obeyed)) in &*all {
            println!("{obeyed:4} of {given:4}  {kind}");
        }
        let in_vain = all.iter().filter(|(_, (given, obeyed))| *given >= IN_VAIN_MAX && *obeyed == 0);
        let in_vain: Vec<&String> = in_vain.map(|(kind, _)| kind).collect();
        assert_eq!(in_vain, [] as [&String; 0], "given {IN_VAIN_MAX} times or more, and never obeyed");
    }
}

/// A command without names and sizes: its first word (of ours the first two), its options, and of which type it makes something.
fn kind_of(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let verb = if matches!(words.first(), Some(&("lv" | "vg" | "md"))) { 2 } else { 1 };
    let is_new = |word: &str| !word.starts_with("--uuid=");
    let options = (0..words.len()).filter(|at| is_new(words[*at])).filter(|at| {
        *at < verb
            || words[*at].starts_with('-')
            || (*at > 0 && matches!(words[*at - 1], "--type" | "--layout"))
    });
    options.map(|at| words[at]).collect::<Vec<_>>().join(" ")
}

/// Runs a verb of ours. What cannot be done is refused.
fn run_verb(machine: &Machine, run: Run, steps: &Steps, verb: &str, disks: &[&str]) {
    let place = if disks.is_empty() { &[][..] } else { &["--disk"] };
    let words = verb.split_whitespace().chain(place.iter().chain(disks).copied());
    let done = output(&mut machine.scratch.blockwork(words));
    machine.note("verb", &format!("{verb}: {done:?}"));
    assert!(matches!(done.status.code(), Some(0..=2)), "{run}, {verb}: {done:?}");
    steps.add(&kind_of(verb), done.status.success());
}

/// What volumes hold: their bytes, and the SHA-256 of these unless they cannot be read.
type Sums = BTreeMap<String, (u64, Option<String>)>;

/// The lines `sum VOLUME BYTES SHA-256` of what somebody printed.
fn sums(said: &str) -> Sums {
    let mut sums = Sums::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["sum", volume, bytes, hash @ ..] = &words[..] {
            let bytes = bytes.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
            sums.insert((*volume).to_owned(), (bytes, hash.first().map(|hash| (*hash).to_owned())));
        }
    }
    sums
}

/// Both read the same. What cannot be read need not be there for the other.
#[track_caller]
fn expect_same(when: &str, theirs: &Sums, ours: &Sums) {
    let mut differ = String::new();
    let volumes: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    for volume in volumes {
        let (a, b) = (theirs.get(volume), ours.get(volume));
        let is_unreadable = |sum: Option<&(u64, Option<String>)>| sum.is_none_or(|(_, hash)| hash.is_none());
        if a != b && !(is_unreadable(a) && is_unreadable(b)) {
            writeln!(differ, "  {volume}: {a:?}, {b:?}").expect("text");
        }
    }
    assert!(differ.is_empty(), "{when}:\n{differ}");
}

/// Runs a client's script; what it said.
fn client(machine: &Machine, script: &str) -> String {
    let said = python(&format!("{CLIENT}\nuri = {:?}\n{script}", machine.scratch.uri("")));
    machine.note("the client", &said);
    said
}
