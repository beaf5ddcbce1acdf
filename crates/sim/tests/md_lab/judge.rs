//! What must be true of the bytes on the members, whatever has happened to them.
//!
//! 1. Where copies that are in sync differ, Linux finds out: the superblocks say that the array was not stopped cleanly, and
//!    each member's own bitmap, if there is one, has the bit (Linux reads the bitmap of only one).
//! 2. Each copy in sync by itself holds what the clients may expect, not only the one that is read at first: a disk may fail
//!    before a resync gets to it.
//! 3. A member that was lost can come back as Linux takes it back: it is not older than the bitmap's `events_cleared`, so that
//!    only what has a bit is copied to it; and all that it lacks has one. (Where somebody else had its place in between, or a bitmap was
//!    found to be stale, which sets all of its bits, it may be older, and is copied whole.)
//! 4. An array that was written to and stopped in order is clean, with the same events everywhere, and no bit set without need.
//! 5. An array that was let alone until nothing was due has in each place a member with all data, as long as there are spares; no
//!    copies differ, and nobody is on the way to anybody's place.
//!
//! A copy is in sync if its device's superblock says so: it is a member, or on the way to be one, the sector lies below where its
//! recovery is, and is not in its list of bad blocks. What is said of copies holds for each of these.

use blockwork_engine::{FileId, Sector};
use blockwork_format::md::{IN_SYNC, Role};
use blockwork_layer::md::{Place, Places};
use blockwork_sim::{Oracle, World, describe};

