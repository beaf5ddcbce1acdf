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
//! Where rows have a parity, these rules mean: whatever of the data and parities is there fits together, or that it may not is known; each
//! sector is what it may be, read from its member, or computed where no device has it. But where parities may not fit, as the array says, what no
//! device has is lost (the *write hole*), and nothing is said of it.
//!
//! A copy is in sync if its device's superblock says so: it is a member, or on the way to be one, the sector lies below where its
//! recovery is, and is not in its list of bad blocks. What is said of copies holds for each of these.

use blockwork_engine::{FileId, Sector};
use blockwork_format::md::{IN_SYNC, Role};
use blockwork_layer::md::{Place, Places};
use blockwork_sim::{Oracle, World, describe};

use blockwork_format::md::v1::{Features, Superblock};

use crate::arrays::rows::{Bytes, Row};

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
    /// None: it is computed from what others have.
    pub member: Option<&'a Member>,
    pub bytes: Bytes,
}

impl Copy<'_> {
    fn whose(&self) -> String {
        self.member
            .map_or("what is computed".into(), |member| format!("the copy on device {}", member.device.0))
    }
}

impl Judge<'_> {
    /// The copies in sync of a sector of the array, in the order of the layout; write-mostly ones late. Last what is on the way to
    /// somebody's place: nobody reads that where mirrors may differ.
    pub fn copies(&self, sector: u64) -> Vec<Copy<'_>> {
        let mut places = Places::new();
        self.plan.geometry().places(Sector(sector), &mut places);
        let mut copies: Vec<_> = places.iter().flat_map(|place| self.held(*place)).collect();
        let order =
            |superblock: &Superblock| (superblock.features.has(Features::REPLACEMENT), superblock.devflags);
        copies.sort_by_key(|copy| copy.member.map(|member| order(&member.superblock)));
        if copies.is_empty() && !self.has_hole(places[0].sector.0) {
            copies.extend(self.computed(places[0]));
        }
        copies
    }

    /// What devices have at a place.
    fn held(&self, place: Place) -> impl Iterator<Item = Copy<'_>> {
        let holders = self.found.holders(place.member).filter(move |member| member.holds(place.sector));
        holders.map(move |member| {
            let bytes = self.world.peek(member.device, self.plan.data(place.sector));
            Copy { member: Some(member), bytes }
        })
    }

    /// What a place is to have, by what others have in its row.
    fn computed(&self, place: Place) -> Option<Copy<'_>> {
        let row = self.row(place.sector.0)?;
        Some(Copy { member: None, bytes: row.all[usize::from(place.member)]? })
    }

    /// The same sector of all members, where rows have a parity.
    pub fn row(&self, at: u64) -> Option<Row> {
        let layout = self.plan.parity()?;
        let held = |member| self.held(Place { member, sector: Sector(at) }).next().map(|copy| copy.bytes);
        Some(Row::solve(layout, at / u64::from(self.plan.chunk), (0..self.plan.members).map(held).collect()))
    }

    /// Whether parities may not fit there, so that nothing is computed.
    pub fn has_hole(&self, at: u64) -> bool {
        self.plan.parity().is_some() && self.found.may_differ(self.plan.intent(self.found).as_ref(), at)
    }

    /// Whether what the devices have of a sector that bitmaps count does not fit together.
    fn differs(&self, at: u64) -> bool {
        let is_same = |copies: &[Copy<'_>]| copies.iter().all(|copy| copy.bytes == copies[0].bytes);
        let Some(row) = self.row(at) else { return !is_same(&self.copies(at)) };
        let held = |member| self.held(Place { member, sector: Sector(at) }).collect::<Vec<_>>();
        !row.fits || !(0..self.plan.members).all(|role| is_same(&held(role)))
    }

    /// Sectors, of those that bitmaps count, whose copies differ.
    pub fn differing(&self) -> Vec<u64> {
        (0..self.plan.geometry().sync_sectors().0).filter(|at| self.differs(*at)).collect()
    }

    fn tell(&self, at: u64) -> String {
        let places: Vec<Place> = match self.plan.parity() {
            Some(_) => (0..self.plan.members).map(|member| Place { member, sector: Sector(at) }).collect(),
            None => {
                let mut places = Places::new();
                self.plan.geometry().places(Sector(at), &mut places);
                places.to_vec()
            }
        };
        let copies = places.into_iter().flat_map(|place| self.held(place));
        let held = copies.map(|copy| format!("{}: {}", copy.whose(), describe(&copy.bytes)));
        held.collect::<Vec<_>>().join(", ")
    }

    /// Rule 1.
    pub fn differences_are_known(&self, differing: &[u64]) -> Vec<String> {
        let unknown = differing.iter().filter_map(|sector| {
            if self.found.truth.is_clean() {
                let held = self.tell(*sector);
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
                Some(format!("{}: {violation}", copy.whose()))
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
            let (at, counted) = (start + sector, self.plan.to_sync(start + sector));
            let mut copies = self.copies(at);
            if copies.is_empty() && !self.is_lost(at) {
                wrong.push(format!("sector {at} has no copy"));
            }
            if unsettled[counted as usize] && self.found.may_differ(intent.as_ref(), counted) {
                copies.truncate(1);
            }
            let of_device = |copy: Copy<'_>| {
                let violation = oracle.may_hold(sector, &copy.bytes).err()?;
                Some(format!("{}: {violation}", copy.whose()))
            };
            wrong.extend(copies.into_iter().filter_map(of_device));
        }
        wrong.truncate(VIOLATIONS_MAX);
        wrong
    }

    /// Whether nobody knows what a sector of the array holds, as no member has it and what it would be computed from may not fit. (What is on the
    /// way to the place of a member that is gone is not read as long as that is so.)
    pub fn is_lost(&self, sector: u64) -> bool {
        self.plan.parity().is_some() && self.is_lost_at(self.plan.place_of(sector))
    }

    fn is_lost_at(&self, place: Place) -> bool {
        let member = self.found.members[usize::from(place.member)].as_ref();
        let is_held = member.is_some_and(|member| member.holds(place.sector));
        !is_held && (self.has_hole(place.sector.0) || self.is_lost_with_a_list(place))
    }

    /// Whether members list what nobody has any more.
    pub fn has_lost_what_was_listed(&self) -> bool {
        let (start, sectors) = self.plan.volume();
        (0..sectors).any(|sector| {
            let place = self.plan.place_of(start + sector);
            let member = self.found.members[usize::from(place.member)].as_ref();
            !member.is_some_and(|it| it.holds(place.sector)) && self.is_lost_with_a_list(place)
        })
    }

    /// Whether a place cannot be computed, as another member lists what that would take.
    fn is_lost_with_a_list(&self, place: Place) -> bool {
        let lists = |member: &Member| member.in_sync_to() == IN_SYNC && !member.holds(place.sector);
        self.plan.loses_listed
            && self.found.members.iter().flatten().any(lists)
            && self.computed(place).is_none()
    }

    /// Whether data are lost that members have in their lists of bad blocks: nobody makes parities fit what is not there, so they are never
    /// resynced, until somebody writes that again.
    pub fn is_stuck(&self) -> bool {
        let bad = self.found.members.iter().flatten().any(|member| !member.bad.is_empty());
        bad && (0..self.plan.geometry().sectors().0).any(|sector| self.is_lost(sector))
    }

    /// Whether members list something as bad in the row of this sector of them.
    fn is_spoilt(&self, sector: u64) -> bool {
        let chunk = self.plan.geometry().chunk().expect("rows have chunks").0;
        let row = sector / chunk * chunk;
        let mut bad = self.found.members.iter().flatten().flat_map(|member| &member.bad);
        bad.any(|(start, nr)| *start < row + chunk && row < start + nr)
    }

    /// Rule 5.
    pub fn nothing_is_due(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let found = self.found;
        if self.is_stuck() {
            // All other rows fit all the same.
            let misfits = self.differing().into_iter().filter(|sector| !self.is_spoilt(*sector));
            wrong.extend(
                misfits.map(|sector| format!("sector {sector} of members does not fit after a resync")),
            );
            wrong.truncate(VIOLATIONS_MAX);
            return wrong;
        }
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
            differing
                .iter()
                .map(|at| format!("copies of sector {at} differ after a resync ({})", self.tell(*at))),
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
            let bytes = self.world.peek(device, self.plan.data(place.sector));
            let (sector, copy) = match (self.plan.parity(), geometry.to_array(place)) {
                (Some(_), _) => (at, self.held(place).next().or_else(|| self.computed(place))),
                (None, Some(Sector(sector))) => (sector, self.copies(sector).into_iter().next()),
                (None, None) => continue,
            };
            let lacks = copy.is_some_and(|copy| copy.bytes != bytes);
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
