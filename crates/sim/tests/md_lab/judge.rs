//! What must be true of the bytes on the members, whatever has happened to them.
//!
//! 1. Where copies that are in sync differ, Linux finds out: the superblocks say that the array was not stopped cleanly, and
//!    each member's own bitmap, if there is one, has the bit (Linux reads the bitmap of only one).
//! 2. Each copy in sync by itself holds what the clients may expect, not only the one that is read at first: a disk may fail
//!    before a resync gets to it.
//! 3. A member that was lost can come back as Linux takes it back: it is not older than the bitmap's `events_cleared`, so that
//!    only what has a bit is copied to it; and all that it lacks has one.
//! 4. An array that was stopped in order is clean, with the same events everywhere, and no bit set without need.

use blockwork_engine::{FileId, Sector};
use blockwork_format::md::IN_SYNC;
use blockwork_layer::md::{Place, Places};
use blockwork_sim::{Oracle, World};

use super::disks::{ArrayPlan, EVENTS, Found, Member};

/// Violations that are told of one array.
const VIOLATIONS_MAX: usize = 5;

pub struct Judge<'a> {
    pub plan: &'a ArrayPlan,
    pub world: &'a World,
    pub found: &'a Found,
}

/// A copy of a sector that is in sync.
pub struct Copy<'a> {
    pub member: &'a Member,
    pub bytes: [u8; 512],
}

impl Judge<'_> {
    /// The copies in sync of a sector of the array, in the order of the layout; write-mostly ones last.
    pub fn copies(&self, sector: u64) -> Vec<Copy<'_>> {
        let mut places = Places::new();
        self.plan.geometry().places(Sector(sector), &mut places);
        let copies = places.iter().filter_map(|place| {
            let member = self.found.members[usize::from(place.member)].as_ref()?;
            let bytes = || self.world.peek(member.device, self.plan.data(place.sector));
            (place.sector.0 < member.in_sync_to()).then(|| Copy { member, bytes: bytes() })
        });
        let mut copies: Vec<_> = copies.collect();
        copies.sort_by_key(|copy| copy.member.superblock.devflags);
        copies
    }

    /// Sectors whose copies differ.
    pub fn differing(&self) -> Vec<u64> {
        let differs = |sector: &u64| {
            let copies = self.copies(*sector);
            copies.iter().any(|copy| copy.bytes != copies[0].bytes)
        };
        (0..self.plan.geometry().sectors().0).filter(differs).collect()
    }

    /// Rule 1.
    pub fn differences_are_known(&self, differing: &[u64]) -> Vec<String> {
        let unknown = differing.iter().filter_map(|sector| {
            if self.found.truth.is_clean() {
                return Some(format!(
                    "copies of sector {sector} differ, and the array says that it is clean"
                ));
            }
            if self.found.truth.resync_offset > *sector && self.plan.bitmap_chunk.is_none() {
                let from = self.found.truth.resync_offset;
                return Some(format!("copies of sector {sector} differ, and a resync begins at {from}"));
            }
            let without =
                self.found.members.iter().flatten().find(|member| !self.is_marked(member, *sector))?;
            let device = without.device.0;
            Some(format!(
                "copies of sector {sector} differ, and the bitmap of device {device} does not know it"
            ))
        });
        unknown.take(VIOLATIONS_MAX).collect()
    }

    fn is_marked(&self, member: &Member, sector: u64) -> bool {
        let Some((superblock, bits)) = &member.bitmap else { return true };
        superblock.is_stale(self.found.truth.events) || bits.is_dirty(sector / superblock.chunk_sectors())
    }

    /// Rule 2. The oracle has been told of the cut.
    pub fn copies_hold_what_they_may(&self, oracle: &Oracle) -> Vec<String> {
        let (start, sectors) = self.plan.volume();
        let wrong = (0..sectors).flat_map(|sector| {
            let copies = self.copies(start + sector);
            let wrong = copies.into_iter().filter_map(|copy| {
                let violation = oracle.may_hold(sector, &copy.bytes).err()?;
                Some(format!("the copy on device {}: {violation}", copy.member.device.0))
            });
            wrong.collect::<Vec<_>>()
        });
        wrong.take(VIOLATIONS_MAX).collect()
    }

    /// Rule 3.
    pub fn who_is_lost_can_come_back(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (device, superblock) in &self.found.lost {
            // One that was not in sync, or was lost before the array was made, is copied whole.
            if superblock.recovered_sectors() != IN_SYNC || superblock.events < EVENTS {
                continue;
            }
            for (bitmap, _) in self.found.members.iter().flatten().filter_map(|member| member.bitmap.as_ref())
            {
                let (own, cleared) = (superblock.events, bitmap.events_cleared);
                if own < cleared {
                    wrong.push(format!(
                        "device {} was lost at event {own}, and bits cleared at {cleared}",
                        device.0
                    ));
                }
            }
            wrong.extend(self.lacks_unknown(*device));
        }
        wrong.truncate(VIOLATIONS_MAX);
        wrong
    }

    /// What a lost device lacks without a bit.
    fn lacks_unknown(&self, device: FileId) -> Vec<String> {
        let geometry = self.plan.geometry();
        let (role, _) =
            self.plan.numbered().find(|(_, other)| *other == device).expect("a device of the array");
        let mut wrong = Vec::new();
        for at in 0..geometry.sectors_on_member(role).0 {
            let place = Place { member: role, sector: Sector(at) };
            let Some(Sector(sector)) = geometry.to_array(place) else { continue };
            let bytes = self.world.peek(device, self.plan.data(place.sector));
            let lacks = self.copies(sector).first().is_some_and(|copy| copy.bytes != bytes);
            if lacks && !self.found.members.iter().flatten().all(|member| self.is_marked(member, sector)) {
                wrong.push(format!(
                    "device {} may come back, and lacks sector {sector} without a bit",
                    device.0
                ));
            }
        }
        wrong
    }

    /// Rule 4.
    pub fn is_at_rest(&self) -> Vec<String> {
        let (truth, mut wrong) = (&self.found.truth, Vec::new());
        if truth.resync_offset != IN_SYNC {
            wrong.push(format!("it was stopped in order, and a resync begins at {}", truth.resync_offset));
        }
        for member in self.found.members.iter().flatten() {
            let (device, events) = (member.device.0, member.superblock.events);
            if events != truth.events {
                wrong.push(format!("device {device} has {events} events at rest, expected {}", truth.events));
            }
            let Some((superblock, bits)) = &member.bitmap else { continue };
            if superblock.events != truth.events {
                let events = superblock.events;
                wrong.push(format!(
                    "the bitmap of device {device} has {events} events, expected {}",
                    truth.events
                ));
            }
            if bits.dirty_chunks() > 0 && !self.found.is_degraded() {
                wrong.push(format!("device {device} has {} bits set at rest", bits.dirty_chunks()));
            }
        }
        wrong
    }
}
