//! What must be true of the bytes on the legs, whatever has happened to them.
//!
//! 1. Where copies that are in sync differ, or a parity does not fit, Linux finds out: each leg's own superblock says that a resync begins there or
//!    before, and its own bitmap has the bit.
//! 2. Each copy in sync by itself holds what the clients may expect, not only the one that is read at first. A leg that is out of date is none of
//!    these, so what it has is judged as soon as anybody would read it.
//! 3. What no leg has that is there is computed, and that is what the clients may expect: but where the parity may not fit, as writes were under way
//!    when the power went (the *write hole*), nobody knows it.
//! 4. A volume that was let alone until nothing was due has all legs in sync: all copies are the same, all parities fit, and superblocks and bitmaps
//!    say so.
//!
//! Which legs are in sync is what the code says that assembles the volume; what that comes to is judged by the bytes.

use blockwork_engine::Sector;
use blockwork_format::dm_raid::{IN_SYNC, Superblock};
use blockwork_layer::md::{ArrayStatus, MemberState, Place};
use blockwork_sim::{Oracle, World, describe};

use crate::arrays::rows::{Bytes, Row};

use super::group::{GroupPlan, Start};

/// Violations that are told of one volume.
const VIOLATIONS_MAX: usize = 5;

pub struct Judge<'a> {
    pub plan: &'a GroupPlan,
    pub world: &'a World,
    /// How the volume was found.
    pub status: &'a ArrayStatus,
}

