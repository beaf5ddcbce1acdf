//! Geometry of RAID4, 5 and 6: striping with gaps, and what each chunk of a row is the sum of.
//!
//! A row is a chunk of each member, at the same place of all. What is at the same place within the chunks of a row belongs together: each of
//! these sectors is a sum of others ([`Parity::way`]).
//!
//! Source, for the facts: the kernel's `drivers/md/raid5.c`; H. Peter Anvin, "The mathematics of RAID-6".

use std::num::NonZeroU64;

use blockwork_engine::{Gf256, Sector, Sectors};
use blockwork_format::md::ParityLayout;

use super::geometry::{GeometryError, Place, device};
use crate::divisor::Divisor;

/// What a chunk is the sum of: chunks of these members, times that.
pub(super) type Way = Vec<(u16, Gf256)>;

/// A RAID4, 5 or 6.
#[derive(Clone, Debug)]
pub struct Parity {
    layout: ParityLayout,
    chunk: Divisor,
    data_disks: Divisor,
    /// Of each that count: whole chunks.
    member_sectors: Sectors,
    sectors: Sectors,
}

impl Parity {
    pub(super) fn new(
        layout: ParityLayout,
        chunk: Sectors,
        member_sectors: Sectors,
    ) -> Result<Parity, GeometryError> {
        let expected = "at least a sector";
        let chunk_sectors =
            NonZeroU64::new(chunk.0).ok_or(GeometryError::Chunk { expected, found: chunk })?;
        let rows = member_sectors.0 / chunk_sectors;
        if rows == 0 {
            return Err(GeometryError::Small { member: member_sectors, chunk });
        }
        let data_disks = NonZeroU64::new(layout.data_disks().into()).expect("a layout has data");
        let member_sectors = Sectors(rows * chunk.0);
        let sectors = Sectors(member_sectors.0.saturating_mul(data_disks.get()));
        Ok(Parity {
            layout,
            chunk: Divisor::new(chunk_sectors),
            data_disks: Divisor::new(data_disks),
            member_sectors: device(member_sectors)?,
            sectors: device(sectors)?,
        })
    }

    /// The same with another amount of each member's data.
    pub(super) fn grown(&self, member_sectors: Sectors) -> Result<Parity, GeometryError> {
        Parity::new(self.layout, self.chunk(), member_sectors)
    }

    /// The layout.
    pub fn layout(&self) -> &ParityLayout {
        &self.layout
    }
    pub(super) fn sectors(&self) -> Sectors {
        self.sectors
    }
    pub(super) fn members(&self) -> u16 {
        self.layout.disks()
    }
    /// How many members its parities make up for.
    pub(super) fn parities(&self) -> u16 {
        self.layout.parities()
    }
    pub(super) fn chunk(&self) -> Sectors {
        Sectors(self.chunk.get())
    }
    pub(super) fn sectors_on_member(&self) -> Sectors {
        self.member_sectors
    }
    /// Sectors of data in a row.
    pub(super) fn row_sectors(&self) -> Sectors {
        Sectors(self.chunk.get() * self.data_disks.get())
    }

    /// Where a sector is.
    #[inline]
    pub(super) fn place(&self, sector: Sector) -> Place {
        let (chunk, within) = self.chunk.divide(sector.0);
        let (row, nth) = self.data_disks.divide(chunk);
        Place {
            member: self.layout.member(row, nth as u16), // less than the number of data disks
            sector: Sector(row * self.chunk.get() + within),
        }
    }

    /// How much from there on is side by side.
    #[inline]
    pub(super) fn room(&self, sector: Sector) -> Sectors {
        Sectors(self.chunk.get() - self.chunk.divide(sector.0).1)
    }

    /// The row that has a sector of a member's data.
    pub(super) fn row(&self, on_member: Sector) -> u64 {
        self.chunk.divide(on_member.0).0
    }

    /// The sector of the array that lies at a place, if that is no parity.
    pub(super) fn to_array(&self, place: Place) -> Option<Sector> {
        let (row, within) = self.chunk.divide(place.sector.0);
        let nth = self.data_of(row).position(|member| member == place.member)? as u64;
        Some(Sector((row * self.data_disks.get() + nth) * self.chunk.get() + within))
    }

