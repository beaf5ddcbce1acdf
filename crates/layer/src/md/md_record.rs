//! Superblocks 1.x, kept as Linux md keeps them.
//!
//! (1) Only what lives changes: events, time, resync and recovery positions, roles, corrected errors, and with
//! [`Record::resize`] the size. All else of a superblock goes back as it was found. (2) All sites get one table of roles, that of
//! the superblock with the most events; a slot in it whose device does not take part (failed, missing, removed) is written as
//! faulty, so that whoever finds that device later sees that the others went on without it, even where it is only one event
//! behind. (3) The superblock of a new device is that of another one, but for its slot, its UUID and its size; its slot is one
//! that no device has, behind those of the members, as mdadm chooses it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use blockwork_engine::{Nanos, Sector, Sectors};
use blockwork_format::md::bitmap::BitmapSuperblock;
use blockwork_format::md::v1::{Access, Features, Minor, Superblock};
use blockwork_format::md::{IN_SYNC, Region, Remains, Role, Time, Uuid};
use blockwork_format::{FormatError, SECTOR_BYTES};

use super::bad_blocks::BadBlockLog;
use super::record::{ArraySize, ArrayState, NewSite, Record, RecordError, Site, Standing};

/// A device of an array with its superblock as it was found.
#[derive(Debug)]
pub struct MdSite {
    /// Its role by the freshest superblock, also where it is to take another one's place; none for a spare.
    pub role: Option<u16>,
    /// What people call it.
    pub name: String,
    /// The whole device.
    pub layer: std::sync::Arc<dyn blockwork_engine::Layer>,
    /// Its superblock.
    pub superblock: Superblock,
    /// What its list of bad blocks has, from the start of its data, where it is to take another one's place. (Members' come with their
    /// [`MemberConfig`](super::MemberConfig); a spare is filled anew.)
    pub bad: Vec<(Sector, Sectors)>,
}

/// Superblocks 1.x of an array. See the module's head.
#[derive(Debug)]
pub struct MdRecord {
    sites: Vec<Site>,
    /// By site, those that were added included.
    kept: Mutex<Vec<Kept>>,
    /// By slot, of the freshest superblock.
    roles: Vec<Role>,
    opened: Time,
}

/// A superblock that we keep.
#[derive(Debug)]
struct Kept {
    superblock: Superblock,
    /// Of its device.
    sectors: Sectors,
    /// It was taken out: its slot is free.
    removed: bool,
}

/// Why an array's state cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MdRecordError {
    /// A superblock that we do not write, or a bitmap without room.
    #[error("{name}: {error}")]
    Superblock {
        /// Of which device.
        name: String,
        /// What is wrong.
        error: Box<FormatError>,
    },
    /// A table of roles that ends before a device of the array.
    #[error(
        "{name}: the table of roles has {slots} slots, and the array a device with number {dev_number}; serve the array read-only"
    )]
    Slots {
        /// Of which device.
        name: String,
        /// Its slots.
        slots: usize,
        /// A device's slot.
        dev_number: u32,
    },
    /// No superblock at all.
    #[error("an array without superblocks cannot be written to; serve it read-only")]
    None,
}

impl MdRecord {
    /// The record of an array with these devices: members, also those that are being recovered, those that are to take a
    /// member's place, and spares. `bitmap` is the array's, `opened` the time at which the clock of the environment began.
    /// A device that is a spare here, and none by the freshest superblock, is let alone; so is a spare whose slot a fresher device has.
    ///
    /// # Errors
    ///
    /// A superblock that must not be written, or that has no room for the bitmap or the roles.
    pub fn new(
        devices: Vec<MdSite>,
        bitmap: Option<&BitmapSuperblock>,
        opened: Time,
    ) -> Result<MdRecord, MdRecordError> {
        let freshest = devices.iter().map(|it| &it.superblock).max_by_key(|it| it.events);
        let roles = freshest.ok_or(MdRecordError::None)?.roles.clone();
        let slot = |it: &MdSite| roles.get(it.superblock.dev_number as usize).copied();
        let counts = |it: &MdSite| it.role.is_some() || matches!(slot(it), Some(Role::Spare) | None);
        let devices = one_of_each_slot(devices.into_iter().filter(counts).collect());
        let last = devices.iter().map(|it| it.superblock.dev_number).max().unwrap_or(0);
        for device in &devices {
            check(device, bitmap)?;
            let slots = device.superblock.roles.len().min(roles.len());
            if last as usize >= slots {
                return Err(MdRecordError::Slots { name: device.name.clone(), slots, dev_number: last });
            }
        }
        let (sites, kept) = devices.into_iter().map(|device| site(device, bitmap.is_some())).unzip();
        Ok(MdRecord { sites, kept: Mutex::new(kept), roles, opened })
    }

