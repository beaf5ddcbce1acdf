//! RAID1: every member holds the whole array.
//!
//! Reads: the mirrors take turns by regions of 4 MiB. That is large against what a disk reads ahead, which the other mirror is asked for
//! where a region ends: half of all that is read, with regions of the size of that. And it is small
//! enough for several readers, or one that goes far, to keep all mirrors busy.

use blockwork_engine::{Sector, Sectors};

use super::geometry::{Place, Places, READ_TURN};
use crate::divisor::Divisor;

/// Mirrors.
#[derive(Clone, Debug)]
pub struct Raid1 {
    members: u16,
    /// Sectors of a region.
    region: Divisor,
    turns: Divisor,
    sectors: Sectors,
}

impl Raid1 {
    pub(super) fn new(members: u16, sectors: Sectors) -> Raid1 {
        assert!(sectors <= Sectors::MAX, "{sectors} sectors");
        let turns = Divisor::new(u64::from(members).try_into().expect("a RAID1 has members"));
        Raid1 { members, region: divisor(READ_TURN), turns, sectors }
    }

    pub(super) fn with_read_turns(self, region: Sectors) -> Raid1 {
        Raid1 { region: divisor(region), ..self }
    }

    pub(super) fn grown(&self, sectors: Sectors) -> Raid1 {
        Raid1 { sectors: sectors.min(Sectors::MAX), ..self.clone() }
    }

    #[inline]
    pub(super) fn sectors(&self) -> Sectors {
        self.sectors
    }

    #[inline]
    pub(super) fn members(&self) -> u16 {
        self.members
    }

    /// It does not end with the array: where that is uneven, its last block goes on behind its end.
    #[inline]
    pub(super) fn room(&self, sector: Sector) -> Sectors {
        Sectors(u64::MAX - sector.0)
    }

    #[inline]
    pub(super) fn read_room(&self, sector: Sector) -> Sectors {
        Sectors(self.region.get() - self.region.divide(sector.0).1)
    }

    #[inline]
    pub(super) fn places(&self, sector: Sector, out: &mut Places) {
        out.extend((0..self.members).map(|member| Place { member, sector }));
    }

    #[inline]
    pub(super) fn place(&self, sector: Sector, copy: usize) -> Place {
        Place { member: copy as u16, sector }
    }

    #[inline]
    pub(super) fn preferred_copy(&self, sector: Sector) -> usize {
        self.turns.divide(self.region.divide(sector.0).0).1 as usize
    }

    pub(super) fn ranges(&self, sector: Sector, nr: Sectors, each: &mut dyn FnMut(Place, Sectors)) {
        (0..self.members).for_each(|member| each(Place { member, sector }, nr));
    }
}

fn divisor(sectors: Sectors) -> Divisor {
    Divisor::new(sectors.0.try_into().expect("a region has sectors"))
}
