//! What a volume holds sector by sector, for volumes of which some may not be readable, and not the same to all who read them.

use std::fs::File;

use blockwork_kernel::held::{self, UNREADABLE};
use blockwork_kernel::pattern;

use super::client;
use crate::machine::Machine;

const SECTOR: u64 = held::SECTOR as u64;

/// Of each sector its number (`tests/kernel`, `held`).
#[derive(Clone, Default)]
pub struct Held(Vec<u64>);

impl Held {
    /// What `held` of the guest has written.
    pub fn decode(bytes: &[u8]) -> Held {
        Held(bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect())
    }

    /// What a server of ours has as that volume, whose name ends so; none if it has no such one.
    pub fn of_server(machine: &Machine, volume: &str) -> Option<Held> {
        let file = machine.scratch.at("held");
        let said = client(
            machine,
            &format!("for name in volumes(uri):\n    if name == {volume:?}:\n        copy(name, {file:?})\n"),
        );
        said.contains("copied").then(|| {
            let found = held::of(&File::open(&file).expect("it was copied"));
            let mut held = Held(found.expect("it can be read"));
            for line in said.lines().filter_map(|line| line.strip_prefix("unreadable ")) {
                let numbers: Vec<usize> = line.split(' ').map(|it| it.parse().expect("a number")).collect();
                held.0[numbers[0]..numbers[0] + numbers[1]].fill(UNREADABLE);
            }
            held
        })
    }

    /// What is read is what the truth has. How many sectors cannot be, that the truth has: none unless they may.
    #[track_caller]
    pub fn expect(&self, when: &str, truth: &Held, may_fail: bool) -> usize {
        assert_eq!(self.0.len(), truth.0.len(), "{when}: sectors");
        let pairs = || (0..).zip(self.0.iter().zip(&truth.0));
        let wrong = pairs().filter(|(_, (ours, theirs))| ours != theirs && **ours != UNREADABLE);
        let wrong: Vec<usize> =
            wrong.filter(|(_, (_, theirs))| **theirs != UNREADABLE).map(|(at, _)| at).collect();
        assert!(wrong.is_empty(), "{when}: {} sectors are wrong: {}", wrong.len(), ranges(&wrong));
        let failed = pairs().filter(|(_, (ours, theirs))| ours != theirs && **ours == UNREADABLE);
        let failed: Vec<usize> = failed.map(|(at, _)| at).collect();
        assert!(
            may_fail || failed.is_empty(),
            "{when}: {} sectors cannot be read: {}",
            failed.len(),
            ranges(&failed)
        );
        failed.len()
    }

    /// Each sector that can be read is what it was, or what one of the writes (offset, length, seed of a pattern) that were under way may have
    /// made of it. How many cannot be, that could be before.
    #[track_caller]
    pub fn expect_old_or_new(&self, when: &str, old: &Held, writes: &[[u64; 3]]) -> usize {
        let is_new = |at: u64| {
            writes.iter().filter(|[offset, length, _]| (*offset..offset + length).contains(&at)).any(
                |[.., seed]| {
                    let mut sector = [0; held::SECTOR];
                    pattern::fill(&mut sector, at, *seed);
                    held::number_of(&sector) == self.0[(at / SECTOR) as usize]
                },
            )
        };
        let known = (0..self.0.len().min(old.0.len())).filter(|at| old.0[*at] != UNREADABLE);
        let (failed, read): (Vec<usize>, Vec<usize>) = known.partition(|at| self.0[*at] == UNREADABLE);
        let wrong = read.into_iter().filter(|at| self.0[*at] != old.0[*at] && !is_new(*at as u64 * SECTOR));
        let wrong: Vec<usize> = wrong.collect();
        assert!(
            wrong.is_empty(),
            "{when}: {} sectors are neither old nor new: {}",
            wrong.len(),
            ranges(&wrong)
        );
        failed.len()
    }
}

/// The first of them, in ranges.
fn ranges(sectors: &[usize]) -> String {
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    for sector in sectors {
        match ranges.last_mut() {
            Some(last) if last.end == *sector => last.end += 1,
            _ => ranges.push(*sector..sector + 1),
        }
    }
    format!("{:?} ({} ranges)", &ranges[..ranges.len().min(12)], ranges.len())
}
