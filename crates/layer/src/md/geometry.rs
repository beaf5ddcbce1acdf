//! Where each sector of an array lies on its members. Pure arithmetic: no I/O, no state.
//!
//! Invariants, for every geometry that exists:
//!
//! 1. An array has at most [`Sectors::MAX`] sectors, and each member's part of it too, so that nothing here overflows.
//! 2. [`Geometry::places`] of different sectors have no place in common, and lie below
//!    [`Geometry::sectors_on_member`]. The first [`Geometry::room`] sectors from there on lie side by side on each of them.
//! 3. [`Geometry::ranges`] covers what `places` of each of its sectors gives, each place once, and nothing else.
//! 4. `places` and `place` allocate nothing (for up to 8 copies) and divide by nothing: they are on the way of every I/O.
//!
//! Sectors of a member are counted from the start of its data.

use blockwork_engine::{Sector, Sectors};
use blockwork_format::md::raid0::{Raid0Error, Raid0Layout};
use blockwork_format::md::{NotALayout, ParityLayout, RAID_DISKS_MAX, Raid10Layout};
use smallvec::SmallVec;

use super::{Concatenation, Parity, Raid0, Raid1, Raid10};

/// How much a mirror reads before the next one has its turn: 4 MiB.
pub(super) const READ_TURN: Sectors = Sectors(8192);

/// A place on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Its role.
    pub member: u16,
    /// From the start of its data.
    pub sector: Sector,
}

/// The copies of a piece, in the order of the layout.
pub type Places = SmallVec<[Place; 8]>;