impl Judge<'_> {
    /// Whether a leg is in sync.
    pub fn is_whole(&self, leg: u16) -> bool {
        is_whole(self.status, leg)
    }

    /// What a leg has at a place, if that is in sync.
    fn held(&self, place: Place) -> Option<Bytes> {
        let is_there = match self.status.members[usize::from(place.member)].state {
            MemberState::InSync => true,
            MemberState::Recovering(end) => place.sector < end,
            _ => false,
        };
        is_there.then(|| self.plan.peek(self.world, place))
    }

    /// The copies in sync of a sector of the volume, with their legs; those that reads avoid come last.
    fn copies(&self, sector: u64) -> Vec<(u16, Bytes)> {
        let places = self.plan.places(sector);
        let mut copies: Vec<_> =
            places.iter().filter_map(|place| Some((place.member, self.held(*place)?))).collect();
        copies.sort_by_key(|(leg, _)| self.plan.write_mostly == Some(*leg));
        copies
    }

    /// The row of a sector of legs, with what can be computed of it; none of mirrors.
    pub fn row(&self, at: u64) -> Option<Row> {
        let layout = self.plan.parity()?;
        let held = (0..self.plan.legs).map(|leg| self.held(Place { member: leg, sector: Sector(at) }));
        Some(Row::solve(&layout, at / self.plan.stripe, held.collect()))
    }

    /// Whether what the legs have of a sector that bitmaps count does not fit together.
    fn differs(&self, at: u64) -> bool {
        match self.row(at) {
            Some(row) => !row.fits,
            None => self.copies(at).windows(2).any(|pair| pair[0].1 != pair[1].1),
        }
    }

    /// Sectors, of those that bitmaps count, whose copies differ or whose parities do not fit.
    pub fn differing(&self) -> Vec<u64> {
        (0..self.plan.geometry().sync_sectors().0).filter(|at| self.differs(*at)).collect()
    }

    fn tell(&self, at: u64) -> String {
        let held: Vec<(u16, Bytes)> = match self.plan.parity() {
            Some(_) => (0..self.plan.legs)
                .filter_map(|leg| Some((leg, self.held(Place { member: leg, sector: Sector(at) })?)))
                .collect(),
            None => self.copies(at),
        };
        let held = held.iter().map(|(leg, bytes)| format!("leg {leg}: {}", describe(bytes)));
        held.collect::<Vec<_>>().join(", ")
    }

    /// Rule 1. (What was made without being brought in line differs as long as nobody has written it.)
    pub fn differences_are_known(&self, differing: &[u64]) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.plan.start == Start::NoSync {
            return wrong;
        }
        for leg in (0..self.plan.legs).filter(|leg| self.is_whole(*leg)) {
            let (superblock, bitmap) =
                match (self.plan.superblock(self.world, leg), self.plan.bitmap(self.world, leg)) {
                    (Ok(superblock), Ok(bitmap)) => (superblock, bitmap),
                    (Err(error), _) | (_, Err(error)) => {
                        wrong.push(error);
                        continue;
                    }
                };
            let from = superblock.array_resync_offset;
            // Where a leg is missing and the parity is taken as it is, no resync can come before that is back: it goes by the bitmap then.
            let is_taken = self.plan.parity().is_some() && !(0..self.plan.legs).all(|leg| self.is_whole(leg));
            for at in differing {
                if from > *at && !is_taken {
                    wrong.push(format!(
                        "copies of sector {at} differ, and leg {leg} says that a resync begins at {from} ({})",
                        self.tell(*at)
                    ));
                } else if !bitmap.0.is_stale(superblock.events)
                    && !bitmap.1.is_dirty(at / bitmap.0.chunk_sectors())
                {
                    wrong.push(format!(
                        "copies of sector {at} differ, and the bitmap of leg {leg} does not know it ({})",
                        self.tell(*at)
                    ));
                }
            }
        }
        wrong.truncate(VIOLATIONS_MAX);
        wrong
    }

    /// Whether none of these legs says that a resync is due. Some may, after a power cut in the midst of saying that it is done, and one of them be the
    /// one that is believed when others are away. Where all legs are in sync, bits of the bitmap say it as well.
    pub fn says_nobody_that_a_resync_is_due(&self, legs: &[u16]) -> bool {
        let all_are_whole = legs.len() == usize::from(self.plan.legs);
        legs.iter().all(|leg| {
            let is_due = |superblock: Superblock| superblock.array_resync_offset != IN_SYNC;
            let has_bits = self.plan.bitmap(self.world, *leg).is_ok_and(|(_, bits)| bits.dirty_chunks() > 0);
            !(self.plan.superblock(self.world, *leg).is_ok_and(is_due) || all_are_whole && has_bits)
        })
    }

    /// Rules 2 and 3. The oracle has been told of the cut.
    pub fn copies_hold_what_they_may(&self, oracle: &Oracle) -> Vec<String> {
        let mut wrong = Vec::new();
        for sector in 0..self.plan.sectors() {
            let mut copies = self.copies(sector);
            if copies.is_empty() && !self.is_lost(sector, oracle) {
                let Place { member, sector: at } = self.plan.places(sector)[0];
                match self.row(at.0).and_then(|row| row.all[usize::from(member)]) {
                    Some(bytes) => copies.push((member, bytes)),
                    None => wrong.push(format!("sector {sector} can be had from nobody")),
                }
            }
            for (leg, bytes) in copies {
                if let Err(violation) = oracle.may_hold(sector, &bytes) {
                    wrong.push(format!("what leg {leg} has, or is computed for it: {violation}"));
                }
            }
        }
        wrong.truncate(VIOLATIONS_MAX);
        wrong
    }

    /// Whether nobody knows what a sector of the volume holds: no leg has it that is there, and its row may have been written to in part.
    pub fn is_lost(&self, sector: u64, oracle: &Oracle) -> bool {
        let place = self.plan.places(sector)[0];
        self.plan.parity().is_some() && self.held(place).is_none() && self.is_torn(place.sector.0, oracle)
    }

    /// Whether something of a row, by a sector of legs, was being written when the power went, or is not durable.
    pub fn is_torn(&self, at: u64, oracle: &Oracle) -> bool {
        self.row_data(at).any(|sector| !oracle.is_certain(sector))
    }

    /// The sectors of the volume in the row of a sector of legs.
    fn row_data(&self, at: u64) -> impl Iterator<Item = u64> {
        let geometry = self.plan.geometry();
        let places = (0..self.plan.legs).map(move |member| Place { member, sector: Sector(at) });
        places.filter_map(move |place| geometry.to_array(place)).map(|sector| sector.0)
    }

    /// What the legs that are there make of a row whose parity may not fit, for what they do not have: sector of the volume, and its bytes.
    pub fn guesses(&self, oracle: &Oracle) -> Vec<(u64, Bytes)> {
        let lost = (0..self.plan.sectors()).filter(|sector| self.is_lost(*sector, oracle));
        let guess = |sector: u64| {
            let place = self.plan.places(sector)[0];
            Some((sector, self.row(place.sector.0)?.all[usize::from(place.member)]?))
        };
        lost.filter_map(guess).collect()
    }

    /// Rule 4.
    pub fn nothing_is_due(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut events = Vec::new();
        for leg in 0..self.plan.legs {
            let state = self.status.members[usize::from(leg)].state;
            if state != MemberState::InSync {
                wrong.push(format!("leg {leg} is {state:?}"));
            }
            let (superblock, bitmap) =
                match (self.plan.superblock(self.world, leg), self.plan.bitmap(self.world, leg)) {
                    (Ok(superblock), Ok(bitmap)) => (superblock, bitmap),
                    (Err(error), _) | (_, Err(error)) => {
                        wrong.push(error);
                        continue;
                    }
                };
            events.push(superblock.events);
            let failed: Vec<u16> =
                (0..self.plan.legs).filter(|other| superblock.has_failed(*other)).collect();
            if !failed.is_empty() {
                wrong.push(format!("leg {leg} says that legs {failed:?} have failed"));
            }
            for (what, offset) in [
                ("a resync begins", superblock.array_resync_offset),
                ("it has data up to there only", superblock.disk_recovery_offset),
            ] {
                if offset != IN_SYNC && superblock.events == self.status.events {
                    wrong.push(format!("leg {leg} says at {offset}: {what}"));
                }
            }
            if bitmap.1.dirty_chunks() > 0 {
                wrong.push(format!("{} bits are set on leg {leg}", bitmap.1.dirty_chunks()));
            }
        }
        // A power cut in the midst of an update may have left some behind, and nothing had to be written since.
        if events.iter().any(|own| own.abs_diff(events[0]) > 1) {
            wrong.push(format!("the legs count {events:?} events"));
        }
        if self.plan.start != Start::NoSync {
            let differing = self.differing();
            let differ = |at: &u64| format!("copies of sector {at} differ ({})", self.tell(*at));
            wrong.extend(differing.iter().map(differ));
        }
        wrong.truncate(VIOLATIONS_MAX);
        wrong
    }
}

/// Whether a leg is in sync.
pub fn is_whole(status: &ArrayStatus, leg: u16) -> bool {
    status.members[usize::from(leg)].state == MemberState::InSync
}