    /// The sectors of members to which a range of the array belongs, whichever member that is: all of a row where it goes over the border of a
    /// chunk.
    #[inline]
    pub(super) fn on_members(&self, sector: Sector, nr: Sectors) -> (Sector, Sectors) {
        if nr <= self.room(sector) {
            return (self.place(sector).sector, nr);
        }
        let row = |sector: u64| self.data_disks.divide(self.chunk.divide(sector).0).0;
        let (first, last) = (row(sector.0), row(sector.0 + nr.0 - 1));
        (Sector(first * self.chunk.get()), Sectors((last + 1 - first) * self.chunk.get()))
    }

    /// The members that have a row's data, in its order.
    pub(super) fn data_of(&self, row: u64) -> impl Iterator<Item = u16> {
        (0..self.layout.data_disks()).map(move |nth| self.layout.member(row, nth))
    }

    /// Those that have its parities, each with what it is the sum of: the data, times what.
    pub(super) fn parities_of(&self, row: u64) -> impl Iterator<Item = (u16, impl Fn(u16) -> Gf256)> {
        let (p, q) = self.layout.parity(row);
        let weight = move |parity: u16, member: u16| {
            if parity == p { Gf256::ONE } else { self.weight(row, member) }
        };
        [Some(p), q].into_iter().flatten().map(move |parity| (parity, move |member| weight(parity, member)))
    }

    /// What a member's data are multiplied with in Q.
    pub(super) fn weight(&self, row: u64, member: u16) -> Gf256 {
        Gf256::power_of_two(self.layout.exponent(row, member).into())
    }

    /// What the chunk of a member is the sum of, data or parity, in a row of which `is_lost` says whose are not there; none: too many.
    pub(super) fn way(&self, row: u64, wanted: u16, is_lost: &dyn Fn(u16) -> bool) -> Option<Way> {
        let parity = self.parities_of(row).find(|(parity, _)| *parity == wanted);
        let Some((_, weight)) = parity else { return self.way_to_data(row, wanted, is_lost) };
        // Of the data that are lost, each has its own way, which does not go by what is wanted.
        let is_lost = |member| member == wanted || is_lost(member);
        let mut sum = vec![Gf256::ZERO; usize::from(self.members())];
        for member in self.data_of(row) {
            let way = match is_lost(member) {
                false => Vec::from([(member, Gf256::ONE)]),
                true => self.way_to_data(row, member, &is_lost)?,
            };
            for (term, factor) in way {
                let all = &mut sum[usize::from(term)];
                *all = *all + weight(member) * factor;
            }
        }
        let terms = (0..).zip(sum).filter(|(_, factor)| *factor != Gf256::ZERO);
        Some(terms.collect())
    }

