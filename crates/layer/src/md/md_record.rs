//! Superblocks 1.x, kept as Linux md keeps them.
//!
//! (1) Only what lives changes: events, time, resync position, roles, corrected errors. All else of a superblock goes back as
//! it was found. (2) All sites get one table of roles, that of the superblock with the most events; a slot in it whose
//! device does not take part (failed, or missing) is written as faulty, so that whoever finds that device later sees that
//! the others went on without it, even where it is only one event behind.

use blockwork_engine::{Nanos, Sector};
use blockwork_format::md::bitmap::BitmapSuperblock;
use blockwork_format::md::v1::{Access, Features, Superblock};
use blockwork_format::md::{IN_SYNC, Role, Time};
use blockwork_format::{FormatError, SECTOR_BYTES};

use super::record::{ArrayState, Record, Site};

/// A device of an array with its superblock as it was found.
#[derive(Debug)]
pub struct MdSite {
    /// Its role by the freshest superblock; none for a spare.
    pub role: Option<u16>,
    /// What people call it.
    pub name: String,
    /// The whole device.
    pub layer: std::sync::Arc<dyn blockwork_engine::Layer>,
    /// Its superblock.
    pub superblock: Superblock,
}

/// Superblocks 1.x of an array. See the module's head.
#[derive(Debug)]
pub struct MdRecord {
    sites: Vec<Site>,
    found: Vec<Superblock>,
    /// By slot, of the freshest superblock.
    roles: Vec<Role>,
    opened: Time,
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
    /// The record of an array with these devices: members, also those that are being recovered, and spares. `bitmap` is
    /// the array's, `opened` the time at which the clock of the environment began.
    ///
    /// A device that is to take another one's place (`Features::REPLACEMENT`) lacks what is written from now on: it is left as
    /// it is, and so falls behind.
    ///
    /// # Errors
    ///
    /// A superblock that must not be written, or that has no room for the bitmap or the roles.
    pub fn new(
        devices: Vec<MdSite>,
        bitmap: Option<&BitmapSuperblock>,
        opened: Time,
    ) -> Result<MdRecord, MdRecordError> {
        let devices: Vec<_> =
            devices.into_iter().filter(|it| !it.superblock.features.has(Features::REPLACEMENT)).collect();
        let freshest = devices.iter().map(|it| &it.superblock).max_by_key(|it| it.events);
        let freshest = freshest.ok_or(MdRecordError::None)?;
        let roles = freshest.roles.clone();
        let last = devices.iter().map(|it| it.superblock.dev_number).max().unwrap_or(0);
        for device in &devices {
            check(device, bitmap)?;
            let slots = device.superblock.roles.len().min(roles.len());
            if last as usize >= slots {
                return Err(MdRecordError::Slots { name: device.name.clone(), slots, dev_number: last });
            }
        }
        let (sites, found) = devices.into_iter().map(|device| site(device, bitmap.is_some())).unzip();
        Ok(MdRecord { sites, found, roles, opened })
    }

    /// The device of slot `slot`, if it takes part.
    fn role_of(&self, slot: usize, was: Role, state: &ArrayState) -> Role {
        let site = self.found.iter().position(|found| found.dev_number as usize == slot);
        match (was, site.map(|site| self.sites[site].role)) {
            (_, Some(Some(role))) if !state.gone[usize::from(role)] => Role::Active(role),
            (_, Some(None)) => Role::Spare,
            (Role::Active(_), _) => Role::Faulty,
            (other, _) => other,
        }
    }

    fn time(&self, now: Nanos) -> Time {
        Time::new(self.opened.seconds() + now.0 / 1_000_000_000, self.opened.microseconds())
    }
}

fn check(device: &MdSite, bitmap: Option<&BitmapSuperblock>) -> Result<(), MdRecordError> {
    let superblock = &device.superblock;
    let wrong = |error| MdRecordError::Superblock { name: device.name.clone(), error: Box::new(error) };
    superblock.supports(Access::Write).map_err(wrong)?;
    if let (Some(bitmap), Some(_)) = (bitmap, device.role) {
        let sectors = device.layer.sectors().0;
        let room = superblock.bitmap_room_sectors(sectors).unwrap_or(0);
        let offset = superblock.bitmap_sector().unwrap_or(0).saturating_mul(SECTOR_BYTES);
        bitmap.check_for(bitmap.uuid, bitmap.sync_size, room, offset).map_err(wrong)?;
    }
    Ok(())
}

fn site(device: MdSite, has_bitmap: bool) -> (Site, Superblock) {
    let MdSite { role, name, layer, superblock } = device;
    let bitmap = if has_bitmap && role.is_some() { superblock.bitmap_sector() } else { None };
    let site =
        Site { role, name, layer, superblock: Sector(superblock.super_offset), bitmap: bitmap.map(Sector) };
    (site, superblock)
}

impl Record for MdRecord {
    fn sites(&self) -> &[Site] {
        &self.sites
    }

    fn superblock(&self, site: usize, state: &ArrayState) -> Vec<u8> {
        let mut superblock = self.found[site].clone();
        superblock.events = state.events;
        superblock.utime = self.time(state.now);
        // Not clean: an array whose writer dies now has to be resynced from its start (or where its bitmap says).
        let from = state.resync_from.map_or(IN_SYNC, |from| from.0);
        superblock.resync_offset = if state.clean { from } else { 0 };
        let slots = superblock.roles.len();
        let roles = self.roles.iter().chain(std::iter::repeat(&Role::Spare)).take(slots).enumerate();
        superblock.roles = roles.map(|(slot, was)| self.role_of(slot, *was, state)).collect();
        if let Some(role) = self.sites[site].role {
            let corrected = state.corrected[usize::from(role)];
            superblock.corrected_errors = superblock.corrected_errors.saturating_add(corrected);
        }
        let mut bytes = superblock.encode();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn events(&self, site: usize) -> u64 {
        self.found[site].events
    }
}
