//! The zones of a RAID0, whose members may be of different size.
//!
//! Zone 0 stripes over all members up to the end of the smallest; the next one over those that are larger, and so on.
//! Within a later zone, the member of a chunk is chosen from the chunk's number in the *array* by old kernels
//! ([`Raid0Layout::Original`]), and from its number in the *zone* by newer ones ([`Raid0Layout::Alternate`]): it matters only
//! where a later zone has more than one member, and then nobody can tell which one it was unless the superblock says so.
//!
//! (1) Zones cover the array without gap, in order; each has at least one stripe. (2) A zone's members are some of those of
//! the zone before it, in the order of their roles. (3) Sizes are those of the members in whole chunks.

use super::{CHUNK_SECTORS_MAX, RAID_DISKS_MAX};
use crate::bytes::{index, length};

/// How the member of a chunk in a later zone is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Raid0Layout {
    /// From the chunk's number in the array (kernels before 3.14).
    Original,
    /// From the chunk's number in the zone.
    Alternate,
}

impl Raid0Layout {
    /// What a superblock's layout says, where it is meant: 1 and 2.
    pub fn decode(word: u32) -> Option<Self> {
        match word {
            1 => Some(Raid0Layout::Original),
            2 => Some(Raid0Layout::Alternate),
            _ => None,
        }
    }

    /// What a superblock says for it.
    pub fn encode(self) -> u32 {
        match self {
            Raid0Layout::Original => 1,
            Raid0Layout::Alternate => 2,
        }
    }
}

/// A part of a RAID0 that stripes over one set of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// First sector of the array.
    pub start: u64,
    /// Sectors of the array.
    pub sectors: u64,
    /// First sector on each of its members, from the start of their data.
    pub member_start: u64,
    /// Its members by their roles, ascending.
    pub members: Vec<u16>,
}

impl Zone {
    /// Sectors of each member.
    pub fn member_sectors(&self) -> u64 {
        self.sectors / length(self.members.len()).max(1)
    }

    /// First sector of the array behind it.
    pub fn end(&self) -> u64 {
        self.start + self.sectors
    }
}

/// Why there is no such RAID0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Raid0Error {
    /// No members, or more than there are roles.
    #[error("a RAID0 has 1 to {RAID_DISKS_MAX} members, and this one {0}")]
    Members(usize),
    /// A chunk of 0, or one that is too large.
    #[error("a chunk has 1 to {CHUNK_SECTORS_MAX} sectors, and this one {0}")]
    Chunk(u32),
    /// A member is smaller than a chunk.
    #[error("member {role} has {sectors} sectors, less than a chunk of {chunk_sectors}")]
    Small {
        /// Whose.
        role: u16,
        /// Of data.
        sectors: u64,
        /// Of a chunk.
        chunk_sectors: u32,
    },
    /// More than 2^64 - 1 sectors in all.
    #[error("the members have 2^64 sectors or more in all")]
    Size,
    /// Members of different size, and nothing says which layout was used.
    #[error(
        "the members are of different size, and the superblock does not say whether an old or a new kernel wrote the array: \
         set it with `mdadm --assemble --update=layout-original` (written before Linux 3.14) or `--update=layout-alternate`"
    )]
    LayoutUnknown,
}

/// The zones of an array whose members have so many sectors of data, by role.
///
/// # Errors
///
/// No members or too many, a chunk that is none, a member without a chunk, or more sectors than 64 bits count.
pub fn zones(chunk_sectors: u32, member_sectors: &[u64]) -> Result<Vec<Zone>, Raid0Error> {
    if member_sectors.is_empty() || member_sectors.len() > index(RAID_DISKS_MAX) {
        return Err(Raid0Error::Members(member_sectors.len()));
    }
    if chunk_sectors == 0 || chunk_sectors > CHUNK_SECTORS_MAX {
        return Err(Raid0Error::Chunk(chunk_sectors));
    }
    let chunk = u64::from(chunk_sectors);
    let mut members = Vec::with_capacity(member_sectors.len());
    for (role, sectors) in (0u16..).zip(member_sectors) {
        if *sectors < chunk {
            return Err(Raid0Error::Small { role, sectors: *sectors, chunk_sectors });
        }
        members.push((role, sectors / chunk * chunk));
    }
    let total = members.iter().try_fold(0u64, |sum, (_, sectors)| sum.checked_add(*sectors));
    total.ok_or(Raid0Error::Size)?;

    let mut zones = Vec::new();
    let (mut start, mut member_start) = (0, 0);
    while let Some(member_end) = members.iter().map(|(_, sectors)| *sectors).min() {
        let sectors = (member_end - member_start) * length(members.len());
        let roles = members.iter().map(|(role, _)| *role).collect();
        zones.push(Zone { start, sectors, member_start, members: roles });
        start += sectors;
        member_start = member_end;
        members.retain(|(_, sectors)| *sectors > member_end);
    }
    Ok(zones)
}