/// Why there is no such array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The members of a RAID0 do not make one.
    #[error(transparent)]
    Raid0(#[from] Raid0Error),
    /// A RAID10 of that layout and size cannot be.
    #[error("RAID10: {0}")]
    Raid10(#[from] NotALayout),
    /// More members than there are roles.
    #[error("an array has at most {RAID_DISKS_MAX} members, and this one {0}")]
    Members(u32),
    /// A member of which nothing can be used.
    #[error("member {role} has no room for any data")]
    Empty {
        /// Whose.
        role: u16,
    },
    /// A chunk that the level cannot have.
    #[error("a chunk has {expected}, and this one {found}")]
    Chunk {
        /// In words.
        expected: &'static str,
        /// The chunk.
        found: Sectors,
    },
    /// A layout with which data overwrites data: Linux would take it, and no tool makes it.
    #[error("with the layout {layout:#x} on {members} members, different chunks would share a place")]
    Overlap {
        /// As superblocks have it.
        layout: u32,
        /// How many.
        members: u16,
    },
    /// No member has room for as many chunks as each must have.
    #[error("members of {member} sectors each have no room for a chunk of {chunk} and its copies")]
    Small {
        /// Data of each.
        member: Sectors,
        /// A chunk.
        chunk: Sectors,
    },
    /// Larger than any device can be.
    #[error("the array or its members have {0} sectors, and a device at most {max}", max = Sectors::MAX)]
    Size(Sectors),
}

/// The chunk in the 32 bits in which superblocks have it.
pub(super) fn chunk_u32(chunk: Sectors) -> Result<u32, GeometryError> {
    u32::try_from(chunk.0)
        .map_err(|_| GeometryError::Chunk { expected: "less than 2^31 sectors", found: chunk })
}

/// `sectors`, if a device can have as many.
pub(super) fn device(sectors: Sectors) -> Result<Sectors, GeometryError> {
    if sectors > Sectors::MAX { Err(GeometryError::Size(sectors)) } else { Ok(sectors) }
}

/// The geometry of an array.
#[derive(Clone, Debug)]
pub enum Geometry {
    /// One behind the other.
    Linear(Concatenation),
    /// Stripes, without redundancy.
    Raid0(Raid0),
    /// Mirrors.
    Raid1(Raid1),
    /// Stripes of mirrors.
    Raid10(Raid10),
    /// Stripes with one or two parities.
    Parity(Parity),
}

impl Geometry {
    /// Members with so much data, by role, one behind the other; of each only whole chunks, unless that is zero.
    ///
    /// # Errors
    ///
    /// No members or too many, one without data, more sectors than a device can have.
    pub fn linear(chunk: Sectors, member_sectors: &[Sectors]) -> Result<Geometry, GeometryError> {
        Ok(Geometry::Linear(Concatenation::new(chunk, member_sectors)?))
    }

    /// A RAID0 over members with so much data, by role.
    ///
    /// # Errors
    ///
    /// No members or too many, a member smaller than a chunk, an impossible chunk, more sectors than a device can have.
    pub fn raid0(
        chunk: Sectors,
        member_sectors: &[Sectors],
        layout: Raid0Layout,
    ) -> Result<Geometry, GeometryError> {
        Ok(Geometry::Raid0(Raid0::new(chunk, member_sectors, layout)?))
    }

    /// A RAID1 of `members` copies of `sectors` sectors.
    ///
    /// # Panics
    ///
    /// Without members, or with more sectors than a device can have.
    pub fn raid1(members: u16, sectors: Sectors) -> Geometry {
        Geometry::Raid1(Raid1::new(members, sectors))
    }

    /// A RAID10 over members with `member_sectors` of data each; what does not fill a row is not used.
    ///
    /// # Errors
    ///
    /// Too many members, members without room for a chunk, a chunk that is no power of two of at least
    /// [`blockwork_format::md::RAID10_CHUNK_SECTORS_MIN`], a layout with which chunks share places, more sectors than a
    /// device can have.
    pub fn raid10(
        layout: Raid10Layout,
        chunk: Sectors,
        member_sectors: Sectors,
    ) -> Result<Geometry, GeometryError> {
        Ok(Geometry::Raid10(Raid10::new(layout, chunk, member_sectors)?))
    }

    /// A RAID4, 5 or 6 over members with `member_sectors` of data each, of which whole chunks count.
    ///
    /// # Errors
    ///
    /// No chunk, members without room for one, more sectors than a device can have.
    pub fn parity(
        layout: ParityLayout,
        chunk: Sectors,
        member_sectors: Sectors,
    ) -> Result<Geometry, GeometryError> {
        Ok(Geometry::Parity(Parity::new(layout, chunk, member_sectors)?))
    }

    /// The same, but mirrors take turns with reads each time that one has read this much (at least one sector): for arrays
    /// that are too small to have several turns of 4 MiB.
    #[must_use]
    pub fn with_read_turns(self, turn: Sectors) -> Geometry {
        match self {
            Geometry::Linear(_) | Geometry::Raid0(_) | Geometry::Parity(_) => self,
            Geometry::Raid1(raid1) => Geometry::Raid1(raid1.with_read_turns(turn)),
            Geometry::Raid10(raid10) => Geometry::Raid10(raid10.with_read_turns(turn)),
        }
    }

    /// Size of the array.
    #[inline]
    pub fn sectors(&self) -> Sectors {
        match self {
            Geometry::Linear(linear) => linear.sectors(),
            Geometry::Raid0(raid0) => raid0.sectors(),
            Geometry::Raid1(raid1) => raid1.sectors(),
            Geometry::Raid10(raid10) => raid10.sectors(),
            Geometry::Parity(parity) => parity.sectors(),
        }
    }

    /// How many members it has, absent ones included.
    #[inline]
    pub fn members(&self) -> u16 {
        match self {
            Geometry::Linear(linear) => linear.members(),
            Geometry::Raid0(raid0) => raid0.members(),
            Geometry::Raid1(raid1) => raid1.members(),
            Geometry::Raid10(raid10) => raid10.members(),
            Geometry::Parity(parity) => parity.members(),
        }
    }

    /// Copies of each sector: 1 without mirrors.
    #[inline]
    pub fn copies(&self) -> u16 {
        match self {
            Geometry::Linear(_) | Geometry::Raid0(_) | Geometry::Parity(_) => 1,
            Geometry::Raid1(raid1) => raid1.members(),
            Geometry::Raid10(raid10) => raid10.copies(),
        }
    }

    /// Whether it can do without some of its members.
    #[inline]
    pub fn is_redundant(&self) -> bool {
        self.copies() > 1 || self.as_parity().is_some()
    }

    /// Where what is missing is computed, and writes are not just stored.
    #[inline]
    pub(super) fn as_parity(&self) -> Option<&Parity> {
        if let Geometry::Parity(parity) = self { Some(parity) } else { None }
    }

    /// In which sectors resyncs, bitmaps and fences count: how many there are. Those of the array, or of a member where rows have a parity.
    pub fn sync_sectors(&self) -> Sectors {
        self.as_parity().map_or(self.sectors(), Parity::sectors_on_member)
    }

    /// How many of those so many sectors of the array are, in whole rows.
    pub fn sync_sectors_of(&self, sectors: Sectors) -> Sectors {
        self.as_parity()
            .map_or(sectors, |parity| Sectors(sectors.0 / u64::from(parity.layout().data_disks())))
    }

    /// A range of the array in those.
    #[inline]
    pub(super) fn sync_range(&self, sector: Sector, nr: Sectors) -> (Sector, Sectors) {
        self.as_parity().map_or((sector, nr), |parity| parity.on_members(sector, nr))
    }

    /// Which of those is at a place, if that is used.
    pub(super) fn to_sync(&self, place: Place) -> Option<Sector> {
        match self {
            Geometry::Parity(parity) => Some(place.sector).filter(|at| at.0 < parity.sectors_on_member().0),
            _ => self.to_array(place),
        }
    }

    /// As [`Geometry::room`], for those.
    pub(super) fn sync_room(&self, sector: Sector) -> Sectors {
        match self {
            Geometry::Parity(parity) => parity.chunk() - Sectors(sector.0 % parity.chunk().0),
            _ => self.room(sector),
        }
    }

    /// The chunk, where the data is cut into chunks.
    pub fn chunk(&self) -> Option<Sectors> {
        match self {
            Geometry::Raid0(raid0) => Some(raid0.chunk()),
            Geometry::Linear(_) | Geometry::Raid1(_) => None,
            Geometry::Raid10(raid10) => Some(raid10.chunk()),
            Geometry::Parity(parity) => Some(parity.chunk()),
        }
    }

    /// How far from a sector of a member's data its chunk goes: what lies behind that is of another place in the array.
    pub(super) fn chunk_room(&self, on_member: Sector) -> Sectors {
        self.chunk().map_or(Sectors(u64::MAX), |chunk| Sectors(chunk.0 - on_member.0 % chunk.0))
    }

    /// How much of a member's data the array uses. Zero for a role that there is not.
    pub fn sectors_on_member(&self, member: u16) -> Sectors {
        if member >= self.members() {
            return Sectors::ZERO;
        }
        match self {
            Geometry::Linear(linear) => linear.sectors_on_member(member),
            Geometry::Raid0(raid0) => raid0.sectors_on_member(member),
            Geometry::Raid1(raid1) => raid1.sectors(),
            Geometry::Raid10(raid10) => raid10.sectors_on_member(),
            Geometry::Parity(parity) => parity.sectors_on_member(),
        }
    }

    /// How much from `sector` on lies side by side on each of its copies: writes are cut here. It may go on behind the end of the array,
    /// as the last block of an uneven one does.
    #[inline]
    pub fn room(&self, sector: Sector) -> Sectors {
        match self {
            Geometry::Linear(linear) => linear.room(sector),
            Geometry::Raid0(raid0) => raid0.room(sector),
            Geometry::Raid1(raid1) => raid1.room(sector),
            Geometry::Raid10(raid10) => raid10.room(sector),
            Geometry::Parity(parity) => parity.room(sector),
        }
    }

    /// As [`Geometry::room`], and [`Geometry::preferred_copy`] stays the same: reads are cut here.
    #[inline]
    pub fn read_room(&self, sector: Sector) -> Sectors {
        match self {
            Geometry::Raid1(raid1) => raid1.read_room(sector),
            _ => self.room(sector),
        }
    }

    /// All copies of the piece at `sector`, in the order of the layout; what was in `out` is dropped. With
    /// [`blockwork_format::md::FarSets::Quotient`], some may lie on one member.
    #[inline]
    pub fn places(&self, sector: Sector, out: &mut Places) {
        out.clear();
        match self {
            Geometry::Linear(linear) => out.push(linear.place(sector)),
            Geometry::Raid0(raid0) => out.push(raid0.place(sector)),
            Geometry::Raid1(raid1) => raid1.places(sector, out),
            Geometry::Raid10(raid10) => raid10.places(sector, out),
            Geometry::Parity(parity) => out.push(parity.place(sector)),
        }
    }

    /// One of the copies, without finding the others: the `copy`-th of [`Geometry::places`].
    #[inline]
    pub fn place(&self, sector: Sector, copy: usize) -> Place {
        debug_assert!(copy < usize::from(self.copies()));
        match self {
            Geometry::Linear(linear) => linear.place(sector),
            Geometry::Raid0(raid0) => raid0.place(sector),
            Geometry::Raid1(raid1) => raid1.place(sector, copy),
            Geometry::Raid10(raid10) => raid10.place(sector, copy),
            Geometry::Parity(parity) => parity.place(sector),
        }
    }

    /// Which copy is best read. A function of the address alone: no state for which workers would fight, and pieces that
    /// lie side by side go to one member, where they become one request. How the members share the load is said with each
    /// level.
    #[inline]
    pub fn preferred_copy(&self, sector: Sector) -> usize {
        match self {
            Geometry::Linear(_) | Geometry::Raid0(_) | Geometry::Parity(_) => 0,
            Geometry::Raid1(raid1) => raid1.preferred_copy(sector),
            Geometry::Raid10(raid10) => raid10.preferred_copy(sector),
        }
    }

    /// Where all copies of `nr` sectors from `sector` lie, for what carries no data: discards, write-zeroes. Per
    /// member, sectors ascending, no two touching but where a RAID0's zones meet; as few as there can be, however large
    /// the whole is.
    pub fn ranges(&self, sector: Sector, nr: Sectors, each: &mut dyn FnMut(Place, Sectors)) {
        if nr == Sectors::ZERO {
            return;
        }
        debug_assert!(sector.0 + nr.0 <= self.sectors().0);
        match self {
            Geometry::Linear(linear) => linear.ranges(sector, nr, each),
            Geometry::Raid0(raid0) => raid0.ranges(sector, nr, each),
            Geometry::Raid1(raid1) => raid1.ranges(sector, nr, each),
            Geometry::Raid10(raid10) => raid10.ranges(sector, nr, each),
            Geometry::Parity(_) => unreachable!("with parities, what carries no data is done as a write is"),
        }
    }

    /// The sector of the array of which a copy lies at `place`, if one does.
    pub fn to_array(&self, place: Place) -> Option<Sector> {
        if place.sector.0 >= self.sectors_on_member(place.member).0 {
            return None;
        }
        match self {
            Geometry::Linear(linear) => Some(linear.to_array(place)),
            Geometry::Raid0(raid0) => raid0.to_array(place),
            Geometry::Raid1(_) => Some(place.sector),
            Geometry::Raid10(raid10) => raid10.to_array(place),
            Geometry::Parity(parity) => parity.to_array(place),
        }
    }

    /// How far from a place on a member its data is of one range of the array, but for the chunks of others between: to the end
    /// of the far part, or of the member.
    pub(super) fn part_room(&self, place: Place) -> Sectors {
        let rest = Sectors(self.sectors_on_member(place.member).0.saturating_sub(place.sector.0));
        match self {
            Geometry::Raid10(raid10) => raid10.part_room(place.sector).min(rest),
            _ => rest,
        }
    }

    /// The same with another amount of each member's data, where what is there stays where it is: none for a RAID0 and for far
    /// copies.
    pub(super) fn grown(&self, member_sectors: Sectors) -> Option<Result<Geometry, GeometryError>> {
        match self {
            Geometry::Linear(_) | Geometry::Raid0(_) => None,
            Geometry::Raid1(raid1) => Some(Ok(Geometry::Raid1(raid1.grown(member_sectors)))),
            Geometry::Raid10(raid10) => Some(raid10.grown(member_sectors)?.map(Geometry::Raid10)),
            Geometry::Parity(parity) => Some(parity.grown(member_sectors).map(Geometry::Parity)),
        }
    }

    /// Whether the members that are `present` hold every sector, or what it can be computed from.
    pub fn has_all_data(&self, present: &dyn Fn(u16) -> bool) -> bool {
        match self {
            Geometry::Linear(_) | Geometry::Raid0(_) => (0..self.members()).all(present),
            Geometry::Raid1(raid1) => (0..raid1.members()).any(present),
            Geometry::Raid10(raid10) => raid10.has_all_data(present),
            Geometry::Parity(parity) => {
                (0..self.members()).filter(|role| !present(*role)).count() <= parity.parities().into()
            }
        }
    }
}
