//! The level linear: members one behind the other, each to its own end. Linux has it no more since 6.8.

use blockwork_engine::{Sector, Sectors};

use super::geometry::{GeometryError, Place, device};

/// Members one behind the other.
#[derive(Clone, Debug)]
pub struct Concatenation {
    /// Where the data of each member end in the array, ascending.
    ends: Box<[u64]>,
}

impl Concatenation {
    /// Of each member only whole chunks are used, where the array has a chunk (its rounding).
    pub(super) fn new(chunk: Sectors, member_sectors: &[Sectors]) -> Result<Concatenation, GeometryError> {
        let mut ends = Vec::with_capacity(member_sectors.len());
        let mut end = 0_u64;
        for (role, sectors) in (0..).zip(member_sectors) {
            let used = sectors.0 - sectors.0.checked_rem(chunk.0).unwrap_or(0);
            if used == 0 {
                return Err(GeometryError::Empty { role });
            }
            end = device(Sectors(end.saturating_add(used)))?.0;
            ends.push(end);
        }
        if ends.is_empty() || u16::try_from(ends.len()).is_err() {
            return Err(GeometryError::Members(u32::try_from(ends.len()).unwrap_or(u32::MAX)));
        }
        Ok(Concatenation { ends: ends.into() })
    }

    #[inline]
    pub(super) fn sectors(&self) -> Sectors {
        Sectors(self.ends[self.ends.len() - 1])
    }

    #[inline]
    pub(super) fn members(&self) -> u16 {
        self.ends.len() as u16 // as `new` has checked
    }

    /// Where one member ends and the next begins.
    pub(super) fn borders(&self) -> impl Iterator<Item = Sector> {
        self.ends[..self.ends.len() - 1].iter().map(|end| Sector(*end))
    }

    fn start(&self, member: usize) -> u64 {
        member.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    pub(super) fn sectors_on_member(&self, member: u16) -> Sectors {
        let member = usize::from(member);
        Sectors(self.ends[member] - self.start(member))
    }

    #[inline]
    fn member(&self, sector: Sector) -> usize {
        self.ends.partition_point(|end| *end <= sector.0)
    }

    /// That of the last member does not end with the array: where that is uneven, its last block goes on behind its end.
    #[inline]
    pub(super) fn room(&self, sector: Sector) -> Sectors {
        let member = self.member(sector);
        let end = if member + 1 < self.ends.len() { self.ends[member] } else { u64::MAX };
        Sectors(end - sector.0)
    }

    #[inline]
    pub(super) fn place(&self, sector: Sector) -> Place {
        let member = self.member(sector);
        Place { member: member as u16, sector: Sector(sector.0 - self.start(member)) } // there are no more
    }

    pub(super) fn ranges(&self, sector: Sector, nr: Sectors, each: &mut dyn FnMut(Place, Sectors)) {
        let (mut sector, mut left) = (sector, nr);
        while left > Sectors::ZERO {
            let nr = left.min(self.room(sector));
            each(self.place(sector), nr);
            (sector, left) = (sector + nr, left - nr);
        }
    }

    pub(super) fn to_array(&self, place: Place) -> Sector {
        Sector(self.start(usize::from(place.member)) + place.sector.0)
    }
}
