//! RAID1: every member holds the whole array.
//!
//! Reads: the mirrors take turns by regions of 1 MiB. That is larger than most requests, so that few are cut, and small
//! enough for one reader with some requests under way, or one that reads ahead, to keep all mirrors busy.

use blockwork_engine::{Sector, Sectors};

use super::geometry::{Place, Places};
use crate::divisor::Divisor;

/// Sectors of a region, as a power of two.
const REGION_SHIFT: u32 = 11;

/// Mirrors.
#[derive(Clone, Debug)]
pub struct Raid1 {
    members: u16,
    turns: Divisor,
    sectors: Sectors,
}

impl Raid1 {
    pub(super) fn new(members: u16, sectors: Sectors) -> Raid1 {
        assert!(sectors <= Sectors::MAX, "{sectors} sectors");
        let turns = Divisor::new(u64::from(members).try_into().expect("a RAID1 has members"));
        Raid1 { members, turns, sectors }
    }

    #[inline]
    pub(super) fn sectors(&self) -> Sectors {
        self.sectors
    }

    #[inline]
    pub(super) fn members(&self) -> u16 {
        self.members
    }

    #[inline]
    pub(super) fn room(&self, sector: Sector) -> Sectors {
        Sectors(self.sectors.0 - sector.0)
    }

    #[inline]
    pub(super) fn read_room(&self, sector: Sector) -> Sectors {
        let region = 1 << REGION_SHIFT;
        Sectors(region - sector.0 % region).min(self.room(sector))
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
        self.turns.divide(sector.0 >> REGION_SHIFT).1 as usize
    }

    pub(super) fn ranges(&self, sector: Sector, nr: Sectors, each: &mut dyn FnMut(Place, Sectors)) {
        (0..self.members).for_each(|member| each(Place { member, sector }, nr));
    }
}
