//! An array that is let alone, on sound disks and without clients, until nothing is due: then all copies are the same.

use blockwork_engine::Nanos;
use blockwork_sim::Lies;

use crate::arrays::close;

use super::caretaker::Visit;
use super::judge::Judge;
use super::{Life, Run};

impl Run<'_> {
    /// Opens the array, waits until nothing is due, and stops it; then the power goes, and the bytes are judged.
    pub(super) fn settle(&mut self, number: u64) {
        let Some(found) = self.find() else { return };
        let speed = (200_000, 200_000);
        let visit = Visit { seed: number, verbs: 0, pause: Nanos(0), speed, stays: true };
        let life = Life { visit: Some(visit), alone: true, ..Life::default() };
        let world = self.world.clone();
        let built = self.plan.array.build(&world, &found, Lies::default());
        let rests = self.serve(&built, number, &life, &[]) && close(&world, &built.stack);
        self.book();
        if !rests {
            self.accuse("an array on sound disks could not be put to rest");
        }
        self.verdict.journal.append(&mut world.journal());
        self.world = world.power_cut();
        let Some(found) = self.find() else { return };
        let judge = Judge { plan: &self.plan.array, world: &self.world, found: &found };
        let mut wrong = judge.nothing_is_due();
        wrong.extend(judge.who_is_lost_can_come_back());
        {
            let referee = &mut *self.referee.borrow_mut();
            referee.oracle.cut();
            let unsettled = vec![false; self.unsettled.len()];
            wrong.extend(match self.plan.array.parity() {
                Some(_) => judge.readable_copies_hold_what_they_may(&referee.oracle, &unsettled),
                None => judge.copies_hold_what_they_may(&referee.oracle),
            });
        }
        wrong.iter_mut().for_each(|wrong| wrong.insert_str(0, "with nothing due: "));
        self.verdict.violations.extend(wrong);
        self.verdict.settled += 1;
        self.in_sync = true;
    }
}
