//! RAID0: chunks dealt out to the members in turn, in zones where members are of different size.
//!
//! Which of its members a zone's first chunk is on depends on the layout: the first of them (alternate), or the one at the
//! number of that chunk in the array, modulo the zone's members (original). From there on both go round the same
//! way. So a zone keeps its members in the order in which its chunks use them, and the layout is not asked again.

use blockwork_engine::{Sector, Sectors};
use blockwork_format::md::raid0::{self, Raid0Layout, zones};

use super::geometry::{GeometryError, Place, chunk_u32, device};
use crate::divisor::Divisor;

/// Stripes without redundancy.
#[derive(Clone, Debug)]
pub struct Raid0 {
    chunk: Divisor,
    members: u16,
    /// At most as many as the zones have.
    sectors: Sectors,
    /// Ascending, side by side.
    zones: Box<[Zone]>,
}

#[derive(Clone, Debug)]
struct Zone {
    start: u64,
    end: u64,
    /// First sector and one past the last on each of its members.
    member_start: u64,
    member_end: u64,
    /// Its members, in the order in which its chunks are dealt out.
    members: Box<[u16]>,
    count: Divisor,
}

impl Zone {
    fn new(zone: &raid0::Zone, chunk: u64, layout: Raid0Layout) -> Zone {
        let count = Divisor::new((zone.members.len() as u64).try_into().expect("a zone has members"));
        let mut members = zone.members.clone();
        if layout == Raid0Layout::Original {
            members.rotate_left(count.divide(zone.start / chunk).1 as usize);
        }
        Zone {
            start: zone.start,
            end: zone.end(),
            member_start: zone.member_start,
            member_end: zone.member_start + zone.member_sectors(),
            members: members.into(),
            count,
        }
    }

    /// How many sectors of its `i`-th member lie before the zone's sector `at`.
    fn sectors_before(&self, i: u64, at: u64, chunk: Divisor) -> u64 {
        let (number, within) = chunk.divide(at);
        let (row, column) = self.count.divide(number);
        row * chunk.get()
            + match i.cmp(&column) {
                std::cmp::Ordering::Less => chunk.get(),
                std::cmp::Ordering::Equal => within,
                std::cmp::Ordering::Greater => 0,
            }
    }

    /// The one range of each of its members that the array's sectors `start..end` touch.
    fn ranges(&self, start: u64, end: u64, chunk: Divisor, each: &mut dyn FnMut(Place, Sectors)) {
        let (start, end) = (start.max(self.start) - self.start, end.min(self.end) - self.start);
        for (i, member) in (0..).zip(&self.members) {
            let from = self.sectors_before(i, start, chunk);
            let to = self.sectors_before(i, end, chunk);
            if from < to {
                let place = Place { member: *member, sector: Sector(self.member_start + from) };
                each(place, Sectors(to - from));
            }
        }
    }
}

impl Raid0 {
    pub(super) fn new(
        chunk: Sectors,
        member_sectors: &[Sectors],
        layout: Raid0Layout,
    ) -> Result<Raid0, GeometryError> {
        let sectors: Vec<u64> = member_sectors.iter().map(|sectors| sectors.0).collect();
        let zones = zones(chunk_u32(chunk)?, &sectors)?;
        device(Sectors(zones.last().map_or(0, raid0::Zone::end)))?;
        let divisor = Divisor::new(chunk.0.try_into().expect("there are no zones of an empty chunk"));
        Ok(Raid0 {
            chunk: divisor,
            members: u16::try_from(sectors.len()).expect("there are no zones of so many members"),
            sectors: Sectors(raid0::array_sectors(chunk_u32(chunk)?, &sectors)),
            zones: zones.iter().map(|zone| Zone::new(zone, chunk.0, layout)).collect(),
        })
    }

    #[inline]
    pub(super) fn sectors(&self) -> Sectors {
        self.sectors
    }

    #[inline]
    pub(super) fn members(&self) -> u16 {
        self.members
    }

    pub(super) fn chunk(&self) -> Sectors {
        Sectors(self.chunk.get())
    }

    pub(super) fn sectors_on_member(&self, member: u16) -> Sectors {
        // Zones only ever lose members: the last one that has it ends where it ends.
        let last = self.zones.iter().rev().find(|zone| zone.members.contains(&member));
        Sectors(last.map_or(0, |zone| zone.member_end))
    }

    #[inline]
    fn zone(&self, sector: Sector) -> &Zone {
        let first = &self.zones[0];
        if sector.0 < first.end { first } else { self.later_zone(sector) }
    }

    #[cold]
    fn later_zone(&self, sector: Sector) -> &Zone {
        &self.zones[self.zones.partition_point(|zone| zone.end <= sector.0)]
    }

    #[inline]
    pub(super) fn room(&self, sector: Sector) -> Sectors {
        // Zones start at whole chunks; the array may end within one.
        let in_chunk = self.chunk.get() - self.chunk.divide(sector.0).1;
        Sectors(in_chunk.min(self.sectors.0.saturating_sub(sector.0)))
    }

    #[inline]
    pub(super) fn place(&self, sector: Sector) -> Place {
        let zone = self.zone(sector);
        let (number, within) = self.chunk.divide(sector.0 - zone.start);
        let (row, i) = zone.count.divide(number);
        Place {
            member: zone.members[i as usize],
            sector: Sector(zone.member_start + row * self.chunk.get() + within),
        }
    }

    pub(super) fn ranges(&self, sector: Sector, nr: Sectors, each: &mut dyn FnMut(Place, Sectors)) {
        let (start, end) = (sector.0, sector.0 + nr.0);
        let first = self.zones.partition_point(|zone| zone.end <= start);
        let touched = self.zones[first..].iter().take_while(|zone| zone.start < end);
        touched.for_each(|zone| zone.ranges(start, end, self.chunk, each));
    }

    pub(super) fn to_array(&self, place: Place) -> Option<Sector> {
        let at = place.sector.0;
        let zone = &self.zones[self.zones.partition_point(|zone| zone.member_end <= at)];
        let i = zone.members.iter().position(|member| *member == place.member)?;
        let (row, within) = self.chunk.divide(at - zone.member_start);
        let number = row * zone.count.get() + i as u64;
        Some(Sector(zone.start + number * self.chunk.get() + within))
            .filter(|sector| sector.0 < self.sectors.0)
    }
}