use blockwork_format::md::v1::{Features, Superblock};

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
    /// The copies in sync of a sector of the array, in the order of the layout; write-mostly ones late. Last what is on the way to
    /// somebody's place: nobody reads that where mirrors may differ.
    pub fn copies(&self, sector: u64) -> Vec<Copy<'_>> {
        let mut places = Places::new();
        self.plan.geometry().places(Sector(sector), &mut places);
        let copies = places.iter().flat_map(|place| {
            let holders = self.found.holders(place.member).filter(|member| member.holds(place.sector));
            let bytes = |member: &Member| self.world.peek(member.device, self.plan.data(place.sector));
            holders.map(move |member| Copy { member, bytes: bytes(member) })
        });
        let mut copies: Vec<_> = copies.collect();
        let order =
            |superblock: &Superblock| (superblock.features.has(Features::REPLACEMENT), superblock.devflags);
        copies.sort_by_key(|copy| order(&copy.member.superblock));
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
                let copies = self.copies(*sector);
                let held =
                    copies.iter().map(|copy| format!("{}: {}", copy.member.device.0, describe(&copy.bytes)));
                let held = held.collect::<Vec<_>>().join(", ");
                return Some(format!(
                    "copies of sector {sector} differ, and the array says that it is clean ({held})"
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

    /// Rule 2, where copies of sectors that are `unsettled` were already different when the array was opened: as long as they may
    /// differ, it is the first one that counts.
    pub fn readable_copies_hold_what_they_may(&self, oracle: &Oracle, unsettled: &[bool]) -> Vec<String> {
        let (start, sectors) = self.plan.volume();
        let intent = self.plan.intent(self.found);
        let mut wrong = Vec::new();
        for sector in 0..sectors {
            let at = start + sector;
            let mut copies = self.copies(at);
            if copies.is_empty() {
                wrong.push(format!("sector {at} has no copy"));
            }
            if unsettled[at as usize] && self.found.may_differ(intent.as_ref(), at) {
                copies.truncate(1);
            }
            let of_device = |copy: Copy<'_>| {
                let violation = oracle.may_hold(sector, &copy.bytes).err()?;
                Some(format!("the copy on device {}: {violation}", copy.member.device.0))
            };
            wrong.extend(copies.into_iter().filter_map(of_device));
        }
        wrong.truncate(VIOLATIONS_MAX);
        wrong
    }

    /// Rule 5.
    pub fn nothing_is_due(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let found = self.found;
        if !found.truth.is_clean() {
            wrong.push(format!("a resync begins at {}", found.truth.resync_offset));
        }
        for (role, member) in found.members.iter().enumerate() {
            match member {
                None if !found.spares.iter().any(|spare| self.fits(spare) && self.has_its_slot(spare)) => {}
                None => wrong.push(format!("member {role} is missing, and there is a spare")),
                Some(member) if member.in_sync_to() == IN_SYNC => {}
                Some(member) => {
                    wrong.push(format!("member {role} has data up to {} only", member.in_sync_to()))
                }
            }
        }
        let on_the_way = found.replacements.iter();
        wrong.extend(on_the_way.map(|(role, _)| format!("a device is still on the way to be member {role}")));
        let differing = self.differing();
        wrong.extend(
            differing.iter().map(|sector| format!("copies of sector {sector} differ after a resync")),
        );
        wrong.truncate(VIOLATIONS_MAX);
        wrong
    }

    /// Whether a spare can take a place: its blocks are no larger than those of all members together.
    fn fits(&self, spare: &Member) -> bool {
        let block = |member: &Member| self.plan.devices[member.device.0 as usize].limits.logical_block_size;
        let members = self.found.members.iter().flatten();
        members.map(block).max().is_some_and(|expected| block(spare) <= expected)
    }

    /// Whether no other device has got a spare's slot, when that had been taken out.
    fn has_its_slot(&self, spare: &Member) -> bool {
        let (slot, events) = (spare.superblock.dev_number, spare.superblock.events);
        let others = self.found.spares.iter().chain(self.found.members.iter().flatten());
        !others.map(|it| &it.superblock).any(|other| other.dev_number == slot && other.events > events)
    }

    /// Rule 3.
    pub fn who_is_lost_can_come_back(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for Member { device, superblock, bad, .. } in &self.found.lost {
            if self.plan.has_spares() {
                if self.comes_back(superblock) {
                    wrong.extend(self.lacks_unknown(*device, superblock, bad));
                }
                continue;
            }
            // One that was not in sync, or was lost before the array was made, is copied whole.
            if superblock.recovered_sectors() != IN_SYNC || superblock.events < EVENTS {
                continue;
            }
            let bitmaps = self.found.members.iter().flatten().filter_map(|member| member.bitmap.as_ref());
            for (bitmap, bits) in bitmaps {
                let (own, cleared) = (superblock.events, bitmap.events_cleared);
                if own < cleared && bits.dirty_chunks() < bitmap.chunks() {
                    wrong.push(format!(
                        "device {} was lost at event {own}, and bits cleared at {cleared}",
                        device.0
                    ));
                }
            }
            wrong.extend(self.lacks_unknown(*device, superblock, bad));
        }
        wrong.truncate(VIOLATIONS_MAX);
        wrong
    }

    /// Whether a lost device would get its place back with only what has a bit copied to it.
    fn comes_back(&self, own: &Superblock) -> bool {
        let Role::Active(role) = own.role() else { return false };
        let free = self.found.holders(role).next().is_none();
        let bitmaps = self.found.members.iter().flatten().filter_map(|member| member.bitmap.as_ref());
        let cleared = bitmaps.map(|(bitmap, _)| bitmap.events_cleared).max();
        let partial =
            own.features.has(Features::RECOVERY_OFFSET) && !own.features.has(Features::RECOVERY_BITMAP);
        let is_member = !partial && !own.features.has(Features::REPLACEMENT);
        free && is_member && cleared.is_some_and(|cleared| own.events >= cleared)
    }

    /// What a lost device lacks without a bit.
    fn lacks_unknown(&self, device: FileId, own: &Superblock, bad: &[(u64, u64)]) -> Vec<String> {
        let geometry = self.plan.geometry();
        let Role::Active(role) = own.role() else { return Vec::new() };
        let is_bad = |at: u64| bad.iter().any(|(start, nr)| (*start..start + nr).contains(&at));
        let mut wrong = Vec::new();
        for at in (0..geometry.sectors_on_member(role).0).filter(|at| !is_bad(*at)) {
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