    fn way_to_data(&self, row: u64, wanted: u16, is_lost: &dyn Fn(u16) -> bool) -> Option<Way> {
        let (p, q) = self.layout.parity(row);
        let (p, q) = (Some(p).filter(|p| !is_lost(*p)), q.filter(|q| !is_lost(*q)));
        let weight = |member| self.weight(row, member);
        let mut lost = self.data_of(row).filter(|member| *member != wanted && is_lost(*member));
        let (other, has_more) = (lost.next(), lost.next().is_some());
        let others = self.data_of(row).filter(|member| *member != wanted && Some(*member) != other);
        match (other, p, q) {
            _ if has_more => None,
            (None, Some(p), _) => Some(others.chain([p]).map(|member| (member, Gf256::ONE)).collect()),
            // Q is the sum of all data by their weights.
            (None, None, Some(q)) => {
                let share = |factor: Gf256| factor / weight(wanted);
                let others = others.map(|member| (member, share(weight(member))));
                Some(others.chain([(q, share(Gf256::ONE))]).collect())
            }
            // With P and Q less the data that are there, p and q: wanted + other = p, and by their weights q.
            (Some(other), Some(p), Some(q)) => {
                let both = weight(wanted) + weight(other);
                if both == Gf256::ZERO {
                    return None; // more members than the field has weights
                }
                let share = |factor: Gf256| factor / both;
                let others = others.map(|member| (member, share(weight(other) + weight(member))));
                Some(others.chain([(p, share(weight(other))), (q, share(Gf256::ONE))]).collect())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwork_format::md::Level;

    fn geometries() -> impl Iterator<Item = Parity> {
        [Level::Raid4, Level::Raid5, Level::Raid6].into_iter().flat_map(|level| {
            (0..21).flat_map(move |number| {
                (3..7).filter_map(move |disks| {
                    let layout = ParityLayout::new(level, number, disks)?;
                    Some(Parity::new(layout, Sectors(8), Sectors(8 * 14 + 3)).unwrap())
                })
            })
        })
    }

    #[test]
    fn each_sector_of_the_array_is_at_one_place_and_parities_at_the_others() {
        for geometry in geometries() {
            let mut places = Vec::new();
            for sector in (0..geometry.sectors().0).map(Sector) {
                let place = geometry.place(sector);
                assert_eq!(geometry.to_array(place), Some(sector), "{geometry:?}");
                assert_eq!(geometry.on_members(sector, Sectors(1)), (place.sector, Sectors(1)));
                places.push((place.member, place.sector.0));
            }
            for row in 0..14 {
                for (parity, _) in geometry.parities_of(row) {
                    for sector in row * 8..row * 8 + 8 {
                        let place = Place { member: parity, sector: Sector(sector) };
                        assert_eq!((geometry.to_array(place), geometry.row(place.sector)), (None, row));
                        places.push((parity, sector));
                    }
                }
            }
            places.sort_unstable();
            let all = (0..geometry.members()).flat_map(|member| (0..8 * 14).map(move |at| (member, at)));
            assert_eq!(places, all.collect::<Vec<_>>(), "{geometry:?}");
        }
    }

    #[test]
    fn over_the_border_of_a_chunk_a_range_belongs_to_whole_rows() {
        let layout = ParityLayout::new(Level::Raid5, 2, 4).unwrap();
        let geometry = Parity::new(layout, Sectors(8), Sectors(80)).unwrap();
        for ((sector, nr), expected) in [
            ((3, 5), (3, 5)),
            ((27, 5), (11, 5)),
            ((7, 2), (0, 8)),
            ((23, 1), (7, 1)),
            ((23, 2), (0, 16)),
            ((24, 24), (8, 8)),
            ((24, 25), (8, 16)),
        ] {
            let found = geometry.on_members(Sector(sector), Sectors(nr));
            assert_eq!((found.0.0, found.1.0), expected, "{sector}+{nr}");
        }
    }

    /// Bytes of a row, by members.
    fn row_of(geometry: &Parity, row: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(geometry.members())];
        for (nth, member) in (1..).zip(geometry.data_of(row)) {
            bytes[usize::from(member)] = (37 * nth + row as u8 * 11) ^ 0x5a;
        }
        let data = bytes.clone();
        for (parity, weight) in geometry.parities_of(row) {
            let sum = geometry
                .data_of(row)
                .fold(Gf256::ZERO, |sum, member| sum + weight(member) * Gf256(data[usize::from(member)]));
            bytes[usize::from(parity)] = sum.0;
        }
        bytes
    }

    #[test]
    fn whatever_is_wanted_is_the_sum_of_what_is_there() {
        for geometry in geometries() {
            let members = geometry.members();
            for row in 0..geometry.members().into() {
                let bytes = row_of(&geometry, row);
                for (wanted, other) in
                    (0..members).flat_map(|one| (0..members).map(move |other| (one, other)))
                {
                    let way = geometry.way(row, wanted, &|member| member == other);
                    if wanted != other && geometry.parities() < 2 {
                        assert_eq!(way, None);
                        continue;
                    }
                    let way = way.unwrap();
                    assert!(way.iter().all(|(member, _)| *member != wanted && *member != other));
                    let sum = way.iter().fold(Gf256::ZERO, |sum, (member, factor)| {
                        sum + *factor * Gf256(bytes[usize::from(*member)])
                    });
                    assert_eq!(sum.0, bytes[usize::from(wanted)], "{geometry:?}: {wanted} without {other}");
                }
                assert_eq!(geometry.way(row, 0, &|_| true), None);
            }
        }
    }
}