    /// Held only for as long as it takes to look or to alter.
    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time(&self, now: Nanos) -> Time {
        Time::new(self.opened.seconds() + now.0 / 1_000_000_000, self.opened.microseconds())
    }

    /// A slot that no device has; rather one that none ever had: a device that was removed still has its superblock.
    fn free_slot(&self, kept: &[Kept]) -> Result<u32, RecordError> {
        let has = |it: &&Kept, slot: u32| it.superblock.dev_number == slot;
        // A member that is missing may come back.
        let is_member = |slot: u32| matches!(self.roles.get(slot as usize), Some(Role::Active(_)));
        let unused = |slot: &u32| !is_member(*slot) && !kept.iter().any(|it| has(&it, *slot));
        let free = |slot: &u32| !is_member(*slot) && !kept.iter().any(|it| has(&it, *slot) && !it.removed);
        let slots = kept.iter().map(|it| it.superblock.roles.len()).min().unwrap_or(0).min(self.roles.len());
        let first = kept.first().map_or(0, |it| it.superblock.raid_disks);
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        let all = || (first..slots).chain(0..first.min(slots));
        all()
            .find(unused)
            .or_else(|| all().find(free))
            .ok_or_else(|| RecordError::Full(format!("all {slots} slots of its superblocks are taken")))
    }
}

/// Without spares whose slot another device got when they had failed or were taken out: what the table says of the slot is about
/// that one.
fn one_of_each_slot(mut devices: Vec<MdSite>) -> Vec<MdSite> {
    let rank = |it: &MdSite| (it.role.is_some(), it.superblock.events);
    let ranks: Vec<_> = devices.iter().map(|it| (it.superblock.dev_number, rank(it))).collect();
    let goes = |index: usize| {
        let (slot, own) = ranks[index];
        let fresher = |(at, (other, theirs)): (usize, &(u32, (bool, u64)))| {
            *other == slot && (*theirs > own || (*theirs == own && at < index))
        };
        !own.0 && ranks.iter().enumerate().any(fresher)
    };
    let mut index = 0..;
    devices.retain(|_| index.next().is_some_and(|index| !goes(index)));
    devices
}

/// The roles that all superblocks tell of.
fn table(roles: &[Role], kept: &[Kept], state: &ArrayState) -> Vec<Role> {
    let standing = |slot: usize| {
        let here = kept.iter().zip(&state.sites).filter(|(it, _)| it.superblock.dev_number as usize == slot);
        here.map(|(_, site)| site.standing).find(|standing| *standing != Standing::Removed)
    };
    let role = |(slot, was): (usize, &Role)| match (standing(slot), was) {
        (Some(Standing::Active { role, .. }), _) => Role::Active(role),
        (Some(Standing::Spare), _) => Role::Spare,
        (Some(_), _) | (None, Role::Active(_)) => Role::Faulty,
        (None, other) => *other,
    };
    roles.iter().enumerate().map(role).collect()
}

fn check(device: &MdSite, bitmap: Option<&BitmapSuperblock>) -> Result<(), MdRecordError> {
    let superblock = &device.superblock;
    let wrong = |error| MdRecordError::Superblock { name: device.name.clone(), error: Box::new(error) };
    superblock.supports(Access::Write).map_err(wrong)?;
    let bitmap = bitmap.filter(|_| device.role.is_some());
    check_bitmap(superblock, bitmap, device.layer.sectors()).map_err(wrong)
}

