//! A volume that is let alone, with all its devices, on sound ones and without clients, until nothing is due: then all legs are in sync, and any of
//! them that are enough give the same.

use blockwork_engine::FileId;
use blockwork_sim::Random;

use crate::running::plans::end_life;

use super::group::How;
use super::judge::Judge;
use super::keeper::SPEEDS;
use super::{Life, Run};

/// Times that it is served until all legs are in sync: one that was used with some of the others, and without the rest, may have to wait until one of
/// those is whole.
const TIMES: u64 = 3;

/// Sets of legs that are tried then, besides all.
const SETS: u64 = 6;

impl Run<'_> {
    pub(super) fn settle(&mut self) {
        let plan = &self.plan.group;
        let life = Life { speed: SPEEDS[3], stays: true, alone: true, ..Life::default() };
        for nth in 0..TIMES {
            let rests = self.live(1000 + nth, &life, &plan.all());
            if self.is_over {
                return;
            }
            if !rests && self.verdict.violations.is_empty() {
                self.accuse("a volume on sound disks could not be put to rest");
            }
            end_life(&mut self.world, &mut self.verdict.journal, self.journal);
            if self.verdict.violations.is_empty() {
                self.judge();
            }
            if !self.verdict.violations.is_empty() {
                return;
            }
            if self.whole.len() == usize::from(plan.legs) && self.calm {
                break;
            }
        }
        self.judge_at_rest();
        if self.verdict.violations.is_empty() {
            self.read_by_sets();
        }
        self.verdict.settled += 1;
    }

    fn judge_at_rest(&mut self) {
        let (plan, world) = (&self.plan.group, &self.world.clone());
        match plan.open(world, &plan.all(), How { read_only: true, ..How::default() }) {
            Ok(open) => {
                let status = open.array.status();
                let wrong = Judge { plan, world, status: &status }.nothing_is_due();
                let told = wrong.into_iter().map(|wrong| format!("with nothing due: {wrong}"));
                self.verdict.violations.extend(told);
            }
            Err(why) => self.accuse(why),
        }
    }

    /// Any legs that are enough give the same.
    fn read_by_sets(&mut self) {
        let plan = &self.plan.group;
        let random = &mut Random::part(self.plan.seed, 12);
        let mut sets: Vec<Vec<FileId>> = vec![plan.all()];
        for _ in 0..SETS {
            let mut legs: Vec<u16> = (0..plan.legs).collect();
            (1..legs.len()).rev().for_each(|i| legs.swap(i, random.index(i + 1)));
            while legs.len() > 1 && plan.geometry().has_all_data(&|leg| legs[1..].contains(&leg)) {
                legs.remove(0);
            }
            sets.push(plan.devices_of_all(&legs));
        }
        for set in sets {
            self.differs = false;
            self.read(&set, false);
            self.verdict.sets += 1;
        }
    }
}
