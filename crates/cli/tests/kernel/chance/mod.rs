//! Groups and arrays that nobody has planned: chance takes the steps, the kernel's and ours in turns, and each reads what the other
//! has left.
//!
//! `make chance` runs seeds that nobody has tried (`SEEDS=N FROM=M`), one after the other and until one fails: two or three minutes each.
//! `make test` runs one, with fewer steps.

mod lvm;
mod md;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::machine::Machine;
use crate::support::nbd::python;

/// What the scripts of clients have beside those of [`python`].
const CLIENT: &str = include_str!("client.py");

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