/// Whether there is room for the bitmap on a device of that size.
fn check_bitmap(
    superblock: &Superblock,
    bitmap: Option<&BitmapSuperblock>,
    sectors: Sectors,
) -> Result<(), FormatError> {
    let Some(bitmap) = bitmap else { return Ok(()) };
    let room = superblock.bitmap_room_sectors(sectors.0).unwrap_or(0);
    let offset = superblock.bitmap_sector().unwrap_or(0).saturating_mul(SECTOR_BYTES);
    bitmap.check_for(bitmap.uuid, bitmap.sync_size, room, offset)
}

fn site(device: MdSite, has_bitmap: bool) -> (Site, Kept) {
    let MdSite { role, name, layer, superblock, bad } = device;
    let bitmap = if has_bitmap { superblock.bitmap_sector() } else { None };
    let log = superblock.bad_block_log();
    let recovered = Some(superblock.recovered_sectors()).filter(|end| *end != IN_SYNC);
    let sectors = layer.sectors();
    let site = Site {
        role,
        replacement: role.is_some() && superblock.features.has(Features::REPLACEMENT),
        name,
        superblock: Sector(superblock.super_offset),
        bitmap: bitmap.map(Sector),
        data_start: Sector(superblock.data_offset),
        room: Some(Sectors(superblock.room_for_data(sectors.0))),
        recovered: recovered.map(Sector),
        by_bitmap: superblock.features.has(Features::RECOVERY_BITMAP),
        bad_blocks: log.map(|log| BadBlockLog {
            layer: layer.clone(),
            start: Sector(log.start),
            sectors: superblock.bblog_sectors,
            shift: superblock.bblog_shift,
        }),
        bad,
        layer,
    };
    (site, Kept { superblock, sectors, removed: false })
}

/// A superblock for a device of that size, after that of another device of the same array.
fn fresh(of: &Superblock, sectors: Sectors, device_uuid: Uuid) -> Superblock {
    let mut superblock = of.clone();
    let its_own =
        Features::RECOVERY_OFFSET | Features::RECOVERY_BITMAP | Features::REPLACEMENT | Features::BAD_BLOCKS;
    superblock.features = superblock.features.with(its_own, false);
    superblock.device_uuid = device_uuid;
    superblock.recovery_offset = 0;
    superblock.corrected_errors = 0;
    superblock.devflags = 0;
    superblock.super_offset = of.minor.sector(sectors.0).unwrap_or(0);
    superblock.data_size = data_size(&superblock, sectors);
    superblock
}

/// What there is for data on a new device of that size. A superblock at the end has bitmap and list of bad blocks before it.
fn data_size(superblock: &Superblock, sectors: Sectors) -> u64 {
    let end = match superblock.minor {
        Minor::V1_0 => {
            let before = superblock.bitmap_offset.min(superblock.bblog_offset).min(0);
            superblock.super_offset.saturating_sub(before.unsigned_abs().into())
        }
        Minor::V1_1 | Minor::V1_2 => sectors.0,
    };
    end.saturating_sub(superblock.data_offset)
}

impl Record for MdRecord {
    fn sites(&self) -> &[Site] {
        &self.sites
    }