/// Size of an array whose members have so many sectors of data. It ends before its last zone does where a chunk is no power of two: Linux
/// counts of each member what is left when the bits of `chunk - 1` are cleared in the sectors of its whole chunks, which rounds nothing
/// then, and what looks from the end of a device (a GPT's copy, a superblock 1.0) has to find the same end.
pub fn array_sectors(chunk_sectors: u32, member_sectors: &[u64]) -> u64 {
    let chunk = u64::from(chunk_sectors.max(1));
    member_sectors.iter().fold(0, |sum, sectors| sum.saturating_add((sectors / chunk * chunk) & !(chunk - 1)))
}

/// Which layout an array with these zones has. `stated` is the superblock's layout, where
/// [`super::v1::Features::RAID0_LAYOUT`] says that it is meant.
///
/// # Errors
///
/// It matters, and is not stated.
pub fn layout(zones: &[Zone], stated: Option<u32>) -> Result<Raid0Layout, Raid0Error> {
    // Zones only ever lose members: if the second has one, so have all behind it.
    if zones.get(1).is_none_or(|zone| zone.members.len() == 1) {
        return Ok(Raid0Layout::Original);
    }
    stated.and_then(Raid0Layout::decode).ok_or(Raid0Error::LayoutUnknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_members_are_one_zone_in_which_the_layout_does_not_matter() {
        let zones = zones(128, &[96_256, 96_300]).unwrap();
        let expected = Zone { start: 0, sectors: 192_512, member_start: 0, members: vec![0, 1] };
        assert_eq!(zones, [expected]);
        assert_eq!(array_sectors(128, &[96_256, 96_300]) * 512, 98_566_144);
        assert_eq!(layout(&zones, None), Ok(Raid0Layout::Original));
    }

    #[test]
    fn members_of_three_sizes_are_three_zones() {
        let zones = zones(3, &[30, 10, 20, 31]).unwrap();
        let zone = |start, sectors, member_start, members: &[u16]| Zone {
            start,
            sectors,
            member_start,
            members: members.into(),
        };
        assert_eq!(
            zones,
            [zone(0, 36, 0, &[0, 1, 2, 3]), zone(36, 27, 9, &[0, 2, 3]), zone(63, 24, 18, &[0, 3])]
        );
        assert_eq!(zones[1].member_sectors(), 9);
        assert_eq!(layout(&zones, None), Err(Raid0Error::LayoutUnknown));
        assert_eq!(layout(&zones, Some(0)), Err(Raid0Error::LayoutUnknown));
        assert_eq!(layout(&zones, Some(2)), Ok(Raid0Layout::Alternate));
        assert_eq!(Raid0Layout::decode(Raid0Layout::Original.encode()), Some(Raid0Layout::Original));
    }

    #[test]
    fn chunks_that_are_no_power_of_two_have_the_size_that_linux_gives_them() {
        // As Linux 6.1 had them: chunks of 12 and 36 KiB, members that hold so many sectors of data.
        assert_eq!(array_sectors(24, &[7955, 13_509, 4619, 15_955, 13_509]) * 512, 28_381_184);
        assert_eq!(array_sectors(72, &[6953, 6953, 27_953, 9959]) * 512, 26_435_584);
    }

    #[test]
    fn a_later_zone_of_one_member_needs_no_layout() {
        assert_eq!(layout(&zones(8, &[16, 32]).unwrap(), None), Ok(Raid0Layout::Original));
    }

    #[test]
    fn what_cannot_be_a_raid0_is_an_error() {
        assert_eq!(zones(8, &[]), Err(Raid0Error::Members(0)));
        assert_eq!(zones(8, &[8; 1921]), Err(Raid0Error::Members(1921)));
        assert_eq!(zones(0, &[8]), Err(Raid0Error::Chunk(0)));
        assert_eq!(zones(8, &[8, 7]), Err(Raid0Error::Small { role: 1, sectors: 7, chunk_sectors: 8 }));
        assert_eq!(zones(8, &[u64::MAX, u64::MAX]), Err(Raid0Error::Size));
    }

    proptest! {
        #[test]
        fn every_chunk_of_every_member_is_in_one_zone(
            chunk in 1u32..9, members in proptest::collection::vec(9u64..60, 1..8),
        ) {
            let zones = zones(chunk, &members).unwrap();
            let mut next = 0;
            for zone in &zones {
                prop_assert_eq!(zone.start, next);
                prop_assert!(zone.sectors > 0 && zone.members.is_sorted());
                next = zone.end();
            }
            for (role, sectors) in (0u16..).zip(&members) {
                for at in 0..*sectors {
                    let in_zones = zones.iter().filter(|zone| {
                        zone.members.contains(&role)
                            && (zone.member_start..zone.member_start + zone.member_sectors()).contains(&at)
                    });
                    let used = at < sectors / u64::from(chunk) * u64::from(chunk);
                    prop_assert_eq!(in_zones.count(), usize::from(used), "sector {} of {}", at, role);
                }
            }
            let whole: u64 = members.iter().map(|sectors| sectors / u64::from(chunk) * u64::from(chunk)).sum();
            prop_assert_eq!(zones.last().map(Zone::end), Some(whole));
            let sectors = array_sectors(chunk, &members);
            prop_assert!(sectors <= whole && (sectors == whole || !chunk.is_power_of_two()));
        }
    }
}
