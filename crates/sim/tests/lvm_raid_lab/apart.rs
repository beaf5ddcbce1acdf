//! Mirrors whose legs are used apart: some of them in one life, and in the next the others, none of which knows of that.
//!
//! Each side goes on from what both had. With all legs there, one side is believed, and never is a leg read of the other; what clients wrote to that
//! stays where it is, and is there again when only that side is.

use std::ops::Range;

use blockwork_engine::{FileId, Nanos, Sector};
use blockwork_layer::md::Place;
use blockwork_sim::{Oracle, Random};

use crate::running::plans::end_life;

use super::group::{GroupPlan, How, RaidType, Start};
use super::judge::{Judge, is_whole};
use super::keeper::SPEEDS;
use super::{Life, Plan, Run};

/// Lives that a side has by itself.
const LIVES: Range<u64> = 1..3;

/// Some of the legs, which are used by themselves.
struct Side {
    legs: Vec<u16>,
    devices: Vec<FileId>,
    /// What clients may expect of it.
    oracle: Oracle,
    /// Clients have written to it.
    is_used: bool,
}

impl Plan {
    /// Mirrors, on sound devices, whose legs are used apart.
    pub fn draw_apart(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        let random = &mut Random::part(seed, 13);
        while plan.group.level != RaidType::Raid1 && plan.group.level != RaidType::Raid10 {
            plan.group = GroupPlan::draw(random);
        }
        (plan.group.start, plan.group.stale) = (Start::InSync, None);
        (plan.rows, plan.is_apart) = (false, true);
        plan.lives.clear();
        plan
    }
}

impl Run<'_> {
    pub(super) fn lives_apart(&mut self) {
        let random = &mut Random::part(self.plan.seed, 14);
        let plan = &self.plan.group;
        if !self.lives_calmly(0, &plan.all(), 0) {
            return;
        }
        let before = self.referee.borrow().oracle.clone();
        let mut sides = Vec::new();
        for (number, legs) in (1..).zip(self.draw_sides(random)) {
            let mut side =
                Side { devices: plan.devices_of_all(&legs), legs, oracle: before.clone(), is_used: false };
            for nth in 0..random.between(LIVES.start, LIVES.end - 1) {
                let cut = if random.coin() { 0 } else { random.between(1, self.plan.bios * 12) };
                self.lives_by_itself(10 * number + nth, &mut side, cut);
                if !self.verdict.violations.is_empty() {
                    return;
                }
            }
            sides.push(side);
        }
        self.come_together(sides);
    }

    /// Two sets of legs, each of which has all data, and which are all legs together.
    fn draw_sides(&self, random: &mut Random) -> [Vec<u16>; 2] {
        let plan = &self.plan.group;
        loop {
            let sides: (Vec<u16>, Vec<u16>) = (0..plan.legs).partition(|_| random.coin());
            let has_all = |legs: &[u16]| plan.geometry().has_all_data(&|leg| legs.contains(&leg));
            if has_all(&sides.0) && has_all(&sides.1) {
                return [sides.0, sides.1];
            }
        }
    }

    /// A life with some devices, which is judged by them alone.
    fn lives_calmly(&mut self, number: u64, present: &[FileId], cut: u64) -> bool {
        let life = Life { cut, speed: SPEEDS[3], stays: cut == 0, healthy: Nanos(0), ..Life::default() };
        self.live(number, &life, present);
        end_life(&mut self.world, &mut self.verdict.journal, self.journal);
        if self.verdict.violations.is_empty() {
            self.judge_with(present);
        }
        self.verdict.violations.is_empty()
    }

    fn lives_by_itself(&mut self, number: u64, side: &mut Side, cut: u64) {
        let answered = self.verdict.answered;
        self.exchange(&mut side.oracle);
        (self.whole, self.differs, self.calm) = (side.legs.clone(), true, true);
        if self.lives_calmly(number, &side.devices, cut) {
            side.is_used |= self.verdict.answered > answered && self.has_counted_on(side);
        }
        self.exchange(&mut side.oracle);
    }

    /// Whether the legs of a side say that the others have failed: nothing is written before they do.
    fn has_counted_on(&self, side: &Side) -> bool {
        let plan = &self.plan.group;
        let others = (0..plan.legs).filter(|leg| !side.legs.contains(leg));
        let say = |other: u16| {
            let said = side.legs.iter().map(|leg| plan.superblock(&self.world, *leg));
            said.flatten().all(|superblock| superblock.has_failed(other))
        };
        others.into_iter().all(say)
    }

    fn exchange(&mut self, oracle: &mut Oracle) {
        std::mem::swap(&mut self.referee.borrow_mut().oracle, oracle);
    }

    /// All legs are there again.
    fn come_together(&mut self, mut sides: Vec<Side>) {
        let (plan, world) = (&self.plan.group, self.world.clone());
        self.keep_diary("all are there again");
        let open = match plan.open(&world, &plan.all(), How { read_only: true, ..How::default() }) {
            Ok(open) => open,
            Err(why) => return self.accuse(format!("after it was used apart: {why}")),
        };
        let whole: Vec<u16> = (0..plan.legs).filter(|leg| is_whole(&open.array.status(), *leg)).collect();
        if !sides.iter().all(|side| side.is_used) {
            return;
        }
        let Some(believed) = sides.iter().position(|side| whole.iter().all(|leg| side.legs.contains(leg)))
        else {
            return self.accuse(format!("legs {whole:?} are read, which were used apart"));
        };
        self.verdict.apart += 1;
        let mut side = sides.swap_remove(believed);
        let other = sides.remove(0);
        let untouched = self.data_of(&other);
        side.devices = plan.all();
        self.lives_by_itself(100, &mut side, 0);
        if self.data_of(&other) != untouched && self.verdict.violations.is_empty() {
            self.accuse(format!(
                "legs {:?}, which alone have what was written to them, were written over",
                other.legs
            ));
        }
        // Without those, it is all there.
        let world = self.world.clone();
        match plan.open(&world, &other.devices, How { read_only: true, ..How::default() }) {
            Ok(open) => {
                let status = open.array.status();
                let judge = Judge { plan, world: &world, status: &status };
                self.verdict.violations.extend(judge.copies_hold_what_they_may(&other.oracle));
            }
            Err(why) => self.accuse(format!("legs {:?} by themselves: {why}", other.legs)),
        }
    }

    /// All that the legs of a side hold of the volume.
    fn data_of(&self, side: &Side) -> Vec<[u8; 512]> {
        let plan = &self.plan.group;
        let places = side.legs.iter().flat_map(|leg| {
            (0..plan.leg_sectors()).map(|sector| Place { member: *leg, sector: Sector(sector) })
        });
        places.map(|place| plan.peek(&self.world, place)).collect()
    }
}