    fn superblock(&self, site: usize, state: &ArrayState) -> Vec<u8> {
        let kept = self.kept();
        let mut superblock = kept[site].superblock.clone();
        let own = &state.sites[site];
        superblock.events = state.events;
        superblock.utime = self.time(state.now);
        // Not clean: an array whose writer dies now has to be resynced from its start (or where its bitmap says).
        let from = state.resync_from.map_or(IN_SYNC, |from| from.0);
        superblock.resync_offset = if state.clean { from } else { 0 };
        superblock.roles = table(&superblock_roles(&self.roles, superblock.roles.len()), &kept, state);
        superblock.corrected_errors = superblock.corrected_errors.saturating_add(own.corrected);
        let (recovered, by_bitmap, replacement) = match own.standing {
            Standing::Active { recovered, by_bitmap, replacement, .. } => (recovered, by_bitmap, replacement),
            _ => (None, false, false),
        };
        superblock.recovery_offset = recovered.map_or(superblock.recovery_offset, |end| end.0);
        superblock.features = superblock
            .features
            .with(Features::RECOVERY_OFFSET, recovered.is_some())
            .with(Features::RECOVERY_BITMAP, recovered.is_some() && by_bitmap)
            .with(Features::REPLACEMENT, replacement)
            .with(Features::BAD_BLOCKS, own.bad_blocks);
        if !state.has_bitmap {
            superblock.features = superblock.features.with(Features::BITMAP, false);
        }
        let mut bytes = superblock.encode();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn events(&self, site: usize) -> u64 {
        self.kept()[site].superblock.events
    }

    fn knows(&self, superblock: &Superblock) -> bool {
        let kept = self.kept();
        let Some(own) = kept.first().map(|it| &it.superblock) else { return false };
        let shape = |it: &Superblock| {
            (it.set_uuid, it.level, it.layout, it.chunk_sectors, it.raid_disks, it.size, it.ctime, it.minor)
        };
        let slot = superblock.dev_number;
        shape(own) == shape(superblock)
            && superblock.supports(Access::Write).is_ok()
            && (slot as usize) < superblock.roles.len().min(self.roles.len())
            && !kept.iter().any(|it| !it.removed && it.superblock.dev_number == slot)
    }

    fn was_apart(&self, superblock: &Superblock, state: &ArrayState) -> bool {
        // Whoever goes on without a member says so in its superblock before it writes: as faulty (as we do, see the head), or as a
        // spare (as Linux does, and as slots are that nobody has had: one that came later than this one went).
        let here = table(&self.roles, &self.kept(), state);
        let is_other = |slot: usize, role: &Role| {
            slot != superblock.dev_number as usize && matches!(role, Role::Active(_))
        };
        let mut others = here.iter().enumerate().filter(|(slot, role)| is_other(*slot, role)).peekable();
        let is_alone = others.peek().is_none();
        let has_all = others.all(|(slot, role)| superblock.roles.get(slot) == Some(role));
        // A power cut in the midst of an update leaves it one ahead.
        let is_ahead = superblock.events > state.events + 1;
        is_ahead || is_alone || !has_all
    }

    fn add(
        &self,
        NewSite { name, layer, superblock, device_uuid }: NewSite,
    ) -> Result<(usize, Site), RecordError> {
        let mut kept = self.kept();
        let has_bitmap = self.sites.iter().any(|site| site.bitmap.is_some());
        let sectors = layer.sectors();
        let superblock = match superblock {
            Some(own) => *own,
            None => {
                let of = kept.first().ok_or(RecordError::Fixed)?;
                let mut superblock = fresh(&of.superblock, sectors, device_uuid);
                superblock.dev_number = self.free_slot(&kept)?;
                superblock.check(sectors.0).map_err(|error| RecordError::Format(Box::new(error)))?;
                superblock
            }
        };
        let device = MdSite { role: None, name, layer, superblock, bad: Vec::new() };
        let (site, more) = site(device, has_bitmap);
        kept.push(more);
        Ok((kept.len() - 1, site))
    }

    fn wipes(&self, site: usize, remains: &Remains) -> Vec<Region> {
        remains.wipes(&self.kept()[site].superblock)
    }

    fn remove(&self, site: usize) {
        self.kept()[site].removed = true;
    }

    fn resize(
        &self,
        size: ArraySize,
        bitmap: Option<&BitmapSuperblock>,
        told: &[usize],
    ) -> Result<(), RecordError> {
        let wrong = |error| RecordError::Format(Box::new(error));
        let mut kept = self.kept();
        let mut grown = Vec::with_capacity(kept.len());
        for (site, it) in kept.iter().enumerate() {
            let mut superblock = it.superblock.clone();
            superblock.size = size.member.0;
            superblock.data_size = superblock.room_for_data(it.sectors.0);
            // One that is told of it becomes a device that nobody takes for a member if it has no room.
            if told.contains(&site) {
                superblock.check(it.sectors.0).map_err(wrong)?;
                check_bitmap(&superblock, bitmap, it.sectors).map_err(wrong)?;
            }
            grown.push(superblock);
        }
        kept.iter_mut().zip(grown).for_each(|(it, superblock)| it.superblock = superblock);
        Ok(())
    }

    fn is_fixed(&self) -> bool {
        false
    }
}

/// A table of roles with so many slots; those behind the last one that is known wait for spares.
fn superblock_roles(roles: &[Role], slots: usize) -> Vec<Role> {
    roles.iter().copied().chain(std::iter::repeat(Role::Spare)).take(slots).collect()
}
